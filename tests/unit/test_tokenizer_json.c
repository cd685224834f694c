/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.json without external data: what every part of the file does, on a vocabulary small
 * enough to work out by hand; what is refused, by the name of its field; damaged files, cut at
 * every byte and changed at random; the JSON scanner. (tools/tokenizer_peer.py compares thousands
 * of random files with Hugging Face's tokenizers.)
 *
 * Bugs that were planted and found. Added tokens: a match inside a refused match, white space next
 * to a token not stripped, the right side of single_word not checked. Pre-tokenizers: neighbours
 * joined whatever the one before was, invert forgotten, "first" applied to every part. Model: the
 * pending unknown token dropped or never fused, the first of two ranks used, merges before their
 * vocabulary, ids without bounds, cuts where a byte's token merges. Decoders: one U+FFFD for a run
 * of bytes, U+2581 kept or dropped in the wrong token, a fuse that single tokens bypass. Scanner:
 * two low surrogates, control characters from 0x10 on. Patterns: {n}+ and bare script names passed
 * on to PCRE2.
 */
#define _GNU_SOURCE /* asprintf */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/json_scan.h"
#include "text/tokenizer_internal.h"

#include "text_checks.h"

/* ---- files ----------------------------------------------------------------------------------- */

/* The parts of a file; NULL: as in `usual`. */
struct parts {
    const char *added, *normalizer, *pre, *post, *decoder, *settings, *vocab, *merges, *extra;
};

/* Ids: <unk> 0, <s> 1, </s> 2, a-e 3-7, the mark 8, ab 9, abc 10, mark a 11, e with acute 12,
 * <0xC3> 13, <0xA9> 14, "." 15, "1" 16, de 17, cd 18. */
#define MARK "\xe2\x96\x81"
static const struct parts usual = {
    .added = "[]",
    .normalizer = "null",
    .pre = "null",
    .post = "null",
    .decoder = "{\"type\":\"Fuse\"}",
    .settings = "\"dropout\":null,\"unk_token\":\"<unk>\",\"fuse_unk\":false,"
                "\"byte_fallback\":false,\"ignore_merges\":false",
    .vocab = "{\"<unk>\":0,\"<s>\":1,\"</s>\":2,\"a\":3,\"b\":4,\"c\":5,\"d\":6,\"e\":7,"
             "\"\\u2581\":8,\"ab\":9,\"abc\":10,\"" MARK "a\":11,\"\\u00e9\":12,\"<0xC3>\":13,"
             "\"<0xA9>\":14,\".\":15,\"1\":16,\"de\":17,\"cd\":18}",
    .merges = "[\"a b\",[\"c\",\"d\"],[\"ab\",\"c\"],[\"" MARK "\",\"a\"],[\"d\",\"e\"]]",
    .extra = "",
};

#define PICK(field) (p.field ? p.field : usual.field)

static char *file_of(struct parts p) {
    char *out;
    int n = asprintf(&out,
                     "{\"version\":\"1.0\",\"truncation\":null,\"padding\":{\"length\":7},"
                     "\"added_tokens\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,"
                     "\"post_processor\":%s,\"decoder\":%s,%s \"model\":{\"type\":\"BPE\",%s,"
                     "\"vocab\":%s,\"merges\":%s}}\n",
                     PICK(added), PICK(normalizer), PICK(pre), PICK(post), PICK(decoder),
                     PICK(extra), PICK(settings), PICK(vocab), PICK(merges));
    assert_true(n > 0);
    return out;
}

static kvasir_status try_text(const char *json, size_t len, const char *config,
                              struct tokenizer **t, kvasir_error *err) {
    struct tokenizer_spec spec = {.json = {json, len}};
    if (config)
        spec.config = span_of(config);
    return tokenizer_create(&spec, t, err);
}

static struct tokenizer *make_with(struct parts p, const char *config) {
    struct tokenizer *t = NULL;
    kvasir_error err = {0};
    char *json = file_of(p);
    if (try_text(json, strlen(json), config, &t, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    free(json);
    return t;
}

#define MAKE(...) make_with((struct parts){__VA_ARGS__}, NULL)

/* One check of a tokenizer, which is then destroyed. */
#define FILE_IDS(t, text, flags, ...)                                                              \
    do {                                                                                           \
        struct tokenizer *made_ = t;                                                               \
        CHECK_IDS(made_, text, flags, __VA_ARGS__);                                                \
        tokenizer_destroy(made_);                                                                  \
    } while (0)

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

/* ---- the model ------------------------------------------------------------------------------- */

static void test_model(void **state) {
    (void)state;
    struct tokenizer *t = MAKE(0);
    assert_string_equal(tokenizer_name(t), "tokenizer.json BPE");
    assert_int_equal(tokenizer_size(t), 19);
    CHECK_IDS(t, "abc", 0, 10);
    CHECK_IDS(t, "cde", 0, 18, 7); /* "c d" has a better rank than "d e" */
    CHECK_IDS(t, "abcd", 0, 9, 18);
    CHECK_IDS(t, "zz\xc3\xa9", 0, 0, 0, 12); /* unknown characters */
    CHECK_IDS(t, "<s>", 0, 0, 0, 0);
    assert_int_equal(tokenizer_bos(t), -1);
    tokenizer_destroy(t);

    FILE_IDS(MAKE(.settings = "\"unk_token\":\"<unk>\",\"fuse_unk\":true"), "azzb", 0, 3, 0, 4);
    FILE_IDS(MAKE(.settings = "\"unk_token\":null"), "azzb", 0, 9); /* dropped before merging */
    /* A character without a piece becomes bytes, if all its bytes have pieces. */
    const char *fallback = "\"unk_token\":\"<unk>\",\"byte_fallback\":true";
    const char *vocab = "{\"<unk>\":0,\"<0xC3>\":13,\"<0xA9>\":14,\"a\":20}";
    FILE_IDS(MAKE(.settings = fallback, .vocab = vocab, .merges = "[]"), "a\xc3\xa9", 0, 20, 13,
             14);
    FILE_IDS(MAKE(.settings = fallback, .vocab = vocab, .merges = "[]"), "\xc3\xaa", 0, 0);
    /* A byte's token merges like any other, across the mark of a space too. */
    vocab = "{\"<unk>\":0,\"<0xC3>\":1,\"<0xA9>\":2,\"" MARK "\":3,\"<0xA9>" MARK "\":4}";
    FILE_IDS(MAKE(.settings = fallback, .vocab = vocab, .merges = "[[\"<0xA9>\",\"" MARK "\"]]"),
             "\xc3\xa9" MARK, 0, 1, 4);
    /* With ignore_merges a word that is a piece needs no merges. */
    const char *rare = "{\"a\":0,\"b\":1,\"ab\":2,\"ba\":3}";
    const char *whole = "\"ignore_merges\":true";
    FILE_IDS(MAKE(.settings = whole, .vocab = rare, .merges = "[\"a b\"]"), "ba", 0, 3);
    FILE_IDS(MAKE(.settings = whole, .vocab = rare, .merges = "[\"a b\"]"), "bab", 0, 1, 2);
    FILE_IDS(MAKE(.settings = "\"dropout\":0.0", .vocab = rare, .merges = "[]"), "ba", 0, 1, 0);
    /* If a merge is listed twice, the last place counts. */
    FILE_IDS(MAKE(.merges = "[\"c d\",\"d e\",\"c d\"]"), "cde", 0, 5, 17);
    /* Merges may come before the vocabulary they need. */
    static const char early[] = "{\"model\":{\"merges\":[\"a b\"],\"vocab\":{\"a\":0,\"b\":1,"
                                "\"ab\":2}}}";
    kvasir_error err = {0};
    assert_int_equal(try_text(early, strlen(early), NULL, &t, &err), KVASIR_OK);
    FILE_IDS(t, "abab", 0, 2, 2);
}

/* Gaps in the ids, two pieces with the same id, added tokens outside the vocabulary. */
static void test_ids(void **state) {
    (void)state;
    struct tokenizer *t = MAKE(.vocab = "{\"a\":5,\"b\":1000,\"c\":5}", .merges = "[]",
                               .settings = "\"dropout\":null",
                               .added = "[{\"id\":2000,\"content\":\"<x>\",\"special\":true},"
                                        "{\"id\":1500,\"content\":\"yy\",\"special\":false},"
                                        "{\"id\":1600,\"content\":\"\",\"special\":true}]");
    assert_int_equal(tokenizer_size(t), 2001);
    CHECK_IDS(t, "abc", 0, 5, 1000, 5);
    CHECK_IDS(t, "a<x>yy", TOKENIZE_PARSE_SPECIAL, 5, 2000, 1500);
    CHECK_IDS(t, "<x>yy", 0, 1500);
    CHECK_DECODE(t, 0, "c<x>byy", 5, 2000, 7, 1000, -1, 1500, 9999);
    CHECK_DECODE(t, DETOKENIZE_SKIP_SPECIAL, "cbyy", 5, 2000, 7, 1000, 1500);
    assert_true(tokenizer_is_control(t, 2000));
    assert_false(tokenizer_is_control(t, 1500));
    assert_false(tokenizer_is_control(t, 1999));
    assert_int_equal(tokenizer_bytes(t, 7).len, 0);
    assert_int_equal(tokenizer_piece(t, 7).len, 0);
    assert_int_equal(tokenizer_piece(t, 2000).len, 3);
    tokenizer_destroy(t);
}

/* ---- added tokens ---------------------------------------------------------------------------- */

#define ADDED(id, content, more) "[{\"id\":" id ",\"content\":\"" content "\"," more "}]"

static void test_added(void **state) {
    (void)state;
    const unsigned parse = TOKENIZE_PARSE_SPECIAL;
    const char *plain = ADDED("20", "Q", "\"special\":false,\"normalized\":false");
    FILE_IDS(MAKE(.added = plain), "aQb", 0, 3, 20, 4);
    const char *special = ADDED("20", "Q", "\"special\":true,\"normalized\":false");
    FILE_IDS(MAKE(.added = special), "aQb", 0, 3, 0, 4);
    FILE_IDS(MAKE(.added = special), "aQb", parse, 3, 20, 4);
    const char *left = ADDED("20", "Q", "\"lstrip\":true,\"normalized\":false");
    FILE_IDS(MAKE(.added = left), "a \t\xe3\x80\x80Q b", 0, 3, 20, 0, 4);
    const char *right = ADDED("20", "Q", "\"rstrip\":true,\"normalized\":false");
    FILE_IDS(MAKE(.added = right), "a Q \n b", 0, 3, 0, 20, 4);
    FILE_IDS(MAKE(.added = right), "Q Q", 0, 20, 20);
    const char *single = ADDED("20", "Q", "\"single_word\":true,\"normalized\":false");
    FILE_IDS(MAKE(.added = single), "Q.Q aQ Qa Q1 Q_", 0, 20, 15, 20, 0, 3, 0, 0, 0, 3, 0, 0, 16, 0,
             0, 0);
    FILE_IDS(MAKE(.added = single), "Q\xc3\xa9", 0, 0, 12);
    FILE_IDS(MAKE(.added = single), "Q", 0, 20);
    /* A refused match is skipped whole: nothing matches inside it. */
    const char *nested = "[{\"id\":20,\"content\":\"ab\",\"special\":true,\"normalized\":false},"
                         "{\"id\":21,\"content\":\"b\",\"normalized\":false}]";
    FILE_IDS(
        MAKE(.added = nested, .vocab = "{\"a\":3}", .merges = "[]", .settings = "\"dropout\":null"),
        "abb", 0, 3, 21);
    /* Normalized tokens are found in normalized text, by their normalized name. */
    const char *small = ADDED("20", "Bb", "\"special\":false,\"normalized\":true");
    const char *lower = "{\"type\":\"Lowercase\"}";
    FILE_IDS(MAKE(.added = small, .normalizer = lower), "aBBbb", 0, 3, 20, 20);
    FILE_IDS(MAKE(.added = small), "aBBbb", 0, 3, 0, 20, 4);
    /* An added token that is a piece has the piece's id. */
    FILE_IDS(MAKE(.added = ADDED("9", "ab", "\"normalized\":false")), "cab", 0, 5, 9);
    FILE_IDS(MAKE(.added = ADDED("1", "<s>", "\"special\":true")), "a<s>", parse, 3, 1);
}

/* ---- normalizer, pre-tokenizer --------------------------------------------------------------- */

static void test_normalizer(void **state) {
    (void)state;
    FILE_IDS(MAKE(.normalizer = "{\"type\":\"NFC\"}"), "e\xcc\x81", 0, 12);
    FILE_IDS(MAKE(.normalizer = "{\"type\":\"NFD\"}"), "\xc3\xa9", 0, 7, 0);
    FILE_IDS(MAKE(.normalizer = "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}"),
             " a ", 0, 3, 0);
    const char *marks = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
                        "\"" MARK "\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
                        "\"content\":\"" MARK "\"},{\"type\":\"Sequence\",\"normalizers\":[]}]}";
    FILE_IDS(MAKE(.normalizer = marks), "a a", 0, 11, 11);
    FILE_IDS(MAKE(.normalizer = marks), " a", 0, 8, 11);
}

#define SPLIT(pattern, behavior, invert)                                                           \
    "{\"type\":\"Split\",\"pattern\":" pattern ",\"behavior\":\"" behavior "\",\"invert\":" invert \
    "}"
#define B_OR_C  "{\"Regex\":\"[bc]\"}"
#define FOUR(x) x "," x "," x "," x
#define STAGES  "{\"type\":\"Sequence\",\"pretokenizers\":[" FOUR(FOUR("{\"type\":\"Digits\"}"))

static void test_pre_tokenizer(void **state) {
    (void)state;
    /* Merges that do not happen show where words end: "abc" is 10 as one word. */
    FILE_IDS(MAKE(.pre = SPLIT(B_OR_C, "Isolated", "false")), "abcc", 0, 3, 4, 5, 5);
    FILE_IDS(MAKE(.pre = SPLIT(B_OR_C, "Removed", "false")), "abcd", 0, 3, 6);
    FILE_IDS(MAKE(.pre = SPLIT(B_OR_C, "Removed", "true")), "abcd", 0, 4, 5);
    FILE_IDS(MAKE(.pre = SPLIT(B_OR_C, "MergedWithPrevious", "false")), "abcd", 0, 9, 5, 6);
    FILE_IDS(MAKE(.pre = SPLIT(B_OR_C, "MergedWithNext", "false")), "abcd", 0, 3, 4, 18);
    FILE_IDS(MAKE(.pre = SPLIT(B_OR_C, "Contiguous", "false")), "abcd", 0, 3, 4, 5, 6);
    FILE_IDS(MAKE(.pre = SPLIT("{\"Regex\":\"[ab]\"}", "MergedWithNext", "false")), "abc", 0, 3, 4,
             5);
    FILE_IDS(MAKE(.pre = SPLIT("{\"String\":\"bc\"}", "MergedWithPrevious", "false")), "abcd", 0,
             10, 6);
    FILE_IDS(MAKE(.pre = SPLIT("{\"String\":\"[bc]\"}", "Isolated", "false")), "abc", 0, 10);
    FILE_IDS(MAKE(.pre = SPLIT("{\"Regex\":\"\\\\p{^L}\"}", "Isolated", "false")), "abc", 0, 10);
    FILE_IDS(MAKE(.pre = STAGES "]}"), "ab1", 0, 9, 16);
    const char *ones = "{\"1\":0,\"11\":1}";
    const char *digits = "{\"type\":\"Digits\",\"individual_digits\":true}";
    FILE_IDS(
        MAKE(.pre = digits, .vocab = ones, .merges = "[\"1 1\"]", .settings = "\"dropout\":null"),
        "11", 0, 0, 0);
    FILE_IDS(MAKE(.pre = "{\"type\":\"Digits\",\"individual_digits\":false}", .vocab = ones,
                  .merges = "[\"1 1\"]", .settings = "\"dropout\":null"),
             "11", 0, 1);
    const char *twice = "{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT(
        B_OR_C, "MergedWithPrevious", "false") ",{\"type\":\"Digits\"}]}";
    FILE_IDS(MAKE(.pre = twice), "ab1b", 0, 9, 16, 4);

#define METASPACE(more) "{\"type\":\"Metaspace\",\"replacement\":\"" MARK "\"" more "}"
    FILE_IDS(MAKE(.pre = METASPACE(",\"prepend_scheme\":\"always\",\"split\":true")), "ab a", 0, 8,
             9, 11);
    FILE_IDS(MAKE(.pre = METASPACE(",\"add_prefix_space\":false")), "a a", 0, 3, 11);
    const char *q = ADDED("20", "Q", "\"special\":false,\"normalized\":false");
    FILE_IDS(MAKE(.added = q, .pre = METASPACE(",\"prepend_scheme\":\"first\"")), "aQa", 0, 11, 20,
             3);
    FILE_IDS(MAKE(.added = q, .pre = METASPACE(",\"prepend_scheme\":\"first\"")), "Qa", 0, 20, 3);
    FILE_IDS(MAKE(.added = q, .pre = METASPACE("")), "Qa", 0, 20, 11);
    const char *points = "{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT(
        "{\"String\":\".\"}", "Isolated",
        "false") "," METASPACE(",\"prepend_scheme\":\"first\"") "]}";
    FILE_IDS(MAKE(.pre = points), "a.a", 0, 11, 15, 3);
}

/* The alphabet: a space is U+0120, e with acute is two letters. */
static void test_byte_level(void **state) {
    (void)state;
    const char *vocab = "{\"a\":0,\"\\u0120\":1,\"\\u0120a\":2,\"\\u00c3\":3,\"\\u00a9\":4,"
                        "\"\\u00c3\\u00a9\":5,\"a\\u0120\":6}";
    const char *merges = "[\"\\u0120 a\",\"\\u00c3 \\u00a9\",\"a \\u0120\"]",
               *decoder = "{\"type\":\"ByteLevel\"}";
#define BYTE_LEVEL(more)                                                                           \
    MAKE(.vocab = vocab, .merges = merges, .decoder = decoder, .settings = "\"dropout\":null",     \
         .pre = "{\"type\":\"ByteLevel\"" more "}",                                                \
         .added = ADDED("9", "caf\\u00e9", "\"special\":false,\"normalized\":false"))
    FILE_IDS(BYTE_LEVEL(",\"add_prefix_space\":false"), "a a", 0, 0, 2);
    FILE_IDS(BYTE_LEVEL(""), "a a", 0, 2, 2);
    FILE_IDS(BYTE_LEVEL(""), " a", 0, 2);
    /* With the pattern, a word begins with the last of the spaces before it. */
    FILE_IDS(BYTE_LEVEL(",\"add_prefix_space\":false"), "  a", 0, 1, 2);
    /* Without it the whole text is one word. 6 is "a" with a space after it. */
    FILE_IDS(BYTE_LEVEL(",\"add_prefix_space\":false,\"use_regex\":false"), "  a", 0, 1, 2);
    FILE_IDS(BYTE_LEVEL(",\"add_prefix_space\":false,\"use_regex\":false"), "a ", 0, 6);
    FILE_IDS(BYTE_LEVEL(",\"add_prefix_space\":false,\"use_regex\":true"), "a ", 0, 0, 1);
    FILE_IDS(BYTE_LEVEL(",\"add_prefix_space\":false"), "a ", 0, 0, 1);
    struct tokenizer *t = BYTE_LEVEL(",\"add_prefix_space\":false");
    CHECK_IDS(t, "\xc3\xa9", 0, 5);
    CHECK_DECODE(t, 0, "a \xc3\xa9", 0, 1, 3, 4);
    CHECK_DECODE(t, 0,
                 "\xef\xbf\xbd"
                 "a",
                 3, 0);
    CHECK_DECODE(t, 0, "caf\xc3\xa9", 9); /* an added token is plain text */
    assert_int_equal(tokenizer_bytes(t, 2).data[0], ' ');
    assert_int_equal(tokenizer_piece(t, 2).len, 3);
    tokenizer_destroy(t);
}

/* ---- post-processor, config ------------------------------------------------------------------ */

#define SPECIALS                                                                                   \
    "\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[1],\"tokens\":[\"<s>\"]},"               \
    "\"</s>\":{\"id\":\"</s>\",\"ids\":[2,2],\"tokens\":[\"</s>\",\"</s>\"]}}"
#define TEXT_A      "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
#define SPECIAL(id) "{\"SpecialToken\":{\"id\":\"" id "\",\"type_id\":0}}"

static void test_post_processor(void **state) {
    (void)state;
    const char *both = "{\"type\":\"TemplateProcessing\",\"single\":[" SPECIAL(
        "<s>") "," TEXT_A "," SPECIAL("</s>") "],\"pair\":[]," SPECIALS "}";
    struct tokenizer *t = MAKE(.post = both);
    CHECK_IDS(t, "a", 0, 3);
    CHECK_IDS(t, "a", TOKENIZE_ADD_SPECIAL, 1, 3, 2, 2);
    CHECK_IDS(t, "", TOKENIZE_ADD_SPECIAL, 1, 2, 2);
    assert_int_equal(tokenizer_bos(t), 1); /* without a config the template decides */
    assert_int_equal(tokenizer_eos(t), 2);
    tokenizer_destroy(t);
    const char *sequence =
        "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\",\"trim_offsets\":false},"
        "{\"type\":\"TemplateProcessing\",\"single\":[" SPECIAL("<s>") "," TEXT_A "]," SPECIALS
                                                                       "}]}";
    FILE_IDS(MAKE(.post = sequence), "a", TOKENIZE_ADD_SPECIAL, 1, 3);

    t = make_with((struct parts){.post = sequence},
                  "{\"bos_token\":{\"content\":\"a\",\"lstrip\":[1]},\"x\":{\"bos_token\":1},"
                  "\"eos_token\":\"\\u003c/s>\",\"model_max_length\":1e30}");
    assert_int_equal(tokenizer_bos(t), 3);
    assert_int_equal(tokenizer_eos(t), 2);
    assert_true(tokenizer_is_end(t, 2));
    assert_false(tokenizer_is_end(t, 1));
    tokenizer_destroy(t);
    t = make_with((struct parts){.post = sequence},
                  "{\"bos_token\":null,\"eos_token\":\"nobody\"}");
    assert_true(tokenizer_bos(t) == -1 && tokenizer_eos(t) == -1);
    tokenizer_destroy(t);
    t = make_with((struct parts){.post = sequence},
                  "{\"bos_token\":\"<unk>\",\"eos_token\":\"<unk>\"}");
    assert_true(tokenizer_bos(t) == 0 && tokenizer_is_end(t, 0));
    tokenizer_destroy(t);

    /* What else ends an answer: the spec's list, and the usual names. */
    char *json = file_of((struct parts){.added = ADDED("19", "<|im_end|>", "\"special\":true")});
    const int32_t ends[] = {5, 4000, -3};
    struct tokenizer_spec spec = {.json = span_of(json), .ends = ends, .n_ends = 3};
    t = create(&spec);
    assert_true(tokenizer_is_end(t, 5));
    assert_true(tokenizer_is_end(t, 19));
    assert_false(tokenizer_is_end(t, 4000));
    tokenizer_destroy(t);
    free(json);
}

/* ---- decoders -------------------------------------------------------------------------------- */

static void test_decoders(void **state) {
    (void)state;
#define REPLACE_MARK                                                                               \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" MARK "\"},\"content\":\" \"}"
    const char *llama = "{\"type\":\"Sequence\",\"decoders\":[" REPLACE_MARK
                        ",{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\","
                        "\"content\":\" \",\"start\":1,\"stop\":0}]}";
    struct tokenizer *t = MAKE(.decoder = llama, .added = ADDED("1", "<s>", "\"special\":true"));
    CHECK_DECODE(t, 0, "a a", 11, 11);
    CHECK_DECODE(t, 0, " a", 8, 11);
    CHECK_DECODE(t, 0, "<s> a", 1, 11);
    CHECK_DECODE(t, DETOKENIZE_SKIP_SPECIAL, "a", 1, 11);
    CHECK_DECODE(t, 0, "a\xc3\xa9", 3, 13, 14);
    CHECK_DECODE(t, 0,
                 "\xef\xbf\xbd\xef\xbf\xbd"
                 "a\xef\xbf\xbd",
                 14, 13, 3, 13); /* a U+FFFD for every byte of a run that is not UTF-8 */
    CHECK_DECODE(t, 0, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 13, 14, 13);
    assert_int_equal(tokenizer_bytes(t, 11).len, 2); /* " a" inside a text */
    assert_int_equal(tokenizer_bytes(t, 13).len, 1);
    assert_int_equal((uint8_t)tokenizer_bytes(t, 13).data[0], 0xc3);
    tokenizer_destroy(t);

    t = MAKE(.decoder = "null");
    CHECK_DECODE(t, 0, "a b ab", 3, 4, 9);
    tokenizer_destroy(t);
    t = MAKE(.decoder = METASPACE(",\"prepend_scheme\":\"always\",\"split\":true"));
    CHECK_DECODE(t, 0, "a a", 11, 11);
    assert_int_equal(tokenizer_bytes(t, 11).data[0], ' ');
    tokenizer_destroy(t);
    t = MAKE(.decoder = METASPACE(",\"prepend_scheme\":\"never\""));
    CHECK_DECODE(t, 0, " a a", 11, 11);
    tokenizer_destroy(t);
    t = MAKE(.decoder = "{\"type\":\"Strip\",\"content\":\"b\",\"start\":1,\"stop\":2}");
    CHECK_DECODE(t, 0, "aa", 4, 9, 3, 4); /* each token by itself: nothing fuses first */
    tokenizer_destroy(t);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void expect_bad(struct parts p, const char *words) {
    struct tokenizer *t = NULL;
    kvasir_error err = {0};
    char *json = file_of(p);
    if (try_text(json, strlen(json), NULL, &t, &err) == KVASIR_OK)
        fail_msg("taken, though: %s", words);
    assert_null(t);
    if (!strstr(err.text, words) || !strstr(err.text, "tokenizer.json"))
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
    assert_in_range(err.offset + 1, 0, strlen(json));
    assert_int_not_equal(try_text(json, strlen(json), NULL, &t, NULL), KVASIR_OK);
    free(json);
}

#define BAD(words, ...) expect_bad((struct parts){__VA_ARGS__}, words)

static void test_refused_model(void **state) {
    (void)state;
    BAD("model.dropout is not supported", .settings = "\"dropout\":0.1");
    BAD("model.continuing_subword_prefix is not",
        .settings = "\"continuing_subword_prefix\":\"#\"");
    BAD("model.end_of_word_suffix is not", .settings = "\"end_of_word_suffix\":\"</w>\"");
    BAD("model.unk_token is not in the vocabulary", .settings = "\"unk_token\":\"nobody\"");
    BAD("model.unk_token is not a string", .settings = "\"unk_token\":0");
    BAD("model.fuse_unk is not true", .settings = "\"fuse_unk\":1");
    BAD("the key \"speed\" is not supported", .settings = "\"speed\":1");
    BAD("occurs twice", .settings = "\"type\":\"BPE\"");
    BAD("the key \"future\" is not supported", .extra = "\"future\":{},");
    BAD("version", .extra = "\"version\":\"2.0\",");
    BAD("model.vocab is empty", .vocab = "{}", .merges = "[]");
    BAD("id must be a whole number", .vocab = "{\"a\":1.5}", .merges = "[]");
    BAD("id must be a whole number", .vocab = "{\"a\":-1}", .merges = "[]");
    BAD("above 2147483647", .vocab = "{\"a\":99999999999}", .merges = "[]");
    BAD("too large for a file of", .vocab = "{\"a\":70000}", .merges = "[]");
    BAD("expected a value", .vocab = "{\"a\":\"b\"}", .merges = "[]");
    BAD("merge 1 \"x\" is not two pieces", .merges = "[\"a b\",\"x\"]");
    BAD("its left half", .merges = "[[\"x\",\"a\"]]");
    BAD("its right half", .merges = "[\"a x\"]");
    BAD("its result", .merges = "[[\"b\",\"a\"]]");
    BAD("a merge of more than two", .merges = "[[\"a\",\"b\",\"c\"]]");
    BAD("expected '\"'", .merges = "[[\"a\"]]");
    BAD("expected '['", .merges = "[1]");
    BAD("expected '['", .merges = "{}");
    struct tokenizer *t;
    kvasir_error err = {0};
    static const struct {
        const char *json, *words;
    } cases[] = {
        {"{}", "no model"},
        {"", "expected '{'"},
        {"[]", "expected '{'"},
        {"{\"model\":{}}", "model has no vocab"},
        {"{\"model\":{\"vocab\":{\"a\":0}}}", "model has no merges"},
        {"{\"model\":{\"type\":\"Unigram\"}}", "model.type \"Unigram\" is not supported"},
        {"{\"model\":{\"type\":null}}", "model.type"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}} x", "text after the value"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_not_equal(try_text(cases[i].json, strlen(cases[i].json), NULL, &t, &err),
                             KVASIR_OK);
        if (!strstr(err.text, cases[i].words))
            fail_msg("\"%s\" does not say \"%s\"", err.text, cases[i].words);
    }
}

