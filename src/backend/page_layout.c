/* SPDX-License-Identifier: Apache-2.0 */
/* page_layout.c: how a page is cut, what its centred keys lack, which basis its rows are in, and
 * its rows in another layout. The same on every backend, so that moving a page is a copy.
 *
 *     page:  | layer 0                                           | layer 1 ... | to 4 KiB |
 *            | head 0: K tile | V tile | head 1: K tile | V tile |
 */
#include <string.h>

#include "backend/backend.h"

void page_layout_init(struct page_layout *l, uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                      struct kv_format k, struct kv_format v) {
    tile_layout_init(&l->k, TILE_K, k, head_dim);
    tile_layout_init(&l->v, TILE_V, v, head_dim);
    l->centred = false;
    l->basis = BASIS_PLAIN;
    l->kv_heads = kv_heads;
    l->layers = layers;
    l->head_bytes = l->k.bytes + l->v.bytes;
    l->layer_bytes = l->head_bytes * kv_heads;
    l->page_bytes = round_up((size_t)l->layer_bytes * layers, PAGE_ADDR_UNIT);
    ASSERT(kv_format_whole(k) == kv_format_whole(v));
    ASSERT(layers == 0 || kv_heads == 0 ||
           page_tile(l, layers - 1, kv_heads - 1, TILE_V) + l->v.bytes <= l->page_bytes);
}

void key_centre_add(const struct key_centre *c, uint32_t layer, uint32_t head, uint32_t pos,
                    double sign, float *key) {
    uint32_t i = layer * c->kv_heads + head;
    for (const struct centre_pair *p = c->pairs + c->first[i]; p < c->pairs + c->first[i + 1];
         p++) {
        double cosine, sine;
        m_sincos(pos * c->inv_freq[p->pair], &sine, &cosine);
        key[p->pair] += (float)(sign * ((double)p->c1 * cosine - (double)p->c2 * sine));
        key[p->pair + c->n] += (float)(sign * ((double)p->c2 * cosine + (double)p->c1 * sine));
    }
}

void key_centre_waves(const struct key_centre *c, float *waves) {
    for (uint32_t j = 0; j < c->n; j++, waves += 2 * TILE_TOKENS)
        for (uint32_t t = 0; t < TILE_TOKENS; t++) {
            double cosine, sine;
            m_sincos((t - TILE_MIDDLE) * c->inv_freq[j], &sine, &cosine);
            waves[t] = (float)cosine;
            waves[TILE_TOKENS + t] = (float)sine;
        }
}

void key_basis_apply(const float *matrix, uint32_t head_dim, const float *x, float *y) {
    for (uint32_t i = 0; i < head_dim; i++) {
        double sum = 0;
        for (uint32_t j = 0; j < head_dim; j++)
            sum += (double)x[j] * (double)matrix[(size_t)j * head_dim + i];
        y[i] = (float)sum;
    }
}

void hadamard_rotate(float *x, uint32_t head_dim) {
    const uint32_t block = head_dim & -head_dim; /* the largest power of two that divides it */
    const float scale = (float)(1 / m_sqrt(block));
    for (float *at = x; at < x + head_dim; at += block)
        for (uint32_t half = 1; half < block; half *= 2)
            for (uint32_t i = 0; i < block; i += 2 * half)
                for (uint32_t j = i; j < i + half; j++) {
                    const float a = at[j], b = at[j + half];
                    at[j] = a + b;
                    at[j + half] = a - b;
                }
    for (uint32_t i = 0; i < head_dim; i++)
        x[i] *= scale;
}

/* Rotates the row if its basis does that, either way, since H is its own inverse. False: the row is
 * multiplied by a matrix instead. */
static bool row_rotate(const struct page_layout *l, enum tile_kind part, float *x) {
    const bool balanced = l->basis == BASIS_BALANCED && part == TILE_K;
    if (!balanced && l->basis != BASIS_PLAIN)
        hadamard_rotate(x, l->k.head_dim);
    return !balanced;
}

void page_row_to_plain(const struct page_layout *l, const struct key_basis *basis,
                       const struct row_place *at, float *x) {
    const size_t dim = l->k.head_dim;
    float balanced[HEAD_DIM_MAX];
    if (row_rotate(l, at->part, x))
        return;
    /* k = M k'. M^T is stored input by input, so a row of it there is a row of M. */
    const float *forward = key_basis_at(basis, basis->forward, at->layer, at->head);
    memcpy(balanced, x, dim * sizeof *x);
    for (size_t i = 0; i < dim; i++) {
        double sum = 0;
        for (size_t j = 0; j < dim; j++)
            sum += (double)forward[i * dim + j] * (double)balanced[j];
        x[i] = (float)sum;
    }
}

void page_row_from_plain(const struct page_layout *l, const struct key_basis *basis,
                         const struct row_place *at, float *x) {
    float plain[HEAD_DIM_MAX];
    if (row_rotate(l, at->part, x))
        return;
    memcpy(plain, x, l->k.head_dim * sizeof *x);
    key_basis_apply(key_basis_at(basis, basis->inverse, at->layer, at->head), l->k.head_dim, plain,
                    x);
}

/* A row of a tile in the layout `from`, as the layout `to` has it before it is encoded. */
static void row_convert(const struct page_conversion *c, const struct row_place *at, float *x) {
    page_row_to_plain(c->from, c->basis, at, x);
    const int sign = at->part == TILE_K ? (int)c->from->centred - (int)c->to->centred : 0;
    if (sign)
        key_centre_add(c->centre, at->layer, at->head, at->position, sign, x);
    page_row_from_plain(c->to, c->basis, at, x);
}

