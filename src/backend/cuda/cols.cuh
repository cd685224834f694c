// SPDX-License-Identifier: Apache-2.0
// cols.cuh: one warp, one tile, up to four query heads in the columns of an instruction: what
// decoding with few heads a KV head needs. Codes are the A side: 16 tokens (K) or 16 dims (V) are
// its rows, 4 heads x 2 planes its columns (column 2 * head: high, 2 * head + 1: low), so that a
// lane gets both halves of a dot: lane (r, q) is head q,
//
//     scores    tokens 8r .. 8r + 7 of the tile: chain r of arithmetic.cuh; where V is exact 4
//               tokens of each half
//     outputs   D / 8 dims: of instruction m those of cols_dim(m), and the next
//
// Weights go from the lanes that made them (tokens by r) to those that multiply (tokens by q)
// through 512 bytes of shared memory a warp. Exact pages have no second plane: odd columns are
// zero.
#pragma once

#include "backend/cuda/stream.cuh"

enum { EXCHANGE_BYTES = 512 };

// Dims of output instruction m: this one and the next. MAP 64 reads 32 bytes of a row at a time,
// which costs fewer bank conflicts, but needs groups of 64.
template <int MAP> __device__ __forceinline__ int cols_dim(int m, int r) {
    return MAP == 64 ? 64 * (m / 4) + 8 * r + 2 * (m & 3) : 32 * (m / 2) + 4 * r + 2 * (m & 1);
}

// Four heads of queries, packed, in shared memory. HALVES: exact types that pages may have.
template <int D, int HALVES> struct ColsQuery {
    int8_t planes[8][D];                                   // [2 * head + plane]
    float unit[4], exact_unit[4];                          // of a head
    int sum32[4][D / 32];                                  // codes of 32 dims
    uint16_t half[HALVES ? HALVES : 1][4][HALVES ? D : 1]; // [type][head]
};

// What a lane knows of its head's query while it goes over affine pages.
template <int D> struct ColsCodes {
    uint32_t b[D / 32][2]; // column r: dims 32 k + 8 q .. + 3, .. + 7
    float sum32[D / 32];
    float unit, exact_unit;
};

struct Lane {
    int r, q;
    // The lane's 8 tokens are two quads of the tile's 16: 2r and 2r + 1, or where V is exact
    // half_quad(r) of each half.
    int quad[2];
};
__device__ __forceinline__ Lane lane_of(int lane, bool halves) {
    const int r = lane / 4, first = halves ? half_quad(r) : 2 * r;
    return {r, lane % 4, {first, halves ? first + 8 : first + 1}};
}
// Scales or biases of the lane's tokens, and codes of four dims (16 bytes a quad).
template <bool ADJACENT> __device__ __forceinline__ uint4 cols_scalars(uint32_t at, const Lane &l) {
    if (ADJACENT)
        return lds128(at + l.r * 16);
    const uint2 a = lds64(at + l.quad[0] * 8), b = lds64(at + l.quad[1] * 8);
    return make_uint4(a.x, a.y, b.x, b.y);
}
template <bool ADJACENT>
__device__ __forceinline__ void cols_codes(uint32_t at, const Lane &l, uint4 &a, uint4 &b) {
    if (ADJACENT)
        lds_pair(at + l.r * 32, l.q & 1, a, b);
    else
        lds_two(at + l.quad[0] * 16, at + l.quad[1] * 16, l.q & 1, a, b);
}

// The sum of a query's codes over group g, exact (integers below 2^24).
template <int D, int G> __device__ __forceinline__ float sum_of_group(const float *sum32, int g) {
    return G == 64 ? sum32[2 * g] + sum32[2 * g + 1] : sum32[g];
}

// Adds a finished group's part to the scores of tokens 8r .. 8r + 7.
__device__ __forceinline__ void cols_group(const int (&dot)[4][4], const uint4 &s4, const uint4 &b4,
                                           bool bf, float sum, float (&out)[8]) {
    float s[8], b[8];
    scalars8(s4, bf, s);
    scalars8(b4, bf, b);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        out[j] = fmaf(s[j], dot_of(dot[j / 2][j % 2 * 2], dot[j / 2][j % 2 * 2 + 1]), out[j]);
        out[j] = fmaf(b[j], sum, out[j]);
    }
}

