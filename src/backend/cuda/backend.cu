// SPDX-License-Identifier: Apache-2.0
// backend.cu: the CUDA backend's life, its memory, graphs and clocks. Operations are elsewhere.
//
//     device memory    weights, activations           cudaMalloc
//     fixed buffers    tables of a step, scratch      cudaMalloc once, in cuda_reserve
//     arenas           pages                          address space, memory in units of 2 MiB
//
//     arena:  | unit | unit | ............ | unit |   reserved: addresses only
//                mapped[]: 1      1      0 ...        memory is taken when cuda_arena_take or _copy
//                                                     first writes a unit, released as whole units
//
// One stream, which does not wait for the default one. Invariants:
//   C1  The first error sticks (b->error); after it every call returns at once, so that nothing
//       runs on data that was never written. cuda_status, cuda_read and cuda_step_begin report it.
//   C2  Nothing allocates between cuda_reserve and cuda_destroy but cuda_alloc, cuda_weight_create
//       and arenas that grow; none of these, no upload and no read may come inside a capture.
//   C3  A page's address stays the same for the arena's life: memory behind it comes and goes.
//   C4  Memory of a unit goes back only when everything that was enqueued before has run.
//   C5  host_tables hold the tables that the next copy takes: after cuda_capture_end the captured
//       step's, else those of the last cuda_step_begin or cuda_step_update. A graph runs only over
//       its own (b->written).
//
// The driver's functions for virtual memory are asked for by name, so that the program needs no
// libcuda at link time and starts on machines without a driver.
#include <algorithm>
#include <cudaTypedefs.h>
#include <stdio.h>
#include <string.h>

#include "backend/cuda/internal.cuh"

enum {
    ARENA_UNIT = 2 << 20,
};

struct cuda_arena {
    uint8_t *base;
    size_t units;
    bool *mapped; // [units]
    cuda_arena *next;
};

struct cuda_arenas {
    int device;
    cuda_arena *first;
    PFN_cuMemAddressReserve_v10020 address_reserve;
    PFN_cuMemAddressFree_v10020 address_free;
    PFN_cuMemCreate_v10020 create;
    PFN_cuMemRelease_v10020 release;
    PFN_cuMemMap_v10020 map;
    PFN_cuMemUnmap_v10020 unmap;
    PFN_cuMemSetAccess_v10020 set_access;
    PFN_cuMemGetAllocationGranularity_v10020 granularity;
};

// ---- errors ----------------------------------------------------------------------------------

bool cuda_ok(cuda_backend *b, cudaError_t e) {
    if (e != cudaSuccess) {
        (void)cudaGetLastError(); // the runtime keeps it too, and would give it to the next launch
        if (b->error == cudaSuccess)
            b->error = e;
    }
    return b->error == cudaSuccess;
}

// The driver's numbers are the runtime's, for all errors that both have.
static bool driver_ok(cuda_backend *b, CUresult r) {
    return cuda_ok(b, (cudaError_t)r);
}

kvasir_status cuda_fail(const cuda_backend *b, kvasir_error *err) {
    if (b->error == cudaSuccess)
        return KVASIR_OK;
    return fail(err, b->error == cudaErrorMemoryAllocation ? KVASIR_ERR_MEMORY : KVASIR_ERR_IO,
                "CUDA: %s (%s)", cudaGetErrorString(b->error), cudaGetErrorName(b->error));
}

kvasir_status cuda_status(struct cuda_backend *b, kvasir_error *err) {
    if (!b->error && !b->capturing)
        cuda_ok(b, cudaStreamSynchronize(b->stream));
    return cuda_fail(b, err);
}

