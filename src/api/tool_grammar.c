/* SPDX-License-Identifier: Apache-2.0 */
/* tool_grammar.c: tool calls as a grammar.
 *
 *     JSON     {"name": "f", "arguments": {..}}, in the family's markers and layout
 *     values   f(k="v")   call:f{k:<|"|>v<|"|>}   <parameter=k>v</parameter>
 *
 * Arguments in JSON are those of the tool's schema, whatever it says. The other forms write each
 * argument in a way of its own, in the order of "properties", and can do so only for plain ones:
 * texts, numbers, booleans, and in Python lists of them. A tool that takes more is called in JSON
 * between the same markers, which answer_calls.c reads, too.
 */
#include "api/tool_grammar.h"

#include <ctype.h>
#include <string.h>

/* ---- plain schemas --------------------------------------------------------------------------- */

enum { PROPERTIES_MAX = 64 };

static bool is_among(const char *word, const char *const *words) {
    for (; *words; words++)
        if (strcmp(word, *words) == 0)
            return true;
    return false;
}

static bool has_only(json_t *object, const char *const *names, const char *const *more) {
    static const char *const ABOUT[] = {"type",     "title",      "description", "default",
                                        "examples", "deprecated", "$schema",     NULL};
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        if (!is_among(key, ABOUT) && !is_among(key, names) && !is_among(key, more))
            return false;
    }
    return true;
}

/* A string that holds no marker. */
static bool is_safe(json_t *value) {
    const char *text = json_string_value(value);
    return text && strlen(text) == json_string_length(value) && !strchr(text, '<');
}

/* Its strings stand alone: one of enum, or const, or any. */
static bool is_plain_text(json_t *schema) {
    static const char *const NAMES[] = {"enum", "const", NULL}, *const NONE[] = {NULL};
    json_t *list = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
    if (!has_only(schema, NAMES, NONE) || (one && list))
        return false;
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!is_safe(json_array_get(list, i)))
            return false;
    return (!one || is_safe(one)) && (!list || json_array_size(list) > 0);
}

static const char *type_of(json_t *schema) {
    const char *type = json_string_value(json_object_get(schema, "type"));
    return type ? type : "";
}

static bool is_plain_scalar(json_t *schema, bool python) {
    static const char *const NUMBERS[] = {"minimum",          "maximum",    "exclusiveMinimum",
                                          "exclusiveMaximum", "multipleOf", NULL},
                             *const TEXTS[] = {"minLength", "maxLength", "pattern", "format", NULL},
                             *const VALUES[] = {"enum", "const", NULL};
    const char *type = type_of(schema);
    if (strcmp(type, "string") == 0)
        return python ? has_only(schema, TEXTS, VALUES) : is_plain_text(schema);
    if (strcmp(type, "number") == 0 || strcmp(type, "integer") == 0)
        return has_only(schema, NUMBERS, VALUES);
    return strcmp(type, "boolean") == 0 && has_only(schema, VALUES + 2, VALUES + 2);
}

static bool is_plain(json_t *schema, bool python) {
    static const char *const LISTS[] = {"items", "minItems", "maxItems", NULL};
    if (python && strcmp(type_of(schema), "array") == 0)
        return has_only(schema, LISTS, LISTS) &&
               is_plain_scalar(json_object_get(schema, "items"), python);
    return is_plain_scalar(schema, python);
}

static bool is_plain_name(const char *name) {
    for (const char *c = name; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '_')
            return false;
    return *name && !isdigit((unsigned char)*name);
}

static bool is_required(json_t *schema, const char *name) {
    json_t *list = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *one = json_string_value(json_array_get(list, i));
        if (one && strcmp(one, name) == 0)
            return true;
    }
    return false;
}

/* Whether arguments can be written one by one. */
static bool is_plain_tool(const struct tool_rule *rule, bool python) {
    static const char *const NAMES[] = {"properties", "required", "additionalProperties", NULL};
    json_t *all = json_object_get(rule->schema, "properties"), *value,
           *required = json_object_get(rule->schema, "required");
    const char *key;
    if (!rule->schema || !has_only(rule->schema, NAMES, NAMES) ||
        json_object_size(all) > PROPERTIES_MAX || (all && !json_is_object(all)) ||
        (required && !json_is_array(required)))
        return false;
    for (size_t i = 0; i < json_array_size(required); i++) {
        json_t *name = json_array_get(required, i);
        if (!json_is_string(name) || !json_object_get(all, json_string_value(name)))
            return false;
    }
    json_object_foreach(all, key, value) {
        if (!is_plain_name(key) || !json_is_object(value) || !is_plain(value, python))
            return false;
    }
    return true;
}

