/* SPDX-License-Identifier: Apache-2.0 */
/* Storing K and V, and attention over pages.
 *
 * For one KV head, a block of query rows (a few tokens x the query heads that share the KV head)
 * goes over the tokens in splits of 512 at absolute positions. A split is eight tiles:
 *
 *      pages        | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | ...
 *      splits       |           split 0             |   split 1 ...
 *      per split    1. scores of each tile a row of the block sees    score_tile, codes as stored
 *                      and what the centre of its keys adds           centre_add
 *                      and then the soft cap, if there is one         softcap
 *                   2. -INFINITY for tokens that a row does not see   by position, not by column
 *                   3. maximum, exp, sum                              softmax_run
 *                   4. weighted values of the same tiles              value_tile, codes as stored
 *      then         splits are merged in order of position               merge_split
 *      at the end   the sink joins the sum, then all is divided by it     block_finish
 *
 * Two ways to spread this over threads give the same bits, because splits are merged in the same
 * order:
 *   whole   an item is a block with all its splits (prefill: there are many blocks)
 *   shared  an item is some consecutive splits of a block; their partial results are stored and
 *           merged afterwards (decode: one block a head, many splits)
 *
 * No buffer here grows with the context: scores are those of one split, and partial results are
 * merged in waves.
 */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_internal.h"

/* ---- storing --------------------------------------------------------------------------------- */

_Static_assert(SPLIT_TOKENS % TILE_TOKENS == 0, "a split is a whole number of tiles");
_Static_assert(2 * BLOCK_ROWS <= PARTIAL_ROWS, "a block and one split of it fit a wave");

struct store_job {
    const struct cpu_backend *b;
    const struct batch *batch;
    const struct kv_view *views;
    const struct centre_table *centre;
    uint32_t layer;
    const float *k, *v;
};

static uint32_t pages_touched(const struct batch_seq *s) {
    return (s->pos + s->rows - 1) / TILE_TOKENS - s->pos / TILE_TOKENS + 1;
}

static const struct kv_page *page_of(const struct kv_view *v, uint32_t number) {
    const uint32_t i = kv_view_index(v, number);
    ASSERT(i != UINT32_MAX); /* a table lacks a page that a query sees */
    return &v->pages[i];
}

/* The K tile of a head; its V tile comes right after. */
static uint8_t *head_tiles(const struct kv_view *v, const struct kv_page *page, uint32_t layer,
                           uint32_t head) {
    const struct page_layout *l = &v->layouts[page->layout];
    return arena_at(v->arena, page_offset(page->addr) + page_tile(l, layer, head, TILE_K),
                    l->head_bytes);
}

/* An item is all rows that fall into one page, for one head: codes of less than a byte share bytes
 * with other tokens, so no two threads may write the same tile. */
static void store_item(void *ctx, size_t item, int worker) {
    (void)worker;
    const struct store_job *j = ctx;
    uint32_t heads = j->views[0].layouts[0].kv_heads;
    uint32_t head = (uint32_t)(item % heads), page_index = (uint32_t)(item / heads), s = 0;
    while (page_index >= pages_touched(&j->batch->seqs[s]))
        page_index -= pages_touched(&j->batch->seqs[s++]);
    ASSERT(s < j->batch->n_seqs);
    const struct batch_seq *seq = &j->batch->seqs[s];
    const struct kv_view *view = &j->views[s];
    uint32_t number = seq->pos / TILE_TOKENS + page_index;
    const struct kv_page *page = page_of(view, number);
    const struct page_layout *l = &view->layouts[page->layout];
    uint8_t *tiles = head_tiles(view, page, j->layer, head);
    uint32_t first = number * TILE_TOKENS > seq->pos ? number * TILE_TOKENS : seq->pos;
    uint32_t end = (number + 1) * TILE_TOKENS < seq->pos + seq->rows ? (number + 1) * TILE_TOKENS
                                                                     : seq->pos + seq->rows;
    ASSERT(!l->centred || j->centre);
    for (uint32_t p = first; p < end; p++) {
        size_t at = ((size_t)(seq->row + p - seq->pos) * heads + head) * l->k.head_dim;
        const float *k = j->k + at;
        float rest[HEAD_DIM_MAX];
        if (l->centred) {
            centre_take_off(j->centre, j->layer, head, p, l->k.head_dim, k, rest);
            k = rest;
        }
        j->b->kernels.encode_row(&l->k, tiles, p % TILE_TOKENS, k);
        j->b->kernels.encode_row(&l->v, tiles + l->k.bytes, p % TILE_TOKENS, j->v + at);
    }
}

