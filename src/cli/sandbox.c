/* SPDX-License-Identifier: Apache-2.0 */
/* sandbox.c: `kvasir serve` gives up what it does not need, so that code that somebody smuggles in
 * (a crafted model file, a request) can do no more than the server itself.
 *
 *     flags, keys -> sandbox_files -> model, engine, listeners -> sandbox_calls -> requests
 *                    Landlock: which files                        seccomp: which calls
 *
 * Landlock restricts the calling thread and those that it starts later, so it comes before the
 * first of them, and so also guards against the model's files. seccomp restricts all threads at
 * once (TSYNC). It comes last, since far fewer system calls are needed from then on: without a file
 * that is read again, none that takes a path.
 *
 * NEEDS is the one place that says which feature needs what. A new feature that opens a file or
 * makes a system call while the server runs gets a row; sandbox.py and traces.py of tests/api/ use
 * all. There is no row for GPUs: CUDA's driver loads code, opens /dev/nvidia* and calls ioctl on
 * them, from threads of its own and while the server runs. On a GPU there is no sandbox (serve.c).
 */
#define _GNU_SOURCE /* O_PATH, CLONE_THREAD */
#include "cli.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/landlock.h>
#include <sched.h>
#include <seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- what each feature needs ----------------------------------------------------------------- */

enum { READ = LANDLOCK_ACCESS_FS_READ_FILE, LIST = LANDLOCK_ACCESS_FS_READ_DIR };
enum { PATHS_MAX = 16 };

enum place {
    NO_PATH,
    ITSELF, /* the file that the flag names */
    FOLDER, /* the folder of the flag's file, and the one where links lead to: the file may be
               replaced. If that is the root, the file only */
    MODEL,  /* the flag's folder, or its file's, and the files that links in it lead to */
};

/* A system call, of which one argument may be checked. */
struct call {
    int number;
    bool checked;
    struct scmp_arg_cmp check;
};

