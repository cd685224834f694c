/* SPDX-License-Identifier: Apache-2.0 */
/* SmolLM2 as an MLX folder gives the logits of the GGUF file that the folder was made of: f32 pages
 * and act_bits 16, max |logit difference| <= 1e-3 over a prompt of 512 tokens.
 *
 *     ../shared/tools/mlx_from_gguf.py models/SmolLM2-135M-Instruct.Q4_1.gguf \
 *         models/SmolLM2-135M-Instruct-mlx
 *
 * The tool keeps the GGUF's codes, scales and minima as they are (Q8_0's codes gain 128, its norms
 * lose what float16 cannot hold: they hold it), so the weights are equal in real numbers and what
 * may differ is the order of some sums. (The two files have the rows of q and k in different
 * orders, which rope makes the same. If both types have the same kernel, the difference is 0.)
 *
 * KVASIR_MLX_SMOLLM2 names another folder. Skipped if the folder is missing: `make soak` makes it.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#include <kvasir.h>

#include "tensors.h"

#include <cmocka.h>

#define GGUF    MODELS_DIR "/SmolLM2-135M-Instruct.Q4_1.gguf"
#define FOLDER  MODELS_DIR "/SmolLM2-135M-Instruct-mlx"
#define PROMPTS SHARED_DIR "/goldens/smollm2-135m/greedy.jsonl"
#define BOUND   1e-3

enum { TOKENS_MAX = 512 };

static const char *folder;

/* The first prompt of at least TOKENS_MAX tokens, cut to that. */
static void read_prompt(int32_t ids[TOKENS_MAX]) {
    FILE *in = fopen(PROMPTS, "r");
    assert_non_null(in);
    size_t n = 0;
    json_t *line;
    while (n < TOKENS_MAX && (line = json_loadf(in, JSON_DISABLE_EOF_CHECK, NULL)) != NULL) {
        const json_t *list = json_object_get(line, "prompt_ids");
        if (json_array_size(list) >= TOKENS_MAX)
            for (; n < TOKENS_MAX; n++)
                ids[n] = (int32_t)json_integer_value(json_array_get(list, n));
        json_decref(line);
    }
    fclose(in);
    assert_int_equal(n, TOKENS_MAX);
}

struct rows {
    size_t vocab;
    float *logits; /* [TOKENS_MAX][vocab]; of the first run, then compared with */
    bool compare;
    double worst, largest;
};

static bool take_rows(void *user, size_t first, size_t rows, const float *logits) {
    struct rows *r = user;
    float *at = r->logits + first * r->vocab;
    if (!r->compare) {
        memcpy(at, logits, rows * r->vocab * sizeof *at);
        return true;
    }
    for (size_t i = 0; i < rows * r->vocab; i++) {
        r->worst = fmax(r->worst, fabs((double)at[i] - (double)logits[i]));
        r->largest = fmax(r->largest, fabs((double)logits[i]));
    }
    return true;
}

static void need(kvasir_status status, const kvasir_error *err) {
    if (status != KVASIR_OK)
        fail_msg("%s", err->text);
}

static void run(const char *path, const int32_t *ids, struct rows *rows) {
    kvasir_model *model;
    kvasir_context *ctx;
    kvasir_seq *seq;
    kvasir_error err;
    kvasir_context_options o = kvasir_context_defaults();
    o.kv_bits = "f32";
    o.act_bits = 16;
    o.cache_bytes = (uint64_t)256 << 20;
    need(kvasir_model_open(path, &model, &err), &err);
    need(kvasir_context_create(model, &o, &ctx, &err), &err);
    need(kvasir_seq_create(ctx, &seq, &err), &err);
    kvasir_model_info info;
    kvasir_model_get_info(model, &info);
    printf("%s, weights %s\n", info.format, info.weight_types);
    if (!rows->logits)
        rows->logits = malloc(TOKENS_MAX * info.vocab * sizeof *rows->logits);
    assert_non_null(rows->logits);
    rows->vocab = info.vocab;
    kvasir_eval_options eval = {
        .struct_size = sizeof(kvasir_eval_options), .on_logits = take_rows, .user = rows};
    need(kvasir_seq_eval(seq, ids, TOKENS_MAX, &eval, &err), &err);
    kvasir_seq_destroy(seq);
    kvasir_context_destroy(ctx);
    kvasir_model_close(model);
}

static void test_same_logits(void **state) {
    (void)state;
    int32_t ids[TOKENS_MAX];
    struct rows rows = {0};
    read_prompt(ids);
    run(GGUF, ids, &rows);
    rows.compare = true;
    run(folder, ids, &rows);
    printf("max |logit difference| = %.2e over %d tokens, logits up to %.1f (bound %.0e)\n",
           rows.worst, TOKENS_MAX, rows.largest, BOUND);
    assert_true(rows.worst <= BOUND && rows.largest > 1);
    free(rows.logits);
}

int main(void) {
    const char *named = getenv("KVASIR_MLX_SMOLLM2");
    folder = named ? named : FOLDER;
    skip_without(PROMPTS);
    skip_without(GGUF);
    skip_without(folder);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_logits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
