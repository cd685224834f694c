/* SPDX-License-Identifier: Apache-2.0 */
/* json_vocab.c: which tokens may come next in a JSON object. Made once per vocabulary; immutable;
 * shared by threads.
 *
 * Tokens are sorted by their bytes, each with the number of bytes that it shares with the previous
 * one. A walk down the list keeps the state after every byte of the current token. For the next
 * token only the bytes after the shared ones are pushed. If a byte is not allowed, all tokens that
 * share it are skipped.
 *
 *     states:        0    1    2    3           state 2 is after `",`
 *     token       "  ",   ",   \n                                    shared 2
 *                 "  ,    \n   \n                                    shared 3: pushes one byte
 *                 "  a    b                                          shared 1: 'a' is not allowed
 *                 "  a    b    c                                     shared 3: skipped
 *
 * Inside a string almost every token is allowed. That part of the answer is the same in all strings
 * and is computed once (`inside`). Only tokens that close the string are walked, in a list of their
 * own (`closing`).
 *
 *     token in a string   The  <- `inside`   \"  <- `inside`   "],  <- `closing`   "\n"  <- none
 */
#include <stdlib.h>
#include <string.h>

#include "text/json_automaton.h"

enum { TOKEN_BYTES_MAX = UINT8_MAX }; /* token_list.len and .same have 8 bits */

struct token_list {
    uint32_t n;
    uint32_t first[257]; /* tokens first[b] .. first[b + 1] - 1 begin with byte b */
    uint32_t *id, *at;   /* [n]; where its bytes begin */
    uint8_t *len, *same; /* [n]; bytes shared with the previous token */
};

struct json_vocab {
    uint32_t n_ids;
    struct token_list all, closing;
    uint64_t *inside; /* [token_set_words(n_ids)] */
    uint8_t *bytes;   /* of all tokens */
};

/* The memory that a vocabulary needs. */
struct vocab_counts {
    uint32_t tokens, closing; /* `closing`: tokens with a quotation mark, an upper bound */
    size_t bytes;
};

/* ---- the tokens of a vocabulary -------------------------------------------------------------- */

struct sorted_token {
    struct text_span bytes;
    uint32_t id;
};

/* The bytes of a token; empty if it must never be chosen. */
static struct text_span usable_bytes(const struct tokenizer *t, uint32_t id) {
    const struct text_span none = {"", 0}, bytes = tokenizer_bytes(t, (int32_t)id);
    if (tokenizer_is_control(t, (int32_t)id) || tokenizer_is_end(t, (int32_t)id))
        return none;
    return bytes.len <= TOKEN_BYTES_MAX ? bytes : none;
}

static uint32_t ids_of(const struct tokenizer *t, uint32_t n_ids) {
    return (uint32_t)min_size(tokenizer_size(t), n_ids);
}

static struct vocab_counts count_tokens(const struct tokenizer *t, uint32_t n_ids) {
    struct vocab_counts c = {0};
    for (uint32_t id = 0, n = ids_of(t, n_ids); id < n; id++) {
        const struct text_span bytes = usable_bytes(t, id);
        c.tokens += bytes.len > 0;
        c.closing += bytes.len > 0 && memchr(bytes.data, '"', bytes.len);
        c.bytes += bytes.len;
    }
    return c;
}

static int compare_tokens(const void *a, const void *b) {
    const struct sorted_token *x = a, *y = b;
    const int order = span_compare(x->bytes, y->bytes);
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

/* ---- lists ----------------------------------------------------------------------------------- */

enum { LIST_BYTES = 2 * sizeof(uint32_t) + 2 * sizeof(uint8_t) }; /* per token */

static size_t memory_of(const struct vocab_counts *c, uint32_t n_ids) {
    return sizeof(struct json_vocab) + token_set_words(n_ids) * sizeof(uint64_t) +
           ((size_t)c->tokens + c->closing) * LIST_BYTES + c->bytes;
}

static void list_add(struct json_vocab *v, struct token_list *list, uint32_t id, uint32_t at,
                     size_t len) {
    ASSERT(len > 0 && len <= TOKEN_BYTES_MAX && id < v->n_ids);
    const uint8_t *bytes = v->bytes + at;
    size_t same = 0;
    if (list->n) {
        const uint8_t *before = v->bytes + list->at[list->n - 1];
        while (same < len && same < list->len[list->n - 1] && bytes[same] == before[same])
            same++;
    }
    list->id[list->n] = id;
    list->at[list->n] = at;
    list->len[list->n] = (uint8_t)len;
    list->same[list->n] = (uint8_t)same;
    list->first[bytes[0] + 1] = ++list->n;
}

static void list_end(struct token_list *list) {
    for (unsigned b = 1; b <= 256; b++) /* bytes with which no token begins */
        if (list->first[b] < list->first[b - 1])
            list->first[b] = list->first[b - 1];
}

/* Puts a token in its place for the inside of a string. */
static void sort_in_string(struct json_vocab *v, uint32_t i) {
    struct json_state s = {.levels = 1, .part = PART_TEXT, .key = true};
    const struct token_list *all = &v->all;
    for (uint32_t k = 0; k < all->len[i]; k++) {
        if (!json_step(&s, v->bytes[all->at[i] + k]))
            return;
        if (s.part == PART_COLON) { /* what may follow depends on what is around the string */
            list_add(v, &v->closing, all->id[i], all->at[i], all->len[i]);
            return;
        }
    }
    v->inside[all->id[i] / 64] |= 1ULL << all->id[i] % 64;
}

static void fill_vocab(struct json_vocab *v, const struct sorted_token *tokens, uint32_t n) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct text_span bytes = tokens[i].bytes;
        memcpy(v->bytes + at, bytes.data, bytes.len);
        list_add(v, &v->all, tokens[i].id, at, bytes.len);
        sort_in_string(v, i);
        at += (uint32_t)bytes.len;
    }
    list_end(&v->all);
    list_end(&v->closing);
}

