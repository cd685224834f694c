/* SPDX-License-Identifier: Apache-2.0 */
/* support.c: the basis of every check of kcheck. One thread, one case at a time, state in statics.
 *
 * A guarded buffer:
 *
 *     | PROT_NONE page | 0xa5 0xa5 ... canaries | the requested bytes | PROT_NONE page |
 *
 * Mappings are kept and used again by size, since making one costs more than most cases.
 */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kcheck.h"

static uint64_t run_seed;

/* ---- families -------------------------------------------------------------------------------- */

static struct {
    char line[96];
    char first[272]; /* what failed first */
    unsigned long checks, failures;
    uint64_t hash;               /* of all that the kernel wrote */
    double worst, worst_meaning; /* largest error as a fraction of its bound: K1, K2 */
} family;
static char case_text[128];
static const char *filter = "";
static int checked_families, failed_families;

void set_filter(const char *text) {
    filter = text;
}

void set_seed(uint64_t seed) {
    run_seed = seed;
}

bool family_begin(const struct tier *t, const char *kernel, const char *format) {
    memset(&family, 0, sizeof family);
    snprintf(family.line, sizeof family.line, "%-5s %-13s %-14s", t->name, kernel, format);
    /* data of its own for each family, so that one can be repeated by --filter */
    random_start(run_seed, family.line);
    return strstr(family.line, filter) != NULL;
}

static bool print_hashes;

void set_print_hashes(void) {
    print_hashes = true;
}

void family_end(void) {
    if (print_hashes && !family.failures) {
        printf("%s %016llx\n", family.line, (unsigned long long)family.hash);
        checked_families++;
        return;
    }
    printf("%s %8lu checks  worst %.3f of bound, meaning %.3f  %s\n", family.line, family.checks,
           family.worst, family.worst_meaning, family.failures ? "FAILED" : "ok");
    if (family.failures) {
        printf("      %lu failures, first: %s\n", family.failures, family.first);
        failed_families++;
    }
    fflush(stdout);
    checked_families++;
}

int families_checked(void) {
    return checked_families;
}

int families_failed(void) {
    return failed_families;
}

static void failure(const char *text) {
    if (family.failures++ == 0)
        snprintf(family.first, sizeof family.first, "%s: %s", case_text, text);
}

static void compare(double *worst, const char *what, size_t i, size_t j, double got, double want,
                    double bound) {
    char text[128];
    double error = fabs(got - want);
    family.checks++;
    if (isfinite(want) && bound > 0 && error / bound > *worst)
        *worst = error / bound;
    if (isfinite(want) ? error <= bound : !isfinite(got))
        return;
    snprintf(text, sizeof text, "%s[%zu][%zu] is %.9g, should be %.9g +- %.3g", what, i, j, got,
             want, bound);
    failure(text);
}

void check_near(const char *what, size_t i, size_t j, double got, double want, double bound) {
    compare(&family.worst, what, i, j, got, want, bound);
}

void check_meaning(const char *what, size_t i, size_t j, double got, double want, double bound) {
    compare(&family.worst_meaning, what, i, j, got, want, bound);
}

void check_that(bool holds, const char *format, ...) {
    char text[128];
    family.checks++;
    if (holds)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    failure(text);
}

/* ---- hashes of what kernels write ------------------------------------------------------------ */

/* Not inlined: gcc would warn that sigsetjmp may clobber what a loop in call_... counts. */

__attribute__((noinline)) static void hash_bytes(const void *p, size_t bytes) {
    const uint8_t *at = p;
    uint64_t h = family.hash, word;
    if (!print_hashes)
        return;
    for (; bytes > 0; bytes -= bytes < 8 ? bytes : 8, at += 8) {
        word = 0;
        memcpy(&word, at, bytes < 8 ? bytes : 8);
        h = mix_bits(h ^ word);
    }
    family.hash = h;
}

/* Rows [rows][n] of floats. All NaNs count as the same: which operand's bits a NaN takes over is up
 * to the compiler, which may exchange the operands of a product. */
__attribute__((noinline)) static void hash_rows(const float *p, size_t rows, size_t n,
                                                size_t stride) {
    for (size_t row = 0; print_hashes && row < rows; row++)
        for (size_t i = 0; i < n; i++) {
            float x = p[row * stride + i];
            uint32_t bits = 0x7fc00000;
            if (!isnan(x))
                memcpy(&bits, &x, sizeof bits);
            family.hash = mix_bits(family.hash ^ bits);
        }
}

static void hash_floats(const float *p, size_t n) {
    hash_rows(p, 1, n, 0);
}

/* ---- buffers --------------------------------------------------------------------------------- */

enum { PAGE = 4096, BUFFERS_MAX = 64, PLAIN_MAX = 2048, CANARY = 0xa5 };

