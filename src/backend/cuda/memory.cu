// SPDX-License-Identifier: Apache-2.0
// memory.cu: buffers, host arrays of operations, and arenas.
//
//     buffers    weights, activations    cudaMalloc
//     pieces     tokens, positions, ...  a ring of fixed slots, pinned and on the device
//     arenas     pages, states           address space, memory in units of 2 MiB
//
//     arena:  | unit | unit | ............ | unit |   reserved: addresses only
//                mapped[]: 1      1      0 ...        memory is mapped when arena_take or arena_map
//                                                     comes to a unit, and given back in units
//
// Invariants:
//   CUDA-3  A page's address stays the same for the arena's life: memory is mapped and unmapped
//           there.
//   CUDA-4  A unit is unmapped only when everything that was enqueued before has run.
//   CUDA-6  Only mapped units are read, copied or written: callers take a page before they use it.
//
// The driver's functions for virtual memory are looked up by name, so that the program needs no
// libcuda at link time and starts on machines without a driver.
#include <algorithm>
#include <cudaTypedefs.h>
#include <string.h>

#include "backend/cuda/internal.cuh"

enum {
    ARENA_UNIT = 2 << 20,
};
static_assert(ARENA_UNIT % PAGE_ADDR_UNIT == 0, "units begin at addresses of pages");

struct backend_arena {
    uint8_t *base;
    size_t units;
    bool *mapped; // [units]
    backend_arena *next;
};

struct cuda_arenas {
    int device;
    backend_arena *first; // those that arena_destroy has not seen
    PFN_cuMemAddressReserve_v10020 address_reserve;
    PFN_cuMemAddressFree_v10020 address_free;
    PFN_cuMemCreate_v10020 create;
    PFN_cuMemRelease_v10020 release;
    PFN_cuMemMap_v10020 map;
    PFN_cuMemUnmap_v10020 unmap;
    PFN_cuMemSetAccess_v10020 set_access;
    PFN_cuMemGetAllocationGranularity_v10020 granularity;
};

// The driver's numbers are the runtime's, for all errors that both have.
static bool driver_ok(cuda_backend *b, CUresult r) {
    return cuda_ok(b, (cudaError_t)r);
}

// What is to come is enqueued after a step whose operations still wait (record.cu). False after an
// error. A capture records launches: it must not meet an allocation or a wait.
static bool can_work(cuda_backend *b) {
    ASSERT(!b->capturing || !cuda_works(b));
    device_current(b);
    step_submit(b);
    return cuda_works(b);
}

static bool wait(cuda_backend *b) {
    return can_work(b) && cuda_ok(b, cudaStreamSynchronize(b->stream));
}

// ---- buffers ---------------------------------------------------------------------------------

kvasir_status cuda_flush(struct backend *base, kvasir_error *err) {
    cuda_backend *b = cuda_of(base);
    ASSERT(!b->capturing);
    (void)wait(b);
    return cuda_status(b, err);
}

void *cuda_alloc(struct backend *base, size_t bytes) {
    cuda_backend *b = cuda_of(base);
    void *p = nullptr;
    if (!can_work(b))
        return nullptr;
    cudaError_t e = cudaMalloc(&p, std::max<size_t>(bytes, 1));
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); // the caller deals with it: it does not stick
        return nullptr;
    }
    return cuda_ok(b, e) ? p : nullptr;
}

void cuda_free(struct backend *base, void *p) {
    cuda_backend *b = cuda_of(base);
    if (!p)
        return;
    ASSERT(!b->capturing);
    (void)wait(b);
    (void)cudaFree(p); // also after an error: it gives the memory back if anything can
}

// A copy from pageable memory goes through the driver's own pinned buffers, and the call returns
// when the last byte is there: so the caller's memory is free again, though the device may not have
// the data yet. Pinned memory would be read later, by the device: nothing in Kvasir that is written
// this way is pinned.
void cuda_write(struct backend *base, void *device, const void *host, size_t bytes) {
    cuda_backend *b = cuda_of(base);
    if (bytes && can_work(b))
        cuda_ok(b, cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, b->stream));
}

