/* SPDX-License-Identifier: Apache-2.0 */
/* support.c: what every check of opcheck stands on: families, cases, device buffers. One thread,
 * one case at a time, state in statics.
 *
 * A device buffer is an allocation of its own, so that compute-sanitizer sees reads behind it too:
 *
 *     | 256 canaries | the bytes asked for, 0xff | canaries: at least 256, to a multiple of 256 |
 *
 * Canaries are read back when the case ends, which is when the next one or the family does. The
 * bytes in the middle are NaN as floats, so an output that was left out shows.
 *
 * An error of the device sticks (cuda.h): nothing that runs after it means anything, so the family
 * that meets one is reported and the run ends.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opcheck.h"

static uint64_t run_seed;

/* ---- families -------------------------------------------------------------------------------- */

enum { FAILURES_SHOWN = 4 };
static struct {
    char line[112];
    char shown[FAILURES_SHOWN][560]; /* the first failures */
    unsigned long checks, failures;
    double worst; /* largest error as a fraction of its bound */
} family;
static char case_text[128];
static const char *filter = "";
static int checked_families, failed_families;

bool filter_keeps(const char *line) {
    return strstr(line, filter) != NULL;
}
void set_filter(const char *text) {
    filter = text;
}

void set_seed(uint64_t seed) {
    run_seed = seed;
}

void give_up(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fputs("opcheck: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

bool family_begin(const char *operation, const char *format, ...) {
    char text[64];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memset(&family, 0, sizeof family);
    snprintf(family.line, sizeof family.line, "%-10s %-32s", operation, text);
    /* data of its own for each family, so that one can be repeated by --filter */
    random_start(run_seed, family.line);
    case_text[0] = 0;
    return filter_keeps(family.line);
}

static void case_finish(void);

void family_end(void) {
    kvasir_error err = {0};
    case_finish();
    bool lost = cuda_status(device, &err) != KVASIR_OK;
    check_that(!lost, "the device: %s", err.text);
    printf("%s %9lu checks  worst %.3f of bound  %s\n", family.line, family.checks, family.worst,
           family.failures ? "FAILED" : "ok");
    for (unsigned long i = 0; i < family.failures && i < FAILURES_SHOWN; i++)
        printf("      %s\n", family.shown[i]);
    if (family.failures > FAILURES_SHOWN)
        printf("      ... %lu failures\n", family.failures);
    fflush(stdout);
    checked_families++;
    failed_families += family.failures > 0;
    if (lost)
        give_up("an error of the device: nothing after it can be checked (seed %llu)",
                (unsigned long long)run_seed);
}

int families_checked(void) {
    return checked_families;
}

int families_failed(void) {
    return failed_families;
}

static void failure(const char *text) {
    if (family.failures < FAILURES_SHOWN)
        snprintf(family.shown[family.failures], sizeof family.shown[0], "%s: %s", case_text, text);
    family.failures++;
}

void check_near(const char *what, size_t i, size_t j, double got, double want, double bound) {
    char text[128];
    double error = fabs(got - want);
    family.checks++;
    if (isfinite(want) && bound > 0 && error / bound > family.worst)
        family.worst = error / bound;
    if (isfinite(want) ? error <= bound : !isfinite(got))
        return;
    snprintf(text, sizeof text, "%s[%zu][%zu] is %.9g, should be %.9g +- %.3g", what, i, j, got,
             want, bound);
    failure(text);
}

void check_that(bool holds, const char *format, ...) {
    char text[400];
    family.checks++;
    if (holds)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    failure(text);
}

/* ---- buffers --------------------------------------------------------------------------------- */

enum { BUFFERS_MAX = 256, PLAIN_MAX = 4096, CANARY = 0xa5, CANARY_BYTES = 256 };

static struct buffer {
    uint8_t *base; /* device; canaries first */
    size_t bytes;  /* between the canaries */
} buffers[BUFFERS_MAX];
static size_t buffer_count;

static void *plain_blocks[PLAIN_MAX];
static size_t plain_count;

static size_t back_bytes(size_t bytes) {
    return round_up(bytes, CANARY_BYTES) - bytes + CANARY_BYTES;
}

static size_t touched(const uint8_t *p, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += p[i] != CANARY;
    return count;
}

/* False: the device has an error, which family_end reports. */
static bool look_at_canaries(const struct buffer *b) {
    uint8_t front[CANARY_BYTES], back[2 * CANARY_BYTES];
    size_t behind = back_bytes(b->bytes);
    if (cuda_read(device, front, b->base, sizeof front, NULL) != KVASIR_OK ||
        cuda_read(device, back, b->base + CANARY_BYTES + b->bytes, behind, NULL) != KVASIR_OK)
        return false;
    size_t n = touched(front, sizeof front);
    check_that(n == 0, "wrote %zu bytes before a buffer of %zu", n, b->bytes);
    n = touched(back, behind);
    check_that(n == 0, "wrote %zu bytes behind a buffer of %zu", n, b->bytes);
    return true;
}

static void case_finish(void) {
    bool works = true;
    for (size_t i = 0; works && i < buffer_count; i++)
        works = look_at_canaries(&buffers[i]);
    while (buffer_count > 0)
        cuda_free(device, buffers[--buffer_count].base);
    while (plain_count > 0)
        mem_free(plain_blocks[--plain_count]);
}

void case_begin(const char *format, ...) {
    case_finish(); /* its failures go under its own text */
    va_list args;
    va_start(args, format);
    vsnprintf(case_text, sizeof case_text, format, args);
    va_end(args);
}

/* host: NULL, or `bytes` bytes that fill the buffer. */
static void *buffer_new(const void *host, size_t bytes) {
    size_t total = CANARY_BYTES + bytes + back_bytes(bytes);
    if (buffer_count == BUFFERS_MAX)
        give_up("a case takes more than %d device buffers", BUFFERS_MAX);
    uint8_t *image = mem_alloc(total), *base = cuda_alloc(device, total);
    if (!image || !base)
        give_up("no memory for a device buffer of %zu bytes", bytes);
    memset(image, CANARY, total);
    if (host && bytes > 0)
        memcpy(image + CANARY_BYTES, host, bytes);
    else
        memset(image + CANARY_BYTES, 0xff, bytes);
    cuda_upload(device, base, image, total);
    mem_free(image);
    buffers[buffer_count++] = (struct buffer){base, bytes};
    return base + CANARY_BYTES;
}

void *device_buffer(size_t bytes) {
    return buffer_new(NULL, bytes);
}

void *device_copy(const void *host, size_t bytes) {
    return buffer_new(host, bytes);
}

void *plain(size_t bytes) {
    void *p = plain_count < PLAIN_MAX ? mem_calloc(1, bytes + 64) : NULL;
    if (!p)
        give_up("no plain buffer of %zu bytes", bytes);
    return plain_blocks[plain_count++] = p;
}

void *from_device(const void *from, size_t bytes) {
    kvasir_error err = {0};
    void *p = plain(bytes);
    if (cuda_read(device, p, from, bytes, &err) != KVASIR_OK)
        check_that(false, "reading %zu bytes back: %s", bytes, err.text);
    return p;
}
