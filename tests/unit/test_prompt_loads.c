/* SPDX-License-Identifier: Apache-2.0 */
/* Prompt-cache files of requests, read beside the engine's thread: others go on meanwhile, whatever
 * becomes of the file; families with windows and states, and caches that rotate; LOAD-1, LOAD-2.
 * The load thread is held at a gate before each page (the linker wraps prompt_load_make). */
#include "model_files.h"

#include <pthread.h>
#include <time.h>

#include "answers.h"
#include "engine/engine.h"
#include "tensors.h"

enum { VOCAB = 512, FILE_TOKENS = 330, REST = 20, ANSWER = 30 };

static kvasir_error err;
static int32_t text[2][FILE_TOKENS];
static struct temp_folder folder;

/* ---- the gate -------------------------------------------------------------------------------- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static uint32_t passes = UINT32_MAX; /* pages that may still be made */
static uint32_t at_gate;             /* threads that wait */
static uint32_t bad_page;            /* the page at this position fails; 0: none */

kvasir_status __real_prompt_load_make(struct prompt_load *l, uint32_t first, uint8_t *tiles,
                                      kvasir_error *e);
kvasir_status __wrap_prompt_load_make(struct prompt_load *l, uint32_t first, uint8_t *tiles,
                                      kvasir_error *e);
kvasir_status __wrap_prompt_load_make(struct prompt_load *l, uint32_t first, uint8_t *tiles,
                                      kvasir_error *e) {
    pthread_mutex_lock(&mutex);
    at_gate++;
    pthread_cond_broadcast(&moved);
    while (!passes)
        pthread_cond_wait(&moved, &mutex);
    passes -= passes != UINT32_MAX;
    at_gate--;
    const bool bad = bad_page && first == bad_page;
    pthread_mutex_unlock(&mutex);
    return bad ? (fail)(e, KVASIR_ERR_IO, "the page at %u is bad", first)
               : __real_prompt_load_make(l, first, tiles, e);
}

static void let_pass(uint32_t pages) {
    pthread_mutex_lock(&mutex);
    passes = pages;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&mutex);
}

/* Until the load thread stands at the closed gate. */
static void wait_at_gate(void) {
    pthread_mutex_lock(&mutex);
    while (!at_gate || passes)
        pthread_cond_wait(&moved, &mutex);
    pthread_mutex_unlock(&mutex);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static int set_up(void **state) {
    uint32_t r = 11;
    (void)state;
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < FILE_TOKENS; i++) {
            r = r * 1664525 + 1013904223;
            text[p][i] = (int32_t)(r >> 16) % VOCAB;
        }
    temp_folder_make(&folder);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    temp_folder_remove(&folder);
    return 0;
}

struct world {
    kvasir_model *model;
    kvasir_engine_options options;
    kvasir_prompt_cache *file;
    kvasir_engine *engine;
    int32_t tokens[ANSWER]; /* what a sequence of the file says after text[1][0 .. REST) */
};

static void pick(const float *logits, uint32_t vocab, int32_t *token) {
    const kvasir_sampling sampling = kvasir_sampling_defaults();
    kvasir_sampler *greedy;
    need(kvasir_sampler_create(&sampling, vocab, &greedy, &err));
    *token = kvasir_sampler_pick(greedy, logits);
    kvasir_sampler_destroy(greedy);
}

/* Saves a file of text[0] and answers with a sequence that is loaded from it (kvasir_seq_load). */
static void make_file(struct world *w) {
    const char *path = temp_file(&folder, "prompt.safetensors");
    kvasir_context *ctx;
    kvasir_seq *seq;
    kvasir_model_info info;
    kvasir_model_get_info(w->model, &info);
    float *logits = malloc(info.vocab * sizeof *logits);
    kvasir_eval_options last = {.struct_size = sizeof last, .last_logits = logits};
    need(kvasir_context_create(w->model, &w->options.context, &ctx, &err));
    need(kvasir_seq_create(ctx, &seq, &err));
    need(kvasir_seq_eval(seq, text[0], FILE_TOKENS, NULL, &err));
    need(kvasir_seq_save(seq, path, false, &err));
    kvasir_seq_destroy(seq);
    need(kvasir_prompt_cache_open(w->model, path, &w->file, &err));
    need(kvasir_seq_load(ctx, w->file, false, &seq, &err));
    need(kvasir_seq_eval(seq, text[1], REST, &last, &err));
    for (uint32_t i = 0; i < ANSWER; i++) {
        pick(logits, info.vocab, &w->tokens[i]);
        need(kvasir_seq_eval(seq, &w->tokens[i], 1, &last, &err));
    }
    free(logits);
    kvasir_seq_destroy(seq);
    kvasir_context_destroy(ctx);
}

