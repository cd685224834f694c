/* SPDX-License-Identifier: Apache-2.0 */
/* recognizer.h: who makes the states of a grammar's machine (automaton.h).
 *
 * A state is a block of bytes without pointers that says all that matters about the text so far.
 * Two texts that can go on in the same ways should have equal blocks wherever that is cheap: the
 * machine keeps each block once, and every transition that was ever asked for.
 *
 * Recognizers are immutable once compiled; several threads may call one at once with different
 * scratch buffers.
 */
#ifndef KVASIR_GRAMMAR_RECOGNIZER_H
#define KVASIR_GRAMMAR_RECOGNIZER_H

#include "grammar/grammar.h"

enum recognizer_step {
    STEP_TAKEN,
    STEP_REFUSED, /* no text that goes on like this is right */
    STEP_MEMORY,  /* out of memory */
    STEP_LIMIT,   /* costs more than allowed; the request fails */
};

/* Keys of text_key. */
#define TEXT_KEY_ANY   ((uint64_t)1)
#define TEXT_KEY_OWN   ((uint64_t)1 << 63)
#define TEXT_KEY_STAYS ((uint64_t)1 << 62)
enum {
    TEXT_KEY_UNBOUNDED = UINT32_MAX,
    TEXT_KEY_LONG = 255, /* as many characters as a token can have: as good as unbounded */
};

/* Of a key without TEXT_KEY_OWN: how many characters may come. */
static inline uint32_t text_key_room(uint64_t key) {
    return (uint32_t)((key & ~TEXT_KEY_STAYS) - TEXT_KEY_ANY);
}

struct recognizer;
struct recognizer_ops {
    void (*destroy)(struct recognizer *r);
    /* Appends the state before the first byte. STEP_REFUSED and STEP_LIMIT cannot happen: such a
     * grammar is refused when it is compiled. */
    enum recognizer_step (*start)(const struct recognizer *r, struct text_buf *out);
    /* Appends the state after `byte`. Only taken if the text can still be completed. */
    enum recognizer_step (*step)(const struct recognizer *r, struct text_span state, uint8_t byte,
                                 struct text_buf *out);
    enum grammar_end (*end)(const struct recognizer *r, struct text_span state);
    /* Between two characters of a JSON string: not 0, and the same for all states that take the
     * same characters from U+0020 on up to and without the next '"' or backslash. The machine then
     * keeps one set of such tokens for all of them. 0: no such place. TEXT_KEY_ANY + n: all such
     * characters may come, at most n of them (n = TEXT_KEY_UNBOUNDED: any number); nothing is
     * computed for these. With the bit TEXT_KEY_STAYS the state after each of them is the same
     * block again, and n is TEXT_KEY_UNBOUNDED. Other keys have the bit TEXT_KEY_OWN. NULL: there
     * are no such places. */
    uint64_t (*text_key)(const struct recognizer *r, struct text_span state);
    /* Clears the bits of bytes that `step` refuses, where that is cheaper to say than to try: the
     * machine asks once per state and does not try those. All 256 bits are set before. May leave
     * any set. NULL: always all. */
    void (*narrow)(const struct recognizer *r, struct text_span state, uint64_t bytes[4]);
    size_t (*bytes)(const struct recognizer *r); /* on the heap */
};
/* The first member of each recognizer. */
struct recognizer {
    const struct recognizer_ops *ops;
};

/* The work and memory that compiling has left; shared by all that one grammar compiles. */
struct grammar_budget {
    uint64_t steps;
    size_t bytes;
};
/* False: more than what is left; then nothing is taken and the caller fails with
 * KVASIR_ERR_UNSUPPORTED (grammar_too_large). */
bool budget_take(struct grammar_budget *b, uint64_t steps, size_t bytes) MUST_CHECK;
/* "#/...: costs more time or memory to enforce than allowed" */
kvasir_status grammar_too_large(kvasir_error *err, const char *where);

/* What grammar_compile makes of a recognizer, which it takes over. */
kvasir_status grammar_of(struct recognizer *r, size_t machine_bytes, struct grammar **out,
                         kvasir_error *err) MUST_CHECK;

kvasir_status schema_compile(struct text_span text, struct grammar_budget *b,
                             struct recognizer **out, kvasir_error *err) MUST_CHECK;
kvasir_status regex_compile(struct text_span text, struct grammar_budget *b,
                            struct recognizer **out, kvasir_error *err) MUST_CHECK;
/* llama.cpp's GBNF with three additions: `<[123]>` is the control token 123; `%json {...}` is JSON
 * of the schema that follows; `%regex "..."` a text of that expression (anchored at both ends). */
kvasir_status gbnf_compile(struct text_span text, struct grammar_budget *b, struct recognizer **out,
                           kvasir_error *err) MUST_CHECK;

#endif
