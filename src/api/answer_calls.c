/* SPDX-License-Identifier: Apache-2.0 */
/* answer_calls.c: the text of calls to names and arguments.
 *
 *     JSON         {"name": "f", "arguments": {..}}, in a list, or several in a row
 *     ARGS         f[ARGS]{..}  f[CALL_ID]id[ARGS]{..}
 *     XML          <function=f><parameter=k>v</parameter></function>
 *     braces       call:f{k:<|"|>v<|"|>,n:1}            one reader of literals for both, which
 *     Python       [f(k="v", n=1)]  f.call(k="v")        knows how strings are quoted
 *
 * A reader either takes a call whole or fails; what it made is dropped then, and the text stays
 * text (ANSWER-3). Readers only move forward (ANSWER-5).
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "api/answer_syntax.h"
#include "util/json.h"
#include "util/utf8.h"

/* ---- reading --------------------------------------------------------------------------------- */

enum { DEPTH_MAX = 64 };

struct reader {
    const char *at, *end;
    const char *quote; /* around strings in braces; NULL: Python's quotes */
    int depth;
};

static void skip_space(struct reader *r) {
    while (r->at < r->end && strchr(" \t\r\n", *r->at) && *r->at)
        r->at++;
}

static bool at_text(const struct reader *r, const char *text) {
    size_t n = strlen(text);
    return (size_t)(r->end - r->at) >= n && memcmp(r->at, text, n) == 0;
}

static bool take(struct reader *r, const char *text) {
    DEBUG_ASSERT(r->at <= r->end);
    bool there = at_text(r, text);
    r->at += there ? strlen(text) : 0;
    return there;
}

static bool at_char(const struct reader *r, const char *set) {
    return r->at < r->end && *r->at && strchr(set, *r->at);
}

/* Everything before the next occurrence of `text`, which is skipped; false: there is none. */
static bool take_until(struct reader *r, const char *text, const char **from, size_t *n) {
    *from = r->at;
    for (; r->at < r->end; r->at++)
        if (at_text(r, text)) {
            *n = (size_t)(r->at - *from);
            r->at += strlen(text);
            return true;
        }
    return false;
}

/* An array or object; NULL: none. */
static json_t *take_json(struct reader *r) {
    json_t *value;
    size_t used;
    if (json_load_first(r->at, (size_t)(r->end - r->at), JSON_ALLOW_NUL, &used, &value, NULL) ==
        KVASIR_OK)
        r->at += used;
    return value;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static bool is_name(json_t *name) {
    size_t n = json_string_length(name);
    return n > 0 && strlen(json_string_value(name)) == n;
}

/* Takes over the references. */
static bool add_call(json_t *calls, json_t *name, json_t *arguments) {
    json_t *call = NULL;
    if (is_name(name) && json_is_object(arguments))
        call = json_pack("{s:O, s:O}", "name", name, "arguments", arguments);
    json_decref(name);
    json_decref(arguments);
    return call && json_array_append_new(calls, call) == 0;
}

/* An id that the model wrote, if its syntax has ids: letters, digits, - and _. */
static bool add_id(json_t *calls, const char *id, size_t n) {
    ASSERT(json_array_size(calls) > 0); /* its call was added */
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)id[i]) && id[i] != '-' && id[i] != '_')
            return true;
    return n == 0 || n > 64 ||
           json_object_set_new(json_array_get(calls, json_array_size(calls) - 1), "id",
                               json_stringn(id, n)) == 0;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* A new reference to an object; NULL: it is none. Some models write it as a string. */
static json_t *arguments_of(json_t *given) {
    if (json_is_object(given))
        return json_incref(given);
    if (!json_is_string(given))
        return NULL;
    json_t *read;
    if (json_load_request(json_string_value(given), json_string_length(given), JSON_ALLOW_NUL,
                          &read, NULL) == KVASIR_OK &&
        json_is_object(read))
        return read;
    json_decref(read);
    return NULL;
}

