// SPDX-License-Identifier: Apache-2.0
// prefill.cu: attention of many rows.
//
// A block is (some tokens of one sequence, KV head): its query rows are (token, query head of the
// group), 64 to a group of four warps. It goes over the tiles that some row sees, in order of
// position. Two more groups, one for K and one for V, read the tiles and put them into shared
// memory as 16-bit matrices (widen.cuh), once for all rows; from there on all formats are the same:
//
//     pages --K group--> slots of K --+--> rows: S = Q K^T, p = 2^(S - M), O += P V
//           --V group--> slots of V --+
//
//     full    opens when a slot holds a tile       the groups of rows wait for it
//     empty   opens when they are done with it     the group that fills it waits
//
// The groups that fill need few registers: on sm_90 they give the others to the groups of rows.
//
// The sums of a row are those of decode.cu, and so are its bits:
//
//     run, 256 tokens       in registers
//     super, 2,048 tokens   in shared memory, each thread its own part
//     row                   in out itself, until it is divided by the row's sum
//
// The layout of the matrices (any token may be column c of K):
//
//     Q, K    [instruction 2k + n][half u][row or column][quads 8k + 4u + n and + 2, place_in_quad]
//             column 8j + 2q + (e ^ j / 4) of K is token 32e + 8q + j: what a lane (r, q) gets of
//             the scores are chains q and 4 + q of arithmetic.cuh
//     V       [instruction 2h + c][half u][column]
//             [tokens 32h + 8q + 4c + u and + 2, q = 0 .. 3]; column k D / 4 + l is dim
//             k / 2 D / 2 + 2l + k % 2
//
// With this layout neither reads of pages nor writes of slots cause bank conflicts.
#include "backend/cuda/stream.cuh"
#include "backend/cuda/wgmma.cuh"

