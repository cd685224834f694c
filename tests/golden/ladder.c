/* SPDX-License-Identifier: Apache-2.0 */
/* kv_bits "auto" at its floor: its mean KL divergence from an exact run (f32 pages), act_bits 16,
 * is not above that of pages which had the floor's format from the start. After each 64 tokens all
 * pages go down as far as they can, which is the least that any budget leaves of them.
 *
 *     in CI        SmolLM2, 256 tokens, floor t3
 *     in make soak (KVASIR_SOAK): 1,024 tokens, floors t4 and t3
 *
 * docs/quality.md has the figures of longer windows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "lab/lab.h"
#include "model_files.h"
#include "tensors.h"

enum { CHUNK = TILE_TOKENS };

static const char MODEL[] = MODELS_DIR "/SmolLM2-135M-Instruct.Q4_1.gguf",
                  GOLDEN[] = SHARED_DIR "/goldens/smollm2-135m/nll.safetensors";

static kvasir_error err;
static kvasir_model *model;
static uint32_t vocab;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

struct run {
    const char *bits, *floor;
    kvasir_context *ctx;
    kvasir_seq *seq;
    float *logits; /* [CHUNK][vocab] */
    double kl;     /* summed */
};

static void begin(struct run *r, uint32_t tokens) {
    const kvasir_calibrate_options calibrate = kvasir_calibrate_defaults();
    kvasir_context_options o = kvasir_context_defaults();
    o.kv_bits = r->bits;
    o.kv_floor = r->floor;
    o.act_bits = 16;
    o.ctx = tokens;
    o.prefill_chunk = CHUNK;
    o.cache_bytes = 1 << 28;
    o.calibrate = &calibrate;
    need(kvasir_context_create(model, &o, &r->ctx, &err));
    need(kvasir_seq_create(r->ctx, &r->seq, &err));
    r->logits = malloc(sizeof(float) * CHUNK * vocab);
}

static bool take_rows(void *user, size_t first, size_t rows, const float *logits) {
    memcpy((float *)user + first * vocab, logits, sizeof(float) * rows * vocab);
    return true;
}

static void run_chunk(struct run *r, const int32_t *ids) {
    kvasir_eval_options eval = kvasir_eval_defaults();
    eval.on_logits = take_rows;
    eval.user = r->logits;
    need(kvasir_seq_eval(r->seq, ids, CHUNK, &eval, &err));
    assert_false(kv_cache_make_room(r->ctx->cache, UINT64_MAX));
}

/* Runs: exact, floor, "auto" with that floor. */
static void compare(const char *floor, uint32_t tokens) {
    struct run runs[] = {{.bits = "f32"}, {.bits = floor}, {.bits = "auto", .floor = floor}};
    struct golden_file file;
    assert_true(golden_open(&file, GOLDEN));
    const int32_t *ids = golden_get(&file, "ids").data;
    for (int i = 0; i < 3; i++)
        begin(&runs[i], tokens);
    for (uint32_t at = 0; at < tokens; at += CHUNK)
        for (int i = 0; i < 3; i++) {
            run_chunk(&runs[i], ids + at);
            for (size_t row = 0; row < CHUNK; row++)
                runs[i].kl += lab_compare_logits(runs[0].logits + row * vocab,
                                                 runs[i].logits + row * vocab, vocab, 0)
                                  .kl;
        }
    printf("%u tokens, floor %s: mean KL %.5f, from the start %.5f\n", tokens, floor,
           runs[2].kl / tokens, runs[1].kl / tokens);
    assert_true(runs[2].kl > 0 && runs[2].kl <= runs[1].kl);
    for (int i = 0; i < 3; i++) {
        kvasir_seq_destroy(runs[i].seq);
        kvasir_context_destroy(runs[i].ctx);
        free(runs[i].logits);
    }
    golden_close(&file);
}

static void test_no_worse_than_its_floor(void **state) {
    (void)state;
    kvasir_model_info info;
    need(kvasir_model_open(MODEL, &model, &err));
    kvasir_model_get_info(model, &info);
    vocab = info.vocab;
    if (getenv("KVASIR_SOAK")) {
        compare("t4", 1024);
        compare("t3", 1024);
    } else {
        compare("t3", 256);
    }
    kvasir_model_close(model);
}

int main(void) {
    skip_without(MODEL);
    skip_without(GOLDEN);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_worse_than_its_floor)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
