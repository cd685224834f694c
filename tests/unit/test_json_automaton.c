/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON automaton compared with jansson, byte by byte: it accepts exactly the texts that jansson
 * accepts as an object. Every beginning of such a text is alive (can still become one), and every
 * text that is alive can be completed.
 */
#include "text/json_automaton.h"

#include "text_checks.h"

enum { DOCUMENT_MAX = 1 << 14, ENDING_MAX = 400 };

/* ---- the automaton and jansson --------------------------------------------------------------- */

/* How many bytes of the text the automaton takes; *complete: all, and the text is an object. */
static size_t alive(const char *text, size_t len, bool *complete) {
    struct json_state s = {0};
    size_t n = 0;
    while (n < len && json_push(&s, (uint8_t)text[n]))
        n++;
    *complete = n == len && json_complete(&s);
    return n;
}

static bool accepts(const char *text, size_t len) {
    bool complete;
    alive(text, len, &complete);
    return complete;
}

/* Numbers are read as doubles, as most readers do. (jansson ignores a NUL after a number.) */
static bool jansson_accepts(const char *text, size_t len) {
    json_t *value = json_loadb(text, len, JSON_DECODE_INT_AS_REAL, NULL);
    const bool object = json_is_object(value) && !memchr(text, 0, len);
    json_decref(value);
    return object;
}

/* An exponent of three digits: readers may accept it, but the automaton never writes one. */
static bool has_long_exponent(const char *text, size_t len) {
    for (size_t i = 1; i + 2 < len; i++) {
        size_t digits = i + (text[i] == '+' || text[i] == '-');
        if ((text[i - 1] | 0x20) == 'e' && digits + 2 < len &&
            strspn(text + digits, "0123456789") >= 3)
            return true;
    }
    return false;
}

static void compare(const char *text, size_t len) {
    while (len && strchr(" \t\r\n", text[len - 1]))
        len--; /* the automaton takes nothing after an object */
    const bool ours = accepts(text, len), theirs = jansson_accepts(text, len);
    if (ours != theirs && !(theirs && has_long_exponent(text, len)))
        fail_msg("%s: %.*s", ours ? "accepted" : "refused", (int)len, text);
}

/* ---- completing a text that is alive --------------------------------------------------------- */

static const char *towards_end(enum json_part part) {
    switch (part) {
    case PART_BEGIN:
        return "{";
    case PART_VALUE:
    case PART_MINUS:
    case PART_POINT:
    case PART_E:
    case PART_E_SIGN:
        return "0";
    case PART_KEY:
    case PART_TEXT:
    case PART_ESCAPE:
        return "\"";
    case PART_COLON:
        return ":";
    case PART_HEX:
    case PART_LOW:
        return "0d";
    case PART_HIGH:
        return "\\";
    case PART_HIGH_U:
        return "u";
    default:
        return "}]";
    }
}

static bool try_byte(struct json_state *s, uint8_t byte) {
    struct json_state next = *s;
    if (!json_push(&next, byte))
        return false;
    *s = next;
    return true;
}

static void check_can_end(struct json_state s, const char *text, size_t len) {
    for (int i = 0; i < ENDING_MAX && !json_complete(&s); i++) {
        const char *bytes = towards_end((enum json_part)s.part);
        bool moved = false;
        for (size_t k = 0; bytes[k] && !moved; k++)
            moved = try_byte(&s, (uint8_t)bytes[k]);
        for (int byte = 0; byte < 256 && !moved; byte++) /* inside a character or a literal */
            moved = try_byte(&s, (uint8_t)byte);
        if (!moved)
            fail_msg("a dead end: %.*s", (int)len, text);
    }
    assert_true(json_complete(&s));
}

/* ---- documents ------------------------------------------------------------------------------- */

static char document[DOCUMENT_MAX + 64];
static size_t document_len;

static void add(const char *text) {
    const size_t n = strlen(text);
    memcpy(document + document_len, text, n);
    document_len += n;
}

static void add_blanks(void) {
    for (uint32_t n = rng(4) ? 0 : rng(6); n > 0; n--)
        add((const char *const[]){" ", "\n", "\t", "\r"}[rng(4)]);
}

static void add_string(void) {
    add("\"");
    for (uint32_t n = rng(12); n > 0; n--) {
        char piece[32] = "";
        switch (rng(5)) {
        case 0:
            snprintf(piece, sizeof piece, "\\%c", "\"\\/bfnrt"[rng(8)]);
            break;
        case 1:
            snprintf(piece, sizeof piece, rng(2) ? "\\u%04x" : "\\u%04X", 1 + rng(0xd7ff));
            break;
        case 2:
            snprintf(piece, sizeof piece, "\\ud%x%02X\\uD%x%02x", 8 + rng(4), rng(256), 12 + rng(4),
                     rng(256));
            break;
        default:
            piece[random_text(piece, 3)] = 0;
            for (char *p = piece; *p; p++)
                *p = (uint8_t)*p < 0x20 || *p == '"' || *p == '\\' ? ' ' : *p;
        }
        add(piece);
    }
    add("\"");
}

