/* SPDX-License-Identifier: Apache-2.0 */
/* An arbitrary request body. The first byte picks the API, the rest is JSON:
 *
 *     '0' '1'   OpenAI's completions, chat; '2' '3': with a prompt-cache file allowed
 *     ' ' '!'   embeddings, rerank
 *     '4' '5'   Anthropic's messages, count_tokens
 *     '8' '9' ':'   tokenize, apply-template, detokenize
 *     'd' 'e'   ollama's chat, generate; 'f' 'g' llama-server's completion, infill
 *     'q' 't'   chat, messages of a model whose answers have a syntax, which the size picks
 *
 * An accepted request must be fit to submit: the sampler takes its options, ids are in the
 * vocabulary. A refusal must name a field of the API in question. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../support/byte_tokenizer.h"
#include "api/anthropic.h"
#include "api/api_fields.h"
#include "api/native.h"
#include "api/ollama.h"
#include "api/text_endpoints.h"
#include "fuzz.h"
#include "server/server.h"

static const char TEMPLATE[] =
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}{{ extra }}[a]";

static void open_tokenizer(kvasir_tokenizer **out) {
    char json[512], config[512], folder[512];
    kvasir_error err;
    snprintf(json, sizeof json, "%s", fuzz_path("tokenizer.json"));
    snprintf(config, sizeof config, "%s", fuzz_path("tokenizer_config.json"));
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(json, '/') - json), json);
    byte_tokenizer_write(json, config, TEMPLATE);
    if (kvasir_tokenizer_open(folder, out, &err))
        fuzz_fail("%s", err.text);
}

static void check_ids(const int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= BYTE_VOCAB)
            fuzz_fail("id %d", ids[i]);
}

static void check_request(const struct api_setup *setup, const struct api_request *r) {
    const kvasir_request *e = &r->engine;
    kvasir_error err;
    kvasir_sampler *sampler;
    if (e->n_tokens == 0 || e->n < 1 || e->n > setup->max_choices || e->top_logprobs > 20)
        fuzz_fail("%zu tokens, %u choices, %d logprobs", e->n_tokens, e->n, e->top_logprobs);
    check_ids(e->tokens, e->n_tokens);
    for (uint32_t i = 0; i < r->n_prompts; i++) {
        if (!r->prompts[i].n_tokens || api_choices(r) > API_PROMPTS_MAX)
            fuzz_fail("prompt %u of %u has no tokens", i, r->n_prompts);
        check_ids(r->prompts[i].tokens, r->prompts[i].n_tokens);
    }
    check_ids(e->stop_tokens, e->n_stop_tokens);
    for (size_t i = 0; i < e->n_stops; i++)
        if (!*e->stops[i])
            fuzz_fail("stop %zu is empty", i);
    const struct text_buf *grammar = &r->constraint.grammar;
    if (grammar->len && e->ignore_end)
        fuzz_fail("a text of a grammar that does not end");
    if ((r->answer.forced || r->answer.body) && strncmp(grammar->data, "root ::= ", 9) != 0)
        fuzz_fail("no grammar");
    if (!r->model || (r->prompt_cache && !setup->prompt_cache) || (r->stream && !setup->stream))
        fuzz_fail("what the setup does not allow");
    if (kvasir_sampler_create(&e->sampling, setup->vocab, &sampler, &err))
        fuzz_fail("%s", err.text);
    kvasir_sampler_destroy(sampler);
}

static void check_refusal(const struct api_error *err) {
    if ((err->status != HTTP_BAD_REQUEST && err->status != HTTP_SERVER_ERROR &&
         err->status != HTTP_NOT_FOUND) ||
        !err->text[0])
        fuzz_fail("status %d: %s", err->status, err->text);
    if (strchr(err->text, '\n') || strncmp(err->text, err->param, strlen(err->param)) != 0)
        fuzz_fail("\"%s\": \"%s\"", err->param, err->text);
    json_t *object = openai_error_object(err); /* also NULL if a text is not UTF-8 */
    if (!object)
        fuzz_fail("no object for \"%s\"", err->text);
    json_decref(object);
}

/* The error names one of Anthropic's fields, whatever the body is converted to. */
static void check_anthropic_refusal(const struct api_error *err) {
    const size_t n = strcspn(err->param, ".[");
    const char *known;
    check_refusal(err);
    if (n == 0 || anthropic_wants(err->param, n, &known) != API_SKIP ||
        api_field_find(err->param, n)) /* another server's */
        return;
    fuzz_fail("\"%s\" is no field of Anthropic's: %s", err->param, err->text);
}

static void read_openai(const struct api_setup *setup, char which, struct api_body *body) {
    struct api_request r;
    struct api_error err;
    bool good = openai_read(setup, which & 1 ? API_CHAT : API_COMPLETIONS, body, &r, &err);
    api_body_free(body);
    if (!good) {
        check_refusal(&err);
        return;
    }
    check_request(setup, &r);
    api_request_free(&r);
}

/* Embeddings, or documents to rank. */
static void read_embeddings(const struct api_setup *setup, char which, struct api_body *body) {
    const struct protocol *protocol = which & 1 ? &PROTOCOL_RERANK : &PROTOCOL_EMBEDDINGS;
    struct api_request r;
    struct api_error err;
    const bool good = protocol->read(setup, body, &r, &err);
    api_body_free(body);
    if (!good) {
        check_refusal(&err);
        return;
    }
    if (!r.n_prompts || r.embed.dimensions < 1 || r.embed.dimensions > setup->width)
        fuzz_fail("%u prompts, %u dimensions", r.n_prompts, r.embed.dimensions);
    for (uint32_t i = 0; i < r.n_prompts; i++)
        check_ids(r.prompts[i].tokens, r.prompts[i].n_tokens);
    api_request_free(&r);
}

