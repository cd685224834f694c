// SPDX-License-Identifier: Apache-2.0
// internal.cuh: what the .cu files share: the backend, and a step's tables as kernels see them.
//
//     backend.cu     the table, life, scratch          product.cu, weights.cu  matrices
//                                                      halves.cu    4-bit ones, by f16
//     memory.cu      buffers, arenas                   encode.cu    K and V into pages of the
//     step.cu        the tables of a step                           common formats, or by way of
//     attention.cu   chooses between these three:      plain_encode.cu      of any format
//                    decode.cu            few rows     whole_encode.cu      whole pages
//                    (decode_whole.cu: its kernels for whole pages)
//                    plain_attention.cu   rows that the others do not take
//                    prefill.cu           many rows
//                    (prefill_centred.cu: its kernels for centred keys)
//     rows.cu        norm, rope, gates, moves          recurrent.cu convolutions, delta rule
//     experts.cu     mixtures of experts: its matrices by product.cu, its gates by rows.cu
//     centre.cu      tables of centred keys            error.cu     the first error
//     basis.cu       bases of keys; queries and outputs of pages in another basis
//     pick.cu        tokens, from logits
//     record.cu      a step's operations: recorded, joined, run or replayed (ops.cuh)
//     lane.cu        copies of pages by other threads
//     clock.cu       for opcheck (graph.h)
//
// A file calls those below it only: error; memory, decode, prefill; centre, basis, step, weights,
// rows; halves; product; plain_attention, plain_encode, whole_encode; encode, attention, recurrent,
// experts, clock; record; pick, lane; backend. Two calls go up: memory.cu's to step_submit, and
// graphs_drop.
//
// All kernels are compiled without contraction (-fmad=false): a*b+c is two roundings, fmaf() one.
#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/graph.h" // and backend.h

enum { CUDA_LAYOUTS_MAX = 16 }; // page layouts of a layer group

// ---- tables of a step, in device memory, written by one copy ---------------------------------

// A side of a page layout, as the fast kernels branch on it. T5 and so on: KV_TILE. TILE_FORMATS:
// they have no code for it, only the plain ones do.
enum tile_format : uint8_t {
    F16,
    BF16,
    Q8G64,
    Q8G32,
    Q4G64,
    Q4G32,
    Q2G64,
    Q2G32,
    T5,
    T4,
    T3,
    TILE_FORMATS
};

struct dev_layout {
    uint8_t k, v;           // enum tile_format
    uint8_t k_bf16, v_bf16; // scales and biases are bf16, not f16
    uint32_t k_bytes;       // where the V tile begins
    uint32_t head_bytes, layer_bytes;
    kv_format k_stored, v_stored; // for the plain kernels
    uint32_t centred;             // keys, by the group's centre
    uint32_t basis;               // enum page_basis
    uint32_t whole;               // page_is_whole
};

