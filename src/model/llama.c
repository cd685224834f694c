/* SPDX-License-Identifier: Apache-2.0 */
/* The forward of the dense Llama family: llama, mistral, qwen2 (biases on q, k, v), qwen3 (norms on
 * q, k).
 *
 *     x = embed(tokens)                                   x: the residual stream, [row][dim]
 *     for each layer
 *         h = rms_norm(x)
 *         q, k, v = Wq h, Wk h, Wv h   (+ biases)         k and v go into the cache's pages,
 *         q, k = rope(norm(q)), rope(norm(k))             attention reads them back from there
 *         x += Wo attention(q, pages)
 *         h = rms_norm(x)
 *         x += Wdown (silu(Wgate h) * Wup h)
 *     logits = Whead rms_norm(x)                          only for rows that ask for them
 *
 * A row is a token of some sequence. Rows meet only in attention, through the pages; which rows
 * share a step changes no bit of any of them (B1 of backend.h). Everything is enqueued on the
 * backend: nothing here waits for a result, and after model_run_create nothing is allocated.
 *
 * Belongs to the thread that owns the backend.
 */
#include "model/model_internal.h"

/* The vectors of struct layer_weights, uploaded: shapes and NULLs are its own. */
struct run_layer {
    const float *attn_norm, *q_bias, *k_bias, *v_bias, *q_norm, *k_norm, *ffn_norm;
};

struct model_run {
    const struct model *model;
    struct backend *backend;
    double *inv_freq;         /* [rope.dims / 2], host */
    struct run_layer *layers; /* [layers] */
    const float *final_norm;  /* [dim], uploaded */
    /* Device buffers; row < max_rows, logit_row < max_logit_rows. */
    float *x;                   /* [row][dim] */
    float *h;                   /* [row][dim] input of a block's products, then its output */
    float *q;                   /* [row][heads][head_dim] */
    float *k, *v;               /* [row][kv_heads][head_dim] */
    float *attended;            /* [row][heads][head_dim] */
    float *gate, *up;           /* [row][ffn_dim] */
    float *rope_cos, *rope_sin; /* [row][rope.dims / 2] */
    float *logits;              /* [logit_row][vocab] */
};

/* ---- the step -------------------------------------------------------------------------------- */

/* x += Wo attention(rope(Wq h), rope(Wk h), Wv h),  h = rms_norm(x) */
static void attention_block(struct model_run *r, const struct batch *batch, uint32_t layer) {
    const struct model_config *c = &r->model->config;
    const struct layer_weights *l = &r->model->layers[layer];
    const struct run_layer *u = &r->layers[layer];
    const struct kv_view *views = batch->views; /* one layer group */
    const float scale = (float)(1.0 / m_sqrt(c->head_dim));
    const uint32_t rows = batch->rows, pairs = c->rope.dims / 2;
    struct backend *b = r->backend;

    op_rms_norm(b, r->x, u->attn_norm, rows, c->dim, c->norm_eps, r->h);
    op_product(b, r->h, rows, (const struct weight *[]){&l->q, &l->k, &l->v},
               (const float *[]){u->q_bias, u->k_bias, u->v_bias}, (float *[]){r->q, r->k, r->v},
               3);
    if (u->q_norm) { /* every head is a row of its own here */
        op_rms_norm(b, r->q, u->q_norm, rows * c->heads, c->head_dim, c->norm_eps, r->q);
        op_rms_norm(b, r->k, u->k_norm, rows * c->kv_heads, c->head_dim, c->norm_eps, r->k);
    }
    op_rope(b, r->q, rows, c->heads, c->head_dim, r->rope_cos, r->rope_sin, pairs,
            c->rope.adjacent);
    op_rope(b, r->k, rows, c->kv_heads, c->head_dim, r->rope_cos, r->rope_sin, pairs,
            c->rope.adjacent);
    op_kv_store(b, batch, views, layer, r->k, r->v);
    op_attention(b, batch, views, layer, r->q,
                 &(struct attention_args){.heads = c->heads, .scale = scale}, r->attended);
    op_product(b, r->attended, rows, (const struct weight *[]){&l->o}, (const float *[]){NULL},
               (float *[]){r->h}, 1);
    op_add(b, r->x, r->h, 1.0f, (size_t)rows * c->dim);
}

/* x += Wdown (silu(Wgate h) * Wup h),  h = rms_norm(x) */
static void ffn_block(struct model_run *r, uint32_t rows, uint32_t layer) {
    const struct model_config *c = &r->model->config;
    const struct layer_weights *l = &r->model->layers[layer];
    struct backend *b = r->backend;

    op_rms_norm(b, r->x, r->layers[layer].ffn_norm, rows, c->dim, c->norm_eps, r->h);
    op_product(b, r->h, rows, (const struct weight *[]){&l->gate, &l->up},
               (const float *[]){NULL, NULL}, (float *[]){r->gate, r->up}, 2);
    op_gate_mul(b, GATE_SILU, r->gate, r->up, (size_t)rows * c->ffn_dim, r->gate);
    op_product(b, r->gate, rows, (const struct weight *[]){&l->down}, (const float *[]){NULL},
               (float *[]){r->h}, 1);
    op_add(b, r->x, r->h, 1.0f, (size_t)rows * c->dim);
}

