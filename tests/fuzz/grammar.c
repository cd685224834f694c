/* SPDX-License-Identifier: Apache-2.0 */
/* A JSON schema ('0'), a regular expression ('1') or a grammar in GBNF ('2': any other first byte),
 * then the byte 0xFF, which none of them has, and an answer. If the text compiles, the answer is
 * taken as far as it is allowed, and at its first places
 *
 *     the set of tokens is that of the tokens whose bytes are allowed one by one, at one place of
 *     four: sets are most of what a run costs;
 *     forced bytes are allowed;
 *     an open text can go on: there are no dead ends, unless a grammar names control tokens, which
 *     the vocabulary may not have.
 */
#define _GNU_SOURCE /* memmem */
#include <string.h>
#include <time.h>

#include "fuzz.h"
#include "grammar/grammar.h"

/* ANSWER_CLOCKS: if an answer can be read in very many ways, each byte costs milliseconds and each
 * set up to half a second; its beginning is enough then. MEMORY: stacks of PUSHDOWN_WORK_MAX bytes,
 * the state that they become and its copy in the machine, each grown by half and one of them still
 * being copied, are 22 MB; what is compiled and the machine's other states are 3 MB. */
enum {
    PLACES = 24,
    SET_PLACES = 4,
    ANSWER_CLOCKS = CLOCKS_PER_SEC,
    CONTROLS = 4,
    FORCED = 64,
    MEMORY = 28 << 20
};

static const char *const WORDS[] = {"true", "false", "null", "ab",   "\xc3\xa9", "\",", "\":",
                                    "{\"",  "}]",    "\n  ", "12.5", "\\u00",    "\\n", "[["};

/* With so many bytes that a walk over the tokens need not go through all of them. */
#define A16 "aaaaaaaaaaaaaaaa"
#define E8  "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"

static const char *const LONG_WORDS[] = {A16, A16 "\",", A16 "\"}", E8, E8 "\""};

enum {
    N_WORDS = sizeof WORDS / sizeof *WORDS,
    N_LONG = sizeof LONG_WORDS / sizeof *LONG_WORDS,
    N_TOKENS = 256 + N_WORDS + CONTROLS + N_LONG
};

/* "llama": a token for each byte, those words, control tokens, and long words. */
static struct grammar_vocab *make_vocab(void) {
    static char names[N_TOKENS][8];
    struct text_span pieces[N_TOKENS];
    uint8_t kinds[N_TOKENS];
    static const float scores[N_TOKENS];
    struct tokenizer *t;
    struct grammar_vocab *v;
    uint32_t n = 0;
    kvasir_error err;
    for (; n < 256; n++) {
        snprintf(names[n], sizeof names[n], "<0x%02X>", n);
        pieces[n] = (struct text_span){names[n], 6};
        kinds[n] = TOKEN_BYTE;
    }
    for (size_t i = 0; i < N_WORDS; i++, n++) {
        pieces[n] = (struct text_span){WORDS[i], strlen(WORDS[i])};
        kinds[n] = TOKEN_NORMAL;
    }
    for (size_t i = 0; i < CONTROLS; i++, n++) {
        snprintf(names[n], sizeof names[n], "<|%u|>", n);
        pieces[n] = (struct text_span){names[n], strlen(names[n])};
        kinds[n] = TOKEN_CONTROL;
    }
    for (size_t i = 0; i < N_LONG; i++, n++) {
        pieces[n] = (struct text_span){LONG_WORDS[i], strlen(LONG_WORDS[i])};
        kinds[n] = TOKEN_NORMAL;
    }
    const struct tokenizer_spec spec = {.model = "llama",
                                        .pieces = pieces,
                                        .kinds = kinds,
                                        .scores = scores,
                                        .n_tokens = n,
                                        .bos = -1,
                                        .eos = -1,
                                        .eot = -1,
                                        .unk = -1,
                                        .pad = -1};
    if (tokenizer_create(&spec, &t, &err) || grammar_vocab_create(t, n, &v, &err))
        fuzz_fail("%s", err.text);
    tokenizer_destroy(t);
    return v;
}

