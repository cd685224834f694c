/* SPDX-License-Identifier: Apache-2.0 */
/* language_regex.c: an expression's tree to a nondeterministic automaton (Thompson's), and that to
 * a deterministic one (sets of states).
 *
 * What does not take a byte is settled between two bytes, when the next one is known: whether the
 * string begins or ends here (^ $), and whether a word does (\b \B). So a set has the states before
 * those, and how the string came there (struct set_key).
 *
 * (?=X) and (?!X): X has an automaton of its own, which runs beside from there on; a state of a set
 * is a state of the expression with those that run beside it (an obligation each). (?=X) must have
 * accepted at some time up to the end, (?!X) must not: their automata are those of "X, then
 * anything", so that it is enough to look at the end.
 */
#include <stdlib.h>
#include <string.h>

#include "grammar/language_internal.h"
#include "util/utf8.h"

/* ---- the nondeterministic automaton ---------------------------------------------------------- */

enum way {
    WAY_BYTE,  /* a byte of from .. to leads to a */
    WAY_SPLIT, /* to a and b */
    WAY_BEGIN,
    WAY_END,
    WAY_WORD,
    WAY_INSIDE,
    WAY_AHEAD, /* to a, with one more obligation, `look` */
    WAY_MATCH,
};
struct nfa_state {
    uint8_t way, from, to;
    uint32_t a, b;
    uint32_t look;
};
struct look {
    struct dfa dfa; /* of "X, then anything" */
    bool negative;
};
enum { STATES_MAX = 200000, LOOKS_MAX = 16, NOWHERE = UINT32_MAX };

struct builder {
    struct grammar_budget *b;
    const struct expression *e;
    struct nfa_state *states;
    size_t n, cap;
    struct look looks[LOOKS_MAX];
    uint32_t n_looks;
    kvasir_error *err;
    kvasir_status status;
};

static uint32_t add_state(struct builder *n, struct nfa_state state) {
    if (n->status)
        return 0;
    if (n->n >= STATES_MAX || !budget_take(n->b, 4, sizeof state)) {
        n->status = language_too_large(n->err);
        return 0;
    }
    if (!ARRAY_GROW(n->states, n->cap, n->n + 1)) {
        n->status = language_no_memory(n->err);
        return 0;
    }
    n->states[n->n] = state;
    return (uint32_t)n->n++;
}

static uint32_t split(struct builder *n, uint32_t a, uint32_t b) {
    return add_state(n, (struct nfa_state){.way = WAY_SPLIT, .a = a, .b = b});
}

/* The bytes of characters low .. high, which have the same length; each byte's range is whole but
 * for the first bytes. */
static uint32_t add_sequence(struct builder *n, const uint8_t *low, const uint8_t *high, size_t len,
                             uint32_t next) {
    for (size_t i = len; i-- > 0;)
        next = add_state(
            n, (struct nfa_state){.way = WAY_BYTE, .from = low[i], .to = high[i], .a = next});
    return next;
}

/* Splits a range of characters until each piece is one sequence of ranges of bytes. *out: NOWHERE,
 * or what is there already. */
static void add_range(struct builder *n, uint32_t from, uint32_t to, uint32_t next, uint32_t *out) {
    static const uint32_t LASTS[] = {0x7f, 0x7ff, 0xd7ff, 0xffff, CHAR_MAX_CODE};
    while (from <= to && !n->status) {
        if (from >= 0xd800 && from <= 0xdfff) { /* no text has these */
            from = 0xe000;
            continue;
        }
        uint32_t last = to;
        for (size_t i = 0; i < sizeof LASTS / sizeof *LASTS; i++)
            if (from <= LASTS[i]) {
                last = last < LASTS[i] ? last : LASTS[i];
                break;
            }
        for (uint32_t bits = 6; bits <= 18; bits += 6) { /* whole blocks of 64, 4096 .. */
            const uint32_t mask = (1u << bits) - 1;
            if ((from & ~mask) == (last & ~mask))
                continue;
            if (from & mask)
                last = from | mask;
            else if ((last & mask) != mask)
                last = (last & ~mask) - 1;
            else
                continue;
            bits = 0; /* again, with the shorter piece */
        }
        char low[4], high[4];
        const size_t len = utf8_put(low, from);
        (void)utf8_put(high, last);
        const uint32_t begin =
            add_sequence(n, (const uint8_t *)low, (const uint8_t *)high, len, next);
        *out = *out == NOWHERE ? begin : split(n, *out, begin);
        from = last + 1;
    }
}

