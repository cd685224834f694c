// SPDX-License-Identifier: Apache-2.0
// decode.cu: attention of rows that come alone.
//
// A block is (super-run of one row, KV head): 2,048 tokens; each of its 8 warps has a run of 256,
// four tiles, which come through the warp's own ring of shared memory:
//
//     page table -> tiles seen -> K0 V0 K1 V1 ... -> scores, weights, outputs in registers
//                                                     run of a warp
//                                                        | folded in order
//                                                     super-run of a block -> part_out, part_ms
//                                                        | the last block of a row and KV head
//                                                     out                     folds them in order
//
// The first loads are on their way before the queries are packed. Two kernels: up to four query
// heads a KV head in the columns of an instruction (cols.cuh), up to 16 in its rows (rows.cuh). The
// first is compiled for the formats that matter one by one, both for all together, with a branch a
// tile.
#include "backend/cuda/cols.cuh"
#include "backend/cuda/rows.cuh"

namespace {

// SLOTS_MAX: of a warp's ring where all warps have a run; where fewer have one (a row's last
// super), these share the ring and its barriers.
enum { WARPS = SUPER_RUNS, THREADS = WARPS * 32, SLOTS_MIN = 2, SLOTS_MAX = 6 };
enum { BARRIERS = WARPS * SLOTS_MAX };

struct DecodeArgs {
    const float *q; // [row][head][D]
    float *out;
    float scale;
    uint32_t layer, heads, gqa, kv_heads;
    int slots; // of a block's ring
    float *part_out;
    float2 *part_ms;   // [item][kv head][gqa]
    uint32_t *arrived; // [decode row][kv head]
};

// What the warps of a block leave for its fold.
template <int HEADS> struct RunResults {
    float max[WARPS][HEADS], sum[WARPS][HEADS];
    bool last;
};

// ---- folding ---------------------------------------------------------------------------------

enum { FOLD_ITEMS = 64, FOLD_AHEAD = 16 };

// Of one item and head: what the fold multiplies with, and the item's sum. all < 0: not seen.
struct SuperFactors {
    float all, part, sum;
};

// The supers of a row, in order, by the block that came last. factors: shared memory,
// [FOLD_ITEMS][HEADS].
template <int D, int HEADS>
__device__ __forceinline__ void fold_supers(const DecodeArgs &a, const decode_item &item,
                                            uint32_t kv, SuperFactors *factors) {
    __shared__ float tops[HEADS];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, values = a.gqa * D;
    // two values of a thread at a time
    constexpr int PASSES = HEADS * D / 2 / THREADS ? HEADS * D / 2 / THREADS : 1;
    float2 o[PASSES];
    float sum[PASSES];
#pragma unroll
    for (int i = 0; i < PASSES; i++)
        o[i] = make_float2(0, 0), sum[i] = 0;
    if (threadIdx.x < HEADS)
        tops[threadIdx.x] = MINUS_INF;
    for (uint32_t first = 0; first < item.count; first += FOLD_ITEMS) {
        const uint32_t n = min(item.count - first, (uint32_t)FOLD_ITEMS);
        const size_t row = ((size_t)(item.first + first) * a.kv_heads + kv) * a.gqa,
                     step = (size_t)a.kv_heads * a.gqa;
        __syncthreads();
        // factors of a head by one warp: the maxima so far are a scan
        for (uint32_t h = warp; h < a.gqa; h += WARPS) {
            float top = tops[h];
            for (uint32_t i0 = 0; i0 < n; i0 += 32) {
                float2 ms = make_float2(MINUS_INF, 0);
                if (i0 + lane < n)
                    ms = __ldcg(&a.part_ms[row + (i0 + lane) * step + h]);
                float scan = ms.x;
#pragma unroll
                for (int i = 1; i < 32; i *= 2) {
                    float before = __shfl_up_sync(~0u, scan, i);
                    if (lane >= i)
                        scan = fmaxf(scan, before);
                }
                float before = __shfl_up_sync(~0u, scan, 1);
                float all = fmaxf(top, lane ? before : MINUS_INF);
                const FoldFactors f = fold_factors(all, ms.x);
                if (i0 + lane < n)
                    factors[(i0 + lane) * HEADS + h] = {f.seen ? f.of_all : -1.f, f.of_part, ms.y};
                top = fmaxf(top, __shfl_sync(~0u, scan, 31));
            }
            __syncwarp();
            if (lane == 0)
                tops[h] = top;
        }
        __syncthreads();
#pragma unroll
        for (int pass = 0; pass < PASSES; pass++) {
            const uint32_t e = (pass * THREADS + threadIdx.x) * 2, h = e / D;
            if (e >= values)
                break;
            const float *part = a.part_out + row * D + e;
            for (uint32_t i0 = 0; i0 < n; i0 += FOLD_AHEAD) {
                float2 v[FOLD_AHEAD];
#pragma unroll
                for (int i = 0; i < FOLD_AHEAD; i++)
                    if (i0 + i < n)
                        v[i] = __ldcg((const float2 *)(part + (i0 + i) * step * D));
#pragma unroll
                for (int i = 0; i < FOLD_AHEAD; i++)
                    if (i0 + i < n) {
                        const SuperFactors f = factors[(i0 + i) * HEADS + h];
                        if (f.all >= 0) {
                            o[pass].x = fmaf(f.part, v[i].x, f.all * o[pass].x);
                            o[pass].y = fmaf(f.part, v[i].y, f.all * o[pass].y);
                            sum[pass] = fmaf(f.part, f.sum, f.all * sum[pass]);
                        }
                    }
            }
        }
    }
#pragma unroll
    for (int pass = 0; pass < PASSES; pass++) {
        const uint32_t e = (pass * THREADS + threadIdx.x) * 2;
        if (e < values)
            *(float2 *)(a.out + ((size_t)item.row * a.heads + kv * a.gqa) * D + e) =
                make_float2(o[pass].x / sum[pass], o[pass].y / sum[pass]);
    }
}

// Runs of the block in order; the result is the row's, or one of its parts. outputs: of warp w at
// outputs + w * pitch, [gqa][D]; scratch: shared memory that outputs may lie in.
template <int D, int HEADS>
__device__ __forceinline__ void finish(const DecodeArgs &a, const decode_item &item, uint32_t index,
                                       uint32_t kv, RunResults<HEADS> &runs, const float *outputs,
                                       uint32_t pitch, void *scratch) {
    const size_t part = ((size_t)index * a.kv_heads + kv) * a.gqa;
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < a.gqa * D; e += THREADS) {
        const uint32_t h = e / D;
        float top = MINUS_INF, o = 0, sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const FoldFactors f = fold_factors(top, runs.max[w][h]);
            if (f.seen) {
                o = fold(f, o, outputs[w * pitch + e]);
                sum = fold(f, sum, runs.sum[w][h]);
            }
        }
        if (item.count == 1) {
            a.out[((size_t)item.row * a.heads + kv * a.gqa) * D + e] = o / sum;
        } else {
            a.part_out[part * D + e] = o;
            if (e % D == 0)
                a.part_ms[part + h] = make_float2(top, sum);
        }
    }
    if (item.count == 1)
        return;
    __threadfence();
    __syncthreads();
    uint32_t *arrived = &a.arrived[item.slot * a.kv_heads + kv];
    if (threadIdx.x == 0)
        runs.last = atomicAdd(arrived, 1) == item.count - 1;
    __syncthreads();
    if (!runs.last)
        return;
    __threadfence();
    if (threadIdx.x == 0)
        *arrived = 0; // for the next layer
    fold_supers<D, HEADS>(a, item, kv, (SuperFactors *)scratch);
}

