/* SPDX-License-Identifier: Apache-2.0 */
/* Mapped files, and what becomes of a read that the file cannot serve any more (SIGBUS): it was
 * truncated, or the disk fails.
 *
 *     compute worker   reads a weight -> SIGBUS -> handler: zeros from that page on, `bad` = its
 *                      offset; the read is repeated, and the step ends with wrong numbers
 *     engine's thread  file_map_check after the step: an error, the step's results are dropped
 *     a watch          file_map_verify now and then: finds changes that no read runs into
 *
 * The handler walks a list without a lock. Entries are only ever added, at the front; that of a
 * closed mapping is used again. The handler reads atomic fields only; `begin` is set last and
 * cleared first. What is bad stays so until the mapping is closed.
 */
#include "util/mapping.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GOOD = -1, CHANGED = -2 };

struct mapping {
    _Atomic uintptr_t begin; /* 0: free */
    _Atomic size_t size;
    _Atomic int64_t bad; /* offset of the first page that could not be read; GOOD; CHANGED */
    int fd;
    struct stat opened;
    char *path; /* NULL: free */
    struct mapping *next;
};

static _Atomic(struct mapping *) mappings;
static atomic_bool any_bad;
static _Atomic size_t page_bytes;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of opening and closing */
static struct sigaction other_faults; /* what SIGBUS did before file_map_catch_faults */

/* ---- opening --------------------------------------------------------------------------------- */

/* An entry that is not in use; the caller holds the mutex. */
static struct mapping *take_entry(void) {
    struct mapping *p = atomic_load(&mappings);
    while (p && p->path)
        p = p->next;
    if (p)
        return p;
    p = mem_calloc(1, sizeof *p);
    if (p) {
        p->next = atomic_load(&mappings);
        atomic_store(&mappings, p);
    }
    return p;
}

kvasir_status mapping_open(struct file_map *m, const char *path, int fd, const struct stat *st,
                           kvasir_error *err) {
    const size_t size = (size_t)st->st_size;
    void *data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
        const int code = errno;
        close(fd);
        return fail(err, KVASIR_ERR_IO, "%s: cannot map: %s", path, strerror(code));
    }
    pthread_mutex_lock(&mutex);
    atomic_store(&page_bytes, (size_t)sysconf(_SC_PAGESIZE));
    char *name = mem_strdup(path);
    struct mapping *p = name ? take_entry() : NULL;
    if (p) {
        p->path = name;
        p->fd = fd;
        p->opened = *st;
        atomic_store(&p->bad, GOOD);
        atomic_store(&p->size, size);
        atomic_store(&p->begin, (uintptr_t)data);
    }
    pthread_mutex_unlock(&mutex);
    if (!p) {
        mem_free(name);
        munmap(data, size);
        close(fd);
        return fail(err, KVASIR_ERR_MEMORY, "%s: out of memory", path);
    }
    *m = (struct file_map){.data = data, .size = size, .mapping = p};
    return KVASIR_OK;
}

void mapping_close(struct file_map *m) {
    struct mapping *p = m->mapping;
    if (p) {
        ASSERT(atomic_load(&p->begin) == (uintptr_t)m->data);
        pthread_mutex_lock(&mutex);
        atomic_store(&p->begin, 0);
        close(p->fd);
        mem_free(p->path);
        p->path = NULL;
        pthread_mutex_unlock(&mutex);
    }
    if (m->data)
        munmap((void *)m->data, m->size);
    *m = (struct file_map){0};
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* The first report stays. */
static void set_bad(struct mapping *p, int64_t what) {
    int64_t good = GOOD;
    atomic_compare_exchange_strong(&p->bad, &good, what);
    atomic_store(&any_bad, true);
}

/* In a signal handler. False: the address is in none of our mappings. */
static bool replace_rest(uintptr_t at) {
    const size_t page = atomic_load(&page_bytes);
    for (struct mapping *p = atomic_load(&mappings); p; p = p->next) {
        const uintptr_t begin = atomic_load(&p->begin);
        const size_t span = round_up(atomic_load(&p->size), page);
        if (!begin || at < begin || at - begin >= span)
            continue;
        const size_t from = (at - begin) / page * page;
        set_bad(p, (int64_t)from);
        return mmap((void *)(begin + from), span - from, PROT_READ,
                    MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) != MAP_FAILED;
    }
    return false;
}

/* si_code > 0: a fault, which comes again if the handler returns; else somebody sent the signal. */
static void on_fault(int number, siginfo_t *info, void *context) {
    const int error = errno;
    (void)context;
    if (info->si_code <= 0 || !replace_rest((uintptr_t)info->si_addr)) {
        sigaction(number, &other_faults, NULL);
        if (info->si_code <= 0)
            raise(number);
    }
    errno = error;
}

void file_map_catch_faults(void) {
    struct sigaction now, catch = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    if (sigaction(SIGBUS, NULL, &now) != 0 || now.sa_sigaction == on_fault)
        return;
    other_faults = now;
    sigaction(SIGBUS, &catch, NULL);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static kvasir_status report(const struct mapping *p, int64_t bad, kvasir_error *err) {
    struct stat st;
    ASSERT(p->path && bad != GOOD);
    if (bad == CHANGED)
        return fail(err, KVASIR_ERR_IO, "%s: the file was changed while it was in use", p->path);
    if (fstat(p->fd, &st) == 0 && st.st_size > bad)
        return fail(err, KVASIR_ERR_IO, "%s: the disk cannot read byte %lld", p->path,
                    (long long)bad);
    return fail(err, KVASIR_ERR_IO,
                "%s: the file was truncated while it was in use: byte %lld is missing", p->path,
                (long long)bad);
}

bool file_map_any_fault(void) {
    return atomic_load_explicit(&any_bad, memory_order_relaxed);
}

kvasir_status file_map_check(const struct file_map *m, kvasir_error *err) {
    const struct mapping *p = m->mapping;
    const int64_t bad = p ? atomic_load(&p->bad) : GOOD;
    return bad == GOOD ? KVASIR_OK : report(p, bad, err);
}

kvasir_status file_map_verify(const struct file_map *m, kvasir_error *err) {
    struct mapping *p = m->mapping;
    struct stat st;
    if (!p || atomic_load(&p->bad) != GOOD)
        return file_map_check(m, err);
    ASSERT(p->path && p->fd >= 0);
    if (fstat(p->fd, &st) != 0)
        return fail(err, KVASIR_ERR_IO, "%s: %s", p->path, strerror(errno));
    const struct stat *old = &p->opened;
    if (st.st_size < old->st_size)
        set_bad(p, (int64_t)st.st_size);
    else if (st.st_size != old->st_size || st.st_mtim.tv_sec != old->st_mtim.tv_sec ||
             st.st_mtim.tv_nsec != old->st_mtim.tv_nsec)
        set_bad(p, CHANGED);
    return file_map_check(m, err);
}

static int64_t nanoseconds(struct timespec t) {
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

bool file_map_stamp(const struct file_map *m, struct file_stamp *out) {
    struct stat st;
    if (!m->mapping || fstat(m->mapping->fd, &st) != 0)
        return false;
    *out = (struct file_stamp){.device = st.st_dev,
                               .inode = st.st_ino,
                               .size = (uint64_t)st.st_size,
                               .mtime_ns = nanoseconds(st.st_mtim),
                               .ctime_ns = nanoseconds(st.st_ctim)};
    return true;
}
