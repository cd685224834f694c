/* SPDX-License-Identifier: Apache-2.0 */
/* kv_store.c: rows of K and V are encoded into their pages, or into the shadows of pages that are
 * encoded when they are full. */
#include <string.h>

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

/* The rows of one page and KV head that a step stores: [first, first + n) of the page. */
struct stored_rows {
    const struct kv_view *view;
    uint32_t head, number, first, n;
    const float *k, *v; /* of the first one; the next is `stride` floats further */
    size_t stride;
    struct worker_scratch *scratch;
};

static void encode_rows(const struct store_job *j, const struct stored_rows *r,
                        const struct tile_layout *l, uint8_t *tile, const float *x, size_t stride) {
    for (uint32_t i = 0; i < r->n; i++)
        j->b->kernels.encode_row(l, tile, r->first + i, x + i * stride);
}

/* scratch->stored [n][dim]: the keys as a page of this layout has them before they are encoded. */
static void make_keys(const struct store_job *j, const struct stored_rows *r,
                      const struct page_layout *l) {
    const uint32_t dim = l->k.head_dim;
    const bool balanced = l->basis == BASIS_BALANCED;
    float *out = r->scratch->stored, *plain = balanced ? r->scratch->stored_plain : out;
    ASSERT(!l->centred || j->centre);
    for (uint32_t i = 0; i < r->n; i++) {
        const float *k = r->k + i * r->stride;
        float *to = plain + (size_t)i * dim;
        if (l->centred)
            centre_take_off(j->centre, j->layer, r->head, r->number * TILE_TOKENS + r->first + i,
                            dim, k, to);
        else
            memcpy(to, k, dim * sizeof *to);
    }
    if (l->basis == BASIS_HADAMARD)
        j->b->kernels.hadamard_rows(out, dim, r->n);
    if (balanced) {
        const struct key_basis *basis = r->view->basis;
        j->b->kernels.basis_rows(key_basis_at(basis, basis->inverse, j->layer, r->head), dim, plain,
                                 dim, r->n, out);
    }
}

static void make_values(const struct store_job *j, const struct stored_rows *r, uint32_t dim) {
    float *out = r->scratch->stored;
    for (uint32_t i = 0; i < r->n; i++)
        memcpy(out + (size_t)i * dim, r->v + i * r->stride, dim * sizeof *out);
    j->b->kernels.hadamard_rows(out, dim, r->n);
}

/* Rows that are encoded one by one: each as it comes, or in the page's basis, less its centre. */
static void store_rows(const struct store_job *j, const struct stored_rows *r,
                       const struct page_layout *l, uint8_t *tiles) {
    const uint32_t dim = l->k.head_dim;
    const bool turned = l->basis != BASIS_PLAIN;
    if (turned || l->centred) {
        make_keys(j, r, l);
        encode_rows(j, r, &l->k, tiles, r->scratch->stored, dim);
    } else {
        encode_rows(j, r, &l->k, tiles, r->k, r->stride);
    }
    if (turned) {
        make_values(j, r, dim);
        encode_rows(j, r, &l->v, tiles + l->k.bytes, r->scratch->stored, dim);
    } else {
        encode_rows(j, r, &l->v, tiles + l->k.bytes, r->v, r->stride);
    }
}

/* Rows of a page that is encoded whole go into its shadow. The last one fills the page. */
static void store_whole(const struct store_job *j, const struct stored_rows *r,
                        const struct page_layout *l, uint8_t *tiles) {
    const struct kv_page *page = kv_view_shadow(r->view, r->number);
    ASSERT(page);
    const struct page_layout *s = &r->view->layouts[page->layout];
    uint8_t *shadow = head_tiles(r->view, page, j->layer, r->head);
    store_rows(j, r, s, shadow);
    if (r->first + r->n < TILE_TOKENS)
        return;
    j->b->kernels.encode_tile(&l->k, tiles, &s->k, shadow);
    j->b->kernels.encode_tile(&l->v, tiles + l->k.bytes, &s->v, shadow + s->k.bytes);
}

/* An item is all rows that fall into one page, for one head: codes of less than a byte share bytes
 * with other tokens, so no two threads may write the same tile. */
static void store_item(void *ctx, size_t item, int worker) {
    const struct store_job *j = ctx;
    const uint32_t heads = j->views[0].layouts[0].kv_heads;
    const uint32_t head = (uint32_t)(item % heads), index = (uint32_t)(item / heads);
    const uint32_t s = sequence_of(j, index);
    const struct batch_seq *seq = &j->batch->seqs[s];
    const struct kv_view *view = &j->views[s];
    const uint32_t number = seq->pos / TILE_TOKENS + index - j->first_pages[s];
    const struct kv_page *page = page_of(view, number);
    const struct page_layout *l = &view->layouts[page->layout];
    uint8_t *tiles = head_tiles(view, page, j->layer, head);
    const uint32_t first = max_u32(number * TILE_TOKENS, seq->pos),
                   end = min_u32((number + 1) * TILE_TOKENS, seq->pos + seq->rows);
    const size_t dim = l->k.head_dim,
                 at = ((size_t)(seq->row + first - seq->pos) * heads + head) * dim;
    const struct stored_rows r = {.view = view,
                                  .head = head,
                                  .number = number,
                                  .first = first % TILE_TOKENS,
                                  .n = end - first,
                                  .k = j->k + at,
                                  .v = j->v + at,
                                  .stride = heads * dim,
                                  .scratch = &j->b->scratch[worker]};
    if (page_is_whole(l))
        store_whole(j, &r, l, tiles);
    else
        store_rows(j, &r, l, tiles);
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
