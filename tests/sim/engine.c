/* SPDX-License-Identifier: Apache-2.0 */
/* I1 for everything at once: prefix tree, scheduler, batches and sequences of one context, used at
 * random. Whatever they do, the logits of every token are bit for bit those of the same tokens run
 * alone and cold.
 *
 * A world is a tiny model, cache formats, rotation, an exact start, key centres, tier, and three
 * token strings that share prefixes; all their logits come first from plain runs. Programs of a
 * world are lists of operations on a context with its own budget, chunk and threads: requests that
 * run along a string (the "sampler" compares the logits that it is given, then takes the string's
 * next token), with followers, cancelled at any step; steps; eviction; and other sequences, which
 * resume from the tree, are evaluated alone or in batches, forked, trimmed, stored, requantized to
 * the formats that they have. Budgets are often too small for all, so that requests wait and are
 * preempted. After every operation the tree and the budget are checked, at the end nothing is left.
 * Models, formats and rotation take turns by the world's seed (sim_worlds.h). The rows compared for
 * each shape are counted, and a run long enough for all pairs fails if one is missing.
 *
 * Half of the r8,4 worlds have "auto": their rows are the plain runs' until a page has lost bits.
 *
 * Most programs have tiers below the tree, which all programs of a world share and which return
 * wrong things (sim_tiers.h). With --unchecked they are believed: the control, which must fail.
 *
 * A program that fails, even by an assert or a bad address, is shrunk: the test starts itself again
 * with --shrink and removes operations as long as the program still fails, each try in a child.
 *
 *     sim_engine [--programs=N] [--from=K] [--seed=N] [--unchecked]
 *     sim_engine --seed=N --program=K [--shrink]     one program of one world
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cache/tree_internal.h"
#include "engine/scheduler.h"

#include "last_words.h"
#include "random_programs.h"
#include "sim_tiers.h"
#include "sim_worlds.h"

enum {
    VOCAB = SIM_VOCAB,
    STRINGS = 3,
    LENGTH = 230,
    LENGTH_LONG = 1100, /* longer than two splits of 512 */
    LENGTH_MAX = 3000,  /* one world in 64 */
    MANY_THREADS = 17,  /* one program in 64: more than most machines have cores */
    TASKS_MAX = 48,
    FOLLOWERS_MAX = 6, /* mostly up to two */
    SEQS_MAX = 4,
    OPS = 36,
    PROGRAMS_PER_WORLD = 10,
};

static const uint32_t CHUNKS[] = {1, 2, 7, 31, 64, 65, 200, 512};

struct world {
    uint64_t seed;
    struct sim_world choice;
    uint32_t length;
    kvasir_context_options options;
    int32_t tokens[STRINGS][LENGTH_MAX];
    float *logits[STRINGS]; /* [LENGTH_MAX][VOCAB] */
    struct faulty_store *stores[2];
};

/* ---- programs -------------------------------------------------------------------------------- */

enum op_kind {
    OP_SUBMIT, /* string, prompt, answer, followers */
    OP_STEPS,  /* how many */
    OP_CANCEL, /* which */
    OP_EVICT,  /* KiB; or seconds pass: whether, how many, nodes to look at */
    OP_FORGET,
    OP_SEQ_NEW, /* string, most tokens to look for */
    OP_SEQ_EVAL,
    OP_SEQ_BATCH,
    OP_SEQ_TRIM,
    OP_SEQ_FORK,
    OP_SEQ_STORE,
    OP_SEQ_REQUANTIZE,
    OP_SEQ_DROP,
    OP_KINDS
};
static const char *const OP_NAMES[] = {
    "submit",    "steps",    "cancel",   "evict",     "forget",         "seq new", "seq eval",
    "seq batch", "seq trim", "seq fork", "seq store", "seq requantize", "seq drop"};

struct op {
    enum op_kind kind;
    uint32_t a, b, c, d; /* taken modulo what exists: fewer operations still are a program */
};

struct program {
    const struct world *w;
    unsigned long number; /* of the world's */
    kvasir_context_options options;
    struct sched_options sched;
    bool no_tree;
    struct sim_tier_plan tiers;
    struct op ops[OPS];
    uint32_t n_ops;
};

struct answer {
    struct task task;
    uint32_t string;
    bool ended;
    struct task *followers[FOLLOWERS_MAX];
};