/* clang-format off */
#define CALL(name)            {SCMP_SYS(name), false, {0}}
#define CALL_IF(name, ...)    {SCMP_SYS(name), true, {__VA_ARGS__}}
#define FLAGS_OFF(n, bits)    n, SCMP_CMP_MASKED_EQ, bits, 0
#define FLAGS_ON(n, bits)     n, SCMP_CMP_MASKED_EQ, bits, bits
#define EQUAL(n, value)       n, SCMP_CMP_EQ, value, 0
#define END                   {__NR_SCMP_ERROR, false, {0}}
static const struct call RUNNING[] = {
    /* memory, of which none becomes code */
    CALL(brk), CALL(munmap), CALL(mremap), CALL(madvise),
    CALL_IF(mmap, FLAGS_OFF(2, PROT_EXEC)), CALL_IF(mprotect, FLAGS_OFF(2, PROT_EXEC)),
    /* threads; clone3's flags cannot be checked: see add_calls */
    CALL(futex), CALL(sched_yield), CALL(sched_getaffinity), CALL(set_robust_list), CALL(rseq),
    CALL_IF(clone, FLAGS_ON(0, CLONE_VM | CLONE_THREAD)), CALL(setpriority), CALL(gettid),
    CALL(getpid), CALL(exit), CALL(exit_group),
    /* time and signals */
    CALL(clock_gettime), CALL(clock_nanosleep), CALL(nanosleep), CALL(gettimeofday), CALL(time),
    CALL(rt_sigaction), CALL(rt_sigprocmask), CALL(rt_sigreturn), CALL(rt_sigtimedwait),
    CALL(sigaltstack), CALL(restart_syscall),
    /* what is open: connections, the model, the log */
    CALL(read), CALL(readv), CALL(pread64), CALL(write), CALL(writev), CALL(close), CALL(lseek),
    CALL(fstat), CALL_IF(newfstatat, FLAGS_ON(3, AT_EMPTY_PATH)), CALL(fcntl),
    CALL_IF(ioctl, EQUAL(1, TCGETS)), CALL(accept4), CALL(recvfrom), CALL(recvmsg), CALL(sendto),
    CALL(sendmsg), CALL(shutdown), CALL(setsockopt), CALL(getsockopt), CALL(getsockname),
    CALL(getpeername), CALL(epoll_ctl), CALL(epoll_wait), CALL(epoll_pwait), CALL(poll),
    CALL(ppoll),
    /* random numbers, figures of the process */
    CALL(getrandom), CALL(getrusage), CALL(sysinfo), CALL(uname), END,
};
static const struct call OPENING[] = {
    CALL(open), CALL(openat), CALL(stat), CALL(newfstatat), CALL(statx), CALL(access),
    CALL(faccessat), CALL(faccessat2), CALL(fstatfs), END,
};
/* ARCH_REQ_XCOMP_PERM of asm/prctl.h, which exists on x86 only: the tiles of AMX (cpu_tier_have) */
enum { REQUEST_STATE = 0x1023 };
/* Opens models and starts engines, and ends them, while requests are answered. */
static const struct call LOADING[] = {
    CALL(open), CALL(openat), CALL(stat), CALL(newfstatat), CALL(statx), CALL(access),
    CALL(faccessat), CALL(faccessat2), CALL(fstatfs), CALL(statfs), CALL(getdents64),
    CALL(readlink), CALL(readlinkat), CALL(fadvise64), CALL(mlock), CALL(mlock2), CALL(munlock),
    CALL(mkdir), CALL(mkdirat), CALL(sched_setaffinity), CALL(mbind),
    CALL_IF(move_pages, EQUAL(0, 0)), CALL_IF(arch_prctl, EQUAL(0, REQUEST_STATE)), END,
};
/* Replaces a file: file_replace_begin and what follows. */
static const struct call KEEPING[] = {
    CALL(rename), CALL(renameat), CALL(renameat2), CALL(unlink), CALL(unlinkat), CALL(fsync),
    CALL(flock), END,
};
static const struct call REMOVING[] = {CALL(unlink), CALL(unlinkat), END};
static const struct call STORING[] = {
    CALL(open), CALL(openat), CALL(stat), CALL(newfstatat), CALL(statx), CALL(access),
    CALL(unlink), CALL(unlinkat), CALL(rename), CALL(renameat), CALL(renameat2), CALL(ftruncate),
    CALL(fsync), CALL(fdatasync), CALL(preadv), CALL(pwritev), CALL(pwrite64), CALL(statfs),
    CALL(fstatfs), CALL(getdents64), CALL(flock), CALL(fadvise64), CALL(fallocate), END,
};
static const struct call CONNECTING[] = {
    CALL_IF(socket, EQUAL(0, AF_INET)), CALL_IF(socket, EQUAL(0, AF_INET6)),
    CALL_IF(socket, EQUAL(0, AF_UNIX)), CALL_IF(socket, EQUAL(0, AF_NETLINK)), CALL(connect),
    CALL(bind), CALL(sendmmsg), CALL(open), CALL(openat), CALL(stat), CALL(newfstatat),
    CALL(statx), CALL(access), CALL_IF(ioctl, EQUAL(1, FIONREAD)), END,
};
/* libcurl: it looks names up on a thread, and has sockets to wake itself. */
static const struct call SENDING[] = {
    CALL_IF(socket, EQUAL(0, AF_INET)), CALL_IF(socket, EQUAL(0, AF_INET6)),
    CALL_IF(socket, EQUAL(0, AF_UNIX)), CALL_IF(socket, EQUAL(0, AF_NETLINK)), CALL(connect),
    CALL(bind), CALL(sendmmsg), CALL(open), CALL(openat), CALL(stat), CALL(newfstatat),
    CALL(statx), CALL(access), CALL_IF(ioctl, EQUAL(1, FIONREAD)),
    CALL_IF(socketpair, EQUAL(0, AF_UNIX)), CALL(pipe2), CALL(eventfd2), END,
};
static const struct call NOTIFYING[] = {CALL_IF(socket, EQUAL(0, AF_UNIX)), END};

/* What the C library reads to look up a host's name. */
#define NAME_SERVICE                                                                               \
    "/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/resolv.conf",     \
        "/etc/services", "/etc/ld.so.cache", "/lib", "/lib64", "/usr/lib", "/usr/lib64"

/* linux/landlock.h of Debian 12 is older than these. */
enum { TRUNCATE = 1 << 14, IOCTL_DEVICE = 1 << 15, CONNECT_TCP = 1 << 1 };
enum { SCOPE_ABSTRACT = 1 << 0, SCOPE_SIGNAL = 1 << 1 };