// False, and an error that sticks, inside a capture.
static bool not_captured(cuda_backend *b) {
    return b->error == cudaSuccess &&
           cuda_ok(b, b->capturing ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}

// ---- life ------------------------------------------------------------------------------------

// Reads n chunks of 16 bytes once each, eight loads of a thread in flight. See cuda_read_ceiling.
__device__ static uint32_t load_16(const uint4 *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v.x ^ v.y ^ v.z ^ v.w;
}

__global__ static void read_all(const uint4 *p, size_t n, uint32_t *out) {
    size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    uint32_t x = 0;
    for (; i + 7 * step < n; i += 8 * step) {
        uint32_t v[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = load_16(p + i + j * step);
#pragma unroll
        for (int j = 0; j < 8; j++)
            x ^= v[j];
    }
    for (; i < n; i += step)
        x ^= load_16(p + i);
    if (x == 0x12345678) // never for zeros, but the compiler cannot know
        *out = x;
}

template <class F> static bool find_driver(const char *name, F *out) {
    const unsigned cuda_10_2 = 10020; // all of these are that old
    cudaDriverEntryPointQueryResult found;
    void *p = nullptr;
    if (cudaGetDriverEntryPointByVersion(name, &p, cuda_10_2, cudaEnableDefault, &found) !=
            cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
        return false;
    *out = (F)p;
    return p != nullptr;
}

static CUmemAllocationProp unit_properties(const cuda_arenas *a) {
    CUmemAllocationProp p = {};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = a->device;
    return p;
}

static kvasir_status arenas_create(cuda_backend *b, int device, kvasir_error *err) {
    cuda_arenas *a = (cuda_arenas *)mem_calloc(1, sizeof *a);
    if (!a)
        return fail(err, KVASIR_ERR_MEMORY, "CUDA: out of memory");
    b->arenas = a;
    a->device = device;
    CUmemAllocationProp properties = unit_properties(a);
    size_t unit = 0;
    if (!find_driver("cuMemAddressReserve", &a->address_reserve) ||
        !find_driver("cuMemAddressFree", &a->address_free) ||
        !find_driver("cuMemCreate", &a->create) || !find_driver("cuMemRelease", &a->release) ||
        !find_driver("cuMemMap", &a->map) || !find_driver("cuMemUnmap", &a->unmap) ||
        !find_driver("cuMemSetAccess", &a->set_access) ||
        !find_driver("cuMemGetAllocationGranularity", &a->granularity) ||
        a->granularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS ||
        unit == 0 || ARENA_UNIT % unit != 0)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "CUDA: %s: the driver cannot map memory in units of 2 MiB", b->name);
    return KVASIR_OK;
}

static kvasir_status open_device(cuda_backend *b, kvasir_error *err) {
    int count = 0, device = 0, major = 0, minor = 0;
    cudaError_t e = cudaGetDeviceCount(&count);
    if (e != cudaSuccess || count == 0)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "CUDA: no device: %s",
                    e != cudaSuccess ? cudaGetErrorString(e) : "none is there");
    cudaDeviceProp p;
    cudaFuncAttributes image;
    cuda_ok(b, cudaGetDevice(&device));
    cuda_ok(b, cudaGetDeviceProperties(&p, device));
    TRY(cuda_fail(b, err));
    major = p.major;
    minor = p.minor;
    b->sm_count = p.multiProcessorCount;
    b->shared_per_block = (uint32_t)p.sharedMemPerBlockOptin;
    b->shared_per_sm = (uint32_t)p.sharedMemPerMultiprocessor;
    b->shared_reserved = (uint32_t)p.reservedSharedMemPerBlock;
    snprintf(b->name, sizeof b->name, "%.64s, sm_%d%d, %d SMs", p.name, major, minor, b->sm_count);
    if (major < 8)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "CUDA: %s: compute capability 8.0 is asked for",
                    b->name);
    if (cudaFuncGetAttributes(&image, read_all) != cudaSuccess) {
        (void)cudaGetLastError();
        return fail(err, KVASIR_ERR_UNSUPPORTED, "CUDA: %s: this build has no code for it",
                    b->name);
    }
    b->overlaps = image.ptxVersion >= 90;
    cuda_ok(b, cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
    cuda_ok(b, cudaEventCreateWithFlags(&b->tables_read, cudaEventDisableTiming));
    TRY(cuda_fail(b, err));
    return arenas_create(b, device, err);
}

kvasir_status cuda_create(struct cuda_backend **out, kvasir_error *err) {
    *out = nullptr;
    cuda_backend *b = (cuda_backend *)mem_calloc(1, sizeof *b);
    if (!b)
        return fail(err, KVASIR_ERR_MEMORY, "CUDA: out of memory");
    kvasir_status status = open_device(b, err);
    if (status == KVASIR_OK)
        *out = b;
    else
        cuda_destroy(b);
    return status;
}

static void free_fixed(cuda_backend *b) {
    (void)cudaFreeHost(b->host_tables);
    void *device[] = {b->dev_tables, b->part_out, b->part_ms, b->arrived, b->act};
    for (void *p : device)
        (void)cudaFree(p);
    b->host_tables = b->dev_tables = nullptr;
    b->part_out = nullptr;
    b->part_ms = nullptr;
    b->arrived = nullptr;
    b->act = nullptr;
    b->reserved = false;
    b->written = nullptr;
}

void cuda_destroy(struct cuda_backend *b) {
    if (!b)
        return;
    if (b->stream)
        (void)cudaStreamSynchronize(b->stream);
    while (b->arenas && b->arenas->first)
        cuda_arena_unreserve(b, b->arenas->first->base, b->arenas->first->units * ARENA_UNIT);
    mem_free(b->arenas);
    free_fixed(b);
    if (b->tables_read)
        (void)cudaEventDestroy(b->tables_read);
    if (b->stream)
        (void)cudaStreamDestroy(b->stream);
    mem_free(b);
}

const char *cuda_name(const struct cuda_backend *b) {
    return b->name;
}

// ---- fixed buffers ---------------------------------------------------------------------------

static kvasir_status check_limits(const cuda_limits *l, kvasir_error *err) {
    if (l->groups == 0 || l->groups > CUDA_GROUPS_MAX)
        return fail(err, KVASIR_ERR_ARGUMENT, "CUDA: %u layer groups: 1 to %d are supported",
                    l->groups, CUDA_GROUPS_MAX);
    if (l->max_rows == 0 || l->max_seqs == 0 || l->max_pages == 0)
        return fail(err, KVASIR_ERR_ARGUMENT, "CUDA: a step of %u rows, %u sequences, %u pages",
                    l->max_rows, l->max_seqs, l->max_pages);
    for (uint32_t i = 0; i < l->groups; i++) {
        const auto &g = l->group[i];
        if (g.head_dim != 64 && g.head_dim != 128 && g.head_dim != 256)
            return fail(err, KVASIR_ERR_UNSUPPORTED,
                        "CUDA: heads of %u dims are not supported: 64, 128 or 256", g.head_dim);
        if (g.kv_heads == 0 || g.heads == 0 || g.heads % g.kv_heads != 0 ||
            g.heads / g.kv_heads > GQA_MAX)
            return fail(err, KVASIR_ERR_UNSUPPORTED,
                        "CUDA: %u query heads over %u KV heads are not supported: 1 to %d each",
                        g.heads, g.kv_heads, GQA_MAX);
    }
    return KVASIR_OK;
}

template <class T> static bool device_array(size_t n, T **out) {
    return cudaMalloc((void **)out, std::max<size_t>(n, 1) * sizeof(T)) == cudaSuccess;
}

static bool alloc_fixed(cuda_backend *b) {
    const cuda_limits *l = &b->limits;
    size_t floats = 0, rows = 0, arrived = 0; // partial results: elements; heads; arrivals
    for (uint32_t i = 0; i < l->groups; i++) {
        const auto &g = l->group[i];
        table_caps_most(l, &b->most[i]);
        const size_t items = b->most[i].items[COUNT_DECODE],
                     part_rows = decode_parts(b, items, g.kv_heads) * (g.heads / g.kv_heads);
        floats = std::max(floats, part_rows * g.head_dim);
        rows = std::max(rows, part_rows);
        arrived = std::max(arrived, items * g.kv_heads);
    }
    const size_t table_bytes = tables_lay_out(l, nullptr, l->max_seqs, b->most, b->group);
    if (cudaMallocHost((void **)&b->host_tables, table_bytes) != cudaSuccess ||
        !device_array(table_bytes, &b->dev_tables) || !device_array(floats, &b->part_out) ||
        !device_array(rows, &b->part_ms) || !device_array(arrived, &b->arrived) ||
        !device_array(product_scratch_bytes_cuda(l->max_rows, l->max_inputs), (uint8_t **)&b->act))
        return false;
    // A block that is the last of its row to arrive sets the counter back: zeroed once.
    cuda_ok(b, cudaMemsetAsync(b->arrived, 0, arrived * sizeof *b->arrived, b->stream));
    // Tables laid out anew for every step leave gaps, which a graph's copy moves too.
    memset(b->host_tables, 0, table_bytes);
    tables_lay_out(l, b->dev_tables, l->max_seqs, b->most, b->group);
    return true;
}

kvasir_status cuda_reserve(struct cuda_backend *b, const struct cuda_limits *l, kvasir_error *err) {
    TRY(check_limits(l, err));
    if (!not_captured(b))
        return cuda_fail(b, err);
    TRY(cuda_status(b, err)); // what is enqueued may use what is freed here
    free_fixed(b);
    b->limits = *l;
    memset(b->plan, 0, sizeof b->plan); // of steps whose tables are gone
    b->reserved_times++;
    if (!alloc_fixed(b)) {
        cudaError_t e = cudaGetLastError();
        free_fixed(b);
        return fail(err, KVASIR_ERR_MEMORY,
                    "CUDA: buffers for steps of %u rows, %u sequences, %u pages: %s", l->max_rows,
                    l->max_seqs, l->max_pages, cudaGetErrorString(e));
    }
    b->reserved = true;
    return cuda_status(b, err);
}

// ---- memory ----------------------------------------------------------------------------------

void *cuda_alloc(struct cuda_backend *b, size_t bytes) {
    void *p = nullptr;
    if (!not_captured(b))
        return nullptr;
    cudaError_t e = cudaMalloc(&p, std::max<size_t>(bytes, 1));
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); // the caller's to deal with: it does not stick
        return nullptr;
    }
    return cuda_ok(b, e) ? p : nullptr;
}

