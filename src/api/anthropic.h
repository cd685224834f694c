/* SPDX-License-Identifier: Apache-2.0 */
/* Anthropic's bodies of /v1/messages and /v1/messages/count_tokens, both ways
 * (anthropic_request.c, anthropic_answer.c). What openai.h says of fields, errors and threads holds
 * here, too.
 *
 *     body --anthropic_translate--> OpenAI's body --openai_read--> struct api_request
 *     body <--anthropic_answer_body-- OpenAI's body <--openai_answer_body-- struct api_answer
 *     events (SSE) <--struct anthropic_stream-- parts of an answer
 *
 * So limits of sampling, templates and tokens are read in one place; errors name Anthropic's
 * fields. The header anthropic-version is not asked for.
 *
 * usage: input_tokens does not count what came from the cache, cache_read_input_tokens does;
 * together they are the prompt. cache_creation_input_tokens is 0: all of a prompt is kept, at no
 * price.
 */
#ifndef API_ANTHROPIC_H
#define API_ANTHROPIC_H

#include "api/answer_syntax.h"
#include "api/openai.h"
#include "util/util.h"

/* ---- from a body to a request ---------------------------------------------------------------- */

/* A body of /v1/messages as one of /v1/chat/completions, new; NULL with *err. count: a body of
 * count_tokens, which needs no max_tokens. */
json_t *anthropic_translate(json_t *body, bool count, struct api_error *err);
/* As openai_read. */
bool anthropic_read(const struct api_setup *setup, json_t *body, struct api_request *out,
                    struct api_error *err);
/* {"input_tokens"}: how many tokens the prompt has. NULL with *err. */
json_t *anthropic_count(const struct api_setup *setup, json_t *body, struct api_error *err);

/* ---- from an answer to a body ---------------------------------------------------------------- */

/* {"type": "error", "error": {"type", "message"}} by the status of HTTP. NULL: out of memory. */
json_t *anthropic_error_body(int status, const char *message);

/* answer: OpenAI's body of it, of which the first choice counts. stop: the stop text that ended it,
 * or NULL. NULL: out of memory. */
json_t *anthropic_answer_body(json_t *answer, const char *id, const char *stop);

/* ---- from the parts of an answer to events --------------------------------------------------- */

struct anthropic_usage {
    uint32_t prompt_tokens, cached_tokens, completion_tokens;
};
enum anthropic_block {
    ANTHROPIC_NO_BLOCK,
    ANTHROPIC_TEXT,
    ANTHROPIC_THINKING,
    ANTHROPIC_TOOL_USE,
};
/* One answer as events. Zeros but for `out` have said nothing; there is nothing to free. Each
 * function returns false where memory ran out: the answer cannot go on. */
struct anthropic_stream {
    struct text_buf *out; /* events are appended here; borrowed */
    enum anthropic_block open;
    uint32_t blocks; /* begun */
    bool calls;      /* a tool is called */
};
/* message_start, ping */
bool anthropic_stream_start(struct anthropic_stream *s, const char *id, const char *model,
                            const struct anthropic_usage *usage);
bool anthropic_stream_ping(struct anthropic_stream *s);
/* An answer_part_fn; stream: a struct anthropic_stream. */
bool anthropic_stream_part(void *stream, const struct answer_part *part);
/* message_delta, message_stop */
bool anthropic_stream_finish(struct anthropic_stream *s, kvasir_finish finish, const char *stop,
                             const struct anthropic_usage *usage);
/* In place of finish. */
bool anthropic_stream_error(struct anthropic_stream *s, int status, const char *message);

#endif
