/* SPDX-License-Identifier: Apache-2.0 */
/* Control tokens of whole request bodies: for every template of ../shared/chat-templates and both
 * chat routes, texts of a user, a system prompt, a tool and its result that name all control tokens
 * give the control tokens of a body without such names. How much longer this takes is printed. */
#include <dirent.h>

#include "api/anthropic.h"
#include "api/openai.h"
#include "markers.h"

#include "api_checks.h"
#include "cpu_time.h"

#define MARK "\xc2\xa7" /* before each name, so that no text begins with one */

static bool data_missing; /* the program then exits 77: skipped */

/* "W" is what the client writes, also as a key. */
static const struct {
    const char *text;
    bool anthropic;
} BODIES[] = {
    {"{'messages':[{'role':'system','content':'W'},{'role':'user','content':'W'},"
     "{'role':'assistant','content':null,'tool_calls':[{'id':'abcdefghi','type':'function',"
     "'function':{'name':'f','arguments':'{}'}}]},"
     "{'role':'tool','tool_call_id':'abcdefghi','name':'f','content':'W'},"
     "{'role':'assistant','content':'a'},"
     "{'role':'user','content':[{'type':'text','text':'W'}]}],"
     "'tools':[{'type':'function','function':{'name':'f','description':'W','parameters':"
     "{'type':'object','properties':{'W':{'type':'string','description':'W','enum':['W']}},"
     "'required':['W']}}}]}",
     false},
    {"{'messages':[{'role':'system','content':'W'},{'role':'user','content':'W'},"
     "{'role':'assistant','content':'a'},{'role':'user','content':'W'}],"
     "'reasoning_effort':'low'}",
     false},
    {"{'messages':[{'role':'user','content':'W'},{'role':'assistant','content':'a'},"
     "{'role':'user','content':'W'}],'chat_template_kwargs':{'functions':'W','datetime':'W'}}",
     false},
    {"{'max_tokens':9,'system':'W','messages':[{'role':'user','content':'W'},"
     "{'role':'assistant','content':[{'type':'tool_use','id':'abcdefghi','name':'f',"
     "'input':{}}]},{'role':'user','content':[{'type':'tool_result',"
     "'tool_use_id':'abcdefghi','content':'W'}]},{'role':'assistant','content':'a'},"
     "{'role':'user','content':'W'}],'tools':[{'name':'f','description':'W','input_schema':"
     "{'type':'object','properties':{'W':{'type':'string','description':'W'}}}}]}",
     true},
    {"{'max_tokens':9,'messages':[{'role':'user','content':[{'type':'text','text':'W'}]}]}", true},
};

/* ---- vocabularies ---------------------------------------------------------------------------- */

/* Bytes, <s>, </s> and the names, all of these control tokens: 256 and up. */
static void open_tokenizer(const struct names *names, const char *source, size_t len) {
    kvasir_error why;
    FILE *f = fopen(temp_file(&folder, "tokenizer.json"), "wb");
    assert_non_null(f);
    fputs("{\"version\":\"1.0\",\"added_tokens\":[", f);
    for (size_t i = 0; i < names->n; i++) {
        json_t *name = json_stringn(names->name[i].data, names->name[i].len);
        char *text = json_dumps(name, JSON_ENCODE_ANY);
        fprintf(f, "%s{\"id\":%zu,\"content\":%s,\"special\":true}", i ? "," : "", 256 + i, text);
        free(text);
        json_decref(name);
    }
    fputs("],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
          "false,\"use_regex\":false},\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},"
          "\"model\":{\"type\":\"BPE\",\"ignore_merges\":false,\"vocab\":{",
          f);
    byte_tokenizer_vocab(f);
    fputs("},\"merges\":[]}}", f);
    assert_int_equal(fclose(f), 0);
    static const char CONFIG[] = "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}";
    temp_write(&folder, "tokenizer_config.json", CONFIG, sizeof CONFIG - 1);
    if (kvasir_tokenizer_open(folder.path, &tokenizer, &why))
        fail_msg("%s", why.text);
    set_template(source, len);
    api_defaults();
    setup.vocab = (uint32_t)(256 + names->n);
}

