// SPDX-License-Identifier: Apache-2.0
// centre.cu: tables of centred keys (struct key_centre of backend.h) in device memory.
//
//     dev_centre    inv_freq, first, pairs   copies of the host's
//                   waves   float32 [n][cos, sin][64 tokens] of (token - 31.5) w_j
//                   halves  the same in f16 [n][high, low parts][64 tokens][cos, sin]
//                   turns   float32 [tile][n][cos, sin] of (64 tile + 31.5) w_j, in double
//
// From the middle of a tile on, a score's A cos wt + B sin wt is a sum over 64 fixed waves
// (centre.cuh). The tables are made once for each layer group, after reserve, and live as long as
// the backend; that of turns grows with the positions that steps see.
#include <algorithm>

#include "backend/cuda/centre.cuh"

enum { TURNS_MOST = 4096 }; // tiles whose turns are made at first: 262,144 tokens

namespace {
__global__ void __launch_bounds__(TILE_TOKENS) halves_kernel(const float *waves, uint32_t *halves) {
    const float *cosines = waves + (size_t)blockIdx.x * 2 * TILE_TOKENS;
    const CentreHalves h = centre_halves(cosines[threadIdx.x], cosines[TILE_TOKENS + threadIdx.x]);
    uint32_t *to = halves + (size_t)blockIdx.x * 2 * TILE_TOKENS;
    to[threadIdx.x] = h.high;
    to[TILE_TOKENS + threadIdx.x] = h.low;
}
} // namespace

// False: no memory is left, or the device has an error.
static bool upload_centre(cuda_backend *b, const key_centre *c, dev_centre *out) {
    const uint32_t heads = c->layers * c->kv_heads;
    const size_t wave_bytes = (size_t)c->n * 2 * TILE_TOKENS * sizeof(float);
    float *waves = (float *)mem_alloc(wave_bytes);
    if (!waves)
        return false;
    key_centre_waves(c, waves);
    out->n = c->n;
    out->pairs_max = c->pairs_max;
    out->inv_freq = (const double *)cuda_upload(&b->base, c->inv_freq, c->n * sizeof(double));
    out->first = (const uint32_t *)cuda_upload(&b->base, c->first, (heads + 1) * sizeof *c->first);
    out->pairs =
        (const centre_pair *)cuda_upload(&b->base, c->pairs, c->first[heads] * sizeof *c->pairs);
    out->waves = (const float *)cuda_upload(&b->base, waves, wave_bytes);
    mem_free(waves);
    uint32_t *halves = (uint32_t *)cuda_alloc(&b->base, wave_bytes);
    out->halves = halves;
    if (!out->inv_freq || !out->first || !out->pairs || !out->waves || !halves)
        return false;
    halves_kernel<<<c->n, TILE_TOKENS, 0, b->stream>>>(out->waves, halves);
    return cuda_ok(b, cudaGetLastError());
}

namespace {
__global__ void __launch_bounds__(256)
    turns_kernel(const double *inv_freq, uint32_t n, size_t count, float2 *turns) {
    const size_t i = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= count)
        return;
    double sine, cosine;
    sincos(((double)(i / n) * TILE_TOKENS + TILE_MIDDLE) * inv_freq[i % n], &sine, &cosine);
    turns[i] = make_float2((float)cosine, (float)sine);
}
} // namespace

// The table for `tiles` tiles takes the place of a shorter one. Graphs know it by its address and
// its length, which never comes again.
static bool make_turns(cuda_backend *b, dev_centre *d, uint32_t tiles) {
    const size_t count = (size_t)tiles * d->n;
    float2 *turns = (float2 *)cuda_alloc(&b->base, count * sizeof *turns);
    if (!turns)
        return false;
    turns_kernel<<<blocks_of(count, 256), 256, 0, b->stream>>>(d->inv_freq, d->n, count, turns);
    cuda_free(&b->base, const_cast<float2 *>(d->turns)); // waits
    d->turns = turns;
    d->tiles = tiles;
    return cuda_ok(b, cudaGetLastError());
}

kvasir_status cuda_reserve_centre(struct backend *base, const struct key_centre *c,
                                  kvasir_error *err) {
    cuda_backend *b = cuda_of(base);
    ASSERT(!b->capturing && c->n > 0 && c->pairs_max > 0);
    TRY(cuda_status(b, err));
    if (b->n_centres == BACKEND_GROUPS_MAX)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "CUDA: more than %d groups with centred keys",
                    BACKEND_GROUPS_MAX);
    auto &entry = b->centres[b->n_centres++]; // also of one that fails: centres_close frees it
    // more only for positions beyond the pages, of windows
    const uint32_t tiles = (uint32_t)std::min<uint64_t>(b->limits.pages + 1, TURNS_MOST);
    if (!upload_centre(b, c, &entry.device) || !make_turns(b, &entry.device, tiles)) {
        TRY(cuda_status(b, err));
        return fail(err, KVASIR_ERR_MEMORY, "CUDA: tables for centred keys: out of memory");
    }
    entry.host = c;
    return KVASIR_OK;
}

kvasir_status centre_cover(cuda_backend *b, const key_centre *c, uint32_t tiles,
                           kvasir_error *err) {
    for (uint32_t i = 0; i < b->n_centres; i++) {
        dev_centre &d = b->centres[i].device;
        if (b->centres[i].host != c || tiles <= d.tiles)
            continue;
        if (!make_turns(b, &d, std::max(tiles, 2 * d.tiles))) {
            TRY(cuda_status(b, err));
            return fail(err, KVASIR_ERR_MEMORY, "CUDA: tables for centred keys: out of memory");
        }
    }
    return cuda_status(b, err);
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
        const void *all[] = {d.inv_freq, d.first, d.pairs, d.waves, d.halves, d.turns};
        for (const void *p : all)
            (void)cudaFree(const_cast<void *>(p));
    }
    b->n_centres = 0;
}
