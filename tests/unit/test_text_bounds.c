/* SPDX-License-Identifier: Apache-2.0 */
/* Small tokenizer.json files that need much memory: decoders that multiply, templates that repeat,
 * JSON whose tree is many times the size of its text. Each is refused by a bound on what it would
 * take, and the error names the place. What is just below the bound is accepted.
 */
#define _GNU_SOURCE /* asprintf */
#include "text/json_scan.h"
#include "text/tokenizer_internal.h"

#include "text_checks.h"

/* Ids: <s> 0, a 1, b 2, Ga 3. */
static struct tokenizer *make(const char *post, const char *decoder, kvasir_error *err) {
    char *json;
    assert_true(asprintf(&json,
                         "{\"post_processor\":%s,\"decoder\":%s,\"model\":{\"type\":\"BPE\","
                         "\"vocab\":{\"<s>\":0,\"a\":1,\"b\":2,\"Ga\":3},\"merges\":[]}}",
                         post, decoder) > 0);
    const struct tokenizer_spec spec = {.json = span_of(json)};
    struct tokenizer *t = NULL;
    kvasir_status status = tokenizer_create(&spec, &t, err);
    assert_int_equal(status == KVASIR_OK, t != NULL);
    free(json);
    return t;
}

static void taken(const char *post, const char *decoder, struct tokenizer **out) {
    kvasir_error err = {0};
    *out = make(post, decoder, &err);
    if (!*out)
        fail_msg("%s", err.text);
}

static void refused(const char *post, const char *decoder, kvasir_status code, const char *words) {
    kvasir_error err = {0};
    if (make(post, decoder, &err))
        fail_msg("taken, though: %s", words);
    if (err.code != code || !strstr(err.text, words))
        fail_msg("status %d: \"%s\" does not say \"%s\"", err.code, err.text, words);
    assert_null(make(post, decoder, NULL));
}

/* `head`, then n times `item` with a comma between, then `tail`. */
static char *repeat(const char *head, size_t n, const char *item, const char *tail) {
    struct text_buf out = {0};
    assert_true(text_append(&out, head, strlen(head)));
    for (size_t i = 0; i < n; i++)
        assert_true((i == 0 || text_append(&out, ",", 1)) && text_append(&out, item, strlen(item)));
    assert_true(text_append(&out, tail, strlen(tail)));
    return out.data;
}

/* ---- decoders -------------------------------------------------------------------------------- */

#define TIMES_32                                                                                   \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":"                            \
    "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}"
#define STEPS_OF "{\"type\":\"Sequence\",\"decoders\":["

static void test_decoder_of_a_token(void **state) {
    (void)state;
    struct tokenizer *t;
    taken("null", TIMES_32, &t);
    assert_int_equal(tokenizer_bytes(t, 1).len, 32);
    tokenizer_destroy(t);
    /* 3 steps make 32 KiB of one byte, 8 steps 32^8 bytes. */
    for (size_t steps = 3; steps <= DECODER_STEPS_MAX; steps++) {
        char *decoder = repeat(STEPS_OF, steps, TIMES_32, "]}");
        refused("null", decoder, KVASIR_ERR_FORMAT, "the decoder makes token 1 too long");
        mem_free(decoder);
    }
    /* 1 KiB of one byte is within the bound of a token, but two such tokens exceed that of all. */
    char *decoder = repeat(STEPS_OF, 2, TIMES_32, "]}");
    refused("null", decoder, KVASIR_ERR_FORMAT, "the decoder makes all tokens up to 3 too long");
    mem_free(decoder);
}

static kvasir_status decode_many(const struct tokenizer *t, size_t n, struct text_buf *out,
                                 kvasir_error *err) {
    int32_t *ids = calloc(n, sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < n; i++)
        ids[i] = i == 0 ? 2 : 1;
    kvasir_status status = tokenizer_decode(t, ids, n, 0, out, err);
    free(ids);
    return status;
}

/* Every token is within its bound, but the text is not: 32 bytes for each token where 16 are
 * allowed. */
