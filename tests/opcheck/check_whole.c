/* SPDX-License-Identifier: Apache-2.0 */
/* check_whole.c: kv_store into pages that are encoded when they are full (kv_format_whole), over a
 * host copy of the whole arena.
 *
 *     shadows    the step's rows: H k and H v byte for byte; M^-1 k within the error of a sum in
 *                float32 and half an ulp of f16. The other rows as they were
 *     codes      of pages that became full: tile_encode of the rows of the device's own shadow,
 *                byte for byte. The other pages as they were
 *
 * Rows are normal numbers and, among them, ties, zeros of either sign, and numbers that are not
 * finite, in some heads.
 */
#include <math.h>
#include <string.h>

#include "opcheck.h"

enum { LAYERS = 2, KV_HEADS = 2, N_SEQS = 5 };

/* Rows of one page and of three, that fill a page and that do not, that begin inside one; pages in
 * front that are not encoded whole, in their basis (an exact start) or not, and pages that were
 * dropped. */
static const struct scene_seq SEQS[N_SEQS] = {
    {.length = 64, .rows = 1, .span = UINT32_MAX, .switch_at = 0},
    {.length = 130, .rows = 100, .span = UINT32_MAX, .switch_at = 0},
    {.length = 75, .rows = 5, .span = UINT32_MAX, .switch_at = 0},
    {.length = 320, .rows = 64, .keep = 4, .span = 70, .switch_at = 2},
    {.length = 200, .rows = 150, .span = UINT32_MAX, .switch_at = 2},
};

static void fill_rows(float *x, uint32_t rows, uint32_t dim) {
    for (uint32_t r = 0; r < rows; r++, x += dim) {
        const uint32_t kind = random_below(12);
        fill(x, dim, FILL_NORMAL);
        for (uint32_t i = 0; i < dim; i++)
            if (kind == 0) /* sums of halves: many quotients are ties */
                x[i] = (float)((int)random_below(64) - 32) * 0.5f;
            else if (kind == 1)
                x[i] = i % 2 ? 0.0f : -0.0f;
            else if (kind == 2 && random_below(64) == 0)
                x[i] = EDGE_VALUE[random_below(EDGE_VALUES)];
    }
}

/* A row of the step as the shadow should have it, before it is rounded to f16; bound: of what
 * float32 may change. */
static void turned_row(const struct scene *c, const struct row_place *at, const float *x,
                       float *want, float *bound) {
    const uint32_t dim = c->head_dim;
    const struct page_layout *l = &c->layouts[1];
    memcpy(want, x, dim * sizeof *want);
    page_row_from_plain(l, c->basis, at, want);
    for (uint32_t i = 0; i < dim; i++) {
        double terms = 0;
        if (l->basis == BASIS_BALANCED && at->part == TILE_K) {
            const float *m = key_basis_at(c->basis, c->basis->inverse, at->layer, at->head);
            for (uint32_t j = 0; j < dim; j++)
                terms += fabs((double)x[j] * (double)m[(size_t)j * dim + i]);
        }
        bound[i] = (float)(terms * gamma_of(dim));
    }
}

/* Row `token` of a shadow's tile against what was stored. */
static void check_row(const struct tile_layout *l, const uint8_t *got, uint32_t token,
                      const float *want, const float *bound) {
    float row[HEAD_DIM_MAX];
    tile_decode_row(l, got, token, row);
    for (uint32_t i = 0; i < l->head_dim; i++) {
        const float exact = scalar_round(SCALAR_F16, want[i]);
        if (bound[i] == 0 && isfinite(want[i]))
            check_that(memcmp(&row[i], &exact, sizeof exact) == 0,
                       "shadow: token %u, dim %u is %a, not %a", token, i, (double)row[i],
                       (double)exact);
        else if (isfinite(exact))
            check_near("shadow", token, i, (double)row[i], (double)want[i],
                       (double)bound[i] + 0x1p-11 * fabs((double)want[i]) + 0x1p-25);
    }
}

/* One tile of page `number` of sequence s: its shadow's rows, and its codes if it became full. Or,
 * if it has no shadow, its own rows. */
