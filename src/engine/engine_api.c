/* SPDX-License-Identifier: Apache-2.0 */
/* engine_api.c: kvasir_engine, one thread that owns a context, a prefix tree and a scheduler, and
 * the lists through which other threads reach it.
 *
 *     any thread                          the engine's thread
 *       submit --> inbox --.                 take inbox, cancels, what to forget
 *       cancel --> flags --+--(mutex)-->     sched_step: admit, rows, pages, model
 *       forget --> list  --+                   next(): sample, text, stop texts --> on_event
 *       calls  --> list  --'
 *       stats  <-- copy  <-----------------  publish the figures
 *
 * engine_request.c has requests, engine_cache.c what is asked of stored prefixes, engine_stats.c
 * the figures.
 *
 * One budget (I3): step buffers are charged to the pool at the start, what tasks hold beside pages
 * while they run, nodes of the tree as they are made. Waiting requests are not in the budget; their
 * number is bounded by max_waiting.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "engine/calibration.h"
#include "engine/engine_internal.h"
#include "engine/struct_size.h"

/* ---- options --------------------------------------------------------------------------------- */

static const struct sized_struct SIZED_ENGINE = {
    .name = "kvasir_engine_options",
    .maker = "kvasir_engine_defaults()",
    .field = "engine.struct_size",
    .size = sizeof(kvasir_engine_options),
    .nested = &SIZED_CONTEXT,
    .nested_at = offsetof(kvasir_engine_options, context),
};
_Static_assert(offsetof(kvasir_engine_options, cache_dir) - sizeof(kvasir_context_options) == 72,
               "later fields begin here at the earliest (struct_size.h)");

static kvasir_engine_options engine_defaults(void) {
    return (kvasir_engine_options){.struct_size = sizeof(kvasir_engine_options),
                                   .context = kvasir_context_defaults(),
                                   .cache_memory_percent = 75,
                                   .max_running = 32,
                                   .max_waiting = 1024,
                                   .min_quantize_tokens = 256,
                                   .cache_disk_bytes = (uint64_t)16 << 30,
                                   .cache_flush_seconds = 10,
                                   .cache_remote_ttl_seconds = 7 * 24 * 3600};
}

void kvasir_engine_init(kvasir_engine_options *options, size_t struct_size, size_t context_size) {
    const kvasir_engine_options defaults = engine_defaults();
    struct_write(&SIZED_ENGINE, &defaults, options, struct_size, context_size);
}

/* Multiplications of a token: weights of its layers, and two per head and cached token. */
static uint32_t model_rebuild_tokens(const struct model_config *c) {
    double weights = 0, attention = 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_config *l = &c->layers[i];
        const double q = (double)c->heads * l->head_dim, kv = (double)l->kv_heads * l->head_dim,
                     ffn = l->experts ? (double)c->moe.top_k * c->moe.dim : (double)l->ffn_dim;
        weights += (double)c->dim * (2 * q + 2 * kv + 3 * ffn);
        attention += l->kind == LAYER_ATTENTION ? 2 * q : 0;
    }
    return rebuild_tokens(weights, attention);
}

static kvasir_status settle_budget(const struct kvasir_engine *e, const kvasir_engine_options *o,
                                   uint64_t *bytes, kvasir_error *err) {
    struct backend_info device;
    *bytes = o->cache_memory_bytes;
    if (*bytes)
        return KVASIR_OK;
    if (!(o->cache_memory_percent > 0 && o->cache_memory_percent <= 100))
        return fail_field(err, KVASIR_ERR_ARGUMENT, "engine.cache_memory_percent",
                          "%g is not above 0 and at most 100", o->cache_memory_percent);
    backend_info(e->backend, &device);
    uint64_t free_bytes = device_beside_weights(&device, e->model);
    if (!free_bytes)
        free_bytes = device_free_bytes(&device) / 4;
    *bytes = (uint64_t)((double)free_bytes * o->cache_memory_percent / 100);
    return KVASIR_OK;
}

