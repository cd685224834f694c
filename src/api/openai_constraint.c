/* SPDX-License-Identifier: Apache-2.0 */
/* openai_constraint.c: fields that say what an answer must be.
 *
 *     response_format                       OpenAI's
 *     structured_outputs, guided_*          vLLM's, today's and earlier
 *     grammar, json_schema                  llama-server's
 *     tool_choice, a tool's "strict"        OpenAI's
 *
 * A request has one of them; a tool that must be called goes before a response_format, which is
 * about texts.
 */
#include "api/openai_internal.h"
#include "util/json.h"

#include <stdio.h>
#include <string.h>

/* ---- texts ----------------------------------------------------------------------------------- */

/* Keeps value, which the field asks for; false with *err if another field asked before. */
static bool ask(struct api_request *r, enum constraint_kind kind, const char *field, json_t *value,
                struct api_error *err) {
    struct constraint *c = &r->constraint;
    if (c->kind != CONSTRAINT_NONE)
        return api_refuse(err, field, "cannot be combined with \"%s\"", c->field);
    if (value && json_array_append(r->kept, value) != 0)
        return api_no_memory(err);
    c->kind = kind;
    c->field = field;
    c->value = value;
    return true;
}

/* A schema, as vLLM takes it also as a text. */
static bool ask_schema(struct api_request *r, const char *field, json_t *value, bool text_too,
                       struct api_error *err) {
    json_t *read = NULL;
    kvasir_error why;
    if (text_too && json_is_string(value)) {
        if (json_load_request(json_string_value(value), json_string_length(value),
                              JSON_ALLOW_NUL | JSON_DECODE_ANY, &read, &why))
            return why.code == KVASIR_ERR_MEMORY ? api_no_memory(err)
                                                 : api_refuse(err, field, "%.200s", why.text);
        value = read;
    }
    const bool good = json_is_object(value) || json_is_boolean(value)
                          ? ask(r, CONSTRAINT_SCHEMA, field, value, err)
                          : api_wrong_type(err, field, value, "a JSON schema");
    json_decref(read);
    return good;
}

/* Any object. */
static bool ask_object(struct api_request *r, const char *field, struct api_error *err) {
    json_t *schema = json_pack("{s:s}", "type", "object");
    const bool good = schema ? ask(r, CONSTRAINT_SCHEMA, field, schema, err) : api_no_memory(err);
    json_decref(schema);
    return good;
}

static bool ask_text(struct api_request *r, enum constraint_kind kind, const char *field,
                     json_t *value, struct api_error *err) {
    if (!json_is_string(value))
        return api_wrong_type(err, field, value, "a string");
    if (json_string_length(value) == 0)
        return api_refuse(err, field, "must not be empty");
    return ask(r, kind, field, value, err);
}

static bool ask_choice(struct api_request *r, const char *field, json_t *value,
                       struct api_error *err) {
    if (!json_is_array(value))
        return api_wrong_type(err, field, value, "an array of strings");
    if (json_array_size(value) == 0)
        return api_refuse(err, field, "must not be empty");
    for (size_t i = 0; i < json_array_size(value); i++) {
        char path[API_PATH_MAX];
        snprintf(path, sizeof path, "%.60s[%zu]", field, i);
        if (!json_is_string(json_array_get(value, i)))
            return api_wrong_type(err, path, json_array_get(value, i), "a string");
    }
    return ask(r, CONSTRAINT_CHOICE, field, value, err);
}

/* {"type": "json_schema", "json_schema": {"schema": {..}}}; llama-server's
 * {"type": "json_object", "schema": {..}} */
static bool read_format(json_t *body, struct api_request *r, struct api_error *err) {
    json_t *format = api_get(body, "response_format");
    const char *type;
    if (!format)
        return true;
    if (!json_is_object(format))
        return api_wrong_type(err, "response_format", format, "an object");
    if (!api_word(api_get(format, "type"), "response_format.type", &type, err))
        return false;
    if (strcmp(type, "text") == 0)
        return true;
    if (strcmp(type, "json_object") == 0) {
        json_t *schema = api_get(format, "schema");
        return schema ? ask_schema(r, "response_format.schema", schema, false, err)
                      : ask_object(r, "response_format", err);
    }
    if (strcmp(type, "json_schema") != 0)
        return api_refuse(err, "response_format.type",
                          "\"%.40s\" is not supported, use \"text\", \"json_object\" or "
                          "\"json_schema\"",
                          type);
    json_t *given = api_get(format, "json_schema");
    if (!json_is_object(given))
        return api_wrong_type(err, "response_format.json_schema", given, "an object");
    return ask_schema(r, "response_format.json_schema.schema", api_get(given, "schema"), false,
                      err);
}

