// SPDX-License-Identifier: Apache-2.0
// prefill.cuh: attention of many rows.
//
// A block is (some tokens of one sequence, KV head): its query rows are (token, query head of the
// group), 64 to a group of four warps. It goes over the tiles that some row sees, in order of
// position. Two more groups, one for K and one for V, read the tiles and put them into shared
// memory as 16-bit matrices (slots.cuh), once for all rows; from there on all formats are the same:
//
//     pages --K group--> slots of K --+--> rows: S = Q K^T, p = 2^(S - M), O += P V
//           --V group--> slots of V --+
//
//     full    opens when a slot holds a tile       the groups of rows wait for it
//     empty   opens when they are done with it     the group that fills it waits
//
// The groups that fill need few registers: on sm_90 they give the others to the groups of rows.
//
// The sums of a row are those of decode.cuh, and so are its bits:
//
//     run, 256 tokens       in registers
//     super, 2,048 tokens   in shared memory, each thread its own part
//     row                   in out itself, until it is divided by the row's sum
//
// Few rows after many tokens, such as the next message of a chat, make few blocks: then each
// super-run has blocks of its own (gridDim.y), which leave what they have of a row in part_out, and
// fold_supers merges them in the same order.
//
// The kernel is compiled for all formats that pages may have, with a branch per tile, and for the
// common ones alone: prefill.cu, and prefill_centred.cu where some keys are centred.
#pragma once

#include "backend/cuda/prefill_block.cuh"
#include "backend/cuda/prefill_centre.cuh"
#include "backend/cuda/wgmma.cuh"

// A kernel, and what its launch needs.
struct PrefillChoice {
    void (*kernel)(step_group, PrefillArgs);
    uint32_t rows, threads, shared, slot; // of a block; shared: without slots
};
// prefill_centred.cu. whole: for WHOLE_K_FORMATS and WHOLE_V_FORMATS.
PrefillChoice prefill_choose_centred(bool whole, uint32_t head_dim);

