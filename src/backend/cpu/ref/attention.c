/* SPDX-License-Identifier: Apache-2.0 */
/* ref/attention.c: attention over one tile, in the arithmetic of kernels.h.
 *
 *     score_*    lane = token   scores[row][t]  = q_row . K_t
 *     softmax    one run        p = exp(score - max)
 *     value_*    lane = dim     out[row][d]    += sum_t p[row][t] * V_t[d]
 *     basis_rows lane = dim     y[row]          = x[row] . matrix
 *
 * Affine tiles are never dequantized: codes meet integer queries and integer weights, scale and
 * bias are applied to the exact sums. Each row is worked on by itself, so its bits cannot depend on
 * its neighbours.
 */
#include <string.h>

#include "backend/cpu/ref/ref.h"

enum { GROUPS_MAX = HEAD_DIM_MAX / 32 };

void query_pack_ref(const float *q, size_t q_stride, float q_scale, struct query_rows *out) {
    uint32_t dim = out->dim, runs = dim / 32;
    for (uint32_t row = 0; row < out->rows; row++) {
        float *f32 = out->f32 + (size_t)row * dim;
        int16_t *codes = out->codes + (size_t)row * dim;
        for (uint32_t i = 0; i < dim; i++)
            f32[i] = q[row * q_stride + i] * q_scale;
        struct rounding r = rounding_of(magnitude(f32, dim), ACT16_MAX);
        for (uint32_t i = 0; i < dim; i++)
            codes[i] = (int16_t)to_code(f32[i], r);
        for (uint32_t run = 0; run < runs; run++) {
            int32_t sum = 0;
            for (uint32_t i = 0; i < 32; i++)
                sum += codes[run * 32 + i];
            out->sum32[(size_t)row * runs + run] = sum;
        }
        out->scale[row] = r.scale;
    }
}

/* One row against one token: codes [dim], s and b [groups]. */
static double score_one(const struct tile_layout *l, const struct query_rows *q, uint32_t row,
                        const uint8_t *codes, const float *s, const float *b) {
    uint32_t group = l->group, runs = group / 32;
    const int16_t *q_codes = q->codes + (size_t)row * q->dim;
    const int32_t *sum32 = q->sum32 + (size_t)row * (q->dim / 32);
    double acc = 0, q_scale = q->scale[row];
    for (uint32_t g = 0; g < l->groups; g++) {
        int32_t dot = 0, sum = 0;
        for (uint32_t i = g * group; i < (g + 1) * group; i++)
            dot += q_codes[i] * codes[i];
        for (uint32_t i = g * runs; i < (g + 1) * runs; i++)
            sum += sum32[i];
        acc += (double)s[g] * (q_scale * dot) + (double)b[g] * (q_scale * sum);
    }
    return acc;
}

void score_affine_ref(const struct tile_layout *l, const void *tile, const struct query_rows *q,
                      float *scores, size_t stride) {
    uint8_t codes[HEAD_DIM_MAX];
    float s[GROUPS_MAX], b[GROUPS_MAX];
    ASSERT(l->kind == TILE_K && l->head_dim <= HEAD_DIM_MAX && l->groups <= GROUPS_MAX);
    for (uint32_t t = 0; t < TILE_TOKENS; t++) {
        tile_get_row(l, tile, t, codes, s, b);
        for (uint32_t row = 0; row < q->rows; row++)
            scores[row * stride + t] = (float)score_one(l, q, row, codes, s, b);
    }
}

