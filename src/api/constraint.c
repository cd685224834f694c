/* SPDX-License-Identifier: Apache-2.0 */
/* constraint.c: one grammar of the whole answer.
 *
 *     root    reasoning, if the model may reason, then `answer`
 *     answer  body            the text that is asked for
 *             calls           forced, or instead of a body if tools are shown
 *             say calls       any text, then perhaps calls (CALLS_CHECKED)
 *
 * A text alone is compiled as it is, without GBNF around it. Any JSON object, which the engine
 * knows, is always alone: there are no reasoning and no calls with it.
 *
 * Texts in reasoning and before calls contain no marker of calls, because the parser would take
 * what follows for one (answer_parser.c). For the same reason a body is content to its end.
 */
#include "api/constraint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_json.h"
#include "api/api_request.h"
#include "api/tool_grammar.h"

/* ---- what there is --------------------------------------------------------------------------- */

struct shape {
    const struct constraint *c;
    const struct answer_syntax *syntax;
    enum answer_start start;
    bool reasons; /* reasoning may come first */
    bool body, calls, single;
    double until; /* clock: schemas of tools that are not strict are tried no longer */
    struct tool_rule rules[TOOLS_MAX]; /* [n]; schemas are new references */
    size_t n;
};

static bool is_harmony(const struct shape *s) {
    return s->syntax->tools == ANSWER_HARMONY;
}

static void shape_free(struct shape *s) {
    for (size_t i = 0; i < s->n; i++)
        json_decref(s->rules[i].schema);
}

/* ---- tools ----------------------------------------------------------------------------------- */

static bool is_allowed(const struct constraint *c, const char *name) {
    if (c->only)
        return strcmp(c->only, name) == 0;
    for (size_t i = 0; i < json_array_size(c->allowed); i++)
        if (strcmp(json_string_value(json_array_get(c->allowed, i)), name) == 0)
            return true;
    return !c->allowed;
}

/* A tool's parameters as a schema of objects, new; NULL with *err. Without parameters there are no
 * arguments. */
static json_t *arguments_schema(json_t *function, size_t i, struct api_error *err) {
    json_t *given = api_get(function, "parameters"), *type = api_get(given, "type"), *made;
    const char *word = json_string_value(type);
    bool objects = !type || (word && strcmp(word, "object") == 0);
    for (size_t k = 0; k < json_array_size(type); k++) {
        const char *one = json_string_value(json_array_get(type, k));
        objects |= one && strcmp(one, "object") == 0;
    }
    if (!objects) {
        char path[API_PATH_MAX];
        snprintf(path, sizeof path, "tools[%zu].function.parameters.type", i);
        api_refuse(err, path, "must be \"object\": arguments are members of an object");
        return NULL;
    }
    made = given ? json_copy(given) : json_pack("{s:b}", "additionalProperties", 0);
    if (made && json_object_set_new(made, "type", json_string("object")) == 0)
        return made;
    json_decref(made);
    api_no_memory(err);
    return NULL;
}

/* Whether a schema compiles by itself; false with *why. */
static bool compiles(json_t *schema, kvasir_error *why) {
    char *text = grammar_schema_text(schema);
    kvasir_grammar *grammar = NULL;
    *why = (kvasir_error){.code = KVASIR_ERR_MEMORY, .text = "out of memory"};
    const bool good = text && kvasir_grammar_create(KVASIR_GRAMMAR_JSON_SCHEMA, text, strlen(text),
                                                    &grammar, why) == KVASIR_OK;
    free(text);
    kvasir_grammar_destroy(grammar);
    return good;
}

/* Forced calls have the arguments of the schema, others if "strict" is true. With "strict": false,
 * which some clients always send, a schema that cannot be enforced is none, and all are none once
 * trying them has taken a second. */
static bool add_rule(struct shape *s, json_t *tool, size_t i, struct api_error *err) {
    json_t *function = json_object_get(tool, "function"), *strict = api_get(function, "strict");
    const char *name = json_string_value(json_object_get(function, "name"));
    const bool enforced = s->c->calls == CALLS_FORCED || json_is_true(strict);
    kvasir_error why;
    if (!is_allowed(s->c, name))
        return true;
    json_t *schema = enforced ? arguments_schema(function, i, err) : NULL;
    if (enforced && !schema)
        return false;
    if (schema && json_is_false(strict) &&
        (clock_seconds() > s->until || !compiles(schema, &why))) {
        json_decref(schema);
        schema = NULL;
    }
    ASSERT(s->n < TOOLS_MAX);
    s->rules[s->n++] = (struct tool_rule){name, schema};
    return true;
}