struct dev_view {
    uint32_t first_page; // of this sequence in step_group.pages
    uint32_t n_pages, kept_pages, base_page;
    uint32_t keep, span, tail_pages;
    uint32_t shadows; // the shadow of page number n is step_group.pages[shadows + n]
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

// The same for the plain kernel, and one super-run of what they see; ALL_SUPERS: all of it.
struct plain_item {
    uint32_t seq, first, tokens;
    uint32_t super;
    uint32_t part, count; // items of these tokens: [part, part + count)
};
constexpr uint32_t ALL_SUPERS = UINT32_MAX;
enum {
    PLAIN_COLUMNS = GQA_MAX, // query rows of a block of the plain kernel: tokens x query heads
    PLAIN_PARTS = 1024,      // most blocks of which each has a super-run of its own
};

// All rows of a step that fall into one page.
struct store_item {
    uint32_t seq, page; // page number
};

// One layer group.
struct step_group {
    const uint8_t *arena;
    const struct batch_seq *seqs;     // of each sequence; 0 rows: the step does not have it
    uint8_t *const *states;           // of each sequence: where its state begins
    const struct dev_view *views;     // of each sequence
    const struct kv_page *pages;      // of each sequence, then its shadows
    const struct dev_layout *layouts; // [CUDA_LAYOUTS_MAX]
    const struct decode_item *decode;
    const struct prefill_item *prefill;
    const struct plain_item *plain;
    const struct store_item *store;
    // How many there are, in device memory: a graph's launches have as many blocks as its bucket,
    // and a block after the last item returns.
    const uint32_t *counts; // [COUNTS]
};
enum { COUNT_DECODE, COUNT_PREFILL, COUNT_PLAIN, COUNT_STORE, COUNTS };

// Address of an entry of a page table in the arena, and its layout.
__device__ inline const uint8_t *page_at(const step_group &g, kv_page page, uint32_t *layout) {
    *layout = page.layout;
    return g.arena + page_offset(page.addr);
}

// Address of page `number` of a sequence in the arena, and its layout; NULL if it was dropped.
__device__ inline const uint8_t *page_find(const step_group &g, const dev_view &v, uint32_t number,
                                           uint32_t *layout) {
    uint32_t i = number < v.kept_pages   ? number
                 : number >= v.base_page ? v.kept_pages + (number - v.base_page)
                                         : UINT32_MAX;
    if (i >= v.n_pages)
        return nullptr;
    return page_at(g, g.pages[v.first_page + i], layout);
}
// The shadow of page `number`, which is encoded when it is full.
__device__ inline const uint8_t *shadow_find(const step_group &g, const dev_view &v,
                                             uint32_t number, uint32_t *layout) {
    return page_at(g, g.pages[v.shadows + number], layout);
}
// The same of page `number` as position p sees it: pages that are encoded when they are full as
// their shadows have them, in p's own page and its exact tail.
__device__ inline const uint8_t *page_seen(const step_group &g, const dev_view &v, uint32_t number,
                                           uint32_t p, uint32_t *layout) {
    const uint8_t *page = page_find(g, v, number, layout);
    if (page && g.layouts[*layout].whole &&
        number >= kv_shadow_first(v.kept_pages, v.span, v.tail_pages, p / TILE_TOKENS))
        return shadow_find(g, v, number, layout);
    return page;
}
// A tile of a page of this layout.
__device__ inline const uint8_t *tile_of(const uint8_t *page, const dev_layout &l, uint32_t layer,
                                         uint32_t head, tile_kind part) {
    return page + page_tile_at(l.layer_bytes, l.head_bytes, l.k_bytes, layer, head, part);
}

// ---- the backend -----------------------------------------------------------------------------

// What the host knows of a group's step: sizes of launches and the formats that occur.
struct group_plan {
    uint32_t blocks[COUNTS]; // blocks of the launches: of this step, or of the bucket captured
    // One bit for each tile_format that occurs in layouts of a basis which the fast kernels read.
    uint32_t k_formats[BASIS_COUNT], v_formats[BASIS_COUNT];
    uint32_t bases;          // one bit for each page_basis that occurs
    uint32_t stores;         // STORE_FAST and so on: what stores into some side of a page
    uint32_t prefill_tokens; // tokens of a full prefill block
    uint32_t prefill_supers; // super-runs up to the last row of a sequence of prefill items
    bool plain_split;        // plain items have one super-run each
    uint32_t layers;         // of the pages
};
// By encode.cu, plain_encode.cu, whole_encode.cu. STORE_MADE: some of the last one's rows are
// balanced, or have a centre that the fast kernels do not take. STORE_FULL: some of its pages
// become full.
enum { STORE_FAST = 1, STORE_PLAIN = 2, STORE_WHOLE = 4, STORE_MADE = 8, STORE_FULL = 16 };

// Centred keys of a layer group (struct key_centre), in device memory (centre.cu).
struct dev_centre {
    uint32_t n;             // pairs of the rope
    const double *inv_freq; // [n]
    const uint32_t *first;  // [layers * kv_heads + 1]
    const centre_pair *pairs;
    // [n][cos, sin][TILE_TOKENS] of the angle from the middle of a tile to each of its tokens
    const float *waves;
    const uint32_t *halves; // [n][high, low parts][TILE_TOKENS] of the same, cos and sin in f16
    const float2 *turns;    // [tile][n] cos and sin of the angle at a tile's middle
    uint32_t tiles, pairs_max;
};

// Balanced keys of a layer group (struct key_basis), in device memory (basis.cu).
struct dev_basis {
    const float *inverse, *forward; // [layer][kv head][in][out]
};

// Entries that a group's arrays have room for.
struct table_caps {
    uint32_t pages;
    uint32_t items[COUNTS];
};

// What a step's launches and its copy were made for (step.cu).
struct step_plan {
    uint32_t rows, n_seqs; // at most
    uint32_t groups;       // the model's layer groups; 0: the step has no pages
    bool has_states;
    bool lone;    // no sequence has more than one row
    size_t bytes; // that the copy moves, from the start of the tables
    table_caps caps[BACKEND_GROUPS_MAX];
    step_group group[BACKEND_GROUPS_MAX];
    group_plan plan[BACKEND_GROUPS_MAX];
};

// Pieces of host memory on their way to the device (cuda_bring).
enum { BRING_SLOTS = 16 };
struct bring_ring {
    uint8_t *host, *device; // [BRING_SLOTS][slot_bytes], host: pinned
    size_t slot_bytes;
    uint32_t next;
    cudaEvent_t read[BRING_SLOTS]; // the slot of host may be written again
};

// experts.cu says what is where.
struct expert_scratch {
    uint32_t *chosen;
    float *weight, *wide, *hidden;
    struct expert_table *tables; // of the layers that were called
};

// pick.cu says what is where. Rows of the head, which are picked from at once: one pass over its
// weights.
enum { LOGIT_ROWS = 64 };
struct pick_scratch {
    uint8_t *host, *device; // what the device is told: pinned, and its copy
    float *kept, *peaks;
    double *sums;
    struct picked *out;
};

enum {
    GRAPH_ROWS = 256, // steps of at most so many rows become graphs
    GRAPHS_MAX = 64,
};

// What record.cu has of the step that it records.
struct step_recorder {
    bool off; // operations run one by one, as they are called
    bool recording;
    struct op_record *records; // [most]
    uint32_t n, most;
    size_t brought; // bytes of host arrays after the tables
    uint64_t steps;
    struct cuda_graph_counts counts;
};
struct step_graph;

struct cuda_backend {
    struct backend base; // first: what the contract knows
    kvasir_error error;  // the first one; sticks
    int device;          // every thread that calls makes it its current one (device_current)
    cudaStream_t stream;
    char name[96], tier[16];
    int act_bits;
    uint64_t memory_bytes; // free when it was created
    int sm_count;
    bool overlaps; // kernels were compiled to wait for the one before (kernel_waits)
    uint32_t shared_per_block, shared_per_sm, shared_reserved; // bytes; reserved: of each block
    backend_limits limits;                                     // seqs is settled
    uint32_t prefill_rows;                                     // of cuda_prefill_rows, settled
    bool reserved, capturing;
    // tables, and after them a step's host arrays: the same bytes pinned on the host and on the
    // device
    uint8_t *host_tables, *dev_tables;
    size_t tables_bytes;
    cudaEvent_t tables_read; // host_tables may be written again
    cudaEvent_t followed;    // what lanes come after (lanes_follow)
    step_recorder recorder;
    struct step_graph *graphs; // [GRAPHS_MAX], n_graphs of them used; NULL: none yet
    uint32_t n_graphs;
    table_caps most[BACKEND_GROUPS_MAX]; // that any step within the limits needs
    step_group group[BACKEND_GROUPS_MAX];
    group_plan plan[BACKEND_GROUPS_MAX];
    step_plan step; // of the last step_begin: where group and plan come from
    bring_ring bring;
    // scratch of attention: partial results (decode.cuh, prefill.cuh and plain_attention.cu say of
    // what), arrival counters
    float *part_out; // [part][gqa][head_dim]
    float2 *part_ms; // [part][gqa] maximum, sum
    size_t part_floats, part_rows;
    uint32_t *arrived; // [decode row][kv head]
    // scratch of products
    void *act;
    float *run_sums; // [run_sums_bytes / 4], of many_rows.cuh
    size_t run_sums_bytes;
    expert_scratch experts;
    pick_scratch picks;
    // centred keys, by what backend_reserve_centre was given
    struct {
        const key_centre *host;
        dev_centre device;
    } centres[BACKEND_GROUPS_MAX];
    uint32_t n_centres;
    struct {
        const key_basis *host;
        dev_basis device;
    } key_bases[BACKEND_GROUPS_MAX];
    uint32_t n_key_bases;
    // Attention over pages in another basis than the plain one (basis.cu), made when the first ones
    // are seen: [basis][row][head][dim] queries, then outputs; [basis][row][head] maximum and sum.
    float *turned[BASIS_COUNT];
    float2 *row_ms[BASIS_COUNT];
    struct cuda_arenas *arenas; // memory.cu
    void *fetched;              // pinned host memory of fetch
    size_t fetched_bytes;
    uint8_t *staging; // host memory of page_convert
    size_t staging_bytes;
};
static_assert(offsetof(cuda_backend, base) == 0, "cuda_of relies on it");

static inline cuda_backend *cuda_of(struct backend *b) {
    return (cuda_backend *)b;
}

// Heads that the fast kernels of attention and encoding take.
static inline bool head_dim_fast(uint32_t dims) {
    return dims == 64 || dims == 128 || dims == 256;
}

// Memory of the device for n elements. False: none is left.
template <class T> bool device_array(size_t n, T **out) {
    return cudaMalloc((void **)out, (n ? n : 1) * sizeof(T)) == cudaSuccess;
}

// Blocks that n values take, `each` a block.
static inline BACKEND_DEVICE uint32_t blocks_of(size_t n, uint32_t each) {
    return (uint32_t)((n + each - 1) / each);
}

// The sum of a value over a warp's lanes, in each of them: neighbours, pairs, fours ...
template <class T> __device__ __forceinline__ T warp_sum(T v) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2)
        v += __shfl_xor_sync(~0u, v, step);
    return v;
}
// The largest likewise. Of floats NaN counts only if all are, and 0 is above -0.
template <class T> __device__ __forceinline__ T warp_max(T v) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2)
        v = max(v, __shfl_xor_sync(~0u, v, step));
    return v;
}