/* ---- other servers' fields ------------------------------------------------------------------- */

static const struct {
    const char *name, *member; /* member: of an object of that name; NULL: the field itself */
    const char *path;
    enum constraint_kind kind; /* CONSTRAINT_NONE: a flag that asks for any object */
} FIELDS[] = {
    {"structured_outputs", "json", "structured_outputs.json", CONSTRAINT_SCHEMA},
    {"structured_outputs", "regex", "structured_outputs.regex", CONSTRAINT_REGEX},
    {"structured_outputs", "choice", "structured_outputs.choice", CONSTRAINT_CHOICE},
    {"structured_outputs", "grammar", "structured_outputs.grammar", CONSTRAINT_GBNF},
    {"structured_outputs", "json_object", "structured_outputs.json_object", CONSTRAINT_NONE},
    {"guided_json", NULL, "guided_json", CONSTRAINT_SCHEMA},
    {"guided_regex", NULL, "guided_regex", CONSTRAINT_REGEX},
    {"guided_choice", NULL, "guided_choice", CONSTRAINT_CHOICE},
    {"guided_grammar", NULL, "guided_grammar", CONSTRAINT_GBNF},
    {"guided_json_object", NULL, "guided_json_object", CONSTRAINT_NONE},
    {"json_schema", NULL, "json_schema", CONSTRAINT_SCHEMA},
    {"grammar", NULL, "grammar", CONSTRAINT_GBNF},
};

static bool read_field(json_t *value, size_t i, struct api_request *r, struct api_error *err) {
    const char *path = FIELDS[i].path;
    switch (FIELDS[i].kind) {
    case CONSTRAINT_SCHEMA:
        return ask_schema(r, path, value, true, err);
    case CONSTRAINT_CHOICE:
        return ask_choice(r, path, value, err);
    case CONSTRAINT_REGEX:
    case CONSTRAINT_GBNF:
        return ask_text(r, FIELDS[i].kind, path, value, err);
    case CONSTRAINT_NONE:
        break;
    }
    if (!json_is_boolean(value))
        return api_wrong_type(err, path, value, "true or false");
    return json_is_false(value) || ask_object(r, path, err);
}

/* The rest of vLLM's object: what would change the answer is refused. */
static bool check_options(json_t *options, struct api_error *err) {
    static const char *const KNOWN[] = {"json",    "regex",       "choice",
                                        "grammar", "json_object", "disable_fallback"};
    const char *name;
    json_t *value;
    if (options && !json_is_object(options))
        return api_wrong_type(err, "structured_outputs", options, "an object");
    json_object_foreach(options, name, value) {
        bool known = json_is_null(value) || json_is_false(value);
        char path[API_PATH_MAX];
        for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
            known |= strcmp(name, KNOWN[i]) == 0;
        snprintf(path, sizeof path, "structured_outputs.%.60s", name);
        if (!known)
            return api_refuse(err, path, "is not supported");
    }
    return true;
}

bool openai_wants_constraint(const char *name, size_t len, const char **known) {
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
        if (json_name_is(name, len, *known = FIELDS[i].name))
            return true;
    return json_name_is(name, len, *known = "response_format");
}

bool openai_read_constraint(json_t *body, struct api_request *r, struct api_error *err) {
    if (!read_format(body, r, err) || !check_options(api_get(body, "structured_outputs"), err))
        return false;
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        json_t *value = api_get(body, FIELDS[i].name);
        if (FIELDS[i].member)
            value = api_get(value, FIELDS[i].member);
        if (value && !read_field(value, i, r, err))
            return false;
    }
    if (r->constraint.kind != CONSTRAINT_NONE && r->engine.ignore_end)
        return api_refuse(err, "ignore_eos", "cannot be combined with \"%s\"", r->constraint.field);
    return true;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static bool is_tool(json_t *tools, const char *name) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        json_t *function = json_object_get(json_array_get(tools, i), "function");
        if (strcmp(json_string_value(json_object_get(function, "name")), name) == 0)
            return true;
    }
    return false;
}