namespace {

enum { GROUP = 128, GROUP_ROWS = 64, SLOTS_MAX = 6 };

// One lane of a warp says that all are done with a slot. compute-sanitizer's racecheck follows each
// thread by itself, so for it all of them do.
#ifdef KVASIR_RACECHECK
enum { ARRIVALS = 32 };
#else
enum { ARRIVALS = 1 };
#endif

// Registers go from the groups that fill slots to those that multiply.
#if WGMMA
#define REGISTERS_DOWN(n) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n))
#define REGISTERS_UP(n)   asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n))
#else
#define REGISTERS_DOWN(n) (void)0
#define REGISTERS_UP(n)   (void)0
#endif

struct PrefillArgs {
    const float *q; // [row][head][D]
    float *out;
    float scale;
    uint32_t layer, heads, gqa, kv_heads;
    int slots; // of K, and of V
};

// What of a row is merged so far.
struct RowFold {
    float super_max, super_sum, max, sum;
};

// The tiles that some row of a block sees, in order: those with kept positions, then the window's.
struct Tiles {
    uint32_t kept, window, end; // numbers: [0, kept), then [window, end)
    __device__ uint32_t first() const { return kept ? 0 : window; }
    __device__ uint32_t next(uint32_t n) const {
        return n + 1 >= kept && n + 1 < window ? window : n + 1;
    }
};

// 16-bit types of tiles, as a mask.
enum { TYPE_F16 = 1, TYPE_BF16 = 2, TYPE_BOTH = 3 };

template <int D, int KT> struct Block {
    static constexpr int GROUPS = D == 256 ? 1 : 2, // of rows
        ROWS = GROUPS * GROUP_ROWS, THREADS = (GROUPS + 2) * GROUP,
                         PARTS = D / 8, // float4 of outputs
        QUERIES = KT == TYPE_BOTH ? 2 : 1;
    // of a thread that fills slots of K, of V, and of one that multiplies: together what the SM has
    static constexpr int K_REGISTERS = D == 256   ? 128
                                       : D == 128 ? 72
                                                  : 112,
                         V_REGISTERS = D == 256   ? 128
                                       : D == 128 ? 104
                                                  : 128,
                         ROW_REGISTERS = D == 256   ? 240
                                         : D == 128 ? 168
                                                    : 136;
    static constexpr uint32_t QUERY = GROUP_ROWS * D * 2, SLOT = TILE_TOKENS * D * 2;
    struct Shared {
        alignas(128) uint8_t query[QUERIES][GROUPS][QUERY];
        alignas(16) float4 super[PARTS][GROUPS * GROUP];
        RowFold fold[ROWS];
        float unit[ROWS];
        alignas(8) uint64_t full[2][SLOTS_MAX], empty[2][SLOTS_MAX]; // K, V
        bool bf16[2][SLOTS_MAX]; // the type of what is in a slot
    };
    static constexpr uint32_t RING = (sizeof(Shared) + 127) / 128 * 128; // where slots begin
};

// Slots of one side, as those who fill or read them go round.
struct Ring {
    uint32_t slots_at, slot_bytes, full, empty;
    int slots, at, phase;
    __device__ __forceinline__ uint32_t slot() const { return slots_at + at * slot_bytes; }
    __device__ __forceinline__ void wait_full() const { barrier_wait(full + 8 * at, phase); }
    __device__ __forceinline__ void wait_empty() const { barrier_wait(empty + 8 * at, phase ^ 1); }
    __device__ __forceinline__ void arrive(uint32_t bar) const {
        __syncwarp();
        if (threadIdx.x % 32 < ARRIVALS)
            barrier_arrive(bar + 8 * at);
    }
    __device__ __forceinline__ void done() {
        arrive(empty);
        next();
    }
    __device__ __forceinline__ void next() {
        if (++at == slots) {
            at = 0;
            phase ^= 1;
        }
    }
};

// ---- tiles into slots ------------------------------------------------------------------------

// Pages were written by an earlier kernel, which kernel_waits waits for. These loads do not move
// before it, since their addresses come from the step's tables, which are read after it.
__device__ __forceinline__ uint4 load128(const uint8_t *p) {
    return __ldg((const uint4 *)p);
}
__device__ __forceinline__ uint2 load64(const uint8_t *p) {
    return __ldg((const uint2 *)p);
}

// A K tile, by a group; wait: until the slot is empty. Lanes read tokens side by side.
template <int F, int D, class Wait>
__device__ __forceinline__ void widen_keys(const uint8_t *tile, bool bf, uint32_t slot, Wait wait) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    auto put = [&](int half, int token, uint4 v) { // half: 2 instruction + u
        const int o = token / 8, j = token % 8;
        sts128(slot + (half * 64 + 8 * j + o % 4 * 2 + (o / 4 ^ j / 4)) * 16, v);
    };
    if constexpr (exact_of(F)) {
        const int token = lane * 2; // and the next
        uint4 x[D / 32][2];         // two quads of two tokens
        const uint8_t *from = tile + token * 8;
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            const int quad = 8 * i + warp % 2 * 4 + warp / 2; // warp: 2 n + u
            x[i][0] = load128(from + quad * 512);
            x[i][1] = load128(from + (quad + 2) * 512);
        }
        wait();
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            const int half = 4 * i + warp;
            const uint4 &a = x[i][0], &b = x[i][1];
            put(half, token,
                make_uint4(even_of(a.x, a.y), odd_of(a.x, a.y), even_of(b.x, b.y),
                           odd_of(b.x, b.y)));
            put(half, token + 1,
                make_uint4(even_of(a.z, a.w), odd_of(a.z, a.w), even_of(b.z, b.w),
                           odd_of(b.z, b.w)));
        }
    } else {
        // units: (32 dims, u), 16 lanes each, both n; 4 tokens a lane
        constexpr int BITS = bits_of(F), G = dims_of_group(F), GROUPS = D / G,
                      N = (D / 32 * 2 + 7) / 8; // of a lane
        const int unit = warp * 2 + lane / 16, token = lane % 16 * 4, u = unit % 2;
        const uint8_t *scales = tile + code_bytes_of(F, D) + token * 2;
        uint4 x[N][2][2]; // [quad: 2u, 2u + 1][n]
        uint2 s[N], b[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int k = unit / 2 + 4 * i;
            if (k >= D / 32)
                break;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                if constexpr (BITS == 8) {
                    const uint8_t *from = tile + (8 * k + 2 * (2 * u + j)) * 256 + token * 4;
                    x[i][j][0] = load128(from);
                    x[i][j][1] = load128(from + 256);
                } else {
                    x[i][j][0] = load128(tile + (4 * k + 2 * u + j) * 256 + token * 4);
                }
            }
            s[i] = load64(scales + k * 32 / G * 128);
            b[i] = load64(scales + (GROUPS + k * 32 / G) * 128);
        }
        wait();
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int k = unit / 2 + 4 * i;
            if (k >= D / 32)
                break;
