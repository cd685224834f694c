/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU kernels: one typedef per signature, one table of pointers. ref/ fills the whole table;
 * each tier overrides what it does better (a tier is chosen once, at run time). A kernel is pure:
 * no allocation, no threads, no errors, no globals; shapes are checked by its caller.
 *
 * One arithmetic (the same for 1 query row and for 512, in every tier):
 *   integer sums are exact in s32, so their order is free;
 *   float sums have one fixed order per tier that does not depend on the number of rows. ref/ sums
 *   in double.
 *
 * kcheck runs every kernel of every tier against ref/.
 */
#ifndef KVASIR_CPU_KERNELS_H
#define KVASIR_CPU_KERNELS_H

#include <math.h>

#include "backend/shapes.h"

/* Queries and probabilities are rounded to 15 bits: code = rint(x * (ACT16_MAX / max|x|)). Two s8
 * planes (code = 128 * hi + lo) or one s16 hold it. Products with 8-bit codes over <= 128 terms
 * stay below 2^30. */
enum { ACT16_MAX = 16256 };
/* Activations of a product at bits 8. */
enum { ACT8_MAX = 127 };

/* A vector whose largest magnitude is below this counts as zero. (ACT16_MAX / 1e-35 would overflow
 * float32.) */
#define ACT_TINY 1e-30f

/* How a vector becomes codes: x ~ scale * code, code = rint(x * per_unit). */
struct rounding {
    float scale, per_unit;
};

/* Of a vector whose largest magnitude is m (not finite where it holds NaN or Inf), for codes of at
 * most code_max. A vector that holds NaN or Inf gets the scale NaN, so that results are NaN, too,
 * and not something plausible; its codes mean nothing. */
