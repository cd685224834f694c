// SPDX-License-Identifier: Apache-2.0
// attention.cuh: the kernel that decode.cu measures; the drawing is there.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <vector>

#define CK(x)                                                                                      \
    do {                                                                                           \
        cudaError_t e_ = (x);                                                                      \
        if (e_) {                                                                                  \
            fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_));             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { TILE = 64, RUN = 256, TILES = RUN / TILE, WARPS = 8, SUPER = RUN * WARPS, QMAX = 16256 };

// ---- layout ----------------------------------------------------------------------------------
struct Params {
    const uint8_t *arena;
    const uint32_t *pages;      // [seq][max_pages] page address in 4 KiB units
    const uint32_t *lengths;    // [seq]
    const int2 *items;          // {seq, super run}
    const int8_t *q_planes;     // [seq][kv][8 cols][D] s8, col = 2*head + plane
    const __half *q_half;       // [seq][kv][8 cols][D] f16
    const float *q_scale;       // [seq][kv][4] scale per head
    const float *q_sum;         // [seq][kv][4][groups] sums of codes, times scale
    float *part_out;            // [item][kv][4][D]
    float2 *part_ms;            // [item][kv][4] max, sum
    float *out;                 // [seq][heads][D]
    uint32_t *arrived;          // [seq][kv]
    const uint32_t *first_item; // [seq]
    uint32_t max_pages, kv_heads, head_bytes, k_bytes;
};

__device__ __forceinline__ uint4 ldg(const void *p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
// Over the 8 lanes of a head.
__device__ __forceinline__ float max_of_head(float x) {
    for (int i = 4; i < 32; i *= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    return x;
}
__device__ __forceinline__ float sum_of_head(float x) {
    for (int i = 4; i < 32; i *= 2)
        x += __shfl_xor_sync(~0u, x, i);
    return x;
}
__device__ __forceinline__ void mma_u8s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint32_t comp(const uint4 &v, int j) {
    return j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w;
}
__device__ __forceinline__ float h2f(uint32_t v, int hi) {
    __half h = __ushort_as_half((unsigned short)(hi ? v >> 16 : v & 0xffff));
    return __half2float(h);
}

__device__ __forceinline__ uint32_t smem(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}
__device__ __forceinline__ uint4 lds(uint32_t a) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(a));
    return v;
}
__device__ __forceinline__ void bar_init(uint32_t bar) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar));
}
__device__ __forceinline__ void bulk(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(dst),
        "l"(src), "r"(bytes), "r"(bar)
        : "memory");
}
__device__ __forceinline__ void bar_wait(uint32_t bar, uint32_t parity) {
    asm volatile("{\n.reg .pred p;\nWAIT_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], "
                 "%1;\n@p bra DONE_%=;\nbra WAIT_%=;\nDONE_%=:\n}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}
// Two chunks of 16 bytes side by side, read in the order that halves bank conflicts.
__device__ __forceinline__ void pair(uint32_t at, int odd, uint4 &lo, uint4 &hi) {
    uint4 x = lds(at + odd * 16), y = lds(at + (odd ^ 1) * 16);
    lo = odd ? y : x;
    hi = odd ? x : y;
}
__device__ __forceinline__ void halves(uint4 v, float (&f)[8]) {
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f[2 * i] = h2f(w[i], 0);
        f[2 * i + 1] = h2f(w[i], 1);
    }
}

// Slots of a thread: tokens 8r .. 8r+7 of a tile; head q.
template <int BITS, int D, int G>
__device__ __forceinline__ void k_scores(uint32_t tile, int r, int q,
                                         const uint32_t (&bq)[D / 32][2], float qs,
                                         const float *qsum, float (&out)[8]) {
    constexpr int GROUPS = D / G, PER = G / 32;
    const int odd = q & 1;
#pragma unroll
    for (int j = 0; j < 8; j++)
        out[j] = 0;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        int dot[4][4] = {};
#pragma unroll
        for (int p = 0; p < PER; p++) {
            int k = g * PER + p;
            uint4 c[2], e[2];
            if (BITS == 8) {
                pair(tile + (8 * k + q) * 256 + r * 32, odd, c[0], c[1]);
                pair(tile + (8 * k + 4 + q) * 256 + r * 32, odd, e[0], e[1]);
            } else {
                pair(tile + (4 * k + q) * 256 + r * 32, odd, c[0], c[1]);
            }
#pragma unroll
            for (int m = 0; m < 4; m++) {
                uint32_t a[4], x = comp(c[m / 2], (m & 1) * 2), y = comp(c[m / 2], (m & 1) * 2 + 1);
                if (BITS == 8) {
                    a[0] = x;
                    a[1] = y;
                    a[2] = comp(e[m / 2], (m & 1) * 2);
                    a[3] = comp(e[m / 2], (m & 1) * 2 + 1);
                } else {
                    a[0] = x & 0x0f0f0f0f;
                    a[1] = y & 0x0f0f0f0f;
                    a[2] = (x >> 4) & 0x0f0f0f0f;
                    a[3] = (y >> 4) & 0x0f0f0f0f;
                }
                mma_u8s8(dot[m], a, bq[k][0], bq[k][1]);
            }
        }
        float s[8], b[8];
        halves(lds(tile + 64 * D * BITS / 8 + g * 128 + r * 16), s);
        halves(lds(tile + 64 * D * BITS / 8 + GROUPS * 128 + g * 128 + r * 16), b);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int dd = dot[j / 2][(j & 1) * 2] * 128 + dot[j / 2][(j & 1) * 2 + 1];
            out[j] = fmaf(s[j], qs * (float)dd, out[j]);
            out[j] = fmaf(b[j], qsum[g], out[j]);
        }
    }
}

