/* SPDX-License-Identifier: Apache-2.0 */
/* I1, tried at random: whatever is done to a sequence, its logits are bit for bit those of the same
 * tokens run alone and cold.
 *
 * A program picks a tiny model, cache formats, rotation, an exact start, key centres (none, or
 * random ones of some pairs), chunk size, threads and tier, and two token strings that share a
 * prefix. Their logits, every row, come first from plain runs in a context with other chunks and
 * threads. Then random edits act on up to four live sequences: evaluate some tokens in random
 * pieces, evaluate several sequences in one ragged step, fork, trim and go on along the other
 * string, requantize to the formats that they have, destroy. Every row of logits is compared by
 * memcmp; budgets are kept and nothing is left in the pool at the end.
 *
 * Models, formats and rotation take turns by the seed (sim_worlds.h). The rows compared for each
 * shape are counted, and a run long enough for all pairs fails if one is missing.
 *
 * Requantizing to other formats is the exception to I1: what was rounded stays rounded. What still
 * holds is tested, too: two sequences with the same history of evaluations, trims and requantizes
 * have the same logits, even if one runs in other pieces, chunks and threads, in steps with other
 * sequences, and on forks whose twins are requantized to other formats.
 *
 *     sim_property [--programs=N] [--seed=N]
 *
 * Bugs planted (tools/mutants.sh plants them again, `make soak` runs it), all caught:
 *   fork     a fork does not copy the open page, or forgets its references
 *   rotate   pages dropped too early; trim among the kept pages leaves the table's base
 *   masks    a query sees the token after it; the window masked by page; all rows of a block
 *            masked like its last
 *   rows     rows of a block share a query; the last row of a step not multiplied; only the first
 *            row of activations rounded again; all rows of a step rotated like the first
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

#include "last_words.h"
#include "random_programs.h"
#include "sim_worlds.h"

/* Most strings are short, because every token costs; one in eight passes two splits of 512. One
 * program in 64 has many splits, one in 16 more threads than most machines have cores, and one in 8
 * of those that keep the first tokens keeps more than two pages. */
enum {
    VOCAB = SIM_VOCAB,
    LENGTH = 336,
    LENGTH_LONG = 1100,
    LENGTH_MAX = 3000,
    MANY_THREADS = 17,
    LIVE_MAX = 4,
    BATCH_MAX = 64
};

static const char *const BITS[] = {"f16", "8",    "8,4",   "4",   "4,2",  "3",  "2",
                                   "6,5", "bf16", "5,f16", "f32", "r8,4", "t4", "t3,2"};
static const uint32_t CHUNKS[] = {1, 2, 7, 31, 64, 65, 200, 512};
enum { N_BITS = sizeof BITS / sizeof *BITS, N_CHUNKS = 8 };

struct program {
    uint64_t seed;
    struct sim_world choice;
    kvasir_context_options options;
    uint32_t shared; /* the strings agree in positions < shared */
    uint32_t length;
    bool many_threads;
    int32_t tokens[2][LENGTH_MAX];
    float *logits[2]; /* [LENGTH_MAX][VOCAB] */
};

struct live {
    kvasir_seq *seq;
    int string;
};

static struct sim_models sim;
static struct sim_coverage coverage;
static uint64_t rows_compared;

static void die(const struct program *p, const char *what, uint32_t position) {
    const kvasir_context_options *o = &p->options;
    printf("FAILED: %s at position %u\n"
           "  model %s, kv_bits %s, group %s, centre %s, start %u, tail %u, max_kv_size %u, "
           "keep %u, snapshots %u, chunk %u, threads %d, tier %s, shared %u\n"
           "  run again with --programs=1 --seed=%llu\n",
           what, position, SIM_MODELS[p->choice.model], o->kv_bits,
           o->kv_group_size ? o->kv_group_size : "-", o->key_centre, o->quantized_kv_start,
           o->kv_exact_tail, o->max_kv_size, o->kv_keep, o->snapshot_tokens, o->prefill_chunk,
           o->threads, o->cpu_tier, p->shared, (unsigned long long)p->seed);
    sim_models_close(&sim);
    exit(1);
}

