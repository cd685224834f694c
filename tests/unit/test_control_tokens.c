/* SPDX-License-Identifier: Apache-2.0 */
/* Control tokens of a chat are those that the template wrote: all conversations of
 * ../shared/chat-templates, with all control tokens of a vocabulary in every text that a client
 * can choose (contents, names, tools, arguments, documents). For each template the vocabulary has
 * everything in its source that looks like a marker; the vocabularies of Qwen 3, Llama 3.1 and
 * Gemma 3 are tried with every template.
 */
#include <unistd.h>

#include "text/tokenizer_internal.h"

#include "byte_tokenizer.h"
#include "markers.h"
#include "text_checks.h"

#define TEMPLATES  SHARED_DIR "/chat-templates"
#define TOKENIZERS SHARED_DIR "/tokenizers"
#define NOW        1735776000
#define MARK       "\xc2\xa7" /* before each name that the client writes */

static bool data_missing; /* the program then exits 77: skipped */

static char *read_all(const char *path, size_t *len) {
    kvasir_error err;
    char *text;
    if (file_read_all(path, (size_t)64 << 20, &text, len, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    return text;
}

/* ---- vocabularies ---------------------------------------------------------------------------- */

static struct tokenizer *made_tokenizer(const struct names *names) {
    struct text_span pieces[256 + NAMES_MAX];
    uint8_t kinds[256 + NAMES_MAX];
    char bytes[256][4];
    for (int i = 0; i < 256; i++) {
        pieces[i] = (struct text_span){bytes[i], utf8_put(bytes[i], alphabet_char((uint8_t)i))};
        kinds[i] = TOKEN_NORMAL;
    }
    for (size_t i = 0; i < names->n; i++) {
        pieces[256 + i] = names->name[i];
        kinds[256 + i] = TOKEN_CONTROL;
    }
    return create(&(struct tokenizer_spec){.model = "gpt2",
                                           .pieces = pieces,
                                           .kinds = kinds,
                                           .n_tokens = 256 + names->n,
                                           .bos = -1,
                                           .eos = -1,
                                           .eot = -1,
                                           .unk = -1,
                                           .pad = -1});
}

static struct tokenizer *real_tokenizer(const char *name) {
    char path[300];
    size_t len;
    snprintf(path, sizeof path, "%s/%s/tokenizer.json", TOKENIZERS, name);
    char *json = read_all(path, &len);
    struct tokenizer *t = create(&(struct tokenizer_spec){
        .json = {json, len}, .bos = -1, .eos = -1, .eot = -1, .unk = -1, .pad = -1});
    mem_free(json);
    return t;
}

static void control_names(const struct tokenizer *t, struct names *names) {
    for (size_t i = 0; i < tokenizer_size(t); i++)
        if (tokenizer_is_control(t, (int32_t)i)) {
            struct text_span piece = tokenizer_piece(t, (int32_t)i);
            add_name(names, piece.data, piece.len);
        }
}

/* ---- prompts --------------------------------------------------------------------------------- */

struct prompt {
    struct text_buf text, authors;
    kvasir_authors by;
};

static bool render(const struct template *t, json_t *args, json_t *own, struct prompt *p) {
    struct template_limits limits = template_limits_default();
    kvasir_error err;
    *p = (struct prompt){0};
    bool good =
        template_render_by(t, args, own, NOW, &limits, &p->text, &p->authors, &err) == KVASIR_OK;
    assert_int_equal(p->text.len, p->authors.len);
    p->by.each = p->authors.data;
    return good;
}

static void prompt_free(struct prompt *p) {
    text_free(&p->text);
    text_free(&p->authors);
}

static int32_t *encode_by(const struct tokenizer *t, const char *text, size_t len,
                          const kvasir_authors *by, size_t *n) {
    int32_t *ids;
    kvasir_error err;
    if (tokenizer_encode_by(t, text, len, TOKENIZE_PARSE_SPECIAL, by, NULL, &ids, n, &err) !=
        KVASIR_OK)
        fail_msg("%s", err.text);
    return ids;
}

static size_t keep_control(const struct tokenizer *t, int32_t *ids, size_t n) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (tokenizer_is_control(t, ids[i]))
            ids[kept++] = ids[i];
    return kept;
}

/* The markers of reasoning and tool calls that the vocabulary has (api/answer_syntax.c). */
static size_t find_answer_markers(const struct tokenizer *t, int32_t *ids) {
    static const char *const MARKERS[] = {"<think>",      "</think>",          "[THINK]",
                                          "[/THINK]",     "<tool_call>",       "</tool_call>",
                                          "[TOOL_CALLS]", "<|channel>thought", "<channel|>"};
    size_t count = 0;
    for (size_t i = 0; i < sizeof MARKERS / sizeof *MARKERS; i++) {
        size_t n;
        int32_t *made = encode_by(t, MARKERS[i], strlen(MARKERS[i]), NULL, &n);
        if (n == 1 && tokenizer_is_control(t, *made))
            ids[count++] = *made;
        mem_free(made);
    }
    return count;
}

/* Replayed answers have the tokens they were generated with: the same with and without authors. */
static void check_plain(const char *title, const struct tokenizer *t, struct prompt *p) {
    int32_t markers[16];
    size_t n, m;
    p->by.markers = markers;
    p->by.n_markers = find_answer_markers(t, markers);
    int32_t *ids = encode_by(t, p->text.data, p->text.len, &p->by, &n),
            *all = encode_by(t, p->text.data, p->text.len, NULL, &m);
    if (n != m || memcmp(ids, all, n * sizeof *ids) != 0)
        fail_msg("%s: other tokens than without authors: %.*s", title, (int)p->text.len,
                 p->text.data);
    p->by.n_markers = 0;
    mem_free(ids);
    mem_free(all);
}

/* The control tokens are those of the text in which nobody but the template wrote anything. */
static size_t check_control(const char *title, const struct tokenizer *t, const struct prompt *p) {
    size_t n, m;
    char *blank = mem_strndup(p->text.data, p->text.len);
    for (size_t i = 0; i < p->text.len; i++)
        if (p->authors.data[i] != KVASIR_BY_TEMPLATE)
            blank[i] = 'x';
    int32_t *ids = encode_by(t, p->text.data, p->text.len, &p->by, &n),
            *want = encode_by(t, blank, p->text.len, NULL, &m);
    n = keep_control(t, ids, n);
    m = keep_control(t, want, m);
    if (n != m || memcmp(ids, want, n * sizeof *ids) != 0)
        fail_msg("%s: %zu control tokens, the template wrote %zu", title, n, m);
    mem_free(ids);
    mem_free(want);
    mem_free(blank);
    return n;
}

/* What follows the client's mark is not the template's, as far as it is one of the names. */
static size_t check_marks(const char *title, const struct names *names, const struct prompt *p) {
    size_t seen = 0;
    for (size_t i = 0; i + 2 < p->text.len; i++) {
        if (memcmp(p->text.data + i, MARK, 2) != 0)
            continue;
        for (size_t k = 0; k < names->n; k++) {
            struct text_span name = names->name[k];
            if (name.len > p->text.len - i - 2 ||
                memcmp(p->text.data + i + 2, name.data, name.len) != 0)
                continue;
            seen++;
            if (memchr(p->authors.data + i, KVASIR_BY_TEMPLATE, name.len + 2))
                fail_msg("%s: the client's %.*s counts as the template's", title, (int)name.len,
                         name.data);
        }
    }
    return seen;
}

/* ---- what a client writes -------------------------------------------------------------------- */

/* `words`, added to every string of the value, also to keys; not to what the API or a template
 * takes only from a list. */
static json_t *poisoned(json_t *value, const char *words) {
    const char *key;
    json_t *item;
    size_t i;
    if (json_is_string(value)) {
        struct text_buf text = {0};
        assert_true(text_puts(&text, words) && text_puts(&text, json_string_value(value)) &&
                    text_puts(&text, words));
        json_t *made = json_string(text.data);
        text_free(&text);
        return made;
    }
    if (json_is_array(value)) {
        json_t *made = json_array();
        json_array_foreach(value, i, item) json_array_append_new(made, poisoned(item, words));
        return made;
    }
    if (!json_is_object(value))
        return json_incref(value);
    json_t *made = json_object();
    bool assistant = strcmp("assistant", json_string_value(json_object_get(value, "role"))
                                             ? json_string_value(json_object_get(value, "role"))
                                             : "") == 0;
    json_object_foreach(value, key, item) {
        bool kept = strcmp(key, "role") == 0 || strcmp(key, "type") == 0 ||
                    (assistant && strcmp(key, "content") == 0);
        json_object_set_new(made, key, kept ? json_incref(item) : poisoned(item, words));
        struct text_buf more = {0};
        assert_true(text_puts(&more, words) && text_puts(&more, key));
        if (strcmp(key, "properties") == 0 || strcmp(key, "arguments") == 0)
            if (json_is_object(item))
                json_object_set_new(json_object_get(made, key), more.data, json_object());
        text_free(&more);
    }
    return made;
}

static char *all_words(const struct names *names) {
    struct text_buf words = {0};
    for (size_t i = 0; i < names->n; i++)
        assert_true(text_puts(&words, MARK) &&
                    text_append(&words, names->name[i].data, names->name[i].len));
    assert_true(text_puts(&words, ""));
    return words.data;
}

/* ---- the templates --------------------------------------------------------------------------- */

struct counts {
    size_t renders, names, tokens;
};

static void check_case(const char *title, const struct template *tmpl, const struct tokenizer *t,
                       json_t *args, json_t *own, bool plain, struct counts *counts) {
    struct names names = {.n = 0};
    struct prompt p;
    control_names(t, &names);
    if (plain) {
        if (render(tmpl, args, own, &p))
            check_plain(title, t, &p);
        prompt_free(&p);
    }
    char *words = all_words(&names);
    json_t *changed = poisoned(args, words);
    if (render(tmpl, changed, own, &p)) {
        counts->renders++;
        counts->names += check_marks(title, &names, &p);
        counts->tokens += check_control(title, t, &p);
    }
    prompt_free(&p);
    json_decref(changed);
    mem_free(words);
}

/* Takes the model's own variables out of the golden's. */
static json_t *own_of(json_t *args) {
    json_t *own = json_object(), *value;
    const char *key;
    void *next;
    json_object_foreach_safe(args, next, key, value) if (strstr(key, "_token")) {
        json_object_set(own, key, value);
        json_object_del(args, key);
    }
    return own;
}

static void check_golden(json_t *golden, struct tokenizer *const *real, size_t n_real,
                         struct counts *counts) {
    const char *name = json_string_value(json_object_get(golden, "template"));
    char path[300], title[200];
    size_t len;
    kvasir_error err;
    struct template *tmpl;
    struct names names = {.n = 0};
    snprintf(path, sizeof path, "%s/%s.jinja", TEMPLATES, name);
    if (access(path, R_OK) != 0)
        return;
    snprintf(title, sizeof title, "%s/%s", name,
             json_string_value(json_object_get(golden, "case")));
    char *source = read_all(path, &len);
    assert_int_equal(template_parse(source, len, &tmpl, &err), KVASIR_OK);
    json_t *args = json_object_get(golden, "args"), *own = own_of(args), *value;
    const char *key;
    find_markers(source, len, &names);
    json_object_foreach(own, key, value) if (json_string_length(value))
        add_name(&names, json_string_value(value), json_string_length(value));
    struct tokenizer *made = made_tokenizer(&names);
    check_case(title, tmpl, made, args, own, true, counts);
    for (size_t i = 0; i < n_real; i++)
        check_case(title, tmpl, real[i], args, own, true, counts);
    tokenizer_destroy(made);
    template_destroy(tmpl);
    json_decref(own);
    mem_free(source);
}

static void test_all_templates(void **state) {
    (void)state;
    static const char *const names[] = {"qwen3", "llama3_1", "gemma3"};
    struct tokenizer *real[3];
    struct counts counts = {0};
    size_t size;
    if (access(TEMPLATES "/golden_renders.jsonl", R_OK) != 0) {
        print_message("no %s: skipped\n", TEMPLATES);
        data_missing = true;
        skip();
    }
    for (int i = 0; i < 3; i++)
        real[i] = real_tokenizer(names[i]);
    char *lines = read_all(TEMPLATES "/golden_renders.jsonl", &size);
    for (char *at = lines, *end; *at; at = end + 1) {
        end = strchr(at, '\n');
        assert_non_null(end);
        json_t *golden = json_loadb(at, (size_t)(end - at), JSON_ALLOW_NUL, NULL);
        check_golden(golden, real, 3, &counts);
        json_decref(golden);
    }
    for (int i = 0; i < 3; i++)
        tokenizer_destroy(real[i]);
    mem_free(lines);
    print_message("%zu renders with %zu names of control tokens, %zu control tokens\n",
                  counts.renders, counts.names, counts.tokens);
    assert_true(counts.renders > 700 && counts.names > 100000);
}

/* ---- the rules ------------------------------------------------------------------------------- */

/* <a> 256, <b> 257, <a><b> 258, <c> 259 are control tokens. */
static struct tokenizer *small(void) {
    struct names names = {.n = 0};
    add_name(&names, "<a>", 3);
    add_name(&names, "<b>", 3);
    add_name(&names, "<a><b>", 6);
    add_name(&names, "<c>", 3);
    return made_tokenizer(&names);
}

/* Renders and checks the control tokens (256 and up) and other bytes, in order. */
static void check_rule(const char *source, const char *json, const char *want) {
    struct template *tmpl;
    kvasir_error err = {0};
    struct prompt p;
    const int32_t marker = 259;
    struct tokenizer *t = small();
    json_t *args = json_loads(json, 0, NULL), *own = json_pack("{s:s}", "bos_token", "<a>");
    struct text_buf got = {0};
    size_t n;
    assert_non_null(args);
    if (template_parse(source, strlen(source), &tmpl, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    assert_true(render(tmpl, args, own, &p));
    p.by.markers = &marker;
    p.by.n_markers = 1;
    int32_t *ids = encode_by(t, p.text.data, p.text.len, &p.by, &n);
    for (size_t i = 0; i < n; i++) {
        struct text_span bytes = tokenizer_bytes(t, ids[i]);
        bool control = ids[i] >= 256;
        assert_true((!control || text_puts(&got, "{")) &&
                    text_append(&got, bytes.data, bytes.len) && (!control || text_puts(&got, "}")));
    }
    assert_true(text_puts(&got, ""));
    if (strcmp(got.data, want) != 0)
        fail_msg("%s\n gave %s\n not  %s", source, got.data, want);
    text_free(&got);
    prompt_free(&p);
    mem_free(ids);
    json_decref(args);
    json_decref(own);
    template_destroy(tmpl);
    tokenizer_destroy(t);
}

static void test_rules(void **state) {
    (void)state;
    static const char x[] =
        "{\"x\": \"<a>\", \"y\": \"<b>\", \"h\": \"a>\", \"l\": [\"<a>\", \"1\"],"
        " \"d\": {\"<a>\": \"<b>\"}, \"w\": \"1<a>2<a>3\", \"n\": 1}";
    static const struct {
        const char *source, *want;
    } cases[] = {
        {"<a>{{ x }}<b>", "{<a>}<a>{<b>}"},
        {"{{ '<a>' }}{{ bos_token }}{{ x }}", "{<a>}{<a>}<a>"},
        /* composed by both, or next to each other */
        {"<{{ h }}", "<a>"},
        {"{{ '<' ~ h }}{{ '<' + h }}{{ '<%s' % h }}{{ '<{}'.format(h) }}", "<a><a><a><a>"},
        {"<a>{{ y }}", "{<a>}<b>"},
        {"{{ x }}<b>", "<a>{<b>}"},
        {"<a><b>{{ x }}<a><b>", "{<a><b>}<a>{<a><b>}"},
        {"{{ '<a>' + y + '<a>' + x }}", "{<a>}<b>{<a>}<a>"},
        {"{% set t = '' %}{% set t = t + '<a>' %}{% set u = t + x %}{% set v = t + '<b>' %}"
         "{{ u }}{{ v }}{{ t }}",
         "{<a>}<a>{<a><b>}{<a>}"},
        /* operations carry authors */
        {"{{ x|upper|lower }}{{ '<A>'|lower }}", "<a>{<a>}"},
        {"{{ x * 2 }}{{ '<a>' * 2 }}{{ ('<a>' + x) * 2 }}", "<a><a>{<a>}{<a>}{<a>}<a>{<a>}<a>"},
        {"{{ x|replace('1', '2') }}{{ w|replace('<a>', '<b>') }}", "<a>1{<b>}2{<b>}3"},
        {"{{ w.split('<a>')|join('') }}{{ w.partition('<a>')|join }}", "1231<a>2<a>3"},
        {"{{ l|join('<b>') }}{{ '<b>'.join(l) }}", "<a>{<b>}1<a>{<b>}1"},
        {"{{ x|trim }}{{ ' <a> '|trim }}{{ x|reverse|reverse }}{{ x[:3] }}{{ x[::1] }}",
         "<a>{<a>}<a><a><a>"},
        {"{{ ('<a>' + x)[::-1][::-1] }}{{ ('<a>' ~ x)[3:] }}", "{<a>}<a><a>"},
        {"{% for c in x %}{{ c }}{% endfor %}{% for c in '<a>' %}{{ c }}{% endfor %}", "<a>{<a>}"},
        {"{{ x|tojson }}{{ '<a>'|tojson }}{{ d|tojson }}{{ l }}{{ {'<b>': x} }}",
         "\"<a>\"\"{<a>}\"{\"<a>\": \"<b>\"}['<a>', '1']{'{<b>}': '<a>'}"},
        {"{% for k in d %}{{ k }}{{ d[k] }}{{ d['<a>'] }}{% endfor %}", "<a><b><b>"},
        {"{% set s %}<a>{{ x }}{% endset %}{{ s }}{{ s|safe }}{{ s.strip() }}",
         "{<a>}<a>{<a>}<a>{<a>}<a>"},
        {"{% macro m(v) %}<b>{{ v }}{% endmacro %}{{ m(x) }}{{ m('<a>') }}", "{<b>}<a>{<b>}{<a>}"},
        {"{{ x|center(5) }}{{ '<a>'.ljust(4) }}{{ x|indent }}{{ '%s'|format(x) }}",
         " <a> {<a>} <a><a>"},
        {"{{ x if x == '<a>' else 'no' }}{{ '<a>' in w }}{{ {'<a>': '<b>'}[x] }}", "<a>True{<b>}"},
        {"{{ nothing|default('<a>') }}{{ nothing|default(x) }}{{ '%c' % 60 }}a>", "{<a>}<a><a>"},
        {"{{ '<a>{}</a>'.format(n) }}{{ '%d<a>%%' % n }}{{ n }}<a>", "{<a>}1</a>1{<a>}%1{<a>}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_rule(cases[i].source, x, cases[i].want);
}

static void test_messages(void **state) {
    (void)state;
    static const char each[] =
        "{% for m in messages %}<a>{{ m.role }}:{{ m.content }}{{ m.name }}<b>{% endfor %}";
    check_rule(each,
               "{\"messages\": [{\"role\": \"user\", \"content\": \"<a><c>\", \"name\": \"<c>\"}]}",
               "{<a>}user:<a><c><c>{<b>}");
    check_rule(each, "{\"messages\": [{\"role\": \"system\", \"content\": \"<c>\"}]}",
               "{<a>}system:<c>{<b>}");
    check_rule(each, "{\"messages\": [{\"role\": \"tool\", \"content\": \"<c>\"}]}",
               "{<a>}tool:<c>{<b>}");
    check_rule(each, "{\"messages\": [{\"role\": \"assistant<a>\", \"content\": \"<c>\"}]}",
               "{<a>}assistant<a>:<c>{<b>}");
    /* an assistant's markers, also next to the template's text, but nothing else */
    check_rule(each, "{\"messages\": [{\"role\": \"assistant\", \"content\": \"<c>x<a><c>\"}]}",
               "{<a>}assistant:{<c>}x<a>{<c>}{<b>}");
    check_rule("{% for m in messages %}<{{ m.content }}{% endfor %}",
               "{\"messages\": [{\"role\": \"assistant\", \"content\": \"c>\"},"
               " {\"role\": \"user\", \"content\": \"c>\"}]}",
               "{<c>}<c>");
    check_rule("{{ messages[0].content ~ messages[1].content }}",
               "{\"messages\": [{\"role\": \"assistant\", \"content\": \"<\"},"
               " {\"role\": \"user\", \"content\": \"c>\"}]}",
               "<c>");
    /* names of roles are the template's; a client's own bos_token is not */
    check_rule("{% for m in messages %}<{{ m.role[5] }}>{% endfor %}",
               "{\"messages\": [{\"role\": \"system\"}]}", "<m>");
    check_rule("{{ bos_token }}<a>", "{\"bos_token\": \"<a>\", \"messages\": []}", "<a>{<a>}");
}

static void test_role_words(void **state) {
    (void)state;
    struct names names = {.n = 0};
    struct template *tmpl;
    struct prompt p;
    kvasir_error err;
    static const char source[] = "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' }}{% endfor %}";
    size_t n;
    add_name(&names, "<|user|>", 8);
    add_name(&names, "<|evil|>", 8);
    struct tokenizer *t = made_tokenizer(&names);
    json_t *args =
        json_loads("{\"messages\": [{\"role\": \"user\"}, {\"role\": \"evil\"}]}", 0, NULL);
    assert_int_equal(template_parse(source, strlen(source), &tmpl, &err), KVASIR_OK);
    assert_true(render(tmpl, args, NULL, &p));
    int32_t *ids = encode_by(t, p.text.data, p.text.len, &p.by, &n);
    assert_int_equal(n, 1 + 8);
    assert_int_equal(ids[0], 256);
    assert_int_equal(keep_control(t, ids, n), 1);
    mem_free(ids);
    prompt_free(&p);
    json_decref(args);
    template_destroy(tmpl);
    tokenizer_destroy(t);
}

/* Control tokens marked "normalized" are looked for in the pieces between the others. */
static void test_normalized(void **state) {
    (void)state;
    static const char source[] = "<s>{{ x }}<n><s>{{ x }}";
    char *json = NULL;
    size_t len, n;
    struct template *tmpl;
    struct prompt p;
    kvasir_error err;
    FILE *f = open_memstream(&json, &len);
    assert_non_null(f);
    fputs("{\"version\":\"1.0\",\"added_tokens\":["
          "{\"id\":256,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"
          "{\"id\":257,\"content\":\"<n>\",\"special\":true,\"normalized\":true}],"
          "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
          "false,\"use_regex\":false},\"post_processor\":null,\"decoder\":{\"type\":"
          "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"ignore_merges\":false,\"vocab\":{",
          f);
    byte_tokenizer_vocab(f);
    fputs("},\"merges\":[]}}", f);
    assert_int_equal(fclose(f), 0);
    struct tokenizer *t = create(&(struct tokenizer_spec){
        .json = {json, len}, .bos = -1, .eos = -1, .eot = -1, .unk = -1, .pad = -1});
    json_t *args = json_loads("{\"x\": \"<n>\"}", 0, NULL);
    assert_int_equal(template_parse(source, strlen(source), &tmpl, &err), KVASIR_OK);
    assert_true(render(tmpl, args, NULL, &p));
    int32_t *ids = encode_by(t, p.text.data, p.text.len, &p.by, &n);
    static const int32_t want[] = {256, '<', 'n', '>', 257, 256, '<', 'n', '>'};
    assert_int_equal(n, sizeof want / sizeof *want);
    assert_memory_equal(ids, want, sizeof want);
    mem_free(ids);
    prompt_free(&p);
    json_decref(args);
    template_destroy(tmpl);
    tokenizer_destroy(t);
    free(json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),         cmocka_unit_test(test_messages),
        cmocka_unit_test(test_role_words),    cmocka_unit_test(test_normalized),
        cmocka_unit_test(test_all_templates),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed ? failed : data_missing ? 77 : 0;
}
