/* SPDX-License-Identifier: Apache-2.0 */
/* job_log.h: what is told of a request that is over: the log's line, and the spans of its trace. */
#ifndef SERVER_JOB_LOG_H
#define SERVER_JOB_LOG_H

#include "server/server_internal.h"

/* A copy for the log, since the job may be freed before the line is written. */
struct job_record {
    char id[JOB_ID_MAX];
    struct trace_ids trace;
    int64_t began_us;
    const char *route, *finish;
    const char *model; /* NULL: none was found */
    bool refused, embeds;
    unsigned status;
    uint32_t prompt_tokens, cached_tokens, completion_tokens;
    uint64_t cache_bytes;
    kvasir_hit hit;
    uint32_t common_tokens;
    kvasir_miss why;
    struct metrics_request times;
    char *body;    /* the job's, taken; NULL unless options.log_prompts */
    char *unknown; /* names of unknown fields, likewise; NULL: none */
};

/* From any thread, without locks, before the exchange is over. */
void job_log(const struct server *s, const struct job_record *r,
             const struct http_exchange *exchange);
/* Which trace a new request belongs to. */
void job_trace_begin(const struct server *s, const struct http_exchange *exchange,
                     struct trace_ids *out);
/* Hands its spans over, if anybody collects them. As job_log. */
void job_trace_end(const struct server *s, const struct job_record *r,
                   const struct http_exchange *exchange);

#endif
