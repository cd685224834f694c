/* SPDX-License-Identifier: Apache-2.0 */
/* A block of query rows over the tokens that they see, in splits of 512 at absolute positions. A
 * split is eight tiles:
 *
 *      pages        | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | ...
 *      splits       |           split 0             |   split 1 ...
 *      per split    1. scores of each visit                           score_tile, codes as stored
 *                      and what the centre of its keys adds           centre_add
 *                      and then the soft cap, if there is one         softcap
 *                   2. -INFINITY for tokens that a row does not see   by position, not by column
 *                   3. maximum, exp, sum                              softmax_run
 *                   4. weighted values of the same visits             value_tile, codes as stored
 *      then         splits are merged in order of position            query_block_merge
 *      at the end   the sink joins the sum, then all is divided by it query_block_finish
 */
#include <math.h>
#include <string.h>

#include "backend/cpu/attention.h"

/* ---- which rows, which splits ---------------------------------------------------------------- */

static uint32_t kept_splits(const struct kv_view *v) {
    return v->keep ? (v->keep - 1) / SPLIT_TOKENS + 1 : 0;
}

void query_block_start(struct query_block *b, uint32_t head) {
    b->head = head;
    b->rows = b->kept = b->end = b->n = 0;
    b->window = UINT32_MAX;
}

void query_block_add(struct query_block *b, const struct attention_job *j, uint32_t seq,
                     uint32_t pos, uint32_t tokens) {
    const struct batch_seq *s = &j->batch->seqs[seq];
    const struct kv_view *v = &j->views[seq];
    const uint32_t end = (pos + tokens - 1) / SPLIT_TOKENS + 1, kept = kept_splits(v),
                   window = window_start(v, pos) / SPLIT_TOKENS;
    ASSERT(b->rows + tokens * j->gqa <= BLOCK_ROWS);
    b->members[b->n++] = (struct block_member){v, s->row + pos - s->pos, b->rows, pos, tokens};
    b->rows += tokens * j->gqa;
    b->kept = max_u32(b->kept, min_u32(kept, end));
    b->window = min_u32(b->window, window);
    b->end = max_u32(b->end, end);
}

/* The first split that is not counted as kept. */
static uint32_t first_split(const struct query_block *b) {
    return min_u32(max_u32(b->window, b->kept), b->end);
}

uint32_t query_block_splits(const struct query_block *b) {
    return max_u32(b->kept + (b->end - first_split(b)), 1);
}

static uint32_t nth_split(const struct query_block *b, uint32_t n) {
    return n < b->kept ? n : first_split(b) + (n - b->kept);
}

/* ---- queries --------------------------------------------------------------------------------- */

/* Rows [row, row + rows) of packed queries. */
static struct query_rows rows_of(const struct query_rows *q, size_t row, uint32_t rows) {
    return (struct query_rows){.rows = rows,
                               .dim = q->dim,
                               .f32 = q->f32 + row * q->dim,
                               .codes = q->codes + row * q->dim,
                               .sum32 = q->sum32 + row * (q->dim / 32),
                               .scale = q->scale + row};
}

/* Rounds the rows of a block in one basis, unless that was done. */
static const struct query_rows *pack_queries(const struct attention_job *j,
                                             const struct query_block *b, enum page_basis basis,
                                             struct worker_scratch *s) {
    struct query_rows *out = &s->queries[basis];
    const size_t dim = j->head_dim;
    if (s->packed & 1u << basis)
        return out;
    s->packed |= 1u << basis;
    out->rows = b->rows;
    out->dim = j->head_dim;
    for (uint32_t i = 0; i < b->n; i++) {
        const struct block_member *m = &b->members[i];
        for (uint32_t t = 0; t < m->tokens; t++) {
            struct query_rows part = rows_of(out, m->block_row + t * j->gqa, j->gqa);
            const size_t at = (size_t)(m->row + t) * j->heads + b->head * j->gqa;
            const float *q = j->q + at * dim;
            if (basis == BASIS_BALANCED) {
                const struct key_basis *of = m->view->basis;
                j->b->kernels.basis_rows(key_basis_at(of, of->forward, j->layer, b->head),
                                         j->head_dim, q, dim, j->gqa, s->turned);
                q = s->turned;
            } else if (basis == BASIS_HADAMARD) {
                memcpy(s->turned, q, j->gqa * dim * sizeof *q);
                j->b->kernels.hadamard_rows(s->turned, j->head_dim, j->gqa);
                q = s->turned;
            }
            j->b->kernels.query_pack(q, dim, j->args->scale, &part);
        }
    }
    return out;
}