// ---- errors (error.cu) -----------------------------------------------------------------------

// No error so far. After the first one nothing is enqueued any more.
static inline bool cuda_works(const cuda_backend *b) {
    return b->error.code == KVASIR_OK;
}
// A thread's current device is 0 until it is told otherwise; costs tens of nanoseconds.
static inline void device_current(const cuda_backend *b) {
    if (b->device != 0)
        (void)cudaSetDevice(b->device); // what follows reports an error
}
// Keeps e if it is the first error.
void cuda_stick(cuda_backend *b, const kvasir_error *e);
// Keeps what the runtime says if it is the first error. True if there is none so far.
bool cuda_ok(cuda_backend *b, cudaError_t e);
// The first error; KVASIR_OK: there is none.
kvasir_status cuda_status(const cuda_backend *b, kvasir_error *err);

// ---- members of the table, by file -----------------------------------------------------------

// Operations: record.cu. memory.cu:
kvasir_status cuda_flush(struct backend *b, kvasir_error *err);
void *cuda_alloc(struct backend *b, size_t bytes);
void cuda_free(struct backend *b, void *p);
const void *cuda_upload(struct backend *b, const void *host, size_t bytes);
void cuda_upload_free(struct backend *b, const void *device);
kvasir_status cuda_read(struct backend *b, void *host, const void *device, size_t bytes,
                        kvasir_error *err);
