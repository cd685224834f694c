// SPDX-License-Identifier: Apache-2.0
// cols.cuh: one warp, one tile, up to 16 query heads in the columns of an instruction: decoding. K
// and V are the A side: 16 tokens (K) or 16 dims (V) are its rows. A lane (r, q) has
//
//     scores    tokens 8r .. 8r + 7 of the tile: chain r of arithmetic.cuh, of each of its heads
//     outputs   D / 8 dims of each head: of instruction m those of cols_dim(m), and the next
//
// Its H heads (H x 4 are all) are those of columns 2q and 2q + 1:
//
//     H    column                        instructions
//     1    2 head; odd ones are zero     one
//     2    head                          one
//     4    head, head - 8                two, for heads 0 .. 7 and 8 .. 15
//
// Weights go from the lanes that computed them (tokens by r) to those that multiply (tokens by q)
// through shared memory.
#pragma once

#include "backend/cuda/centre.cuh"
#include "backend/cuda/stream.cuh"

template <int H> struct Cols {
    static constexpr int BLOCKS = H == 4 ? 2 : 1; // of 8 columns
    static constexpr int HEADS = 4 * H, COLUMNS = 8 * BLOCKS;
    static constexpr uint32_t EXCHANGE_BYTES = HEADS * TILE_TOKENS * 2; // of a warp
};
// Head i of a lane; the head of a column, -1 if it has none.
template <int H> __device__ __forceinline__ int cols_head(int q, int i) {
    return H == 1 ? q : 8 * (i / 2) + 2 * q + i % 2;
}
template <int H> __device__ __forceinline__ int cols_head_of(int column) {
    return H > 1 ? column : column & 1 ? -1 : column / 2;
}

// Dims of output instruction m: this one and the next. MAP 64 reads 32 bytes of a row at a time,
// which costs fewer bank conflicts, but needs groups of 64.
template <int MAP> __device__ __forceinline__ int cols_dim(int m, int r) {
    return MAP == 64 ? 64 * (m / 4) + 8 * r + 2 * (m & 3) : 32 * (m / 2) + 4 * r + 2 * (m & 1);
}

// ---- queries ---------------------------------------------------------------------------------

// 16-bit types that queries are rounded to for K of these formats: f16 first.
HD constexpr int types_of(uint32_t formats) {
    return ((formats & ~bit(BF16)) != 0) + (formats >> BF16 & 1);
}
HD constexpr int type_of(uint32_t formats, int f) {
    return f == BF16 ? types_of(formats) - 1 : 0;
}

// The B registers of each instruction of 16 dims, in shared memory as lanes read them.
template <int D, uint32_t KF, int H> struct ColsQuery {
    uint2 b[types_of(KF)][D / 16][Cols<H>::BLOCKS][32];
    float unit[Cols<H>::HEADS];
};

// Packs the query of one column, x = q * scale; by a warp.
template <int D, uint32_t KF, int H>
__device__ __forceinline__ void cols_pack(const float (&x)[D / 32], int column,
                                          ColsQuery<D, KF, H> &to) {
    constexpr int N = D / 32;
    const int lane = threadIdx.x % 32, head = cols_head_of<H>(column);
    PackedRow<D> p;
    pack_row<D>(x, p);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int dim = lane * N + i, quad = dim % 32 / 4; // instruction 2k + quad % 2
        auto put = [&](int type, uint32_t value) {
            auto *at = (uint16_t *)&to
                           .b[type][dim / 32 * 2 + quad % 2][column / 8][column % 8 * 4 + quad / 2];
            at[place_in_quad(dim % 4)] = (uint16_t)value;
        };
        if constexpr (KF & ~bit(BF16))
            put(0, pack_half2<false>(p.x[i], 0));
        if constexpr (KF & bit(BF16))
            put(types_of(KF) - 1, pack_half2<true>(p.x[i], 0));
    }
    if (lane == 0 && head >= 0)
        to.unit[head] = p.unit;
}

// ---- scores ----------------------------------------------------------------------------------

// Sums so far: [two tokens of a lane][8 columns]
template <int H> using ColsDots = float[4][Cols<H>::BLOCKS][4];

