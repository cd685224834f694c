// SPDX-License-Identifier: Apache-2.0
// encode.cu: K and V of new tokens into their pages: tile_encode_row of quant/tile.c, byte for
// byte, of centred keys but for float32's rounding of the centre. Sides of pages in other formats
// than tile_format has are stored by plain_encode.cu, pages in another basis than the plain one by
// whole_encode.cu.
//
// A block is (all rows of one sequence that fall into one page, KV head, K or V), so that no two
// blocks write one tile. It has 2 * head_dim threads: eight rows at a time, four dims a thread,
// eight times:
//
//     1  float32 rows -> registers, rounded to the scalar type; lo and hi of each group, by shuffle
//     2  a thread for each (group, token): scale and bias, stored as T, kept as float32
//     3  codes = (x - bias) / scale -> shared memory, [token][dim] in bytes (16-bit: halves)
//     4  whole words of the tile out of shared memory
//
//     word of a plane of w bits, P = 8 / w           (quant.h draws the order)
//         K   [dim / 4P][token]    4P dims of one token: its own bytes, nothing is read
//         V   [token / 4P][dim]    4P tokens of one dim: byte e holds tokens 4P R + e, + 4, ...
//
//     V: a thread makes the words of four dims. It combines P rows, shifted, and transposes
//     the 4 x 4 bytes that are left, from one token per row to one dim per row:
//
//         t0  | d0 d1 d2 d3 |            d0  | t0 t1 t2 t3 |   <- word of dim d0
//         t1  | d0 d1 d2 d3 |    ->      d1  | t0 t1 t2 t3 |
//         t2  | d0 d1 d2 d3 |            d2  | t0 t1 t2 t3 |
//         t3  | d0 d1 d2 d3 |            d3  | t0 t1 t2 t3 |
//
// One token alone, as in most steps, needs neither shared memory nor other warps: a thread has four
// of its dims in registers from the beginning to the end, and what shares its words was loaded
// before the wait for K and V. If no sequence of a step has more, rope is done on the way
// where rope_store_fits, and rows of pages in the basis of H are turned. Keys lose their centre on
// the way, too.
//
// Invariants:
//   * bits of tokens that are not of this step stay: only words that such a token shares are read
//   * rows of k and v begin at multiples of 16 bytes (head_dim is one of 64, 128, 256), tiles at
//     multiples of 32
#include "backend/cuda/affine.cuh"
#include "backend/cuda/arithmetic.cuh"
#include "backend/cuda/basis.cuh"
#include "backend/cuda/centre.cuh"
#include "backend/cuda/rope.cuh"

