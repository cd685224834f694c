/* SPDX-License-Identifier: Apache-2.0 */
/* Encodings that end early: at a number of tokens, without looking at what is beyond it, and when
 * they are told to stop, in the middle of a word, too.
 */
#include "text/text.h"

#include "text_checks.h"

/* a b c and the space, runs of 2, 4 ... 64 of the first three; other characters have no piece. */
static struct tokenizer *make(const char *before_model) {
    struct text_buf json = {0};
    assert_true(text_printf(&json, "{%s\"model\":{\"type\":\"BPE\",\"vocab\":{", before_model));
    int id = 0;
    for (const char *c = "abc"; *c; c++)
        for (size_t n = 1; n <= 64; n *= 2) {
            char run[65] = "";
            memset(run, *c, n);
            assert_true(text_printf(&json, "\"%s\":%d,", run, id++));
        }
    assert_true(text_printf(&json, "\" \":%d,\"\\u0120\":%d},\"merges\":[", id, id + 1));
    for (const char *c = "abc"; *c; c++)
        for (size_t n = 1; n < 64; n *= 2) {
            char run[65] = "";
            memset(run, *c, n);
            const char *comma = *c == 'a' && n == 1 ? "" : ",";
            assert_true(text_printf(&json, "%s\"%s %s\"", comma, run, run));
        }
    assert_true(text_puts(&json, "]}}"));
    const struct tokenizer_spec spec = {.json = {json.data, json.len}};
    struct tokenizer *t = NULL;
    kvasir_error err = {0};
    if (tokenizer_create(&spec, &t, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    text_free(&json);
    return t;
}

/* The whole text is one word; words of bytes; words without the spaces between them; characters
 * that a normalizer makes shorter. */
static const char *const KINDS[] = {
    "",
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},",
    "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"Removed\","
    "\"invert\":false},",
    "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"aaaaaaaa\"},\"content\":\"b\"}"
    ",",
};
enum { N_KINDS = sizeof KINDS / sizeof *KINDS };

static kvasir_status encode_within(const struct tokenizer *t, const char *text, size_t len,
                                   const kvasir_text_limits *limits, size_t *n) {
    int32_t *ids;
    kvasir_error err = {0};
    const kvasir_status status = tokenizer_encode_by(t, text, len, 0, NULL, limits, &ids, n, &err);
    mem_free(ids);
    assert_int_equal(err.code, status);
    return status;
}

/* A text of n tokens is taken where n are allowed, and refused where fewer are. */
static void check_max_tokens(const struct tokenizer *t, const char *text, size_t len) {
    size_t n, again;
    assert_int_equal(encode_within(t, text, len, NULL, &n), KVASIR_OK);
    const size_t most[] = {n, n + 1, n - 1, n / 2, 1};
    for (size_t i = 0; i < sizeof most / sizeof *most; i++) {
        const kvasir_text_limits limits = {.max_tokens = most[i]};
        if (n == 0 || most[i] == 0)
            continue;
        assert_int_equal(encode_within(t, text, len, &limits, &again),
                         n > most[i] ? KVASIR_ERR_CONTEXT : KVASIR_OK);
        assert_int_equal(again, n > most[i] ? 0 : n);
    }
}

static void test_max_tokens(void **state) {
    (void)state;
    for (size_t k = 0; k < N_KINDS; k++) {
        struct tokenizer *t = make(KINDS[k]);
        for (int i = 0; i < 500; i++) {
            char text[1200];
            size_t len = 0;
            while (len + 80 < sizeof text && rng(12)) {
                const size_t run = 1 + rng(70);
                memset(text + len, "abc x"[rng(5)], run);
                len += run;
            }
            check_max_tokens(t, text, len);
        }
        tokenizer_destroy(t);
    }
}

static bool count_asked(void *user) {
    ++*(int *)user;
    return false;
}

/* Only as many symbols are looked at as could fit, so stop is never asked. */
static void test_excess_costs_nothing(void **state) {
    (void)state;
    enum { MOST = 100, LONG = 16 << 20 };
    char *text = malloc(LONG);
    assert_non_null(text);
    for (size_t k = 0; k < 2; k++) {
        struct tokenizer *t = make(KINDS[k]);
        for (size_t c = 0; c < 3; c++) {
            int asked = 0;
            const kvasir_text_limits limits = {
                .max_tokens = MOST, .stop = count_asked, .user = &asked};
            size_t n;
            memset(text, "ab "[c], LONG);
            assert_int_equal(encode_within(t, text, LONG, &limits, &n), KVASIR_ERR_CONTEXT);
            assert_int_equal(asked, 0);
        }
        tokenizer_destroy(t);
    }
    free(text);
}

static bool stop_after(void *user) {
    return --*(int *)user == 0;
}

static bool stop_at_third(void *user) {
    return ++*(int *)user >= 3;
}

/* Back to text, with every kind of decoder. */
static void test_decode_stops(void **state) {
    static const char *const DECODERS[] = {
        "", "\"decoder\":{\"type\":\"ByteLevel\"},", "\"decoder\":{\"type\":\"ByteFallback\"},",
        ("\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"
         "{\"String\":\"a\"},\"content\":\"b\"},{\"type\":\"Fuse\"}]},")};
    enum { LONG = 100000 };
    int32_t *ids = calloc(LONG, sizeof *ids); /* all of them "a" */
    (void)state;
    assert_non_null(ids);
    for (size_t k = 0; k < sizeof DECODERS / sizeof *DECODERS; k++) {
        struct tokenizer *t = make(DECODERS[k]);
        int asked = 0;
        kvasir_text_limits limits = {.stop = count_asked, .user = &asked};
        struct text_buf out = {0};
        kvasir_error err = {0};
        assert_int_equal(tokenizer_decode_by(t, ids, LONG, 0, &limits, &out, &err), KVASIR_OK);
        assert_in_range(out.len, LONG, 2 * LONG); /* with spaces between them, or not */
        assert_true(asked >= LONG / 5000);
        for (int last = asked; last > 0; last -= 5) {
            limits.stop = stop_after;
            asked = last;
            out.len = 0;
            assert_int_equal(tokenizer_decode_by(t, ids, LONG, 0, &limits, &out, &err),
                             KVASIR_ERR_CANCELLED);
            assert_int_equal(asked, 0);
        }
        text_free(&out);
        tokenizer_destroy(t);
    }
    free(ids);
}

static void test_stop(void **state) {
    (void)state;
    enum { LONG = 1 << 20 };
    char *text = malloc(LONG);
    assert_non_null(text);
    for (size_t k = 0; k < N_KINDS; k++) {
        struct tokenizer *t = make(KINDS[k]);
        for (size_t c = 0; c < 2; c++) {
            int asked = 0;
            const kvasir_text_limits limits = {.stop = stop_at_third, .user = &asked};
            size_t n;
            for (size_t i = 0; i < LONG; i++)
                text[i] = c == 0 ? 'a' : "ab "[i % 3];
            assert_int_equal(encode_within(t, text, LONG, &limits, &n), KVASIR_ERR_CANCELLED);
            assert_int_equal(asked, 3);
        }
        tokenizer_destroy(t);
    }
    free(text);
}

int main(void) {
    rng_start(20261124);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_max_tokens),
        cmocka_unit_test(test_excess_costs_nothing),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_decode_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