/* One row against a tile whose channels have scales s and biases b [head_dim]. */
static void score_row(const struct tile_layout *l, const uint8_t (*codes)[HEAD_DIM_MAX],
                      const float *q, const float *s, const float *b, float *scores) {
    float x[HEAD_DIM_MAX];
    int32_t x_codes[HEAD_DIM_MAX];
    double bias = 0;
    for (uint32_t i = 0; i < l->head_dim; i++) {
        x[i] = q[i] * s[i];
        bias += (double)q[i] * (double)b[i];
    }
    struct rounding r = rounding_of(magnitude(x, l->head_dim), ACT16_MAX);
    for (uint32_t i = 0; i < l->head_dim; i++)
        x_codes[i] = to_code(x[i], r);
    for (uint32_t t = 0; t < TILE_TOKENS; t++) {
        int32_t dot = 0;
        for (uint32_t i = 0; i < l->head_dim; i++)
            dot += x_codes[i] * codes[t][i];
        scores[t] = (float)((double)r.scale * dot + bias);
    }
}

void score_channels_ref(const struct tile_layout *l, const void *tile, const struct query_rows *q,
                        float *scores, size_t stride) {
    uint8_t codes[TILE_TOKENS][HEAD_DIM_MAX];
    float s[HEAD_DIM_MAX], b[HEAD_DIM_MAX];
    ASSERT(l->kind == TILE_K && l->format.kind == KV_TILE && l->head_dim <= HEAD_DIM_MAX);
    tile_get_channels(l, tile, s, b);
    for (uint32_t t = 0; t < TILE_TOKENS; t++)
        tile_get_row(l, tile, t, codes[t], NULL, NULL);
    for (uint32_t row = 0; row < q->rows; row++)
        score_row(l, codes, q->f32 + (size_t)row * q->dim, s, b, scores + row * stride);
}

void basis_rows_ref(const float *matrix, uint32_t dim, const float *x, size_t x_stride,
                    uint32_t rows, float *y) {
    for (uint32_t row = 0; row < rows; row++)
        key_basis_apply(matrix, dim, x + row * x_stride, y + (size_t)row * dim);
}

void hadamard_rows_ref(float *x, uint32_t dim, uint32_t rows) {
    for (size_t row = 0; row < rows; row++)
        hadamard_rotate(x + row * dim, dim);
}

enum { TOGETHER = 8 };

/* One row against eight tokens side by side: one sum alone would wait for each of its additions. */
static void score_together(const float *x, const double (*k)[TOGETHER], uint32_t dim,
                           double acc[TOGETHER]) {
    for (uint32_t t = 0; t < TOGETHER; t++)
        acc[t] = 0;
    for (uint32_t i = 0; i < dim; i++)
        for (uint32_t t = 0; t < TOGETHER; t++)
            acc[t] += x[i] * k[i][t];
}

void score_exact_ref(const struct tile_layout *l, const void *tile, const struct query_rows *q,
                     float *scores, size_t stride) {
    float row_of_k[HEAD_DIM_MAX];
    double k[HEAD_DIM_MAX][TOGETHER], acc[TOGETHER];
    ASSERT(q->dim == l->head_dim && l->head_dim <= HEAD_DIM_MAX);
    for (uint32_t first = 0; first < TILE_TOKENS; first += TOGETHER) {
        for (uint32_t t = 0; t < TOGETHER; t++) {
            tile_decode_row(l, tile, first + t, row_of_k);
            for (uint32_t i = 0; i < q->dim; i++)
                k[i][t] = row_of_k[i];
        }
        for (uint32_t row = 0; row < q->rows; row++) {
            score_together(q->f32 + (size_t)row * q->dim, k, q->dim, acc);
            for (uint32_t t = 0; t < TOGETHER; t++)
                scores[row * stride + first + t] = (float)acc[t];
        }
    }
}

void centre_tile_ref(const float *waves, const uint32_t *index, uint32_t pairs, const float *ab,
                     uint32_t rows, float *scores, size_t stride) {
    for (uint32_t row = 0; row < rows; row++, ab += 2 * (size_t)pairs)
        for (uint32_t t = 0; t < TILE_TOKENS; t++) {
            double sum = 0;
            for (uint32_t j = 0; j < pairs; j++) {
                const float *wave = waves + (size_t)index[j] * 2 * TILE_TOKENS;
                sum += (double)ab[2 * j] * wave[t] + (double)ab[2 * j + 1] * wave[TILE_TOKENS + t];
            }
            scores[row * stride + t] = (float)(scores[row * stride + t] + sum);
        }
}

