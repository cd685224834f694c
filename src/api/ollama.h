/* SPDX-License-Identifier: Apache-2.0 */
/* ollama.h: ollama's bodies of /api/chat and /api/generate, both ways, and what it says of a model.
 *
 *     body --ollama_request.c--> a chat's body (raw, suffix: a completion's) --openai_read-->
 *         struct api_request
 *     body, lines of JSON <--ollama_answer.c-- OpenAI's body, parts of an answer
 *
 * So sampling, templates and tokens are read in one place (openai_*.c); errors name this body's
 * fields. What ollama does with a model's defaults is this server's affair: sampling that a body
 * leaves open is the server's, and so is the context.
 */
#ifndef API_OLLAMA_H
#define API_OLLAMA_H

#include "api/api_model.h"
#include "api/openai.h"
#include "api/protocol.h"

/* The version of ollama whose API this is: clients ask for it to know what they may use. */
#define OLLAMA_VERSION "0.12.6"

/* ---- requests (ollama_request.c) ------------------------------------------------------------- */

enum api_want ollama_wants(const char *name, size_t len, const char **known);
/* As openai_read. A body without messages, or without a prompt, loads a model at ollama: the
 * request is idle. */
bool ollama_read_chat(const struct api_setup *setup, struct api_body *body, struct api_request *out,
                      struct api_error *err);
bool ollama_read_generate(const struct api_setup *setup, struct api_body *body,
                          struct api_request *out, struct api_error *err);
/* A body's "model" (or "name", as clients sent it before), which must be the served one, with or
 * without ":latest". False with *err. */
bool ollama_check_model(const struct api_setup *setup, json_t *body, struct api_error *err);

/* ---- answers (ollama_answer.c) --------------------------------------------------------------- */

/* {"error": TEXT} */
json_t *ollama_error_json(const struct api_error *err);

/* ---- about the model (ollama_models.c) ------------------------------------------------------- */

/* {"models": [...]}: what is there, and what is loaded. New; NULL: out of memory. */
json_t *ollama_tags(const struct api_model *models, size_t n);
json_t *ollama_ps(const struct api_model *models, size_t n);
/* The answer to a body of /api/show, as text. False with *err. */
bool ollama_show(const struct api_model *m, struct api_body *body, struct text_buf *out,
                 struct api_error *err);

#endif
