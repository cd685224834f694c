/* SPDX-License-Identifier: Apache-2.0 */
/* What a server counts and reports: a request's life in histograms, the text of /metrics parsed by
 * the rules of its format, the JSON reports; and all of it over a running engine. */
#include <pthread.h>

#include "model_files.h"

#include "answers.h"
#include "series.h"
#include "server/status_json.h"
#include "tensors.h"

enum { S = 1000000 };

static struct server_metrics *m;
static struct server_figures figures;

static void scrape(void) {
    size_t len;
    char *text = metrics_text(m, &figures, &len);
    assert_non_null(text);
    assert_int_equal(strlen(text), len);
    read_text(text);
    check_histograms();
    free(text);
}

/* ---- a request's life ------------------------------------------------------------------------ */

static void begin_at(uint32_t max_tokens, int64_t now_us) {
    metrics_destroy(m);
    m = metrics_create(max_tokens, now_us);
    assert_non_null(m);
    figures = (struct server_figures){.model = "tiny", .cpu_tier = "ref"};
}

static void event(struct metrics_request *r, kvasir_event_kind kind, uint32_t done,
                  uint32_t completion, int64_t now_us) {
    const kvasir_event e = {.kind = kind,
                            .prompt_tokens = 100,
                            .cached_tokens = 40,
                            .prompt_done = done,
                            .completion_tokens = completion,
                            .finish = KVASIR_FINISH_STOP,
                            .last = kind == KVASIR_EVENT_DONE};
    metrics_event(m, r, &e, now_us);
}

#define BUCKET(name, le) "vllm:" name "_bucket{model_name=\"tiny\",le=\"" le "\"}"
#define ONE(name)        "vllm:" name "{model_name=\"tiny\"}"

static void test_a_life(void **state) {
    struct metrics_request r;
    (void)state;
    begin_at(4096, 5 * S);
    metrics_submitted(&r, 10 * S);
    event(&r, KVASIR_EVENT_START, 40, 0, 10 * S + 400000);      /* queue: 0.4 s */
    event(&r, KVASIR_EVENT_PROGRESS, 70, 0, 10 * S + 500000);   /* 30 tokens computed */
    event(&r, KVASIR_EVENT_TOKEN, 100, 1, 11 * S);              /* 30 more */
    event(&r, KVASIR_EVENT_TOKEN, 100, 2, 11 * S + 30000);      /* 30 ms */
    event(&r, KVASIR_EVENT_TOKEN, 100, 3, 11 * S + 30000 + 10); /* 10 us */
    event(&r, KVASIR_EVENT_DONE, 100, 4, 12 * S);
    scrape();
    assert_true(value(BUCKET("request_queue_time_seconds", "0.3")) == 0);
    assert_true(value(BUCKET("request_queue_time_seconds", "0.5")) == 1);
    assert_true(value(ONE("request_queue_time_seconds_sum")) == 0.4);
    assert_true(value(BUCKET("time_to_first_token_seconds", "0.75")) == 0);
    assert_true(value(BUCKET("time_to_first_token_seconds", "1.0")) == 1); /* inclusive bounds */
    assert_true(value(BUCKET("request_prefill_time_seconds", "0.5")) == 0);
    assert_true(value(BUCKET("request_prefill_time_seconds", "0.8")) == 1);
    assert_true(value(BUCKET("inter_token_latency_seconds", "0.01")) == 1);
    assert_true(value(BUCKET("inter_token_latency_seconds", "0.05")) == 2);
    assert_true(value(ONE("inter_token_latency_seconds_count")) == 2);
    assert_true(value(ONE("e2e_request_latency_seconds_sum")) == 2);
    assert_true(value(ONE("request_inference_time_seconds_sum")) == 1.6);
    assert_true(value(BUCKET("request_time_per_output_token_seconds", "0.025")) == 1);
    assert_true(value(ONE("request_prefill_kv_computed_tokens_sum")) == 60);
    assert_true(value(BUCKET("request_prompt_tokens", "50.0")) == 0);
    assert_true(value(BUCKET("request_prompt_tokens", "100.0")) == 1);
    assert_true(value(BUCKET("request_generation_tokens", "2.0")) == 0);
    assert_true(value(BUCKET("request_generation_tokens", "5.0")) == 1);
    assert_non_null(find(BUCKET("request_generation_tokens", "2000.0")));
    assert_null(find(BUCKET("request_generation_tokens", "5000.0"))); /* > max_tokens */
    assert_true(value("vllm:request_success_total{model_name=\"tiny\",finished_reason=\"stop\"}") ==
                1);
    assert_true(
        value("vllm:request_success_total{model_name=\"tiny\",finished_reason=\"abort\"}") == 0);
}

