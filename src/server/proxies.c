/* SPDX-License-Identifier: Apache-2.0 */
/* proxies.c: the lists of trusted proxies. */
#include <stdio.h>
#include <string.h>

#include "server/server_internal.h"

static bool bad(kvasir_error *err, kvasir_status code, const char *item, size_t n) {
    *err = (kvasir_error){.code = code, .offset = -1, .field = "server.trusted_proxies"};
    if (code == KVASIR_ERR_MEMORY)
        snprintf(err->text, sizeof err->text, "out of memory");
    else
        snprintf(
            err->text, sizeof err->text,
            "\"%.*s\" is not an address or a block such as 10.0.0.0/8 or fd00::/8, whose other "
            "bits are 0",
            (int)(n < 80 ? n : 80), item);
    return false;
}

bool proxies_read(const struct server_options *o, struct http_net **out, size_t *n,
                  kvasir_error *err) {
    size_t cap = 0;
    *n = 0;
    *out = NULL;
    for (size_t i = 0; i < o->n_trusted_proxies; i++)
        for (const char *at = o->trusted_proxies[i]; at;) {
            const size_t len = strcspn(at, ",");
            if (!ARRAY_GROW(*out, cap, *n + 1))
                return bad(err, KVASIR_ERR_MEMORY, at, len);
            if (!http_net_read(at, len, &(*out)[*n]))
                return bad(err, KVASIR_ERR_ARGUMENT, at, len);
            ++*n;
            at = at[len] ? at + len + 1 : NULL;
        }
    ASSERT(*n >= o->n_trusted_proxies); /* no list is empty */
    return true;
}

bool server_check_proxies(const struct server_options *o, kvasir_error *err) {
    struct http_net *items;
    size_t n;
    const bool good = proxies_read(o, &items, &n, err);
    mem_free(items);
    return good;
}