/* ---- calls in JSON --------------------------------------------------------------------------- */

static void write_arguments(struct grammar_text *g, const struct tool_rule *rule, size_t i) {
    static const char ANY[] = "{\"type\":\"object\"}";
    grammar_printf(g, "args-%zu ::= ", i);
    if (rule->schema)
        grammar_json(g, rule->schema);
    else
        grammar_printf(g, "%%json %s", ANY);
    grammar_puts(g, "\n");
}

/* {"name": "f", "arguments": {..}} */
static void write_json_call(struct grammar_text *g, const struct tool_rule *rule, size_t i,
                            const char *arguments) {
    grammar_printf(g, "call-%zu ::= \"{\\\"name\\\": \\\"%s\\\", \\\"%s\\\": \" args-%zu \"}\"\n",
                   i, rule->name, arguments, i);
    write_arguments(g, rule, i);
}

/* call ::= call-0 | call-1 ... */
static void write_choice(struct grammar_text *g, size_t n) {
    grammar_puts(g, "call ::= ");
    for (size_t i = 0; i < n; i++)
        grammar_printf(g, "%scall-%zu", i ? " | " : "", i);
    grammar_puts(g, "\n");
}

/* calls ::= one (SEPARATOR one)* */
static void write_sequence(struct grammar_text *g, const struct tool_grammar *t, const char *one,
                           const char *separator) {
    grammar_printf(g, "calls ::= %s", one);
    if (!t->single)
        grammar_printf(g, " (%s %s)*", separator, one);
    grammar_puts(g, "\n");
}

/* one ::= OPEN BEFORE call AFTER CLOSE */
static void write_marked(struct grammar_text *g, const struct tool_grammar *t, const char *before,
                         const char *after) {
    grammar_puts(g, "one ::= ");
    grammar_marked(g, t->open);
    grammar_printf(g, " %s call %s ", before, after);
    grammar_marked(g, t->close);
    grammar_puts(g, "\n");
}

static void write_hermes(struct grammar_text *g, const struct tool_grammar *t) {
    write_sequence(g, t, "one", "\"\\n\"");
    write_marked(g, t, "\"\\n\"", "\"\\n\"");
    write_choice(g, t->n);
    for (size_t i = 0; i < t->n; i++)
        write_json_call(g, &t->rules[i], i, "arguments");
}

/* {"name": "f", "parameters": {..}}; {..} */
static void write_llama3(struct grammar_text *g, const struct tool_grammar *t) {
    if (t->marked) {
        grammar_puts(g, "calls ::= ");
        grammar_marked(g, t->open);
        grammar_puts(g, t->single ? " call\n" : " call (\"; \" call)*\n");
    } else {
        write_sequence(g, t, "call", "\"; \"");
    }
    write_choice(g, t->n);
    for (size_t i = 0; i < t->n; i++)
        write_json_call(g, &t->rules[i], i, "parameters");
}

/* [TOOL_CALLS]f[ARGS]{..}, or [TOOL_CALLS][{"name": "f", "arguments": {..}}, ..] */
static void write_mistral(struct grammar_text *g, const struct tool_grammar *t) {
    const bool args = answer_template_has(g->tokenizer, "[ARGS]");
    grammar_puts(g, "calls ::= ");
    if (!args) {
        grammar_marked(g, t->open);
        grammar_printf(g, " \" \"? \"[\" call %s \"]\"\n", t->single ? "" : "(\", \" call)*");
    } else {
        grammar_puts(g, t->single ? "one\none ::= " : "one+\none ::= ");
        grammar_marked(g, t->open);
        grammar_puts(g, " call\n");
    }
    write_choice(g, t->n);
    for (size_t i = 0; i < t->n; i++) {
        if (!args) {
            write_json_call(g, &t->rules[i], i, "arguments");
            continue;
        }
        grammar_printf(g, "call-%zu ::= \"%s\" ", i, t->rules[i].name);
        grammar_marked(g, "[ARGS]");
        grammar_printf(g, " args-%zu\n", i);
        write_arguments(g, &t->rules[i], i);
    }
}

/* ---- arguments one by one -------------------------------------------------------------------- */

