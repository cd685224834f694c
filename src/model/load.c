/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint -> model: checks the configuration, gives layers their places in the cache, and binds
 * every tensor (bind.c). The family's bind() says which tensors a layer has; the embedding, the
 * last norm and the head are the same for all families.
 *
 * Invariants
 *   LOAD-2  Every tensor of the file has a place. One that has none (a bias, a norm, an expert that
 *           the family lacks) would be left out of the arithmetic in silence, so it is an error
 *           that names it.
 *   LOAD-3  After model_open no operation needs to check a shape again.
 */
#include <stdio.h>

#include "model/family.h"

/* ---- binding the model ----------------------------------------------------------------------- */

/* One divisor per pair of ropes[0]. A pair with 10^30 is not rotated. */
static kvasir_status bind_divisors(struct binder *b, const char *name, const float **out) {
    const uint32_t pairs = b->model->config.ropes[0].dims / 2;
    vector_id factors;
    float *data;
    TRY(bind_values(b, name, (uint64_t[]){pairs}, 1, &factors, &data));
    for (uint32_t i = 0; i < pairs; i++)
        if (!(data[i] >= 1e-6f && data[i] <= 1e30f))
            return fail(b->err, KVASIR_ERR_FORMAT, "tensor %s: factor %u is %g", name, i,
                        (double)data[i]);
    *out = data;
    return KVASIR_OK;
}

/* Rope data that GGUF stores as tensors: Llama 3's frequency scaling, the part of Gemma 4's heads
 * that is rotated, longrope's two lists. */
static kvasir_status bind_rope_factors(struct binder *b) {
    static const char freqs[] = "rope_freqs.weight", longer[] = "rope_factors_long.weight",
                      shorter[] = "rope_factors_short.weight";
    struct model *m = b->model;
    struct rope_config *r = &m->config.ropes[0];
    const float *list;
    if (bind_has(b, freqs))
        TRY(bind_divisors(b, freqs, &m->rope_factors));
    const bool there = bind_has(b, longer) || bind_has(b, shorter);
    if (!there && !(m->config.from_gguf && r->kind == ROPE_LONG))
        return KVASIR_OK;
    r->kind = ROPE_LONG;
    if (!(r->attention_factor > 0)) /* llama.cpp knows no formula for it */
        r->attention_factor = 1;
    TRY(bind_divisors(b, longer, &list));
    memcpy(r->long_factors, list, r->dims / 2 * sizeof *list);
    TRY(bind_divisors(b, shorter, &list));
    memcpy(r->short_factors, list, r->dims / 2 * sizeof *list);
    return KVASIR_OK;
}

static kvasir_status check_all_bound(const struct binder *b) {
    for (size_t i = 0; i < checkpoint_tensor_count(b->checkpoint); i++) {
        const char *name = checkpoint_tensor_at(b->checkpoint, i)->name;
        if (!b->bound[i] && !tensor_is_spare(&b->model->config, name))
            return fail(b->err, KVASIR_ERR_UNSUPPORTED, "tensor %s is not part of a %s model", name,
                        b->model->config.arch);
    }
    return KVASIR_OK;
}

static kvasir_status bind_all(struct binder *b) {
    struct model *m = b->model;
    const struct model_config *c = &m->config;
    char norm[64];
    TRY(bind_matrix(b, "model.embed_tokens.weight", c->vocab, c->dim, &m->embed));
    for (uint32_t i = 0; i < c->n_layers; i++)
        TRY(m->family->bind(b, i, &m->layers[i]));
    if (m->family->bind_model)
        TRY(m->family->bind_model(b));
    snprintf(norm, sizeof norm, "%s.weight",
             m->family->final_norm ? m->family->final_norm : "model.norm");
    TRY(bind_norm(b, norm, c->dim, &m->final_norm));
    m->head = m->embed;
    if (!c->tied_embedding)
        TRY(bind_matrix(b, "lm_head.weight", c->vocab, c->dim, &m->head));
    TRY(bind_rope_factors(b));
    return check_all_bound(b);
}

/* ---- what the cache holds of it -------------------------------------------------------------- */

static bool same_shape(const struct kv_shape *s, const struct layer_config *l) {
    return s->kv_heads == l->kv_heads && s->head_dim == l->head_dim && s->window == l->window;
}

static kvasir_status place_layers(struct model *m, kvasir_error *err) {
    const struct model_config *c = &m->config;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_config *l = &c->layers[i];
        if (l->kind != LAYER_ATTENTION)
            continue;
        ASSERT(l->kv_from <= i && (l->rope == NO_ROPE || l->rope < c->n_ropes));
        if (l->kv_from != i) {
            m->places[i] = m->places[l->kv_from];
            continue;
        }
        uint32_t g = 0;
        while (g < m->n_groups && !same_shape(&m->groups[g], l))
            g++;
        if (g == CACHE_GROUPS_MAX)
            return fail(err, KVASIR_ERR_UNSUPPORTED,
                        "layers of more than %d kinds (KV heads, head size, window)",
                        CACHE_GROUPS_MAX);
        ASSERT(g <= m->n_groups && m->n_groups <= CACHE_GROUPS_MAX);
        if (g == m->n_groups)
            m->groups[m->n_groups++] = (struct kv_shape){
                .kv_heads = l->kv_heads, .head_dim = l->head_dim, .window = l->window};
        m->places[i] = (struct kv_place){g, m->groups[g].layers++};
    }
    return KVASIR_OK;
}

