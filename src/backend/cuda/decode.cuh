// SPDX-License-Identifier: Apache-2.0
// decode.cuh: attention of sequences with one row, or few, in a step.
//
// A block is (super-run of one row, KV head): 2,048 tokens; each of its 8 warps has a run of 256,
// four tiles, which come through the warp's own ring of shared memory:
//
//     page table -> tiles seen -> K0 V0 K1 V1 ... -> scores, weights, outputs in registers
//                                                     run of a warp
//                                                        | merged in order
//                                                     super-run of a block -> part_out, part_ms
//                                                        | the last block of a row and KV head
//                                                     out                     merges them in order
//
// If that makes at most half as many blocks as the device has SMs, a super-run is divided among 2,
// 4 or 8 of them (gridDim.z): their runs go to part_out one by one, and the last block merges all.
// Of the runs of some blocks only one has begun: of each of 8 that share a super-run, and of one at
// a row's end. If its chunks and scores fit into shared memory together, four warps compute the
// scores of its four tiles at the same time; then each warp goes over the maxima of all tiles and
// computes the outputs of a quarter of the dims (of 64 dims two warps compute half each).
//
// The first loads are started before the queries are packed. cols.cuh has what a warp does with a
// tile. The kernel is compiled for each of the common formats, and once for all of them with a
// branch per tile; for up to 4, 8 and 16 query heads per KV head: decode.cu, and decode_whole.cu of
// pages that are encoded when they are full.
#pragma once

#include "backend/cuda/cols.cuh"

struct DecodeArgs : PassArgs {
    int slots; // of a block's ring
    bool team; // it holds a run and its scores: warps share it if it is the only one
    // partial results: [item][kv head][gqa]; split: [item][kv head][run][gqa]
    float *part_out;   // [D] each
    float2 *part_ms;   // maximum, sum
    uint32_t *arrived; // [decode row][kv head]
};

// A kernel, and what its launch needs.
struct DecodeChoice {
    void (*kernel)(step_group, DecodeArgs);
    uint32_t slot_bytes;
    int pairs;           // 2: two blocks an SM if their slots fit
    uint32_t team_bytes; // of a run's chunks and scores
    int team_chunks;
};
// decode_whole.cu: for WHOLE_K_FORMATS and WHOLE_V_FORMATS.
DecodeChoice decode_choose_whole(uint32_t k_formats, uint32_t v_formats, uint32_t head_dim,
                                 uint32_t gqa);

