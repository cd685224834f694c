/* SPDX-License-Identifier: Apache-2.0 */
/* exactness_client.c: a server under test: any that speaks OpenAI's API.
 *
 * A server that is started here is a process group of its own, so that what it starts ends with it:
 * SIGTERM, and SIGKILL after a while. Requests of one call run at the same time on connections of
 * their own. Answers are bounded; of what they contain only numbers and texts are kept.
 */
#define _GNU_SOURCE
#include "cli/exactness.h"

#include <curl/curl.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const size_t BODY_MAX = (size_t)16 << 20;
#define STOP_SECONDS 20.0

static void pause_ms(long ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* ---- one call -------------------------------------------------------------------------------- */

struct call {
    CURL *curl;
    char *body, url[1024], why[CURL_ERROR_SIZE];
    struct text_buf in;
    long status;
    CURLcode result;
};

static size_t on_body(char *data, size_t size, size_t n, void *user) {
    struct call *call = user;
    n *= size;
    return n <= BODY_MAX - call->in.len && text_append(&call->in, data, n) ? n : 0;
}

static bool call_open(const struct exact_server *s, struct call *call, const char *path,
                      double seconds) {
    snprintf(call->url, sizeof call->url, "%.900s%s", s->base, path);
    CURL *h = call->curl = curl_easy_init();
    if (!h)
        return false;
    remote_setup(h, call->url, s->headers, call->why);
    if (call->body)
        curl_easy_setopt(h, CURLOPT_POSTFIELDS, call->body);
    curl_easy_setopt(h, CURLOPT_TIMEOUT_MS, (long)(seconds * 1000));
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, call);
    curl_easy_setopt(h, CURLOPT_PRIVATE, call);
    return true;
}

static void call_close(struct call *call) {
    curl_easy_cleanup(call->curl);
    free(call->body);
    text_free(&call->in);
}

/* Runs all calls at once; false: interrupted. */
static bool run_calls(struct call *calls, size_t n) {
    CURLM *all = curl_multi_init();
    int running = 1, left;
    for (size_t i = 0; all && i < n; i++)
        curl_multi_add_handle(all, calls[i].curl);
    while (all && running && !interrupted()) {
        curl_multi_perform(all, &running);
        for (CURLMsg *m; (m = curl_multi_info_read(all, &left)) != NULL;) {
            struct call *call;
            if (m->msg != CURLMSG_DONE)
                continue;
            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &call);
            call->result = m->data.result;
            curl_easy_getinfo(m->easy_handle, CURLINFO_RESPONSE_CODE, &call->status);
        }
        if (running)
            curl_multi_poll(all, NULL, 0, 100, NULL);
    }
    for (size_t i = 0; all && i < n; i++)
        curl_multi_remove_handle(all, calls[i].curl);
    curl_multi_cleanup(all);
    return all && !running;
}

/* ---- the process ----------------------------------------------------------------------------- */

/* What ends this program ends the group, too: it would keep its port and memory. Ctrl-C is
 * interrupted()'s. */
static volatile sig_atomic_t group;

static void on_end(int signal_number) {
    if (group > 0)
        kill(-group, SIGTERM);
    raise(signal_number); /* SA_RESETHAND: the default again */
}

static void catch_ends(void) {
    static const int ENDS[] = {SIGTERM, SIGHUP, SIGQUIT};
    struct sigaction end = {.sa_handler = on_end, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&end.sa_mask);
    for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS; i++)
        if (!signal_is_ignored(ENDS[i]))
            sigaction(ENDS[i], &end, NULL);
}

/* Whether the group's processes have ended within so many seconds. */
static bool group_ends(int pid, double seconds) {
    const double end = clock_seconds() + seconds;
    do {
        waitpid(pid, NULL, WNOHANG); /* the shell may end before what it started */
        if (kill(-pid, 0) != 0)
            return true;
        pause_ms(20);
    } while (clock_seconds() < end);
    return false;
}

