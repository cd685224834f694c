/* SPDX-License-Identifier: Apache-2.0 */
/* guide.c: an answer that must be a text of a grammar, token by token; for one thread at a time.
 *
 * Where the grammar leaves one way to go on, the next tokens are those that the tokenizer writes
 * that text with. The last of them is left to the model unless the answer ends there, because it
 * might be written together with what follows. These forced tokens draw no random number, so they
 * are the same whether they are appended at once (jump-forward) or one in a step.
 *
 * Besides guide_init, memory is only allocated for states of a grammar that are reached for the
 * first time, and to encode a forced text of at most FORCED_BYTES.
 */
#include "engine/guide.h"

#include "engine/sampler.h"

enum { FORCED_BYTES = 512 }; /* of a forced text at a time */

static kvasir_status out_of_memory(kvasir_error *err) {
    return fail(err, KVASIR_ERR_MEMORY, "not enough memory for an answer of a grammar");
}

/* ---- vocabularies ---------------------------------------------------------------------------- */

uint64_t guide_vocab_bytes(const kvasir_tokenizer *text, uint32_t n_ids) {
    return text->tokenizer ? grammar_vocab_bytes(text->tokenizer, n_ids) +
                                 token_set_words(n_ids) * sizeof(uint64_t)
                           : 0;
}

kvasir_status guide_vocab_init(struct guide_vocab *v, const kvasir_tokenizer *text, uint32_t n_ids,
                               kvasir_error *err) {
    if (!text->tokenizer)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "the model has no tokenizer");
    *v = (struct guide_vocab){.tokenizer = text->tokenizer, .n_ids = n_ids};
    kvasir_status status = grammar_vocab_create(text->tokenizer, n_ids, &v->tokens, err);
    v->ends = mem_calloc(token_set_words(n_ids), sizeof *v->ends);
    if (status == KVASIR_OK && !v->ends)
        status = out_of_memory(err);
    if (status != KVASIR_OK) {
        guide_vocab_deinit(v);
        return status;
    }
    for (uint32_t i = 0; i < n_ids; i++)
        if (kvasir_token_is_end(text, (int32_t)i))
            v->ends[i / 64] |= 1ULL << i % 64;
    return KVASIR_OK;
}

void guide_vocab_deinit(struct guide_vocab *v) {
    grammar_vocab_destroy(v->tokens);
    mem_free(v->ends);
    *v = (struct guide_vocab){0};
}

/* ---- forced tokens --------------------------------------------------------------------------- */

static bool spells(const struct grammar_vocab *v, const int32_t *ids, size_t n,
                   struct text_span text) {
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const struct text_span bytes = grammar_token_bytes(v, ids[i]);
        if (!bytes.len || bytes.len > text.len - at ||
            memcmp(text.data + at, bytes.data, bytes.len) != 0)
            return false;
        at += bytes.len;
    }
    return at == text.len;
}

/* Fills g->forced with the tokens of `text` inside a text, without what a vocabulary puts before a
 * text's first word. `line` is a line end and the text. None if the tokenizer changes the text. */
static void encode(struct guide *g, struct text_span line) {
    const struct text_span text = {line.data + 1, line.len - 1};
    enum { BEFORE_MAX = 2 }; /* a space and the line end */
    for (int with_line = 0; with_line < 2 && !g->n_forced; with_line++) {
        const struct text_span s = with_line ? line : text;
        int32_t *ids = NULL;
        size_t n = 0;
        if (tokenizer_encode(g->vocab->tokenizer, s.data, s.len, 0, &ids, &n, NULL) != KVASIR_OK)
            return;
        for (size_t i = 0; i <= BEFORE_MAX && i < n && !g->n_forced; i++)
            if (spells(g->vocab->tokens, ids + i, n - i, text)) {
                ASSERT(n - i <= FORCED_BYTES);
                g->n_forced = (uint32_t)(n - i);
                memcpy(g->forced, ids + i, g->n_forced * sizeof *ids);
            }
        mem_free(ids);
    }
}

/* Whether nothing may come after `text`. */
static kvasir_status ends_with(const struct guide *g, struct text_span text, bool *ends,
                               kvasir_error *err) {
    struct grammar_place *p;
    size_t taken;
    TRY(grammar_place_copy(g->place, &p, err));
    const kvasir_status status = grammar_push(p, text, &taken, err);
    *ends = status == KVASIR_OK && grammar_place_end(p) == GRAMMAR_ENDED;
    grammar_place_destroy(p);
    return status;
}

/* A stop token of the request ends the answer, so it is never forced. */
static void cut_at_stop(struct guide *g) {
    const uint64_t *stops = g->stops;
    for (uint32_t i = 0; stops && i < g->n_forced; i++)
        if (stops[g->forced[i] / 64] >> g->forced[i] % 64 & 1)
            g->n_forced = i;
}

