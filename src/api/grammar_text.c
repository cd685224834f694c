/* SPDX-License-Identifier: Apache-2.0 */
/* grammar_text.c: the parts of a grammar's text. */
#include "api/grammar_text.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "api/answer_syntax.h"
#include "util/json.h"

/* ---- text ------------------------------------------------------------------------------------ */

static void append(struct grammar_text *g, const char *text, size_t len) {
    if (!g->failed && !text_append(&g->text, text, len))
        g->failed = true;
}

void grammar_puts(struct grammar_text *g, const char *text) {
    append(g, text, strlen(text));
}

void grammar_printf(struct grammar_text *g, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (!g->failed && !text_vprintf(&g->text, format, args))
        g->failed = true;
    va_end(args);
}

void grammar_literal(struct grammar_text *g, const char *text, size_t len) {
    grammar_puts(g, "\"");
    for (size_t i = 0; i < len; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            grammar_printf(g, "\\%c", c);
        else if (c == '\n')
            grammar_puts(g, "\\n");
        else if (c < 0x20 || c == 0x7f)
            grammar_printf(g, "\\x%02X", c);
        else
            append(g, text + i, 1);
    }
    grammar_puts(g, "\"");
}

/* Whether another schema of the same value may speak of its members, somewhere in this one. */
static bool is_combined(json_t *at) {
    static const char *const WORDS[] = {
        "allOf", "not", "if", "$ref", "dependencies", "dependentSchemas", "unevaluatedProperties"};
    const char *key;
    json_t *value;
    size_t i;
    for (i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        if (json_object_get(at, "properties") && json_object_get(at, WORDS[i]))
            return true;
    if (json_object_get(at, "allOf") || json_object_get(at, "not") || json_object_get(at, "if") ||
        (json_object_get(at, "properties") &&
         (json_object_get(at, "anyOf") || json_object_get(at, "oneOf"))))
        return true;
    json_object_foreach(at, key, value) {
        if (is_combined(value))
            return true;
    }
    json_array_foreach(at, i, value) {
        if (is_combined(value))
            return true;
    }
    return false;
}

static bool is_one_of(const char *key, const char *const *words) {
    for (; *words; words++)
        if (strcmp(key, *words) == 0)
            return true;
    return false;
}

static bool close_object(json_t *schema) {
    return !json_is_object(json_object_get(schema, "properties")) ||
           json_object_get(schema, "additionalProperties") ||
           json_object_set_new(schema, "additionalProperties", json_false()) == 0;
}

/* `named`: the members of `at` are schemas by the names of something, not keywords. */
static bool close_objects(json_t *at, bool named) {
    static const char *const DATA[] = {"const", "enum", "default", "examples", NULL};
    static const char *const NAMED[] = {
        "properties", "patternProperties", "dependentSchemas", "definitions", "$defs", NULL};
    const char *key;
    json_t *value;
    size_t i;
    if (!named && !close_object(at))
        return false;
    json_object_foreach(at, key, value) {
        if (!named && is_one_of(key, DATA))
            continue;
        if (!close_objects(value, !named && is_one_of(key, NAMED)))
            return false;
    }
    json_array_foreach(at, i, value) {
        if (!close_objects(value, false))
            return false;
    }
    return true;
}

char *grammar_schema_text(json_t *schema) {
    const bool combined = is_combined(schema);
    json_t *copy = combined ? json_copy(schema) : json_deep_copy(schema);
    const bool good = copy && (combined || close_objects(copy, false)) &&
                      (!json_is_object(copy) || json_object_get(copy, "x-canonical") ||
                       json_object_set_new(copy, "x-canonical", json_true()) == 0);
    char *text = good ? answer_arguments_text(copy) : NULL;
    json_decref(copy);
    return text;
}

void grammar_json(struct grammar_text *g, json_t *schema) {
    char *text = grammar_schema_text(schema);
    grammar_puts(g, "%json ");
    grammar_puts(g, text ? text : "");
    g->failed = g->failed || !text;
    free(text);
}

/* The only escape is that of a quote, so a backslash cannot be the last character. */
void grammar_regex(struct grammar_text *g, const char *text, size_t len) {
    const bool group = len > 0 && text[len - 1] == '\\';
    grammar_puts(g, group ? "%regex \"(?:" : "%regex \"");
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '"')
            grammar_puts(g, "\\");
        append(g, text + i, 1);
    }
    grammar_puts(g, group ? ")\"" : "\"");
}