// ---- what a warp reads -----------------------------------------------------------------------

// The tiles of a run that position p sees: their addresses, in order, and their numbers; by a warp.
// Returns how many.
__device__ __forceinline__ int find_tiles(const step_group &g, const dev_view &view,
                                          const dev_layout *layouts, uint32_t run, uint32_t p,
                                          uint32_t layer, uint32_t kv, TileRef *tiles,
                                          uint8_t *numbers) {
    const uint32_t lane = threadIdx.x % 32, number = run * RUN_TILES + lane;
    const uint32_t first = number * TILE_TOKENS, start = window_start(view.span, p);
    bool seen =
        lane < RUN_TILES && first <= p && (first < view.keep || first + TILE_TOKENS > start);
    TileRef t = {0};
    if (seen) {
        uint32_t layout = 0;
        const uint8_t *page = page_find(g, view, number, &layout);
        const dev_layout &l = layouts[layout];
        t.bits =
            (uint64_t)(page + (size_t)layer * l.layer_bytes + (size_t)kv * l.head_bytes) | layout;
        seen = page != nullptr;
    }
    const uint32_t all = __ballot_sync(~0u, seen);
    if (seen) {
        const int at = __popc(all & ((1u << lane) - 1));
        tiles[at] = t;
        numbers[at] = (uint8_t)lane;
    }
    __syncwarp();
    return __popc(all);
}