static void check_tile(const struct scene *c, uint32_t s, uint32_t number, struct row_place at,
                       const float *x, const uint8_t *got) {
    const struct kv_view *v = &c->views[s];
    const struct kv_page *page = &v->pages[kv_view_index(v, number)],
                         *shadow = kv_view_shadow(v, number) ? kv_view_shadow(v, number) : page;
    const struct page_layout *l = &c->layouts[page->layout], *sl = &c->layouts[shadow->layout];
    const struct tile_layout *codes = at.part == TILE_K ? &l->k : &l->v,
                             *halves = at.part == TILE_K ? &sl->k : &sl->v;
    const size_t tile = page_offset(page->addr) + page_tile(l, at.layer, at.head, at.part),
                 rows = page_offset(shadow->addr) + page_tile(sl, at.layer, at.head, at.part);
    const struct batch_seq *seq = &c->batch.seqs[s];
    float want[HEAD_DIM_MAX], bound[HEAD_DIM_MAX];
    float *all = plain(sizeof *all * TILE_TOKENS * c->head_dim);
    for (uint32_t t = 0; t < TILE_TOKENS; t++) {
        at.position = number * TILE_TOKENS + t;
        tile_decode_row(halves, got + rows, t, all + (size_t)t * c->head_dim);
        if (at.position < seq->pos || at.position >= seq->pos + seq->rows) {
            tile_decode_row(halves, c->image + rows, t, want);
            check_that(memcmp(want, all + (size_t)t * c->head_dim, c->head_dim * sizeof *want) == 0,
                       "shadow: token %u, which is not of the step, changed", t);
            continue;
        }
        const size_t row = seq->row + at.position - seq->pos;
        turned_row(c, &at, x + (row * KV_HEADS + at.head) * c->head_dim, want, bound);
        check_row(halves, got + rows, t, want, bound);
    }
    const uint32_t end = (number + 1) * TILE_TOKENS;
    if (shadow != page && seq->pos < end && seq->pos + seq->rows >= end) {
        memset(c->image + tile, 0, codes->bytes);
        tile_encode(codes, c->image + tile, all);
    }
    memcpy(c->image + rows, got + rows, halves->bytes); /* was checked */
}

static bool is_turned_start(const struct page_layout *l) {
    return l->basis != BASIS_PLAIN && !page_is_whole(l);
}

/* All tiles of a page in this layer. */
static void check_page(const struct scene *c, uint32_t s, uint32_t number, uint32_t layer,
                       const float *k, const float *v, const uint8_t *got) {
    for (uint32_t head = 0; head < KV_HEADS; head++)
        for (int part = TILE_K; part <= TILE_V; part++)
            check_tile(c, s, number, (struct row_place){(enum tile_kind)part, layer, head, 0},
                       part == TILE_K ? k : v, got);
}

static void check_store(struct scene *c, uint32_t layer, const float *k, const float *v) {
    kvasir_error err = {0};
    uint8_t *got = plain(c->arena_bytes);
    must(backend_arena_read(device, c->arena, 0, got, c->arena_bytes, &err), &err, "arena_read");
    for (uint32_t s = 0; s < c->n_seqs; s++) {
        const struct batch_seq *seq = &c->batch.seqs[s];
        const struct kv_view *view = &c->views[s];
        for (uint32_t i = 0; i < view->n_shadows; i++)
            check_page(c, s, view->shadow_first + i, layer, k, v, got);
        for (uint32_t p = seq->pos / TILE_TOKENS; p * TILE_TOKENS < seq->pos + seq->rows; p++)
            if (is_turned_start(&c->layouts[view->pages[kv_view_index(view, p)].layout]))
                check_page(c, s, p, layer, k, v, got);
    }
    for (size_t i = 0; i < c->arena_bytes; i++)
        if (got[i] != c->image[i]) {
            check_that(false, "layer %u: byte %zu of the arena is %02x, not %02x", layer, i, got[i],
                       c->image[i]);
            return;
        }
    check_that(true, "the arena");
}

/* Rows of pages that are not encoded whole go into them as ever (check_encode.c); here into the
 * image, too. */