/* The longest sequence that fits the budget alone. */
static uint32_t longest_fit(const struct kvasir_engine *e) {
    const struct kv_pool_stats pool = kv_pool_stats(kv_cache_pool(e->ctx->cache));
    const uint64_t budget = pool.budget_bytes - pool.charged_bytes;
    uint32_t low = 0, high = e->rotates ? UINT32_MAX / 4 : e->ctx->options.ctx;
    while (low < high) {
        const uint32_t middle = low + (high - low + 1) / 2;
        if (sched_need(e->sched, middle) <= budget)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* ---- from any thread ------------------------------------------------------------------------- */

/* Adds n requests, of which the first is given: all or none. They take one place among those that
 * wait, so that one client's many prompts leave the others theirs. */
static kvasir_status enlist(kvasir_engine *e, struct request *first, size_t n, uint64_t *id,
                            kvasir_error *err) {
    kvasir_status status = KVASIR_OK;
    pthread_mutex_lock(&e->mutex);
    if (e->waiting >= e->max_waiting) {
        status =
            fail(err, KVASIR_ERR_BUSY, "%u requests are waiting, at most %u may: try again later",
                 e->waiting, e->max_waiting);
    } else {
        e->requests += n;
        e->waiting++;
        first->counted = true;
        *e->inbox_end = first;
        for (struct request *q = first; q; q = q->inbox_next) {
            q->id = e->requests;
            e->inbox_end = &q->inbox_next;
            q->next = e->open;
            if (q->next)
                q->next->prev = q;
            e->open = q;
        }
        if (id)
            *id = e->requests;
        pthread_cond_signal(&e->wake);
    }
    pthread_mutex_unlock(&e->mutex);
    return status;
}

kvasir_status kvasir_engine_submit_all(kvasir_engine *e, const kvasir_request *const *requests,
                                       size_t n, uint64_t *id, size_t *refused, kvasir_error *err) {
    struct request *first = NULL, **end = &first;
    kvasir_status status = KVASIR_OK;
    size_t made = 0;
    if (n < 1)
        status = fail(err, KVASIR_ERR_ARGUMENT, "there is no request");
    for (; status == KVASIR_OK && made < n; made += status == KVASIR_OK) {
        status = request_make(e, requests[made], end, err);
        if (status == KVASIR_OK)
            end = &(*end)->inbox_next;
    }
    if (refused)
        *refused = made;
    if (status == KVASIR_OK)
        status = enlist(e, first, n, id, err);
    for (struct request *q = first, *next; status != KVASIR_OK && q; q = next) {
        next = q->inbox_next;
        request_close(q);
    }
    return status;
}

kvasir_status kvasir_engine_submit(kvasir_engine *e, const kvasir_request *r, uint64_t *id,
                                   kvasir_error *err) {
    return kvasir_engine_submit_all(e, &r, 1, id, NULL, err);
}

void kvasir_engine_cancel(kvasir_engine *e, uint64_t id) {
    pthread_mutex_lock(&e->mutex);
    for (struct request *q = e->open; q; q = q->next)
        if (q->id == id) {
            atomic_store(&q->cancel, true);
            e->cancels = true;
        }
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->mutex);
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* A cancelled request that the scheduler has. Those still in the inbox are left for the next
 * call. */
static struct request *find_cancelled(struct kvasir_engine *e) {
    struct request *q;
    pthread_mutex_lock(&e->mutex);
    for (q = e->open; q && !(q->taken && atomic_load(&q->cancel)); q = q->next)
        ;
    pthread_mutex_unlock(&e->mutex);
    return q;
}

/* Ends all choices, the leading one last. The request is freed with the last of them. */
static void cancel_request(struct kvasir_engine *e, struct request *q) {
    uint32_t open = q->open;
    for (uint32_t i = q->r.n; open > 0;)
        if (!q->choices[--i].ended) {
            open--;
            sched_cancel(e->sched, &q->choices[i].task);
        }
}

/* Waits for something to do, or until a load is late or a stored prefix expires: then returns
 * false. */
static bool wait_for_orders(struct kvasir_engine *e) {
    const double expiry = cache_next_expiry(e);
    double end = e->tiers ? tiers_next_deadline(e->tiers) : 0;
    if (expiry > 0 && (end <= 0 || clock_seconds() + expiry < end))
        end = clock_seconds() + expiry;
    struct timespec until = {.tv_sec = (time_t)end};
    until.tv_nsec = (long)((end - (double)until.tv_sec) * 1e9);
    if (end > 0)
        return pthread_cond_timedwait(&e->wake, &e->mutex, &until) != ETIMEDOUT;
    pthread_cond_wait(&e->wake, &e->mutex);
    return true;
}

/* Takes what other threads have left, and waits for it if idle. *more: stored prefixes have expired
 * and are not removed yet. False: the engine stops. */
static bool take_orders(struct kvasir_engine *e, bool idle, bool *more) {
    pthread_mutex_lock(&e->mutex);
    while (idle && !e->stop && !e->inbox && !e->cancels && !e->forget_all && !e->forget &&
           !e->calls && !e->io_ready && wait_for_orders(e))
        ;
    e->io_ready = false;
    struct request *inbox = e->inbox;
    struct forget_order *orders = e->forget;
    struct engine_call *calls = e->calls;
    const bool all = e->forget_all, cancels = e->cancels, stop = e->stop;
    e->inbox = NULL;
    e->inbox_end = &e->inbox;
    e->forget = NULL;
    e->calls = NULL;
    e->forget_all = e->cancels = false;
    e->forgetting = all || orders;
    for (struct request *q = e->open; stop && q; q = q->next)
        atomic_store(&q->cancel, true);
    pthread_mutex_unlock(&e->mutex);
    for (struct request *q = inbox, *next; q; q = next) {
        next = q->inbox_next;
        q->taken = true;
        sched_submit(e->sched, &q->choices[0].task);
    }
    if (cancels || stop)
        for (struct request *q; (q = find_cancelled(e)) != NULL;)
            cancel_request(e, q);
    *more = cache_tell_time(e);
    cache_forget_orders(e, all, orders);
    cache_run_calls(e, calls);
    return !stop;
}

/* Re-encodes pages with fewer bits: as a ladder has it, else stored ones, as many as there are
 * while idle, otherwise at most one every STEPS_PER_PAGE steps, looking at NODES nodes. */
static bool requantize(struct kvasir_engine *e, bool idle) {
    enum { STEPS_PER_PAGE = 16, NODES = 16 };
    if (kv_cache_rungs(e->ctx->cache))
        return sched_descend(e->sched, idle);
    if (!e->tree || (!idle && sched_stats(e->sched).steps % STEPS_PER_PAGE))
        return false;
    return tree_requantize(e->tree, 1, idle ? UINT32_MAX : NODES) > 0;
}

static void *engine_thread(void *user) {
    enum { REST_NODES = 4096 }; /* looked at while idle, before orders are taken again */
    struct kvasir_engine *e = user;
    bool idle = false, more;
    while (take_orders(e, idle, &more)) {
        uint32_t rows;
        kvasir_error err;
        const double start = clock_seconds();
        sched_collect(e->sched, start);
        /* on an error the scheduler has ended its tasks with it */
        const kvasir_status status = sched_step(e->sched, &rows, &err);
        if (status != KVASIR_OK)
            stats_note_failure(e);
        if (rows && status == KVASIR_OK) {
            const double seconds = clock_seconds() - start;
            stats_note_step(e, rows, seconds);
            sched_note_step(e->sched, rows, seconds);
        }
        idle = rows == 0 && !more && !requantize(e, true) &&
               !(e->tiers && tiers_rest(e->tiers, REST_NODES)) &&
               !kv_pool_rest(kv_cache_pool(e->ctx->cache));
        if (rows) {
            requantize(e, false);
            kv_pool_ahead(kv_cache_pool(e->ctx->cache));
        }
        stats_publish(e);
    }
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

static kvasir_status begin_stored_formats(struct kvasir_engine *e, const kvasir_engine_options *o,
                                          kvasir_error *err) {
    struct kv_cache_options k = {0};
    if (!o->stored_kv_bits || !e->tree)
        return KVASIR_OK;
    if (kv_cache_rungs(e->ctx->cache))
        return fail_field(err, KVASIR_ERR_ARGUMENT, "engine.stored_kv_bits",
                          "with kv_bits \"auto\" stored prefixes get fewer bits when memory is "
                          "short: leave this out");
    kvasir_status status =
        options_parse_formats(o->stored_kv_bits, o->stored_kv_group_size, &k, err);
    if (status == KVASIR_OK)
        status = tree_requantize_begin(e->tree, k.k, k.v, k.group_k, k.group_v,
                                       o->min_quantize_tokens, err);
    return fail_of_field(status, err, "engine.stored_kv_bits");
}

/* The buffers of steps and of sampling, and bases of keys, count against the budget from the start.
 */
static kvasir_status charge_fixed(struct kvasir_engine *e, kvasir_error *err) {
    const struct settled *o = &e->ctx->options;
    struct kv_pool *pool = kv_cache_pool(e->ctx->cache);
    const uint64_t loads = loads_bytes(e, kv_pool_stats(pool).budget_bytes);
    const uint64_t bytes = model_run_bytes(e->model->model, o->prefill_chunk, o->logit_rows) +
                           step_bytes(e->ctx) + picks_bytes(e) + loads +
                           key_bases_bytes(e->ctx->bases) +
                           answer_vocab_bytes(e); /* made on first use, charged up front */
    if (pool_charge(pool, bytes, NULL) != KVASIR_OK)
        return fail_field(err, KVASIR_ERR_BUDGET, "engine.cache_memory_bytes",
                          "a budget of %" PRIu64 " bytes does not hold the buffers for steps of %u "
                          "tokens (%" PRIu64 " bytes): raise it, or let steps take fewer tokens",
                          kv_pool_stats(pool).budget_bytes, o->prefill_chunk, bytes);
    e->fixed_bytes = bytes;
    return loads_start(e, loads, err);
}

/* What the tiers have at the start. */
static uint64_t bytes_in_tiers(const struct kvasir_engine *e) {
    struct tier_stats stats;
    uint64_t bytes = 0;
    for (uint32_t i = 0; e->tiers && tiers_get_tier(e->tiers, i, &stats); i++)
        bytes += stats.bytes;
    return bytes;
}

static kvasir_status settle_running(struct kvasir_engine *e, const kvasir_engine_options *o,
                                    kvasir_error *err) {
    struct settled *s = &e->ctx->options;
    e->max_running = o->max_running;
    if (e->max_running < 1)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "engine.max_running", "must be at least 1");
    if (e->max_running > s->prefill_chunk) {
        e->max_running = s->prefill_chunk;
        settled_fact(s, KVASIR_FACT_RUNNING_LOWERED, o->max_running, e->max_running, 0, 0);
    }
    return KVASIR_OK;
}

static kvasir_status make_scheduler(struct kvasir_engine *e, kvasir_error *err) {
    /* States of recurrent layers, exact tails: every so many tokens by default; more near the ends
     * of prompts if the budget holds so many. */
    enum { POINTS_TOKENS = 16 * TILE_TOKENS, MANY_STATES = 256 };
    const struct settled *s = &e->ctx->options;
    const uint64_t budget = kv_pool_stats(kv_cache_pool(e->ctx->cache)).budget_bytes;
    const struct sched_options options = {
        .tiers = e->tiers,
        .max_running = e->max_running,
        .step_rows = s->prefill_chunk,
        .step_seconds = e->target_step_ms / 1e3,
        .snapshot_tokens = s->snapshot_tokens ? s->snapshot_tokens : POINTS_TOKENS,
        .points_near_ends = kv_cache_snapshot_bytes(e->ctx->cache) <= budget / MANY_STATES};
    const struct sched_host host = request_host(e);
    kv_cache_keep_ready(e->ctx->cache, e->max_running, bytes_in_tiers(e));
    return sched_create(e->ctx->cache, e->tree, &options, &host, &e->sched, err);
}

static kvasir_status make_context(struct kvasir_engine *e, const kvasir_context_options *o,
                                  kvasir_error *err) {
    struct calibration known;
    kvasir_status status;
    TRY_GOTO(calibration_find(e->model, o, &known, err));
    struct backend *backend = e->backend;
    e->backend = NULL;
    status = context_create_take(e->model, o, &known, backend, &e->ctx, err);
    if (status != KVASIR_OK && err && err->field &&
        strcmp(err->field, "context.cache_bytes") == 0) /* set from the engine's option */
        err->field = "engine.cache_memory_bytes";
done:
    calibration_deinit(&known);
    return status;
}

static kvasir_status engine_init(struct kvasir_engine *e, const kvasir_engine_options *o,
                                 kvasir_error *err) {
    kvasir_context_options context = o->context;
    if (o->max_waiting < 1)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "engine.max_waiting", "must be at least 1");
    if (!e->backend)
        TRY(device_create(&context, &e->backend, err));
    TRY(settle_budget(e, o, &context.cache_bytes, err));
    TRY(make_context(e, &context, err));
    const struct model_config *config = model_config(e->model->model);
    e->max_waiting = o->max_waiting;
    e->target_step_ms = o->target_step_ms;
    e->rotates = e->ctx->options.cache.max_size != 0;
    TRY(settle_running(e, o, err));
    TRY(picks_init(e, err));
    TRY(charge_fixed(e, err));
    if (!o->no_prefix_cache) {
        TRY(tree_create(e->ctx->cache, model_rebuild_tokens(config), &e->tree, err));
        tree_limit(e->tree, o->stored_max_entries, o->stored_max_bytes);
    }
    TRY(begin_stored_formats(e, o, err));
    TRY(engine_open_tiers(e, o, err));
    if (e->tree && !e->tiers)
        tree_remember_gone(e->tree);
    e->tiers_bytes = e->tiers ? tiers_fixed_bytes(e->tiers) : 0;
    TRY(make_scheduler(e, err));
    e->fit_tokens = longest_fit(e);
    if (!e->fit_tokens)
        return fail_field(err, KVASIR_ERR_BUDGET, "engine.cache_memory_bytes",
                          "a budget of %" PRIu64
                          " bytes, of which the buffers of steps take %" PRIu64
                          ", does not hold one page",
                          context.cache_bytes, e->fixed_bytes);
    if (!e->rotates && e->fit_tokens < e->ctx->options.ctx)
        settled_fact(&e->ctx->options, KVASIR_FACT_BUDGET_TOKENS, e->fit_tokens, 0, 0, 0);
    TRY(masks_start(e, err));
    stats_publish(e);
    kvasir_context_get_info(e->ctx, &e->info);
    if (pthread_create(&e->thread, NULL, engine_thread, e) != 0)
        return fail(err, KVASIR_ERR_MEMORY, "engine: cannot start a thread");
    e->thread_runs = true;
    return KVASIR_OK;
}

kvasir_status kvasir_engine_create(const kvasir_model *model, const kvasir_engine_options *options,
                                   kvasir_engine **out, kvasir_error *err) {
    return engine_create_take(model, options, NULL, NULL, out, err);
}

static void destroy_given_tiers(const struct tiers_options *o) {
    for (uint32_t i = 0; o && i < o->n; i++)
        o->tiers[i]->ops->destroy(o->tiers[i]);
}

/* Deadlines are those of clock_seconds(). */
static void init_wake(pthread_cond_t *wake) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(wake, &attr);
    pthread_condattr_destroy(&attr);
}

