/* SPDX-License-Identifier: Apache-2.0 */
/* schema_string.c: strings and keys: their characters and escapes, for schema_state.c; and what a
 * machine asks so that it has less to try. */
#include <string.h>

#include "grammar/schema_state.h"
#include "util/utf8.h"

static const struct language *language_of_leaf(const struct schema *s, const struct thread *t) {
    return t->head.leaf == LEAF_STRING  ? s->plans[t->head.plan].branch.strings
           : t->head.leaf == LEAF_CLASS ? t->plan->branch.classes[t->head.plan].keys
                                        : NULL;
}

/* A canonical schema says more of the next character than that it may be any. */
static bool is_restricted(const struct schema *s, const struct thread *t) {
    const struct language *l = language_of_leaf(s, t);
    uint32_t room;
    return s->c.canonical && (!l || !language_room(l, t->head.at, &room));
}

/* Whether a thread takes characters that are still to be written in full: of a range. */
static bool takes_any(const struct reading *r, const struct thread *t, uint32_t from, uint32_t to) {
    const struct language *l = language_of_leaf(r->schema, t);
    if (l)
        return language_takes_any_of(l, t->head.at, from, to);
    /* a named key */
    for (uint32_t i = 0; i < t->plan->branch.n_named; i++) {
        const struct text_span name = t->plan->branch.named[i].name;
        size_t at = r->head.text_len;
        if (name.len <= at || memcmp(name.data, r->text, at) != 0 || !named_fits(t, i))
            continue;
        const uint32_t next = utf8_next(name.data, &at);
        if (next >= from && next <= to)
            return true;
    }
    return false;
}

/* Whether the thread takes an escaped character of a range. Where the schema is canonical and not
 * any character may stand, that is a character that must be escaped: the text of a name or of a
 * value of `enum` is then known byte by byte. */
static bool takes_escaped(const struct reading *r, const struct thread *t, uint32_t from,
                          uint32_t to) {
    static const uint32_t MUST[][2] = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};
    if (!is_restricted(r->schema, t))
        return takes_any(r, t, from, to);
    for (size_t i = 0; i < sizeof MUST / sizeof *MUST; i++) {
        const uint32_t low = max_u32(from, MUST[i][0]), high = min_u32(to, MUST[i][1]);
        if (low <= high && takes_any(r, t, low, high))
            return true;
    }
    return false;
}

/* Threads that take an escaped character of one of two ranges. */
static bool filter(struct reading *r, struct writing *w, uint32_t from, uint32_t to, uint32_t from2,
                   uint32_t to2) {
    struct thread t;
    if (!writing_text(w, r->text, r->head.text_len, "", 0))
        return false;
    while (reading_next(r, &t))
        if (((from <= to && takes_escaped(r, &t, from, to)) ||
             (from2 <= to2 && takes_escaped(r, &t, from2, to2))) &&
            !write_thread(w, &t))
            return false;
    return true;
}

/* n bytes of the string, whole characters or parts of one. */
/* text [len]: the string so far, with the n bytes at its end. */
static bool push_text(struct reading *r, struct writing *w, const char *text, size_t len,
                      size_t n) {
    struct thread t;
    bool named = false;
    struct reading look = *r;
    uint32_t which;
    while (!named && reading_next(&look, &t))
        named = t.head.leaf == LEAF_NAMED && some_named(&t, text, len, false, &which);
    if (named && !writing_text(w, text, len - n, text + len - n, n))
        return false;
    while (reading_next(r, &t)) {
        const struct language *l = language_of_leaf(r->schema, &t);
        bool good = true;
        for (size_t i = len - n; l && good && i < len; i++)
            good = language_step(l, &t.head.at, (uint8_t)text[i]);
        if (!l)
            good = some_named(&t, text, len, false, &which);
        const size_t at = w->out->len;
        if (good && !write_thread(w, &t))
            return false;
        if (good && name_matters(&t))
            write_name(w, &t, at, text + len - n, n);
    }
    return true;
}

static bool push(struct reading *r, struct writing *w, const char *bytes, size_t n) {
    char small[256], *text = small;
    const size_t len = r->head.text_len;
    if (len + n > sizeof small)
        text = mem_alloc(len + n);
    if (!text) {
        w->failed = true;
        return false;
    }
    memcpy(text, r->text, len);
    memcpy(text + len, bytes, n);
    const bool good = push_text(r, w, text, len + n, n);
    if (text != small)
        mem_free(text);
    return good;
}

/* ---- escapes --------------------------------------------------------------------------------- */