/* A phase that did not happen is not observed; a clock that goes back counts as zero time. */
static void test_lives_cut_short(void **state) {
    (void)state;
    struct metrics_request r;
    const kvasir_event cancelled = {.kind = KVASIR_EVENT_DONE,
                                    .prompt_tokens = 100,
                                    .finish = KVASIR_FINISH_CANCELLED,
                                    .last = true};
    begin_at(0, S);
    metrics_submitted(&r, S);
    metrics_event(m, &r, &cancelled, 3 * S); /* in the queue */
    metrics_submitted(&r, S);
    event(&r, KVASIR_EVENT_START, 0, 0, 2 * S);
    metrics_event(m, &r, &cancelled, 3 * S); /* in its prompt */
    metrics_submitted(&r, 9 * S);
    event(&r, KVASIR_EVENT_START, 0, 0, 8 * S);
    event(&r, KVASIR_EVENT_TOKEN, 100, 1, 7 * S);
    event(&r, KVASIR_EVENT_TOKEN, 100, 2, 6 * S);
    scrape();
    assert_true(
        value("vllm:request_success_total{model_name=\"tiny\",finished_reason=\"abort\"}") == 2);
    assert_true(value(ONE("request_queue_time_seconds_count")) == 2);
    assert_true(value(ONE("request_queue_time_seconds_sum")) == 1);
    assert_true(value(ONE("request_prefill_time_seconds_count")) == 1);
    assert_true(value(ONE("request_prefill_time_seconds_sum")) == 0);
    assert_true(value(ONE("inter_token_latency_seconds_sum")) == 0);
    assert_true(value(ONE("e2e_request_latency_seconds_count")) == 1);
    assert_true(value(ONE("request_decode_time_seconds_count")) == 0);
    assert_true(value(BUCKET("request_prompt_tokens", "1000000.0")) == 2); /* for any length */
}

/* Four choices of one request: each one ends, the request ends once. */
static void test_choices(void **state) {
    struct metrics_request r;
    (void)state;
    begin_at(100, S);
    metrics_submitted(&r, S);
    event(&r, KVASIR_EVENT_START, 0, 0, S);
    for (uint32_t step = 1; step <= 3; step++)
        for (uint32_t c = 0; c < 4; c++) {
            const kvasir_event e = {
                .kind = KVASIR_EVENT_TOKEN, .choice = c, .completion_tokens = step};
            metrics_event(m, &r, &e, S + step * 20000);
        }
    for (uint32_t c = 0; c < 4; c++) {
        const kvasir_event e = {.kind = KVASIR_EVENT_DONE,
                                .choice = c,
                                .completion_tokens = 3,
                                .finish = KVASIR_FINISH_LENGTH,
                                .last = c == 3};
        metrics_event(m, &r, &e, 2 * S);
    }
    scrape();
    assert_true(value(ONE("inter_token_latency_seconds_count")) == 2);
    assert_true(value(BUCKET("inter_token_latency_seconds", "0.01")) == 0);
    assert_true(value(ONE("request_generation_tokens_count")) == 4);
    assert_true(value(ONE("request_max_num_generation_tokens_sum")) == 3);
    assert_true(value(ONE("e2e_request_latency_seconds_count")) == 1);
    assert_true(
        value("vllm:request_success_total{model_name=\"tiny\",finished_reason=\"length\"}") == 4);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void test_labels_are_escaped(void **state) {
    (void)state;
    begin_at(100, S);
    figures.model = "a\"b\\c\nd{e=\"f\"} \xc3\xa4";
    scrape();
    const char *name = "vllm:num_requests_running{model_name=\"a\\\"b\\\\c\\nd{e=\\\"f\\\"} "
                       "\xc3\xa4\"}";
    assert_non_null(find(name));
    figures.model = "";
    scrape();
    assert_non_null(find("vllm:num_requests_running{model_name=\"\"}"));
    char long_name[3000];
    memset(long_name, '"', sizeof long_name);
    long_name[sizeof long_name - 1] = 0;
    figures.model = long_name;
    size_t len;
    char *text = metrics_text(m, &figures, &len);
    assert_true(text && len > 100 * 6000);
    free(text);
}

static void test_routes_and_refusals(void **state) {
    (void)state;
    static char routes[METRICS_HTTP_MAX][20];
    begin_at(100, S);
    metrics_http(m, "chat", 200);
    metrics_http(m, "chat", 429);
    metrics_http(m, "chat", 200);
    metrics_http(m, "health", 200);
    for (int i = 0; i < REFUSAL_KINDS; i++)
        for (int k = 0; k <= i; k++)
            metrics_refused(m, (enum metrics_refusal)i);
    assert_int_equal(metrics_refusal_of(KVASIR_ERR_BUSY), REFUSED_QUEUE);
    assert_int_equal(metrics_refusal_of(KVASIR_ERR_CONTEXT), REFUSED_CONTEXT);
    assert_int_equal(metrics_refusal_of(KVASIR_ERR_BUDGET), REFUSED_BUDGET);
    assert_int_equal(metrics_refusal_of(KVASIR_ERR_ARGUMENT), REFUSED_BODY);
    scrape();
    assert_true(value("kvasir_http_requests_total{route=\"chat\",code=\"200\"}") == 2);
    assert_true(value("kvasir_http_requests_total{route=\"chat\",code=\"429\"}") == 1);
    assert_true(value("kvasir_requests_refused_total{reason=\"queue\"}") == 1);
    assert_true(value("kvasir_requests_refused_total{reason=\"draining\"}") ==
                REFUSED_DRAINING + 1);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < METRICS_HTTP_MAX; i++) {
            snprintf(routes[i], sizeof routes[i], "route%d", i);
            metrics_http(m, routes[i], 404);
        }
    scrape();
    assert_true(value("kvasir_http_requests_total{route=\"other\",code=\"0\"}") == 3 * 3);
    assert_true(value("kvasir_http_requests_total{route=\"route0\",code=\"404\"}") == 3);
}