struct seq_beside {
    kvasir_seq *seq;
    struct tree_cursor at;
    uint32_t string;
};

struct run {
    const struct program *p;
    kvasir_context *ctx;
    struct prefix_tree *tree;
    struct tiers *tiers;
    struct sched *sched;
    uint64_t room; /* of the budget, for requests */
    uint64_t now;  /* for the tree, in seconds since 1970 */
    const float *logits;
    struct answer answers[TASKS_MAX];
    uint32_t n_answers;
    struct seq_beside seqs[SEQS_MAX];
    uint32_t n_seqs;
    uint32_t op;
};

static struct sim_models sim;
static bool shrinking; /* this process only says whether a program fails */
static unsigned long long hits, preemptions, cancels, rows_compared, rows_descended;
static struct sim_coverage coverage;

static void print_program(const struct program *p) {
    const kvasir_context_options *o = &p->options;
    printf("  model %s, kv_bits %s, group %s, centre %s, start %u, tail %u, max %u, keep %u, chunk "
           "%u, threads %d, tier %s, act %d, budget %llu, running %u, points every %u%s, %s\n",
           SIM_MODELS[p->w->choice.model], o->kv_bits, o->kv_group_size ? o->kv_group_size : "-",
           o->key_centre, o->quantized_kv_start, o->kv_exact_tail, o->max_kv_size, o->kv_keep,
           o->prefill_chunk, o->threads, o->cpu_tier, o->act_bits,
           (unsigned long long)o->cache_bytes, p->sched.max_running, p->sched.snapshot_tokens,
           p->no_tree ? ", no tree" : "", policy_name(p->sched.policy));
    for (uint32_t i = 0; i < p->n_ops; i++)
        printf("  %-14s %u %u %u %u\n", OP_NAMES[p->ops[i].kind], p->ops[i].a, p->ops[i].b,
               p->ops[i].c, p->ops[i].d);
}

/* Arguments that shrink the current program, and the text that is printed if a signal ends it. */
static struct {
    char seed[40], program[40], words[200];
    char *arguments[4];
} again;

static void set_again(const struct program *p) {
    const unsigned long long seed = p->w->seed;
    snprintf(again.seed, sizeof again.seed, "--seed=%llu", seed);
    snprintf(again.program, sizeof again.program, "--program=%lu", p->number);
    snprintf(again.words, sizeof again.words,
             "FAILED: ended by a signal, or a sanitizer\n  run again with --seed=%llu "
             "--program=%lu\n",
             seed, p->number);
    memcpy(again.arguments, (char *[]){again.seed, again.program, "--shrink", NULL},
           sizeof again.arguments);
    last_words(again.words, again.arguments);
}

_Noreturn static void die(const struct run *r, const char *what, uint32_t at) {
    if (shrinking)
        _exit(3);
    printf("FAILED: %s (%u) in operation %u\n  run again with --seed=%llu --program=%lu\n", what,
           at, r->op, (unsigned long long)r->p->w->seed, r->p->number);
    if (!r->p->n_ops) { /* the plain runs */
        print_program(r->p);
        exit(1);
    }
    sim_models_close(&sim);
    fflush(stdout);
    begin_anew(again.arguments);
}

