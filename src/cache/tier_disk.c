/* SPDX-License-Identifier: Apache-2.0 */
/* tier_disk.c: the disk tier's operations: finds, reads, writes and forgets records (tier.h).
 * tier_disk.h says who shares what, docs/tiers.md what is promised.
 *
 * Reads: the index says where a record is; its segment is referenced, so that its file stays, and
 * the rest happens without a lock. What cannot be right (short, another key, a sum) leaves the
 * index at once. An error of the system does not: it may be over next time.
 *
 * Writes that fail for another reason than their size turn writing off for a while, twice as long
 * each time, up to ten minutes. Reads go on.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cache/tier_disk.h"

enum { FIND_KEYS = 64 /* under one hold of the lock */ };
#define BACK_OFF_LEAST 10.0 /* seconds */
#define BACK_OFF_MOST  600.0
#define BACK_OFF_ROOM  60.0

static struct tier_disk *disk_of(struct tier *t) {
    return (struct tier_disk *)(void *)t;
}

/* ---- find ------------------------------------------------------------------------------------ */

static bool is_expired(const struct index_entry *e, uint64_t now) {
    return e->expires != 0 && now >= e->expires;
}

static void disk_find(struct tier *t, const struct tier_place *place, const struct tier_key *keys,
                      uint32_t n, bool *have, double deadline) {
    struct tier_disk *d = disk_of(t);
    const uint64_t now = disk_now();
    (void)place;
    (void)deadline;
    for (uint32_t i = 0; i < n;) {
        atomic_fetch_add(&d->finding, 1);
        pthread_mutex_lock(&d->lock);
        atomic_fetch_sub(&d->finding, 1);
        for (const uint32_t end = min_u32(n, i + FIND_KEYS); i < end; i++) {
            const struct index_entry *e = index_find(&d->index, keys[i]);
            have[i] = e && !is_expired(e, now);
        }
        pthread_mutex_unlock(&d->lock);
    }
}

/* ---- read ------------------------------------------------------------------------------------ */

/* Under the lock: the entry of a key if it is still at that place. */
static struct index_entry *find_at(struct tier_disk *d, const struct index_entry *place) {
    struct index_entry *e = index_find(&d->index, place->key);
    return e && e->segment == place->segment && e->block == place->block ? e : NULL;
}

/* Under the lock: where a record is, whose segment is referenced then. */
static struct segment *find_record(struct tier_disk *d, struct tier_key key,
                                   struct index_entry *out) {
    struct index_entry *e = index_find(&d->index, key);
    if (e && is_expired(e, disk_now())) {
        d->stats.dropped++;
        disk_remove_entry(d, e);
        e = NULL;
    }
    if (!e)
        return NULL;
    e->uses = (uint16_t)(e->uses + (e->uses < UINT16_MAX));
    *out = *e;
    d->segments[e->segment]->refs++;
    return d->segments[e->segment];
}

static void count_read(struct tier_disk *d, const struct tier_read *r, double seconds) {
    struct tier_stats *stats = &d->stats;
    switch (r->result) {
    case TIER_OK:
        stats->reads++;
        stats->read_bytes += r->bytes;
        stats->read_seconds += seconds;
        break;
    case TIER_MISSING:
        stats->missing++;
        break;
    case TIER_DAMAGED:
        stats->damaged++;
        break;
    case TIER_FAILED:
    case TIER_RESULTS:
        stats->failed++;
    }
}

