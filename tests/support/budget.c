/* SPDX-License-Identifier: Apache-2.0 */
/* I3 in every test: an independent count of what pools have given out. The linker puts these
 * functions in place of the pool's (--wrap), so that everything the cache, the tree and the engine
 * take and give back is counted a second time: pages, their references and charges. A test program
 * aborts if a budget is exceeded, even for a moment; if a page is used that nobody holds, or taken
 * while somebody holds it; if the pool's own figures differ; or if something is left when a pool is
 * destroyed. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <pthread.h>

#include "cache/cache_internal.h"

enum { POOLS_MAX = 64 };

struct page {
    uint32_t addr, refs, bytes; /* refs 0: free */
};

struct count {
    const struct kv_pool *pool; /* NULL: free */
    uint64_t budget, pages, charged;
    bool pages_go_back; /* else free pages of a block stay resident: a GPU maps 2 MiB at a time */
    /* [cap] Pages by hash of their address, with linear probing; at most half full. From mmap,
     * because tests count calls of malloc, to which none may be added. */
    struct page *table;
    uint32_t cap, used;
    uint32_t class_bytes[PAGE_CLASSES_MAX];
};
static struct count counts[POOLS_MAX];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void die(const char *what) {
    fprintf(stderr, "budget: %s\n", what);
    abort();
}

static struct count *count_of(const struct kv_pool *p) {
    struct count *c = NULL;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < POOLS_MAX && !c; i++)
        if (counts[i].pool == p)
            c = &counts[i];
    pthread_mutex_unlock(&mutex);
    if (!c)
        die(p ? "a pool that nobody made" : "too many pools");
    return c;
}

static void check(const struct count *c) {
    const struct kv_pool_stats s = kv_pool_stats(c->pool);
    if (c->pages + c->charged > c->budget)
        die("more is in use than the budget allows");
    if (s.used_bytes != c->pages || s.charged_bytes != c->charged || s.budget_bytes != c->budget)
        die("the pool's figures are wrong");
    if (s.peak_bytes < c->pages + c->charged || s.peak_bytes > c->budget)
        die("the pool's high-water mark is wrong");
    if (s.resident_bytes < c->pages ||
        (c->pages_go_back && s.resident_bytes + c->charged > c->budget))
        die("resident memory is wrong, or more than the budget");
}

/* ---- the table ------------------------------------------------------------------------------- */

