/* SPDX-License-Identifier: Apache-2.0 */
/* tier_space.c: keeps the disk tier within its limit and above the floor of free space. Under the
 * mutex `writing` (tier_disk.h).
 *
 * Space is freed by whole segments. Before a segment begins, its whole size and that of one more
 * are free; the oldest segments go until that is so. What was used since it was written, or since
 * it was carried last, is carried over into the new segment, the most used first, up to half of
 * what the new one has room for. So what is used stays, what is not goes after one round, and a
 * write never copies more than half of what it can write.
 *
 * A segment of which the index has nothing goes first: it is free space. But one that has a
 * RECORD_FORGET goes only as the oldest of all (DISK-4).
 *
 * If the file system has less than the floor, the oldest go without carrying anything.
 *
 * disk_compact copies whole segments. The one that it copies (`copied`) does not go meanwhile, and
 * no younger one in its place; if that leaves no room, the rest of its records are not copied.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cache/tier_disk.h"

/* ---- removing -------------------------------------------------------------------------------- */

/* Calls for every entry of a segment, under the lock; entries that are added meanwhile are not
 * seen. The callback may remove the entry. */
typedef void entry_fn(struct tier_disk *d, struct index_entry *e, void *user);
static void each_entry_of(struct tier_disk *d, uint32_t slot, entry_fn *fn, void *user) {
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = d->index.n, walked = 1; i-- > 0; walked++) {
        if (i < d->index.n && d->index.entries[i].segment == slot)
            fn(d, &d->index.entries[i], user);
        if (walked % DISK_WALK_ENTRIES == 0)
            disk_let_pass(d);
    }
    pthread_mutex_unlock(&d->lock);
}

static void remove_entry(struct tier_disk *d, struct index_entry *e, void *user) {
    (void)user;
    d->stats.dropped++;
    disk_remove_entry(d, e);
}

/* The segment leaves the table; its file was removed, or could not be. */
bool disk_remove_segment(struct tier_disk *d, struct segment *s) {
    char path[DISK_PATH_BYTES];
    ASSERT(s != d->current);
    each_entry_of(d, s->slot, remove_entry, NULL);
    disk_segment_path(d, s->number, path);
    const int error = d->files->remove(d->files, path);
    const bool removed = error == 0 || error == -ENOENT;
    if (removed)
        (void)d->files->sync(d->files, d->dir_fd); /* before any younger one goes */
    else
        disk_tell(d, TROUBLE_REMOVE, "cannot remove %s: %s", path, strerror(-error));
    disk_ref(d, s);
    pthread_mutex_lock(&d->lock);
    s->stuck = !removed;
    if (removed) {
        ASSERT(s->live == 0);
        d->segments[s->slot] = NULL;
        s->gone = true;
    }
    pthread_mutex_unlock(&d->lock);
    disk_unref(d, s);
    return removed;
}

/* The next to go; NULL: none. */
static struct segment *next_to_go(struct tier_disk *d) {
    struct segment *oldest = NULL, *empty = NULL, *stuck = NULL;
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->n_segments; i++) {
        struct segment *s = d->segments[i];
        if (!s || s == d->current)
            continue;
        if (s->stuck) {
            stuck = !stuck || s->number < stuck->number ? s : stuck;
            continue;
        }
        oldest = !oldest || s->number < oldest->number ? s : oldest;
        if (s->live == 0 && !s->forgets && s != d->copied)
            empty = s;
    }
    pthread_mutex_unlock(&d->lock);
    if (!empty && oldest == d->copied)
        return NULL;
    if (!empty && oldest && oldest->forgets && stuck && stuck->number < oldest->number)
        return NULL;
    return empty ? empty : oldest;
}

/* Bytes of all files but the current segment. */
static uint64_t bytes_of_others(struct tier_disk *d) {
    uint64_t bytes = DISK_LOCK_BYTES;
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->n_segments; i++)
        if (d->segments[i] && d->segments[i] != d->current)
            bytes += d->segments[i]->bytes;
    pthread_mutex_unlock(&d->lock);
    return bytes;
}

/* ---- carrying -------------------------------------------------------------------------------- */

