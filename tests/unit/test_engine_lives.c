/* SPDX-License-Identifier: Apache-2.0 */
/* What a request may ask of the cache (no_store, ttl_seconds, pin), in memory and in a tier below
 * it; forgetting that says how much it was; and why a request missed. Tokens are compared with
 * those of a sequence that computes everything itself. */
#include "model_files.h"

#include <pthread.h>

#include "engine/engine_internal.h"

#include "answers.h"
#include "gated_tier.h"

enum { VOCAB = 512, LONG = 400, ANSWER = 5 };

static kvasir_error err;
static kvasir_model *llama;
static int32_t text[3][LONG];

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static int set_up(void **state) {
    uint32_t r = 23;
    (void)state;
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < LONG; i++) {
            r = r * 1664525 + 1013904223;
            text[p][i] = (int32_t)(r >> 16) % VOCAB;
        }
    return kvasir_model_open(SHARED_DIR "/fixtures/tiny/llama", &llama, &err) != KVASIR_OK;
}

static int tear_down(void **state) {
    (void)state;
    kvasir_model_close(llama);
    return 0;
}

/* ---- requests -------------------------------------------------------------------------------- */

static const kvasir_request PLAIN, NO_STORE = {.no_store = true}, PIN = {.pin = true};

/* Runs n tokens with what `asked` says of the cache. Returns how many were cached. */
static uint32_t run(const kvasir_model *m, kvasir_engine *e, const kvasir_engine_options *o,
                    const int32_t *tokens, uint32_t n, uint32_t choices,
                    const kvasir_request *asked) {
    struct answer *a = answer_new(tokens, n, ANSWER);
    int32_t alone[ANSWER];
    a->request.ignore_end = true;
    a->request.n = choices;
    a->request.salt = asked->salt;
    a->request.no_store = asked->no_store;
    a->request.ttl_seconds = asked->ttl_seconds;
    a->request.pin = asked->pin;
    answer_run(e, a);
    for (uint32_t c = 0; c < choices; c++) {
        assert_int_equal(answer_alone(m, &o->context, &a->request, c, alone), ANSWER);
        assert_memory_equal(a->choices[c].tokens, alone, sizeof alone);
    }
    const uint32_t cached = a->cached_tokens;
    free(a);
    return cached;
}

static uint32_t ask(kvasir_engine *e, const kvasir_engine_options *o, const int32_t *tokens,
                    uint32_t n, const kvasir_request *asked) {
    return run(llama, e, o, tokens, n, 1, asked);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool called;

static void now_called(void) {
    pthread_mutex_lock(&mutex);
    called = true;
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&mutex);
}

static void wait_called(void) {
    pthread_mutex_lock(&mutex);
    while (!called)
        pthread_cond_wait(&changed, &mutex);
    called = false;
    pthread_mutex_unlock(&mutex);
}

/* ---- nothing is stored ----------------------------------------------------------------------- */

static void test_no_store(void **state) {
    (void)state;
    static const char *const models[] = {"llama", "qwen3_next", "gemma3"};
    for (int i = 0; i < 3; i++) {
        kvasir_model *m;
        char path[256];
        snprintf(path, sizeof path, SHARED_DIR "/fixtures/tiny/%s", models[i]);
        need(kvasir_model_open(path, &m, &err));
        kvasir_engine_options o = answers_options(64);
        o.context.snapshot_tokens = 64;
        kvasir_engine *e = answers_engine(m, &o);
        for (uint32_t n = 1; n <= 3; n++)
            assert_int_equal(run(m, e, &o, text[0], 200, n, &NO_STORE), 0);
        kvasir_engine_stats s = engine_settled(e);
        assert_int_equal(s.stored_bytes, 0);
        assert_int_equal(s.tree_nodes, 0);
        assert_int_equal(run(m, e, &o, text[0], 200, 1, &PLAIN), 0);
        s = engine_settled(e);
        int32_t longer[LONG]; /* begins with what is stored, and adds nothing to it */
        memcpy(longer, text[0], 200 * sizeof *longer);
        memcpy(longer + 200, text[1], 150 * sizeof *longer);
        for (uint32_t n = 1; n <= 3; n++)
            assert_in_range(run(m, e, &o, longer, 350, n, &NO_STORE), 199, 200);
        const kvasir_engine_stats after = engine_settled(e);
        assert_int_equal(after.stored_tokens, s.stored_tokens);
        assert_int_equal(after.stored_bytes, s.stored_bytes);
        assert_int_equal(after.tree_nodes, s.tree_nodes);
        kvasir_engine_destroy(e);
        kvasir_model_close(m);
    }
}