static bool add_rules(struct shape *s, json_t *tools, struct api_error *err) {
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (!add_rule(s, json_array_get(tools, i), i, err))
            return false;
    ASSERT(s->n > 0); /* names were checked */
    return true;
}

/* ---- texts ----------------------------------------------------------------------------------- */

static void write_body(struct grammar_text *g, const struct constraint *c) {
    const char *text = json_string_value(c->value);
    size_t len = json_string_length(c->value);
    if (c->kind == CONSTRAINT_GBNF) {
        grammar_puts(g, "body ::= user-root\n");
        grammar_prefixed(g, text, len, "user-");
        return;
    }
    grammar_puts(g, "body ::= ");
    if (c->kind == CONSTRAINT_SCHEMA)
        grammar_json(g, c->value);
    if (c->kind == CONSTRAINT_REGEX)
        grammar_regex(g, text, len);
    for (size_t i = 0; c->kind == CONSTRAINT_CHOICE && i < json_array_size(c->value); i++) {
        json_t *one = json_array_get(c->value, i);
        grammar_puts(g, i ? " | " : "");
        grammar_literal(g, json_string_value(one), json_string_length(one));
    }
    grammar_puts(g, "\n");
}

static void add_marker(struct grammar_free *f, const char *marker) {
    ASSERT(f->n < GRAMMAR_MARKERS_MAX);
    if (marker)
        f->without[f->n++] = marker;
}

static void add_harmony_markers(struct grammar_free *f) {
    static const char *const MARKERS[] = {"<|start|>",   "<|channel|>", "<|constrain|>",
                                          "<|message|>", "<|end|>",     "<|call|>",
                                          "<|return|>"};
    for (size_t i = 0; i < sizeof MARKERS / sizeof *MARKERS; i++)
        add_marker(f, MARKERS[i]);
}

/* The rules of a free text, NAME-0. */
static void write_free(struct grammar_text *g, const struct shape *s, const char *name,
                       const char *marker, bool not_an_object) {
    struct grammar_free f = {.name = name, .not_an_object = not_an_object};
    if (is_harmony(s))
        add_harmony_markers(&f);
    else
        add_marker(&f, marker);
    if (!is_harmony(s) && s->calls) {
        add_marker(&f, s->syntax->call_open);
        add_marker(&f, s->syntax->tools == ANSWER_QWEN_CODER ? "<function=" : NULL);
    }
    grammar_free_text(g, &f);
}

/* ---- the answer ------------------------------------------------------------------------------ */

static bool writes_bare_calls(const struct shape *s) {
    return s->syntax->tools == ANSWER_HERMES || s->syntax->tools == ANSWER_LLAMA3;
}

static void write_tools(struct grammar_text *g, const struct shape *s) {
    const struct tool_grammar t = {.tools = s->syntax->tools,
                                   .open = s->syntax->call_open,
                                   .close = s->syntax->call_close,
                                   .rules = s->rules,
                                   .n = s->n,
                                   .single = s->single,
                                   .marked = s->body || s->c->calls == CALLS_CHECKED};
    tool_grammar_write(g, &t);
}

/* Any text, or calls, or both in this order. Where a call may begin the answer without a marker,
 * the text does not begin as that would. */
static void write_checked(struct grammar_text *g, const struct shape *s) {
    const bool bare = writes_bare_calls(s);
    if (is_harmony(s)) {
        grammar_puts(g, "answer ::= (");
        grammar_marked(g, "<|channel|>commentary<|message|>");
        grammar_puts(g, " say-0 ");
        grammar_marked(g, "<|end|><|start|>assistant");
        grammar_puts(g, ")? (");
        grammar_marked(g, "<|channel|>final<|message|>");
        grammar_puts(g, " say-0 | calls)\n");
    } else if (bare) {
        grammar_puts(g, "answer ::= say-lead calls? | bare\n");
        grammar_puts(g,
                     s->single ? "bare ::= call\n" : "bare ::= call ((\"; \" | \"\\n\") call)*\n");
    } else {
        grammar_puts(g, "answer ::= say-0 calls?\n");
    }
    if (!is_harmony(s)) /* whose reasoning is the same text */
        write_free(g, s, "say", NULL, bare);
}

