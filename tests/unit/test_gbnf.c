/* SPDX-License-Identifier: Apache-2.0 */
/* GBNF: grammars as llama.cpp's examples have them take the texts that they should and no others,
 * and what is wrong or cannot be held is refused with its place.
 */
#include "grammar_checks.h"

#define GBNF GRAMMAR_GBNF
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COMPILE_SECONDS 5.0 /* other tests run beside this one */
#else
#define COMPILE_SECONDS 0.5
#endif

static void json(void **state) {
    (void)state;
    struct grammar *g = compiled(
        GBNF, "root   ::= object\n"
              "value  ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
              "\n"
              "object ::=\n"
              "  \"{\" ws (\n"
              "            string \":\" ws value\n"
              "    (\",\" ws string \":\" ws value)*\n"
              "  )? \"}\" ws\n"
              "\n"
              "array  ::=\n"
              "  \"[\" ws (\n"
              "            value\n"
              "    (\",\" ws value)*\n"
              "  )? \"]\" ws\n"
              "\n"
              "string ::=\n"
              "  \"\\\"\" (\n"
              "    [^\"\\\\\\x7F\\x00-\\x1F] |\n"
              "    \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) # escapes\n"
              "  )* \"\\\"\" ws\n"
              "\n"
              "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] "
              "[1-9]{0,15})? ws\n"
              "\n"
              "# Optional space: by convention, applied in this grammar after literal chars when "
              "allowed\n"
              "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n");
    accepts(g, "{}");
    accepts(g, "{\"a\":1}");
    accepts(g, "{ \"a\": [1, -2.5e3 , \"x\\n\\u00e9\", {\"b\":null }], \"c\":\n    true}");
    accepts(g, "{\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\":\"\"}");
    refuses(g, "[]", 0);
    refuses(g, "{\"a\":01}", 6);
    refuses(g, "{\"a\":\"\\x\"}", 7);
    refuses(g, "{\"a\":\"\x1f\"}", 6);
    refuses(g, "{\"a\":\"\x7f\"}", 6);
    refuses(g, "{\"a\"", 4);
    refuses(g, "{\"\xed\xa0\x80\":1}", 3);
    refuses(g, "{}  ", 3);
    grammar_release(g);
}

/* A call of the root, which has the first alternative of all, after it was defined. */
static void root_called_later(void **state) {
    (void)state;
    struct grammar *g = compiled(GBNF, "root ::= \"a\" more?\nmore ::= \"b\" | \",\" root\n");
    accepts(g, "a,a,ab");
    refuses(g, "b", 0);
    grammar_release(g);
}

static void arithmetic(void **state) {
    (void)state;
    struct grammar *g = compiled(GBNF, "root  ::= (expr \"=\" ws term \"\\n\")+\n"
                                       "expr  ::= term ([-+*/] term)*\n"
                                       "term  ::= ident | num | \"(\" ws expr \")\" ws\n"
                                       "ident ::= [a-z] [a-z0-9_]* ws\n"
                                       "num   ::= [0-9]+ ws\n"
                                       "ws    ::= [ \\t\\n]*\n");
    accepts(g, "1+2=3\n");
    accepts(g, "(a_1 +(2 *3)) /b = 7\nx=1\n");
    refuses(g, "1+2=3", 5);
    refuses(g, "1+*", 2);
    refuses(g, "(1))", 3);
    grammar_release(g);
}

static void chess(void **state) {
    (void)state;
    struct grammar *g =
        compiled(GBNF, "root    ::= \"1. \" move \" \" move \"\\n\" ([1-9] [0-9]? \". \" move \" "
                       "\" move \"\\n\")+\n"
                       "move    ::= (pawn | nonpawn | castle) [+#]?\n"
                       "# piece type, optional file/rank, optional capture, dest file & rank\n"
                       "nonpawn ::= [NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\n"
                       "pawn    ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBKQR])?\n"
                       "castle  ::= \"O-O\" \"-O\"?\n");
    accepts(g, "1. e4 e5\n2. Nf3 Nc6\n3. Bb5 O-O-O+\n");
    accepts(g, "1. exd5 Rae1\n12. e8=Q Qh4e1#\n");
    refuses(g, "1. e4 e5\n", 9);
    refuses(g, "1. i4", 3);
    grammar_release(g);
}