void cpu_kv_store(struct backend *base, const struct batch *batch, const struct kv_view *views,
                  uint32_t layer, const float *k, const float *v) {
    struct cpu_backend *b = cpu_of(base);
    struct store_job j = {b, batch, views, centre_find(b, views[0].centre), layer, k, v};
    ASSERT(layer < views[0].layouts[0].layers && batch->rows <= b->limits.rows);
    size_t pages = 0;
    for (uint32_t s = 0; s < batch->n_seqs; s++)
        pages += pages_touched(&batch->seqs[s]);
    thread_pool_run(b->pool, pages * views[0].layouts[0].kv_heads, store_item, &j);
}

/* ---- one split of one block ------------------------------------------------------------------ */

struct attention_job {
    struct cpu_backend *b;
    const struct batch *batch;
    const struct kv_view *views;
    const struct centre_table *centre; /* NULL: no page of the group is centred */
    uint32_t layer, heads, kv_heads, gqa, head_dim;
    uint32_t block_tokens; /* tokens of a block; a power of two, so blocks never cross a page */
    const float *q;
    const struct attention_args *args;
    float *out;
    /* shared mode */
    uint32_t n_blocks;        /* blocks of all sequences and KV heads */
    uint32_t slot_rows;       /* most rows of a block */
    uint32_t splits_per_item; /* consecutive splits of a block that one item computes */
    uint32_t items_per_block;
    uint32_t wave_first, wave_splits; /* the splits that this wave computes */
};

/* A block of query rows: tokens at positions [pos, pos + tokens) of one sequence, one KV head. */
struct block {
    const struct kv_view *view;
    uint32_t row, pos, tokens; /* row: of the step */
    uint32_t head;             /* KV head */
    uint32_t rows;             /* tokens * gqa */
};

/* The first position of the window of a query at p. */
static uint32_t window_start(const struct kv_view *v, uint32_t p) {
    return v->span == UINT32_MAX || p < v->span ? 0 : p + 1 - v->span;
}

/* True if some row of the block sees some position of [first, end). */
static bool block_sees(const struct block *b, uint32_t first, uint32_t end) {
    if (first >= b->pos + b->tokens)
        return false;
    return first < b->view->keep || end > window_start(b->view, b->pos);
}

static uint32_t blocks_of(const struct attention_job *j, const struct batch_seq *s) {
    uint32_t t = j->block_tokens;
    return (s->pos + s->rows - 1) / t - s->pos / t + 1;
}

static void block_find(const struct attention_job *j, size_t index, struct block *out) {
    uint32_t head = (uint32_t)(index % j->kv_heads), n = (uint32_t)(index / j->kv_heads), s = 0;
    while (n >= blocks_of(j, &j->batch->seqs[s]))
        n -= blocks_of(j, &j->batch->seqs[s++]);
    ASSERT(s < j->batch->n_seqs);
    const struct batch_seq *seq = &j->batch->seqs[s];
    uint32_t t = j->block_tokens, number = seq->pos / t + n;
    uint32_t first = number * t > seq->pos ? number * t : seq->pos;
    uint32_t last = (number + 1) * t - 1 < seq->pos + seq->rows - 1 ? (number + 1) * t - 1
                                                                    : seq->pos + seq->rows - 1;
    *out = (struct block){.view = &j->views[s],
                          .row = seq->row + first - seq->pos,
                          .pos = first,
                          .tokens = last - first + 1,
                          .head = head,
                          .rows = (last - first + 1) * j->gqa};
}

/* Rows are (token, query head of the group), token first. */
static const float *query_at(const struct attention_job *j, const struct block *b, uint32_t token) {
    return j->q + ((size_t)(b->row + token) * j->heads + b->head * j->gqa) * j->head_dim;
}

