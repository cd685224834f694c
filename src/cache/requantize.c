/* SPDX-License-Identifier: Apache-2.0 */
/* requantize.c: a page's rows in other formats: what seq_requantize (seq.c) does to each page of a
 * sequence, and tree_requantize (tree_evict.c) to stored full pages.
 *
 *     page in the arena --backend_read-->  layer  --rows-->  layer  --backend_write-->  new page
 *
 * Row by row through the definitions of quant/: decoded, then encoded, so the new bytes are a
 * function of the old ones alone, the same on every tier and backend. A K or V tile whose format
 * stays is copied. Between a centred K tile and one that is not, rope(c, t) of the row's position
 * is put back or taken off (C7).
 *
 * Left out: threads. The code is scalar, so a page of a large model takes a while. A sequence pays
 * that where it asks for it; stored pages go one by one, all of them while an engine has nothing
 * else to do, else one in many steps.
 */
#include <string.h>

#include "cache/cache_internal.h"

size_t requantize_scratch_bytes(const struct kv_cache *c) {
    size_t most = 0;
    for (uint32_t g = 0; g < c->n_groups; g++)
        for (uint32_t i = 0; i < c->groups[g].n_layouts; i++)
            if (c->layouts[g][i].layer_bytes > most)
                most = c->layouts[g][i].layer_bytes;
    return 2 * most;
}

struct conversion {
    const struct page_layout *from, *to;
    const struct key_centre *centre;
    uint32_t position, rows; /* of the page's first row; of the rows that it holds */
};

static void tile_convert(const struct tile_layout *from, const uint8_t *in,
                         const struct tile_layout *to, uint8_t *out, uint32_t rows,
                         const struct conversion *x, uint32_t layer, uint32_t head) {
    if (kv_format_equal(from->format, to->format)) {
        memcpy(out, in, to->bytes);
        return;
    }
    /* V tiles have no centre */
    int sign = to->kind == TILE_K ? (int)x->from->centred - (int)x->to->centred : 0;
    for (uint32_t row = 0; row < rows; row++) {
        float values[HEAD_DIM_MAX];
        tile_decode_row(from, in, row, values);
        if (sign)
            key_centre_add(x->centre, layer, head, x->position + row, sign, values);
        tile_encode_row(to, out, row, values);
    }
}

void page_requantize(const struct kv_cache *c, uint32_t group, uint32_t number, uint32_t rows,
                     struct kv_page from, struct kv_page to, void *scratch) {
    const struct conversion x = {.from = &c->layouts[group][from.layout],
                                 .to = &c->layouts[group][to.layout],
                                 .centre = c->groups[group].shape.centre,
                                 .position = number * TILE_TOKENS,
                                 .rows = rows};
    uint8_t *arena = pool_arena(c->pool), *in = scratch, *out = in + x.from->layer_bytes;
    const uint8_t *source = arena + (size_t)from.addr * PAGE_ADDR_UNIT;
    uint8_t *target = arena + (size_t)to.addr * PAGE_ADDR_UNIT;
    for (uint32_t layer = 0; layer < x.to->layers; layer++) {
        backend_read(c->backend, in, source + (size_t)layer * x.from->layer_bytes,
                     x.from->layer_bytes);
        memset(out, 0, x.to->layer_bytes);
        for (uint32_t head = 0; head < x.to->kv_heads; head++) {
            const uint8_t *k = in + (size_t)head * x.from->head_bytes;
            uint8_t *new_k = out + (size_t)head * x.to->head_bytes;
            tile_convert(&x.from->k, k, &x.to->k, new_k, rows, &x, layer, head);
            tile_convert(&x.from->v, k + x.from->k.bytes, &x.to->v, new_k + x.to->k.bytes, rows, &x,
                         layer, head);
        }
        backend_write(c->backend, target + (size_t)layer * x.to->layer_bytes, out,
                      x.to->layer_bytes);
    }
}
