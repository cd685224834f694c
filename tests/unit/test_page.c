/* SPDX-License-Identifier: Apache-2.0 */
/* The web page inside the program loads nothing from elsewhere, and its policy names the hash of
 * each of its scripts. tests/api/page.sh opens it in a browser. */
#include "server/page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_holds_itself(void **state) {
    (void)state;
    static const char *const FORBIDDEN[] = {"src=", "rel=\"stylesheet", "@import", "url("};
    const char *scripts = strstr(SERVER_PAGE, "<script>");
    assert_non_null(scripts);
    for (size_t i = 0; i < sizeof FORBIDDEN / sizeof *FORBIDDEN; i++) {
        const char *found = strstr(SERVER_PAGE, FORBIDDEN[i]);
        if (found && found < scripts)
            fail_msg("page.html holds %s", FORBIDDEN[i]);
    }
    static const char *const LIBRARIES[] = {
        "modules[\"markdown-it/lib/index.js\"]", "modules[\"highlight.js/index.js\"]",
        "modules[\"dompurify/index.js\"]", "modules[\"katex/index.js\"]"};
    for (size_t i = 0; i < sizeof LIBRARIES / sizeof *LIBRARIES; i++)
        if (!strstr(SERVER_PAGE, LIBRARIES[i]))
            fail_msg("page.html lacks %s", LIBRARIES[i]);
    assert_string_equal(SERVER_PAGE + SERVER_PAGE_LEN - 8, "</html>\n");
    assert_true(SERVER_PAGE_LEN < 1024 * 1024);
}

static size_t times(const char *text, const char *part) {
    size_t n = 0;
    for (; (text = strstr(text, part)); text += strlen(part))
        n++;
    return n;
}

static void test_policy(void **state) {
    (void)state;
    const char *policy = server_page_policy();
    assert_ptr_equal(server_page_policy(), policy);
    assert_int_equal(times(SERVER_PAGE, "<style>"), 1);
    assert_int_equal(times(SERVER_PAGE, "</script>"), 2);
    assert_int_equal(times(policy, "style-src 'sha256-"), 1);
    assert_int_equal(times(policy, "'sha256-"), 3);
    assert_null(strstr(policy, "unsafe"));
    assert_non_null(strstr(policy, "default-src 'none'; connect-src 'self'; "));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_holds_itself),
        cmocka_unit_test(test_policy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
