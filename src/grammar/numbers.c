/* SPDX-License-Identifier: Apache-2.0 */
/* numbers.c: sets of JSON numbers, exactly.
 *
 * A set is an interval, multiples, and exceptions. Whether the beginning of a number's text can be
 * completed to one of the set: without an exponent, "12" becomes 12.xxx, 12x.xxx, 12xx.xxx ..., so
 * the numbers it can become are intervals, and each is searched for a number of the set. With an
 * exponent the same intervals are moved by powers of ten.
 */
#include "grammar/numbers.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- decimals -------------------------------------------------------------------------------- */

/* sign x 0.DIGITS x 10^point; no zeros at the ends of the digits, which are 0 to 9, not '0' to '9'.
 * No digits: zero. */
enum { DIGITS_MAX = 160 };
struct decimal {
    bool negative;
    int32_t n, point;
    uint8_t digits[DIGITS_MAX];
};

static void normalize(struct decimal *d) {
    int32_t first = 0;
    while (first < d->n && d->digits[first] == 0)
        first++;
    while (d->n > first && d->digits[d->n - 1] == 0)
        d->n--;
    d->n -= first;
    d->point -= first;
    memmove(d->digits, d->digits + first, (size_t)d->n);
    if (d->n == 0) {
        d->point = 0;
        d->negative = false;
    }
}

/* Reads a whole JSON number; false: it is none, or has too many digits. */
static bool read_decimal(struct text_span text, struct decimal *d) {
    const char *p = text.data, *end = p + text.len;
    *d = (struct decimal){0};
    bool point = false, any = false;
    if (p < end && *p == '-') {
        d->negative = true;
        p++;
    }
    for (; p < end && ((*p >= '0' && *p <= '9') || (*p == '.' && !point)); p++) {
        if (*p == '.') {
            point = true;
            continue;
        }
        if (d->n == DIGITS_MAX)
            return false;
        any = true;
        d->digits[d->n++] = (uint8_t)(*p - '0');
        d->point += !point;
    }
    if (p > text.data && p[-1] == '.')
        return false; /* digits follow a point */
    if (p < end && any && (*p == 'e' || *p == 'E')) {
        int32_t exponent = 0;
        p++;
        const bool minus = p < end && *p == '-';
        p += p < end && (*p == '-' || *p == '+');
        if (p == end)
            return false;
        for (; p < end && *p >= '0' && *p <= '9'; p++)
            exponent = exponent < 100000 ? exponent * 10 + (*p - '0') : exponent;
        d->point += minus ? -exponent : exponent;
    }
    normalize(d);
    return any && p == end;
}

