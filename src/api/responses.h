/* SPDX-License-Identifier: Apache-2.0 */
/* responses.h: OpenAI's bodies of /v1/responses, both ways.
 *
 *     body --responses_translate--> a chat's body --openai_read--> struct api_request
 *     parts of an answer --struct responses_output--> items, and events of a stream
 *
 * So sampling, templates and tokens are read in one place (openai_*.c); errors name this body's
 * fields. What is kept for `previous_response_id` is the caller's affair (struct responses_store).
 *
 *     input: message, reasoning, function_call ...    -> messages (responses_items.c)
 *     tools: function, custom                         -> functions; others are left out, with a
 *                                                        line in the answer's "warnings"
 *     previous_response_id                            -> the items of that response and of those
 *                                                        before it, then these
 */
#ifndef API_RESPONSES_H
#define API_RESPONSES_H

#include "api/api_body.h"
#include "api/openai.h"
#include "api/protocol.h"

/* ---- reading --------------------------------------------------------------------------------- */

enum api_want responses_wants(const char *name, size_t len, const char **known);
/* As openai_read. */
bool responses_read(const struct api_setup *setup, struct api_body *body, struct api_request *out,
                    struct api_error *err);
/* {"object": "response.input_tokens", "input_tokens"}: how many tokens the prompt has. */
bool responses_count(const struct api_setup *setup, struct api_body *body, struct text_buf *out,
                     struct api_error *err);

/* responses_items.c: appends the messages of items [from, n) to `messages`. Errors name
 * "input[i - first]". False with *err. */
bool responses_messages(json_t *items, size_t from, size_t first, json_t *messages,
                        struct api_error *err);

/* ---- writing --------------------------------------------------------------------------------- */

/* An answer as items; with `out` also as events of a stream. Functions return false if memory ran
 * out: the answer ends there. */
struct responses_output {
    struct protocol_context c;
    struct text_buf *out; /* events are appended here; borrowed; NULL: none */
    json_t *items;        /* array: those that are complete, and the open one */
    json_t *open;         /* the last item, if it is not complete; borrowed from items */
    enum answer_part_kind kind;
    struct text_buf text;      /* of the open item */
    struct text_buf reasoning; /* all of it */
    json_int_t sequence;       /* of the next event */
};
struct responses_usage {
    uint32_t prompt_tokens, cached_tokens;
    uint64_t completion_tokens, requantized_pages;
};
bool responses_output_init(struct responses_output *o, const struct protocol_context *c);
void responses_output_free(struct responses_output *o);
bool responses_output_start(struct responses_output *o); /* response.created, .in_progress */
/* An answer_part_fn; o: a struct responses_output. */
bool responses_output_part(void *o, const struct answer_part *part);
/* The whole response, new, which is also given to the setup's store, if the request wants that. */
json_t *responses_output_finish(struct responses_output *o, kvasir_finish finish,
                                const struct responses_usage *usage);

#endif
