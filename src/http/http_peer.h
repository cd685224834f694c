/* SPDX-License-Identifier: Apache-2.0 */
/* http_peer.h: whose request it is, by address, if trusted proxies pass on what others send
 * (http_peer.c). No input or output. */
#ifndef HTTP_HTTP_PEER_H
#define HTTP_HTTP_PEER_H

#include "http/http.h"
#include "http/http_head.h"

bool peer_is_trusted(const struct http_options *o, const struct in6_addr *peer);
/* The client of a request that a trusted peer sent: the rightmost address of X-Forwarded-For that
 * is not trusted. What stands left of it is the client's own text. The peer itself if there is
 * none, or something else than an address comes first. */
struct in6_addr peer_client(const struct http_options *o, const struct http_head *head,
                            const struct in6_addr *peer);
/* For limits: of IPv6, all addresses of a /64 are one client, which has that many. */
bool peer_same_client(const struct in6_addr *a, const struct in6_addr *b);
/* As people write it: IPv4 without the map. */
void peer_text(const struct in6_addr *address, char out[HTTP_ADDRESS_MAX]);

#endif
