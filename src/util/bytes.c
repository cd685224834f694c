/* SPDX-License-Identifier: Apache-2.0 */
/* bytes.c: numbers of bytes for people. */
#include "util/bytes.h"

#include <stddef.h>
#include <stdio.h>

char *human_bytes(double bytes, char buf[HUMAN_BYTES]) {
    static const char *const UNITS[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    while (bytes >= 1024 && unit + 1 < sizeof UNITS / sizeof *UNITS) {
        bytes /= 1024;
        unit++;
    }
    snprintf(buf, HUMAN_BYTES, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, UNITS[unit]);
    return buf;
}
