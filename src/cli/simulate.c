/* SPDX-License-Identifier: Apache-2.0 */
/* simulate.c: `kvasir simulate`, the engine without a model: replays recorded requests through the
 * real scheduler and prefix tree in virtual time, or runs random requests with faults and checks
 * everything after every step. lab/ does the work; here are flags and tables. */
#include "cli.h"

#include <string.h>

struct simulate_args {
    lab_simulate_options options;
    const char *budget, *host, *disk, *remote, *policies;
    float speed, bandwidth, compute, weight_bits;           /* GB/s, 10^12 operations/s */
    float host_bandwidth, disk_bandwidth, remote_bandwidth; /* GB/s */
    uint32_t random;                                        /* programs; 0: a trace */
    uint64_t seed;
    bool json, quiet;
};

/* clang-format off */
#define ROW(field) .offset = offsetof(struct simulate_args, field)
static const struct option OPTIONS[] = {
    {.name = "--trace", .value = "FILE", .kind = OPTION_TEXT, ROW(options.trace),
     .help = "requests to replay, one JSON object per line: timestamp, input_length, "
             "output_length, hash_ids; - is standard input"},
    {.name = "--limit", .value = "N", .kind = OPTION_U32, ROW(options.limit), .shown = "all",
     .min = 1, .max = UINT32_MAX, .help = "replay the first N requests"},
    {.name = "--speed", .value = "X", .kind = OPTION_FLOAT, ROW(speed), .initial = "1",
     .max = 1e9, .help = "replay X times as fast as recorded; 0: all requests at the start"},
    {.name = "--model-shape", .value = "S", .kind = OPTION_TEXT, ROW(options.model_shape),
     .help = "smollm2-135m, qwen3-0.6b, qwen3-8b, llama3-8b, llama3-70b, or sizes: "
             "layers,kv_heads,head_dim[,heads,ffn,dim,vocab]"},
    {.name = "--window", .value = "N", .kind = OPTION_U32, ROW(options.window), .max = 1 << 30,
     .shown = "0, none",
     .help = "sliding window: in --window-layers layers a token sees only the newest N"},
    {.name = "--window-layers", .value = "N", .kind = OPTION_U32, ROW(options.window_layers),
     .max = 1024, .shown = "half of all layers", .help = "number of layers with a window"},
    {.name = "--kv-bits", .value = "K,V", .kind = OPTION_TEXT, ROW(options.kv_bits),
     .help = "formats of K and V: f32 f16 bf16 8 6 5 4 3 2, one value for both; r8,4 t4 ...; or "
             "auto: r8,4, and as memory fills the oldest and least used pages become t4, then t3"},
    {.name = "--kv-floor", .value = "F", .kind = OPTION_TEXT, ROW(options.kv_floor), .shown = "t3",
     .help = "with --kv-bits auto: no page gets fewer bits than F: r8,4, t4 or t3"},
    {.name = "--kv-group-size", .value = "G", .kind = OPTION_TEXT, ROW(options.kv_group_size),
     .shown = "64 if it divides the head size, else 32",
     .help = "values that share a scale and a bias: 32, 64 or 128; one for both, or K,V"},
    {.name = "--budget", .value = "B", .kind = OPTION_TEXT, ROW(budget), .initial = "100%",
     .help = "size of the cache in bytes, with K, M, G or T (powers of 1024), or as a share of "
             "all pages of the trace: 20%"},
    {.name = "--host", .value = "B", .kind = OPTION_TEXT, ROW(host), .shown = "none",
     .help = "size of the host's memory below that of a GPU, in bytes as --budget: 64G"},
    {.name = "--host-bandwidth", .value = "X", .kind = OPTION_FLOAT, ROW(host_bandwidth),
     .initial = "40", .min = 1e-6, .max = 1e6,
     .help = "its bandwidth, in 10^9 bytes per second each way"},
    {.name = "--disk", .value = "B", .kind = OPTION_TEXT, ROW(disk), .shown = "none",
     .help = "size of a folder of stored prefixes below the memory, in bytes as --budget: 2T"},
    {.name = "--disk-bandwidth", .value = "X", .kind = OPTION_FLOAT, ROW(disk_bandwidth),
     .initial = "5", .min = 1e-6, .max = 1e6,
     .help = "its bandwidth, in 10^9 bytes per second each way"},
    {.name = "--remote", .value = "B", .kind = OPTION_TEXT, ROW(remote), .shown = "none",
     .help = "size of a remote store of prefixes below that, in bytes as --budget"},
    {.name = "--remote-bandwidth", .value = "X", .kind = OPTION_FLOAT, ROW(remote_bandwidth),
     .initial = "1.25", .min = 1e-6, .max = 1e6,
     .help = "its bandwidth, in 10^9 bytes per second each way"},
    {.name = "--max-num-seqs", .value = "N", .kind = OPTION_U32, ROW(options.max_running),
     .min = 1, .max = 4096, .help = "maximum number of requests that run at the same time"},
    {.name = "--prefill-chunk", .value = "N", .kind = OPTION_U32, ROW(options.prefill_chunk),
     .min = 1, .max = 4096, .help = "maximum tokens in a step, over all requests"},
    {.name = "--target-step-ms", .value = "N", .kind = OPTION_U32,
     ROW(options.target_step_ms), .max = 60000, .shown = "0, none",
     .help = "while answers are written, prompts get only as many tokens of a step as keep it "
             "near N ms"},
    {.name = "--policy", .value = "P,...", .kind = OPTION_TEXT, ROW(policies),
     .initial = "shortest",
     .help = "who is served first; several are compared: shortest, as the server does it; equal: "
             "by arrival, and prompts get equal parts of a step; fcfs: by arrival"},
    {.name = "--no-prefix-cache", .kind = OPTION_FLAG, ROW(options.no_prefix_cache),
     .help = "do not store prefixes for later requests"},
    {.name = "--bandwidth", .value = "X", .kind = OPTION_FLOAT, ROW(bandwidth), .initial = "4800",
     .min = 1e-3, .max = 1e9, .help = "memory bandwidth, in 10^9 bytes per second"},
    {.name = "--compute", .value = "X", .kind = OPTION_FLOAT, ROW(compute), .initial = "989",
     .min = 1e-6, .max = 1e9, .help = "compute speed, in 10^12 operations per second"},
    {.name = "--weight-bits", .value = "X", .kind = OPTION_FLOAT, ROW(weight_bits),
     .initial = "16", .min = 0.1, .max = 64, .help = "bits of a weight in memory"},
    {.name = "--random", .value = "N", .kind = OPTION_U32, ROW(random), .shown = "",
     .min = 1, .max = 1 << 30,
     .help = "instead of a trace, run N programs of random requests and faults, checked after "
             "every step"},
    {.name = "--seed", .value = "S", .kind = OPTION_U64, ROW(seed), .max = 9.2e18,
     .help = "seed of the first random program; the next one has S + 1"},
    {.name = "--json", .kind = OPTION_FLAG, ROW(json), .help = "print the results as one JSON "
                                                               "object"},
    {.name = "--quiet", .alias = "-q", .kind = OPTION_FLAG, ROW(quiet),
     .help = "print nothing but errors on standard error"},
};
/* clang-format on */

