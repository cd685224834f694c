/* SPDX-License-Identifier: Apache-2.0 */
/* stream.c: an answer's text on its way out. Stop texts are found wherever token borders lie; the
 * drawing is in cli.h.
 *
 * Invariants
 *   O1  text[0, sent) was written, in whole characters if the pushed pieces are whole characters
 *       and no stop text begins inside one.
 *   O2  No stop text begins before `sent`, so a search starts there.
 */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool append(struct stream *s, const char *text, size_t len) {
    if (s->cap - s->len < len) {
        size_t cap = 2 * s->cap + len + 256;
        char *grown = realloc(s->text, cap);
        if (!grown) {
            s->write_error = ENOMEM;
            return false;
        }
        s->text = grown;
        s->cap = cap;
    }
    if (len)
        memcpy(s->text + s->len, text, len);
    s->len += len;
    return true;
}

static bool send_up_to(struct stream *s, size_t end) {
    size_t n = end - s->sent;
    if (s->to && n > 0 && (fwrite(s->text + s->sent, 1, n, s->to) != n || fflush(s->to) != 0)) {
        s->write_error = errno ? errno : EIO;
        return false;
    }
    s->sent = end;
    return true;
}

/* Where the earliest stop text begins, or len; *held is where the first place lies from which the
 * text could still grow into one. */
static size_t find_stop(const struct stream *s, size_t *held) {
    *held = s->len;
    for (size_t at = s->sent; at < s->len; at++)
        for (size_t i = 0; i < s->stops->n; i++) {
            size_t n = strlen(s->stops->items[i]), left = s->len - at;
            if (memcmp(s->text + at, s->stops->items[i], n < left ? n : left) != 0)
                continue;
            if (n <= left)
                return at;
            if (at < *held)
                *held = at;
        }
    return s->len;
}

bool stream_push(struct stream *s, const char *text, size_t len) {
    if (s->stopped || s->write_error || !append(s, text, len))
        return false;
    size_t held, stop = find_stop(s, &held);
    if (stop < s->len) {
        s->stopped = true;
        s->len = stop;
        send_up_to(s, stop);
        return false;
    }
    return send_up_to(s, held);
}

bool stream_finish(struct stream *s) {
    return !s->write_error && send_up_to(s, s->len);
}

void stream_free(struct stream *s) {
    free(s->text);
    *s = (struct stream){0};
}