// Raw scores of the lane's tokens. ADJACENT: its quads are always 2r and 2r + 1.
template <int F, int D, bool ADJACENT, class Ring>
__device__ __forceinline__ void
cols_scores_affine(Ring &ring, const Lane &l, const ColsCodes<D> &query, bool bf, float (&out)[8]) {
    constexpr int G = dims_of_group(F), GROUPS = D / G, CHUNKS = chunks_of(F),
                  STEPS = D / 32 / CHUNKS; // of 32 dims, a chunk
    constexpr int EARLY = D / CHUNKS / G;  // groups that the first chunk completes
    uint4 late_s[GROUPS - EARLY + 1], late_b[GROUPS - EARLY + 1]; // of the other groups
    int dot[4][4];
#pragma unroll
    for (int j = 0; j < 8; j++)
        out[j] = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const uint32_t codes = ring.wait(), scales = codes + Ring::SCALES;
        if (c == 0 && CHUNKS > 1) {
#pragma unroll
            for (int g = EARLY; g < GROUPS; g++) {
                late_s[g - EARLY] = cols_scalars<ADJACENT>(scales + g * 128, l);
                late_b[g - EARLY] = cols_scalars<ADJACENT>(scales + (GROUPS + g) * 128, l);
            }
        }
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const int k = c * STEPS + i, g = k * 32 / G;
            if (k * 32 % G == 0) {
#pragma unroll
                for (int m = 0; m < 4; m++)
                    dot[m][0] = dot[m][1] = dot[m][2] = dot[m][3] = 0;
            }
            uint4 x[2], y[2]; // dims of quads 2q and 2q + 1 of the 32
            if constexpr (bits_of(F) == 8) {
                cols_codes<ADJACENT>(codes + (8 * i + 2 * l.q) * 256, l, x[0], x[1]);
                cols_codes<ADJACENT>(codes + (8 * i + 2 * l.q + 1) * 256, l, y[0], y[1]);
            } else {
                cols_codes<ADJACENT>(codes + (4 * i + l.q) * 256, l, x[0], x[1]);
            }
#pragma unroll
            for (int m = 0; m < 4; m++) { // the lane's tokens 2m and 2m + 1
                uint32_t a[4], u = word_of(x[m / 2], m % 2 * 2),
                               v = word_of(x[m / 2], m % 2 * 2 + 1);
                if constexpr (bits_of(F) == 8) {
                    a[0] = u;
                    a[1] = v;
                    a[2] = word_of(y[m / 2], m % 2 * 2);
                    a[3] = word_of(y[m / 2], m % 2 * 2 + 1);
                } else {
                    a[0] = u & 0x0f0f0f0fu;
                    a[1] = v & 0x0f0f0f0fu;
                    a[2] = u >> 4 & 0x0f0f0f0fu;
                    a[3] = v >> 4 & 0x0f0f0f0fu;
                }
                mma_u8s8(dot[m], a, query.b[k][0], query.b[k][1]);
            }
            if ((k + 1) * 32 % G == 0) {
                const bool late = CHUNKS > 1 && g >= EARLY;
                cols_group(dot,
                           late ? late_s[late ? g - EARLY : 0]
                                : cols_scalars<ADJACENT>(scales + g * 128, l),
                           late ? late_b[late ? g - EARLY : 0]
                                : cols_scalars<ADJACENT>(scales + (GROUPS + g) * 128, l),
                           bf, sum_of_group<D, G>(query.sum32, g), out);
            }
        }
        ring.release();
    }
}

// query [4 heads][D] of the page's type
template <int F, int D, class Ring>
__device__ __forceinline__ void cols_scores_exact(Ring &ring, const Lane &l, const uint16_t *query,
                                                  float (&out)[8]) {
    const int odd = l.q & 1;
    const uint16_t *row = query + l.r / 2 * D;
    float d[4][4] = {};
    for (int c = 0; c < 4; c++) {
        const uint32_t codes = ring.wait();
#pragma unroll
        for (int i = 0; i < D / 64; i++) { // 16 dims: quad q of four
            uint4 x[4];                    // two tokens each
            lds_pair(codes + (4 * i + l.q) * 512 + l.quad[0] * 32, odd, x[0], x[1]);
            lds_pair(codes + (4 * i + l.q) * 512 + l.quad[1] * 32, odd, x[2], x[3]);
            uint2 b = *(const uint2 *)(row + c * (D / 4) + 16 * i + 4 * l.q);
            if (l.r & 1)
                b.x = b.y = 0;
#pragma unroll
            for (int m = 0; m < 4; m++) {
                const uint32_t a[4] = {x[m].x, x[m].z, x[m].y, x[m].w};
                mma_half<F == BF16>(d[m], a, b.x, b.y);
            }
        }
        ring.release();
    }
#pragma unroll
    for (int m = 0; m < 4; m++) {
        out[2 * m] = d[m][0];
        out[2 * m + 1] = d[m][2];
    }
}

