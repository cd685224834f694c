// SPDX-License-Identifier: Apache-2.0
// many_rows.cuh: products of more rows than a column tile with 4-bit matrices (HALVES) and
// activations of 8 bits. The time is that of the instructions around the tensor cores' integers, so
// each load serves as many of them as fit the registers:
//
//     a warp    32 outputs x 32 rows: 2 x 4 tiles of 16 x 8
//     a block   WM x WN of these, and WK teams of warps that take the runs in turn
//     a stage   256 inputs of a team's outputs and rows in shared memory, half a run; the next one
//               is copied while a warp multiplies
//
//     WK 1: a warp adds the sums of its runs itself, in registers
//     else: sums [team][row][output] -> total -> y       a run of each team at a time, in order
//
// An integer of a tensor core becomes a float without a conversion: the instruction starts from the
// bits of 1.5 * 2^23, so that its result, up to 2^22 either way, reads as that float plus the
// integer. Subtracting it is exact. For Q4_0 what is subtracted contains the 8 * (sum of codes).
#pragma once

#include "backend/cuda/few_rows.cuh" // copies

enum { STAGE_PAIRS = RUN_PAIRS / 2, STAGES = 2, WARP_OUTPUTS = 32, WARP_ROWS = 32 };
constexpr int INTEGER_BITS = 0x4b400000; // of 1.5 * 2^23

__device__ __forceinline__ void mma_u8s8_from(int (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1, int c) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%10,%10,%10,%10};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c));
}

// The threads of a team meet.
template <int THREADS> __device__ __forceinline__ void team_meets(uint32_t team) {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(THREADS) : "memory");
}

template <class F, int WM, int WN> struct many_stage {
    static constexpr int OUTPUT_TILES = 2 * WM, ROW_TILES = 4 * WN;
    static constexpr int QUADS = F::QUADS > 1 ? F::QUADS / 2 : 1;
    uint4 codes[OUTPUT_TILES][STAGE_PAIRS][32];
    uint4 scales[OUTPUT_TILES][QUADS][8], biases[F::BIASED ? OUTPUT_TILES : 1][QUADS][8];
    uint4 act[ROW_TILES][STAGE_PAIRS][32], sides[ROW_TILES][STAGE_PAIRS][8];
};

// What a team copies and multiplies.
struct many_place {
    const weight_view *w;
    act_view act;
    uint32_t output_tile, output_tiles; // the block's first one; of the matrix
    uint32_t row_tile, row_tiles;       // likewise of x
};

// `count` pieces of 16 bytes, by a team: piece i from from(i), NULL: none.
template <int THREADS, class From>
__device__ __forceinline__ void copy_pieces(uint4 *to, uint32_t count, uint32_t thread, From from) {
    for (uint32_t i = thread; i < count; i += THREADS) {
        const uint4 *p = from(i);
        if (p)
            copy_16(smem_at(to + i), p);
    }
}

