// SPDX-License-Identifier: Apache-2.0
// plain_encode.cu: K and V of new tokens into pages of any format and head size: tile_encode_row of
// quant/tile.c, byte for byte. encode.cu does the common formats faster.
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
#include "backend/cuda/plain_store.cuh"

namespace {

enum { WARPS = 4, THREADS = WARPS * 32 };

// What a block stores, and where.
struct Target {
    Place p;
    uint8_t *tile;
    kv_format format;
    bool centred;
};

// False: there is no such item, or the side is encode.cu's or whole_encode.cu's.
__device__ bool find_target(const step_group &g, const StoreArgs &a, Target &t) {
    if (blockIdx.x >= g.counts[COUNT_STORE])
        return false;
    uint32_t layout;
    const uint8_t *page = find_rows(g, a, t.p, &layout);
    if (!page)
        return false;
    const dev_layout l = g.layouts[layout];
    if (l.basis != BASIS_PLAIN || (t.p.is_v ? l.v : l.k) != TILE_FORMATS)
        return false;
    t.tile = tile_stored(page, l, a, t.p);
    t.format = t.p.is_v ? l.v_stored : l.k_stored;
    t.centred = !t.p.is_v && l.centred;
    return true;
}

// ---- one token, by a warp --------------------------------------------------------------------

__device__ void store_exact(const Target &t, uint32_t token, const float *row) {
    const Place &p = t.p;
    for (uint32_t i = threadIdx.x % 32; i < p.dim; i += 32) {
        const uint32_t r = p.is_v ? token : i, lane = p.is_v ? i : token;
        const size_t at = (size_t)(r / 4) * 4 * p.lanes + lane * 4 + r % 4;
        if (t.format.scalar == SCALAR_F32)
            ((float *)t.tile)[at] = row[i];
        else
            ((uint16_t *)t.tile)[at] = (uint16_t)to_half(row[i], t.format.scalar == SCALAR_BF16);
    }
}

// The token's scales and biases, and its codes to codes[dim].
__device__ void quantize_row(const Target &t, uint32_t token, const float *row, uint8_t *codes) {
    const Place &p = t.p;
    const kv_format f = t.format;
    const uint32_t lane = threadIdx.x % 32, groups = p.dim / f.group;
    uint8_t *scales = t.tile + plane_bytes(f.bits, p.dim),
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

__global__ void __launch_bounds__(THREADS) store(const step_group g, const StoreArgs a) {
    extern __shared__ __align__(16) uint8_t memory[];
    Target t;
    kernel_comes();
    const bool found = find_target(g, a, t);
    kernel_waits(); // for K and V, not for the tables
    if (!found)
        return;
    const Place &p = t.p;
    const uint32_t warp = threadIdx.x / 32, pitch = a.dim + 4; // spreads tokens over banks
    float *row = (float *)memory + warp * a.dim;
    uint8_t *codes = memory + WARPS * a.dim * sizeof(float);
    for (uint32_t token = p.first + warp; token < p.end; token += WARPS) {
        load_row(a, p, t.centred, token, row);
        if (t.format.bits >= 16)
            store_exact(t, token, row);
        else
            quantize_row(t, token, row, codes + token * pitch);
    }
    if (t.format.bits >= 16) // the same for the whole block
        return;
    __syncthreads();
    write_planes(p, codes, pitch, t.tile, t.format.bits);
}

} // namespace

void store_plain(cuda_backend *b, const kv_store_op &op) {
    const auto &shape = b->limits.group[op.group];
    const StoreArgs args = {op.centre, op.k, op.v, op.layer, shape.kv_heads, shape.head_dim};
    const dim3 grid(b->plan[op.group].blocks[COUNT_STORE], shape.kv_heads, 2);
    const size_t bytes =
        WARPS * shape.head_dim * sizeof(float) + TILE_TOKENS * (shape.head_dim + 4);
    ASSERT(bytes <= 48 << 10 && grid.x > 0);
    cuda_ok(b, launch_early(b, store, grid, THREADS, bytes, b->group[op.group], args));
}
