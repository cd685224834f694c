/* SPDX-License-Identifier: Apache-2.0 */
/* attention.h: a block of query rows and what is done with it (attention_block.c); which blocks a
 * step has, and on which threads, is attention.c's.
 *
 * A block is up to 64 query rows of one KV head: some tokens of one sequence, or all tokens that
 * several sequences have in the step, if these sequences share pages. Sequences whose page tables
 * name the same page read its tile once:
 *
 *      member 0   tokens x heads   | page 17 | page 18 | page 19 | page 40 |
 *      member 1                    | page 17 | page 18 | page 19 | page 51 | page 52 |
 *      member 2                    | page 17 | page 18 | page 33 | page 34 |
 *      visits                        rows of     all     0, 1; 2   each
 *
 * A visit is one tile and the rows that are multiplied with it: of members that follow each other.
 * What a row gets from a tile depends on no other row, so visits change no bit.
 */
#ifndef KVASIR_CPU_ATTENTION_H
#define KVASIR_CPU_ATTENTION_H

#include "backend/cpu/cpu_internal.h"

struct attention_job {
    struct cpu_backend *b;
    const struct batch *batch;
    const struct kv_view *views;
    const struct centre_table *centre; /* NULL: no page of the group is centred */
    uint32_t layer, heads, kv_heads, gqa, head_dim;
    uint32_t block_tokens; /* tokens of a block; a power of two, so blocks never cross a page */
    const float *q;
    const struct attention_args *args;
    float *out;
    /* of attention.c */
    uint32_t n_plans, splits; /* most of a block */
    size_t items;
    bool cut;                         /* some block has several items */
    uint32_t wave_first, wave_splits; /* the splits that this wave computes, of those blocks */
};

/* Tokens of one sequence in a block: positions [pos, pos + tokens). */
struct block_member {
    const struct kv_view *view;
    uint32_t row;       /* of the step */
    uint32_t block_row; /* rows are (token, query head of the group), token first */
    uint32_t pos, tokens;
};

struct query_block {
    uint32_t head, rows;
    /* The splits that some row sees: those with kept positions, [0, kept), and those from the start
     * of the earliest window on, [window, end); the first of these may be the same. */
    uint32_t kept, window, end;
    uint32_t n;
    struct block_member members[BLOCK_ROWS];
};

/* The first position of the window of a query at p. */
static inline uint32_t window_start(const struct kv_view *v, uint32_t p) {
    return kv_window_start(v->span, p);
}

/* A block of no rows; tokens of a sequence, which become its next rows. */
void query_block_start(struct query_block *b, uint32_t head);
void query_block_add(struct query_block *b, const struct attention_job *j, uint32_t seq,
                     uint32_t pos, uint32_t tokens);
/* How many splits it sees; 1, of which it sees nothing, if none. */
uint32_t query_block_splits(const struct query_block *b);

/* A tile and the rows of a block that see it. */
struct visit {
    const uint8_t *tile; /* K; its V comes right after */
    const struct page_layout *layout;
    uint32_t number; /* of the tile in the split */
    uint32_t row, rows;
};

struct split {
    uint32_t start;      /* first position */
    uint32_t tiles, n;   /* to the last one that a row sees; visits, in order of tiles */
    uint32_t prefetched; /* visits whose first K bytes were prefetched during the split before */
    struct visit visits[SPLIT_TILES * BLOCK_ROWS];
};

/* Rounds the queries of a block, and what centred keys need of them, into the worker's scratch. */
void query_block_pack(const struct attention_job *j, const struct query_block *b,
                      struct worker_scratch *s);
/* Split i of those that the block sees. */
void query_block_find_split(const struct attention_job *j, const struct query_block *b, uint32_t i,
                            struct split *out);
/* Scores, softmax and values of one split; partial results into part [rows] and out [rows][dim].
 * Prefetches what `next` begins with. */
void query_block_attend(const struct attention_job *j, const struct query_block *b,
                        const struct split *now, struct split *next, struct worker_scratch *s,
                        struct partial *part, float *out);
/* all: the results of the splits before, in order of position. */
void query_block_merge(struct partial *all, float *all_out, const struct partial *split,
                       const float *split_out, uint32_t rows, uint32_t dim);
void query_block_finish(const struct attention_job *j, const struct query_block *b,
                        const struct partial *all, const float *all_out);

/* The backend's memory for partial results and plans. */
bool attention_init(struct cpu_backend *b) MUST_CHECK;
void attention_deinit(struct cpu_backend *b);

#endif