static void add_number(void) {
    char text[64];
    snprintf(text, sizeof text, "%s%u", rng(2) ? "-" : "", rng(3) ? rng(1000000) : 0);
    add(text);
    if (rng(2)) {
        snprintf(text, sizeof text, ".%0*u", (int)(1 + rng(8)), rng(1000));
        add(text);
    }
    if (rng(3) == 0) {
        snprintf(
            text, sizeof text, "%c%s%u", "eE" [rng(2)],
            (const char *const[]) { "", "+", "-" }[rng(3)], rng(100));
        add(text);
    }
}

static void add_value(int depth);

static void add_items(bool object, int depth) {
    add(object ? "{" : "[");
    add_blanks();
    for (uint32_t n = document_len < DOCUMENT_MAX / 4 ? rng(5) : 0, i = 0; i < n; i++) {
        if (i)
            add(",");
        add_blanks();
        if (object) {
            add_string();
            add_blanks();
            add(":");
            add_blanks();
        }
        add_value(depth + 1);
        add_blanks();
    }
    add(object ? "}" : "]");
}

static void add_value(int depth) {
    switch (rng(depth < 8 ? 7 : 5)) {
    case 0:
        add((const char *const[]){"true", "false", "null"}[rng(3)]);
        break;
    case 1:
    case 2:
        add_number();
        break;
    case 3:
    case 4:
        add_string();
        break;
    default:
        add_items(rng(2), depth);
    }
}

static void make_document(void) {
    document_len = 0;
    add_blanks();
    add_items(true, 1);
    document[document_len] = 0;
}

static void mutate(void) {
    static const char bytes[] = "{}[]\":,\\/u0123459.eE+-tfn \n\x1f\x7f\xc2\x80\xed\xf4\xff";
    for (uint32_t n = 1 + rng(2); n > 0 && document_len > 1; n--) {
        const size_t at = rng((uint32_t)document_len), rest = document_len - at;
        switch (rng(4)) {
        case 0: /* remove a byte */
            memmove(document + at, document + at + 1, rest);
            document_len--;
            break;
        case 1:
            document[at] = bytes[rng(sizeof bytes)]; /* the NUL included */
            break;
        case 2: /* insert a byte, sometimes a copy of the next */
            memmove(document + at + 1, document + at, rest + 1);
            document[at] = rng(2) ? bytes[rng(sizeof bytes)] : document[at + 1];
            document_len++;
            break;
        default: /* flip a bit */
            document[at] = (char)(document[at] ^ 1 << rng(8));
        }
    }
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_documents(void **state) {
    (void)state;
    for (int i = 0; i < 4000; i++) {
        make_document();
        bool complete;
        assert_int_equal(alive(document, document_len, &complete), document_len);
        assert_true(complete && jansson_accepts(document, document_len));
        for (int k = 0; k < 20; k++) {
            make_document();
            mutate();
            compare(document, document_len);
        }
    }
}

static void test_every_beginning_is_alive(void **state) {
    (void)state;
    for (int i = 0; i < 500; i++) {
        struct json_state s = {0};
        make_document();
        for (size_t n = 0; n < document_len; n++) {
            assert_false(json_complete(&s));
            check_can_end(s, document, n);
            assert_true(json_push(&s, (uint8_t)document[n]));
        }
        assert_true(json_complete(&s));
        for (int byte = 0; byte < 256; byte++)
            assert_false(try_byte(&s, (uint8_t)byte));
    }
}

/* Random bytes among those that are allowed: a text that is complete is an object to jansson. */
static void test_random_ways(void **state) {
    static const char often[] = "{}[]\":,\\ud0e.-1tfn ";
    uint32_t ended = 0;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        struct json_state s = {0};
        size_t n = 0;
        while (n < 300 && !json_complete(&s)) {
            const uint8_t byte = rng(2) ? (uint8_t)often[rng(sizeof often)] : (uint8_t)rng(256);
            if (!try_byte(&s, byte))
                continue;
            document[n++] = (char)byte;
            if (i % 16 == 0)
                check_can_end(s, document, n);
        }
        if (!json_complete(&s))
            continue;
        ended++;
        if (!jansson_accepts(document, n))
            fail_msg("accepted: %.*s", (int)n, document);
    }
    assert_true(ended > 5000);
}

static void expect(bool wanted, const char *before, size_t n, char what, const char *behind) {
    document_len = 0;
    add(before);
    memset(document + document_len, what, n);
    document_len += n;
    document[document_len] = 0;
    add(behind);
    if (accepts(document, document_len) != wanted)
        fail_msg("%s: %.*s", wanted ? "refused" : "accepted", (int)document_len, document);
    if (wanted)
        assert_true(jansson_accepts(document, document_len));
}

static void levels(bool wanted, int n, const char *open, const char *close) {
    document_len = 0;
    add("{\"a\":");
    for (int i = 1; i < n; i++)
        add(open);
    add("1");
    for (int i = 1; i < n; i++)
        add(close);
    add("}");
    assert_int_equal(accepts(document, document_len), wanted);
}

