/* SPDX-License-Identifier: Apache-2.0 */
/* openai_tools.c: tools of a body, and calls of its messages.
 *
 * The model is shown the tools unless "tool_choice" is "none". Calls in the answer are found by
 * answer_parser.c. Whether calls are forced, or follow their tools' schemas: openai_constraint.c.
 * "parallel_tool_calls": false keeps the first call of an answer.
 */
#include "api/openai_internal.h"
#include "api/tool_grammar.h"
#include "util/json.h"

#include <stdio.h>
#include <string.h>

/* ---- tools ----------------------------------------------------------------------------------- */

enum { NAME_MAX_BYTES = 64 }; /* OpenAI's */

static bool check_name(const char *path, json_t *name, struct api_error *err) {
    static const char CHARS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    if (!json_is_string(name))
        return api_wrong_type(err, path, name, "a string");
    const char *text = json_string_value(name);
    size_t n = json_string_length(name);
    if (n < 1 || n > NAME_MAX_BYTES)
        return api_refuse(err, path, "has %zu characters, must have 1 to %d", n, NAME_MAX_BYTES);
    if (strspn(text, CHARS) != n)
        return api_refuse(err, path, "\"%.64s\" may only contain letters, digits, '_', '.' and '-'",
                          text);
    return true;
}

static bool check_tool(json_t *tool, size_t i, struct api_error *err) {
    struct api_path at, path;
    snprintf(at.text, sizeof at.text, "tools[%zu]", i);
    if (!json_is_object(tool))
        return api_wrong_type(err, at.text, tool, "an object");
    json_t *type = api_get(tool, "type"), *function = api_get(tool, "function");
    snprintf(path.text, sizeof path.text, "tools[%zu].type", i);
    const char *kind = "function";
    if (type && !api_word(type, path.text, &kind, err))
        return false;
    if (strcmp(kind, "function") != 0)
        return api_refuse(err, path.text, "\"%.40s\" is not supported, only \"function\" is", kind);
    snprintf(path.text, sizeof path.text, "tools[%zu].function", i);
    if (!json_is_object(function))
        return api_wrong_type(err, path.text, function, "an object");
    snprintf(path.text, sizeof path.text, "tools[%zu].function.name", i);
    if (!check_name(path.text, api_get(function, "name"), err))
        return false;
    json_t *description = api_get(function, "description"),
           *parameters = api_get(function, "parameters"), *strict = api_get(function, "strict");
    snprintf(path.text, sizeof path.text, "tools[%zu].function.strict", i);
    if (strict && !json_is_boolean(strict))
        return api_wrong_type(err, path.text, strict, "true or false");
    snprintf(path.text, sizeof path.text, "tools[%zu].function.description", i);
    if (description && !json_is_string(description))
        return api_wrong_type(err, path.text, description, "a string");
    snprintf(path.text, sizeof path.text, "tools[%zu].function.parameters", i);
    return !parameters || json_is_object(parameters) ||
           api_wrong_type(err, path.text, parameters, "an object");
}

bool openai_read_tools(json_t *body, struct api_request *r, json_t **shown, struct api_error *err) {
    json_t *tools = api_get(body, "tools");
    size_t n = json_array_size(tools);
    bool parallel = true, none;
    *shown = NULL;
    if (!api_flag(body, "parallel_tool_calls", &parallel, err))
        return false;
    if (tools && !json_is_array(tools))
        return api_wrong_type(err, "tools", tools, "an array");
    if (n > TOOLS_MAX)
        return api_refuse(err, "tools", "%zu tools, at most %d are allowed", n, TOOLS_MAX);
    for (size_t i = 0; i < n; i++)
        if (!check_tool(json_array_get(tools, i), i, err))
            return false;
    if (!openai_read_choice(body, tools, r, &none, err))
        return false;
    if (n == 0 || none)
        return true;
    if (json_array_append(r->kept, tools) != 0)
        return api_no_memory(err);
    *shown = r->answer.schema = tools;
    r->answer.tools = r->answer.fences = true;
    r->answer.single = !parallel;
    return true;
}

/* ---- calls ----------------------------------------------------------------------------------- */

bool openai_read_call(json_t *call, size_t i, size_t k, struct api_error *err) {
    char path[API_PATH_MAX];
    snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu]", i, k);
    if (!json_is_object(call))
        return api_wrong_type(err, path, call, "an object");
    json_t *function = json_object_get(call, "function");
    snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu].function", i, k);
    if (!json_is_object(function))
        return api_wrong_type(err, path, function, "an object");
    json_t *name = api_get(function, "name");
    snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu].function.name", i, k);
    if (!json_is_string(name))
        return api_wrong_type(err, path, name, "a string");
    json_t *arguments = api_get(function, "arguments");
    snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu].function.arguments", i, k);
    if (!arguments || json_is_object(arguments))
        return true;
    if (!json_is_string(arguments))
        return api_wrong_type(err, path, arguments, "a string");
    kvasir_error why;
    size_t len = json_string_length(arguments);
    json_t *values = len ? NULL : json_object();
    if (len && json_load_request(json_string_value(arguments), len, JSON_ALLOW_NUL, &values,
                                 &why) != KVASIR_OK)
        return api_refuse(err, path, "%.100s", why.text);
    if (!json_is_object(values)) {
        json_decref(values);
        return api_refuse(err, path, "is not the text of a JSON object");
    }
    return json_object_set_new(function, "arguments", values) == 0 || api_no_memory(err);
}