// Instruction `step` for tokens 8r + 2m and the next.
template <int H, bool BF>
__device__ __forceinline__ void cols_score(float (&d)[Cols<H>::BLOCKS][4], const uint32_t (&a)[4],
                                           const uint2 (&b)[Cols<H>::BLOCKS]) {
#pragma unroll
    for (int n = 0; n < Cols<H>::BLOCKS; n++)
        mma_half<BF>(d[n], a, b[n].x, b[n].y);
}
template <int D, uint32_t KF, int H>
__device__ __forceinline__ void cols_query(const ColsQuery<D, KF, H> &query, int type, int step,
                                           uint2 (&b)[Cols<H>::BLOCKS]) {
#pragma unroll
    for (int n = 0; n < Cols<H>::BLOCKS; n++)
        b[n] = query.b[type][step][n][threadIdx.x % 32];
}

// Raw scores of an affine tile, of the lane's tokens.
template <int F, int D, uint32_t KF, int H, class Ring>
__device__ __forceinline__ void cols_scores_affine(Ring &ring, int r, int q,
                                                   const ColsQuery<D, KF, H> &query, bool bf,
                                                   ColsDots<H> &d) {
    constexpr int G = dims_of_group(F, D), GROUPS = D / G, CHUNKS = chunks_of(F), BITS = bits_of(F),
                  STEPS = D / 32 / CHUNKS, // of 32 dims, a chunk
        AT_ONCE = GROUPS < 4 ? GROUPS : 1; // groups whose scalars are read together
    // Scalars of the lane's 8 tokens. Where they come with the first chunk and are needed with the
    // second, they are read with the first.
    uint4 s[AT_ONCE], b[AT_ONCE], late_s[GROUPS], late_b[GROUPS];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const uint32_t codes = ring.wait(), scales = codes + Ring::SCALES + r * 16;
        if (c == 0 && CHUNKS > 1 && AT_ONCE < GROUPS) {
#pragma unroll
            for (int g = D / CHUNKS / G; g < GROUPS; g++) {
                late_s[g] = lds128(scales + g * 128);
                late_b[g] = lds128(scales + (GROUPS + g) * 128);
            }
        }
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const int k = c * STEPS + i, g = k * 32 / G;
            if (k * 32 % G == 0 && g % AT_ONCE == 0) {
                const bool late = c > 0;
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++) {
                    s[j] = late ? late_s[g + j] : lds128(scales + (g + j) * 128);
                    b[j] = late ? late_b[g + j] : lds128(scales + (GROUPS + g + j) * 128);
                }
                scalars_to_half(s, b, bf);
            }
            uint4 x[2][2]; // quads 2q and 2q + 1 of the 32 dims; of 4 bits one word has both
            if constexpr (BITS == 8) {
                lds_pair(codes + (8 * i + 2 * q) * 256 + r * 32, q & 1, x[0][0], x[0][1]);
                lds_pair(codes + (8 * i + 2 * q + 1) * 256 + r * 32, q & 1, x[1][0], x[1][1]);
            } else {
                lds_pair(codes + (4 * i + q) * 256 + r * 32, q & 1, x[0][0], x[0][1]);
                x[1][0] = x[0][0];
                x[1][1] = x[0][1];
            }
            uint2 query_b[2][Cols<H>::BLOCKS];
            cols_query(query, 0, 2 * k, query_b[0]);
            cols_query(query, 0, 2 * k + 1, query_b[1]);
#pragma unroll
            for (int m = 0; m < 4; m++) { // the lane's tokens 2m and 2m + 1
                const uint32_t sm = word_of(s[g % AT_ONCE], m), bm = word_of(b[g % AT_ONCE], m);
                const uint32_t s0 = twice(sm, 0), s1 = twice(sm, 1), b0 = twice(bm, 0),
                               b1 = twice(bm, 1);
                auto step = [&](auto n) {
                    constexpr int N = decltype(n)::value;
                    const uint32_t u = word_of(x[N][m / 2], m % 2 * 2),
                                   v = word_of(x[N][m / 2], m % 2 * 2 + 1);
                    uint32_t a[4];
                    widen<BITS, BITS == 8 ? 0 : N>(u, s0, b0, s0, b0, a[0], a[2]);
                    widen<BITS, BITS == 8 ? 0 : N>(v, s1, b1, s1, b1, a[1], a[3]);
                    cols_score<H, false>(d[m], a, query_b[N]);
                };
                step(Format<0>());
                step(Format<1>());
            }
        }
        ring.release();
    }
}