static const struct command COMMAND = {
    .name = "simulate",
    .summary = "Replays recorded requests through the scheduler and the prefix cache, without a "
               "model.",
    .usage = "--trace FILE [flags] | --random N [--seed S]",
    .options = OPTIONS,
    .n_options = sizeof OPTIONS / sizeof *OPTIONS,
    .details = "Time is virtual: a step takes the bytes it reads / --bandwidth + its operations / "
               "--compute.\nThe hit rates of LRU and of Belady's optimum, for comparison, are "
               "computed page by page, as if\nrequests ran one at a time with the same budget.",
};

/* ---- flags ----------------------------------------------------------------------------------- */

/* "300G"; "20%" where *percent can be set. A flag that was not given sets nothing. */
static int read_size(const char *flag, const char *text, uint64_t *bytes, double *percent) {
    static const char SUFFIXES[] = "KMGT";
    char unit = 0, rest = 0;
    double x;
    if (!text)
        return EXIT_GOOD;
    const int n = sscanf(text, "%lf%c%c", &x, &unit, &rest);
    const char *suffix = unit ? strchr(SUFFIXES, unit) : NULL;
    const bool share = unit == '%' && percent;
    if (n < 1 || rest || strspn(text, "0123456789.") == 0 || (unit && !share && !suffix))
        return usage_error(&COMMAND,
                           percent ? "%s: \"%.60s\" is neither bytes, as 300G, nor a share, as 20%%"
                                   : "%s: \"%.60s\" is not a number of bytes, as 300G",
                           flag, text);
    if (share) {
        *percent = x;
        return EXIT_GOOD;
    }
    for (const char *s = SUFFIXES; suffix && s <= suffix; s++)
        x *= 1024;
    if (x < 1 || x > 0x1p62)
        return usage_error(&COMMAND, "%s: %.60s is not between 1 and 2^62 bytes", flag, text);
    *bytes = (uint64_t)x;
    return EXIT_GOOD;
}

