/* SPDX-License-Identifier: Apache-2.0 */
/* moments.c: kv_store and attention that look at what they are given and then do what the device's
 * table does. They run on the thread that runs the model; sums are in double, in order of position,
 * so that they depend on nothing but the rows.
 */
#include <string.h>

#include "engine/moments.h"

static struct moments *moments_of(const struct backend *b) {
    _Static_assert(offsetof(struct moments, ops) == 0, "the table is where the rest begins");
    return (struct moments *)b->ops;
}

/* c += x x^T, the lower triangle */
static void add_square(uint32_t dim, const float *x, double *c) {
    double row[HEAD_DIM_MAX];
    for (uint32_t i = 0; i < dim; i++) {
        row[i] = (double)x[i];
        for (uint32_t j = 0; j <= i; j++)
            c[(size_t)i * dim + j] += row[i] * row[j];
    }
}

/* ---- the operations -------------------------------------------------------------------------- */

static struct moments_group *group_of(struct moments *m, const struct batch *batch,
                                      const struct kv_view *views) {
    const size_t g = (size_t)(views - batch->views) / batch->n_seqs;
    ASSERT(batch->n_seqs == 1 && g < m->n_groups);
    ASSERT(batch->seqs[0].pos + batch->rows <= m->tokens);
    return &m->group[g];
}

static void look_at_keys(struct moments *m, struct moments_group *g, const struct batch *batch,
                         uint32_t layer, const float *k) {
    const uint32_t dim = g->head_dim;
    for (uint32_t r = 0; r < batch->rows; r++)
        for (uint32_t head = 0; head < g->kv_heads; head++, k += dim) {
            const size_t row =
                ((size_t)layer * g->kv_heads + head) * m->tokens + batch->seqs[0].pos + r;
            memcpy(g->keys + row * dim, k, dim * sizeof *k);
        }
}

static void look_at_queries(struct moments_group *g, const struct batch *batch, uint32_t layer,
                            uint32_t heads, const float *q) {
    const uint32_t dim = g->head_dim, gqa = heads / g->kv_heads;
    for (uint32_t r = 0; r < batch->rows; r++)
        for (uint32_t head = 0; head < heads; head++, q += dim) {
            const size_t at = (size_t)layer * g->kv_heads + head / gqa;
            if (batch->seqs[0].pos + r < SINKS)
                continue;
            add_square(dim, q, g->queries + at * dim * dim);
            g->rows[at]++;
        }
}

/* What the host cannot fetch is an error of the device, which the run returns. */
static void kv_store(struct backend *b, const struct batch *batch, const struct kv_view *views,
                     uint32_t layer, const float *k, const float *v) {
    struct moments *m = moments_of(b);
    struct moments_group *g = group_of(m, batch, views);
    const size_t bytes = (size_t)batch->rows * g->kv_heads * g->head_dim * sizeof *k;
    const void *host;
    if (backend_fetch(b, k, bytes, &host, NULL) == KVASIR_OK)
        look_at_keys(m, g, batch, layer, host);
    m->device->kv_store(b, batch, views, layer, k, v);
}

static void attention(struct backend *b, const struct batch *batch, const struct kv_view *views,
                      uint32_t layer, const float *q, const struct attention_args *args,
                      float *out) {
    struct moments *m = moments_of(b);
    struct moments_group *g = group_of(m, batch, views);
    const size_t bytes = (size_t)batch->rows * args->heads * g->head_dim * sizeof *q;
    const void *host;
    if (backend_fetch(b, q, bytes, &host, NULL) == KVASIR_OK)
        look_at_queries(g, batch, layer, args->heads, host);
    m->device->attention(b, batch, views, layer, q, args, out);
}

/* ---- life ------------------------------------------------------------------------------------ */

