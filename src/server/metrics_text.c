/* SPDX-License-Identifier: Apache-2.0 */
/* metrics_text.c: GET /metrics, in Prometheus' text format 0.0.4. docs/metrics.md explains each
 * name. Names and buckets of vLLM are the same as there, with its label model_name. */
#include "server/metrics_internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"

/* The text so far. */
struct metrics_page {
    struct text_buf text;
    bool failed; /* out of memory */
    char *model; /* model_name="..." */
};

static void PRINTF_LIKE(2, 3) add(struct metrics_page *p, const char *format, ...) {
    va_list args;
    va_start(args, format);
    p->failed = p->failed || !text_vprintf(&p->text, format, args);
    va_end(args);
}

/* A label's value: backslashes, quotes and line ends are escaped. */
static bool add_escaped(struct text_buf *b, const char *value) {
    bool good = true;
    for (; good && *value; value++) {
        if (*value == '\n')
            good = text_puts(b, "\\n");
        else
            good = (*value != '\\' && *value != '"' ? true : text_puts(b, "\\")) &&
                   text_append(b, value, 1);
    }
    return good;
}

char *metrics_label(const char *name, const char *value) {
    struct text_buf b = {0};
    if (text_puts(&b, name) && text_puts(&b, "=\"") && add_escaped(&b, value) &&
        text_append(&b, "\"", 1))
        return b.data;
    text_free(&b);
    return NULL;
}

/* ---- families -------------------------------------------------------------------------------- */

