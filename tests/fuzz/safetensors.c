/* SPDX-License-Identifier: Apache-2.0 */
/* An arbitrary folder. The input is one or more files, each after a line that names it:
 *
 *     0x01 NAME '\n' bytes ... 0x01 NAME '\n' bytes ...
 *
 * NAME one of the names below. If the input has no config.json, a small valid one is used. */
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"
#include "model/model.h"

static const char CONFIG[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":8,"
    "\"intermediate_size\":8,\"num_hidden_layers\":1,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":4,\"vocab_size\":4,"
    "\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true,\"max_position_embeddings\":64}";

static const char *const NAMES[] = {
    "config.json",           "model.safetensors", "model.safetensors.index.json",
    "a.safetensors",         "b.safetensors",     "generation_config.json",
    "tokenizer_config.json", "tokenizer.json",    "chat_template.jinja",
};
enum { CONFIG_JSON, N_NAMES = sizeof NAMES / sizeof *NAMES };

/* An index, or N_NAMES. */
static size_t known_name(const uint8_t *text, size_t len) {
    size_t i = 0;
    while (i < N_NAMES && (strlen(NAMES[i]) != len || memcmp(NAMES[i], text, len) != 0))
        i++;
    return i;
}

/* Length of the file that begins at `at`: up to the next line that names one. */
static size_t file_length(const uint8_t *data, size_t size, size_t at) {
    for (size_t i = at; i < size; i++) {
        const uint8_t *end = data[i] == 1 ? memchr(data + i, '\n', size - i) : NULL;
        if (end && known_name(data + i + 1, (size_t)(end - data) - i - 1) < N_NAMES)
            return i - at;
    }
    return size - at;
}

static void write_folder(const uint8_t *data, size_t size) {
    static bool exists[N_NAMES]; /* of the input before */
    for (size_t i = 0; i < N_NAMES; i++)
        if (exists[i])
            unlink(fuzz_path(NAMES[i]));
    memset(exists, 0, sizeof exists);
    fuzz_write(NAMES[CONFIG_JSON], (const uint8_t *)CONFIG, sizeof CONFIG - 1);
    exists[CONFIG_JSON] = true;
    size_t at = 0;
    while (at < size && data[at] == 1) {
        const uint8_t *end = memchr(data + at, '\n', size - at);
        const size_t name =
            end ? known_name(data + at + 1, (size_t)(end - data) - at - 1) : N_NAMES;
        if (name == N_NAMES)
            return;
        at = (size_t)(end - data) + 1;
        size_t len = file_length(data, size, at);
        fuzz_write(NAMES[name], data + at, len);
        exists[name] = true;
        at += len;
    }
}

/* Every attention layer has a place in a layer group. */
static void check_places(const struct model *m) {
    const struct model_config *c = model_config(m);
    struct kv_shape groups[CACHE_GROUPS_MAX];
    uint32_t n = model_kv_groups(m, groups);
    if (n > CACHE_GROUPS_MAX)
        fuzz_fail("a model with %u groups of layers", n);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_config *l = &c->layers[i];
        const struct kv_place at = model_kv_place(m, i);
        if (l->kind != LAYER_ATTENTION)
            continue;
        const struct kv_shape *s = at.group < n ? &groups[at.group] : NULL;
        if (!s || at.layer >= s->layers || s->kv_heads != l->kv_heads ||
            s->head_dim != l->head_dim || s->window != l->window)
            fuzz_fail("layer %u of a %s model has no place of its kind", i, c->arch);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct model *m = NULL;
    kvasir_error err;
    write_folder(data, size);
    char folder[128];
    const char *inside = fuzz_path("");
    memcpy(folder, inside, strlen(inside) + 1);
    budget_begin(fuzz_budget(size));
    kvasir_status status = model_open(folder, &m, &err);
    check_error(status, &err);
    if (status == KVASIR_OK)
        check_places(m);
    model_close(m);
    budget_end();
    return 0;
}
