/* SPDX-License-Identifier: Apache-2.0 */
/* stop.c: kvasir_stop: finds the end of a text that arrives in pieces. One per text; not
 * thread-safe.
 *
 *     stop texts  "</s>", "\nUser:"
 *
 *     text   ... so it is.\nUs|            "\nUs" may begin a stop text: it is held back
 *                             ^ end of what has arrived
 *            ... so it is.\nUse it|        it did not: it comes out with the rest
 *            ... so it is.\nUser:|         it did: the text ends before it
 *
 * Each stop text is a Knuth-Morris-Pratt automaton: `matched` is the length of its longest prefix
 * that the text so far ends with. So what is held back is itself the prefix of a stop text, and no
 * copy of it is kept. A byte takes time proportional to the number of stop texts.
 *
 *     stop texts  "abcd", "bc"
 *
 *     text   x a b c|      "bc" is complete, but "abcd" may begin before it: both are held
 *            ^ back = 2    B is where the earliest complete one begins
 *              B
 *
 * Invariants
 *   STOP-1  In all, the text up to the first place where a stop text begins comes out. It does not
 *           depend on how the text was cut into pieces or on the order of the stop texts.
 *   STOP-2  If the pieces are whole UTF-8 characters, every push puts out whole characters: a stop
 *           text begins with a character's first byte, so text is cut only before one.
 *   STOP-3  A push allocates nothing.
 */
#include <string.h>

#include "text/text.h"

struct stop_text {
    char *text;     /* [len] */
    size_t *border; /* [len] for each shorter prefix: the longest prefix that it ends with */
    size_t len, matched;
};

struct kvasir_stop {
    struct stop_text *texts; /* [n] */
    size_t n, longest;
    const struct stop_text *held;  /* the one with the most matched; NULL: nothing is held */
    const struct stop_text *found; /* the one that begins at B; also set after the text has ended */
    size_t back;                   /* bytes from B to the end so far; 0: none is complete */
    bool stopped;
};

/* ---- create and destroy ---------------------------------------------------------------------- */

static void find_borders(struct stop_text *t) {
    size_t border = 0;
    for (size_t i = 1; i + 1 < t->len; i++) {
        while (border > 0 && t->text[i] != t->text[border])
            border = t->border[border];
        border += t->text[i] == t->text[border];
        t->border[i + 1] = border;
    }
}

static kvasir_status add_stop_text(struct stop_text *t, const char *text, kvasir_error *err) {
    t->len = strlen(text);
    size_t good = utf8_check(text, t->len);
    if (t->len == 0)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "request.stops", "the text is empty");
    if (good < t->len)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "request.stops",
                          "the text is not UTF-8 at byte %zu", good);
    t->text = mem_strndup(text, t->len);
    t->border = mem_calloc(t->len, sizeof *t->border);
    if (!t->text || !t->border)
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory for stop texts");
    find_borders(t);
    return KVASIR_OK;
}

kvasir_status kvasir_stop_create(const char *const *stops, size_t n, kvasir_stop **out,
                                 kvasir_error *err) {
    struct kvasir_stop *s = mem_calloc(1, sizeof *s);
    if (s)
        s->texts = mem_calloc(n ? n : 1, sizeof *s->texts);
    kvasir_status status = KVASIR_OK;
    if (!s || !s->texts)
        status = fail(err, KVASIR_ERR_MEMORY, "not enough memory for stop texts");
    for (; status == KVASIR_OK && s->n < n; s->n++) {
        status = add_stop_text(&s->texts[s->n], stops[s->n], err);
        if (s->texts[s->n].len > s->longest)
            s->longest = s->texts[s->n].len;
    }
    if (status == KVASIR_OK)
        *out = s;
    else
        kvasir_stop_destroy(s);
    return status;
}

void kvasir_stop_destroy(kvasir_stop *s) {
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++) {
        mem_free(s->texts[i].text);
        mem_free(s->texts[i].border);
    }
    mem_free(s->texts);
    mem_free(s);
}

size_t kvasir_stop_hold(const kvasir_stop *s) {
    return s->longest ? s->longest - 1 : 0;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* True if the byte completes the stop text. Its next occurrence would be after B. */
static bool advance_stop_text(struct stop_text *t, char byte) {
    DEBUG_ASSERT(t->matched < t->len);
    while (t->matched > 0 && t->text[t->matched] != byte)
        t->matched = t->border[t->matched];
    t->matched += t->text[t->matched] == byte;
    if (t->matched < t->len)
        return false;
    t->matched = 0;
    return true;
}

/* Takes one more byte. Returns how many bytes became certain; they are written to out. */
static size_t stop_byte(struct kvasir_stop *s, char byte, char *out) {
    const struct stop_text *before = s->held;
    size_t held_before = before ? before->matched : 0, back = s->back ? s->back + 1 : 0;
    size_t held = 0;
    s->held = NULL;
    s->found = back ? s->found : NULL;
    for (size_t i = 0; i < s->n; i++) {
        struct stop_text *t = &s->texts[i];
        if (advance_stop_text(t, byte) && t->len > back) {
            back = t->len;
            s->found = t;
        }
        if (t->matched > held) {
            held = t->matched;
            s->held = t;
        }
    }
    s->back = back;
    s->stopped = back > 0 && held <= back; /* nothing can begin before B anymore */
    size_t sure = held_before + 1 - (s->stopped ? back : held);
    ASSERT(sure <= held_before + 1);
    /* what was held before, then this byte */
    if (sure > 0 && before)
        memcpy(out, before->text, min_size(sure, held_before));
    if (sure > held_before)
        out[held_before] = byte;
    return sure;
}

bool kvasir_stop_push(kvasir_stop *s, const char *text, size_t len, char *out, size_t *n) {
    *n = 0;
    for (size_t i = 0; i < len && !s->stopped; i++)
        *n += stop_byte(s, text[i], out + *n);
    return !s->stopped;
}

bool kvasir_stop_finish(kvasir_stop *s, char *out, size_t *n) {
    bool complete = s->stopped || s->back > 0;
    *n = s->stopped || !s->held ? 0 : s->held->matched - s->back;
    if (*n > 0)
        memcpy(out, s->held->text, *n);
    for (size_t i = 0; i < s->n; i++)
        s->texts[i].matched = 0;
    s->held = NULL;
    s->back = 0;
    s->stopped = false;
    return !complete;
}

const char *kvasir_stop_found(const kvasir_stop *s) {
    return s->found ? s->found->text : NULL;
}
