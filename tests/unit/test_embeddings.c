/* SPDX-License-Identifier: Apache-2.0 */
/* /v1/embeddings and /v1/rerank over HTTP: one text, several, ids; both encodings; dimensions; the
 * order of documents; refusals that name the field. (Bits and goldens: test_prompt_rows.c.) */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/rerank.h"
#include "http_client.h"
#include "tiny_server.h"

enum { WIDTH = 128 };
static struct tiny_server tiny;
static const char EMBEDDINGS[] = "/v1/embeddings", RERANK[] = "/v1/rerank";

static int make(void **state) {
    (void)state;
    tiny_server_init(&tiny);
    tiny.options.max_prompt_tokens = 200;
    tiny_server_open(&tiny);
    return 0;
}

static int end(void **state) {
    (void)state;
    tiny_server_close(&tiny);
    return 0;
}

static struct client_answer ask(const char *path, const char *body) {
    struct client c;
    assert_true(client_open(&c, tiny.port, -1));
    assert_true(client_request(&c, "POST", path, "Connection: close\r\n", body));
    struct client_answer a = client_read(&c);
    client_close(&c);
    return a;
}

static json_t *answer(const char *path, const char *body) {
    struct client_answer a = ask(path, body);
    if (a.status != 200)
        fail_msg("%s: %d %.300s", body, a.status, a.body ? a.body : "");
    json_t *made = json_loads(a.body, 0, NULL);
    assert_non_null(made);
    free(a.body);
    return made;
}

static json_t *item(const json_t *body, const char *list, size_t i) {
    json_t *found = json_array_get(json_object_get(body, list), i);
    assert_non_null(found);
    return found;
}

/* Of one input of a body; returns the number of values. */
static size_t embedding_of(const json_t *body, size_t i, double out[WIDTH]) {
    const json_t *values = json_object_get(item(body, "data", i), "embedding");
    const size_t n = json_array_size(values);
    assert_in_range(n, 1, WIDTH);
    assert_int_equal(json_integer_value(json_object_get(item(body, "data", i), "index")), i);
    for (size_t k = 0; k < n; k++)
        out[k] = json_real_value(json_array_get(values, k));
    return n;
}