/* All tenants for the operator; for one of them nothing that depends on others. */
static void test_tenants(void **state) {
    (void)state;
    static const struct tenant_figures TENANTS[] = {
        {.name = "a\"b", .requests = 5, .refused = 2, .running = 1, .memory_bytes = 16384},
        {.name = "c", .prompt_tokens = 7, .cached_tokens = 6, .generated_tokens = 3, .waiting = 4}};
    begin_at(100, S);
    figures.tenants = TENANTS;
    figures.n_tenants = 2;
    scrape();
    assert_true(value("kvasir_tenant_requests_total{tenant=\"a\\\"b\"}") == 5);
    assert_true(value("kvasir_tenant_requests_refused_total{tenant=\"a\\\"b\"}") == 2);
    assert_true(value("kvasir_tenant_requests_running{tenant=\"a\\\"b\"}") == 1);
    assert_true(value("kvasir_tenant_request_memory_bytes{tenant=\"a\\\"b\"}") == 16384);
    assert_true(value("kvasir_tenant_prompt_tokens_total{tenant=\"c\"}") == 7);
    assert_true(value("kvasir_tenant_cached_tokens_total{tenant=\"c\"}") == 6);
    assert_true(value("kvasir_tenant_generation_tokens_total{tenant=\"c\"}") == 3);
    assert_true(value("kvasir_tenant_requests_waiting{tenant=\"c\"}") == 4);
    assert_non_null(find("kvasir_uptime_seconds"));
    figures.own = true;
    figures.n_tenants = 1;
    scrape();
    assert_non_null(find("kvasir_tenant_requests_total{tenant=\"a\\\"b\"}"));
    size_t len;
    char *text = metrics_text(m, &figures, &len);
    for (const char *at = text; *at; at = strchr(at, '\n') + 1)
        if (*at != '#' && strncmp(at, "kvasir_tenant_", 14) != 0)
            fail_msg("a tenant sees: %.60s", at);
    assert_null(strstr(text, "\"c\""));
    free(text);
}

static void have_two_tiers(void) {
    figures.engine.tier_loads = 9;
    figures.engine.tier_loads_cut = 2;
    figures.engine.tier_loads_late = 1;
    figures.engine.tier_loads_slow = 4;
    figures.engine.tier_tokens = 6400;
    figures.engine.tier_offered_pages = 70;
    figures.engine.tier_unwritten_pages = 5;
    figures.n_tiers = 2;
    figures.tiers[0] = (kvasir_tier_stats){.name = "disk",
                                           .records = 50,
                                           .bytes = 1ull << 40,
                                           .limit_bytes = 3ull << 40,
                                           .reads = 11,
                                           .read_bytes = 123456789012345,
                                           .writes = 65,
                                           .write_bytes = 8192,
                                           .missing = 12,
                                           .damaged = 13,
                                           .failed = 14,
                                           .write_failures = 15,
                                           .dropped = 16,
                                           .read_seconds = 0.25,
                                           .hit_pages = 17,
                                           .loads = 18,
                                           .loads_late = 19,
                                           .loads_slow = 20};
    figures.tiers[1] = (kvasir_tier_stats){.name = "remote", .down = true};
}