/* |x| against |y| */
static int compare_sizes(const struct decimal *x, const struct decimal *y) {
    if (!x->n || !y->n)
        return (x->n != 0) - (y->n != 0);
    if (x->point != y->point)
        return x->point < y->point ? -1 : 1;
    const int32_t n = x->n < y->n ? x->n : y->n;
    const int order = memcmp(x->digits, y->digits, (size_t)n);
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

static int compare(const struct decimal *x, const struct decimal *y) {
    if (x->negative != y->negative)
        return x->negative ? -1 : 1;
    return x->negative ? -compare_sizes(x, y) : compare_sizes(x, y);
}

/* ---- sets ------------------------------------------------------------------------------------ */

enum { MULTIPLES_MAX = 8, EXCEPT_MAX = 256 };

/* A modulus: m x 10^exponent. */
struct modulus {
    uint64_t m;
    int32_t exponent;
    bool excluded; /* its multiples are not in the set */
};
struct bound {
    bool present, open;
    struct decimal at;
};
struct numbers {
    atomic_uint refs;
    struct bound low, high;
    struct modulus moduli[MULTIPLES_MAX];
    uint32_t n_moduli, n_except, except_cap;
    struct decimal *except;
    bool canonical;
    bool plain; /* read without a fraction and an exponent */
};

struct numbers *numbers_retain(struct numbers *n) {
    if (n)
        atomic_fetch_add(&n->refs, 1);
    return n;
}

void numbers_release(struct numbers *n) {
    if (!n || atomic_fetch_sub(&n->refs, 1) != 1)
        return;
    mem_free(n->except);
    mem_free(n);
}

static kvasir_status no_memory(kvasir_error *err) {
    return fail(err, KVASIR_ERR_MEMORY, "out of memory for a set of numbers");
}

static kvasir_status unsupported(kvasir_error *err) {
    return fail(err, KVASIR_ERR_UNSUPPORTED,
                "this set of numbers costs more time or memory to enforce than allowed");
}

static kvasir_status create(struct grammar_budget *b, struct numbers **out, kvasir_error *err) {
    if (!budget_take(b, 50, sizeof **out))
        return unsupported(err);
    struct numbers *n = mem_calloc(1, sizeof *n);
    if (!n)
        return no_memory(err);
    atomic_init(&n->refs, 1);
    *out = n;
    return KVASIR_OK;
}

static kvasir_status copy(struct grammar_budget *b, const struct numbers *n, struct numbers **out,
                          kvasir_error *err) {
    TRY(create(b, out, err));
    struct numbers *made = *out;
    made->low = n->low;
    made->high = n->high;
    memcpy(made->moduli, n->moduli, sizeof made->moduli);
    made->n_moduli = n->n_moduli;
    if (!n->n_except)
        return KVASIR_OK;
    made->except = mem_calloc(n->n_except, sizeof *made->except);
    if (!made->except) {
        numbers_release(made);
        return no_memory(err);
    }
    memcpy(made->except, n->except, n->n_except * sizeof *made->except);
    made->n_except = made->except_cap = n->n_except;
    return KVASIR_OK;
}

static bool is_multiple(const struct decimal *d, const struct modulus *m) {
    /* the number in units of 10^m->exponent */
    const int32_t zeros = d->point - d->n - m->exponent;
    ASSERT(m->m);
    if (!d->n)
        return true;
    if (zeros < 0) /* its last digit, which is not 0, is below */
        return false;
    uint64_t rest = 0;
    for (int32_t i = 0; i < d->n; i++)
        rest = (uint64_t)(((unsigned __int128)rest * 10 + d->digits[i]) % m->m);
    for (int32_t i = 0; i < zeros && rest; i++) {
        rest = (uint64_t)((unsigned __int128)rest * 10 % m->m);
        if (i > 64) /* all powers of 2 and 5 in a modulus of 64 bits are used up */
            break;
    }
    return rest == 0;
}

static bool within(const struct numbers *n, const struct decimal *d) {
    if (n->low.present) {
        const int order = compare(d, &n->low.at);
        if (order < 0 || (order == 0 && n->low.open))
            return false;
    }
    if (n->high.present) {
        const int order = compare(d, &n->high.at);
        if (order > 0 || (order == 0 && n->high.open))
            return false;
    }
    return true;
}

static bool contains(const struct numbers *n, const struct decimal *d) {
    if (!within(n, d))
        return false;
    for (uint32_t i = 0; i < n->n_moduli; i++)
        if (is_multiple(d, &n->moduli[i]) == n->moduli[i].excluded)
            return false;
    for (uint32_t i = 0; i < n->n_except; i++)
        if (compare(d, &n->except[i]) == 0)
            return false;
    return true;
}

/* ---- is there one in an interval? ------------------------------------------------------------ */

/* The least multiple of m that is at least `from` >= 0, or above it: false if it has too many
 * digits. */
static bool next_multiple(const struct decimal *from, bool above, const struct modulus *m,
                          struct decimal *out) {
    /* from in units, rounded up: digits before the unit's place */
    const int32_t places = from->point - m->exponent;
    struct decimal up = {.n = places > 0 && from->n ? places : 0, .point = places};
    if (up.n > DIGITS_MAX - 24)
        return false;
    for (int32_t i = 0; i < up.n; i++)
        up.digits[i] = i < from->n ? from->digits[i] : 0;
    const bool cut = from->n > up.n;
    uint64_t rest = 0, add;
    for (int32_t i = 0; i < up.n; i++)
        rest = (uint64_t)(((unsigned __int128)rest * 10 + up.digits[i]) % m->m);
    if (rest)
        add = m->m - rest; /* rounding up stays below: it is at most one unit */
    else
        add = cut || above ? m->m : 0;
    /* up += add, from the right */
    uint8_t sum[DIGITS_MAX + 32];
    int32_t n = 0;
    for (int32_t i = up.n; i-- > 0 || add; n++) {
        const uint64_t digit = (i >= 0 ? up.digits[i] : 0) + add % 10;
        sum[n] = (uint8_t)(digit % 10);
        add = add / 10 + digit / 10;
        i = i < 0 ? 0 : i; /* past the left end: carry on with the carry */
    }
    *out = (struct decimal){.n = n, .point = n + m->exponent};
    for (int32_t i = 0; i < n; i++)
        out->digits[i] = sum[n - 1 - i];
    normalize(out);
    return true;
}

static const struct modulus *grid_of(const struct numbers *n) {
    const struct modulus *coarsest = NULL;
    for (uint32_t i = 0; i < n->n_moduli; i++) {
        const struct modulus *m = &n->moduli[i];
        if (!m->excluded && (!coarsest || m->exponent > coarsest->exponent ||
                             (m->exponent == coarsest->exponent && m->m > coarsest->m)))
            coarsest = m;
    }
    return coarsest;
}

/* Sizes from low to high; without a high end: `unbounded`. */
struct span {
    struct decimal low, high;
    bool low_open, closed, unbounded;
};

/* Cuts the span down to the set's numbers of this sign. False: nothing is left. */
static bool cut_span(const struct numbers *n, bool negative, struct span *s) {
    const struct bound *inner = negative ? &n->high : &n->low,
                       *outer = negative ? &n->low : &n->high;
    if (outer->present && outer->at.negative != negative && outer->at.n)
        return false;
    if (inner->present && inner->at.negative == negative &&
        compare_sizes(&inner->at, &s->low) >= 0 && (inner->at.n || inner->open)) {
        s->low_open =
            compare_sizes(&inner->at, &s->low) == 0 ? s->low_open || inner->open : inner->open;
        s->low = inner->at;
    }
    if (outer->present) {
        const int order = s->unbounded ? -1 : compare_sizes(&outer->at, &s->high);
        if (order < 0 || (order == 0 && outer->open)) {
            s->closed = !outer->open;
            s->high = outer->at;
            s->unbounded = false;
        }
    }
    s->low.negative = s->high.negative = false;
    const int order = s->unbounded ? -1 : compare_sizes(&s->low, &s->high);
    return order < 0 || (order == 0 && !s->low_open && s->closed);
}

/* Whether the set has a number d with low <= |d| < high (closed: <= high) of this sign. */
static bool has_between(const struct numbers *n, bool negative, struct span s) {
    enum { TRIES = 2000 };
    if (!cut_span(n, negative, &s))
        return false;
    const struct modulus *grid = grid_of(n);
    struct decimal d = s.low;
    if (!s.unbounded && compare_sizes(&s.low, &s.high) == 0) {
        d.negative = negative && d.n;
        return contains(n, &d);
    }
    if (!grid)
        return true; /* numbers without end: exceptions and other moduli leave most of them */
    bool above = s.low_open;
    for (int i = 0; i < TRIES; i++) {
        if (!next_multiple(&d, above, grid, &d))
            return false;
        const int place = s.unbounded ? -1 : compare_sizes(&d, &s.high);
        if (place > 0 || (place == 0 && !s.closed))
            return false;
        d.negative = negative && d.n;
        if (contains(n, &d))
            return true;
        d.negative = false;
        above = true;
    }
    return false;
}

/* ---- making sets ----------------------------------------------------------------------------- */

kvasir_status numbers_any(struct grammar_budget *b, struct numbers **out, kvasir_error *err) {
    return create(b, out, err);
}

kvasir_status numbers_whole(struct grammar_budget *b, struct numbers **out, kvasir_error *err) {
    TRY(create(b, out, err));
    (*out)->moduli[(*out)->n_moduli++] = (struct modulus){.m = 1};
    return KVASIR_OK;
}

kvasir_status numbers_bounded(struct grammar_budget *b, enum numbers_bound kind,
                              struct text_span value, struct numbers **out, kvasir_error *err) {
    struct decimal d;
    if (!read_decimal(value, &d))
        return fail(err, KVASIR_ERR_UNSUPPORTED, "this number has too many digits");
    TRY(create(b, out, err));
    const struct bound bound = {true, kind == MORE_THAN || kind == LESS_THAN, d};
    if (kind == AT_LEAST || kind == MORE_THAN || kind == EQUAL_TO)
        (*out)->low = bound;
    if (kind == AT_MOST || kind == LESS_THAN || kind == EQUAL_TO)
        (*out)->high = bound;
    return KVASIR_OK;
}

enum { MODULUS_DIGITS = 18 };

kvasir_status numbers_multiple(struct grammar_budget *b, struct text_span of, struct numbers **out,
                               kvasir_error *err) {
    struct decimal d;
    if (!read_decimal(of, &d) || d.n > MODULUS_DIGITS)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "this number has too many digits");
    if (!d.n || d.negative)
        return fail(err, KVASIR_ERR_ARGUMENT, "must be above 0");
    TRY(create(b, out, err));
    struct modulus m = {.exponent = d.point - d.n};
    for (int32_t i = 0; i < d.n; i++)
        m.m = m.m * 10 + d.digits[i];
    (*out)->moduli[(*out)->n_moduli++] = m;
    return KVASIR_OK;
}

