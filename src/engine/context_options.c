/* SPDX-License-Identifier: Apache-2.0 */
/* context_options.c: parses a context's options, finds defaults from the model and the machine, and
 * lists facts about what the options did not get (kvasir_fact). */
#include <inttypes.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/struct_size.h"
#include "util/topology.h"

/* Used if the checkpoint states no context length. */
enum { CTX_DEFAULT = 4096 };
/* What the process needs beside weights and cache (step buffers, tokenizer), and the share of the
 * free memory that remains which a cache takes: other programs need some too. */
#define MEMORY_RESERVE      ((uint64_t)256 << 20)
#define MEMORY_SHARE(bytes) ((bytes) / 4 * 3)
/* Step buffers may take weight_bytes + STEP_BYTES. */
#define STEP_BYTES ((uint64_t)16 << 20)
/* The default budget holds so many sequences of the full context, if memory allows. */
enum { DEFAULT_SEQUENCES = 4 };

void settled_fact(struct settled *s, kvasir_fact_kind kind, uint64_t a, uint64_t b, uint64_t c,
                  uint64_t d) {
    ASSERT(s->n_facts < KVASIR_FACTS_MAX);
    s->facts[s->n_facts++] = (kvasir_fact){kind, {a, b, c, d}};
}

/* ---- formats --------------------------------------------------------------------------------- */

/* If no group size divides the heads of a layer group, it stays f16 as long as other groups can be
 * quantized; if none can, that is an error. */