#define CHECK(r, what, x)                                                                          \
    do {                                                                                           \
        if (!(x))                                                                                  \
            die(r, what ": " #x, 0);                                                               \
    } while (0)

static void need(const struct run *r, kvasir_status status, const kvasir_error *err) {
    if (status != KVASIR_OK)
        die(r, err->text, 0);
}

/* Rows of a sequence that may have seen pages of fewer bits may be others. */
static void compare(const struct run *r, const struct kv_seq *seq, uint32_t string,
                    uint32_t position, const float *logits, const char *what) {
    const float *expected = r->p->w->logits[string] + (size_t)position * VOCAB;
    const bool descended = seq_has_descended(seq);
    CHECK(r, "fewer bits", !descended || kv_cache_rungs(r->ctx->cache));
    if (!descended && memcmp(logits, expected, VOCAB * sizeof *logits) != 0)
        die(r, what, position);
    rows_compared += !descended;
    rows_descended += descended;
}

/* ---- the scheduler's host -------------------------------------------------------------------- */

static kvasir_status host_run(void *user, const struct step_part *parts, uint32_t n,
                              kvasir_error *err) {
    struct run *r = user;
    return step_run(r->ctx, parts, n, NULL, err);
}

static kvasir_status host_logits(void *user, struct task *t, uint32_t row, kvasir_error *err) {
    (void)t;
    struct run *r = user;
    return step_logits(r->ctx, row, &r->logits, err);
}

static void host_progress(void *user, struct task *t) {
    CHECK((struct run *)user, "progress", seq_length(t->seq) < t->n_tokens);
}

static bool host_next(void *user, struct task *t, uint32_t row) {
    struct run *r = user;
    (void)row;
    const struct answer *a = t->owner;
    compare(r, t->seq, a->string, t->n_tokens - 1, r->logits, "request: other logits");
    t->tokens[t->n_tokens] = r->p->w->tokens[a->string][t->n_tokens];
    t->n_tokens++;
    return t->n_tokens < t->cap;
}

static void host_ended(void *user, struct task *t, enum task_end end, const kvasir_error *error) {
    struct run *r = user;
    struct answer *a = t->owner;
    CHECK(r, "ended", !a->ended);
    a->ended = true;
    if (end == END_COMPLETE)
        CHECK(r, "a whole answer", t->n_tokens == t->cap);
    /* sequences outside the scheduler may hold the memory that it needs */
    if (end == END_FAILED && (error->code != KVASIR_ERR_BUDGET || !r->n_seqs))
        die(r, error->text, t->n_tokens);
    free(t->tokens);
    t->tokens = NULL;
}

/* ---- operations ------------------------------------------------------------------------------ */

static struct answer *make_answer(struct run *r, const struct op *op) {
    const uint32_t length = r->p->w->length;
    struct answer *a = &r->answers[r->n_answers++];
    *a = (struct answer){.string = op->a % STRINGS};
    const uint32_t prompt = 1 + op->b % (length - 2);
    const uint32_t most = length - 1 - prompt;
    const uint32_t reply = 1 + op->c % (most < 40 ? most : 40);
    a->task = (struct task){.owner = a,
                            .salt = op->d & 64 ? "s" : "",
                            .salt_len = op->d & 64 ? 1 : 0,
                            .n_prompt = prompt,
                            .cap = prompt + reply,
                            .tenant = op->c >> 8 & 3,
                            .weight = op->c >> 10 & 7,
                            .priority = (int32_t)(op->c >> 13 & 3) - 1,
                            .detached = (op->d & 31) == 31,
                            .no_store = (op->d >> 7 & 7) == 0,
                            .ttl_seconds = op->d >> 10 & 3 ? 0 : 1 + (op->d >> 12 & 3),
                            .pin = (op->d >> 14 & 3) == 0};
    a->task.tokens = malloc((prompt + reply) * sizeof(int32_t));
    memcpy(a->task.tokens, r->p->w->tokens[a->string], prompt * sizeof(int32_t));
    return a;
}

static void op_submit(struct run *r, const struct op *op) {
    const uint32_t most = op->d >> 16 ? 2 : FOLLOWERS_MAX; /* one in 16 */
    uint32_t followers = op->d % 8 <= most ? op->d % 8 : 0;
    if (followers + 1 > r->p->sched.max_running)
        followers = r->p->sched.max_running - 1;
    if (r->n_answers + followers + 1 > TASKS_MAX)
        return;
    struct answer *lead = make_answer(r, op);
    if (sched_need(r->sched, lead->task.cap) > r->room) { /* refused */
        free(lead->task.tokens);
        r->n_answers--;
        return;
    }
    for (uint32_t i = 0; i < followers; i++) {
        lead->followers[i] = &make_answer(r, op)->task;
        memset(lead->followers[i]->tokens, 0xff, lead->task.n_prompt * sizeof(int32_t));
    }
    lead->task.followers = lead->followers;
    lead->task.n_followers = followers;
    sched_submit(r->sched, &lead->task);
}

static void op_steps(struct run *r, uint32_t n) {
    kvasir_error err;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t rows;
        sched_collect(r->sched, clock_seconds());
        need(r, sched_step(r->sched, &rows, &err), &err);
        CHECK(r, "rows", rows <= r->ctx->options.prefill_chunk);
        CHECK(r, "a few pages", kv_cache_descend(r->ctx->cache, 2) <= 2);
        sched_note_step(r->sched, rows, 0.001 * (double)(rows * 7 % 40)); /* any time */
        const struct sched_stats s = sched_stats(r->sched);
        CHECK(r, "running", s.running <= r->p->sched.max_running);
        if (!rows && !sim_tiers_wait(r->tiers))
            return;
    }
}

