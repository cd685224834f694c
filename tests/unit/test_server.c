/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong bodies over HTTP: each gets a 4xx that names the field, and the server answers the next
 * request. Odd but valid bodies are answered. After every test no request is open. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "http_client.h"
#include "tiny_server.h"

enum { CTX = 512, VOCAB = 512 };
static struct tiny_server tiny;

static const char COMPLETIONS[] = "/v1/completions", CHAT[] = "/v1/chat/completions",
                  MESSAGES[] = "/v1/messages";

/* ---- asking ---------------------------------------------------------------------------------- */

static struct client_answer ask(const char *path, const char *body) {
    struct client c;
    assert_true(client_open(&c, tiny.port, -1));
    assert_true(client_request(&c, "POST", path, "Connection: close\r\n", body));
    struct client_answer a = client_read(&c);
    client_close(&c);
    return a;
}

static void answered(const char *path, const char *body) {
    struct client_answer a = ask(path, body);
    if (a.status != 200 || a.cut)
        fail_msg("%s %.300s\nstatus %d: %.300s", path, body, a.status, a.body ? a.body : "");
    free(a.body);
}

/* param: the path of the field; NULL: the error must not name one. */
static void refused(const char *path, const char *body, const char *param) {
    struct client_answer a = ask(path, body);
    json_t *said = a.body ? json_loads(a.body, 0, NULL) : NULL;
    const json_t *error = json_object_get(said, "error");
    const char *text = json_string_value(json_object_get(error, "message")),
               *named = json_string_value(json_object_get(error, "param"));
    bool good = a.status == 400 && text && !a.cut;
    good = good && !strstr(text, "--"); /* clients do not know the program's flags */
    /* Anthropic's errors have no param: their text begins with the path */
    if (good && param)
        good = strncmp(text, param, strlen(param)) == 0 && text[strlen(param)] == ':' &&
               (strcmp(path, MESSAGES) == 0 || (named && strcmp(named, param) == 0));
    else if (good)
        good = !named;
    if (!good)
        fail_msg("%s %.300s\nstatus %d, not 400 by %s: %.300s", path, body, a.status,
                 param ? param : "nobody", a.body ? a.body : "");
    json_decref(said);
    free(a.body);
}

/* `before`, n times `unit`, `after`; the caller frees it */
static char *repeated(const char *before, const char *unit, size_t n, const char *after) {
    const size_t len = strlen(unit);
    char *text = malloc(strlen(before) + n * len + strlen(after) + 1), *at = text;
    at += sprintf(at, "%s", before);
    for (size_t i = 0; i < n; i++, at += len)
        memcpy(at, unit, len);
    strcpy(at, after);
    return text;
}

static int make(void **state) {
    (void)state;
    tiny_server_init(&tiny);
    tiny_server_open(&tiny);
    return 0;
}

static int end(void **state) {
    (void)state;
    tiny_server_close(&tiny);
    return 0;
}

static int is_idle(void **state) {
    kvasir_engine_stats stats;
    (void)state;
    answered(COMPLETIONS, "{\"prompt\":\"x\",\"max_tokens\":1}");
    return tiny_server_idle(&tiny, 1000, &stats) ? 0 : -1;
}

/* ---- bodies that are not JSON ---------------------------------------------------------------- */