static bool on_progress(void *user, size_t done, size_t total) {
    (void)total;
    progress_step(user, done);
    return !interrupted();
}

/* ---- a trace --------------------------------------------------------------------------------- */

static void print_spread(const char *what, const lab_spread *s) {
    printf("  %-14s %9.3f %9.3f %9.3f %9.3f %9.3f\n", what, s->mean, s->p50, s->p90, s->p99,
           s->max);
}

static void print_requests(const lab_simulation *s) {
    char weights[24];
    printf("trace:   %u requests in %.0f s, %llu tokens of prompts, %llu of answers\n", s->requests,
           s->trace_seconds, (unsigned long long)s->prompt_tokens,
           (unsigned long long)s->answer_tokens);
    printf("model:   %s, %u layers", s->shape, s->layers);
    if (s->window_layers)
        printf(" (%u with a window)", s->window_layers);
    printf(", weights %s; cache %s, %llu bytes a token\n",
           human_bytes((double)s->weight_bytes, weights), s->kv_format,
           (unsigned long long)s->kv_bytes_per_token);
}

static void print_cache(const lab_simulation *s) {
    char budget[24], all[24], peak[24], now[24];
    const kvasir_engine_stats *e = &s->stats;
    printf("budget:  %s, %.1f %% of the %s of all pages: room for %llu of %llu\n",
           human_bytes((double)e->budget_bytes, budget),
           100 * ratio((double)e->budget_bytes, (double)s->all_bytes),
           human_bytes((double)s->all_bytes, all), (unsigned long long)s->budget_pages,
           (unsigned long long)s->all_pages);
    printf("bytes:   %s at most (%llu of %llu), %s in the end, in %llu nodes of the tree; "
           "%llu pages evicted\n",
           human_bytes((double)e->peak_bytes, peak), (unsigned long long)e->peak_bytes,
           (unsigned long long)e->budget_bytes, human_bytes((double)e->used_bytes, now),
           (unsigned long long)s->tree_nodes, (unsigned long long)e->evicted_pages);
    printf("hits:    %.3f %% of prompt tokens; plain LRU by pages %.3f %%, Belady's optimum "
           "%.3f %%\n",
           100 * s->hit_rate, 100 * s->lru_hit_rate, 100 * s->best_hit_rate);
    printf("         %llu exact, %llu of a stored prefix, %llu of a longer prompt, %llu common "
           "prefixes, %llu misses\n",
           (unsigned long long)e->hits[KVASIR_HIT_EXACT],
           (unsigned long long)e->hits[KVASIR_HIT_PREFIX],
           (unsigned long long)e->hits[KVASIR_HIT_SUPERSEQUENCE],
           (unsigned long long)e->hits[KVASIR_HIT_COMMON_PREFIX],
           (unsigned long long)e->hits[KVASIR_HIT_MISS]);
    printf("tokens:  %llu of prompts, %llu of them from the cache, %llu generated; %llu "
           "preemptions, %llu tokens run again\n",
           (unsigned long long)e->prompt_tokens, (unsigned long long)e->cached_tokens,
           (unsigned long long)e->generated_tokens, (unsigned long long)e->preemptions,
           (unsigned long long)e->rerun_tokens);
}