/* Stores below the memory: each has its own series, and without any there are none. */
static void test_tiers(void **state) {
    (void)state;
    begin_at(100, S);
    scrape();
    for (size_t i = 0; i < n_series; i++)
        assert_null(strstr(read_back[i].name, "kvasir_tier_"));
    have_two_tiers();
    scrape();
    assert_true(value("kvasir_tier_loads_total") == 9);
    assert_true(value("kvasir_tier_loads_cut_total") == 2);
    assert_true(value("kvasir_tier_loads_late_total") == 1);
    assert_true(value("kvasir_tier_loads_slow_total") == 4);
    assert_true(value("kvasir_tier_hit_tokens_total") == 6400);
    assert_true(value("kvasir_tier_offered_pages_total") == 70);
    assert_true(value("kvasir_tier_unwritten_pages_total") == 5);
    assert_true(value("kvasir_tier_reads_total{tier=\"disk\",result=\"ok\"}") == 11);
    assert_true(value("kvasir_tier_reads_total{tier=\"disk\",result=\"missing\"}") == 12);
    assert_true(value("kvasir_tier_reads_total{tier=\"disk\",result=\"damaged\"}") == 13);
    assert_true(value("kvasir_tier_reads_total{tier=\"disk\",result=\"failed\"}") == 14);
    assert_true(value("kvasir_tier_reads_total{tier=\"remote\",result=\"ok\"}") == 0);
    assert_true(value("kvasir_tier_read_bytes_total{tier=\"disk\"}") == 123456789012345);
    assert_true(value("kvasir_tier_read_seconds_total{tier=\"disk\"}") == 0.25);
    assert_true(value("kvasir_tier_writes_total{tier=\"disk\"}") == 65);
    assert_true(value("kvasir_tier_write_bytes_total{tier=\"disk\"}") == 8192);
    assert_true(value("kvasir_tier_write_failures_total{tier=\"disk\"}") == 15);
    assert_true(value("kvasir_tier_dropped_records_total{tier=\"disk\"}") == 16);
    assert_true(value("kvasir_tier_records{tier=\"disk\"}") == 50);
    assert_true(value("kvasir_tier_store_hit_pages_total{tier=\"disk\"}") == 17);
    assert_true(value("kvasir_tier_store_loads_total{tier=\"disk\"}") == 18);
    assert_true(value("kvasir_tier_store_loads_late_total{tier=\"disk\"}") == 19);
    assert_true(value("kvasir_tier_store_loads_slow_total{tier=\"disk\"}") == 20);
    assert_true(value("kvasir_tier_store_loads_total{tier=\"remote\"}") == 0);
    assert_true(value("kvasir_tier_bytes{tier=\"disk\"}") == (double)(1ull << 40));
    assert_true(value("kvasir_tier_limit_bytes{tier=\"disk\"}") == (double)(3ull << 40));
    assert_true(value("kvasir_tier_down{tier=\"disk\"}") == 0);
    assert_true(value("kvasir_tier_down{tier=\"remote\"}") == 1);
    figures.tenants = &(struct tenant_figures){.name = "a"};
    figures.n_tenants = 1;
    figures.own = true;
    scrape();
    for (size_t i = 0; i < n_series; i++)
        assert_null(strstr(read_back[i].name, "kvasir_tier_"));
}

static void have_warm_prompts(void) {
    figures.warm = (struct warm_figures){.state = WARM_FULL,
                                         .prompts = 9,
                                         .done = 4,
                                         .failed = 1,
                                         .computed_tokens = 500,
                                         .cached_tokens = 64};
}

/* Prompts of --warm-prompts: only with the flag, and not for a tenant. */
static void test_warm_prompts(void **state) {
    (void)state;
    begin_at(100, S);
    scrape();
    for (size_t i = 0; i < n_series; i++)
        assert_null(strstr(read_back[i].name, "kvasir_warm"));
    have_warm_prompts();
    scrape();
    assert_true(value("kvasir_warm_prompts") == 9);
    assert_true(value("kvasir_warm_running") == 0);
    assert_true(value("kvasir_warm_prompts_done_total{result=\"ok\"}") == 4);
    assert_true(value("kvasir_warm_prompts_done_total{result=\"failed\"}") == 1);
    assert_true(value("kvasir_warm_tokens_total{from=\"computed\"}") == 500);
    assert_true(value("kvasir_warm_tokens_total{from=\"cache\"}") == 64);
    json_t *now = status_now(&figures);
    const json_t *warm = json_object_get(now, "warm_prompts");
    assert_string_equal(json_string_value(json_object_get(warm, "state")), "full");
    assert_int_equal(json_integer_value(json_object_get(warm, "done")), 4);
    json_decref(now);
}

/* docs/metrics.md explains every name. */
static void test_names_are_explained(void **state) {
    (void)state;
    FILE *f = fopen(SOURCE_DIR "/docs/metrics.md", "r");
    static char text[40000];
    assert_non_null(f);
    assert_in_range(fread(text, 1, sizeof text - 1, f), 1000, sizeof text - 2);
    fclose(f);
    begin_at(100, S);
    figures.resident_bytes = figures.traces.on = 1;
    figures.tenants = &(struct tenant_figures){.name = "-"};
    figures.n_tenants = 1;
    have_two_tiers();
    have_warm_prompts();
    scrape();
    int n = 0;
    for (char *name = strtok(families, " "); name; name = strtok(NULL, " "), n++) {
        char quoted[220];
        snprintf(quoted, sizeof quoted, "`%s", name);
        const char *at = strstr(text, quoted);
        if (!at || !strchr("`{", at[strlen(quoted)]))
            fail_msg("docs/metrics.md does not say what %s is", name);
    }
    assert_true(n > 35);
}

