/* SPDX-License-Identifier: Apache-2.0 */
/* ollama_models.c: the model as ollama describes those that it has. Names end with a tag there, so
 * one without is listed as "name:latest"; both are understood. */
#include "api/fim.h"
#include "api/ollama.h"

#include <stdio.h>
#include <string.h>

static json_t *name_json(const struct api_model *m) {
    const char *name = m->name;
    return strchr(name, ':') ? json_string(name) : json_sprintf("%s:latest", name);
}

/* "Q4_1", of "Q4_1 210, F32 61": the type of most tensors. */
static json_t *quantization_json(const struct api_model *m) {
    const char *types = m->info.weight_types ? m->info.weight_types : "";
    return json_stringn(types, strcspn(types, " ,"));
}

/* "134.5M" */
static json_t *size_json(uint64_t parameters) {
    const double n = (double)parameters;
    return n >= 1e9 ? json_sprintf("%.1fB", n / 1e9) : json_sprintf("%.2fM", n / 1e6);
}

static json_t *details_json(const struct api_model *m) {
    const char *format = m->info.format && strncmp(m->info.format, "GGUF", 4) == 0 ? "gguf"
                                                                                   : "safetensors",
               *family = m->info.arch ? m->info.arch : "";
    return json_pack("{s:s, s:s, s:s, s:[s], s:o, s:o}", "parent_model", "", "format", format,
                     "family", family, "families", family, "parameter_size",
                     size_json(m->info.parameters), "quantization_level", quantization_json(m));
}

/* What /api/tags and /api/ps have in common. What is not loaded is not known in detail. */
static json_t *facts_json(const struct api_model *m) {
    if (!m->setup)
        return json_pack("{s:o, s:o, s:I, s:s, s:{}}", "name", name_json(m), "model", name_json(m),
                         "size", (json_int_t)m->file_bytes, "digest", "", "details");
    return json_pack("{s:o, s:o, s:I, s:s, s:o}", "name", name_json(m), "model", name_json(m),
                     "size", (json_int_t)m->info.weight_bytes, "digest", m->info.fingerprint,
                     "details", details_json(m));
}

/* Takes model and value. */
static json_t *with(json_t *model, const char *name, json_t *value) {
    if (model && json_object_set_new(model, name, value) == 0)
        return model;
    if (!model)
        json_decref(value);
    json_decref(model);
    return NULL;
}

static json_t *model_json(const struct api_model *m) {
    return m->state ? with(facts_json(m), "state", json_string(m->state)) : facts_json(m);
}

/* {"models": [what `of` makes of each]} */
static json_t *list_json(const struct api_model *models, size_t n,
                         json_t *(*of)(const struct api_model *m)) {
    json_t *list = json_array();
    bool good = list != NULL;
    for (size_t i = 0; good && i < n; i++)
        good = json_array_append_new(list, of(&models[i])) == 0;
    if (good)
        return json_pack("{s:o}", "models", list);
    json_decref(list);
    return NULL;
}

static json_t *tag_json(const struct api_model *m) {
    return with(model_json(m), "modified_at", api_time(m->since_s));
}

json_t *ollama_tags(const struct api_model *models, size_t n) {
    return list_json(models, n, tag_json);
}

static json_t *running_json(const struct api_model *m) {
    static const char NEVER[] = "2318-01-01T00:00:00Z"; /* keep_alive -1 */
    json_t *model = with(model_json(m), "expires_at", json_string(NEVER));
    model = with(model, "size_vram", json_integer(0));
    return with(model, "context_length", json_integer(m->setup ? (json_int_t)m->setup->ctx : 0));
}

json_t *ollama_ps(const struct api_model *models, size_t n) {
    return list_json(models, n, running_json);
}

static json_t *capabilities_json(const struct api_model *m) {
    const struct answer_syntax *syntax = m->setup->syntax;
    struct fim fim;
    const struct {
        const char *name;
        bool has;
    } all[] = {{"completion", true},
               {"tools", syntax && syntax->tools != ANSWER_TOOLS_NONE},
               {"thinking", syntax && (syntax->think_open || syntax->tools == ANSWER_HARMONY)},
               {"insert", fim_find(m->setup->tokenizer, &fim)}};
    json_t *list = json_array();
    bool good = list != NULL;
    for (size_t i = 0; good && i < sizeof all / sizeof *all; i++)
        good = !all[i].has || json_array_append_new(list, json_string(all[i].name)) == 0;
    if (good)
        return list;
    json_decref(list);
    return NULL;
}

/* {"general.architecture", "llama.context_length", ...}, by the names of a GGUF file */
static json_t *info_json(const struct api_model *m) {
    const kvasir_model_info *info = &m->info;
    const char *arch = info->arch ? info->arch : "";
    const struct {
        const char *name;
        uint32_t value;
    } numbers[] = {{"context_length", m->setup->ctx},
                   {"embedding_length", info->dim},
                   {"block_count", info->layers},
                   {"feed_forward_length", info->ffn_dim},
                   {"attention.head_count", info->heads},
                   {"attention.head_count_kv", info->kv_heads},
                   {"vocab_size", info->vocab}};
    json_t *made = json_pack("{s:s, s:s, s:I}", "general.architecture", arch, "general.basename",
                             info->name ? info->name : "", "general.parameter_count",
                             (json_int_t)info->parameters);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char name[96];
        snprintf(name, sizeof name, "%.40s.%s", arch, numbers[i].name);
        made = with(made, name, json_integer(numbers[i].value));
    }
    return made;
}

bool ollama_show(const struct api_model *m, struct api_body *body, struct text_buf *out,
                 struct api_error *err) {
    size_t len = 0;
    const char *template = kvasir_chat_template(m->setup->tokenizer, &len);
    if (!ollama_check_model(m->setup, body->members, err))
        return false;
    json_t *made = json_pack("{s:s, s:s, s:s%, s:o, s:o, s:o, s:o}", "modelfile", "", "parameters",
                             "", "template", template ? template : "", template ? len : 0,
                             "details", details_json(m), "model_info", info_json(m), "capabilities",
                             capabilities_json(m), "modified_at", api_time(m->since_s));
    return api_add_json(made, out) || api_no_memory(err);
}
