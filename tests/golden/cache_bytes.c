/* SPDX-License-Identifier: Apache-2.0 */
/* What 8,192 tokens of SmolLM2 cost in every format, and that resident memory follows the pages:
 *
 *   bytes      within 3 % of 16-bit bytes x (bits + 32 / group) / 16, plus one open page
 *   resident   grows by the pages that were touched and by less than 1 MiB of anything else
 *
 * Pages are taken, filled and committed without running the model: its arithmetic takes none. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "tensors.h"

#include <cmocka.h>

#define MODEL MODELS_DIR "/SmolLM2-135M-Instruct.Q4_1.gguf"

enum { TOKENS = 8192, STEP = 512 };

static kvasir_model *model;
static kvasir_error err;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static double resident_bytes(void) {
    FILE *f = fopen("/proc/self/statm", "r");
    long size, resident = 0;
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &size, &resident), 2);
    fclose(f);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

/* Touches what encoding would: every byte of the pages of positions below `tokens`. */
static void fill(kvasir_seq *s, uint32_t tokens) {
    static const int32_t ids[STEP];
    while (seq_length(s->seq) < tokens) {
        need(seq_prepare(s->seq, STEP, &err));
        struct kv_view v;
        seq_view(s->seq, 0, &v);
        for (uint32_t p = seq_length(s->seq) / TILE_TOKENS; p < v.n_pages; p++)
            memset(backend_cpu_arena_bytes(v.arena) + (size_t)v.pages[p].addr * PAGE_ADDR_UNIT, 1,
                   v.layouts[v.pages[p].layout].page_bytes);
        seq_commit(s->seq, ids, STEP);
    }
}

static void check(const char *bits, const char *group, double k_bits, double v_bits) {
    kvasir_context_options o = kvasir_context_defaults();
    o.kv_bits = bits;
    o.kv_group_size = group;
    o.cache_bytes = (uint64_t)1 << 30;
    kvasir_context *ctx;
    kvasir_seq *s;
    need(kvasir_context_create(model, &o, &ctx, &err));
    need(kvasir_seq_create(ctx, &s, &err));
    double before = resident_bytes();
    fill(s, TOKENS);
    double grown = resident_bytes() - before;
    kvasir_context_info info;
    kvasir_context_get_info(ctx, &info);
    const struct model_config *c = model_config(model->model);
    double values = 2.0 * c->n_layers * c->kv_heads * c->head_dim, g = group ? atof(group) : 64;
    double k = k_bits < 16 ? k_bits + 32 / g : k_bits, v = v_bits < 16 ? v_bits + 32 / g : v_bits;
    double expected = TOKENS * values * 2 * ((k + v) / 2 / 16);
    double page = (double)seq_need_bytes(s->seq, TOKENS + 1, 1, 0);
    printf("%-8s g%-4s %9.2f MB, expected %9.2f MB (%+.2f %%), resident %+.2f MB\n", bits,
           group ? group : "-", (double)info.used_bytes / 1e6, expected / 1e6,
           100 * ((double)info.used_bytes / expected - 1), grown / 1e6);
    assert_true(fabs((double)info.used_bytes - expected) <= 0.03 * expected + page);
    assert_true(grown <= (double)info.used_bytes + (1 << 20)); /* tables, slots: well below 1 MiB */
    kvasir_seq_destroy(s);
    /* Whole superblocks went back to the system. */
    assert_true(resident_bytes() - before <= 2 << 20);
    kvasir_context_destroy(ctx);
}

static void test_every_format(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double k, v;
    } formats[] = {{"8", 8, 8}, {"6", 6, 6},   {"5", 5, 5},   {"4", 4, 4},  {"3", 3, 3},
                   {"2", 2, 2}, {"8,4", 8, 4}, {"4,2", 4, 2}, {"6,5", 6, 5}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        check(formats[i].text, "64", formats[i].k, formats[i].v);
        check(formats[i].text, "32", formats[i].k, formats[i].v);
    }
    check("f16", NULL, 16, 16);
    check("bf16", NULL, 16, 16);
    check("f32", NULL, 32, 32);
}

int main(void) {
    skip_without(MODEL);
    if (kvasir_model_open(MODEL, &model, &err) != KVASIR_OK) {
        printf("%s\n", err.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_format)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kvasir_model_close(model);
    return failed;
}
