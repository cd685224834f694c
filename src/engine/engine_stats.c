/* SPDX-License-Identifier: Apache-2.0 */
/* engine_stats.c: what an engine reports about itself. After every step the engine's thread copies
 * counters that exist anyway, under the mutex that readers take. Nothing is walked or allocated.
 *
 *     used_bytes = pages of each class of the pool, with states, + charged bytes ("tables")
 *
 * Classes of the pool with the same formats (layer groups of different shapes) share an entry. It
 * appears with the class's first page and stays.
 */
#include <string.h>

#include "engine/engine_internal.h"

void stats_note_step(struct kvasir_engine *e, uint32_t rows, double seconds) {
    int i = 0;
    if (e->tiers)
        tiers_note_step(e->tiers, rows, seconds);
    while (i < KVASIR_STEP_COUNTS - 1 && seconds > KVASIR_STEP_SECONDS(i))
        i++;
    e->step_counts[i]++;
    e->step_seconds += seconds;
}

/* The entry of a class of pages; a new one if there is none yet. */
static kvasir_format_bytes *format_of(struct kvasir_engine *e, uint32_t class_index,
                                      const struct kv_pool_class *c) {
    uint16_t *at = &e->class_format[class_index];
    char text[sizeof e->formats->format] = "states";
    if (*at)
        return &e->formats[*at];
    if (c->k.bits)
        format_pair_text(c->k, c->v, text);
    uint16_t i = 1;
    while (i < e->n_formats && strcmp(e->formats[i].format, text) != 0)
        i++;
    if (i == e->n_formats) {
        ASSERT(i < sizeof e->formats / sizeof *e->formats);
        memcpy(e->formats[i].format, text, sizeof text);
        e->n_formats++;
    }
    *at = i;
    return &e->formats[i];
}

static void copy_formats(struct kvasir_engine *e, const kvasir_engine_stats *stats) {
    struct kv_pool *pool = kv_cache_pool(e->ctx->cache);
    struct kv_pool_class c;
    uint64_t live = 0, stored = 0;
    for (size_t i = 0; i < e->n_formats; i++)
        e->formats[i].live_bytes = e->formats[i].stored_bytes = 0;
    for (uint32_t i = 0; kv_pool_class(pool, i, &c); i++) {
        if (!c.live_bytes && !c.stored_bytes)
            continue;
        kvasir_format_bytes *f = format_of(e, i, &c);
        f->live_bytes += c.live_bytes;
        f->stored_bytes += c.stored_bytes;
        live += c.live_bytes;
        stored += c.stored_bytes;
    }
    ASSERT(stored <= stats->stored_bytes && live + stats->stored_bytes <= stats->used_bytes);
    e->formats[0].stored_bytes = stats->stored_bytes - stored;
    e->formats[0].live_bytes = stats->used_bytes - stats->stored_bytes - live;
}

void stats_publish(struct kvasir_engine *e) {
    kvasir_engine_stats stats = sched_engine_stats(e->sched);
    stats.finished = e->finished;
    stats.cancelled = e->cancelled;
    stats.failed = e->failed;
    stats.fixed_bytes = e->fixed_bytes + e->tiers_bytes;
    stats.step_seconds = e->step_seconds;
    memcpy(stats.step_counts, e->step_counts, sizeof stats.step_counts);
    masks_stats(e, &stats);
    pthread_mutex_lock(&e->mutex);
    e->stats = stats; /* without waiting and requests, which get_stats reads itself */
    if (!e->n_formats)
        e->formats[e->n_formats++] = (kvasir_format_bytes){.format = "tables"};
    copy_formats(e, &stats);
    pthread_mutex_unlock(&e->mutex);
}

void stats_note_failure(struct kvasir_engine *e) {
    kvasir_error err;
    if (backend_flush(e->ctx->backend, &err) == KVASIR_OK)
        return;
    pthread_mutex_lock(&e->mutex);
    e->lost = err;
    pthread_mutex_unlock(&e->mutex);
}

