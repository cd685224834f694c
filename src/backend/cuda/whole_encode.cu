// SPDX-License-Identifier: Apache-2.0
// whole_encode.cu: K and V of new tokens into pages in another basis than the plain one, of any
// head size: those that are encoded when they are full (kv_format_whole), and the exact start
// before them.
//
//     rows --less centre--> times M^-1, or H --> shadow, f16 --if the page is full--> codes
//                                            `-> page of the exact start
//
// A block is (all rows of one sequence that fall into one page, KV head, K or V): it writes the
// shadow's tile, and if that is full reads all of it back and encodes it. Bytes of codes are those
// of tile_encode of the shadow's rows. Those of the shadow are the definition's, but for float32's
// rounding of a centre or of M^-1 k.
//
//     encoded      a range of                                 by a warp
//     KV_TILE, K   a dim over 64 tokens (range.c)             at a time
//     KV_TILE, V   a token over all dims (range.c)
//     KV_ROTATED   a token over a group of dims (affine.c)
//
//     shared memory:  rows to be turned (basis.cuh), later codes [64 tokens][head_dim + 4]
#include "backend/cuda/basis.cuh"
#include "backend/cuda/plain_store.cuh"

namespace {

enum { WARPS = TURN_THREADS / 32 };

struct WholeArgs {
    StoreArgs store;
    const float *inverse; // of dev_basis
    float scale;          // of H
    bool stored;          // all rows are in their shadows
    TurnArgs turn;        // what blocks of z = 2 do, if there are any
};

// The tiles of a block. A page of the exact start has no shadow: its rows go into its own tile.
struct Tiles {
    uint8_t *tile;    // codes; NULL: of the exact start
    uint16_t *shadow; // where rows go
    kv_format format;
    bool shadow_bf16, centred, balanced;
};

// False: there is no such item, or no such page.
__device__ bool find_tiles(const step_group &g, const StoreArgs &a, Place &p, Tiles &t) {
    if (blockIdx.x >= g.counts[COUNT_STORE])
        return false;
    uint32_t layout;
    const uint8_t *page = find_rows(g, a, p, &layout);
    if (!page || g.layouts[layout].basis == BASIS_PLAIN)
        return false;
    const dev_layout l = g.layouts[layout];
    const store_item item = g.store[blockIdx.x];
    const uint8_t *shadow = l.whole ? shadow_find(g, g.views[item.seq], item.page, &layout) : page;
    const dev_layout s = g.layouts[layout];
    t.tile = l.whole ? tile_stored(page, l, a, p) : nullptr;
    t.shadow = (uint16_t *)tile_stored(shadow, s, a, p);
    t.format = p.is_v ? l.v_stored : l.k_stored;
    t.shadow_bf16 = (p.is_v ? s.v_bf16 : s.k_bf16) != 0;
    t.centred = !p.is_v && l.centred;
    t.balanced = !p.is_v && l.basis == BASIS_BALANCED;
    return true;
}

// Where value (token, dim) of a 16-bit tile is.
__device__ __forceinline__ uint32_t half_place(const Place &p, uint32_t token, uint32_t dim) {
    const uint32_t r = p.is_v ? token : dim, lane = p.is_v ? dim : token;
    return r / 4 * 4 * p.lanes + lane * 4 + r % 4;
}

// ---- rows into the shadow --------------------------------------------------------------------

__device__ __forceinline__ const float *matrix_of(const WholeArgs &a, const Place &p,
                                                  const Tiles &t) {
    return t.balanced ? basis_matrix(a.inverse, a.store.layer, a.store.kv_heads, p.head, p.dim)
                      : nullptr;
}

__device__ __forceinline__ void store_rows(const WholeArgs &a, const Place &p, const Tiles &t,
                                           float *rows) {
    const uint32_t most = turn_rows_of(p.dim);
    const float *matrix = matrix_of(a, p, t);
    for (uint32_t first = p.first; first < p.end; first += most) {
        const uint32_t n = min(most, p.end - first);
        for (uint32_t r = threadIdx.x / 32; r < most; r += WARPS)
            if (r < n)
                load_row(a.store, p, t.centred, first + r, rows + r * p.dim);
            else
                for (uint32_t d = threadIdx.x % 32; d < p.dim; d += 32)
                    rows[r * p.dim + d] = 0;
        turn_rows(rows, n, matrix, p.dim, a.scale);
        for (uint32_t i = threadIdx.x; i < n * p.dim; i += TURN_THREADS)
            t.shadow[half_place(p, first + i / p.dim, i % p.dim)] =
                (uint16_t)to_half(rows[i], t.shadow_bf16);
        __syncthreads();
    }
}

// ---- the shadow into codes -------------------------------------------------------------------

// The instruction would give NaN other bits.
__device__ __forceinline__ float round_scalar(float x, uint32_t scalar) {
    return scalar == SCALAR_F32 || isnan(x)
               ? x
               : to_float((uint16_t)to_half(x, scalar == SCALAR_BF16), scalar == SCALAR_BF16);
}

// range_find of range.c: scale and bias, rounded.
__device__ __forceinline__ float2 range_scale(float lo, float hi, float top, uint32_t scalar) {
    float step = __fdiv_rn(hi - lo, top);
    step = isnan(step) ? __uint_as_float(NAN_BITS) : step < 1e-7f ? 1e-7f : step;
    return make_float2(round_scalar(step, scalar), round_scalar(lo + 0.0f, scalar));
}

// A range of n values, by a warp; place(i): its token and dim. Leaves the codes; returns scale and
// bias, not yet rounded for KV_ROTATED.
template <class Fn>
__device__ __forceinline__ float2 encode_range(const Place &p, const Tiles &t, uint8_t *codes,
                                               uint32_t n, Fn place) {
    const uint32_t lane = threadIdx.x % 32, pitch = p.dim + 4;
    const float top = (float)((1u << t.format.bits) - 1);
    auto value = [&](uint2 at) {
        return to_float(t.shadow[half_place(p, at.x, at.y)], t.shadow_bf16);
    };
    // infinities are the neutral elements: a range of NaN alone keeps them, as in the definition
    float lo = INFINITY, hi = -INFINITY;
    for (uint32_t i = lane; i < n; i += 32) {
        const float x = value(place(i));
        lo = fminf(lo, x);
        hi = fmaxf(hi, x);
    }
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) {
        lo = fminf(lo, __shfl_xor_sync(~0u, lo, step));
        hi = fmaxf(hi, __shfl_xor_sync(~0u, hi, step));
    }
    const float2 sb = t.format.kind == KV_TILE ? range_scale(lo, hi, top, t.format.scalar)
                                               : group_scale(lo, hi, top);
    for (uint32_t i = lane; i < n; i += 32) {
        const uint2 at = place(i);
        codes[at.x * pitch + at.y] = (uint8_t)to_code(value(at), sb, top);
    }
    return sb;
}

