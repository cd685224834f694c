/* SPDX-License-Identifier: Apache-2.0 */
/* kvasir_context: one backend, one cache and the buffers of a step, all made here, so that steps
 * allocate nothing. */
#include <stdio.h>
#include <string.h>

#include "engine/centre.h"

kvasir_status context_create_take(const struct kvasir_model *model,
                                  const kvasir_context_options *options, struct calibration *known,
                                  struct backend *backend, struct kvasir_context **out,
                                  kvasir_error *err) {
    struct kvasir_context *c = mem_calloc(1, sizeof *c);
    if (!c) {
        backend_destroy(backend);
        return fail(err, KVASIR_ERR_MEMORY, "context: out of memory");
    }
    c->model = model;
    c->backend = backend;
    backend_info(backend, &c->device);
    kvasir_status status;
    TRY_GOTO(options_settle(model, options, &c->device, &c->options, err));
    TRY_GOTO(centres_settle(model, options->like ? "off" : options->key_centre, known, &c->options,
                            &c->centres, &c->bases, err));
    struct kv_shape *shapes = c->options.shapes;
    c->n_groups = c->options.n_groups;
    if (c->centres)
        shapes[0].centre = &c->centres->centre; /* of one layer group: centres count its layers */
    for (uint32_t g = 0; c->bases && g < c->n_groups; g++)
        if (!shapes[g].fixed_format)
            shapes[g].basis = &c->bases->group[g];
    TRY_GOTO(kv_cache_create(c->backend, shapes, c->n_groups, &c->options.cache, &c->cache, err));
    const struct run_limits limits = {.rows = c->options.prefill_chunk,
                                      .logit_rows = c->options.logit_rows,
                                      .ctx = c->options.ctx,
                                      .tail_pages = kv_cache_tail_pages(c->cache)};
    TRY_GOTO(model_run_create(model->model, c->backend, &limits, &c->run, err));
    if (c->centres)
        TRY_GOTO(backend_reserve_centre(c->backend, &c->centres->centre, err));
    for (uint32_t g = 0; c->backend->ops->reserve_basis && g < c->n_groups; g++)
        if (shapes[g].basis)
            TRY_GOTO(backend_reserve_basis(c->backend, shapes[g].basis, err));
    TRY_GOTO(context_fingerprint(c, &c->fingerprint, err));
    TRY_GOTO(step_init(c, err));
    TRY_GOTO(checkpoint_check(model_checkpoint(model->model), err));
    *out = c;
    return KVASIR_OK;
done:
    kvasir_context_destroy(c);
    return status;
}

void kvasir_context_destroy(kvasir_context *c) {
    if (!c)
        return;
    step_deinit(c);
    model_run_destroy(c->run);
    kv_cache_destroy(c->cache);
    backend_destroy(c->backend);
    centres_destroy(c->centres);
    key_bases_destroy(c->bases);
    mem_free(c);
}

void format_pair_text(struct kv_format k, struct kv_format v, char text[64]) {
    char k_name[24], v_name[24];
    snprintf(text, 64, "K %s, V %s", kv_format_name(k, k_name), kv_format_name(v, v_name));
}

void cache_format_text(const struct kv_cache *c, char text[64]) {
    struct kv_format k, v;
    kv_cache_formats(c, 0, &k, &v);
    format_pair_text(k, v, text);
}

_Static_assert((int)KVASIR_LAYER_GROUPS_MAX == (int)CACHE_GROUPS_MAX, "all groups have room");

static kvasir_layer_group group_of(const kvasir_context *c, uint32_t g) {
    const struct kv_shape *shape = &c->options.shapes[g];
    struct kv_format k, v;
    kvasir_layer_group out = {.layers = shape->layers,
                              .kv_heads = shape->kv_heads,
                              .head_dim = shape->head_dim,
                              .window = shape->window};
    kv_cache_formats(c->cache, g, &k, &v);
    kv_format_name(k, out.k_format);
    kv_format_name(v, out.v_format);
    const uint64_t tiles = (uint64_t)shape->layers * shape->kv_heads;
    out.bytes_per_token =
        tiles * (tile_bytes(TILE_K, k, shape->head_dim) + tile_bytes(TILE_V, v, shape->head_dim)) /
        TILE_TOKENS;
    out.bytes_per_token16 = tiles * shape->head_dim * 2 * sizeof(uint16_t);
    return out;
}

static void count_layers(const struct model_config *model, kvasir_context_info *info) {
    for (uint32_t i = 0; i < model->n_layers; i++)
        if (model->layers[i].kind != LAYER_ATTENTION)
            info->recurrent_layers++;
        else if (model->layers[i].kv_from != i)
            info->sharing_layers++;
}

void kvasir_context_get_info(const kvasir_context *c, kvasir_context_info *info) {
    struct kv_pool_stats pool = kv_pool_stats(kv_cache_pool(c->cache));
    *info = (kvasir_context_info){
        .ctx = c->options.cache.max_size ? 0 : c->options.ctx,
        .visible = c->options.visible,
        .ctx_bytes = c->options.ctx_bytes,
        .cache_bytes = pool.budget_bytes,
        .kv_bytes_per_token = c->options.kv_bytes_per_token,
        .kv_bytes_per_token16 = c->options.kv_bytes_per_token16,
        .device = c->device.name,
        .kind = c->device.kind,
        .cpu_tier = c->device.tier,
        .threads = (int)c->device.workers,
        .act_bits = c->device.act_bits,
        .used_bytes = pool.used_bytes,
        .peak_bytes = pool.peak_bytes,
        .prefill_chunk = c->options.prefill_chunk,
        .state_bytes = c->options.cache.state_bytes,
        .n_groups = c->n_groups,
        .n_facts = c->options.n_facts,
    };
    for (uint32_t g = 0; g < c->n_groups; g++)
        info->groups[g] = group_of(c, g);
    memcpy(info->facts, c->options.facts, sizeof info->facts);
    count_layers(model_config(c->model->model), info);
    cache_format_text(c->cache, info->kv_format);
    fingerprint_text(c->fingerprint, info->fingerprint);
}
