/* SPDX-License-Identifier: Apache-2.0 */
/* traceparent.h: which trace a request belongs to, by W3C Trace Context's header "traceparent". */
#ifndef SERVER_TRACEPARENT_H
#define SERVER_TRACEPARENT_H

#include <stdbool.h>

enum { TRACE_ID_DIGITS = 32, SPAN_ID_DIGITS = 16 };
struct trace_ids {
    char trace[TRACE_ID_DIGITS + 1]; /* lower-case hex; "": the request belongs to none */
    char parent[SPAN_ID_DIGITS + 1]; /* the client's span; "": the trace begins here */
    bool sampled;                    /* the client records it, or there is no client that says */
};

/* text: the header, or NULL. False: *out is of no trace, because there is no header, or one that
 * the standard says to ignore. */
bool traceparent_read(const char *text, struct trace_ids *out);
/* n random hex digits, not all zero, and a NUL. False: the kernel gives no random bytes. */
bool trace_random_id(char *out, unsigned n);

#endif
