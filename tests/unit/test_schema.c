/* SPDX-License-Identifier: Apache-2.0 */
/* JSON Schema: each keyword and its opposite on hand-made cases; the suites of ../shared (real
 * schemas with instances, and JSON-Schema-Test-Suite): of those that compile, valid instances are
 * taken and
 * invalid ones refused; no beginning that is taken is a dead end. */
#include <jansson.h>

#include "grammar_checks.h"

#define SCHEMAS SHARED_DIR "/fixtures/json-schema"

static kvasir_error why;

static bool takes(struct grammar *g, const char *text) {
    bool complete;
    (void)taken_of(g, span(text), &complete);
    return complete;
}

/* Random bytes that are taken: there is always one until the text may end. Spaces are rare, and
 * bytes that close something likely, so that texts end. */
static void check_walk(struct grammar *g, const char *schema, unsigned seed) {
    struct grammar_place *p;
    char text[3000];
    size_t len = 0;
    assert_int_equal(grammar_begin(g, &p, &why), KVASIR_OK);
    for (; len < sizeof text; len++) {
        uint8_t taken[600];
        unsigned n = 0;
        for (int byte = 0; byte < 255; byte++) {
            struct grammar_place *q;
            size_t one;
            const char ch = (char)byte;
            if ((len > 200 && (byte == '\\' || byte == '{' || byte == '[')) || byte == '\n' ||
                byte == '\t' || byte == '\r')
                continue;
            assert_int_equal(grammar_place_copy(p, &q, &why), KVASIR_OK);
            assert_int_equal(grammar_push(q, (struct text_span){&ch, 1}, &one, &why), KVASIR_OK);
            const bool closes = byte == '"' || byte == '}' || byte == ']' || byte == ',';
            for (int i = 0; one && i < (closes ? len > 60 && byte != ',' ? 80 : 4 : 1); i++)
                taken[n++] = (uint8_t)byte;
            grammar_place_destroy(q);
        }
        const enum grammar_end end = grammar_place_end(p);
        if (end == GRAMMAR_ENDED || (end == GRAMMAR_MAY_END && (len > 3 || n == 0)))
            break;
        if (n == 0 && len <= 200)
            fail_msg("%s: dead end after %.*s", schema, (int)len, text);
        if (n == 0)
            break; /* what is left out above */
        seed = seed * 1103515245 + 12345;
        text[len] = (char)taken[(seed >> 16) % n];
        size_t one;
        assert_int_equal(grammar_push(p, (struct text_span){text + len, 1}, &one, &why), KVASIR_OK);
        assert_int_equal(one, 1);
    }
    grammar_place_destroy(p);
}

/* ---- by hand --------------------------------------------------------------------------------- */

struct hand_case {
    const char *schema, *good[4], *bad[4];
};

static void check_cases(const struct hand_case *cases, size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct grammar *g = compiled(GRAMMAR_JSON_SCHEMA, cases[i].schema);
        for (int k = 0; k < 4 && cases[i].good[k]; k++)
            if (!takes(g, cases[i].good[k]))
                fail_msg("%s does not take %s", cases[i].schema, cases[i].good[k]);
        for (int k = 0; k < 4 && cases[i].bad[k]; k++)
            if (takes(g, cases[i].bad[k]))
                fail_msg("%s takes %s", cases[i].schema, cases[i].bad[k]);
        for (unsigned seed = 1; seed < 6; seed++)
            check_walk(g, cases[i].schema, seed);
        grammar_release(g);
    }
}

