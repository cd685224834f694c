/* SPDX-License-Identifier: Apache-2.0 */
/* text_task.h: work on a client's text with an end (text_task.c): its limits, and requests that are
 * answered from their body alone. */
#ifndef SERVER_TEXT_TASK_H
#define SERVER_TEXT_TASK_H

#include "server/server_internal.h"

/* Ends work when the client is gone, its time is over or the server stops. */
struct text_end {
    const struct server *server;
    int64_t until_us;
    atomic_bool cancelled;
    kvasir_text_limits limits; /* refer to this struct: it must not move */
};
void text_end_begin(struct text_end *e, const struct server *s, size_t max_tokens);
bool text_ended(const struct text_end *e);
/* Work failed with *err: if it was ended, why. True: because time was over. */
bool text_end_explain(const struct text_end *e, struct api_error *err);

/* The answer to a body that needs no engine; NULL with *err. */
typedef json_t *text_fn(const struct server *s, const struct api_setup *setup, json_t *body,
                        struct api_error *err);
enum http_step text_task_begin(struct server *s, struct http_exchange *exchange, const char *route,
                               const struct protocol *protocol, text_fn *fn);

#endif
