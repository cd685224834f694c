/* SPDX-License-Identifier: Apache-2.0 */
/* language.h: sets of strings as automata (regular languages), for strings and keys of a schema.
 *
 * A language is a complete, trimmed, deterministic automaton over the bytes of valid UTF-8, and
 * bounds on the number of characters (code points). Immutable and reference-counted. There are no
 * dead ends: `language_step` only goes where a string can still be completed within the bounds.
 *
 * All strings are those after JSON's escapes were resolved. (A lone surrogate, \ud800, is in no
 * language; \u0000 is a character like others.)
 */
#ifndef KVASIR_GRAMMAR_LANGUAGE_H
#define KVASIR_GRAMMAR_LANGUAGE_H

#include "grammar/recognizer.h"

enum { LANGUAGE_UNBOUNDED = UINT32_MAX };
struct language;
struct language *language_retain(struct language *l);
void language_release(struct language *l); /* NULL is allowed */
size_t language_bytes(const struct language *l);

/* All strings; with these numbers of characters. */
kvasir_status language_any(struct grammar_budget *b, uint32_t min, uint32_t max,
                           struct language **out, kvasir_error *err) MUST_CHECK;
kvasir_status language_literal(struct grammar_budget *b, struct text_span string,
                               struct language **out, kvasir_error *err) MUST_CHECK;
/* A finite set. */
kvasir_status language_literals(struct grammar_budget *b, const struct text_span *strings, size_t n,
                                struct language **out, kvasir_error *err) MUST_CHECK;
/* An expression of ECMA-262 with flag u, as JSON Schema's `pattern` has it: matches anywhere unless
 * anchored. `whole`: it must match the whole string. Groups, classes, \d \w \s \b \B, \p{...} of
 * general categories and the common scripts, quantifiers, lazy ones, lookahead and lookbehind where
 * an automaton can do them; back references are KVASIR_ERR_UNSUPPORTED; a wrong expression is
 * KVASIR_ERR_ARGUMENT with its offset. */
kvasir_status language_regex(struct grammar_budget *b, struct text_span expression, bool whole,
                             struct language **out, kvasir_error *err) MUST_CHECK;
/* A `format` of JSON Schema: date-time, date, time, duration, email, idn-email, hostname, ipv4,
 * ipv6, uri, uri-reference, iri, uuid, json-pointer, relative-json-pointer, uri-template, regex...
 * KVASIR_ERR_UNSUPPORTED: not known or no regular language (the caller decides what then). */
kvasir_status language_format(struct grammar_budget *b, const char *name, struct language **out,
                              kvasir_error *err) MUST_CHECK;

/* Intersection; union; complement. A complement of one with bounds and a pattern takes the bounds
 * into the automaton. */
kvasir_status language_and(struct grammar_budget *b, const struct language *x,
                           const struct language *y, struct language **out,
                           kvasir_error *err) MUST_CHECK;
kvasir_status language_or(struct grammar_budget *b, const struct language *x,
                          const struct language *y, struct language **out,
                          kvasir_error *err) MUST_CHECK;
kvasir_status language_not(struct grammar_budget *b, const struct language *x,
                           struct language **out, kvasir_error *err) MUST_CHECK;
bool language_is_empty(const struct language *l);
bool language_is_any(const struct language *l); /* all strings, no bounds */
bool language_contains(const struct language *l, struct text_span string);

/* Reading a string: a plain value, copied freely; equal futures have equal values where cheap (a
 * count that cannot matter anymore is not counted). */
struct language_at {
    uint32_t state, count; /* count: characters so far, where bounds need it */
};
struct language_at language_start(const struct language *l);
/* One more byte of UTF-8. False: no string of the language goes on like this. */
bool language_step(const struct language *l, struct language_at *at, uint8_t byte);
bool language_accepts(const struct language *l, struct language_at at);
/* Whether some code point of from .. to (without surrogates) can come next: for the digits of
 * \uXXXX. */
bool language_takes_any_of(const struct language *l, struct language_at at, uint32_t from,
                           uint32_t to);

/* Whether any characters may come that JSON writes without an escape, at most *room of them
 * (LANGUAGE_UNBOUNDED: any number): for a machine's text_key. False: it is not so simple. */
bool language_room(const struct language *l, struct language_at at, uint32_t *room);
/* Every beginning of a string is one of endlessly many strings. */
bool language_never_ends(const struct language *l);
/* Appends the strings of a finite language, each after its length, a byte. False: it has more than
 * `most`, or one longer than 255 bytes, or memory ran out. */
bool language_list(const struct language *l, uint32_t most, struct text_buf *out) MUST_CHECK;
/* Whether any character leads back to `at`. */
bool language_stays(const struct language *l, struct language_at at);

#endif
