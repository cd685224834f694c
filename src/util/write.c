/* SPDX-License-Identifier: Apache-2.0 */
/* Files and folders that are either complete or absent: everything is written under a temporary
 * name next to the final one and renamed when all of it is on the disk. A killed run leaves
 * NAME.tmp-XXXXXX, never half a file under NAME; that of a file is removed when the same file is
 * written again. A writer belongs to one thread.
 *
 *     folder_begin   NAME.tmp-k3x9q2/          an empty folder of this process's own
 *       file_begin ... file_write ... file_end     each file flushed to the disk
 *     folder_commit  fsync, rename to NAME     (folder_abandon: removed with all in it)
 *
 *     file_replace_begin   NAME.tmp-4711-0     file_write ...
 *     file_replace_commit  fsync, rename to NAME, which may have been there before
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/util.h"

/* ---- files ----------------------------------------------------------------------------------- */

kvasir_status file_begin(struct file_writer *w, const char *path, kvasir_error *err) {
    *w = (struct file_writer){.fd = -1};
    if ((size_t)snprintf(w->path, sizeof w->path, "%s", path) >= sizeof w->path)
        return fail(err, KVASIR_ERR_ARGUMENT, "%.200s: the path is too long", path);
    w->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd < 0)
        return fail(err, KVASIR_ERR_IO, "%s: %s", path, strerror(errno));
    return KVASIR_OK;
}

