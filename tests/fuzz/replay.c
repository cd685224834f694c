/* SPDX-License-Identifier: Apache-2.0 */
/* main of a target without libFuzzer: runs it on every file of the folders and files named, in
 * order of their names, and prints how many there were. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

enum { INPUT_MAX = 1 << 24 };

static size_t replayed;

static void replay_file(const char *path) {
    char *data;
    size_t size;
    kvasir_error err;
    if (file_read_all(path, INPUT_MAX, &data, &size, &err) != KVASIR_OK)
        fuzz_fail("%s", err.text);
    /* exactly `size` bytes, so that a sanitizer notices a read past them */
    uint8_t *exact = malloc(size ? size : 1);
    memcpy(exact, data, size);
    mem_free(data);
    fprintf(stderr, "%s\n", path);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    replayed++;
}

static void replay(const char *path) {
    struct dirent **entries;
    int n = scandir(path, &entries, NULL, alphasort);
    if (n < 0) {
        replay_file(path);
        return;
    }
    for (int i = 0; i < n; i++) {
        char file[4096];
        snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.')
            replay_file(file);
        free(entries[i]);
    }
    free(entries);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        replay(argv[i]);
    printf("%zu inputs replayed\n", replayed);
    return replayed == 0;
}
