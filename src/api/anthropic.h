/* SPDX-License-Identifier: Apache-2.0 */
/* anthropic.h: Anthropic's bodies of /v1/messages and /v1/messages/count_tokens, both ways
 * (anthropic_request.c, anthropic_answer.c). The invariants of openai.h hold here, too.
 *
 *     body --anthropic_translate--> OpenAI's body --openai_read--> struct api_request
 *     body <--anthropic_answer_body-- OpenAI's body <--openai_answer_body-- struct api_answer
 *     events (SSE) <--struct anthropic_stream-- parts of an answer
 *
 * So sampling, templates and tokens are read in one place; errors name Anthropic's fields. The
 * header anthropic-version is not required.
 *
 * usage: input_tokens excludes tokens from the cache, which are cache_read_input_tokens. Together
 * they are the prompt. cache_creation_input_tokens is 0, since every prompt is stored for free.
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
bool anthropic_read(const struct api_setup *setup, struct api_body *body, struct api_request *out,
                    struct api_error *err);
enum api_want anthropic_wants(const char *name, size_t len, const char **known);
/* {"input_tokens"}: how many tokens the prompt has, as text. False with *err. */
bool anthropic_count(const struct api_setup *setup, struct api_body *body, struct text_buf *out,
                     struct api_error *err);

/* ---- from an answer to a body ---------------------------------------------------------------- */

/* {"type": "error", "error": {"type", "message"}}, by HTTP status. NULL: out of memory. */
json_t *anthropic_error_body(int status, const char *message);

/* answer: OpenAI's body, of which the first choice is used. stop: the stop text that ended it, or
 * NULL. NULL: out of memory. */
json_t *anthropic_answer_body(json_t *answer, const char *id, const char *stop);

/* ---- from the parts of an answer to events --------------------------------------------------- */

struct anthropic_usage {
    uint32_t prompt_tokens, cached_tokens, completion_tokens;
    uint64_t requantized_pages;
};
enum anthropic_block {
    ANTHROPIC_NO_BLOCK,
    ANTHROPIC_TEXT,
    ANTHROPIC_THINKING,
    ANTHROPIC_TOOL_USE,
};
/* One answer as events. Starts as zeros but for `out`; there is nothing to free. The functions
 * return false if memory ran out: the answer ends there. */
struct anthropic_stream {
    struct text_buf *out; /* events are appended here; borrowed */
    enum anthropic_block open;
    uint32_t blocks;  /* begun */
    bool calls;       /* a tool was called */
    json_t *warnings; /* of the request, for message_delta; borrowed; NULL: none */
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
/* Instead of finish. */
bool anthropic_stream_error(struct anthropic_stream *s, int status, const char *message);

#endif