// Codes of the weights of one group, exchanged: b[h] are column r's for quads 8h + 2q and + 1.
// Returns their unit. s, b: scales and biases of tokens 8r .. 8r + 7.
__device__ __forceinline__ float cols_weigh(uint32_t exchange, Lane l, const float (&p)[8],
                                            const float (&s)[8], uint2 (&b)[2]) {
    float w[8], top = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        w[j] = p[j] * s[j];
        top = fmaxf(top, fabsf(w[j]));
    }
#pragma unroll
    for (int i = 4; i < 32; i *= 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
    const WeightUnit u = weight_unit(top);
    uint32_t high[2], low[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t c[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            c[j] = weight_code(w[4 * i + j], u.per_unit);
        planes_of(c, high[i], low[i]);
    }
    // [plane][head][8 units of two quads], units turned so that no two lanes meet in a bank
    const int turn = l.q / 2 * 4;
    __syncwarp();
    sts64(exchange + l.q * 64 + (l.r ^ turn) * 8, high[0], high[1]);
    sts64(exchange + 256 + l.q * 64 + (l.r ^ turn ^ 4) * 8, low[0], low[1]);
    __syncwarp();
    const int head = l.r / 2, plane = l.r & 1, back = head / 2 * 4 ^ plane * 4;
#pragma unroll
    for (int h = 0; h < 2; h++)
        b[h] = lds64(exchange + plane * 256 + head * 64 + ((4 * h + l.q) ^ back) * 8);
    return u.unit;
}

// Instructions of group g over half h of the tile's tokens (both halves: 4 and 2 bits).
template <int F, int D, int MAP, int H>
__device__ __forceinline__ void cols_group_dots(uint32_t codes, Lane l, int g, const uint2 &b,
                                                int (*dot)[4]) {
    constexpr int G = dims_of_group(F);
    const int odd = l.q & 1;
    // the row of quads 2q and 2q + 1
    const uint32_t row = bits_of(F) == 8   ? codes + 2 * l.q * 4 * D
                         : bits_of(F) == 4 ? codes + (4 * H + l.q) * 4 * D
                                           : codes + (2 * H + l.q / 2) * 4 * D;
    uint4 x[G / 32], y[G / 32]; // each is 4 dims of a lane, of two instructions
    if constexpr (MAP == 64) {
        static_assert(G == 64, "a lane's dims are those of one group");
        const uint32_t at = row + g * 256 + l.r * 32;
        lds_pair(at, odd, x[0], x[1]);
        if (bits_of(F) == 8)
            lds_pair(at + 4 * D, odd, y[0], y[1]);
    } else {
#pragma unroll
        for (int i = 0; i < G / 32; i++) {
            const uint32_t at = row + (g * G + i * 32) * 4 + l.r * 16;
            x[i] = lds128(at);
            if (bits_of(F) == 8)
                y[i] = lds128(at + 4 * D);
        }
    }
#pragma unroll
    for (int i = 0; i < G / 32; i++) {
#pragma unroll
        for (int m = 0; m < 2; m++) {
            uint32_t a[4], u = word_of(x[i], 2 * m), v = word_of(x[i], 2 * m + 1);
            if constexpr (bits_of(F) == 8) {
                a[0] = u;
                a[1] = v;
                a[2] = word_of(y[i], 2 * m);
                a[3] = word_of(y[i], 2 * m + 1);
            } else if constexpr (bits_of(F) == 4) {
                a[0] = u & 0x0f0f0f0fu;
                a[1] = v & 0x0f0f0f0fu;
                a[2] = u >> 4 & 0x0f0f0f0fu;
                a[3] = v >> 4 & 0x0f0f0f0fu;
            } else {
                const int shift = odd * 4;
                a[0] = u >> shift & 0x03030303u;
                a[1] = v >> shift & 0x03030303u;
                a[2] = u >> (shift + 2) & 0x03030303u;
                a[3] = v >> (shift + 2) & 0x03030303u;
            }
            mma_u8s8(dot[2 * i + m], a, b.x, b.y);
        }
    }
}

// masked: some weights are 0 because the query does not see the token; its slot may hold NaN.
// bias [D / BG] for groups of BG dims.
template <int F, int D, int MAP, int BG, class Ring>
__device__ __forceinline__ void cols_values_affine(Ring &ring, uint32_t exchange, Lane l,
                                                   const float (&p)[8], bool masked, bool bf,
                                                   float (&acc)[D / 16][2], float (&bias)[D / BG]) {
    constexpr int G = dims_of_group(F), GROUPS = D / G, M = G / 16;
    constexpr bool HALVES = bits_of(F) == 8;
    int dot[HALVES ? D / 16 : M][4];
    uint2 later[GROUPS];
    float unit[GROUPS];
    uint32_t codes = ring.wait();
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        float s[8], b[8];
        scalars8(lds128(codes + Ring::SCALES + g * 128 + l.r * 16), bf, s);
        scalars8(lds128(codes + Ring::SCALES + (GROUPS + g) * 128 + l.r * 16), bf, b);
        if (masked) {
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (p[j] == 0)
                    s[j] = b[j] = 0;
        }
#pragma unroll
        for (int i = 0; i < G / BG; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                bias[g * (G / BG) + i] = fmaf(p[j], b[j], bias[g * (G / BG) + i]);
        uint2 w[2];
        unit[g] = cols_weigh(exchange, l, p, s, w);
        int(*d)[4] = dot + (HALVES ? g * M : 0);
#pragma unroll
        for (int m = 0; m < M; m++)
            d[m][0] = d[m][1] = d[m][2] = d[m][3] = 0;
        cols_group_dots<F, D, MAP, 0>(codes, l, g, w[0], d);
        if constexpr (HALVES) {
            later[g] = w[1];
        } else {
            cols_group_dots<F, D, MAP, 1>(codes, l, g, w[1], d);
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int j = 0; j < 2; j++)
                    acc[g * M + m][j] =
                        fmaf(unit[g], dot_of(d[m][2 * j], d[m][2 * j + 1]), acc[g * M + m][j]);
        }
    }
    ring.release();
    if constexpr (HALVES) {
        codes = ring.wait();
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            int(*d)[4] = dot + g * M;
            cols_group_dots<F, D, MAP, 1>(codes, l, g, later[g], d);
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int j = 0; j < 2; j++)
                    acc[g * M + m][j] =
                        fmaf(unit[g], dot_of(d[m][2 * j], d[m][2 * j + 1]), acc[g * M + m][j]);
        }
        ring.release();
    }
}

