/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over pages: which blocks of query rows a step has, and how they are spread over
 * threads. attention_block.c computes a block.
 *
 * A plan is a block of each KV head. Its rows are tokens of one sequence, or of several that share
 * pages and have one token each, as a rule. Items are cut by what they cost, so that one long
 * sequence among short ones keeps all threads busy:
 *
 *   whole   a block that costs little is one item, with all its splits (prompts: there are many)
 *   cut     an item is some consecutive splits of a block; their partial results are stored and
 *           merged by the worker that finishes the block's last item (decoding: one block a head,
 *           many splits)
 *
 * Both give the same bits, because splits are merged in the same order, whoever merges them.
 *
 * No buffer here grows with the context: scores are those of one split, and partial results are
 * merged in waves.
 */
#include <math.h>

#include "backend/cpu/attention.h"

struct block_plan {
    uint32_t seq;          /* the first one of the batch */
    uint32_t first, n;     /* sequences: page_keys[first .. first + n) */
    uint32_t pos, tokens;  /* n == 1: these tokens of the sequence; else all that each has */
    uint32_t rows, splits; /* of a block */
    uint32_t items;        /* of a block; 1: whole */
    size_t first_item;     /* of all blocks of all plans before */
    size_t partials;       /* cut: the first of its rows of partial results */
};

/* Some pages of a sequence: those 0, 1, 3, 7, ... after the first one that all sequences see. In
 * the order of these keys, sequences that share most are neighbours, nearly: pages between the
 * last equal one and the next are not compared. */
enum { KEY_PAGES = 12, NO_PAGE = UINT32_MAX };

struct page_key {
    uint32_t seq;
    uint32_t pages[KEY_PAGES]; /* addresses */
};

bool attention_init(struct cpu_backend *b) {
    const size_t rows = b->limits.rows, dim = b->limits.head_dim;
    b->partials = mem_alloc_aligned(PARTIAL_ROWS * sizeof *b->partials);
    b->partial_out = mem_alloc_aligned(PARTIAL_ROWS * dim * sizeof *b->partial_out);
    b->finished = mem_calloc(PARTIAL_ROWS, sizeof *b->finished);
    b->plans = mem_alloc(rows * sizeof *b->plans);
    b->page_keys = mem_alloc(rows * sizeof *b->page_keys);
    return b->partials && b->partial_out && b->finished && b->plans && b->page_keys;
}

void attention_deinit(struct cpu_backend *b) {
    mem_free(b->partials);
    mem_free(b->partial_out);
    mem_free(b->finished);
    mem_free(b->plans);
    mem_free(b->page_keys);
}

/* ---- sorting --------------------------------------------------------------------------------- */

typedef int compare_fn(const void *a, const void *b);

static void swap_items(uint8_t *a, uint8_t *b, size_t size) {
    for (size_t i = 0; i < size; i++) {
        const uint8_t byte = a[i];
        a[i] = b[i];
        b[i] = byte;
    }
}

static void sift_down(uint8_t *items, size_t at, size_t n, size_t size, compare_fn *compare) {
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && compare(items + child * size, items + (child + 1) * size) < 0)
            child++;
        if (compare(items + at * size, items + child * size) >= 0)
            return;
        swap_items(items + at * size, items + child * size, size);
    }
}

/* Heapsort: qsort takes memory, and a step must not (I6). */
static void sort_in_place(void *items, size_t n, size_t size, compare_fn *compare) {
    for (size_t i = n / 2; i-- > 0;)
        sift_down(items, i, n, size, compare);
    for (size_t end = n; end-- > 1;) {
        swap_items(items, (uint8_t *)items + end * size, size);
        sift_down(items, 0, end, size, compare);
    }
}

/* ---- sequences that share pages -------------------------------------------------------------- */

/* Sequences that share fewer pages than 4, the third of a key, are not worth a block. */
enum { SHARED_KEY = 2 };

static uint32_t first_page(const struct kv_view *v, uint32_t pos) {
    return v->keep ? 0 : window_start(v, pos) / TILE_TOKENS;
}

static void find_pages(struct page_key *key, const struct attention_job *j, uint32_t from) {
    const struct kv_view *v = &j->views[key->seq];
    for (uint32_t i = 0; i < KEY_PAGES; i++) {
        const uint32_t at = kv_view_index(v, from + (1u << i) - 1);
        key->pages[i] = at == UINT32_MAX ? NO_PAGE : v->pages[at].addr;
    }
}