const float *model_forward(struct model_run *r, const struct batch *batch) {
    const struct model *m = r->model;
    const struct model_config *c = &m->config;
    struct backend *b = r->backend;

    backend_step_begin(b, batch, 1); /* model_kv_groups */
    op_rope_table(b, batch->pos, batch->rows, r->inv_freq, c->rope.dims / 2, 1.0f, r->rope_cos,
                  r->rope_sin);
    op_embed(b, &m->embed, batch->tokens, batch->rows, r->x);
    for (uint32_t layer = 0; layer < c->layers; layer++) {
        attention_block(r, batch, layer);
        ffn_block(r, batch->rows, layer);
    }
    if (batch->n_logit_rows) {
        op_gather_rows(b, r->x, batch->logit_rows, batch->n_logit_rows, c->dim, r->h);
        op_rms_norm(b, r->h, r->final_norm, batch->n_logit_rows, c->dim, c->norm_eps, r->h);
        op_product(b, r->h, batch->n_logit_rows, (const struct weight *[]){&m->head},
                   (const float *[]){NULL}, (float *[]){r->logits}, 1);
    }
    return r->logits;
}

/* ---- rope frequencies ------------------------------------------------------------------------ */

/* Llama 3 stretches pairs whose wave is long against the original context by `factor`, leaves short
 * ones, and blends in between; how many waves fit into the original context decides. */
static double llama3_scaled(const struct rope_config *rope, double inv_freq) {
    const double two_pi = 6.283185307179586;
    double waves = rope->original_ctx * inv_freq / two_pi;
    if (waves < rope->low_freq_factor)
        return inv_freq / rope->factor;
    if (waves > rope->high_freq_factor)
        return inv_freq;
    double smooth =
        (waves - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);
    return (1 - smooth) * inv_freq / rope->factor + smooth * inv_freq;
}

/* In double: a float32 frequency is off by 1e-7 of itself, which is a tenth of a radian at position
 * 10^6. */
void model_inv_freq(const struct model *m, double *inv_freq) {
    const struct rope_config *rope = &m->config.rope;
    for (uint32_t i = 0; i < rope->dims / 2; i++) {
        inv_freq[i] = m_pow(rope->theta, -2.0 * i / rope->dims);
        if (rope->kind == ROPE_LLAMA3)
            inv_freq[i] = llama3_scaled(rope, inv_freq[i]);
        if (m->rope_factors)
            inv_freq[i] /= (double)m->rope_factors[i];
    }
}

bool rope_has_factors(const struct rope_config *rope, const float *factors) {
    for (uint32_t i = 0; i < rope->dims / 2; i++) {
        double plain = m_pow(rope->theta, -2.0 * i / rope->dims);
        double off = plain / llama3_scaled(rope, plain) / (double)factors[i] - 1;
        if (off > 1e-4 || off < -1e-4)
            return false;
    }
    return true;
}

/* ---- buffers --------------------------------------------------------------------------------- */