static struct world *begin_started(const char *model, uint32_t max_kv_size, uint32_t start) {
    struct world *w = calloc(1, sizeof *w);
    char path[512];
    snprintf(path, sizeof path, "%s/fixtures/tiny/%s", SHARED_DIR, model);
    need(kvasir_model_open(path, &w->model, &err));
    w->options = answers_options(64);
    w->options.context.kv_bits = "8,4";
    w->options.context.key_centre = "off";
    w->options.context.max_kv_size = max_kv_size;
    w->options.context.quantized_kv_start = start;
    make_file(w);
    w->engine = answers_engine(w->model, &w->options);
    return w;
}

static struct world *begin(const char *model, uint32_t max_kv_size) {
    return begin_started(model, max_kv_size, 0);
}

static void end(struct world *w) {
    kvasir_engine_destroy(w->engine);
    kvasir_prompt_cache_close(w->file);
    kvasir_model_close(w->model);
    free(w);
}

/* A request that continues the file. */
static struct answer *after_file(const struct world *w) {
    struct answer *a = answer_new(text[1], REST, ANSWER);
    a->request.prompt_cache = w->file;
    a->request.ignore_end = true;
    return a;
}

static void expect_whole(const struct world *w, struct answer *a) {
    answer_wait(a);
    assert_int_equal(a->choices[0].finish, KVASIR_FINISH_LENGTH);
    assert_int_equal(a->cached_tokens, FILE_TOKENS);
    assert_int_equal(a->prompt_tokens, FILE_TOKENS + REST);
    assert_memory_equal(a->choices[0].tokens, w->tokens, sizeof w->tokens);
    free(a);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_families(void **state) {
    (void)state;
    static const struct {
        const char *model;
        uint32_t max_kv_size, start;
    } CASES[] = {{"llama", 0, 0},      {"llama", 128, 0},     {"gemma3", 0, 0},
                 {"qwen3_next", 0, 0}, {"gpt_oss", 0, 0},     {"lfm2", 0, 0},
                 {"llama", 0, 128},    {"llama", 128, 64},    {"gemma3", 0, 320},
                 {"llama", 0, 1000},   {"qwen3_next", 0, 100}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct world *w = begin_started(CASES[i].model, CASES[i].max_kv_size, CASES[i].start);
        struct answer *a[3];
        for (int k = 0; k < 3; k++) {
            a[k] = after_file(w);
            need(answer_submit(w->engine, a[k], &err));
        }
        for (int k = 0; k < 3; k++)
            expect_whole(w, a[k]);
        assert_int_equal(engine_settled(w->engine).cached_tokens, 3 * FILE_TOKENS);
        end(w);
    }
}

/* While the file is not read, another request's whole answer comes. */
static void test_others_go_on(void **state) {
    (void)state;
    struct world *w = begin("llama", 0);
    struct answer *a = after_file(w), *other = answer_new(text[1], 100, 200);
    let_pass(2);
    need(answer_submit(w->engine, a, &err));
    wait_at_gate();
    other->request.ignore_end = true;
    answer_run(w->engine, other);
    assert_int_equal(other->choices[0].n, 200);
    assert_int_equal(a->choices[0].n, 0);
    let_pass(UINT32_MAX);
    expect_whole(w, a);
    free(other);
    end(w);
}

/* A request whose file is being read, and one whose file waits for its turn. */
static void test_cancel(void **state) {
    (void)state;
    struct world *w = begin("llama", 0);
    for (int which = 0; which < 2; which++) {
        struct answer *a[2] = {after_file(w), after_file(w)};
        let_pass(1);
        for (int k = 0; k < 2; k++)
            need(answer_submit(w->engine, a[k], &err));
        wait_at_gate();
        kvasir_engine_cancel(w->engine, a[which]->id);
        let_pass(UINT32_MAX);
        answer_wait(a[which]);
        if (a[which]->choices[0].finish != KVASIR_FINISH_CANCELLED) /* read in the meantime */
            assert_memory_equal(a[which]->choices[0].tokens, w->tokens,
                                a[which]->choices[0].n * sizeof *w->tokens);
        free(a[which]);
        expect_whole(w, a[!which]);
    }
    assert_int_equal(engine_settled(w->engine).running, 0);
    end(w);
}

static void *open_later(void *user) {
    (void)user;
    nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
    let_pass(UINT32_MAX);
    return NULL;
}

/* The engine ends while a file is read: it waits for the page. */
static void test_end_of_the_engine(void **state) {
    (void)state;
    struct world *w = begin("llama", 0);
    struct answer *a = after_file(w);
    let_pass(0);
    need(answer_submit(w->engine, a, &err));
    wait_at_gate();
    pthread_t opener;
    assert_int_equal(pthread_create(&opener, NULL, open_later, NULL), 0);
    kvasir_engine_destroy(w->engine);
    pthread_join(opener, NULL);
    answer_wait(a);
    assert_int_equal(a->choices[0].finish, KVASIR_FINISH_CANCELLED);
    free(a);
    w->engine = answers_engine(w->model, &w->options);
    end(w);
}

static void test_a_bad_page(void **state) {
    (void)state;
    struct world *w = begin("llama", 0);
    struct answer *bad = after_file(w), *good = after_file(w);
    let_pass(0);
    bad_page = 128;
    need(answer_submit(w->engine, bad, &err));
    wait_at_gate();
    let_pass(UINT32_MAX);
    answer_wait(bad);
    assert_int_equal(bad->choices[0].finish, KVASIR_FINISH_ERROR);
    assert_string_equal(bad->error.text, "the page at 128 is bad");
    bad_page = 0;
    need(answer_submit(w->engine, good, &err));
    expect_whole(w, good);
    const kvasir_engine_stats s = engine_settled(w->engine);
    assert_int_equal(s.failed, 1);
    assert_int_equal(s.used_bytes, s.fixed_bytes + s.stored_bytes);
    free(bad);
    end(w);
}

/* Files and others compete for pages: all have their tokens in the end. */
static void test_short_of_pages(void **state) {
    (void)state;
    enum { N = 4 };
    struct world *w = begin("llama", 0);
    const uint64_t fixed = engine_settled(w->engine).fixed_bytes;
    kvasir_engine_destroy(w->engine);
    w->options.cache_memory_bytes = fixed + (900 << 10);
    w->engine = answers_engine(w->model, &w->options);
    struct answer *a[N], *other[N];
    answers_hold();
    for (int i = 0; i < N; i++) {
        other[i] = answer_new(text[1] + i, 200, 300);
        other[i]->request.ignore_end = true;
        other[i]->hold_at = i == 0; /* until all are waiting */
        a[i] = after_file(w);
        need(answer_submit(w->engine, other[i], &err));
        if (i == 0)
            answer_wait_held();
        need(answer_submit(w->engine, a[i], &err));
    }
    answers_release();
    for (int i = 0; i < N; i++) {
        int32_t alone[300];
        expect_whole(w, a[i]);
        answer_wait(other[i]);
        (void)answer_alone(w->model, &w->options.context, &other[i]->request, 0, alone);
        assert_memory_equal(other[i]->choices[0].tokens, alone, sizeof alone);
        free(other[i]);
    }
    assert_true(engine_settled(w->engine).preemptions > 0);
    end(w);
}

int main(void) {
    skip_without(SHARED_DIR "/fixtures/tiny/llama/config.json");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),   cmocka_unit_test(test_others_go_on),
        cmocka_unit_test(test_cancel),     cmocka_unit_test(test_end_of_the_engine),
        cmocka_unit_test(test_a_bad_page), cmocka_unit_test(test_short_of_pages),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