void cuda_free(struct cuda_backend *b, void *p) {
    if (!p || !not_captured(b))
        return;
    if (b->error == cudaSuccess)
        cuda_ok(b, cudaStreamSynchronize(b->stream));
    (void)cudaFree(p); // also after an error: it gives the memory back if anything can
}

// A copy from pageable memory goes through the driver's own pinned buffers, and the call returns
// when the last byte was put there: so the caller's memory is free again, though the device may not
// have the data yet. Pinned memory would be read later, by the device: nothing in Kvasir that is
// uploaded is pinned.
void cuda_upload(struct cuda_backend *b, void *device, const void *host, size_t bytes) {
    if (bytes && not_captured(b))
        cuda_ok(b, cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, b->stream));
}

kvasir_status cuda_read(struct cuda_backend *b, void *host, const void *device, size_t bytes,
                        kvasir_error *err) {
    if (not_captured(b))
        cuda_ok(b, cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, b->stream));
    return cuda_status(b, err);
}

// ---- arenas ----------------------------------------------------------------------------------

static cuda_arena *arena_of(const cuda_backend *b, const void *at, size_t bytes) {
    for (cuda_arena *a = b->arenas->first; a; a = a->next) {
        size_t offset = (size_t)((const uint8_t *)at - a->base), size = a->units * ARENA_UNIT;
        if ((const uint8_t *)at >= a->base && offset <= size && bytes <= size - offset)
            return a;
    }
    return nullptr;
}

