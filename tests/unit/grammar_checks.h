/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of grammars: compiling, matching whole texts. */
#ifndef KVASIR_GRAMMAR_CHECKS_H
#define KVASIR_GRAMMAR_CHECKS_H

#include "grammar/grammar.h"

#include "text_checks.h"

static inline struct text_span span(const char *text) {
    return (struct text_span){text, strlen(text)};
}

static inline struct grammar *compiled(enum grammar_kind kind, const char *text) {
    struct grammar *g = NULL;
    kvasir_error err = {0};
    if (grammar_compile(kind, span(text), NULL, &g, &err) != KVASIR_OK)
        fail_msg("%s: %s", text, err.text);
    return g;
}

/* The bytes of the text that the grammar takes; *complete: it took all, and the text may end. */
static inline size_t taken_of(struct grammar *g, struct text_span text, bool *complete) {
    struct grammar_place *p;
    size_t taken = 0;
    kvasir_error err = {0};
    assert_int_equal(grammar_begin(g, &p, &err), KVASIR_OK);
    assert_int_equal(grammar_push(p, text, &taken, &err), KVASIR_OK);
    *complete = taken == text.len && grammar_place_end(p) != GRAMMAR_OPEN;
    grammar_place_destroy(p);
    return taken;
}

static inline void accepts(struct grammar *g, const char *text) {
    bool complete;
    const size_t taken = taken_of(g, span(text), &complete);
    if (!complete)
        fail_msg("refused at %zu: %s", taken, text);
}

static inline void refuses(struct grammar *g, const char *text, size_t at) {
    bool complete;
    const size_t taken = taken_of(g, span(text), &complete);
    if (complete || taken != at)
        fail_msg("taken to %zu instead of %zu%s: %s", taken, at, complete ? ", complete" : "",
                 text);
}

static inline void does_not_compile(enum grammar_kind kind, const char *text, kvasir_status code,
                                    const char *why) {
    struct grammar *g = NULL;
    kvasir_error err = {0};
    const kvasir_status got = grammar_compile(kind, span(text), NULL, &g, &err);
    if (got != code || !strstr(err.text, why))
        fail_msg("%s: %d, %s", text, (int)got, err.text);
}

#endif
