/* SPDX-License-Identifier: Apache-2.0 */
/* openai_fields.c: the fields of a body but its prompt: limits, sampling, stops, logprobs, and the
 * names of what is refused.
 *
 * A missing member and null are the same. A number is in range or refused by its name, so that
 * nothing is left for the engine to find wrong with it.
 */
#include "api/openai_internal.h"
#include "util/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---------------------------------------------------------------------------------- */

/* One line of UTF-8: what is quoted may hold anything, and may be cut inside a character. */
static void make_line(char *text) {
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    text[utf8_check(text, strlen(text))] = 0;
}

bool openai_refuse(struct openai_error *err, const char *path, const char *format, ...) {
    *err = (struct openai_error){.status = OPENAI_BAD_REQUEST};
    size_t n = 0;
    if (path) {
        snprintf(err->param, sizeof err->param, "%s", path);
        n = (size_t)snprintf(err->text, sizeof err->text, "%.*s: ", OPENAI_PATH_MAX, path);
    }
    va_list args;
    va_start(args, format);
    vsnprintf(err->text + n, sizeof err->text - n, format, args);
    va_end(args);
    make_line(err->param);
    make_line(err->text);
    return false;
}

bool openai_no_memory(struct openai_error *err) {
    openai_refuse(err, NULL, "out of memory");
    err->status = OPENAI_SERVER_ERROR;
    return false;
}

/* Members of a body that are not called as the option they set. */
static const struct {
    const char *field, *path;
} PATHS[] = {
    {"request.json_object", "response_format"},
    {"request.stops", "stop"},
    {"request.tokens", "prompt"},
    {"sampling.frequency_context", "frequency_context_size"},
    {"sampling.presence_context", "presence_context_size"},
    {"sampling.repetition_context", "repetition_context_size"},
    {"sampling.temp", "temperature"},
};

/* The member of a body that sets an option; NULL: a server's option, which no client sends. */
static const char *path_of(const char *field) {
    for (size_t i = 0; field && i < sizeof PATHS / sizeof *PATHS; i++)
        if (strcmp(PATHS[i].field, field) == 0)
            return PATHS[i].path;
    const bool sent =
        field && (strncmp(field, "request.", 8) == 0 || strncmp(field, "sampling.", 9) == 0);
    return sent ? strchr(field, '.') + 1 : NULL;
}

void openai_error_of(struct openai_error *out, const kvasir_error *err) {
    openai_refuse(out, path_of(err->field), "%s", err->text);
    /* Prompts that are too long for context or budget are too long: the request's fault. */
    if (err->code == KVASIR_ERR_MEMORY || err->code == KVASIR_ERR_IO)
        out->status = OPENAI_SERVER_ERROR;
    else if (err->code == KVASIR_ERR_BUSY)
        out->status = OPENAI_BUSY;
    else if (err->code == KVASIR_ERR_CANCELLED)
        out->status = OPENAI_CANCELLED;
    else if (err->code == KVASIR_ERR_CONTEXT || err->code == KVASIR_ERR_BUDGET)
        out->code = "context_length_exceeded";
}

json_t *openai_error_object(const struct openai_error *err) {
    const char *type = err->status >= OPENAI_SERVER_ERROR ? "server_error"
                       : err->status == OPENAI_BUSY       ? "rate_limit_error"
                                                          : "invalid_request_error";
    return json_pack("{s:s, s:s, s:s?, s:s?}", "message", err->text, "type", type, "param",
                     *err->param ? err->param : NULL, "code", err->code);
}

static const char *type_name(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a truth value";
    case JSON_NULL:
        break;
    }
    return "null";
}

bool openai_wrong_type(struct openai_error *err, const char *path, const json_t *value,
                       const char *wanted) {
    if (!value)
        return openai_refuse(err, path, "missing");
    if (json_is_real(value) && strcmp(wanted, "a whole number") == 0)
        return openai_refuse(err, path, "%.10g is not a whole number", json_real_value(value));
    return openai_refuse(err, path, "is %s, not %s", type_name(value), wanted);
}

/* ---- values ---------------------------------------------------------------------------------- */

bool openai_is_object(const json_t *body, struct openai_error *err) {
    return json_is_object(body) || openai_refuse(err, NULL, "the body is not a JSON object");
}

