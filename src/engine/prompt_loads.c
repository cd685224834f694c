/* SPDX-License-Identifier: Apache-2.0 */
/* prompt_loads.c: prompt-cache files of requests, read by a thread of its own.
 *
 *     load thread      page 0 | page 1 | page 2 | ...      makes tiles of a file's rows
 *                          \        \
 *     slots              [ tiles | tiles | free | free ]   of one file at a time
 *                              \        \
 *     engine's thread       prepares pages, copies the tiles, commits (SCHED-9)
 *
 * So a request whose file is read takes part in no step, and other requests go on. Files are read
 * in the order in which their requests were admitted. The slots are in the budget from the start
 * and made with the first file.
 *
 * Invariants (tests/unit/test_prompt_loads.c)
 *   LOAD-1  The load thread reads the file and the slots, never the cache or a sequence.
 *   LOAD-2  A file is not read any more once loads_dropped has returned: its request may end.
 */
#include "engine/engine_internal.h"

enum { SLOTS_MAX = 8, BUDGET_PART = 128 };

/* ---- the load thread ------------------------------------------------------------------------- */

static uint32_t pages_of(const struct choice *c) {
    return (c->task.from_host + TILE_TOKENS - 1) / TILE_TOKENS;
}

/* Whether a page of the first file can be made. */
static bool has_work(const struct page_loader *w) {
    return w->first && w->first->load_status == KVASIR_OK && w->made < pages_of(w->first) &&
           w->made - w->taken < w->n_slots;
}

static uint8_t *slot_of(const struct page_loader *w, uint32_t page) {
    return w->slots + (size_t)(page % w->n_slots) * w->slot_bytes;
}

static void *load_thread(void *user) {
    struct kvasir_engine *e = user;
    struct page_loader *w = &e->loads;
    pthread_mutex_lock(&w->mutex);
    for (;;) {
        while (!w->stop && !has_work(w))
            pthread_cond_wait(&w->wanted, &w->mutex);
        if (w->stop)
            break;
        struct choice *c = w->first;
        const uint32_t page = w->made;
        w->busy = true;
        pthread_mutex_unlock(&w->mutex);
        const kvasir_status status =
            prompt_load_make(c->load, page * TILE_TOKENS, slot_of(w, page), &c->load_error);
        pthread_mutex_lock(&w->mutex);
        w->busy = false;
        c->load_status = status;
        w->made++;
        pthread_cond_signal(&w->idle);
        pthread_mutex_unlock(&w->mutex);
        engine_wake(e);
        pthread_mutex_lock(&w->mutex);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

uint64_t loads_bytes(const struct kvasir_engine *e, uint64_t budget) {
    const uint64_t page = kv_cache_need_bytes(e->ctx->cache, TILE_TOKENS, 1),
                   part = budget / BUDGET_PART / page;
    return page * (part < 1 ? 1 : part < SLOTS_MAX ? part : SLOTS_MAX);
}

kvasir_status loads_start(struct kvasir_engine *e, uint64_t bytes, kvasir_error *err) {
    struct page_loader *w = &e->loads;
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->wanted, NULL);
    pthread_cond_init(&w->idle, NULL);
    w->bytes = bytes;
    w->exists = true;
    w->runs = pthread_create(&w->thread, NULL, load_thread, e) == 0;
    return w->runs ? KVASIR_OK : fail(err, KVASIR_ERR_MEMORY, "engine: cannot start a thread");
}

void loads_stop(struct kvasir_engine *e) {
    struct page_loader *w = &e->loads;
    if (!w->exists)
        return;
    pthread_mutex_lock(&w->mutex);
    w->stop = true;
    pthread_cond_signal(&w->wanted);
    pthread_mutex_unlock(&w->mutex);
    if (w->runs)
        pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->wanted);
    pthread_cond_destroy(&w->idle);
    pthread_mutex_destroy(&w->mutex);
    mem_free(w->slots);
}

/* ---- on the engine's thread ------------------------------------------------------------------ */

