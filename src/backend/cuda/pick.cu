// SPDX-License-Identifier: Apache-2.0
// pick.cu: tokens drawn where the logits are, with the bits of engine/sampler.c: only ids, and what
// log-probabilities need, go to the host.
//
//     logits [row][vocab]
//        | peaks_kernel      the largest of each block of 256
//        | log_sums_kernel   sums of exp(logit - max) in double         if log-probabilities are
//        | top_kernel        the first n_top                            asked for
//        v
//        | edit_kernel       bias and penalties, in place; what stood   if a pick of the call has
//        | peaks_kernel      there is kept                              any
//        v
//        | sums_kernel       sums of exp of blocks: of 1,024 for top_p, of 256 without filters; not
//        |                   if all are greedy or filtered otherwise
//        | choose_kernel     one block a pick: candidates, their order, the walk, the draw
//        v
//     restore_kernel         the logits as they were; the token's own
//
// Candidates are the tokens from a threshold on, so far down that a walk does not come to their
// end:
//
//     top_k, n_top   the K-th largest of the blocks' largest logits: K blocks have one each that is
//                    not below it
//     min_p          a little below the least logit that it keeps, and at_least as above
//     top_p alone    PICK_NEAR below the largest
//
// They are sorted in shared memory. If they are more than fit there, the threshold is raised; if a
// walk comes to their end after all, the pick is left to the host (token -1).
//
// Sums of doubles have the order of sampler.c: four chains, or one after the other in one thread.
#include <math_constants.h>
#include <string.h>

#include "backend/cuda/internal.cuh"
#include "util/exp.h"

