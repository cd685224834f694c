/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of metrics of several models as one; figures with two names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/metrics.h"

#include <cmocka.h>

/* Pages of two models and the server's: a family stands once, also if a page lacks it. */
static void test_join(void **state) {
    (void)state;
    char one[] = "# HELP a x\n# TYPE a gauge\na 1\n"
                 "# HELP c y\n# TYPE c histogram\nc_bucket{le=\"1\"} 2\nc_sum 3\n",
         two[] = "# HELP a x\n# TYPE a gauge\na 4\n# HELP ab z\n# TYPE ab gauge\nab{t=\"{\"} 5\n"
                 "# HELP c y\n# TYPE c histogram\nc_bucket{model_name=\"q\",le=\"1\"} 6\n",
         own[] = "# HELP d w\n# TYPE d counter\nd 7\n";
    char *const pages[] = {one, two, own};
    const char *const names[] = {"m", "n\"", NULL};
    size_t len;
    char *text = metrics_join(pages, names, 3, &len);
    assert_string_equal(text, "# HELP a x\n# TYPE a gauge\na{model_name=\"m\"} 1\n"
                              "a{model_name=\"n\\\"\"} 4\n"
                              "# HELP c y\n# TYPE c histogram\n"
                              "c_bucket{model_name=\"m\",le=\"1\"} 2\nc_sum{model_name=\"m\"} 3\n"
                              "c_bucket{model_name=\"q\",le=\"1\"} 6\n"
                              "# HELP ab z\n# TYPE ab gauge\nab{model_name=\"n\\\"\",t=\"{\"} 5\n"
                              "# HELP d w\n# TYPE d counter\nd 7\n");
    assert_int_equal(len, strlen(text));
    mem_free(text);
}

/* A copy of the samples of a family, from its first one. */
static char *samples_of(const char *text, const char *family) {
    char type[128];
    snprintf(type, sizeof type, "# TYPE %s ", family);
    const char *at = strstr(text, type), *end = at ? strstr(at, "\n#") : NULL;
    assert_true(at && end);
    at = strchr(at, '\n');
    return strndup(at, (size_t)(end - at));
}

/* What vLLM renamed has the same samples under its older name, which dashboards still have. */
static void test_older_names(void **state) {
    static const char *const NAMES[][2] = {
        {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},
        {"vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"},
        {"vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"},
        {"vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"}};
    const struct server_figures f = {.model = "m",
                                     .engine = {.used_bytes = 60,
                                                .stored_bytes = 10,
                                                .budget_bytes = 100,
                                                .prompt_tokens = 7,
                                                .cached_tokens = 3}};
    struct metrics_request r;
    struct server_metrics *m = metrics_create(100, 1);
    (void)state;
    metrics_submitted(&r, 1);
    for (int64_t t = 2; t < 9; t++)
        metrics_event(m, &r, &(kvasir_event){.kind = KVASIR_EVENT_TOKEN}, t * 10000);
    size_t len;
    char *text = metrics_text(m, &f, &len);
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        char *now = samples_of(text, NAMES[i][0]), *older = samples_of(text, NAMES[i][1]);
        const char *a = now, *b = older;
        for (; (a = strchr(a, '{')) && (b = strchr(b, '{')); a++, b++)
            assert_memory_equal(a, b, strcspn(a, "\n"));
        assert_true(a == NULL && strchr(b, '{') == NULL);
        free(now);
        free(older);
    }
    assert_non_null(strstr(text, "vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.5\n"));
    assert_non_null(strstr(text, "vllm:time_per_output_token_seconds_count{model_name=\"m\"} 6\n"));
    mem_free(text);
    metrics_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_join),
                                       cmocka_unit_test(test_older_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
