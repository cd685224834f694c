/* SPDX-License-Identifier: Apache-2.0 */
/* The tokenizer on real vocabularies: every encode golden of SmolLM2 (made by Hugging Face
 * tokenizers) through checkpoint_open on the demo GGUF, decoded again as well; GPT-2's goldens from
 * its tokenizer.json, which is the "gpt-2" row by itself; round trips; time for 1 MB in one word.
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

#include "text_checks.h"

#define MODEL       MODELS_DIR "/SmolLM2-135M-Instruct.Q4_1.gguf"
#define GOLDENS     SHARED_DIR "/goldens/smollm2-135m/golden_encode.jsonl"
#define OUTSIDE     SHARED_DIR "/models/smollm2-goldens/tokenizer_cases.json"
#define GPT2        SHARED_DIR "/tokenizers/gpt2/tokenizer.json"
#define GPT2_GOLDEN SHARED_DIR "/tokenizers/gpt2/golden_encode.jsonl"

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

static void check_golden_lines(const struct tokenizer *t, const char *path) {
    json_t *lines = load_lines(path), *line;
    size_t i;
    assert_true(json_array_size(lines) > 50);
    json_array_foreach(lines, i, line) {
        const json_t *text = json_object_get(line, "text"), *ids = json_object_get(line, "ids");
        check_golden(t, text, ids, TOKENIZE_PARSE_SPECIAL);
        check_golden(t, text, json_object_get(line, "ids_special"),
                     TOKENIZE_PARSE_SPECIAL | TOKENIZE_ADD_SPECIAL);
        const json_t *decoded = json_object_get(line, "decoded");
        int32_t stack[4096];
        size_t n = json_array_size(ids);
        assert_true(n <= 4096);
        for (size_t k = 0; k < n; k++)
            stack[k] = (int32_t)json_integer_value(json_array_get(ids, k));
        struct text_buf out = decode(t, stack, n);
        assert_int_equal(out.len, json_string_length(decoded));
        if (out.len)
            assert_memory_equal(out.data, json_string_value(decoded), out.len);
        text_free(&out);
    }
    print_message("%zu goldens of %s\n", json_array_size(lines), path);
    json_decref(lines);
}

static struct checkpoint *checkpoint;
static struct tokenizer *smollm;

static int open_smollm(void **state) {
    (void)state;
    kvasir_error err = {0};
    if (checkpoint_open(MODEL, &checkpoint, &err) != KVASIR_OK) {
        print_error("%s\n", err.text);
        return -1;
    }
    const struct tokenizer_spec *spec = checkpoint_tokenizer(checkpoint);
    if (!spec)
        return -1;
    double start = cpu_seconds();
    smollm = create(spec);
    print_message("SmolLM2: %zu tokens, created in %.3f s\n", tokenizer_size(smollm),
                  cpu_seconds() - start);
    return 0;
}

static int close_smollm(void **state) {
    (void)state;
    tokenizer_destroy(smollm);
    checkpoint_close(checkpoint);
    return 0;
}

static void test_smollm_goldens(void **state) {
    (void)state;
    check_golden_lines(smollm, GOLDENS);
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

/* A second real vocabulary, and the "gpt-2" row by itself. */
static void test_gpt2_goldens(void **state) {
    (void)state;
    json_error_t why;
    json_t *file = json_load_file(GPT2, JSON_ALLOW_NUL, &why);
    assert_non_null(file);
    json_t *model = json_object_get(file, "model"), *vocab = json_object_get(model, "vocab");
    json_t *merges = json_object_get(model, "merges"), *value;
    size_t n = json_object_size(vocab), n_merges = json_array_size(merges), i;
    struct text_span *pieces = calloc(n, sizeof *pieces);
    struct text_span *pairs = calloc(n_merges, sizeof *pairs);
    uint8_t *kinds = malloc(n);
    memset(kinds, TOKEN_NORMAL, n);
    const char *key;
    json_object_foreach(vocab, key, value) {
        pieces[json_integer_value(value)] = (struct text_span){key, strlen(key)};
    }
    json_array_foreach(merges, i, value) {
        pairs[i] = (struct text_span){json_string_value(value), json_string_length(value)};
    }
    json_array_foreach(json_object_get(file, "added_tokens"), i, value) {
        kinds[json_integer_value(json_object_get(value, "id"))] = TOKEN_CONTROL;
    }
    struct tokenizer_spec spec = {.model = "gpt2",
                                  .pre = "gpt-2",
                                  .pieces = pieces,
                                  .kinds = kinds,
                                  .n_tokens = n,
                                  .merges = pairs,
                                  .n_merges = n_merges,
                                  .bos = 50256,
                                  .eos = 50256,
                                  .eot = -1,
                                  .unk = -1,
                                  .pad = -1};
    struct tokenizer *t = create(&spec);
    json_decref(file); /* nothing of the spec is needed any more */
    free(pieces);
    free(pairs);
    free(kinds);
    check_golden_lines(t, GPT2_GOLDEN);
    tokenizer_destroy(t);
}

int main(void) {
    rng_start(20250313);
    const char *needed[] = {MODEL, GOLDENS, OUTSIDE, GPT2, GPT2_GOLDEN};
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (access(needed[i], R_OK) != 0) {
            printf("skipped: %s is not there\n", needed[i]);
            return 77;
        }
    const struct CMUnitTest goldens[] = {
        cmocka_unit_test(test_smollm_goldens),     cmocka_unit_test(test_smollm_facts),
        cmocka_unit_test(test_smollm_round_trips), cmocka_unit_test(test_smollm_time),
        cmocka_unit_test(test_gpt2_goldens),
    };
    return cmocka_run_group_tests(goldens, open_smollm, close_smollm);
}
