/* SPDX-License-Identifier: Apache-2.0 */
/* vocab.h: the tokens of a vocabulary as tries over their bytes, and walks over them (walk.c).
 *
 *     trie     nodes in the order of a walk; `skip` leads past the tokens that begin like a node
 *
 *       t  skip 5 --.        A walk keeps the state after each byte of the path. A byte that is
 *         h  skip 3  |       refused skips all tokens that begin with the path up to it.
 *           e  "the" |
 *           y  "thy" |
 *         o  "to"    |
 *       u  <---------'
 *
 * Most of the time an answer is in a string that takes any text, so that is not walked:
 *
 *     plain    the tokens of whole characters (the last may be incomplete) from U+0020 on without
 *              '"', backslash and DEL: any JSON string can go on with them
 *     marked   the others: plain characters, perhaps none, and then a mark
 *     tails    the marked ones from the mark on: all that matters of them in a state that plain
 *              characters do not change
 *
 *     token   the  "  plain     ."}\n  marked, its tail is "}\n
 */
#ifndef KVASIR_GRAMMAR_VOCAB_H
#define KVASIR_GRAMMAR_VOCAB_H

#include "grammar/automaton.h"

enum { TOKEN_BYTES_MAX = TEXT_KEY_LONG, TRIE_NO_TOKEN = (1 << 22) - 1, TRIE_NODES_MAX = 1 << 22 };

struct trie_node {
    uint32_t byte : 8;
    uint32_t calm : 1;  /* what follows in any token that begins like this is plain */
    uint32_t open : 1;  /* all up to here is plain */
    uint32_t skip : 22; /* nodes up to the next one that does not begin like this */
    uint32_t depth : 8; /* 1: a first byte */
    uint32_t
        left : 2; /* bytes that are missing of a character; calm and open are meant after them */
    uint32_t token : 22; /* TRIE_NO_TOKEN */
};
_Static_assert(sizeof(struct trie_node) == 8, "a walk is as fast as they are small");

struct trie {
    uint32_t n;
    struct trie_node *nodes;
    const uint64_t *all; /* its tokens as a set; NULL: not kept */
};

struct grammar_vocab {
    uint64_t number; /* no other vocabulary of this process has it */
    uint32_t n_ids, n_tokens;
    struct trie plain, marked, tails;
    uint64_t *text; /* [token_set_words(n_ids)] plain tokens that any JSON string may go on with */
    uint32_t *by_chars;                     /* those, by their number of characters */
    uint32_t chars_at[TOKEN_BYTES_MAX + 2]; /* where those of n characters begin in by_chars */
    uint32_t *at;                           /* [n_ids + 1]: where the bytes of each token begin */
    uint8_t *bytes;
};

/* Adds the tokens of text_key's TEXT_KEY_ANY + room to bits. */
void vocab_add_text(const struct grammar_vocab *v, uint32_t room, uint64_t *bits);
/* Adds the tokens that can come in *state, where it has a text key only the marked ones, and keeps
 * them with it (machine_state.set). May make the machine forget: *state is then renumbered. False:
 * the machine failed. */
bool vocab_add_rest(const struct grammar_vocab *v, struct machine *m, uint32_t *state,
                    uint64_t *bits) MUST_CHECK;
/* Adds the plain tokens that can come in *state to bits; likewise. */
bool vocab_add_plain(const struct grammar_vocab *v, struct machine *m, uint32_t *state,
                     uint64_t *bits) MUST_CHECK;

#endif
