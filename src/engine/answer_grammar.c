/* SPDX-License-Identifier: Apache-2.0 */
/* answer_grammar.c: answers that must be texts of a grammar.
 *
 *     engine's thread   ... pick token 7 | push it | forced? | forward pass of 7 | pick 8 ...
 *     mask thread                                 `-- set that has token 8 ---^
 *
 * After each token of a choice the set for the next one is made by the mask thread, one for all
 * choices, while the engine's thread runs the next step, and waits for it only before it picks.
 *
 * Where the grammar leaves one way to go on, the next tokens are those that the tokenizer writes
 * that text with. The last of them is left to the model unless the answer ends there, because it
 * might be written together with what follows. These forced tokens draw no random number, so they
 * are the same whether they are appended at once (jump-forward) or one in a step (answer_jumps).
 *
 * Invariants (tests/unit/test_engine_grammar.c)
 *   ANSWER-1  A choice's place, set and error belong to the mask thread from answer_want until its
 *             mask is MASK_READY, else to the thread that submits the request or the engine's.
 *   ANSWER-2  A choice is freed only after answer_forget.
 *   ANSWER-3  The engine's thread allocates only for states of a grammar that are reached for the
 *             first time and to encode a forced text of at most FORCED_BYTES.
 */
#include <string.h>

#include "engine/engine_internal.h"

enum { FORCED_BYTES = 512 }; /* of a forced text at a time */

/* ---- requests -------------------------------------------------------------------------------- */

static uint32_t vocab_of(const struct kvasir_engine *e) {
    return model_config(e->model->model)->vocab;
}

uint64_t answer_vocab_bytes(const struct kvasir_engine *e) {
    const struct tokenizer *t = e->model->text->tokenizer;
    return t ? grammar_vocab_bytes(t, vocab_of(e)) + token_set_words(vocab_of(e)) * sizeof *e->ends
             : 0;
}

/* Under json_mutex. */
static kvasir_status make_vocab(struct kvasir_engine *e, kvasir_error *err) {
    const kvasir_tokenizer *text = e->model->text;
    const uint32_t vocab = vocab_of(e);
    if (!e->grammar_vocab)
        TRY(grammar_vocab_create(text->tokenizer, vocab, &e->grammar_vocab, err));
    if (e->ends)
        return KVASIR_OK;
    e->ends = mem_calloc(token_set_words(vocab), sizeof *e->ends);
    if (!e->ends)
        return fail(err, KVASIR_ERR_MEMORY, "request: out of memory");
    for (uint32_t i = 0; i < vocab; i++)
        if (kvasir_token_is_end(text, (int32_t)i))
            e->ends[i / 64] |= 1ULL << i % 64;
    return KVASIR_OK;
}

kvasir_status answer_need_vocab(struct request *q, kvasir_error *err) {
    struct kvasir_engine *e = q->engine;
    if (q->r.ignore_end || q->r.json_object)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "request.grammar",
                          "cannot be combined with ignore_end or json_object");
    if (!e->model->text->tokenizer)
        return fail_field(err, KVASIR_ERR_UNSUPPORTED, "request.grammar",
                          "the model has no tokenizer");
    pthread_mutex_lock(&e->json_mutex);
    const kvasir_status status = make_vocab(e, err);
    q->vocab = e->grammar_vocab;
    pthread_mutex_unlock(&e->json_mutex);
    return status;
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

/* Fills c->forced with the tokens of `text` inside a text, without what a vocabulary puts before a
 * text's first word. `line` is a line end and the text. None if the tokenizer changes the text. */
static void encode(struct choice *c, struct text_span line) {
    const struct request *q = c->request;
    const struct tokenizer *t = q->engine->model->text->tokenizer;
    const struct text_span text = {line.data + 1, line.len - 1};
    enum { BEFORE_MAX = 2 }; /* a space and the line end */
    for (int with_line = 0; with_line < 2 && !c->n_forced; with_line++) {
        const struct text_span s = with_line ? line : text;
        int32_t *ids = NULL;
        size_t n = 0;
        if (tokenizer_encode(t, s.data, s.len, 0, &ids, &n, NULL) != KVASIR_OK)
            return;
        for (size_t i = 0; i <= BEFORE_MAX && i < n && !c->n_forced; i++)
            if (spells(q->vocab, ids + i, n - i, text)) {
                ASSERT(n - i <= FORCED_BYTES);
                c->n_forced = (uint32_t)(n - i);
                memcpy(c->forced, ids + i, c->n_forced * sizeof *ids);
            }
        mem_free(ids);
    }
}

