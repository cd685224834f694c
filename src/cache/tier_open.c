/* SPDX-License-Identifier: Apache-2.0 */
/* tier_open.c: starts and ends the disk tier: takes the folder, reads what is in it.
 *
 * Segments are read from the newest to the oldest, and their rows from the last to the first: then
 * the first row of a key is the one that counts, and a RECORD_FORGET is known before what it makes
 * forgotten. Most of them have a footer, so this is two reads a file.
 *
 * Whatever is in the folder, the start succeeds: what is damaged is skipped and counted. Only a
 * folder that cannot be made, opened or locked is an error, and one that others can write to or a
 * file of it: sums are no proof against malice. Other files are left alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache/tier_disk.h"
#include "util/bytes.h"

#define SEGMENT_BYTES ((uint64_t)256 << 20)
enum {
    LEAST_SEGMENTS = 8,   /* within the limit */
    MOST_SEGMENTS = 4096, /* likewise; files may be half full */
    LEAST_GIVEN = 4,      /* with a size that is given */
    NAME_ROOM = 64,       /* of a path, for names in the folder */
    AHEAD = 16            /* rows, whose buckets are fetched from memory meanwhile */
};

/* ---- who can write --------------------------------------------------------------------------- */

/* Nobody but this process's user and root can write to it. */
static kvasir_status check_owner(struct tier_disk *d, int fd, const char *path, kvasir_error *err) {
    const int error = d->files->check_owner(d->files, fd);
    if (error == -EPERM)
        return fail(err, KVASIR_ERR_IO,
                    "%s belongs to another user, who can put wrong pages there: remove it, or "
                    "choose another folder",
                    path);
    if (error == -EACCES)
        return fail(err, KVASIR_ERR_IO,
                    "%s can be written to by other users, who can put wrong pages there: empty the "
                    "folder unless you trust them, and chmod go-w it",
                    path);
    return error ? fail(err, KVASIR_ERR_IO, "%s: cannot see its owner: %s", path, strerror(-error))
                 : KVASIR_OK;
}

/* ---- reading what is there ------------------------------------------------------------------- */

struct found_file {
    uint64_t number, bytes, rows;
};

struct loading {
    struct tier_disk *d;
    struct found_file *files; /* [n], the oldest first */
    size_t n, cap;
    struct forgets forgets;
    uint64_t now;
    bool no_memory;
};

static void add_file(void *user, const char *name) {
    struct loading *l = user;
    const uint64_t number = segment_number(name);
    if (number == 0)
        return;
    l->no_memory |= !ARRAY_GROW(l->files, l->cap, l->n + 1);
    if (!l->no_memory)
        l->files[l->n++] = (struct found_file){.number = number};
    if (number >= l->d->next_number)
        l->d->next_number = number + 1;
}

static int by_number(const void *x, const void *y) {
    const struct found_file *a = x, *b = y;
    return (a->number > b->number) - (a->number < b->number);
}

static int open_file(struct tier_disk *d, uint64_t number, int flags) {
    char path[DISK_PATH_BYTES];
    disk_segment_path(d, number, path);
    return d->files->open(d->files, path, flags);
}

/* Sizes and counts of rows; what is no file that can be opened leaves the list. */
static kvasir_status measure_files(struct loading *l, kvasir_error *err) {
    struct tier_disk *d = l->d;
    kvasir_status status = KVASIR_OK;
    size_t kept = 0;
    for (size_t i = 0; status == KVASIR_OK && i < l->n; i++) {
        struct found_file *file = &l->files[i];
        char path[DISK_PATH_BYTES];
        const int fd = open_file(d, file->number, O_RDONLY);
        disk_segment_path(d, file->number, path);
        if (fd >= 0)
            status = check_owner(d, fd, path, err);
        if (fd >= 0 && d->files->size(d->files, fd, &file->bytes) == 0) {
            file->rows = segment_count_rows(d->files, fd, file->number, file->bytes);
            l->files[kept++] = *file;
        } else {
            d->stats.damaged++;
        }
        if (fd >= 0)
            d->files->close(d->files, fd);
    }
    l->n = kept;
    return status;
}