/* The last rung that a page was re-encoded to; NULL: none was. */
static const char *lowest_format(const lab_simulation *s) {
    const char *lowest = NULL;
    for (uint32_t i = 0; i < s->n_rungs; i++)
        if (s->rungs[i].pages)
            lowest = s->rungs[i].format;
    return lowest;
}

static void print_rungs(const lab_simulation *s) {
    const char *lowest = lowest_format(s);
    if (!s->n_rungs)
        return;
    printf("auto:    re-encoded");
    for (uint32_t i = 0; i < s->n_rungs; i++)
        printf("%s %llu pages to %s", i ? "," : "", (unsigned long long)s->rungs[i].pages,
               s->rungs[i].format);
    printf("; the lowest was %s\n", lowest ? lowest : s->kv_format);
}

static void print_tiers(const lab_simulation *s) {
    const kvasir_engine_stats *e = &s->stats;
    if (!s->n_tiers)
        return;
    printf("tiers:   %.3f %% of prompt tokens from memory", 100 * s->memory_hit_rate);
    for (uint32_t i = 0; i < s->n_tiers; i++)
        printf(", %.3f %% from %s", 100 * s->tiers[i].hit_rate, s->tiers[i].name);
    printf("; Belady's optimum for all in one %.3f %%\n", 100 * s->best_hit_rate_all);
    printf("         %llu loads, %llu not worth one, %llu late; %llu pages offered, %llu not "
           "written\n",
           (unsigned long long)e->tier_loads, (unsigned long long)e->tier_loads_slow,
           (unsigned long long)e->tier_loads_late, (unsigned long long)e->tier_offered_pages,
           (unsigned long long)e->tier_unwritten_pages);
    for (uint32_t i = 0; i < s->n_tiers; i++) {
        const lab_simulated_tier *t = &s->tiers[i];
        char held[24], limit[24], read[24], written[24];
        char name[16];
        snprintf(name, sizeof name, "%s:", t->name);
        printf("%-8s %s of %s in %llu records; read %s, written %s, %llu records dropped\n", name,
               human_bytes((double)t->bytes, held), human_bytes((double)t->limit_bytes, limit),
               (unsigned long long)t->records, human_bytes((double)t->read_bytes, read),
               human_bytes((double)t->written_bytes, written),
               (unsigned long long)t->dropped_records);
    }
}

static int print_table(const lab_simulation *s) {
    char memory[24];
    const double steps = (double)s->stats.steps;
    print_requests(s);
    print_cache(s);
    print_rungs(s);
    print_tiers(s);
    printf("time:    %.1f s, %.1f %% of it in %llu steps of %.2f ms on average\n",
           s->virtual_seconds, 100 * ratio(s->busy_seconds, s->virtual_seconds),
           (unsigned long long)s->stats.steps, 1e3 * ratio(s->busy_seconds, steps));
    printf("\n  %-14s %9s %9s %9s %9s %9s\n", "seconds", "mean", "p50", "p90", "p99", "max");
    print_spread("queued", &s->queued);
    print_spread("first token", &s->first_token);
    print_spread("last token", &s->total);
    print_spread("step", &s->step);
    printf("\nsimulated in %.2f s, %.2f us of the engine a step, peak memory %s\n", s->wall_seconds,
           1e6 * ratio(s->engine_seconds, steps),
           human_bytes((double)memory_resident_peak_bytes(), memory));
    return finish_output(&COMMAND);
}

/* Of answers. */
static double tokens_per_second(const lab_simulation *s) {
    return ratio((double)s->stats.generated_tokens, s->virtual_seconds);
}

