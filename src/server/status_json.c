/* SPDX-License-Identifier: Apache-2.0 */
/* status_json.c: figures to JSON. Keys of vllm-mlx have its meaning; ours are next to them. */
#include "server/status_json.h"

#include <math.h>

static double rounded(double x, int digits) {
    const double scale = pow(10, digits);
    return round(x * scale) / scale;
}

static json_t *whole(uint64_t n) {
    return json_integer((json_int_t)n);
}

/* The names of all models; NULL: out of memory. */
static json_t *names_json(const struct server_figures *f) {
    json_t *names = json_array();
    bool good = names != NULL;
    for (size_t i = 0; good && i < f->n_models; i++)
        good = json_array_append_new(names, json_string(f->models[i].name)) == 0;
    if (good && !f->n_models)
        good = json_array_append_new(names, json_string(f->model)) == 0;
    if (good)
        return names;
    json_decref(names);
    return NULL;
}

json_t *status_health(const struct server_figures *f) {
    bool loaded = !f->n_models;
    for (size_t i = 0; i < f->n_models; i++)
        loaded |= f->models[i].view.state == MODEL_LOADED;
    return json_pack("{s:s, s:b, s:s, s:o, s:s, s:s}", "status", "healthy", "model_loaded", loaded,
                     "model_name", f->model, "available_models", names_json(f), "model_type", "llm",
                     "engine_type", "kvasir");
}

json_t *status_version(void) {
    return json_pack("{s:s}", "version", kvasir_version());
}

static json_t *model_json(const struct server_figures *f, const char *name, uint32_t most) {
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", name, "object", "model", "created",
                     (json_int_t)f->created_s, "owned_by", "kvasir", "max_model_len",
                     most ? whole(most) : json_null());
}

json_t *status_model(const struct server_figures *f, size_t i) {
    if (!f->n_models)
        return model_json(f, f->model, f->max_model_len);
    ASSERT(i < f->n_models);
    const struct model_figures *m = &f->models[i];
    json_t *body = model_json(f, m->name, m->max_model_len);
    json_t *more =
        json_pack("{s:s, s:b, s:b, s:I, s:I, s:o}", "state", model_state_text(m->view.state),
                  "default", m->first, "pinned", m->pinned, "requests", (json_int_t)m->view.leases,
                  "waiting", (json_int_t)m->view.waiting, "error",
                  *m->view.error ? json_string(m->view.error) : json_null());
    const bool good = body && more && json_object_update(body, more) == 0;
    json_decref(more);
    if (good)
        return body;
    json_decref(body);
    return NULL;
}

/* [{"id", ...}]; NULL: out of memory. */
static json_t *models_json(const struct server_figures *f) {
    json_t *list = json_array();
    const size_t n = f->n_models ? f->n_models : 1;
    bool good = list != NULL;
    for (size_t i = 0; good && i < n; i++)
        good = json_array_append_new(list, status_model(f, i)) == 0;
    if (good)
        return list;
    json_decref(list);
    return NULL;
}

json_t *status_models(const struct server_figures *f) {
    return json_pack("{s:s, s:o}", "object", "list", "data", models_json(f));
}

/* ---- the cache ------------------------------------------------------------------------------- */

static uint64_t hits_of(const uint64_t kinds[KVASIR_HIT_KINDS]) {
    uint64_t hits = 0;
    for (int i = 0; i < KVASIR_HIT_KINDS; i++)
        hits += i == KVASIR_HIT_MISS ? 0 : kinds[i];
    return hits;
}

/* Of requests, not of tokens. */
static double hit_rate(const uint64_t kinds[KVASIR_HIT_KINDS]) {
    const uint64_t hits = hits_of(kinds), all = hits + kinds[KVASIR_HIT_MISS];
    return all ? rounded((double)hits / (double)all, 4) : 0;
}

/* {kind: requests} */
static json_t *hits_json(const uint64_t kinds[KVASIR_HIT_KINDS]) {
    json_t *hits = json_object();
    for (int i = 0; hits && i < KVASIR_HIT_KINDS; i++)
        if (json_object_set_new(hits, kvasir_hit_text((kvasir_hit)i), whole(kinds[i])) != 0) {
            json_decref(hits);
            hits = NULL;
        }
    return hits;
}

/* [{"format", "kind": "live" | "stored", "bytes"}] */
static json_t *formats_json(const struct server_figures *f) {
    json_t *list = json_array();
    bool good = list != NULL;
    for (size_t i = 0; good && i < 2 * f->n_formats; i++) {
        const kvasir_format_bytes *b = &f->formats[i / 2];
        const bool live = i % 2 == 0;
        good = json_array_append_new(list,
                                     json_pack("{s:s, s:s, s:o}", "format", b->format, "kind",
                                               live ? "live" : "stored", "bytes",
                                               whole(live ? b->live_bytes : b->stored_bytes))) == 0;
    }
    if (good)
        return list;
    json_decref(list);
    return NULL;
}

