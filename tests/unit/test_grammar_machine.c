/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of tokens of grammars: exactly the tokens whose bytes can be pushed one by one, in every
 * state of random walks, also when the machine forgets all the time; places, copies, forced texts,
 * and two threads on one grammar. A small recognizer of JSON strings stands for all that say which
 * text they are in (text_key).
 */
#include <pthread.h>

#include "grammar/automaton.h"
#include "model/model.h"

#include "grammar_checks.h"
#include "tensors.h"

#define GPT2 SHARED_DIR "/tokenizers/gpt2/tokenizer.json"
#define QWEN SHARED_DIR "/tokenizers/qwen3/tokenizer.json"

enum { PADDING = 70 };

struct subject {
    struct tokenizer *t;
    struct grammar_vocab *v;
    uint32_t n_ids;
    size_t words;
    uint64_t *bits, *more;
    uint32_t costly; /* walks that were given up */
};

static struct subject open_subject(const char *path) {
    struct checkpoint *c;
    struct subject u = {0};
    kvasir_error err = {0};
    if (checkpoint_open_text(path, &c, &err) != KVASIR_OK ||
        tokenizer_create(checkpoint_tokenizer(c), &u.t, &err) != KVASIR_OK)
        fail_msg("%s: %s", path, err.text);
    checkpoint_close(c);
    u.n_ids = (uint32_t)tokenizer_size(u.t) + PADDING;
    u.words = token_set_words(u.n_ids);
    u.bits = calloc(u.words, sizeof *u.bits);
    u.more = calloc(u.words, sizeof *u.more);
    const double start = cpu_seconds();
    assert_int_equal(grammar_vocab_create(u.t, u.n_ids, &u.v, &err), KVASIR_OK);
    print_message("%s: %u ids, %llu bytes, made in %.1f ms\n", path, u.n_ids,
                  (unsigned long long)grammar_vocab_bytes(u.t, u.n_ids),
                  1e3 * (cpu_seconds() - start));
    return u;
}

static void close_subject(struct subject *u) {
    grammar_vocab_destroy(u->v);
    tokenizer_destroy(u->t);
    free(u->bits);
    free(u->more);
}

static bool bit(const uint64_t *bits, uint32_t id) {
    return bits[id / 64] >> id % 64 & 1;
}

/* False: the grammar has become too costly. */
static bool allow(struct subject *u, struct grammar_place *p, uint64_t *bits) {
    kvasir_error err = {0};
    const kvasir_status status = grammar_allow(p, u->v, bits, &err);
    if (status != KVASIR_OK && status != KVASIR_ERR_UNSUPPORTED)
        fail_msg("%s", err.text);
    return status == KVASIR_OK;
}

static bool can_push(const struct grammar_place *p, struct text_span bytes) {
    struct grammar_place *copy;
    kvasir_error err;
    size_t taken = 0;
    assert_int_equal(grammar_place_copy(p, &copy, &err), KVASIR_OK);
    assert_int_equal(grammar_push(copy, bytes, &taken, &err), KVASIR_OK);
    grammar_place_destroy(copy);
    return taken == bytes.len;
}

enum { COSTLY = UINT32_MAX };

/* Every token, or every `each`th, against its bytes. Returns how many are allowed, or COSTLY. */
static uint32_t check_set(struct subject *u, struct grammar_place *p, uint32_t each) {
    uint32_t n = 0;
    if (!allow(u, p, u->bits))
        return COSTLY;
    assert_true(allow(u, p, u->more)); /* now from what was kept */
    assert_memory_equal(u->bits, u->more, u->words * sizeof *u->bits);
    for (uint32_t id = 0; id < u->n_ids; id++) {
        n += bit(u->bits, id);
        if (id % each && !(bit(u->bits, id) && n < 50))
            continue;
        const struct text_span bytes = grammar_token_bytes(u->v, (int32_t)id);
        if (bit(u->bits, id) != (bytes.len > 0 && can_push(p, bytes)))
            fail_msg("token %u (%.*s) is %s", id, (int)bytes.len, bytes.data,
                     bit(u->bits, id) ? "allowed" : "left out");
    }
    return n;
}

static uint32_t random_allowed(const struct subject *u, uint32_t n) {
    uint32_t which = rng(n);
    for (uint32_t id = 0;; id++)
        if (bit(u->bits, id) && which-- == 0)
            return id;
}