/* Numbers as large as after years of running keep all their digits. */
static void test_large_numbers(void **state) {
    (void)state;
    begin_at(100, S);
    figures.engine.prompt_tokens = 123456789012345;
    figures.engine.budget_bytes = 1ull << 42;
    figures.engine.used_bytes = 3ull << 40;
    figures.engine.stored_bytes = 1ull << 40;
    figures.engine.step_seconds = 31536000.125;
    figures.engine.step_counts[0] = 1;
    figures.engine.step_counts[3] = 5;
    figures.engine.step_counts[KVASIR_STEP_COUNTS - 1] = 2;
    figures.formats[0] = (kvasir_format_bytes){"K 8 g64, V 4 g64", 1ull << 40, 77};
    figures.n_formats = 1;
    scrape();
    assert_true(value(ONE("prompt_tokens_total")) == 123456789012345);
    assert_true(value("kvasir_cache_budget_bytes") == (double)(1ull << 42));
    assert_true(value(ONE("kv_cache_usage_perc")) == 0.5);
    assert_true(value("kvasir_step_seconds_sum") == 31536000.125);
    assert_true(value("kvasir_step_seconds_bucket{le=\"0.00025\"}") == 1);
    assert_true(value("kvasir_step_seconds_bucket{le=\"0.002\"}") == 6);
    assert_true(value("kvasir_step_seconds_bucket{le=\"16.384\"}") == 6);
    assert_true(value("kvasir_step_seconds_count") == 8);
    assert_true(value("kvasir_cache_bytes{format=\"K 8 g64, V 4 g64\",kind=\"live\"}") ==
                (double)(1ull << 40));
    assert_true(value("kvasir_cache_bytes{format=\"K 8 g64, V 4 g64\",kind=\"stored\"}") == 77);
}

/* Random requests: no counter and no bucket ever falls, and no series disappears. */
static void test_counters_never_fall(void **state) {
    (void)state;
    static struct series before[SERIES_MAX];
    struct metrics_request r[8] = {{0}};
    uint32_t x = 7, tokens[8] = {0};
    size_t n = 0;
    int64_t now = S;
    begin_at(5000, S);
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < 50; i++) {
            x = x * 1664525 + 1013904223;
            const uint32_t k = x >> 29, what = (x >> 20) % 8;
            now += (x >> 8) % (1 << (round % 22));
            if (!r[k].submitted_us || what == 0) {
                metrics_submitted(&r[k], now);
                tokens[k] = 0;
                event(&r[k], KVASIR_EVENT_START, 40, 0, now);
            } else if (what == 1) {
                event(&r[k], KVASIR_EVENT_DONE, 100, tokens[k], now);
                r[k].submitted_us = 0;
            } else {
                event(&r[k], KVASIR_EVENT_TOKEN, 100, ++tokens[k], now);
            }
            metrics_http(m, what % 2 ? "chat" : "models", 200 + what);
        }
        scrape();
        for (size_t i = 0; i < n; i++) {
            const struct series *s = find(before[i].name);
            assert_non_null(s);
            if (s->type != 'g')
                assert_true(s->value >= before[i].value);
        }
        n = n_series;
        memcpy(before, read_back, n * sizeof *before);
    }
}

/* ---- rates ----------------------------------------------------------------------------------- */

static void test_rates(void **state) {
    (void)state;
    struct metrics_request r;
    kvasir_model *model;
    kvasir_error err;
    const kvasir_engine_options o = answers_options(64);
    assert_int_equal(kvasir_model_open(SHARED_DIR "/fixtures/tiny/llama", &model, &err), KVASIR_OK);
    kvasir_engine *e = answers_engine(model, &o);
    begin_at(100, 1000 * (int64_t)S);
    metrics_figures(m, e, 1000 * (int64_t)S, &figures);
    assert_true(figures.generation_tps == 0 && figures.uptime_s == 0);
    metrics_submitted(&r, 1000 * (int64_t)S);
    event(&r, KVASIR_EVENT_START, 40, 0, 1000 * (int64_t)S);
    for (uint32_t i = 1; i <= 20; i++) /* two seconds, ten tokens each */
        event(&r, KVASIR_EVENT_TOKEN, 100, i, 1000 * (int64_t)S + i * 100000 - 1);
    metrics_figures(m, e, 1002 * (int64_t)S, &figures);
    assert_true(figures.generation_tps == 10);
    assert_true(figures.prompt_tps == 30); /* 60 tokens that were not cached */
    metrics_figures(m, e, 1010 * (int64_t)S, &figures);
    assert_true(figures.generation_tps == 2);
    metrics_figures(m, e, 1011 * (int64_t)S + S / 2, &figures); /* without the first second */
    assert_true(figures.generation_tps > 0.9 && figures.generation_tps < 1);
    metrics_figures(m, e, 1013 * (int64_t)S, &figures);
    assert_true(figures.generation_tps == 0 && figures.prompt_tps == 0);
    event(&r, KVASIR_EVENT_TOKEN, 100, 21, 9000 * (int64_t)S);
    event(&r, KVASIR_EVENT_TOKEN, 100, 22, 8000 * (int64_t)S); /* a clock that goes back */
    metrics_figures(m, e, 9000 * (int64_t)S, &figures);
    assert_true(figures.generation_tps == 0.2);
    kvasir_engine_destroy(e);
    kvasir_model_close(model);
}

/* ---- threads --------------------------------------------------------------------------------- */

enum { THREADS = 4, LIVES = 500 };

