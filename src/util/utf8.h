/* SPDX-License-Identifier: Apache-2.0 */
/* util/utf8.h: UTF-8 as RFC 3629 has it: shortest form, no surrogates, nothing above U+10FFFF.
 *
 * Text from outside is checked once with utf8_check. utf8_next and utf8_before take valid text only
 * and do not check it again.
 */
#ifndef KVASIR_UTIL_UTF8_H
#define KVASIR_UTIL_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Offset of the first byte that is not valid UTF-8, or len. */
size_t utf8_check(const char *text, size_t len);
/* Length (1-4) of the character at s; 0 if it is cut off by the end of the n bytes (n > 0), -1 if
 * the bytes cannot begin a character. */
int utf8_length(const uint8_t *s, size_t n);

/* The character at text[*at]; moves *at to the end of it. */
uint32_t utf8_next(const char *text, size_t *at);
/* The character that ends at text[at], at > 0; *start is where it begins. */
uint32_t utf8_before(const char *text, size_t at, size_t *start);
/* Writes c and returns its length, at most 4. */
size_t utf8_put(char *out, uint32_t c);

#endif
