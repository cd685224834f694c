/* SPDX-License-Identifier: Apache-2.0 */
/* replay.c: lab_simulate. Replays recorded requests through the real cache, prefix tree and
 * scheduler, on a backend whose pages have no memory, against a virtual clock.
 *
 *     trace --arrival--> (held back) --max_waiting--> sched: waiting -> running -> ended
 *                                                       |
 *                clock += cost of the step <--host.run--'      host.next: the trace's next token
 *
 * Stores below the memory are the real ones' front half (cache/tiers.h: what is offered, whether a
 * load pays, who waits) over stores that keep names only (simulate_tier.c), which read and write in
 * virtual time beside the steps.
 *
 * Only steps and such loads advance the clock, so arrivals, queues and evictions do not depend on
 * the machine. A request's tokens are made when the scheduler gets it; before that it takes no
 * memory.
 *
 * For comparison it computes Belady's optimum and plain LRU (belady.c) with as many pages as the
 * budget would hold if it held nothing else. (In the replay it also holds tree nodes, tables and
 * tokens, and requests run at once.)
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backend/null/null.h"
#include "engine/scheduler.h"
#include "lab/belady.h"
#include "lab/simulate.h"
#include "lab/simulate_tier.h"

/* A request of the trace. */
struct replayed {
    struct task task; /* owner: this; tokens only while the scheduler has it */
    double arrival, begun, first, ended;
};

struct replay {
    const lab_simulate_options *o;
    struct trace trace;
    struct sim_model model;
    struct kv_cache_options cache_options;
    uint64_t start_bytes[SIM_GROUPS_MAX]; /* of a page of the exact start */
    uint64_t page_bytes[SIM_GROUPS_MAX];  /* of a new one after it */
    double start_share;                   /* of all pages, those of the exact start */
    struct page_uses *uses;
    struct sim_cost cost;
    struct backend *backend;
    struct kv_cache *cache;
    struct prefix_tree *tree;           /* NULL: no_prefix_cache */
    struct tiers *tiers;                /* NULL: none */
    struct tier *stores[LAB_TIERS_MAX]; /* [n_stores] the tiers' */
    uint32_t n_stores;
    struct sched *sched;
    struct replayed *requests; /* [trace.n] */
    uint32_t n_submitted, n_ended;
    double clock, busy; /* virtual seconds; those spent in steps */
    double *steps;      /* [n_steps] virtual seconds of steps in which a request had one row */
    size_t n_steps, cap_steps;
    double model_wall;    /* real seconds spent in the cost model */
    kvasir_error failure; /* code KVASIR_OK: none */
};

lab_simulate_options lab_simulate_defaults(void) {
    const kvasir_context_options context = kvasir_context_defaults();
    const kvasir_engine_options engine = kvasir_engine_defaults();
    return (lab_simulate_options){.speed = 1,
                                  .model_shape = "llama3-8b",
                                  .kv_bits = context.kv_bits,
                                  .budget_percent = 100,
                                  .max_running = engine.max_running,
                                  .max_waiting = engine.max_waiting,
                                  .prefill_chunk = 512,
                                  .policy = policy_name(POLICY_SHORTEST),
                                  .host_bandwidth = 40e9,
                                  .disk_bandwidth = 5e9,
                                  .remote_bandwidth = 1.25e9,
                                  .bandwidth = 4.8e12,
                                  .compute = 989e12,
                                  .weight_bits = 16};
}

/* ---- options --------------------------------------------------------------------------------- */