static int compare_keys(const void *a, const void *b) {
    const struct page_key *x = a, *y = b;
    for (uint32_t i = 0; i < KEY_PAGES; i++)
        if (x->pages[i] != y->pages[i])
            return x->pages[i] < y->pages[i] ? -1 : 1;
    return x->seq < y->seq ? -1 : 1;
}

static uint32_t blocks_of(const struct attention_job *j, const struct batch_seq *s) {
    uint32_t t = j->block_tokens;
    return (s->pos + s->rows - 1) / t - s->pos / t + 1;
}

/* Whether two sequences that follow each other in the order of keys share what is worth a block. */
static bool shares_pages(const struct page_key *a, const struct page_key *b) {
    return a->pages[SHARED_KEY] != NO_PAGE && a->pages[SHARED_KEY] == b->pages[SHARED_KEY];
}

/* The keys of a step: first, in order, those of sequences whose rows are at most half a block,
 * which may share one. Returns how many these are; 0, and all keys in the order of the batch, if
 * none shares. */
static uint32_t order_sequences(struct attention_job *j) {
    struct page_key *keys = j->b->page_keys;
    const struct batch *batch = j->batch;
    uint32_t few = 0, many = batch->n_seqs, from = 0;
    bool some = false;
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        const struct batch_seq *seq = &batch->seqs[s];
        if (blocks_of(j, seq) > 1 || 2 * seq->rows * j->gqa > BLOCK_ROWS) {
            keys[--many].seq = s;
            continue;
        }
        keys[few++].seq = s;
        from = max_u32(from, first_page(&j->views[s], seq->pos));
    }
    for (uint32_t i = 0; few > 1 && i < few; i++)
        find_pages(&keys[i], j, from);
    if (few > 1)
        sort_in_place(keys, few, sizeof *keys, compare_keys);
    for (uint32_t i = 1; i < few && !some; i++)
        some = shares_pages(&keys[i - 1], &keys[i]);
    for (uint32_t s = 0; s < batch->n_seqs && !some; s++)
        keys[s].seq = s;
    return some ? few : 0;
}

/* ---- plans ----------------------------------------------------------------------------------- */

static void plan_block(const struct attention_job *j, const struct block_plan *p, uint32_t head,
                       struct query_block *out) {
    const struct page_key *keys = j->b->page_keys + p->first;
    query_block_start(out, head);
    for (uint32_t i = 0; i < p->n; i++) {
        const struct batch_seq *s = &j->batch->seqs[keys[i].seq];
        if (p->n == 1)
            query_block_add(out, j, keys[i].seq, p->pos, p->tokens);
        else
            query_block_add(out, j, keys[i].seq, s->pos, s->rows);
    }
}

/* The sequence of key i: in blocks of its own, or in the last block, if it shares its pages. */
static void add_sequence(struct attention_job *j, uint32_t i, bool few) {
    const struct page_key *key = &j->b->page_keys[i];
    const struct batch_seq *s = &j->batch->seqs[key->seq];
    struct block_plan *last = j->n_plans ? &j->b->plans[j->n_plans - 1] : NULL;
    if (few && i > 0 && shares_pages(&key[-1], key) &&
        last->rows + s->rows * j->gqa <= BLOCK_ROWS) {
        last->n++;
        last->seq = min_u32(last->seq, key->seq);
        last->rows += s->rows * j->gqa;
        return;
    }
    const uint32_t t = j->block_tokens, end = s->pos + s->rows;
    for (uint32_t pos = s->pos; pos < end;) {
        const uint32_t next = min_u32((pos / t + 1) * t, end);
        ASSERT(j->n_plans < j->b->limits.rows);
        j->b->plans[j->n_plans++] = (struct block_plan){.seq = key->seq,
                                                        .first = i,
                                                        .n = 1,
                                                        .pos = pos,
                                                        .tokens = next - pos,
                                                        .rows = (next - pos) * j->gqa};
        pos = next;
    }
}

/* What a block costs: reading a tile and unpacking it takes as long as multiplying so many rows. */
static uint64_t cost_of(const struct block_plan *p) {
    enum { TILE_ROWS = 8 };
    return (uint64_t)p->splits * (TILE_ROWS + p->rows);
}

/* Rows of partial results of a plan's blocks: each has slot 0 for the merged splits of earlier
 * waves, slot 1 + i for the split that is number wave_first + i of those it sees. */
static size_t slots_of(const struct block_plan *p, uint32_t wave_splits) {
    return p->items == 1 ? 0 : (1 + (size_t)min_u32(wave_splits, p->splits)) * p->rows;
}

