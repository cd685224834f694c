/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c: the page pool: one arena of address space, one budget of bytes, reference counts.
 *
 *   arena   | unit 0 | unit 1 | unit 2 | unit 3 | unit 4 | ...    a unit is 2 MiB
 *             `---- superblock ----'   `- superblock -'           (1 or more units, one class)
 *               page page page  slack    page page ...
 *
 * Pages of one size and pair of formats (a class) are cut from superblocks. A superblock has so
 * many units that at most 1/16 of it is slack. Slack is never touched, so it costs address space
 * but no memory.
 *
 * A free page is ready, which means that it has memory, or dry. Freeing a page makes it ready, and
 * ready pages are taken first: neither is a system call. Memory of free pages goes back to the
 * system in `rest` and `no room`, and a page counts as resident until then:
 *
 *   rest      kv_pool_rest, while nothing runs: what exceeds the reserve at rest goes back, and
 *             that reserve is filled with dry pages that are touched, so that steps and loads find
 *             ready ones
 *   ahead     kv_pool_ahead, between steps: once half of the reserve is used, a thread gets memory
 *             for dry pages (ahead.h). They count as ready at once: one that is taken sooner than
 *             its memory comes is touched by whoever zeroes it
 *   no room   a page that has no memory is taken, or something is charged, and the free pages of
 *             other classes hold the rest of the budget: they give back what is needed and
 *             1 / GIVE_BACK_PART of the budget, so that this is rare
 *
 * All bookkeeping is in two flat tables beside the arena. They are reserved like the arena and get
 * memory when touched, so nothing is allocated after creation and an empty budget costs nothing.
 *
 *   slots[addr]    4 KiB unit -> references of the page that starts there, and how many of them are
 *                  the prefix tree's; or the next free page of the block
 *   blocks[unit]   2 MiB unit -> superblock that starts there
 *
 * Invariants
 *   POOL-1  used_bytes is the sum of page_bytes over pages with references. used_bytes +
 *           charged_bytes (what others keep beside pages, pool_charge) <= budget_bytes.
 *   POOL-2  A block is in its class's list of ready pages exactly if it has one, and in the list of
 *           dry pages exactly if it has one.
 *   POOL-3  Dry pages are zero when they are touched (backend_arena_take is told). Ready pages may
 *           hold anything and are zeroed when taken.
 *   POOL-4  resident_bytes is the sum of page_bytes over pages that are in use or ready. With
 *           charged_bytes it never exceeds budget_bytes. So what is resident is at most the budget
 *           and table_bytes: the slots of all blocks, 1/512 of their address space. These are not
 *           part of the bound: a cache that is full would else give a page's memory back for the
 *           bytes of a tree node, and touch it again for the next page, in every step that evicts.
 *   POOL-5  stored_bytes is the sum of page_bytes over pages whose references are all the tree's.
 *           Each class counts its own pages: those in use, and of them those that are stored.
 *
 * Where the backend cannot give back the memory of single pages (its units hold several), all pages
 * of a block count as ready from its making until it is dropped, and POOL-4's bound does not hold.
 *
 * The pool does not evict: it never decides what to free.
 */
#include <inttypes.h>
#include <string.h>

#include "cache/cache_internal.h"
#include "util/bytes.h"

#define UNIT_BYTES ((size_t)2 << 20)
enum { ADDR_PER_UNIT = (2 << 20) / PAGE_ADDR_UNIT };
#define NO_BLOCK UINT32_MAX
#define NO_PAGE  UINT32_MAX

enum {
    GIVE_BACK_PART = 64, /* so small a part of the budget is given back at a time, at least */
    REST_BYTES = 8 << 20 /* given back or touched in one kv_pool_rest */
};
/* One page of slots, and the entry in blocks[]. */
#define UNIT_TABLE_BYTES (ADDR_PER_UNIT * sizeof(struct slot) + sizeof(struct block))

struct slot {
    uint32_t refs;
    union {
        uint32_t tree_refs; /* of refs */
        uint32_t next_free; /* address of the block's next such page, while refs is 0 */
    };
};

enum list { LIST_READY, LIST_DRY, LISTS };

