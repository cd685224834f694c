/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer without external data: the byte alphabet, pre-tokenizers (words compared with lists
 * written by hand from the patterns), merges against a literal quadratic implementation on random
 * vocabularies, special tokens, bad specs, invalid UTF-8, round trips, and time for 1 MB in one
 * word. test_tokenizer_goldens.c has the real vocabularies.
 *
 * Bugs that were planted and found. Merges: a leftover heap entry used, ties broken rightmost, the
 * pair to the left of a merge forgotten, a missing byte replaced, the worse of two ranks used.
 * Specials: the shortest one used, a neighbour in the sorted list used. Time: no fallback from the
 * JIT, PCRE2's step limit, its check of UTF-8 at every match. Words: \s instead of the written-out
 * class, the digits stage left out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

#include "text_checks.h"

/* ---- a vocabulary made by hand --------------------------------------------------------------- */

enum { TINY_MAX = 700 };

/* Owns the text of pieces and merges. add_piece and add_merge fill it, then `spec` describes it. */
struct tiny {
    struct text_span pieces[TINY_MAX], merges[TINY_MAX];
    uint8_t kinds[TINY_MAX];
    struct tokenizer_spec spec;
};

static struct text_span span_copy(const char *text) {
    return (struct text_span){strdup(text), strlen(text)};
}

static int32_t add_piece(struct tiny *v, const char *text, enum token_kind kind) {
    assert_true(v->spec.n_tokens < TINY_MAX);
    v->pieces[v->spec.n_tokens] = span_copy(text);
    v->kinds[v->spec.n_tokens] = (uint8_t)kind;
    return (int32_t)v->spec.n_tokens++;
}

static void add_merge(struct tiny *v, const char *text) {
    assert_true(v->spec.n_merges < TINY_MAX);
    v->merges[v->spec.n_merges++] = span_copy(text);
}

/* Adds the merge of left and right, and the piece that it makes. */
static int32_t add_pair(struct tiny *v, const char *left, const char *right) {
    char piece[256], merge[256];
    snprintf(piece, sizeof piece, "%s%s", left, right);
    snprintf(merge, sizeof merge, "%s %s", left, right);
    add_merge(v, merge);
    return add_piece(v, piece, TOKEN_NORMAL);
}

/* All 256 bytes; the id of each is its value. */
static struct tiny *tiny_create(void) {
    struct tiny *v = calloc(1, sizeof *v);
    v->spec = (struct tokenizer_spec){.model = "gpt2",
                                      .pre = "gpt-2",
                                      .pieces = v->pieces,
                                      .kinds = v->kinds,
                                      .merges = v->merges,
                                      .bos = -1,
                                      .eos = -1,
                                      .eot = -1,
                                      .unk = -1,
                                      .pad = -1};
    for (int byte = 0; byte < 256; byte++) {
        char text[5] = {0};
        utf8_put(text, alphabet_char((uint8_t)byte));
        add_piece(v, text, TOKEN_NORMAL);
    }
    return v;
}

static void tiny_destroy(struct tiny *v) {
    for (size_t i = 0; i < v->spec.n_tokens; i++)
        free((char *)v->pieces[i].data);
    for (size_t i = 0; i < v->spec.n_merges; i++)
        free((char *)v->merges[i].data);
    free(v);
}

/* ---- the alphabet ---------------------------------------------------------------------------- */

static void test_alphabet(void **state) {
    (void)state;
    /* Spot values from GPT-2's published table. */
    assert_int_equal(alphabet_char(' '), 0x120);
    assert_int_equal(alphabet_char('\n'), 0x10a);
    assert_int_equal(alphabet_char(0x7f), 0x121);
    assert_int_equal(alphabet_char(0xa0), 0x142);
    assert_int_equal(alphabet_char(0xad), 0x143);
    assert_int_equal(alphabet_char('!'), '!');
    assert_int_equal(alphabet_char(0xff), 0xff);
    int decoded = 0;
    for (uint32_t c = 0; c < 0x3000; c++) {
        char text[4];
        uint8_t bytes[4];
        ptrdiff_t n = alphabet_decode((struct text_span){text, utf8_put(text, c)}, bytes);
        if (n < 0)
            continue;
        assert_int_equal(n, 1);
        assert_int_equal(alphabet_char(bytes[0]), c);
        decoded++;
    }
    assert_int_equal(decoded, 256);
    uint8_t out[8];
    assert_int_equal(alphabet_decode((struct text_span){"a\xc4", 2}, out), -1);
    assert_int_equal(alphabet_decode((struct text_span){"\xa0", 1}, out), -1);
    assert_int_equal(alphabet_decode((struct text_span){"\xc4"
                                                        "a",
                                                        2},
                                     out),
                     -1);
}