static kvasir_status check_options(const lab_simulate_options *o, kvasir_error *err) {
    if (!o->trace)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "simulate.trace", "missing");
    if (o->prefill_chunk < 1 || o->prefill_chunk > STEP_TOKENS_MAX)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "simulate.prefill_chunk",
                          "%u is not between 1 and %d", o->prefill_chunk, STEP_TOKENS_MAX);
    if (o->max_running < 1 || o->max_running > o->prefill_chunk)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "simulate.max_running",
                          "%u is not between 1 and the %u rows of a step: each request needs a row",
                          o->max_running, o->prefill_chunk);
    if (o->max_waiting < 1)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "simulate.max_waiting", "must be at least 1");
    if (!o->budget_bytes && !(o->budget_percent > 0 && o->budget_percent <= 1e6))
        return fail_field(err, KVASIR_ERR_ARGUMENT, "simulate.budget_percent",
                          "%g%% is not more than 0%%", o->budget_percent);
    const struct {
        const char *field;
        double value;
    } rates[] = {{"simulate.bandwidth", o->bandwidth},
                 {"simulate.compute", o->compute},
                 {"simulate.host_bandwidth", o->host_bandwidth},
                 {"simulate.disk_bandwidth", o->disk_bandwidth},
                 {"simulate.remote_bandwidth", o->remote_bandwidth},
                 {"simulate.weight_bits", o->weight_bits}};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (!(rates[i].value > 0 && rates[i].value < 1e30))
            return fail_field(err, KVASIR_ERR_ARGUMENT, rates[i].field, "must be more than 0");
    if (o->no_prefix_cache && (o->host_bytes || o->disk_bytes || o->remote_bytes))
        return fail_field(err, KVASIR_ERR_ARGUMENT,
                          o->host_bytes   ? "simulate.host_bytes"
                          : o->disk_bytes ? "simulate.disk_bytes"
                                          : "simulate.remote_bytes",
                          "needs stored prefixes, which are off");
    if (!(o->speed >= 0 && o->speed < 1e30))
        return fail_field(err, KVASIR_ERR_ARGUMENT, "simulate.speed", "must be 0 or more");
    return KVASIR_OK;
}

static kvasir_status find_policy(const char *name, enum policy *out, kvasir_error *err) {
    for (enum policy p = 0; p < POLICY_KINDS; p++)
        if (strcmp(name, policy_name(p)) == 0) {
            *out = p;
            return KVASIR_OK;
        }
    return fail_field(err, KVASIR_ERR_ARGUMENT, "simulate.policy",
                      "\"%.40s\" is none of shortest, equal, fcfs", name);
}

/* Bytes of a full page of a layer group. They are what the third of three pages adds: one is open,
 * and may have a shadow. */
static kvasir_status page_bytes(const struct replay *r, uint32_t group,
                                const struct kv_cache_options *o, uint64_t *bytes,
                                kvasir_error *err) {
    struct kv_shape shape = r->model.groups[group];
    uint64_t two, three;
    shape.window = 0;
    kvasir_status status =
        kv_cache_plan_bytes(&shape, 1, o, 2 * TILE_TOKENS, TILE_TOKENS, &two, err);
    if (status == KVASIR_OK)
        status = kv_cache_plan_bytes(&shape, 1, o, 3 * TILE_TOKENS, TILE_TOKENS, &three, err);
    TRY(fail_of_field(status, err, "simulate.kv_group_size"));
    *bytes = three - two;
    return KVASIR_OK;
}

/* Bytes of pages of the exact start, of new ones and of those at the ladder's floor. */
static kvasir_status measure_pages(struct replay *r, lab_simulation *out, uint64_t *floor_bytes,
                                   kvasir_error *err) {
    struct kv_cache_options start = r->cache_options, new = r->cache_options,
                            floor = r->cache_options;
    double token_bytes[SIM_GROUPS_MAX];
    start.quantized_start = 3 * TILE_TOKENS;
    new.quantized_start = floor.quantized_start = 0;
    new.n_rungs = 0;
    *floor_bytes = 0;
    for (uint32_t g = 0; g < r->model.n_groups; g++) {
        uint64_t at_floor;
        TRY(page_bytes(r, g, &start, &r->start_bytes[g], err));
        TRY(page_bytes(r, g, &new, &r->page_bytes[g], err));
        TRY(page_bytes(r, g, &floor, &at_floor, err));
        *floor_bytes += at_floor;
        out->page_bytes += r->page_bytes[g];
        token_bytes[g] = (double)r->page_bytes[g] / TILE_TOKENS;
    }
    r->cost = sim_cost_make(&r->model, r->o, token_bytes);
    return KVASIR_OK;
}