static void place_states(struct model *m) {
    for (uint32_t i = 0; i < m->config.n_layers; i++) {
        m->state_at[i] = m->state_bytes;
        if (m->config.layers[i].kind != LAYER_ATTENTION)
            m->state_bytes = model_state_layout(m, i).end;
    }
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* What kernels and tiles take for granted. */
static kvasir_status check_layer(const struct model_config *c, uint32_t i, kvasir_error *err) {
    const struct layer_config *l = &c->layers[i];
    if (l->kind != LAYER_ATTENTION)
        return KVASIR_OK;
    if (l->head_dim > HEAD_DIM_MAX || l->head_dim % HEAD_DIM_UNIT != 0)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "heads of %u dims are not supported, only multiples of %d up to %d",
                    l->head_dim, HEAD_DIM_UNIT, HEAD_DIM_MAX);
    if (c->heads % l->kv_heads != 0 || c->heads / l->kv_heads > GQA_MAX)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "%u heads for %u KV heads are not supported: must be a multiple, at most %d",
                    c->heads, l->kv_heads, GQA_MAX);
    const struct rope_config *rope = l->rope == NO_ROPE ? NULL : &c->ropes[l->rope];
    if (rope && (rope->dims < 2 || rope->dims % 2 != 0 || rope->dims > l->head_dim))
        return fail(err, KVASIR_ERR_FORMAT, "rope rotates %u of a head's %u dims: must be even",
                    rope->dims, l->head_dim);
    return KVASIR_OK;
}

static kvasir_status check_config(const struct checkpoint *checkpoint, kvasir_error *err) {
    const struct model_config *c = checkpoint_config(checkpoint);
    const struct tokenizer_spec *t = checkpoint_tokenizer(checkpoint);
    for (uint32_t i = 0; i < c->n_layers; i++)
        TRY(check_layer(c, i, err));
    for (uint32_t i = 0; i < c->n_ropes; i++) /* also of a rope that no layer uses */
        if (c->ropes[i].dims > HEAD_DIM_MAX || c->ropes[i].dims % 2 != 0)
            return fail(err, KVASIR_ERR_FORMAT,
                        "the configuration's rope rotates %u dims: must be even, at most %d",
                        c->ropes[i].dims, HEAD_DIM_MAX);
    if (c->n_layers > checkpoint_tensor_count(checkpoint)) /* before memory is taken for them */
        return fail(err, KVASIR_ERR_FORMAT, "the configuration has %u layers, the file %zu tensors",
                    c->n_layers, checkpoint_tensor_count(checkpoint));
    if (t && t->n_tokens > c->vocab)
        return fail(err, KVASIR_ERR_FORMAT, "the tokenizer has %zu tokens, the model only %u",
                    t->n_tokens, c->vocab);
    return KVASIR_OK;
}

static kvasir_status load(struct model *m, kvasir_error *err) {
    struct binder b = {.checkpoint = m->checkpoint, .model = m, .err = err};
    TRY(check_config(m->checkpoint, err));
    m->config = *checkpoint_config(m->checkpoint);
    m->family = family_of_arch(m->config.arch);
    TRY(place_layers(m, err));
    place_states(m);
    m->layers = mem_calloc(m->config.n_layers, sizeof *m->layers);
    m->cap_vectors = m->cap_matrices = 64;
    m->n_vectors = m->n_matrices = 1;
    m->matrices = mem_calloc(m->cap_matrices, sizeof *m->matrices);
    m->vectors = mem_calloc(m->cap_vectors, sizeof *m->vectors);
    b.bound = mem_calloc(checkpoint_tensor_count(m->checkpoint), sizeof *b.bound);
    kvasir_status status = m->layers && m->vectors && m->matrices && b.bound
                               ? bind_all(&b)
                               : fail(err, KVASIR_ERR_MEMORY, "out of memory for the layers");
    mem_free(b.bound);
    return status;
}

/* ---- the model ------------------------------------------------------------------------------- */

kvasir_status model_open(const char *path, struct model **out, kvasir_error *err) {
    const kvasir_model_options mapped = {.struct_size = sizeof mapped};
    return model_open_as(path, &mapped, out, err);
}

kvasir_status model_open_as(const char *path, const kvasir_model_options *o, struct model **out,
                            kvasir_error *err) {
    *out = NULL;
    struct model *m = mem_calloc(1, sizeof *m);
    if (!m)
        return fail(err, KVASIR_ERR_MEMORY, "%s: out of memory", path);
    kvasir_status status;
    TRY_GOTO(checkpoint_open_as(path, o, &m->checkpoint, err));
    status = load(m, err);
    if (status != KVASIR_OK)
        fail_prefix(err, path);
    if (checkpoint_check(m->checkpoint, NULL) != KVASIR_OK)
        status = checkpoint_check(m->checkpoint, err);
done:
    if (status == KVASIR_OK)
        *out = m;
    else
        model_close(m);
    return status;
}

void model_close(struct model *m) {
    if (!m)
        return;
    for (uint32_t i = 0; m->layers && i < m->config.n_layers; i++)
        mem_free(m->layers[i].expert_matrices);
    mem_free(m->layers);
    for (uint32_t i = 0; m->vectors && i < m->n_vectors; i++)
        mem_free(m->vectors[i].data);
    mem_free(m->vectors);
    mem_free(m->matrices);
    for (uint32_t i = 0; i < m->n_copies; i++)
        mem_free(m->copies[i]);
    mem_free(m->copies);
    checkpoint_close(m->checkpoint);
    mem_free(m);
}