namespace {

// ---- tiles into slots ------------------------------------------------------------------------

// A slot of a tile that no row of this pass sees: values become zeros, keys may be anything.
template <bool K, int D, class Wait>
__device__ __forceinline__ void fill_unseen(uint32_t slot, Wait wait) {
    wait();
    for (uint32_t i = threadIdx.x % GROUP; !K && i < TILE_TOKENS * D / 8; i += GROUP)
        sts128(slot + i * 16, make_uint4(0, 0, 0, 0));
}

// All tiles of one side, in order, by a group.
template <bool K, int D, uint32_t FORMATS, bool ALONE>
__device__ __forceinline__ void fill(const step_group &g, const PrefillArgs &a, const Work &work,
                                     bool *bf16, uint8_t *kind, Ring ring) {
    const Tiles &tiles = work.tiles;
    const uint32_t end = work.end;
    for (uint32_t number = tiles.first(); number < tiles.end; number = tiles.next(number)) {
        uint32_t layout = 0;
        const uint8_t *page = page_seen(g, work.view, number, work.pos, &layout);
        const dev_layout &l = g.layouts[layout];
        const uint8_t *tile = tile_of(page, l, a.layer, work.kv, K ? TILE_K : TILE_V);
        auto wait = [&] { ring.wait_empty(); };
        const uint32_t first = number * TILE_TOKENS;
        const uint64_t written = first + 64 <= end ? ~0ull : (1ull << (end - first)) - 1;
        const bool of_pass = ALONE || l.basis == a.basis;
        if (of_pass)
            with_format<FORMATS>(K ? l.k : l.v, [&](auto f) {
                constexpr int F = decltype(f)::value;
                if constexpr (K && exact_of(F))
                    widen_keys_exact<D>(tile, ring.slot(), wait);
                else if constexpr (K && tile_of_ranges(F))
                    widen_keys_tile<F, D>(tile, l.k_bf16, ring.slot(), wait);
                else if constexpr (K)
                    widen_keys_affine<F, D>(tile, l.k_bf16, ring.slot(), wait);
                else if constexpr (exact_of(F))
                    widen_values_exact<D>(tile, written, ring.slot(), wait);
                else
                    widen_values_affine<F, D>(tile, l.v_bf16, written, ring.slot(), wait);
                if (threadIdx.x % GROUP == 0)
                    bf16[ring.at] = F == BF16;
            });
        else
            fill_unseen<K, D>(ring.slot(), wait);
        if (!ALONE && K && threadIdx.x % GROUP == 0)
            kind[ring.at] = !of_pass ? SLOT_OTHER : l.centred ? SLOT_CENTRED : SLOT_SEEN;
        written_for_wgmma();
        ring.arrive(ring.full);
        ring.next();
    }
}

// ---- queries ---------------------------------------------------------------------------------

// Row `row` of a group's 64, or zeros; by a warp.
template <int D, int KT, class B>
__device__ __forceinline__ void pack_query(const PrefillArgs &a, const float *q, int group, int row,
                                           bool some) {
    auto &sh = *reinterpret_cast<typename B::Shared *>(memory);
    constexpr int N = D / 32;
    const int lane = threadIdx.x % 32;
    float x[N];
    PackedRow<D> p;
    load_row<D>(q, some, x);
    scale_row<D>(x, a.scale, B::ALONE ? 0 : a.turn);
    pack_row<D>(x, p);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int dim = lane * N + i, quad = dim % 32 / 4,
                  half = dim / 32 * 4 + quad % 2 * 2 + quad / 4;
        const int at = ((half * 64 + row) * 8 + quad / 2 % 2 * 4 + place_in_quad(dim % 4)) * 2;
        if constexpr (KT & TYPE_F16)
            *(uint16_t *)&sh.query[0][group][at] = (uint16_t)pack_half2<false>(p.x[i], 0);
        if constexpr (KT & TYPE_BF16)
            *(uint16_t *)&sh.query[B::QUERIES - 1][group][at] =
                (uint16_t)pack_half2<true>(p.x[i], 0);
    }
    if (lane == 0) {
        sh.unit[group * GROUP_ROWS + row] = p.unit;
        sh.state[group * GROUP_ROWS + row] = {MINUS_INF, 0, MINUS_INF, 0};
    }
}
// ---- rows ------------------------------------------------------------------------------------

// The 8 chains of a row in one tree.
__device__ __forceinline__ float tree(float low, float high) {
    low += __shfl_xor_sync(~0u, low, 1);
    high += __shfl_xor_sync(~0u, high, 1);
    low += __shfl_xor_sync(~0u, low, 2);
    high += __shfl_xor_sync(~0u, high, 2);
    return low + high;
}

// The tiles that some row of an item sees, from position `first` to `last`.
__device__ __forceinline__ Tiles tiles_seen(const dev_view &view, uint32_t first, uint32_t last) {
    Tiles tiles;
    tiles.start = 0;
    tiles.end = last / TILE_TOKENS + 1;
    tiles.window = kv_window_start(view.span, first) / TILE_TOKENS;
    tiles.kept = (min(view.keep, last + 1) + TILE_TOKENS - 1) / TILE_TOKENS;
    if (tiles.window <= tiles.kept)
        tiles.window = tiles.kept;
    return tiles;
}

// Those of one super-run.
__device__ __forceinline__ Tiles tiles_of_super(const Tiles &t, uint32_t super) {
    const uint32_t first = super * SUPER_RUNS * RUN_TILES, end = first + SUPER_RUNS * RUN_TILES;
    return {first, min(t.kept, end), max(t.window, first), min(t.end, end)};
}