static void op_cancel(struct run *r, uint32_t which) {
    for (uint32_t i = 0; i < r->n_answers; i++) {
        struct answer *a = &r->answers[(which + i) % r->n_answers];
        if (a->ended)
            continue;
        sched_cancel(r->sched, &a->task);
        CHECK(r, "cancelled", a->ended && !a->task.seq && !a->task.charged);
        cancels++;
        return;
    }
}

static void room_for(struct run *r, const struct seq_beside *s, uint32_t n) {
    const uint32_t length = seq_length(s->seq->seq);
    if (r->tree)
        (void)!tree_make_room(r->tree, 4096 + seq_need_bytes(s->seq->seq, length + n, n, 8));
}

static void op_seq_new(struct run *r, const struct op *op) {
    struct seq_beside *s = &r->seqs[r->n_seqs];
    kvasir_error err;
    if (r->n_seqs == SEQS_MAX)
        return;
    s->string = op->a % STRINGS;
    s->at = (struct tree_cursor){TREE_NOWHERE};
    need(r, kvasir_seq_create(r->ctx, &s->seq, &err), &err);
    r->n_seqs++;
    if (!r->tree)
        return;
    struct tree_hit hit;
    need(r,
         tree_resume(r->tree, "", 0, r->p->w->tokens[s->string], 1 + op->b % r->p->w->length,
                     s->seq->seq, &s->at, &hit, &err),
         &err);
    tree_count(r->tree, &s->at, r->p->w->tokens[s->string], 1 + op->b % r->p->w->length);
    need(r, seq_reserve(s->seq->seq, r->ctx->options.ctx, &err), &err);
    hits += hit.length > 0;
}

struct row_check {
    const struct run *r;
    const struct kv_seq *seq;
    uint32_t string, start;
};

static bool check_rows(void *user, size_t first, size_t rows, const float *logits) {
    const struct row_check *c = user;
    for (size_t i = 0; i < rows; i++)
        compare(c->r, c->seq, c->string, c->start + (uint32_t)(first + i), logits + i * VOCAB,
                "sequence: other logits");
    return true;
}

static void op_seq_eval(struct run *r, struct seq_beside *s, const struct op *op) {
    const uint32_t at = kvasir_seq_length(s->seq), left = r->p->w->length - at;
    struct row_check check = {r, s->seq->seq, s->string, at};
    kvasir_eval_options eval = {
        .struct_size = sizeof(kvasir_eval_options), .on_logits = check_rows, .user = &check};
    kvasir_error err;
    if (!left)
        return;
    const uint32_t n = 1 + op->b % (op->c % 3 ? (left < 40 ? left : 40) : left);
    room_for(r, s, n);
    kvasir_status status = kvasir_seq_eval(s->seq, r->p->w->tokens[s->string] + at, n, &eval, &err);
    if (status != KVASIR_ERR_BUDGET)
        need(r, status, &err);
}

/* All sequences merged, evaluated, and taken apart again in another order. */
static void op_seq_batch(struct run *r, const struct op *op) {
    kvasir_seq *seqs[SEQS_MAX];
    uint32_t counts[SEQS_MAX], n = 0;
    int32_t tokens[SEQS_MAX * 16];
    float *logits = malloc(SEQS_MAX * VOCAB * sizeof *logits);
    kvasir_batch *one, *two;
    kvasir_error err;
    for (uint32_t i = 0; i < r->n_seqs; i++) {
        const uint32_t at = kvasir_seq_length(r->seqs[i].seq), left = r->p->w->length - at;
        seqs[i] = r->seqs[i].seq;
        counts[i] = (op->b >> 4 * i) % 16;
        counts[i] = counts[i] < left ? counts[i] : left;
        memcpy(tokens + n, r->p->w->tokens[r->seqs[i].string] + at, counts[i] * sizeof *tokens);
        n += counts[i];
        room_for(r, &r->seqs[i], counts[i]);
    }
    const uint32_t half = r->n_seqs / 2;
    need(r, kvasir_batch_merge(r->ctx, seqs, half, &one, &err), &err);
    need(r, kvasir_batch_merge(r->ctx, seqs + half, r->n_seqs - half, &two, &err), &err);
    need(r, kvasir_batch_extend(one, two, &err), &err);
    CHECK(r, "extend", kvasir_batch_size(two) == 0 && kvasir_batch_size(one) == r->n_seqs);
    kvasir_batch_destroy(two);
    kvasir_status status = kvasir_batch_eval(one, tokens, counts, logits, &err);
    if (status != KVASIR_ERR_BUDGET)
        need(r, status, &err);
    for (uint32_t i = 0; i < r->n_seqs; i++)
        if (status == KVASIR_OK && counts[i])
            compare(r, r->seqs[i].seq->seq, r->seqs[i].string,
                    kvasir_seq_length(r->seqs[i].seq) - 1, logits + (size_t)i * VOCAB,
                    "batch: other logits");
    for (uint32_t i = r->n_seqs; i-- > 0;) {
        kvasir_seq *seq;
        need(r, kvasir_batch_extract(one, i, &seq, &err), &err);
        CHECK(r, "extract", seq == r->seqs[i].seq);
    }
    kvasir_batch_destroy(one);
    free(logits);
}

