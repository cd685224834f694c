// SPDX-License-Identifier: Apache-2.0
// stream.cuh: tiles through shared memory.
//
// A tile is read in chunks of 32 * D bytes of codes (4 KiB for 128 dims), whatever its format, each
// into one slot of a ring; a slot has a barrier that opens when its bytes have arrived.
//
//     bits    K tile, [dim / 4][token][4]             V tile, [token / 4][dim][4]
//      16     4 chunks of D / 4 dims                  4 chunks of 16 tokens: of a half tile the
//                                                     quads 0 2 4 6, then 1 3 5 7
//       8     2 chunks of D / 2 dims                  2 chunks of 32 tokens
//       4     the tile                                the tile
//       2                                             the tile, half a chunk
//
// The first chunk of an affine tile also brings its scales and biases, after the codes. A tile of
// KV_TILE is one chunk, as it is stored, whatever its bits.
#pragma once

#include "backend/cuda/copies.cuh"
#include "backend/cuda/widen.cuh"

// ---- chunks ----------------------------------------------------------------------------------

HD constexpr int chunks_of(int f) {
    return bits_of(f) < 8 ? 1 : bits_of(f) / 4;
}
// The most of a tile in one of the formats.
HD constexpr int most_chunks(uint32_t formats) {
    return formats & EXACT_FORMATS ? 4 : formats & (bit(Q8G64) | bit(Q8G32)) ? 2 : 1;
}
HD constexpr uint32_t code_bytes_of(int f, int d) {
    return 64 * d * bits_of(f) / 8;
}
HD constexpr uint32_t scale_bytes_of(int f, int d) { // not of K in KV_TILE
    return exact_of(f) ? 0 : d / dims_of_group(f, d) * 256;
}
HD constexpr uint32_t key_bytes_of(int f, int d) { // of a K tile
    return code_bytes_of(f, d) + (tile_of_ranges(f) ? 4 * d : scale_bytes_of(f, d));
}

// Where scales begin in a slot, and the bytes of a slot.
HD constexpr uint32_t scales_at(int d) {
    return 32 * d;
}
HD constexpr uint32_t slot_bytes(uint32_t formats, int d) {
    uint32_t most = 0;
    for (int f = 0; f < TILE_FORMATS; f++) {
        // a K tile of ranges has at least as many scales as a V tile
        const uint32_t bytes = tile_of_ranges(f) ? key_bytes_of(f, d)
                               : exact_of(f)     ? scales_at(d)
                                                 : scales_at(d) + scale_bytes_of(f, d);
        if (formats >> f & 1 && bytes > most)
            most = bytes;
    }
    return most;
}
// Where scales are in a slot.
HD constexpr uint32_t scales_of_slot(int f, int d) {
    return tile_of_ranges(f) ? code_bytes_of(f, d) : scales_at(d);
}

// The copies of chunk c of a K or V tile into a slot: calls copy(to, from, bytes) for each, and
// returns how many bytes these are.
template <int F, bool K, int D, class Copy>
__device__ __forceinline__ uint32_t chunk_copies(const uint8_t *tile, int c, uint32_t slot,
                                                 Copy copy) {
    constexpr uint32_t SCALES = K ? key_bytes_of(F, D) - code_bytes_of(F, D) : scale_bytes_of(F, D),
                       CODES = code_bytes_of(F, D) / chunks_of(F);
    if constexpr (tile_of_ranges(F)) {
        copy(slot, tile, CODES + SCALES);
        return CODES + SCALES;
    } else if constexpr (exact_of(F) && !K) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            copy(slot + i * 8 * D, tile + (c / 2 * 8 + c % 2 + 2 * i) * 8 * D, 8 * D);
        return CODES;
    } else if constexpr (CODES == scales_at(D) && chunks_of(F) == 1) {
        copy(slot, tile, CODES + SCALES);
        return CODES + SCALES;
    } else {
        copy(slot, tile + (size_t)c * CODES, CODES);
        if (SCALES && c == 0)
            copy(slot + scales_at(D), tile + code_bytes_of(F, D), SCALES);
        return CODES + (c == 0 ? SCALES : 0);
    }
}
// Starts them; by all lanes of a warp.
template <int F, bool K, int D>
__device__ __forceinline__ void chunk_copy(const uint8_t *tile, int c, uint32_t slot,
                                           uint32_t bar) {
#if BULK_COPIES
    if (copies_bulk()) {
        const uint32_t bytes =
            chunk_copies<F, K, D>(tile, c, slot, [](uint32_t, const uint8_t *, uint32_t) {});
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                     : "memory");
        chunk_copies<F, K, D>(tile, c, slot, [&](uint32_t to, const uint8_t *from, uint32_t n) {
            copy_bulk(to, from, n, bar);
        });
    }