static void narrow(struct bound *to, const struct bound *by, int sign) {
    const int order = to->present && by->present ? compare(&to->at, &by->at) * sign : 0;
    if (!by->present)
        return;
    if (!to->present || order < 0)
        *to = *by;
    else if (order == 0)
        to->open |= by->open;
}

static const uint64_t MODULUS_MAX = 1000000000000000000u;

/* Multiples of both x and `by`, if their modulus is not too large. */
static bool join_moduli(struct modulus *x, const struct modulus *by) {
    struct modulus a = *x, c = *by;
    if (a.excluded || c.excluded)
        return false;
    for (; a.exponent > c.exponent && a.m < MODULUS_MAX / 10; a.exponent--)
        a.m *= 10;
    for (; c.exponent > a.exponent && c.m < MODULUS_MAX / 10; c.exponent--)
        c.m *= 10;
    if (a.exponent != c.exponent)
        return false;
    uint64_t divisor = a.m, rest = c.m;
    while (rest) {
        const uint64_t next = divisor % rest;
        divisor = rest;
        rest = next;
    }
    const unsigned __int128 least = (unsigned __int128)(a.m / divisor) * c.m;
    if (least > MODULUS_MAX)
        return false;
    a.m = (uint64_t)least;
    for (; a.m % 10 == 0; a.exponent++)
        a.m /= 10;
    *x = a;
    return true;
}