static size_t partial_rows(const struct attention_job *j, uint32_t wave_splits) {
    size_t rows = 0;
    for (uint32_t i = 0; i < j->n_plans; i++)
        rows += slots_of(&j->b->plans[i], wave_splits) * j->kv_heads;
    return rows;
}

/* Cuts the blocks that cost more than others, as far as partial results have room. */
static void cut_items(struct attention_job *j) {
    struct block_plan *plans = j->b->plans;
    const uint64_t items = 4 * (uint64_t)j->b->threads;
    uint64_t cost = 0;
    for (uint32_t i = 0; i < j->n_plans; i++)
        cost += cost_of(&plans[i]) * j->kv_heads;
    for (uint32_t i = 0; i < j->n_plans; i++) {
        const uint64_t share = (cost_of(&plans[i]) * items + cost - 1) / cost;
        plans[i].items = (uint32_t)(share < plans[i].splits ? share : plans[i].splits);
        j->splits = max_u32(j->splits, plans[i].splits);
    }
    j->wave_splits = j->splits;
    while (j->wave_splits > 1 && partial_rows(j, j->wave_splits) > PARTIAL_ROWS)
        j->wave_splits = (j->wave_splits + 1) / 2;
    size_t rows = 0;
    for (uint32_t i = 0; i < j->n_plans; i++) {
        struct block_plan *p = &plans[i];
        p->items = min_u32(p->items, j->wave_splits); /* 1 needs no room */
        p->first_item = j->items;
        p->partials = rows;
        j->items += (size_t)p->items * j->kv_heads;
        j->cut |= p->items > 1;
        rows += slots_of(p, j->wave_splits) * j->kv_heads;
    }
    ASSERT(rows <= PARTIAL_ROWS);
}

static int compare_plans(const void *a, const void *b) {
    const struct block_plan *x = a, *y = b;
    if (x->seq != y->seq)
        return x->seq < y->seq ? -1 : 1;
    return x->pos < y->pos ? -1 : 1;
}

static void make_plans(struct attention_job *j) {
    const uint32_t few = order_sequences(j);
    for (uint32_t i = 0; i < j->batch->n_seqs; i++)
        add_sequence(j, i, i < few);
    if (few) /* the order of the batch deals sequences to threads by their cost (engine/step.c) */
        sort_in_place(j->b->plans, j->n_plans, sizeof *j->b->plans, compare_plans);
    for (uint32_t i = 0; i < j->n_plans; i++) {
        struct query_block b;
        plan_block(j, &j->b->plans[i], 0, &b);
        j->b->plans[i].splits = query_block_splits(&b);
    }
    cut_items(j);
}

/* ---- items ----------------------------------------------------------------------------------- */

/* Splits [first, end) of a plan's block: none of a short sequence in a late wave, or where earlier
 * items have all of them. Items without splits also count as ended (is_last). */
struct item {
    const struct block_plan *plan;
    uint32_t head, first, end;
};

static void find_item(const struct attention_job *j, size_t index, struct item *out) {
    uint32_t first = 0, end = j->n_plans;
    ASSERT(index < j->items);
    while (end - first > 1) {
        const uint32_t middle = first + (end - first) / 2;
        if (j->b->plans[middle].first_item <= index)
            first = middle;
        else
            end = middle;
    }
    const struct block_plan *p = out->plan = &j->b->plans[first];
    const uint32_t n = (uint32_t)(index - p->first_item), part = n % p->items;
    if (p->items == 1) {
        out->first = 0;
        out->end = j->wave_first == 0 ? p->splits : 0;
    } else {
        const uint32_t wave = min_u32(j->wave_splits, p->splits),
                       each = (wave + p->items - 1) / p->items;
        out->first = j->wave_first + part * each;
        out->end = min_u32(min_u32(out->first + each, j->wave_first + wave), p->splits);
    }
    out->head = n / p->items;
}

/* Where the partial results of a split are, or of the merged ones (slot 0). */
static size_t partial_at(const struct attention_job *j, const struct block_plan *p, uint32_t head,
                         uint32_t slot) {
    return p->partials + head * slots_of(p, j->wave_splits) + (size_t)slot * p->rows;
}

static void merge_start(struct partial *all, uint32_t rows) {
    for (uint32_t r = 0; r < rows; r++)
        all[r] = (struct partial){.max = -INFINITY, .sum = 0};
}

/* The first split of the item that the worker most likely takes next. */
static void find_next(const struct attention_job *j, size_t index, struct split *out) {
    struct item next;
    struct query_block block;
    out->n = 0;
    if (index >= j->items)
        return;
    find_item(j, index, &next);
    if (next.first >= next.end)
        return;
    plan_block(j, next.plan, next.head, &block);
    query_block_find_split(j, &block, next.first, out);
}