/* ---- bodies ---------------------------------------------------------------------------------- */

/* The value with `words` for W. */
static json_t *filled(json_t *value, const char *words) {
    const char *key;
    json_t *item, *made;
    size_t i;
    if (json_is_string(value))
        return json_string(strcmp(json_string_value(value), "W") == 0 ? words
                                                                      : json_string_value(value));
    if (json_is_array(value)) {
        made = json_array();
        json_array_foreach(value, i, item) json_array_append_new(made, filled(item, words));
        return made;
    }
    if (!json_is_object(value))
        return json_incref(value);
    made = json_object();
    json_object_foreach(value, key, item)
        json_object_set_new(made, strcmp(key, "W") == 0 ? words : key, filled(item, words));
    return made;
}

/* False: refused, with err. */
static bool read_body(json_t *value, bool anthropic, struct api_request *r) {
    struct api_body body = {0};
    char *text = json_dumps(value, 0);
    bool good = api_body_read(text, strlen(text), setup.vocab,
                              anthropic ? anthropic_wants : openai_wants_chat, &body, &err) &&
                (anthropic ? anthropic_read(&setup, &body, r, &err)
                           : openai_read(&setup, API_CHAT, &body, r, &err));
    api_body_free(&body);
    free(text);
    return good;
}

/* The control tokens of the prompt, in order; the caller frees them. False: refused. */
static bool control_of(size_t which, const char *words, const char *who, int32_t **ids, size_t *n) {
    struct api_request r = {0};
    char *text = strdup(BODIES[which].text);
    for (char *at = text; *at; at++)
        *at = *at == '\'' ? '"' : *at;
    json_t *shape = json_of(text), *value = filled(shape, words);
    json_object_set_new(value, "control_tokens", json_string(who));
    const bool good = read_body(value, BODIES[which].anthropic, &r);
    *n = 0;
    *ids = malloc((r.engine.n_tokens + 1) * sizeof **ids);
    for (size_t i = 0; good && i < r.engine.n_tokens; i++)
        if (r.engine.tokens[i] >= 256)
            (*ids)[(*n)++] = r.engine.tokens[i];
    if (good)
        api_request_free(&r);
    json_decref(shape);
    json_decref(value);
    free(text);
    return good;
}

static bool check_body(const char *name, size_t which, const char *words) {
    int32_t *plain, *named, *all;
    size_t n, m, k;
    const bool good = control_of(which, "x", "template", &plain, &n);
    if (good) {
        if (!control_of(which, words, "template", &named, &m))
            fail_msg("%s, body %zu: %s", name, which, err.text);
        if (n != m || memcmp(plain, named, n * sizeof *plain) != 0)
            fail_msg("%s, body %zu: %zu control tokens, the template wrote %zu", name, which, m, n);
        assert_true(control_of(which, words, "all", &all, &k));
        if (k <= n)
            fail_msg("%s, body %zu: the names are no control tokens for anybody", name, which);
        free(named);
        free(all);
    }
    free(plain);
    return good;
}

/* How many of the bodies it takes; some have no tools or no system prompt. */
static size_t check_template(const char *name, char *source, size_t len) {
    struct names names = {.n = 0};
    struct text_buf words = {0};
    size_t taken = 0;
    add_name(&names, "<s>", 3);
    add_name(&names, "</s>", 4);
    find_markers(source, len, &names);
    for (size_t i = 0; i < names.n; i++)
        assert_true(text_puts(&words, MARK) &&
                    text_append(&words, names.name[i].data, names.name[i].len));
    open_tokenizer(&names, source, len);
    const struct answer_syntax syntax = answer_syntax_of(tokenizer);
    setup.syntax = &syntax; /* as the server has it */
    for (size_t i = 0; i < sizeof BODIES / sizeof *BODIES; i++)
        taken += check_body(name, i, words.data);
    kvasir_tokenizer_close(tokenizer);
    text_free(&words);
    return taken;
}

