/* SPDX-License-Identifier: Apache-2.0 */
/* chat_remote.c: `kvasir chat --url URL`: a server that speaks OpenAI's API answers.
 *
 *     GET  /v1/models             once, where -m does not name the model
 *     POST /v1/chat/completions   streamed: lines "data: {...}" up to "data: [DONE]"
 *     GET  /v1/status             for /stats; Kvasir's own, others do not have it
 *
 * Sampling flags at their defaults are not sent, except the temperature, so that servers with fewer
 * of them work too. Reasoning of earlier answers is not sent.
 *
 * Nothing received is trusted: a body, or a line of a stream, has at most BODY_MAX bytes.
 */
#include "cli/chat_main.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const size_t BODY_MAX = (size_t)4 << 20;

struct remote {
    const struct command *c;
    const struct chat_options *o;
    struct chat chat;
    struct sampling sampling;
    char *base;  /* the URL up to where /v1 begins */
    char *model; /* as the server calls it */
    CURL *curl;
    struct curl_slist *headers;
    uint64_t turns;
};

/* One call of the server. */
struct call {
    struct remote *r;
    struct answer *a;   /* of a stream; NULL: the body is wanted */
    struct text_buf in; /* the body, or a line of the stream that is not complete */
    long status;        /* of HTTP; 0: none came */
    bool complete;      /* the stream's end was received */
    int code;           /* an error was printed */
};

/* ---- what comes ------------------------------------------------------------------------------ */

/* The error message in a body; NULL: none. OpenAI has {"error": {"message"}}, others a string
 * there, or {"detail"}. */
static const char *error_of(const json_t *body) {
    const json_t *error = json_object_get(body, "error");
    const json_t *text = json_is_object(error) ? json_object_get(error, "message") : error;
    return json_string_value(text ? text : json_object_get(body, "detail"));
}

static int put_member(struct call *call, const json_t *delta, const char *name,
                      enum answer_part_kind part) {
    const json_t *text = json_object_get(delta, name);
    return answer_put(call->r->c, call->a, part, json_string_value(text), json_string_length(text));
}

static void read_usage(struct answer *a, const json_t *usage) {
    const json_t *details = json_object_get(usage, "prompt_tokens_details");
    if (!json_is_object(usage))
        return;
    a->counted = true;
    a->prompt_tokens = (uint64_t)json_integer_value(json_object_get(usage, "prompt_tokens"));
    a->tokens = (uint64_t)json_integer_value(json_object_get(usage, "completion_tokens"));
    a->cached_tokens = (uint64_t)json_integer_value(json_object_get(details, "cached_tokens"));
}

/* One chunk of a stream. */
static int read_chunk(struct call *call, const char *data, size_t len) {
    const struct remote *r = call->r;
    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        call->complete = true;
        return EXIT_GOOD;
    }
    json_t *chunk;
    if (json_load_request(data, len, JSON_ALLOW_NUL, &chunk, NULL) != KVASIR_OK ||
        !json_is_object(chunk)) {
        json_decref(chunk);
        return run_error(r->c,
                         "%s: the stream holds something that is not a JSON object: "
                         "%.60s",
                         r->base, data);
    }
    int code = EXIT_GOOD;
    const json_t *choice = json_array_get(json_object_get(chunk, "choices"), 0);
    const json_t *delta = json_object_get(choice, "delta");
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    if (json_object_get(chunk, "error"))
        code = run_error(r->c, "%s: %s", r->base, error_of(chunk) ? error_of(chunk) : "an error");
    if (!code)
        code = put_member(call, delta, "reasoning_content", ANSWER_REASONING);
    if (!code && !json_object_get(delta, "reasoning_content"))
        code = put_member(call, delta, "reasoning", ANSWER_REASONING);
    if (!code)
        code = put_member(call, delta, "content", ANSWER_CONTENT);
    read_usage(call->a, json_object_get(chunk, "usage"));
    call->complete |= finish != NULL;
    call->a->cut |= finish && strcmp(finish, "length") == 0;
    json_decref(chunk);
    return code;
}