namespace {

enum {
    THREADS = 512, // of a block that has a pick to itself
    WARP = 32,
    WARPS = 8, // of the other blocks
    CANDIDATES = 2048,
    TRIES = 5,       // of thresholds
    LOG_PART = 1024, // logits of a block of log_sums_kernel: sampler_logprobs' PART
};

struct dev_pick {
    uint32_t row, first_edit, n_edits;
    uint32_t top_k, at_least; // top_k: the vocabulary's size if it is off
    int32_t n_top;
    float temp, top_p, min_p; // 0: off
    double at;
};

struct pick_args {
    float *logits;
    uint32_t vocab, blocks, parts; // parts: of LOG_PART
    const dev_pick *picks;
    const pick_edit *edits;
    float *kept;  // [pick][PICK_EDITS_MAX]
    float *peaks; // [pick][blocks]
    double *sums; // [pick][blocks]: of blocks of 256 or 1,024 logits, or of log_sums_kernel
    picked *out;  // [pick]
};

__device__ __forceinline__ float *row_of(const pick_args &a, const dev_pick &p) {
    return a.logits + (size_t)p.row * a.vocab;
}

// NaN counts as the least likely.
__device__ __forceinline__ float value_of(float logit) {
    return isnan(logit) ? -CUDART_INF_F : logit;
}

__host__ __device__ __forceinline__ bool keeps_all(const pick_args &a, const dev_pick &p) {
    return p.top_p == 0 && p.min_p == 0 && p.top_k == a.vocab;
}

// Whether weights of the whole vocabulary are needed.
__host__ __device__ __forceinline__ bool wants_sums(const pick_args &a, const dev_pick &p) {
    return p.temp > 0 && (p.top_p > 0 || keeps_all(a, p));
}

// ---- over whole rows -------------------------------------------------------------------------

// A warp for each block of 256. of_logs: only of picks with log-probabilities.
__global__ void __launch_bounds__(WARPS *WARP) peaks_kernel(const pick_args a, bool of_logs) {
    const uint32_t block = blockIdx.x * WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    kernel_begins();
    const dev_pick &p = a.picks[blockIdx.y];
    if (block >= a.blocks || (of_logs && p.n_top < 0))
        return;
    const float *row = row_of(a, p);
    float most = -CUDART_INF_F;
#pragma unroll
    for (uint32_t j = 0; j < PICK_BLOCK / WARP; j++) {
        const uint32_t i = block * PICK_BLOCK + j * WARP + lane;
        if (i < a.vocab)
            most = fmaxf(most, value_of(row[i]));
    }
    most = warp_max(most);
    if (lane == 0)
        a.peaks[blockIdx.y * a.blocks + block] = most;
}

// The largest of a pick's peaks, in all lanes.
__device__ __forceinline__ float largest_peak(const pick_args &a, uint32_t pick, uint32_t lane) {
    float most = -CUDART_INF_F;
    for (uint32_t b = lane; b < a.blocks; b += WARP)
        most = fmaxf(most, a.peaks[pick * a.blocks + b]);
    return warp_max(most);
}

// m_exp_sum of blocks, a warp for each (exp.h has the order).
__global__ void __launch_bounds__(WARPS *WARP) sums_kernel(const pick_args a) {
    const uint32_t lane = threadIdx.x % WARP;
    kernel_begins();
    const dev_pick &p = a.picks[blockIdx.y];
    const bool all = keeps_all(a, p);
    const uint32_t size = all ? PICK_BLOCK : EXP_SUM_BLOCK,
                   first = (blockIdx.x * WARPS + threadIdx.x / WARP) * size;
    if (!wants_sums(a, p) || first >= a.vocab)
        return;
    const float max = largest_peak(a, blockIdx.y, lane), scale = all ? pick_scale(p.temp) : 1;
    const float *x = row_of(a, p) + first;
    const uint32_t n = min(size, a.vocab - first), even = n / WARP * WARP;
    float sum = 0;
    for (uint32_t i = lane; i < even; i += WARP)
        sum += exp_lane_f((x[i] - max) * scale);
    for (uint32_t i = even; lane == 0 && i < n; i++)
        sum += exp_lane_f((x[i] - max) * scale);
    double wide = (double)sum;
#pragma unroll
    for (int half = EXP_SUM_LANES / 2; half > 0; half /= 2)
        wide += __shfl_down_sync(~0u, wide, half);
    if (lane == 0)
        a.sums[blockIdx.y * a.blocks + first / size] = wide;
}

// sum_of of sampler.c by the first four threads of a block, over values in shared memory that all
// threads have written: the result is in thread 0.
__device__ double sum_of(const double *x, uint32_t n) {
    __shared__ double chains[4];
    __syncthreads();
    if (threadIdx.x < 4) {
        double sum = 0;
        for (uint32_t i = threadIdx.x; i < n; i += 4)
            sum += x[i];
        chains[threadIdx.x] = sum;
    }
    __syncthreads();
    return (chains[0] + chains[1]) + (chains[2] + chains[3]);
}

__global__ void __launch_bounds__(WARPS *WARP) log_sums_kernel(const pick_args a) {
    __shared__ double x[LOG_PART];
    kernel_begins();
    const dev_pick &p = a.picks[blockIdx.y];
    if (p.n_top < 0)
        return;
    const float max = largest_peak(a, blockIdx.y, threadIdx.x % WARP);
    const uint32_t first = blockIdx.x * LOG_PART, n = min((uint32_t)LOG_PART, a.vocab - first);
    const float *row = row_of(a, p) + first;
    for (uint32_t i = threadIdx.x; i < n; i += WARPS * WARP)
        x[i] = exp_lane(pick_below((double)value_of(row[i]), (double)max));
    const double sum = sum_of(x, n);
    if (threadIdx.x == 0)
        a.sums[blockIdx.y * a.blocks + blockIdx.x] = sum;
}

// ---- order -----------------------------------------------------------------------------------

// Keys rise in the order of tokens: falling logits, rising ids.
__device__ __forceinline__ uint64_t key_of(float logit, uint32_t id) {
    const uint32_t bits = __float_as_uint(value_of(logit) + 0.0f); // -0 is 0
    const uint32_t rising = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)~rising << 32 | id;
}
__device__ __forceinline__ uint32_t id_of(uint64_t key) {
    return (uint32_t)key;
}
__device__ __forceinline__ float logit_of(uint64_t key) {
    const uint32_t rising = ~(uint32_t)(key >> 32);
    return __uint_as_float(rising & 0x80000000u ? rising & 0x7fffffffu : ~rising);
}

// Bitonic, by the whole block; [n] is filled up with the greatest key to a power of two, at most
// CANDIDATES.
__device__ void sort_keys(uint64_t *keys, uint32_t n) {
    uint32_t size = 2;
    while (size < n)
        size *= 2;
    for (uint32_t i = n + threadIdx.x; i < size; i += THREADS)
        keys[i] = UINT64_MAX;
    for (uint32_t run = 2; run <= size; run *= 2)
        for (uint32_t step = run / 2; step > 0; step /= 2) {
            __syncthreads();
            for (uint32_t pair = threadIdx.x; pair < size / 2; pair += THREADS) {
                const uint32_t i = pair / step * 2 * step + pair % step, j = i + step;
                const uint64_t x = keys[i], y = keys[j];
                if ((x > y) == ((i & run) == 0)) {
                    keys[i] = y;
                    keys[j] = x;
                }
            }
        }
    __syncthreads();
}