namespace {

enum { CHUNK = 8, CHUNKS = TILE_TOKENS / CHUNK }; // rows at a time

// ---- where the rows are and where they go ----------------------------------------------------

struct store_place {
    const float *x;      // row of token `first`, this head
    uint32_t stride;     // floats from a row to the next
    uint32_t first, end; // tokens of the tile that are of this step
    uint8_t *tile;
    tile_format format;
    bool bf16;
    bool turned;       // rows are to be multiplied by H
    CentrePairs pairs; // of the centre that rows are to lose; none, if they are not
    dev_centre centre;
    uint32_t number; // of the tile
};
// Where a step's rows are: K and V, and the centre of K.
struct store_rows {
    const float *k, *v; // [row][KV head][dim]
    dev_centre centre;
    uint32_t layer;
};

// False: there is no such item, or no such page, or whole_encode.cu stores into it. `turned`: also
// places of pages in another basis than the plain one; of a page that is encoded when it is full,
// that in its shadow.
template <int D>
__device__ bool find_place(const step_group &g, const store_rows &rows, bool turned,
                           store_place &p) {
    if (blockIdx.x >= g.counts[COUNT_STORE])
        return false;
    const uint32_t head = blockIdx.y, kv_heads = gridDim.y;
    const bool is_v = blockIdx.z != 0;
    store_item item = g.store[blockIdx.x];
    batch_seq seq = g.seqs[item.seq];
    dev_view view = g.views[item.seq];
    uint32_t start = item.page * TILE_TOKENS;
    uint32_t last = min(start + TILE_TOKENS, seq.pos + seq.rows), first = max(start, seq.pos);
    p.first = first - start;
    p.end = last - start;
    p.stride = kv_heads * D;
    p.number = item.page;
    p.x = (is_v ? rows.v : rows.k) + ((size_t)(seq.row + (first - seq.pos)) * kv_heads + head) * D;
    uint32_t layout = 0;
    const uint8_t *page = page_find(g, view, item.page, &layout);
    if (!page)
        return false;
    dev_layout l = g.layouts[layout];
    p.turned = l.basis != BASIS_PLAIN;
    if (p.turned && !turned)
        return false;
    p.centre = rows.centre;
    p.pairs =
        !is_v && l.centred ? pairs_of(rows.centre, rows.layer, kv_heads, head) : CentrePairs{};
    if (l.whole) {
        page = shadow_find(g, view, item.page, &layout);
        l = g.layouts[layout];
    }
    p.tile = const_cast<uint8_t *>(tile_of(page, l, rows.layer, head, is_v ? TILE_V : TILE_K));
    p.format = (tile_format)(is_v ? l.v : l.k);
    p.bf16 = (is_v ? l.v_bf16 : l.k_bf16) != 0;
    return true;
}

// This thread's four dims of a token that is of this step.
template <int D>
__device__ __forceinline__ float4 row_four(const store_place &p, uint32_t token, uint32_t four) {
    // no __ldg: kernel_waits
    return *((const float4 *)(p.x + (size_t)(token - p.first) * p.stride) + four);
}
// What they lose.
__device__ __forceinline__ float4 centre_four(const store_place &p, uint32_t token, uint32_t four) {
    float less[4] = {};
    for (uint32_t i = 0; i < p.pairs.count; i++) {
        const centre_pair pair = p.pairs.pairs[i];
        const uint32_t dims[2] = {pair.pair, pair.pair + p.centre.n};
        if (dims[0] / 4 != four && dims[1] / 4 != four)
            continue;
        const float2 two = centre_of_key(p.centre, pair, p.number, token);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            less[j] = dims[0] == four * 4 + j ? two.x : dims[1] == four * 4 + j ? two.y : less[j];
    }
    return make_float4(less[0], less[1], less[2], less[3]);
}
// Of pages without a centre x itself: a NaN would lose its payload.
__device__ __forceinline__ float4 less_of(const store_place &p, const float4 &x,
                                          const float4 &less) {
    return p.pairs.count == 0 ? x
                              : make_float4(x.x - less.x, x.y - less.y, x.z - less.z, x.w - less.w);
}
// Both, of any token; zeros if it is not of this step.
template <int D>
__device__ __forceinline__ float4 load_four(const store_place &p, uint32_t token, uint32_t four) {
    if (token < p.first || token >= p.end)
        return make_float4(0, 0, 0, 0);
    return less_of(p, row_four<D>(p, token, four), centre_four(p, token, four));
}

// ---- words of a tile -------------------------------------------------------------------------

// Rows of 4 bytes to columns.
__device__ __forceinline__ uint4 turn_bytes(const uint32_t (&t)[4]) {
    uint32_t a = __byte_perm(t[0], t[1], 0x5140), b = __byte_perm(t[2], t[3], 0x5140);
    uint32_t c = __byte_perm(t[0], t[1], 0x7362), d = __byte_perm(t[2], t[3], 0x7362);
    return make_uint4(__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632),
                      __byte_perm(c, d, 0x5410), __byte_perm(c, d, 0x7632));
}

__device__ __forceinline__ uint4 blend(uint4 now, uint4 old, uint32_t x, uint32_t y, uint32_t z,
                                       uint32_t w) {
    return make_uint4((now.x & x) | (old.x & ~x), (now.y & y) | (old.y & ~y),
                      (now.z & z) | (old.z & ~z), (now.w & w) | (old.w & ~w));
}

