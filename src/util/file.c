/* SPDX-License-Identifier: Apache-2.0 */
/* Files: mapped whole for checkpoints, read whole for prompts. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/util.h"

static kvasir_status open_regular(const char *path, int *fd, struct stat *st, kvasir_error *err) {
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0)
        return fail(err, KVASIR_ERR_IO, "%s: %s", path, strerror(errno));
    if (fstat(*fd, st) != 0) {
        int code = errno;
        close(*fd);
        return fail(err, KVASIR_ERR_IO, "%s: %s", path, strerror(code));
    }
    if (S_ISDIR(st->st_mode)) {
        close(*fd);
        return fail(err, KVASIR_ERR_IO, "%s: is a folder, not a file", path);
    }
    return KVASIR_OK;
}

kvasir_status file_map_open(struct file_map *m, const char *path, kvasir_error *err) {
    int fd;
    struct stat st;
    *m = (struct file_map){0};
    TRY(open_regular(path, &fd, &st, err));
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return fail(err, KVASIR_ERR_IO, "%s: is not a regular file", path);
    }
    if (st.st_size <= 0) {
        close(fd);
        return fail_at(err, KVASIR_ERR_FORMAT, 0, "%s: the file is empty", path);
    }
    void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    int code = errno;
    close(fd);
    if (data == MAP_FAILED)
        return fail(err, KVASIR_ERR_IO, "%s: cannot map: %s", path, strerror(code));
    m->data = data;
    m->size = (size_t)st.st_size;
    return KVASIR_OK;
}

void file_map_reread(const struct file_map *m) {
    madvise((void *)m->data, m->size, MADV_HUGEPAGE);
}

void file_map_close(struct file_map *m) {
    if (m->data)
        munmap((void *)m->data, m->size);
    *m = (struct file_map){0};
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

kvasir_status file_read_all(const char *path, size_t limit_bytes, char **out, size_t *size,
                            kvasir_error *err) {
    bool standard_input = strcmp(path, "-") == 0;
    const char *name = standard_input ? "standard input" : path;
    int fd = STDIN_FILENO;
    struct stat st;
    if (!standard_input)
        TRY(open_regular(path, &fd, &st, err));
    struct text_buf text = {0};
    kvasir_status status = read_fd(fd, name, limit_bytes, &text, err);
    if (!standard_input)
        close(fd);
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

bool file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

bool file_is_dir(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}