/* Comments and fields other than data are skipped. */
static int read_stream_line(struct call *call, const char *line, size_t len) {
    if (len && line[len - 1] == '\r')
        len--;
    if (len < 5 || memcmp(line, "data:", 5) != 0)
        return EXIT_GOOD;
    line += 5;
    len -= 5;
    if (len && *line == ' ') {
        line++;
        len--;
    }
    return read_chunk(call, line, len);
}

/* Takes the complete lines out of `in`. */
static int read_lines(struct call *call) {
    int code = EXIT_GOOD;
    char *at = call->in.data, *end;
    size_t left = call->in.len;
    while (!code && (end = memchr(at, '\n', left)) != NULL) {
        *end = 0; /* NUL-terminated, since an error may quote the line */
        code = read_stream_line(call, at, (size_t)(end - at));
        left -= (size_t)(end + 1 - at);
        at = end + 1;
    }
    memmove(call->in.data, at, left);
    call->in.len = left;
    return code;
}

static size_t on_body(char *data, size_t size, size_t n, void *user) {
    struct call *call = user;
    curl_easy_getinfo(call->r->curl, CURLINFO_RESPONSE_CODE, &call->status);
    n *= size; /* which is 1 */
    if (n > BODY_MAX - call->in.len)
        call->code = run_error(call->r->c, "%s: the answer is too long", call->r->base);
    else if (!text_append(&call->in, data, n))
        call->code = run_error(call->r->c, "out of memory for the answer");
    else if (call->a && call->status == 200)
        call->code = read_lines(call);
    return call->code ? 0 : n;
}

static int on_wait(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    (void)user, (void)a, (void)b, (void)c, (void)d;
    return interrupted();
}

/* ---- calls ----------------------------------------------------------------------------------- */

static int refused(struct call *call, const char *path) {
    json_t *body;
    (void)!json_load_request(call->in.data, call->in.len, 0, &body, NULL);
    const char *why = error_of(body);
    const bool other = !why && call->status == 404;
    int code = run_error(call->r->c, "%s%s: HTTP %ld%s%s", call->r->base, path, call->status,
                         why || other ? ": " : "",
                         other ? "no server with OpenAI's API: is --url right?"
                         : why ? why
                               : "");
    json_decref(body);
    return code;
}