kvasir_status engine_create_take(const kvasir_model *model, const kvasir_engine_options *options,
                                 struct backend *backend, const struct tiers_options *tiers,
                                 kvasir_engine **out, kvasir_error *err) {
    kvasir_engine_options settled = engine_defaults();
    struct kvasir_engine *e = NULL;
    kvasir_status status = struct_read(&SIZED_ENGINE, options, &settled, err);
    if (status == KVASIR_OK && !(e = mem_calloc(1, sizeof *e)))
        status = fail(err, KVASIR_ERR_MEMORY, "engine: out of memory");
    if (status != KVASIR_OK) {
        backend_destroy(backend);
        destroy_given_tiers(tiers);
        return status;
    }
    e->model = model;
    e->backend = backend;
    e->on_note = settled.on_note;
    e->note_user = settled.note_user;
    e->tiers_given = tiers != NULL;
    if (tiers)
        e->given_tiers = *tiers;
    e->inbox_end = &e->inbox;
    pthread_mutex_init(&e->mutex, NULL);
    pthread_mutex_init(&e->vocab_mutex, NULL);
    init_wake(&e->wake);
    status = engine_init(e, &settled, err);
    if (status != KVASIR_OK) {
        kvasir_engine_destroy(e);
        return status;
    }
    *out = e;
    return KVASIR_OK;
}

