/* SPDX-License-Identifier: Apache-2.0 */
/* json_automaton.h: where an unfinished JSON text is, for json_automaton.c and json_vocab.c. Others
 * use struct json_state without reading it. */
#ifndef KVASIR_JSON_AUTOMATON_H
#define KVASIR_JSON_AUTOMATON_H

#include "text/text.h"

enum json_part {
    /* between things: spaces are allowed, except in PART_END */
    PART_BEGIN,       /* only spaces so far */
    PART_FIRST_KEY,   /* after '{' */
    PART_KEY,         /* after ',' of an object */
    PART_COLON,       /* after a key */
    PART_FIRST_VALUE, /* after '[' */
    PART_VALUE,       /* after ':', and ',' of an array */
    PART_AFTER,       /* after a value */
    PART_END,
    /* in a string */
    PART_TEXT,
    PART_CHARACTER, /* an incomplete one; its bytes are held */
    PART_ESCAPE,    /* after '\' */
    PART_HEX,       /* after "\u"; digits are held */
    PART_HIGH,      /* after a high surrogate: '\' */
    PART_HIGH_U,    /* 'u' */
    PART_LOW,       /* digits of the low one; they are held */
    /* in a number */
    PART_MINUS,
    PART_ZERO,
    PART_WHOLE,
    PART_POINT,
    PART_FRACTION,
    PART_E,
    PART_E_SIGN,
    PART_EXPONENT,
    /* in true, false, null */
    PART_LITERAL,
};

/* json_push, with the most common case before the call: a character of a string. */
static inline bool json_step(struct json_state *s, uint8_t byte) {
    if (s->part == PART_TEXT && byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\')
        return true;
    return json_push(s, byte);
}

#endif
