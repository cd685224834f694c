/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler.c: admission, distribution of rows, preemption. scheduler.h has the invariants. Belongs
 * to the thread that owns the cache. */
#include "engine/scheduler_internal.h"

#include <string.h>

kvasir_status sched_create(struct kv_cache *cache, struct prefix_tree *tree,
                           const struct sched_options *options, const struct sched_host *host,
                           struct sched **out, kvasir_error *err) {
    struct sched *s = mem_calloc(1, sizeof *s);
    if (!s)
        return fail(err, KVASIR_ERR_MEMORY, "scheduler: out of memory");
    s->cache = cache;
    s->pool = kv_cache_pool(cache);
    s->tree = tree;
    s->tiers = tree ? options->tiers : NULL;
    s->room = kv_pool_stats(s->pool).budget_bytes - kv_pool_stats(s->pool).charged_bytes;
    s->options = *options;
    s->host = *host;
    s->by_snapshot = kv_cache_snapshot_bytes(cache) != 0;
    s->whole = kv_cache_is_whole(cache);
    s->changes = 1;
    s->pace = (struct pace){options->step_seconds, options->step_rows, options->step_rows};
    shares_init(&s->shares);
    s->running = mem_calloc(options->max_running, sizeof *s->running);
    s->by_age = mem_calloc(options->max_running, sizeof *s->by_age);
    s->prompts = mem_calloc(options->max_running, sizeof *s->prompts);
    s->prompts_scratch = mem_calloc(options->max_running, sizeof *s->prompts_scratch);
    s->parts = mem_calloc(options->max_running, sizeof *s->parts);
    s->part_tasks = mem_calloc(options->max_running, sizeof *s->part_tasks);
    if (!s->running || !s->by_age || !s->prompts || !s->prompts_scratch || !s->parts ||
        !s->part_tasks) {
        sched_destroy(s);
        return fail(err, KVASIR_ERR_MEMORY, "scheduler: out of memory");
    }
    *out = s;
    return KVASIR_OK;
}

void sched_destroy(struct sched *s) {
    if (!s)
        return;
    ASSERT(!s->stats.waiting && !s->n_running);
    shares_deinit(&s->shares);
    mem_free(s->running);
    mem_free(s->by_age);
    mem_free(s->prompts);
    mem_free(s->prompts_scratch);
    mem_free(s->parts);
    mem_free(s->part_tasks);
    mem_free(s);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Beside pages: the sequence's tokens and tables, the task's tokens. */
static uint64_t overhead(const struct sched *s, uint32_t cap) {
    return seq_overhead_bytes(s->cache, cap) + cap * sizeof(int32_t) + sizeof(struct task);
}

uint64_t sched_need(const struct sched *s, uint32_t tokens) {
    return kv_cache_need_bytes(s->cache, tokens, s->options.step_rows) + overhead(s, tokens) +
           (s->tree ? tree_path_bytes(s->tree, tokens) : 0);
}

static bool make_room(struct sched *s, uint64_t bytes) {
    if (s->tree && tree_make_room(s->tree, bytes))
        return true;
    if (s->tiers) { /* what waits to be written is pinned */
        tiers_relent(s->tiers);
        return tree_make_room(s->tree, bytes);
    }
    return kv_cache_make_room(s->cache, bytes);
}

/* Bytes that are free, or would be if nothing were stored and all pages were at the ladder's floor.
 */
static uint64_t free_at_most(const struct sched *s) {
    const struct kv_pool_stats p = kv_pool_stats(s->pool);
    return p.budget_bytes - p.used_bytes - p.charged_bytes + p.stored_bytes +
           kv_cache_ladder_bytes(s->cache);
}

/* Bytes that running tasks still need for tokens that they have already. */
static uint64_t outstanding(const struct sched *s) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        const struct task *t = s->running[i];
        if (t->n_tokens > seq_length(t->seq))
            bytes += seq_need_bytes(t->seq, t->n_tokens, s->options.step_rows, 0);
    }
    return bytes;
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* How the task ranks among those that wait (policy.h): by what there is to compute now. */
static uint64_t waiting_rank(const struct sched *s, const struct task *t) {
    uint32_t stored = t->from_host;
    if (t->admitted)
        return RANK_FIRST;
    if (s->options.policy == POLICY_SHORTEST && s->tree && !t->detached)
        stored = tree_look(s->tree, t->salt, t->salt_len, t->tokens, findable(t)).length;
    return policy_rank(s->options.policy, t->priority, t->n_tokens - stored);
}