const json_t *openai_get(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

bool openai_flag(const json_t *object, const char *name, bool *out, struct openai_error *err) {
    const json_t *value = openai_get(object, name);
    if (!value)
        return true;
    if (!json_is_boolean(value))
        return openai_wrong_type(err, name, value, "true or false");
    *out = json_is_true(value);
    return true;
}

bool openai_whole(const json_t *object, const char *name, json_int_t min, json_int_t max,
                  json_int_t *out, struct openai_error *err) {
    const json_t *value = openai_get(object, name);
    if (!value)
        return true;
    if (!json_is_integer(value))
        return openai_wrong_type(err, name, value, "a whole number");
    json_int_t n = json_integer_value(value);
    if (n < min || n > max)
        return openai_refuse(err, name, "%lld is out of range, it goes from %lld to %lld",
                             (long long)n, (long long)min, (long long)max);
    *out = n;
    return true;
}

bool openai_real(const json_t *value, const char *path, double min, double max, float *out,
                 struct openai_error *err) {
    if (!value)
        return true;
    if (!json_is_number(value))
        return openai_wrong_type(err, path, value, "a number");
    double x = json_number_value(value);
    if (!(x >= min && x <= max))
        return openai_refuse(err, path, "%.10g is out of range, it goes from %.10g to %.10g", x,
                             min, max);
    *out = (float)x;
    return true;
}

bool openai_text(struct openai_request *r, const char *path, const json_t *value, const char **out,
                 struct openai_error *err) {
    if (!json_is_string(value))
        return openai_wrong_type(err, path, value, "a string");
    if (strlen(json_string_value(value)) != json_string_length(value))
        return openai_refuse(err, path, "holds a NUL character");
    /* the array counts a reference; the text itself is not changed */
    if (json_array_append(r->kept, (json_t *)value) != 0)
        return openai_no_memory(err);
    *out = json_string_value(value);
    return true;
}

static bool optional_text(struct openai_request *r, const json_t *body, const char *name,
                          const char **out, struct openai_error *err) {
    const json_t *value = openai_get(body, name);
    return !value || openai_text(r, name, value, out, err);
}

bool openai_ids(const char *path, const json_t *list, uint32_t vocab, int32_t **ids, size_t *n,
                struct openai_error *err) {
    if (!json_is_array(list))
        return openai_wrong_type(err, path, list, "an array of token ids");
    size_t count = json_array_size(list);
    int32_t *made = malloc((count + 1) * sizeof *made);
    if (!made)
        return openai_no_memory(err);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i);
        json_int_t id = json_integer_value(item);
        char at[OPENAI_PATH_MAX];
        snprintf(at, sizeof at, "%.100s[%zu]", path, i);
        bool good = json_is_integer(item) && id >= 0 && id < vocab;
        if (!json_is_integer(item))
            openai_wrong_type(err, at, item, "a whole number");
        else if (!good)
            openai_refuse(err, at, "%lld is no token id, they go from 0 to %u", (long long)id,
                          vocab - 1);
        if (!good) {
            free(made);
            return false;
        }
        made[i] = (int32_t)id;
    }
    *ids = made;
    *n = count;
    return true;
}

/* ---- what is refused ------------------------------------------------------------------------- */

/* Fields that change the answer in ways that are not there, and the value that asks for nothing of
 * the kind (JSON; NULL: only null does). */
static const struct {
    const char *name, *harmless;
} NOT_SUPPORTED[] = {
    /* OpenAI's */
    {"suffix", "\"\""},
    {"echo", "false"},
    {"best_of", "1"},
    {"modalities", "[\"text\"]"},
    {"audio", NULL},
    {"functions", "[]"},
    {"function_call", "\"none\""},
    {"web_search_options", NULL},
    {"verbosity", "\"medium\""},
    /* of mlx-lm, vLLM and llama.cpp */
    {"adapters", NULL},
    {"role_mapping", NULL},
    {"chat_template", NULL},
    {"add_special_tokens", NULL},
    {"skip_special_tokens", "true"},
    {"include_stop_str_in_output", "false"},
    {"truncate_prompt_tokens", NULL},
    {"prompt_logprobs", NULL},
    {"prompt_embeds", NULL},
    {"min_tokens", "0"},
    {"use_beam_search", "false"},
    {"bad_words", "[]"},
    {"allowed_token_ids", NULL},
    {"logits_processors", NULL},
    {"structured_outputs", NULL},
    {"guided_json", NULL},
    {"guided_regex", NULL},
    {"guided_choice", NULL},
    {"guided_grammar", NULL},
    {"grammar", NULL},
    {"json_schema", NULL},
};