void query_block_pack(const struct attention_job *j, const struct query_block *b,
                      struct worker_scratch *s) {
    s->packed = 0;
    const struct query_rows *plain = pack_queries(j, b, BASIS_PLAIN, s);
    centre_pack(j->centre, j->layer, b->head, plain, &s->centre);
}

/* ---- what is visited ------------------------------------------------------------------------- */

/* True if some row of the member sees some position of [first, end). */
static bool member_sees(const struct block_member *m, uint32_t first, uint32_t end) {
    if (first >= m->pos + m->tokens)
        return false;
    return first < m->view->keep || end > window_start(m->view, m->pos);
}

/* The page as the member's rows see it, all of which are in one page: that one and the exact tail
 * before it at 16 bits if they are encoded when they are full. */
static const struct kv_page *seen_page(const struct block_member *m, uint32_t number) {
    const struct kv_view *v = m->view;
    const struct kv_page *page = page_of(v, number);
    if (!page_is_whole(&v->layouts[page->layout]) ||
        !kv_sees_shadow(v, m->pos / TILE_TOKENS, number))
        return page;
    const struct kv_page *shadow = kv_view_shadow(v, number);
    ASSERT(shadow);
    return shadow;
}

static void add_visit(struct split *out, const struct attention_job *j, const struct query_block *b,
                      const struct block_member *m, uint32_t number) {
    const uint32_t first = out->start + number * TILE_TOKENS, rows = m->tokens * j->gqa;
    struct visit *last = out->n ? &out->visits[out->n - 1] : NULL;
    if (!member_sees(m, first, first + TILE_TOKENS))
        return;
    const struct kv_page *page = seen_page(m, first / TILE_TOKENS);
    const uint8_t *tile = head_tiles(m->view, page, j->layer, b->head);
    if (last && last->tile == tile && last->row + last->rows == m->block_row)
        last->rows += rows;
    else
        out->visits[out->n++] =
            (struct visit){tile, &m->view->layouts[page->layout], number, m->block_row, rows};
}

void query_block_find_split(const struct attention_job *j, const struct query_block *b, uint32_t i,
                            struct split *out) {
    out->start = nth_split(b, i) * SPLIT_TOKENS;
    out->n = out->tiles = out->prefetched = 0;
    for (uint32_t number = 0; number < SPLIT_TILES; number++) {
        const uint32_t before = out->n;
        for (uint32_t m = 0; m < b->n; m++)
            add_visit(out, j, b, &b->members[m], number);
        if (out->n > before)
            out->tiles = number + 1;
    }
}

/* ---- prefetching ----------------------------------------------------------------------------- */

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

/* Prefetches K of visit i of the next split: all of it if no other visit comes before it. */
static void prefetch_split(struct split *next, uint32_t i) {
    if (i >= next->n)
        return;
    next->prefetched = i + 1;
    const struct tile_layout *k = &next->visits[i].layout->k;
    prefetch(next->visits[i].tile, 0, i == 0 ? k->bytes : bytes_ahead(k));
}

/* The part of K of visit i that was not prefetched yet; its V. */
static void prefetch_keys(const struct split *now, uint32_t i) {
    if (i >= now->n)
        return;
    const struct tile_layout *k = &now->visits[i].layout->k;
    prefetch(now->visits[i].tile, i < now->prefetched ? bytes_ahead(k) : 0, k->bytes);
}
static void prefetch_values(const struct split *now, uint32_t i) {
    if (i >= now->n)
        return;
    const struct page_layout *l = now->visits[i].layout;
    prefetch(now->visits[i].tile, l->k.bytes, l->head_bytes);
}

/* ---- one split ------------------------------------------------------------------------------- */

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

