/* SPDX-License-Identifier: Apache-2.0 */
/* language.c: sets of strings, and operations on them. */
#include <stdlib.h>
#include <string.h>

#include "grammar/language_internal.h"
#include "util/utf8.h"

/* ---- characters to the end ------------------------------------------------------------------- */

/* A byte of each class. */
static void representatives(const struct dfa *d, uint8_t bytes[256]) {
    for (int byte = 255; byte >= 0; byte--)
        bytes[d->classes[byte]] = (uint8_t)byte;
}

static bool begins_character(uint8_t byte) {
    return (byte & 0xc0) != 0x80;
}

/* The most characters to the end from s; LANGUAGE_UNBOUNDED: as long as it is so for a state that
 * it leads to. */
static uint32_t most_from(const struct language *l, const uint8_t bytes[256], uint32_t s) {
    const struct dfa *d = &l->dfa;
    uint32_t most = 0;
    for (uint32_t c = 0; c < d->n_classes; c++) {
        const uint32_t to = d->next[(size_t)s * d->n_classes + c];
        if (!to)
            continue;
        if (l->most[to] == LANGUAGE_UNBOUNDED)
            return LANGUAGE_UNBOUNDED;
        const uint32_t far = l->most[to] + begins_character(bytes[c]);
        most = far > most ? far : most;
    }
    return most;
}

static uint32_t least_from(const struct language *l, const uint8_t bytes[256], uint32_t s) {
    const struct dfa *d = &l->dfa;
    uint32_t least = l->least[s];
    for (uint32_t c = 0; c < d->n_classes; c++) {
        const uint32_t to = d->next[(size_t)s * d->n_classes + c];
        if (!to || l->least[to] == LANGUAGE_UNBOUNDED)
            continue;
        const uint32_t near = l->least[to] + begins_character(bytes[c]);
        least = near < least ? near : least;
    }
    return least;
}

/* least[s] and most[s], by relaxation: in most automata a few rounds. States of a loop, and those
 * that lead to one, stay unbounded. */
static kvasir_status measure(struct grammar_budget *b, struct language *l, kvasir_error *err) {
    const struct dfa *d = &l->dfa;
    uint8_t bytes[256];
    representatives(d, bytes);
    for (uint32_t s = 0; s < d->n; s++) {
        l->least[s] = d->accepts[s] ? 0 : LANGUAGE_UNBOUNDED;
        l->most[s] = s ? LANGUAGE_UNBOUNDED : 0;
    }
    for (bool changed = true; changed;) {
        changed = false;
        if (!budget_take(b, (uint64_t)d->n * d->n_classes / 2, 0))
            return language_too_large(err);
        for (uint32_t s = d->n; s-- > 1;) {
            const uint32_t least = least_from(l, bytes, s);
            const uint32_t most =
                l->most[s] == LANGUAGE_UNBOUNDED ? most_from(l, bytes, s) : l->most[s];
            changed |= least != l->least[s] || most != l->most[s];
            l->least[s] = least;
            l->most[s] = most;
        }
    }
    return KVASIR_OK;
}

/* Row k + 1 of reach from row k, or row 0 from nothing: a step over the first byte of a character,
 * and any over those inside one. */
static void reach_row(const struct language *l, const uint8_t bytes[256], const uint64_t *before,
                      uint64_t *row) {
    const struct dfa *d = &l->dfa;
    memset(row, 0, l->words * sizeof *row);
    for (uint32_t s = 1; s < d->n && !before; s++)
        if (d->accepts[s])
            row[s / 64] |= 1ull << s % 64;
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t s = 1; s < d->n; s++) {
            if (row[s / 64] >> s % 64 & 1)
                continue;
            bool found = false;
            for (uint32_t c = 0; c < d->n_classes && !found; c++) {
                const uint32_t to = d->next[(size_t)s * d->n_classes + c];
                const uint64_t *from = begins_character(bytes[c]) ? before : row;
                found = to && from && (from[to / 64] >> to % 64 & 1);
            }
            if (found) {
                row[s / 64] |= 1ull << s % 64;
                changed = true;
            }
        }
    }
}

/* Where a least and a most number of characters can both matter, their automaton is not expanded:
 * it is known from each state which numbers of characters lead to the end. */
