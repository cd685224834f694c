/* SPDX-License-Identifier: Apache-2.0 */
/* support.c: the basis of every check of opcheck: devices, families, cases, device buffers. One
 * thread, one case at a time, state in statics.
 *
 * A device buffer is an allocation of its own, so that compute-sanitizer sees reads after it too:
 *
 *     | 256 canaries | the requested bytes, 0xff | canaries: at least 256, to a multiple of 256 |
 *
 * Canaries are read back when the case ends: when the next one begins or the family ends. The
 * bytes in the middle are NaN as floats, so an output that was left out shows.
 *
 * An error of the device sticks (backend.h): nothing that runs after it means anything, so the
 * family that meets one is reported and the run ends.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "opcheck.h"
#ifdef KVASIR_CUDA
#include "backend/cuda/cuda.h"
#endif

struct backend *device, *reference;
const struct device_choice *choice;

static uint64_t run_seed;

/* ---- families -------------------------------------------------------------------------------- */

enum { FAILURES_SHOWN = 4 };
static struct {
    char line[128];
    char shown[FAILURES_SHOWN][560]; /* the first failures */
    unsigned long checks, failures;
    double worst; /* largest error as a fraction of its bound */
} family;
static char case_text[128];
static const char *filter = "";
static unsigned part, parts = 1, kept_families;
static int checked_families, failed_families;

bool filter_keeps(const char *line) {
    return strstr(line, filter) != NULL;
}
void set_filter(const char *text) {
    filter = text;
}
void set_part(unsigned i, unsigned n) {
    part = i;
    parts = n;
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
    /* data of its own for each family, so that one can be repeated by --filter; the same for all
     * devices */
    random_start(run_seed, family.line);
    snprintf(family.line, sizeof family.line, "%-10s %-10s %-32s", choice->name, operation, text);
    case_text[0] = 0;
    return filter_keeps(family.line) && kept_families++ % parts == part;
}

static void case_finish(void);

void family_end(void) {
    kvasir_error err = {0};
    case_finish();
    bool lost = backend_flush(device, &err) != KVASIR_OK;
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

unsigned families_kept(void) {
    return kept_families;
}
int families_checked(void) {
    return checked_families;
}

int families_failed(void) {
    return failed_families;
}

void must(kvasir_status status, const kvasir_error *err, const char *what) {
    if (status != KVASIR_OK)
        give_up("%s: %s", what, err->text);
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

void check_rows_near(const char *what, const float *got, const float *want, size_t rows, size_t dim,
                     double tolerance) {
    double most = 0;
    for (size_t i = 0; i < rows * dim; i++)
        if (isfinite(want[i]) && fabs((double)want[i]) > most)
            most = fabs((double)want[i]);
    for (size_t i = 0; i < rows; i++, got += dim, want += dim) {
        if (tolerance == 0)
            check_that(memcmp(got, want, dim * sizeof *got) == 0, "%s: other bits in row %zu", what,
                       i);
        else
            for (size_t j = 0; j < dim; j++)
                check_near(what, i, j, (double)got[j], (double)want[j], tolerance * most + 1e-30);
    }
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
    size_t after = back_bytes(b->bytes);
    if (backend_read(device, front, b->base, sizeof front, NULL) != KVASIR_OK ||
        backend_read(device, back, b->base + CANARY_BYTES + b->bytes, after, NULL) != KVASIR_OK)
        return false;
    size_t n = touched(front, sizeof front);
    check_that(n == 0, "wrote %zu bytes before a buffer of %zu", n, b->bytes);
    n = touched(back, after);
    check_that(n == 0, "wrote %zu bytes after a buffer of %zu", n, b->bytes);
    return true;
}

static void buffers_finish(void) {
    bool works = true;
    for (size_t i = 0; works && i < buffer_count; i++)
        works = look_at_canaries(&buffers[i]);
    while (buffer_count > 0)
        backend_free(device, buffers[--buffer_count].base);
}

static void case_finish(void) {
    buffers_finish();
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
    uint8_t *image = mem_alloc(total), *base = backend_alloc(device, total);
    if (!image || !base)
        give_up("no memory for a device buffer of %zu bytes", bytes);
    memset(image, CANARY, total);
    if (host && bytes > 0)
        memcpy(image + CANARY_BYTES, host, bytes);
    else
        memset(image + CANARY_BYTES, 0xff, bytes);
    backend_write(device, base, image, total);
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

float *plain_floats(size_t n) {
    float *x = plain(n * sizeof *x);
    fill(x, n, FILL_NORMAL);
    return x;
}

void *from_device(const void *from, size_t bytes) {
    kvasir_error err = {0};
    void *p = plain(bytes);
    if (backend_read(device, p, from, bytes, &err) != KVASIR_OK)
        check_that(false, "reading %zu bytes back: %s", bytes, err.text);
    return p;
}

/* ---- devices --------------------------------------------------------------------------------- */

static void cpu_create(struct backend **out, enum cpu_tier tier, int threads, int act_bits) {
    kvasir_error err = {0};
    const struct backend_cpu_options o = {.threads = threads, .tier = tier, .act_bits = act_bits};
    must(backend_cpu_create(out, &o, &err), &err, "backend_cpu_create");
}

static void device_create(int act_bits) {
#ifdef KVASIR_CUDA
    if (choice->cuda) {
        kvasir_error err = {0};
        const struct backend_cuda_options o = {.act_bits = act_bits};
        must(backend_cuda_create(&device, &o, &err), &err, "backend_cuda_create");
        return;
    }
#endif
    cpu_create(&device, choice->tier, choice->threads, act_bits);
}

void device_end(void) {
    buffers_finish();
    backend_destroy(device);
    backend_destroy(reference);
    device = reference = NULL;
}

void device_begin(const struct backend_limits *limits, int act_bits) {
    device_begin_beside(limits, act_bits, act_bits);
}

void device_begin_beside(const struct backend_limits *limits, int act_bits, int reference_bits) {
    kvasir_error err = {0};
    device_end();
    device_create(act_bits);
    cpu_create(&reference, CPU_TIER_REF, 1, reference_bits);
    must(backend_reserve(device, limits, &err), &err, "reserve");
    must(backend_reserve(reference, limits, &err), &err, "reserve of the reference");
}

bool by_f16(const struct weight *w, int act_bits) {
    const bool four_bits = w->type == WEIGHT_Q4_0 || w->type == WEIGHT_Q4_1 ||
                           (w->type == WEIGHT_AFFINE4 && w->scalar != SCALAR_F32);
    return choice->halves_near > 0 && act_bits == 8 && four_bits;
}

void device_must_work(void) {
    kvasir_error err = {0};
    must(backend_flush(device, &err), &err, "the device");
}

void device_choose(const struct device_choice *c) {
    struct backend_info info;
    const char *absent;
    device_end();
    choice = c;
    device_create(8);
    backend_info(device, &info);
    printf("device %s: %s\n", c->name, info.name);
    for (uint32_t i = 0; (absent = backend_absent(device, i)); i++)
        printf("%s%s", i ? " " : "absent: ", absent);
    if (backend_absent(device, 0))
        printf("\n");
    fflush(stdout);
}
