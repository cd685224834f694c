/* SPDX-License-Identifier: Apache-2.0 */
/* What `kvasir bench` computes with: medians, slopes, the work of a run against numbers worked out
 * by hand, rooflines, sequences made long by copies, ceilings of this machine. */
#include "lab/lab.h"
#include "util/util.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "model_files.h"

#include <cmocka.h>

static struct temp_folder folder;
static kvasir_error err;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-9 * fabs(b);
}

/* ---- figures --------------------------------------------------------------------------------- */

static void test_median(void **state) {
    (void)state;
    double odd[] = {5, 1, 9}, even[] = {4, 1, 3, 2}, same[] = {2, 2, 2, 7}, one[] = {3};
    assert_true(lab_median(odd, 3) == 5);
    assert_true(odd[0] == 5 && odd[2] == 9); /* kept their order */
    assert_true(lab_median(even, 4) == 2.5);
    assert_true(lab_median(same, 4) == 2);
    assert_true(lab_median(one, 1) == 3);
}

static void test_slope(void **state) {
    (void)state;
    static const double X[] = {0, 1000, 4000}, LINE[] = {7, 9, 15}, NOISY[] = {0, 0, 3},
                        ALIKE[] = {5, 5, 5};
    assert_true(near(lab_slope(X, LINE, 3), 0.002));
    /* sum of (x - mean x)(y - mean y) over that of squares, by hand */
    assert_true(near(lab_slope(X, NOISY, 3), 7000.0 / (26.0e6 / 3)));
    assert_true(isnan(lab_slope(ALIKE, LINE, 3)));
    assert_true(isnan(lab_slope(X, LINE, 1)));
}

static void test_roofline(void **state) {
    (void)state;
    const lab_work work = {.steps = 1, .weight_bytes = 300, .cache_bytes = 100, .multiplies = 900};
    bool memory;
    assert_true(near(lab_roofline(&work, 100, 1000, &memory), 4) && memory);
    assert_true(near(lab_roofline(&work, 1000, 100, &memory), 9) && !memory);
    assert_true(near(lab_roofline(&work, 100, 0, &memory), 4) && memory); /* not known */
}

/* ---- the tiny model -------------------------------------------------------------------------- */

static kvasir_model *open_tiny(bool output) {
    struct gguf_writer w = {0};
    tiny_values(&w, "llama");
    tiny_tensors(&w, "llama", output);
    struct text_buf file = gguf_finish(&w, 32);
    kvasir_model *m;
    need(kvasir_model_open(temp_write(&folder, "tiny.gguf", file.data, file.len), &m, &err));
    text_free(&file);
    return m;
}

static kvasir_context *open_context(const kvasir_model *m, uint32_t chunk) {
    kvasir_context_options o = kvasir_context_defaults();
    kvasir_context *c;
    o.kv_bits = "f16";
    o.threads = 1;
    o.ctx = 1024;
    o.prefill_chunk = chunk;
    o.cache_bytes = 4 * lab_sequence_bytes(m, &o, o.ctx);
    need(kvasir_context_create(m, &o, &c, &err));
    return c;
}

/* 2 layers of 64 dims, 4 heads of 16 for 2 KV heads, ffn 96, 8 tokens. */
enum {
    LAYERS = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64),
    HEAD = 8 * 64,
    PAIR = 2 * 2 * 4 * 16,      /* multiply-adds of a row with one cached token */
    TOKEN = 2 * 2 * 2 * 16 * 2, /* bytes of one */
};

static void check_work(const kvasir_model *m, const kvasir_context *c, uint64_t looked_up,
                       uint64_t head_bytes) {
    kvasir_model_info info;
    kvasir_model_get_info(m, &info);
    const double all = (double)(info.weight_bytes - looked_up);
    /* three steps of two sequences: their tokens see 11, 12 and 13 */
    lab_work work = lab_run_work(c, &(lab_run){10, 3, 2, true});
    assert_int_equal(work.steps, 3);
    assert_true(near(work.weight_bytes, 3 * all));
    assert_true(near(work.cache_bytes, 2 * (11 + 12 + 13) * TOKEN));
    assert_true(near(work.multiplies, 3 * 2 * (LAYERS + HEAD) + 2 * (11 + 12 + 13) * PAIR));
    /* chunks of 32, 32 and 6 rows; logits of the last row */
    work = lab_run_work(c, &(lab_run){100, 70, 1, false});
    assert_int_equal(work.steps, 3);
    assert_true(near(work.weight_bytes, 3 * all - 2 * (double)head_bytes));
    assert_true(near(work.cache_bytes, (132 + 164 + 170) * TOKEN));
    double seen = 0;
    for (int p = 100; p < 170; p++)
        seen += p + 1;
    assert_true(near(work.multiplies, 70.0 * LAYERS + HEAD + seen * PAIR));
}