static kvasir_status find_reach(struct grammar_budget *b, struct language *l, kvasir_error *err) {
    uint8_t bytes[256];
    size_t cap = 0;
    l->words = (l->dfa.n + 63) / 64;
    representatives(&l->dfa, bytes);
    for (uint32_t k = 0; k <= l->max; k++) {
        const size_t need = (size_t)(k + 1) * l->words;
        if (!budget_take(b, (uint64_t)l->dfa.n * l->dfa.n_classes * 3, l->words * sizeof *l->reach))
            return language_too_large(err);
        if (!ARRAY_GROW(l->reach, cap, need))
            return language_no_memory(err);
        uint64_t *row = l->reach + (size_t)k * l->words;
        reach_row(l, bytes, k ? row - l->words : NULL, row);
        l->n_reach = k + 1;
        if (k && memcmp(row, row - l->words, l->words * sizeof *row) == 0)
            return KVASIR_OK;
    }
    return KVASIR_OK;
}

/* ---- languages ------------------------------------------------------------------------------- */

struct language *language_retain(struct language *l) {
    if (l)
        atomic_fetch_add(&l->refs, 1);
    return l;
}

void language_release(struct language *l) {
    if (!l || atomic_fetch_sub(&l->refs, 1) != 1)
        return;
    dfa_free(&l->dfa);
    mem_free(l->reach);
    mem_free(l->least);
    mem_free(l->most);
    mem_free(l->text);
    mem_free(l);
}

size_t language_bytes(const struct language *l) {
    return l->bytes;
}

/* Whether the automaton is that of all strings. */
static bool is_universe_from(const struct dfa *d) {
    struct dfa any;
    if (!dfa_any(&any))
        return false;
    uint32_t pair[16] = {0};
    bool same = true;
    uint32_t order[16] = {any.start}, n = 1;
    pair[any.start] = d->start;
    for (uint32_t i = 0; same && i < n; i++)
        for (int byte = 0; same && byte < 256; byte++) {
            const uint32_t to = dfa_next(&any, order[i], (uint8_t)byte),
                           mine = dfa_next(d, pair[order[i]], (uint8_t)byte);
            same = (to == 0) == (mine == 0);
            if (to && !pair[to]) {
                pair[to] = mine;
                order[n++] = to;
            }
            same = same && (!to || pair[to] == mine) && any.accepts[to] == d->accepts[mine];
        }
    dfa_free(&any);
    return same;
}

/* The state from which all strings are taken: there is one at most. */
static uint32_t find_universe(const struct dfa *d) {
    for (uint32_t s = 1; s < d->n; s++) {
        if (!d->accepts[s] || dfa_next(d, s, 'a') != s || dfa_next(d, s, 0) != s)
            continue;
        struct dfa from = *d;
        from.start = s;
        if (is_universe_from(&from))
            return s;
    }
    return 0;
}

static kvasir_status finish(struct grammar_budget *b, struct language *l, kvasir_error *err) {
    l->least = mem_calloc(l->dfa.n, sizeof *l->least);
    l->most = mem_calloc(l->dfa.n, sizeof *l->most);
    l->text = mem_alloc(l->dfa.n);
    if (!l->least || !l->most || !l->text || !dfa_text_states(&l->dfa, l->text))
        return language_no_memory(err);
    TRY(measure(b, l, err));
    l->universe = find_universe(&l->dfa);
    l->any = l->universe && l->universe == l->dfa.start;
    if (l->max != LANGUAGE_UNBOUNDED && l->most[l->dfa.start] <= l->max)
        l->max = LANGUAGE_UNBOUNDED; /* it holds anyway */
    if (l->least[l->dfa.start] != LANGUAGE_UNBOUNDED && l->least[l->dfa.start] >= l->min)
        l->min = 0;
    if (!l->any && l->min && l->max != LANGUAGE_UNBOUNDED)
        TRY(find_reach(b, l, err));
    l->bytes = sizeof *l + (size_t)l->dfa.n * (l->dfa.n_classes * 4 + 10) +
               (size_t)l->n_reach * l->words * 8;
    return budget_take(b, 0, l->bytes) ? KVASIR_OK : language_too_large(err);
}

kvasir_status language_of(struct grammar_budget *b, struct dfa *d, uint32_t min, uint32_t max,
                          struct language **out, kvasir_error *err) {
    struct language *l = mem_calloc(1, sizeof *l);
    kvasir_status status = l && dfa_trim(d) ? KVASIR_OK : language_no_memory(err);
    if (!status)
        status = dfa_minimize(b, d, err);
    if (status) {
        dfa_free(d);
        mem_free(l);
        return status;
    }
    ASSERT(d->n && d->start < d->n && !d->accepts[0]);
    atomic_init(&l->refs, 1);
    l->dfa = *d;
    l->min = min;
    l->max = max;
    status = finish(b, l, err);
    if (status)
        language_release(l);
    else
        *out = l;
    return status;
}

