/* SPDX-License-Identifier: Apache-2.0 */
/* seq_snapshot.c: snapshots: what a sequence needs beside its pages to go on from a length.
 *
 *     recurrent layers      their state. A snapshot is a reference to its page, which the next step
 *                           copies before it writes (CACHE-8).
 *     an exact tail         the shadows of the pages before that length. Computing them again would
 *                           need those before them, and so on from the start: a query sees them,
 *                           and what it sees is in the rows that it stores.
 *
 *     page of a snapshot    | state | group 0: shadow, shadow ... | group 1 ... |
 *
 * With an exact tail a snapshot is a page of its own to which both are copied. The sequence that
 * goes on from it holds a reference (`packed`) until its next step, which copies them back: so hits
 * and trims take no pages. Such snapshots are of lengths at which a page ends; of a sequence that
 * is further into the next page, too, since that has the same tail.
 */
#include "cache/seq_internal.h"

bool seq_has_tail(const struct kv_seq *s) {
    for (uint32_t g = 0; g < s->cache->n_groups && s->rule.tail_pages; g++)
        if (shadows_used(s->cache, &s->rule, g))
            return true;
    return false;
}

/* ---- packing --------------------------------------------------------------------------------- */

static void copy(struct kv_cache *c, uint32_t to, uint32_t from, uint64_t bytes) {
    backend_arena_copy(c->backend, pool_arena(c->pool), to, from, (size_t)bytes);
}

static uint32_t units(uint64_t bytes) {
    return (uint32_t)(bytes / PAGE_ADDR_UNIT);
}

/* Copies the shadows that a query at `length` sees between the tables and a snapshot. */
static void copy_tail(struct kv_seq *s, uint32_t length, uint32_t addr, bool pack) {
    struct kv_cache *c = s->cache;
    uint32_t at = addr + units(c->state_page_bytes);
    for (uint32_t g = 0; g < c->n_groups; at += units(cache_tail_bytes(c, g)), g++) {
        const uint32_t first = cache_first_shadow(c, &s->rule, g, length);
        for (uint32_t n = first; n < length / TILE_TOKENS && shadows_used(c, &s->rule, g); n++) {
            const struct kv_page *shadow = shadow_at(s, g, n);
            ASSERT(shadow);
            const uint64_t bytes = c->layouts[g][shadow->layout].page_bytes;
            const uint32_t packed = at + (n - first) * units(bytes);
            ASSERT((n - first + 1) * bytes <= cache_tail_bytes(c, g));
            copy(c, pack ? packed : shadow->addr, pack ? shadow->addr : packed, bytes);
        }
    }
}

/* Whether a snapshot of `length` can be made: the state is there only, the tail in that page. */
static bool can_pack(const struct kv_seq *s, uint32_t length) {
    for (uint32_t g = 0; g < s->cache->n_groups; g++)
        if (!shadows_serve(s, g, length))
            return false;
    return length == s->length || !s->has_state;
}

/* Whether a snapshot of this length would have all that is needed: a page that is encoded when it
 * is full ends there. */
static bool is_packable(const struct kv_seq *s, uint32_t length) {
    for (uint32_t g = 0; g < s->cache->n_groups; g++)
        if (length % TILE_TOKENS && shadows_used(s->cache, &s->rule, g) &&
            length / TILE_TOKENS >= s->rule.start_pages)
            return false;
    return true;
}

static kvasir_status pack(struct kv_seq *s, uint32_t length, uint32_t *addr, kvasir_error *err) {
    struct kv_cache *c = s->cache;
    TRY(page_take(c->pool, c->snapshot_class, addr, err));
    if (s->has_state)
        copy(c, *addr, s->state, c->state_page_bytes);
    copy_tail(s, length, *addr, true);
    return KVASIR_OK;
}

kvasir_status seq_snapshot_take(struct kv_seq *s, uint32_t length, uint32_t *addr,
                                kvasir_error *err) {
    ASSERT(s->prepared == s->length); /* a step may be writing the state */
    *addr = NO_SNAPSHOT;
    if (seq_has_tail(s) && !s->has_packed)
        return length && is_packable(s, length) && can_pack(s, length) ? pack(s, length, addr, err)
                                                                       : KVASIR_OK;
    if (length != s->length || !(s->has_packed || s->has_state))
        return KVASIR_OK;
    *addr = s->has_packed ? s->packed : s->state;
    page_ref(s->cache->pool, *addr);
    return KVASIR_OK;
}

