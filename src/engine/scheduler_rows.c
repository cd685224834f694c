/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler_rows.c: how many rows of each running task the next step has. */
#include "engine/scheduler_internal.h"

/* With tiers and with formats that have whole pages only: the last length of a prompt at which one
 * ends. The prompt is found there again, so the tree must get the state there, and all pages that a
 * window sees. */
static uint32_t page_point(const struct sched *s, const struct task *t) {
    return s->tiers || s->whole ? (t->n_prompt - 1) / TILE_TOKENS * TILE_TOKENS : 0;
}

static bool ends_at_page_point(const struct sched *s, const struct task *t, uint32_t at,
                               uint32_t end) {
    const uint32_t point = page_point(s, t);
    return at < point && point < end &&
           (s->by_snapshot || kv_cache_outruns(s->cache, at, point, end));
}

static uint32_t nearer(uint32_t next, uint32_t point, uint32_t at) {
    return point > at && point < next ? point : next;
}

/* If hits end at snapshots: the next length after `at` at which the tree is to store one;
 * UINT32_MAX: none. The end of a prompt is where the next one differs most often (an agent's
 * reminder moves, a question is asked again in other words), so points are closer there: whole
 * pages 1, 2, 4 ... pages apart, counted from the end. */
static uint32_t next_point(const struct sched *s, const struct task *t, uint32_t at) {
    const uint32_t every = s->options.snapshot_tokens, last = t->n_prompt - 1,
                   page = last / TILE_TOKENS * TILE_TOKENS;
    uint32_t next = s->whole ? UINT32_MAX : nearer(UINT32_MAX, last, at);
    next = nearer(next, t->hit_point, at);
    next = nearer(next, page_point(s, t), at);
    if (every)
        next = nearer(next, at / every * every + every, at);
    if (s->options.points_near_ends)
        for (uint32_t back = 0; back < every && back < page; back = 2 * back + TILE_TOKENS)
            next = nearer(next, page - back, at);
    ASSERT(next > at);
    return next;
}

bool rows_end_at_point(const struct sched *s, const struct task *t, uint32_t length) {
    return s->by_snapshot && is_stored(s, t) && length > 0 &&
           next_point(s, t, length - 1) == length;
}

/* Rows until the next point, or all that the task's tokens need. */
static uint32_t rows_left(const struct sched *s, const struct task *t) {
    const uint32_t at = seq_length(t->seq);
    uint32_t end = t->n_tokens;
    if (!is_stored(s, t))
        return end - at;
    if (ends_at_page_point(s, t, at, end))
        end = page_point(s, t);
    if (s->by_snapshot)
        end = min_u32(end, next_point(s, t, at));
    return end - at;
}

static bool is_last_row(const struct task *t) {
    return t->n_tokens - seq_length(t->seq) == 1;
}

/* Rule 3 of policy.h for the running task of this place in age. An answer that goes on (tokens that
 * must follow, or that were run before a preemption) comes before prompts. */
static uint64_t rank_of(const struct sched *s, uint32_t place) {
    const struct task *t = s->by_age[place];
    if (s->options.policy == POLICY_EQUAL) /* starting with another one at each step */
        return (s->turn + place) % s->n_running;
    if (t->n_tokens > t->n_prompt)
        return RANK_FIRST;
    return policy_rank(s->options.policy, t->priority, t->n_tokens - seq_length(t->seq));
}

/* Lists the prompts, the first admitted first, and what shares have of them. Returns their number;
 * *weights: of the shares that have any. */
static uint32_t list_prompts(struct sched *s, uint64_t *weights) {
    uint32_t n = 0;
    *weights = 0;
    for (uint32_t i = 0; i < s->n_running; i++)
        s->by_age[i]->share->prompts = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        struct task *t = s->by_age[i];
        if (is_loading(t) || is_last_row(t))
            continue;
        if (t->share->prompts++ == 0) {
            *weights += t->share->weight;
            t->share->oldest = t;
        }
        s->prompts[n++] = (struct ranked){rank_of(s, i), i};
    }
    return n;
}

/* Splits the rows among the shares with prompts by weight. What each would get by rounding down
 * falls short of the sum; who gets one more depends on the order, which rotates. */
static void split_rows(struct sched *s, uint32_t n, uint64_t weights, uint32_t rows) {
    uint64_t before = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct share *h = s->by_age[s->prompts[(s->turn + i) % n].item]->share;
        if (h->split == s->turn)
            continue;
        h->split = s->turn;
        const uint64_t until = before + h->weight;
        h->rows = (uint32_t)(rows * until / weights - rows * before / weights);
        before = until;
    }
}

/* Gives the task at most so many more rows, of those that are left: its share's first, then
 * anybody's. */
static void give(const struct sched *s, struct task *t, uint32_t most, uint32_t *left) {
    const uint32_t more = min_u32(min_u32(rows_left(s, t) - t->rows, most), *left);
    t->rows += more;
    t->share->rows -= min_u32(more, t->share->rows);
    *left -= more;
}

/* The prompts' rows. */
static void share_rows(struct sched *s, uint32_t rows) {
    const enum policy policy = s->options.policy;
    uint64_t weights;
    const uint32_t n = list_prompts(s, &weights);
    split_rows(s, n, weights, rows);
    ranked_sort(s->prompts, s->prompts_scratch, n);
    for (uint32_t i = 0; i < n; i++) {
        struct task *t = s->by_age[s->prompts[i].item];
        if (t == t->share->oldest)
            give(s, t, policy_aged_rows(policy, t->share->rows), &rows);
    }
    for (uint32_t i = 0; i < n; i++) {
        struct task *t = s->by_age[s->prompts[i].item];
        give(s, t, t->share->rows / (policy == POLICY_EQUAL ? t->share->prompts-- : 1), &rows);
    }
    for (uint32_t i = 0; i < n; i++) /* what shares could not use */
        give(s, s->by_age[s->prompts[i].item], rows, &rows);
}

/* SCHED-2, SCHED-9. Tasks that generate get their row first, then prompts. */
void rows_distribute(struct sched *s) {
    const uint32_t n = s->n_running;
    uint32_t left = s->options.step_rows, generating = 0;
    ASSERT(n > 0 && n <= left);
    s->turn++;
    for (uint32_t i = 0; i < n; i++) {
        struct task *t = s->running[i];
        t->rows = is_last_row(t);
        generating += t->rows;
        if (is_loading(t))
            t->rows = s->host.ready(s->host.user, t);
    }
    left -= generating;
    share_rows(s, pace_prompt_rows(&s->pace, generating, left));
}