// What a block that has a pick to itself works in.
struct pick_room {
    uint64_t keys[CANDIDATES];
    double weights[CANDIDATES];
    uint32_t n;
};

// No more than the k-th largest logit; -inf if there are fewer blocks.
__device__ float kth_peak(const pick_args &a, pick_room *r, const float *peaks, float max,
                          uint32_t k) {
    if (k <= 1)
        return max;
    if (k > a.blocks)
        return -CUDART_INF_F;
    for (uint32_t b = threadIdx.x; b < a.blocks; b += THREADS)
        r->keys[b] = key_of(peaks[b], b);
    sort_keys(r->keys, a.blocks);
    const float kth = logit_of(r->keys[k - 1]);
    __syncthreads();
    return kth;
}

// Below it exp(logit - max) is less than min_p, whatever the rounding.
__device__ __forceinline__ float least_of(float max, float min_p) {
    return max + logf(min_p) - 0.01f;
}

__device__ float threshold_of(const pick_args &a, const dev_pick &p, pick_room *r,
                              const float *peaks, float max) {
    float from = -CUDART_INF_F; // all of them
    if (a.vocab <= CANDIDATES)
        return from;
    if (p.top_k < a.vocab)
        from = kth_peak(a, r, peaks, max, p.top_k);
    if (p.min_p > 0)
        from = fmaxf(from, fminf(least_of(max, p.min_p), kth_peak(a, r, peaks, max, p.at_least)));
    return p.top_p > 0 ? fmaxf(from, max - PICK_NEAR) : from;
}

// The candidates from a threshold on, in order. False: they are too many.
__device__ bool find_candidates(const pick_args &a, pick_room *r, const float *row,
                                const float *peaks, float threshold) {
    if (threadIdx.x == 0)
        r->n = 0;
    __syncthreads();
    for (uint32_t b = threadIdx.x / WARP; b < a.blocks; b += THREADS / WARP) {
        if (peaks[b] < threshold)
            continue;
        for (uint32_t j = 0; j < PICK_BLOCK / WARP; j++) {
            const uint32_t id = b * PICK_BLOCK + j * WARP + threadIdx.x % WARP;
            if (id >= a.vocab || value_of(row[id]) < threshold)
                continue;
            const uint32_t at = atomicAdd(&r->n, 1);
            if (at < CANDIDATES)
                r->keys[at] = key_of(row[id], id);
        }
    }
    __syncthreads();
    const uint32_t n = r->n;
    __syncthreads(); // all have read it: the next try begins with 0
    if (n > CANDIDATES)
        return false;
    sort_keys(r->keys, n);
    return true;
}

// The same from a higher threshold, *from, until they fit. False: they do not.
__device__ bool find_fewer(const pick_args &a, pick_room *r, const float *row, const float *peaks,
                           float max, float *from) {
    if (*from == -CUDART_INF_F && a.vocab > CANDIDATES)
        *from = max - PICK_NEAR;
    for (int tries = 0; tries < TRIES; tries++) {
        if (find_candidates(a, r, row, peaks, *from))
            return true;
        *from = max - (max - *from) / 2;
    }
    return false;
}

// ---- log-probabilities -----------------------------------------------------------------------

__global__ void __launch_bounds__(THREADS) top_kernel(const pick_args a) {
    __shared__ pick_room r;
    kernel_begins();
    const dev_pick &p = a.picks[blockIdx.x];
    if (p.n_top < 0)
        return;
    const float *peaks = a.peaks + (size_t)blockIdx.x * a.blocks;
    const float max = largest_peak(a, blockIdx.x, threadIdx.x % WARP);
    picked *out = &a.out[blockIdx.x];
    bool found = true;
    if (p.n_top > 0) {
        float from = kth_peak(a, &r, peaks, max, (uint32_t)p.n_top);
        found = find_fewer(a, &r, row_of(a, p), peaks, max, &from) && r.n >= (uint32_t)p.n_top;
        for (uint32_t i = threadIdx.x; found && i < (uint32_t)p.n_top; i += THREADS) {
            out->logs.ids[i] = (int32_t)id_of(r.keys[i]);
            out->logs.values[i] = logit_of(r.keys[i]);
        }
    }
    if (threadIdx.x != 0)
        return;
    double sum = 0;
    for (uint32_t i = 0; i < a.parts; i++)
        sum += a.sums[(size_t)blockIdx.x * a.blocks + i];
    out->logs.max = max;
    out->logs.sum = sum;
    out->token = found ? 0 : -1;
}

