/* SPDX-License-Identifier: Apache-2.0 */
/* SmolLM2-135M-Instruct against its goldens; model_goldens.h says what is compared. In CI exact
 * numbers and the default formats over a few windows; in `make soak` all. */
#include <stddef.h>

#include "model_goldens.h"

int main(void) {
    static const struct golden_setting settings[] = {
        {.golden = "exact", .bits = "f32", .exact = true},
        {.golden = "f16", .bits = "f16", .rounded = true, .check_kl = true, .in_soak = true},
        {.golden = "k8v8g64", .bits = "8", .group = "64", .check_kl = true, .in_soak = true},
        {.golden = "k8v4g64", .bits = "8,4", .group = "64", .check_kl = true},
        {.golden = "k6v6g64", .bits = "6", .group = "64", .check_kl = true, .in_soak = true},
        {.golden = "k4v4g64", .bits = "4", .group = "64", .check_kl = true, .in_soak = true},
        {.golden = "k4v4g32", .bits = "4", .group = "32", .check_kl = true, .in_soak = true},
        {.golden = "k4v8g64", .bits = "4,8", .group = "64", .in_soak = true},
        {.golden = "k5v5g64", .bits = "5", .group = "64", .in_soak = true},
        {.golden = "k8v2g64", .bits = "8,2", .group = "64", .in_soak = true},
        {.golden = NULL},
    };
    return model_goldens_check(
        &(struct model_goldens){.model = MODELS_DIR "/SmolLM2-135M-Instruct.Q4_1.gguf",
                                .dir = SHARED_DIR "/goldens/smollm2-135m",
                                .settings = settings});
}
