/* SPDX-License-Identifier: Apache-2.0 */
/* Time for bounds that hold on a busy machine. */
#ifndef KVASIR_TEST_CPU_TIME_H
#define KVASIR_TEST_CPU_TIME_H

#include <time.h>

/* Processor time: the machine may be busy with other things. */
static inline double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