static void *live_often(void *user) {
    struct metrics_request r;
    (void)user;
    for (int i = 0; i < LIVES; i++) {
        const int64_t now = S + i * 1000;
        metrics_submitted(&r, now);
        event(&r, KVASIR_EVENT_START, 40, 0, now);
        for (uint32_t t = 1; t <= 5; t++)
            event(&r, KVASIR_EVENT_TOKEN, 100, t, now + t * 10);
        event(&r, KVASIR_EVENT_DONE, 100, 5, now + 60);
        metrics_http(m, "chat", 200 + (unsigned)i % 3);
        metrics_refused(m, REFUSED_QUEUE);
        if (i % 100 == 0) {
            size_t len;
            free(metrics_text(m, &figures, &len));
        }
    }
    return NULL;
}

static void test_threads_lose_nothing(void **state) {
    (void)state;
    pthread_t threads[THREADS];
    begin_at(100, S);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, live_often, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    scrape();
    assert_true(value(ONE("inter_token_latency_seconds_count")) == THREADS * LIVES * 4);
    assert_true(value(ONE("e2e_request_latency_seconds_count")) == THREADS * LIVES);
    assert_true(value("kvasir_requests_refused_total{reason=\"queue\"}") == THREADS * LIVES);
    assert_true(value("kvasir_http_requests_total{route=\"chat\",code=\"200\"}") +
                    value("kvasir_http_requests_total{route=\"chat\",code=\"201\"}") +
                    value("kvasir_http_requests_total{route=\"chat\",code=\"202\"}") ==
                THREADS * LIVES);
}

/* ---- JSON, and an engine that runs ----------------------------------------------------------- */

static double number_at(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("%s is no number", key);
    return json_number_value(value);
}