static void store_others(const struct scene *c, uint32_t layer, const float *k, const float *v) {
    for (uint32_t s = 0; s < c->n_seqs; s++) {
        const struct batch_seq *seq = &c->batch.seqs[s];
        for (uint32_t i = 0; i < seq->rows * KV_HEADS; i++) {
            const uint32_t p = seq->pos + i / KV_HEADS, head = i % KV_HEADS;
            const struct kv_page *page =
                &c->views[s].pages[kv_view_index(&c->views[s], p / TILE_TOKENS)];
            const struct page_layout *l = &c->layouts[page->layout];
            uint8_t *tiles = c->image + page_offset(page->addr) + page_tile(l, layer, head, TILE_K);
            const size_t at = ((size_t)seq->row * KV_HEADS + i) * c->head_dim;
            if (page_is_whole(l) || is_turned_start(l))
                continue;
            tile_encode_row(&l->k, tiles, p % TILE_TOKENS, k + at);
            tile_encode_row(&l->v, tiles + l->k.bytes, p % TILE_TOKENS, v + at);
        }
    }
}

static void check_case(struct kv_format k, struct kv_format v, uint32_t dim, bool balanced,
                       bool turned_start) {
    struct scene_seq seqs[N_SEQS];
    struct scene c = {.heads = KV_HEADS,
                      .kv_heads = KV_HEADS,
                      .head_dim = dim,
                      .layers = LAYERS,
                      .n_seqs = N_SEQS,
                      .seqs = seqs,
                      .tail_pages = random_below(3),
                      .turned_start = turned_start};
    const struct kv_format exact = {.bits = 16, .scalar = SCALAR_F16};
    memcpy(seqs, SEQS, sizeof seqs);
    case_begin("heads of %u%s%s", dim, balanced ? ", balanced" : "",
               turned_start ? ", an exact start in their basis" : "");
    page_layout_init(&c.layouts[0], LAYERS, KV_HEADS, dim, exact, exact);
    page_layout_init(&c.layouts[1], LAYERS, KV_HEADS, dim, k, v);
    scene_set_bases(&c, balanced);
    scene_build(&c, true);
    const uint32_t rows = c.batch.rows * KV_HEADS;
    const size_t bytes = sizeof(float) * rows * dim;
    float *keys = plain(bytes), *values = plain(bytes);
    backend_step_begin(device, &c.batch, 1);
    for (uint32_t layer = LAYERS; layer-- > 0;) {
        fill_rows(keys, rows, dim);
        fill_rows(values, rows, dim);
        op_kv_store(device, &c.batch, c.batch.views, layer, device_copy(keys, bytes),
                    device_copy(values, bytes));
        store_others(&c, layer, keys, values);
        check_store(&c, layer, keys, values);
    }
    scene_free(&c);
}

void check_whole(void) {
    static const uint32_t DIMS[] = {128, 96, 64, 256, 512, 32};
    static const uint8_t BITS[][2] = {{8, 4}, {5, 4}, {4, 4}, {3, 3}, {6, 2}, {2, 6}, {4, 5}};
    const uint32_t widths = choice->cuda ? sizeof BITS / sizeof *BITS : 3; /* kcheck has all */
    for (uint32_t i = 0; i < widths; i++)
        for (int kind = KV_ROTATED; kind <= KV_TILE; kind++) {
            const uint8_t group = kind == KV_TILE ? 0 : 32;
            const struct kv_format k = {BITS[i][0], SCALAR_F16, group, (uint8_t)kind},
                                   v = {BITS[i][1], SCALAR_F16, group, (uint8_t)kind};
            char kn[24], vn[24];
            if (!family_begin("kv_store", "%s, %s", kv_format_name(k, kn), kv_format_name(v, vn)))
                continue;
            for (uint32_t j = 0; j < (kind == KV_TILE ? 4 : 2); j++) /* balanced, with a start */
                check_case(k, v, choice->cuda ? DIMS[(i + j) % 6] : DIMS[i % 3], j / 2 != 0,
                           j % 2 != 0);
            family_end();
        }
}