#pragma unroll
            for (int t = 0; t < 4; t++) {
                const uint32_t st = twice(scalars_as_half(t < 2 ? s[i].x : s[i].y, bf), t % 2),
                               bt = twice(scalars_as_half(t < 2 ? b[i].x : b[i].y, bf), t % 2);
                auto row = [&](auto n) {
                    constexpr int Q = BITS == 8 ? 0 : decltype(n)::value,
                                  X = BITS == 8 ? decltype(n)::value : 0;
                    uint4 v;
                    widen<BITS, Q>(word_of(x[i][0][X], t), st, bt, st, bt, v.x, v.y);
                    widen<BITS, Q>(word_of(x[i][1][X], t), st, bt, st, bt, v.z, v.w);
                    put(4 * k + 2 * decltype(n)::value + u, token + t, v);
                };
                row(Format<0>());
                row(Format<1>());
            }
        }
    }
}

// A V tile. written: tokens that were; slots of the others may hold NaN.
template <int F, int D, class Wait>
__device__ __forceinline__ void widen_values(const uint8_t *tile, bool bf, uint64_t written,
                                             uint32_t slot, Wait wait) {
    constexpr int UNITS = (D + GROUP - 1) / GROUP; // (instruction 2h + c, 4 dims), of a thread
    const int thread = threadIdx.x % GROUP;
    auto put = [&](int i, int u, int l, int k, uint4 v) {
        sts128(slot + ((2 * i + u) * D + k * (D / 4) + l) * 16, v);
    };
    if constexpr (exact_of(F)) {
        bool waited = false;
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++) {
            const int at = thread + unit * GROUP, i = at / (D / 4), l = at % (D / 4);
            uint4 x[4][2]; // [q][two dims each]
            if (at < D) {
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    const uint8_t *from = tile + (i / 2 * 8 + 2 * q + i % 2) * 8 * D + l * 16;
                    x[q][0] = load128(from);
                    x[q][1] = load128(from + 4 * D);
                }
            }
            if (!waited)
                wait();
            waited = true;
            if (at >= D)
                continue;
            if (~written) {
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    const uint32_t four = (uint32_t)(written >> (i / 2 * 32 + 8 * q + i % 2 * 4)),
                                   lo = half_mask(four & 1, four & 2),
                                   hi = half_mask(four & 4, four & 8);
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        x[q][j].x &= lo;
                        x[q][j].y &= hi;
                        x[q][j].z &= lo;
                        x[q][j].w &= hi;
                    }
                }
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                uint32_t even[4], odd[4];
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    const uint32_t a = word_of(x[q][k / 2], k % 2 * 2),
                                   b = word_of(x[q][k / 2], k % 2 * 2 + 1);
                    even[q] = even_of(a, b);
                    odd[q] = odd_of(a, b);
                }
                put(i, 0, l, k, make_uint4(even[0], even[1], even[2], even[3]));
                put(i, 1, l, k, make_uint4(odd[0], odd[1], odd[2], odd[3]));
            }
        }
    } else {
        constexpr int BITS = bits_of(F), G = dims_of_group(F), GROUPS = D / G;
        bool waited = false;
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++) {
            const int at = thread + unit * GROUP, i = at / (D / 4), l = at % (D / 4), h = i / 2,
                      c = i % 2;
            uint2 x[4][2], s[4][2], b[4][2]; // [q][two dims each]
            if (at < D) {
                const uint8_t *scales = tile + code_bytes_of(F, D) + (32 * h + 4 * c) * 2;
                const int g[2] = {2 * l / G * 128, (D / 2 + 2 * l) / G * 128};
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    const int row = BITS == 8   ? 8 * h + 2 * q + c
                                    : BITS == 4 ? 4 * h + q
                                                : 2 * h + q / 2;
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        x[q][j] = load64(tile + row * 4 * D + l * 8 + j * 2 * D);
                        s[q][j] = load64(scales + g[j] + q * 16);
                        b[q][j] = load64(scales + GROUPS * 128 + g[j] + q * 16);
                    }
                }
            }
            if (!waited)
                wait();
            waited = true;
            if (at >= D)
                continue;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                uint2 ss[4], bb[4]; // of tokens 0 and 2, 1 and 3 of a quad
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    ss[q] = pairs_of(scalars_as_half(s[q][j], bf));
                    bb[q] = pairs_of(scalars_as_half(b[q][j], bf));
                    if (~written) {
                        const uint2 mask =
                            pair_masks((uint32_t)(written >> (32 * h + 8 * q + 4 * c)));
                        ss[q] = and_of(ss[q], mask);
                        bb[q] = and_of(bb[q], mask);
                    }
                }
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    uint32_t even[4], odd[4];
#pragma unroll
                    for (int q = 0; q < 4; q++) {
                        const int up = BITS == 8 ? 0 : BITS == 4 ? 4 * c : q % 2 * 4 + 2 * c;
                        widen<BITS, 0>((k ? x[q][j].y : x[q][j].x) >> up, ss[q].x, bb[q].x, ss[q].y,
                                       bb[q].y, even[q], odd[q]);
                    }
                    put(i, 0, l, 2 * j + k, make_uint4(even[0], even[1], even[2], even[3]));
                    put(i, 1, l, 2 * j + k, make_uint4(odd[0], odd[1], odd[2], odd[3]));
                }
            }
        }
    }
}

