/* SPDX-License-Identifier: Apache-2.0 */
/* Weight types against the values that gguf and mlx read from the same bytes: weights.golden, made
 * by weights_golden.py without any of our code. Each array has memory of its own, begins at an odd
 * address and ends where the memory ends, so that sanitizers catch a read past the end and a load
 * that needs alignment.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"

#include <cmocka.h> /* after util.h, which defines a macro `fail` */

enum { MAGIC = 8, RECORDS_MAX = 256 };

/* The head of a record, as weights_golden.py writes it. */
struct head {
    uint32_t type, scalar, group, group_rows, n, k;
    uint32_t bytes[3]; /* of data, scales, biases */
};

static struct golden {
    struct weight w;
    uint8_t *arrays[3]; /* as malloc gave them */
    float *values;      /* [n][k] */
} records[RECORDS_MAX];
static uint32_t record_count;

static const char *name_of(const struct golden *g) {
    return weight_traits_of(g->w.type)->name;
}

/* The same number, including the sign of zero; all NaNs count as equal. */
static bool same(float a, float b) {
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

/* ---- the file -------------------------------------------------------------------------------- */

static void take(FILE *f, void *to, size_t bytes) {
    assert_int_equal(fread(to, 1, bytes, f), bytes);
}

/* NULL for an empty array. */
static const void *take_array(FILE *f, size_t bytes, uint8_t **memory) {
    *memory = malloc(bytes + 1);
    take(f, *memory + 1, bytes);
    return bytes > 0 ? *memory + 1 : NULL;
}

static void take_record(FILE *f, const struct head *h, struct golden *g) {
    assert_non_null(weight_traits_of(h->type));
    g->w = (struct weight){.type = (enum weight_type)h->type,
                           .n = h->n,
                           .k = h->k,
                           .group = h->group,
                           .group_rows = h->group_rows,
                           .scalar = (enum scalar_type)h->scalar};
    g->w.data = take_array(f, h->bytes[0], &g->arrays[0]);
    g->w.scales = take_array(f, h->bytes[1], &g->arrays[1]);
    g->w.biases = take_array(f, h->bytes[2], &g->arrays[2]);
    g->values = malloc((size_t)h->n * h->k * sizeof *g->values);
    take(f, g->values, (size_t)h->n * h->k * sizeof *g->values);
    size_t row_bytes = weight_row_bytes(weight_traits_of(h->type), h->k);
    assert_int_equal(h->bytes[0], h->n * row_bytes);
}

static int open_goldens(void **state) {
    (void)state;
    char magic[MAGIC];
    struct head h;
    FILE *f = fopen(SOURCE_DIR "/tests/unit/weights.golden", "rb");
    assert_non_null(f);
    take(f, magic, sizeof magic);
    assert_memory_equal(magic, "kvweight", sizeof magic);
    while (fread(&h, 1, sizeof h, f) == sizeof h) {
        assert_true(record_count < RECORDS_MAX);
        take_record(f, &h, &records[record_count++]);
    }
    fclose(f);
    return 0;
}

static int close_goldens(void **state) {
    (void)state;
    for (uint32_t i = 0; i < record_count; i++) {
        for (int a = 0; a < 3; a++)
            free(records[i].arrays[a]);
        free(records[i].values);
    }
    return 0;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_table(void **state) {
    (void)state;
    const struct weight_traits *t;
    for (uint32_t i = 0; (t = weight_traits_at(i)); i++) {
        bool golden = false;
        for (uint32_t r = 0; r < record_count; r++)
            golden |= records[r].w.type == t->type;
        if (!golden)
            fail_msg("no golden of %s", t->name);
        assert_ptr_equal(weight_traits_of((uint32_t)t->type), t);
        assert_int_equal(weight_index(t->type), i);
        for (uint32_t other = 0; other < i; other++)
            assert_string_not_equal(weight_traits_at(other)->name, t->name);
        assert_int_equal(t->parts != NULL, t->run_values > 0);
        assert_true(t->block_values <= WEIGHT_BLOCK_MAX);
        if (t->run_values == 0)
            continue;
        assert_true(t->run_values == 32 || t->run_values == 16);
        assert_int_equal(t->block_values % 32, 0);
        assert_true(t->block_values / t->run_values <= WEIGHT_BLOCK_RUNS_MAX);
    }
    assert_null(weight_traits_of(4)); /* Q4_2, which GGUF dropped */
    assert_null(weight_traits_of(WEIGHT_GGUF_END));
    assert_null(weight_traits_of(UINT32_MAX));
}

static void test_decode(void **state) {
    (void)state;
    for (uint32_t r = 0; r < record_count; r++) {
        const struct golden *g = &records[r];
        uint32_t k = g->w.k;
        float *out = malloc(k * sizeof *out);
        for (uint32_t row = 0; row < g->w.n; row++) {
            weight_traits_of(g->w.type)->decode(&g->w, row, out);
            for (uint32_t i = 0; i < k; i++)
                if (!same(out[i], g->values[row * k + i]))
                    fail_msg("%s, record %u: value %u of row %u is %a, not %a", name_of(g), r, i,
                             row, (double)out[i], (double)g->values[row * k + i]);
        }
        free(out);
    }
}

/* How far d * code + m may be from decode's value. In blocks that contain their scales, only the
 * last sum rounds. With the float32 scales of affine rows the product rounds too. AFFINE8's m
 * rounds once more, and decode's own terms are 128 d larger there. */
static double parts_bound(const struct weight *w, double d, double code, double m) {
    double u = 0x1.001p-24;
    if (weight_traits_of(w->type)->unpack)
        return u * fabs(d * code + m);
    double moved = w->type == WEIGHT_AFFINE8 ? 256 : 0;
    return 3 * u * (fabs(d) * (fabs(code) + moved) + fabs(m));
}

static void check_parts(const struct golden *g, uint32_t row) {
    const struct weight_traits *t = weight_traits_of(g->w.type);
    uint32_t k = g->w.k, runs = k / t->run_values;
    int8_t *codes = malloc(k);
    float *d = malloc(runs * sizeof *d), *m = malloc(runs * sizeof *m);
    t->parts(&g->w, row, codes, d, m);
    for (uint32_t i = 0; i < k; i++) {
        float want = g->values[row * k + i];
        double scale = (double)d[i / t->run_values], min = (double)m[i / t->run_values];
        double error = fabs(scale * codes[i] + min - (double)want);
        if (!t->has_min)
            assert_true(min == 0);
        if (isfinite(want) && !(error <= parts_bound(&g->w, scale, codes[i], min)))
            fail_msg("%s: parts of value %u of row %u: %a * %d + %a is not %a", name_of(g), i, row,
                     scale, codes[i], min, (double)want);
    }
    free(codes);
    free(d);
    free(m);
}

static void test_parts(void **state) {
    (void)state;
    for (uint32_t r = 0; r < record_count; r++)
        for (uint32_t row = 0; row < records[r].w.n; row++)
            if (weight_traits_of(records[r].w.type)->run_values > 0)
                check_parts(&records[r], row);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_parts),
    };
    return cmocka_run_group_tests(tests, open_goldens, close_goldens);
}
