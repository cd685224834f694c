/* SPDX-License-Identifier: Apache-2.0 */
/* check_encode.c: encode_row against tile_encode_row, byte for byte, the whole tile: a token's own
 * bits and everything that belongs to others. Tiles start as random bytes and all tokens are
 * encoded in random order, three times, so that a dependence on the old content would show.
 */
#include <math.h>
#include <string.h>

#include "kcheck.h"

/* Beyond the fills: ties, overflow of f16 and float32, not finite, random patterns. */
static void fill_edges(float *x, uint32_t n) {
    uint32_t kind = random_below(4);
    fill(x, n, kind == 0 ? FILL_SIGNS : FILL_NORMAL);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = random_bits();
        if (kind == 1)
            memcpy(&x[i], &bits, sizeof bits);
        else if (kind == 2) /* halves: many quotients are ties */
            x[i] = (float)((int)random_below(64) - 32) * 0.5f;
        else if (kind == 3 && random_below(24) == 0)
            x[i] = EDGE_VALUE[random_below(EDGE_VALUES)];
    }
}

static void check_format(const struct tier *t, const struct tile_layout *l) {
    case_begin("head_dim %u, group %u", l->head_dim, l->format.group);
    uint8_t *tile = guarded(l->bytes), *want = plain(l->bytes);
    float *row = guarded(l->head_dim * sizeof *row);
    uint32_t order[TILE_TOKENS];
    for (uint32_t i = 0; i < l->bytes; i++)
        tile[i] = want[i] = (uint8_t)random_bits();
    for (int pass = 0; pass < 3; pass++) {
        random_order(order, TILE_TOKENS);
        for (uint32_t i = 0; i < TILE_TOKENS; i++) {
            if (random_bits() & 1)
                fill_any(row, l->head_dim);
            else
                fill_edges(row, l->head_dim);
            call_encode(t->k.encode_row, l, tile, order[i], row);
            tile_encode_row(l, want, order[i], row);
            uint32_t at = memcmp(tile, want, l->bytes) == 0 ? l->bytes : 0;
            while (at < l->bytes && tile[at] == want[at])
                at++;
            check_that(at == l->bytes,
                       "token %u: byte %u of the tile (scales at %u) is %02x, not %02x", order[i],
                       at, l->scale_offset, at < l->bytes ? tile[at] : 0,
                       at < l->bytes ? want[at] : 0);
            memcpy(tile, want, l->bytes);
        }
    }
    case_end();
}

void check_encode(const struct tier *t) {
    for_formats(t, "encode K", TILE_K, false, check_format);
    for_formats(t, "encode V", TILE_V, false, check_format);
    for_formats(t, "encode K", TILE_K, true, check_format);
    for_formats(t, "encode V", TILE_V, true, check_format);
}