// All tiles of one side, in order, by a group.
template <bool K, int D, uint32_t FORMATS>
__device__ __forceinline__ void fill(const step_group &g, const PrefillArgs &a, uint32_t kv,
                                     const dev_view &view, const Tiles &tiles, uint32_t end,
                                     bool *bf16, Ring ring) {
    for (uint32_t number = tiles.first(); number < tiles.end; number = tiles.next(number)) {
        uint32_t layout = 0;
        const uint8_t *page = page_find(g, view, number, &layout);
        const dev_layout &l = g.layouts[layout];
        const uint8_t *tile = tile_of(page, l, a.layer, kv, K ? TILE_K : TILE_V);
        auto wait = [&] { ring.wait_empty(); };
        const uint32_t first = number * TILE_TOKENS;
        const uint64_t written = first + 64 <= end ? ~0ull : (1ull << (end - first)) - 1;
        with_format<FORMATS>(K ? l.k : l.v, [&](auto f) {
            constexpr int F = decltype(f)::value;
            if constexpr (K)
                widen_keys<F, D>(tile, l.k_bf16, ring.slot(), wait);
            else
                widen_values<F, D>(tile, l.v_bf16, written, ring.slot(), wait);
            if (threadIdx.x % GROUP == 0)
                bf16[ring.at] = F == BF16;
        });
        written_for_wgmma();
        ring.arrive(ring.full);
        ring.next();
    }
}

// ---- queries ---------------------------------------------------------------------------------

