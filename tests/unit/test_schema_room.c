/* SPDX-License-Identifier: Apache-2.0 */
/* No dead ends: what a schema's grammar takes can always be completed. Random schemas of arrays and
 * objects whose members and items count for constraints, each beginning judged by looking at all
 * continuations; and values nested as deep as is allowed. */
#include "grammar_checks.h"

enum { KINDS = 3, ITEMS = 5, MEMBERS = 3, NAMES = 5, FIXED = 2 };
static const char *const TYPES[KINDS] = {"number", "string", "boolean"};
static const char *const VALUES[KINDS] = {"1", "\"s\"", "true"};
static const char *const NAME[NAMES] = {"a", "b", "x", "y", "z"}; /* the first two have schemas */

static kvasir_error why;
static uint64_t seed = 1;

static unsigned draw(unsigned n) {
    return (unsigned)(mix_bits(++seed) % n);
}

/* A random schema: what it says, and the same as JSON. */
struct subject {
    bool object;
    unsigned types[FIXED + 1]; /* sets of kinds, of the items or names that are fixed, and others */
    bool required[FIXED];
    unsigned min, max;
    struct {
        unsigned kind, min, max; /* of items; of objects, members that are of another kind: one */
    } counted[3];
    unsigned n_counted;
    struct text_buf json;
    struct grammar *grammar;
};
/* Items, or members with names. */
struct value {
    unsigned kind, name;
};

static void put(struct subject *s, const char *format, ...) {
    va_list more;
    char text[200];
    va_start(more, format);
    vsnprintf(text, sizeof text, format, more);
    va_end(more);
    assert_true(text_append(&s->json, text, strlen(text)));
}

static void put_types(struct subject *s, unsigned set) {
    const char *comma = "";
    if (!set) {
        put(s, "false");
        return;
    }
    put(s, "{\"enum\":[");
    for (unsigned k = 0; k < KINDS; k++)
        if (set >> k & 1) {
            put(s, "%s%s", comma, VALUES[k]);
            comma = ",";
        }
    put(s, "]}");
}

static void make_array(struct subject *s) {
    put(s, "{\"type\":\"array\",\"minItems\":%u,\"maxItems\":%u,\"prefixItems\":[", s->min, s->max);
    for (unsigned i = 0; i < FIXED; i++, put(s, i < FIXED ? "," : ""))
        put_types(s, s->types[i]);
    put(s, "],\"items\":");
    put_types(s, s->types[FIXED]);
    put(s, ",\"allOf\":[{}");
    for (unsigned i = 0; i < s->n_counted; i++)
        put(s, ",{\"contains\":{\"type\":\"%s\"},\"minContains\":%u,\"maxContains\":%u}",
            TYPES[s->counted[i].kind], s->counted[i].min, s->counted[i].max);
    put(s, "]}");
}

static void make_object(struct subject *s) {
    put(s, "{\"type\":\"object\",\"minProperties\":%u,\"maxProperties\":%u,\"properties\":{",
        s->min, s->max);
    for (unsigned i = 0; i < FIXED; i++, put(s, i < FIXED ? "," : "")) {
        put(s, "\"%s\":", NAME[i]);
        put_types(s, s->types[i]);
    }
    put(s, "},\"additionalProperties\":");
    put_types(s, s->types[FIXED]);
    put(s, ",\"allOf\":[{}");
    for (unsigned i = 0; i < FIXED; i++)
        if (s->required[i])
            put(s, ",{\"required\":[\"%s\"]}", NAME[i]);
    for (unsigned i = 0; i < s->n_counted; i++)
        put(s, ",{\"not\":{\"additionalProperties\":{\"type\":\"%s\"}}}",
            TYPES[s->counted[i].kind]);
    put(s, "]}");
}

static void make_subject(struct subject *s) {
    *s = (struct subject){.object = draw(2), .n_counted = draw(4)};
    for (unsigned i = 0; i <= FIXED; i++)
        s->types[i] = draw(3) ? 1 + draw(7) : draw(8);
    for (unsigned i = 0; i < FIXED; i++)
        s->required[i] = draw(4) == 0;
    s->max = draw(s->object ? MEMBERS + 1 : ITEMS + 1);
    s->min = draw(3) ? 0 : draw(s->max + 1);
    for (unsigned i = 0; i < s->n_counted; i++) {
        s->counted[i].kind = draw(KINDS);
        s->counted[i].min = s->object ? 1 : draw(3);
        s->counted[i].max = s->counted[i].min + draw(3);
    }
    (s->object ? make_object : make_array)(s);
}