static void waiting_insert(struct sched *s, struct task *t) {
    t->rank = waiting_rank(s, t);
    t->full_at = t->passed = 0;
    share_insert(t->share, t);
    t->state = TASK_WAITING;
    s->stats.waiting++;
    if (t->share->first == t) /* what the tiers have of it may be loaded meanwhile */
        s->no_place_at = 0;
}

/* What is stored has changed since they came: looks at some of those that wait again, in turn. */
static void waiting_look(struct sched *s, struct share *h) {
    enum { LOOKS = 4 };
    struct task *t = h->look ? h->look : h->first;
    for (int i = 0; i < LOOKS && t; i++) {
        struct task *next = t->next;
        const uint64_t rank = waiting_rank(s, t);
        if (rank != t->rank) {
            share_remove(h, t);
            t->rank = rank;
            share_insert(h, t);
        }
        h->look = t = next;
    }
}

static void waiting_remove(struct sched *s, struct task *t) {
    share_remove(t->share, t);
    s->stats.waiting--;
    s->changes++;
}

static void running_add(struct sched *s, struct task *t) {
    uint32_t at = s->n_running;
    ASSERT(s->n_running < s->options.max_running && t->seq);
    t->state = TASK_RUNNING;
    for (; at > 0 && s->by_age[at - 1]->admission > t->admission; at--)
        s->by_age[at] = s->by_age[at - 1];
    s->by_age[at] = t;
    s->running[s->n_running++] = t;
}

static void list_remove(struct task **list, uint32_t n, const struct task *t) {
    uint32_t i = 0;
    while (i < n && list[i] != t)
        i++;
    ASSERT(i < n);
    memmove(list + i, list + i + 1, (n - i - 1) * sizeof *list);
}

static void running_remove(struct sched *s, struct task *t) {
    list_remove(s->running, s->n_running, t);
    list_remove(s->by_age, s->n_running, t);
    s->n_running--;
    s->changes++;
}

/* ---- beginning and ending -------------------------------------------------------------------- */

/* Frees all that the task holds. */
static void release(struct sched *s, struct task *t) {
    if (t->seq && t->from_host)
        s->host.dropped(s->host.user, t);
    seq_destroy(t->seq);
    t->seq = NULL;
    if (s->tree)
        tree_close(s->tree, &t->at);
    pool_discharge(s->pool, t->charged);
    t->charged = 0;
    t->rows = 0;
}

static void store(struct sched *s, struct task *t, bool hit_point) {
    tree_store_until(s->tree, &t->at, t->seq, hit_point, tree_expiry(s->tree, t->ttl_seconds));
}

/* Stores what the task has computed, as an entry that ends there, and frees what it holds. */
static void suspend(struct sched *s, struct task *t) {
    uint32_t reached;
    /* drops pages that were prepared for rows that will not be run */
    kvasir_status status = seq_trim(t->seq, seq_length(t->seq), &reached, NULL);
    ASSERT(status == KVASIR_OK && reached == seq_length(t->seq));
    (void)status;
    t->held_bytes = seq_bytes(t->seq);
    t->descended_pages = seq_descended_pages(t->seq);
    if (is_stored(s, t))
        store(s, t, true);
    if (is_stored(s, t) && t->pin)
        tree_favour(s->tree, &t->at);
    if (is_stored(s, t) && s->tiers)
        tiers_offer(s->tiers, &t->at);
    running_remove(s, t);
    share_stop(t);
    release(s, t);
}

static void close_load(struct sched *s, struct task *t) {
    if (s->tiers)
        tier_load_close(s->tiers, t->load);
    t->load = NULL;
}

static void finish(struct sched *s, struct task *t, enum task_end end, const kvasir_error *error) {
    close_load(s, t);
    if (t->state == TASK_RUNNING)
        suspend(s, t);
    else if (t->state == TASK_WAITING)
        waiting_remove(s, t);
    t->state = TASK_DONE;
    for (uint32_t i = 0; i < t->n_followers; i++) /* nobody else will run their prompt */
        if (t->followers[i]->state == TASK_FOLLOWING)
            finish(s, t->followers[i], end, error);
    share_leave(&s->shares, t);
    s->host.ended(s->host.user, t, end, error);
}