static kvasir_status settle_formats(const kvasir_context_options *o, struct settled *s,
                                    kvasir_error *err) {
    static const struct kv_format EXACT = {.bits = 16, .scalar = SCALAR_F16};
    kvasir_status last = KVASIR_OK;
    bool bad[CACHE_GROUPS_MAX] = {false}, some = false;
    uint64_t bytes;
    TRY(options_parse_live(o->kv_bits, o->kv_floor, o->kv_group_size, &s->cache, err));
    for (uint32_t g = 0; g < s->n_groups; g++) {
        struct kv_format k, v;
        const kvasir_status status =
            formats_group_bytes(&s->shapes[g], &s->cache, &k, &v, &bytes, err);
        bad[g] = status != KVASIR_OK;
        some |= !bad[g];
        last = bad[g] ? status : last;
    }
    if (!some)
        return last;
    for (uint32_t g = 0; g < s->n_groups; g++)
        if (bad[g]) {
            s->shapes[g].k = s->shapes[g].v = EXACT;
            s->shapes[g].fixed_format = true;
            settled_fact(s, KVASIR_FACT_LAYERS_EXACT, s->shapes[g].layers, s->shapes[g].head_dim, 0,
                         0);
        }
    return KVASIR_OK;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* How many rows a step has never changes a result. So a model with a large vocabulary for its size
 * gets smaller steps, to bound their buffers. */
static void settle_steps(const struct kvasir_model *m, const struct backend_info *device,
                         struct settled *s) {
    const uint64_t most = model_weight_bytes(m->model) + STEP_BYTES;
    const uint32_t asked = s->prefill_chunk;
    const uint32_t rows_max =
        device->rows_max < STEP_TOKENS_MAX ? device->rows_max : STEP_TOKENS_MAX;
    ASSERT(device->rows_good > 0 && rows_max > 0 && device->logit_rows > 0);
    if (s->prefill_chunk > rows_max)
        s->prefill_chunk = rows_max;
    s->logit_rows = device->logit_rows;
    while (s->logit_rows > 1 && model_run_bytes(m->model, 1, s->logit_rows) > most / 2)
        s->logit_rows /= 2;
    while (s->prefill_chunk > 1 &&
           model_run_bytes(m->model, s->prefill_chunk, s->logit_rows) > most)
        s->prefill_chunk /= 2;
    if (s->prefill_chunk < asked)
        settled_fact(s, KVASIR_FACT_CHUNK_LOWERED, asked, s->prefill_chunk,
                     model_run_bytes(m->model, 1, 0), 0);
}

/* ---- context length and budget --------------------------------------------------------------- */

uint64_t device_free_bytes(const struct backend_info *device) {
    return device->memory_bytes ? device->memory_bytes : memory_available_bytes();
}

uint64_t device_beside_weights(const struct backend_info *device, const struct kvasir_model *m) {
    const uint64_t all = device_free_bytes(device), /* a device with its own gets the weights */
        weights =
            device->memory_bytes ? model_weight_bytes(m->model) : model_cached_bytes(m->model);
    return all > weights ? all - weights : 0;
}

static uint64_t usable_memory(const struct kvasir_model *m, const struct backend_info *device) {
    const uint64_t left = device_beside_weights(device, m);
    if (left <= MEMORY_RESERVE)
        return MEMORY_RESERVE / 4; /* too little memory: try a small cache */
    return MEMORY_SHARE(left - MEMORY_RESERVE);
}

/* The largest window if every layer that caches has one; 0: some layers see everything. */
static uint32_t window_of_all(const struct settled *s) {
    uint32_t largest = 0;
    ASSERT(s->n_groups <= CACHE_GROUPS_MAX);
    for (uint32_t g = 0; g < s->n_groups; g++) {
        if (!s->shapes[g].window)
            return 0;
        largest = s->shapes[g].window > largest ? s->shapes[g].window : largest;
    }
    return largest;
}

/* The most bytes that one sequence needs while it grows to `length` tokens. Success depends on the
 * cache's options only, not on the length. */
static kvasir_status try_plan(const struct settled *s, uint32_t length, uint64_t *bytes,
                              kvasir_error *err) {
    return kv_cache_plan_bytes(s->shapes, s->n_groups, &s->cache, length, s->prefill_chunk, bytes,
                               err);
}

/* Only after try_plan succeeded, so it cannot fail. */
static uint64_t plan(const struct settled *s, uint32_t length) {
    uint64_t bytes = 0;
    (void)!try_plan(s, length, &bytes, NULL);
    return bytes;
}

uint64_t settled_best_bytes(const struct settled *s, uint32_t tokens) {
    struct settled best = *s;
    best.cache.n_rungs = 0;
    return plan(&best, tokens);
}

/* The longest length in whole pages, up to `most`, that fits the budget. */
static uint32_t longest_fit(const struct settled *s, uint32_t most) {
    uint32_t low = 0, high = most / TILE_TOKENS; /* pages */
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (plan(s, middle * TILE_TOKENS) <= s->cache.budget_bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return low * TILE_TOKENS;
}

/* A length by which a sequence that sees at most `seen` tokens has reached its largest size. */
static uint32_t settled_length(const struct settled *s, uint32_t seen) {
    uint64_t length = (uint64_t)seen + 2 * (uint64_t)s->prefill_chunk + 4 * TILE_TOKENS;
    return length < UINT32_MAX / 2 ? (uint32_t)length : UINT32_MAX / 2;
}

static kvasir_status settle_lengths(const struct kvasir_model *m, const kvasir_context_options *o,
                                    const struct backend_info *device, struct settled *s,
                                    kvasir_error *err) {
    const struct model_config *c = model_config(m->model);
    uint64_t usable = usable_memory(m, device);
    uint32_t trained = c->ctx_train ? c->ctx_train : CTX_DEFAULT;
    const uint32_t window = window_of_all(s);
    s->visible = window ? window : s->cache.max_size;
    s->ctx = o->ctx ? o->ctx : trained;
    s->cache.budget_bytes = o->cache_bytes ? o->cache_bytes : usable;
    uint64_t one_page;
    TRY(try_plan(s, 1, &one_page, err));
    if (one_page > s->cache.budget_bytes)
        return fail_field(err, KVASIR_ERR_BUDGET, "context.cache_bytes",
                          "a budget of %" PRIu64
                          " bytes does not hold one page of %d tokens (%" PRIu64 " bytes)",
                          s->cache.budget_bytes, TILE_TOKENS, one_page);
    if (!o->ctx && !s->visible && plan(s, s->ctx) > s->cache.budget_bytes) {
        s->ctx = longest_fit(s, s->ctx);
        settled_fact(s, KVASIR_FACT_CTX_LOWERED, s->ctx, trained, s->cache.budget_bytes, 0);
    }
    const uint32_t longest = s->visible ? settled_length(s, s->visible) : s->ctx;
    s->ctx_bytes = settled_best_bytes(s, longest);
    if (!o->cache_bytes && s->ctx_bytes < usable / DEFAULT_SEQUENCES)
        s->cache.budget_bytes = s->ctx_bytes * DEFAULT_SEQUENCES;
    if (plan(s, longest) > s->cache.budget_bytes)
        settled_fact(s, KVASIR_FACT_BUDGET_SMALL, plan(s, longest), s->cache.budget_bytes, 0, 0);
    if (c->ctx_train && s->ctx > c->ctx_train)
        settled_fact(s, KVASIR_FACT_CTX_UNTRAINED, s->ctx, c->ctx_train, 0, 0);
    return KVASIR_OK;
}

/* Whether sequences have an exact tail: of pages that are encoded when they are full. */
static bool has_tail(const struct settled *s) {
    return s->cache.exact_tail && kv_format_whole(s->cache.k);
}

/* Bytes of a token at the ladder's floor. */
static uint64_t floor_bytes(const struct settled *s) {
    struct kv_cache_options floor = s->cache;
    uint64_t bytes = 0;
    floor.k = s->cache.rungs[s->cache.n_rungs - 1].k;
    floor.v = s->cache.rungs[s->cache.n_rungs - 1].v;
    floor.group_k = floor.group_v = 0;
    (void)!formats_token_bytes(s->shapes, s->n_groups, &floor, &bytes, NULL); /* as k and v fit */
    return bytes;
}

/* Adds facts: what options cost, and which have no effect for this model. */
static void find_unused(const struct kvasir_model *m, const kvasir_context_options *o,
                        struct settled *s) {
    const uint32_t window = window_of_all(s);
    uint64_t start = round_up(s->cache.quantized_start, TILE_TOKENS);
    if (start > s->ctx && !s->visible)
        start = round_up(s->ctx, TILE_TOKENS);
    if (start && kv_format_exact(s->cache.k) && kv_format_exact(s->cache.v))
        settled_fact(s, KVASIR_FACT_START_UNUSED, 0, 0, 0, 0);
    else if (start)
        settled_fact(s, KVASIR_FACT_START_EXACT, start, s->kv_bytes_per_token16,
                     s->kv_bytes_per_token, 0);
    if (s->cache.n_rungs)
        settled_fact(s, KVASIR_FACT_LADDER, s->cache.n_rungs, s->kv_bytes_per_token, floor_bytes(s),
                     0);
    if (s->open_page_bytes)
        settled_fact(s, KVASIR_FACT_OPEN_PAGE, TILE_TOKENS, s->open_page_bytes, 0, 0);
    if (o->kv_exact_tail && !has_tail(s))
        settled_fact(s, KVASIR_FACT_TAIL_UNUSED, 0, 0, 0, 0);
    else if (o->kv_exact_tail)
        settled_fact(s, KVASIR_FACT_TAIL_EXACT, round_up(s->cache.exact_tail, TILE_TOKENS),
                     s->kv_bytes_per_token16, 0, 0);
    if (o->max_kv_size && window)
        settled_fact(s, KVASIR_FACT_MAX_SIZE_UNUSED, window, 0, 0, 0);
    else if (o->max_kv_size && model_config(m->model)->window)
        settled_fact(s, KVASIR_FACT_WINDOW_KEPT, o->max_kv_size, model_config(m->model)->window, 0,
                     0);
    if (o->snapshot_tokens && !s->cache.state_bytes && !has_tail(s))
        settled_fact(s, KVASIR_FACT_SNAPSHOT_UNUSED, 0, 0, 0, 0);
}

/* ---- settling -------------------------------------------------------------------------------- */

static kvasir_status parse_tier(const char *text, enum cpu_tier *out, kvasir_error *err) {
    *out = CPU_TIER_COUNT;
    if (strcmp(text, "auto") == 0)
        return KVASIR_OK;
    for (int t = 0; t < CPU_TIER_COUNT; t++) {
        if (strcmp(text, cpu_tier_name((enum cpu_tier)t)) != 0)
            continue;
        if (!cpu_tier_have((enum cpu_tier)t))
            return fail_field(err, KVASIR_ERR_UNSUPPORTED, "context.cpu_tier",
                              "this machine, or this build, does not have %s", text);
        *out = (enum cpu_tier)t;
        return KVASIR_OK;
    }
    return fail_field(err, KVASIR_ERR_ARGUMENT, "context.cpu_tier",
                      "\"%.40s\" is not auto, ref, avx2, avx512, avx512vnni, amx, neon or neondot",
                      text);
}

const struct sized_struct SIZED_CONTEXT = {
    .name = "kvasir_context_options",
    .maker = "kvasir_context_defaults()",
    .field = "context.struct_size",
    .size = sizeof(kvasir_context_options),
};
_Static_assert(offsetof(kvasir_context_options, kv_exact_tail) == 104,
               "later fields begin here at the earliest (struct_size.h)");
static const kvasir_context_options DEFAULTS = {.struct_size = sizeof(kvasir_context_options),
                                                .kv_bits = "8,4",
                                                .key_centre = "auto",
                                                .quantized_kv_start = KVASIR_START_BY_FORMAT,
                                                .kv_keep = 4,
                                                .cpu_tier = "auto",
                                                .act_bits = 8,
                                                .device = "auto"};

void kvasir_context_init(kvasir_context_options *options, size_t struct_size) {
    struct_write(&SIZED_CONTEXT, &DEFAULTS, options, struct_size, 0);
}

kvasir_status context_options_read(const kvasir_context_options *given, kvasir_context_options *out,
                                   kvasir_error *err) {
    *out = DEFAULTS;
    return struct_read(&SIZED_CONTEXT, given, out, err);
}

kvasir_status options_backend(const kvasir_context_options *o, struct backend_cpu_options *out,
                              kvasir_error *err) {
    *out = (struct backend_cpu_options){.threads = o->threads, .act_bits = o->act_bits};
    return parse_tier(o->cpu_tier, &out->tier, err);
}

/* Adds the fact of how many threads the backend has chosen. */
static void tell_threads(const struct backend_info *device, struct settled *s) {
    struct topology t;
    topology_read(&t);
    settled_fact(s, KVASIR_FACT_THREADS, device->workers, (uint64_t)t.cores, (uint64_t)t.cpus,
                 (uint64_t)(t.quota * 100));
}

kvasir_status options_settle(const struct kvasir_model *m, const kvasir_context_options *o,
                             const struct backend_info *device, struct settled *s,
                             kvasir_error *err) {
    *s = (struct settled){.prefill_chunk = o->prefill_chunk ? o->prefill_chunk : device->rows_good};
    if (o->prefill_chunk > STEP_TOKENS_MAX)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "context.prefill_chunk", "%u is more than %d",
                          o->prefill_chunk, STEP_TOKENS_MAX);
    settle_steps(m, device, s);
    s->n_groups = model_kv_groups(m->model, s->shapes);
    if (o->like) /* only to check them: the file's formats replace them below */
        TRY(options_parse_live(o->kv_bits, o->kv_floor, o->kv_group_size, &s->cache, err));
    else
        TRY(settle_formats(o, s, err));
    s->cache.n_rungs = o->like ? 0 : s->cache.n_rungs;
    s->cache.quantized_start = options_start(o->quantized_kv_start, &s->cache);
    s->cache.state_bytes = model_state_bytes(m->model);
    s->cache.exact_tail = o->like ? 0 : o->kv_exact_tail;
    if (s->cache.state_bytes || has_tail(s))
        s->snapshot_tokens = (uint32_t)round_up(o->snapshot_tokens, TILE_TOKENS);
    if (o->like)
        prompt_cache_shape(o->like, s->shapes, &s->cache);
    else if (o->max_kv_size && !window_of_all(s)) { /* otherwise no effect: find_unused */
        s->cache.max_size = o->max_kv_size;
        s->cache.keep = o->kv_keep;
    }
    TRY(formats_token_bytes(s->shapes, s->n_groups, &s->cache, &s->kv_bytes_per_token, err));
    TRY(kvasir_model_kv_bytes(m, "f16", NULL, &s->kv_bytes_per_token16, err));
    TRY(settle_lengths(m, o, device, s, err));
    if (!s->visible) /* a longer one is the same */
        s->cache.exact_tail = min_u32(s->cache.exact_tail, s->ctx);
    TRY(kv_cache_plan_shadows(s->shapes, s->n_groups, &s->cache, &s->open_page_bytes,
                              &s->tail_bytes, err));
    find_unused(m, o, s);
    if (!o->threads && strcmp(device->kind, "cpu") == 0)
        tell_threads(device, s);
    return KVASIR_OK;
}
