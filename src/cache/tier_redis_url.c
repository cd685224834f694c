/* SPDX-License-Identifier: Apache-2.0 */
/* tier_redis_url.c: redis://[[user]:password@]host[:port][/db] (tier_redis.h).
 *
 * User and password are percent-decoded; an IPv6 address stands in brackets. The port is 6379 if
 * there is none. TLS is not ours: hiredis 0.14 has none, so rediss:// is refused with the way to
 * have it. An error says what is wrong without a piece of the text: where it is wrong, a password
 * may be anywhere.
 */
#define _GNU_SOURCE /* memrchr */
#include <string.h>

#include "cache/tier_redis.h"

enum { PORT_REDIS = 6379, DB_MOST = 65535 };

static int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Percent-decodes [at, end). False: a bad escape, a NUL, or it is too long. */
static bool decode(const char *at, const char *end, char *out, size_t room) {
    size_t n = 0;
    while (at < end) {
        int c = (unsigned char)*at++;
        if (c == '%') {
            const int high = end - at >= 2 ? hex_digit(at[0]) : -1;
            const int low = high >= 0 ? hex_digit(at[1]) : -1;
            if (low < 0)
                return false;
            c = high * 16 + low;
            at += 2;
        }
        if (c == 0 || n + 1 >= room)
            return false;
        out[n++] = (char)c;
    }
    out[n] = 0;
    return true;
}

/* Decimal digits up to `most`; nothing else. */
static bool number(const char *at, const char *end, uint32_t most, uint32_t *out) {
    uint32_t n = 0;
    if (at == end)
        return false;
    for (; at < end; at++) {
        if (*at < '0' || *at > '9')
            return false;
        n = n * 10 + (uint32_t)(*at - '0');
        if (n > most)
            return false;
    }
    *out = n;
    return true;
}

static kvasir_status credentials(const char *at, const char *end, struct redis_url *out,
                                 kvasir_error *err) {
    const char *colon = memchr(at, ':', (size_t)(end - at));
    if (!colon)
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "the remote cache's URL has a user without a password: user:password@host or "
                    ":password@host is expected");
    if (!decode(at, colon, out->user, sizeof out->user) ||
        !decode(colon + 1, end, out->password, sizeof out->password))
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "the remote cache's URL has a user or password that cannot be decoded: %%XX "
                    "stands for special characters, and each may have %d bytes",
                    CREDENTIAL_BYTES - 1);
    if (!out->password[0])
        return fail(err, KVASIR_ERR_ARGUMENT, "the remote cache's URL has an empty password");
    return KVASIR_OK;
}

static kvasir_status host_and_port(const char *at, const char *end, struct redis_address *out,
                                   kvasir_error *err) {
    const bool bracket = at < end && *at == '[';
    const char *host_end;
    if (bracket) {
        at++;
        host_end = memchr(at, ']', (size_t)(end - at));
        if (!host_end)
            return fail(err, KVASIR_ERR_ARGUMENT, "the remote cache's URL lacks the bracket ]");
    } else {
        host_end = at + min_size(strcspn(at, ":"), (size_t)(end - at));
    }
    if (host_end == at || !decode(at, host_end, out->host, sizeof out->host))
        return fail(err, KVASIR_ERR_ARGUMENT, "the remote cache's URL has no usable host");
    for (const char *c = out->host; *c; c++)
        if (*c <= ' ' || *c == 127)
            return fail(err, KVASIR_ERR_ARGUMENT, "the remote cache's URL has no usable host");
    at = host_end + bracket;
    out->port = PORT_REDIS;
    if (at == end)
        return KVASIR_OK;
    uint32_t port;
    if (*at != ':' || !number(at + 1, end, UINT16_MAX, &port) || port == 0)
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "the remote cache's URL needs a port from 1 to 65535 after the host; IPv6 "
                    "addresses stand in brackets");
    out->port = (uint16_t)port;
    return KVASIR_OK;
}

kvasir_status redis_url_parse(const char *text, struct redis_url *out, kvasir_error *err) {
    static const char plain[] = "redis://", tls[] = "rediss://";
    *out = (struct redis_url){0};
    if (strncmp(text, tls, sizeof tls - 1) == 0)
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "rediss:// (TLS) is not supported: run a TLS tunnel such as stunnel beside "
                    "this server and give its local end as redis://127.0.0.1:PORT");
    if (strncmp(text, plain, sizeof plain - 1) != 0)
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "the remote cache's URL must be redis://[user:password@]host:port[/db]");
    const char *at = text + sizeof plain - 1;
    const char *end = at + strcspn(at, "/?#");
    if (*end && *end != '/')
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "the remote cache's URL has a query or fragment, which means nothing here; "
                    "in a password %%3F and %%23 stand for ? and #");
    const char *sign = memrchr(at, '@', (size_t)(end - at));
    if (sign) {
        TRY(credentials(at, sign, out, err));
        at = sign + 1;
    }
    TRY(host_and_port(at, end, &out->address, err));
    if (*end == '/' && end[1] && !number(end + 1, end + strlen(end), DB_MOST, &out->db))
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "the remote cache's URL must end in the number of a database, or in nothing; "
                    "in a password %%2F stands for /");
    return KVASIR_OK;
}