/* A walk over allowed tokens; there is always one, or the text may end. */
static void walk(struct subject *u, struct grammar *g, uint32_t steps, uint32_t each) {
    struct grammar_place *p;
    kvasir_error err;
    assert_int_equal(grammar_begin(g, &p, &err), KVASIR_OK);
    for (uint32_t i = 0; i < steps; i++) {
        const uint32_t n = check_set(u, p, each);
        if (n == COSTLY) {
            u->costly++;
            break;
        }
        if (n == 0) {
            assert_int_not_equal(grammar_place_end(p), GRAMMAR_OPEN);
            break;
        }
        assert_int_not_equal(grammar_place_end(p), GRAMMAR_ENDED);
        const struct text_span bytes = grammar_token_bytes(u->v, (int32_t)random_allowed(u, n));
        size_t taken;
        assert_int_equal(grammar_push(p, bytes, &taken, &err), KVASIR_OK);
        assert_int_equal(taken, bytes.len);
    }
    grammar_place_destroy(p);
}

/* ---- random grammars ------------------------------------------------------------------------- */

static void add(struct text_buf *b, const char *text) {
    assert_true(text_puts(b, text));
}

static void random_item(struct text_buf *b, uint32_t depth) {
    static const char *const simple[] = {
        "\"a\"",
        "\"the\"",
        "\" is\"",
        "[a-z]",
        "[^a-zA-Z]",
        "[0-9]",
        "\"\\n\"",
        "\"{\"",
        "\"\\\"\"",
        "[ \\n]",
        "\"\\\\\"",
        "\"\xc3\xa9\"",
        ".",
        "[\\u0400-\\u04ff]",
        "\"\"",
        "\"\\\": \"",
        "[\\U0001F600-\\U0001F64F]",
        "[^\\\"\\\\]",
    };
    static const char *const repeat[] = {"*", "+", "?", "{2}", "{1,3}", "{2,}"};
    if (depth && rng(4) == 0) {
        add(b, "(");
        for (uint32_t i = 0, n = 1 + rng(3); i < n; i++) {
            add(b, i && rng(2) ? " | " : " ");
            random_item(b, depth - 1);
        }
        add(b, ")");
    } else if (rng(5) == 0) {
        const char name[] = {'r', (char)('0' + rng(4)), 0};
        add(b, name);
    } else {
        add(b, simple[rng(sizeof simple / sizeof *simple)]);
    }
    if (rng(4) == 0)
        add(b, repeat[rng(6)]);
}

static void random_rule(struct text_buf *b, const char *name) {
    assert_true(text_printf(b, "%s ::= ", name));
    for (uint32_t i = 0, n = 1 + rng(3); i < n; i++) {
        add(b, i ? " | " : "");
        for (uint32_t k = 0, items = 1 + rng(4); k < items; k++) {
            random_item(b, 2);
            add(b, " ");
        }
    }
    add(b, "\n");
}

static void random_grammars(void **state) {
    (void)state;
    struct subject u = open_subject(GPT2);
#ifdef __SANITIZE_ADDRESS__
    const uint32_t grammars = 20;
#else
    const uint32_t grammars = 75;
#endif
    uint32_t n = 0;
    rng_start(1);
    for (uint32_t i = 0; i < grammars; i++) {
        struct text_buf b = {0};
        struct grammar *g;
        kvasir_error err;
        random_rule(&b, "root");
        for (char name[] = "r0"; name[1] < '4'; name[1]++)
            random_rule(&b, name);
        struct grammar_limits limits = grammar_limits_default();
        if (i % 4 == 0)
            limits.machine_bytes = 20000; /* forgets all the time */
        if (grammar_compile(GRAMMAR_GBNF, (struct text_span){b.data, b.len}, &limits, &g, &err) ==
            KVASIR_OK) {
            walk(&u, g, 8, 97);
            grammar_release(g);
            n++;
        }
        text_free(&b);
    }
    print_message("%u grammars, %u too costly\n", n, u.costly);
    assert_in_range(u.costly, 0, n / 10);
    assert_in_range(n, grammars / 3, grammars);
    close_subject(&u);
}

/* ---- a recognizer of strings ----------------------------------------------------------------- */