// ---- edits -----------------------------------------------------------------------------------

// Thread i has the i-th edit's token if no edit before it has the same one.
__device__ __forceinline__ bool has_token(const pick_edit *edits, uint32_t n, uint32_t i) {
    if (i >= n)
        return false;
    for (uint32_t j = 0; j < i; j++)
        if (edits[j].id == edits[i].id)
            return false;
    return true;
}

__global__ void __launch_bounds__(PICK_EDITS_MAX) edit_kernel(const pick_args a) {
    const uint32_t i = threadIdx.x;
    kernel_begins();
    const dev_pick &p = a.picks[blockIdx.x];
    const pick_edit *edits = a.edits + p.first_edit;
    if (!has_token(edits, p.n_edits, i))
        return;
    float *at = row_of(a, p) + edits[i].id, x = *at;
    a.kept[blockIdx.x * PICK_EDITS_MAX + i] = x;
    for (uint32_t j = i; j < p.n_edits; j++)
        if (edits[j].id == edits[i].id)
            x = pick_edited(x, &edits[j]);
    *at = x;
}

__global__ void __launch_bounds__(PICK_EDITS_MAX) restore_kernel(const pick_args a) {
    const uint32_t i = threadIdx.x;
    kernel_begins();
    const dev_pick &p = a.picks[blockIdx.x];
    const pick_edit *edits = a.edits + p.first_edit;
    if (has_token(edits, p.n_edits, i))
        row_of(a, p)[edits[i].id] = a.kept[blockIdx.x * PICK_EDITS_MAX + i];
    __syncthreads();
    picked *out = &a.out[blockIdx.x];
    if (i == 0 && p.n_top >= 0 && out->token >= 0)
        out->logs.value = value_of(row_of(a, p)[out->token]);
}

// ---- the draw --------------------------------------------------------------------------------

// The first id with the largest logit; 0 if all are NaN.
__device__ uint32_t first_largest(const pick_args &a, const float *row, const float *peaks,
                                  float max) {
    __shared__ uint32_t first;
    if (threadIdx.x == 0)
        first = UINT32_MAX;
    __syncthreads();
    // a warp looks at 32 peaks, then at the blocks that have the largest
    for (uint32_t b0 = threadIdx.x / WARP * WARP; b0 < a.blocks; b0 += THREADS) {
        const uint32_t b = b0 + threadIdx.x % WARP;
        uint32_t having = __ballot_sync(~0u, b < a.blocks && peaks[b] == max);
        for (; having; having &= having - 1) {
            const uint32_t block = b0 + __ffs((int)having) - 1;
#pragma unroll
            for (uint32_t j = 0; j < PICK_BLOCK / WARP; j++) {
                const uint32_t id = block * PICK_BLOCK + j * WARP + threadIdx.x % WARP;
                if (id < a.vocab && row[id] == max)
                    atomicMin(&first, id);
            }
        }
    }
    __syncthreads();
    return first == UINT32_MAX ? 0 : first;
}

// pick_of_all of sampler.c.
__device__ int32_t draw_of_all(const pick_args &a, const dev_pick &p, pick_room *r,
                               const float *row, float max, uint32_t best) {
    __shared__ uint32_t block;
    __shared__ double target;
    const double *sums = a.sums + (size_t)blockIdx.x * a.blocks;
    for (uint32_t b = threadIdx.x; b < a.blocks; b += THREADS)
        r->weights[b] = sums[b];
    const double all = sum_of(r->weights, a.blocks);
    if (threadIdx.x == 0) {
        target = p.at * all;
        block = pick_reached(r->weights, a.blocks, &target);
    }
    __syncthreads();
    const double of_block = r->weights[block];
    const uint32_t first = block * PICK_BLOCK, n = min((uint32_t)PICK_BLOCK, a.vocab - first);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        r->weights[i] = exp_lane(((double)value_of(row[first + i]) - (double)max) / (double)p.temp);
    const double exact = sum_of(r->weights, n);
    if (threadIdx.x != 0)
        return 0;
    double left = target * (exact / of_block);
    return (int32_t)(exact > 0 ? first + pick_reached(r->weights, n, &left) : best);
}

