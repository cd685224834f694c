/* SPDX-License-Identifier: Apache-2.0 */
/* sandbox_probe.c: what code inside a server could do. Loaded into it by LD_PRELOAD (sandbox.py);
 * the program itself has no hook for this. Once system calls are restricted, the first call of
 * sigtimedwait (the main thread's loop) and of epoll_wait (the HTTP threads') tries what follows
 * and writes a line for each to standard error: "probe THREAD WHAT RESULT". $PROBE_DEADLY: one
 * thing to do that ends the process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int status = -1;

__attribute__((constructor)) static void open_status(void) {
    status = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
}

static int restricted(void) {
    char text[4096] = "";
    return pread(status, text, sizeof text - 1, 0) > 0 && strstr(text, "\nSeccomp:\t2\n") != NULL;
}

static void tell(const char *thread, const char *what, long result) {
    char line[300];
    const int n = snprintf(line, sizeof line, "probe %s %s %s\n", thread, what,
                           result == -1 ? strerrorname_np(errno) : "good");
    (void)!write(2, line, (size_t)n);
}

static void *nothing(void *arg) {
    return arg;
}

static void try_all(const char *thread) {
    pthread_t t;
    char name[64];
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static const char *const READ[] = {"/etc/passwd", "/proc/self/maps",  "outside/file",
                                       "keys/keys",   "copy/config.json", "means/file",
                                       "means/other"};
    for (size_t i = 0; i < sizeof READ / sizeof *READ; i++) {
        snprintf(name, sizeof name, "read:%s", READ[i]);
        tell(thread, name, open(READ[i], O_RDONLY));
    }
    tell(thread, "write", open("keys/keys", O_WRONLY));
    tell(thread, "create", open("keys/new", O_WRONLY | O_CREAT, 0600));
    tell(thread, "mkdir", mkdir("keys/folder", 0700));
    tell(thread, "remove:keys", unlink("keys/other"));
    tell(thread, "remove:socket", unlink("socket/other"));
    tell(thread, "rename", rename("keys/other", "outside/other"));
    tell(thread, "chmod", chmod("keys/keys", 0644));
    tell(thread, "socket:inet", socket(AF_INET, SOCK_STREAM, 0));
    tell(thread, "socket:unix", socket(AF_UNIX, SOCK_DGRAM, 0));
    tell(thread, "listen", listen(0, 1));
    tell(thread, "mmap:code",
         (long)mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    tell(thread, "mprotect:code", mprotect(page, 4096, PROT_READ | PROT_EXEC));
    tell(thread, "mprotect:data", mprotect(page, 4096, PROT_READ));
    const long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0)
        _exit(0);
    tell(thread, "fork", child);
    tell(thread, "clone3", syscall(SYS_clone3, NULL, 0));
    tell(thread, "kill", kill(getppid(), 0));
    tell(thread, "setuid", syscall(SYS_setuid, getuid()));
    tell(thread, "io_uring", syscall(SYS_io_uring_setup, 1, NULL));
    errno = pthread_create(&t, NULL, nothing, NULL);
    tell(thread, "thread", errno ? -1 : pthread_join(t, NULL));
    tell(thread, "end", 0);
}

static void do_deadly(const char *what) {
    char *const arguments[] = {(char *)"true", NULL};
    if (strcmp(what, "execve") == 0)
        execve("/bin/true", arguments, NULL);
    else
        ptrace(PTRACE_ATTACH, getppid(), NULL, NULL);
    tell("main", what, 0);
}

int sigtimedwait(const sigset_t *set, siginfo_t *info, const struct timespec *timeout) {
    static int done;
    int (*real)(const sigset_t *, siginfo_t *, const struct timespec *) =
        dlsym(RTLD_NEXT, "sigtimedwait");
    if (!done++) {
        if (getenv("PROBE_DEADLY"))
            do_deadly(getenv("PROBE_DEADLY"));
        try_all("main");
    }
    return real(set, info, timeout);
}

int epoll_wait(int epoll, struct epoll_event *events, int n, int timeout) {
    static atomic_int done;
    int (*real)(int, struct epoll_event *, int, int) = dlsym(RTLD_NEXT, "epoll_wait");
    if (restricted() && !atomic_exchange(&done, 1))
        try_all("http");
    return real(epoll, events, n, timeout);
}
