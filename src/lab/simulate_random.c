/* SPDX-License-Identifier: Apache-2.0 */
/* simulate_random.c: random requests with faults through the real scheduler, tree and pool, on
 * pages that have memory. Everything is checked after every step.
 *
 * A hash replaces the model. For each row a step writes a hash of all tokens up to it into the
 * row's slot of every group's page. Then it reads the hash of every token that the row sees:
 *
 *     hash[0] = salt    hash[p + 1] = mix(hash[p], token p)    page of p, slot p % 64: hash[p + 1]
 *
 * A page that is wrong, stale or another sequence's would change attention; here it changes a
 * number, which is noticed. States of recurrent layers hold the hash after the last token. Tokens
 * of an answer follow from the hash, too, so equal prompts get equal answers, as from a model.
 *
 * A program is a cache, a budget (often hardly enough for one request), and moves: submit, cancel,
 * forget, evict, a step, a step that fails. All of it is a function of its seed.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "engine/scheduler.h"
#include "lab/lab.h"

enum {
    REQUESTS_MAX = 72, /* choices of all requests in a program */
    LENGTH_MAX = 420,  /* tokens of a request, answer included */
    CHOICES_MAX = 3,
    ANSWER_MAX = 70,
    TAIL_MAX = 90, /* tokens at a prompt's end that are its own */
    VOCAB = 4,     /* small, so that some tokens agree by chance */
    SYSTEMS = 3,   /* texts that prompts start with */
    SALTS = 2,
    GROUPS = 3,
    MOVES = 160,
    STEPS_MAX = 100000, /* a program that needs more makes no progress */
};

struct trial {
    struct task task; /* owner: this */
    uint32_t salt, choice;
    uint32_t stop;                 /* length at which its answer ends */
    int32_t tokens[LENGTH_MAX];    /* the task's */
    int32_t expected[LENGTH_MAX];  /* what they should be */
    uint64_t hash[LENGTH_MAX + 1]; /* of the expected tokens before a position */
    bool ended;
    struct task *followers[CHOICES_MAX - 1];
};

/* A page that somebody holds. */
struct held {
    uint32_t addr;
    bool live; /* held by a sequence; otherwise by the tree */
    uint64_t bytes;
};

struct world {
    uint64_t seed, random;
    struct kv_shape groups[GROUPS];
    uint32_t n_groups;
    struct kv_cache_options cache_options;
    struct sched_options options;
    struct backend *backend;
    struct kv_cache *cache;
    struct prefix_tree *tree; /* NULL: no prefix cache */
    struct sched *sched;
    int32_t systems[SYSTEMS][LENGTH_MAX];
    uint32_t system_len[SYSTEMS];
    struct trial *trials; /* [REQUESTS_MAX] */
    uint32_t n_trials;
    bool fault;        /* the current step fails */
    struct held *held; /* [cap_held] */
    size_t n_held, cap_held;
    uint64_t most_bytes; /* highest count so far */
    lab_random_simulation *sum;
};

static uint32_t below(struct world *w, uint32_t n) {
    return (uint32_t)((mix_bits(w->random += 0x9e3779b97f4a7c15ULL) >> 32) % n);
}

/* Records a violation; only the first one is kept. */
static void PRINTF_LIKE(2, 3) violated(struct world *w, const char *format, ...) {
    char what[200];
    va_list args;
    if (w->sum->violation[0])
        return;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    snprintf(w->sum->violation, sizeof w->sum->violation,
             "%s (step %" PRIu64 " in all; one program from seed %" PRIu64 " repeats it)", what,
             w->sum->steps, w->seed);
}

static bool holds(const struct world *w) {
    return w->sum->violation[0] == 0;
}

/* ---- what a step writes and sees ------------------------------------------------------------- */

static uint64_t hash_token(uint64_t before, int32_t token) {
    return mix_bits(before * 31 + (uint64_t)token + 1);
}

/* Groups store different numbers: otherwise one group's page could pass for another's. */
static uint64_t stored_hash(const struct trial *a, uint32_t group, uint32_t position) {
    return a->hash[position + 1] + group;
}

