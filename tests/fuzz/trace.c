/* SPDX-License-Identifier: Apache-2.0 */
/* Arbitrary recorded requests. An accepted trace satisfies TRACE-1 to 3 (trace.c), and its
 * yardsticks are in order: no hits without room; hits of LRU <= hits of Belady <= hits without
 * eviction, and Belady's do not fall as room grows; with room for all pages the three are equal.
 * Hits without eviction are counted here a second time. The first byte of the input picks the size
 * of a page. */
#include "fuzz.h"
#include "lab/belady.h"

static void need(kvasir_status status, const kvasir_error *err) {
    if (status != KVASIR_OK)
        fuzz_fail("%s", err->text);
}

static void check_request(const struct trace *t, const struct trace_request *r) {
    if (r->prompt < 1 || r->output < 1)
        fuzz_fail("a request without tokens was accepted");
    if ((uint64_t)r->first_block + trace_blocks(r) > t->n_blocks)
        fuzz_fail("a request has blocks behind the end");
    if (r > t->requests && r->at_ms < r[-1].at_ms)
        fuzz_fail("arrivals fall");
    int32_t first = trace_token(t, r, 0), last = trace_token(t, r, r->prompt - 1);
    int32_t out = trace_token(t, r, r->prompt + r->output - 1);
    if (first < 0 || last < 0 || out <= first || out <= last)
        fuzz_fail("tokens %d .. %d, output to %d", first, last, out);
}

/* Tokens at which two prompts begin alike, compared by blocks: TRACE-2. */
static uint32_t common_prompt(const struct trace *t, const struct trace_request *a,
                              const struct trace_request *b) {
    const uint32_t most = a->prompt < b->prompt ? a->prompt : b->prompt;
    uint32_t same = 0;
    while (same < most && trace_token(t, a, same) == trace_token(t, b, same))
        same += TRACE_BLOCK_TOKENS;
    return same < most ? same : most;
}

/* Tokens that hit if nothing is ever evicted: the full pages that a request has in common with an
 * earlier one. */
static uint64_t hits_without_eviction(const struct trace *t, uint32_t page_tokens) {
    uint64_t hits = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t most = 0;
        for (uint32_t k = 0; k < i; k++) {
            const uint32_t common = common_prompt(t, &t->requests[k], &t->requests[i]);
            most = common > most ? common : most;
        }
        hits += most / page_tokens * page_tokens;
    }
    return hits;
}

static void check_yardsticks(const struct trace *t, uint32_t page_tokens) {
    enum { STEPS = 16, REQUESTS = 400 }; /* the second count compares all pairs of requests */
    kvasir_error err;
    struct page_uses *u;
    uint64_t best, lru, before = 0;
    need(page_uses_create(t, page_tokens, &u, &err), &err);
    const uint64_t pages = page_uses_unlimited(u);
    uint64_t most;
    need(belady_hits(u, pages, &most, &err), &err);
    if (t->n <= REQUESTS && most != hits_without_eviction(t, page_tokens))
        fuzz_fail("Belady hits %llu tokens with room for all pages, not %llu",
                  (unsigned long long)most,
                  (unsigned long long)hits_without_eviction(t, page_tokens));
    for (uint64_t step = 0; step <= STEPS; step++) {
        const uint64_t capacity = pages / STEPS * step + pages % STEPS * step / STEPS;
        need(belady_hits(u, capacity, &best, &err), &err);
        need(lru_hits(u, capacity, &lru, &err), &err);
        if (lru > best || best > most || best < before || (capacity == 0 && best > 0) ||
            (capacity == pages && lru != most))
            fuzz_fail("%llu of %llu pages: LRU hits %llu, Belady %llu of %llu tokens, %llu before",
                      (unsigned long long)capacity, (unsigned long long)pages,
                      (unsigned long long)lru, (unsigned long long)best, (unsigned long long)most,
                      (unsigned long long)before);
        before = best;
    }
    page_uses_destroy(u);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    struct trace t;
    kvasir_error err;
    budget_begin(fuzz_budget(size));
    kvasir_status status = trace_parse((const char *)data + 1, size - 1, &t, &err);
    budget_end();
    check_error(status, &err);
    if (status != KVASIR_OK) {
        if (t.requests || t.blocks)
            fuzz_fail("a trace that was refused is not empty");
        return 0;
    }
    for (uint32_t i = 0; i < t.n; i++)
        check_request(&t, &t.requests[i]);
    check_yardsticks(&t, 1 + (uint32_t)data[0] * 5);
    trace_deinit(&t);
    return 0;
}
