/* SPDX-License-Identifier: Apache-2.0 */
/* Which tokens may come next in a JSON object, over real vocabularies: exactly those that the
 * automaton takes byte by byte, in every state. Answers made of them, however they are chosen, are
 * objects to jansson. Also times and memory, and vocabularies that cannot write an object.
 */
#include "model/model.h"
#include "text/json_automaton.h"
#include "text/tokenizer_internal.h"

#include "tensors.h"
#include "text_checks.h"

#define STORIES SHARED_DIR "/models/stories260K/stories260K-f32.gguf"

static const char *const vocabularies[] = {
    STORIES,
    SHARED_DIR "/tokenizers/gpt2/tokenizer.json",
    SHARED_DIR "/tokenizers/llama3_1/tokenizer.json",
    SHARED_DIR "/tokenizers/qwen3/tokenizer.json",
    SHARED_DIR "/tokenizers/gemma3/tokenizer.json",
};
enum { VOCABULARIES = sizeof vocabularies / sizeof *vocabularies, PADDING = 100 };

/* A vocabulary under test. The model has a few more ids than the vocabulary has tokens. */
struct subject {
    struct tokenizer *t;
    struct json_vocab *v;
    uint32_t n_ids;
    uint64_t *bits;
    double slowest, total;
    const char *where; /* the slowest state */
    uint32_t asked;
};

static struct tokenizer *open_tokenizer(const char *path) {
    struct checkpoint *c;
    struct tokenizer *t = NULL;
    kvasir_error err = {0};
    if (checkpoint_open_text(path, &c, &err) != KVASIR_OK ||
        tokenizer_create(checkpoint_tokenizer(c), &t, &err) != KVASIR_OK)
        fail_msg("%s: %s", path, err.text);
    checkpoint_close(c);
    return t;
}

static struct subject open_subject(const char *path) {
    struct subject u = {.t = open_tokenizer(path)};
    kvasir_error err = {0};
    u.n_ids = (uint32_t)tokenizer_size(u.t) + PADDING;
    u.bits = calloc((u.n_ids + 63) / 64, sizeof *u.bits);
    const double start = cpu_seconds();
    if (json_vocab_create(u.t, u.n_ids, &u.v, &err) != KVASIR_OK)
        fail_msg("%s: %s", path, err.text);
    print_message("%s: %u ids, %llu bytes, made in %.1f ms\n", path, u.n_ids,
                  (unsigned long long)json_vocab_bytes(u.t, u.n_ids),
                  1e3 * (cpu_seconds() - start));
    return u;
}

static void close_subject(struct subject *u) {
    json_vocab_destroy(u->v);
    tokenizer_destroy(u->t);
    free(u->bits);
}

static bool bit(const struct subject *u, uint32_t id) {
    return u->bits[id / 64] >> id % 64 & 1;
}

/* ---- against the automaton, byte by byte ----------------------------------------------------- */

static bool may_come(const struct subject *u, struct json_state s, uint32_t id) {
    if (id >= tokenizer_size(u->t) || tokenizer_is_control(u->t, (int32_t)id) ||
        tokenizer_is_end(u->t, (int32_t)id))
        return false;
    const struct text_span bytes = tokenizer_bytes(u->t, (int32_t)id);
    for (size_t i = 0; i < bytes.len; i++)
        if (!json_push(&s, (uint8_t)bytes.data[i]))
            return false;
    return bytes.len > 0 && bytes.len <= UINT8_MAX;
}

static struct json_state state_behind(const char *text) {
    struct json_state s = {0};
    for (; *text; text++)
        assert_true(json_push(&s, (uint8_t)*text));
    return s;
}

static void check_state(struct subject *u, const struct json_state *s, const char *where) {
    double best = 1;
    for (int i = 0; i < 3; i++) {
        const double start = cpu_seconds();
        json_vocab_allow(u->v, s, u->bits);
        const double took = cpu_seconds() - start;
        best = took < best ? took : best;
    }
    if (best > u->slowest) {
        u->slowest = best;
        u->where = where;
    }
    u->total += best;
    u->asked++;
    for (uint32_t id = 0; id < u->n_ids; id++)
        if (bit(u, id) != may_come(u, *s, id))
            fail_msg("behind %s: token %u is %s", where, id, bit(u, id) ? "allowed" : "left out");
}

static char deep[2][200]; /* one level of nesting is left, and none */
static char blanks[2][80];

