/* SPDX-License-Identifier: Apache-2.0 */
/* top_read.c: Prometheus' text format, as far as /metrics of Kvasir and vLLM use it: "name value"
 * and "name{label="value",...} value", one a line. A figure that there is of each model is added
 * up.
 */
#include "top.h"

#include <stdlib.h>
#include <string.h>

struct row {
    const char *name;
    size_t offset; /* of a double */
};
#define ROW(name, field)                                                                           \
    { name, offsetof(struct top_sample, field) }
static const struct row ROWS[] = {
    ROW("vllm:num_requests_running", running),
    ROW("vllm:num_requests_waiting", waiting),
    ROW("vllm:request_success_total", finished),
    ROW("vllm:num_preemptions_total", preemptions),
    ROW("vllm:prompt_tokens_total", prompt_tokens),
    ROW("vllm:prompt_tokens_cached_total", cached_tokens),
    ROW("vllm:generation_tokens_total", generated),
    ROW("vllm:prefix_cache_queries_total", looked_up),
    ROW("vllm:prefix_cache_hits_total", found),
    ROW("vllm:time_to_first_token_seconds_sum", first_sum),
    ROW("vllm:time_to_first_token_seconds_count", first_n),
    ROW("vllm:inter_token_latency_seconds_sum", between_sum),
    ROW("vllm:inter_token_latency_seconds_count", between_n),
    ROW("vllm:request_queue_time_seconds_sum", queue_sum),
    ROW("vllm:request_queue_time_seconds_count", queue_n),
    ROW("vllm:kv_cache_usage_perc", usage),
    ROW("kvasir_requests_refused_total", refused),
    ROW("kvasir_requests_unread", unread),
    ROW("kvasir_connections", connections),
    ROW("kvasir_cache_budget_bytes", budget),
    ROW("kvasir_cache_used_bytes", used),
    ROW("kvasir_cache_stored_bytes", stored),
    ROW("kvasir_cache_evicted_pages_total", evicted),
    ROW("process_resident_memory_bytes", resident),
    ROW("kvasir_uptime_seconds", uptime),
};
#define TIER_ROW(name, field)                                                                      \
    { name, offsetof(struct top_tier, field) }
static const struct row TIER_ROWS[] = {
    TIER_ROW("kvasir_tier_bytes", bytes),
    TIER_ROW("kvasir_tier_limit_bytes", limit),
    TIER_ROW("kvasir_tier_records", records),
    TIER_ROW("kvasir_tier_store_hit_pages_total", hit_pages),
    TIER_ROW("kvasir_tier_down", down),
};
enum { N_ROWS = sizeof ROWS / sizeof *ROWS, N_TIER_ROWS = sizeof TIER_ROWS / sizeof *TIER_ROWS };

/* The value of a label, without escapes and control characters; false: it is not there. */
static bool label_of(const char *labels, const char *name, char out[TOP_NAME_MAX]) {
    const size_t n = strlen(name);
    size_t k = 0;
    for (const char *at = labels; (at = strstr(at, name)) != NULL; at += n) {
        const bool begins = at == labels || at[-1] == ',';
        if (!begins || at[n] != '=' || at[n + 1] != '"')
            continue;
        for (at += n + 2; *at && *at != '"' && k + 1 < TOP_NAME_MAX; at++) {
            at += *at == '\\' && at[1];
            out[k++] = (unsigned char)*at < 0x20 || *at == 0x7f ? '?' : *at;
        }
        out[k] = 0;
        return true;
    }
    return false;
}

static struct top_tier *tier_of(struct top_sample *s, const char *labels) {
    char name[TOP_NAME_MAX];
    unsigned i = 0;
    if (!label_of(labels, "tier", name))
        return NULL;
    while (i < s->n_tiers && strcmp(s->tiers[i].name, name) != 0)
        i++;
    if (i == TOP_TIERS_MAX)
        return NULL;
    if (i == s->n_tiers)
        memcpy(s->tiers[s->n_tiers++].name, name, sizeof name);
    return &s->tiers[i];
}

static bool add_to(const struct row *rows, size_t n, void *to, const char *name, double value) {
    for (size_t i = 0; to && i < n; i++)
        if (strcmp(rows[i].name, name) == 0) {
            *(double *)(void *)((char *)to + rows[i].offset) += value;
            return true;
        }
    return false;
}

static bool read_sample(struct top_sample *s, const char *name, const char *labels, double value) {
    s->kvasir |= strncmp(name, "kvasir_", 7) == 0;
    if (strcmp(name, "kvasir_build_info") == 0)
        return label_of(labels, "version", s->version);
    if (strncmp(name, "kvasir_tier_", 12) == 0)
        return add_to(TIER_ROWS, N_TIER_ROWS, tier_of(s, labels), name, value);
    if (strcmp(name, ROWS[0].name) == 0)
        s->models += label_of(labels, "model_name", s->model);
    return add_to(ROWS, N_ROWS, s, name, value);
}

bool top_read(char *text, struct top_sample *out) {
    bool some = false;
    *out = (struct top_sample){.seconds = clock_seconds()};
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        const size_t n = strcspn(line, "{ ");
        if (*line == '#' || !line[n])
            continue;
        char *value = strrchr(line, ' '), *labels = line + n + 1;
        const bool labelled = line[n] == '{';
        line[n] = 0;
        if (value)
            some |= read_sample(out, line, labelled ? labels : "", strtod(value + 1, NULL));
    }
    return some;
}
