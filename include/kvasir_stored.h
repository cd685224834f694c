/* SPDX-License-Identifier: Apache-2.0 */
/* kvasir_stored.h: what may be asked of the prefixes that an engine stores: to forget them, what a
 * prompt would find, to hold some of them; kvasir_engine.h includes it. Calls are for any thread,
 * and take effect between two steps. */
#ifndef KVASIR_PUBLIC_STORED_H
#define KVASIR_PUBLIC_STORED_H

#ifndef KVASIR_PUBLIC_ENGINE_H
#error "include <kvasir.h>"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- forgetting ------------------------------------------------------------------------------ */

/* From any thread: forgets stored prefixes that no running sequence uses, of one salt, or all if
 * NULL. */
KVASIR_API void kvasir_engine_forget(kvasir_engine *engine, const char *salt);
/* Whether something that was to be forgotten may still be in memory or in a store below it: the
 * current step has not ended, or a store takes its time. A store that is down is told again as long
 * as the engine lives; it is not read meanwhile. From any thread. */
KVASIR_API bool kvasir_engine_is_forgetting(kvasir_engine *engine);

/* What memory no longer has: stored prompts, their tokens, and bytes of the budget. */
typedef struct kvasir_forgotten {
    uint64_t entries, tokens, bytes;
} kvasir_forgotten;
typedef void kvasir_forgotten_fn(void *user, const kvasir_forgotten *what);
/* The same for n salts (0: all). Calls fn on the engine's thread once memory has forgotten, when
 * the current step has ended; stores below it do so next. The salts are borrowed until then.
 * KVASIR_ERR_MEMORY: nothing is forgotten, fn is not called. */
KVASIR_API kvasir_status kvasir_engine_forget_counted(kvasir_engine *engine,
                                                      const char *const *salts, size_t n,
                                                      kvasir_forgotten_fn *fn, void *user,
                                                      kvasir_error *err);

/* ---- explaining ------------------------------------------------------------------------------ */

/* What a prompt would find at this moment. */
typedef struct kvasir_explanation {
    uint32_t prompt_tokens;
    uint32_t common_tokens; /* the first so many are stored in memory */
    uint32_t usable_tokens; /* a request would begin with so many of them */
    /* The same with pages of stores that answer at once (a folder, not a remote store); a load need
     * not pay. */
    uint32_t store_tokens;
    kvasir_miss why;     /* not more in memory */
    int32_t token;       /* of the prompt, after those in common; -1: it ends there */
    int32_t other_token; /* that follows them in memory; -1: none */
    /* With other_salts: as common_tokens, the most under any other salt */
    uint32_t other_salt_tokens;
} kvasir_explanation;
typedef void kvasir_explained_fn(void *user, const kvasir_explanation *explanation);
/* From any thread: calls fn on the engine's thread when the current step has ended. salt and tokens
 * are borrowed until then. other_salts: looks at all salts; what they have is not for whoever knows
 * only this one. On failure fn is not called. */
KVASIR_API kvasir_status kvasir_engine_explain(kvasir_engine *engine, const char *salt,
                                               const int32_t *tokens, size_t n, bool other_salts,
                                               kvasir_explained_fn *fn, void *user,
                                               kvasir_error *err);

/* ---- holding --------------------------------------------------------------------------------- */

/* What is stored of these tokens makes room in memory after all else from now on, as what a request
 * pins and within the same limit, until it is released or forgotten. Nothing is computed or stored.
 * From any thread; salt and tokens are copied; it happens when the current step has ended. */
KVASIR_API kvasir_status kvasir_engine_hold(kvasir_engine *engine, const char *salt,
                                            const int32_t *tokens, size_t n, kvasir_error *err);
/* Ends that for the tokens after the first `keep`. Holds are not counted: if others hold tokens
 * that begin likewise, `keep` says how many. What requests pinned stays pinned. */
KVASIR_API kvasir_status kvasir_engine_release(kvasir_engine *engine, const char *salt,
                                               const int32_t *tokens, size_t n, size_t keep,
                                               kvasir_error *err);

#ifdef __cplusplus
}
#endif
#endif
