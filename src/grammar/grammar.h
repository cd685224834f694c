/* SPDX-License-Identifier: Apache-2.0 */
/* grammar.h: texts that an answer must be: JSON of a schema, a regular expression, a GBNF grammar.
 *
 *     text of a schema, expression or grammar --compile--> struct grammar      shared, any thread
 *     bytes of an answer ------------------push----------> struct grammar_place    one per choice
 *     place + struct grammar_vocab --------allow---------> the set of tokens that may come next
 *
 * Everything is one kind of machine: an automaton over bytes whose states are made when they are
 * first reached (automaton.h). What differs is who makes a state from the one before: the
 * recognizer (recognizer.h) of JSON schemas (schema_*.c), regular expressions (language_regex.c) or
 * grammars (gbnf.c, pushdown.c). A state from which the text could never be completed is not made,
 * so an answer never runs into a dead end.
 *
 * A control token is written as 4 bytes that no text has: 0xFF and the id, big-endian in 3 bytes.
 */
#ifndef KVASIR_GRAMMAR_GRAMMAR_H
#define KVASIR_GRAMMAR_GRAMMAR_H

#include "text/text.h"

enum grammar_kind { GRAMMAR_JSON_SCHEMA, GRAMMAR_REGEX, GRAMMAR_GBNF, GRAMMAR_KINDS };

/* What a text that comes from outside may cost. */
struct grammar_limits {
    size_t text_bytes;     /* of the schema, expression or grammar */
    size_t compiled_bytes; /* of memory for what is compiled from it */
    uint64_t steps;        /* of work for compiling, about 10 ns each */
    size_t machine_bytes;  /* of memory for states, transitions and kept sets of tokens */
};
/* 1 MiB, 64 MiB, 6 million steps (less than 100 ms), 32 MiB */
struct grammar_limits grammar_limits_default(void);

/* Compiled. Reference-counted; the functions below lock it where they must. */
struct grammar;
/* KVASIR_ERR_ARGUMENT: the text is wrong; KVASIR_ERR_UNSUPPORTED: it asks for what cannot be held
 * while an answer is written, or costs more than the limits. Errors name the place: a JSON pointer
 * and the keyword ("#/properties/a/uniqueItems: ..."), or line and column. */
kvasir_status grammar_compile(enum grammar_kind kind, struct text_span text,
                              const struct grammar_limits *limits, struct grammar **out,
                              kvasir_error *err) MUST_CHECK;
struct grammar *grammar_retain(struct grammar *g);
void grammar_release(struct grammar *g); /* NULL is allowed */
/* Bytes on the heap at the moment, machine included. */
size_t grammar_bytes(struct grammar *g);

/* ---- where an unfinished text is ------------------------------------------------------------- */

struct grammar_place;
kvasir_status grammar_begin(struct grammar *g, struct grammar_place **out,
                            kvasir_error *err) MUST_CHECK;
kvasir_status grammar_place_copy(const struct grammar_place *p, struct grammar_place **out,
                                 kvasir_error *err) MUST_CHECK;
void grammar_place_destroy(struct grammar_place *p);
/* Takes more bytes. *taken: how many were allowed; the place is after those. Fails only if memory
 * is short, or, like the functions below, with KVASIR_ERR_UNSUPPORTED if the grammar has become too
 * costly to follow (a GBNF grammar that can be read in thousands of ways at once). */
kvasir_status grammar_push(struct grammar_place *p, struct text_span bytes, size_t *taken,
                           kvasir_error *err) MUST_CHECK;
/* OPEN: the text must go on. MAY_END: it may end here or go on. ENDED: nothing more may come. */
enum grammar_end { GRAMMAR_OPEN, GRAMMAR_MAY_END, GRAMMAR_ENDED };
enum grammar_end grammar_place_end(struct grammar_place *p);
/* Appends what must come next: the longest text, of at most max bytes, each of whose bytes is the
 * only one allowed at its place (and where the text may not end). It ends before a control token,
 * and with a whole character; where the place is inside a character, it begins with the rest. */
kvasir_status grammar_forced(struct grammar_place *p, size_t max, struct text_buf *out,
                             kvasir_error *err) MUST_CHECK;

/* ---- tokens ---------------------------------------------------------------------------------- */

/* The tokens of a vocabulary by their bytes. Immutable, shared by all grammars of a model. */
struct grammar_vocab;
/* Of the tokens below n_ids that are no end tokens. Control tokens are there as 0xFF and id. t is
 * borrowed for the call. */
kvasir_status grammar_vocab_create(const struct tokenizer *t, uint32_t n_ids,
                                   struct grammar_vocab **out, kvasir_error *err) MUST_CHECK;
void grammar_vocab_destroy(struct grammar_vocab *v);
/* Bytes on the heap, once created. */
uint64_t grammar_vocab_bytes(const struct tokenizer *t, uint32_t n_ids);
/* The bytes that a place takes for this token (grammar_push); empty: it can never come. */
struct text_span grammar_token_bytes(const struct grammar_vocab *v, int32_t token);
/* Fills bits [token_set_words(n_ids)] with the tokens that may come next; end tokens are the
 * caller's affair (grammar_place_end). */
kvasir_status grammar_allow(struct grammar_place *p, const struct grammar_vocab *v, uint64_t *bits,
                            kvasir_error *err) MUST_CHECK;

#endif