/* Whether a place takes all of these bytes. -1: too costly to say. */
static int takes(const struct grammar_place *p, struct text_span bytes) {
    struct grammar_place *copy;
    kvasir_error err;
    size_t taken;
    if (grammar_place_copy(p, &copy, &err))
        fuzz_fail("%s", err.text);
    const kvasir_status status = grammar_push(copy, bytes, &taken, &err);
    check_error(status, &err);
    grammar_place_destroy(copy);
    return status ? -1 : taken == bytes.len;
}

/* All words, and of the single bytes an eighth, by turns: all of them would be most of a run. */
static void check_set(struct grammar_place *p, const struct grammar_vocab *v, size_t turn,
                      bool names_tokens) {
    uint64_t bits[(N_TOKENS + 63) / 64];
    bool any = false;
    kvasir_error err;
    const kvasir_status status = grammar_allow(p, v, bits, &err);
    check_error(status, &err);
    if (status)
        return;
    for (int32_t id = 0; id < N_TOKENS; id++) {
        const struct text_span bytes = grammar_token_bytes(v, id);
        const bool allowed = bits[id / 64] >> id % 64 & 1;
        any |= allowed;
        if (id < 256 && id % 8 != (int32_t)(turn % 8))
            continue;
        const int taken = bytes.len ? takes(p, bytes) : 0;
        if (taken >= 0 && taken != allowed)
            fuzz_fail("token %d: %d in the set, %d by its bytes", id, allowed, taken);
    }
    if (!any && !names_tokens && grammar_place_end(p) == GRAMMAR_OPEN)
        fuzz_fail("a dead end");
    if (any && grammar_place_end(p) == GRAMMAR_ENDED)
        fuzz_fail("it goes on after the end");
}

static void check_forced(struct grammar_place *p) {
    struct text_buf text = {0};
    kvasir_error err;
    const kvasir_status status = grammar_forced(p, FORCED, &text, &err);
    check_error(status, &err);
    if (text.len && takes(p, (struct text_span){text.data, text.len}) == 0)
        fuzz_fail("forced, but refused: %.*s", (int)text.len, text.data);
    text_free(&text);
}

static void check_answer(struct grammar *g, struct text_span answer, bool names_tokens) {
    static struct grammar_vocab *vocab;
    struct grammar_place *p;
    kvasir_error err;
    size_t taken = 1;
    if (!vocab)
        vocab = make_vocab();
    if (grammar_begin(g, &p, &err))
        fuzz_fail("%s", err.text);
    const clock_t end = clock() + ANSWER_CLOCKS;
    for (size_t i = 0; taken == 1 && clock() < end; i++) {
        if (i < PLACES) {
            if ((i + answer.len) % SET_PLACES == 0)
                check_set(p, vocab, (i + answer.len) / SET_PLACES, names_tokens);
            check_forced(p);
        }
        if (i == answer.len ||
            grammar_push(p, (struct text_span){answer.data + i, 1}, &taken, &err))
            break;
    }
    grammar_place_destroy(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct grammar_limits limits = {.text_bytes = 1 << 14,
                                          .compiled_bytes = 2 << 20,
                                          .steps = 200 * 1000,
                                          .machine_bytes = 1 << 20};
    struct grammar *g = NULL;
    kvasir_error err;
    if (size == 0)
        return 0;
    const enum grammar_kind kind = *data == '0'   ? GRAMMAR_JSON_SCHEMA
                                   : *data == '1' ? GRAMMAR_REGEX
                                                  : GRAMMAR_GBNF;
    const char *text = (const char *)data + 1, *end = memchr(text, 0xff, size - 1);
    const size_t len = end ? (size_t)(end - text) : size - 1;
    budget_begin(MEMORY + FUZZ_TIMES * size);
    const kvasir_status status =
        grammar_compile(kind, (struct text_span){text, len}, &limits, &g, &err);
    check_error(status, &err);
    if (!status)
        check_answer(g,
                     end ? (struct text_span){end + 1, size - len - 2} : (struct text_span){"", 0},
                     memmem(text, len, "<[", 2));
    grammar_release(g);
    budget_end();
    return 0;
}
