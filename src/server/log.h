/* SPDX-License-Identifier: Apache-2.0 */
/* log.h: lines of the log, written by a thread of their own (log.c), so that a log that nobody
 * reads stops no request. A line is a JSON object's members in their order, after time and level:
 *
 *     text   time=2026-11-26T19:11:37.123Z level=info route=chat status=200
 *     JSON   {"time":"2026-11-26T19:11:37.123Z","level":"info","route":"chat","status":200}
 *
 * A note has the member "message" alone, which is text for people. */
#ifndef SERVER_LOG_H
#define SERVER_LOG_H

#include "server/server.h"

struct log_options {
    void (*write)(void *user, const char *line); /* without its end; it may block */
    void *user;
    bool json;
    enum server_log_level level; /* the least important that is written */
};
struct log;
/* NULL: out of memory. */
struct log *log_create(const struct log_options *options);
/* Whether lines of this level are written; l may be NULL. */
bool log_wants(const struct log *l, enum server_log_level level);
/* From any thread; l may be NULL. Takes fields, an object; NULL (out of memory) is a dropped line.
 * Does not wait for `write`: if too many lines are unwritten, the line is dropped, and a later one
 * says how many were. */
void log_add(struct log *l, enum server_log_level level, json_t *fields);
/* A note. */
void log_note(struct log *l, enum server_log_level level, const char *format, ...)
    PRINTF_LIKE(3, 4);
/* Its fields; NULL: out of memory. */
json_t *log_message(const char *text);
/* Ends after the last line is written. NULL is allowed. */
void log_destroy(struct log *l);

/* A header or path as visible ASCII, other bytes and double quotes as '?', cut to fit. Returns
 * out. */
const char *log_visible(const char *text, char *out, size_t size);

#endif
