/* SPDX-License-Identifier: Apache-2.0 */
/* job_log.c: one line with a request's figures, and its body if options.log_prompts is set. */
#include "server/job_log.h"

static int64_t ms_between(int64_t from_us, int64_t to_us) {
    return from_us && to_us ? (to_us - from_us) / 1000 : -1;
}

void job_log(const struct server *s, const struct job_record *r, const char *client) {
    const struct metrics_request *t = &r->times;
    log_add(s->log,
            "id=%s client_id=%s route=%s status=%u finish=%s prompt=%u cached=%u hit=%s "
            "diverged_at=%u common=%u why=%s new=%u cache_bytes=%llu queue_ms=%lld "
            "first_token_ms=%lld total_ms=%lld client=%s%s%s%s%s",
            r->id, *r->client_id ? r->client_id : "-", r->route, r->status, r->finish,
            r->prompt_tokens, r->cached_tokens, kvasir_hit_text(r->hit), r->cached_tokens,
            r->common_tokens, kvasir_miss_text(r->why), r->completion_tokens,
            (unsigned long long)r->cache_bytes,
            (long long)ms_between(t->submitted_us, t->started_us),
            (long long)ms_between(t->submitted_us, t->first_us),
            (long long)ms_between(t->submitted_us, metrics_now_us()), client,
            r->model ? " model=" : "", r->model ? r->model : "",
            r->unknown ? " unknown_fields=" : "", r->unknown ? r->unknown : "");
    if (s->options.log_prompts)
        log_add(s->log, "id=%s body=%s", r->id, r->body ? r->body : "-");
}
