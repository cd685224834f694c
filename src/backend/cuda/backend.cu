// SPDX-License-Identifier: Apache-2.0
// backend.cu: the CUDA backend's table, its life and its scratch. Operations are elsewhere.
//
//     device memory    weights, activations           memory.cu
//     fixed buffers    tables of a step, scratch      cudaMalloc once, in reserve
//     arenas           pages                          memory.cu
//
// One stream, which does not wait for the default one; lanes have one each (lane.cu). Invariants:
//   CUDA-1  The first error sticks (error.cu); after it every call returns at once, so that nothing
//           runs on data that was never written. flush and the reads report it.
//   CUDA-2  Nothing on the device is allocated after reserve but by alloc, upload, weight_put,
//           arenas that grow, the first call of each layer of experts and the first step with pages
//           in another basis. None of these, no write and no read may come inside a capture.
//   CUDA-3, 4 and 6 are in memory.cu, 5, 7 and 8 in record.cu, 9 in lane.cu.
#include <algorithm>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/internal.cuh"

// Version of this backend's arithmetic, as MODEL_ARITHMETIC_VERSION (model.h) of all of them: raise
// it when a bit of a result changes. Stored prefixes name it with the tier.
enum { ARITHMETIC = 4 };

extern "C" int backend_cuda_devices(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

// ---- life ------------------------------------------------------------------------------------

static kvasir_status open_device(cuda_backend *b, int device, kvasir_error *err) {
    int count = 0, major = 0, minor = 0;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e != cudaSuccess || count == 0)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "CUDA: no device: %s",
                    e != cudaSuccess ? cudaGetErrorString(e) : "the driver lists none");
    if (device < 0 || device >= count)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "CUDA: there is no device %d, only 0 to %d",
                    device, count - 1);
    b->device = device;
    cudaDeviceProp p;
    cudaFuncAttributes image;
    cuda_ok(b, cudaSetDevice(device));
    cuda_ok(b, cudaGetDeviceProperties(&p, device));
    TRY(cuda_status(b, err));
    major = p.major;
    minor = p.minor;
    b->sm_count = p.multiProcessorCount;
    b->shared_per_block = (uint32_t)p.sharedMemPerBlockOptin;
    b->shared_per_sm = (uint32_t)p.sharedMemPerMultiprocessor;
    b->shared_reserved = (uint32_t)p.reservedSharedMemPerBlock;
    snprintf(b->tier, sizeof b->tier, "sm_%d%d-%d", major, minor, ARITHMETIC);
    snprintf(b->name, sizeof b->name, "%.64s, sm_%d%d, %d SMs", p.name, major, minor, b->sm_count);
    if (major < 8)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "CUDA: %s: compute capability 8.0 is needed",
                    b->name);
    if (!device_image(&image))
        return fail(err, KVASIR_ERR_UNSUPPORTED, "CUDA: %s: this build has no code for it",
                    b->name);
    size_t free_bytes = 0, all_bytes = 0;
    cuda_ok(b, cudaMemGetInfo(&free_bytes, &all_bytes));
    b->memory_bytes = free_bytes;
    b->overlaps = image.ptxVersion >= 90;
    cuda_ok(b, cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
    cuda_ok(b, cudaEventCreateWithFlags(&b->tables_read, cudaEventDisableTiming));
    cuda_ok(b, cudaEventCreateWithFlags(&b->followed, cudaEventDisableTiming));
    TRY(cuda_status(b, err));
    return arenas_open(b, device, err);
}

static void free_fixed(cuda_backend *b) {
    record_close(b);
    bring_close(b);
    experts_close(b);
    picks_close(b);
    turned_close(b);
    (void)cudaFreeHost(b->host_tables);
    void *device[] = {b->dev_tables, b->part_out, b->part_ms, b->arrived, b->act, b->run_sums};
    for (void *p : device)
        (void)cudaFree(p);
    b->host_tables = b->dev_tables = nullptr;
    b->part_out = nullptr;
    b->part_ms = nullptr;
    b->arrived = nullptr;
    b->act = nullptr;
    b->run_sums = nullptr;
    b->reserved = false;
}

