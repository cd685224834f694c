/* SPDX-License-Identifier: Apache-2.0 */
/* seq_trim.c: a sequence gets shorter: which lengths it can go back to, and what it then holds. */
#include "cache/seq_internal.h"

/* True if the group's table still has every page that a query at `length` sees. */
static bool can_trim(const struct kv_seq *s, uint32_t group, uint32_t length) {
    const struct kv_group *g = &s->cache->groups[group];
    const struct table *t = &s->tables[group];
    if (pages_for(length) <= g->kept_pages && (!t->missing || length <= g->keep))
        return true;
    const uint32_t start = g->span == UINT32_MAX || length < g->span ? 0 : length + 1 - g->span;
    return first_seen(g, length) >= t->base_page && start >= t->missing;
}

static bool all_can_trim(const struct kv_seq *s, uint32_t length) {
    for (uint32_t g = 0; g < s->cache->n_groups; g++)
        if (!can_trim(s, g, length))
            return false;
    return true;
}

static bool all_shadows_serve(const struct kv_seq *s, uint32_t length) {
    for (uint32_t g = 0; g < s->cache->n_groups; g++)
        if (!shadows_serve(s, g, length))
            return false;
    return true;
}

bool snapshot_serves(const struct kv_seq *s, uint32_t length) {
    return all_can_trim(s, length) && (seq_has_tail(s) || all_shadows_serve(s, length));
}

/* Whether a trim to `length` needs a snapshot. It does not if recurrent layers are at that length,
 * if there are none and the shadows are there, or if none are needed. */
static bool needs_snapshot(const struct kv_seq *s, uint32_t length) {
    if (length == s->length)
        return false;
    return s->cache->state_page_bytes ||
           (seq_has_tail(s) && !(all_shadows_serve(s, length) && all_can_trim(s, length)));
}

/* The error names the nearest lengths that work: up to `below`, and from `above` on. */
static kvasir_status fail_trim(const struct kv_seq *s, uint32_t length, kvasir_error *err) {
    uint32_t below = length, above = length;
    for (uint32_t g = 0; g < s->cache->n_groups; g++) {
        const struct kv_group *group = &s->cache->groups[g];
        if (can_trim(s, g, length))
            continue;
        const struct table *t = &s->tables[g];
        uint32_t kept = t->missing ? group->keep : group->kept_pages * TILE_TOKENS,
                 first = t->base_page * TILE_TOKENS;
        uint32_t held = (first > t->missing ? first : t->missing) + group->span - 1;
        below = kept < below ? kept : below;
        above = held > above ? held : above;
    }
    return fail(err, KVASIR_ERR_ARGUMENT,
                "cannot trim to %u tokens: pages that the next one sees were dropped; %u or "
                "less, or %u or more, works",
                length, below, above);
}

static void trim_pages(struct kv_seq *s, uint32_t length) {
    uint32_t n = s->n_snapshots;
    while (n > 0 && s->snapshots[n - 1].length > length)
        n--;
    seq_snapshots_truncate(s, n);
    if (s->has_packed && length < s->length)
        seq_state_drop(s);
    for (uint32_t g = 0; g < s->cache->n_groups; g++) {
        uint32_t kept = s->cache->groups[g].kept_pages;
        seq_table_truncate(s, g, seq_entries_for(s, g, length));
        shadows_keep(s, g, length);
        if (pages_for(length) <= kept)
            s->tables[g].base_page = kept;
        if (length == 0)
            s->tables[g].missing = 0;
    }
    s->stale_tail = s->stale_tail || length < s->prepared;
    s->length = s->prepared = length;
    if (length == 0)
        s->not_reproducible = s->descended = false;
}

/* How many snapshots a trim to `length` leaves: up to the newest usable one. */
static uint32_t snapshots_until(const struct kv_seq *s, uint32_t length) {
    uint32_t n = s->n_snapshots;
    while (n > 0 &&
           (s->snapshots[n - 1].length > length || !snapshot_serves(s, s->snapshots[n - 1].length)))
        n--;
    return n;
}

/* Goes back to the newest usable snapshot at or before `length`, or to nothing. */
static void trim_to_snapshot(struct kv_seq *s, uint32_t length) {
    const uint32_t n = snapshots_until(s, length);
    seq_snapshots_truncate(s, n);
    seq_state_drop(s);
    trim_pages(s, n > 0 ? s->snapshots[n - 1].length : 0);
    if (n > 0) {
        page_ref(s->cache->pool, s->snapshots[n - 1].addr);
        seq_restore(s, s->snapshots[n - 1].addr);
    }
}

/* Inside a page that is encoded when it is full, and whose shadow is gone, a sequence cannot go on:
 * its tokens there are run again from the page's start. */
static uint32_t shadowed_length(const struct kv_seq *s, uint32_t length) {
    return all_shadows_serve(s, length) ? length : length / TILE_TOKENS * TILE_TOKENS;
}

uint32_t seq_trim_reach(const struct kv_seq *s, uint32_t length) {
    if (length >= s->length)
        return length;
    if (!needs_snapshot(s, length))
        return shadowed_length(s, length);
    const uint32_t n = snapshots_until(s, length);
    return n > 0 ? s->snapshots[n - 1].length : 0;
}

kvasir_status seq_trim(struct kv_seq *s, uint32_t length, uint32_t *reached, kvasir_error *err) {
    if (length > s->length)
        return fail(err, KVASIR_ERR_ARGUMENT, "cannot trim %u tokens to %u", s->length, length);
    if (needs_snapshot(s, length)) {
        trim_to_snapshot(s, length);
    } else {
        const uint32_t to = shadowed_length(s, length);
        if (!all_can_trim(s, to))
            return fail_trim(s, to, err);
        trim_pages(s, to);
    }
    *reached = s->length;
    return KVASIR_OK;
}