static void preempt(struct sched *s, struct task *t) {
    const uint32_t length = seq_length(t->seq);
    t->seen = length > t->seen ? length : t->seen;
    suspend(s, t);
    t->looked = false;
    waiting_insert(s, t);
    s->stats.preemptions++;
}

/* ---- admission ------------------------------------------------------------------------------- */

static bool same_salt(const struct task *a, const struct task *b) {
    return a->salt_len == b->salt_len && memcmp(a->salt, b->salt, a->salt_len) == 0;
}

static uint32_t common_tokens(const struct task *a, const struct task *b) {
    const uint32_t n = a->n_tokens < b->n_tokens ? a->n_tokens : b->n_tokens;
    uint32_t i = 0;
    while (i < n && a->tokens[i] == b->tokens[i])
        i++;
    return i;
}

/* SCHED-4: whole pages of r's prompt that t will find in the tree if it waits. */
static uint32_t shareable_prefix(const struct task *t, const struct task *r) {
    if (r->detached || r->no_store || !same_salt(t, r))
        return 0;
    const uint32_t common = common_tokens(t, r);
    return (common < t->n_tokens ? common : t->n_tokens - 1) / TILE_TOKENS * TILE_TOKENS;
}

static bool waits_on_prefix(struct sched *s, struct task *t) {
    if (!s->tree || t->detached || findable(t) < t->n_tokens)
        return false;
    for (uint32_t i = 0; i < s->n_running && t->waits_for; i++)
        if (s->running[i]->order == t->waits_for - 1 &&
            seq_length(s->running[i]->seq) < t->waits_until)
            return true;
    t->waits_for = 0;
    uint32_t stored = UINT32_MAX; /* not looked up yet */
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct task *r = s->running[i];
        const uint32_t length = seq_length(r->seq), until = shareable_prefix(t, r);
        if (length >= until)
            continue;
        if (stored == UINT32_MAX)
            stored = tree_look(s->tree, t->salt, t->salt_len, t->tokens, t->n_tokens).length;
        if (stored >= until)
            continue;
        t->waits_for = r->order + 1;
        t->waits_until = until;
        /* Recurrent layers and an exact tail need the state there. */
        if (r->hit_point <= length || until < r->hit_point)
            r->hit_point = until;
        return true;
    }
    return false;
}

/* Makes the task's sequence, beginning with the stored prefix of its tokens. */
static kvasir_status begin(struct sched *s, struct task *t, struct tree_hit *hit,
                           kvasir_error *err) {
    *hit = (struct tree_hit){.kind = KVASIR_HIT_MISS};
    t->at = (struct tree_cursor){TREE_NOWHERE};
    if (t->from_host)
        return s->host.begin(s->host.user, t, &t->seq, err);
    TRY(seq_create(s->cache, &t->seq, err));
    if (!s->tree || t->detached)
        return KVASIR_OK;
    return tree_resume(s->tree, t->salt, t->salt_len, t->tokens, findable(t), t->seq, &t->at, hit,
                       err);
}

/* SCHED-3: if the only running task still lacks pages, drop its tree cursor. The cursor pins its
 * ancestors, including splits that finished tasks left and sched_need() did not budget for. Without
 * it they can be evicted; the price is that this task is not stored. */
static bool drop_cursor(struct sched *s, struct task *t) {
    if (!s->tree || t->at.node == TREE_NOWHERE)
        return false;
    tree_close(s->tree, &t->at);
    return true;
}

/* Charges what the task holds beside pages, and reserves it, so that later steps do not allocate.
 * */
static kvasir_status reserve(struct sched *s, struct task *t, kvasir_error *err) {
    const uint64_t bytes = overhead(s, t->cap);
    if (!make_room(s, bytes) && s->n_running == 0 && drop_cursor(s, t))
        make_room(s, bytes);
    TRY(pool_charge(s->pool, bytes, err));
    t->charged = bytes;
    return seq_reserve(t->seq, t->cap, err);
}

/* Whether there is room for the tokens that all tasks have now. A preempted task comes back only if
 * all can grow by a page, or it would soon be preempted again. */
static bool has_room(const struct sched *s, const struct task *t) {
    const uint64_t growth =
        t->admitted ? (s->n_running + 1) * kv_cache_need_bytes(s->cache, 1, 1) : 0;
    return free_at_most(s) >= outstanding(s) + overhead(s, t->cap) + growth +
                                  seq_need_bytes(t->seq, t->n_tokens, s->options.step_rows, 0);
}

