/* SPDX-License-Identifier: Apache-2.0 */
/* api_request.c: a request's way to the engine and its end.
 *
 *     prompts[0] --> a request to the engine --.
 *     prompts[1] --> another                 --+--> events of one request --> on_event
 *     ...                                    --'
 *
 * The engine's thread merges the events. Nothing is allocated for that after api_submit.
 */
#include "api/api_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- several prompts ------------------------------------------------------------------------- */

struct api_prompts_run {
    const struct api_request *request;
    kvasir_event_fn *on_event;
    void *user;
    uint32_t open;                                      /* prompts whose last event has not come */
    bool begun;                                         /* one has */
    uint32_t prompt_tokens, cached_tokens, prompt_done; /* of those that have */
    const kvasir_request *all[API_PROMPTS_MAX];         /* [n_prompts] */
    kvasir_request requests[];                          /* [n_prompts] */
};

bool api_begin_prompts(const struct api_setup *setup, struct api_request *r, size_t n,
                       struct api_error *err) {
    ASSERT(n > 0 && r->engine.n > 0 && !r->prompts);
    if (n > setup->max_prompts && setup->max_prompts > 1)
        return api_refuse(err, "prompt", "%zu prompts, at most %u are allowed", n,
                          setup->max_prompts);
    if (n > 1 && n > setup->max_prompts)
        return api_refuse(err, "prompt", "%zu prompts, a request takes one", n);
    if (n * r->engine.n > API_PROMPTS_MAX)
        return api_refuse(err, "n",
                          "%u answers to each of %zu prompts, at most %d are allowed in "
                          "all",
                          r->engine.n, n, API_PROMPTS_MAX);
    r->prompts = mem_calloc(n, sizeof *r->prompts);
    r->run = mem_calloc(1, sizeof *r->run + n * sizeof *r->run->requests);
    return (r->prompts && r->run) || api_no_memory(err);
}

void api_add_prompt_take(struct api_request *r, const struct api_prompt *prompt) {
    ASSERT(r->prompts && r->n_prompts < API_PROMPTS_MAX && prompt->n_tokens > 0);
    r->prompts[r->n_prompts] = *prompt;
    r->prompts[r->n_prompts++].run = r->run;
    r->engine.tokens = r->prompts[0].tokens;
    r->engine.n_tokens = r->prompts[0].n_tokens;
}

size_t api_prompt_tokens(const struct api_request *r) {
    size_t n = r->n_prompts ? 0 : r->engine.n_tokens;
    for (uint32_t i = 0; i < r->n_prompts; i++)
        n += r->prompts[i].n_tokens;
    return n;
}

/* Sets one figure of a prompt, and its sum. */
static void note(uint32_t *sum, uint32_t *of, uint32_t now) {
    ASSERT(*sum >= *of);
    *sum += now - *of;
    *of = now;
}

static void on_prompt_event(void *user, const kvasir_event *e) {
    struct api_prompt *p = user;
    struct api_prompts_run *run = p->run;
    const uint32_t index = (uint32_t)(p - run->request->prompts);
    kvasir_event merged = *e;
    if (e->kind == KVASIR_EVENT_START || p->prompt_tokens) {
        note(&run->prompt_tokens, &p->prompt_tokens, e->prompt_tokens);
        note(&run->cached_tokens, &p->cached_tokens, e->cached_tokens);
        note(&run->prompt_done, &p->prompt_done, e->prompt_done);
    }
    if (e->kind == KVASIR_EVENT_START && run->begun)
        merged.kind = KVASIR_EVENT_PROGRESS;
    run->begun |= e->kind == KVASIR_EVENT_START;
    ASSERT(run->open > 0);
    run->open -= e->last;
    merged.choice += index * run->request->engine.n;
    merged.prompt_tokens = run->prompt_tokens;
    merged.cached_tokens = run->cached_tokens;
    merged.prompt_done = run->prompt_done;
    merged.last = run->open == 0;
    run->on_event(run->user, &merged); /* the last one may free all */
}

/* ---- submitting ------------------------------------------------------------------------------ */

static void refuse(const struct api_request *r, size_t refused, const kvasir_error *why,
                   struct api_error *err) {
    char path[32];
    snprintf(path, sizeof path, "prompt[%zu]", refused);
    if (refused < r->n_prompts && (!why->field || strcmp(why->field, "request.tokens") == 0))
        (void)api_library_failed(err, path, why);
    else
        api_error_of(err, why);
}

kvasir_status api_submit(kvasir_engine *engine, struct api_request *r, kvasir_event_fn *on_event,
                         void *user, uint64_t *id, struct api_error *err) {
    ASSERT(r->engine.n_tokens > 0 && r->engine.n > 0);
    kvasir_request one = r->engine;
    const kvasir_request *single = &one, *const *all = &single;
    struct api_prompts_run *run = r->run;
    kvasir_error why;
    size_t refused;
    one.on_event = on_event;
    one.user = user;
    if (run) {
        *run = (struct api_prompts_run){
            .request = r, .on_event = on_event, .user = user, .open = r->n_prompts};
        for (uint32_t i = 0; i < r->n_prompts; i++) {
            run->requests[i] = r->engine;
            run->requests[i].tokens = r->prompts[i].tokens;
            run->requests[i].n_tokens = r->prompts[i].n_tokens;
            run->requests[i].on_event = on_prompt_event;
            run->requests[i].user = &r->prompts[i];
            run->all[i] = &run->requests[i];
        }
        all = run->all;
    }
    const kvasir_status status =
        kvasir_engine_submit_all(engine, all, run ? r->n_prompts : 1, id, &refused, &why);
    if (status != KVASIR_OK)
        refuse(r, refused, &why, err);
    return status;
}

struct answer_parser *api_answer_parser(const struct api_request *r, const char *id,
                                        uint32_t choice, answer_part_fn *fn, void *user) {
    struct answer_options options = r->answer;
    options.seed = answer_seed(id, choice);
    return answer_parser_create(&options, fn, user);
}

void api_request_free(struct api_request *r) {
    for (uint32_t i = 0; i < r->n_prompts; i++)
        kvasir_free(r->prompts[i].tokenized);
    mem_free(r->prompts);
    mem_free(r->run);
    mem_free(r->ids);
    kvasir_free(r->tokenized);
    free(r->stops);
    mem_free(r->stop_tokens);
    free(r->shown_tokens);
    kvasir_free(r->xtc_special);
    free(r->logit_bias);
    json_decref(r->echo);
    json_decref(r->input);
    text_free(&r->constraint.grammar);
    kept_grammar_release(r->grammar);
    json_decref(r->kept);
    *r = (struct api_request){0};
}
