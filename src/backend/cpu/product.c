/* SPDX-License-Identifier: Apache-2.0 */
/* Matmul: activations are rounded once, then threads compute ranges of outputs.
 *
 * A range is a whole number of panels (PRODUCT_PANEL outputs); every output is one accumulator of
 * one kernel call over all rows of the step, so neither the ranges nor the other rows change it.
 *
 * act_bits 16: rounding activations to fifteen bits still changes the loss of a token by 1e-3
 * (docs/quality.md). So the remainder is rounded to fifteen bits too and multiplied as a second
 * term, y = P(a) + P(rest): 30 bits together, as good as float32, at twice the cost.
 */
#include "backend/cpu/cpu_internal.h"

/* ---- inputs --------------------------------------------------------------------- */

static bool act_init(struct act_rows *a, int bits, size_t rows, uint32_t dim) {
    size_t blocks = rows * (dim / 32 + 1);
    a->bits = bits;
    a->codes = mem_alloc_aligned(rows * dim * sizeof(int16_t));
    a->scale = mem_alloc_aligned(blocks * sizeof(float));
    a->sum = mem_alloc_aligned(blocks * sizeof(float));
    a->sum16 = mem_alloc_aligned(2 * blocks * sizeof(float));
    a->codes_sum16 = mem_alloc_aligned(2 * blocks * sizeof(int32_t));
    return a->codes && a->scale && a->sum && a->sum16 && a->codes_sum16;
}

static void act_free(struct act_rows *a) {
    mem_free(a->codes);
    mem_free(a->scale);
    mem_free(a->sum);
    mem_free(a->sum16);
    mem_free(a->codes_sum16);
}

bool product_input_init(struct product_input *in, int bits, size_t rows, uint32_t dim) {
    if (!act_init(&in->act, bits, rows, dim))
        return false;
    if (bits == 8)
        return true;
    in->act.rest = mem_alloc_aligned(rows * dim * sizeof(float));
    in->rest.x = in->act.rest;
    return in->act.rest && act_init(&in->rest, bits, rows, dim);
}

void product_input_deinit(struct product_input *in) {
    mem_free(in->act.rest);
    act_free(&in->act);
    act_free(&in->rest);
}

void product_input_set(struct product_input *in, const float *x, uint32_t rows, uint32_t k) {
    ASSERT(!in->act.rest || in->rest.x == in->act.rest);
    in->act.x = x;
    in->act.rows = rows;
    in->act.k = k;
    in->rest.rows = rows;
    in->rest.k = k;
}

bool product_takes_codes(enum weight_type t) {
    return weight_traits_of(t)->run_values > 0;
}

void product_input_pack(const struct cpu_backend *b, struct product_input *in, uint32_t row) {
    b->kernels.act_pack(&in->act, row);
    if (in->act.rest)
        b->kernels.act_pack(&in->rest, row);
}

static struct act_rows act_part(const struct act_rows *a, size_t first, uint32_t rows) {
    size_t at = first * a->k;
    return (struct act_rows){.x = a->x + at,
                             .rows = rows,
                             .k = a->k,
                             .bits = a->bits,
                             .codes = (uint8_t *)a->codes + at * (size_t)a->bits / 8,
                             .scale = a->scale + at / 32,
                             .sum = a->sum + at / 32,
                             .sum16 = a->sum16 + at / 16,
                             .codes_sum16 = a->codes_sum16 + at / 16};
}

struct product_input product_input_part(const struct product_input *in, size_t first,
                                        uint32_t rows) {
    struct product_input part = {.act = act_part(&in->act, first, rows)};
    if (!in->act.rest)
        return part;
    part.act.rest = in->act.rest + first * in->act.k;
    part.rest = act_part(&in->rest, first, rows);
    return part;
}

/* ---- one range of outputs -------------------------------------------------------------------- */

/* y[r][i] += x[r][i]; a stride of 0 adds the same row to all. */
static void add_rows(float *y, size_t y_stride, const float *x, size_t x_stride, uint32_t rows,
                     uint32_t n) {
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < n; i++)
            y[r * y_stride + i] += x[r * x_stride + i];
}

void product_range(struct cpu_backend *b, const struct product_input *in, const struct weight *w,
                   uint32_t range, uint32_t outputs, const float *bias, float *y, int worker) {
    uint32_t n0 = range * outputs;
    ASSERT(n0 < w->n && outputs <= ITEM_OUTPUTS && in->act.k == w->k);
    uint32_t n1 = n0 + outputs < w->n ? n0 + outputs : w->n;
    struct worker_scratch *s = &b->scratch[worker];
    product_fn *product = b->kernels.product[weight_index(w->type)];
    y += n0;
    product(w, n0, n1, &in->act, y, w->n, s->panel);
    if (in->act.rest && product_takes_codes(w->type)) {
        product(w, n0, n1, &in->rest, s->term, ITEM_OUTPUTS, s->panel);
        add_rows(y, w->n, s->term, ITEM_OUTPUTS, in->act.rows, n1 - n0);
    }
    if (bias)
        add_rows(y, w->n, bias + n0, 0, in->act.rows, n1 - n0);
}

/* ---- op_matmul ------------------------------------------------------------------------------ */

struct product_job {
    struct cpu_backend *b;
    const struct backend_weight *const *w;
    const float *const *bias;
    float *const *y;
    uint32_t outputs; /* of an item */
    struct product_items items;
};

static void product_item(void *ctx, size_t item, int worker) {
    const struct product_job *j = ctx;
    const struct product_item at = product_item_at(&j->items, item);
    const uint32_t i = at.matrix;
    product_range(j->b, &j->b->input, &j->w[i]->w, at.range, j->outputs, j->bias[i], j->y[i],
                  worker);
}

static void pack_item(void *ctx, size_t item, int worker) {
    (void)worker;
    struct cpu_backend *b = ctx;
    product_input_pack(b, &b->input, (uint32_t)item);
}

void cpu_matmul(struct backend *base, const float *x, uint32_t rows,
                const struct backend_weight *const *w, const float *const *bias, float *const *y,
                uint32_t count) {
    struct cpu_backend *b = cpu_of(base);
    ASSERT(count >= 1 && count <= MATMULS_MAX);
    ASSERT(rows <= b->limits.rows && w[0]->w.k <= b->limits.dim);
    struct product_job j = {.b = b,
                            .w = w,
                            .bias = bias,
                            .y = y,
                            .outputs = rows == 1 ? ITEM_OUTPUTS : ITEM_OUTPUTS_ROWS};
    bool codes = false;
    for (uint32_t i = 0; i < count; i++) {
        ASSERT(w[i]->w.k == w[0]->w.k);
        codes |= product_takes_codes(w[i]->w.type);
    }
    product_input_set(&b->input, x, rows, w[0]->w.k);
    if (codes)
        thread_pool_run(b->pool, rows, pack_item, b);
    product_items_init(b, &j.items, w, count, j.outputs);
    thread_pool_run_on(b->pool, j.items.ends, product_item, &j);
}