// Bits of a V word whose first token is t0 that belong to tokens [first, end).
template <int BITS> __device__ uint32_t token_mask(uint32_t t0, uint32_t first, uint32_t end) {
    constexpr uint32_t TOKENS = 32 / BITS, ONE = (1u << BITS) - 1;
    uint32_t mask = 0;
#pragma unroll
    for (uint32_t j = 0; j < TOKENS; j++)
        if (t0 + j >= first && t0 + j < end)
            mask |= ONE << (8 * (j % 4) + BITS * (j / 4));
    return mask;
}

// codes: [64 tokens][D / 4 + 1] words of four codes; the odd stride spreads tokens over banks.
template <int D, int BITS>
__device__ void write_k_codes(const store_place &p, const uint32_t *codes) {
    constexpr uint32_t P = 8 / BITS, STRIDE = D / 4 + 1, WORDS = D / 4 / P * TILE_TOKENS;
    uint32_t *tile = (uint32_t *)p.tile;
    for (uint32_t i = threadIdx.x; i < WORDS; i += 2 * D) {
        uint32_t row = i / TILE_TOKENS, token = i % TILE_TOKENS, word = 0;
        if (token < p.first || token >= p.end)
            continue;
#pragma unroll
        for (uint32_t part = 0; part < P; part++)
            word |= codes[token * STRIDE + row * P + part] << (BITS * part);
        tile[i] = word;
    }
}

template <int D, int BITS>
__device__ void write_v_codes(const store_place &p, const uint32_t *codes) {
    constexpr uint32_t P = 8 / BITS, STRIDE = D / 4 + 1, FOURS = D / 4, TOKENS = 4 * P;
    uint4 *tile = (uint4 *)p.tile;
    for (uint32_t i = threadIdx.x; i < TILE_TOKENS / TOKENS * FOURS; i += 2 * D) {
        uint32_t t0 = i / FOURS * TOKENS, four = i % FOURS;
        if (t0 >= p.end || t0 + TOKENS <= p.first)
            continue;
        uint32_t mask = token_mask<BITS>(t0, p.first, p.end), t[4] = {0, 0, 0, 0};
        uint4 old = make_uint4(0, 0, 0, 0);
        if (mask != ~0u)
            old = tile[i];
#pragma unroll
        for (uint32_t j = 0; j < TOKENS; j++)
            if (t0 + j >= p.first && t0 + j < p.end) // codes of the others were never written
                t[j % 4] |= codes[(t0 + j) * STRIDE + four] << (BITS * (j / 4));
        tile[i] = blend(turn_bytes(t), old, mask, mask, mask, mask);
    }
}

// ---- exact formats ---------------------------------------------------------------------------

// halves: [64 tokens][D / 4 + 1] pairs of words of four halves.
template <int D> __device__ void write_k_halves(const store_place &p, const uint2 *halves) {
    constexpr uint32_t STRIDE = D / 4 + 1;
    uint2 *tile = (uint2 *)p.tile;
    for (uint32_t i = threadIdx.x; i < D / 4 * TILE_TOKENS; i += 2 * D) {
        uint32_t row = i / TILE_TOKENS, token = i % TILE_TOKENS;
        if (token >= p.first && token < p.end)
            tile[i] = halves[token * STRIDE + row];
    }
}

// Bits of a word of two halves, tokens t0 and t0 + 1, that belong to tokens [first, end).
__device__ __forceinline__ uint32_t halves_mask(uint32_t t0, uint32_t first, uint32_t end) {
    return (t0 >= first && t0 < end ? 0xffffu : 0) |
           (t0 + 1 >= first && t0 + 1 < end ? 0xffff0000u : 0);
}

