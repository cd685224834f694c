// SPDX-License-Identifier: Apache-2.0
// rows.cuh: one warp, one tile, 16 or 32 query rows in the rows of an instruction: prefill, and
// decoding with more than four heads a KV head. Queries and weights are the A side (two planes of
// 16 rows; exact pages: one, of 16 or 32 rows), codes the B side: 8 tokens (K) or 8 dims (V).
//
// A lane (r, q) has rows r and r + 8 of each 16. Which token or dim a column stands for is free:
// column c of instruction t is token 4c + t of a half tile, so that what a lane gets of four
// instructions are tokens 8q .. 8q + 7 of rows r, r + 8 (chains q and 4 + q of arithmetic.cuh),
// exactly what it needs as A registers for the values: nothing is exchanged. Dims likewise.
//
//     scores   [row of lane][8 h + i]             token 32h + 8q + i of half tile h
//     outputs  [block of 32 dims][t][column]      dim 32 block + 8q + 4 (column % 2) + t,
//                                                 row r + 8 (column / 2)
#pragma once

#include "backend/cuda/stream.cuh"

// ROWS packed query rows (in decode.cu those of a block, in prefill.cu those of one as well).
HD constexpr int halves_of(uint32_t formats) {
    return (formats >> F16 & 1) + (formats >> BF16 & 1);
}
HD constexpr bool has_codes(uint32_t formats) {
    return (formats & ~EXACT_FORMATS) != 0;
}
// Planes and halves stand as a lane reads them: 16 bytes, the four A registers of rows r and r + 8.
template <int D, uint32_t KF, int ROWS> struct RowsQuery {
    // [16 rows][plane][32 dims][lane][dims of quad 2q: r, r + 8; of 2q + 1: r, r + 8][4]
    alignas(16) int8_t planes[has_codes(KF) ? ROWS / 16 : 1][has_codes(KF) ? 32 * D : 1];
    // [type][16 rows][16 dims][lane][dims 0, 1 of quad q: r, r + 8; 2, 3: r, r + 8][2]
    alignas(16) uint16_t half[halves_of(KF) ? halves_of(KF) : 1][halves_of(KF) ? ROWS / 16 : 1]
                             [halves_of(KF) ? 16 * D : 1];
    alignas(16) int sum32[has_codes(KF) ? ROWS : 1][D / 32]; // codes of 32 dims
    float unit[ROWS], exact_unit[ROWS];
};

// Packs row i of the queries, or zeros; by a warp.
template <int D, uint32_t KF, int ROWS>
__device__ __forceinline__ void rows_pack(const float *q, float scale, int i, bool some,
                                          RowsQuery<D, KF, ROWS> &to) {
    constexpr int N = D / 32;
    const int lane = threadIdx.x % 32, block = i / 16, r = i % 8, i8 = i / 8 % 2;
    PackedRow<D> p = {};
    if (some)
        pack_row<D>(q, scale, p);
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int dim = lane * N + j;
        if constexpr (has_codes(KF)) {
            const int quad = dim % 32 / 4, at = dim / 32 * 512 + (r * 4 + quad / 2) * 16 +
                                                (quad % 2 * 2 + i8) * 4 + dim % 4;
            to.planes[block][at] = high_of(p.code[j]);
            to.planes[block][16 * D + at] = low_of(p.code[j]);
        }
        const int at =
            dim / 16 * 256 + (r * 4 + dim % 16 / 4) * 8 + (dim % 4 / 2 * 2 + i8) * 2 + dim % 2;
        if constexpr (KF & bit(F16))
            to.half[0][block][at] = (uint16_t)pack_half2<false>(p.x[j], 0);
        if constexpr (KF & bit(BF16))
            to.half[halves_of(KF) - 1][block][at] = (uint16_t)pack_half2<true>(p.x[j], 0);
    }
    if (has_codes(KF) && lane % (1024 / D) == 0)
        to.sum32[i][lane * D / 1024] = p.sum32;
    if (lane == 0) {
        to.unit[i] = some ? p.unit : 1.f;
        to.exact_unit[i] = some ? p.exact_unit : 1.f;
    }
}