/* Offset of a position's hash in the arena; false: the position has no page. */
static bool place_of(const struct kv_view *v, uint32_t position, size_t *at) {
    const uint32_t i = kv_view_index(v, position / TILE_TOKENS);
    if (i == UINT32_MAX)
        return false;
    *at = page_offset(v->pages[i].addr) + position % TILE_TOKENS * sizeof(uint64_t);
    return true;
}

static uint64_t read_hash(struct world *w, const struct backend_arena *arena, size_t at) {
    uint64_t hash;
    (void)!backend_arena_read(w->backend, arena, at, &hash, sizeof hash, NULL);
    return hash;
}

static void write_rows(struct world *w, const struct trial *a, uint32_t group, uint32_t at,
                       uint32_t end) {
    struct kv_view v;
    seq_view(a->task.seq, group, &v);
    for (uint32_t p = at; p < end; p++) {
        const uint64_t hash = stored_hash(a, group, p);
        size_t place;
        if (place_of(&v, p, &place))
            backend_arena_write(w->backend, v.arena, place, &hash, sizeof hash);
        else
            violated(w, "row %u of group %u has no page", p, group);
    }
}

/* Checks all that rows [at, end) see: what the first of them sees, and the rows themselves. */
static void check_rows(struct world *w, const struct trial *a, uint32_t group, uint32_t at,
                       uint32_t end) {
    struct kv_view v;
    seq_view(a->task.seq, group, &v);
    const uint32_t seen_from = v.span == UINT32_MAX || at + 1 < v.span ? 0 : at + 1 - v.span;
    for (uint32_t p = 0; p < end; p++) {
        size_t place;
        if (p >= v.keep && p < seen_from)
            continue;
        if (!place_of(&v, p, &place)) {
            violated(w, "row %u does not find token %u of group %u", at, p, group);
            return;
        }
        if (read_hash(w, v.arena, place) != stored_hash(a, group, p)) {
            violated(w, "row %u sees a wrong token %u in group %u", at, p, group);
            return;
        }
        w->sum->tokens_checked++;
    }
}

static void run_state(struct world *w, const struct trial *a, uint32_t at, uint32_t end) {
    struct state_view state;
    if (!w->cache_options.state_bytes)
        return;
    seq_state(a->task.seq, &state);
    const size_t place = page_offset(state.addr);
    if (read_hash(w, state.arena, place) != (at ? a->hash[at] : 0))
        violated(w, "the state is not that after %u tokens", at);
    backend_arena_write(w->backend, state.arena, place, &a->hash[end], sizeof a->hash[end]);
}

/* ---- what the scheduler asks of its host ----------------------------------------------------- */

static void check_bytes(struct world *w);

static kvasir_status host_admitted(void *user, struct task *t, kvasir_error *err) {
    struct world *w = user;
    (void)err;
    if (seq_length(t->seq) >= t->n_tokens)
        violated(w, "a request begins with all of its %u tokens", t->n_tokens);
    return KVASIR_OK;
}

static void run_part(struct world *w, const struct step_part *part) {
    const struct trial *a = NULL;
    for (uint32_t i = 0; i < w->n_trials && !a; i++)
        a = w->trials[i].task.seq == part->seq ? &w->trials[i] : NULL;
    const uint32_t at = seq_length(part->seq), end = at + part->rows;
    if (!a || end > a->task.n_tokens ||
        memcmp(part->tokens, a->expected + at, part->rows * sizeof *part->tokens) != 0) {
        violated(w, "a step has other tokens than the request");
        return;
    }
    if (part->wanted != (end == a->task.n_tokens))
        violated(w, "logits of %u rows are wanted after %u of %u tokens", part->wanted, end,
                 a->task.n_tokens);
    for (uint32_t g = 0; g < w->n_groups; g++)
        write_rows(w, a, g, at, end);
    for (uint32_t g = 0; g < w->n_groups && holds(w); g++)
        check_rows(w, a, g, at, end);
    run_state(w, a, at, end);
}

