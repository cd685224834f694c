/* SPDX-License-Identifier: Apache-2.0 */
/* kv_store.c: rows of K and V are encoded into their pages. */
#include "backend/cpu/cpu_internal.h"

struct store_job {
    const struct cpu_backend *b;
    const struct batch *batch;
    const struct kv_view *views;
    const struct centre_table *centre;
    uint32_t layer;
    const float *k, *v;
    const uint32_t *first_pages; /* [n_seqs + 1] pages that the sequences before this one touch */
};

static uint32_t pages_touched(const struct batch_seq *s) {
    return (s->pos + s->rows - 1) / TILE_TOKENS - s->pos / TILE_TOKENS + 1;
}

/* The sequence that touches page number `index` of those of the step. */
static uint32_t sequence_of(const struct store_job *j, uint32_t index) {
    uint32_t first = 0, end = j->batch->n_seqs;
    while (end - first > 1) {
        const uint32_t middle = first + (end - first) / 2;
        if (j->first_pages[middle] <= index)
            first = middle;
        else
            end = middle;
    }
    return first;
}

/* An item is all rows that fall into one page, for one head: codes of less than a byte share bytes
 * with other tokens, so no two threads may write the same tile. */
static void store_item(void *ctx, size_t item, int worker) {
    (void)worker;
    const struct store_job *j = ctx;
    uint32_t heads = j->views[0].layouts[0].kv_heads;
    const uint32_t head = (uint32_t)(item % heads), index = (uint32_t)(item / heads);
    const uint32_t s = sequence_of(j, index);
    const struct batch_seq *seq = &j->batch->seqs[s];
    const struct kv_view *view = &j->views[s];
    uint32_t number = seq->pos / TILE_TOKENS + index - j->first_pages[s];
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
    struct store_job j = {b,     batch, views, centre_find(b, views[0].centre),
                          layer, k,     v,     b->first_pages};
    ASSERT(layer < views[0].layouts[0].layers && batch->rows <= b->limits.rows);
    b->first_pages[0] = 0;
    for (uint32_t s = 0; s < batch->n_seqs; s++)
        b->first_pages[s + 1] = b->first_pages[s] + pages_touched(&batch->seqs[s]);
    const size_t pages = b->first_pages[batch->n_seqs];
    thread_pool_run(b->pool, pages * views[0].layouts[0].kv_heads, store_item, &j);
}