static uint32_t max_u32(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

struct run_buffer {
    float **at;
    size_t bytes; /* 32-bit rows times dims of at most VOCAB_MAX times 4: 58 bits */
};
enum { RUN_BUFFERS = 11 };

static void list_buffers(struct model_run *r, const struct model_config *c, size_t rows,
                         size_t logit_rows, struct run_buffer list[RUN_BUFFERS]) {
    const size_t q_dim = (size_t)c->heads * c->head_dim, kv_dim = (size_t)c->kv_heads * c->head_dim;
    const struct run_buffer buffers[RUN_BUFFERS] = {
        {&r->x, rows * c->dim},
        {&r->h, (rows > logit_rows ? rows : logit_rows) * c->dim},
        {&r->q, rows * q_dim},
        {&r->k, rows * kv_dim},
        {&r->v, rows * kv_dim},
        {&r->attended, rows * q_dim},
        {&r->gate, rows * c->ffn_dim},
        {&r->up, rows * c->ffn_dim},
        {&r->rope_cos, rows * (c->rope.dims / 2)},
        {&r->rope_sin, rows * (c->rope.dims / 2)},
        {&r->logits, logit_rows * c->vocab},
    };
    for (size_t i = 0; i < RUN_BUFFERS; i++)
        list[i] = (struct run_buffer){buffers[i].at, buffers[i].bytes * sizeof(float)};
}

uint64_t model_run_bytes(const struct model *m, uint32_t max_rows, uint32_t max_logit_rows) {
    struct model_run none;
    struct run_buffer list[RUN_BUFFERS];
    uint64_t bytes = 0;
    list_buffers(&none, &m->config, max_rows, max_logit_rows, list);
    for (size_t i = 0; i < RUN_BUFFERS; i++)
        bytes += list[i].bytes;
    return bytes;
}

static kvasir_status alloc_buffers(struct model_run *r, uint32_t rows, uint32_t logit_rows,
                                   kvasir_error *err) {
    const struct model_config *c = &r->model->config;
    struct run_buffer list[RUN_BUFFERS];
    list_buffers(r, c, rows, logit_rows, list);
    for (size_t i = 0; i < RUN_BUFFERS; i++) {
        *list[i].at = backend_alloc(r->backend, list[i].bytes);
        if (!*list[i].at)
            return fail(err, KVASIR_ERR_MEMORY,
                        "out of memory for steps of %u rows: a buffer of %zu bytes", rows,
                        list[i].bytes);
    }
    r->inv_freq = mem_calloc(c->rope.dims / 2, sizeof *r->inv_freq);
    if (!r->inv_freq)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for rope frequencies");
    return KVASIR_OK;
}

/* ---- constants ------------------------------------------------------------------------------- */

/* *device stays NULL where the model has no such vector. */
static kvasir_status upload(struct model_run *r, const float *host, size_t n, const float **device,
                            kvasir_error *err) {
    if (!host)
        return KVASIR_OK;
    *device = backend_upload(r->backend, host, n * sizeof *host);
    if (!*device)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for a model's gains and biases");
    return KVASIR_OK;
}

static kvasir_status upload_layers(struct model_run *r, kvasir_error *err) {
    const struct model_config *c = &r->model->config;
    const size_t q_dim = (size_t)c->heads * c->head_dim, kv_dim = (size_t)c->kv_heads * c->head_dim;
    r->layers = mem_calloc(c->layers, sizeof *r->layers);
    if (!r->layers)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for a model run");
    for (uint32_t i = 0; i < c->layers; i++) {
        const struct layer_weights *l = &r->model->layers[i];
        struct run_layer *u = &r->layers[i];
        TRY(upload(r, l->attn_norm, c->dim, &u->attn_norm, err));
        TRY(upload(r, l->q_bias, q_dim, &u->q_bias, err));
        TRY(upload(r, l->k_bias, kv_dim, &u->k_bias, err));
        TRY(upload(r, l->v_bias, kv_dim, &u->v_bias, err));
        TRY(upload(r, l->q_norm, c->head_dim, &u->q_norm, err));
        TRY(upload(r, l->k_norm, c->head_dim, &u->k_norm, err));
        TRY(upload(r, l->ffn_norm, c->dim, &u->ffn_norm, err));
    }
    return upload(r, r->model->final_norm, c->dim, &r->final_norm, err);
}

static void free_layers(struct model_run *r) {
    for (uint32_t i = 0; r->layers && i < r->model->config.layers; i++) {
        const struct run_layer *u = &r->layers[i];
        const float *vectors[] = {u->attn_norm, u->q_bias, u->k_bias,  u->v_bias,
                                  u->q_norm,    u->k_norm, u->ffn_norm};
        for (size_t j = 0; j < sizeof vectors / sizeof *vectors; j++)
            backend_upload_free(r->backend, vectors[j]);
    }
    backend_upload_free(r->backend, r->final_norm);
    mem_free(r->layers);
}

/* ---- life ------------------------------------------------------------------------------------ */

kvasir_status model_run_create(const struct model *m, struct backend *b, uint32_t max_rows,
                               uint32_t max_logit_rows, struct model_run **out, kvasir_error *err) {
    const struct model_config *c = &m->config;
    *out = NULL;
    struct model_run *r = mem_calloc(1, sizeof *r);
    if (!r)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for a model run");
    r->model = m;
    r->backend = b;
    kvasir_status status;
    const uint32_t widest = max_u32(max_u32(c->dim, c->ffn_dim), c->heads * c->head_dim);
    TRY_GOTO(backend_reserve(
        b, &(struct backend_limits){.rows = max_rows, .dim = widest, .head_dim = c->head_dim},
        err));
    TRY_GOTO(alloc_buffers(r, max_rows, max_logit_rows, err));
    TRY_GOTO(upload_layers(r, err));
    model_inv_freq(m, r->inv_freq);
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
    list_buffers(r, &r->model->config, 0, 0, list);
    for (size_t i = 0; i < RUN_BUFFERS; i++)
        backend_free(r->backend, *list[i].at);
    free_layers(r);
    mem_free(r->inv_freq);
    mem_free(r);
}