/* ---- pre-tokenizers -------------------------------------------------------------------------- */

struct words {
    struct text_buf joined; /* words, each followed by '|' */
    size_t count, bytes;
};

static bool collect_word(void *ctx, const char *word, size_t len) {
    struct words *w = ctx;
    assert_true(len > 0);
    w->count++;
    w->bytes += len;
    return text_append(&w->joined, word, len) && text_append(&w->joined, "|", 1);
}

static struct words split(const struct pretokenizer *p, const char *text, size_t len) {
    struct words w = {0};
    kvasir_error err = {0};
    struct pre_scratch scratch;
    assert_int_equal(pre_scratch_init(&scratch, len, &err), KVASIR_OK);
    struct text_span span = {text, len};
    if (pretokenizer_split(p, &scratch, span, true, collect_word, &w, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    pre_scratch_deinit(&scratch);
    return w;
}

static struct pretokenizer known_pretokenizer(const char *name) {
    struct pretokenizer p = {0};
    const struct known_pre *known;
    kvasir_error err = {0};
    assert_int_equal(known_pre_find(name, &known, &err), KVASIR_OK);
    assert_int_equal(pretokenizer_add_patterns(&p, known->patterns, &err), KVASIR_OK);
    return p;
}

static void test_words(void **state) {
    (void)state;
    static const struct {
        const char *text, *gpt2, *smollm;
    } cases[] = {
        {"", "", ""},
        {"Hello, world", "Hello|,| world|", "Hello|,| world|"},
        {"I'm you'll WE'LL", "I|'m| you|'ll| WE|'|LL|", "I|'m| you|'ll| WE|'|LL|"},
        {"in 42 days", "in| 42| days|", "in| |4|2| days|"},
        {"a   b", "a|  | b|", "a|  | b|"},
        {"a   1", "a|  | 1|", "a|   |1|"},
        {"a  \n", "a|  \n|", "a|  \n|"},
        {"x\t\ty", "x|\t|\t|y|", "x|\t|\t|y|"},
        {" ?!", " ?!|", " ?!|"},
        {"\xc2\xbd\xe2\x85\xa3", "\xc2\xbd\xe2\x85\xa3|", "\xc2\xbd|\xe2\x85\xa3|"}, /* No, Nl */
        /* White space beyond ASCII: U+00A0, U+3000, U+0085 */
        {"a\xc2\xa0\xe3\x80\x80z", "a|\xc2\xa0|\xe3\x80\x80|z|", "a|\xc2\xa0|\xe3\x80\x80|z|"},
        {"a\xc2\x85z", "a|\xc2\x85|z|", "a|\xc2\x85|z|"},
        /* Not white space: U+180E, U+200B */
        {"a \xe1\xa0\x8ez", "a| \xe1\xa0\x8e|z|", "a| \xe1\xa0\x8e|z|"},
        {"a \xe2\x80\x8bz", "a| \xe2\x80\x8b|z|", "a| \xe2\x80\x8b|z|"},
    };
    const char *names[] = {"gpt-2", "default", "smollm"};
    for (int k = 0; k < 3; k++) {
        struct pretokenizer p = known_pretokenizer(names[k]);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            struct words w = split(&p, cases[i].text, strlen(cases[i].text));
            assert_string_equal(w.joined.data ? w.joined.data : "",
                                k == 2 ? cases[i].smollm : cases[i].gpt2);
            assert_int_equal(w.bytes, strlen(cases[i].text));
            text_free(&w.joined);
        }
        pretokenizer_deinit(&p);
    }
}

/* PCRE2's own limits must not become limits on words. */
static void test_words_of_hard_patterns(void **state) {
    (void)state;
    enum { LEN = 200000 };
    /* A pattern that needs a stack frame per character exceeds the JIT's stack. */
    struct pretokenizer p = {0};
    kvasir_error err = {0};
    const char *patterns[] = {"(?:a|b)+(?=c)", NULL};
    assert_int_equal(pretokenizer_add_patterns(&p, patterns, &err), KVASIR_OK);
    char *text = malloc(LEN + 1);
    for (int i = 0; i < LEN; i++)
        text[i] = i % 2 ? 'a' : 'b';
    text[LEN] = 'c';
    struct words w = split(&p, text, LEN + 1);
    assert_int_equal(w.count, 2);
    text_free(&w.joined);
    free(text);
    pretokenizer_deinit(&p);

    /* More steps of backtracking in one match than PCRE2 allows by default. */
    enum { SPACES = 12000000 };
    const char *spaces[] = {"[\\t\\x{a0}\\p{Z}]*[\\r\\n]+|[\\t\\x{a0}\\p{Z}]+", NULL};
    assert_int_equal(pretokenizer_add_patterns(&p, spaces, &err), KVASIR_OK);
    text = malloc(SPACES + 1);
    memset(text, ' ', SPACES);
    text[SPACES] = 'x';
    w = split(&p, text, SPACES + 1);
    assert_int_equal(w.count, 2);
    text_free(&w.joined);
    free(text);
    pretokenizer_deinit(&p);

    /* Gaps between matches are words, and an empty match is not. */
    const char *gaps[] = {"x*", NULL};
    assert_int_equal(pretokenizer_add_patterns(&p, gaps, &err), KVASIR_OK);
    w = split(&p, "abxxcx", 6);
    assert_string_equal(w.joined.data, "ab|xx|c|x|");
    text_free(&w.joined);
    pretokenizer_deinit(&p);

    const char *broken[] = {"a", "(", NULL};
    assert_int_equal(pretokenizer_add_patterns(&p, broken, &err), KVASIR_ERR_UNSUPPORTED);
    assert_int_equal(err.offset, 1);
    pretokenizer_deinit(&p);
}

/* ---- merges ---------------------------------------------------------------------------------- */

static void test_merge_order(void **state) {
    (void)state;
    struct tiny *v = tiny_create();
    int32_t aa = add_pair(v, "a", "a");
    int32_t bc = add_pair(v, "b", "c");
    int32_t ab = add_pair(v, "a", "b");
    int32_t aaaa = add_pair(v, "aa", "aa");
    struct tokenizer *t = create(&v->spec);
    CHECK_IDS(t, "aaa", 0, aa, 'a'); /* leftmost of equals */
    CHECK_IDS(t, "abc", 0, 'a', bc); /* the better rank, though further right */
    CHECK_IDS(t, "aab", 0, aa, 'b'); /* the left half of "a b" is gone */
    CHECK_IDS(t, "aaaaaab", 0, aaaa, aa, 'b');
    CHECK_IDS(t, "ab", 0, ab);
    CHECK_IDS(t, "ab ab", 0, ab, ' ', ab); /* nothing merges across the end of a word */
    CHECK_IDS(t, "b", 0, 'b');
    tokenizer_destroy(t);
    tiny_destroy(v);
}

/* BPE by its definition: repeatedly the best merge anywhere, the leftmost of equals. */
static size_t merge_literally(const struct tiny *v, const char *text, size_t len, int32_t *ids) {
    char *symbols[64];
    size_t n = len;
    for (size_t i = 0; i < n; i++)
        symbols[i] = strndup(text + i, 1);
    for (;;) {
        size_t best_rank = SIZE_MAX, best_at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            char pair[256];
            snprintf(pair, sizeof pair, "%s %s", symbols[i], symbols[i + 1]);
            for (size_t rank = 0; rank < v->spec.n_merges && rank < best_rank; rank++)
                if (strcmp(v->merges[rank].data, pair) == 0) {
                    best_rank = rank;
                    best_at = i;
                }
        }
        if (best_rank == SIZE_MAX)
            break;
        char joined[256];
        snprintf(joined, sizeof joined, "%s%s", symbols[best_at], symbols[best_at + 1]);
        free(symbols[best_at]);
        free(symbols[best_at + 1]);
        symbols[best_at] = strdup(joined);
        n--;
        memmove(symbols + best_at + 1, symbols + best_at + 2,
                (n - best_at - 1) * sizeof symbols[0]);
    }
    for (size_t i = 0; i < n; i++) {
        size_t id = 0;
        while (strcmp(v->pieces[id].data, symbols[i]) != 0)
            id++;
        ids[i] = (int32_t)id;
        free(symbols[i]);
    }
    return n;
}

