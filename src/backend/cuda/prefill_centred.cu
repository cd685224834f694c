// SPDX-License-Identifier: Apache-2.0
// prefill_centred.cu: the kernels of prefill.cuh for steps with centred keys.
#include "backend/cuda/prefill.cuh"

namespace {

template <int D> PrefillChoice choose(bool whole) {
    return whole ? choice_of<D, WHOLE_K_FORMATS, WHOLE_V_FORMATS, false, true>()
                 : choice_of<D, K_FORMATS, V_FORMATS, false, true>();
}

} // namespace

PrefillChoice prefill_choose_centred(bool whole, uint32_t head_dim) {
#ifdef KVASIR_FEW_KERNELS // as in decode.cu
    (void)head_dim;
    return choose<128>(whole);
#else
    return head_dim == 64    ? choose<64>(whole)
           : head_dim == 128 ? choose<128>(whole)
                             : choose<256>(whole);
#endif
}