struct block {
    uint32_t units; /* 0: no block starts at this unit */
    uint32_t owner; /* first unit of this unit's block, + 1; 0: free unit */
    uint32_t class_index;
    uint32_t used;        /* pages with references */
    uint32_t ready;       /* free pages with memory; all others are dry */
    uint32_t fresh;       /* pages from this one on were never taken and are in no list */
    uint32_t head[LISTS]; /* address of a free page of that kind, or NO_PAGE */
    struct {
        uint32_t prev, next;
    } in[LISTS]; /* the class's lists of blocks */
};

struct page_class {
    size_t page_bytes;
    struct kv_format k, v;
    uint32_t addr_step;    /* addresses from one page to the next */
    uint32_t units;        /* of a superblock */
    uint32_t pages;        /* in a superblock */
    uint32_t first[LISTS]; /* first block with such a page, or NO_BLOCK */
    uint64_t room;         /* pages of its blocks */
    uint64_t used, stored; /* pages in use; of those, the ones that only the tree holds */
    uint64_t ready;        /* free pages with memory */
    uint64_t reserve;      /* so many are kept ready while steps run */
    uint64_t rest_reserve; /* and so many after a rest */
    bool claimed;          /* pool_claim: its empty blocks stay */
};

struct kv_pool {
    struct backend *backend;
    struct backend_arena *arena;
    bool pages_without_bytes; /* of struct backend_info */
    bool gives_pages_back;    /* likewise */
    struct ahead *ahead;      /* or NULL: nobody gets memory while steps run */
    uint32_t n_units;
    uint32_t unit_hint;   /* no unit before it is free */
    struct slot *slots;   /* [n_units * ADDR_PER_UNIT] */
    struct block *blocks; /* [n_units] */
    struct page_class classes[PAGE_CLASSES_MAX];
    uint32_t n_classes;
    struct kv_pool_stats stats;
};

/* The most units that 32-bit addresses can cover. */
#define UNITS_MAX ((UINT32_MAX - 1) / ADDR_PER_UNIT)

/* Address space for a budget: four times as much, because partly empty superblocks hold space
 * that other classes cannot use. It costs nothing until it is touched. A page without bytes
 * (null backend) takes one address, so UNITS_MAX units hold the pages of any budget. */
static uint64_t space_units(const struct kv_pool *p, uint64_t budget_bytes) {
    const uint64_t units = 4 * (budget_bytes / UNIT_BYTES + 1) + 64;
    return p->pages_without_bytes && units > UNITS_MAX ? UNITS_MAX : units;
}

kvasir_status kv_pool_create(struct backend *b, uint64_t budget_bytes, struct kv_pool **out,
                             kvasir_error *err) {
    struct kv_pool *p = mem_calloc(1, sizeof *p);
    if (!p)
        return fail(err, KVASIR_ERR_MEMORY, "page pool: out of memory");
    struct backend_info info;
    backend_info(b, &info);
    p->backend = b;
    p->pages_without_bytes = info.pages_without_bytes;
    p->gives_pages_back = info.gives_pages_back;
    const uint64_t units = space_units(p, budget_bytes);
    if (units > UNITS_MAX) {
        mem_free(p);
        return fail_field(err, KVASIR_ERR_ARGUMENT, "context.cache_bytes",
                          "a budget of %" PRIu64 " MiB is more than page addresses can cover",
                          budget_bytes >> 20);
    }
    p->n_units = (uint32_t)units;
    p->stats.budget_bytes = budget_bytes;
    p->arena = backend_arena_create(b, p->n_units * UNIT_BYTES);
    p->slots = mem_reserve((size_t)p->n_units * ADDR_PER_UNIT * sizeof *p->slots);
    p->blocks = mem_reserve(round_up(p->n_units * sizeof *p->blocks, 4096));
    if (!p->arena || !p->slots || !p->blocks) {
        kv_pool_destroy(p);
        return fail(err, KVASIR_ERR_MEMORY,
                    "cannot reserve address space for a cache of %" PRIu64 " MiB",
                    budget_bytes >> 20);
    }
    *out = p;
    return KVASIR_OK;
}