// The same of a tile whose scales and biases are those of dims.
template <int F, int D, uint32_t KF, int H, class Ring>
__device__ __forceinline__ void cols_scores_tile(Ring &ring, int r, int q,
                                                 const ColsQuery<D, KF, H> &query, bool bf,
                                                 ColsDots<H> &d) {
    constexpr int BITS = bits_of(F), LOW = low_bits_of(F);
    const uint32_t codes = ring.wait(), scales = codes + scales_of_slot(F, D) + q * 16,
                   high = codes + D * 8 * LOW + r * 32;
#pragma unroll
    for (int k = 0; k < D / 32; k++) {
        uint4 s[1] = {lds128(scales + k * 64)}, b[1] = {lds128(scales + 2 * D + k * 64)};
        scalars_to_half(s, b, bf);
        const uint4 sp = pairs_of(s[0]), bp = pairs_of(b[0]); // quad 2q: even, odd; quad 2q + 1
        uint4 x[2], y[2] = {}; // of tokens 0 .. 3 and 4 .. 7: words of both quads
        lds_pair(codes + (LOW == 4 ? 4 * k + q : 2 * k + q / 2) * 256 + r * 32, q & 1, x[0], x[1]);
        if constexpr (BITS != LOW)
            lds_pair(high + k * 256, q & 1, y[0], y[1]);
        uint2 query_b[2][Cols<H>::BLOCKS];
        cols_query(query, 0, 2 * k, query_b[0]);
        cols_query(query, 0, 2 * k + 1, query_b[1]);
#pragma unroll
        for (int m = 0; m < 4; m++) { // the lane's tokens 2m and 2m + 1
            uint32_t u = word_of(x[m / 2], m % 2 * 2), v = word_of(x[m / 2], m % 2 * 2 + 1), hu = 0,
                     hv = 0;
            if constexpr (LOW == 2) {
                u >>= q % 2 * 4;
                v >>= q % 2 * 4;
            }
            if constexpr (BITS != LOW) {
                hu = high_bits<BITS>(word_of(y[m / 2], m % 2 * 2), 2 * q);
                hv = high_bits<BITS>(word_of(y[m / 2], m % 2 * 2 + 1), 2 * q);
            }
            uint32_t a[4];
            widen_planes<BITS, 0>(u, hu, sp.x, bp.x, sp.y, bp.y, a[0], a[2]);
            widen_planes<BITS, 0>(v, hv, sp.x, bp.x, sp.y, bp.y, a[1], a[3]);
            cols_score<H, false>(d[m], a, query_b[0]);
            widen_planes<BITS, 1>(u, hu, sp.z, bp.z, sp.w, bp.w, a[0], a[2]);
            widen_planes<BITS, 1>(v, hv, sp.z, bp.z, sp.w, bp.w, a[1], a[3]);
            cols_score<H, false>(d[m], a, query_b[1]);
        }
    }
    ring.release();
}

// The same of an exact tile.
template <int F, int D, uint32_t KF, int H, class Ring>
__device__ __forceinline__ void
cols_scores_exact(Ring &ring, int r, int q, const ColsQuery<D, KF, H> &query, ColsDots<H> &d) {
    constexpr int CHUNKS = D == 64 ? 2 : 1; // that hold 32 dims
#pragma unroll 1
    for (int c = 0; c < 4; c += CHUNKS) {
        uint32_t codes = ring.wait();
        if (CHUNKS == 2) { // quads 0 .. 3 of the 32 dims, 4 .. 7
            const uint32_t second = ring.wait(1);
            codes = q < 2 ? codes : second - 4 * 512;
        }
#pragma unroll
        for (int i = 0; i < CHUNKS * D / 64; i++) { // 16 dims
            const int quad = i / 2 * 8 + 2 * q + i % 2;
            uint4 x[4]; // two tokens each
            lds_pair(codes + quad * 512 + r * 64, q & 1, x[0], x[1]);
            lds_pair(codes + quad * 512 + r * 64 + 32, q & 1, x[2], x[3]);
            uint2 b[Cols<H>::BLOCKS];
            cols_query(query, type_of(KF, F), c * (D / 64) + i, b);
#pragma unroll
            for (int n = 0; n < Cols<H>::BLOCKS; n++)
                b[n] = make_uint2(even_of(b[n].x, b[n].y), odd_of(b[n].x, b[n].y));
#pragma unroll
            for (int m = 0; m < 4; m++) {
                const uint32_t a[4] = {x[m].x, x[m].z, x[m].y, x[m].w};
                cols_score<H, F == BF16>(d[m], a, b);
            }
        }
#pragma unroll
        for (int i = 0; i < CHUNKS; i++)
            ring.release();
    }
}