static kvasir_status host_run(void *user, const struct step_part *parts, uint32_t n,
                              kvasir_error *err) {
    struct world *w = user;
    check_bytes(w); /* during a step the most is held */
    if (w->fault) {
        w->sum->device_faults++;
        return fail(err, KVASIR_ERR_IO, "the device fails");
    }
    for (uint32_t i = 0; i < n; i++)
        run_part(w, &parts[i]);
    for (uint32_t i = 0; i < n; i++)
        seq_commit(parts[i].seq, parts[i].tokens, parts[i].rows);
    return KVASIR_OK;
}

static void host_progress(void *user, struct task *t) {
    if (seq_length(t->seq) >= t->n_tokens)
        violated(user, "progress after the last token");
}

static bool host_next(void *user, struct task *t, uint32_t row) {
    struct world *w = user;
    const struct trial *a = t->owner;
    if (row >= w->options.max_running || seq_length(t->seq) != t->n_tokens)
        violated(w, "a token is wanted after %u of %u tokens", seq_length(t->seq), t->n_tokens);
    t->tokens[t->n_tokens] = a->expected[t->n_tokens];
    t->n_tokens++;
    return t->n_tokens < a->stop;
}

static void host_ended(void *user, struct task *t, enum task_end end, const kvasir_error *error) {
    struct world *w = user;
    struct trial *a = t->owner;
    if (a->ended)
        violated(w, "a request ends twice");
    a->ended = true;
    w->sum->finished += end == END_COMPLETE;
    w->sum->cancelled += end == END_CANCELLED;
    w->sum->failed += end == END_FAILED;
    if (end == END_COMPLETE && t->n_tokens != a->stop)
        violated(w, "an answer ends at %u of %u tokens", t->n_tokens, a->stop);
    if (end == END_FAILED && !w->fault)
        violated(w, "a request that fits fails: %.120s", error->text);
}

/* ---- counting -------------------------------------------------------------------------------- */

static void hold(struct world *w, uint32_t addr, uint64_t bytes, bool live) {
    if (w->n_held == w->cap_held) {
        const size_t cap = w->cap_held ? 2 * w->cap_held : 1024;
        struct held *grown = mem_realloc(w->held, cap, sizeof *grown);
        if (!grown) {
            violated(w, "out of memory for %zu pages", cap);
            return;
        }
        w->held = grown;
        w->cap_held = cap;
    }
    w->held[w->n_held++] = (struct held){addr, live, bytes};
}

static void hold_stored(void *user, uint32_t addr, uint64_t bytes) {
    hold(user, addr, bytes, false);
}

static void hold_sequence(struct world *w, const struct kv_seq *s) {
    uint64_t pages = 0;
    for (uint32_t g = 0; g < w->n_groups; g++) {
        struct kv_view v;
        seq_view(s, g, &v);
        for (uint32_t i = 0; i < v.n_pages; i++) {
            const size_t bytes = v.layouts[v.pages[i].layout].page_bytes;
            hold(w, v.pages[i].addr, bytes, true);
            pages += bytes;
        }
    }
    if (seq_bytes(s) > pages) { /* the rest is the state */
        struct state_view state;
        seq_state(s, &state);
        hold(w, state.addr, seq_bytes(s) - pages, true);
    }
}

static int compare_held(const void *a, const void *b) {
    const struct held *x = a, *y = b;
    return x->addr != y->addr ? (x->addr > y->addr) - (x->addr < y->addr) : y->live - x->live;
}

/* The pool's figures must equal a count of what sequences and tree hold, each page once, and of
 * what they are charged. */