static void family(struct metrics_page *p, const char *name, const char *type, const char *help) {
    add(p, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* labels: "" or the text inside the braces */
static void whole(struct metrics_page *p, const char *name, const char *labels, uint64_t value) {
    add(p, *labels ? "%s{%s} %" PRIu64 "\n" : "%s%s %" PRIu64 "\n", name, labels, value);
}

static void real(struct metrics_page *p, const char *name, const char *labels, double value) {
    add(p, *labels ? "%s{%s} %.15g\n" : "%s%s %.15g\n", name, labels, value);
}

static void counter(struct metrics_page *p, const char *name, const char *labels, uint64_t value,
                    const char *help) {
    family(p, name, "counter", help);
    whole(p, name, labels, value);
}

static void gauge(struct metrics_page *p, const char *name, const char *labels, double value,
                  const char *help) {
    family(p, name, "gauge", help);
    real(p, name, labels, value);
}

/* One sample of a family, with a label from a fixed list. */
static void labelled(struct metrics_page *p, const char *name, const char *key, const char *value,
                     uint64_t n) {
    add(p, "%s{%s=\"%s\"} %" PRIu64 "\n", name, key, value, n);
}

static void histogram(struct metrics_page *p, const char *name, const char *labels,
                      const struct histogram *h, const char *help) {
    const char *comma = *labels ? "," : "";
    char part[256];
    uint64_t n = 0;
    family(p, name, "histogram", help);
    for (size_t i = 0; i < h->n; i++) {
        char bound[32];
        n += h->counts[i];
        snprintf(bound, sizeof bound, "%.12g", h->bounds[i]);
        /* as vLLM's clients write it: "1.0" */
        add(p, "%s_bucket{%s%sle=\"%s%s\"} %" PRIu64 "\n", name, labels, comma, bound,
            strpbrk(bound, ".e") ? "" : ".0", n);
    }
    n += h->counts[h->n];
    add(p, "%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n", name, labels, comma, n);
    snprintf(part, sizeof part, "%s_sum", name);
    real(p, part, labels, h->sum);
    snprintf(part, sizeof part, "%s_count", name);
    whole(p, part, labels, n);
}

/* ---- vLLM's ---------------------------------------------------------------------------------- */

static double usage(const kvasir_engine_stats *s) {
    return s->budget_bytes ? (double)(s->used_bytes - s->stored_bytes) / (double)s->budget_bytes
                           : 0;
}

#define FIGURE(name, member)                                                                       \
    static double name(const kvasir_engine_stats *s) {                                             \
        return (double)s->member;                                                                  \
    }
FIGURE(running, running)
FIGURE(waiting, waiting)
FIGURE(prompt_tokens, prompt_tokens)
FIGURE(cached_tokens, cached_tokens)
FIGURE(preemptions, preemptions)
FIGURE(generated_tokens, generated_tokens)

/* older: the name in versions before it was renamed, which dashboards still use; NULL. */
static const struct {
    const char *name, *older, *type, *help;
    double (*value)(const kvasir_engine_stats *s);
} ENGINE[] = {
    {"vllm:num_requests_running", NULL, "gauge", "Sequences that are being computed.", running},
    {"vllm:num_requests_waiting", NULL, "gauge", "Requests waiting for their first step.", waiting},
    {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "gauge",
     "Share of the cache budget held by running requests and buffers, 0 to 1.", usage},
    {"vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total", "counter",
     "Prompt tokens looked up in the prefix cache.", prompt_tokens},
    {"vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "counter",
     "Prompt tokens found in the prefix cache.", cached_tokens},
    {"vllm:num_preemptions_total", NULL, "counter",
     "Times that a sequence was preempted for lack of memory.", preemptions},
    {"vllm:prompt_tokens_total", NULL, "counter", "Prompt tokens, including cached ones.",
     prompt_tokens},
    {"vllm:prompt_tokens_cached_total", NULL, "counter", "Prompt tokens that were not computed.",
     cached_tokens},
    {"vllm:generation_tokens_total", NULL, "counter", "Tokens generated.", generated_tokens},
};

static void vllm_engine(struct metrics_page *p, const struct server_figures *f) {
    for (size_t i = 0; i < sizeof ENGINE / sizeof *ENGINE; i++) {
        const char *const names[] = {ENGINE[i].name, ENGINE[i].older};
        for (int k = 0; k < 2 && names[k]; k++) {
            family(p, names[k], ENGINE[i].type, ENGINE[i].help);
            real(p, names[k], p->model, ENGINE[i].value(&f->engine));
        }
    }
}

static const struct {
    const char *name, *older, *help;
} OF_REQUESTS[HISTOGRAMS] = {
    [TIME_TO_FIRST_TOKEN] = {"vllm:time_to_first_token_seconds", NULL,
                             "From a request's arrival to its first token."},
    [INTER_TOKEN_LATENCY] = {"vllm:inter_token_latency_seconds",
                             "vllm:time_per_output_token_seconds",
                             "From one token of an answer to the next."},
    [OUTPUT_TOKEN_TIME] = {"vllm:request_time_per_output_token_seconds", NULL,
                           "A request's mean time from one token to the next."},
    [E2E_LATENCY] = {"vllm:e2e_request_latency_seconds", NULL,
                     "From a request's arrival to its end."},
    [QUEUE_TIME] = {"vllm:request_queue_time_seconds", NULL,
                    "From a request's arrival to its first step."},
    [INFERENCE_TIME] = {"vllm:request_inference_time_seconds", NULL,
                        "From a request's first step to its end."},
    [PREFILL_TIME] = {"vllm:request_prefill_time_seconds", NULL,
                      "From a request's first step to its first token."},
    [DECODE_TIME] = {"vllm:request_decode_time_seconds", NULL,
                     "From a request's first token to its last."},
    [PROMPT_TOKENS] = {"vllm:request_prompt_tokens", NULL, "Tokens of a prompt."},
    [COMPUTED_TOKENS] = {"vllm:request_prefill_kv_computed_tokens", NULL,
                         "Tokens of a request's prompts that were computed."},
    [GENERATION_TOKENS] = {"vllm:request_generation_tokens", NULL, "Tokens of an answer."},
    [MOST_GENERATION_TOKENS] = {"vllm:request_max_num_generation_tokens", NULL,
                                "Tokens of a request's longest choice."},
};

static void vllm_requests(struct metrics_page *p, const struct counts *c) {
    static const char *const REASONS[FINISH_KINDS] = {
        [KVASIR_FINISH_STOP] = "stop",
        [KVASIR_FINISH_LENGTH] = "length",
        [KVASIR_FINISH_CANCELLED] = "abort",
        [KVASIR_FINISH_ERROR] = "error",
    };
    family(p, "vllm:request_success_total", "counter", "Finished answers by reason.");
    for (int i = 0; i < FINISH_KINDS; i++)
        add(p, "vllm:request_success_total{%s,finished_reason=\"%s\"} %" PRIu64 "\n", p->model,
            REASONS[i], c->finished[i]);
    for (int i = 0; i < HISTOGRAMS; i++) {
        const char *const names[] = {OF_REQUESTS[i].name, OF_REQUESTS[i].older};
        for (int k = 0; k < 2 && names[k]; k++)
            histogram(p, names[k], p->model, &c->histograms[i], OF_REQUESTS[i].help);
    }
}

/* ---- ours ------------------------------------------------------------------------------------ */

static void cache_bytes(struct metrics_page *p, const struct server_figures *f) {
    static const char NAME[] = "kvasir_cache_bytes";
    family(p, NAME, "gauge",
           "Bytes of the budget in use, by format; stored: held by stored prefixes only.");
    for (size_t i = 0; i < f->n_formats; i++) {
        char *format = metrics_label("format", f->formats[i].format);
        p->failed |= !format;
        if (format) {
            add(p, "%s{%s,kind=\"live\"} %" PRIu64 "\n", NAME, format, f->formats[i].live_bytes);
            add(p, "%s{%s,kind=\"stored\"} %" PRIu64 "\n", NAME, format,
                f->formats[i].stored_bytes);
        }
        free(format);
    }
}

static void cache_figures(struct metrics_page *p, const struct server_figures *f) {
    const kvasir_engine_stats *s = &f->engine;
    cache_bytes(p, f);
    gauge(p, "kvasir_cache_budget_bytes", "", (double)s->budget_bytes, "The cache's budget.");
    gauge(p, "kvasir_cache_used_bytes", "", (double)s->used_bytes, "Bytes of the budget in use.");
    gauge(p, "kvasir_cache_resident_bytes", "", (double)s->resident_bytes,
          "Memory of the cache: used, or free and kept for the next pages.");
    gauge(p, "kvasir_cache_peak_bytes", "", (double)s->peak_bytes, "Most bytes ever in use.");
    gauge(p, "kvasir_cache_stored_bytes", "", (double)s->stored_bytes,
          "Bytes held by stored prefixes only, which eviction can free.");
    gauge(p, "kvasir_cache_entries", "", (double)s->stored_entries,
          "Stored prompts that no other stored prompt extends.");
    gauge(p, "kvasir_cache_stored_tokens", "", (double)s->stored_tokens,
          "Tokens in the prefix tree, including those of running requests.");
    family(p, "kvasir_prefix_hits_total", "counter",
           "Requests by how their prompt matched the prefix cache.");
    for (int i = 0; i < KVASIR_HIT_KINDS; i++)
        labelled(p, "kvasir_prefix_hits_total", "kind", kvasir_hit_text((kvasir_hit)i), s->hits[i]);
    family(p, "kvasir_prefix_misses_total", "counter",
           "Requests by why no more of their prompt came from the prefix cache.");
    for (int i = 0; i < KVASIR_MISS_KINDS; i++)
        labelled(p, "kvasir_prefix_misses_total", "why", kvasir_miss_text((kvasir_miss)i),
                 s->misses[i]);
    gauge(p, "kvasir_cache_pinned_bytes", "", (double)s->pinned_bytes,
          "Bytes of prefixes that requests pinned, at the time.");
    counter(p, "kvasir_cache_expired_tokens_total", "", s->expired_tokens,
            "Tokens of stored prefixes that were removed because their time was over.");
    counter(p, "kvasir_cache_evicted_pages_total", "", s->evicted_pages,
            "Pages and states of stored prefixes that were evicted.");
    counter(p, "kvasir_cache_store_rejections_total", "", s->store_rejections,
            "Times that a prefix could not be stored for lack of room.");
    counter(p, "kvasir_requantized_pages_total", "", s->requantized_pages,
            "Pages encoded again in fewer bits.");
    counter(p, "kvasir_rerun_tokens_total", "", s->rerun_tokens,
            "Tokens computed again after a preemption.");
}

/* One family of all tiers. */
#define TIER_FAMILY(name_, type, sample, member, help)                                             \
    do {                                                                                           \
        family(p, name_, type, help);                                                              \
        for (size_t i = 0; i < f->n_tiers; i++) {                                                  \
            char of[64];                                                                           \
            snprintf(of, sizeof of, "tier=\"%s\"", f->tiers[i].name);                              \
            sample(p, name_, of, f->tiers[i].member);                                              \
        }                                                                                          \
    } while (0)

static void tier_reads(struct metrics_page *p, const struct server_figures *f) {
    static const char NAME[] = "kvasir_tier_reads_total";
    family(p, NAME, "counter", "Records that were asked for, by tier and result.");
    for (size_t i = 0; i < f->n_tiers; i++) {
        const kvasir_tier_stats *t = &f->tiers[i];
        const struct {
            const char *result;
            uint64_t n;
        } results[] = {{"ok", t->reads},
                       {"missing", t->missing},
                       {"damaged", t->damaged},
                       {"failed", t->failed}};
        for (size_t k = 0; k < sizeof results / sizeof *results; k++)
            add(p, "%s{tier=\"%s\",result=\"%s\"} %" PRIu64 "\n", NAME, t->name, results[k].result,
                results[k].n);
    }
}

static void tier_stores(struct metrics_page *p, const struct server_figures *f) {
    TIER_FAMILY("kvasir_tier_store_hit_pages_total", "counter", whole, hit_pages,
                "Pages of 64 tokens that hits had from the tier.");
    TIER_FAMILY("kvasir_tier_store_loads_total", "counter", whole, loads,
                "Loads that were begun with records of the tier.");
    TIER_FAMILY("kvasir_tier_store_loads_late_total", "counter", whole, loads_late,
                "Loads and questions that were given up while the tier was waited for.");
    TIER_FAMILY("kvasir_tier_store_loads_slow_total", "counter", whole, loads_slow,
                "Loads and questions that were not begun because computing is faster.");
    tier_reads(p, f);
    TIER_FAMILY("kvasir_tier_read_bytes_total", "counter", whole, read_bytes,
                "Bytes of pages that were read.");
    TIER_FAMILY("kvasir_tier_read_seconds_total", "counter", real, read_seconds,
                "Time spent in reads that succeeded.");
    TIER_FAMILY("kvasir_tier_writes_total", "counter", whole, writes, "Records written.");
    TIER_FAMILY("kvasir_tier_write_bytes_total", "counter", whole, write_bytes, "Bytes written.");
    TIER_FAMILY("kvasir_tier_write_failures_total", "counter", whole, write_failures,
                "Records that could not be written.");
    TIER_FAMILY("kvasir_tier_dropped_records_total", "counter", whole, dropped,
                "Records that made room for others, expired or were forgotten.");
    TIER_FAMILY("kvasir_tier_records", "gauge", whole, records,
                "Records in the tier; 0 if others write to it, too.");
    TIER_FAMILY("kvasir_tier_bytes", "gauge", whole, bytes,
                "Bytes in the tier; 0 if others write to it, too.");
    TIER_FAMILY("kvasir_tier_limit_bytes", "gauge", whole, limit_bytes,
                "Bytes that the tier may take; 0: the server sets no limit.");
    TIER_FAMILY("kvasir_tier_down", "gauge", whole, down,
                "1 while the tier does nothing, after errors.");
}

static void tier_figures(struct metrics_page *p, const struct server_figures *f) {
    const kvasir_engine_stats *s = &f->engine;
    if (!f->n_tiers)
        return;
    counter(p, "vllm:external_prefix_cache_queries_total", p->model,
            s->prompt_tokens - s->cached_tokens + s->tier_tokens,
            "Prompt tokens that were not in memory.");
    counter(p, "vllm:external_prefix_cache_hits_total", p->model, s->tier_tokens,
            "Prompt tokens of them that the tiers had.");
    counter(p, "kvasir_tier_loads_total", "", s->tier_loads, "Loads that were begun.");
    counter(p, "kvasir_tier_loads_cut_total", "", s->tier_loads_cut,
            "Loads that ended before a record that was missing or damaged.");
    counter(p, "kvasir_tier_loads_late_total", "", s->tier_loads_late,
            "Loads that were given up because they took too long.");
    counter(p, "kvasir_tier_loads_slow_total", "", s->tier_loads_slow,
            "Loads that were not begun because computing is faster.");
    counter(p, "kvasir_tier_hit_tokens_total", "", s->tier_tokens,
            "Tokens that loads added to hits, beyond what was in memory.");
    counter(p, "kvasir_tier_offered_pages_total", "", s->tier_offered_pages,
            "Pages of 64 tokens that were given to the tiers, each tier counted.");
    counter(p, "kvasir_tier_unwritten_pages_total", "", s->tier_unwritten_pages,
            "Pages of 64 tokens of them that were given up, or that a tier did not take.");
    tier_stores(p, f);
}

static void warm(struct metrics_page *p, const struct warm_figures *w) {
    if (!w->prompts)
        return;
    gauge(p, "kvasir_warm_prompts", "", (double)w->prompts,
          "Prompts that the server is to put into its cache.");
    gauge(p, "kvasir_warm_running", "", w->state == WARM_RUNNING,
          "1 until no more of them are put into the cache.");
    family(p, "kvasir_warm_prompts_done_total", "counter", "Those that have run, by result.");
    labelled(p, "kvasir_warm_prompts_done_total", "result", "ok", w->done);
    labelled(p, "kvasir_warm_prompts_done_total", "result", "failed", w->failed);
    family(p, "kvasir_warm_tokens_total", "counter", "Their tokens, by where they came from.");
    labelled(p, "kvasir_warm_tokens_total", "from", "computed", w->computed_tokens);
    labelled(p, "kvasir_warm_tokens_total", "from", "cache", w->cached_tokens);
}

static void grammars(struct metrics_page *p, const struct grammar_figures *g) {
    family(p, "kvasir_grammars_total", "counter",
           "Grammars of answers (schemas, tools, expressions) that requests asked for, by result.");
    labelled(p, "kvasir_grammars_total", "result", "compiled", g->compiled);
    labelled(p, "kvasir_grammars_total", "result", "cached", g->hits);
    labelled(p, "kvasir_grammars_total", "result", "refused", g->refused);
    family(p, "kvasir_grammar_compile_seconds_total", "counter",
           "Time spent in compiling grammars, refused ones included.");
    real(p, "kvasir_grammar_compile_seconds_total", "", g->seconds);
    gauge(p, "kvasir_grammars_kept", "", (double)g->entries,
          "Compiled grammars that are kept for later requests.");
    gauge(p, "kvasir_grammars_kept_bytes", "", (double)g->bytes, "Memory that they take.");
}

static void answers_of_grammars(struct metrics_page *p, const kvasir_engine_stats *s) {
    counter(p, "kvasir_grammar_forced_tokens_total", "", s->forced_tokens,
            "Tokens of answers that were the only ones their grammar allowed.");
    counter(p, "kvasir_grammar_masks_total", "", s->masks,
            "Times that the tokens that a grammar allows next were found, beside a step.");
    family(p, "kvasir_grammar_mask_seconds_total", "counter", "Time spent on that.");
    real(p, "kvasir_grammar_mask_seconds_total", "", s->mask_seconds);
    counter(p, "kvasir_grammar_mask_waits_total", "", s->mask_waits,
            "Times that the engine waited for them after a step.");
    family(p, "kvasir_grammar_mask_wait_seconds_total", "counter", "Time of those waits.");
    real(p, "kvasir_grammar_mask_wait_seconds_total", "", s->mask_wait_seconds);
}

static void requests_refused(struct metrics_page *p, const struct counts *c, size_t n_models) {
    static const char *const REASONS[REFUSAL_KINDS] = {
        [REFUSED_QUEUE] = "queue",   [REFUSED_CONTEXT] = "context", [REFUSED_BUDGET] = "budget",
        [REFUSED_BODY] = "body",     [REFUSED_SIZE] = "size",       [REFUSED_KEY] = "key",
        [REFUSED_TIME] = "time",     [REFUSED_QUOTA] = "quota",     [REFUSED_DRAINING] = "draining",
        [REFUSED_MEMORY] = "memory", [REFUSED_MODEL] = "model",
    };
    const int n = n_models ? REFUSAL_KINDS : REFUSED_MODEL; /* which is the last one */
    family(p, "kvasir_requests_refused_total", "counter", "Requests that never ran, by reason.");
    for (int i = 0; i < n; i++)
        labelled(p, "kvasir_requests_refused_total", "reason", REASONS[i], c->refused[i]);
    family(p, "kvasir_http_requests_total", "counter", "HTTP responses by route and code.");
    for (size_t i = 0; i < c->n_http; i++)
        add(p, "kvasir_http_requests_total{route=\"%s\",code=\"%u\"} %" PRIu64 "\n",
            c->http[i].route, c->http[i].code, c->http[i].n);
}

static void steps(struct metrics_page *p, const kvasir_engine_stats *s) {
    double bounds[KVASIR_STEP_COUNTS - 1];
    struct histogram h = {.bounds = bounds, .n = KVASIR_STEP_COUNTS - 1, .sum = s->step_seconds};
    for (int i = 0; i < KVASIR_STEP_COUNTS - 1; i++)
        bounds[i] = KVASIR_STEP_SECONDS(i);
    memcpy(h.counts, s->step_counts, sizeof s->step_counts);
    histogram(p, "kvasir_step_seconds", "", &h, "Duration of an engine step.");
}

static void traces(struct metrics_page *p, const struct otlp_figures *t) {
    static const char NAME[] = "kvasir_traces_total";
    if (!t->on)
        return;
    family(p, NAME, "counter",
           "Requests whose spans the collector took, did not take, or that were never sent to it.");
    labelled(p, NAME, "result", "sent", t->sent);
    labelled(p, NAME, "result", "failed", t->failed);
    labelled(p, NAME, "result", "dropped", t->dropped);
}

static void process(struct metrics_page *p, const struct server_figures *f) {
    char *version = metrics_label("version", kvasir_version()),
         *tier = metrics_label("cpu_tier", f->cpu_tier ? f->cpu_tier : "");
    gauge(p, "kvasir_request_memory_limit_bytes", "", (double)f->requests.limit,
          "Memory that requests may own.");
    gauge(p, "kvasir_request_memory_used_bytes", "", (double)f->requests.held,
          "Memory that requests own: bodies, JSON, texts, tokens, answers.");
    gauge(p, "kvasir_request_memory_peak_bytes", "", (double)f->requests.peak,
          "Most memory that requests ever owned.");
    gauge(p, "kvasir_responses_kept", "", (double)f->kept_responses,
          "Answers of /v1/responses that are kept.");
    gauge(p, "kvasir_responses_kept_bytes", "", (double)f->kept_bytes,
          "Memory of kept answers of /v1/responses, part of what requests own.");
    gauge(p, "kvasir_sessions", "", (double)f->sessions, "Sessions (/v1/sessions).");
    gauge(p, "kvasir_sessions_bytes", "", (double)f->session_bytes,
          "Memory of sessions, their pages not among it; part of what requests own.");
    gauge(p, "kvasir_connections", "", f->connections, "Open connections.");
    gauge(p, "kvasir_requests_unread", "", f->unread, "Requests that wait to be parsed.");
    gauge(p, "kvasir_uptime_seconds", "", f->uptime_s, "Seconds since the server started.");
    if (f->resident_bytes)
        gauge(p, "process_resident_memory_bytes", "", (double)f->resident_bytes,
              "Resident memory size in bytes.");
    family(p, "kvasir_build_info", "gauge", "Always 1.");
    p->failed |= !version || !tier;
    if (version && tier)
        add(p, "kvasir_build_info{%s,%s} 1\n", version, tier);
    free(version);
    free(tier);
}

/* One family of all tenants. */
#define TENANT_FAMILY(name, type, member, help)                                                    \
    do {                                                                                           \
        family(p, name, type, help);                                                               \
        for (size_t i = 0; i < f->n_tenants; i++)                                                  \
            whole(p, name, labels[i], f->tenants[i].member);                                       \
    } while (0)

static void write_tenants(struct metrics_page *p, const struct server_figures *f,
                          char *const *labels) {
    TENANT_FAMILY("kvasir_tenant_requests_total", "counter", requests,
                  "Requests for answers by API key.");
    TENANT_FAMILY("kvasir_tenant_requests_refused_total", "counter", refused,
                  "Requests for answers that never ran.");
    TENANT_FAMILY("kvasir_tenant_prompt_tokens_total", "counter", prompt_tokens,
                  "Tokens of prompts that began to run.");
    TENANT_FAMILY("kvasir_tenant_cached_tokens_total", "counter", cached_tokens,
                  "Prompt tokens found in the prefix cache.");
    TENANT_FAMILY("kvasir_tenant_generation_tokens_total", "counter", generated_tokens,
                  "Generated tokens.");
    TENANT_FAMILY("kvasir_tenant_requests_running", "gauge", running, "Requests that run.");
    TENANT_FAMILY("kvasir_tenant_requests_waiting", "gauge", waiting,
                  "Requests waiting for their first step.");
    TENANT_FAMILY("kvasir_tenant_request_memory_bytes", "gauge", memory_bytes,
                  "Memory that requests own.");
}

static void tenants(struct metrics_page *p, const struct server_figures *f) {
    char **labels = f->n_tenants ? mem_calloc(f->n_tenants, sizeof *labels) : NULL;
    p->failed |= f->n_tenants && !labels;
    for (size_t i = 0; labels && i < f->n_tenants; i++) {
        labels[i] = metrics_label("tenant", f->tenants[i].name);
        p->failed |= !labels[i];
    }
    if (labels && !p->failed)
        write_tenants(p, f, labels);
    for (size_t i = 0; labels && i < f->n_tenants; i++)
        free(labels[i]);
    mem_free(labels);
}

/* ---- several models -------------------------------------------------------------------------- */

#define MODEL_FAMILY(name_, type, value, help)                                                     \
    do {                                                                                           \
        family(p, name_, type, help);                                                              \
        for (size_t i = 0; i < f->n_models; i++)                                                   \
            whole(p, name_, labels[i], (value));                                                   \
    } while (0)

static void write_models(struct metrics_page *p, const struct server_figures *f,
                         char *const *labels) {
    family(p, "kvasir_model_state", "gauge", "1 for the state that the model is in.");
    for (size_t i = 0; i < f->n_models; i++)
        for (enum model_state state = 0; state < MODEL_STATES; state++)
            add(p, "kvasir_model_state{%s,state=\"%s\"} %d\n", labels[i], model_state_text(state),
                f->models[i].view.state == state);
    MODEL_FAMILY("kvasir_model_requests", "gauge", f->models[i].view.leases,
                 "Requests that have the model.");
    MODEL_FAMILY("kvasir_model_requests_waiting", "gauge", f->models[i].view.waiting,
                 "Requests that wait until the model is loaded.");
    MODEL_FAMILY("kvasir_model_loads_total", "counter", f->models[i].view.loads,
                 "Times that the model was loaded.");
    MODEL_FAMILY("kvasir_model_load_failures_total", "counter", f->models[i].view.failures,
                 "Times that the model could not be loaded.");
    MODEL_FAMILY("kvasir_model_unloads_total", "counter", f->models[i].view.unloads,
                 "Times that the model was unloaded.");
    family(p, "kvasir_model_load_seconds", "gauge", "Time of the last load.");
    for (size_t i = 0; i < f->n_models; i++)
        real(p, "kvasir_model_load_seconds", labels[i], f->models[i].view.load_s);
}

static void models(struct metrics_page *p, const struct server_figures *f) {
    char **labels = f->n_models ? mem_calloc(f->n_models, sizeof *labels) : NULL;
    p->failed |= f->n_models && !labels;
    for (size_t i = 0; labels && i < f->n_models; i++) {
        labels[i] = metrics_label("model_name", f->models[i].name);
        p->failed |= !labels[i];
    }
    if (labels && !p->failed)
        write_models(p, f, labels);
    for (size_t i = 0; labels && i < f->n_models; i++)
        free(labels[i]);
    mem_free(labels);
}

static void model_part(struct metrics_page *p, const struct server_figures *f,
                       const struct counts *c) {
    vllm_engine(p, f);
    vllm_requests(p, c);
    cache_figures(p, f);
    tier_figures(p, f);
    warm(p, &f->warm);
    grammars(p, &f->grammars);
    answers_of_grammars(p, &f->engine);
}

char *metrics_text(struct server_metrics *m, const struct server_figures *f, size_t *len) {
    struct counts c;
    struct metrics_page p = {.model = metrics_label("model_name", f->model)};
    metrics_copy(m, &c);
    p.failed = !p.model;
    const bool good = p.model && !f->own, of_model = good && f->part != METRICS_OF_SERVER,
               of_server = good && f->part != METRICS_OF_MODEL;
    if (f->part != METRICS_OF_MODEL)
        tenants(&p, f);
    if (of_model)
        model_part(&p, f, &c);
    if (of_server)
        requests_refused(&p, &c, f->n_models);
    if (of_model)
        steps(&p, &f->engine);
    if (of_server) {
        traces(&p, &f->traces);
        process(&p, f);
        models(&p, f);
    }
    free(p.model);
    if (p.failed) {
        text_free(&p.text);
        return NULL;
    }
    *len = p.text.len;
    return p.text.data;
}