// Stage s of the inputs: 2 * run, or the second half of it.
template <class F, int WM, int WN, int THREADS>
__device__ __forceinline__ void fill_stage(const many_place &m, uint32_t s, uint32_t thread,
                                           many_stage<F, WM, WN> &stage) {
    using Stage = many_stage<F, WM, WN>;
    const weight_view &v = *m.w;
    const uint32_t pair0 = s * STAGE_PAIRS, quad0 = s * F::QUADS / 2;
    copy_pieces<THREADS>(&stage.codes[0][0][0], Stage::OUTPUT_TILES * STAGE_PAIRS * 32, thread,
                         [&](uint32_t i) -> const uint4 * {
                             const uint32_t tile = m.output_tile + i / (STAGE_PAIRS * 32),
                                            pair = pair0 + i / 32 % STAGE_PAIRS;
                             return tile < m.output_tiles && pair < v.pairs
                                        ? (const uint4 *)v.codes +
                                              ((size_t)tile * v.pairs + pair) * 32 + i % 32
                                        : nullptr;
                         });
    const auto scalars = [&](const uint8_t *from, uint4 *to) {
        copy_pieces<THREADS>(
            to, Stage::OUTPUT_TILES * Stage::QUADS * 8, thread, [&](uint32_t i) -> const uint4 * {
                const uint32_t tile = m.output_tile + i / (Stage::QUADS * 8),
                               quad = quad0 + i / 8 % Stage::QUADS;
                return tile < m.output_tiles && quad < v.quads
                           ? (const uint4 *)from + ((size_t)tile * v.quads + quad) * 8 + i % 8
                           : nullptr;
            });
    };
    scalars(v.scales, &stage.scales[0][0][0]);
    if (F::BIASED)
        scalars(v.biases, &stage.biases[0][0][0]);
    const auto act_place = [&](uint32_t tile, uint32_t pair) {
        return (size_t)(m.row_tile + tile) * v.pairs + pair0 + pair;
    };
    const auto exists = [&](uint32_t tile, uint32_t pair) {
        return m.row_tile + tile < m.row_tiles && pair0 + pair < v.pairs;
    };
    copy_pieces<THREADS>(
        &stage.act[0][0][0], Stage::ROW_TILES * STAGE_PAIRS * 32, thread,
        [&](uint32_t i) -> const uint4 * {
            const uint32_t tile = i / (STAGE_PAIRS * 32), pair = i / 32 % STAGE_PAIRS;
            return exists(tile, pair) ? m.act.codes + act_place(tile, pair) * 32 + i % 32 : nullptr;
        });
    copy_pieces<THREADS>(
        &stage.sides[0][0][0], Stage::ROW_TILES * STAGE_PAIRS * 8, thread,
        [&](uint32_t i) -> const uint4 * {
            const uint32_t tile = i / (STAGE_PAIRS * 8), pair = i / 8 % STAGE_PAIRS;
            return exists(tile, pair) ? m.act.sides + act_place(tile, pair) * 8 + i % 8 : nullptr;
        });
}

// The two 16 x 8 tiles of a block of inputs that share columns. The float operations are those of
// add_block_8 (product.cuh).
template <bool AFFINE>
__device__ __forceinline__ void add_two_tiles(const uint32_t (&w0)[4], const uint32_t (&w1)[4],
                                              uint32_t b0, uint32_t b1, uint4 side,
                                              const float2 (&d)[2], const float2 (&m)[2],
                                              float (&acc0)[4], float (&acc1)[4]) {
    int dot[2][4];
    mma_u8s8_from(dot[0], w0, b0, b1, INTEGER_BITS);
    mma_u8s8_from(dot[1], w1, b0, b1, INTEGER_BITS);
    const float s0 = __uint_as_float(side.x), s1 = __uint_as_float(side.y);
    const float zero0 = __int_as_float(AFFINE ? INTEGER_BITS : INTEGER_BITS - (int)side.z);
    const float zero1 = __int_as_float(AFFINE ? INTEGER_BITS : INTEGER_BITS - (int)side.w);
#pragma unroll
    for (int t = 0; t < 2; t++) {
        float(&acc)[4] = t ? acc1 : acc0;
        acc[0] = fmaf(d[t].x * s0, __int_as_float(dot[t][0]) - zero0, acc[0]);
        acc[1] = fmaf(d[t].x * s1, __int_as_float(dot[t][1]) - zero1, acc[1]);
        acc[2] = fmaf(d[t].y * s0, __int_as_float(dot[t][2]) - zero0, acc[2]);
        acc[3] = fmaf(d[t].y * s1, __int_as_float(dot[t][3]) - zero1, acc[3]);
        if (AFFINE) {
            const float a0 = __uint_as_float(side.z), a1 = __uint_as_float(side.w);
            acc[0] = fmaf(m[t].x, a0, acc[0]);
            acc[1] = fmaf(m[t].x, a1, acc[1]);
            acc[2] = fmaf(m[t].y, a0, acc[2]);
            acc[3] = fmaf(m[t].y, a1, acc[3]);
        }
    }
}

// Sums of a warp's 32 x 32 outputs: of two output tiles, four row tiles.
typedef float many_sums[2][4][4];

