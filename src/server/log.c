/* SPDX-License-Identifier: Apache-2.0 */
/* log.c: a line from its fields, as text or JSON; a bounded queue of lines and the thread that
 * writes them.
 *
 * Lines are formatted and allocated before the mutex is taken, written and freed after it is
 * released. A line that is longer than the bound is taken if the queue is empty.
 */
#include "server/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { QUEUE_BYTES = 16 << 20 }; /* of lines that are not written yet */

struct line {
    struct line *next;
    size_t len;
    char *text; /* mem_free */
};

struct log {
    struct log_options options;
    pthread_t thread;
    /* under the mutex */
    pthread_mutex_t mutex;
    pthread_cond_t added;
    struct line *first, **end; /* oldest first */
    size_t bytes;              /* sum of len */
    uint64_t dropped;          /* since the last line that said so */
    bool stop;
};

/* ---- lines ----------------------------------------------------------------------------------- */

static const char *const LEVELS[] = {"error", "warn", "info", "debug"};

bool server_log_level_read(const char *name, enum server_log_level *out) {
    for (size_t i = 0; i < sizeof LEVELS / sizeof *LEVELS; i++)
        if (strcasecmp(LEVELS[i], name) == 0) {
            *out = (enum server_log_level)i;
            return true;
        }
    *out = SERVER_LOG_WARN; /* Python's name for it */
    return strcasecmp(name, "warning") == 0;
}

/* "2026-11-26T19:11:37.123Z" */
static void time_text(char out[32]) {
    struct timespec now;
    struct tm t;
    clock_gettime(CLOCK_REALTIME, &now);
    const size_t n = gmtime_r(&now.tv_sec, &t) ? strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &t) : 0;
    snprintf(out + n, 32 - n, ".%03ldZ", now.tv_nsec / 1000000);
}

/* A text that needs no quotes. */
static bool is_word(const char *text) {
    const char *p = text;
    while (*p > 0x20 && *p < 0x7f && *p != '"')
        p++;
    return p > text && !*p;
}

static bool put_value(struct text_buf *b, const json_t *value) {
    if (json_is_null(value))
        return text_puts(b, "-");
    if (json_is_string(value) && is_word(json_string_value(value)))
        return text_puts(b, json_string_value(value));
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    const bool good = text && text_puts(b, text);
    mem_free(text);
    return good;
}

/* "time=... level=info route=chat status=200 why=\"not found\"": name=value, texts that are not
 * one word in quotes; a note's text comes last, as it is. */
static bool put_line(struct text_buf *b, json_t *fields) {
    const char *name, *before = "";
    json_t *value;
    json_object_foreach(fields, name, value) {
        const bool note = strcmp(name, "message") == 0;
        if (!text_printf(b, note ? "%sserver: %s" : "%s%s=", before,
                         note ? json_string_value(value) : name) ||
            (!note && !put_value(b, value)))
            return false;
        before = " ";
    }
    return true;
}

char *server_log_line(bool json, enum server_log_level level, json_t *fields) {
    char now[32];
    struct text_buf b = {0};
    time_text(now);
    json_t *all = json_pack("{s:s, s:s}", "time", now, "level", LEVELS[level]);
    char *text = NULL;
    if (all && fields && json_object_update(all, fields) == 0) {
        if (json)
            text = json_dumps(all, JSON_COMPACT);
        else if (put_line(&b, all))
            text = b.data;
        else
            text_free(&b);
    }
    json_decref(all);
    json_decref(fields);
    return text;
}

const char *log_visible(const char *text, char *out, size_t size) {
    size_t n = 0;
    ASSERT(size > 0);
    for (; *text && n + 1 < size; text++)
        out[n++] = *text > 0x20 && *text < 0x7f && *text != '"' ? *text : '?';
    out[n] = 0;
    return out;
}

/* ---- the queue ------------------------------------------------------------------------------- */

bool log_wants(const struct log *l, enum server_log_level level) {
    return l && level <= l->options.level;
}

void log_add(struct log *l, enum server_log_level level, json_t *fields) {
    if (!log_wants(l, level)) {
        json_decref(fields);
        return;
    }
    char *text = server_log_line(l->options.json, level, fields);
    struct line *line = text ? malloc(sizeof *line) : NULL;
    if (line)
        *line = (struct line){.len = strlen(text), .text = text};
    pthread_mutex_lock(&l->mutex);
    const bool fits = line && (!l->first || l->bytes + line->len <= QUEUE_BYTES);
    l->dropped += !fits;
    if (fits) {
        *l->end = line;
        l->end = &line->next;
        l->bytes += line->len;
        pthread_cond_signal(&l->added);
    }
    pthread_mutex_unlock(&l->mutex);
    if (!fits) {
        free(line);
        mem_free(text);
    }
}

void log_note(struct log *l, enum server_log_level level, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    log_add(l, level, log_message(text));
}

json_t *log_message(const char *text) {
    json_t *message = json_string(text); /* NULL if it is not UTF-8 */
    char visible[1024];
    if (!message)
        message = json_string(log_visible(text, visible, sizeof visible));
    return json_pack("{s:o}", "message", message);
}

/* All lines so far, oldest first, and how many were dropped meanwhile. False: the end. */
static bool take_lines(struct log *l, struct line **lines, uint64_t *dropped) {
    pthread_mutex_lock(&l->mutex);
    while (!l->first && !l->dropped && !l->stop)
        pthread_cond_wait(&l->added, &l->mutex);
    *lines = l->first;
    *dropped = l->dropped;
    l->first = NULL;
    l->end = &l->first;
    l->bytes = l->dropped = 0;
    pthread_mutex_unlock(&l->mutex);
    return *lines || *dropped;
}

static void say_dropped(struct log *l, uint64_t n) {
    json_t *fields = json_pack("{s:s, s:I}", "message", "log: lines dropped: it is read too slowly",
                               "dropped", (json_int_t)n);
    char *text = server_log_line(l->options.json, SERVER_LOG_WARN, fields);
    if (text)
        l->options.write(l->options.user, text);
    mem_free(text);
}

static void *log_thread(void *user) {
    struct log *l = user;
    struct line *lines;
    uint64_t dropped;
    while (take_lines(l, &lines, &dropped)) {
        for (struct line *next; lines; lines = next) {
            next = lines->next;
            l->options.write(l->options.user, lines->text);
            mem_free(lines->text);
            free(lines);
        }
        if (dropped)
            say_dropped(l, dropped);
    }
    return NULL;
}

struct log *log_create(const struct log_options *options) {
    struct log *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->options = *options;
    l->end = &l->first;
    pthread_mutex_init(&l->mutex, NULL);
    pthread_cond_init(&l->added, NULL);
    if (pthread_create(&l->thread, NULL, log_thread, l) == 0)
        return l;
    pthread_cond_destroy(&l->added);
    pthread_mutex_destroy(&l->mutex);
    free(l);
    return NULL;
}

void log_destroy(struct log *l) {
    if (!l)
        return;
    pthread_mutex_lock(&l->mutex);
    l->stop = true;
    pthread_cond_signal(&l->added);
    pthread_mutex_unlock(&l->mutex);
    pthread_join(l->thread, NULL);
    ASSERT(!l->first && l->bytes == 0);
    pthread_cond_destroy(&l->added);
    pthread_mutex_destroy(&l->mutex);
    free(l);
}
