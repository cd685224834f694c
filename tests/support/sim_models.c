/* SPDX-License-Identifier: Apache-2.0 */
#include "sim_models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "centres.h"
#include "random_programs.h"
#include "tensors.h"

const char *const SIM_MODELS[SIM_N_MODELS] = {
    "llama",   "mistral",    "qwen2",         "qwen3",   "qwen3_yarn",  "qwen3_moe",   "smollm3",
    "granite", "olmo3",      "phi3_short",    "gemma2",  "gemma3",      "gemma4_full", "gpt_oss",
    "lfm2",    "qwen3_next", "gemma4_shared", "qwen3_5", "qwen3_5_moe", "blocks"};

/* A model of random blocks in every quantized weight type, written as GGUF: arch llama (adjacent
 * rotary pairs), 2 layers, 128 dims, 4 query heads of 64 for 2 KV heads. */
static void random_tensor(struct gguf_writer *w, const char *name, enum weight_type type,
                          uint64_t n, uint64_t k) {
    const struct weight_traits *t = weight_traits_of(type);
    size_t at = w->data.len, bytes = n * k / t->block_values * t->block_bytes;
    gguf_matrix(w, name, type, n, k);
    for (size_t i = 0; i < bytes; i++)
        w->data.data[at + i] = (char)random_below(256);
    for (size_t i = 0; i < bytes; i += t->block_bytes) {
        uint16_t d = f32_to_f16(0.002f + 0.00002f * (float)random_below(100));
        uint16_t m = f32_to_f16(-0.016f);
        memcpy(w->data.data + at + i, &d, 2);
        if (type == WEIGHT_Q4_1)
            memcpy(w->data.data + at + i + 2, &m, 2);
    }
}

static void unit_vector(struct gguf_writer *w, const char *name, uint64_t n) {
    size_t at = w->data.len;
    gguf_vector(w, name, n);
    for (size_t i = 0; i < n; i++)
        memcpy(w->data.data + at + 4 * i, &(float){1}, 4);
}

static kvasir_status open_blocks_model(kvasir_model **out, kvasir_error *err) {
    static const struct {
        const char *key;
        uint32_t value;
    } sizes[] = {{"llama.block_count", 2},           {"llama.embedding_length", 128},
                 {"llama.feed_forward_length", 256}, {"llama.context_length", 4096},
                 {"llama.attention.head_count", 4},  {"llama.attention.head_count_kv", 2},
                 {"llama.attention.key_length", 64}, {"llama.attention.value_length", 64},
                 {"llama.rope.dimension_count", 64}, {"llama.vocab_size", SIM_VOCAB}};
    struct gguf_writer w = {0};
    gguf_string(&w, "general.architecture", "llama");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        gguf_u32(&w, sizes[i].key, sizes[i].value);
    gguf_f32(&w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    random_tensor(&w, "token_embd.weight", WEIGHT_Q8_0, SIM_VOCAB, 128);
    unit_vector(&w, "output_norm.weight", 128);
    for (int i = 0; i < 2; i++) {
        enum weight_type a = i ? WEIGHT_Q4_0 : WEIGHT_Q4_1, b = i ? WEIGHT_Q8_0 : WEIGHT_Q4_0;
        char name[64];
#define PART(part) (snprintf(name, sizeof name, "blk.%d.%s.weight", i, part), name)
        unit_vector(&w, PART("attn_norm"), 128);
        random_tensor(&w, PART("attn_q"), a, 256, 128);
        random_tensor(&w, PART("attn_k"), b, 128, 128);
        random_tensor(&w, PART("attn_v"), a, 128, 128);
        random_tensor(&w, PART("attn_output"), b, 128, 256);
        unit_vector(&w, PART("ffn_norm"), 128);
        random_tensor(&w, PART("ffn_gate"), a, 256, 128);
        random_tensor(&w, PART("ffn_up"), b, 256, 128);
        random_tensor(&w, PART("ffn_down"), a, 128, 256);
#undef PART
    }
    struct text_buf file = gguf_finish(&w, 32);
    struct temp_folder folder;
    temp_folder_make(&folder);
    kvasir_status status =
        kvasir_model_open(temp_write(&folder, "blocks.gguf", file.data, file.len), out, err);
    text_free(&file);
    temp_folder_remove(&folder); /* the mapping stays */
    return status;
}

static void write_centres(struct sim_models *s, int model) {
    if (!model_keys_alike(s->models[model]->model))
        return;
    struct text_buf file = random_calibration(s->models[model], 20, true, random_state);
    char name[32];
    snprintf(name, sizeof name, "%d.safetensors", model);
    snprintf(s->centres[model], sizeof s->centres[model], "%s",
             temp_write(&s->folder, name, file.data, file.len));
    text_free(&file);
}

void sim_models_open(struct sim_models *s) {
    skip_without(SHARED_DIR "/fixtures/tiny/llama/config.json");
    temp_folder_make(&s->folder);
    for (int m = 0; m < SIM_N_MODELS; m++) {
        char path[512];
        kvasir_error err;
        snprintf(path, sizeof path, "%s/fixtures/tiny/%s", SHARED_DIR, SIM_MODELS[m]);
        if ((m == SIM_N_MODELS - 1 ? open_blocks_model(&s->models[m], &err)
                                   : kvasir_model_open(path, &s->models[m], &err)) != KVASIR_OK) {
            printf("%s\n", err.text);
            exit(1);
        }
        write_centres(s, m);
    }
}

void sim_models_close(struct sim_models *s) {
    temp_folder_remove(&s->folder);
    for (int m = 0; m < SIM_N_MODELS; m++)
        kvasir_model_close(s->models[m]);
}