static bool push_character(struct reading *r, struct writing *w, uint32_t c) {
    char bytes[4];
    w->head.escape = ESCAPE_NONE;
    w->head.held = w->head.high = 0;
    return push(r, w, bytes, utf8_put(bytes, c));
}

static bool any_restricted(const struct reading *r) {
    struct reading look = *r;
    struct thread t;
    while (reading_next(&look, &t))
        if (is_restricted(r->schema, &t))
            return true;
    return false;
}

static bool after_backslash(struct reading *r, struct writing *w, uint8_t byte) {
    static const char FROM[] = "\"\\/bfnrt", TO[] = "\"\\/\b\f\n\r\t";
    const char *at = byte ? strchr(FROM, byte) : NULL;
    if (byte == '/' && any_restricted(r))
        return true;
    if (at)
        return push_character(r, w, (uint8_t)TO[at - FROM]);
    if (byte != 'u')
        return true;
    w->head.escape = ESCAPE_HEX;
    return filter(r, w, 0, 0x10ffff, 1, 0);
}

static uint32_t pair(uint32_t high, uint32_t low) {
    return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
}

/* The digits of \uXXXX, or of the second of two. */
static bool hex(struct reading *r, struct writing *w, uint8_t byte) {
    const int digit = hex_digit((char)byte);
    const bool second = r->head.escape >= ESCAPE_LOW;
    const int left = (second ? ESCAPE_LOW : ESCAPE_HEX) + 3 - r->head.escape;
    ASSERT(left >= 0 && left < 4);
    if (digit < 0)
        return true;
    const uint32_t held = r->head.held << 4 | (uint32_t)digit, from = held << 4 * left,
                   to = from | ((1u << 4 * left) - 1);
    w->head.held = held;
    w->head.escape++;
    if (second) {
        if (to < 0xdc00 || from > 0xdfff)
            return true;
        if (left == 0)
            return push_character(r, w, pair(r->head.high, held));
        return filter(r, w, pair(r->head.high, from < 0xdc00 ? 0xdc00 : from),
                      pair(r->head.high, to > 0xdfff ? 0xdfff : to), 1, 0);
    }
    const uint32_t high_from = from < 0xd800 ? 0xd800 : from, high_to = to > 0xdbff ? 0xdbff : to;
    if (left > 0)
        return high_from <= high_to
                   ? filter(r, w, from, to, pair(high_from, 0xdc00), pair(high_to, 0xdfff))
                   : filter(r, w, from, to, 1, 0);
    if (held >= 0xd800 && held <= 0xdbff) {
        w->head.escape = ESCAPE_HIGH;
        w->head.high = held;
        w->head.held = 0;
        return filter(r, w, pair(held, 0xdc00), pair(held, 0xdfff), 1, 0);
    }
    return (held >= 0xdc00 && held <= 0xdfff) || push_character(r, w, held);
}

static bool copy_all(struct reading *r, struct writing *w) {
    struct thread t;
    if (!writing_text(w, r->text, r->head.text_len, "", 0))
        return false;
    while (reading_next(r, &t))
        if (!write_thread(w, &t))
            return false;
    return true;
}

static bool escaped(struct reading *r, struct writing *w, uint8_t byte) {
    if (r->head.escape == ESCAPE_BEGUN)
        return after_backslash(r, w, byte);
    if (r->head.escape == ESCAPE_HIGH || r->head.escape == ESCAPE_HIGH_U) {
        w->head.escape = r->head.escape == ESCAPE_HIGH ? ESCAPE_HIGH_U : ESCAPE_LOW;
        return byte != (r->head.escape == ESCAPE_HIGH ? '\\' : 'u') || copy_all(r, w);
    }
    return hex(r, w, byte);
}

/* ---- the whole string ------------------------------------------------------------------------ */

static bool end_key(struct reading *r, struct writing *w) {
    struct thread t;
    uint32_t which;
    w->head.phase = PHASE_COLON;
    while (reading_next(r, &t)) {
        if (t.head.leaf == LEAF_CLASS) {
            if (!language_accepts(t.plan->branch.classes[t.head.plan].keys, t.head.at) ||
                (name_matters(&t) && name_is_kept(&t)))
                continue;
            t.head.at = (struct language_at){0};
        } else {
            if (!some_named(&t, r->text, r->head.text_len, true, &which))
                continue;
            t.head.plan = which;
        }
        const size_t at = w->out->len;
        if (!write_thread(w, &t))
            return false;
        if (t.head.leaf == LEAF_NAMED)
            write_seen(w, &t, at, which);
    }
    return true;
}

