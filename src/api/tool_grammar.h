/* SPDX-License-Identifier: Apache-2.0 */
/* tool_grammar.h: tool calls as a grammar, in the form in which a family of models writes them
 * (answer_syntax.h) and answer_calls.c reads them. */
#ifndef API_TOOL_GRAMMAR_H
#define API_TOOL_GRAMMAR_H

#include "api/answer_syntax.h"
#include "api/grammar_text.h"

enum { TOOLS_MAX = 128 }; /* OpenAI's */
struct tool_rule {
    const char *name; /* of the function; letters, digits, '_', '.', '-' */
    json_t *schema;   /* of its arguments, which is always one of objects; NULL: any object */
};
struct tool_grammar {
    enum answer_tools tools;
    const char *open, *close; /* the syntax's markers, or NULL */
    const struct tool_rule *rules;
    size_t n;
    bool single; /* one call */
    bool marked; /* calls must begin with a marker */
};
/* Rules for calls, the first of which is named `calls`. Tools must not be NONE. */
void tool_grammar_write(struct grammar_text *g, const struct tool_grammar *t);

#endif
