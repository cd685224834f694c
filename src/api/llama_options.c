/* SPDX-License-Identifier: Apache-2.0 */
/* llama_options.c: which options there are, which are refused, and which are passed over with a
 * line in the answer's "warnings". */
#include "api/llama_options.h"
#include "util/json.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *theirs, *ours;
} OPTIONS[] = {
    {"temperature", "temperature"},
    {"top_k", "top_k"},
    {"top_p", "top_p"},
    {"min_p", "min_p"},
    {"seed", "seed"},
    {"stop", "stop"},
    {"repeat_penalty", "repetition_penalty"},
    {"presence_penalty", "presence_penalty"},
    {"frequency_penalty", "frequency_penalty"},
    {"num_predict", "max_tokens"},
    {"n_predict", "max_tokens"},
    {"xtc_probability", "xtc_probability"},
    {"xtc_threshold", "xtc_threshold"},
    {"ignore_eos", "ignore_eos"},
};
/* Kinds of sampling that there are not here, each with the value that turns it off. */
static const struct {
    const char *name;
    double off;
} NOT_SUPPORTED[] = {{"mirostat", 0},       {"tfs_z", 1},          {"typical_p", 1},
                     {"dynatemp_range", 0}, {"dry_multiplier", 0}, {"top_n_sigma", -1}};
/* Hints, without which an answer is longer, later or in another order. */
static const char *const HINTS[] = {"n_indent", "samplers", "t_max_prompt_ms", "t_max_predict_ms"};
static const char *const READ_HERE[] = {"repeat_last_n", "logit_bias"};

static struct api_path path_of(const struct llama_options *o, const char *name) {
    struct api_path path;
    if (o->at)
        return api_member(o->at, name);
    snprintf(path.text, sizeof path.text, "%.100s", name);
    return path;
}

/* Takes value. */
static bool put(struct llama_options *o, const char *name, json_t *value) {
    return json_object_set_new(o->out, name, value) == 0 || api_no_memory(o->err);
}

bool llama_options_warn(struct llama_options *o, const char *name, const char *why) {
    char text[256];
    snprintf(text, sizeof text, "%.80s: %s", path_of(o, name).text, why);
    return json_array_append_new(o->warnings, json_string(text)) == 0 || api_no_memory(o->err);
}

bool llama_options_wants(const char *name, size_t len, const char **known) {
    for (size_t i = 0; i < sizeof OPTIONS / sizeof *OPTIONS; i++)
        if (json_name_is(name, len, *known = OPTIONS[i].theirs))
            return true;
    for (size_t i = 0; i < sizeof NOT_SUPPORTED / sizeof *NOT_SUPPORTED; i++)
        if (json_name_is(name, len, *known = NOT_SUPPORTED[i].name))
            return true;
    for (size_t i = 0; i < sizeof HINTS / sizeof *HINTS; i++)
        if (json_name_is(name, len, *known = HINTS[i]))
            return true;
    for (size_t i = 0; i < sizeof READ_HERE / sizeof *READ_HERE; i++)
        if (json_name_is(name, len, *known = READ_HERE[i]))
            return true;
    return false;
}

bool llama_options_rename(const struct llama_options *o) {
    for (size_t i = 0; i < sizeof OPTIONS / sizeof *OPTIONS; i++)
        if (api_get(o->from, OPTIONS[i].theirs) &&
            api_rename(o->err, OPTIONS[i].ours, path_of(o, OPTIONS[i].theirs).text))
            return true;
    return api_rename(o->err, "logit_bias", path_of(o, "logit_bias").text);
}

/* Penalties look at the last repeat_last_n tokens; 0: there are none; -1: at all. */
static bool read_last_n(struct llama_options *o) {
    static const char *const SIZES[] = {"repetition_context_size", "presence_context_size",
                                        "frequency_context_size"};
    static const char NAME[] = "repeat_last_n";
    json_int_t n = 64; /* llama.cpp's */
    if (!api_whole(o->from, NAME, -1, INT32_MAX, &n, o->err)) {
        (void)api_rename(o->err, NAME, path_of(o, NAME).text);
        return false;
    }
    if (n == 0)
        return put(o, "repetition_penalty", json_integer(1)) &&
               put(o, "presence_penalty", json_integer(0)) &&
               put(o, "frequency_penalty", json_integer(0));
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++)
        if (!put(o, SIZES[i], json_integer(n > 0 ? n : INT32_MAX)))
            return false;
    return true;
}

/* [[15043, 1.5], [2, false]] as {"15043": 1.5, "2": -100}; an object is that already. */
static bool read_bias(struct llama_options *o) {
    json_t *bias = api_get(o->from, "logit_bias"), *pair, *made;
    size_t i;
    if (!json_is_array(bias))
        return !bias || put(o, "logit_bias", json_incref(bias));
    made = json_object();
    bool good = made || api_no_memory(o->err);
    json_array_foreach(bias, i, pair) {
        json_t *id = json_array_get(pair, 0), *value = json_array_get(pair, 1);
        char name[32];
        snprintf(name, sizeof name, "%lld", (long long)json_integer_value(id));
        if (good && (!json_is_integer(id) || !value))
            good = api_wrong_type(o->err, api_item(path_of(o, "logit_bias").text, i).text, pair,
                                  "a token id and a number: names of tokens are not supported");
        if (good && json_object_set_new(made, name,
                                        json_is_false(value) ? json_integer(-100)
                                                             : json_incref(value)) != 0)
            good = api_no_memory(o->err);
    }
    if (good)
        return put(o, "logit_bias", made);
    json_decref(made);
    return false;
}

static bool check_supported(struct llama_options *o) {
    for (size_t i = 0; i < sizeof NOT_SUPPORTED / sizeof *NOT_SUPPORTED; i++) {
        const char *name = NOT_SUPPORTED[i].name;
        json_t *value = api_get(o->from, name);
        if (value && !(json_is_number(value) && json_number_value(value) == NOT_SUPPORTED[i].off))
            return api_refuse(o->err, path_of(o, name).text,
                              "is not supported, only %g, which turns it off, is",
                              NOT_SUPPORTED[i].off);
    }
    for (size_t i = 0; i < sizeof HINTS / sizeof *HINTS; i++) {
        json_t *value = api_get(o->from, HINTS[i]);
        const bool asks = value && !(json_is_integer(value) && json_integer_value(value) <= 0);
        if (asks && !llama_options_warn(o, HINTS[i], "is not supported and changes nothing"))
            return false;
    }
    return true;
}

bool llama_options_read(struct llama_options *o) {
    if (o->from && !json_is_object(o->from))
        return api_wrong_type(o->err, o->at, o->from, "an object");
    if (!check_supported(o))
        return false;
    for (size_t i = 0; i < sizeof OPTIONS / sizeof *OPTIONS; i++) {
        json_t *value = api_get(o->from, OPTIONS[i].theirs);
        const bool is_length = strcmp(OPTIONS[i].ours, "max_tokens") == 0,
                   is_seed = strcmp(OPTIONS[i].ours, "seed") == 0;
        const json_int_t n = json_is_integer(value) ? json_integer_value(value) : 0;
        if (is_length && (n == -1 || n == -2)) /* without limit; until the context is full */
            o->unlimited = true;
        else if (is_length && json_is_integer(value) && n == 0)
            o->nothing = true;
        else if (value && !(is_seed && n == -1) && /* -1: any */
                 !put(o, OPTIONS[i].ours, json_incref(value)))
            return false;
    }
    return read_last_n(o) && read_bias(o);
}
