/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates: every render of ../shared/chat-templates (31 templates, 8 conversations each,
 * byte for byte; those that must fail, fail with Jinja2's text), SmolLM2's own template, the
 * language (template_cases.h, rendered by jinja2), places of errors, limits, and broken sources
 * from a printed seed. Goldens are Jinja2's, never ours.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "template_cases.h"
#include "text_checks.h"

#define TEMPLATES  SHARED_DIR "/chat-templates"
#define TOKENIZERS SHARED_DIR "/tokenizers"
#define MODEL      MODELS_DIR "/SmolLM2-135M-Instruct.Q4_1.gguf"
#define NOW        1735776000 /* 2025-01-02, the day of the goldens */

static bool data_missing; /* the program then exits 77: skipped */

static json_t *parse_json(const char *text, size_t len) {
    json_error_t why;
    json_t *value = json_loadb(text, len, JSON_ALLOW_NUL, &why);
    if (!value)
        fail_msg("bad JSON in the test: %s", why.text);
    return value;
}

/* Parse and render in one: the status, and text or error. `limits` may be NULL. */
static kvasir_status render(const char *source, size_t len, json_t *args,
                            const struct template_limits *limits, struct text_buf *out,
                            kvasir_error *err) {
    struct template *t = NULL;
    struct template_limits l = limits ? *limits : template_limits_default();
    kvasir_status status = template_parse(source, len, &t, err);
    if (status == KVASIR_OK)
        status = template_render(t, args, NOW, &l, out, err);
    template_destroy(t);
    return status;
}

static void check_text(const char *name, const char *source, size_t len, json_t *args,
                       const char *want, size_t want_len) {
    struct text_buf out = {0};
    kvasir_error err = {0};
    if (render(source, len, args, NULL, &out, &err) != KVASIR_OK)
        fail_msg("%s: %s", name, err.text);
    if (out.len != want_len || (want_len && memcmp(out.data, want, want_len) != 0))
        fail_msg("%s\n gave %.*s\n not  %.*s", name, (int)out.len, out.data ? out.data : "",
                 (int)want_len, want);
    text_free(&out);
}

/* ---- ../shared/chat-templates ---------------------------------------------------------------- */

static char *read_file(const char *path, size_t *size) {
    kvasir_error err = {0};
    char *data;
    if (file_read_all(path, 1 << 26, &data, size, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    return data;
}

/* The source of a golden's template: a .jinja file or a key of a tokenizer_config.json. */
static char *golden_source(const char *name, size_t *len) {
    char path[512];
    const char *prefix = "tokenizer:";
    if (strncmp(name, prefix, strlen(prefix)) != 0) {
        snprintf(path, sizeof path, "%s/%s.jinja", TEMPLATES, name);
        return read_file(path, len);
    }
    snprintf(path, sizeof path, "%s/%s/tokenizer_config.json", TOKENIZERS, name + strlen(prefix));
    char *config = read_file(path, len);
    json_error_t why; /* model_max_length may be 10^30, so integers are read as reals */
    json_t *json = json_loadb(config, *len, JSON_DECODE_INT_AS_REAL, &why),
           *t = json_object_get(json, "chat_template");
    assert_true(json_is_string(t));
    *len = json_string_length(t);
    char *source = mem_strndup(json_string_value(t), *len);
    json_decref(json);
    mem_free(config);
    return source;
}

/* The golden error is "TypeError: text"; ours ends with the text. */
static void check_raises(const char *name, const char *source, size_t len, json_t *args,
                         const char *error) {
    struct text_buf out = {0};
    kvasir_error err = {0};
    const char *text = strstr(error, ": ") + 2;
    assert_int_equal(render(source, len, args, NULL, &out, &err), KVASIR_ERR_TEMPLATE);
    size_t n = strlen(text), have = strlen(err.text);
    if (have < n || strcmp(err.text + have - n, text) != 0)
        fail_msg("%s failed with \"%s\", not \"%s\"", name, err.text, text);
    assert_int_equal(out.len, 0);
    text_free(&out);
}

static void test_goldens(void **state) {
    (void)state;
    size_t size, renders = 0, raises = 0;
    if (access(TEMPLATES "/golden_renders.jsonl", R_OK) != 0) {
        print_message("no %s: skipped\n", TEMPLATES);
        data_missing = true;
        skip();
    }
    char *lines = read_file(TEMPLATES "/golden_renders.jsonl", &size);
    for (char *at = lines, *end; *at; at = end + 1) {
        end = strchr(at, '\n');
        assert_non_null(end);
        json_t *golden = parse_json(at, (size_t)(end - at));
        const char *name = json_string_value(json_object_get(golden, "template"));
        json_t *args = json_object_get(golden, "args"), *text = json_object_get(golden, "expect");
        char title[200];
        size_t len;
        char *source = golden_source(name, &len);
        snprintf(title, sizeof title, "%s/%s", name,
                 json_string_value(json_object_get(golden, "case")));
        if (text) {
            check_text(title, source, len, args, json_string_value(text), json_string_length(text));
            renders++;
        } else {
            check_raises(title, source, len, args,
                         json_string_value(json_object_get(golden, "error")));
            raises++;
        }
        mem_free(source);
        json_decref(golden);
    }
    mem_free(lines);
    print_message("%zu renders equal, %zu fail as they must\n", renders, raises);
    assert_int_equal(renders, 223);
    assert_int_equal(raises, 25);
}

/* ---- SmolLM2 --------------------------------------------------------------------------------- */

static const char smollm2[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}";

static void test_smollm2(void **state) { /* texts by jinja2 3.1.6 */
    (void)state;
    static const struct {
        const char *args, *text;
    } cases[] = {
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}],"
         " \"add_generation_prompt\": true}",
         "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
         "<|im_end|>\n<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"},
        {"{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"},"
         " {\"role\": \"user\", \"content\": \" 2+2?\\n\"},"
         " {\"role\": \"assistant\", \"content\": \"4\"},"
         " {\"role\": \"user\", \"content\": \"\\u00e9 <b>\"}], \"add_generation_prompt\": true}",
         "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n 2+2?\n<|im_end|>\n"
         "<|im_start|>assistant\n4<|im_end|>\n<|im_start|>user\n\303\251 <b><|im_end|>\n"
         "<|im_start|>assistant\n"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"A\"},"
         " {\"role\": \"assistant\", \"content\": \"B\"}], \"add_generation_prompt\": false}",
         "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
         "<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *args = parse_json(cases[i].args, strlen(cases[i].args));
        check_text("smollm2", smollm2, strlen(smollm2), args, cases[i].text, strlen(cases[i].text));
        json_decref(args);
    }
}