static kvasir_status build_dfa(struct grammar_budget *b, const struct expression *e, uint32_t root,
                               bool begins, bool search, struct dfa *out, kvasir_error *err);

static uint32_t add_ahead(struct builder *n, const struct node *node, uint32_t next) {
    if (n->n_looks == LOOKS_MAX) {
        n->status = language_too_large(n->err);
        return 0;
    }
    if (n->e->has_word) { /* its automaton does not know what is before it */
        n->status = fail(n->err, KVASIR_ERR_UNSUPPORTED,
                         "pattern: looking ahead together with \\b or \\B is not supported");
        return 0;
    }
    struct look *look = &n->looks[n->n_looks];
    n->status = build_dfa(n->b, n->e, node->a, false, true, &look->dfa, n->err);
    if (n->status)
        return 0;
    look->negative = node->negative;
    return add_state(n, (struct nfa_state){.way = WAY_AHEAD, .a = next, .look = n->n_looks++});
}

static uint32_t add_tree(struct builder *n, uint32_t root, uint32_t next);

static uint32_t add_repeat(struct builder *n, const struct node *node, uint32_t next) {
    const struct node r = *node;
    if (r.max == LANGUAGE_UNBOUNDED) {
        const uint32_t loop = split(n, NOWHERE, next), body = add_tree(n, r.a, loop);
        if (!n->status)
            n->states[loop].a = body;
        next = loop;
    }
    const uint32_t after = next;
    for (uint32_t i = r.min; r.max != LANGUAGE_UNBOUNDED && i < r.max && !n->status; i++)
        next = split(n, add_tree(n, r.a, next), after);
    for (uint32_t i = 0; i < r.min && !n->status; i++)
        next = add_tree(n, r.a, next);
    return next;
}

/* Where the tree begins if what comes after it is `next`. A row of CAT or ALT, which goes deep to
 * the left, is followed without recursion. */
static uint32_t add_tree(struct builder *n, uint32_t root, uint32_t next) {
    uint32_t other = NOWHERE, out;
    for (;;) {
        ASSERT(root < n->e->n || n->status);
        if (!n->status && !budget_take(n->b, 4, 0))
            n->status = language_too_large(n->err);
        if (n->status)
            return 0;
        const struct node node = n->e->nodes[root];
        if (node.kind == NODE_CAT && other == NOWHERE) {
            next = add_tree(n, node.b, next);
            root = node.a;
            continue;
        }
        if (node.kind == NODE_ALT) {
            out = add_tree(n, node.b, next);
            other = other == NOWHERE ? out : split(n, out, other);
            root = node.a;
            continue;
        }
        break;
    }
    const struct node node = n->e->nodes[root];
    static const uint8_t ASSERTIONS[] = {[NODE_BEGIN] = WAY_BEGIN,
                                         [NODE_END] = WAY_END,
                                         [NODE_WORD] = WAY_WORD,
                                         [NODE_INSIDE] = WAY_INSIDE};
    switch (node.kind) {
    case NODE_EMPTY:
        out = next;
        break;
    case NODE_SET:
        out = NOWHERE;
        for (size_t i = 0; i < n->e->sets[node.a].n; i++)
            add_range(n, n->e->sets[node.a].ranges[i].from, n->e->sets[node.a].ranges[i].to, next,
                      &out);
        if (out == NOWHERE) /* no character, so no byte */
            out = add_state(n, (struct nfa_state){.way = WAY_BYTE, .from = 1, .to = 0, .a = next});
        break;
    case NODE_REPEAT:
        out = add_repeat(n, &node, next);
        break;
    case NODE_AHEAD:
        out = add_ahead(n, &node, next);
        break;
    case NODE_CAT:
        out = add_tree(n, root, next);
        break;
    default:
        out = add_state(n, (struct nfa_state){.way = ASSERTIONS[node.kind], .a = next});
        break;
    }
    return other == NOWHERE ? out : split(n, out, other);
}

