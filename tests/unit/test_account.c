/* SPDX-License-Identifier: Apache-2.0 */
/* What requests own is charged to one account: limits of a request, a key and all; what a thread
 * allocates; and that everything comes back. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "util/account.h"
#include "util/json.h"

#include <cmocka.h>

enum { MIB = 1 << 20, LIMIT = 8 * MIB };

static uint64_t held(struct mem_account *a) {
    return mem_account_figures(a).held;
}

static void test_limits(void **state) {
    struct mem_account a;
    struct mem_share key = {0};
    char why[256];
    (void)state;
    mem_account_init(&a, LIMIT, false);
    struct charge *first = charge_create(&a, NULL), *second = charge_create(&a, &key),
                  *third = charge_create(&a, &key);
    assert_true(charge_take(first, 4 * MIB));
    assert_int_equal(charge_refusal(first, why, sizeof why), CHARGE_FITS);
    assert_false(charge_take(first, 1)); /* half of the account is a request's most */
    assert_int_equal(charge_refusal(first, why, sizeof why), CHARGE_REQUEST_FULL);
    assert_string_equal(why, "the request needs more than 4096 KiB of memory, the most that one "
                             "request may take");
    assert_int_equal(charge_used(first), 4 * MIB); /* a refusal changes nothing */
    assert_false(charge_take(second, SIZE_MAX));
    assert_int_equal(charge_refusal(second, why, sizeof why), CHARGE_REQUEST_FULL);
    assert_true(charge_take(second, 3 * MIB));
    assert_true(charge_take(third, MIB));
    assert_false(charge_take(third, 1));
    assert_int_equal(charge_refusal(third, why, sizeof why), CHARGE_ACCOUNT_FULL);
    assert_string_equal(why, "other requests take 7168 of the 8192 KiB of memory for requests, "
                             "and this one does not fit: wait until some are answered");
    charge_unref(first);
    assert_int_equal(held(&a), 4 * MIB);
    assert_true(charge_take(third, MIB)); /* one key may take all: it is alone */
    charge_unref(second);
    charge_unref(third);
    assert_int_equal(held(&a), 0);
    assert_int_equal(mem_account_figures(&a).peak, LIMIT);
    mem_account_deinit(&a);
}

/* What is there already counts beyond the limit. Whoever needs nothing then is not refused:
 * requests without a body, those of probes among them. */
static void test_beyond_the_limit(void **state) {
    struct mem_account a;
    struct mem_share key = {0};
    (void)state;
    mem_account_init(&a, LIMIT, false);
    struct charge *first = charge_create(&a, NULL), *second = charge_create(&a, &key);
    struct charge *before = charge_enter(first);
    struct mem_meter *meter = mem_meter_set(NULL); /* the charge's */
    meter->add(meter, LIMIT + MIB);
    charge_leave(before);
    assert_true(held(&a) > LIMIT);
    assert_true(charge_fits(second, 0) && charge_take(second, 0));
    assert_true(charge_fits(first, 0) && charge_take(first, 0));
    assert_int_equal(charge_refusal(second, NULL, 0), CHARGE_FITS);
    assert_false(charge_fits(second, 1));
    assert_int_equal(charge_refusal(second, NULL, 0), CHARGE_ACCOUNT_FULL);
    charge_unref(first);
    charge_unref(second);
    assert_int_equal(held(&a), 0);
    mem_account_deinit(&a);
}

static void test_shares(void **state) {
    struct mem_account a;
    struct mem_share keys[2] = {{0}};
    char why[256];
    (void)state;
    mem_account_init(&a, LIMIT, true);
    struct charge *one = charge_create(&a, &keys[0]), *two = charge_create(&a, &keys[0]),
                  *other = charge_create(&a, &keys[1]);
    assert_true(charge_take(one, 3 * MIB));
    assert_false(charge_take(two, 2 * MIB));
    assert_int_equal(charge_refusal(two, why, sizeof why), CHARGE_SHARE_FULL);
    assert_string_equal(why, "requests with this API key take all of the 4096 KiB of memory that "
                             "one key may take: wait until some are answered");
    assert_true(charge_take(other, 4 * MIB));
    assert_int_equal(keys[1].held, 4 * MIB);
    charge_give(one, 3 * MIB);
    assert_true(charge_take(two, 3 * MIB));
    charge_unref(one);
    charge_unref(two);
    charge_unref(other);
    assert_int_equal(keys[0].held + keys[1].held + held(&a), 0);
    mem_account_deinit(&a);
}