// ---- up to four heads ------------------------------------------------------------------------

template <int D, int HALVES> union ColsShared {
    ColsQuery<D, HALVES> query;
    uint8_t exchange[WARPS][EXCHANGE_BYTES]; // where no query is needed any more
};

// One row of queries into shared memory; by a warp. Row `to` of planes, of halves.
template <int D, uint32_t KF>
__device__ __forceinline__ void cols_pack(const float *q, float scale, int h, bool some,
                                          ColsQuery<D, halves_of(KF)> &to) {
    constexpr int N = D / 32;
    const int lane = threadIdx.x % 32;
    PackedRow<D> p = {};
    if (some)
        pack_row<D>(q, scale, p);
#pragma unroll
    for (int i = 0; i < N; i++) {
        to.planes[2 * h][lane * N + i] = high_of(p.code[i]);
        to.planes[2 * h + 1][lane * N + i] = low_of(p.code[i]);
        if constexpr (KF & bit(F16))
            to.half[0][h][lane * N + i] = (uint16_t)pack_half2<false>(p.x[i], 0);
        if constexpr (KF & bit(BF16))
            to.half[halves_of(KF) - 1][h][lane * N + i] = (uint16_t)pack_half2<true>(p.x[i], 0);
    }
    if (lane % (1024 / D) == 0)
        to.sum32[h][lane * D / 1024] = p.sum32;
    if (lane == 0) {
        to.unit[h] = p.unit;
        to.exact_unit[h] = p.exact_unit;
    }
}

