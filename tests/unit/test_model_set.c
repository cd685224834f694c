/* SPDX-License-Identifier: Apache-2.0 */
/* The set of models with a loader that counts, fails and waits as it is told, and a clock of the
 * test's. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/model_set.h"

#include <cmocka.h>

enum { MODELS = 4, IDLE_S = 60, WAIT_S = 30 };

static struct fake {
    _Atomic int64_t us; /* what the clock adds to real time */
    atomic_int loaded[MODELS], loads[MODELS], unloads[MODELS];
    atomic_int fails[MODELS];   /* so many loads fail from now on */
    atomic_int crowded[MODELS]; /* it lacks memory while more than so many others are loaded; 0 */
    atomic_bool held[MODELS];   /* its load waits until that is false */
    atomic_int used, most;      /* models loaded at once */
} fake;

static int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000 + atomic_load(&fake.us);
}

static void pause_ms(unsigned ms) {
    const struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

static kvasir_status load(void *user, size_t i, void **out, kvasir_error *err) {
    assert_ptr_equal(user, &fake);
    while (atomic_load(&fake.held[i]))
        pause_ms(1);
    if (atomic_load(&fake.fails[i]) > 0) {
        atomic_fetch_sub(&fake.fails[i], 1);
        return fail_field(err, KVASIR_ERR_FORMAT, NULL, "damaged file");
    }
    const int most = atomic_load(&fake.crowded[i]);
    if (most && atomic_load(&fake.used) >= most)
        return fail_field(err, KVASIR_ERR_MEMORY, NULL, "no memory");
    assert_int_equal(atomic_exchange(&fake.loaded[i], 1), 0);
    atomic_fetch_add(&fake.loads[i], 1);
    const int used = atomic_fetch_add(&fake.used, 1) + 1;
    if (used > atomic_load(&fake.most))
        atomic_store(&fake.most, used);
    *out = &fake.loaded[i];
    return KVASIR_OK;
}

static void unload(void *user, size_t i, void *loaded) {
    (void)user;
    assert_ptr_equal(loaded, &fake.loaded[i]);
    assert_int_equal(atomic_exchange(&fake.loaded[i], 0), 1);
    atomic_fetch_add(&fake.unloads[i], 1);
    atomic_fetch_sub(&fake.used, 1);
}

/* ---- a client -------------------------------------------------------------------------------- */

struct client {
    struct model_wait wait; /* first */
    atomic_bool woken, left;
};

static void wake(struct model_wait *w) {
    atomic_store(&((struct client *)w)->woken, true);
}

static bool over(struct model_wait *w) {
    return atomic_load(&((struct client *)w)->left);
}

static enum model_take ask(struct model_set *s, size_t i, struct client *c) {
    *c = (struct client){.wait = {.wake = wake, .over = over}};
    return model_set_take(s, i, &c->wait);
}

static bool is_woken(struct client *c) {
    for (int ms = 0; ms < 20000 && !atomic_load(&c->woken); ms++)
        pause_ms(1);
    return atomic_load(&c->woken);
}

/* Asks and waits. A lease. */
static void need(struct model_set *s, size_t i, struct client *c) {
    const enum model_take took = ask(s, i, c);
    assert_true(took == MODEL_TAKEN || (took == MODEL_WAITS && is_woken(c)));
    assert_ptr_equal(c->wait.loaded, &fake.loaded[i]);
    assert_int_equal(atomic_load(&fake.loaded[i]), 1);
}

static void use(struct model_set *s, size_t i) {
    struct client c;
    need(s, i, &c);
    model_set_give(s, i);
}

static enum model_state state_of(struct model_set *s, size_t i) {
    struct model_view v;
    model_set_view(s, i, &v);
    return v.state;
}

static void wait_state(struct model_set *s, size_t i, enum model_state state) {
    for (int ms = 0; ms < 20000 && state_of(s, i) != state; ms++)
        pause_ms(1);
    assert_int_equal(state_of(s, i), state);
}

static void pass(struct model_set *s, int seconds) {
    atomic_fetch_add(&fake.us, (int64_t)seconds * 1000000);
    model_set_tick(s);
}

static const char *const SECOND[] = {"two", "zwei"};
static struct model_spec specs[MODELS];
static struct model_set_options options;

static void reset(void) {
    memset(&fake, 0, sizeof fake);
    static const char *const NAMES[MODELS] = {"a", "b", "c", "d"};
    for (int i = 0; i < MODELS; i++)
        specs[i] = (struct model_spec){.name = NAMES[i], .need_bytes = 50};
    specs[1].aliases = SECOND;
    specs[1].n_aliases = 2;
    options = (struct model_set_options){.models = specs,
                                         .n = MODELS,
                                         .budget_bytes = 100,
                                         .idle_s = IDLE_S,
                                         .wait_s = WAIT_S,
                                         .load = load,
                                         .unload = unload,
                                         .now_us = now_us,
                                         .user = &fake};
}

static struct model_set *open_set(void) {
    struct model_set *s;
    kvasir_error err;
    assert_int_equal(model_set_create(&options, &s, &err), KVASIR_OK);
    return s;
}

static void close_set(struct model_set *s) {
    model_set_destroy(s);
    for (int i = 0; i < MODELS; i++)
        assert_int_equal(atomic_load(&fake.loads[i]), atomic_load(&fake.unloads[i]));
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_names(void **state) {
    (void)state;
    reset();
    struct model_set *s = open_set();
    assert_int_equal(model_set_find(s, "a"), 0);
    assert_int_equal(model_set_find(s, "zwei"), 1);
    assert_int_equal(model_set_find(s, "two:latest"), 1);
    assert_int_equal(model_set_find(s, "d:latest"), 3);
    assert_true(model_set_find(s, "e") == MODEL_NONE);
    assert_true(model_set_find(s, ":latest") == MODEL_NONE);
    assert_true(model_set_find(s, "a:8b") == MODEL_NONE);
    assert_true(model_set_find(s, "") == MODEL_NONE);
    close_set(s);
}

/* Loaded at the first request, kept for the second; the least recent goes for a third model. */
static void test_least_recent(void **state) {
    (void)state;
    reset();
    struct model_set *s = open_set();
    assert_null(model_set_peek(s, 0));
    use(s, 0);
    use(s, 1);
    use(s, 0);
    assert_int_equal(atomic_load(&fake.loads[0]), 1);
    use(s, 2);
    assert_int_equal(state_of(s, 1), MODEL_UNLOADED);
    assert_int_equal(state_of(s, 0), MODEL_LOADED);
    use(s, 1);
    assert_int_equal(state_of(s, 0), MODEL_UNLOADED);
    assert_int_equal(atomic_load(&fake.most), 2);
    struct model_view v;
    model_set_view(s, 1, &v);
    assert_true(v.loads == 2 && v.unloads == 1 && v.leases == 0 && v.failures == 0);
    close_set(s);
}

/* What has a lease stays, whatever the others want; they wait, and are told after a while. */
static void test_busy(void **state) {
    (void)state;
    reset();
    struct model_set *s = open_set();
    struct client a, b, c, gone;
    need(s, 0, &a);
    need(s, 1, &b);
    assert_int_equal(ask(s, 2, &c), MODEL_WAITS);
    pause_ms(20);
    assert_int_equal(state_of(s, 2), MODEL_WANTED);
    model_set_tick(s);
    assert_false(atomic_load(&c.woken));
    pass(s, WAIT_S + 1);
    assert_true(is_woken(&c));
    assert_null(c.wait.loaded);
    assert_non_null(
        strstr(c.wait.why.text, "was not there within 30 seconds: other models in use"));
    assert_true(c.wait.why.retry_after_s > 0 && !c.wait.why.for_ever);
    assert_int_equal(state_of(s, 2), MODEL_UNLOADED);
    assert_int_equal(ask(s, 2, &c), MODEL_WAITS);
    assert_int_equal(ask(s, 3, &gone), MODEL_WAITS);
    atomic_store(&gone.left, true); /* its client goes */
    model_set_tick(s);
    assert_true(is_woken(&gone) && !gone.wait.loaded);
    model_set_again(s, 1);
    model_set_give(s, 1);
    pause_ms(20);
    assert_false(atomic_load(&c.woken)); /* there is a lease still */
    model_set_give(s, 1);
    assert_true(is_woken(&c) && c.wait.loaded);
    assert_int_equal(atomic_load(&fake.unloads[0]), 0);
    model_set_give(s, 2);
    model_set_give(s, 0);
    close_set(s);
}

/* While one is loaded, who asks for it waits, and others' models are there at once. */
static void test_loading(void **state) {
    (void)state;
    reset();
    struct model_set *s = open_set();
    struct client first, more[3], other;
    use(s, 0);
    atomic_store(&fake.held[1], true);
    assert_int_equal(ask(s, 1, &first), MODEL_WAITS);
    wait_state(s, 1, MODEL_LOADING);
    for (int i = 0; i < 3; i++)
        assert_int_equal(ask(s, 1, &more[i]), MODEL_WAITS);
    assert_int_equal(ask(s, 0, &other), MODEL_TAKEN);
    model_set_give(s, 0);
    atomic_store(&more[2].left, true);
    model_set_tick(s);
    assert_true(is_woken(&more[2]) && !more[2].wait.loaded);
    pass(s, WAIT_S + 1);
    assert_true(is_woken(&more[0]) && !more[0].wait.loaded);
    assert_non_null(strstr(more[0].wait.why.text, "it is still being loaded"));
    assert_int_equal(ask(s, 1, &more[0]), MODEL_WAITS);
    atomic_store(&fake.held[1], false);
    assert_true(is_woken(&more[0]) && more[0].wait.loaded);
    assert_int_equal(atomic_load(&fake.loads[1]), 1);
    model_set_give(s, 1);
    close_set(s);
}

static void test_failure(void **state) {
    (void)state;
    reset();
    struct model_set *s = open_set();
    struct client c;
    atomic_store(&fake.fails[0], 1);
    assert_int_equal(ask(s, 0, &c), MODEL_WAITS);
    assert_true(is_woken(&c) && !c.wait.loaded);
    assert_string_equal(c.wait.why.text, "model \"a\" cannot be loaded now: damaged file");
    assert_true(c.wait.why.retry_after_s > 0);
    assert_int_equal(ask(s, 0, &c), MODEL_REFUSED); /* not at once */
    assert_int_equal(state_of(s, 0), MODEL_FAILED);
    pass(s, 6);
    use(s, 0); /* the file is there now */
    pass(s, IDLE_S + 1);
    wait_state(s, 0, MODEL_UNLOADED);
    int tries = 0;
    atomic_store(&fake.fails[0], 1000);
    for (;; tries++) {
        const enum model_take took = ask(s, 0, &c);
        if (took == MODEL_REFUSED)
            break;
        assert_true(is_woken(&c) && !c.wait.loaded);
        pass(s, 301);
    }
    assert_int_equal(tries, 6);
    assert_true(c.wait.why.for_ever);
    assert_string_equal(c.wait.why.text,
                        "model \"a\" cannot be loaded, and is not tried again: damaged file");
    use(s, 1);
    close_set(s);
}

/* What lacks memory gets that of idle models, one after the other. */
static void test_crowded(void **state) {
    (void)state;
    reset();
    options.budget_bytes = 1000;
    struct model_set *s = open_set();
    struct client busy, c;
    use(s, 0);
    use(s, 1);
    atomic_store(&fake.crowded[2], 1);
    use(s, 2);
    assert_true(state_of(s, 0) == MODEL_UNLOADED && state_of(s, 1) == MODEL_UNLOADED);
    need(s, 2, &busy);
    atomic_store(&fake.crowded[3], 1);
    for (int i = 0; i < 10; i++, pass(s, 6)) { /* it may be there tomorrow */
        assert_int_equal(ask(s, 3, &c), MODEL_WAITS);
        assert_true(is_woken(&c) && !c.wait.loaded && !c.wait.why.for_ever);
    }
    model_set_give(s, 2);
    use(s, 3);
    close_set(s);
}

static void test_idle_and_pinned(void **state) {
    (void)state;
    reset();
    specs[3].pinned = true;
    struct model_set *s = open_set();
    struct client c;
    assert_int_equal(state_of(s, 3), MODEL_LOADED);
    use(s, 0);
    need(s, 0, &c);
    pass(s, 10 * IDLE_S);
    pause_ms(20);
    assert_int_equal(state_of(s, 0), MODEL_LOADED);
    model_set_give(s, 0);
    pass(s, IDLE_S - 10);
    pause_ms(20);
    assert_non_null(model_set_peek(s, 0)); /* to look at it is not to use it */
    model_set_give(s, 0);
    assert_int_equal(state_of(s, 0), MODEL_LOADED);
    pass(s, 11);
    wait_state(s, 0, MODEL_UNLOADED);
    use(s, 1);
    use(s, 2);
    assert_int_equal(state_of(s, 1), MODEL_UNLOADED);
    assert_int_equal(state_of(s, 3), MODEL_LOADED);
    close_set(s);

    reset();
    specs[3].pinned = true;
    atomic_store(&fake.fails[3], 1);
    kvasir_error err;
    assert_int_equal(model_set_create(&options, &s, &err), KVASIR_ERR_FORMAT);
    assert_string_equal(err.text, "damaged file");
}

/* Its files changed: who has it goes on, others get it again. */
static void test_lost(void **state) {
    (void)state;
    reset();
    specs[0].pinned = true;
    struct model_set *s = open_set();
    struct client old, new;
    need(s, 0, &old);
    model_set_lose(s, 0, "changed");
    model_set_lose(s, 1, "it is not even loaded");
    assert_null(model_set_peek(s, 0));
    assert_int_equal(ask(s, 0, &new), MODEL_WAITS);
    pause_ms(20);
    assert_false(atomic_load(&new.woken));
    model_set_give(s, 0);
    assert_true(is_woken(&new) && new.wait.loaded);
    assert_int_equal(atomic_load(&fake.loads[0]), 2);
    model_set_give(s, 0);
    close_set(s);
}

static void test_stop(void **state) {
    (void)state;
    reset();
    struct model_set *s = open_set();
    struct client a, b, c, d;
    need(s, 0, &a);
    need(s, 1, &b);
    assert_int_equal(ask(s, 2, &c), MODEL_WAITS);
    model_set_stop(s);
    assert_true(is_woken(&c) && !c.wait.loaded);
    assert_string_equal(c.wait.why.text, "the server is shutting down");
    assert_int_equal(ask(s, 3, &d), MODEL_REFUSED);
    assert_int_equal(ask(s, 0, &d), MODEL_TAKEN); /* what is there is there */
    model_set_give(s, 0);
    model_set_give(s, 0);
    model_set_give(s, 1);
    close_set(s);
}

/* ---- many at once ---------------------------------------------------------------------------- */

struct crowd {
    struct model_set *set;
    unsigned seed;
    int got, refused;
};

static void *crowd_thread(void *user) {
    struct crowd *k = user;
    for (int n = 0; n < 300; n++) {
        struct client c;
        const size_t i = (size_t)rand_r(&k->seed) % MODELS;
        const enum model_take took = ask(k->set, i, &c);
        if (rand_r(&k->seed) % 8 == 0)
            atomic_store(&c.left, true);
        if (rand_r(&k->seed) % 16 == 0)
            model_set_tick(k->set);
        if (rand_r(&k->seed) % 64 == 0)
            model_set_lose(k->set, i, "changed");
        if (took == MODEL_WAITS)
            assert_true(is_woken(&c));
        if (!c.wait.loaded) {
            k->refused++;
            continue;
        }
        assert_int_equal(atomic_load(&fake.loaded[i]), 1);
        sched_yield();
        assert_int_equal(atomic_load(&fake.loaded[i]), 1);
        model_set_give(k->set, i);
        k->got++;
    }
    return NULL;
}

static void test_crowd(void **state) {
    enum { THREADS = 6 };
    (void)state;
    reset();
    struct model_set *s = open_set();
    pthread_t threads[THREADS];
    struct crowd crowds[THREADS];
    int got = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        crowds[i] = (struct crowd){.set = s, .seed = i};
        assert_int_equal(pthread_create(&threads[i], NULL, crowd_thread, &crowds[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        got += crowds[i].got;
    }
    assert_true(got > THREADS * 300 / 2);
    assert_true(atomic_load(&fake.most) <= 2);
    close_set(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_least_recent),
        cmocka_unit_test(test_busy),
        cmocka_unit_test(test_loading),
        cmocka_unit_test(test_failure),
        cmocka_unit_test(test_crowded),
        cmocka_unit_test(test_idle_and_pinned),
        cmocka_unit_test(test_lost),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_crowd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