#else
    chunk_copies<F, K, D>(tile, c, slot, copy_lanes);
    lanes_arrive(bar);
#endif
}

// One tile of a run: its address, and the index of its layout in the low bits (tiles are at
// multiples of 32).
struct TileRef {
    uint64_t bits;
    __device__ const uint8_t *at() const { return (const uint8_t *)(bits & ~(uint64_t)31); }
    __device__ uint32_t layout() const { return (uint32_t)(bits & 31); }
};

// A warp's own ring over the tiles of its run: K chunks, V chunks of the first, of the next ...
// The chunk that is read and the one that is fetched are `slots` apart, in the same slot.
template <int D, uint32_t KF, uint32_t VF> struct Stream {
    static constexpr uint32_t SLOT = slot_bytes(KF | VF, D), SCALES = scales_at(D);
    uint32_t ring, bars; // shared memory
    int slots;
    const TileRef *tiles;      // [n]
    const dev_layout *layouts; // read if more than one format is possible
    int n;
    int at, phase;   // the slot that is read next
    int tile, chunk; // what is fetched next; chunks of V follow those of K

    // Fetches what the ring holds at first. `share` warps may call this with copies of the ring;
    // each fetches its part. UNROLL: 1 where a ring has few chunks: loading the code of several
    // takes longer than the loop.
    template <int UNROLL = 4> __device__ __forceinline__ void start(int own = 0, int share = 1) {
        at = phase = tile = chunk = 0;
#pragma unroll UNROLL
        for (int i = 0; i < slots && tile < n; i++)
            fetch(i, i % share == own);
    }
    // The next chunk goes to this slot; unless `here`, another warp fetches it.
    __device__ __forceinline__ void fetch(int slot, bool here = true) {
        if (tile >= n)
            return;
        const TileRef t = tiles[tile];
        const uint32_t to = ring + slot * SLOT, bar = bars + 8 * slot;
        int k_chunks = 0, v_chunks = 0;
        uint32_t k_bytes = 0;
        with_format<KF>(layouts[t.layout()].k, [&](auto f) {
            constexpr int F = decltype(f)::value;
            k_chunks = chunks_of(F);
            k_bytes = key_bytes_of(F, D);
            if (here && chunk < k_chunks)
                chunk_copy<F, true, D>(t.at(), chunk, to, bar);
        });
        with_format<VF>(layouts[t.layout()].v, [&](auto f) {
            constexpr int F = decltype(f)::value;
            v_chunks = chunks_of(F);
            if (here && chunk >= k_chunks)
                chunk_copy<F, false, D>(t.at() + k_bytes, chunk - k_chunks, to, bar);
        });
        if (++chunk == k_chunks + v_chunks) {
            chunk = 0;
            tile++;
        }
    }
    // The address of the next chunk, after waiting for it; with `ahead`, of the one so many
    // further.
    __device__ __forceinline__ uint32_t wait(int ahead = 0) {
        int slot = at + ahead, p = phase;
        if (slot >= slots) {
            slot -= slots;
            p ^= 1;
        }
        barrier_wait(bars + 8 * slot, p);
        return ring + slot * SLOT;
    }
    // Done with the oldest chunk: its slot is filled again.
    __device__ __forceinline__ void release() {
        __syncwarp();
        fetch(at);
        if (++at == slots) {
            at = 0;
            phase ^= 1;
        }
    }
};

// A ring that holds all chunks of a run: nothing is overwritten, and many warps read it.
template <int D> struct Resident {
    static constexpr uint32_t SCALES = scales_at(D);
    uint32_t ring, bars, slot_bytes;
    int at; // the chunk that is read next
    __device__ __forceinline__ uint32_t wait(int ahead = 0) {
        barrier_wait(bars + 8 * (at + ahead), 0);
        return ring + (at + ahead) * slot_bytes;
    }
    __device__ __forceinline__ void release() { at++; }
};