/* "..." of at most `most` characters, with one escape, \n; then "!". */
struct strings {
    struct recognizer base;
    uint32_t most;
    bool lower; /* only a to z */
};
struct strings_state {
    uint32_t part, chars, open; /* 0: before, 1: inside, 2: after '\', 3: behind, 4: the end */
};

static enum recognizer_step write_state(struct text_buf *out, uint32_t part, uint32_t chars,
                                        uint32_t open) {
    const struct strings_state s = {part, chars, open};
    return text_append(out, &s, sizeof s) ? STEP_TAKEN : STEP_MEMORY;
}

static enum recognizer_step strings_start(const struct recognizer *r, struct text_buf *out) {
    (void)r;
    return write_state(out, 0, 0, 0);
}

static struct strings_state read_state(struct text_span state) {
    struct strings_state s;
    memcpy(&s, state.data, sizeof s);
    return s;
}

/* Knows lead bytes of 0xC3 only, with any continuation. */
static enum recognizer_step strings_step(const struct recognizer *r, struct text_span state,
                                         uint8_t byte, struct text_buf *out) {
    const struct strings *k = (const struct strings *)r;
    const struct strings_state s = read_state(state);
    const bool room = s.chars < k->most;
    if (s.part == 0)
        return byte == '"' ? write_state(out, 1, 0, 0) : STEP_REFUSED;
    if (s.part == 1 && s.open) {
        const uint8_t bytes[4] = {(uint8_t)s.open, (uint8_t)(s.open >> 8), (uint8_t)(s.open >> 16)};
        uint8_t held[4];
        size_t n = 0;
        while (n < 3 && bytes[n]) {
            held[n] = bytes[n];
            n++;
        }
        held[n] = byte;
        const int length = utf8_length(held, n + 1);
        if (length < 0)
            return STEP_REFUSED;
        return write_state(out, 1, s.chars, length ? 0 : s.open | (uint32_t)byte << 8 * n);
    }
    if (s.part == 1 && byte == '"')
        return write_state(out, 3, 0, 0);
    if (s.part == 1 && byte == '\\')
        return room && !k->lower ? write_state(out, 2, s.chars + 1, 0) : STEP_REFUSED;
    if (s.part == 1 && k->lower)
        return room && byte >= 'a' && byte <= 'z' ? write_state(out, 1, s.chars + 1, 0)
                                                  : STEP_REFUSED;
    if (s.part == 1 && (byte < 0x20 || !room))
        return STEP_REFUSED;
    if (s.part == 1) {
        const int length = utf8_length(&byte, 1);
        return length < 0 ? STEP_REFUSED : write_state(out, 1, s.chars + 1, length ? 0 : byte);
    }
    if (s.part == 2)
        return byte == 'n' ? write_state(out, 1, s.chars, 0) : STEP_REFUSED;
    return s.part == 3 && byte == '!' ? write_state(out, 4, 0, 0) : STEP_REFUSED;
}

static enum grammar_end strings_end(const struct recognizer *r, struct text_span state) {
    (void)r;
    return read_state(state).part == 4 ? GRAMMAR_ENDED : GRAMMAR_OPEN;
}

static uint64_t strings_key(const struct recognizer *r, struct text_span state) {
    const struct strings *k = (const struct strings *)r;
    const struct strings_state s = read_state(state);
    if (s.part != 1 || s.open)
        return 0;
    return k->lower ? TEXT_KEY_OWN + s.chars : TEXT_KEY_ANY + (k->most - s.chars);
}

/* All but one of the refused bytes. */
static void strings_narrow(const struct recognizer *r, struct text_span state, uint64_t bytes[4]) {
    (void)r;
    if (read_state(state).part != 0)
        return;
    memset(bytes, 0, 4 * sizeof *bytes);
    bytes['"' / 64] |= 1ULL << '"' % 64 | 1ULL << '!' % 64;
}

static void strings_destroy(struct recognizer *r) {
    (void)r; /* on the test's stack */
}

static size_t strings_bytes(const struct recognizer *r) {
    (void)r;
    return sizeof(struct strings);
}

static const struct recognizer_ops STRINGS = {
    .destroy = strings_destroy,
    .bytes = strings_bytes,
    .start = strings_start,
    .step = strings_step,
    .end = strings_end,
    .text_key = strings_key,
    .narrow = strings_narrow,
};

