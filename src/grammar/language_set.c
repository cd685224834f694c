/* SPDX-License-Identifier: Apache-2.0 */
/* language_set.c: intersection, union and complement of sets of strings: two automata at once. */
#include <string.h>

#include "grammar/language_internal.h"

enum operation { BOTH, EITHER, FIRST_ONLY };
enum { COMBINE_STEPS = 1000 }; /* for what is the same however small the automata are */

static bool accepts(enum operation op, bool x, bool y) {
    return op == BOTH ? x && y : op == EITHER ? x || y : x && !y;
}

/* Whether a pair of states, of which 0 is dead, can still lead to the end. */
static bool alive(enum operation op, uint32_t x, uint32_t y) {
    return op == BOTH ? x && y : op == EITHER ? x || y : x != 0;
}

struct product {
    struct grammar_budget *b;
    const struct dfa *x, *y;
    enum operation op;
    struct dfa *out;
    uint64_t *pairs; /* [out->n] */
    size_t pairs_cap;
    uint32_t *table; /* [size]: state + 1 */
    size_t size;
    kvasir_error *err;
    kvasir_status status;
};

static size_t slot_of(const struct product *p, uint64_t pair) {
    size_t at = (pair * 0x9e3779b97f4a7c15u >> 20) & (p->size - 1);
    while (p->table[at] && p->pairs[p->table[at] - 1] != pair)
        at = (at + 1) & (p->size - 1);
    return at;
}

static bool failed(struct product *p, kvasir_status (*why)(kvasir_error *)) {
    if (!p->status)
        p->status = why(p->err);
    return false;
}

static bool grow_table(struct product *p) {
    mem_free(p->table);
    p->size = p->size ? p->size * 2 : 256;
    p->table = mem_calloc(p->size, sizeof *p->table);
    if (!p->table)
        return failed(p, language_no_memory);
    for (uint32_t i = 1; i < p->out->n; i++)
        p->table[slot_of(p, p->pairs[i])] = i + 1;
    return true;
}

static bool state_of(struct product *p, uint32_t x, uint32_t y, uint32_t *state) {
    const uint64_t pair = (uint64_t)x << 32 | y;
    *state = 0;
    if (!alive(p->op, x, y))
        return true;
    if ((size_t)p->out->n * 2 >= p->size && !grow_table(p))
        return false;
    const size_t at = slot_of(p, pair);
    ASSERT(x < p->x->n && y < p->y->n);
    if (p->table[at]) {
        *state = p->table[at] - 1;
        return true;
    }
    if (!budget_take(p->b, p->out->n_classes, (size_t)p->out->n_classes * 4 + 16))
        return failed(p, language_too_large);
    if (!dfa_add(p->out, accepts(p->op, p->x->accepts[x], p->y->accepts[y]), state) ||
        !ARRAY_GROW(p->pairs, p->pairs_cap, (size_t)p->out->n))
        return failed(p, language_no_memory);
    p->pairs[*state] = pair;
    p->table[at] = *state + 1;
    return true;
}

static bool explore(struct product *p) {
    uint8_t bytes[256];
    uint32_t dead;
    dfa_join_classes(p->x, p->y, p->out);
    ASSERT(p->out->n_classes <= 256);
    for (int byte = 255; byte >= 0; byte--)
        bytes[p->out->classes[byte]] = (uint8_t)byte;
    if (!dfa_add(p->out, false, &dead) || !ARRAY_GROW(p->pairs, p->pairs_cap, (size_t)1))
        return failed(p, language_no_memory);
    p->pairs[0] = 0;
    if (!state_of(p, p->x->start, p->y->start, &p->out->start))
        return false;
    for (uint32_t s = 1; s < p->out->n; s++)
        for (uint32_t c = 0; c < p->out->n_classes; c++) {
            const uint32_t x = (uint32_t)(p->pairs[s] >> 32), y = (uint32_t)p->pairs[s];
            uint32_t to;
            if (!state_of(p, dfa_next(p->x, x, bytes[c]), dfa_next(p->y, y, bytes[c]), &to))
                return false;
            p->out->next[(size_t)s * p->out->n_classes + c] = to;
        }
    return true;
}

static kvasir_status combine(struct grammar_budget *b, const struct dfa *x, const struct dfa *y,
                             enum operation op, struct dfa *out, kvasir_error *err) {
    *out = (struct dfa){0};
    if (!budget_take(b, COMBINE_STEPS, 0))
        return language_too_large(err);
    struct product p = {.b = b, .x = x, .y = y, .op = op, .out = out, .err = err};
    const bool good = explore(&p);
    mem_free(p.pairs);
    mem_free(p.table);
    if (!good)
        dfa_free(out);
    return p.status;
}