/* The tree counts a request once, when it is first admitted: neither failed attempts before nor
 * admissions after a preemption count. */
static void note_admission(struct sched *s, struct task *t, const struct tree_hit *hit) {
    const uint32_t length = t->from_host ? t->from_host : seq_length(t->seq);
    if (t->admitted) {
        s->stats.rerun_tokens += t->seen > length ? t->seen - length : 0;
    } else {
        t->hit = *hit;
        s->stats.prompt_tokens += t->n_prompt;
        s->stats.cached_tokens += length;
        s->stats.hits[hit->kind] += !t->detached;
        t->miss = (struct tree_miss){KVASIR_MISS_NOT_LOOKED_UP, -1};
        if (s->tree && !t->detached && findable(t) == t->n_tokens)
            (void)tree_explain(s->tree, t->salt, t->salt_len, t->tokens, t->n_tokens, &t->miss);
        s->stats.misses[t->miss.why]++;
        if (s->tree)
            tree_count(s->tree, &t->at, t->tokens, t->n_tokens);
        t->admission = ++s->admissions;
        for (uint32_t i = 0; i < t->n_followers; i++)
            t->followers[i]->admission = ++s->admissions;
    }
    t->admitted = true;
    share_start(&s->shares, t, length);
}

/* How many of a task's followers will need a place among the running. */
static uint32_t following(const struct task *t) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n_followers; i++)
        n += t->followers[i]->state == TASK_FOLLOWING;
    return n;
}

static uint32_t places_taken(const struct sched *s) {
    uint32_t n = s->n_running;
    for (uint32_t i = 0; i < s->n_running; i++)
        n += following(s->running[i]);
    return n;
}

/* ---- loads ----------------------------------------------------------------------------------- */

/* SCHED-8: the most that a running task may need alone. */
static uint64_t largest_need(const struct sched *s) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        const uint64_t need = sched_need(s, s->running[i]->cap);
        most = need > most ? need : most;
    }
    return most;
}

/* Whether the task waits for a load. Asks the tiers once, when its turn comes. */
static bool waits_on_load(struct sched *s, struct task *t) {
    if (!s->tiers || t->detached || findable(t) < t->n_tokens)
        return false;
    if (!t->looked) {
        const uint64_t kept = largest_need(s) + tiers_load_bytes(s->tiers, NULL);
        t->looked = true;
        t->looked_at = clock_seconds();
        t->load = tiers_load(s->tiers, t->salt, t->salt_len, t->tokens, t->n_tokens,
                             kept < s->room ? s->room - kept : 0);
    }
    return t->load && !tier_load_is_done(t->load);
}

/* Gives up what finished loads of waiting tasks keep, but not t's. True: there was something. */
static bool drop_loads(struct sched *s, const struct task *t) {
    bool some = false;
    for (struct share *h = &s->shares.common; h && s->tiers; h = h->next)
        for (struct task *w = h->first; w; w = w->next)
            if (w != t && w->load && tier_load_is_done(w->load)) {
                close_load(s, w);
                some = true;
            }
    return some;
}

/* SCHED-8: whether t, once admitted, could have all that it may need while loads keep what they
 * have. Its own load's pages are among those that it needs. */
static bool fits_beside_loads(struct sched *s, const struct task *t) {
    if (!s->tiers)
        return true;
    const uint64_t need = sched_need(s, t->cap);
    do {
        const uint64_t loads = tiers_load_bytes(s->tiers, t->load);
        if (!loads || need + loads <= s->room)
            return true;
    } while (s->n_running == 0 && drop_loads(s, t));
    return false;
}

void sched_collect(struct sched *s, double now) {
    if (s->tiers && tiers_collect(s->tiers, now))
        s->changes++; /* a task that waited for its load may be admitted */
}

/* ---- admission ------------------------------------------------------------------------------- */

enum admission { ADMITTED, FAILED, NO_PLACE, NO_ROOM };