/* The limit may be smaller than last time, and the newest file is going to grow. If one cannot be
 * removed, none that is newer is (DISK-4). */
static void remove_excess(struct loading *l) {
    struct tier_disk *d = l->d;
    uint64_t bytes = DISK_LOCK_BYTES + d->segment_bytes;
    size_t first = l->n, removed = 0;
    while (first > 0 && l->n - first < 2 * MOST_SEGMENTS &&
           bytes + l->files[first - 1].bytes <= d->limit_bytes)
        bytes += l->files[--first].bytes;
    for (int error = 0; removed < first && !error; removed += !error) {
        char path[DISK_PATH_BYTES];
        disk_segment_path(d, l->files[removed].number, path);
        error = d->files->remove(d->files, path);
        d->stats.dropped += !error;
        if (error)
            disk_tell(d, TROUBLE_REMOVE, "cannot remove %s: %s", path, strerror(-error));
    }
    l->n -= removed;
    if (removed > 0)
        memmove(l->files, l->files + removed, l->n * sizeof *l->files);
}

/* An entry for a row, unless it was forgotten, has expired or was written again later. */
static void add_row(struct loading *l, struct segment *s, const struct segment_row *row) {
    struct tier_disk *d = l->d;
    if (row->kind == RECORD_FORGET) {
        s->forgets = true;
        l->no_memory |= !forgets_add(&l->forgets, row->context, row->root);
        return;
    }
    if ((row->expires != 0 && l->now >= row->expires) ||
        forgets_have(&l->forgets, row->context, 0) ||
        forgets_have(&l->forgets, row->context, row->root) || index_find(&d->index, row->key))
        return;
    const struct index_entry e = {
        .key = row->key,
        .segment = s->slot,
        .block = row->block,
        .units = row->units,
        .context = (uint32_t)row->context,
        .root = (uint32_t)row->root,
        .expires = (uint32_t)(row->expires < UINT32_MAX ? row->expires : UINT32_MAX),
        .kind = (uint8_t)row->kind,
    };
    s->live += index_add(&d->index, &e);
}

/* The newest file goes on being written if it has room and can be. */
static void continue_segment(struct tier_disk *d, struct segment *s, struct segment_content *c) {
    if (!c->head || c->end + segment_footer_bytes(c->n) >= d->segment_bytes)
        return;
    const int fd = open_file(d, s->number, O_RDWR);
    if (fd < 0)
        return;
    s->fd = fd;
    d->n_open++;
    s->refs++;
    d->current = s;
    d->end = c->end;
    d->footer = c->footer;
    d->tail = !c->footer && c->size > c->end;
    d->rows = c->rows;
    d->n_rows = c->n;
    d->rows_cap = c->cap;
    *c = (struct segment_content){0};
    if (d->tail && disk_cut_tail(d) == 0)
        s->bytes = d->end;
}

static void load_file(struct loading *l, size_t i) {
    struct tier_disk *d = l->d;
    const uint64_t number = l->files[i].number;
    struct segment_content c = {0};
    struct segment *s = disk_add_segment(d, number, l->files[i].bytes, -1);
    const int fd = open_file(d, number, O_RDONLY);
    const int error = fd < 0 ? fd : segment_load(d->files, fd, number, &c);
    l->no_memory |= !s || error == -ENOMEM;
    /* a file shorter than its head was just begun when its process was killed */
    d->stats.damaged += error || (!c.head && c.size >= BLOCK_BYTES) ? 1 : c.damaged;
    for (size_t row = c.n; s && row-- > 0;) {
        if (row >= AHEAD)
            index_prefetch(&d->index, c.rows[row - AHEAD].key);
        add_row(l, s, &c.rows[row]);
    }
    if (s && i == l->n - 1 && !error)
        continue_segment(d, s, &c);
    segment_content_free(&c);
    if (fd >= 0)
        d->files->close(d->files, fd);
    if (s)
        disk_unref(d, s);
}

