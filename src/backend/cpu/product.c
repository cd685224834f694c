/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products: activations are rounded once, then ranges of outputs are handed to the threads.
 *
 * A range is a whole number of panels (PRODUCT_PANEL outputs); every output is one accumulator of
 * one kernel call over all rows of the step, so neither the cut nor the rows beside it change it.
 *
 * act_bits 16: fifteen bits of an activation still move a token's loss by 1e-3 (docs/quality.md),
 * so what rounding left of it is rounded once more and multiplied as a second term: y = P(a) +
 * P(rest), 30 bits together, float32 for all purposes, at twice the price.
 */
#include "backend/cpu/cpu_internal.h"

struct product_job {
    struct backend *b;
    const struct weight *const *w;
    const float *const *bias;
    float *const *y;
    uint32_t first_item[5]; /* items of product i: [first_item[i], first_item[i + 1]) */
    uint32_t count;
};

static bool takes_codes(enum weight_type t) {
    return weight_traits_of(t)->run_values > 0;
}

/* y[r][i] += x[r][i]; a stride of 0 adds the same row to all. */
static void add_rows(float *y, size_t y_stride, const float *x, size_t x_stride, uint32_t rows,
                     uint32_t n) {
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < n; i++)
            y[r * y_stride + i] += x[r * x_stride + i];
}

static void product_item(void *ctx, size_t item, int worker) {
    const struct product_job *j = ctx;
    struct backend *b = j->b;
    uint32_t i = 0;
    while (item >= j->first_item[i + 1])
        i++;
    const struct weight *w = j->w[i];
    uint32_t n0 = (uint32_t)(item - j->first_item[i]) * ITEM_OUTPUTS;
    uint32_t n1 = n0 + ITEM_OUTPUTS < w->n ? n0 + ITEM_OUTPUTS : w->n;
    float *y = j->y[i] + n0;
    struct worker_scratch *s = &b->scratch[worker];
    product_fn *product = b->kernels.product[weight_index(w->type)];
    product(w, n0, n1, &b->act, y, w->n, s->panel);
    if (b->act.rest && takes_codes(w->type)) {
        product(w, n0, n1, &b->act_rest, s->term, ITEM_OUTPUTS, s->panel);
        add_rows(y, w->n, s->term, ITEM_OUTPUTS, b->act.rows, n1 - n0);
    }
    if (j->bias[i])
        add_rows(y, w->n, j->bias[i] + n0, 0, b->act.rows, n1 - n0);
}

static void pack_item(void *ctx, size_t item, int worker) {
    (void)worker;
    struct backend *b = ctx;
    b->kernels.act_pack(&b->act, (uint32_t)item);
    if (b->act.rest)
        b->kernels.act_pack(&b->act_rest, (uint32_t)item);
}

void op_product(struct backend *b, const float *x, uint32_t rows, const struct weight *const *w,
                const float *const *bias, float *const *y, uint32_t count) {
    struct product_job j = {.b = b, .w = w, .bias = bias, .y = y, .count = count};
    bool codes = false;
    for (uint32_t i = 0; i < count; i++) {
        j.first_item[i + 1] = j.first_item[i] + (w[i]->n + ITEM_OUTPUTS - 1) / ITEM_OUTPUTS;
        codes |= takes_codes(w[i]->type);
    }
    b->act.x = x;
    b->act.rows = rows;
    b->act.k = w[0]->k;
    b->act_rest.rows = rows;
    b->act_rest.k = w[0]->k;
    if (codes)
        thread_pool_run(b->pool, rows, pack_item, b);
    thread_pool_run(b->pool, j.first_item[count], product_item, &j);
}