// Four tokens x four dims a thread: two 16-byte words of two dims each, a dim's tokens side by
// side.
template <int D> __device__ void write_v_halves(const store_place &p, const uint2 *halves) {
    constexpr uint32_t STRIDE = D / 4 + 1, FOURS = D / 4;
    uint4 *tile = (uint4 *)p.tile;
    for (uint32_t i = threadIdx.x; i < TILE_TOKENS / 4 * FOURS; i += 2 * D) {
        uint32_t t0 = i / FOURS * 4, four = i % FOURS;
        if (t0 >= p.end || t0 + 4 <= p.first)
            continue;
        // bits of the words of tokens t0, t0 + 1 and t0 + 2, t0 + 3
        uint32_t m0 = halves_mask(t0, p.first, p.end), m1 = halves_mask(t0 + 2, p.first, p.end);
        uint4 old0 = make_uint4(0, 0, 0, 0), old1 = old0;
        if ((m0 & m1) != ~0u) {
            old0 = tile[2 * i];
            old1 = tile[2 * i + 1];
        }
        uint2 a = halves[t0 * STRIDE + four], b = halves[(t0 + 1) * STRIDE + four];
        uint2 c = halves[(t0 + 2) * STRIDE + four], d = halves[(t0 + 3) * STRIDE + four];
        uint4 x = make_uint4(__byte_perm(a.x, b.x, 0x5410), __byte_perm(c.x, d.x, 0x5410),
                             __byte_perm(a.x, b.x, 0x7632), __byte_perm(c.x, d.x, 0x7632));
        uint4 y = make_uint4(__byte_perm(a.y, b.y, 0x5410), __byte_perm(c.y, d.y, 0x5410),
                             __byte_perm(a.y, b.y, 0x7632), __byte_perm(c.y, d.y, 0x7632));
        tile[2 * i] = blend(x, old0, m0, m1, m0, m1);
        tile[2 * i + 1] = blend(y, old1, m0, m1, m0, m1);
    }
}

template <int D> __device__ void store_exact(const store_place &p, bool bf16, uint2 *halves) {
    const uint32_t four = threadIdx.x % (D / 4), in_chunk = threadIdx.x / (D / 4);
    float4 x[CHUNKS];
#pragma unroll
    for (uint32_t i = 0; i < CHUNKS; i++)
        x[i] = load_four<D>(p, i * CHUNK + in_chunk, four);
#pragma unroll
    for (uint32_t i = 0; i < CHUNKS; i++) {
        uint32_t lo = to_half(x[i].x, bf16) | to_half(x[i].y, bf16) << 16;
        uint32_t hi = to_half(x[i].z, bf16) | to_half(x[i].w, bf16) << 16;
        halves[(i * CHUNK + in_chunk) * (D / 4 + 1) + four] = make_uint2(lo, hi);
    }
    __syncthreads();
    if (blockIdx.z == 0)
        write_k_halves<D>(p, halves);
    else
        write_v_halves<D>(p, halves);
}

// ---- affine formats --------------------------------------------------------------------------

// The smallest and the largest value of a lane's group.
__device__ __forceinline__ float2 range_of(float4 x, uint32_t group) {
    // infinities are the neutral elements: a group of NaN alone keeps them, as in affine.c
    float lo = fminf(INFINITY, fminf(fminf(x.x, x.y), fminf(x.z, x.w)));
    float hi = fmaxf(-INFINITY, fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w)));
#pragma unroll
    for (uint32_t step = 1; step < 16; step *= 2) {
        const float other_lo = __shfl_xor_sync(~0u, lo, step);
        const float other_hi = __shfl_xor_sync(~0u, hi, step);
        if (4 * step < group) {
            lo = fminf(lo, other_lo);
            hi = fmaxf(hi, other_hi);
        }
    }
    return make_float2(lo, hi);
}
__device__ __forceinline__ float4 affine_input(float4 x, bool bf16) { // of quant.h
    return bf16 ? x
                : make_float4(round_to_half(x.x), round_to_half(x.y), round_to_half(x.z),
                              round_to_half(x.w));
}
// Four codes, a byte each.
__device__ __forceinline__ uint32_t codes_of(float4 x, float2 sb, float top) {
    const uint32_t a = __byte_perm(to_code(x.x, sb, top), to_code(x.y, sb, top), 0x0040);
    const uint32_t b = __byte_perm(to_code(x.z, sb, top), to_code(x.w, sb, top), 0x0040);
    return __byte_perm(a, b, 0x5410);
}