static void test_merges_against_definition(void **state) {
    (void)state;
    for (int round = 0; round < 20; round++) {
        struct tiny *v = tiny_create();
        const char letters[] = "abc";
        for (int k = 0; k < 60; k++) { /* merges of random pieces so far, letters at first */
            char left[64], right[64], joined[128];
            size_t made = v->spec.n_tokens - 256;
            for (int side = 0; side < 2; side++) {
                char *to = side ? right : left;
                if (made == 0 || rng(3) == 0)
                    snprintf(to, 64, "%c", letters[rng(3)]);
                else
                    snprintf(to, 64, "%.60s", v->pieces[256 + rng((uint32_t)made)].data);
            }
            snprintf(joined, sizeof joined, "%s%s", left, right);
            bool is_new = strlen(joined) < 24;
            for (size_t i = 256; i < v->spec.n_tokens; i++)
                is_new = is_new && strcmp(v->pieces[i].data, joined) != 0;
            if (is_new)
                add_pair(v, left, right);
        }
        for (size_t i = v->spec.n_merges; i > 1; i--) { /* ranks need not be in order of making */
            size_t j = rng((uint32_t)i);
            struct text_span swap = v->merges[i - 1];
            v->merges[i - 1] = v->merges[j];
            v->merges[j] = swap;
        }
        struct tokenizer *t = create(&v->spec);
        for (int k = 0; k < 100; k++) {
            char text[64];
            size_t len = 1 + rng(60), n_want, n;
            for (size_t i = 0; i < len; i++)
                text[i] = letters[rng(k % 2 ? 3 : 2)];
            int32_t want[64], *ids = encode(t, text, len, 0, &n);
            n_want = merge_literally(v, text, len, want);
            assert_int_equal(n, n_want);
            assert_memory_equal(ids, want, n * sizeof *want);
            mem_free(ids);
        }
        tokenizer_destroy(t);
        tiny_destroy(v);
    }
}

