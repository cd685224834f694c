/* SPDX-License-Identifier: Apache-2.0 */
/* A run: the buffers of a forward pass, the model's vectors on the device, and what all forward
 * passes have in common: the embedding before the layers, the logits after them.
 *
 *     x = embed(tokens) * embed_scale                     x: the residual stream, [row][dim]
 *     the family's layers
 *     logits = softcap(Whead norm(x) * logit_scale)       only for rows that ask for them
 *
 * A row is a token of some sequence. Rows meet only in attention, through the pages, and in the
 * order of a sequence's recurrent layers. Which rows share a step does not change a bit of any of
 * them (backend.h). Everything is enqueued on the backend: nothing here waits for a result, and
 * after model_run_create nothing is allocated.
 *
 * A run belongs to the thread that owns the backend.
 */
#include "model/family.h"

/* ---- the step -------------------------------------------------------------------------------- */

void model_forward(struct model_run *r, const struct batch *batch) {
    const struct model *m = r->model;
    const struct model_config *c = &m->config;
    struct backend *b = r->backend;

    backend_step_begin(b, batch, m->n_groups);
    for (uint32_t i = 0; i < c->n_ropes; i++)
        op_rope_table(b, batch->pos, batch->rows, r->inv_freq[i], c->ropes[i].dims / 2,
                      r->rope_scale[i], r->rope_cos[i], r->rope_sin[i]);
    op_embed(b, matrix_on_device(r, m->embed), batch->tokens, batch->rows, r->x);
    block_scale(r, r->x, c->embed_scale, (size_t)batch->rows * c->dim);
    m->family->forward(r, batch);
}

const float *model_hidden(struct model_run *r, const uint32_t *rows, uint32_t n) {
    const uint32_t dim = r->model->config.dim;
    op_gather_rows(r->backend, r->x, rows, n, dim, r->h);
    block_norm(r, r->h, r->model->final_norm, n, dim, r->h);
    return r->h;
}

const float *model_head(struct model_run *r, const uint32_t *rows, uint32_t n) {
    const struct model *m = r->model;
    const struct model_config *c = &m->config;
    ASSERT(n > 0 && n <= r->max_logit_rows);
    (void)model_hidden(r, rows, n);
    block_matmul(r, r->h, n, m->head, 0, r->logits);
    block_scale(r, r->logits, c->logit_scale, (size_t)n * c->vocab);
    if (c->logit_softcap > 0)
        op_softcap(r->backend, r->logits, c->logit_softcap, (size_t)n * c->vocab);
    return r->logits;
}

/* ---- buffers --------------------------------------------------------------------------------- */

/* The most values per row that any layer needs. */
struct widths {
    uint32_t q, kv, ffn, wide, mixed, z, heads, layer_inputs;
};

static struct widths widths_of(const struct model_config *c) {
    struct widths w = {.layer_inputs = c->n_layers * c->layer_input_dim};
    const uint32_t keys = c->delta.key_heads * c->delta.key_dim,
                   values = c->delta.value_heads * c->delta.value_dim;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_config *l = &c->layers[i];
        w.ffn = max_u32(w.ffn, l->ffn_dim);
        switch ((enum layer_kind)l->kind) {
        case LAYER_ATTENTION:
            w.q = max_u32(w.q, c->heads * l->head_dim);
            w.kv = max_u32(w.kv, l->kv_heads * l->head_dim);
            break;
        case LAYER_DELTA:
            w.wide = max_u32(w.wide, 2 * keys + 2 * values);
            w.mixed = max_u32(w.mixed, 2 * keys + values);
            w.z = values;
            w.heads = c->delta.value_heads;
            break;
        case LAYER_CONV:
            w.wide = max_u32(w.wide, 3 * c->dim);
            w.mixed = max_u32(w.mixed, c->dim);
            break;
        }
    }
    w.ffn = max_u32(w.ffn, max_u32(c->moe.shared_dim, c->layer_input_dim));
    if (c->delta.key_dim) { /* families with delta nets have gates next to the queries */
        w.wide = max_u32(w.wide, 2 * w.q);
        w.z = max_u32(w.z, w.q);
    }
    return w;
}

struct run_buffer {
    float **at;
    size_t values; /* 32-bit rows times widths of at most VOCAB_MAX: 56 bits */
};
enum { RUN_BUFFERS = 19 + 2 * ROPES_MAX };

