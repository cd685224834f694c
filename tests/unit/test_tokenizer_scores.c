/* SPDX-License-Identifier: Apache-2.0 */
/* SentencePiece's BPE from GGUF's fields (model "llama"): scores against a literal implementation
 * on random vocabularies, texts with and without places where words are cut, the space in front,
 * bytes, unknown tokens, user-defined ones, decoding, and wrong fields.
 *
 * Bugs that were planted and found: equal scores ranked by their order in the file, control tokens
 * made of ordinary text, a cut after a byte that some piece has before U+2581, and a cut where a
 * character vanishes.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

#include "text_checks.h"

#define MARK "\xe2\x96\x81"

enum { VOCAB_MAX = 400, PIECE_MAX = 64 };

struct scored {
    char text[VOCAB_MAX][PIECE_MAX];
    struct text_span pieces[VOCAB_MAX];
    uint8_t kinds[VOCAB_MAX];
    float scores[VOCAB_MAX];
    struct tokenizer_spec spec;
};

static int32_t add(struct scored *v, const char *text, enum token_kind kind, float score) {
    size_t n = v->spec.n_tokens++;
    assert_true(n < VOCAB_MAX && strlen(text) < PIECE_MAX);
    strcpy(v->text[n], text);
    v->pieces[n] = span_of(v->text[n]);
    v->kinds[n] = (uint8_t)kind;
    v->scores[n] = score;
    return (int32_t)n;
}

/* <unk> 0, <s> 1, </s> 2, then bytes if wanted. */
static struct scored *scored_create(bool bytes) {
    struct scored *v = calloc(1, sizeof *v);
    v->spec = (struct tokenizer_spec){.model = "llama",
                                      .pieces = v->pieces,
                                      .kinds = v->kinds,
                                      .scores = v->scores,
                                      .bos = 1,
                                      .eos = 2,
                                      .eot = -1,
                                      .unk = 0,
                                      .pad = -1,
                                      .add_bos = true};
    add(v, "<unk>", TOKEN_UNKNOWN, 0);
    add(v, "<s>", TOKEN_CONTROL, 0);
    add(v, "</s>", TOKEN_CONTROL, 0);
    for (int byte = 0; bytes && byte < 256; byte++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", byte);
        add(v, name, TOKEN_BYTE, 0);
    }
    return v;
}

static int32_t find(const struct scored *v, const char *text, size_t len) {
    for (size_t i = v->spec.n_tokens; i-- > 3;)
        if (v->kinds[i] != TOKEN_BYTE && span_equal(v->pieces[i], (struct text_span){text, len}))
            return (int32_t)i;
    return -1;
}

/* The rule itself: repeatedly join the two neighbours that make the piece with the best score, the
 * leftmost of equals. What is not a piece in the end becomes bytes. */
static size_t encode_literally(const struct scored *v, const char *text, size_t len, int32_t *ids) {
    size_t start[256], n = 0, out = 0;
    for (size_t i = 0; i < len; i++)
        if (((uint8_t)text[i] & 0xc0) != 0x80)
            start[n++] = i;
    start[n] = len;
    for (;;) {
        size_t best = n;
        float best_score = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            int32_t id = find(v, text + start[i], start[i + 2] - start[i]);
            bool parts = find(v, text + start[i], start[i + 1] - start[i]) >= 0 &&
                         find(v, text + start[i + 1], start[i + 2] - start[i + 1]) >= 0;
            if (id >= 0 && parts && (best == n || v->scores[id] > best_score)) {
                best = i;
                best_score = v->scores[id];
            }
        }
        if (best == n)
            break;
        memmove(start + best + 1, start + best + 2, (n - best - 1) * sizeof *start);
        n--;
    }
    for (size_t i = 0; i < n; i++) {
        int32_t id = find(v, text + start[i], start[i + 1] - start[i]);
        if (id >= 0)
            ids[out++] = id;
        for (size_t k = start[i]; id < 0 && k < start[i + 1]; k++)
            ids[out++] = 3 + (uint8_t)text[k];
    }
    return out;
}

