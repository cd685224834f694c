/* SPDX-License-Identifier: Apache-2.0 */
/* tier_files.h: the file system as the disk tier sees it: a table of functions, so that tests can
 * put one in the real one's place that fails, lies or hangs. Any thread may call any of them.
 * Errors are returned as -errno; nothing is retried but EINTR. A table of a test begins with struct
 * tier_files, which every function gets. */
#ifndef KVASIR_CACHE_TIER_FILES_H
#define KVASIR_CACHE_TIER_FILES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

typedef void tier_name_fn(void *user, const char *name);

struct tier_files {
    /* flags as open(2); close-on-exec is added, new files are 0600. Folders with O_DIRECTORY, else
     * only regular files and no links: -EINVAL, -ELOOP. */
    int (*open)(const struct tier_files *f, const char *path, int flags);
    void (*close)(const struct tier_files *f, int fd);
    /* Bytes, which may be fewer than wanted; 0: the end of the file, or nothing was written. */
    int64_t (*read)(const struct tier_files *f, int fd, const struct iovec *parts, int n,
                    uint64_t at);
    int64_t (*write)(const struct tier_files *f, int fd, const struct iovec *parts, int n,
                     uint64_t at);
    int (*sync)(const struct tier_files *f, int fd); /* data and size; of a folder: its names */
    int (*truncate)(const struct tier_files *f, int fd, uint64_t bytes);
    int (*size)(const struct tier_files *f, int fd, uint64_t *bytes);
    /* 0: only this process's user, and root, can write to the file or folder. -EPERM: it is another
     * user's; -EACCES: its group or others may write. */
    int (*check_owner)(const struct tier_files *f, int fd);
    int (*remove)(const struct tier_files *f, const char *path);
    int (*make_folder)(const struct tier_files *f, const char *path); /* 0700 */
    int (*list)(const struct tier_files *f, const char *path, tier_name_fn *each, void *user);
    int (*free_bytes)(const struct tier_files *f, int fd, uint64_t *bytes); /* of its system */
    int (*lock)(const struct tier_files *f, int fd); /* -EWOULDBLOCK: another has it */
};

extern const struct tier_files TIER_REAL_FILES;

#endif
