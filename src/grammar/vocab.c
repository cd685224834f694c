/* SPDX-License-Identifier: Apache-2.0 */
/* vocab.c: makes a struct grammar_vocab (vocab.h) in one allocation. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/vocab.h"

enum { CONTROL_BYTES = 4, CONTROL_FIRST = 0xff };

struct sorted_token {
    struct text_span bytes;
    uint32_t id;
    bool marked;
};

/* What a vocabulary needs. */
struct vocab_plan {
    struct sorted_token *tokens; /* [n]: the plain ones, then the marked, each by their bytes */
    uint8_t *controls;           /* the bytes of control tokens */
    uint32_t n, n_plain, n_ids;
    struct sorted_token
        *tails;        /* [n - n_plain] the marked ones by their tails, which are `bytes` */
    uint32_t nodes[3]; /* plain, marked, tails */
    size_t bytes;
};

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Writes the bytes of a control token to `out`. */
static struct text_span control_bytes(uint32_t id, uint8_t *out) {
    out[0] = CONTROL_FIRST;
    out[1] = (uint8_t)(id >> 16);
    out[2] = (uint8_t)(id >> 8);
    out[3] = (uint8_t)id;
    return (struct text_span){(const char *)out, CONTROL_BYTES};
}

/* Empty for a token that must never be chosen. A vocabulary whose texts have the byte 0xFF, which
 * no UTF-8 has, cannot write control tokens with it. */
static struct text_span usable_bytes(const struct tokenizer *t, uint32_t id, uint8_t *control) {
    const struct text_span none = {"", 0}, bytes = tokenizer_bytes(t, (int32_t)id);
    if (tokenizer_is_end(t, (int32_t)id) || bytes.len > TOKEN_BYTES_MAX)
        return none;
    if (tokenizer_is_control(t, (int32_t)id))
        return control_bytes(id, control);
    return bytes.len && memchr(bytes.data, CONTROL_FIRST, bytes.len) ? none : bytes;
}

static bool is_mark(uint8_t byte) {
    return byte < 0x20 || byte == '"' || byte == '\\' || byte == 0x7f;
}

/* The plain characters before the tail of a token, in bytes. */
static size_t head_bytes(struct text_span bytes) {
    const size_t whole = utf8_check(bytes.data, bytes.len);
    for (size_t i = 0; i < whole; i++)
        if (is_mark((uint8_t)bytes.data[i]))
            return i;
    return whole;
}

/* The characters of a plain token; 0: it is marked. */
static uint32_t plain_chars(struct text_span bytes) {
    const uint8_t *data = (const uint8_t *)bytes.data;
    const size_t head = head_bytes(bytes);
    uint32_t n = 0;
    if (head < bytes.len && (is_mark(data[head]) || utf8_length(data + head, bytes.len - head)))
        return 0;
    for (size_t i = 0; i < bytes.len; i++)
        n += (data[i] & 0xc0) != 0x80;
    return n;
}