static void test_work(void **state) {
    (void)state;
    const uint64_t embedding = 8 * 64 / 32 * 34; /* Q8_0 */
    kvasir_model *tied = open_tiny(false);
    kvasir_context *c = open_context(tied, 32);
    check_work(tied, c, 0, embedding);
    assert_false(lab_multiplies_floats(tied)); /* most of it is Q4 */
    kvasir_context_destroy(c);
    kvasir_model_close(tied);
    kvasir_model *apart = open_tiny(true);
    c = open_context(apart, 32);
    check_work(apart, c, embedding, 8 * 64 * 2);
    kvasir_context_destroy(c);
    kvasir_model_close(apart);
}

/* ---- long sequences -------------------------------------------------------------------------- */

static void same_values(const kvasir_seq *a, uint32_t at, const kvasir_seq *b, uint32_t from) {
    float x[16 * 64] = {0}, y[16 * 64] = {0};
    for (int part = 0; part < 2; part++) {
        const kvasir_kv_part which = part ? KVASIR_PART_V : KVASIR_PART_K;
        need(kvasir_seq_read_kv(a, which, 1, 1, at, 16, x, &err));
        need(kvasir_seq_read_kv(b, which, 1, 1, from, 16, y, &err));
        assert_memory_equal(x, y, sizeof x);
    }
}

static void test_extend(void **state) {
    (void)state;
    kvasir_model *m = open_tiny(false);
    kvasir_context *c = open_context(m, 0);
    kvasir_seq *seed, *longer;
    int32_t ids[128];
    for (int i = 0; i < 128; i++)
        ids[i] = i * 5 % 8;
    need(kvasir_seq_create(c, &seed, &err));
    need(kvasir_seq_create(c, &longer, &err));
    need(kvasir_seq_eval(seed, ids, 128, NULL, &err));
    need(lab_extend(longer, seed, 300, &err));
    assert_int_equal(kvasir_seq_length(longer), 300);
    assert_memory_equal(kvasir_seq_tokens(longer) + 128, ids, 128 * sizeof *ids);
    same_values(longer, 0, seed, 0);
    same_values(longer, 128 + 100, seed, 100);
    same_values(longer, 256 + 20, seed, 20);
    assert_int_equal(lab_extend(longer, seed, 400, &err), KVASIR_ERR_ARGUMENT); /* 300 tokens */
    need(lab_extend(seed, seed, 256, &err));
    same_values(seed, 128 + 16, seed, 16);
    need(kvasir_seq_eval(longer, ids, 5, NULL, &err)); /* goes on from there */
    assert_int_equal(kvasir_seq_length(longer), 305);
    kvasir_seq_destroy(seed);
    kvasir_seq_destroy(longer);
    kvasir_context_destroy(c);
    kvasir_model_close(m);
}

#define LLAMA   SHARED_DIR "/fixtures/tiny/llama"  /* its heads are large enough for tiles */
#define WINDOWS SHARED_DIR "/fixtures/tiny/gemma3" /* of 48 tokens */

/* Pages of an exact start are copied to its pages only, and others to the others; work and bytes
 * count them as what they are. */