/* Others do not wait for a prefix that is not going to be stored. */
static void test_no_store_at_once(void **state) {
    (void)state;
    const kvasir_engine_options o = answers_options(64);
    kvasir_engine *e = answers_engine(llama, &o);
    struct answer *a[6];
    for (int i = 0; i < 6; i++) {
        a[i] = answer_new(text[0], 300, ANSWER);
        a[i]->request.no_store = i < 5;
        need(answer_submit(e, a[i], &err));
    }
    for (int i = 0; i < 6; i++) {
        answer_wait(a[i]);
        assert_memory_equal(a[i]->choices[0].tokens, a[0]->choices[0].tokens,
                            a[0]->choices[0].n * sizeof(int32_t));
    }
    for (int i = 0; i < 6; i++)
        free(a[i]);
    assert_in_range(engine_settled(e).stored_tokens, 300, 305);
    kvasir_engine_destroy(e);
}

/* ---- tiers ----------------------------------------------------------------------------------- */

static kvasir_engine *engine_at(kvasir_engine_options *o, struct place *p, bool instant) {
    const struct tiers_options t = {
        .tiers = {place_open(p, instant)}, .n = 1, .context = {{5, 6}}, .late_seconds = 20};
    kvasir_engine *e;
    o->cache_flush_seconds = 20;
    need(engine_create_take(llama, o, NULL, &t, &e, &err));
    return e;
}

static void test_no_store_in_tiers(void **state) {
    (void)state;
    for (int instant = 0; instant < 2; instant++) {
        kvasir_engine_options o = answers_options(64);
        struct place *p = place_new();
        kvasir_engine *e = engine_at(&o, p, instant);
        assert_int_equal(run(llama, e, &o, text[0], 330, 3, &NO_STORE), 0);
        kvasir_engine_destroy(e);
        assert_int_equal(p->writes, 0);
        e = engine_at(&o, p, instant);
        assert_int_equal(ask(e, &o, text[0], 200, &PLAIN), 0);
        kvasir_engine_destroy(e);
        assert_int_equal(p->writes, 3);
        e = engine_at(&o, p, instant);
        assert_int_equal(ask(e, &o, text[0], 330, &NO_STORE), 192); /* found, and left alone */
        kvasir_engine_destroy(e);
        assert_int_equal(p->writes, 3);
        place_free(p);
    }
}

/* Until the clock's second is a new one, so that what takes less than a second has one time. */
static uint64_t new_second(void) {
    const uint64_t begin = (uint64_t)time(NULL);
    while ((uint64_t)time(NULL) == begin)
        usleep(1000);
    return begin + 1;
}

static void wait_until(uint64_t second) {
    while ((uint64_t)time(NULL) < second)
        usleep(10000);
}

static void test_ttl(void **state) {
    (void)state;
    const kvasir_engine_options o = answers_options(64);
    const kvasir_request soon = {.ttl_seconds = 2}, late = {.ttl_seconds = 1000};
    kvasir_engine *e = answers_engine(llama, &o);
    assert_int_equal(ask(e, &o, text[0], 300, &late), 0);
    assert_int_equal(ask(e, &o, text[0], 300, &soon), 299); /* the longer life counts */
    assert_int_equal(ask(e, &o, text[1], 300, &soon), 0);
    const uint64_t end = (uint64_t)time(NULL) + 2; /* it was stored before */
    wait_until(end);
    for (int i = 0; i < 5000 && engine_settled(e).expired_tokens < 300; i++)
        usleep(1000); /* the engine is idle, and wakes up by itself */
    assert_in_range(engine_settled(e).expired_tokens, 300, 310);
    assert_int_equal(ask(e, &o, text[1], 300, &PLAIN), 0);
    assert_int_equal(ask(e, &o, text[0], 300, &PLAIN), 299);
    assert_int_equal(engine_settled(e).misses[KVASIR_MISS_EXPIRED], 1);
    kvasir_engine_destroy(e);
}

