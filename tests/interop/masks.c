/* SPDX-License-Identifier: Apache-2.0 */
/* masks TOKENIZER: sets of allowed tokens, for masks.py, which asks on standard input. Numbers are
 * the machine's own: `bytes` is a uint32 and as many bytes; times are seconds of the processor.
 *
 *     S bytes    a schema             -> uint8 compiled, double time, bytes (why not)
 *     T bytes    a text               -> bytes: int32 ids
 *     B          begins an answer     -> nothing
 *     M          the set              -> uint8 enum grammar_end, double time, the set's words
 *     P int32    the next token       -> uint8 taken
 *     W bytes    a whole text         -> uint8 an answer may be this
 *
 * Begins with uint32 tokens and, for each, bytes. An error of ours ends the program.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "grammar/grammar.h"
#include "model/model.h"

static kvasir_error err;
static struct grammar *grammar;
static struct grammar_place *place;
static struct tokenizer *tokenizer;
static struct grammar_vocab *vocab;
static uint64_t *bits;
static size_t words;

static void need(bool good, const char *what) {
    if (good)
        return;
    fprintf(stderr, "masks: %s: %s\n", what, err.text);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void put(const void *data, size_t n) {
    need(n == 0 || fwrite(data, n, 1, stdout) == 1, "cannot write");
}

static void put_byte(unsigned value) {
    const uint8_t byte = (uint8_t)value;
    put(&byte, 1);
}

static void put_bytes(struct text_span s) {
    const uint32_t len = (uint32_t)s.len;
    put(&len, sizeof len);
    put(s.data, s.len);
}

static void get(void *data, size_t n) {
    need(n == 0 || fread(data, n, 1, stdin) == 1, "the question is not complete");
}

/* The caller frees it. */
static struct text_span get_bytes(void) {
    uint32_t len;
    get(&len, sizeof len);
    char *text = malloc((size_t)len + 1);
    need(text != NULL, "out of memory");
    get(text, len);
    text[len] = 0;
    return (struct text_span){text, len};
}

static void forget(void) {
    grammar_place_destroy(place);
    place = NULL;
}

static void compile(struct text_span text) {
    forget();
    grammar_release(grammar);
    grammar = NULL;
    const double start = now();
    const kvasir_status status = grammar_compile(GRAMMAR_JSON_SCHEMA, text, NULL, &grammar, &err);
    const double seconds = now() - start;
    put_byte(status == KVASIR_OK);
    put(&seconds, sizeof seconds);
    put_bytes((struct text_span){err.text, status ? strlen(err.text) : 0});
}

static void tokenize(struct text_span text) {
    int32_t *ids;
    size_t n;
    need(tokenizer_encode(tokenizer, text.data, text.len, 0, &ids, &n, &err) == KVASIR_OK,
         "tokens");
    put_bytes((struct text_span){(const char *)ids, n * sizeof *ids});
    mem_free(ids);
}

static void begin(void) {
    forget();
    need(grammar && grammar_begin(grammar, &place, &err) == KVASIR_OK, "an answer");
}

static void allow(void) {
    const double start = now();
    need(grammar_allow(place, vocab, bits, &err) == KVASIR_OK, "a set");
    const double seconds = now() - start;
    put_byte(grammar_place_end(place));
    put(&seconds, sizeof seconds);
    put(bits, words * sizeof *bits);
}

static bool pushes(struct text_span bytes) {
    size_t taken;
    need(grammar_push(place, bytes, &taken, &err) == KVASIR_OK, "a token");
    return bytes.len > 0 && taken == bytes.len;
}

static void push(void) {
    int32_t id;
    get(&id, sizeof id);
    put_byte(pushes(grammar_token_bytes(vocab, id)));
}

static void whole(struct text_span text) {
    begin();
    put_byte(pushes(text) && grammar_place_end(place) != GRAMMAR_OPEN);
    forget();
}

static bool answer(int question) {
    static const char WITH_TEXT[] = "STW";
    struct text_span text = {0};
    if (strchr(WITH_TEXT, question))
        text = get_bytes();
    switch (question) {
    case 'S':
        compile(text);
        break;
    case 'T':
        tokenize(text);
        break;
    case 'W':
        whole(text);
        break;
    case 'B':
        begin();
        break;
    case 'M':
        allow();
        break;
    case 'P':
        push();
        break;
    default:
        return false;
    }
    free((char *)text.data);
    return fflush(stdout) == 0;
}

int main(int argc, char **argv) {
    struct checkpoint *c;
    need(argc == 2, "usage: masks TOKENIZER");
    need(checkpoint_open_text(argv[1], &c, &err) == KVASIR_OK &&
             tokenizer_create(checkpoint_tokenizer(c), &tokenizer, &err) == KVASIR_OK,
         argv[1]);
    checkpoint_close(c);
    const uint32_t n = (uint32_t)tokenizer_size(tokenizer);
    words = token_set_words(n);
    bits = calloc(words, sizeof *bits);
    need(bits && grammar_vocab_create(tokenizer, n, &vocab, &err) == KVASIR_OK, "the vocabulary");
    put(&n, sizeof n);
    for (uint32_t i = 0; i < n; i++)
        put_bytes(grammar_token_bytes(vocab, (int32_t)i));
    fflush(stdout);
    for (int question; (question = getchar()) != EOF;)
        need(answer(question), "there is no such question");
    forget();
    grammar_release(grammar);
    grammar_vocab_destroy(vocab);
    tokenizer_destroy(tokenizer);
    free(bits);
    return 0;
}
