/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded into a server (LD_PRELOAD): opening config.json in a folder named "slow" takes $SLOW_MS
 * milliseconds, as a model on a slow disk does (models.py). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void wait_for(const char *path) {
    const char *ms = getenv("SLOW_MS");
    if (!ms || !strstr(path, "slow/config.json"))
        return;
    const long n = atol(ms);
    const struct timespec t = {n / 1000, n % 1000 * 1000000};
    nanosleep(&t, NULL);
}

#define DEFINE_OPEN(name)                                                                          \
    int name(const char *path, int flags, ...) {                                                   \
        int (*next)(const char *, int, ...) =                                                      \
            (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name);                              \
        va_list args;                                                                              \
        va_start(args, flags);                                                                     \
        const int mode = flags & O_CREAT ? va_arg(args, int) : 0;                                  \
        va_end(args);                                                                              \
        wait_for(path);                                                                            \
        return next(path, flags, mode);                                                            \
    }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)
