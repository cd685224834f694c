/* SPDX-License-Identifier: Apache-2.0 */
/* belady.c: the hits that no eviction can beat, and those of plain LRU under the same rules.
 *
 * Each page has one number. Chains of block ids form a tree. Pages that end inside a block belong
 * to its node, since the node fixes all tokens up to there:
 *
 *     root --id 0--> node: pages 0 .. 7 --id 1--> node: pages 8 .. 15
 *                         `--id 14-> node: pages 16 .. 23
 *
 *     uses[]    0 1 .. 7 8 .. 13 | 0 1 .. 7 16 17 ..      page numbers, request after request
 *
 * Invariants
 *   BELADY-1  A page's number is larger than those of all pages before it on its chain.
 *   BELADY-2  A cache holds a page only together with all pages before it on its chain. So hits are
 *             counted by walking the chain up to the first missing page.
 *
 * Belady: the page whose next use is farthest is evicted first, and pages that are never used again
 * before all others. Of two that the same request uses next, the deeper one goes first (BELADY-1:
 * the larger number). On a chain, deeper pages are used no earlier than the others, so this keeps
 * BELADY-2, and a cached page is a hit whenever it is used. Without the prefix rule this is the
 * optimum of paging (with bypass: a request's own pages need not be kept). The rule can only take
 * hits away from other policies, so with it this is still the optimum. Pages after the prompt (the
 * last, partly filled one and those of the output) are never used again in a trace. The optimum
 * would evict them at once, so they are left out.
 *
 * LRU: a request uses its chain from the deepest page to the root, so pages are evicted leaf first
 * (BELADY-2). LRU cannot know what is never used again: pages after the prompt take room, as they
 * would in a cache.
 */
#include <string.h>

#include "lab/belady.h"

#define NEVER UINT32_MAX /* no request has this number */
#define NONE  UINT32_MAX /* no page, no node */

struct page_uses {
    uint32_t page_tokens;
    uint32_t n_requests;
    uint32_t n_pages; /* pages of prompts; their numbers are smaller */
    uint32_t *uses;   /* [first[n_requests]] page numbers */
    uint32_t *first;  /* [n_requests + 1] index of a request's first use */
    uint32_t *own;    /* [n_requests] pages after those, which no other request uses */
    uint64_t unlimited, first_pages;
};

static kvasir_status out_of_memory(kvasir_error *err) {
    return fail(err, KVASIR_ERR_MEMORY, "yardsticks of the trace: out of memory");
}

/* ---- pages of a trace ------------------------------------------------------------------------ */

/* The tree of chains as a hash table of its edges. */
struct chain_tree {
    struct edge {
        uint32_t from, id, node; /* from: node + 1, 0 for the root; node NONE: a free slot */
    } * edges;                   /* [mask + 1] */
    uint32_t mask;
    struct chain_node {
        uint32_t first;  /* number of the first page that ends in the block */
        uint32_t filled; /* of its pages, those that some prompt fills */
    } * nodes;           /* [n_nodes] */
    uint32_t n_nodes;
};

/* For at most n nodes; the table is never more than half full. */
static bool chain_tree_init(struct chain_tree *c, uint32_t n) {
    size_t places = 1;
    while (places < 2 * (size_t)n)
        places *= 2;
    *c = (struct chain_tree){.mask = (uint32_t)(places - 1)};
    c->edges = mem_calloc(places, sizeof *c->edges);
    c->nodes = mem_calloc(n, sizeof *c->nodes);
    for (size_t i = 0; c->edges && i < places; i++)
        c->edges[i].node = NONE;
    return c->edges && c->nodes;
}

static void chain_tree_deinit(struct chain_tree *c) {
    mem_free(c->edges);
    mem_free(c->nodes);
}

