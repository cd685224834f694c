/* SPDX-License-Identifier: Apache-2.0 */
/* api_request.c: a request's way to the engine and its end. */
#include "api/api_request.h"

#include <stdlib.h>

kvasir_status api_submit(kvasir_engine *engine, const struct api_request *r,
                         kvasir_event_fn *on_event, void *user, uint64_t *id, kvasir_error *err) {
    ASSERT(r->engine.n_tokens > 0 && r->engine.n > 0);
    kvasir_request request = r->engine;
    request.on_event = on_event;
    request.user = user;
    kvasir_status status = kvasir_engine_submit(engine, &request, id, err);
    if ((status != KVASIR_ERR_CONTEXT && status != KVASIR_ERR_BUDGET) || !r->shorter ||
        !request.max_tokens)
        return status;
    request.max_tokens = 0;
    return kvasir_engine_submit(engine, &request, id, err);
}

struct answer_parser *api_answer_parser(const struct api_request *r, const char *id,
                                        uint32_t choice, answer_part_fn *fn, void *user) {
    struct answer_options options = r->answer;
    options.seed = answer_seed(id, choice);
    return answer_parser_create(&options, fn, user);
}

void api_request_free(struct api_request *r) {
    mem_free(r->ids);
    kvasir_free(r->tokenized);
    free(r->stops);
    mem_free(r->stop_tokens);
    free(r->shown_tokens);
    kvasir_free(r->xtc_special);
    free(r->logit_bias);
    json_decref(r->echo);
    json_decref(r->input);
    json_decref(r->warnings);
    text_free(&r->constraint.grammar);
    kept_grammar_release(r->grammar);
    json_decref(r->kept);
    *r = (struct api_request){0};
}
