/* SPDX-License-Identifier: Apache-2.0 */
/* language_text.c: states that take any text: from them on no character of a JSON string that
 * needs no escape is ever refused. They are the states of an expression that may match anywhere: in
 * "[0-9]{3}" all of them. In them a machine need not look at each token (recognizer.h,
 * text_key). */
#include <string.h>

#include "grammar/language_internal.h"

/* Larger automata are not looked at, and chains of that many states are not followed. */
enum { STATES_MAX = 1024, PASSES_MAX = 32 };

static bool is_plain(unsigned byte) {
    return byte >= 0x20 && byte != '"' && byte != '\\' && byte != 0x7f;
}

/* Pairs each state with the state of all strings after the same bytes: it says which bytes may come
 * in the midst of a character. A state that no plain text reaches gets none (0). */
static void pair_states(const struct dfa *d, const struct dfa *any, uint32_t *pair,
                        uint32_t *order) {
    uint32_t n = 0;
    order[n++] = d->start;
    pair[d->start] = any->start;
    for (uint32_t i = 0; i < n; i++)
        for (unsigned byte = 0; byte < 256; byte++) {
            const uint32_t to = dfa_next(d, order[i], (uint8_t)byte);
            if (!to || pair[to])
                continue;
            pair[to] = dfa_next(any, pair[order[i]], (uint8_t)byte);
            order[n++] = to;
        }
}

static bool takes_text(const struct dfa *d, const struct dfa *any, const uint32_t *pair,
                       const uint8_t *text, uint32_t state) {
    for (unsigned byte = 0; byte < 256; byte++)
        if (is_plain(byte) && dfa_next(any, pair[state], (uint8_t)byte) &&
            !text[dfa_next(d, state, (uint8_t)byte)])
            return false;
    return true;
}

/* Takes states away until none leads to one that was. False: that takes too long. */
static bool settle(const struct dfa *d, const struct dfa *any, const uint32_t *pair,
                   uint8_t *text) {
    bool changed = true;
    memset(text, 1, d->n);
    text[0] = 0;
    for (int pass = 0; changed; pass++) {
        if (pass == PASSES_MAX)
            return false;
        changed = false;
        for (uint32_t s = d->n - 1; s > 0; s--)
            if (text[s] && !takes_text(d, any, pair, text, s)) {
                text[s] = 0;
                changed = true;
            }
    }
    return true;
}

/* Most automata have no such state. */
static bool may_have_some(const struct dfa *d) {
    for (uint32_t s = 1; s < d->n; s++)
        if (dfa_next(d, s, ' ') && dfa_next(d, s, 'a') && dfa_next(d, s, '~') &&
            dfa_next(d, s, 0xc3))
            return true;
    return false;
}

bool dfa_text_states(const struct dfa *d, uint8_t *text) {
    struct dfa any;
    memset(text, 0, d->n);
    if (d->n > STATES_MAX || !d->start || !may_have_some(d))
        return true;
    uint32_t *pair = mem_calloc(2 * (size_t)d->n, sizeof *pair);
    if (!pair || !dfa_any(&any)) {
        mem_free(pair);
        return false;
    }
    pair_states(d, &any, pair, pair + d->n);
    if (!settle(d, &any, pair, text))
        memset(text, 0, d->n);
    dfa_free(&any);
    mem_free(pair);
    return true;
}
