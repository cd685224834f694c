/* SPDX-License-Identifier: Apache-2.0 */
/* quality.h: parts of `kvasir quality`.
 *
 *   quality.c          flags; everything in order
 *   quality_measure.c  contexts; the exact run and the formats side by side
 *   quality_runs.c     kept values, and what they say
 *   quality_state.c    the file of --resume
 *   quality_print.c    the table and the JSON
 *   quality_svg.c      the plot, and the file of --peers
 *
 * A run is one set of cache options over all windows. Of each prediction three values are kept, in
 * the order of windows and positions. Positions before the least of --depths are run, but nothing
 * is kept of them:
 *
 *     window 0:  | - - - - | 0 1 2 ... rows - 1 |      row i: the prediction at position first + i
 *     window 1:  | - - - - | 0 1 2 ... rows - 1 |
 */
#ifndef KVASIR_CLI_QUALITY_H
#define KVASIR_CLI_QUALITY_H

#include "text_windows.h"

enum { QUALITY_FORMATS_MAX = 16, QUALITY_BITS_BYTES = 32 };

struct quality_args {
    kvasir_model_options load;
    kvasir_context_options context; /* without kv_bits, ctx and cache_bytes */
    const char *model, *file, *svg, *peers, *resume;
    struct text_list bits;
    struct number_list depths; /* rising, without repeats */
    uint32_t window, windows;
    bool json, quiet;
};

struct quality_run {
    char bits[QUALITY_BITS_BYTES]; /* as --kv-bits has it */
    char fingerprint[17];          /* of its context: two runs with the same are one */
    uint32_t windows;              /* finished */
    double seconds;                /* of the model's steps in them */
    uint64_t pages_bytes;          /* of the pages of a window, the last one whole, too */
    float *kl, *nll;               /* [windows][rows]; kl of the exact run: 0 */
    uint8_t *same_top;             /* [windows][rows] */
    uint32_t cap;                  /* windows that the arrays have room for */
    kvasir_context_info info;      /* of this run's context; not of one that --resume alone has */
};

struct quality_results {
    const struct quality_args *a;
    kvasir_model_info model;
    char name[MODEL_NAME_BYTES];
    struct text_windows text;
    uint32_t first, rows;
    char settings[256];                         /* what kept values depend on beside the run */
    struct quality_run *runs;                   /* [n_runs], calloc */
    size_t n_runs;                              /* also those that only --resume has */
    size_t exact, formats[QUALITY_FORMATS_MAX]; /* places in runs; [a->bits.n] */
};

/* Runs what is missing. Fills in all but a and name. The caller frees with quality_results_free,
 * also after a failure. */
int quality_measure(const struct command *c, kvasir_model *model, struct quality_results *r);

/* ---- quality_runs.c ---- */

/* Room for so many windows; false: out of memory. */
bool quality_run_reserve(const struct quality_results *r, struct quality_run *run,
                         uint32_t windows);
/* Of a window. */
uint32_t quality_pages(const struct quality_results *r);
/* The run with this fingerprint, which is added if there is none; NULL: out of memory. Moves other
 * runs. */
struct quality_run *quality_run_find(struct quality_results *r, const char *fingerprint);
void quality_results_free(struct quality_results *r);

struct quality_figures {
    size_t predictions;
    lab_summary kl, nll;
    double same_top, ppl, ppl_ratio; /* of them; ratio: to the exact run's */
    double token_bytes,
        value_bits; /* of a window's pages: a token in all layers, a value of K or V */
    double speed;   /* tokens a second, all rows and all logits */
};
/* Of the predictions at positions from `depth` on. False: out of memory. */
bool quality_figures(const struct quality_results *r, const struct quality_run *run, uint32_t depth,
                     struct quality_figures *f);

/* ---- quality_state.c ---- */

/* Adds the runs of the file of --resume, which may not exist yet. An error if it is of other
 * settings. */
int quality_state_read(const struct command *c, struct quality_results *r);
/* Replaces the file. */
int quality_state_write(const struct command *c, const struct quality_results *r);

/* ---- the others ---- */

int quality_print_table(const struct command *c, const struct quality_results *r);
int quality_print_json(const struct command *c, const struct quality_results *r);
/* Reads and checks the file of --peers. *out: json_decref. */
int quality_peers_read(const struct command *c, const char *path, json_t **out);
/* The plot as a document; text_free. peers: NULL, or what quality_peers_read gave. False: out of
 * memory. */
bool quality_svg(const struct quality_results *r, const json_t *peers, struct text_buf *out);

#endif