// Rows of a group, packed by its warps, 16 each.
template <int D, int KT, class B>
__device__ __forceinline__ void pack_queries(const PrefillArgs &a, const Work &work,
                                             const CentrePairs &centre, const Place &at) {
    const int warp = threadIdx.x / 32 % 4;
    for (int i = 0; i < 16; i++) {
        const int row = at.own + i;
        pack_query<D, KT, B>(a, a.q + column_of(a, work, row) * D, at.group, warp * 16 + i,
                             is_column(a, work, row));
        if constexpr (B::CENTRED) {
            auto &sh = *reinterpret_cast<typename B::Shared *>(memory);
            for (uint32_t j = threadIdx.x % 32; j < min(centre.count, (uint32_t)CENTRE_PAIRS);
                 j += 32)
                sh.centre[j][row] = centre_of_row(a, work, centre, j, row, D);
        }
    }
    written_for_wgmma();
    if (at.group == 0) // a barrier of the group
        asm volatile("bar.sync 1, 128;" ::: "memory");
    else
        asm volatile("bar.sync 2, 128;" ::: "memory");
}

// A group without rows lets all tiles pass.
__device__ __forceinline__ void skip_tiles(const Tiles &tiles, Ring values, Ring keys) {
    for (uint32_t number = tiles.first(); number < tiles.end; number = tiles.next(number)) {
        keys.wait_full();
        keys.done();
        values.wait_full();
        values.done();
    }
}

// Begins the products of a tile's scores, once its K slot is full.
template <int D, int KT, class B>
__device__ __forceinline__ void begin_scores(typename B::Shared &sh, Sums<64> &s, int group,
                                             const Ring &keys, RowsCentre<D, B> &centre) {
    keys.wait_full();
    if (KT == TYPE_F16 || (KT == TYPE_BOTH && !sh.bf16[0][keys.at]))
        scores_begin<false, D>(s, smem_at(sh.query[0][group]), keys.slot());
    else
        scores_begin<true, D>(s, smem_at(sh.query[B::QUERIES - 1][group]), keys.slot());
    centre.begin(sh.kind[keys.at] == SLOT_CENTRED, s);
}

// Begins the products of weights and values of a tile, once its V slot is full.
template <int D, int VT, class B>
__device__ __forceinline__ void begin_values(typename B::Shared &sh, Sums<D> &out,
                                             const uint32_t (&w)[4][4], const Ring &values) {
    values.wait_full();
    if (VT == TYPE_F16 || (VT == TYPE_BOTH && !sh.bf16[1][values.at]))
        values_begin<false, D>(out, w, values.slot());
    else
        values_begin<true, D>(out, w, values.slot());
}

// Scores of tokens that a row does not see become -inf, in the tile that begins at `first`; other:
// none of them is seen. p_min, p_max: the first and the last position of the group's rows.
__device__ __forceinline__ void hide_unseen(Sums<64> &s, const dev_view &view, uint32_t p_min,
                                            uint32_t p_max, const uint32_t (&p)[2], int q,
                                            uint32_t first, bool other) {
    // unless every row sees the whole tile
    if (other || first + 63 > p_min ||
        (first + 64 > view.keep && first < kv_window_start(view.span, p_max)))
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const bool none = other || p[i] < first;
            const uint64_t seen = (none ? 0 : seen_of_tile(view, p[i], first)) >> (8 * q);
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (!(seen >> (32 * e + j) & 1))
                        s[j][2 * i + (e ^ j / 4)] = MINUS_INF;
        }
}