static json_t *cache_json(const struct server_figures *f) {
    const kvasir_engine_stats *s = &f->engine;
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:f, s:o, s:o}", "format",
                     f->kv_format, "budget_bytes", whole(s->budget_bytes), "used_bytes",
                     whole(s->used_bytes), "resident_bytes", whole(s->resident_bytes), "peak_bytes",
                     whole(s->peak_bytes), "stored_bytes", whole(s->stored_bytes), "fixed_bytes",
                     whole(s->fixed_bytes), "entries", whole(s->stored_entries), "by_format",
                     formats_json(f), "hits", hits_json(s->hits), "hit_rate", hit_rate(s->hits),
                     "evicted_pages", whole(s->evicted_pages), "preemptions",
                     whole(s->preemptions));
}

static json_t *tier_json(const kvasir_tier_stats *t) {
    return json_pack("{s:s, s:o, s:o, s:o, s:{s:o, s:o, s:o, s:o}, s:o, s:f, s:o, s:o, s:o, s:o, "
                     "s:b, s:o, s:o, s:o, s:o}",
                     "tier", t->name, "records", whole(t->records), "bytes", whole(t->bytes),
                     "limit_bytes", whole(t->limit_bytes), "reads", "ok", whole(t->reads),
                     "missing", whole(t->missing), "damaged", whole(t->damaged), "failed",
                     whole(t->failed), "read_bytes", whole(t->read_bytes), "read_seconds",
                     rounded(t->read_seconds, 3), "writes", whole(t->writes), "write_bytes",
                     whole(t->write_bytes), "write_failures", whole(t->write_failures),
                     "dropped_records", whole(t->dropped), "down", t->down, "hit_pages",
                     whole(t->hit_pages), "loads", whole(t->loads), "loads_late",
                     whole(t->loads_late), "loads_slow", whole(t->loads_slow));
}

static json_t *tiers_json(const struct server_figures *f) {
    const kvasir_engine_stats *s = &f->engine;
    json_t *list = json_array();
    bool good = list != NULL;
    for (size_t i = 0; good && i < f->n_tiers; i++)
        good = json_array_append_new(list, tier_json(&f->tiers[i])) == 0;
    if (!good) {
        json_decref(list);
        return NULL;
    }
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "loads", whole(s->tier_loads),
                     "loads_cut", whole(s->tier_loads_cut), "loads_late", whole(s->tier_loads_late),
                     "loads_slow", whole(s->tier_loads_slow), "hit_tokens", whole(s->tier_tokens),
                     "offered_pages", whole(s->tier_offered_pages), "unwritten_pages",
                     whole(s->tier_unwritten_pages), "stores", list);
}

/* Adds "tiers" if there are any. Takes body, which may be NULL. */
static json_t *with_tiers(json_t *body, const struct server_figures *f) {
    if (!body || !f->n_tiers || json_object_set_new(body, "tiers", tiers_json(f)) == 0)
        return body;
    json_decref(body);
    return NULL;
}

static json_t *warm_json(const struct warm_figures *w) {
    static const char *const STATES[] = {
        [WARM_RUNNING] = "running", [WARM_DONE] = "done", [WARM_FULL] = "full"};
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "state", STATES[w->state], "prompts",
                     whole(w->prompts), "done", whole(w->done), "failed", whole(w->failed),
                     "computed_tokens", whole(w->computed_tokens), "cached_tokens",
                     whole(w->cached_tokens));
}

/* The same with "warm_prompts". */
static json_t *with_warm(json_t *body, const struct server_figures *f) {
    if (!body || !f->warm.prompts ||
        json_object_set_new(body, "warm_prompts", warm_json(&f->warm)) == 0)
        return body;
    json_decref(body);
    return NULL;
}

/* The same with "models", of several. */
static json_t *with_models(json_t *body, const struct server_figures *f) {
    if (!body || !f->n_models || json_object_set_new(body, "models", models_json(f)) == 0)
        return body;
    json_decref(body);
    return NULL;
}

/* What of it is the tenant's own. */
static json_t *own_cache_stats(const struct tenant_figures *t) {
    json_t *stats = json_pack("{s:o, s:o, s:f, s:o}", "hits", whole(hits_of(t->hits)), "misses",
                              whole(t->hits[KVASIR_HIT_MISS]), "hit_rate", hit_rate(t->hits),
                              "tokens_saved", whole(t->cached_tokens));
    json_t *body = stats ? json_copy(stats) : NULL;
    if (body && json_object_set(body, "engine_cache", stats) == 0 &&
        json_object_set_new(body, "hits_by_kind", hits_json(t->hits)) == 0) {
        json_decref(stats);
        return body;
    }
    json_decref(stats);
    json_decref(body);
    return NULL;
}

