/* SPDX-License-Identifier: Apache-2.0 */
/* jobs.c: the list of a server's jobs: asked, cancelled and ended together. The server's mutex is
 * taken before a job's. */
#include "server/job_internal.h"

#include <string.h>

void jobs_add(struct job *j) {
    struct server *s = j->server;
    pthread_mutex_lock(&s->mutex);
    j->next = s->jobs;
    if (j->next)
        j->next->prev = j;
    s->jobs = j;
    if (s->n_jobs++ == 0)
        pthread_cond_broadcast(&s->changed);
    s->n_incomplete++;
    pthread_mutex_unlock(&s->mutex);
}

void jobs_remove(struct job *j) {
    struct server *s = j->server;
    ASSERT(s->n_jobs > 0);
    *(j->prev ? &j->prev->next : &s->jobs) = j->next;
    if (j->next)
        j->next->prev = j->prev;
    if (--s->n_jobs == 0)
        pthread_cond_broadcast(&s->changed);
}

void jobs_count_complete(struct server *s) {
    ASSERT(s->n_incomplete > 0);
    if (--s->n_incomplete == 0)
        pthread_cond_broadcast(&s->changed);
}

void job_cancel(struct job *j) {
    pthread_mutex_lock(&j->mutex);
    const uint64_t id = j->engine_id; /* 0: the worker sees why, or there is nothing to end */
    const struct served *m = j->served;
    pthread_mutex_unlock(&j->mutex);
    if (m)
        kvasir_engine_cancel(m->engine, id);
}

static bool is_called(const struct job *j, const struct tenant *tenant, const char *id) {
    return (tenant->admin || strcmp(j->key, tenant->key) == 0) &&
           (strcmp(j->id, id) == 0 || (*j->client_id && strcmp(j->client_id, id) == 0));
}

uint32_t jobs_cancel(struct server *s, const struct tenant *tenant, const char *id) {
    uint32_t n = 0;
    pthread_mutex_lock(&s->mutex);
    for (struct job *j = s->jobs; j; j = j->next)
        if (is_called(j, tenant, id)) {
            pthread_mutex_lock(&j->mutex);
            n += !j->complete;
            atomic_store(&j->end.cancelled, true);
            pthread_mutex_unlock(&j->mutex);
            job_cancel(j);
        }
    pthread_mutex_unlock(&s->mutex);
    return n;
}

size_t jobs_running(const struct served *m, const struct tenant *tenant, struct native_slot *out,
                    size_t most) {
    struct server *s = m->server;
    size_t n = 0;
    pthread_mutex_lock(&s->mutex);
    for (struct job *j = s->jobs; j && n < most; j = j->next) {
        if (!tenant->sees_all && strcmp(j->key, tenant->key) != 0)
            continue;
        pthread_mutex_lock(&j->mutex);
        if (j->served == m && j->phase == JOB_SUBMITTED && !j->complete && j->times.started_us)
            out[n++] = (struct native_slot){j->engine_id, j->prompt_tokens, j->prompt_done,
                                            j->completion_tokens};
        pthread_mutex_unlock(&j->mutex);
    }
    pthread_mutex_unlock(&s->mutex);
    return n;
}

void jobs_stop(struct server *s) {
    pthread_mutex_lock(&s->mutex);
    ASSERT(atomic_load(&s->stopping));
    for (struct job *j = s->jobs; j; j = j->next)
        job_cancel(j);
    while (s->n_incomplete)
        pthread_cond_wait(&s->changed, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
}

void jobs_tick(struct server *s) {
    const int64_t now = metrics_now_us(), silence = (int64_t)s->options.keepalive_s * 1000000;
    pthread_mutex_lock(&s->mutex);
    for (struct job *j = s->jobs; j && silence; j = j->next) {
        pthread_mutex_lock(&j->mutex);
        if (j->phase == JOB_SUBMITTED && j->request.stream && j->exchange && !j->complete &&
            now - j->sent_us > silence) {
            j->comment_due = true;
            http_wake(j->exchange);
        }
        pthread_mutex_unlock(&j->mutex);
    }
    pthread_mutex_unlock(&s->mutex);
}
