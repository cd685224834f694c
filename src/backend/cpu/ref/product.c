/* SPDX-License-Identifier: Apache-2.0 */
/* ref/product.c: matrix products, one output after the other.
 *
 * The blocks of a weight row are unpacked once into scratch and used for every row of activations:
 *
 *     scratch:  quantized  | d [k/32] f32 | m [k/32] f32 | codes [k] s8 |      float  | w [k] f32 |
 *
 * An output is a function of its weight row and its activation row alone.
 */
#include "backend/cpu/ref/ref.h"

enum { BLOCK = 32, ACT8_MAX = 127 };

void act_pack_ref(struct act_rows *a, uint32_t row) {
    int code_max = a->bits == 8 ? ACT8_MAX : ACT16_MAX;
    for (uint32_t b = 0; b < a->k / BLOCK; b++) {
        size_t at = (size_t)row * a->k + (size_t)b * BLOCK;
        const float *x = a->x + at;
        struct rounding r = rounding_of(magnitude(x, BLOCK), code_max);
        int32_t sum = 0;
        for (size_t i = 0; i < BLOCK; i++) {
            int code = to_code(x[i], r);
            if (a->bits == 8)
                ((int8_t *)a->codes)[at + i] = (int8_t)code;
            else
                ((int16_t *)a->codes)[at + i] = (int16_t)code;
            if (a->rest)
                a->rest[at + i] = (float)((double)x[i] - (double)r.scale * code);
            sum += code;
        }
        a->scale[at / BLOCK] = r.scale;
        a->sum[at / BLOCK] = r.scale * (float)sum;
    }
}

static double dot_block(const struct act_rows *a, size_t at, const int8_t *w) {
    int32_t dot = 0;
    if (a->bits == 8)
        for (size_t i = 0; i < BLOCK; i++)
            dot += ((const int8_t *)a->codes)[at + i] * w[i];
    else
        for (size_t i = 0; i < BLOCK; i++)
            dot += ((const int16_t *)a->codes)[at + i] * w[i];
    return dot;
}

/* value = d * code + m, codes signed. */
static void unpack_row(enum weight_type type, const uint8_t *p, uint32_t blocks, float *d, float *m,
                       int8_t *codes) {
    for (uint32_t b = 0; b < blocks; b++, codes += BLOCK) {
        d[b] = scalar_load(SCALAR_F16, p, 0);
        m[b] = type == WEIGHT_Q4_1 ? scalar_load(SCALAR_F16, p, 1) : 0;
        p += type == WEIGHT_Q4_1 ? 4 : 2;
        int offset = type == WEIGHT_Q4_0 ? 8 : 0;
        for (int j = 0; j < BLOCK; j++)
            if (type == WEIGHT_Q8_0)
                codes[j] = (int8_t)p[j];
            else
                codes[j] = (int8_t)((j < 16 ? p[j] & 15 : p[j - 16] >> 4) - offset);
        p += type == WEIGHT_Q8_0 ? 32 : 16;
    }
}

void product_quant_ref(const struct weight *w, uint32_t n0, uint32_t n1, const struct act_rows *a,
                       float *y, size_t y_stride, void *scratch) {
    uint32_t blocks = a->k / BLOCK;
    size_t row_bytes = weight_row_bytes(weight_traits_of(w->type), w->k);
    float *d = scratch, *m = d + blocks;
    int8_t *codes = (int8_t *)(m + blocks);
    for (uint32_t j = n0; j < n1; j++) {
        unpack_row(w->type, (const uint8_t *)w->data + j * row_bytes, blocks, d, m, codes);
        for (uint32_t row = 0; row < a->rows; row++) {
            double acc = 0;
            for (uint32_t b = 0; b < blocks; b++) {
                size_t at = (size_t)row * blocks + b;
                acc += (double)d[b] * a->scale[at] *
                       dot_block(a, at * BLOCK, codes + (size_t)b * BLOCK);
                if (w->type == WEIGHT_Q4_1)
                    acc += (double)m[b] * a->sum[at];
            }
            y[row * y_stride + (j - n0)] = (float)acc;
        }
    }
}

void product_float_ref(const struct weight *w, uint32_t n0, uint32_t n1, const struct act_rows *a,
                       float *y, size_t y_stride, void *scratch) {
    const struct weight_traits *traits = weight_traits_of(w->type);
    size_t row_bytes = weight_row_bytes(traits, w->k);
    float *values = scratch;
    for (uint32_t j = n0; j < n1; j++) {
        traits->decode((const uint8_t *)w->data + j * row_bytes, w->k, values);
        for (uint32_t row = 0; row < a->rows; row++) {
            const float *x = a->x + (size_t)row * a->k;
            double acc = 0;
            for (uint32_t i = 0; i < a->k; i++)
                acc += (double)x[i] * values[i];
            y[row * y_stride + (j - n0)] = (float)acc;
        }
    }
}