static void read_anthropic(const struct api_setup *setup, char which, struct api_body *body) {
    struct api_request r;
    struct api_error err;
    struct text_buf counted = {0};
    bool counts = which & 1;
    bool good = counts ? anthropic_count(setup, body, &counted, &err)
                       : anthropic_read(setup, body, &r, &err);
    api_body_free(body);
    if (!good)
        check_anthropic_refusal(&err);
    else if (!counts) {
        check_request(setup, &r);
        api_request_free(&r);
    } else if (strncmp(counted.data, "{\"input_tokens\":", 16) != 0 || counted.data[16] == '0')
        fuzz_fail("%.*s", (int)counted.len, counted.data);
    text_free(&counted);
}

/* Which protocol of those that are read like another; NULL: none. */
static const struct protocol *llama_of(char which) {
    static const struct protocol *const ALL[] = {&PROTOCOL_OLLAMA_CHAT, &PROTOCOL_OLLAMA_GENERATE,
                                                 &PROTOCOL_NATIVE, &PROTOCOL_INFILL};
    return which & 64 && !(which & 16) ? ALL[which & 3] : NULL;
}

static void read_llama(const struct api_setup *setup, const struct protocol *p,
                       struct api_body *body) {
    struct api_request r;
    struct api_error err;
    const bool good = p->read(setup, body, &r, &err);
    api_body_free(body);
    if (!good)
        check_refusal(&err);
    else if (!r.idle)
        check_request(setup, &r);
    if (good)
        api_request_free(&r);
}

static void read_text_api(const struct api_setup *setup, char which, struct api_body *body) {
    struct api_error err;
    struct text_buf out = {0};
    const bool good = which & 2   ? text_endpoint_detokenize(setup, body, &out, &err)
                      : which & 1 ? text_endpoint_apply_template(setup, body, &out, &err)
                                  : text_endpoint_tokenize(setup, 4096, body, &out, &err);
    api_body_free(body);
    json_t *answer = good ? json_loadb(out.data, out.len, JSON_ALLOW_NUL, NULL) : NULL;
    if (!good)
        check_refusal(&err);
    else if (!answer)
        fuzz_fail("no JSON: %.*s", (int)out.len, out.data);
    else if ((size_t)json_integer_value(json_object_get(answer, "count")) !=
             json_array_size(json_object_get(answer, "tokens")))
        fuzz_fail("another number of tokens");
    json_decref(answer);
    text_free(&out);
}

static const struct answer_syntax SYNTAXES[] = {
    {ANSWER_HERMES, "<tool_call>", "</tool_call>", "<think>", "</think>"},
    {ANSWER_QWEN_CODER, "<tool_call>", "</tool_call>", "<think>", "</think>"},
    {ANSWER_LLAMA3, "<|python_tag|>", NULL, NULL, NULL},
    {ANSWER_MISTRAL, "[TOOL_CALLS]", NULL, "[THINK]", "[/THINK]"},
    {ANSWER_GEMMA4, "<|tool_call>", "<tool_call|>", "<|channel>thought", "<channel|>"},
    {ANSWER_PYTHONIC, "<|tool_call_start|>", "<|tool_call_end|>", NULL, NULL},
    {.tools = ANSWER_HARMONY},
};

/* For a chat that is rendered. */
enum { TIMES = 400, BYTES = 8 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static kvasir_tokenizer *tokenizer;
    if (!tokenizer)
        open_tokenizer(&tokenizer);
    if (size == 0)
        return 0;
    const struct api_setup setup = {
        .tokenizer = tokenizer,
        .model = "m",
        .vocab = BYTE_VOCAB,
        .max_choices = 8,
        .max_prompts = data[0] & 16 ? API_PROMPTS_MAX : 1,
        .width = 64,
        .pooling = KVASIR_POOLING_MEAN,
        .max_tokens = 16,
        .sampling = kvasir_sampling_defaults(),
        .syntax = data[0] & 64 ? &SYNTAXES[size % (sizeof SYNTAXES / sizeof *SYNTAXES)] : NULL,
        .stream = llama_of((char)data[0]) != NULL,
        .prompt_cache = data[0] & 2};
    const struct protocol *llama = llama_of((char)data[0]),
                          *embeds = data[0] & 1 ? &PROTOCOL_RERANK : &PROTOCOL_EMBEDDINGS;
    const bool embed = (data[0] & 0x70) == 0x20; /* ' ' to '/' */
    api_want_fn *wants = llama         ? llama->wants
                         : embed       ? embeds->wants
                         : data[0] & 8 ? text_endpoint_wants
                         : data[0] & 4 ? anthropic_wants
                         : data[0] & 1 ? openai_wants_chat
                                       : openai_wants_completion;
    struct api_body body;
    struct api_error err;
    budget_begin(BYTES + TIMES * size);
    if (!api_body_read((const char *)data + 1, size - 1, BYTE_VOCAB, wants, &body, &err))
        check_refusal(&err);
    else if (llama)
        read_llama(&setup, llama, &body);
    else if (embed)
        read_embeddings(&setup, (char)data[0], &body);
    else if (data[0] & 8)
        read_text_api(&setup, (char)data[0], &body);
    else if (data[0] & 4)
        read_anthropic(&setup, (char)data[0], &body);
    else
        read_openai(&setup, (char)data[0], &body);
    budget_end();
    return 0;
}
