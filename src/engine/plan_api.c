/* SPDX-License-Identifier: Apache-2.0 */
/* kvasir_memory_plan: what an engine's memory is for, from what was settled when it was made. May
 * be asked from any thread: nothing here changes. */
#include "engine/engine_internal.h"

void kvasir_engine_get_plan(const kvasir_engine *e, kvasir_memory_plan *plan) {
    const struct settled *s = &e->ctx->options;
    *plan = (kvasir_memory_plan){
        .weight_bytes = model_weight_bytes(e->model->model),
        .budget_bytes = s->cache.budget_bytes,
        .step_bytes = e->fixed_bytes,
        .state_bytes = s->cache.state_bytes,
        .fit_tokens = e->fit_tokens,
        .start_tokens = kv_cache_start_pages(e->ctx->cache) * TILE_TOKENS,
        .n_groups = s->n_groups,
    };
    for (uint32_t g = 0; g < s->n_groups; g++) {
        plan->groups[g] = e->info.groups[g];
        plan->start_bytes += plan->start_tokens * plan->groups[g].bytes_per_token16;
        plan->start_bytes_quantized += plan->start_tokens * plan->groups[g].bytes_per_token;
    }
}

void kvasir_engine_plan_sequence(const kvasir_engine *e, uint32_t tokens,
                                 kvasir_sequence_plan *plan) {
    const struct settled *s = &e->ctx->options;
    *plan = (kvasir_sequence_plan){
        .bytes16 = s->cache.state_bytes + kv_cache_bytes_16bit(e->ctx->cache, tokens),
        .need_bytes = sched_need(e->sched, tokens),
    };
    (void)!kv_cache_plan_bytes(s->shapes, s->n_groups, &s->cache, tokens, s->prefill_chunk,
                               &plan->bytes, NULL); /* which worked when the engine was made */
}
