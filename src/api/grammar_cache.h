/* SPDX-License-Identifier: Apache-2.0 */
/* grammar_cache.h: compiled grammars, kept for later requests by their kind and text.
 *
 * Bounded in number and bytes: those used longest ago go first. What compiling allocates is charged
 * to the request that asked for it (util/account.h) until that ends. Any thread may call.
 */
#ifndef API_GRAMMAR_CACHE_H
#define API_GRAMMAR_CACHE_H

#include <kvasir.h>

#include "util/util.h"

struct grammar_cache;
/* 0, 0: 64 grammars and 256 MiB. NULL: out of memory. */
struct grammar_cache *grammar_cache_create(size_t max_entries, size_t max_bytes);
/* Nobody has a grammar of it. NULL is allowed. */
void grammar_cache_destroy(struct grammar_cache *c);

struct kept_grammar; /* reference-counted */
/* Compiles the text unless it is there; *out: kept_grammar_release. Errors are
 * kvasir_grammar_create's. */
kvasir_status grammar_cache_get(struct grammar_cache *c, kvasir_grammar_kind kind, const char *text,
                                size_t len, struct kept_grammar **out,
                                kvasir_error *err) MUST_CHECK;
const kvasir_grammar *kept_grammar_of(const struct kept_grammar *k);
void kept_grammar_release(struct kept_grammar *k); /* NULL is allowed */

struct grammar_figures {
    uint64_t compiled, hits, refused; /* refused: texts that did not compile */
    double seconds;                   /* of compiling, refused texts included */
    uint64_t entries, bytes;          /* kept now */
};
struct grammar_figures grammar_cache_figures(struct grammar_cache *c);

#endif