/* bare: without a marker any object might be a plain answer, so arguments are required. */
static bool add_object(json_t *calls, json_t *object, bool bare) {
    json_t *inner = json_object_get(object, "function"), *id = json_object_get(object, "id");
    json_t *from = json_is_object(inner) ? inner : object;
    json_t *arguments = json_object_get(from, "arguments");
    if (!arguments)
        arguments = json_object_get(from, "parameters");
    arguments = arguments ? arguments_of(arguments) : bare ? NULL : json_object();
    return add_call(calls, json_incref(json_object_get(from, "name")), arguments) &&
           (!id || add_id(calls, json_string_value(id), json_string_length(id)));
}

static bool add_value(json_t *calls, json_t *value, bool bare) {
    if (!json_is_array(value))
        return json_is_object(value) && add_object(calls, value, bare);
    bool good = json_array_size(value) > 0;
    for (size_t i = 0; good && i < json_array_size(value); i++)
        good = add_object(calls, json_array_get(value, i), bare);
    return good;
}

/* Values in a row, separated by ; or , until something else comes. */
static bool read_json(struct reader *r, json_t *calls, bool bare) {
    const char *good = r->at;
    for (;;) {
        size_t before = json_array_size(calls);
        skip_space(r);
        while (before && at_char(r, ";,")) {
            r->at++;
            skip_space(r);
        }
        json_t *value = at_char(r, "{[") ? take_json(r) : NULL;
        bool added = value && add_value(calls, value, bare);
        json_decref(value);
        if (!added) {
            while (json_array_size(calls) > before)
                json_array_remove(calls, json_array_size(calls) - 1);
            if (value || r->at < r->end) /* separators at the very end are dropped */
                r->at = good;
            return before > 0;
        }
        good = r->at;
    }
}

/* f[ARGS]{..}, and f{..} */
static bool read_args(struct reader *r, json_t *calls) {
    const char *name = r->at, *id = "";
    size_t n_name = 0, n_id = 0;
    while (r->at < r->end && !at_char(r, "[{"))
        r->at++;
    n_name = (size_t)(r->at - name);
    while (n_name && isspace((unsigned char)name[n_name - 1]))
        n_name--;
    if (take(r, "[CALL_ID]")) {
        id = r->at;
        while (r->at < r->end && *r->at != '[')
            r->at++;
        n_id = (size_t)(r->at - id);
    }
    take(r, "[ARGS]");
    skip_space(r);
    json_t *value = at_char(r, "{") ? take_json(r) : NULL;
    return value && add_call(calls, json_stringn(name, n_name), value) && add_id(calls, id, n_id);
}

/* ---- XML ------------------------------------------------------------------------------------- */

/* The type of a parameter by the tool's schema; NULL: it has none. */
static json_t *type_of(json_t *schema, json_t *name, json_t *key) {
    for (size_t i = 0; i < json_array_size(schema); i++) {
        json_t *function = json_object_get(json_array_get(schema, i), "function");
        if (json_equal(json_object_get(function, "name"), name)) {
            json_t *parameters = json_object_get(function, "parameters");
            json_t *all = json_object_get(parameters, "properties");
            json_t *one = json_object_get(all, json_string_value(key));
            json_t *type = json_object_get(one, "type");
            return type ? type : json_object_get(one, "anyOf");
        }
    }
    return NULL;
}

/* "string", or among ["string", ..] or [{"type": "string"}, ..] */
static bool says_string(json_t *type) {
    if (json_is_object(type))
        type = json_object_get(type, "type");
    const char *word = json_string_value(type);
    for (size_t i = 0; i < json_array_size(type); i++)
        if (says_string(json_array_get(type, i)))
            return true;
    return word && strcmp(word, "string") == 0;
}

/* A value written without a type: a string, unless the schema has another type and the value is
 * JSON (as in vLLM and mlx-lm). */
static json_t *typed_value(json_t *schema, json_t *name, json_t *key, const char *text,
                           size_t len) {
    json_t *type = type_of(schema, name, key);
    if (type && !says_string(type)) {
        json_t *value;
        if (json_load_request(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &value, NULL) ==
            KVASIR_OK)
            return value;
        if (len == 4 && memcmp(text, "True", 4) == 0)
            return json_true();
        if (len == 5 && memcmp(text, "False", 5) == 0)
            return json_false();
        if (len == 4 && memcmp(text, "None", 4) == 0)
            return json_null();
    }
    return json_stringn(text, len);
}

