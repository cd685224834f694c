/* SPDX-License-Identifier: Apache-2.0 */
/* unicode.c: classes of characters, from utf8proc's tables. What differs between versions of
 * Unicode are characters that no vocabulary knows. */
#include <string.h>
#include <utf8proc.h>

#include "text/tokenizer_internal.h"

int hex_digit(char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
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
    default: /* letters in circles and squares; joiners */
        return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
               (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189) || c == 0x200c ||
               c == 0x200d;
    }
}

bool is_printable(uint32_t c) {
    if (c < 0x80)
        return c >= 0x20 && c < 0x7f;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    default:
        return true;
    }
}

struct quoted quote_bytes(const char *data, size_t len) {
    struct quoted q = {""};
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (n + 8 > sizeof q.text) { /* room for one escape, "..." and the NUL */
            memcpy(q.text + n, "...", 4);
            return q;
        }
        uint8_t c = (uint8_t)data[i];
        if (c >= 0x20 && c < 0x7f) {
            q.text[n++] = (char)c;
            continue;
        }
        static const char hex[] = "0123456789abcdef";
        const char escape[] = {'\\', 'x', hex[c >> 4], hex[c & 15]};
        memcpy(q.text + n, escape, sizeof escape);
        n += sizeof escape;
    }
    q.text[n] = 0;
    return q;
}