kvasir_status file_write(struct file_writer *w, const void *data, size_t bytes, kvasir_error *err) {
    ASSERT(w->fd >= 0);
    for (const char *at = data; bytes > 0;) {
        ssize_t n = write(w->fd, at, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(err, KVASIR_ERR_IO, "%s: %s", w->path, strerror(errno));
        at += n;
        bytes -= (size_t)n;
    }
    return KVASIR_OK;
}

kvasir_status file_end(struct file_writer *w, kvasir_error *err) {
    int error = fsync(w->fd) != 0 ? errno : 0;
    if (close(w->fd) != 0 && !error)
        error = errno;
    w->fd = -1;
    if (error)
        return fail(err, KVASIR_ERR_IO, "%s: %s", w->path, strerror(error));
    return KVASIR_OK;
}

void file_abandon(struct file_writer *w) {
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
}

/* ---- one file in another's place ------------------------------------------------------------- */

/* A new name is on the disk once the folder that contains it is. */
static int sync_folder(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int error = fsync(fd) != 0 ? errno : 0;
    close(fd);
    return error;
}

static kvasir_status sync_parent(const char *path, kvasir_error *err) {
    char parent[WRITE_PATH_MAX];
    snprintf(parent, sizeof parent, "%s", path);
    char *slash = strrchr(parent, '/');
    if (slash)
        slash[slash == parent] = 0; /* "/name" is in "/" */
    const char *name = slash ? parent : ".";
    int error = sync_folder(name);
    return error ? fail(err, KVASIR_ERR_IO, "%s: %s", name, strerror(error)) : KVASIR_OK;
}

/* A rename replaces what exists, which must be a file: a device, a pipe or a link would be lost,
 * and its target would not be written. */
static kvasir_status check_replaceable(const char *path, kvasir_error *err) {
    struct stat st;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? KVASIR_OK
                               : fail(err, KVASIR_ERR_IO, "%s: %s", path, strerror(errno));
    return S_ISREG(st.st_mode)
               ? KVASIR_OK
               : fail(err, KVASIR_ERR_IO, "%s: is a %s, not a file: it is not replaced", path,
                      S_ISDIR(st.st_mode)   ? "folder"
                      : S_ISLNK(st.st_mode) ? "link"
                                            : "device or pipe");
}

/* Whether a name is NAME.tmp-PID-N of a process that has ended. */
static bool is_leftover(const char *file, const char *name, size_t len) {
    char *end;
    if (strncmp(file, name, len) != 0 || strncmp(file + len, ".tmp-", 5) != 0 ||
        !isdigit((unsigned char)file[len + 5]))
        return false;
    errno = 0;
    const long pid = strtol(file + len + 5, &end, 10);
    if (errno || pid <= 0 || pid > INT_MAX || *end != '-' || !isdigit((unsigned char)end[1]) ||
        end[1 + strspn(end + 1, "0123456789")])
        return false;
    return kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

/* Writers hold a lock: their process may be of another container, where kill() does not see it. */
static void remove_leftover(int folder, const char *file) {
    struct stat st;
    int fd = openat(folder, file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlinkat(folder, file, 0);
    close(fd);
}

static void remove_leftovers(const char *path) {
    char parent[WRITE_PATH_MAX];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const size_t len = strlen(name);
    snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - path + 1) : 1,
             slash ? path : ".");
    DIR *dir = opendir(parent);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (is_leftover(e->d_name, name, len))
            remove_leftover(dirfd(dir), e->d_name);
    if (dir)
        closedir(dir);
}

kvasir_status file_replace_begin(struct file_replacer *r, const char *path, bool owner_only,
                                 kvasir_error *err) {
    enum { TRIES = 100 }; /* names of other threads, or left by killed processes */
    size_t len = strlen(path);
    *r = (struct file_replacer){.out.fd = -1};
    if (len == 0 || len + 32 > sizeof r->path)
        return fail(err, KVASIR_ERR_ARGUMENT, "%.200s: the path is empty or too long", path);
    TRY(check_replaceable(path, err));
    memcpy(r->path, path, len);
    remove_leftovers(path);
    for (int i = 0; i < TRIES && r->out.fd < 0; i++) {
        snprintf(r->out.path, sizeof r->out.path, "%s.tmp-%ld-%d", path, (long)getpid(), i);
        r->out.fd =
            open(r->out.path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, owner_only ? 0600 : 0666);
        if (r->out.fd < 0 && errno != EEXIST)
            break;
    }
    if (r->out.fd >= 0) {
        (void)flock(r->out.fd, LOCK_EX | LOCK_NB); /* not every file system has locks */
        return KVASIR_OK;
    }
    r->path[0] = 0;
    return fail(err, KVASIR_ERR_IO, "%s: cannot create a file in its folder: %s", path,
                strerror(errno));
}

kvasir_status file_replace_commit(struct file_replacer *r, kvasir_error *err) {
    ASSERT(r->path[0]); /* begun, neither committed nor abandoned */
    TRY(file_end(&r->out, err));
    if (rename(r->out.path, r->path) != 0)
        return fail(err, KVASIR_ERR_IO, "%s: %s", r->path, strerror(errno));
    kvasir_status status = sync_parent(r->path, err);
    r->path[0] = 0;
    return status;
}

void file_replace_abandon(struct file_replacer *r) {
    if (!r->path[0])
        return;
    file_abandon(&r->out);
    unlink(r->out.path);
    r->path[0] = 0;
}

/* ---- folders --------------------------------------------------------------------------------- */

kvasir_status folder_make_all(const char *path, unsigned mode, kvasir_error *err) {
    char at[WRITE_PATH_MAX];
    if (snprintf(at, sizeof at, "%s", path) >= (int)sizeof at)
        return fail(err, KVASIR_ERR_ARGUMENT, "%.200s: the path is too long", path);
    for (char *slash = at; slash; *slash = '/') {
        slash = strchr(slash + 1, '/');
        if (slash)
            *slash = 0;
        if (mkdir(at, mode) != 0 && errno != EEXIST)
            return fail(err, KVASIR_ERR_IO, "%s: cannot make the folder: %s", at, strerror(errno));
        if (!slash)
            break;
    }
    return KVASIR_OK;
}

kvasir_status folder_begin(struct folder_writer *w, const char *path, kvasir_error *err) {
    *w = (struct folder_writer){{0}, {0}};
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        len--;
    if (len == 0 || len + 16 > sizeof w->path)
        return fail(err, KVASIR_ERR_ARGUMENT, "%.200s: the path is empty or too long", path);
    memcpy(w->path, path, len);
    bool exists;
    TRY(file_exists(w->path, &exists, err));
    if (exists)
        return fail(err, KVASIR_ERR_ARGUMENT, "%s: already exists", w->path);
    memcpy(w->tmp, path, len);
    memcpy(w->tmp + len, ".tmp-XXXXXX", sizeof ".tmp-XXXXXX");
    if (!mkdtemp(w->tmp)) {
        int error = errno;
        w->tmp[0] = 0;
        return fail(err, KVASIR_ERR_IO, "%s: cannot create a folder next to it: %s", w->path,
                    strerror(error));
    }
    if (chmod(w->tmp, 0755) != 0) /* mkdtemp's is private */
        return fail(err, KVASIR_ERR_IO, "%s: %s", w->tmp, strerror(errno));
    return KVASIR_OK;
}

kvasir_status folder_commit(struct folder_writer *w, kvasir_error *err) {
    int error = sync_folder(w->tmp);
    if (!error && rename(w->tmp, w->path) != 0)
        error = errno;
    if (error)
        return fail(err, KVASIR_ERR_IO, "%s: %s", w->path, strerror(error));
    w->tmp[0] = 0;
    return sync_parent(w->path, err);
}

void folder_abandon(struct folder_writer *w) {
    if (!w->tmp[0])
        return;
    DIR *dir = opendir(w->tmp);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            unlinkat(dirfd(dir), e->d_name, 0);
    if (dir)
        closedir(dir);
    rmdir(w->tmp);
    w->tmp[0] = 0;
}
