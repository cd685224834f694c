/* SPDX-License-Identifier: Apache-2.0 */
/* weight.h: what the files of weight types share; nothing outside quant/ includes it.
 *
 *     weight.c        the table, plain arrays, blocks of 32 values
 *     weight_k.c      blocks of 256 values with sub-scales
 *     weight_rows.c   types whose scales are arrays of their own
 *
 * A type whose blocks hold their scales is one function, `unpack`: it reads a block's integer codes
 * and the d and m of each run. Everything else follows from it:
 *
 *     decode  value = d * code            or  d * code + m, float32, product then sum
 *     parts   the codes, d and m themselves, for the integer products
 *
 * That is gguf's dequantize bit for bit, because only the last sum ever rounds: an f16 has 11
 * significant bits, a sub-scale and a code at most 12 more between them (Q6_K: sub-scales of 7 bits
 * or the power of two -128, codes of 5 or -32), so that any product of the three fits float32's 24
 * exactly, and they are between 2^-24 and 2^29. MXFP4's scales are powers of two. Q8_K's d is a
 * float32: there the product rounds, in gguf's own way.
 */
#ifndef KVASIR_QUANT_WEIGHT_H
#define KVASIR_QUANT_WEIGHT_H

#include <string.h>

#include "quant/quant.h"

typedef void weight_decode_fn(const struct weight *w, uint32_t row, float *out);
typedef void weight_parts_fn(const struct weight *w, uint32_t row, int8_t *codes, float *d,
                             float *m);
typedef void weight_unpack_fn(const uint8_t *block, int8_t *codes, float *d, float *m);

/* weight_k.c */
weight_unpack_fn unpack_q2_k, unpack_q3_k, unpack_q4_k, unpack_q5_k, unpack_q6_k, unpack_q8_k,
    unpack_iq4_xs;
/* weight_rows.c */
weight_decode_fn decode_affine, decode_mxfp4_mlx, decode_f8_e4m3;
weight_parts_fn parts_affine, parts_mxfp4_mlx;

/* ---- fields of bytes ------------------------------------------------------------------------- */

/* Every GGUF block cuts n bytes into fields of `bits` bits, whose values follow one field after the
 * other: code f * n + j gets field f (bits [f * bits, (f + 1) * bits)) of byte j.
 *
 *     n = 16, bits = 4:   codes 0..15 the low nibbles, 16..31 the high ones
 *
 * The field is put at bit `shift` of codes that hold 0 there: higher bits come from fields of
 * their own. */
static inline void add_fields(const uint8_t *p, unsigned n, unsigned bits, unsigned shift,
                              int8_t *codes) {
    for (unsigned f = 0; f < 8 / bits; f++)
        for (unsigned j = 0; j < n; j++)
            codes[f * n + j] |= (int8_t)((p[j] >> f * bits & ((1u << bits) - 1)) << shift);
}

static inline void shift_codes(int8_t *codes, unsigned n, int offset) {
    for (unsigned i = 0; i < n; i++)
        codes[i] = (int8_t)(codes[i] + offset);
}

static inline void map_codes(int8_t *codes, unsigned n, const int8_t values[16]) {
    for (unsigned i = 0; i < n; i++)
        codes[i] = values[codes[i]];
}

/* ---- tables of 4-bit codes ------------------------------------------------------------------- */

/* IQ4_NL and IQ4_XS: a fixed grid, finer near zero. */
static const int8_t IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

/* E2M1 (s ee m) is 0 .5 1 1.5 2 3 4 6 and the same below zero. Doubled, the values are integers;
 * the scale is halved for it. */
static const int8_t E2M1_DOUBLED[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* Half of an E8M0 scale 2^(e - 127), subnormal for 0 and 1. 255, NaN in the standard, goes on
 * counting here, as in gguf: its half is 2^127. */
float e8m0_half(uint8_t e);

#endif
