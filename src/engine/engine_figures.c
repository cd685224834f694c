/* SPDX-License-Identifier: Apache-2.0 */
/* engine_figures.c: what an engine says about itself. Its thread takes the figures down after every
 * step, from counters that are kept anyway, under the mutex that others read them with: nothing is
 * walked, nothing allocated (I6).
 *
 *     used_bytes = pages of each class of the pool, states' too, + what is charged ("tables")
 *
 * Classes of the pool that have the same formats (layer groups of other shapes) are one entry. It
 * appears with its first page and stays.
 */
#include <string.h>

#include "engine/engine_internal.h"

void figures_note_step(struct kvasir_engine *e, double seconds) {
    int i = 0;
    while (i < KVASIR_STEP_COUNTS - 1 && seconds > KVASIR_STEP_SECONDS(i))
        i++;
    e->step_counts[i]++;
    e->step_seconds += seconds;
}

/* The entry of a class of pages, a new one where there is none yet. */
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

void figures_copy(struct kvasir_engine *e) {
    kvasir_engine_stats stats = sched_engine_stats(e->sched);
    stats.finished = e->finished;
    stats.cancelled = e->cancelled;
    stats.failed = e->failed;
    stats.fixed_bytes = e->fixed_bytes;
    stats.step_seconds = e->step_seconds;
    memcpy(stats.step_counts, e->step_counts, sizeof stats.step_counts);
    pthread_mutex_lock(&e->mutex);
    e->stats = stats; /* waiting and requests are read under the mutex, too */
    if (!e->n_formats)
        e->formats[e->n_formats++] = (kvasir_format_bytes){.format = "tables"};
    copy_formats(e, &stats);
    pthread_mutex_unlock(&e->mutex);
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
    return TEXTS[hit];
}