/* The edge's slot, which may be free. */
static struct edge *chain_tree_find(struct chain_tree *c, uint32_t from, uint32_t id) {
    uint64_t key = (uint64_t)from << 32 | id;
    uint32_t i = (uint32_t)(key * 0x9e3779b97f4a7c15 >> 32);
    for (;; i++) {
        struct edge *e = &c->edges[i & c->mask];
        if (e->node == NONE || (e->from == from && e->id == id))
            return e;
    }
}

/* Number of pages that so many blocks fill. */
static uint64_t pages_of_blocks(const struct page_uses *u, uint32_t blocks) {
    return (uint64_t)blocks * TRACE_BLOCK_TOKENS / u->page_tokens;
}

/* Appends the request's pages to uses and returns their new end. */
static uint32_t *number_pages(struct page_uses *u, struct chain_tree *c, const uint32_t *ids,
                              const struct trace_request *r, uint32_t *uses) {
    uint32_t full = r->prompt / u->page_tokens, from = 0;
    for (uint32_t b = 0; b < trace_blocks(r); b++) {
        uint32_t begin = (uint32_t)pages_of_blocks(u, b);
        uint32_t end = (uint32_t)pages_of_blocks(u, b + 1);
        struct edge *e = chain_tree_find(c, from, ids[b]);
        if (e->node == NONE) {
            *e = (struct edge){from, ids[b], c->n_nodes++};
            c->nodes[e->node].first = u->n_pages;
            u->n_pages += end - begin;
        }
        struct chain_node *node = &c->nodes[e->node];
        for (uint32_t i = 0; i < end - begin && begin + i < full; i++) {
            *uses++ = node->first + i;
            if (i == node->filled) {
                node->filled++;
                u->unlimited++;
                u->first_pages += begin + i == 0;
            }
        }
        from = e->node + 1;
    }
    return uses;
}

kvasir_status page_uses_create(const struct trace *t, uint32_t page_tokens, struct page_uses **out,
                               kvasir_error *err) {
    struct chain_tree c = {0};
    kvasir_status status = KVASIR_OK;
    uint64_t n = 0, numbers = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        n += t->requests[i].prompt / page_tokens;
        numbers += ((uint64_t)trace_blocks(&t->requests[i]) + 1) * TRACE_BLOCK_TOKENS / page_tokens;
    }
    if (n >= NONE || numbers + t->n >= NONE)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "the trace has more than %u pages: limit the number of requests", NONE);
    struct page_uses *u = mem_calloc(1, sizeof *u);
    if (!u)
        return out_of_memory(err);
    u->page_tokens = page_tokens;
    u->n_requests = t->n;
    u->uses = mem_calloc((size_t)n, sizeof *u->uses);
    u->first = mem_calloc((size_t)t->n + 1, sizeof *u->first);
    u->own = mem_calloc(t->n, sizeof *u->own);
    if (!u->uses || !u->first || !u->own || !chain_tree_init(&c, t->n_blocks))
        status = out_of_memory(err);
    uint32_t *end = u->uses;
    for (uint32_t i = 0; i < t->n && status == KVASIR_OK; i++) {
        const struct trace_request *r = &t->requests[i];
        u->first[i] = (uint32_t)(end - u->uses);
        end = number_pages(u, &c, t->blocks + r->first_block, r, end);
        uint64_t all = ((uint64_t)r->prompt + r->output + page_tokens - 1) / page_tokens;
        u->own[i] = (uint32_t)(all - r->prompt / page_tokens);
        u->unlimited += u->own[i];
        u->first_pages += r->prompt < page_tokens && all > 0;
    }
    ASSERT(status != KVASIR_OK || (end == u->uses + n && c.n_nodes <= t->n_blocks));
    if (status == KVASIR_OK)
        u->first[t->n] = (uint32_t)(end - u->uses);
    chain_tree_deinit(&c);
    if (status != KVASIR_OK) {
        page_uses_destroy(u);
        return status;
    }
    *out = u;
    return KVASIR_OK;
}