/* ---- sets of states -------------------------------------------------------------------------- */

/* What runs beside a state: an obligation list, sorted by look and state. Interned: 0 is none. */
struct obligation {
    uint32_t look, state;
};
struct obligations {
    size_t first, n;
};

/* How the string came to a set. */
enum { AT_BEGIN = 1, AFTER_WORD = 2 };

struct set_item {
    uint32_t state, beside; /* of the expression; interned obligations */
};

struct subset {
    struct builder *n;
    struct dfa *dfa;
    /* sets of items, back to back; set i belongs to state i of the automaton */
    struct set_item *items;
    size_t n_items, items_cap;
    size_t *first; /* [dfa->n + 1] */
    uint8_t *flags;
    size_t first_cap, flags_cap;
    uint32_t *table; /* [size]: state + 1 */
    size_t size;
    struct obligation *obligations;
    size_t n_obligations, obligations_cap;
    struct obligations *lists;
    size_t n_lists, lists_cap;
    /* of one step: what can be reached without a byte, and after it */
    struct set_item *reached, *moved;
    size_t n_reached, reached_cap, n_moved, moved_cap;
    uint32_t *seen,
        round; /* [states]: the last round in which it was reached with nothing beside */
};

static bool no_memory(struct subset *s) {
    if (!s->n->status)
        s->n->status = language_no_memory(s->n->err);
    return false;
}

static bool take(struct subset *s, uint64_t steps) {
    if (!s->n->status && !budget_take(s->n->b, steps, 0))
        s->n->status = language_too_large(s->n->err);
    return !s->n->status;
}

static int compare_obligations(const void *x, const void *y) {
    const struct obligation *a = x, *b = y;
    if (a->look != b->look)
        return a->look < b->look ? -1 : 1;
    return (a->state > b->state) - (a->state < b->state);
}

static int compare_items(const void *x, const void *y) {
    const struct set_item *a = x, *b = y;
    if (a->state != b->state)
        return a->state < b->state ? -1 : 1;
    return (a->beside > b->beside) - (a->beside < b->beside);
}

/* The number of a list; it is sorted and each is in it once. Lists are few. */
static uint32_t intern(struct subset *s, struct obligation *list, size_t n) {
    qsort(list, n, sizeof *list, compare_obligations);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || compare_obligations(&list[kept - 1], &list[i]) != 0)
            list[kept++] = list[i];
    for (size_t i = 0; i < s->n_lists; i++)
        if (s->lists[i].n == kept &&
            (!kept || memcmp(s->obligations + s->lists[i].first, list, kept * sizeof *list) == 0)) {
            (void)take(s, i / 4 + 4 * n); /* the caller's next step fails */
            return (uint32_t)i;
        }
    if (!take(s, s->n_lists + kept) || !ARRAY_GROW(s->lists, s->lists_cap, s->n_lists + 1) ||
        !ARRAY_GROW(s->obligations, s->obligations_cap, s->n_obligations + kept)) {
        no_memory(s);
        return 0;
    }
    if (kept)
        memcpy(s->obligations + s->n_obligations, list, kept * sizeof *list);
    s->lists[s->n_lists] = (struct obligations){s->n_obligations, kept};
    s->n_obligations += kept;
    return (uint32_t)s->n_lists++;
}

enum { BESIDE_MAX = 64 };

