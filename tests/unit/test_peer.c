/* SPDX-License-Identifier: Apache-2.0 */
/* Whose request it is: addresses as texts, lists of trusted proxies, X-Forwarded-For. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "http/http_peer.h"

#include <cmocka.h>

static bool read_net(const char *text, struct http_net *out) {
    return http_net_read(text, strlen(text), out);
}

static struct in6_addr address(const char *text) {
    struct http_net net;
    if (!read_net(text, &net) || net.bits != 128)
        fail_msg("not an address: %s", text);
    return net.first;
}

static void test_nets(void **state) {
    static const char *const BAD[] = {
        "",           "10.0.0.0/",   "10.0.0.0/33",  "10.0.0.1/8",         "10.0.0.0/8 ",
        " 10.0.0.1",  "10.0.0",      "10.0.0.0/+8",  "10.0.0.0/08",        "10.0.0.0/8/8",
        "fd00::/129", "fd00::1/64",  "[fd00::1]",    "10.0.0.1:80",        "fe80::1%lo",
        "localhost",  "0x0a.0.0.1",  "10.0.0.256",   "::ffff:10.0.0.0/96", "/8",
        "1::2::3",    "10.0.0.0/-1", "010.0.0.1/32", "10.0.0.0/4294967304"};
    static const struct {
        const char *net;
        unsigned bits;
        const char *in, *out; /* an address of it, one beside it */
    } GOOD[] = {
        {"10.1.2.3", 128, "10.1.2.3", "10.1.2.2"},
        {"10.0.0.0/8", 104, "10.255.0.1", "11.0.0.0"},
        {"192.168.4.0/22", 118, "192.168.7.255", "192.168.8.0"},
        {"0.0.0.0/0", 96, "255.1.2.3", "::1"},
        {"::/0", 0, "1.2.3.4", NULL},
        {"fd00::/8", 8, "fd12::1", "fc00::1"},
        {"2001:db8::/33", 33, "2001:db8:7fff::", "2001:db8:8000::"},
        {"::1", 128, "::1", "127.0.0.1"},
        {"::ffff:10.0.0.0/104", 104, "10.9.9.9", "11.0.0.0"},
        {"10.0.0.0/8", 104, "::ffff:10.9.9.9", "::10.9.9.9"},
    };
    struct http_net net;
    (void)state;
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        if (read_net(BAD[i], &net))
            fail_msg("\"%s\" is accepted", BAD[i]);
    for (size_t i = 0; i < sizeof GOOD / sizeof *GOOD; i++) {
        if (!read_net(GOOD[i].net, &net) || net.bits != GOOD[i].bits)
            fail_msg("%s", GOOD[i].net);
        const struct http_options o = {.trusted = &net, .n_trusted = 1};
        const struct in6_addr in = address(GOOD[i].in);
        if (!peer_is_trusted(&o, &in))
            fail_msg("%s is not in %s", GOOD[i].in, GOOD[i].net);
        if (!GOOD[i].out)
            continue;
        const struct in6_addr out = address(GOOD[i].out);
        if (peer_is_trusted(&o, &out))
            fail_msg("%s is in %s", GOOD[i].out, GOOD[i].net);
    }
}

