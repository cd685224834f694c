// SPDX-License-Identifier: Apache-2.0
// internal.cuh: what the .cu files share: the backend, and a step's tables as kernels see them.
//
//     backend.cu   life, memory, arena, graphs       encode.cu    K and V into pages
//     step.cu      the tables of a step              product.cu   4-bit weights
//     decode.cu    attention of few rows             prefill.cu   attention of many rows
//
// All kernels are compiled without contraction (-fmad=false): a*b+c is two roundings, fmaf() one.
#pragma once

#include <cuda_runtime.h>

extern "C" { // what backend.h includes are C headers; their functions have C linkage
#include "backend/backend.h"
}
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
    uint32_t row; // of the step
    uint32_t pos; // of the row's token
    uint32_t super;
    uint32_t slot;         // which of the step's decode rows
    uint32_t first, count; // items of that row: [first, first + count)
    dev_view view;         // of the sequence: one load less before the first page is known
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
    const struct batch_seq *seqs;     // of each sequence
    const struct dev_view *views;     // of each sequence
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
    uint32_t layers;               // of the pages
};

// Entries that a group's arrays have room for.
struct table_caps {
    uint32_t pages;
    uint32_t items[COUNTS];
};

// What a step's launches and its copy were made for (step.cu).
struct step_plan {
    uint32_t rows, n_seqs; // at most
    size_t bytes;          // that the copy moves, from the start of the tables
    table_caps caps[CUDA_GROUPS_MAX];
    step_group group[CUDA_GROUPS_MAX];
    group_plan plan[CUDA_GROUPS_MAX];
};

struct cuda_graph {
    cudaGraphExec_t exec;
    uint32_t reserved; // cuda_backend.reserved_times when it was captured
    step_plan step;
};

struct cuda_backend {
    cudaStream_t stream;
    cudaError_t error; // the first one; sticks
    char name[96];
    int sm_count;
    bool overlaps; // kernels were compiled to wait for the one before (kernel_waits)
    uint32_t shared_per_block, shared_per_sm, shared_reserved; // bytes; reserved: of each block
    cuda_limits limits;
    bool reserved, capturing;
    bool captured_step;      // cuda_step_begin was called since cuda_capture_begin
    uint32_t reserved_times; // graphs of an earlier cuda_reserve point to memory that is gone
    // tables: the same bytes pinned on the host and on the device
    uint8_t *host_tables, *dev_tables;
    cudaEvent_t tables_read;   // host_tables may be written again
    const cuda_graph *written; // whose next step host_tables hold; NULL: of a step without a graph
    table_caps most[CUDA_GROUPS_MAX]; // that any step within the limits needs
    step_group group[CUDA_GROUPS_MAX];
    group_plan plan[CUDA_GROUPS_MAX];
    step_plan step; // of the last cuda_step_begin: where group and plan come from
    // scratch of decode: partial results (decode.cu says of what), arrival counters
    float *part_out;   // [part][gqa][head_dim]
    float2 *part_ms;   // [part][gqa] maximum, sum
    uint32_t *arrived; // [decode row][kv head]
    // scratch of products
    void *act;
    struct cuda_arenas *arenas; // backend.cu
};

// Remembers the first error. Returns true where there was none so far.
bool cuda_ok(cuda_backend *b, cudaError_t e);

// The layer group of an operation's views. False, and an error that sticks, where these are not the
// batch's or its pages have no such layer.
bool operation_begins(cuda_backend *b, const batch *batch, const kv_view *views, uint32_t layer,
                      uint32_t *group);

// ---- between the files -----------------------------------------------------------------------

// What the first error was, as a status: KVASIR_OK where there was none.
kvasir_status cuda_fail(const cuda_backend *b, kvasir_error *err);
// step.cu: the most that a group's tables hold within the limits, and the bytes of all groups'.
void table_caps_most(const cuda_limits *l, table_caps *caps);
size_t tables_lay_out(const cuda_limits *l, const uint8_t *base, uint32_t n_seqs,
                      const table_caps *caps, step_group *groups);
// limits.prefill_rows, settled.
uint32_t prefill_rows_of(const cuda_limits *l);
// decode.cu: partial results, each of all heads of a KV head, that a launch of so many items leaves
// at most.
size_t decode_parts(const cuda_backend *b, size_t items, uint32_t kv_heads);
// prefill.cu: query rows (tokens x query heads of a KV head) of a full block.
uint32_t prefill_block_rows(uint32_t k_formats, uint32_t v_formats, uint32_t head_dim);
// product.cu: bytes of cuda_backend.act.
size_t product_scratch_bytes_cuda(uint32_t max_rows, uint32_t max_inputs);

// ---- attention -------------------------------------------------------------------------------

// Whether this device has the shared memory that the kernels of these formats take.
bool decode_fits(const cuda_backend *b, uint32_t k_formats, uint32_t v_formats, uint32_t head_dim,
                 uint32_t gqa);
bool prefill_fits(const cuda_backend *b, uint32_t k_formats, uint32_t v_formats, uint32_t head_dim);

// The decode and the prefill items of a group's step; heads: query heads.
void attention_decode(cuda_backend *b, uint32_t group, uint32_t layer, const float *q,
                      uint32_t heads, float scale, float *out);
void attention_prefill(cuda_backend *b, uint32_t group, uint32_t layer, const float *q,
                       uint32_t heads, float scale, float *out);

// Programmatic dependent launch, from sm_90 on: a kernel's blocks come to the device while the one
// before it ends (kernel_comes lets the next one's), and wait in kernel_waits for its results. 1 to
// 2 us a launch. What was there before both may be read first: a step's tables, which come with a
// copy, not a kernel. Every block waits, also one without work: the kernel must not end earlier
// than the one before. What the one before wrote must be read by plain loads: the compiler may move
// an __ldg in front of the wait.
__device__ __forceinline__ void kernel_comes() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void kernel_waits() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void kernel_begins() {
    kernel_comes();
    kernel_waits();
}
// A launch of such a kernel.
template <class... Args>
cudaError_t launch_early(cuda_backend *b, void (*kernel)(Args...), dim3 blocks, uint32_t threads,
                         size_t shared, Args... args) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared;
    config.stream = b->stream;
    config.attrs = &early;
    config.numAttrs = b->overlaps ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, args...);
}