static void check_bytes(struct world *w) {
    const struct kv_pool_stats pool = kv_pool_stats(kv_cache_pool(w->cache));
    uint64_t used = 0, stored = 0, pages = 0, charged = w->tree ? tree_stats(w->tree).bytes : 0;
    w->n_held = 0;
    for (uint32_t i = 0; i < w->n_trials; i++) {
        charged += w->trials[i].task.charged;
        if (w->trials[i].task.seq)
            hold_sequence(w, w->trials[i].task.seq);
    }
    if (w->tree)
        tree_each_page(w->tree, hold_stored, w);
    if (w->n_held)
        qsort(w->held, w->n_held, sizeof *w->held, compare_held);
    for (size_t i = 0; i < w->n_held; i++) {
        const struct held *h = &w->held[i];
        if (i > 0 && h[-1].addr == h->addr) {
            if (h[-1].bytes != h->bytes)
                violated(w, "a page counts as %" PRIu64 " and %" PRIu64 " bytes", h[-1].bytes,
                         h->bytes);
            continue;
        }
        pages++;
        used += h->bytes;
        stored += h->live ? 0 : h->bytes;
    }
    if (used != pool.used_bytes || pages != pool.pages_used || stored != pool.stored_bytes)
        violated(w,
                 "%" PRIu64 " bytes in %" PRIu64 " pages are held, %" PRIu64 " by the tree alone; "
                 "the pool says %" PRIu64 ", %" PRIu64 ", %" PRIu64,
                 used, pages, stored, pool.used_bytes, pool.pages_used, pool.stored_bytes);
    if (charged != pool.charged_bytes)
        violated(w, "%" PRIu64 " bytes are charged, the pool says %" PRIu64, charged,
                 pool.charged_bytes);
    w->most_bytes = used + charged > w->most_bytes ? used + charged : w->most_bytes;
    if (w->most_bytes > pool.budget_bytes || pool.peak_bytes > pool.budget_bytes ||
        w->most_bytes > pool.peak_bytes)
        violated(w, "counted %" PRIu64 " bytes, peak %" PRIu64 ", budget %" PRIu64, w->most_bytes,
                 pool.peak_bytes, pool.budget_bytes);
}

/* ---- checking -------------------------------------------------------------------------------- */

static void check_trial(struct world *w, const struct trial *a) {
    const struct task *t = &a->task;
    const struct kv_seq *s = t->seq;
    if (t->n_tokens == 0) /* a follower has no tokens before the fork */
        return;
    if (t->n_tokens < t->n_prompt || t->n_tokens > t->cap ||
        memcmp(t->tokens, a->expected, t->n_tokens * sizeof *t->tokens) != 0)
        violated(w, "a request has other tokens than it should");
    if (s && (seq_length(s) > t->n_tokens ||
              memcmp(seq_tokens(s), a->expected, seq_length(s) * sizeof *a->expected) != 0))
        violated(w, "a sequence has other tokens than its request");
    if ((t->state == TASK_RUNNING) != (s != NULL))
        violated(w, "a request in state %d %s", t->state, s ? "has a sequence" : "has none");
    if (!s && (t->charged || t->at.node != TREE_NOWHERE))
        violated(w, "a request in state %d holds something", t->state);
    if (a->ended != (t->state == TASK_DONE))
        violated(w, "a request in state %d %s", t->state, a->ended ? "has ended" : "has not ended");
}

