/* SPDX-License-Identifier: Apache-2.0 */
/* grammar_text.h: writes the text of a grammar, GBNF with kvasir_grammar_create's additions.
 *
 *     <[151657]>      a control token
 *     %json {...}     JSON of a schema
 *     %regex "..."    a text of a regular expression
 *
 * Functions that write do nothing once memory ran out: `failed` says so at the end.
 */
#ifndef API_GRAMMAR_TEXT_H
#define API_GRAMMAR_TEXT_H

#include <jansson.h>
#include <kvasir.h>

#include "util/util.h"

struct grammar_text {
    struct text_buf text;
    const kvasir_tokenizer *tokenizer; /* borrowed */
    bool failed;
};

void grammar_puts(struct grammar_text *g, const char *text);
void grammar_printf(struct grammar_text *g, const char *format, ...) PRINTF_LIKE(2, 3);
/* "text", in quotes */
void grammar_literal(struct grammar_text *g, const char *text, size_t len);
/* A text of markers: its control tokens as such, the rest as literals. */
void grammar_marked(struct grammar_text *g, const char *text);
/* The text of a request's schema, canonical unless it says "x-canonical" itself. Objects that name
 * members and say nothing about others have no others, as in OpenAI's strict mode: small models
 * write them without end otherwise; not so if the schema is combined (allOf, not ...). free();
 * NULL: out of memory. */
char *grammar_schema_text(json_t *schema);
/* %json and the schema */
void grammar_json(struct grammar_text *g, json_t *schema);
/* %regex and the expression */
void grammar_regex(struct grammar_text *g, const char *text, size_t len);
/* Another grammar's text, all of its rules with `prefix` before their names. */
void grammar_prefixed(struct grammar_text *g, const char *text, size_t len, const char *prefix);

enum { GRAMMAR_MARKERS_MAX = 12 };
struct grammar_free {
    const char *name;                         /* the rule is name-0; others are name-1 ... */
    const char *without[GRAMMAR_MARKERS_MAX]; /* the text contains none of these; [n] */
    size_t n;
    bool not_an_object; /* the rule name-lead, too: a text that does not begin with '{' */
};
/* Rules for any text without certain markers. */
void grammar_free_text(struct grammar_text *g, const struct grammar_free *free_text);

#endif
