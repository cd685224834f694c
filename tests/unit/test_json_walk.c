/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies are read without a tree (json_walk.c, api_body.c): the same texts are taken and refused as
 * by jansson, with the same words at the same byte; what is not wanted costs no memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_body.h"
#include "api/openai.h"
#include "util/account.h"
#include "util/json.h"

#include <cmocka.h>

/* ---- as jansson ------------------------------------------------------------------------------ */

static kvasir_status count_part(void *user, const struct json_part *part, kvasir_error *err) {
    size_t *n = user;
    (void)err;
    assert_true(part->value_len > 0);
    ++*n;
    return KVASIR_OK;
}

static void compare(const char *text, size_t len) {
    kvasir_error theirs = {0}, ours = {0};
    json_t *tree;
    size_t parts = 0;
    const kvasir_status want =
        json_load_request(text, len, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &tree, &theirs);
    const kvasir_status got = json_walk(text, len, count_part, &parts, &ours);
    /* two names in one object: it is found when the object ends, unless it does not end */
    const bool twice = want && strstr(theirs.text, "duplicate object key");
    if (want != got ||
        (!twice && want && (strcmp(theirs.text, ours.text) != 0 || theirs.offset != ours.offset)))
        fail_msg("%.*s\njansson: %s\nours: %s", (int)len, text, want ? theirs.text : "good",
                 got ? ours.text : "good");
    if (!got)
        assert_int_equal(parts,
                         json_is_object(tree) ? json_object_size(tree) : json_array_size(tree));
    json_decref(tree);
}

static const char *const TEXTS[] = {
    ("{\"messages\": [{\"role\": \"user\", \"content\": \"a\\n\\u00e9\\ud83d\\ude00\\\"\"}], "
     "\"n\":1}"),
    "[0, -0, 12, -1.5, 1e5, 1E-05, 0.25e+2, true, false, null, \"\", {}, []]",
    "{\"a\":{\"b\":{\"c\":[[],[{}],[1,[2]]]},\"a\":1},\"b\":\"\\u0061\",\"\\u00e9\":\"\xc3\xa9\"}",
    " { \"big\" : 9223372036854775807 , \"less\" : -9223372036854775808, \"r\": 1e308 } \n",
    "{\"x\":[9223372036854775808]}",
    "{\"x\":[-9223372036854775809]}",
    "{\"x\":[1e309]}",
    "[\"\\ud800\"]",
    "[\"\\ud800\\u0041\"]",
    "[\"\\udc00\"]",
    "[\"\xed\xa0\x80\"]",
    "[\"\xf4\x90\x80\x80\"]",
    "[\"\xc3",
    "[\xc3\xa9]",
    "[tru]",
    "[truex]",
    "[01]",
    "[-]",
    "[1.]",
    "[1e]",
    "[\"\\x\"]",
    "[\"\\u12g4\"]",
    "[\"a\nb\"]",
    "[\"a\tb\"]",
    "{\"a\"}",
    "{\"a\":}",
    "{\"a\":1,}",
    "{a:1}",
    "{\"a\":1]",
    "[1}",
    "[1,",
    "[",
    "{",
    "",
    "  ",
    "5",
    "\"a\"",
    "{} {}",
    "[]x",
    "{\"\\u0000\":1}",
    "{\"a\\u0000b\":1}",
    "{\"a\":\"\\u0000\"}",
    "{\"a\":1,\"a\":2}",
    "{\"a\":1,\"\\u0061\":2}",
    "{\"\xc3\xa9\":1,\"\\u00E9\":2}",
    "{\"\xf0\x9f\x98\x80\":1,\"\\ud83d\\ude00\":2}",
    "{\"\\/\":1,\"/\":2}",
    "{\"\\n\":1,\"\\u000a\":2}",
    "{\"b\":{\"a\":1},\"a\":{\"a\":[{\"a\":1},{\"a\":1}]}}",
    "{\"b\":1,\"ab\":1,\"a\":1,\"abc\":1,\"\":1,\"c\":1,\"ba\":1}",
};

static void test_texts(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++)
        for (size_t len = 0; len <= strlen(TEXTS[i]); len++)
            compare(TEXTS[i], len);
}