static void test_bodies(void **state) {
    static const char *const BODIES[] = {
        "",
        " ",
        "{",
        "[]",
        "5",
        "null",
        "\"text\"",
        "{}x",
        "{\"prompt\":\"x\"",
        "{\"prompt\":\"x",
        "{\"prompt\":\"x\",\"prompt\":\"y\"}",
        "{\"prompt\":\"\\ud800\"}",
        "{\"prompt\":\"\\udc00\\ud800\"}",
        "{\"prompt\":\"\\ud800x\"}",
        "{\"prompt\":\"\xff\"}",
        "{\"prompt\":\"\xc0\x80\"}",
        "{\"prompt\":\"\xed\xa0\x80\"}",
        "{\"prompt\":\"a\nb\"}",
        "{\"prompt\":\"x\",\"seed\":9223372036854775808}",
        "{\"prompt\":\"x\",\"temperature\":1e400}",
        "{\"prompt\":\"x\",\"temperature\":NaN}",
        "{\"prompt\":\"x\",\"temperature\":Infinity}",
        "{\"prompt\":\"x\",\"temperature\":.5}",
        "{\"prompt\":\"x\",\"temperature\":01}",
        "{'prompt':'x'}",
        "{\"prompt\":\"x\",}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof BODIES / sizeof *BODIES; i++) {
        refused(COMPLETIONS, BODIES[i], NULL);
        refused("/tokenize", BODIES[i], NULL);
        struct client_answer a = ask(MESSAGES, BODIES[i]);
        assert_int_equal(a.status, 400);
        free(a.body);
    }
    char *deep = repeated("{\"x\":", "[", 100000, "");
    refused(CHAT, deep, NULL);
    free(deep);
    deep = repeated("", "{\"a\":", 100000, "1");
    refused(CHAT, deep, NULL);
    free(deep);
    /* a tree of 80 times the size of the text is refused before it is built */
    deep = repeated("{\"messages\":[],\"documents\":[{}", ",{}", 1 << 20, "]}");
    refused(CHAT, deep, NULL);
    free(deep);
    /* unknown values are passed over, whatever they are */
    deep = repeated("{\"prompt\":\"x\",\"max_tokens\":1,\"other\":[{}", ",{}", 1 << 20, "]}");
    answered(COMPLETIONS, deep);
    free(deep);
}

/* Errors do not quote the prompt. */
static void test_errors_quote_nothing(void **state) {
    static const char *const BODIES[] = {
        "{\"prompt\":\"SECRET\xff\"}",
        "{\"prompt\":\"SECRET\" SECRET}",
        "{\"prompt\":\"SECRET",
        "{\"prompt\":[\"SECRET\",[\"SECRET\"]]}",
        "{\"prompt\":{\"SECRET\":1}}",
        "{\"prompt\":\"SECRET\",\"SECRET\":1,\"SECRET\":2}",
        "{\"prompt\":\"SECRET\",\"max_tokens\":99999999}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof BODIES / sizeof *BODIES; i++) {
        struct client_answer a = ask(COMPLETIONS, BODIES[i]);
        assert_int_equal(a.status, 400);
        if (strstr(a.body, "SECRET"))
            fail_msg("%s: %s", BODIES[i], a.body);
        free(a.body);
    }
}

/* ---- fields ---------------------------------------------------------------------------------- */

