/* SPDX-License-Identifier: Apache-2.0 */
/* job_log.h: the log's line of a request that is over. */
#ifndef SERVER_JOB_LOG_H
#define SERVER_JOB_LOG_H

#include "server/server_internal.h"

/* A copy for the log, since the job may be freed before the line is written. */
struct job_record {
    char id[JOB_ID_MAX], client_id[JOB_ID_MAX];
    const char *route, *finish;
    const char *model; /* of several; NULL: there is one */
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

/* From any thread, without locks. client: the address. */
void job_log(const struct server *s, const struct job_record *r, const char *client);

#endif
