/* SPDX-License-Identifier: Apache-2.0 */
/* log.c: a bounded queue of lines and the thread that writes them.
 *
 * Lines are formatted and allocated before the mutex is taken, written and freed after it is
 * released. A line that is longer than the bound is taken if the queue is empty.
 */
#include "server/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { QUEUE_BYTES = 16 << 20 }; /* of lines that are not written yet */

struct line {
    struct line *next;
    size_t len;
    char text[];
};

struct log {
    void (*write)(void *user, const char *line);
    void *user;
    pthread_t thread;
    /* under the mutex */
    pthread_mutex_t mutex;
    pthread_cond_t added;
    struct line *first, **end; /* oldest first */
    size_t bytes;              /* sum of len */
    uint64_t dropped;          /* since the last line that said so */
    bool stop;
};

PRINTF_LIKE(1, 0) static struct line *format_line(const char *format, va_list args) {
    va_list again;
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, format, args);
    struct line *line = n < 0 ? NULL : malloc(sizeof *line + (size_t)n + 1);
    if (line) {
        *line = (struct line){.len = (size_t)n};
        vsnprintf(line->text, (size_t)n + 1, format, again);
    }
    va_end(again);
    return line;
}

const char *log_visible(const char *text, char *out, size_t size) {
    size_t n = 0;
    ASSERT(size > 0);
    for (; *text && n + 1 < size; text++)
        out[n++] = *text > 0x20 && *text < 0x7f && *text != '"' ? *text : '?';
    out[n] = 0;
    return out;
}

void log_add(struct log *l, const char *format, ...) {
    va_list args;
    if (!l)
        return;
    va_start(args, format);
    struct line *line = format_line(format, args);
    va_end(args);
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
    if (!fits)
        free(line);
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

static void *log_thread(void *user) {
    struct log *l = user;
    struct line *lines;
    uint64_t dropped;
    while (take_lines(l, &lines, &dropped)) {
        for (struct line *next; lines; lines = next) {
            next = lines->next;
            l->write(l->user, lines->text);
            free(lines);
        }
        if (dropped) {
            char text[96];
            snprintf(text, sizeof text, "log: %llu lines dropped: the log is read too slowly",
                     (unsigned long long)dropped);
            l->write(l->user, text);
        }
    }
    return NULL;
}

struct log *log_create(void (*write)(void *user, const char *line), void *user) {
    struct log *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->write = write;
    l->user = user;
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
