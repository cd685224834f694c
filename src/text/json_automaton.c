/* SPDX-License-Identifier: Apache-2.0 */
/* json_automaton.c: one JSON object (RFC 8259), byte by byte, as a model may write it. Functions
 * are pure; a state is 16 bytes that are copied.
 *
 *     BEGIN --{--> FIRST_KEY --"--> TEXT ... --"--> COLON --:--> VALUE --> string, number, literal
 *                     |    ^                                      | |              |
 *                     }    |            KEY <--,-- (object)      { [               v
 *                     |    `---------------------------------------'  `--> FIRST  AFTER --,--> ..
 *                     v                                                    VALUE   |  ^
 *                    AFTER of the level around it, or END  <--------- } ] ---------'  |
 *                                                            numbers end with what follows them
 *
 * This is a grammar for writers. Compared with RFC 8259 it leaves out what a reader may refuse and
 * what a model could repeat forever:
 *
 *     spaces in a row    JSON_BLANKS_MAX    64: a line end and 15 levels of 4 spaces
 *     levels             JSON_LEVELS_MAX    64: one bit each
 *     digits in a row    JSON_DIGITS_MAX    64 in a number's whole part, 64 in its fraction, 2 in
 *                                           its exponent: below 1e163, so no double overflows
 *     \u0000                                ends strings in C; databases refuse it
 *     unpaired surrogates                   are not text
 *
 * Invariants (tests/unit/test_json_automaton.c)
 *   JSON-1  A text that leads to END is an object that readers accept. All such objects within the
 *           limits lead there.
 *   JSON-2  From every state but END some bytes lead to END: there are no dead ends. So a limit is
 *           checked where a run grows, never after it.
 */
#include <string.h>

#include "text/json_automaton.h"
#include "text/tokenizer_internal.h"

enum { EXPONENT_DIGITS_MAX = 2 };
_Static_assert(JSON_LEVELS_MAX <= 64, "one bit of json_state.objects each");
_Static_assert(JSON_BLANKS_MAX < UINT8_MAX && JSON_DIGITS_MAX < UINT8_MAX, "json_state.count");

static bool push_between(struct json_state *s, uint8_t c);

static bool enter_part(struct json_state *s, enum json_part part) {
    s->part = (uint8_t)part;
    s->count = 0;
    return true;
}

/* ---- levels ---------------------------------------------------------------------------------- */

static bool in_object(const struct json_state *s) {
    return s->levels && s->objects >> (s->levels - 1) & 1;
}

static bool open_level(struct json_state *s, bool object) {
    if (s->levels == JSON_LEVELS_MAX)
        return false;
    const uint64_t bit = 1ULL << s->levels++;
    s->objects = object ? s->objects | bit : s->objects & ~bit;
    return enter_part(s, object ? PART_FIRST_KEY : PART_FIRST_VALUE);
}

static bool close_level(struct json_state *s, uint8_t bracket) {
    if (bracket != (in_object(s) ? '}' : ']'))
        return false;
    ASSERT(s->levels > 0 && s->levels <= JSON_LEVELS_MAX);
    s->objects &= ~(1ULL << --s->levels);
    return enter_part(s, s->levels ? PART_AFTER : PART_END);
}

/* ---- numbers and literals -------------------------------------------------------------------- */

/* Takes one more digit of a run, or its first. */
static bool push_digit(struct json_state *s, enum json_part part, uint8_t limit) {
    if (s->part != part)
        enter_part(s, part);
    return ++s->count <= limit;
}

static bool push_number(struct json_state *s, uint8_t c) {
    const bool is_digit = c >= '0' && c <= '9';
    switch (s->part) {
    case PART_MINUS:
        return is_digit && push_digit(s, c == '0' ? PART_ZERO : PART_WHOLE, JSON_DIGITS_MAX);
    case PART_WHOLE:
        if (is_digit)
            return push_digit(s, PART_WHOLE, JSON_DIGITS_MAX);
        break;
    case PART_POINT:
        return is_digit && push_digit(s, PART_FRACTION, JSON_DIGITS_MAX);
    case PART_FRACTION:
        if (is_digit)
            return push_digit(s, PART_FRACTION, JSON_DIGITS_MAX);
        break;
    case PART_E:
        if (c == '+' || c == '-')
            return enter_part(s, PART_E_SIGN);
        return is_digit && push_digit(s, PART_EXPONENT, EXPONENT_DIGITS_MAX);
    case PART_E_SIGN:
        return is_digit && push_digit(s, PART_EXPONENT, EXPONENT_DIGITS_MAX);
    case PART_EXPONENT:
        if (is_digit)
            return push_digit(s, PART_EXPONENT, EXPONENT_DIGITS_MAX);
        break;
    }
    if (c == '.' && (s->part == PART_ZERO || s->part == PART_WHOLE))
        return enter_part(s, PART_POINT);
    if ((c == 'e' || c == 'E') && s->part != PART_EXPONENT)
        return enter_part(s, PART_E);
    enter_part(s, PART_AFTER);
    return push_between(s, c);
}

/* The rest of the literals after their first letter; held[0] is the index of the next letter. */
static const char LITERALS[] = "rue\0alse\0ull";
enum { TRUE_REST = 0, FALSE_REST = 4, NULL_REST = 9 };