/* k>v</parameter>; a value also ends at the next parameter or the function's end. One line end at
 * each end of the value is layout. */
static bool read_parameter(struct reader *r, json_t *arguments, json_t *schema, json_t *name) {
    const char *key, *value;
    size_t n_key, n;
    if (!take_until(r, ">", &key, &n_key))
        return false;
    for (value = r->at; r->at < r->end; r->at++)
        if (*r->at == '<' &&
            (at_text(r, "</parameter>") || at_text(r, "<parameter=") || at_text(r, "</function>")))
            break;
    n = (size_t)(r->at - value);
    if (r->at == r->end)
        return false;
    take(r, "</parameter>");
    if (n && *value == '\n') {
        value++;
        n--;
    }
    n -= n && value[n - 1] == '\n';
    json_t *k = json_stringn(key, n_key);
    bool good = is_name(k) && json_object_set_new(arguments, json_string_value(k),
                                                  typed_value(schema, name, k, value, n)) == 0;
    json_decref(k);
    return good;
}

static bool read_function(struct reader *r, json_t *calls, bool closed, json_t *schema) {
    const char *text;
    size_t n;
    if (!take(r, "<function=") || !take_until(r, ">", &text, &n))
        return false;
    json_t *name = json_stringn(text, n), *arguments = json_object();
    bool good = name && arguments;
    skip_space(r);
    while (good && take(r, "<parameter=")) {
        good = read_parameter(r, arguments, schema, name);
        skip_space(r);
    }
    if (good && !take(r, "</function>"))
        good = closed && r->at == r->end; /* some models leave it out */
    if (good)
        return add_call(calls, name, arguments);
    json_decref(name);
    json_decref(arguments);
    return false;
}

/* ---- literals -------------------------------------------------------------------------------- */

static json_t *read_literal(struct reader *r);

static int hex(const char *at, int n) {
    int value = 0;
    for (int i = 0; i < n; i++) {
        int c = tolower((unsigned char)at[i]);
        if (!isxdigit(c))
            return -1;
        value = value * 16 + (isdigit(c) ? c - '0' : c - 'a' + 10);
    }
    return value;
}

/* The second half of a surrogate pair, as JSON writes it; -1: there is none. */
static int low_surrogate(const struct reader *r, const char *at) {
    int low = r->end - at >= 6 && at[0] == '\\' && at[1] == 'u' ? hex(at + 2, 4) : -1;
    return low >= 0xdc00 && low < 0xe000 ? low : -1;
}

/* A character of Python's \x, \u, \U, after the backslash, or a pair of JSON's \u. Returns the
 * bytes written; 0: it is not valid. */
