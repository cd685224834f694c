/* SPDX-License-Identifier: Apache-2.0 */
/* language_dfa.c: automata while they are made. */
#include <stdlib.h>
#include <string.h>

#include "grammar/language_internal.h"
#include "util/utf8.h"

kvasir_status language_no_memory(kvasir_error *err) {
    return fail(err, KVASIR_ERR_MEMORY, "out of memory for a set of strings");
}

kvasir_status language_too_large(kvasir_error *err) {
    return fail(err, KVASIR_ERR_UNSUPPORTED,
                "this set of strings costs more time or memory to enforce than allowed");
}

void dfa_free(struct dfa *d) {
    mem_free(d->next);
    mem_free(d->accepts);
    d->next = NULL;
    d->accepts = NULL;
}

bool dfa_add(struct dfa *d, bool accepts, uint32_t *state) {
    const size_t need = (size_t)(d->n + 1) * d->n_classes;
    if (!ARRAY_GROW(d->next, d->next_cap, need) ||
        !ARRAY_GROW(d->accepts, d->accepts_cap, (size_t)d->n + 1))
        return false;
    memset(d->next + need - d->n_classes, 0, d->n_classes * sizeof *d->next);
    d->accepts[d->n] = accepts;
    *state = d->n++;
    return true;
}

static void link_range(struct dfa *d, uint32_t from, int first, int last, uint32_t to) {
    for (int byte = first; byte <= last; byte++)
        d->next[(size_t)from * d->n_classes + d->classes[byte]] = to;
}

/* The bytes that valid UTF-8 tells apart (RFC 3629). */
static void utf8_classes(struct dfa *d) {
    static const uint8_t BEGINS[] = {0x00, 0x80, 0x90, 0xa0, 0xc0, 0xc2, 0xe0,
                                     0xe1, 0xed, 0xee, 0xf0, 0xf1, 0xf4, 0xf5};
    uint8_t class = 0;
    for (int byte = 0; byte < 256; byte++) {
        if (byte && memchr(BEGINS, byte, sizeof BEGINS))
            class ++;
        d->classes[byte] = class;
    }
    d->n_classes = (uint32_t) class + 1;
}

bool dfa_any(struct dfa *d) {
    uint32_t dead, whole, one, two, three, e0, ed, f0, f4;
    *d = (struct dfa){0};
    utf8_classes(d);
    if (!dfa_add(d, false, &dead) || !dfa_add(d, true, &whole) || !dfa_add(d, false, &one) ||
        !dfa_add(d, false, &two) || !dfa_add(d, false, &three) || !dfa_add(d, false, &e0) ||
        !dfa_add(d, false, &ed) || !dfa_add(d, false, &f0) || !dfa_add(d, false, &f4)) {
        dfa_free(d);
        return false;
    }
    d->start = whole;
    link_range(d, whole, 0x00, 0x7f, whole);
    link_range(d, whole, 0xc2, 0xdf, one);
    link_range(d, whole, 0xe0, 0xe0, e0);
    link_range(d, whole, 0xe1, 0xec, two);
    link_range(d, whole, 0xed, 0xed, ed);
    link_range(d, whole, 0xee, 0xef, two);
    link_range(d, whole, 0xf0, 0xf0, f0);
    link_range(d, whole, 0xf1, 0xf3, three);
    link_range(d, whole, 0xf4, 0xf4, f4);
    link_range(d, one, 0x80, 0xbf, whole);
    link_range(d, two, 0x80, 0xbf, one);
    link_range(d, three, 0x80, 0xbf, two);
    link_range(d, e0, 0xa0, 0xbf, one);
    link_range(d, ed, 0x80, 0x9f, one);
    link_range(d, f0, 0x90, 0xbf, two);
    link_range(d, f4, 0x80, 0x8f, two);
    return true;
}

void dfa_join_classes(const struct dfa *x, const struct dfa *y, struct dfa *out) {
    uint16_t pairs[256];
    out->n_classes = 0;
    for (int byte = 0; byte < 256; byte++) {
        const uint16_t pair = (uint16_t)(x->classes[byte] << 8 | (y ? y->classes[byte] : 0));
        uint32_t class = 0;
        while (class < out->n_classes && pairs[class] != pair)
            class ++;
        if (class == out->n_classes)
            pairs[out->n_classes++] = pair;
        out->classes[byte] = (uint8_t) class;
    }
}

/* ---- trimming -------------------------------------------------------------------------------- */