template <class F, int WM, int WN>
__device__ __forceinline__ void add_stage(const many_stage<F, WM, WN> &stage, bool bf16,
                                          uint32_t half, uint32_t pairs, uint32_t row_tiles,
                                          uint32_t wm, uint32_t wn, many_sums &acc) {
    const uint32_t lane = threadIdx.x % 32, r = lane / 4, q = lane % 4;
#pragma unroll 2
    for (uint32_t p = 0; p < pairs; p++) {
        uint32_t w[2][2][4]; // [block][output tile]
        float2 d[2][2], m[2][2] = {};
        const uint32_t group0 = half * STAGE_PAIRS * PAIR / F::GROUP_SIZE % 4; // of the first quad
#pragma unroll
        for (uint32_t t = 0; t < 2; t++) {
            const uint4 codes = stage.codes[2 * wm + t][p][lane];
            spread_nibbles(codes.x, codes.y, w[0][t]);
            spread_nibbles(codes.z, codes.w, w[1][t]);
#pragma unroll
            for (uint32_t h = 0; h < 2; h++) {
                const uint32_t g = group0 + (p * 2 + h) * BLOCK / F::GROUP_SIZE;
                d[h][t] =
                    two_scalars(((const uint32_t *)&stage.scales[2 * wm + t][g / 4][r])[g % 4],
                                F::BIASED && bf16);
                if (F::BIASED)
                    m[h][t] = two_scalars(
                        ((const uint32_t *)&stage.biases[2 * wm + t][g / 4][r])[g % 4], bf16);
            }
        }
#pragma unroll
        for (uint32_t n = 0; n < 4; n++) {
            if (4 * wn + n >= row_tiles)
                break;
            const uint4 b = stage.act[4 * wn + n][p][lane];
            add_two_tiles<F::BIASED>(w[0][0], w[0][1], b.x, b.y, stage.sides[4 * wn + n][p][q],
                                     d[0], m[0], acc[0][n], acc[1][n]);
            add_two_tiles<F::BIASED>(w[1][0], w[1][1], b.z, b.w, stage.sides[4 * wn + n][p][4 + q],
                                     d[1], m[1], acc[0][n], acc[1][n]);
        }
    }
}

// fn(output, row, t, n, i) for each of a lane's sums [t][n][i]; output and row in the block's tile.
template <class Fn> __device__ __forceinline__ void each_sum(uint32_t wm, uint32_t wn, Fn fn) {
    const uint32_t r = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (uint32_t t = 0; t < 2; t++)
#pragma unroll
        for (uint32_t n = 0; n < 4; n++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                fn(wm * WARP_OUTPUTS + t * 16 + r + i / 2 * 8,
                   wn * WARP_ROWS + n * 8 + 2 * q + i % 2, t, n, i);
}

// A team's stages of the runs team, team + WK, ... in turn; ends(acc) after each run.
template <class F, int WM, int WN, int WK> struct many_team {
    static constexpr int THREADS = WM * WN * 32;
    many_place place;
    many_stage<F, WM, WN> *stages; // [STAGES], of the team
    uint32_t team, thread, wm, wn, next, filled;

    // The next stage of the team's, and one group of copies for it; an empty one at the end.
    __device__ __forceinline__ void fill() {
        const uint32_t stage_count = blocks_of(place.w->pairs, STAGE_PAIRS);
        if (next < stage_count)
            fill_stage<F, WM, WN, THREADS>(place, next, thread, stages[filled % STAGES]);
        copies_end();
        filled++;
        next = next % 2 == 0 ? next + 1 : next + 2 * WK - 1;
    }
    // Run `run`, which is the team's next one, into acc.
    __device__ __forceinline__ void add_run(uint32_t run, many_sums &acc) {
        const uint32_t row_tiles = place.row_tiles - place.row_tile;
#pragma unroll 1
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t pair0 = (2 * run + half) * STAGE_PAIRS;
            fill();
            copies_wait<STAGES - 1>();
            team_meets<THREADS>(team);
            if (pair0 < place.w->pairs)
                add_stage<F, WM, WN>(stages[(filled - STAGES) % STAGES], place.w->bf16, half,
                                     min(place.w->pairs - pair0, (uint32_t)STAGE_PAIRS), row_tiles,
                                     wm, wn, acc);
            team_meets<THREADS>(team); // before the stage is filled again
        }
    }
};