kvasir_status language_any(struct grammar_budget *b, uint32_t min, uint32_t max,
                           struct language **out, kvasir_error *err) {
    struct dfa d;
    if (!dfa_any(&d))
        return language_no_memory(err);
    return language_of(b, &d, min, max, out, err);
}

/* ---- finite sets ----------------------------------------------------------------------------- */

static int compare_spans(const void *x, const void *y) {
    const struct text_span *a = x, *b = y;
    const int order = memcmp(a->data, b->data, a->len < b->len ? a->len : b->len);
    return order ? order : (a->len > b->len) - (a->len < b->len);
}

/* A tree of their bytes. */
static bool add_string(struct dfa *d, struct text_span string) {
    uint32_t s = d->start;
    for (size_t i = 0; i < string.len; i++) {
        const uint8_t byte = (uint8_t)string.data[i];
        uint32_t to = dfa_next(d, s, byte);
        if (!to) {
            if (!dfa_add(d, false, &to))
                return false;
            d->next[(size_t)s * d->n_classes + d->classes[byte]] = to;
        }
        s = to;
    }
    d->accepts[s] = 1;
    return true;
}

static void classes_of_strings(const struct text_span *strings, size_t n, struct dfa *d) {
    bool used[256] = {0};
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < strings[i].len; k++)
            used[(uint8_t)strings[i].data[k]] = true;
    d->n_classes = 0;
    for (int byte = 0; byte < 256; byte++)
        if (used[byte])
            d->classes[byte] = (uint8_t)d->n_classes++;
    for (int byte = 0; byte < 256; byte++) /* UTF-8 never uses all: there is one left */
        if (!used[byte])
            d->classes[byte] = (uint8_t)d->n_classes;
    d->n_classes++;
}

kvasir_status language_literals(struct grammar_budget *b, const struct text_span *strings, size_t n,
                                struct language **out, kvasir_error *err) {
    struct dfa d = {0};
    uint32_t dead, begin;
    struct text_span *sorted = mem_calloc(n + 1, sizeof *sorted);
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += strings[i].len;
    classes_of_strings(strings, n, &d);
    kvasir_status status = sorted ? KVASIR_OK : language_no_memory(err);
    if (!status && !budget_take(b, bytes * (16 + d.n_classes / 8), 0))
        status = language_too_large(err);
    if (!status && (!dfa_add(&d, false, &dead) || !dfa_add(&d, false, &begin)))
        status = language_no_memory(err);
    d.start = 1;
    if (!status && n) {
        memcpy(sorted, strings, n * sizeof *sorted);
        qsort(sorted, n, sizeof *sorted, compare_spans);
    }
    for (size_t i = 0; !status && i < n; i++)
        if (utf8_check(sorted[i].data, sorted[i].len) == sorted[i].len &&
            !add_string(&d, sorted[i]))
            status = language_no_memory(err);
    mem_free(sorted);
    if (!status)
        return language_of(b, &d, 0, LANGUAGE_UNBOUNDED, out, err);
    dfa_free(&d);
    return status;
}

kvasir_status language_literal(struct grammar_budget *b, struct text_span string,
                               struct language **out, kvasir_error *err) {
    return language_literals(b, &string, 1, out, err);
}

/* ---- reading --------------------------------------------------------------------------------- */

bool language_is_empty(const struct language *l) {
    const struct language_at at = language_start(l);
    return at.state == 0;
}

bool language_is_any(const struct language *l) {
    return l->any && l->min == 0 && l->max == LANGUAGE_UNBOUNDED;
}

bool language_never_ends(const struct language *l) {
    bool endless = l->max == LANGUAGE_UNBOUNDED;
    for (uint32_t state = 1; state < l->dfa.n; state++)
        endless = endless && l->most[state] == LANGUAGE_UNBOUNDED;
    return endless;
}