static void lists(void **state) {
    (void)state;
    struct grammar *g = compiled(GBNF, "root ::= item+\r\n"
                                       "# Excludes various line break characters\r\n"
                                       "item ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ "
                                       "\"\\n\"\r\n");
    accepts(g, "- one\n- zw\xc3\xb6lf\n");
    refuses(g, "- a\xe2\x80\xa8\n", 5);
    refuses(g, "- a\xc2\x85\n", 4);
    refuses(g, "-a", 1);
    grammar_release(g);
    g = compiled(GBNF, "root ::= jp-char+ ([ \\t\\n] jp-char+)*\n"
                       "jp-char ::= hiragana | katakana | punctuation | cjk\n"
                       "hiragana ::= [\xe3\x81\x81-\xe3\x82\x9f]\n"
                       "katakana ::= [\xe3\x82\xa1-\xe3\x83\xbf]\n"
                       "punctuation ::= [\xe3\x80\x81-\xe3\x80\xbe]\n"
                       "cjk ::= [\xe4\xb8\x80-\xe9\xbf\xbf]\n");
    accepts(g, "\xe3\x81\x82\xe4\xb8\x80 \xe3\x82\xa2\xe3\x80\x82");
    refuses(g, "a", 0);
    refuses(g, "\xe3\x82\xa0", 2);
    grammar_release(g);
}

static void repetitions(void **state) {
    (void)state;
    struct grammar *g =
        compiled(GBNF, "root ::= \"a\"{2} \"b\"{1,} \"cd\"{0,2} (\"e\" | \"f\"?){3,4}");
    accepts(g, "aab");
    accepts(g, "aabbbbcdcdefef");
    refuses(g, "ab", 1);
    refuses(g, "aabcdcdcd", 7);
    refuses(g, "aabeeeee", 7);
    grammar_release(g);
    g = compiled(GBNF, "root ::= ((\"a\"*)* (\"b\"?)+)* \"\" .");
    accepts(g, "aaabbab\n");
    accepts(g, "\xf0\x9f\x98\x80");
    refuses(g, "", 0);
    grammar_release(g);
    g = compiled(GBNF, "root ::= \"a\"{3,}? \"x\" {0} [] | \"z\"{0,0}");
    accepts(g, ""); /* a class without characters takes none, so the first alternative never ends */
    refuses(g, "a", 0);
    grammar_release(g);
    g = compiled(GBNF, "root ::= ((\"a\"{1000}){1000}){1000}");
    refuses(g, "aaaab", 4);
    grammar_release(g);
}

/* `a++` can be read in as many ways as `a+`. */
static void repetitions_in_a_row(void **state) {
    (void)state;
    struct grammar *g = compiled(GBNF, "root ::= \"a\"++++++++++++++++++++++++++++++ \"b\"");
    accepts(g, "aaaaaaab");
    refuses(g, "b", 0);
    grammar_release(g);
    g = compiled(GBNF, "root ::= \"a\"+? \"b\"?+ \"c\"+* \"d\"*? \"e\"?? \"f\"{2}+");
    accepts(g, "ff");
    accepts(g, "aabbccddeffff");
    refuses(g, "eeff", 1);
    refuses(g, "fff", 3);
    grammar_release(g);
}

static void classes(void **state) {
    (void)state;
    struct grammar *g = compiled(GBNF, "root ::= [a\\]\\[\\-c-e-]+ [^^\\x00-\\U0010FFFE]");
    accepts(g, "]-[ade\xf4\x8f\xbf\xbf");
    refuses(g, "b", 0);
    refuses(g, "a^", 1);
    refuses(g, "a\xf4\x8f\xbf\xbe", 4);
    grammar_release(g);
    g = compiled(GBNF, "root ::= [\\u0041-\\u0043\\xe9]{2} \"\\\"\\\\\\t\"");
    accepts(g, "A\xc3\xa9\"\\\t");
    grammar_release(g);
    g = compiled(GBNF, "root ::= [\\uD7FF-\\uE000]+"); /* surrogates are no characters */
    accepts(g, "\xed\x9f\xbf\xee\x80\x80");
    refuses(g, "\xed\xa0\x80", 1);
    grammar_release(g);
    /* all but the neighbours of surrogates; all but what there is */
    g = compiled(GBNF, "root ::= \"a\" [^\\uD7FF\\uE000]");
    accepts(g, "ab");
    refuses(g, "a\xed\xa0\x80", 2);
    refuses(g, "a\xee\x80\x80", 3);
    grammar_release(g);
    g = compiled(GBNF, "root ::= \"a\" | [^\\x00-\\uD7FF\\uE000-\\U0010FFFF]");
    accepts(g, "a");
    refuses(g, "\xed\xa0\x80", 0);
    grammar_release(g);
}