// Row `row` of a group's 64, or zeros; by a warp.
template <int D, int KT, class B>
__device__ __forceinline__ void pack_query(const float *q, float scale, int group, int row,
                                           bool some, typename B::Shared &sh) {
    constexpr int N = D / 32;
    const int lane = threadIdx.x % 32;
    float x[N];
    PackedRow<D> p;
    load_row<D>(q, scale, some, x);
    pack_row<D>(x, p);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int dim = lane * N + i, quad = dim % 32 / 4,
                  half = dim / 32 * 4 + quad % 2 * 2 + quad / 4;
        const int at = ((half * 64 + row) * 8 + quad / 2 % 2 * 4 + place_in_quad(dim % 4)) * 2;
        if constexpr (KT & TYPE_F16)
            *(uint16_t *)&sh.query[0][group][at] = (uint16_t)pack_half2<false>(p.x[i], 0);
        if constexpr (KT & TYPE_BF16)
            *(uint16_t *)&sh.query[B::QUERIES - 1][group][at] =
                (uint16_t)pack_half2<true>(p.x[i], 0);
    }
    if (lane == 0) {
        sh.unit[group * GROUP_ROWS + row] = p.unit;
        sh.fold[group * GROUP_ROWS + row] = {MINUS_INF, 0, MINUS_INF, 0};
    }
}

// ---- rows ------------------------------------------------------------------------------------

// The 8 chains of a row in one tree.
__device__ __forceinline__ float tree(float low, float high) {
    low += __shfl_xor_sync(~0u, low, 1);
    high += __shfl_xor_sync(~0u, high, 1);
    low += __shfl_xor_sync(~0u, low, 2);
    high += __shfl_xor_sync(~0u, high, 2);
    return low + high;
}