template <int D, uint32_t KF, uint32_t VF>
__global__ void __launch_bounds__(THREADS, D <= 128 ? 2 : 1)
    decode_cols(const step_group g, const DecodeArgs a) {
    using Ring = Stream<D, KF, VF, false>;
    constexpr int HALVES = halves_of(KF), BG = VF & GROUPS_OF_32 ? 32 : 64;
    constexpr int MAP = VF & (EXACT_FORMATS | GROUPS_OF_32) ? 32 : 64;
    constexpr bool CODES = KF & ~EXACT_FORMATS, SHARE = !HALVES;
    extern __shared__ __align__(128) uint8_t rings[];
    __shared__ __align__(16) ColsShared<D, HALVES> shared;
    __shared__ __align__(16) uint8_t own_exchange[SHARE ? 1 : WARPS][SHARE ? 16 : EXCHANGE_BYTES];
    __shared__ __align__(8) uint64_t bars[BARRIERS];
    __shared__ TileRef tiles[WARPS][RUN_TILES];
    __shared__ uint8_t numbers[WARPS][RUN_TILES];
    __shared__ RunResults<4> runs;

    kernel_begins();
    if (blockIdx.x >= g.counts[COUNT_DECODE])
        return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const decode_item item = g.decode[blockIdx.x];
    const uint32_t kv = blockIdx.y, run = item.super * SUPER_RUNS + warp;
    const dev_view &view = item.view;
    const uint32_t exchange =
        SHARE ? smem_at(shared.exchange[warp]) : smem_at(own_exchange[SHARE ? 0 : warp]);

    // The ring: the block's slots, shared by the warps whose run has begun.
    const int active = min(WARPS, (int)((item.pos - item.super * SUPER) / RUN) + 1),
              slots = min(a.slots, BARRIERS) / active;
    uint8_t *own = rings + warp * slots * Ring::SLOT;
    Ring ring;
    ring.ring = smem_at(own);
    ring.bars = smem_at(bars + (warp < active ? warp : 0) * slots);
    ring.slots = slots;
    ring.tiles = tiles[warp];
    ring.layouts = g.layouts;
    ring.n = find_tiles(g, view, g.layouts, run, item.pos, a.layer, kv, tiles[warp], numbers[warp]);
    if (warp < active)
        for (int i = lane; i < slots; i += 32)
            barrier_init(ring.bars + 8 * i, COPY_ARRIVALS);
    barriers_ready();
    __syncwarp();
    ring.start();

    if (warp < 4)
        cols_pack<D, KF>(a.q + ((size_t)item.row * a.heads + kv * a.gqa + warp) * D, a.scale, warp,
                         warp < (int)a.gqa, shared.query);
    __syncthreads();
    const int r = lane / 4, q = lane % 4;
    ColsCodes<D> codes;
    codes.exact_unit = shared.query.exact_unit[q];
    if constexpr (CODES) {
        codes.unit = shared.query.unit[q];
#pragma unroll
        for (int k = 0; k < D / 32; k++) {
            const uint2 two = *(const uint2 *)&shared.query.planes[r][k * 32 + q * 8];
            codes.b[k][0] = two.x;
            codes.b[k][1] = two.y;
            codes.sum32[k] = (float)shared.query.sum32[q][k];
        }
    }
    if constexpr (SHARE)
        __syncthreads(); // the exchange takes the query's place

    float top = MINUS_INF, sum = 0, acc[D / 16][2] = {}, bias[D / BG] = {};
    for (int i = 0; i < ring.n; i++) {
        const uint32_t first = (run * RUN_TILES + numbers[warp][i]) * TILE_TOKENS;
        const dev_layout *layout = &g.layouts[tiles[warp][i].layout()];
        const uint64_t seen = seen_of_tile(view, item.pos, first);
        const bool halves = exact_of<VF>(layout->v);
        const Lane l = lane_of(lane, halves);
        float p[8];
        with_format<KF>(layout->k, [&](auto f) {
            constexpr int F = decltype(f)::value;
            if constexpr (exact_of(F))
                cols_scores_exact<F, D>(ring, l, shared.query.half[F == BF16 ? HALVES - 1 : 0][0],
                                        p);
            else
                cols_scores_affine<F, D, !(VF & EXACT_FORMATS)>(ring, l, codes, layout->k_bf16, p);
        });
        if (~seen) {
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (!(seen >> (4 * l.quad[j / 4] + j % 4) & 1))
                    p[j] = MINUS_INF;
        }
        const float unit = exact_of<KF>(layout->k) ? codes.exact_unit : codes.unit;
        auto rescale = [&](float alpha) {
            if (!__any_sync(~0u, alpha != 1))
                return;
#pragma unroll
            for (int k = 0; k < D / 16; k++)
                acc[k][0] *= alpha, acc[k][1] *= alpha;
#pragma unroll
            for (int k = 0; k < D / BG; k++)
                bias[k] *= alpha;
        };
        with_format<VF>(layout->v, [&](auto f) {
            constexpr int F = decltype(f)::value;
            if constexpr (exact_of(F)) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    rescale(cols_softmax<4>(p + 4 * h, unit, top, sum));
                    cols_values_exact<F, D>(ring, exchange, l, h, p + 4 * h, seen, acc);
                }
            } else {
                rescale(cols_softmax<8>(p, unit, top, sum));
                cols_values_affine<F, D, MAP, BG>(ring, exchange, l, p, ~seen, layout->v_bf16, acc,
                                                  bias);
            }
        });
    }

    // the run, into the warp's own ring, which nothing is copied to any more
    sum += __shfl_xor_sync(~0u, sum, 4);
    sum += __shfl_xor_sync(~0u, sum, 8);
    sum += __shfl_xor_sync(~0u, sum, 16);
    if constexpr (VF & ~EXACT_FORMATS)