/* Texts with a few bytes changed, left out, or from another text. */
static void test_mutations(void **state) {
    (void)state;
    static const char BYTES[] = "{}[]:,\"\\ue0159-+.tfn \n\x01\xc3\xa9";
    uint64_t x = 20261124;
    char text[512];
    for (size_t round = 0; round < 300000; round++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        const char *from = TEXTS[(x >> 33) % (sizeof TEXTS / sizeof *TEXTS)];
        size_t len = strlen(from);
        memcpy(text, from, len);
        for (unsigned k = 0; len && k <= (x >> 20) % 3; k++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            const size_t at = (x >> 33) % len;
            const char byte = BYTES[(x >> 24) % (sizeof BYTES - 1)];
            if ((x >> 60) < 6) {
                text[at] = byte;
            } else if ((x >> 60) < 10) {
                memmove(text + at, text + at + 1, --len - at);
            } else {
                memmove(text + at + 1, text + at, len++ - at);
                text[at] = byte;
            }
        }
        compare(text, len);
    }
}

static void repeat(struct text_buf *b, const char *unit, size_t n) {
    for (size_t i = 0; i < n; i++)
        assert_true(text_puts(b, unit));
}

static void test_depth(void **state) {
    (void)state;
    for (size_t levels = JSON_REQUEST_DEPTH_MAX - 1; levels < JSON_REQUEST_DEPTH_MAX + 2; levels++)
        for (int scalar = 0; scalar < 2; scalar++)
            for (int object = 0; object < 2; object++) {
                struct text_buf b = {0};
                repeat(&b, object ? "{\"a\":" : "[", levels - 1);
                assert_true(text_puts(&b, !scalar ? "[]" : object ? "{\"a\":1}" : "[1]"));
                repeat(&b, object ? "}" : "]", levels - 1);
                compare(b.data, b.len);
                text_free(&b);
            }
}

/* A large object is sorted, and two equal names in it are found. */
static void test_many_names(void **state) {
    (void)state;
    for (int twice = 0; twice < 2; twice++) {
        struct text_buf b = {0};
        kvasir_error err = {0};
        size_t n = 0;
        assert_true(text_puts(&b, "{\"m\":{"));
        for (unsigned i = 0; i < 30000; i++)
            assert_true(text_printf(&b, "%s\"%u\":1", i ? "," : "", i * 7919u % 30011u));
        assert_true(text_puts(&b, twice ? ",\"2\\u00399\":1}}" : ",\"30011\":{}}}"));
        assert_int_equal(json_walk(b.data, b.len, count_part, &n, &err),
                         twice ? KVASIR_ERR_TEXT : KVASIR_OK);
        if (twice)
            assert_int_equal(err.offset, b.len - 4);
        text_free(&b);
    }
}

/* ---- bodies ---------------------------------------------------------------------------------- */

enum { MIB = 1 << 20 };

/* The most that reading the body takes, beside the body; 0: it is refused. */
static size_t cost(const char *before, const char *unit, size_t n, const char *after,
                   api_want_fn *wants) {
    struct text_buf b = {0};
    struct api_body body;
    struct api_error err;
    struct mem_account account;
    assert_true(text_puts(&b, before));
    for (size_t i = 0; i < n; i++)
        assert_true((i == 0 || text_puts(&b, ",")) && text_puts(&b, unit));
    assert_true(text_puts(&b, after));
    mem_account_init(&account, 512 * MIB, false);
    struct charge *charge = charge_create(&account, NULL), *outer = charge_enter(charge);
    const bool good = api_body_read(b.data, b.len, 1000, wants, &body, &err);
    if (good)
        api_body_free(&body);
    charge_leave(outer);
    charge_unref(charge);
    const size_t peak = mem_account_figures(&account).peak;
    mem_account_deinit(&account);
    text_free(&b);
    return good ? peak : 0;
}

