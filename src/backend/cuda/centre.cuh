// SPDX-License-Identifier: Apache-2.0
// centre.cuh: what the centre of keys (struct key_centre) adds to scores, and what keys lose:
//
//     q . rope(c, t) = sum over the head's pairs of A cos w(t - m) + B sin w(t - m)
//
// m is the middle of t's tile; A and B are the query's parts along and across the pair's centre,
// turned by w m. The waves are the same for all tiles.
#pragma once

#include "backend/cuda/arithmetic.cuh"

// The pairs of a (layer, KV head).
struct CentrePairs {
    const centre_pair *pairs;
    uint32_t count;
};
__device__ __forceinline__ CentrePairs pairs_of(const dev_centre &c, uint32_t layer,
                                                uint32_t kv_heads, uint32_t head) {
    const uint32_t i = layer * kv_heads + head, first = c.first[i];
    return {c.pairs + first, c.first[i + 1] - first};
}

// Along the centre of a pair, and across it. q: a query's head in the plain basis.
__device__ __forceinline__ float2 centre_parts(const dev_centre &c, const centre_pair &p,
                                               const float *q, float scale) {
    const float q1 = q[p.pair] * scale, q2 = q[p.pair + c.n] * scale;
    return make_float2(q1 * p.c1 + q2 * p.c2, q2 * p.c1 - q1 * p.c2);
}
// A and B. turn: cosine and sine of w m.
__device__ __forceinline__ float2 centre_turned(float2 parts, float2 turn) {
    return make_float2(parts.x * turn.x + parts.y * turn.y, parts.y * turn.x - parts.x * turn.y);
}
// Cosine and sine of w m, of a tile.
__device__ __forceinline__ float2 centre_turn(const dev_centre &c, uint32_t tile, uint32_t pair) {
    return c.turns[(size_t)tile * c.n + pair];
}
// The two values of rope(c, t) that are a pair's, of a token of a tile: what its key loses.
__device__ __forceinline__ float2 centre_of_key(const dev_centre &c, const centre_pair &p,
                                                uint32_t tile, uint32_t token) {
    const float2 turn = centre_turn(c, tile, p.pair);
    const float *waves = c.waves + (size_t)p.pair * 2 * TILE_TOKENS + token;
    const float cos0 = waves[0], sin0 = waves[TILE_TOKENS];
    const float cosine = turn.x * cos0 - turn.y * sin0, sine = turn.y * cos0 + turn.x * sin0;
    return make_float2(p.c1 * cosine - p.c2 * sine, p.c2 * cosine + p.c1 * sine);
}

// ---- for the fast kernels --------------------------------------------------------------------
//
// Eight pairs are 16 more elements of the key, which tensor cores multiply: A and B of pair i are
// elements 2i and 2i + 1 of the query's side, cosine and sine of the key's. Both sides are in two
// f16, a high part and what is left, 22 bits in all, in three instructions:
//
//     high A, B x high waves;  high A, B x low waves;  low A, B x high waves

// Of so many pairs they keep centre_parts in shared memory; of more, they make them at every tile.
enum { CENTRE_PAIRS = 16 };

struct CentreHalves {
    uint32_t high, low; // of two numbers each
};
// Beyond f16's range they stay finite: such a score is greater than all others anyhow.
__device__ __forceinline__ CentreHalves centre_halves(float x, float y) {
    constexpr float MOST = 65504.f;
    x = fminf(fmaxf(x, -MOST), MOST);
    y = fminf(fmaxf(y, -MOST), MOST);
    CentreHalves h;
    h.high = pack_half2<false>(x, y);
    h.low = pack_half2<false>(x - to_float((uint16_t)h.high, false),
                              y - to_float((uint16_t)(h.high >> 16), false));
    return h;
}
// A and B in units of the query's: over 2^e, of unit = 2^e log2 e. turn: of centre_turn.
__device__ __forceinline__ CentreHalves centre_query(float2 parts, float2 turn, float unit) {
    const float2 ab = centre_turned(parts, turn);
    const float scale = LOG2E / unit; // exact
    return centre_halves(ab.x * scale, ab.y * scale);
}
// Waves of a pair: high parts of the tile's tokens, or low ones.
__device__ __forceinline__ const uint32_t *centre_halves_of(const dev_centre &c, uint32_t pair,
                                                            bool low) {
    return c.halves + (pair * 2 + low) * TILE_TOKENS;
}