static enum admission admit(struct sched *s, struct task *t) {
    struct tree_hit hit;
    kvasir_error err;
    const uint32_t places = places_taken(s) + 1;
    if (places > s->options.max_running)
        return NO_PLACE;
    if (places + following(t) > s->options.max_running || !fits_beside_loads(s, t))
        return NO_ROOM;
    if (!t->looked)
        t->looked_at = clock_seconds();
    kvasir_status status = begin(s, t, &hit, &err);
    if (status == KVASIR_OK && s->n_running > 0 && !has_room(s, t)) {
        release(s, t);
        return NO_ROOM;
    }
    if (status == KVASIR_OK)
        status = reserve(s, t, &err);
    if (status == KVASIR_ERR_BUDGET && s->n_running > 0) {
        release(s, t);
        return NO_ROOM;
    }
    if (status == KVASIR_OK) {
        note_admission(s, t, &hit);
        if (s->host.admitted)
            status = s->host.admitted(s->host.user, t, &err);
    }
    if (status != KVASIR_OK) {
        release(s, t);
        finish(s, t, END_FAILED, &err);
        return FAILED;
    }
    waiting_remove(s, t);
    running_add(s, t);
    close_load(s, t); /* its sequence has the pages now */
    return ADMITTED;
}

/* The oldest task first if it is its turn, unless one that was preempted waits; then by rank. */
static void candidates_begin(const struct sched *s, struct share *h) {
    const bool aged =
        h->first && !h->first->admitted && policy_is_aged_turn(s->options.policy, h->since);
    h->aged = aged ? share_oldest(h) : NULL;
    h->candidate = aged ? h->aged : h->first;
    h->full = NULL;
}

static struct task *candidates_next(struct share *h) {
    struct task *t = h->candidate;
    h->candidate = t == h->aged ? h->first : t->next;
    if (h->candidate && h->candidate == h->aged)
        h->candidate = h->aged->next;
    return t;
}

/* t is no more among those that wait. again: after a preemption. */
static void count_admission(const struct sched *s, struct share *h, const struct task *t,
                            bool again) {
    if (again)
        return;
    h->since = t == h->aged ? 0 : h->since + 1;
    if (policy_is_aged_turn(s->options.policy, h->since))
        candidates_begin(s, h);
}

/* SCHED-4. One that does not fit is passed by others (rule 5 of policy.h), of which a step tries a
 * few and looks at more that did not fit before. Nothing is tried again before somebody has left
 * the waiting or the running tasks. */
static void admit_all(struct sched *s) {
    enum { SEEN = 1, TRIED = 16, EFFORT = 64 };
    struct task *first_full = NULL;
    struct share *h, *served = NULL;
    int effort = 0;
    if (s->no_place_at == s->changes)
        return;
    for (h = &s->shares.common; h; h = h->next)
        candidates_begin(s, h);
    while (effort < EFFORT && (h = shares_least(&s->shares)) != NULL) {
        struct task *t = candidates_next(h);
        const bool again = t->admitted, tried = t->full_at == s->changes;
        if (!tried && (waits_on_prefix(s, t) || waits_on_load(s, t)))
            continue;
        const enum admission got = tried ? NO_ROOM : admit(s, t);
        if (got == ADMITTED) {
            if (h->full)
                h->full->passed++;
            if (first_full && first_full != h->full)
                first_full->passed++;
            count_admission(s, h, t, again);
            served = h;
        } else if (got == NO_PLACE) {
            s->no_place_at = s->changes;
            break;
        } else if (got == NO_ROOM) {
            t->full_at = s->changes;
            first_full = first_full ? first_full : t;
            h->full = h->full ? h->full : t;
            if (policy_holds(s->options.policy, t->passed, again))
                break;
            effort += tried ? SEEN : TRIED;
        }
    }
    if (served)
        waiting_look(s, served);
}

/* ---- pages ----------------------------------------------------------------------------------- */

/* SCHED-7. In an answer a state is stored only if there is room for it and for all running tasks to
 * grow by a page. Once they have, this task's cursor has moved on and the state can be evicted like
 * anything stored. Until then each running task may pin one stored state, at its cursor: hence one
 * more state for each of them. */
static bool has_room_for_state(const struct sched *s) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        const struct task *t = s->running[i];
        const uint32_t page_on = seq_length(t->seq) + TILE_TOKENS,
                       until = t->n_tokens > page_on ? t->n_tokens : page_on;
        bytes += seq_need_bytes(t->seq, until, s->options.step_rows, 1);
    }
    return free_at_most(s) >= bytes;
}