// ranges: [D / group][64 tokens], lo and hi of a group, then its scale and bias.
template <int D>
__device__ void encode_rows(const store_place &p, int bits, uint32_t group, uint32_t *codes,
                            float2 *ranges) {
    const uint32_t four = threadIdx.x % (D / 4), in_chunk = threadIdx.x / (D / 4);
    const uint32_t g = four * 4 / group;
    const bool leads = four * 4 % group == 0;
    const float top = (float)((1u << bits) - 1);
    float4 x[CHUNKS];
#pragma unroll
    for (uint32_t i = 0; i < CHUNKS; i++)
        x[i] = load_four<D>(p, i * CHUNK + in_chunk, four);
#pragma unroll
    for (uint32_t i = 0; i < CHUNKS; i++) {
        if ((i + 1) * CHUNK <= p.first || i * CHUNK >= p.end) // no row of these: the whole block
            continue;
        x[i] = affine_input(x[i], p.bf16);
        const float2 range = range_of(x[i], group);
        if (leads)
            ranges[g * TILE_TOKENS + i * CHUNK + in_chunk] = range;
    }
    __syncthreads();
    const uint32_t token = threadIdx.x % TILE_TOKENS, groups = D / group;
    if (threadIdx.x < groups * TILE_TOKENS && token >= p.first && token < p.end) {
        float2 range = ranges[threadIdx.x], sb = group_scale(range.x, range.y, top);
        uint16_t *scales = (uint16_t *)(p.tile + TILE_TOKENS * D * bits / 8);
        scales[threadIdx.x] = (uint16_t)to_half(sb.x, p.bf16);
        scales[groups * TILE_TOKENS + threadIdx.x] = (uint16_t)to_half(sb.y, p.bf16);
        ranges[threadIdx.x] = sb;
    }
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < CHUNKS; i++) {
        uint32_t t = i * CHUNK + in_chunk;
        if (t < p.first || t >= p.end)
            continue;
        float2 sb = ranges[g * TILE_TOKENS + t];
        codes[t * (D / 4 + 1) + four] = codes_of(x[i], sb, top);
    }
    __syncthreads();
}

template <int D>
__device__ void store_affine(const store_place &p, int bits, uint32_t group, uint32_t *codes,
                             float2 *ranges) {
    encode_rows<D>(p, bits, group, codes, ranges);
    if (blockIdx.z == 0) {
        if (bits == 8)
            write_k_codes<D, 8>(p, codes);
        else if (bits == 4)
            write_k_codes<D, 4>(p, codes);
        else
            write_k_codes<D, 2>(p, codes);
    } else {
        if (bits == 8)
            write_v_codes<D, 8>(p, codes);
        else if (bits == 4)
            write_v_codes<D, 4>(p, codes);
        else
            write_v_codes<D, 2>(p, codes);
    }
}

// ---- one token -------------------------------------------------------------------------------