// ---- scores: the centre ----------------------------------------------------------------------

// What of a centre is kept in shared memory, of the block's heads.
template <int H, int PAIRS> struct ColsCentreKept {
    float2 parts[PAIRS][Cols<H>::HEADS]; // centre_parts
    uint32_t pair[PAIRS];                // its index
};

// A centre, as the block's heads meet it; without one there are no pairs.
template <int H> struct ColsCentre {
    const dev_centre &tables;
    CentrePairs pairs;
    centre_pair own; // of this thread, to be kept
    float2 turn;     // of this lane: of tile lane / 8 of the warp's run, pair lane % 8
    const float *q;  // of the first head, in the plain basis
    uint32_t dim, gqa;
    float scale;
    float2 (*parts)[Cols<H>::HEADS];
    uint32_t *pair;

    __device__ __forceinline__ static uint32_t own_pair() { return threadIdx.x / Cols<H>::HEADS; }
    // Reads what does not depend on the kernel before.
    template <int PAIRS>
    __device__ __forceinline__ ColsCentre(const PassArgs &a, uint32_t row, uint32_t head,
                                          uint32_t dims, ColsCentreKept<H, PAIRS> &kept)
        : tables(a.centre), pairs(), own(), turn(),
          q(a.plain + ((size_t)row * a.heads + head * a.gqa) * dims), dim(dims), gqa(a.gqa),
          scale(a.scale), parts(kept.parts), pair(kept.pair) {
        if (PAIRS < CENTRE_PAIRS || !tables.first)
            return;
        pairs = pairs_of(tables, a.layer, a.kv_heads, head);
        if (own_pair() < pairs.count)
            own = pairs.pairs[own_pair()];
    }
    // Reads ahead what is far: waves come near, and the warp has the turns of its run's n tiles,
    // whose numbers are from `first` on. By the block; some warps have no tiles.
    __device__ __forceinline__ void look_ahead(uint32_t first, const uint8_t *numbers, int n) {
        enum { LINES = 2 * TILE_TOKENS * 4 / 128, PAIRS = 8 };
        static_assert(RUN_TILES * PAIRS == 32, "a lane has one");
        const uint32_t lane = threadIdx.x % 32, tile = lane / PAIRS, i = lane % PAIRS;
        if (threadIdx.x / LINES < pairs.count)
            fetch_line(centre_halves_of(tables, pairs.pairs[threadIdx.x / LINES].pair, false) +
                       threadIdx.x % LINES * 32);
        if ((int)tile < n && i < pairs.count)
            turn = centre_turn(tables, first + numbers[tile], pairs.pairs[i].pair);
    }
    __device__ __forceinline__ float2 make(const centre_pair &p, uint32_t head) const {
        return head < gqa ? centre_parts(tables, p, q + head * dim, scale) : make_float2(0, 0);
    }
    // By the block, after the wait and before it meets.
    __device__ __forceinline__ void keep() const {
        const uint32_t i = own_pair(), head = threadIdx.x % Cols<H>::HEADS;
        if (i >= min(pairs.count, (uint32_t)CENTRE_PAIRS))
            return;
        parts[i][head] = make(own, head);
        pair[i] = own.pair;
    }

    // d += what the centre adds to the scores of tile `tile`; in_run: it is that one of the warp's
    // run, or -1: of another.
    __device__ __forceinline__ void add(uint32_t tile, int in_run, int r, int q, const float *unit,
                                        ColsDots<H> &d) const {
#pragma unroll 1
        for (uint32_t first = 0; first < pairs.count; first += 8) {
            uint32_t high[Cols<H>::BLOCKS][2], low[Cols<H>::BLOCKS][2];
            uint4 w[2][2][2]; // [pairs q, 4 + q][high, low parts][four of the lane's tokens]
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const uint32_t i = first + 4 * k + q, last = min(i, pairs.count - 1);
                const uint32_t at = last < CENTRE_PAIRS ? pair[last] : pairs.pairs[last].pair;
                const int lane = in_run * 8 + 4 * k + q;
                const float2 turned = first == 0 && in_run >= 0
                                          ? make_float2(__shfl_sync(~0u, turn.x, lane),
                                                        __shfl_sync(~0u, turn.y, lane))
                                          : centre_turn(tables, tile, at);
#pragma unroll
                for (int part = 0; part < 2; part++) {
                    const auto *from = (const uint4 *)centre_halves_of(tables, at, part) + 2 * r;
                    w[k][part][0] = __ldg(from);
                    w[k][part][1] = __ldg(from + 1);
                }
#pragma unroll
                for (int n = 0; n < Cols<H>::BLOCKS; n++) {
                    const int head = cols_head_of<H>(8 * n + r);
                    CentreHalves ab = {};
                    if (i < pairs.count && head >= 0)
                        ab = centre_query(i < CENTRE_PAIRS ? parts[i][head]
                                                           : make(pairs.pairs[i], head),
                                          turned, unit[head]);
                    high[n][k] = ab.high;
                    low[n][k] = ab.low;
                }
            }
#pragma unroll
            for (int m = 0; m < 4; m++) // the lane's tokens 2m and 2m + 1
#pragma unroll
                for (int part = 0; part < 3; part++) {
                    uint32_t a[4];
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        a[i] = word_of(w[i / 2][part == 1][m / 2], m % 2 * 2 + i % 2);
#pragma unroll
                    for (int n = 0; n < Cols<H>::BLOCKS; n++)
                        mma_half<false>(d[m][n], a, part == 2 ? low[n][0] : high[n][0],
                                        part == 2 ? low[n][1] : high[n][1]);
                }
        }
    }
};

