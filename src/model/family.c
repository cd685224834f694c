/* SPDX-License-Identifier: Apache-2.0 */
/* The table of families: which file reads, binds and runs a model. Mistral has no row for GGUF: its
 * files are of architecture llama. */
#include <stdio.h>

#include "model/family.h"

static const struct family families[] = {
    {.arch = "llama",
     .classes = {"LlamaForCausalLM"},
     .heads_are_kv = true,
     .read = llama_read,
     .bind = llama_bind,
     .forward = llama_forward,
     .gguf = "llama",
     .gguf_read = llama_gguf_read},
    {.arch = "mistral",
     .classes = {"MistralForCausalLM"},
     .read = llama_read,
     .bind = llama_bind,
     .forward = llama_forward},
    {.arch = "qwen2",
     .classes = {"Qwen2ForCausalLM"},
     .read = llama_read,
     .bind = llama_bind,
     .forward = llama_forward,
     .gguf = "qwen2",
     .gguf_read = llama_gguf_read},
    {.arch = "qwen3",
     .classes = {"Qwen3ForCausalLM"},
     .head_dim = 128,
     .read = llama_read,
     .bind = llama_bind,
     .forward = llama_forward,
     .gguf = "qwen3",
     .gguf_read = llama_gguf_read},
    {.arch = "qwen3_moe",
     .classes = {"Qwen3MoeForCausalLM"},
     .read = llama_read,
     .bind = llama_bind,
     .forward = llama_forward,
     .gguf = "qwen3moe",
     .gguf_read = llama_gguf_read,
     .gguf_names = {gguf_expert_names}},
    {.arch = "smollm3",
     .classes = {"SmolLM3ForCausalLM"},
     .read = llama_read,
     .bind = llama_bind,
     .forward = llama_forward,
     .gguf = "smollm3",
     .gguf_read = llama_gguf_read},
    {.arch = "granite",
     .classes = {"GraniteForCausalLM"},
     .read = llama_read,
     .bind = llama_bind,
     .forward = llama_forward,
     .gguf = "granite",
     .gguf_read = llama_gguf_read},
    {.arch = "phi3",
     .classes = {"Phi3ForCausalLM"},
     .heads_are_kv = true,
     .read = llama_read,
     .bind = llama_bind,
     .forward = llama_forward,
     .gguf = "phi3",
     .gguf_read = llama_gguf_read,
     .gguf_names = {phi3_gguf_names}},
    {.arch = "olmo3",
     .classes = {"Olmo3ForCausalLM"},
     .heads_are_kv = true,
     .read = olmo3_read,
     .bind = olmo3_bind,
     .forward = olmo3_forward,
     .gguf = "olmo2",
     .gguf_read = olmo3_gguf_read,
     .gguf_names = {olmo3_gguf_names}},
    {.arch = "olmoe",
     .classes = {"OlmoeForCausalLM"},
     .heads_are_kv = true,
     .read = olmoe_read,
     .bind = olmoe_bind,
     .forward = llama_forward,
     .gguf = "olmoe",
     .gguf_read = olmoe_gguf_read,
     .gguf_names = {gguf_expert_names}},
    {.arch = "gemma2",
     .classes = {"Gemma2ForCausalLM"},
     .head_dim = 256,
     .read = gemma_read,
     .bind = gemma_bind,
     .forward = gemma_forward,
     .gguf = "gemma2",
     .gguf_read = gemma_gguf_read,
     .gguf_names = {gemma_gguf_names}},
    {.arch = "gemma3",
     .classes = {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"},
     .head_dim = 256,
     .read = gemma_read,
     .bind = gemma_bind,
     .forward = gemma_forward,
     .gguf = "gemma3",
     .gguf_read = gemma_gguf_read,
     .gguf_names = {gemma_gguf_names}},
    {.arch = "gemma4",
     .classes = {"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"},
     .head_dim = 256,
     .read = gemma4_read,
     .bind = gemma4_bind,
     .bind_model = gemma4_bind_model,
     .forward = gemma4_forward,
     .gguf = "gemma4",
     .gguf_read = gemma4_gguf_read,
     .gguf_names = {gemma4_gguf_names, gemma_gguf_names}},
    {.arch = "gpt_oss",
     .classes = {"GptOssForCausalLM"},
     .head_dim = 64,
     .read = gpt_oss_read,
     .bind = gpt_oss_bind,
     .forward = gpt_oss_forward,
     .gguf = "gpt-oss",
     .gguf_read = gpt_oss_gguf_read,
     .gguf_names = {gpt_oss_gguf_names}},
    {.arch = "qwen3_next",
     .classes = {"Qwen3NextForCausalLM"},
     .head_dim = 256,
     .read = qwen_hybrid_read,
     .bind = qwen_hybrid_bind,
     .forward = qwen_hybrid_forward,
     .gguf = "qwen3next",
     .gguf_read = qwen_hybrid_gguf_read,
     .gguf_names = {qwen_hybrid_gguf_names, gguf_expert_names}},
    {.arch = "qwen3_5",
     .classes = {"Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"},
     .head_dim = 256,
     .read = qwen_hybrid_read,
     .bind = qwen_hybrid_bind,
     .forward = qwen_hybrid_forward,
     .gguf = "qwen35",
     .gguf_read = qwen_hybrid_gguf_read,
     .gguf_names = {qwen_hybrid_gguf_names}},
    {.arch = "qwen3_5_moe",
     .classes = {"Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"},
     .head_dim = 256,
     .read = qwen_hybrid_read,
     .bind = qwen_hybrid_bind,
     .forward = qwen_hybrid_forward,
     .gguf = "qwen35moe",
     .gguf_read = qwen_hybrid_gguf_read,
     .gguf_names = {qwen_hybrid_gguf_names, gguf_expert_names}},
    {.arch = "lfm2",
     .classes = {"Lfm2ForCausalLM"},
     .read = lfm2_read,
     .bind = lfm2_bind,
     .forward = lfm2_forward,
     .final_norm = "model.embedding_norm",
     .gguf = "lfm2",
     .gguf_read = lfm2_gguf_read,
     .gguf_names = {lfm2_gguf_names}},
};
enum { FAMILIES = sizeof families / sizeof *families, CLASSES = 3 };

const struct family *family_of_class(const char *class_name) {
    for (size_t i = 0; i < FAMILIES; i++)
        for (size_t j = 0; j < CLASSES && families[i].classes[j]; j++)
            if (strcmp(class_name, families[i].classes[j]) == 0)
                return &families[i];
    return NULL;
}

const struct family *family_of_arch(const char *arch) {
    for (size_t i = 0; i < FAMILIES; i++)
        if (strcmp(arch, families[i].arch) == 0)
            return &families[i];
    return NULL;
}

const struct family *family_of_gguf(const char *arch, size_t len) {
    for (size_t i = 0; i < FAMILIES; i++)
        if (families[i].gguf && len == strlen(families[i].gguf) &&
            memcmp(arch, families[i].gguf, len) == 0)
            return &families[i];
    return NULL;
}

const char *family_class_list(char *buf, size_t size) {
    size_t len = 0;
    for (size_t i = 0; i < FAMILIES && len < size; i++)
        len +=
            (size_t)snprintf(buf + len, size - len, "%s%s", i ? ", " : "", families[i].classes[0]);
    return buf;
}

const char *family_gguf_list(char *buf, size_t size) {
    size_t len = 0;
    for (size_t i = 0; i < FAMILIES && len < size; i++)
        if (families[i].gguf)
            len += (size_t)snprintf(buf + len, size - len, "%s%s", i ? ", " : "", families[i].gguf);
    return buf;
}