static void deep_texts(void **state) {
    (void)state;
    struct grammar *g = compiled(GBNF, "root ::= \"(\" root \")\" | mid\nmid ::= \"x\"");
    char text[4001];
    memset(text, '(', 4000);
    text[4000] = 0;
    bool complete;
    const size_t open = taken_of(g, span(text), &complete);
    assert_in_range(open, 1000, 1024); /* as deep as a text can go, it can still be completed */
    text[open] = 'x';
    memset(text + open + 1, ')', open);
    text[2 * open + 1] = 0;
    accepts(g, text);
    grammar_release(g);
    g = compiled(GBNF, "root ::= \"a\" root | \"a\""); /* calls at the end leave nothing behind */
    memset(text, 'a', 4000);
    text[4000] = 0;
    accepts(g, text);
    grammar_release(g);
}

static void control_tokens(void **state) {
    (void)state;
    struct grammar *g = compiled(GBNF, "root ::= <[151644]> \"a\"+ <[200]>");
    const char good[] = "\xff\x02\x50\x5c"
                        "aa\xff\x00\x00\xc8";
    const char other[] = "\xff\x02\x50\x5d";
    bool complete;
    taken_of(g, (struct text_span){good, sizeof good - 1}, &complete);
    assert_true(complete);
    assert_int_equal(taken_of(g, (struct text_span){other, 4}, &complete), 3);
    grammar_release(g);
}

static void refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *why;
        kvasir_status code;
    } cases[] = {
        {"", "line 1, column 1: there is no rule root", KVASIR_ERR_ARGUMENT},
        {"root ::= a\n  b", "column 4: ::= is missing", KVASIR_ERR_ARGUMENT},
        {"x ::= \"a\"\nroot ::= y", "line 2, column 10: there is no rule y", KVASIR_ERR_ARGUMENT},
        {"root ::= \"a", "column 12: the grammar ends inside", KVASIR_ERR_ARGUMENT},
        {"root ::= [a-", "ends inside", KVASIR_ERR_ARGUMENT},
        {"root ::= [b-a]", "ends before it begins", KVASIR_ERR_ARGUMENT},
        {"root ::= \"\\q\"", "column 11: an unknown escape", KVASIR_ERR_ARGUMENT},
        {"root ::= \"\\u12\"", "hexadecimal", KVASIR_ERR_ARGUMENT},
        {"root ::= \"\\ud800\"", "no character", KVASIR_ERR_ARGUMENT},
        {"root ::= \"\\U00110000\"", "no character", KVASIR_ERR_ARGUMENT},
        {"root ::= (\"a\"", "parenthesis", KVASIR_ERR_ARGUMENT},
        {"root ::= \"a\")", "begins nothing", KVASIR_ERR_ARGUMENT},
        {"root ::= \"a\"{2", "brace", KVASIR_ERR_ARGUMENT},
        {"root ::= \"a\"{3,2}", "at least", KVASIR_ERR_ARGUMENT},
        {"root ::= \"a\"{x}", "number is missing", KVASIR_ERR_ARGUMENT},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: this rule is there already",
         KVASIR_ERR_ARGUMENT},
        {"root ::= \"a\" root", "no text can end the rule root", KVASIR_ERR_ARGUMENT},
        {"root ::= a | b\na ::= \"x\" b\nb ::= \"y\" a", "no text can end", KVASIR_ERR_ARGUMENT},
        {"root ::= root \"a\" | \"b\"", "rule root calls itself", KVASIR_ERR_UNSUPPORTED},
        {"root ::= \"b\" e\ne ::= t\nt ::= n* e \"+\" | \"1\"\nn ::= \"x\"", "left recursion",
         KVASIR_ERR_UNSUPPORTED},
        {"root ::= <think>", "tokens are written as numbers", KVASIR_ERR_ARGUMENT},
        {"root ::= !<[1]>", "any token but one", KVASIR_ERR_UNSUPPORTED},
        {"root ::= <[99999999]>", "too large", KVASIR_ERR_UNSUPPORTED},
        {"root ::= \"a\"{1,100000000}", "costs more", KVASIR_ERR_UNSUPPORTED},
        {"root ::= \"a\"{100000000}", "costs more", KVASIR_ERR_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        does_not_compile(GBNF, cases[i].text, cases[i].code, cases[i].why);
}

