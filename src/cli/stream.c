/* SPDX-License-Identifier: Apache-2.0 */
/* stream.c: writes an answer's text. kvasir_stop decides where it ends and what is held back.
 *
 * Invariant
 *   STREAM-1  What was released and could be written, text[0, len), was written.
 */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>

static bool reserve(struct stream *s, size_t n) {
    if (!text_reserve(&s->text, n))
        s->write_error = ENOMEM;
    return s->write_error == 0;
}

/* n bytes were appended to text. */
static bool send(struct stream *s, size_t n) {
    if (s->to && n > 0 &&
        (fwrite(s->text.data + s->text.len, 1, n, s->to) != n || fflush(s->to) != 0)) {
        s->write_error = errno ? errno : EIO;
        return false;
    }
    s->text.len += n;
    return !s->stopped;
}

bool stream_push(struct stream *s, const char *text, size_t len) {
    if (s->stopped || s->write_error || !reserve(s, len + kvasir_stop_hold(s->stop)))
        return false;
    size_t n;
    s->stopped = !kvasir_stop_push(s->stop, text, len, s->text.data + s->text.len, &n);
    return send(s, n);
}

bool stream_finish(struct stream *s) {
    if (s->write_error || !reserve(s, kvasir_stop_hold(s->stop)))
        return false;
    size_t n;
    s->stopped = !kvasir_stop_finish(s->stop, s->text.data + s->text.len, &n);
    return send(s, n);
}

void stream_free(struct stream *s) {
    text_free(&s->text);
    *s = (struct stream){0};
}
