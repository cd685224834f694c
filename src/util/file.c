/* SPDX-License-Identifier: Apache-2.0 */
/* Files: mapped or read whole. Anything but a regular file is
 * refused at once: a FIFO or device in a downloaded folder would be waited for or read for ever. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "util/bytes.h"
#include "util/mapping.h"

static const char *kind_of(mode_t mode) {
    return S_ISDIR(mode)    ? "folder"
           : S_ISFIFO(mode) ? "pipe"
           : S_ISSOCK(mode) ? "socket"
                            : "device";
}

/* Pipes of the shell's <(command), which have no name in a file system. */
static bool is_nameless_pipe(int fd, const struct stat *st) {
    struct statfs fs;
    return S_ISFIFO(st->st_mode) && fstatfs(fd, &fs) == 0 && fs.f_type == PIPEFS_MAGIC;
}

static kvasir_status not_a_file(const char *path, const struct stat *st, kvasir_error *err) {
    return fail(err, KVASIR_ERR_IO, "%s: is a %s, not a file", path, kind_of(st->st_mode));
}

/* O_NONBLOCK: opening a FIFO without a writer would wait. */
static kvasir_status open_as(const char *path, bool pipes, int *fd, struct stat *st,
                             kvasir_error *err) {
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0) {
        const int code = errno;
        if (code == ENXIO && stat(path, st) == 0) /* a socket, or a device that is not there */
            return not_a_file(path, st, err);
        return fail(err, KVASIR_ERR_IO, "%s: %s", path, strerror(code));
    }
    kvasir_status status = KVASIR_OK;
    if (fstat(*fd, st) != 0 || (pipes && fcntl(*fd, F_SETFL, 0) != 0))
        status = fail(err, KVASIR_ERR_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st->st_mode) && !(pipes && is_nameless_pipe(*fd, st)))
        status = not_a_file(path, st, err);
    if (status != KVASIR_OK)
        close(*fd);
    return status;
}

kvasir_status file_open_input(const char *path, int *fd, kvasir_error *err) {
    struct stat st;
    return open_as(path, true, fd, &st, err);
}

static kvasir_status open_to_map(struct file_map *m, const char *path, int *fd, struct stat *st,
                                 kvasir_error *err) {
    *m = (struct file_map){0};
    TRY(open_as(path, false, fd, st, err));
    if (st->st_size > 0)
        return KVASIR_OK;
    close(*fd);
    return fail_at(err, KVASIR_ERR_FORMAT, 0, "%s: the file is empty", path);
}

kvasir_status file_map_open(struct file_map *m, const char *path, kvasir_error *err) {
    int fd;
    struct stat st;
    TRY(open_to_map(m, path, &fd, &st, err));
    return mapping_open(m, path, fd, &st, err);
}

static kvasir_status read_exactly(int fd, const char *path, uint8_t *to, size_t size,
                                  kvasir_error *err) {
    enum { READ_MAX = 1 << 30 };
    for (size_t at = 0; at < size;) {
        const ssize_t n = read(fd, to + at, min_size(size - at, READ_MAX));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(err, KVASIR_ERR_IO, "%s: %s", path, strerror(errno));
        if (n == 0)
            return fail(err, KVASIR_ERR_IO,
                        "%s: the file was truncated while it was read: byte %zu is missing", path,
                        at);
        at += (size_t)n;
        ASSERT(at <= size);
    }
    return KVASIR_OK;
}

kvasir_status file_map_read(struct file_map *m, const char *path, kvasir_error *err) {
    int fd;
    struct stat st;
    TRY(open_to_map(m, path, &fd, &st, err));
    const size_t size = (size_t)st.st_size;
    void *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    kvasir_status status = KVASIR_OK;
    if (data == MAP_FAILED) {
        char text[HUMAN_BYTES];
        status = fail(err, KVASIR_ERR_MEMORY, "%s: no memory for its %s", path,
                      human_bytes((double)size, text));
    } else {
        *m = (struct file_map){.data = data, .size = size};
        file_map_reread(m);
        status = read_exactly(fd, path, data, size, err);
        mprotect(data, size, PROT_READ);
    }
    close(fd);
    if (status != KVASIR_OK)
        file_map_close(m);
    return status;
}

kvasir_status file_map_lock(const struct file_map *m, const char *path, kvasir_error *err) {
    struct rlimit limit = {0};
    if (mlock(m->data, m->size) == 0)
        return KVASIR_OK;
    const int code = errno;
    char size[HUMAN_BYTES];
    getrlimit(RLIMIT_MEMLOCK, &limit);
    return fail_field(err, KVASIR_ERR_MEMORY, "model.mlock",
                      "%s: cannot lock %s in memory: %s; the limit of locked memory "
                      "(ulimit -l) is %llu KiB",
                      path, human_bytes((double)m->size, size), strerror(code),
                      (unsigned long long)limit.rlim_cur / 1024);
}

void file_map_reread(const struct file_map *m) {
    madvise((void *)m->data, m->size, MADV_HUGEPAGE);
}

void file_map_close(struct file_map *m) {
    mapping_close(m);
}

static kvasir_status read_fd(int fd, const char *path, size_t limit, struct text_buf *out,
                             kvasir_error *err) {
    char chunk[1 << 16];
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(err, KVASIR_ERR_IO, "%s: %s", path, strerror(errno));
        if (n == 0)
            return KVASIR_OK;
        ASSERT(out->len <= limit);
        if ((size_t)n > limit - out->len)
            return fail(err, KVASIR_ERR_IO, "%s: larger than %zu bytes", path, limit);
        if (!text_append(out, chunk, (size_t)n))
            return fail(err, KVASIR_ERR_MEMORY, "%s: out of memory", path);
    }
}

static kvasir_status read_whole(int fd, const char *name, size_t limit, char **out, size_t *size,
                                kvasir_error *err) {
    struct text_buf text = {0};
    kvasir_status status = read_fd(fd, name, limit, &text, err);
    if (status == KVASIR_OK && !text.data && !text_append(&text, "", 0))
        status = fail(err, KVASIR_ERR_MEMORY, "%s: out of memory", name);
    if (status != KVASIR_OK) {
        text_free(&text);
        return status;
    }
    *out = text.data;
    *size = text.len;
    return KVASIR_OK;
}

kvasir_status file_read_all(const char *path, size_t limit_bytes, char **out, size_t *size,
                            kvasir_error *err) {
    int fd;
    struct stat st;
    TRY(open_as(path, false, &fd, &st, err));
    kvasir_status status = read_whole(fd, path, limit_bytes, out, size, err);
    close(fd);
    return status;
}

kvasir_status file_read_input(const char *path, size_t limit_bytes, char **out, size_t *size,
                              kvasir_error *err) {
    if (strcmp(path, "-") == 0)
        return read_whole(STDIN_FILENO, "standard input", limit_bytes, out, size, err);
    int fd;
    TRY(file_open_input(path, &fd, err));
    kvasir_status status = read_whole(fd, path, limit_bytes, out, size, err);
    close(fd);
    return status;
}

kvasir_status file_exists(const char *path, bool *exists, kvasir_error *err) {
    struct stat st;
    *exists = stat(path, &st) == 0;
    if (!*exists && errno != ENOENT && errno != ENOTDIR)
        return fail(err, KVASIR_ERR_IO, "%s: %s", path, strerror(errno));
    return KVASIR_OK;
}

bool file_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}
