/* SPDX-License-Identifier: Apache-2.0 */
/* requests.h: requests to an engine, with the moments of their tokens. */
#ifndef KVASIR_BENCH_REQUESTS_H
#define KVASIR_BENCH_REQUESTS_H

#include <stdatomic.h>
#include <unistd.h>

#include "bench.h"

struct answer {
    double submitted, first, last; /* clock_seconds; of its tokens */
    uint32_t cached;               /* tokens of its prompt that were a hit */
    atomic_uint tokens;
    atomic_bool done;
};

/* on_event of such a request; user: its answer. */
static inline void answer_note(void *user, const kvasir_event *e) {
    struct answer *a = user;
    if (e->kind == KVASIR_EVENT_START)
        a->cached = e->cached_tokens;
    if (e->kind == KVASIR_EVENT_TOKEN) {
        a->last = clock_seconds();
        a->first = atomic_load(&a->tokens) ? a->first : a->last;
        atomic_fetch_add(&a->tokens, 1);
    }
    if (e->error)
        fprintf(stderr, "bench: %s\n", e->error->text);
    if (e->last)
        atomic_store(&a->done, true);
}

/* A request of n tokens that is submitted at once; *a begins with it. */
static inline kvasir_request answer_request(struct answer *a, const int32_t *tokens, size_t n,
                                            uint32_t max_tokens) {
    kvasir_request r = kvasir_request_defaults();
    *a = (struct answer){.submitted = clock_seconds()};
    r.tokens = tokens;
    r.n_tokens = n;
    r.max_tokens = max_tokens;
    r.ignore_end = true;
    r.on_event = answer_note;
    r.user = a;
    return r;
}

static inline void answer_wait(const struct answer *a) {
    while (!atomic_load(&a->done))
        usleep(500);
}

#endif