static struct buffer {
    uint8_t *map; /* NULL: free slot */
    size_t pages; /* between the guard pages */
    size_t bytes;
    bool in_use, frozen;
} buffers[BUFFERS_MAX];

static void *plain_blocks[PLAIN_MAX];
static size_t plain_count;

static struct buffer *buffer_map(struct buffer *b, size_t pages) {
    size_t total = (pages + 2) * PAGE;
    if (b->map)
        munmap(b->map, (b->pages + 2) * PAGE);
    b->map = mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->map == MAP_FAILED ||
        (pages > 0 && mprotect(b->map + PAGE, pages * PAGE, PROT_READ | PROT_WRITE) != 0)) {
        fprintf(stderr, "kcheck: no memory for a buffer of %zu pages\n", pages);
        exit(1);
    }
    b->pages = pages;
    b->frozen = false;
    return b;
}

static struct buffer *buffer_take(size_t pages) {
    struct buffer *spare = NULL;
    for (size_t i = 0; i < BUFFERS_MAX; i++) {
        struct buffer *b = &buffers[i];
        if (b->in_use)
            continue;
        if (b->map && b->pages == pages)
            return b;
        if (!spare || (spare->map && !b->map))
            spare = b;
    }
    if (!spare) {
        fprintf(stderr, "kcheck: a case takes more than %d buffers\n", BUFFERS_MAX);
        exit(1);
    }
    return buffer_map(spare, pages);
}

static uint8_t *buffer_data(const struct buffer *b) {
    return b->map + PAGE + b->pages * PAGE - b->bytes;
}

void *guarded(size_t bytes) {
    struct buffer *b = buffer_take((bytes + PAGE - 1) / PAGE);
    if (b->frozen)
        mprotect(b->map + PAGE, b->pages * PAGE, PROT_READ | PROT_WRITE);
    b->frozen = false;
    b->in_use = true;
    b->bytes = bytes;
    memset(b->map + PAGE, CANARY, b->pages * PAGE - bytes);
    memset(buffer_data(b), 0xff, bytes);
    return buffer_data(b);
}

void freeze(void *p) {
    for (size_t i = 0; i < BUFFERS_MAX; i++)
        if (buffers[i].in_use && buffer_data(&buffers[i]) == p && buffers[i].pages > 0) {
            mprotect(buffers[i].map + PAGE, buffers[i].pages * PAGE, PROT_READ);
            buffers[i].frozen = true;
        }
}

void *guarded_copy(const void *from, size_t bytes) {
    void *p = guarded(bytes);
    memcpy(p, from, bytes);
    freeze(p);
    return p;
}

void *plain(size_t bytes) {
    void *p = plain_count < PLAIN_MAX ? calloc(1, bytes + 64) : NULL;
    if (!p) {
        fprintf(stderr, "kcheck: no plain buffer of %zu bytes\n", bytes);
        exit(1);
    }
    return plain_blocks[plain_count++] = p;
}

void case_begin(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(case_text, sizeof case_text, format, args);
    va_end(args);
    for (size_t i = 0; i < BUFFERS_MAX; i++)
        buffers[i].in_use = false;
    while (plain_count > 0)
        free(plain_blocks[--plain_count]);
}

void case_end(void) {
    for (size_t i = 0; i < BUFFERS_MAX; i++) {
        const struct buffer *b = &buffers[i];
        if (!b->in_use)
            continue;
        const uint8_t *at = b->map + PAGE, *end = buffer_data(b);
        if (at < end && *at == CANARY && memcmp(at, at + 1, (size_t)(end - at) - 1) == 0)
            at = end; /* all are the first one */
        while (at < end && *at == CANARY)
            at++;
        check_that(at == end, "wrote %zu bytes before a buffer of %zu", (size_t)(end - at),
                   b->bytes);
    }
}

bool gaps_untouched(const float *y, uint32_t rows, size_t used, size_t stride) {
    for (uint32_t row = 0; row + 1 < rows; row++)
        for (size_t i = used; i < stride; i++) {
            uint32_t u;
            memcpy(&u, &y[row * stride + i], sizeof u);
            if (u != UINT32_MAX)
                return false;
        }
    return true;
}

/* ---- random data ----------------------------------------------------------------------------- */

void random_order(uint32_t *order, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = random_below(i + 1);
        order[i] = order[j];
        order[j] = i;
    }
}

/* ---- signals --------------------------------------------------------------------------------- */

static sigjmp_buf back;
static volatile sig_atomic_t inside;

static void on_signal(int number) {
    if (inside)
        siglongjmp(back, number);
    signal(number, SIG_DFL);
    raise(number);
}

void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    static const int NUMBERS[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++)
        sigaction(NUMBERS[i], &action, NULL);
}