template <int D, uint32_t KF, uint32_t VF>
__global__ void __launch_bounds__(Block<D, TYPE_F16>::THREADS, 1)
    prefill(const step_group g, const PrefillArgs a) {
    constexpr int KT = (KF & ~bit(BF16) ? TYPE_F16 : 0) | (KF & bit(BF16) ? TYPE_BF16 : 0),
                  VT = (VF & ~bit(BF16) ? TYPE_F16 : 0) | (VF & bit(BF16) ? TYPE_BF16 : 0);
    using B = Block<D, KT>;
    extern __shared__ __align__(128) uint8_t memory[];
    auto &sh = *reinterpret_cast<typename B::Shared *>(memory);

    kernel_begins();
    const uint32_t index = blockIdx.x / a.kv_heads, kv = blockIdx.x % a.kv_heads;
    if (index >= g.counts[COUNT_PREFILL])
        return;
    const int group = threadIdx.x / GROUP, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32,
              r = lane / 4, q = lane % 4;
    const prefill_item item = g.prefill[index];
    const batch_seq seq = g.seqs[item.seq];
    const dev_view view = g.views[item.seq];
    const uint32_t pos = seq.pos + item.first, last = pos + item.tokens - 1,
                   end = seq.pos + seq.rows; // tokens from here on were never written

    Tiles tiles;
    tiles.end = last / TILE_TOKENS + 1;
    tiles.window = window_start(view.span, pos) / TILE_TOKENS;
    tiles.kept = (min(view.keep, last + 1) + TILE_TOKENS - 1) / TILE_TOKENS;
    if (tiles.window <= tiles.kept)
        tiles.window = tiles.kept;

    if (threadIdx.x < 2 * SLOTS_MAX) {
        barrier_init(smem_at(&sh.full[0][threadIdx.x]), GROUP / 32 * ARRIVALS);
        barrier_init(smem_at(&sh.empty[0][threadIdx.x]), B::GROUPS * GROUP / 32 * ARRIVALS);
    }
    barriers_ready();
    __syncthreads();
    Ring keys = {smem_at(memory) + B::RING,
                 B::SLOT,
                 smem_at(sh.full[0]),
                 smem_at(sh.empty[0]),
                 a.slots,
                 0,
                 0},
         values = {keys.slots_at + a.slots * B::SLOT,
                   B::SLOT,
                   smem_at(sh.full[1]),
                   smem_at(sh.empty[1]),
                   a.slots,
                   0,
                   0};
    if (group >= B::GROUPS) {
        if (group == B::GROUPS) {
            REGISTERS_DOWN(B::K_REGISTERS);
            fill<true, D, KF>(g, a, kv, view, tiles, end, sh.bf16[0], keys);
        } else {
            REGISTERS_DOWN(B::V_REGISTERS);
            fill<false, D, VF>(g, a, kv, view, tiles, end, sh.bf16[1], values);
        }
        return;
    }
    REGISTERS_UP(B::ROW_REGISTERS);

    // queries of this warp
    const int first_row = group * GROUP_ROWS, own = first_row + warp * 16;
    for (int i = 0; i < 16; i++) {
        const uint32_t row = own + i, token = row / a.gqa, head = kv * a.gqa + row % a.gqa;
        pack_query<D, KT, B>(a.q + ((size_t)(seq.row + item.first + token) * a.heads + head) * D,
                             a.scale, group, warp * 16 + i, token < item.tokens, sh);
    }
    written_for_wgmma();
    if (group == 0) // a barrier of the group
        asm volatile("bar.sync 1, 128;" ::: "memory");
    else
        asm volatile("bar.sync 2, 128;" ::: "memory");
    auto position = [&](int row) { return pos + min(row / a.gqa, item.tokens - 1); };
    // of the group's rows: what none of them sees is left out by all
    const uint32_t p_min = position(first_row), p_max = position(first_row + GROUP_ROWS - 1);
    const bool idle = first_row / a.gqa >= item.tokens;
    const uint32_t p[2] = {position(own + r), position(own + r + 8)};
    const float unit[2] = {sh.unit[own + r], sh.unit[own + r + 8]};

    if (idle) { // nothing for this group
        for (uint32_t number = tiles.first(); number < tiles.end; number = tiles.next(number)) {
            keys.wait_full();
            keys.done();
            values.wait_full();
            values.done();
        }
        return;
    }
    Sums<64> s;
    auto scores = [&] {
        keys.wait_full();
        if (KT == TYPE_F16 || (KT == TYPE_BOTH && !sh.bf16[0][keys.at]))
            scores_begin<false, D>(s, smem_at(sh.query[0][group]), keys.slot());
        else
            scores_begin<true, D>(s, smem_at(sh.query[B::QUERIES - 1][group]), keys.slot());
    };
    float max[2], sum[2][2], alpha[2]; // [row r, r + 8][chain q, 4 + q]
    // Turns the scores of the tile that begins at `first` into weights.
    auto soften = [&](uint32_t first) {
        // mask it, if some row does not see all of it
        if (first + 63 > p_min ||
            (first + 64 > view.keep && first < window_start(view.span, p_max)))
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint64_t seen =
                    (p[i] < first ? 0 : seen_of_tile(view, p[i], first)) >> (8 * q);
#pragma unroll
                for (int j = 0; j < 8; j++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        if (!(seen >> (32 * e + j) & 1))
                            s[j][2 * i + (e ^ j / 4)] = MINUS_INF;
            }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float top = fmaxf(s[0][2 * i], s[0][2 * i + 1]);
#pragma unroll
            for (int j = 1; j < 8; j++)
                top = fmaxf(top, fmaxf(s[j][2 * i], s[j][2 * i + 1]));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            alpha[i] = move_max(max[i], top * unit[i]);
            const float from = finite_max(max[i]) - WEIGHT_SHIFT;
#pragma unroll
            for (int e = 0; e < 2; e++) {
                sum[i][e] *= alpha[i];
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    float &x = s[j][2 * i + (e ^ j / 4)];
                    x = exp2_fast(fmaf(x, unit[i], -from));
                    sum[i][e] += x;
                }
            }
        }
    };
    uint32_t w[4][4];
    auto pack = [&] {
        auto as = [&](auto bf) {
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int c = 0; c < 2; c++)
#pragma unroll
                    for (int u = 0; u < 2; u++)
#pragma unroll
                        for (int i = 0; i < 2; i++)
                            w[2 * h + c][2 * u + i] = pack_half2<decltype(bf)::value != 0>(
                                s[4 * c + u][2 * i + (h ^ c)], s[4 * c + u + 2][2 * i + (h ^ c)]);
        };
        if (VT == TYPE_BOTH)
            values.wait_full();
        if (VT == TYPE_F16 || (VT == TYPE_BOTH && !sh.bf16[1][values.at]))
            as(Format<0>());
        else
            as(Format<1>());
    };
    Sums<D> out;
    auto multiply = [&] {
        values.wait_full();
        if (VT == TYPE_F16 || (VT == TYPE_BOTH && !sh.bf16[1][values.at]))
            values_begin<false, D>(out, w, values.slot());
        else
            values_begin<true, D>(out, w, values.slot());
    };

    bool super_fresh = true, row_fresh = true;
    for (uint32_t number = tiles.first(); number < tiles.end;) { // a run
        const uint32_t run = number / RUN_TILES;
        uint32_t next = tiles.next(number);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            max[i] = MINUS_INF;
            sum[i][0] = sum[i][1] = 0;
        }
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            out[j][0] = out[j][1] = out[j][2] = out[j][3] = 0;
        scores();
        products_end<0>(s);
        keys.done();
        soften(number * TILE_TOKENS);
        pack();
        // While a tile's scores become weights, the last one's weights are multiplied.
        for (; next < tiles.end && next / RUN_TILES == run; next = tiles.next(next)) {
            scores();
            multiply();
            products_end<1>(s);
            keys.done();
            soften(next * TILE_TOKENS);
            products_end(out, w);
            values.done();
            if (__any_sync(~0u, alpha[0] != 1 || alpha[1] != 1)) {
#pragma unroll
                for (int j = 0; j < D / 8; j++)
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        out[j][c] *= alpha[c / 2];
            }
            pack();
        }
        multiply();
        products_end(out, w);
        values.done();
        const bool ends = next >= tiles.end;

        // run into super