static void test_refused_parts(void **state) {
    (void)state;
    BAD("added_tokens: the key \"colour\"", .added = ADDED("20", "Q", "\"colour\":1"));
    BAD("without id or content", .added = "[{\"id\":20}]");
    BAD("without id or content", .added = "[{\"content\":\"Q\"}]");
    BAD("expected true or false", .added = ADDED("20", "Q", "\"lstrip\":1"));
    BAD("has the id 3, which is \"a\"", .added = ADDED("3", "Q", "\"special\":true"));
    BAD("has the id 20, which is \"\"", .added = ADDED("20", "a", "\"special\":true"));
    BAD("too large for a file of", .added = ADDED("80000", "Q", "\"special\":true"));

    BAD("normalizer.type \"Nmt\" is not supported", .normalizer = "{\"type\":\"Nmt\"}");
    BAD("normalizer.type is not a string", .normalizer = "{}");
    BAD("normalizer.normalizers[1].type \"X\"",
        .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":"
                      "\"X\"}]}");
    BAD("normalizer.normalizers[0] is not an object",
        .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[null]}");
    BAD("normalizer.normalizers is not an array", .normalizer = "{\"type\":\"Sequence\"}");
    BAD("normalizer.extra is not supported", .normalizer = "{\"type\":\"NFC\",\"extra\":1}");
    BAD("normalizer.pattern.Regex is not supported",
        .normalizer = "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x\"},\"content\":\"\"}");
    BAD("normalizer.pattern.String is empty",
        .normalizer = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"\"}");
    BAD("normalizer.content is too long",
        .normalizer = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"x\"},\"content\":"
                      "\"0123456789012345678901234567890123\"}");
    BAD("normalizer.pattern is not", .normalizer = "{\"type\":\"Replace\",\"pattern\":\"x\"}");
    BAD("normalizer: ", .normalizer = "{\"type\":\"NFC\",\"type\":\"NFC\"}");

    BAD("pre_tokenizer.type \"Whitespace\"", .pre = "{\"type\":\"Whitespace\"}");
    BAD("more than 16", .pre = STAGES ",{\"type\":\"Digits\"}]}");
    BAD("pre_tokenizer.behavior", .pre = SPLIT(B_OR_C, "Sideways", "false"));
    BAD("pre_tokenizer.invert is not true", .pre = SPLIT(B_OR_C, "Isolated", "1"));
    BAD("pre_tokenizer: pre-tokenizer pattern, character 1",
        .pre = SPLIT("{\"Regex\":\"(\"}", "Isolated", "false"));
    BAD("pretokenizers[1] follows ByteLevel",
        .pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":"
               "\"Digits\"}]}");
    BAD("pre_tokenizer.replacement is not U+2581",
        .pre = "{\"type\":\"Metaspace\",\"replacement\":\"_\"}");
    BAD("pre_tokenizer.prepend_scheme", .pre = METASPACE(",\"prepend_scheme\":\"last\""));
    BAD("contradicts",
        .pre = METASPACE(",\"add_prefix_space\":false,\"prepend_scheme\":\"always\""));
    BAD("byte_fallback is not supported in a byte-level", .pre = "{\"type\":\"ByteLevel\"}",
        .settings = "\"byte_fallback\":true");

    BAD("post_processor.type \"RobertaProcessing\"", .post = "{\"type\":\"RobertaProcessing\"}");
    BAD("post_processor.single must hold Sequence A exactly once",
        .post = "{\"type\":\"TemplateProcessing\",\"single\":[]," SPECIALS "}");
    BAD("post_processor.single holds something other",
        .post = "{\"type\":\"TemplateProcessing\",\"single\":[" TEXT_A ",{\"Sequence\":{\"id\":"
                "\"B\"}}]," SPECIALS "}");
    BAD("lacks a token",
        .post = "{\"type\":\"TemplateProcessing\",\"single\":[" TEXT_A "," SPECIAL("x") "]}");
    BAD("an id without a token",
        .post = "{\"type\":\"TemplateProcessing\",\"single\":[" TEXT_A
                "," SPECIAL("x") "],\"special_tokens\":{\"x\":{\"ids\":[999]}}}");
    BAD("processors[1] is a second template",
        .post =
            "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"TemplateProcessing\","
            "\"single\":[" SPECIAL("<s>") "," TEXT_A "]," SPECIALS
                                          "},{\"type\":\"TemplateProcessing\",\"single\":[" TEXT_A
                                          "]," SPECIALS "}]}");

    BAD("decoder.type \"WordPiece\"", .decoder = "{\"type\":\"WordPiece\",\"prefix\":\"#\"}");
    BAD("decoders[1] is combined with ByteLevel",
        .decoder = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":"
                   "\"ByteLevel\"}]}");
    BAD("decoder.extra is not supported", .decoder = "{\"type\":\"Replace\",\"extra\":1}");
    BAD("decoder.content is not one character",
        .decoder = "{\"type\":\"Strip\",\"content\":\"ab\",\"start\":1,\"stop\":0}");
    BAD("decoder.stop is not a number",
        .decoder = "{\"type\":\"Strip\",\"content\":\"a\",\"start\":1,\"stop\":-1}");
    BAD("one step too many",
        .decoder = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Fuse\"},"
                   "{\"type\":\"Fuse\"},{\"type\":\"Fuse\"},{\"type\":\"Fuse\"},{\"type\":"
                   "\"Fuse\"},{\"type\":\"Fuse\"},{\"type\":\"Fuse\"},{\"type\":\"Fuse\"}]}");
}

