/* SPDX-License-Identifier: Apache-2.0 */
/* model_api.c: kvasir_model, a checkpoint bound to its family's forward pass, with its tokenizer
 * (text_api.c); conversion of checkpoints; the library's version. */
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/struct_size.h"

const char *kvasir_version(void) {
    return "0.1.0";
}
void kvasir_free(void *p) {
    mem_free(p);
}
/* ---- opening --------------------------------------------------------------------------------- */

static void count_tensors(struct kvasir_model *m) {
    const struct checkpoint *c = model_checkpoint(m->model);
    struct {
        const char *name;
        size_t count;
    } types[32] = {{0}};
    size_t n_types = 0;
    for (size_t i = 0; i < checkpoint_tensor_count(c); i++) {
        const struct checkpoint_tensor *t = checkpoint_tensor_at(c, i);
        const char *name = weight_traits_of(t->type)->name;
        uint64_t values = 1;
        for (uint32_t d = 0; d < t->n_dims; d++)
            values *= t->dims[d];
        m->parameters += values;
        size_t k = 0;
        while (k < n_types && strcmp(types[k].name, name) != 0)
            k++;
        if (k == sizeof types / sizeof *types)
            continue;
        types[k].name = name;
        types[k].count++;
        n_types = k == n_types ? n_types + 1 : n_types;
    }
    size_t at = 0;
    for (size_t k = 0; k < n_types; k++) {
        int n = snprintf(m->weight_types + at, sizeof m->weight_types - at, "%s%s %zu",
                         k ? ", " : "", types[k].name, types[k].count);
        if (n < 0 || (size_t)n >= sizeof m->weight_types - at)
            break;
        at += (size_t)n;
    }
}

static const struct sized_struct SIZED_MODEL = {
    .name = "kvasir_model_options",
    .maker = "kvasir_model_defaults()",
    .field = "model.struct_size",
    .size = sizeof(kvasir_model_options),
};
_Static_assert(sizeof(kvasir_model_options) == 16,
               "later fields begin here at the earliest (struct_size.h)");
static const kvasir_model_options MODEL_DEFAULTS = {.struct_size = sizeof(kvasir_model_options)};

void kvasir_model_init(kvasir_model_options *options, size_t struct_size) {
    struct_write(&SIZED_MODEL, &MODEL_DEFAULTS, options, struct_size, 0);
}

kvasir_status kvasir_model_open(const char *path, kvasir_model **out, kvasir_error *err) {
    return kvasir_model_open_with(path, NULL, out, err);
}

kvasir_status kvasir_model_open_with(const char *path, const kvasir_model_options *options,
                                     kvasir_model **out, kvasir_error *err) {
    kvasir_model_options settled = MODEL_DEFAULTS;
    if (options)
        TRY(struct_read(&SIZED_MODEL, options, &settled, err));
    struct kvasir_model *m = mem_calloc(1, sizeof *m);
    if (!m)
        return fail(err, KVASIR_ERR_MEMORY, "%s: out of memory", path);
    m->path = mem_strdup(path);
    kvasir_status status = m->path ? model_open_as(path, &settled, &m->model, err)
                                   : fail(err, KVASIR_ERR_MEMORY, "%s: out of memory", path);
    if (status == KVASIR_OK)
        status = model_identity(m->model, &m->id, err);
    if (status == KVASIR_OK)
        status = text_create(model_checkpoint(m->model), path, &m->text, err);
    if (status == KVASIR_OK)
        status = kvasir_model_verify(m, err);
    if (status != KVASIR_OK) {
        kvasir_model_close(m);
        return status;
    }
    count_tensors(m);
    *out = m;
    return KVASIR_OK;
}

void kvasir_model_close(kvasir_model *m) {
    if (!m)
        return;
    kvasir_tokenizer_close(m->text);
    model_close(m->model);
    mem_free(m->path);
    mem_free(m);
}

kvasir_status kvasir_model_verify(const kvasir_model *m, kvasir_error *err) {
    return checkpoint_verify(model_checkpoint(m->model), err);
}

void kvasir_catch_file_faults(void) {
    file_map_catch_faults();
}

kvasir_tokenizer *kvasir_model_tokenizer(const kvasir_model *m) {
    return m->text;
}

void kvasir_model_get_info(const kvasir_model *m, kvasir_model_info *info) {
    const struct model_config *c = model_config(m->model);
    *info = (kvasir_model_info){
        .arch = c->arch,
        .name = c->name,
        .format = checkpoint_format(model_checkpoint(m->model)),
        .weight_types = m->weight_types,
        .layers = c->n_layers,
        .dim = c->dim,
        .ffn_dim = c->ffn_dim,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .vocab = c->vocab,
        .ctx_train = c->ctx_train,
        .window = c->window,
        .parameters = m->parameters,
        .weight_bytes = model_weight_bytes(m->model),
    };
    fingerprint_text(m->id, info->fingerprint);
}

kvasir_pooling kvasir_model_pooling(const kvasir_model *m) {
    switch (checkpoint_pooling(model_checkpoint(m->model))) {
    case POOLING_UNSAID:
    case POOLING_LAST:
        return KVASIR_POOLING_LAST;
    case POOLING_MEAN:
        return KVASIR_POOLING_MEAN;
    case POOLING_OTHER:
        break;
    }
    return KVASIR_POOLING_NONE;
}

bool kvasir_model_sampling(const kvasir_model *m, kvasir_sampling *sampling) {
    const struct sampling_hints *h = checkpoint_sampling(model_checkpoint(m->model));
    float *const fields[N_SAMPLING_HINTS] = {[HINT_TEMP] = &sampling->temp,
                                             [HINT_TOP_P] = &sampling->top_p,
                                             [HINT_MIN_P] = &sampling->min_p,
                                             [HINT_REPETITION] = &sampling->repetition_penalty};
    bool any = false;
    for (enum sampling_hint i = 0; i < N_SAMPLING_HINTS; i++) {
        any |= h->given[i];
        if (h->given[i] && fields[i])
            *fields[i] = (float)h->value[i];
    }
    if (h->given[HINT_TOP_K]) /* -1 and 0 are off */
        sampling->top_k = h->value[HINT_TOP_K] > 0 ? (int32_t)h->value[HINT_TOP_K] : 0;
    ASSERT(any || !h->given[HINT_TOP_K]);
    return any;
}

/* ---- converting ------------------------------------------------------------------------------ */

static const struct sized_struct SIZED_CONVERT = {
    .name = "kvasir_convert_options",
    .maker = "kvasir_convert_defaults()",
    .field = "convert.struct_size",
    .size = sizeof(kvasir_convert_options),
};
_Static_assert(sizeof(kvasir_convert_options) == 48,
               "later fields begin here at the earliest (struct_size.h)");
static const kvasir_convert_options CONVERT_DEFAULTS = {
    .struct_size = sizeof(kvasir_convert_options), .group_size = 64, .dtype = "bf16"};

void kvasir_convert_init(kvasir_convert_options *options, size_t struct_size) {
    struct_write(&SIZED_CONVERT, &CONVERT_DEFAULTS, options, struct_size, 0);
}

kvasir_status kvasir_convert(const char *in, const char *out, const kvasir_convert_options *options,
                             kvasir_error *err) {
    kvasir_convert_options settled = CONVERT_DEFAULTS;
    kvasir_model_options how = MODEL_DEFAULTS;
    TRY(struct_read(&SIZED_CONVERT, options, &settled, err));
    if (settled.model)
        TRY(struct_read(&SIZED_MODEL, settled.model, &how, err));
    return model_convert(in, out, &settled, &how, err);
}
