/* SPDX-License-Identifier: Apache-2.0 */
/* The reference policies against their definitions, on small traces: Belady's against a search over
 * all decisions, LRU against a list of pages searched linearly. Here pages are compared by their
 * tokens, not by ids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "lab/belady.h"

#include <cmocka.h>

#define TRACE SHARED_DIR "/traces/mooncake-fast25/conversation_trace.jsonl"

static kvasir_error err;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

/* ---- traces ---------------------------------------------------------------------------------- */

enum { REQUESTS_MAX = 8, BLOCKS_MAX = 4, PAGES_MAX = 128 };

struct small {
    struct trace_request requests[REQUESTS_MAX];
    uint32_t blocks[REQUESTS_MAX * BLOCKS_MAX];
    struct trace trace;
};

static void small_init(struct small *s) {
    memset(s, 0, sizeof *s);
    s->trace.requests = s->requests;
    s->trace.blocks = s->blocks;
}

/* ids: one digit per block */
static void add(struct small *s, const char *ids, uint32_t prompt, uint32_t output) {
    struct trace *t = &s->trace;
    struct trace_request *r = &t->requests[t->n];
    *r = (struct trace_request){.prompt = prompt, .output = output, .first_block = t->n_blocks};
    r->first_output = t->n ? r[-1].first_output + (int32_t)r[-1].output : 100 * TRACE_BLOCK_TOKENS;
    assert_int_equal(strlen(ids), trace_blocks(r));
    for (; *ids; ids++)
        t->blocks[t->n_blocks++] = (uint32_t)(*ids - '0');
    t->n++;
    t->prompt_tokens += prompt;
}

static uint32_t below(uint64_t *seed, uint32_t n) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*seed >> 33) % n);
}

static void make_random(struct small *s, uint64_t *seed, uint32_t requests) {
    small_init(s);
    bool partial = below(seed, 2);
    while (s->trace.n < requests) {
        char ids[BLOCKS_MAX + 1] = {0};
        uint32_t blocks = 1 + below(seed, BLOCKS_MAX);
        for (uint32_t b = 0; b < blocks; b++)
            ids[b] = (char)('0' + below(seed, 2));
        uint32_t prompt = blocks * TRACE_BLOCK_TOKENS;
        add(s, ids, partial ? prompt - below(seed, TRACE_BLOCK_TOKENS) : prompt,
            1 + below(seed, 1500));
    }
}

/* ---- the definitions ------------------------------------------------------------------------- */

/* Pages of the trace: chain[r][k] numbers page k of request r. */
struct pages {
    uint32_t tokens, n;
    uint32_t chain[REQUESTS_MAX][PAGES_MAX];
    uint32_t full[REQUESTS_MAX]; /* full pages of the prompt */
    uint32_t all[REQUESTS_MAX];  /* of prompt and output; the last may be partly filled */
};

static bool same(const struct small *s, uint32_t a, uint32_t b, uint32_t end) {
    for (uint32_t p = 0; p < end; p++)
        if (trace_token(&s->trace, &s->requests[a], p) !=
            trace_token(&s->trace, &s->requests[b], p))
            return false;
    return true;
}

static void number(const struct small *s, uint32_t tokens, struct pages *p) {
    *p = (struct pages){.tokens = tokens};
    for (uint32_t r = 0; r < s->trace.n; r++) {
        p->full[r] = s->requests[r].prompt / tokens;
        p->all[r] = (s->requests[r].prompt + s->requests[r].output + tokens - 1) / tokens;
        assert_in_range(p->all[r], 0, PAGES_MAX);
        for (uint32_t k = 0; k < p->all[r]; k++) {
            p->chain[r][k] = p->n;
            for (uint32_t q = 0; q < r && k < p->full[r]; q++)
                if (k < p->full[q] && same(s, q, r, (k + 1) * tokens))
                    p->chain[r][k] = p->chain[q][k];
            p->n += p->chain[r][k] == p->n;
        }
    }
}