/* ---- bounds as automata ---------------------------------------------------------------------- */

/* Strings of min to max characters. */
static kvasir_status bounds_dfa(struct grammar_budget *b, uint32_t min, uint32_t max,
                                struct dfa *out, kvasir_error *err) {
    struct dfa any;
    const bool open = max == LANGUAGE_UNBOUNDED;
    const uint32_t rounds = open ? min : max;
    if (!dfa_any(&any))
        return language_no_memory(err);
    *out = (struct dfa){.n_classes = any.n_classes, .start = 1};
    memcpy(out->classes, any.classes, sizeof out->classes);
    const uint64_t states = ((uint64_t)rounds + 1) * (any.n - 1) + 1;
    kvasir_status status =
        states < 1u << 24 && budget_take(b, states * any.n_classes, states * any.n_classes * 4)
            ? KVASIR_OK
            : language_too_large(err);
    for (uint64_t i = 0; !status && i < states; i++) {
        uint32_t state;
        const bool good =
            i && (i - 1) % (any.n - 1) + 1 == any.start && (i - 1) / (any.n - 1) >= min;
        if (!dfa_add(out, good, &state))
            status = language_no_memory(err);
    }
    /* round k has counted k characters; the first byte of one leads to the next round */
    for (uint32_t k = 0; !status && k <= rounds; k++)
        for (uint32_t s = 1; s < any.n; s++)
            for (uint32_t c = 0; c < any.n_classes; c++) {
                const uint32_t to = any.next[(size_t)s * any.n_classes + c];
                const uint32_t round = s == any.start ? (k == rounds && open ? k : k + 1) : k;
                if (to && round <= rounds)
                    out->next[((size_t)k * (any.n - 1) + s) * any.n_classes + c] =
                        round * (any.n - 1) + to;
            }
    dfa_free(&any);
    if (status)
        dfa_free(out);
    return status;
}

/* The automaton of a language with its bounds in it. */
static kvasir_status whole_dfa(struct grammar_budget *b, const struct language *l, struct dfa *out,
                               kvasir_error *err) {
    struct dfa any, bounds;
    const bool bounded = l->min || l->max != LANGUAGE_UNBOUNDED;
    if (!bounded && !dfa_any(&any))
        return language_no_memory(err);
    if (bounded)
        TRY(bounds_dfa(b, l->min, l->max, &bounds, err));
    const kvasir_status status = combine(b, &l->dfa, bounded ? &bounds : &any, BOTH, out, err);
    dfa_free(bounded ? &bounds : &any);
    return status;
}

/* ---- operations ------------------------------------------------------------------------------ */

kvasir_status language_and(struct grammar_budget *b, const struct language *x,
                           const struct language *y, struct language **out, kvasir_error *err) {
    struct dfa d;
    const uint32_t min = x->min > y->min ? x->min : y->min, max = x->max < y->max ? x->max : y->max;
    TRY(combine(b, &x->dfa, &y->dfa, BOTH, &d, err));
    return language_of(b, &d, min, max, out, err);
}

kvasir_status language_or(struct grammar_budget *b, const struct language *x,
                          const struct language *y, struct language **out, kvasir_error *err) {
    struct dfa left, right, d;
    TRY(whole_dfa(b, x, &left, err));
    kvasir_status status = whole_dfa(b, y, &right, err);
    if (!status) {
        status = combine(b, &left, &right, EITHER, &d, err);
        dfa_free(&right);
    }
    dfa_free(&left);
    return status ? status : language_of(b, &d, 0, LANGUAGE_UNBOUNDED, out, err);
}

kvasir_status language_not(struct grammar_budget *b, const struct language *x,
                           struct language **out, kvasir_error *err) {
    struct dfa any, inner, d;
    /* bounds alone, one of them: the other side of it */
    if (x->any && x->min && x->max == LANGUAGE_UNBOUNDED)
        return language_any(b, 0, x->min - 1, out, err);
    if (x->any && !x->min && x->max != LANGUAGE_UNBOUNDED)
        return language_any(b, x->max + 1, LANGUAGE_UNBOUNDED, out, err);
    TRY(whole_dfa(b, x, &inner, err));
    kvasir_status status = dfa_any(&any) ? KVASIR_OK : language_no_memory(err);
    if (!status) {
        status = combine(b, &any, &inner, FIRST_ONLY, &d, err);
        dfa_free(&any);
    }
    dfa_free(&inner);
    return status ? status : language_of(b, &d, 0, LANGUAGE_UNBOUNDED, out, err);
}