// walk of sampler.c: how many of the candidates stay; 0: it comes to their end. Weights are
// exp(logit - max). few: tokens after the last candidate weigh less than min_p.
__device__ uint32_t walk(const pick_args &a, const dev_pick &p, const pick_room *r, double mass,
                         bool few) {
    double before = 0;
    uint32_t kept = 0;
    while (kept < a.vocab && kept < p.top_k) {
        if (kept == r->n)
            return kept > 0 && (before >= mass || (few && kept >= p.at_least)) ? kept : 0;
        const double w = r->weights[kept];
        if (kept > 0 && (before >= mass || (w < (double)p.min_p && kept >= p.at_least)))
            break;
        before += w;
        kept++;
    }
    return kept;
}

__device__ int32_t draw_filtered(const pick_args &a, const dev_pick &p, pick_room *r,
                                 const float *row, const float *peaks, float max) {
    __shared__ uint32_t kept;
    float from = threshold_of(a, p, r, peaks, max);
    if (!find_fewer(a, r, row, peaks, max, &from))
        return -1;
    for (uint32_t i = threadIdx.x; i < r->n; i += THREADS)
        r->weights[i] = exp_lane((double)logit_of(r->keys[i]) - (double)max);
    __syncthreads();
    if (threadIdx.x == 0) {
        double mass = CUDART_INF;
        if (p.top_p > 0) {
            const double *sums = a.sums + (size_t)blockIdx.x * a.blocks;
            double all = 0;
            for (uint32_t i = 0; i < blocks_of(a.vocab, EXP_SUM_BLOCK); i++)
                all += sums[i];
            mass = all * (double)p.top_p;
        }
        kept = walk(a, p, r, mass, p.min_p > 0 && from <= least_of(max, p.min_p));
    }
    __syncthreads();
    const uint32_t n = kept;
    if (n == 0)
        return -1;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        r->weights[i] =
            n > 1 ? exp_lane(((double)logit_of(r->keys[i]) - (double)max) / (double)p.temp) : 1;
    double target = p.at * sum_of(r->weights, n);
    return threadIdx.x == 0 ? (int32_t)id_of(r->keys[pick_reached(r->weights, n, &target)]) : 0;
}

__global__ void __launch_bounds__(THREADS) choose_kernel(const pick_args a) {
    __shared__ pick_room r;
    kernel_begins();
    const dev_pick &p = a.picks[blockIdx.x];
    const float *row = row_of(a, p), *peaks = a.peaks + (size_t)blockIdx.x * a.blocks;
    picked *out = &a.out[blockIdx.x];
    if (p.n_top >= 0 && out->token < 0)
        return; // its log-probabilities are the host's
    const float max = largest_peak(a, blockIdx.x, threadIdx.x % WARP);
    const uint32_t best = first_largest(a, row, peaks, max);
    const int32_t token = p.temp == 0 || isinf(max) ? (int32_t)best
                          : keeps_all(a, p)         ? draw_of_all(a, p, &r, row, max, best)
                                                    : draw_filtered(a, p, &r, row, peaks, max);
    __syncthreads(); // all have read out->token
    if (threadIdx.x == 0)
        out->token = token;
}

// ---- the host --------------------------------------------------------------------------------

size_t sent_bytes() { // of descriptions and edits
    return LOGIT_ROWS * (sizeof(dev_pick) + PICK_EDITS_MAX * sizeof(pick_edit));
}

// Writes what the device is told; returns the number of edits.
uint32_t describe(const cuda_backend *b, const pick *picks, uint32_t n) {
    dev_pick *to = (dev_pick *)b->picks.host;
    pick_edit *edits = (pick_edit *)(to + n);
    const uint32_t vocab = b->limits.vocab;
    uint32_t n_edits = 0;
    for (uint32_t i = 0; i < n; i++) {
        const pick &p = picks[i];
        ASSERT(p.n_edits <= PICK_EDITS_MAX && p.n_top <= PICK_TOP_MAX);
        to[i] = dev_pick{p.row,      n_edits, p.n_edits, p.top_k ? p.top_k : vocab,
                         p.at_least, p.n_top, p.temp,    p.top_p < 1 ? p.top_p : 0,
                         p.min_p,    p.at};
        if (p.n_edits)
            memcpy(edits + n_edits, p.edits, p.n_edits * sizeof *edits);
        n_edits += p.n_edits;
    }
    return n_edits;
}

