/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen2.5-Coder-0.5B-Instruct (Q5_0, Q8_0, Q4_K, Q6_K; biases on q, k, v) against its goldens, keys
 * as they are (--key-centre off); model_goldens.h says what is compared. Takes many minutes, so it
 * runs in `make soak`, which sets KVASIR_SOAK.
 *
 * Settings whose golden KL is 0.5 or more (4/4, 4/8, 5/5) are chaotic and left out: another
 * implementation cannot be expected to agree. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "model_goldens.h"

int main(void) {
    static const struct golden_setting settings[] = {
        {.golden = "exact", .bits = "f32", .exact = true},
        {.golden = "f16", .bits = "f16", .rounded = true, .check_kl = true},
        {.golden = "k8v8g64", .bits = "8", .group = "64", .check_kl = true},
        {.golden = "k8v4g64", .bits = "8,4", .group = "64", .check_kl = true},
        {.golden = "k6v6g64", .bits = "6", .group = "64", .check_kl = true},
        {.golden = "k8v2g64", .bits = "8,2", .group = "64"},
        {.golden = NULL},
    };
    if (!getenv("KVASIR_SOAK")) {
        printf("skipped: takes many minutes; runs in make soak (KVASIR_SOAK=1)\n");
        return 77;
    }
    return model_goldens_check(
        &(struct model_goldens){.model = MODELS_DIR "/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
                                .dir = SHARED_DIR "/goldens/qwen2.5-coder-0.5b",
                                .settings = settings});
}
