/* SPDX-License-Identifier: Apache-2.0 */
/* openai_fields.c: the fields of a body except its prompt: limits, sampling, stops, logprobs.
 * api_fields.c has those that are refused.
 *
 * A value of the wrong type or out of range is refused by its name. Ranges of sampling are the
 * sampler's (kvasir_sampling_check).
 */
#include "api/api_fields.h"
#include "api/openai_internal.h"
#include "util/json.h"

#include <float.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool optional_text(struct api_request *r, json_t *body, const char *name, const char **out,
                          struct api_error *err) {
    json_t *value = api_get(body, name);
    return !value || api_text(r->kept, name, value, out, err);
}

static bool check_supported(const struct api_setup *setup, json_t *body, struct api_error *err) {
    if (!setup->prompt_cache && api_get(body, "prompt_cache"))
        return api_refuse(err, "prompt_cache", "is not supported by this server");
    return api_fields_check(body, "prompt_logprobs", err);
}

/* ---- sampling -------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t offset; /* in kvasir_sampling */
    double most;   /* of its absolute value, as OpenAI's documents say; the sampler has its own */
} REALS[] = {
    {"temperature", offsetof(kvasir_sampling, temp), FLT_MAX},
    {"top_p", offsetof(kvasir_sampling, top_p), FLT_MAX},
    {"min_p", offsetof(kvasir_sampling, min_p), FLT_MAX},
    {"repetition_penalty", offsetof(kvasir_sampling, repetition_penalty), FLT_MAX},
    {"presence_penalty", offsetof(kvasir_sampling, presence_penalty), 2},
    {"frequency_penalty", offsetof(kvasir_sampling, frequency_penalty), 2},
    {"xtc_probability", offsetof(kvasir_sampling, xtc_probability), FLT_MAX},
    {"xtc_threshold", offsetof(kvasir_sampling, xtc_threshold), FLT_MAX},
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

/* {"50256": -100}: token ids as names */
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
            return api_refuse(err, path, "is not a token id (0 to %u)", setup->vocab - 1);
        ASSERT(n < json_object_size(bias));
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
    json_int_t repetition = s->repetition_context, presence = s->presence_context,
               frequency = s->frequency_context;
    if (!api_whole(body, "repetition_context_size", 1, UINT32_MAX, &repetition, err) ||
        !api_whole(body, "presence_context_size", 1, UINT32_MAX, &presence, err) ||
        !api_whole(body, "frequency_context_size", 1, UINT32_MAX, &frequency, err))
        return false;
    s->repetition_context = (uint32_t)repetition;
    s->presence_context = (uint32_t)presence;
    s->frequency_context = (uint32_t)frequency;
    return true;
}

static bool check_sampling(const struct api_setup *setup, const kvasir_sampling *s,
                           struct api_error *err) {
    kvasir_error why;
    if (kvasir_sampling_check(s, setup->vocab, &why) == KVASIR_OK)
        return true;
    api_error_of(err, &why);
    return false;
}

static bool read_sampling(const struct api_setup *setup, json_t *body, struct api_request *r,
                          struct api_error *err) {
    kvasir_sampling *s = &r->engine.sampling;
    *s = setup->sampling;
    for (size_t i = 0; i < sizeof REALS / sizeof *REALS; i++)
        if (!api_real(api_get(body, REALS[i].name), REALS[i].name, -REALS[i].most, REALS[i].most,
                      (float *)((char *)s + REALS[i].offset), err))
            return false;
    /* At OpenAI 0 leaves the likeliest token, in mlx-lm it turns top_p off: refuse both. */
    if (api_get(body, "top_p") && s->top_p == 0)
        return api_refuse(err, "top_p", "must be above 0; 1 turns it off");
    json_int_t top_k = s->top_k, seed = 0;
    if (!api_whole(body, "top_k", -1, INT32_MAX, &top_k, err) ||
        !api_whole(body, "seed", INT64_MIN, INT64_MAX, &seed, err))
        return false;
    s->top_k = top_k > 0 ? (int32_t)top_k : 0; /* -1 is vLLM's 'off' */
    if (api_get(body, "seed"))
        s->seed = (uint64_t)seed;
    return read_contexts(body, s, err) && read_logit_bias(setup, body, r, err) &&
           check_sampling(setup, s, err) &&
           (s->xtc_probability == 0 || set_xtc_special(setup, r, err));
}

/* ---- limits, stops, logprobs ----------------------------------------------------------------- */

