/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of caches whose layers differ, on the tiny models of ../shared/fixtures/tiny.
 *
 *   long    after a prefill of 8,192 tokens (in `make soak` 32,768), and at each length tried
 *           after it, a sequence holds, and the pool has in use, to the byte: all pages of the
 *           layers that see everything, for layers with a window the pages that the next query
 *           sees (never more than the window and one page), and one state of the recurrent layers
 *   edits   10,000 random trims and forks, with short evaluations between them and states kept
 *           every 64 tokens, in a budget that often refuses: it is never exceeded, at the end as
 *           many bytes are in use as at the beginning, resident memory does not grow
 *
 * Byte counts are computed here from the shapes in each config.json, not taken from the library. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <kvasir.h>

#include "tensors.h"

#include <cmocka.h>

enum { TOKENS_MAX = 32768, BEHIND = 130, PAGE = 64, UNIT = 4096, VOCAB = 512, EDITS = 10000 };

static kvasir_error err;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

/* K and V alike: kv_heads * head_dim values each, of layers that see everything and of layers with
 * a window. */
struct layers {
    uint32_t n, kv_heads, head_dim;
};
struct shape {
    const char *name;
    struct layers full, window;
    uint32_t window_tokens;
    uint64_t state_bytes;
};

/* The delta rule's state, [4][32][32], and 3 inputs of 256 channels; of three layers. */
#define QWEN3_NEXT_STATE (3 * 4 * (4 * 32 * 32 + 3 * 256))
/* 2 inputs of 128 channels, of three layers. */
#define LFM2_STATE (3 * 4 * 2 * 128)

static const struct shape GEMMA3 = {"gemma3", {1, 2, 64}, {3, 2, 64}, 48, 0};
/* Two of its four layers read the K and V of others. */
static const struct shape GEMMA4 = {"gemma4_full", {1, 1, 128}, {1, 2, 64}, 48, 0};
static const struct shape MISTRAL = {"mistral", {0}, {4, 2, 64}, 48, 0};
static const struct shape QWEN3_NEXT = {"qwen3_next", {1, 2, 64}, {0}, 0, QWEN3_NEXT_STATE};
static const struct shape LFM2 = {"lfm2", {1, 2, 32}, {0}, 0, LFM2_STATE};

static uint64_t whole_units(uint64_t bytes) {
    return (bytes + UNIT - 1) / UNIT * UNIT;
}

/* 8 and 4 bits, with a scale and a bias of 16 bits per 64 values (32 if a head has no more). */
static uint64_t page_bytes(const struct layers *l) {
    uint64_t groups = l->head_dim < 64 ? 1 : l->head_dim / 64;
    uint64_t token = l->head_dim + groups * 4 + l->head_dim / 2 + groups * 4;
    return whole_units(PAGE * token * l->kv_heads * l->n);
}

static uint64_t expected_bytes(const struct shape *m, uint64_t length) {
    uint64_t end = (length + PAGE - 1) / PAGE, pages = 0;
    if (m->window.n) /* of the positions that a query at `length` sees, those that are stored */
        pages = end - (length + 1 - m->window_tokens) / PAGE;
    assert_true(pages <= (m->window_tokens + PAGE - 1) / PAGE + 1);
    return end * page_bytes(&m->full) + pages * page_bytes(&m->window) +
           whole_units(m->state_bytes);
}

static uint64_t used_bytes(const kvasir_context *ctx) {
    kvasir_context_info info;
    kvasir_context_get_info(ctx, &info);
    assert_true(info.used_bytes <= info.peak_bytes && info.peak_bytes <= info.cache_bytes);
    return info.used_bytes;
}

static uint32_t random_state = 1;

static uint32_t random_below(uint32_t n) {
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}

static void open_context(const struct shape *m, const kvasir_context_options *o,
                         kvasir_model **model, kvasir_context **ctx) {
    char path[512];
    snprintf(path, sizeof path, "%s/fixtures/tiny/%s", SHARED_DIR, m->name);
    need(kvasir_model_open(path, model, &err));
    need(kvasir_context_create(*model, o, ctx, &err));
}

/* ---- long ------------------------------------------------------------------------------------ */

static void check_long(const struct shape *m) {
    static int32_t tokens[TOKENS_MAX];
    const uint32_t n_tokens = getenv("KVASIR_SOAK") ? TOKENS_MAX : TOKENS_MAX / 4;
    kvasir_context_options o = kvasir_context_defaults();
    kvasir_model *model;
    kvasir_context *ctx;
    kvasir_seq *s;
    o.key_centre = "off";
    o.ctx = n_tokens + BEHIND;
    open_context(m, &o, &model, &ctx);
    need(kvasir_seq_create(ctx, &s, &err));
    for (uint32_t i = 0; i < n_tokens; i++)
        tokens[i] = (int32_t)random_below(VOCAB);
    need(kvasir_seq_eval(s, tokens, n_tokens, NULL, &err));
    printf("%-12s %9" PRIu64 " bytes at %u tokens\n", m->name, kvasir_seq_bytes(s), n_tokens);
    for (uint32_t n = n_tokens;; n++) {
        assert_int_equal(kvasir_seq_length(s), n);
        assert_int_equal(kvasir_seq_bytes(s), expected_bytes(m, n));
        assert_int_equal(used_bytes(ctx), expected_bytes(m, n));
        if (n == n_tokens + BEHIND)
            break;
        need(kvasir_seq_eval(s, tokens, 1, NULL, &err));
    }
    /* A step also holds the pages of its own tokens; nothing else was ever in use. */
    kvasir_context_info info;
    kvasir_context_get_info(ctx, &info);
    assert_true(info.peak_bytes <=
                expected_bytes(m, n_tokens + BEHIND) + (512 / PAGE + 1) * page_bytes(&m->window));
    kvasir_seq_destroy(s);
    assert_int_equal(used_bytes(ctx), 0);
    kvasir_context_destroy(ctx);
    kvasir_model_close(model);
}

