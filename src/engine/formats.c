/* SPDX-License-Identifier: Apache-2.0 */
/* formats.c: texts like "8,4" and "64,32" to formats of K and V, and what a token takes in them. */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

static bool parse_group(const char **text, uint32_t *out) {
    char *end;
    if (**text < '0' || **text > '9')
        return false;
    unsigned long v = strtoul(*text, &end, 10);
    *text = end;
    *out = (uint32_t)v;
    return v == 32 || v == 64 || v == 128;
}

kvasir_status options_parse_groups(const char *field, const char *text, uint32_t *k, uint32_t *v,
                                   kvasir_error *err) {
    *k = *v = 0;
    if (!text)
        return KVASIR_OK;
    const char *p = text;
    bool good = parse_group(&p, k);
    *v = *k;
    if (good && *p == ',') {
        p++;
        good = parse_group(&p, v);
    }
    if (!good || *p)
        return fail_field(err, KVASIR_ERR_ARGUMENT, field,
                          "\"%.40s\" is not 32, 64 or 128, nor a pair K,V of them", text);
    return KVASIR_OK;
}

kvasir_status options_parse_formats(const char *bits, const char *groups,
                                    struct kv_cache_options *o, kvasir_error *err) {
    TRY(fail_of_field(kv_format_parse_pair(bits, &o->k, &o->v, err), err, "context.kv_bits"));
    return options_parse_groups("context.kv_group_size", groups, &o->group_k, &o->group_v, err);
}

/* kv_bits "auto": new pages, then what they go down to. */
static const char *const LADDER[] = {"r8,4", "t4", "t3"};
enum { LADDER_FORMATS = sizeof LADDER / sizeof *LADDER };
_Static_assert(LADDER_FORMATS == 1 + LADDER_RUNGS_MAX, "rungs");

static bool is_auto(const char *bits) {
    return strcmp(bits, "auto") == 0;
}

const char *formats_of_new_pages(const char *kv_bits) {
    return is_auto(kv_bits) ? LADDER[0] : kv_bits;
}

/* The ladder's rungs down to the floor. */
static kvasir_status parse_floor(const char *floor, struct kv_cache_options *o, kvasir_error *err) {
    uint32_t last = LADDER_FORMATS - 1;
    while (floor && strcmp(floor, LADDER[last]) != 0)
        if (last-- == 0)
            return fail_field(err, KVASIR_ERR_ARGUMENT, "context.kv_floor",
                              "\"%.40s\" is not one of auto's formats: r8,4, t4 or t3", floor);
    for (o->n_rungs = 0; o->n_rungs < last; o->n_rungs++)
        TRY(kv_format_parse_pair(LADDER[o->n_rungs + 1], &o->rungs[o->n_rungs].k,
                                 &o->rungs[o->n_rungs].v, err));
    return KVASIR_OK;
}

kvasir_status options_parse_live(const char *bits, const char *floor, const char *groups,
                                 struct kv_cache_options *o, kvasir_error *err) {
    TRY(options_parse_formats(formats_of_new_pages(bits), groups, o, err));
    o->n_rungs = 0;
    if (is_auto(bits))
        return parse_floor(floor, o, err);
    if (floor)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "context.kv_floor",
                          "only kv_bits \"auto\" has a floor");
    return KVASIR_OK;
}

/* Of what tiles of keys cost, the first page's part is about half (docs/quality.md). Pages of the
 * ladder become tiles, and must not be worse than those that were tiles from the start. */
uint32_t options_start(uint32_t asked, const struct kv_cache_options *o) {
    bool tiles = o->k.kind == KV_TILE;
    for (uint32_t i = 0; i < o->n_rungs; i++)
        tiles |= o->rungs[i].k.kind == KV_TILE;
    return asked != KVASIR_START_BY_FORMAT ? asked : tiles ? TILE_TOKENS : 0;
}

kvasir_status formats_group_bytes(const struct kv_shape *shape, const struct kv_cache_options *o,
                                  struct kv_format *k, struct kv_format *v, uint64_t *bytes,
                                  kvasir_error *err) {
    *k = shape->k.bits ? shape->k : o->k;
    *v = shape->v.bits ? shape->v : o->v;
    kvasir_status status =
        kv_format_settle(k, shape->head_dim, shape->k.bits ? shape->k.group : o->group_k, err);
    if (status == KVASIR_OK)
        status =
            kv_format_settle(v, shape->head_dim, shape->v.bits ? shape->v.group : o->group_v, err);
    TRY(fail_of_field(status, err, "context.kv_group_size"));
    uint64_t tiles = (uint64_t)shape->layers * shape->kv_heads;
    *bytes = tiles *
             (tile_bytes(TILE_K, *k, shape->head_dim) + tile_bytes(TILE_V, *v, shape->head_dim)) /
             TILE_TOKENS;
    return KVASIR_OK;
}

kvasir_status formats_token_bytes(const struct kv_shape *shapes, uint32_t n,
                                  const struct kv_cache_options *o, uint64_t *bytes,
                                  kvasir_error *err) {
    struct kv_format k, v;
    uint64_t of_group;
    *bytes = 0;
    for (uint32_t g = 0; g < n; g++) {
        TRY(formats_group_bytes(&shapes[g], o, &k, &v, &of_group, err));
        *bytes += of_group;
    }
    return KVASIR_OK;
}

kvasir_status kvasir_model_kv_bytes(const kvasir_model *m, const char *kv_bits,
                                    const char *kv_group_size, uint64_t *bytes, kvasir_error *err) {
    struct kv_cache_options o = {0};
    TRY(options_parse_live(kv_bits, NULL, kv_group_size, &o, err));
    struct kv_shape shapes[CACHE_GROUPS_MAX];
    uint32_t n = model_kv_groups(m->model, shapes);
    return formats_token_bytes(shapes, n, &o, bytes, err);
}