void kv_pool_destroy(struct kv_pool *p) {
    if (!p)
        return;
    ahead_destroy(p->ahead);
    if (p->arena)
        backend_arena_destroy(p->backend, p->arena);
    mem_unreserve(p->slots, (size_t)p->n_units * ADDR_PER_UNIT * sizeof *p->slots);
    mem_unreserve(p->blocks, round_up(p->n_units * sizeof *p->blocks, 4096));
    mem_free(p);
}

struct kv_pool_stats kv_pool_stats(const struct kv_pool *p) {
    return p->stats;
}
struct backend_arena *pool_arena(const struct kv_pool *p) {
    return p->arena;
}

bool kv_pool_class(const struct kv_pool *p, uint32_t i, struct kv_pool_class *out) {
    if (i >= p->n_classes)
        return false;
    const struct page_class *c = &p->classes[i];
    *out = (struct kv_pool_class){.k = c->k,
                                  .v = c->v,
                                  .live_bytes = (c->used - c->stored) * c->page_bytes,
                                  .stored_bytes = c->stored * c->page_bytes};
    return true;
}

kvasir_status page_class(struct kv_pool *p, size_t page_bytes, struct kv_format k,
                         struct kv_format v, uint32_t *class_index, kvasir_error *err) {
    for (uint32_t i = 0; i < p->n_classes; i++) {
        const struct page_class *c = &p->classes[i];
        if (c->page_bytes == page_bytes && kv_format_equal(c->k, k) && kv_format_equal(c->v, v)) {
            *class_index = i;
            return KVASIR_OK;
        }
    }
    if (p->n_classes == PAGE_CLASSES_MAX)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "more than %d kinds of pages", PAGE_CLASSES_MAX);
    const size_t extent = p->pages_without_bytes ? PAGE_ADDR_UNIT : page_bytes;
    size_t units = round_up(extent, UNIT_BYTES) / UNIT_BYTES;
    while (units * UNIT_BYTES % extent > units * UNIT_BYTES / 16)
        units++;
    p->classes[p->n_classes] = (struct page_class){
        .page_bytes = page_bytes,
        .k = k,
        .v = v,
        .addr_step = (uint32_t)(extent / PAGE_ADDR_UNIT),
        .units = (uint32_t)units,
        .pages = (uint32_t)(units * UNIT_BYTES / extent),
        .first = {NO_BLOCK, NO_BLOCK},
    };
    *class_index = p->n_classes++;
    return KVASIR_OK;
}

/* ---- superblocks ----------------------------------------------------------------------------- */

static void list_push(struct kv_pool *p, enum list l, uint32_t unit) {
    struct block *b = &p->blocks[unit];
    struct page_class *c = &p->classes[b->class_index];
    b->in[l].prev = NO_BLOCK;
    b->in[l].next = c->first[l];
    if (c->first[l] != NO_BLOCK)
        p->blocks[c->first[l]].in[l].prev = unit;
    c->first[l] = unit;
}

static void list_remove(struct kv_pool *p, enum list l, uint32_t unit) {
    struct block *b = &p->blocks[unit];
    if (b->in[l].prev != NO_BLOCK)
        p->blocks[b->in[l].prev].in[l].next = b->in[l].next;
    else
        p->classes[b->class_index].first[l] = b->in[l].next;
    if (b->in[l].next != NO_BLOCK)
        p->blocks[b->in[l].next].in[l].prev = b->in[l].prev;
}

/* Gives a block new counts: POOL-2, and the sums of its class and of the pool. */
static void block_count(struct kv_pool *p, uint32_t unit, uint32_t used, uint32_t ready) {
    struct block *b = &p->blocks[unit];
    struct page_class *c = &p->classes[b->class_index];
    ASSERT(used + ready <= c->pages);
    const bool had[LISTS] = {b->ready > 0, b->used + b->ready < c->pages};
    const bool has[LISTS] = {ready > 0, used + ready < c->pages};
    c->used += (uint64_t)used - b->used;
    c->ready += (uint64_t)ready - b->ready;
    p->stats.pages_used += (uint64_t)used - b->used;
    p->stats.used_bytes += ((uint64_t)used - b->used) * c->page_bytes;
    p->stats.resident_bytes += ((uint64_t)used + ready - b->used - b->ready) * c->page_bytes;
    b->used = used;
    b->ready = ready;
    for (enum list l = 0; l < LISTS; l++)
        if (had[l] && !has[l])
            list_remove(p, l, unit);
        else if (!had[l] && has[l])
            list_push(p, l, unit);
}

