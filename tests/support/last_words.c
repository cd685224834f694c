/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* program_invocation_name */
#include "last_words.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Bad addresses are left to the address sanitizer, which prints more about them than a signal
 * handler. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#include <sanitizer/common_interface_defs.h>
/* The sanitizer of undefined behaviour has a death callback of its own that cannot be reached; but
 * if it ends by abort(), that is a signal. */
__attribute__((visibility("default"))) const char *__ubsan_default_options(void);
const char *__ubsan_default_options(void) {
    return "abort_on_error=1";
}
static const int SIGNALS[] = {SIGABRT};
#else
static const int SIGNALS[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
#endif

static const char *volatile words;
static char *const *volatile then;

/* How this program was started, up to its own name. If a dynamic linker was called with it
 * (tools/device-soak.sh), it is the linker that must be started again. */
static char command[4096];
enum { ARGUMENTS_MAX = 32 };
static char *anew[ARGUMENTS_MAX + 1];
static int n_command;

static void note_command(void) {
    const int file = open("/proc/self/cmdline", O_RDONLY);
    const ssize_t n = file < 0 ? 0 : read(file, command, sizeof command - 1);
    for (char *at = command; n > 0 && at < command + n && n_command < ARGUMENTS_MAX / 2;) {
        anew[n_command++] = at;
        if (strcmp(at, program_invocation_name) == 0)
            break;
        at += strlen(at) + 1;
    }
    if (file >= 0)
        close(file);
    if (n_command == 0)
        anew[n_command++] = program_invocation_name;
}

void begin_anew(char *const *arguments) {
    int n = n_command;
    for (; *arguments && n < ARGUMENTS_MAX; arguments++)
        anew[n++] = *arguments;
    anew[n] = NULL;
    (void)execv("/proc/self/exe", anew);
    _exit(1);
}

/* Calls only what a signal handler may call; runs on any thread. */
static void speak(void) {
    const char *text = words;
    if (!text)
        return;
    words = NULL;
    (void)!write(STDOUT_FILENO, text, strlen(text));
    if (then)
        begin_anew(then);
}

static void on_signal(int signal) {
    speak();
    (void)raise(signal); /* its default action, by SA_RESETHAND */
}

static void catch_signals(void) {
    /* Not blocked: the program that is started again would have the signal blocked, too. */
    const struct sigaction action = {.sa_handler = on_signal,
                                     .sa_flags = (int)(SA_RESETHAND | SA_NODEFER)};
    note_command();
    (void)setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    for (size_t i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++)
        (void)sigaction(SIGNALS[i], &action, NULL);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    __sanitizer_set_death_callback(speak);
#endif
}

void last_words(const char *text, char *const *next) {
    static bool listens;
    if (!listens)
        catch_signals();
    listens = true;
    then = next;
    words = text;
}

/* Without a child nothing is known about the program, so nothing may be concluded. */
_Noreturn static void no_answer(const char *call) {
    printf("FAILED: %s: %s: the program above cannot be made smaller\n", call, strerror(errno));
    exit(1);
}

bool fails_in_a_child(void (*run)(void *user), void *user) {
    fflush(stdout);
    const pid_t child = fork();
    if (child < 0)
        no_answer("fork");
    if (child == 0) {
        last_words(NULL, NULL);
        (void)dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
        run(user);
        _exit(0);
    }
    int status = 0;
    while (waitpid(child, &status, 0) != child)
        if (errno != EINTR)
            no_answer("waitpid");
    return status != 0;
}
