/* SPDX-License-Identifier: Apache-2.0 */
/* The tiny models of ../shared/fixtures/tiny against their float32 goldens (transformers), through
 * the public interface: act_bits 16, in every tier this machine has.
 *
 *   f32 pages   the bound of the issue: max |logit error| <= 2e-4 x max |logit|
 *   f16 pages   keys and values are rounded to 11 bits, relative errors of up to 2^-12, which four
 *               random layers and the head amplify: at most 2.0e-3 measured (llama, both tiers),
 *               bound 4e-3
 *   bf16 pages  8 bits, an 8 times coarser rounding: 8 times the bound, 3.2e-2 (measured 2.2e-2)
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <kvasir.h>

#include "tensors.h"

#include <cmocka.h>

/* ctx: what longrope chooses its factors by; 0: the trained context. */
static const struct {
    const char *name;
    uint32_t ctx;
} MODELS[] = {{"llama", 0},         {"mistral", 0},    {"qwen2", 0},       {"qwen3", 0},
              {"qwen3_yarn", 0},    {"qwen3_moe", 0},  {"smollm3", 0},     {"granite", 0},
              {"phi3_short", 2048}, {"phi3_long", 0},  {"olmo3", 0},       {"gemma2", 0},
              {"gemma3", 0},        {"gemma4", 0},     {"gemma4_full", 0}, {"gemma4_shared", 0},
              {"gpt_oss", 0},       {"qwen3_next", 0}, {"qwen3_5", 0},     {"qwen3_5_moe", 0},
              {"lfm2", 0}};
static const struct {
    const char *bits;
    double bound;
} FORMATS[] = {{"f32", 2e-4}, {"f16", 4e-3}, {"bf16", 3.2e-2}};

static int failed; /* models past their bound, of a tier */

struct comparison {
    const int32_t *positions;
    const float *logits;
    size_t n, vocab, next;
    double worst, largest;
};

static bool compare_rows(void *user, size_t first, size_t rows, const float *logits) {
    struct comparison *c = user;
    for (; c->next < c->n && (size_t)c->positions[c->next] < first + rows; c->next++) {
        const float *ours = logits + ((size_t)c->positions[c->next] - first) * c->vocab;
        const float *golden = c->logits + c->next * c->vocab;
        for (size_t i = 0; i < c->vocab; i++) {
            c->worst = fmax(c->worst, fabs((double)ours[i] - (double)golden[i]));
            c->largest = fmax(c->largest, fabs((double)golden[i]));
        }
    }
    return true;
}

static void check_model(const char *name, uint32_t ctx_length, const char *tier, const char *bits,
                        double bound) {
    char path[512];
    kvasir_error err;
    kvasir_model *model;
    kvasir_context *ctx;
    kvasir_seq *seq;
    snprintf(path, sizeof path, "%s/fixtures/tiny/%s", SHARED_DIR, name);
    if (kvasir_model_open(path, &model, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    kvasir_context_options o = kvasir_context_defaults();
    o.kv_bits = bits;
    o.act_bits = 16;
    o.ctx = ctx_length;
    o.cpu_tier = tier;
    o.cache_bytes = 64 << 20;
    if (kvasir_context_create(model, &o, &ctx, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    if (kvasir_seq_create(ctx, &seq, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    struct golden_file file;
    snprintf(path, sizeof path, "%s/fixtures/tiny/%s/golden.safetensors", SHARED_DIR, name);
    assert_true(golden_open(&file, path));
    struct golden ids = golden_get(&file, "input_ids"), at = golden_get(&file, "positions"),
                  logits = golden_get(&file, "logits");
    struct comparison c = {
        .positions = at.data, .logits = logits.data, .n = at.n, .vocab = logits.n / at.n};
    kvasir_eval_options eval = {.on_logits = compare_rows, .user = &c};
    if (kvasir_seq_eval(seq, ids.data, ids.n, &eval, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    assert_int_equal(c.next, c.n);
    printf("%-8s %-5s %-5s  max |error| / max |logit| = %.2e (bound %.1e)\n", name, tier, bits,
           c.worst / c.largest, bound);
    failed += !(c.worst <= bound * c.largest);
    golden_close(&file);
    kvasir_seq_destroy(seq);
    kvasir_context_destroy(ctx);
    kvasir_model_close(model);
}

static bool has_tier(const char *tier) {
    char path[512];
    kvasir_model *model;
    kvasir_context *ctx;
    snprintf(path, sizeof path, "%s/fixtures/tiny/llama", SHARED_DIR);
    assert_int_equal(kvasir_model_open(path, &model, NULL), KVASIR_OK);
    kvasir_context_options o = kvasir_context_defaults();
    o.cpu_tier = tier;
    kvasir_status status = kvasir_context_create(model, &o, &ctx, NULL);
    if (status == KVASIR_OK)
        kvasir_context_destroy(ctx);
    kvasir_model_close(model);
    return status == KVASIR_OK;
}

static void check_tier(const char *tier) {
    failed = 0;
    for (size_t m = 0; m < sizeof MODELS / sizeof *MODELS; m++)
        for (size_t f = 0; f < sizeof FORMATS / sizeof *FORMATS; f++)
            check_model(MODELS[m].name, MODELS[m].ctx, tier, FORMATS[f].bits, FORMATS[f].bound);
    assert_int_equal(failed, 0);
}

static void test_tier(void **state) {
    const char *tier = *state;
    if (!has_tier(tier)) {
        printf("this machine has no tier %s\n", tier);
        skip();
    }
    check_tier(tier);
}

#define TIER_TEST(tier)                                                                            \
    { "tier " tier, test_tier, NULL, NULL, tier }

int main(void) {
    skip_without(SHARED_DIR "/fixtures/tiny/llama/config.json");
    const struct CMUnitTest tests[] = {TIER_TEST("ref"), TIER_TEST("avx2"), TIER_TEST("avx512"),
                                       TIER_TEST("avx512vnni")};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