/* The text above is the one that the demo model carries. */
static void test_smollm2_is_the_models(void **state) {
    (void)state;
    struct file_map map;
    kvasir_error err = {0};
    if (file_map_open(&map, MODEL, &err) != KVASIR_OK) {
        print_message("%s: skipped\n", err.text);
        data_missing = true;
        skip();
    }
    const size_t metadata = map.size < 4 << 20 ? map.size : 4 << 20, n = strlen(smollm2);
    bool found = false;
    for (size_t i = 0; i + n <= metadata && !found; i++)
        found = map.data[i] == '{' && memcmp(map.data + i, smollm2, n) == 0;
    file_map_close(&map);
    assert_true(found);
}

/* ---- the language ---------------------------------------------------------------------------- */

static void test_language(void **state) {
    (void)state;
    json_t *args = parse_json(case_args, strlen(case_args));
    const size_t n = sizeof template_cases / sizeof *template_cases;
    for (size_t i = 0; i < n; i++) {
        const struct template_case *c = &template_cases[i];
        check_text(c->source, c->source, strlen(c->source), args, c->text, strlen(c->text));
    }
    print_message("%zu small templates as jinja2 renders them\n", n);
    json_decref(args);
}

static void test_errors_name_their_place(void **state) {
    (void)state;
    static const struct {
        const char *source, *place, *text;
    } cases[] = {
        {"{% if x %}", "line 1 column 11:", "no {% endif %}"},
        {"a\nb {% for x in %}", "line 2 column 15:", "an expression"},
        {"a\r\n\303\251 {{ 1 + }}", "line 2 column 10:", "an expression"},
        {"{{ 'abc }}", "line 1 column 4:", "has no closing '"},
        {"x\n{# y", "line 2 column 1:", "closing #}"},
        {"{{ (1, 2] }}", "line 1 column 9:", "unexpected ']', expected ')'"},
        {"{{ a ? b }}", "line 1 column 6:", "unexpected character '?'"},
        {"{% nope %}", "line 1 column 4:", "unknown statement 'nope'"},
        {"{% include 'x' %}", "line 1 column 4:", "'include' is not supported"},
        {"{% break %}", "line 1 column 4:", "outside of a loop"},
        {"{% set true = 1 %}", "line 1 column 8:", "cannot assign to"},
        {"{% set 'x' = 1 %}", "line 1 column 8:", "cannot assign to"},
        {"{% macro f(a=1, b) %}{% endmacro %}", "line 1 column 18:", "default value"},
        {"{{ '\\ud83d' }}", "line 1 column 5:", "not a character"},
        {"{{ 99999999999999999999 }}", "line 1 column 4:", "64 bits"},
        {"a\xff", "line 1 column 2:", "not valid UTF-8"},
        {"\n\n  {{ nope.x }}", "line 3 column 10:", "'nope' is undefined"},
        {"{{ l.x.y }}", "line 1 column 7:", "'list object' has no attribute 'x'"},
        {"{{ l[9].y }}", "line 1 column 8:", "list object has no element 9"},
        {"{{ l.append(1) }}", "line 1 column 12:", "access to attribute 'append' of 'list'"},
        {"{{ 1 + 'a' }}", "line 1 column 6:", "unsupported operand type(s) for +: 'int' and"},
        {"{{ 'a' + 1 }}", "line 1 column 8:", "can only concatenate str (not \"int\") to str"},
        {"{{ s|nope }}", "line 1 column 6:", "No filter named 'nope'"},
        {"{{ s is nope }}", "line 1 column 6:", "No test named 'nope'"},
        {"{{ n|length }}", "line 1 column 6:", "object of type 'NoneType' has no len()"},
        {"{% for x in i %}{% endfor %}", "line 1 column 13:", "'int' object is not iterable"},
        {"{% for a, b in [(1,)] %}{% endfor %}", "line 1 column 8:", "not enough values"},
        {"{% set d.x = 1 %}", "line 1 column 8:", "non-namespace object"},
        {"{{ zz|tojson }}", "line 1 column 7:", "Undefined is not JSON serializable"},
        {"{{ 1 // 0 }}", "line 1 column 6:", "by zero"},
        {"{{ 4611686018427387904 * 2 }}", "line 1 column 24:", "64 bits"},
        {"{{ s() }}", "line 1 column 5:", "'str' object is not callable"},
        {"{{ 'abc' % 5 }}", "line 1 column 10:", "not all arguments converted"},
        {"{{ s|truncate(2) }}", "line 1 column 6:", "expected length >= 3"},
        {"{{ dict(a=1, **{'a': 2}) }}", "line 1 column 16:", "keyword argument 'a'"},
        {"{% macro f(a) %}{% endmacro %}\n{{ f(1, 2) }}", "line 2 column 5:", "'f' takes at most"},
        {"\n{{ s.nope() }}", "line 2 column 10:", "'str object' has no attribute 'nope'"},
        {"{{ l.nope() }}", "line 1 column 10:", "'list object' has no attribute 'nope'"},
        {"{{ d.a.nope }}{{ d.a.nope() }}", "line 1 column 26:", "no attribute 'nope'"},
        {"{{ s.expandtabs() }}", "line 1 column 16:", "no attribute 'expandtabs'"},
        {"{{ nope() }}", "line 1 column 8:", "'nope' is undefined"},
        {"{{ s|trim(nope=1) }}", "line 1 column 6:", "nope"},
        {"{{ s is divisibleby(1, 2) }}", "line 1 column 6:", "divisibleby"},
        {"{{ s|map('nope')|list }}", "line 1 column 6:", "No filter named 'nope'"},
        {"{{ l|select('nope')|list }}", "line 1 column 6:", "No test named 'nope'"},
        {"{{ s.__class__.x }}", "line 1 column 15:", "__class__"},
        {"\n{% do l %}", "line 2 column 4:", "'do' is not supported"},
        {"{% filter nope %}x{% endfilter %}", "line 1 column 11:", "No filter named 'nope'"},
        {"{% call nope() %}x{% endcall %}", "line 1 column 13:", "'nope' is undefined"},
        {"a\n {{ raise_exception('only\none line') }}", "line 2 column 20:", "only?one line"},
    };
    json_t *args = parse_json(case_args, strlen(case_args));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kvasir_error err = {0};
        struct text_buf out = {0};
        kvasir_status s = render(cases[i].source, strlen(cases[i].source), args, NULL, &out, &err);
        if (s != KVASIR_ERR_TEMPLATE || err.code != s || !strstr(err.text, cases[i].place) ||
            !strstr(err.text, cases[i].text))
            fail_msg("%s: \"%s\", not %s ... %s", cases[i].source, err.text, cases[i].place,
                     cases[i].text);
        text_free(&out);
    }
    json_decref(args);
}

