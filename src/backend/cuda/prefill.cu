// SPDX-License-Identifier: Apache-2.0
// prefill.cu: attention of many rows.
//
// A block is (some tokens of one sequence, KV head): its query rows are (token, query head of the
// group), 16 or 32 to a warp, 8 warps. All of them go over the tiles that some row sees, in order of
// position; the tiles come through one ring of shared memory:
//
//     slot    | K chunk | K chunk | V chunk | V chunk | K chunk | ...
//     full    opens when a chunk's bytes have come       warps wait for it
//     empty   opens when all warps are done with it      warp 0 waits for it, then asks for the next
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

enum { SLOTS_MAX = 12, SLOTS_MIN = 4, LAG = 2 };

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
    __device__ uint32_t next(uint32_t n) const { return n + 1 >= kept && n + 1 < window ? window : n + 1; }
};

// The ring as warp 0 fills it. It lives in shared memory: registers are what this kernel is short of.
struct Producer {
    uint32_t number, asked; // tile that is asked for next; chunks so far
    int chunk, k_chunks, all; // of the tile
    const uint8_t *tile;
    uint32_t layout, k_bytes;
    int slot, phase;  // where it goes; phase of `empty` that must have passed
    bool first_round; // slots are empty as they are
};

template <int D, uint32_t KF, uint32_t VF, int M, int WARPS> struct Block {
    static constexpr int ROWS = WARPS * 16 * M, THREADS = WARPS * 32,
                         PARTS = M * 2 * D / 16; // float4 of a thread's outputs
    static constexpr uint32_t SLOT = slot_bytes(KF | VF, D, true),
                              SCALES = scales_at(KF | VF, D, true);
    struct Shared {
        RowsQuery<D, KF, ROWS> query;
        RowFold fold[ROWS];
        alignas(16) float4 super[PARTS][THREADS];
        alignas(8) uint64_t full[SLOTS_MAX], empty[SLOTS_MAX];
        uint32_t layout[SLOTS_MAX]; // of the tile that a slot's chunk belongs to
        Producer producer;
    };
    static constexpr uint32_t RING = (sizeof(Shared) + 127) / 128 * 128; // where slots begin
};

// Asks for chunks until `upto` have been asked for; by warp 0.
template <class B, int D, uint32_t KF, uint32_t VF>
__device__ __forceinline__ void fill(const step_group &g, const PrefillArgs &a, uint32_t kv,
                                     uint32_t seq, const Tiles &tiles, typename B::Shared &sh,
                                     uint32_t ring, uint32_t upto) {
    if (sh.producer.asked >= upto || sh.producer.number >= tiles.end)
        return;
    Producer p = sh.producer;
    do {
        if (p.chunk == 0) {
            const uint8_t *page = page_find(g, g.views[seq], p.number, &p.layout);
            const dev_layout &l = g.layouts[p.layout];
            p.tile = page + (size_t)a.layer * l.layer_bytes + (size_t)kv * l.head_bytes;
            with_format<KF>(l.k, [&](auto f) {
                constexpr int F = decltype(f)::value;
                p.k_chunks = chunks_of(F);
                p.k_bytes = code_bytes_of(F, D) + scale_bytes_of(F, D);
            });
            with_format<VF>(l.v,
                            [&](auto f) { p.all = p.k_chunks + chunks_of(decltype(f)::value); });
        }
        if (!p.first_round)
            barrier_wait(smem_at(&sh.empty[p.slot]), p.phase);
        const uint32_t to = ring + p.slot * B::SLOT, bar = smem_at(&sh.full[p.slot]);
        if (threadIdx.x == 0)
            sh.layout[p.slot] = p.layout;
        __syncwarp();
        if (p.chunk < p.k_chunks)
            with_format<KF>(g.layouts[p.layout].k, [&](auto f) {
                chunk_copy<decltype(f)::value, true, D, true>(p.tile, p.chunk, to, B::SCALES, bar);
            });
        else
            with_format<VF>(g.layouts[p.layout].v, [&](auto f) {
                chunk_copy<decltype(f)::value, false, D, true>(
                    p.tile + p.k_bytes, p.chunk - p.k_chunks, to, B::SCALES, bar);
            });
        p.asked++;
        if (++p.slot == a.slots) {
            p.slot = 0;
            p.phase = p.first_round ? 0 : p.phase ^ 1;
            p.first_round = false;
        }
        if (++p.chunk == p.all) {
            p.chunk = 0;
            p.number = tiles.next(p.number);
        }
    } while (p.asked < upto && p.number < tiles.end);
    __syncwarp();
    if (threadIdx.x == 0)
        sh.producer = p;
    __syncwarp();
}

