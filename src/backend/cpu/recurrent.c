/* SPDX-License-Identifier: Apache-2.0 */
/* Recurrent layers: short convolutions and the gated delta rule.
 *
 * The state of a sequence is in the arena. It is read, advanced token by token, and written back in
 * place, for a prompt in the same way as for one token: how a prompt was cut into steps cannot
 * matter (I1 of docs/design.md). Channels and value heads do not mix, so threads take these:
 *
 *      short_conv    item = (sequence, CONV_CHANNELS channels)     all its tokens in order
 *      delta_rule    item = (sequence, value head)                 all its tokens in order
 */
#include "backend/cpu/cpu_internal.h"

/* Channels of one item: a few KiB of state and of weights, in L1 from token to token. */
enum { CONV_CHANNELS = 256 };

static float *state_at(const struct state_view *v, size_t at, size_t values) {
    return (float *)(void *)arena_at(v->arena, page_offset(v->addr) + at, values * sizeof(float));
}

/* ---- short convolutions ---------------------------------------------------------------------- */

struct conv_job {
    const struct cpu_backend *b;
    const struct batch *batch;
    size_t at;
    const float *x, *w;
    uint32_t width, channels, ranges; /* ranges of a sequence's channels */
    bool silu;
    float *y;
};

static void conv_item(void *ctx, size_t item, int worker) {
    (void)worker;
    const struct conv_job *j = ctx;
    size_t s = item / j->ranges, first = item % j->ranges * CONV_CHANNELS;
    size_t n = j->channels - first < CONV_CHANNELS ? j->channels - first : CONV_CHANNELS;
    const struct batch_seq *seq = &j->batch->seqs[s];
    float *state =
        state_at(&j->batch->states[s], j->at, (size_t)(j->width - 1) * j->channels) + first;
    for (uint32_t r = seq->row; r < seq->row + seq->rows; r++) {
        size_t here = (size_t)r * j->channels + first;
        j->b->kernels.short_conv(state, j->w + first, j->channels, j->width, j->x + here, n,
                                 j->silu, j->y + here);
    }
}

void cpu_short_conv(struct backend *base, const struct batch *batch, size_t at, const float *x,
                    const float *w, uint32_t width, uint32_t channels, bool silu, float *y) {
    struct cpu_backend *b = cpu_of(base);
    ASSERT(width > 0 && channels > 0);
    struct conv_job j = {.b = b,
                         .batch = batch,
                         .at = at,
                         .x = x,
                         .w = w,
                         .width = width,
                         .channels = channels,
                         .ranges = (channels + CONV_CHANNELS - 1) / CONV_CHANNELS,
                         .silu = silu,
                         .y = y};
    thread_pool_run(b->pool, (size_t)batch->n_seqs * j.ranges, conv_item, &j);
}

/* ---- the gated delta rule -------------------------------------------------------------------- */

struct delta_job {
    const struct cpu_backend *b;
    const struct batch *batch;
    size_t at;
    const float *qkv, *beta, *a;
    const struct delta_layer *layer;
    float *y;
};

/* out = scale * x / sqrt(sum x^2 + 1e-6): rms_norm divides by the root of the mean. */
static void l2_norm(const struct kernels *k, const float *x, uint32_t dim, double scale,
                    float *out) {
    k->rms_norm(x, NULL, dim, (float)(1e-6 / dim), out);
    k->scale(out, (float)(scale / m_sqrt(dim)), dim);
}

static float decay_of(const struct delta_layer *l, uint32_t head, float a) {
    return (float)m_exp(-(double)l->rate[head] * m_softplus((double)a + (double)l->bias[head]));
}

static void delta_item(void *ctx, size_t item, int worker) {
    (void)worker;
    const struct delta_job *j = ctx;
    const struct delta_layer *l = j->layer;
    const struct kernels *kernels = &j->b->kernels;
    uint32_t head = (uint32_t)(item % l->value_heads);
    uint32_t key_head =
        l->keys_cycle ? head % l->key_heads : head / (l->value_heads / l->key_heads);
    const struct batch_seq *seq = &j->batch->seqs[item / l->value_heads];
    const size_t matrix = (size_t)l->key_dim * l->value_dim;
    float *state =
        state_at(&j->batch->states[item / l->value_heads], j->at, l->value_heads * matrix) +
        head * matrix;
    size_t keys = (size_t)l->key_heads * l->key_dim, values = (size_t)l->value_heads * l->value_dim;
    float q[HEAD_DIM_MAX], k[HEAD_DIM_MAX];
    for (size_t r = seq->row; r < (size_t)seq->row + seq->rows; r++) {
        const float *row = j->qkv + r * (2 * keys + values);
        l2_norm(kernels, row + (size_t)key_head * l->key_dim, l->key_dim, 1 / m_sqrt(l->key_dim),
                q);
        l2_norm(kernels, row + keys + (size_t)key_head * l->key_dim, l->key_dim, 1, k);
        size_t gate = r * l->value_heads + head;
        struct delta_token t = {.q = q,
                                .k = k,
                                .v = row + 2 * keys + (size_t)head * l->value_dim,
                                .decay = decay_of(l, head, j->a[gate]),
                                .beta = (float)m_sigmoid((double)j->beta[gate])};
        kernels->delta_step(state, l->key_dim, l->value_dim, &t,
                            j->y + r * values + (size_t)head * l->value_dim);
    }
}

void cpu_delta_rule(struct backend *base, const struct batch *batch, size_t at, const float *qkv,
                    const float *beta, const float *a, const struct delta_layer *layer, float *y) {
    struct cpu_backend *b = cpu_of(base);
    ASSERT(layer->key_dim <= HEAD_DIM_MAX && layer->key_heads > 0);
    struct delta_job j = {
        .b = b, .batch = batch, .at = at, .qkv = qkv, .beta = beta, .a = a, .layer = layer, .y = y};
    thread_pool_run(b->pool, (size_t)batch->n_seqs * layer->value_heads, delta_item, &j);
}
