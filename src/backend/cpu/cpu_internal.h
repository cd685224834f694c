/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the CPU backend share: the backend itself and its scratch memory. */
#ifndef KVASIR_CPU_INTERNAL_H
#define KVASIR_CPU_INTERNAL_H

#include "backend/cpu/kernels.h"

/* Query rows (tokens x heads of one KV head) that share each tile: enough that unpacking a tile is
 * a few percent, few enough that their scores of one run (64 x 512 floats) stay in L2. */
enum { BLOCK_ROWS = 64 };

/* Partial results of attention over one run: what runs are merged from. */
struct partial {
    float max; /* -INFINITY: the row sees nothing of the run */
    float sum;
};

/* One worker's own scratch. */
struct worker_scratch {
    struct query_rows queries; /* of up to BLOCK_ROWS rows */
    float *scores;             /* [BLOCK_ROWS][RUN_TOKENS] */
    struct partial *run, *all; /* [BLOCK_ROWS] of the run at hand; of all runs so far */
    float *run_out, *all_out;  /* [BLOCK_ROWS][head_dim] */
    void *panel;               /* product_scratch_bytes */
    float *term;               /* [max_rows][ITEM_OUTPUTS]: a product\'s second term */
    void *memory;              /* what all of these are cut from */
};

struct backend {
    struct kernels kernels;
    struct thread_pool *pool;
    int threads, act_bits;
    uint32_t max_rows, max_dim, head_dim;
    struct act_rows act;            /* codes, scale, sum for max_rows x max_dim */
    struct act_rows act_rest;       /* the second term of act_bits 16, alike */
    struct worker_scratch *scratch; /* [threads] */
    struct partial *partials;       /* [PARTIAL_ROWS] of split attention */
    float *partial_out;             /* [PARTIAL_ROWS][head_dim] */
};

/* Row-runs that split attention can hold before it merges: 256 runs (131,072 tokens) of 64 rows. */
enum { PARTIAL_ROWS = 16384 };

/* Outputs of one item of a product: for one row some 100 KiB of weights (tens of microseconds:
 * small enough to balance two to sixteen threads, large against the cost of taking an item). */
enum { ITEM_OUTPUTS = 64 };

#endif
