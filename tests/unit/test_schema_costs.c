/* SPDX-License-Identifier: Apache-2.0 */
/* Hostile schemas: each is compiled or refused within 100 ms of an idle processor, and all of them
 * within bounded memory. On a busy one, whose caches and cores others share, it takes up
 * to twice as long: the least of three times counts, against a bound that allows for it. */
#include <sys/resource.h>

#include "grammar_checks.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||                               \
    __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define COMPILE_SECONDS 5.0
#define PEAK_MIB        4096
#else
#define COMPILE_SECONDS 0.25
#define PEAK_MIB        256
#endif
enum { TRIES = 3 };

static void check_text(const char *name, const struct text_buf *text) {
    double least = COMPILE_SECONDS;
    kvasir_error err = {0};
    kvasir_status status = KVASIR_OK;
    for (int i = 0; i < TRIES && least >= COMPILE_SECONDS; i++) {
        struct grammar *g = NULL;
        const double start = cpu_seconds();
        status = grammar_compile(GRAMMAR_JSON_SCHEMA, (struct text_span){text->data, text->len},
                                 NULL, &g, &err);
        if (cpu_seconds() - start < least)
            least = cpu_seconds() - start;
        grammar_release(g);
    }
    print_message("%6.1f ms, %8zu bytes: %s: %s\n", 1e3 * least, text->len, name,
                  status ? err.text : "compiled");
    if (least >= COMPILE_SECONDS)
        fail_msg("%s takes too long", name);
}

static void check(const char *name, const char *schema) {
    struct text_buf text = {0};
    assert_true(text_puts(&text, schema));
    check_text(name, &text);
    text_free(&text);
}

/* begin, n times `each` with numbers from 0 on, end; between them commas, in patterns, too. */
static void check_many(const char *name, const char *begin, int n, const char *each,
                       const char *end) {
    struct text_buf text = {0};
    assert_true(text_puts(&text, begin));
    for (int i = 0; i < n; i++) {
        assert_true(!i || text_puts(&text, ","));
        for (const char *at = each; *at; at++) { /* @ is the number, ~ the next */
            if (*at == '@' || *at == '~')
                assert_true(text_printf(&text, "%d", i + (*at == '~')));
            else
                assert_true(text_append(&text, at, 1));
        }
    }
    assert_true(text_puts(&text, end));
    check_text(name, &text);
    text_free(&text);
}

/* n times begin, then middle, then n times end. */
static void check_nested(const char *name, int n, const char *begin, const char *middle,
                         const char *end) {
    struct text_buf text = {0};
    for (int i = 0; i < n; i++)
        assert_true(text_puts(&text, begin));
    assert_true(text_puts(&text, middle));
    for (int i = 0; i < n; i++)
        assert_true(text_puts(&text, end));
    check_text(name, &text);
    text_free(&text);
}

static void test_patterns(void **state) {
    (void)state;
#define PATTERN(p) "{\"type\":\"string\",\"pattern\":\"" p "\"}"
    check("a million states", PATTERN("^([a-z]{1,1000}x){1,1000}$"));
    check("repeats of repeats", PATTERN("(a{1000}){1000}"));
    check("repeats of repeats of repeats", PATTERN("((a{1000}){1000}){1000}"));
    check("a large repeat", PATTERN("^a{999999999}$"));
    check("the 20th character before the end", PATTERN("^.*a.{20}$"));
    check("the 200th letter before the end", PATTERN("^(a|b)*a(a|b){200}$"));
    check("repeats of classes of Unicode", PATTERN("^(\\\\p{L}\\\\p{N}?){1,500}$"));
    check("lookaheads", PATTERN("(?=.*a.{9}b)(?=.*b.{9}c)(?=.*c.{9}d)(?=.*d.{9}e)(?=.*e.{9}f)"));
    check("lengths and a pattern",
          "{\"type\":\"string\",\"minLength\":1000,\"maxLength\":2000,\"pattern\":\"a.{30}b\"}");
    check_many("many groups", "{\"pattern\":\"(a)", 100000, "(b)", "\"}");
    check_many("many alternatives", "{\"pattern\":\"^(x", 9000, "|w@x*y{1,9}", ")$\"}");
    check_many("patterns that overlap", "{\"allOf\":[", 12, "{\"pattern\":\"@.{~}~\"}",
               "],\"type\":\"string\"}");
    check_many(
        "formats that must not hold",
        "{\"type\":\"string\",\"allOf\":[{\"not\":{\"format\":\"uri\"}},{\"not\":{\"format\":"
        "\"iri\"}},{\"not\":{\"format\":\"email\"}},",
        20, "{\"not\":{\"format\":\"date-time\"}}", "]}");
}

