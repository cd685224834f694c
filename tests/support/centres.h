/* SPDX-License-Identifier: Apache-2.0 */
/* Calibration files of random numbers, for tests whose models have no keys worth centring. */
#ifndef KVASIR_TEST_CENTRES_H
#define KVASIR_TEST_CENTRES_H

#include "engine/centre.h"

/* The file's bytes: means up to `size`, every spread 1; equal seeds give equal files. NULL data: an
 * error. */
static inline struct text_buf random_centres(const kvasir_model *m, float size, uint64_t seed) {
    struct key_stats s;
    struct text_buf file = {0};
    if (key_stats_init(&s, m->model, NULL) != KVASIR_OK)
        return file;
    size_t pairs = (size_t)s.layers * s.kv_heads * s.n;
    for (size_t i = 0; i < 2 * pairs; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        s.mean[i] = size * ((float)(seed >> 40) * 0x1p-23f - 1);
    }
    for (size_t i = 0; i < pairs; i++)
        s.rms[i] = 1;
    if (centre_file_write(&s, m->id, 1, &file, NULL) != KVASIR_OK)
        text_free(&file);
    key_stats_deinit(&s);
    return file;
}

#endif