/* {"type": "function", "function": {"name": "f"}} at `path`: the name of one of the tools. */
static bool read_name(json_t *choice, const char *path, json_t *tools, const char **name,
                      struct api_error *err) {
    char at[API_PATH_MAX];
    const char *type;
    if (!json_is_object(choice))
        return api_wrong_type(err, path, choice, "an object");
    snprintf(at, sizeof at, "%.80s.type", path);
    if (!api_word(api_get(choice, "type"), at, &type, err))
        return false;
    if (strcmp(type, "function") != 0)
        return api_refuse(err, at, "\"%.40s\" is not supported, only \"function\" is", type);
    json_t *function = api_get(choice, "function");
    snprintf(at, sizeof at, "%.80s.function", path);
    if (!json_is_object(function))
        return api_wrong_type(err, at, function, "an object");
    snprintf(at, sizeof at, "%.80s.function.name", path);
    if (!api_word(api_get(function, "name"), at, name, err))
        return false;
    return is_tool(tools, *name) || api_refuse(err, at, "\"%.64s\" is none of the tools", *name);
}

/* {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]} */
static bool read_allowed(json_t *given, json_t *tools, struct api_request *r,
                         struct api_error *err) {
    static const char AT[] = "tool_choice.allowed_tools";
    json_t *list = api_get(given, "tools"), *names = json_array();
    const char *mode, *name;
    bool good = names != NULL || api_no_memory(err);
    if (good && !json_is_object(given))
        good = api_wrong_type(err, AT, given, "an object");
    good = good && api_word(api_get(given, "mode"), "tool_choice.allowed_tools.mode", &mode, err);
    if (good && strcmp(mode, "auto") != 0 && strcmp(mode, "required") != 0)
        good = api_refuse(err, "tool_choice.allowed_tools.mode",
                          "\"%.40s\" is not \"auto\" or \"required\"", mode);
    if (good && json_array_size(list) == 0)
        good = api_wrong_type(err, "tool_choice.allowed_tools.tools", list, "an array of tools");
    for (size_t i = 0; good && i < json_array_size(list); i++) {
        char path[API_PATH_MAX];
        snprintf(path, sizeof path, "tool_choice.allowed_tools.tools[%zu]", i);
        good = read_name(json_array_get(list, i), path, tools, &name, err) &&
               (json_array_append_new(names, json_string(name)) == 0 || api_no_memory(err));
    }
    if (good) {
        r->constraint.calls = strcmp(mode, "required") == 0 ? CALLS_FORCED : CALLS_CHECKED;
        r->constraint.allowed = names;
        good = json_array_append(r->kept, names) == 0 || api_no_memory(err);
    }
    json_decref(names);
    return good;
}

static bool has_strict(json_t *tools) {
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (json_is_true(api_get(json_object_get(json_array_get(tools, i), "function"), "strict")))
            return true;
    return false;
}

static bool read_choice(json_t *choice, json_t *tools, struct api_request *r, bool *none,
                        struct api_error *err) {
    const char *word;
    if (json_is_string(choice)) {
        if (!api_word(choice, "tool_choice", &word, err))
            return false;
        *none = strcmp(word, "none") == 0;
        if (strcmp(word, "required") == 0 || strcmp(word, "any") == 0) /* any: Mistral's */
            r->constraint.calls = CALLS_FORCED;
        else if (!*none && strcmp(word, "auto") != 0)
            return api_refuse(err, "tool_choice",
                              "\"%.40s\" is not \"none\", \"auto\" or \"required\"", word);
        return true;
    }
    if (!json_is_object(choice))
        return api_wrong_type(err, "tool_choice", choice, "a string or an object");
    if (!api_word(api_get(choice, "type"), "tool_choice.type", &word, err))
        return false;
    if (strcmp(word, "allowed_tools") == 0)
        return read_allowed(api_get(choice, "allowed_tools"), tools, r, err);
    r->constraint.calls = CALLS_FORCED;
    return read_name(choice, "tool_choice", tools, &r->constraint.only, err) &&
           (json_array_append(r->kept, choice) == 0 || api_no_memory(err));
}

bool openai_read_choice(json_t *body, json_t *tools, struct api_request *r, bool *none,
                        struct api_error *err) {
    json_t *choice = api_get(body, "tool_choice");
    struct constraint *c = &r->constraint;
    *none = false;
    if (choice && !read_choice(choice, tools, r, none, err))
        return false;
    if (c->calls == CALLS_FREE && !*none && has_strict(tools))
        c->calls = CALLS_CHECKED;
    if (c->calls != CALLS_FORCED)
        return true;
    if (json_array_size(tools) == 0)
        return api_refuse(err, "tool_choice", "a call is required, but there are no \"tools\"");
    if (c->kind != CONSTRAINT_NONE && strncmp(c->field, "response_format", 15) != 0)
        return api_refuse(err, "tool_choice", "a call cannot be combined with \"%s\"", c->field);
    return !r->engine.ignore_end ||
           api_refuse(err, "ignore_eos", "cannot be combined with \"tool_choice\"");
}