kvasir_status cuda_fetch(struct backend *b, const void *device, size_t bytes, const void **out,
                         kvasir_error *err);
void cuda_write(struct backend *b, void *device, const void *host, size_t bytes);
kvasir_status cuda_pick(struct backend *b, const float *logits, const struct pick *picks,
                        uint32_t n, struct picked *out, kvasir_error *err); // pick.cu
struct backend_arena *cuda_arena_create(struct backend *b, size_t bytes);
void cuda_arena_destroy(struct backend *b, struct backend_arena *a);
void cuda_arena_take(struct backend *b, struct backend_arena *a, uint32_t addr, size_t bytes,
                     bool fresh);
void cuda_arena_map(struct backend *b, struct backend_arena *a, uint32_t addr, size_t bytes);
void cuda_arena_release(struct backend *b, struct backend_arena *a, uint32_t addr, size_t bytes);
void cuda_arena_copy(struct backend *b, struct backend_arena *a, uint32_t to, uint32_t from,
                     size_t bytes);
kvasir_status cuda_arena_read(struct backend *b, const struct backend_arena *a, size_t at,
                              void *host, size_t bytes, kvasir_error *err);
void cuda_arena_write(struct backend *b, struct backend_arena *a, size_t at, const void *host,
                      size_t bytes);