__device__ __forceinline__ void encode(const Place &p, const Tiles &t, uint8_t *codes) {
    const kv_format f = t.format;
    const bool tile = f.kind == KV_TILE, channels = tile && !p.is_v;
    // ranges [i][j] stand at i x outer + j: dims, or [group][token]
    const uint32_t width = channels ? TILE_TOKENS
                           : tile   ? p.dim
                                    : f.group,
                   ranges = TILE_TOKENS * p.dim / width, warp = threadIdx.x / 32;
    uint8_t *scales = t.tile + plane_bytes(f.bits, p.dim),
            *biases = scales + ranges * scalar_size(f.scalar);
    for (uint32_t i = warp; i < ranges; i += WARPS) {
        const uint32_t token = i % TILE_TOKENS, first = i / TILE_TOKENS * width;
        const float2 sb = encode_range(p, t, codes, width, [&](uint32_t j) {
            return channels ? make_uint2(j, i) : make_uint2(token, first + j);
        });
        if (threadIdx.x % 32 == 0) {
            write_scalar(scales, f.scalar, i, sb.x);
            write_scalar(biases, f.scalar, i, sb.y);
        }
    }
    __syncthreads();
    Place all = p;
    all.first = 0;
    all.end = TILE_TOKENS;
    write_planes(all, codes, p.dim + 4, t.tile, f.bits);
}

// grid: [item][KV head][K, V]; z = 2: queries
__global__ void __launch_bounds__(TURN_THREADS) whole(const step_group g, const WholeArgs a) {
    extern __shared__ __align__(16) float whole_memory[];
    Place p;
    Tiles t;
    kernel_comes();
    if (blockIdx.z == 2) {
        if (blockIdx.x < turn_blocks(a.turn))
            turn_block(a.turn);
        else
            kernel_waits();
        return;
    }
    const bool found = find_tiles(g, a.store, p, t);
    if (found && t.balanced && !a.stored)
        fetch_matrix(matrix_of(a, p, t), p.dim);
    kernel_waits(); // for K and V, not for the tables
    if (!found)
        return;
    if (!a.stored)
        store_rows(a, p, t, whole_memory);
    if (t.tile && p.end == TILE_TOKENS) // the rows of other steps were written by earlier kernels
        encode(p, t, (uint8_t *)whole_memory);
}

} // namespace

// turn: NULL: no queries
static void launch(cuda_backend *b, const kv_store_op &op, bool stored, const TurnArgs *turn) {
    const auto &shape = b->limits.group[op.group];
    const dim3 grid(b->plan[op.group].blocks[COUNT_STORE], shape.kv_heads, turn ? 3 : 2);
    const WholeArgs args = {{op.centre, op.k, op.v, op.layer, shape.kv_heads, shape.head_dim},
                            op.basis.inverse,
                            hadamard_scale(shape.head_dim),
                            stored,
                            turn ? *turn : TurnArgs{}};
    const size_t bytes = turn_bytes(shape.head_dim);
    ASSERT(TILE_TOKENS * (shape.head_dim + 4) <= bytes && bytes <= 48 << 10 && grid.x > 0);
    cuda_ok(b, launch_early(b, whole, grid, TURN_THREADS, bytes, b->group[op.group], args));
}

void store_whole(cuda_backend *b, const kv_store_op &op, const TurnArgs *turn) {
    launch(b, op, false, turn);
}

void store_full(cuda_backend *b, const kv_store_op &op) {
    launch(b, op, true, nullptr);
}