static void test_extend_a_start(void **state) {
    (void)state;
    kvasir_model *m;
    kvasir_context_options o = kvasir_context_defaults();
    kvasir_context *c[2];
    kvasir_seq *seed, *longer;
    int32_t ids[192];
    if (access(LLAMA "/config.json", R_OK) != 0)
        skip();
    need(kvasir_model_open(LLAMA, &m, &err));
    for (int i = 0; i < 192; i++)
        ids[i] = i * 5 % 8;
    o.kv_bits = "t4";
    o.ctx = 512;
    o.threads = 1;
    for (int i = 0; i < 2; i++) {
        o.quantized_kv_start = i * 64;
        need(kvasir_context_create(m, &o, &c[i], &err));
    }
    need(kvasir_seq_create(c[1], &seed, &err));
    need(kvasir_seq_create(c[1], &longer, &err));
    need(kvasir_seq_eval(seed, ids, 64, NULL, &err));
    assert_int_equal(lab_extend(longer, seed, 65, &err), KVASIR_ERR_ARGUMENT);
    assert_string_equal(err.field, "context.quantized_kv_start");
    assert_non_null(strstr(err.text, "must be at most 0"));
    need(kvasir_seq_eval(seed, ids + 64, 128, NULL, &err));
    need(lab_extend(longer, seed, 384, &err));
    same_values(longer, 16, seed, 16);
    same_values(longer, 64 + 16, seed, 64 + 16);
    same_values(longer, 128 + 16, seed, 128 + 16);
    same_values(longer, 192 + 16, seed, 64 + 16); /* not the start again */
    same_values(longer, 256 + 16, seed, 128 + 16);
    need(kvasir_seq_eval(longer, ids, 5, NULL, &err));
    kvasir_seq_destroy(seed);
    kvasir_seq_destroy(longer);
    kvasir_context_info info;
    kvasir_context_get_info(c[0], &info);
    const double more = 64 * (double)(info.kv_bytes_per_token16 - info.kv_bytes_per_token);
    const lab_run run = {.position = 200, .tokens = 1, .seqs = 3, .decode = true};
    assert_true(lab_run_work(c[1], &run).cache_bytes ==
                lab_run_work(c[0], &run).cache_bytes + 3 * more);
    assert_true(lab_pages_bytes(c[1], 3) - lab_pages_bytes(c[1], 2) ==
                lab_pages_bytes(c[0], 3) - lab_pages_bytes(c[0], 2));
    assert_true(lab_pages_bytes(c[1], 1) > lab_pages_bytes(c[0], 1));
    o.kv_bits = "t2"; /* the start is in what a sequence needs */
    o.quantized_kv_start = 0;
    const uint64_t without = lab_sequence_bytes(m, &o, 200);
    o.quantized_kv_start = KVASIR_START_BY_FORMAT;
    assert_true(lab_sequence_bytes(m, &o, 200) >= without + 64 * info.kv_bytes_per_token16);
    kvasir_context_destroy(c[0]);
    kvasir_context_destroy(c[1]);
    kvasir_model_close(m);
}

/* ---- ceilings -------------------------------------------------------------------------------- */

static void test_ceiling(void **state) {
    (void)state;
    for (int floats = 0; floats < 2; floats++)
        for (int t = 0; t < CPU_TIER_COUNT; t++) {
            lab_ceiling *c;
            if (!cpu_tier_have((enum cpu_tier)t))
                continue;
            need(lab_ceiling_create(2, cpu_tier_name((enum cpu_tier)t), floats, &c, &err));
            if (t == (int)cpu_tier_detect())
                assert_true(lab_ceiling_read(c) > 1e7);
            if (t == CPU_TIER_REF)
                assert_true(lab_ceiling_multiply(c) == 0);
            else
                assert_true(lab_ceiling_multiply(c) > 1e7);
            lab_ceiling_destroy(c);
        }
    lab_ceiling_destroy(NULL);
}

/* Layers with a window have dropped the pages of the exact start that are copied first. */
static void test_extend_past_a_window(void **state) {
    (void)state;
    kvasir_model *m;
    kvasir_context_options o = kvasir_context_defaults();
    kvasir_context *c;
    kvasir_seq *seed, *longer;
    int32_t ids[192];
    if (access(WINDOWS "/config.json", R_OK) != 0)
        skip();
    need(kvasir_model_open(WINDOWS, &m, &err));
    for (int i = 0; i < 192; i++)
        ids[i] = i * 5 % 8;
    o.kv_bits = "8,4";
    o.ctx = 512;
    o.threads = 1;
    o.quantized_kv_start = 100;
    need(kvasir_context_create(m, &o, &c, &err));
    need(kvasir_seq_create(c, &seed, &err));
    need(kvasir_seq_create(c, &longer, &err));
    need(kvasir_seq_eval(seed, ids, 192, NULL, &err));
    need(lab_extend(longer, seed, 384, &err));
    need(kvasir_seq_eval(longer, ids, 5, NULL, &err));
    assert_int_equal(kvasir_seq_length(longer), 389);
    kvasir_seq_destroy(seed);
    kvasir_seq_destroy(longer);
    kvasir_context_destroy(c);
    kvasir_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_median),
                                       cmocka_unit_test(test_slope),
                                       cmocka_unit_test(test_roofline),
                                       cmocka_unit_test(test_work),
                                       cmocka_unit_test(test_extend),
                                       cmocka_unit_test(test_extend_a_start),
                                       cmocka_unit_test(test_extend_past_a_window),
                                       cmocka_unit_test(test_ceiling)};
    temp_folder_make(&folder);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    temp_folder_remove(&folder);
    return failed;
}
