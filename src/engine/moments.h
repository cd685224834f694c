/* SPDX-License-Identifier: Apache-2.0 */
/* moments.h: what attention gets while a model runs, whatever its family: all keys, and the second
 * moments of queries, both after RoPE.
 *
 *     moments_begin      wraps kv_store and attention of a backend's table
 *     a context on it    runs the tokens of one sequence
 *     moments_keys ...   what was seen
 *
 * The first SINKS tokens count for no moment: models make attention sinks of them, which are unlike
 * all others. Everything is by place (struct kv_place): layers that read another layer's keys add
 * their queries to its place.
 */
#ifndef KVASIR_ENGINE_MOMENTS_H
#define KVASIR_ENGINE_MOMENTS_H

#include "engine/engine.h"

enum { SINKS = 4 };

struct moments_group {
    uint32_t layers, kv_heads, head_dim;
    float *keys;     /* [layer][kv head][token][dim] */
    double *queries; /* [layer][kv head][dim][dim] sums of q q^T, lower triangles */
    uint64_t *rows;  /* [layer][kv head] queries of each sum */
};
struct moments {
    struct backend_ops ops;           /* first: operations find the rest from it */
    const struct backend_ops *device; /* the table that was there before */
    uint32_t tokens, n_groups;
    struct moments_group group[CACHE_GROUPS_MAX];
};

/* Looks at a run of the model on b, of one sequence of so many tokens. b is used with this table
 * until it is destroyed, and *m stays where it is until then. */
kvasir_status moments_begin(struct moments *m, const struct model *model, struct backend *b,
                            uint32_t tokens, kvasir_error *err) MUST_CHECK;
void moments_deinit(struct moments *m); /* after the backend; zero-initialised: nothing */

/* Keys of a head [tokens][dim]. */
const float *moments_keys(const struct moments *m, struct kv_place place, uint32_t head);
/* c [dim][dim], the lower triangle: E[q q^T] of all query heads that read the KV head. */
void moments_of_queries(const struct moments *m, struct kv_place place, uint32_t head, double *c);
/* E[k k^T] of keys less their centre (or NULL) and less the mean of their tile: of whole tiles from
 * the second on. tile [TILE_TOKENS][dim]: scratch. */
void moments_of_keys(const struct moments *m, struct kv_place place, uint32_t head,
                     const struct key_centre *centre, float *tile, double *c);

#endif
