/* SPDX-License-Identifier: Apache-2.0 */
/* prompt_rows.c: what a request wants of its prompt's rows beside an answer:
 *
 *     logits of row i --> log-probability of token i + 1 --> KVASIR_EVENT_PROMPT_TOKEN
 *     logits of the last row --> log-probabilities of asked_tokens, at the end
 *     state of a row  --> pooled: the last one, or the mean of all --> embedding, at the end
 *
 * The scheduler gives the rows in order, each once, also over a preemption (SCHED-10). So the mean
 * is summed in one order, whatever the steps were, and an embedding has the same bits alone or
 * beside others. The last row alone may follow a stored prefix.
 */
#include "engine/engine_internal.h"

kvasir_status rows_check(const kvasir_request *r, kvasir_error *err) {
    const bool embeds = r->embed != KVASIR_POOLING_NONE;
    if (r->prompt_logprobs < -1 || r->prompt_logprobs > TOP_LOGPROBS_MAX)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "request.prompt_logprobs",
                          "%d is not between 0 and %d", r->prompt_logprobs, TOP_LOGPROBS_MAX);
    if (r->prompt_logprobs >= 0 && r->prompt_cache)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "request.prompt_logprobs",
                          "cannot be combined with a prompt cache");
    if ((unsigned)r->embed > KVASIR_POOLING_MEAN)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "request.embed", "%d is no way of pooling",
                          (int)r->embed);
    if (embeds && (r->n > 1 || r->prompt_logprobs >= 0 || r->grammar || r->prompt_cache))
        return fail_field(err, KVASIR_ERR_ARGUMENT, "request.embed",
                          "cannot be combined with n above 1, prompt_logprobs, a grammar or a "
                          "prompt cache");
    if (r->n_asked_tokens > TOP_LOGPROBS_MAX)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "request.asked_tokens",
                          "%zu tokens, at most %d are allowed", r->n_asked_tokens,
                          TOP_LOGPROBS_MAX);
    if (r->n_asked_tokens && (r->n > 1 || embeds || r->grammar))
        return fail_field(err, KVASIR_ERR_ARGUMENT, "request.asked_tokens",
                          "cannot be combined with n above 1, embed or a grammar");
    return KVASIR_OK;
}

kvasir_status rows_init(struct choice *c, kvasir_error *err) {
    const uint32_t dim = model_config(c->request->engine->model->model)->dim;
    if (c->request->r.embed == KVASIR_POOLING_NONE)
        return KVASIR_OK;
    c->pooled = mem_calloc(dim, sizeof *c->pooled);
    c->embedding = mem_calloc(dim, sizeof *c->embedding);
    if (!c->pooled || !c->embedding)
        return fail(err, KVASIR_ERR_MEMORY, "request: out of memory");
    return KVASIR_OK;
}

void rows_deinit(struct choice *c) {
    mem_free(c->pooled);
    mem_free(c->embedding);
}

kvasir_status rows_read(struct choice *c, uint32_t row, kvasir_error *err) {
    struct kvasir_engine *e = c->request->engine;
    if (c->pooled)
        return step_hidden(e->ctx, row, &e->state, err);
    return step_logits(e->ctx, row, &e->logits, err);
}

static void pool_row(struct choice *c) {
    const struct kvasir_engine *e = c->request->engine;
    const uint32_t dim = model_config(e->model->model)->dim;
    for (uint32_t i = 0; i < dim; i++)
        c->pooled[i] += (double)e->state[i];
}

bool rows_take(struct choice *c, uint32_t position, kvasir_event *event) {
    struct kvasir_engine *e = c->request->engine;
    const uint32_t vocab = model_config(e->model->model)->vocab;
    ASSERT(c->index == 0 && position < c->task.n_prompt);
    if (c->pooled)
        pool_row(c);
    if (c->pooled || position + 1 == c->task.n_prompt)
        return false;
    const uint32_t most = (uint32_t)c->request->r.prompt_logprobs;
    event->token = c->task.tokens[position + 1];
    event->rank = sampler_rank(e->logits, vocab, event->token);
    event->n_top = most < vocab ? most : vocab;
    event->top = e->top;
    sampler_logprobs(e->logits, vocab, event->token, (uint32_t)event->n_top, &event->logprob,
                     e->top);
    return true;
}

void rows_finish(struct choice *c) {
    const uint32_t dim = model_config(c->request->engine->model->model)->dim;
    double squares = 0;
    c->finish = KVASIR_FINISH_LENGTH;
    c->request->prompt_done = c->request->prompt_tokens;
    for (size_t i = 0; i < c->request->r.n_asked_tokens; i++)
        sampler_logprobs(c->request->engine->logits,
                         model_config(c->request->engine->model->model)->vocab,
                         c->request->asked[i], 0, &c->request->asked_logprobs[i], NULL);
    if (!c->pooled)
        return;
    if (!c->task.every_row)
        pool_row(c);
    for (uint32_t i = 0; i < dim; i++)
        squares += c->pooled[i] * c->pooled[i];
    const double scale = squares > 0 ? 1 / m_sqrt(squares) : 0;
    for (uint32_t i = 0; i < dim; i++)
        c->embedding[i] = (float)(c->pooled[i] * scale);
    c->embedded = true;
}