static uint32_t list_buffers(struct model_run *r, const struct model_config *c, size_t rows,
                             size_t logit_rows, struct run_buffer list[RUN_BUFFERS]) {
    const struct widths w = widths_of(c);
    const struct run_buffer buffers[] = {
        {&r->x, rows * c->dim},
        {&r->h, (rows > logit_rows ? rows : logit_rows) * c->dim},
        {&r->t, rows * c->dim},
        {&r->q, rows * w.q},
        {&r->k, rows * w.kv},
        {&r->v, rows * w.kv},
        {&r->attended, rows * max_u32(w.q, w.z)},
        {&r->gate, rows * w.ffn},
        {&r->up, rows * w.ffn},
        {&r->logits, logit_rows * c->vocab},
        {&r->router, rows * c->moe.n},
        {&r->routed, c->moe.n ? rows * c->dim : 0},
        {&r->wide, rows * w.wide},
        {&r->mixed, rows * w.mixed},
        {&r->z, rows * w.z},
        {&r->beta, rows * w.heads},
        {&r->alpha, rows * w.heads},
        {&r->layer_inputs, rows * w.layer_inputs},
        {&r->layer_projected, rows * w.layer_inputs},
    };
    _Static_assert(sizeof buffers / sizeof *buffers + 2 * ROPES_MAX <= RUN_BUFFERS, "all fit");
    ASSERT(c->n_ropes <= ROPES_MAX);
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        if (buffers[i].values)
            list[n++] = buffers[i];
    for (uint32_t i = 0; i < c->n_ropes; i++) {
        list[n++] = (struct run_buffer){&r->rope_cos[i], rows * (c->ropes[i].dims / 2)};
        list[n++] = (struct run_buffer){&r->rope_sin[i], rows * (c->ropes[i].dims / 2)};
    }
    return n;
}

uint64_t model_run_bytes(const struct model *m, uint32_t max_rows, uint32_t max_logit_rows) {
    struct model_run none;
    struct run_buffer list[RUN_BUFFERS];
    uint64_t values = 0;
    uint32_t n = list_buffers(&none, &m->config, max_rows, max_logit_rows, list);
    for (uint32_t i = 0; i < n; i++)
        values += list[i].values;
    return values * sizeof(float);
}

static kvasir_status alloc_buffers(struct model_run *r, uint32_t rows, uint32_t logit_rows,
                                   kvasir_error *err) {
    const struct model_config *c = &r->model->config;
    struct run_buffer list[RUN_BUFFERS];
    uint32_t n = list_buffers(r, c, rows, logit_rows, list);
    for (uint32_t i = 0; i < n; i++) {
        *list[i].at = backend_alloc(r->backend, list[i].values * sizeof(float));
        if (!*list[i].at)
            return fail(err, KVASIR_ERR_MEMORY,
                        "out of memory for steps of %u rows: a buffer of %zu bytes", rows,
                        list[i].values * sizeof(float));
    }
    return KVASIR_OK;
}

/* Page tables of full contexts, one per row of a step: pages, and shadows of the exact tail and of
 * the pages that rows are stored into. */
static uint64_t table_entries(const struct run_limits *l) {
    return ((uint64_t)l->ctx / TILE_TOKENS + 2 + l->tail_pages + 2) * l->rows;
}

static kvasir_status reserve(struct model_run *r, const struct run_limits *most,
                             kvasir_error *err) {
    const struct model *m = r->model;
    const struct model_config *c = &m->config;
    const struct widths w = widths_of(c);
    struct backend_limits limits = {
        .rows = most->rows,
        .seqs = most->rows,
        .pages = table_entries(most),
        .groups = m->n_groups,
        .dim = max_u32(max_u32(c->dim, w.ffn), max_u32(max_u32(w.q, w.z), c->moe.dim)),
        .vocab = c->vocab,
        .experts = c->moe.n,
        .top_k = c->moe.top_k,
        .expert_dim = c->moe.dim};
    for (uint32_t i = 0; i < c->n_layers; i++)
        limits.head_dim = max_u32(limits.head_dim, c->layers[i].head_dim);
    _Static_assert((int)CACHE_GROUPS_MAX <= (int)BACKEND_GROUPS_MAX, "a backend takes all groups");
    ASSERT(m->n_groups <= BACKEND_GROUPS_MAX);
    for (uint32_t g = 0; g < m->n_groups; g++)
        limits.group[g] = (struct backend_group){c->heads, m->groups[g].kv_heads,
                                                 m->groups[g].head_dim, c->attention_softcap > 0};
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->layers[i].kind == LAYER_ATTENTION && m->layers[i].sinks)
            limits.group[m->places[i].group].softcap_or_sinks = true;
    const char *absent = backend_absent(r->backend, 0);
    if (absent)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "this backend lacks an operation: %s", absent);
    return backend_reserve(r->backend, &limits, err);
}

