/* SPDX-License-Identifier: Apache-2.0 */
/* Names that could be control tokens, found in the source of a chat template. */
#ifndef MARKERS_H
#define MARKERS_H

#include <string.h>

#include "text/text.h"

enum { NAMES_MAX = 300 };
struct names {
    struct text_span name[NAMES_MAX];
    size_t n;
};

static inline void add_name(struct names *names, const char *text, size_t len) {
    for (size_t i = 0; i < names->n; i++)
        if (names->name[i].len == len && memcmp(names->name[i].data, text, len) == 0)
            return;
    if (names->n < NAMES_MAX)
        names->name[names->n++] = (struct text_span){text, len};
}

/* Everything between < and > or [ and ] without spaces: more than the model's control tokens. */
static inline void find_markers(const char *source, size_t len, struct names *names) {
    for (size_t i = 0; i < len; i++) {
        const char close = source[i] == '<' ? '>' : source[i] == '[' ? ']' : 0;
        size_t end = i + 1;
        while (close && end < len && end - i < 60 && !strchr(" \n'\"{}", source[end]) &&
               source[end] != close && source[end] != source[i])
            end++;
        if (close && end < len && source[end] == close && end > i + 1 &&
            (close == '>' || (source[i + 1] >= 'A' && source[i + 1] <= 'Z') ||
             source[i + 1] == '/'))
            add_name(names, source + i, end + 1 - i);
    }
}

#endif
