/* SPDX-License-Identifier: Apache-2.0 */
/* job_log.c: one line with a request's figures, and its body if options.log_prompts is set; and
 * what its spans are made of. */
#include "server/job_log.h"

#include <stdio.h>
#include <string.h>

static json_t *ms_between(int64_t from_us, int64_t to_us) {
    return json_integer(from_us && to_us ? (to_us - from_us) / 1000 : -1);
}

static json_t *text_or_null(const char *text) {
    return text && *text ? json_string(text) : json_null();
}

static enum server_log_level level_of(const struct job_record *r) {
    if (strcmp(r->finish, "error") == 0)
        return SERVER_LOG_ERROR;
    return strcmp(r->finish, "slow_reader") == 0 ? SERVER_LOG_WARN : SERVER_LOG_INFO;
}

static json_t *figures_of(const struct server *s, const struct job_record *r) {
    const struct metrics_request *t = &r->times;
    json_t *f =
        json_pack("{s:I, s:I, s:s, s:I, s:I, s:s, s:I, s:I}", "prompt",
                  (json_int_t)r->prompt_tokens, "cached", (json_int_t)r->cached_tokens, "hit",
                  kvasir_hit_text(r->hit), "diverged_at", (json_int_t)r->cached_tokens, "common",
                  (json_int_t)r->common_tokens, "why", kvasir_miss_text(r->why), "new",
                  (json_int_t)r->completion_tokens, "cache_bytes", (json_int_t)r->cache_bytes);
    json_object_set_new(f, "queue_ms", ms_between(t->submitted_us, t->started_us));
    json_object_set_new(f, "first_token_ms", ms_between(t->submitted_us, t->first_us));
    json_object_set_new(f, "total_ms", ms_between(t->submitted_us, metrics_now_us()));
    if (s->many)
        json_object_set_new(f, "model", text_or_null(r->model));
    if (r->unknown)
        json_object_set_new(f, "unknown_fields", json_string(r->unknown));
    return f;
}

void job_log(const struct server *s, const struct job_record *r,
             const struct http_exchange *exchange) {
    const enum server_log_level level = level_of(r);
    if (log_wants(s->log, level)) {
        json_t *line = json_pack("{s:s, s:s, s:s, s:i, s:s, s:s}", "id", r->id, "request_id",
                                 exchange->id, "route", r->route, "status", (int)r->status,
                                 "finish", r->finish, "client", exchange->client);
        json_t *figures = figures_of(s, r);
        if (*r->trace.trace)
            json_object_set_new(line, "trace_id", json_string(r->trace.trace));
        json_object_update(line, figures);
        json_decref(figures);
        log_add(s->log, level, line);
    }
    if (s->options.log_prompts && log_wants(s->log, SERVER_LOG_INFO))
        log_add(s->log, SERVER_LOG_INFO,
                json_pack("{s:s, s:o}", "id", r->id, "body", text_or_null(r->body)));
}

void job_trace_begin(const struct server *s, const struct http_exchange *exchange,
                     struct trace_ids *out) {
    if (!traceparent_read(http_header(exchange, "traceparent"), out) && s->otlp &&
        !trace_random_id(out->trace, TRACE_ID_DIGITS))
        *out = (struct trace_ids){0};
}

void job_trace_end(const struct server *s, const struct job_record *r,
                   const struct http_exchange *exchange) {
    const struct metrics_request *t = &r->times;
    if (!s->otlp || !*r->trace.trace || !r->trace.sampled)
        return;
    struct otlp_request o = {.trace = r->trace,
                             .route = r->route,
                             .finish = r->refused ? "refused" : r->finish,
                             .hit = kvasir_hit_text(r->hit),
                             .why = kvasir_miss_text(r->why),
                             .status = r->status,
                             .embeds = r->embeds,
                             .prompt_tokens = r->prompt_tokens,
                             .cached_tokens = r->cached_tokens,
                             .completion_tokens = r->completion_tokens,
                             .begin_us = r->began_us,
                             .submitted_us = t->submitted_us,
                             .looked_us = t->looked_us,
                             .started_us = t->started_us,
                             .first_us = t->first_us,
                             .last_us = t->last_us,
                             .end_us = metrics_now_us()};
    ASSERT(o.begin_us && o.end_us >= o.begin_us);
    snprintf(o.id, sizeof o.id, "%s", r->id);
    snprintf(o.request_id, sizeof o.request_id, "%s", exchange->id);
    snprintf(o.model, sizeof o.model, "%s", r->model ? r->model : s->options.model_name);
    snprintf(o.client, sizeof o.client, "%s", exchange->client);
    snprintf(o.path, sizeof o.path, "%s", exchange->path);
    otlp_add(s->otlp, &o);
}