kvasir_status cuda_read(struct backend *base, void *host, const void *device, size_t bytes,
                        kvasir_error *err) {
    cuda_backend *b = cuda_of(base);
    if (bytes && can_work(b))
        cuda_ok(b, cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, b->stream));
    if (!wait(b))
        memset(host, 0, bytes);
    return cuda_status(b, err);
}

// Into pinned memory, which the device writes itself; kept for the next time, as large as it was
// needed so far.
kvasir_status cuda_fetch(struct backend *base, const void *device, size_t bytes, const void **out,
                         kvasir_error *err) {
    cuda_backend *b = cuda_of(base);
    *out = nullptr;
    if (can_work(b) && b->fetched_bytes < bytes) {
        (void)cudaFreeHost(b->fetched);
        b->fetched = nullptr;
        b->fetched_bytes = 0;
        if (cuda_ok(b, cudaMallocHost(&b->fetched, bytes)))
            b->fetched_bytes = bytes;
    }
    TRY(cuda_read(base, b->fetched, device, cuda_works(b) ? bytes : 0, err));
    *out = b->fetched;
    return KVASIR_OK;
}

const void *cuda_upload(struct backend *base, const void *host, size_t bytes) {
    void *p = cuda_alloc(base, bytes);
    if (p)
        cuda_write(base, p, host, bytes);
    return p;
}

void cuda_upload_free(struct backend *base, const void *device) {
    cuda_free(base, const_cast<void *>(device));
}

// ---- host arrays of operations ---------------------------------------------------------------

bool bring_open(cuda_backend *b, size_t piece_bytes) {
    bring_ring *r = &b->bring;
    bring_close(b);
    r->slot_bytes = round_up(piece_bytes, 256);
    if (cudaMallocHost((void **)&r->host, BRING_SLOTS * r->slot_bytes) != cudaSuccess ||
        cudaMalloc((void **)&r->device, BRING_SLOTS * r->slot_bytes) != cudaSuccess)
        return false;
    for (cudaEvent_t &read : r->read)
        if (cudaEventCreateWithFlags(&read, cudaEventDisableTiming) != cudaSuccess)
            return false;
    return true;
}

void bring_close(cuda_backend *b) {
    bring_ring *r = &b->bring;
    (void)cudaFreeHost(r->host);
    (void)cudaFree(r->device);
    for (cudaEvent_t read : r->read)
        if (read)
            (void)cudaEventDestroy(read);
    *r = bring_ring{};
}

// Slots are used in turn. A copy runs after the kernels that were launched before it, so those that
// read the slot's last piece are done with it; the event says the same of the last copy.
const void *cuda_bring(cuda_backend *b, const void *host, size_t bytes) {
    bring_ring *r = &b->bring;
    if (!cuda_works(b))
        return nullptr;
    ASSERT(!b->capturing && b->reserved && bytes <= r->slot_bytes);
    const uint32_t slot = r->next;
    uint8_t *pinned = r->host + slot * r->slot_bytes, *out = r->device + slot * r->slot_bytes;
    if (!cuda_ok(b, cudaEventSynchronize(r->read[slot])))
        return nullptr;
    memcpy(pinned, host, bytes);
    r->next = (slot + 1) % BRING_SLOTS;
    if (!cuda_ok(b, cudaMemcpyAsync(out, pinned, bytes, cudaMemcpyHostToDevice, b->stream)) ||
        !cuda_ok(b, cudaEventRecord(r->read[slot], b->stream)))
        return nullptr;
    return out;
}

// ---- the driver ------------------------------------------------------------------------------

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