static size_t read_code(struct reader *r, char *out) {
    int n = *r->at == 'x' ? 2 : *r->at == 'u' ? 4 : 8;
    if (r->end - r->at <= n)
        return 0;
    int c = n == 8 && (r->at[1] != '0' || r->at[2] != '0') ? -1 : hex(r->at + 1, n);
    int low = n == 4 && c >= 0xd800 && c < 0xdc00 ? low_surrogate(r, r->at + 5) : -1;
    if (low >= 0) {
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
        n += 6;
    }
    if (c < 0 || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return 0;
    r->at += n + 1;
    return utf8_put(out, (uint32_t)c);
}

/* A string in ' or ", of Python or JSON. Unknown escapes stay as they are. */
static json_t *read_quoted(struct reader *r) {
    static const char ESCAPES[] = "n\nt\tr\rb\bf\f\\\\''\"\"//";
    ASSERT(r->at < r->end);
    char quote = *r->at++;
    const size_t room = (size_t)(r->end - r->at) + 1; /* what is read is never shorter */
    char *text = malloc(room);
    size_t n = 0;
    bool good = text != NULL;
    while (good && r->at < r->end && *r->at != quote) {
        if (*r->at != '\\') {
            text[n++] = *r->at++;
            continue;
        }
        const char *escape = NULL;
        good = ++r->at < r->end;
        for (const char *e = ESCAPES; good && *e && !escape; e += 2)
            escape = *e == *r->at ? e : NULL;
        if (escape) {
            text[n++] = escape[1];
            r->at++;
        } else if (good && at_char(r, "xuU")) {
            size_t more = read_code(r, text + n);
            good = more > 0;
            n += more;
        } else if (good) {
            text[n++] = '\\';
        }
    }
    ASSERT(n <= room);
    json_t *value = good && r->at < r->end ? json_stringn(text, n) : NULL;
    r->at += value != NULL;
    free(text);
    return value;
}

/* Words and numbers: everything up to the end of a value. */
static json_t *read_word(struct reader *r) {
    static const char *const WORDS[] = {"true", "True", "false", "False", "null", "None"};
    const char *from = r->at;
    while (r->at < r->end && !at_char(r, ",}])"))
        r->at++;
    size_t n = (size_t)(r->at - from);
    while (n && isspace((unsigned char)from[n - 1]))
        n--;
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        if (n == strlen(WORDS[i]) && memcmp(from, WORDS[i], n) == 0)
            return i < 2 ? json_true() : i < 4 ? json_false() : json_null();
    json_t *value;
    if (json_load_request(from, n, JSON_DECODE_ANY, &value, NULL) == KVASIR_OK || !r->quote || !n)
        return value;
    return json_stringn(from, n); /* models sometimes leave out the quotes in braces */
}

static json_t *read_list(struct reader *r, const char *close) {
    json_t *list = json_array();
    bool good = list != NULL;
    skip_space(r);
    while (good && !take(r, close)) {
        good = json_array_append_new(list, read_literal(r)) == 0;
        skip_space(r);
        good = good && (take(r, ",") || at_text(r, close));
        skip_space(r);
    }
    if (good)
        return list;
    json_decref(list);
    return NULL;
}

/* A key of an object and the : (or = of Python's arguments) after it; NULL: none. */
static json_t *read_key(struct reader *r, const char *after) {
    const char *from = r->at;
    size_t n = 0;
    json_t *key = NULL;
    if (r->quote && take(r, r->quote)) {
        if (take_until(r, r->quote, &from, &n))
            key = json_stringn(from, n);
    } else if (at_char(r, "\"'")) {
        key = read_quoted(r);
    } else {
        while (r->at < r->end && !at_char(r, ":=,{}[]()"))
            r->at++;
        for (n = (size_t)(r->at - from); n && isspace((unsigned char)from[n - 1]);)
            n--;
        key = json_stringn(from, n);
    }
    skip_space(r);
    if (is_name(key) && take(r, after))
        return key;
    json_decref(key);
    return NULL;
}

/* Members up to `close`. */
static json_t *read_members(struct reader *r, const char *after, const char *close) {
    json_t *object = json_object();
    bool good = object != NULL;
    skip_space(r);
    while (good && !take(r, close)) {
        json_t *key = read_key(r, after);
        good = key && json_object_set_new(object, json_string_value(key), read_literal(r)) == 0;
        json_decref(key);
        skip_space(r);
        good = good && (take(r, ",") || at_text(r, close));
        skip_space(r);
    }
    if (good)
        return object;
    json_decref(object);
    return NULL;
}

/* NULL: none. */
static json_t *read_literal(struct reader *r) {
    const char *from;
    size_t n;
    json_t *value = NULL;
    skip_space(r);
    if (++r->depth > DEPTH_MAX)
        return NULL;
    if (r->quote && take(r, r->quote)) {
        if (take_until(r, r->quote, &from, &n))
            value = json_stringn(from, n);
    } else if (at_char(r, "\"'")) {
        value = read_quoted(r);
    } else if (take(r, "[")) {
        value = read_list(r, "]");
    } else if (!r->quote && take(r, "(")) {
        value = read_list(r, ")");
    } else if (take(r, "{")) {
        value = read_members(r, ":", "}");
    } else {
        value = read_word(r);
    }
    r->depth--;
    return value;
}

/* call:f{..}; JSON if the first key is in JSON's quotes */
static bool read_braces(struct reader *r, json_t *calls) {
    const char *name;
    size_t n;
    if (!take(r, "call:") || !take_until(r, "{", &name, &n))
        return false;
    struct reader json = {.at = r->at - 1, .end = r->end};
    skip_space(r);
    json_t *arguments = at_char(r, "\"") ? take_json(&json) : NULL;
    if (arguments) {
        r->at = json.at;
        return add_call(calls, json_stringn(name, n), arguments);
    }
    return add_call(calls, json_stringn(name, n), read_members(r, ":", "}"));
}

/* f(k=v, ..), f.call(k=v, ..) */
static bool read_python(struct reader *r, json_t *calls) {
    const char *name = r->at;
    while (r->at < r->end && (isalnum((unsigned char)*r->at) || at_char(r, "_.-")))
        r->at++;
    size_t n = (size_t)(r->at - name);
    if (n > 5 && memcmp(name + n - 5, ".call", 5) == 0)
        n -= 5;
    return n > 0 && take(r, "(") &&
           add_call(calls, json_stringn(name, n), read_members(r, "=", ")"));
}

/* Several in a row, in a list or not. */
static bool read_pythons(struct reader *r, json_t *calls) {
    bool list = take(r, "["), good = true;
    while (good) {
        skip_space(r);
        good = read_python(r, calls);
        skip_space(r);
        if (list && take(r, "]"))
            break;
        if (!list && r->at == r->end)
            break;
        good = good && (take(r, ",") || !list);
    }
    return good;
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* Several in a row: f{..} f{..} */
static bool read_many(struct reader *r, json_t *calls, bool closed, json_t *schema, bool braces) {
    bool good = true;
    do {
        good = braces ? read_braces(r, calls) : read_function(r, calls, closed, schema);
        skip_space(r);
    } while (good && r->at < r->end && (!braces || take(r, ",") || at_text(r, "call:")));
    return good;
}

/* If models of a family write several syntaxes, the first characters tell which one it is. */
static bool read_calls(enum answer_tools tools, struct reader *r, bool closed, json_t *schema,
                       json_t *calls) {
    switch (tools) {
    case ANSWER_HERMES:
    case ANSWER_QWEN_CODER:
        return at_text(r, "<function=") ? read_many(r, calls, closed, schema, false)
                                        : read_json(r, calls, false);
    case ANSWER_MISTRAL:
        return at_char(r, "{[") ? read_json(r, calls, false) : read_args(r, calls);
    case ANSWER_LLAMA3:
        return at_char(r, "{[") ? read_json(r, calls, true) : read_pythons(r, calls);
    case ANSWER_GEMMA4:
        r->quote = "<|\"|>";
        return read_many(r, calls, closed, schema, true);
    case ANSWER_FUNCTION_GEMMA:
        r->quote = "<escape>";
        return read_many(r, calls, closed, schema, true);
    case ANSWER_PYTHONIC:
    case ANSWER_TOOL_CODE:
        return at_char(r, "{") ? read_json(r, calls, false) : read_pythons(r, calls);
    case ANSWER_HARMONY: /* its name is in the header */
    case ANSWER_TOOLS_NONE:
        break;
    }
    return false;
}

size_t answer_calls_read(enum answer_tools tools, const char *text, size_t len, bool closed,
                         json_t *schema, json_t **calls) {
    struct reader r = {.at = text, .end = text + len};
    bool open_end = tools == ANSWER_MISTRAL || tools == ANSWER_LLAMA3;
    *calls = json_array();
    skip_space(&r);
    bool good = *calls && read_calls(tools, &r, closed, schema, *calls);
    if (good && !open_end)
        skip_space(&r);
    ASSERT(r.at >= text && r.at <= r.end);
    if (good && (open_end || r.at == r.end))
        return (size_t)(r.at - text);
    json_decref(*calls);
    *calls = NULL;
    return 0;
}

/* The lowest precision that keeps the numbers, so that 0.1 does not become 0.10000000000000001. */
char *answer_arguments_text(json_t *arguments) {
    for (size_t precision = 15; precision < 17; precision++) {
        char *text = json_dumps(arguments, JSON_ENCODE_ANY | JSON_REAL_PRECISION(precision));
        json_t *again = NULL;
        if (text &&
            json_load_request(text, strlen(text), JSON_ALLOW_NUL | JSON_DECODE_ANY, &again, NULL))
            again = NULL;
        bool same = json_equal(again, arguments);
        json_decref(again);
        if (same || !text)
            return text;
        free(text);
    }
    return json_dumps(arguments, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
}
