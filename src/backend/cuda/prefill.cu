// SPDX-License-Identifier: Apache-2.0
// prefill.cu: attention of many rows.
//
// A block is (some tokens of one sequence, KV head): its query rows are (token, query head of the
// group), 16 or 32 to a warp, 8 warps (4 for 256 dims). All of them go over the tiles that some row
// sees, in order of position; the tiles come through one ring of shared memory, which a warp of its
// own fills:
//
//     slot    | K chunk | K chunk | V chunk | V chunk | K chunk | ...
//     full    opens when a chunk's bytes have come       warps wait for it
//     empty   opens when all warps are done with it      the producer waits for it, and asks for
//                                                        the next chunk
//
// (Where one of the 8 did that beside its rows, all waited for it: a third of the time.) The
// producer needs few registers, and on sm_90 gives the rest of its share to the others.
//
// The sums of a row are those of decode.cu, so its bits are, too:
//
//     run, 256 tokens       in registers
//     super, 2,048 tokens   in shared memory, each thread its own part
//     row                   in out itself, until it is divided by the row's sum
//
// Blocks whose queries see most come first.
#include "backend/cuda/rows.cuh"

namespace {

enum { SLOTS_MAX = 12, SLOTS_MIN = 4 };

// One lane of a warp says that all are done with a chunk. compute-sanitizer's racecheck follows
// each thread by itself, so for it all of them do.
#ifdef KVASIR_RACECHECK
enum { ARRIVALS = 32 };
#else
enum { ARRIVALS = 1 };
#endif

// Registers go from the warps that fill the ring to those that multiply: 4 warps each (a group).
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define REGISTERS_OF_PRODUCER() asm volatile("setmaxnreg.dec.sync.aligned.u32 40;")
#define REGISTERS_OF_ROWS()     asm volatile("setmaxnreg.inc.sync.aligned.u32 232;")
#else
#define REGISTERS_OF_PRODUCER() (void)0
#define REGISTERS_OF_ROWS()     (void)0
#endif

struct PrefillArgs {
    const float *q; // [row][head][D]
    float *out;
    float scale;
    uint32_t layer, heads, gqa, kv_heads;
    int slots;
};

// The fold of a row so far.
struct RowFold {
    float super_max, super_sum, max, sum;
};

// The tiles that some row of a block sees, in order: those with kept positions, then the window's.
struct Tiles {
    uint32_t kept, window, end; // numbers: [0, kept), then [window, end)
    __device__ uint32_t first() const { return kept ? 0 : window; }
    __device__ uint32_t next(uint32_t n) const {
        return n + 1 >= kept && n + 1 < window ? window : n + 1;
    }
};

template <int D, uint32_t KF, uint32_t VF, int M, int WARPS> struct Block {
    static constexpr int ROWS = WARPS * 16 * M, THREADS = WARPS * 32, ALL = THREADS + 128,
                         PARTS = M * 2 * D / 16; // float4 of a thread's outputs
    // Exact pages: scores and values of half a tile, then of the other: 32 rows have no registers
    // for the scores of a whole one.
    static constexpr bool BY_HALVES = M == 2;
    static constexpr uint32_t SLOT = slot_bytes(KF | VF, D, true), SCALES = scales_at(D, true);
    struct Shared {
        RowsQuery<D, KF, ROWS> query;
        RowFold fold[ROWS];
        alignas(16) float4 super[PARTS][THREADS];
        alignas(8) uint64_t full[SLOTS_MAX], empty[SLOTS_MAX];
        uint32_t layout[SLOTS_MAX]; // of the tile that a slot's chunk belongs to
    };
    static constexpr uint32_t RING = (sizeof(Shared) + 127) / 128 * 128; // where slots begin
};

// Asks for all chunks, in order; by one warp.
template <class B, int D, uint32_t KF, uint32_t VF>
__device__ __forceinline__ void produce(const step_group &g, const PrefillArgs &a, uint32_t kv,
                                        const dev_view &view, const Tiles &tiles,
                                        typename B::Shared &sh, uint32_t ring) {
    int slot = 0, phase = 1; // the first round's slots are empty: that phase has passed already
    for (uint32_t number = tiles.first(); number < tiles.end; number = tiles.next(number)) {
        uint32_t layout = 0;
        const uint8_t *page = page_find(g, view, number, &layout);
        const dev_layout &l = g.layouts[layout];
        const uint8_t *tile = page + (size_t)a.layer * l.layer_bytes + (size_t)kv * l.head_bytes;
        auto ask = [&](auto copy) {
            barrier_wait(smem_at(&sh.empty[slot]), phase);
            if (threadIdx.x % 32 == 0)
                sh.layout[slot] = layout;
            __syncwarp();
            copy(ring + slot * B::SLOT, smem_at(&sh.full[slot]));
            if (++slot == a.slots) {
                slot = 0;
                phase ^= 1;
            }
        };
        const int rounds = B::BY_HALVES ? 2 : 1;
        for (int h = 0; h < rounds; h++) {
            with_format<KF>(l.k, [&](auto f) {
                constexpr int F = decltype(f)::value;
                const int n = chunks_of(F) / rounds;
                for (int c = h * n; c < (h + 1) * n; c++)
                    ask([&](uint32_t to, uint32_t bar) {
                        chunk_copy<F, true, D, true>(tile, c, to, B::SCALES, bar);
                    });
            });
            with_format<VF>(l.v, [&](auto f) {
                constexpr int F = decltype(f)::value;
                const int n = chunks_of(F) / rounds;
                for (int c = h * n; c < (h + 1) * n; c++)
                    ask([&](uint32_t to, uint32_t bar) {
                        chunk_copy<F, false, D, true>(tile + l.k_bytes, c, to, B::SCALES, bar);
                    });
            });
        }
    }
}

// The ring as all warps read it.
struct Consumer {
    uint32_t ring, full, empty, slot_bytes;
    int slots, at, phase;
    __device__ __forceinline__ uint32_t wait(int ahead = 0) {
        int slot = at + ahead, p = phase;
        if (slot >= slots) {
            slot -= slots;
            p ^= 1;
        }
        barrier_wait(full + 8 * slot, p);
        return ring + slot * slot_bytes;
    }
    __device__ __forceinline__ void release() {
        __syncwarp();
        if (threadIdx.x % 32 < ARRIVALS)
            barrier_arrive(empty + 8 * at);
        if (++at == slots) {
            at = 0;
            phase ^= 1;
        }
    }
};

template <int D, uint32_t KF, uint32_t VF, int M, int WARPS>
__global__ void __launch_bounds__(WARPS * 32 + 128, 1)
    prefill(const step_group g, const PrefillArgs a) {
    using B = Block<D, KF, VF, M, WARPS>;
    constexpr bool CODES = has_codes(VF);
    constexpr int BG = VF & GROUPS_OF_32 ? 32 : 64, BIASES = CODES ? D / BG : 1;
    static_assert(M == 1 || !has_codes(KF | VF), "32 rows a warp: exact pages only");
    extern __shared__ __align__(128) uint8_t memory[];
    auto &sh = *reinterpret_cast<typename B::Shared *>(memory);

    kernel_begins();
    const uint32_t index = blockIdx.x / a.kv_heads, kv = blockIdx.x % a.kv_heads;
    if (index >= g.counts[COUNT_PREFILL])
        return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, q = lane % 4;
    const prefill_item item = g.prefill[index];
    const batch_seq seq = g.seqs[item.seq];
    const dev_view view = g.views[item.seq];
    const uint32_t pos = seq.pos + item.first, last = pos + item.tokens - 1,
                   end = seq.pos + seq.rows; // tokens behind this were never written

    // tiles
    Tiles tiles;
    tiles.end = last / TILE_TOKENS + 1;
    tiles.window = window_start(view.span, pos) / TILE_TOKENS;
    tiles.kept = (min(view.keep, last + 1) + TILE_TOKENS - 1) / TILE_TOKENS;
    if (tiles.window <= tiles.kept)
        tiles.window = tiles.kept;

    // the ring
    if (threadIdx.x < a.slots) {
        barrier_init(smem_at(&sh.full[threadIdx.x]), COPY_ARRIVALS);
        barrier_init(smem_at(&sh.empty[threadIdx.x]), WARPS * ARRIVALS);
    }
    barriers_ready();
    __syncthreads();
    if (warp >= WARPS) {
        REGISTERS_OF_PRODUCER();
        if (warp == WARPS)
            produce<B, D, KF, VF>(g, a, kv, view, tiles, sh, smem_at(memory) + B::RING);
        return;
    }
    REGISTERS_OF_ROWS();
    Consumer ring = {
        smem_at(memory) + B::RING, smem_at(sh.full), smem_at(sh.empty), B::SLOT, a.slots, 0, 0};

    // queries of this warp
    const int own = warp * 16 * M;
    for (int i = 0; i < 16 * M; i++) {
        const uint32_t row = own + i, token = row / a.gqa, head = kv * a.gqa + row % a.gqa;
        rows_pack<D, KF, B::ROWS>(a.q +
                                      ((size_t)(seq.row + item.first + token) * a.heads + head) * D,
                                  a.scale, row, token < item.tokens, sh.query);
        if (lane == 0)
            sh.fold[row] = {MINUS_INF, 0, MINUS_INF, 0};
    }
    __syncwarp();
    float sum32[2][D / 32];
    rows_sums<D, KF, B::ROWS>(sh.query, own + r, sum32);
    const uint32_t p_min = pos + min(own / a.gqa, item.tokens - 1),
                   p_max = pos + min((own + 16 * M - 1) / a.gqa, item.tokens - 1);
    const bool idle = own / a.gqa >= item.tokens;

    RowState<M> state;
    float o[M][D / 32][4][4], bias[2][BIASES][2];
    auto run_start = [&] {
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                state.max[m][i] = MINUS_INF;
                state.sum[m][i][0] = state.sum[m][i][1] = 0;
            }
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int k = 0; k < D / 32; k++)
#pragma unroll
                for (int t = 0; t < 4; t++)
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        o[m][k][t][c] = 0;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int k = 0; k < BIASES; k++)
                bias[i][k][0] = bias[i][k][1] = 0;
    };
    run_start();
    bool super_fresh = true, row_fresh = true;

    for (uint32_t number = tiles.first(); number < tiles.end;) {
        const uint32_t first = number * TILE_TOKENS;
        ring.wait();
        const dev_layout *layout = &g.layouts[sh.layout[ring.at]];
        const bool none = idle || first > p_max ||
                          (first >= view.keep && first + 63 < window_start(view.span, p_min));
        if (none) { // for this warp
            int chunks = 0;
            with_format<KF>(layout->k, [&](auto f) { chunks = chunks_of(decltype(f)::value); });
            with_format<VF>(layout->v, [&](auto f) { chunks += chunks_of(decltype(f)::value); });
            while (chunks--) {
                ring.wait();
                ring.release();
            }
        } else {
            // what the rows of a lane see of the tile, where some row does not see it all
            const bool masked = first + 63 > p_min ||
                                (first + 64 > view.keep && first < window_start(view.span, p_max));
            auto mask = [&](auto &s, int from) { // s: tokens from .. of half tiles
                constexpr int N = sizeof s[0][0] / sizeof s[0][0][0];
#pragma unroll
                for (int m = 0; m < M; m++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const uint32_t p =
                            pos + min((own + 16 * m + 8 * i + r) / a.gqa, item.tokens - 1);
                        const uint64_t seen =
                            (p < first ? 0 : seen_of_tile(view, p, first)) >> (from + 8 * q);
#pragma unroll
                        for (int j = 0; j < N; j++)
                            if (!(seen >> (j / 8 * 32 + j % 8) & 1))
                                s[m][i][j] = MINUS_INF;
                    }
            };
            const float *units = exact_of<KF>(layout->k) ? sh.query.exact_unit : sh.query.unit;
            float unit[M][2], alpha[M][2];
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    unit[m][i] = units[own + 16 * m + 8 * i + r];
            const uint64_t written = first + 64 <= end ? ~0ull : (1ull << (end - first)) - 1;
            auto scores = [&](auto f, auto &s, int at) { // of an exact K, half a tile
                constexpr int F = decltype(f)::value;
                float d[M][4][4] = {};
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    rows_scores_exact<F, D, M>(
                        ring.wait(), c, r, q,
                        smem_at(sh.query.half[F == BF16 ? halves_of(KF) - 1 : 0][own / 16]), d);
                    ring.release();
                }
                rows_scores_take(d, s, at);
            };
            auto values = [&](auto f, auto clean, const float(&p)[M][2][8], int h) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    rows_values_exact<decltype(f)::value, D, M, decltype(clean)::value>(
                        ring.wait(), h, c, r, q, p, written, o);
                    ring.release();
                }
            };
            if constexpr (B::BY_HALVES) {
                constexpr Format<KF & bit(F16) ? F16 : BF16> f;
                for (int h = 0; h < 2; h++) {
                    float p[M][2][8];
                    scores(f, p, 0);
                    if (masked)
                        mask(p, 32 * h);
                    rows_softmax<M, 8>(p, unit, state, alpha);
                    rows_rescale<D, M, BIASES>(alpha, o, bias);
                    if (~written)
                        values(f, Format<1>(), p, h);
                    else
                        values(f, Format<0>(), p, h);
                }
            } else {
                float s[M][2][16];
                with_format<KF>(layout->k, [&](auto f) {
                    constexpr int F = decltype(f)::value;
                    if constexpr (exact_of(F)) {
                        scores(f, s, 0);
                        scores(f, s, 8);
                    } else {
                        uint32_t codes[2] = {ring.wait(), 0};
                        if (chunks_of(F) == 2)
                            codes[1] = ring.wait(1);
                        rows_scores_affine<F, D>(codes, codes[0] + B::SCALES, r, q,
                                                 smem_at(sh.query.planes[own / 16]), sum32,
                                                 layout->k_bf16, s[0]);
                        for (int c = 0; c < chunks_of(F); c++)
                            ring.release();
                    }
                });
                if (masked)
                    mask(s, 0);
                with_format<VF>(layout->v, [&](auto f) {
                    constexpr int F = decltype(f)::value;
                    if constexpr (exact_of(F)) {
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            float p[M][2][8];
#pragma unroll
                            for (int j = 0; j < 8; j++)
                                p[0][0][j] = s[0][0][8 * h + j], p[0][1][j] = s[0][1][8 * h + j];
                            rows_softmax<M, 8>(p, unit, state, alpha);
                            rows_rescale<D, M, BIASES>(alpha, o, bias);
                            values(f, Format<1>(), p, h);
                        }
                    } else {
                        rows_softmax<M, 16>(s, unit, state, alpha);
                        rows_rescale<D, M, BIASES>(alpha, o, bias);
                        uint32_t codes[2] = {ring.wait(), 0};
                        if (chunks_of(F) == 2)
                            codes[1] = ring.wait(1);
                        rows_values_affine<F, D, BG>(codes, codes[0] + B::SCALES, r, q, s[0],
                                                     written, layout->v_bf16, o[0], bias);
                        for (int c = 0; c < chunks_of(F); c++)
                            ring.release();
                    }
                });
            }
        }

        const uint32_t next = tiles.next(number);
        const bool ends = next >= tiles.end;
        if (ends || next / RUN_TILES != number / RUN_TILES) { // run into super
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    RowFold &fold_of = sh.fold[own + 16 * m + 8 * i + r];
                    float top = fold_of.super_max;
                    const FoldFactors f = fold_factors(top, state.max[m][i]);
                    const float sum = fold(f, fold_of.super_sum,
                                           rows_tree(state.sum[m][i][0], state.sum[m][i][1]));
                    __syncwarp();
                    if (q == 0) {
                        fold_of.super_max = top;
                        fold_of.super_sum = sum;
                    }
#pragma unroll
                    for (int k = 0; k < D / 32; k++) {
                        const int b = CODES ? k * 32 / BG : 0;
                        const float add = CODES ? rows_tree(bias[i][b][0], bias[i][b][1]) : 0.f;
#pragma unroll
                        for (int c = 0; c < 2; c++) {
                            float4 *at =
                                &sh.super[((m * 2 + i) * (D / 32) + k) * 2 + c][threadIdx.x];
                            float4 all = super_fresh ? make_float4(0, 0, 0, 0) : *at;
                            float v[4];
#pragma unroll
                            for (int t = 0; t < 4; t++)
                                v[t] = CODES ? o[m][k][t][2 * i + c] + add : o[m][k][t][2 * i + c];
                            if (f.seen) {
                                all.x = fold_seen(f, all.x, v[0]);
                                all.y = fold_seen(f, all.y, v[1]);
                                all.z = fold_seen(f, all.z, v[2]);
                                all.w = fold_seen(f, all.w, v[3]);
                            }
                            *at = all;
                        }
                    }
                }
            super_fresh = false;
            __syncwarp();
            run_start();
        }
        if (ends || next / (RUN_TILES * SUPER_RUNS) != number / (RUN_TILES * SUPER_RUNS)) {
            // super into row
            for (int j = 0; j < 2 * M; j++) {
                const int row = own + 8 * j + r;
                const uint32_t token = row / a.gqa, head = kv * a.gqa + row % a.gqa;
                RowFold &fold_of = sh.fold[row];
                float top = fold_of.max;
                const FoldFactors f = fold_factors(top, fold_of.super_max);
                const float sum = fold(f, fold_of.sum, fold_of.super_sum);
                __syncwarp();
                if (q == 0)
                    fold_of = {MINUS_INF, 0, top, sum};
                float *out = a.out + ((size_t)(seq.row + item.first + token) * a.heads + head) * D;
                if (token < item.tokens) {
                    for (int k = 0; k < D / 32; k++)
                        for (int c = 0; c < 2; c++) {
                            float4 *at = (float4 *)(out + 32 * k + 8 * q + 4 * c);
                            const float4 part = sh.super[(j * (D / 32) + k) * 2 + c][threadIdx.x];
                            float4 all = row_fresh ? make_float4(0, 0, 0, 0) : *at;
                            all.x = fold(f, all.x, part.x);
                            all.y = fold(f, all.y, part.y);
                            all.z = fold(f, all.z, part.z);
                            all.w = fold(f, all.w, part.w);
                            if (ends) {
                                all.x /= sum;
                                all.y /= sum;
                                all.z /= sum;
                                all.w /= sum;
                            }
                            *at = all;
                        }
                }
            }
            row_fresh = false;
            super_fresh = true;
            __syncwarp();
        }
        number = next;
    }
}

