/* SPDX-License-Identifier: Apache-2.0 */
/* cgroup.h: the folders whose files limit what this process may use. */
#ifndef KVASIR_UTIL_CGROUP_H
#define KVASIR_UTIL_CGROUP_H

/* Calls fn with the folder of the process's own control group and of each one above it, up to the
 * root (version 2; inside a container the mount point is the group). A folder may not exist. The
 * names begin with `root`, which is "" but in tests. */
typedef void cgroup_fn(void *ctx, const char *folder);
void cgroup_each(const char *root, cgroup_fn *fn, void *ctx);

#endif