static const struct {
    const char *fields, *param; /* param NULL: the fields are valid */
} FIELDS[] = {
    {"\"n\":0", "n"},
    {"\"n\":-1", "n"},
    {"\"n\":33", "n"},
    {"\"n\":1.5", "n"},
    {"\"n\":\"2\"", "n"},
    {"\"n\":9223372036854775807", "n"},
    {"\"n\":2,\"best_of\":2", "best_of"},
    {"\"best_of\":-1", "best_of"},
    {"\"best_of\":1", NULL},
    {"\"n\":32", NULL},
    {"\"n\":null", NULL},
    {"\"max_completion_tokens\":0", "max_completion_tokens"},
    {"\"max_completion_tokens\":-1", "max_completion_tokens"},
    {"\"max_completion_tokens\":4294967296", "max_completion_tokens"},
    {"\"max_completion_tokens\":1e308", "max_completion_tokens"},
    {"\"max_completion_tokens\":true", "max_completion_tokens"},
    {"\"max_completion_tokens\":[]", "max_completion_tokens"},
    {"\"temperature\":-0.1", "temperature"},
    {"\"temperature\":1e308", "temperature"},
    {"\"temperature\":\"1\"", "temperature"},
    {"\"temperature\":true", "temperature"},
    {"\"temperature\":-0", NULL},
    {"\"temperature\":-0.0", NULL},
    {"\"temperature\":1e-320", NULL},
    {"\"temperature\":1e-38", NULL},
    {"\"temperature\":1000", NULL},
    {"\"top_p\":0", "top_p"},
    {"\"top_p\":-1", "top_p"},
    {"\"top_p\":1.1", "top_p"},
    {"\"temperature\":1,\"top_p\":1e-300", "top_p"},
    {"\"temperature\":1,\"top_p\":1e-30", NULL},
    {"\"min_p\":2", "min_p"},
    {"\"temperature\":1,\"min_p\":1", NULL},
    {"\"top_k\":-2", "top_k"},
    {"\"top_k\":513", "top_k"},
    {"\"top_k\":1.0", "top_k"},
    {"\"top_k\":512", NULL},
    {"\"seed\":1.5", "seed"},
    {"\"seed\":true", "seed"},
    {"\"seed\":-9223372036854775808", NULL},
    {"\"seed\":9223372036854775807,\"n\":3,\"temperature\":1", NULL},
    {"\"presence_penalty\":3", "presence_penalty"},
    {"\"frequency_penalty\":-2.1", "frequency_penalty"},
    {"\"repetition_penalty\":-1", "repetition_penalty"},
    {"\"repetition_penalty\":2,\"repetition_context_size\":0", "repetition_context_size"},
    {"\"presence_penalty\":1,\"presence_context_size\":1048576,\"n\":32", NULL},
    {"\"stop\":5", "stop"},
    {"\"stop\":\"\"", "stop"},
    {"\"stop\":[\"a\",\"\"]", "stop[1]"},
    {"\"stop\":[\"a\",1]", "stop[1]"},
    {"\"stop\":{\"a\":1}", "stop"},
    {"\"stop\":\"a\\u0000b\"", "stop"},
    {"\"stop\":[]", NULL},
    {"\"stop_token_ids\":[-1]", "stop_token_ids[0]"},
    {"\"stop_token_ids\":[1,512]", "stop_token_ids[1]"},
    {"\"stop_token_ids\":1", "stop_token_ids"},
    {"\"logit_bias\":[]", "logit_bias"},
    {"\"logit_bias\":{\"512\":1}", "logit_bias[\"512\"]"},
    {"\"logit_bias\":{\"-1\":1}", "logit_bias[\"-1\"]"},
    {"\"logit_bias\":{\"\":1}", "logit_bias[\"\"]"},
    {"\"logit_bias\":{\"1x\":1}", "logit_bias[\"1x\"]"},
    {"\"logit_bias\":{\"99999999999999999999\":1}", "logit_bias[\"99999999999999999999\"]"},
    {"\"logit_bias\":{\"1\":101}", "logit_bias[\"1\"]"},
    {"\"logit_bias\":{\"1\":\"x\"}", "logit_bias[\"1\"]"},
    {"\"logit_bias\":{\"1\":100,\"2\":-100}", NULL},
    {"\"ignore_eos\":1", "ignore_eos"},
    {"\"stream\":\"yes\"", "stream"},
    {"\"stream_options\":[]", "stream_options"},
    {"\"stream_options\":{\"include_usage\":1}", "stream_options.include_usage"},
    {"\"model\":5", "model"},
    {"\"model\":\"a\\u0000b\"", "model"},
    {"\"cache_salt\":5", "cache_salt"},
    {"\"cache_salt\":\"a\\u0000b\"", "cache_salt"},
    {"\"cache_salt\":\"\"", NULL},
    {"\"cache_salt\":\"a\\nb\"", NULL},
    {"\"priority\":99999999999", "priority"},
    {"\"priority\":\"high\"", "priority"},
    {"\"priority\":1.5", "priority"},
    {"\"response_format\":\"json\"", "response_format"},
    {"\"response_format\":{}", "response_format.type"},
    {"\"response_format\":{\"type\":\"grammar\"}", "response_format.type"},
    {"\"response_format\":{\"type\":\"json_schema\"}", "response_format.json_schema"},
    {"\"guided_json\":{},\"grammar\":\"root ::= [a]\"", "grammar"},
    {"\"grammar\":\"root ::= a\"", "grammar"},
    {"\"response_format\":{\"type\":\"json_object\"},\"ignore_eos\":true", "ignore_eos"},
    {"\"prompt_cache\":\"/etc/passwd\"", "prompt_cache"},
    {"\"guided_regex\":\"(a*b\"", "guided_regex"},
    {"\"echo\":5", "echo"},
    {"\"min_tokens\":-1", "min_tokens"},
    {"\"priority\":-5,\"n_keep\":-1,\"n_discard\":-5,\"user\":{}", NULL},
};

