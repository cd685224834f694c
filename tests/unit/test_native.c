/* SPDX-License-Identifier: Apache-2.0 */
/* llama-server's own bodies, /completion and /infill, with a vocabulary that has tokens for a gap;
 * answers whole and as events; /props and /slots. */
#include "api/fim.h"
#include "api/native.h"
#include "protocol_checks.h"

#include <string.h>

enum { PREFIX = 258, SUFFIX, MIDDLE, FILE_SEP, VOCAB };

/* ids as text, those of the gap as P S M F. */
static void prompt_of(const char *text, const char *wanted) {
    static const char NAMES[] = "<>PSMF"; /* from BYTE_BOS on */
    api_request_free(&r);
    if (!read_text_body(text))
        fail_msg("%s: %s", text, err.text);
    char got[256] = "";
    for (size_t i = 0; i < r.engine.n_tokens; i++) {
        const int32_t id = r.engine.tokens[i];
        got[i] = id < BYTE_BOS ? (char)id : NAMES[id - BYTE_BOS];
        got[i + 1] = 0;
    }
    assert_string_equal(got, wanted);
}

#define WITH(fields) "{\"prompt\":\"hi\"," fields "}"

/* ---- requests -------------------------------------------------------------------------------- */

static void test_prompts(void **state) {
    (void)state;
    protocol = &PROTOCOL_NATIVE;
    prompt_of("{\"prompt\":\"hi\"}", "<hi");
    assert_true(r.engine.shorten && r.engine.max_tokens == 77 && !r.stream);
    prompt_of("{\"prompt\":[\"hi\"]}", "<hi");
    prompt_of("{\"prompt\":[104,105]}", "hi");
    prompt_of("{\"prompt\":[\"a\",104,\"b</s>\",105]}", "<ahb>i");
    prompt_of("{\"prompt\":[104,\"b\"]}", "h<b");
    bad("{}", "prompt", "missing");
    bad("{\"prompt\":{}}", "prompt", "is an object");
    bad("{\"prompt\":[]}", "prompt", "contains no tokens");
    bad("{\"prompt\":[\"a\",\"b\"]}", "prompt", "2 prompts");
    bad("{\"prompt\":[[1],[2]]}", "prompt", "2 prompts");
    bad("{\"prompt\":[1,\"a\",262]}", "prompt[2]", "262 is not a token id (0 to 261)");
    bad("{\"prompt\":[1,-1]}", "prompt[1]", "-1 is not a token id");
    bad("{\"prompt\":[1,1.5]}", "prompt[1]", "is a number, not a string or a token id");
}

static void test_fields(void **state) {
    (void)state;
    protocol = &PROTOCOL_NATIVE;
    prompt_of(WITH("\"n_predict\":-1,\"temperature\":0.5,\"seed\":-1,\"repeat_penalty\":1.5,"
                   "\"logit_bias\":[[104,1.5],[105,false]],\"ignore_eos\":true,\"cache_prompt\":"
                   "false,\"id_slot\":3,\"grammar\":\"\",\"n_probs\":2,\"top_n_sigma\":-1,"
                   "\"t_max_predict_ms\":0,\"n\":1,\"lora\":[],\"stop\":[],\"priority\":-7"),
              "<hi");
    assert_int_equal(r.engine.priority, -7);
    const kvasir_sampling *s = &r.engine.sampling;
    assert_true(r.engine.max_tokens == 0 && s->temp == 0.5f && s->repetition_penalty == 1.5f);
    assert_int_equal(s->seed, setup.sampling.seed);
    assert_true(s->n_logit_bias == 2 && s->logit_bias[1].bias == -100 && r.engine.ignore_end);
    assert_int_equal(r.engine.top_logprobs, 2);
    assert_null(json_object_get(r.echo, "warnings"));
    prompt_of(WITH("\"json_schema\":{\"type\":\"integer\"},\"return_tokens\":true,\"n_indent\":2,"
                   "\"samplers\":[\"top_k\"]"),
              "<hi");
    assert_true(r.constraint.kind == CONSTRAINT_SCHEMA && r.engine.top_logprobs == 0);
    same_json(json_incref(json_object_get(r.echo, "warnings")),
              "[\"n_indent: is not supported and changes nothing\",\"samplers: is not supported "
              "and changes nothing\"]");
    prompt_of(WITH("\"n_predict\":0"), "<hi");
    assert_true(r.engine.no_answer);
    bad(WITH("\"repeat_penalty\":-1"), "repeat_penalty", "");
    bad(WITH("\"n_probs\":21"), "n_probs", "is not between 0 and 20");
    bad(WITH("\"n_probs\":\"x\""), "n_probs", "is a string");
    bad(WITH("\"n_cmpl\":2"), "n_cmpl", "is not between 1 and 1");
    bad(WITH("\"mirostat\":1"), "mirostat", "only 0, which turns it off, is");
    bad(WITH("\"logit_bias\":[[\"a\",1]]"), "logit_bias[0]", "names of tokens are not supported");
    bad(WITH("\"logit_bias\":{\"900\":1}"), "logit_bias[\"900\"]", "is not a token id");
    bad(WITH("\"post_sampling_probs\":true"), "post_sampling_probs", "before sampling");
    bad(WITH("\"image_data\":[{}]"), "image_data", "is not supported");
    bad(WITH("\"response_fields\":\"content\""), "response_fields", "is a string");
    bad(WITH("\"response_fields\":[1]"), "response_fields[0]", "is a number");
    bad(WITH("\"grammar\":3"), "grammar", "is a number");
}