static void op_seq_trim(struct run *r, struct seq_beside *s, const struct op *op) {
    const uint32_t length = kvasir_seq_length(s->seq);
    const uint32_t to =
        op->c % 3 ? length - op->b % (length < 70 ? length + 1 : 70) : op->b % (length + 1);
    kvasir_error err;
    /* the cursor's node will not be one of this sequence's */
    if (r->tree && to < length)
        tree_close(r->tree, &s->at);
    room_for(r, s, 1);
    (void)!kvasir_seq_trim(s->seq, to, NULL, &err);
    const uint32_t shorter = kvasir_seq_length(s->seq);
    const int32_t *tokens = r->p->w->tokens[(s->string + 1) % STRINGS];
    if (op->d % 2 && memcmp(tokens, kvasir_seq_tokens(s->seq), shorter * sizeof *tokens) == 0)
        s->string = (s->string + 1) % STRINGS; /* continues along another */
}

static void op_seq_fork(struct run *r, const struct seq_beside *s) {
    struct seq_beside *f = &r->seqs[r->n_seqs];
    kvasir_error err;
    if (r->n_seqs == SEQS_MAX)
        return;
    *f = *s;
    need(r, kvasir_seq_fork(s->seq, &f->seq, &err), &err);
    if (r->tree)
        f->at = tree_cursor_copy(r->tree, s->at);
    r->n_seqs++;
}

static void op_seq_drop(struct run *r, uint32_t i) {
    kvasir_seq_destroy(r->seqs[i].seq);
    if (r->tree)
        tree_close(r->tree, &r->seqs[i].at);
    r->seqs[i] = r->seqs[--r->n_seqs];
}

/* Requantizes a sequence to the formats that it has: no page may be taken. */
static void op_seq_requantize(struct run *r, struct seq_beside *s) {
    const kvasir_context_options *o = &r->p->options;
    kvasir_error err;
    const uint64_t taken = kv_pool_stats(kv_cache_pool(r->ctx->cache)).pages_taken;
    if (kv_cache_start_pages(r->ctx->cache) || kv_cache_rungs(r->ctx->cache))
        return;
    need(r, kvasir_seq_requantize(s->seq, o->kv_bits, o->kv_group_size, &err), &err);
    CHECK(r, "requantize", kv_pool_stats(kv_cache_pool(r->ctx->cache)).pages_taken == taken);
}

/* Nothing goes that could have stayed at fewer bits. */
static void evict(struct run *r, uint64_t bytes) {
    const uint64_t evicted = tree_stats(r->tree).evicted_pages;
    (void)!tree_make_room(r->tree, bytes);
    if (evicted < tree_stats(r->tree).evicted_pages)
        CHECK(r, "evicted", sim_all_is_down(r->tree));
}

