/* SPDX-License-Identifier: Apache-2.0 */
/* page_layout.c: how a page is cut, and what its centred keys lack. The same on every backend, so
 * that moving a page is a copy.
 *
 *     page:  | layer 0                                           | layer 1 ... | to 4 KiB |
 *            | head 0: K tile | V tile | head 1: K tile | V tile |
 */
#include "backend/backend.h"

void page_layout_init(struct page_layout *l, uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                      struct kv_format k, struct kv_format v) {
    tile_layout_init(&l->k, TILE_K, k, head_dim);
    tile_layout_init(&l->v, TILE_V, v, head_dim);
    l->centred = false;
    l->kv_heads = kv_heads;
    l->layers = layers;
    l->head_bytes = l->k.bytes + l->v.bytes;
    l->layer_bytes = l->head_bytes * kv_heads;
    l->page_bytes = round_up((size_t)l->layer_bytes * layers, PAGE_ADDR_UNIT);
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
