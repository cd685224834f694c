/* SPDX-License-Identifier: Apache-2.0 */
/* ref/product.c: matrix products, one output after the other.
 *
 * The blocks of a weight row are unpacked once into scratch and used for every row of activations:
 *
 *     scratch:  quantized  | d [runs] f32 | m [runs] f32 | codes [k] s8 |
 *               float      | w [2][k] f64 | w [k] f32 |, two outputs at a time
 *
 * An output is a function of its weight row and its activation row alone.
 */
#include "backend/cpu/ref/ref.h"

enum { BLOCK = 32, HALF = 16 };

void act_pack_ref(struct act_rows *a, uint32_t row) {
    int code_max = a->bits == 8 ? ACT8_MAX : ACT16_MAX;
    for (uint32_t b = 0; b < a->k / BLOCK; b++) {
        size_t at = (size_t)row * a->k + (size_t)b * BLOCK;
        const float *x = a->x + at;
        struct rounding r = rounding_of(magnitude(x, BLOCK), code_max);
        int32_t sum[2] = {0, 0}; /* of the block's halves */
        for (size_t i = 0; i < BLOCK; i++) {
            int code = to_code(x[i], r);
            if (a->bits == 8)
                ((int8_t *)a->codes)[at + i] = (int8_t)code;
            else
                ((int16_t *)a->codes)[at + i] = (int16_t)code;
            if (a->rest)
                a->rest[at + i] = (float)((double)x[i] - (double)r.scale * code);
            sum[i / HALF] += code;
        }
        a->scale[at / BLOCK] = r.scale;
        a->sum[at / BLOCK] = r.scale * (float)(sum[0] + sum[1]);
        a->sum16[at / HALF] = r.scale * (float)sum[0];
        a->sum16[at / HALF + 1] = r.scale * (float)sum[1];
    }
}

static double dot_run(const struct act_rows *a, size_t at, const int8_t *w, uint32_t n) {
    int32_t dot = 0;
    if (a->bits == 8)
        for (size_t i = 0; i < n; i++)
            dot += ((const int8_t *)a->codes)[at + i] * w[i];
    else
        for (size_t i = 0; i < n; i++)
            dot += ((const int16_t *)a->codes)[at + i] * w[i];
    return dot;
}

void product_quant_ref(const struct weight *w, uint32_t n0, uint32_t n1, const struct act_rows *a,
                       float *y, size_t y_stride, void *scratch) {
    const struct weight_traits *traits = weight_traits_of(w->type);
    uint32_t run = traits->run_values, runs = a->k / run;
    ASSERT(n1 <= w->n && a->k == w->k && a->k % BLOCK == 0);
    ASSERT((size_t)runs * 8 + a->k <= product_scratch_bytes(a->k));
    const float *sum = run == HALF ? a->sum16 : a->sum;
    float *d = scratch, *m = d + runs;
    int8_t *codes = (int8_t *)(m + runs);
    for (uint32_t j = n0; j < n1; j++) {
        traits->parts(w, j, codes, d, m);
        for (uint32_t row = 0; row < a->rows; row++) {
            double acc = 0;
            for (uint32_t u = 0; u < runs; u++) {
                size_t at = (size_t)row * a->k + (size_t)u * run;
                acc += (double)d[u] * a->scale[at / BLOCK] *
                       dot_run(a, at, codes + (size_t)u * run, run);
                if (traits->has_min)
                    acc += (double)m[u] * sum[at / run];
            }
            y[row * y_stride + (j - n0)] = (float)acc;
        }
    }
}

/* Eight sums side by side: one alone would wait for each of its additions. */
static double dot_float(const float *x, const double *w, size_t n) {
    enum { SUMS = 8 };
    double sum[SUMS] = {0}, dot = 0;
    size_t i = 0;
    for (; i + SUMS <= n; i += SUMS)
        for (size_t s = 0; s < SUMS; s++)
            sum[s] += x[i + s] * w[i + s];
    for (; i < n; i++)
        dot += x[i] * w[i];
    for (size_t s = 0; s < SUMS; s++)
        dot += sum[s];
    return dot;
}

void product_float_ref(const struct weight *w, uint32_t n0, uint32_t n1, const struct act_rows *a,
                       float *y, size_t y_stride, void *scratch) {
    const struct weight_traits *traits = weight_traits_of(w->type);
    const size_t k = a->k;
    ASSERT(n1 <= w->n && k == w->k && 12 * k <= product_scratch_bytes(a->k));
    double *wide = scratch;
    float *values = (float *)(wide + k);
    for (uint32_t j = n0; j < n1; j++) {
        traits->decode(w, j, values);
        for (size_t i = 0; i < k; i++)
            wide[i] = values[i];
        for (uint32_t row = 0; row < a->rows; row++)
            y[row * y_stride + (j - n0)] = (float)dot_float(a->x + row * k, wide, k);
    }
}
