/* SPDX-License-Identifier: Apache-2.0 */
/* language_internal.h: what the files of language.h share: automata while they are made. */
#ifndef KVASIR_GRAMMAR_LANGUAGE_INTERNAL_H
#define KVASIR_GRAMMAR_LANGUAGE_INTERNAL_H

#include <stdatomic.h>

#include "grammar/language.h"

/* A deterministic automaton over bytes. State 0 is dead: it is not accepting, and its row is zeros.
 * Bytes of one class lead to the same states everywhere. */
struct dfa {
    uint32_t n, cap, start;
    uint32_t n_classes;
    uint8_t classes[256];
    uint32_t *next;   /* [n][n_classes] */
    uint8_t *accepts; /* [n] */
    size_t next_cap, accepts_cap;
};
void dfa_free(struct dfa *d);
/* A new state without ways on; false: out of memory. */
bool dfa_add(struct dfa *d, bool accepts, uint32_t *state) MUST_CHECK;
static inline uint32_t dfa_next(const struct dfa *d, uint32_t state, uint8_t byte) {
    return d->next[(size_t)state * d->n_classes + d->classes[byte]];
}
/* Classes that tell apart all bytes that either of two automata tells apart. */
void dfa_join_classes(const struct dfa *x, const struct dfa *y, struct dfa *out);
/* Removes states that lead nowhere. False: out of memory. */
bool dfa_trim(struct dfa *d) MUST_CHECK;
/* Joins equal states, as far as the budget goes. */
kvasir_status dfa_minimize(struct grammar_budget *b, struct dfa *d, kvasir_error *err) MUST_CHECK;

struct language {
    atomic_uint refs;
    struct dfa dfa;
    bool any;          /* the automaton takes all strings: there are bounds only */
    uint32_t universe; /* the state from which the automaton takes all strings; 0: none */
    uint32_t min, max;
    /* Where both bounds can matter: reach[k][state]: a string can be completed with k more
     * characters; the same from the last k on. One bit each, rows of `words`. NULL: not needed. */
    uint64_t *reach;
    uint32_t n_reach, words;
    /* characters to the end, least and most (LANGUAGE_UNBOUNDED) */
    uint32_t *least, *most;
    uint8_t *text; /* by state: takes any text (language_text.c), but for the bounds */
    size_t bytes;
};

/* Takes the automaton, removes states that lead nowhere, makes it small, and makes a language of
 * it. */
kvasir_status language_of(struct grammar_budget *b, struct dfa *d, uint32_t min, uint32_t max,
                          struct language **out, kvasir_error *err) MUST_CHECK;
/* All strings of valid UTF-8. False: out of memory. */
bool dfa_any(struct dfa *d) MUST_CHECK;

/* text [d->n]: whether each state takes any text from then on. False: out of memory. */
bool dfa_text_states(const struct dfa *d, uint8_t *text) MUST_CHECK;

kvasir_status language_no_memory(kvasir_error *err);
kvasir_status language_too_large(kvasir_error *err);

/* ---- expressions (language_parse.c, language_regex.c) ---------------------------------------- */

/* A set of code points: sorted ranges that do not touch. */
struct char_range {
    uint32_t from, to;
};
struct char_set {
    struct char_range *ranges; /* [n] */
    size_t n, cap;
};
enum { CHAR_MAX_CODE = 0x10ffff };

enum node_kind {
    NODE_EMPTY,
    NODE_SET,    /* one character of sets[a] */
    NODE_CAT,    /* a, then b */
    NODE_ALT,    /* a or b */
    NODE_REPEAT, /* a, min to max times */
    NODE_BEGIN,
    NODE_END,
    NODE_WORD,   /* \b */
    NODE_INSIDE, /* \B */
    NODE_AHEAD,  /* a follows, or does not (`negative`) */
};
struct node {
    enum node_kind kind;
    bool negative;
    uint32_t a, b, min, max;
};
struct expression {
    struct node *nodes;
    size_t n, cap;
    struct char_set *sets;
    size_t n_sets, sets_cap;
    uint32_t root;
    bool has_word; /* \b or \B */
};
void expression_free(struct expression *e);
/* KVASIR_ERR_ARGUMENT with the offset: it is no expression; KVASIR_ERR_UNSUPPORTED: it has what no
 * automaton can do. */
kvasir_status expression_parse(struct grammar_budget *b, struct text_span text,
                               struct expression *out, kvasir_error *err) MUST_CHECK;

/* Adds from .. to; char_set_tidy sorts and joins afterwards. False: out of memory. */
bool char_set_add(struct char_set *s, uint32_t from, uint32_t to) MUST_CHECK;
void char_set_tidy(struct char_set *s);
bool char_set_invert(struct char_set *s) MUST_CHECK; /* of a tidy one */

#endif
