/* SPDX-License-Identifier: Apache-2.0 */
/* lab_simulate_random finds no violation, and everything that it is meant to try does happen. Each
 * program takes some milliseconds.
 *
 *     sim_simulate [--programs=N] [--seed=N]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/lab.h"
#include <kvasir.h>

int main(int argc, char **argv) {
    lab_simulate_random_options o = {.seed = 20261122, .programs = 600};
    lab_random_simulation s;
    kvasir_error err;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--programs=", 11) == 0)
            o.programs = (uint32_t)strtoul(argv[i] + 11, NULL, 10);
        else if (strncmp(argv[i], "--seed=", 7) == 0)
            o.seed = strtoull(argv[i] + 7, NULL, 10);
    }
    printf("%u programs from seed %llu\n", o.programs, (unsigned long long)o.seed);
    if (lab_simulate_random(&o, &s, &err)) {
        printf("FAILED: %s\n", err.text);
        return 1;
    }
    if (s.violation[0]) {
        printf("FAILED: %s\n", s.violation);
        return 1;
    }
    printf("%llu steps, %llu tokens seen in pages; %llu preemptions, %llu hits, %llu cancelled\n",
           (unsigned long long)s.steps, (unsigned long long)s.tokens_checked,
           (unsigned long long)s.preemptions, (unsigned long long)s.hits,
           (unsigned long long)s.cancelled);
    return o.programs >= 300 && !(s.finished && s.refused && s.cancelled && s.failed && s.hits &&
                                  s.preemptions && s.evicted_pages && s.forgets);
}