/* A free page of that kind leaves its block's list. Pages from `fresh` on are in no list: they are
 * dry, or ready where the backend has no dry ones. */
static uint32_t page_pop(struct kv_pool *p, uint32_t unit, enum list l) {
    struct block *b = &p->blocks[unit];
    uint32_t addr = b->head[l];
    if (addr == NO_PAGE)
        addr = unit * ADDR_PER_UNIT + b->fresh++ * p->classes[b->class_index].addr_step;
    else
        b->head[l] = p->slots[addr].next_free;
    return addr;
}

static void page_push(struct kv_pool *p, uint32_t unit, enum list l, uint32_t addr) {
    p->slots[addr].next_free = p->blocks[unit].head[l];
    p->blocks[unit].head[l] = addr;
}

/* First unit of the first run of `count` free units, or NO_BLOCK. */
static uint32_t find_units(struct kv_pool *p, uint32_t count) {
    uint32_t run = 0;
    bool seen_free = false;
    for (uint32_t u = p->unit_hint; u < p->n_units; u++) {
        bool free_unit = p->blocks[u].owner == 0;
        if (free_unit && !seen_free) {
            seen_free = true;
            p->unit_hint = u;
        }
        run = free_unit ? run + 1 : 0;
        if (run == count)
            return u + 1 - count;
    }
    return NO_BLOCK;
}

/* Gives back what is left of the memory of a block without pages in use, and its address space. */
static void block_drop(struct kv_pool *p, uint32_t unit) {
    struct block *b = &p->blocks[unit];
    struct page_class *c = &p->classes[b->class_index];
    const uint32_t units = b->units;
    ASSERT(b->used == 0);
    if (p->ahead)
        ahead_wait(p->ahead);
    if (b->ready)
        backend_arena_release(p->backend, p->arena, unit * ADDR_PER_UNIT, units * UNIT_BYTES);
    block_count(p, unit, 0, 0);
    list_remove(p, LIST_DRY, unit);
    c->room -= c->pages;
    mem_release(&p->slots[unit * ADDR_PER_UNIT], units * ADDR_PER_UNIT * sizeof *p->slots);
    p->stats.table_bytes -= units * UNIT_TABLE_BYTES;
    for (uint32_t i = 0; i < units; i++)
        p->blocks[unit + i] = (struct block){0};
    if (unit < p->unit_hint)
        p->unit_hint = unit;
}

/* Drops blocks without pages in use while at least `keep` free pages of the class are ready, and
 * those that have no memory. At most `bytes` of memory go back, and a block more; the return value
 * is what is left of `bytes`. */
static size_t drop_empty(struct kv_pool *p, struct page_class *c, uint64_t keep, size_t bytes) {
    for (enum list l = 0; l < LISTS && !c->claimed; l++)
        for (uint32_t unit = c->first[l], next; unit != NO_BLOCK && bytes; unit = next) {
            const struct block *b = &p->blocks[unit];
            next = b->in[l].next;
            if (b->used || (b->ready && c->ready < keep + b->ready))
                continue;
            const size_t given = b->ready * c->page_bytes;
            block_drop(p, unit);
            bytes -= given < bytes ? given : bytes;
        }
    return bytes;
}

