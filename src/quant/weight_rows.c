/* SPDX-License-Identifier: Apache-2.0 */
/* weight_rows.c: weight types of safetensors files, whose scales are arrays of their own. Row r of
 * a matrix [n][k]:
 *
 *     AFFINEb     data    k codes of b bits, one LSB-first stream in 32-bit words (affine.c)
 *                 scales  [k/group] of the scalar type      value = scale * code + bias
 *                 biases  [k/group]
 *     MXFP4_MLX   data    k codes of 4 bits, the first in the lowest nibble
 *                 scales  [k/32] bytes e                    value = 2^(e - 127) * E2M1[code]
 *     F8_E4M3     data    k bytes s eeee mmm                value = e4m3 * scale, or e4m3 alone
 *                 scales  [ceil(n/group_rows)][ceil(k/group)] of the scalar type, or none
 *
 * AFFINE decodes in float32, product then sum. Where scales are float32 that is mx.dequantize bit
 * for bit; with 16-bit scales mlx rounds the product and the sum to 16 bits, which loses up to half
 * a step of the 8-bit codes: ours does not.
 *
 * Codes of the integer products are s8. AFFINE8's run from 0 to 255, so 128 moves to the
 * minimum: code - 128 and m = bias + 128 scale, rounded to float32 once (128 scale is exact).
 *
 * E8M0 and E2M1 as in weight.h. mlx reads e = 255 as an infinite scale, and -0 from the code of -0;
 * gguf (MXFP4) reads 2^128 and 0.
 *
 * E4M3 is OCP's "FN": bias 7, subnormals, no infinity; s.1111.111 is NaN, 448 the largest. Its
 * product with a 16-bit scale is exact, else rounded once.
 */
#include <math.h>

#include "quant/weight.h"

enum { RUN = 32 };

/* ---- affine ---------------------------------------------------------------------------------- */

/* Rows of `bits` per value. (Not by the table of weight.c, which lists this file's functions.) */
static const uint8_t *row_of(const struct weight *w, uint32_t row, uint32_t bits) {
    return (const uint8_t *)w->data + row * ((size_t)w->k * bits / 8);
}

static uint32_t affine_bits(uint32_t type) {
    switch (type) {
    case WEIGHT_AFFINE2:
        return 2;
    case WEIGHT_AFFINE3:
        return 3;
    case WEIGHT_AFFINE4:
        return 4;
    case WEIGHT_AFFINE5:
        return 5;
    case WEIGHT_AFFINE6:
        return 6;
    default:
        ASSERT(type == WEIGHT_AFFINE8);
        return 8;
    }
}

struct affine_run {
    uint8_t codes[RUN];
    float scale, bias;
};

static struct affine_run affine_run_at(const struct weight *w, uint32_t row, uint32_t run) {
    struct affine_run r;
    const uint32_t bits = affine_bits(w->type), bytes = RUN * bits / 8;
    uint32_t words[RUN * 8 / 32];
    size_t group = (size_t)row * (w->k / w->group) + run * RUN / w->group;
    memcpy(words, row_of(w, row, bits) + (size_t)run * bytes, bytes);
    affine_unpack_row(words, RUN, bits, r.codes);
    r.scale = scalar_load(w->scalar, w->scales, group);
    r.bias = scalar_load(w->scalar, w->biases, group);
    return r;
}

void decode_affine(const struct weight *w, uint32_t row, float *out) {
    for (uint32_t u = 0; u < w->k / RUN; u++) {
        struct affine_run r = affine_run_at(w, row, u);
        for (int i = 0; i < RUN; i++) {
            float product = r.scale * (float)r.codes[i];
            *out++ = product + r.bias;
        }
    }
}

void parts_affine(const struct weight *w, uint32_t row, int8_t *codes, float *d, float *m) {
    int offset = w->type == WEIGHT_AFFINE8 ? 128 : 0;
    for (uint32_t u = 0; u < w->k / RUN; u++) {
        struct affine_run r = affine_run_at(w, row, u);
        d[u] = r.scale;
        m[u] = offset ? r.bias + (float)offset * r.scale : r.bias;
        for (int i = 0; i < RUN; i++)
            *codes++ = (int8_t)(r.codes[i] - offset);
    }
}

/* ---- microscaling ---------------------------------------------------------------------------- */

float e8m0_half(uint8_t e) {
    return ldexpf(1, e - 128);
}

static float mlx_scale(const struct weight *w, uint32_t row, uint32_t run) {
    uint8_t e = ((const uint8_t *)w->scales)[(size_t)row * (w->k / RUN) + run];
    return e == 255 ? INFINITY : e8m0_half(e);
}

void parts_mxfp4_mlx(const struct weight *w, uint32_t row, int8_t *codes, float *d, float *m) {
    const uint8_t *p = row_of(w, row, 4);
    for (uint32_t u = 0; u < w->k / RUN; u++) {
        d[u] = mlx_scale(w, row, u);
        m[u] = 0;
        for (int i = 0; i < RUN; i += 2, p++) {
            *codes++ = E2M1_DOUBLED[*p & 15];
            *codes++ = E2M1_DOUBLED[*p >> 4];
        }
    }
}

void decode_mxfp4_mlx(const struct weight *w, uint32_t row, float *out) {
    const uint8_t *p = row_of(w, row, 4);
    for (uint32_t i = 0; i < w->k; i++) {
        int code = p[i / 2] >> i % 2 * 4 & 15;
        float value = copysignf(E2M1_DOUBLED[code], code & 8 ? -1.0f : 1.0f);
        out[i] = mlx_scale(w, row, i / RUN) * value;
    }
}

/* ---- 8-bit floats ---------------------------------------------------------------------------- */

static float e4m3_to_f32(uint8_t v) {
    int exponent = v >> 3 & 15, mantissa = v & 7;
    if (exponent == 15 && mantissa == 7)
        return NAN;
    int units = exponent == 0 ? 2 * mantissa : (8 + mantissa) << exponent; /* of 2^-10 */
    float magnitude = (float)units * 0x1p-10f;
    return v & 128 ? -magnitude : magnitude;
}

void decode_f8_e4m3(const struct weight *w, uint32_t row, float *out) {
    const uint8_t *p = row_of(w, row, 8);
    for (uint32_t i = 0; i < w->k; i++)
        out[i] = e4m3_to_f32(p[i]);
    if (!w->scales)
        return;
    uint32_t per_row = w->k / w->group + (w->k % w->group != 0);
    for (uint32_t i = 0; i < w->k; i++)
        out[i] *= scalar_load(w->scalar, w->scales,
                              (size_t)(row / w->group_rows) * per_row + i / w->group);
}