// acc[m]: G 64: dims 64 (m/4) + 8r + 2 (m%4) + {0,1}; G 32: dims 32 (m/2) + 4r + 2 (m&1) + {0,1}
template <int G> __device__ __forceinline__ int dim_of(int m, int r) {
    return G == 64 ? 64 * (m / 4) + 8 * r + 2 * (m & 3) : 32 * (m / 2) + 4 * r + 2 * (m & 1);
}
template <int BITS, int D, int G>
__device__ __forceinline__ void v_add(uint32_t tile, uint32_t *x, int r, int q, const float (&p)[8],
                                      float (&acc)[D / 16][2], float (&bias)[D / G]) {
    constexpr int GROUPS = D / G, ROWS = BITS == 8 ? 4 : 2;
    const int odd = q & 1;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        float s[8], b[8], w[8], mx = 0;
        halves(lds(tile + 64 * D * BITS / 8 + g * 128 + r * 16), s);
        halves(lds(tile + 64 * D * BITS / 8 + GROUPS * 128 + g * 128 + r * 16), b);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            w[j] = p[j] * s[j];
            bias[g] = fmaf(p[j], b[j], bias[g]);
            mx = fmaxf(mx, fabsf(w[j]));
        }
        mx = max_of_head(mx);
        float inv = mx > 1e-30f ? __fdividef((float)QMAX, mx) : 0.f,
              scale = mx > 1e-30f ? mx * (1.f / QMAX) : 0.f;
        uint32_t hi[2], lo[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int code[4], t[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                code[j] = __float_as_int(fmaf(w[4 * h + j], inv, 12582912.f)) - 0x4B400000;
#pragma unroll
            for (int j = 0; j < 4; j++)
                t[j] = (code[j] + 64) >> 7;
            hi[h] = __byte_perm(__byte_perm(t[0], t[1], 0x0040), __byte_perm(t[2], t[3], 0x0040),
                                0x5410);
#pragma unroll
            for (int j = 0; j < 4; j++)
                t[j] = code[j] - t[j] * 128;
            lo[h] = __byte_perm(__byte_perm(t[0], t[1], 0x0040), __byte_perm(t[2], t[3], 0x0040),
                                0x5410);
        }
        __syncwarp();
        *(uint2 *)&x[(2 * q) * 20 + 2 * r] = make_uint2(hi[0], hi[1]);
        *(uint2 *)&x[(2 * q + 1) * 20 + 2 * r] = make_uint2(lo[0], lo[1]);
        __syncwarp();
        uint32_t bw[4];
        if (BITS == 8) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                bw[i] = x[r * 20 + q + 4 * i];
        } else {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint2 two = *(const uint2 *)&x[r * 20 + 8 * i + 2 * q];
                bw[2 * i] = two.x;
                bw[2 * i + 1] = two.y;
            }
        }
        constexpr int TILES_G = G / 16; // m tiles of a group: 4 or 2
        int dot[TILES_G][4] = {};
        uint4 c[ROWS][2];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            uint32_t row = tile + (4 * i + q) * 4 * D + g * G * 4;
            if (G == 64)
                pair(row + r * 32, odd, c[i][0], c[i][1]);
            else
                c[i][0] = lds(row + r * 16);
        }
