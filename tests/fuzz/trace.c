/* SPDX-License-Identifier: Apache-2.0 */
/* Arbitrary recorded requests. An accepted trace satisfies TRACE-1 to 3 (trace.c), and its
 * yardsticks are in order: no hits without room, hits of LRU <= hits of Belady < tokens of the
 * prompts. The first byte of the input picks the size of a page. */
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

static void check_yardsticks(const struct trace *t, uint32_t page_tokens) {
    kvasir_error err;
    struct page_uses *u;
    uint64_t best, lru;
    need(page_uses_create(t, page_tokens, &u, &err), &err);
    uint64_t pages = page_uses_unlimited(u);
    for (uint64_t capacity = 0; capacity <= pages; capacity += pages / 2 + 1) {
        need(belady_hits(u, capacity, &best, &err), &err);
        need(lru_hits(u, capacity, &lru, &err), &err);
        if (lru > best || best >= t->prompt_tokens || (capacity == 0 && best > 0))
            fuzz_fail("LRU hits %llu, Belady's %llu of %llu tokens", (unsigned long long)lru,
                      (unsigned long long)best, (unsigned long long)t->prompt_tokens);
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
