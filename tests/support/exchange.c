/* SPDX-License-Identifier: Apache-2.0 */
#include "exchange.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "cache/cache_internal.h"

#include <cmocka.h>

void exchange_pages(kvasir_seq *s, uint32_t pages, const char *bits) {
    struct kv_cache *c = s->ctx->cache;
    struct kv_pool *pool = kv_cache_pool(c);
    kvasir_seq *fork;
    kvasir_error err;
    if (kvasir_seq_fork(s, &fork, &err) || kvasir_seq_requantize(fork, bits, NULL, &err))
        fail_msg("%s", err.text);
    for (uint32_t g = 0; g < c->n_groups; g++)
        for (uint32_t i = 0; i < 32; i++) {
            struct kv_page now, then;
            if (!(pages >> i & 1) || !seq_get_page(s->seq, g, i, &now))
                continue;
            assert_true((i + 1) * TILE_TOKENS <= kvasir_seq_length(s));
            assert_true(seq_get_page(fork->seq, g, i, &then));
            page_ref(pool, then.addr);
            page_unref(pool, now.addr);
            seq_put_page(s->seq, g, i, then);
        }
    kvasir_seq_destroy(fork);
}
