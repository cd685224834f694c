/* SPDX-License-Identifier: Apache-2.0 */
/* origin.c: requests from web pages.
 *
 * A browser on this machine runs pages of other sites, which could send requests here. Two headers
 * that pages cannot set tell them apart:
 *
 *   Origin  the site of the page. Refused unless it is the server itself or --cors-origin.
 *   Host    the server's name, as the page knows it. A site whose DNS points at this machine passes
 *           for the server itself ("DNS rebinding"). So if the server has no keys and only this
 *           machine can connect, the name must be one of this machine, or that of --cors-origin
 *           (a proxy).
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "server/server_internal.h"

bool server_is_loopback(const char *host) {
    static const char LOCAL[] = ".localhost";
    const size_t n = strlen(host), local = sizeof LOCAL - 1;
    unsigned char address[16];
    if (strncmp(host, "unix:", 5) == 0)
        return true;
    if (inet_pton(AF_INET, host, address) == 1)
        return address[0] == 127;
    if (inet_pton(AF_INET6, host, address) == 1)
        return memcmp(address, &in6addr_loopback, sizeof address) == 0;
    return strcasecmp(host, LOCAL + 1) == 0 ||
           (n > local && strcasecmp(host + n - local, LOCAL) == 0);
}

/* "https://example.org:8443" -> "example.org:8443"; NULL: not a site ("null", "*"). */
static const char *site_of(const char *origin) {
    const char *mark = origin ? strstr(origin, "://") : NULL;
    return mark ? mark + 3 : NULL;
}

/* The name in "name", "name:port", "[address]:port". */
static void name_of(const char *host, char *out, size_t size) {
    const bool v6 = *host == '[';
    const size_t n = v6 ? strcspn(host, "]") - 1 : strcspn(host, ":");
    snprintf(out, size, "%.*s", (int)(n < size ? n : size - 1), host + v6);
}

static bool foreign_name(const struct server *s, const char *host) {
    const struct server_options *o = &s->options;
    const char *site = site_of(o->cors_origin);
    char name[256];
    if (!host || o->n_api_keys || !server_is_loopback(o->host))
        return false;
    name_of(host, name, sizeof name);
    return !server_is_loopback(name) && !(site && strcasecmp(site, host) == 0);
}

static bool foreign_page(const struct server *s, const char *origin, const char *host) {
    const char *allowed = s->options.cors_origin, *site = site_of(origin);
    if (!origin || (allowed && (strcmp(allowed, "*") == 0 || strcmp(allowed, origin) == 0)))
        return false;
    return !site || !host || strcasecmp(site, host) != 0;
}

const char *origin_refused(const struct server *s, const struct http_exchange *exchange) {
    const char *host = http_header(exchange, "Host");
    if (foreign_page(s, http_header(exchange, "Origin"), host))
        return "requests from pages of this origin are not allowed";
    if (foreign_name(s, host))
        return "the Host header does not name this machine, which a server without an API key "
               "requires";
    return NULL;
}
