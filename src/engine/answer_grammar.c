/* SPDX-License-Identifier: Apache-2.0 */
/* answer_grammar.c: answers that must be texts of a grammar.
 *
 *     engine's thread   ... pick token 7 | push it | forced? | forward pass of 7 | pick 8 ...
 *     mask thread                                 `-- set that has token 8 ---^
 *
 * After each token of a choice the set for the next one is made by the mask thread, one for all
 * choices, while the engine's thread runs the next step, and waits for it only before it picks.
 *
 * Forced tokens (guide.c) are appended at once, unless their logits are wanted (answer_jumps).
 *
 * Invariants (tests/unit/test_engine_grammar.c)
 *   ANSWER-1  A choice's guide, set and error belong to the mask thread from answer_want until its
 *             mask is MASK_READY, else to the thread that submits the request or the engine's.
 *   ANSWER-2  A choice is freed only after answer_forget.
 */
#include <string.h>

#include "engine/engine_internal.h"

/* ---- requests -------------------------------------------------------------------------------- */

static uint32_t vocab_of(const struct kvasir_engine *e) {
    return model_config(e->model->model)->vocab;
}

uint64_t answer_vocab_bytes(const struct kvasir_engine *e) {
    return guide_vocab_bytes(e->model->text, vocab_of(e));
}

kvasir_status answer_need_vocab(struct request *q, kvasir_error *err) {
    struct kvasir_engine *e = q->engine;
    kvasir_status status = KVASIR_OK;
    if (q->r.ignore_end)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "request.grammar",
                          "cannot be combined with ignore_end");
    pthread_mutex_lock(&e->vocab_mutex);
    if (!e->guide_vocab.tokenizer)
        status = guide_vocab_init(&e->guide_vocab, e->model->text, vocab_of(e), err);
    pthread_mutex_unlock(&e->vocab_mutex);
    return fail_of_field(status, err, "request.grammar");
}

kvasir_status answer_init(struct choice *c, const kvasir_grammar *g, kvasir_error *err) {
    const struct request *q = c->request;
    c->allowed = mem_calloc(token_set_words(vocab_of(q->engine)), sizeof *c->allowed);
    if (!c->allowed)
        return fail(err, KVASIR_ERR_MEMORY, "request: out of memory");
    sampler_allow(c->sampler, c->allowed);
    return fail_of_field(
        guide_init(&c->guide, &q->engine->guide_vocab, q->stop_set, g->grammar, err), err,
        "request.grammar");
}

void answer_deinit(struct choice *c) {
    ASSERT(c->mask != MASK_WANTED);
    guide_deinit(&c->guide);
    mem_free(c->allowed);
}

/* ---- sets of tokens: the mask thread --------------------------------------------------------- */

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
        c->failed = guide_allow(&c->guide, c->allowed, &c->why);
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
    if (!c->guide.place || guide_is_forced(&c->guide))
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
    if (c->guide.place)
        wait_for(c);
}

bool answer_can_pick(struct choice *c) {
    struct mask_worker *w = &c->request->engine->masks;
    if (guide_is_forced(&c->guide))
        return false;
    if (!c->guide.place)
        return true;
    pthread_mutex_lock(&w->mutex);
    const bool ready = c->mask == MASK_READY && c->failed == KVASIR_OK;
    pthread_mutex_unlock(&w->mutex);
    return ready;
}

bool answer_pick(struct choice *c, const float *logits, int32_t *token) {
    if (guide_is_forced(&c->guide)) {
        *token = guide_take(&c->guide);
        c->request->engine->masks.forced++;
        return true;
    }
    if (c->guide.place) {
        wait_for(c);
        ASSERT(c->mask == MASK_READY);
        c->mask = MASK_NONE;
        c->stuck = c->failed != KVASIR_OK;
    }
    if (!c->stuck)
        *token = c->picked ? c->token : kvasir_sampler_pick(c->sampler, logits);
    c->picked = false;
    return !c->stuck;
}

bool answer_add(struct choice *c, int32_t token) {
    bool complete;
    c->failed = guide_add(&c->guide, token, &complete, &c->why);
    c->stuck = c->failed != KVASIR_OK;
    return !c->stuck && !complete;
}