namespace {

// SLOTS_MAX: of a warp's ring if all warps have a run. If fewer have one (the last super-run of a
// row), these share the ring and its barriers.
enum { WARPS = SUPER_RUNS, THREADS = WARPS * 32, SLOTS_MIN = 2, SLOTS_MAX = 6 };
enum { BARRIERS = WARPS * SLOTS_MAX };

// Bytes of a tile's scores, if the warps of a block share a run.
template <int H> constexpr uint32_t TEAM_SCORES = Cols<H>::HEADS *TILE_TOKENS * 4;

// What the warps of a block leave to be merged.
template <int HEADS> struct RunResults {
    float max[WARPS][HEADS], sum[WARPS][HEADS];
    bool last;
};

// ---- merging ---------------------------------------------------------------------------------

// Runs of a row's last super-run that have begun. Blocks without one leave nothing.
__device__ __forceinline__ uint32_t begun_runs(const decode_item &item) {
    return item.pos / RUN % SUPER_RUNS + 1;
}

// Where a row's outputs of a KV head go first, [gqa][D]: outputs of the block if they are to be
// rotated back.
template <int D>
__device__ __forceinline__ float *first_outputs(const DecodeArgs &a, const decode_item &item,
                                                uint32_t kv, float *outputs) {
    return a.back != 0 ? outputs : a.out + ((size_t)item.row * a.heads + kv * a.gqa) * D;
}
// From there to the row's, rotated back, by the block.
template <int D>
__device__ __forceinline__ void rotate_outputs(const DecodeArgs &a, const decode_item &item,
                                               uint32_t kv, const float *outputs) {
    constexpr int N = D / 32;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (a.back == 0)
        return;
    __syncthreads();
    for (uint32_t h = warp; h < a.gqa; h += WARPS) {
        float x[N];
        load_row<D>(outputs + h * D, true, x);
        rotate_row<D>(x, a.back);
        float *to = a.out + ((size_t)item.row * a.heads + kv * a.gqa + h) * D + lane * N;
#pragma unroll
        for (int i = 0; i < N; i++)
            to[i] = x[i];
    }
}

// Merges the parts of a row, in order, in the block that finished last: its super-runs, or if these
// are divided their runs, which are merged into super-runs first.
template <int D, int HEADS, bool SPLIT>
__device__ __forceinline__ void merge_parts(const DecodeArgs &a, const decode_item &item,
                                            uint32_t kv, float *outputs) {
    float *to = first_outputs<D>(a, item, kv, outputs);
    constexpr int AHEAD = 16, // parts that are read at once
        IN = SPLIT ? (int)SUPER_RUNS : 1, PAIRS = HEADS * D / 2,
                  PASSES = PAIRS / THREADS ? PAIRS / THREADS : 1;
    const uint32_t values = a.gqa * D,
                   parts = (item.count - 1) * IN + (SPLIT ? begun_runs(item) : 1);
    for (int pass = 0; pass < PASSES; pass++) { // two values of a thread at a time
        const uint32_t e = (pass * THREADS + threadIdx.x) * 2, h = e / D;
        if (e >= values)
            break;
        float2 o = make_float2(0, 0);
        float sum = 0, top = MINUS_INF;
        for (uint32_t i0 = 0; i0 < parts; i0 += AHEAD) {
            // What was not seen was not written: its maximum says so, and the rest is not used.
            float2 v[AHEAD], ms[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const uint32_t p = i0 + i;
                const size_t part =
                    (((size_t)(item.first + p / IN) * a.kv_heads + kv) * IN + p % IN) * a.gqa;
                ms[i] = make_float2(MINUS_INF, 0);
                if (p < parts) {
                    ms[i] = __ldcg(&a.part_ms[part + h]);
                    v[i] = __ldcg((const float2 *)(a.part_out + part * D + e));
                }
            }
            auto fold_one = [](float &top, float &sum, float2 &o, float2 ms, float2 v) {
                const FoldFactors f = fold_factors(top, ms.x);
                if (f.seen) {
                    o.x = fold_seen(f, o.x, v.x);
                    o.y = fold_seen(f, o.y, v.y);
                    sum = fold_seen(f, sum, ms.y);
                }
            };
#pragma unroll
            for (int i = 0; i < AHEAD; i += IN) {
                if constexpr (SPLIT) {
                    float2 super_o = make_float2(0, 0), super_ms = make_float2(MINUS_INF, 0);
#pragma unroll
                    for (int j = i; j < i + IN; j++)
                        fold_one(super_ms.x, super_ms.y, super_o, ms[j], v[j]);
                    fold_one(top, sum, o, super_ms, super_o);
                } else {
                    fold_one(top, sum, o, ms[i], v[i]);
                }
            }
        }
        *(float2 *)(to + e) = make_float2(o.x / sum, o.y / sum);
        if (a.ms && e % D == 0)
            a.ms[(size_t)item.row * a.heads + kv * a.gqa + h] = make_float2(top, sum);
    }
}

// Runs of the block in order, of its first runs_here warps; the result is the row's, or one of its
// parts. outputs: of warp w at outputs + w * pitch, [gqa][D]; those of warp 0 are overwritten.
template <int D, int HEADS>
__device__ __forceinline__ void finish(const DecodeArgs &a, const decode_item &item, uint32_t index,
                                       uint32_t kv, RunResults<HEADS> &runs, uint32_t runs_here,
                                       float *outputs, uint32_t pitch) {
    const uint32_t split = gridDim.z, each = SUPER_RUNS / split;
    const uint32_t blocks = (item.count - 1) * split + blocks_of(begun_runs(item), each);
    size_t part = ((size_t)index * a.kv_heads + kv) * a.gqa;
    __syncthreads();
    if (split > 1 && blocks > 1) {
        part = part * SUPER_RUNS + blockIdx.z * each * a.gqa;
        for (uint32_t e = threadIdx.x; e < a.gqa * D; e += THREADS) {
            const uint32_t h = e / D;
            for (uint32_t w = 0; w < runs_here; w++) {
                if (runs.max[w][h] != MINUS_INF)
                    a.part_out[(part + w * a.gqa) * D + e] = outputs[w * pitch + e];
                if (e % D == 0)
                    a.part_ms[part + w * a.gqa + h] = make_float2(runs.max[w][h], runs.sum[w][h]);
            }
        }
    } else {
        float *to = first_outputs<D>(a, item, kv, outputs);
        for (uint32_t e = threadIdx.x; e < a.gqa * D; e += THREADS) {
            const uint32_t h = e / D;
            float top = MINUS_INF, o = 0, sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                if (w >= (int)runs_here)
                    break; // a block of one run does not load the code of the others
                const FoldFactors f = fold_factors(top, runs.max[w][h]);
                if (f.seen) {
                    o = fold_seen(f, o, outputs[w * pitch + e]);
                    sum = fold_seen(f, sum, runs.sum[w][h]);
                }
            }
            if (item.count == 1) {
                to[e] = o / sum;
                if (a.ms && e % D == 0)
                    a.ms[(size_t)item.row * a.heads + kv * a.gqa + h] = make_float2(top, sum);
            } else {
                a.part_out[part * D + e] = o;
                if (e % D == 0)
                    a.part_ms[part + h] = make_float2(top, sum);
            }
        }
    }
    if (blocks == 1) {
        rotate_outputs<D>(a, item, kv, outputs);
        return;
    }
    __syncthreads();
    uint32_t *arrived = &a.arrived[item.slot * a.kv_heads + kv];
    if (threadIdx.x == 0) {
        __threadfence(); // what the block wrote, too: the barrier was before
        runs.last = atomicAdd(arrived, 1) == blocks - 1;
    }
    __syncthreads();
    if (!runs.last)
        return;
    __threadfence();
    if (threadIdx.x == 0)
        *arrived = 0; // for the next layer
    if (split == 1)
        merge_parts<D, HEADS, false>(a, item, kv, outputs);
    else
        merge_parts<D, HEADS, true>(a, item, kv, outputs);
    rotate_outputs<D>(a, item, kv, outputs);
}