/* Finds the tokens that must come next. */
static kvasir_status find_forced(struct guide *g, kvasir_error *err) {
    bool ends;
    g->n_forced = g->next_forced = 0;
    g->forced_text.len = 0;
    if (!text_append(&g->forced_text, "\n", 1))
        return out_of_memory(err);
    TRY(grammar_forced(g->place, FORCED_BYTES, &g->forced_text, err));
    const struct text_span line = {g->forced_text.data, g->forced_text.len};
    if (line.len <= 1)
        return KVASIR_OK;
    encode(g, line);
    if (!g->n_forced)
        return KVASIR_OK;
    TRY(ends_with(g, (struct text_span){line.data + 1, line.len - 1}, &ends, err));
    g->n_forced -= !ends;
    cut_at_stop(g);
    return KVASIR_OK;
}

/* ---- guides ---------------------------------------------------------------------------------- */

kvasir_status guide_init(struct guide *g, const struct guide_vocab *v, const uint64_t *stops,
                         struct grammar *grammar, kvasir_error *err) {
    *g = (struct guide){.vocab = v, .stops = stops};
    g->forced = mem_calloc(FORCED_BYTES, sizeof *g->forced);
    kvasir_status status = grammar_begin(grammar, &g->place, err);
    if (status == KVASIR_OK && (!g->forced || !text_reserve(&g->forced_text, 1 + FORCED_BYTES)))
        status = out_of_memory(err);
    if (status == KVASIR_OK)
        status = find_forced(g, err);
    if (status != KVASIR_OK)
        guide_deinit(g);
    return status;
}

void guide_deinit(struct guide *g) {
    grammar_place_destroy(g->place);
    text_free(&g->forced_text);
    mem_free(g->forced);
    *g = (struct guide){0};
}

kvasir_status guide_allow(const struct guide *g, uint64_t *bits, kvasir_error *err) {
    const struct guide_vocab *v = g->vocab;
    uint64_t any = 0;
    TRY(grammar_allow(g->place, v->tokens, bits, err));
    const bool may_end = grammar_place_end(g->place) != GRAMMAR_OPEN;
    for (size_t i = 0, words = token_set_words(v->n_ids); i < words; i++) {
        const uint64_t stop = g->stops ? g->stops[i] : 0;
        bits[i] = may_end ? bits[i] | v->ends[i] | stop : bits[i] & ~stop;
        any |= bits[i];
    }
    if (any)
        return KVASIR_OK;
    return fail(err, KVASIR_ERR_UNSUPPORTED, "no token of the vocabulary can come next");
}

int32_t guide_take(struct guide *g) {
    ASSERT(guide_is_forced(g));
    return g->forced[g->next_forced++];
}

kvasir_status guide_add(struct guide *g, int32_t token, bool *complete, kvasir_error *err) {
    const struct text_span bytes = grammar_token_bytes(g->vocab->tokens, token);
    size_t taken = 0;
    *complete = false;
    TRY(grammar_push(g->place, bytes, &taken, err));
    ASSERT(taken == bytes.len);
    *complete = grammar_place_end(g->place) == GRAMMAR_ENDED;
    return *complete || guide_is_forced(g) ? KVASIR_OK : find_forced(g, err);
}

/* ---- the library's --------------------------------------------------------------------------- */

struct kvasir_guide {
    struct guide_vocab vocab;
    struct guide guide;
    uint64_t *allowed; /* [token_set_words(vocab.n_ids)] */
};

kvasir_status kvasir_guide_create(const kvasir_tokenizer *tokenizer, uint32_t vocab,
                                  const kvasir_grammar *grammar, kvasir_guide **out,
                                  kvasir_error *err) {
    struct kvasir_guide *g = mem_calloc(1, sizeof *g);
    if (!g)
        return out_of_memory(err);
    kvasir_status status = guide_vocab_init(&g->vocab, tokenizer, vocab, err);
    if (status == KVASIR_OK)
        status = guide_init(&g->guide, &g->vocab, NULL, grammar->grammar, err);
    g->allowed = mem_calloc(token_set_words(vocab), sizeof *g->allowed);
    if (status == KVASIR_OK && !g->allowed)
        status = out_of_memory(err);
    if (status == KVASIR_OK)
        *out = g;
    else
        kvasir_guide_destroy(g);
    return status;
}

void kvasir_guide_destroy(kvasir_guide *g) {
    if (!g)
        return;
    guide_deinit(&g->guide);
    guide_vocab_deinit(&g->vocab);
    mem_free(g->allowed);
    mem_free(g);
}

kvasir_status kvasir_guide_pick(kvasir_guide *g, kvasir_sampler *sampler, const float *logits,
                                int32_t *token, kvasir_error *err) {
    if (guide_is_forced(&g->guide)) {
        *token = guide_take(&g->guide);
        return KVASIR_OK;
    }
    TRY(guide_allow(&g->guide, g->allowed, err));
    sampler_allow(sampler, g->allowed);
    *token = kvasir_sampler_pick(sampler, logits);
    sampler_allow(sampler, NULL);
    return KVASIR_OK;
}

kvasir_status kvasir_guide_add(kvasir_guide *g, int32_t token, bool *complete, kvasir_error *err) {
    return guide_add(&g->guide, token, complete, err);
}