static void test_against_definition(void **state) {
    (void)state;
    static const char *const letters[] = {"a", "b", "\xc3\xa9", "c", MARK};
    static const char *const texts[] = {"a", "b", "\xc3\xa9", " ", "c", "x", "\xe4\xb8\xad"};
    int with_cuts = 0;
    for (int round = 0; round < 60; round++) {
        struct scored *v = scored_create(true);
        size_t first = v->spec.n_tokens;
        for (int k = 0; k < 5 - (round % 7 == 0); k++)
            add(v, letters[k], TOKEN_NORMAL, -(float)rng(20));
        for (int k = 0; k < 60; k++) {
            char joined[2 * PIECE_MAX];
            const char *right = v->text[first + rng((uint32_t)(v->spec.n_tokens - first))];
            if (round % 2 && strstr(right, MARK) && rng(20))
                continue; /* fewer pieces with a mark inside */
            snprintf(joined, sizeof joined, "%s%s",
                     v->text[first + rng((uint32_t)(v->spec.n_tokens - first))], right);
            if (strlen(joined) < 24)
                add(v, joined, rng(10) ? TOKEN_NORMAL : TOKEN_UNUSED, -(float)rng(20));
        }
        struct tokenizer *t = create(&v->spec);
        with_cuts += t->bpe.cut_at_marks;
        for (int k = 0; k < 200; k++) {
            char text[256] = "", marked[256] = "";
            for (uint32_t i = rng(30); i > 0; i--) {
                const char *c = texts[rng(rng(4) ? 5 : 7)];
                strcat(text, c);
                strcat(marked, *c == ' ' ? MARK : c);
            }
            int32_t want[256];
            size_t n_want = encode_literally(v, marked, strlen(marked), want), n;
            int32_t *ids = encode(t, text, strlen(text), 0, &n);
            if (n != n_want || memcmp(ids, want, n * sizeof *ids) != 0)
                fail_msg("round %d: \"%s\"", round, text);
            mem_free(ids);
            if (round % 7) /* else the mark becomes bytes, not a space */
                check_round_trip(t, text, strlen(text), 0);
        }
        tokenizer_destroy(t);
        free(v);
    }
    assert_in_range(with_cuts, 10, 59);
}

static void check_decode(const struct tokenizer *t, unsigned flags, const char *want, size_t n,
                         const int32_t *ids) {
    struct text_buf out = {0};
    kvasir_error err = {0};
    assert_int_equal(tokenizer_decode(t, ids, n, flags, &out, &err), KVASIR_OK);
    assert_string_equal(out.data ? out.data : "", want);
    text_free(&out);
}

#define CHECK_DECODE(t, flags, want, ...)                                                          \
    check_decode(t, flags, want, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t),         \
                 (const int32_t[]){__VA_ARGS__})

static void test_space_in_front(void **state) {
    (void)state;
    struct scored *v = scored_create(true);
    int32_t a = add(v, "a", TOKEN_NORMAL, -1), mark = add(v, MARK, TOKEN_NORMAL, -2);
    int32_t mark_a = add(v, MARK "a", TOKEN_NORMAL, -3);
    int32_t user = add(v, "  ", TOKEN_USER_DEFINED, -1000);
    const unsigned parse = TOKENIZE_PARSE_SPECIAL;
    struct tokenizer *t = create(&v->spec);
    assert_string_equal(tokenizer_name(t), "llama (SentencePiece BPE)");
    CHECK_IDS(t, "a a", 0, a, mark_a);
    CHECK_DECODE(t, 0, " a", mark_a);
    tokenizer_destroy(t);

    v->spec.add_space_prefix = true;
    t = create(&v->spec);
    CHECK_IDS(t, "a a", 0, mark_a, mark_a);
    CHECK_IDS(t, " a", 0, mark, mark_a);
    CHECK_IDS(t, MARK "a", 0, mark, mark_a);
    size_t n;
    mem_free(encode(t, "", 0, 0, &n));
    assert_int_equal(n, 0); /* no text, no space */
    CHECK_IDS(t, "a", TOKENIZE_ADD_SPECIAL, 1, mark_a);
    CHECK_IDS(t, "a<s>a", parse, mark_a, 1, mark_a); /* in front of every part */
    CHECK_IDS(t, "a  a", 0, mark_a, user, mark_a);
    CHECK_IDS(t, "\xc3\xa9", 0, mark, 3 + 0xc3, 3 + 0xa9);
    CHECK_DECODE(t, 0, "a a", mark_a, mark_a);
    CHECK_DECODE(t, 0, " a", mark, mark_a);
    CHECK_DECODE(t, 0, "<s> a", 1, mark_a);
    CHECK_DECODE(t, DETOKENIZE_SKIP_SPECIAL, "a", 1, mark_a, 0, 2);
    CHECK_DECODE(t, 0, "\xc3\xa9", mark, 3 + 0xc3, 3 + 0xa9);
    struct text_span bytes = tokenizer_bytes(t, mark_a); /* inside a text the space stays */
    assert_int_equal(bytes.len, 2);
    assert_memory_equal(bytes.data, " a", 2);
    assert_int_equal(tokenizer_bytes(t, 3 + '\n').data[0], '\n');
    assert_int_equal(tokenizer_piece(t, 3 + '\n').len, 6);
    assert_true(tokenizer_is_control(t, 0)); /* the unknown token is not text either */
    assert_true(tokenizer_is_end(t, 2));
    tokenizer_destroy(t);
    free(v);
}