// ---- what a warp reads -----------------------------------------------------------------------

// The tiles of a run that position p sees, of pages of the pass's basis: their addresses, in order,
// and their numbers; by a warp. Returns how many.
__device__ __forceinline__ int find_tiles(const step_group &g, const DecodeArgs &a,
                                          const dev_view &view, uint32_t run, uint32_t p,
                                          uint32_t kv, TileRef *tiles, uint8_t *numbers) {
    const uint32_t lane = threadIdx.x % 32, number = run * RUN_TILES + lane;
    const uint32_t first = number * TILE_TOKENS, start = kv_window_start(view.span, p);
    bool seen =
        lane < RUN_TILES && first <= p && (first < view.keep || first + TILE_TOKENS > start);
    TileRef t = {0};
    if (seen) {
        uint32_t layout = 0;
        const uint8_t *page = page_seen(g, view, number, p, &layout);
        const dev_layout &l = g.layouts[layout];
        t.bits = (uint64_t)tile_of(page, l, a.layer, kv, TILE_K) | layout;
        seen = page != nullptr && l.basis == a.basis;
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

// ---- what a block works on -------------------------------------------------------------------

// One item and KV head; of its super-run the runs that this block has.
struct Work {
    const decode_item &item;
    uint32_t kv, first_run, run; // the block's first, the warp's own
    int active, slots; // runs that have begun, one a warp; slots of the ring, for each of these
};

// Kernels of one format of keys do not take centred ones.
template <uint32_t KF> constexpr bool HAS_CENTRES = (KF & (KF - 1)) != 0;

// A warp's lane (r, q), as in cols.cuh.
struct Lane {
    int warp, lane, r, q;
};

// Tiles that the runs of a block see.
struct SeenTiles {
    TileRef (&tiles)[WARPS][RUN_TILES];
    uint8_t (&numbers)[WARPS][RUN_TILES], (&count)[WARPS];
};

// The part of the ring that warp w's run has.
template <class Ring>
__device__ __forceinline__ Ring ring_of(const step_group &g, const Work &work,
                                        const SeenTiles &seen, uint8_t *rings, uint64_t *bars,
                                        int w) {
    Ring ring;
    ring.ring = smem_at(rings) + w * work.slots * Ring::SLOT;
    ring.bars = smem_at(bars + w * work.slots);
    ring.slots = work.slots;
    ring.tiles = seen.tiles[w];
    ring.layouts = g.layouts;
    ring.n = seen.count[w];
    return ring;
}

// Asks for the first chunks; the result is the warp's own ring, empty if it has no run.
template <class Ring>
__device__ __forceinline__ Ring start_rings(const step_group &g, const Work &work,
                                            const SeenTiles &seen, uint8_t *rings, uint64_t *bars,
                                            int warp) {
    Ring ring;
    ring.n = 0;
    if (gridDim.z == 1 && work.active > 1) {
        __syncwarp();
        if (warp < work.active) {
            ring = ring_of<Ring>(g, work, seen, rings, bars, warp);
            ring.start();
        }
    } else { // warps without a run help
        __syncthreads();
        for (int w = 0; w < work.active; w++) {
            Ring shared = ring_of<Ring>(g, work, seen, rings, bars, w);
            shared.template start<1>(warp, WARPS);
            if (w == warp)
                ring = shared;
        }
    }
    return ring;
}

// ---- results of a warp -----------------------------------------------------------------------

// The state of a lane's heads before the first tile.
template <int D, uint32_t KF, int H>
__device__ __forceinline__ void begin_heads(const ColsQuery<D, KF, H> &query, int q,
                                            ColsState<H> &state) {
#pragma unroll
    for (int h = 0; h < H; h++) {
        state.unit[h] = query.unit[cols_head<H>(q, h)];
        state.top[h] = MINUS_INF;
        state.sum[h] = 0;
    }
}

// The 8 chains of each sum.
template <int H> __device__ __forceinline__ void sum_chains(ColsState<H> &state) {
#pragma unroll
    for (int h = 0; h < H; h++)
#pragma unroll
        for (int j = 4; j < 32; j *= 2)
            state.sum[h] += __shfl_xor_sync(~0u, state.sum[h], j);
}

// A run's outputs, from instruction `first` on, to [gqa][D] at `to`; its maxima and sums, to runs.
template <int D, int MAP, int H, int M>
__device__ __forceinline__ void leave_run(RunResults<Cols<H>::HEADS> &runs, float *to,
                                          const Lane &at, uint32_t gqa, const ColsState<H> &state,
                                          int first, const float (&out)[M][Cols<H>::BLOCKS][4]) {
#pragma unroll
    for (int h = 0; h < H; h++) {
        const int head = cols_head<H>(at.q, h);
        if (head >= (int)gqa)
            continue;
#pragma unroll
        for (int m = 0; m < M; m++)
            *(float2 *)(to + head * D + cols_dim<MAP>(first + m, at.r)) =
                make_float2(out[m][h / 2][h % 2], out[m][h / 2][2 + h % 2]);
        if (at.r == 0) {
            runs.max[at.warp][head] = state.top[h];
            runs.sum[at.warp][head] = state.sum[h];
        }
    }
}

// Raw scores of tile `tile`, whose layout is l; in_run: as of ColsCentre::add.
template <int D, uint32_t KF, int H, class Ring>
__device__ __forceinline__ void
tile_scores(Ring &ring, const Lane &at, const ColsQuery<D, KF, H> &query,
            const ColsCentre<H> &centre, const dev_layout &l, uint32_t tile, int in_run,
            uint64_t seen, float (&p)[H][8]) {
    const bool centred = HAS_CENTRES<KF> && l.centred != 0;
    cols_scores<D, KF, H>(ring, at.r, at.q, query, l.k, l.k_bf16 != 0, seen, p,
                          [&](ColsDots<H> &d) {
                              if (centred)
                                  centre.add(tile, in_run, at.r, at.q, query.unit, d);
                          });
}

// ---- a run of each warp ----------------------------------------------------------------------

// The warp's own run, tile by tile; its result goes into its ring, which nothing is copied to any
// more.
template <int D, uint32_t KF, uint32_t VF, int H, class Ring>
__device__ __forceinline__ void
attend_run(const step_group &g, const DecodeArgs &a, const Work &work, const SeenTiles &tiles,
           const Lane &at, Ring &ring, uint8_t *rings, uint32_t exchange,
           const ColsQuery<D, KF, H> &query, const ColsCentre<H> &centre, ColsState<H> &state,
           RunResults<Cols<H>::HEADS> &runs) {
    constexpr int MAP = VF & GROUPS_OF_32 || !(VF & ~EXACT_FORMATS) ? 32 : 64;
    float out[D / 16][Cols<H>::BLOCKS][4] = {};
    for (int i = 0; i < ring.n; i++) {
        const uint32_t tile = work.run * RUN_TILES + tiles.numbers[at.warp][i];
        const dev_layout *layout = &g.layouts[tiles.tiles[at.warp][i].layout()];
        const bool v_bf16 = layout->v_bf16;
        const uint64_t seen = seen_of_tile(work.item.view, work.item.pos, tile * TILE_TOKENS);
        float p[H][8];
        tile_scores<D, KF, H>(ring, at, query, centre, *layout, tile, i, seen, p);
        cols_softmax<H, D / 16>(state, p, out);
        cols_values<D, VF, MAP, H, D / 32>(ring, exchange, at.r, at.q, layout->v, v_bf16, seen, p,
                                           0, out);
    }
    sum_chains(state);
    __syncwarp();
    if (at.warp < work.active)
        leave_run<D, MAP, H>(runs, (float *)(rings + at.warp * work.slots * Ring::SLOT), at, a.gqa,
                             state, 0, out);
    else if (at.lane < Cols<H>::HEADS) // after the row's end: nothing was seen
        runs.max[at.warp][at.lane] = MINUS_INF;
}

// ---- a run of four warps ---------------------------------------------------------------------

// Visits a tile of the block's run: fn(layout, seen, chunks of K, of V).
template <uint32_t KF, uint32_t VF, class Fn>
__device__ __forceinline__ void visit_tile(const step_group &g, const Work &work,
                                           const SeenTiles &tiles, int tile, Fn fn) {
    const dev_layout *layout = &g.layouts[tiles.tiles[0][tile].layout()];
    const uint32_t first = work.first_run * RUN + tiles.numbers[0][tile] * TILE_TOKENS;
    int k_chunks = 0, v_chunks = 0;
    with_format<KF>(layout->k, [&](auto f) { k_chunks = chunks_of(decltype(f)::value); });
    with_format<VF>(layout->v, [&](auto f) { v_chunks = chunks_of(decltype(f)::value); });
    fn(layout, seen_of_tile(work.item.view, work.item.pos, first), k_chunks, v_chunks);
}

// Where a lane has four scores of head h of a tile; i: tokens 8r + 4i and on.
template <int H>
__device__ __forceinline__ uint32_t score_place(uint32_t scores, int tile, int h, int i, int lane) {
    return scores + tile * TEAM_SCORES<H> + ((2 * h + i) * 32 + lane) * 16;
}

// A lane's scores of a tile, to shared memory.
template <int H>
__device__ __forceinline__ void put_scores(uint32_t scores, int tile, int lane,
                                           const float (&p)[H][8]) {
#pragma unroll
    for (int h = 0; h < H; h++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            sts128(score_place<H>(scores, tile, h, i, lane),
                   make_uint4(__float_as_uint(p[h][4 * i]), __float_as_uint(p[h][4 * i + 1]),
                              __float_as_uint(p[h][4 * i + 2]), __float_as_uint(p[h][4 * i + 3])));
}

// The same, back from there.
template <int H>
__device__ __forceinline__ void get_scores(uint32_t scores, int tile, int lane, float (&p)[H][8]) {
#pragma unroll
    for (int h = 0; h < H; h++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 four = lds128(score_place<H>(scores, tile, h, i, lane));
#pragma unroll
            for (int j = 0; j < 4; j++)
                p[h][4 * i + j] = __uint_as_float(word_of(four, j));
        }
}

// The block's one run: each of four warps has the scores of one tile, then some dims of all tiles.
template <int D, uint32_t KF, uint32_t VF, int H>
__device__ __forceinline__ void
attend_shared_run(const step_group &g, const DecodeArgs &a, const Work &work,
                  const SeenTiles &tiles, const Lane &at, uint8_t *rings, uint64_t *bars,
                  uint32_t exchange, const ColsQuery<D, KF, H> &query, const ColsCentre<H> &centre,
                  ColsState<H> &state, RunResults<Cols<H>::HEADS> &runs) {
    constexpr uint32_t SLOT = Stream<D, KF, VF>::SLOT;
    constexpr int N = D / 32 > RUN_TILES ? D / 32 / RUN_TILES : 1; // blocks of dims of a warp
    const int warp = at.warp, n = work.active ? tiles.count[0] : 0;
    const uint32_t scores = smem_at(rings) + a.slots * SLOT - RUN_TILES * TEAM_SCORES<H>;
    Resident<D> chunks = {smem_at(rings), smem_at(bars), SLOT, 0};
    float p[H][8];
    for (int tile = 0; tile <= warp && warp < n; tile++)
        visit_tile<KF, VF>(
            g, work, tiles, tile,
            [&](const dev_layout *layout, uint64_t seen, int k_chunks, int v_chunks) {
                if (tile < warp) {
                    chunks.at += k_chunks + v_chunks;
                    return;
                }
                tile_scores<D, KF, H>(chunks, at, query, centre, *layout,
                                      work.first_run * RUN_TILES + tiles.numbers[0][tile], -1, seen,
                                      p);
                put_scores<H>(scores, tile, at.lane, p);
            });
    __syncthreads();
    float out[2 * N][Cols<H>::BLOCKS][4] = {};
    chunks.at = 0;
    if (warp < D / 32 / N)
        for (int tile = 0; tile < n; tile++)
            visit_tile<KF, VF>(g, work, tiles, tile,
                               [&](const dev_layout *layout, uint64_t seen, int k_chunks, int) {
                                   get_scores<H>(scores, tile, at.lane, p);
                                   cols_softmax<H, 2 * N>(state, p, out);
                                   chunks.at += k_chunks;
                                   cols_values<D, VF, 32, H, N>(chunks, exchange, at.r, at.q,
                                                                layout->v, layout->v_bf16, seen, p,
                                                                warp * N, out);
                               });
    __syncthreads(); // the chunks are not needed any more
    if (warp < D / 32 / N) {
        sum_chains(state);
        leave_run<D, 32, H>(runs, (float *)rings, at, a.gqa, state, warp * 2 * N, out);
    }
}

// ---- the kernel ------------------------------------------------------------------------------

// The queries of a warp's columns.
template <int D, int H>
__device__ __forceinline__ void load_queries(const DecodeArgs &a, uint32_t row, uint32_t kv,
                                             int warp,
                                             float (&x)[Cols<H>::COLUMNS / WARPS][D / 32]) {
#pragma unroll
    for (int i = 0; i < Cols<H>::COLUMNS / WARPS; i++) {
        const int head = cols_head_of<H>(warp + i * WARPS);
        load_row<D>(a.q + ((size_t)row * a.heads + kv * a.gqa + head) * D,
                    head >= 0 && head < (int)a.gqa, x[i]);
    }
}

template <int D, uint32_t KF, uint32_t VF, int H>
__global__ void __launch_bounds__(THREADS, D <= 128 && H == 1 ? 2 : 1)
    decode(const step_group g, const DecodeArgs a) {
    using Ring = Stream<D, KF, VF>;
    constexpr int HEADS = Cols<H>::HEADS, COLUMNS = Cols<H>::COLUMNS;
    extern __shared__ __align__(128) uint8_t rings[];
    __shared__ __align__(16) ColsQuery<D, KF, H> query;
    __shared__ __align__(16) uint8_t exchanges[WARPS][Cols<H>::EXCHANGE_BYTES];
    __shared__ __align__(8) uint64_t bars[BARRIERS];
    __shared__ TileRef tiles[WARPS][RUN_TILES];
    __shared__ uint8_t numbers[WARPS][RUN_TILES], tiles_of[WARPS];
    __shared__ RunResults<HEADS> runs;
    __shared__ ColsCentreKept<H, HAS_CENTRES<KF> ? CENTRE_PAIRS : 1> kept;

    kernel_comes();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, q = lane % 4;
    const decode_item item = g.decode[blockIdx.x];
    const uint32_t kv = blockIdx.y,
                   first_run = item.super * SUPER_RUNS + SUPER_RUNS / gridDim.z * blockIdx.z,
                   run = first_run + warp;
    const uint32_t exchange = smem_at(exchanges[warp]);

    // The ring: the block's slots, shared by the warps whose run has begun.
    const int per_block = SUPER_RUNS / gridDim.z,
              active = max(0, min(per_block, (int)(item.pos / RUN - first_run) + 1)),
              slots = min(a.slots, BARRIERS) / max(active, 1);
    if (blockIdx.x >= g.counts[COUNT_DECODE] || active == 0) { // after the row's end
        kernel_waits();
        return;
    }
    ColsCentre<H> centre(a, item.row, kv, D, kept);
    int n = 0; // tiles of the warp
    if (warp < active) {
        n = find_tiles(g, a, item.view, run, item.pos, kv, tiles[warp], numbers[warp]);
        if (lane == 0)
            tiles_of[warp] = n;
        for (int i = lane; i < slots; i += 32)
            barrier_init(smem_at(bars + warp * slots + i), COPY_ARRIVALS);
    }
    centre.look_ahead(run * RUN_TILES, numbers[warp], n);
    barriers_ready();
    kernel_waits();

    // queries on their way, and the first chunks
    const Work work = {item, kv, first_run, run, active, slots};
    const Lane at = {warp, lane, r, q};
    const SeenTiles seen = {tiles, numbers, tiles_of};
    float x[COLUMNS / WARPS][D / 32];
    load_queries<D, H>(a, item.row, kv, warp, x);
    Ring ring = start_rings<Ring>(g, work, seen, rings, bars, warp);
#pragma unroll
    for (int i = 0; i < COLUMNS / WARPS; i++) {
        scale_row<D>(x[i], a.scale, a.turn);
        cols_pack<D, KF, H>(x[i], warp + i * WARPS, query);
    }
    centre.keep();
    __syncthreads();

    ColsState<H> state;
    begin_heads<D, KF, H>(query, q, state);
    const bool team = a.team && active == 1;
    if (team)
        attend_shared_run<D, KF, VF, H>(g, a, work, seen, at, rings, bars, exchange, query, centre,
                                        state, runs);
    else
        attend_run<D, KF, VF, H>(g, a, work, seen, at, ring, rings, exchange, query, centre, state,
                                 runs);
    finish<D, HEADS>(a, item, blockIdx.x, kv, runs, team ? 1 : per_block, (float *)rings,
                     slots * Ring::SLOT / 4);
}

// ---- launches --------------------------------------------------------------------------------

template <int D, uint32_t KF, uint32_t VF, int H> DecodeChoice choice_of() {
    constexpr uint32_t SLOT = Stream<D, KF, VF>::SLOT;
    constexpr int CHUNKS = RUN_TILES * (most_chunks(KF) + most_chunks(VF));
    return {decode<D, KF, VF, H>, SLOT, D <= 128 && H == 1 ? 2 : 1,
            CHUNKS * SLOT + RUN_TILES * TEAM_SCORES<H>, CHUNKS};
}

} // namespace
