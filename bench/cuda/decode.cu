// SPDX-License-Identifier: Apache-2.0
//
// How fast decode attention can read pages on an NVIDIA GPU, in the storage order of quant.h as it
// is: a first measurement for src/backend/cuda, with data of its own and a naive reference in
// double. 32 query heads, 8 KV heads of 128 dims, pages in random order.
//
//     nvcc -O3 -std=c++17 -arch=sm_90 bench/cuda/decode.cu -o decode && ./decode
//
// A warp works on (sequence, KV head, run of 256 tokens at an absolute position). It has a ring of
// slots in shared memory, which bulk copies fill with whole tiles:
//
//     K0 K1 K2 K3 -> scores of the run in registers -> maximum, weights, sum -> V0 V1 V2 V3
//
// Codes are the A side of mma.m16n8k32 (tokens for K, dims for V), 4 heads x 2 s8 planes of the
// query (of the weights) are its 8 columns; a word of 4 dims (4 tokens) is one of its registers.
// The 8 warps of a block merge their runs in order, the last block of a head merges the blocks.
// Results: bench/results/cuda-decode-*.txt.
#include "attention.cuh"

// ---- data, naive reference ------------------------------------------------------------------
__device__ uint32_t hash(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    x ^= x >> 33;
    return (uint32_t)x;
}
struct Shape {
    int kb, vb, D, G;
    size_t kbytes, vbytes;
};
__device__ float value(const uint8_t *tile, bool isK, int bits, int D, int G, int tok, int dim) {
    int rr = isK ? dim : tok, lane = isK ? tok : dim, lanes = isK ? 64 : D;
    if (bits == 16)
        return __half2float(((const __half *)tile)[(rr / 4) * 4 * lanes + lane * 4 + rr % 4]);
    int R = rr / 4, P = 8 / bits;
    uint8_t b = tile[(R / P) * 4 * lanes + lane * 4 + rr % 4];
    int code = (b >> (bits * (R % P))) & ((1 << bits) - 1);
    const __half *s = (const __half *)(tile + 64 * D * bits / 8), *z = s + D / G * 64;
    return __half2float(s[dim / G * 64 + tok]) * code + __half2float(z[dim / G * 64 + tok]);
}
__global__ void fill(uint8_t *arena, size_t pages, size_t page_bytes, uint32_t kv,
                     size_t head_bytes, Shape sh) {
    size_t n = pages * page_bytes / 4;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        size_t byte = i * 4 % page_bytes % head_bytes;
        if (i * 4 % page_bytes >= head_bytes * kv)
            continue;
        bool k = byte < sh.kbytes;
        size_t in = k ? byte : byte - sh.kbytes;
        int bits = k ? sh.kb : sh.vb;
        uint32_t h = hash(i);
        uint32_t w = h;
        if (bits == 16) {
            __half2 v = __floats2half2_rn(((h & 0xffff) / 65536.f - .5f) * 2,
                                          ((h >> 16) / 65536.f - .5f) * 2);
            w = *(uint32_t *)&v;
        } else if (in >= (size_t)64 * sh.D * bits / 8) {
            size_t o = in - 64 * sh.D * bits / 8;
            bool bias = o >= (size_t)sh.D / sh.G * 128;
            float range = bias ? -1.f : 2.f / ((1 << bits) - 1);
            __half2 v = __floats2half2_rn(range * (.75f + (h & 0xffff) / 131072.f),
                                          range * (.75f + (h >> 16) / 131072.f));
            w = *(uint32_t *)&v;
        }
        ((uint32_t *)arena)[i] = w;
    }
}
__global__ void naive(Params P, Shape sh, const float *q, int seq, float scale, double *out) {
    int head = blockIdx.x, kv = head / 4;
    extern __shared__ double sc[];
    uint32_t n = P.lengths[seq];
    for (uint32_t t = threadIdx.x; t < n; t += blockDim.x) {
        const uint8_t *tile = P.arena + (size_t)P.pages[(size_t)seq * P.max_pages + t / 64] * 4096 +
                              kv * (size_t)P.head_bytes;
        double s = 0;
        for (int d = 0; d < sh.D; d++)
            s += (double)q[((size_t)seq * P.kv_heads * 4 + head) * sh.D + d] *
                 value(tile, true, sh.kb, sh.D, sh.G, t % 64, d);
        sc[t] = s * scale;
    }
    __syncthreads();
    __shared__ double M, S;
    if (threadIdx.x == 0) {
        M = -1e300;
        for (uint32_t t = 0; t < n; t++)
            M = max(M, sc[t]);
        S = 0;
        for (uint32_t t = 0; t < n; t++) {
            sc[t] = exp(sc[t] - M);
            S += sc[t];
        }
    }
    __syncthreads();
    for (int d = threadIdx.x; d < sh.D; d += blockDim.x) {
        double o = 0;
        for (uint32_t t = 0; t < n; t++) {
            const uint8_t *tile = P.arena +
                                  (size_t)P.pages[(size_t)seq * P.max_pages + t / 64] * 4096 +
                                  kv * (size_t)P.head_bytes + P.k_bytes;
            o += sc[t] * value(tile, false, sh.vb, sh.D, sh.G, t % 64, d);
        }
        out[(size_t)head * sh.D + d] = o / S;
    }
}
__global__ void readall(const uint4 *p, size_t n, uint32_t *out) {
    uint32_t x = 0;
    size_t i = (blockIdx.x * (size_t)blockDim.x + threadIdx.x),
           step = (size_t)gridDim.x * blockDim.x;
    for (; i + 7 * step < n; i += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = ldg(p + i + j * step);
#pragma unroll
        for (int j = 0; j < 8; j++)
            x ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    if (x == 12345)
        *out = x;
}

template <class F> static float time_us(F f, int reps) {
    cudaEvent_t a, b;
    CK(cudaEventCreate(&a));
    CK(cudaEventCreate(&b));
    f();
    f();
    std::vector<float> t;
    for (int k = 0; k < 5; k++) {
        CK(cudaEventRecord(a));
        for (int i = 0; i < reps; i++)
            f();
        CK(cudaEventRecord(b));
        CK(cudaEventSynchronize(b));
        float ms;
        CK(cudaEventElapsedTime(&ms, a, b));
        t.push_back(ms * 1e3f / reps);
    }
    std::sort(t.begin(), t.end());
    return t[2];
}

static double ceiling;

static void run(int kb, int vb, int G, int B, uint32_t ctx, bool check) {
    const int D = 128, KV = 8, H = 32;
    auto tile = [&](int bits) {
        return bits == 16 ? (size_t)64 * D * 2 : (size_t)64 * D * bits / 8 + (size_t)D / G * 256;
    };
    Shape sh{kb, vb, D, G, tile(kb), tile(vb)};
    size_t head = sh.kbytes + sh.vbytes, page = (head * KV + 4095) / 4096 * 4096;
    uint32_t max_pages = (ctx + 63) / 64;
    size_t pages = (size_t)max_pages * B;
    Params P{};
    uint8_t *arena;
    CK(cudaMalloc(&arena, pages * page));
    fill<<<2048, 256>>>(arena, pages, page, KV, head, sh);
    std::vector<uint32_t> table(pages), len(B, ctx), first(B);
    for (size_t i = 0; i < pages; i++)
        table[i] = (uint32_t)(i * (page / 4096));
    uint64_t st = 88172645463325252ull;
    for (size_t i = pages - 1; i > 0; i--) {
        st ^= st << 13;
        st ^= st >> 7;
        st ^= st << 17;
        std::swap(table[i], table[st % (i + 1)]);
    }
    std::vector<int2> items;
    for (int b = 0; b < B; b++) {
        first[b] = (uint32_t)items.size();
        for (uint32_t s = 0; s * SUPER < ctx; s++)
            items.push_back(make_int2(b, s));
    }
    std::vector<float> q((size_t)B * H * D);
    for (auto &x : q) {
        st ^= st << 13;
        st ^= st >> 7;
        st ^= st << 17;
        x = (float)((st >> 40) / 16777216.0 - .5) * 3;
    }
    float scale = 1 / sqrtf(D);
    int groups = D / G;
    std::vector<int8_t> planes((size_t)B * KV * 8 * D);
    std::vector<__half> qh((size_t)B * KV * 8 * D);
    std::vector<float> qs((size_t)B * KV * 4), qsum((size_t)B * KV * 4 * groups);
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            int kv = h / 4, i = h % 4;
            const float *x = &q[((size_t)b * H + h) * D];
            float m = 0;
            for (int d = 0; d < D; d++)
                m = fmaxf(m, fabsf(x[d] * scale));
            float s = m / QMAX;
            qs[((size_t)b * KV + kv) * 4 + i] = s;
            for (int g = 0; g < groups; g++) {
                int sum = 0;
                for (int d = g * G; d < (g + 1) * G; d++) {
                    int c = (int)rintf(x[d] * scale * (QMAX / m)), hi = (c + 64) >> 7,
                        lo = c - 128 * hi;
                    planes[(((size_t)b * KV + kv) * 8 + 2 * i) * D + d] = (int8_t)hi;
                    planes[(((size_t)b * KV + kv) * 8 + 2 * i + 1) * D + d] = (int8_t)lo;
                    sum += c;
                }
                qsum[(((size_t)b * KV + kv) * 4 + i) * groups + g] = s * (float)sum;
            }
            for (int d = 0; d < D; d++) {
                __half hh = __float2half(x[d] * scale);
                qh[(((size_t)b * KV + kv) * 8 + 2 * i) * D + d] = hh;
                qh[(((size_t)b * KV + kv) * 8 + 2 * i + 1) * D + d] =
                    __float2half(x[d] * scale - __half2float(hh));
            }
        }
    auto up = [&](const void *p, size_t n) {
        void *d;
        CK(cudaMalloc(&d, n));
        CK(cudaMemcpy(d, p, n, cudaMemcpyHostToDevice));
        return d;
    };
    std::vector<void *> all;
    auto U = [&](const void *p, size_t n) {
        void *d = up(p, n);
        all.push_back(d);
        return d;
    };
    P.arena = arena;
    P.pages = (uint32_t *)U(table.data(), pages * 4);
    P.lengths = (uint32_t *)U(len.data(), B * 4);
    P.items = (int2 *)U(items.data(), items.size() * 8);
    P.q_planes = (int8_t *)U(planes.data(), planes.size());
    P.q_half = (__half *)U(qh.data(), qh.size() * 2);
    P.q_scale = (float *)U(qs.data(), qs.size() * 4);
    P.q_sum = (float *)U(qsum.data(), qsum.size() * 4);
    P.first_item = (uint32_t *)U(first.data(), B * 4);
    float *dq = (float *)U(q.data(), q.size() * 4);
    CK(cudaMalloc(&P.part_out, items.size() * KV * 4 * D * 4));
    CK(cudaMalloc(&P.part_ms, items.size() * KV * 4 * 8));
    CK(cudaMalloc(&P.out, (size_t)B * H * D * 4));
    CK(cudaMalloc(&P.arrived, (size_t)B * KV * 4));
    CK(cudaMemset(P.arrived, 0, (size_t)B * KV * 4));
    P.max_pages = max_pages;
    P.kv_heads = KV;
    P.head_bytes = (uint32_t)head;
    P.k_bytes = (uint32_t)sh.kbytes;
    dim3 grid((unsigned)items.size(), KV);
    auto go = [&] {
#define LAUNCH(a, b, g)                                                                            \
    do {                                                                                           \
        using C = Cfg<a, b, 128, g>;                                                               \
        static bool once =                                                                         \
            (cudaFuncSetAttribute(decode<a, b, 128, g>,                                            \
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, (int)C::SMEM),      \
             true);                                                                                \
        (void)once;                                                                                \
        decode<a, b, 128, g><<<grid, WARPS * 32, C::SMEM>>>(P);                                    \
    } while (0)
        if (kb == 16)
            LAUNCH(16, 16, 64);
        else if (kb == 8 && vb == 8 && G == 64)
            LAUNCH(8, 8, 64);
        else if (kb == 8 && vb == 4 && G == 64)
            LAUNCH(8, 4, 64);
        else if (kb == 4 && vb == 4 && G == 64)
            LAUNCH(4, 4, 64);
        else if (kb == 4 && vb == 4 && G == 32)
            LAUNCH(4, 4, 32);
        else {
            printf("no kernel\n");
            exit(1);
        }
    };
    go();
    CK(cudaDeviceSynchronize());
    double worst = 0;
    if (check) {
        double *ref;
        CK(cudaMalloc(&ref, (size_t)H * D * 8));
        std::vector<double> hr((size_t)H * D);
        std::vector<float> ho((size_t)B * H * D);
        CK(cudaMemcpy(ho.data(), P.out, ho.size() * 4, cudaMemcpyDeviceToHost));
        int seq = B - 1;
        naive<<<H, 128, ctx * 8>>>(P, sh, dq, seq, scale, ref);
        CK(cudaDeviceSynchronize());
        CK(cudaMemcpy(hr.data(), ref, hr.size() * 8, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < hr.size(); i++)
            worst = std::max(worst, fabs(hr[i] - ho[(size_t)seq * H * D + i]));
        CK(cudaFree(ref));
    }
    float us = time_us(go, B * (size_t)ctx > 500000 ? 5 : 20);
    double bytes = (double)B * ctx / 64 * KV * head;
    printf("%2d/%-2d g%d  %3d x %6u  %8.1f us  %5.2f TB/s  %5.1f %% of ceiling", kb, vb, G, B, ctx,
           us, bytes / us * 1e-6, 100 * bytes / us * 1e-6 / ceiling);
    if (check)
        printf("   worst %.2e", worst);
    printf("\n");
    for (void *p : all)
        CK(cudaFree(p));
    CK(cudaFree(arena));
    CK(cudaFree(P.part_out));
    CK(cudaFree(P.part_ms));
    CK(cudaFree(P.out));
    CK(cudaFree(P.arrived));
}

int main() {
    cudaDeviceProp p;
    CK(cudaGetDeviceProperties(&p, 0));
    printf("%s, %d SMs\n", p.name, p.multiProcessorCount);
    uint8_t *big;
    size_t n = (size_t)8 << 30;
    CK(cudaMalloc(&big, n));
    CK(cudaMemset(big, 1, n));
    uint32_t *o;
    CK(cudaMalloc(&o, 4));
    for (int g : {4, 8, 16, 32}) {
        float us = time_us(
            [&] { readall<<<p.multiProcessorCount * g, 256>>>((uint4 *)big, n / 16, o); }, 3);
        double r = n / us * 1e-6;
        printf("read x%d: %.2f TB/s\n", g, r);
        ceiling = std::max(ceiling, r);
    }
    CK(cudaFree(big));
    struct {
        int k, v, g;
    } f[] = {{16, 16, 64}, {8, 8, 64}, {8, 4, 64}, {4, 4, 64}, {4, 4, 32}};
    for (auto &x : f) {
        run(x.k, x.v, x.g, 3, 1000, true);
        run(x.k, x.v, x.g, 1, 1024, false);
        run(x.k, x.v, x.g, 1, 8192, false);
        run(x.k, x.v, x.g, 1, 131072, false);
        run(x.k, x.v, x.g, 8, 32768, false);
        run(x.k, x.v, x.g, 32, 8192, false);
        run(x.k, x.v, x.g, 64, 32768, false);
    }
}