void exact_server_stop(struct exact_server *s) {
    if (s->pid <= 0)
        return;
    kill(-s->pid, SIGTERM);
    if (!group_ends(s->pid, STOP_SECONDS)) {
        kill(-s->pid, SIGKILL);
        group_ends(s->pid, STOP_SECONDS);
    }
    group = 0;
    s->pid = 0;
}

static int launch(struct exact_server *s) {
    fflush(NULL);
    const pid_t pid = fork();
    if (pid < 0)
        return run_error(s->c, "--start: %s", strerror(errno));
    if (pid == 0) {
        setpgid(0, 0);
        dup2(STDERR_FILENO, STDOUT_FILENO); /* standard output is the report's */
        execl("/bin/sh", "sh", "-c", s->start, (char *)NULL);
        _exit(127);
    }
    setpgid(pid, pid);
    s->pid = pid;
    group = (sig_atomic_t)pid;
    catch_ends();
    return EXIT_GOOD;
}

/* The model's name from /v1/models. */
static bool lists_models(struct exact_server *s) {
    struct call call = {0};
    json_t *body = NULL;
    bool good = call_open(s, &call, "/v1/models", 10) && run_calls(&call, 1) && !call.result &&
                call.status == 200 &&
                json_load_request(call.in.data, call.in.len, 0, &body, NULL) == KVASIR_OK;
    const json_t *first = json_array_get(json_object_get(body, "data"), 0);
    const char *name = json_string_value(json_object_get(first, "id"));
    if (good)
        snprintf(s->found_model, sizeof s->found_model, "%s", name ? name : "");
    json_decref(body);
    call_close(&call);
    return good;
}

int exact_server_open(struct exact_server *s) {
    s->base = remote_base(s->url);
    return s->base ? remote_headers(s->c, s->api_key, &s->headers)
                   : run_error(s->c, "out of memory");
}

void exact_server_close(struct exact_server *s) {
    exact_server_stop(s);
    curl_slist_free_all(s->headers);
    mem_free(s->base);
}

int exact_server_start(struct exact_server *s) {
    exact_server_stop(s);
    int code = s->start ? launch(s) : EXIT_GOOD;
    const double end = clock_seconds() + (s->start ? s->start_seconds : 10);
    while (!code && !lists_models(s)) {
        if (interrupted())
            code = EXIT_INTERRUPTED;
        else if (s->pid > 0 && waitpid(s->pid, NULL, WNOHANG) == s->pid) {
            s->pid = 0;
            code = run_error(s->c, "--start: the server ended before it listened; its lines above "
                                   "may say why");
        } else if (clock_seconds() > end)
            code = run_error(s->c, "%s/v1/models: no answer within %.0f s", s->url,
                             s->start ? s->start_seconds : 10.0);
        pause_ms(50);
    }
    return code;
}

/* ---- requests -------------------------------------------------------------------------------- */

void exact_answer_free(struct exact_answer *a) {
    free(a->tokens);
    free(a->text);
    *a = (struct exact_answer){0};
}

static char *request_body(const struct exact_server *s, const char *prompt) {
    json_t *body = json_pack("{s:s, s:i, s:i, s:b}", "model", s->model ? s->model : s->found_model,
                             "max_tokens", (int)s->max_tokens, "temperature", 0, "stream", 0);
    if (body && s->completions) {
        json_object_set_new(body, "prompt", json_string(prompt));
        json_object_set_new(body, "logprobs", json_integer(1));
    } else if (body) {
        json_object_set_new(body, "messages",
                            json_pack("[{s:s, s:s}]", "role", "user", "content", prompt));
        json_object_set_new(body, "logprobs", json_true());
        json_object_set_new(body, "top_logprobs", json_integer(1));
    }
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    return text;
}

