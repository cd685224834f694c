// SPDX-License-Identifier: Apache-2.0
// prefill_block.cuh: what a block of prefill.cuh works on, and what it has in shared memory.
#pragma once

#include "backend/cuda/centre.cuh"
#include "backend/cuda/prefill_supers.cuh"
#include "backend/cuda/slots.cuh"

namespace {

enum { GROUP_ROWS = 64, SLOTS_MAX = 6 };

// What is merged of a row so far: its open super, and the supers before.
struct RowState {
    float super_max, super_sum, max, sum;
};

// The tiles that some row of a block sees, in order: those with kept positions, then the window's.
struct Tiles {
    uint32_t start, kept, window, end; // numbers: [start, kept), then [window, end)
    __device__ uint32_t first() const { return start < kept ? start : window; }
    __device__ uint32_t next(uint32_t n) const {
        return n + 1 >= kept && n + 1 < window ? window : n + 1;
    }
};

// What a block works on: an item's tokens, one KV head.
struct Work {
    const prefill_item &item;
    const batch_seq &seq;
    const dev_view &view;
    uint32_t index, kv; // of the item; the head
    uint32_t pos, end;  // of the first token; tokens from `end` on were never written
    Tiles tiles;
};

// 16-bit types of tiles, as a mask.
enum { TYPE_F16 = 1, TYPE_BF16 = 2, TYPE_BOTH = 3 };
HD constexpr int types_of_tiles(uint32_t formats) {
    return (formats & ~bit(BF16) ? TYPE_F16 : 0) | (formats & bit(BF16) ? TYPE_BF16 : 0);
}

// ALONE: all pages are in the plain basis, so nothing is rotated and there is no other pass.
// CENTRED: the keys of some pages are.
template <int D, int KT, bool ALONE_, bool CENTRED_> struct Block {
    static constexpr bool ALONE = ALONE_, CENTRED = CENTRED_;
    static constexpr int GROUPS = D == 256 ? 1 : 2, // of rows
        ROWS = GROUPS * GROUP_ROWS, THREADS = (GROUPS + 2) * GROUP,
                         PARTS = D / 8, // float4 of outputs
        QUERIES = KT == TYPE_BOTH ? 2 : 1;
    // of a thread that fills slots of K, of V, and of one that multiplies: together what the SM has
    static constexpr int K_REGISTERS = D == 256   ? 128
                                       : D == 128 ? 72
                                                  : 112,
                         V_REGISTERS = D == 256   ? 128
                                       : D == 128 ? 104
                                                  : 128,
                         ROW_REGISTERS = D == 256   ? 240
                                         : D == 128 ? 168
                                                    : 136;
    static constexpr uint32_t QUERY = GROUP_ROWS * D * 2, SLOT = TILE_TOKENS * D * 2;
    struct Shared {
        alignas(128) uint8_t query[QUERIES][GROUPS][QUERY];
        alignas(16) float4 super[PARTS][GROUPS * GROUP];
        RowState state[ROWS];
        float unit[ROWS];
        alignas(8) uint64_t full[2][SLOTS_MAX], empty[2][SLOTS_MAX]; // K, V
        bool bf16[2][SLOTS_MAX]; // the type of what is in a slot
        uint8_t kind[SLOTS_MAX]; // slot_kind of slots of K
        float2 centre[CENTRED ? CENTRE_PAIRS : 1][CENTRED ? ROWS : 1]; // centre_parts
    };
    // where slots begin, after the centre's waves
    static constexpr uint32_t RING = (sizeof(Shared) + 127) / 128 * 128;
};

// Of K: SLOT_OTHER stands for a page of another basis, which nobody sees.
enum slot_kind : uint8_t { SLOT_SEEN, SLOT_CENTRED, SLOT_OTHER };

// Which of the columns (row of the step, head) row `row` of the block is, and whether it is one.
__device__ __forceinline__ size_t column_of(const PrefillArgs &a, const Work &work, int row) {
    return (size_t)(work.seq.row + work.item.first + row / a.gqa) * a.heads + work.kv * a.gqa +
           row % a.gqa;
}
__device__ __forceinline__ bool is_column(const PrefillArgs &a, const Work &work, int row) {
    return row / a.gqa < work.item.tokens;
}

// Slots of one side, as those who fill or read them go round.
struct Ring {
    uint32_t slots_at, slot_bytes, full, empty;
    int slots, at, phase;
    __device__ __forceinline__ uint32_t slot() const { return slots_at + at * slot_bytes; }
    __device__ __forceinline__ void wait_full() const { barrier_wait(full + 8 * at, phase); }
    __device__ __forceinline__ void wait_empty() const { barrier_wait(empty + 8 * at, phase ^ 1); }
    __device__ __forceinline__ void arrive(uint32_t bar) const { warp_arrive(bar + 8 * at); }
    __device__ __forceinline__ void done() {
        arrive(empty);
        next();
    }
    __device__ __forceinline__ void next() {
        if (++at == slots) {
            at = 0;
            phase ^= 1;
        }
    }
};

// The shared memory of a block: Block::Shared, then slots from RING on.
extern __shared__ __align__(128) uint8_t memory[];

// Where a thread that multiplies is: of its block's rows it has own + r and own + r + 8.
struct Place {
    int group, own, r, q;
    __device__ int row(int i) const { return own + 8 * i + r; }
};

} // namespace
