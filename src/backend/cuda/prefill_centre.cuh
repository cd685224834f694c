// SPDX-License-Identifier: Apache-2.0
// prefill_centre.cuh: what the centre of keys adds to the scores of prefill.cuh (centre.cuh): A and
// B of a thread's rows in registers, waves in shared memory, the same for all tiles.
#pragma once

#include "backend/cuda/prefill_block.cuh"
#include "backend/cuda/wgmma.cuh"

namespace {

// Waves of eight pairs are matrices of 16 elements for 64 columns, as slots of K are: of high parts
// and of low ones. Then those of the next eight.
enum { CENTRE_MATRIX = 16 * TILE_TOKENS * 2 };
__host__ __device__ __forceinline__ uint32_t centre_bytes(uint32_t pairs) {
    return (pairs + 7) / 8 * 2 * CENTRE_MATRIX;
}

// centre_parts of a row of the block, of the i-th pair.
__device__ __forceinline__ float2 centre_of_row(const PrefillArgs &a, const Work &work,
                                                const CentrePairs &centre, uint32_t i, int row,
                                                int dim) {
    return is_column(a, work, row) ? centre_parts(a.centre, centre.pairs[i],
                                                  a.plain + column_of(a, work, row) * dim, a.scale)
                                   : make_float2(0, 0);
}
// The waves of the head's pairs, by the block; in the place of those that the last eight lack, the
// last one's, as in decode.
__device__ __forceinline__ void fill_waves(const PrefillArgs &a, const CentrePairs &centre,
                                           uint32_t to) {
    const uint32_t units = centre_bytes(centre.count) / 16;
    for (uint32_t i = threadIdx.x; i < units; i += blockDim.x) {
        const uint32_t token = i % 64, half = i / 64 % 2, low = i / 128 % 2, first = i / 256 * 8;
        uint32_t w[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t pair = min(first + half * 4 + j, centre.count - 1);
            w[j] = centre_halves_of(a.centre, centre.pairs[pair].pair, low)[token];
        }
        put_key(to + i / 128 * CENTRE_MATRIX, half, token, make_uint4(w[0], w[1], w[2], w[3]));
    }
    written_for_wgmma();
}

// A and B of eight pairs for a thread's rows and a tile: the A registers of an instruction.
struct CentreRegisters {
    uint32_t high[1][4], low[1][4];
};
// Begins what these add to the scores. waves: of the eight pairs.
__device__ __forceinline__ void centre_begin(Sums<64> &s, const CentreRegisters &x,
                                             uint32_t waves) {
    values_begin<false, 64, 1>(s, x.high, waves);
    values_begin<false, 64, 1>(s, x.high, waves + CENTRE_MATRIX);
    values_begin<false, 64, 1>(s, x.low, waves);
}
// All but the last LATER products have taken them: they may be written again.
template <int LATER> __device__ __forceinline__ void centre_taken(CentreRegisters &x) {
    weights_taken<LATER>(x.high);
    weights_taken<LATER>(x.low);
}

// What a thread that multiplies has of its head's centre. The first eight pairs come with every
// tile's scores; most heads have no more.
template <int D, class B> struct RowsCentre {
    const PrefillArgs &a;
    const Work &work;
    const CentrePairs &pairs;
    const Place &at;
    float unit[2]; // of rows r and r + 8
    uint32_t pair[2];
    CentreRegisters x;

    // Which pairs are the thread's of the eight from `first` on: of elements 2q and 8 + 2q.
    __device__ __forceinline__ void choose(uint32_t first, uint32_t (&chosen)[2]) const {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const uint32_t i = first + 4 * k + at.q;
            chosen[k] = i < pairs.count ? pairs.pairs[i].pair : 0;
        }
    }
    __device__ __forceinline__ void make(uint32_t tile, uint32_t first, const uint32_t (&of)[2],
                                         CentreRegisters &to) const {
        auto &sh = *reinterpret_cast<typename B::Shared *>(memory);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const uint32_t i = first + 4 * k + at.q;
            const float2 turn = centre_turn(a.centre, tile, of[k]);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float2 parts = make_float2(0, 0);
                if (i < pairs.count)
                    parts = i < CENTRE_PAIRS ? sh.centre[i][at.row(j)]
                                             : centre_of_row(a, work, pairs, i, at.row(j), D);
                const CentreHalves ab = centre_query(parts, turn, unit[j]);
                to.high[0][2 * k + j] = ab.high;
                to.low[0][2 * k + j] = ab.low;
            }
        }
    }

    __device__ __forceinline__ RowsCentre(const PrefillArgs &args, const Work &of,
                                          const CentrePairs &all, const Place &place)
        : a(args), work(of), pairs(all), at(place) {
        auto &sh = *reinterpret_cast<typename B::Shared *>(memory);
        unit[0] = sh.unit[at.row(0)];
        unit[1] = sh.unit[at.row(1)];
        if constexpr (B::CENTRED)
            choose(0, pair);
    }
    // Before a tile's scores begin.
    __device__ __forceinline__ void prepare(uint32_t tile) {
        if constexpr (B::CENTRED)
            make(tile, 0, pair, x);
    }
    // After they began.
    __device__ __forceinline__ void begin(bool centred, Sums<64> &s) {
        if constexpr (B::CENTRED)
            if (centred && pairs.count > 0)
                centre_begin(s, x, smem_at(memory) + B::RING);
    }
    // After they ended, but for LATER products.
    template <int LATER>
    __device__ __forceinline__ void end(bool centred, uint32_t tile, Sums<64> &s) {
        if constexpr (B::CENTRED) {
            centre_taken<LATER>(x);
#pragma unroll 1
            for (uint32_t first = 8; centred && first < pairs.count; first += 8) {
                uint32_t chosen[2];
                CentreRegisters more;
                choose(first, chosen);
                make(tile, first, chosen, more);
                centre_begin(s, more, smem_at(memory) + B::RING + centre_bytes(first));
                products_end<0>(s);
                centre_taken<0>(more);
            }
        }
    }
};

} // namespace