static void cuda_destroy(struct backend *base) {
    cuda_backend *b = cuda_of(base);
    if (b->stream)
        (void)cudaStreamSynchronize(b->stream);
    record_close(b); // what was recorded and never wanted is not run
    arenas_close(b);
    experts_drop_tables(b);
    centres_close(b);
    bases_close(b);
    free_fixed(b);
    if (b->tables_read)
        (void)cudaEventDestroy(b->tables_read);
    if (b->followed)
        (void)cudaEventDestroy(b->followed);
    if (b->stream)
        (void)cudaStreamDestroy(b->stream);
    (void)cudaFreeHost(b->fetched);
    mem_free(b->staging);
    mem_free(b);
}

// Rows of a step beyond which kernels are no faster per row, by the shapes that opcheck --bench
// times; rows that a launch of the product can have (its grid's y counts chunks of 64).
enum { ROWS_GOOD = 2048, ROWS_MAX = 65535 * 64 };

static void cuda_info(const struct backend *base, struct backend_info *out) {
    const cuda_backend *b = (const cuda_backend *)base;
    *out = backend_info{};
    snprintf(out->name, sizeof out->name, "%s", b->name);
    out->kind = "cuda";
    out->tier = b->tier;
    out->workers = 1;
    out->rows_good = ROWS_GOOD;
    out->rows_max = ROWS_MAX;
    out->act_bits = b->act_bits;
    out->logit_rows = LOGIT_ROWS;
    out->memory_bytes = b->memory_bytes;
}

// ---- fixed buffers ---------------------------------------------------------------------------

static kvasir_status check_limits(const backend_limits *l, kvasir_error *err) {
    if (l->groups == 0 || l->groups > BACKEND_GROUPS_MAX)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "CUDA: %u layer groups: 1 to %d are supported",
                    l->groups, BACKEND_GROUPS_MAX);
    if (l->rows == 0 || l->rows > ROWS_MAX || l->pages == 0 || l->pages > UINT32_MAX)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "CUDA: steps of %u rows and %llu pages are not supported", l->rows,
                    (unsigned long long)l->pages);
    for (uint32_t i = 0; i < l->groups; i++) {
        const auto &g = l->group[i];
        TRY(check_head_dim(g.head_dim, err));
        if (g.kv_heads == 0 || g.heads == 0 || g.heads % g.kv_heads != 0 ||
            g.heads / g.kv_heads > GQA_MAX)
            return fail(err, KVASIR_ERR_UNSUPPORTED,
                        "CUDA: %u query heads over %u KV heads are not supported: 1 to %d each",
                        g.heads, g.kv_heads, GQA_MAX);
    }
    return KVASIR_OK;
}

static bool alloc_fixed(cuda_backend *b) {
    const backend_limits *l = &b->limits;
    size_t floats = 0, rows = 0, arrived = 0; // partial results: elements; heads; arrivals
    for (uint32_t i = 0; i < l->groups; i++) {
        const auto &g = l->group[i];
        table_caps_most(b, &b->most[i]);
        const size_t items = b->most[i].items[COUNT_DECODE],
                     plain = plain_parts_most(g.kv_heads) * g.kv_heads,
                     part_rows =
                         std::max({decode_parts(b, items, g.kv_heads) * (g.heads / g.kv_heads),
                                   plain * PLAIN_COLUMNS, prefill_parts(b, l->pages, g.head_dim)});
        floats = std::max(floats, part_rows * g.head_dim);
        rows = std::max(rows, part_rows);
        arrived = std::max(arrived, std::max(items * g.kv_heads, plain));
    }
    b->part_floats = floats;
    b->part_rows = rows;
    // experts: each of a row's inputs of the second product is a row of its own
    const size_t act_bytes =
        std::max(product_scratch_bytes_cuda(l->rows, l->dim),
                 product_scratch_bytes_cuda(l->rows * l->top_k, l->expert_dim));
    const size_t piece = std::max(l->rows * sizeof(uint64_t), HEAD_DIM_MAX * sizeof(double));
    b->run_sums_bytes = halves_sums_bytes(b);
    b->tables_bytes = tables_lay_out(l, nullptr, l->seqs, b->most, b->group) + BRING_SLOTS * piece;
    if (cudaMallocHost((void **)&b->host_tables, b->tables_bytes) != cudaSuccess ||
        !device_array(b->tables_bytes, &b->dev_tables) || !device_array(floats, &b->part_out) ||
        !device_array(rows, &b->part_ms) || !device_array(arrived, &b->arrived) ||
        !device_array(act_bytes, (uint8_t **)&b->act) ||
        !device_array(b->run_sums_bytes / sizeof(float), &b->run_sums) || !experts_open(b) ||
        !picks_open(b) || !bring_open(b, piece))
        return false;
    // The block of a row that arrives last sets its counter back: zeroed once.
    cuda_ok(b, cudaMemsetAsync(b->arrived, 0, arrived * sizeof *b->arrived, b->stream));
    // Tables laid out anew for every step leave gaps, which a graph's copy moves too.
    memset(b->host_tables, 0, b->tables_bytes);
    tables_lay_out(l, b->dev_tables, l->seqs, b->most, b->group);
    return true;
}