/* Texts that lead to a state of each kind, in each context, near each limit. */
static const char *const places[] = {
    "",
    " ",
    "{",
    "{ ",
    "{\"",
    "{\"a\"",
    "{\"a\":",
    "{\"a\":\"",
    "{\"a\":\"b\"",
    "{\"a\":1,",
    "{\"a\":[",
    "{\"a\":[1,",
    "{\"a\":[\"",
    "{\"a\":[\"b\"",
    "{\"a\":[[[{\"b\":[{\"c\":\"",
    "{\"a\":[[[{\"b\":[{\"c\":\"\"",
    "{\"a\":\"\\",
    "{\"a\":\"\\u",
    "{\"\\u0",
    "{\"\\u00",
    "{\"\\u000",
    "{\"\\ud",
    "{\"\\ud8",
    "{\"\\ud83d",
    "{\"\\ud83d\\",
    "{\"\\ud83d\\u",
    "{\"\\ud83d\\ud",
    "{\"\\ud83d\\ude0",
    "{\"\xe2",
    "{\"\xe2\x82",
    "{\"\xe0",
    "{\"a\":\"\xed",
    "{\"a\":[\"\xf0",
    "{\"a\":\"\xf4\x8f\xbf",
    "{\"a\":-",
    "{\"a\":0",
    "{\"a\":12",
    "{\"a\":[12",
    "{\"a\":1234567890123456789012345678901234567890123456789012345678901",
    "{\"a\":1.",
    "{\"a\":1.5",
    "{\"a\":1e",
    "{\"a\":1e-",
    "{\"a\":1e-1",
    "{\"a\":1e-12",
    "{\"a\":t",
    "{\"a\":fal",
    "{\"a\":[nul",
    "{\"a\":null",
    deep[0],
    deep[1],
    blanks[0],
    blanks[1],
    "{\"a\":{}}",
};

static void test_what_may_come(void **state) {
    (void)state;
    for (int v = 0; v < VOCABULARIES; v++) {
        struct subject u = open_subject(vocabularies[v]);
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            const struct json_state s = state_behind(places[i]);
            check_state(&u, &s, places[i]);
        }
        print_message("%s: %.3f ms on average, %.3f at most (behind %s)\n", vocabularies[v],
                      1e3 * u.total / u.asked, 1e3 * u.slowest, u.where);
        assert_true(u.slowest < 0.0025 * MEGABYTE_SECONDS); /* 5 ms; sanitizers are slow */
        close_subject(&u);
    }
}

/* ---- answers --------------------------------------------------------------------------------- */

enum { ANSWER_TOKENS = 400 };

/* Ways to choose among the allowed tokens. */
enum taste {
    ANYTHING,
    STRUCTURE, /* tokens that hold a bracket, a comma, a colon or a digit */
    ESCAPES,
    BLANKS, /* only blanks where they are allowed */
    BYTES,  /* single bytes, which cut characters */
    TASTES
};

static double liking(enum taste taste, struct text_span bytes) {
    static const char *const liked[TASTES] = {
        [STRUCTURE] = "{}[],:\"0123456789.eE-", [ESCAPES] = "\\ud8c\"", [BLANKS] = " \t\r\n"};
    if (taste == BYTES)
        return bytes.len == 1 && (uint8_t)bytes.data[0] >= 0x80 ? 3 : 0;
    size_t n = 0;
    for (size_t i = 0; liked[taste] && i < bytes.len; i++)
        n += bytes.data[i] && strchr(liked[taste], bytes.data[i]);
    return liked[taste] ? 3 * (double)n / (double)bytes.len : 0;
}

/* One of up to 300 allowed tokens: the largest random number plus the taste's liking wins. */
static int32_t choose(const struct subject *u, enum taste taste) {
    enum { LOOKED_AT = 300 };
    double best = -1;
    int32_t chosen = -1;
    const uint32_t start = rng(u->n_ids);
    for (uint32_t i = 0, seen = 0; i < u->n_ids && seen < LOOKED_AT; i++) {
        const uint32_t id = (start + i) % u->n_ids;
        if (!bit(u, id))
            continue;
        const double x = rng(1 << 20) * 0x1p-20 + liking(taste, tokenizer_bytes(u->t, (int32_t)id));
        seen++;
        if (x > best) {
            best = x;
            chosen = (int32_t)id;
        }
    }
    return chosen;
}

/* Generates an answer and checks it. False: cut before it was complete. */
static bool check_answer(struct subject *u, enum taste taste) {
    struct json_state s = {0};
    struct text_buf text = {0};
    struct detok d = {0};
    for (int n = 0; n < ANSWER_TOKENS && !json_complete(&s); n++) {
        json_vocab_allow(u->v, &s, u->bits);
        /* in the second half prefer structure, so that the answer ends */
        const int32_t id = choose(u, n > ANSWER_TOKENS / 2 ? STRUCTURE : taste);
        if (id < 0)
            fail_msg("a dead end behind %.*s", (int)text.len, text.data);
        const struct text_span bytes = tokenizer_bytes(u->t, id);
        for (size_t i = 0; i < bytes.len; i++)
            assert_true(json_push(&s, (uint8_t)bytes.data[i]));
        assert_true(detok_push(&d, bytes, &text));
    }
    if (json_complete(&s)) {
        json_error_t why;
        json_t *value = json_loadb(text.data, text.len, JSON_DECODE_INT_AS_REAL, &why);
        if (!json_is_object(value))
            fail_msg("%s: %.*s", why.text, (int)text.len, text.data);
        json_decref(value);
        json_vocab_allow(u->v, &s, u->bits);
        assert_int_equal(choose(u, ANYTHING), -1);
    }
    text_free(&text);
    return json_complete(&s);
}

