/* SPDX-License-Identifier: Apache-2.0 */
/* config_rope.c: rope in config.json, in all its spellings (shown in config.c). */
#include "model/family.h"

static kvasir_status read_llama3(const struct json_scope *s, struct rope_config *r) {
    TRY(config_number(s, "factor", true, &r->factor));
    TRY(config_number(s, "low_freq_factor", true, &r->low_freq_factor));
    TRY(config_number(s, "high_freq_factor", true, &r->high_freq_factor));
    if (r->high_freq_factor <= r->low_freq_factor)
        return fail(s->err, KVASIR_ERR_FORMAT,
                    "field %shigh_freq_factor is %g, must be above low_freq_factor %g", s->prefix,
                    r->high_freq_factor, r->low_freq_factor);
    return KVASIR_OK;
}

static kvasir_status read_yarn(const struct json_scope *s, struct rope_config *r) {
    r->beta_fast = 32;
    r->beta_slow = 1;
    r->truncate = true;
    TRY(config_number(s, "factor", true, &r->factor));
    TRY(config_number(s, "beta_fast", false, &r->beta_fast));
    TRY(config_number(s, "beta_slow", false, &r->beta_slow));
    TRY(config_number(s, "attention_factor", false, &r->attention_factor));
    TRY(config_number(s, "mscale", false, &r->mscale));
    TRY(config_number(s, "mscale_all_dim", false, &r->mscale_all_dim));
    if (r->theta <= 1)
        return fail(s->err, KVASIR_ERR_FORMAT, "field %srope_theta is %g, must be above 1 (yarn)",
                    s->prefix, r->theta);
    return json_get_bool(s, "truncate", &r->truncate);
}

static kvasir_status read_factors(const struct json_scope *s, const char *key, uint32_t n,
                                  float *out) {
    const json_t *list = json_object_get(s->object, key);
    if (!json_is_array(list) || json_array_size(list) != n)
        return fail(s->err, KVASIR_ERR_FORMAT, "field %s%s must be an array of %u numbers",
                    s->prefix, key, n);
    for (uint32_t i = 0; i < n; i++) {
        double x = json_number_value(json_array_get(list, i));
        if (!(x >= 1e-6 && x <= 1e6))
            return fail(s->err, KVASIR_ERR_FORMAT, "field %s%s[%u] must be a number above 0",
                        s->prefix, key, i);
        out[i] = (float)x;
    }
    return KVASIR_OK;
}

static kvasir_status read_longrope(const struct json_scope *s, struct rope_config *r) {
    TRY(config_number(s, "factor", false, &r->factor));
    TRY(config_number(s, "attention_factor", false, &r->attention_factor));
    TRY(read_factors(s, "short_factor", r->dims / 2, r->short_factors));
    return read_factors(s, "long_factor", r->dims / 2, r->long_factors);
}

/* The part of a head that is rotated: its first dims; for the proportional kind its first pairs,
 * where pairs are those of the whole head. */
static kvasir_status read_rotated_part(const struct json_scope *s, struct rope_config *r,
                                       uint32_t head_dim) {
    double part = 1;
    TRY(json_get_double(s, "partial_rotary_factor", false, &part));
    if (part > 1)
        return fail(s->err, KVASIR_ERR_FORMAT, "field %spartial_rotary_factor: %g is above 1",
                    s->prefix, part);
    const uint32_t dims = (uint32_t)(part * head_dim) / 2 * 2;
    if (dims < 2)
        return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                    "field %spartial_rotary_factor: %g of %u dims rotates none of them", s->prefix,
                    part, head_dim);
    if (r->kind == ROPE_PROPORTIONAL)
        r->rotated = dims / 2;
    else if (part < 1)
        r->dims = dims;
    return KVASIR_OK;
}

static kvasir_status read_kind(const struct json_scope *s, struct rope_config *r) {
    static const struct {
        const char *name;
        enum rope_kind kind;
    } known[] = {{"default", ROPE_PLAIN},   {"linear", ROPE_LINEAR},
                 {"dynamic", ROPE_DYNAMIC}, {"llama3", ROPE_LLAMA3},
                 {"yarn", ROPE_YARN},       {"longrope", ROPE_LONG},
                 {"su", ROPE_LONG},         {"proportional", ROPE_PROPORTIONAL},
                 {"mrope", ROPE_PLAIN} /* for text all three positions are the same */};
    const char *type = "default";
    TRY(json_get_string(s, "type", false, &type)); /* the oldest spelling */
    TRY(json_get_string(s, "rope_type", false, &type));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(type, known[i].name) == 0) {
            r->kind = known[i].kind;
            return KVASIR_OK;
        }
    return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                "field %srope_type: %.60s is not supported, only default, linear, dynamic, llama3, "
                "yarn, longrope, proportional and mrope",
                s->prefix, type);
}

