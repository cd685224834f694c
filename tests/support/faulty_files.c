/* SPDX-License-Identifier: Apache-2.0 */
#include "faulty_files.h"

#include <errno.h>
#include <string.h>
#include <time.h>

static struct faulty_files *of(const struct tier_files *f) {
    return (struct faulty_files *)(uintptr_t)f;
}

static int faulty_open(const struct tier_files *files, const char *path, int flags) {
    struct faulty_files *f = of(files);
    f->opens++;
    const int fd = f->open_error ? -f->open_error : TIER_REAL_FILES.open(files, path, flags);
    f->open_files += fd >= 0;
    return fd;
}

static void faulty_close(const struct tier_files *files, int fd) {
    of(files)->open_files--;
    TIER_REAL_FILES.close(files, fd);
}

/* The first `most` bytes of the parts. */
static int shorten(const struct iovec *parts, int n, uint64_t most, struct iovec *out) {
    int kept = 0;
    for (int i = 0; i < n && most > 0; i++) {
        out[kept] = parts[i];
        if (out[kept].iov_len > most)
            out[kept].iov_len = (size_t)most;
        most -= out[kept++].iov_len;
    }
    return kept;
}

static uint64_t sum_of(const struct iovec *parts, int n) {
    uint64_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += parts[i].iov_len;
    return bytes;
}

/* Whether this call is one of those that are still right. */
static bool is_sound(atomic_uint *left) {
    unsigned n = atomic_load(left);
    while (n > 0 && !atomic_compare_exchange_weak(left, &n, n - 1))
        ;
    return n > 0;
}

static void nap(double s) {
    const struct timespec wait = {(time_t)s, (long)(1e9 * (s - (double)(time_t)s))};
    nanosleep(&wait, NULL);
}

static void flip(struct faulty_files *f, const struct iovec *parts, int n, uint64_t bytes) {
    if (f->flip_bit == UINT64_MAX)
        return;
    if (f->flip_bit >= 8 * bytes) {
        f->flip_bit -= 8 * bytes;
        return;
    }
    uint64_t at = f->flip_bit / 8;
    for (int i = 0; i < n; at -= parts[i++].iov_len)
        if (at < parts[i].iov_len) {
            ((uint8_t *)parts[i].iov_base)[at] ^= (uint8_t)(1u << f->flip_bit % 8);
            break;
        }
    f->flip_bit = UINT64_MAX;
    f->faults++;
}

/* 0, or -errno; it may take a while. */
static int spoil_read(struct faulty_files *f) {
    if (is_sound(&f->sound_reads))
        return 0;
    f->faults += f->read_seconds > 0 || f->hang || f->read_error;
    if (f->read_seconds > 0)
        nap(f->read_seconds);
    while (f->hang)
        nap(0.0005);
    return -f->read_error;
}

static int64_t faulty_read(const struct tier_files *files, int fd, const struct iovec *parts, int n,
                           uint64_t at) {
    struct faulty_files *f = of(files);
    struct iovec some[8];
    f->reads++;
    const int error = spoil_read(f);
    if (error)
        return error;
    const int m = shorten(parts, n, f->short_reads ? f->short_reads : UINT64_MAX, some);
    const int64_t bytes = TIER_REAL_FILES.read(files, fd, some, m, at);
    if (bytes > 0)
        flip(f, some, m, (uint64_t)bytes);
    return bytes;
}

/* A write that fails, or that says it is done and is not; 0: neither. */
static int64_t spoil_write(struct faulty_files *f, int fd, const struct iovec *parts, int n,
                           uint64_t at) {
    struct iovec some[8];
    if (is_sound(&f->sound_writes))
        return 0;
    f->faults += f->write_error || f->lose_writes || f->tear_at != UINT64_MAX;
    if (f->write_error)
        return -f->write_error;
    if (f->lose_writes)
        return (int64_t)sum_of(parts, n);
    if (f->tear_at == UINT64_MAX)
        return 0;
    const int m = shorten(parts, n, f->tear_at, some);
    f->tear_at = UINT64_MAX;
    if (m > 0)
        (void)TIER_REAL_FILES.write(&f->base, fd, some, m, at);
    return (int64_t)sum_of(parts, n);
}