static void test_a_failure_changes_nothing(void **state) {
    (void)state;
    struct text_buf out = {0};
    kvasir_error err = {0};
    json_t *args = parse_json("{\"a\": 1}", 8);
    struct template_limits limits = template_limits_default();
    struct template *t = NULL;
    assert_true(text_append(&out, "before ", 7));
    assert_int_equal(template_parse("x{{ a }}{{ b.c }}", 17, &t, &err), KVASIR_OK);
    assert_int_equal(template_render(t, args, NOW, &limits, &out, &err), KVASIR_ERR_TEMPLATE);
    assert_string_equal(out.data, "before ");
    json_object_set_new(args, "b", json_pack("{s:s}", "c", "y"));
    assert_int_equal(template_render(t, args, NOW, &limits, &out, &err), KVASIR_OK);
    assert_string_equal(out.data, "before x1y");
    assert_int_equal(template_render(t, args, NOW, &limits, &out, NULL), KVASIR_OK);
    template_destroy(t);
    template_destroy(NULL);
    t = NULL;
    assert_int_equal(template_parse("{{", 2, &t, NULL), KVASIR_ERR_TEMPLATE);
    assert_null(t);
    assert_int_equal(render("x", 1, json_object_get(args, "a"), NULL, &out, &err),
                     KVASIR_ERR_TEMPLATE);
    json_decref(args);
    text_free(&out);
}