/* GET, or POST of a body. EXIT_GOOD also if Ctrl-C ended it. */
static int call_server(struct call *call, const char *path, const char *body) {
    struct remote *r = call->r;
    struct text_buf url = {0};
    char why[CURL_ERROR_SIZE] = "", explained[REMOTE_WHY_MAX];
    if (!text_puts(&url, r->base) || !text_puts(&url, path)) {
        text_free(&url);
        return run_error(r->c, "out of memory for the URL");
    }
    CURL *h = r->curl;
    curl_easy_reset(h); /* connections stay */
    remote_setup(h, url.data, r->headers, why);
    if (body)
        curl_easy_setopt(h, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(h, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, call);
    curl_easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(h, CURLOPT_XFERINFOFUNCTION, on_wait);
    CURLcode result = curl_easy_perform(h);
    curl_easy_getinfo(h, CURLINFO_RESPONSE_CODE, &call->status);
    curl_easy_setopt(h, CURLOPT_ERRORBUFFER, NULL);
    text_free(&url);
    if (call->code || (result && interrupted()))
        return call->code;
    if (result)
        return run_error(r->c, "%s%s: %s", r->base, path,
                         remote_explain((int)result, why, explained));
    return call->status == 200 ? EXIT_GOOD : refused(call, path);
}

/* GET of a JSON object. */
static int get_object(struct remote *r, const char *path, json_t **out) {
    struct call call = {.r = r};
    int code = call_server(&call, path, NULL);
    if (!code && interrupted())
        code = EXIT_INTERRUPTED;
    *out = NULL;
    if (!code && (json_load_request(call.in.data, call.in.len, 0, out, NULL) != KVASIR_OK ||
                  !json_is_object(*out))) {
        code = run_error(r->c, "%s%s: is not a JSON object", r->base, path);
        json_decref(*out);
        *out = NULL;
    }
    text_free(&call.in);
    return code;
}

/* ---- an answer ------------------------------------------------------------------------------- */

/* What is unset is the server's affair. */
static void put_if(json_t *body, const char *name, double value) {
    if (value != 0 && sampling_is_set((float)value))
        json_object_set_new(body, name, json_real(value));
}

static void put_penalty(json_t *body, const char *name, double value, const char *context_name,
                        uint32_t context, uint32_t context_default) {
    put_if(body, name, value);
    if (value != 0 && sampling_is_set((float)value) && context != context_default)
        json_object_set_new(body, context_name, json_integer(context));
}

static void put_sampling(const struct remote *r, json_t *body) {
    const kvasir_sampling *s = &r->sampling.options, d = kvasir_sampling_defaults();
    if (sampling_is_set(s->temp))
        json_object_set_new(body, "temperature", json_real((double)s->temp));
    put_if(body, "top_p", (double)s->top_p);
    put_if(body, "min_p", (double)s->min_p);
    put_if(body, "xtc_probability", (double)s->xtc_probability);
    if (s->xtc_probability > 0)
        json_object_set_new(body, "xtc_threshold", json_real((double)s->xtc_threshold));
    if (s->top_k > 0)
        json_object_set_new(body, "top_k", json_integer(s->top_k));
    put_penalty(body, "repetition_penalty", (double)s->repetition_penalty,
                "repetition_context_size", s->repetition_context, d.repetition_context);
    put_penalty(body, "presence_penalty", (double)s->presence_penalty, "presence_context_size",
                s->presence_context, d.presence_context);
    put_penalty(body, "frequency_penalty", (double)s->frequency_penalty, "frequency_context_size",
                s->frequency_context, d.frequency_context);
    if (s->temp > 0 || r->o->sampling.seed) /* unset, the server's may be above 0 */
        json_object_set_new(body, "seed",
                            json_integer((json_int_t)((s->seed + r->turns) & INT64_MAX)));
    json_t *bias = s->n_logit_bias ? json_object() : NULL;
    for (size_t i = 0; i < s->n_logit_bias; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", s->logit_bias[i].token);
        json_object_set_new(bias, id, json_real((double)s->logit_bias[i].bias));
    }
    if (bias)
        json_object_set_new(body, "logit_bias", bias);
}

/* The body of a request; NULL: out of memory. */
static char *request_of(const struct remote *r, const json_t *messages) {
    json_t *kept = json_deep_copy(messages);
    for (size_t i = 0; i < json_array_size(kept); i++)
        json_object_del(json_array_get(kept, i), "reasoning_content");
    json_t *body = json_pack("{s:s, s:o, s:b, s:{s:b}}", "model", r->model, "messages", kept,
                             "stream", 1, "stream_options", "include_usage", 1);
    if (!body)
        return NULL;
    put_sampling(r, body);
    if (r->o->max_tokens)
        json_object_set_new(body, "max_tokens", json_integer(r->o->max_tokens));
    if (r->chat.kwargs)
        json_object_set(body, "chat_template_kwargs", r->chat.kwargs);
    if (r->o->chat.control)
        json_object_set_new(body, "control_tokens", json_string(r->o->chat.control));
    char *text = json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(7));
    json_decref(body);
    return text;
}

static int remote_answer(void *self, json_t *messages, struct answer *a) {
    struct remote *r = self;
    struct call call = {.r = r, .a = a};
    char *body = request_of(r, messages);
    if (!body)
        return run_error(r->c, "out of memory for the request");
    r->turns++;
    int code = call_server(&call, "/v1/chat/completions", body);
    free(body);
    text_free(&call.in);
    if (!code && !call.complete && !interrupted())
        code = run_error(r->c, "%s: the answer broke off", r->base);
    return code;
}

static double number_at(const json_t *object, const char *name) {
    return json_number_value(json_object_get(object, name));
}