// Alone in a step, one row is faster in the decode kernel; two share every tile in the other.
enum { PREFILL_ROWS = 2 };

static kvasir_status cuda_reserve(struct backend *base, const struct backend_limits *l,
                                  kvasir_error *err) {
    cuda_backend *b = cuda_of(base);
    TRY(check_limits(l, err));
    TRY(cuda_flush(base, err)); // what is enqueued may use what is freed here
    free_fixed(b);
    b->limits = *l;
    if (b->limits.seqs == 0)
        b->limits.seqs = l->rows;
    memset(b->plan, 0, sizeof b->plan); // of steps whose tables are gone
    if (!alloc_fixed(b)) {
        cudaError_t e = cudaGetLastError();
        free_fixed(b);
        return fail(err, KVASIR_ERR_MEMORY,
                    "CUDA: buffers for steps of %u rows, %u sequences, %llu pages: %s", l->rows,
                    b->limits.seqs, (unsigned long long)l->pages, cudaGetErrorString(e));
    }
    b->reserved = true;
    return cuda_flush(base, err);
}

kvasir_status cuda_prefill_rows(struct backend *base, uint32_t rows, kvasir_error *err) {
    cuda_backend *b = cuda_of(base);
    ASSERT(b->reserved);
    b->prefill_rows = rows ? rows : (uint32_t)PREFILL_ROWS;
    const backend_limits limits = b->limits;
    return cuda_reserve(base, &limits, err);
}

// ---- the table -------------------------------------------------------------------------------

// The members that are not set are absent.
static backend_ops make_ops() {
    backend_ops ops = {};
    // clang-format off
#define MEMBER(name) ops.name = cuda_##name;
    BACKEND_MEMBERS(MEMBER) LANE_MEMBERS(MEMBER) MEMBER(reserve_basis)
    MEMBER(flush) MEMBER(alloc) MEMBER(free) MEMBER(upload) MEMBER(upload_free)
    MEMBER(read) MEMBER(fetch) MEMBER(write) MEMBER(pick) MEMBER(weight_put) MEMBER(weight_drop)
    MEMBER(embed) MEMBER(rms_norm) MEMBER(matmul) MEMBER(rope_table) MEMBER(rope) MEMBER(kv_store)
    MEMBER(attention) MEMBER(gate_mul) MEMBER(add) MEMBER(scale) MEMBER(gate_rows)
    MEMBER(softcap) MEMBER(rearrange) MEMBER(gather_rows) MEMBER(experts)
    MEMBER(short_conv) MEMBER(delta_rule)
#undef MEMBER
        // clang-format on
        return ops;
}
static const backend_ops CUDA_OPS = make_ops();

extern "C" kvasir_status backend_cuda_create(struct backend **out,
                                             const struct backend_cuda_options *opt,
                                             kvasir_error *err) {
    *out = nullptr;
    if (opt->act_bits != 8 && opt->act_bits != 16)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "context.act_bits", "%d is neither 8 nor 16",
                          opt->act_bits);
    cuda_backend *b = (cuda_backend *)mem_calloc(1, sizeof *b);
    if (!b)
        return fail(err, KVASIR_ERR_MEMORY, "CUDA: out of memory");
    b->base.ops = &CUDA_OPS;
    b->act_bits = opt->act_bits;
    b->prefill_rows = PREFILL_ROWS;
    kvasir_status status = open_device(b, opt->device, err);
    if (status == KVASIR_OK)
        *out = &b->base;
    else
        cuda_destroy(&b->base);
    return status;
}