static void test_lists(void **state) {
    (void)state;
    struct text_buf text = {0};
    assert_true(text_puts(&text, "{\"description\":\""));
    while (text.len < 10 << 20)
        assert_true(text_puts(&text, "ten million bytes of text "));
    assert_true(text_puts(&text, "\"}"));
    check_text("10 MiB", &text);
    text_free(&text);
    check_many("an enum of strings", "{\"enum\":[", 50000, "\"value @\"", "]}");
    check_many("an enum of numbers", "{\"enum\":[", 100000, "@", "]}");
    check_many("an enum of arrays", "{\"enum\":[", 30000, "[@]", "]}");
    check_many("an enum of objects", "{\"enum\":[", 30000, "{\"k@\":@}", "]}");
    check_many("an enum that must not hold", "{\"not\":{\"enum\":[", 3000, "[@]", "]}}");
    check_many("a long array", "{\"const\":[", 100000, "@", "]}");
    check_nested("deep values", 1000, "{\"const\":[", "1", "]}");
    check_many("items of their own", "{\"type\":\"array\",\"prefixItems\":[", 40000,
               "{\"type\":\"integer\"}", "]}");
    check_many("values that come once",
               "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[", 20000, "[@]",
               "]}}");
    check_many("values that come once, in each other",
               "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[", 250,
               "[[[@,~]],{\"a\":[~]}]", "]}}");
    check_nested("bounds of items", 300,
                 "{\"type\":\"array\",\"minItems\":1000,\"maxItems\":1000000000,\"items\":", "{}",
                 "}");
    check_nested("counts of items", 300,
                 "{\"type\":\"array\",\"minContains\":100,\"maxContains\":999,\"contains\":", "{}",
                 "}");
}

static void test_objects(void **state) {
    (void)state;
#define PROPERTIES "{\"type\":\"object\",\"properties\":{"
    check_many("many members", PROPERTIES, 20000, "\"p@\":{\"type\":\"string\"}", "}}");
    check_many("many required", "{\"type\":\"object\",\"required\":[", 60000, "\"p@\"", "]}");
    check_many("many that depend on each other", "{\"type\":\"object\",\"dependentRequired\":{",
               300, "\"k@\":[\"k~\"]", "}}");
    check_many("schemas that depend on names", "{\"type\":\"object\",\"dependentSchemas\":{", 60,
               "\"k@\":{\"required\":[\"k~\"],\"properties\":{\"j@\":{\"type\":\"null\"}}}", "}}");
    check_many("patterns of names that overlap", "{\"type\":\"object\",\"patternProperties\":{", 26,
               "\"^.*@.*$\":{\"minLength\":@}", "}}");
    check_many("many patterns of names", "{\"type\":\"object\",\"patternProperties\":{", 2000,
               "\"^p@[a-z]*$\":{\"const\":@}", "}}");
    check_many("names that must not match", "{\"type\":\"object\",\"propertyNames\":{\"allOf\":[",
               12, "{\"not\":{\"pattern\":\"@.{~}~\"}}", "]}}");
    check_many("counts of members", PROPERTIES, 1000, "\"p@\":{}",
               "},\"minProperties\":1000000,\"maxProperties\":4000000000}");
    check_nested("objects in objects", 600, PROPERTIES "\"a\":", "{}", "},\"required\":[\"a\"]}");
}

static void test_combinators(void **state) {
    (void)state;
    check_many("choices of choices", "{\"allOf\":[", 30,
               "{\"anyOf\":[{\"required\":[\"a@\"]},{\"required\":[\"b@\"]}]}", "]}");
    check_many("choices of numbers", "{\"allOf\":[", 30,
               "{\"anyOf\":[{\"multipleOf\":3~},{\"minimum\":@},{\"maximum\":-@}]}", "]}");
    check_many(
        "one of many objects", "{\"oneOf\":[", 200,
        "{\"type\":\"object\",\"properties\":{\"k\":{\"const\":@},\"v@\":{\"type\":\"integer\"}}}",
        "]}");
    check_many("one of objects that overlap", "{\"oneOf\":[", 20,
               "{\"type\":\"object\",\"properties\":{\"k@\":{\"type\":\"string\"},\"j@\":{"
               "\"minimum\":3}}}",
               "]}");
    check_nested("not not", 900, "{\"not\":", "{\"type\":\"null\"}", "}");
    check_nested("negations of members", 60,
                 "{\"type\":\"object\",\"not\":{\"properties\":{\"a\":", "{}", "}}}");
    check_nested("conditions of conditions", 9, "{\"if\":{\"items\":", "{}",
                 "},\"then\":{\"minItems\":1},\"else\":{\"maxItems\":3}}");
}

static void test_references(void **state) {
    (void)state;
    check_many("twice the next, all", "{\"$ref\":\"#/$defs/a0\",\"$defs\":{", 40,
               "\"a@\":{\"allOf\":[{\"$ref\":\"#/$defs/a~\"},{\"$ref\":\"#/$defs/a~\"}]}",
               ",\"a40\":{\"type\":\"null\"}}}");
    check_many("many schemas with an id", "{\"properties\":{", 20000,
               "\"p@\":{\"$id\":\"http://x/@\",\"$ref\":\"y\"}", "}}");
    check_many("a chain of ids", "{\"$id\":\"http://x/\",\"$ref\":\"i0\",\"$defs\":{", 12000,
               "\"d@\":{\"$id\":\"i@\",\"$ref\":\"i~\"}", "}}");
    check(
        "a tree of trees",
        "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"allOf\":[{\"properties\":{"
        "\"l\":{\"$ref\":\"#/$defs/n\"}}},{\"additionalProperties\":{\"anyOf\":[{\"$ref\":\"#/"
        "$defs/"
        "n\"},{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"}}]}}]}}}");
}

/* All of the above, one after another. */
static void test_memory(void **state) {
    (void)state;
    struct rusage used;
    assert_int_equal(getrusage(RUSAGE_SELF, &used), 0);
    print_message("%ld MiB at most\n", used.ru_maxrss >> 10);
    assert_true(used.ru_maxrss >> 10 < PEAK_MIB);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patterns),   cmocka_unit_test(test_lists),
        cmocka_unit_test(test_objects),    cmocka_unit_test(test_combinators),
        cmocka_unit_test(test_references), cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