/* Of the engine's tree. Asked of its thread. */
static void look_at_tree(void *user, const kvasir_explanation *x) {
    kvasir_engine *const e = ((void **)user)[0];
    (void)x;
    *(uint64_t *)((void **)user)[1] = tree_next_expiry(e->tree);
    now_called();
}

static uint64_t next_expiry(kvasir_engine *e) {
    uint64_t at;
    void *user[] = {e, &at};
    need(kvasir_engine_explain(e, "", text[0], 1, false, look_at_tree, user, &err));
    wait_called();
    return at;
}

/* Records expire with the pages; one that lives much longer is written again, and the shorter time
 * comes back with what is loaded. */
static void test_ttl_in_tiers(void **state) {
    (void)state;
    const kvasir_request soon = {.ttl_seconds = 1000}, later = {.ttl_seconds = 1500};
    for (int instant = 0; instant < 2; instant++) {
        kvasir_engine_options o = answers_options(64);
        struct place *p = place_new();
        const uint64_t begin = (uint64_t)time(NULL);
        kvasir_engine *e = engine_at(&o, p, instant);
        assert_int_equal(ask(e, &o, text[0], 330, &soon), 0);
        assert_true(place_wait(p, 5));
        assert_in_range(p->expires, begin + 1000, (uint64_t)time(NULL) + 1000);
        assert_int_equal(ask(e, &o, text[0], 330, &later), 329); /* not twice the time */
        kvasir_engine_destroy(e);
        assert_int_equal(p->writes, 5);
        assert_int_equal(p->drops, 0);
        e = engine_at(&o, p, instant);
        assert_int_equal(ask(e, &o, text[0], 330, &NO_STORE), 320);
        assert_in_range(next_expiry(e), begin + 1000, (uint64_t)time(NULL) + 1000);
        assert_int_equal(ask(e, &o, text[0], 330, &PLAIN), 320);
        assert_true(place_wait(p, 10)); /* for good, from now on */
        kvasir_engine_destroy(e);
        assert_int_equal(p->writes, 10);
        assert_int_equal(p->drops, 5); /* or the tier would keep the ones that it has */
        assert_int_equal(p->expires, 0);
        e = engine_at(&o, p, instant);
        assert_int_equal(ask(e, &o, text[0], 330, &PLAIN), 320);
        assert_true(next_expiry(e) == TREE_FOREVER);
        kvasir_engine_destroy(e);
        assert_int_equal(p->writes, 10);
        place_free(p);
    }
}

static void test_expired_records_are_not_found(void **state) {
    (void)state;
    const kvasir_request soon = {.ttl_seconds = 2};
    kvasir_engine_options o = answers_options(64);
    struct place *p = place_new();
    kvasir_engine *e = engine_at(&o, p, true);
    assert_int_equal(ask(e, &o, text[0], 330, &soon), 0);
    assert_true(place_wait(p, 5));
    kvasir_engine_destroy(e);
    wait_until(new_second() + 2);
    e = engine_at(&o, p, true);
    assert_int_equal(ask(e, &o, text[0], 330, &PLAIN), 0);
    kvasir_engine_destroy(e);
    place_free(p);
}

/* ---- pins ------------------------------------------------------------------------------------ */

static void test_pin(void **state) {
    (void)state;
    kvasir_engine_options o = answers_options(64);
    kvasir_engine *e = answers_engine(llama, &o);
    o.cache_memory_bytes = engine_settled(e).fixed_bytes + (1 << 20);
    kvasir_engine_destroy(e);
    for (int pinned = 0; pinned < 2; pinned++) {
        kvasir_request other = {.salt = "other"};
        e = answers_engine(llama, &o);
        ask(e, &o, text[0], 300, pinned ? &PIN : &PLAIN);
        assert_true((engine_settled(e).pinned_bytes > 0) == pinned);
        for (int i = 0; i < 60; i++)
            ask(e, &o, text[1] + i, 300, &other);
        assert_true(engine_settled(e).evicted_pages > 0);
        assert_int_equal(ask(e, &o, text[0], 300, &NO_STORE), pinned ? 299 : 0);
        assert_int_equal(engine_settled(e).misses[KVASIR_MISS_EVICTED] > 0, !pinned);
        kvasir_engine_forget(e, "");
        ask(e, &o, text[2], 10, &other);
        assert_int_equal(engine_settled(e).pinned_bytes, 0);
        kvasir_engine_destroy(e);
    }
}