json_t *status_cache_stats(const struct server_figures *f) {
    if (f->own)
        return own_cache_stats(f->tenants);
    const kvasir_engine_stats *s = &f->engine;
    const double mib = 1 << 20, used = (double)s->stored_bytes, most = (double)s->budget_bytes;
    json_t *stats = json_pack(
        "{s:o, s:o, s:f, s:o, s:o, s:f, s:f, s:f, s:o, s:o}", "hits", whole(hits_of(s->hits)),
        "misses", whole(s->hits[KVASIR_HIT_MISS]), "hit_rate", hit_rate(s->hits), "evictions",
        whole(s->evicted_pages), "tokens_saved", whole(s->cached_tokens), "current_memory_mb",
        rounded(used / mib, 2), "max_memory_mb", rounded(most / mib, 2), "memory_utilization",
        most > 0 ? rounded(used / most, 4) : 0, "entry_count", whole(s->stored_entries),
        "store_rejections", whole(s->store_rejections));
    /* vllm-mlx has them one level down, next to its caches of images */
    json_t *body = stats ? json_copy(stats) : NULL;
    json_t *more = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o}", "engine_cache", stats, "hits_by_kind", hits_json(s->hits),
        "stored_tokens", whole(s->stored_tokens), "tree_nodes", whole(s->tree_nodes),
        "requantized_pages", whole(s->requantized_pages), "by_format", formats_json(f));
    if (body && more && json_object_update(body, more) == 0) {
        json_decref(more);
        return with_tiers(body, f);
    }
    json_decref(body);
    json_decref(more);
    return NULL;
}

/* ---- now ------------------------------------------------------------------------------------- */

static json_t *tenant_json(const struct tenant_figures *t) {
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "tenant", t->name, "requests",
                     whole(t->requests), "refused", whole(t->refused), "prompt_tokens",
                     whole(t->prompt_tokens), "cached_tokens", whole(t->cached_tokens),
                     "generated_tokens", whole(t->generated_tokens), "running", whole(t->running),
                     "waiting", whole(t->waiting), "request_memory_bytes", whole(t->memory_bytes));
}

/* NULL: out of memory */
static json_t *tenants_json(const struct server_figures *f) {
    json_t *list = json_array();
    bool good = list != NULL;
    for (size_t i = 0; good && i < f->n_tenants; i++)
        good = json_array_append_new(list, tenant_json(&f->tenants[i])) == 0;
    if (good)
        return list;
    json_decref(list);
    return NULL;
}

/* The members of the whole server's status that can be a tenant's own. */
static json_t *status_own(const struct server_figures *f) {
    const struct tenant_figures *t = f->tenants;
    uint64_t started = 0;
    for (int i = 0; i < KVASIR_HIT_KINDS; i++)
        started += t->hits[i];
    return json_pack("{s:s, s:s, s:s, s:s, s:f, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:{s:s, s:o, "
                     "s:o, s:f}, s:o}",
                     "status", "running", "model", f->model, "model_type", "llm", "engine_type",
                     "kvasir", "uptime_s", rounded(f->uptime_s, 1), "version", kvasir_version(),
                     "num_running", whole(t->running), "num_waiting", whole(t->waiting),
                     "total_requests_processed", whole(started - t->running), "total_prompt_tokens",
                     whole(t->prompt_tokens), "total_completion_tokens", whole(t->generated_tokens),
                     "total_cached_tokens", whole(t->cached_tokens), "cache", "format",
                     f->kv_format, "budget_bytes", whole(f->engine.budget_bytes), "hits",
                     hits_json(t->hits), "hit_rate", hit_rate(t->hits), "tenants", tenants_json(f));
}

json_t *status_now(const struct server_figures *f) {
    const kvasir_engine_stats *s = &f->engine;
    if (f->own)
        return status_own(f);
    json_t *body = json_pack(
        "{s:s, s:s, s:s, s:s, s:f, s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:f, s:f, s:o, s:o}",
        "status", "running", "model", f->model, "model_type", "llm", "engine_type", "kvasir",
        "uptime_s", rounded(f->uptime_s, 1), "version", kvasir_version(), "num_running",
        (json_int_t)s->running, "num_waiting", (json_int_t)s->waiting, "steps_executed",
        whole(s->steps), "total_requests_processed", whole(s->finished), "total_prompt_tokens",
        whole(s->prompt_tokens), "total_completion_tokens", whole(s->generated_tokens),
        "total_cached_tokens", whole(s->cached_tokens), "generation_tps",
        rounded(f->generation_tps, 2), "prompt_tps", rounded(f->prompt_tps, 2), "cache",
        cache_json(f), "tenants", tenants_json(f));
    return with_models(with_warm(with_tiers(body, f), f), f);
}
