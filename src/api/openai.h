/* SPDX-License-Identifier: Apache-2.0 */
/* openai.h: OpenAI's bodies of /v1/chat/completions and /v1/completions, both ways.
 *
 *     body --> openai_request.c --> struct api_request
 *                |- openai_fields.c   all fields but the prompt
 *                `- openai_chat.c     messages to text; openai_tools.c
 *     body <-- openai_answer.c <-- struct api_answer
 *     chunks <-- openai_stream.c <-- events
 *
 * Invariants
 *   REQUEST-1  A field that would change the answer is honoured or refused by its name
 *              (api_fields.c). Unknown fields are named in the answer's "warnings", or refused.
 *              Fields that mlx-lm, vllm-mlx and vLLM add keep their names.
 *   REQUEST-2  An error about a field begins with its path, "messages[2].content: ", and is one
 *              line of UTF-8, whatever the body contains.
 *   REQUEST-3  Nothing here prints, opens files or keeps state between requests. Functions may run
 *              on any thread; one struct is used by one thread at a time.
 */
#ifndef API_OPENAI_H
#define API_OPENAI_H

#include "api/api_answer.h"
#include "api/api_body.h"

/* What to read of a body. */
enum api_want openai_wants_chat(const char *name, size_t len, const char **known);
enum api_want openai_wants_completion(const char *name, size_t len, const char **known);
/* Takes what it needs of the body. False with *err; there is nothing to free then. */
bool openai_read(const struct api_setup *setup, enum api_kind kind, struct api_body *body,
                 struct api_request *out, struct api_error *err);
/* The body of a complete answer. NULL with *err: the request failed, was cancelled, or memory ran
 * out. */
json_t *openai_answer_body(const struct api_answer *a, const struct api_setup *setup,
                           const char *id, int64_t created, struct api_error *err);
/* {"message", "type", "param", "code"}; NULL: out of memory */
json_t *openai_error_object(const struct api_error *err);
/* {"error": that object} */
json_t *openai_error_json(const struct api_error *err);

#endif