// The handle is given up at once: the mapping keeps the memory, and unmapping frees it.
static bool unit_map(cuda_backend *b, cuda_arena *a, size_t unit) {
    const cuda_arenas *d = b->arenas;
    CUdeviceptr at = (CUdeviceptr)(a->base + unit * ARENA_UNIT);
    CUmemAllocationProp properties = unit_properties(d);
    CUmemGenericAllocationHandle handle;
    CUmemAccessDesc access = {};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (!driver_ok(b, d->create(&handle, ARENA_UNIT, &properties, 0)))
        return false;
    CUresult mapped = d->map(at, ARENA_UNIT, 0, handle, 0);
    CUresult released = d->release(handle);
    if (!driver_ok(b, mapped))
        return false;
    a->mapped[unit] = true;
    driver_ok(b, released);
    return driver_ok(b, d->set_access(at, ARENA_UNIT, &access, 1));
}

static void unit_unmap(cuda_backend *b, cuda_arena *a, size_t unit) {
    if (!a->mapped[unit])
        return;
    driver_ok(b, b->arenas->unmap((CUdeviceptr)(a->base + unit * ARENA_UNIT), ARENA_UNIT));
    a->mapped[unit] = false;
}

static bool range_map(cuda_backend *b, void *at, size_t bytes) {
    cuda_arena *a = arena_of(b, at, bytes);
    if (!a)
        return cuda_ok(b, cudaErrorInvalidValue);
    size_t offset = (size_t)((uint8_t *)at - a->base);
    for (size_t unit = offset / ARENA_UNIT; unit * ARENA_UNIT < offset + bytes; unit++)
        if (!a->mapped[unit] && !unit_map(b, a, unit))
            return false;
    return true;
}