// Scores of a tile become weights; max and sum: [row r, r + 8][chain q, 4 + q]; alpha: what earlier
// outputs of each row are multiplied with.
__device__ __forceinline__ void weights_from_scores(Sums<64> &s, const float (&unit)[2],
                                                    float (&max)[2], float (&sum)[2][2],
                                                    float (&alpha)[2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = fmaxf(s[0][2 * i], s[0][2 * i + 1]);
#pragma unroll
        for (int j = 1; j < 8; j++)
            top = fmaxf(top, fmaxf(s[j][2 * i], s[j][2 * i + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        alpha[i] = move_max(max[i], top * unit[i]);
        const float from = finite_max(max[i]) - WEIGHT_SHIFT;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            sum[i][e] *= alpha[i];
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float &x = s[j][2 * i + (e ^ j / 4)];
                x = exp2_fast(fmaf(x, unit[i], -from));
                sum[i][e] += x;
            }
        }
    }
}

// Weights as f16 or bf16, in the registers of the A side.
template <bool BF>
__device__ __forceinline__ void round_weights(const Sums<64> &s, uint32_t (&w)[4][4]) {
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int u = 0; u < 2; u++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    w[2 * h + c][2 * u + i] = pack_half2<BF>(s[4 * c + u][2 * i + (h ^ c)],
                                                             s[4 * c + u + 2][2 * i + (h ^ c)]);
}
// The same, in the type of the V tile that they are multiplied with.
template <int VT, class B>
__device__ __forceinline__ void pack_weights(typename B::Shared &sh, const Sums<64> &s,
                                             uint32_t (&w)[4][4], const Ring &values) {
    if (VT == TYPE_BOTH)
        values.wait_full();
    if (VT == TYPE_F16 || (VT == TYPE_BOTH && !sh.bf16[1][values.at]))
        round_weights<false>(s, w);
    else
        round_weights<true>(s, w);
}

// Merges a run into its super; super_fresh: it is the super's first.
template <int D, class B>
__device__ __forceinline__ void merge_run(const Place &at, const float (&max)[2],
                                          const float (&sum)[2][2], const Sums<D> &out,
                                          bool super_fresh) {
    auto &sh = *reinterpret_cast<typename B::Shared *>(memory);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        RowState &state = sh.state[at.row(i)];
        float top = state.super_max;
        const FoldFactors f = fold_factors(top, max[i]);
        const float all_sum = fold(f, state.super_sum, tree(sum[i][0], sum[i][1]));
        __syncwarp();
        if (at.q == 0) {
            state.super_max = top;
            state.super_sum = all_sum;
        }
#pragma unroll
        for (int x = 0; x < D / 32; x++)
#pragma unroll
            for (int y = 0; y < 2; y++) { // dims y D / 2 + 16x + 4q .. + 3
                float4 *at = &sh.super[(i * (D / 32) + x) * 2 + y][threadIdx.x];
                float4 all = super_fresh ? make_float4(0, 0, 0, 0) : *at;
                const float *even = out[2 * y * (D / 32) + x], *odd = even + D / 32 * 4;
                if (f.seen) {
                    all.x = fold_seen(f, all.x, even[2 * i]);
                    all.y = fold_seen(f, all.y, odd[2 * i]);
                    all.z = fold_seen(f, all.z, even[2 * i + 1]);
                    all.w = fold_seen(f, all.w, odd[2 * i + 1]);
                }
                *at = all;
            }
    }
}

// x = H x of a row of which four lanes (q) have dims y D / 2 + 16x + 4q .. + 3 each, as v[x][y]:
// the operations of hadamard_rotate.
template <int D>
__device__ __forceinline__ void rotate_fours(float4 (&v)[D / 32][2], int q, float factor) {
    auto add = [](float &a, float &b) {
        const float sum = a + b, less = a - b;
        a = sum;
        b = less;
    };
    auto add_fours = [&](float4 &a, float4 &b) {
        add(a.x, b.x);
        add(a.y, b.y);
        add(a.z, b.z);
        add(a.w, b.w);
    };
    auto exchange = [&](float x, int step) {
        const float other = __shfl_xor_sync(~0u, x, step);
        return q & step ? other - x : x + other;
    };
#pragma unroll
    for (int x = 0; x < D / 32; x++)
#pragma unroll
        for (int y = 0; y < 2; y++) {
            float4 &f = v[x][y];
            add(f.x, f.y);
            add(f.z, f.w);
            add(f.x, f.z);
            add(f.y, f.w);
#pragma unroll
            for (int step = 1; step < 4; step *= 2)
                f = make_float4(exchange(f.x, step), exchange(f.y, step), exchange(f.z, step),
                                exchange(f.w, step));
        }
#pragma unroll
    for (int half = 1; half < D / 32; half *= 2)
#pragma unroll
        for (int x = 0; x < D / 32; x++)
            if (!(x & half)) {
                add_fours(v[x][0], v[x | half][0]);
                add_fours(v[x][1], v[x | half][1]);
            }
#pragma unroll
    for (int x = 0; x < D / 32; x++) {
        add_fours(v[x][0], v[x][1]);
#pragma unroll
        for (int y = 0; y < 2; y++)
            v[x][y] = make_float4(v[x][y].x * factor, v[x][y].y * factor, v[x][y].z * factor,
                                  v[x][y].w * factor);
    }
}