static void do_op(struct run *r, const struct op *op) {
    struct seq_beside *s = r->n_seqs ? &r->seqs[op->a % r->n_seqs] : NULL;
    switch (op->kind) {
    case OP_SUBMIT:
        op_submit(r, op);
        return;
    case OP_STEPS:
        op_steps(r, 1 + op->a % 24);
        return;
    case OP_CANCEL:
        op_cancel(r, op->a);
        return;
    case OP_EVICT:
        if (r->tree && op->b % 2)
            (void)tree_expire(r->tree, r->now += op->c % 4, op->d % 256);
        else if (r->tree)
            evict(r, (uint64_t)(op->a % 1024) << 10);
        return;
    case OP_FORGET:
        if (r->tiers && op->a % 4 == 0)
            tiers_forget(r->tiers, op->b % 2 ? NULL : "s", 1);
        if (r->tree && op->a % 4 == 0)
            tree_forget(r->tree, op->b % 2 ? NULL : "s", 1);
        return;
    case OP_SEQ_NEW:
        op_seq_new(r, op);
        return;
    case OP_SEQ_BATCH:
        if (r->n_seqs)
            op_seq_batch(r, op);
        return;
    default:
        break;
    }
    if (!s)
        return;
    switch (op->kind) {
    case OP_SEQ_EVAL:
        op_seq_eval(r, s, op);
        break;
    case OP_SEQ_TRIM:
        op_seq_trim(r, s, op);
        break;
    case OP_SEQ_FORK:
        op_seq_fork(r, s);
        break;
    case OP_SEQ_STORE:
        if (r->tree)
            tree_store(r->tree, &s->at, s->seq->seq, op->b % 2);
        break;
    case OP_SEQ_REQUANTIZE:
        op_seq_requantize(r, s);
        break;
    case OP_SEQ_DROP:
        op_seq_drop(r, op->a % r->n_seqs);
        break;
    default:
        break;
    }
}

/* ---- running --------------------------------------------------------------------------------- */

static void check_all(struct run *r) {
    const struct kv_pool_stats pool = kv_pool_stats(kv_cache_pool(r->ctx->cache));
    CHECK(r, "budget", pool.peak_bytes <= pool.budget_bytes);
    if (r->tree)
        tree_check(r->tree);
}

static void begin_run(struct run *r) {
    const struct sched_host host = {.user = r,
                                    .run = host_run,
                                    .logits = host_logits,
                                    .progress = host_progress,
                                    .next = host_next,
                                    .ended = host_ended};
    kvasir_error err;
    need(r, kvasir_context_create(sim.models[r->p->w->choice.model], &r->p->options, &r->ctx, &err),
         &err);
    if (!r->p->no_tree)
        need(r, tree_create(r->ctx->cache, 1000, &r->tree, &err), &err);
    r->now = (uint64_t)time(NULL);
    if (r->tree)
        (void)tree_expire(r->tree, r->now, 0);
    r->tiers = sim_tiers_create(&r->p->tiers, (struct faulty_store **)r->p->w->stores, r->tree);
    const struct kv_pool_stats pool = kv_pool_stats(kv_cache_pool(r->ctx->cache));
    r->room = pool.budget_bytes - pool.charged_bytes;
    struct sched_options options = r->p->sched;
    options.tiers = r->tiers;
    ASSERT(options.step_rows == r->ctx->options.prefill_chunk);
    need(r, sched_create(r->ctx->cache, r->tree, &options, &host, &r->sched, &err), &err);
}

static void end_run(struct run *r) {
    while (r->n_seqs)
        op_seq_drop(r, 0);
    for (uint32_t rows = 1; rows || sim_tiers_wait(r->tiers);) {
        kvasir_error err;
        sched_collect(r->sched, clock_seconds());
        need(r, sched_step(r->sched, &rows, &err), &err);
        check_all(r);
    }
    for (uint32_t i = 0; i < r->n_answers; i++)
        CHECK(r, "every request ends", r->answers[i].ended);
    const struct sched_stats s = sched_stats(r->sched);
    for (int kind = KVASIR_HIT_EXACT; kind < KVASIR_HIT_KINDS; kind++)
        hits += s.hits[kind];
    preemptions += s.preemptions;
    sched_destroy(r->sched);
    sim_tiers_destroy(r->tiers, &r->p->tiers);
    tree_destroy(r->tree);
    const struct kv_pool_stats pool = kv_pool_stats(kv_cache_pool(r->ctx->cache));
    CHECK(r, "nothing is left",
          pool.used_bytes == 0 && pool.charged_bytes == r->ctx->cache->ladder.spare_bytes);
    CHECK(r, "nothing is left", pool.stored_bytes == 0 && pool.pages_used == 0);
    kvasir_context_destroy(r->ctx);
}

static void run_program(const struct program *p) {
    struct run *r = calloc(1, sizeof *r);
    r->p = p;
    begin_run(r);
    for (r->op = 0; r->op < p->n_ops; r->op++) {
        do_op(r, &p->ops[r->op]);
        check_all(r);
    }
    end_run(r);
    free(r);
}

