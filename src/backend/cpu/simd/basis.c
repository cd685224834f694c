/* SPDX-License-Identifier: Apache-2.0 */
/* basis.c: rows in another basis, and queries as tiles with channel scales read them.
 *
 * Invariants: an output is summed over inputs in order, whatever other rows the call has; rotations
 * have the bits of hadamard_rotate.
 */
#include "backend/cpu/simd/simd.h"

/* Rows and vectors of outputs whose sums are in registers: of several rows, of one. */
enum { ROWS = 4, VECTORS = 2, VECTORS_OF_ONE = 8 };

/* Outputs [out, out + vectors) of n rows. */
ALWAYS_INLINE void rows_of_basis(const float *matrix, size_t dim, const float *x, size_t x_stride,
                                 int n, int vectors, float *y) {
    vf sum[ROWS][VECTORS_OF_ONE];
    UNROLL_FOR(r, n) {
        UNROLL_FOR(v, vectors) {
            sum[r][v] = splat(0);
        }
    }
    for (size_t in = 0; in < dim; in++) {
        vf m[VECTORS_OF_ONE];
        UNROLL_FOR(v, vectors) {
            m[v] = load(matrix + in * dim + (size_t)v * LANES);
        }
        UNROLL_FOR(r, n) {
            const vf factor = splat(x[(size_t)r * x_stride + in]);
            UNROLL_FOR(v, vectors) {
                sum[r][v] = fmadd(factor, m[v], sum[r][v]);
            }
        }
    }
    UNROLL_FOR(r, n) {
        UNROLL_FOR(v, vectors) {
            store(y + (size_t)r * dim + (size_t)v * LANES, sum[r][v]);
        }
    }
}

/* One row: as many chains of additions as there are registers for. */
static void row_of_basis(const float *matrix, size_t dim, const float *x, float *y) {
    size_t out = 0;
    for (; out + VECTORS_OF_ONE * LANES <= dim; out += VECTORS_OF_ONE * LANES)
        rows_of_basis(matrix + out, dim, x, 0, 1, VECTORS_OF_ONE, y + out);
    for (; out < dim; out += VECTORS * LANES)
        rows_of_basis(matrix + out, dim, x, 0, 1, VECTORS, y + out);
}

void TIER(basis_rows)(const float *matrix, uint32_t dim, const float *x, size_t x_stride,
                      uint32_t rows, float *y) {
    ASSERT(dim % (VECTORS * LANES) == 0);
    size_t row = 0;
    for (; row + ROWS <= rows; row += ROWS)
        for (size_t out = 0; out < dim; out += VECTORS * LANES)
            rows_of_basis(matrix + out, dim, x + row * x_stride, x_stride, ROWS, VECTORS,
                          y + row * dim + out);
    for (; row < rows; row++)
        row_of_basis(matrix, dim, x + row * x_stride, y + row * dim);
}

/* ---- rotations ------------------------------------------------------------------------------- */

/* The steps of hadamard_rotate whose pairs are in one vector: x_i + x_j where bit `distance` of i
 * is 0, x_j - x_i where it is 1, j = i ^ distance. */
ALWAYS_INLINE vf rotate_lanes(vf x) {
    enum { S = INT32_MIN };
    static const int32_t SIGNS[][16] = {{0, S, 0, S, 0, S, 0, S, 0, S, 0, S, 0, S, 0, S},
                                        {0, 0, S, S, 0, 0, S, S, 0, 0, S, S, 0, 0, S, S},
                                        {0, 0, 0, 0, S, S, S, S, 0, 0, 0, 0, S, S, S, S},
                                        {0, 0, 0, 0, 0, 0, 0, 0, S, S, S, S, S, S, S, S}};
    UNROLL_FOR(step, 4) {
        if (1 << step < LANES) {
            vi signs;
            memcpy(&signs, SIGNS[step], sizeof signs);
            x = swap_lanes(x, 1 << step) + (vf)((vi)x ^ signs);
        }
    }
    return x;
}

/* One block of `block` floats, a multiple of LANES. */
static void rotate_block(float *x, size_t block, vf scale) {
    for (size_t i = 0; i < block; i += LANES)
        store(x + i, rotate_lanes(load(x + i)));
    for (size_t half = LANES; half < block; half *= 2)
        for (size_t i = 0; i < block; i += 2 * half)
            for (size_t j = i; j < i + half; j += LANES) {
                const vf a = load(x + j), b = load(x + j + half);
                store(x + j, a + b);
                store(x + j + half, a - b);
            }
    for (size_t i = 0; i < block; i += LANES)
        store(x + i, load(x + i) * scale);
}

void TIER(hadamard_rows)(float *x, uint32_t dim, uint32_t rows) {
    const size_t block = dim & -dim, n = (size_t)rows * dim;
    const vf scale = splat((float)(1 / m_sqrt((double)block)));
    ASSERT(block % LANES == 0);
    for (size_t i = 0; i < n; i += block)
        rotate_block(x + i, block, scale);
}

/* ---- queries of KV_TILE ---------------------------------------------------------------------- */

enum { PACK_ROWS = 4 };

/* n <= PACK_ROWS rows, which share what is loaded of the tile. */
ALWAYS_INLINE void pack_rows(const struct tile_layout *l, const uint8_t *tile, const float *q,
                             size_t n, size_t row, struct channel_queries *out) {
    const size_t dim = l->head_dim;
    const enum scalar_type t = (enum scalar_type)l->format.scalar;
    float x[PACK_ROWS][HEAD_DIM_MAX];
    vi max[PACK_ROWS];
    channel_sum bias[PACK_ROWS];
    UNROLL_FOR(r, PACK_ROWS) {
        max[r] = (vi){0};
        bias[r] = (channel_sum){0};
    }
    for (size_t i = 0; i < dim; i += LANES) {
        const vf s = load_as(t, tile + l->scale_offset, i),
                 b = load_as(t, tile + l->bias_offset, i);
        UNROLL_FOR(r, PACK_ROWS) {
            if ((size_t)r < n) {
                const vf v = load(q + (size_t)r * dim + i), scaled = v * s;
                bias[r] = channel_add(bias[r], v, b);
                store(x[r] + i, scaled);
                max[r] = max_int(max[r], magnitude_bits(scaled));
            }
        }
    }
    UNROLL_FOR(r, PACK_ROWS) {
        if ((size_t)r < n) {
            const struct rounding by = rounding_of(max_magnitude(max[r]), ACT16_MAX);
            out->scale[row + (size_t)r] = by.scale;
            out->bias_sum[row + (size_t)r] = channel_total(bias[r]);
            for (size_t i = 0; i < dim; i += 32)
                (void)query_codes(x[r] + i, 32, by.per_unit,
                                  out->codes + (row + (size_t)r) * dim + i);
        }
    }
}

void TIER(channel_pack)(const struct tile_layout *l, const void *tile, const float *q,
                        uint32_t rows, struct channel_queries *out) {
    const size_t dim = l->head_dim;
    ASSERT(dim % 32 == 0 && dim <= HEAD_DIM_MAX && rows <= CHANNEL_ROWS);
    for (size_t row = 0; row < rows; row += PACK_ROWS) {
        const float *from = q + row * dim;
        switch (rows - row) {
        case 1:
            pack_rows(l, tile, from, 1, row, out);
            break;
        case 2:
            pack_rows(l, tile, from, 2, row, out);
            break;
        case 3:
            pack_rows(l, tile, from, 3, row, out);
            break;
        default:
            pack_rows(l, tile, from, PACK_ROWS, row, out);
            break;
        }
    }
}