static void put_token(struct exact_answer *a, const json_t *text, const json_t *logprob) {
    struct exact_token *t = &a->tokens[a->n];
    if (a->n == EXACT_TOKENS_MAX || !json_is_number(logprob))
        return;
    if (json_is_integer(text)) /* mlx_lm.server has ids */
        snprintf(t->text, sizeof t->text, "%lld", (long long)json_integer_value(text));
    else
        snprintf(t->text, sizeof t->text, "%s",
                 json_is_string(text) ? json_string_value(text) : "");
    t->logprob = json_number_value(logprob);
    a->n++;
}

/* OpenAI's two forms: chats have {"content": [{"token", "logprob"}]}, completions have
 * {"tokens": [], "token_logprobs": []}; servers mix them up. */
static void read_logprobs(struct exact_answer *a, const json_t *logprobs) {
    const json_t *content = json_object_get(logprobs, "content"), *item;
    const json_t *values = json_object_get(logprobs, "token_logprobs");
    size_t i;
    json_array_foreach(content, i, item)
        put_token(a, json_object_get(item, "token"), json_object_get(item, "logprob"));
    if (json_array_size(content) == 0)
        json_array_foreach(values, i, item)
            put_token(a, json_array_get(json_object_get(logprobs, "tokens"), i), item);
}

static int64_t count_of(const json_t *usage, const char *name) {
    const json_t *n = json_object_get(usage, name);
    return json_is_integer(n) ? json_integer_value(n) : -1;
}

static bool read_answer(struct exact_answer *a, const json_t *body) {
    const json_t *choice = json_array_get(json_object_get(body, "choices"), 0);
    const json_t *message = json_object_get(choice, "message");
    const json_t *text = json_object_get(message ? message : choice, message ? "content" : "text");
    const json_t *finish = json_object_get(choice, "finish_reason");
    const json_t *usage = json_object_get(body, "usage");
    *a = (struct exact_answer){.tokens = calloc(EXACT_TOKENS_MAX, sizeof *a->tokens),
                               .text = strdup(json_is_string(text) ? json_string_value(text) : "")};
    if (!a->tokens || !a->text || !json_is_object(choice))
        return false;
    snprintf(a->finish, sizeof a->finish, "%s",
             json_is_string(finish) ? json_string_value(finish) : "");
    read_logprobs(a, json_object_get(choice, "logprobs"));
    a->cached_tokens = count_of(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
    return true;
}

static int take_answer(const struct exact_server *s, const struct call *call,
                       struct exact_answer *a) {
    json_t *body = NULL;
    char explained[REMOTE_WHY_MAX];
    int code = EXIT_GOOD;
    if (call->result)
        return run_error(s->c, "%s: %s", call->url,
                         remote_explain((int)call->result, call->why, explained));
    const bool json = json_load_request(call->in.data ? call->in.data : "", call->in.len, 0, &body,
                                        NULL) == KVASIR_OK;
    if (call->status != 200)
        code = run_error(s->c, "%s: HTTP %ld: %.300s", call->url, call->status,
                         call->in.data ? call->in.data : "");
    else if (!json || !read_answer(a, body))
        code = run_error(s->c, "%s: the answer is not a chat completion", call->url);
    json_decref(body);
    return code;
}

int exact_ask(const struct exact_server *s, const char *const *prompts, size_t n,
              struct exact_answer *answers) {
    struct call *calls = calloc(n, sizeof *calls);
    bool memory = calls != NULL;
    size_t made = 0;
    for (; memory && made < n; made++) {
        calls[made].body = request_body(s, prompts[made]);
        memory =
            calls[made].body &&
            call_open(s, &calls[made], s->completions ? "/v1/completions" : "/v1/chat/completions",
                      s->request_seconds);
    }
    int code = memory ? EXIT_GOOD : run_error(s->c, "out of memory");
    if (!code && !run_calls(calls, n))
        code = EXIT_INTERRUPTED;
    for (size_t i = 0; i < n && !code; i++)
        code = take_answer(s, &calls[i], &answers[i]);
    for (size_t i = 0; i < made; i++)
        call_close(&calls[i]);
    free(calls);
    return code;
}