static void put_spread(json_t *object, const char *key, const lab_spread *s) {
    json_t *o = json_object();
    put_real(o, "mean", s->mean);
    put_real(o, "p50", s->p50);
    put_real(o, "p90", s->p90);
    put_real(o, "p99", s->p99);
    put_real(o, "max", s->max);
    json_object_set_new(object, key, o);
}

static void put_hits(json_t *object, const uint64_t *hits) {
    json_t *o = json_object();
    for (int i = 0; i < KVASIR_HIT_KINDS; i++)
        put_whole(o, kvasir_hit_text((kvasir_hit)i), hits[i]);
    json_object_set_new(object, "hits", o);
}

static void put_rungs(json_t *object, const lab_simulation *s) {
    const char *lowest = lowest_format(s);
    if (!s->n_rungs)
        return;
    json_t *list = json_array();
    put_whole(object, "requantized_pages", s->stats.requantized_pages);
    for (uint32_t i = 0; i < s->n_rungs; i++) {
        json_t *o = json_object();
        put_text(o, "format", s->rungs[i].format);
        put_whole(o, "pages", s->rungs[i].pages);
        json_array_append_new(list, o);
    }
    json_object_set_new(object, "requantized", list);
    put_text(object, "lowest_format", lowest ? lowest : s->kv_format);
}

static void put_tiers(json_t *object, const lab_simulation *s) {
    if (!s->n_tiers)
        return;
    json_t *list = json_array();
    put_real(object, "memory_hit_rate", s->memory_hit_rate);
    put_real(object, "belady_hit_rate_all", s->best_hit_rate_all);
    put_whole(object, "tier_loads", s->stats.tier_loads);
    put_whole(object, "tier_loads_slow", s->stats.tier_loads_slow);
    put_whole(object, "tier_loads_late", s->stats.tier_loads_late);
    put_whole(object, "tier_offered_pages", s->stats.tier_offered_pages);
    put_whole(object, "tier_unwritten_pages", s->stats.tier_unwritten_pages);
    for (uint32_t i = 0; i < s->n_tiers; i++) {
        const lab_simulated_tier *t = &s->tiers[i];
        json_t *o = json_object();
        put_text(o, "tier", t->name);
        put_real(o, "hit_rate", t->hit_rate);
        put_whole(o, "limit_bytes", t->limit_bytes);
        put_whole(o, "bytes", t->bytes);
        put_whole(o, "records", t->records);
        put_whole(o, "dropped_records", t->dropped_records);
        put_whole(o, "read_bytes", t->read_bytes);
        put_whole(o, "written_bytes", t->written_bytes);
        json_array_append_new(list, o);
    }
    json_object_set_new(object, "tiers", list);
}

static json_t *json_of(const lab_simulation *s, const char *policy) {
    const kvasir_engine_stats *e = &s->stats;
    json_t *o = json_object();
    put_text(o, "policy", policy);
    put_whole(o, "requests", s->requests);
    put_text(o, "model_shape", s->shape);
    put_text(o, "kv_format", s->kv_format);
    put_whole(o, "kv_bytes_per_token", s->kv_bytes_per_token);
    put_whole(o, "weight_bytes", s->weight_bytes);
    put_whole(o, "page_bytes", s->page_bytes);
    put_whole(o, "all_pages", s->all_pages);
    put_whole(o, "all_bytes", s->all_bytes);
    put_whole(o, "need_bytes", s->need_bytes);
    put_whole(o, "budget_bytes", e->budget_bytes);
    put_whole(o, "budget_pages", s->budget_pages);
    put_whole(o, "peak_bytes", e->peak_bytes);
    put_whole(o, "used_bytes", e->used_bytes);
    put_whole(o, "stored_bytes", e->stored_bytes);
    put_whole(o, "tree_nodes", s->tree_nodes);
    put_whole(o, "evicted_pages", e->evicted_pages);
    put_real(o, "hit_rate", s->hit_rate);
    put_real(o, "lru_hit_rate", s->lru_hit_rate);
    put_real(o, "belady_hit_rate", s->best_hit_rate);
    put_hits(o, e->hits);
    put_rungs(o, s);
    put_tiers(o, s);
    put_whole(o, "prompt_tokens", e->prompt_tokens);
    put_whole(o, "cached_tokens", e->cached_tokens);
    put_whole(o, "generated_tokens", e->generated_tokens);
    put_whole(o, "preemptions", e->preemptions);
    put_whole(o, "rerun_tokens", e->rerun_tokens);
    put_whole(o, "steps", e->steps);
    put_real(o, "virtual_seconds", s->virtual_seconds);
    put_real(o, "busy_seconds", s->busy_seconds);
    put_spread(o, "queued_seconds", &s->queued);
    put_spread(o, "first_token_seconds", &s->first_token);
    put_spread(o, "total_seconds", &s->total);
    put_spread(o, "step_seconds", &s->step);
    put_real(o, "tokens_per_second", tokens_per_second(s));
    put_real(o, "wall_seconds", s->wall_seconds);
    put_real(o, "engine_seconds", s->engine_seconds);
    put_whole(o, "peak_memory_bytes", memory_resident_peak_bytes());
    return o;
}