void kvasir_engine_destroy(kvasir_engine *e) {
    if (!e)
        return;
    if (e->thread_runs) {
        pthread_mutex_lock(&e->mutex);
        e->stop = true;
        pthread_cond_signal(&e->wake);
        pthread_mutex_unlock(&e->mutex);
        pthread_join(e->thread, NULL);
    }
    masks_stop(e);
    loads_stop(e);
    backend_destroy(e->backend);
    destroy_given_tiers(&e->given_tiers);
    kvasir_error changed;
    if (e->tree)
        (void)cache_tell_time(e); /* what has expired is not written */
    if (e->tiers && kvasir_model_verify(e->model, &changed) == KVASIR_OK)
        tiers_flush(e->tiers, e->flush_seconds);
    tiers_destroy(e->tiers);
    sched_destroy(e->sched);
    tree_destroy(e->tree);
    if (e->ctx)
        pool_discharge(kv_cache_pool(e->ctx->cache), e->fixed_bytes);
    picks_deinit(e);
    kvasir_context_destroy(e->ctx);
    pthread_cond_destroy(&e->wake);
    pthread_mutex_destroy(&e->mutex);
    pthread_mutex_destroy(&e->vocab_mutex);
    guide_vocab_deinit(&e->guide_vocab);
    mem_free(e);
}

void kvasir_engine_get_context(kvasir_engine *e, kvasir_context_info *info) {
    *info = e->info;
    pthread_mutex_lock(&e->mutex);
    info->used_bytes = e->stats.used_bytes;
    info->peak_bytes = e->stats.peak_bytes;
    pthread_mutex_unlock(&e->mutex);
}