static void block_pack(const struct attention_job *j, const struct block *b,
                       struct worker_scratch *s) {
    size_t dim = j->head_dim;
    ASSERT(b->rows <= BLOCK_ROWS);
    for (uint32_t t = 0; t < b->tokens; t++) {
        size_t r = (size_t)t * j->gqa;
        struct query_rows part = {.rows = j->gqa,
                                  .dim = j->head_dim,
                                  .f32 = s->queries.f32 + r * dim,
                                  .codes = s->queries.codes + r * dim,
                                  .sum32 = s->queries.sum32 + r * (dim / 32),
                                  .scale = s->queries.scale + r};
        j->b->kernels.query_pack(query_at(j, b, t), dim, j->args->scale, &part);
    }
    s->queries.rows = b->rows;
    s->queries.dim = j->head_dim;
    centre_pack(j->centre, j->layer, b->head, &s->queries, &s->centre);
}

static void fill_masked(float *scores, uint32_t first, uint32_t end) {
    for (uint32_t i = first; i < end; i++)
        scores[i] = -INFINITY;
}

static uint32_t clamp_to_split(uint32_t position, uint32_t split_start, uint32_t n) {
    if (position <= split_start)
        return 0;
    return position - split_start < n ? position - split_start : n;
}

/* Masks those of the n tokens from split_start on that the query at p does not see: after p, and
 * between the kept ones and the window. */
static void mask_row(const struct kv_view *v, uint32_t p, uint32_t split_start, uint32_t n,
                     float *scores) {
    fill_masked(scores, clamp_to_split(v->keep, split_start, n),
                clamp_to_split(window_start(v, p), split_start, n));
    fill_masked(scores, clamp_to_split(p + 1, split_start, n), n);
}

/* The splits that a span of positions [pos, last] sees, in order: those with kept positions, then
 * those from the window's start on. */
static uint32_t kept_splits(const struct kv_view *v) {
    return v->keep ? (v->keep - 1) / SPLIT_TOKENS + 1 : 0;
}

static uint32_t window_split(const struct kv_view *v, uint32_t pos) {
    uint32_t first = window_start(v, pos) / SPLIT_TOKENS, kept = kept_splits(v);
    return first > kept ? first : kept;
}

static uint32_t seen_splits(const struct kv_view *v, uint32_t pos, uint32_t last) {
    uint32_t end = last / SPLIT_TOKENS + 1, kept = kept_splits(v), first = window_split(v, pos);
    return (kept < end ? kept : end) + (end > first ? end - first : 0);
}

static uint32_t block_splits(const struct block *b) {
    return seen_splits(b->view, b->pos, b->pos + b->tokens - 1);
}

static uint32_t nth_split(const struct block *b, uint32_t n) {
    uint32_t kept = kept_splits(b->view);
    return n < kept ? n : window_split(b->view, b->pos) + (n - kept);
}

/* The tiles of a split that some row of the block sees; NULL for the others and after the last. */
struct split_tiles {
    uint32_t start, n;   /* first position; tiles */
    uint32_t prefetched; /* tiles whose first K bytes were prefetched during the split before */
    const uint8_t *tiles[SPLIT_TOKENS / TILE_TOKENS + 1];
    const struct page_layout *layouts[SPLIT_TOKENS / TILE_TOKENS];
};

/* Split number i of those that the block sees. */
static void find_split(const struct attention_job *j, const struct block *b, uint32_t i,
                       struct split_tiles *out) {
    const uint32_t start = nth_split(b, i) * SPLIT_TOKENS, left = b->pos + b->tokens - start;
    const uint32_t n = (left < SPLIT_TOKENS ? left + TILE_TOKENS - 1 : SPLIT_TOKENS) / TILE_TOKENS;
    ASSERT(n <= sizeof out->layouts / sizeof *out->layouts);
    *out = (struct split_tiles){.start = start, .n = n};
    for (uint32_t t = 0; t < n; t++) {
        const uint32_t first = start + t * TILE_TOKENS;
        if (!block_sees(b, first, first + TILE_TOKENS))
            continue;
        const struct kv_page *page = page_of(b->view, first / TILE_TOKENS);
        out->layouts[t] = &b->view->layouts[page->layout];
        out->tiles[t] = head_tiles(b->view, page, j->layer, b->head);
    }
}

/* Kernels read a tile in pieces of 64 bytes per row, which hardware prefetchers follow badly, and
 * the next tile is in another page. Prefetching it while this one is computed doubles the speed
 * from memory. Into L2: that delays the work that follows least (docs/speed.md, "Ahead, into
 * L2"). */