static void need(const struct program *p, kvasir_status status, const kvasir_error *err) {
    if (status != KVASIR_OK)
        die(p, err->text, 0);
}

static int random_threads(const struct program *p) {
    return p->many_threads ? MANY_THREADS + (int)random_below(8) : 1 + (int)random_below(3);
}

/* ---- reference ------------------------------------------------------------------------------- */

static bool keep_rows(void *user, size_t first, size_t rows, const float *logits) {
    for (size_t i = 0; i < rows * VOCAB; i++)
        if (!isfinite(logits[i])) {
            printf("FAILED: a logit of the reference is not finite\n");
            exit(1);
        }
    memcpy((float *)user + first * VOCAB, logits, rows * VOCAB * sizeof *logits);
    return true;
}

static void run_reference(struct program *p) {
    kvasir_context_options o = p->options;
    o.prefill_chunk = CHUNKS[random_below(N_CHUNKS)];
    o.threads = random_threads(p);
    kvasir_error err;
    kvasir_context *ctx;
    need(p, kvasir_context_create(sim.models[p->choice.model], &o, &ctx, &err), &err);
    for (int s = 0; s < 2; s++) {
        kvasir_seq *seq;
        need(p, kvasir_seq_create(ctx, &seq, &err), &err);
        kvasir_eval_options eval = {.struct_size = sizeof(kvasir_eval_options),
                                    .on_logits = keep_rows,
                                    .user = p->logits[s]};
        need(p, kvasir_seq_eval(seq, p->tokens[s], p->length, &eval, &err), &err);
        kvasir_seq_destroy(seq);
    }
    kvasir_context_destroy(ctx);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void compare_row(const struct program *p, int string, uint32_t position, const float *logits,
                        const char *what) {
    if (memcmp(logits, p->logits[string] + (size_t)position * VOCAB, VOCAB * sizeof *logits) != 0)
        die(p, what, position);
    rows_compared++;
}

struct eval_check {
    const struct program *p;
    int string;
    uint32_t start;
};

static bool check_rows(void *user, size_t first, size_t rows, const float *logits) {
    const struct eval_check *c = user;
    for (size_t r = 0; r < rows; r++)
        compare_row(c->p, c->string, c->start + (uint32_t)(first + r), logits + r * VOCAB,
                    "eval: other logits");
    return true;
}

/* ---- edits ----------------------------------------------------------------------------------- */

static void edit_eval(const struct program *p, struct live *l) {
    uint32_t at = kvasir_seq_length(l->seq), left = p->length - at;
    if (!left)
        return;
    uint32_t n = 1 + random_below(random_below(3) ? (left < 40 ? left : 40) : left);
    kvasir_error err;
    struct eval_check check = {p, l->string, at};
    float last[VOCAB];
    /* With all rows wanted, steps are short; with the last only, they are as long as the chunk. */
    kvasir_eval_options all = {
        .struct_size = sizeof(kvasir_eval_options), .on_logits = check_rows, .user = &check};
    kvasir_eval_options end = {.struct_size = sizeof(kvasir_eval_options), .last_logits = last};
    bool rows = random_below(2);
    uint64_t bytes = kvasir_seq_bytes(l->seq);
    kvasir_status status =
        kvasir_seq_eval(l->seq, p->tokens[l->string] + at, n, rows ? &all : &end, &err);
    if (status == KVASIR_ERR_BUDGET) {
        if (kvasir_seq_length(l->seq) != at || kvasir_seq_bytes(l->seq) != bytes)
            die(p, "eval: refused for its budget, and changed the sequence", at);
        return;
    }
    need(p, status, &err);
    if (!rows)
        compare_row(p, l->string, at + n - 1, last, "eval: other last logits");
}

/* A step of n rows of several sequences, prepared and not yet committed; all rows' logits. */
static const float *forward(const struct program *p, kvasir_context *ctx,
                            struct kv_seq *const *seqs, const struct batch_seq *rows,
                            uint32_t n_seqs, const int32_t *tokens, const uint32_t *pos,
                            uint32_t n) {
    struct kv_view views[CACHE_GROUPS_MAX * LIVE_MAX];
    struct state_view states[LIVE_MAX];
    uint32_t logit_rows[BATCH_MAX];
    for (uint32_t s = 0; s < n_seqs; s++) {
        for (uint32_t g = 0; g < ctx->n_groups; g++)
            seq_view(seqs[s], g, &views[g * n_seqs + s]);
        seq_state(seqs[s], &states[s]);
    }
    for (uint32_t r = 0; r < n; r++)
        logit_rows[r] = r;
    struct batch batch = {.rows = n,
                          .tokens = tokens,
                          .pos = pos,
                          .n_seqs = n_seqs,
                          .seqs = rows,
                          .views = views,
                          .states = ctx->options.cache.state_bytes ? states : NULL};
    model_forward(ctx->run, &batch);
    static float logits[BATCH_MAX * VOCAB];
    kvasir_error err;
    for (uint32_t r = 0; r < n; r += ctx->options.logit_rows) {
        const uint32_t some = n - r < ctx->options.logit_rows ? n - r : ctx->options.logit_rows;
        const float *results = model_head(ctx->run, logit_rows + r, some);
        if (backend_read(ctx->backend, logits + (size_t)r * VOCAB, results,
                         (size_t)some * VOCAB * sizeof *logits, &err) != KVASIR_OK)
            die(p, err.text, r);
    }
    return logits;
}

/* Several sequences in one step, each with several rows, as the contract of backend.h allows. */
static void edit_batch(const struct program *p, kvasir_context *ctx, struct live *live,
                       uint32_t n_live) {
    struct batch_seq rows[LIVE_MAX];
    struct kv_seq *who[LIVE_MAX];
    int32_t tokens[BATCH_MAX];
    uint32_t pos[BATCH_MAX], owner[BATCH_MAX], n = 0, seqs = 0;
    kvasir_error err;
    for (uint32_t i = 0; i < n_live; i++) {
        uint32_t at = kvasir_seq_length(live[i].seq), room = p->options.prefill_chunk - n;
        uint32_t take = 1 + random_below(12);
        take = take < p->length - at ? take : p->length - at;
        take = take < room ? take : room;
        take = take < BATCH_MAX - n ? take : BATCH_MAX - n;
        if (!take)
            continue;
        kvasir_status status = seq_prepare(live[i].seq->seq, take, &err);
        if (status == KVASIR_ERR_BUDGET)
            continue;
        need(p, status, &err);
        rows[seqs] = (struct batch_seq){.row = n, .rows = take, .pos = at};
        who[seqs++] = live[i].seq->seq;
        for (uint32_t r = 0; r < take; r++, n++) {
            tokens[n] = p->tokens[live[i].string][at + r];
            pos[n] = at + r;
            owner[n] = i;
        }
    }
    if (!n)
        return;
    const float *logits = forward(p, ctx, who, rows, seqs, tokens, pos, n);
    for (uint32_t r = 0; r < n; r++)
        compare_row(p, live[owner[r]].string, pos[r], logits + (size_t)r * VOCAB,
                    "batched step: other logits");
    for (uint32_t s = 0; s < seqs; s++)
        seq_commit(who[s], tokens + rows[s].row, rows[s].rows);
}

/* A fork in the middle of a page, after which both sequences go on along strings that diverge right
 * there: the one place where a page has two owners that will write different tokens. */
static void edit_twins(const struct program *p, struct live *l, struct live *twin) {
    kvasir_error err;
    if (kvasir_seq_length(l->seq) > p->shared)
        (void)!kvasir_seq_trim(
            l->seq, p->shared - random_below(p->shared < 20 ? p->shared + 1 : 20), NULL, &err);
    twin->string = l->string;
    need(p, kvasir_seq_fork(l->seq, &twin->seq, &err), &err);
    if (kvasir_seq_length(l->seq) <= p->shared)
        twin->string = 1 - l->string;
    for (int i = 0; i < 4; i++)
        edit_eval(p, random_below(2) ? l : twin);
}

static void maybe_switch(const struct program *p, struct live *l) {
    if (kvasir_seq_length(l->seq) <= p->shared && random_below(2))
        l->string = 1 - l->string;
}

static void edit_trim(const struct program *p, kvasir_context *ctx, struct live *l) {
    uint32_t length = kvasir_seq_length(l->seq);
    uint32_t most = length;
    if (random_below(4) == 0) /* among the kept pages of a rotating cache */
        most = length < 64 ? length : 64;
    uint32_t to =
        random_below(3) ? most - random_below(most < 70 ? most + 1 : 70) : random_below(most + 1);
    uint64_t bytes = kvasir_seq_bytes(l->seq);
    kvasir_error err;
    uint32_t rerun = 0;
    kvasir_status status = kvasir_seq_trim(l->seq, to, &rerun, &err);
    if (status == KVASIR_ERR_BUDGET) { /* running tokens again needs another state */
        kvasir_seq_destroy(l->seq);
        need(p, kvasir_seq_create(ctx, &l->seq, &err), &err);
        return;
    }
    if (status == KVASIR_OK) {
        if (kvasir_seq_length(l->seq) != to)
            die(p, "trim: wrong length", to);
        const bool whole = kv_cache_is_whole(ctx->cache) && rerun < TILE_TOKENS;
        if (rerun && ((!kv_cache_snapshot_bytes(ctx->cache) && !whole) || rerun > to))
            die(p, "trim: more run again than there was", to);
        maybe_switch(p, l);
        return;
    }
    kvasir_model_info info;
    kvasir_model_get_info(sim.models[p->choice.model], &info);
    if ((!p->options.max_kv_size && !info.window) || to == 0)
        die(p, "trim: refused without reason", to);
    if (kvasir_seq_length(l->seq) != length || kvasir_seq_bytes(l->seq) != bytes)
        die(p, "trim: a refused call changed the sequence", to);
}

/* To the formats that the pages have: nothing may happen. */
static void edit_requantize(const struct program *p, kvasir_context *ctx, struct live *l) {
    kvasir_error err;
    uint64_t taken = kv_pool_stats(kv_cache_pool(ctx->cache)).pages_taken;
    if (kv_cache_start_pages(ctx->cache))
        return; /* an exact start would not stay one */
    need(p, kvasir_seq_requantize(l->seq, p->options.kv_bits, p->options.kv_group_size, &err),
         &err);
    if (kv_pool_stats(kv_cache_pool(ctx->cache)).pages_taken != taken)
        die(p, "requantize: a page was taken for the format it has", kvasir_seq_length(l->seq));
}

static void run_edits(const struct program *p, kvasir_context *ctx, uint32_t edits) {
    struct live live[LIVE_MAX];
    uint32_t n = 0;
    kvasir_error err;
    for (uint32_t e = 0; e < edits; e++) {
        if (n == 0 || (n < LIVE_MAX && random_below(12) == 0)) {
            live[n] = (struct live){.string = (int)random_below(2)};
            need(p, kvasir_seq_create(ctx, &live[n++].seq, &err), &err);
        }
        uint32_t i = random_below(n), what = random_below(14);
        if (what < 5) {
            edit_eval(p, &live[i]);
        } else if (what < 8) {
            edit_batch(p, ctx, live, n);
        } else if (what == 8 && random_below(2)) {
            kvasir_status status = kvasir_seq_snapshot(live[i].seq, &err);
            if (status != KVASIR_OK && !(p->options.kv_exact_tail && status == KVASIR_ERR_BUDGET))
                die(p, err.text, kvasir_seq_length(live[i].seq));
        } else if (what < 10) {
            edit_trim(p, ctx, &live[i]);
        } else if (what < 12 && n < LIVE_MAX) {
            edit_twins(p, &live[i], &live[n]);
            n++;
        } else if (what == 13) {
            edit_requantize(p, ctx, &live[i]);
        } else if (n > 1) {
            kvasir_seq_destroy(live[i].seq);
            live[i] = live[--n];
        }
    }
    while (n)
        kvasir_seq_destroy(live[--n].seq);
}

/* ---- histories ------------------------------------------------------------------------------- */

/* What happens to a sequence. */
struct event {
    enum { EVAL, TRIM, REQUANTIZE } kind;
    uint32_t n;  /* EVAL: tokens; TRIM: tokens to remove */
    int string;  /* EVAL */
    uint32_t to; /* REQUANTIZE: index in history.bits */
};
enum { EVENTS = 14, HISTORY_FORMATS = 4 };
struct history {
    const char *bits[HISTORY_FORMATS]; /* few, because a cache has a bounded table of them */
    struct event events[EVENTS];
};

static void make_history(const struct program *p, struct history *h) {
    for (int i = 0; i < HISTORY_FORMATS; i++)
        h->bits[i] = BITS[random_below(N_BITS)];
    for (int i = 0; i < EVENTS; i++) {
        struct event *e = &h->events[i];
        uint32_t what = i ? random_below(6) : 0;
        e->kind = what < 3 ? EVAL : what < 5 ? REQUANTIZE : TRIM;
        e->n = 1 + random_below(e->kind == TRIM ? 70 : i ? 90 : p->length / 2);
        e->string = (int)random_below(2);
        e->to = random_below(HISTORY_FORMATS);
    }
}

/* One way to go through a history. The first one keeps its logits in p->logits[0], in the order of
 * the calls' rows, the second one compares. */
struct player {
    const struct program *p;
    const struct history *h;
    kvasir_context *ctx;
    kvasir_seq *seq, *other; /* other: a fork that goes its own way, or NULL */
    bool wild;               /* in random pieces, with other sequences in the steps */
    uint32_t rows;           /* of logits so far */
};

static bool player_rows(void *user, size_t first, size_t rows, const float *logits) {
    struct player *y = user;
    (void)first;
    for (size_t r = 0; r < rows; r++, y->rows++, logits += VOCAB)
        if (y->wild)
            compare_row(y->p, 0, y->rows, logits, "history: other logits (row of all)");
        else
            memcpy(y->p->logits[0] + (size_t)y->rows * VOCAB, logits, VOCAB * sizeof *logits);
    return true;
}

/* The twin goes its own way: other formats, other tokens. */
static void disturb(struct player *y) {
    kvasir_error err;
    kvasir_seq *twin;
    if (y->other && random_below(2)) {
        kvasir_seq_destroy(y->other);
        y->other = NULL;
    }
    if (y->other)
        return;
    need(y->p, kvasir_seq_fork(y->seq, &twin, &err), &err);
    bool swap = random_below(2);
    y->other = swap ? y->seq : twin;
    y->seq = swap ? twin : y->seq;
    if (random_below(3))
        need(y->p,
             kvasir_seq_requantize(y->other, y->h->bits[random_below(HISTORY_FORMATS)],
                                   y->p->options.kv_group_size, &err),
             &err);
}

/* A step of both, which may have other formats. */
static void play_step(struct player *y, const int32_t *tokens, uint32_t n) {
    struct batch_seq rows[2];
    struct kv_seq *who[2] = {y->seq->seq, y->other->seq};
    int32_t ids[BATCH_MAX];
    uint32_t pos[BATCH_MAX], first = random_below(2), at = 0, own = 0;
    const uint32_t counts[2] = {n, 1 + random_below(3)};
    kvasir_error err;
    if (first) {
        who[0] = y->other->seq;
        who[1] = y->seq->seq;
    }
    for (uint32_t i = 0; i < 2; i++) {
        bool is_own = i == first;
        uint32_t count = counts[!is_own];
        need(y->p, seq_prepare(who[i], count, &err), &err);
        rows[i] = (struct batch_seq){.row = at, .rows = count, .pos = seq_length(who[i])};
        own = is_own ? at : own;
        for (uint32_t r = 0; r < count; r++, at++) {
            ids[at] = is_own ? tokens[r] : (int32_t)random_below(VOCAB);
            pos[at] = rows[i].pos + r;
        }
    }
    const float *logits = forward(y->p, y->ctx, who, rows, 2, ids, pos, at);
    player_rows(y, 0, n, logits + (size_t)own * VOCAB);
    for (uint32_t i = 0; i < 2; i++)
        seq_commit(who[i], ids + rows[i].row, rows[i].rows);
}

static void play_eval(struct player *y, const struct event *e) {
    kvasir_eval_options eval = {
        .struct_size = sizeof(kvasir_eval_options), .on_logits = player_rows, .user = y};
    kvasir_error err;
    uint32_t at = kvasir_seq_length(y->seq), end = at + e->n;
    end = end < y->p->length ? end : y->p->length;
    end = end - at < LENGTH_MAX - y->rows ? end : at + LENGTH_MAX - y->rows;
    while ((at = kvasir_seq_length(y->seq)) < end) {
        uint32_t n = y->wild ? 1 + random_below(end - at) : end - at;
        const int32_t *tokens = y->p->tokens[e->string] + at;
        const uint32_t chunk = y->ctx->options.prefill_chunk;
        if (y->wild && random_below(2))
            disturb(y);
        /* Only the engine's steps take snapshots by themselves. */
        bool beside = y->wild && y->other && !y->ctx->options.snapshot_tokens && chunk > 3 &&
                      kvasir_seq_length(y->other) + 3 < LENGTH_MAX && random_below(2);
        if (beside) {
            uint32_t most = (chunk < BATCH_MAX ? chunk : BATCH_MAX) - 3;
            play_step(y, tokens, n < most ? n : most);
        } else {
            need(y->p, kvasir_seq_eval(y->seq, tokens, n, &eval, &err), &err);
        }
    }
}

static void play(struct player *y) {
    kvasir_error err;
    need(y->p, kvasir_seq_create(y->ctx, &y->seq, &err), &err);
    for (int i = 0; i < EVENTS; i++) {
        const struct event *e = &y->h->events[i];
        uint32_t length = kvasir_seq_length(y->seq);
        if (e->kind == EVAL)
            play_eval(y, e);
        else if (e->kind == TRIM) /* both players are refused if pages are gone */
            (void)!kvasir_seq_trim(y->seq, e->n < length ? length - e->n : 0, NULL, &err);
        else
            need(
                y->p,
                kvasir_seq_requantize(y->seq, y->h->bits[e->to], y->p->options.kv_group_size, &err),
                &err);
    }
    kvasir_seq_destroy(y->seq);
    kvasir_seq_destroy(y->other);
}

static void run_histories(const struct program *p) {
    struct history h;
    make_history(p, &h);
    uint32_t rows = 0;
    for (int way = 0; way < 2; way++) {
        kvasir_context_options o = p->options;
        o.prefill_chunk = CHUNKS[random_below(N_CHUNKS)];
        o.threads = random_threads(p);
        o.cache_bytes = 256 << 20;
        struct player y = {.p = p, .h = &h, .wild = way == 1};
        kvasir_error err;
        need(p, kvasir_context_create(sim.models[p->choice.model], &o, &y.ctx, &err), &err);
        play(&y);
        kvasir_context_info info;
        kvasir_context_get_info(y.ctx, &info);
        if (info.used_bytes != 0)
            die(p, "history: pages left after the last sequence", 0);
        if (way && y.rows != rows)
            die(p, "history: other lengths", y.rows);
        rows = y.rows;
        kvasir_context_destroy(y.ctx);
    }
}

static void run_program(struct program *p) {
    random_state = p->seed * 0x9e3779b97f4a7c15u + 1;
    const uint32_t rare = (uint32_t)(random_state >> 40);
    p->many_threads = rare % 16 == 0;
    p->length = rare / 16 % 64 == 0                           ? LENGTH_MAX
                : (p->seed + p->seed / SIM_N_MODELS) % 8 == 5 ? LENGTH_LONG
                                                              : LENGTH;
    p->shared = random_below(p->length);
    for (int s = 0; s < 2; s++)
        for (uint32_t i = 0; i < p->length; i++)
            p->tokens[s][i] =
                s == 1 && i < p->shared ? p->tokens[0][i] : (int32_t)random_below(VOCAB);
    p->options = kvasir_context_defaults();
    kvasir_context_options *o = &p->options;
    p->choice = sim_world_make(&sim, p->seed, o);
    if (o->kv_keep && rare / 1024 % 8 == 0) {
        o->kv_keep = 151 + random_below(550);
        o->max_kv_size = o->kv_keep + 1 + random_below(300);
    }
    o->kv_group_size = random_below(2) ? "32" : NULL;
    const uint32_t start = random_below(3);
    o->quantized_kv_start = start ? start > 1 ? KVASIR_START_BY_FORMAT : 0 : random_below(200);
    o->snapshot_tokens = random_below(2) ? 0 : 1 + random_below(150);
    o->act_bits = random_below(2) ? 8 : 16;
    o->cpu_tier = p->length < LENGTH_MAX ? sim_tier_draw(random_below) : "auto";
    if (p->length > LENGTH && strcmp(o->cpu_tier, "ref") == 0 && rare / 8192 % 8)
        o->cpu_tier = "auto"; /* half a minute each on ref: one in eight does, and none of 3,000 */
    o->ctx = LENGTH_MAX;
    o->cache_bytes = 256 << 20;
    run_reference(p);
    o->prefill_chunk = CHUNKS[random_below(N_CHUNKS)];
    o->threads = random_threads(p);
    if (random_below(3) == 0) /* room for a sequence or two: some edits are refused, and undone */
        o->cache_bytes = (uint64_t)1 << (20 + random_below(2));
    kvasir_context *ctx;
    kvasir_error err;
    need(p, kvasir_context_create(sim.models[p->choice.model], o, &ctx, &err), &err);
    const uint64_t rows = rows_compared;
    run_edits(p, ctx, 24);
    sim_coverage_add(&coverage, &sim, &p->choice, rows_compared - rows);
    kvasir_context_info info;
    kvasir_context_get_info(ctx, &info);
    if (info.used_bytes != 0)
        die(p, "pages left after the last sequence", 0);
    if (info.peak_bytes > info.cache_bytes)
        die(p, "budget exceeded", 0);
    kvasir_context_destroy(ctx);
    run_histories(p);
}

int main(int argc, char **argv) {
    uint64_t seed = 20261121;
    unsigned long programs = 60;
    random_arguments(argc, argv, &programs, &seed);
    sim_models_open(&sim);
    last_words(NULL, NULL);
    printf("%lu programs from seed %llu\n", programs, (unsigned long long)seed);
    struct program *p = calloc(1, sizeof *p);
    for (int s = 0; s < 2; s++)
        p->logits[s] = malloc((size_t)LENGTH_MAX * VOCAB * sizeof(float));
    for (unsigned long i = 0; i < programs; i++) {
        char words[120];
        p->seed = seed + i;
        snprintf(words, sizeof words,
                 "FAILED: ended by a signal, or a sanitizer\n  run again with --programs=1 "
                 "--seed=%llu\n",
                 (unsigned long long)p->seed);
        last_words(words, NULL);
        run_program(p);
        last_words(NULL, NULL);
    }
    printf("all logits bit-identical\n");
    const bool whole = programs < SIM_WORLDS || sim_coverage_whole(&coverage, &sim);
    sim_models_close(&sim);
    for (int s = 0; s < 2; s++)
        free(p->logits[s]);
    free(p);
    return !whole;
}
