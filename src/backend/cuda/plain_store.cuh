// SPDX-License-Identifier: Apache-2.0
// plain_store.cuh: what the kernels share that store K and V in any format and head size: which
// rows of a step fall into a page, rows without their centre, words of planes.
//
// A block is (all rows of one sequence that fall into one page, KV head, K or V).
#pragma once

#include "backend/cuda/affine.cuh"
#include "backend/cuda/centre.cuh"
#include "backend/cuda/plain.cuh"

struct StoreArgs {
    dev_centre centre;
    const float *k, *v; // [row][kv head][dim]
    uint32_t layer, kv_heads, dim;
};

// What a block stores.
struct Place {
    const float *x;            // row of token `first`, this head
    uint32_t stride;           // floats from a row to the next
    uint32_t first, end;       // tokens of the tile that are of this step
    uint32_t position;         // of the tile's first token
    uint32_t head, dim, lanes; // lanes: of the tile
    bool is_v;
};

// What the block stores of an item; the page's layout and address, which is NULL if it has none.
__device__ __forceinline__ const uint8_t *find_rows(const step_group &g, const StoreArgs &a,
                                                    Place &p, uint32_t *layout) {
    const store_item item = g.store[blockIdx.x];
    const batch_seq seq = g.seqs[item.seq];
    const uint32_t start = item.page * TILE_TOKENS,
                   last = min(start + TILE_TOKENS, seq.pos + seq.rows), first = max(start, seq.pos);
    p.is_v = blockIdx.z != 0;
    p.head = blockIdx.y;
    p.dim = a.dim;
    p.lanes = p.is_v ? a.dim : (uint32_t)TILE_TOKENS;
    p.first = first - start;
    p.end = last - start;
    p.position = start;
    p.stride = a.kv_heads * a.dim;
    p.x = (p.is_v ? a.v : a.k) +
          ((size_t)(seq.row + (first - seq.pos)) * a.kv_heads + p.head) * a.dim;
    *layout = 0;
    return page_find(g, g.views[item.seq], item.page, layout);
}
// The block's tile of a page.
__device__ __forceinline__ uint8_t *tile_stored(const uint8_t *page, const dev_layout &l,
                                                const StoreArgs &a, const Place &p) {
    return const_cast<uint8_t *>(tile_of(page, l, a.layer, p.head, p.is_v ? TILE_V : TILE_K));
}

// The token's row into shared memory, by a warp; centred: as key_centre_add with sign -1, by the
// tile's turns and waves.
__device__ __forceinline__ void load_row(const StoreArgs &a, const Place &p, bool centred,
                                         uint32_t token, float *row) {
    const uint32_t lane = threadIdx.x % 32;
    const float *x = p.x + (size_t)(token - p.first) * p.stride;
    __syncwarp(); // the last token's row was read
    for (uint32_t i = lane; i < p.dim; i += 32)
        row[i] = x[i];
    __syncwarp();
    if (!centred)
        return;
    const CentrePairs pairs = pairs_of(a.centre, a.layer, a.kv_heads, p.head);
    for (uint32_t i = lane; i < pairs.count; i += 32) {
        const centre_pair c = pairs.pairs[i];
        const float2 less = centre_of_key(a.centre, c, p.position / TILE_TOKENS, token);
        row[c.pair] -= less.x;
        row[c.pair + a.centre.n] -= less.y;
    }
    __syncwarp();
}

__device__ __forceinline__ void write_scalar(uint8_t *to, uint32_t scalar, uint32_t i, float x) {
    if (scalar == SCALAR_F32)
        ((float *)to)[i] = x;
    else
        ((uint16_t *)to)[i] = (uint16_t)to_half(x, scalar == SCALAR_BF16);
}

// Bits [shift, shift + bits) of all codes of the step's tokens, by the block. codes:
// [64 tokens][pitch].
__device__ __forceinline__ void write_plane(const Place &p, const uint8_t *codes, uint32_t pitch,
                                            uint8_t *plane, uint32_t bits, uint32_t shift) {
    const uint32_t rows = 8 / bits, mask = (1u << bits) - 1, words = plane_bytes(bits, p.dim) / 4;
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) {
        const uint32_t lane = i % p.lanes, r0 = i / p.lanes * rows * 4;
        uint32_t word = 0, ours = 0;
        for (uint32_t j = 0; j < rows * 4; j++) {
            const uint32_t token = p.is_v ? r0 + j : lane, d = p.is_v ? lane : r0 + j;
            if (token < p.first || token >= p.end) // codes of the others were never written
                continue;
            const uint32_t at = 8 * (j % 4) + bits * (j / 4);
            word |= (codes[token * pitch + d] >> shift & mask) << at;
            ours |= mask << at;
        }
        uint32_t *to = (uint32_t *)plane + i;
        if (ours == ~0u)
            *to = word;
        else if (ours)
            *to = (*to & ~ours) | word;
    }
}

// All planes of a format of so many bits.
__device__ __forceinline__ void write_planes(const Place &p, const uint8_t *codes, uint32_t pitch,
                                             uint8_t *tile, uint32_t bits) {
    const uint32_t low = low_plane_bits(bits);
    write_plane(p, codes, pitch, tile, low, 0);
    if (bits > low)
        write_plane(p, codes, pitch, tile + plane_bytes(low, p.dim), bits - low, low);
}
