/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes for the JSON automaton. What it accepts to the end must be an object to jansson, and it
 * must accept every object that jansson accepts, except beyond its documented limits. */
#include <string.h>

#include "fuzz.h"
#include "text/text.h"

enum { TIMES = 400, BYTES = 1 << 20 }; /* jansson's tree */

static bool is_blank(uint8_t c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* More brackets, or more blanks or digits in a row, than the limits, or an exponent of three
 * digits. Those inside strings count, too: a wrong true only skips a comparison. */
static bool is_beyond_limits(const uint8_t *data, size_t size) {
    size_t levels = 0, blanks = 0, digits = 0;
    bool exponent = false;
    for (size_t i = 0; i < size; i++) {
        const bool digit = data[i] >= '0' && data[i] <= '9';
        levels += data[i] == '{' || data[i] == '[';
        blanks = is_blank(data[i]) ? blanks + 1 : 0;
        digits = digit ? digits + 1 : 0;
        exponent = (data[i] | 0x20) == 'e' || (exponent && (digit || strchr("+-", data[i])));
        if (levels > JSON_LEVELS_MAX || blanks > JSON_BLANKS_MAX || digits > JSON_DIGITS_MAX ||
            (exponent && digits > 2))
            return true;
    }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct json_state s = {0};
    size_t n = 0;
    while (size && is_blank(data[size - 1]))
        size--; /* the automaton takes nothing after the object, not even blanks */
    while (n < size && json_push(&s, data[n]))
        n++;
    const bool ours = n == size && json_complete(&s);
    budget_begin(BYTES + TIMES * size);
    json_t *value = json_loadb((const char *)data, size, JSON_DECODE_INT_AS_REAL, NULL);
    const bool theirs = json_is_object(value);
    json_decref(value);
    budget_end();
    if (ours && !theirs)
        fuzz_fail("taken: %.*s", (int)size, (const char *)data);
    /* jansson skips a NUL after a number, and has no limit for levels and numbers */
    if (theirs && !ours && !memchr(data, 0, size) && !is_beyond_limits(data, size))
        fuzz_fail("refused at %zu: %.*s", n, (int)size, (const char *)data);
    return 0;
}