/* ---- making a failing program small ---------------------------------------------------------- */

static void run_quietly(void *program) {
    shrinking = true;
    run_program(program);
}

static bool still_fails(struct program *p) {
    return fails_in_a_child(run_quietly, p);
}

static void shrink(struct program *p) {
    struct program small = *p;
    print_program(p);
    if (!still_fails(p)) {
        printf("alone it does not fail\n");
        return;
    }
    for (uint32_t size = OPS / 2; size > 0;) {
        bool smaller = false;
        for (uint32_t at = 0; at + size <= small.n_ops;) {
            struct program tried = small;
            memmove(tried.ops + at, tried.ops + at + size,
                    (tried.n_ops - at - size) * sizeof *tried.ops);
            tried.n_ops -= size;
            if (still_fails(&tried)) {
                small = tried;
                smaller = true;
            } else {
                at += size;
            }
        }
        size = smaller && size == 1 ? 1 : size / 2;
    }
    printf("the smallest that fails:\n");
    print_program(&small);
}

/* ---- worlds ---------------------------------------------------------------------------------- */

static bool keep_rows(void *user, size_t first, size_t rows, const float *logits) {
    memcpy((float *)user + first * VOCAB, logits, rows * VOCAB * sizeof *logits);
    return true;
}

static void run_reference(struct world *w) {
    const struct program p = {.w = w, .options = w->options};
    const struct run r = {.p = &p};
    kvasir_context_options o = w->options;
    kvasir_context *ctx;
    kvasir_error err;
    set_again(&p);
    last_words(again.words, NULL); /* there is nothing to shrink */
    o.cache_bytes = 256 << 20;
    need(&r, kvasir_context_create(sim.models[w->choice.model], &o, &ctx, &err), &err);
    for (int s = 0; s < STRINGS; s++) {
        kvasir_seq *seq;
        kvasir_eval_options eval = {.struct_size = sizeof(kvasir_eval_options),
                                    .on_logits = keep_rows,
                                    .user = w->logits[s]};
        need(&r, kvasir_seq_create(ctx, &seq, &err), &err);
        need(&r, kvasir_seq_eval(seq, w->tokens[s], w->length, &eval, &err), &err);
        kvasir_seq_destroy(seq);
    }
    kvasir_context_destroy(ctx);
    last_words(NULL, NULL);
}

static void make_world(struct world *w) {
    random_state = w->seed * 0x9e3779b97f4a7c15u + 1;
    const uint32_t rare = (uint32_t)(random_state >> 40);
    w->length = random_below(30) == 0 ? LENGTH_LONG : LENGTH;
    if (rare % 64 == 0)
        w->length = LENGTH_MAX;
    for (int s = 0; s < STRINGS; s++) {
        const uint32_t shared = s ? random_below(w->length) : 0;
        for (uint32_t i = 0; i < w->length; i++)
            w->tokens[s][i] = i < shared ? w->tokens[s - 1][i] : (int32_t)random_below(VOCAB);
    }
    kvasir_context_options *o = &w->options;
    *o = kvasir_context_defaults();
    w->choice = sim_world_make(&sim, w->seed, o);
    if (w->seed % 2 && strcmp(o->kv_bits, "r8,4") == 0)
        o->kv_bits = "auto"; /* its plain runs have room */
    if (o->kv_keep && w->length > LENGTH) {
        o->kv_keep = 151 + random_below(550);
        o->max_kv_size = o->kv_keep + 1 + random_below(300);
    }
    o->kv_group_size = random_below(2) ? "32" : NULL;
    const uint32_t start = random_below(4);
    o->quantized_kv_start = start ? start > 1 ? KVASIR_START_BY_FORMAT : 0 : random_below(193);
    o->act_bits = random_below(2) ? 8 : 16;
    o->cpu_tier = w->length == LENGTH ? sim_tier_draw(random_below) : "auto"; /* ref is slow */
    o->ctx = LENGTH_MAX;
    run_reference(w);
}