/* Limits count a /64 of IPv6 as one client, since a client has at least that. */
static void test_same_clients(void **state) {
    static const struct {
        const char *a, *b;
        bool same;
    } CASES[] = {
        {"203.0.113.7", "203.0.113.7", true},
        {"203.0.113.7", "::ffff:203.0.113.7", true},
        {"203.0.113.7", "203.0.113.8", false},
        {"203.0.113.7", "::203.0.113.7", false},
        {"203.0.113.7", "::1", false},
        {"::1", "::1", true},
        {"2001:db8::7", "2001:db8::7", true},
        {"2001:db8:1:2::7", "2001:db8:1:2:ffff:ffff:ffff:ffff", true},
        {"2001:db8:1:2::7", "2001:db8:1:3::7", false},
        {"2001:db8:1:2::7", "2001:db9:1:2::7", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const struct in6_addr a = address(CASES[i].a), b = address(CASES[i].b);
        if (peer_same_client(&a, &b) != CASES[i].same || peer_same_client(&b, &a) != CASES[i].same)
            fail_msg("%s and %s", CASES[i].a, CASES[i].b);
    }
}

/* The peer is 10.0.0.1; trusted are 10.0.0.0/24, 127.0.0.1 and fd00::/8. */
static void test_clients(void **state) {
    static const struct {
        const char *first, *second; /* X-Forwarded-For, twice */
        const char *client;
    } CASES[] = {
        {NULL, NULL, "10.0.0.1"},
        {"", NULL, "10.0.0.1"},
        {"203.0.113.7", NULL, "203.0.113.7"},
        {" \t203.0.113.7 ", NULL, "203.0.113.7"},
        {"203.0.113.7:4711", NULL, "203.0.113.7"},
        {"2001:db8::7", NULL, "2001:db8::7"},
        {"2001:DB8:0:0::7", NULL, "2001:db8::7"},
        {"[2001:db8::7]", NULL, "2001:db8::7"},
        {"[2001:db8::7]:4711", NULL, "2001:db8::7"},
        {"::ffff:203.0.113.7", NULL, "203.0.113.7"},
        {"[::ffff:203.0.113.7]:1", NULL, "203.0.113.7"},
        /* what the client wrote itself stands left of what a proxy added */
        {"1.2.3.4, 203.0.113.7", NULL, "203.0.113.7"},
        {"127.0.0.1,10.0.0.9,203.0.113.7", NULL, "203.0.113.7"},
        {"nonsense, ,\"x\", 203.0.113.7", NULL, "203.0.113.7"},
        {"1.2.3.4", "203.0.113.7", "203.0.113.7"},
        {"1.2.3.4, 5.6.7.8", "203.0.113.7, 10.0.0.2", "203.0.113.7"},
        /* through several proxies */
        {"203.0.113.7, 10.0.0.2", NULL, "203.0.113.7"},
        {"203.0.113.7", "fd00::1", "203.0.113.7"},
        {"203.0.113.7, ::ffff:10.0.0.3, [fd12::1]:80, 127.0.0.1", NULL, "203.0.113.7"},
        /* only proxies */
        {"10.0.0.2", NULL, "10.0.0.1"},
        {"10.0.0.9, 10.0.0.2", "127.0.0.1", "10.0.0.1"},
        /* not an address where one must be */
        {"203.0.113.7,", NULL, "10.0.0.1"},
        {"203.0.113.7", "", "10.0.0.1"},
        {"unknown", NULL, "10.0.0.1"},
        {"203.0.113.7, unknown, 10.0.0.2", NULL, "10.0.0.1"},
        {"203.0.113.7 1.2.3.4", NULL, "10.0.0.1"},
        {"203.0.113.7;1.2.3.4", NULL, "10.0.0.1"},
        {"203.0.113.7:", NULL, "10.0.0.1"},
        {"203.0.113.7:65536", NULL, "10.0.0.1"},
        {"203.0.113.7:x", NULL, "10.0.0.1"},
        {"203.0.113.0/24", NULL, "10.0.0.1"},
        {"203.0.113", NULL, "10.0.0.1"},
        {"203.0.113.007", NULL, "10.0.0.1"},
        {"[203.0.113.7]", NULL, "10.0.0.1"},
        {"[2001:db8::7", NULL, "10.0.0.1"},
        {"2001:db8::7]", NULL, "10.0.0.1"},
        {"[2001:db8::7]4711", NULL, "10.0.0.1"},
        {"[2001:db8::7] ", "[]", "10.0.0.1"},
        {"fe80::1%eth0", NULL, "10.0.0.1"},
        {"0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0001", NULL, "10.0.0.1"},
    };
    struct http_net nets[3];
    const struct http_options o = {.trusted = nets, .n_trusted = 3};
    const struct in6_addr peer = address("10.0.0.1");
    (void)state;
    assert_true(read_net("10.0.0.0/24", &nets[0]) && read_net("127.0.0.1", &nets[1]) &&
                read_net("fd00::/8", &nets[2]));
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct http_head h = {.n_fields = 0};
        h.fields[h.n_fields].name = "Forwarded"; /* another header */
        h.fields[h.n_fields++].value = "for=1.1.1.1";
        if (CASES[i].first) {
            h.fields[h.n_fields].name = "x-forwarded-for";
            h.fields[h.n_fields++].value = CASES[i].first;
        }
        if (CASES[i].second) {
            h.fields[h.n_fields].name = "X-Forwarded-For";
            h.fields[h.n_fields++].value = CASES[i].second;
        }
        char text[HTTP_ADDRESS_MAX];
        const struct in6_addr found = peer_client(&o, &h, &peer);
        peer_text(&found, text);
        if (strcmp(text, CASES[i].client) != 0)
            fail_msg("case %zu: %s, not %s", i, text, CASES[i].client);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nets),
                                       cmocka_unit_test(test_same_clients),
                                       cmocka_unit_test(test_clients)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
