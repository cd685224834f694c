/* SPDX-License-Identifier: Apache-2.0 */
/* constraint.h: what a client asks an answer to be, and the grammar that makes it so.
 *
 *     response_format, guided_*, grammar ...   a text: struct constraint.kind
 *     tools, tool_choice                       calls:  struct constraint.calls
 *                      |
 *     constraint_apply: one grammar of the whole answer, with the reasoning of models that reason
 *     and the calls as the model's family writes them (tool_grammar.h)
 *                      |
 *     constraint_compile: kvasir_request.grammar, kept for later requests (grammar_cache.h)
 */
#ifndef API_CONSTRAINT_H
#define API_CONSTRAINT_H

#include <jansson.h>
#include <kvasir.h>

#include "api/api_error.h"
#include "util/util.h"

enum constraint_kind {
    CONSTRAINT_NONE,
    CONSTRAINT_SCHEMA, /* value: a JSON schema */
    CONSTRAINT_REGEX,  /* a string, as are the others */
    CONSTRAINT_CHOICE, /* an array of strings */
    CONSTRAINT_GBNF,
};
enum constraint_calls {
    CALLS_FREE,    /* as the model writes them */
    CALLS_CHECKED, /* those that it begins are of tools that are allowed, with their arguments */
    CALLS_FORCED,  /* the answer is one or several */
};
struct constraint {
    enum constraint_kind kind;
    const char *field; /* that asks for it; static */
    json_t *value;     /* lives as long as the request, as do the others */
    enum constraint_calls calls;
    const char *only; /* the tool that is called; NULL: any of */
    json_t *allowed;  /* array of names; NULL: all tools */
    /* What constraint_apply made of it. */
    kvasir_grammar_kind grammar_kind;
    struct text_buf grammar; /* its text; empty: there is none */
};

struct api_setup;
struct api_request;
/* Writes the grammar of r->constraint for the answer to this prompt, and says in r->answer how it
 * is parsed. False with *err. */
bool constraint_apply(const struct api_setup *setup, const char *prompt, size_t len,
                      struct api_request *r, struct api_error *err);
/* The same for answers that are text and nothing else. */
bool constraint_apply_plain(struct api_request *r, struct api_error *err);
/* Compiles it into r->engine.grammar, if the setup has a cache of grammars. False with *err, which
 * names the field and the place in it. */
bool constraint_compile(const struct api_setup *setup, struct api_request *r,
                        struct api_error *err);

#endif