#pragma unroll
        for (int m = 0; m < TILES_G; m++)
#pragma unroll
            for (int t = 0; t < 2; t++) {
                uint32_t a[4];
                if (BITS == 8) {
                    a[0] = comp(c[2 * t][m / 2], (m & 1) * 2);
                    a[1] = comp(c[2 * t][m / 2], (m & 1) * 2 + 1);
                    a[2] = comp(c[2 * t + 1][m / 2], (m & 1) * 2);
                    a[3] = comp(c[2 * t + 1][m / 2], (m & 1) * 2 + 1);
                } else {
                    uint32_t xx = comp(c[t][m / 2], (m & 1) * 2),
                             yy = comp(c[t][m / 2], (m & 1) * 2 + 1);
                    a[0] = xx & 0x0f0f0f0f;
                    a[1] = yy & 0x0f0f0f0f;
                    a[2] = (xx >> 4) & 0x0f0f0f0f;
                    a[3] = (yy >> 4) & 0x0f0f0f0f;
                }
                mma_u8s8(dot[m], a, bw[2 * t], bw[2 * t + 1]);
            }
#pragma unroll
        for (int m = 0; m < TILES_G; m++) {
            acc[g * TILES_G + m][0] =
                fmaf(scale, (float)(dot[m][0] * 128 + dot[m][1]), acc[g * TILES_G + m][0]);
            acc[g * TILES_G + m][1] =
                fmaf(scale, (float)(dot[m][2] * 128 + dot[m][3]), acc[g * TILES_G + m][1]);
        }
    }
}

template <int D>
__device__ __forceinline__ void k_scores_half(uint32_t tile, const __half *qp, int r, int q,
                                              float (&out)[8]) {
    const int odd = q & 1;
    float d[4][4] = {};
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint4 c[4];
        pair(tile + (4 * k + q) * 512 + r * 64, odd, c[0], c[1]);
        pair(tile + (4 * k + q) * 512 + r * 64 + 32, odd, c[2], c[3]);
        uint2 b = *(const uint2 *)(qp + r * D + 16 * k + 4 * q);
#pragma unroll
        for (int m = 0; m < 4; m++) {
            uint32_t a[4] = {c[m].x, c[m].z, c[m].y, c[m].w};
            mma_f16(d[m], a, b.x, b.y);
        }
    }
#pragma unroll
    for (int m = 0; m < 4; m++) {
        out[2 * m] = d[m][0] + d[m][1];
        out[2 * m + 1] = d[m][2] + d[m][3];
    }
}
// acc[m]: dims 32 (m/2) + 4r + 2(m&1) + {0,1}
template <int D>
__device__ __forceinline__ void v_add_half(uint32_t tile, uint2 *x, int r, int q,
                                           const float (&p)[8], float (&acc)[D / 16][4]) {
    const int odd = q & 1;
    __syncwarp();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t hw[2], lw[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float a = p[4 * h + 2 * j] * 16384.f, b = p[4 * h + 2 * j + 1] * 16384.f;
            __half2 hh = __floats2half2_rn(a, b);
            float2 back = __half22float2(hh);
            __half2 ll = __floats2half2_rn(a - back.x, b - back.y);
            hw[j] = *(uint32_t *)&hh;
            lw[j] = *(uint32_t *)&ll;
        }
        x[(2 * q) * 17 + 2 * r + h] = make_uint2(hw[0], hw[1]);
        x[(2 * q + 1) * 17 + 2 * r + h] = make_uint2(lw[0], lw[1]);
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint2 b = x[r * 17 + 4 * k + q];
#pragma unroll
        for (int m = 0; m < D / 32; m++) {
            uint4 c[2];
            pair(tile + (4 * k + q) * 8 * D + m * 256 + r * 32, odd, c[0], c[1]);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t a[4] = {c[i].x, c[i].z, c[i].y, c[i].w};
                mma_f16(acc[2 * m + i], a, b.x, b.y);
            }
        }
    }
}