static void read_one(struct tier_disk *d, struct tier_read *r, double deadline) {
    struct index_entry place;
    char path[DISK_PATH_BYTES];
    const double begin = clock_seconds();
    r->result = TIER_MISSING;
    pthread_mutex_lock(&d->lock);
    struct segment *s = find_record(d, r->key, &place);
    d->stats.missing += !s;
    pthread_mutex_unlock(&d->lock);
    if (!s)
        return;
    if (deadline > 0 && begin > deadline)
        r->result = TIER_FAILED;
    else
        disk_read_record(d, s, &place, r, deadline);
    disk_segment_path(d, s->number, path);
    if (r->result == TIER_DAMAGED)
        disk_tell(d, TROUBLE_DAMAGE, "%s is damaged at %llu: such records are computed again", path,
                  (unsigned long long)place.block * BLOCK_BYTES);
    if (r->result == TIER_FAILED)
        disk_tell(d, TROUBLE_READ, "cannot read %s in time", path);
    pthread_mutex_lock(&d->lock);
    struct index_entry *e = find_at(d, &place);
    if (e && (r->result == TIER_DAMAGED || r->result == TIER_MISSING))
        disk_remove_entry(d, e);
    count_read(d, r, clock_seconds() - begin);
    pthread_mutex_unlock(&d->lock);
    disk_unref(d, s);
}

static void disk_read(struct tier *t, struct tier_read *reads, uint32_t n, double deadline) {
    for (uint32_t i = 0; i < n; i++) {
        read_one(disk_of(t), &reads[i], deadline);
        record_ended(&reads[i]);
    }
}

/* ---- write ----------------------------------------------------------------------------------- */

static const char *write_trouble(int error) {
    return error == DISK_NO_ROOM     ? "no room within the limit and above the floor of free space"
           : error == DISK_TOO_LARGE ? "a record is larger than the limit"
                                     : strerror(-error);
}

/* A record that was not written: counts it, and turns writing off for a while unless only this one
 * is too large. */
static void write_failed(struct tier_disk *d, int error) {
    const bool room = error == DISK_NO_ROOM;
    pthread_mutex_lock(&d->lock);
    d->stats.write_failures++;
    if (error != DISK_TOO_LARGE && error != -ENOMEM) {
        const double twice = 2 * d->back_off;
        d->back_off = twice < BACK_OFF_LEAST  ? BACK_OFF_LEAST
                      : twice > BACK_OFF_MOST ? BACK_OFF_MOST
                                              : twice;
        d->retry_at = clock_seconds() + (room ? BACK_OFF_ROOM : d->back_off);
        d->stats.down = true;
    }
    pthread_mutex_unlock(&d->lock);
    if (error == DISK_TOO_LARGE)
        return;
    disk_tell(d, TROUBLE_WRITE, "cannot write to %s: %s; nothing new is stored for a while", d->dir,
              write_trouble(error));
}

/* Under `writing`: appends, and puts what is a page or a state into the index. */
static int write_record(struct tier_disk *d, const struct record_head *head, const void *payload) {
    struct index_entry e = {
        .key = head->key,
        .units = (uint32_t)(head->bytes / BLOCK_BYTES),
        .context = (uint32_t)head->context.word[0],
        .root = (uint32_t)head->root.word[0],
        .expires = (uint32_t)(head->expires < UINT32_MAX ? head->expires : UINT32_MAX),
        .kind = (uint8_t)head->kind,
    };
    int error = disk_make_room(d, BLOCK_BYTES + head->bytes);
    if (!error)
        error = disk_append(d, head, payload, &e);
    if (error)
        return error;
    pthread_mutex_lock(&d->lock);
    struct index_entry *old = index_find(&d->index, head->key);
    if (old && head->kind != RECORD_FORGET) /* it has expired */
        disk_remove_entry(d, old);
    if (head->kind == RECORD_FORGET)
        d->current->forgets = true;
    else if (index_add(&d->index, &e))
        d->current->live++;
    else
        error = -ENOMEM;
    d->back_off = 0;
    d->stats.down = false;
    d->told[TROUBLE_WRITE] = false;
    pthread_mutex_unlock(&d->lock);
    return error;
}

/* Whether a record is to be written; *down: it cannot be at present. */
static bool is_wanted(struct tier_disk *d, struct tier_key key, bool *down) {
    pthread_mutex_lock(&d->lock);
    const struct index_entry *e = index_find(&d->index, key);
    const bool there = e && !is_expired(e, disk_now());
    *down = !there && d->stats.down && clock_seconds() < d->retry_at;
    d->stats.write_failures += *down;
    pthread_mutex_unlock(&d->lock);
    return !there && !*down;
}