/* A NUL in the arguments is a character like any other. */
static void test_nul_in_arguments(void **state) {
    (void)state;
    static const char json[] = "{\"s\": \"a\\u0000b\"}", source[] = "{{ s }}{{ s|length }}";
    json_t *args = parse_json(json, strlen(json));
    check_text("NUL", source, strlen(source), args, "a\0b3", 4);
    json_decref(args);
}

/* ---- special tokens -------------------------------------------------------------------------- */

static kvasir_status read_tokens(const char *config, json_t *variables, kvasir_error *err) {
    struct tokenizer_spec spec = {.config = {config, strlen(config)}};
    return template_tokens(&spec, NULL, variables, err);
}

static void test_special_tokens(void **state) {
    (void)state;
    static const char config[] =
        "{\"add_bos_token\": true, \"bos_token\": \"<s\\u003e\", \"model_max_length\":"
        " 1000000000000000019884624838656, \"eos_token\": {\"lstrip\": false, \"content\": "
        "\"</s>\"},"
        " \"pad_token\": null, \"unk_token\": \"\", \"additional_special_tokens\": [\"a_token\"],"
        " \"_token\": \"no\", \"chat_template\": \"bos_token\", \"extra_special_tokens\":"
        " {\"image_token\": \"<img>\", \"extra_special_tokens\": {\"x_token\": \"no\"}}}";
    static const char want[] =
        "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"unk_token\": \"\","
        " \"image_token\": \"<img>\"}";
    static const char *const broken[] = {"",
                                         "[]",
                                         "{\"bos_token\": \"<s>\"",
                                         "{\"bos_token\": \"\xff\"}",
                                         "{",
                                         "{\"a\": }",
                                         "{\"eos_token\": {\"content\": \"x\" 1}}"};
    kvasir_error err = {0};
    json_t *variables = json_object(), *expected = parse_json(want, strlen(want));
    assert_int_equal(read_tokens(config, variables, &err), KVASIR_OK);
    assert_true(json_equal(variables, expected));
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        assert_int_equal(read_tokens(broken[i], variables, &err), KVASIR_ERR_FORMAT);
        assert_non_null(strstr(err.text, "tokenizer_config.json: "));
    }
    json_decref(variables);
    json_decref(expected);
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void check_limit(const char *source, const char *text) {
    kvasir_error err = {0};
    struct text_buf out = {0};
    json_t *args = json_object();
    double start = clock_seconds();
    assert_int_equal(render(source, strlen(source), args, NULL, &out, &err), KVASIR_ERR_TEMPLATE);
    if (!strstr(err.text, text))
        fail_msg("%.80s: \"%s\", not \"%s\"", source, err.text, text);
    assert_true(clock_seconds() - start < 60); /* seconds at most, with sanitizers and a busy CPU */
    json_decref(args);
    text_free(&out);
}

