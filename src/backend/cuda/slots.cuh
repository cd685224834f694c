// SPDX-License-Identifier: Apache-2.0
// slots.cuh: a K or V tile, widened into a slot of shared memory by a group of four warps, for
// prefill.cuh. All formats become the same 16-bit matrices.
//
// The layout of the matrices (any token may be column c of K):
//
//     Q, K    [instruction 2k + n][half u][row or column][quads 8k + 4u + n and + 2, place_in_quad]
//             column 8j + 2q + (e ^ j / 4) of K is token 32e + 8q + j: what a lane (r, q) gets of
//             the scores are chains q and 4 + q of arithmetic.cuh
//     V       [instruction 2h + c][half u][column]
//             [tokens 32h + 8q + 4c + u and + 2, q = 0 .. 3]; column k D / 4 + l is dim
//             k / 2 D / 2 + 2l + k % 2
//
// With this layout neither reads of pages nor writes of slots cause bank conflicts.
#pragma once

#include "backend/cuda/stream.cuh"

enum { GROUP = 128 }; // threads

// ---- pages -----------------------------------------------------------------------------------

// Pages were written by an earlier kernel, which kernel_waits waits for. These loads do not move
// before it, since their addresses come from the step's tables, which are read after it.
__device__ __forceinline__ uint4 load128(const uint8_t *p) {
    return __ldg((const uint4 *)p);
}
__device__ __forceinline__ uint2 load64(const uint8_t *p) {
    return __ldg((const uint2 *)p);
}

// ---- K ---------------------------------------------------------------------------------------

// Four 16-bit elements of each of two quads, in K's matrix. half: 2 instruction + u
__device__ __forceinline__ void put_key(uint32_t slot, int half, int token, uint4 v) {
    const int o = token / 8, j = token % 8;
    sts128(slot + (half * 64 + 8 * j + o % 4 * 2 + (o / 4 ^ j / 4)) * 16, v);
}

// An exact K tile, by a group; wait: until the slot is empty. Lanes read tokens side by side.
template <int D, class Wait>
__device__ __forceinline__ void widen_keys_exact(const uint8_t *tile, uint32_t slot, Wait wait) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int token = lane * 2; // and the next
    uint4 x[D / 32][2];         // two quads of two tokens
    const uint8_t *from = tile + token * 8;
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        const int quad = 8 * i + warp % 2 * 4 + warp / 2; // warp: 2 n + u
        x[i][0] = load128(from + quad * 512);
        x[i][1] = load128(from + (quad + 2) * 512);
    }
    wait();
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        const int half = 4 * i + warp;
        const uint4 &a = x[i][0], &b = x[i][1];
        put_key(
            slot, half, token,
            make_uint4(even_of(a.x, a.y), odd_of(a.x, a.y), even_of(b.x, b.y), odd_of(b.x, b.y)));
        put_key(
            slot, half, token + 1,
            make_uint4(even_of(a.z, a.w), odd_of(a.z, a.w), even_of(b.z, b.w), odd_of(b.z, b.w)));
    }
}

// The same of an affine tile. Units are (32 dims, u), 16 lanes each, both n; 4 tokens a lane.
template <int F, int D, class Wait>
__device__ __forceinline__ void widen_keys_affine(const uint8_t *tile, bool bf, uint32_t slot,
                                                  Wait wait) {
    constexpr int BITS = bits_of(F), G = dims_of_group(F, D), GROUPS = D / G,
                  N = (D / 32 * 2 + 7) / 8; // of a lane
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int unit = warp * 2 + lane / 16, token = lane % 16 * 4, u = unit % 2;
    const uint8_t *scales = tile + code_bytes_of(F, D) + token * 2;
    uint4 x[N][2][2]; // [quad: 2u, 2u + 1][n]
    uint2 s[N], b[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int k = unit / 2 + 4 * i;
        if (k >= D / 32)
            break;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            if constexpr (BITS == 8) {
                const uint8_t *from = tile + (8 * k + 2 * (2 * u + j)) * 256 + token * 4;
                x[i][j][0] = load128(from);
                x[i][j][1] = load128(from + 256);
            } else {
                x[i][j][0] = load128(tile + (4 * k + 2 * u + j) * 256 + token * 4);
            }
        }
        s[i] = load64(scales + k * 32 / G * 128);
        b[i] = load64(scales + (GROUPS + k * 32 / G) * 128);
    }
    wait();
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int k = unit / 2 + 4 * i;
        if (k >= D / 32)
            break;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const uint32_t st = twice(scalars_as_half(t < 2 ? s[i].x : s[i].y, bf), t % 2),
                           bt = twice(scalars_as_half(t < 2 ? b[i].x : b[i].y, bf), t % 2);
            auto row = [&](auto n) {
                constexpr int Q = BITS == 8 ? 0 : decltype(n)::value,
                              X = BITS == 8 ? decltype(n)::value : 0;
                uint4 v;
                widen<BITS, Q>(word_of(x[i][0][X], t), st, bt, st, bt, v.x, v.y);
                widen<BITS, Q>(word_of(x[i][1][X], t), st, bt, st, bt, v.z, v.w);
                put_key(slot, 4 * k + 2 * decltype(n)::value + u, token + t, v);
            };
            row(Format<0>());
            row(Format<1>());
        }
    }
}

