/* SPDX-License-Identifier: Apache-2.0 */
/* kvasir_engine with tiers below its prefix tree: restarts, several tiers, slow ones, budgets
 * that just suffice, forgetting, full queues, ends. Every answer is compared with that of a
 * sequence that computes everything itself. Records that lie: sim.engine. */
#include "model_files.h"

#include <pthread.h>

#include "engine/engine_internal.h"

#include "answers.h"
#include "gated_tier.h"
#include "tensors.h"

enum { VOCAB = 512, LONG = 1600, SHORT = 330, PAGES = SHORT / TILE_TOKENS, ANSWER = 5 };

static kvasir_error err;
static kvasir_model *llama;
static int32_t text[4][LONG];

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static int set_up(void **state) {
    uint32_t r = 17;
    (void)state;
    for (int p = 0; p < 4; p++)
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

/* ---- engines and answers --------------------------------------------------------------------- */

static bool may_write = true;
static bool ask_may_write(void *user) {
    (void)user;
    return may_write;
}

static kvasir_engine_options options_of(void) {
    kvasir_engine_options o = answers_options(64);
    o.context.ctx = LONG;
    o.context.threads = 1;
    o.cache_flush_seconds = 20;
    return o;
}

static struct tiers_options tiers_of(struct place *p, bool instant) {
    return (struct tiers_options){.tiers = {place_open(p, instant)},
                                  .n = 1,
                                  .context = {{5, 6}},
                                  .late_seconds = 20,
                                  .may_write = ask_may_write};
}

static kvasir_engine *engine_on(const kvasir_model *m, const kvasir_engine_options *o,
                                const struct tiers_options *t) {
    kvasir_engine *e;
    need(engine_create_take(m, o, NULL, t, &e, &err));
    return e;
}

static kvasir_engine *engine_at(const kvasir_engine_options *o, struct place *p, bool instant) {
    const struct tiers_options t = tiers_of(p, instant);
    return engine_on(llama, o, &t);
}

/* The engine's figures once all requests have ended. (engine_settled expects that nothing is held
 * beside pages of the tree; tiers hold a buffer.) */
static kvasir_engine_stats settled(kvasir_engine *e) {
    kvasir_engine_stats s;
    for (;;) {
        kvasir_engine_get_stats(e, &s);
        if (s.finished + s.cancelled + s.failed == s.requests && !s.running)
            return s;
        usleep(1000);
    }
}

static struct answer *ask(const int32_t *tokens, size_t n) {
    struct answer *a = answer_new(tokens, n, ANSWER);
    a->request.ignore_end = true;
    return a;
}

/* What prompts of one model give alone: most are asked several times. */
static struct {
    uint64_t prompt;
    int32_t tokens[ANSWER];
} known[128];
static uint32_t n_known;

static const int32_t *alone_of(const kvasir_model *m, const kvasir_engine_options *o,
                               const kvasir_request *r) {
    const uint64_t prompt =
        XXH3_64bits_withSeed(r->tokens, r->n_tokens * sizeof *r->tokens,
                             XXH3_64bits(o->context.kv_bits, strlen(o->context.kv_bits)));
    for (uint32_t i = 0; i < n_known; i++)
        if (known[i].prompt == prompt)
            return known[i].tokens;
    n_known %= 128;
    known[n_known].prompt = prompt;
    assert_int_equal(answer_alone(m, &o->context, r, 0, known[n_known].tokens), ANSWER);
    return known[n_known++].tokens;
}

/* Its tokens are those that it has alone. */
static void check_answer(const kvasir_model *m, const kvasir_engine_options *o, struct answer *a) {
    assert_int_equal(a->choices[0].finish, KVASIR_FINISH_LENGTH);
    assert_memory_equal(a->choices[0].tokens, alone_of(m, o, &a->request),
                        ANSWER * sizeof(int32_t));
}

/* Runs a prompt and compares its answer. Returns its cached tokens. */
static uint32_t cached_of(const kvasir_model *m, kvasir_engine *e, const kvasir_engine_options *o,
                          const int32_t *tokens, uint32_t n, const char *salt) {
    struct answer *a = ask(tokens, n);
    a->request.salt = salt;
    answer_run(e, a);
    check_answer(m, o, a);
    const uint32_t cached = a->cached_tokens;
    free(a);
    return cached;
}

static uint32_t cached(kvasir_engine *e, const kvasir_engine_options *o, const int32_t *tokens,
                       uint32_t n) {
    return cached_of(llama, e, o, tokens, n, NULL);
}

/* An engine that has measured both does not load what it computes faster (TIERS-5): on a busy
 * machine that can be any of these tiny prompts. */
static void expect_found(kvasir_engine *e, uint32_t had, uint32_t least, uint32_t most) {
    const kvasir_engine_stats s = settled(e);
    assert_in_range(had, s.tier_loads_slow ? 0 : least, most);
}

/* Fills a place with the pages of the first n tokens of text[i]. */
static void fill(const kvasir_engine_options *o, struct place *p, int i, uint32_t n) {
    kvasir_engine *e = engine_at(o, p, true);
    assert_int_equal(cached(e, o, text[i], n), 0);
    kvasir_engine_destroy(e);
}

/* Of llama: a record of 64 tokens. */
static uint64_t page_bytes(const kvasir_engine_options *o) {
    struct place *p = place_new();
    kvasir_engine *e = engine_at(o, p, true);
    assert_int_equal(cached(e, o, text[0], SHORT), 0);
    kvasir_engine_destroy(e);
    e = engine_at(o, p, true);
    assert_int_equal(cached(e, o, text[0], SHORT), PAGES * TILE_TOKENS);
    const uint64_t bytes = settled(e).tier_bytes / PAGES;
    kvasir_engine_destroy(e);
    place_free(p);
    return bytes;
}

/* ---- restarts -------------------------------------------------------------------------------- */

static void test_restarts(void **state) {
    (void)state;
    static const char *const models[] = {"llama", "gemma3", "qwen3_next", "lfm2", "gpt_oss"};
    static const char *const bits[] = {"8,4", "f16"};
    for (size_t k = 0; k < sizeof models / sizeof *models; k++) {
        kvasir_model *m;
        char path[256];
        snprintf(path, sizeof path, SHARED_DIR "/fixtures/tiny/%s", models[k]);
        need(kvasir_model_open(path, &m, &err));
        n_known = 0;
        for (int b = 0; b < 4; b++) {
            kvasir_engine_options o = options_of();
            struct place *p = place_new();
            o.context.kv_bits = bits[b % 2];
            o.context.snapshot_tokens = 64;
            for (int turn = 0; turn < 3; turn++) {
                const struct tiers_options t = tiers_of(p, b / 2 == 0);
                kvasir_engine *e = engine_on(m, &o, &t);
                const uint32_t had = cached_of(m, e, &o, text[0], SHORT, NULL);
                assert_int_equal(had, turn ? PAGES * TILE_TOKENS : 0);
                const kvasir_engine_stats s = settled(e);
                assert_int_equal(s.tier_loads, turn > 0);
                assert_int_equal(s.tier_tokens, had);
                assert_true((s.tier_pages > 0) == (turn > 0));
                assert_true((s.tier_bytes > 0) == (turn > 0));
                assert_int_equal(s.tier_loads_late + s.tier_loads_cut + s.tier_loads_slow, 0);
                assert_int_equal(s.tier_unwritten_pages, 0);
                /* with the pages in memory no tier is asked */
                const uint32_t reads = count_of_place(p, &p->reads);
                assert_in_range(cached_of(m, e, &o, text[0], SHORT, NULL), had, SHORT - 1);
                assert_int_equal(count_of_place(p, &p->reads), reads);
                assert_int_equal(cached_of(m, e, &o, text[0], SHORT, "salt"),
                                 turn ? PAGES * TILE_TOKENS : 0);
                kvasir_engine_destroy(e);
            }
            place_free(p);
        }
        kvasir_model_close(m);
    }
    n_known = 0;
}

/* A prompt that goes on differently finds the pages before, one that is shorter its own. */
static void test_parts_of_prompts(void **state) {
    (void)state;
    const kvasir_engine_options o = options_of();
    struct place *p = place_new();
    fill(&o, p, 0, SHORT);
    static const struct {
        uint32_t same, other, cached;
    } c[] = {{65, 0, 64}, {64, 0, 0},    {64, 40, 64},  {63, 60, 0},
             {1, 0, 0},   {320, 0, 256}, {321, 0, 320}, {200, 300, 192}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        int32_t tokens[LONG];
        kvasir_engine *e = engine_at(&o, p, i % 2 == 0);
        memcpy(tokens, text[0], c[i].same * sizeof *tokens);
        memcpy(tokens + c[i].same, text[1], c[i].other * sizeof *tokens);
        tokens[c[i].same] = (text[0][c[i].same] + 1 + (int32_t)i) % VOCAB;
        assert_int_equal(cached(e, &o, tokens, c[i].same + c[i].other), c[i].cached);
        kvasir_engine_destroy(e);
    }
    place_free(p);
}

/* The first tier has the first pages, the second one all: both bring what they have. */
static void test_two_tiers(void **state) {
    (void)state;
    const kvasir_engine_options o = options_of();
    for (int instant = 0; instant < 4; instant++) {
        struct place *near = place_new(), *far = place_new();
        fill(&o, near, 0, 200);
        fill(&o, far, 0, SHORT);
        struct tiers_options t = tiers_of(near, instant % 2);
        t.tiers[t.n++] = place_open(far, instant / 2);
        kvasir_engine *e = engine_on(llama, &o, &t);
        assert_int_equal(cached(e, &o, text[0], SHORT), PAGES * TILE_TOKENS);
        assert_int_equal(count_of_place(near, &near->reads) % 3, 0);
        assert_true(count_of_place(near, &near->reads) > 0);
        assert_true(count_of_place(far, &far->reads) > 0);
        assert_int_equal(cached(e, &o, text[1], SHORT), 0);
        kvasir_engine_destroy(e);
        for (int i = 0; i < 2; i++) { /* what was computed is in both */
            e = engine_at(&o, i ? near : far, true);
            assert_int_equal(cached(e, &o, text[1], SHORT), PAGES * TILE_TOKENS);
            kvasir_engine_destroy(e);
        }
        place_free(near);
        place_free(far);
    }
}

/* Some of a prompt's pages are in memory, those that were evicted come from the tier. */
static void test_pages_partly_in_memory(void **state) {
    (void)state;
    kvasir_engine_options o = options_of();
    struct place *p = place_new();
    kvasir_engine *e = engine_at(&o, p, true);
    o.cache_memory_bytes = settled(e).fixed_bytes + (2 << 20);
    kvasir_engine_destroy(e);
    e = engine_at(&o, p, true);
    uint32_t mixed = 0;
    for (int turn = 0; turn < 24; turn++) {
        const uint64_t pages = settled(e).tier_pages;
        const int which = turn % 4;
        const uint32_t n = 700 + 30 * (uint32_t)which, had = cached(e, &o, text[which], n);
        if (turn >= 4)
            expect_found(e, had, (n - 1) / TILE_TOKENS * TILE_TOKENS, n - 1);
        const uint64_t brought = settled(e).tier_pages - pages;
        mixed += brought && brought < (n - 1) / TILE_TOKENS;
    }
    const kvasir_engine_stats s = settled(e);
    assert_true(s.evicted_pages > 0);
    assert_true(s.tier_loads > 4);
    assert_true(mixed > 0);
    kvasir_engine_destroy(e);
    place_free(p);
}

/* A tier gets pages as they are when it takes them. An engine with such prefixes finds both kinds,
 * one without them the longer kind only. */
static void test_stored_prefixes_at_fewer_bits(void **state) {
    (void)state;
    enum { N = 1500, ALL = 23, QUEUED = 10 }; /* 8 at the writer, 2 in the queue */
    kvasir_engine_options o = options_of(), plain;
    o.context.kv_bits = "8";
    plain = o;
    const uint64_t bytes = page_bytes(&plain);
    o.stored_kv_bits = "4";
    o.min_quantize_tokens = 100;
    for (int turn = 0; turn < 4; turn++) {
        const bool instant = turn % 2, waits = turn < 2;
        struct place *p = place_new();
        struct tiers_options t = tiers_of(p, instant);
        struct answer *a[4];
        for (int i = 0; i < 4; i++)
            a[i] = ask(text[0], N);
        if (waits)
            t.queue_bytes = 2 * bytes;
        gate_set(p, GATE_WRITE, waits);
        kvasir_engine *e = engine_on(llama, &o, &t);
        answer_run(e, a[0]);
        check_answer(llama, &plain, a[0]);
        for (int i = 0; waits && i < 5000 && settled(e).requantized_pages < ALL - QUEUED; i++)
            usleep(1000);
        gate_set(p, GATE_WRITE, false);
        kvasir_engine_destroy(e);
        assert_int_equal(p->written_by_bits[8] + p->written_by_bits[4], ALL);
        assert_true(!waits || (p->written_by_bits[4] > 0 && p->written_by_bits[8] > 0));
        for (int i = 1; i < 3; i++) { /* twice the same */
            memset(p->read_by_bits, 0, sizeof p->read_by_bits);
            e = engine_at(&o, p, instant);
            answer_run(e, a[i]);
            assert_int_equal(a[i]->cached_tokens, ALL * TILE_TOKENS);
            assert_int_equal(p->read_by_bits[8], p->written_by_bits[8]);
            assert_int_equal(p->read_by_bits[4], p->written_by_bits[4]);
            kvasir_engine_destroy(e);
        }
        assert_memory_equal(a[1]->choices[0].logprobs, a[2]->choices[0].logprobs,
                            ANSWER * sizeof(float));
        if (!p->written_by_bits[4])
            check_answer(llama, &plain, a[1]);
        const uint32_t longer = p->written_by_bits[8], four = p->read_by_bits[4];
        e = engine_at(&plain, p, instant);
        answer_run(e, a[3]);
        assert_in_range(a[3]->cached_tokens, 2 * TILE_TOKENS, longer * TILE_TOKENS);
        assert_int_equal(p->read_by_bits[4], four);
        check_answer(llama, &plain, a[3]);
        kvasir_engine_destroy(e);
        for (int i = 0; i < 4; i++)
            free(a[i]);
        place_free(p);
    }
}

/* ---- slow tiers ------------------------------------------------------------------------------ */

/* Pages that do not come in time are computed, those that came are used. */
static void test_late_reads_end_the_hit(void **state) {
    (void)state;
    enum { MANY = 1400, FROM = 16 }; /* the first reader takes that many pages */
    const kvasir_engine_options o = options_of();
    struct place *p = place_new();
    fill(&o, p, 0, MANY);
    may_write = false;
    for (int turn = 0; turn < 4; turn++) {
        struct tiers_options t = tiers_of(p, turn % 2);
        t.late_seconds = 0.05; /* 2 s as long as it is not known how fast prompts are computed */
        kvasir_engine *e = engine_on(llama, &o, &t);
        p->read_from = turn < 2 ? FROM : 0;
        gate_set(p, GATE_READ, true);
        assert_int_equal(cached(e, &o, text[0], MANY), turn < 2 ? FROM * TILE_TOKENS : 0);
        kvasir_engine_stats s = settled(e);
        assert_int_equal(s.tier_loads_late, 1);
        assert_int_equal(s.tier_tokens, turn < 2 ? FROM * TILE_TOKENS : 0);
        /* readers still write to pages that nobody sees: others are computed beside them */
        assert_int_equal(cached(e, &o, text[1], SHORT), 0);
        assert_in_range(cached(e, &o, text[0], MANY), 1344, MANY - 1);
        gate_set(p, GATE_READ, false);
        assert_in_range(cached(e, &o, text[0], MANY), 1344, MANY - 1);
        kvasir_engine_destroy(e);
    }
    may_write = true;
    place_free(p);
}

/* So do questions: one that is not answered, and those for which no reader is left. */
static void test_late_questions(void **state) {
    (void)state;
    const kvasir_engine_options o = options_of();
    struct place *near = place_new(), *far = place_new();
    fill(&o, near, 0, 200);
    fill(&o, far, 0, SHORT);
    for (int instant = 0; instant < 2; instant++) {
        struct tiers_options t = tiers_of(near, instant);
        t.late_seconds = 0.5; /* the nearer one has to answer in it, on a busy machine, too */
        t.tiers[t.n++] = place_open(far, false);
        kvasir_engine *e = engine_on(llama, &o, &t);
        gate_set(far, GATE_FIND, true);
        for (int i = 0; i < 4; i++) { /* the first two occupy the readers */
            char salt[2] = {(char)('a' + i)};
            assert_int_equal(cached_of(llama, e, &o, text[1], 100, salt), 0);
        }
        assert_int_equal(settled(e).tier_loads_late, 4);
        /* what the nearer tier has is used */
        assert_int_equal(cached(e, &o, text[0], SHORT), 192);
        gate_set(far, GATE_FIND, false);
        kvasir_engine_forget(e, NULL);
        kvasir_engine_destroy(e);
        fill(&o, near, 0, 200);
        fill(&o, far, 0, SHORT);
    }
    place_free(near);
    place_free(far);
}

static void *open_soon(void *user) {
    struct place *p = user;
    usleep(50000);
    for (enum gate g = 0; g < GATES; g++)
        gate_set(p, g, false);
    return NULL;
}

/* Cancelled while its load is under way or while a tier is asked; other requests go on. */
static void test_cancelled_while_loading(void **state) {
    (void)state;
    const kvasir_engine_options o = options_of();
    struct place *p = place_new();
    fill(&o, p, 0, SHORT);
    for (int turn = 0; turn < 6; turn++) {
        const enum gate gate = turn % 2 ? GATE_READ : GATE_FIND;
        kvasir_engine *e = engine_at(&o, p, gate == GATE_READ && turn < 4);
        struct answer *a = ask(text[0], SHORT);
        gate_set(p, gate, true);
        need(answer_submit(e, a, &err));
        gate_wait(p, gate);
        if (turn < 4) {
            kvasir_engine_cancel(e, a->id);
            answer_wait(a);
            assert_int_equal(a->choices[0].finish, KVASIR_FINISH_CANCELLED);
            assert_int_equal(a->starts, 0);
            if (turn < 2)
                gate_set(p, gate, false);
            assert_int_equal(gate == GATE_READ || turn < 2 ? cached(e, &o, text[1], 60) : 0, 0);
            gate_set(p, gate, false);
            expect_found(e, cached(e, &o, text[0], SHORT), PAGES * TILE_TOKENS, SHORT - 1);
            kvasir_engine_destroy(e);
        } else { /* the engine ends meanwhile */
            pthread_t thread;
            assert_int_equal(pthread_create(&thread, NULL, open_soon, p), 0);
            kvasir_engine_destroy(e);
            pthread_join(thread, NULL);
            assert_true(a->lasts == 1);
            assert_int_equal(a->choices[0].finish, KVASIR_FINISH_CANCELLED);
        }
        free(a);
    }
    place_free(p);
}

/* Others pass a request that waits for its load (SCHED-8). */
static void test_others_pass_a_load(void **state) {
    (void)state;
    const kvasir_engine_options o = options_of();
    struct place *p = place_new();
    fill(&o, p, 0, SHORT);
    kvasir_engine *e = engine_at(&o, p, true);
    struct answer *a = ask(text[0], SHORT);
    gate_set(p, GATE_READ, true);
    need(answer_submit(e, a, &err));
    gate_wait(p, GATE_READ);
    assert_int_equal(cached(e, &o, text[1], SHORT), 0);
    assert_int_equal(a->starts, 0);
    gate_set(p, GATE_READ, false);
    answer_wait(a);
    assert_int_equal(a->cached_tokens, PAGES * TILE_TOKENS);
    check_answer(llama, &o, a);
    free(a);
    kvasir_engine_destroy(e);
    place_free(p);
}

/* ---- budgets --------------------------------------------------------------------------------- */

/* The smallest budget, of whole KiB, with which a prompt of n tokens is accepted. */
static uint64_t least_budget(kvasir_engine_options o, struct place *p, uint32_t n) {
    uint64_t low = 0, high = 64 << 10;
    while (high - low > 1) {
        const uint64_t middle = (low + high) / 2;
        struct tiers_options t = tiers_of(p, true);
        kvasir_engine *e;
        o.cache_memory_bytes = middle << 10;
        bool good = engine_create_take(llama, &o, NULL, &t, &e, &err) == KVASIR_OK;
        if (good) {
            struct answer *a = ask(text[3], n);
            good = answer_submit(e, a, &err) == KVASIR_OK;
            if (good)
                answer_wait(a);
            kvasir_engine_destroy(e);
            free(a);
        }
        *(good ? &high : &low) = middle;
    }
    return high << 10;
}

/* Requests whose pages a tier has, at budgets from one that just holds one of them on: alone, two
 * at once, three one of which is computed. All end well. */
static void test_loads_never_make_requests_fail(void **state) {
    (void)state;
    kvasir_engine_options o = options_of();
    struct place *p = place_new(), *other = place_new();
    fill(&o, p, 0, 600);
    fill(&o, p, 1, 600);
    o.cache_flush_seconds = 0;
    const uint64_t least = least_budget(o, other, 600);
    uint64_t loaded = 0;
    may_write = false;
    for (int turn = 0; turn < 24; turn++) {
        o.cache_memory_bytes = least + ((uint64_t)turn / 4 * 100 << 10);
        kvasir_engine *e = engine_at(&o, p, turn % 2);
        const bool gate = turn % 4 < 2;
        struct answer *a[3];
        gate_set(p, GATE_READ, gate);
        for (int i = 0; i < 3; i++) {
            a[i] = ask(text[i], 600);
            need(answer_submit(e, a[i], &err));
        }
        if (gate) {
            usleep(20000);
            gate_set(p, GATE_READ, false);
        }
        for (int i = 0; i < 3; i++) {
            answer_wait(a[i]);
            if (a[i]->choices[0].finish == KVASIR_FINISH_ERROR)
                fail_msg("budget %llu + %llu: %s", (unsigned long long)least,
                         (unsigned long long)(o.cache_memory_bytes - least), a[i]->error.text);
            check_answer(llama, &o, a[i]);
            free(a[i]);
        }
        const kvasir_engine_stats s = settled(e);
        loaded += s.tier_tokens;
        assert_int_equal(s.failed, 0);
        assert_true(turn > 3 || s.preemptions == 0);
        kvasir_engine_destroy(e);
    }
    assert_true(loaded > 0);
    may_write = true;
    place_free(p);
    place_free(other);
}

/* What waits to be written is pinned, but takes no request's room (TIERS-4). */
static void test_waiting_pages_are_given_up_under_pressure(void **state) {
    (void)state;
    kvasir_engine_options o = options_of();
    struct place *p = place_new(), *other = place_new();
    o.cache_memory_bytes = least_budget(o, other, 600) + (100 << 10);
    struct tiers_options t = tiers_of(p, true);
    t.queue_bytes = 64 << 20;
    gate_set(p, GATE_WRITE, true);
    kvasir_engine *e = engine_on(llama, &o, &t);
    for (int i = 0; i < 4; i++)
        assert_int_equal(cached(e, &o, text[i], 600), 0);
    kvasir_engine_stats s = settled(e);
    assert_true(s.tier_offered_pages > 0);
    assert_true(s.tier_unwritten_pages > 0);
    assert_true(s.evicted_pages > 0);
    assert_int_equal(s.failed + s.preemptions, 0);
    gate_set(p, GATE_WRITE, false);
    /* what was given up and is still there is written later */
    assert_in_range(cached(e, &o, text[3], 600), 576, 599);
    kvasir_engine_destroy(e);
    o.cache_memory_bytes = 64 << 20; /* a load may take no room that a request may need */
    e = engine_at(&o, p, true);
    assert_int_equal(cached(e, &o, text[3], 600), 576);
    kvasir_engine_destroy(e);
    place_free(p);
    place_free(other);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* A queue for two pages: what does not fit is offered again while the engine is idle. */
static void test_small_queues(void **state) {
    (void)state;
    kvasir_engine_options o = options_of();
    const uint64_t bytes = page_bytes(&o);
    o.cache_flush_seconds = 0;
    for (int turn = 0; turn < 2; turn++) {
        struct place *p = place_new();
        struct tiers_options t = tiers_of(p, turn);
        t.queue_bytes = 2 * bytes;
        gate_set(p, GATE_WRITE, true);
        kvasir_engine *e = engine_on(llama, &o, &t);
        assert_int_equal(cached(e, &o, text[0], 1500), 0);
        assert_in_range(settled(e).tier_offered_pages, 1, 16);
        assert_in_range(count_of_place(p, &p->writes), 0, 0);
        gate_set(p, GATE_WRITE, false);
        assert_true(place_wait(p, 23));
        assert_in_range(settled(e).tier_offered_pages, 23, 24);
        kvasir_engine_destroy(e);
        e = engine_at(&o, p, turn);
        assert_int_equal(cached(e, &o, text[0], 1500), 23 * TILE_TOKENS);
        kvasir_engine_destroy(e);
        place_free(p);
    }
}

/* At the end everything is written, as long as there is time. */
static void test_flush_at_the_end(void **state) {
    (void)state;
    kvasir_engine_options o = options_of();
    const uint64_t bytes = page_bytes(&o);
    for (int turn = 0; turn < 3; turn++) {
        struct place *p = place_new();
        struct tiers_options t = tiers_of(p, true);
        pthread_t thread;
        t.queue_bytes = bytes * (turn ? 3 : 100);
        o.cache_flush_seconds = turn < 2 ? 20 : 0;
        gate_set(p, GATE_WRITE, true);
        kvasir_engine *e = engine_on(llama, &o, &t);
        assert_int_equal(cached(e, &o, text[0], 1500), 0);
        assert_int_equal(cached(e, &o, text[1], 690), 0);
        settled(e);
        assert_int_equal(pthread_create(&thread, NULL, open_soon, p), 0);
        kvasir_engine_destroy(e);
        pthread_join(thread, NULL);
        if (turn < 2)
            assert_int_equal(p->writes, 23 + 10);
        else
            assert_in_range(p->writes, 0, 9); /* the one at the gate, and what was in its hands */
        e = engine_at(&o, p, true);
        const uint32_t first = cached(e, &o, text[0], 1500);
        assert_in_range(first, turn < 2 ? 23 * TILE_TOKENS : 0, 23 * TILE_TOKENS);
        kvasir_engine_destroy(e);
        place_free(p);
    }
}

/* The weights are others than those that the context names: nothing is written. */
static void test_nothing_is_written_if_it_may_not_be(void **state) {
    (void)state;
    const kvasir_engine_options o = options_of();
    struct place *p = place_new();
    may_write = false;
    for (int turn = 0; turn < 2; turn++) {
        kvasir_engine *e = engine_at(&o, p, true);
        assert_int_equal(cached(e, &o, text[0], SHORT), 0);
        kvasir_engine_destroy(e);
        assert_int_equal(p->writes, 0);
    }
    may_write = true;
    fill(&o, p, 0, SHORT);
    assert_int_equal(p->writes, PAGES);
    place_free(p);
}

/* A full tier: its pages are counted as not written, answers go on. */
static void test_a_full_tier(void **state) {
    (void)state;
    const kvasir_engine_options o = options_of();
    struct place *full = place_new(), *good = place_new();
    struct tiers_options t = tiers_of(full, true);
    place_fail(full, UINT32_MAX);
    t.tiers[t.n++] = place_open(good, true);
    kvasir_engine *e = engine_on(llama, &o, &t);
    assert_int_equal(cached(e, &o, text[0], SHORT), 0);
    assert_true(place_wait(good, PAGES));
    for (int i = 0; i < 2000 && settled(e).tier_unwritten_pages < PAGES; usleep(1000), i++)
        kvasir_engine_forget(e, "nobody's"); /* figures are of the last step */
    /* more if they were offered again meanwhile */
    assert_in_range(settled(e).tier_unwritten_pages, PAGES, settled(e).tier_offered_pages - PAGES);
    kvasir_engine_destroy(e);
    e = engine_at(&o, good, true);
    assert_int_equal(cached(e, &o, text[0], SHORT), PAGES * TILE_TOKENS);
    kvasir_engine_destroy(e);
    place_free(full);
    place_free(good);
}

/* ---- forgetting ------------------------------------------------------------------------------ */

static void test_forget_while_loading(void **state) {
    (void)state;
    const kvasir_engine_options o = options_of();
    for (int turn = 0; turn < 8; turn++) {
        const enum gate gate = turn % 2 ? GATE_READ : GATE_FIND;
        const bool all = turn & 2, instant = gate == GATE_READ && (turn & 4);
        struct place *p = place_new();
        kvasir_engine *e = engine_at(&o, p, true);
        assert_int_equal(cached_of(llama, e, &o, text[0], SHORT, "a"), 0);
        assert_int_equal(cached_of(llama, e, &o, text[0], SHORT, "b"), 0);
        kvasir_engine_destroy(e);
        e = engine_at(&o, p, instant);
        struct answer *a = ask(text[0], SHORT), *b = ask(text[0], SHORT);
        a->request.salt = "a";
        b->request.salt = "b";
        gate_set(p, gate, true);
        need(answer_submit(e, a, &err));
        need(answer_submit(e, b, &err));
        gate_wait(p, gate);
        kvasir_engine_forget(e, all ? NULL : "a");
        /* until the order was taken: it comes before this request */
        struct answer *c = ask(text[1], 50);
        answer_run(e, c);
        gate_set(p, gate, false);
        answer_wait(a);
        answer_wait(b);
        assert_int_equal(a->cached_tokens, 0);
        assert_int_equal(b->cached_tokens, all ? 0 : PAGES * TILE_TOKENS);
        check_answer(llama, &o, a);
        check_answer(llama, &o, b);
        kvasir_engine_destroy(e);
        free(a);
        free(b);
        free(c);
        place_free(p);
    }
}

/* A tier that takes its time to forget is not asked meanwhile, neither is what it has loaded kept;
 * what is computed after that is stored. */
static void test_nothing_is_found_while_a_tier_forgets(void **state) {
    (void)state;
    const kvasir_engine_options o = options_of();
    for (int turn = 0; turn < 4; turn++) {
        const bool instant = turn % 2, all = turn < 2;
        struct place *p = place_new();
        kvasir_engine *e = engine_at(&o, p, true);
        assert_int_equal(cached_of(llama, e, &o, text[0], SHORT, "a"), 0);
        assert_int_equal(cached_of(llama, e, &o, text[0], SHORT, "b"), 0);
        kvasir_engine_destroy(e);
        e = engine_at(&o, p, instant);
        gate_set(p, GATE_FORGET, true);
        kvasir_engine_forget(e, all ? NULL : "a");
        assert_int_equal(cached_of(llama, e, &o, text[0], SHORT, "a"), 0);
        assert_int_equal(cached_of(llama, e, &o, text[0], SHORT, "b"),
                         all ? 0 : PAGES * TILE_TOKENS);
        gate_wait(p, GATE_FORGET);
        assert_true(kvasir_engine_is_forgetting(e));
        gate_set(p, GATE_FORGET, false);
        kvasir_engine_destroy(e);
        e = engine_at(&o, p, instant);
        assert_int_equal(cached_of(llama, e, &o, text[0], SHORT, "a"), PAGES * TILE_TOKENS);
        kvasir_engine_forget(e, "a");
        kvasir_engine_destroy(e);
        e = engine_at(&o, p, instant);
        assert_int_equal(cached_of(llama, e, &o, text[0], SHORT, "b"), PAGES * TILE_TOKENS);
        assert_int_equal(cached_of(llama, e, &o, text[0], SHORT, "a"), 0);
        kvasir_engine_destroy(e);
        place_free(p);
    }
}

/* A request that runs while everything is forgotten keeps its pages. What it stores later can be
 * found whole: no page of it is missing in the tier. */
static void test_forget_while_running(void **state) {
    (void)state;
    const kvasir_engine_options o = options_of();
    struct place *p = place_new();
    kvasir_engine *e = engine_at(&o, p, true);
    assert_int_equal(cached(e, &o, text[0], SHORT), 0);
    assert_true(place_wait(p, PAGES));
    struct answer *a = ask(text[0], 600); /* goes on after pages that the tier has */
    a->hold_at = 2;
    answers_hold();
    need(answer_submit(e, a, &err));
    answer_wait_held();
    kvasir_engine_forget(e, NULL);
    answers_release();
    answer_wait(a);
    assert_in_range(a->cached_tokens, PAGES * TILE_TOKENS, SHORT);
    check_answer(llama, &o, a);
    kvasir_engine_destroy(e);
    free(a);
    e = engine_at(&o, p, true);
    assert_int_equal(cached(e, &o, text[0], 600), 576);
    kvasir_engine_destroy(e);
    place_free(p);
}

int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    skip_without(SHARED_DIR "/fixtures/tiny/llama/config.json");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_restarts),
        cmocka_unit_test(test_parts_of_prompts),
        cmocka_unit_test(test_two_tiers),
        cmocka_unit_test(test_pages_partly_in_memory),
        cmocka_unit_test(test_stored_prefixes_at_fewer_bits),
        cmocka_unit_test(test_late_reads_end_the_hit),
        cmocka_unit_test(test_late_questions),
        cmocka_unit_test(test_cancelled_while_loading),
        cmocka_unit_test(test_others_pass_a_load),
        cmocka_unit_test(test_loads_never_make_requests_fail),
        cmocka_unit_test(test_waiting_pages_are_given_up_under_pressure),
        cmocka_unit_test(test_small_queues),
        cmocka_unit_test(test_flush_at_the_end),
        cmocka_unit_test(test_nothing_is_written_if_it_may_not_be),
        cmocka_unit_test(test_a_full_tier),
        cmocka_unit_test(test_forget_while_loading),
        cmocka_unit_test(test_nothing_is_found_while_a_tier_forgets),
        cmocka_unit_test(test_forget_while_running),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