kvasir_status kvasir_engine_get_error(kvasir_engine *e, kvasir_error *err) {
    pthread_mutex_lock(&e->mutex);
    const kvasir_error lost = e->lost;
    pthread_mutex_unlock(&e->mutex);
    if (err && lost.code != KVASIR_OK)
        *err = lost;
    return lost.code;
}

size_t kvasir_engine_get_formats(kvasir_engine *e, kvasir_format_bytes *formats, size_t cap,
                                 kvasir_engine_stats *stats) {
    pthread_mutex_lock(&e->mutex);
    const size_t n = e->n_formats;
    for (size_t i = 0; i < n && i < cap; i++)
        formats[i] = e->formats[i];
    if (stats) {
        *stats = e->stats;
        stats->waiting = e->waiting;
        stats->requests = e->requests;
    }
    pthread_mutex_unlock(&e->mutex);
    return n;
}

void kvasir_engine_get_stats(kvasir_engine *e, kvasir_engine_stats *stats) {
    (void)kvasir_engine_get_formats(e, NULL, 0, stats);
}

const char *kvasir_hit_text(kvasir_hit hit) {
    static const char *const TEXTS[KVASIR_HIT_KINDS] = {
        [KVASIR_HIT_MISS] = "miss",
        [KVASIR_HIT_EXACT] = "exact",
        [KVASIR_HIT_PREFIX] = "prefix",
        [KVASIR_HIT_SUPERSEQUENCE] = "supersequence",
        [KVASIR_HIT_COMMON_PREFIX] = "common_prefix",
    };
    return TEXTS[hit < KVASIR_HIT_KINDS ? hit : KVASIR_HIT_MISS];
}

const char *kvasir_miss_text(kvasir_miss why) {
    static const char *const TEXTS[KVASIR_MISS_KINDS] = {
        [KVASIR_MISS_NOTHING] = "nothing", [KVASIR_MISS_NOT_LOOKED_UP] = "not_looked_up",
        [KVASIR_MISS_NEW] = "never_seen",  [KVASIR_MISS_EVICTED] = "evicted",
        [KVASIR_MISS_EXPIRED] = "expired", [KVASIR_MISS_WINDOW] = "window_dropped",
        [KVASIR_MISS_STATE] = "no_state",  [KVASIR_MISS_FORMATS] = "other_formats",
    };
    return TEXTS[why < KVASIR_MISS_KINDS ? why : KVASIR_MISS_NOTHING];
}

/* ---- the memory plan: settled when the engine was made, so any thread may ask ---------------- */

void kvasir_engine_get_plan(const kvasir_engine *e, kvasir_memory_plan *plan) {
    const struct settled *s = &e->ctx->options;
    *plan = (kvasir_memory_plan){
        .weight_bytes = model_weight_bytes(e->model->model),
        .budget_bytes = s->cache.budget_bytes,
        .step_bytes = e->fixed_bytes + e->tiers_bytes,
        .state_bytes = s->cache.state_bytes,
        .fit_tokens = e->fit_tokens,
        .start_tokens = kv_cache_start_pages(e->ctx->cache) * TILE_TOKENS,
        .open_page_bytes = s->open_page_bytes,
        .tail_tokens = kv_cache_tail_pages(e->ctx->cache) * TILE_TOKENS,
        .tail_bytes = s->tail_bytes,
        .n_groups = s->n_groups,
    };
    for (uint32_t g = 0; g < s->n_groups; g++) {
        plan->groups[g] = e->info.groups[g];
        plan->start_bytes += plan->start_tokens * plan->groups[g].bytes_per_token16;
        plan->start_bytes_quantized += plan->start_tokens * plan->groups[g].bytes_per_token;
    }
}

void kvasir_engine_plan_sequence(const kvasir_engine *e, uint32_t tokens,
                                 kvasir_sequence_plan *plan) {
    const struct settled *s = &e->ctx->options;
    *plan = (kvasir_sequence_plan){
        .bytes16 = s->cache.state_bytes + kv_cache_bytes_16bit(e->ctx->cache, tokens),
        .bytes = settled_best_bytes(s, tokens),
        .need_bytes = sched_need(e->sched, tokens),
    };
}
