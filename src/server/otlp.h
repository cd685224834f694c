/* SPDX-License-Identifier: Apache-2.0 */
/* otlp.h: what a request did, as spans of OpenTelemetry, sent to a collector (otlp.c, and
 * otlp_json.c for their form) by OTLP over HTTP in its JSON encoding.
 *
 *     request  begin ------------------------------------------------------------------- end
 *     queue             submitted -- looked
 *     prefix                         looked -- started       stored prefixes are looked up, loaded
 *     prefill                                  started -- first token
 *     decode                                              first token -- last token
 *
 * Invariants
 *   OTLP-1  otlp_add never waits, neither for the network nor for memory: what does not fit the
 *           queue is dropped and counted.
 *   OTLP-2  No text of a prompt or an answer is sent. */
#ifndef SERVER_OTLP_H
#define SERVER_OTLP_H

#include <jansson.h>

#include "http/http.h"
#include "server/log.h"
#include "server/traceparent.h"

/* A request that is over. Times: metrics_now_us; 0: that never happened. */
struct otlp_request {
    struct trace_ids trace; /* .trace is not "" */
    char id[HTTP_ID_MAX], request_id[HTTP_ID_MAX];
    char model[128], client[HTTP_ADDRESS_MAX], path[48];
    const char *route, *finish, *hit, *why; /* texts of the program */
    unsigned status;
    bool embeds; /* its answer is an embedding */
    uint32_t prompt_tokens, cached_tokens, completion_tokens;
    int64_t begin_us, submitted_us, looked_us, started_us, first_us, last_us, end_us;
};

struct otlp_figures {
    bool on;                        /* there is a collector */
    uint64_t sent, failed, dropped; /* requests with their spans */
};

struct otlp;
/* endpoint: "http://127.0.0.1:4318"; "/v1/traces" is added unless it ends so. headers: lines
 * "Name: value\n" of each request, or NULL. Borrows log, which may be NULL. NULL: out of memory. */
struct otlp *otlp_create(const char *endpoint, const char *headers, struct log *log);
/* From any thread. */
void otlp_add(struct otlp *o, const struct otlp_request *r);
struct otlp_figures otlp_figures(struct otlp *o);
/* Sends what is left, for at most two seconds. NULL is allowed. */
void otlp_destroy(struct otlp *o);

/* ---- otlp_json.c ---- */

/* The spans of n requests, ExportTraceServiceRequest as JSON; unix_us: what is to be added to their
 * times. mem_free; NULL: out of memory. */
char *otlp_json(const struct otlp_request *requests, size_t n, int64_t unix_us);

#endif
