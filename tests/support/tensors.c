/* SPDX-License-Identifier: Apache-2.0 */
#include "tensors.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool golden_open(struct golden_file *f, const char *path) {
    FILE *in = fopen(path, "rb");
    if (!in)
        return false;
    fseek(in, 0, SEEK_END);
    long size = ftell(in);
    rewind(in);
    f->bytes = malloc((size_t)size);
    if (fread(f->bytes, 1, (size_t)size, in) != (size_t)size)
        abort();
    fclose(in);
    uint64_t length;
    memcpy(&length, f->bytes, 8);
    f->header = json_loadb((const char *)f->bytes + 8, length, 0, NULL);
    if (!f->header)
        abort();
    f->data = f->bytes + 8 + length;
    return true;
}

void golden_close(struct golden_file *f) {
    json_decref(f->header);
    free(f->bytes);
}

struct golden golden_get(const struct golden_file *f, const char *name) {
    json_t *t = json_object_get(f->header, name);
    if (!t) {
        fprintf(stderr, "golden tensor %s is missing\n", name);
        abort();
    }
    json_t *offsets = json_object_get(t, "data_offsets"), *shape = json_object_get(t, "shape");
    struct golden g = {.data = f->data + json_integer_value(json_array_get(offsets, 0)), .n = 1};
    for (size_t i = 0; i < json_array_size(shape); i++) {
        g.shape[i] = (size_t)json_integer_value(json_array_get(shape, i));
        g.n *= g.shape[i];
    }
    return g;
}

bool path_exists(const char *path) {
    return access(path, R_OK) == 0;
}

void skip_without(const char *path) {
    if (path_exists(path))
        return;
    printf("SKIPPED: %s does not exist\n", path);
    exit(77);
}
