/* SPDX-License-Identifier: Apache-2.0 */
/* For one file of a test program: small random numbers from a state that a test may set, and the
 * arguments --programs=N and --seed=N of programs that try random ones. */
#ifndef RANDOM_PROGRAMS_H
#define RANDOM_PROGRAMS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static uint64_t random_state = 1;

static inline uint32_t random_below(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

/* Leaves unchanged what no argument names. */
static inline void random_arguments(int argc, char **argv, unsigned long *programs,
                                    uint64_t *seed) {
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--programs=", 11) == 0)
            *programs = strtoul(argv[i] + 11, NULL, 10);
        else if (strncmp(argv[i], "--seed=", 7) == 0)
            *seed = strtoull(argv[i] + 7, NULL, 10);
    }
}

#endif