/* ---- constants ------------------------------------------------------------------------------- */

static kvasir_status upload_vectors(struct model_run *r, kvasir_error *err) {
    const struct model *m = r->model;
    r->vectors = mem_calloc(m->n_vectors, sizeof *r->vectors);
    if (!r->vectors)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for a model run");
    for (uint32_t i = 1; i < m->n_vectors; i++) {
        const struct model_vector *v = &m->vectors[i];
        r->vectors[i] = backend_upload(r->backend, v->data, v->n * sizeof *v->data);
        if (!r->vectors[i])
            return fail(err, KVASIR_ERR_MEMORY, "out of memory for a model's gains and biases");
    }
    return KVASIR_OK;
}

/* Embedding and head may be the same matrix, with one number: it is put once. */
static kvasir_status put_matrices(struct model_run *r, kvasir_error *err) {
    const struct model *m = r->model;
    r->matrices = mem_calloc(m->n_matrices, sizeof *r->matrices);
    if (!r->matrices)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for a model run");
    for (uint32_t i = 1; i < m->n_matrices; i++)
        TRY(backend_weight_put(r->backend, model_matrix(m, i), &r->matrices[i], err));
    if (!m->config.moe.n)
        return KVASIR_OK;
    r->experts = mem_calloc((size_t)m->config.n_layers * m->config.moe.n, sizeof *r->experts);
    if (!r->experts)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for a model run");
    for (uint32_t i = 0; i < m->config.n_layers; i++) {
        const matrix_id *id = m->layers[i].expert_matrices;
        struct expert *e = r->experts + (size_t)i * m->config.moe.n, *end = e + m->config.moe.n;
        for (; id && e < end; e++, id += PLACES)
            *e = (struct expert){.gate = matrix_on_device(r, id[PLACE_GATE]),
                                 .up = matrix_on_device(r, id[PLACE_UP]),
                                 .down = matrix_on_device(r, id[PLACE_DOWN])};
    }
    return KVASIR_OK;
}

static kvasir_status make_ropes(struct model_run *r, uint32_t ctx, kvasir_error *err) {
    const struct model_config *c = &r->model->config;
    for (uint32_t i = 0; i < c->n_ropes; i++) {
        r->inv_freq[i] = mem_calloc(c->ropes[i].dims / 2, sizeof *r->inv_freq[i]);
        if (!r->inv_freq[i])
            return fail(err, KVASIR_ERR_MEMORY, "out of memory for rope frequencies");
        r->rope_scale[i] = model_inv_freq(r->model, i, ctx, r->inv_freq[i]);
    }
    return KVASIR_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

kvasir_status model_run_create(const struct model *m, struct backend *b,
                               const struct run_limits *limits, struct model_run **out,
                               kvasir_error *err) {
    *out = NULL;
    struct model_run *r = mem_calloc(1, sizeof *r);
    if (!r)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for a model run");
    r->model = m;
    r->backend = b;
    r->max_logit_rows = limits->logit_rows;
    kvasir_status status;
    TRY_GOTO(reserve(r, limits, err));
    TRY_GOTO(alloc_buffers(r, limits->rows, limits->logit_rows, err));
    TRY_GOTO(upload_vectors(r, err));
    TRY_GOTO(put_matrices(r, err));
    TRY_GOTO(make_ropes(r, limits->ctx, err));
done:
    if (status == KVASIR_OK)
        *out = r;
    else
        model_run_destroy(r);
    return status;
}

void model_run_destroy(struct model_run *r) {
    if (!r)
        return;
    struct run_buffer list[RUN_BUFFERS];
    uint32_t n = list_buffers(r, &r->model->config, 1, 1, list);
    for (uint32_t i = 0; i < n; i++)
        backend_free(r->backend, *list[i].at);
    for (uint32_t i = 1; r->vectors && i < r->model->n_vectors; i++)
        backend_upload_free(r->backend, r->vectors[i]);
    mem_free(r->vectors);
    for (uint32_t i = 1; r->matrices && i < r->model->n_matrices; i++)
        backend_weight_drop(r->backend, r->matrices[i]);
    mem_free(r->matrices);
    mem_free(r->experts);
    for (uint32_t i = 0; i < ROPES_MAX; i++)
        mem_free(r->inv_freq[i]);
    mem_free(r);
}