static void test_gaps(void **state) {
    (void)state;
    protocol = &PROTOCOL_INFILL;
    prompt_of("{\"input_prefix\":\"a\",\"prompt\":\"b\",\"input_suffix\":\"c\"}", "<PabScM");
    assert_int_equal(r.engine.n_stop_tokens, 4);
    prompt_of("{\"input_suffix\":\"<fim_middle>\"}", "<PS<fim_middle>M"); /* text stays text */
    prompt_of("{\"input_prefix\":\"a\",\"input_extra\":[{\"filename\":\"f\",\"text\":\"x\"},"
              "{\"text\":\"y\"}]}",
              "<Ff\nxFtmp\nyFfilename\nPaSM");
    bad("{\"input_prefix\":1}", "input_prefix", "is a number");
    bad("{\"input_extra\":{}}", "input_extra", "is an object, not an array");
    bad("{\"input_extra\":[1]}", "input_extra[0]", "is a number");
    bad("{\"input_extra\":[{}]}", "input_extra[0].text", "missing");
    bad("{\"input_extra\":[{\"text\":\"x\",\"filename\":1}]}", "input_extra[0].filename",
        "is a number");
    protocol = &PROTOCOL_COMPLETIONS;
    prompt_of("{\"prompt\":\"a\",\"suffix\":\"b\",\"stop_token_ids\":[7]}", "<PaSbM");
    assert_int_equal(r.engine.n_stop_tokens, 5);
    setup.prompt_cache = true; /* it goes on where a file ends: nothing begins there */
    prompt_of("{\"prompt\":\"a\",\"suffix\":\"b\",\"prompt_cache\":\"f\"}", "PaSbM");
    setup.prompt_cache = false;
    prompt_of("{\"prompt\":\"a\",\"suffix\":\"\"}", "<a");
    bad("{\"prompt\":[1],\"suffix\":\"b\"}", "prompt", "must be a string");
    bad("{\"prompt\":\"a\",\"suffix\":3}", "suffix", "is a number");
}

/* ---- answers --------------------------------------------------------------------------------- */

static const struct api_times TIMES = {1000, 1000, 3000, 7000, 9000};
#define TIMINGS                                                                                    \
    "{\"cache_n\":5,\"prompt_n\":4,\"prompt_ms\":2.0,\"prompt_per_token_ms\":0.5,"                 \
    "\"prompt_per_second\":2000.0,\"predicted_n\":2,\"predicted_ms\":4.0,"                         \
    "\"predicted_per_token_ms\":2.0,\"predicted_per_second\":500.0}"

static kvasir_event event(kvasir_event_kind kind, const char *text) {
    static const kvasir_token_logprob TOP[] = {{'h', -0.5f}};
    return (kvasir_event){.kind = kind,
                          .text = text,
                          .len = strlen(text),
                          .token = 'h',
                          .logprob = -0.5f,
                          .top = TOP,
                          .n_top = kind == KVASIR_EVENT_TOKEN,
                          .prompt_tokens = 9,
                          .cached_tokens = 5,
                          .stop = kind == KVASIR_EVENT_DONE ? "x" : NULL,
                          .last = kind == KVASIR_EVENT_DONE};
}

