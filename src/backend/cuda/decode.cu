// SPDX-License-Identifier: Apache-2.0
// decode.cu: the kernels of decode.cuh for pages that are encoded row by row, and the launches.
#include <algorithm>

#include "backend/cuda/decode.cuh"

namespace {

template <int D, int H> DecodeChoice choose(uint32_t k, uint32_t v) {
#ifdef KVASIR_FEW_KERNELS // for CI and cuda-mutants.sh: all formats, 128 dims, groups of 8
    (void)k, (void)v;
    if constexpr (H == 4)
        return {};
    else
        return choice_of<128, K_FORMATS, V_FORMATS, H>();
#else
    if constexpr (D == 128 && H == 1) {
#define ONE(K, V)                                                                                  \
    if (k == bit(K) && v == bit(V))                                                                \
        return choice_of<D, bit(K), bit(V), H>();
        ONE(F16, F16)
        ONE(BF16, BF16)
        ONE(Q8G64, Q8G64)
        ONE(Q8G64, Q4G64)
        ONE(Q4G64, Q4G64)
        ONE(Q4G32, Q4G32)
        ONE(Q4G64, Q2G64)
#undef ONE
    }
    return choice_of<D, K_FORMATS, V_FORMATS, H>();
#endif
}
template <int D> DecodeChoice choose(uint32_t k, uint32_t v, uint32_t gqa) {
    return gqa <= 4 ? choose<D, 1>(k, v) : gqa <= 8 ? choose<D, 2>(k, v) : choose<D, 4>(k, v);
}

} // namespace

static DecodeChoice choose_kernel(uint32_t k, uint32_t v, uint32_t dim, uint32_t gqa) {
    // 8/4 after an exact start, or centred, has a kernel there
    const bool several = (k & (k - 1)) != 0,
               eight_four = several && !(k & ~(bit(F16) | bit(Q8G64) | CENTRED_KEYS)) &&
                            !(v & ~(bit(F16) | bit(Q4G64)));
    if ((k & ~K_FORMATS & ~CENTRED_KEYS) || (v & ~V_FORMATS) || eight_four)
        return decode_choose_whole(k, v, dim, gqa);
    return dim == 64    ? choose<64>(k, v, gqa)
           : dim == 128 ? choose<128>(k, v, gqa)
                        : choose<256>(k, v, gqa);
}

// Slots of a warp if a block has an SM to itself; 0 if the kernel is missing. *fixed: bytes of
// shared memory that are no slots.
static int slots_alone(const cuda_backend *b, const DecodeChoice &c, int *fixed) {
    cudaFuncAttributes attr;
    if (cudaFuncGetAttributes(&attr, c.kernel) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    *fixed = (int)attr.sharedSizeBytes;
    return ((int)b->shared_per_block - *fixed) / (WARPS * (int)c.slot_bytes);
}

bool decode_fits(const cuda_backend *b, uint32_t k_formats, uint32_t v_formats, uint32_t head_dim,
                 uint32_t gqa) {
    int fixed;
    return slots_alone(b, choose_kernel(k_formats, v_formats, head_dim, gqa), &fixed) >= SLOTS_MIN;
}

// Among how many blocks a super-run is divided that would otherwise be one of `blocks`.
static uint32_t decode_split(const cuda_backend *b, uint32_t blocks) {
    uint32_t split = SUPER_RUNS;
    while (split > 1 && blocks * split > (uint32_t)b->sm_count)
        split /= 2;
    return split;
}

size_t decode_parts(const cuda_backend *b, size_t items, uint32_t kv_heads) {
    // super-runs are divided only if there are at most half as many blocks as SMs
    const size_t blocks = items * kv_heads, half = (size_t)b->sm_count / 2;
    return std::max(blocks, std::min(blocks, half) * SUPER_RUNS);
}

void attention_decode(cuda_backend *b, const attention_op &op, const attention_pass &pass) {
    const group_plan &plan = b->plan[op.group];
    const auto &shape = b->limits.group[op.group];
    const uint32_t kv_heads = shape.kv_heads, gqa = op.heads / kv_heads;
    const DecodeChoice c =
        choose_kernel(plan.k_formats[pass.basis], plan.v_formats[pass.basis], shape.head_dim, gqa);
    int fixed = 0, slots = slots_alone(b, c, &fixed);
    const int warp_slot = WARPS * (int)c.slot_bytes, whole = (int)b->shared_per_block - fixed,
              half = (int)(b->shared_per_sm / 2 - b->shared_reserved) - fixed;
    // few blocks: one an SM, with all its memory in flight
    const uint32_t blocks = plan.blocks[COUNT_DECODE] * kv_heads;
    if (c.pairs == 2 && half / warp_slot >= SLOTS_MIN && blocks > (uint32_t)b->sm_count)
        slots = half / warp_slot;
    slots = slots < SLOTS_MAX ? slots : SLOTS_MAX;
    const size_t bytes = (size_t)slots * warp_slot;
    if (!cuda_ok(
            b, cudaFuncSetAttribute(c.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, whole)))
        return;
    const bool team =
        bytes >= c.team_bytes && std::min(slots * WARPS, (int)BARRIERS) >= c.team_chunks;
    const DecodeArgs args = {
        pass_args(b, op, pass), slots * WARPS, team, b->part_out, b->part_ms, b->arrived};
    const uint32_t split = decode_split(b, blocks);
    cuda_ok(b, launch_early(b, c.kernel, dim3(plan.blocks[COUNT_DECODE], kv_heads, split), THREADS,
                            bytes, b->group[op.group], args));
}