static void test_limits(void **state) {
    (void)state;
    static const char *const around[][2] = {
        {"", "{}"},        {"{", "}"},          {"{\"a\"", ":1}"},   {"{\"a\":", "1}"},
        {"{\"a\":1", "}"}, {"{\"a\":[", "1]}"}, {"{\"a\":[0", "]}"}, {"{\"a\":1,", "\"\":2}"},
    };
    for (size_t i = 0; i < sizeof around / sizeof *around; i++) {
        expect(true, around[i][0], JSON_BLANKS_MAX, ' ', around[i][1]);
        expect(false, around[i][0], JSON_BLANKS_MAX + 1, '\n', around[i][1]);
    }
    expect(true, "{\" \":\"", 5000, ' ', "\"}");
    expect(true, "{\"a\":", JSON_DIGITS_MAX, '9', "}");
    expect(false, "{\"a\":", JSON_DIGITS_MAX + 1, '9', "}");
    expect(true, "{\"a\":-1.", JSON_DIGITS_MAX, '0', "e99}");
    expect(false, "{\"a\":-1.", JSON_DIGITS_MAX + 1, '0', "}");
    expect(false, "{\"a\":1E+", 3, '0', "}");
    levels(true, JSON_LEVELS_MAX, "[", "]");
    levels(false, JSON_LEVELS_MAX + 1, "[", "]");
    levels(true, JSON_LEVELS_MAX, "{\"a\":", "}");
    levels(false, JSON_LEVELS_MAX + 1, "{\"a\":", "}");
}

static void test_by_hand(void **state) {
    (void)state;
    static const struct {
        bool good;
        const char *text;
    } cases[] = {
        {true, "{}"},
        {true, "{\"a\":1,\"a\":2}"}, /* the same key twice */
        {true, " \t\r\n{ } "},
        {true, "{\"\\ud83d\\ude00\":\"\\u000a\\uFFFF\"}"},
        {true, "{\"a\":[-0,0.0,-0.5e-7,1E+2,10,0e0]}"},
        {true, "{\"\x7f\":\"\xc2\x80\xef\xbf\xbf\xf4\x8f\xbf\xbf\"}"},
        {true, "{\"a\":[{\"b\":[[],{}]},true,false,null,\"\"]}"},
        {false, ""},
        {false, "[]"},
        {false, "1"},
        {false, "\"a\""},
        {false, "{}}"},
        {false, "{}{}"},
        {false, "{]"},
        {false, "{\"a\":[}"},
        {false, "{\"a\":[1}]"},
        {false, "{\"a\"}"},
        {false, "{\"a\":}"},
        {false, "{\"a\":1,}"},
        {false, "{\"a\":[1,]}"},
        {false, "{\"a\":[,1]}"},
        {false, "{a:1}"},
        {false, "{'a':1}"},
        {false, "{\"a\":01}"},
        {false, "{\"a\":-}"},
        {false, "{\"a\":+1}"},
        {false, "{\"a\":.5}"},
        {false, "{\"a\":1.}"},
        {false, "{\"a\":1e}"},
        {false, "{\"a\":1e+}"},
        {false, "{\"a\":0x1}"},
        {false, "{\"a\":1 2}"},
        {false, "{\"a\":NaN}"},
        {false, "{\"a\":True}"},
        {false, "{\"a\":tru}"},
        {false, "{\"a\":nulll}"},
        {false, "{\"\n\":1}"},
        {false, "{\"\\x\":1}"},
        {false, "{\"\\u12g4\":1}"},
        {false, "{\"\\u0000\":1}"},
        {false, "{\"a\":\"\\u0000\"}"},
        {false, "{\"a\":\"\\ud800\"}"},
        {false, "{\"a\":\"\\ud800x\"}"},
        {false, "{\"a\":\"\\ud800\\n\"}"},
        {false, "{\"a\":\"\\ud800\\u0041\"}"},
        {false, "{\"a\":\"\\udc00\"}"},
        {false, "{\"\xc0\x80\":1}"},     /* overlong */
        {false, "{\"\xed\xa0\x80\":1}"}, /* a surrogate */
        {false, "{\"\xf4\x90\x80\x80\":1}"},
        {false, "{\"\xc3\":1}"},
        {false, "{\"\x80\":1}"},
        {false, "\xef\xbb\xbf{}"}, /* a byte order mark */
        {false, "/**/{}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = cases[i].text;
        size_t len = strlen(text);
        assert_int_equal(jansson_accepts(text, len), cases[i].good);
        compare(text, len);
    }
    assert_false(accepts("{}\0", 3));
    assert_false(accepts("{\"\0\":1}", 7));
    assert_false(accepts("{} ", 3)); /* only an end token may follow */
}

int main(void) {
    rng_start(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),     cmocka_unit_test(test_limits),
        cmocka_unit_test(test_documents),   cmocka_unit_test(test_every_beginning_is_alive),
        cmocka_unit_test(test_random_ways),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
