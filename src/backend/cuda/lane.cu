// SPDX-License-Identifier: Apache-2.0
// lane.cu: copies of pages to and from pinned memory by other threads than that of the operations.
//
//     operations' thread    stream    step | followed | step | step | ...
//                                              |
//     another thread        its lane           `-> copy | copy | (lane_wait)
//
// A lane is a stream of its own: a device has engines for copies, which work beside the kernels.
// Invariant:
//   CUDA-9  A copy begins after all that was enqueued when lanes_follow was called last. So the
//           page that it reads has been computed, and nobody uses the one that it writes. That page
//           is given to operations only after lane_wait, so no operation waits for a lane.
//
// An error stays in its lane: the stream of the operations has its own (error.cu), and a device
// that is lost fails in both.
#include "backend/cuda/internal.cuh"

struct backend_lane {
    cuda_backend *backend;
    cudaStream_t stream;
    cudaEvent_t done; // a thread that waits for it sleeps
    bool failed;
};

static bool lane_ok(backend_lane *l, cudaError_t e) {
    if (e != cudaSuccess) {
        (void)cudaGetLastError(); // the runtime would give it to this thread's next call, too
        l->failed = true;
    }
    return !l->failed;
}

void *cuda_pinned_alloc(struct backend *base, size_t bytes) {
    void *p = nullptr;
    device_current(cuda_of(base));
    if (cudaHostAlloc(&p, bytes, cudaHostAllocDefault) == cudaSuccess)
        return p;
    (void)cudaGetLastError(); // the caller deals with it
    return nullptr;
}

void cuda_pinned_free(struct backend *base, void *p) {
    device_current(cuda_of(base));
    (void)cudaFreeHost(p);
}

struct backend_lane *cuda_lane_create(struct backend *base) {
    backend_lane *l = (backend_lane *)mem_calloc(1, sizeof *l);
    if (!l)
        return nullptr;
    l->backend = cuda_of(base);
    device_current(l->backend);
    const bool good = lane_ok(l, cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking)) &&
                      lane_ok(l, cudaEventCreateWithFlags(&l->done, cudaEventDisableTiming |
                                                                        cudaEventBlockingSync));
    if (good)
        return l;
    cuda_lane_destroy(base, l);
    return nullptr;
}

void cuda_lane_destroy(struct backend *base, struct backend_lane *l) {
    if (!l)
        return;
    device_current(cuda_of(base));
    if (l->done)
        (void)cudaEventDestroy(l->done);
    if (l->stream)
        (void)cudaStreamDestroy(l->stream);
    mem_free(l);
}

void cuda_lanes_follow(struct backend *base) {
    cuda_backend *b = cuda_of(base);
    ASSERT(!b->capturing);
    device_current(b);
    step_submit(b);
    if (cuda_works(b))
        cuda_ok(b, cudaEventRecord(b->followed, b->stream));
}

// Where a page is. NULL: it got no memory, after an error of the operations.
static uint8_t *page_on_device(backend_lane *l, const backend_arena *a, size_t at, size_t bytes) {
    if (!arena_has(a, at, bytes))
        l->failed = true;
    return l->failed ? nullptr : arena_base(a) + at;
}

static void copy(backend_lane *l, void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    if (l->failed)
        return;
    device_current(l->backend);
    if (lane_ok(l, cudaStreamWaitEvent(l->stream, l->backend->followed, 0)))
        lane_ok(l, cudaMemcpyAsync(to, from, bytes, kind, l->stream));
}

void cuda_lane_put(struct backend_lane *l, struct backend_arena *a, size_t at, const void *host,
                   size_t bytes) {
    copy(l, page_on_device(l, a, at, bytes), host, bytes, cudaMemcpyHostToDevice);
}

void cuda_lane_get(struct backend_lane *l, const struct backend_arena *a, size_t at, void *host,
                   size_t bytes) {
    copy(l, host, page_on_device(l, a, at, bytes), bytes, cudaMemcpyDeviceToHost);
}

// Copies that began are waited for also after an error: the page may be given to another.
bool cuda_lane_wait(struct backend_lane *l) {
    device_current(l->backend);
    if (lane_ok(l, cudaEventRecord(l->done, l->stream)))
        return lane_ok(l, cudaEventSynchronize(l->done));
    (void)cudaStreamSynchronize(l->stream);
    return false;
}