static uint32_t block_make(struct kv_pool *p, uint32_t class_index) {
    struct page_class *c = &p->classes[class_index];
    uint32_t unit = find_units(p, c->units);
    if (unit == NO_BLOCK) { /* the address space of empty blocks may do */
        for (uint32_t i = 0; i < p->n_classes; i++)
            (void)drop_empty(p, &p->classes[i], 0, SIZE_MAX);
        unit = find_units(p, c->units);
    }
    if (unit == NO_BLOCK)
        return NO_BLOCK;
    for (uint32_t i = 0; i < c->units; i++)
        p->blocks[unit + i].owner = unit + 1;
    struct block *b = &p->blocks[unit];
    b->units = c->units;
    b->class_index = class_index;
    b->used = b->ready = b->fresh = 0;
    b->head[LIST_READY] = b->head[LIST_DRY] = NO_PAGE;
    list_push(p, LIST_DRY, unit);
    c->room += c->pages;
    p->stats.table_bytes += c->units * UNIT_TABLE_BYTES;
    if (!p->gives_pages_back)
        block_count(p, unit, 0, c->pages);
    return unit;
}

kvasir_status pool_claim(struct kv_pool *p, uint32_t class_index, uint64_t pages,
                         kvasir_error *err) {
    struct page_class *c = &p->classes[class_index];
    c->claimed = true;
    while (c->room - c->used < pages)
        if (block_make(p, class_index) == NO_BLOCK)
            return fail(err, KVASIR_ERR_BUDGET,
                        "no address space is left for %" PRIu64 " pages of %zu bytes: the cache's "
                        "%" PRIu64 " bytes in use are scattered over it",
                        pages, c->page_bytes, p->stats.used_bytes);
    return KVASIR_OK;
}

void pool_unclaim(struct kv_pool *p) {
    for (uint32_t i = 0; i < p->n_classes; i++) {
        struct page_class *c = &p->classes[i];
        c->claimed = false;
        (void)drop_empty(p, c, c->rest_reserve, SIZE_MAX);
    }
}

/* ---- memory of free pages -------------------------------------------------------------------- */

/* Makes ready pages of the class dry, down to `keep` of them or until `bytes` went back. The return
 * value is what is left of `bytes`. */
static size_t class_give_back(struct kv_pool *p, struct page_class *c, uint64_t keep,
                              size_t bytes) {
    if (p->ahead && bytes && c->ready > keep)
        ahead_wait(p->ahead);
    while (bytes && c->ready > keep) {
        const uint32_t unit = c->first[LIST_READY], addr = page_pop(p, unit, LIST_READY);
        const struct block *b = &p->blocks[unit];
        backend_arena_release(p->backend, p->arena, addr, c->page_bytes);
        page_push(p, unit, LIST_DRY, addr);
        block_count(p, unit, b->used, b->ready - 1);
        bytes -= c->page_bytes < bytes ? c->page_bytes : bytes;
    }
    return bytes;
}

static uint64_t resident(const struct kv_pool *p) {
    return p->stats.resident_bytes + p->stats.charged_bytes;
}

/* POOL-4: `bytes` more will be resident. The classes with the most free memory give some back. */
static void make_room(struct kv_pool *p, size_t bytes) {
    const uint64_t budget = p->stats.budget_bytes;
    if (!p->gives_pages_back || resident(p) + bytes <= budget)
        return;
    size_t excess = resident(p) + bytes - budget + budget / GIVE_BACK_PART;
    while (excess) {
        struct page_class *most = &p->classes[0];
        for (uint32_t i = 1; i < p->n_classes; i++)
            if (p->classes[i].ready * p->classes[i].page_bytes > most->ready * most->page_bytes)
                most = &p->classes[i];
        if (most->ready == 0)
            return;
        excess = class_give_back(p, most, 0, excess);
    }
}

void pool_keep_ready(struct kv_pool *p, uint32_t class_index, uint64_t pages, uint64_t at_rest) {
    struct page_class *c = &p->classes[class_index];
    ASSERT(pages <= at_rest && at_rest * c->page_bytes <= p->stats.budget_bytes);
    c->reserve = pages;
    c->rest_reserve = at_rest;
}

