/* SPDX-License-Identifier: Apache-2.0 */
/* otlp_json.c: spans as OTLP/JSON has them: ids in hex, 64-bit numbers as strings, enums as
 * numbers. Attributes have the names of OpenTelemetry's conventions for generative AI and HTTP;
 * those that begin with "kvasir." are ours.
 */
#include "server/otlp.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/metrics.h"

enum { KIND_INTERNAL = 1, KIND_SERVER = 2, STATUS_ERROR = 2 };

static void put(json_t *attributes, const char *key, json_t *value) {
    json_array_append_new(attributes, json_pack("{s:s, s:o}", "key", key, "value", value));
}

static void put_string(json_t *attributes, const char *key, const char *text) {
    if (text && *text)
        put(attributes, key, json_pack("{s:s}", "stringValue", text));
}

static void put_int(json_t *attributes, const char *key, uint64_t n) {
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, n);
    put(attributes, key, json_pack("{s:s}", "intValue", text));
}

static void put_time(json_t *span, const char *key, int64_t us) {
    char text[32];
    snprintf(text, sizeof text, "%" PRId64 "000", us);
    json_object_set_new(span, key, json_string(text));
}

/* One span, appended; NULL: out of memory. Takes attributes. */
static json_t *add_span(json_t *spans, const struct otlp_request *r, const char *parent,
                        const char *name, int kind, int64_t from_us, int64_t to_us,
                        json_t *attributes) {
    char id[SPAN_ID_DIGITS + 1];
    json_t *span = trace_random_id(id, SPAN_ID_DIGITS)
                       ? json_pack("{s:s, s:s, s:s, s:i}", "traceId", r->trace.trace, "spanId", id,
                                   "name", name, "kind", kind)
                       : NULL;
    if (!span) {
        json_decref(attributes);
        return NULL;
    }
    if (*parent)
        json_object_set_new(span, "parentSpanId", json_string(parent));
    put_time(span, "startTimeUnixNano", from_us);
    put_time(span, "endTimeUnixNano", to_us > from_us ? to_us : from_us);
    if (attributes)
        json_object_set_new(span, "attributes", attributes);
    return json_array_append_new(spans, span) == 0 ? span : NULL;
}

static bool failed(const struct otlp_request *r) {
    return r->status >= 500 || r->status == 0 || strcmp(r->finish, "error") == 0;
}

static const char *operation(const struct otlp_request *r) {
    const bool chat = strstr(r->path, "chat") || strstr(r->path, "messages");
    return r->embeds ? "embeddings" : chat ? "chat" : "text_completion";
}

static json_t *request_attributes(const struct otlp_request *r) {
    json_t *a = json_array();
    put_string(a, "gen_ai.operation.name", operation(r));
    put_string(a, "gen_ai.provider.name", "kvasir");
    put_string(a, "gen_ai.request.model", r->model);
    put_string(a, "gen_ai.response.model", r->model);
    put_string(a, "gen_ai.response.id", r->id);
    put(a, "gen_ai.response.finish_reasons",
        json_pack("{s:{s:[{s:s}]}}", "arrayValue", "values", "stringValue", r->finish));
    put_int(a, "gen_ai.usage.input_tokens", r->prompt_tokens);
    put_int(a, "gen_ai.usage.output_tokens", r->completion_tokens);
    put_int(a, "gen_ai.usage.cache_read.input_tokens", r->cached_tokens);
    put_string(a, "http.request.method", "POST");
    put_string(a, "http.route", r->path);
    if (r->status)
        put_int(a, "http.response.status_code", r->status);
    put_string(a, "client.address", r->client);
    put_string(a, "kvasir.request_id", r->request_id);
    put_string(a, "kvasir.route", r->route);
    if (failed(r))
        put_string(a, "error.type", r->status >= 500 ? "server_error" : r->finish);
    return a;
}

static json_t *prefix_attributes(const struct otlp_request *r) {
    json_t *a = json_array();
    put_int(a, "gen_ai.usage.cache_read.input_tokens", r->cached_tokens);
    put_string(a, "kvasir.prefix.hit", r->hit);
    put_string(a, "kvasir.prefix.miss_reason", r->why);
    return a;
}

static json_t *count_attributes(const char *key, uint64_t n) {
    json_t *a = json_array();
    put_int(a, key, n);
    return a;
}

/* Of a request that was submitted; it ends in the phase that it did not leave. */
static bool add_phases(json_t *spans, const struct otlp_request *r, const char *parent,
                       int64_t unix_us) {
    const int64_t end = r->end_us, started = r->started_us ? r->started_us : end,
                  looked = r->looked_us ? r->looked_us : started,
                  first = r->first_us ? r->first_us : end, last = r->last_us ? r->last_us : end;
    bool good = true;
    if (r->submitted_us)
        good = add_span(spans, r, parent, "queue", KIND_INTERNAL, unix_us + r->submitted_us,
                        unix_us + looked, NULL);
    if (good && r->looked_us)
        good = add_span(spans, r, parent, "prefix", KIND_INTERNAL, unix_us + looked,
                        unix_us + started, prefix_attributes(r));
    if (good && r->started_us)
        good = add_span(
            spans, r, parent, "prefill", KIND_INTERNAL, unix_us + started, unix_us + first,
            count_attributes("kvasir.computed_tokens", r->prompt_tokens - r->cached_tokens));
    if (good && r->first_us)
        good = add_span(spans, r, parent, "decode", KIND_INTERNAL, unix_us + first, unix_us + last,
                        count_attributes("gen_ai.usage.output_tokens", r->completion_tokens));
    return good;
}

static bool add_request(json_t *spans, const struct otlp_request *r, int64_t unix_us) {
    char name[160];
    ASSERT(strlen(r->trace.trace) == TRACE_ID_DIGITS && r->begin_us && r->end_us);
    snprintf(name, sizeof name, "%s %.120s", operation(r), r->model);
    json_t *span = add_span(spans, r, r->trace.parent, name, KIND_SERVER, unix_us + r->begin_us,
                            unix_us + r->end_us, request_attributes(r));
    if (!span)
        return false;
    if (failed(r))
        json_object_set_new(span, "status", json_pack("{s:i}", "code", STATUS_ERROR));
    return add_phases(spans, r, json_string_value(json_object_get(span, "spanId")), unix_us);
}

char *otlp_json(const struct otlp_request *requests, size_t n, int64_t unix_us) {
    json_t *spans = json_array(), *about = json_array();
    bool good = spans && about;
    for (size_t i = 0; i < n && good; i++)
        good = add_request(spans, &requests[i], unix_us);
    put_string(about, "service.name", "kvasir");
    put_string(about, "service.version", kvasir_version());
    json_t *all = json_pack("{s:[{s:{s:o}, s:[{s:{s:s, s:s}, s:o}]}]}", "resourceSpans", "resource",
                            "attributes", about, "scopeSpans", "scope", "name", "kvasir", "version",
                            kvasir_version(), "spans", spans);
    char *text = good && all ? json_dumps(all, JSON_COMPACT) : NULL;
    json_decref(all);
    return text;
}
