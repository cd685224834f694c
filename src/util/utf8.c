/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "util/assert.h"
#include "util/utf8.h"

int utf8_length(const uint8_t *s, size_t n) {
    uint8_t c = s[0];
    if (c < 0x80)
        return 1;
    if (c < 0xc2 || c > 0xf4)
        return -1;
    int len = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    /* Overlong forms, surrogates and the end of Unicode narrow only the second byte. */
    uint8_t low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    uint8_t high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n)
            return 0;
        if (s[i] < low || s[i] > high)
            return -1;
        low = 0x80;
        high = 0xbf;
    }
    return len;
}

size_t utf8_check(const char *text, size_t len) {
    const uint8_t *s = (const uint8_t *)text;
    size_t i = 0;
    while (i < len) {
        uint64_t eight;
        if (len - i >= sizeof eight) {
            memcpy(&eight, s + i, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                i += sizeof eight;
                continue;
            }
        }
        int n = utf8_length(s + i, len - i);
        if (n <= 0)
            return i;
        i += (size_t)n;
    }
    return len;
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
    DEBUG_ASSERT(at > 0);
    size_t from = at - 1;
    while (((uint8_t)text[from] & 0xc0) == 0x80)
        from--;
    *start = from;
    return utf8_next(text, &from);
}

size_t utf8_put(char *out, uint32_t c) {
    DEBUG_ASSERT(c <= 0x10ffff);
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
