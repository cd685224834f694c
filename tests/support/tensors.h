/* SPDX-License-Identifier: Apache-2.0 */
/* Golden tensors: the smallest safetensors reader that tests need. It trusts its files. */
#ifndef KVASIR_TEST_TENSORS_H
#define KVASIR_TEST_TENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct golden_file {
    void *header; /* json_t */
    uint8_t *bytes;
    const uint8_t *data;
};
struct golden {
    const void *data; /* float or int32_t */
    size_t shape[4];
    size_t n; /* elements */
};

bool golden_open(struct golden_file *f, const char *path); /* false: no such file */
void golden_close(struct golden_file *f);
struct golden golden_get(const struct golden_file *f,
                         const char *name); /* ends the test if missing */

bool path_exists(const char *path);
/* Prints why and ends the process as skipped (exit 77) unless the path exists. */
void skip_without(const char *path);

#endif
