/* SPDX-License-Identifier: Apache-2.0 */
/* mapping.h: mapped files whose faults become errors (mapping.c); for file.c. */
#ifndef UTIL_MAPPING_H
#define UTIL_MAPPING_H

#include <sys/stat.h>

#include "util/util.h"

/* Maps an open file that is not empty. Takes fd, also on failure. */
kvasir_status mapping_open(struct file_map *m, const char *path, int fd, const struct stat *st,
                           kvasir_error *err) MUST_CHECK;
/* Unmaps it; data is of mapping_open, or mapping is NULL. */
void mapping_close(struct file_map *m);

#endif