void *cuda_arena_reserve(struct cuda_backend *b, size_t bytes) {
    if (!bytes || !not_captured(b))
        return nullptr;
    cuda_arena *a = (cuda_arena *)mem_calloc(1, sizeof *a);
    if (!a)
        return nullptr;
    a->units = round_up(bytes, ARENA_UNIT) / ARENA_UNIT;
    a->mapped = (bool *)mem_calloc(a->units, sizeof *a->mapped);
    CUdeviceptr base = 0;
    if (!a->mapped || b->arenas->address_reserve(&base, a->units * ARENA_UNIT, ARENA_UNIT, 0, 0) !=
                          CUDA_SUCCESS) {
        mem_free(a->mapped);
        mem_free(a);
        return nullptr;
    }
    a->base = (uint8_t *)base;
    a->next = b->arenas->first;
    b->arenas->first = a;
    return a->base;
}

void cuda_arena_unreserve(struct cuda_backend *b, void *arena, size_t bytes) {
    (void)bytes;
    for (cuda_arena **link = &b->arenas->first; *link; link = &(*link)->next) {
        cuda_arena *a = *link;
        if (a->base != arena)
            continue;
        if (b->error == cudaSuccess)
            cuda_ok(b, cudaStreamSynchronize(b->stream));
        for (size_t unit = 0; unit < a->units; unit++)
            unit_unmap(b, a, unit);
        driver_ok(b, b->arenas->address_free((CUdeviceptr)a->base, a->units * ARENA_UNIT));
        *link = a->next;
        mem_free(a->mapped);
        mem_free(a);
        return;
    }
}

// Zeros what is mapped of [from, end).
static void zero_mapped(cuda_backend *b, const cuda_arena *a, size_t from, size_t end) {
    while (from < end) {
        size_t unit = from / ARENA_UNIT, stop = std::min(end, (unit + 1) * ARENA_UNIT);
        if (a->mapped[unit])
            cuda_ok(b, cudaMemsetAsync(a->base + from, 0, stop - from, b->stream));
        from = stop;
    }
}

// Units that the range covers go back; of those that it shares with others its part is zeroed.
void cuda_arena_release(struct cuda_backend *b, void *at, size_t bytes) {
    if (!bytes || !not_captured(b))
        return;
    cuda_arena *a = arena_of(b, at, bytes);
    if (!a) {
        cuda_ok(b, cudaErrorInvalidValue);
        return;
    }
    size_t from = (size_t)((uint8_t *)at - a->base), end = from + bytes;
    size_t first = round_up(from, ARENA_UNIT), last = end / ARENA_UNIT * ARENA_UNIT;
    if (first >= last) {
        zero_mapped(b, a, from, end);
        return;
    }
    zero_mapped(b, a, from, first);
    zero_mapped(b, a, last, end);
    if (!cuda_ok(b, cudaStreamSynchronize(b->stream)))
        return;
    for (size_t unit = first / ARENA_UNIT; unit < last / ARENA_UNIT; unit++)
        unit_unmap(b, a, unit);
}

void cuda_arena_take(struct cuda_backend *b, void *at, size_t bytes) {
    if (bytes && not_captured(b) && range_map(b, at, bytes))
        cuda_ok(b, cudaMemsetAsync(at, 0, bytes, b->stream));
}

void cuda_arena_copy(struct cuda_backend *b, void *to, const void *from, size_t bytes) {
    if (bytes && not_captured(b) && range_map(b, to, bytes))
        cuda_ok(b, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, b->stream));
}

// ---- graphs ----------------------------------------------------------------------------------

void cuda_capture_begin(struct cuda_backend *b) {
    if (!not_captured(b))
        return;
    // The captured step's tables are written during the capture, when no event may be waited for.
    cuda_ok(b, cudaEventSynchronize(b->tables_read));
    if (cuda_ok(b, cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal))) {
        b->capturing = true;
        b->captured_step = false;
    }
}

static cuda_graph *graph_make(cuda_backend *b, cudaGraph_t nodes) {
    cuda_graph *g = (cuda_graph *)mem_calloc(1, sizeof *g);
    if (!g)
        return nullptr;
    g->reserved = b->reserved_times;
    g->step = b->step;
    if (cuda_ok(b, cudaGraphInstantiate(&g->exec, nodes, 0)))
        cuda_ok(b, cudaGraphUpload(g->exec, b->stream)); // else the first launch would do it
    return g;
}