static void test_fields(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        char body[400];
        for (int chat = 0; chat < 2; chat++) {
            snprintf(body, sizeof body, "{%s,\"max_tokens\":2,%s}",
                     chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
                          : "\"prompt\":\"hi\"",
                     FIELDS[i].fields);
            if (FIELDS[i].param)
                refused(chat ? CHAT : COMPLETIONS, body, FIELDS[i].param);
            else
                answered(chat ? CHAT : COMPLETIONS, body);
        }
    }
}

static void test_logprobs(void **state) {
    (void)state;
    refused(COMPLETIONS, "{\"prompt\":\"x\",\"logprobs\":21}", "logprobs");
    refused(COMPLETIONS, "{\"prompt\":\"x\",\"logprobs\":-1}", "logprobs");
    refused(COMPLETIONS, "{\"prompt\":\"x\",\"logprobs\":true}", "logprobs");
    answered(COMPLETIONS, "{\"prompt\":\"x\",\"logprobs\":20,\"max_tokens\":3,\"n\":3}");
#define ONE "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":2,"
    refused(CHAT, ONE "\"top_logprobs\":5}", "top_logprobs");
    refused(CHAT, ONE "\"logprobs\":5}", "logprobs");
    refused(CHAT, ONE "\"logprobs\":true,\"top_logprobs\":21}", "top_logprobs");
    refused(CHAT, ONE "\"logprobs\":true,\"top_logprobs\":-1}", "top_logprobs");
    answered(CHAT, ONE "\"logprobs\":true,\"top_logprobs\":20,\"stream\":true}");
}

