/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of /tokenize, /detokenize and /apply-template (text_api.c): texts, tokens and templates
 * without an engine. Fields are vLLM's and llama.cpp's; what openai.h says of errors and threads
 * holds here, too. Answers are new; NULL with *err. */
#ifndef SERVER_TEXT_API_H
#define SERVER_TEXT_API_H

#include "server/openai.h"

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