static const char *text_at(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static void test_small_bodies(void **state) {
    (void)state;
    begin_at(100, S);
    figures.model = "org/tiny \"1\"";
    figures.created_s = 1700000000;
    figures.max_model_len = 4096;
    json_t *health = status_health(&figures), *models = status_models(&figures),
           *version = status_version();
    assert_string_equal(text_at(health, "status"), "healthy");
    assert_true(json_is_true(json_object_get(health, "model_loaded")));
    assert_string_equal(text_at(health, "model_name"), "org/tiny \"1\"");
    assert_string_equal(text_at(version, "version"), kvasir_version());
    assert_string_equal(text_at(models, "object"), "list");
    const json_t *one = json_array_get(json_object_get(models, "data"), 0);
    assert_string_equal(text_at(one, "id"), "org/tiny \"1\"");
    assert_string_equal(text_at(one, "object"), "model");
    assert_string_equal(text_at(one, "owned_by"), "kvasir");
    assert_true(number_at(one, "created") == 1700000000 && number_at(one, "max_model_len") == 4096);
    json_decref(health);
    json_decref(models);
    json_decref(version);
    figures.max_model_len = 0; /* rotation: no limit */
    models = status_model(&figures, 0);
    assert_true(json_is_null(json_object_get(models, "max_model_len")));
    json_decref(models);
    figures.model = "\xff";
    assert_null(status_models(&figures));
    assert_null(status_health(&figures));
    assert_null(status_now(&figures));
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static int open_requests;

static int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * (int64_t)S + t.tv_nsec / 1000;
}

static void on_event(void *user, const kvasir_event *e) {
    metrics_event(m, user, e, now_us());
    pthread_mutex_lock(&lock);
    open_requests -= e->last;
    pthread_cond_signal(&ended);
    pthread_mutex_unlock(&lock);
}

static json_t *member_at(const json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    if (!value)
        fail_msg("%s is not there", key);
    return value;
}

/* "tiers" of both bodies, which tenants do not see. */
static void test_tiers_json(void **state) {
    (void)state;
    begin_at(100, S);
    for (int what = 0; what < 2; what++) {
        json_t *(*const body_of)(const struct server_figures *) =
            what ? status_cache_stats : status_now;
        figures = (struct server_figures){.model = "tiny"};
        json_t *body = body_of(&figures);
        assert_non_null(body);
        assert_null(json_object_get(body, "tiers"));
        json_decref(body);
        have_two_tiers();
        body = body_of(&figures);
        const json_t *tiers = member_at(body, "tiers"), *stores = member_at(tiers, "stores"),
                     *disk = json_array_get(stores, 0), *remote = json_array_get(stores, 1);
        assert_int_equal(json_array_size(stores), 2);
        assert_true(number_at(tiers, "loads") == 9 && number_at(tiers, "loads_cut") == 2);
        assert_true(number_at(tiers, "loads_late") == 1 && number_at(tiers, "loads_slow") == 4);
        assert_true(number_at(tiers, "hit_tokens") == 6400);
        assert_true(number_at(tiers, "offered_pages") == 70);
        assert_true(number_at(tiers, "unwritten_pages") == 5);
        assert_string_equal(text_at(disk, "tier"), "disk");
        assert_string_equal(text_at(remote, "tier"), "remote");
        assert_true(number_at(disk, "records") == 50);
        assert_true(number_at(disk, "bytes") == (double)(1ull << 40));
        assert_true(number_at(disk, "limit_bytes") == (double)(3ull << 40));
        const json_t *reads = member_at(disk, "reads");
        assert_true(number_at(reads, "ok") == 11 && number_at(reads, "missing") == 12);
        assert_true(number_at(reads, "damaged") == 13 && number_at(reads, "failed") == 14);
        assert_true(number_at(disk, "read_bytes") == 123456789012345);
        assert_true(number_at(disk, "read_seconds") == 0.25);
        assert_true(number_at(disk, "writes") == 65 && number_at(disk, "write_bytes") == 8192);
        assert_true(number_at(disk, "write_failures") == 15);
        assert_true(number_at(disk, "dropped_records") == 16);
        assert_true(json_is_false(member_at(disk, "down")));
        assert_true(json_is_true(member_at(remote, "down")));
        json_decref(body);
        figures.tenants = &(struct tenant_figures){.name = "a"};
        figures.n_tenants = 1;
        figures.own = true;
        body = body_of(&figures);
        assert_null(json_object_get(body, "tiers"));
        json_decref(body);
    }
}

static void run_requests(kvasir_engine *e, int n, uint32_t prompt, uint32_t answer) {
    static struct metrics_request r[8];
    static int32_t tokens[200];
    kvasir_error err;
    for (int i = 0; i < 200; i++)
        tokens[i] = (i * 7 + 3) % 512;
    open_requests = n;
    for (int i = 0; i < n; i++) {
        kvasir_request q = kvasir_request_defaults();
        q.tokens = tokens;
        q.n_tokens = prompt;
        q.max_tokens = answer;
        q.ignore_end = true;
        q.on_event = on_event;
        q.user = &r[i];
        metrics_submitted(&r[i], now_us());
        assert_int_equal(kvasir_engine_submit(e, &q, NULL, &err), KVASIR_OK);
    }
    pthread_mutex_lock(&lock);
    while (open_requests)
        pthread_cond_wait(&ended, &lock);
    pthread_mutex_unlock(&lock);
    /* figures are updated after a step, so after its last event */
    kvasir_engine_stats stats;
    do {
        usleep(1000);
        kvasir_engine_get_stats(e, &stats);
    } while (stats.running || stats.finished != stats.requests);
}

static void check_status(const kvasir_engine_stats *s) {
    json_t *now = status_now(&figures), *stats = status_cache_stats(&figures);
    assert_non_null(now);
    assert_non_null(stats);
    const json_t *cache = json_object_get(now, "cache"), *hits = json_object_get(cache, "hits");
    assert_string_equal(text_at(now, "status"), "running");
    assert_string_equal(text_at(now, "model"), "tiny");
    assert_true(number_at(now, "num_running") == 0 && number_at(now, "num_waiting") == 0);
    assert_true(number_at(now, "steps_executed") == (double)s->steps);
    assert_true(number_at(now, "total_prompt_tokens") == 5 * 150);
    assert_true(number_at(now, "total_cached_tokens") == (double)s->cached_tokens);
    assert_true(number_at(now, "total_completion_tokens") == 5 * 20);
    assert_true(number_at(now, "total_requests_processed") == 5);
    assert_true(number_at(now, "generation_tps") > 0 && number_at(now, "prompt_tps") > 0);
    assert_true(number_at(cache, "used_bytes") == (double)s->used_bytes);
    assert_true(number_at(cache, "entries") == 1);
    assert_string_equal(text_at(cache, "format"), "K 8 g64, V 4 g64");
    double bytes = 0;
    size_t i;
    json_t *entry;
    json_array_foreach(json_object_get(cache, "by_format"), i, entry) {
        bytes += number_at(entry, "bytes");
        assert_non_null(text_at(entry, "format"));
        assert_string_equal(text_at(entry, "kind"), i % 2 ? "stored" : "live");
    }
    assert_true(bytes == (double)s->used_bytes);
    assert_true(number_at(hits, "miss") == 1 && number_at(cache, "hit_rate") == 0.8);
    assert_true(number_at(hits, "miss") + number_at(hits, "exact") + number_at(hits, "prefix") +
                    number_at(hits, "supersequence") + number_at(hits, "common_prefix") ==
                5);
    assert_true(number_at(stats, "hits") == 4 && number_at(stats, "misses") == 1);
    assert_true(number_at(stats, "hit_rate") == 0.8 && number_at(stats, "entry_count") == 1);
    assert_true(number_at(stats, "tokens_saved") == (double)s->cached_tokens);
    assert_true(number_at(stats, "max_memory_mb") == 64);
    assert_true(number_at(stats, "evictions") == 0 && number_at(stats, "store_rejections") == 0);
    assert_true(number_at(stats, "current_memory_mb") > 0);
    assert_true(number_at(stats, "memory_utilization") > 0);
    assert_true(number_at(json_object_get(stats, "engine_cache"), "hits") == 4);
    json_decref(now);
    json_decref(stats);
}

static void test_an_engine(void **state) {
    (void)state;
    kvasir_model *model;
    kvasir_error err;
    kvasir_engine_options o = answers_options(64);
    o.context.kv_bits = "8,4";
    assert_int_equal(kvasir_model_open(SHARED_DIR "/fixtures/tiny/llama", &model, &err), KVASIR_OK);
    kvasir_engine *e = answers_engine(model, &o);
    begin_at(512, now_us());
    run_requests(e, 1, 150, 20);
    run_requests(e, 4, 150, 20);
    (void)engine_settled(e);
    metrics_figures(m, e, now_us(), &figures);
    const kvasir_engine_stats *s = &figures.engine;
    scrape();
    assert_true(value(ONE("prefix_cache_queries_total")) == 5 * 150);
    assert_true(value(ONE("prefix_cache_hits_total")) == 4 * 149);
    assert_true(value(ONE("generation_tokens_total")) == 5 * 20);
    assert_true(value(ONE("request_generation_tokens_sum")) == 5 * 20);
    assert_true(value(ONE("inter_token_latency_seconds_count")) == 5 * 19);
    assert_true(value(ONE("time_to_first_token_seconds_count")) == 5);
    assert_true(value(ONE("kv_cache_usage_perc")) > 0 && value(ONE("kv_cache_usage_perc")) < 1);
    assert_true(value("kvasir_step_seconds_count") == (double)s->steps);
    assert_true(value("kvasir_prefix_hits_total{kind=\"miss\"}") == 1);
    assert_true(value("kvasir_cache_entries") == 1);
    assert_true(value("process_resident_memory_bytes") > 1 << 20);
    double bytes = 0, stored = 0;
    for (size_t i = 0; i < n_series; i++)
        if (strncmp(read_back[i].name, "kvasir_cache_bytes{", 19) == 0) {
            bytes += read_back[i].value;
            stored += strstr(read_back[i].name, "kind=\"stored\"") ? read_back[i].value : 0;
        }
    assert_true(bytes == value("kvasir_cache_used_bytes"));
    assert_true(value("kvasir_cache_resident_bytes") >= bytes);
    assert_true(stored == value("kvasir_cache_stored_bytes") && stored > 0);
    check_status(s);
    kvasir_engine_destroy(e);
    kvasir_model_close(model);
}

/* Figures of a store come from the engine: an engine that starts again finds the first one's. */
static void test_an_engine_with_a_store(void **state) {
    (void)state;
    struct temp_folder folder;
    kvasir_model *model;
    kvasir_error err;
    kvasir_engine_options o = answers_options(64);
    temp_folder_make(&folder);
    o.cache_dir = folder.path;
    o.cache_disk_bytes = 64 << 20;
    o.cache_flush_seconds = 60;
    assert_int_equal(kvasir_model_open(SHARED_DIR "/fixtures/tiny/llama", &model, &err), KVASIR_OK);
    for (int round = 0; round < 2; round++) {
        kvasir_engine *e = answers_engine(model, &o);
        begin_at(512, now_us());
        run_requests(e, 1, 150, 20);
        metrics_figures(m, e, now_us(), &figures);
        scrape();
        assert_int_equal(figures.n_tiers, 1);
        assert_true(value("kvasir_tier_limit_bytes{tier=\"disk\"}") == 64 << 20);
        assert_true(value("kvasir_tier_down{tier=\"disk\"}") == 0);
        assert_true(value("kvasir_tier_loads_total") == round);
        assert_true(value("kvasir_tier_hit_tokens_total") == 128 * round);
        assert_true(value("kvasir_tier_store_hit_pages_total{tier=\"disk\"}") == 2 * round);
        assert_true(value("kvasir_tier_store_loads_total{tier=\"disk\"}") == round);
        assert_true((value("kvasir_tier_reads_total{tier=\"disk\",result=\"ok\"}") > 0) ==
                    (round > 0));
        assert_true(value("kvasir_tier_reads_total{tier=\"disk\",result=\"damaged\"}") == 0);
        if (round)
            assert_true(value("kvasir_tier_records{tier=\"disk\"}") >= 2);
        kvasir_engine_destroy(e);
    }
    kvasir_model_close(model);
    temp_folder_remove(&folder);
}

int main(void) {
    skip_without(SHARED_DIR "/fixtures/tiny/llama/config.json");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_life),
        cmocka_unit_test(test_lives_cut_short),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_labels_are_escaped),
        cmocka_unit_test(test_routes_and_refusals),
        cmocka_unit_test(test_tenants),
        cmocka_unit_test(test_tiers),
        cmocka_unit_test(test_warm_prompts),
        cmocka_unit_test(test_names_are_explained),
        cmocka_unit_test(test_large_numbers),
        cmocka_unit_test(test_counters_never_fall),
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_threads_lose_nothing),
        cmocka_unit_test(test_small_bodies),
        cmocka_unit_test(test_tiers_json),
        cmocka_unit_test(test_an_engine),
        cmocka_unit_test(test_an_engine_with_a_store),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    metrics_destroy(m);
    return failed;
}
