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
    struct model_pick pick;
};
void text_end_begin(struct text_end *e, struct server *s, struct work *work);
bool text_ended(const struct text_end *e);
/* served_pick, with an end, charged to the exchange. Once it is PICK_WAITS, what contains *e may be
 * freed; PICK_REFUSED drops the body. With the model a text may have as many tokens as its prompts,
 * and time begins anew if the model was waited for. */
enum pick text_pick(struct text_end *e, struct http_exchange *exchange, const char *key,
                    const char *name, struct served **out, struct api_error *err);
/* Work failed with *err: if it was ended, why. True: because time was over. */
bool text_end_explain(const struct text_end *e, struct api_error *err);

/* A body that is answered without the engine. */
struct text_kind {
    api_want_fn *wants;
    /* Appends the answer, a JSON text, to *out; false with *err. */
    bool (*answer)(const struct served *m, const struct api_setup *setup, struct api_body *body,
                   struct text_buf *out, struct api_error *err);
};
/* It counts as a request of the tenant's account, of no tokens. */
enum http_step text_task_begin(struct server *s, struct http_exchange *exchange, const char *route,
                               const struct protocol *protocol, const struct text_kind *kind,
                               const struct tenant *tenant);

#endif