/* Patterns: what PCRE2 reads differently is rewritten, or refused with its place. */
static void test_patterns(void **state) {
    (void)state;
    static const struct {
        const char *pattern;
        int64_t offset; /* -1: accepted */
    } cases[] = {
        {"\\s+(?!\\S)|[^\\s\\p{L}]|\\d{1,3}", -1},
        {"(?i:'s)|(?<=a)b|(?>c)|\\p{^Lu}|\\P{Han}", -1},
        {"[\\u4e00-\\u9fa5\\x41\\x{1F600}]|\\.\\$\\-|a??b*+|\\xaA", -1},
        {"a\\w", 1},
        {"\\bx", 0},
        {"\\h", 0},
        {"^a", 0},
        {"a[b[c]]", 3},
        {"[a&&b]", 2},
        {"[]a]", 0},
        {"[\\S]", 1},
        {"a{2}+", 1},
        {"a{,2}", 1},
        {"a{", 1},
        {"x(?<name>a)", 1},
        {"(?m)a", 0},
        {"\\pL", 1},
        {"\\p{Script=Han}", 1},
        {"\\xZZ", 1},
        {"\\1", 0},
        {"[a", 2},
        {"a\\", 1},
        {"\\p{Nobody}", 13}, /* PCRE2's place, in the pattern as translated */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pcre2_code *re = NULL;
        kvasir_error err = {.offset = -1};
        kvasir_status status = regex_compile_onig(span_of(cases[i].pattern), &re, &err);
        if ((status == KVASIR_OK) != (cases[i].offset < 0) || err.offset != cases[i].offset)
            fail_msg("%s: %s at %lld", cases[i].pattern, err.text, (long long)err.offset);
        pcre2_code_free(re);
    }
}