// By D / 4 threads, or a warp if these are fewer: `four` of a thread beyond them is the last one,
// and it writes nothing. load(): the thread's four dims, after the wait for what makes them.
template <int D> constexpr uint32_t LONE_THREADS = D / 4 < 32 ? 32 : D / 4;
template <int D> __device__ __forceinline__ uint32_t lone_four() {
    return min(threadIdx.x, D / 4 - 1u);
}
template <int D, class Load> struct lone_token {
    const store_place &p;
    const Load &load;
    uint32_t token, four;
    bool mine;

    __device__ __forceinline__ lone_token(const store_place &place, const Load &load_row)
        : p(place), load(load_row), token(place.first), four(lone_four<D>()),
          mine(threadIdx.x < D / 4) {}

    template <int BITS> __device__ __forceinline__ void store_affine(uint32_t group) const {
        constexpr uint32_t P = 8 / BITS, TOKENS = 4 * P;
        constexpr float TOP = (float)((1u << BITS) - 1);
        const bool is_v = blockIdx.z != 0;
        uint4 *words = (uint4 *)p.tile + token / TOKENS * (D / 4) + four;
        const uint4 old = is_v ? *words : make_uint4(0, 0, 0, 0);
        kernel_waits();
        const float4 x = affine_input(load(), p.bf16);
        const float2 range = range_of(x, group), sb = group_scale(range.x, range.y, TOP);
        const uint32_t codes = codes_of(x, sb, TOP);
        if (mine && four * 4 % group == 0) {
            uint16_t *scales = (uint16_t *)(p.tile + TILE_TOKENS * D * BITS / 8) +
                               four * 4 / group * TILE_TOKENS + token;
            scales[0] = (uint16_t)to_half(sb.x, p.bf16);
            scales[D / group * TILE_TOKENS] = (uint16_t)to_half(sb.y, p.bf16);
        }
        if (is_v) {
            const uint32_t j = token % TOKENS, mask = token_mask<BITS>(0, j, j + 1);
            const uint32_t shifted = codes << (BITS * (j / 4));
            const uint32_t t[4] = {j % 4 == 0 ? shifted : 0, j % 4 == 1 ? shifted : 0,
                                   j % 4 == 2 ? shifted : 0, j % 4 == 3 ? shifted : 0};
            if (mine)
                *words = blend(turn_bytes(t), old, mask, mask, mask, mask);
            return;
        }
        uint32_t word = codes;
#pragma unroll
        for (uint32_t part = 1; part < P; part++)
            word |= __shfl_down_sync(~0u, codes, part) << (BITS * part);
        if (mine && four % P == 0)
            ((uint32_t *)p.tile)[four / P * TILE_TOKENS + token] = word;
    }

    __device__ __forceinline__ void store_exact(bool bf16) const {
        const bool is_v = blockIdx.z != 0;
        const uint32_t in_word = token % 2;
        uint32_t *words = (uint32_t *)p.tile + (token / 4 * (D / 4) + four) * 8 + token % 4 / 2;
        uint32_t old[4] = {};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            if (is_v)
                old[i] = words[2 * i];
        kernel_waits();
        const float4 x = load();
        const uint32_t halves[4] = {to_half(x.x, bf16), to_half(x.y, bf16), to_half(x.z, bf16),
                                    to_half(x.w, bf16)};
        if (!mine)
            return;
        if (!is_v) {
            ((uint2 *)p.tile)[four * TILE_TOKENS + token] =
                make_uint2(halves[0] | halves[1] << 16, halves[2] | halves[3] << 16);
            return;
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            words[2 * i] =
                in_word ? (old[i] & 0xffffu) | halves[i] << 16 : (old[i] & 0xffff0000u) | halves[i];
    }

    // Waits for the kernel before.
    __device__ __forceinline__ void store() const {
        switch (p.format) {
        case F16:
        case BF16:
            return store_exact(p.format == BF16);
        case Q8G64:
        case Q8G32:
            return store_affine<8>(p.format == Q8G64 ? 64 : 32);
        case Q4G64:
        case Q4G32:
            return store_affine<4>(p.format == Q4G64 ? 64 : 32);
        case Q2G64:
        case Q2G32:
            return store_affine<2>(p.format == Q2G64 ? 64 : 32);
        default:
            return kernel_waits();
        }
    }
};

// Every branch on the place is the same for the whole block.
template <int D>
__global__ void __launch_bounds__(2 * D) store_kernel(const step_group g, const store_rows rows) {
    // codes are half as large as halves, and ranges are only beside codes
    __shared__ __align__(16) uint2 shared[TILE_TOKENS * (D / 4 + 1)];
    constexpr uint32_t CODES = TILE_TOKENS * (D / 4 + 1) / 2;
    static_assert(CODES + TILE_TOKENS * (D / 32) <= TILE_TOKENS * (D / 4 + 1), "ranges fit");
    store_place p;
    kernel_comes();
    const bool found = find_place<D>(g, rows, false, p);
    if (found && p.end - p.first == 1) {
        const uint32_t four = lone_four<D>();
        const float4 less = centre_four(p, p.first, four);
        const auto load = [&] { return less_of(p, row_four<D>(p, p.first, four), less); };
        const lone_token<D, decltype(load)> one(p, load);
        if (threadIdx.x < LONE_THREADS<D>)
            one.store();
        else
            kernel_waits();
        return;
    }
    kernel_waits(); // for K and V, not for the tables
    if (!found)
        return;
    uint32_t *codes = (uint32_t *)shared;
    float2 *ranges = (float2 *)(shared + CODES);
    switch (p.format) {
    case F16:
        store_exact<D>(p, false, shared);
        break;
    case BF16:
        store_exact<D>(p, true, shared);
        break;
    case Q8G64:
    case Q8G32:
        store_affine<D>(p, 8, p.format == Q8G64 ? 64 : 32, codes, ranges);
        break;
    case Q4G64:
    case Q4G32:
        store_affine<D>(p, 4, p.format == Q4G64 ? 64 : 32, codes, ranges);
        break;
    case Q2G64:
    case Q2G32:
        store_affine<D>(p, 2, p.format == Q2G64 ? 64 : 32, codes, ranges);
        break;
    default: // TILE_FORMATS: plain_encode.cu stores it
        break;
    }
}

// ---- rope and store --------------------------------------------------------------------------

// This thread's four dims of a head, turned by rope. The whole warp calls this; the result is
// written back, too. If pairs are adjacent a thread turns its two pairs and gets its results from
// those that have them, else a value of each of four pairs, whose other values the thread in the
// other half of the head has.
template <int D>
__device__ __forceinline__ float4 turn_four(const rope_op &r, float *head, uint32_t row) {
    constexpr uint32_t HALF = D / 8;
    const uint32_t four = lone_four<D>(), in_half = four % HALF;
    const bool low = four < HALF;
    const float4 x = ((const float4 *)head)[four];
    float4 y;
    if (r.adjacent) { // the first values of all pairs come before all second ones
        const uint32_t angle = row * r.n + four * 2, from = in_half * 2;
        const float2 c = *(const float2 *)(r.cos_in + angle),
                     s = *(const float2 *)(r.sin_in + angle);
        const turned_pair t[2] = {turn_pair(x.x, x.y, c.x, s.x), turn_pair(x.z, x.w, c.y, s.y)};
        const auto value = [&](uint32_t i, uint32_t lane) {
            const float a = __shfl_sync(~0u, t[i].a, lane), b = __shfl_sync(~0u, t[i].b, lane);
            return low ? a : b;
        };
        y = make_float4(value(0, from), value(1, from), value(0, from + 1), value(1, from + 1));
    } else {
        const uint32_t angle = row * r.n + in_half * 4;
        const float4 c = *(const float4 *)(r.cos_in + angle),
                     s = *(const float4 *)(r.sin_in + angle);
        const auto value = [&](float mine, float cos, float sin) {
            const float other = __shfl_xor_sync(~0u, mine, HALF);
            const turned_pair t = turn_pair(low ? mine : other, low ? other : mine, cos, sin);
            return low ? t.a : t.b;
        };
        y = make_float4(value(x.x, c.x, s.x), value(x.y, c.y, s.y), value(x.z, c.z, s.z),
                        value(x.w, c.w, s.w));
    }
    if (threadIdx.x < D / 4)
        ((float4 *)head)[four] = y;
    return y;
}

// Of steps in which no sequence has more than one row: both ropes and the store. grid: [item]
// [KV head][K, V, query heads of the KV head]. scale: of H
template <int D>
__global__ void __launch_bounds__(32)
    rope_store_kernel(const step_group g, const rope_op q, const rope_op k, const store_rows rows,
                      float scale) {
    store_place p;
    kernel_comes();
    const uint32_t row =
        blockIdx.x < g.counts[COUNT_STORE] ? g.seqs[g.store[blockIdx.x].seq].row : UINT32_MAX;
    if (blockIdx.z > 1) {
        kernel_waits();
        const uint32_t head = blockIdx.y * (q.heads / gridDim.y) + blockIdx.z - 2;
        if (row != UINT32_MAX)
            turn_four<D>(q, q.x + ((size_t)row * q.heads + head) * D, row);
        return;
    }
    if (!find_place<D>(g, rows, true, p)) // then K is not needed
        return kernel_waits();
    const uint32_t four = lone_four<D>();
    const float4 less = centre_four(p, p.first, four);
    const auto load = [&] {
        const float4 x = less_of(p,
                                 blockIdx.z == 0 ? turn_four<D>(k, const_cast<float *>(p.x), row)
                                                 : row_four<D>(p, p.first, four),
                                 less);
        float turned[4] = {x.x, x.y, x.z, x.w};
        if (p.turned) // the same for the whole block
            rotate<4, D / 4>(turned, scale);
        return make_float4(turned[0], turned[1], turned[2], turned[3]);
    };
    lone_token<D, decltype(load)>(p, load).store();
}

} // namespace

