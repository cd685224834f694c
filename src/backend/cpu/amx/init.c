/* SPDX-License-Identifier: Apache-2.0 */
/* init.c: the table of tier AMX: that of AVX512VNNI, but for many rows. */
#include "backend/cpu/amx/tile.h"

void amx_kernels_init(struct kernels *k) {
    avx512vnni_kernels_init(k);
    amx_set_products(k);
    amx_set_attention(k);
}