static void test_refused_config(void **state) {
    (void)state;
    char *json = file_of((struct parts){0});
    static const char *const configs[] = {"", "[]", "{\"bos_token\":\"a\"", "{\"bos_token\":}",
                                          "{\"bos_token\":{\"content\":\"a\"}} x"};
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        struct tokenizer *t;
        kvasir_error err = {0};
        assert_int_equal(try_text(json, strlen(json), configs[i], &t, &err), KVASIR_ERR_FORMAT);
        assert_non_null(strstr(err.text, "tokenizer_config.json: "));
    }
    free(json);
}

/* ---- damaged files --------------------------------------------------------------------------- */

static const struct parts rich = {
    .added = "[{\"id\":1,\"content\":\"<s>\",\"special\":true,\"single_word\":false,\"lstrip\":"
             "true,\"rstrip\":false,\"normalized\":false},{\"id\":40,\"content\":\"\\ud83d\\ude00"
             "\",\"normalized\":true}]",
    .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":\"Replace"
                  "\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"}]}",
    .pre = "{\"type\":\"Sequence\",\"pretokenizers\":[" SPLIT(
        B_OR_C, "MergedWithNext", "false") ",{\"type\":\"Digits\",\"individual_digits\":true}]}",
    .post =
        "{\"type\":\"TemplateProcessing\",\"single\":[" SPECIAL("<s>") "," TEXT_A "]," SPECIALS "}",
    .decoder = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":"
               "\"Fuse\"}]}",
};