/* ---- several policies ------------------------------------------------------------------------ */

static void print_policy(const char *name, const lab_simulation *s) {
    printf("%-10s %8.3f %8.3f %8.3f %8.3f %8.3f %8.3f %9.1f %8.1f %8.3f %7llu\n", name,
           s->first_token.mean, s->first_token.p50, s->first_token.p99, s->first_token.max,
           s->total.mean, s->total.p99, tokens_per_second(s), 1e3 * s->step.p99, 100 * s->hit_rate,
           (unsigned long long)s->stats.preemptions);
}

static void print_policies_head(const lab_simulation *s) {
    print_requests(s);
    printf("\n%-10s %35s %17s\n", "", "first token, seconds", "last token");
    printf("%-10s %8s %8s %8s %8s %8s %8s %9s %8s %8s %7s\n", "policy", "mean", "p50", "p99", "max",
           "mean", "p99", "tokens/s", "step p99", "hits %", "preempt");
}

/* One of the policies, which `name` becomes. */
static int replay_one(struct simulate_args *a, const char *name, struct progress *progress,
                      lab_simulation *s) {
    kvasir_error err;
    a->options.policy = name;
    progress_start(progress, a->quiet ? NULL : "replaying", a->options.limit, "requests");
    const kvasir_status status = lab_simulate(&a->options, s, &err);
    progress_end(progress);
    if (status == KVASIR_ERR_CANCELLED)
        return EXIT_INTERRUPTED;
    return status == KVASIR_OK ? EXIT_GOOD : library_error(&COMMAND, &err);
}

struct outcome {
    char policy[40];
    lab_simulation s;
};

/* Runs the comma-separated policies. *all [*n]: what came of them. */
static int replay_each(struct simulate_args *a, struct progress *progress, struct outcome **all,
                       size_t *n) {
    size_t cap = 0;
    for (const char *at = a->policies, *end; at; at = *end ? end + 1 : NULL) {
        end = at + strcspn(at, ",");
        if (!ARRAY_GROW(*all, cap, *n + 1))
            return run_error(&COMMAND, "out of memory");
        struct outcome *o = &(*all)[*n];
        snprintf(o->policy, sizeof o->policy, "%.*s", (int)(end - at), at);
        const int code = replay_one(a, o->policy, progress, &o->s);
        if (code)
            return code;
        ++*n;
    }
    return EXIT_GOOD;
}

static int print_all(const struct outcome *all, size_t n, bool json) {
    json_t *object, *list = json ? json_array() : NULL;
    if (!json)
        print_policies_head(&all[0].s);
    for (size_t i = 0; i < n; i++)
        if (json)
            json_array_append_new(list, json_of(&all[i].s, all[i].policy));
        else
            print_policy(all[i].policy, &all[i].s);
    if (!json)
        return finish_output(&COMMAND);
    object = json_object();
    json_object_set_new(object, "policies", list);
    return json_print(&COMMAND, object);
}

