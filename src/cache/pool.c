/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c: the page pool: one arena of address space, one budget of bytes, reference counts.
 *
 *   arena   | unit 0 | unit 1 | unit 2 | unit 3 | unit 4 | ...    a unit is 2 MiB
 *             `---- superblock ----'   `- superblock -'           (1 or more units, one class)
 *               page page page  slack    page page ...
 *
 * Pages of one size and pair of formats (a class) are cut from superblocks. A superblock has so
 * many units that at most 1/16 of it is slack. Slack is never touched, so it costs address space
 * but no memory. A superblock goes back to the system as a whole when its last page is freed.
 *
 * All bookkeeping is in two flat tables beside the arena. They are reserved like the arena and get
 * memory when touched, so nothing is allocated after creation and an empty budget costs nothing.
 *
 *   slots[addr]    4 KiB unit -> references of the page that starts there, and how many of them are
 *                  the prefix tree's; or the next free page
 *   blocks[unit]   2 MiB unit -> superblock that starts there
 *
 * Invariants
 *   POOL-1  used_bytes is the sum of page_bytes over pages with references. used_bytes +
 *           charged_bytes (what others keep beside pages, pool_charge) <= budget_bytes.
 *   POOL-2  A block is in its class's list exactly if it has a free page.
 *   POOL-3  Pages from `fresh` on were never taken since the block was made: they are zero because
 *           the system gave them so (backend_arena_take is told). Recycled pages are zeroed when
 *           taken.
 *   POOL-4  A superblock without pages in use exists only between pool_claim and pool_unclaim.
 *   POOL-5  stored_bytes is the sum of page_bytes over pages whose references are all the tree's.
 *           Each class counts its own pages: those in use, and of them those that are stored.
 *
 * The pool does not evict: it never decides what to free.
 */
#include <inttypes.h>
#include <string.h>

#include "cache/cache_internal.h"

#define UNIT_BYTES ((size_t)2 << 20)
enum { ADDR_PER_UNIT = (2 << 20) / PAGE_ADDR_UNIT };
#define NO_BLOCK UINT32_MAX
#define NO_PAGE  UINT32_MAX

struct slot {
    uint32_t refs;
    union {
        uint32_t tree_refs; /* of refs */
        uint32_t next_free; /* address of the block's next free page, while refs is 0 */
    };
};

struct block {
    uint32_t units; /* 0: no block starts at this unit */
    uint32_t owner; /* first unit of this unit's block, + 1; 0: free unit */
    uint32_t class_index;
    uint32_t used;       /* pages with references */
    uint32_t fresh;      /* pages ever taken since the block was made */
    uint32_t free_head;  /* address of a recycled page, or NO_PAGE */
    uint32_t prev, next; /* the class's list of blocks with a free page */
};

struct page_class {
    size_t page_bytes;
    struct kv_format k, v;
    uint32_t addr_step;    /* addresses from one page to the next */
    uint32_t units;        /* of a superblock */
    uint32_t pages;        /* in a superblock */
    uint32_t first;        /* first block with a free page, or NO_BLOCK */
    uint64_t used, stored; /* pages in use; of those, the ones that only the tree holds */
};

struct kv_pool {
    struct backend *backend;
    struct backend_arena *arena;
    bool pages_without_bytes; /* of struct backend_info */
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
        .first = NO_BLOCK,
    };
    *class_index = p->n_classes++;
    return KVASIR_OK;
}

/* ---- superblocks ----------------------------------------------------------------------------- */

static void list_push(struct kv_pool *p, struct page_class *c, uint32_t unit) {
    struct block *b = &p->blocks[unit];
    b->prev = NO_BLOCK;
    b->next = c->first;
    if (c->first != NO_BLOCK)
        p->blocks[c->first].prev = unit;
    c->first = unit;
}

