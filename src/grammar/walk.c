/* SPDX-License-Identifier: Apache-2.0 */
/* walk.c: which tokens can come in a state. A walk over a trie finds ranges of nodes that are not
 * refused. Below a node it goes on only where it must:
 *
 *     calm   after it the state takes any text, and all that follows is plain: all are allowed
 *     open   after it plain characters do not change the state: of what follows only the tails
 *            matter, and the marked tokens that the state takes are known once they were found by
 *            their tails
 */
#include <string.h>

#include "grammar/vocab.h"

enum { SKIP_MIN = 12, STATES_MAX = 8 }; /* nodes that are worth a question; states of open nodes */

struct node_range {
    uint32_t from, to;
    uint32_t state; /* only the tokens of its kept set; 0: all */
};

struct walk {
    const struct grammar_vocab *v;
    const struct trie *trie;
    struct machine *m;
    uint64_t *bits;
    struct node_range *ranges; /* [n] */
    uint32_t n, cap;
    uint32_t states[STATES_MAX]; /* [n_states] of the ranges */
    uint32_t n_states;
    bool cut;    /* some ranges were put before the end */
    bool nested; /* in another one, whose states must stay: it does not forget */
    uint32_t path[TOKEN_BYTES_MAX + 1]; /* path[d]: the state after d bytes */
};

/* ---- what was found -------------------------------------------------------------------------- */

static void put_bit(uint64_t *bits, uint32_t token, bool allowed) {
    if (allowed)
        bits[token / 64] |= 1ULL << token % 64;
    else
        bits[token / 64] &= ~(1ULL << token % 64);
}

/* Adds the tokens of the nodes from .. to - 1, or takes them away. */
static void put_nodes(const struct walk *w, uint32_t from, uint32_t to, bool allowed) {
    for (uint32_t i = from; i < to; i++)
        if (w->trie->nodes[i].token != TRIE_NO_TOKEN)
            put_bit(w->bits, w->trie->nodes[i].token, allowed);
}

/* Adds those of them that are in the set `known`. */
static void put_known(const struct walk *w, uint32_t from, uint32_t to, const uint64_t *known) {
    for (uint32_t i = from; i < to; i++) {
        const uint32_t token = w->trie->nodes[i].token;
        if (token != TRIE_NO_TOKEN && (known[token / 64] >> token % 64 & 1))
            put_bit(w->bits, token, true);
    }
}

/* Adds all tokens of the trie, and takes away those between the ranges. */
static void put_all_but(const struct walk *w) {
    uint32_t from = 0;
    for (size_t i = 0, words = token_set_words(w->v->n_ids); i < words; i++)
        w->bits[i] |= w->trie->all[i];
    for (uint32_t i = 0; i < w->n; i++) {
        put_nodes(w, from, w->ranges[i].from, false);
        from = w->ranges[i].to;
    }
    put_nodes(w, from, w->trie->n, false);
}

/* Adds the tokens of the ranges, which are then empty. */
static void put_ranges(struct walk *w) {
    const size_t words = token_set_words(w->v->n_ids);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < w->n; i++)
        sum += w->ranges[i].to - w->ranges[i].from;
    if (w->trie->all && !w->cut && sum > w->trie->n / 2) {
        put_all_but(w);
    } else {
        for (uint32_t i = 0; i < w->n; i++)
            if (!w->ranges[i].state)
                put_nodes(w, w->ranges[i].from, w->ranges[i].to, true);
    }
    for (uint32_t k = 0; k < w->n_states; k++) {
        memset(w->m->more, 0, words * sizeof *w->m->more);
        kept_set_add(w->m->states[w->states[k]].set, w->m->more, w->v->n_ids);
        for (uint32_t i = 0; i < w->n; i++)
            if (w->ranges[i].state == w->states[k])
                put_known(w, w->ranges[i].from, w->ranges[i].to, w->m->more);
    }
    w->n = w->n_states = 0;
}

static bool add_range(struct walk *w, uint32_t from, uint32_t to, uint32_t state) {
    if (from == to)
        return true;
    if (!ARRAY_GROW(w->ranges, w->cap, w->n + 1))
        return false;
    w->ranges[w->n++] = (struct node_range){from, to, state};
    return true;
}

/* ---- walks ----------------------------------------------------------------------------------- */

static bool walk_trie(struct walk *w);

/* Keeps the marked tokens of a state that plain characters do not change. */
static bool keep_by_tails(const struct walk *w, uint32_t state) {
    struct walk tails = {.v = w->v, .trie = &w->v->tails, .m = w->m, .bits = w->m->more};
    memset(w->m->more, 0, token_set_words(w->v->n_ids) * sizeof *w->m->more);
    tails.path[0] = state;
    tails.nested = true;
    const bool good = walk_trie(&tails);
    mem_free(tails.ranges);
    if (good)
        machine_keep_set(w->m, state, w->m->more);
    return good;
}

