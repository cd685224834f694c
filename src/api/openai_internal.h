/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of openai.h share. */
#ifndef API_OPENAI_INTERNAL_H
#define API_OPENAI_INTERNAL_H

#include "api/api_body.h"
#include "api/openai.h"

/* ---- reading --------------------------------------------------------------------------------- */

/* openai_tools.c: the body's "tools" and "parallel_tool_calls", into r->answer. *shown: the tools
 * that the template should show; NULL: none. They live as long as r. */
bool openai_read_tools(json_t *body, struct api_request *r, json_t **shown, struct api_error *err);
/* Tool call k of message i, a copy that may be changed: its arguments become values. */
bool openai_read_call(json_t *call, size_t i, size_t k, struct api_error *err);

/* openai_fields.c: all fields but the prompt, and the names of those that are read. */
bool openai_read_fields(const struct api_setup *setup, struct api_body *body, struct api_request *r,
                        struct api_error *err);
/* Of them, "model", "cache_salt" and "priority". */
bool openai_read_names(const struct api_setup *setup, json_t *body, struct api_request *r,
                       struct api_error *err);
enum api_want openai_wants(enum api_kind api, const char *name, size_t len, const char **known);

/* openai_constraint.c: what the answer must be, into r->constraint, once the fields before are
 * read; and the names of the fields that say so. */
bool openai_read_constraint(json_t *body, struct api_request *r, struct api_error *err);
bool openai_wants_constraint(const char *name, size_t len, const char **known);
/* The body's "tool_choice" of these tools, which are good. *none: they are not to be called. */
bool openai_read_choice(json_t *body, json_t *tools, struct api_request *r, bool *none,
                        struct api_error *err);

/* openai_chat.c: where the text of a chat begins and ends. */
struct openai_chat_shape {
    bool begins_answer; /* ends with what begins an answer ("add_generation_prompt") */
    bool continues;     /* ends with the text of the last message, an assistant's */
    bool after_file;    /* begins with the text of the first message, a user's */
};
/* vLLM's "add_generation_prompt" and "continue_final_message"; both at once are refused. */
bool openai_read_shape(json_t *body, struct openai_chat_shape *shape, struct api_error *err);
/* A chat as the template writes it; *text: kvasir_free. Its tools go into r->answer. *authors: who
 * wrote each byte, likewise (authors NULL: not wanted). */
bool openai_chat_text(const struct api_setup *setup, json_t *body,
                      const struct openai_chat_shape *shape, struct api_request *r, char **text,
                      char **authors, size_t *len, struct api_error *err);

/* ---- writing (openai_answer.c) --------------------------------------------------------------- */

/* Calls that were cut off by the length are "length", as they are at OpenAI. */
const char *openai_finish_reason(kvasir_finish finish, uint32_t calls);
/* The message of choice i: {"role", "content": null if there are only calls, "refusal",
 * "reasoning_content", "tool_calls"}, the last two if there are any; *calls: how many. */
json_t *openai_message(const struct api_answer *a, const char *id, uint32_t i, uint32_t *calls);
/* A prompt that is a part of the answer. */
struct openai_echo {
    const struct api_prompt *prompt;
    const struct api_choice *scores; /* of its tokens but the first */
    struct text_buf text;
};
/* Fills in the text; text_free. False: out of memory. */
bool openai_echo_text(const struct api_setup *setup, struct openai_echo *echo);
size_t openai_characters(const char *text, size_t len);
/* Of a choice's tokens; null if none were asked for. offset: characters of its text before. echo:
 * the prompt comes first; NULL: it does not. */
json_t *openai_logprobs(const struct api_setup *setup, const struct api_request *r,
                        const struct api_choice *c, size_t offset, const struct openai_echo *echo);
/* {"content": [{"token", "logprob", "bytes", "top_logprobs"}], ..}, of any request */
json_t *openai_token_logprobs(const struct api_setup *setup, const struct api_choice *c);
struct openai_usage {
    uint32_t prompt_tokens, cached_tokens;
    uint64_t completion_tokens, requantized_pages; /* of all choices */
};
json_t *openai_usage_json(const struct openai_usage *u);

#endif