static uint64_t naive_lru(const struct small *s, const struct pages *p, uint64_t capacity) {
    struct held {
        uint32_t last, depth;
        bool in;
    } *h = calloc(p->n, sizeof *h);
    uint64_t hits = 0, used = 0;
    for (uint32_t r = 0; r < s->trace.n; r++) {
        for (uint32_t k = 0; k < p->full[r] && h[p->chain[r][k]].in; k++)
            hits++;
        for (uint32_t k = 0; k < p->all[r]; k++) {
            struct held *page = &h[p->chain[r][k]];
            used += !page->in;
            *page = (struct held){r, k, true};
        }
        for (; used > capacity; used--) {
            struct held *worst = NULL;
            for (uint32_t i = 0; i < p->n; i++)
                if (h[i].in && (!worst || h[i].last < worst->last ||
                                (h[i].last == worst->last && h[i].depth > worst->depth)))
                    worst = &h[i];
            worst->in = false;
        }
    }
    free(h);
    return hits * p->tokens;
}

/* The most hits from request r on, over all choices of pages to keep. `held` is a set of pages, as
 * bits: prompts' pages only, which must be numbered below 16. */
enum { SETS = 1 << 16 };
struct search {
    const struct small *s;
    const struct pages *p;
    uint64_t capacity;
    uint8_t best[REQUESTS_MAX][SETS]; /* most hits + 1; 0: not known yet */
};

static uint32_t search(struct search *f, uint32_t r, uint32_t held) {
    if (r == f->s->trace.n)
        return 0;
    if (f->best[r][held])
        return f->best[r][held] - 1u;
    uint32_t hits = 0, chain = 0, best = 0;
    while (hits < f->p->full[r] && (held >> f->p->chain[r][hits] & 1))
        hits++;
    for (uint32_t k = 0; k < f->p->full[r]; k++)
        chain |= 1u << f->p->chain[r][k];
    uint32_t may = held | chain;
    for (uint32_t keep = may;; keep = (keep - 1) & may) {
        if ((uint64_t)__builtin_popcount(keep) <= f->capacity) {
            uint32_t later = search(f, r + 1, keep);
            best = later > best ? later : best;
        }
        if (!keep)
            break;
    }
    f->best[r][held] = (uint8_t)(hits + best + 1);
    return hits + best;
}