void page_uses_destroy(struct page_uses *u) {
    if (!u)
        return;
    mem_free(u->uses);
    mem_free(u->first);
    mem_free(u->own);
    mem_free(u);
}

uint64_t page_uses_unlimited(const struct page_uses *u) {
    return u->unlimited;
}

uint64_t page_uses_first_pages(const struct page_uses *u) {
    return u->first_pages;
}

/* ---- Belady's -------------------------------------------------------------------------------- */

/* Cached pages by their next use, farthest first. When a page is used, its old entry is not
 * removed. It is in the past by then, so it comes up after all others. */
struct due_heap {
    uint64_t *entries; /* [n] request << 32 | page */
    size_t n;
};

static void due_push(struct due_heap *h, uint64_t entry) {
    size_t i = h->n++;
    for (; i > 0 && h->entries[(i - 1) / 2] < entry; i = (i - 1) / 2)
        h->entries[i] = h->entries[(i - 1) / 2];
    h->entries[i] = entry;
}

static uint64_t due_pop(struct due_heap *h) {
    DEBUG_ASSERT(h->n > 0);
    uint64_t top = h->entries[0], last = h->entries[--h->n];
    size_t i = 0;
    for (size_t child = 1; child < h->n; child = 2 * i + 1) {
        if (child + 1 < h->n && h->entries[child + 1] > h->entries[child])
            child++;
        if (h->entries[child] <= last)
            break;
        h->entries[i] = h->entries[child];
        i = child;
    }
    h->entries[i] = last;
    return top;
}

struct belady {
    const struct page_uses *u;
    uint32_t *next; /* [uses] the next request that uses the page, or NEVER */
    uint32_t *due;  /* [n_pages] likewise, for cached pages; NEVER: not cached */
    struct due_heap heap;
    uint64_t held; /* cached pages */
};

static void find_next_uses(const struct page_uses *u, uint32_t *next, uint32_t *seen) {
    for (uint32_t p = 0; p < u->n_pages; p++)
        seen[p] = NEVER;
    for (uint32_t r = u->n_requests; r-- > 0;)
        for (uint32_t i = u->first[r]; i < u->first[r + 1]; i++) {
            next[i] = seen[u->uses[i]];
            seen[u->uses[i]] = r;
        }
}

static uint64_t belady_serve(struct belady *b, uint32_t request, uint64_t capacity) {
    const struct page_uses *u = b->u;
    uint32_t begin = u->first[request], end = u->first[request + 1], hits = begin;
    while (hits < end && b->due[u->uses[hits]] != NEVER)
        hits++;
    for (uint32_t i = begin; i < end; i++) {
        uint32_t page = u->uses[i];
        b->held -= b->due[page] != NEVER;
        b->due[page] = b->next[i];
        if (b->next[i] == NEVER)
            continue;
        b->held++;
        due_push(&b->heap, (uint64_t)b->next[i] << 32 | page);
    }
    while (b->held > capacity) {
        b->due[(uint32_t)due_pop(&b->heap)] = NEVER;
        b->held--;
    }
    return hits - begin;
}

kvasir_status belady_hits(const struct page_uses *u, uint64_t capacity_pages, uint64_t *hit_tokens,
                          kvasir_error *err) {
    kvasir_status status = KVASIR_OK;
    size_t n = u->first[u->n_requests];
    struct belady b = {.u = u};
    b.next = mem_calloc(n, sizeof *b.next);
    b.due = mem_calloc(u->n_pages, sizeof *b.due);
    b.heap.entries = mem_calloc(n, sizeof *b.heap.entries);
    if (!b.next || !b.due || !b.heap.entries) {
        status = out_of_memory(err);
        goto done;
    }
    find_next_uses(u, b.next, b.due);
    for (uint32_t p = 0; p < u->n_pages; p++)
        b.due[p] = NEVER; /* the cache is empty */
    *hit_tokens = 0;
    for (uint32_t r = 0; r < u->n_requests; r++)
        *hit_tokens += belady_serve(&b, r, capacity_pages) * u->page_tokens;
done:
    mem_free(b.next);
    mem_free(b.due);
    mem_free(b.heap.entries);
    return status;
}

