/* SPDX-License-Identifier: Apache-2.0 */
/* openai_request.c: a body to a request.
 *
 *     chat         openai_chat.c -> text -> tokens; control tokens that the template wrote are
 *                  recognised, it writes its own BOS; with "control_tokens": "all" also those that
 *                  messages contain
 *     completions  a text -> tokens, with BOS, control tokens recognised (as in vLLM and mlx-lm);
 *                  token ids -> as they are; with "suffix": fim.h
 *
 * With a prompt-cache file or a text's session there is no BOS, since the prompt continues it.
 */
#include "api/api_fields.h"
#include "api/api_prompts.h"
#include "api/fim.h"
#include "api/openai_internal.h"
#include "api/sessions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- completions ----------------------------------------------------------------------------- */

static bool read_prompts(const struct api_setup *setup, struct api_body *body,
                         struct api_request *r, struct api_error *err) {
    if (!api_prompts_read(setup, body, "prompt", setup->max_prompts ? setup->max_prompts : 1, r,
                          err))
        return false;
    if (r->n_prompts > 1 && api_choices(r) > API_PROMPTS_MAX)
        return api_refuse(err, "n",
                          "%u answers to each of %u prompts, at most %d are allowed in all",
                          r->engine.n, r->n_prompts, API_PROMPTS_MAX);
    return true;
}

/* A completion with "suffix" fills the gap between the two. */
static bool read_suffix(const struct api_setup *setup, enum api_kind api, struct api_body *body,
                        struct api_error *err) {
    json_t *suffix = api_get(body->members, "suffix"), *prompt = api_get(body->members, "prompt");
    if (api == API_CHAT || !suffix)
        return true;
    if (!json_is_string(suffix))
        return api_wrong_type(err, "suffix", suffix, "a string");
    if (json_string_length(suffix) == 0)
        return true;
    if (!json_is_string(prompt))
        return api_refuse(err, "prompt", "must be a string if there is a \"suffix\"");
    const struct fim_texts texts = {.before = {prompt},
                                    .after = suffix,
                                    .at = "suffix",
                                    .follows = api_get(body->members, "prompt_cache") != NULL};
    return fim_set_prompt(setup, &texts, body, err);
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
    const struct openai_chat_shape shape = {.begins_answer = !r->continues && !r->session.closed,
                                            .continues = r->continues,
                                            .after_file = r->prompt_cache != NULL};
    char *text, *authors = NULL;
    size_t len, n = 0;
    kvasir_error why;
    if (!openai_chat_text(setup, body, &shape, r, &text, r->all_control ? NULL : &authors, &len,
                          err))
        return false;
    bool good = answer_tokenize_prompt(setup->syntax, setup->tokenizer, text, len, authors,
                                       setup->limits, &r->tokenized, &n, &why) == KVASIR_OK ||
                api_library_failed(err, "messages", &why);
    r->engine.tokens = r->tokenized;
    r->engine.n_tokens = n;
    good = good && (n > 0 || api_refuse(err, "messages", "contains no tokens")) &&
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
    good = good && sessions_begin(setup, api, body, &r, err) &&
           read_suffix(setup, api, body, err) && openai_read_fields(setup, body, &r, err);
    if (good)
        good = api == API_CHAT
                   ? read_chat(setup, body->members, &r, err)
                   : read_prompts(setup, body, &r, err) && constraint_apply_plain(&r, err);
    good = good && sessions_extend(&r, err) && constraint_compile(setup, &r, err);
    if (good)
        *out = r;
    else {
        api_fields_rename(body, err);
        api_request_free(&r);
    }
    return good;
}