/* Each kernel is called in a function of its own, so that no local of a check lives across
 * sigsetjmp. */
#define CATCHING(call)                                                                             \
    do {                                                                                           \
        int number = sigsetjmp(back, 1);                                                           \
        if (number == 0) {                                                                         \
            inside = 1;                                                                            \
            call;                                                                                  \
        }                                                                                          \
        inside = 0;                                                                                \
        if (number != 0)                                                                           \
            check_that(false, "signal %d (%s)", number, strsignal(number));                        \
    } while (0)

void call_query_pack(query_pack_fn *fn, const float *q, size_t q_stride, float q_scale,
                     struct query_rows *out) {
    CATCHING(fn(q, q_stride, q_scale, out));
    size_t n = (size_t)out->rows * out->dim;
    hash_floats(out->f32, n);
    hash_bytes(out->codes, n * sizeof *out->codes);
    hash_bytes(out->sum32, (size_t)out->rows * (out->dim / 32) * sizeof *out->sum32);
    hash_floats(out->scale, out->rows);
}
void call_score(score_tile_fn *fn, const struct tile_layout *l, const void *tile,
                const struct query_rows *q, float *scores, size_t stride) {
    CATCHING(fn(l, tile, q, scores, stride));
    hash_rows(scores, q->rows, TILE_TOKENS, stride);
}
void call_softmax(softmax_run_fn *fn, float *p, uint32_t n, float *max_out, float *sum_out) {
    CATCHING(fn(p, n, max_out, sum_out));
    hash_floats(p, n);
    hash_floats(max_out, 1);
    hash_floats(sum_out, 1);
}
void call_centre(centre_tile_fn *fn, const float *waves, const uint32_t *index, uint32_t pairs,
                 const float *ab, uint32_t rows, float *scores, size_t stride) {
    CATCHING(fn(waves, index, pairs, ab, rows, scores, stride));
    hash_rows(scores, rows, TILE_TOKENS, stride);
}
void call_value(value_tile_fn *fn, const struct tile_layout *l, const void *tile, const float *p,
                size_t p_stride, uint32_t rows, float *out, size_t out_stride) {
    CATCHING(fn(l, tile, p, p_stride, rows, out, out_stride));
    hash_rows(out, rows, l->head_dim, out_stride);
}
void call_encode(encode_row_fn *fn, const struct tile_layout *l, void *tile, uint32_t token,
                 const float *x) {
    CATCHING(fn(l, tile, token, x));
    hash_bytes(tile, l->bytes);
}
void call_encode_tile(encode_tile_fn *fn, const struct tile_layout *l, void *tile,
                      const struct tile_layout *from, const void *shadow) {
    CATCHING(fn(l, tile, from, shadow));
    hash_bytes(tile, l->bytes);
}
void call_basis(basis_rows_fn *fn, const float *matrix, uint32_t dim, const float *x,
                size_t x_stride, uint32_t rows, float *y) {
    CATCHING(fn(matrix, dim, x, x_stride, rows, y));
    hash_rows(y, rows, dim, dim);
}
void call_hadamard(hadamard_rows_fn *fn, float *x, uint32_t dim, uint32_t rows) {
    CATCHING(fn(x, dim, rows));
    hash_floats(x, (size_t)rows * dim);
}
void call_act_pack(act_pack_fn *fn, struct act_rows *a, uint32_t row) {
    CATCHING(fn(a, row));
    size_t k = a->k, at = row * k;
    hash_bytes((const uint8_t *)a->codes + at * (size_t)a->bits / 8, k * (size_t)a->bits / 8);
    hash_floats(a->scale + at / 32, k / 32);
    hash_floats(a->sum + at / 32, k / 32);
    hash_floats(a->sum16 + at / 16, k / 16);
    if (a->rest)
        hash_floats(a->rest + at, k);
}
void call_product(product_fn *fn, const struct weight *w, uint32_t n0, uint32_t n1,
                  const struct act_rows *a, float *y, size_t y_stride, void *scratch) {
    CATCHING(fn(w, n0, n1, a, y, y_stride, scratch));
    hash_rows(y, a->rows, n1 - n0, y_stride);
}
void call_rms_norm(rms_norm_fn *fn, const float *x, const float *gain, uint32_t dim, float eps,
                   float *y) {
    CATCHING(fn(x, gain, dim, eps, y));
    hash_floats(y, dim);
}
void call_rope(rope_fn *fn, float *head, uint32_t n, const float *cos_in, const float *sin_in,
               bool adjacent) {
    CATCHING(fn(head, n, cos_in, sin_in, adjacent));
    hash_floats(head, 2 * (size_t)n);
}
void call_gate_mul(gate_mul_fn *fn, const float *gate, const float *up, size_t n, float *y) {
    CATCHING(fn(gate, up, n, y));
    hash_floats(y, n);
}
void call_add(add_fn *fn, float *x, const float *y, float scale, size_t n) {
    CATCHING(fn(x, y, scale, n));
    hash_floats(x, n);
}
void call_scale(scale_fn *fn, float *x, float scale, size_t n) {
    CATCHING(fn(x, scale, n));
    hash_floats(x, n);
}
void call_softcap(softcap_fn *fn, float *x, size_t n, float cap) {
    CATCHING(fn(x, n, cap));
    hash_floats(x, n);
}
void call_short_conv(short_conv_fn *fn, float *state, const float *w, size_t stride, uint32_t width,
                     const float *x, size_t n, bool silu, float *y) {
    CATCHING(fn(state, w, stride, width, x, n, silu, y));
    hash_rows(state, width - 1, n, stride);
    hash_floats(y, n);
}
void call_delta_step(delta_step_fn *fn, float *state, uint32_t key_dim, uint32_t value_dim,
                     const struct delta_token *t, float *y) {
    CATCHING(fn(state, key_dim, value_dim, t, y));
    hash_floats(state, (size_t)key_dim * value_dim);
    hash_floats(y, value_dim);
}

