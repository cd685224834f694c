/* SPDX-License-Identifier: Apache-2.0 */
/* openai_tools.c: tools of a body, and calls of its messages.
 *
 * The model is shown the tools unless "tool_choice" is "none": one that does not know of tools does
 * not call them. What is a call in the answer is answer_syntax.h's affair. That the answer must
 * call a tool cannot be had (openai_fields.c refuses it). "parallel_tool_calls": false keeps the
 * first call of an answer.
 */
#include "api/openai_internal.h"
#include "util/json.h"

#include <stdio.h>
#include <string.h>

/* ---- tools ----------------------------------------------------------------------------------- */

enum { TOOLS_MAX = 128, NAME_MAX_BYTES = 64 }; /* OpenAI's */

static bool check_name(const char *path, const json_t *name, struct openai_error *err) {
    static const char CHARS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    if (!json_is_string(name))
        return openai_wrong_type(err, path, name, "a string");
    const char *text = json_string_value(name);
    size_t n = json_string_length(name);
    if (n < 1 || n > NAME_MAX_BYTES)
        return openai_refuse(err, path, "has %zu characters, not 1 to %d", n, NAME_MAX_BYTES);
    if (strspn(text, CHARS) != n)
        return openai_refuse(err, path, "\"%.64s\" is not made of letters, digits, _ . and -",
                             text);
    return true;
}

static bool check_tool(const json_t *tool, size_t i, struct openai_error *err) {
    struct openai_path at, path;
    snprintf(at.text, sizeof at.text, "tools[%zu]", i);
    if (!json_is_object(tool))
        return openai_wrong_type(err, at.text, tool, "an object");
    const json_t *type = openai_get(tool, "type"), *function = openai_get(tool, "function");
    snprintf(path.text, sizeof path.text, "tools[%zu].type", i);
    if (type && !json_is_string(type))
        return openai_wrong_type(err, path.text, type, "a string");
    if (type && strcmp(json_string_value(type), "function") != 0)
        return openai_refuse(err, path.text, "\"%.40s\" is not supported (but for \"function\")",
                             json_string_value(type));
    snprintf(path.text, sizeof path.text, "tools[%zu].function", i);
    if (!json_is_object(function))
        return openai_wrong_type(err, path.text, function, "an object");
    snprintf(path.text, sizeof path.text, "tools[%zu].function.name", i);
    if (!check_name(path.text, openai_get(function, "name"), err))
        return false;
    const json_t *description = openai_get(function, "description"),
                 *parameters = openai_get(function, "parameters");
    snprintf(path.text, sizeof path.text, "tools[%zu].function.description", i);
    if (description && !json_is_string(description))
        return openai_wrong_type(err, path.text, description, "a string");
    snprintf(path.text, sizeof path.text, "tools[%zu].function.parameters", i);
    return !parameters || json_is_object(parameters) ||
           openai_wrong_type(err, path.text, parameters, "an object");
}

bool openai_read_tools(const json_t *body, struct openai_request *r, const json_t **shown,
                       struct openai_error *err) {
    const json_t *tools = openai_get(body, "tools");
    const char *choice = json_string_value(openai_get(body, "tool_choice"));
    size_t n = json_array_size(tools);
    bool parallel = true;
    *shown = NULL;
    if (!openai_flag(body, "parallel_tool_calls", &parallel, err))
        return false;
    if (tools && !json_is_array(tools))
        return openai_wrong_type(err, "tools", tools, "an array");
    if (n > TOOLS_MAX)
        return openai_refuse(err, "tools", "%zu are more than %d", n, TOOLS_MAX);
    for (size_t i = 0; i < n; i++)
        if (!check_tool(json_array_get(tools, i), i, err))
            return false;
    if (n == 0 || (choice && strcmp(choice, "none") == 0))
        return true;
    if (json_array_append(r->kept, (json_t *)tools) != 0)
        return openai_no_memory(err);
    *shown = r->answer.schema = tools;
    r->answer.tools = true;
    r->answer.single = !parallel;
    return true;
}

/* ---- calls ----------------------------------------------------------------------------------- */

bool openai_read_call(json_t *call, size_t i, size_t k, struct openai_error *err) {
    char path[OPENAI_PATH_MAX];
    snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu]", i, k);
    if (!json_is_object(call))
        return openai_wrong_type(err, path, call, "an object");
    json_t *function = json_object_get(call, "function");
    snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu].function", i, k);
    if (!json_is_object(function))
        return openai_wrong_type(err, path, function, "an object");
    const json_t *name = openai_get(function, "name");
    snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu].function.name", i, k);
    if (!json_is_string(name))
        return openai_wrong_type(err, path, name, "a string");
    const json_t *arguments = openai_get(function, "arguments");
    snprintf(path, sizeof path, "messages[%zu].tool_calls[%zu].function.arguments", i, k);
    if (!arguments || json_is_object(arguments))
        return true;
    if (!json_is_string(arguments))
        return openai_wrong_type(err, path, arguments, "a string");
    kvasir_error why;
    size_t len = json_string_length(arguments);
    json_t *values = len ? NULL : json_object();
    if (len && json_load_request(json_string_value(arguments), len, JSON_ALLOW_NUL, &values,
                                 &why) != KVASIR_OK)
        return openai_refuse(err, path, "%.100s", why.text);
    if (!json_is_object(values)) {
        json_decref(values);
        return openai_refuse(err, path, "is not the JSON text of an object");
    }
    return json_object_set_new(function, "arguments", values) == 0 || openai_no_memory(err);
}