static int replay_all(struct simulate_args *a, struct progress *progress) {
    struct outcome *all = NULL;
    size_t n = 0;
    if (strchr(a->policies, ',') && strcmp(a->options.trace, "-") == 0)
        return usage_error(&COMMAND, "--policy: several need a --trace that is a file: standard "
                                     "input can be read once");
    int code = replay_each(a, progress, &all, &n);
    if (!code && n > 1)
        code = print_all(all, n, a->json);
    else if (!code)
        code = a->json ? json_print(&COMMAND, json_of(&all[0].s, all[0].policy))
                       : print_table(&all[0].s);
    mem_free(all);
    return code;
}

static int replay(struct simulate_args *a, struct progress *progress) {
    lab_simulate_options *o = &a->options;
    int code = read_size("--budget", a->budget, &o->budget_bytes, &o->budget_percent);
    if (!code)
        code = read_size("--host", a->host, &o->host_bytes, NULL);
    if (!code)
        code = read_size("--disk", a->disk, &o->disk_bytes, NULL);
    if (!code)
        code = read_size("--remote", a->remote, &o->remote_bytes, NULL);
    if (code)
        return code;
    o->speed = (double)a->speed;
    o->bandwidth = (double)a->bandwidth * 1e9;
    o->compute = (double)a->compute * 1e12;
    o->weight_bits = (double)a->weight_bits;
    o->host_bandwidth = (double)a->host_bandwidth * 1e9;
    o->disk_bandwidth = (double)a->disk_bandwidth * 1e9;
    o->remote_bandwidth = (double)a->remote_bandwidth * 1e9;
    o->on_progress = on_progress;
    o->user = progress;
    return replay_all(a, progress);
}

/* ---- random requests ------------------------------------------------------------------------- */

static int print_random(const struct simulate_args *a, const lab_random_simulation *s) {
    const struct {
        const char *key, *text;
        uint64_t value;
    } rows[] = {{"programs", "programs", s->programs},
                {"steps", "steps, everything checked after each", s->steps},
                {"requests", "requests", s->requests},
                {"finished", "with their whole answer", s->finished},
                {"cancelled", "cancelled", s->cancelled},
                {"failed", "ended by a failing step", s->failed},
                {"refused", "refused: larger than the budget", s->refused},
                {"hits", "prompts that began with stored pages", s->hits},
                {"preemptions", "preemptions", s->preemptions},
                {"evicted_pages", "evicted pages", s->evicted_pages},
                {"forgets", "times prefixes were forgotten", s->forgets},
                {"device_faults", "failing steps", s->device_faults},
                {"tokens_checked", "tokens that steps saw in pages, all right", s->tokens_checked}};
    json_t *o = a->json ? json_object() : NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (o)
            put_whole(o, rows[i].key, rows[i].value);
        else
            printf("%12llu %s\n", (unsigned long long)rows[i].value, rows[i].text);
    return o ? json_print(&COMMAND, o) : finish_output(&COMMAND);
}

static int run_random(const struct simulate_args *a, struct progress *progress) {
    const lab_simulate_random_options o = {
        .seed = a->seed, .programs = a->random, .on_progress = on_progress, .user = progress};
    lab_random_simulation s;
    kvasir_error err;
    progress_start(progress, a->quiet ? NULL : "checking", a->random, "programs");
    const kvasir_status status = lab_simulate_random(&o, &s, &err);
    progress_end(progress);
    if (status == KVASIR_ERR_CANCELLED)
        return EXIT_INTERRUPTED;
    if (status != KVASIR_OK)
        return library_error(&COMMAND, &err);
    return s.violation[0] ? run_error(&COMMAND, "%s", s.violation) : print_random(a, &s);
}

int simulate_main(int argc, char **argv) {
    struct simulate_args a = {.options = lab_simulate_defaults()};
    struct progress progress = {0};
    int code;
    if (!options_read(&COMMAND, argc, argv, &a, &code))
        return code;
    if (!a.options.trace == !a.random)
        return usage_error(&COMMAND, "--trace or --random: one of them is needed");
    catch_interrupt();
    return a.random ? run_random(&a, &progress) : replay(&a, &progress);
}