/* A tokenizer that was created works. */
static void use(struct tokenizer *t) {
    static const char text[] = "abc de <s> 11\xc3\xa9\xf0\x9f\x98\x80" MARK "\n";
    for (unsigned flags = 0; flags < 4; flags++) {
        size_t n;
        int32_t *ids;
        kvasir_error err = {0};
        if (tokenizer_encode(t, text, sizeof text - 1, flags, &ids, &n, &err) != KVASIR_OK)
            continue; /* a pattern of the damaged file may fail */
        struct text_buf out = {0};
        for (size_t i = 0; i < n; i++)
            assert_true(tokenizer_piece(t, ids[i]).len > 0);
        assert_int_equal(tokenizer_decode(t, ids, n, flags & 1, &out, &err), KVASIR_OK);
        assert_int_equal(utf8_check(out.data, out.len), out.len);
        text_free(&out);
        mem_free(ids);
    }
    tokenizer_destroy(t);
}

static void test_damaged(void **state) {
    (void)state;
    char *json = file_of(rich), *copy = malloc(strlen(json) + 8);
    size_t len = strlen(json);
    struct tokenizer *t;
    kvasir_error err = {0};
    assert_int_equal(try_text(json, len, NULL, &t, &err), KVASIR_OK);
    use(t);
    for (size_t cut = 0; cut < len - 1; cut++) { /* the last byte is a newline */
        char *exact = malloc(cut ? cut : 1);     /* of just that size, so that reads past it show */
        memcpy(exact, json, cut);
        assert_int_not_equal(try_text(exact, cut, NULL, &t, &err), KVASIR_OK);
        assert_true(strlen(err.text) > 10 && err.offset <= (int64_t)cut);
        free(exact);
    }
    int made = 0;
    static const char likely[] = "\"{}[]:,\\0159aeu<> \x01\x80\xff";
    for (int round = 0; round < 20000; round++) {
        memcpy(copy, json, len);
        for (uint32_t k = rng(3) + 1; k > 0; k--)
            copy[rng((uint32_t)len)] = rng(4) ? likely[rng(sizeof likely)] : (char)rng(256);
        if (try_text(copy, len, NULL, &t, &err) == KVASIR_OK) {
            use(t);
            made++;
        }
    }
    print_message("%d of 20000 damaged files were still good\n", made);
    assert_in_range(made, 100, 19000);
    free(copy);
    free(json);
}