static int64_t faulty_write(const struct tier_files *files, int fd, const struct iovec *parts,
                            int n, uint64_t at) {
    struct faulty_files *f = of(files);
    struct iovec some[8];
    f->writes++;
    const int64_t spoilt = spoil_write(f, fd, parts, n, at);
    if (spoilt)
        return spoilt;
    f->faults += f->room < sum_of(parts, n);
    if (f->room == 0)
        return -ENOSPC;
    uint64_t most = f->short_reads ? f->short_reads : UINT64_MAX;
    most = most < f->room ? most : f->room;
    const int64_t bytes = TIER_REAL_FILES.write(files, fd, some, shorten(parts, n, most, some), at);
    if (bytes > 0 && f->room != UINT64_MAX)
        f->room -= (uint64_t)bytes;
    return bytes;
}

static int faulty_sync(const struct tier_files *files, int fd) {
    struct faulty_files *f = of(files);
    (void)fd; /* tests that end processes, not machines, need no disk */
    f->syncs++;
    return -f->sync_error;
}

static int faulty_truncate(const struct tier_files *files, int fd, uint64_t bytes) {
    struct faulty_files *f = of(files);
    return f->truncate_error ? -f->truncate_error : TIER_REAL_FILES.truncate(files, fd, bytes);
}

static int faulty_size(const struct tier_files *files, int fd, uint64_t *bytes) {
    struct faulty_files *f = of(files);
    return f->size_error ? -f->size_error : TIER_REAL_FILES.size(files, fd, bytes);
}

static int faulty_remove(const struct tier_files *files, const char *path) {
    struct faulty_files *f = of(files);
    f->removes++;
    if (f->remove_error)
        return -f->remove_error;
    return f->lose_removes ? 0 : TIER_REAL_FILES.remove(files, path);
}

static int faulty_check_owner(const struct tier_files *files, int fd) {
    const int error = of(files)->owner_error;
    return error ? -error : TIER_REAL_FILES.check_owner(files, fd);
}

static int faulty_make_folder(const struct tier_files *files, const char *path) {
    return TIER_REAL_FILES.make_folder(files, path);
}

static int faulty_list(const struct tier_files *files, const char *path, tier_name_fn *each,
                       void *user) {
    struct faulty_files *f = of(files);
    return f->list_error ? -f->list_error : TIER_REAL_FILES.list(files, path, each, user);
}

static int faulty_free_bytes(const struct tier_files *files, int fd, uint64_t *bytes) {
    struct faulty_files *f = of(files);
    if (f->free_bytes == UINT64_MAX)
        return TIER_REAL_FILES.free_bytes(files, fd, bytes);
    *bytes = f->free_bytes;
    return 0;
}

static int faulty_lock(const struct tier_files *files, int fd) {
    struct faulty_files *f = of(files);
    return f->lock_error ? -f->lock_error : TIER_REAL_FILES.lock(files, fd);
}

void faulty_files_init(struct faulty_files *f) {
    memset(f, 0, sizeof *f);
    f->base = (struct tier_files){
        .open = faulty_open,
        .close = faulty_close,
        .read = faulty_read,
        .write = faulty_write,
        .sync = faulty_sync,
        .truncate = faulty_truncate,
        .size = faulty_size,
        .check_owner = faulty_check_owner,
        .remove = faulty_remove,
        .make_folder = faulty_make_folder,
        .list = faulty_list,
        .free_bytes = faulty_free_bytes,
        .lock = faulty_lock,
    };
    f->room = f->free_bytes = f->tear_at = f->flip_bit = UINT64_MAX;
}
