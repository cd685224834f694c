/* SPDX-License-Identifier: Apache-2.0 */
/* detok.c: joins the bytes of tokens to whole characters.
 *
 * A token may end inside a character. struct detok holds the bytes of at most one incomplete
 * character (up to 3) until the rest arrives. Invariants:
 *   1. What comes out is valid UTF-8 after every push.
 *   2. What comes out depends only on the bytes, not on where they were cut into tokens.
 *   3. Invalid bytes come out as one U+FFFD per longest run that began like a character (Unicode's
 *      "substitution of maximal subparts", as in Python and Rust).
 */
#include <string.h>

#include "text/text.h"

static const char replacement[] = "\xef\xbf\xbd";

/* Takes one more byte. The held bytes always begin a character. A byte that does not continue it
 * may begin the next one. */
static bool detok_byte(struct detok *d, uint8_t byte, struct text_buf *out) {
    ASSERT(d->n_held < sizeof d->held);
    d->held[d->n_held++] = byte;
    int n = utf8_length(d->held, d->n_held);
    if (n == 0)
        return true;
    if (n > 0) {
        d->n_held = 0;
        return text_append(out, (const char *)d->held, (size_t)n);
    }
    bool alone = d->n_held == 1;
    d->n_held = 0;
    if (!text_append(out, replacement, 3))
        return false;
    return alone || detok_byte(d, byte, out);
}

bool detok_push(struct detok *d, struct text_span bytes, struct text_buf *out) {
    struct detok before = *d;
    size_t len_before = out->len;
    size_t i = 0;
    while (i < bytes.len) {
        size_t run = d->n_held ? 0 : utf8_check(bytes.data + i, bytes.len - i);
        bool ok = run ? text_append(out, bytes.data + i, run)
                      : detok_byte(d, (uint8_t)bytes.data[i], out);
        if (!ok) {
            *d = before;
            out->len = len_before;
            if (out->data)
                out->data[len_before] = 0;
            return false;
        }
        i += run ? run : 1;
    }
    return true;
}

bool detok_finish(struct detok *d, struct text_buf *out) {
    if (d->n_held && !text_append(out, replacement, 3))
        return false;
    d->n_held = 0;
    return true;
}
