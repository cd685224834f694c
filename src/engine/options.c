/* SPDX-License-Identifier: Apache-2.0 */
/* Options settled: texts parsed, defaults found from the model and the machine, and everything the
 * user should know about them said in notes. Errors name the flag. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

/* Without a word from the model. */
enum { CTX_DEFAULT = 4096 };
/* What the process needs beside weights and cache (step buffers, tokenizer), and the part of the
 * rest of free memory that a cache may plan with: others want to run too. */
#define MEMORY_RESERVE      ((uint64_t)256 << 20)
#define MEMORY_SHARE(bytes) ((bytes) / 4 * 3)

static void note(struct settled *s, const char *format, ...) PRINTF_LIKE(2, 3);
static void note(struct settled *s, const char *format, ...) {
    size_t at = strlen(s->notes);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(s->notes + at, sizeof s->notes - at, format, args);
    va_end(args);
    if (n > 0 && (size_t)n + 1 < sizeof s->notes - at)
        strcat(s->notes, "\n");
}

/* ---- formats --------------------------------------------------------------------------------- */

static bool parse_group(const char **text, uint32_t *out) {
    char *end;
    if (**text < '0' || **text > '9')
        return false;
    unsigned long v = strtoul(*text, &end, 10);
    *text = end;
    *out = (uint32_t)v;
    return v == 32 || v == 64 || v == 128;
}

kvasir_status options_parse_groups(const char *flag, const char *text, uint32_t *k, uint32_t *v,
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
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "%s: %.40s: must be 32, 64 or 128, or a pair K,V of them", flag, text);
    return KVASIR_OK;
}

static kvasir_status parse_formats(const char *bits, const char *groups, struct kv_cache_options *o,
                                   kvasir_error *err) {
    if (kv_format_parse_pair(bits, &o->k, &o->v, err) != KVASIR_OK)
        return fail_prefix(err, "--kv-bits");
    return options_parse_groups("--kv-group-size", groups, &o->group_k, &o->group_v, err);
}

/* Exact bytes of one token in all layers: pages are that, times 64, rounded up to 4 KiB. */
static kvasir_status token_bytes(const struct model *m, const struct kv_cache_options *o,
                                 uint64_t *bytes, kvasir_error *err) {
    struct kv_shape shapes[KV_GROUPS_MAX];
    uint32_t n = model_kv_groups(m, shapes);
    *bytes = 0;
    for (uint32_t g = 0; g < n; g++) {
        struct kv_format k = o->k, v = o->v;
        if (kv_format_settle(&k, shapes[g].head_dim, o->group_k, err) != KVASIR_OK ||
            kv_format_settle(&v, shapes[g].head_dim, o->group_v, err) != KVASIR_OK)
            return fail_prefix(err, "--kv-group-size");
        struct page_layout l;
        page_layout_init(&l, shapes[g].layers, shapes[g].kv_heads, shapes[g].head_dim, k, v);
        *bytes += (uint64_t)l.layer_bytes * l.layers / TILE_TOKENS;
    }
    return KVASIR_OK;
}

kvasir_status kvasir_model_kv_bytes(const kvasir_model *m, const char *kv_bits,
                                    const char *kv_group_size, uint64_t *bytes, kvasir_error *err) {
    struct kv_cache_options o = {0};
    TRY(parse_formats(kv_bits, kv_group_size, &o, err));
    return token_bytes(m->model, &o, bytes, err);
}

/* ---- context length and budget --------------------------------------------------------------- */

static uint64_t usable_memory(const struct kvasir_model *m) {
    uint64_t available = memory_available_bytes(), weights = model_weight_bytes(m->model);
    if (available <= weights + MEMORY_RESERVE)
        return MEMORY_RESERVE / 4; /* little is left: a small cache beats none */
    return MEMORY_SHARE(available - weights - MEMORY_RESERVE);
}

static void settle_lengths(const struct kvasir_model *m, const kvasir_context_options *o,
                           struct settled *s) {
    const struct model_config *c = model_config(m->model);
    uint64_t usable = usable_memory(m);
    s->cache.budget_bytes = o->cache_bytes ? o->cache_bytes : usable;
    uint32_t trained = c->ctx_train ? c->ctx_train : CTX_DEFAULT;
    s->ctx = o->ctx ? o->ctx : trained;
    bool bounded = o->max_kv_size || c->window;
    uint64_t fits = s->cache.budget_bytes / (s->kv_bytes_per_token * TILE_TOKENS) * TILE_TOKENS;
    if (!o->ctx && !bounded && fits < s->ctx) {
        s->ctx = fits > TILE_TOKENS ? (uint32_t)(fits - TILE_TOKENS) : TILE_TOKENS;
        note(s,
             "context cut to %u tokens: a cache for the model's %u does not fit into %" PRIu64
             " MiB",
             s->ctx, trained, s->cache.budget_bytes >> 20);
    }
    if (o->ctx && !bounded && fits < o->ctx)
        note(s, "warning: --ctx %u needs %" PRIu64 " MiB of cache, the budget is %" PRIu64 " MiB",
             o->ctx, (o->ctx * s->kv_bytes_per_token) >> 20, s->cache.budget_bytes >> 20);
    if (c->ctx_train && s->ctx > c->ctx_train)
        note(s, "warning: --ctx %u is past the %u tokens the model was trained for", s->ctx,
             c->ctx_train);
}