#pragma unroll
        for (int k = 0; k < D / BG; k++)
#pragma unroll
            for (int j = 4; j < 32; j *= 2)
                bias[k] += __shfl_xor_sync(~0u, bias[k], j);
    float *out = (float *)own;
    __syncwarp();
    if (warp >= active) { // behind the row: nothing was seen
        if (lane < 4)
            runs.max[warp][lane] = MINUS_INF;
    } else if (q < (int)a.gqa) {
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            const int d = cols_dim<MAP>(k, r);
            *(float2 *)(out + q * D + d) =
                make_float2(acc[k][0] + bias[d / BG], acc[k][1] + bias[d / BG]);
        }
        if (r == 0) {
            runs.max[warp][q] = top;
            runs.sum[warp][q] = sum;
        }
    }
    finish<D, 4>(a, item, blockIdx.x, kv, runs, (const float *)rings, slots * Ring::SLOT / 4,
                 rings);
}

// ---- up to 16 heads --------------------------------------------------------------------------

// The 16 rows of queries are shared by the warps of a block.
template <int D, uint32_t KF, uint32_t VF>
__global__ void __launch_bounds__(THREADS, 1) decode_rows(const step_group g, const DecodeArgs a) {
    using Ring = Stream<D, KF, VF, true>;
    constexpr int BG = 32;
    extern __shared__ __align__(128) uint8_t rings[];
    __shared__ __align__(16) RowsQuery<D, KF, 16> query;
    __shared__ __align__(8) uint64_t bars[BARRIERS];
    __shared__ TileRef tiles[WARPS][RUN_TILES];
    __shared__ uint8_t numbers[WARPS][RUN_TILES];
    __shared__ RunResults<GQA_MAX> runs;

    kernel_begins();
    if (blockIdx.x >= g.counts[COUNT_DECODE])
        return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, q = lane % 4;
    const decode_item item = g.decode[blockIdx.x];
    const uint32_t kv = blockIdx.y, run = item.super * SUPER_RUNS + warp;
    const dev_view &view = item.view;

    // The ring: the block's slots, shared by the warps whose run has begun.
    const int active = min(WARPS, (int)((item.pos - item.super * SUPER) / RUN) + 1),
              slots = min(a.slots, BARRIERS) / active;
    uint8_t *own = rings + warp * slots * Ring::SLOT;
    Ring ring;
    ring.ring = smem_at(own);
    ring.bars = smem_at(bars + (warp < active ? warp : 0) * slots);
    ring.slots = slots;
    ring.tiles = tiles[warp];
    ring.layouts = g.layouts;
    ring.n = find_tiles(g, view, g.layouts, run, item.pos, a.layer, kv, tiles[warp], numbers[warp]);
    if (warp < active)
        for (int i = lane; i < slots; i += 32)
            barrier_init(ring.bars + 8 * i, COPY_ARRIVALS);
    barriers_ready();
    __syncwarp();
    ring.start();

    for (int h = warp; h < 16; h += WARPS)
        rows_pack<D, KF, 16>(a.q + ((size_t)item.row * a.heads + kv * a.gqa + h) * D, a.scale, h,
                             h < (int)a.gqa, query);
    __syncthreads();
    float units[2], exact_units[2], sum32[2][D / 32];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        units[i] = query.unit[r + 8 * i];
        exact_units[i] = query.exact_unit[r + 8 * i];
    }
    rows_sums<D, KF, 16>(query, r, sum32);

    RowState<1> state = {{{MINUS_INF, MINUS_INF}}, {}};
    float o[1][D / 32][4][4] = {}, bias[2][D / BG][2] = {};
    for (int i = 0; i < ring.n; i++) {
        const uint32_t first = (run * RUN_TILES + numbers[warp][i]) * TILE_TOKENS;
        const dev_layout *layout = &g.layouts[tiles[warp][i].layout()];
        const uint64_t seen = seen_of_tile(view, item.pos, first);
        float s[1][2][16];
        with_format<KF>(layout->k, [&](auto f) {
            constexpr int F = decltype(f)::value;
            if constexpr (exact_of(F)) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float d[1][4][4] = {};
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        rows_scores_exact<F, D, 1>(ring.wait(), c, r, q,
                                                   smem_at(query.half[F == BF16][0]), d);
                        ring.release();
                    }
                    rows_scores_take<1, 16>(d, s, 8 * h);
                }
            } else {
                uint32_t codes[2] = {ring.wait(), 0};
                if (chunks_of(F) == 2)
                    codes[1] = ring.wait(1);
                rows_scores_affine<F, D>(codes, codes[0] + Ring::SCALES, r, q,
                                         smem_at(query.planes[0]), sum32, layout->k_bf16, s[0]);
                for (int c = 0; c < chunks_of(F); c++)
                    ring.release();
            }
        });
        if (~seen) {
#pragma unroll
            for (int j = 0; j < 16; j++)
                if (!(seen >> (j / 8 * 32 + 8 * q + j % 8) & 1))
                    s[0][0][j] = s[0][1][j] = MINUS_INF;
        }
        const bool exact = exact_of<KF>(layout->k);
        const float unit[1][2] = {
            {exact ? exact_units[0] : units[0], exact ? exact_units[1] : units[1]}};
        with_format<VF>(layout->v, [&](auto f) {
            constexpr int F = decltype(f)::value;
            if constexpr (exact_of(F)) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    float p[1][2][8], alpha[1][2];
#pragma unroll
                    for (int j = 0; j < 16; j++)
                        p[0][j / 8][j % 8] = s[0][j / 8][8 * h + j % 8];
                    rows_softmax<1, 8>(p, unit, state, alpha);
                    rows_rescale<D, 1, D / BG>(alpha, o, bias);
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        rows_values_exact<F, D, 1, true>(ring.wait(), h, c, r, q, p, seen, o);
                        ring.release();
                    }
                }
            } else {
                float alpha[1][2];
                rows_softmax<1, 16>(s, unit, state, alpha);
                rows_rescale<D, 1, D / BG>(alpha, o, bias);
                uint32_t codes[2] = {ring.wait(), 0};
                if (chunks_of(F) == 2)
                    codes[1] = ring.wait(1);
                rows_values_affine<F, D, BG>(codes, codes[0] + Ring::SCALES, r, q, s[0], seen,
                                             layout->v_bf16, o[0], bias);
                for (int c = 0; c < chunks_of(F); c++)
                    ring.release();
            }
        });
    }

    float *out = (float *)own;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float sum = rows_tree(state.sum[0][i][0], state.sum[0][i][1]);
        const int h = r + 8 * i;
        if (q == 0) {
            runs.max[warp][h] = state.max[0][i];
            runs.sum[warp][h] = sum;
        }