static void test_values(void **state) {
    (void)state;
    static const struct hand_case CASES[] = {
        {"true", {"1", "\"a\"", "[{}]", "null"}, {"01", " 1", "nul", "1 "}},
        {"{\"type\":\"object\"}", {"{}", "{\"a\":[1]}"}, {"[]", "{\"a\":1", "{} "}},
        {"{\"type\":[\"integer\",\"null\"]}", {"-3", "null", "2.0", "1e2"}, {"1.5", "true"}},
        {"{\"enum\":[\"a\",1,null,[2],{\"b\":3}]}",
         {"\"a\"", "1", "[ 2 ]", "{\"b\":3}"},
         {"\"b\"", "2", "[]", "{\"b\":4}"}},
        {"{\"not\":{\"enum\":[\"a\",1,{\"b\":3}]}}",
         {"\"b\"", "2", "{\"b\":4}", "{\"b\":3,\"c\":1}"},
         {"\"a\"", "1", "1.0", "{\"b\":3}"}},
        {"{\"minimum\":3,\"exclusiveMaximum\":5,\"type\":\"number\"}", {"3", "4.5"}, {"2", "5"}},
        {"{\"type\":\"integer\",\"multipleOf\":5.123456789,\"minimum\":1}",
         {"5123456789", "10246913578"},
         {"1", "5", "5123456788"}},
        {"{\"type\":\"integer\",\"multipleOf\":2.5,\"minimum\":1}", {"5", "10"}, {"2", "3"}},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3,\"pattern\":\"^\\\\w*$\"}",
         {"\"ab\"", "\"\\u0061b_\""},
         {"\"a\"", "\"abcd\"", "\"a-\""}},
        {"{\"const\":\"\xf0\x9f\x98\x80\"}", {"\"\\ud83d\\ude00\""}, {"\"\\ud83d\""}},
    };
    check_cases(CASES, sizeof CASES / sizeof *CASES);
}

/* Names and values of enum, const and pattern are escaped only where they must be, whole numbers
 * plain; free texts as they like. */
static void test_canonical(void **state) {
    (void)state;
#define CANONICAL(rest) "{\"x-canonical\":true," rest "}"
    static const struct hand_case CASES[] = {
        {CANONICAL("\"type\":\"integer\""), {"-3", "0", "100"}, {"2.0", "1e2", "-0.0", "1E0"}},
        {CANONICAL("\"type\":\"integer\",\"minimum\":5"), {"5", "40"}, {"-1", "4", "5.0", "1e1"}},
        {CANONICAL("\"type\":\"number\""), {"2.0", "1e2", "-0.5"}, {"01", "1000000000000000000"}},
        {CANONICAL("\"type\":\"number\",\"multipleOf\":11"),
         {"22", "999999999999999999"},
         {"22.0", "1000000000000000010"}},
        {CANONICAL("\"minimum\":1e20,\"type\":\"number\""), {"1e20", "2.5e30"}, {"1", "1e2"}},
        {CANONICAL("\"enum\":[1,2.5,\"a\\\"b/\\n\"]"),
         {"1", "2.5", "2.50", "\"a\\\"b/\\n\""},
         {"1.0", "1e0", "\"\\u0061\\\"b/\\n\"", "\"a\\\"b\\/\\n\""}},
        {CANONICAL("\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"string\"}}"),
         {"{\"ab\":\"\\u0061\\/\"}", "{\"c\":1}", "{\"ab\":\"\",\"a\":1}"},
         {"{\"\\u0061b\":\"\"}", "{\"a\\u0062\":\"\"}", "{\"ab\":1}"}},
        {CANONICAL("\"pattern\":\"^[a/]*$\",\"type\":\"string\""),
         {"\"a/\"", "\"\""},
         {"\"\\/\"", "\"\\u0061\""}},
        {"{\"x-canonical\":false,\"const\":\"a\"}", {"\"a\"", "\"\\u0061\""}, {"\"b\""}},
    };
    check_cases(CASES, sizeof CASES / sizeof *CASES);
    struct grammar *g = compiled(GRAMMAR_JSON_SCHEMA, CANONICAL("\"enum\":[\"one\",\"two\"]"));
    struct grammar_place *p;
    struct text_buf forced = {0};
    size_t taken;
    assert_int_equal(grammar_begin(g, &p, &why), KVASIR_OK);
    assert_int_equal(grammar_push(p, span("\"t"), &taken, &why), KVASIR_OK);
    assert_int_equal(grammar_forced(p, 100, &forced, &why), KVASIR_OK);
    assert_int_equal(forced.len, 3);
    assert_memory_equal(forced.data, "wo\"", 3);
    text_free(&forced);
    grammar_place_destroy(p);
    grammar_release(g);
}