/* What flags cost, and which have no effect here. */
static void say_flags(const struct kvasir_model *m, const kvasir_context_options *o,
                      struct settled *s) {
    const struct model_config *c = model_config(m->model);
    uint64_t token = s->kv_bytes_per_token, token16 = s->kv_bytes_per_token16;
    if (o->quantized_kv_start && kv_format_exact(s->cache.k) && kv_format_exact(s->cache.v))
        note(s, "--quantized-kv-start has no effect: the cache is not quantized");
    else if (o->quantized_kv_start)
        note(s,
             "--quantized-kv-start %u: the first %zu tokens stay f16, %" PRIu64
             " bytes more than without",
             o->quantized_kv_start, round_up(o->quantized_kv_start, TILE_TOKENS),
             round_up(o->quantized_kv_start, TILE_TOKENS) * (token16 - token));
    if (o->max_kv_size && c->window)
        note(s, "--max-kv-size has no effect: every layer keeps its own window of %u tokens",
             c->window);
    else if (o->max_kv_size)
        note(s,
             "--max-kv-size %u (the first %u kept): at most %" PRIu64
             " bytes of cache, and one step's pages",
             o->max_kv_size, o->kv_keep,
             (round_up(o->max_kv_size, TILE_TOKENS) + TILE_TOKENS) * token);
    else if (c->window)
        note(s,
             "every layer has a window of %u tokens: at most %" PRIu64
             " bytes of cache, and one step's pages",
             c->window, (round_up(c->window, TILE_TOKENS) + TILE_TOKENS) * token);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static kvasir_status parse_tier(const char *text, enum cpu_tier *out, kvasir_error *err) {
    *out = CPU_TIER_COUNT;
    if (strcmp(text, "auto") == 0)
        return KVASIR_OK;
    for (int t = 0; t < CPU_TIER_COUNT; t++) {
        if (strcmp(text, cpu_tier_name((enum cpu_tier)t)) != 0)
            continue;
        if ((enum cpu_tier)t > cpu_tier_detect())
            return fail(err, KVASIR_ERR_UNSUPPORTED, "--cpu-tier %s: this machine does not have it",
                        text);
        *out = (enum cpu_tier)t;
        return KVASIR_OK;
    }
    return fail(err, KVASIR_ERR_ARGUMENT, "--cpu-tier %s: must be auto, ref or avx2", text);
}

kvasir_context_options kvasir_context_defaults(void) {
    return (kvasir_context_options){
        .kv_bits = "8,4", .kv_keep = 4, .prefill_chunk = 512, .cpu_tier = "auto", .act_bits = 8};
}

kvasir_status options_settle(const struct kvasir_model *m, const kvasir_context_options *o,
                             struct settled *s, kvasir_error *err) {
    *s = (struct settled){.prefill_chunk = o->prefill_chunk};
    s->backend = (struct backend_options){.threads = o->threads, .act_bits = o->act_bits};
    TRY(parse_tier(o->cpu_tier, &s->backend.tier, err));
    if (o->prefill_chunk < 1 || o->prefill_chunk > STEP_TOKENS_MAX)
        return fail(err, KVASIR_ERR_ARGUMENT, "--prefill-chunk %u: must be 1 to %d",
                    o->prefill_chunk, STEP_TOKENS_MAX);
    if (o->max_kv_size && o->kv_keep >= o->max_kv_size)
        return fail(err, KVASIR_ERR_ARGUMENT, "--kv-keep %u leaves no room below --max-kv-size %u",
                    o->kv_keep, o->max_kv_size);
    TRY(parse_formats(o->kv_bits, o->kv_group_size, &s->cache, err));
    s->cache.quantized_start = o->quantized_kv_start;
    s->cache.max_size = o->max_kv_size;
    s->cache.keep = o->kv_keep;
    TRY(token_bytes(m->model, &s->cache, &s->kv_bytes_per_token, err));
    TRY(kvasir_model_kv_bytes(m, "f16", NULL, &s->kv_bytes_per_token16, err));
    settle_lengths(m, o, s);
    say_flags(m, o, s);
    return KVASIR_OK;
}