static void test_allocations(void **state) {
    struct mem_account a;
    char why[256];
    (void)state;
    mem_account_init(&a, LIMIT, false);
    struct charge *c = charge_create(&a, NULL);
    char *foreign = mem_alloc(2 * MIB);
    struct charge *before = charge_enter(c);
    assert_null(before);
    char *p = mem_alloc(MIB), *q = mem_calloc(3, 1000);
    assert_true(charge_used(c) >= MIB + 3000 && charge_used(c) < MIB + 3000 + 8192);
    assert_null(mem_alloc(4 * MIB));
    assert_int_equal(charge_refusal(c, why, sizeof why), CHARGE_REQUEST_FULL);
    memset(p, 'x', MIB);
    char *grown = mem_realloc(p, 3, MIB);
    assert_non_null(grown);
    assert_true(charge_used(c) >= 3 * MIB + 3000 && charge_used(c) < 3 * MIB + 3000 + 8192);
    assert_null(mem_realloc(grown, 5, MIB)); /* it stays as it was */
    assert_null(mem_realloc(grown, 1, SIZE_MAX - 64));
    assert_int_equal(grown[MIB - 1], 'x');
    assert_non_null(grown = mem_realloc(grown, 1, 5000));
    assert_true(charge_used(c) < 3000 + 5000 + 8192);
    struct text_buf text = {0};
    for (int i = 0; i < 1000 && text_append(&text, grown, 5000); i++)
        ;
    assert_true(text.len >= MIB && text.len < 4 * MIB); /* until the request is full */
    text_free(&text);
    mem_free(q);
    mem_free(foreign); /* was not charged */
    assert_int_equal(charge_used(c), 0);
    mem_free(grown);
    q = mem_strdup("kept"); /* lives longer than the scope */
    charge_leave(before);
    assert_true(charge_used(c) > 0 && charge_used(c) < 100);
    mem_free(mem_alloc(6 * MIB)); /* nobody's */
    mem_free(q);
    assert_true(charge_used(c) > 0);
    charge_unref(c);
    assert_int_equal(held(&a), 0);
    mem_account_deinit(&a);
}

struct counting_meter {
    struct mem_meter meter;
    size_t left;
    unsigned takes;
};

static bool count_take(struct mem_meter *m, size_t bytes) {
    struct counting_meter *c = (struct counting_meter *)(void *)m;
    c->takes++;
    if (bytes > c->left)
        return false;
    c->left -= bytes;
    return true;
}

static void count_add(struct mem_meter *m, size_t bytes) {
    struct counting_meter *c = (struct counting_meter *)(void *)m;
    assert_true(bytes <= c->left);
    c->left -= bytes;
}

static void count_give(struct mem_meter *m, size_t bytes) {
    ((struct counting_meter *)(void *)m)->left += bytes;
}

/* What is refused costs nothing; what is estimated before an allocation is enough. */
static void test_meters(void **state) {
    struct counting_meter c = {{count_take, count_add, count_give}, .left = MIB};
    struct mem_meter *before = mem_meter_set(&c.meter);
    char *fits;
    (void)state;
    for (int i = 0; i < 1000; i++)
        assert_null(mem_alloc(2 * MIB));
    assert_int_equal(c.takes, 1); /* until something is freed */
    fits = mem_alloc(1000);
    assert_non_null(fits);
    mem_free(fits);
    assert_null(mem_alloc(2 * MIB));
    assert_int_equal(c.takes, 3);
    for (size_t bytes = 1; bytes < 300000;
         bytes += bytes / 7 + 1) { /* what is estimated is enough */
        fits = mem_alloc(bytes);
        mem_free(fits);
        fits = mem_calloc(bytes, 1);
        mem_free(fits);
        fits = mem_alloc_aligned(bytes);
        assert_non_null(fits);
        mem_free(fits);
        assert_int_equal(c.left, MIB);
    }
    mem_meter_set(before);
}