static void test_objects(void **state) {
    (void)state;
    static const struct hand_case CASES[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
         "\"string\"}},\"required\":[\"a\"],\"additionalProperties\":false}",
         {"{\"a\":1}", "{\"b\":\"x\",\"a\":1}", "{ \"a\" : 1 , \"b\" : \"\" }"},
         {"{}", "{\"b\":\"x\"}", "{\"a\":1,\"c\":2}", "{\"a\":1,\"a\":2}"}},
        {"{\"type\":\"object\",\"patternProperties\":{\"^x\":{\"type\":\"null\"}},\"properties\":"
         "{\"xa\":true}}",
         {"{\"x\":null,\"y\":1}", "{\"xa\":null}"},
         {"{\"x\":1}", "{\"xa\":1}"}},
        {"{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2}",
         {"{\"a\":1}", "{\"a\":1,\"b\":2}"},
         {"{}", "{\"a\":1,\"b\":2,\"c\":3}"}},
        {"{\"type\":\"object\",\"propertyNames\":{\"maxLength\":1}}",
         {"{\"a\":1}"},
         {"{\"ab\":1}"}},
        {"{\"type\":\"object\",\"dependentRequired\":{\"a\":[\"b\"]}}",
         {"{}", "{\"b\":1}", "{\"b\":1,\"a\":2}"},
         {"{\"a\":1}"}},
        {"{\"type\":\"object\",\"not\":{\"required\":[\"a\"]}}",
         {"{}", "{\"b\":1}"},
         {"{\"a\":1}"}},
        {"{\"type\":\"object\",\"not\":{\"additionalProperties\":{\"type\":\"null\"}}}",
         {"{\"a\":1}", "{\"a\":null,\"b\":2}"},
         {"{}", "{\"a\":null}"}},
        /* a name twice is one member, however it is written */
        {"{\"type\":\"object\",\"minProperties\":2}",
         {"{\"a\":1,\"b\":2}", "{\"a\":{\"a\":1},\"ab\":2}", "{\"\":1,\"b\":2}"},
         {"{\"a\":1,\"a\":2}", "{\"a\":[{\"b\":1}],\"\\u0061\":2}", "{\"\":1,\"\":2}"}},
        {"{\"type\":\"object\",\"minProperties\":3,\"properties\":{\"n\":true}}",
         {"{\"a\":1,\"b\":2,\"c\":3}", "{\"a\":1,\"n\":2,\"b\":3}",
          "{\"a\":1,\"b\":1,\"c\":1,\"c\":2}"},
         {"{\"a\":1,\"b\":2,\"a\":3}", "{\"a\":1,\"n\":2,\"a\":3}", "{\"a\":1,\"b\":2}"}},
        {"{\"type\":\"object\",\"minProperties\":2,\"patternProperties\":{\"^(a|b)$\":true},"
         "\"additionalProperties\":false}",
         {"{\"a\":1,\"b\":2}"},
         {"{\"a\":1}", "{\"a\":1,\"c\":2}", "{\"a\":1,\"a\":2}"}},
        {"{\"minProperties\":2,\"propertyNames\":{\"pattern\":\"^(a|b|c.*)$\"},\"type\":"
         "\"object\"}",
         {"{\"a\":1,\"b\":2}", "{\"a\":1,\"cd\":2}"}, /* may come twice: nothing begins with ab */
         {"{\"a\":1}", "{\"a\":1,\"d\":2}"}},
        {"{\"if\":{\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"]},\"then\":{"
         "\"required\":"
         "[\"b\"]},\"else\":{\"maxProperties\":1},\"type\":\"object\"}",
         {"{\"a\":1,\"b\":2}", "{\"c\":1}"},
         {"{\"a\":1}", "{\"c\":1,\"d\":1}"}},
    };
    check_cases(CASES, sizeof CASES / sizeof *CASES);
}

static void test_arrays(void **state) {
    (void)state;
    static const struct hand_case CASES[] = {
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"}],\"items\":{\"type\":"
         "\"string\"},\"minItems\":1,\"maxItems\":3}",
         {"[1]", "[1,\"a\",\"b\"]"},
         {"[]", "[\"a\"]", "[1,2]", "[1,\"a\",\"b\",\"c\"]"}},
        {"{\"type\":\"array\",\"contains\":{\"type\":\"null\"},\"maxContains\":2}",
         {"[null]", "[1,null,null]"},
         {"[]", "[1]", "[null,null,null]"}},
        {"{\"type\":\"array\",\"not\":{\"items\":{\"type\":\"null\"}}}",
         {"[1]", "[null,1]"},
         {"[]", "[null]"}},
        {"{\"type\":\"array\",\"items\":false}", {"[]"}, {"[1]"}},
    };
    check_cases(CASES, sizeof CASES / sizeof *CASES);
}

