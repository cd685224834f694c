// SPDX-License-Identifier: Apache-2.0
// plain_encode.cu: K and V of new tokens into pages of any format and head size, and centred keys:
// tile_encode_row of quant/tile.c, byte for byte. encode.cu does the common formats faster.
//
// A block is (all rows of one sequence that fall into one page, KV head, K or V), so that no two
// blocks write one tile. A warp takes one token at a time:
//
//     1  its row -> shared memory; of a centred page less rope(c, t)
//     2  exact: the row's elements -> tile
//        affine: lo and hi of each group by shuffle, scale and bias -> tile; codes -> shared memory
//     3  affine, the whole block: words of each plane out of the codes of all tokens -> tile
//
//     shared memory:  | rows [warp][head_dim] f32 | codes [64 tokens][head_dim + 4] u8 |
//
// Bits of tokens that are not of this step stay: only words that such a token shares are read.
#include "backend/cuda/affine.cuh"
#include "backend/cuda/plain.cuh"

namespace {

enum { WARPS = 4, THREADS = WARPS * 32 };

struct StoreArgs {
    dev_centre centre;
    const float *k, *v; // [row][kv head][dim]
    uint32_t layer, kv_heads, dim;
};

struct Place {
    const float *x;            // row of token `first`, this head
    uint32_t stride;           // floats from a row to the next
    uint32_t first, end;       // tokens of the tile that are of this step
    uint32_t position;         // of the tile's first token
    uint32_t head, dim, lanes; // lanes: of the tile
    uint8_t *tile;
    kv_format format;
    bool is_v, centred;
};

// False: there is no such item, or the side is encode.cu's.
__device__ bool find_place(const step_group &g, const StoreArgs &a, Place &p) {
    if (blockIdx.x >= g.counts[COUNT_STORE])
        return false;
    const store_item item = g.store[blockIdx.x];
    const batch_seq seq = g.seqs[item.seq];
    const dev_view view = g.views[item.seq];
    uint32_t layout = 0;
    const uint8_t *page = page_find(g, view, item.page, &layout);
    if (!page)
        return false;
    const dev_layout l = g.layouts[layout];
    p.is_v = blockIdx.z != 0;
    if ((p.is_v ? l.v : l.k) != TILE_FORMATS)
        return false;
    const uint32_t start = item.page * TILE_TOKENS,
                   last = min(start + TILE_TOKENS, seq.pos + seq.rows), first = max(start, seq.pos);
    p.head = blockIdx.y;
    p.dim = a.dim;
    p.lanes = p.is_v ? a.dim : (uint32_t)TILE_TOKENS;
    p.first = first - start;
    p.end = last - start;
    p.position = start;
    p.stride = a.kv_heads * a.dim;
    p.x = (p.is_v ? a.v : a.k) +
          ((size_t)(seq.row + (first - seq.pos)) * a.kv_heads + p.head) * a.dim;
    p.tile = const_cast<uint8_t *>(tile_of(page, l, a.layer, p.head, p.is_v ? TILE_V : TILE_K));
    p.format = p.is_v ? l.v_stored : l.k_stored;
    p.centred = !p.is_v && l.centred;
    return true;
}

// ---- one token, by a warp --------------------------------------------------------------------

// The token's row into shared memory; as key_centre_add with sign -1, in double.
__device__ void load_row(const StoreArgs &a, const Place &p, uint32_t token, float *row) {
    const uint32_t lane = threadIdx.x % 32;
    const float *x = p.x + (size_t)(token - p.first) * p.stride;
    __syncwarp(); // the last token's row was read
    for (uint32_t i = lane; i < p.dim; i += 32)
        row[i] = x[i];
    __syncwarp();
    if (!p.centred)
        return;
    const CentrePairs pairs = pairs_of(a.centre, a.layer, a.kv_heads, p.head);
    for (uint32_t i = lane; i < pairs.count; i += 32) {
        const centre_pair c = pairs.pairs[i];
        double sine, cosine;
        sincos((p.position + token) * a.centre.inv_freq[c.pair], &sine, &cosine);
        row[c.pair] -= (float)((double)c.c1 * cosine - (double)c.c2 * sine);
        row[c.pair + a.centre.n] -= (float)((double)c.c2 * cosine + (double)c.c1 * sine);
    }
    __syncwarp();
}

__device__ void store_exact(const Place &p, uint32_t token, const float *row) {
    for (uint32_t i = threadIdx.x % 32; i < p.dim; i += 32) {
        const uint32_t r = p.is_v ? token : i, lane = p.is_v ? i : token;
        const size_t at = (size_t)(r / 4) * 4 * p.lanes + lane * 4 + r % 4;
        if (p.format.scalar == SCALAR_F32)
            ((float *)p.tile)[at] = row[i];
        else
            ((uint16_t *)p.tile)[at] = (uint16_t)to_half(row[i], p.format.scalar == SCALAR_BF16);
    }
}

__device__ __forceinline__ void write_scalar(uint8_t *to, uint32_t scalar, uint32_t i, float x) {
    if (scalar == SCALAR_F32)
        ((float *)to)[i] = x;
    else
        ((uint16_t *)to)[i] = (uint16_t)to_half(x, scalar == SCALAR_BF16);
}

// The token's scales and biases, and its codes to codes[dim].
__device__ void quantize_row(const Place &p, uint32_t token, const float *row, uint8_t *codes) {
    const kv_format f = p.format;
    const uint32_t lane = threadIdx.x % 32, groups = p.dim / f.group;
    uint8_t *scales = p.tile + plane_bytes(f.bits, p.dim),
            *biases = scales + groups * TILE_TOKENS * scalar_size(f.scalar);
    const float top = (float)((1u << f.bits) - 1);
    // affine_input of quant.h
    auto input = [&](float x) { return f.scalar == SCALAR_F16 ? round_to_half(x) : x; };
    for (uint32_t g = 0; g < groups; g++) {
        const float *x = row + g * f.group;
        // infinities are the neutral elements: a group of NaN alone keeps them, as in affine.c
        float lo = INFINITY, hi = -INFINITY;
        for (uint32_t i = lane; i < f.group; i += 32) {
            lo = fminf(lo, input(x[i]));
            hi = fmaxf(hi, input(x[i]));
        }
#pragma unroll
        for (uint32_t step = 1; step < 32; step *= 2) {
            lo = fminf(lo, __shfl_xor_sync(~0u, lo, step));
            hi = fmaxf(hi, __shfl_xor_sync(~0u, hi, step));
        }
        const float2 sb = group_scale(lo, hi, top);
        for (uint32_t i = lane; i < f.group; i += 32)
            codes[g * f.group + i] = (uint8_t)to_code(input(x[i]), sb, top);
        if (lane == 0) {
            write_scalar(scales, f.scalar, g * TILE_TOKENS + token, sb.x);
            write_scalar(biases, f.scalar, g * TILE_TOKENS + token, sb.y);
        }
    }
}

// ---- planes, by the block --------------------------------------------------------------------

// Bits [shift, shift + bits) of all codes of the step's tokens.
__device__ void write_plane(const Place &p, const uint8_t *codes, uint32_t pitch, uint8_t *plane,
                            uint32_t bits, uint32_t shift) {
    const uint32_t rows = 8 / bits, mask = (1u << bits) - 1, words = plane_bytes(bits, p.dim) / 4;
    for (uint32_t i = threadIdx.x; i < words; i += THREADS) {
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

__global__ void __launch_bounds__(THREADS) store(const step_group g, const StoreArgs a) {
    extern __shared__ __align__(16) uint8_t memory[];
    Place p;
    kernel_comes();
    const bool found = find_place(g, a, p);
    kernel_waits(); // for K and V, not for the tables
    if (!found)
        return;
    const uint32_t warp = threadIdx.x / 32, pitch = a.dim + 4; // spreads tokens over banks
    float *row = (float *)memory + warp * a.dim;
    uint8_t *codes = memory + WARPS * a.dim * sizeof(float);
    for (uint32_t token = p.first + warp; token < p.end; token += WARPS) {
        load_row(a, p, token, row);
        if (p.format.bits >= 16)
            store_exact(p, token, row);
        else
            quantize_row(p, token, row, codes + token * pitch);
    }
    if (p.format.bits >= 16) // the same for the whole block
        return;
    __syncthreads();
    const uint32_t bits = p.format.bits, low = low_plane_bits(bits);
    write_plane(p, codes, pitch, p.tile, low, 0);
    if (bits > low)
        write_plane(p, codes, pitch, p.tile + plane_bytes(low, p.dim), bits - low, low);
}

} // namespace

void store_plain(cuda_backend *b, uint32_t group, uint32_t layer, const dev_centre &centre,
                 const float *k, const float *v) {
    const auto &shape = b->limits.group[group];
    const StoreArgs args = {centre, k, v, layer, shape.kv_heads, shape.head_dim};
    const dim3 grid(b->plan[group].blocks[COUNT_STORE], shape.kv_heads, 2);
    const size_t bytes =
        WARPS * shape.head_dim * sizeof(float) + TILE_TOKENS * (shape.head_dim + 4);
    ASSERT(bytes <= 48 << 10 && grid.x > 0);
    cuda_ok(b, launch_early(b, store, grid, THREADS, bytes, b->group[group], args));
}