static kvasir_status settle_budget(struct replay *r, lab_simulation *out, kvasir_error *err) {
    uint64_t floor_bytes, start_bytes = 0, first = 0;
    TRY(measure_pages(r, out, &floor_bytes, err));
    TRY(page_uses_create(&r->trace, TILE_TOKENS, &r->uses, err));
    for (uint32_t g = 0; g < r->model.n_groups; g++)
        start_bytes += r->start_bytes[g];
    ASSERT(r->cache_options.quantized_start <= TILE_TOKENS); /* the default: a page, or none */
    if (r->cache_options.quantized_start)
        first = page_uses_first_pages(r->uses);
    out->all_pages = page_uses_unlimited(r->uses);
    out->all_bytes = (out->all_pages - first) * out->page_bytes + first * start_bytes;
    r->start_share = (double)first / (double)out->all_pages;
    r->cache_options.budget_bytes =
        r->o->budget_bytes ? r->o->budget_bytes
                           : (uint64_t)((double)out->all_bytes * r->o->budget_percent / 100);
    out->budget_pages = (uint64_t)((double)r->cache_options.budget_bytes /
                                   (r->start_share * (double)start_bytes +
                                    (1 - r->start_share) * (double)floor_bytes));
    out->kv_bytes_per_token = out->page_bytes / TILE_TOKENS;
    out->weight_bytes = r->cost.weight_bytes;
    return KVASIR_OK;
}

/* SCHED-3 needs this: every request fits alone. */
static kvasir_status check_need(const struct replay *r, lab_simulation *out, kvasir_error *err) {
    uint32_t most = 0;
    for (uint32_t i = 1; i < r->trace.n; i++) {
        const struct trace_request *a = &r->trace.requests[i], *b = &r->trace.requests[most];
        most = a->prompt + a->output > b->prompt + b->output ? i : most;
    }
    const struct trace_request *largest = &r->trace.requests[most];
    const uint64_t budget = r->cache_options.budget_bytes;
    out->need_bytes = sched_need(r->sched, largest->prompt + largest->output);
    if (out->need_bytes <= budget)
        return KVASIR_OK;
    return fail_field(err, KVASIR_ERR_BUDGET, "simulate.budget_bytes",
                      "%" PRIu64 " bytes are %.3g %% of the trace's %" PRIu64
                      "; its request %u, a prompt of %u tokens and an answer of %u, needs %" PRIu64
                      " alone",
                      budget, 100 * (double)budget / (double)out->all_bytes, out->all_bytes,
                      most + 1, largest->prompt, largest->output, out->need_bytes);
}

/* ---- what the scheduler asks of its host ----------------------------------------------------- */

static kvasir_status host_admitted(void *user, struct task *t, kvasir_error *err) {
    const struct replay *r = user;
    struct replayed *q = t->owner;
    (void)err;
    if (q->begun < 0)
        q->begun = r->clock;
    return KVASIR_OK;
}

static kvasir_status host_run(void *user, const struct step_part *parts, uint32_t n,
                              kvasir_error *err) {
    struct replay *r = user;
    const double start = clock_seconds(), seconds = sim_cost_step(&r->cost, parts, n);
    r->model_wall += clock_seconds() - start;
    r->clock += seconds;
    r->busy += seconds;
    uint32_t rows = 0;
    bool generates = false;
    for (uint32_t i = 0; i < n; i++) {
        rows += parts[i].rows;
        generates |= parts[i].rows == 1;
    }
    if (r->tiers)
        tiers_note_step(r->tiers, rows, seconds);
    sched_note_step(r->sched, rows, seconds);
    if (generates && !ARRAY_GROW(r->steps, r->cap_steps, r->n_steps + 1))
        return fail(err, KVASIR_ERR_MEMORY, "simulate: out of memory");
    if (generates)
        r->steps[r->n_steps++] = seconds;
    for (uint32_t i = 0; i < n; i++)
        seq_commit(parts[i].seq, parts[i].tokens, parts[i].rows);
    return KVASIR_OK;
}

