/* SPDX-License-Identifier: Apache-2.0 */
/* trace.c: reads recorded requests. Each line is parsed alone and stored in two arrays, so a trace
 * takes a fraction of its text's memory.
 *
 * Invariants of an accepted trace
 *   TRACE-1  A request has one id for each block that its prompt begins, each at most TRACE_ID_MAX.
 *   TRACE-2  Arrivals never decrease: the order of lines is the order of requests.
 *   TRACE-3  Every token is >= 0 and fits 31 bits, because ids leave room for all outputs above
 *            them.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lab/trace.h"
#include "text/text.h"
#include "util/json.h"

enum { FILE_MAX = 1 << 30 };

/* The line that is being read. */
struct line {
    const json_t *object;
    int64_t at; /* its offset in the file */
    kvasir_error *err;
};

static kvasir_status out_of_memory(kvasir_error *err) {
    return fail(err, KVASIR_ERR_MEMORY, "out of memory");
}

static kvasir_status check_integer(const struct line *l, const char *name, const json_t *value,
                                   uint32_t min, uint32_t max, uint32_t *out) {
    if (!value)
        return fail_at(l->err, KVASIR_ERR_FORMAT, l->at, "field %s is missing", name);
    if (!json_is_integer(value))
        return fail_at(l->err, KVASIR_ERR_FORMAT, l->at, "field %s must be an integer", name);
    json_int_t n = json_integer_value(value);
    if (n < (json_int_t)min || n > (json_int_t)max)
        return fail_at(l->err, KVASIR_ERR_FORMAT, l->at,
                       "field %s is %" JSON_INTEGER_FORMAT ", must be from %u to %u", name, n, min,
                       max);
    *out = (uint32_t)n;
    return KVASIR_OK;
}

static kvasir_status read_field(const struct line *l, const char *key, uint32_t min, uint32_t max,
                                uint32_t *out) {
    return check_integer(l, key, json_object_get(l->object, key), min, max, out);
}

static kvasir_status read_blocks(const struct line *l, const struct trace_request *r,
                                 struct trace *t) {
    const json_t *ids = json_object_get(l->object, "hash_ids");
    if (!json_is_array(ids))
        return fail_at(l->err, KVASIR_ERR_FORMAT, l->at, "field hash_ids %s",
                       ids ? "must be an array" : "is missing");
    size_t n = json_array_size(ids);
    if (n != trace_blocks(r))
        return fail_at(l->err, KVASIR_ERR_FORMAT, l->at,
                       "field hash_ids has %zu ids, but input_length %u has %u blocks of %d tokens",
                       n, r->prompt, trace_blocks(r), TRACE_BLOCK_TOKENS);
    for (size_t i = 0; i < n; i++) {
        char name[40];
        snprintf(name, sizeof name, "hash_ids[%zu]", i);
        if (!ARRAY_GROW(t->blocks, t->cap_blocks, t->n_blocks + 1))
            return out_of_memory(l->err);
        TRY(check_integer(l, name, json_array_get(ids, i), 0, TRACE_ID_MAX,
                          &t->blocks[t->n_blocks]));
        t->n_blocks++;
    }
    return KVASIR_OK;
}

static kvasir_status read_request(const struct line *l, struct trace *t) {
    if (!json_is_object(l->object))
        return fail_at(l->err, KVASIR_ERR_FORMAT, l->at, "a request must be an object");
    struct trace_request r = {.first_block = t->n_blocks};
    TRY(read_field(l, "timestamp", 0, UINT32_MAX, &r.at_ms));
    TRY(read_field(l, "input_length", 1, TRACE_LENGTH_MAX, &r.prompt));
    TRY(read_field(l, "output_length", 1, TRACE_LENGTH_MAX, &r.output));
    if (t->n && r.at_ms < t->requests[t->n - 1].at_ms)
        return fail_at(l->err, KVASIR_ERR_FORMAT, l->at,
                       "field timestamp is %u, before that of the request before it, %u", r.at_ms,
                       t->requests[t->n - 1].at_ms);
    TRY(read_blocks(l, &r, t));
    if (!ARRAY_GROW(t->requests, t->cap, t->n + 1))
        return out_of_memory(l->err);
    t->requests[t->n++] = r;
    t->prompt_tokens += r.prompt;
    t->output_tokens += r.output;
    return KVASIR_OK;
}

/* Outputs get the numbers above those of prompts (TRACE-3). */
static kvasir_status number_outputs(struct trace *t, kvasir_error *err) {
    uint64_t next = 0;
    for (uint32_t i = 0; i < t->n_blocks; i++)
        if (t->blocks[i] >= next)
            next = (uint64_t)t->blocks[i] + 1;
    next *= TRACE_BLOCK_TOKENS;
    if (next + t->output_tokens > (uint64_t)INT32_MAX + 1)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "hash_ids up to prompt token %" PRIu64 " and %" PRIu64
                    " output tokens do not fit in 31 bits: limit the number of requests",
                    next, t->output_tokens);
    for (uint32_t i = 0; i < t->n; i++) {
        t->requests[i].first_output = (int32_t)next;
        next += t->requests[i].output;
    }
    ASSERT(next <= (uint64_t)INT32_MAX + 1); /* TRACE-3 */
    return KVASIR_OK;
}

static kvasir_status parse_line(const char *text, size_t len, int64_t at, struct trace *t,
                                kvasir_error *err) {
    json_t *object;
    TRY(json_load_bounded(text, len, at, 0, &object, err));
    struct line l = {.object = object, .at = at, .err = err};
    kvasir_status status = read_request(&l, t);
    json_decref(object);
    return status;
}

kvasir_status trace_parse(const char *text, size_t len, struct trace *t, kvasir_error *err) {
    kvasir_status status = KVASIR_OK;
    *t = (struct trace){0};
    size_t at = 0;
    for (unsigned number = 1; at < len; number++) {
        const char *newline = memchr(text + at, '\n', len - at);
        size_t n = newline ? (size_t)(newline - text) - at : len - at;
        status = parse_line(text + at, n, (int64_t)at, t, err);
        if (status != KVASIR_OK) {
            char line[40];
            snprintf(line, sizeof line, "line %u", number);
            fail_prefix(err, line);
            goto done;
        }
        at += n + 1;
    }
    if (t->n == 0)
        status = fail(err, KVASIR_ERR_FORMAT, "there are no requests");
    else
        status = number_outputs(t, err);
done:
    if (status != KVASIR_OK)
        trace_deinit(t);
    return status;
}

kvasir_status trace_read(const char *path, struct trace *t, kvasir_error *err) {
    char *text;
    size_t len;
    *t = (struct trace){0};
    TRY(file_read_input(path, FILE_MAX, &text, &len, err));
    kvasir_status status = trace_parse(text, len, t, err);
    mem_free(text);
    if (status != KVASIR_OK)
        fail_prefix(err, strcmp(path, "-") == 0 ? "standard input" : path);
    return status;
}

void trace_cut(struct trace *t, uint32_t n) {
    for (; t->n > n; t->n--) {
        const struct trace_request *last = &t->requests[t->n - 1];
        t->prompt_tokens -= last->prompt;
        t->output_tokens -= last->output;
        ASSERT(last->first_block < t->n_blocks); /* TRACE-1: a prompt has a token */
        t->n_blocks = last->first_block;
    }
}

void trace_deinit(struct trace *t) {
    mem_free(t->requests);
    mem_free(t->blocks);
    *t = (struct trace){0};
}
