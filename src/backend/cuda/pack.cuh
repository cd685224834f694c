// SPDX-License-Identifier: Apache-2.0
// pack.cuh: rounding of activations. They become integers as in act_pack_ref (cpu/ref/product.c),
// or 16-bit floats times a power of two. And where they come from.
#pragma once

#include "backend/cuda/gate.cuh"
#include "backend/cuda/norm.cuh"
#include "backend/cuda/product.cuh"

enum { CODE_MAX_8 = 127, CODE_MAX_16 = 16256 }; // ACT8_MAX, ACT16_MAX of cpu/kernels.h
constexpr float TINY = 1e-30f;                  // ACT_TINY

// As integers, magnitudes order like floats, with NaN above infinity.
__device__ __forceinline__ uint32_t most_of_four(float4 v) {
    return max(max(__float_as_uint(v.x) & 0x7fffffffu, __float_as_uint(v.y) & 0x7fffffffu),
               max(__float_as_uint(v.z) & 0x7fffffffu, __float_as_uint(v.w) & 0x7fffffffu));
}

// 2^e and 2^-e of a run of inputs whose largest magnitude has these bits: 2^e <= it < 2^(e + 1), as
// far as float32 can. What is not finite has a unit of NaN and no power: all is to be 0.
struct run_unit {
    float unit, power;
};
__device__ __forceinline__ run_unit unit_of_run(uint32_t most) {
    if (most >= 0x7f800000u)
        return {__uint_as_float(0x7fc00000u), 0};
    if (most == 0)
        return {1, 1};
    const uint32_t e = min(max(most & 0x7f800000u, 1u << 23), 0x7e800000u);
    return {__uint_as_float(e), __uint_as_float(0x7f000000u - e)};
}

// Four inputs of a lane as bytes: codes of 8 bits, or two planes; and what their block has.
struct rounded_four {
    uint32_t high, low;
    float scale;
    uint32_t a; // as sides have it (product.cuh)
};

// Eight lanes share a block of 32 inputs; whole warps call this.
template <int BITS> __device__ __forceinline__ rounded_four round_four(float4 v, bool affine) {
    constexpr int CODE_MAX = BITS == 8 ? CODE_MAX_8 : CODE_MAX_16;
    uint32_t m = most_of_four(v);
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
        m = max(m, __shfl_xor_sync(~0u, m, step));
    float most = __uint_as_float(m), scale = 0, per_unit = 0;
    if (m >= 0x7f800000u) {
        scale = __uint_as_float(0x7fc00000u);
    } else if (most >= TINY) {
        scale = __fdiv_rn(most, (float)CODE_MAX);
        per_unit = __fdiv_rn((float)CODE_MAX, most);
    }
    int code[4] = {0, 0, 0, 0};
    if (per_unit != 0) {
        code[0] = (int)rintf(v.x * per_unit);
        code[1] = (int)rintf(v.y * per_unit);
        code[2] = (int)rintf(v.z * per_unit);
        code[3] = (int)rintf(v.w * per_unit);
    }
    int sum = code[0] + code[1] + code[2] + code[3];
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
        sum += __shfl_xor_sync(~0u, sum, step);
    rounded_four out = {0, 0, scale, 0};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        out.high |= (uint32_t)((BITS == 8 ? code[j] : code[j] >> 7) & 255) << (8 * j);
        out.low |= (uint32_t)(code[j] & 127) << (8 * j);
    }
    out.a = affine ? __float_as_uint(scale * (float)sum) : (uint32_t)(-8 * sum);
    return out;
}

// ---- where the inputs come from --------------------------------------------------------------

// Each gives four inputs of a row, from `i` on. No __ldg: kernel_waits.
struct packed_rows {
    const float *x;
    uint32_t k;
    __device__ __forceinline__ float4 four_at(uint32_t row, uint32_t i) const {
        return *(const float4 *)(x + (size_t)row * k + i);
    }
};

// gate_mul's result.
struct packed_gates {
    gate_kind kind;
    const float *gate, *up;
    uint32_t k;
    __device__ __forceinline__ float4 four_at(uint32_t row, uint32_t i) const {
        const size_t at = (size_t)row * k + i;
        const float4 g = *(const float4 *)(gate + at), u = *(const float4 *)(up + at);
        return make_float4(gate_value(kind, g.x, u.x), gate_value(kind, g.y, u.y),
                           gate_value(kind, g.z, u.z), gate_value(kind, g.w, u.w));
    }
};

inline packed_gates gates_of(const gate_mul_op &op, uint32_t k) {
    return {(enum gate_kind)op.kind, op.gate, op.up, k};
}

// norm_value of four inputs of a row whose `inverse` is known.
__device__ __forceinline__ float4 norm_four(float4 x, float inverse, float4 gain) {
    return make_float4(x.x * inverse * gain.x, x.y * inverse * gain.y, x.z * inverse * gain.z,
                       x.w * inverse * gain.w);
}
// The gains of four inputs, from `i` on.
__device__ __forceinline__ float4 gain_four(const rms_norm_op &norm, uint32_t i) {
    return norm.gain ? *(const float4 *)(norm.gain + i) : make_float4(1, 1, 1, 1);
}
__device__ __forceinline__ float4 norm_four(const rms_norm_op &norm, const float *x, float inverse,
                                            uint32_t i) {
    return norm_four(*(const float4 *)(x + i), inverse, gain_four(norm, i));
}