static bool begin_literal(struct json_state *s, uint8_t rest) {
    s->held[0] = rest;
    return enter_part(s, PART_LITERAL);
}

static bool push_literal(struct json_state *s, uint8_t c) {
    ASSERT(s->held[0] < sizeof LITERALS - 1);
    if (c != (uint8_t)LITERALS[s->held[0]++])
        return false;
    return LITERALS[s->held[0]] || enter_part(s, PART_AFTER);
}

/* ---- strings --------------------------------------------------------------------------------- */

static bool begin_string(struct json_state *s, bool key) {
    s->key = key;
    return enter_part(s, PART_TEXT);
}

static bool push_text(struct json_state *s, uint8_t c) {
    if (c == '"')
        return enter_part(s, s->key ? PART_COLON : PART_AFTER);
    if (c == '\\')
        return enter_part(s, PART_ESCAPE);
    if (c < 0x20)
        return false;
    if (c < 0x80)
        return true;
    s->held[0] = c;
    enter_part(s, PART_CHARACTER);
    s->count = 1;
    return utf8_length(s->held, 1) == 0;
}

static bool push_character(struct json_state *s, uint8_t c) {
    ASSERT(s->count < sizeof s->held);
    s->held[s->count++] = c;
    const int length = utf8_length(s->held, s->count);
    return length == 0 || (length > 0 && enter_part(s, PART_TEXT));
}

static bool push_escape(struct json_state *s, uint8_t c) {
    if (c == 'u')
        return enter_part(s, PART_HEX);
    return c && strchr("\"\\/bfnrt", c) && enter_part(s, PART_TEXT);
}

/* U+D800-DBFF must be followed by U+DC00-DFFF, which are allowed nowhere else. */
static bool push_hex(struct json_state *s, uint8_t c) {
    const int value = hex_digit((char)c);
    if (value < 0)
        return false;
    uint8_t *held = s->held;
    ASSERT(s->count < sizeof s->held);
    held[s->count++] = (uint8_t)value;
    const bool low = s->part == PART_LOW, surrogate = held[0] == 0xd && held[1] >= 8;
    if (s->count == 1)
        return !low || value == 0xd;
    if (s->count == 2)
        return (held[0] == 0xd && value >= 0xc) == low;
    if (s->count == 3)
        return true;
    if (!(held[0] | held[1] | held[2] | held[3]))
        return false;
    return enter_part(s, !low && surrogate ? PART_HIGH : PART_TEXT);
}

/* ---- between values -------------------------------------------------------------------------- */

static bool begin_value(struct json_state *s, uint8_t c) {
    switch (c) {
    case '"':
        return begin_string(s, false);
    case '{':
    case '[':
        return open_level(s, c == '{');
    case 't':
        return begin_literal(s, TRUE_REST);
    case 'f':
        return begin_literal(s, FALSE_REST);
    case 'n':
        return begin_literal(s, NULL_REST);
    case '-':
        return enter_part(s, PART_MINUS);
    }
    return c >= '0' && c <= '9' &&
           push_digit(s, c == '0' ? PART_ZERO : PART_WHOLE, JSON_DIGITS_MAX);
}

static bool push_between(struct json_state *s, uint8_t c) {
    if (c == ' ' || c == '\n' || c == '\t' || c == '\r')
        return s->part != PART_END && ++s->count <= JSON_BLANKS_MAX;
    switch (s->part) {
    case PART_BEGIN:
        return c == '{' && open_level(s, true);
    case PART_FIRST_KEY:
        return c == '}' ? close_level(s, c) : c == '"' && begin_string(s, true);
    case PART_KEY:
        return c == '"' && begin_string(s, true);
    case PART_COLON:
        return c == ':' && enter_part(s, PART_VALUE);
    case PART_FIRST_VALUE:
        return c == ']' ? close_level(s, c) : begin_value(s, c);
    case PART_VALUE:
        return begin_value(s, c);
    case PART_AFTER:
        return c == ',' ? enter_part(s, in_object(s) ? PART_KEY : PART_VALUE) : close_level(s, c);
    }
    return false;
}

/* ---- the automaton ------------------------------------------------------------------------- */

bool json_push(struct json_state *s, uint8_t byte) {
    DEBUG_ASSERT(s->part <= PART_LITERAL && s->levels <= JSON_LEVELS_MAX);
    switch (s->part) {
    case PART_TEXT:
        return push_text(s, byte);
    case PART_CHARACTER:
        return push_character(s, byte);
    case PART_ESCAPE:
        return push_escape(s, byte);
    case PART_HIGH:
        return byte == '\\' && enter_part(s, PART_HIGH_U);
    case PART_HIGH_U:
        return byte == 'u' && enter_part(s, PART_LOW);
    case PART_HEX:
    case PART_LOW:
        return push_hex(s, byte);
    case PART_LITERAL:
        return push_literal(s, byte);
    }
    return s->part >= PART_MINUS ? push_number(s, byte) : push_between(s, byte);
}

bool json_complete(const struct json_state *s) {
    return s->part == PART_END;
}
