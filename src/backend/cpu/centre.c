/* SPDX-License-Identifier: Apache-2.0 */
/* Centred keys on the CPU: a centre is subtracted from a key before it is stored, and its part is
 * added to the scores of tiles that hold such keys (struct key_centre of backend.h has the
 * formulas).
 *
 * The part is A cos(p w) + B sin(p w), with A and B of the query and p the key's position:
 *
 *     p = 512 split + (64 i + 31.5) + (t - 31.5)        split = 16^5 d5 + ... + 16 d1 + d0
 *
 * and (A, B) is rotated by one part after the other (rotating (A, B) by an angle x gives
 * (A cos x + B sin x, B cos x - A sin x)):
 *
 *     start_ab   of the block's rows, at position 0                         once per block
 *     split_ab     rotated by 512 split w: digits of split composed in double      once per split
 *     tile_ab    rotated by (64 i + 31.5) w, to the tile's middle            once per tile
 *     centre_tile of the tier adds the waves of tile_ab over the tile's 64 tokens
 *
 * So no table grows with the context and positions up to 2^32 cost at most six products in double.
 * Every angle is a function of the position alone, and rows do not mix: bits do not depend on
 * blocks, chunks or threads (BACKEND-1).
 *
 * The loops over rows and pairs are plain sums and products of floats; the compiler may vectorize
 * them without changing a bit.
 */
#include <string.h>

#include "backend/cpu/cpu_internal.h"

enum {
    DIGITS = 16,
    LEVELS = 6, /* 16^6 splits of 512 tokens: 2^33 positions */
};

/* A rotation: cos and sin of its angle. */
struct turn {
    double c, s;
};

/* The rotation by both angles. */
static struct turn compose(struct turn a, struct turn b) {
    return (struct turn){a.c * b.c - a.s * b.s, a.s * b.c + a.c * b.s};
}

static struct turn turn_at(const double *table, size_t i) {
    return (struct turn){table[2 * i], table[2 * i + 1]};
}

/* The rotation of pair j at the start of a split. */
static struct turn split_turn(const struct centre_table *t, uint32_t split, uint32_t j) {
    struct turn turn = {1, 0};
    for (size_t level = 0; split; level++, split /= DIGITS) {
        size_t digit = split % DIGITS;
        ASSERT(level < LEVELS);
        if (digit)
            turn = compose(turn, turn_at(t->splits, (level * DIGITS + digit) * t->centre->n + j));
    }
    return turn;
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* [count][n][2] cos, sin of (start + i step) w. */
static void fill_turns(double *out, uint32_t count, double start, double step,
                       const struct key_centre *c) {
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < c->n; j++, out += 2)
            m_sincos((start + i * step) * c->inv_freq[j], &out[1], &out[0]);
}

static kvasir_status table_init(struct centre_table *t, const struct key_centre *c,
                                kvasir_error *err) {
    t->centre = c;
    t->waves = mem_alloc_aligned((size_t)c->n * 2 * TILE_TOKENS * sizeof *t->waves);
    t->tiles = mem_alloc_aligned((size_t)SPLIT_TILES * c->n * 2 * sizeof *t->tiles);
    t->splits = mem_alloc_aligned((size_t)LEVELS * DIGITS * c->n * 2 * sizeof *t->splits);
    if (!t->waves || !t->tiles || !t->splits)
        return fail(err, KVASIR_ERR_MEMORY, "tables for centred keys: out of memory");
    key_centre_waves(c, t->waves);
    fill_turns(t->tiles, SPLIT_TILES, TILE_MIDDLE, TILE_TOKENS, c);
    double step = SPLIT_TOKENS;
    for (size_t level = 0; level < LEVELS; level++, step *= DIGITS)
        fill_turns(t->splits + level * DIGITS * c->n * 2, DIGITS, 0, step, c);
    return KVASIR_OK;
}

/* Returns the bytes that it takes. */
static size_t scratch_lay_out(struct centre_scratch *s, size_t pairs, uint8_t *base) {
    const size_t rows = BLOCK_ROWS * pairs * 2 * sizeof(float),
                 turns = SPLIT_TILES * pairs * 2 * sizeof(float);
    size_t used = 0;
    s->index = cut(base, &used, pairs * sizeof *s->index);
    s->start_ab = cut(base, &used, rows);
    s->split_ab = cut(base, &used, rows);
    s->split_ba = cut(base, &used, rows);
    s->tile_ab = cut(base, &used, rows);
    s->turn_cos = cut(base, &used, turns);
    s->turn_sin = cut(base, &used, turns);
    return used;
}

static bool scratch_init(struct centre_scratch *s, size_t pairs) {
    mem_free(s->memory);
    s->memory = mem_alloc_aligned(scratch_lay_out(s, pairs, NULL));
    if (!s->memory)
        return false;
    (void)scratch_lay_out(s, pairs, s->memory);
    return true;
}

kvasir_status cpu_reserve_centre(struct backend *base, const struct key_centre *c,
                                 kvasir_error *err) {
    struct cpu_backend *b = cpu_of(base);
    if (b->n_centres == CENTRES_MAX)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "more than %d groups with centred keys",
                    CENTRES_MAX);
    TRY(table_init(&b->centres[b->n_centres++], c, err)); /* also frees one that failed halfway */
    if (c->pairs_max <= b->centre_pairs)
        return KVASIR_OK;
    for (int i = 0; i < b->threads; i++)
        if (!scratch_init(&b->scratch[i].centre, c->pairs_max))
            return fail(err, KVASIR_ERR_MEMORY, "scratch for centred keys: out of memory");
    b->centre_pairs = c->pairs_max;
    return KVASIR_OK;
}