void cuda_arena_zero(struct backend *b, struct backend_arena *a, size_t at, size_t width,
                     size_t pitch, size_t count);
void cuda_page_convert(struct backend *b, struct backend_arena *a, const struct page_conversion *c);
// lane.cu
void *cuda_pinned_alloc(struct backend *b, size_t bytes);
void cuda_pinned_free(struct backend *b, void *p);
struct backend_lane *cuda_lane_create(struct backend *b);
void cuda_lane_destroy(struct backend *b, struct backend_lane *l);
void cuda_lanes_follow(struct backend *b);
void cuda_lane_put(struct backend_lane *l, struct backend_arena *a, size_t at, const void *host,
                   size_t bytes);
void cuda_lane_get(struct backend_lane *l, const struct backend_arena *a, size_t at, void *host,
                   size_t bytes);
bool cuda_lane_wait(struct backend_lane *l);
// weights.cu
kvasir_status cuda_weight_put(struct backend *b, const struct weight *w,
                              const struct backend_weight **out, kvasir_error *err);
void cuda_weight_drop(struct backend *b, const struct backend_weight *w);
// record.cu
void cuda_embed(struct backend *b, const struct backend_weight *w, const int32_t *tokens,
                uint32_t rows, float *y);
void cuda_matmul(struct backend *b, const float *x, uint32_t rows,
                 const struct backend_weight *const *w, const float *const *bias, float *const *y,
                 uint32_t count);
void cuda_rms_norm(struct backend *b, const float *x, const float *gain, uint32_t rows,
                   uint32_t dim, float eps, float *y);
void cuda_rope_table(struct backend *b, const uint32_t *pos, uint32_t rows, const double *inv_freq,
                     uint32_t n, float scale, float *cos_out, float *sin_out);
void cuda_rope(struct backend *b, float *x, uint32_t rows, uint32_t heads, uint32_t head_dim,
               const float *cos_in, const float *sin_in, uint32_t n, bool adjacent);
void cuda_gate_mul(struct backend *b, enum gate_kind kind, const float *gate, const float *up,
                   size_t n, float *y);
void cuda_add(struct backend *b, float *x, const float *y, float scale, size_t n);
void cuda_scale(struct backend *b, float *x, float scale, size_t n);
void cuda_gate_rows(struct backend *b, float *x, const float *gate, uint32_t rows, uint32_t dim);
void cuda_softcap(struct backend *b, float *x, float cap, size_t n);
void cuda_rearrange(struct backend *b, uint32_t rows, uint32_t blocks, uint32_t n,
                    const float *from, struct block_strides from_strides, float *to,
                    struct block_strides to_strides);
void cuda_gather_rows(struct backend *b, const float *x, const uint32_t *index, uint32_t n,
                      uint32_t dim, float *y);
void cuda_short_conv(struct backend *b, const struct batch *batch, size_t at, const float *x,
                     const float *w, uint32_t width, uint32_t channels, bool silu, float *y);
void cuda_delta_rule(struct backend *b, const struct batch *batch, size_t at, const float *qkv,
                     const float *beta, const float *a, const struct delta_layer *layer, float *y);
void cuda_experts(struct backend *b, const float *x, uint32_t rows, const float *logits,
                  const struct expert_layer *layer, float *y);
void cuda_kv_store(struct backend *b, const struct batch *batch, const struct kv_view *views,
                   uint32_t layer, const float *k, const float *v);
void cuda_attention(struct backend *b, const struct batch *batch, const struct kv_view *views,
                    uint32_t layer, const float *q, const struct attention_args *args, float *out);
// step.cu
kvasir_status cuda_check_layout(const struct backend *b, const struct page_layout *l,
                                kvasir_error *err);