static void check_all(struct world *w) {
    const struct sched_stats s = sched_stats(w->sched);
    uint32_t counts[TASK_DONE + 1] = {0};
    if (w->tree)
        tree_check(w->tree);
    check_bytes(w);
    for (uint32_t i = 0; i < w->n_trials; i++) {
        check_trial(w, &w->trials[i]);
        ASSERT(w->trials[i].task.state <= TASK_DONE);
        counts[w->trials[i].task.state]++;
    }
    if (counts[TASK_RUNNING] != s.running || counts[TASK_WAITING] != s.waiting ||
        s.running > w->options.max_running)
        violated(w, "%u run and %u wait; the scheduler says %u and %u", counts[TASK_RUNNING],
                 counts[TASK_WAITING], s.running, s.waiting);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* A prompt: the start of an earlier request or of a system text, then tokens of its own. */
static uint32_t make_prompt(struct world *w, int32_t *tokens) {
    const struct trial *before = w->n_trials ? &w->trials[below(w, w->n_trials)] : NULL;
    const uint32_t most = LENGTH_MAX - ANSWER_MAX;
    uint32_t n = 0, system = below(w, SYSTEMS);
    if (before && below(w, 3)) {
        n = below(w, 3) ? before->stop : below(w, before->stop + 1);
        memcpy(tokens, before->expected, n * sizeof *tokens);
    } else if (below(w, 4)) {
        n = w->system_len[system];
        memcpy(tokens, w->systems[system], n * sizeof *tokens);
    }
    for (uint32_t tail = below(w, 4) ? below(w, TAIL_MAX) : 0; tail > 0 && n < most; tail--)
        tokens[n++] = (int32_t)below(w, VOCAB);
    n = n < most ? n : most;
    if (n == 0)
        tokens[n++] = 0;
    ASSERT(n <= most);
    return n;
}

/* Computes the task's tokens: the answer follows from the prompt, the salt and the choice. */
static void foretell(struct trial *a) {
    ASSERT(a->task.n_prompt > 0 && a->task.cap <= LENGTH_MAX);
    a->hash[0] = a->salt;
    for (uint32_t i = 0; i < a->task.cap; i++) {
        if (i >= a->task.n_prompt)
            a->expected[i] = (int32_t)(mix_bits(a->hash[i] + a->choice) % VOCAB);
        a->hash[i + 1] = hash_token(a->hash[i], a->expected[i]);
    }
}

/* Makes a choice for the lead's prompt; the lead itself is choice 0. */
static void make_choice(struct world *w, const struct trial *lead, uint32_t choice,
                        uint32_t answer) {
    static const char *const NAMES[SALTS] = {"", "tenant"};
    ASSERT(w->n_trials < REQUESTS_MAX);
    struct trial *a = &w->trials[w->n_trials++];
    const uint32_t prompt = lead->task.n_prompt;
    if (a != lead) {
        *a = (struct trial){.salt = lead->salt};
        memcpy(a->expected, lead->expected, prompt * sizeof *a->expected);
    }
    a->choice = choice;
    a->stop = prompt + 1 + below(w, answer);
    a->task = (struct task){.owner = a,
                            .salt = NAMES[a->salt],
                            .salt_len = strlen(NAMES[a->salt]),
                            .tokens = a->tokens,
                            .n_prompt = prompt,
                            .cap = prompt + answer,
                            .priority = (int32_t)below(w, 3) - 1};
    foretell(a);
    if (choice == 0)
        memcpy(a->tokens, a->expected, prompt * sizeof *a->tokens);
}

static void submit(struct world *w) {
    struct trial *lead = &w->trials[w->n_trials];
    uint32_t choices = below(w, 5) ? 1 : 1 + below(w, CHOICES_MAX);
    if (choices > w->options.max_running || w->n_trials + choices > REQUESTS_MAX)
        return;
    *lead = (struct trial){.salt = below(w, 5) == 0};
    lead->task.n_prompt = make_prompt(w, lead->expected);
    const uint32_t answer = 1 + below(w, ANSWER_MAX);
    w->sum->requests++;
    if (sched_need(w->sched, lead->task.n_prompt + answer) > w->cache_options.budget_bytes) {
        w->sum->refused++;
        return;
    }
    for (uint32_t i = 0; i < choices; i++)
        make_choice(w, lead, i, answer);
    for (uint32_t i = 1; i < choices; i++)
        lead->followers[i - 1] = &lead[i].task;
    lead->task.followers = lead->followers;
    lead->task.n_followers = choices - 1;
    lead->task.detached = choices == 1 && below(w, 12) == 0;
    sched_submit(w->sched, &lead->task);
}

/* ---- moves ----------------------------------------------------------------------------------- */

static void cancel(struct world *w) {
    const uint32_t from = below(w, w->n_trials);
    for (uint32_t i = 0; i < w->n_trials; i++) {
        struct trial *a = &w->trials[(from + i) % w->n_trials];
        if (a->ended)
            continue;
        sched_cancel(w->sched, &a->task);
        return;
    }
}

/* SCHED-3: the request that was admitted first of those that have not ended, if it runs; otherwise
 * NULL. Arrival does not decide: tenants take turns. */
static const struct trial *oldest_running(const struct world *w) {
    const struct trial *oldest = NULL;
    for (uint32_t i = 0; i < w->n_trials; i++) {
        const struct trial *a = &w->trials[i];
        if (!a->ended && a->task.admitted &&
            (!oldest || a->task.admission < oldest->task.admission))
            oldest = a;
    }
    return oldest && oldest->task.state == TASK_RUNNING ? oldest : NULL;
}

static void step(struct world *w, uint32_t *rows) {
    const struct trial *oldest = oldest_running(w);
    kvasir_error err;
    w->fault = below(w, 400) == 0;
    const kvasir_status status = sched_step(w->sched, rows, &err);
    w->sum->steps++;
    sched_note_step(w->sched, *rows, 1e-3 * below(w, 40));
    if (status != KVASIR_OK && (!w->fault || status != KVASIR_ERR_IO))
        violated(w, "a step fails: %.120s", err.text);
    w->fault = false;
    if (*rows > w->options.step_rows)
        violated(w, "a step of %u rows", *rows);
    if (oldest && oldest->task.state == TASK_WAITING)
        violated(w, "the oldest request was preempted");
    check_all(w);
}

static void move(struct world *w) {
    uint32_t rows;
    if (below(w, 3) == 0)
        submit(w);
    if (below(w, 12) == 0 && w->n_trials)
        cancel(w);
    if (below(w, 50) == 0 && w->tree) {
        tree_forget(w->tree, below(w, 2) ? NULL : "tenant", strlen("tenant"));
        w->sum->forgets++;
    }
    if (below(w, 30) == 0 && w->tree)
        (void)!tree_make_room(w->tree, below(w, (uint32_t)w->cache_options.budget_bytes));
    step(w, &rows);
}

/* Every request must end, and then nothing may be left. */
static void drain(struct world *w) {
    const uint64_t most = w->sum->steps + STEPS_MAX;
    uint32_t rows = 1;
    while (rows && holds(w)) {
        step(w, &rows);
        if (w->sum->steps > most)
            violated(w, "requests never end");
    }
    for (uint32_t i = 0; i < w->n_trials; i++)
        if (!w->trials[i].ended)
            violated(w, "a request is never served");
    if (w->tree)
        tree_forget(w->tree, NULL, 0);
    const struct kv_pool_stats pool = kv_pool_stats(kv_cache_pool(w->cache));
    if (pool.used_bytes || pool.charged_bytes || pool.pages_used)
        violated(w, "%" PRIu64 " pages and %" PRIu64 " bytes beside them are left", pool.pages_used,
                 pool.charged_bytes);
}

/* ---- worlds ---------------------------------------------------------------------------------- */

/* Formats and exact starts only vary the sizes of pages: what is stored is a hash, not an
 * encoding. */
static void choose_cache(struct world *w) {
    static const char *const BITS[] = {"f16", "f32", "8", "8,4", "4,2"};
    struct kv_cache_options *o = &w->cache_options;
    kvasir_status status = options_parse_formats(BITS[below(w, 5)], "32", o, NULL);
    if (status != KVASIR_OK)
        violated(w, "no formats");
    w->n_groups = 1 + below(w, GROUPS);
    for (uint32_t g = 0; g < w->n_groups; g++)
        w->groups[g] = (struct kv_shape){.layers = 1 + below(w, 4),
                                         .kv_heads = 1 + below(w, 2),
                                         .head_dim = 32,
                                         .window = below(w, 2) ? 1 + below(w, 200) : 0};
    if (below(w, 4) == 0) {
        o->max_size = 2 + below(w, 200);
        o->keep = below(w, o->max_size < 100 ? o->max_size : 100);
    }
    o->quantized_start = below(w, 3) ? 0 : below(w, 150);
    o->state_bytes = below(w, 3) ? 0 : 8 + below(w, 5000);
    w->options.step_rows = below(w, 3) ? 1 + below(w, 300) : 1 + below(w, 12);
    w->options.max_running = 1 + below(w, w->options.step_rows < 8 ? w->options.step_rows : 8);
    w->options.snapshot_tokens = below(w, 2) ? 0 : TILE_TOKENS * (1 + below(w, 3));
    w->options.policy = below(w, 2) ? POLICY_SHORTEST : below(w, POLICY_KINDS);
    w->options.step_seconds = below(w, 3) ? 0 : 0.01;
}

static void choose_texts(struct world *w) {
    for (uint32_t i = 0; i < SYSTEMS; i++) {
        w->system_len[i] = below(w, 200);
        for (uint32_t p = 0; p < w->system_len[i]; p++)
            w->systems[i][p] = (int32_t)below(w, VOCAB);
    }
}

/* A budget for one request of some length, for several, or for all. The scheduler says how much
 * that is, so a first one is made with a budget that does not matter. */
static kvasir_status choose_budget(struct world *w, const struct sched_host *host, bool shared,
                                   kvasir_error *err) {
    const uint32_t longest = 1 + below(w, LENGTH_MAX);
    const uint32_t percent = below(w, 2) ? 100 + below(w, 60) : 100 + below(w, 1000);
    w->cache_options.budget_bytes = 1 << 20;
    TRY(kv_cache_create(w->backend, w->groups, w->n_groups, &w->cache_options, &w->cache, err));
    if (shared)
        TRY(tree_create(w->cache, 100, &w->tree, err));
    TRY(sched_create(w->cache, w->tree, &w->options, host, &w->sched, err));
    w->cache_options.budget_bytes = sched_need(w->sched, longest) * percent / 100;
    sched_destroy(w->sched);
    tree_destroy(w->tree);
    kv_cache_destroy(w->cache);
    w->sched = NULL;
    w->tree = NULL;
    w->cache = NULL;
    return KVASIR_OK;
}

static kvasir_status make_world(struct world *w, kvasir_error *err) {
    const struct backend_cpu_options cpu = {.threads = 1, .tier = CPU_TIER_REF, .act_bits = 8};
    const struct sched_host host = {.user = w,
                                    .admitted = host_admitted,
                                    .run = host_run,
                                    .progress = host_progress,
                                    .next = host_next,
                                    .ended = host_ended};
    const bool shared = below(w, 10) != 0;
    choose_cache(w);
    choose_texts(w);
    w->trials = mem_calloc(REQUESTS_MAX, sizeof *w->trials);
    if (!w->trials)
        return fail(err, KVASIR_ERR_MEMORY, "simulate: out of memory");
    TRY(backend_cpu_create(&w->backend, &cpu, err));
    TRY(choose_budget(w, &host, shared, err));
    TRY(kv_cache_create(w->backend, w->groups, w->n_groups, &w->cache_options, &w->cache, err));
    if (shared)
        TRY(tree_create(w->cache, 1 + below(w, 1000), &w->tree, err));
    return sched_create(w->cache, w->tree, &w->options, &host, &w->sched, err);
}

static void free_world(struct world *w) {
    for (uint32_t i = w->n_trials; i-- > 0;) /* after a violation */
        sched_cancel(w->sched, &w->trials[i].task);
    sched_destroy(w->sched);
    tree_destroy(w->tree);
    kv_cache_destroy(w->cache);
    backend_destroy(w->backend);
    mem_free(w->trials);
    mem_free(w->held);
}

static void add_figures(struct world *w) {
    const kvasir_engine_stats s = sched_engine_stats(w->sched);
    for (int kind = KVASIR_HIT_EXACT; kind < KVASIR_HIT_KINDS; kind++)
        w->sum->hits += s.hits[kind];
    w->sum->preemptions += s.preemptions;
    w->sum->evicted_pages += s.evicted_pages;
    w->sum->programs++;
}

static kvasir_status run_program(uint64_t seed, lab_random_simulation *sum, kvasir_error *err) {
    struct world w = {.seed = seed, .random = mix_bits(seed), .sum = sum};
    const kvasir_status status = make_world(&w, err);
    for (int i = 0; i < MOVES && status == KVASIR_OK && holds(&w); i++)
        move(&w);
    if (status == KVASIR_OK) {
        drain(&w);
        add_figures(&w);
    }
    free_world(&w);
    return status;
}

kvasir_status lab_simulate_random(const lab_simulate_random_options *options,
                                  lab_random_simulation *out, kvasir_error *err) {
    *out = (lab_random_simulation){0};
    for (uint32_t i = 0; i < options->programs && !out->violation[0]; i++) {
        TRY(run_program(options->seed + i, out, err));
        if (options->on_progress && !options->on_progress(options->user, i + 1, options->programs))
            return fail(err, KVASIR_ERR_CANCELLED, "cancelled");
    }
    return KVASIR_OK;
}