static void table_make(struct count *c, uint32_t cap) {
    c->cap = cap;
    c->used = 0;
    c->table = mmap(NULL, cap * sizeof *c->table, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (c->table == MAP_FAILED)
        die("out of memory");
}

static uint32_t place_of(const struct count *c, uint32_t addr) {
    return (addr * 0x9e3779b1u >> 8) & (c->cap - 1);
}

/* The page's entry, or the free one where it would go. */
static struct page *find(const struct count *c, uint32_t addr) {
    uint32_t i = place_of(c, addr);
    while (c->table[i].refs && c->table[i].addr != addr)
        i = (i + 1) & (c->cap - 1);
    return &c->table[i];
}

static void insert(struct count *c, struct page page) {
    if (2 * ++c->used > c->cap) {
        struct page *old = c->table;
        const uint32_t n = c->cap;
        table_make(c, 2 * n);
        for (uint32_t i = 0; i < n; i++)
            if (old[i].refs)
                insert(c, old[i]);
        c->used++;
        munmap(old, n * sizeof *old);
    }
    *find(c, page.addr) = page;
}

/* Entries after it that were displaced by it move up. */
static void erase(struct count *c, struct page *page) {
    uint32_t hole = (uint32_t)(page - c->table), i = hole;
    c->used--;
    for (;;) {
        i = (i + 1) & (c->cap - 1);
        if (!c->table[i].refs)
            break;
        const uint32_t home = place_of(c, c->table[i].addr);
        if (((i - home) & (c->cap - 1)) < ((i - hole) & (c->cap - 1)))
            continue;
        c->table[hole] = c->table[i];
        hole = i;
    }
    c->table[hole].refs = 0;
}

/* ---- in place of the pool -------------------------------------------------------------------- */

#define REAL(result, name, ...)                                                                    \
    result __real_##name(__VA_ARGS__);                                                             \
    result __wrap_##name(__VA_ARGS__);                                                             \
    result __wrap_##name(__VA_ARGS__)

REAL(kvasir_status, kv_pool_create, struct backend *b, uint64_t budget, struct kv_pool **out,
     kvasir_error *err) {
    const kvasir_status status = __real_kv_pool_create(b, budget, out, err);
    if (status != KVASIR_OK)
        return status;
    struct count *c = count_of(NULL);
    struct backend_info info;
    backend_info(b, &info);
    table_make(c, 1 << 14);
    c->budget = budget;
    c->pages_go_back = info.gives_pages_back || info.pages_without_bytes;
    c->pages = c->charged = 0;
    c->pool = *out;
    return KVASIR_OK;
}

REAL(void, kv_pool_destroy, struct kv_pool *p) {
    struct count *c = p ? count_of(p) : NULL;
    if (c && (c->pages || c->charged))
        die("pages or charges are left");
    __real_kv_pool_destroy(p);
    if (!c)
        return;
    munmap(c->table, c->cap * sizeof *c->table);
    c->pool = NULL;
}

REAL(kvasir_status, page_class, struct kv_pool *p, size_t bytes, struct kv_format k,
     struct kv_format v, uint32_t *index, kvasir_error *err) {
    const kvasir_status status = __real_page_class(p, bytes, k, v, index, err);
    if (status == KVASIR_OK)
        count_of(p)->class_bytes[*index] = (uint32_t)bytes;
    return status;
}

static void count_taken(struct kv_pool *p, uint32_t class_index, uint32_t addr) {
    struct count *c = count_of(p);
    if (find(c, addr)->refs)
        die("a page is taken that somebody holds");
    insert(c, (struct page){addr, 1, c->class_bytes[class_index]});
    c->pages += c->class_bytes[class_index];
    check(c);
}

REAL(kvasir_status, page_take, struct kv_pool *p, uint32_t class_index, uint32_t *addr,
     kvasir_error *err) {
    const kvasir_status status = __real_page_take(p, class_index, addr, err);
    if (status == KVASIR_OK)
        count_taken(p, class_index, *addr);
    return status;
}

REAL(kvasir_status, page_take_unset, struct kv_pool *p, uint32_t class_index, uint32_t *addr,
     kvasir_error *err) {
    const kvasir_status status = __real_page_take_unset(p, class_index, addr, err);
    if (status == KVASIR_OK)
        count_taken(p, class_index, *addr);
    return status;
}

static void refer(struct kv_pool *p, uint32_t addr) {
    struct page *page = find(count_of(p), addr);
    if (page->refs == 0)
        die("a page that nobody holds is referred to");
    page->refs++;
}

static void unrefer(struct kv_pool *p, uint32_t addr) {
    struct count *c = count_of(p);
    struct page *page = find(c, addr);
    if (page->refs == 0)
        die("a page is given back that nobody holds");
    if (page->refs > 1) {
        page->refs--;
        return;
    }
    c->pages -= page->bytes;
    erase(c, page);
}

REAL(void, page_ref, struct kv_pool *p, uint32_t addr) {
    refer(p, addr);
    __real_page_ref(p, addr);
}

REAL(void, page_store, struct kv_pool *p, uint32_t addr) {
    refer(p, addr);
    __real_page_store(p, addr);
    check(count_of(p));
}

REAL(void, page_unref, struct kv_pool *p, uint32_t addr) {
    unrefer(p, addr);
    __real_page_unref(p, addr);
    check(count_of(p));
}

REAL(void, page_unstore, struct kv_pool *p, uint32_t addr) {
    unrefer(p, addr);
    __real_page_unstore(p, addr);
    check(count_of(p));
}

REAL(kvasir_status, pool_charge, struct kv_pool *p, uint64_t bytes, kvasir_error *err) {
    const kvasir_status status = __real_pool_charge(p, bytes, err);
    struct count *c = count_of(p);
    if (status == KVASIR_OK) {
        c->charged += bytes;
        check(c);
    }
    return status;
}

REAL(void, pool_discharge, struct kv_pool *p, uint64_t bytes) {
    struct count *c = count_of(p);
    if (bytes > c->charged)
        die("more is discharged than was charged");
    __real_pool_discharge(p, bytes);
    c->charged -= bytes;
    check(c);
}
