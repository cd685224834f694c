/* SPDX-License-Identifier: Apache-2.0 */
/* http_peer.c: addresses, as texts and in X-Forwarded-For. IPv4 addresses are kept as the IPv6
 * addresses that they are mapped to (::ffff:a.b.c.d), so one client has one address. */
#include "http/http_peer.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAPPED_BITS = 96, ADDRESS_BITS = 128 };

/* ---- texts ----------------------------------------------------------------------------------- */

/* Exactly the n bytes. */
static bool read_address(const char *text, size_t n, struct in6_addr *out) {
    char buf[HTTP_ADDRESS_MAX];
    if (n >= sizeof buf)
        return false;
    memcpy(buf, text, n);
    buf[n] = 0;
    *out = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff}};
    return inet_pton(AF_INET, buf, out->s6_addr + 12) == 1 || inet_pton(AF_INET6, buf, out) == 1;
}

/* False: the n bytes are not a whole number up to `most`, without zeros in front. */
static bool read_small(const char *text, size_t n, unsigned most, unsigned *out) {
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9' || (*text == '0' && n > 1))
            return false;
        *out = *out * 10 + (unsigned)(text[i] - '0');
        if (*out > most)
            return false;
    }
    return n > 0;
}

/* Nothing, or ":PORT". */
static bool is_port(const char *text, size_t n) {
    unsigned port;
    return n == 0 || (*text == ':' && read_small(text + 1, n - 1, UINT16_MAX, &port));
}

static bool bit_of(const struct in6_addr *a, unsigned i) {
    return a->s6_addr[i / 8] >> (7 - i % 8) & 1;
}

bool http_net_read(const char *text, size_t n, struct http_net *out) {
    const char *slash = memchr(text, '/', n);
    const size_t len = slash ? (size_t)(slash - text) : n;
    if (!read_address(text, len, &out->first))
        return false;
    const unsigned before = memchr(text, ':', len) ? 0 : MAPPED_BITS;
    out->bits = ADDRESS_BITS - before;
    if (slash && !read_small(slash + 1, n - len - 1, out->bits, &out->bits))
        return false;
    out->bits += before;
    for (unsigned i = out->bits; i < ADDRESS_BITS; i++)
        if (bit_of(&out->first, i))
            return false;
    return true;
}

void peer_text(const struct in6_addr *a, char out[HTTP_ADDRESS_MAX]) {
    const bool v4 = IN6_IS_ADDR_V4MAPPED(a);
    if (!inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? a->s6_addr + 12 : a->s6_addr, out,
                   HTTP_ADDRESS_MAX))
        *out = 0;
    ASSERT(*out); /* there is room for every address */
}

bool peer_same_client(const struct in6_addr *a, const struct in6_addr *b) {
    enum { CLIENT_BYTES = 8 };
    if (IN6_IS_ADDR_V4MAPPED(a) || IN6_IS_ADDR_V4MAPPED(b))
        return IN6_ARE_ADDR_EQUAL(a, b);
    return memcmp(a->s6_addr, b->s6_addr, CLIENT_BYTES) == 0;
}

/* ---- proxies --------------------------------------------------------------------------------- */

static bool net_has(const struct http_net *net, const struct in6_addr *a) {
    const unsigned bytes = net->bits / 8, rest = net->bits % 8;
    ASSERT(net->bits <= ADDRESS_BITS);
    return memcmp(net->first.s6_addr, a->s6_addr, bytes) == 0 &&
           (!rest || (net->first.s6_addr[bytes] ^ a->s6_addr[bytes]) >> (8 - rest) == 0);
}

bool peer_is_trusted(const struct http_options *o, const struct in6_addr *peer) {
    for (size_t i = 0; i < o->n_trusted; i++)
        if (net_has(&o->trusted[i], peer))
            return true;
    return false;
}

/* An item of the header: an address, also with a port; IPv6 then in brackets. */
static bool read_item(const char *text, size_t n, struct in6_addr *out) {
    const char *close = n && *text == '[' ? memchr(text, ']', n) : NULL;
    const char *colon = memchr(text, ':', n);
    size_t len = n;
    if (close) {
        len = (size_t)(close - text);
        return colon && colon < close && read_address(text + 1, len - 1, out) &&
               is_port(close + 1, n - len - 1);
    }
    if (colon && !memchr(colon + 1, ':', n - (size_t)(colon + 1 - text)))
        len = (size_t)(colon - text);
    return read_address(text, len, out) && is_port(text + len, n - len);
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t';
}

struct in6_addr peer_client(const struct http_options *o, const struct http_head *head,
                            const struct in6_addr *peer) {
    for (size_t i = head->n_fields; i-- > 0;) {
        if (strcasecmp(head->fields[i].name, "X-Forwarded-For") != 0)
            continue;
        const char *value = head->fields[i].value;
        const char *comma = value + strlen(value);
        do { /* the item before the comma, or the last one */
            const char *end = comma, *at;
            while (comma > value && comma[-1] != ',')
                comma--;
            for (at = comma; at < end && is_blank(*at);)
                at++;
            while (end > at && is_blank(end[-1]))
                end--;
            struct in6_addr found;
            if (!read_item(at, (size_t)(end - at), &found))
                return *peer;
            if (!peer_is_trusted(o, &found))
                return found;
        } while (comma-- > value);
    }
    return *peer;
}