static void prefetch(const uint8_t *tile, uint32_t from, uint32_t end) {
    for (uint32_t line = from; line < end; line += 64)
        __builtin_prefetch(tile + line, 0, 2 /* T1: to L2 */);
}

/* Bytes of a K tile that are prefetched one split ahead, while values are computed: keys are
 * multiplied faster than memory delivers them, values more slowly (docs/speed.md, "Keys a run
 * ahead"). */
static uint32_t bytes_ahead(const struct tile_layout *k) {
    return 3 * k->bytes / 8 / 64 * 64;
}

/* Prefetches K of tile i of the next split: all of it if no tile of that split comes before it. */
static void prefetch_split(struct split_tiles *next, uint32_t i) {
    if (i >= next->n)
        return;
    next->prefetched = i + 1;
    if (!next->tiles[i])
        return;
    const struct tile_layout *k = &next->layouts[i]->k;
    prefetch(next->tiles[i], 0, i == 0 || !next->tiles[i - 1] ? k->bytes : bytes_ahead(k));
}

/* The part of K of tile i of this split that was not prefetched yet; its V. */
static void prefetch_keys(const struct split_tiles *t, uint32_t i) {
    if (!t->tiles[i])
        return;
    const struct tile_layout *k = &t->layouts[i]->k;
    prefetch(t->tiles[i], i < t->prefetched ? bytes_ahead(k) : 0, k->bytes);
}
static void prefetch_values(const struct split_tiles *t, uint32_t i) {
    if (t->tiles[i])
        prefetch(t->tiles[i], t->layouts[i]->k.bytes, t->layouts[i]->head_bytes);
}

/* Scores, softmax and values of one split; partial results into part [rows] and out [rows][dim]. */
static void block_attend(const struct attention_job *j, const struct block *b,
                         const struct split_tiles *t, struct split_tiles *next,
                         struct worker_scratch *s, struct partial *part, float *out) {
    const struct kernels *k = &j->b->kernels;
    const uint32_t n = t->n * TILE_TOKENS;
    for (uint32_t i = 0; i < t->n; i++) {
        prefetch_keys(t, i + 1);
        if (!t->tiles[i]) {
            for (uint32_t r = 0; r < b->rows; r++)
                fill_masked(s->scores + (size_t)r * SPLIT_TOKENS, i * TILE_TOKENS,
                            (i + 1) * TILE_TOKENS);
            continue;
        }
        const struct tile_layout *l = &t->layouts[i]->k;
        DEBUG_ASSERT(l->head_dim == j->head_dim);
        score_tile_fn *score = kv_format_exact(l->format) ? k->score_exact : k->score_affine;
        float *scores = s->scores + (size_t)i * TILE_TOKENS;
        score(l, t->tiles[i], &s->queries, scores, SPLIT_TOKENS);
        if (t->layouts[i]->centred)
            centre_add(k, j->centre, t->start / TILE_TOKENS + i, b->rows, &s->centre, scores,
                       SPLIT_TOKENS);
        for (uint32_t r = 0; j->args->softcap > 0 && r < b->rows; r++)
            k->softcap(scores + (size_t)r * SPLIT_TOKENS, TILE_TOKENS, j->args->softcap);
    }
    prefetch_values(t, 0);
    for (uint32_t r = 0; r < b->rows; r++) {
        float *scores = s->scores + (size_t)r * SPLIT_TOKENS;
        mask_row(b->view, b->pos + r / j->gqa, t->start, n, scores);
        k->softmax_run(scores, n, &part[r].max, &part[r].sum);
    }
    memset(out, 0, (size_t)b->rows * j->head_dim * sizeof *out);
    for (uint32_t i = 0; i < t->n; i++) {
        prefetch_split(next, i);
        prefetch_values(t, i + 1);
        if (!t->tiles[i])
            continue;
        const struct tile_layout *l = &t->layouts[i]->v;
        value_tile_fn *value = kv_format_exact(l->format) ? k->value_exact : k->value_affine;
        value(l, t->tiles[i] + t->layouts[i]->k.bytes, s->scores + (size_t)i * TILE_TOKENS,
              SPLIT_TOKENS, b->rows, out, j->head_dim);
    }
}

/* ---- merging splits in order of position ----------------------------------------------------- */

