/* SPDX-License-Identifier: Apache-2.0 */
/* origin.c: requests from web pages.
 *
 * A browser on this machine runs pages of other sites, which could send requests here. Two headers
 * that pages cannot set tell them apart:
 *
 *   Origin  the site of the page. Refused unless it is the server itself, --cors-origin, or a site
 *           on this machine: http or https, localhost, 127.0.0.1 or [::1], any port (a developer's
 *           page; other machines' pages cannot have such an origin).
 *   Host    the server's name, as the page knows it. A site whose DNS points at this machine passes
 *           for the server itself ("DNS rebinding"), and would reach what only this network can. So
 *           the name must be one of this machine, the address that it listens on, an allowed host,
 *           or that of --cors-origin (a proxy). If it listens on all addresses, any address will
 *           do, since no name was resolved. HTTP/1.0 without a Host does not come from a browser.
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

/* Bytes of an address, 0 for a name. */
static size_t address_of(const char *name, unsigned char out[16]) {
    return inet_pton(AF_INET, name, out) == 1 ? 4 : inet_pton(AF_INET6, name, out) == 1 ? 16 : 0;
}

static bool same_name(const char *a, const char *b) {
    unsigned char x[16], y[16];
    const size_t n = address_of(a, x);
    return n ? n == address_of(b, y) && memcmp(x, y, n) == 0 : strcasecmp(a, b) == 0;
}

/* Whether a server that listens on `host` has this name without further ado. */
static bool is_own(const char *host, const char *name) {
    static const unsigned char ALL[16];
    unsigned char address[16];
    const size_t n = address_of(host, address);
    return server_is_loopback(name) || same_name(host, name) ||
           (n && memcmp(address, ALL, n) == 0 && address_of(name, address));
}

static bool foreign_name(const struct server *s, const char *host) {
    const struct server_options *o = &s->options;
    const char *site = site_of(o->cors_origin);
    char name[256];
    if (!host)
        return false;
    name_of(host, name, sizeof name);
    bool known = is_own(o->host, name) || (site && strcasecmp(site, host) == 0);
    for (size_t i = 0; i < o->n_allowed_hosts && !known; i++)
        known = strcmp(o->allowed_hosts[i], "*") == 0 || same_name(o->allowed_hosts[i], name);
    return !known;
}

/* "http://localhost:3000": a page that this machine serves. */
static bool is_local_page(const char *origin) {
    static const char *const NAMES[] = {"localhost", "127.0.0.1", "[::1]"};
    const char *site = site_of(origin);
    if (!site || (strncmp(origin, "http://", 7) != 0 && strncmp(origin, "https://", 8) != 0))
        return false;
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        const size_t n = strlen(NAMES[i]);
        if (strncasecmp(site, NAMES[i], n) != 0)
            continue;
        const char *port = site + n + (site[n] == ':');
        if (port[strspn(port, "0123456789")] == 0 && (site[n] == ':' || !site[n]))
            return true;
    }
    return false;
}

const char *origin_allowed(const struct server *s, const struct http_exchange *exchange) {
    const char *allowed = s->options.cors_origin, *origin = http_header(exchange, "Origin");
    const bool all = allowed && strcmp(allowed, "*") == 0;
    return !all && is_local_page(origin) ? origin : allowed;
}

static bool foreign_page(const struct server *s, const char *origin, const char *host) {
    const char *allowed = s->options.cors_origin, *site = site_of(origin);
    if (!origin || is_local_page(origin) ||
        (allowed && (strcmp(allowed, "*") == 0 || strcmp(allowed, origin) == 0)))
        return false;
    return !site || !host || strcasecmp(site, host) != 0;
}

bool origin_refused(const struct server *s, const struct http_exchange *exchange, char *why,
                    size_t size) {
    enum { SHOWN = 80 };
    const char *host = http_header(exchange, "Host"), *origin = http_header(exchange, "Origin");
    char name[SHOWN];
    if (foreign_page(s, origin, host))
        snprintf(why, size,
                 "pages of '%s' may not use this server unless its option cors-origin names the "
                 "site",
                 log_visible(origin, name, sizeof name));
    else if (foreign_name(s, host))
        snprintf(why, size,
                 "Host '%s' does not name this server: use its address, or add the name to its "
                 "option allowed-hosts",
                 log_visible(host, name, sizeof name));
    else
        return false;
    return true;
}