/* ---- the scanner ----------------------------------------------------------------------------- */

static kvasir_status scan_whole(const char *text, size_t len, kvasir_error *err) {
    struct json_scan s;
    struct text_span raw;
    scan_init(&s, "x.json", (struct text_span){text, len}, err);
    kvasir_status status = scan_skip(&s, &raw);
    if (status == KVASIR_OK)
        status = scan_finish(&s);
    scan_deinit(&s);
    return status;
}

static void test_scan_values(void **state) {
    (void)state;
    static const char *const good[] = {
        "null",
        " true ",
        "0",
        "-0.5e+10",
        "123",
        "\"\"",
        "[]",
        "{}",
        "[1,[2],{\"a\":[null]}]",
        "{\"a\":1,\"b\":{\"c\":\"d\"}}",
        "\"\\ud83d\\ude00\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\"",
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        kvasir_error err = {0};
        if (scan_whole(good[i], strlen(good[i]), &err) != KVASIR_OK)
            fail_msg("%s: %s", good[i], err.text);
    }
    static const struct {
        const char *text;
        int64_t offset;
    } bad[] = {
        {"", 0},
        {"nul", 0},
        {"01", 2},
        {"-", 1},
        {"1.", 2},
        {"1e", 2},
        {"+1", 0},
        {"[1 2]", 3},
        {"[1,]", 3},
        {"[,1]", 1},
        {"[1", 2},
        {"{\"a\"}", 4},
        {"{\"a\":1,}", 7},
        {"{a:1}", 1},
        {"\"ab", 3},
        {"\"a\nb\"", 2},
        {"\"\\x\"", 2},
        {"\"\\u12\"", 5},
        {"\"\\ud800\\u", 9},
        {"\"\\ud800\"", 3},
        {"\"\\udc00\\udc00\"", 3},
        {"\"\x1f\"", 1},
        {"\"\\udc00\"", 3},
        {"\"\\ud800\\u0041\"", 3},
        {"\"a\xff\"", 2},
        {"1 1", 2},
        {"[1}", 2},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvasir_error err = {0};
        assert_int_equal(scan_whole(bad[i].text, strlen(bad[i].text), &err), KVASIR_ERR_FORMAT);
        if (err.offset != bad[i].offset)
            fail_msg("%s: %s at %lld", bad[i].text, err.text, (long long)err.offset);
    }
    char deep[2 * JSON_DEPTH_MAX + 3];
    for (int depth = JSON_DEPTH_MAX; depth <= JSON_DEPTH_MAX + 1; depth++) {
        memset(deep, '[', (size_t)depth);
        memset(deep + depth, ']', (size_t)depth);
        kvasir_error err = {0};
        assert_int_equal(scan_whole(deep, 2 * (size_t)depth, &err),
                         depth > JSON_DEPTH_MAX ? KVASIR_ERR_FORMAT : KVASIR_OK);
    }
    kvasir_error err = {0};
    assert_int_equal(scan_whole("1\0", 2, &err), KVASIR_ERR_FORMAT);
}