/* Entries of a segment that are worth a copy. */
struct carry {
    struct index_entry *list; /* [n], copies */
    uint32_t n, cap;
    uint64_t now;
    uint16_t least; /* uses */
};

static void collect(struct tier_disk *d, struct index_entry *e, void *user) {
    struct carry *c = user;
    (void)d;
    if (c->n < c->cap && e->uses >= c->least && (e->expires == 0 || c->now < e->expires))
        c->list[c->n++] = *e;
}

/* The most used first, then in the file's order. */
static int by_uses(const void *x, const void *y) {
    const struct index_entry *a = x, *b = y;
    if (a->uses != b->uses)
        return a->uses < b->uses ? 1 : -1;
    return (a->block > b->block) - (a->block < b->block);
}

static uint64_t record_bytes(const struct index_entry *e) {
    return BLOCK_BYTES + (uint64_t)e->units * BLOCK_BYTES;
}

/* Copies one record to the current segment. Its entry follows if it is still the same. 0, or -errno
 * of the write; what cannot be read is left behind. */
static int carry_one(struct tier_disk *d, struct segment *from, const struct index_entry *old,
                     struct tier_read *r) {
    struct index_entry place = *old;
    r->key = old->key;
    r->bytes = (uint64_t)old->units * BLOCK_BYTES;
    disk_read_record(d, from, old, r, 0);
    const int error = r->result == TIER_OK ? disk_append(d, &r->head, r->payload, &place) : 0;
    if (error || r->result != TIER_OK)
        return error;
    pthread_mutex_lock(&d->lock);
    struct index_entry *e = index_find(&d->index, old->key);
    if (e && e->segment == from->slot) {
        e->uses /= 2;
        e->segment = place.segment;
        e->block = place.block;
        from->live--;
        d->current->live++;
    }
    pthread_mutex_unlock(&d->lock);
    return 0;
}

/* Copies what was used at least so often while there is room in the current segment, which becomes
 * less; room NULL: makes room for each, and leaves behind those for which there is none. 0, or
 * -errno of a write. */
static int carry(struct tier_disk *d, struct segment *s, uint16_t least_uses, uint64_t *room) {
    struct carry c = {.now = disk_now(), .least = least_uses};
    struct tier_read r = {.sum = XXH3_createState()};
    uint64_t largest = 0;
    ASSERT(s != d->current);
    pthread_mutex_lock(&d->lock);
    const uint32_t live = s->live;
    pthread_mutex_unlock(&d->lock);
    c.list = mem_calloc(max_u32(live, 1), sizeof *c.list);
    c.cap = c.list ? live : 0;
    each_entry_of(d, s->slot, collect, &c);
    for (uint32_t i = 0; i < c.n; i++)
        largest = max_size(largest, record_bytes(&c.list[i]));
    r.payload = mem_alloc(largest + 1);
    if (c.n > 0)
        qsort(c.list, c.n, sizeof *c.list, by_uses);
    disk_ref(d, s);
    int error = r.sum && r.payload && c.list ? 0 : -ENOMEM;
    for (uint32_t i = 0; !error && i < c.n; i++) {
        const uint64_t bytes = record_bytes(&c.list[i]);
        if (!room)
            error = disk_make_room(d, bytes);
        else if (bytes + sizeof(struct segment_row) <= *room)
            *room -= bytes + sizeof(struct segment_row);
        else
            continue;
        if (error == DISK_NO_ROOM || error == DISK_TOO_LARGE)
            error = 0;
        else if (!error)
            error = carry_one(d, s, &c.list[i], &r);
    }
    disk_unref(d, s);
    if (!error && c.n > 0)
        error = disk_sync(d); /* before the original goes */
    XXH3_freeState(r.sum);
    mem_free(r.payload);
    mem_free(c.list);
    return error;
}

/* ---- room ------------------------------------------------------------------------------------ */