#pragma unroll
        for (int block = 0; block < D / 32; block++) {
            const float b = rows_tree(bias[i][block][0], bias[i][block][1]);
            if (warp < active && h < (int)a.gqa)
#pragma unroll
                for (int t = 0; t < 4; t++)
#pragma unroll
                    for (int c = 0; c < 2; c++)
                        out[h * D + 32 * block + 8 * q + 4 * c + t] = o[0][block][t][2 * i + c] + b;
        }
    }
    finish<D, GQA_MAX>(a, item, blockIdx.x, kv, runs, (const float *)rings, slots * Ring::SLOT / 4,
                       rings);
}

// ---- launches --------------------------------------------------------------------------------

using Kernel = void (*)(step_group, DecodeArgs);

struct Choice {
    Kernel kernel;
    uint32_t slot_bytes;
    int pairs; // 2: two blocks an SM where their slots fit
};

template <int D> Choice choose(uint32_t k, uint32_t v, uint32_t gqa) {
    if (gqa > 4)
        return {decode_rows<D, K_FORMATS, V_FORMATS>, Stream<D, K_FORMATS, V_FORMATS, true>::SLOT,
                1};
    if constexpr (D == 128) {
#define ONE(K, V)                                                                                  \
    if (k == bit(K) && v == bit(V))                                                                \
        return {decode_cols<D, bit(K), bit(V)>, Stream<D, bit(K), bit(V), false>::SLOT, 2};
        ONE(F16, F16)
        ONE(BF16, BF16)
        ONE(Q8G64, Q8G64)
        ONE(Q8G64, Q4G64)
        ONE(Q4G64, Q4G64)
#undef ONE
    }
    return {decode_cols<D, K_FORMATS, V_FORMATS>, Stream<D, K_FORMATS, V_FORMATS, false>::SLOT,
            D <= 128 ? 2 : 1};
}

} // namespace