static const struct need {
    enum place place; /* and rights there; held by Landlock from the start to the end */
    uint64_t rights;
    const char *paths[PATHS_MAX]; /* more of them */
    const struct call *calls;     /* while the server runs; NULL: none */
} NEEDS[SANDBOX_FEATURES] = {
    /* free memory and CPUs at the start; resident memory, from a file that stays open */
    [SANDBOX_ALWAYS] = {.rights = READ, .calls = RUNNING,
                        .paths = {"/proc/meminfo", "/proc/self/cgroup", "/proc/self/statm",
                                  "/sys/fs/cgroup", "/sys/devices/system/cpu",
                                  "/sys/devices/system/node"}},
    [SANDBOX_MODEL] = {MODEL, READ | LIST, {NULL}, NULL},
    [SANDBOX_MODELS] = {MODEL, READ | LIST, {NULL}, LOADING},
    [SANDBOX_KEY_CENTRE] = {ITSELF, READ, {NULL}, NULL},
    [SANDBOX_CALIBRATIONS] = {ITSELF,
                              READ | LIST | LANDLOCK_ACCESS_FS_WRITE_FILE |
                                  LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_REMOVE_FILE |
                                  TRUNCATE,
                              {NULL}, NULL},
    [SANDBOX_CALIBRATING] = {NO_PATH, 0, {NULL}, KEEPING},
    [SANDBOX_KEY_FILE] = {FOLDER, READ, {NULL}, OPENING},
    [SANDBOX_SOCKET] = {FOLDER, LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_REMOVE_FILE,
                        {NULL}, REMOVING},
    /* a host that the C library looks up, before the server listens */
    [SANDBOX_HOST_NAME] = {NO_PATH, READ | LIST, {NAME_SERVICE}, NULL},
    [SANDBOX_CACHE_DIR] = {ITSELF,
                           READ | LIST | LANDLOCK_ACCESS_FS_WRITE_FILE |
                               LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_REMOVE_FILE |
                               TRUNCATE,
                           {NULL}, STORING},
    [SANDBOX_CACHE_SECRET] = {ITSELF, READ, {NULL}, NULL},
    [SANDBOX_CACHE_REMOTE] = {NO_PATH, READ | LIST, {NAME_SERVICE}, CONNECTING},
    [SANDBOX_TRACES] = {NO_PATH, READ | LIST, {NAME_SERVICE, "/etc/ssl", "/usr/lib/ssl"},
                        SENDING},
    [SANDBOX_MANAGER] = {NO_PATH, 0, {NULL}, NOTIFYING},
};

/* What only an intruder calls: other programs, other processes. Everything else that is not in
 * NEEDS fails. */
static const int DEADLY[] = {SCMP_SYS(execve), SCMP_SYS(execveat), SCMP_SYS(ptrace),
                             SCMP_SYS(process_vm_readv), SCMP_SYS(process_vm_writev)};
/* clang-format on */

/* ---- files ----------------------------------------------------------------------------------- */

struct ruleset {
    uint64_t files, net, scoped;
};

struct rules {
    int fd, error;    /* error: the first; 0 */
    uint64_t handled; /* rights that this kernel knows */
};

/* A name that does not exist, or that the process may not reach, needs no rule. */
static void allow(struct rules *r, const char *path, uint64_t rights) {
    struct stat st;
    const int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &st) != 0 || !S_ISDIR(st.st_mode))
        rights &= READ; /* others are those of folders */
    rights &= r->handled;
    const struct landlock_path_beneath_attr rule = {.allowed_access = rights, .parent_fd = fd};
    if (rights && syscall(SYS_landlock_add_rule, r->fd, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) != 0)
        r->error = r->error ? r->error : errno;
    /* A rule is about the object behind a name. /proc may make a new one for a name that nobody has
     * open. */
    if (strncmp(path, "/proc/", 6) != 0)
        close(fd);
}

/* The folder of a file; false: the root, or the path is too long. */
static bool folder_of(const char *path, char folder[PATH_MAX]) {
    const char *slash = strrchr(path, '/');
    const int n = slash ? (int)(slash - path) : 1;
    return snprintf(folder, PATH_MAX, "%.*s", n, slash ? path : ".") == n && n > 0;
}