/* Of an enum, each value once. */
static void test_unique_items(void **state) {
    (void)state;
#define UNIQUE(rest) "{\"type\":\"array\",\"uniqueItems\":true," rest "}"
    static const struct hand_case CASES[] = {
        {UNIQUE("\"items\":{\"enum\":[\"a\",\"ab\",\"b\"]}"),
         {"[]", "[\"ab\",\"a\"]", "[\"a\",\"b\",\"ab\"]", "[\"\\u0061\"]"},
         {"[\"a\",\"a\"]", "[\"ab\",\"a\",\"\\u0061b\"]", "[\"a\",\"b\",\"ab\",", "[\"c\"]"}},
        {UNIQUE("\"items\":{\"enum\":[1,1.0,10,true,null,\"1\",[1],[1.0],{\"x\":1},{\"x\":2}]}"),
         {"[1,10,true,null,\"1\",[1],{\"x\":1},{\"x\":2}]", "[10,1.0]", "[[1],1]"},
         {"[1,1.0]", "[[1],[1.0]]", "[{\"x\":1},{\"x\":1}]", "[true,1,true]"}},
        {UNIQUE("\"items\":{\"type\":\"boolean\"},\"minItems\":2"),
         {"[true,false]", "[false,true]"},
         {"[true]", "[true,true]", "[true,false,"}},
        {UNIQUE("\"items\":{\"oneOf\":[{\"const\":1},{\"type\":[\"null\",\"boolean\"]}]},"
                "\"maxItems\":3"),
         {"[1,null,false]", "[]"},
         {"[null,null]", "[1,null,false,"}},
        {UNIQUE("\"items\":{\"$ref\":\"#/$defs/v\"},\"$defs\":{\"v\":{\"enum\":[\"x\",\"yy\",3],"
                "\"type\":\"string\"}}"),
         {"[\"yy\",\"x\"]"},
         {"[\"x\",\"x\"]", "[3]"}},
        {UNIQUE("\"items\":{\"enum\":[[1],[2]]},\"minItems\":1"),
         {"[[2],[1]]"},
         {"[]", "[[1],[1]]"}},
        /* two arrays at once, each with values of its own */
        {"{\"items\":" UNIQUE("\"items\":{\"enum\":[1,2]}") ",\"type\":\"array\"}",
         {"[[1,2],[1],[2,1]]"},
         {"[[1,2],[1,1]]"}},
        {"{\"allOf\":[" UNIQUE("\"maxItems\":5") ",{\"enum\":[[1,2],[3,3]]}]}",
         {"[1,2]"},
         {"[3,3]"}},
        {UNIQUE("\"maxItems\":1"), {"[\"any\"]", "[]"}, {"[1,1]"}},
    };
    check_cases(CASES, sizeof CASES / sizeof *CASES);
}

static void test_combinators(void **state) {
    (void)state;
    static const struct hand_case CASES[] = {
        {"{\"allOf\":[{\"type\":\"object\",\"required\":[\"a\"]},{\"properties\":{\"a\":{\"type\":"
         "\"null\"}}}]}",
         {"{\"a\":null}"},
         {"{}", "{\"a\":1}"}},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\",\"minimum\":2}]}",
         {"1", "2.5"},
         {"1.5", "3", "\"a\""}},
        {"{\"$ref\":\"#/$defs/"
         "tree\",\"$defs\":{\"tree\":{\"type\":\"object\",\"properties\":{\"kids\":"
         "{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/tree\"}}},\"additionalProperties\":"
         "false}}}",
         {"{}", "{\"kids\":[{\"kids\":[]},{}]}"},
         {"{\"kids\":[1]}", "{\"x\":1}"}},
        {"{\"anyOf\":[{\"const\":\"ab\"},{\"const\":\"ac\"},{\"type\":\"null\"}]}",
         {"\"ab\"", "\"ac\"", "null"},
         {"\"a\"", "\"ad\""}},
    };
    check_cases(CASES, sizeof CASES / sizeof *CASES);
}

static void refused(const char *schema, kvasir_status code, const char *text) {
    struct grammar *g;
    assert_int_equal(grammar_compile(GRAMMAR_JSON_SCHEMA,
                                     (struct text_span){schema, strlen(schema)}, NULL, &g, &why),
                     code);
    if (!strstr(why.text, text))
        fail_msg("%s: %s", schema, why.text);
}

