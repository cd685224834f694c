/* SPDX-License-Identifier: Apache-2.0 */
/* text_endpoints.h: bodies of /tokenize, /detokenize and /apply-template. Fields are vLLM's and
 * llama.cpp's. The invariants of openai.h hold here, too. Answers are appended to *out as text;
 * false with *err. */
#ifndef API_TEXT_ENDPOINTS_H
#define API_TEXT_ENDPOINTS_H

#include "api/openai.h"

/* {"prompt"} (vLLM), {"content"} (llama.cpp) or a chat, {"messages", ...} (vLLM), to
 * {"tokens", "count", "max_model_len", "token_strs"}; the last is null without
 * "return_token_strs". */
bool text_endpoint_tokenize(const struct api_setup *setup, uint32_t max_model_len,
                            struct api_body *body, struct text_buf *out, struct api_error *err);
/* {"tokens"} to {"prompt", "content"}: the same text by the names of both. */
bool text_endpoint_detokenize(const struct api_setup *setup, struct api_body *body,
                              struct text_buf *out, struct api_error *err);
/* A chat to {"prompt"}. */
bool text_endpoint_apply_template(const struct api_setup *setup, struct api_body *body,
                                  struct text_buf *out, struct api_error *err);
/* What to read of the bodies of all three. */
enum api_want text_endpoint_wants(const char *name, size_t len, const char **known);

#endif