/* ---- what is right --------------------------------------------------------------------------- */

static bool has_name(const struct value *v, unsigned n, unsigned name) {
    for (unsigned i = 0; i < n; i++)
        if (v[i].name == name)
            return true;
    return false;
}

static bool is_valid(const struct subject *s, const struct value *v, unsigned n) {
    if (n < s->min || n > s->max)
        return false;
    for (unsigned i = 0; i < n; i++) {
        const unsigned place = s->object ? v[i].name : i;
        if (!(s->types[place < FIXED ? place : FIXED] >> v[i].kind & 1))
            return false;
    }
    for (unsigned i = 0; s->object && i < FIXED; i++)
        if (s->required[i] && !has_name(v, n, i))
            return false;
    for (unsigned k = 0; k < s->n_counted; k++) {
        unsigned count = 0;
        for (unsigned i = 0; i < n; i++)
            count += (v[i].kind == s->counted[k].kind) != s->object;
        if (count < s->counted[k].min || (!s->object && count > s->counted[k].max))
            return false;
    }
    return true;
}

/* Whether the values, with more or as they are, are valid. */
static bool can_be_valid(const struct subject *s, struct value *v, unsigned n) {
    if (is_valid(s, v, n))
        return true;
    for (unsigned name = 0; n < s->max && name < (s->object ? NAMES : 1); name++)
        for (unsigned kind = 0; kind < KINDS; kind++) {
            v[n] = (struct value){kind, name};
            if ((!s->object || !has_name(v, n, name)) && can_be_valid(s, v, n + 1))
                return true;
        }
    return false;
}

/* ---- what the grammar takes ------------------------------------------------------------------ */

static struct grammar_place *after(const struct grammar_place *p, const char *text) {
    struct grammar_place *q;
    size_t taken;
    assert_int_equal(grammar_place_copy(p, &q, &why), KVASIR_OK);
    assert_int_equal(grammar_push(q, span(text), &taken, &why), KVASIR_OK);
    if (taken == strlen(text))
        return q;
    grammar_place_destroy(q);
    return NULL;
}

static void check_from(const struct subject *s, const struct grammar_place *p, struct value *v,
                       unsigned n) {
    struct grammar_place *end = after(p, s->object ? "}" : "]");
    if ((end != NULL) != is_valid(s, v, n))
        fail_msg("%.*s: %u values %s", (int)s->json.len, s->json.data, n,
                 end ? "taken" : "refused");
    grammar_place_destroy(end);
    for (unsigned name = 0; n <= s->max && name < (s->object ? NAMES : 1); name++)
        for (unsigned kind = 0; kind < KINDS; kind++) {
            char text[40];
            snprintf(text, sizeof text, s->object ? "%s\"%s\":%s" : "%s%.0s%s", n ? "," : "",
                     NAME[name], VALUES[kind]);
            if (s->object && has_name(v, n, name))
                continue;
            v[n] = (struct value){kind, name};
            struct grammar_place *q = after(p, text);
            if ((q != NULL) != can_be_valid(s, v, n + 1))
                fail_msg("%.*s: %s as number %u is %s", (int)s->json.len, s->json.data, text, n,
                         q ? "a dead end" : "refused");
            v[n] = (struct value){kind, name};
            if (q)
                check_from(s, q, v, n + 1);
            grammar_place_destroy(q);
        }
}