// Raw scores of a tile of any of the formats: p[head of lane][token 8r + j], -inf if the query
// does not see the token. more(d): adds what else a score has.
template <int D, uint32_t KF, int H, class Ring, class More>
__device__ __forceinline__ void cols_scores(Ring &ring, int r, int q,
                                            const ColsQuery<D, KF, H> &query, int format, bool bf,
                                            uint64_t seen, float (&p)[H][8], More more) {
    float d[4][Cols<H>::BLOCKS][4] = {};
    with_format<KF>(format, [&](auto f) {
        constexpr int F = decltype(f)::value;
        if constexpr (exact_of(F))
            cols_scores_exact<F, D, KF, H>(ring, r, q, query, d);
        else if constexpr (tile_of_ranges(F))
            cols_scores_tile<F, D, KF, H>(ring, r, q, query, bf, d);
        else
            cols_scores_affine<F, D, KF, H>(ring, r, q, query, bf, d);
    });
    more(d);
    const uint32_t eight = (uint32_t)(seen >> (8 * r)) & 255;
#pragma unroll
    for (int h = 0; h < H; h++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            p[h][j] = d[j / 2][h / 2][j % 2 * 2 + h % 2];
    if (eight != 255)
#pragma unroll
        for (int h = 0; h < H; h++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (!(eight >> j & 1))
                    p[h][j] = MINUS_INF;
}

// ---- softmax ---------------------------------------------------------------------------------

// What a lane knows of its heads.
template <int H> struct ColsState { float unit[H], top[H], sum[H]; };

// Raw scores of a tile become p; outputs so far follow a maximum that moves.
template <int H, int M>
__device__ __forceinline__ void cols_softmax(ColsState<H> &state, float (&p)[H][8],
                                             float (&out)[M][Cols<H>::BLOCKS][4]) {
    float alpha[H];
    bool moved = false;
#pragma unroll
    for (int h = 0; h < H; h++) {
        float m = p[h][0];
#pragma unroll
        for (int j = 1; j < 8; j++)
            m = fmaxf(m, p[h][j]);
#pragma unroll
        for (int j = 4; j < 32; j *= 2)
            m = fmaxf(m, __shfl_xor_sync(~0u, m, j));
        alpha[h] = move_max(state.top[h], m * state.unit[h]);
        moved |= alpha[h] != 1;
        const float from = finite_max(state.top[h]) - WEIGHT_SHIFT;
        float sum = state.sum[h] * alpha[h];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            p[h][j] = exp2_fast(fmaf(p[h][j], state.unit[h], -from));
            sum += p[h][j];
        }
        state.sum[h] = sum;
    }
    if (__any_sync(~0u, moved)) {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int h = 0; h < H; h++) {
                out[m][h / 2][h % 2] *= alpha[h];
                out[m][h / 2][2 + h % 2] *= alpha[h];
            }
    }
}