/* Large values of fields that may be long. */
static void test_large_fields(void **state) {
    (void)state;
    char *body = repeated("{\"prompt\":\"x\",\"stop\":[\"a\"", ",\"b\"", 32, "]}");
    refused(COMPLETIONS, body, "stop");
    free(body);
    body = repeated("{\"prompt\":\"x\",\"max_tokens\":4,\"stop\":\"a", "b", 1 << 20, "\"}");
    struct client_answer a = ask(COMPLETIONS, body);
    assert_true(a.status == 200 || (a.status == 400 && strstr(a.body, "stop")));
    free(a.body);
    free(body);
    body = repeated("{\"prompt\":\"x\",\"cache_salt\":\"", "s", 1 << 20, "\"}");
    refused(COMPLETIONS, body, "cache_salt");
    free(body);
    body = repeated("{\"prompt\":\"x\",\"model\":\"", "m", 1 << 20, "\",\"max_tokens\":1}");
    refused(COMPLETIONS, body, "model");
    free(body);
    body = repeated("{\"prompt\":\"x\",\"stop_token_ids\":[1", ",2", 500000, "],\"max_tokens\":2}");
    a = ask(COMPLETIONS, body);
    assert_true(a.status == 200 || a.status == 400);
    free(a.body);
    free(body);
    char bias[16 * VOCAB], *at = bias;
    for (int i = 0; i < VOCAB; i++)
        at += sprintf(at, "%s\"%d\":1", i ? "," : "", i);
    body = repeated("{\"prompt\":\"x\",\"max_tokens\":2,\"logit_bias\":{", bias, 1, "}}");
    answered(COMPLETIONS, body);
    free(body);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static void ids_of(size_t n, uint32_t max_tokens, char **body) {
    char rest[64];
    snprintf(rest, sizeof rest, "],\"max_tokens\":%u,\"ignore_eos\":true}", max_tokens);
    *body = repeated("{\"prompt\":[65", ",66", n - 1, rest);
}

static void test_prompts(void **state) {
    static const struct {
        const char *prompt, *param;
    } PROMPTS[] = {
        {"\"\"", NULL}, /* only BOS */
        {"\"<s>\"", NULL},
        {"\"</s>\"", NULL},
        {"\"a\\u0000b\"", NULL},
        {"[0]", NULL},
        {"[256]", NULL},
        {"[\"a\"]", NULL},
        {"[[1,2]]", NULL},
        {"[]", "prompt"},
        {"null", "prompt"},
        {"5", "prompt"},
        {"true", "prompt"},
        {"{}", "prompt"},
        {"[-1]", "prompt[0]"},
        {"[1,512]", "prompt[1]"},
        {"[1,9223372036854775807]", "prompt[1]"},
        {"[1.0]", "prompt[0]"},
        {"[1,\"a\"]", "prompt[1]"},
        {"[true]", "prompt[0]"},
        {"[\"a\",5]", "prompt[1]"},
        {"[[1],[]]", "prompt[1]"},
        {"[[]]", "prompt[0]"},
        {"[[[1]]]", "prompt[0][0]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof PROMPTS / sizeof *PROMPTS; i++) {
        char body[200];
        snprintf(body, sizeof body, "{\"prompt\":%s,\"max_tokens\":2}", PROMPTS[i].prompt);
        if (PROMPTS[i].param)
            refused(COMPLETIONS, body, PROMPTS[i].param);
        else
            answered(COMPLETIONS, body);
    }
    refused(COMPLETIONS, "{\"max_tokens\":2}", "prompt");
    static const struct {
        size_t n;
        uint32_t max_tokens;
        bool fits;
    } LENGTHS[] = {{CTX - 1, 1, true},      {CTX - 2, 2, true},  {CTX - 1, 2, false},
                   {CTX, 1, false},         {CTX + 1, 1, false}, {10 * CTX, 1, false},
                   {1, 4294967295u, false}, {1, CTX - 1, true},  {1 << 20, 1, false}};
    for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++) {
        char *body;
        ids_of(LENGTHS[i].n, LENGTHS[i].max_tokens, &body);
        if (LENGTHS[i].fits) {
            answered(COMPLETIONS, body);
        } else {
            struct client_answer a = ask(COMPLETIONS, body);
            assert_int_equal(a.status, 400);
            assert_non_null(strstr(a.body, "context_length_exceeded"));
            free(a.body);
        }
        free(body);
    }
}

static void test_messages(void **state) {
    static const struct {
        const char *fields, *param;
    } CASES[] = {
        {"\"messages\":[]", "messages"},
        {"\"messages\":{}", "messages"},
        {"\"messages\":null", "messages"},
        {"\"messages\":[5]", "messages[0]"},
        {"\"messages\":[null]", "messages[0]"},
        {"\"messages\":[{}]", "messages[0].role"},
        {"\"messages\":[{\"role\":5}]", "messages[0].role"},
        {"\"messages\":[{\"role\":\"robot\",\"content\":\"x\"}]", "messages[0].role"},
        {"\"messages\":[{\"role\":\"USER\",\"content\":\"x\"}]", "messages[0].role"},
        {"\"messages\":[{\"role\":\"user\"}]", "messages[0].content"},
        {"\"messages\":[{\"role\":\"user\",\"content\":5}]", "messages[0].content"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[5]}]", "messages[0].content[0]"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]",
         "messages[0].content[0].text"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{"
         "\"url\":\"http://169.254.169.254/x\"}}]}]",
         "messages[0].content[0].type"},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{"
         "\"url\":\"file:///etc/passwd\"}}]}]",
         "messages[0].content[0].type"},
        {"\"messages\":[{\"role\":\"tool\",\"content\":\"x\",\"tool_call_id\":5}]",
         "messages[0].tool_call_id"},
        {"\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}]", NULL},
        {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":5}]", "messages[0].tool_calls"},
        {"\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]", NULL},
#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
        {HI "\"tools\":5", "tools"},
        {HI "\"tools\":[5]", "tools[0]"},
        {HI "\"tools\":[{\"type\":\"x\"}]", "tools[0].type"},
        {HI "\"tools\":[{\"type\":\"function\"}]", "tools[0].function"},
        {HI "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":5}}]",
         "tools[0].function.name"},
        {HI "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
            "\"$ref\":\"#\",\"type\":7,\"pattern\":\"(a*)*$\"}}}]",
         NULL},
        {HI "\"tool_choice\":\"required\"", "tool_choice"},
        {HI "\"tool_choice\":{\"type\":\"function\"}", "tool_choice.function"},
        {HI "\"chat_template_kwargs\":5", "chat_template_kwargs"},
        {HI "\"chat_template_kwargs\":{\"messages\":[]}", "chat_template_kwargs.messages"},
        {HI "\"chat_template_kwargs\":{\"tokenize\":true,\"\":1,\"x y\":[{}]}", NULL},
        {HI "\"chat_template\":\"{{ 1 }}\"", "chat_template"},
        {HI "\"add_generation_prompt\":false", "add_generation_prompt"},
        {HI "\"documents\":5", "documents"},
        {HI "\"reasoning_effort\":5", "reasoning_effort"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char body[600];
        snprintf(body, sizeof body, "{%s,\"max_tokens\":2}", CASES[i].fields);
        if (CASES[i].param)
            refused(CHAT, body, CASES[i].param);
        else
            answered(CHAT, body);
    }
    char *body = repeated("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}",
                          ",{\"role\":\"user\",\"content\":\"x\"}", 100000, "]}");
    struct client_answer a = ask(CHAT, body);
    assert_int_equal(a.status, 400);
    assert_non_null(strstr(a.body, "context_length_exceeded"));
    free(a.body);
    free(body);
    body = repeated("{" HI "\"max_tokens\":2,\"tools\":[{\"type\":\"function\",\"function\":{"
                    "\"name\":\"f\",\"parameters\":{\"enum\":[1",
                    ",2", 10000, "]}}}]}");
    answered(CHAT, body);
    free(body);
    body = repeated("{" HI "\"max_tokens\":2,\"tools\":[{\"type\":\"function\",\"function\":{"
                    "\"name\":\"f\",\"parameters\":",
                    "{\"items\":", 900, "1");
    char *closed = repeated(body, "}", 900, "}}]}");
    answered(CHAT, closed);
    free(closed);
    free(body);
    /* deeper than templates allow: the error names the place in the template, not the file */
    body = repeated("{" HI "\"chat_template_kwargs\":{\"x\":", "[", 1500, "");
    closed = repeated(body, "]", 1500, "}}");
    refused(CHAT, closed, "messages");
    a = ask(CHAT, closed);
    assert_null(strstr(a.body, tiny.folder.path));
    free(a.body);
    free(closed);
    free(body);
}