static void make_program(struct program *p) {
    static const enum op_kind often[] = {OP_SUBMIT,  OP_SUBMIT,   OP_SUBMIT,  OP_SUBMIT,
                                         OP_STEPS,   OP_STEPS,    OP_STEPS,   OP_STEPS,
                                         OP_SEQ_NEW, OP_SEQ_EVAL, OP_SEQ_EVAL};
    const enum { N_OFTEN = sizeof often / sizeof *often } n_often = N_OFTEN;
    random_state = (p->w->seed * 1000 + p->number) * 0x9e3779b97f4a7c15u + 7;
    p->options = p->w->options;
    p->options.prefill_chunk = CHUNKS[random_below(8)];
    /* More threads than cores mostly wait for each other: three are drawn rarely. */
    const uint32_t rare = (uint32_t)(random_state >> 40), draw = (uint32_t)random_below(8);
    p->options.threads = draw == 0 ? 3 : draw <= 3 ? 2 : 1;
    if (rare % 64 == 0)
        p->options.threads = MANY_THREADS + (int)(rare / 64 % 8);
    p->options.snapshot_tokens = random_below(2) ? 0 : 64 * (1 + random_below(2));
    p->options.cache_bytes =
        random_below(3) ? (uint64_t)(300 + random_below(2000)) << 10 : (uint64_t)64 << 20;
    p->sched = sim_sched_draw(random_below, p->options.prefill_chunk, rare >> 12);
    p->no_tree = random_below(12) == 0;
    p->tiers = sim_tiers_draw(random_below, p->w->seed);
    p->n_ops = OPS;
    for (uint32_t i = 0; i < OPS; i++)
        p->ops[i] = (struct op){.kind = random_below(2) ? often[random_below(n_often)]
                                                        : (enum op_kind)random_below(OP_KINDS),
                                .a = random_below(1u << 20),
                                .b = random_below(1u << 20),
                                .c = random_below(1u << 20),
                                .d = random_below(1u << 20)};
}

/* Runs n programs from number `from` on, counted through all worlds. */
static void run_programs(uint64_t seed, unsigned long from, unsigned long n, bool small) {
    struct world *w = calloc(1, sizeof *w);
    for (int s = 0; s < STRINGS; s++)
        w->logits[s] = malloc((size_t)LENGTH_MAX * VOCAB * sizeof(float));
    for (unsigned long i = from; i < from + n; i++) {
        struct program p = {.w = w, .number = i % PROGRAMS_PER_WORLD};
        if (p.number == 0 || i == from) {
            w->seed = seed + i / PROGRAMS_PER_WORLD;
            make_world(w);
            for (int k = 0; k < 2; k++) {
                faulty_store_destroy(w->stores[k]);
                w->stores[k] = faulty_store_create(w->seed + (uint64_t)k);
            }
        }
        make_program(&p);
        if (small) {
            shrink(&p);
            break;
        }
        const uint64_t rows = rows_compared;
        set_again(&p);
        run_program(&p);
        last_words(NULL, NULL);
        sim_coverage_add(&coverage, &sim, &w->choice, rows_compared - rows);
    }
    for (int s = 0; s < STRINGS; s++)
        free(w->logits[s]);
    for (int k = 0; k < 2; k++)
        faulty_store_destroy(w->stores[k]);
    free(w);
}

int main(int argc, char **argv) {
    uint64_t seed = 20261122;
    unsigned long programs = 60, from = 0;
    bool small = false;
    random_arguments(argc, argv, &programs, &seed);
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--program=", 10) == 0) {
            from = strtoul(argv[i] + 10, NULL, 10);
            programs = 1;
        }
        if (strncmp(argv[i], "--from=", 7) == 0)
            from = strtoul(argv[i] + 7, NULL, 10);
        small |= strcmp(argv[i], "--shrink") == 0;
        sim_tiers_unchecked |= strcmp(argv[i], "--unchecked") == 0;
    }
    sim_models_open(&sim);
    last_words(NULL, NULL);
    if (small) {
        run_programs(seed, from, programs, small);
        sim_models_close(&sim);
        return 1;
    }
    printf("%lu programs from seed %llu\n", programs, (unsigned long long)seed);
    run_programs(seed, from, programs, false);
    printf("%llu rows of logits bit-identical, %llu after pages that lost bits; %llu hits, %llu "
           "preemptions, %llu cancels\n",
           rows_compared, rows_descended, hits, preemptions, cancels);
    const bool faulty = sim_tiers_report();
    const bool whole = programs < SIM_WORLDS * PROGRAMS_PER_WORLD ||
                       (sim_coverage_whole(&coverage, &sim) && faulty);
    sim_models_close(&sim);
    return !whole || (programs >= 60 && (!hits || !preemptions || !cancels));
}