/* ---- markers --------------------------------------------------------------------------------- */

/* The first control token of a text and its name, free() by kvasir_free; false: there is none. */
static bool first_control(struct grammar_text *g, const char *text, int32_t *id, char **name) {
    int32_t *ids;
    size_t n, len;
    bool found = false;
    if (kvasir_tokenize(g->tokenizer, text, strlen(text), KVASIR_TOKENIZE_PARSE_SPECIAL, &ids, &n,
                        NULL)) {
        g->failed = true;
        return false;
    }
    for (size_t i = 0; i < n && !found; i++) {
        *id = ids[i];
        found = answer_is_control(g->tokenizer, *id);
    }
    kvasir_free(ids);
    if (!found)
        return false;
    g->failed = kvasir_detokenize(g->tokenizer, id, 1, 0, name, &len, NULL) != KVASIR_OK;
    return !g->failed;
}

void grammar_marked(struct grammar_text *g, const char *text) {
    while (!g->failed && *text) {
        int32_t id;
        char *name = NULL;
        const char *at = NULL;
        if (first_control(g, text, &id, &name))
            at = strstr(text, name);
        const size_t before = at ? (size_t)(at - text) : strlen(text);
        if (before)
            grammar_literal(g, text, before);
        if (at)
            grammar_printf(g, "%s<[%d]>", before ? " " : "", id);
        text += before + (at ? strlen(name) : 0);
        if (*text)
            grammar_puts(g, " ");
        kvasir_free(name);
    }
}

/* ---- another grammar ------------------------------------------------------------------------- */

static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '-' || c == '_';
}

/* The end of what begins at `at` and has no names of rules in it: a literal, a class, a token, a
 * number of repetitions, a comment. */
static size_t skip_quoted(const char *text, size_t len, size_t at) {
    static const char OPEN[] = "\"[<{#", CLOSE[] = "\"]>}\n";
    const char close = CLOSE[strchr(OPEN, text[at]) - OPEN];
    for (at++; at < len && text[at] != close; at++)
        at += close != '\n' && text[at] == '\\' && at + 1 < len;
    return at < len ? at + 1 : len;
}

/* The same of %json and its schema, or another word after '%'. */
static size_t skip_percent(const char *text, size_t len, size_t at) {
    static const char SCHEMA[] = "json";
    size_t end = at + 1, used = 0;
    json_t *value;
    while (end < len && is_word(text[end]))
        end++;
    if (end - at - 1 != strlen(SCHEMA) || memcmp(text + at + 1, SCHEMA, strlen(SCHEMA)) != 0)
        return end;
    size_t from = end;
    while (from < len && isspace((unsigned char)text[from]))
        from++;
    if (json_load_first(text + from, len - from, JSON_ALLOW_NUL, &used, &value, NULL))
        return end;
    json_decref(value);
    return from + used;
}

void grammar_prefixed(struct grammar_text *g, const char *text, size_t len, const char *prefix) {
    for (size_t at = 0, end; at < len; at = end) {
        end = at + 1;
        if (text[at] == '%') {
            end = skip_percent(text, len, at);
        } else if (text[at] && strchr("\"[<{#", text[at])) {
            end = skip_quoted(text, len, at);
        } else if (is_word(text[at])) {
            grammar_puts(g, prefix);
            while (end < len && is_word(text[end]))
                end++;
        }
        append(g, text + at, end - at);
    }
    grammar_puts(g, "\n");
}

/* ---- text without markers -------------------------------------------------------------------- */

/* States of a search for all markers at once: the beginnings of markers, the empty one first. A
 * character goes to the longest beginning that ends with it. */