static void test_round_trips(void **state) {
    (void)state;
    struct tiny *v = tiny_create();
    add_pair(v, "a", "b");
    add_pair(v, "\xc4\xa0", "ab");       /* " ab" */
    add_pair(v, "\xc3\xa2", "\xc2\xa1"); /* the bytes e2 a1: the middle of characters */
    struct tokenizer *t = create(&v->spec);
    char text[4 * 400];
    for (int round = 0; round < 500; round++) {
        size_t len = random_text(text, rng(400));
        assert_int_equal(utf8_check(text, len), len);
        check_round_trip(t, text, len, round % 2 ? TOKENIZE_PARSE_SPECIAL : 0);
    }
    tokenizer_destroy(t);
    tiny_destroy(v);
}

/* ---- special tokens -------------------------------------------------------------------------- */

static void test_specials(void **state) {
    (void)state;
    struct tiny *v = tiny_create();
    int32_t end = add_piece(v, "<|im_end|>", TOKEN_CONTROL);
    int32_t ab = add_piece(v, "<a><b>", TOKEN_USER_DEFINED);
    int32_t a = add_piece(v, "<a>", TOKEN_CONTROL);
    int32_t abcd = add_piece(v, "<a><b><c><d>", TOKEN_CONTROL);
    int32_t words = add_piece(v, "two words", TOKEN_USER_DEFINED);
    int32_t eacute =
        add_piece(v, "\xc3\xa9\xc3\xa9", TOKEN_USER_DEFINED); /* plain text, not alphabet */
    int32_t bos = add_piece(v, "<s>", TOKEN_CONTROL);
    add_piece(v, "<s>x", TOKEN_CONTROL);
    int32_t empty = add_piece(v, "", TOKEN_CONTROL);
    int32_t unused = add_piece(v, "[PAD]", TOKEN_UNUSED);
    int32_t byte = add_piece(v, "<0x0A>", TOKEN_BYTE);
    int32_t turn = add_piece(v, "<turn>", TOKEN_NORMAL);
    v->spec.bos = bos;
    v->spec.eos = a;
    v->spec.eot = turn;
    struct tokenizer *t = create(&v->spec);
    const unsigned parse = TOKENIZE_PARSE_SPECIAL;

    CHECK_IDS(t, "<a>", 0, '<', 'a', '>');
    CHECK_IDS(t, "<a><b>y", 0, ab, 'y'); /* not a control token */
    CHECK_IDS(t, "<a><b><c><d>", 0, '<', 'a', '>', '<', 'b', '>', '<', 'c', '>', '<', 'd', '>');
    CHECK_IDS(t, "<a>", parse, a);
    CHECK_IDS(t, "x<a>", parse, 'x', a);
    CHECK_IDS(t, "<a><b>y", parse, ab, 'y');             /* longest */
    CHECK_IDS(t, "<a><b><c>", parse, ab, '<', 'c', '>'); /* the longest that is complete */
    CHECK_IDS(t, "<a><b><c><d>", parse, abcd);
    CHECK_IDS(t, "<<a>>", parse, '<', a, '>');
    CHECK_IDS(t, "<a", parse, '<', 'a');
    CHECK_IDS(t, "<r>", parse, '<', 'r', '>'); /* "<s>" is next in sorted order */
    CHECK_IDS(t, "<|im_end|><|im_end|>", parse, end, end);
    CHECK_IDS(t, "two words", parse, words);
    CHECK_IDS(t, "\xc3\xa9\xc3\xa9", parse, eacute);
    CHECK_IDS(t, "<0x0A>", parse, '<', '0', 'x', '0', 'A', '>');
    CHECK_IDS(t, "[PAD]", parse, '[', 'P', 'A', 'D', ']');

    struct text_span bytes = tokenizer_bytes(t, eacute);
    assert_int_equal(bytes.len, 4);
    assert_memory_equal(bytes.data, "\xc3\xa9\xc3\xa9", 4);
    assert_int_equal(tokenizer_bytes(t, byte).len, 1);
    assert_int_equal(tokenizer_bytes(t, byte).data[0], '\n');
    assert_int_equal(tokenizer_bytes(t, unused).len, 5);
    assert_int_equal(tokenizer_bytes(t, empty).len, 0);
    assert_int_equal(tokenizer_bytes(t, -1).len, 0);
    assert_int_equal(tokenizer_bytes(t, INT32_MAX).len, 0);
    assert_int_equal(tokenizer_bytes(t, 0xe9).len, 1); /* the alphabet's letter for byte e9 */

    assert_true(tokenizer_is_end(t, end)); /* by its name */
    assert_true(tokenizer_is_end(t, a));
    assert_true(tokenizer_is_end(t, turn));
    assert_false(tokenizer_is_end(t, bos));
    assert_false(tokenizer_is_end(t, -1));
    assert_false(tokenizer_is_end(t, (int32_t)v->spec.n_tokens));
    assert_true(tokenizer_is_control(t, end));
    assert_false(tokenizer_is_control(t, ab));
    assert_false(tokenizer_is_control(t, -5));

    CHECK_IDS(t, "x", TOKENIZE_ADD_SPECIAL, 'x'); /* the vocabulary adds none */
    tokenizer_destroy(t);
    v->spec.add_bos = v->spec.add_eos = true;
    t = create(&v->spec);
    CHECK_IDS(t, "x", 0, 'x');
    CHECK_IDS(t, "x", TOKENIZE_ADD_SPECIAL, bos, 'x', a);
    CHECK_IDS(t, "", TOKENIZE_ADD_SPECIAL, bos, a);
    CHECK_IDS(t, "<s>", TOKENIZE_ADD_SPECIAL | parse, bos, bos, a);
    tokenizer_destroy(t);
    v->spec.bos = v->spec.eos = -1;
    t = create(&v->spec);
    CHECK_IDS(t, "x", TOKENIZE_ADD_SPECIAL, 'x');
    assert_int_equal(tokenizer_bos(t), -1);
    tokenizer_destroy(t);
    tiny_destroy(v);
}

