/* SPDX-License-Identifier: Apache-2.0 */
/* I6: after start-up decode steps allocate nothing: on a plain sequence, on a rotating one that has
 * wrapped, on a fork, and after a requantize. Nor do samplers, log-probabilities and stop texts.
 * malloc and its family are replaced by functions that count calls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "centres.h"
#include "count_allocations.h"
#include "engine/sampler.h"
#include "model_files.h"
#include "tensors.h"

#include <cmocka.h>

#define MODEL SHARED_DIR "/fixtures/tiny/llama"

#if COUNTS_ALLOCATIONS
static kvasir_model *model;
static kvasir_error err;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static void decode(kvasir_seq *s, int steps, float *logits) {
    kvasir_eval_options last = {.struct_size = sizeof(kvasir_eval_options), .last_logits = logits};
    long before = allocations;
    for (int i = 0; i < steps; i++) {
        int32_t id = i % 512;
        need(kvasir_seq_eval(s, &id, 1, &last, &err));
    }
    assert_int_equal(allocations - before, 0);
}

static void check(const char *bits, uint32_t max_kv_size, const char *centre) {
    kvasir_context_options o = kvasir_context_defaults();
    o.key_centre = centre;
    o.kv_bits = bits;
    o.max_kv_size = max_kv_size;
    o.threads = 2;
    o.ctx = 2048;
    o.cache_bytes = 64 << 20;
    kvasir_context *ctx;
    kvasir_seq *s, *fork;
    need(kvasir_context_create(model, &o, &ctx, &err));
    need(kvasir_seq_create(ctx, &s, &err));
    static const int32_t prompt[100] = {1, 2, 3};
    need(kvasir_seq_eval(s, prompt, 100, NULL, &err));
    float logits[512];
    decode(s, 700, logits);
    need(kvasir_seq_fork(s, &fork, &err));
    decode(fork, 300, logits);
    decode(s, 300, logits);
    need(kvasir_seq_requantize(s, strcmp(bits, "3") ? "3,f16" : "f32", NULL, &err));
    decode(s, 200, logits);
    decode(fork, 200, logits);
    kvasir_seq_destroy(s);
    kvasir_seq_destroy(fork);
    kvasir_context_destroy(ctx);
}

static void test_no_allocation(void **state) {
    (void)state;
    struct temp_folder folder;
    struct text_buf file = random_centres(model, 20, 1);
    temp_folder_make(&folder);
    const char *centre = temp_write(&folder, "centres", file.data, file.len);
    text_free(&file);
    check("8,4", 0, "off");
    check("8,4", 128, "off");
    check("f16", 128, "off");
    check("3", 0, "off");
    check("8,4", 0, centre);
    check("8,4", 128, centre);
    temp_folder_remove(&folder);
}

static void test_sampling(void **state) {
    (void)state;
    enum { VOCAB = 3000 };
    static float logits[VOCAB];
    const kvasir_logit_bias bias[] = {{3, 1}, {2999, -1}};
    const int32_t special[] = {1, 2, 3};
    kvasir_sampling o = {.temp = 1,
                         .top_p = 0.9f,
                         .min_p = 0.001f,
                         .min_tokens_to_keep = 3,
                         .xtc_probability = 0.5f,
                         .xtc_threshold = 0.01f,
                         .xtc_special = special,
                         .n_xtc_special = 3,
                         .top_k = 100,
                         .repetition_penalty = 1.1f,
                         .repetition_context = 100,
                         .presence_penalty = 0.1f,
                         .presence_context = 50,
                         .frequency_penalty = 0.1f,
                         .frequency_context = 20,
                         .logit_bias = bias,
                         .n_logit_bias = 2};
    struct sampler_scratch *scratch;
    kvasir_sampler *all, *greedy;
    kvasir_stop *stop;
    need(sampler_scratch_create(VOCAB, &scratch, &err));
    need(sampler_create_shared(&o, VOCAB, 1000, scratch, &all, &err));
    need(sampler_create_shared(&(kvasir_sampling){0}, VOCAB, 1000, scratch, &greedy, &err));
    need(kvasir_stop_create((const char *const[]){"abab", "ba!"}, 2, &stop, &err));
    long before = allocations;
    for (int i = 0; i < 1000; i++) {
        char out[16];
        size_t n;
        float logprob;
        kvasir_token_logprob top[20];
        for (int t = 0; t < VOCAB; t++)
            logits[t] = (float)((t * 7919 + i * 31) % 1009) / 50;
        int32_t id = kvasir_sampler_pick(all, logits);
        kvasir_sampler_accept(all, id);
        kvasir_sampler_accept(greedy, kvasir_sampler_pick(greedy, logits));
        sampler_logprobs(logits, VOCAB, id, 20, &logprob, top);
        assert_true(kvasir_stop_push(stop, "abaababb", (size_t)(i % 3), out, &n));
    }
    assert_int_equal(allocations - before, 0);
    kvasir_stop_destroy(stop);
    kvasir_sampler_destroy(all);
    kvasir_sampler_destroy(greedy);
    sampler_scratch_destroy(scratch);
}

int main(void) {
    skip_without(MODEL "/config.json");
    if (kvasir_model_open(MODEL, &model, &err) != KVASIR_OK) {
        printf("%s\n", err.text);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_allocation),
                                       cmocka_unit_test(test_sampling)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kvasir_model_close(model);
    return failed;
}
#else
int main(void) {
    printf("SKIPPED: a sanitizer has malloc for itself\n");
    return 77;
}
#endif
