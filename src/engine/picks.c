/* SPDX-License-Identifier: Apache-2.0 */
/* picks.c: the tokens of a step's rows are picked at once, on the threads that computed their
 * logits.
 *
 *     rows of the step     | a prompt's rest | 1 | 1 | 1 | 1 | ...
 *     list, in that order                  a   b   c   d   e         picks_want, after the step
 *     slice of logits      | a b c d | e ...                         picks_make, for each slice
 *     lane 0 / lane 1        a   c d / b                             each with its own scratch
 *
 * A pick depends on its sampler and its row alone, so the tokens are those of one after another.
 * What is not picked here (a choice whose set of allowed tokens is not ready, or that follows
 * another one; one row alone) is picked when its turn comes.
 */
#include "engine/engine_internal.h"

enum { LANES = 8 };

/* As many as can pick at once. Each has 21 bytes a token of the vocabulary, at most a 32nd of the
 * budget in all, but for one. */
static uint32_t lanes_of(const struct kvasir_engine *e) {
    const struct kvasir_context *c = e->ctx;
    const uint64_t budget = kv_pool_stats(kv_cache_pool(c->cache)).budget_bytes,
                   each = sampler_scratch_bytes(model_config(e->model->model)->vocab);
    uint32_t lanes = min_u32(min_u32(c->device.workers, e->max_running), LANES);
    while (lanes > 1 && lanes * each > budget / 32)
        lanes--;
    return c->backend->ops->host_run ? lanes : 1;
}

uint64_t picks_bytes(const struct kvasir_engine *e) {
    const uint32_t vocab = model_config(e->model->model)->vocab;
    return lanes_of(e) * (uint64_t)sampler_scratch_bytes(vocab) +
           e->max_running * (uint64_t)sizeof(struct pick);
}

kvasir_status picks_init(struct kvasir_engine *e, kvasir_error *err) {
    struct picks *p = &e->picks;
    _Static_assert(LANES == sizeof p->scratch / sizeof *p->scratch, "a scratch for each lane");
    p->lanes = lanes_of(e);
    p->list = mem_calloc(e->max_running, sizeof *p->list);
    if (!p->list)
        return fail(err, KVASIR_ERR_MEMORY, "engine: out of memory");
    for (uint32_t i = 0; i < p->lanes; i++)
        TRY(sampler_scratch_create(model_config(e->model->model)->vocab, &p->scratch[i], err));
    return KVASIR_OK;
}

void picks_deinit(struct kvasir_engine *e) {
    for (uint32_t i = 0; i < LANES; i++)
        sampler_scratch_destroy(e->picks.scratch[i]);
    mem_free(e->picks.list);
}

void picks_begin(struct kvasir_engine *e) {
    e->picks.n = e->picks.made = 0;
}

void picks_want(struct choice *c, uint32_t row) {
    struct kvasir_engine *e = c->request->engine;
    c->picked = false;
    if (c->request->r.no_answer || e->picks.lanes == 1)
        return;
    ASSERT(e->picks.n < e->max_running);
    e->picks.list[e->picks.n++] = (struct pick){.choice = c, .row = row};
}

static void pick_lane(void *ctx, size_t lane, int worker) {
    struct picks *p = ctx;
    uint32_t i;
    (void)worker;
    while ((i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->end) {
        struct choice *c = p->list[i].choice;
        c->token = sampler_pick_with(c->sampler, p->scratch[lane], p->list[i].logits);
        c->picked = true;
    }
}

kvasir_status picks_make(struct kvasir_engine *e, kvasir_error *err) {
    struct picks *p = &e->picks;
    const uint32_t rows = step_rows_ready(e->ctx), first = p->made;
    uint32_t n = first;
    for (; p->made < p->n && p->list[p->made].row < rows; p->made++) {
        struct pick pick = p->list[p->made];
        if (!answer_can_pick(pick.choice))
            continue;
        TRY(step_logits(e->ctx, pick.row, &pick.logits, err));
        p->list[n++] = pick;
    }
    if (n - first < 2)
        return KVASIR_OK;
    atomic_store_explicit(&p->next, first, memory_order_relaxed);
    p->end = n;
    e->ctx->backend->ops->host_run(e->ctx->backend, min_u32(n - first, p->lanes), pick_lane, p);
    return KVASIR_OK;
}