static void merge_split(struct partial *all, float *all_out, const struct partial *split,
                        const float *split_out, uint32_t rows, uint32_t dim) {
    for (uint32_t r = 0; r < rows; r++, all_out += dim, split_out += dim) {
        if (split[r].max == -INFINITY)
            continue;
        if (all[r].max == -INFINITY) {
            all[r] = split[r];
            memcpy(all_out, split_out, dim * sizeof *all_out);
            continue;
        }
        float max = all[r].max > split[r].max ? all[r].max : split[r].max;
        float a = m_expf(all[r].max - max), c = m_expf(split[r].max - max);
        for (uint32_t i = 0; i < dim; i++)
            all_out[i] = all_out[i] * a + split_out[i] * c;
        all[r].sum = all[r].sum * a + split[r].sum * c;
        all[r].max = max;
    }
}

static void merge_start(struct partial *all, uint32_t rows) {
    for (uint32_t r = 0; r < rows; r++)
        all[r] = (struct partial){.max = -INFINITY, .sum = 0};
}

/* Divides a row by its sum. A sink is one more score, without a value: it adds to the sum, and may
 * be the maximum. */
static void row_finish(const struct partial *all, const float *all_out, float sink, uint32_t dim,
                       float *out) {
    float scale = 1, sum = all->sum;
    if (sink != -INFINITY) {
        float max = sink > all->max ? sink : all->max;
        scale = m_expf(all->max - max);
        sum = sum * scale + m_expf(sink - max);
    }
    bool seen = all->max != -INFINITY; /* else all_out was never written */
    for (uint32_t i = 0; i < dim; i++)
        out[i] = seen ? all_out[i] * scale / sum : 0;
}

static void block_finish(const struct attention_job *j, const struct block *b,
                         const struct partial *all, const float *all_out) {
    uint32_t dim = j->head_dim;
    for (uint32_t r = 0; r < b->rows; r++) {
        uint32_t head = b->head * j->gqa + r % j->gqa;
        float *out = j->out + ((size_t)(b->row + r / j->gqa) * j->heads + head) * dim;
        float sink = j->args->sinks ? j->args->sinks[head] : -INFINITY;
        row_finish(&all[r], all_out + (size_t)r * dim, sink, dim, out);
    }
}

/* ---- whole mode ------------------------------------------------------------------------------ */

/* The first split of the block that the worker most likely takes next. */
static void find_first_split(const struct attention_job *j, size_t index, struct split_tiles *out) {
    struct block b;
    out->n = 0;
    if (index >= j->n_blocks)
        return;
    block_find(j, index, &b);
    find_split(j, &b, 0, out);
}

static void whole_item(void *ctx, size_t item, int worker) {
    const struct attention_job *j = ctx;
    struct worker_scratch *s = &j->b->scratch[worker];
    struct block b;
    block_find(j, item, &b);
    block_pack(j, &b, s);
    merge_start(s->all, b.rows);
    const uint32_t n = block_splits(&b);
    struct split_tiles splits[2];
    find_split(j, &b, 0, &splits[0]);
    for (uint32_t i = 0; i < n; i++) {
        struct split_tiles *now = &splits[i % 2], *next = &splits[(i + 1) % 2];
        if (i + 1 < n)
            find_split(j, &b, i + 1, next);
        else
            find_first_split(j, item + 1, next);
        block_attend(j, &b, now, next, s, s->split, s->split_out);
        merge_split(s->all, s->all_out, s->split, s->split_out, b.rows, j->head_dim);
    }
    block_finish(j, &b, s->all, s->all_out);
}

/* ---- shared mode ----------------------------------------------------------------------------- */

/* Partial results are [block][slot][row]: slot 0 holds the merged splits of earlier waves, slot
 * 1 + i the split that is number wave_first + i of those the block sees. */
static size_t partial_at(const struct attention_job *j, size_t block, uint32_t slot) {
    return (block * (1 + j->wave_splits) + slot) * j->slot_rows;
}

/* Split i of the wave; no tiles if the block sees fewer splits. */
static void find_wave_split(const struct attention_job *j, const struct block *b, uint32_t i,
                            struct split_tiles *out) {
    out->n = 0;
    if (i < j->wave_splits && j->wave_first + i < block_splits(b))
        find_split(j, b, j->wave_first + i, out);
}

