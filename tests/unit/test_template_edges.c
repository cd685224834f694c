/* SPDX-License-Identifier: Apache-2.0 */
/* Corners of the template language that the larger cases (test_template.c) pass by, found by
 * planting small changes in the source (tools/draw_mutants.py). Texts are jinja2 3.1.6's, those of
 * strftime are Python's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "text/text.h"

#include <cmocka.h>

static const int64_t NOW = 1735776000; /* 2025-01-02 */

static kvasir_status render(const char *source, int64_t now, struct text_buf *out,
                            kvasir_error *err) {
    const struct template_limits limits = template_limits_default();
    json_t *args = json_loads("{\"l\": [3, 1, 2], \"y\": 1}", 0, NULL);
    struct template *t = NULL;
    kvasir_status status = template_parse(source, strlen(source), &t, err);
    if (status == KVASIR_OK)
        status = template_render(t, args, now, &limits, out, err);
    template_destroy(t);
    json_decref(args);
    return status;
}

static void expect(const char *source, int64_t now, const char *text) {
    struct text_buf out = {0};
    kvasir_error err = {0};
    if (render(source, now, &out, &err) != KVASIR_OK)
        fail_msg("%s: %s", source, err.text);
    if (!out.data || strcmp(out.data, text) != 0)
        fail_msg("%s: \"%s\" instead of \"%s\"", source, out.data ? out.data : "", text);
    text_free(&out);
}

static void test_corners(void **state) {
    (void)state;
    static const struct {
        const char *source, *text;
    } cases[] = {
        {"{{ range(3) == range(3) }} {{ range(3) == range(4) }} {{ range(0) == range(5, 5) }} "
         "{{ range(0, 1) == range(0, 1, 7) }} {{ range(3) == range(0, 6, 2) }}",
         "True False True True False"},
        {"{{ range(5, 0, -1)|list }} {{ range(5, 0, -2)|list }}", "[5, 4, 3, 2, 1] [5, 3, 1]"},
        {"{{ 0 in range(3) }} {{ 3 in range(3) }}", "True False"},
        {"{{ '%05d' % -42 }}", "-0042"},
        {"{{ '{:=6d}|{:06d}'.format(-42, -42) }}", "-   42|-00042"},
        {"{{ [1, 2].index(1) }}", "0"},
        {"{% for x in [1, 2] if x == 1 if true else false %}{{ x }}{% endfor %}", "1"},
        {"a{##}b{# c #}d", "abd"},
        {"{{ strftime_now('%C %G-%V %g') }}", "20 2025-01 25"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(cases[i].source, NOW, cases[i].text);
}

/* The first and the last days of a year may belong to a week of the other one. */
static void test_iso_weeks(void **state) {
    (void)state;
    static const struct {
        int64_t now;
        const char *text;
    } cases[] = {
        {1609632000, "2020-53"}, /* 2021-01-03 */
        {1735516800, "2025-01"}, /* 2024-12-30 */
        {1609372800, "2020-53"}, /* 2020-12-31 */
        {1640995200, "2021-52"}, /* 2022-01-01 */
        {1483228800, "2016-52"}, /* 2017-01-01 */
        {1104537600, "2004-53"}, /* 2005-01-01 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect("{{ strftime_now('%G-%V') }}", cases[i].now, cases[i].text);
}

static void test_errors(void **state) {
    (void)state;
    static const struct {
        const char *source, *place, *text;
    } cases[] = {
        {"{% for x in [1] %}{{ loop.cycle() }}{% endfor %}", "line 1", "no items for cycling"},
        {"{% for x in [[1]] %}{{ loop(x) }}{% endfor %}", "line 1", "recursive"},
        {"{{ [1]|tojson(separators=[',']) }}", "line 1", "two strings"},
        {"{{ [1]|batch() }}", "line 1", "lacks argument 1"},
        {"{{ (-9223372036854775807 - 1) // -1 }}", "line 1", "64 bits"},
        {"{% for x of y %}", "line 1", "expected 'in', got 'of'"},
        {"{{ l[1:2:\n\n0] }}", "line 1", "zero"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text_buf out = {0};
        kvasir_error err = {0};
        assert_int_equal(render(cases[i].source, NOW, &out, &err), KVASIR_ERR_TEMPLATE);
        if (!strstr(err.text, cases[i].place) || !strstr(err.text, cases[i].text))
            fail_msg("%s: \"%s\", not %s ... %s", cases[i].source, err.text, cases[i].place,
                     cases[i].text);
        text_free(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_corners),
        cmocka_unit_test(test_iso_weeks),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