static kvasir_status make_slots(struct page_loader *w, const struct prompt_load *l,
                                kvasir_error *err) {
    if (w->slots)
        return KVASIR_OK;
    w->slot_bytes = prompt_load_page_bytes(l);
    ASSERT(w->slot_bytes <= w->bytes); /* every file of a model and context has the same pages */
    w->slots = mem_alloc(w->bytes);
    w->n_slots = (uint32_t)(w->bytes / w->slot_bytes);
    return w->slots ? KVASIR_OK : fail(err, KVASIR_ERR_MEMORY, "prompt cache: out of memory");
}

kvasir_status loads_begin(struct choice *c, struct kv_seq **out, kvasir_error *err) {
    struct kvasir_engine *e = c->request->engine;
    struct page_loader *w = &e->loads;
    ASSERT(!c->load);
    TRY(prompt_load_begin(e->ctx, c->request->r.prompt_cache, false, &c->load, out, err));
    const kvasir_status status = make_slots(w, c->load, err);
    if (status != KVASIR_OK) {
        prompt_load_destroy(c->load);
        c->load = NULL;
        seq_destroy(*out);
        *out = NULL;
        return status;
    }
    c->load_status = KVASIR_OK;
    c->next_load = NULL;
    pthread_mutex_lock(&w->mutex);
    struct choice **at = &w->first;
    while (*at)
        at = &(*at)->next_load;
    *at = c;
    if (w->first == c)
        w->made = w->taken = 0;
    pthread_cond_signal(&w->wanted);
    pthread_mutex_unlock(&w->mutex);
    return KVASIR_OK;
}

void loads_dropped(struct choice *c) {
    struct page_loader *w = &c->request->engine->loads;
    if (!c->load)
        return;
    pthread_mutex_lock(&w->mutex);
    struct choice **at = &w->first;
    while (*at && *at != c)
        at = &(*at)->next_load;
    const bool first = at == &w->first;
    while (first && w->busy)
        pthread_cond_wait(&w->idle, &w->mutex);
    if (*at)
        *at = c->next_load;
    if (first) {
        w->made = w->taken = 0;
        pthread_cond_signal(&w->wanted);
    }
    pthread_mutex_unlock(&w->mutex);
    prompt_load_destroy(c->load);
    c->load = NULL;
}

uint32_t loads_ready(struct choice *c) {
    struct page_loader *w = &c->request->engine->loads;
    uint32_t rows = 0;
    pthread_mutex_lock(&w->mutex);
    if (w->first == c && w->made > w->taken) {
        const uint32_t at = w->taken * TILE_TOKENS, end = w->made * TILE_TOKENS;
        rows = (end < c->task.from_host ? end : c->task.from_host) - at;
    }
    pthread_mutex_unlock(&w->mutex);
    return rows;
}

kvasir_status loads_fill(struct choice *c, uint32_t rows, kvasir_error *err) {
    struct page_loader *w = &c->request->engine->loads;
    struct kv_seq *seq = c->task.seq;
    const uint32_t first = seq_length(seq) / TILE_TOKENS,
                   n = (rows + TILE_TOKENS - 1) / TILE_TOKENS;
    pthread_mutex_lock(&w->mutex);
    ASSERT(w->first == c && w->taken == first && w->made >= first + n);
    const kvasir_status made = c->load_status; /* of a page that may be among these */
    pthread_mutex_unlock(&w->mutex);
    if (made != KVASIR_OK) {
        *err = c->load_error;
        return made;
    }
    for (uint32_t i = 0; i < n; i++)
        prompt_load_put(c->load, seq, first + i, slot_of(w, first + i));
    TRY(prompt_load_commit(c->load, seq, rows, err));
    if (seq_length(seq) == c->task.from_host) {
        loads_dropped(c);
        return KVASIR_OK;
    }
    pthread_mutex_lock(&w->mutex);
    w->taken += n;
    pthread_cond_signal(&w->wanted);
    pthread_mutex_unlock(&w->mutex);
    return KVASIR_OK;
}