static char *read_source(const char *name, size_t *len) {
    char path[600], *source;
    kvasir_error why;
    snprintf(path, sizeof path, "%s/%s", TEMPLATES, name);
    if (file_read_all(path, (size_t)1 << 24, &source, len, &why) != KVASIR_OK)
        fail_msg("%s", why.text);
    return source;
}

static void test_templates(void **state) {
    size_t templates = 0, bodies = 0, len;
    struct dirent *entry;
    DIR *all = opendir(TEMPLATES);
    (void)state;
    if (!all) {
        print_message("no %s: skipped\n", TEMPLATES);
        data_missing = true;
        skip();
    }
    while ((entry = readdir(all))) {
        if (!strstr(entry->d_name, ".jinja"))
            continue;
        char *source = read_source(entry->d_name, &len);
        const size_t taken = check_template(entry->d_name, source, len);
        if (!taken)
            fail_msg("%s takes no body: %s", entry->d_name, err.text);
        templates++;
        bodies += taken;
        mem_free(source);
    }
    closedir(all);
    print_message("%zu templates, %zu bodies\n", templates, bodies);
    assert_true(templates >= 20 && bodies >= 3 * templates);
}

/* ---- what it costs --------------------------------------------------------------------------- */

static double seconds_of(json_t *value, const char *who) {
    struct api_request r;
    json_object_set_new(value, "control_tokens", json_string(who));
    const double start = cpu_seconds();
    if (!read_body(value, false, &r))
        fail_msg("%s", err.text);
    const double seconds = cpu_seconds() - start;
    api_request_free(&r);
    return seconds;
}

static void test_speed(void **state) {
    enum { MESSAGES = 51, BYTES = 2000, PAIRS = 15 };
    static const char LINE[] = "The cache keeps 64 tokens a page. ";
    kvasir_error why;
    struct text_buf text = {0};
    size_t len;
    (void)state;
    if (data_missing)
        skip();
    if (kvasir_tokenizer_open(SHARED_DIR "/tokenizers/qwen3", &tokenizer, &why))
        fail_msg("%s", why.text);
    char *source = read_source("Qwen-Qwen3-0.6B.jinja", &len);
    set_template(source, len);
    api_defaults();
    setup.vocab = 1 << 20;
    json_t *messages = json_array(), *value = json_pack("{s:o}", "messages", messages);
    for (int i = 0; i < BYTES / (int)(sizeof LINE - 1); i++)
        assert_true(text_puts(&text, LINE));
    for (int i = 0; i < MESSAGES; i++)
        json_array_append_new(
            messages,
            json_pack("{s:s, s:s}", "role", i % 2 ? "assistant" : "user", "content", text.data));
    double best[2] = {1e9, 1e9};
    for (int i = 0; i < 2 * PAIRS; i++) {
        const double seconds = seconds_of(value, i % 2 ? "all" : "template");
        best[i % 2] = seconds < best[i % 2] ? seconds : best[i % 2];
    }
    print_message("a chat of %zu bytes: template %.2f ms, all %.2f ms: %.2fx\n",
                  MESSAGES * text.len, 1e3 * best[0], 1e3 * best[1], best[0] / best[1]);
    assert_true(best[0] <= 1.5 * best[1]); /* 1.1 on a quiet machine */
    json_decref(value);
    text_free(&text);
    mem_free(source);
    kvasir_tokenizer_close(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_templates),
        cmocka_unit_test(test_speed),
    };
    temp_folder_make(&folder);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    temp_folder_remove(&folder);
    return failed ? failed : data_missing ? 77 : 0;
}