static void texts(void **state) {
    (void)state;
    struct subject u = open_subject(GPT2);
    rng_start(2);
    for (uint32_t i = 0; i < 24; i++) {
        struct strings r = {{&STRINGS},
                            i < 8    ? i
                            : i < 20 ? 4 * i
                                     : TEXT_KEY_UNBOUNDED,
                            i % 4 == 3};
        struct grammar *g;
        kvasir_error err;
        assert_int_equal(grammar_of(&r.base, i % 3 ? 1 << 20 : 5000, &g, &err), KVASIR_OK);
        for (int round = 0; round < 3; round++)
            walk(&u, g, 12, 31);
        grammar_release(g);
    }
    close_subject(&u);
}

/* ---- places ---------------------------------------------------------------------------------- */

static struct grammar_place *place_behind(struct grammar *g, const char *text) {
    struct grammar_place *p;
    kvasir_error err;
    size_t taken;
    assert_int_equal(grammar_begin(g, &p, &err), KVASIR_OK);
    assert_int_equal(grammar_push(p, span(text), &taken, &err), KVASIR_OK);
    assert_int_equal(taken, strlen(text));
    return p;
}

/* Schemas: sets of tokens byte by byte. */
static void schemas(void **state) {
    (void)state;
    static const char *const SCHEMAS[] = {
        "{\"type\":\"object\"}",
        ("{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":9},"
         "\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":120}},"
         "\"required\":[\"name\",\"age\"]}"),
        "{\"type\":\"array\",\"items\":{\"enum\":[\"a\",true,-1.5]}}"};
    struct subject u = open_subject(GPT2);
    for (size_t i = 0; i < sizeof SCHEMAS / sizeof *SCHEMAS; i++)
        for (int k = 0; k < 3; k++) {
            struct grammar *g = compiled(GRAMMAR_JSON_SCHEMA, SCHEMAS[i]);
            walk(&u, g, 60, 1);
            grammar_release(g);
        }
    close_subject(&u);
}

static void ends(void **state) {
    (void)state;
    struct grammar *g = compiled(GRAMMAR_GBNF, "root ::= \"a\" \"b\"? | \"\"");
    struct grammar_place *p = place_behind(g, ""), *copy;
    kvasir_error err;
    size_t taken;
    assert_int_equal(grammar_place_end(p), GRAMMAR_MAY_END);
    assert_int_equal(grammar_push(p, span("ac"), &taken, &err), KVASIR_OK);
    assert_int_equal(taken, 1);
    assert_int_equal(grammar_place_end(p), GRAMMAR_MAY_END);
    assert_int_equal(grammar_place_copy(p, &copy, &err), KVASIR_OK);
    assert_int_equal(grammar_push(p, span("b"), &taken, &err), KVASIR_OK);
    assert_int_equal(grammar_place_end(p), GRAMMAR_ENDED);
    assert_int_equal(grammar_place_end(copy), GRAMMAR_MAY_END);
    grammar_release(g); /* its places keep it */
    assert_int_equal(grammar_push(copy, span("b"), &taken, &err), KVASIR_OK);
    assert_int_equal(taken, 1);
    grammar_place_destroy(p);
    grammar_place_destroy(copy);
}

static void forces(struct grammar *g, const char *behind, size_t max, const char *want) {
    struct grammar_place *p = place_behind(g, behind);
    struct text_buf out = {0};
    kvasir_error err;
    assert_true(text_append(&out, ">", 1));
    assert_int_equal(grammar_forced(p, max, &out, &err), KVASIR_OK);
    assert_string_equal(out.data + 1, want);
    text_free(&out);
    grammar_place_destroy(p);
}

static void forced(void **state) {
    (void)state;
    struct grammar *g =
        compiled(GRAMMAR_GBNF, "root ::= \"name: \" (\"caf\\u00e9 \" | \"caf\\u00e8.\") "
                               "\"end\"? | \"no \" <[7]> \"x\"");
    forces(g, "", 100, "n");
    forces(g, "n", 100, "");
    forces(g, "na", 100, "me: caf"); /* not half a character */
    forces(g, "na", 2, "me");
    forces(g, "name: caf\xc3", 100, "");
    forces(g, "name: caf\xc3\xa9", 100, " "); /* it may end there */
    forces(g, "name: caf\xc3\xa9 e", 100, "nd");
    forces(g, "no", 100, " "); /* a control token comes as a token */
    grammar_release(g);
}

