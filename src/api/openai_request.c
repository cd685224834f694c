/* SPDX-License-Identifier: Apache-2.0 */
/* openai_request.c: a body to a request.
 *
 *     chat         openai_chat.c -> text -> tokens; control tokens that the template wrote are
 *                  recognised, it writes its own BOS; with "control_tokens": "all" also those that
 *                  messages contain
 *     completions  a text -> tokens, with BOS, control tokens recognised (as in vLLM and mlx-lm);
 *                  token ids -> as they are
 *
 * With a prompt-cache file there is no BOS, since the prompt continues the file's.
 */
#include "api/api_fields.h"
#include "api/openai_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool openai_kind_of(const char *url, enum api_kind *api) {
    if (strcmp(url, "/v1/chat/completions") == 0)
        *api = API_CHAT;
    else if (strcmp(url, "/v1/completions") == 0)
        *api = API_COMPLETIONS;
    else
        return false;
    return true;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static bool set_tokens(struct api_request *r, const char *path, const int32_t *ids, size_t n,
                       struct api_error *err) {
    if (n == 0)
        return api_refuse(err, path, "contains no tokens");
    r->engine.tokens = ids;
    r->engine.n_tokens = n;
    return true;
}

static bool tokenize(const struct api_setup *setup, const char *path, const char *text, size_t len,
                     unsigned flags, struct api_request *r, struct api_error *err) {
    kvasir_error why;
    size_t n;
    if (kvasir_tokenize_by(setup->tokenizer, text, len, flags | KVASIR_TOKENIZE_PARSE_SPECIAL, NULL,
                           setup->limits, &r->tokenized, &n, &why))
        return api_library_failed(err, path, &why);
    return set_tokens(r, path, r->tokenized, n, err);
}

/* ---- completions ----------------------------------------------------------------------------- */

/* A list is allowed if it contains one prompt. (Here it begins with a text: api_body.h.) */
static json_t *single_prompt(json_t *prompt, const char **path) {
    *path = json_is_array(prompt) ? "prompt[0]" : "prompt";
    return json_is_array(prompt) ? json_array_get(prompt, 0) : prompt;
}

static bool read_prompt(const struct api_setup *setup, struct api_body *body, struct api_request *r,
                        struct api_error *err) {
    const char *path = "prompt";
    size_t n;
    if (api_has_ids(body, "prompt"))
        return api_take_ids(body, "prompt", &r->ids, &n, &path, err) &&
               set_tokens(r, path, r->ids, n, err);
    json_t *list = api_get(body->members, "prompt"), *prompt = single_prompt(list, &path);
    if (prompt != list && json_array_size(list) > 1)
        return api_refuse(err, "prompt", "%zu prompts, a request takes one", json_array_size(list));
    if (json_is_string(prompt))
        return tokenize(setup, path, json_string_value(prompt), json_string_length(prompt),
                        r->prompt_cache ? 0 : KVASIR_TOKENIZE_ADD_SPECIAL, r, err);
    return api_wrong_type(err, path, prompt, "a string or an array of token ids");
}

/* How the answer to this prompt is parsed. */
static bool set_answer(const struct api_setup *setup, const char *prompt, size_t len,
                       struct api_request *r, struct api_error *err) {
    if (!constraint_apply(setup, prompt, len, r, err))
        return false;
    /* a text that is asked for and nothing else has no markers: all is content */
    if (!setup->syntax ||
        (r->constraint.kind && !r->answer.body && r->constraint.calls != CALLS_FORCED))
        return true;
    r->answer.syntax = *setup->syntax;
    r->answer.start = answer_start_of(setup->syntax, prompt, len);
    if (!answer_shown_tokens(setup->syntax, r->answer.tools, setup->tokenizer, &r->shown_tokens,
                             &r->engine.n_shown_tokens))
        return api_no_memory(err);
    r->engine.shown_tokens = r->shown_tokens;
    return true;
}

static bool read_chat(const struct api_setup *setup, json_t *body, struct api_request *r,
                      struct api_error *err) {
    const struct openai_chat_shape shape = {.begins_answer = !r->continues,
                                            .continues = r->continues,
                                            .after_file = r->prompt_cache != NULL};
    char *text, *authors = NULL;
    size_t len, n;
    kvasir_error why;
    if (!openai_chat_text(setup, body, &shape, r, &text, r->all_control ? NULL : &authors, &len,
                          err))
        return false;
    bool good = answer_tokenize_prompt(setup->syntax, setup->tokenizer, text, len, authors,
                                       setup->limits, &r->tokenized, &n, &why) == KVASIR_OK ||
                api_library_failed(err, "messages", &why);
    good = good && set_tokens(r, "messages", r->tokenized, n, err) &&
           set_answer(setup, text, len, r, err);
    kvasir_free(authors);
    kvasir_free(text);
    return good;
}

/* ---- all of it ------------------------------------------------------------------------------- */

enum api_want openai_wants_chat(const char *name, size_t len, const char **known) {
    return openai_wants(API_CHAT, name, len, known);
}

enum api_want openai_wants_completion(const char *name, size_t len, const char **known) {
    return openai_wants(API_COMPLETIONS, name, len, known);
}

bool openai_read(const struct api_setup *setup, enum api_kind api, struct api_body *body,
                 struct api_request *out, struct api_error *err) {
    struct api_request r = {.api = api, .engine = kvasir_request_defaults(), .kept = json_array()};
    bool good = r.kept || api_no_memory(err);
    good = good && openai_read_fields(setup, body, &r, err);
    if (good)
        good = api == API_CHAT
                   ? read_chat(setup, body->members, &r, err)
                   : read_prompt(setup, body, &r, err) && constraint_apply_plain(&r, err);
    good = good && constraint_compile(setup, &r, err);
    if (good)
        *out = r;
    else {
        api_fields_rename(body, err);
        api_request_free(&r);
    }
    return good;
}
