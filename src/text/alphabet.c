/* SPDX-License-Identifier: Apache-2.0 */
/* alphabet.c: GPT-2's alphabet. Every byte is written as one printable character, so that a
 * vocabulary of bytes is a list of ordinary strings. Bytes that are printable in Latin-1 stand for
 * themselves. The other 68 are U+0100 and up, in order:
 *
 *     0x00-0x20  U+0100-U+0120      0x7f-0xa0  U+0121-U+0142      0xad  U+0143
 */
#include "text/tokenizer_internal.h"

enum {
    LOW_FIRST = 0x100,             /* bytes 0x00-0x20 */
    MIDDLE_FIRST = LOW_FIRST + 33, /* bytes 0x7f-0xa0 */
    SOFT_HYPHEN = MIDDLE_FIRST + 34,
    ALPHABET_END,
};

_Static_assert(ALPHABET_END == 0x144, "68 bytes are written as U+0100 and up");

uint32_t alphabet_char(uint8_t byte) {
    if (byte <= 0x20)
        return (uint32_t)(LOW_FIRST + byte);
    if (byte >= 0x7f && byte <= 0xa0)
        return (uint32_t)(MIDDLE_FIRST + byte - 0x7f);
    return byte == 0xad ? SOFT_HYPHEN : byte;
}

/* The byte that a character stands for; -1 if it is not in the alphabet. */
static int alphabet_byte(uint32_t c) {
    if (c >= ALPHABET_END)
        return -1;
    if (c == SOFT_HYPHEN)
        return 0xad;
    if (c >= MIDDLE_FIRST)
        return (int)(c - MIDDLE_FIRST + 0x7f);
    if (c >= LOW_FIRST)
        return (int)(c - LOW_FIRST);
    return alphabet_char((uint8_t)c) == c ? (int)c : -1;
}

ptrdiff_t alphabet_decode(struct text_span piece, uint8_t *out) {
    const uint8_t *s = (const uint8_t *)piece.data;
    ptrdiff_t n = 0;
    for (size_t i = 0; i < piece.len; i++) {
        uint32_t c = s[i];
        if (c >= 0x80) { /* every character of the alphabet has one or two bytes */
            if ((c & 0xe0) != 0xc0 || i + 1 == piece.len || (s[i + 1] & 0xc0) != 0x80)
                return -1;
            c = (c & 0x1f) << 6 | (s[++i] & 0x3f);
        }
        int byte = alphabet_byte(c);
        if (byte < 0)
            return -1;
        out[n++] = (uint8_t)byte;
    }
    return n;
}

size_t alphabet_encode(const uint8_t *bytes, size_t len, char *out) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += utf8_put(out + n, alphabet_char(bytes[i]));
    return n;
}
