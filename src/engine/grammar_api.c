/* SPDX-License-Identifier: Apache-2.0 */
/* grammar_api.c: kvasir_grammar, what an answer must be. */
#include "engine/engine.h"
#include "grammar/grammar.h"

kvasir_status kvasir_grammar_create(kvasir_grammar_kind kind, const char *text, size_t len,
                                    kvasir_grammar **out, kvasir_error *err) {
    static const enum grammar_kind kinds[] = {
        [KVASIR_GRAMMAR_JSON_SCHEMA] = GRAMMAR_JSON_SCHEMA,
        [KVASIR_GRAMMAR_REGEX] = GRAMMAR_REGEX,
        [KVASIR_GRAMMAR_GBNF] = GRAMMAR_GBNF,
    };
    if ((unsigned)kind >= sizeof kinds / sizeof *kinds)
        return fail(err, KVASIR_ERR_ARGUMENT, "no kind of grammar has the number %u",
                    (unsigned)kind);
    struct kvasir_grammar *g = mem_calloc(1, sizeof *g);
    if (!g)
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory for a grammar");
    const kvasir_status status =
        grammar_compile(kinds[kind], (struct text_span){text, len}, NULL, &g->grammar, err);
    if (status == KVASIR_OK)
        *out = g;
    else
        mem_free(g);
    return status;
}

void kvasir_grammar_destroy(kvasir_grammar *g) {
    if (g)
        grammar_release(g->grammar);
    mem_free(g);
}

size_t kvasir_grammar_bytes(const kvasir_grammar *g) {
    return sizeof *g + grammar_bytes(g->grammar);
}

kvasir_status kvasir_grammar_match(const kvasir_grammar *g, const char *text, size_t len,
                                   bool *matches, size_t *at, kvasir_error *err) {
    struct grammar_place *p;
    size_t taken = 0;
    TRY(grammar_begin(g->grammar, &p, err));
    const kvasir_status status = grammar_push(p, (struct text_span){text, len}, &taken, err);
    *at = taken;
    *matches = status == KVASIR_OK && taken == len && grammar_place_end(p) != GRAMMAR_OPEN;
    grammar_place_destroy(p);
    return status;
}
