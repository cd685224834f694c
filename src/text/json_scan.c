/* SPDX-License-Identifier: Apache-2.0 */
/* json_scan.c: see json_scan.h. Besides the place, the state is only `first`: whether the next item
 * of the innermost object or array follows the bracket or needs a comma. It is not kept per level,
 * because an item that was read is never the first. */
#include <string.h>

#include "text/json_scan.h"
#include "text/tokenizer_internal.h"

void scan_init(struct json_scan *s, const char *name, struct text_span text, kvasir_error *err) {
    *s = (struct json_scan){.name = name, .text = text, .err = err};
}

void scan_deinit(struct json_scan *s) {
    text_free(&s->plain);
}

static kvasir_status fail_there(const struct json_scan *s, kvasir_status code, size_t at,
                                const char *what) {
    return fail_at(s->err, code, (int64_t)at, "%s: %s", s->name, what);
}

kvasir_status scan_fail(const struct json_scan *s, kvasir_status code, const char *what) {
    return fail_there(s, code, s->at, what);
}

static kvasir_status bad_json(const struct json_scan *s, const char *what) {
    return fail_there(s, KVASIR_ERR_FORMAT, s->at, what);
}

char scan_peek(struct json_scan *s) {
    ASSERT(s->at <= s->text.len);
    for (; s->at < s->text.len; s->at++) {
        char c = s->text.data[s->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
            return c;
    }
    return 0;
}

static kvasir_status scan_expect(struct json_scan *s, char c) {
    if (scan_peek(s) != c || s->at == s->text.len) {
        char what[] = "expected '?'";
        what[sizeof "expected '" - 1] = c;
        return bad_json(s, what);
    }
    s->at++;
    return KVASIR_OK;
}

/* ---- objects and arrays ---------------------------------------------------------------------- */

kvasir_status scan_open(struct json_scan *s, char bracket) {
    TRY(scan_expect(s, bracket));
    s->first = true;
    return KVASIR_OK;
}

static kvasir_status scan_next(struct json_scan *s, char close, bool *more) {
    bool first = s->first;
    s->first = false;
    *more = scan_peek(s) != close;
    if (!*more) {
        s->at++;
        return KVASIR_OK;
    }
    return first ? KVASIR_OK : scan_expect(s, ',');
}

kvasir_status scan_next_item(struct json_scan *s, bool *more) {
    return scan_next(s, ']', more);
}

bool scan_each_item(struct json_scan *s, kvasir_status *status) {
    bool more = false;
    if (*status == KVASIR_OK)
        *status = scan_next_item(s, &more);
    return *status == KVASIR_OK && more;
}

static kvasir_status next_key(struct json_scan *s, struct text_span *key, bool *more) {
    TRY(scan_next(s, '}', more));
    if (!*more)
        return KVASIR_OK;
    TRY(scan_string(s, key));
    return scan_expect(s, ':');
}

bool scan_each_key(struct json_scan *s, struct text_span *key, kvasir_status *status) {
    bool more = false;
    if (*status == KVASIR_OK)
        *status = next_key(s, key, &more);
    return *status == KVASIR_OK && more;
}

/* ---- strings --------------------------------------------------------------------------------- */

/* The four digits after \u. */
static kvasir_status code_unit(struct json_scan *s, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        int digit = s->at < s->text.len ? hex_digit(s->text.data[s->at]) : -1;
        if (digit < 0)
            return bad_json(s, "\\u needs four hexadecimal digits");
        *out = *out << 4 | (uint32_t)digit;
    }
    return KVASIR_OK;
}

static kvasir_status scan_character(struct json_scan *s, uint32_t *c) {
    size_t start = s->at;
    TRY(code_unit(s, c));
    if (*c < 0xd800 || *c > 0xdfff)
        return KVASIR_OK;
    uint32_t low = 0;
    bool pair = *c < 0xdc00 && s->text.len - s->at >= 2 && s->text.data[s->at] == '\\' &&
                s->text.data[s->at + 1] == 'u';
    if (pair) {
        s->at += 2;
        TRY(code_unit(s, &low));
    }
    if (low < 0xdc00 || low > 0xdfff)
        return fail_there(s, KVASIR_ERR_FORMAT, start, "unpaired surrogate");
    *c = 0x10000 + ((*c - 0xd800) << 10) + (low - 0xdc00);
    return KVASIR_OK;
}

static kvasir_status scan_escape(struct json_scan *s) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = s->at < s->text.len ? s->text.data[s->at] : 0;
    const char *name = c ? strchr(names, c) : NULL;
    char out[4];
    size_t n = 1;
    s->at++;
    if (name) {
        out[0] = values[name - names];
    } else if (c == 'u') {
        uint32_t code;
        TRY(scan_character(s, &code));
        n = utf8_put(out, code);
    } else {
        s->at--;
        return bad_json(s, "invalid escape in a string");
    }
    if (!text_append(&s->plain, out, n))
        return scan_fail(s, KVASIR_ERR_MEMORY, "not enough memory for a string");
    return KVASIR_OK;
}

/* The end of the run of bytes without escapes. */
static size_t plain_run(const struct json_scan *s) {
    size_t at = s->at;
    while (at < s->text.len) {
        uint8_t c = (uint8_t)s->text.data[at];
        if (c == '"' || c == '\\' || c < 0x20)
            break;
        at++;
    }
    return at;
}

