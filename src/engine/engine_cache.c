/* SPDX-License-Identifier: Apache-2.0 */
/* engine_cache.c: what other threads ask of stored prefixes: to forget them, what a prompt would
 * find; and the time, after which some of them expire.
 *
 *     forget              leaves an order
 *     forget_counted      leaves a call, which the engine's thread answers between two steps
 *     explain             likewise
 *     hold, release       leave calls that nobody waits for
 */
#include <string.h>
#include <time.h>

#include "engine/engine_internal.h"

/* ---- calls ----------------------------------------------------------------------------------- */

struct engine_call {
    struct engine_call *next;
    void (*run)(struct kvasir_engine *e, const struct engine_call *c);
    const char *const *salts; /* [n_salts] */
    size_t n_salts;
    const char *salt;
    const int32_t *tokens; /* [n_tokens] */
    uint32_t n_tokens;
    bool other_salts;
    uint32_t keep;
    kvasir_forgotten_fn *forgotten;
    kvasir_explained_fn *explained;
    void *user;
};

/* Takes c; NULL: out of memory. */
static kvasir_status enqueue(struct kvasir_engine *e, struct engine_call *c, kvasir_error *err) {
    if (!c)
        return fail(err, KVASIR_ERR_MEMORY, "engine: out of memory");
    pthread_mutex_lock(&e->mutex);
    struct engine_call **end = &e->calls;
    while (*end)
        end = &(*end)->next;
    *end = c;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->mutex);
    return KVASIR_OK;
}

static kvasir_status call(struct kvasir_engine *e, const struct engine_call *what,
                          kvasir_error *err) {
    struct engine_call *c = mem_alloc(sizeof *c);
    if (c)
        *c = *what;
    return enqueue(e, c, err);
}

void cache_run_calls(struct kvasir_engine *e, struct engine_call *calls) {
    for (struct engine_call *c = calls, *next; c; c = next) {
        next = c->next;
        c->run(e, c);
        mem_free(c);
    }
}

/* ---- forgetting ------------------------------------------------------------------------------ */

static void forget_salt(struct kvasir_engine *e, const char *salt) {
    const size_t len = salt ? strlen(salt) : 0;
    if (e->tiers)
        tiers_forget(e->tiers, salt, len);
    if (e->tree)
        tree_forget(e->tree, salt, len);
}

void cache_forget_orders(struct kvasir_engine *e, bool all, struct forget_order *orders) {
    if (all)
        forget_salt(e, NULL);
    for (struct forget_order *o = orders, *next; o; o = next) {
        next = o->next;
        forget_salt(e, o->salt);
        mem_free(o);
    }
    pthread_mutex_lock(&e->mutex);
    e->forgetting = false;
    pthread_mutex_unlock(&e->mutex);
}

void kvasir_engine_forget(kvasir_engine *e, const char *salt) {
    const size_t size = salt ? strlen(salt) + 1 : 0;
    struct forget_order *order = salt ? mem_alloc(sizeof *order + size) : NULL;
    if (order)
        memcpy(order->salt, salt, size);
    pthread_mutex_lock(&e->mutex);
    if (order) {
        order->next = e->forget;
        e->forget = order;
    } else { /* all; also if memory is short: better to forget too much than too little */
        e->forget_all = true;
    }
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->mutex);
}

bool kvasir_engine_is_forgetting(kvasir_engine *e) {
    pthread_mutex_lock(&e->mutex);
    const bool some = e->forget || e->forget_all || e->forgetting;
    pthread_mutex_unlock(&e->mutex);
    return some || (e->tiers && tiers_are_forgetting(e->tiers));
}

static void run_forget(struct kvasir_engine *e, const struct engine_call *c) {
    kvasir_forgotten what = {0};
    if (e->tiers) /* what waits to be written is pinned, and would not count as an entry */
        tiers_relent(e->tiers);
    const struct tree_stats before = e->tree ? tree_stats(e->tree) : (struct tree_stats){0};
    const uint64_t bytes = e->tree ? tree_stored_bytes(e->tree) : 0;
    if (c->n_salts == 0)
        forget_salt(e, NULL);
    for (size_t i = 0; i < c->n_salts; i++)
        forget_salt(e, c->salts[i]);
    if (e->tree) {
        const struct tree_stats after = tree_stats(e->tree);
        what = (kvasir_forgotten){.entries = before.entries - after.entries,
                                  .tokens = before.tokens - after.tokens,
                                  .bytes = bytes - tree_stored_bytes(e->tree)};
    }
    c->forgotten(c->user, &what);
}

kvasir_status kvasir_engine_forget_counted(kvasir_engine *e, const char *const *salts, size_t n,
                                           kvasir_forgotten_fn *fn, void *user, kvasir_error *err) {
    const struct engine_call c = {
        .run = run_forget, .salts = salts, .n_salts = n, .forgotten = fn, .user = user};
    return call(e, &c, err);
}