// Sums of a lane's rows first + r and first + r + 8.
template <int D, uint32_t KF, int ROWS>
__device__ __forceinline__ void rows_sums(const RowsQuery<D, KF, ROWS> &query, int row,
                                          float (&sum32)[2][D / 32]) {
    if constexpr (has_codes(KF))
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int k = 0; k < D / 32; k++)
                sum32[i][k] = (float)query.sum32[row + 8 * i][k];
}

// A lane's rows r + 8 i of a 16 (or 32) and what goes along with them.
template <int M> struct RowState { // M: 16s of rows
    float max[M][2];
    float sum[M][2][2]; // [row]: chains q and 4 + q
};

// ---- affine ----------------------------------------------------------------------------------

// Four A registers at once.
__device__ __forceinline__ void lds_a(uint32_t at, uint32_t (&a)[4]) {
    const uint4 v = lds128(at);
    a[0] = v.x;
    a[1] = v.y;
    a[2] = v.z;
    a[3] = v.w;
}

template <int F>
__device__ __forceinline__ void unpack_b(const uint4 &x, const uint4 &y, int t, int shift,
                                         uint32_t &b0, uint32_t &b1) {
    const uint32_t w = word_of(x, t);
    if (bits_of(F) == 8) {
        b0 = w;
        b1 = word_of(y, t);
    } else if (bits_of(F) == 4) {
        b0 = w & 0x0f0f0f0fu;
        b1 = w >> 4 & 0x0f0f0f0fu;
    } else {
        b0 = w >> shift & 0x03030303u;
        b1 = w >> (shift + 2) & 0x03030303u;
    }
}

// codes[c]: chunks of the tile, scales: of the first; planes: of the warp's 16 rows. s: raw scores.
template <int F, int D>
__device__ __forceinline__ void
rows_scores_affine(const uint32_t (&codes)[2], uint32_t scales, int r, int q, uint32_t planes,
                   const float (&sum32)[2][D / 32], bool bf, float (&s)[2][16]) {
    constexpr int G = dims_of_group(F), GROUPS = D / G, STEPS = G / 32, CHUNK = D / chunks_of(F);
#pragma unroll
    for (int j = 0; j < 16; j++)
        s[0][j] = s[1][j] = 0;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        uint32_t high[STEPS][4], low[STEPS][4];
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const uint32_t at = planes + (g * STEPS + i) * 512 + (r * 4 + q) * 16;
            lds_a(at, high[i]);
            lds_a(at + 16 * D, low[i]);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int hi[4][4] = {}, lo[4][4] = {};
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                const int dim = g * G + i * 32, c = dim / CHUNK, k = dim % CHUNK / 32;
                uint4 x, y;
                if constexpr (bits_of(F) == 8) {
                    const uint32_t at =
                        codes[c] + spread_row<F, true>(8 * k + 2 * q, D) + h * 128 + r * 16;
                    x = lds128(at);
                    y = lds128(at + spread_row<F, true>(1, D));
                } else {
                    x = lds128(codes[c] + spread_row<F, true>(4 * k + q, D) + h * 128 + r * 16);
                }
#pragma unroll
                for (int t = 0; t < 4; t++) {
                    uint32_t b0, b1;
                    unpack_b<F>(x, y, t, 0, b0, b1);
                    mma_s8u8(hi[t], high[i], b0, b1);
                    mma_s8u8(lo[t], low[i], b0, b1);
                }
            }
            float sc[8], bi[8];
            scalars8(lds128(scales + g * 128 + h * 64 + q * 16), bf, sc);
            scalars8(lds128(scales + (GROUPS + g) * 128 + h * 64 + q * 16), bf, bi);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float sum = G == 64 ? sum32[i][2 * g] + sum32[i][2 * g + 1] : sum32[i][g];
#pragma unroll
                for (int j = 0; j < 8; j++) { // token 8q + j: instruction j % 4, column 2q + j / 4
                    const int d = 2 * i + j / 4;
                    float v = fmaf(sc[j], dot_of(hi[j % 4][d], lo[j % 4][d]), s[i][8 * h + j]);
                    s[i][8 * h + j] = fmaf(bi[j], sum, v);
                }
            }
        }
    }
}

