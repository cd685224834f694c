/* SPDX-License-Identifier: Apache-2.0 */
/* text_endpoints.h: bodies of /tokenize, /detokenize and /apply-template. Fields are vLLM's and
 * llama.cpp's. The invariants of openai.h hold here, too. Results are new; NULL with *err. */
#ifndef API_TEXT_ENDPOINTS_H
#define API_TEXT_ENDPOINTS_H

#include "api/openai.h"

/* {"prompt"} (vLLM), {"content"} (llama.cpp) or a chat, {"messages", ...} (vLLM), to
 * {"tokens", "count", "max_model_len", "token_strs"}; the last is null without
 * "return_token_strs". */
json_t *text_endpoint_tokenize(const struct api_setup *setup, uint32_t max_model_len, json_t *body,
                               struct api_error *err);
/* {"tokens"} to {"prompt", "content"}: the same text by the names of both. */
json_t *text_endpoint_detokenize(const struct api_setup *setup, json_t *body,
                                 struct api_error *err);
/* A chat to {"prompt"}. */
json_t *text_endpoint_apply_template(const struct api_setup *setup, json_t *body,
                                     struct api_error *err);

#endif
