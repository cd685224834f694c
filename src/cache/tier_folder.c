/* SPDX-License-Identifier: Apache-2.0 */
/* tier_folder.c: a disk tier's folder from outside (tier.h): lists and verifies what is in it,
 * compacts and empties it. For commands; one thread.
 *
 * The walk reads every head instead of believing footers, so what is damaged is seen wherever it
 * is. It goes from the newest record to the oldest, as the start does, to know what counts. It
 * takes no lock: a file that a server removes meanwhile is passed over.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/tier_disk.h"

enum { PIECE_BYTES = 256 << 10 };

/* ---- names ----------------------------------------------------------------------------------- */

struct numbers {
    uint64_t *list; /* [n] */
    size_t n, cap;
    bool no_memory;
};

static void add_number(void *user, const char *name) {
    struct numbers *numbers = user;
    const uint64_t number = segment_number(name);
    if (number == 0)
        return;
    if (ARRAY_GROW(numbers->list, numbers->cap, numbers->n + 1))
        numbers->list[numbers->n++] = number;
    else
        numbers->no_memory = true;
}

static int newest_first(const void *x, const void *y) {
    const uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;
    return (a < b) - (a > b);
}

static kvasir_status list_numbers(const struct tier_files *f, const char *dir, struct numbers *out,
                                  kvasir_error *err) {
    *out = (struct numbers){0};
    const int error = f->list(f, dir, add_number, out);
    if (error || out->no_memory) {
        mem_free(out->list);
        return error ? fail(err, KVASIR_ERR_IO, "%s: %s", dir, strerror(-error))
                     : fail(err, KVASIR_ERR_MEMORY, "out of memory for %s", dir);
    }
    if (out->n > 0)
        qsort(out->list, out->n, sizeof *out->list, newest_first);
    return KVASIR_OK;
}

/* ---- the walk -------------------------------------------------------------------------------- */

struct walk {
    struct tier_folder_walk *w;
    const struct tier_files *files;
    struct tier_index seen; /* keys that are in newer places */
    struct forgets *forgets;
    uint64_t now, done;
    uint8_t *piece;
    XXH3_state_t *sum;
    /* the file */
    char name[SEGMENT_NAME_BYTES];
    int fd;
    bool stopped;
};

static void report(struct walk *k, enum tier_folder_state state, uint64_t at, uint64_t bytes,
                   const struct record_head *head) {
    const struct tier_folder_item item = {state, k->name, at, bytes, head};
    k->w->item(k->w->user, &item);
    if (k->w->progress && !k->w->progress(k->w->user, k->done, k->w->bytes))
        k->stopped = true;
}

/* Whether the payload is what its head says. */
static bool payload_is_good(struct walk *k, const struct record_head *head, uint64_t at) {
    struct tier_read r = {.key = head->key, .bytes = head->bytes, .sum = k->sum};
    if (!record_begin(&r, head))
        return false;
    for (uint64_t done = 0; done < head->bytes && !k->stopped;) {
        const size_t piece = min_size(PIECE_BYTES, head->bytes - done);
        if (segment_read_all(k->files, k->fd, k->piece, piece, at + BLOCK_BYTES + done) != 0)
            return false;
        record_piece(&r, k->piece, piece);
        done += piece;
        if (k->w->progress && !k->w->progress(k->w->user, k->done + done, k->w->bytes))
            k->stopped = true;
    }
    return k->stopped || record_end(&r);
}

/* What a record is for a reader; records its key. */
static enum tier_folder_state state_of(struct walk *k, const struct segment_row *row,
                                       const struct record_head *head, uint64_t at) {
    const struct index_entry entry = {.key = row->key};
    if (row->kind == RECORD_FORGET)
        return FOLDER_FORGET;
    if (k->w->payloads && head->bytes > 0 && !payload_is_good(k, head, at))
        return FOLDER_DAMAGED;
    if (forgets_have(k->forgets, row->context, 0) ||
        forgets_have(k->forgets, row->context, row->root))
        return FOLDER_FORGOTTEN;
    if (row->expires != 0 && k->now >= row->expires)
        return FOLDER_EXPIRED;
    if (index_find(&k->seen, row->key) || !index_add(&k->seen, &entry))
        return FOLDER_OLDER;
    return FOLDER_RECORD;
}