static void write_answer(struct grammar_text *g, const struct shape *s) {
    if (!s->body && s->c->calls == CALLS_CHECKED) {
        write_checked(g, s);
    } else {
        grammar_puts(g, "answer ::= ");
        if (s->body && is_harmony(s)) {
            grammar_marked(g, "<|channel|>final<|message|>");
            grammar_puts(g, " ");
        }
        grammar_printf(g, "%s%s%s\n", s->body ? "body" : "", s->body && s->calls ? " | " : "",
                       s->calls ? "calls" : "");
    }
    if (s->calls)
        write_tools(g, s);
    if (s->body) /* last: a client's grammar may break off */
        write_body(g, s->c);
}

/* <|channel|>analysis<|message|>...<|end|><|start|>assistant */
static void write_harmony(struct grammar_text *g, const struct shape *s) {
    const bool begins = s->start == ANSWER_AT_HEADER;
    grammar_puts(g, "root ::= ");
    if (begins) {
        grammar_puts(g, "(");
        grammar_marked(g, "<|channel|>analysis<|message|>");
    }
    grammar_puts(g, " say-0 ");
    grammar_marked(g, "<|end|><|start|>assistant");
    grammar_puts(g, begins ? ")? answer\n" : " answer\n");
    write_free(g, s, "say", NULL, false);
}