kvasir_status cuda_capture_end(struct cuda_backend *b, struct cuda_graph **out, kvasir_error *err) {
    *out = nullptr;
    cudaGraph_t nodes = nullptr;
    if (b->capturing) { // also after an error: the stream must leave the capture
        cudaError_t e = cudaStreamEndCapture(b->stream, &nodes);
        b->capturing = false;
        cuda_ok(b, e);
    } else if (b->error == cudaSuccess) {
        return fail(err, KVASIR_ERR_ARGUMENT, "CUDA: the end of a capture that did not begin");
    }
    kvasir_status status = cuda_fail(b, err);
    cuda_graph *g = nullptr;
    if (status == KVASIR_OK && !b->captured_step)
        status = fail(err, KVASIR_ERR_ARGUMENT, "CUDA: a graph without cuda_step_begin");
    if (status == KVASIR_OK && !(g = graph_make(b, nodes)))
        status = fail(err, KVASIR_ERR_MEMORY, "CUDA: a graph: out of memory");
    if (status == KVASIR_OK)
        status = cuda_fail(b, err);
    if (nodes)
        (void)cudaGraphDestroy(nodes);
    if (status != KVASIR_OK) {
        cuda_graph_destroy(g);
        return status;
    }
    b->written = g;
    *out = g;
    return KVASIR_OK;
}

void cuda_graph_launch(struct cuda_backend *b, struct cuda_graph *g) {
    // C5: the tables of another step would send its kernels through other arrays' bytes.
    bool own = b->written == g && g->reserved == b->reserved_times;
    if (!not_captured(b) || !cuda_ok(b, own ? cudaSuccess : cudaErrorInvalidValue))
        return;
    cuda_ok(b, cudaGraphLaunch(g->exec, b->stream));
    cuda_ok(b, cudaEventRecord(b->tables_read, b->stream));
}

void cuda_graph_destroy(struct cuda_graph *g) {
    if (!g)
        return;
    if (g->exec)
        (void)cudaGraphExecDestroy(g->exec);
    mem_free(g);
}

// ---- time ------------------------------------------------------------------------------------

// The stream's device time of what go() enqueues, in microseconds; 0 after an error.
template <class F> static double time_stream(cuda_backend *b, F go) {
    cudaEvent_t before = nullptr, after = nullptr;
    float ms = 0;
    if (not_captured(b) && cuda_ok(b, cudaEventCreate(&before)) &&
        cuda_ok(b, cudaEventCreate(&after)) && cuda_ok(b, cudaEventRecord(before, b->stream))) {
        go();
        cuda_ok(b, cudaEventRecord(after, b->stream));
        cuda_ok(b, cudaEventSynchronize(after));
        if (b->error == cudaSuccess)
            cuda_ok(b, cudaEventElapsedTime(&ms, before, after));
    }
    if (before)
        (void)cudaEventDestroy(before);
    if (after)
        (void)cudaEventDestroy(after);
    return b->error == cudaSuccess ? (double)ms * 1e3 : 0;
}

double cuda_time_us(struct cuda_backend *b, void (*enqueue)(void *ctx), void *ctx, int times) {
    return time_stream(b, [=] {
        for (int i = 0; i < times; i++)
            enqueue(ctx);
    });
}

// How many blocks reach the most differs between devices: several are tried, the best counts. Each
// time is the median of five, after one that warms up.
double cuda_read_ceiling(struct cuda_backend *b, size_t bytes) {
    enum { TIMES = 5, THREADS = 256 };
    const int blocks_per_sm[] = {4, 8, 16, 32};
    double best = 0;
    size_t n = bytes / sizeof(uint4);
    uint4 *data = (uint4 *)cuda_alloc(b, n * sizeof *data);
    uint32_t *sink = (uint32_t *)cuda_alloc(b, sizeof *sink);
    if (data && sink && n && cuda_ok(b, cudaMemsetAsync(data, 0, n * sizeof *data, b->stream)))
        for (int per_sm : blocks_per_sm) {
            double us[TIMES + 1];
            for (double &t : us)
                t = time_stream(b, [=] {
                    read_all<<<b->sm_count * per_sm, THREADS, 0, b->stream>>>(data, n, sink);
                    cuda_ok(b, cudaGetLastError());
                });
            std::sort(us + 1, us + 1 + TIMES);
            double median = us[1 + TIMES / 2];
            best = median > 0 ? std::max(best, (double)n * sizeof *data / median * 1e6) : best;
        }
    cuda_free(b, data);
    cuda_free(b, sink);
    return best;
}