static bool is_harmless(const json_t *value, const char *harmless) {
    json_t *allowed = harmless ? json_loads(harmless, JSON_DECODE_ANY, NULL) : NULL;
    bool same = allowed && json_equal(value, allowed);
    json_decref(allowed);
    return same;
}

static bool check_supported(const struct openai_setup *setup, const json_t *body,
                            struct openai_error *err) {
    for (size_t i = 0; i < sizeof NOT_SUPPORTED / sizeof *NOT_SUPPORTED; i++) {
        const json_t *value = openai_get(body, NOT_SUPPORTED[i].name);
        const char *harmless = NOT_SUPPORTED[i].harmless;
        if (!value || is_harmless(value, harmless))
            continue;
        return harmless ? openai_refuse(err, NOT_SUPPORTED[i].name, "is not supported (but for %s)",
                                        harmless)
                        : openai_refuse(err, NOT_SUPPORTED[i].name, "is not supported");
    }
    const json_t *choice = openai_get(body, "tool_choice");
    const char *word = json_string_value(choice);
    if (choice && (!word || (strcmp(word, "none") != 0 && strcmp(word, "auto") != 0)))
        return openai_refuse(err, "tool_choice",
                             "is neither \"none\" nor \"auto\": an answer "
                             "cannot be made to call a tool");
    if (!setup->prompt_cache && openai_get(body, "prompt_cache"))
        return openai_refuse(err, "prompt_cache", "is not allowed here");
    return true;
}

/* ---- sampling -------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t offset; /* in kvasir_sampling */
    double min, max;
} REALS[] = {
    {"temperature", offsetof(kvasir_sampling, temp), 0, 1000},
    {"top_p", offsetof(kvasir_sampling, top_p), 0, 1},
    {"min_p", offsetof(kvasir_sampling, min_p), 0, 1},
    {"repetition_penalty", offsetof(kvasir_sampling, repetition_penalty), 0, 1000},
    {"presence_penalty", offsetof(kvasir_sampling, presence_penalty), -2, 2},
    {"frequency_penalty", offsetof(kvasir_sampling, frequency_penalty), -2, 2},
    {"xtc_probability", offsetof(kvasir_sampling, xtc_probability), 0, 1},
    {"xtc_threshold", offsetof(kvasir_sampling, xtc_threshold), 0, 0.5},
};

static bool set_xtc_special(const struct openai_setup *setup, struct openai_request *r,
                            struct openai_error *err) {
    kvasir_sampling *s = &r->engine.sampling;
    kvasir_error why;
    if (kvasir_xtc_special(setup->tokenizer, &r->xtc_special, &s->n_xtc_special, &why)) {
        openai_error_of(err, &why);
        return false;
    }
    s->xtc_special = r->xtc_special;
    return true;
}

/* {"50256": -100}: members named by token ids */
static bool read_logit_bias(const struct openai_setup *setup, const json_t *body,
                            struct openai_request *r, struct openai_error *err) {
    json_t *bias = (json_t *)openai_get(body, "logit_bias"), *value;
    const char *key;
    if (!bias)
        return true;
    if (!json_is_object(bias))
        return openai_wrong_type(err, "logit_bias", bias, "an object");
    r->logit_bias = malloc((json_object_size(bias) + 1) * sizeof *r->logit_bias);
    if (!r->logit_bias)
        return openai_no_memory(err);
    size_t n = 0;
    json_object_foreach(bias, key, value) {
        char path[OPENAI_PATH_MAX];
        snprintf(path, sizeof path, "logit_bias[\"%.40s\"]", key);
        size_t digits = strspn(key, "0123456789");
        long id = digits > 0 && digits < 11 && !key[digits] ? strtol(key, NULL, 10) : -1;
        if (id < 0 || id >= (long)setup->vocab)
            return openai_refuse(err, path, "is no token id, they go from 0 to %u",
                                 setup->vocab - 1);
        kvasir_logit_bias *b = &r->logit_bias[n++];
        b->token = (int32_t)id;
        if (!openai_real(value, path, -100, 100, &b->bias, err))
            return false;
    }
    r->engine.sampling.logit_bias = r->logit_bias;
    r->engine.sampling.n_logit_bias = n;
    return true;
}