/* DISK_NO_ROOM: the file system would have less than the floor. */
static int keep_floor(struct tier_disk *d, uint64_t bytes) {
    uint64_t free_bytes = 0, removed = 0;
    struct segment *s;
    const uint64_t need = d->floor_bytes + bytes;
    if (d->files->free_bytes(d->files, d->dir_fd, &free_bytes) != 0 || free_bytes >= need)
        return 0; /* a file system that does not say has room until a write fails */
    const uint64_t deficit = need - free_bytes;
    while (removed < deficit && (s = next_to_go(d))) {
        const uint64_t size = s->bytes;
        removed += disk_remove_segment(d, s) ? size : 0;
    }
    return d->files->free_bytes(d->files, d->dir_fd, &free_bytes) == 0 && free_bytes < need
               ? DISK_NO_ROOM
               : 0;
}

/* What a segment needs in which a record of so many bytes is the next one. */
static uint64_t segment_need(uint64_t end, size_t rows, uint64_t bytes) {
    return end + bytes + segment_footer_bytes(rows + 1);
}

static int next_segment(struct tier_disk *d, uint64_t bytes) {
    const uint64_t alone = segment_need(BLOCK_BYTES, 0, bytes);
    const uint64_t size = alone > d->segment_bytes ? alone : d->segment_bytes;
    struct segment *s;
    if (size + DISK_LOCK_BYTES > d->limit_bytes)
        return DISK_TOO_LARGE;
    disk_seal(d);
    while (bytes_of_others(d) + size > d->limit_bytes)
        if (!(s = next_to_go(d)))
            return DISK_NO_ROOM;
        else
            (void)disk_remove_segment(d, s);
    int error = keep_floor(d, BLOCK_BYTES + bytes);
    if (!error)
        error = disk_begin_segment(d);
    uint64_t room = (size - alone) / 2;
    const uint64_t ahead = d->copied ? 0 : d->segment_bytes;
    while (!error && bytes_of_others(d) + size + ahead > d->limit_bytes && (s = next_to_go(d))) {
        (void)carry(d, s, 1, &room); /* what cannot be copied goes, too: it is a cache */
        (void)disk_remove_segment(d, s);
    }
    return error;
}

int disk_make_room(struct tier_disk *d, uint64_t bytes) {
    if (d->current && segment_need(d->end, d->n_rows, bytes) <= d->segment_bytes)
        return keep_floor(d, bytes);
    return next_segment(d, bytes);
}

/* ---- compaction ------------------------------------------------------------------------------ */

struct bytes_of {
    uint64_t now, bytes;
};

static void add_bytes(struct tier_disk *d, struct index_entry *e, void *user) {
    struct bytes_of *b = user;
    (void)d;
    if (e->expires == 0 || b->now < e->expires)
        b->bytes += record_bytes(e);
}

/* The oldest segment after a number; *last_forget becomes the newest with a RECORD_FORGET. */
static struct segment *next_after(struct tier_disk *d, uint64_t number, uint64_t *last_forget) {
    struct segment *next = NULL;
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->n_segments; i++) {
        struct segment *s = d->segments[i];
        if (!s || s->stuck)
            continue;
        if (s->forgets && s->number > *last_forget)
            *last_forget = s->number;
        if (s->number > number && (!next || s->number < next->number))
            next = s;
    }
    pthread_mutex_unlock(&d->lock);
    return next;
}

/* Copies what counts out of every segment of which a tenth or more is of no use, and out of all up
 * to the newest RECORD_FORGET, which then says nothing any more (DISK-4). The room that is kept for
 * carrying is used, so an original goes after all of it was copied, and all files stay below the
 * limit (DISK-3). Only if files are larger than segments are now, or the file system has no room
 * above the floor, something is left behind, the oldest first. */
int disk_compact(struct tier_disk *d) {
    const uint64_t newest = d->next_number - 1;
    uint64_t number = 0, last_forget = 0;
    struct segment *s;
    int error = 0;
    disk_seal(d);
    while (!error && (s = next_after(d, number, &last_forget)) && s->number <= newest) {
        struct bytes_of live = {.now = disk_now()};
        number = s->number;
        each_entry_of(d, s->slot, add_bytes, &live);
        if (number > last_forget && live.bytes >= s->bytes / 10 * 9)
            continue;
        d->copied = s;
        error = carry(d, s, 0, NULL);
        d->copied = NULL;
        if (!error)
            (void)disk_remove_segment(d, s);
    }
    return error;
}