/* before x n, middle, after x n */
static void check_nested(const char *before, const char *middle, const char *after, size_t n) {
    struct text_buf source = {0};
    bool ok = text_append(&source, "{{ ", 3);
    for (size_t i = 0; i < n; i++)
        ok = ok && text_append(&source, before, strlen(before));
    ok = ok && text_append(&source, middle, strlen(middle));
    for (size_t i = 0; i < n; i++)
        ok = ok && text_append(&source, after, strlen(after));
    ok = ok && text_append(&source, " }}", 3);
    assert_true(ok);
    check_limit(source.data, "levels deep");
    text_free(&source);
}

static void test_deep_sources(void **state) {
    (void)state;
    check_nested("(", "1", ")", 50000);
    check_nested("[", "", "]", 50000);
    check_nested("{1:", "1", "}", 50000);
    check_nested("not ", "1", "", 50000);
    check_nested("-", "1", "", 50000);
    check_nested("f(", "1", ")", 50000);
    check_nested("1 if 1 else ", "1", "", 20000);
    check_nested("", "1", " + 1", 50000);
    check_nested("", "1", "|string", 50000);
    check_nested("", "s", ".x", 50000);
    check_nested("1 }}{% if 1 %}{{ ", "1", " }}{% endif %}{{ 1", 5000);
}

