/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products: activations are rounded once, then ranges of outputs are handed to the threads.
 *
 * A range is a whole number of panels (PRODUCT_PANEL outputs); every output is one accumulator of
 * one kernel call over all rows of the step, so neither the cut nor the rows beside it change it.
 */
#include "backend/cpu/cpu_internal.h"

/* Outputs of one item: for one row some 100 KiB of weights (tens of microseconds: small enough to
 * balance two to sixteen threads, large against the cost of taking an item). */
enum { ITEM_OUTPUTS = 64 };

struct product_job {
    struct backend *b;
    const struct weight *const *w;
    const float *const *bias;
    float *const *y;
    uint32_t first_item[5]; /* items of product i: [first_item[i], first_item[i + 1]) */
    uint32_t count;
};

static void add_bias(float *y, const float *bias, uint32_t n, uint32_t rows, size_t stride) {
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < n; i++)
            y[r * stride + i] += bias[i];
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
    b->kernels.product[weight_slot(w->type)](w, n0, n1, &b->act, y, w->n, b->scratch[worker].panel);
    if (j->bias[i])
        add_bias(y, j->bias[i] + n0, n1 - n0, b->act.rows, w->n);
}

static void pack_item(void *ctx, size_t item, int worker) {
    (void)worker;
    struct backend *b = ctx;
    b->kernels.act_pack(&b->act, (uint32_t)item);
}

static bool takes_codes(enum weight_type t) {
    return t != WEIGHT_F32 && t != WEIGHT_F16 && t != WEIGHT_BF16;
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
    if (codes)
        thread_pool_run(b->pool, rows, pack_item, b);
    thread_pool_run(b->pool, j.first_item[count], product_item, &j);
}