// The outputs of a row, which are whole, from `to` back to there, rotated; by a warp. some: this
// lane's row is one.
template <int D>
__device__ __forceinline__ void rotate_row_back(float *to, int q, bool some, float factor) {
    float4 v[D / 32][2];
#pragma unroll
    for (int x = 0; x < D / 32; x++)
#pragma unroll
        for (int y = 0; y < 2; y++)
            v[x][y] = some ? *(const float4 *)(to + y * (D / 2) + 16 * x + 4 * q)
                           : make_float4(0, 0, 0, 0);
    rotate_fours<D>(v, q, factor);
#pragma unroll
    for (int x = 0; x < D / 32; x++)
#pragma unroll
        for (int y = 0; y < 2; y++)
            if (some)
                *(float4 *)(to + y * (D / 2) + 16 * x + 4 * q) = v[x][y];
}

// Leaves a super's rows for fold_supers.
template <int D, class B>
__device__ __forceinline__ void leave_super(const PrefillArgs &a, const Work &work,
                                            const Place &place) {
    auto &sh = *reinterpret_cast<typename B::Shared *>(memory);
    for (int i = 0; i < 2; i++) {
        const int row = place.row(i);
        const size_t part = part_at(a, work.index, work.kv, blockIdx.y, B::ROWS, row);
        if (row / a.gqa >= work.item.tokens)
            continue;
        if (place.q == 0)
            a.part_ms[part] = make_float2(sh.state[row].super_max, sh.state[row].super_sum);
        for (int x = 0; x < D / 32; x++)
            for (int y = 0; y < 2; y++)
                *(float4 *)(a.part_out + part * D + y * (D / 2) + 16 * x + 4 * place.q) =
                    sh.super[(i * (D / 32) + x) * 2 + y][threadIdx.x];
    }
}

// Merges a super into its rows, unless fold_supers does so; row_fresh: it is their first; ends:
// their last, so outputs are divided by the rows' sums.
template <int D, class B>
__device__ __forceinline__ void merge_super(const PrefillArgs &a, const Work &work,
                                            const Place &place, bool row_fresh, bool ends) {
    auto &sh = *reinterpret_cast<typename B::Shared *>(memory);
    if (a.supers > 1)
        return leave_super<D, B>(a, work, place);
    for (int i = 0; i < 2; i++) {
        const int row = place.row(i);
        RowState &state = sh.state[row];
        float top = state.max;
        const FoldFactors f = fold_factors(top, state.super_max);
        const float all_sum = fold(f, state.sum, state.super_sum);
        __syncwarp();
        if (place.q == 0)
            state = {MINUS_INF, 0, top, all_sum};
        if (!is_column(a, work, row))
            continue;
        const size_t column = column_of(a, work, row);
        float *to = a.out + column * D;
        if (!B::ALONE && ends && a.ms && place.q == 0)
            a.ms[column] = make_float2(top, all_sum);
        for (int x = 0; x < D / 32; x++)
            for (int y = 0; y < 2; y++) {
                float4 *at = (float4 *)(to + y * (D / 2) + 16 * x + 4 * place.q);
                const float4 part = sh.super[(i * (D / 32) + x) * 2 + y][threadIdx.x];
                float4 all = row_fresh ? make_float4(0, 0, 0, 0) : *at;
                all.x = fold(f, all.x, part.x);
                all.y = fold(f, all.y, part.y);
                all.z = fold(f, all.z, part.z);
                all.w = fold(f, all.w, part.w);
                if (ends) {
                    all.x /= all_sum;
                    all.y /= all_sum;
                    all.z /= all_sum;
                    all.w /= all_sum;
                }
                *at = all;
            }
    }
    for (int i = 0; !B::ALONE && ends && a.back != 0 && i < 2;
         i++) { // what this thread has just written
        const int row = place.row(i);
        rotate_row_back<D>(a.out + column_of(a, work, row) * D, place.q, is_column(a, work, row),
                           a.back);
    }
}