/* ---- text and vocabularies that are wrong ---------------------------------------------------- */

static void test_invalid_text(void **state) {
    (void)state;
    struct tiny *v = tiny_create();
    struct tokenizer *t = create(&v->spec);
    static const struct {
        const char *text;
        size_t len, at;
    } cases[] = {
        {"abc\x80", 4, 3},
        {"ab\xc3", 3, 2},
        {"\xc0\x80", 2, 0},
        {"x\xed\xa0\x80", 4, 1},
        {"\xf5\x80\x80\x80", 4, 0},
        {"0123456789\xff", 11, 10},
        {"\xe2\x82\xac\xe2\x82", 5, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvasir_error err = {0};
        int32_t *ids = (int32_t *)&err;
        size_t n = 7;
        assert_int_equal(tokenizer_encode(t, cases[i].text, cases[i].len, 0, &ids, &n, &err),
                         KVASIR_ERR_TEXT);
        assert_int_equal(err.offset, cases[i].at);
        assert_null(ids);
        assert_int_equal(n, 0);
    }
    kvasir_error err = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    assert_int_equal(tokenizer_encode(t, "", (size_t)1 << 40, 0, &ids, &n, &err), KVASIR_ERR_TEXT);
    tokenizer_destroy(t);
    tiny_destroy(v);
}

/* As a tokenizer.json it has the same merges, best first, and gives the same ids. */
static void test_written_as_json(void **state) {
    (void)state;
    struct tiny *v = tiny_create();
    struct text_buf json = {0};
    kvasir_error err = {0};
    add_pair(v, "b", "c");
    int32_t abc = add_pair(v, "a", "bc"), end = add_piece(v, "<end>", TOKEN_CONTROL);
    assert_int_equal(tokenizer_write_json(&v->spec, &json, &err), KVASIR_OK);
    assert_non_null(strstr(json.data, "\"merges\":[[\"b\",\"c\"],\n[\"a\",\"bc\"]]"));
    struct tokenizer *t = create(&(struct tokenizer_spec){.json = {json.data, json.len}});
    CHECK_IDS(t, "abc<end> \n", TOKENIZE_PARSE_SPECIAL, abc, end, ' ', '\n');
    tokenizer_destroy(t);
    text_free(&json);
    tiny_destroy(v);
}

/* Bytes without a piece are dropped before merging, and nothing else changes. */
static void test_missing_bytes(void **state) {
    (void)state;
    struct tiny v = {0};
    v.spec = (struct tokenizer_spec){.model = "gpt2",
                                     .pieces = v.pieces,
                                     .merges = v.merges,
                                     .bos = -1,
                                     .eos = -1,
                                     .eot = -1,
                                     .unk = -1,
                                     .pad = -1};
    add_piece(&v, "a", TOKEN_NORMAL);
    int32_t aa = add_pair(&v, "a", "a");
    struct tokenizer *t = create(&v.spec);
    CHECK_IDS(t, "azza", 0, aa);
    size_t n;
    int32_t *ids = encode(t, "\xf0\x9f\x98\x80 zz", 7, 0, &n);
    assert_int_equal(n, 0);
    assert_non_null(ids);
    mem_free(ids);
    tokenizer_destroy(t);
    for (size_t i = 0; i < v.spec.n_tokens; i++)
        free((char *)v.pieces[i].data);
    free((char *)v.merges[0].data);
}

static void expect_refused(const struct tokenizer_spec *spec, kvasir_status code,
                           const char *words) {
    struct tokenizer *t = NULL;
    kvasir_error err = {0};
    assert_int_equal(tokenizer_create(spec, &t, &err), code);
    assert_null(t);
    if (!strstr(err.text, words) || strchr(err.text, '\n'))
        fail_msg("\"%s\" does not say \"%s\" in one line", err.text, words);
    assert_int_equal(tokenizer_create(spec, &t, NULL), code);
}

static void test_bad_specs(void **state) {
    (void)state;
    struct tiny *v = tiny_create();
    add_pair(v, "a", "b");
    struct tokenizer_spec bad = v->spec;
    bad.model = "llama";
    expect_refused(&bad, KVASIR_ERR_FORMAT, "needs scores");
    bad.model = "bert";
    expect_refused(&bad, KVASIR_ERR_UNSUPPORTED, "tokenizer model \"bert\"");
    bad.model = NULL;
    expect_refused(&bad, KVASIR_ERR_UNSUPPORTED, "tokenizer model");
    bad = v->spec;
    bad.pre = "tekken\n";
    expect_refused(&bad, KVASIR_ERR_UNSUPPORTED, "\"tekken\\x0a\" is not supported (known: gpt-2,");
    bad = v->spec;
    bad.n_tokens = 0;
    expect_refused(&bad, KVASIR_ERR_FORMAT, "0 tokens");
    bad.n_tokens = SIZE_MAX / 8;
    expect_refused(&bad, KVASIR_ERR_FORMAT, "tokens");
    bad = v->spec;
    bad.n_merges = SIZE_MAX / 8;
    expect_refused(&bad, KVASIR_ERR_FORMAT, "merges");
    bad = v->spec;
    bad.eos = (int32_t)bad.n_tokens;
    expect_refused(&bad, KVASIR_ERR_FORMAT, "eos token 257");
    bad = v->spec;
    bad.pad = -2;
    expect_refused(&bad, KVASIR_ERR_FORMAT, "pad token -2");

    static const struct {
        const char *merge, *words;
    } merges[] = {
        {"", "merge 0"},
        {"ab", "is not two pieces"},
        {"a ", "is not two pieces"},
        {" b", "is not two pieces"},
        {"nix b", "left half"},
        {"a nix", "right half"},
        {"b a", "its result"},
        {"a b a", "right half"},
        {" ", "is not two pieces"},
    };
    for (size_t i = 0; i < sizeof merges / sizeof merges[0]; i++) {
        struct text_span merge = {merges[i].merge, strlen(merges[i].merge)};
        bad = v->spec;
        bad.merges = &merge;
        expect_refused(&bad, KVASIR_ERR_FORMAT, merges[i].words);
    }

    v->kinds[17] = 7;
    expect_refused(&v->spec, KVASIR_ERR_FORMAT, "token 17");
    v->kinds[17] = TOKEN_NORMAL;
    struct text_span kept = v->pieces[200];
    v->pieces[200] = (struct text_span){kept.data, (size_t)1 << 40};
    expect_refused(&v->spec, KVASIR_ERR_FORMAT, "token 200");
    v->pieces[200] = kept;

    /* What real files contain is accepted: no pre-tokenizer, a merge listed twice, empty pieces,
     * two tokens with the same text ... */
    add_pair(v, "b", "c");
    add_merge(v, "a b");
    add_piece(v, "", TOKEN_UNUSED);
    add_piece(v, "", TOKEN_NORMAL);
    int32_t twin = add_piece(v, "z", TOKEN_NORMAL);
    v->kinds['q'] = 0;
    v->spec.pre = NULL;
    struct tokenizer *t = create(&v->spec);
    CHECK_IDS(t, "qabc", 0, 'q', 256, 'c'); /* of the two ranks of "a b" the better one counts */
    CHECK_IDS(t, "z", 0, twin);
    assert_int_equal(tokenizer_bytes(t, 'z').len, 1);
    tokenizer_destroy(t);
    tiny_destroy(v);
}

/* A vocabulary of random bytes is refused, or it works. */
static void test_random_specs(void **state) {
    (void)state;
    int created = 0;
    for (int round = 0; round < 5000; round++) {
        struct text_span pieces[24], merges[8];
        uint8_t kinds[24];
        char bytes[24 * 8 + 8 * 8], text[4 * 40];
        static const char likely[] = "aab<>0x1 \xc4\xa0\xc3\xff";
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = likely[rng(sizeof likely)];
        for (size_t i = 0; i < 24; i++) { /* single letters often, so that merges can name them */
            pieces[i] = (struct text_span){bytes + 8 * i, rng(3) ? 1 + rng(2) : rng(9)};
            kinds[i] = (uint8_t)rng(rng(30) ? 7 : 8);
        }
        for (size_t i = 0; i < 8; i++) {
            merges[i] = (struct text_span){bytes + 24 * 8 + 8 * i, 3};
            bytes[24 * 8 + 8 * i + 1] = ' ';
        }
        struct tokenizer_spec spec = {.model = "gpt2",
                                      .pre = rng(2) ? "smollm" : "gpt-2",
                                      .pieces = pieces,
                                      .kinds = kinds,
                                      .n_tokens = rng(rng(2) ? 8 : 25),
                                      .merges = merges,
                                      .n_merges = rng(3),
                                      .bos = (int32_t)rng(4) - 1,
                                      .eos = -1,
                                      .eot = -1,
                                      .unk = -1,
                                      .pad = -1,
                                      .add_bos = true};
        struct tokenizer *t = NULL;
        kvasir_error err = {0};
        if (tokenizer_create(&spec, &t, &err) != KVASIR_OK) {
            assert_true(strlen(err.text) > 10);
            continue;
        }
        created++;
        for (int k = 0; k < 4; k++) {
            size_t n, len = random_text(text, rng(40));
            int32_t *ids = encode(t, text, len, rng(4), &n);
            for (size_t i = 0; i < n; i++)
                assert_true(tokenizer_bytes(t, ids[i]).len > 0 || ids[i] == spec.bos);
            mem_free(ids);
        }
        tokenizer_destroy(t);
    }
    assert_in_range(created, 250, 4750);
}

/* ---- threads --------------------------------------------------------------------------------- */

enum { THREADS = 4, THREAD_TEXTS = 50, THREAD_CHARS = 300 };

struct shared_work {
    const struct tokenizer *t;
    char text[THREAD_TEXTS][4 * THREAD_CHARS];
    size_t len[THREAD_TEXTS];
    int32_t *ids[THREAD_TEXTS];
    size_t n[THREAD_TEXTS];
};

static void encode_again(void *ctx, size_t item, int worker) {
    (void)worker;
    struct shared_work *w = ctx;
    size_t k = item % THREAD_TEXTS, n;
    int32_t *ids = encode(w->t, w->text[k], w->len[k], TOKENIZE_PARSE_SPECIAL, &n);
    if (n != w->n[k] || memcmp(ids, w->ids[k], n * sizeof *ids) != 0)
        abort(); /* cmocka's jumps do not cross threads */
    mem_free(ids);
}

static void test_threads(void **state) {
    (void)state;
    struct tiny *v = tiny_create();
    add_pair(v, "a", "b");
    add_pair(v, "c", "ab");
    add_piece(v, "<end>", TOKEN_CONTROL);
    struct shared_work *w = calloc(1, sizeof *w);
    struct tokenizer *t = create(&v->spec);
    w->t = t;
    for (int k = 0; k < THREAD_TEXTS; k++) {
        w->len[k] = random_text(w->text[k], THREAD_CHARS);
        w->ids[k] = encode(t, w->text[k], w->len[k], TOKENIZE_PARSE_SPECIAL, &w->n[k]);
    }
    struct thread_pool *pool;
    assert_int_equal(thread_pool_create(&pool, THREADS, NULL), KVASIR_OK);
    thread_pool_run(pool, 20 * THREAD_TEXTS, encode_again, w);
    thread_pool_destroy(pool);
    for (int k = 0; k < THREAD_TEXTS; k++)
        mem_free(w->ids[k]);
    free(w);
    tokenizer_destroy(t);
    tiny_destroy(v);
}

/* ---- time ------------------------------------------------------------------------------------ */

static void test_time(void **state) {
    (void)state;
    struct tiny *v = tiny_create();
    char run[130] = "a";
    while (strlen(run) < 64) { /* a, aa, aaaa ... */
        add_pair(v, run, run);
        memcpy(run + strlen(run), run, strlen(run));
    }
    add_pair(v, "a", "b");
    add_pair(v, "ab", "ab");
    add_piece(v, "<<<<<<<<<<<<<<<<|", TOKEN_CONTROL);
    struct tokenizer *t = create(&v->spec);
    check_time(t, "tiny");
    tokenizer_destroy(t);
    tiny_destroy(v);
}

int main(void) {
    rng_start(20250311);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alphabet),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_words_of_hard_patterns),
        cmocka_unit_test(test_merge_order),
        cmocka_unit_test(test_merges_against_definition),
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_specials),
        cmocka_unit_test(test_invalid_text),
        cmocka_unit_test(test_written_as_json),
        cmocka_unit_test(test_missing_bytes),
        cmocka_unit_test(test_bad_specs),
        cmocka_unit_test(test_random_specs),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
