/* SPDX-License-Identifier: Apache-2.0 */
/* cgroup.c: finds the process's control groups of version 2. Each of them may set a limit, and the
 * tightest one holds; what the limits are is the caller's. A group of version 1 has a folder for
 * each controller: callers try its mount point by themselves. */
#include "util/cgroup.h"

#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

/* The process's own path in the hierarchy ("0::/a/b" in /proc/self/cgroup); "" at its root. */
static void own_group(const char *root, char path[PATH_BYTES]) {
    char line[PATH_BYTES];
    snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
    path[0] = 0;
    FILE *f = fopen(line, "re");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "0::/", 4) != 0)
            continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(path, PATH_BYTES, "%s", strcmp(line + 3, "/") == 0 ? "" : line + 3);
    }
    if (f)
        fclose(f);
}

void cgroup_each(const char *root, cgroup_fn *fn, void *ctx) {
    char own[PATH_BYTES], folder[2 * PATH_BYTES];
    own_group(root, own);
    for (;;) {
        snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s", root, own);
        fn(ctx, folder);
        char *slash = strrchr(own, '/');
        if (!slash)
            return;
        *slash = 0;
    }
}