static int compare_tokens(const void *a, const void *b) {
    const struct sorted_token *x = a, *y = b;
    if (x->marked != y->marked)
        return x->marked ? 1 : -1;
    const int order = span_compare(x->bytes, y->bytes);
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

static size_t shared_bytes(struct text_span a, struct text_span b) {
    size_t n = 0;
    while (n < a.len && n < b.len && a.data[n] == b.data[n])
        n++;
    return n;
}

/* Nodes that a token adds to its trie: a token with the bytes of the one before has a node of its
 * own, too. */
static size_t new_nodes(const struct sorted_token *tokens, uint32_t i) {
    const size_t same = i > 0 ? shared_bytes(tokens[i].bytes, tokens[i - 1].bytes) : 0;
    return same < tokens[i].bytes.len ? tokens[i].bytes.len - same : 1;
}

static void plan_free(struct vocab_plan *p) {
    mem_free(p->tokens);
    mem_free(p->tails);
    mem_free(p->controls);
}

static uint32_t count_nodes(const struct sorted_token *tokens, uint32_t n) {
    size_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += new_nodes(tokens, i);
    return (uint32_t)min_size(sum, UINT32_MAX);
}

static void plan_tails(struct vocab_plan *p) {
    const uint32_t n = p->n - p->n_plain;
    for (uint32_t i = 0; i < n; i++) {
        p->tails[i] = p->tokens[p->n_plain + i];
        const size_t head = head_bytes(p->tails[i].bytes);
        p->tails[i].bytes.data += head;
        p->tails[i].bytes.len -= head;
    }
    qsort(p->tails, n, sizeof *p->tails, compare_tokens);
}

static bool plan_make(struct vocab_plan *p, const struct tokenizer *t, uint32_t n_ids) {
    const uint32_t n = (uint32_t)min_size(tokenizer_size(t), n_ids);
    *p = (struct vocab_plan){.n_ids = n_ids};
    p->tokens = mem_calloc(n + 1, sizeof *p->tokens);
    p->controls = mem_alloc((size_t)n * CONTROL_BYTES + 1);
    p->tails = mem_calloc(n + 1, sizeof *p->tails);
    if (!p->tokens || !p->tails || !p->controls) {
        plan_free(p);
        return false;
    }
    for (uint32_t id = 0; id < n; id++) {
        uint8_t *control = p->controls + (size_t)id * CONTROL_BYTES;
        struct sorted_token token = {usable_bytes(t, id, control), id, false};
        if (!token.bytes.len)
            continue;
        token.marked = plain_chars(token.bytes) == 0;
        p->n_plain += !token.marked;
        p->bytes += token.bytes.len;
        p->tokens[p->n++] = token;
    }
    qsort(p->tokens, p->n, sizeof *p->tokens, compare_tokens);
    plan_tails(p);
    p->nodes[0] = count_nodes(p->tokens, p->n_plain);
    p->nodes[1] = count_nodes(p->tokens + p->n_plain, p->n - p->n_plain);
    p->nodes[2] = count_nodes(p->tails, p->n - p->n_plain);
    return true;
}

static size_t memory_of(const struct vocab_plan *p) {
    return sizeof(struct grammar_vocab) + token_set_words(p->n_ids) * sizeof(uint64_t) +
           ((size_t)p->nodes[0] + p->nodes[1] + p->nodes[2]) * sizeof(struct trie_node) +
           ((size_t)p->n_plain + p->n_ids + 1) * sizeof(uint32_t) + p->bytes;
}

/* ---- tries ----------------------------------------------------------------------------------- */

/* Bytes that are missing of the character at the end of the first d bytes. */
static unsigned left_after(struct text_span bytes, size_t d) {
    for (size_t back = 1; back <= 3 && back <= d; back++) {
        const uint8_t byte = (uint8_t)bytes.data[d - back];
        const size_t length = byte < 0xc2 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
        if (byte >= 0xc0)
            return length > back && byte < 0xf5 ? (unsigned)(length - back) : 0;
        if (byte < 0x80)
            return 0;
    }
    return 0;
}

/* Clears the flags of the nodes of a token's path that are not true of it. */
static void limit_flags(struct trie *t, const uint32_t *path, struct text_span bytes) {
    const size_t head = head_bytes(bytes);
    const bool plain = plain_chars(bytes) > 0;
    for (size_t d = 1; d <= bytes.len; d++) {
        struct trie_node *node = &t->nodes[path[d]];
        const size_t whole = d + node->left;
        if (!plain && head < whole)
            node->open = 0;
        if (whole < bytes.len &&
            !plain_chars((struct text_span){bytes.data + whole, bytes.len - whole}))
            node->calm = 0;
        if (!plain && node->left && utf8_check(bytes.data, bytes.len) < min_size(whole, bytes.len))
            node->calm = 0;
    }
}

static void trie_fill(struct trie *t, const struct sorted_token *tokens, uint32_t n) {
    uint32_t path[TOKEN_BYTES_MAX + 1]; /* the nodes of the token before, by depth */
    size_t depth = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct text_span bytes = tokens[i].bytes;
        const size_t fresh = new_nodes(tokens, i);
        for (size_t d = bytes.len - fresh + 1; d <= depth; d++)
            t->nodes[path[d]].skip = (t->n - path[d]) & (TRIE_NODES_MAX - 1);
        for (depth = bytes.len - fresh + 1; depth <= bytes.len; depth++) {
            path[depth] = t->n;
            t->nodes[t->n++] = (struct trie_node){
                .byte = (uint8_t)bytes.data[depth - 1],
                .calm = 1,
                .open = 1,
                .depth = (uint8_t)depth,
                .left = left_after(bytes, depth) & 3,
                .token = (depth == bytes.len ? tokens[i].id : TRIE_NO_TOKEN) & TRIE_NO_TOKEN,
            };
        }
        depth = bytes.len;
        limit_flags(t, path, bytes);
    }
    for (size_t d = 1; d <= depth; d++)
        t->nodes[path[d]].skip = (t->n - path[d]) & (TRIE_NODES_MAX - 1);
}

/* ---- create and destroy ---------------------------------------------------------------------- */

static void fill_bytes(struct grammar_vocab *v, const struct vocab_plan *p) {
    for (uint32_t i = 0; i < p->n; i++)
        v->at[p->tokens[i].id + 1] = (uint32_t)p->tokens[i].bytes.len;
    for (uint32_t id = 0; id < v->n_ids; id++)
        v->at[id + 1] += v->at[id];
    for (uint32_t i = 0; i < p->n; i++)
        memcpy(v->bytes + v->at[p->tokens[i].id], p->tokens[i].bytes.data, p->tokens[i].bytes.len);
}