/* ---- formats --------------------------------------------------------------------------------- */

static void run_format(const struct tier *t, enum tile_kind kind, struct kv_format f,
                       uint32_t head_dim, format_fn *fn) {
    struct tile_layout l;
    tile_layout_init(&l, kind, f, head_dim);
    fn(t, &l);
}

static const uint8_t BITS[] = {8, 6, 5, 4, 3, 2};
/* At and around the sizes that kernels work in: 8, 16 and 32 lanes, groups of 32 to 128. */
static const uint32_t DIMS[] = {32, 64, 96, 128, 160, 192, 256, 512};
enum { COUNT_BITS = sizeof BITS / sizeof *BITS, COUNT_DIMS = sizeof DIMS / sizeof *DIMS };
static const char *const SCALARS[] = {"f16", "bf16", "f32"};

void for_formats(const struct tier *t, const char *kernel, enum tile_kind kind, bool exact,
                 format_fn *fn) {
    static const uint32_t EXACT_DIMS[] = {4,  8,   12,  20,  32,  36,  64, 80,
                                          96, 100, 128, 160, 252, 256, 512};
    for (int scalar = 0; scalar < 3; scalar++) {
        if (exact) {
            struct kv_format f = {scalar == SCALAR_F32 ? 32 : 16, (uint8_t)scalar, 0, KV_ROWS};
            if (!family_begin(t, kernel, SCALARS[scalar]))
                continue;
            for (size_t d = 0; d < sizeof EXACT_DIMS / sizeof *EXACT_DIMS; d++)
                run_format(t, kind, f, EXACT_DIMS[d], fn);
            family_end();
            continue;
        }
        for (size_t b = 0; b < COUNT_BITS; b++) {
            char name[24];
            snprintf(name, sizeof name, "%u bits %s", BITS[b], SCALARS[scalar]);
            if (!family_begin(t, kernel, name))
                continue;
            for (size_t d = 0; d < COUNT_DIMS; d++)
                for (uint16_t group = 32; group <= 128; group = (uint16_t)(group * 2))
                    if (DIMS[d] % group == 0)
                        run_format(t, kind,
                                   (struct kv_format){BITS[b], (uint8_t)scalar, group, KV_ROWS},
                                   DIMS[d], fn);
            family_end();
        }
    }
}

void for_tile_formats(const struct tier *t, const char *kernel, enum tile_kind kind,
                      enum scalar_type last, format_fn *fn) {
    for (int scalar = 0; scalar <= (int)last; scalar++)
        for (size_t b = 0; b < COUNT_BITS; b++) {
            char name[24];
            snprintf(name, sizeof name, "t%u %s", BITS[b], SCALARS[scalar]);
            if (!family_begin(t, kernel, name))
                continue;
            for (size_t d = 0; d < COUNT_DIMS; d++)
                run_format(t, kind, (struct kv_format){BITS[b], (uint8_t)scalar, 0, KV_TILE},
                           DIMS[d], fn);
            family_end();
        }
}

void for_rotated_formats(const struct tier *t, const char *kernel, enum tile_kind kind,
                         format_fn *fn) {
    for (size_t b = 0; b < COUNT_BITS; b++) {
        char name[24];
        snprintf(name, sizeof name, "r%u", BITS[b]);
        if (!family_begin(t, kernel, name))
            continue;
        for (size_t d = 0; d < COUNT_DIMS; d++)
            run_format(t, kind,
                       (struct kv_format){BITS[b], SCALAR_F16, DIMS[d] % 64 ? 32 : 64, KV_ROTATED},
                       DIMS[d], fn);
        family_end();
    }
}