static json_t *whole(const struct protocol_context *c) {
    static const kvasir_event_kind KINDS[] = {KVASIR_EVENT_TOKEN, KVASIR_EVENT_TOKEN,
                                              KVASIR_EVENT_DONE};
    struct api_answer a;
    assert_true(api_answer_init(&a, &r));
    for (int i = 0; i < 3; i++) {
        const kvasir_event e = event(KINDS[i], i == 1 ? "hh" : "");
        api_answer_event(&a, &e);
    }
    json_t *body = protocol->body(&a, c, &err);
    api_answer_free(&a);
    return body;
}

#define PROBABILITY                                                                                \
    "{\"id\":104,\"token\":\"h\",\"logprob\":-0.5,\"bytes\":[104],\"top_logprobs\":[{\"id\":104,"  \
    "\"token\":\"h\",\"logprob\":-0.5,\"bytes\":[104]}]}"

static void test_answers(void **state) {
    (void)state;
    protocol = &PROTOCOL_NATIVE;
    prompt_of(WITH("\"stop\":\"x\",\"n_probs\":1,\"return_tokens\":true,\"n_predict\":7,"
                   "\"temperature\":0.5,\"seed\":3"),
              "<hi");
    const struct protocol_context c = {.setup = &setup, .request = &r, .id = "i", .times = &TIMES};
    json_t *body = whole(&c), *settings = json_object_get(body, "generation_settings");
    same_json(json_incref(json_object_get(settings, "n_predict")), "7");
    same_json(json_incref(json_object_get(settings, "temperature")), "0.5");
    same_json(json_incref(json_object_get(settings, "stop")), "[\"x\"]");
    assert_int_equal(json_object_del(body, "generation_settings"), 0);
    same_json(body, "{\"content\":\"hh\",\"tokens\":[104,104],\"index\":0,\"id_slot\":-1,"
                    "\"stop\":true,\"model\":\"ours\",\"stop_type\":\"word\",\"stopping_word\":"
                    "\"x\",\"tokens_predicted\":2,\"tokens_evaluated\":9,\"tokens_cached\":11,"
                    "\"truncated\":false,\"timings\":" TIMINGS
                    ",\"completion_probabilities\":[" PROBABILITY "," PROBABILITY "]}");
    prompt_of(WITH("\"response_fields\":[\"content\",\"timings/prompt_n\",\"timings/x\",\"no\"]"),
              "<hi");
    same_json(whole(&c), "{\"content\":\"hh\",\"timings/prompt_n\":4}");
    api_refuse(&err, "prompt", "bad");
    same_json(protocol->error(&err),
              "{\"error\":{\"code\":400,\"message\":\"prompt: bad\",\"type\":"
              "\"invalid_request_error\",\"param\":\"prompt\"}}");
}

/* The data of one event, which is all of the text; empties it. */
static json_t *data_of(struct text_buf *out) {
    assert_true(text_append(out, "", 1));
    char *end = strstr(out->data, "\n\n");
    assert_true(strncmp(out->data, "data: ", 6) == 0 && end && !end[2]);
    *end = 0;
    out->len = 0;
    return json_of(out->data + 6);
}