static kvasir_status check_utf8(const struct json_scan *s, size_t start, size_t end) {
    size_t valid = utf8_check(s->text.data + start, end - start);
    return start + valid == end
               ? KVASIR_OK
               : fail_there(s, KVASIR_ERR_FORMAT, start + valid, "a string is not valid UTF-8");
}

kvasir_status scan_string(struct json_scan *s, struct text_span *out) {
    TRY(scan_expect(s, '"'));
    size_t start = s->at;
    bool escaped = false;
    s->plain.len = 0;
    for (;;) {
        size_t run = s->at;
        s->at = plain_run(s);
        if (s->at == s->text.len)
            return bad_json(s, "a string has no closing quotation mark");
        TRY(check_utf8(s, run, s->at));
        char c = s->text.data[s->at];
        if (c == '"' && !escaped)
            break;
        escaped = true;
        if (!text_append(&s->plain, s->text.data + run, s->at - run))
            return scan_fail(s, KVASIR_ERR_MEMORY, "not enough memory for a string");
        if (c == '"')
            break;
        if (c != '\\')
            return bad_json(s, "unescaped control character in a string");
        s->at++;
        TRY(scan_escape(s));
    }
    *out = escaped ? (struct text_span){s->plain.data, s->plain.len}
                   : (struct text_span){s->text.data + start, s->at - start};
    s->at++;
    return KVASIR_OK;
}

/* ---- other values ---------------------------------------------------------------------------- */

static bool digit_at(const struct json_scan *s, size_t at) {
    return at < s->text.len && s->text.data[at] >= '0' && s->text.data[at] <= '9';
}

static bool take_digits(struct json_scan *s) {
    size_t start = s->at;
    while (digit_at(s, s->at))
        s->at++;
    return s->at > start;
}

static bool take_byte(struct json_scan *s, const char *one_of) {
    if (s->at == s->text.len || !s->text.data[s->at] || !strchr(one_of, s->text.data[s->at]))
        return false;
    s->at++;
    return true;
}

static kvasir_status skip_number(struct json_scan *s) {
    (void)take_byte(s, "-");
    bool zero = s->at < s->text.len && s->text.data[s->at] == '0';
    bool good = take_digits(s);
    if (zero && good && s->at >= 2 && digit_at(s, s->at - 1) && digit_at(s, s->at - 2))
        return bad_json(s, "a number must not begin with 0");
    if (good && take_byte(s, "."))
        good = take_digits(s);
    if (good && take_byte(s, "eE")) {
        (void)take_byte(s, "+-");
        good = take_digits(s);
    }
    return good ? KVASIR_OK : bad_json(s, "expected a value");
}

kvasir_status scan_id(struct json_scan *s, int32_t *out) {
    (void)scan_peek(s);
    size_t start = s->at;
    TRY(skip_number(s));
    int64_t value = 0;
    for (size_t i = start; i < s->at && value <= INT32_MAX; i++) {
        if (!digit_at(s, i))
            return fail_there(s, KVASIR_ERR_FORMAT, start, "an id must be a whole number");
        value = value * 10 + (s->text.data[i] - '0');
    }
    if (value > INT32_MAX)
        return fail_there(s, KVASIR_ERR_FORMAT, start, "an id is above 2147483647");
    *out = (int32_t)value;
    return KVASIR_OK;
}

static bool take_literal(struct json_scan *s, const char *word) {
    size_t len = strlen(word);
    if (s->text.len - s->at < len || memcmp(s->text.data + s->at, word, len) != 0)
        return false;
    s->at += len;
    return true;
}

kvasir_status scan_bool(struct json_scan *s, bool *out) {
    (void)scan_peek(s);
    *out = take_literal(s, "true");
    return *out || take_literal(s, "false") ? KVASIR_OK : bad_json(s, "expected true or false");
}

static kvasir_status skip_value(struct json_scan *s, int depth) {
    struct text_span ignored;
    bool flag;
    char c = scan_peek(s);
    kvasir_status status;
    if (depth == JSON_DEPTH_MAX && (c == '{' || c == '['))
        return bad_json(s, "nested too deeply");
    switch (c) {
    case '{':
        status = scan_open(s, '{');
        while (scan_each_key(s, &ignored, &status))
            status = skip_value(s, depth + 1);
        return status;
    case '[':
        status = scan_open(s, '[');
        while (scan_each_item(s, &status))
            status = skip_value(s, depth + 1);
        return status;
    case '"':
        return scan_string(s, &ignored);
    case 't':
    case 'f':
        return scan_bool(s, &flag);
    case 'n':
        return take_literal(s, "null") ? KVASIR_OK : bad_json(s, "expected a value");
    default:
        return skip_number(s);
    }
}

kvasir_status scan_skip(struct json_scan *s, struct text_span *raw) {
    (void)scan_peek(s);
    size_t start = s->at;
    TRY(skip_value(s, 0));
    *raw = (struct text_span){s->text.data + start, s->at - start};
    return KVASIR_OK;
}

kvasir_status scan_finish(struct json_scan *s) {
    (void)scan_peek(s);
    return s->at == s->text.len ? KVASIR_OK : bad_json(s, "unexpected text after the value");
}
