/* SPDX-License-Identifier: Apache-2.0 */
/* job_internal.h: a job, for job.c, which does its work, and jobs.c, the list of them. */
#ifndef SERVER_JOB_INTERNAL_H
#define SERVER_JOB_INTERNAL_H

#include "server/text_task.h"

/* A worker has the job, and the exchange waits: JOB_UNREAD, JOB_WRITING. Without a stream: WRITING
 * if the answer is long, then WRITTEN. */
enum job_phase { JOB_UNREAD, JOB_REFUSED, JOB_SUBMITTED, JOB_WRITING, JOB_WRITTEN };
/* Events and what they point to, back to back. Address space of options.buffer_bytes, of which the
 * first `touched` bytes are charged. */
struct events {
    char *data;
    size_t len, touched;
};

struct job {
    struct task task; /* first */
    struct work work;
    struct text_end end; /* of the worker's work */
    struct server *server;
    uint64_t seed;         /* unless the request has one */
    struct charge *charge; /* what it owns */
    char id[JOB_ID_MAX], client_id[JOB_ID_MAX];
    struct trace_ids trace;
    int64_t began_us;
    const char *key; /* the tenant's; belongs to the options */
    struct tenant tenant;
    struct responses_store responses; /* the tenant's */
    struct session_user session;      /* likewise */
    char *salt;
    char *body;    /* its text, if it is logged */
    char *unknown; /* names of fields that nobody knows; NULL: none */
    struct api_setup setup;
    struct api_request request;
    int64_t created;
    const struct protocol *protocol;
    struct api_answer answer; /* unless it is a stream and continues no session */
    char *text;               /* the answer's, JOB_WRITTEN; NULL: `refused` says why */
    void *stream;
    struct text_buf out; /* of the stream; sent up to out_at */
    size_t out_at;
    struct events taken; /* from queue, read up to taken_at */
    size_t taken_at;
    kvasir_error taken_error;
    struct api_times seen;           /* when what is written happened */
    bool finished;                   /* the stream is complete */
    struct metrics_request measured; /* from submit on, of the engine's thread only */
    struct job *prev, *next;         /* under the server's mutex */
    /* under the mutex */
    pthread_mutex_t mutex;
    struct http_exchange *exchange; /* NULL: over */
    enum job_phase phase;
    struct served *served;    /* its model, with a lease; NULL: not picked yet */
    struct api_error refused; /* why there is no answer */
    uint64_t engine_id;
    bool complete, too_slow, gone, comment_due;
    struct events queue;
    kvasir_error error; /* of the last choice that failed */
    uint32_t prompt_tokens, cached_tokens, prompt_done, completion_tokens;
    uint64_t cache_bytes;
    kvasir_hit hit;
    uint32_t common_tokens;
    kvasir_miss why;
    kvasir_finish finish;
    struct metrics_request times; /* a copy of measured */
    int64_t sent_us;
};

/* ---- jobs.c ---- */
void jobs_add(struct job *j);
/* Under the server's mutex: off the list; a job's last event has come. */
void jobs_remove(struct job *j);
void jobs_count_complete(struct server *s);
/* Ends what the engine does for it; without the job's mutex, while somebody has the job. */
void job_cancel(struct job *j);

#endif
