/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of openai.h share. */
#ifndef API_OPENAI_INTERNAL_H
#define API_OPENAI_INTERNAL_H

#include "api/openai.h"

/* The value is of another kind than `wanted`, "a string". */
bool openai_wrong_type(struct openai_error *err, const char *path, const json_t *value,
                       const char *wanted);

/* A body is an object. */
bool openai_is_object(const json_t *body, struct openai_error *err);
/* A member of the body; NULL where it is missing or null, which are the same everywhere. */
const json_t *openai_get(const json_t *object, const char *name);
/* These leave *out as it is where the member is missing. */
bool openai_flag(const json_t *object, const char *name, bool *out, struct openai_error *err);
bool openai_whole(const json_t *object, const char *name, json_int_t min, json_int_t max,
                  json_int_t *out, struct openai_error *err);
/* A text without NUL bytes, which lives as long as r. */
bool openai_text(struct openai_request *r, const char *path, const json_t *value, const char **out,
                 struct openai_error *err);
/* Array of token ids below vocab; *ids is the caller's (free). */
bool openai_ids(const char *path, const json_t *list, uint32_t vocab, int32_t **ids, size_t *n,
                struct openai_error *err);

bool openai_real(const json_t *value, const char *path, double min, double max, float *out,
                 struct openai_error *err);
/* "messages[2].content" */
struct openai_path {
    char text[OPENAI_PATH_MAX];
};
struct openai_path openai_message_path(size_t i, const char *member);

/* openai_tools.c. The body's "tools" and "parallel_tool_calls", into r->answer: tools and schema,
 * which lives as long as r, single. *shown: those that the template is to show; NULL: none. */
bool openai_read_tools(const json_t *body, struct openai_request *r, const json_t **shown,
                       struct openai_error *err);
/* One tool call of message i, ours to change: its arguments become values. */
bool openai_read_call(json_t *call, size_t i, size_t k, struct openai_error *err);

/* All fields but the prompt (openai_fields.c). */
bool openai_read_fields(const struct openai_setup *setup, const json_t *body,
                        struct openai_request *r, struct openai_error *err);

/* Where the text of a chat begins and ends. */
struct openai_chat_form {
    bool begins;      /* ends with what begins an answer ("add_generation_prompt") */
    bool continues;   /* ends with the text of the last message, an assistant's */
    bool behind_file; /* begins with the text of the first message, the user's */
};
/* vLLM's "add_generation_prompt" and "continue_final_message"; both at once are refused. */
bool openai_read_form(const json_t *body, struct openai_chat_form *form, struct openai_error *err);
/* A chat as the template writes it; *text: kvasir_free. Its tools into r->answer. */
bool openai_chat_text(const struct openai_setup *setup, const json_t *body,
                      const struct openai_chat_form *form, struct openai_request *r, char **text,
                      size_t *len, struct openai_error *err);
/* A failed call of the library, blamed on a field where it is the request's fault. */
bool openai_library_failed(struct openai_error *err, const char *path, const kvasir_error *why);

/* Of a choice's tokens; null where none were asked for. offset: characters of its text before. */
json_t *openai_logprobs(const struct openai_setup *setup, const struct openai_request *r,
                        const struct openai_choice *c, size_t offset);
json_t *openai_usage(uint32_t prompt_tokens, uint32_t cached_tokens, uint64_t completion_tokens);

#endif