/* SCHED-3. False: the task itself was preempted, or failed. */
static bool prepare(struct sched *s, struct task *t) {
    kvasir_error err;
    for (;;) {
        const uint32_t end = seq_length(t->seq) + t->rows;
        make_room(s, seq_need_bytes(t->seq, end, t->rows, 0));
        kvasir_status status = seq_prepare(t->seq, t->rows, &err);
        if (status == KVASIR_OK)
            return true;
        if (status == KVASIR_ERR_BUDGET && s->n_running == 1 &&
            (drop_loads(s, NULL) || drop_cursor(s, t)))
            continue;
        if (status != KVASIR_ERR_BUDGET || s->n_running == 1) {
            finish(s, t, END_FAILED, &err);
            return false;
        }
        struct task *victim = s->by_age[s->n_running - 1];
        preempt(s, victim);
        if (victim == t)
            return false;
    }
}

/* Oldest first, so that a shortage hits the newest. */
static void prepare_all(struct sched *s) {
    for (uint32_t i = 0; i < s->n_running;) {
        struct task *t = s->by_age[i];
        if (!t->rows || prepare(s, t))
            i++;
    }
}

/* ---- the step -------------------------------------------------------------------------------- */

/* Followers get forks of the task's sequence, now that the prompt has been run. */
static void fork_followers(struct sched *s, struct task *t) {
    for (uint32_t i = 0; i < t->n_followers; i++) {
        struct task *f = t->followers[i];
        kvasir_error err;
        if (f->state != TASK_FOLLOWING)
            continue;
        memcpy(f->tokens, t->tokens, t->n_prompt * sizeof *f->tokens);
        f->n_tokens = t->n_prompt;
        f->hit = t->hit;
        f->admitted = true;
        kvasir_status status = seq_fork(t->seq, &f->seq, &err);
        if (status == KVASIR_OK)
            status = reserve(s, f, &err);
        if (status != KVASIR_OK) { /* it starts over, with the prompt's stored prefix */
            release(s, f);
            waiting_insert(s, f);
            continue;
        }
        if (s->tree)
            f->at = tree_cursor_copy(s->tree, t->at);
        running_add(s, f);
    }
}

static void take_token(struct sched *s, struct task *t, uint32_t row) {
    const uint32_t before = t->n_tokens;
    const bool open = s->host.next(s->host.user, t, row);
    s->stats.generated_tokens += t->n_tokens - before;
    if (!open)
        finish(s, t, END_COMPLETE, NULL);
}

/* After the task's rows have been run: stores what is due and takes tokens. row: the task's last
 * wanted one. */
static void finish_step(struct sched *s, struct task *t, uint32_t rows, uint32_t row) {
    const uint32_t length = seq_length(t->seq);
    t->rows = 0;
    share_run(t, length);
    const bool hit_point =
        rows_end_at_point(s, t, length) && (length < t->n_prompt || has_room_for_state(s));
    if (is_stored(s, t) && (hit_point || (length - rows) / TILE_TOKENS != length / TILE_TOKENS))
        store(s, t, hit_point);
    if (length < t->n_tokens) {
        if (s->host.progress)
            s->host.progress(s->host.user, t);
        return;
    }
    const uint32_t followers = length == t->n_prompt ? t->n_followers : 0;
    if (followers)
        fork_followers(s, t);
    for (uint32_t i = 0; i < followers; i++)
        if (t->followers[i]->state == TASK_RUNNING && t->followers[i]->n_tokens == length)
            take_token(s, t->followers[i], row);
    take_token(s, t, row);
}

/* How many of the last rows of a step that ends before `end` the host wants. */
static uint32_t rows_wanted(const struct task *t, uint32_t end) {
    const uint32_t at = end - t->rows, from = t->given > at ? t->given : at;
    if (t->every_row && t->given < t->n_prompt)
        return end > from ? end - from : 0;
    return end == t->n_tokens;
}

/* Has the host take a part's wanted rows; *row: the first one, then the one after them. */
static kvasir_status take_rows(struct sched *s, uint32_t part, uint32_t *row, kvasir_error *err) {
    struct task *t = s->part_tasks[part];
    for (uint32_t left = s->parts[part].wanted; left > 0; left--, ++*row) {
        if (s->host.logits)
            TRY(s->host.logits(s->host.user, t, *row, err));
        if (!t->every_row || t->given >= t->n_prompt)
            continue;
        ASSERT(t->given == seq_length(t->seq) - left);
        s->host.give(s->host.user, t, t->given++);
    }
    return KVASIR_OK;
}

/* Takes what the host has, into the pages that are prepared. Returns whether all rows of a task are
 * there now, or it failed: then there may be something to run. */