static void test_unknown(void **state) {
    (void)state;
    struct scored *v = scored_create(false);
    int32_t a = add(v, "a", TOKEN_NORMAL, -1);
    int32_t s = add(v, "<", TOKEN_NORMAL, -1);
    add(v, "s>", TOKEN_NORMAL, -1);
    struct tokenizer *t = create(&v->spec);
    CHECK_IDS(t, "axya", 0, a, 0, a); /* unknown neighbours become one */
    CHECK_IDS(t, "x", 0, 0);
    /* "<" and "s>" would make "<s>", but nothing merges into a control token. */
    CHECK_IDS(t, "<", 0, s);
    CHECK_IDS(t, "<s>", TOKENIZE_PARSE_SPECIAL, 1);
    tokenizer_destroy(t);
    add(v, "s", TOKEN_NORMAL, -1);
    add(v, ">", TOKEN_NORMAL, -1);
    t = create(&v->spec);
    size_t n;
    int32_t *ids = encode(t, "<s>", 3, 0, &n);
    assert_int_equal(n, 2);
    assert_int_equal(ids[0], s);
    mem_free(ids);
    tokenizer_destroy(t);
    v->spec.unk = -1;
    t = create(&v->spec);
    CHECK_IDS(t, "axya", 0, a, a);
    tokenizer_destroy(t);
    /* If a character vanishes, its neighbours meet and may merge, also with a mark. */
    add(v, MARK, TOKEN_NORMAL, -1);
    int32_t a_mark = add(v, "a" MARK, TOKEN_NORMAL, -1);
    t = create(&v->spec);
    CHECK_IDS(t, "ax a", 0, a_mark, a);
    tokenizer_destroy(t);
    free(v);
}

static void expect_refused(const struct tokenizer_spec *spec, const char *words) {
    struct tokenizer *t = NULL;
    kvasir_error err = {0};
    assert_int_equal(tokenizer_create(spec, &t, &err), KVASIR_ERR_FORMAT);
    assert_null(t);
    if (!strstr(err.text, words))
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

static void test_bad_fields(void **state) {
    (void)state;
    struct scored *v = scored_create(false);
    int32_t a = add(v, "a", TOKEN_NORMAL, -1);
    v->scores[a] = NAN;
    expect_refused(&v->spec, "the score of token 3 is not a number");
    v->scores[a] = -INFINITY; /* counts as a number */
    struct tokenizer *t = create(&v->spec);
    CHECK_IDS(t, "a", 0, a);
    tokenizer_destroy(t);
    char *piece = calloc(1, 600);
    memset(piece, 'a', 513);
    v->pieces[a] = (struct text_span){piece, 513};
    expect_refused(&v->spec, "token 3 has 513 bytes (at most 512");
    v->pieces[a].len = 512;
    tokenizer_destroy(create(&v->spec));
    v->spec.scores = NULL;
    expect_refused(&v->spec, "needs scores");
    free(piece);
    free(v);
}

/* If words are not cut, the whole text is one word. Even then time is not quadratic. */
static void test_time(void **state) {
    (void)state;
    struct scored *v = scored_create(true);
    char run[PIECE_MAX] = "a";
    add(v, MARK, TOKEN_NORMAL, -1);
    add(v, "b", TOKEN_NORMAL, -1);
    add(v, "ab", TOKEN_NORMAL, -9);
    add(v, run, TOKEN_NORMAL, -1);
    while (strlen(run) < 32) {
        memcpy(run + strlen(run), run, strlen(run));
        add(v, run, TOKEN_NORMAL, -2);
    }
    struct tokenizer *t = create(&v->spec);
    assert_true(t->bpe.cut_at_marks);
    check_time(t, "cut");
    tokenizer_destroy(t);
    add(v, MARK MARK, TOKEN_NORMAL, -5);
    add(v, "a" MARK, TOKEN_NORMAL, -5);
    t = create(&v->spec);
    check_time(t, "joined");
    tokenizer_destroy(t);
    free(v);
}

int main(void) {
    rng_start(20250413);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_definition),
        cmocka_unit_test(test_space_in_front),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_bad_fields),
        cmocka_unit_test(test_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