static bool walk_row(struct walk *k, const struct segment_row *row) {
    const uint64_t at = (uint64_t)row->block * BLOCK_BYTES;
    const uint64_t bytes = BLOCK_BYTES + (uint64_t)row->units * BLOCK_BYTES;
    struct record_head head;
    if (segment_read_all(k->files, k->fd, &head, sizeof head, at) != 0 ||
        !record_head_is_valid(&head, bytes) || head.bytes + BLOCK_BYTES != bytes) {
        report(k, FOLDER_DAMAGED, at, bytes, NULL); /* it was good a moment ago */
        return true;
    }
    if (row->kind == RECORD_FORGET && !forgets_add(k->forgets, row->context, row->root))
        return false;
    const enum tier_folder_state state = state_of(k, row, &head, at);
    k->done += bytes;
    report(k, state, at, bytes, &head);
    return true;
}

/* What follows the last record of a file without a footer: the end of a write, or a footer that is
 * damaged. */
static void walk_end(struct walk *k, const struct segment_content *c, uint64_t end) {
    char magic[8];
    if (c->footer) {
        if (end < c->end)
            report(k, FOLDER_DAMAGED, end, c->end - end, NULL);
    } else if (c->size > end) {
        const bool footer = c->size >= sizeof(struct segment_end) &&
                            segment_read_all(k->files, k->fd, magic, sizeof magic,
                                             c->size - sizeof(struct segment_end)) == 0 &&
                            memcmp(magic, SEGMENT_END_MAGIC, sizeof magic) == 0;
        report(k, footer ? FOLDER_DAMAGED : FOLDER_TORN, end, c->size - end, NULL);
    }
}

/* All of a file, from its end to its beginning. */
static int walk_file(struct walk *k, uint64_t number) {
    struct segment_content c;
    int error = segment_scan(k->files, k->fd, number, &c);
    if (error)
        return error;
    uint64_t end = BLOCK_BYTES;
    if (c.n > 0)
        end = ((uint64_t)c.rows[c.n - 1].block + 1 + c.rows[c.n - 1].units) * BLOCK_BYTES;
    if (c.size < BLOCK_BYTES)
        end = c.size;
    walk_end(k, &c, end);
    for (size_t i = c.n; !error && i-- > 0 && !k->stopped;) {
        const struct segment_row *row = &c.rows[i];
        const uint64_t at = (uint64_t)row->block * BLOCK_BYTES;
        uint64_t before = BLOCK_BYTES;
        if (i > 0)
            before = ((uint64_t)row[-1].block + 1 + row[-1].units) * BLOCK_BYTES;
        if (!walk_row(k, row))
            error = -ENOMEM;
        if (before < at)
            report(k, FOLDER_DAMAGED, before, at - before, NULL);
    }
    if (!c.head)
        report(k, c.size < BLOCK_BYTES ? FOLDER_TORN : FOLDER_DAMAGED, 0,
               min_size(c.size, BLOCK_BYTES), NULL);
    segment_content_free(&c);
    return error;
}

static int open_number(struct walk *k, uint64_t number) {
    char path[DISK_PATH_BYTES];
    segment_name(number, k->name);
    if ((size_t)snprintf(path, sizeof path, "%s/%s", k->w->dir, k->name) >= sizeof path)
        return -ENAMETOOLONG;
    return k->files->open(k->files, path, O_RDONLY);
}

static void measure(struct walk *k, const struct numbers *numbers) {
    for (size_t i = 0; i < numbers->n; i++) {
        uint64_t bytes = 0;
        const int fd = open_number(k, numbers->list[i]);
        if (fd < 0)
            continue;
        if (k->files->size(k->files, fd, &bytes) == 0) {
            k->w->segments++;
            k->w->bytes += bytes;
        }
        k->files->close(k->files, fd);
    }
}

static kvasir_status walk_files(struct walk *k, const struct numbers *numbers, kvasir_error *err) {
    for (size_t i = 0; i < numbers->n && !k->stopped; i++) {
        k->fd = open_number(k, numbers->list[i]);
        int error = k->fd < 0 ? k->fd : walk_file(k, numbers->list[i]);
        if (k->fd >= 0)
            k->files->close(k->files, k->fd);
        if (error == -ENOMEM)
            return fail(err, KVASIR_ERR_MEMORY, "out of memory for %s", k->w->dir);
        if (error && error != -ENOENT)
            report(k, FOLDER_DAMAGED, 0, 0, NULL);
    }
    return k->stopped ? fail(err, KVASIR_ERR_CANCELLED, "stopped") : KVASIR_OK;
}

