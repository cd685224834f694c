/* SPDX-License-Identifier: Apache-2.0 */
/* native_request.c: a body of /completion or /infill as a completion's.
 *
 *     prompt                          a text, token ids, or both in one array
 *     input_prefix, prompt, input_suffix, input_extra      fim.h
 *     n_predict, repeat_penalty ...   llama_options.h
 *     n_probs                         logprobs
 *     grammar, json_schema            the same
 *     response_fields                 of the answer, only these
 *     cache_prompt, id_slot           change nothing: prefixes are always kept, for any request
 */
#include "api/fim.h"
#include "api/llama_options.h"
#include "api/native.h"
#include "util/json.h"

#include <string.h>

struct reading {
    const struct api_setup *setup;
    json_t *body;
    struct api_body out; /* the completion's body */
    struct llama_options options;
    struct api_error *err;
};

/* Takes value. */
static bool put(struct reading *r, const char *name, json_t *value) {
    return json_object_set_new(r->out.members, name, value) == 0 || api_no_memory(r->err);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static bool add_ids(struct api_ids *to, const int32_t *ids, size_t n, struct api_error *err) {
    if (!ARRAY_GROW(to->ids, to->cap, to->n + n))
        return api_no_memory(err);
    if (n)
        memcpy(to->ids + to->n, ids, n * sizeof *ids);
    to->n += n;
    return true;
}

/* An item of a prompt in an array; the first text begins like any prompt. */
static bool add_item(struct reading *r, json_t *item, const char *at, bool *begun,
                     struct api_ids *to) {
    const json_int_t id = json_integer_value(item);
    const int32_t one = (int32_t)id;
    kvasir_error why;
    int32_t *ids;
    size_t n;
    if (json_is_integer(item))
        return id < 0 || id >= r->setup->vocab
                   ? api_refuse(r->err, at, "%lld is not a token id (0 to %u)", (long long)id,
                                r->setup->vocab - 1)
                   : add_ids(to, &one, 1, r->err);
    if (!json_is_string(item))
        return api_wrong_type(r->err, at, item, "a string or a token id");
    const unsigned flags =
        KVASIR_TOKENIZE_PARSE_SPECIAL | (*begun ? 0 : (unsigned)KVASIR_TOKENIZE_ADD_SPECIAL);
    if (kvasir_tokenize_by(r->setup->tokenizer, json_string_value(item), json_string_length(item),
                           flags, NULL, r->setup->limits, &ids, &n, &why))
        return api_library_failed(r->err, at, &why);
    *begun = true;
    const bool good = add_ids(to, ids, n, r->err);
    kvasir_free(ids);
    return good;
}

static bool read_items(struct reading *r, json_t *prompt) {
    struct api_ids *ids = &r->out.lists[r->out.n_lists++];
    *ids = (struct api_ids){.name = "prompt", .path = "prompt"};
    bool begun = false, good = true;
    for (size_t i = 0; good && i < json_array_size(prompt); i++)
        good = add_item(r, json_array_get(prompt, i), api_item("prompt", i).text, &begun, ids);
    return good;
}

static bool read_prompt(struct reading *r) {
    json_t *prompt = api_get(r->body, "prompt"), *item;
    size_t i, n = json_array_size(prompt), numbers = 0;
    json_array_foreach(prompt, i, item) numbers += json_is_number(item);
    if (json_is_array(prompt) && !numbers && n == 1)
        prompt = json_array_get(prompt, 0); /* a list of one prompt */
    else if (!numbers && n > 1)
        return api_refuse(r->err, "prompt", "%zu prompts, a request takes one", n);
    if (json_is_array(prompt))
        return read_items(r, prompt);
    if (!json_is_string(prompt))
        return api_wrong_type(r->err, "prompt", prompt, "a string or an array of token ids");
    return put(r, "prompt", json_incref(prompt));
}

/* A member that is a text; *out NULL: there is none. */
static bool text_of(struct reading *r, const char *name, json_t **out) {
    *out = api_get(r->body, name);
    return !*out || json_is_string(*out) || api_wrong_type(r->err, name, *out, "a string");
}

static bool read_gap(struct reading *r) {
    struct fim_texts texts = {
        .extra = api_get(r->body, "input_extra"), .at = "input_prefix", .at_extra = "input_extra"};
    return text_of(r, "input_prefix", &texts.before[0]) && text_of(r, "prompt", &texts.before[1]) &&
           text_of(r, "input_suffix", &texts.after) &&
           fim_set_prompt(r->setup, &texts, &r->out, r->err);
}

/* ---- fields ---------------------------------------------------------------------------------- */

/* Fields of the same name and meaning. */
static const char *const COPIED[] = {"stream",     "grammar",  "json_schema",
                                     "model",      "cache",    "control_tokens",
                                     "cache_salt", "priority", NULL};
static const char *const NAMES[] = {
    "prompt", "input_prefix",  "input_suffix",    "input_extra",         "n_probs",    "n",
    "n_cmpl", "return_tokens", "response_fields", "post_sampling_probs", "image_data", "lora",
    NULL};

static bool check_supported(struct reading *r) {
    bool post = false;
    json_int_t n = 1;
    if (!api_whole(r->body, "n", 1, 1, &n, r->err) ||
        !api_whole(r->body, "n_cmpl", 1, 1, &n, r->err) ||
        !api_flag(r->body, "post_sampling_probs", &post, r->err))
        return false;
    if (post)
        return api_refuse(r->err, "post_sampling_probs",
                          "is not supported: probabilities are those before sampling");
    for (const char *const *at = (const char *const[]){"image_data", "lora", NULL}; *at; at++)
        if (json_array_size(api_get(r->body, *at)))
            return api_refuse(r->err, *at, "is not supported");
    return true;
}

static bool read_fields(struct reading *r) {
    bool tokens = false;
    if (!check_supported(r))
        return false;
    for (size_t i = 0; COPIED[i]; i++) {
        json_t *value = api_get(r->body, COPIED[i]);
        const bool empty = json_is_string(value) && json_string_length(value) == 0;
        if (value && !empty && !put(r, COPIED[i], json_incref(value)))
            return false;
    }
    json_t *probs = api_get(r->body, "n_probs");
    const bool wants = probs && !(json_is_integer(probs) && json_integer_value(probs) == 0);
    if (!api_flag(r->body, "return_tokens", &tokens, r->err) ||
        (wants && !put(r, "logprobs", json_incref(probs))) ||
        (!wants && tokens && !put(r, "logprobs", json_integer(0)))) /* tokens are kept then */
        return false;
    r->options.from = r->body;
    r->options.out = r->out.members;
    r->options.err = r->err;
    return llama_options_read(&r->options);
}

/* "response_fields" and "return_tokens", for the answer, and its "warnings". */
static json_t *echo_of(const struct reading *r) {
    json_t *fields = api_get(r->body, "response_fields"),
           *tokens = api_get(r->body, "return_tokens"),
           *warnings = json_array_size(r->options.warnings) ? r->options.warnings : NULL;
    return json_pack("{s:O*, s:O*, s:O*}", "response_fields", fields, "return_tokens", tokens,
                     "warnings", warnings);
}

static bool check_fields(struct reading *r) {
    json_t *fields = api_get(r->body, "response_fields"), *field;
    size_t i;
    if (fields && !json_is_array(fields))
        return api_wrong_type(r->err, "response_fields", fields, "an array of strings");
    json_array_foreach(fields, i, field) {
        if (!json_is_string(field))
            return api_wrong_type(r->err, api_item("response_fields", i).text, field, "a string");
    }
    return true;
}

/* ---- all of it ------------------------------------------------------------------------------- */

enum api_want native_wants(const char *name, size_t len, const char **known) {
    static const struct api_names LISTS[] = {{API_TREE, NAMES}, {API_TREE, COPIED}};
    return llama_options_wants(name, len, known) ? API_TREE
                                                 : api_want_of(LISTS, 2, name, len, known);
}

static bool finish(struct reading *r, struct api_request *out) {
    out->engine.shorten = true; /* also of a length that was asked for: it may become shorter */
    out->engine.no_answer = r->options.nothing;
    if (r->options.unlimited)
        out->engine.max_tokens = 0;
    out->echo = echo_of(r);
    if (out->echo)
        return true;
    api_request_free(out);
    return api_no_memory(r->err);
}

static bool read_body(const struct api_setup *setup, json_t *body,
                      bool (*prompt)(struct reading *r), struct api_request *out,
                      struct api_error *err) {
    struct reading r = {.setup = setup,
                        .body = body,
                        .out = {.members = json_object()},
                        .options = {.warnings = json_array()},
                        .err = err};
    bool good = (r.out.members && r.options.warnings) || api_no_memory(err);
    good = good && check_fields(&r) && read_fields(&r) && prompt(&r);
    if (good && !openai_read(setup, API_COMPLETIONS, &r.out, out, err)) {
        good = false;
        if (!llama_options_rename(&r.options))
            (void)api_rename(err, "logprobs", "n_probs");
    }
    good = good && finish(&r, out);
    api_body_free(&r.out);
    json_decref(r.options.warnings);
    return good;
}

bool native_read_completion(const struct api_setup *setup, struct api_body *body,
                            struct api_request *out, struct api_error *err) {
    return read_body(setup, body->members, read_prompt, out, err);
}

bool native_read_infill(const struct api_setup *setup, struct api_body *body,
                        struct api_request *out, struct api_error *err) {
    return read_body(setup, body->members, read_gap, out, err);
}
