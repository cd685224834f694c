/* SPDX-License-Identifier: Apache-2.0 */
/* json_walk.c: JSON from clients without a tree.
 *
 *     text --next: token--> walk --part_fn--> members of the object, items of the array
 *
 * Accepts what jansson accepts, and words errors like it, at the same byte: a body is refused in
 * the same way whether or not a tree is built from it. One difference: jansson skips a NUL byte
 * after a number or a word.
 *
 * Nothing recurses. The names of open objects are on a stack (`names`, offsets into the text),
 * sorted when their object ends to find those that are there twice. So time is n log n, whatever
 * the names are, and memory is bounded by the text.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util/json.h"
#include "util/utf8.h"

enum { END, INVALID, STRING, SCALAR }; /* tokens; brackets, commas and colons are themselves */

struct walk {
    const char *text;
    size_t len, at; /* read up to here */
    int token;
    size_t from; /* the token's first byte */
    unsigned depth;
    uint64_t objects[JSON_REQUEST_DEPTH_MAX / 64 + 1]; /* bit: is this level an object? */
    size_t *names; /* of open objects: where the outer one's begin, then offsets */
    size_t n_names, names_cap, names_from;
    uint64_t tree_bytes;
    bool failed;
    kvasir_error *err;
};

/* Returns false. The first error counts. */
static bool bad(struct walk *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool bad(struct walk *w, const char *format, ...) {
    char why[64];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    if (!w->failed)
        (void)fail_at(w->err, KVASIR_ERR_TEXT, (int64_t)w->at, "invalid JSON at byte %zu: %s",
                      w->at, why);
    w->failed = true;
    return false;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static int hex_digit(char c) {
    const int lower = c | 0x20;
    return is_digit(c) ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* The byte at w->at; 0 at the end. */
static char peek(const struct walk *w) {
    return w->at < w->len ? w->text[w->at] : 0;
}

/* Passes a character that is not ASCII. */
static bool take_wide(struct walk *w) {
    const uint8_t *s = (const uint8_t *)w->text + w->at;
    const int n = utf8_length(s, w->len - w->at);
    if (n < 1)
        return bad(w, "unable to decode byte 0x%x", *s);
    w->at += (size_t)n;
    return true;
}

/* What follows a number or a word is looked at, as it may belong to it. */
static void check_next(struct walk *w) {
    const size_t at = w->at;
    if (peek(w) & 0x80)
        (void)take_wide(w);
    w->at = at;
}

static bool bad_escape(struct walk *w) {
    const size_t at = w->at;
    if ((peek(w) & 0x80) && !take_wide(w))
        return false;
    w->at = at + (at < w->len);
    return bad(w, "invalid escape");
}

/* What follows a backslash. */
static bool take_escape(struct walk *w) {
    const char c = peek(w);
    if (!c || !strchr("\"\\/bfnrtu", c))
        return bad_escape(w);
    w->at++;
    for (int i = 0; c == 'u' && i < 4; i++, w->at++)
        if (hex_digit(peek(w)) < 0)
            return bad_escape(w);
    return true;
}

static unsigned unit_of(const char *hex) {
    unsigned unit = 0;
    for (int i = 0; i < 4; i++)
        unit = unit << 4 | (unsigned)hex_digit(hex[i]);
    return unit;
}

/* Surrogates come in pairs, in a string whose escapes are whole. */
static bool check_surrogates(struct walk *w, size_t from, size_t end) {
    for (size_t i = from; i < end; i++) {
        if (w->text[i] != '\\' || w->text[++i] != 'u')
            continue;
        const unsigned first = unit_of(w->text + i + 1);
        i += 4;
        if (first < 0xd800 || first > 0xdfff)
            continue;
        if (first > 0xdbff || w->text[i + 1] != '\\' || w->text[i + 2] != 'u')
            return bad(w, "invalid Unicode '\\u%04X'", first);
        const unsigned second = unit_of(w->text + i + 3);
        if (second < 0xdc00 || second > 0xdfff)
            return bad(w, "invalid Unicode '\\u%04X\\u%04X'", first, second);
        i += 6;
    }
    return true;
}

/* w->at is behind the quote. */
static bool take_string(struct walk *w) {
    const size_t from = w->at;
    bool units = false;
    for (;;) {
        const char c = peek(w);
        if (w->at == w->len)
            return bad(w, "premature end of input");
        if (c == '"')
            break;
        if (c & 0x80) {
            if (!take_wide(w))
                return false;
        } else if (c == '\n') {
            return bad(w, "unexpected newline");
        } else if ((unsigned char)c < 0x20) {
            return bad(w, "control character 0x%x", (unsigned)c);
        } else {
            w->at++;
            units |= c == '\\' && peek(w) == 'u';
            if (c == '\\' && !take_escape(w))
                return false;
        }
    }
    w->at++;
    return !units || check_surrogates(w, from, w->at - 1);
}

static bool take_digits(struct walk *w) {
    if (!is_digit(peek(w)))
        return false;
    while (is_digit(peek(w)))
        w->at++;
    return true;
}

static bool check_integer(struct walk *w) {
    char digits[24];
    const size_t n = w->at - w->from;
    const bool negative = w->text[w->from] == '-';
    errno = 0;
    if (n < sizeof digits) {
        memcpy(digits, w->text + w->from, n);
        digits[n] = 0;
        (void)strtoll(digits, NULL, 10);
    }
    if (n < sizeof digits && errno != ERANGE)
        return true;
    return bad(w, negative ? "too big negative integer" : "too big integer");
}

static bool check_real(struct walk *w, bool exponent) {
    enum { SAFE = 300 }; /* so many digits are below the largest number */
    const double most = 1.7976931348623157e308;
    if (!exponent && w->at - w->from <= SAFE)
        return true;
    /* strtod ends where the number does, unless the text ends there */
    char *copy = w->at == w->len ? mem_strndup(w->text + w->from, w->at - w->from) : NULL;
    const double x =
        w->at == w->len ? (copy ? strtod(copy, NULL) : 0) : strtod(w->text + w->from, NULL);
    mem_free(copy);
    return (x >= -most && x <= most) || bad(w, "real number overflow");
}

static bool take_number(struct walk *w) {
    bool real = false, exponent = false;
    w->at += peek(w) == '-';
    if (peek(w) == '0') {
        w->at++;
        if (is_digit(peek(w)))
            return false;
    } else if (!take_digits(w)) {
        return false;
    }
    if (peek(w) == '.') {
        real = true;
        w->at++;
        if (!take_digits(w))
            return false;
    }
    if ((peek(w) | 0x20) == 'e') {
        real = exponent = true;
        w->at++;
        w->at += peek(w) == '+' || peek(w) == '-';
        if (!take_digits(w))
            return false;
    }
    check_next(w);
    return real ? check_real(w, exponent) : check_integer(w);
}

static bool take_word(struct walk *w) {
    static const char *const WORDS[] = {"true", "false", "null"};
    while (is_letter(peek(w)))
        w->at++;
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        if (w->at - w->from == strlen(WORDS[i]) &&
            memcmp(w->text + w->from, WORDS[i], w->at - w->from) == 0)
            return true;
    return false;
}

static void next(struct walk *w) {
    while (w->at < w->len && strchr(" \t\n\r", w->text[w->at]) && w->text[w->at])
        w->at++;
    w->from = w->at;
    const char c = peek(w);
    if (w->at == w->len) {
        w->token = END;
    } else if (c == '"') {
        w->at++;
        w->token = take_string(w) ? STRING : INVALID;
    } else if (is_digit(c) || c == '-') {
        w->token = take_number(w) ? SCALAR : INVALID;
        check_next(w);
    } else if (is_letter(c)) {
        w->token = take_word(w) ? SCALAR : INVALID;
        check_next(w);
    } else if (c && strchr("{}[]:,", c)) {
        w->at++;
        w->token = c;
    } else {
        w->token = INVALID;
        if (!(c & 0x80))
            w->at++;
        else
            (void)take_wide(w);
    }
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The character of a checked string at *at, where no quote is; moves *at behind it. */
static uint32_t next_char(const char *text, size_t *at) {
    static const char ESCAPES[] = "bfnrt", CONTROLS[] = "\b\f\n\r\t";
    if (text[*at] != '\\')
        return utf8_next(text, at);
    const char c = text[*at + 1];
    *at += 2;
    if (c != 'u') {
        const char *known = strchr(ESCAPES, c);
        return known ? (uint32_t)CONTROLS[known - ESCAPES] : (uint32_t)c;
    }
    const uint32_t first = unit_of(text + *at);
    *at += 4;
    if (first < 0xd800 || first > 0xdbff)
        return first;
    const uint32_t second = unit_of(text + *at + 2);
    *at += 6;
    return 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
}

/* By their characters, then by their places. */
static int compare_names(const char *text, size_t a, size_t b) {
    while (text[a] != '"' && text[b] != '"') {
        const uint32_t x = next_char(text, &a), y = next_char(text, &b);
        if (x != y)
            return x < y ? -1 : 1;
    }
    return (text[a] != '"') - (text[b] != '"');
}

static bool is_before(const char *text, size_t a, size_t b) {
    const int order = compare_names(text, a, b);
    return order ? order < 0 : a < b;
}

static void sift(const char *text, size_t *heap, size_t i, size_t n) {
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && is_before(text, heap[child], heap[child + 1]);
        if (!is_before(text, heap[i], heap[child]))
            return;
        const size_t moved = heap[i];
        heap[i] = heap[child];
        heap[child] = moved;
    }
}

/* Not qsort, which allocates, or may take n * n. */
static void sort_names(const char *text, size_t *names, size_t n) {
    for (size_t i = n / 2; i-- > 0;)
        sift(text, names, i, n);
    for (size_t end = n; end-- > 1;) {
        const size_t largest = names[0];
        names[0] = names[end];
        names[end] = largest;
        sift(text, names, 0, end);
    }
}

/* The names of the object that ends. */
static bool check_names(struct walk *w) {
    size_t *names = w->names + w->names_from, n = w->n_names - w->names_from, twice = SIZE_MAX;
    ASSERT(w->names_from <= w->n_names);
    if (n < 2)
        return true;
    sort_names(w->text, names, n);
    for (size_t i = 1; i < n; i++)
        if (names[i] < twice && compare_names(w->text, names[i - 1], names[i]) == 0)
            twice = names[i];
    if (twice == SIZE_MAX)
        return true;
    w->at = twice;
    return take_string(w) && bad(w, "duplicate object key");
}

static bool push_name(struct walk *w, size_t at) {
    if (ARRAY_GROW(w->names, w->names_cap, w->n_names + 1)) {
        w->names[w->n_names++] = at;
        return true;
    }
    if (!w->failed)
        (void)fail(w->err, KVASIR_ERR_MEMORY, "not enough memory for the names in a JSON text");
    w->failed = true;
    return false;
}

bool json_name_is(const char *text, size_t len, const char *name) {
    size_t at = 0;
    if (!memchr(text, '\\', len))
        return strlen(name) == len && memcmp(text, name, len) == 0;
    while (at < len && *name)
        if (next_char(text, &at) != (unsigned char)*name++)
            return false;
    return at == len && !*name;
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool in_object(const struct walk *w) {
    ASSERT(w->depth > 0);
    return w->objects[(w->depth - 1) / 64] >> ((w->depth - 1) % 64) & 1;
}

static bool open_level(struct walk *w) {
    const bool object = w->token == '{';
    if (w->depth == JSON_REQUEST_DEPTH_MAX) {
        if (!w->failed)
            (void)fail_at(w->err, KVASIR_ERR_FORMAT, (int64_t)w->from,
                          "JSON is nested deeper than %d levels", JSON_REQUEST_DEPTH_MAX);
        w->failed = true;
        return false;
    }
    const uint64_t bit = UINT64_C(1) << (w->depth % 64);
    uint64_t *word = &w->objects[w->depth / 64];
    *word = object ? *word | bit : *word & ~bit;
    w->depth++;
    w->tree_bytes += object ? JSON_OBJECT_BYTES : JSON_ARRAY_BYTES;
    if (!object)
        return true;
    const size_t outer = w->names_from;
    w->names_from = w->n_names + 1;
    return push_name(w, outer);
}

static bool close_level(struct walk *w) {
    if (in_object(w)) {
        if (!check_names(w))
            return false;
        w->n_names = w->names_from - 1;
        w->names_from = w->names[w->n_names];
    }
    w->depth--;
    return true;
}

/* The token is a name; the colon follows. Moves to the value. */
static bool take_name(struct walk *w) {
    if (w->token != STRING)
        return bad(w, "string or '}' expected");
    for (size_t i = w->from + 1; w->text[i] != '"';)
        if (next_char(w->text, &i) == 0)
            return bad(w, "NUL byte in object key not supported");
    if (!push_name(w, w->from + 1))
        return false;
    w->tree_bytes += JSON_KEY_BYTES;
    next(w);
    if (w->token != ':')
        return bad(w, "':' expected");
    next(w);
    return true;
}

/* The token begins a value. *opened: of an array or object, whose first token is the next. */
static bool begin_value(struct walk *w, bool *opened) {
    w->tree_bytes += JSON_VALUE_BYTES;
    *opened = w->token == '{' || w->token == '[';
    if (*opened)
        return open_level(w);
    if (w->token == END && w->depth && !in_object(w))
        return bad(w, "']' expected");
    if (w->depth == JSON_REQUEST_DEPTH_MAX)
        return bad(w, "maximum parsing depth reached");
    if (w->token != STRING && w->token != SCALAR)
        return bad(w, w->token == INVALID ? "invalid token" : "unexpected token");
    return true;
}

/* ---- the walk -------------------------------------------------------------------------------- */

/* A part of the outermost level, while it is read. */
struct part {
    json_part_fn *fn;
    void *user;
    size_t name, name_end, value;
};

/* Its name, if it has one, was just read, and the token is its value's first. */
static void begin_part(struct walk *w, struct part *p) {
    p->value = w->from;
    w->tree_bytes = in_object(w) ? JSON_KEY_BYTES : 0;
}

static kvasir_status end_part(const struct walk *w, const struct part *p) {
    const struct json_part part = {.name = in_object(w) ? w->text + p->name : NULL,
                                   .name_len = p->name_end - p->name,
                                   .value = w->text + p->value,
                                   .value_len = w->at - p->value,
                                   .tree_bytes = w->tree_bytes};
    return p->fn(p->user, &part, w->err);
}

/* Moves to the next value's first token; the token is what is behind a bracket or a comma. */
static bool enter_value(struct walk *w, struct part *p) {
    if (in_object(w)) {
        const size_t name = w->from + 1, end = w->at - 1;
        if (!take_name(w))
            return false;
        if (w->depth == 1) {
            p->name = name;
            p->name_end = end;
        }
    }
    if (w->depth == 1)
        begin_part(w, p);
    return true;
}

/* A value has ended: what follows, up to the next value or the end of all (*done). */
static kvasir_status leave_value(struct walk *w, struct part *p, bool *done) {
    static const kvasir_status FAILED = KVASIR_ERR_TEXT; /* w->failed, with *w->err */
    for (;;) {
        if (w->depth == 1)
            TRY(end_part(w, p));
        next(w);
        if (w->token == ',') {
            next(w);
            *done = false;
            return enter_value(w, p) ? KVASIR_OK : FAILED;
        }
        const bool object = in_object(w);
        if (w->token != (object ? '}' : ']')) {
            (void)bad(w, object ? "'}' expected" : "']' expected");
            return FAILED;
        }
        if (!close_level(w))
            return FAILED;
        if (w->depth == 0) {
            *done = true;
            return KVASIR_OK;
        }
    }
}

static kvasir_status walk_all(struct walk *w, struct part *p) {
    bool done = false, opened;
    next(w);
    if (w->token != '{' && w->token != '[')
        return bad(w, "'[' or '{' expected"), KVASIR_ERR_TEXT;
    while (!done) {
        if (!begin_value(w, &opened))
            return KVASIR_ERR_TEXT;
        if (opened) {
            const bool object = in_object(w);
            next(w);
            if (w->token != (object ? '}' : ']')) {
                if (!enter_value(w, p))
                    return KVASIR_ERR_TEXT;
                continue;
            }
            if (!close_level(w))
                return KVASIR_ERR_TEXT;
            if (w->depth == 0)
                break;
        }
        TRY(leave_value(w, p, &done));
    }
    next(w);
    if (w->token != END)
        return bad(w, "end of file expected"), KVASIR_ERR_TEXT;
    return KVASIR_OK;
}

kvasir_status json_walk(const char *text, size_t len, json_part_fn *fn, void *user,
                        kvasir_error *err) {
    kvasir_error own;
    struct walk w = {.text = text, .len = len, .err = err ? err : &own};
    struct part p = {.fn = fn, .user = user};
    kvasir_status status = walk_all(&w, &p);
    mem_free(w.names);
    if (w.failed)
        status = w.err->code;
    ASSERT(status != KVASIR_OK || w.depth == 0);
    return status;
}