// The state of a run before its first tile.
template <int D>
__device__ __forceinline__ void begin_run(float (&max)[2], float (&sum)[2][2], Sums<D> &out) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        max[i] = MINUS_INF;
        sum[i][0] = sum[i][1] = 0;
    }
#pragma unroll
    for (int j = 0; j < D / 8; j++)
        out[j][0] = out[j][1] = out[j][2] = out[j][3] = 0;
}

// Outputs follow a maximum that moved.
template <int D>
__device__ __forceinline__ void scale_outputs(Sums<D> &out, const float (&alpha)[2]) {
    if (__any_sync(~0u, alpha[0] != 1 || alpha[1] != 1)) {
#pragma unroll
        for (int j = 0; j < D / 8; j++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                out[j][c] *= alpha[c / 2];
    }
}

// The outputs of a group's rows, run by run.
template <int D, int KT, int VT, class B>
__device__ __forceinline__ void attend_rows(const PrefillArgs &a, const Work &work,
                                            const CentrePairs &pairs, const Place &at, Ring values,
                                            Ring keys) {
    auto &sh = *reinterpret_cast<typename B::Shared *>(memory);
    auto position = [&](int row) { return work.pos + min(row / a.gqa, work.item.tokens - 1); };
    // of the group's rows: what none of them sees is left out by all
    const int first_row = at.group * GROUP_ROWS;
    const uint32_t p_min = position(first_row), p_max = position(first_row + GROUP_ROWS - 1);
    const bool idle = first_row / a.gqa >= work.item.tokens;
    const uint32_t p[2] = {position(at.own + at.r), position(at.own + at.r + 8)};
    const Tiles &tiles = work.tiles;
    if (idle) { // nothing for this group
        skip_tiles(tiles, values, keys);
        return;
    }
    RowsCentre<D, B> centre(a, work, pairs, at);
    Sums<64> s;
    Sums<D> out;
    uint32_t w[4][4];
    float max[2], sum[2][2], alpha[2]; // [row r, r + 8][chain q, 4 + q]
    auto begin = [&](uint32_t number) {
        centre.prepare(number);
        begin_scores<D, KT, B>(sh, s, at.group, keys, centre);
    };
    // Turns a tile's scores into weights; done with its slot. All but `pending` products are there.
    auto make_weights = [&](uint32_t number, auto pending) {
        constexpr int PENDING = decltype(pending)::value;
        products_end<PENDING>(s);
        const uint8_t kind = B::ALONE ? (uint8_t)SLOT_SEEN : sh.kind[keys.at];
        keys.done();
        centre.template end<PENDING>(kind == SLOT_CENTRED, number, s);
        hide_unseen(s, work.view, p_min, p_max, p, at.q, number * TILE_TOKENS, kind == SLOT_OTHER);
        weights_from_scores(s, centre.unit, max, sum, alpha);
    };
    bool super_fresh = true, row_fresh = true;
    for (uint32_t number = tiles.first(); number < tiles.end;) { // a run
        const uint32_t run = number / RUN_TILES;
        uint32_t next = tiles.next(number);
        begin_run<D>(max, sum, out);
        begin(number);
        make_weights(number, Format<0>());
        pack_weights<VT, B>(sh, s, w, values);
        // While a tile's scores become weights, the last one's weights are multiplied.
        for (; next < tiles.end && next / RUN_TILES == run; next = tiles.next(next)) {
            begin(next);
            begin_values<D, VT, B>(sh, out, w, values);
            make_weights(next, Format<1>());
            products_end(out, w);
            values.done();
            scale_outputs<D>(out, alpha);
            pack_weights<VT, B>(sh, s, w, values);
        }
        begin_values<D, VT, B>(sh, out, w, values);
        products_end(out, w);
        values.done();

        const bool ends = next >= tiles.end;
        merge_run<D, B>(at, max, sum, out, super_fresh);
        super_fresh = false;
        __syncwarp();
        if (ends || next / (RUN_TILES * SUPER_RUNS) != run / SUPER_RUNS) {
            merge_super<D, B>(a, work, at, row_fresh, ends);
            row_fresh = false;
            super_fresh = true;
            __syncwarp();
        }
        number = next;
    }
}

template <int D, uint32_t KF, uint32_t VF, bool ALONE, bool CENTRED>
__global__ void __launch_bounds__(Block<D, TYPE_F16, ALONE, CENTRED>::THREADS, 1)
    prefill(const step_group g, const PrefillArgs a) {
    constexpr int KT = types_of_tiles(KF), VT = types_of_tiles(VF);
    using B = Block<D, KT, ALONE, CENTRED>;
    auto &sh = *reinterpret_cast<typename B::Shared *>(memory);

    kernel_begins();
    const uint32_t index = blockIdx.x / a.kv_heads, kv = blockIdx.x % a.kv_heads;
    if (index >= g.counts[COUNT_PREFILL])
        return;
    const int group = threadIdx.x / GROUP, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32,
              r = lane / 4, q = lane % 4;
    const prefill_item item = g.prefill[index];
    const batch_seq seq = g.seqs[item.seq];
    const dev_view view = g.views[item.seq];
    const uint32_t pos = seq.pos + item.first, last = pos + item.tokens - 1;
    Tiles tiles = tiles_seen(view, pos, last);
    if (a.supers > 1)
        tiles = tiles_of_super(tiles, blockIdx.y);
    if (tiles.first() >= tiles.end) // no row sees anything of this super
        return;
    const Work work = {item, seq, view, index, kv, pos, seq.pos + seq.rows, tiles};

    if (threadIdx.x < 2 * SLOTS_MAX) {
        barrier_init(smem_at(&sh.full[0][threadIdx.x]), GROUP / 32 * WARP_ARRIVALS);
        barrier_init(smem_at(&sh.empty[0][threadIdx.x]), B::GROUPS * GROUP / 32 * WARP_ARRIVALS);
    }
    barriers_ready();
    CentrePairs centre = {};
    if constexpr (CENTRED) {
        centre = pairs_of(a.centre, a.layer, a.kv_heads, kv);
        fill_waves(a, centre, smem_at(memory) + B::RING);
    }
    __syncthreads();
    auto ring_of = [&](int side, uint32_t at) -> Ring {
        return {at, B::SLOT, smem_at(sh.full[side]), smem_at(sh.empty[side]), a.slots, 0, 0};
    };
    const uint32_t waves = CENTRED ? centre_bytes(a.centre.pairs_max) : 0;
    Ring keys = ring_of(0, smem_at(memory) + B::RING + waves),
         values = ring_of(1, keys.slots_at + a.slots * B::SLOT);
    if (group >= B::GROUPS) {
        if (group == B::GROUPS) {
            REGISTERS_DOWN(B::K_REGISTERS);
            fill<true, D, KF, ALONE>(g, a, work, sh.bf16[0], sh.kind, keys);
        } else {
            REGISTERS_DOWN(B::V_REGISTERS);
            fill<false, D, VF, ALONE>(g, a, work, sh.bf16[1], sh.kind, values);
        }
        return;
    }
    REGISTERS_UP(B::ROW_REGISTERS);
    const Place at = {group, group * GROUP_ROWS + warp * 16, r, q};
    pack_queries<D, KT, B>(a, work, centre, at);
    attend_rows<D, KT, VT, B>(a, work, centre, at, values, keys);
}

template <int D, uint32_t KF, uint32_t VF, bool ALONE, bool CENTRED = false>
PrefillChoice choice_of() {
    using B = Block<D,
                    KF == bit(BF16)  ? TYPE_BF16
                    : KF & bit(BF16) ? TYPE_BOTH
                                     : TYPE_F16,
                    ALONE, CENTRED>;
    return {prefill<D, KF, VF, ALONE, CENTRED>, B::ROWS, B::THREADS, B::RING, B::SLOT};
}

} // namespace
