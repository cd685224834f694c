/* SPDX-License-Identifier: Apache-2.0 */
/* The web page inside the program is page.html, whole and small, and loads nothing from elsewhere.
 * tests/api/page.sh opens it in a browser. */
#include "server/page.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_is_the_file(void **state) {
    (void)state;
    FILE *f = fopen(SOURCE_DIR "/src/server/page.html", "rb");
    assert_non_null(f);
    char *text = malloc(SERVER_PAGE_LEN + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, SERVER_PAGE_LEN + 1, f), SERVER_PAGE_LEN);
    assert_memory_equal(text, SERVER_PAGE, SERVER_PAGE_LEN);
    fclose(f);
    free(text);
    assert_true(SERVER_PAGE_LEN < 40 * 1024);
}

static void test_holds_itself(void **state) {
    (void)state;
    static const char *const FORBIDDEN[] = {
        "https:",   "src=",           "@import",    "url(",        "innerHTML", "outerHTML",
        "insertAd", "document.write", "createCont", "javascript:", "eval(",     "new Function"};
    for (size_t i = 0; i < sizeof FORBIDDEN / sizeof *FORBIDDEN; i++)
        if (strstr(SERVER_PAGE, FORBIDDEN[i]))
            fail_msg("page.html holds %s", FORBIDDEN[i]);
    assert_string_equal(SERVER_PAGE + SERVER_PAGE_LEN - 8, "</html>\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is_the_file),
        cmocka_unit_test(test_holds_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