static bool disk_write(struct tier *t, const struct record_head *head, const void *payload) {
    struct tier_disk *d = disk_of(t);
    bool down;
    ASSERT(head->bytes > 0 && head->bytes % BLOCK_BYTES == 0 && head->kind < RECORD_FORGET);
    if (!is_wanted(d, head->key, &down))
        return !down;
    pthread_mutex_lock(&d->writing);
    int error = 0;
    const bool wanted = is_wanted(d, head->key, &down); /* others may have been sooner */
    if (wanted)
        error = write_record(d, head, payload);
    pthread_mutex_unlock(&d->writing);
    if (error)
        write_failed(d, error);
    pthread_mutex_lock(&d->lock);
    d->stats.writes += wanted && !error;
    d->stats.write_bytes += wanted && !error ? head->bytes : 0;
    pthread_mutex_unlock(&d->lock);
    return !error && !down;
}

/* ---- drop, forget ---------------------------------------------------------------------------- */

static void disk_drop(struct tier *t, const struct tier_place *place, struct tier_key key) {
    (void)place;
    struct tier_disk *d = disk_of(t);
    pthread_mutex_lock(&d->lock);
    struct index_entry *e = index_find(&d->index, key);
    if (e)
        disk_remove_entry(d, e);
    pthread_mutex_unlock(&d->lock);
}

static int order(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Removes entries of the context with one of n roots, which rise, or with any (n 0). Returns the
 * number of the newest segment that had one, or 0. */
static uint64_t forget_entries(struct tier_disk *d, uint32_t context, const uint32_t *roots,
                               uint32_t n) {
    uint64_t newest = 0;
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = d->index.n, walked = 1; i-- > 0; walked++) {
        struct index_entry *e = &d->index.entries[i];
        if (i < d->index.n && e->context == context &&
            (n == 0 || bsearch(&e->root, roots, n, sizeof *roots, order))) {
            const uint64_t number = d->segments[e->segment]->number;
            newest = number > newest ? number : newest;
            d->stats.dropped++;
            disk_remove_entry(d, e);
        }
        if (walked % DISK_WALK_ENTRIES == 0)
            disk_let_pass(d);
    }
    pthread_mutex_unlock(&d->lock);
    return newest;
}

/* Under the lock: the oldest segment up to a number; NULL: none that can be removed. */
static struct segment *oldest_up_to(struct tier_disk *d, uint64_t number) {
    struct segment *oldest = NULL;
    for (uint32_t i = 0; i < d->n_segments; i++) {
        struct segment *s = d->segments[i];
        if (s && s->number <= number && !s->stuck && (!oldest || s->number < oldest->number))
            oldest = s;
    }
    return oldest;
}

/* Nothing can be written: files go, so that a restart does not find what is forgotten; the older
 * ones as well, because what they lack may be said in these (DISK-4). */
static void forget_segments(struct tier_disk *d, uint64_t newest, int error) {
    struct segment *s;
    if (newest == 0)
        return;
    disk_tell(d, TROUBLE_WRITE, "cannot write to %s: %s; files with what is forgotten are removed",
              d->dir, write_trouble(error));
    if (d->current && d->current->number <= newest)
        disk_seal(d);
    do {
        pthread_mutex_lock(&d->lock);
        s = oldest_up_to(d, newest);
        pthread_mutex_unlock(&d->lock);
        if (s)
            (void)disk_remove_segment(d, s); /* or it is stuck from now on */
    } while (s);
}

static bool has_segments(struct tier_disk *d) {
    pthread_mutex_lock(&d->lock);
    const bool some = oldest_up_to(d, UINT64_MAX) != NULL;
    pthread_mutex_unlock(&d->lock);
    return some;
}

static bool has_stuck(struct tier_disk *d) {
    bool some = false;
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->n_segments; i++)
        some |= d->segments[i] && d->segments[i]->stuck;
    pthread_mutex_unlock(&d->lock);
    return some;
}