/* A text in a request whose account is nearly full, whatever is left: its tree or an error, never
 * a byte beyond the text (jansson reads on in a string whose buffer could not grow). */
static void test_json_in_short_memory(void **state) {
    enum { LONG = 40000, ITEMS = 60 };
    struct text_buf text = {0};
    size_t refused = 0, built = 0;
    (void)state;
    assert_true(text_puts(&text, "{\"numbers\":[1"));
    for (int i = 0; i < ITEMS; i++)
        assert_true(text_puts(&text, ",1.25,{\"a\":[]}"));
    assert_true(text_puts(&text, "],\"text\":\""));
    for (int i = 0; i < LONG; i++)
        assert_true(text_puts(&text, i % 1000 ? "a" : "\\u00e9"));
    assert_true(text_puts(&text, "\"}"));
    json_set_alloc_funcs(mem_alloc, mem_free);
    for (size_t left = 0; left < 400000; left += 1777) {
        struct counting_meter c = {{count_take, count_add, count_give}, .left = left};
        kvasir_error err;
        json_t *tree;
        struct mem_meter *before = mem_meter_set(&c.meter);
        const kvasir_status status = json_load_request(text.data, text.len, 0, &tree, &err);
        if (status == KVASIR_OK)
            assert_int_equal(json_array_size(json_object_get(tree, "numbers")), 1 + 2 * ITEMS);
        else
            assert_int_equal(status, KVASIR_ERR_MEMORY);
        refused += status != KVASIR_OK;
        built += status == KVASIR_OK;
        json_decref(tree);
        mem_meter_set(before);
        assert_int_equal(c.left, left);
    }
    assert_true(refused > 20 && built > 20);
    json_set_alloc_funcs(malloc, free);
    text_free(&text);
}

/* A request's engine and its exchange use its charge at the same time. */
struct user {
    struct charge *charge;
    unsigned seed;
    uint64_t refused;
};

static void *use(void *user) {
    struct user *u = user;
    size_t mine[8] = {0};
    for (int i = 0; i < 20000; i++) {
        u->seed = u->seed * 1664525u + 1013904223u;
        size_t *slot = &mine[u->seed >> 29], bytes = (u->seed >> 4) % (200 << 10);
        if (*slot)
            charge_give(u->charge, *slot);
        *slot = charge_take(u->charge, bytes) ? bytes : 0;
        u->refused += *slot != bytes;
    }
    for (size_t i = 0; i < 8; i++)
        charge_give(u->charge, mine[i]);
    charge_unref(u->charge);
    return NULL;
}

static void test_threads(void **state) {
    enum { THREADS = 6 };
    struct mem_account a;
    struct mem_share key = {0};
    struct user users[THREADS];
    pthread_t threads[THREADS];
    uint64_t refused = 0;
    (void)state;
    mem_account_init(&a, MIB / 2, false); /* less than one thread asks for, whatever its timing */
    struct charge *charges[2] = {charge_create(&a, &key), charge_create(&a, NULL)};
    for (unsigned i = 0; i < THREADS; i++) {
        users[i] = (struct user){.charge = charge_ref(charges[i % 2]), .seed = i};
        assert_int_equal(pthread_create(&threads[i], NULL, use, &users[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        refused += users[i].refused;
    }
    assert_true(refused > 0);
    assert_int_equal(charge_used(charges[0]) + charge_used(charges[1]), 0);
    assert_true(mem_account_figures(&a).peak <= a.limit);
    charge_unref(charges[0]);
    charge_unref(charges[1]);
    assert_int_equal(held(&a) + key.held, 0);
    mem_account_deinit(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),  cmocka_unit_test(test_beyond_the_limit),
        cmocka_unit_test(test_shares),  cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_meters),  cmocka_unit_test(test_json_in_short_memory),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