static void list_remove(struct kv_pool *p, struct page_class *c, uint32_t unit) {
    struct block *b = &p->blocks[unit];
    if (b->prev != NO_BLOCK)
        p->blocks[b->prev].next = b->next;
    else
        c->first = b->next;
    if (b->next != NO_BLOCK)
        p->blocks[b->next].prev = b->prev;
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

static uint32_t block_make(struct kv_pool *p, uint32_t class_index) {
    struct page_class *c = &p->classes[class_index];
    uint32_t unit = find_units(p, c->units);
    if (unit == NO_BLOCK)
        return NO_BLOCK;
    for (uint32_t i = 0; i < c->units; i++)
        p->blocks[unit + i].owner = unit + 1;
    struct block *b = &p->blocks[unit];
    b->units = c->units;
    b->class_index = class_index;
    b->used = b->fresh = 0;
    b->free_head = NO_PAGE;
    list_push(p, c, unit);
    return unit;
}

/* Gives the block's memory back to the system. It reads as zeros when it is taken again. */
static void block_release(struct kv_pool *p, uint32_t unit) {
    struct block *b = &p->blocks[unit];
    uint32_t units = b->units;
    list_remove(p, &p->classes[b->class_index], unit);
    backend_arena_release(p->backend, p->arena, unit * ADDR_PER_UNIT, units * UNIT_BYTES);
    for (uint32_t i = 0; i < units; i++)
        p->blocks[unit + i] = (struct block){0};
    if (unit < p->unit_hint)
        p->unit_hint = unit;
}

kvasir_status pool_claim(struct kv_pool *p, uint32_t class_index, uint64_t pages,
                         kvasir_error *err) {
    const struct page_class *c = &p->classes[class_index];
    uint64_t room = 0;
    for (uint32_t unit = c->first; unit != NO_BLOCK; unit = p->blocks[unit].next)
        room += c->pages - p->blocks[unit].used;
    while (room < pages) {
        if (block_make(p, class_index) == NO_BLOCK)
            return fail(err, KVASIR_ERR_BUDGET,
                        "no address space is left for %" PRIu64 " pages of %zu bytes: the cache's "
                        "%" PRIu64 " bytes in use are scattered over it",
                        pages, c->page_bytes, p->stats.used_bytes);
        room += c->pages;
    }
    return KVASIR_OK;
}

void pool_unclaim(struct kv_pool *p) {
    for (uint32_t i = 0; i < p->n_classes; i++)
        for (uint32_t unit = p->classes[i].first, next; unit != NO_BLOCK; unit = next) {
            next = p->blocks[unit].next;
            if (p->blocks[unit].used == 0)
                block_release(p, unit);
        }
}

/* ---- pages ----------------------------------------------------------------------------------- */

static uint32_t block_of(const struct kv_pool *p, uint32_t addr) {
    return p->blocks[addr / ADDR_PER_UNIT].owner - 1;
}

kvasir_status pool_check_room(const struct kv_pool *p, uint64_t need, kvasir_error *err) {
    const uint64_t used = p->stats.used_bytes + p->stats.charged_bytes;
    if (need <= p->stats.budget_bytes - used)
        return KVASIR_OK;
    return fail(err, KVASIR_ERR_BUDGET,
                "cache budget is %" PRIu64 " bytes, %" PRIu64 " in use, %" PRIu64 " more needed",
                p->stats.budget_bytes, used, need);
}

static void note_peak(struct kv_pool *p) {
    const uint64_t used = p->stats.used_bytes + p->stats.charged_bytes;
    if (used > p->stats.peak_bytes)
        p->stats.peak_bytes = used;
}

kvasir_status pool_charge(struct kv_pool *p, uint64_t bytes, kvasir_error *err) {
    TRY(pool_check_room(p, bytes, err));
    p->stats.charged_bytes += bytes;
    note_peak(p);
    return KVASIR_OK;
}

void pool_discharge(struct kv_pool *p, uint64_t bytes) {
    ASSERT(bytes <= p->stats.charged_bytes);
    p->stats.charged_bytes -= bytes;
}

kvasir_status page_take(struct kv_pool *p, uint32_t class_index, uint32_t *addr,
                        kvasir_error *err) {
    struct page_class *c = &p->classes[class_index];
    TRY(pool_check_room(p, c->page_bytes, err));
    uint32_t unit = c->first;
    if (unit == NO_BLOCK)
        unit = block_make(p, class_index);
    if (unit == NO_BLOCK)
        return fail(err, KVASIR_ERR_BUDGET,
                    "no address space is left for a page of %zu bytes: the cache's %" PRIu64
                    " bytes in use are scattered over it",
                    c->page_bytes, p->stats.used_bytes);
    struct block *b = &p->blocks[unit];
    bool fresh = b->free_head == NO_PAGE;
    if (fresh) {
        *addr = unit * ADDR_PER_UNIT + b->fresh++ * c->addr_step;
    } else {
        *addr = b->free_head;
        b->free_head = p->slots[*addr].next_free;
    }
    backend_arena_take(p->backend, p->arena, *addr, c->page_bytes, fresh);
    p->slots[*addr].refs = 1;
    p->slots[*addr].tree_refs = 0;
    if (++b->used == c->pages)
        list_remove(p, c, unit);
    c->used++;
    p->stats.pages_used++;
    p->stats.pages_taken++;
    p->stats.used_bytes += c->page_bytes;
    note_peak(p);
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
    uint32_t unit = block_of(p, addr);
    struct block *b = &p->blocks[unit];
    struct page_class *c = &p->classes[b->class_index];
    p->slots[addr].next_free = b->free_head;
    b->free_head = addr;
    if (b->used-- == c->pages)
        list_push(p, c, unit);
    c->used--;
    p->stats.pages_used--;
    p->stats.used_bytes -= c->page_bytes;
    if (b->used == 0)
        block_release(p, unit);
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

void page_copy(struct kv_pool *p, uint32_t to, uint32_t from) {
    backend_arena_copy(p->backend, p->arena, to, from, class_of(p, from)->page_bytes);
}
