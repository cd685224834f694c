/* SPDX-License-Identifier: Apache-2.0 */
/* api_request.c: a request's way to the engine and its end. */
#include "api/api_prompts.h"
#include "api/sessions.h"

#include <stdlib.h>
#include <string.h>

kvasir_status api_submit(kvasir_engine *engine, struct api_request *r, kvasir_event_fn *on_event,
                         void *user, uint64_t *id, struct api_error *err) {
    ASSERT(r->engine.n_tokens > 0 && r->engine.n > 0);
    kvasir_request one = r->engine;
    const kvasir_request *single = &one, *const *all = &single;
    kvasir_error why;
    size_t refused;
    one.on_event = on_event;
    one.user = user;
    if (r->n_prompts)
        all = api_prompts_requests(r, on_event, user);
    const kvasir_status status =
        kvasir_engine_submit_all(engine, all, r->n_prompts ? r->n_prompts : 1, id, &refused, &why);
    if (status == KVASIR_OK)
        return status;
    if (refused < r->n_prompts && (!why.field || strcmp(why.field, "request.tokens") == 0))
        (void)api_library_failed(err, r->prompts[refused].path, &why);
    else
        api_error_of(err, &why);
    return status;
}

struct answer_parser *api_answer_parser(const struct api_request *r, const char *id,
                                        uint32_t choice, answer_part_fn *fn, void *user) {
    struct answer_options options = r->answer;
    options.seed = answer_seed(id, choice);
    return answer_parser_create(&options, fn, user);
}

void api_request_free(struct api_request *r) {
    api_prompts_free(r);
    kvasir_free(r->tokenized);
    free(r->stops);
    mem_free(r->stop_tokens);
    free(r->shown_tokens);
    kvasir_free(r->xtc_special);
    free(r->logit_bias);
    json_decref(r->echo);
    json_decref(r->input);
    json_decref(r->warnings);
    session_state_free(&r->session.state);
    text_free(&r->constraint.grammar);
    kept_grammar_release(r->grammar);
    json_decref(r->kept);
    *r = (struct api_request){0};
}