// ---- values ----------------------------------------------------------------------------------

// Outputs: [instruction m][block of 8 columns][..]

// Sends weights, in the type of an exact tile or f16 for an affine one, from the lanes that
// computed them to those that multiply. Unit r of a head has tokens 8r .. 8r + 7; the order of
// units is rotated, so that fewer lanes access the same bank.
template <int F, int H>
__device__ __forceinline__ void cols_send(uint32_t exchange, int r, int q, const float (&p)[H][8]) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < H; i++) {
        uint4 two;
        if constexpr (exact_of(F)) {
            two.x = pack_half2<F == BF16>(p[i][0], p[i][1]);
            two.y = pack_half2<F == BF16>(p[i][2], p[i][3]);
            two.z = pack_half2<F == BF16>(p[i][4], p[i][5]);
            two.w = pack_half2<F == BF16>(p[i][6], p[i][7]);
        } else { // as widen() pairs tokens
            two.x = pack_half2<false>(p[i][0], p[i][2]);
            two.y = pack_half2<false>(p[i][1], p[i][3]);
            two.z = pack_half2<false>(p[i][4], p[i][6]);
            two.w = pack_half2<false>(p[i][5], p[i][7]);
        }
        sts128(exchange + cols_head<H>(q, i) * 128 + (r ^ 2 * q) * 16, two);
    }
    __syncwarp();
}
// B registers of half h: quad 2q (first two), quad 2q + 1.
template <int H>
__device__ __forceinline__ void cols_receive(uint32_t exchange, int r, int q, int h,
                                             uint4 (&b)[Cols<H>::BLOCKS]) {
#pragma unroll
    for (int n = 0; n < Cols<H>::BLOCKS; n++) {
        const int head = cols_head_of<H>(8 * n + r);
        b[n] = make_uint4(0, 0, 0, 0);
        if (head >= 0)
            b[n] = lds128(exchange + head * 128 + ((4 * h + q) ^ (r & 6)) * 16);
    }
}
template <int H, bool BF>
__device__ __forceinline__ void cols_value(float (&out)[Cols<H>::BLOCKS][4], const uint32_t (&a)[4],
                                           const uint4 (&b)[Cols<H>::BLOCKS], int c) {
#pragma unroll
    for (int n = 0; n < Cols<H>::BLOCKS; n++)
        mma_half<BF>(out[n], a, c ? b[n].z : b[n].x, c ? b[n].w : b[n].y);
}

// Scales s and biases z of half h of a tile as pairs: of quad 2q's tokens 0 and 2, 1 and 3, then
// those of quad 2q + 1. Zeros for tokens that the query does not see: their slots may hold NaN.
template <int N>
__device__ __forceinline__ void cols_pair_scalars(uint4 (&s)[N], uint4 (&z)[N], bool bf,
                                                  uint64_t seen, int h, int q) {
    scalars_to_half(s, z, bf);
#pragma unroll
    for (int j = 0; j < N; j++) {
        s[j] = pairs_of(s[j]);
        z[j] = pairs_of(z[j]);
    }
    if (~seen) {
        const uint32_t eight = (uint32_t)(seen >> (32 * h + 8 * q));
        const uint2 low = pair_masks(eight), high = pair_masks(eight >> 4);
#pragma unroll
        for (int j = 0; j < N; j++) {
            s[j] = and_of(s[j], low, high);
            z[j] = and_of(z[j], low, high);
        }
    }
}

