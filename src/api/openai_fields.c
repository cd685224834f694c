/* SPDX-License-Identifier: Apache-2.0 */
/* openai_fields.c: the fields of a body but its prompt: limits, sampling, stops, logprobs, and the
 * names of what is refused.
 *
 * A missing member and null are the same. A number is in range or refused by its name, so that
 * nothing is left for the engine to find wrong with it.
 */
#include "api/openai_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool optional_text(struct api_request *r, json_t *body, const char *name, const char **out,
                          struct api_error *err) {
    json_t *value = api_get(body, name);
    return !value || api_text(r->kept, name, value, out, err);
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

static bool is_harmless(json_t *value, const char *harmless) {
    json_t *allowed = harmless ? json_loads(harmless, JSON_DECODE_ANY, NULL) : NULL;
    bool same = allowed && json_equal(value, allowed);
    json_decref(allowed);
    return same;
}

static bool check_supported(const struct api_setup *setup, json_t *body, struct api_error *err) {
    for (size_t i = 0; i < sizeof NOT_SUPPORTED / sizeof *NOT_SUPPORTED; i++) {
        json_t *value = api_get(body, NOT_SUPPORTED[i].name);
        const char *harmless = NOT_SUPPORTED[i].harmless;
        if (!value || is_harmless(value, harmless))
            continue;
        return harmless ? api_refuse(err, NOT_SUPPORTED[i].name, "is not supported (but for %s)",
                                     harmless)
                        : api_refuse(err, NOT_SUPPORTED[i].name, "is not supported");
    }
    json_t *choice = api_get(body, "tool_choice");
    const char *word = json_string_value(choice);
    if (choice && (!word || (strcmp(word, "none") != 0 && strcmp(word, "auto") != 0)))
        return api_refuse(err, "tool_choice",
                          "is neither \"none\" nor \"auto\": an answer "
                          "cannot be made to call a tool");
    if (!setup->prompt_cache && api_get(body, "prompt_cache"))
        return api_refuse(err, "prompt_cache", "is not allowed here");
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

static bool set_xtc_special(const struct api_setup *setup, struct api_request *r,
                            struct api_error *err) {
    kvasir_sampling *s = &r->engine.sampling;
    kvasir_error why;
    if (kvasir_xtc_special(setup->tokenizer, &r->xtc_special, &s->n_xtc_special, &why)) {
        api_error_of(err, &why);
        return false;
    }
    s->xtc_special = r->xtc_special;
    return true;
}

/* {"50256": -100}: members named by token ids */
static bool read_logit_bias(const struct api_setup *setup, json_t *body, struct api_request *r,
                            struct api_error *err) {
    json_t *bias = api_get(body, "logit_bias"), *value;
    const char *key;
    if (!bias)
        return true;
    if (!json_is_object(bias))
        return api_wrong_type(err, "logit_bias", bias, "an object");
    r->logit_bias = malloc((json_object_size(bias) + 1) * sizeof *r->logit_bias);
    if (!r->logit_bias)
        return api_no_memory(err);
    size_t n = 0;
    json_object_foreach(bias, key, value) {
        char path[API_PATH_MAX];
        snprintf(path, sizeof path, "logit_bias[\"%.40s\"]", key);
        size_t digits = strspn(key, "0123456789");
        long id = digits > 0 && digits < 11 && !key[digits] ? strtol(key, NULL, 10) : -1;
        if (id < 0 || id >= (long)setup->vocab)
            return api_refuse(err, path, "is no token id, they go from 0 to %u", setup->vocab - 1);
        kvasir_logit_bias *b = &r->logit_bias[n++];
        b->token = (int32_t)id;
        if (!api_real(value, path, -100, 100, &b->bias, err))
            return false;
    }
    r->engine.sampling.logit_bias = r->logit_bias;
    r->engine.sampling.n_logit_bias = n;
    return true;
}

static bool read_contexts(json_t *body, kvasir_sampling *s, struct api_error *err) {
    enum { CONTEXT_MAX = 1 << 20 }; /* memory of each request */
    json_int_t repetition = s->repetition_context, presence = s->presence_context,
               frequency = s->frequency_context;
    if (!api_whole(body, "repetition_context_size", 1, CONTEXT_MAX, &repetition, err) ||
        !api_whole(body, "presence_context_size", 1, CONTEXT_MAX, &presence, err) ||
        !api_whole(body, "frequency_context_size", 1, CONTEXT_MAX, &frequency, err))
        return false;
    s->repetition_context = (uint32_t)repetition;
    s->presence_context = (uint32_t)presence;
    s->frequency_context = (uint32_t)frequency;
    return true;
}

static bool read_sampling(const struct api_setup *setup, json_t *body, struct api_request *r,
                          struct api_error *err) {
    kvasir_sampling *s = &r->engine.sampling;
    *s = setup->sampling;
    for (size_t i = 0; i < sizeof REALS / sizeof *REALS; i++)
        if (!api_real(api_get(body, REALS[i].name), REALS[i].name, REALS[i].min, REALS[i].max,
                      (float *)((char *)s + REALS[i].offset), err))
            return false;
    /* OpenAI's 0 would leave the likeliest token, mlx-lm's is off: nobody is to get the other. */
    if (api_get(body, "top_p") && s->top_p == 0)
        return api_refuse(err, "top_p", "0 would leave no token: 1 is off");
    json_int_t top_k = s->top_k, seed = 0;
    if (!api_whole(body, "top_k", -1, setup->vocab, &top_k, err) ||
        !api_whole(body, "seed", INT64_MIN, INT64_MAX, &seed, err))
        return false;
    s->top_k = top_k > 0 ? (int32_t)top_k : 0; /* vLLM says off with -1 */
    if (api_get(body, "seed"))
        s->seed = (uint64_t)seed;
    return read_contexts(body, s, err) && read_logit_bias(setup, body, r, err) &&
           (s->xtc_probability == 0 || set_xtc_special(setup, r, err));
}

/* ---- limits, stops, logprobs ----------------------------------------------------------------- */

static bool read_limits(const struct api_setup *setup, json_t *body, struct api_request *r,
                        struct api_error *err) {
    json_int_t tokens = setup->max_tokens, n = 1;
    /* the newer name is read last and wins */
    if (!api_whole(body, "max_tokens", 1, UINT32_MAX, &tokens, err) ||
        !api_whole(body, "max_completion_tokens", 1, UINT32_MAX, &tokens, err) ||
        !api_whole(body, "n", 1, setup->max_choices, &n, err))
        return false;
    r->default_length = !api_get(body, "max_tokens") && !api_get(body, "max_completion_tokens");
    r->engine.max_tokens = (uint32_t)tokens;
    r->engine.n = (uint32_t)n;
    return api_flag(body, "ignore_eos", &r->engine.ignore_end, err);
}

static bool read_format(json_t *body, struct api_request *r, struct api_error *err) {
    json_t *format = api_get(body, "response_format");
    if (!format)
        return true;
    if (!json_is_object(format))
        return api_wrong_type(err, "response_format", format, "an object");
    const char *word;
    if (!api_text(r->kept, "response_format.type", api_get(format, "type"), &word, err))
        return false;
    r->engine.json_object = strcmp(word, "json_object") == 0;
    if (!r->engine.json_object && strcmp(word, "text") != 0)
        return api_refuse(err, "response_format.type",
                          "\"%.40s\" is not supported: \"text\" and \"json_object\" are there",
                          word);
    if (r->engine.json_object && r->engine.ignore_end)
        return api_refuse(err, "ignore_eos",
                          "not together with a response_format of type \"json_object\"");
    return true;
}

static bool read_stop(struct api_request *r, const char *path, json_t *value,
                      struct api_error *err) {
    const char **out = &r->stops[r->engine.n_stops];
    if (!api_text(r->kept, path, value, out, err))
        return false;
    if (!**out)
        return api_refuse(err, path, "the text is empty");
    r->engine.n_stops++;
    return true;
}

static bool read_stops(const struct api_setup *setup, json_t *body, struct api_request *r,
                       struct api_error *err) {
    enum { STOPS_MAX = 32 }; /* each is looked for at every token */
    json_t *stop = api_get(body, "stop"), *ids = api_get(body, "stop_token_ids");
    if (ids && !api_ids("stop_token_ids", ids, setup->vocab, &r->stop_tokens,
                        &r->engine.n_stop_tokens, err))
        return false;
    r->engine.stop_tokens = r->stop_tokens;
    if (!stop)
        return true;
    size_t n = json_is_array(stop) ? json_array_size(stop) : 1;
    if (!json_is_array(stop) && !json_is_string(stop))
        return api_wrong_type(err, "stop", stop, "a string or an array of them");
    if (n > STOPS_MAX)
        return api_refuse(err, "stop", "%zu texts are more than %d", n, STOPS_MAX);
    r->stops = malloc((n + 1) * sizeof *r->stops);
    if (!r->stops)
        return api_no_memory(err);
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

static bool read_logprobs(json_t *body, struct api_request *r, struct api_error *err) {
    enum { TOP_MAX = 20 };
    json_int_t top = -1;
    if (r->api == API_COMPLETIONS) {
        if (!api_whole(body, "logprobs", 0, TOP_MAX, &top, err))
            return false;
    } else {
        bool wanted = false;
        if (!api_flag(body, "logprobs", &wanted, err) ||
            !api_whole(body, "top_logprobs", 0, TOP_MAX, &top, err))
            return false;
        if (top > 0 && !wanted)
            return api_refuse(err, "top_logprobs", "needs \"logprobs\": true");
        top = !wanted ? -1 : top < 0 ? 0 : top;
    }
    r->engine.top_logprobs = (int32_t)top;
    return true;
}

/* Of vLLM's pairs only those that leave the answer an answer: a new message, or the last one's
 * going on. */
static bool read_continues(json_t *body, struct api_request *r, struct api_error *err) {
    struct openai_chat_shape shape;
    if (!openai_read_shape(body, &shape, err))
        return false;
    if (shape.continues && r->api == API_COMPLETIONS)
        return api_refuse(err, "continue_final_message", "is not supported (but for false)");
    if (!shape.begins_answer && !shape.continues)
        return api_refuse(err, "add_generation_prompt", "is not supported (but for true)");
    r->continues = shape.continues;
    return true;
}

static bool read_stream(const struct api_setup *setup, json_t *body, struct api_request *r,
                        struct api_error *err) {
    if (!api_flag(body, "stream", &r->stream, err))
        return false;
    if (r->stream && !setup->stream)
        return api_refuse(err, "stream", "true is not possible here");
    json_t *options = api_get(body, "stream_options");
    if (options && !json_is_object(options))
        return api_wrong_type(err, "stream_options", options, "an object");
    json_t *usage = api_get(options, "include_usage");
    if (usage && !json_is_boolean(usage))
        return api_wrong_type(err, "stream_options.include_usage", usage, "true or false");
    r->include_usage = json_is_true(usage);
    return true;
}

static bool read_salt(struct api_request *r, json_t *body, struct api_error *err) {
    enum { SALT_MAX = 256 }; /* it stays as long as prefixes do */
    if (!optional_text(r, body, "cache_salt", &r->engine.salt, err))
        return false;
    const size_t n = r->engine.salt ? strlen(r->engine.salt) : 0;
    return n <= SALT_MAX ||
           api_refuse(err, "cache_salt", "%zu bytes are more than %d", n, SALT_MAX);
}

bool openai_read_fields(const struct api_setup *setup, json_t *body, struct api_request *r,
                        struct api_error *err) {
    r->model = setup->model;
    return check_supported(setup, body, err) && optional_text(r, body, "model", &r->model, err) &&
           read_salt(r, body, err) &&
           optional_text(r, body, "prompt_cache", &r->prompt_cache, err) &&
           read_continues(body, r, err) && read_stream(setup, body, r, err) &&
           read_limits(setup, body, r, err) && read_format(body, r, err) &&
           read_sampling(setup, body, r, err) && read_stops(setup, body, r, err) &&
           read_logprobs(body, r, err);
}
