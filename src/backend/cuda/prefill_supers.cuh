// SPDX-License-Identifier: Apache-2.0
// prefill_supers.cuh: rows of prefill.cuh whose super-runs had blocks of their own, merged.
#pragma once

#include "backend/cuda/arithmetic.cuh"

namespace {

struct PrefillArgs : PassArgs {
    int slots;       // of K, and of V
    uint32_t supers; // of which each has its own blocks; 1: a block has all of them
    // then: [item][kv head][super][row of a block]
    float *part_out; // [D] each
    float2 *part_ms; // maximum, sum
};

// Where what a super-run has of a block's row goes.
__device__ __forceinline__ size_t part_at(const PrefillArgs &a, uint32_t index, uint32_t kv,
                                          uint32_t super, uint32_t rows, uint32_t row) {
    return (((size_t)index * a.kv_heads + kv) * a.supers + super) * rows + row;
}

enum { FOLD_WARPS = 8 };

// What merge_super does, by a warp for each row of the blocks, of which a block of the other kernel
// has `rows`. grid: [item and KV head][rows]
template <int D>
__global__ void __launch_bounds__(FOLD_WARPS * 32)
    fold_supers(const step_group g, const PrefillArgs a, uint32_t rows) {
    constexpr int N = D / 32, AHEAD = 8; // super-runs that are read at once
    kernel_begins();
    const uint32_t index = blockIdx.x / a.kv_heads, kv = blockIdx.x % a.kv_heads,
                   row = blockIdx.y * FOLD_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (index >= g.counts[COUNT_PREFILL])
        return;
    const prefill_item item = g.prefill[index];
    const batch_seq seq = g.seqs[item.seq];
    const dev_view view = g.views[item.seq];
    const uint32_t token = row / a.gqa, p = seq.pos + item.first + token;
    if (token >= item.tokens)
        return;
    const uint32_t start = kv_window_start(view.span, p), supers = p / SUPER + 1;
    float out[N] = {}, top = MINUS_INF, sum = 0;
    for (uint32_t first = 0; first < supers; first += AHEAD) {
        float v[AHEAD][N];
        float2 ms[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) { // what the row does not see was not written
            const uint32_t super = first + i, begin = super * SUPER;
            ms[i] = make_float2(MINUS_INF, 0);
            if (super >= supers || (begin >= view.keep && begin + SUPER <= start))
                continue;
            const size_t part = part_at(a, index, kv, super, rows, row);
            ms[i] = a.part_ms[part];
            load_row<D>(a.part_out + part * D, true, v[i]);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const FoldFactors f = fold_factors(top, ms[i].x);
            if (!f.seen)
                continue;
            sum = fold_seen(f, sum, ms[i].y);
#pragma unroll
            for (int j = 0; j < N; j++)
                out[j] = fold_seen(f, out[j], v[i][j]);
        }
    }
    const size_t column =
        (size_t)(seq.row + item.first + token) * a.heads + kv * a.gqa + row % a.gqa;
#pragma unroll
    for (int j = 0; j < N; j++)
        out[j] /= sum;
    if (a.ms && lane == 0)
        a.ms[column] = make_float2(top, sum);
    if (a.back != 0)
        rotate_row<D>(out, a.back);
#pragma unroll
    for (int j = 0; j < N; j++)
        a.out[column * D + lane * N + j] = out[j];
}

} // namespace