/* ollama's and llama-server's: the whole way, also of a request that the engine does not see. */
static void test_llamas(void **state) {
    static const struct {
        const char *path, *body;
        int status;
        const char *holds;
    } CASES[] = {
        {"/api/chat", "{\"model\":\"tiny\"}", 200, "\"done_reason\":\"load\"}"},
        {"/api/generate", "{\"model\":\"tiny:latest\",\"prompt\":\"\",\"keep_alive\":0}", 200,
         "\"done_reason\":\"load\"}"},
        {"/api/generate",
         "{\"model\":\"tiny\",\"prompt\":\"a\",\"raw\":true,\"options\":{\"num_predict\":2}}", 200,
         "\"done\":true"},
        {"/api/chat",
         "{\"model\":\"tiny\"," HI "\"stream\":false,\"options\":{\"num_predict\":99999}}", 200,
         "\"eval_count\""}, /* as many as there is room for */
        {"/api/chat", "{\"model\":\"huge\"," HI "\"stream\":false}", 404,
         "{\"error\":\"model 'huge' not found"},
        {"/api/pull", "{\"model\":\"tiny\"}", 404, "{\"error\":\"not found: POST /api/pull\"}"},
        {"/api/show", "{\"name\":\"tiny\"}", 200, "\"capabilities\":[\"completion\""},
        {"/completion", "{\"prompt\":[\"a\",98],\"n_predict\":2,\"stream\":true}", 200,
         "\"stop\":true"},
        {"/completion", "{\"prompt\":\"a\",\"n_predict\":2,\"response_fields\":[\"stop\"]}", 200,
         "{\"stop\":true}"},
        {"/infill", "{\"input_prefix\":\"a\"}", 400, "input_prefix: this model cannot fill"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct client_answer a = ask(CASES[i].path, CASES[i].body);
        if (a.status != CASES[i].status || a.cut || !a.body || !strstr(a.body, CASES[i].holds))
            fail_msg("%s %s\nstatus %d: %.300s", CASES[i].path, CASES[i].body, a.status,
                     a.body ? a.body : "");
        free(a.body);
    }
}

static void test_anthropic(void **state) {
    static const struct {
        const char *fields, *param;
    } CASES[] = {
        {"\"max_tokens\":0", "max_tokens"},
        {"\"max_tokens\":-1", "max_tokens"},
        {"\"max_tokens\":\"5\"", "max_tokens"},
        {"\"max_tokens\":2,\"temperature\":1.5", "temperature"},
        {"\"max_tokens\":2,\"stop_sequences\":\"x\"", "stop_sequences"},
        {"\"max_tokens\":2,\"stop_sequences\":[1]", "stop_sequences[0]"},
        {"\"max_tokens\":2,\"top_k\":-5", "top_k"},
        {"\"max_tokens\":2,\"tools\":5", "tools"},
        {"\"max_tokens\":2", NULL},
        {"\"max_tokens\":2,\"stream\":true", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char body[300];
        snprintf(body, sizeof body, "{" HI "%s}", CASES[i].fields);
        if (CASES[i].param)
            refused(MESSAGES, body, CASES[i].param);
        else
            answered(MESSAGES, body);
    }
    refused(MESSAGES, "{" HI "\"x\":1}", "max_tokens");
    refused(MESSAGES, "{\"max_tokens\":1,\"messages\":[]}", "messages");
    refused(MESSAGES, "{\"max_tokens\":1,\"messages\":[{\"role\":\"robot\",\"content\":\"x\"}]}",
            "messages[0].role");
}

static void test_texts(void **state) {
    (void)state;
    refused("/detokenize", "{\"tokens\":[-1]}", "tokens[0]");
    refused("/detokenize", "{\"tokens\":[512]}", "tokens[0]");
    refused("/detokenize", "{\"tokens\":5}", "tokens");
    refused("/detokenize", "{}", "tokens");
    answered("/detokenize", "{\"tokens\":[]}");
    answered("/detokenize", "{\"tokens\":[255,192,128,511,257]}");
    refused("/tokenize", "{}", "prompt");
    refused("/tokenize", "{\"prompt\":5}", "prompt");
    refused("/tokenize", "{\"messages\":5}", "messages");
    refused("/tokenize", "{\"prompt\":\"x\",\"add_special_tokens\":5}", "add_special_tokens");
    answered("/tokenize", "{\"prompt\":\"\",\"return_token_strs\":true}");
    answered("/tokenize", "{\"content\":\"\xc3\xa9\\u0000\",\"return_token_strs\":true}");
    refused("/apply-template", "{}", "messages");
    refused("/apply-template", "{\"messages\":[{}]}", "messages[0].role");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_bodies, is_idle),
        cmocka_unit_test_teardown(test_errors_quote_nothing, is_idle),
        cmocka_unit_test_teardown(test_fields, is_idle),
        cmocka_unit_test_teardown(test_logprobs, is_idle),
        cmocka_unit_test_teardown(test_large_fields, is_idle),
        cmocka_unit_test_teardown(test_prompts, is_idle),
        cmocka_unit_test_teardown(test_messages, is_idle),
        cmocka_unit_test_teardown(test_anthropic, is_idle),
        cmocka_unit_test_teardown(test_llamas, is_idle),
        cmocka_unit_test_teardown(test_texts, is_idle),
    };
    return cmocka_run_group_tests(tests, make, end);
}