void seq_restore(struct kv_seq *s, uint32_t addr) {
    ASSERT(!s->has_state && !s->has_packed);
    if (seq_has_tail(s)) {
        for (uint32_t g = 0; g < s->cache->n_groups; g++)
            shadows_drop(s, g);
        s->packed = addr;
        s->has_packed = true;
    } else {
        s->state = addr;
        s->has_state = true;
    }
}

uint64_t unpack_bytes(const struct kv_seq *s) {
    uint64_t bytes = s->has_packed ? s->cache->state_page_bytes : 0;
    for (uint32_t g = 0; g < s->cache->n_groups && s->has_packed; g++)
        bytes += cache_shadow_bytes(s->cache, &s->rule, g, s->length, s->length);
    return bytes;
}

static kvasir_status take_unpacked(struct kv_seq *s, kvasir_error *err) {
    struct kv_cache *c = s->cache;
    if (c->state_page_bytes)
        TRY(page_take(c->pool, c->state_class, &s->state, err));
    s->has_state = c->state_page_bytes != 0;
    for (uint32_t g = 0; g < c->n_groups; g++)
        TRY(shadows_take(s, g, s->length, err));
    return KVASIR_OK;
}

kvasir_status seq_unpack(struct kv_seq *s, kvasir_error *err) {
    if (!s->has_packed)
        return KVASIR_OK;
    const uint32_t packed = s->packed;
    ASSERT(!s->has_state && s->prepared == s->length);
    s->has_packed = false;
    const kvasir_status status = take_unpacked(s, err);
    if (status != KVASIR_OK) {
        seq_state_drop(s);
        seq_restore(s, packed);
        return status;
    }
    if (s->has_state)
        copy(s->cache, s->state, packed, s->cache->state_page_bytes);
    copy_tail(s, s->length, packed, false);
    page_unref(s->cache->pool, packed);
    return KVASIR_OK;
}

/* ---- the list -------------------------------------------------------------------------------- */

kvasir_status seq_snapshots_room(struct kv_seq *s, uint32_t n, kvasir_error *err) {
    if (n <= s->cap_snapshots)
        return KVASIR_OK;
    uint32_t cap = s->cap_snapshots ? s->cap_snapshots * 2 : 8;
    cap = cap < n ? n : cap;
    struct snapshot *snapshots = mem_realloc(s->snapshots, cap, sizeof *snapshots);
    if (!snapshots)
        return fail(err, KVASIR_ERR_MEMORY, "%u snapshots: out of memory", cap);
    s->snapshots = snapshots;
    s->cap_snapshots = cap;
    return KVASIR_OK;
}

kvasir_status seq_snapshot(struct kv_seq *s, kvasir_error *err) {
    uint32_t addr;
    if (s->n_snapshots && s->snapshots[s->n_snapshots - 1].length == s->length)
        return KVASIR_OK;
    TRY(seq_snapshots_room(s, s->n_snapshots + 1, err));
    TRY(seq_snapshot_take(s, s->length, &addr, err));
    if (addr != NO_SNAPSHOT)
        s->snapshots[s->n_snapshots++] = (struct snapshot){s->length, addr};
    return KVASIR_OK;
}

uint64_t snapshot_page_bytes(const struct kv_seq *s) {
    return seq_has_tail(s) ? s->cache->snapshot_bytes : s->cache->state_page_bytes;
}

/* The pages of snapshots and of the state, each once: the newest may be what the sequence has. */
static uint32_t count_snapshots(const struct kv_seq *s) {
    uint32_t count = s->has_packed;
    for (uint32_t i = 0; i < s->n_snapshots; i++)
        count += !(s->has_state && s->snapshots[i].addr == s->state) &&
                 !(s->has_packed && s->snapshots[i].addr == s->packed);
    return count;
}

uint64_t snapshots_bytes(const struct kv_seq *s) {
    return (s->has_state ? s->cache->state_page_bytes : 0) +
           count_snapshots(s) * snapshot_page_bytes(s);
}

uint64_t snapshots_bytes_16bit(const struct kv_seq *s) {
    return (s->has_state + count_snapshots(s)) * s->cache->options.state_bytes;
}