/* The list with one more. */
static uint32_t with_look(struct subset *s, uint32_t list, uint32_t look) {
    struct obligation made[BESIDE_MAX + 1];
    const struct obligations l = s->lists[list];
    if (l.n >= BESIDE_MAX) {
        s->n->status = language_too_large(s->n->err);
        return 0;
    }
    if (l.n)
        memcpy(made, s->obligations + l.first, l.n * sizeof *made);
    made[l.n] = (struct obligation){look, s->n->looks[look].dfa.start};
    return intern(s, made, l.n + 1);
}

/* The list after a byte; false: one of them can no longer be met. */
static bool step_list(struct subset *s, uint32_t list, uint8_t byte, uint32_t *out) {
    struct obligation made[BESIDE_MAX];
    const struct obligations l = s->lists[list];
    size_t n = 0;
    for (size_t i = 0; i < l.n; i++) {
        const struct obligation o = s->obligations[l.first + i];
        const struct look *look = &s->n->looks[o.look];
        const uint32_t to = dfa_next(&look->dfa, o.state, byte);
        if (!to && !look->negative)
            return false;
        if (to)
            made[n++] = (struct obligation){o.look, to};
    }
    *out = l.n ? intern(s, made, n) : 0;
    return true;
}

static bool met_at_end(const struct subset *s, uint32_t list) {
    const struct obligations l = s->lists[list];
    for (size_t i = 0; i < l.n; i++) {
        const struct obligation o = s->obligations[l.first + i];
        const struct look *look = &s->n->looks[o.look];
        if (look->dfa.accepts[o.state] == look->negative)
            return false;
    }
    return true;
}

static bool reach(struct subset *s, uint32_t state, uint32_t beside) {
    const struct set_item item = {state, beside};
    if (!beside && s->seen[state] == s->round)
        return true;
    for (size_t i = s->n_reached; beside && i-- > 0;)
        if (s->reached[i].state == state && s->reached[i].beside == beside)
            return true;
    if (!take(s, beside ? s->n_reached / 8 + 1 : 1))
        return false;
    if (!beside)
        s->seen[state] = s->round;
    if (!ARRAY_GROW(s->reached, s->reached_cap, s->n_reached + 1))
        return no_memory(s);
    s->reached[s->n_reached++] = item;
    return true;
}

/* What comes next: a byte of a word, another one, or the end. */
enum next { NEXT_WORD, NEXT_OTHER, NEXT_END };

static bool passes(uint8_t way, uint8_t flags, enum next next) {
    const bool after = flags & AFTER_WORD, before = next == NEXT_WORD;
    switch (way) {
    case WAY_BEGIN:
        return flags & AT_BEGIN;
    case WAY_END:
        return next == NEXT_END;
    case WAY_WORD:
        return after != before;
    case WAY_INSIDE:
        return after == before;
    default:
        return true;
    }
}

/* Fills s->reached with what can be reached from a set without a byte. */
static bool close_set(struct subset *s, uint32_t set, enum next next) {
    s->n_reached = 0;
    s->round++;
    for (size_t i = s->first[set]; i < s->first[set + 1]; i++)
        if (!reach(s, s->items[i].state, s->items[i].beside))
            return false;
    for (size_t i = 0; i < s->n_reached; i++) {
        const struct set_item item = s->reached[i];
        const struct nfa_state *n = &s->n->states[item.state];
        if (n->way == WAY_BYTE || n->way == WAY_MATCH || !passes(n->way, s->flags[set], next))
            continue;
        const uint32_t beside =
            n->way == WAY_AHEAD ? with_look(s, item.beside, n->look) : item.beside;
        if (s->n->status || !reach(s, n->a, beside) ||
            (n->way == WAY_SPLIT && !reach(s, n->b, beside)))
            return false;
    }
    return true;
}

static uint64_t hash_set(const struct set_item *items, size_t n, uint8_t flags) {
    uint64_t h = flags + 1;
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((uint64_t)items[i].beside << 32 | items[i].state)) * 0x9e3779b97f4a7c15u +
            (h >> 31);
    return h ^ h >> 32;
}