static void score_visit(const struct attention_job *j, const struct query_block *b,
                        const struct split *now, const struct visit *v, struct worker_scratch *s) {
    const struct kernels *k = &j->b->kernels;
    const struct tile_layout *l = &v->layout->k;
    const struct query_rows *all = pack_queries(j, b, (enum page_basis)v->layout->basis, s),
                            queries = rows_of(all, v->row, v->rows);
    float *scores = s->scores + (size_t)v->row * SPLIT_TOKENS + (size_t)v->number * TILE_TOKENS;
    DEBUG_ASSERT(l->head_dim == j->head_dim);
    score_tile_fn *score = kv_format_exact(l->format)  ? k->score_exact
                           : l->format.kind == KV_TILE ? k->score_channels
                                                       : k->score_affine;
    score(l, v->tile, &queries, scores, SPLIT_TOKENS);
    if (v->layout->centred)
        centre_add(k, j->centre, now->start / TILE_TOKENS + v->number, v->row, v->rows, &s->centre,
                   scores, SPLIT_TOKENS);
    for (uint32_t r = 0; j->args->softcap > 0 && r < v->rows; r++)
        k->softcap(scores + (size_t)r * SPLIT_TOKENS, TILE_TOKENS, j->args->softcap);
}

/* Values of all visits. Those of rotated pages are summed apart and rotated back together. */
static void weigh_values(const struct attention_job *j, const struct query_block *b,
                         const struct split *now, struct split *next, struct worker_scratch *s,
                         float *out) {
    const struct kernels *k = &j->b->kernels;
    const size_t dim = j->head_dim, bytes = b->rows * dim * sizeof *out;
    bool turned = false;
    memset(out, 0, bytes);
    for (uint32_t i = 0; i < now->n; i++) {
        const struct visit *v = &now->visits[i];
        const struct tile_layout *l = &v->layout->v;
        prefetch_split(next, i);
        prefetch_values(now, i + 1);
        if (v->layout->basis != BASIS_PLAIN && !turned) {
            turned = true;
            memset(s->turned_out, 0, bytes);
        }
        float *to = v->layout->basis == BASIS_PLAIN ? out : s->turned_out;
        value_tile_fn *value = kv_format_exact(l->format) ? k->value_exact : k->value_affine;
        value(l, v->tile + v->layout->k.bytes,
              s->scores + (size_t)v->row * SPLIT_TOKENS + (size_t)v->number * TILE_TOKENS,
              SPLIT_TOKENS, v->rows, to + v->row * dim, j->head_dim);
    }
    if (!turned)
        return;
    k->hadamard_rows(s->turned_out, j->head_dim, b->rows);
    k->add(out, s->turned_out, 1, b->rows * dim);
}

void query_block_attend(const struct attention_job *j, const struct query_block *b,
                        const struct split *now, struct split *next, struct worker_scratch *s,
                        struct partial *part, float *out) {
    const struct kernels *k = &j->b->kernels;
    const uint32_t n = now->tiles * TILE_TOKENS;
    for (uint32_t i = 0; i < now->n; i++) {
        prefetch_keys(now, i + 1);
        score_visit(j, b, now, &now->visits[i], s);
    }
    prefetch_values(now, 0);
    for (uint32_t i = 0; i < b->n; i++) {
        const struct block_member *m = &b->members[i];
        for (uint32_t r = 0; r < m->tokens * j->gqa; r++) {
            const uint32_t row = m->block_row + r;
            part[row] = (struct partial){.max = -INFINITY, .sum = 0};
            if (now->start >= m->pos + m->tokens)
                continue; /* it sees nothing of this split */
            float *scores = s->scores + (size_t)row * SPLIT_TOKENS;
            mask_row(m->view, m->pos + r / j->gqa, now->start, n, scores);
            k->softmax_run(scores, n, &part[row].max, &part[row].sum);
        }
    }
    weigh_values(j, b, now, next, s, out);
}

/* ---- merging splits in order of position ----------------------------------------------------- */

void query_block_merge(struct partial *all, float *all_out, const struct partial *split,
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

void query_block_finish(const struct attention_job *j, const struct query_block *b,
                        const struct partial *all, const float *all_out) {
    const uint32_t dim = j->head_dim;
    for (uint32_t i = 0; i < b->n; i++) {
        const struct block_member *m = &b->members[i];
        for (uint32_t r = 0; r < m->tokens * j->gqa; r++) {
            const uint32_t head = b->head * j->gqa + r % j->gqa, row = m->block_row + r;
            float *out = j->out + ((size_t)(m->row + r / j->gqa) * j->heads + head) * dim;
            const float sink = j->args->sinks ? j->args->sinks[head] : -INFINITY;
            row_finish(&all[row], all_out + (size_t)row * dim, sink, dim, out);
        }
    }
}