static bool read_contexts(const json_t *body, kvasir_sampling *s, struct openai_error *err) {
    enum { CONTEXT_MAX = 1 << 20 }; /* memory of each request */
    json_int_t repetition = s->repetition_context, presence = s->presence_context,
               frequency = s->frequency_context;
    if (!openai_whole(body, "repetition_context_size", 1, CONTEXT_MAX, &repetition, err) ||
        !openai_whole(body, "presence_context_size", 1, CONTEXT_MAX, &presence, err) ||
        !openai_whole(body, "frequency_context_size", 1, CONTEXT_MAX, &frequency, err))
        return false;
    s->repetition_context = (uint32_t)repetition;
    s->presence_context = (uint32_t)presence;
    s->frequency_context = (uint32_t)frequency;
    return true;
}

static bool read_sampling(const struct openai_setup *setup, const json_t *body,
                          struct openai_request *r, struct openai_error *err) {
    kvasir_sampling *s = &r->engine.sampling;
    *s = setup->sampling;
    for (size_t i = 0; i < sizeof REALS / sizeof *REALS; i++)
        if (!openai_real(openai_get(body, REALS[i].name), REALS[i].name, REALS[i].min, REALS[i].max,
                         (float *)((char *)s + REALS[i].offset), err))
            return false;
    /* OpenAI's 0 would leave the likeliest token, mlx-lm's is off: nobody is to get the other. */
    if (openai_get(body, "top_p") && s->top_p == 0)
        return openai_refuse(err, "top_p", "0 would leave no token: 1 is off");
    json_int_t top_k = s->top_k, seed = 0;
    if (!openai_whole(body, "top_k", -1, setup->vocab, &top_k, err) ||
        !openai_whole(body, "seed", INT64_MIN, INT64_MAX, &seed, err))
        return false;
    s->top_k = top_k > 0 ? (int32_t)top_k : 0; /* vLLM says off with -1 */
    if (openai_get(body, "seed"))
        s->seed = (uint64_t)seed;
    return read_contexts(body, s, err) && read_logit_bias(setup, body, r, err) &&
           (s->xtc_probability == 0 || set_xtc_special(setup, r, err));
}

/* ---- limits, stops, logprobs ----------------------------------------------------------------- */

static bool read_limits(const struct openai_setup *setup, const json_t *body,
                        struct openai_request *r, struct openai_error *err) {
    json_int_t tokens = setup->max_tokens, n = 1;
    /* the newer name is read last and wins */
    if (!openai_whole(body, "max_tokens", 1, UINT32_MAX, &tokens, err) ||
        !openai_whole(body, "max_completion_tokens", 1, UINT32_MAX, &tokens, err) ||
        !openai_whole(body, "n", 1, setup->max_choices, &n, err))
        return false;
    r->default_length =
        !openai_get(body, "max_tokens") && !openai_get(body, "max_completion_tokens");
    r->engine.max_tokens = (uint32_t)tokens;
    r->engine.n = (uint32_t)n;
    return openai_flag(body, "ignore_eos", &r->engine.ignore_end, err);
}

static bool read_format(const json_t *body, struct openai_request *r, struct openai_error *err) {
    const json_t *format = openai_get(body, "response_format");
    if (!format)
        return true;
    if (!json_is_object(format))
        return openai_wrong_type(err, "response_format", format, "an object");
    const char *word;
    if (!openai_text(r, "response_format.type", openai_get(format, "type"), &word, err))
        return false;
    r->engine.json_object = strcmp(word, "json_object") == 0;
    if (!r->engine.json_object && strcmp(word, "text") != 0)
        return openai_refuse(err, "response_format.type",
                             "\"%.40s\" is not supported: \"text\" and \"json_object\" are there",
                             word);
    if (r->engine.json_object && r->engine.ignore_end)
        return openai_refuse(err, "ignore_eos",
                             "not together with a response_format of type \"json_object\"");
    return true;
}

static bool read_stop(struct openai_request *r, const char *path, const json_t *value,
                      struct openai_error *err) {
    const char **out = &r->stops[r->engine.n_stops];
    if (!openai_text(r, path, value, out, err))
        return false;
    if (!**out)
        return openai_refuse(err, path, "the text is empty");
    r->engine.n_stops++;
    return true;
}