kvasir_status numbers_and(struct grammar_budget *b, const struct numbers *x,
                          const struct numbers *y, struct numbers **out, kvasir_error *err) {
    struct numbers *n;
    TRY(copy(b, x, &n, err));
    narrow(&n->low, &y->low, 1);
    narrow(&n->high, &y->high, -1);
    kvasir_status status = KVASIR_OK;
    for (uint32_t i = 0; !status && i < y->n_moduli; i++) {
        bool known = false;
        for (uint32_t k = 0; k < n->n_moduli; k++)
            known |= n->moduli[k].m == y->moduli[i].m &&
                     n->moduli[k].exponent == y->moduli[i].exponent &&
                     n->moduli[k].excluded == y->moduli[i].excluded;
        for (uint32_t k = 0; k < n->n_moduli && !known; k++)
            known = join_moduli(&n->moduli[k], &y->moduli[i]);
        if (known)
            continue;
        if (n->n_moduli == MULTIPLES_MAX)
            status = unsupported(err);
        else
            n->moduli[n->n_moduli++] = y->moduli[i];
    }
    for (uint32_t i = 0; !status && i < y->n_except; i++) {
        if (n->n_except == EXCEPT_MAX || !budget_take(b, 10, sizeof *n->except))
            status = unsupported(err);
        else if (!ARRAY_GROW(n->except, n->except_cap, n->n_except + 1))
            status = no_memory(err);
        else
            n->except[n->n_except++] = y->except[i];
    }
    if (status)
        numbers_release(n);
    else
        *out = n;
    return status;
}

/* One number, and nothing else is said. */
static bool is_point(const struct numbers *n) {
    return n->low.present && n->high.present && !n->low.open && !n->high.open &&
           compare(&n->low.at, &n->high.at) == 0 && !n->n_moduli && !n->n_except;
}

/* A part of the complement: outside one bound. */
static kvasir_status outside(struct grammar_budget *b, const struct bound *bound, bool low,
                             numbers_part_fn *fn, void *user, kvasir_error *err) {
    struct numbers *part;
    if (!bound->present)
        return KVASIR_OK;
    TRY(create(b, &part, err));
    *(low ? &part->high : &part->low) = (struct bound){true, !bound->open, bound->at};
    return fn(user, part, err);
}