/* Sorts the plain tokens by their number of characters, by counting. */
static void fill_text(struct grammar_vocab *v, const struct vocab_plan *p) {
    uint32_t *at = v->chars_at, next[TOKEN_BYTES_MAX + 2];
    for (uint32_t i = 0; i < p->n_plain; i++)
        at[plain_chars(p->tokens[i].bytes)]++;
    for (uint32_t chars = 0, sum = 0; chars <= TOKEN_BYTES_MAX + 1; chars++) {
        const uint32_t n = at[chars];
        at[chars] = next[chars] = sum;
        sum += n;
    }
    for (uint32_t i = 0; i < p->n_plain; i++) {
        const uint32_t id = p->tokens[i].id;
        v->by_chars[next[plain_chars(p->tokens[i].bytes)]++] = id;
        v->text[id / 64] |= 1ULL << id % 64;
    }
}

static void fill_vocab(struct grammar_vocab *v, const struct vocab_plan *p) {
    static atomic_uint_least64_t made;
    v->number = atomic_fetch_add(&made, 1) + 1;
    v->n_ids = p->n_ids;
    v->n_tokens = p->n;
    v->text = (uint64_t *)(v + 1);
    v->plain.nodes = (struct trie_node *)(v->text + token_set_words(p->n_ids));
    v->marked.nodes = v->plain.nodes + p->nodes[0];
    v->tails.nodes = v->marked.nodes + p->nodes[1];
    v->by_chars = (uint32_t *)(v->tails.nodes + p->nodes[2]);
    v->at = v->by_chars + p->n_plain;
    v->bytes = (uint8_t *)(v->at + p->n_ids + 1);
    v->plain.all = v->text;
    trie_fill(&v->plain, p->tokens, p->n_plain);
    trie_fill(&v->marked, p->tokens + p->n_plain, p->n - p->n_plain);
    trie_fill(&v->tails, p->tails, p->n - p->n_plain);
    ASSERT(v->plain.n == p->nodes[0] && v->marked.n == p->nodes[1] && v->tails.n == p->nodes[2]);
    fill_bytes(v, p);
    fill_text(v, p);
}

kvasir_status grammar_vocab_create(const struct tokenizer *t, uint32_t n_ids,
                                   struct grammar_vocab **out, kvasir_error *err) {
    struct vocab_plan plan;
    kvasir_status status = KVASIR_OK;
    if (!plan_make(&plan, t, n_ids))
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory for a vocabulary of %u tokens",
                    n_ids);
    struct grammar_vocab *v = NULL;
    if (n_ids > TRIE_NO_TOKEN || plan.nodes[0] >= TRIE_NODES_MAX || plan.nodes[1] >= TRIE_NODES_MAX)
        status = fail(err, KVASIR_ERR_UNSUPPORTED,
                      "a vocabulary of %u tokens is too large for grammars", n_ids);
    else if (!(v = mem_calloc(1, memory_of(&plan))))
        status =
            fail(err, KVASIR_ERR_MEMORY, "not enough memory for a vocabulary of %u tokens", n_ids);
    else
        fill_vocab(v, &plan);
    plan_free(&plan);
    if (v)
        *out = v;
    return status;
}

void grammar_vocab_destroy(struct grammar_vocab *v) {
    mem_free(v);
}

uint64_t grammar_vocab_bytes(const struct tokenizer *t, uint32_t n_ids) {
    struct vocab_plan plan;
    if (!plan_make(&plan, t, n_ids))
        return 0;
    const uint64_t bytes = memory_of(&plan);
    plan_free(&plan);
    return bytes;
}

struct text_span grammar_token_bytes(const struct grammar_vocab *v, int32_t token) {
    if (token < 0 || (uint32_t)token >= v->n_ids)
        return (struct text_span){"", 0};
    return (struct text_span){(const char *)v->bytes + v->at[token],
                              v->at[token + 1] - v->at[token]};
}

/* ---- texts ---------------------------------------------------------------------------------- */

void vocab_add_text(const struct grammar_vocab *v, uint32_t room, uint64_t *bits) {
    const uint32_t *at = v->chars_at, all = at[TOKEN_BYTES_MAX + 1];
    const uint32_t n = room >= TOKEN_BYTES_MAX ? all : at[room + 1];
    if (n < all / 2) {
        for (uint32_t i = 0; i < n; i++)
            bits[v->by_chars[i] / 64] |= 1ULL << v->by_chars[i] % 64;
        return;
    }
    for (size_t i = 0, words = token_set_words(v->n_ids); i < words; i++)
        bits[i] |= v->text[i];
    for (uint32_t i = n; i < all; i++)
        bits[v->by_chars[i] / 64] &= ~(1ULL << v->by_chars[i] % 64);
}