void centre_deinit(struct cpu_backend *b) {
    for (uint32_t i = 0; i < b->n_centres; i++) {
        mem_free(b->centres[i].waves);
        mem_free(b->centres[i].tiles);
        mem_free(b->centres[i].splits);
    }
    for (int i = 0; b->scratch && i < b->threads; i++)
        mem_free(b->scratch[i].centre.memory);
}

const struct centre_table *centre_find(const struct cpu_backend *b, const struct key_centre *c) {
    for (uint32_t i = 0; c && i < b->n_centres; i++)
        if (b->centres[i].centre == c)
            return &b->centres[i];
    return NULL;
}

/* ---- storing --------------------------------------------------------------------------------- */

static const struct centre_pair *pairs_of(const struct key_centre *c, uint32_t layer, uint32_t head,
                                          uint32_t *n) {
    uint32_t i = layer * c->kv_heads + head;
    *n = c->first[i + 1] - c->first[i];
    return c->pairs + c->first[i];
}

void centre_take_off(const struct centre_table *t, uint32_t layer, uint32_t head, uint32_t pos,
                     uint32_t head_dim, const float *k, float *out) {
    const struct key_centre *c = t->centre;
    uint32_t n, tile = pos / TILE_TOKENS, token = pos % TILE_TOKENS;
    const struct centre_pair *pair = pairs_of(c, layer, head, &n);
    ASSERT(2 * c->n <= head_dim);
    memcpy(out, k, head_dim * sizeof *out);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = pair[i].pair;
        const float *wave = t->waves + (size_t)j * 2 * TILE_TOKENS;
        struct turn turn = compose(split_turn(t, tile / SPLIT_TILES, j),
                                   turn_at(t->tiles, (size_t)(tile % SPLIT_TILES) * c->n + j));
        turn = compose(turn, (struct turn){wave[token], wave[TILE_TOKENS + token]});
        float cosine = (float)turn.c, sine = (float)turn.s;
        out[j] -= pair[i].c1 * cosine - pair[i].c2 * sine;
        out[j + c->n] -= pair[i].c2 * cosine + pair[i].c1 * sine;
    }
}

/* ---- scores ---------------------------------------------------------------------------------- */

void centre_pack(const struct centre_table *t, uint32_t layer, uint32_t head,
                 const struct query_rows *q, struct centre_scratch *s) {
    s->pairs = 0;
    s->rows = q->rows;
    s->split = UINT32_MAX;
    if (!t)
        return;
    uint32_t n = t->centre->n;
    const struct centre_pair *pair = pairs_of(t->centre, layer, head, &s->pairs);
    ASSERT(s->pairs <= t->centre->pairs_max && layer < t->centre->layers);
    for (uint32_t i = 0; i < s->pairs; i++) {
        s->index[i] = pair[i].pair;
        for (size_t tile = 0; tile < SPLIT_TILES; tile++) {
            struct turn turn = turn_at(t->tiles, tile * n + pair[i].pair);
            size_t at = (tile * s->pairs + i) * 2;
            s->turn_cos[at] = s->turn_cos[at + 1] = (float)turn.c;
            s->turn_sin[at] = (float)turn.s;
            s->turn_sin[at + 1] = -(float)turn.s;
        }
    }
    float *ab = s->start_ab;
    for (uint32_t row = 0; row < q->rows; row++) {
        const float *x = q->f32 + (size_t)row * q->dim;
        for (uint32_t i = 0; i < s->pairs; i++, ab += 2) {
            float q1 = x[pair[i].pair], q2 = x[pair[i].pair + n];
            ab[0] = q1 * pair[i].c1 + q2 * pair[i].c2;
            ab[1] = q2 * pair[i].c1 - q1 * pair[i].c2;
        }
    }
}

static void turn_to_split(const struct centre_table *t, uint32_t split, struct centre_scratch *s) {
    for (uint32_t i = 0; i < s->pairs; i++) {
        struct turn turn = split_turn(t, split, s->index[i]);
        float c = (float)turn.c, sine = (float)turn.s;
        for (size_t row = 0; row < s->rows; row++) {
            size_t at = (row * s->pairs + i) * 2;
            float a = s->start_ab[at], b = s->start_ab[at + 1];
            s->split_ab[at] = s->split_ba[at + 1] = a * c + b * sine;
            s->split_ab[at + 1] = s->split_ba[at] = b * c - a * sine;
        }
    }
    s->split = split;
}

void centre_add(const struct kernels *k, const struct centre_table *t, uint32_t tile, uint32_t row,
                uint32_t rows, struct centre_scratch *s, float *scores, size_t stride) {
    if (!s->pairs)
        return;
    if (s->split != tile / SPLIT_TILES)
        turn_to_split(t, tile / SPLIT_TILES, s);
    size_t n = 2 * (size_t)s->pairs;
    const float *c = s->turn_cos + tile % SPLIT_TILES * n,
                *sine = s->turn_sin + tile % SPLIT_TILES * n;
    for (uint32_t r = 0; r < rows; r++) {
        const float *ab = s->split_ab + (row + r) * n, *ba = s->split_ba + (row + r) * n;
        float *restrict out = s->tile_ab + r * n;
        for (size_t i = 0; i < n; i++)
            out[i] = ab[i] * c[i] + ba[i] * sine[i];
    }
    k->centre_tile(t->waves, s->index, s->pairs, s->tile_ab, rows, scores, stride);
}