static bool fill_all(struct sched *s) {
    bool some = false;
    kvasir_error err;
    for (uint32_t i = 0; i < s->n_running;) {
        struct task *t = s->running[i];
        const uint32_t rows = is_loading(t) ? t->rows : 0;
        if (rows)
            t->rows = 0;
        if (rows && s->host.fill(s->host.user, t, rows, &err)) {
            finish(s, t, END_FAILED, &err);
            some = true;
            continue;
        }
        some |= rows && !is_loading(t);
        i++;
    }
    return some;
}

static void fail_all(struct sched *s, const kvasir_error *err) {
    while (s->n_running)
        finish(s, s->running[s->n_running - 1], END_FAILED, err);
}

/* Whether all running tasks, of which there are some, wait for rows of the host. */
static bool all_load(const struct sched *s) {
    for (uint32_t i = 0; i < s->n_running; i++)
        if (!is_loading(s->running[i]))
            return false;
    return s->n_running > 0;
}

/* The parts of the next step: the tasks whose pages are prepared. */
static uint32_t gather(struct sched *s, uint32_t *rows) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct task *t = s->running[i];
        const uint32_t at = seq_length(t->seq);
        if (!t->rows)
            continue;
        ASSERT(at + t->rows <= t->n_tokens && t->n_tokens <= t->cap);
        s->part_tasks[n] = t;
        s->parts[n++] = (struct step_part){.seq = t->seq,
                                           .tokens = t->tokens + at,
                                           .rows = t->rows,
                                           .wanted = rows_wanted(t, at + t->rows),
                                           .hidden = t->hidden};
        *rows += t->rows;
    }
    ASSERT(*rows <= s->options.step_rows);
    return n;
}

/* A page takes milliseconds, and frees what some 20 tokens take. */
bool sched_descend(struct sched *s, bool idle) {
    enum { STEPS_PER_PAGE = 4 };
    return (idle || s->stats.steps % STEPS_PER_PAGE == 0) && kv_cache_descend(s->cache, 1) > 0;
}

kvasir_status sched_step(struct sched *s, uint32_t *rows, kvasir_error *err) {
    uint32_t n, row = 0;
    *rows = 0;
    do { /* again if all running tasks failed for lack of memory: others may be waiting */
        admit_all(s);
        if (!s->n_running)
            return KVASIR_OK;
        rows_distribute(s);
        prepare_all(s);
        const bool again = fill_all(s);
        n = gather(s, rows);
        if (!n && !again && all_load(s))
            return KVASIR_OK;
    } while (!n);
    if (s->host.begins)
        s->host.begins(s->host.user, s->part_tasks, s->parts, n);
    kvasir_status status = s->host.run(s->host.user, s->parts, n, err);
    if (status != KVASIR_OK) {
        fail_all(s, err);
        return status;
    }
    for (uint32_t i = 0; i < n; i++) {
        status = take_rows(s, i, &row, err);
        if (status != KVASIR_OK) {
            fail_all(s, err);
            return status;
        }
        finish_step(s, s->part_tasks[i], s->parts[i].rows, row - 1);
    }
    s->stats.steps++;
    return KVASIR_OK;
}

void sched_note_step(struct sched *s, uint32_t rows, double seconds) {
    pace_note(&s->pace, rows, seconds);
}

/* ---- requests -------------------------------------------------------------------------------- */

void sched_submit(struct sched *s, struct task *t) {
    ASSERT(t->n_prompt > 0 && t->n_prompt <= t->cap && t->n_followers < s->options.max_running);
    t->n_tokens = t->n_prompt;
    t->order = s->next_order++;
    t->at = (struct tree_cursor){TREE_NOWHERE};
    for (uint32_t i = 0; i < t->n_followers; i++) {
        t->followers[i]->order = s->next_order++;
        t->followers[i]->state = TASK_FOLLOWING;
        t->followers[i]->at = (struct tree_cursor){TREE_NOWHERE};
        t->followers[i]->n_prompt = t->n_prompt;
        t->followers[i]->tenant = t->tenant;
        t->followers[i]->weight = t->weight;
        share_join(&s->shares, t->followers[i]);
    }
    share_join(&s->shares, t);
    waiting_insert(s, t);
}

void sched_cancel(struct sched *s, struct task *t) {
    if (t->state != TASK_DONE)
        finish(s, t, END_CANCELLED, NULL);
}