static void test_long_gemma3(void **state) {
    (void)state;
    check_long(&GEMMA3);
}
static void test_long_gemma4(void **state) {
    (void)state;
    check_long(&GEMMA4);
}
static void test_long_mistral(void **state) {
    (void)state;
    check_long(&MISTRAL);
}
static void test_long_qwen3_next(void **state) {
    (void)state;
    check_long(&QWEN3_NEXT);
}
static void test_long_lfm2(void **state) {
    (void)state;
    check_long(&LFM2);
}

/* ---- edits ----------------------------------------------------------------------------------- */

static double resident_bytes(void) {
    FILE *f = fopen("/proc/self/statm", "r");
    long size, resident = 0;
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &size, &resident), 2);
    fclose(f);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

enum { LIVE_MAX = 5 };
struct edits {
    kvasir_context *ctx;
    kvasir_seq *live[LIVE_MAX]; /* the first one stays as it is */
    uint32_t n, trims, forks, refused;
};

static void edit_eval(struct edits *e, kvasir_seq *s) {
    int32_t tokens[24];
    uint32_t n = 1 + random_below(24), length = kvasir_seq_length(s);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)random_below(VOCAB);
    kvasir_status status = kvasir_seq_eval(s, tokens, n, NULL, &err);
    if (status == KVASIR_ERR_BUDGET || status == KVASIR_ERR_CONTEXT) {
        assert_int_equal(kvasir_seq_length(s), length);
        e->refused += status == KVASIR_ERR_BUDGET;
    } else {
        need(status);
    }
}

static void edit_trim(struct edits *e, kvasir_seq *s) {
    uint32_t length = kvasir_seq_length(s), back = random_below(random_below(4) ? 12 : 80);
    kvasir_status status = kvasir_seq_trim(s, back < length ? length - back : 0, NULL, &err);
    e->trims += status == KVASIR_OK;
    if (status == KVASIR_ERR_BUDGET) /* left shorter: rerun tokens did not fit */
        e->refused++;
    else if (status == KVASIR_ERR_ARGUMENT) /* the pages before a window are gone */
        assert_int_equal(kvasir_seq_length(s), length);
    else
        need(status);
}

static void edit(struct edits *e) {
    if (e->n > 1 && random_below(5) < 3) {
        edit_eval(e, e->live[1 + random_below(e->n - 1)]);
    } else if (e->n > 1 && random_below(2)) {
        edit_trim(e, e->live[1 + random_below(e->n - 1)]);
    } else {
        if (e->n == LIVE_MAX) {
            uint32_t i = 1 + random_below(LIVE_MAX - 1);
            kvasir_seq_destroy(e->live[i]);
            e->live[i] = e->live[--e->n];
        }
        need(kvasir_seq_fork(e->live[random_below(e->n)], &e->live[e->n], &err));
        e->n++;
        e->forks++;
    }
    (void)used_bytes(e->ctx); /* checks the budget */
}

/* pages: what the budget has room for in addition to the first sequence. */
static void check_edits(const struct shape *m, uint32_t pages) {
    static const int32_t tokens[200];
    kvasir_context_options o = kvasir_context_defaults();
    kvasir_model *model;
    struct edits e = {.n = 1};
    o.key_centre = "off";
    o.ctx = 400;
    o.threads = 1;
    o.snapshot_tokens = o.prefill_chunk = 64;
    o.cache_bytes =
        expected_bytes(m, 200) + 3 * whole_units(m->state_bytes) +
        pages * (page_bytes(&m->full) + page_bytes(&m->window) + whole_units(m->state_bytes));
    open_context(m, &o, &model, &e.ctx);
    need(kvasir_seq_create(e.ctx, &e.live[0], &err));
    need(kvasir_seq_eval(e.live[0], tokens, 200, NULL, &err));
    const uint64_t before = used_bytes(e.ctx);
    double resident = 0;
    while (e.trims + e.forks < EDITS) {
        edit(&e);
        if (!resident && e.trims + e.forks > EDITS / 10) /* every buffer has been touched */
            resident = resident_bytes();
    }
    double grown = resident_bytes() - resident;
    printf("%-12s %u trims, %u forks, %u calls refused for the budget; resident %+.0f KiB\n",
           m->name, e.trims, e.forks, e.refused, grown / 1024);
    assert_true(e.refused > 20);
    assert_true(grown <= 1 << 20);
    while (e.n > 1)
        kvasir_seq_destroy(e.live[--e.n]);
    assert_int_equal(used_bytes(e.ctx), before);
    kvasir_seq_destroy(e.live[0]);
    assert_int_equal(used_bytes(e.ctx), 0);
    kvasir_context_destroy(e.ctx);
    kvasir_model_close(model);
}

static void test_edits_gemma3(void **state) {
    (void)state;
    check_edits(&GEMMA3, 6);
}
static void test_edits_mistral(void **state) {
    (void)state;
    check_edits(&MISTRAL, 5);
}
static void test_edits_qwen3_next(void **state) {
    (void)state;
    check_edits(&QWEN3_NEXT, 9);
}

int main(void) {
    skip_without(SHARED_DIR "/fixtures/tiny/gemma3/config.json");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_gemma3),   cmocka_unit_test(test_long_gemma4),
        cmocka_unit_test(test_long_mistral),  cmocka_unit_test(test_long_qwen3_next),
        cmocka_unit_test(test_long_lfm2),     cmocka_unit_test(test_edits_gemma3),
        cmocka_unit_test(test_edits_mistral), cmocka_unit_test(test_edits_qwen3_next),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
