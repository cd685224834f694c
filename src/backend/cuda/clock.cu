// SPDX-License-Identifier: Apache-2.0
// clock.cu: how long the device takes, and how fast it reads (graph.h).
#include <algorithm>

#include "backend/cuda/internal.cuh"

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

bool device_image(cudaFuncAttributes *out) {
    if (cudaFuncGetAttributes(out, read_all) == cudaSuccess)
        return true;
    (void)cudaGetLastError();
    return false;
}

// The stream's device time of what go() enqueues, in microseconds; 0 after an error.
template <class F> static double time_stream(cuda_backend *b, F go) {
    cudaEvent_t before = nullptr, after = nullptr;
    float ms = 0;
    if (cuda_works(b) && cuda_ok(b, cudaEventCreate(&before)) &&
        cuda_ok(b, cudaEventCreate(&after)) && cuda_ok(b, cudaEventRecord(before, b->stream))) {
        go();
        cuda_ok(b, cudaEventRecord(after, b->stream));
        cuda_ok(b, cudaEventSynchronize(after));
        if (cuda_works(b))
            cuda_ok(b, cudaEventElapsedTime(&ms, before, after));
    }
    if (before)
        (void)cudaEventDestroy(before);
    if (after)
        (void)cudaEventDestroy(after);
    return cuda_works(b) ? (double)ms * 1e3 : 0;
}

double cuda_time_us(struct backend *base, void (*enqueue)(void *ctx), void *ctx, int times) {
    return time_stream(cuda_of(base), [=] {
        for (int i = 0; i < times; i++)
            enqueue(ctx);
    });
}

// How many blocks reach the most differs between devices: several are tried, the best counts. Each
// time is the median of five, after one that warms up.
double cuda_read_ceiling(struct backend *base, size_t bytes) {
    cuda_backend *b = cuda_of(base);
    enum { TIMES = 5, THREADS = 256 };
    const int blocks_per_sm[] = {4, 8, 16, 32};
    double best = 0;
    size_t n = bytes / sizeof(uint4);
    uint4 *data = (uint4 *)cuda_alloc(base, n * sizeof *data);
    uint32_t *sink = (uint32_t *)cuda_alloc(base, sizeof *sink);
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
    cuda_free(base, data);
    cuda_free(base, sink);
    return best;
}