void cuda_step_begin(struct backend *b, const struct batch *batch, uint32_t groups);
// centre.cu
kvasir_status cuda_reserve_centre(struct backend *b, const struct key_centre *c, kvasir_error *err);
// basis.cu
kvasir_status cuda_reserve_basis(struct backend *b, const struct key_basis *basis,
                                 kvasir_error *err);

// ---- between the files -----------------------------------------------------------------------

// memory.cu: looks the driver up; gives back what is left.
kvasir_status arenas_open(cuda_backend *b, int device, kvasir_error *err);
void arenas_close(cuda_backend *b);
// memory.cu: room for pieces of this size; the old room is given back. False: no memory is left.
bool bring_open(cuda_backend *b, size_t piece_bytes);
void bring_close(cuda_backend *b);
// memory.cu: a copy in device memory of a host array that an operation reads, for kernels launched
// until BRING_SLOTS - 1 others are brought. The host may change its array at once. NULL after an
// error. Not in a recorded step, whose arrays come with its tables (record_bring).
const void *cuda_bring(cuda_backend *b, const void *host, size_t bytes);
// record.cu: the step's operations are written down from now on, until step_submit hands them to
// the device, where they were not yet; forgets all graphs; the same, and gives everything back.
void step_record(cuda_backend *b);
void step_submit(cuda_backend *b);
void graphs_drop(cuda_backend *b);
void record_close(cuda_backend *b);
// memory.cu: where kernels find an arena; whether its bytes [at, at + bytes) have memory, asked by
// any thread of pages that are taken.
uint8_t *arena_base(const struct backend_arena *a);
bool arena_has(const struct backend_arena *a, size_t at, size_t bytes);
// clock.cu: what this build has for the device. False: nothing.
bool device_image(cudaFuncAttributes *out);
// step.cu: the most that a group's tables hold within the limits, and the bytes of all groups'.
void table_caps_most(const cuda_backend *b, table_caps *caps);
size_t tables_lay_out(const backend_limits *l, const uint8_t *base, uint32_t n_seqs,
                      const table_caps *caps, step_group *groups);
// step.cu: the layer group of an operation's views, which are the batch's. False after an error.
bool operation_begins(const cuda_backend *b, const batch *batch, const kv_view *views,
                      uint32_t layer, uint32_t *group);
// centre.cu: the device's tables of a group's centre, zeros for NULL; gives all of them back.
dev_centre centre_find(const cuda_backend *b, const key_centre *c);
// Turns of so many tiles, before a step that sees them.
kvasir_status centre_cover(cuda_backend *b, const key_centre *c, uint32_t tiles, kvasir_error *err);
void centres_close(cuda_backend *b);
// basis.cu: the same of a group's bases; scratch for attention over pages of these bases (one bit
// each), kept until turned_close. False: no memory is left.
dev_basis basis_find(const cuda_backend *b, const key_basis *basis);
void bases_close(cuda_backend *b);
bool turned_open(cuda_backend *b, uint32_t bases);
void turned_close(cuda_backend *b);
// step.cu: heads that some kernel takes.
kvasir_status check_head_dim(uint32_t dims, kvasir_error *err);
// step.cu: plain items of one super-run each that a step of a group may have.
uint32_t plain_parts_most(uint32_t kv_heads);
// decode.cu: partial results, each of all heads of a KV head, that a launch of so many items leaves
// at most.
size_t decode_parts(const cuda_backend *b, size_t items, uint32_t kv_heads);
// prefill.cu: query rows (tokens x query heads of a KV head) of a full block.
uint32_t prefill_block_rows(uint32_t head_dim);
// prefill.cu: partial results, of a row each, that blocks of a super-run each leave at most.
size_t prefill_parts(const cuda_backend *b, uint64_t pages, uint32_t head_dim);
// basis.cu: the factor of an orthonormal Hadamard matrix, as hadamard_rotate has it.
float hadamard_scale(uint32_t head_dim);
// weights.cu: what kernels need of a matrix (product.cuh).
struct weight_view;
const weight_view *weight_view_of(const struct backend_weight *w);
// rows.cu: gate_mul of every step-th value of gate and up.
void gate_values(cuda_backend *b, enum gate_kind kind, const float *gate, const float *up,
                 uint32_t step, size_t n, float *y);