static void load_files(struct loading *l) {
    uint64_t rows = 0;
    remove_excess(l);
    for (size_t i = 0; i < l->n; i++)
        rows += l->files[i].rows;
    index_expect(&l->d->index, rows);
    for (size_t i = l->n; !l->no_memory && i-- > 0;)
        load_file(l, i);
}

static kvasir_status load(struct tier_disk *d, kvasir_error *err) {
    struct loading l = {.d = d, .now = disk_now()};
    d->next_number = 1;
    const int error = d->files->list(d->files, d->dir, add_file, &l);
    if (!l.no_memory && l.n > 0)
        qsort(l.files, l.n, sizeof *l.files, by_number);
    kvasir_status status = measure_files(&l, err);
    if (status == KVASIR_OK)
        load_files(&l);
    mem_free(l.files);
    mem_free(l.forgets.slots);
    if (error)
        return fail(err, KVASIR_ERR_IO, "%s: cannot list the folder: %s", d->dir, strerror(-error));
    return l.no_memory ? fail(err, KVASIR_ERR_MEMORY, "out of memory for %s", d->dir) : status;
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* The caller's file of identities: wrong ones would give pages of one model to another. */
static kvasir_status check_identities(struct tier_disk *d, kvasir_error *err) {
    char path[DISK_PATH_BYTES];
    disk_path(d, TIER_DISK_IDENTITIES, path);
    const int fd = d->files->open(d->files, path, O_RDONLY);
    if (fd == -ENOENT || fd == -EACCES)
        return KVASIR_OK; /* nobody will read it */
    if (fd < 0)
        return fail(err, KVASIR_ERR_IO, "%s: cannot open: %s; remove it", path, strerror(-fd));
    const kvasir_status status = check_owner(d, fd, path, err);
    d->files->close(d->files, fd);
    return status;
}

static kvasir_status open_folder(struct tier_disk *d, kvasir_error *err) {
    int error = d->files->make_folder(d->files, d->dir);
    if (error && error != -EEXIST)
        return fail(err, KVASIR_ERR_IO, "%s: cannot make the folder: %s", d->dir, strerror(-error));
    d->dir_fd = d->files->open(d->files, d->dir, O_RDONLY | O_DIRECTORY);
    if (d->dir_fd < 0)
        return fail(err, KVASIR_ERR_IO, "%s: cannot open the folder: %s", d->dir,
                    strerror(-d->dir_fd));
    return check_owner(d, d->dir_fd, d->dir, err);
}

/* Who holds the folder, as far as the file says. */
static kvasir_status fail_busy(struct tier_disk *d, kvasir_error *err) {
    char pid[24] = "";
    struct iovec part = {pid, sizeof pid - 1};
    if (d->files->read(d->files, d->lock_fd, &part, 1, 0) <= 0 || pid[0] < '1' || pid[0] > '9')
        return fail(err, KVASIR_ERR_BUSY,
                    "%s is in use by another process: stop it, or choose another folder", d->dir);
    pid[strspn(pid, "0123456789")] = 0;
    return fail(err, KVASIR_ERR_BUSY,
                "%s is in use by process %s: stop it, or choose another "
                "folder",
                d->dir, pid);
}

/* The lock is the open file's, so it ends with the process however that ends. The file stays: a
 * process that removed it could remove the lock of another. */
static kvasir_status take_lock(struct tier_disk *d, kvasir_error *err) {
    char path[DISK_PATH_BYTES], pid[24];
    disk_path(d, "lock", path);
    d->lock_fd = d->files->open(d->files, path, O_RDWR | O_CREAT);
    if (d->lock_fd < 0)
        return fail(err, KVASIR_ERR_IO, "%s: cannot open: %s", path, strerror(-d->lock_fd));
    int error = d->files->lock(d->files, d->lock_fd);
    if (error == -EWOULDBLOCK)
        return fail_busy(d, err);
    if (error)
        return fail(err, KVASIR_ERR_IO, "%s: cannot lock: %s", path, strerror(-error));
    struct iovec part = {pid, (size_t)snprintf(pid, sizeof pid, "%ld\n", (long)getpid())};
    error = d->files->truncate(d->files, d->lock_fd, 0);
    if (!error)
        error = segment_write_parts(d->files, d->lock_fd, &part, 1, 0);
    if (error) /* a full disk: then others do not learn who it is */
        disk_tell(d, TROUBLE_WRITE, "cannot write to %s: %s", path, strerror(-error));
    return KVASIR_OK;
}

/* ---- create, free ---------------------------------------------------------------------------- */

static uint64_t choose_segment_bytes(const struct tier_disk_options *o) {
    uint64_t bytes = o->segment_bytes ? o->segment_bytes : SEGMENT_BYTES;
    const uint64_t most = o->limit_bytes / (o->segment_bytes ? LEAST_GIVEN : LEAST_SEGMENTS);
    const uint64_t least = o->limit_bytes / MOST_SEGMENTS;
    bytes = bytes > most ? most : bytes;
    bytes = bytes < least ? least : bytes;
    return bytes / BLOCK_BYTES * BLOCK_BYTES;
}

kvasir_status disk_take_folder(const struct tier_disk_options *o, struct tier_disk **out,
                               kvasir_error *err) {
    const size_t len = strlen(o->dir);
    if (len == 0 || len + NAME_ROOM > DISK_PATH_BYTES)
        return fail(err, KVASIR_ERR_ARGUMENT, "\"%.100s\" is no name of a folder", o->dir);
    struct tier_disk *d = mem_calloc(1, sizeof *d);
    if (!d)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for %s", o->dir);
    d->base.ops = &TIER_DISK_OPS;
    d->files = o->files ? o->files : &TIER_REAL_FILES;
    memcpy(d->dir, o->dir, len + 1);
    d->limit_bytes = o->limit_bytes;
    d->floor_bytes = o->floor_bytes;
    d->complain = o->complain;
    d->user = o->user;
    d->lock_fd = d->dir_fd = -1;
    d->sync_seconds = DISK_SYNC_SECONDS;
    pthread_mutex_init(&d->writing, NULL);
    pthread_mutex_init(&d->lock, NULL);
    kvasir_status status = open_folder(d, err);
    if (status == KVASIR_OK)
        status = take_lock(d, err);
    if (status != KVASIR_OK)
        disk_free(d);
    else
        *out = d;
    return status;
}

kvasir_status tier_disk_create(const struct tier_disk_options *o, struct tier **out,
                               kvasir_error *err) {
    struct tier_disk *d;
    char limit[HUMAN_BYTES], least[HUMAN_BYTES];
    if (o->limit_bytes < TIER_DISK_LEAST)
        return fail(err, KVASIR_ERR_ARGUMENT, "the limit of %s is %s; at least %s are needed",
                    o->dir, human_bytes((double)o->limit_bytes, limit),
                    human_bytes((double)TIER_DISK_LEAST, least));
    TRY(disk_take_folder(o, &d, err));
    d->segment_bytes = choose_segment_bytes(o);
    kvasir_status status =
        index_init(&d->index, o->limit_bytes / (2 * BLOCK_BYTES))
            ? check_identities(d, err)
            : fail(err, KVASIR_ERR_MEMORY, "out of address space for %s", o->dir);
    if (status == KVASIR_OK)
        status = load(d, err);
    if (status != KVASIR_OK)
        disk_free(d);
    else
        *out = &d->base;
    return status;
}