/* How a form writes arguments: what is before and after a name, after a value, between two. */
struct form {
    const char *before, *after, *end, *separator;
    const char *quote; /* around a text; NULL: texts are JSON */
    const char *true_, *false_;
};
static const struct form PYTHON = {"", "=", "", ", ", NULL, "True", "False"},
                         XML = {"<parameter=", ">\n", "\n</parameter>\n", "", "", "true", "false"},
                         GEMMA4 = {"", ":", "", ",", "<|\"|>", "true", "false"},
                         FUNCTION_GEMMA = {"", ":", "", ",", "<escape>", "true", "false"};

static void write_text(struct grammar_text *g, const struct form *f, json_t *schema) {
    json_t *list = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
    grammar_marked(g, f->quote);
    grammar_puts(g, " ");
    if (one)
        grammar_literal(g, json_string_value(one), json_string_length(one));
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *text = json_array_get(list, i);
        grammar_puts(g, i ? " | " : "(");
        grammar_literal(g, json_string_value(text), json_string_length(text));
    }
    grammar_puts(g, one ? " " : list ? ") " : "text-0 ");
    grammar_marked(g, f->quote);
}

static void write_value(struct grammar_text *g, const struct form *f, json_t *schema) {
    const char *type = type_of(schema);
    if (strcmp(type, "boolean") == 0)
        grammar_printf(g, "(\"%s\" | \"%s\")", f->true_, f->false_);
    else if (f->quote && strcmp(type, "string") == 0)
        write_text(g, f, schema);
    else
        grammar_json(g, schema);
}

/* args-I-K ::= NAME VALUE */
static void write_argument(struct grammar_text *g, const struct form *f, size_t tool, size_t k,
                           const char *name, json_t *schema) {
    grammar_printf(g, "args-%zu-%zu ::= \"%s%s\" ", tool, k, f->before, name);
    grammar_literal(g, f->after, strlen(f->after));
    grammar_puts(g, " ");
    write_value(g, f, schema);
    grammar_puts(g, " ");
    if (*f->end)
        grammar_literal(g, f->end, strlen(f->end));
    grammar_puts(g, "\n");
}

/* first-K: arguments from K on, if none came before; more-K: if some did.
 *
 *     first-K ::= args-I-K more-K+1 | first-K+1         the latter if argument K may be left out
 */
static void write_chain(struct grammar_text *g, const struct form *f, size_t tool, size_t k,
                        bool more, bool required) {
    const char *name = more ? "more" : "first";
    grammar_printf(g, "%s-%zu-%zu ::= ", name, tool, k);
    if (more && *f->separator)
        grammar_printf(g, "\"%s\" ", f->separator);
    grammar_printf(g, "args-%zu-%zu more-%zu-%zu", tool, k, tool, k + 1);
    if (!required)
        grammar_printf(g, " | %s-%zu-%zu", name, tool, k + 1);
    grammar_puts(g, "\n");
}

/* The rules of a plain tool's arguments; the first one is first-TOOL-0. */
static void write_plain(struct grammar_text *g, const struct form *f, const struct tool_rule *rule,
                        size_t tool) {
    json_t *value;
    const char *key;
    size_t k = 0;
    json_object_foreach(json_object_get(rule->schema, "properties"), key, value) {
        const bool required = is_required(rule->schema, key);
        write_argument(g, f, tool, k, key, value);
        write_chain(g, f, tool, k, false, required);
        if (k)
            write_chain(g, f, tool, k, true, required);
        k++;
    }
    grammar_printf(g, "first-%zu-%zu ::= \"\"\n", tool, k);
    if (k)
        grammar_printf(g, "more-%zu-%zu ::= \"\"\n", tool, k);
}

/* The rule text-0, of texts as they are. */
static void write_free(struct grammar_text *g, const char *const *without, size_t n) {
    struct grammar_free text = {.name = "text", .n = n};
    ASSERT(n <= GRAMMAR_MARKERS_MAX);
    memcpy(text.without, without, n * sizeof *without);
    grammar_free_text(g, &text);
}