template <int KB, int VB, int D, int G> struct Cfg {
    static constexpr uint32_t KBYTES = KB == 16 ? 64 * D * 2 : 64 * D * KB / 8 + D / G * 256,
                              VBYTES = VB == 16 ? 64 * D * 2 : 64 * D * VB / 8 + D / G * 256;
    static constexpr uint32_t SLOT = KBYTES > VBYTES ? KBYTES : VBYTES;
    static constexpr int FIT = (220 * 1024 - 6144) / WARPS / SLOT, SLOTS = FIT > 8 ? 8 : FIT;
    static constexpr size_t SMEM = (size_t)WARPS * SLOTS * SLOT;
};

template <int KB, int VB, int D, int G>
__global__ void __launch_bounds__(WARPS * 32) decode(Params P) {
    using C = Cfg<KB, VB, D, G>;
    constexpr int GROUPS = D / G, STEPS = D / 32, MT = D / 16, SLOTS = C::SLOTS;
    extern __shared__ __align__(128) uint8_t ring[];
    __shared__ __align__(16) uint2 xs[WARPS][8 * 17];
    __shared__ __align__(8) uint64_t bars[WARPS][SLOTS];
    __shared__ float2 sms[WARPS][4];
    __shared__ bool last;
    float *so = (float *)ring;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, q = lane % 4;
    int2 item = P.items[blockIdx.x];
    int seq = item.x, kv = blockIdx.y;
    uint32_t length = P.lengths[seq], n = (length + SUPER - 1) / SUPER;
    uint32_t run0 = (uint32_t)item.y * SUPER + warp * RUN;
    float m_run = -INFINITY, sum = 0;
    float acc[MT][2] = {}, acc4[KB == 16 ? MT : 1][4] = {}, bias[GROUPS] = {};
    uint32_t slot0 = smem(ring) + warp * SLOTS * C::SLOT, bar0 = smem(&bars[warp][0]);
    if (run0 < length) {
        if (lane == 0)
            for (int i = 0; i < SLOTS; i++)
                bar_init(bar0 + 8 * i);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        __syncwarp();
        const uint8_t *base = nullptr; // lane t < TILES: tile t
        if (lane < TILES) {
            uint32_t page = run0 / TILE + lane;
            uint32_t addr = P.pages[(size_t)seq * P.max_pages + (page * TILE < length ? page : 0)];
            base = P.arena + (size_t)addr * 4096 + (size_t)kv * P.head_bytes;
        }
        const uint8_t *b[TILES];
#pragma unroll
        for (int t = 0; t < TILES; t++)
            b[t] = (const uint8_t *)__shfl_sync(~0u, (unsigned long long)base, t);
        auto issue = [&](int i) { // tile i of K0 K1 K2 K3 V0 ..
            if (lane == 0 && i < 2 * TILES)
                bulk(slot0 + (i % SLOTS) * C::SLOT, i < TILES ? b[i & 3] : b[i & 3] + C::KBYTES,
                     i < TILES ? C::KBYTES : C::VBYTES, bar0 + 8 * (i % SLOTS));
        };
#pragma unroll
        for (int i = 0; i < SLOTS; i++)
            issue(i);
        float s[TILES][8];
        if constexpr (KB == 16) {
            const __half *qp = P.q_half + ((size_t)seq * P.kv_heads + kv) * 8 * D;
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                bar_wait(bar0 + 8 * (t % SLOTS), (t / SLOTS) & 1);
                k_scores_half<D>(slot0 + (t % SLOTS) * C::SLOT, qp, r, q, s[t]);
                __syncwarp();
                issue(t + SLOTS);
            }
        } else {
            const int8_t *qp = P.q_planes + ((size_t)seq * P.kv_heads + kv) * 8 * D;
            uint32_t bq[STEPS][2];
            float qsum[GROUPS];
            float qs = P.q_scale[((size_t)seq * P.kv_heads + kv) * 4 + q];
#pragma unroll
            for (int k = 0; k < STEPS; k++) {
                if (KB == 8) {
                    bq[k][0] = *(const uint32_t *)(qp + r * D + (8 * k + q) * 4);
                    bq[k][1] = *(const uint32_t *)(qp + r * D + (8 * k + 4 + q) * 4);
                } else {
                    uint2 two = *(const uint2 *)(qp + r * D + (8 * k + 2 * q) * 4);
                    bq[k][0] = two.x;
                    bq[k][1] = two.y;
                }
            }
#pragma unroll
            for (int g = 0; g < GROUPS; g++)
                qsum[g] = P.q_sum[(((size_t)seq * P.kv_heads + kv) * 4 + q) * GROUPS + g];
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                bar_wait(bar0 + 8 * (t % SLOTS), (t / SLOTS) & 1);
                k_scores<KB, D, G>(slot0 + (t % SLOTS) * C::SLOT, r, q, bq, qs, qsum, s[t]);
                __syncwarp();
                issue(t + SLOTS);
            }
        }
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                if (run0 + t * TILE + 8 * r + j >= length)
                    s[t][j] = -INFINITY;
                m_run = fmaxf(m_run, s[t][j]);
            }
        m_run = max_of_head(m_run);
