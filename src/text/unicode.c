/* SPDX-License-Identifier: Apache-2.0 */
/* Characters: one at a time out of valid UTF-8 and back, and the two classes that the edges of
 * added tokens ask for. The check that text is UTF-8 is in detok.c.
 *
 * Tables of Unicode are utf8proc's; what changes from one version of Unicode to the next are
 * characters that no vocabulary knows.
 */
#include <utf8proc.h>

#include "text/tokenizer_internal.h"

int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

uint32_t utf8_next(const char *text, size_t *at) {
    const uint8_t *s = (const uint8_t *)text + *at;
    if (s[0] < 0x80) {
        *at += 1;
        return s[0];
    }
    if (s[0] < 0xe0) {
        *at += 2;
        return (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
    }
    if (s[0] < 0xf0) {
        *at += 3;
        return (s[0] & 0x0fu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
    }
    *at += 4;
    return (s[0] & 0x07u) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu);
}

uint32_t utf8_before(const char *text, size_t at, size_t *start) {
    size_t from = at - 1;
    while (((uint8_t)text[from] & 0xc0) == 0x80)
        from--;
    *start = from;
    return utf8_next(text, &from);
}

size_t utf8_put(char *out, uint32_t c) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
    return n;
}

bool is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

bool is_word(uint32_t c) {
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default: /* letters in circles and squares are Alphabetic symbols; joiners belong to words */
        return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
               (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189) || c == 0x200c ||
               c == 0x200d;
    }
}