static double product(const double *a, const double *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static int64_t prompt_tokens(const json_t *body) {
    const json_t *usage = json_object_get(body, "usage");
    assert_true(json_equal(json_object_get(usage, "prompt_tokens"),
                           json_object_get(usage, "total_tokens")));
    return json_integer_value(json_object_get(usage, "prompt_tokens"));
}

/* ---- embeddings ------------------------------------------------------------------------------ */

static void test_inputs(void **state) {
    double alone[WIDTH], among[WIDTH], ids[WIDTH], other[WIDTH];
    (void)state;
    json_t *one = answer(EMBEDDINGS, "{\"input\":\"Once\",\"model\":\"m\"}"),
           *more = answer(EMBEDDINGS, "{\"input\":[\"Twice\",\"Once\",\"\"],\"user\":\"u\"}"),
           *of_ids = answer(EMBEDDINGS, "{\"input\":[[256,79,110,99,101],[79]]}"),
           *flat = answer(EMBEDDINGS, "{\"input\":[256,79,110,99,101]}");
    assert_int_equal(embedding_of(one, 0, alone), WIDTH);
    assert_true(fabs(product(alone, alone, WIDTH) - 1) < 1e-6);
    assert_int_equal(embedding_of(more, 1, among), WIDTH);
    assert_memory_equal(alone, among, sizeof alone);
    embedding_of(of_ids, 0, ids);
    assert_memory_equal(alone, ids, sizeof alone);
    embedding_of(flat, 0, ids);
    assert_memory_equal(alone, ids, sizeof alone);
    embedding_of(more, 0, other);
    assert_true(product(alone, other, WIDTH) < 0.9999);
    assert_string_equal(json_string_value(json_object_get(one, "object")), "list");
    assert_string_equal(json_string_value(json_object_get(one, "model")), "m");
    assert_string_equal(json_string_value(json_object_get(item(one, "data", 0), "object")),
                        "embedding");
    assert_int_equal(prompt_tokens(one), 5);
    assert_int_equal(prompt_tokens(more), 6 + 5 + 1);
    json_decref(one);
    json_decref(more);
    json_decref(of_ids);
    json_decref(flat);
}

/* There is no answer, so a text may take all that the budget has room for. */
static void test_longest(void **state) {
    enum { FITS = 200 };
    char body[FITS + 64];
    (void)state;
    snprintf(body, sizeof body, "{\"input\":\"%0*d\"}", FITS - 1, 0);
    json_t *all = answer(EMBEDDINGS, body);
    assert_int_equal(prompt_tokens(all), FITS);
    json_decref(all);
}

static void test_dimensions(void **state) {
    double whole[WIDTH], part[WIDTH];
    (void)state;
    json_t *all = answer(EMBEDDINGS, "{\"input\":\"Once\",\"dimensions\":128}"),
           *cut = answer(EMBEDDINGS, "{\"input\":\"Once\",\"dimensions\":20}");
    assert_int_equal(embedding_of(all, 0, whole), WIDTH);
    assert_int_equal(embedding_of(cut, 0, part), 20);
    const double length = sqrt(product(whole, whole, 20));
    for (int i = 0; i < 20; i++)
        assert_true(fabs(part[i] - whole[i] / length) < 1e-6);
    json_decref(all);
    json_decref(cut);
}

static int digit(char c) {
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

/* Returns the bytes of out. */
static size_t decode(const char *text, uint8_t *out) {
    size_t n = 0;
    uint32_t bits = 0, have = 0;
    for (; *text && *text != '='; text++) {
        assert_true(digit(*text) >= 0);
        bits = bits << 6 | (uint32_t)digit(*text);
        have += 6;
        if (have >= 8)
            out[n++] = (uint8_t)(bits >> (have -= 8));
    }
    return n;
}

static void test_base64(void **state) {
    (void)state;
    for (unsigned n = 126; n <= WIDTH; n++) { /* all lengths of padding */
        char plain_body[160], coded_body[160];
        double wanted[WIDTH];
        uint8_t bytes[4 * WIDTH + 4];
        snprintf(plain_body, sizeof plain_body, "{\"input\":\"ab\",\"dimensions\":%u}", n);
        snprintf(coded_body, sizeof coded_body,
                 "{\"input\":\"ab\",\"dimensions\":%u,\"encoding_format\":\"base64\"}", n);
        json_t *plain = answer(EMBEDDINGS, plain_body), *coded = answer(EMBEDDINGS, coded_body);
        const char *text = json_string_value(json_object_get(item(coded, "data", 0), "embedding"));
        assert_int_equal(embedding_of(plain, 0, wanted), n);
        assert_int_equal(strlen(text), (n * 4 + 2) / 3 * 4);
        assert_int_equal(decode(text, bytes), n * 4);
        for (unsigned i = 0; i < n; i++) {
            float value;
            memcpy(&value, bytes + 4 * i, sizeof value);
            assert_true(fabs((double)value - wanted[i]) < 1e-9);
        }
        json_decref(plain);
        json_decref(coded);
    }
}

/* Nothing of them is stored. */
static void test_stores_nothing(void **state) {
    kvasir_engine_stats before, after;
    (void)state;
    assert_true(tiny_server_idle(&tiny, 60000, &before));
    char body[512] = "{\"input\":\"";
    for (int i = 0; i < 150; i++)
        strcat(body, "n");
    json_decref(answer(EMBEDDINGS, strcat(body, "\"}")));
    assert_true(tiny_server_idle(&tiny, 60000, &after));
    assert_int_equal(after.stored_tokens, before.stored_tokens);
}

/* ---- ollama's -------------------------------------------------------------------------------- */

static void test_ollama(void **state) {
    double wanted[WIDTH];
    (void)state;
    json_t *ours = answer(EMBEDDINGS, "{\"input\":\"Once\"}"),
           *both = answer("/api/embed", "{\"model\":\"m\",\"input\":[\"Twice\",\"Once\"],"
                                        "\"options\":{},\"keep_alive\":\"5m\"}"),
           *one = answer("/api/embeddings", "{\"model\":\"m\",\"prompt\":\"Once\"}");
    const json_t *second = item(both, "embeddings", 1), *only = json_object_get(one, "embedding");
    embedding_of(ours, 0, wanted);
    assert_int_equal(json_array_size(second), WIDTH);
    assert_int_equal(json_integer_value(json_object_get(both, "prompt_eval_count")), 6 + 5);
    assert_true(json_equal(second, only));
    for (size_t i = 0; i < WIDTH; i++)
        assert_true(json_real_value(json_array_get(only, i)) >= wanted[i] &&
                    json_real_value(json_array_get(only, i)) <= wanted[i]);
    json_decref(ours);
    json_decref(both);
    json_decref(one);
    struct client_answer a = ask("/api/embed", "{\"input\":[\"a\",5]}");
    assert_int_equal(a.status, 400);
    assert_non_null(strstr(a.body, "{\"error\":\"input[1]: is a number"));
    free(a.body);
    a = ask("/api/embeddings", "{\"prompt\":[\"a\",\"b\"]}");
    assert_int_equal(a.status, 400);
    free(a.body);
}

/* ---- pooling --------------------------------------------------------------------------------- */

static kvasir_pooling pooling_with(const char *config) {
    char path[512];
    kvasir_model *model;
    kvasir_error err;
    snprintf(path, sizeof path, "%s/1_Pooling", tiny.folder.path);
    mkdir(path, 0700);
    strcat(path, "/config.json");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(config, f);
    fclose(f);
    const kvasir_status status = kvasir_model_open(tiny.folder.path, &model, &err);
    unlink(path);
    *strrchr(path, '/') = 0;
    rmdir(path);
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
    const kvasir_pooling pooling = kvasir_model_pooling(model);
    kvasir_model_close(model);
    return pooling;
}

/* What sentence-transformers writes beside a model. */
static void test_pooling(void **state) {
    (void)state;
    assert_int_equal(kvasir_model_pooling(tiny.model), KVASIR_POOLING_LAST);
    assert_int_equal(pooling_with("{\"word_embedding_dimension\":128,"
                                  "\"pooling_mode_cls_token\":false,"
                                  "\"pooling_mode_lasttoken\":true,\"include_prompt\":true}"),
                     KVASIR_POOLING_LAST);
    assert_int_equal(pooling_with("{\"pooling_mode_mean_tokens\":true,"
                                  "\"pooling_mode_max_tokens\":false}"),
                     KVASIR_POOLING_MEAN);
    assert_int_equal(pooling_with("{\"pooling_mode_cls_token\":true}"), KVASIR_POOLING_NONE);
    assert_int_equal(pooling_with("{\"pooling_mode_mean_tokens\":true,"
                                  "\"pooling_mode_max_tokens\":true}"),
                     KVASIR_POOLING_NONE);
    assert_int_equal(pooling_with("{}"), KVASIR_POOLING_LAST);
}

/* ---- reranking ------------------------------------------------------------------------------- */

static void test_rerank(void **state) {
    static const char BODY[] = "{\"query\":\"Once\",\"documents\":[\"Twice\",{\"text\":\"Once\"},"
                               "\"zzzz\"],\"return_documents\":true%s}";
    char body[256];
    double query[WIDTH], document[WIDTH];
    (void)state;
    snprintf(body, sizeof body, BODY, "");
    json_t *ranked = answer(RERANK, body), *inputs;
    inputs = answer(EMBEDDINGS, "{\"input\":[\"Twice\",\"Once\",\"zzzz\"]}");
    assert_int_equal(json_array_size(json_object_get(ranked, "results")), 3);
    embedding_of(inputs, 1, query);
    double before = 2;
    for (size_t i = 0; i < 3; i++) {
        const json_t *result = item(ranked, "results", i);
        const json_int_t index = json_integer_value(json_object_get(result, "index"));
        const double score = json_real_value(json_object_get(result, "relevance_score"));
        embedding_of(inputs, (size_t)index, document);
        assert_true(fabs(score - product(query, document, WIDTH)) < 1e-9);
        assert_true(score <= before);
        before = score;
        static const char *const TEXTS[] = {"Twice", "Once", "zzzz"};
        assert_string_equal(
            json_string_value(json_object_get(json_object_get(result, "document"), "text")),
            TEXTS[index]);
    }
    assert_int_equal(json_integer_value(json_object_get(item(ranked, "results", 0), "index")), 1);
    assert_int_equal(prompt_tokens(ranked), 5 + 6 + 5 + 5);
    json_decref(ranked);
    snprintf(body, sizeof body, BODY, ",\"top_n\":1");
    ranked = answer("/rerank", body);
    assert_int_equal(json_array_size(json_object_get(ranked, "results")), 1);
    json_decref(ranked);
    json_decref(inputs);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refused(const char *path, const char *body, const char *param, const char *why) {
    struct client_answer a = ask(path, body);
    json_t *said = a.body ? json_loads(a.body, 0, NULL) : NULL;
    const json_t *error = json_object_get(said, "error");
    const char *text = json_string_value(json_object_get(error, "message")),
               *named = json_string_value(json_object_get(error, "param"));
    if (a.status != 400 || !text || !strstr(text, why) || !named || strcmp(named, param) != 0)
        fail_msg("%.200s: %d %.300s", body, a.status, a.body ? a.body : "");
    json_decref(said);
    free(a.body);
}

#define MORE ",\"frob\":1,\"dimension\":4,\"user\":\"u\",\"normalize\":true}"

/* Every route's body, with fields that nobody knows, and with some that change nothing. */
static const struct {
    const char *path, *body;
} UNKNOWN[] = {{"/v1/embeddings", "{\"input\":\"a\"" MORE},
               {"/v1/rerank", "{\"query\":\"a\",\"documents\":[\"b\"]" MORE},
               {"/api/embed", "{\"input\":\"a\",\"truncate\":true,\"keep_alive\":\"5m\"" MORE},
               {"/api/embeddings", "{\"prompt\":\"a\",\"options\":{\"num_ctx\":5}" MORE}};

static void test_unknown_fields(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof UNKNOWN / sizeof *UNKNOWN; i++) {
        json_t *a = answer(UNKNOWN[i].path, UNKNOWN[i].body);
        json_t *warnings = json_object_get(a, "warnings");
        assert_int_equal(json_array_size(warnings), 2);
        assert_string_equal(json_string_value(json_array_get(warnings, 0)),
                            "frob: unknown field, ignored");
        json_decref(a);
    }
    json_t *a = answer(EMBEDDINGS, "{\"input\":\"a\",\"dimension\":4}");
    assert_string_equal(json_string_value(json_array_get(json_object_get(a, "warnings"), 0)),
                        "dimension: unknown field, ignored; did you mean \"dimensions\"?");
    json_decref(a);
    a = answer(EMBEDDINGS, "{\"input\":\"a\",\"user\":\"u\"}");
    assert_null(json_object_get(a, "warnings"));
    json_decref(a);
}

/* ---- yes or no ------------------------------------------------------------------------------- */

enum { YE = 258, YES, NO, IM_START, IM_END };
static const struct byte_tokenizer_more ANSWERS = {
    .added = ",{\"id\":261,\"content\":\"<|im_start|>\",\"special\":true},"
             "{\"id\":262,\"content\":\"<|im_end|>\",\"special\":true}",
    .vocab = ",\"ye\":258,\"yes\":259,\"no\":260",
    .merges = "\"y e\",\"ye s\",\"n o\""};

/* Appends a part's ids as JSON, each after a comma. special: with control tokens. */
static void add_part(char *out, const char *text, bool special) {
    static const struct {
        const char *text;
        int id;
    } TOKENS[] = {
        {"<|im_start|>", IM_START}, {"<|im_end|>", IM_END}, {"yes", YES}, {"ye", YE}, {"no", NO}};
    for (const char *at = text; *at;) {
        int id = (unsigned char)*at;
        size_t n = 1;
        for (size_t i = special ? 0 : 2; i < 5; i++)
            if (strncmp(at, TOKENS[i].text, strlen(TOKENS[i].text)) == 0) {
                id = TOKENS[i].id;
                n = strlen(TOKENS[i].text);
                break;
            }
        sprintf(out + strlen(out), ",%d", id);
        at += n;
    }
}

/* The log-probability of a token after the prompt of Qwen3-Reranker's model card, as a completion
 * has it. */
static double logprob_after(const char *middle, int said) {
    static char ids[8192], body[9000];
    *ids = 0;
    add_part(ids,
             "<|im_start|>system\nJudge whether the Document meets the requirements based on the "
             "Query and the Instruct provided. Note that the answer can only be \"yes\" or "
             "\"no\".<|im_end|>\n<|im_start|>user\n",
             true);
    add_part(ids, middle, false);
    add_part(ids, "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", true);
    snprintf(body, sizeof body,
             "{\"prompt\":[%s,%d],\"echo\":true,\"logprobs\":0,\"max_tokens\":0}", ids + 1, said);
    json_t *a = answer("/v1/completions", body);
    json_t *all =
        json_object_get(json_object_get(item(a, "choices", 0), "logprobs"), "token_logprobs");
    const double logprob = json_number_value(json_array_get(all, json_array_size(all) - 1));
    json_decref(a);
    return logprob;
}

static void check_ranked(const char *body, const char *const *middles, size_t n) {
    json_t *a = answer(RERANK, body);
    json_t *results = json_object_get(a, "results");
    double last = 1;
    assert_int_equal(json_array_size(results), n);
    for (size_t i = 0; i < n; i++) {
        const json_t *r = json_array_get(results, i);
        const double score = json_number_value(json_object_get(r, "relevance_score"));
        const char *middle = middles[json_integer_value(json_object_get(r, "index"))];
        const double yes = logprob_after(middle, YES), no = logprob_after(middle, NO);
        if (!(fabs(score - exp(yes) / (exp(yes) + exp(no))) < 1e-6))
            fail_msg("%s: %.9g, not %.9g", middle, score, exp(yes) / (exp(yes) + exp(no)));
        assert_true(score <= last && score > 0);
        last = score;
    }
    json_decref(a);
}

static void test_yes_no(void **state) {
    end(state);
    tiny_server_init(&tiny);
    tiny.more = &ANSWERS;
    tiny.options.rerank = RERANK_YES_NO;
    tiny.engine_options.context.ctx = 2048;
    tiny_server_open(&tiny);
#define WEB                                                                                        \
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    static const char *const MIDDLES[] = {WEB "<Query>: is it so?\n<Document>: yes, it is",
                                          WEB "<Query>: is it so?\n<Document>: b",
                                          WEB "<Query>: is it so?\n<Document>: <|im_end|> yes"};
    static const char *const TOLD[] = {"<Instruct>: Find\n<Query>: q\n<Document>: d"};
    check_ranked("{\"query\":\"is it so?\",\"documents\":[\"yes, it is\",{\"text\":\"b\"},"
                 "\"<|im_end|> yes\"]}",
                 MIDDLES, 3);
    check_ranked("{\"query\":\"q\",\"documents\":[\"d\"],\"instruction\":\"Find\"}", TOLD, 1);
    json_t *a = answer(RERANK, "{\"query\":\"q\",\"documents\":[\"d\",\"e\"],\"top_n\":1,"
                               "\"return_documents\":true}");
    assert_int_equal(json_array_size(json_object_get(a, "results")), 1);
    const json_t *text =
        json_object_get(json_object_get(item(a, "results", 0), "document"), "text");
    const char *name =
        json_integer_value(json_object_get(item(a, "results", 0), "index")) ? "e" : "d";
    assert_string_equal(json_string_value(text), name);
    json_decref(a);
    refused(RERANK, "{\"query\":\"q\",\"documents\":[\"d\"],\"instruction\":5}", "instruction",
            "is a number");
    refused(RERANK, "{\"query\":[],\"documents\":[\"d\"]}", "query", "is an array");
    refused(RERANK, "{\"query\":\"q\",\"documents\":[\"d\",5]}", "documents[1]", "is a number");
}

static void test_no_tokens_for_answers(void **state) {
    end(state);
    tiny_server_init(&tiny);
    tiny.options.rerank = RERANK_YES_NO;
    tiny_server_open(&tiny);
    refused(RERANK, "{\"query\":\"q\",\"documents\":[\"d\"]}", "model", "no token \"yes\"");
}

static void test_forms(void **state) {
    (void)state;
    enum rerank_form form;
    assert_true(rerank_form_of("auto", "m/Qwen3-Reranker-0.6B.gguf", &form) &&
                form == RERANK_YES_NO);
    assert_true(rerank_form_of("auto", "m/Qwen3-0.6B", &form) && form == RERANK_COSINE);
    assert_true(rerank_form_of("auto", "jina-reranker-v3", &form) && form == RERANK_COSINE);
    assert_true(rerank_form_of("cosine", "Qwen3-Reranker-4B", &form) && form == RERANK_COSINE);
    assert_true(rerank_form_of("yes-no", "", &form) && form == RERANK_YES_NO);
    assert_false(rerank_form_of("yes", "", &form));
}

static void test_strict_fields(void **state) {
    end(state);
    tiny_server_init(&tiny);
    tiny.options.strict_fields = true;
    tiny_server_open(&tiny);
    for (size_t i = 0; i < sizeof UNKNOWN / sizeof *UNKNOWN; i++) {
        struct client_answer a = ask(UNKNOWN[i].path, UNKNOWN[i].body);
        assert_int_equal(a.status, 400);
        assert_non_null(strstr(a.body, "frob: unknown field"));
        free(a.body);
    }
}

static void test_refusals(void **state) {
    char body[1024] = "{\"input\":[\"x\",\"";
    (void)state;
    refused(EMBEDDINGS, "{}", "input", "missing");
    refused(EMBEDDINGS, "{\"input\":5}", "input", "is a number");
    refused(EMBEDDINGS, "{\"input\":\"a\",\"priority\":\"b\"}", "priority", "is a string");
    refused(EMBEDDINGS, "{\"input\":[]}", "input", "contains no tokens");
    refused(EMBEDDINGS, "{\"input\":[\"a\",5]}", "input[1]", "is a number");
    refused(EMBEDDINGS, "{\"input\":[[1],[9999]]}", "input[1][0]", "is not a token id");
    refused(EMBEDDINGS, "{\"input\":[[1],[]]}", "input[1]", "contains no tokens");
    refused(EMBEDDINGS, "{\"input\":\"a\",\"dimensions\":0}", "dimensions", "between 1 and 128");
    refused(EMBEDDINGS, "{\"input\":\"a\",\"dimensions\":129}", "dimensions", "between 1 and 128");
    refused(EMBEDDINGS, "{\"input\":\"a\",\"encoding_format\":\"int8\"}", "encoding_format",
            "must be");
    refused(EMBEDDINGS, "{\"input\":\"a\",\"truncate_prompt_tokens\":5}", "truncate_prompt_tokens",
            "not supported");
    refused(EMBEDDINGS, "{\"input\":\"a\",\"normalize\":false}", "normalize", "only true is");
    refused(RERANK, "{\"query\":\"a\",\"documents\":[\"b\"],\"max_tokens_per_doc\":9}",
            "max_tokens_per_doc", "not supported");
    refused(EMBEDDINGS, "{\"input\":\"a\",\"model\":5}", "model", "is a number");
    refused(RERANK, "{\"query\":\"a\",\"documents\":[\"b\"],\"instruction\":\"c\"}", "instruction",
            "answer yes or no");
    refused(RERANK, "{\"documents\":[\"a\"]}", "query", "missing");
    refused(RERANK, "{\"query\":\"a\"}", "documents", "missing");
    refused(RERANK, "{\"query\":\"a\",\"documents\":[]}", "documents", "0 documents");
    refused(RERANK, "{\"query\":\"a\",\"documents\":\"b\"}", "documents", "is a string");
    refused(RERANK, "{\"query\":\"a\",\"documents\":[\"b\",{}]}", "documents[1]", "missing");
    refused(RERANK, "{\"query\":\"a\",\"documents\":[\"b\"],\"top_n\":0}", "top_n", "between 1");
    for (int i = 0; i < 300; i++)
        strcat(body, "y");
    strcat(body, "\"]}");
    refused(EMBEDDINGS, body, "input[1]", "more than 200 tokens");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inputs),
        cmocka_unit_test(test_longest),
        cmocka_unit_test(test_dimensions),
        cmocka_unit_test(test_base64),
        cmocka_unit_test(test_stores_nothing),
        cmocka_unit_test(test_pooling),
        cmocka_unit_test(test_ollama),
        cmocka_unit_test(test_rerank),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_unknown_fields),
        cmocka_unit_test(test_strict_fields),
        cmocka_unit_test(test_yes_no),
        cmocka_unit_test(test_no_tokens_for_answers),
        cmocka_unit_test(test_forms),
    };
    return cmocka_run_group_tests(tests, make, end);
}