void launch(cuda_backend *b, const pick_args &a, uint32_t n, uint32_t n_edits) {
    const dim3 blocks(blocks_of(a.blocks, WARPS), n);
    const dev_pick *told = (const dev_pick *)b->picks.host;
    bool logs = false, sums = false;
    for (uint32_t i = 0; i < n; i++) {
        logs = logs || told[i].n_top >= 0;
        sums = sums || wants_sums(a, told[i]);
    }
    if (logs || !n_edits)
        cuda_ok(b, launch_early(b, peaks_kernel, blocks, WARPS * WARP, 0, a, n_edits > 0));
    if (logs) {
        cuda_ok(b, launch_early(b, log_sums_kernel, dim3(a.parts, n), WARPS * WARP, 0, a));
        cuda_ok(b, launch_early(b, top_kernel, dim3(n), THREADS, 0, a));
    }
    if (n_edits) {
        cuda_ok(b, launch_early(b, edit_kernel, dim3(n), PICK_EDITS_MAX, 0, a));
        cuda_ok(b, launch_early(b, peaks_kernel, blocks, WARPS * WARP, 0, a, false));
    }
    if (sums)
        cuda_ok(b, launch_early(b, sums_kernel, blocks, WARPS * WARP, 0, a));
    cuda_ok(b, launch_early(b, choose_kernel, dim3(n), THREADS, 0, a));
    if (n_edits || logs)
        cuda_ok(b, launch_early(b, restore_kernel, dim3(n), PICK_EDITS_MAX, 0, a));
}

} // namespace

bool picks_open(cuda_backend *b) {
    const size_t blocks = blocks_of(b->limits.vocab, PICK_BLOCK);
    return b->limits.vocab == 0 ||
           (cudaMallocHost((void **)&b->picks.host, sent_bytes()) == cudaSuccess &&
            device_array(sent_bytes(), &b->picks.device) &&
            device_array(LOGIT_ROWS * PICK_EDITS_MAX, &b->picks.kept) &&
            device_array(LOGIT_ROWS * blocks, &b->picks.peaks) &&
            device_array(LOGIT_ROWS * blocks, &b->picks.sums) &&
            device_array(LOGIT_ROWS, &b->picks.out));
}

void picks_close(cuda_backend *b) {
    (void)cudaFreeHost(b->picks.host);
    void *device[] = {b->picks.device, b->picks.kept, b->picks.peaks, b->picks.sums, b->picks.out};
    for (void *p : device)
        (void)cudaFree(p);
    b->picks = pick_scratch{};
}

kvasir_status cuda_pick(struct backend *base, const float *logits, const struct pick *picks,
                        uint32_t n, struct picked *out, kvasir_error *err) {
    cuda_backend *b = cuda_of(base);
    const uint32_t vocab = b->limits.vocab, blocks = blocks_of(vocab, PICK_BLOCK);
    ASSERT(vocab > 0 && n <= LOGIT_ROWS);
    for (uint32_t i = 0; i < n; i++)
        out[i].token = -1;
    if (n == 0 || blocks > CANDIDATES)
        return KVASIR_OK;
    device_current(b);
    step_submit(b);
    if (!cuda_works(b))
        return cuda_status(b, err);
    const uint32_t n_edits = describe(b, picks, n);
    const size_t bytes = n * sizeof(dev_pick) + n_edits * sizeof(pick_edit);
    const pick_args a = {.logits = const_cast<float *>(logits), // restored
                         .vocab = vocab,
                         .blocks = blocks,
                         .parts = blocks_of(vocab, LOG_PART),
                         .picks = (const dev_pick *)b->picks.device,
                         .edits = (const pick_edit *)((const dev_pick *)b->picks.device + n),
                         .kept = b->picks.kept,
                         .peaks = b->picks.peaks,
                         .sums = b->picks.sums,
                         .out = b->picks.out};
    if (cuda_ok(b, cudaMemcpyAsync(b->picks.device, b->picks.host, bytes, cudaMemcpyHostToDevice,
                                   b->stream)))
        launch(b, a, n, n_edits);
    const void *made;
    TRY(cuda_fetch(base, b->picks.out, n * sizeof *out, &made, err));
    memcpy(out, made, n * sizeof *out);
    return KVASIR_OK;
}