// Codes of a block, [quad 2q, 2q + 1][two instructions each], 4 dims: from the rows of these quads.
// Of 8 bits they have a row each, of 3 a row of the low and one of the high plane.
template <int BITS, int WIDE>
__device__ __forceinline__ void cols_value_codes(uint32_t row0, uint32_t row1, int r, int q,
                                                 uint4 (&x)[2][WIDE]) {
    if constexpr (WIDE == 2) {
        lds_pair(row0 + r * 32, q & 1, x[0][0], x[0][1]);
        if (BITS == 8 || BITS == 3)
            lds_pair(row1 + r * 32, q & 1, x[1][0], x[1][1]);
    } else {
        x[0][0] = lds128(row0 + r * 16);
        if (BITS == 8 || BITS == 3)
            x[1][0] = lds128(row1 + r * 16);
    }
}

// Codes x with their scales s and biases z, times the weights b: instructions `first` and on.
// quad: the first of the lane's two in words of the high plane.
template <int BITS, int WIDE, int H, int M>
__device__ __forceinline__ void cols_values_block(const uint4 (&x)[2][WIDE], int shift, int quad,
                                                  const uint4 &s, const uint4 &z,
                                                  const uint4 (&b)[Cols<H>::BLOCKS], int first,
                                                  float (&out)[M][Cols<H>::BLOCKS][4]) {
#pragma unroll
    for (int i = 0; i < 2 * WIDE; i++) {
        auto step = [&](auto n) {
            constexpr int C = decltype(n)::value;
            const uint4 &four = x[BITS == 8 ? C : 0][i / 2];
            const uint32_t u = word_of(four, i % 2 * 2) >> shift,
                           v = word_of(four, i % 2 * 2 + 1) >> shift;
            uint32_t hu = 0, hv = 0;
            if constexpr (BITS == 3) {
                hu = high_bits<BITS>(word_of(x[1][i / 2], i % 2 * 2), quad);
                hv = high_bits<BITS>(word_of(x[1][i / 2], i % 2 * 2 + 1), quad);
            }
            uint32_t a[4];
            const uint32_t s_even = word_of(s, 2 * C), s_odd = word_of(s, 2 * C + 1),
                           z_even = word_of(z, 2 * C), z_odd = word_of(z, 2 * C + 1);
            constexpr int N = BITS == 8 ? 0 : C;
            widen_planes<BITS, N>(u, hu, s_even, z_even, s_odd, z_odd, a[0], a[2]);
            widen_planes<BITS, N>(v, hv, s_even, z_even, s_odd, z_odd, a[1], a[3]);
            cols_value<H, false>(out[first + i], a, b, C);
        };
        step(Format<0>());
        step(Format<1>());
    }
}

// An affine tile, N blocks of 32 dims from block `first` on. seen: bit j is set if the query
// sees token j.
template <int F, int D, int MAP, int H, int N, class Ring>
__device__ __forceinline__ void cols_values_affine(Ring &ring, uint32_t exchange, int r, int q,
                                                   uint64_t seen, bool bf, int first,
                                                   float (&out)[2 * N][Cols<H>::BLOCKS][4]) {
    constexpr int G = dims_of_group(F, D), BITS = bits_of(F), CHUNKS = chunks_of(F),
                  WIDE = MAP / 32,
                  GROUPS = N * 32 > G ? N * 32 / G : 1, // of these dims
        AT_ONCE = GROUPS < 4 ? GROUPS : 1;              // groups whose scalars are read together
    constexpr uint32_t BIASES = D / G * 128;
    static_assert(MAP == 32 || G >= 64, "a lane's dims are those of one group");
    uint4 late_s[CHUNKS > 1 ? GROUPS : 1], late_b[CHUNKS > 1 ? GROUPS : 1]; // of the second half
    uint32_t codes = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (h < CHUNKS)
            codes = ring.wait();
        const uint32_t scales = codes + scales_of_slot(F, D) + first * 32 / G * 128 + q * 16;
        if (h == 0 && CHUNKS > 1)
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                late_s[g] = lds128(scales + g * 128 + 64);
                late_b[g] = lds128(scales + BIASES + g * 128 + 64);
            }
        // the rows of quads 2q and 2q + 1 of the half
        const uint32_t row0 = first * 128 + (BITS == 8   ? codes + 2 * q * 4 * D
                                             : BITS == 4 ? codes + (4 * h + q) * 4 * D
                                                         : codes + (2 * h + q / 2) * 4 * D),
                       row1 = BITS == 8   ? row0 + 4 * D
                              : BITS == 3 ? codes + 16 * D + h * 4 * D + first * 128
                                          : row0;
        const int shift = BITS < 4 ? (q & 1) * 4 : 0;
        uint4 b[Cols<H>::BLOCKS];
        cols_receive<H>(exchange, r, q, h, b);
        uint4 s[AT_ONCE], z[AT_ONCE]; // cols_pair_scalars