// The same of a tile whose scales and biases are those of dims.
template <int F, int D, class Wait>
__device__ __forceinline__ void widen_keys_tile(const uint8_t *tile, bool bf, uint32_t slot,
                                                Wait wait) {
    constexpr int BITS = bits_of(F), LOW = low_bits_of(F), N = (D / 32 * 2 + 7) / 8; // of a lane
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int unit = warp * 2 + lane / 16, token = lane % 16 * 4, u = unit % 2;
    const uint8_t *codes = tile + token * 4, *high = codes + D * 8 * LOW,
                  *scales = tile + code_bytes_of(F, D) + u * 32;
    uint4 x[N][LOW / 2], y[N], s[N][2], b[N][2]; // s, b: of quads 4u + 2j and the next
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int k = unit / 2 + 4 * i;
        if (k >= D / 32)
            break;
#pragma unroll
        for (int j = 0; j < LOW / 2; j++)
            x[i][j] = load128(codes + (LOW == 4 ? 4 * k + 2 * u + j : 2 * k + u) * 256);
        if constexpr (BITS != LOW)
            y[i] = load128(high + k * 256);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            s[i][j] = load128(scales + k * 64 + j * 16);
            b[i][j] = load128(scales + 2 * D + k * 64 + j * 16);
        }
    }
    wait();
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int k = unit / 2 + 4 * i;
        if (k >= D / 32)
            break;
        scalars_to_half(s[i], b[i], bf);
        const uint4 s0 = pairs_of(s[i][0]), s1 = pairs_of(s[i][1]), b0 = pairs_of(b[i][0]),
                    b1 = pairs_of(b[i][1]);
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const uint32_t w0 = word_of(x[i][0], t),
                           w1 = LOW == 4 ? word_of(x[i][LOW / 2 - 1], t) : w0 >> 4;
            uint32_t h0 = 0, h1 = 0;
            if constexpr (BITS != LOW) {
                h0 = high_bits<BITS>(word_of(y[i], t), 4 * u);
                h1 = high_bits<BITS>(word_of(y[i], t), 4 * u + 2);
            }
            uint4 v;
            widen_planes<BITS, 0>(w0, h0, s0.x, b0.x, s0.y, b0.y, v.x, v.y);
            widen_planes<BITS, 0>(w1, h1, s1.x, b1.x, s1.y, b1.y, v.z, v.w);
            put_key(slot, 4 * k + u, token + t, v);
            widen_planes<BITS, 1>(w0, h0, s0.z, b0.z, s0.w, b0.w, v.x, v.y);
            widen_planes<BITS, 1>(w1, h1, s1.z, b1.z, s1.w, b1.w, v.z, v.w);
            put_key(slot, 4 * k + 2 + u, token + t, v);
        }
    }
}

// ---- V ---------------------------------------------------------------------------------------

// (instruction 2h + c, 4 dims) of V that a thread fills at most.
template <int D> constexpr int VALUE_UNITS = (D + GROUP - 1) / GROUP;

// Four 16-bit elements of each of two quads, in V's matrix: of instruction i, half u, column
// k D / 4 + l.
template <int D>
__device__ __forceinline__ void put_value(uint32_t slot, int i, int u, int l, int k, uint4 v) {
    sts128(slot + ((2 * i + u) * D + k * (D / 4) + l) * 16, v);
}

// Zeros in place of tokens of instruction i that were never written, which may hold NaN.
__device__ __forceinline__ void clear_unwritten(uint64_t written, int i, uint4 (&x)[4][2]) {
#pragma unroll
    for (int q = 0; q < 4; q++) {
        const uint32_t four = (uint32_t)(written >> (i / 2 * 32 + 8 * q + i % 2 * 4)),
                       lo = half_mask(four & 1, four & 2), hi = half_mask(four & 4, four & 8);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            x[q][j].x &= lo;
            x[q][j].y &= hi;
            x[q][j].z &= lo;
            x[q][j].w &= hi;
        }
    }
}

