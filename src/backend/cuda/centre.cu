// SPDX-License-Identifier: Apache-2.0
// centre.cu: tables of centred keys (struct key_centre of backend.h) in device memory.
//
//     dev_centre    inv_freq, first, pairs   copies of the host's
//                   waves   float32 [n][cos, sin][64 tokens] of (token - 31.5) w_j
//
// From the middle of a tile on, a score's A cos wt + B sin wt is a sum over 64 fixed waves, so
// plain_attention.cu turns A and B by the tile's angle and takes the waves as more dims of the key.
// The tables are made once for each layer group, after reserve, and live as long as the backend.
#include "backend/cuda/internal.cuh"

// False: no memory is left, or the device has an error.
static bool upload_centre(cuda_backend *b, const key_centre *c, dev_centre *out) {
    const uint32_t heads = c->layers * c->kv_heads;
    const size_t wave_bytes = (size_t)c->n * 2 * TILE_TOKENS * sizeof(float);
    float *waves = (float *)mem_alloc(wave_bytes);
    if (!waves)
        return false;
    key_centre_waves(c, waves);
    out->n = c->n;
    out->inv_freq = (const double *)cuda_upload(&b->base, c->inv_freq, c->n * sizeof(double));
    out->first = (const uint32_t *)cuda_upload(&b->base, c->first, (heads + 1) * sizeof *c->first);
    out->pairs =
        (const centre_pair *)cuda_upload(&b->base, c->pairs, c->first[heads] * sizeof *c->pairs);
    out->waves = (const float *)cuda_upload(&b->base, waves, wave_bytes);
    mem_free(waves);
    return out->inv_freq && out->first && out->pairs && out->waves;
}

kvasir_status cuda_reserve_centre(struct backend *base, const struct key_centre *c,
                                  kvasir_error *err) {
    cuda_backend *b = cuda_of(base);
    ASSERT(!b->capturing && c->n > 0);
    TRY(cuda_status(b, err));
    if (b->n_centres == BACKEND_GROUPS_MAX)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "CUDA: more than %d groups with centred keys",
                    BACKEND_GROUPS_MAX);
    auto &entry = b->centres[b->n_centres++]; // also of one that fails: centres_close frees it
    if (!upload_centre(b, c, &entry.device)) {
        TRY(cuda_status(b, err));
        return fail(err, KVASIR_ERR_MEMORY, "CUDA: tables for centred keys: out of memory");
    }
    entry.host = c;
    return KVASIR_OK;
}

dev_centre centre_find(const cuda_backend *b, const key_centre *c) {
    for (uint32_t i = 0; c && i < b->n_centres; i++)
        if (b->centres[i].host == c)
            return b->centres[i].device;
    return dev_centre{};
}

void centres_close(cuda_backend *b) {
    for (uint32_t i = 0; i < b->n_centres; i++) {
        const dev_centre &d = b->centres[i].device;
        const void *all[] = {d.inv_freq, d.first, d.pairs, d.waves};
        for (const void *p : all)
            (void)cudaFree(const_cast<void *>(p));
    }
    b->n_centres = 0;
}