static bool same_set(const struct subset *s, uint32_t set, uint8_t flags) {
    const size_t n = s->first[set + 1] - s->first[set];
    return s->flags[set] == flags && n == s->n_moved &&
           memcmp(s->items + s->first[set], s->moved, n * sizeof *s->moved) == 0;
}

static bool grow_table(struct subset *s) {
    const size_t size = s->size ? s->size * 2 : 256;
    uint32_t *table = mem_calloc(size, sizeof *table);
    if (!table)
        return no_memory(s);
    for (uint32_t i = 1; i < s->dfa->n; i++) {
        size_t at = hash_set(s->items + s->first[i], s->first[i + 1] - s->first[i], s->flags[i]) &
                    (size - 1);
        while (table[at])
            at = (at + 1) & (size - 1);
        table[at] = i + 1;
    }
    mem_free(s->table);
    s->table = table;
    s->size = size;
    return true;
}

/* A new state for s->moved. */
static bool add_set(struct subset *s, uint8_t flags, uint32_t *state) {
    if (!take(s, 64 + s->dfa->n_classes) ||
        !budget_take(s->n->b, 0, s->n_moved * sizeof *s->items)) {
        if (!s->n->status)
            s->n->status = language_too_large(s->n->err);
        return false;
    }
    if (!dfa_add(s->dfa, false, state) ||
        !ARRAY_GROW(s->first, s->first_cap, (size_t)s->dfa->n + 1) ||
        !ARRAY_GROW(s->flags, s->flags_cap, (size_t)s->dfa->n) ||
        !ARRAY_GROW(s->items, s->items_cap, s->n_items + s->n_moved))
        return no_memory(s);
    ASSERT(*state && *state == s->dfa->n - 1);
    s->first[*state] = s->n_items;
    s->flags[*state] = flags;
    if (s->n_moved)
        memcpy(s->items + s->n_items, s->moved, s->n_moved * sizeof *s->moved);
    s->n_items += s->n_moved;
    s->first[*state + 1] = s->n_items;
    return true;
}

/* The state of s->moved, which is sorted and each in it once; 0: it is empty. */
static bool state_of(struct subset *s, uint8_t flags, uint32_t *state) {
    size_t n = 0;
    if (s->n_moved)
        qsort(s->moved, s->n_moved, sizeof *s->moved, compare_items);
    for (size_t i = 0; i < s->n_moved; i++)
        if (n == 0 || compare_items(&s->moved[n - 1], &s->moved[i]) != 0)
            s->moved[n++] = s->moved[i];
    s->n_moved = n;
    *state = 0;
    if (n == 0)
        return true;
    if ((size_t)s->dfa->n * 2 >= s->size && !grow_table(s))
        return false;
    size_t at = hash_set(s->moved, n, flags) & (s->size - 1);
    for (; s->table[at]; at = (at + 1) & (s->size - 1))
        if (same_set(s, s->table[at] - 1, flags)) {
            *state = s->table[at] - 1;
            return true;
        }
    if (!add_set(s, flags, state))
        return false;
    s->table[at] = *state + 1;
    return true;
}

static bool move(struct subset *s, uint8_t byte) {
    s->n_moved = 0;
    for (size_t i = 0; i < s->n_reached; i++) {
        const struct set_item item = s->reached[i];
        const struct nfa_state *n = &s->n->states[item.state];
        uint32_t beside;
        if (n->way != WAY_BYTE || byte < n->from || byte > n->to ||
            !step_list(s, item.beside, byte, &beside))
            continue;
        if (!ARRAY_GROW(s->moved, s->moved_cap, s->n_moved + 1))
            return no_memory(s);
        s->moved[s->n_moved++] = (struct set_item){n->a, beside};
    }
    return take(s, s->n_reached / 2 + 2 * s->n_moved + 1); /* state_of sorts them */
}