static bool host_next(void *user, struct task *t, uint32_t row) {
    const struct replay *r = user;
    struct replayed *q = t->owner;
    const struct trace_request *request = &r->trace.requests[q - r->requests];
    (void)row;
    ASSERT(t->n_tokens >= t->n_prompt && t->n_tokens < t->cap);
    if (t->n_tokens == t->n_prompt)
        q->first = r->clock;
    t->tokens[t->n_tokens] = trace_token(&r->trace, request, t->n_tokens);
    t->n_tokens++;
    return t->n_tokens < t->cap;
}

static void host_ended(void *user, struct task *t, enum task_end end, const kvasir_error *error) {
    struct replay *r = user;
    struct replayed *q = t->owner;
    q->ended = r->clock;
    r->n_ended++;
    ASSERT(r->n_ended <= r->n_submitted);
    if (end == END_FAILED)
        r->failure = *error;
    mem_free(t->tokens);
    t->tokens = NULL;
}

/* ---- the replay ------------------------------------------------------------------------------ */

static kvasir_status submit(struct replay *r, kvasir_error *err) {
    struct replayed *q = &r->requests[r->n_submitted];
    const struct trace_request *request = &r->trace.requests[r->n_submitted];
    const uint32_t cap = request->prompt + request->output;
    q->begun = q->first = -1;
    q->task = (struct task){.owner = q, .salt = "", .n_prompt = request->prompt, .cap = cap};
    q->task.tokens = mem_calloc(cap, sizeof *q->task.tokens);
    if (!q->task.tokens)
        return fail(err, KVASIR_ERR_MEMORY, "request %u: out of memory", r->n_submitted + 1);
    for (uint32_t i = 0; i < request->prompt; i++)
        q->task.tokens[i] = trace_token(&r->trace, request, i);
    sched_submit(r->sched, &q->task);
    r->n_submitted++;
    return KVASIR_OK;
}

static kvasir_status submit_due(struct replay *r, kvasir_error *err) {
    while (r->n_submitted < r->trace.n && r->requests[r->n_submitted].arrival <= r->clock &&
           sched_stats(r->sched).waiting < r->o->max_waiting)
        TRY(submit(r, err));
    return KVASIR_OK;
}

/* Between steps: what the stores have done meanwhile. */
static void collect(struct replay *r) {
    if (!r->tiers)
        return;
    tiers_work(r->tiers);
    sched_collect(r->sched, r->clock);
}

/* After a step of so many rows pages go down as in the engine (engine_api.c), in no time. */
static void descend(struct replay *r, uint32_t rows) {
    while (sched_descend(r->sched, rows == 0) && rows == 0)
        ;
}

static void take_earlier(const struct replay *r, double *first, double at) {
    if (at > r->clock && (*first == 0 || at < *first))
        *first = at;
}

/* Offers what is left over as long as queues have room. Returns when the stores have more to do. */
static double rest(struct replay *r) {
    enum { REST_NODES = 4096 };
    struct tiers_stats before, after;
    double next;
    do {
        tiers_get_stats(r->tiers, &before);
        while (tiers_rest(r->tiers, REST_NODES))
            ;
        next = tiers_work(r->tiers);
        tiers_get_stats(r->tiers, &after);
    } while (after.offered_pages != before.offered_pages);
    return next;
}