// ---- launches --------------------------------------------------------------------------------

using Kernel = void (*)(step_group, PrefillArgs);
struct Choice {
    Kernel kernel;
    uint32_t rows, threads, shared, slot; // of a block; shared: without slots
};
template <int D, uint32_t KF, uint32_t VF, int M, int WARPS> Choice choice_of() {
    using B = Block<D, KF, VF, M, WARPS>;
    return {prefill<D, KF, VF, M, WARPS>, B::ROWS, B::ALL, B::RING, B::SLOT};
}

Choice choose(uint32_t k, uint32_t v, uint32_t dim) {
    if (dim == 64)
        return choice_of<64, K_FORMATS, V_FORMATS, 1, 8>();
    if (dim == 256)
        return choice_of<256, K_FORMATS, V_FORMATS, 1, 4>();
#define ONE(K, V, M)                                                                               \
    if (k == bit(K) && v == bit(V))                                                                \
        return choice_of<128, bit(K), bit(V), M, 8>();
    ONE(F16, F16, 2)
    ONE(BF16, BF16, 2)
    ONE(Q8G64, Q8G64, 1)
    ONE(Q8G64, Q4G64, 1)
    ONE(Q4G64, Q4G64, 1)
#undef ONE
    return choice_of<128, K_FORMATS, V_FORMATS, 1, 8>();
}

} // namespace

