/* SPDX-License-Identifier: Apache-2.0 */
/* top.c: `kvasir top`. Asks for /metrics every few seconds and shows what came since the last time.
 * On a terminal a page is drawn over the one before, on a screen of its own that the end puts away;
 * elsewhere, and with --once, pages are printed below each other. A server that stops answering
 * ends the command with an error only if it never answered.
 */
#include "top.h"

#include <curl/curl.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct top_args {
    const char *url, *api_key;
    float seconds;
    bool once;
};

/* clang-format off */
#define ROW(field) .offset = offsetof(struct top_args, field)
static const struct option OPTIONS[] = {
    {.name = "--url", .value = "URL", .kind = OPTION_TEXT, ROW(url),
     .initial = "http://127.0.0.1:8080",
     .help = "the server, or its --admin-port; also vLLM's and others with its metrics"},
    {.name = "--api-key", .value = "KEY", .kind = OPTION_TEXT, ROW(api_key), .shown = "none",
     .help = "its key; figures of all clients need the admin key"},
    {.name = "--seconds", .alias = "-s", .value = "S", .kind = OPTION_FLOAT, ROW(seconds),
     .initial = "2", .min = 0.1, .max = 3600, .help = "time between two looks"},
    {.name = "--once", .kind = OPTION_FLAG, ROW(once),
     .help = "print one page, about the next --seconds, and exit"},
};
/* clang-format on */

static const struct command COMMAND = {
    .name = "top",
    .summary = "Shows what a running server does.",
    .usage = "[--url URL] [flags]",
    .options = OPTIONS,
    .n_options = sizeof OPTIONS / sizeof *OPTIONS,
    .details = "Ctrl-C ends it. The environment variable NO_COLOR turns colours off.\n"
               "Exit codes: 0 success, 1 the server does not answer, 2 wrong usage.",
};

struct top {
    const struct top_args *a;
    char *base;
    struct curl_slist *headers;
    struct top_sample before, now;
};

/* The next sample. Says what is wrong only if `speaks`. */
static int look(struct top *t, bool speaks) {
    struct remote_reply reply = {0};
    struct top_sample s;
    int code = remote_get(t->base, "/metrics", t->headers, &reply) ? EXIT_GOOD : EXIT_RUN;
    if (code && speaks)
        run_error(&COMMAND, "%s/metrics: %s", t->base, reply.why);
    else if (!code && (reply.status == 401 || reply.status == 403))
        code = usage_error(&COMMAND, "--api-key: %s asks for %s key", t->base,
                           t->a->api_key ? "another" : "a");
    else if (!code && (reply.status != 200 || !reply.body.data || !top_read(reply.body.data, &s)))
        code = speaks ? run_error(&COMMAND,
                                  "%s/metrics: HTTP status %ld, not the metrics of Kvasir "
                                  "or vLLM: is --url right?",
                                  t->base, reply.status)
                      : EXIT_RUN;
    text_free(&reply.body);
    if (code)
        return code;
    t->before = t->now.seconds > 0 ? t->now : s;
    t->now = s;
    return EXIT_GOOD;
}

static void pause_for(double seconds) {
    const struct timespec time = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
    nanosleep(&time, NULL); /* Ctrl-C ends it */
}

static int show(const struct top *t, bool terminal) {
    struct text_buf page = {0};
    if (!top_view(&page, t->base, &t->before, &t->now, use_colour(stdout))) {
        text_free(&page);
        return run_error(&COMMAND, "out of memory");
    }
    printf("%s%s%s", terminal ? "\033[H\033[J" : "", page.data, terminal || t->a->once ? "" : "\n");
    text_free(&page);
    return finish_output(&COMMAND);
}

static int watch(struct top *t) {
    const bool terminal = !t->a->once && isatty(STDOUT_FILENO);
    int code = look(t, true);
    if (code)
        return code;
    if (terminal)
        printf("\033[?1049h\033[?25l"); /* another screen, without a cursor */
    if (!t->a->once)
        code = show(t, terminal);
    while (!code && !interrupted()) {
        pause_for((double)t->a->seconds);
        if (interrupted())
            break;
        const int missed = look(t, t->a->once);
        if (!missed)
            code = show(t, terminal);
        else if (t->a->once || missed == EXIT_USAGE)
            code = missed;
        else
            printf("%s does not answer\n", t->base);
        if (t->a->once)
            break;
        fflush(stdout);
    }
    if (terminal)
        printf("\033[?25h\033[?1049l");
    return code ? code : finish_output(&COMMAND);
}

int top_main(int argc, char **argv) {
    struct top_args a = {0};
    struct top t = {.a = &a};
    int code;
    if (!options_read(&COMMAND, argc, argv, &a, &code))
        return code;
    catch_interrupt();
    code = remote_check_url(&COMMAND, a.url);
    if (!code)
        code = (t.base = remote_base(a.url)) ? remote_headers(&COMMAND, a.api_key, &t.headers)
                                             : run_error(&COMMAND, "out of memory");
    if (!code)
        code = watch(&t);
    curl_slist_free_all(t.headers);
    mem_free(t.base);
    return code;
}