static inline struct rounding rounding_of(float m, int code_max) {
    if (!(m < INFINITY))
        return (struct rounding){NAN, 0};
    if (m < ACT_TINY)
        return (struct rounding){0, 0};
    return (struct rounding){m / (float)code_max, (float)code_max / m};
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Query rows of one KV head, packed by query_pack for the score kernels: for pages of every format.
 * A row is (token, query head); its scale 1/sqrt(head_dim) is already in q. Buffers hold `rows`
 * rows:
 *   f32    [row][dim]    the query itself (for exact pages)
 *   codes  [row][dim]    s16 codes; the order inside each run of 4 dims is the tier's own, and a
 *                        run may be two planes of s8 (code = 256 high + low): 4 low, 4 high bytes
 *   sum32  [row][dim/32] exact sums of the codes of 32 consecutive dims
 *   scale  [row]         q ~ scale * code; 0 for an all-zero row (codes are 0 then) */
struct query_rows {
    uint32_t rows, dim;
    float *f32;
    int16_t *codes;
    int32_t *sum32;
    float *scale;
};
/* q: row i is at q + i * q_stride floats. dim is a multiple of 4 (sum32 is filled for dim / 32
 * whole runs). */
typedef void query_pack_fn(const float *q, size_t q_stride, float q_scale, struct query_rows *out);

/* scores[row * stride + t] = q_row . K_t for the 64 tokens of one tile. Affine:
 *     sum over groups g, in order, of  s[g][t] * (scale * dot_g)  +  b[g][t] * (scale * sum_g),
 *     dot and sum exact s32
 * Scores of masked or never written tokens mean nothing (they are finite if the tile is): the
 * caller masks them. */
typedef void score_tile_fn(const struct tile_layout *l, const void *tile,
                           const struct query_rows *q, float *scores, size_t stride);

/* The same of a K tile of KV_TILE, whose scales and biases are those of channels i:
 *     x_i = q_i * s[i] in float32, rounded to 15 bits with one scale (max|x| / ACT16_MAX) per row
 *     and tile; dot exact s32;
 *     scores = scale * dot_t + sum_i q_i * b[i]
 * q is the row's f32; codes, sum32 and scale are not read. */
typedef score_tile_fn score_channels_fn;

/* What centres add to the scores of a centred tile (struct key_centre of backend.h):
 *     scores[row * stride + t] += sum over j < pairs of A_j cos(x w_j) + B_j sin(x w_j),
 *     x = t - 31.5, for the 64 tokens t = 0..63 of the tile, in float32, cosines and sines each in
 *     order of j. The A and B of a row are those of its query (1/sqrt(head_dim) included) rotated
 *     to the tile's middle.
 *   waves [table row][2][64]  cos, then sin of x w; row index[j] is pair j's. Cosines read the same
 *                             from both ends, sines with the other sign: a kernel may use one half
 *   ab    [row][pairs][2]     A_j, B_j */
typedef void centre_tile_fn(const float *waves, const uint32_t *index, uint32_t pairs,
                            const float *ab, uint32_t rows, float *scores, size_t stride);

/* p[0..n) -> exp(p - max), *max_out, *sum_out; n a multiple of 64; masked scores are -INFINITY and
 * become exactly 0. If all are masked: *max_out -INFINITY, *sum_out 0, p all 0. */
typedef void softmax_run_fn(float *p, uint32_t n, float *max_out, float *sum_out);

/* out[row * out_stride + d] += sum_t p[row * p_stride + t] * V_t[d] for the 64 tokens of one tile;
 * tokens whose p is 0 add nothing even if their slot holds NaN. Affine, per row and group g:
 *     w_t = p_t * s[g][t], rounded to 15 bits with one scale (max|w| / ACT16_MAX) per tile and
 *     group; dot exact s32;
 *     out_d += scale * dot_d + sum_t p_t * b[g][t] */
typedef void value_tile_fn(const struct tile_layout *l, const void *tile, const float *p,
                           size_t p_stride, uint32_t rows, float *out, size_t out_stride);

/* tile_encode_row, byte for byte. */
typedef void encode_row_fn(const struct tile_layout *l, void *tile, uint32_t token, const float *x);
/* tile_encode of the rows that an f16 tile of the same kind (K or V) holds, byte for byte. */
typedef void encode_tile_fn(const struct tile_layout *l, void *tile, const struct tile_layout *from,
                            const void *shadow);

/* y[row] = x[row] . matrix (key_basis_apply) for rows that are x_stride floats apart; y
 * [rows][dim]. In float32, over inputs in order. Not in place. */
typedef void basis_rows_fn(const float *matrix, uint32_t dim, const float *x, size_t x_stride,
                           uint32_t rows, float *y);

/* hadamard_rotate of each row of x [rows][dim], byte for byte. */
typedef void hadamard_rows_fn(float *x, uint32_t dim, uint32_t rows);

/* ---- matrix products ------------------------------------------------------------------------- */

/* Activations of a product. For quantized weights they are rounded per block of 32 of a row: one s8
 * plane (bits 8, code = rint(x * 127 / max|x|)) or 15 bits (bits 16, ACT16_MAX). scale and sum are
 * [row][k/32]; sum = scale * (exact sum of the block's codes), as float. sum16 [row][k/16] is the
 * same as sum for runs of 16. For float weights (run_values 0) only x is used.
 * codes [row][k] are s8 or s16, in natural order or the tier's own inside a block; AVX-512 has
 * planes of s8, of 15 bits a block's 32 high bytes, then its 32 low ones, and fills codes_sum16
 * [row][k/16] with the exact sums of runs of 16 codes.
 * rest [row][k], if not NULL, receives what the codes leave of x: float32(x - scale * code). It is
 * rounded like x and multiplied as a second term (op_matmul). */
struct act_rows {
    const float *x; /* [row][k] */
    uint32_t rows, k;
    int bits; /* 8 or 16 */
    void *codes;
    float *scale, *sum, *sum16;
    int32_t *codes_sum16;
    float *rest;
};
/* Fills codes, scale, sum (and rest) of row i from x. k is a multiple of 32. */
typedef void act_pack_fn(struct act_rows *a, uint32_t row);

/* y[row * y_stride + (j - n0)] = x_row . w_j for outputs j in [n0, n1).
 *
 * Quantized types. The type's parts function (quant.h) says what a row is: integer codes, and for
 * each run of run_values (32 or 16) of them a d and an m. Over blocks of 32 in order, the one or
 * two runs u of a block in order:
 *
 *     acc += (d_u * scale_b) * dot_u                and if the type has_min
 *     acc += m_u * sum_u                            sum_u: sum[b], or sum16[u] for runs of 16
 *
 * with dot exact in s32 and one float32 accumulator per output (double in ref/).
 *
 * Float types: float32 products summed in one fixed order of the tier; F8_E4M3 decodes to float32,
 * its scale multiplied into the value.
 *
 * Bits of an output do not depend on a->rows, n0 or n1. scratch: product_scratch_bytes for a panel
 * of weights, 64-byte aligned, private to the caller. */
typedef void product_fn(const struct weight *w, uint32_t n0, uint32_t n1, const struct act_rows *a,
                        float *y, size_t y_stride, void *scratch);
enum { PRODUCT_PANEL = 16 }; /* work items are cut at multiples of this many outputs */
/* Bytes of scratch a product with k inputs may use. */
static inline size_t product_scratch_bytes(uint32_t k) {
    return (size_t)k * PRODUCT_PANEL * 4 + 4096;
}

/* ---- elementwise ----------------------------------------------------------------------------- */

/* one row; gain NULL: ones; y may be x */
typedef void rms_norm_fn(const float *x, const float *gain, uint32_t dim, float eps, float *y);
/* one head */
typedef void rope_fn(float *head, uint32_t n, const float *cos_in, const float *sin_in,
                     bool adjacent);
/* y may be gate or up. A value depends on its operands alone, here and below, not on its place in
 * the range. */
typedef void gate_mul_fn(const float *gate, const float *up, size_t n, float *y);
/* x += scale * y, rounded once or twice; if scale is 1, the bits of x + y */
typedef void add_fn(float *x, const float *y, float scale, size_t n);
typedef void scale_fn(float *x, float scale, size_t n); /* x *= scale */
/* x = cap * tanh(x / cap), accurate for small x, too */
typedef void softcap_fn(float *x, size_t n, float cap);

/* Constants of the gates; tiers round them to their precision. */
#define GELU_ROOT    0.7978845608028654 /* sqrt(2 / pi) */
#define GELU_CUBIC   0.044715
#define SWIGLU_ALPHA 1.702

/* ---- recurrent layers ------------------------------------------------------------------------ */

/* One token of a short convolution over n channels:
 *     y[c] = sum over j < width of w[j][c] * in[j][c], in order of j, then silu if `silu` is set,
 * with `in` the state [width - 1] followed by x. Afterwards the state is the last width - 1 of in.
 * Rows of state and w are `stride` values apart. y may be x. */
typedef void short_conv_fn(float *state, const float *w, size_t stride, uint32_t width,
                           const float *x, size_t n, bool silu, float *y);

/* One token of the gated delta rule in one value head. q and k are [key_dim], normed; v and y
 * [value_dim]; the state S [key_dim][value_dim]. Lanes are value dims, sums go over the key dims i
 * in order:
 *     S = decay S;  d = beta (v - sum k_i S_i);  S_i = S_i + k_i d;  y = sum q_i S_i */
struct delta_token {
    const float *q, *k, *v;
    float decay, beta;
};
typedef void delta_step_fn(float *state, uint32_t key_dim, uint32_t value_dim,
                           const struct delta_token *t, float *y);

/* ---- the table ------------------------------------------------------------------------------- */

struct kernels {
    enum cpu_tier tier;
    query_pack_fn *query_pack;
    score_tile_fn *score_affine, *score_exact; /* by the page's K format; any bits */
    score_channels_fn *score_channels;
    centre_tile_fn *centre_tile;
    value_tile_fn *value_affine, *value_exact;
    softmax_run_fn *softmax_run;
    encode_row_fn *encode_row;
    encode_tile_fn *encode_tile;
    basis_rows_fn *basis_rows;
    hadamard_rows_fn *hadamard_rows;
    act_pack_fn *act_pack;
    product_fn *product[WEIGHT_TYPES_MAX]; /* by weight_index */
    rms_norm_fn *rms_norm;
    rope_fn *rope;
    gate_mul_fn *gate_mul[GATE_KINDS];
    add_fn *add;
    scale_fn *scale;
    softcap_fn *softcap;
    short_conv_fn *short_conv;
    delta_step_fn *delta_step;
};

/* ref/ fills the table; the others override. Call in rising order of tiers. */
void kernels_init_ref(struct kernels *k);
void avx2_kernels_init(struct kernels *k);
void avx512_kernels_init(struct kernels *k);
void avx512vnni_kernels_init(struct kernels *k);
void amx_kernels_init(struct kernels *k);
void neon_kernels_init(struct kernels *k);
void neondot_kernels_init(struct kernels *k);
/* The table for a tier (at most what the machine has; CPU_TIER_COUNT: the best). */
void kernels_select(struct kernels *k, enum cpu_tier tier);

#endif