uint32_t prefill_block_rows(uint32_t k_formats, uint32_t v_formats, uint32_t head_dim) {
    return choose(k_formats, v_formats, head_dim).rows;
}

// Slots of a block's ring; with fewer than SLOTS_MIN the kernel cannot run.
static int slots_of(const cuda_backend *b, const Choice &c) {
    const int slots = ((int)b->shared_per_block - (int)c.shared) / (int)c.slot;
    return slots < SLOTS_MAX ? slots : SLOTS_MAX;
}

bool prefill_fits(const cuda_backend *b, uint32_t k_formats, uint32_t v_formats,
                  uint32_t head_dim) {
    return slots_of(b, choose(k_formats, v_formats, head_dim)) >= SLOTS_MIN;
}

void attention_prefill(cuda_backend *b, uint32_t group, uint32_t layer, const float *q,
                       uint32_t heads, float scale, float *out) {
    const group_plan &plan = b->plan[group];
    const uint32_t kv_heads = b->limits.group[group].kv_heads;
    const Choice c = choose(plan.k_formats, plan.v_formats, b->limits.group[group].head_dim);
    const int slots = slots_of(b, c);
    const uint32_t bytes = c.shared + slots * c.slot;
    if (!cuda_ok(b, cudaFuncSetAttribute(c.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)bytes)))
        return;
    const PrefillArgs args = {q, out, scale, layer, heads, heads / kv_heads, kv_heads, slots};
    cuda_ok(b, launch_early(b, c.kernel, plan.blocks[COUNT_PREFILL] * kv_heads, c.threads, bytes,
                            b->group[group], args));
}