/* <function=f>, its parameters and </function>, each on a line */
static void write_xml(struct grammar_text *g, const struct tool_grammar *t) {
    static const char *const ENDS[] = {"</parameter>", "<parameter=", "</function>",
                                       "</tool_call>"};
    write_sequence(g, t, "one", "\"\\n\"");
    write_marked(g, t, "\"\\n\"", "\"\\n\"");
    write_choice(g, t->n);
    write_free(g, ENDS, sizeof ENDS / sizeof *ENDS);
    for (size_t i = 0; i < t->n; i++) {
        if (!is_plain_tool(&t->rules[i], false)) {
            write_json_call(g, &t->rules[i], i, "arguments");
            continue;
        }
        grammar_printf(g, "call-%zu ::= \"<function=%s>\\n\" first-%zu-0 \"</function>\"\n", i,
                       t->rules[i].name, i);
        write_plain(g, &XML, &t->rules[i], i);
    }
}

/* call:f{k:v,..} */
static void write_braces(struct grammar_text *g, const struct tool_grammar *t) {
    const struct form *f = t->tools == ANSWER_GEMMA4 ? &GEMMA4 : &FUNCTION_GEMMA;
    const char *const ends[] = {f->quote, t->open, t->close};
    write_sequence(g, t, "one", "\"\"");
    write_marked(g, t, "\"call:\"", "");
    write_choice(g, t->n);
    write_free(g, ends, sizeof ends / sizeof *ends);
    for (size_t i = 0; i < t->n; i++) {
        const bool plain = is_plain_tool(&t->rules[i], false);
        grammar_printf(g, "call-%zu ::= \"%s\" ", i, t->rules[i].name);
        grammar_printf(g, plain ? "\"{\" first-%zu-0 \"}\"\n" : "args-%zu\n", i);
        if (plain)
            write_plain(g, f, &t->rules[i], i);
        else
            write_arguments(g, &t->rules[i], i);
    }
}

/* [f(k=v, ..)], or in a block of code */
static void write_python(struct grammar_text *g, const struct tool_grammar *t) {
    const bool list = t->tools == ANSWER_PYTHONIC;
    write_sequence(g, t, "one", list ? "\"\"" : "\"\\n\"");
    write_marked(g, t, list ? "" : "\"\\n\"", list ? "" : "\"\\n\"");
    write_choice(g, t->n);
    for (size_t i = 0; i < t->n; i++) {
        if (!is_plain_tool(&t->rules[i], true)) {
            write_json_call(g, &t->rules[i], i, "arguments");
            continue;
        }
        grammar_printf(g, "call-%zu ::= \"%s%s(\" first-%zu-0 \"%s\"\n", i, list ? "[" : "",
                       t->rules[i].name, i, list ? ")]" : ")");
        write_plain(g, &PYTHON, &t->rules[i], i);
    }
}

/* ---- harmony --------------------------------------------------------------------------------- */

/* One call ends the turn: <|call|> is an end token. Models write the first header, their template
 * the second. */
static void write_harmony(struct grammar_text *g, const struct tool_grammar *t) {
    grammar_puts(g, "calls ::= call\n");
    write_choice(g, t->n);
    grammar_puts(g, "json ::= (");
    grammar_marked(g, "<|constrain|>");
    grammar_puts(g, "? \"json\")? ");
    grammar_marked(g, "<|message|>");
    grammar_puts(g, "\n");
    for (size_t i = 0; i < t->n; i++) {
        grammar_printf(g, "call-%zu ::= (", i);
        grammar_marked(g, "<|channel|>");
        grammar_printf(g, " \"commentary to=functions.%s \" | \" to=functions.%s\" ",
                       t->rules[i].name, t->rules[i].name);
        grammar_marked(g, "<|channel|>commentary ");
        grammar_printf(g, ") json args-%zu\n", i);
        write_arguments(g, &t->rules[i], i);
    }
}

void tool_grammar_write(struct grammar_text *g, const struct tool_grammar *t) {
    ASSERT(t->n > 0 && t->n <= TOOLS_MAX);
    switch (t->tools) {
    case ANSWER_HERMES:
        write_hermes(g, t);
        break;
    case ANSWER_LLAMA3:
        write_llama3(g, t);
        break;
    case ANSWER_MISTRAL:
        write_mistral(g, t);
        break;
    case ANSWER_QWEN_CODER:
        write_xml(g, t);
        break;
    case ANSWER_GEMMA4:
    case ANSWER_FUNCTION_GEMMA:
        write_braces(g, t);
        break;
    case ANSWER_PYTHONIC:
    case ANSWER_TOOL_CODE:
        write_python(g, t);
        break;
    case ANSWER_HARMONY:
        write_harmony(g, t);
        break;
    case ANSWER_TOOLS_NONE:
        ASSERT(false);
        break;
    }
}