// Which outputs and rows a block makes.
template <class F, int WM, int WN, int WK>
__device__ __forceinline__ const product_part &
many_begins(const product_args &a, many_team<F, WM, WN, WK> &team, uint8_t *memory) {
    using Stage = many_stage<F, WM, WN>;
    const product_part &p = part_of_tile(a, blockIdx.y);
    const uint32_t warp = threadIdx.x / 32;
    team.team = warp / (WM * WN);
    team.wm = warp % WM;
    team.wn = warp / WM % WN;
    team.thread = threadIdx.x % (WM * WN * 32);
    team.stages = (Stage *)memory + team.team * STAGES;
    team.place = {&p.w,
                  a.act,
                  (blockIdx.y - p.first) * Stage::OUTPUT_TILES,
                  blocks_of(p.w.n, TILE_OUTPUTS),
                  blockIdx.x * Stage::ROW_TILES,
                  blocks_of(a.rows, tile_rows<8>)};
    team.next = 2 * team.team;
    team.filled = 0;
    for (int i = 1; i < STAGES; i++)
        team.fill();
    return p;
}

// grid: [32 WN rows][32 WM outputs, of one matrix after the other]: blocks that share weights are
// neighbours. a.part[].first counts in blocks.
template <class F, int WM, int WN, int WK>
__global__ void __launch_bounds__(WM *WN *WK * 32, WK == 1 ? 2 : 1)
    many_kernel(const __grid_constant__ product_args a) {
    constexpr uint32_t OUTPUTS = WM * WARP_OUTPUTS, ROWS = WN * WARP_ROWS,
                       THREADS = WM * WN * WK * 32;
    constexpr uint32_t PITCH = OUTPUTS + 4, EACH = OUTPUTS * ROWS / THREADS;
    extern __shared__ __align__(16) uint8_t memory[];
    kernel_begins();
    many_team<F, WM, WN, WK> team;
    const product_part &p = many_begins<F, WM, WN, WK>(a, team, memory);
    const uint32_t runs = blocks_of(p.w.pairs, RUN_PAIRS);
    const uint32_t output0 = team.place.output_tile * TILE_OUTPUTS, row0 = blockIdx.x * ROWS;
    const auto put = [&](uint32_t output, uint32_t row, float sum) {
        if (output0 + output < p.w.n && row0 + row < a.rows)
            put_output(p, (size_t)(row0 + row) * p.w.n + output0 + output, output0 + output, sum);
    };
    if constexpr (WK == 1) {
        many_sums total = {};
        for (uint32_t run = 0; run < runs; run++) {
            many_sums acc = {};
            team.add_run(run, acc);
            each_sum(team.wm, team.wn, [&](uint32_t, uint32_t, uint32_t t, uint32_t n, uint32_t i) {
                total[t][n][i] += acc[t][n][i];
            });
        }
        each_sum(team.wm, team.wn,
                 [&](uint32_t output, uint32_t row, uint32_t t, uint32_t n, uint32_t i) {
                     put(output, row, total[t][n][i]);
                 });
    } else {
        using Stage = many_stage<F, WM, WN>;
        static_assert(sizeof(Stage) >= ROWS * PITCH * sizeof(float), "sums fit a stage");
        // A team's sums are in the stage that it multiplied last. All teams have filled as many, or
        // two fewer.
        const auto part = [&](uint32_t of) {
            return (float *)((Stage *)memory + of * STAGES + team.filled % STAGES);
        };
        float total[EACH] = {};
        for (uint32_t first = 0; first < runs; first += WK) {
            if (first + team.team < runs) {
                many_sums acc = {};
                team.add_run(first + team.team, acc);
                each_sum(team.wm, team.wn,
                         [&](uint32_t output, uint32_t row, uint32_t t, uint32_t n, uint32_t i) {
                             part(team.team)[row * PITCH + output] = acc[t][n][i];
                         });
            }
            __syncthreads();
            const uint32_t count = min(runs - first, (uint32_t)WK);
#pragma unroll
            for (uint32_t i = 0; i < EACH; i++) {
                const uint32_t at = i * THREADS + threadIdx.x;
                for (uint32_t k = 0; k < count; k++)
                    total[i] += part(k)[at / OUTPUTS * PITCH + at % OUTPUTS];
            }
            __syncthreads();
        }
#pragma unroll
        for (uint32_t i = 0; i < EACH; i++) {
            const uint32_t at = i * THREADS + threadIdx.x;
            put(at % OUTPUTS, at / OUTPUTS, total[i]);
        }
    }
    copies_wait<0>();
}

template <class F, int WM, int WN, int WK> constexpr size_t many_bytes() {
    return WK * STAGES * sizeof(many_stage<F, WM, WN>);
}