/* What is wrong after the last step does not hide that there are no more. */
static void test_out_of_steps(void **state) {
    (void)state;
    static const char *const TEXTS[] = {
        "{\"maximum\":99,\"multipleOf\":0}",
        "{\"minimum\":1,\"exclusiveMinimum\":\"x\"}",
        "{\"not\":{\"minimum\":1,\"maximum\":null}}",
        "{\"maxLength\":9,\"pattern\":\"(\"}",
    };
    struct grammar_limits limits = {
        .text_bytes = 1 << 14, .compiled_bytes = 2 << 20, .machine_bytes = 1 << 20};
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) {
        for (limits.steps = 0; limits.steps < 2000; limits.steps++) {
            struct grammar *g = NULL;
            const kvasir_status status =
                grammar_compile(GRAMMAR_JSON_SCHEMA, span(TEXTS[i]), &limits, &g, &why);
            if (status == KVASIR_OK || why.code != status)
                fail_msg("%s in %d steps: %d, %s", TEXTS[i], (int)limits.steps, (int)status,
                         why.text);
        }
    }
}

static void test_what_is_refused(void **state) {
    (void)state;
    refused("{", KVASIR_ERR_ARGUMENT, "invalid JSON");
    refused("[]", KVASIR_ERR_ARGUMENT, "a schema is an object, true or false");
    refused("false", KVASIR_ERR_ARGUMENT, "no value meets this schema");
    refused("{\"maxLength\":1.5}", KVASIR_ERR_ARGUMENT, "#/maxLength: is not a whole number");
    refused("{\"type\":\"string\",\"minLength\":1e99,\"maxLength\":2}", KVASIR_ERR_ARGUMENT,
            "no value");
    refused("{\"type\":\"integer\",\"minimum\":1,\"maximum\":0}", KVASIR_ERR_ARGUMENT, "no value");
    refused("{\"properties\":{\"a\":{\"type\":\"thing\"}}}", KVASIR_ERR_ARGUMENT,
            "#/properties/a/type: there is no such type");
    refused("{\"properties\":{\"a\":{\"uniqueItems\":true}}}", KVASIR_ERR_UNSUPPORTED,
            "#/properties/a/uniqueItems: cannot be enforced");
    refused("{\"uniqueItems\":true,\"items\":{\"type\":\"string\"}}", KVASIR_ERR_UNSUPPORTED,
            "#/uniqueItems: cannot be enforced while an answer is written, unless all items");
    refused(
        "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[1,2,1.0]},\"minItems\":3}",
        KVASIR_ERR_ARGUMENT, "no value");
    refused("{\"$ref\":\"http://example.org/x\"}", KVASIR_ERR_UNSUPPORTED,
            "#/$ref: refers to another document");
    refused("{\"$ref\":\"#/$defs/x\"}", KVASIR_ERR_ARGUMENT, "#/$ref: there is no schema");
    refused("{\"$ref\":\"#\"}", KVASIR_ERR_UNSUPPORTED, "refers to itself without end");
    refused("{\"x-canonical\":1}", KVASIR_ERR_ARGUMENT, "must be true or false");
    /* no whole number that large can be written without an exponent */
    refused("{\"x-canonical\":true,\"type\":\"integer\",\"minimum\":1e70}", KVASIR_ERR_ARGUMENT,
            "no value");
    refused("{\"pattern\":\"(\"}", KVASIR_ERR_ARGUMENT, "#/pattern: pattern, at character");
    /* needs itself in full: no text is ever complete */
    refused("{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
            KVASIR_ERR_ARGUMENT, "no value meets this schema");
}

/* ---- suites ---------------------------------------------------------------------------------- */

struct counts {
    int schemas, compiled, wrong;
};

/* {"schema", "tests": [{"data", "valid"}]}. A canonical schema takes the same values, in the one
 * form that jansson writes: all but whole numbers with a fraction. */
