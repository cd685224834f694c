/* SPDX-License-Identifier: Apache-2.0 */
/* tier_files.c: the real file system for the disk tier (tier_files.h). It keeps nothing. */
#define _GNU_SOURCE /* preadv */
#include "cache/tier_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* What a call returned, or -errno. */
#define RESULT(call)                                                                               \
    ({                                                                                             \
        __typeof__(call) result_;                                                                  \
        do                                                                                         \
            result_ = (call);                                                                      \
        while (result_ < 0 && errno == EINTR);                                                     \
        result_ < 0 ? -errno : result_;                                                            \
    })

static void real_close(const struct tier_files *f, int fd) {
    (void)f;
    close(fd);
}

/* O_NONBLOCK: the open of a pipe in a file's place does not wait; it changes nothing for files. */
static int real_open(const struct tier_files *f, const char *path, int flags) {
    struct stat st;
    const int link = flags & O_DIRECTORY ? 0 : O_NOFOLLOW;
    const int fd = RESULT(open(path, flags | O_CLOEXEC | O_NONBLOCK | link, 0600));
    if (fd < 0)
        return fd;
    if (fstat(fd, &st) == 0 && (S_ISREG(st.st_mode) || (flags & O_DIRECTORY)))
        return fd;
    real_close(f, fd);
    return -EINVAL;
}

static int64_t real_read(const struct tier_files *f, int fd, const struct iovec *parts, int n,
                         uint64_t at) {
    (void)f;
    return RESULT(preadv(fd, parts, n, (off_t)at));
}

static int64_t real_write(const struct tier_files *f, int fd, const struct iovec *parts, int n,
                          uint64_t at) {
    (void)f;
    return RESULT(pwritev(fd, parts, n, (off_t)at));
}

static int real_sync(const struct tier_files *f, int fd) {
    (void)f;
    return RESULT(fdatasync(fd));
}

static int real_truncate(const struct tier_files *f, int fd, uint64_t bytes) {
    (void)f;
    return RESULT(ftruncate(fd, (off_t)bytes));
}

static int real_size(const struct tier_files *f, int fd, uint64_t *bytes) {
    struct stat st;
    (void)f;
    if (fstat(fd, &st) != 0)
        return -errno;
    *bytes = (uint64_t)st.st_size;
    return 0;
}

static int real_check_owner(const struct tier_files *f, int fd) {
    struct stat st;
    (void)f;
    if (fstat(fd, &st) != 0)
        return -errno;
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return -EPERM;
    return st.st_mode & (S_IWGRP | S_IWOTH) ? -EACCES : 0;
}

static int real_remove(const struct tier_files *f, const char *path) {
    (void)f;
    return RESULT(unlink(path));
}

static int real_make_folder(const struct tier_files *f, const char *path) {
    (void)f;
    return RESULT(mkdir(path, 0700));
}

static int real_list(const struct tier_files *f, const char *path, tier_name_fn *each, void *user) {
    (void)f;
    DIR *dir = opendir(path);
    if (!dir)
        return -errno;
    errno = 0;
    for (struct dirent *e; (e = readdir(dir)); errno = 0)
        each(user, e->d_name);
    const int error = errno;
    closedir(dir);
    return -error;
}

static int real_free_bytes(const struct tier_files *f, int fd, uint64_t *bytes) {
    struct statvfs st;
    (void)f;
    if (fstatvfs(fd, &st) != 0)
        return -errno;
    *bytes = (uint64_t)st.f_bavail * st.f_frsize;
    return 0;
}

static int real_lock(const struct tier_files *f, int fd) {
    (void)f;
    return RESULT(flock(fd, LOCK_EX | LOCK_NB));
}

const struct tier_files TIER_REAL_FILES = {
    .open = real_open,
    .close = real_close,
    .read = real_read,
    .write = real_write,
    .sync = real_sync,
    .truncate = real_truncate,
    .size = real_size,
    .check_owner = real_check_owner,
    .remove = real_remove,
    .make_folder = real_make_folder,
    .list = real_list,
    .free_bytes = real_free_bytes,
    .lock = real_lock,
};