/* A circle of calls at the end of alternatives reads nothing and grows nothing. */
static void harmless_circles(void **state) {
    (void)state;
    struct grammar *g =
        compiled(GBNF, "root ::= a \"!\"\na ::= b | \"x\"\nb ::= e* a | \"y\"\ne ::= \"e\"?");
    accepts(g, "x!");
    accepts(g, "eey!");
    refuses(g, "e!", 1);
    grammar_release(g);
}

/* More and more ways to read the same: at some length that costs too much. */
static void push_costly(struct grammar *g) {
    struct grammar_place *p;
    size_t taken;
    kvasir_error err = {0};
    kvasir_status status = grammar_begin(g, &p, &err);
    for (int i = 0; i < 1000 && status == KVASIR_OK; i++)
        status = grammar_push(p, span("a"), &taken, &err);
    assert_int_equal(status, KVASIR_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "costs more to follow"));
    grammar_place_destroy(p);
}

/* Refused, or compiled and then slow to grow: within 100 ms. */
static void hostile(void **state) {
    (void)state;
    enum { RULES = 45000 };
    struct text_buf chain = {0}, nested = {0}, many = {0}, ambiguous = {0};
    assert_true(text_puts(&chain, "root ::= r0\n"));
    for (int i = 0; i < RULES; i++) /* each needs all that follow */
        assert_true(text_printf(&chain, "r%d ::= r%d\n", i, i + 1));
    assert_true(text_printf(&chain, "r%d ::= \"x\"\n", RULES));
    assert_true(text_puts(&nested, "root ::= "));
    for (int i = 0; i < 100000; i++)
        assert_true(text_puts(&nested, "("));
    assert_true(text_puts(&many, "root ::= \"a\""));
    for (int i = 0; i < 200000; i++)
        assert_true(text_puts(&many, "|[a]"));
    assert_true(text_puts(&ambiguous,
                          "root ::= a a a a a a a a a a\na ::= \"a\" a | \"a\" b | \"\"\n"
                          "b ::= \"a\" b \"c\" | \"a\" a \"c\" | \"\""));
    const struct text_buf *texts[] = {&chain, &nested, &many, &ambiguous};
    for (size_t i = 0; i < 4; i++) {
        struct grammar *g = NULL;
        kvasir_error err = {0};
        const double start = cpu_seconds();
        const kvasir_status status = grammar_compile(
            GBNF, (struct text_span){texts[i]->data, texts[i]->len}, NULL, &g, &err);
        const double compile = cpu_seconds() - start;
        if (status == KVASIR_OK)
            push_costly(g);
        print_message("%.1f ms, %.1f ms to read: %s\n", 1e3 * compile,
                      1e3 * (cpu_seconds() - start - compile), status ? err.text : "compiled");
        assert_true(compile < COMPILE_SECONDS);
        grammar_release(g);
    }
    text_free(&chain);
    text_free(&nested);
    text_free(&many);
    text_free(&ambiguous);
}

/* An expression inside a grammar, where only the quote is escaped. */
static void regex_inside(void **state) {
    (void)state;
    struct grammar *g = compiled(GRAMMAR_GBNF, "root ::= \"<\" %regex \"[ab]+\\\"|\\d?\" \">\"+");
    accepts(g, "<ab\">");
    accepts(g, "<>>");
    accepts(g, "<7>");
    refuses(g, "<ab>", 3);
    grammar_release(g);
    does_not_compile(GRAMMAR_GBNF, "root ::= %regex a", KVASIR_ERR_ARGUMENT, "in quotes");
    does_not_compile(GRAMMAR_GBNF, "root ::= %regex \"a", KVASIR_ERR_ARGUMENT, "ends inside");
    does_not_compile(GRAMMAR_GBNF, "root ::= %regex \"(a\"", KVASIR_ERR_ARGUMENT, "pattern");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regex_inside),
        cmocka_unit_test(json),
        cmocka_unit_test(root_called_later),
        cmocka_unit_test(arithmetic),
        cmocka_unit_test(chess),
        cmocka_unit_test(lists),
        cmocka_unit_test(repetitions),
        cmocka_unit_test(repetitions_in_a_row),
        cmocka_unit_test(classes),
        cmocka_unit_test(deep_texts),
        cmocka_unit_test(control_tokens),
        cmocka_unit_test(refused),
        cmocka_unit_test(harmless_circles),
        cmocka_unit_test(hostile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
