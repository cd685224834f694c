/* SPDX-License-Identifier: Apache-2.0 */
/* numbers.h: sets of JSON numbers: an interval, multiples, whole numbers, and exceptions; read as
 * text digit by digit without dead ends. Exact decimal arithmetic, no floating point: 0.1 + 0.2 is
 * 0.3, 1e2 and 100.0 are the whole number 100.
 *
 *     -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
 */
#ifndef KVASIR_GRAMMAR_NUMBERS_H
#define KVASIR_GRAMMAR_NUMBERS_H

#include "grammar/recognizer.h"

struct numbers; /* immutable, reference-counted */
struct numbers *numbers_retain(struct numbers *n);
void numbers_release(struct numbers *n);

kvasir_status numbers_any(struct grammar_budget *b, struct numbers **out,
                          kvasir_error *err) MUST_CHECK;
kvasir_status numbers_whole(struct grammar_budget *b, struct numbers **out,
                            kvasir_error *err) MUST_CHECK;
/* value: as a JSON text has it ("-1.5e3"). at least / at most / more than / less than / equal to */
enum numbers_bound { AT_LEAST, AT_MOST, MORE_THAN, LESS_THAN, EQUAL_TO };
kvasir_status numbers_bounded(struct grammar_budget *b, enum numbers_bound kind,
                              struct text_span value, struct numbers **out,
                              kvasir_error *err) MUST_CHECK;
kvasir_status numbers_multiple(struct grammar_budget *b, struct text_span of, struct numbers **out,
                               kvasir_error *err) MUST_CHECK;
/* The intersection. */
kvasir_status numbers_and(struct grammar_budget *b, const struct numbers *x,
                          const struct numbers *y, struct numbers **out,
                          kvasir_error *err) MUST_CHECK;
/* The complement, as a union: calls fn for each of its parts, which may overlap (below, above, the
 * numbers that are no multiple, ...); fn takes over its reference. */
typedef kvasir_status numbers_part_fn(void *user, struct numbers *part, kvasir_error *err);
kvasir_status numbers_not(struct grammar_budget *b, const struct numbers *x, numbers_part_fn *fn,
                          void *user, kvasir_error *err) MUST_CHECK;
/* Before others have the set: numbers have at most 18 digits before the point, and if all are whole
 * no point and no exponent. */
void numbers_make_canonical(struct numbers *n);
bool numbers_is_empty(const struct numbers *n); /* of numbers that can be written, see below */
bool numbers_contains(const struct numbers *n, struct text_span text);

/* Reading a number's text: whether a text that begins with these bytes can become a number of the
 * set; whether it is one now. Numbers are as long as their value needs and no longer than
 * NUMBER_BYTES_MAX: digits that could go on for ever are bounded (64 of the whole part, 64 of the
 * fraction, 2 of the exponent, so that all fit a double). Of whole numbers, 12.5e3 and 10e-1 are
 * refused while they are read, so that "12.5" is not begun where only an exponent could save it. */
enum { NUMBER_BYTES_MAX = 160 };
bool numbers_can_begin(const struct numbers *n, struct text_span text);
/* A short key for machine states: equal keys mean equal futures. Appends it; texts whose digits no
 * longer matter (an unbounded set) get the same key, so that the machine has few states. */
bool numbers_key(const struct numbers *n, struct text_span text, struct text_buf *out);

#endif