/* Nothing runs: when that may change. All requests so far have ended, or wait for a load. */
static double next_event(struct replay *r) {
    double first = 0;
    if (r->n_submitted < r->trace.n)
        take_earlier(r, &first, r->requests[r->n_submitted].arrival);
    if (r->tiers) {
        take_earlier(r, &first, rest(r));
        take_earlier(r, &first, tiers_next_deadline(r->tiers));
    }
    ASSERT(first > r->clock);
    return first;
}

static kvasir_status replay(struct replay *r, lab_simulation *out, kvasir_error *err) {
    const double start = clock_seconds();
    while (r->n_ended < r->trace.n) {
        const uint32_t ended = r->n_ended;
        uint32_t rows;
        TRY(submit_due(r, err));
        const double before = clock_seconds();
        collect(r);
        TRY(sched_step(r->sched, &rows, err));
        descend(r, rows);
        out->engine_seconds += clock_seconds() - before;
        if (r->failure.code != KVASIR_OK) {
            *err = r->failure;
            return r->failure.code;
        }
        if (rows == 0 && r->n_ended < r->trace.n)
            r->clock = next_event(r);
        if (r->o->on_progress && r->n_ended > ended &&
            !r->o->on_progress(r->o->user, r->n_ended, r->trace.n))
            return fail(err, KVASIR_ERR_CANCELLED, "cancelled");
    }
    out->wall_seconds = clock_seconds() - start;
    out->engine_seconds -= r->model_wall;
    return KVASIR_OK;
}

static double virtual_now(void *user) {
    return ((const struct replay *)user)->clock;
}

static kvasir_status add_store(struct replay *r, enum sim_tier_kind kind, uint64_t bytes,
                               double speed, struct tiers_options *o, kvasir_error *err) {
    if (!bytes)
        return KVASIR_OK;
    TRY(sim_tier_create(kind, bytes, &r->clock, &o->tiers[o->n], err));
    o->speeds[o->n] = speed;
    r->stores[o->n] = o->tiers[o->n];
    o->n++;
    return KVASIR_OK;
}

static kvasir_status make_tiers(struct replay *r, kvasir_error *err) {
    struct tiers_options o = {.unchecked = true, .now = virtual_now, .user = r};
    kvasir_status status = add_store(r, SIM_HOST, r->o->host_bytes, r->o->host_bandwidth, &o, err);
    if (status == KVASIR_OK)
        status = add_store(r, SIM_DISK, r->o->disk_bytes, r->o->disk_bandwidth, &o, err);
    if (status == KVASIR_OK)
        status = add_store(r, SIM_REMOTE, r->o->remote_bytes, r->o->remote_bandwidth, &o, err);
    if (status == KVASIR_OK && o.n)
        status = tiers_create(r->tree, &o, &r->tiers, err);
    else
        for (uint32_t i = 0; i < o.n; i++)
            o.tiers[i]->ops->destroy(o.tiers[i]);
    r->n_stores = status == KVASIR_OK ? o.n : 0;
    return status;
}

static kvasir_status make_engine(struct replay *r, kvasir_error *err) {
    struct sched_options options = {.max_running = r->o->max_running,
                                    .step_rows = r->o->prefill_chunk,
                                    .step_seconds = r->o->target_step_ms / 1e3};
    const struct sched_host host = {.user = r,
                                    .admitted = host_admitted,
                                    .run = host_run,
                                    .next = host_next,
                                    .ended = host_ended};
    TRY(find_policy(r->o->policy, &options.policy, err));
    TRY(backend_null_create(&r->backend, err));
    TRY(kv_cache_create(r->backend, r->model.groups, r->model.n_groups, &r->cache_options,
                        &r->cache, err));
    if (!r->o->no_prefix_cache)
        TRY(tree_create(r->cache, r->cost.rebuild_tokens, &r->tree, err));
    TRY(make_tiers(r, err));
    options.tiers = r->tiers;
    return sched_create(r->cache, r->tree, &options, &host, &r->sched, err);
}

