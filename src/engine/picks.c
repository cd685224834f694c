/* SPDX-License-Identifier: Apache-2.0 */
/* picks.c: the tokens of a step's rows are picked at once: by the device that computed their logits
 * or on the threads that did.
 *
 *     rows of the step     | a prompt's rest | 1 | 1 | 1 | 1 | ...
 *     list, in that order                  a   b   c   d   e         picks_want, before the step
 *     slice of logits      | a b c d | e ...                         picks_make, for each slice
 *     a device               a   c d                                 while the slice is there
 *     lane 0 / lane 1        a   c d / b                             each with its own scratch
 *
 * A pick depends on its sampler and its row alone, so the tokens are those of one after another.
 * What is not picked here (a choice whose set of allowed tokens is not ready, or that follows
 * another one; one row alone on a CPU; on a device what sampler_describe refuses and what the
 * device gives back) is picked when its turn comes.
 */
#include <string.h>

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
           e->max_running * (uint64_t)sizeof(struct wanted_pick) +
           device_picks_bytes(e->ctx, e->max_running);
}

kvasir_status picks_init(struct kvasir_engine *e, kvasir_error *err) {
    struct picks *p = &e->picks;
    _Static_assert(LANES == sizeof p->scratch / sizeof *p->scratch, "a scratch for each lane");
    _Static_assert((int)PICK_TOP_MAX == (int)TOP_LOGPROBS_MAX, "a device finds all of them");
    p->lanes = lanes_of(e);
    p->list = mem_calloc(e->max_running, sizeof *p->list);
    if (!p->list)
        return fail(err, KVASIR_ERR_MEMORY, "engine: out of memory");
    TRY(device_picks_reserve(e->ctx, &p->device, e->max_running, err));
    for (uint32_t i = 0; i < p->lanes; i++)
        TRY(sampler_scratch_create(model_config(e->model->model)->vocab, &p->scratch[i], err));
    return KVASIR_OK;
}

void picks_deinit(struct kvasir_engine *e) {
    struct picks *p = &e->picks;
    for (uint32_t i = 0; i < LANES; i++)
        sampler_scratch_destroy(p->scratch[i]);
    mem_free(p->list);
    device_picks_deinit(&p->device);
}

void picks_begin(struct kvasir_engine *e) {
    struct picks *p = &e->picks;
    p->n = p->made = 0;
    device_picks_clear(&p->device);
}

/* Adds what the device is told of a pick, if it can make it. */
static bool tell_device(struct picks *p, struct choice *c, uint32_t row) {
    const int32_t most = c->request->r.top_logprobs;
    const uint32_t vocab = model_config(c->request->engine->model->model)->vocab;
    return !guide_is_forced(&c->guide) &&
           device_picks_add(c->request->engine->ctx, &p->device, c->sampler, row,
                            most > 0 ? (int32_t)min_u32((uint32_t)most, vocab) : most);
}

void picks_want(struct choice *c, uint32_t row) {
    struct picks *p = &c->request->engine->picks;
    c->picked = false;
    c->logs = NULL;
    if (c->request->r.no_answer || (p->lanes == 1 && !step_can_pick(c->request->engine->ctx)))
        return;
    ASSERT(p->n < c->request->engine->max_running);
    p->list[p->n++] =
        (struct wanted_pick){.choice = c, .row = row, .on_device = tell_device(p, c, row)};
}

static void take(struct choice *c, uint32_t row, int32_t token) {
    c->token = token;
    c->picked = true;
    c->picked_row = row;
}

static void take_from_device(struct picks *p, const struct wanted_pick *w) {
    const struct picked *made = device_picks_take(&p->device, w->choice->sampler);
    if (!made)
        return;
    take(w->choice, w->row, made->token);
    w->choice->logs = &made->logs;
}

static void pick_lane(void *ctx, size_t lane, int worker) {
    struct picks *p = ctx;
    uint32_t i;
    (void)worker;
    while ((i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->end) {
        const struct wanted_pick *w = &p->list[i];
        take(w->choice, w->row, sampler_pick_with(w->choice->sampler, p->scratch[lane], w->logits));
    }
}

kvasir_status picks_make(struct kvasir_engine *e, kvasir_error *err) {
    struct picks *p = &e->picks;
    const uint32_t rows = step_rows_ready(e->ctx), first = p->made;
    uint32_t n = first;
    for (; p->made < p->n && p->list[p->made].row < rows; p->made++) {
        struct wanted_pick pick = p->list[p->made];
        if (pick.on_device)
            take_from_device(p, &pick);
        if (p->lanes == 1 || pick.on_device || !answer_can_pick(pick.choice))
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

bool picks_have(const struct choice *c, uint32_t row) {
    return c->picked && c->picked_row == row && c->logs;
}
