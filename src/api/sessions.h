/* SPDX-License-Identifier: Apache-2.0 */
/* sessions.h: conversations that are kept by an id (/v1/sessions), and requests that continue them.
 *
 *     POST /v1/sessions: a prompt, computed --> session
 *     a chat with "session": its messages, then those of the body --> answer --> session, longer
 *     a completion likewise: its tokens, then those of the prompt
 *
 * A chat's session holds messages and what else its template shows; the template writes all of them
 * anew, and what it writes alike is found in the prefix cache. A text's session holds tokens. Where
 * they are kept is the caller's affair (struct session_store).
 */
#ifndef API_SESSIONS_H
#define API_SESSIONS_H

#include "api/api_body.h"
#include "api/openai.h"
#include "api/protocol.h"

/* Before the fields are read: what the body's "session" brings, or (setup->session_start) what is
 * kept of the body; into the body and r->session. False with *err. */
bool sessions_begin(const struct api_setup *setup, enum api_kind api, struct api_body *body,
                    struct api_request *r, struct api_error *err);
/* After the prompt is read: a text's tokens get before those of the prompt. */
bool sessions_extend(struct api_request *r, struct api_error *err);
/* Gives the store the session as it is after this answer, before the client knows its end. */
void sessions_advance(const struct api_setup *setup, const struct api_request *r,
                      const struct api_answer *a, const char *id);
void session_state_free(struct session_state *s);

extern const struct protocol PROTOCOL_SESSIONS;

#endif
