// SPDX-License-Identifier: Apache-2.0
// prefill.cu: the kernels of prefill.cuh for keys without a centre, and the launches.
#include <algorithm>

#include "backend/cuda/prefill.cuh"

namespace {

// Kernels for what is f16 when it is multiplied, for bf16 alone, for all, for whole pages; the
// first two if all pages are in the plain basis.
template <int D> PrefillChoice choose(uint32_t k, uint32_t v, bool alone) {
    if ((k & ~K_FORMATS) | (v & ~V_FORMATS))
        return choice_of<D, WHOLE_K_FORMATS, WHOLE_V_FORMATS, false>();
    if (D == 128 && alone && k == bit(BF16) && v == bit(BF16))
        return choice_of<128, bit(BF16), bit(BF16), true>();
    if (alone && !((k | v) & bit(BF16)))
        return choice_of<D, K_FORMATS & ~bit(BF16), V_FORMATS & ~bit(BF16), true>();
    return choice_of<D, K_FORMATS, V_FORMATS, false>();
}
PrefillChoice choose(uint32_t k, uint32_t v, bool alone, uint32_t dim) {
    if (k & CENTRED_KEYS)
        return prefill_choose_centred((k & ~K_FORMATS & ~CENTRED_KEYS) | (v & ~V_FORMATS), dim);
#ifdef KVASIR_FEW_KERNELS // as in decode.cu
    (void)dim;
    (void)alone;
    return (k & ~K_FORMATS) | (v & ~V_FORMATS)
               ? choice_of<128, WHOLE_K_FORMATS, WHOLE_V_FORMATS, false>()
               : choice_of<128, K_FORMATS, V_FORMATS, false>();
#else
    return dim == 64    ? choose<64>(k, v, alone)
           : dim == 128 ? choose<128>(k, v, alone)
                        : choose<256>(k, v, alone);
#endif
}

} // namespace

uint32_t prefill_block_rows(uint32_t head_dim) { // the same for all formats
    return choose(bit(F16), bit(F16), true, head_dim).rows;
}

// Slots of K, and of V; without one the kernel cannot run. pairs: of the centre.
static int slots_of(const cuda_backend *b, const PrefillChoice &c, uint32_t pairs) {
    const int left = (int)b->shared_per_block - (int)(c.shared + centre_bytes(pairs)),
              slots = left / (2 * (int)c.slot);
    return slots < SLOTS_MAX ? slots : SLOTS_MAX;
}

bool prefill_fits(const cuda_backend *b, uint32_t k_formats, uint32_t v_formats, bool alone,
                  uint32_t head_dim, uint32_t pairs) {
    return slots_of(b, choose(k_formats, v_formats, alone, head_dim), pairs) >= 1;
}

bool prefill_centre_fits(const cuda_backend *b, uint32_t head_dim, uint32_t pairs) {
    return slots_of(b, prefill_choose_centred(false, head_dim), pairs) >= 1 &&
           slots_of(b, prefill_choose_centred(true, head_dim), pairs) >= 1;
}

// As far as that is worth memory.
size_t prefill_parts(const cuda_backend *b, uint64_t pages, uint32_t head_dim) {
    constexpr size_t MOST_BYTES = 64 << 20;
    if (!head_dim_fast(head_dim))
        return 0;
    const size_t supers = pages / (SUPER_RUNS * RUN_TILES) + 1,
                 rows = (size_t)b->sm_count / 2 * supers * prefill_block_rows(head_dim);
    return supers == 1 ? 0 : std::min(rows, MOST_BYTES / (head_dim * sizeof(float)));
}

// Blocks of each super-run if they are few, and there is room for what they leave.
static uint32_t supers_apart(const cuda_backend *b, const group_plan &plan, uint32_t blocks,
                             const PrefillChoice &c, uint32_t dim) {
    const size_t parts = (size_t)blocks * plan.prefill_supers * c.rows;
    return 2 * blocks <= (uint32_t)b->sm_count && parts <= b->part_rows &&
                   parts * dim <= b->part_floats
               ? plan.prefill_supers
               : 1;
}

void attention_prefill(cuda_backend *b, const attention_op &op, const attention_pass &pass) {
    const group_plan &plan = b->plan[op.group];
    const auto &shape = b->limits.group[op.group];
    const uint32_t kv_heads = shape.kv_heads;
    const bool alone = plan.bases == 1u << BASIS_PLAIN;
    const PrefillChoice c =
        choose(plan.k_formats[pass.basis], plan.v_formats[pass.basis], alone, shape.head_dim);
    const uint32_t pairs = plan.k_formats[pass.basis] & CENTRED_KEYS ? op.centre.pairs_max : 0;
    const int slots = slots_of(b, c, pairs);
    const uint32_t bytes = c.shared + centre_bytes(pairs) + 2 * slots * c.slot;
    if (!cuda_ok(b, cudaFuncSetAttribute(c.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)bytes)))
        return;
    const uint32_t blocks = plan.blocks[COUNT_PREFILL] * kv_heads,
                   supers = supers_apart(b, plan, blocks, c, shape.head_dim);
    const PrefillArgs args = {pass_args(b, op, pass), slots, supers, b->part_out, b->part_ms};
    if (!cuda_ok(b, launch_early(b, c.kernel, dim3(blocks, supers), c.threads, bytes,
                                 b->group[op.group], args)) ||
        supers == 1)
        return;
    void (*fold)(step_group, PrefillArgs, uint32_t) = shape.head_dim == 64    ? fold_supers<64>
                                                      : shape.head_dim == 128 ? fold_supers<128>
                                                                              : fold_supers<256>;
    cuda_ok(b, launch_early(b, fold, dim3(blocks, blocks_of(c.rows, FOLD_WARPS)), FOLD_WARPS * 32,
                            0, b->group[op.group], args, c.rows));
}
