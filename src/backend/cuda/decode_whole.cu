// SPDX-License-Identifier: Apache-2.0
// decode_whole.cu: the kernels of decode.cuh for pages that are encoded when they are full. Every
// row sees its own page as the shadow has it, in f16, so that is one of the formats of each.
#include "backend/cuda/decode.cuh"

namespace {

template <int D, int H> DecodeChoice choose(uint32_t k, uint32_t v) {
#ifdef KVASIR_FEW_KERNELS // as in decode.cu
    (void)k, (void)v;
    if constexpr (H == 4)
        return {};
    else
        return choice_of<128, WHOLE_K_FORMATS, WHOLE_V_FORMATS, H>();
#else
    if constexpr (D == 128 && H == 1) {
#define ONE(K, V)                                                                                  \
    if (!(k & ~(bit(F16) | bit(K))) && !(v & ~(bit(F16) | bit(V))))                                \
        return choice_of<D, bit(F16) | bit(K), bit(F16) | bit(V), H>();
        ONE(Q8G64, Q4G64)
        ONE(T5, T4)
        ONE(T4, T4)
        ONE(T3, T3)
#undef ONE
    }
    return choice_of<D, WHOLE_K_FORMATS, WHOLE_V_FORMATS, H>();
#endif
}
template <int D> DecodeChoice choose(uint32_t k, uint32_t v, uint32_t gqa) {
    return gqa <= 4 ? choose<D, 1>(k, v) : gqa <= 8 ? choose<D, 2>(k, v) : choose<D, 4>(k, v);
}

} // namespace

DecodeChoice decode_choose_whole(uint32_t k, uint32_t v, uint32_t dim, uint32_t gqa) {
    k &= ~CENTRED_KEYS; // all of them take these
    return dim == 64    ? choose<64>(k, v, gqa)
           : dim == 128 ? choose<128>(k, v, gqa)
                        : choose<256>(k, v, gqa);
}