static void test_answers_are_objects(void **state) {
    (void)state;
    for (int v = 0; v < VOCABULARIES; v++) {
        struct subject u = open_subject(vocabularies[v]);
        uint32_t complete = 0;
        for (int i = 0; i < 100; i++)
            complete += check_answer(&u, (enum taste)(i % TASTES));
        print_message("%s: %u complete\n", vocabularies[v], complete);
        assert_true(complete >= 30);
        close_subject(&u);
    }
}

/* ---- odd vocabularies ------------------------------------------------------------------------ */

static struct tokenizer *made_of(const char *const *pieces, size_t n, int32_t eos) {
    struct text_span spans[64];
    uint8_t kinds[64];
    for (size_t i = 0; i < n; i++) {
        spans[i] = span_of(pieces[i]);
        kinds[i] = (int32_t)i == eos ? TOKEN_CONTROL : TOKEN_NORMAL;
    }
    return create(&(struct tokenizer_spec){.model = "gpt2",
                                           .pieces = spans,
                                           .kinds = kinds,
                                           .n_tokens = n,
                                           .bos = -1,
                                           .eos = eos,
                                           .eot = -1,
                                           .unk = -1,
                                           .pad = -1});
}

static void test_vocabularies_that_cannot(void **state) {
    (void)state;
    static const char *const pieces[] = {"</s>", "{", "}", "]", "\"", ":", "\\",
                                         "u",    "0", "d", "{", "",   "a"};
    enum { N = sizeof pieces / sizeof *pieces };
    struct json_vocab *v = NULL;
    kvasir_error err = {0};
    struct tokenizer *t = made_of(pieces, N, 0);
    assert_int_equal(json_vocab_create(t, N, &v, &err), KVASIR_OK);
    uint64_t bits;
    json_vocab_allow(v, &(struct json_state){0}, &bits);
    assert_int_equal(bits, 1 << 1 | 1 << 10); /* both of two equal tokens; never the empty one */
    /* without some of the vocabulary's tokens */
    assert_int_equal(json_vocab_check(v, (const int32_t[]){-5, 1, 500}, 3, &err), KVASIR_OK);
    assert_int_equal(json_vocab_check(v, (const int32_t[]){1, 10}, 2, &err),
                     KVASIR_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "JSON needs a token that is '{' alone, but none is allowed");
    assert_int_equal(json_vocab_check(v, (const int32_t[]){4}, 1, &err), KVASIR_ERR_UNSUPPORTED);
    json_vocab_destroy(v);
    /* the model has fewer ids than the vocabulary */
    assert_int_equal(json_vocab_create(t, 9, &v, &err), KVASIR_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "JSON needs a token that is 'd' alone, but none is allowed");
    tokenizer_destroy(t);
    /* '}' is the end token, so it cannot be written */
    t = made_of(pieces, N, 2);
    assert_int_equal(json_vocab_create(t, N, &v, &err), KVASIR_ERR_UNSUPPORTED);
    tokenizer_destroy(t);
    /* one token only, the end token */
    t = made_of(pieces, 1, 0);
    assert_int_equal(json_vocab_create(t, 1, &v, &err), KVASIR_ERR_UNSUPPORTED);
    assert_true(json_vocab_bytes(t, 1) > 0);
    tokenizer_destroy(t);
}

/* Tokens of more than 255 bytes, which a list cannot hold, are never allowed. */
static void test_long_tokens(void **state) {
    (void)state;
    char longest[UINT8_MAX + 1], longer[UINT8_MAX + 2], twin[UINT8_MAX + 1];
    for (size_t i = 0; i < sizeof longer; i++)
        longer[i] = 'x';
    memcpy(longest, longer, sizeof longest);
    longest[sizeof longest - 1] = longer[sizeof longer - 1] = 0;
    memcpy(twin, longest, sizeof twin);
    twin[UINT8_MAX - 1] = '"';
    const char *const pieces[] = {"{", "}", "]",     "\"",    ":",    "\\", "u",
                                  "0", "d", longest, longest, longer, twin};
    enum { N = sizeof pieces / sizeof *pieces };
    struct json_vocab *v = NULL;
    kvasir_error err = {0};
    uint64_t bits;
    struct tokenizer *t = made_of(pieces, N, -1);
    assert_int_equal(json_vocab_create(t, N, &v, &err), KVASIR_OK);
    const struct json_state in_string = state_behind("{\"");
    json_vocab_allow(v, &in_string, &bits);
    assert_int_equal(bits >> 9, 1 | 2 | 8);
    json_vocab_destroy(v);
    tokenizer_destroy(t);
}

static void fill_places(void) {
    for (int i = 0; i < 2; i++) {
        strcpy(deep[i], "{\"a\":");
        for (int k = 2 - i; k < JSON_LEVELS_MAX; k++)
            strcat(deep[i], "[");
        strcpy(blanks[i], "{");
        for (int k = 5 * (1 - i); k < JSON_BLANKS_MAX; k++)
            strcat(blanks[i], " ");
    }
}

int main(void) {
    skip_without(vocabularies[1]);
    rng_start(1);
    fill_places();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vocabularies_that_cannot),
        cmocka_unit_test(test_long_tokens),
        cmocka_unit_test(test_what_may_come),
        cmocka_unit_test(test_answers_are_objects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