enum { PREFIXES_MAX = 256, FORBIDDEN = -1 };
struct prefixes {
    const struct grammar_free *of;
    struct prefix {
        const char *text;
        size_t len;
    } all[PREFIXES_MAX];
    size_t n;
};

static int find_prefix(const struct prefixes *p, const char *text, size_t len) {
    for (size_t i = 0; i < p->n; i++)
        if (p->all[i].len == len && memcmp(p->all[i].text, text, len) == 0)
            return (int)i;
    return FORBIDDEN;
}

static bool is_marker(const struct grammar_free *f, const char *text, size_t len) {
    for (size_t i = 0; i < f->n; i++)
        if (strlen(f->without[i]) == len && memcmp(f->without[i], text, len) == 0)
            return true;
    return false;
}

static void list_prefixes(struct prefixes *p) {
    p->all[p->n++] = (struct prefix){"", 0};
    for (size_t i = 0; i < p->of->n; i++) {
        const char *marker = p->of->without[i];
        for (size_t len = 1; len < strlen(marker); len++)
            if (find_prefix(p, marker, len) < 0) {
                ASSERT(p->n < PREFIXES_MAX);
                p->all[p->n++] = (struct prefix){marker, len};
            }
    }
}

/* Where `c` leads from a state; FORBIDDEN: it completes a marker. */
static int next_prefix(const struct prefixes *p, size_t state, char c) {
    char text[64];
    const size_t len = p->all[state].len + 1;
    int found = FORBIDDEN;
    ASSERT(len < sizeof text);
    memcpy(text, p->all[state].text, len - 1);
    text[len - 1] = c;
    for (size_t from = 0; from < len; from++)
        if (is_marker(p->of, text + from, len - from))
            return FORBIDDEN;
    for (size_t from = 0; from <= len && found < 0; from++)
        found = find_prefix(p, text + from, len - from);
    return found;
}

static void write_char(struct grammar_text *g, char c) {
    grammar_printf(g, isalnum((unsigned char)c) ? "%c" : "\\x%02X", c);
}

/* name ::= "" | [^<] name-0 | [<] name-1 */
static void write_state(struct grammar_text *g, const struct prefixes *p, size_t state,
                        const char *also_not) {
    const char *name = p->of->name;
    bool special[128] = {false};
    for (size_t i = 0; i < p->of->n; i++)
        for (const char *c = p->of->without[i]; *c; c++)
            special[(unsigned char)*c & 127] = next_prefix(p, state, *c) != 0;
    for (const char *c = also_not; *c; c++)
        special[(unsigned char)*c] = true;
    grammar_puts(g, "\"\" | [^");
    for (int c = 0; c < 128; c++)
        if (special[c])
            write_char(g, (char)c);
    grammar_printf(g, "] %s-0", name);
    for (size_t to = 1; to < p->n; to++) {
        bool begun = false;
        for (int c = 1; c < 128; c++) {
            if (!special[c] || strchr(also_not, c) || next_prefix(p, state, (char)c) != (int)to)
                continue;
            grammar_puts(g, begun ? "" : " | [");
            write_char(g, (char)c);
            begun = true;
        }
        if (begun)
            grammar_printf(g, "] %s-%zu", name, to);
    }
    grammar_puts(g, "\n");
}

void grammar_free_text(struct grammar_text *g, const struct grammar_free *free_text) {
    struct prefixes p = {.of = free_text};
    ASSERT(free_text->n > 0 && free_text->n <= GRAMMAR_MARKERS_MAX);
    list_prefixes(&p);
    for (size_t i = 0; i < p.n; i++) {
        grammar_printf(g, "%s-%zu ::= ", free_text->name, i);
        write_state(g, &p, i, "");
    }
    if (!free_text->not_an_object)
        return;
    grammar_printf(g, "%s-lead ::= [ \\t\\r\\n] %s-lead | ", free_text->name, free_text->name);
    write_state(g, &p, 0, " \t\r\n\v\f{");
}