static void test_what_cannot_be_asked(void **state) {
    (void)state;
    const kvasir_engine_options o = answers_options(64);
    kvasir_engine *e = answers_engine(llama, &o);
    struct answer *a = answer_new(text[0], 10, 1);
    a->request.no_store = a->request.pin = true;
    assert_int_equal(answer_submit(e, a, &err), KVASIR_ERR_ARGUMENT);
    assert_string_equal(err.field, "request.no_store");
    a->request.pin = false;
    a->request.ttl_seconds = 1;
    assert_int_equal(answer_submit(e, a, &err), KVASIR_ERR_ARGUMENT);
    a->request.no_store = false;
    a->request.ttl_seconds = (uint64_t)KVASIR_TTL_MAX + 1;
    assert_int_equal(answer_submit(e, a, &err), KVASIR_ERR_ARGUMENT);
    assert_string_equal(err.field, "request.ttl_seconds");
    a->request.ttl_seconds = KVASIR_TTL_MAX;
    answer_run(e, a);
    free(a);
    kvasir_engine_destroy(e);
}

/* ---- forgetting, explaining ------------------------------------------------------------------ */

static kvasir_forgotten forgotten;
static kvasir_explanation explained;

static void on_forgotten(void *user, const kvasir_forgotten *what) {
    *(kvasir_forgotten *)user = *what;
    now_called();
}

static void on_explained(void *user, const kvasir_explanation *what) {
    *(kvasir_explanation *)user = *what;
    now_called();
}

static void forget(kvasir_engine *e, const char *const *salts, size_t n) {
    need(kvasir_engine_forget_counted(e, salts, n, on_forgotten, &forgotten, &err));
    wait_called();
}

static void explain(kvasir_engine *e, const char *salt, const int32_t *tokens, size_t n, bool all) {
    need(kvasir_engine_explain(e, salt, tokens, n, all, on_explained, &explained, &err));
    wait_called();
}

static void test_forgetting_is_counted(void **state) {
    (void)state;
    static const char *const ab[] = {"a", "no such salt", "b"};
    for (int tiers = 0; tiers < 2; tiers++) {
        kvasir_engine_options o = answers_options(64);
        struct place *p = tiers ? place_new() : NULL;
        kvasir_engine *e = tiers ? engine_at(&o, p, true) : answers_engine(llama, &o);
        kvasir_request of[] = {{.salt = "a"}, {.salt = "b"}, {.salt = "c"}};
        for (int i = 0; i < 3; i++)
            assert_int_equal(ask(e, &o, text[0], 200, &of[i]), 0);
        forget(e, ab + 1, 1);
        assert_int_equal(forgotten.entries + forgotten.tokens + forgotten.bytes, 0);
        forget(e, ab, 3);
        assert_int_equal(forgotten.entries, 2);
        assert_int_equal(forgotten.tokens, 2 * 204);
        assert_true(forgotten.bytes > 0);
        if (tiers) /* what waited may have been given up: it is offered again, c's alone */
            assert_true(place_wait(p, 3));
        for (int i = 0; i < 3; i++)
            assert_int_equal(ask(e, &o, text[0], 200, &of[i]), i == 2 ? 199 : 0);
        forget(e, NULL, 0);
        assert_int_equal(forgotten.entries, 3);
        assert_int_equal(forgotten.tokens, 3 * 204);
        forget(e, NULL, 0);
        assert_int_equal(forgotten.entries + forgotten.tokens + forgotten.bytes, 0);
        kvasir_engine_destroy(e);
        if (tiers)
            place_free(p);
    }
}