// Half h of the tile. p: of the lane's four tokens of it, quad half_quad(r). seen: bit j is set
// where the query sees token j of the tile; slots of the others may hold NaN.
template <int F, int D, class Ring>
__device__ __forceinline__ void cols_values_exact(Ring &ring, uint32_t exchange, const Lane &l,
                                                  int h, const float *p, uint64_t seen,
                                                  float (&acc)[D / 16][2]) {
    constexpr bool BF = F == BF16;
    const int odd = l.q & 1;
    __syncwarp();
    sts64(exchange + l.q * 64 + half_quad(l.r) * 8, pack_half2<BF>(p[0], p[1]),
          pack_half2<BF>(p[2], p[3]));
    __syncwarp();
#pragma unroll
    for (int c = 0; c < 2; c++) { // 16 tokens: quad 2q + c
        const int first = 8 * l.q + 4 * c;
        uint2 b = lds64(exchange + l.r / 2 * 64 + first * 2);
        if (l.r & 1)
            b.x = b.y = 0;
        const uint32_t four = (uint32_t)(seen >> (32 * h + first));
        const uint32_t lo = (four & 1 ? 0xffffu : 0) | (four & 2 ? 0xffff0000u : 0),
                       hi = (four & 4 ? 0xffffu : 0) | (four & 8 ? 0xffff0000u : 0);
        const uint32_t codes = ring.wait();
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            uint4 x[2];
            lds_pair(codes + l.q * 8 * D + i * 256 + l.r * 32, odd, x[0], x[1]);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t a[4] = {x[j].x & lo, x[j].z & lo, x[j].y & hi, x[j].w & hi};
                float d[4] = {acc[2 * i + j][0], 0, acc[2 * i + j][1], 0};
                mma_half<BF>(d, a, b.x, b.y);
                acc[2 * i + j][0] = d[0];
                acc[2 * i + j][1] = d[2];
            }
        }
        ring.release();
    }
}

// ---- softmax ---------------------------------------------------------------------------------

// Raw scores of a part (tile or half) become p. Returns what all so far is multiplied with.
template <int N>
__device__ __forceinline__ float cols_softmax(float *p, float unit, float &max, float &sum) {
    float m = p[0];
#pragma unroll
    for (int j = 1; j < N; j++)
        m = fmaxf(m, p[j]);
#pragma unroll
    for (int j = 4; j < 32; j *= 2)
        m = fmaxf(m, __shfl_xor_sync(~0u, m, j));
    const float alpha = move_max(max, m * unit), from = finite_max(max) - WEIGHT_SHIFT;
    sum *= alpha;
#pragma unroll
    for (int j = 0; j < N; j++) {
        p[j] = exp2_fast(fmaf(p[j], unit, -from));
        sum += p[j];
    }
    return alpha;
}