void softmax_run_ref(float *p, uint32_t n, float *max_out, float *sum_out) {
    float max = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        if (p[i] > max)
            max = p[i];
    *max_out = max;
    if (max == -INFINITY) {
        memset(p, 0, n * sizeof *p);
        *sum_out = 0;
        return;
    }
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        float x = p[i] - max;
        p[i] = x == -INFINITY ? 0.0f : (float)m_exp(x);
        sum += p[i];
    }
    *sum_out = (float)sum;
}

/* Weights of one row for one group of dims: w_t = p_t * s_t as codes [64]; returns their scale.
 * *bias = sum p_t b_t. Tokens whose p is 0 are skipped, whatever their slots hold. s, b: [64]. */
static float weigh(const float *p, const float *s, const float *b, int32_t *codes, double *bias) {
    float w[TILE_TOKENS];
    *bias = 0;
    for (uint32_t t = 0; t < TILE_TOKENS; t++) {
        w[t] = p[t] == 0 ? 0 : p[t] * s[t];
        if (p[t] != 0)
            *bias += (double)p[t] * b[t];
    }
    struct rounding r = rounding_of(magnitude(w, TILE_TOKENS), ACT16_MAX);
    for (uint32_t t = 0; t < TILE_TOKENS; t++)
        codes[t] = to_code(w[t], r);
    return r.scale;
}

void value_affine_ref(const struct tile_layout *l, const void *tile, const float *p,
                      size_t p_stride, uint32_t rows, float *out, size_t out_stride) {
    uint8_t codes[TILE_TOKENS][HEAD_DIM_MAX];
    float s[GROUPS_MAX][TILE_TOKENS], b[GROUPS_MAX][TILE_TOKENS];
    uint32_t group = l->group;
    for (uint32_t t = 0; t < TILE_TOKENS; t++) {
        float st[GROUPS_MAX], bt[GROUPS_MAX];
        tile_get_row(l, tile, t, codes[t], st, bt);
        for (uint32_t g = 0; g < l->groups; g++) {
            s[g][t] = st[g];
            b[g][t] = bt[g];
        }
    }
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t g = 0; g < l->groups; g++) {
            int32_t w[TILE_TOKENS], dot[HEAD_DIM_MAX] = {0};
            double bias, scale = weigh(p + row * p_stride, s[g], b[g], w, &bias);
            for (uint32_t t = 0; t < TILE_TOKENS; t++)
                for (uint32_t i = 0; i < group; i++)
                    dot[i] += w[t] * codes[t][g * group + i];
            float *o = out + row * out_stride + g * group;
            for (uint32_t i = 0; i < group; i++)
                o[i] = (float)(o[i] + (scale * dot[i] + bias));
        }
}

/* acc[i] += sum_t p[t] * v[t][i] */
static void add_values(const float *p, const float (*v)[HEAD_DIM_MAX], uint32_t dim, double *acc) {
    for (uint32_t t = 0; t < TILE_TOKENS; t++) {
        const double weight = p[t];
        if (weight == 0)
            continue;
        for (uint32_t i = 0; i < dim; i++)
            acc[i] += weight * v[t][i];
    }
}

void value_exact_ref(const struct tile_layout *l, const void *tile, const float *p, size_t p_stride,
                     uint32_t rows, float *out, size_t out_stride) {
    float v[TILE_TOKENS][HEAD_DIM_MAX];
    for (uint32_t t = 0; t < TILE_TOKENS; t++)
        tile_decode_row(l, tile, t, v[t]);
    for (uint32_t row = 0; row < rows; row++) {
        double acc[HEAD_DIM_MAX] = {0};
        add_values(p + row * p_stride, v, l->head_dim, acc);
        float *o = out + row * out_stride;
        for (uint32_t i = 0; i < l->head_dim; i++)
            o[i] = (float)(o[i] + acc[i]);
    }
}