/* ---- LRU ------------------------------------------------------------------------------------- */

/* A ring of cached items by last use. Items are the pages of prompts, by number; then, for each
 * request, its own pages after the prompt as one item; then the ring's own entry. */
struct lru {
    const struct page_uses *u;
    uint32_t *newer, *older; /* [n_pages + n_requests + 1]; newer NONE: not cached */
    uint32_t ring;           /* newer[ring] is the oldest item, older[ring] the newest */
    uint32_t *own;           /* [n_requests] how many pages of that item are still cached */
    uint64_t held;
};

static void lru_remove(struct lru *l, uint32_t item) {
    l->older[l->newer[item]] = l->older[item];
    l->newer[l->older[item]] = l->newer[item];
    l->newer[item] = NONE;
}

static void lru_add(struct lru *l, uint32_t item) {
    DEBUG_ASSERT(l->newer[item] == NONE);
    uint32_t newest = l->older[l->ring];
    l->newer[item] = l->ring;
    l->older[item] = newest;
    l->newer[newest] = l->older[l->ring] = item;
}

static void lru_evict(struct lru *l, uint64_t capacity) {
    while (l->held > capacity) {
        uint32_t item = l->newer[l->ring], pages = 1;
        ASSERT(item != l->ring);     /* pages are held, so the ring is not empty */
        if (item >= l->u->n_pages) { /* only as many as necessary */
            uint32_t *left = &l->own[item - l->u->n_pages];
            uint64_t excess = l->held - capacity;
            pages = *left < excess ? *left : (uint32_t)excess;
            *left -= pages;
            if (*left == 0)
                lru_remove(l, item);
        } else {
            lru_remove(l, item);
        }
        l->held -= pages;
    }
}

static uint64_t lru_serve(struct lru *l, uint32_t request, uint64_t capacity) {
    const struct page_uses *u = l->u;
    uint32_t begin = u->first[request], end = u->first[request + 1], hits = begin;
    while (hits < end && l->newer[u->uses[hits]] != NONE)
        hits++;
    l->own[request] = u->own[request];
    l->held += u->own[request];
    if (u->own[request])
        lru_add(l, u->n_pages + request);
    for (uint32_t i = end; i-- > begin;) { /* the deepest is used first, so it is the oldest */
        if (l->newer[u->uses[i]] != NONE)
            lru_remove(l, u->uses[i]);
        else
            l->held++;
        lru_add(l, u->uses[i]);
    }
    lru_evict(l, capacity);
    return hits - begin;
}

kvasir_status lru_hits(const struct page_uses *u, uint64_t capacity_pages, uint64_t *hit_tokens,
                       kvasir_error *err) {
    kvasir_status status = KVASIR_OK;
    struct lru l = {.u = u, .ring = u->n_pages + u->n_requests};
    l.newer = mem_calloc((size_t)l.ring + 1, sizeof *l.newer);
    l.older = mem_calloc((size_t)l.ring + 1, sizeof *l.older);
    l.own = mem_calloc(u->n_requests, sizeof *l.own);
    if (!l.newer || !l.older || !l.own) {
        status = out_of_memory(err);
        goto done;
    }
    for (uint32_t i = 0; i < l.ring; i++)
        l.newer[i] = NONE;
    l.newer[l.ring] = l.older[l.ring] = l.ring;
    *hit_tokens = 0;
    for (uint32_t r = 0; r < u->n_requests; r++)
        *hit_tokens += lru_serve(&l, r, capacity_pages) * u->page_tokens;
done:
    mem_free(l.newer);
    mem_free(l.older);
    mem_free(l.own);
    return status;
}
