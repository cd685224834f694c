/* SPDX-License-Identifier: Apache-2.0 */
/* `kvasir top`: what a running server does, from its /metrics.
 *
 *   top.c       the command: flags, requests, the loop
 *   top_read.c  from the text of /metrics to a sample
 *   top_view.c  from two samples to what is shown
 */
#ifndef KVASIR_CLI_TOP_H
#define KVASIR_CLI_TOP_H

#include "cli.h"

enum { TOP_TIERS_MAX = 4, TOP_NAME_MAX = 64 };

/* A store below the memory. */
struct top_tier {
    char name[TOP_NAME_MAX];
    double bytes, limit, records, hit_pages, down;
};

/* The figures of a server at one moment, summed over its models. Those that it does not have are
 * 0. */
struct top_sample {
    double seconds; /* clock_seconds */
    char model[TOP_NAME_MAX], version[TOP_NAME_MAX];
    unsigned models; /* how many have figures */
    bool kvasir;     /* not another server with vLLM's names */
    double running, waiting, unread, finished, refused, connections, preemptions;
    double prompt_tokens, cached_tokens, generated, looked_up, found;
    double first_sum, first_n, between_sum, between_n, queue_sum, queue_n;
    double usage, budget, used, stored, resident, evicted, uptime;
    struct top_tier tiers[TOP_TIERS_MAX];
    unsigned n_tiers;
};

/* top_read.c: reads the text of /metrics, which it cuts up. False: it has no figure that is known
 * here. */
bool top_read(char *text, struct top_sample *out);

/* top_view.c: writes lines about `now`, and about the time since `before`. url: the server's.
 * colour: with escape sequences. False: out of memory. */
bool top_view(struct text_buf *out, const char *url, const struct top_sample *before,
              const struct top_sample *now, bool colour);

#endif