/* Asks the recognizer about node i, after forgetting all but the path if the machine is full. A
 * nested walk goes on with a full machine: it is short. */
static uint32_t ask(struct walk *w, uint32_t i, uint32_t *from) {
    const struct trie_node node = w->trie->nodes[i];
    if (machine_is_full(w->m) && !w->nested) {
        if (!add_range(w, *from, i, 0))
            return STATE_UNKNOWN;
        *from = i;
        w->cut = true;
        put_ranges(w); /* while their states hold */
        if (!machine_forget(w->m, w->path, node.depth))
            return STATE_UNKNOWN;
    }
    return machine_ask(w->m, w->path[node.depth - 1], node.byte);
}

static enum text_state text_of(const struct walk *w, uint32_t state) {
    const uint8_t text = w->m->states[state].text;
    return text != TEXT_NOT_ASKED ? text : machine_text(w->m, state);
}

/* Whether the ranges can have this state. */
static bool note_state(struct walk *w, uint32_t state) {
    for (uint32_t i = 0; i < w->n_states; i++)
        if (w->states[i] == state)
            return true;
    if (w->n_states == STATES_MAX || (!w->m->states[state].set && !keep_by_tails(w, state)) ||
        !w->m->states[state].set)
        return false;
    w->states[w->n_states++] = state;
    return true;
}

/* Where to go on after node i, which leads to `state`; *failed: out of memory. Below a node inside
 * a character, that is looked at whose ends all lead to one state. */
static uint32_t pass_node(struct walk *w, uint32_t i, uint32_t state, uint32_t *from,
                          bool *failed) {
    const struct trie_node node = w->trie->nodes[i];
    const bool open = node.open && w->trie == &w->v->marked;
    if (node.skip < SKIP_MIN || !(node.calm || open))
        return i + 1;
    state = machine_after(w->m, state, node.left);
    if (state == STATE_REFUSED)
        return i + 1;
    const enum text_state text = text_of(w, state);
    if (node.calm && text != TEXT_NO)
        return i + node.skip;
    if (!open || text != TEXT_STAYS || !note_state(w, state))
        return i + 1;
    *failed = !add_range(w, *from, i, 0) || !add_range(w, i, i + node.skip, state);
    return *from = i + node.skip;
}

static bool walk_trie(struct walk *w) {
    const struct trie *t = w->trie;
    uint32_t from = 0; /* where the next range begins */
    bool failed = false;
    for (uint32_t i = 0; i < t->n && !failed;) {
        const struct trie_node node = t->nodes[i];
        uint32_t to = w->m->rows[w->path[node.depth - 1]][node.byte];
        if (to == STATE_UNKNOWN)
            to = ask(w, i, &from);
        if (to <= STATE_REFUSED) {
            failed = to == STATE_UNKNOWN || !add_range(w, from, i, 0);
            from = i += node.skip;
        } else {
            w->path[node.depth] = to;
            i = pass_node(w, i, to, &from, &failed);
        }
    }
    if (failed || !add_range(w, from, t->n, 0))
        return false;
    put_ranges(w);
    return true;
}

/* Adds the tokens of the trie that can come in *state. */
static bool add_trie(const struct grammar_vocab *v, const struct trie *t, struct machine *m,
                     uint32_t *state, uint64_t *bits) {
    struct walk w = {.v = v, .trie = t, .m = m, .bits = bits};
    w.path[0] = *state;
    const bool good = walk_trie(&w);
    *state = w.path[0];
    mem_free(w.ranges);
    return good;
}

bool vocab_add_plain(const struct grammar_vocab *v, struct machine *m, uint32_t *state,
                     uint64_t *bits) {
    return add_trie(v, &v->plain, m, state, bits);
}

bool vocab_add_rest(const struct grammar_vocab *v, struct machine *m, uint32_t *state,
                    uint64_t *bits) {
    const size_t words = token_set_words(v->n_ids);
    if (m->states[*state].set) {
        kept_set_add(m->states[*state].set, bits, v->n_ids);
        return true;
    }
    const bool plain = machine_text_key(m, *state) == 0;
    const bool stays = machine_text(m, *state) == TEXT_STAYS;
    memset(m->rest, 0, words * sizeof *bits);
    if (!add_trie(v, stays ? &v->tails : &v->marked, m, state, m->rest) ||
        (plain && !vocab_add_plain(v, m, state, m->rest)))
        return false;
    if (!m->states[*state].set) /* a walk may have come back to it */
        machine_keep_set(m, *state, m->rest);
    for (size_t i = 0; i < words; i++)
        bits[i] |= m->rest[i];
    return true;
}