static bool is_word_byte(int byte) {
    return byte == '_' || (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') ||
           (byte >= 'a' && byte <= 'z');
}

/* All ways on from a set, and whether the string may end there. */
static bool expand(struct subset *s, uint32_t set, const uint8_t bytes[256]) {
    const bool words = s->n->e->has_word;
    if (!close_set(s, set, NEXT_END))
        return false;
    for (size_t i = 0; i < s->n_reached; i++)
        if (s->n->states[s->reached[i].state].way == WAY_MATCH &&
            met_at_end(s, s->reached[i].beside))
            s->dfa->accepts[set] = 1;
    for (int next = NEXT_WORD; next <= NEXT_OTHER; next++) {
        if (next == NEXT_WORD && !words)
            continue;
        if (!close_set(s, set, (enum next)next))
            return false;
        for (uint32_t c = 0; c < s->dfa->n_classes; c++) {
            uint32_t to;
            if (words && is_word_byte(bytes[c]) != (next == NEXT_WORD))
                continue;
            if (!move(s, bytes[c]) ||
                !state_of(s, words && next == NEXT_WORD ? AFTER_WORD : 0, &to))
                return false;
            s->dfa->next[(size_t)set * s->dfa->n_classes + c] = to;
        }
    }
    return true;
}

/* Bytes that no state and no look tells apart are one class. */
static void find_classes(const struct builder *n, struct dfa *d) {
    bool begins[257] = {true};
    for (size_t i = 0; i < n->n; i++)
        if (n->states[i].way == WAY_BYTE) {
            begins[n->states[i].from] = true;
            begins[n->states[i].to + 1] = true;
        }
    for (int byte = 1; byte < 256; byte++) {
        begins[byte] |= n->e->has_word && is_word_byte(byte) != is_word_byte(byte - 1);
        for (uint32_t i = 0; i < n->n_looks; i++)
            begins[byte] |= n->looks[i].dfa.classes[byte] != n->looks[i].dfa.classes[byte - 1];
    }
    uint32_t class = 0;
    for (int byte = 0; byte < 256; byte++) {
        class += byte && begins[byte];
        d->classes[byte] = (uint8_t) class;
    }
    d->n_classes = class + 1;
}

static void subset_free(struct subset *s) {
    mem_free(s->items);
    mem_free(s->first);
    mem_free(s->flags);
    mem_free(s->table);
    mem_free(s->obligations);
    mem_free(s->lists);
    mem_free(s->reached);
    mem_free(s->moved);
    mem_free(s->seen);
}

/* The deterministic automaton of the states from `start` on. */
static bool determinize(struct builder *n, uint32_t start, bool begins, struct dfa *out) {
    struct subset s = {.n = n, .dfa = out, .seen = mem_calloc(n->n, sizeof *s.seen)};
    struct obligation none;
    uint8_t bytes[256];
    uint32_t dead;
    *out = (struct dfa){0};
    find_classes(n, out);
    for (int byte = 255; byte >= 0; byte--)
        bytes[out->classes[byte]] = (uint8_t)byte;
    bool good = s.seen && dfa_add(out, false, &dead) && ARRAY_GROW(s.first, s.first_cap, 2u) &&
                ARRAY_GROW(s.flags, s.flags_cap, 1u) && ARRAY_GROW(s.moved, s.moved_cap, 1u);
    if (!good)
        (void)no_memory(&s);
    if (good) {
        s.first[0] = s.first[1] = 0;
        s.flags[0] = 0;
        (void)intern(&s, &none, 0); /* list 0 */
        s.moved[0] = (struct set_item){start, 0};
        s.n_moved = 1;
        good = state_of(&s, begins ? AT_BEGIN : 0, &out->start);
    }
    for (uint32_t set = 1; good && set < out->n; set++)
        good = expand(&s, set, bytes);
    subset_free(&s);
    if (good)
        return true;
    dfa_free(out);
    return false;
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* Any characters, then `next`. */
static uint32_t any_then(struct builder *n, uint32_t next) {
    uint32_t all = NOWHERE;
    const uint32_t loop = split(n, NOWHERE, next);
    add_range(n, 0, CHAR_MAX_CODE, loop, &all);
    if (!n->status)
        n->states[loop].a = all;
    return loop;
}

/* begins: the string begins here, and with `search` anything may come before; otherwise the tree is
 * something ahead of a place within, and it begins there. search: anything may come after it. */
static kvasir_status build_dfa(struct grammar_budget *b, const struct expression *e, uint32_t root,
                               bool begins, bool search, struct dfa *out, kvasir_error *err) {
    struct builder n = {.b = b, .e = e, .err = err};
    uint32_t start = add_state(&n, (struct nfa_state){.way = WAY_MATCH});
    if (search)
        start = any_then(&n, start);
    start = add_tree(&n, root, start);
    if (search && begins)
        start = any_then(&n, start);
    if (!n.status)
        (void)determinize(&n, start, begins, out);
    for (uint32_t i = 0; i < n.n_looks; i++)
        dfa_free(&n.looks[i].dfa);
    mem_free(n.states);
    return n.status;
}

kvasir_status language_regex(struct grammar_budget *b, struct text_span text, bool whole,
                             struct language **out, kvasir_error *err) {
    struct expression e;
    struct dfa d;
    TRY(expression_parse(b, text, &e, err));
    const kvasir_status status = build_dfa(b, &e, e.root, true, !whole, &d, err);
    expression_free(&e);
    return status ? status : language_of(b, &d, 0, LANGUAGE_UNBOUNDED, out, err);
}

/* ---- the recognizer -------------------------------------------------------------------------- */

struct regex_recognizer {
    struct recognizer base; /* first */
    struct language *language;
};

static const struct language *language_in(const struct recognizer *r) {
    return ((const struct regex_recognizer *)r)->language;
}

static void regex_destroy(struct recognizer *r) {
    language_release(((struct regex_recognizer *)r)->language);
    mem_free(r);
}

static enum recognizer_step put_at(struct text_buf *out, struct language_at at) {
    return text_append(out, (const char *)&at, sizeof at) ? STEP_TAKEN : STEP_MEMORY;
}

static enum recognizer_step regex_start(const struct recognizer *r, struct text_buf *out) {
    return put_at(out, language_start(language_in(r)));
}

static struct language_at at_of(struct text_span state) {
    struct language_at at;
    ASSERT(state.len == sizeof at);
    memcpy(&at, state.data, sizeof at);
    return at;
}

static enum recognizer_step regex_step(const struct recognizer *r, struct text_span state,
                                       uint8_t byte, struct text_buf *out) {
    struct language_at at = at_of(state);
    return language_step(language_in(r), &at, byte) ? put_at(out, at) : STEP_REFUSED;
}

static enum grammar_end regex_end(const struct recognizer *r, struct text_span state) {
    const struct language *l = language_in(r);
    const struct language_at at = at_of(state);
    if (!language_accepts(l, at))
        return GRAMMAR_OPEN;
    for (int byte = 0; byte < 256; byte++) {
        struct language_at to = at;
        if (language_step(l, &to, (uint8_t)byte))
            return GRAMMAR_MAY_END;
    }
    return GRAMMAR_ENDED;
}

static size_t regex_bytes(const struct recognizer *r) {
    return sizeof(struct regex_recognizer) + language_bytes(language_in(r));
}

static const struct recognizer_ops REGEX_OPS = {.destroy = regex_destroy,
                                                .start = regex_start,
                                                .step = regex_step,
                                                .end = regex_end,
                                                .bytes = regex_bytes};

kvasir_status regex_compile(struct text_span text, struct grammar_budget *b,
                            struct recognizer **out, kvasir_error *err) {
    struct language *l;
    TRY(language_regex(b, text, true, &l, err));
    struct regex_recognizer *r = language_is_empty(l) ? NULL : mem_calloc(1, sizeof *r);
    if (!r) {
        const bool empty = language_is_empty(l);
        language_release(l);
        return empty ? fail(err, KVASIR_ERR_ARGUMENT, "pattern: no text matches it")
                     : language_no_memory(err);
    }
    *r = (struct regex_recognizer){{&REGEX_OPS}, l};
    *out = &r->base;
    return KVASIR_OK;
}