/* <think>...</think> */
static void write_reasoning(struct grammar_text *g, const struct shape *s) {
    const bool begun = s->start == ANSWER_AT_REASONING;
    if (is_harmony(s)) {
        write_harmony(g, s);
        return;
    }
    grammar_puts(g, "root ::= ");
    if (s->reasons) {
        if (!begun) {
            grammar_puts(g, "(");
            grammar_marked(g, s->syntax->think_open);
        }
        grammar_puts(g, " think-0 ");
        grammar_marked(g, s->syntax->think_close);
        grammar_puts(g, begun ? " gap " : " gap)? ");
    }
    grammar_puts(g, "answer\n");
    if (!s->reasons)
        return;
    grammar_puts(g, "gap ::= (\"\\n\" \"\\n\"?)?\n");
    write_free(g, s, "think", s->syntax->think_close, false);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static bool take_text(struct constraint *c, struct grammar_text *g, struct api_error *err) {
    if (g->failed) {
        text_free(&g->text);
        return api_no_memory(err);
    }
    c->grammar = g->text;
    return true;
}

bool constraint_apply_plain(struct api_request *r, struct api_error *err) {
    static const kvasir_grammar_kind KINDS[] = {[CONSTRAINT_SCHEMA] = KVASIR_GRAMMAR_JSON_SCHEMA,
                                                [CONSTRAINT_REGEX] = KVASIR_GRAMMAR_REGEX,
                                                [CONSTRAINT_CHOICE] = KVASIR_GRAMMAR_GBNF,
                                                [CONSTRAINT_GBNF] = KVASIR_GRAMMAR_GBNF};
    struct constraint *c = &r->constraint;
    struct grammar_text g = {0};
    if (c->kind == CONSTRAINT_NONE)
        return true;
    c->grammar_kind = KINDS[c->kind];
    if (c->kind == CONSTRAINT_SCHEMA) {
        char *text = grammar_schema_text(c->value);
        grammar_puts(&g, text ? text : "");
        g.failed |= !text;
        free(text);
    } else if (c->kind == CONSTRAINT_CHOICE) {
        grammar_puts(&g, "root ::= body\n");
        write_body(&g, c);
    } else {
        g.failed = !text_append(&g.text, json_string_value(c->value), json_string_length(c->value));
    }
    return take_text(c, &g, err);
}

static bool write_grammar(const struct api_setup *setup, struct shape *s, struct api_request *r,
                          struct api_error *err) {
    struct grammar_text g = {.tokenizer = setup->tokenizer};
    r->constraint.grammar_kind = KVASIR_GRAMMAR_GBNF;
    r->answer.body = s->body;
    r->answer.tools = s->calls;
    r->answer.fences = false; /* calls of a grammar have their family's form */
    r->answer.forced = s->c->calls == CALLS_FORCED;
    if (s->calls && !add_rules(s, r->answer.schema, err))
        return false;
    write_reasoning(&g, s);
    write_answer(&g, s);
    return take_text(&r->constraint, &g, err);
}

bool constraint_apply(const struct api_setup *setup, const char *prompt, size_t len,
                      struct api_request *r, struct api_error *err) {
    static const struct answer_syntax NO_SYNTAX = {0};
    const struct constraint *c = &r->constraint;
    const struct answer_syntax *syntax = setup->syntax ? setup->syntax : &NO_SYNTAX;
    const bool callable = r->answer.tools && syntax->tools != ANSWER_TOOLS_NONE;
    if (c->calls == CALLS_FORCED && !callable)
        return api_refuse(err, "tool_choice",
                          "the model's chat template has no tool calls, so that none can be "
                          "forced: use \"auto\" or \"none\"");
    struct shape s = {.c = c,
                      .syntax = syntax,
                      .start = answer_start_of(syntax, prompt, len),
                      .body = c->kind != CONSTRAINT_NONE && c->calls != CALLS_FORCED,
                      .single = r->answer.single,
                      .until = clock_seconds() + 1};
    s.reasons = syntax->tools == ANSWER_HARMONY || s.start == ANSWER_AT_REASONING ||
                answer_may_reason(syntax, prompt, len);
    s.calls = callable && (c->kind != CONSTRAINT_NONE || c->calls != CALLS_FREE);
    if (!s.body && !s.calls)
        return true;
    if (!s.reasons && !s.calls)
        return constraint_apply_plain(r, err);
    const bool good = write_grammar(setup, &s, r, err);
    shape_free(&s);
    return good;
}

/* ---- compiling ------------------------------------------------------------------------------- */

/* Whether a schema compiles by itself; false with *err, the schema's path and why. */
static bool check_schema(const char *path, json_t *schema, struct api_error *err) {
    kvasir_error why;
    return compiles(schema, &why) || api_library_failed(err, path, &why);
}

/* The request's time is over, or its client has gone. */
static bool is_stopped(const struct api_setup *setup) {
    return setup->limits && setup->limits->stop && setup->limits->stop(setup->limits->user);
}

/* The grammar did not compile: which of its schemas is at fault? False with *err if one is; looks
 * for a second at most. */
static bool check_schemas(const struct api_setup *setup, const struct api_request *r,
                          struct api_error *err) {
    const struct constraint *c = &r->constraint;
    const double end = clock_seconds() + 1;
    if (c->kind == CONSTRAINT_SCHEMA && !check_schema(c->field, c->value, err))
        return false;
    for (size_t i = 0; i < json_array_size(r->answer.schema); i++) {
        if (is_stopped(setup) || clock_seconds() > end)
            break;
        json_t *tool = json_array_get(r->answer.schema, i);
        json_t *function = json_object_get(tool, "function");
        json_t *parameters = api_get(function, "parameters");
        char path[API_PATH_MAX];
        snprintf(path, sizeof path, "tools[%zu].function.parameters", i);
        if (parameters && is_allowed(c, json_string_value(json_object_get(function, "name"))) &&
            !json_is_false(api_get(function, "strict")) && !check_schema(path, parameters, err))
            return false;
    }
    return true;
}

/* The grammar as a whole was refused. */
static bool refuse_all(const struct api_setup *setup, const struct api_request *r,
                       const kvasir_error *why, struct api_error *err) {
    const struct constraint *c = &r->constraint;
    const bool composed = r->answer.body || r->answer.forced || c->calls != CALLS_FREE;
    if (composed && why->code != KVASIR_ERR_MEMORY && !check_schemas(setup, r, err))
        return false;
    return api_library_failed(err, c->kind && c->calls != CALLS_FORCED ? c->field : "tools", why);
}

bool constraint_compile(const struct api_setup *setup, struct api_request *r,
                        struct api_error *err) {
    const struct constraint *c = &r->constraint;
    kvasir_error why;
    if (!c->grammar.len || !setup->grammars)
        return true;
    if (is_stopped(setup))
        return api_library_failed(err, NULL, &(kvasir_error){.code = KVASIR_ERR_CANCELLED});
    if (grammar_cache_get(setup->grammars, c->grammar_kind, c->grammar.data, c->grammar.len,
                          &r->grammar, &why))
        return refuse_all(setup, r, &why, err);
    r->engine.grammar = kept_grammar_of(r->grammar);
    return true;
}