#pragma unroll
        for (int i = 0; i < 2; i++) {
            RowFold &fold_of = sh.fold[own + 8 * i + r];
            float top = fold_of.super_max;
            const FoldFactors f = fold_factors(top, max[i]);
            const float all_sum = fold(f, fold_of.super_sum, tree(sum[i][0], sum[i][1]));
            __syncwarp();
            if (q == 0) {
                fold_of.super_max = top;
                fold_of.super_sum = all_sum;
            }
#pragma unroll
            for (int x = 0; x < D / 32; x++)
#pragma unroll
                for (int y = 0; y < 2; y++) { // dims y D / 2 + 16x + 4q .. + 3
                    float4 *at = &sh.super[(i * (D / 32) + x) * 2 + y][threadIdx.x];
                    float4 all = super_fresh ? make_float4(0, 0, 0, 0) : *at;
                    const float *even = out[2 * y * (D / 32) + x], *odd = even + D / 32 * 4;
                    if (f.seen) {
                        all.x = fold_seen(f, all.x, even[2 * i]);
                        all.y = fold_seen(f, all.y, odd[2 * i]);
                        all.z = fold_seen(f, all.z, even[2 * i + 1]);
                        all.w = fold_seen(f, all.w, odd[2 * i + 1]);
                    }
                    *at = all;
                }
        }
        super_fresh = false;
        __syncwarp();
        if (ends || next / (RUN_TILES * SUPER_RUNS) != run / SUPER_RUNS) {
            // super into row
            for (int i = 0; i < 2; i++) {
                const int row = own + 8 * i + r;
                const uint32_t token = row / a.gqa, head = kv * a.gqa + row % a.gqa;
                RowFold &fold_of = sh.fold[row];
                float top = fold_of.max;
                const FoldFactors f = fold_factors(top, fold_of.super_max);
                const float all_sum = fold(f, fold_of.sum, fold_of.super_sum);
                __syncwarp();
                if (q == 0)
                    fold_of = {MINUS_INF, 0, top, all_sum};
                if (token >= item.tokens)
                    continue;
                float *to = a.out + ((size_t)(seq.row + item.first + token) * a.heads + head) * D;
                for (int x = 0; x < D / 32; x++)
                    for (int y = 0; y < 2; y++) {
                        float4 *at = (float4 *)(to + y * (D / 2) + 16 * x + 4 * q);
                        const float4 part = sh.super[(i * (D / 32) + x) * 2 + y][threadIdx.x];
                        float4 all = row_fresh ? make_float4(0, 0, 0, 0) : *at;
                        all.x = fold(f, all.x, part.x);
                        all.y = fold(f, all.y, part.y);
                        all.z = fold(f, all.z, part.z);
                        all.w = fold(f, all.w, part.w);
                        if (ends) {
                            all.x /= all_sum;
                            all.y /= all_sum;
                            all.z /= all_sum;
                            all.w /= all_sum;
                        }
                        *at = all;
                    }
            }
            row_fresh = false;
            super_fresh = true;
            __syncwarp();
        }
        number = next;
    }
}