/* Whether nothing may come after `text`. */
static kvasir_status ends_with(const struct choice *c, struct text_span text, bool *ends,
                               kvasir_error *err) {
    struct grammar_place *p;
    size_t taken;
    TRY(grammar_place_copy(c->place, &p, err));
    const kvasir_status status = grammar_push(p, text, &taken, err);
    *ends = status == KVASIR_OK && grammar_place_end(p) == GRAMMAR_ENDED;
    grammar_place_destroy(p);
    return status;
}

/* A stop token of the request ends the answer, so it is never forced. */
static void cut_at_stop(struct choice *c) {
    const uint64_t *stops = c->request->stop_set;
    for (uint32_t i = 0; stops && i < c->n_forced; i++)
        if (stops[c->forced[i] / 64] >> c->forced[i] % 64 & 1)
            c->n_forced = i;
}

/* Finds the tokens that must come next. */
static kvasir_status find_forced(struct choice *c, kvasir_error *err) {
    bool ends;
    c->n_forced = c->next_forced = 0;
    c->forced_text.len = 0;
    if (!text_append(&c->forced_text, "\n", 1))
        return fail(err, KVASIR_ERR_MEMORY, "request: out of memory");
    TRY(grammar_forced(c->place, FORCED_BYTES, &c->forced_text, err));
    const struct text_span line = {c->forced_text.data, c->forced_text.len};
    if (line.len <= 1)
        return KVASIR_OK;
    encode(c, line);
    if (!c->n_forced)
        return KVASIR_OK;
    TRY(ends_with(c, (struct text_span){line.data + 1, line.len - 1}, &ends, err));
    c->n_forced -= !ends;
    cut_at_stop(c);
    return KVASIR_OK;
}

kvasir_status answer_init(struct choice *c, const kvasir_grammar *g, kvasir_error *err) {
    const size_t words = token_set_words(vocab_of(c->request->engine));
    TRY(grammar_begin(g->grammar, &c->place, err));
    c->allowed = mem_calloc(words, sizeof *c->allowed);
    c->forced = mem_calloc(FORCED_BYTES, sizeof *c->forced);
    if (!c->allowed || !c->forced || !text_reserve(&c->forced_text, 1 + FORCED_BYTES))
        return fail(err, KVASIR_ERR_MEMORY, "request: out of memory");
    sampler_allow(c->sampler, c->allowed);
    return fail_of_field(find_forced(c, err), err, "request.grammar");
}

void answer_deinit(struct choice *c) {
    ASSERT(c->mask != MASK_WANTED);
    grammar_place_destroy(c->place);
    text_free(&c->forced_text);
    mem_free(c->allowed);
    mem_free(c->forced);
}

/* ---- sets of tokens: the mask thread --------------------------------------------------------- */

/* Fills c->allowed with the tokens that may come next. */
static kvasir_status make_mask(const struct kvasir_engine *e, struct choice *c, kvasir_error *err) {
    const uint64_t *stops = c->request->stop_set;
    uint64_t any = 0;
    TRY(grammar_allow(c->place, c->request->vocab, c->allowed, err));
    const bool may_end = grammar_place_end(c->place) != GRAMMAR_OPEN;
    for (size_t i = 0, words = token_set_words(vocab_of(e)); i < words; i++) {
        const uint64_t stop = stops ? stops[i] : 0;
        c->allowed[i] = may_end ? c->allowed[i] | e->ends[i] | stop : c->allowed[i] & ~stop;
        any |= c->allowed[i];
    }
    if (any)
        return KVASIR_OK;
    return fail(err, KVASIR_ERR_UNSUPPORTED,
                "no token of the vocabulary can follow token %u of the answer", c->generated);
}