static void check_suite_as(json_t *one, const char *name, bool canonical, struct counts *counts) {
    json_t *tests = json_object_get(one, "tests"), *test, *root = json_object_get(one, "schema");
    if (canonical && json_object_set_new(root, "x-canonical", json_true()))
        return; /* true, false */
    char *schema = json_dumps(root, JSON_COMPACT | JSON_ENCODE_ANY);
    struct grammar *g;
    size_t i;
    counts->schemas++;
    if (grammar_compile(GRAMMAR_JSON_SCHEMA, (struct text_span){schema, strlen(schema)}, NULL, &g,
                        &why) == KVASIR_OK) {
        counts->compiled++;
        json_array_foreach(tests, i, test) {
            char *data = json_dumps(json_object_get(test, "data"),
                                    JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
            const bool valid = json_is_true(json_object_get(test, "valid"));
            if (takes(g, data) != valid && !(canonical && strstr(data, ".0"))) {
                counts->wrong++;
                print_message("%s%s, %zu: %s is not %s\n", name, canonical ? " (canonical)" : "", i,
                              data, valid ? "taken" : "refused");
            }
            free(data);
        }
        if (counts->schemas % 10 == 0)
            check_walk(g, name, (unsigned)counts->schemas);
        grammar_release(g);
    }
    free(schema);
}

static void check_suite(json_t *one, const char *name, struct counts *counts) {
    struct counts also = {0};
    check_suite_as(one, name, false, counts);
    check_suite_as(one, name, true, &also);
    counts->wrong += also.wrong;
}

/* An instance whose "userId" is 12345.0: no integer in draft 4, one in all later ones, as here. */
enum { KNOWN_REAL = 1 };

static void test_real_schemas(void **state) {
    (void)state;
    FILE *f = fopen(SCHEMAS "/maskbench.jsonl", "r");
    struct counts counts = {0};
    char *line = NULL;
    size_t cap = 0;
    if (!f) {
        print_message("skipped: %s/maskbench.jsonl is not there\n", SCHEMAS);
        skip();
    }
#ifdef __SANITIZE_ADDRESS__ /* minutes: one in three */
    const int each = 3;
#else
    const int each = 1;
#endif
    for (int i = 0; getline(&line, &cap, f) > 0; i++) {
        json_t *one = json_loads(line, JSON_ALLOW_NUL, NULL);
        if (one && i % each == 0)
            check_suite(one, json_string_value(json_object_get(one, "name")), &counts);
        json_decref(one);
    }
    free(line);
    fclose(f);
    print_message("%d schemas, %d compile, %d instances wrong\n", counts.schemas, counts.compiled,
                  counts.wrong);
    assert_true(counts.compiled * 100 >= counts.schemas * 95);
    assert_true(each == 1 ? counts.wrong == KNOWN_REAL : counts.wrong <= KNOWN_REAL);
}

/* Files of the suite whose instances all agree; `format` is an assertion here, and not there. */
static void test_official_suite(void **state) {
    (void)state;
    static const char *const FILES[] = {"additionalProperties",
                                        "allOf",
                                        "anchor",
                                        "anyOf",
                                        "boolean_schema",
                                        "contains",
                                        "dependentRequired",
                                        "dependentSchemas",
                                        "dynamicRef",
                                        "enum",
                                        "exclusiveMaximum",
                                        "exclusiveMinimum",
                                        "if-then-else",
                                        "items",
                                        "maxContains",
                                        "maximum",
                                        "maxItems",
                                        "maxLength",
                                        "maxProperties",
                                        "minContains",
                                        "minimum",
                                        "minItems",
                                        "minLength",
                                        "minProperties",
                                        "multipleOf",
                                        "not",
                                        "oneOf",
                                        "pattern",
                                        "patternProperties",
                                        "prefixItems",
                                        "properties",
                                        "propertyNames",
                                        "ref",
                                        "required",
                                        "type",
                                        "uniqueItems"};
    struct counts counts = {0};
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        char path[1024];
        json_t *all, *one;
        size_t k;
        snprintf(path, sizeof path, "%s/tests/draft2020-12/%s.json", SCHEMAS, FILES[i]);
        all = json_load_file(path, JSON_ALLOW_NUL, NULL);
        if (!all) {
            print_message("skipped: %s is not there\n", path);
            skip();
        }
        json_array_foreach(all, k, one) {
            check_suite(one, FILES[i], &counts);
        }
        json_decref(all);
    }
    print_message("%d schemas, %d compile, %d instances wrong\n", counts.schemas, counts.compiled,
                  counts.wrong);
    assert_int_equal(counts.wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),       cmocka_unit_test(test_objects),
        cmocka_unit_test(test_canonical),    cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_unique_items), cmocka_unit_test(test_combinators),
        cmocka_unit_test(test_out_of_steps), cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_real_schemas), cmocka_unit_test(test_official_suite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
