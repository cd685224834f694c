/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h: parts of `kvasir bench`.
 *
 *   bench.c          flags; everything in order
 *   bench_measure.c  contexts, long sequences, runs by turns
 *   bench_figures.c  medians and spreads
 *   bench_print.c    the table and the JSON
 *   bench_svg.c      the plot
 *
 * A row is what one format does at one depth: a prompt of some tokens, or answers of a batch. Rows
 * that differ in the format alone are a cell. All cells are measured once a round, so that a
 * machine that is slow for a while slows all of them down:
 *
 *     warm-up                 round 0                          round 1
 *     8,4 f16   8,4 f16 ...   M 8,4 f16   M 8,4 f16   ...      M f16 8,4   M f16 8,4   ...
 *     depth 0   depth 8,192   depth 0     depth 8,192
 *
 * M: the machine's ceilings (lab/ceiling.c), by which the runs that follow are judged.
 */
#ifndef KVASIR_CLI_BENCH_H
#define KVASIR_CLI_BENCH_H

#include "cli.h"

enum { BENCH_FORMATS_MAX = 8, BENCH_ROUNDS_MAX = 64 };

struct bench_args {
    kvasir_model_options load;
    kvasir_context_options context; /* without kv_bits, ctx and cache_bytes */
    const char *model, *svg;
    struct text_list bits;
    struct number_list depths, prompts, batches; /* rising, without repeats */
    uint32_t answer, rounds;
    bool json, quiet;
};

struct bench_row {
    const char *bits;
    size_t format, place; /* place: of the depth in their list */
    bool decode;
    uint32_t depth, tokens, batch; /* tokens: of the prompt, or of each answer */
    lab_work work;                 /* of one run */
    double seconds[BENCH_ROUNDS_MAX];
    double percent[BENCH_ROUNDS_MAX]; /* of the roofline; NaN: not known */
    bool memory;                      /* the roofline is the memory's */
};

struct bench_results {
    const struct bench_args *a;
    kvasir_model_info model;
    char name[MODEL_NAME_BYTES];
    kvasir_context_info formats[BENCH_FORMATS_MAX]; /* [a->bits.n] */
    bool floats;             /* multiply is of 32-bit floats, not of 8-bit codes */
    bool known;              /* there are ceilings */
    double *read, *multiply; /* [n_ceilings] a second */
    size_t n_ceilings;
    struct bench_row *rows; /* [n_rows] by depth, cell, format */
    size_t n_rows;
};

/* Fills in all but a. The caller frees with bench_results_free, also after a failure. */
int bench_measure(const struct command *c, kvasir_model *model, struct bench_results *r);
void bench_results_free(struct bench_results *r);

/* ---- bench_figures.c ---- */

/* The median and the extremes of n values. */
struct bench_figure {
    double median, least, most;
};
struct bench_figure bench_figure(const double *values, size_t n);
/* Tokens a second of all sequences. */
struct bench_figure bench_speed(const struct bench_results *r, const struct bench_row *row);
/* Nanoseconds that a step takes longer for each cached token, by round; false: fewer than two
 * depths were measured. */
bool bench_slope(const struct bench_results *r, size_t format, uint32_t batch,
                 struct bench_figure *ns);

/* ---- the others ---- */

int bench_print_table(const struct command *c, const struct bench_results *r);
int bench_print_json(const struct command *c, const struct bench_results *r);
/* The plot as a document; text_free. False: out of memory. */
bool bench_svg(const struct bench_results *r, struct text_buf *out);

#endif