static void test_cost(void **state) {
    (void)state;
    json_set_alloc_funcs(mem_alloc, mem_free);
    static const char SKIPPED[] = "{\"prompt\":\"a\",\"metadata\":[";
    const struct {
        const char *before, *unit;
        size_t n;
        const char *after;
        size_t most;
    } BODIES[] = {
        {SKIPPED, "{}", 10000000, "]}", 64 << 10}, /* 30 MB */
        {SKIPPED, "[]", 10000000, "]}", 64 << 10},
        {SKIPPED, "\"\"", 10000000, "]}", 64 << 10},
        {SKIPPED, "{\"a\":{\"b\":1}}", 2000000, "]}", 64 << 10},
        {"{\"prompt\":[", "9", 4000000, "]}", 49 * MIB}, /* doubling: old and new */
        {"{\"prompt\":[[", "9", 4000000, "]]}", 49 * MIB},
        {"{\"stop_token_ids\":[", "9", 4000000, "]}", 49 * MIB},
    };
    for (size_t i = 0; i < sizeof BODIES / sizeof *BODIES; i++) {
        const size_t took = cost(BODIES[i].before, BODIES[i].unit, BODIES[i].n, BODIES[i].after,
                                 openai_wants_completion);
        if (took == 0 || took > BODIES[i].most)
            fail_msg("%s%s...: %zu bytes", BODIES[i].before, BODIES[i].unit, took);
    }
    /* where a tree is needed, it has its bounds */
    assert_int_equal(cost("{\"messages\":[", "{}", 10000000, "]}", openai_wants_chat), 0);
    assert_true(cost("{\"prompt\":[", "{}", 10000000, "]}", openai_wants_chat) > 0); /* skipped */
    json_set_alloc_funcs(malloc, free);
}

static void take(const char *text, const char *wanted) {
    struct api_body body = {0};
    struct api_error err;
    int32_t *ids;
    size_t n, *ends, n_ends;
    char made[160] = "";
    if (!api_body_read(text, strlen(text), 1000, openai_wants_completion, &body, &err))
        snprintf(made, sizeof made, "%.150s", err.text);
    else if (!api_has_ids(&body, "prompt"))
        snprintf(made, sizeof made, "%s", json_object_get(body.members, "prompt") ? "tree" : "-");
    else if (!api_take_id_lists(&body, "prompt", &ids, &n, &ends, &n_ends, &err))
        snprintf(made, sizeof made, "%.150s", err.text);
    else {
        snprintf(made, sizeof made, "%zu:", n_ends);
        for (size_t i = 0, list = 0; i < n; i++) {
            for (; list < n_ends && ends[list] == i; list++)
                strcat(made, " |");
            snprintf(made + strlen(made), sizeof made - strlen(made), " %d", ids[i]);
        }
        mem_free(ids);
        mem_free(ends);
    }
    assert_string_equal(made, wanted);
    api_body_free(&body);
}

static void test_ids(void **state) {
    (void)state;
    take("{\"prompt\":[1, 20 ,999,-0]}", "0: 1 20 999 0");
    take("{\"pr\\u006fmpt\":[]}", "0:");
    take("{\"prompt\":[[3,4]]}", "1: 3 4");
    take("{\"prompt\":[[3,4],[],[5],[6,7]]}", "4: 3 4 | | 5 | 6 7");
    take("{\"prompt\":[[3],[4,5,-1]]}", "prompt[1][2]: -1 is not a token id (0 to 999)");
    take("{\"prompt\":[[3],4]}", "prompt[1]: is a number, not an array of token ids");
    take("{\"prompt\":[1000]}", "prompt[0]: 1000 is not a token id (0 to 999)");
    take("{\"prompt\":[5,-1]}", "prompt[1]: -1 is not a token id (0 to 999)");
    take("{\"prompt\":[5,4294967297]}", "prompt[1]: 4294967297 is not a token id (0 to 999)");
    take("{\"prompt\":[1,2.5]}", "prompt[1]: 2.5 is not a whole number");
    take("{\"prompt\":[[1,\"a\"]]}", "prompt[0][1]: is a string, not a whole number");
    take("{\"prompt\":[1,[2],\"a\"]}", "prompt[1]: is an array, not a whole number");
    take("{\"prompt\":[null]}", "prompt[0]: is null, not a whole number");
    take("{\"prompt\":[{}]}", "prompt[0]: is an object, not a whole number");
    take("{\"prompt\":[\"a\"]}", "tree");
    take("{\"prompt\":7}", "tree");
    take("{\"metadata\":[1]}", "-");
    take("{\"prompt\":[1],\"prompt\":[2],\"prompt\":[3]}",
         "invalid JSON at byte 22: duplicate object key");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts), cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_depth), cmocka_unit_test(test_many_names),
        cmocka_unit_test(test_cost),  cmocka_unit_test(test_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