/* ---- figures --------------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The smallest value that at least `share` of them do not exceed. */
static double rank(const double *sorted, uint32_t n, double share) {
    const uint32_t at = (uint32_t)(share * n);
    return sorted[at > 0 && at == share * n ? at - 1 : at];
}

/* values [n], n > 0; sorts them. */
static lab_spread spread(double *values, uint32_t n) {
    double sum = 0;
    ASSERT(n > 0);
    qsort(values, n, sizeof *values, compare_doubles);
    for (uint32_t i = 0; i < n; i++)
        sum += values[i];
    return (lab_spread){.mean = sum / n,
                        .p50 = rank(values, n, 0.5),
                        .p90 = rank(values, n, 0.9),
                        .p99 = rank(values, n, 0.99),
                        .max = values[n - 1]};
}

static kvasir_status measure_times(const struct replay *r, lab_simulation *out, kvasir_error *err) {
    const uint32_t n = r->trace.n;
    double *values = mem_calloc(n, sizeof *values);
    if (!values)
        return fail(err, KVASIR_ERR_MEMORY, "simulate: out of memory");
    for (uint32_t i = 0; i < n; i++)
        values[i] = r->requests[i].begun - r->requests[i].arrival;
    out->queued = spread(values, n);
    for (uint32_t i = 0; i < n; i++)
        values[i] = r->requests[i].first - r->requests[i].arrival;
    out->first_token = spread(values, n);
    for (uint32_t i = 0; i < n; i++)
        values[i] = r->requests[i].ended - r->requests[i].arrival;
    out->total = spread(values, n);
    mem_free(values);
    if (r->n_steps)
        out->step = spread(r->steps, (uint32_t)r->n_steps);
    return KVASIR_OK;
}

/* Pages that a store has room for. */
static uint64_t store_pages(const struct replay *r, uint32_t i) {
    double page = 0;
    struct tier_stats stats;
    for (uint32_t g = 0; g < r->model.n_groups; g++)
        page +=
            r->start_share * (double)sim_tier_record_bytes(r->stores[i], r->start_bytes[g]) +
            (1 - r->start_share) * (double)sim_tier_record_bytes(r->stores[i], r->page_bytes[g]);
    r->stores[i]->ops->stats(r->stores[i], &stats);
    ASSERT(page > 0);
    return (uint64_t)((double)stats.limit_bytes / page);
}

static kvasir_status measure_tiers(const struct replay *r, lab_simulation *out, kvasir_error *err) {
    const double tokens = (double)r->trace.prompt_tokens;
    uint64_t pages = out->budget_pages, best;
    out->memory_hit_rate = out->hit_rate;
    for (uint32_t i = 0; i < r->n_stores; i++) {
        struct tier *t = r->stores[i];
        struct tier_stats s;
        t->ops->stats(t, &s);
        out->tiers[i] = (lab_simulated_tier){.name = t->ops->name,
                                             .limit_bytes = s.limit_bytes,
                                             .bytes = s.bytes,
                                             .records = s.records,
                                             .dropped_records = s.dropped,
                                             .read_bytes = s.read_bytes,
                                             .written_bytes = s.write_bytes,
                                             .hit_rate = (double)sim_tier_tokens(t) / tokens};
        out->memory_hit_rate -= out->tiers[i].hit_rate;
        pages += store_pages(r, i);
    }
    out->n_tiers = r->n_stores;
    if (out->memory_hit_rate < 0) /* loads that were evicted before they were used */
        out->memory_hit_rate = 0;
    TRY(belady_hits(r->uses, pages, &best, err));
    out->best_hit_rate_all = (double)best / tokens;
    return KVASIR_OK;
}

static void measure_rungs(const struct replay *r, lab_simulation *out) {
    _Static_assert((int)LAB_RUNGS_MAX == (int)LADDER_RUNGS_MAX, "all rungs have room");
    out->n_rungs = kv_cache_rungs(r->cache);
    for (uint32_t i = 0; i < out->n_rungs; i++) {
        format_pair_text(r->cache_options.rungs[i].k, r->cache_options.rungs[i].v,
                         out->rungs[i].format);
        out->rungs[i].pages = kv_cache_descended(r->cache, i);
    }
}