kvasir_status tier_folder_walk(struct tier_folder_walk *w, kvasir_error *err) {
    struct forgets forgets = {0};
    struct walk k = {.w = w,
                     .files = w->files ? w->files : &TIER_REAL_FILES,
                     .forgets = &forgets,
                     .now = disk_now()};
    struct numbers numbers;
    w->segments = w->bytes = 0;
    TRY(list_numbers(k.files, w->dir, &numbers, err));
    measure(&k, &numbers);
    k.piece = mem_alloc(PIECE_BYTES);
    k.sum = XXH3_createState();
    kvasir_status status = KVASIR_OK;
    /* a server may add to it meanwhile: twice as many as there is room for now */
    if (!k.piece || !k.sum || !index_init(&k.seen, w->bytes / BLOCK_BYTES + 1024))
        status = fail(err, KVASIR_ERR_MEMORY, "out of memory for %s", w->dir);
    else
        status = walk_files(&k, &numbers, err);
    index_deinit(&k.seen);
    XXH3_freeState(k.sum);
    mem_free(k.piece);
    mem_free(forgets.slots);
    mem_free(numbers.list);
    return status;
}

/* ---- compact, clear -------------------------------------------------------------------------- */

/* Unlike a server, a command does not make a folder. */
static kvasir_status check_folder(const char *dir, const struct tier_files *f, kvasir_error *err) {
    const int fd = f->open(f, dir, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return fail(err, KVASIR_ERR_IO, "%s: %s", dir, strerror(-fd));
    f->close(f, fd);
    return KVASIR_OK;
}

static uint64_t bytes_of(struct tier *t) {
    struct tier_stats stats;
    t->ops->stats(t, &stats);
    return stats.bytes;
}

static kvasir_status folder_bytes(const char *dir, const struct tier_files *f, uint64_t *bytes,
                                  kvasir_error *err) {
    struct tier_folder_walk w = {.dir = dir};
    struct walk k = {.w = &w, .files = f};
    struct numbers numbers;
    TRY(list_numbers(f, dir, &numbers, err));
    measure(&k, &numbers);
    mem_free(numbers.list);
    *bytes = w.bytes;
    return KVASIR_OK;
}

kvasir_status tier_folder_compact(const char *dir, uint64_t limit_bytes,
                                  const struct tier_files *files, uint64_t *before, uint64_t *after,
                                  kvasir_error *err) {
    const struct tier_files *f = files ? files : &TIER_REAL_FILES;
    const uint64_t least = (uint64_t)2 << 30; /* so that files are as large as a server's */
    struct tier *t;
    TRY(check_folder(dir, f, err));
    TRY(folder_bytes(dir, f, before, err));
    if (limit_bytes == 0)
        limit_bytes = 2 * *before > least ? 2 * *before : least;
    const struct tier_disk_options o = {
        .dir = dir, .limit_bytes = limit_bytes, .floor_bytes = TIER_DISK_FLOOR, .files = files};
    TRY(tier_disk_create(&o, &t, err));
    const int error = disk_compact((struct tier_disk *)(void *)t);
    disk_seal((struct tier_disk *)(void *)t);
    *after = bytes_of(t);
    t->ops->destroy(t);
    return error ? fail(err, KVASIR_ERR_IO, "%s: cannot write: %s", dir, strerror(-error))
                 : KVASIR_OK;
}

kvasir_status tier_folder_clear(const char *dir, const struct tier_files *files, uint64_t *removed,
                                kvasir_error *err) {
    const struct tier_disk_options o = {.dir = dir, .files = files};
    const struct tier_files *f = files ? files : &TIER_REAL_FILES;
    struct numbers numbers = {0};
    struct tier_disk *d;
    int error = 0;
    TRY(check_folder(dir, f, err));
    TRY(disk_take_folder(&o, &d, err));
    kvasir_status status = folder_bytes(dir, f, removed, err);
    if (status == KVASIR_OK)
        status = list_numbers(f, dir, &numbers, err);
    for (size_t i = numbers.n; status == KVASIR_OK && i-- > 0;) { /* the oldest first: DISK-4 */
        char path[DISK_PATH_BYTES];
        disk_segment_path(d, numbers.list[i], path);
        error = f->remove(f, path);
        if (error == -EISDIR || error == -ENOENT)
            continue; /* not ours */
        if (!error)
            error = f->sync(f, d->dir_fd);
        if (error)
            status = fail(err, KVASIR_ERR_IO, "%s: cannot remove: %s", path, strerror(-error));
    }
    mem_free(numbers.list);
    disk_free(d);
    return status;
}
