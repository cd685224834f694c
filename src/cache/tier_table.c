/* SPDX-License-Identifier: Apache-2.0 */
/* tier_table.c: what the other files of the disk tier stand on: names, complaints, the table of
 * segments with their open files, and reading one record of a segment. tier_disk.h has the drawing
 * of the locks.
 *
 * A segment's file is opened when it is read, and closed when many others have been read since.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "cache/tier_disk.h"

enum { PIECE_BYTES = 1 << 20 /* read and summed at once: the sum finds it in a cache */ };

/* ---- names, time, complaints ----------------------------------------------------------------- */

void disk_path(const struct tier_disk *d, const char *name, char out[DISK_PATH_BYTES]) {
    const int n = snprintf(out, DISK_PATH_BYTES, "%s/%s", d->dir, name);
    ASSERT(n > 0 && n < DISK_PATH_BYTES);
}

void disk_segment_path(const struct tier_disk *d, uint64_t number, char out[DISK_PATH_BYTES]) {
    char name[SEGMENT_NAME_BYTES];
    segment_name(number, name);
    disk_path(d, name, out);
}

uint64_t disk_now(void) {
    return (uint64_t)time(NULL);
}

void disk_tell(struct tier_disk *d, enum disk_trouble what, const char *format, ...) {
    char text[1024], line[1200];
    va_list args;
    pthread_mutex_lock(&d->lock);
    const bool told = d->told[what];
    d->told[what] = true;
    pthread_mutex_unlock(&d->lock);
    if (told || !d->complain)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(line, sizeof line, "disk cache: %s", text);
    d->complain(d->user, line);
}

/* ---- segments -------------------------------------------------------------------------------- */

struct segment *disk_add_segment(struct tier_disk *d, uint64_t number, uint64_t bytes, int fd) {
    struct segment *s = mem_alloc(sizeof *s);
    uint32_t slot = 0;
    if (!s)
        return NULL;
    pthread_mutex_lock(&d->lock);
    while (slot < d->n_segments && d->segments[slot])
        slot++;
    if (slot < DISK_SEGMENTS) {
        *s = (struct segment){.number = number, .bytes = bytes, .fd = fd, .slot = slot, .refs = 1};
        d->segments[slot] = s;
        d->n_segments = max_u32(d->n_segments, slot + 1);
        d->n_open += fd >= 0;
    }
    pthread_mutex_unlock(&d->lock);
    if (slot == DISK_SEGMENTS) {
        mem_free(s);
        return NULL;
    }
    return s;
}

void disk_ref(struct tier_disk *d, struct segment *s) {
    pthread_mutex_lock(&d->lock);
    s->refs++;
    pthread_mutex_unlock(&d->lock);
}

/* Under the lock: takes the file of the segment that nobody has read for the longest time. -1: no
 * file has to be closed. */
static int take_idle_file(struct tier_disk *d) {
    struct segment *idle = NULL;
    if (d->n_open <= DISK_OPEN_FILES)
        return -1;
    for (uint32_t i = 0; i < d->n_segments; i++) {
        struct segment *s = d->segments[i];
        if (s && s->refs == 0 && s->fd >= 0 && (!idle || s->used < idle->used))
            idle = s;
    }
    const int fd = idle ? idle->fd : -1;
    if (idle) {
        idle->fd = -1;
        d->n_open--;
    }
    return fd;
}

void disk_unref(struct tier_disk *d, struct segment *s) {
    pthread_mutex_lock(&d->lock);
    ASSERT(s->refs > 0);
    const bool last = --s->refs == 0 && s->gone;
    d->n_open -= last && s->fd >= 0;
    const int fd = last ? s->fd : take_idle_file(d);
    pthread_mutex_unlock(&d->lock);
    if (fd >= 0)
        d->files->close(d->files, fd);
    if (last)
        mem_free(s);
}

