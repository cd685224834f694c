/* SPDX-License-Identifier: Apache-2.0 */
/* unicode.h: classes of characters, for text/ only. UTF-8 itself is in util/utf8.h. */
#ifndef KVASIR_UNICODE_H
#define KVASIR_UNICODE_H

#include <stdbool.h>
#include <stdint.h>

bool is_space(uint32_t c);     /* White_Space */
bool is_word(uint32_t c);      /* \w of Unicode's regular expressions (UTS 18) */
bool is_printable(uint32_t c); /* Python's str.isprintable() */
/* A byte of a character other than its first. */
static inline bool utf8_is_inside(char byte) {
    return ((unsigned char)byte & 0xc0) == 0x80;
}

#endif
