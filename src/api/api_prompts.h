/* SPDX-License-Identifier: Apache-2.0 */
/* api_prompts.h: requests with several prompts: of completions, embeddings, reranking.
 *
 *     prompts[0] --> a request to the engine --.
 *     prompts[1] --> another                 --+--> events of one request --> on_event
 *     ...                                    --'
 *
 * Each prompt gets what it gets in a request of its own. The engine's thread merges the events;
 * nothing is allocated for that after api_submit.
 */
#ifndef API_API_PROMPTS_H
#define API_API_PROMPTS_H

#include "api/api_body.h"
#include "api/api_request.h"

/* Makes room for n prompts, to be added in their order. False: out of memory. */
bool api_prompts_begin(struct api_request *r, size_t n, struct api_error *err);
/* Adds a text, which must live as long as r; path: of its member, a copy is kept. bos: with what
 * the tokenizer puts around a text. */
bool api_prompts_add_text(const struct api_setup *setup, const char *path, const char *text,
                          size_t len, bool bos, struct api_request *r, struct api_error *err);
/* The same with its tokens, which it takes (mem_free). */
bool api_prompts_add_ids(const char *path, const char *text, size_t len, int32_t *ids, size_t n,
                         struct api_request *r, struct api_error *err);
/* Reads a member that is a text, ids, or an array of either (API_PROMPT), with at most `most`
 * prompts. Texts are added to r->kept. */
bool api_prompts_read(const struct api_setup *setup, struct api_body *body, const char *name,
                      size_t most, struct api_request *r, struct api_error *err);

/* The requests to the engine [r->n_prompts], whose events go to on_event as those of one. */
const kvasir_request *const *api_prompts_requests(struct api_request *r, kvasir_event_fn *on_event,
                                                  void *user);
/* No prompt has more than `most` tokens; field: of r's only prompt, if it is none of a list. */
bool api_prompts_check(const struct api_request *r, uint32_t most, const char *field,
                       struct api_error *err);
void api_prompts_free(struct api_request *r);

#endif