// The ring as all warps read it.
struct Consumer {
    uint32_t ring, full, empty, slot_bytes;
    int slots, at, phase;
    uint32_t done; // chunks so far
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
        if (threadIdx.x % 32 == 0)
            barrier_arrive(empty + 8 * at);
        done++;
        if (++at == slots) {
            at = 0;
            phase ^= 1;
        }
    }
};

template <int D, uint32_t KF, uint32_t VF, int M, int WARPS>
__global__ void __launch_bounds__(WARPS * 32, 1)
    prefill(const step_group g, const PrefillArgs a) {
    using B = Block<D, KF, VF, M, WARPS>;
    constexpr bool CODES = has_codes(VF);
    constexpr int BG = VF & GROUPS_OF_32 ? 32 : 64, BIASES = CODES ? D / BG : 1;
    static_assert(M == 1 || !has_codes(KF | VF), "32 rows a warp: exact pages only");
    extern __shared__ __align__(128) uint8_t memory[];
    auto &sh = *reinterpret_cast<typename B::Shared *>(memory);

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
    tiles.kept = min((view.keep + TILE_TOKENS - 1) / TILE_TOKENS, tiles.end);
    if (tiles.window <= tiles.kept)
        tiles.window = tiles.kept;

    // the ring
    if (threadIdx.x < a.slots) {
        barrier_init(smem_at(&sh.full[threadIdx.x]), COPY_ARRIVALS);
        barrier_init(smem_at(&sh.empty[threadIdx.x]), WARPS);
    }
    if (threadIdx.x == 0)
        sh.producer = {tiles.first(), 0, 0, 0, 0, nullptr, 0, 0, 0, 0, true};
    barriers_ready();
    __syncthreads();
    Consumer ring = {smem_at(memory) + B::RING, smem_at(sh.full), smem_at(sh.empty), B::SLOT,
                     a.slots,                   0,                0,                 0};
    auto ask = [&] {
        if (warp == 0)
            fill<B, D, KF, VF>(g, a, kv, item.seq, tiles, sh, ring.ring,
                               ring.done + a.slots - LAG);
    };
    ask();

    // queries of this warp
    const int own = warp * 16 * M;
    for (int i = 0; i < 16 * M; i++) {
        const uint32_t row = own + i, token = row / a.gqa, head = kv * a.gqa + row % a.gqa;
        rows_pack<D, KF, B::ROWS>(
            a.q + ((size_t)(seq.row + item.first + token) * a.heads + head) * D, a.scale, row,
            token < item.tokens, sh.query);
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
        ask();
        ring.wait();
        const dev_layout *layout = &g.layouts[sh.layout[ring.at]];
        const bool none = idle || first > p_max ||
                          (first >= view.keep && first + 63 < window_start(view.span, p_min));
        if (none) { // for this warp
            int chunks = 0;
            with_format<KF>(layout->k, [&](auto f) { chunks = chunks_of(decltype(f)::value); });
            with_format<VF>(layout->v, [&](auto f) { chunks += chunks_of(decltype(f)::value); });
            while (chunks--) {
                ask();
                ring.wait();
                ring.release();
            }
        } else {
            float s[M][2][2][8], alpha[M][2];
            with_format<KF>(layout->k, [&](auto f) {
                constexpr int F = decltype(f)::value;
                if constexpr (exact_of(F)) {
                    float d[M][2][4][4] = {};
#pragma unroll
                    for (int c = 0; c < 4; c++) {
                        rows_scores_exact<F, D, M>(
                            ring.wait(), c, r, q,
                            smem_at(sh.query.half[F == BF16 ? halves_of(KF) - 1 : 0][own / 16]), d);
                        ring.release();
                    }
                    rows_scores_take<M>(d, s);
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
            ask();
            if (first + 63 > p_min ||
                (first + 64 > view.keep && first < window_start(view.span, p_max))) {
#pragma unroll
                for (int m = 0; m < M; m++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const uint32_t p =
                            pos + min((own + 16 * m + 8 * i + r) / a.gqa, item.tokens - 1);
                        const uint32_t start = window_start(view.span, p);
#pragma unroll
                        for (int j = 0; j < 16; j++)
                            if (!sees(view.keep, start, p, first + j / 8 * 32 + 8 * q + j % 8))
                                s[m][i][j / 8][j % 8] = MINUS_INF;
                    }
            }
            const float *units = exact_of<KF>(layout->k) ? sh.query.exact_unit : sh.query.unit;
            float unit[M][2];
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    unit[m][i] = units[own + 16 * m + 8 * i + r];
            rows_softmax<M>(s, unit, state, alpha);
            rows_rescale<D, M, BIASES>(alpha, o, bias);
            const uint64_t seen = first + 64 <= end ? ~0ull : (1ull << (end - first)) - 1;
            with_format<VF>(layout->v, [&](auto f) {
                constexpr int F = decltype(f)::value;
                if constexpr (exact_of(F)) {
                    auto values = [&](auto clean) {
#pragma unroll
                        for (int c = 0; c < 4; c++) {
                            rows_values_exact<F, D, M, decltype(clean)::value>(ring.wait(), c, r, q,
                                                                               s, seen, o);
                            ring.release();
                        }
                    };
                    if (~seen)
                        values(Format<1>());
                    else
                        values(Format<0>());
                } else {
                    uint32_t codes[2] = {ring.wait(), 0};
                    if (chunks_of(F) == 2)
                        codes[1] = ring.wait(1);
                    rows_values_affine<F, D, BG>(codes, codes[0] + B::SCALES, r, q, s[0], seen,
                                                 layout->v_bf16, o[0], bias);
                    for (int c = 0; c < chunks_of(F); c++)
                        ring.release();
                }
            });
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
                            float4 *at = &sh.super[((m * 2 + i) * (D / 32) + k) * 2 + c][threadIdx.x];
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
    return {prefill<D, KF, VF, M, WARPS>, B::ROWS, B::THREADS, B::RING, B::SLOT};
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

void attention_prefill(cuda_backend *b, uint32_t group, uint32_t layer, const float *q,
                       uint32_t heads, float scale, float *out) {
    const group_plan &plan = b->plan[group];
    const uint32_t kv_heads = b->limits.group[group].kv_heads;
    const Choice c = choose(plan.k_formats, plan.v_formats, b->limits.group[group].head_dim);
    int slots = ((int)b->shared_per_block - (int)c.shared) / (int)c.slot;
    slots = slots < SLOTS_MAX ? slots : SLOTS_MAX;
    if (slots < SLOTS_MIN) {
        cuda_ok(b, cudaErrorInvalidConfiguration);
        return;
    }
    const uint32_t bytes = c.shared + slots * c.slot;
    if (!cuda_ok(b, cudaFuncSetAttribute(c.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)bytes)))
        return;
    const PrefillArgs args = {q, out, scale, layer, heads, heads / kv_heads, kv_heads, slots};
    c.kernel<<<plan.blocks[COUNT_PREFILL] * kv_heads, c.threads, bytes, b->stream>>>(
        b->group[group], args);
    cuda_ok(b, cudaGetLastError());
}