// p: weights. seen: bit t is set where token t was written (others may hold NaN).
// bias [row][D / BG][half]
template <int F, int D, int BG>
__device__ __forceinline__ void rows_values_affine(const uint32_t (&codes)[2], uint32_t scales,
                                                   int r, int q, const float (&p)[2][16],
                                                   uint64_t seen, bool bf, float (&o)[D / 32][4][4],
                                                   float (&bias)[2][D / BG][2]) {
    constexpr int G = dims_of_group(F), GROUPS = D / G;
    const int shift = (q & 1) * 4; // 2 bits
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        float w[2][2][8], top[2] = {0, 0};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float s[8], b[8];
            scalars8(lds128(scales + g * 128 + h * 64 + q * 16), bf, s);
            scalars8(lds128(scales + (GROUPS + g) * 128 + h * 64 + q * 16), bf, b);
            if (~seen) {
#pragma unroll
                for (int j = 0; j < 8; j++)
                    if (!(seen >> (32 * h + 8 * q + j) & 1))
                        s[j] = b[j] = 0;
            }
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    w[i][h][j] = p[i][8 * h + j] * s[j];
                    top[i] = fmaxf(top[i], fabsf(w[i][h][j]));
#pragma unroll
                    for (int k = 0; k < G / BG; k++)
                        bias[i][g * (G / BG) + k][h] =
                            fmaf(p[i][8 * h + j], b[j], bias[i][g * (G / BG) + k][h]);
                }
        }
        uint32_t high[2][4], low[2][4]; // [half] A registers
        float unit[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], 1));
            top[i] = fmaxf(top[i], __shfl_xor_sync(~0u, top[i], 2));
            const WeightUnit u = weight_unit(top[i]);
            unit[i] = u.unit;
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int f = 0; f < 2; f++) {
                    uint32_t c[4];
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        c[j] = weight_code(w[i][h][4 * f + j], u.per_unit);
                    planes_of(c, high[h][2 * f + i], low[h][2 * f + i]);
                }
        }
#pragma unroll
        for (int k = 0; k < G / 32; k++) {
            const int block = g * (G / 32) + k;
            int hi[4][4] = {}, lo[4][4] = {};
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint4 x, y;
                if constexpr (bits_of(F) == 8) {
                    const uint32_t at =
                        codes[h] + spread_row<F, false>(2 * q, D) + block * 128 + r * 16;
                    x = lds128(at);
                    y = lds128(at + spread_row<F, false>(1, D));
                } else if constexpr (bits_of(F) == 4) {
                    x = lds128(codes[0] + spread_row<F, false>(4 * h + q, D) + block * 128 +
                               r * 16);
                } else {
                    x = lds128(codes[0] + spread_row<F, false>(2 * h + q / 2, D) + block * 128 +
                               r * 16);
                }
#pragma unroll
                for (int t = 0; t < 4; t++) {
                    uint32_t b0, b1;
                    unpack_b<F>(x, y, t, shift, b0, b1);
                    mma_s8u8(hi[t], high[h], b0, b1);
                    mma_s8u8(lo[t], low[h], b0, b1);
                }
            }
#pragma unroll
            for (int t = 0; t < 4; t++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    o[block][t][c] = fmaf(unit[c / 2], dot_of(hi[t][c], lo[t][c]), o[block][t][c]);
        }
    }
}

// ---- exact -----------------------------------------------------------------------------------

// One chunk of K, half c of the dims of half a tile. s [16s of rows][t][column], sums so far.
// query: shared memory, the warp's rows.
template <int F, int D, int M>
__device__ __forceinline__ void rows_scores_exact(uint32_t codes, int c, int r, int q,
                                                  uint32_t query, float (&s)[M][4][4]) {
#pragma unroll
    for (int k = 0; k < D / 32; k++) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            lds_a(query + m * 32 * D + (c * (D / 32) + k) * 512 + (r * 4 + q) * 16, a[m]);
        const uint32_t row = codes + spread_row<F, true>(4 * k + q, D) + r * 32;
#pragma unroll
        for (int t = 0; t < 4; t += 2) {
            const uint4 x = lds128(row + t * 8); // tokens 4r + t, 4r + t + 1
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_half<F == BF16>(s[m][t], a[m], x.x, x.y);
                mma_half<F == BF16>(s[m][t + 1], a[m], x.z, x.w);
            }
        }
    }
}

// The sums as scores stand: s[first + 0 .. 7].
template <int M, int N>
__device__ __forceinline__ void rows_scores_take(const float (&d)[M][4][4], float (&s)[M][2][N],
                                                 int first) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int t = 0; t < 4; t++)
