/* SPDX-License-Identifier: Apache-2.0 */
/* numbers_read.c: whether the beginning of a number's text can be completed to one of a set.
 * Without an exponent, "12" becomes 12.xxx, 12x.xxx, 12xx.xxx ..., so the numbers it can become are
 * intervals, and each is searched for a number of the set. With an exponent the same intervals are
 * moved by powers of ten.
 */
#include <string.h>

#include "grammar/numbers_internal.h"

static const struct decimal ZERO;

static int whole_max(const struct numbers *n) {
    return n->canonical ? CANONICAL_MAX : WHOLE_MAX;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* A number's text as far as it goes. */
struct begun {
    bool negative, zero, point, e, minus, sign; /* zero: its whole part is "0" */
    int whole, fraction, exponent;              /* digits */
    int32_t value;                              /* of the exponent so far */
    struct decimal digits;                      /* of the mantissa */
};

/* False: no number begins so. */
static bool read_begun(const struct numbers *n, struct text_span text, struct begun *b) {
    *b = (struct begun){0};
    size_t at = 0;
    if (at < text.len && text.data[at] == '-') {
        b->negative = true;
        at++;
    }
    for (; at < text.len; at++) {
        const char c = text.data[at];
        if (c >= '0' && c <= '9') {
            if (b->e) {
                if (++b->exponent > EXPONENT_MAX)
                    return false;
                b->value = b->value * 10 + (c - '0');
                continue;
            }
            if (b->zero && !b->point)
                return false;
            if (!b->point) {
                b->zero = c == '0' && b->whole == 0;
                if (++b->whole > whole_max(n))
                    return false;
                b->digits.point++;
            } else if (++b->fraction > FRACTION_MAX) {
                return false;
            }
            b->digits.digits[b->digits.n++] = (uint8_t)(c - '0');
        } else if (c == '.') {
            if (b->point || b->e || !b->whole)
                return false;
            b->point = true;
        } else if (c == 'e' || c == 'E') {
            if (b->e || !b->whole || (b->point && !b->fraction))
                return false;
            b->e = true;
        } else if (c == '+' || c == '-') {
            if (!b->e || b->sign || b->exponent)
                return false;
            b->sign = true;
            b->minus = c == '-';
        } else {
            return false;
        }
    }
    return true;
}

/* Whether the digits so far say no more about what may follow than how many there are: all that a
 * number with this beginning can become is in the set, or, of whole numbers, all that has only
 * zeros after the point. */
static bool is_free(const struct numbers *n, const struct begun *b) {
    const bool whole =
        n->n_moduli == 1 && n->moduli[0].m == 1 && !n->moduli[0].exponent && !n->moduli[0].excluded;
    const struct bound *inner = b->negative ? &n->high : &n->low,
                       *outer = b->negative ? &n->low : &n->high;
    if (n->n_except || (n->n_moduli && !whole) || outer->present || !b->whole ||
        (whole && (b->point || b->e)))
        return false;
    if (!inner->present || (inner->at.n && inner->at.negative != b->negative))
        return true;
    struct decimal d = b->digits;
    decimal_normalize(&d);
    if (!inner->at.n)
        return !inner->open || (d.n && !b->e); /* above 0 */
    return whole && d.n && decimal_compare_sizes(&d, &inner->at) > 0;
}

/* Zero is in the set, and the mantissa may be zero. */
static bool zero_fits(const struct numbers *n, const struct begun *b) {
    const struct decimal zero = ZERO;
    for (int32_t i = 0; i < b->digits.n; i++)
        if (b->digits.digits[i])
            return false;
    return numbers_has(n, &zero);
}

/* The mantissa's digits so far, times 10^shift: low; and one more in the last place: high. */
static void ends_of(const struct begun *b, int32_t shift, struct decimal *low,
                    struct decimal *high) {
    *low = b->digits;
    low->point += shift;
    *high = *low;
    int32_t i = high->n;
    ASSERT(high->n < DIGITS_MAX);
    while (i > 0 && high->digits[i - 1] == 9)
        high->digits[--i] = 0;
    if (i > 0) {
        high->digits[i - 1]++;
    } else { /* 99 + 1 = 100 */
        memmove(high->digits + 1, high->digits, (size_t)high->n);
        high->digits[0] = 1;
        high->n++;
        high->point++;
    }
    decimal_normalize(low);
    decimal_normalize(high);
}

/* After a point, and after "0", which only a point can follow, so few digits come that the number
 * is a multiple of the last one's place. */
static bool interval_fits(const struct numbers *n, const struct begun *b, int32_t shift) {
    struct span s = {.stepped = b->point || b->zero, .step = shift - FRACTION_MAX};
    if (!b->digits.n) { /* "-" */
        s.low_open = s.unbounded = true;
        return numbers_has_between(n, b->negative, s);
    }
    ends_of(b, shift, &s.low, &s.high);
    return numbers_has_between(n, b->negative, s);
}

/* The bounds of a set of whole numbers of up to 18 digits, of one sign, as sizes; false: it is
 * another set. */
static bool small_bounds(const struct numbers *n, bool negative, uint64_t *low, uint64_t *high) {
    enum { SMALL = 18 };
    const struct bound *inner = negative ? &n->high : &n->low,
                       *outer = negative ? &n->low : &n->high;
    if (n->n_moduli != 1 || n->moduli[0].m != 1 || n->moduli[0].exponent || n->moduli[0].excluded ||
        n->n_except || !outer->present || outer->at.point > SMALL ||
        outer->at.n > outer->at.point || outer->at.negative != negative || !outer->at.n)
        return false;
    *low = *high = 0;
    for (int32_t i = 0; i < outer->at.point; i++)
        *high = *high * 10 + (i < outer->at.n ? outer->at.digits[i] : 0);
    *high -= outer->open;
    if (inner->present && !inner->at.n)
        *low = inner->open;
    if (!inner->present || !inner->at.n || inner->at.negative != negative)
        return true;
    if (inner->at.point > SMALL || inner->at.n > inner->at.point)
        return false;
    for (int32_t i = 0; i < inner->at.point; i++)
        *low = *low * 10 + (i < inner->at.n ? inner->at.digits[i] : 0);
    *low += inner->open;
    return true;
}

/* Whole numbers within small bounds, most common of all. */
static bool small_fits(const struct begun *b, uint64_t low, uint64_t high) {
    uint64_t from = 0, size = 1;
    for (int32_t i = 0; i < b->digits.n; i++) {
        if (from > high)
            return false;
        from = from * 10 + b->digits.digits[i];
    }
    for (; from <= high; from *= 10, size *= 10) {
        if (from + size - 1 >= low)
            return true;
        if (b->zero)
            return false;
    }
    return false;
}

/* Without an exponent. */
static bool plain_fits(const struct numbers *n, const struct begun *b) {
    uint64_t low, high;
    if (b->whole && !b->point && small_bounds(n, b->negative, &low, &high))
        return small_fits(b, low, high);
    if (b->point || b->zero || !b->whole)
        return interval_fits(n, b, 0);
    for (int more = 0; b->whole + more <= whole_max(n); more++)
        if (interval_fits(n, b, more))
            return true;
    return false;
}

/* Where numbers of the set of this sign lie, as powers of ten. */
static void range_of(const struct numbers *n, bool negative, int32_t *from, int32_t *to) {
    const struct bound *inner = negative ? &n->high : &n->low,
                       *outer = negative ? &n->low : &n->high;
    const struct modulus *grid = numbers_grid(n);
    *from = -330;
    *to = 400;
    if (grid)
        *from = grid->exponent;
    if (inner->present && inner->at.n && inner->at.negative == negative)
        *from = inner->at.point - 1;
    if (outer->present && outer->at.n && outer->at.negative == negative)
        *to = outer->at.point + 1;
    if (grid && *to > *from + 60 && !outer->present)
        *to = *from + 60;
}

/* With an exponent that is still to come. */
static bool scaled_fits(const struct numbers *n, const struct begun *b) {
    struct begun m = *b;
    int32_t from, to;
    decimal_normalize(&m.digits);
    range_of(n, b->negative, &from, &to);
    if (!m.digits.n) { /* zeros so far: the less the exponent, the finer the digits */
        m.digits.point = -b->fraction;
        to = to < m.digits.point - EXPONENT ? m.digits.point - EXPONENT : to;
    }
    /* more digits before the point count like a higher exponent */
    const int32_t more = b->point || b->zero ? 0 : whole_max(n) - b->whole;
    for (int32_t x = from - m.digits.point - 1; x <= to - m.digits.point + 1; x++)
        if ((x > 0 || !numbers_are_whole(n)) && x >= -EXPONENT && x <= EXPONENT + more &&
            interval_fits(n, b, x))
            return true;
    return false;
}

/* Whether the number with this exponent is in the set. */
static bool value_fits(const struct numbers *n, const struct begun *b, int32_t exponent) {
    struct decimal d = b->digits;
    d.negative = b->negative;
    d.point += exponent;
    decimal_normalize(&d);
    return numbers_has(n, &d);
}

/* After "e": some exponent that begins with these digits. */
static bool exponent_fits(const struct numbers *n, const struct begun *b) {
    int32_t width = 1, value = b->value;
    for (int digits = b->exponent; digits <= EXPONENT_MAX; digits++) {
        for (int32_t i = 0; i < width; i++) {
            const int32_t x = value + i;
            if (digits == 0)
                continue; /* an exponent has a digit */
            if (value_fits(n, b, b->minus ? -x : x) ||
                (!b->sign && !b->exponent && !numbers_are_whole(n) && value_fits(n, b, -x)))
                return true;
        }
        width *= 10;
        value *= 10;
    }
    return false;
}

/* Whether a number of the set can be written with this sign. */
static bool sign_fits(const struct numbers *n, bool negative) {
    bool fits = false;
    for (char digit = '0'; digit <= '9' && !fits; digit++) {
        const char text[2] = {'-', digit};
        fits = numbers_can_begin(n, (struct text_span){text + !negative, 1 + (size_t)negative});
    }
    return fits;
}

bool numbers_is_empty(const struct numbers *n) {
    const struct span all = {.low_open = true,
                             .unbounded = !n->plain,
                             .high = {.n = 1, .point = CANONICAL_MAX + 1, .digits = {1}}};
    return (!numbers_has(n, &ZERO) && !numbers_has_between(n, false, all) &&
            !numbers_has_between(n, true, all)) ||
           (!sign_fits(n, false) && !sign_fits(n, true));
}

bool numbers_can_begin(const struct numbers *n, struct text_span text) {
    struct begun b;
    if (!read_begun(n, text, &b))
        return false;
    if (!b.whole) /* of either sign, or after "-" */
        return text.len ? sign_fits(n, true) : !numbers_is_empty(n);
    if (n->plain && (b.point || b.e))
        return false;
    if (is_free(n, &b))
        return true;
    if (b.e && b.minus && numbers_are_whole(n))
        return false;
    if (b.e)
        return exponent_fits(n, &b);
    return zero_fits(n, &b) || plain_fits(n, &b) ||
           (!n->plain && (!numbers_are_whole(n) || b.point) && scaled_fits(n, &b));
}

bool numbers_key(const struct numbers *n, struct text_span text, struct text_buf *out) {
    struct begun b;
    if (!read_begun(n, text, &b) || !is_free(n, &b))
        return text_append(out, text.data, text.len);
    /* how far it is, and how many digits it may still have; no text begins so */
    const uint8_t key[] = {
        0xff,
        (uint8_t)(b.negative | b.zero << 1 | b.point << 2 | b.e << 3 | b.sign << 4 | b.minus << 5),
        (uint8_t)b.whole, (uint8_t)b.fraction, (uint8_t)b.exponent};
    return text_append(out, (const char *)key, sizeof key);
}
