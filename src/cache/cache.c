/* SPDX-License-Identifier: Apache-2.0 */
/* What all sequences of one context have in common: layer groups, formats, what a query sees, the
 * pool. Settled once at creation; everything after is arithmetic on it. */
#include "cache/cache_internal.h"

static const struct kv_format EXACT_START = {.bits = 16, .scalar = SCALAR_F16, .group = 0};

static kvasir_status group_init(struct kv_cache *c, uint32_t g, const struct kv_shape *shape,
                                kvasir_error *err) {
    const struct kv_cache_options *o = &c->options;
    struct kv_group *group = &c->groups[g];
    group->shape = *shape;
    group->span = UINT32_MAX;
    if (shape->window) {
        group->span = shape->window;
    } else if (o->max_size) {
        group->keep = o->keep;
        group->span = o->max_size - o->keep;
        group->kept_pages = (o->keep + TILE_TOKENS - 1) / TILE_TOKENS;
    }
    struct kv_format k = o->k, v = o->v;
    TRY(kv_format_settle(&k, shape->head_dim, o->group_k, err));
    TRY(kv_format_settle(&v, shape->head_dim, o->group_v, err));
    struct page_layout *layout = c->layouts[g];
    page_layout_init(&layout[0], shape->layers, shape->kv_heads, shape->head_dim, k, v);
    page_layout_init(&layout[1], shape->layers, shape->kv_heads, shape->head_dim, EXACT_START,
                     EXACT_START);
    for (int i = 0; i < 2; i++)
        TRY(page_class(c->pool, layout[i].page_bytes, &group->page_class[i], err));
    return KVASIR_OK;
}

kvasir_status kv_cache_create(struct backend *b, const struct kv_shape *groups, uint32_t n_groups,
                              const struct kv_cache_options *opt, struct kv_cache **out,
                              kvasir_error *err) {
    if (n_groups == 0 || n_groups > CACHE_GROUPS_MAX)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "%u layer groups (1 to %d are supported)",
                    n_groups, CACHE_GROUPS_MAX);
    if (opt->max_size && opt->keep >= opt->max_size)
        return fail(err, KVASIR_ERR_ARGUMENT, "--kv-keep %u leaves no room below --max-kv-size %u",
                    opt->keep, opt->max_size);
    struct kv_cache *c = mem_calloc(1, sizeof *c);
    if (!c)
        return fail(err, KVASIR_ERR_MEMORY, "cache: out of memory");
    c->backend = b;
    c->options = *opt;
    c->n_groups = n_groups;
    if (!kv_format_exact(opt->k) || !kv_format_exact(opt->v))
        c->start_pages =
            opt->quantized_start / TILE_TOKENS + (opt->quantized_start % TILE_TOKENS != 0 ? 1 : 0);
    kvasir_status status;
    TRY_GOTO(kv_pool_create(b, opt->budget_bytes, &c->pool, err));
    for (uint32_t g = 0; g < n_groups; g++)
        TRY_GOTO(group_init(c, g, &groups[g], err));
    *out = c;
    return KVASIR_OK;
done:
    kv_cache_destroy(c);
    return status;
}

void kv_cache_destroy(struct kv_cache *c) {
    if (!c)
        return;
    kv_pool_destroy(c->pool);
    mem_free(c);
}

struct kv_pool *kv_cache_pool(struct kv_cache *c) {
    return c->pool;
}

uint64_t kv_cache_page_bytes(const struct kv_cache *c, bool start) {
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < c->n_groups; g++)
        bytes += c->layouts[g][start ? 1 : 0].page_bytes;
    return bytes;
}

void kv_cache_formats(const struct kv_cache *c, struct kv_format *k, struct kv_format *v) {
    *k = c->layouts[0][0].k.format;
    *v = c->layouts[0][0].v.format;
}
