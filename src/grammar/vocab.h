/* SPDX-License-Identifier: Apache-2.0 */
/* vocab.h: the tokens of a vocabulary as two tries over their bytes, and walks over them.
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
 * A walk finds runs of nodes that are not refused. From a state that takes any text (automaton.h),
 * it skips the nodes below one that is calm: they are allowed.
 *
 * `plain` has the tokens of whole characters (the last may be incomplete) from U+0020 on without
 * '"', backslash and DEL: any JSON string can go on with them. In strings they are nearly the same
 * everywhere (recognizer.h, text_key), and only the others, `marked`, are walked.
 */
#ifndef KVASIR_GRAMMAR_VOCAB_H
#define KVASIR_GRAMMAR_VOCAB_H

#include "grammar/automaton.h"

enum { TOKEN_BYTES_MAX = TEXT_KEY_LONG, TRIE_NO_TOKEN = (1 << 24) - 1, TRIE_NODES_MAX = 1 << 23 };

struct trie_node {
    uint32_t byte : 8;
    uint32_t calm : 1;   /* what follows in any token that begins like this is plain text */
    uint32_t skip : 23;  /* nodes up to the next one that does not begin like this */
    uint32_t depth : 8;  /* 1: a first byte */
    uint32_t token : 24; /* TRIE_NO_TOKEN */
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
    struct trie plain, marked;
    uint64_t *text; /* [token_set_words(n_ids)] plain tokens that any JSON string may go on with */
    uint32_t *by_chars;                     /* those, by their number of characters */
    uint32_t chars_at[TOKEN_BYTES_MAX + 2]; /* where those of n characters begin in by_chars */
    uint32_t *at;                           /* [n_ids + 1]: where the bytes of each token begin */
    uint8_t *bytes;
};

/* Adds the tokens of text_key's TEXT_KEY_ANY + room to bits. */
void vocab_add_text(const struct grammar_vocab *v, uint32_t room, uint64_t *bits);
/* Adds the tokens of the trie that can come in *state to bits, which has none of the trie's yet. May
 * make the machine forget: *state is then renumbered. False: the machine failed. */
bool vocab_walk(const struct trie *t, uint32_t n_ids, struct machine *m, uint32_t *state,
                uint64_t *bits) MUST_CHECK;

#endif
