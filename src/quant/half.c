/* SPDX-License-Identifier: Apache-2.0 */
/* half.c: 16-bit floats and arrays of a scalar type.
 *
 *     f32    s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm      bias 127
 *     f16    s eeeee    mmmmmmmmmm                   bias 15,  largest 65504, smallest 2^-24
 *     bf16   s eeeeeeee mmmmmmm                      the upper half of an f32
 *
 * Conversions to 16 bits round to nearest, ties to even, in integer arithmetic: no dependence on
 * the rounding mode, on flush-to-zero or on F16C. Too large becomes infinity, subnormals are kept,
 * NaN stays NaN (quiet, sign and the upper payload bits kept, as vcvtps2ph does).
 */
#include <string.h>

#include "quant/quant.h"

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

uint16_t f32_to_f16(float f) {
    uint32_t u = bits_of(f);
    uint32_t sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
    if (a >= 0x477ff000u) /* 65520, halfway between 65504 and 65536: the even one is 65536 */
        return (uint16_t)(sign | 0x7c00u);
    uint32_t kept, lost, half;
    if (a >= 0x38800000u) { /* >= 2^-14: normal */
        kept = (a >> 13) - ((127 - 15) << 10);
        lost = a & 0x1fffu;
        half = 0x1000u;
    } else {
        uint32_t exponent = a >> 23;
        if (exponent < 102) /* < 2^-25: less than half of the smallest */
            return (uint16_t)sign;
        uint32_t shift = 126 - exponent; /* 14 .. 24 */
        uint32_t mantissa = (a & 0x7fffffu) | 0x800000u;
        kept = mantissa >> shift;
        lost = mantissa & ((1u << shift) - 1);
        half = 1u << (shift - 1);
    }
    if (lost > half || (lost == half && (kept & 1)))
        kept++; /* may carry into the exponent: that is the right number too */
    return (uint16_t)(sign | kept);
}

uint16_t f32_to_bf16(float f) {
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

size_t scalar_bytes(enum scalar_type t) {
    return t == SCALAR_F32 ? 4 : 2;
}

float scalar_round(enum scalar_type t, float x) {
    switch (t) {
    case SCALAR_F16:
        return f16_to_f32(f32_to_f16(x));
    case SCALAR_BF16:
        return bf16_to_f32(f32_to_bf16(x));
    case SCALAR_F32:
        break;
    }
    return x;
}

void scalar_store(enum scalar_type t, void *p, size_t i, float x) {
    if (t == SCALAR_F32) {
        memcpy((uint8_t *)p + 4 * i, &x, sizeof x);
        return;
    }
    uint16_t h = t == SCALAR_F16 ? f32_to_f16(x) : f32_to_bf16(x);
    memcpy((uint8_t *)p + 2 * i, &h, sizeof h);
}