// ---- launches --------------------------------------------------------------------------------

using Kernel = void (*)(step_group, PrefillArgs);
struct Choice {
    Kernel kernel;
    uint32_t rows, threads, shared, slot; // of a block; shared: without slots
};
template <int D, uint32_t KF, uint32_t VF> Choice choice_of() {
    using B = Block<D, KF == bit(BF16) ? TYPE_BF16 : KF & bit(BF16) ? TYPE_BOTH : TYPE_F16>;
    return {prefill<D, KF, VF>, B::ROWS, B::THREADS, B::RING, B::SLOT};
}

// Kernels for what is f16 when it is multiplied, for bf16 alone, for all.
template <int D> Choice choose(uint32_t k, uint32_t v) {
    if (D == 128 && k == bit(BF16) && v == bit(BF16))
        return choice_of<128, bit(BF16), bit(BF16)>();
    if (!((k | v) & bit(BF16)))
        return choice_of<D, K_FORMATS & ~bit(BF16), V_FORMATS & ~bit(BF16)>();
    return choice_of<D, K_FORMATS, V_FORMATS>();
}
Choice choose(uint32_t k, uint32_t v, uint32_t dim) {
#ifdef KVASIR_FEW_KERNELS // as in decode.cu
    (void)k, (void)v, (void)dim;
    return choice_of<128, K_FORMATS, V_FORMATS>();
#else
    return dim == 64 ? choose<64>(k, v) : dim == 128 ? choose<128>(k, v) : choose<256>(k, v);
#endif
}

} // namespace

uint32_t prefill_block_rows(uint32_t k_formats, uint32_t v_formats, uint32_t head_dim) {
    return choose(k_formats, v_formats, head_dim).rows;
}

// Slots of K, and of V; without one the kernel cannot run.
static int slots_of(const cuda_backend *b, const Choice &c) {
    const int slots = ((int)b->shared_per_block - (int)c.shared) / (2 * (int)c.slot);
    return slots < SLOTS_MAX ? slots : SLOTS_MAX;
}

bool prefill_fits(const cuda_backend *b, uint32_t k_formats, uint32_t v_formats,
                  uint32_t head_dim) {
    return slots_of(b, choose(k_formats, v_formats, head_dim)) >= 1;
}

void attention_prefill(cuda_backend *b, uint32_t group, uint32_t layer, const float *q,
                       uint32_t heads, float scale, float *out) {
    const group_plan &plan = b->plan[group];
    const uint32_t kv_heads = b->limits.group[group].kv_heads;
    const Choice c = choose(plan.k_formats, plan.v_formats, b->limits.group[group].head_dim);
    const int slots = slots_of(b, c);
    const uint32_t bytes = c.shared + 2 * slots * c.slot;
    if (!cuda_ok(b, cudaFuncSetAttribute(c.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         (int)bytes)))
        return;
    const PrefillArgs args = {q, out, scale, layer, heads, heads / kv_heads, kv_heads, slots};
    cuda_ok(b, launch_early(b, c.kernel, plan.blocks[COUNT_PREFILL] * kv_heads, c.threads, bytes,
                            b->group[group], args));
}
