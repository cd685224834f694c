/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a server, for tests of what tiers do to answers: a prefix tree, tiers and a
 * scheduler, which start and end again and again over one folder, whose files fail on demand, and
 * one Redis, which lies on demand. Every row of logits of an answer is compared with that of the
 * same tokens in a run without tiers. Errors that no fault explains end the program. */
#ifndef RESTARTS_H
#define RESTARTS_H

#include "engine/scheduler.h"

#include "faulty_files.h"
#include "lying_redis.h"
#include "sim_models.h"

enum {
    RESTARTS_TEXTS = 2,
    RESTARTS_PAGES = 4, /* of a prompt, at most */
    RESTARTS_ANSWER = 3,
    RESTARTS_LENGTH = (RESTARTS_PAGES + 1) * TILE_TOKENS
};

/* A model with settings, what names its pages, and all logits of the texts. */
struct restarts_model {
    kvasir_context *ctx;
    struct tier_key identity;
    uint64_t page_bytes, state_bytes;
    float *logits[RESTARTS_TEXTS]; /* [RESTARTS_LENGTH][SIM_VOCAB] */
};
void restarts_model_make(struct restarts_model *m, const kvasir_model *model,
                         const kvasir_context_options *options);
void restarts_model_end(struct restarts_model *m);

struct restarts {
    struct temp_folder folder;
    char dir[96]; /* the tier's */
    struct faulty_files files;
    struct lying_redis redis;
    /* of the next start */
    bool disk, remote, remote_first, secret, unchecked;
    double late_seconds, exchange_seconds;
    uint64_t segment_bytes;
    /* since the start */
    const struct restarts_model *model;
    struct prefix_tree *tree;
    struct tiers *tiers;
    struct sched *sched;
    struct tier *on_disk; /* NULL: none */
    const float *row;
    bool answered;
    uint64_t faults; /* that files and the Redis had since restarts_empty, without what runs */
    /* since restarts_empty or restarts_clear, likewise */
    uint64_t rows, wrong; /* of logits that were compared */
    struct tier_stats disk_stats, remote_stats;
    struct tiers_stats loads;
};
void restarts_make(struct restarts *w);
void restarts_end(struct restarts *w);
/* Nothing is stored, nothing fails, figures are 0; settings of the next start are the usual ones:
 * a folder and no Redis. */
void restarts_empty(struct restarts *w);
void restarts_clear(struct restarts *w); /* figures only */

/* Faults of files end with a start. */
void restarts_start(struct restarts *w, const struct restarts_model *m, struct tier_key identity);
/* Answers a prompt of the first so many tokens of a text. Returns how many came from tiers. */
uint32_t restarts_answer(struct restarts *w, uint32_t text, uint32_t prompt, const char *salt);
void restarts_settle(struct restarts *w); /* waits until all has been written or refused */
/* killed: the folder is left as kill -9 would. */
void restarts_stop(struct restarts *w, bool killed);

#endif