static void test_explanations(void **state) {
    (void)state;
    kvasir_engine_options o = answers_options(64);
    struct place *p = place_new();
    kvasir_engine *e = engine_at(&o, p, true);
    int32_t tokens[LONG];
    memcpy(tokens, text[0], sizeof tokens);
    tokens[250] = (text[0][250] + 1) % VOCAB;
    explain(e, NULL, tokens, 330, true);
    assert_int_equal(explained.common_tokens + explained.store_tokens, 0);
    assert_int_equal(explained.why, KVASIR_MISS_NEW);
    assert_int_equal(explained.token, tokens[0]);
    assert_int_equal(explained.other_token, -1);
    ask(e, &o, text[0], 330, &PLAIN);
    explain(e, "", tokens, 330, true);
    assert_int_equal(explained.prompt_tokens, 330);
    assert_int_equal(explained.common_tokens, 250);
    assert_int_equal(explained.usable_tokens, 250);
    assert_int_equal(explained.store_tokens, 250);
    assert_int_equal(explained.token, tokens[250]);
    assert_int_equal(explained.other_token, text[0][250]);
    assert_int_equal(explained.why, KVASIR_MISS_NEW);
    assert_int_equal(explained.other_salt_tokens, 0);
    explain(e, "mine", tokens, 330, true);
    assert_int_equal(explained.common_tokens, 0);
    assert_int_equal(explained.other_salt_tokens, 250);
    explain(e, "mine", tokens, 330, false);
    assert_int_equal(explained.other_salt_tokens, 0);
    assert_int_equal(kvasir_engine_explain(e, "", tokens, 0, false, on_explained, NULL, &err),
                     KVASIR_ERR_ARGUMENT);
    tokens[3] = VOCAB;
    assert_int_equal(kvasir_engine_explain(e, "", tokens, 9, false, on_explained, NULL, &err),
                     KVASIR_ERR_ARGUMENT);
    kvasir_engine_destroy(e);
    e = engine_at(&o, p, true); /* memory has nothing, the tier has whole pages */
    explain(e, "", text[0], 330, false);
    assert_int_equal(explained.common_tokens, 0);
    assert_int_equal(explained.usable_tokens, 0);
    assert_int_equal(explained.store_tokens, 320);
    explain(e, "", text[0], 64, false);
    assert_int_equal(explained.store_tokens, 0);
    kvasir_engine_destroy(e);
    place_free(p);
    o.no_prefix_cache = true;
    e = answers_engine(llama, &o);
    explain(e, "", text[0], 64, true);
    assert_int_equal(explained.why, KVASIR_MISS_NOT_LOOKED_UP);
    kvasir_engine_destroy(e);
}

static void test_events_say_why(void **state) {
    (void)state;
    const kvasir_engine_options o = answers_options(64);
    kvasir_engine *e = answers_engine(llama, &o);
    int32_t tokens[LONG];
    memcpy(tokens, text[0], sizeof tokens);
    tokens[150] = (text[0][150] + 1) % VOCAB;
    const int32_t *prompts[] = {text[0], text[0], tokens};
    static const struct {
        uint32_t common;
        kvasir_miss why;
    } WANT[] = {{0, KVASIR_MISS_NEW}, {200, KVASIR_MISS_NOTHING}, {150, KVASIR_MISS_NEW}};
    for (int i = 0; i < 3; i++) {
        struct answer *a = answer_new(prompts[i], 200, 1);
        answer_run(e, a);
        assert_int_equal(a->common_tokens, WANT[i].common);
        assert_int_equal(a->why, WANT[i].why);
        assert_int_equal(a->other_token, i == 2 ? text[0][150] : -1);
        free(a);
    }
    const kvasir_engine_stats s = engine_settled(e);
    assert_int_equal(s.misses[KVASIR_MISS_NEW], 2);
    assert_int_equal(s.misses[KVASIR_MISS_NOTHING], 1);
    kvasir_engine_destroy(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_store),
        cmocka_unit_test(test_no_store_at_once),
        cmocka_unit_test(test_no_store_in_tiers),
        cmocka_unit_test(test_ttl),
        cmocka_unit_test(test_ttl_in_tiers),
        cmocka_unit_test(test_expired_records_are_not_found),
        cmocka_unit_test(test_pin),
        cmocka_unit_test(test_what_cannot_be_asked),
        cmocka_unit_test(test_forgetting_is_counted),
        cmocka_unit_test(test_explanations),
        cmocka_unit_test(test_events_say_why),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