kvasir_status config_rope(const struct json_scope *s, const struct model_config *c,
                          struct rope_config *r) {
    TRY(read_kind(s, r));
    if (r->kind == ROPE_YARN && strcmp(c->arch, "phi3") == 0)
        r->kind = ROPE_LONG; /* its old name in Phi 3 */
    TRY(config_number(s, "rope_theta", false, &r->theta));
    TRY(read_rotated_part(s, r, r->dims));
    const bool by_original = r->kind == ROPE_LLAMA3 || r->kind == ROPE_YARN || r->kind == ROPE_LONG;
    if (c->ctx_train == 0 && (r->kind == ROPE_DYNAMIC || r->kind == ROPE_LONG))
        return fail(s->err, KVASIR_ERR_FORMAT,
                    "field max_position_embeddings is missing; %srope_type needs it", s->prefix);
    r->original_ctx = c->ctx_train;
    TRY(json_get_u32(s, "original_max_position_embeddings", c->ctx_train == 0 && by_original, 2,
                     CTX_MAX, &r->original_ctx));
    if (by_original && r->original_ctx < 2)
        return fail(s->err, KVASIR_ERR_FORMAT,
                    "field max_position_embeddings is %u, must be above "
                    "1",
                    r->original_ctx);
    switch (r->kind) {
    case ROPE_LLAMA3:
        return read_llama3(s, r);
    case ROPE_YARN:
        return read_yarn(s, r);
    case ROPE_LONG:
        return read_longrope(s, r);
    case ROPE_LINEAR:
    case ROPE_DYNAMIC:
        return config_number(s, "factor", true, &r->factor);
    case ROPE_PROPORTIONAL:
        return config_number(s, "factor", false, &r->factor);
    case ROPE_PLAIN:
        break;
    }
    return KVASIR_OK;
}

/* The object of either spelling; NULL: there is none. */
static kvasir_status find_rope(const struct json_scope *s, struct json_scope *inner) {
    static const struct {
        const char *key, *prefix;
    } spellings[] = {{"rope_parameters", "rope_parameters."}, {"rope_scaling", "rope_scaling."}};
    inner->object = NULL;
    for (size_t i = 0; i < 2 && !inner->object; i++) {
        const json_t *object = json_object_get(s->object, spellings[i].key);
        if (!object || json_is_null(object))
            continue;
        if (!json_is_object(object))
            return fail(s->err, KVASIR_ERR_FORMAT, "field %s%s must be an object, found %s",
                        s->prefix, spellings[i].key, json_kind(object));
        *inner = (struct json_scope){object, spellings[i].prefix, s->err};
    }
    return KVASIR_OK;
}

/* Whether there is one object per kind of layer; *which is the key of one. */
static bool rope_differs(const struct json_scope *rope, const char **which) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)rope->object, key, value) {
        if (json_is_object(value)) {
            if (which)
                *which = key;
            return true;
        }
    }
    return false;
}

/* Phi writes it next to rope_scaling. */
static kvasir_status read_original(const struct json_scope *s, struct rope_config *r) {
    uint32_t original = 0;
    TRY(json_get_u32(s, "original_max_position_embeddings", false, 2, CTX_MAX, &original));
    if (original)
        r->original_ctx = original;
    return KVASIR_OK;
}

kvasir_status config_one_rope(const struct json_scope *s, struct model_config *c, double theta) {
    struct rope_config *r = &c->ropes[0];
    struct json_scope inner;
    *r = (struct rope_config){.kind = ROPE_PLAIN, .dims = c->head_dim, .theta = theta, .factor = 0};
    c->n_ropes = 1;
    TRY(config_number(s, "rope_theta", false, &r->theta));
    TRY(find_rope(s, &inner));
    if (!inner.object || !json_object_get(inner.object, "partial_rotary_factor"))
        TRY(read_rotated_part(s, r, c->head_dim));
    if (!inner.object)
        return KVASIR_OK;
    if (rope_differs(&inner, NULL)) /* config_ropes_by_window */
        return KVASIR_OK;
    TRY(config_rope(&inner, c, r));
    return read_original(s, r);
}

kvasir_status config_ropes_by_window(const struct json_scope *s, struct model_config *c,
                                     double local_theta) {
    struct json_scope inner;
    struct rope_config plain = {.kind = ROPE_PLAIN, .dims = c->head_dim, .theta = local_theta};
    TRY(config_number(s, "rope_local_base_freq", false, &plain.theta));
    _Static_assert(ROPES_MAX >= 2, "one for each kind of layer");
    c->ropes[1] = plain;
    c->n_ropes = 2;
    TRY(find_rope(s, &inner));
    static const struct {
        const char *key, *prefix;
    } kinds[] = {{"full_attention", "rope_parameters.full_attention."},
                 {"sliding_attention", "rope_parameters.sliding_attention."}};
    for (size_t i = 0; inner.object && i < 2; i++) {
        const json_t *object = json_object_get(inner.object, kinds[i].key);
        if (!object || json_is_null(object))
            continue;
        struct json_scope one = {object, kinds[i].prefix, s->err};
        if (!json_is_object(object))
            return fail(s->err, KVASIR_ERR_FORMAT, "field %.*s must be an object, found %s",
                        (int)strlen(one.prefix) - 1, one.prefix, json_kind(object));
        TRY(config_rope(&one, c, &c->ropes[i]));
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)inner.object, key, value) {
        if (json_is_object(value) && strcmp(key, "full_attention") != 0 &&
            strcmp(key, "sliding_attention") != 0)
            return fail(s->err, KVASIR_ERR_FORMAT, "field %s%.60s: an object is not expected here",
                        inner.prefix, key);
    }
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].rope = c->layers[i].window != 0;
    return KVASIR_OK;
}

kvasir_status config_check_ropes(const struct json_scope *s, const struct model_config *c) {
    struct json_scope rope;
    const char *which;
    TRY(find_rope(s, &rope));
    if (c->n_ropes == 1 && rope.object && rope_differs(&rope, &which))
        return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                    "field %s%.60s: rope that differs by layer is not supported in a %s model",
                    rope.prefix, which, c->arch);
    return KVASIR_OK;
}
