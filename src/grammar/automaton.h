/* SPDX-License-Identifier: Apache-2.0 */
/* automaton.h: the automaton of one grammar, made while it is used. Not thread-safe: grammar.c
 * holds a lock around it.
 *
 *     block of a recognizer  <--kept once per state--  state 7 --'a'--> 12   a row of 256 per state
 *                                                              --'b'--> refused   that was left
 *                                                              --'c'--> not asked yet
 *
 * States are numbers. They hold until machine_forget, which starts again with an empty machine when
 * it has grown too large; `generation` then changes. Whoever keeps a state longer keeps its block.
 *
 * A set of tokens (struct kept_set) may be kept per state and per key of a recognizer's text_key.
 */
#ifndef KVASIR_GRAMMAR_AUTOMATON_H
#define KVASIR_GRAMMAR_AUTOMATON_H

#include "grammar/recognizer.h"

enum {
    STATE_UNKNOWN = 0, /* in a row: not asked yet; returned: machine.failed says why not */
    STATE_REFUSED = 1,
    STATE_FIRST = 2,
};

/* Tokens as bits, or as ids where they are few. */
struct kept_set {
    uint32_t n_ids; /* UINT32_MAX: as bits */
    uint64_t data[];
};

/* Whether any number of characters from U+0020 on but '"', backslash and DEL may come. */
enum text_state {
    TEXT_NOT_ASKED,
    TEXT_NO,
    TEXT_TAKES, /* yes */
    TEXT_STAYS, /* and it is the same state after each */
};

struct machine_state {
    uint64_t hash;
    size_t at; /* its block in `blocks` */
    uint32_t len;
    uint8_t end;          /* enum grammar_end */
    uint8_t text;         /* enum text_state */
    uint32_t after;       /* machine_after; STATE_UNKNOWN: not asked */
    struct kept_set *set; /* tokens that may come next, those of its text key left out; NULL */
};

struct keyed_set {
    uint64_t key;
    struct kept_set *set;
};

struct machine {
    const struct recognizer *recognizer;
    size_t limit, used; /* bytes */
    uint64_t generation;
    enum recognizer_step failed;  /* STEP_MEMORY, STEP_LIMIT */
    uint64_t work;                /* that is left: 1 for each question and 256 bytes of a block */
    struct machine_state *states; /* [n]; the first two are no states */
    uint32_t **rows;              /* [n][256]: a state each; shared by states that were not left */
    uint32_t n, states_cap, rows_cap;
    uint32_t last;     /* state that was interned last; 0: none */
    uint32_t **chunks; /* [n_chunks] of rows; after forgetting, they are used again */
    uint32_t n_chunks, chunks_cap, n_rows;
    uint32_t *table; /* [table_size] of states by hash, 0 is free */
    uint32_t table_size;
    struct text_buf blocks, scratch;
    struct keyed_set *keyed; /* [n_keyed] */
    uint32_t n_keyed, keyed_cap;
    uint64_t vocab;        /* whose tokens the kept sets are */
    uint64_t *rest, *more; /* [token_set_words] of that vocabulary, for grammar.c and walk.c */
    uint32_t n_ids;
};

/* Before each use: what it may cost. */
void machine_allow_work(struct machine *m, uint64_t work);
/* Keeps r, borrowed. */
bool machine_init(struct machine *m, const struct recognizer *r, size_t limit) MUST_CHECK;
void machine_free(struct machine *m);
size_t machine_bytes(const struct machine *m);

uint32_t machine_start(struct machine *m) MUST_CHECK;
/* The state with this block. STATE_UNKNOWN: out of memory. */
uint32_t machine_intern(struct machine *m, struct text_span block) MUST_CHECK;
struct text_span machine_block(const struct machine *m, uint32_t state);
/* Asks the recognizer. */
uint32_t machine_ask(struct machine *m, uint32_t state, uint8_t byte) MUST_CHECK;
static inline uint32_t machine_step(struct machine *m, uint32_t state, uint8_t byte) {
    const uint32_t to = m->rows[state][byte];
    return to != STATE_UNKNOWN ? to : machine_ask(m, state, byte);
}

/* Asks the recognizer; TEXT_NO where that fails. Does not forget. */
enum text_state machine_text(struct machine *m, uint32_t state);
/* The state to which all ends of a character of which `left` bytes are missing lead; STATE_REFUSED:
 * there is no one such. Does not forget. */
uint32_t machine_after(struct machine *m, uint32_t state, unsigned left);
/* That of the recognizer; of a state that takes any text the key of such. */
uint64_t machine_text_key(struct machine *m, uint32_t state);

/* More than its limit: forget before more is asked. */
static inline bool machine_is_full(const struct machine *m) {
    return m->used > m->limit;
}
/* Starts again, with these states only, whose numbers change. False: out of memory; the machine is
 * as it was, and the numbers are lost. */
bool machine_forget(struct machine *m, uint32_t *states, size_t n) MUST_CHECK;

/* Kept sets are of this vocabulary from now on; those of another go. */
bool machine_use_vocab(struct machine *m, uint64_t vocab, uint32_t n_ids) MUST_CHECK;
struct kept_set *machine_keyed_set(const struct machine *m, uint64_t key);
/* Keep a copy of bits [token_set_words(m->n_ids)]; without memory nothing is kept. */
void machine_keep_set(struct machine *m, uint32_t state, const uint64_t *bits);
void machine_keep_keyed_set(struct machine *m, uint64_t key, const uint64_t *bits);
/* Adds the set to bits. */
void kept_set_add(const struct kept_set *s, uint64_t *bits, uint32_t n_ids);

#endif