/* Touches dry pages until the class has so many ready ones, while it fits in the budget. */
static size_t reserve_fill(struct kv_pool *p, uint32_t class_index, uint64_t pages, size_t bytes,
                           bool by_thread) {
    struct page_class *c = &p->classes[class_index];
    while (bytes && c->ready < pages && resident(p) + c->page_bytes <= p->stats.budget_bytes) {
        uint32_t unit = c->first[LIST_DRY];
        if (unit == NO_BLOCK)
            unit = block_make(p, class_index);
        if (unit == NO_BLOCK)
            break;
        const uint32_t addr = page_pop(p, unit, LIST_DRY);
        if (by_thread && !ahead_page(p->ahead, addr, c->page_bytes)) {
            page_push(p, unit, LIST_DRY, addr);
            return 0;
        }
        if (!by_thread)
            backend_arena_take(p->backend, p->arena, addr, c->page_bytes, true);
        page_push(p, unit, LIST_READY, addr);
        block_count(p, unit, p->blocks[unit].used, p->blocks[unit].ready + 1);
        bytes -= c->page_bytes < bytes ? c->page_bytes : bytes;
    }
    return bytes;
}

bool kv_pool_rest(struct kv_pool *p) {
    size_t bytes = REST_BYTES;
    for (uint32_t i = 0; i < p->n_classes; i++) {
        struct page_class *c = &p->classes[i];
        bytes = drop_empty(p, c, c->rest_reserve, bytes);
        if (p->gives_pages_back)
            bytes = class_give_back(p, c, c->rest_reserve, bytes);
    }
    for (uint32_t i = 0; i < p->n_classes && p->gives_pages_back; i++)
        bytes = reserve_fill(p, i, p->classes[i].rest_reserve, bytes, false);
    return bytes == 0;
}

void pool_ahead_begin(struct kv_pool *p) {
    if (p->gives_pages_back && !p->ahead)
        p->ahead = ahead_create(p->backend, p->arena);
}

struct ahead *pool_ahead(const struct kv_pool *p) {
    return p->ahead;
}

void kv_pool_ahead(struct kv_pool *p) {
    size_t bytes = REST_BYTES;
    for (uint32_t i = 0; i < p->n_classes && p->ahead; i++)
        if (p->classes[i].ready < (p->classes[i].reserve + 1) / 2)
            bytes = reserve_fill(p, i, p->classes[i].reserve, bytes, true);
}

/* ---- pages ----------------------------------------------------------------------------------- */

static uint32_t block_of(const struct kv_pool *p, uint32_t addr) {
    return p->blocks[addr / ADDR_PER_UNIT].owner - 1;
}

kvasir_status pool_check_room(const struct kv_pool *p, uint64_t need, kvasir_error *err) {
    const uint64_t used = p->stats.used_bytes + p->stats.charged_bytes;
    if (need <= p->stats.budget_bytes - used)
        return KVASIR_OK;
    char text[3][HUMAN_BYTES];
    return fail(err, KVASIR_ERR_BUDGET, "cache budget is %s, %s in use, %s more needed",
                human_bytes((double)p->stats.budget_bytes, text[0]),
                human_bytes((double)used, text[1]), human_bytes((double)need, text[2]));
}

static void note_peak(struct kv_pool *p) {
    const uint64_t used = p->stats.used_bytes + p->stats.charged_bytes;
    if (used > p->stats.peak_bytes)
        p->stats.peak_bytes = used;
}

kvasir_status pool_charge(struct kv_pool *p, uint64_t bytes, kvasir_error *err) {
    TRY(pool_check_room(p, bytes, err));
    make_room(p, bytes);
    p->stats.charged_bytes += bytes;
    note_peak(p);
    return KVASIR_OK;
}

void pool_discharge(struct kv_pool *p, uint64_t bytes) {
    ASSERT(bytes <= p->stats.charged_bytes);
    p->stats.charged_bytes -= bytes;
}

/* *dry: it has no memory. */
static kvasir_status take_any(struct kv_pool *p, uint32_t class_index, uint32_t *addr, bool *dry,
                              kvasir_error *err) {
    struct page_class *c = &p->classes[class_index];
    TRY(pool_check_room(p, c->page_bytes, err));
    uint32_t unit = c->first[LIST_READY];
    if (unit == NO_BLOCK)
        unit = c->first[LIST_DRY];
    if (unit == NO_BLOCK)
        unit = block_make(p, class_index);
    if (unit == NO_BLOCK)
        return fail(err, KVASIR_ERR_BUDGET,
                    "no address space is left for a page of %zu bytes: the cache's %" PRIu64
                    " bytes in use are scattered over it",
                    c->page_bytes, p->stats.used_bytes);
    struct block *b = &p->blocks[unit];
    *dry = b->ready == 0;
    if (*dry)
        make_room(p, c->page_bytes);
    *addr = page_pop(p, unit, *dry ? LIST_DRY : LIST_READY);
    p->slots[*addr].refs = 1;
    p->slots[*addr].tree_refs = 0;
    block_count(p, unit, b->used + 1, *dry ? 0 : b->ready - 1);
    p->stats.pages_taken++;
    note_peak(p);
    return KVASIR_OK;
}

