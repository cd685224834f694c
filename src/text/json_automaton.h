/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of JSON that an answer can stand in, for json_automaton.c and json_vocab.c; everybody
 * else takes a struct json_state as it is.
 */
#ifndef KVASIR_JSON_AUTOMATON_H
#define KVASIR_JSON_AUTOMATON_H

#include "text/text.h"

enum json_part {
    /* between things: blanks are allowed but behind the end */
    PART_BEGIN,       /* nothing but blanks so far */
    PART_FIRST_KEY,   /* behind '{' */
    PART_KEY,         /* behind ',' of an object */
    PART_COLON,       /* behind a key */
    PART_FIRST_VALUE, /* behind '[' */
    PART_VALUE,       /* behind ':', and ',' of an array */
    PART_AFTER,       /* behind a value */
    PART_END,
    /* in a string */
    PART_TEXT,
    PART_CHARACTER, /* begun; its bytes are held */
    PART_ESCAPE,    /* behind '\' */
    PART_HEX,       /* behind "\u"; digits are held */
    PART_HIGH,      /* behind a high surrogate: '\' */
    PART_HIGH_U,    /* 'u' */
    PART_LOW,       /* and a low one; digits are held */
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

/* json_push with the commonest case, a letter of a string, before the call. */
static inline bool json_step(struct json_state *s, uint8_t byte) {
    if (s->part == PART_TEXT && byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\')
        return true;
    return json_push(s, byte);
}

#endif