bool language_list(const struct language *l, uint32_t most, struct text_buf *out) {
    enum { LONGEST = 255 };
    struct language_at path[LONGEST + 1] = {language_start(l)};
    char text[LONGEST];
    int next[LONGEST + 1] = {0}; /* the byte that is tried next at each depth */
    size_t depth = 0;
    uint32_t n = 0;
    if (language_is_empty(l))
        return true;
    for (;;) {
        if (next[depth] == 0 && language_accepts(l, path[depth])) {
            const char len = (char)depth;
            if (++n > most || !text_append(out, &len, 1) || !text_append(out, text, depth))
                return false;
        }
        struct language_at at = path[depth];
        while (next[depth] < 256 && !language_step(l, &at, (uint8_t)next[depth])) {
            at = path[depth];
            next[depth]++;
        }
        if (next[depth] < 256 && depth == LONGEST)
            return false;
        if (next[depth] < 256) {
            text[depth] = (char)next[depth]++;
            path[++depth] = at;
            next[depth] = 0;
        } else if (depth-- == 0) {
            return true;
        }
    }
}

/* Whether a string can be completed from here with an allowed number of characters. */
static bool can_end(const struct language *l, uint32_t state, uint32_t count) {
    DEBUG_ASSERT(state < l->dfa.n);
    if (!state)
        return false;
    const uint32_t least = l->min > count ? l->min - count : 0;
    if (l->max == LANGUAGE_UNBOUNDED)
        return l->most[state] >= least;
    if (count > l->max)
        return false;
    const uint32_t most = l->max - count;
    if (least > most)
        return false;
    if (!l->reach)
        return l->least[state] <= most && l->most[state] >= least;
    for (uint32_t k = least; k <= most; k++) {
        const uint32_t row = k < l->n_reach ? k : l->n_reach - 1;
        if (l->reach[(size_t)row * l->words + state / 64] >> state % 64 & 1)
            return true;
        if (row == l->n_reach - 1)
            return false; /* all further rows are the same */
    }
    return false;
}

struct language_at language_start(const struct language *l) {
    const struct language_at at = {l->dfa.start, 0};
    return can_end(l, at.state, 0) ? at : (struct language_at){0};
}

bool language_step(const struct language *l, struct language_at *at, uint8_t byte) {
    struct language_at to = {dfa_next(&l->dfa, at->state, byte), at->count};
    ASSERT(at->state < l->dfa.n);
    const bool counts = l->min || l->max != LANGUAGE_UNBOUNDED;
    if (counts && begins_character(byte))
        to.count++;
    if (l->max == LANGUAGE_UNBOUNDED && to.count > l->min)
        to.count = l->min; /* enough: more do not matter */
    if (!can_end(l, to.state, to.count))
        return false;
    *at = to;
    return true;
}

bool language_accepts(const struct language *l, struct language_at at) {
    return l->dfa.accepts[at.state] && at.count >= l->min && at.count <= l->max;
}

bool language_contains(const struct language *l, struct text_span string) {
    struct language_at at = language_start(l);
    bool good = at.state != 0;
    for (size_t i = 0; good && i < string.len; i++)
        good = language_step(l, &at, (uint8_t)string.data[i]);
    return good && language_accepts(l, at);
}

/* Whether a character of `from` to `to` can be completed: `value` are its bits so far, and `more`
 * bytes are still to come. */
static bool completes(const struct language *l, struct language_at at, uint32_t value, int more,
                      uint32_t from, uint32_t to) {
    const uint32_t low = value << 6 * more, high = low | ((1u << 6 * more) - 1);
    if (high < from || low > to)
        return false;
    if (more == 0)
        return true;
    for (uint32_t bits = 0; bits < 64; bits++) {
        struct language_at next = at;
        if (language_step(l, &next, (uint8_t)(0x80 | bits)) &&
            completes(l, next, value << 6 | bits, more - 1, from, to))
            return true;
    }
    return false;
}

bool language_takes_any_of(const struct language *l, struct language_at at, uint32_t from,
                           uint32_t to) {
    for (uint32_t byte = 0; byte < 0xf5; byte++) {
        const int more = byte < 0x80 ? 0 : byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
        struct language_at next = at;
        if ((byte >= 0x80 && byte < 0xc2) || !language_step(l, &next, (uint8_t)byte))
            continue;
        if (completes(l, next, more ? byte & (0x3fu >> more) : byte, more, from, to))
            return true;
    }
    return false;
}

bool language_room(const struct language *l, struct language_at at, uint32_t *room) {
    if (!at.state || at.count > l->max)
        return false;
    *room = l->max == LANGUAGE_UNBOUNDED ? LANGUAGE_UNBOUNDED : l->max - at.count;
    return at.state == l->universe || (l->max == LANGUAGE_UNBOUNDED && l->text[at.state]);
}

bool language_stays(const struct language *l, struct language_at at) {
    struct language_at next = at;
    return at.state && at.state == l->universe && language_step(l, &next, 'a') &&
           next.state == at.state && next.count == at.count;
}
