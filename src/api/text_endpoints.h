/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of /tokenize, /detokenize and /apply-template: text, tokens and templates without an
 * engine. Fields are vLLM's and llama.cpp's. What openai.h says of errors and threads holds here
 * too. Results are new; NULL with *err. */
#ifndef API_TEXT_ENDPOINTS_H
#define API_TEXT_ENDPOINTS_H

#include "api/openai.h"

/* {"prompt"} (vLLM), {"content"} (llama.cpp) or a chat, {"messages", ...} (vLLM), to
 * {"tokens", "count", "max_model_len", "token_strs"}; the last is null without
 * "return_token_strs". */
json_t *text_api_tokenize(const struct openai_setup *setup, uint32_t max_model_len,
                          const json_t *body, struct openai_error *err);
/* {"tokens"} to {"prompt", "content"}: the same text by the names of both. */
json_t *text_api_detokenize(const struct openai_setup *setup, const json_t *body,
                            struct openai_error *err);
/* A chat to {"prompt"}. */
json_t *text_api_apply_template(const struct openai_setup *setup, const json_t *body,
                                struct openai_error *err);

#endif