// An exact V tile. written: tokens that were written, as bits.
template <int D, class Wait>
__device__ __forceinline__ void widen_values_exact(const uint8_t *tile, uint64_t written,
                                                   uint32_t slot, Wait wait) {
    const int thread = threadIdx.x % GROUP;
    bool waited = false;
#pragma unroll
    for (int unit = 0; unit < VALUE_UNITS<D>; unit++) {
        const int at = thread + unit * GROUP, i = at / (D / 4), l = at % (D / 4);
        uint4 x[4][2]; // [q][two dims each]
        if (at < D) {
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const uint8_t *from = tile + (i / 2 * 8 + 2 * q + i % 2) * 8 * D + l * 16;
                x[q][0] = load128(from);
                x[q][1] = load128(from + 4 * D);
            }
        }
        if (!waited)
            wait();
        waited = true;
        if (at >= D)
            continue;
        if (~written)
            clear_unwritten(written, i, x);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t even[4], odd[4];
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const uint32_t a = word_of(x[q][k / 2], k % 2 * 2),
                               b = word_of(x[q][k / 2], k % 2 * 2 + 1);
                even[q] = even_of(a, b);
                odd[q] = odd_of(a, b);
            }
            put_value<D>(slot, i, 0, l, k, make_uint4(even[0], even[1], even[2], even[3]));
            put_value<D>(slot, i, 1, l, k, make_uint4(odd[0], odd[1], odd[2], odd[3]));
        }
    }
}

// Codes x of dims 2l and 2l + 1 of half j of the columns, widened; high: of their high plane, of
// all quads. s, b: of each quad q.
template <int F, int D>
__device__ __forceinline__ void widen_value_codes(const uint2 (&x)[4][2], const uint2 (&high)[2],
                                                  const uint2 (&s)[4][2], const uint2 (&b)[4][2],
                                                  bool bf, uint64_t written, uint32_t slot, int i,
                                                  int l, int j) {
    constexpr int BITS = bits_of(F);
    const int h = i / 2, c = i % 2;
    uint2 ss[4], bb[4]; // of tokens 0 and 2, 1 and 3 of a quad
#pragma unroll
    for (int q = 0; q < 4; q++) {
        ss[q] = pairs_of(scalars_as_half(s[q][j], bf));
        bb[q] = pairs_of(scalars_as_half(b[q][j], bf));
        if (~written) {
            const uint2 mask = pair_masks((uint32_t)(written >> (32 * h + 8 * q + 4 * c)));
            ss[q] = and_of(ss[q], mask);
            bb[q] = and_of(bb[q], mask);
        }
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t even[4], odd[4];
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const int up = BITS == 8 ? 0 : BITS == 4 ? 4 * c : q % 2 * 4 + 2 * c;
            uint32_t h = 0;
            if constexpr (BITS == 3)
                h = high_bits<BITS>(k ? high[j].y : high[j].x, 2 * q + c);
            widen_planes<BITS, 0>((k ? x[q][j].y : x[q][j].x) >> up, h, ss[q].x, bb[q].x, ss[q].y,
                                  bb[q].y, even[q], odd[q]);
        }
        put_value<D>(slot, i, 0, l, 2 * j + k, make_uint4(even[0], even[1], even[2], even[3]));
        put_value<D>(slot, i, 1, l, 2 * j + k, make_uint4(odd[0], odd[1], odd[2], odd[3]));
    }
}

// The same of an affine tile: scales and biases that were never written become zeros.
template <int F, int D, class Wait>
__device__ __forceinline__ void widen_values_affine(const uint8_t *tile, bool bf, uint64_t written,
                                                    uint32_t slot, Wait wait) {
    constexpr int BITS = bits_of(F), G = dims_of_group(F, D), GROUPS = D / G;
    const int thread = threadIdx.x % GROUP;
    bool waited = false;
#pragma unroll
    for (int unit = 0; unit < VALUE_UNITS<D>; unit++) {
        const int at = thread + unit * GROUP, i = at / (D / 4), l = at % (D / 4), h = i / 2,
                  c = i % 2;
        uint2 x[4][2], s[4][2], b[4][2], high[2] = {}; // [q][two dims each]
        if (at < D) {
            if constexpr (BITS == 3)
#pragma unroll
                for (int j = 0; j < 2; j++)
                    high[j] = load64(tile + 16 * D + h * 4 * D + l * 8 + j * 2 * D);
            const uint8_t *scales = tile + code_bytes_of(F, D) + (32 * h + 4 * c) * 2;
            const int g[2] = {2 * l / G * 128, (D / 2 + 2 * l) / G * 128};
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const int row = BITS == 8   ? 8 * h + 2 * q + c
                                : BITS == 4 ? 4 * h + q
                                            : 2 * h + q / 2;
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    x[q][j] = load64(tile + row * 4 * D + l * 8 + j * 2 * D);
                    s[q][j] = load64(scales + g[j] + q * 16);
                    b[q][j] = load64(scales + GROUPS * 128 + g[j] + q * 16);
                }
            }
        }
        if (!waited)
            wait();
        waited = true;
        if (at >= D)
            continue;
#pragma unroll
        for (int j = 0; j < 2; j++)
            widen_value_codes<F, D>(x, high, s, b, bf, written, slot, i, l, j);
    }
}