static bool end_string(struct reading *r, struct writing *w) {
    struct thread t;
    ASSERT(!r->head.escape && !r->head.inside);
    w->head.phase = PHASE_AFTER;
    while (reading_next(r, &t))
        if (language_accepts(r->schema->plans[t.head.plan].branch.strings, t.head.at) &&
            !write_done(w, &t))
            return false;
    return true;
}

bool step_string(struct reading *r, struct writing *w, uint8_t byte) {
    if (r->head.escape)
        return escaped(r, w, byte);
    if (byte < 0x20 || (r->head.inside != 0) != ((byte & 0xc0) == 0x80))
        return true;
    if (byte == '"')
        return r->head.phase == PHASE_STRING ? end_string(r, w) : end_key(r, w);
    if (byte == '\\') {
        w->head.escape = ESCAPE_BEGUN;
        return filter(r, w, 0, 0x10ffff, 1, 0);
    }
    w->head.inside = (uint8_t)(r->head.inside ? r->head.inside - 1
                               : byte < 0x80  ? 0
                               : byte < 0xe0  ? 1
                               : byte < 0xf0  ? 2
                                              : 3);
    return push(r, w, (const char *)&byte, 1);
}

/* ---- for the machine ------------------------------------------------------------------------- */

uint64_t schema_text_key(const struct recognizer *recognizer, struct text_span state) {
    const struct schema *s = (const struct schema *)recognizer;
    struct reading r;
    struct thread t;
    uint64_t own = 0;
    uint32_t room = 0;
    bool simple = true, stays = true, named = false;
    reading_begin(&r, s, state);
    if ((r.head.phase != PHASE_STRING && r.head.phase != PHASE_KEY_TEXT) || r.head.escape ||
        r.head.inside)
        return 0;
    while (reading_next(&r, &t)) {
        const struct language *l = language_of_leaf(s, &t);
        uint32_t mine;
        if (!l) {
            named = true;
            continue;
        }
        if (language_room(l, t.head.at, &mine))
            room = max_u32(room, mine);
        else
            simple = false;
        stays = stays && language_stays(l, t.head.at) && !name_matters(&t);
        own = mix_bits(own ^ (uint64_t)(uintptr_t)l);
        own = mix_bits(own ^ ((uint64_t)t.head.at.state << 32 | t.head.at.count));
    }
    if (simple && stays && !named && room == LANGUAGE_UNBOUNDED)
        return (TEXT_KEY_ANY + TEXT_KEY_UNBOUNDED) | TEXT_KEY_STAYS;
    /* No token has more characters than bytes: one thread that takes any text of that length takes
     * what the others do. */
    if ((simple && !named) || room >= TEXT_KEY_LONG)
        return TEXT_KEY_ANY + room;
    return named ? 0 : own | TEXT_KEY_OWN;
}

static void allow(uint64_t bytes[4], const char *which) {
    for (; *which; which++)
        bytes[(uint8_t)*which / 64] |= 1ull << (uint8_t)*which % 64;
}

void schema_narrow(const struct recognizer *recognizer, struct text_span state, uint64_t bytes[4]) {
    static const char *const BYTES[] = {
        [PHASE_VALUE] = " \t\n\r\"-0123456789{[tfn",
        [PHASE_FIRST_ITEM] = " \t\n\r\"-0123456789{[tfn]",
        [PHASE_FIRST_KEY] = " \t\n\r\"}",
        [PHASE_KEY] = " \t\n\r\"",
        [PHASE_COLON] = " \t\n\r:",
        [PHASE_AFTER] = " \t\n\r,}]",
        [PHASE_END] = "",
        [PHASE_NUMBER] = " \t\n\r+-.0123456789eE,}]",
    };
    struct reading r;
    char one[2] = "";
    reading_begin(&r, (const struct schema *)recognizer, state);
    const bool text = r.head.phase == PHASE_STRING || r.head.phase == PHASE_KEY_TEXT;
    if (text && !r.head.escape) {
        bytes[0] &= ~(uint64_t)UINT32_MAX; /* control characters */
        return;
    }
    memset(bytes, 0, 4 * sizeof *bytes);
    if (r.head.phase == PHASE_LITERAL) {
        one[0] = literal_text(r.head.literal)[r.head.literal_at];
        allow(bytes, one);
    } else if (text) {
        allow(bytes, r.head.escape == ESCAPE_BEGUN    ? "\"\\/bfnrtu"
                     : r.head.escape == ESCAPE_HIGH   ? "\\"
                     : r.head.escape == ESCAPE_HIGH_U ? "u"
                                                      : "0123456789abcdefABCDEF");
    } else {
        allow(bytes, BYTES[r.head.phase]);
    }
}