static bool read_limits(const struct api_setup *setup, json_t *body, struct api_request *r,
                        struct api_error *err) {
    const json_int_t least = r->api == API_CHAT; /* 0: the prompt alone (read_echo) */
    static const char OLDER[] = "max_tokens";
    json_int_t tokens = setup->max_tokens, n = 1;
    const bool all = json_is_integer(api_get(body, OLDER)) &&
                     json_integer_value(api_get(body, OLDER)) == -1; /* llama.cpp: what fits */
    if (all)
        tokens = 0;
    /* the newer name is read last and wins */
    if ((!all && !api_whole(body, OLDER, least, UINT32_MAX, &tokens, err)) ||
        !api_whole(body, "max_completion_tokens", least, UINT32_MAX, &tokens, err) ||
        !api_whole(body, "n", 1, setup->max_choices, &n, err))
        return false;
    const bool given = api_get(body, OLDER) || api_get(body, "max_completion_tokens");
    r->engine.shorten = setup->clamp_tokens || !given;
    r->engine.max_tokens = (uint32_t)tokens;
    r->engine.no_answer = tokens == 0 && given && !all;
    r->engine.n = (uint32_t)n;
    return api_flag(body, "ignore_eos", &r->engine.ignore_end, err);
}

static bool read_stop(struct api_request *r, const char *path, json_t *value,
                      struct api_error *err) {
    const char **out = &r->stops[r->engine.n_stops];
    if (!api_text(r->kept, path, value, out, err))
        return false;
    if (!**out)
        return api_refuse(err, path, "must not be empty");
    r->engine.n_stops++;
    return true;
}

static bool read_stop_ids(struct api_body *body, struct api_request *r, struct api_error *err) {
    static const char NAME[] = "stop_token_ids";
    json_t *other = api_get(body->members, NAME);
    if (other)
        return api_wrong_type(err, NAME, other, "an array of token ids");
    return !api_has_ids(body, NAME) ||
           api_take_ids(body, NAME, &r->stop_tokens, &r->engine.n_stop_tokens, err);
}

static bool read_stops(struct api_body *body, struct api_request *r, struct api_error *err) {
    enum { STOPS_MAX = 32 }; /* each is searched for at every token */
    json_t *stop = api_get(body->members, "stop");
    if (!read_stop_ids(body, r, err))
        return false;
    r->engine.stop_tokens = r->stop_tokens;
    if (!stop)
        return true;
    size_t n = json_is_array(stop) ? json_array_size(stop) : 1;
    if (!json_is_array(stop) && !json_is_string(stop))
        return api_wrong_type(err, "stop", stop, "a string or an array of them");
    if (n > STOPS_MAX)
        return api_refuse(err, "stop", "%zu stop texts, at most %d are allowed", n, STOPS_MAX);
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
    json_int_t top = -1;
    if (r->api == API_COMPLETIONS) {
        if (!api_whole(body, "logprobs", 0, KVASIR_TOP_LOGPROBS_MAX, &top, err))
            return false;
    } else {
        bool wanted = false;
        if (!api_flag(body, "logprobs", &wanted, err) ||
            !api_whole(body, "top_logprobs", 0, KVASIR_TOP_LOGPROBS_MAX, &top, err))
            return false;
        if (top > 0 && !wanted)
            return api_refuse(err, "top_logprobs", "needs \"logprobs\": true");
        top = !wanted ? -1 : top < 0 ? 0 : top;
    }
    r->engine.top_logprobs = (int32_t)top;
    return true;
}

/* Answers begin with the prompt and its log-probabilities, if any are asked for. */
static bool read_echo(json_t *body, struct api_request *r, struct api_error *err) {
    if (!api_flag(body, "echo", &r->echoes, err))
        return false;
    if (r->echoes && r->api == API_CHAT)
        return api_refuse(err, "echo", "true is only supported for /v1/completions");
    if (r->echoes && r->prompt_cache)
        return api_refuse(err, "echo", "cannot be combined with prompt_cache");
    if (r->engine.no_answer && !r->echoes)
        return api_refuse(
            err, api_get(body, "max_completion_tokens") ? "max_completion_tokens" : "max_tokens",
            "0 is not between 1 and %u; only with \"echo\": true it may be 0", UINT32_MAX);
    if (r->echoes)
        r->engine.prompt_logprobs = r->engine.top_logprobs;
    return true;
}