static void test_random(void **state) {
    unsigned valid = 0;
    (void)state;
    for (unsigned i = 0; i < 1500; i++) {
        struct subject s;
        struct value v[ITEMS + 2];
        struct grammar_limits limits = grammar_limits_default();
        make_subject(&s);
        const bool can = can_be_valid(&s, v, 0);
        const kvasir_status status =
            grammar_compile(GRAMMAR_JSON_SCHEMA, (struct text_span){s.json.data, s.json.len},
                            &limits, &s.grammar, &why);
        if ((status == KVASIR_OK) != can)
            fail_msg("%.*s: %s", (int)s.json.len, s.json.data, can ? why.text : "compiles");
        if (can) {
            struct grammar_place *p, *open;
            assert_int_equal(grammar_begin(s.grammar, &p, &why), KVASIR_OK);
            assert_non_null(open = after(p, s.object ? "{" : "["));
            check_from(&s, open, v, 0);
            grammar_place_destroy(open);
            grammar_place_destroy(p);
            grammar_release(s.grammar);
            valid++;
        }
        text_free(&s.json);
    }
    assert_in_range(valid, 500, 1400);
}

/* ---- levels ---------------------------------------------------------------------------------- */

/* How often the text can be repeated from the beginning; *last: the place after that. */
static unsigned repeated(struct grammar *g, const char *text, struct grammar_place **last) {
    struct grammar_place *next;
    unsigned n = 0;
    assert_int_equal(grammar_begin(g, last, &why), KVASIR_OK);
    while ((next = after(*last, text))) {
        grammar_place_destroy(*last);
        *last = next;
        n++;
    }
    return n;
}

static void check_levels(const char *schema, const char *text, unsigned most, const char *end) {
    struct grammar *g = compiled(GRAMMAR_JSON_SCHEMA, schema);
    struct grammar_place *p, *q;
    struct text_buf forced = {0};
    assert_int_equal(repeated(g, text, &p), most);
    assert_int_equal(grammar_forced(p, 1000, &forced, &why), KVASIR_OK);
    assert_non_null(q = after(p, end));
    grammar_place_destroy(q);
    grammar_place_destroy(p);
    grammar_release(g);
    text_free(&forced);
}

/* Where no level is left, only what needs none is allowed; a name whose value would need one is
 * refused before it begins. */
static void test_levels(void **state) {
    (void)state;
    check_levels("{}", "[", 64, "1");
    check_levels("{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},"
                 "\"additionalProperties\":false}",
                 "{\"a\":", 63, "{}");
    check_levels("{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", "[", 64, "]");
    /* two levels at a time, and one more at the end */
    check_levels("{\"anyOf\":[{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":"
                 "{\"$ref\":\"#\"},\"minItems\":1},\"minItems\":1},{\"type\":\"array\","
                 "\"maxItems\":0}]}",
                 "[", 63, "]");
    /* three at a time, of which one is left where 1 is all that fits */
    check_levels("{\"anyOf\":[{\"const\":1},{\"$ref\":\"#/$defs/a\"}],\"$defs\":{\"a\":{\"type\":"
                 "\"array\",\"minItems\":1,\"items\":{\"type\":\"array\",\"minItems\":1,"
                 "\"items\":{\"type\":\"array\",\"minItems\":1,\"items\":{\"$ref\":\"#\"}}}}}}",
                 "[", 63, "1");
    /* as many levels as there are; one more is no value */
    struct text_buf deep = {0};
    for (int level = 0; level < 65; level++) {
        struct grammar_limits limits = grammar_limits_default();
        struct grammar *g;
        char name[80];
        snprintf(name, sizeof name, "%s\"v%d\":{\"type\":\"array\",\"minItems\":1%s",
                 level ? "," : "", level, level ? "" : "}");
        assert_true(text_append(&deep, name, strlen(name)));
        if (level) {
            snprintf(name, sizeof name, ",\"items\":{\"$ref\":\"#/$defs/v%d\"}}", level - 1);
            assert_true(text_append(&deep, name, strlen(name)));
        }
        struct text_buf all = {0};
        snprintf(name, sizeof name, "{\"$ref\":\"#/$defs/v%d\",\"$defs\":{", level);
        assert_true(text_append(&all, name, strlen(name)) &&
                    text_append(&all, deep.data, deep.len) && text_append(&all, "}}", 2));
        const kvasir_status status = grammar_compile(
            GRAMMAR_JSON_SCHEMA, (struct text_span){all.data, all.len}, &limits, &g, &why);
        assert_int_equal(status, level < 64 ? KVASIR_OK : KVASIR_ERR_ARGUMENT);
        if (status == KVASIR_OK)
            grammar_release(g);
        text_free(&all);
    }
    text_free(&deep);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random),
                                       cmocka_unit_test(test_levels)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
