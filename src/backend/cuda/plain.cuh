// SPDX-License-Identifier: Apache-2.0
// plain.cuh: the storage order of tiles for any format and head size: quant.h's drawing and
// tile.c's locate(), four elements of a row r / 4 at a time. What plain_attention.cu reads with and
// plain_encode.cu writes by.
//
//     element (r, lane)     K: r is a dim, the lane a token      V: r is a token, the lane a dim
//
//     plane of w bits, P = 8 / w:   the codes of r = 4 R .. 4 R + 3 are in the four bytes of word
//                                   (R / P) * lanes + lane, at bit w * (R % P) of each
//     exact formats:                element R * 4 * lanes + lane * 4 + r % 4
#pragma once

#include "backend/cuda/internal.cuh"
#include "backend/cuda/mma.cuh"

// How many scales a tile has: of KV_TILE one for each index of the reduction axis.
template <tile_kind KIND>
__device__ __forceinline__ uint32_t scales_of(const kv_format &f, uint32_t dim) {
    return f.kind != KV_TILE ? dim / f.group * TILE_TOKENS
           : KIND == TILE_K  ? dim
                             : (uint32_t)TILE_TOKENS;
}

// How the codes of a format are split: bits of the low plane; those left are the high one's.
__device__ __forceinline__ uint32_t low_plane_bits(uint32_t bits) {
    return bits == 8 ? 8 : bits >= 4 ? 4 : 2;
}
// Bytes of a plane.
__device__ __forceinline__ uint32_t plane_bytes(uint32_t bits, uint32_t dim) {
    return TILE_TOKENS / 8 * dim * bits;
}
// The low `bits` bits of each byte.
__device__ __forceinline__ uint32_t byte_masks(uint32_t bits) {
    return ((1u << bits) - 1) * 0x01010101u;
}

__device__ __forceinline__ uint32_t read_plane(const uint8_t *plane, uint32_t bits, uint32_t row,
                                               uint32_t lanes, uint32_t lane) {
    const uint32_t rows = 8 / bits;
    return ((const uint32_t *)plane)[row / rows * lanes + lane] >> bits * (row % rows) &
           byte_masks(bits);
}
// Codes of row R = `row` of a lane, one a byte.
__device__ __forceinline__ uint32_t read_codes(const uint8_t *tile, uint32_t bits, uint32_t dim,
                                               uint32_t row, uint32_t lanes, uint32_t lane) {
    const uint32_t low = low_plane_bits(bits);
    uint32_t codes = read_plane(tile, low, row, lanes, lane);
    if (bits > low)
        codes |= read_plane(tile + plane_bytes(low, dim), bits - low, row, lanes, lane) << low;
    return codes;
}

__device__ __forceinline__ float read_scalar(const uint8_t *p, uint32_t scalar, uint32_t i) {
    return scalar == SCALAR_F32 ? ((const float *)p)[i]
                                : to_float(((const uint16_t *)p)[i], scalar == SCALAR_BF16);
}
__device__ __forceinline__ uint32_t scalar_size(uint32_t scalar) {
    return scalar == SCALAR_F32 ? 4 : 2;
}

// Element N of a word's bytes.
__device__ __forceinline__ float code_at(uint32_t codes, int n) {
    return (float)(codes >> 8 * n & 0xffu);
}

// Elements [i, i + 4) of an array of a scalar type; i is a multiple of 4.
__device__ __forceinline__ float4 read_four_scalars(const uint8_t *p, uint32_t scalar, size_t i) {
    if (scalar == SCALAR_F32)
        return ((const float4 *)p)[i / 4];
    const uint2 w = ((const uint2 *)p)[i / 4];
    const bool bf16 = scalar == SCALAR_BF16;
    return make_float4(to_float((uint16_t)w.x, bf16), to_float((uint16_t)(w.x >> 16), bf16),
                       to_float((uint16_t)w.y, bf16), to_float((uint16_t)(w.y >> 16), bf16));
}

// Four values of row `row` of a lane, as tile_decode_row: the product is rounded, then the sum.
template <tile_kind KIND>
__device__ __forceinline__ float4 read_four(const uint8_t *tile, const kv_format &f, uint32_t dim,
                                            uint32_t row, uint32_t lane) {
    const uint32_t lanes = KIND == TILE_K ? (uint32_t)TILE_TOKENS : dim;
    if (f.bits >= 16)
        return read_four_scalars(tile, f.scalar, ((size_t)row * lanes + lane) * 4);
    const uint32_t codes = read_codes(tile, f.bits, dim, row, lanes, lane);
    const uint8_t *scales = tile + plane_bytes(f.bits, dim),
                  *biases = scales + scales_of<KIND>(f, dim) * scalar_size(f.scalar);
    float x[4];
    if (KIND == TILE_K && f.kind != KV_TILE) { // four dims of a group, one token
        const uint32_t at = row * 4 / f.group * TILE_TOKENS + lane;
        const float s = read_scalar(scales, f.scalar, at), b = read_scalar(biases, f.scalar, at);
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = s * code_at(codes, i) + b;
    } else { // four tokens of one dim; of KV_TILE's K four dims of one token
        const uint32_t at = (f.kind == KV_TILE ? 0 : lane / f.group * TILE_TOKENS) + row * 4;
        const float4 s = read_four_scalars(scales, f.scalar, at),
                     b = read_four_scalars(biases, f.scalar, at);
        x[0] = s.x * code_at(codes, 0) + b.x;
        x[1] = s.y * code_at(codes, 1) + b.y;
        x[2] = s.z * code_at(codes, 2) + b.z;
        x[3] = s.w * code_at(codes, 3) + b.w;
    }
    return make_float4(x[0], x[1], x[2], x[3]);
}