/* A record for each root, or one for all (n 0), on the disk. Under `writing`. */
static int write_forgets(struct tier_disk *d, struct tier_key context, const struct tier_key *roots,
                         uint32_t n) {
    int error = 0;
    for (uint32_t i = 0; i < max_u32(n, 1) && !error; i++) {
        struct record_head head = {
            .kind = RECORD_FORGET, .context = context, .written = disk_now()};
        if (n)
            head.root = roots[i];
        record_seal(&head, NULL);
        error = write_record(d, &head, NULL);
    }
    return error ? error : disk_sync(d);
}

static bool disk_forget(struct tier *t, struct tier_key context, const struct tier_key *roots,
                        uint32_t n, const atomic_bool *stop) {
    struct tier_disk *d = disk_of(t);
    uint32_t *set = mem_alloc(max_u32(n, 1) * sizeof *set);
    bool done = true;
    (void)stop; /* it depends on nobody */
    if (!set)
        return false;
    for (uint32_t i = 0; i < n; i++)
        set[i] = (uint32_t)roots[i].word[0];
    qsort(set, n, sizeof *set, order);
    pthread_mutex_lock(&d->writing); /* so that what is written before is before it in the file */
    if (has_segments(d)) {           /* else nothing is in the folder */
        const int error = write_forgets(d, context, roots, n);
        const uint64_t newest = forget_entries(d, (uint32_t)context.word[0], set, n);
        if (error)
            forget_segments(d, newest, error);
        done = !error || !has_stuck(d);
    }
    pthread_mutex_unlock(&d->writing);
    mem_free(set);
    return done;
}

/* ---- rest, stats, destroy -------------------------------------------------------------------- */

/* Syncs without the mutex `writing`: the next records need not wait for the disk. */
static int sync_current(struct tier_disk *d) {
    struct segment *s = NULL;
    pthread_mutex_lock(&d->writing);
    const double since = d->dirty_since;
    if (d->current && since != 0 && clock_seconds() - since >= d->sync_seconds) {
        s = d->current;
        disk_ref(d, s);
        d->dirty_since = 0; /* until the next record */
    }
    pthread_mutex_unlock(&d->writing);
    if (!s)
        return 0;
    const int error = d->files->sync(d->files, s->fd);
    if (error) {
        pthread_mutex_lock(&d->writing);
        d->dirty_since = since;
        pthread_mutex_unlock(&d->writing);
    }
    disk_unref(d, s);
    return error;
}

static void disk_rest(struct tier *t) {
    struct tier_disk *d = disk_of(t);
    const int error = sync_current(d);
    if (error)
        write_failed(d, error);
    pthread_mutex_lock(&d->lock);
    index_trim(&d->index);
    pthread_mutex_unlock(&d->lock);
}

static void disk_stats(struct tier *t, struct tier_stats *out) {
    struct tier_disk *d = disk_of(t);
    pthread_mutex_lock(&d->lock);
    *out = d->stats;
    out->records = d->index.n;
    out->bytes = 0;
    for (uint32_t i = 0; i < d->n_segments; i++)
        out->bytes += d->segments[i] ? d->segments[i]->bytes : 0;
    out->limit_bytes = d->limit_bytes;
    out->table_bytes += index_bytes(&d->index) + sizeof *d;
    pthread_mutex_unlock(&d->lock);
}

static void disk_destroy(struct tier *t) {
    struct tier_disk *d = disk_of(t);
    if (!d)
        return;
    pthread_mutex_lock(&d->writing);
    disk_seal(d);
    pthread_mutex_unlock(&d->writing);
    disk_free(d);
}

const struct tier_ops TIER_DISK_OPS = {
    .name = "disk",
    .instant = true,
    .find = disk_find,
    .read = disk_read,
    .write = disk_write,
    .drop = disk_drop,
    .forget = disk_forget,
    .rest = disk_rest,
    .stats = disk_stats,
    .destroy = disk_destroy,
};