static store_rows rows_of(const kv_store_op &op) {
    return {op.k, op.v, op.centre, op.layer};
}

bool run_kv_store(cuda_backend *b, const kv_store_op &op, const attention_op *next) {
    const uint32_t g = op.group, head_dim = b->limits.group[g].head_dim, stores = b->plan[g].stores;
    const dim3 grid(b->plan[g].blocks[COUNT_STORE], b->limits.group[g].kv_heads, 2);
    TurnArgs turn;
    if (grid.x == 0)
        return false;
    // few queries: as many blocks as the store has are launched for them
    const bool turns = stores & STORE_WHOLE && next && balanced_turn(b, *next, &turn) &&
                       turn_blocks(turn) <= grid.x;
    if (stores & STORE_WHOLE)
        store_whole(b, op, turns ? &turn : nullptr);
    if (stores & STORE_PLAIN && cuda_works(b))
        store_plain(b, op);
    if (!(stores & STORE_FAST) || !cuda_works(b))
        return turns;
    void (*kernel)(step_group, store_rows) = head_dim == 64    ? store_kernel<64>
                                             : head_dim == 128 ? store_kernel<128>
                                                               : store_kernel<256>;
    cuda_ok(b, launch_early(b, kernel, grid, 2 * head_dim, 0, b->group[g], rows_of(op)));
    return turns;
}