static Choice choose_kernel(uint32_t k, uint32_t v, uint32_t dim, uint32_t gqa) {
    return dim == 64    ? choose<64>(k, v, gqa)
           : dim == 128 ? choose<128>(k, v, gqa)
                        : choose<256>(k, v, gqa);
}

// Slots of a warp where a block has an SM to itself; 0 where the kernel is not there. *fixed: bytes
// of shared memory that are no slots.
static int slots_alone(const cuda_backend *b, const Choice &c, int *fixed) {
    cudaFuncAttributes attr;
    if (cudaFuncGetAttributes(&attr, c.kernel) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    *fixed = (int)attr.sharedSizeBytes;
    return ((int)b->shared_per_block - *fixed) / (WARPS * (int)c.slot_bytes);
}

bool decode_fits(const cuda_backend *b, uint32_t k_formats, uint32_t v_formats, uint32_t head_dim,
                 uint32_t gqa) {
    int fixed;
    return slots_alone(b, choose_kernel(k_formats, v_formats, head_dim, gqa), &fixed) >= SLOTS_MIN;
}

void attention_decode(cuda_backend *b, uint32_t group, uint32_t layer, const float *q,
                      uint32_t heads, float scale, float *out) {
    const group_plan &plan = b->plan[group];
    const uint32_t kv_heads = b->limits.group[group].kv_heads, gqa = heads / kv_heads;
    const Choice c =
        choose_kernel(plan.k_formats, plan.v_formats, b->limits.group[group].head_dim, gqa);
    int fixed = 0, slots = slots_alone(b, c, &fixed);
    const int warp_slot = WARPS * (int)c.slot_bytes, whole = (int)b->shared_per_block - fixed,
              half = (int)(b->shared_per_sm / 2 - b->shared_reserved) - fixed;
    // few blocks: one an SM, with all its memory in flight
    if (c.pairs == 2 && half / warp_slot >= SLOTS_MIN &&
        plan.blocks[COUNT_DECODE] * kv_heads > (uint32_t)b->sm_count)
        slots = half / warp_slot;
    slots = slots < SLOTS_MAX ? slots : SLOTS_MAX;
    const size_t bytes = (size_t)slots * warp_slot;
    if (!cuda_ok(
            b, cudaFuncSetAttribute(c.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, whole)))
        return;
    const DecodeArgs args = {q,        out,           scale,       layer,      heads,     gqa,
                             kv_heads, slots * WARPS, b->part_out, b->part_ms, b->arrived};
    cuda_ok(b, launch_early(b, c.kernel, dim3(plan.blocks[COUNT_DECODE], kv_heads), THREADS, bytes,
                            b->group[group], args));
}

extern "C" void cuda_attention(cuda_backend *b, const batch *batch, const kv_view *views,
                               uint32_t layer, const float *q, uint32_t heads, float scale,
                               float *out) {
    uint32_t group;
    if (!operation_begins(b, batch, views, layer, &group))
        return;
    // blocks and scratch were made for the limits' heads
    if (heads != b->limits.group[group].heads)
        cuda_ok(b, cudaErrorInvalidValue);
    if (b->error == cudaSuccess && b->plan[group].blocks[COUNT_DECODE])
        attention_decode(b, group, layer, q, heads, scale, out);
    if (b->error == cudaSuccess && b->plan[group].blocks[COUNT_PREFILL])
        attention_prefill(b, group, layer, q, heads, scale, out);
}
