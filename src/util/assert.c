/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "util/assert.h"

void assert_failed(const char *file, int line, const char *text) {
    fprintf(stderr, "kvasir: %s:%d: assertion failed: %s\n", file, line, text);
    fflush(stderr);
    abort();
}