static void remote_print_stats(void *self) {
    struct remote *r = self;
    json_t *status;
    if (get_object(r, "/v1/status", &status) != EXIT_GOOD)
        return;
    const json_t *cache = json_object_get(status, "cache");
    const json_t *formats = json_object_get(cache, "by_format");
    char used[24], budget[24], stored[24];
    fprintf(stderr, "server: %.0f running, %.0f waiting", number_at(status, "num_running"),
            number_at(status, "num_waiting"));
    if (json_object_get(status, "generation_tps")) /* else it shows what is this key's only */
        fprintf(stderr, "; %.1f tokens/s", number_at(status, "generation_tps"));
    fputc('\n', stderr);
    if (json_object_get(cache, "used_bytes"))
        fprintf(stderr, "cache:  %s of %s, %s of them stored prefixes\n",
                human_bytes(number_at(cache, "used_bytes"), used),
                human_bytes(number_at(cache, "budget_bytes"), budget),
                human_bytes(number_at(cache, "stored_bytes"), stored));
    for (size_t i = 0; i < json_array_size(formats); i++) {
        const json_t *f = json_array_get(formats, i);
        const char *name = json_string_value(json_object_get(f, "format"));
        const char *kind = json_string_value(json_object_get(f, "kind"));
        fprintf(stderr, "        %s of ", human_bytes(number_at(f, "bytes"), used));
        print_safely(stderr, name ? name : "?");
        fputs(kind ? ", " : "", stderr);
        print_safely(stderr, kind ? kind : "");
        fputc('\n', stderr);
    }
    json_decref(status);
}

/* ---- set-up ---------------------------------------------------------------------------------- */

static void remote_close(void *self) {
    struct remote *r = self;
    curl_slist_free_all(r->headers);
    curl_easy_cleanup(r->curl);
    curl_global_cleanup();
    sampling_free(&r->sampling);
    chat_free(&r->chat);
    free(r->model);
    mem_free(r->base);
    free(r);
}

static int take_url(struct remote *r) {
    const int code = remote_check_url(r->c, r->o->url);
    if (code)
        return code;
    r->base = remote_base(r->o->url);
    return r->base ? EXIT_GOOD : run_error(r->c, "out of memory");
}

/* The model of -m, or the first one of the server. */
static int find_model(struct remote *r) {
    json_t *list = NULL;
    const char *name = r->o->model;
    if (!name) {
        int code = get_object(r, "/v1/models", &list);
        if (code)
            return code;
        const json_t *first = json_array_get(json_object_get(list, "data"), 0);
        name = json_string_value(json_object_get(first, "id"));
    }
    r->model = name ? strdup(name) : NULL;
    json_decref(list);
    return r->model ? EXIT_GOOD : run_error(r->c, "%s/v1/models: names no model; -m does", r->base);
}

static void print_facts(const struct remote *r) {
    struct stat st;
    if (r->o->model && stat(r->o->model, &st) == 0)
        fprintf(stderr, "note:   with --url, -m is a name that the server knows: the file here is "
                        "not used\n");
    fprintf(stderr, "server: %s, model ", r->base);
    print_safely(stderr, r->model);
    fputc('\n', stderr);
    if (r->sampling.options.temp > 0)
        fprintf(stderr, "seed:   %llu\n", (unsigned long long)r->sampling.options.seed);
}

int chat_remote_open(const struct command *c, const struct chat_options *o,
                     struct chat_source *out) {
    struct remote *r = calloc(1, sizeof *r);
    if (!r)
        return run_error(c, "out of memory");
    r->c = c;
    r->o = o;
    curl_global_init(CURL_GLOBAL_DEFAULT);
    *out = (struct chat_source){r, remote_answer, remote_print_stats, remote_close};
    int code = take_url(r);
    if (!code)
        code = remote_headers(c, o->api_key, &r->headers);
    if (!code)
        code = sampling_read(c, &o->sampling, &r->sampling);
    if (!code)
        code = chat_read(c, &o->chat, &r->chat);
    if (!code && (r->curl = curl_easy_init()) == NULL)
        code = run_error(c, "out of memory");
    if (!code)
        code = find_model(r);
    if (!code && !o->quiet)
        print_facts(r);
    return code;
}