// experts.cu: scratch for steps within the limits, and giving it back; the tables of all layers.
bool experts_open(cuda_backend *b);
void experts_close(cuda_backend *b);
void experts_drop_tables(cuda_backend *b);
// pick.cu: scratch for limits.vocab, and giving it back. False: no memory is left.
bool picks_open(cuda_backend *b);
void picks_close(cuda_backend *b);
// product.cu: bytes of cuda_backend.act, for rows of the most inputs; of run_sums (halves.cu).
size_t product_scratch_bytes_cuda(uint32_t max_rows, uint32_t max_inputs);
size_t halves_sums_bytes(const cuda_backend *b);

// ---- attention -------------------------------------------------------------------------------

// Whether this device has the shared memory that the kernels of these formats take.
bool decode_fits(const cuda_backend *b, uint32_t k_formats, uint32_t v_formats, uint32_t head_dim,
                 uint32_t gqa);
// alone: all pages are in the plain basis. pairs: most of a head's centre, if some keys have one.
bool prefill_fits(const cuda_backend *b, uint32_t k_formats, uint32_t v_formats, bool alone,
                  uint32_t head_dim, uint32_t pairs);
// Whether those for centred keys do: the waves of that many pairs are there, too.
bool prefill_centre_fits(const cuda_backend *b, uint32_t head_dim, uint32_t pairs);

// Attention over the pages of one basis.
struct attention_pass {
    uint32_t basis;
    const float *q; // [row][head][dim], as the operation has it
    float *turned;  // the same in that basis, where they were turned (basis.cu)
    float *out;     // [row][head][dim], not defined where nothing is seen
    float2 *ms;     // [row][head] maximum and sum; NULL: not wanted
    float factor;   // of H, which outputs are rotated back by; 0: the basis is the plain one
};
// What the kernels of both are told of a pass.
struct PassArgs {
    const float *q; // [row][head][D]
    float *out;
    float2 *ms;       // [row][head]; NULL: not wanted (attention_pass)
    uint32_t basis;   // of the pages
    float turn, back; // factor of H for queries, for outputs; 0: they are not rotated
    float scale;
    uint32_t layer, heads, gqa, kv_heads;
    const float *plain; // queries in the plain basis: centres are
    dev_centre centre;
};
PassArgs pass_args(const cuda_backend *b, const struct attention_op &op,
                   const attention_pass &pass);
// The decode and the prefill items of a group's step.
void attention_decode(cuda_backend *b, const struct attention_op &op, const attention_pass &pass);
void attention_prefill(cuda_backend *b, const struct attention_op &op, const attention_pass &pass);
// The plain items.
void attention_plain(cuda_backend *b, const struct attention_op &op, const attention_pass &pass);
// basis.cu: the pass over pages of a basis, beside which there are more or not; queries in its
// basis; the results of several passes together.
attention_pass pass_of(const cuda_backend *b, const struct attention_op &op, uint32_t basis,
                       bool more);
void turn_queries(cuda_backend *b, const struct attention_op &op, const attention_pass &pass);
void join_passes(cuda_backend *b, const struct attention_op &op, const attention_pass *passes,
                 uint32_t n);
// K and V of the rows that fall into sides of pages for which encode.cu has no code.
void store_plain(cuda_backend *b, const struct kv_store_op &op);
// Those that fall into pages in another basis than the plain one; the same launch turns queries,
// unless `turn` is NULL.
void store_whole(cuda_backend *b, const struct kv_store_op &op, const struct TurnArgs *turn);
// Encodes those of its pages that the step has filled, whose rows others have stored.
void store_full(cuda_backend *b, const struct kv_store_op &op);

// Programmatic dependent launch, from sm_90 on: the blocks of a kernel start while the kernel
// before it ends (kernel_comes lets the next one start), and wait in kernel_waits for its results.
// That saves 1 to 2 us per launch. What was written before both kernels may be read before the
// wait: a step's tables, which come with a copy, not a kernel. Every block waits, even one without
// work: a kernel must not end earlier than the one before it. What the kernel before wrote must be
// read by plain loads: the compiler may move an __ldg ahead of the wait.
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

#include "backend/cuda/ops.cuh"