/* Numbers the prompts' full pages only, from 0. False: too many for a search. */
static bool number_prompts(const struct small *s, uint32_t tokens, struct pages *p) {
    struct small without = *s;
    without.trace.requests = without.requests;
    without.trace.blocks = without.blocks;
    for (uint32_t r = 0; r < s->trace.n; r++) {
        without.requests[r].prompt = s->requests[r].prompt / tokens * tokens;
        without.requests[r].output = 0;
    }
    number(&without, tokens, p);
    return p->n <= 10;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static uint64_t hits(const struct small *s, uint32_t tokens, uint64_t capacity, bool lru) {
    struct page_uses *u;
    uint64_t n;
    need(page_uses_create(&s->trace, tokens, &u, &err));
    need((lru ? lru_hits : belady_hits)(u, capacity, &n, &err));
    page_uses_destroy(u);
    return n;
}

static void test_by_hand(void **state) {
    (void)state;
    struct small s;
    small_init(&s);
    add(&s, "0", 512, 1);
    add(&s, "1", 512, 1);
    add(&s, "2", 512, 1);
    add(&s, "0", 512, 1);
    /* Each request is a page and one token in the next. With one page the optimum keeps 0's. LRU
     * needs room for five: 0's page, and both pages of the two later requests. */
    assert_int_equal(hits(&s, 512, 1, false), 512);
    assert_int_equal(hits(&s, 512, 0, false), 0);
    assert_int_equal(hits(&s, 512, 4, true), 0);
    assert_int_equal(hits(&s, 512, 5, true), 512); /* evicted: the second page of the first 0 */

    /* A longer chain counts up to what is shared, in whole pages. */
    small_init(&s);
    add(&s, "012", 1300, 1);
    add(&s, "013", 1100, 1);
    assert_int_equal(hits(&s, 512, 9, false), 1024);
    assert_int_equal(hits(&s, 100, 99, false), 1000);
    assert_int_equal(hits(&s, 100, 99, true), 1000);
    assert_int_equal(hits(&s, 64, 3, false), 192); /* the first three pages, not any three */
    assert_int_equal(hits(&s, 64, 3, true), 192);
    assert_int_equal(hits(&s, 2000, 9, false), 0);

    /* The same ids after different ones are different pages. */
    small_init(&s);
    add(&s, "01", 1024, 1);
    add(&s, "11", 1024, 1);
    add(&s, "1", 512, 1);
    assert_int_equal(hits(&s, 512, 9, false), 512);

    /* An equal prompt hits all the pages that it fills. */
    small_init(&s);
    add(&s, "01", 700, 2000);
    add(&s, "01", 700, 1);
    assert_int_equal(hits(&s, 64, 10, false), 640);
    assert_int_equal(hits(&s, 64, 11, true), 640); /* LRU evicted the output's pages first */
}

static void test_unlimited(void **state) {
    (void)state;
    struct small s;
    struct page_uses *u;
    small_init(&s);
    add(&s, "01", 700, 2000); /* 10 full pages of 64, 33 after them */
    add(&s, "02", 513, 1);    /* shares 8; 1 after them */
    add(&s, "02", 576, 64);   /* one more full page; 1 after it */
    need(page_uses_create(&s.trace, 64, &u, &err));
    assert_int_equal(page_uses_unlimited(u), 10 + 33 + 1 + 1 + 1);
    assert_int_equal(page_uses_first_pages(u), 1);
    page_uses_destroy(u);
    add(&s, "1", 512, 1);
    add(&s, "2", 63, 1);
    add(&s, "2", 63, 100); /* a page that no prompt fills is each request's own */
    need(page_uses_create(&s.trace, 64, &u, &err));
    assert_int_equal(page_uses_unlimited(u), 46 + (8 + 1) + 1 + 3);
    assert_int_equal(page_uses_first_pages(u), 1 + 1 + 1 + 1);
    page_uses_destroy(u);
}

static void test_random_traces(void **state) {
    (void)state;
    static const uint32_t sizes[] = {512, 256, 300, 1024, 1000};
    static struct search f;
    uint64_t seed = 20251122;
    int searched = 0, differ = 0;
    for (int round = 0; round < 1500; round++) {
        struct small s;
        static struct pages p;
        make_random(&s, &seed, 2 + below(&seed, REQUESTS_MAX - 1));
        uint32_t tokens = sizes[below(&seed, 5)];
        number(&s, tokens, &p);
        struct page_uses *u;
        need(page_uses_create(&s.trace, tokens, &u, &err));
        assert_int_equal(page_uses_unlimited(u), p.n);
        page_uses_destroy(u);
        bool small_enough = number_prompts(&s, tokens, &p);
        uint64_t before = 0;
        for (uint64_t capacity = 0; capacity < 20; capacity++) {
            uint64_t best = hits(&s, tokens, capacity, false);
            uint64_t lru = hits(&s, tokens, capacity, true);
            number(&s, tokens, &p);
            assert_int_equal(lru, naive_lru(&s, &p, capacity));
            assert_true(best >= lru && best >= before);
            before = best;
            differ += best > lru;
            if (!small_enough || capacity > 4)
                continue;
            assert_true(number_prompts(&s, tokens, &p));
            memset(&f, 0, sizeof f);
            f.s = &s;
            f.p = &p;
            f.capacity = capacity;
            assert_int_equal(best, (uint64_t)search(&f, 0, 0) * tokens);
            searched++;
        }
    }
    print_message("%d searches; Belady's above LRU's %d times\n", searched, differ);
    assert_true(searched > 1000 && differ > 1000);
}

static void test_conversation_trace(void **state) {
    (void)state;
    struct trace t;
    struct page_uses *u;
    uint64_t last = 0;
    need(trace_read(TRACE, &t, &err));
    double start = clock_seconds();
    need(page_uses_create(&t, 64, &u, &err));
    assert_int_equal(page_uses_unlimited(u), 1487515);
    for (uint64_t percent = 10; percent <= 60; percent += percent < 20 ? 10 : 20) {
        uint64_t best, lru, capacity = page_uses_unlimited(u) * percent / 100;
        need(belady_hits(u, capacity, &best, &err));
        need(lru_hits(u, capacity, &lru, &err));
        print_message("%2d %%: Belady %.3f %%, LRU %.3f %%\n", (int)percent,
                      100 * (double)best / (double)t.prompt_tokens,
                      100 * (double)lru / (double)t.prompt_tokens);
        assert_true(lru > last && best >= lru && best < t.prompt_tokens);
        last = lru;
    }
    print_message("%.3f s\n", clock_seconds() - start);
    page_uses_destroy(u);
    trace_deinit(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_unlimited),
        cmocka_unit_test(test_random_traces),
        cmocka_unit_test(test_conversation_trace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