kvasir_status page_take(struct kv_pool *p, uint32_t class_index, uint32_t *addr,
                        kvasir_error *err) {
    bool dry;
    TRY(take_any(p, class_index, addr, &dry, err));
    backend_arena_take(p->backend, p->arena, *addr, p->classes[class_index].page_bytes, dry);
    return KVASIR_OK;
}

kvasir_status page_take_unset(struct kv_pool *p, uint32_t class_index, uint32_t *addr,
                              kvasir_error *err) {
    bool dry;
    TRY(take_any(p, class_index, addr, &dry, err));
    if (p->backend->ops->arena_map)
        backend_arena_map(p->backend, p->arena, *addr, p->classes[class_index].page_bytes);
    return KVASIR_OK;
}

static struct page_class *class_of(struct kv_pool *p, uint32_t addr) {
    return &p->classes[p->blocks[block_of(p, addr)].class_index];
}

/* POOL-5: around every change of a page's references, stored_less takes it off the stored pages
 * and stored_more adds it again, if only the tree holds it. */
static void stored_less(struct kv_pool *p, uint32_t addr) {
    struct page_class *c = class_of(p, addr);
    if (p->slots[addr].refs != p->slots[addr].tree_refs)
        return;
    c->stored--;
    p->stats.stored_bytes -= c->page_bytes;
}
static void stored_more(struct kv_pool *p, uint32_t addr) {
    struct page_class *c = class_of(p, addr);
    if (p->slots[addr].refs != p->slots[addr].tree_refs)
        return;
    c->stored++;
    p->stats.stored_bytes += c->page_bytes;
}

static void page_free(struct kv_pool *p, uint32_t addr) {
    const uint32_t unit = block_of(p, addr);
    const struct block *b = &p->blocks[unit];
    page_push(p, unit, LIST_READY, addr);
    block_count(p, unit, b->used - 1, b->ready + 1);
}

void page_ref(struct kv_pool *p, uint32_t addr) {
    stored_less(p, addr);
    p->slots[addr].refs++;
}

bool page_shared(const struct kv_pool *p, uint32_t addr) {
    return p->slots[addr].refs > 1;
}

void page_unref(struct kv_pool *p, uint32_t addr) {
    struct slot *s = &p->slots[addr];
    ASSERT(s->refs > s->tree_refs);
    if (--s->refs == 0)
        page_free(p, addr);
    else
        stored_more(p, addr);
}

void page_store(struct kv_pool *p, uint32_t addr) {
    struct slot *s = &p->slots[addr];
    ASSERT(s->refs > 0);
    s->refs++;
    s->tree_refs++;
}

void page_unstore(struct kv_pool *p, uint32_t addr) {
    struct slot *s = &p->slots[addr];
    ASSERT(s->tree_refs > 0);
    stored_less(p, addr);
    s->tree_refs--;
    if (--s->refs == 0)
        page_free(p, addr);
    else
        stored_more(p, addr);
}

bool page_is_live(const struct kv_pool *p, uint32_t addr) {
    return p->slots[addr].refs > p->slots[addr].tree_refs;
}

bool page_is_stored(const struct kv_pool *p, uint32_t addr) {
    return p->slots[addr].tree_refs > 0;
}

uint32_t page_live_refs(const struct kv_pool *p, uint32_t addr) {
    return p->slots[addr].refs - p->slots[addr].tree_refs;
}

void page_copy(struct kv_pool *p, uint32_t to, uint32_t from) {
    backend_arena_copy(p->backend, p->arena, to, from, class_of(p, from)->page_bytes);
}
