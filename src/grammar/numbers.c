/* SPDX-License-Identifier: Apache-2.0 */
/* numbers.c: sets of JSON numbers, exactly: an interval, multiples, and exceptions. */
#include "grammar/numbers_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- decimals -------------------------------------------------------------------------------- */

void decimal_normalize(struct decimal *d) {
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

bool decimal_read(struct text_span text, struct decimal *d) {
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
    decimal_normalize(d);
    return any && p == end;
}

int decimal_compare_sizes(const struct decimal *x, const struct decimal *y) {
    if (!x->n || !y->n)
        return (x->n != 0) - (y->n != 0);
    if (x->point != y->point)
        return x->point < y->point ? -1 : 1;
    const int32_t n = x->n < y->n ? x->n : y->n;
    const int order = memcmp(x->digits, y->digits, (size_t)n);
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

static int decimal_compare(const struct decimal *x, const struct decimal *y) {
    if (x->negative != y->negative)
        return x->negative ? -1 : 1;
    return x->negative ? -decimal_compare_sizes(x, y) : decimal_compare_sizes(x, y);
}

/* ---- sets ------------------------------------------------------------------------------------ */

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
        const int order = decimal_compare(d, &n->low.at);
        if (order < 0 || (order == 0 && n->low.open))
            return false;
    }
    if (n->high.present) {
        const int order = decimal_compare(d, &n->high.at);
        if (order > 0 || (order == 0 && n->high.open))
            return false;
    }
    return true;
}

bool numbers_has(const struct numbers *n, const struct decimal *d) {
    if (!within(n, d))
        return false;
    for (uint32_t i = 0; i < n->n_moduli; i++)
        if (is_multiple(d, &n->moduli[i]) == n->moduli[i].excluded)
            return false;
    for (uint32_t i = 0; i < n->n_except; i++)
        if (decimal_compare(d, &n->except[i]) == 0)
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
    decimal_normalize(out);
    return true;
}

const struct modulus *numbers_grid(const struct numbers *n) {
    const struct modulus *coarsest = NULL;
    for (uint32_t i = 0; i < n->n_moduli; i++) {
        const struct modulus *m = &n->moduli[i];
        if (!m->excluded && (!coarsest || m->exponent > coarsest->exponent ||
                             (m->exponent == coarsest->exponent && m->m > coarsest->m)))
            coarsest = m;
    }
    return coarsest;
}

/* Multiples of both the modulus and 10^step. */
static struct modulus coarser(struct modulus m, int32_t step) {
    if (m.exponent >= step)
        return m;
    for (int32_t i = m.exponent; i < step && m.m % 2 == 0; i++)
        m.m /= 2;
    for (int32_t i = m.exponent; i < step && m.m % 5 == 0; i++)
        m.m /= 5;
    m.exponent = step;
    return m;
}

/* Cuts the span down to the set's numbers of this sign. False: nothing is left. */
static bool cut_span(const struct numbers *n, bool negative, struct span *s) {
    const struct bound *inner = negative ? &n->high : &n->low,
                       *outer = negative ? &n->low : &n->high;
    if (outer->present && outer->at.negative != negative && outer->at.n)
        return false;
    if (inner->present && inner->at.negative == negative &&
        decimal_compare_sizes(&inner->at, &s->low) >= 0 && (inner->at.n || inner->open)) {
        s->low_open = decimal_compare_sizes(&inner->at, &s->low) == 0 ? s->low_open || inner->open
                                                                      : inner->open;
        s->low = inner->at;
    }
    if (outer->present) {
        const int order = s->unbounded ? -1 : decimal_compare_sizes(&outer->at, &s->high);
        if (order < 0 || (order == 0 && outer->open)) {
            s->closed = !outer->open;
            s->high = outer->at;
            s->unbounded = false;
        }
    }
    s->low.negative = s->high.negative = false;
    const int order = s->unbounded ? -1 : decimal_compare_sizes(&s->low, &s->high);
    return order < 0 || (order == 0 && !s->low_open && s->closed);
}

bool numbers_has_between(const struct numbers *n, bool negative, struct span s) {
    enum { TRIES = 2000 };
    if (!cut_span(n, negative, &s))
        return false;
    const struct modulus *own = numbers_grid(n), step = {.m = 1, .exponent = s.step};
    struct decimal d = s.low;
    if (!s.unbounded && decimal_compare_sizes(&s.low, &s.high) == 0) {
        d.negative = negative && d.n;
        return numbers_has(n, &d) && (!s.stepped || is_multiple(&d, &step));
    }
    if (!own && !s.stepped)
        return true; /* numbers without end: exceptions and other moduli leave most of them */
    const struct modulus grid = !own ? step : s.stepped ? coarser(*own, s.step) : *own;
    bool above = s.low_open;
    for (int i = 0; i < TRIES; i++) {
        if (!next_multiple(&d, above, &grid, &d))
            return false;
        const int place = s.unbounded ? -1 : decimal_compare_sizes(&d, &s.high);
        if (place > 0 || (place == 0 && !s.closed))
            return false;
        d.negative = negative && d.n;
        if (numbers_has(n, &d))
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
    if (!decimal_read(value, &d))
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
    if (!decimal_read(of, &d) || d.n > MODULUS_DIGITS)
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
    const int order = to->present && by->present ? decimal_compare(&to->at, &by->at) * sign : 0;
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
    a = coarser(a, c.exponent);
    c = coarser(c, a.exponent);
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
           decimal_compare(&n->low.at, &n->high.at) == 0 && !n->n_moduli && !n->n_except;
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

bool numbers_are_whole(const struct numbers *n) {
    for (uint32_t i = 0; i < n->n_moduli; i++)
        if (!n->moduli[i].excluded && n->moduli[i].exponent >= 0)
            return true;
    return false;
}

void numbers_make_canonical(struct numbers *n) {
    n->canonical = true;
    n->plain = numbers_are_whole(n) || (is_point(n) && n->low.at.n <= n->low.at.point);
}

bool numbers_contains(const struct numbers *n, struct text_span text) {
    struct decimal d;
    return decimal_read(text, &d) && numbers_has(n, &d);
}