/* ---- two threads ----------------------------------------------------------------------------- */

struct walker {
    struct subject *u;
    struct grammar *g;
    pthread_t thread;
};

static void *walk_alone(void *user) {
    struct walker *w = user;
    struct grammar_place *p;
    kvasir_error err;
    uint64_t *bits = calloc(w->u->words, sizeof *bits);
    size_t taken;
    for (int round = 0; bits && round < 20; round++) {
        if (grammar_begin(w->g, &p, &err) != KVASIR_OK)
            break;
        for (uint32_t i = 0; i < 30 && grammar_allow(p, w->u->v, bits, &err) == KVASIR_OK; i++)
            for (uint32_t id = i; id < w->u->n_ids; id++)
                if (bit(bits, id)) {
                    if (grammar_push(p, grammar_token_bytes(w->u->v, (int32_t)id), &taken, &err) !=
                        KVASIR_OK)
                        break;
                    break;
                }
        grammar_place_destroy(p);
    }
    free(bits);
    return NULL;
}

static void threads(void **state) {
    (void)state;
    struct subject u = open_subject(GPT2);
    struct grammar_limits limits = grammar_limits_default();
    limits.machine_bytes = 100000;
    struct walker w[2] = {{&u, NULL, 0}, {&u, NULL, 0}};
    kvasir_error err;
    assert_int_equal(
        grammar_compile(GRAMMAR_GBNF,
                        span("root ::= (\"(\" root \")\" | [a-z ]+ | \"[\" root \"]\")*"), &limits,
                        &w[0].g, &err),
        KVASIR_OK);
    w[1].g = grammar_retain(w[0].g);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&w[i].thread, NULL, walk_alone, &w[i]), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_join(w[i].thread, NULL), 0);
    assert_in_range(grammar_bytes(w[0].g), 1000, 1000000);
    grammar_release(w[0].g);
    grammar_release(w[1].g);
    close_subject(&u);
}

/* ---- the vocabulary -------------------------------------------------------------------------- */

/* All tokens have their bytes, and a grammar of everything allows them all but control tokens. */
static void everything(void **state) {
    (void)state;
    struct subject u = open_subject(QWEN);
    struct grammar *g = compiled(GRAMMAR_GBNF, "root ::= .*");
    struct grammar_place *p = place_behind(g, "");
    const double start = cpu_seconds();
    assert_true(allow(&u, p, u.bits));
    print_message("all tokens in %.2f ms\n", 1e3 * (cpu_seconds() - start));
    for (uint32_t id = 0; id < u.n_ids; id++) {
        const struct text_span bytes = grammar_token_bytes(u.v, (int32_t)id);
        const bool known = id < tokenizer_size(u.t);
        const bool control = known && tokenizer_is_control(u.t, (int32_t)id);
        if (known && tokenizer_is_end(u.t, (int32_t)id))
            assert_int_equal(bytes.len, 0);
        if (control && bytes.len)
            assert_int_equal((uint8_t)bytes.data[0], 0xff);
        if (known && !control && bytes.len)
            assert_int_equal(span_compare(bytes, tokenizer_bytes(u.t, (int32_t)id)), 0);
        if (bit(u.bits, id) && (!known || control))
            fail_msg("token %u is allowed", id);
    }
    grammar_place_destroy(p);
    grammar_release(g);
    g = compiled(GRAMMAR_GBNF, "root ::= <[151644]> \"x\"");
    p = place_behind(g, "");
    assert_int_equal(check_set(&u, p, 1), tokenizer_is_end(u.t, 151644) ? 0 : 1);
    grammar_place_destroy(p);
    grammar_release(g);
    close_subject(&u);
}

int main(void) {
    skip_without(GPT2);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads),
#ifndef __SANITIZE_THREAD__ /* one thread each, and minutes under that sanitizer */
        cmocka_unit_test(schemas), cmocka_unit_test(random_grammars), cmocka_unit_test(texts),
        cmocka_unit_test(ends),    cmocka_unit_test(forced),          cmocka_unit_test(everything),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