static void shared_item(void *ctx, size_t item, int worker) {
    const struct attention_job *j = ctx;
    struct worker_scratch *s = &j->b->scratch[worker];
    size_t block = item / j->items_per_block;
    uint32_t first = (uint32_t)(item % j->items_per_block) * j->splits_per_item;
    struct block b;
    block_find(j, block, &b);
    block_pack(j, &b, s);
    const uint32_t end = first + j->splits_per_item;
    struct split_tiles splits[2];
    find_wave_split(j, &b, first, &splits[first % 2]);
    for (uint32_t i = first; i < end && i < j->wave_splits; i++) {
        const size_t at = partial_at(j, block, 1 + i);
        struct split_tiles *now = &splits[i % 2], *next = &splits[(i + 1) % 2];
        find_wave_split(j, &b, i + 1, next); /* after `end` it is the next item's */
        if (now->n == 0)
            merge_start(j->b->partials + at, b.rows);
        else
            block_attend(j, &b, now, next, s, j->b->partials + at,
                         j->b->partial_out + at * j->head_dim);
    }
}

static void shared_merge(void *ctx, size_t block, int worker) {
    (void)worker;
    const struct attention_job *j = ctx;
    struct block b;
    block_find(j, block, &b);
    size_t dim = j->head_dim, all = partial_at(j, block, 0);
    ASSERT(partial_at(j, block, j->wave_splits) + b.rows <= PARTIAL_ROWS);
    if (j->wave_first == 0)
        merge_start(j->b->partials + all, b.rows);
    for (uint32_t i = 0; i < j->wave_splits; i++) {
        size_t at = partial_at(j, block, 1 + i);
        merge_split(j->b->partials + all, j->b->partial_out + all * dim, j->b->partials + at,
                    j->b->partial_out + at * dim, b.rows, j->head_dim);
    }
    uint32_t end = j->wave_first + j->wave_splits;
    if (end >= block_splits(&b) && j->wave_first < block_splits(&b))
        block_finish(j, &b, j->b->partials + all, j->b->partial_out + all * dim);
}

/* Splits that fit in a wave: every block keeps its merged result and wave_splits partial results.
 * cpu_attention chooses shared mode only if at least one fits. */
static uint32_t wave_limit(const struct attention_job *j) {
    ASSERT(j->n_blocks > 0 && 2 * j->n_blocks * j->slot_rows <= PARTIAL_ROWS);
    return PARTIAL_ROWS / (j->n_blocks * j->slot_rows) - 1;
}

static void run_shared(struct attention_job *j, uint32_t splits) {
    uint32_t limit = wave_limit(j), threads = (uint32_t)j->b->threads;
    /* wave_splits says where slots are: it stays the same for all waves. */
    j->wave_splits = splits < limit ? splits : limit;
    j->items_per_block = (4 * threads + j->n_blocks - 1) / j->n_blocks;
    if (j->items_per_block > j->wave_splits)
        j->items_per_block = j->wave_splits;
    j->splits_per_item = (j->wave_splits + j->items_per_block - 1) / j->items_per_block;
    for (j->wave_first = 0; j->wave_first < splits; j->wave_first += j->wave_splits) {
        thread_pool_run(j->b->pool, (size_t)j->n_blocks * j->items_per_block, shared_item, j);
        thread_pool_run(j->b->pool, j->n_blocks, shared_merge, j);
    }
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
    uint32_t splits = 0;
    for (uint32_t s = 0; s < batch->n_seqs; s++) {
        const struct batch_seq *seq = &batch->seqs[s];
        uint32_t seq_splits = seen_splits(&views[s], seq->pos, seq->pos + seq->rows - 1);
        j.n_blocks += blocks_of(&j, seq) * j.kv_heads;
        splits = seq_splits > splits ? seq_splits : splits;
        uint32_t rows = (seq->rows < j.block_tokens ? seq->rows : j.block_tokens) * j.gqa;
        j.slot_rows = rows > j.slot_rows ? rows : j.slot_rows;
    }
    if (j.n_blocks >= 4 * (uint32_t)b->threads || splits == 1 ||
        2 * j.n_blocks * j.slot_rows > PARTIAL_ROWS)
        thread_pool_run(b->pool, j.n_blocks, whole_item, &j);
    else
        run_shared(&j, splits);
}
