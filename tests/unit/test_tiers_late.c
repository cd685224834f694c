/* SPDX-License-Identifier: Apache-2.0 */
/* A load came too late, and its readers still have the pages that its request would need: the
 * request waits for them if the budget does not hold both, and never fails. */
#include "model_files.h"

#include <pthread.h>
#include <unistd.h>

#include "engine/engine_internal.h"

#include "answers.h"
#include "gated_tier.h"
#include "tensors.h"

enum { VOCAB = 512, TOKENS = 600, ANSWER = 5 };

static kvasir_error err;
static kvasir_model *llama;
static int32_t text[TOKENS];

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static kvasir_engine *engine_at(const kvasir_engine_options *o, struct place *p, bool instant,
                                double late_seconds) {
    const struct tiers_options t = {.tiers = {place_open(p, instant)},
                                    .n = 1,
                                    .context = {{5, 6}},
                                    .late_seconds = late_seconds};
    kvasir_engine *e = NULL;
    return engine_create_take(llama, o, NULL, &t, &e, &err) == KVASIR_OK ? e : NULL;
}

static struct answer *ask(void) {
    struct answer *a = answer_new(text, TOKENS, ANSWER);
    a->request.ignore_end = true;
    return a;
}

/* The smallest budget, of whole KiB, with which the prompt is accepted. */
static uint64_t least_budget(kvasir_engine_options o) {
    uint64_t low = 0, high = 64 << 10;
    while (high - low > 1) {
        const uint64_t middle = (low + high) / 2;
        struct place *p = place_new();
        o.cache_memory_bytes = middle << 10;
        kvasir_engine *e = engine_at(&o, p, true, 20);
        struct answer *a = ask();
        const bool good = e && answer_submit(e, a, &err) == KVASIR_OK;
        if (good)
            answer_wait(a);
        kvasir_engine_destroy(e);
        free(a);
        place_free(p);
        *(good ? &high : &low) = middle;
    }
    return high << 10;
}

static void fill(const kvasir_engine_options *o, struct place *p) {
    kvasir_engine *e = engine_at(o, p, true, 20);
    struct answer *a = ask();
    assert_non_null(e);
    answer_run(e, a);
    free(a);
    kvasir_engine_destroy(e);
}

static void wait_late(kvasir_engine *e) {
    kvasir_engine_stats s;
    do {
        usleep(1000);
        kvasir_engine_get_stats(e, &s);
    } while (!s.tier_loads_late);
}

/* both: the budget holds the late load and the request, which does not wait for the readers. */
static void run_late(const kvasir_engine_options *o, struct place *p, bool instant, bool both,
                     const int32_t *alone) {
    /* 0.8 s as long as it is not known how fast prompts are computed */
    kvasir_engine *e = engine_at(o, p, instant, 0.02);
    struct answer *a = ask();
    assert_non_null(e);
    gate_set(p, GATE_READ, true);
    need(answer_submit(e, a, &err));
    if (both)
        answer_wait(a);
    wait_late(e);
    usleep(20000);
    gate_set(p, GATE_READ, false);
    if (!both)
        answer_wait(a);
    if (a->choices[0].finish == KVASIR_FINISH_ERROR)
        fail_msg("%s", a->error.text);
    assert_int_equal(a->choices[0].finish, KVASIR_FINISH_LENGTH);
    assert_memory_equal(a->choices[0].tokens, alone, ANSWER * sizeof *alone);
    free(a);
    kvasir_engine_destroy(e);
}

static void test_late_loads_never_make_requests_fail(void **state) {
    (void)state;
    kvasir_engine_options o = answers_options(64);
    struct place *p = place_new();
    int32_t alone[ANSWER];
    o.context.ctx = 2 * TOKENS;
    o.context.threads = 1;
    o.cache_flush_seconds = 20;
    fill(&o, p);
    o.cache_flush_seconds = 0;
    struct answer *a = ask();
    assert_int_equal(answer_alone(llama, &o.context, &a->request, 0, alone), ANSWER);
    free(a);
    const uint64_t least = least_budget(o);
    for (int turn = 0; turn < 4; turn++) {
        o.cache_memory_bytes = turn < 2 ? least : 4 * least;
        run_late(&o, p, turn % 2, turn >= 2, alone);
    }
    place_free(p);
}

int main(void) {
    skip_without(SHARED_DIR "/fixtures/tiny/llama/config.json");
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_late_loads_never_make_requests_fail)};
    for (uint32_t i = 0, r = 17; i < TOKENS; i++) {
        r = r * 1664525 + 1013904223;
        text[i] = (int32_t)(r >> 16) % VOCAB;
    }
    if (kvasir_model_open(SHARED_DIR "/fixtures/tiny/llama", &llama, &err) != KVASIR_OK)
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kvasir_model_close(llama);
    return failed;
}