static void test_depth(void **state) {
    (void)state;
    static const char *const nest = "{% set ns = namespace(x=[1], y=[1], z=(1,)) %}"
                                    "{% for i in range(5000) %}{% set ns.x = [ns.x] %}"
                                    "{% set ns.y = [ns.y] %}{% set ns.z = (ns.z,) %}{% endfor %}";
    static const char *const uses[] = {
        "{{ ns.x }}",      "{{ ns.x|tojson }}", "{{ ns.x == ns.y }}",           "{{ ns.x < ns.y }}",
        "{{ {ns.z: 1} }}", "{{ {}[ns.z] }}",    "{% set ns.x = [ns] %}{{ ns }}"};
    char source[1000];
    for (size_t i = 0; i + 1 < sizeof uses / sizeof *uses; i++) {
        snprintf(source, sizeof source, "%s%s", nest, uses[i]);
        check_limit(source, "levels deep");
    }
    snprintf(source, sizeof source, "{%% set ns = namespace() %%}%s",
             uses[sizeof uses / sizeof *uses - 1]); /* a namespace that holds itself */
    check_limit(source, "levels deep");
    check_limit("{% macro m(n) %}{{ m(n)|trim }}{% endmacro %}{{ m(1) }}", "levels deep");
    check_limit("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "levels deep");
}

static void test_steps_and_memory(void **state) {
    (void)state;
    check_limit("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
                "steps");
    check_limit("{% set ns = namespace(x=[1]) %}{% for a in range(100) %}"
                "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}",
                "steps");
    check_limit("{% set ns = namespace(x='ab') %}{% for a in range(100) %}"
                "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
                "bytes of memory");
    check_limit("{{ 'x' * 100000000000 }}", "bytes of memory");
    check_limit("{{ 'x'.center(100000000000) }}", "steps");
    check_limit("{{ [1]|tojson(indent=100000000000) }}", "steps");
    check_limit("{{ '%999999999d' % 1 }}", "width");
    check_limit("{{ range(100001) }}", "Range too big");
    check_limit("{% for a in range(100000) %}{{ 'x' * 1000 }}{% endfor %}", "writes more than");
}

static void test_limits_are_the_callers(void **state) {
    (void)state;
    static const char source[] = "{% for i in range(10) %}{{ i }}{% endfor %}";
    struct template_limits limits = template_limits_default();
    struct text_buf out = {0};
    kvasir_error err = {0};
    json_t *args = json_object();
    limits.output_bytes = 10;
    assert_int_equal(render(source, strlen(source), args, &limits, &out, &err), KVASIR_OK);
    limits.output_bytes = 9;
    assert_int_equal(render(source, strlen(source), args, &limits, &out, &err),
                     KVASIR_ERR_TEMPLATE);
    limits = template_limits_default();
    limits.steps = 20;
    assert_int_equal(render(source, strlen(source), args, &limits, &out, &err),
                     KVASIR_ERR_TEMPLATE);
    limits = template_limits_default();
    limits.depth = 2;
    assert_int_equal(render(source, strlen(source), args, &limits, &out, &err),
                     KVASIR_ERR_TEMPLATE);
    assert_string_equal(out.data, "0123456789");
    json_decref(args);
    text_free(&out);
}

struct stop_count {
    int asked, after; /* stops at that question */
};

static bool stop_after(void *user) {
    struct stop_count *c = user;
    return ++c->asked >= c->after;
}

/* A template of 10 million steps ends soon after it is told to. */
static void test_stops(void **state) {
    (void)state;
    static const char source[] = "{% for a in range(99999) %}{% for b in range(50) %}{% endfor %}"
                                 "{% endfor %}";
    struct stop_count count = {.after = 3};
    struct template_limits limits = template_limits_default();
    struct text_buf out = {0};
    kvasir_error err = {0};
    json_t *args = json_object();
    limits.stop = stop_after;
    limits.user = &count;
    assert_int_equal(render(source, strlen(source), args, &limits, &out, &err),
                     KVASIR_ERR_CANCELLED);
    assert_int_equal(count.asked, 3);
    assert_int_equal(out.len, 0);
    json_decref(args);
    text_free(&out);
}

/* ---- broken sources -------------------------------------------------------------------------- */

static const char *const pieces[] = {
    "{%",
    "%}",
    "{{",
    "}}",
    "-",
    "+",
    "{#",
    "#}",
    " ",
    "\n",
    "(",
    ")",
    "[",
    "]",
    "|",
    ".",
    ",",
    "'",
    "\"",
    "not ",
    "is ",
    "in ",
    "if ",
    "{% endif %}",
    "0",
    "1",
    "none",
    "~",
    "loop.",
    "recursive",
    "{% endfor %}",
    "{% else %}",
    "*",
    "**",
    "\\",
    "trim",
    "=",
    "\xc3",
    "\xe2\x82",
    "{",
    "}",
    "%",
    "//",
    ":",
    "-%}",
};

static size_t mutate(char *s, size_t len, size_t cap) {
    for (uint32_t i = 0, n = 1 + rng(3); i < n; i++) {
        size_t at = rng((uint32_t)len + 1), take, put;
        const char *piece = pieces[rng(sizeof pieces / sizeof *pieces)];
        switch (rng(3)) {
        case 0: /* remove some */
            take = rng(8) ? 1 + rng(4) : rng(200);
            take = take > len - at ? len - at : take;
            memmove(s + at, s + at + take, len - at - take);
            len -= take;
            break;
        case 1: /* insert a piece */
            put = strlen(piece);
            if (len + put > cap)
                break;
            memmove(s + at + put, s + at, len - at);
            memcpy(s + at, piece, put);
            len += put;
            break;
        default: /* insert a part of itself */
            put = rng(40);
            size_t from = rng((uint32_t)len + 1);
            put = put > len - from ? len - from : put;
            if (len + put > cap)
                break;
            char part[40];
            memcpy(part, s + from, put);
            memmove(s + at + put, s + at, len - at);
            memcpy(s + at, part, put);
            len += put;
        }
    }
    return len;
}

/* Every source gives a text or an error with a place, and soon. */
static void check_broken(const char *source, size_t len, json_t *args, size_t *rendered) {
    const struct template_limits limits = {.steps = 200000, .depth = 300, .output_bytes = 1 << 20};
    char copy[40000];
    assert_true(len + 1000 <= sizeof copy);
    memcpy(copy, source, len);
    len = mutate(copy, len, sizeof copy);
    char *exact = mem_alloc(len); /* of just this length, so that a read past the end is seen */
    memcpy(exact, copy, len);
    struct text_buf out = {0};
    kvasir_error err = {0};
    kvasir_status status = render(exact, len, args, &limits, &out, &err);
    if (status != KVASIR_OK && (status != KVASIR_ERR_TEMPLATE || !strstr(err.text, "column")))
        fail_msg("status %d, \"%s\" for:\n%.*s", (int)status, err.text, (int)len, exact);
    *rendered += status == KVASIR_OK;
    text_free(&out);
    mem_free(exact);
}

static void test_broken_sources(void **state) {
    (void)state;
    enum { ROUNDS = 4 }; /* of all small templates: about 2,700 sources, a few seconds */
    size_t rendered = 0, tried = 0;
    json_t *args = parse_json(case_args, strlen(case_args));
    rng_start(20250102);
    for (int round = 0; round < ROUNDS; round++)
        for (size_t i = 0; i < sizeof template_cases / sizeof *template_cases; i++, tried++) {
            const char *source = template_cases[i].source;
            check_broken(source, strlen(source), args, &rendered);
        }
    json_decref(args);
    print_message("%zu of %zu broken sources still render\n", rendered, tried);
}

static void test_broken_chat_templates(void **state) {
    (void)state;
    static const char *const names[] = {"tokenizer:qwen3",          "tokenizer:llama3_1",
                                        "Qwen-Qwen2.5-7B-Instruct", "openai-gpt-oss-120b",
                                        "google-gemma-4-31B-it",    "GigaChat3.1-10B-A1.8B"};
    static const char json[] =
        "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\","
        " \"content\": \"A\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\":"
        " [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1}}}]},"
        " {\"role\": \"tool\", \"name\": \"f\", \"content\": \"{}\"}], \"tools\": [{\"type\":"
        " \"function\", \"function\": {\"name\": \"f\", \"description\": \"d\", \"parameters\":"
        " {\"type\": \"object\", \"properties\": {\"x\": {\"type\": \"string\"}}}}}],"
        " \"add_generation_prompt\": true, \"bos_token\": \"<s>\"}";
    size_t rendered = 0, tried = 0;
    if (access(TEMPLATES "/golden_renders.jsonl", R_OK) != 0) {
        print_message("no %s: skipped\n", TEMPLATES);
        data_missing = true;
        skip();
    }
    json_t *args = parse_json(json, strlen(json));
    rng_start(20250103);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t len;
        char *source = golden_source(names[i], &len);
        for (int k = 0; k < 150; k++, tried++)
            check_broken(source, len, args, &rendered);
        mem_free(source);
    }
    json_decref(args);
    print_message("%zu of %zu broken chat templates still render\n", rendered, tried);
}