static void allow_folder(struct rules *r, const char *path, uint64_t rights) {
    char folder[PATH_MAX], real[PATH_MAX];
    if (folder_of(path, folder))
        allow(r, folder, rights);
    else
        allow(r, rights & READ ? path : "/", rights);
    if (realpath(path, real) && folder_of(real, folder))
        allow(r, folder, rights);
}

/* Hubs keep files elsewhere and link to them. In the root, where a container may have its model,
 * not everything below is the model's. */
static void allow_model(struct rules *r, const char *path, uint64_t rights) {
    char folder[PATH_MAX], file[PATH_MAX];
    struct stat st;
    bool root = false;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        snprintf(folder, sizeof folder, "%s", path);
    else if (!folder_of(path, folder))
        root = snprintf(folder, sizeof folder, "/") > 0;
    if (!root)
        allow(r, folder, rights);
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        const int n = snprintf(file, sizeof file, "%s/%s", folder, e->d_name);
        if (n < (int)sizeof file && lstat(file, &st) == 0 && (root || S_ISLNK(st.st_mode)) &&
            stat(file, &st) == 0 && S_ISREG(st.st_mode))
            allow(r, file, rights);
    }
    if (dir)
        closedir(dir);
}

static void allow_needs(struct rules *r, const struct sandbox *s) {
    for (int f = 0; f < SANDBOX_FEATURES; f++) {
        const struct need *need = &NEEDS[f];
        const char *path = s->uses[f];
        for (int i = 0; path && i < PATHS_MAX && need->paths[i]; i++)
            allow(r, need->paths[i], need->rights);
        if (path && need->place == ITSELF)
            allow(r, path, need->rights);
        else if (path && need->place == FOLDER)
            allow_folder(r, path, need->rights);
        else if (path && need->place == MODEL && f != SANDBOX_MODELS)
            allow_model(r, path, need->rights);
        for (size_t i = 0; path && f == SANDBOX_MODELS && i < s->n_models; i++)
            allow_model(r, s->models[i], need->rights);
    }
}

/* All that this kernel can forbid, by the version of its interface. A service manager's socket may
 * be an abstract one, and a look-up may use TCP. */
static struct ruleset everything(const struct sandbox *s, long version) {
    const char *manager = s->uses[SANDBOX_MANAGER];
    struct ruleset all = {.files = LANDLOCK_ACCESS_FS_MAKE_SYM * 2 - 1};
    all.files |= version >= 2 ? LANDLOCK_ACCESS_FS_REFER : 0;
    all.files |= version >= 3 ? TRUNCATE : 0;
    all.files |= version >= 5 ? IOCTL_DEVICE : 0;
    const bool connects =
        s->uses[SANDBOX_HOST_NAME] || s->uses[SANDBOX_CACHE_REMOTE] || s->uses[SANDBOX_TRACES];
    all.net = version >= 4 && !connects ? CONNECT_TCP : 0;
    if (version >= 6)
        all.scoped = SCOPE_SIGNAL | (manager && *manager == '@' ? 0 : SCOPE_ABSTRACT);
    return all;
}

/* errno of what failed, 0. */
static int restrict_files(struct sandbox *s) {
    const long version =
        syscall(SYS_landlock_create_ruleset, NULL, (size_t)0, LANDLOCK_CREATE_RULESET_VERSION);
    if (version < 1)
        return version < 0 ? errno : ENOSYS;
    const struct ruleset all = everything(s, version);
    const size_t size = version < 4   ? sizeof all.files
                        : version < 6 ? sizeof all.files + sizeof all.net
                                      : sizeof all;
    struct rules rules = {.handled = all.files,
                          .fd = (int)syscall(SYS_landlock_create_ruleset, &all, size, 0u)};
    if (rules.fd < 0)
        return errno;
    allow_needs(&rules, s);
    if (!rules.error && syscall(SYS_landlock_restrict_self, rules.fd, 0u) != 0)
        rules.error = errno;
    close(rules.fd);
    return rules.error;
}

/* ---- system calls ---------------------------------------------------------------------------- */