/* ---- explaining ------------------------------------------------------------------------------ */

static void run_explain(struct kvasir_engine *e, const struct engine_call *c) {
    const size_t len = strlen(c->salt);
    struct tree_miss miss = {KVASIR_MISS_NOT_LOOKED_UP, -1};
    struct tree_hit hit = {0};
    if (e->tree)
        hit = tree_explain(e->tree, c->salt, len, c->tokens, c->n_tokens, &miss);
    kvasir_explanation x = {.prompt_tokens = c->n_tokens,
                            .common_tokens = hit.common,
                            .usable_tokens = hit.length,
                            .store_tokens = hit.length,
                            .why = miss.why,
                            .token = hit.common < c->n_tokens ? c->tokens[hit.common] : -1,
                            .other_token = miss.other};
    if (e->tiers)
        x.store_tokens =
            max_u32(hit.length, tiers_look(e->tiers, c->salt, len, c->tokens, c->n_tokens));
    if (e->tree && c->other_salts)
        x.other_salt_tokens = tree_common_elsewhere(e->tree, c->salt, len, c->tokens, c->n_tokens);
    c->explained(c->user, &x);
}

kvasir_status kvasir_engine_explain(kvasir_engine *e, const char *salt, const int32_t *tokens,
                                    size_t n, bool other_salts, kvasir_explained_fn *fn, void *user,
                                    kvasir_error *err) {
    if (!tokens || n == 0 || n > INT32_MAX)
        return fail(err, KVASIR_ERR_ARGUMENT, "the prompt has no tokens, or too many");
    TRY(seq_check_tokens(e->ctx, tokens, n, err));
    const struct engine_call c = {.run = run_explain,
                                  .salt = salt ? salt : "",
                                  .tokens = tokens,
                                  .n_tokens = (uint32_t)n,
                                  .other_salts = other_salts,
                                  .explained = fn,
                                  .user = user};
    return call(e, &c, err);
}

/* ---- holding --------------------------------------------------------------------------------- */

static void run_hold(struct kvasir_engine *e, const struct engine_call *c) {
    if (e->tree)
        tree_hold(e->tree, c->salt, strlen(c->salt), c->tokens, c->n_tokens);
}

static void run_release(struct kvasir_engine *e, const struct engine_call *c) {
    if (e->tree)
        tree_release(e->tree, c->salt, strlen(c->salt), c->tokens, c->n_tokens, c->keep);
}

/* With copies of salt and tokens behind it. */
static kvasir_status call_with_copies(struct kvasir_engine *e, const struct engine_call *what,
                                      const int32_t *tokens, size_t n, kvasir_error *err) {
    const size_t salt_size = strlen(what->salt) + 1;
    if (!tokens || n == 0 || n > INT32_MAX)
        return fail(err, KVASIR_ERR_ARGUMENT, "there are no tokens, or too many");
    TRY(seq_check_tokens(e->ctx, tokens, n, err));
    struct engine_call *c = mem_alloc(sizeof *c + n * sizeof *tokens + salt_size);
    if (c) {
        int32_t *ids = (int32_t *)(c + 1);
        char *salt = (char *)(ids + n);
        memcpy(ids, tokens, n * sizeof *ids);
        memcpy(salt, what->salt, salt_size);
        *c = *what;
        c->tokens = ids;
        c->n_tokens = (uint32_t)n;
        c->salt = salt;
    }
    return enqueue(e, c, err);
}

kvasir_status kvasir_engine_hold(kvasir_engine *e, const char *salt, const int32_t *tokens,
                                 size_t n, kvasir_error *err) {
    const struct engine_call c = {.run = run_hold, .salt = salt ? salt : ""};
    return call_with_copies(e, &c, tokens, n, err);
}

kvasir_status kvasir_engine_release(kvasir_engine *e, const char *salt, const int32_t *tokens,
                                    size_t n, size_t keep, kvasir_error *err) {
    const struct engine_call c = {
        .run = run_release, .salt = salt ? salt : "", .keep = (uint32_t)min_size(keep, UINT32_MAX)};
    return call_with_copies(e, &c, tokens, n, err);
}

/* ---- time ------------------------------------------------------------------------------------ */

bool cache_tell_time(struct kvasir_engine *e) {
    enum { NODES = 256 }; /* looked at between two steps */
    return e->tree && tree_expire(e->tree, (uint64_t)time(NULL), NODES);
}

double cache_next_expiry(const struct kvasir_engine *e) {
    const uint64_t at = e->tree ? tree_next_expiry(e->tree) : TREE_FOREVER,
                   now = (uint64_t)time(NULL);
    if (at == TREE_FOREVER)
        return 0;
    return at > now ? (double)(at - now) : 1; /* it may be in use for a while */
}
