/* SPDX-License-Identifier: Apache-2.0 */
/* guide.h: answers that must be texts of a grammar: the tokens that may come next, and those that
 * must. answer_grammar.c guides the choices of an engine's requests. */
#ifndef KVASIR_ENGINE_GUIDE_H
#define KVASIR_ENGINE_GUIDE_H

#include "engine/engine.h"
#include "grammar/grammar.h"

/* A vocabulary, for any number of guides. Immutable once made. */
struct guide_vocab {
    const struct tokenizer *tokenizer; /* borrowed; NULL: not made yet */
    struct grammar_vocab *tokens;
    uint64_t *ends; /* [token_set_words(n_ids)] end tokens */
    uint32_t n_ids;
};
kvasir_status guide_vocab_init(struct guide_vocab *v, const kvasir_tokenizer *text, uint32_t n_ids,
                               kvasir_error *err) MUST_CHECK;
void guide_vocab_deinit(struct guide_vocab *v);
uint64_t guide_vocab_bytes(const kvasir_tokenizer *text, uint32_t n_ids); /* once made */

struct guide {
    const struct guide_vocab *vocab;
    const uint64_t *stops;       /* tokens that end the answer; NULL: none */
    struct grammar_place *place; /* after the answer so far; NULL: no guide */
    int32_t *forced;             /* [n_forced] tokens that must come next, from next_forced on */
    uint32_t n_forced, next_forced;
    struct text_buf forced_text;
};
/* v and stops are borrowed, the grammar is kept. Nothing needs to be freed after a failure. */
kvasir_status guide_init(struct guide *g, const struct guide_vocab *v, const uint64_t *stops,
                         struct grammar *grammar, kvasir_error *err) MUST_CHECK;
void guide_deinit(struct guide *g);
/* There is only one next token, which guide_take gives. */
static inline bool guide_is_forced(const struct guide *g) {
    return g->next_forced < g->n_forced;
}
int32_t guide_take(struct guide *g);
/* Fills bits [token_set_words(n_ids)] with the tokens that may come next, end and stop tokens only
 * where the text may end. */
kvasir_status guide_allow(const struct guide *g, uint64_t *bits, kvasir_error *err) MUST_CHECK;
/* A token that may come next does. *complete: nothing more may. */
kvasir_status guide_add(struct guide *g, int32_t token, bool *complete,
                        kvasir_error *err) MUST_CHECK;

#endif