static void *mask_thread(void *user) {
    struct kvasir_engine *e = user;
    struct mask_worker *w = &e->masks;
    pthread_mutex_lock(&w->mutex);
    for (;;) {
        while (!w->first && !w->stop)
            pthread_cond_wait(&w->wanted, &w->mutex);
        struct choice *c = w->first;
        if (!c)
            break;
        w->first = c->next_mask;
        pthread_mutex_unlock(&w->mutex);
        const double start = clock_seconds();
        c->failed = make_mask(e, c, &c->why);
        const double seconds = clock_seconds() - start;
        pthread_mutex_lock(&w->mutex);
        c->mask = MASK_READY;
        w->made++;
        w->seconds += seconds;
        pthread_cond_signal(&w->ready);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

kvasir_status masks_start(struct kvasir_engine *e, kvasir_error *err) {
    struct mask_worker *w = &e->masks;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->wanted, NULL);
    pthread_cond_init(&w->ready, NULL);
    w->exists = true;
    w->runs = pthread_create(&w->thread, NULL, mask_thread, e) == 0;
    return w->runs ? KVASIR_OK : fail(err, KVASIR_ERR_MEMORY, "engine: cannot start a thread");
}

void masks_stop(struct kvasir_engine *e) {
    struct mask_worker *w = &e->masks;
    if (!w->exists)
        return;
    pthread_mutex_lock(&w->mutex);
    w->stop = true;
    pthread_cond_signal(&w->wanted);
    pthread_mutex_unlock(&w->mutex);
    if (w->runs)
        pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->wanted);
    pthread_cond_destroy(&w->ready);
    pthread_mutex_destroy(&w->mutex);
}

void masks_stats(struct kvasir_engine *e, kvasir_engine_stats *stats) {
    struct mask_worker *w = &e->masks;
    pthread_mutex_lock(&w->mutex);
    stats->masks = w->made;
    stats->mask_seconds = w->seconds;
    pthread_mutex_unlock(&w->mutex);
    stats->mask_waits = w->waits;
    stats->mask_wait_seconds = w->wait_seconds;
    stats->forced_tokens = w->forced;
}

/* ---- on the engine's thread ------------------------------------------------------------------ */

void answer_want(struct choice *c) {
    struct mask_worker *w = &c->request->engine->masks;
    if (!c->place || answer_is_forced(c))
        return;
    pthread_mutex_lock(&w->mutex);
    struct choice **at = &w->first;
    while (*at)
        at = &(*at)->next_mask;
    *at = c;
    c->next_mask = NULL;
    c->mask = MASK_WANTED;
    pthread_cond_signal(&w->wanted);
    pthread_mutex_unlock(&w->mutex);
}

/* Until the mask thread has done with it. */
static void wait_for(struct choice *c) {
    struct mask_worker *w = &c->request->engine->masks;
    pthread_mutex_lock(&w->mutex);
    if (c->mask == MASK_WANTED) {
        const double start = clock_seconds();
        while (c->mask == MASK_WANTED)
            pthread_cond_wait(&w->ready, &w->mutex);
        w->waits++;
        w->wait_seconds += clock_seconds() - start;
    }
    pthread_mutex_unlock(&w->mutex);
}

void answer_forget(struct choice *c) {
    if (c->place)
        wait_for(c);
}

bool answer_pick(struct choice *c, const float *logits, int32_t *token) {
    if (answer_is_forced(c)) {
        *token = c->forced[c->next_forced++];
        c->request->engine->masks.forced++;
        return true;
    }
    if (c->place) {
        wait_for(c);
        ASSERT(c->mask == MASK_READY);
        c->mask = MASK_NONE;
        c->stuck = c->failed != KVASIR_OK;
    }
    if (!c->stuck)
        *token = kvasir_sampler_pick(c->sampler, logits);
    return !c->stuck;
}

bool answer_add(struct choice *c, int32_t token) {
    const struct text_span bytes = grammar_token_bytes(c->request->vocab, token);
    size_t taken = 0;
    c->failed = grammar_push(c->place, bytes, &taken, &c->why);
    ASSERT(c->failed || taken == bytes.len);
    if (!c->failed && grammar_place_end(c->place) == GRAMMAR_ENDED)
        return false;
    if (!c->failed && !answer_is_forced(c))
        c->failed = find_forced(c, &c->why);
    c->stuck = c->failed != KVASIR_OK;
    return !c->stuck;
}