#pragma unroll
        for (int t = 0; t < TILES; t++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                s[t][j] = exp2f((s[t][j] - m_run) * 1.44269504f);
                sum += s[t][j];
            }
        sum = sum_of_head(sum);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const int i = TILES + t;
            bar_wait(bar0 + 8 * (i % SLOTS), (i / SLOTS) & 1);
            if constexpr (KB == 16)
                v_add_half<D>(slot0 + (i % SLOTS) * C::SLOT, xs[warp], r, q, s[t], acc4);
            else
                v_add<VB, D, G>(slot0 + (i % SLOTS) * C::SLOT, (uint32_t *)xs[warp], r, q, s[t],
                                acc, bias);
            __syncwarp();
            issue(i + SLOTS);
        }
    }
    __syncthreads(); // the ring is free: partial sums go there
    if constexpr (KB == 16) {
#pragma unroll
        for (int m = 0; m < MT; m++) {
            int d = 32 * (m / 2) + 4 * r + 2 * (m & 1);
            so[warp * 4 * D + q * D + d] = (acc4[m][0] + acc4[m][1]) * (1.f / 16384);
            so[warp * 4 * D + q * D + d + 1] = (acc4[m][2] + acc4[m][3]) * (1.f / 16384);
        }
    } else {
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            bias[g] = sum_of_head(bias[g]);
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                so[warp * 4 * D + q * D + dim_of<G>(m, r) + j] = acc[m][j] + bias[m * 16 / G];
    }
    if (r == 0)
        sms[warp][q] = make_float2(m_run, sum);
    __syncthreads();

    // runs in order
    size_t at = ((size_t)blockIdx.x * P.kv_heads + kv) * 4;
    for (int e = threadIdx.x; e < 4 * D; e += WARPS * 32) {
        int h = e / D, d = e % D;
        float M = -INFINITY, o = 0, S = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            M = fmaxf(M, sms[w][h].x);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float f = exp2f((sms[w][h].x - M) * 1.44269504f);
            o = fmaf(f, so[w * 4 * D + h * D + d], o);
            S = fmaf(f, sms[w][h].y, S);
        }
        P.part_out[(at + h) * D + d] = o;
        if (d == 0)
            P.part_ms[at + h] = make_float2(M, S);
        if (n == 1)
            P.out[((size_t)seq * P.kv_heads * 4 + kv * 4 + h) * D + d] = o / S;
    }
    if (n == 1)
        return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(&P.arrived[seq * P.kv_heads + kv], 1) == n - 1;
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    size_t first = P.first_item[seq];
    for (int e = threadIdx.x; e < 4 * D; e += WARPS * 32) {
        int h = e / D, d = e % D;
        float M = -INFINITY, o = 0, S = 0;
#pragma unroll 8
        for (uint32_t i = 0; i < n; i++)
            M = fmaxf(M, __ldcg(&P.part_ms[((first + i) * P.kv_heads + kv) * 4 + h]).x);
#pragma unroll 8
        for (uint32_t i = 0; i < n; i++) {
            size_t p = ((first + i) * P.kv_heads + kv) * 4 + h;
            float2 ms = __ldcg(&P.part_ms[p]);
            float f = exp2f((ms.x - M) * 1.44269504f);
            o = fmaf(f, __ldcg(&P.part_out[p * D + d]), o);
            S = fmaf(f, ms.y, S);
        }
        P.out[((size_t)seq * P.kv_heads * 4 + kv * 4 + h) * D + d] = o / S;
    }
    if (threadIdx.x == 0)
        P.arrived[seq * P.kv_heads + kv] = 0;
}
