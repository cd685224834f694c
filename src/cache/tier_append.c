/* SPDX-License-Identifier: Apache-2.0 */
/* tier_append.c: writes the current segment: begins it, appends records, seals it with a footer.
 * Under the mutex `writing` (tier_disk.h).
 *
 * A write that fails leaves the file as it was before: what was written of the record is cut off,
 * now or before the next record. Only then is the next one written. So at most the last record of a
 * file is torn, and only by a crash.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "cache/tier_disk.h"

int disk_begin_segment(struct tier_disk *d) {
    char path[DISK_PATH_BYTES];
    const uint64_t number = d->next_number;
    ASSERT(!d->current);
    if (number > SEGMENT_LAST)
        return -ENOSPC;
    disk_segment_path(d, number, path);
    const int fd = d->files->open(d->files, path, O_RDWR | O_CREAT | O_EXCL);
    if (fd == -EEXIST)
        d->next_number++; /* somebody's: it is left alone */
    if (fd < 0)
        return fd;
    int error = segment_write_head(d->files, fd, number, disk_now());
    if (!error)
        error = d->files->sync(d->files, d->dir_fd);
    struct segment *s = error ? NULL : disk_add_segment(d, number, BLOCK_BYTES, fd);
    if (!s) {
        d->files->close(d->files, fd);
        d->files->remove(d->files, path);
        return error ? error : -ENOMEM;
    }
    d->next_number++;
    d->current = s;
    d->end = BLOCK_BYTES;
    d->n_rows = 0;
    d->tail = d->footer = false;
    d->dirty_since = clock_seconds();
    return 0;
}

/* Cuts off what follows the last record. */
int disk_cut_tail(struct tier_disk *d) {
    const int error = d->files->truncate(d->files, d->current->fd, d->end);
    d->tail = error != 0;
    d->footer = false;
    return error;
}

static void set_bytes(struct tier_disk *d, struct segment *s, uint64_t bytes) {
    pthread_mutex_lock(&d->lock);
    s->bytes = bytes;
    d->stats.table_bytes = d->rows_cap * sizeof *d->rows;
    pthread_mutex_unlock(&d->lock);
}

int disk_append(struct tier_disk *d, const struct record_head *head, const void *payload,
                struct index_entry *e) {
    union {
        struct record_head head;
        uint8_t bytes[BLOCK_BYTES];
    } block = {.bytes = {0}};
    struct segment *s = d->current;
    ASSERT(s && d->end % BLOCK_BYTES == 0 && head->bytes % BLOCK_BYTES == 0);
    if (!ARRAY_GROW(d->rows, d->rows_cap, d->n_rows + 1))
        return -ENOMEM;
    if (d->tail || d->footer) {
        const int error = disk_cut_tail(d);
        if (error)
            return error;
    }
    block.head = *head;
    struct iovec parts[] = {{&block, sizeof block}, {(void *)(uintptr_t)payload, head->bytes}};
    const int error = segment_write_parts(d->files, s->fd, parts, 2, d->end);
    if (error) {
        (void)disk_cut_tail(d); /* if this fails, it is tried again before the next record */
        return error;
    }
    d->rows[d->n_rows++] = segment_row_of(head, d->end);
    e->segment = s->slot;
    e->block = (uint32_t)(d->end / BLOCK_BYTES);
    d->end += BLOCK_BYTES + head->bytes;
    set_bytes(d, s, d->end);
    if (d->dirty_since == 0)
        d->dirty_since = clock_seconds();
    return 0;
}

int disk_sync(struct tier_disk *d) {
    if (!d->current || d->dirty_since == 0)
        return 0;
    const int error = d->files->sync(d->files, d->current->fd);
    if (!error)
        d->dirty_since = 0;
    return error;
}

/* A file without a footer is only slower to open, so errors change nothing. */
void disk_seal(struct tier_disk *d) {
    struct segment *s = d->current;
    if (!s)
        return;
    if (!d->footer && (!d->tail || disk_cut_tail(d) == 0)) {
        const int error =
            segment_write_footer(d->files, s->fd, s->number, d->rows, d->n_rows, d->end);
        if (error)
            (void)disk_cut_tail(d);
        else
            set_bytes(d, s, d->end + segment_footer_bytes(d->n_rows));
        d->dirty_since = 1;
    }
    (void)disk_sync(d);
    d->current = NULL;
    d->dirty_since = 0;
    disk_unref(d, s);
}
