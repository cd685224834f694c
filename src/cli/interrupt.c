/* SPDX-License-Identifier: Apache-2.0 */
/* interrupt.c: Ctrl-C asks a command to end cleanly, a second one kills the program.
 *
 * The handler only sets a flag, which commands check between steps, and is removed by its first
 * call. A command that continues after it (chat) installs it again. If the parent had SIGINT
 * ignored (nohup, a script's background job), it stays ignored.
 */
#include "cli.h"

#include <signal.h>
#include <time.h>

static volatile sig_atomic_t came;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    came = 1;
}

bool signal_is_ignored(int number) {
    struct sigaction old;
    return sigaction(number, NULL, &old) != 0 || old.sa_handler == SIG_IGN;
}

void catch_interrupt(void) {
    struct sigaction new = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&new.sa_mask);
    came = 0;
    if (!signal_is_ignored(SIGINT))
        sigaction(SIGINT, &new, NULL);
}

bool interrupted(void) {
    return came != 0;
}

bool interrupt_waits(void) {
    sigset_t waiting;
    return sigpending(&waiting) == 0 &&
           (sigismember(&waiting, SIGINT) == 1 || sigismember(&waiting, SIGTERM) == 1);
}

void wait_change(pthread_cond_t *changed, pthread_mutex_t *lock) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += 100000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_cond_timedwait(changed, lock, &t);
}

void hold_interrupt(bool hold) {
    sigset_t interrupt;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    pthread_sigmask(hold ? SIG_BLOCK : SIG_UNBLOCK, &interrupt, NULL);
}
