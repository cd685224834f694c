/* SPDX-License-Identifier: Apache-2.0 */
/* kcheck: every kernel of every tier against ref/ and against the meaning of the numbers.
 *
 *     kcheck [--tier=T] [--require=T] [--seed=N] [--filter=TEXT] [--hash] [--bench]
 *
 *     main.c               options, tiers, what is run
 *     support.c            buffers between guard pages, signals, counting
 *                          (random numbers: tests/support/random_data.c)
 *     check_attention.c    query_pack, score, value
 *     check_scores.c       centre, softmax
 *     check_encode.c       encode_row
 *     check_tiles.c        encode_tile, score_channels, basis_rows, hadamard_rows
 *     check_product.c      act_pack, product
 *     check_elementwise.c  rms_norm, rope, gates, add, scale, softcap
 *     check_recurrent.c    short_conv, delta_step
 *     bench.c              --bench: GB/s and the ratio to ref
 *
 * Requirements on a kernel:
 *   K1  its bytes if bytes are defined (encode, codes, scales); else |got - ref| <= bound *
 *       sum|terms|: the worst that float32 can do in the operations that kernels.h allows, derived
 *       next to each check
 *   K2  its meaning: what the numbers stand for, computed in double from decoded values, within
 *       what rounding queries, weights and activations to 15 (or 8) bits can cost. This also shows
 *       if ref/ itself is wrong.
 *   K3  rows and outputs are independent: a row has the same bits alone and with other rows in any
 *       order, an output in any range
 *   K4  no byte is touched outside: guard pages after and before, read-only inputs, canaries, gaps
 *       between rows
 *   K5  no signal: SEGV, BUS, ILL, FPE are caught and count as that kernel's failure
 *   K6  on amx: products, scores and values have the bits of avx512vnni (cpu_tier_of_bits); scores
 *       of tile keys those of avx2 on all tiers of AVX-512 (avx512/vector.h)
 *
 * Bugs planted to see it fail, each found: exp's third coefficient off by 1e-5; a run's sum in
 * another order above 256 scores; masked slots not skipped; bias weighed by p * scale; row blocks
 * of three without FMA, one row without FMA; -128 in maddubs; Q4_0's offset 7; |min| == |max| the
 * wrong way; times 1/s for a division; a V nibble's neighbour cleared; codes truncated; loads and
 * outputs past the end; a sine with the wrong sign; AFFINE8's minimum without its 128 d; runs of 16
 * with their block's sum, or with the other half's; mxfp4's nibbles the wrong way; tanh from
 * e^x - 1 as it comes; a NaN that a clamp makes 7; up clamped on one side; GELU's 0.0447; a state
 * that does not move on, or is read before its decay; scale on the other operand of add; a range
 * that misses lanes, has a bias -0 or no least step; a byte row of a plane that keeps what was
 * there; biases that meet q s for q; codes from the largest q, not q s; dims beyond 128 alone; rows
 * of a basis at another stride.
 *
 * One case is: case_begin, buffers, calls, checks. Everything random comes from one printed seed.
 */
#ifndef KCHECK_H
#define KCHECK_H

#include "backend/cpu/kernels.h"
#include "random_data.h"
#include "random_weights.h"

/* ---- the run (main.c) ------------------------------------------------------------------------ */

struct tier {
    const char *name;
    struct kernels k;
    const struct kernels *same;          /* of the tier that has the same bits; NULL: none */
    const struct kernels *same_channels; /* likewise, of score_channels */
};
extern struct kernels ref; /* the table that everything is checked against */

void check_attention(const struct tier *t);
void check_scores(const struct tier *t);
void check_encode(const struct tier *t);
void check_tiles(const struct tier *t);
void check_product(const struct tier *t);
void check_elementwise(const struct tier *t);
void check_recurrent(const struct tier *t);
void bench_tier(const struct tier *t);

/* ---- families and cases (support.c) ---------------------------------------------------------- */

/* A family is one line of output: one kernel in one format. False: --filter leaves it out. */
bool family_begin(const struct tier *t, const char *kernel, const char *format);
void family_end(void);
int families_checked(void);
int families_failed(void);
void set_filter(const char *text);
void set_seed(uint64_t seed);
/* Lines of families that hold will end with a hash of all that their kernel wrote, instead of
 * counts, to compare two builds of one tier (the same seed gives the same data). */
void set_print_hashes(void);

/* Starts a case: frees the last one's buffers. The text is printed when a check of it fails. */
void case_begin(const char *format, ...) PRINTF_LIKE(1, 2);
/* Checks the canaries of every buffer. */
void case_end(void);

/* |got - want| <= bound; where want is not finite, got must not be either. Two names because the
 * largest errors of K1 and of K2 are printed apart. */