bool rope_store_fits(const cuda_backend *b, const rope_op &q, const rope_op &k,
                     const kv_store_op &store) {
    const uint32_t g = store.group, dim = b->limits.group[g].head_dim,
                   kv_heads = b->limits.group[g].kv_heads;
    return b->step.lone && !(b->plan[g].stores & (STORE_PLAIN | STORE_MADE)) &&
           (dim == 64 || dim == 128) && store.k == k.x && k.heads == kv_heads &&
           k.head_dim == dim && k.n == dim / 2 && q.heads % kv_heads == 0;
}

void run_rope_store(cuda_backend *b, const rope_op &q, const rope_op &k, const kv_store_op &store) {
    const uint32_t g = store.group;
    const dim3 grid(b->plan[g].blocks[COUNT_STORE], k.heads, 2 + q.heads / k.heads);
    void (*kernel)(step_group, rope_op, rope_op, store_rows, float) =
        k.head_dim == 64 ? rope_store_kernel<64> : rope_store_kernel<128>;
    cuda_ok(b, launch_early(b, kernel, grid, 32, 0, b->group[g], q, k, rows_of(store),
                            hadamard_scale(k.head_dim)));
    if (b->plan[g].stores & STORE_FULL && cuda_works(b))
        store_full(b, store);
}