/* ---- create and destroy ---------------------------------------------------------------------- */

/* One allocation, the members with the widest type first. */
static struct json_vocab *place_vocab(const struct vocab_counts *c, uint32_t n_ids) {
    struct json_vocab *v = mem_calloc(1, memory_of(c, n_ids));
    if (!v)
        return NULL;
    _Static_assert(sizeof *v % sizeof(uint64_t) == 0, "the bits after it are aligned");
    v->n_ids = n_ids;
    v->inside = (uint64_t *)(v + 1);
    v->all.id = (uint32_t *)(v->inside + token_set_words(n_ids));
    v->all.at = v->all.id + c->tokens;
    v->closing.id = v->all.at + c->tokens;
    v->closing.at = v->closing.id + c->closing;
    v->all.len = (uint8_t *)(v->closing.at + c->closing);
    v->all.same = v->all.len + c->tokens;
    v->closing.len = v->all.same + c->tokens;
    v->closing.same = v->closing.len + c->closing;
    v->bytes = v->closing.same + c->closing;
    return v;
}

kvasir_status json_vocab_create(const struct tokenizer *t, uint32_t n_ids, struct json_vocab **out,
                                kvasir_error *err) {
    const struct vocab_counts counts = count_tokens(t, n_ids);
    struct sorted_token *tokens = mem_calloc(counts.tokens + 1, sizeof *tokens);
    struct json_vocab *v = place_vocab(&counts, n_ids);
    uint32_t n = 0;
    kvasir_status status = KVASIR_OK;
    if (!tokens || !v) {
        status = fail(err, KVASIR_ERR_MEMORY,
                      "not enough memory for a JSON vocabulary of %u tokens", counts.tokens);
        goto done;
    }
    for (uint32_t id = 0; n < counts.tokens; id++) {
        tokens[n] = (struct sorted_token){usable_bytes(t, id), id};
        n += tokens[n].bytes.len > 0;
    }
    ASSERT(n == counts.tokens);
    qsort(tokens, n, sizeof *tokens, compare_tokens);
    fill_vocab(v, tokens, n);
    TRY_GOTO(json_vocab_check(v, NULL, 0, err));
    *out = v;
done:
    mem_free(tokens);
    if (status != KVASIR_OK)
        json_vocab_destroy(v);
    return status;
}

void json_vocab_destroy(struct json_vocab *v) {
    mem_free(v);
}

uint64_t json_vocab_bytes(const struct tokenizer *t, uint32_t n_ids) {
    const struct vocab_counts counts = count_tokens(t, n_ids);
    return memory_of(&counts, n_ids);
}

/* ---- what may come next ---------------------------------------------------------------------- */

static bool is_one_of(uint32_t id, const int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0 && (uint32_t)ids[i] == id)
            return true;
    return false;
}

/* Tokens of one byte are the first of those that begin with it. */
static bool has_byte(const struct token_list *list, uint8_t byte, const int32_t *without,
                     size_t n) {
    for (uint32_t i = list->first[byte]; i < list->first[byte + 1] && list->len[i] == 1; i++)
        if (!is_one_of(list->id[i], without, n))
            return true;
    return false;
}

/* From every state, some of these bytes lead to the end. The exceptions are a literal or a
 * character that a token has begun and no token continues. */
kvasir_status json_vocab_check(const struct json_vocab *v, const int32_t *without, size_t n,
                               kvasir_error *err) {
    static const char needed[] = "{}]\":\\u0d";
    for (const char *c = needed; *c; c++)
        if (!has_byte(&v->all, (uint8_t)*c, without, n))
            return fail_field(err, KVASIR_ERR_UNSUPPORTED, "request.json_object",
                              "JSON needs a token that is '%c' alone, but none is allowed", *c);
    return KVASIR_OK;
}

/* Walks the tokens from .. to - 1, which begin with one byte. `states` has room for one after each
 * byte. */
static void walk_tokens(const struct json_vocab *v, const struct token_list *list, uint32_t from,
                        uint32_t to, struct json_state states[TOKEN_BYTES_MAX + 1],
                        uint64_t *bits) {
    uint32_t stuck = TOKEN_BYTES_MAX; /* index of the previous token's refused byte */
    for (uint32_t i = from; i < to; i++) {
        if (list->same[i] > stuck)
            continue;
        const uint8_t *bytes = v->bytes + list->at[i];
        const uint32_t len = list->len[i];
        uint32_t k = list->same[i];
        DEBUG_ASSERT(k <= len && list->id[i] < v->n_ids);
        struct json_state s = states[k];
        for (; k < len && json_step(&s, bytes[k]); k++)
            states[k + 1] = s;
        stuck = k < len ? k : TOKEN_BYTES_MAX;
        if (k == len)
            bits[list->id[i] / 64] |= 1ULL << list->id[i] % 64;
    }
}

void json_vocab_allow(const struct json_vocab *v, const struct json_state *s, uint64_t *bits) {
    const struct token_list *list = s->part == PART_TEXT ? &v->closing : &v->all;
    struct json_state states[TOKEN_BYTES_MAX + 1] = {*s};
    if (s->part == PART_TEXT)
        memcpy(bits, v->inside, token_set_words(v->n_ids) * sizeof *bits);
    else
        memset(bits, 0, token_set_words(v->n_ids) * sizeof *bits);
    for (unsigned byte = 0; byte < 256; byte++) {
        struct json_state one = *s;
        if (list->first[byte] < list->first[byte + 1] && json_push(&one, (uint8_t)byte))
            walk_tokens(v, list, list->first[byte], list->first[byte + 1], states, bits);
    }
}
