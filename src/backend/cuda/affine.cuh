// SPDX-License-Identifier: Apache-2.0
// affine.cuh: roundings of half.c and the affine arithmetic of affine.c, one element or one group
// at a time, to the bit: what the kernels that store K and V share.
//
// Every float operation is one IEEE float32 operation in the order of affine.c. Minima and maxima
// skip NaN there and here; the sign of a zero among them changes nothing.
#pragma once

#include <cmath>
#include <cstdint>
#include <cuda_fp16.h>

// The NaN that an invalid operation gives on x86, on which the definition was frozen; a GPU's own
// has other bits. Only a scale can be one.
constexpr uint32_t NAN_BITS = 0xffc00000u;

// ---- 16-bit floats, as half.c ----------------------------------------------------------------

__device__ __forceinline__ uint32_t to_f16(float f) {
    uint32_t u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) // the instruction would lose sign and payload
        return (u >> 16 & 0x8000u) | 0x7e00u | (u >> 13 & 0x3ffu);
    return __half_as_ushort(__float2half_rn(f));
}

__device__ __forceinline__ uint32_t to_bf16(float f) {
    uint32_t u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return u >> 16 | 0x40u;
    return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

__device__ __forceinline__ uint32_t to_half(float f, bool bf16) {
    return bf16 ? to_bf16(f) : to_f16(f);
}

__device__ __forceinline__ float round_to_half(float f) {
    return __half2float(__float2half_rn(f));
}

// ---- affine formats --------------------------------------------------------------------------

// group_quantize of affine.c without the codes: scale and bias, not yet rounded to T.
__device__ __forceinline__ float2 group_scale(float lo, float hi, float top) {
    float step = __fdiv_rn(hi - lo, top);
    bool negative_edge = fabsf(lo) > fabsf(hi);
    float s = step > 1e-7f ? step : 1e-7f, b = 0;
    if (!negative_edge)
        s = -s;
    float edge = negative_edge ? lo : hi;
    float q0 = rintf(__fdiv_rn(edge, s));
    if (q0 != 0) { // true for NaN
        s = __fdiv_rn(edge, q0);
        b = edge;
    }
    return make_float2(isnan(s) ? __uint_as_float(NAN_BITS) : s, b);
}

// The code in the low byte. Clamped before it is rounded: the ends are integers, so that is the
// same. NaN gives 0, since fmaxf takes the other one. Adding 2^23 rounds to an integer, half to
// even, and leaves it in the low bits.
__device__ __forceinline__ uint32_t to_code(float x, float2 sb, float top) {
    float q = fminf(fmaxf(__fdiv_rn(x - sb.y, sb.x), 0.0f), top);
    return __float_as_uint(q + 8388608.0f);
}
