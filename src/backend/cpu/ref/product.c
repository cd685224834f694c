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

typedef double two __attribute__((vector_size(16)));
typedef double two_anywhere __attribute__((vector_size(16), aligned(8), may_alias));

/* Two outputs of a row of activations: dots with w[0] and w[1]. For each eight sums side by side:
 * one alone would wait for each of its additions. */
static void dot_float(const float *x, const double *const w[2], size_t n, double dot[2]) {
    enum { SUMS = 8 };
    two sum[2][SUMS / 2] = {{{0}}};
    size_t i = 0;
    for (; i + SUMS <= n; i += SUMS)
        for (size_t s = 0; s < SUMS / 2; s++) {
            const size_t at = i + 2 * s;
            const two value = {x[at], x[at + 1]};
            sum[0][s] += value * *(const two_anywhere *)(w[0] + at);
            sum[1][s] += value * *(const two_anywhere *)(w[1] + at);
        }
    dot[0] = dot[1] = 0;
    for (; i < n; i++) {
        dot[0] += x[i] * w[0][i];
        dot[1] += x[i] * w[1][i];
    }
    for (size_t s = 0; s < SUMS; s++) {
        dot[0] += sum[0][s / 2][s % 2];
        dot[1] += sum[1][s / 2][s % 2];
    }
}

void product_float_ref(const struct weight *w, uint32_t n0, uint32_t n1, const struct act_rows *a,
                       float *y, size_t y_stride, void *scratch) {
    const struct weight_traits *traits = weight_traits_of(w->type);
    const size_t k = a->k;
    ASSERT(n1 <= w->n && k == w->k && 20 * k <= product_scratch_bytes(a->k));
    double *wide[2] = {scratch, (double *)scratch + k};
    float *values = (float *)(wide[1] + k);
    for (uint32_t j = n0, n; j < n1; j += n) {
        n = min_u32(n1 - j, 2); /* of one, the second dot counts for nothing */
        for (uint32_t o = 0; o < n; o++) {
            traits->decode(w, j + o, values);
            for (size_t i = 0; i < k; i++)
                wide[o][i] = values[i];
        }
        const double *const pair[2] = {wide[0], wide[n - 1]};
        for (uint32_t row = 0; row < a->rows; row++) {
            double dot[2];
            dot_float(a->x + row * k, pair, k, dot);
            for (uint32_t o = 0; o < n; o++)
                y[row * y_stride + (j + o - n0)] = (float)dot[o];
        }
    }
}
