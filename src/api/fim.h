/* SPDX-License-Identifier: Apache-2.0 */
/* fim.h: fill in the middle: a prompt of the text before and after a gap, for models whose
 * vocabulary has tokens for that.
 *
 *     file sep, names and texts of other files     if there are any and the model has the token
 *     PREFIX text before SUFFIX text after MIDDLE  -> the answer is what belongs in between
 *
 * Used by "suffix" of /v1/completions and /api/generate, and by /infill. */
#ifndef API_FIM_H
#define API_FIM_H

#include "api/api_body.h"
#include "api/api_request.h"

enum fim_token { FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE, FIM_END, FIM_REPO, FIM_FILE, FIM_TOKENS };
struct fim {
    int32_t ids[FIM_TOKENS]; /* -1: the model has none */
};
/* By the names of tokens. False: the model has no such tokens. Looks at the whole vocabulary. */
bool fim_find(const kvasir_tokenizer *tokenizer, struct fim *out);

/* Texts of a body, and the names of the members they come from. */
struct fim_texts {
    json_t *before[2], *after; /* strings, or NULL; before: two that follow each other */
    json_t *extra;             /* array of {"filename", "text"}, or NULL */
    const char *at;            /* the member that asks for it */
    const char *at_extra;
    bool follows; /* a prompt-cache file: nothing begins a text */
};
/* Makes their tokens the body's "prompt", and those that end such an answer some of its
 * "stop_token_ids". False with *err. */
bool fim_set_prompt(const struct api_setup *setup, const struct fim_texts *texts,
                    struct api_body *body, struct api_error *err);

#endif