#pragma unroll
        for (int block = 0; block < N; block += WIDE) {
            const int g = block * 32 / G;
            if (block * 32 % G == 0 && g % AT_ONCE == 0) {
                const bool late = h == 1 && CHUNKS > 1;
#pragma unroll
                for (int j = 0; j < AT_ONCE; j++) {
                    s[j] =
                        late ? late_s[late ? g + j : 0] : lds128(scales + (g + j) * 128 + h * 64);
                    z[j] = late ? late_b[late ? g + j : 0]
                                : lds128(scales + BIASES + (g + j) * 128 + h * 64);
                }
                cols_pair_scalars(s, z, bf, seen, h, q);
            }
            uint4 x[2][WIDE];
            cols_value_codes<BITS, WIDE>(row0 + block * 128, row1 + block * 128, r, q, x);
            cols_values_block<BITS, WIDE, H>(x, shift, 2 * q, s[g % AT_ONCE], z[g % AT_ONCE], b,
                                             2 * block, out);
        }
        if (h + 1 == 2 || CHUNKS > 1)
            ring.release();
    }
}

// The same of an exact tile.
template <int F, int D, int MAP, int H, int N, class Ring>
__device__ __forceinline__ void cols_values_exact(Ring &ring, uint32_t exchange, int r, int q,
                                                  uint64_t seen, int first,
                                                  float (&out)[2 * N][Cols<H>::BLOCKS][4]) {
#pragma unroll 1
    for (int h = 0; h < 2; h++) {
        uint4 b[Cols<H>::BLOCKS];
        cols_receive<H>(exchange, r, q, h, b);
#pragma unroll
        for (int c = 0; c < 2; c++) { // 16 tokens: quad 2q + c
            const uint32_t four = (uint32_t)(seen >> (32 * h + 8 * q + 4 * c));
            const uint32_t lo = half_mask(four & 1, four & 2), hi = half_mask(four & 4, four & 8);
            const uint32_t codes = ring.wait() + first * 256;
#pragma unroll
            for (int i = 0; i < N; i++) {
                uint4 x[2];
                const uint32_t at =
                    MAP == 64 ? i / 2 * 512 + r * 64 + i % 2 * 32 : i * 256 + r * 32;
                lds_pair(codes + q * 8 * D + at, q & 1, x[0], x[1]);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const uint32_t a[4] = {x[j].x & lo, x[j].z & lo, x[j].y & hi, x[j].w & hi};
                    cols_value<H, F == BF16>(out[2 * i + j], a, b, c);
                }
            }
            ring.release();
        }
    }
}

// Weights times values of a tile of any of the formats, N blocks of 32 dims from `first` on.
template <int D, uint32_t VF, int MAP, int H, int N, class Ring>
__device__ __forceinline__ void cols_values(Ring &ring, uint32_t exchange, int r, int q, int format,
                                            bool bf, uint64_t seen, const float (&p)[H][8],
                                            int first, float (&out)[2 * N][Cols<H>::BLOCKS][4]) {
    with_format<VF>(format, [&](auto f) {
        constexpr int F = decltype(f)::value;
        cols_send<F, H>(exchange, r, q, p);
        if constexpr (exact_of(F))
            cols_values_exact<F, D, MAP, H, N>(ring, exchange, r, q, seen, first, out);
        else
            cols_values_affine<F, D, MAP, H, N>(ring, exchange, r, q, seen, bf, first, out);
    });
}