/* Attends to an item's splits. */
static void attend(const struct attention_job *j, size_t index, const struct item *item,
                   struct worker_scratch *s) {
    struct cpu_backend *b = j->b;
    const bool whole = item->plan->items == 1;
    struct query_block own;
    const struct query_block *block = &own;
    plan_block(j, item->plan, item->head, &own);
    query_block_pack(j, block, s);
    if (whole)
        merge_start(s->all, block->rows);
    query_block_find_split(j, block, item->first, &s->visited[0]);
    for (uint32_t i = item->first; i < item->end; i++) {
        struct split *now = &s->visited[(i - item->first) % 2],
                     *next = &s->visited[(i - item->first + 1) % 2];
        if (i + 1 < item->end)
            query_block_find_split(j, block, i + 1, next);
        else
            find_next(j, index + 1, next);
        if (whole) {
            query_block_attend(j, block, now, next, s, s->split, s->split_out);
            query_block_merge(s->all, s->all_out, s->split, s->split_out, block->rows, j->head_dim);
        } else {
            const size_t at = partial_at(j, item->plan, block->head, 1 + i - j->wave_first);
            query_block_attend(j, block, now, next, s, b->partials + at,
                               b->partial_out + at * j->head_dim);
        }
    }
    if (whole)
        query_block_finish(j, block, s->all, s->all_out);
}

/* Merges a cut block's splits of this wave with those of earlier ones. */
static void merge_block(const struct attention_job *j, const struct block_plan *p, uint32_t head) {
    const size_t dim = j->head_dim, all = partial_at(j, p, head, 0);
    if (j->wave_first >= p->splits)
        return;
    const uint32_t n = min_u32(j->wave_splits, p->splits - j->wave_first);
    if (j->wave_first == 0)
        merge_start(j->b->partials + all, p->rows);
    for (uint32_t i = 0; i < n; i++) {
        const size_t at = partial_at(j, p, head, 1 + i);
        query_block_merge(j->b->partials + all, j->b->partial_out + all * dim, j->b->partials + at,
                          j->b->partial_out + at * dim, p->rows, j->head_dim);
    }
    if (j->wave_first + n < p->splits)
        return;
    struct query_block block;
    plan_block(j, p, head, &block);
    query_block_finish(j, &block, j->b->partials + all, j->b->partial_out + all * dim);
}

/* Whether this is the last of a block's items to end. It acquires what the others have released:
 * their partial results. */
static bool is_last(const struct attention_job *j, const struct item *item) {
    atomic_uint *finished = &j->b->finished[partial_at(j, item->plan, item->head, 0)];
    if (atomic_fetch_add_explicit(finished, 1, memory_order_acq_rel) + 1 < item->plan->items)
        return false;
    atomic_store_explicit(finished, 0, memory_order_relaxed); /* for the next wave or layer */
    return true;
}

static void attention_item(void *ctx, size_t index, int worker) {
    const struct attention_job *j = ctx;
    struct item item;
    find_item(j, index, &item);
    if (item.first < item.end)
        attend(j, index, &item, &j->b->scratch[worker]);
    if (item.plan->items > 1 && is_last(j, &item))
        merge_block(j, item.plan, item.head);
}

void cpu_attention(struct backend *base, const struct batch *batch, const struct kv_view *views,
                   uint32_t layer, const float *q, const struct attention_args *args, float *out) {
    struct cpu_backend *b = cpu_of(base);
    const struct page_layout *l = &views[0].layouts[0];
    struct attention_job j = {.b = b,
                              .batch = batch,
                              .views = views,
                              .centre = centre_find(b, views[0].centre),
                              .layer = layer,
                              .heads = args->heads,
                              .kv_heads = l->kv_heads,
                              .gqa = args->heads / l->kv_heads,
                              .head_dim = l->k.head_dim,
                              .block_tokens = TILE_TOKENS,
                              .q = q,
                              .args = args,
                              .out = out};
    ASSERT(batch->rows <= b->limits.rows && l->k.head_dim <= b->limits.head_dim);
    ASSERT(layer < l->layers && j.gqa >= 1 && j.gqa <= BLOCK_ROWS);
    while (j.block_tokens * j.gqa > BLOCK_ROWS)
        j.block_tokens /= 2;
    make_plans(&j);
    do {
        thread_pool_run(b->pool, j.items, attention_item, &j);
        j.wave_first += j.wave_splits;
    } while (j.cut && j.wave_first < j.splits);
}