/* A name that this architecture does not have is a negative number; libseccomp passes over it. */
static int add_calls(scmp_filter_ctx filter, const struct sandbox *s) {
    const struct scmp_arg_cmp own = SCMP_A0_32(SCMP_CMP_EQ, (uint32_t)getpid(), 0);
    /* abort, raise; and the C library starts a thread with clone if there is no clone3 */
    int error = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1, own);
    if (!error)
        error = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
    for (size_t i = 0; i < sizeof DEADLY / sizeof *DEADLY && !error; i++)
        error = seccomp_rule_add(filter, SCMP_ACT_KILL_PROCESS, DEADLY[i], 0);
    for (int f = 0; f < SANDBOX_FEATURES; f++)
        for (const struct call *c = s->uses[f] ? NEEDS[f].calls : NULL;
             c && c->number != __NR_SCMP_ERROR && !error; c++)
            error =
                seccomp_rule_add_array(filter, SCMP_ACT_ALLOW, c->number, c->checked, &c->check);
    return error;
}

/* errno of what failed, 0. */
static int restrict_calls(const struct sandbox *s) {
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
    if (!filter)
        return ENOMEM;
    /* Without it older kernels turn off speculative store bypass, which costs time. That protects a
     * process from code inside it that it does not trust; here there is none. */
    (void)seccomp_attr_set(filter, SCMP_FLTATR_CTL_SSB, 1);
    (void)seccomp_attr_set(filter, SCMP_FLTATR_API_SYSRAWRC, 1); /* seccomp_load returns errno */
    int error = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
    if (!error)
        error = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    if (!error)
        error = add_calls(filter, s);
    if (!error)
        error = seccomp_load(filter);
    seccomp_release(filter);
    return -error;
}

/* ---- both ------------------------------------------------------------------------------------ */

/* Sanitizers and counters of coverage open files when they like. */
#ifdef KVASIR_INSTRUMENTED
static const bool INSTRUMENTED = true;
#else
static const bool INSTRUMENTED = false;
#endif

int sandbox_read(const struct command *c, const char *mode, struct sandbox *s) {
    s->required = strcmp(mode, "on") == 0;
    s->wanted = s->required || strcmp(mode, "auto") == 0;
    if (!s->wanted && strcmp(mode, "off") != 0)
        return usage_error(c, "--sandbox: \"%.40s\" is none of auto, on, off", mode);
    if (s->required && INSTRUMENTED)
        return run_error(c, "--sandbox on: impossible in a build with sanitizers or coverage");
    return EXIT_GOOD;
}

int sandbox_files(const struct command *c, struct sandbox *s) {
    if (!s->wanted || INSTRUMENTED)
        return EXIT_GOOD;
    s->files_error = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ? errno : restrict_files(s);
    if (s->required && s->files_error)
        return run_error(c,
                         "--sandbox on: cannot restrict files: %s: Landlock needs Linux 5.13, "
                         "\"landlock\" among its security modules (lsm=), and to be allowed in "
                         "this container or unit; or give --sandbox auto",
                         strerror(s->files_error));
    return EXIT_GOOD;
}

int sandbox_calls(const struct command *c, struct sandbox *s, bool quiet,
                  char text[SANDBOX_TEXT_MAX]) {
    *text = 0;
    if (!s->wanted)
        return EXIT_GOOD;
    if (INSTRUMENTED) {
        if (!quiet)
            snprintf(text, SANDBOX_TEXT_MAX, "sandbox: off in a build with sanitizers or coverage");
        return EXIT_GOOD;
    }
    const int error = restrict_calls(s);
    if (s->required && error)
        return run_error(c,
                         "--sandbox on: cannot restrict system calls: %s: seccomp must be in the "
                         "kernel and allowed in this container or unit; or give --sandbox auto",
                         strerror(error));
    if (quiet && !s->files_error && !error)
        return EXIT_GOOD;
    snprintf(text, SANDBOX_TEXT_MAX, "sandbox: files %s%s, system calls %s%s",
             s->files_error ? "not restricted: " : "restricted",
             s->files_error ? strerror(s->files_error) : "",
             error ? "not restricted: " : "restricted", error ? strerror(error) : "");
    return EXIT_GOOD;
}

bool sandbox_hides(const struct sandbox *s, const char *path) {
    if (!s->wanted || INSTRUMENTED || s->files_error || access(path, R_OK) != 0)
        return false;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd >= 0)
        close(fd);
    return fd < 0 && errno == EACCES;
}