static bool read_stops(const struct openai_setup *setup, const json_t *body,
                       struct openai_request *r, struct openai_error *err) {
    enum { STOPS_MAX = 32 }; /* each is looked for at every token */
    const json_t *stop = openai_get(body, "stop"), *ids = openai_get(body, "stop_token_ids");
    if (ids && !openai_ids("stop_token_ids", ids, setup->vocab, &r->stop_tokens,
                           &r->engine.n_stop_tokens, err))
        return false;
    r->engine.stop_tokens = r->stop_tokens;
    if (!stop)
        return true;
    size_t n = json_is_array(stop) ? json_array_size(stop) : 1;
    if (!json_is_array(stop) && !json_is_string(stop))
        return openai_wrong_type(err, "stop", stop, "a string or an array of them");
    if (n > STOPS_MAX)
        return openai_refuse(err, "stop", "%zu texts are more than %d", n, STOPS_MAX);
    r->stops = malloc((n + 1) * sizeof *r->stops);
    if (!r->stops)
        return openai_no_memory(err);
    r->engine.stops = r->stops;
    if (!json_is_array(stop))
        return read_stop(r, "stop", stop, err);
    for (size_t i = 0; i < n; i++) {
        char path[32];
        snprintf(path, sizeof path, "stop[%zu]", i);
        if (!read_stop(r, path, json_array_get(stop, i), err))
            return false;
    }
    return true;
}

static bool read_logprobs(const json_t *body, struct openai_request *r, struct openai_error *err) {
    enum { TOP_MAX = 20 };
    json_int_t top = -1;
    if (r->api == OPENAI_COMPLETIONS) {
        if (!openai_whole(body, "logprobs", 0, TOP_MAX, &top, err))
            return false;
    } else {
        bool wanted = false;
        if (!openai_flag(body, "logprobs", &wanted, err) ||
            !openai_whole(body, "top_logprobs", 0, TOP_MAX, &top, err))
            return false;
        if (top > 0 && !wanted)
            return openai_refuse(err, "top_logprobs", "needs \"logprobs\": true");
        top = !wanted ? -1 : top < 0 ? 0 : top;
    }
    r->engine.top_logprobs = (int32_t)top;
    return true;
}

/* Of vLLM's pairs only those that leave the answer an answer: a new message, or the last one's
 * going on. */
static bool read_continues(const json_t *body, struct openai_request *r, struct openai_error *err) {
    struct openai_chat_form form;
    if (!openai_read_form(body, &form, err))
        return false;
    if (form.continues && r->api == OPENAI_COMPLETIONS)
        return openai_refuse(err, "continue_final_message", "is not supported (but for false)");
    if (!form.begins && !form.continues)
        return openai_refuse(err, "add_generation_prompt", "is not supported (but for true)");
    r->continues = form.continues;
    return true;
}

static bool read_stream(const struct openai_setup *setup, const json_t *body,
                        struct openai_request *r, struct openai_error *err) {
    if (!openai_flag(body, "stream", &r->stream, err))
        return false;
    if (r->stream && !setup->stream)
        return openai_refuse(err, "stream", "true is not possible here");
    const json_t *options = openai_get(body, "stream_options");
    if (options && !json_is_object(options))
        return openai_wrong_type(err, "stream_options", options, "an object");
    const json_t *usage = openai_get(options, "include_usage");
    if (usage && !json_is_boolean(usage))
        return openai_wrong_type(err, "stream_options.include_usage", usage, "true or false");
    r->include_usage = json_is_true(usage);
    return true;
}

static bool read_salt(struct openai_request *r, const json_t *body, struct openai_error *err) {
    enum { SALT_MAX = 256 }; /* it stays as long as prefixes do */
    if (!optional_text(r, body, "cache_salt", &r->engine.salt, err))
        return false;
    const size_t n = r->engine.salt ? strlen(r->engine.salt) : 0;
    return n <= SALT_MAX ||
           openai_refuse(err, "cache_salt", "%zu bytes are more than %d", n, SALT_MAX);
}

bool openai_read_fields(const struct openai_setup *setup, const json_t *body,
                        struct openai_request *r, struct openai_error *err) {
    r->model = setup->model;
    return check_supported(setup, body, err) && optional_text(r, body, "model", &r->model, err) &&
           read_salt(r, body, err) &&
           optional_text(r, body, "prompt_cache", &r->prompt_cache, err) &&
           read_continues(body, r, err) && read_stream(setup, body, r, err) &&
           read_limits(setup, body, r, err) && read_format(body, r, err) &&
           read_sampling(setup, body, r, err) && read_stops(setup, body, r, err) &&
           read_logprobs(body, r, err);
}
