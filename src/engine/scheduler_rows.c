/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler_rows.c: how many rows of each running task the next step has. */
#include "engine/scheduler_internal.h"

/* With tiers, which have whole pages only: the last length of a prompt at which one ends. The
 * prompt is found there again, so the tree must get the state there, and all pages that a window
 * sees. */
static uint32_t tier_point(const struct sched *s, const struct task *t) {
    return s->tiers ? (t->n_prompt - 1) / TILE_TOKENS * TILE_TOKENS : 0;
}

static bool ends_at_tier_point(const struct sched *s, const struct task *t, uint32_t at,
                               uint32_t end) {
    const uint32_t point = tier_point(s, t);
    return at < point && point < end &&
           (s->recurrent || kv_cache_outruns(s->cache, at, point, end));
}

static uint32_t nearer(uint32_t next, uint32_t point, uint32_t at) {
    return point > at && point < next ? point : next;
}

/* Recurrent layers: the next length after `at` at which the tree is to store their state;
 * UINT32_MAX: none. The end of a prompt is where the next one differs most often (an agent's
 * reminder moves, a question is asked again in other words), so points are closer there: whole
 * pages 1, 2, 4 ... pages apart, counted from the end. */
static uint32_t next_point(const struct sched *s, const struct task *t, uint32_t at) {
    const uint32_t every = s->options.snapshot_tokens, last = t->n_prompt - 1,
                   page = last / TILE_TOKENS * TILE_TOKENS;
    uint32_t next = nearer(UINT32_MAX, last, at);
    next = nearer(next, t->hit_point, at);
    next = nearer(next, tier_point(s, t), at);
    if (every)
        next = nearer(next, at / every * every + every, at);
    if (s->options.points_near_ends)
        for (uint32_t back = 0; back < every && back < page; back = 2 * back + TILE_TOKENS)
            next = nearer(next, page - back, at);
    ASSERT(next > at);
    return next;
}

bool rows_end_at_point(const struct sched *s, const struct task *t, uint32_t length) {
    return s->recurrent && is_stored(s, t) && length > 0 && next_point(s, t, length - 1) == length;
}

/* Rows until the next point, or all that the task's tokens need. */
static uint32_t rows_left(const struct sched *s, const struct task *t) {
    const uint32_t at = seq_length(t->seq);
    uint32_t end = t->n_tokens;
    if (!is_stored(s, t))
        return end - at;
    if (ends_at_tier_point(s, t, at, end))
        end = tier_point(s, t);
    if (s->recurrent)
        end = min_u32(end, next_point(s, t, at));
    return end - at;
}

static bool is_last_row(const struct task *t) {
    return t->n_tokens - seq_length(t->seq) == 1;
}

/* Counts the prompts of each share, which has t's. Returns the weights of the shares that have
 * any. */
static uint64_t count_prompts(const struct sched *s) {
    uint64_t weights = 0;
    for (uint32_t i = 0; i < s->n_running; i++)
        s->running[i]->share->prompts = 0;
    for (uint32_t i = 0; i < s->n_running; i++) {
        const struct task *t = s->running[i];
        if (!is_loading(t) && !is_last_row(t) && t->share->prompts++ == 0)
            weights += t->share->weight;
    }
    return weights;
}

/* SCHED-2, SCHED-9. Tasks that generate get their row first; then each prompt gets its part; then
 * what is left goes to the first prompts. The order starts with another task at each step. */
void rows_distribute(struct sched *s) {
    const uint32_t n = s->n_running;
    const uint64_t weights = count_prompts(s);
    uint32_t left = s->options.step_rows;
    ASSERT(n > 0 && n <= left);
    s->turn++;
    for (uint32_t i = 0; i < n; i++) {
        struct task *t = s->running[(s->turn + i) % n];
        t->rows = is_last_row(t) && left > 0;
        left -= t->rows;
        if (is_loading(t))
            t->rows = s->host.ready(s->host.user, t);
    }
    const uint32_t free_rows = left;
    for (int pass = 0; pass < 2 && weights && left; pass++) {
        for (uint32_t i = 0; i < n && left; i++) {
            struct task *t = s->running[(s->turn + i) % n];
            if (is_loading(t) || is_last_row(t))
                continue;
            uint64_t part =
                pass ? left : (uint64_t)free_rows * t->share->weight / weights / t->share->prompts;
            uint32_t more = rows_left(s, t) - t->rows;
            part = part ? part : 1;
            more = more < part ? more : (uint32_t)part;
            more = more < left ? more : left;
            t->rows += more;
            left -= more;
        }
    }
}
