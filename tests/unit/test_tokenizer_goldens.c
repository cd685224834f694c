/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer on real vocabularies, opened as a model is (checkpoint_open_text): every encode
 * golden of SmolLM2, Qwen2.5, stories260K, GPT-2, Qwen3, Llama 3.1 and Gemma 3 (made by Hugging
 * Face's tokenizers), with and without the tokens that the vocabulary adds, and decoded again;
 * Gemma also from fields like GGUF's; round trips; times. test_tokenizer.c and
 * test_tokenizer_json.c need no external data.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/model.h"
#include "text/tokenizer_internal.h"

#include "text_checks.h"

#define SMOLLM       MODELS_DIR "/SmolLM2-135M-Instruct.Q4_1.gguf"
#define OUTSIDE      SHARED_DIR "/models/smollm2-goldens/tokenizer_cases.json"
#define GEMMA        SHARED_DIR "/tokenizers/gemma3/tokenizer.json"
#define LLAMA2C      SHARED_DIR "/models/stories260K/golden_encode_llama2c.json"
#define STORIES      SHARED_DIR "/models/stories260K/hf"
#define STORIES_GGUF SHARED_DIR "/models/stories260K/stories260K-f32.gguf"
#define WIKITEXT     SHARED_DIR "/text/wikitext-2-raw/wiki.test.raw"

/* A vocabulary and the goldens that go with it. */
static const struct {
    const char *path, *goldens, *name;
} vocabularies[] = {
    {SMOLLM, SHARED_DIR "/goldens/smollm2-135m/golden_encode.jsonl", "gpt2 (smollm)"},
    {MODELS_DIR "/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
     SHARED_DIR "/goldens/qwen2.5-coder-0.5b/golden_encode.jsonl", "gpt2 (qwen2)"},
    {MODELS_DIR "/gemma3-270m-q4_k_m.gguf", SHARED_DIR "/goldens/gemma3-270m/golden_encode.jsonl",
     "llama (SentencePiece BPE)"},
    {SHARED_DIR "/tokenizers/gpt2/tokenizer.json",
     SHARED_DIR "/tokenizers/gpt2/golden_encode.jsonl", "tokenizer.json BPE"},
    {SHARED_DIR "/tokenizers/qwen3/tokenizer.json",
     SHARED_DIR "/tokenizers/qwen3/golden_encode.jsonl", "tokenizer.json BPE"},
    {SHARED_DIR "/tokenizers/llama3_1/tokenizer.json",
     SHARED_DIR "/tokenizers/llama3_1/golden_encode.jsonl", "tokenizer.json BPE"},
    {GEMMA, SHARED_DIR "/tokenizers/gemma3/golden_encode.jsonl", "tokenizer.json BPE"},
    {GEMMA, SHARED_DIR "/goldens/gemma3-270m/golden_encode.jsonl", "tokenizer.json BPE"},
};

static json_t *load_lines(const char *path) { /* JSON, one value a line, as an array */
    kvasir_error err = {0};
    char *data;
    size_t size;
    if (file_read_all(path, 1 << 26, &data, &size, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    json_t *lines = json_array();
    for (char *at = data; *at;) {
        char *end = strchr(at, '\n');
        size_t len = end ? (size_t)(end - at) : strlen(at);
        json_error_t why;
        json_t *value = json_loadb(at, len, JSON_ALLOW_NUL, &why);
        if (!value)
            fail_msg("%s: %s", path, why.text);
        json_array_append_new(lines, value);
        at += len + (end != NULL);
    }
    mem_free(data);
    return lines;
}

static void check_golden(const struct tokenizer *t, const json_t *text, const json_t *want,
                         unsigned flags) {
    size_t n;
    int32_t *ids = encode(t, json_string_value(text), json_string_length(text), flags, &n);
    bool equal = n == json_array_size(want);
    for (size_t i = 0; equal && i < n; i++)
        equal = ids[i] == json_integer_value(json_array_get(want, i));
    if (!equal)
        fail_msg("ids differ for \"%s\"", json_string_value(text));
    mem_free(ids);
}

static void check_decoded(const struct tokenizer *t, const json_t *ids, const json_t *want) {
    int32_t list[4096];
    struct text_buf out = {0};
    kvasir_error err = {0};
    size_t n = json_array_size(ids);
    assert_true(n <= 4096);
    for (size_t k = 0; k < n; k++)
        list[k] = (int32_t)json_integer_value(json_array_get(ids, k));
    assert_int_equal(tokenizer_decode(t, list, n, 0, &out, &err), KVASIR_OK);
    assert_int_equal(out.len, json_string_length(want));
    if (out.len)
        assert_memory_equal(out.data, json_string_value(want), out.len);
    text_free(&out);
}

static void check_golden_lines(const struct tokenizer *t, const char *path) {
    json_t *lines = load_lines(path), *line;
    size_t i;
    assert_true(json_array_size(lines) > 50);
    json_array_foreach(lines, i, line) {
        const json_t *text = json_object_get(line, "text"), *ids = json_object_get(line, "ids");
        check_golden(t, text, ids, TOKENIZE_PARSE_SPECIAL);
        check_golden(t, text, json_object_get(line, "ids_special"),
                     TOKENIZE_PARSE_SPECIAL | TOKENIZE_ADD_SPECIAL);
        check_decoded(t, ids, json_object_get(line, "decoded"));
    }
    print_message("%zu goldens of %s\n", json_array_size(lines), path);
    json_decref(lines);
}

static struct tokenizer *open_text(const char *path) {
    struct checkpoint *c;
    kvasir_error err = {0};
    if (checkpoint_open_text(path, &c, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    double start = cpu_seconds();
    struct tokenizer *t = create(checkpoint_tokenizer(c));
    print_message("%s: %zu tokens, made in %.3f s\n", path, tokenizer_size(t),
                  cpu_seconds() - start);
    checkpoint_close(c); /* the tokenizer needs nothing of it any more */
    return t;
}

static void test_goldens(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof vocabularies / sizeof vocabularies[0]; i++) {
        if (access(vocabularies[i].path, R_OK) != 0) {
            print_message("left out: %s is not there\n", vocabularies[i].path);
            continue;
        }
        struct tokenizer *t = open_text(vocabularies[i].path);
        assert_string_equal(tokenizer_name(t), vocabularies[i].name);
        check_golden_lines(t, vocabularies[i].goldens);
        tokenizer_destroy(t);
    }
}

/* llama2.c made these with SentencePiece's rule, without the tokens of the file itself. */
static void test_stories(void **state) {
    (void)state;
    json_error_t why;
    json_t *cases = json_load_file(LLAMA2C, JSON_ALLOW_NUL, &why), *one;
    size_t i;
    assert_true(json_array_size(cases) > 8);
    const char *paths[] = {STORIES, STORIES_GGUF};
    for (int k = 0; k < 2; k++) {
        struct tokenizer *t = open_text(paths[k]);
        json_array_foreach(cases, i, one) {
            const json_t *text = json_object_get(one, "text"), *ids = json_object_get(one, "ids");
            check_golden(t, text, ids, TOKENIZE_PARSE_SPECIAL);
            check_decoded(t, ids, text);
        }
        assert_int_equal(tokenizer_bos(t), 1);
        assert_true(tokenizer_is_end(t, 2));
        CHECK_IDS(t, "a", TOKENIZE_ADD_SPECIAL, 1, 261);
        CHECK_IDS(t, "a</s>a", TOKENIZE_PARSE_SPECIAL, 261, 2, 261); /* a space before every part */
        tokenizer_destroy(t);
    }
    json_decref(cases);
}

static struct tokenizer *smollm;

static int open_smollm(void **state) {
    (void)state;
    smollm = open_text(SMOLLM);
    return 0;
}

static int close_smollm(void **state) {
    (void)state;
    tokenizer_destroy(smollm);
    return 0;
}

static void test_outside_cases(void **state) {
    (void)state;
    json_error_t why;
    json_t *outside = json_load_file(OUTSIDE, 0, &why), *one;
    assert_non_null(outside);
    size_t i;
    const json_t *cases = json_object_get(outside, "cases");
    assert_true(json_array_size(cases) > 20);
    json_array_foreach(cases, i, one) {
        check_golden(smollm, json_object_get(one, "text"), json_object_get(one, "ids"),
                     TOKENIZE_PARSE_SPECIAL);
    }
    json_decref(outside);
}

static void test_smollm_facts(void **state) {
    (void)state;
    assert_int_equal(tokenizer_size(smollm), 49152);
    assert_int_equal(tokenizer_bos(smollm), 1);
    assert_int_equal(tokenizer_eos(smollm), 2);
    assert_true(tokenizer_is_end(smollm, 2));  /* <|im_end|> */
    assert_true(tokenizer_is_end(smollm, 0));  /* <|endoftext|> */
    assert_false(tokenizer_is_end(smollm, 1)); /* <|im_start|> */
    assert_true(tokenizer_is_control(smollm, 1));
    struct text_span name = tokenizer_bytes(smollm, 1);
    assert_int_equal(name.len, strlen("<|im_start|>"));
    assert_memory_equal(name.data, "<|im_start|>", name.len);
    /* Without the flag a user cannot write a control token. */
    size_t n;
    int32_t *ids = encode(smollm, "<|im_end|>", 10, 0, &n);
    for (size_t i = 0; i < n; i++)
        assert_false(tokenizer_is_control(smollm, ids[i]));
    mem_free(ids);
}

static void test_smollm_round_trips(void **state) {
    (void)state;
    char text[4 * 300];
    for (int round = 0; round < 300; round++) {
        size_t len = random_text(text, rng(300));
        size_t kept = 0; /* without the characters whose bytes the vocabulary lacks */
        for (size_t i = 0, next; i < len; i = next) {
            next = i + 1;
            while (next < len && (text[next] & 0xc0) == 0x80)
                next++;
            uint8_t c = (uint8_t)text[i];
            bool missing = c == 4 || c == 6 || c == 0x13 || c == 0x14 || c == 0x16 || c == 0x1d ||
                           c == 0xf1 || c == 0xf2;
            if (!missing) {
                memmove(text + kept, text + i, next - i);
                kept += next - i;
            }
        }
        check_round_trip(smollm, text, kept, 0);
    }
}

static void test_smollm_time(void **state) {
    (void)state;
    check_time(smollm, "SmolLM2");
}

/* Gemma's tokenizer.json written as a GGUF converter would: scores instead of merges (the order of
 * ids is the order of scores), and user-defined runs of spaces as spaces. */
static void test_gemma_fields(void **state) {
    (void)state;
    struct tokenizer *json = open_text(GEMMA);
    size_t n = tokenizer_size(json);
    struct text_span *pieces = calloc(n, sizeof *pieces);
    uint8_t *kinds = calloc(n, 1);
    float *scores = calloc(n, sizeof *scores);
    for (int32_t id = 0; (size_t)id < n; id++) {
        bool user = json->pieces.kind[id] == TOKEN_USER_DEFINED;
        bool byte = tokenizer_piece(json, id).len == 6 && tokenizer_bytes(json, id).len == 1;
        kinds[id] = byte ? (uint8_t)TOKEN_BYTE : json->pieces.kind[id];
        pieces[id] = user ? tokenizer_bytes(json, id) : tokenizer_piece(json, id);
        scores[id] = user ? -1000 : -(float)id;
    }
    struct tokenizer_spec spec = {.model = "llama",
                                  .pre = "default",
                                  .pieces = pieces,
                                  .kinds = kinds,
                                  .n_tokens = n,
                                  .scores = scores,
                                  .bos = 2,
                                  .eos = 1,
                                  .eot = -1,
                                  .unk = 3,
                                  .pad = 0,
                                  .add_bos = true};
    double start = cpu_seconds();
    struct tokenizer *t = create(&spec);
    print_message("Gemma from scores: %zu merges, made in %.3f s\n", t->bpe.merges.n,
                  cpu_seconds() - start);
    assert_string_equal(tokenizer_name(t), "llama (SentencePiece BPE)");
    assert_true(t->bpe.cut_at_marks && json->bpe.cut_at_marks);
    check_golden_lines(t, SHARED_DIR "/tokenizers/gemma3/golden_encode.jsonl");
    check_golden_lines(t, SHARED_DIR "/goldens/gemma3-270m/golden_encode.jsonl");
    check_time(t, "Gemma from scores");
    tokenizer_destroy(t);
    check_time(json, "Gemma");
    tokenizer_destroy(json);
    free(pieces);
    free(kinds);
    free(scores);
}

/* Cuts change no token: a long text gives the same ids in parts and, for Gemma, without the cuts at
 * U+2581. */
static void test_cuts(void **state) {
    (void)state;
    const char *paths[] = {GEMMA, SHARED_DIR "/tokenizers/qwen3/tokenizer.json"};
    kvasir_error err = {0};
    char *text;
    size_t size;
    assert_int_equal(file_read_all(WIKITEXT, 1 << 26, &text, &size, &err), KVASIR_OK);
    size = 200000;
    while (((uint8_t)text[size] & 0xc0) == 0x80)
        size--;
    for (int k = 0; k < 2; k++) {
        struct tokenizer *t = open_text(paths[k]);
        size_t n, again;
        int32_t *ids = encode(t, text, size, 0, &n);
        struct tokenizer whole = *t; /* the same without the cuts */
        whole.bpe.cut_at_marks = false;
        int32_t *uncut = encode(&whole, text, size, 0, &again);
        assert_int_equal(n, again);
        assert_memory_equal(ids, uncut, n * sizeof *ids);
        mem_free(uncut);
        size_t at = 0;
        for (const char *line = text; line < text + size;) {
            /* Up to a space and a full stop, where no rule looks across. */
            const char *end = strstr(line + 1, " . ");
            end = end && end < text + size ? end : text + size;
            size_t part;
            int32_t *one = encode(t, line, (size_t)(end - line), 0, &part);
            assert_true(at + part <= n);
            assert_memory_equal(ids + at, one, part * sizeof *one);
            at += part;
            mem_free(one);
            line = end;
        }
        assert_int_equal(at, n);
        mem_free(ids);
        tokenizer_destroy(t);
    }
    mem_free(text);
}

/* What xtc leaves alone: tokenizer.encode("\n") of transformers, and all end tokens. */
static void test_xtc_special(void **state) {
    (void)state;
    static const struct {
        const char *path;
        size_t n;
        int32_t ids[4];
    } CASES[] = {
        {SMOLLM, 3, {198, 0, 2}},
        {SHARED_DIR "/tokenizers/llama3_1/tokenizer.json", 4, {128000, 198, 128001, 128009}},
        {GEMMA, 3, {2, 107, 106}},
        {STORIES, 4, {1, 410, 13, 2}},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        kvasir_tokenizer *t;
        kvasir_error err = {0};
        int32_t *ids = NULL;
        size_t n = 0;
        if (kvasir_tokenizer_open(CASES[i].path, &t, &err) != KVASIR_OK ||
            kvasir_xtc_special(t, &ids, &n, &err) != KVASIR_OK)
            fail_msg("%s", err.text);
        assert_int_equal(n, CASES[i].n);
        assert_memory_equal(ids, CASES[i].ids, n * sizeof *ids);
        kvasir_free(ids);
        kvasir_tokenizer_close(t);
    }
}

int main(void) {
    rng_start(20250313);
    const char *needed[] = {SMOLLM, OUTSIDE, GEMMA, LLAMA2C, STORIES, STORIES_GGUF, WIKITEXT};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (access(needed[i], R_OK) != 0) {
            printf("skipped: %s is not there\n", needed[i]);
            return 77;
        }
    const struct CMUnitTest goldens[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_stories),
        cmocka_unit_test(test_outside_cases),
        cmocka_unit_test(test_smollm_facts),
        cmocka_unit_test(test_smollm_round_trips),
        cmocka_unit_test(test_smollm_time),
        cmocka_unit_test(test_gemma_fields),
        cmocka_unit_test(test_xtc_special),
        cmocka_unit_test(test_cuts),
    };
    return cmocka_run_group_tests(goldens, open_smollm, close_smollm);
}