void check_near(const char *what, size_t i, size_t j, double got, double want, double bound);
void check_meaning(const char *what, size_t i, size_t j, double got, double want, double bound);
void check_that(bool holds, const char *format, ...) PRINTF_LIKE(2, 3);

/* ---- buffers (support.c) --------------------------------------------------------------------- */

/* `bytes` bytes that end where a PROT_NONE page begins, filled with 0xff (NaN as floats); before
 * them canaries, then a PROT_NONE page. Lives until the next case_begin. */
void *guarded(size_t bytes);
/* The same, then read-only: what a kernel must not write. */
void *guarded_copy(const void *from, size_t bytes);
void freeze(void *p);
/* Ordinary memory until the next case_begin. */
void *plain(size_t bytes);

/* All bytes of the gaps between rows [rows][used] of a matrix with `stride` are still 0xff. */
bool gaps_untouched(const float *y, uint32_t rows, size_t used, size_t stride);

/* ---- random data (support.c) ----------------------------------------------------------------- */

/* A random order of 0..n-1. */
void random_order(uint32_t *order, uint32_t n);
/* The numbers of rows that are tried: 1..17 and 64. */
enum { ROW_COUNTS = 18, CASE_ROWS_MAX = 70 };
static inline uint32_t row_count(uint32_t i) {
    return i < 17 ? i + 1 : 64;
}

/* ---- calls with signals caught (support.c) --------------------------------------------------- */

void catch_signals(void);
void call_query_pack(query_pack_fn *fn, const float *q, size_t q_stride, float q_scale,
                     struct query_rows *out);
void call_score(score_tile_fn *fn, const struct tile_layout *l, const void *tile,
                const struct query_rows *q, float *scores, size_t stride);
void call_centre(centre_tile_fn *fn, const float *waves, const uint32_t *index, uint32_t pairs,
                 const float *ab, uint32_t rows, float *scores, size_t stride);
void call_softmax(softmax_run_fn *fn, float *p, uint32_t n, float *max_out, float *sum_out);
void call_value(value_tile_fn *fn, const struct tile_layout *l, const void *tile, const float *p,
                size_t p_stride, uint32_t rows, float *out, size_t out_stride);
void call_encode(encode_row_fn *fn, const struct tile_layout *l, void *tile, uint32_t token,
                 const float *x);
void call_encode_tile(encode_tile_fn *fn, const struct tile_layout *l, void *tile,
                      const struct tile_layout *from, const void *shadow);
void call_basis(basis_rows_fn *fn, const float *matrix, uint32_t dim, const float *x,
                size_t x_stride, uint32_t rows, float *y);
void call_hadamard(hadamard_rows_fn *fn, float *x, uint32_t dim, uint32_t rows);
void call_act_pack(act_pack_fn *fn, struct act_rows *a, uint32_t row);
void call_product(product_fn *fn, const struct weight *w, uint32_t n0, uint32_t n1,
                  const struct act_rows *a, float *y, size_t y_stride, void *scratch);
void call_rms_norm(rms_norm_fn *fn, const float *x, const float *gain, uint32_t dim, float eps,
                   float *y);
void call_rope(rope_fn *fn, float *head, uint32_t n, const float *cos_in, const float *sin_in,
               bool adjacent);
void call_gate_mul(gate_mul_fn *fn, const float *gate, const float *up, size_t n, float *y);
void call_add(add_fn *fn, float *x, const float *y, float scale, size_t n);
void call_scale(scale_fn *fn, float *x, float scale, size_t n);
void call_softcap(softcap_fn *fn, float *x, size_t n, float cap);
void call_short_conv(short_conv_fn *fn, float *state, const float *w, size_t stride, uint32_t width,
                     const float *x, size_t n, bool silu, float *y);
void call_delta_step(delta_step_fn *fn, float *state, uint32_t key_dim, uint32_t value_dim,
                     const struct delta_token *t, float *y);

/* ---- formats that are tried ------------------------------------------------------------------ */

/* Calls fn for every affine format (bits, scalar, group, head_dim) or exact format (scalar,
 * head_dim) of one kind of tile, as one family per (bits, scalar). */
typedef void format_fn(const struct tier *t, const struct tile_layout *l);
void for_formats(const struct tier *t, const char *kernel, enum tile_kind kind, bool exact,
                 format_fn *fn);
/* KV_TILE of every number of bits and head_dim, with scalars up to `last`; KV_ROTATED of f16. */
void for_tile_formats(const struct tier *t, const char *kernel, enum tile_kind kind,
                      enum scalar_type last, format_fn *fn);
void for_rotated_formats(const struct tier *t, const char *kernel, enum tile_kind kind,
                         format_fn *fn);

/* ---- bounds (check_attention.c) -------------------------------------------------------------- */

#define TILE_UNDERFLOW 0x1p-120
#define ROUNDED        (0.5 + 3 * ACT16_MAX * 0x1p-24)

#endif
