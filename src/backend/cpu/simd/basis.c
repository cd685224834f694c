/* SPDX-License-Identifier: Apache-2.0 */
/* basis.c: rows in another basis, and queries as tiles with channel scales read them.
 *
 * Invariant: an output is summed over inputs in order, whatever other rows the call has.
 */
#include "backend/cpu/simd/simd.h"

/* Rows and vectors of outputs whose sums are in registers. */
enum { ROWS = 4, VECTORS = 2 };

/* Outputs [out, out + VECTORS vectors) of n rows. */
ALWAYS_INLINE void rows_of_basis(const float *matrix, size_t dim, const float *x, size_t x_stride,
                                 int n, float *y) {
    vf sum[ROWS][VECTORS];
    UNROLL_FOR(r, ROWS) {
        UNROLL_FOR(v, VECTORS) {
            sum[r][v] = splat(0);
        }
    }
    for (size_t in = 0; in < dim; in++) {
        vf m[VECTORS];
        UNROLL_FOR(v, VECTORS) {
            m[v] = load(matrix + in * dim + (size_t)v * LANES);
        }
        UNROLL_FOR(r, ROWS) {
            if (r < n) {
                const vf factor = splat(x[(size_t)r * x_stride + in]);
                UNROLL_FOR(v, VECTORS) {
                    sum[r][v] = fmadd(factor, m[v], sum[r][v]);
                }
            }
        }
    }
    UNROLL_FOR(r, ROWS) {
        UNROLL_FOR(v, VECTORS) {
            if (r < n)
                store(y + (size_t)r * dim + (size_t)v * LANES, sum[r][v]);
        }
    }
}

void TIER(basis_rows)(const float *matrix, uint32_t dim, const float *x, size_t x_stride,
                      uint32_t rows, float *y) {
    ASSERT(dim % (VECTORS * LANES) == 0);
    for (size_t row = 0; row < rows; row += ROWS) {
        const float *from = x + row * x_stride;
        for (size_t out = 0; out < dim; out += VECTORS * LANES) {
            float *to = y + row * dim + out;
            if (rows - row >= ROWS)
                rows_of_basis(matrix + out, dim, from, x_stride, ROWS, to);
            else
                for (size_t r = 0; r < rows - row; r++)
                    rows_of_basis(matrix + out, dim, from + r * x_stride, x_stride, 1,
                                  to + r * dim);
        }
    }
}

/* ---- queries of KV_TILE ---------------------------------------------------------------------- */

void TIER(channel_pack)(const struct tile_layout *l, const void *tile, const float *q,
                        uint32_t rows, struct channel_queries *out) {
    const uint8_t *base = tile;
    const size_t dim = l->head_dim;
    const enum scalar_type t = (enum scalar_type)l->format.scalar;
    float x[HEAD_DIM_MAX];
    ASSERT(dim % 32 == 0 && dim <= HEAD_DIM_MAX && rows <= CHANNEL_ROWS);
    for (size_t row = 0; row < rows; row++, q += dim) {
        vi max = {0};
        vf bias = splat(0);
        for (size_t i = 0; i < dim; i += LANES) {
            const vf v = load(q + i), scaled = v * load_as(t, base + l->scale_offset, i);
            bias = fmadd(v, load_as(t, base + l->bias_offset, i), bias);
            store(x + i, scaled);
            max = max_int(max, magnitude_bits(scaled));
        }
        const struct rounding r = rounding_of(max_magnitude(max), ACT16_MAX);
        out->scale[row] = r.scale;
        out->bias_sum[row] = sum_lanes(bias);
        for (size_t i = 0; i < dim; i += 32)
            (void)query_codes(x + i, 32, r.per_unit, out->codes + row * dim + i);
    }
}
