/* SPDX-License-Identifier: Apache-2.0 */
/* log.h: lines of the log, written by a thread of their own (log.c), so that a log that nobody
 * reads stops no request. */
#ifndef SERVER_LOG_H
#define SERVER_LOG_H

#include "util/util.h"

struct log;
/* write: one line without its end; it may block. NULL: out of memory. */
struct log *log_create(void (*write)(void *user, const char *line), void *user);
/* From any thread; l may be NULL. Does not wait for `write`: if too many lines are unwritten, the
 * line is dropped, and a later line says how many were. */
void log_add(struct log *l, const char *format, ...) PRINTF_LIKE(2, 3);
/* Ends after the last line is written. NULL is allowed. */
void log_destroy(struct log *l);

/* A header or path as visible ASCII, other bytes and double quotes as '?', cut to fit. Returns
 * out. */
const char *log_visible(const char *text, char *out, size_t size);

#endif
