/* SPDX-License-Identifier: Apache-2.0 */
/* For one file of a test program: counts the system calls of all threads of the process. Not
 * counted are parking (futex, and sched_yield where threads share a core), the end of a signal and
 * of the process, and what the thread in cache/ahead.c gets memory with. */
#ifndef COUNT_CALLS_H
#define COUNT_CALLS_H

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

struct call_count {
    long calls, first; /* the number of the first one */
};
static struct call_count *call_count;

static void on_call(int signal_number, siginfo_t *info, void *context) {
    (void)signal_number;
    (void)context;
    if (call_count->calls++ == 0)
        call_count->first = info->si_syscall;
}

/* From now on, in *into, until the process ends. Returns 0 or why there is no filter. */
static int count_calls(struct call_count *into) {
    static struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 7, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_yield, 6, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_POPULATE_WRITE, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    call_count = into;
    const struct sock_fprog filter = {sizeof code / sizeof *code, code};
    struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO};
    sigaction(SIGSYS, &action, NULL);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) != 0)
        return errno ? errno : EINVAL;
    return 0;
}

#endif