/* vLLM's scores of the prompt's tokens, which it has in whole answers only, too. */
static bool read_prompt_logprobs(json_t *body, struct api_request *r, struct api_error *err) {
    static const char NAME[] = "prompt_logprobs";
    json_int_t top = -1;
    if (!api_whole(body, NAME, 0, KVASIR_TOP_LOGPROBS_MAX, &top, err))
        return false;
    if (top < 0)
        return true;
    if (r->stream)
        return api_refuse(err, NAME, "is not supported in a stream");
    if (r->prompt_cache)
        return api_refuse(err, NAME, "cannot be combined with prompt_cache");
    if (r->echoes && r->engine.top_logprobs >= 0 && r->engine.top_logprobs != top)
        return api_refuse(err, NAME, "must be the same as \"logprobs\" together with \"echo\"");
    r->scores = true;
    r->engine.prompt_logprobs = (int32_t)top;
    return true;
}

/* Of vLLM's combinations, those that make an answer: a new message, or the last one continued. */
static bool read_continues(json_t *body, struct api_request *r, struct api_error *err) {
    struct openai_chat_shape shape;
    if (!openai_read_shape(body, &shape, err))
        return false;
    if (shape.continues && r->api == API_COMPLETIONS)
        return api_refuse(err, "continue_final_message", "true is only supported for chats");
    if (!shape.begins_answer && !shape.continues)
        return api_refuse(err, "add_generation_prompt",
                          "false needs \"continue_final_message\": true");
    r->continues = shape.continues;
    return true;
}

static bool read_stream(const struct api_setup *setup, json_t *body, struct api_request *r,
                        struct api_error *err) {
    if (!api_flag(body, "stream", &r->stream, err))
        return false;
    if (r->stream && !setup->stream)
        return api_refuse(err, "stream", "true is not supported here");
    json_t *options = api_get(body, "stream_options");
    if (options && !json_is_object(options))
        return api_wrong_type(err, "stream_options", options, "an object");
    json_t *usage = api_get(options, "include_usage");
    if (usage && !json_is_boolean(usage))
        return api_wrong_type(err, "stream_options.include_usage", usage, "true or false");
    r->include_usage = json_is_true(usage);
    return true;
}

/* Who may write a control token of a chat. */
static bool read_control(const struct api_setup *setup, json_t *body, struct api_request *r,
                         struct api_error *err) {
    json_t *value = api_get(body, "control_tokens");
    const char *word = json_string_value(value);
    r->all_control = setup->all_control;
    if (!value)
        return true;
    if (r->api != API_CHAT)
        return api_refuse(err, "control_tokens", "is only supported for chats");
    if (!word || (strcmp(word, "template") != 0 && strcmp(word, "all") != 0))
        return api_refuse(err, "control_tokens", "must be \"template\" or \"all\"");
    if (!api_word(value, "control_tokens", &word, err))
        return false;
    r->all_control = strcmp(word, "all") == 0;
    return true;
}

static bool read_salt(struct api_request *r, json_t *body, struct api_error *err) {
    enum { SALT_MAX = 256 }; /* it is kept with stored prefixes */
    if (!optional_text(r, body, "cache_salt", &r->engine.salt, err))
        return false;
    const size_t n = r->engine.salt ? strlen(r->engine.salt) : 0;
    return n <= SALT_MAX ||
           api_refuse(err, "cache_salt", "%zu bytes, at most %d are allowed", n, SALT_MAX);
}

/* vLLM's: the lowest goes first. */
static bool read_priority(struct api_request *r, json_t *body, struct api_error *err) {
    json_int_t priority = 0;
    if (!api_whole(body, "priority", INT32_MIN, INT32_MAX, &priority, err))
        return false;
    r->engine.priority = (int32_t)priority;
    return true;
}

