/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of metrics of several models as one. */
#include <setjmp.h>
#include <stdarg.h>
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_join)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
