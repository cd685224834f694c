/* SPDX-License-Identifier: Apache-2.0 */
/* belady.h: yardsticks for a prefix cache, computed from a trace alone: what the best possible
 * eviction would have hit (Belady's), and what plain least-recently-used eviction hits.
 *
 * Both count alike. Requests are served one after the other, in order of arrival. A request uses
 * the pages that its prompt fills. Two pages are the same if all tokens before and in them are the
 * same. A page is a hit if it and all pages before it are in the cache at that time. After the
 * request all its pages are in the cache, and the policy evicts what exceeds the capacity.
 *
 * Not modelled: time, so neither requests that run at once nor the pages that they hold meanwhile.
 */
#ifndef LAB_BELADY_H
#define LAB_BELADY_H

#include "lab/trace.h"

/* A trace as uses of pages. */
struct page_uses;
/* page_tokens: at least 1. The trace is not needed afterwards. */
kvasir_status page_uses_create(const struct trace *t, uint32_t page_tokens, struct page_uses **out,
                               kvasir_error *err) MUST_CHECK;
void page_uses_destroy(struct page_uses *u);
/* Pages in an unlimited cache at the end, outputs included. Capacities are given as shares of
 * this. */
uint64_t page_uses_unlimited(const struct page_uses *u);
uint64_t page_uses_first_pages(const struct page_uses *u); /* of those, that begin at token 0 */
/* Prompt tokens that hit in a cache of so many pages. */
kvasir_status belady_hits(const struct page_uses *u, uint64_t capacity_pages, uint64_t *hit_tokens,
                          kvasir_error *err) MUST_CHECK;
kvasir_status lru_hits(const struct page_uses *u, uint64_t capacity_pages, uint64_t *hit_tokens,
                       kvasir_error *err) MUST_CHECK;

#endif
