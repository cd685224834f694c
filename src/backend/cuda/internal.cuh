// SPDX-License-Identifier: Apache-2.0
// internal.cuh: what the .cu files share: the backend, and the tables of a step as kernels see them.
//
//     backend.cu   life, memory, arena, graphs       encode.cu    K and V into pages
//     step.cu      the tables of a step              product.cu   4-bit weights
//     decode.cu    attention of few rows             prefill.cu   attention of many rows
//
// All kernels are compiled without contraction (-fmad=false): a*b+c is two roundings, fmaf() one.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/cuda.h"

// ---- tables of a step, in device memory, written by one copy ---------------------------------

// A side of a page layout, as kernels branch on it.
enum tile_format : uint8_t { F16, BF16, Q8G64, Q8G32, Q4G64, Q4G32, Q2G64, Q2G32, TILE_FORMATS };

struct dev_layout {
    uint8_t k, v;           // enum tile_format
    uint8_t k_bf16, v_bf16; // scales and biases are bf16, not f16
    uint32_t k_bytes;       // where the V tile begins
    uint32_t head_bytes, layer_bytes;
};

struct dev_view {
    uint32_t first_page; // of this sequence in step_group.pages
    uint32_t n_pages, kept_pages, base_page;
    uint32_t keep, span;
};

// One super-run (8 runs: 2,048 tokens at an absolute multiple of that) of one row.
struct decode_item {
    uint32_t seq, row; // row of the step
    uint32_t pos;      // of the row's token
    uint32_t super;
    uint32_t slot;         // which of the step's decode rows
    uint32_t first, count; // items of that row: [first, first + count)
};

// Tokens [first, first + tokens) of a sequence's rows in this step: a block of query rows.
struct prefill_item {
    uint32_t seq, first, tokens;
};

// All rows of a step that fall into one page.
struct store_item {
    uint32_t seq, page; // page number
};

// One layer group.
struct step_group {
    const uint8_t *arena;
    uint32_t n_seqs;
    const struct batch_seq *seqs;     // [n_seqs]
    const struct dev_view *views;     // [n_seqs]
    const struct kv_page *pages;      // of all sequences
    const struct dev_layout *layouts; // [CUDA_LAYOUTS_MAX]
    const struct decode_item *decode;
    const struct prefill_item *prefill;
    const struct store_item *store;
    // How many there are, in device memory: a graph's launches have as many blocks as its bucket,
    // and a block behind the end returns.
    const uint32_t *counts; // [3] decode, prefill, store
};
enum { COUNT_DECODE, COUNT_PREFILL, COUNT_STORE, COUNTS };

// Address of page `number` of a sequence in the arena, and its layout; 0 where it was dropped.
__device__ inline const uint8_t *page_find(const step_group &g, const dev_view &v, uint32_t number,
                                           uint32_t *layout) {
    uint32_t i = number < v.kept_pages   ? number
                 : number >= v.base_page ? v.kept_pages + (number - v.base_page)
                                         : UINT32_MAX;
    if (i >= v.n_pages)
        return nullptr;
    kv_page page = g.pages[v.first_page + i];
    *layout = page.layout;
    return g.arena + (size_t)page.addr * PAGE_ADDR_UNIT;
}

// ---- the backend -----------------------------------------------------------------------------

// What the host knows of a group's step: sizes of launches, which formats occur.
struct group_plan {
    uint32_t blocks[COUNTS]; // blocks of the launches: of this step, or of the bucket captured
    uint32_t k_formats, v_formats; // one bit for each tile_format that occurs
    uint32_t prefill_tokens;       // tokens of a full prefill block
};

struct cuda_backend {
    cudaStream_t stream;
    cudaError_t error; // the first one; sticks
    char name[96];
    int sm_count;
    cuda_limits limits;
    bool reserved, capturing;
    // tables: the same bytes pinned on the host and on the device
    uint8_t *host_tables, *dev_tables;
    size_t table_bytes;
    cudaEvent_t tables_read; // host_tables may be written again
    step_group group[CUDA_GROUPS_MAX];
    group_plan plan[CUDA_GROUPS_MAX];
    // scratch of decode: partial results of items, arrival counters
    float *part_out; // [item][kv head][gqa][head_dim]
    float2 *part_ms; // [item][kv head][gqa] maximum, sum
    uint32_t *arrived;
    size_t max_decode_items;
    // scratch of prefill: running totals of the blocks that run
    float *totals;
    // scratch of products
    void *act;
    size_t arena_bytes;
};

// Remembers the first error. Returns true where there was none so far.
bool cuda_ok(cuda_backend *b, cudaError_t e);

static inline uint32_t group_of(const cuda_backend *b, const batch *batch, const kv_view *views) {
    return batch->n_seqs ? (uint32_t)((views - batch->views) / batch->n_seqs) : 0;
}