static void test_decoder_of_a_text(void **state) {
    (void)state;
    static const struct {
        const char *decoder, *words;
    } cases[] = {
        {TIMES_32, "a text too long at token 1"},
        {STEPS_OF TIMES_32 ",{\"type\":\"Fuse\"}]}", "a text too long at token 1"},
        {STEPS_OF "{\"type\":\"Fuse\"}," TIMES_32 "]}", "a text too long"},
        {STEPS_OF "{\"type\":\"Fuse\"}," TIMES_32 "," TIMES_32 "," TIMES_32 "," TIMES_32 "]}",
         "a text too long"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tokenizer *t;
        kvasir_error err = {0};
        struct text_buf out = {0};
        taken("null", cases[i].decoder, &t);
        if (i < 3) {
            assert_int_equal(decode_many(t, 64, &out, &err), KVASIR_OK);
            assert_int_equal(out.len, 1 + 63 * 32);
        }
        out.len = 0;
        assert_int_equal(decode_many(t, 4000, &out, &err), KVASIR_ERR_TEXT);
        assert_non_null(strstr(err.text, cases[i].words));
        assert_int_equal(out.len, 0);
        assert_int_equal(decode_many(t, 4000, &out, NULL), KVASIR_ERR_TEXT);
        text_free(&out);
        tokenizer_destroy(t);
    }
}

/* ---- post-processors ------------------------------------------------------------------------- */

#define SPECIAL "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}}"
#define TEXT_A  "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
#define IDS_OF  "],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":["

static void test_post_processor(void **state) {
    (void)state;
    static const char head[] = "{\"type\":\"TemplateProcessing\",\"single\":[";
    for (size_t n = 64; n <= 65; n++) {
        char *behind = repeat(head, n, SPECIAL, "," TEXT_A IDS_OF "0],\"tokens\":[]}}}");
        char *one = repeat(head, 1, TEXT_A, "," SPECIAL IDS_OF);
        char *ids = repeat(one, n, "0", "],\"tokens\":[]}}}");
        if (n == 64) {
            struct tokenizer *t;
            taken(behind, "null", &t);
            assert_int_equal(t->before.n, 64);
            tokenizer_destroy(t);
            taken(ids, "null", &t);
            assert_int_equal(t->after.n, 64);
            tokenizer_destroy(t);
        } else {
            refused(behind, "null", KVASIR_ERR_UNSUPPORTED,
                    "post_processor.single adds more than 64 tokens before the text");
            refused(ids, "null", KVASIR_ERR_UNSUPPORTED,
                    "post_processor.single adds more than 64 tokens after the text");
        }
        mem_free(behind);
        mem_free(one);
        mem_free(ids);
    }
    /* 20,000 names of 20,000 ids each would be 1.6 GB. */
    char *names = repeat(head, 20000, SPECIAL, "," TEXT_A IDS_OF);
    char *ids = repeat(names, 20000, "0", "],\"tokens\":[]}}}");
    refused(ids, "null", KVASIR_ERR_UNSUPPORTED, "more than 64 tokens");
    mem_free(names);
    mem_free(ids);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void test_json_memory(void **state) {
    (void)state;
    char *decoder = repeat(STEPS_OF, 300000, "{}", "]}"); /* 69 MB as a tree */
    refused("null", decoder, KVASIR_ERR_FORMAT,
            "tokenizer.json: decoder: JSON of 900032 bytes would take more than 32 times");
    mem_free(decoder);
    decoder = repeat(STEPS_OF, 2000, "{}", "]}"); /* a small file too */
    refused("null", decoder, KVASIR_ERR_FORMAT, "more than 32 times");
    mem_free(decoder);
    decoder = repeat(STEPS_OF, 100, "{\"type\":\"Fuse\"}", "]}"); /* real files are far below */
    refused("null", decoder, KVASIR_ERR_UNSUPPORTED, "one step too many");
    mem_free(decoder);
}

/* The tree and the scanner allow the same depth of brackets, whatever the innermost ones
 * contain. */
static void test_json_depth(void **state) {
    (void)state;
    static const char *const inner[] = {"", "1", "\"a\"", "null"};
    for (size_t i = 0; i < 4; i++)
        for (int depth = JSON_DEPTH_MAX; depth <= JSON_DEPTH_MAX + 1; depth++) {
            char text[2 * JSON_DEPTH_MAX + 8] = {0};
            memset(text, '[', (size_t)depth);
            strcat(text, inner[i]);
            memset(text + strlen(text), ']', (size_t)depth);
            kvasir_status want = depth > JSON_DEPTH_MAX ? KVASIR_ERR_FORMAT : KVASIR_OK;
            struct json_scan s;
            struct text_span raw;
            kvasir_error err = {0};
            scan_init(&s, "x.json", span_of(text), &err);
            assert_int_equal(scan_skip(&s, &raw), want);
            scan_deinit(&s);
            json_t *tree;
            assert_int_equal(json_load_bounded(text, strlen(text), 0, 0, &tree, &err), want);
            json_decref(tree);
        }
}

/* What a tree would take is known before it is built: 4 MiB of "{}," would take 314 MiB. */
static void test_request_bounds(void **state) {
    (void)state;
    static const struct {
        const char *unit; /* repeated in an array */
        size_t n;
        kvasir_status want;
    } BODIES[] = {
        {"{},", (4 << 20) / 3, KVASIR_ERR_FORMAT},
        {"[],", (4 << 20) / 3, KVASIR_ERR_FORMAT},
        {"{},", 100, KVASIR_OK},
        {"151643,", 1000000, KVASIR_OK},
        {"1,", 3000000, KVASIR_ERR_FORMAT},
        {"\"text\",", 100000, KVASIR_OK},
    };
    for (size_t i = 0; i < sizeof BODIES / sizeof *BODIES; i++) {
        const size_t unit = strlen(BODIES[i].unit), len = BODIES[i].n * unit + 3;
        char *body = mem_alloc(len + 1);
        body[0] = '[';
        for (size_t k = 0; k < BODIES[i].n; k++)
            memcpy(body + 1 + k * unit, BODIES[i].unit, unit);
        memcpy(body + len - 2, "0]", 2);
        body[len] = 0;
        const uint64_t before = memory_resident_peak_bytes();
        json_t *tree;
        kvasir_error err = {0};
        assert_int_equal(json_load_request(body, strlen(body), 0, &tree, &err), BODIES[i].want);
        if (BODIES[i].want != KVASIR_OK)
            assert_true(memory_resident_peak_bytes() - before < 1 << 20);
        json_decref(tree);
        mem_free(body);
    }
    kvasir_error err = {0};
    json_t *tree;
    size_t used; /* only the first value counts */
    assert_int_equal(json_load_first("{\"a\": [\"}\"]} [[", 16, 0, &used, &tree, &err), KVASIR_OK);
    assert_int_equal(used, 12);
    json_decref(tree);
    assert_int_equal(json_load_request("{\"a\": SECRET}", 13, 0, &tree, &err), KVASIR_ERR_TEXT);
    assert_string_equal(err.text, "invalid JSON at byte 12: invalid token");
    assert_int_equal(err.offset, 12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decoder_of_a_token), cmocka_unit_test(test_decoder_of_a_text),
        cmocka_unit_test(test_post_processor),     cmocka_unit_test(test_json_memory),
        cmocka_unit_test(test_json_depth),         cmocka_unit_test(test_request_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