/* The row at a place, from a tile of the old page, as the new page has it before it is encoded. */
static void read_row(const struct page_conversion *c, const struct tile_layout *from,
                     const uint8_t *in, struct row_place at, bool same, float *x) {
    tile_decode_row(from, in, at.position - c->position, x);
    if (!same)
        row_convert(c, &at, x);
}

/* To a tile that is encoded whole. */
static void convert_whole(const struct page_conversion *c, const struct tile_layout *from,
                          const uint8_t *in, struct row_place at, bool same,
                          const struct tile_layout *to, uint8_t *out) {
    float rows[TILE_TOKENS * HEAD_DIM_MAX];
    const size_t dim = to->head_dim;
    ASSERT(c->rows == TILE_TOKENS);
    for (uint32_t row = 0; row < TILE_TOKENS; row++, at.position++)
        read_row(c, from, in, at, same, rows + row * dim);
    for (size_t i = 0; i < TILE_TOKENS * dim; i++)
        rows[i] = scalar_round(SCALAR_F16, rows[i]); /* as a shadow has it */
    tile_encode(to, out, rows);
}

static void tile_convert(const struct page_conversion *c, enum tile_kind part, uint32_t layer,
                         uint32_t head, const uint8_t *in, uint8_t *out) {
    const struct tile_layout *from = part == TILE_K ? &c->from->k : &c->from->v,
                             *to = part == TILE_K ? &c->to->k : &c->to->v;
    const bool keys = part == TILE_K,
               same = keys ? c->from->basis == c->to->basis && c->from->centred == c->to->centred
                           : (c->from->basis == BASIS_PLAIN) == (c->to->basis == BASIS_PLAIN);
    struct row_place at = {part, layer, head, c->position};
    if (same && kv_format_equal(from->format, to->format)) {
        memcpy(out, in, to->bytes);
        return;
    }
    if (same && tile_drops_bit(from, to)) {
        ASSERT(c->rows == TILE_TOKENS);
        tile_drop_bit(from, in, to, out);
        return;
    }
    if (kv_format_whole(to->format)) {
        convert_whole(c, from, in, at, same, to, out);
        return;
    }
    for (uint32_t row = 0; row < c->rows; row++, at.position++) {
        float x[HEAD_DIM_MAX];
        read_row(c, from, in, at, same, x);
        tile_encode_row(to, out, row, x);
    }
}

void page_convert_head(const struct page_conversion *c, uint32_t layer, uint32_t head,
                       const uint8_t *from, uint8_t *to) {
    ASSERT(c->rows <= TILE_TOKENS && c->to->k.head_dim <= HEAD_DIM_MAX);
    ASSERT(c->from->layers == c->to->layers && c->from->kv_heads == c->to->kv_heads);
    for (int part = TILE_K; part <= TILE_V; part++)
        tile_convert(c, (enum tile_kind)part, layer, head,
                     from + page_tile(c->from, layer, head, (enum tile_kind)part),
                     to + page_tile(c->to, layer, head, (enum tile_kind)part));
}

void page_convert(const struct page_conversion *c, const uint8_t *from, uint8_t *to) {
    for (uint32_t layer = 0; layer < c->to->layers; layer++)
        for (uint32_t head = 0; head < c->to->kv_heads; head++)
            page_convert_head(c, layer, head, from, to);
}

/* Bytes of a tile, as `count` pieces of `width` bytes, `pitch` apart. */
struct piece {
    uint32_t at, width, pitch, count; /* at: from the tile's start */
};
enum { PIECES_MAX = 2 };

/* The bytes that must be zeros for tokens from `token` on to read as zeros: of exact formats their
 * values, of affine ones scales and biases (0 * code + 0). Returns how many pieces. */
static uint32_t tile_tail(const struct tile_layout *l, uint32_t token,
                          struct piece out[PIECES_MAX]) {
    ASSERT(token < TILE_TOKENS);
    const uint32_t scalar = (uint32_t)scalar_bytes(l->format.scalar), left = TILE_TOKENS - token;
    if (!kv_format_exact(l->format)) { /* biases follow the scales in the same order */
        out[0] = (struct piece){.at = l->scale_offset + token * scalar,
                                .width = left * scalar,
                                .pitch = TILE_TOKENS * scalar,
                                .count = 2 * l->groups};
        return 1;
    }
    const uint32_t four = 4 * scalar, row = l->lanes * four;
    if (l->kind == TILE_K) {
        out[0] = (struct piece){token * four, left * four, row, l->reduction / 4};
        return 1;
    }
    uint32_t n = 0;
    if (token % 4) /* the rest of four tokens that share a row */
        out[n++] = (struct piece){token / 4 * row + token % 4 * scalar, (4 - token % 4) * scalar,
                                  four, l->lanes};
    if (token + 3 < TILE_TOKENS)
        out[n++] =
            (struct piece){(token + 3) / 4 * row, row, row, TILE_TOKENS / 4 - (token + 3) / 4};
    ASSERT(n > 0 && n <= PIECES_MAX);
    return n;
}

void page_clear_tail(struct backend *b, struct backend_arena *a, const struct page_layout *l,
                     uint32_t addr, uint32_t token) {
    for (int part = TILE_K; part <= TILE_V; part++) {
        struct piece pieces[PIECES_MAX];
        const uint32_t n = tile_tail(part == TILE_K ? &l->k : &l->v, token, pieces);
        for (uint32_t i = 0; i < l->layers * l->kv_heads * n; i++) {
            const struct piece *p = &pieces[i % n];
            const uint32_t layer = i / n / l->kv_heads, head = i / n % l->kv_heads;
            const size_t tile = page_offset(addr) + page_tile(l, layer, head, (enum tile_kind)part);
            backend_arena_zero(b, a, tile + p->at, p->width, p->pitch, p->count);
        }
    }
}