#pragma unroll
            for (int c = 0; c < 4; c++) // column 2q + c % 2, row r + 8 (c / 2)
                s[m][c / 2][first + c % 2 * 4 + t] = d[m][t][c];
}

// One chunk of V: 16 tokens, quad 2q + c of half h. CLEAN: what was not seen is made zero.
template <int F, int D, int M, bool CLEAN>
__device__ __forceinline__ void rows_values_exact(uint32_t codes, int h, int c, int r, int q,
                                                  const float (&p)[M][2][8], uint64_t seen,
                                                  float (&o)[M][D / 32][4][4]) {
    constexpr bool BF = F == BF16;
    const int f = c * 4;
    uint32_t a[M][4];
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            a[m][i] = pack_half2<BF>(p[m][i][f], p[m][i][f + 1]);
            a[m][2 + i] = pack_half2<BF>(p[m][i][f + 2], p[m][i][f + 3]);
        }
    const uint32_t row = codes + spread_row<F, false>(q, D) + r * 32;
    const uint32_t four = CLEAN ? (uint32_t)(seen >> (32 * h + 8 * q + f)) : 15;
    const uint32_t lo_mask = (four & 1 ? 0xffffu : 0) | (four & 2 ? 0xffff0000u : 0),
                   hi_mask = (four & 4 ? 0xffffu : 0) | (four & 8 ? 0xffff0000u : 0);
#pragma unroll
    for (int block = 0; block < D / 32; block++)
#pragma unroll
        for (int t = 0; t < 4; t += 2) {
            uint4 x = lds128(row + block * 256 + t * 8); // dims 4r + t, 4r + t + 1
            if (CLEAN) {
                x.x &= lo_mask;
                x.y &= hi_mask;
                x.z &= lo_mask;
                x.w &= hi_mask;
            }
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_half<BF>(o[m][block][t], a[m], x.x, x.y);
                mma_half<BF>(o[m][block][t + 1], a[m], x.z, x.w);
            }
        }
}

// ---- softmax ---------------------------------------------------------------------------------

// Raw scores of a part (tile: N is 16, half: 8) become p. alpha: what all so far is multiplied
// with.
template <int M, int N>
__device__ __forceinline__ void rows_softmax(float (&s)[M][2][N], const float (&unit)[M][2],
                                             RowState<M> &state, float (&alpha)[M][2]) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float top = s[m][i][0];
#pragma unroll
            for (int j = 1; j < N; j++)
                top = fmaxf(top, s[m][i][j]);
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            alpha[m][i] = move_max(state.max[m][i], top * unit[m][i]);
            const float from = finite_max(state.max[m][i]) - WEIGHT_SHIFT;
#pragma unroll
            for (int x = 0; x < 2; x++) {
                state.sum[m][i][x] *= alpha[m][i];
#pragma unroll
                for (int j = x * (N / 2); j < (x + 1) * (N / 2); j++) {
                    s[m][i][j] = exp2_fast(fmaf(s[m][i][j], unit[m][i], -from));
                    state.sum[m][i][x] += s[m][i][j];
                }
            }
        }
}
// What the maxima's move costs outputs and biases; nothing where no row's moved.
template <int D, int M, int BIASES>
__device__ __forceinline__ void
rows_rescale(const float (&alpha)[M][2], float (&o)[M][D / 32][4][4], float (&bias)[2][BIASES][2]) {
    bool moved = false;
#pragma unroll
    for (int m = 0; m < M; m++)
        moved |= alpha[m][0] != 1 || alpha[m][1] != 1;
    if (!__any_sync(~0u, moved))
        return;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int k = 0; k < D / 32; k++)
#pragma unroll
            for (int t = 0; t < 4; t++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    o[m][k][t][c] *= alpha[m][c / 2];
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int k = 0; k < BIASES; k++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                bias[i][k][h] *= alpha[0][i];
}
// The 8 chains of a row in one tree.
__device__ __forceinline__ float rows_tree(float low, float high) {
    low += __shfl_xor_sync(~0u, low, 1);
    high += __shfl_xor_sync(~0u, high, 1);
    low += __shfl_xor_sync(~0u, low, 2);
    high += __shfl_xor_sync(~0u, high, 2);
    return low + high;
}