kvasir_status arenas_open(cuda_backend *b, int device, kvasir_error *err) {
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

void arenas_close(cuda_backend *b) {
    while (b->arenas && b->arenas->first)
        cuda_arena_destroy(&b->base, b->arenas->first);
    mem_free(b->arenas);
    b->arenas = nullptr;
}

// ---- units of an arena -----------------------------------------------------------------------

static size_t bytes_of(const backend_arena *a) {
    return a->units * ARENA_UNIT;
}

// Where the bytes [at, at + bytes) are.
static uint8_t *arena_at(const backend_arena *a, size_t at, size_t bytes) {
    ASSERT(at <= bytes_of(a) && bytes <= bytes_of(a) - at);
    return a->base + at;
}

bool arena_has(const struct backend_arena *a, size_t at, size_t bytes) {
    (void)arena_at(a, at, bytes);
    for (size_t unit = at / ARENA_UNIT; unit * ARENA_UNIT < at + bytes; unit++)
        if (!a->mapped[unit])
            return false;
    return true;
}

// The same as arena_at, of mapped units (CUDA-6).
static uint8_t *mapped_at(const backend_arena *a, size_t at, size_t bytes) {
    ASSERT(arena_has(a, at, bytes));
    return arena_at(a, at, bytes);
}

// The handle is given up at once: the mapping keeps the memory, and unmapping frees it.
static bool unit_map(cuda_backend *b, backend_arena *a, size_t unit) {
    const cuda_arenas *d = b->arenas;
    ASSERT(unit < a->units && !a->mapped[unit]);
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

static void unit_unmap(cuda_backend *b, backend_arena *a, size_t unit) {
    if (!a->mapped[unit])
        return;
    driver_ok(b, b->arenas->unmap((CUdeviceptr)(a->base + unit * ARENA_UNIT), ARENA_UNIT));
    a->mapped[unit] = false;
}

uint8_t *arena_base(const struct backend_arena *a) {
    return a->base;
}

// ---- arenas ----------------------------------------------------------------------------------

struct backend_arena *cuda_arena_create(struct backend *base, size_t bytes) {
    cuda_backend *b = cuda_of(base);
    if (!bytes || !can_work(b))
        return nullptr;
    backend_arena *a = (backend_arena *)mem_calloc(1, sizeof *a);
    if (!a)
        return nullptr;
    a->units = round_up(bytes, ARENA_UNIT) / ARENA_UNIT;
    a->mapped = (bool *)mem_calloc(a->units, sizeof *a->mapped);
    CUdeviceptr at = 0;
    if (!a->mapped ||
        b->arenas->address_reserve(&at, bytes_of(a), ARENA_UNIT, 0, 0) != CUDA_SUCCESS) {
        mem_free(a->mapped);
        mem_free(a);
        return nullptr;
    }
    a->base = (uint8_t *)at;
    a->next = b->arenas->first;
    b->arenas->first = a;
    return a;
}

void cuda_arena_destroy(struct backend *base, struct backend_arena *a) {
    cuda_backend *b = cuda_of(base);
    ASSERT(!b->capturing);
    backend_arena **link = &b->arenas->first;
    while (*link != a) {
        ASSERT(*link); // it is one of this backend's
        link = &(*link)->next;
    }
    (void)wait(b);
    for (size_t unit = 0; unit < a->units; unit++)
        unit_unmap(b, a, unit);
    driver_ok(b, b->arenas->address_free((CUdeviceptr)a->base, bytes_of(a)));
    *link = a->next;
    mem_free(a->mapped);
    mem_free(a);
}

// False after an error.
static bool map_units(cuda_backend *b, backend_arena *a, size_t from, size_t bytes) {
    (void)arena_at(a, from, bytes);
    if (!can_work(b))
        return false;
    for (size_t unit = from / ARENA_UNIT; unit * ARENA_UNIT < from + bytes; unit++)
        if (!a->mapped[unit] && !unit_map(b, a, unit))
            return false;
    return true;
}

// fresh or not: memory that was just mapped holds whatever it held before.
void cuda_arena_take(struct backend *base, struct backend_arena *a, uint32_t addr, size_t bytes,
                     bool fresh) {
    cuda_backend *b = cuda_of(base);
    const size_t from = page_offset(addr);
    (void)fresh;
    if (map_units(b, a, from, bytes))
        cuda_ok(b, cudaMemsetAsync(arena_at(a, from, bytes), 0, bytes, b->stream));
}

void cuda_arena_map(struct backend *base, struct backend_arena *a, uint32_t addr, size_t bytes) {
    (void)map_units(cuda_of(base), a, page_offset(addr), bytes);
}

// Zeros what is mapped of [from, end).
static void zero_mapped(cuda_backend *b, const backend_arena *a, size_t from, size_t end) {
    while (from < end) {
        size_t unit = from / ARENA_UNIT, stop = std::min(end, (unit + 1) * ARENA_UNIT);
        ASSERT(unit < a->units);
        if (a->mapped[unit])
            cuda_ok(b, cudaMemsetAsync(a->base + from, 0, stop - from, b->stream));
        from = stop;
    }
}

// Units that the range covers are given back. Of those that it shares with others its part is
// zeroed.
void cuda_arena_release(struct backend *base, struct backend_arena *a, uint32_t addr,
                        size_t bytes) {
    cuda_backend *b = cuda_of(base);
    const size_t from = page_offset(addr), end = from + bytes;
    (void)arena_at(a, from, bytes);
    if (!bytes || !can_work(b))
        return;
    const size_t first = round_up(from, ARENA_UNIT), last = end / ARENA_UNIT * ARENA_UNIT;
    if (first >= last) {
        zero_mapped(b, a, from, end);
        return;
    }
    zero_mapped(b, a, from, first);
    zero_mapped(b, a, last, end);
    if (!wait(b))
        return;
    for (size_t unit = first / ARENA_UNIT; unit < last / ARENA_UNIT; unit++)
        unit_unmap(b, a, unit);
}

void cuda_arena_copy(struct backend *base, struct backend_arena *a, uint32_t to, uint32_t from,
                     size_t bytes) {
    cuda_backend *b = cuda_of(base);
    if (!bytes || !can_work(b))
        return;
    uint8_t *out = mapped_at(a, page_offset(to), bytes);
    const uint8_t *in = mapped_at(a, page_offset(from), bytes);
    ASSERT(out + bytes <= in || in + bytes <= out);
    cuda_ok(b, cudaMemcpyAsync(out, in, bytes, cudaMemcpyDeviceToDevice, b->stream));
}

kvasir_status cuda_arena_read(struct backend *base, const struct backend_arena *a, size_t at,
                              void *host, size_t bytes, kvasir_error *err) {
    const void *from = cuda_works(cuda_of(base)) ? mapped_at(a, at, bytes) : nullptr;
    return cuda_read(base, host, from, bytes, err);
}

void cuda_arena_write(struct backend *base, struct backend_arena *a, size_t at, const void *host,
                      size_t bytes) {
    if (cuda_works(cuda_of(base)))
        cuda_write(base, mapped_at(a, at, bytes), host, bytes);
}

void cuda_arena_zero(struct backend *base, struct backend_arena *a, size_t at, size_t width,
                     size_t pitch, size_t count) {
    cuda_backend *b = cuda_of(base);
    if (!count || !can_work(b))
        return;
    uint8_t *from = mapped_at(a, at, (count - 1) * pitch + width);
    cuda_ok(b, cudaMemset2DAsync(from, pitch, 0, width, count, b->stream));
}

// ---- pages in another layout -----------------------------------------------------------------

// Room for the two pages in host memory, kept for the next one: the only allocation on the host
// after reserve. NULL after an error.
static uint8_t *staging(cuda_backend *b, size_t bytes) {
    if (b->staging_bytes < bytes) {
        mem_free(b->staging);
        b->staging = (uint8_t *)mem_alloc(bytes);
        b->staging_bytes = b->staging ? bytes : 0;
        if (!b->staging) {
            kvasir_error err;
            fail(&err, KVASIR_ERR_MEMORY, "CUDA: no host memory for a page of %zu bytes", bytes);
            cuda_stick(b, &err);
        }
    }
    return cuda_works(b) ? b->staging : nullptr;
}

// By way of the host, with its definition: bytes are the same on every backend. It waits.
void cuda_page_convert(struct backend *base, struct backend_arena *a,
                       const struct page_conversion *c) {
    const size_t from_bytes = c->from->page_bytes, to_bytes = c->to->page_bytes;
    uint8_t *from = staging(cuda_of(base), from_bytes + to_bytes);
    if (!from ||
        cuda_arena_read(base, a, page_offset(c->from_addr), from, from_bytes, nullptr) != KVASIR_OK)
        return;
    memset(from + from_bytes, 0, to_bytes);
    page_convert(c, from, from + from_bytes);
    cuda_arena_write(base, a, page_offset(c->to_addr), from + from_bytes, to_bytes);
}
