/* SPDX-License-Identifier: Apache-2.0 */
/* kvasir_memory_plan: what an engine's memory is for, from what was settled when it was made. May
 * be asked from any thread: nothing here changes. */
#include "engine/engine_internal.h"

_Static_assert((int)KVASIR_LAYER_GROUPS_MAX == (int)CACHE_GROUPS_MAX, "a plan holds all groups");

static kvasir_layer_group group_of(const struct kvasir_engine *e, uint32_t g) {
    const struct kv_shape *shape = &e->ctx->options.shapes[g];
    struct kv_format k, v;
    kvasir_layer_group out = {.layers = shape->layers,
                              .kv_heads = shape->kv_heads,
                              .head_dim = shape->head_dim,
                              .window = shape->window};
    kv_cache_formats(e->ctx->cache, g, &k, &v);
    kv_format_name(k, out.k_format);
    kv_format_name(v, out.v_format);
    const uint64_t tiles = (uint64_t)shape->layers * shape->kv_heads;
    out.bytes_per_token = tiles *
                          (kv_tile_bytes(k, shape->head_dim) + kv_tile_bytes(v, shape->head_dim)) /
                          TILE_TOKENS;
    out.bytes_per_token16 = tiles * shape->head_dim * 2 * sizeof(uint16_t);
    return out;
}

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
        plan->groups[g] = group_of(e, g);
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
