/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by all targets. The files of a target are in memory (/dev/shm) if possible. */
#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"

void fuzz_fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("fuzz: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

void check_error(kvasir_status status, const kvasir_error *err) {
    if (status == KVASIR_OK)
        return;
    if (!err->text[0] || err->code != status)
        fuzz_fail("status %d without a text", (int)status);
    if (strchr(err->text, '\n'))
        fuzz_fail("an error of more than one line: %s", err->text);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Defined in every program that links a sanitizer's allocator. */
int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void *, size_t),
                                              void (*free_hook)(const volatile void *))
    __attribute__((weak));
size_t __sanitizer_get_allocated_size(const volatile void *p) __attribute__((weak));

static bool counting;
static size_t live, peak, limit;

static void on_malloc(const volatile void *p, size_t size) {
    (void)p;
    if (!counting)
        return;
    live += size;
    peak = live > peak ? live : peak;
}

static void on_free(const volatile void *p) {
    if (!counting || !p)
        return;
    size_t size = __sanitizer_get_allocated_size(p);
    live -= size < live ? size : live;
}

void budget_begin(size_t bytes) {
    static bool installed;
    if (!__sanitizer_install_malloc_and_free_hooks || !__sanitizer_get_allocated_size)
        return;
    if (!installed)
        __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
    installed = true;
    live = peak = 0;
    limit = bytes;
    counting = true;
}

void budget_end(void) {
    counting = false;
    if (peak > limit)
        fuzz_fail("%zu bytes were live at once, the limit is %zu", peak, limit);
}

/* ---- files ----------------------------------------------------------------------------------- */

static char folder[64];

static void remove_folder(void) {
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (e->d_name[0] != '.')
            unlink(fuzz_path(e->d_name));
    if (dir)
        closedir(dir);
    rmdir(folder);
}

const char *fuzz_path(const char *name) {
    static char path[sizeof folder + 300];
    if (!folder[0]) {
        snprintf(folder, sizeof folder, "%s/kvasir-fuzz-XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        if (!mkdtemp(folder))
            fuzz_fail("cannot make %s", folder);
        atexit(remove_folder);
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

const char *fuzz_write(const char *name, const uint8_t *data, size_t size) {
    const char *path = fuzz_path(name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0)
        fuzz_fail("cannot write %s", path);
    return path;
}