kvasir_status moments_begin(struct moments *m, const struct model *model, struct backend *b,
                            uint32_t tokens, kvasir_error *err) {
    struct kv_shape shapes[CACHE_GROUPS_MAX];
    *m = (struct moments){.ops = *b->ops, .device = b->ops, .tokens = tokens};
    m->n_groups = model_kv_groups(model, shapes);
    for (uint32_t i = 0; i < m->n_groups; i++) {
        struct moments_group *g = &m->group[i];
        *g = (struct moments_group){.layers = shapes[i].layers,
                                    .kv_heads = shapes[i].kv_heads,
                                    .head_dim = shapes[i].head_dim};
        const size_t heads = (size_t)g->layers * g->kv_heads, dim = g->head_dim;
        g->keys = mem_calloc(heads * tokens, dim * sizeof *g->keys);
        g->queries = mem_calloc(heads * dim, dim * sizeof *g->queries);
        g->rows = mem_calloc(heads, sizeof *g->rows);
        if (!g->keys || !g->queries || !g->rows) {
            moments_deinit(m);
            return fail(err, KVASIR_ERR_MEMORY, "calibration: out of memory");
        }
    }
    m->ops.kv_store = kv_store;
    m->ops.attention = attention;
    b->ops = &m->ops;
    return KVASIR_OK;
}

void moments_deinit(struct moments *m) {
    for (uint32_t i = 0; i < m->n_groups; i++) {
        mem_free(m->group[i].keys);
        mem_free(m->group[i].queries);
        mem_free(m->group[i].rows);
    }
    *m = (struct moments){0};
}

/* ---- what was seen --------------------------------------------------------------------------- */

static size_t head_at(const struct moments *m, struct kv_place place, uint32_t head) {
    const struct moments_group *g = &m->group[place.group];
    ASSERT(place.group < m->n_groups && place.layer < g->layers && head < g->kv_heads);
    return (size_t)place.layer * g->kv_heads + head;
}

const float *moments_keys(const struct moments *m, struct kv_place place, uint32_t head) {
    const struct moments_group *g = &m->group[place.group];
    return g->keys + head_at(m, place, head) * m->tokens * g->head_dim;
}

void moments_of_queries(const struct moments *m, struct kv_place place, uint32_t head, double *c) {
    const struct moments_group *g = &m->group[place.group];
    const size_t at = head_at(m, place, head), n = (size_t)g->head_dim * g->head_dim;
    ASSERT(g->rows[at] > 0);
    for (size_t i = 0; i < n; i++)
        c[i] = g->queries[at * n + i] / (double)g->rows[at];
}

static void take_mean_off(uint32_t dim, float *tile) {
    for (uint32_t i = 0; i < dim; i++) {
        double mean = 0;
        for (uint32_t t = 0; t < TILE_TOKENS; t++)
            mean += (double)tile[t * dim + i] / TILE_TOKENS;
        for (uint32_t t = 0; t < TILE_TOKENS; t++)
            tile[t * dim + i] = (float)((double)tile[t * dim + i] - mean);
    }
}

void moments_of_keys(const struct moments *m, struct kv_place place, uint32_t head,
                     const struct key_centre *centre, float *tile, double *c) {
    const uint32_t dim = m->group[place.group].head_dim, tiles = m->tokens / TILE_TOKENS;
    const float *keys = moments_keys(m, place, head);
    ASSERT(tiles >= 2);
    memset(c, 0, (size_t)dim * dim * sizeof *c);
    for (uint32_t first = TILE_TOKENS; first < tiles * TILE_TOKENS; first += TILE_TOKENS) {
        memcpy(tile, keys + (size_t)first * dim, TILE_TOKENS * dim * sizeof *tile);
        for (uint32_t t = 0; centre && t < TILE_TOKENS; t++)
            key_centre_add(centre, place.layer, head, first + t, -1, tile + t * dim);
        take_mean_off(dim, tile);
        for (uint32_t t = 0; t < TILE_TOKENS; t++)
            add_square(dim, tile + t * dim, c);
    }
    for (size_t i = 0; i < (size_t)dim * dim; i++)
        c[i] /= (tiles - 1) * (double)TILE_TOKENS;
}