/* Marks the states from which an accepting one can be reached. */
static bool mark_live(const struct dfa *d, uint8_t *live) {
    /* the ways back, by counting sort */
    const size_t ways = (size_t)d->n * d->n_classes;
    uint32_t *first = mem_calloc((size_t)d->n + 2, sizeof *first),
             *from = mem_calloc(ways + 1, sizeof *from),
             *stack = mem_calloc(d->n + 1, sizeof *stack);
    bool good = first && from && stack;
    size_t top = 0;
    for (size_t i = 0; good && i < ways; i++)
        first[d->next[i] + 2]++;
    for (uint32_t s = 1; good && s < d->n + 1; s++)
        first[s + 1] += first[s];
    for (size_t i = 0; good && i < ways; i++)
        from[first[d->next[i] + 1]++] = (uint32_t)(i / d->n_classes);
    for (uint32_t s = 1; good && s < d->n; s++)
        if (d->accepts[s]) {
            live[s] = 1;
            stack[top++] = s;
        }
    while (good && top) {
        const uint32_t s = stack[--top];
        for (uint32_t i = first[s]; i < first[s + 1]; i++)
            if (!live[from[i]]) {
                live[from[i]] = 1;
                stack[top++] = from[i];
            }
    }
    mem_free(first);
    mem_free(from);
    mem_free(stack);
    return good;
}

/* Renumbers states by block, those of block 0 being dead; blocks are numbered without gaps. */
static void renumber(struct dfa *d, const uint32_t *block, uint32_t n_blocks) {
    uint32_t written = 0; /* a row is read before another block's takes its place */
    for (uint32_t s = 0; s < d->n; s++) {
        const uint32_t to = block[s];
        if (to != written) /* blocks come in the order of their first states */
            continue;
        for (uint32_t c = 0; c < d->n_classes; c++)
            d->next[(size_t)to * d->n_classes + c] = block[d->next[(size_t)s * d->n_classes + c]];
        d->accepts[to] = d->accepts[s];
        written++;
    }
    ASSERT(written == n_blocks);
    d->start = block[d->start];
    d->n = n_blocks;
}

/* Removes dead states. */
bool dfa_trim(struct dfa *d) {
    uint8_t *live = mem_calloc(d->n, 1);
    uint32_t *block = mem_calloc(d->n, sizeof *block), n = 1;
    const bool good = live && block && mark_live(d, live);
    for (uint32_t s = 1; good && s < d->n; s++)
        block[s] = live[s] ? n++ : 0;
    if (good)
        renumber(d, block, n);
    mem_free(live);
    mem_free(block);
    return good;
}

/* ---- making it small: Moore's refinement ----------------------------------------------------- */

struct refinement {
    const struct dfa *d;
    uint32_t *block, *fresh; /* [n] */
    uint32_t *table;         /* [size]: a state of each new block, + 1 */
    size_t size;
};

static bool same_signature(const struct refinement *r, uint32_t x, uint32_t y) {
    const struct dfa *d = r->d;
    bool same = r->block[x] == r->block[y];
    for (uint32_t c = 0; same && c < d->n_classes; c++)
        same = r->block[d->next[(size_t)x * d->n_classes + c]] ==
               r->block[d->next[(size_t)y * d->n_classes + c]];
    return same;
}

static uint64_t signature(const struct refinement *r, uint32_t s) {
    const struct dfa *d = r->d;
    uint64_t h = r->block[s] * 0x9e3779b97f4a7c15u;
    for (uint32_t c = 0; c < d->n_classes; c++)
        h = (h ^ r->block[d->next[(size_t)s * d->n_classes + c]]) * 0x9e3779b97f4a7c15u + (h >> 29);
    return h ^ h >> 32;
}

/* Splits blocks by where their states lead; returns how many there are now. */
static uint32_t refine(struct refinement *r) {
    uint32_t n = 1; /* block 0 is the dead state's alone: no live state is like it */
    memset(r->table, 0, r->size * sizeof *r->table);
    r->fresh[0] = 0;
    for (uint32_t s = 1; s < r->d->n; s++) {
        size_t at = signature(r, s) & (r->size - 1);
        while (r->table[at] && !same_signature(r, r->table[at] - 1, s))
            at = (at + 1) & (r->size - 1);
        if (!r->table[at]) {
            r->table[at] = s + 1;
            r->fresh[s] = n++;
        } else {
            r->fresh[s] = r->fresh[r->table[at] - 1];
        }
    }
    uint32_t *before = r->block;
    r->block = r->fresh;
    r->fresh = before;
    return n;
}

kvasir_status dfa_minimize(struct grammar_budget *b, struct dfa *d, kvasir_error *err) {
    struct refinement r = {.d = d, .size = 64};
    const uint64_t round = (uint64_t)d->n * (d->n_classes + 2);
    while (r.size < (size_t)d->n * 2)
        r.size *= 2;
    r.block = mem_calloc(d->n, sizeof *r.block);
    r.fresh = mem_calloc(d->n, sizeof *r.fresh);
    r.table = mem_calloc(r.size, sizeof *r.table);
    kvasir_status status = KVASIR_OK;
    uint32_t n = 0, now = 1;
    if (!r.block || !r.fresh || !r.table)
        status = language_no_memory(err);
    for (uint32_t s = 1; !status && s < d->n; s++)
        r.block[s] = d->accepts[s] ? 2 : 1;
    while (!status && now != n) {
        if (!budget_take(b, round, 0))
            break; /* what was found so far is no partition of equals: leave it as it is */
        n = now;
        now = refine(&r);
    }
    if (!status && now == n)
        renumber(d, r.block, n);
    mem_free(r.block);
    mem_free(r.fresh);
    mem_free(r.table);
    return status;
}