static void test_scan_strings(void **state) {
    (void)state;
    static const char text[] = "[\"plain\",\"\\u00e9\\ud83d\\ude00\\n\",\"\\u0000x\"]";
    struct json_scan s;
    struct text_span got;
    kvasir_error err = {0};
    bool more;
    scan_init(&s, "x.json", span_of(text), &err);
    assert_int_equal(scan_open(&s, '['), KVASIR_OK);
    assert_int_equal(scan_next_item(&s, &more), KVASIR_OK);
    assert_int_equal(scan_string(&s, &got), KVASIR_OK);
    assert_ptr_equal(got.data, text + 2); /* not copied */
    assert_int_equal(got.len, 5);
    assert_int_equal(scan_next_item(&s, &more), KVASIR_OK);
    assert_int_equal(scan_string(&s, &got), KVASIR_OK);
    assert_int_equal(got.len, 7);
    assert_memory_equal(got.data, "\xc3\xa9\xf0\x9f\x98\x80\n", 7);
    assert_int_equal(scan_next_item(&s, &more), KVASIR_OK);
    assert_int_equal(scan_string(&s, &got), KVASIR_OK);
    assert_int_equal(got.len, 2);
    assert_memory_equal(got.data, "\0x", 2);
    assert_int_equal(scan_next_item(&s, &more), KVASIR_OK);
    assert_false(more);
    assert_int_equal(scan_finish(&s), KVASIR_OK);
    scan_deinit(&s);
}

int main(void) {
    rng_start(20250412);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),          cmocka_unit_test(test_ids),
        cmocka_unit_test(test_added),          cmocka_unit_test(test_normalizer),
        cmocka_unit_test(test_pre_tokenizer),  cmocka_unit_test(test_byte_level),
        cmocka_unit_test(test_post_processor), cmocka_unit_test(test_decoders),
        cmocka_unit_test(test_refused_model),  cmocka_unit_test(test_refused_parts),
        cmocka_unit_test(test_patterns),       cmocka_unit_test(test_refused_config),
        cmocka_unit_test(test_damaged),        cmocka_unit_test(test_scan_values),
        cmocka_unit_test(test_scan_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