int disk_open_segment(struct tier_disk *d, struct segment *s) {
    char path[DISK_PATH_BYTES];
    pthread_mutex_lock(&d->lock);
    int fd = s->fd;
    s->used = ++d->clock;
    pthread_mutex_unlock(&d->lock);
    if (fd >= 0)
        return fd;
    disk_segment_path(d, s->number, path);
    const int opened = d->files->open(d->files, path, O_RDONLY);
    if (opened < 0)
        return opened;
    pthread_mutex_lock(&d->lock);
    const bool first = s->fd < 0;
    if (first) {
        s->fd = opened;
        d->n_open++;
    }
    fd = s->fd;
    pthread_mutex_unlock(&d->lock);
    if (!first) /* another reader was sooner */
        d->files->close(d->files, opened);
    return fd;
}

void disk_let_pass(struct tier_disk *d) {
    enum { TRIES = 1000 };
    pthread_mutex_unlock(&d->lock);
    for (int i = 0; i < TRIES && atomic_load(&d->finding) > 0; i++)
        sched_yield();
    pthread_mutex_lock(&d->lock);
}

void disk_remove_entry(struct tier_disk *d, struct index_entry *e) {
    struct segment *s = d->segments[e->segment];
    ASSERT(s && s->live > 0);
    s->live--;
    index_remove(&d->index, e);
}

/* ---- one record ------------------------------------------------------------------------------ */

static enum tier_result result_of(int error) {
    return error == 0          ? TIER_OK
           : error == -ENODATA ? TIER_DAMAGED /* the file ends too soon */
           : error == -ENOENT  ? TIER_MISSING
                               : TIER_FAILED;
}

/* The payload from a byte on, piece by piece. */
static int read_pieces(struct tier_disk *d, int fd, struct tier_read *r, uint64_t done, uint64_t at,
                       double deadline) {
    for (; done < r->bytes; done += min_size(PIECE_BYTES, r->bytes - done)) {
        const size_t piece = min_size(PIECE_BYTES, r->bytes - done);
        if (deadline > 0 && clock_seconds() > deadline)
            return -ETIMEDOUT;
        const int error = segment_read_all(d->files, fd, r->payload + done, piece, at + done);
        if (error)
            return error;
        if (!r->unchecked)
            record_piece(r, r->payload + done, piece);
    }
    return 0;
}

void disk_read_record(struct tier_disk *d, struct segment *s, const struct index_entry *e,
                      struct tier_read *r, double deadline) {
    union {
        struct record_head head;
        uint8_t bytes[BLOCK_BYTES];
    } block;
    const uint64_t at = (uint64_t)e->block * BLOCK_BYTES;
    const size_t first = min_size(PIECE_BYTES - BLOCK_BYTES, r->bytes);
    const int fd = disk_open_segment(d, s);
    ASSERT(r->sum || r->unchecked);
    struct iovec parts[] = {{&block, sizeof block}, {r->payload, first}};
    int error = fd < 0 ? fd : segment_read_parts(d->files, fd, parts, 2, at);
    r->result = result_of(error);
    if (error || !record_begin(r, &block.head))
        return;
    if (!r->unchecked)
        record_piece(r, r->payload, first);
    error = read_pieces(d, fd, r, first, at + BLOCK_BYTES, deadline);
    r->result = result_of(error);
    if (!error)
        record_end(r);
}

/* ---- the end --------------------------------------------------------------------------------- */

void disk_free(struct tier_disk *d) {
    ASSERT(!d->current || d->current->refs == 1);
    for (uint32_t i = 0; i < d->n_segments; i++) {
        struct segment *s = d->segments[i];
        if (s && s->fd >= 0)
            d->files->close(d->files, s->fd);
        mem_free(s);
    }
    if (d->dir_fd >= 0)
        d->files->close(d->files, d->dir_fd);
    if (d->lock_fd >= 0)
        d->files->close(d->files, d->lock_fd);
    mem_free(d->rows);
    index_deinit(&d->index);
    pthread_mutex_destroy(&d->writing);
    pthread_mutex_destroy(&d->lock);
    mem_free(d);
}
