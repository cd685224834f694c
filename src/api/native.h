/* SPDX-License-Identifier: Apache-2.0 */
/* native.h: llama-server's own bodies of /completion and /infill, both ways, and what it says of
 * itself at /props and /slots.
 *
 *     body --native_request.c--> a completion's body --openai_read--> struct api_request
 *     body, events <--native_answer.c-- struct api_answer, events of the engine
 *
 * So prompts, sampling and grammars are read in one place (openai_*.c, fim.c); errors name this
 * body's fields. What changes nothing here has a line in the answer's "warnings".
 */
#ifndef API_NATIVE_H
#define API_NATIVE_H

#include "api/api_model.h"
#include "api/openai.h"
#include "api/protocol.h"

enum api_want native_wants(const char *name, size_t len, const char **known);
/* As openai_read. */
bool native_read_completion(const struct api_setup *setup, struct api_body *body,
                            struct api_request *out, struct api_error *err);
bool native_read_infill(const struct api_setup *setup, struct api_body *body,
                        struct api_request *out, struct api_error *err);

/* native_answer.c: how an answer is made, as llama-server names it. New; NULL: out of memory. */
json_t *native_settings(const kvasir_sampling *sampling, uint32_t max_tokens);

/* ---- about the server (native_server.c) ------------------------------------------------------ */

struct native_slot {
    uint64_t task; /* the engine's number of the request */
    uint32_t prompt_tokens, prompt_done, completion_tokens;
};
/* New; NULL: out of memory. busy: [n] requests that run, at most m->setup->max_choices. */
json_t *native_props(const struct api_model *m);
json_t *native_slots(const struct api_model *m, const struct native_slot *busy, size_t n);

#endif