static void test_streams(void **state) {
    (void)state;
    protocol = &PROTOCOL_NATIVE;
    prompt_of(WITH("\"stream\":true,\"stop\":\"x\""), "<hi");
    const struct protocol_context c = {.setup = &setup, .request = &r, .id = "i", .times = &TIMES};
    struct text_buf out = {0};
    void *stream = protocol->open(&c);
    kvasir_event e = event(KVASIR_EVENT_START, "");
    assert_true(protocol->event(stream, &e, &out) && out.len == 0);
    e = event(KVASIR_EVENT_TOKEN, "hh");
    assert_true(protocol->event(stream, &e, &out));
    same_json(data_of(&out), "{\"content\":\"hh\",\"tokens\":[104],\"index\":0,\"id_slot\":-1,"
                             "\"stop\":false,\"tokens_predicted\":1,\"tokens_evaluated\":9}");
    e = event(KVASIR_EVENT_DONE, "");
    assert_true(protocol->event(stream, &e, &out));
    json_t *last = data_of(&out);
    same_json(json_incref(json_object_get(last, "stop_type")), "\"word\"");
    same_json(json_incref(json_object_get(last, "tokens")), "[]");
    same_json(json_incref(json_object_get(last, "tokens_predicted")), "1");
    json_decref(last);
    assert_true(protocol->silence(1, 2, &out) && memcmp(out.data, ": keepalive 1/2", 15) == 0);
    out.len = 0;
    api_refuse(&err, NULL, "lost");
    assert_true(protocol->failed(&err, &out));
    json_decref(data_of(&out));
    protocol->close(stream);
    text_free(&out);
}

static void test_server(void **state) {
    (void)state;
    setup.ctx = 1000;
    setup.max_choices = 2;
    const struct api_model m = {.setup = &setup};
    const struct native_slot busy = {
        .task = 5, .prompt_tokens = 9, .prompt_done = 9, .completion_tokens = 3};
    same_json(native_slots(&m, &busy, 1),
              "[{\"id\":0,\"id_task\":5,\"n_ctx\":1000,\"speculative\":false,\"is_processing\":"
              "true,\"next_token\":[{\"has_next_token\":true,\"n_decoded\":3}],"
              "\"n_prompt_tokens\":9,\"n_prompt_tokens_processed\":9},{\"id\":1,\"id_task\":-1,"
              "\"n_ctx\":1000,\"speculative\":false,\"is_processing\":false}]");
    json_t *props = native_props(&m);
    same_json(json_incref(json_object_get(props, "total_slots")), "2");
    same_json(json_incref(json_object_get(props, "n_ctx")), "1000");
    same_json(json_incref(json_object_get(props, "chat_template")), "\"x\"");
    json_t *params =
        json_object_get(json_object_get(props, "default_generation_settings"), "params");
    same_json(json_incref(json_object_get(params, "n_predict")), "77");
    json_decref(props);
    setup.ctx = 0;
}

/* ---- the vocabulary -------------------------------------------------------------------------- */

/* The byte tokenizer with StarCoder's tokens. */
static int set_up(void **state) {
    static const char LAST[] = "{\"id\":257,\"content\":\"</s>\",\"special\":true}";
    static const char MORE[] = ",{\"id\":258,\"content\":\"<fim_prefix>\",\"special\":true},"
                               "{\"id\":259,\"content\":\"<fim_suffix>\",\"special\":true},"
                               "{\"id\":260,\"content\":\"<fim_middle>\",\"special\":true},"
                               "{\"id\":261,\"content\":\"<file_sep>\",\"special\":true}";
    static char text[1 << 16];
    struct fim fim;
    kvasir_error why;
    (void)state;
    (void)api_set_up("x");
    assert_false(fim_find(tokenizer, &fim));
    const char *path = temp_file(&folder, "tokenizer.json");
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    const size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    const char *at = strstr(text, LAST);
    assert_true(n < sizeof text - 1 && at);
    at += strlen(LAST);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_true(fprintf(f, "%.*s%s%s", (int)(at - text), text, MORE, at) > 0);
    assert_int_equal(fclose(f), 0);
    kvasir_tokenizer_close(tokenizer);
    if (kvasir_tokenizer_open(folder.path, &tokenizer, &why))
        fail_msg("%s", why.text);
    api_defaults();
    setup.vocab = VOCAB;
    assert_true(fim_find(tokenizer, &fim) && fim.ids[FIM_PREFIX] == PREFIX);
    assert_true(fim.ids[FIM_MIDDLE] == MIDDLE && fim.ids[FIM_SUFFIX] == SUFFIX);
    assert_true(fim.ids[FIM_FILE] == FILE_SEP && fim.ids[FIM_REPO] == -1);
    return 0;
}

static int tear_down(void **state) {
    api_request_free(&r);
    return api_tear_down(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts), cmocka_unit_test(test_fields),
        cmocka_unit_test(test_gaps),    cmocka_unit_test(test_answers),
        cmocka_unit_test(test_streams), cmocka_unit_test(test_server),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