static kvasir_status measure(const struct replay *r, lab_simulation *out, kvasir_error *err) {
    const double tokens = (double)r->trace.prompt_tokens;
    uint64_t lru, best;
    out->stats = sched_engine_stats(r->sched);
    out->stats.requests = out->stats.finished = r->n_ended;
    out->tree_nodes = r->tree ? tree_stats(r->tree).nodes : 0;
    out->virtual_seconds = r->clock;
    out->busy_seconds = r->busy;
    out->hit_rate = (double)out->stats.cached_tokens / tokens;
    TRY(lru_hits(r->uses, out->budget_pages, &lru, err));
    TRY(belady_hits(r->uses, out->budget_pages, &best, err));
    out->lru_hit_rate = (double)lru / tokens;
    out->best_hit_rate = (double)best / tokens;
    measure_rungs(r, out);
    if (r->tiers)
        TRY(measure_tiers(r, out, err));
    return measure_times(r, out, err);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static kvasir_status open_trace(struct replay *r, lab_simulation *out, kvasir_error *err) {
    TRY(trace_read(r->o->trace, &r->trace, err));
    if (r->o->limit)
        trace_cut(&r->trace, r->o->limit);
    r->requests = mem_calloc(r->trace.n, sizeof *r->requests);
    if (!r->requests)
        return fail(err, KVASIR_ERR_MEMORY, "simulate: out of memory");
    for (uint32_t i = 0; i < r->trace.n; i++) {
        const double seconds = r->trace.requests[i].at_ms / 1e3;
        r->requests[i].arrival = r->o->speed > 0 ? seconds / r->o->speed : 0;
    }
    out->requests = r->trace.n;
    out->prompt_tokens = r->trace.prompt_tokens;
    out->answer_tokens = r->trace.output_tokens;
    out->trace_seconds = r->requests[r->trace.n - 1].arrival;
    return KVASIR_OK;
}

static void describe(const struct replay *r, lab_simulation *out) {
    memcpy(out->shape, r->model.text, sizeof out->shape);
    out->layers = r->model.layers;
    out->window_layers = r->model.window_layers;
    cache_format_text(r->cache, out->kv_format);
}

static void close_replay(struct replay *r) {
    for (uint32_t i = 0; i < r->n_submitted; i++) /* after a failure */
        sched_cancel(r->sched, &r->requests[i].task);
    sched_destroy(r->sched);
    tiers_destroy(r->tiers);
    tree_destroy(r->tree);
    kv_cache_destroy(r->cache);
    backend_destroy(r->backend);
    page_uses_destroy(r->uses);
    mem_free(r->requests);
    mem_free(r->steps);
    trace_deinit(&r->trace);
}

kvasir_status lab_simulate(const lab_simulate_options *options, lab_simulation *out,
                           kvasir_error *err) {
    struct replay r = {.o = options};
    kvasir_error unwanted;
    err = err ? err : &unwanted;
    *out = (lab_simulation){0};
    kvasir_status status;
    TRY_GOTO(check_options(options, err));
    TRY_GOTO(sim_model_settle(options, &r.model, err));
    TRY_GOTO(options_parse_live(options->kv_bits, options->kv_floor, options->kv_group_size,
                                &r.cache_options, err));
    r.cache_options.quantized_start = options_start(KVASIR_START_BY_FORMAT, &r.cache_options);
    TRY_GOTO(open_trace(&r, out, err));
    TRY_GOTO(settle_budget(&r, out, err));
    TRY_GOTO(make_engine(&r, err));
    describe(&r, out);
    TRY_GOTO(check_need(&r, out, err));
    TRY_GOTO(replay(&r, out, err));
    TRY_GOTO(measure(&r, out, err));
done:
    close_replay(&r);
    return status;
}