kvasir_status numbers_not(struct grammar_budget *b, const struct numbers *x, numbers_part_fn *fn,
                          void *user, kvasir_error *err) {
    struct numbers *part;
    if (is_point(x)) {
        TRY(create(b, &part, err));
        if (!ARRAY_GROW(part->except, part->except_cap, 1u)) {
            numbers_release(part);
            return no_memory(err);
        }
        part->except[part->n_except++] = x->low.at;
        return fn(user, part, err);
    }
    TRY(outside(b, &x->low, true, fn, user, err));
    TRY(outside(b, &x->high, false, fn, user, err));
    for (uint32_t i = 0; i < x->n_moduli; i++) {
        TRY(create(b, &part, err));
        part->moduli[0] = x->moduli[i];
        part->moduli[0].excluded = !x->moduli[i].excluded;
        part->n_moduli = 1;
        TRY(fn(user, part, err));
    }
    for (uint32_t i = 0; i < x->n_except; i++) {
        TRY(create(b, &part, err));
        part->low = part->high = (struct bound){true, false, x->except[i]};
        TRY(fn(user, part, err));
    }
    return KVASIR_OK;
}

/* Digits of a number's text. Those of canonical whole numbers fit 64 bits. */
enum { WHOLE_MAX = 64, CANONICAL_MAX = 18, FRACTION_MAX = 64, EXPONENT_MAX = 2, EXPONENT = 99 };

static bool is_whole(const struct numbers *n) {
    for (uint32_t i = 0; i < n->n_moduli; i++)
        if (!n->moduli[i].excluded && n->moduli[i].exponent >= 0)
            return true;
    return false;
}

void numbers_make_canonical(struct numbers *n) {
    n->canonical = true;
    n->plain = is_whole(n) || (is_point(n) && n->low.at.n <= n->low.at.point);
}

static int whole_max(const struct numbers *n) {
    return n->canonical ? CANONICAL_MAX : WHOLE_MAX;
}

static const struct decimal ZERO;

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
    return (!contains(n, &ZERO) && !has_between(n, false, all) && !has_between(n, true, all)) ||
           (!sign_fits(n, false) && !sign_fits(n, true));
}

bool numbers_contains(const struct numbers *n, struct text_span text) {
    struct decimal d;
    return read_decimal(text, &d) && contains(n, &d);
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

/* Whole numbers are written without negative exponents: 10, 1e1 and 0.1e2, not 100e-1. */
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
    normalize(&d);
    if (!inner->at.n)
        return !inner->open || (d.n && !b->e); /* above 0 */
    return whole && d.n && compare_sizes(&d, &inner->at) > 0;
}

/* Zero is in the set, and the mantissa may be zero. */
static bool zero_fits(const struct numbers *n, const struct begun *b) {
    const struct decimal zero = ZERO;
    for (int32_t i = 0; i < b->digits.n; i++)
        if (b->digits.digits[i])
            return false;
    return contains(n, &zero);
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
    normalize(low);
    normalize(high);
}

/* Digits that may follow are none where the fraction is full. */
static bool interval_fits(const struct numbers *n, const struct begun *b, int32_t shift) {
    struct span s = {0};
    if (!b->digits.n) { /* "-" */
        s.low_open = s.unbounded = true;
        return has_between(n, b->negative, s);
    }
    ends_of(b, shift, &s.low, &s.high);
    return has_between(n, b->negative, s);
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
    const struct modulus *grid = grid_of(n);
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
    normalize(&m.digits);
    if (!m.digits.n)
        return interval_fits(n, b, 0); /* zeros so far: what follows decides */
    range_of(n, b->negative, &from, &to);
    /* more digits before the point count like a higher exponent */
    const int32_t more = b->point || b->zero ? 0 : whole_max(n) - b->whole;
    for (int32_t x = from - m.digits.point - 1; x <= to - m.digits.point + 1; x++)
        if ((x > 0 || !is_whole(n)) && x >= -EXPONENT && x <= EXPONENT + more &&
            interval_fits(n, b, x))
            return true;
    return false;
}

/* Whether the number with this exponent is in the set. */
static bool value_fits(const struct numbers *n, const struct begun *b, int32_t exponent) {
    struct decimal d = b->digits;
    d.negative = b->negative;
    d.point += exponent;
    normalize(&d);
    return contains(n, &d);
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
                (!b->sign && !b->exponent && !is_whole(n) && value_fits(n, b, -x)))
                return true;
        }
        width *= 10;
        value *= 10;
    }
    return false;
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
    if (b.e && b.minus && is_whole(n))
        return false;
    if (b.e)
        return exponent_fits(n, &b);
    return zero_fits(n, &b) || plain_fits(n, &b) ||
           (!n->plain && (!is_whole(n) || b.point) && scaled_fits(n, &b));
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