/* "cache": {"no_store": true} or {"ttl": 60, "pin": true} */
static bool read_cache(struct api_request *r, json_t *body, struct api_error *err) {
    json_t *cache = api_get(body, "cache"), *value;
    const char *name;
    if (!cache)
        return true;
    if (!json_is_object(cache))
        return api_wrong_type(err, "cache", cache, "an object");
    json_object_foreach(cache, name, value) {
        const bool is_ttl = strcmp(name, "ttl") == 0;
        char path[API_PATH_MAX];
        snprintf(path, sizeof path, "cache.%.60s", name);
        if (!is_ttl && strcmp(name, "no_store") != 0 && strcmp(name, "pin") != 0)
            return api_refuse(err, path, "is unknown, only no_store, ttl and pin are supported");
        if (json_is_null(value))
            continue;
        if (!is_ttl && !json_is_boolean(value))
            return api_wrong_type(err, path, value, "true or false");
        if (is_ttl && !json_is_integer(value))
            return api_wrong_type(err, path, value, "a whole number");
        if (is_ttl && (json_integer_value(value) < 1 || json_integer_value(value) > KVASIR_TTL_MAX))
            return api_refuse(err, path, "%lld is not between 1 and %d",
                              (long long)json_integer_value(value), KVASIR_TTL_MAX);
    }
    r->engine.no_store = json_is_true(json_object_get(cache, "no_store"));
    r->engine.pin = json_is_true(json_object_get(cache, "pin"));
    r->engine.ttl_seconds = (uint64_t)json_integer_value(json_object_get(cache, "ttl"));
    if (r->engine.no_store && (r->engine.pin || r->engine.ttl_seconds))
        return api_refuse(err, "cache.no_store", "cannot be combined with ttl or pin");
    return true;
}

/* It is in every chunk of a stream. */
static bool read_model(struct api_request *r, json_t *body, struct api_error *err) {
    enum { MODEL_MAX = 256 };
    if (!optional_text(r, body, "model", &r->model, err))
        return false;
    const size_t n = strlen(r->model);
    return n <= MODEL_MAX ||
           api_refuse(err, "model", "%zu bytes, at most %d are allowed", n, MODEL_MAX);
}

bool openai_read_names(const struct api_setup *setup, json_t *body, struct api_request *r,
                       struct api_error *err) {
    r->model = setup->model;
    return read_model(r, body, err) && read_salt(r, body, err) && read_priority(r, body, err);
}

bool openai_read_fields(const struct api_setup *setup, struct api_body *from, struct api_request *r,
                        struct api_error *err) {
    json_t *body = from->members;
    return check_supported(setup, body, err) && api_fields_warn(setup, from, r, err) &&
           openai_read_names(setup, body, r, err) && read_cache(r, body, err) &&
           read_control(setup, body, r, err) &&
           optional_text(r, body, "prompt_cache", &r->prompt_cache, err) &&
           read_continues(body, r, err) && read_stream(setup, body, r, err) &&
           read_limits(setup, body, r, err) && openai_read_constraint(body, r, err) &&
           read_sampling(setup, body, r, err) && read_stops(from, r, err) &&
           read_logprobs(body, r, err) && read_echo(body, r, err) &&
           read_prompt_logprobs(body, r, err);
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Every name that is read above, or in openai_chat.c and openai_tools.c (CHAT): others never become
 * trees. Names in REALS need not be here, nor those of openai_constraint.c. */
static const char *const ALL[] = {"model",
                                  "cache_salt",
                                  "priority",
                                  "cache",
                                  "control_tokens",
                                  "prompt_cache",
                                  "session",
                                  "continue_final_message",
                                  "add_generation_prompt",
                                  "stream",
                                  "stream_options",
                                  "max_tokens",
                                  "max_completion_tokens",
                                  "n",
                                  "ignore_eos",
                                  "echo",
                                  "top_k",
                                  "seed",
                                  "repetition_context_size",
                                  "presence_context_size",
                                  "frequency_context_size",
                                  "logit_bias",
                                  "stop",
                                  "logprobs",
                                  "top_logprobs",
                                  "prompt_logprobs",
                                  "tool_choice",
                                  NULL};
static const char *const CHAT[] = {"messages",
                                   "tools",
                                   "parallel_tool_calls",
                                   "reasoning_effort",
                                   "documents",
                                   "chat_template_kwargs",
                                   NULL};
static const char *const IDS[] = {"stop_token_ids", NULL};
static const char *const PROMPT[] = {"prompt", NULL};
static const char *const GAP[] = {"suffix", NULL};

enum api_want openai_wants(enum api_kind api, const char *name, size_t len, const char **known) {
    const struct api_names lists[] = {
        {API_TREE, ALL},
        {API_IDS, IDS},
        {API_TREE, api == API_CHAT ? CHAT : GAP},
        {API_PROMPT, PROMPT},
    };
    const size_t n = sizeof lists / sizeof *lists - (api == API_CHAT);
    for (size_t i = 0; i < sizeof REALS / sizeof *REALS; i++)
        if (json_name_is(name, len, *known = REALS[i].name))
            return API_TREE;
    if (openai_wants_constraint(name, len, known))
        return API_TREE;
    return api_want_of(lists, n, name, len, known);
}