/* ---- sharing --------------------------------------------------------------------------------- */

struct shared {
    const struct template *t;
    json_t *args;
    const char *want;
    bool equal[64];
};

static void render_shared(void *ctx, size_t item, int worker) {
    (void)worker;
    struct shared *s = ctx;
    struct template_limits limits = template_limits_default();
    struct text_buf out = {0};
    s->equal[item] = template_render(s->t, s->args, NOW, &limits, &out, NULL) == KVASIR_OK &&
                     strcmp(out.data, s->want) == 0;
    text_free(&out);
}

static void test_threads_share_a_template(void **state) {
    (void)state;
    static const char source[] = "{% macro m(x) %}{{ x ~ '.' }}{% endmacro %}{% for i in l %}"
                                 "{{ m(i)|upper }}{{ loop.index }}{% endfor %}"
                                 "{{ '\\n' + s + 'a' 'b' + s }}"; /* constants do not grow */
    struct shared s = {.want = "3.11.22.3\nxabx"};
    struct template *t = NULL;
    struct thread_pool *pool = NULL;
    kvasir_error err = {0};
    s.args = parse_json("{\"l\": [3, 1, 2], \"s\": \"x\"}", 26);
    assert_int_equal(template_parse(source, strlen(source), &t, &err), KVASIR_OK);
    assert_int_equal(thread_pool_create(&pool, 4, &err), KVASIR_OK);
    s.t = t;
    thread_pool_run(pool, 64, render_shared, &s);
    for (size_t i = 0; i < 64; i++)
        assert_true(s.equal[i]);
    thread_pool_destroy(pool);
    template_destroy(t);
    json_decref(s.args);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_smollm2),
        cmocka_unit_test(test_smollm2_is_the_models),
        cmocka_unit_test(test_language),
        cmocka_unit_test(test_errors_name_their_place),
        cmocka_unit_test(test_a_failure_changes_nothing),
        cmocka_unit_test(test_nul_in_arguments),
        cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_deep_sources),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_steps_and_memory),
        cmocka_unit_test(test_limits_are_the_callers),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_broken_sources),
        cmocka_unit_test(test_broken_chat_templates),
        cmocka_unit_test(test_threads_share_a_template),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed ? failed : data_missing ? 77 : 0;
}
