/* SPDX-License-Identifier: Apache-2.0 */
/* normalize.c: normalizers: what happens to text before it is cut. Each step reads one buffer and
 * writes the other, or leaves the text as it is:
 *
 *     text -> NFC -> text[0] -> replace -> text[1] -> ...
 *
 * The tables of Unicode's normal forms are utf8proc's. Most text is normal already, and most
 * characters never change whatever is next to them ("sure" ones). Only runs of others are
 * decomposed, sorted and composed, together with the sure character before them, which may compose
 * with what follows. Sorting is our own, because utf8proc's is quadratic in the length of a run of
 * accents.
 *
 * A step may make text longer (NFKC up to 11 times). The total growth is limited, because the steps
 * come from a file.
 */
#define _GNU_SOURCE /* memmem */
#include <string.h>
#include <utf8proc.h>

#include "text/tokenizer_internal.h"

enum {
    DECOMPOSED_MAX = 18, /* characters that U+FDFA becomes */
};

void normalizer_scratch_deinit(struct normalizer_scratch *scratch) {
    text_free(&scratch->text[0]);
    text_free(&scratch->text[1]);
    mem_free(scratch->chars);
    memset(scratch, 0, sizeof *scratch);
}

/* ---- normal forms ---------------------------------------------------------------------------- */

static bool is_composed(enum normalizer_kind form) {
    return form == NORMALIZE_NFC || form == NORMALIZE_NFKC;
}

/* Whether c starts a character sequence, stays as it is and never joins the character before it.
 * For NFC these are most scripts of today's texts (unit.normalize compares the list with utf8proc's
 * tables). */
static bool is_sure(enum normalizer_kind form, uint32_t c) {
    if (form != NORMALIZE_NFC)
        return c < 0x80;
    if (c < 0x300)
        return true;
    static const struct {
        uint32_t first, last;
    } ranges[] = {
        {0x0391, 0x03c9}, {0x0400, 0x0482}, {0x048a, 0x052f}, {0x0531, 0x0556}, {0x0561, 0x0587},
        {0x05d0, 0x05ea}, {0x0620, 0x064a}, {0x0660, 0x066f}, {0x0904, 0x0939}, {0x0e01, 0x0e30},
        {0x10d0, 0x10ff}, {0x1e00, 0x1e99}, {0x2010, 0x2027}, {0x2030, 0x205e}, {0x20a0, 0x20bf},
        {0x3001, 0x3029}, {0x3041, 0x3096}, {0x30a1, 0x30fe}, {0x3105, 0x312f}, {0x3400, 0x4dbf},
        {0x4e00, 0x9fff}, {0xac00, 0xd7a3}, {0xff01, 0xff9d},
    };
    if (c > 0xff9d)
        return false;
    size_t low = 0, high = sizeof ranges / sizeof ranges[0];
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return c >= ranges[low].first;
}

/* The start of the first run of characters that are not sure, at or after `from`; text.len if there
 * is none. *sure is the sure character before it. */
static size_t unsure_from(enum normalizer_kind form, struct text_span text, size_t from,
                          size_t *sure) {
    *sure = from;
    for (size_t at = from; at < text.len;) {
        size_t start = at;
        if (!is_sure(form, utf8_next(text.data, &at)))
            return start;
        *sure = start;
    }
    *sure = text.len;
    return text.len;
}

static size_t unsure_to(enum normalizer_kind form, struct text_span text, size_t from) {
    for (size_t at = from; at < text.len;) {
        size_t start = at;
        if (is_sure(form, utf8_next(text.data, &at)))
            return start;
    }
    return text.len;
}

static int combining_class(int32_t c) {
    return utf8proc_get_property(c)->combining_class;
}

/* A stable sort of accents by their class. */
static void sort_accents(int32_t *c, size_t n, int32_t *copy) {
    if (n <= 16) {
        for (size_t i = 1; i < n; i++) {
            int32_t accent = c[i];
            size_t at = i;
            for (; at > 0 && combining_class(c[at - 1]) > combining_class(accent); at--)
                c[at] = c[at - 1];
            c[at] = accent;
        }
        return;
    }
    size_t place[257] = {0};
    for (size_t i = 0; i < n; i++)
        place[combining_class(c[i]) + 1]++;
    for (int k = 0; k < 256; k++)
        place[k + 1] += place[k];
    memcpy(copy, c, n * sizeof *c);
    for (size_t i = 0; i < n; i++)
        c[place[combining_class(copy[i])]++] = copy[i];
}

static void order_accents(int32_t *c, size_t n, int32_t *copy) {
    for (size_t i = 0; i < n;) {
        size_t end = i;
        while (end < n && combining_class(c[end]) != 0)
            end++;
        if (end > i + 1)
            sort_accents(c + i, end - i, copy);
        i = end > i ? end : i + 1;
    }
}

/* Makes room for n characters and a copy of them. */
static bool chars_room(struct normalizer_scratch *scratch, size_t n) {
    if (n <= scratch->chars_cap)
        return true;
    size_t cap = max_size(n, 2 * scratch->chars_cap);
    int32_t *chars = mem_realloc(scratch->chars, cap, 2 * sizeof *chars);
    if (!chars)
        return false;
    scratch->chars = chars;
    scratch->chars_cap = cap;
    return true;
}

/* Appends the normal form of a text whose first character is a starter. */
static bool append_normal(struct normalizer_scratch *scratch, enum normalizer_kind form,
                          struct text_span text, struct text_buf *out) {
    bool compatible = form == NORMALIZE_NFKC || form == NORMALIZE_NFKD;
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    options |= compatible ? UTF8PROC_COMPAT : 0;
    size_t n = 0;
    int class = 0; /* of graphemes, not used */
    for (size_t at = 0; at < text.len;) {
        if (!chars_room(scratch, n + DECOMPOSED_MAX))
            return false;
        int32_t c = (int32_t)utf8_next(text.data, &at);
        utf8proc_ssize_t more =
            utf8proc_decompose_char(c, scratch->chars + n, DECOMPOSED_MAX, options, &class);
        if (more < 0 || more > DECOMPOSED_MAX)
            return false;
        n += (size_t)more;
    }
    ASSERT(n <= scratch->chars_cap);
    order_accents(scratch->chars, n, scratch->chars + scratch->chars_cap);
    if (is_composed(form)) {
        utf8proc_ssize_t composed = utf8proc_normalize_utf32(scratch->chars, (utf8proc_ssize_t)n,
                                                             UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (composed < 0)
            return false;
        n = (size_t)composed;
    }
    for (size_t i = 0; i < n; i++) {
        char c[4];
        if (!text_append(out, c, utf8_put(c, (uint32_t)scratch->chars[i])))
            return false;
    }
    return true;
}

static bool normal_form(struct normalizer_scratch *scratch, enum normalizer_kind form,
                        struct text_span text, struct text_buf *out, bool *changed) {
    size_t sure, done = 0;
    while (done < text.len) {
        size_t from = unsure_from(form, text, done, &sure);
        if (from == text.len)
            break;
        size_t to = unsure_to(form, text, from);
        if (!text_append(out, text.data + done, sure - done) ||
            !append_normal(scratch, form, (struct text_span){text.data + sure, to - sure}, out))
            return false;
        *changed = true;
        done = to;
    }
    return !*changed || text_append(out, text.data + done, text.len - done);
}

/* ---- the other steps ------------------------------------------------------------------------- */

static bool append_lowercase(struct text_span text, struct text_buf *out) {
    for (size_t at = 0; at < text.len;) {
        char small[4];
        uint32_t c = utf8_next(text.data, &at);
        size_t n = utf8_put(small, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
        if (!text_append(out, small, n))
            return false;
        /* The one character whose lower case is two: U+0130 is i with a combining dot. */
        if (c == 0x130) {
            out->len -= n;
            if (!text_append(out, "i\xcc\x87", 3))
                return false;
        }
    }
    return true;
}

static struct text_span strip_ends(const struct normalizer_step *step, struct text_span text) {
    size_t start = step->left ? spaces_after(text, 0) : 0;
    size_t end = step->right ? spaces_before(text, start, text.len) : text.len;
    return (struct text_span){text.data + start, end - start};
}

size_t spaces_after(struct text_span text, size_t at) {
    for (size_t next = at; at < text.len; at = next)
        if (!is_space(utf8_next(text.data, &next)))
            break;
    return at;
}

size_t spaces_before(struct text_span text, size_t least, size_t at) {
    for (size_t before; at > least; at = before)
        if (!is_space(utf8_before(text.data, at, &before)))
            break;
    return at;
}

size_t find_text(struct text_span text, size_t from, const char *what, size_t len) {
    const char *start = text.data + from;
    const char *at = len == 1 ? memchr(start, what[0], text.len - from)
                              : memmem(start, text.len - from, what, len);
    return at ? (size_t)(at - text.data) : text.len;
}

bool replace_text(struct text_span text, const char *from, size_t from_len, const char *to,
                  size_t to_len, size_t limit, struct text_buf *out, bool *changed) {
    size_t done = 0;
    for (size_t at; (at = find_text(text, done, from, from_len)) < text.len && out->len <= limit;
         done = at + from_len) {
        if (!text_append(out, text.data + done, at - done) || !text_append(out, to, to_len))
            return false;
        *changed = true;
    }
    return !*changed || text_append(out, text.data + done, text.len - done);
}

/* Writes to out and sets *changed, or narrows *text, or does nothing. */
static bool run_normalizer_step(const struct normalizer_step *step,
                                struct normalizer_scratch *scratch, size_t limit,
                                struct text_span *text, struct text_buf *out, bool *changed) {
    switch (step->kind) {
    case NORMALIZE_NFC:
    case NORMALIZE_NFD:
    case NORMALIZE_NFKC:
    case NORMALIZE_NFKD:
        return normal_form(scratch, step->kind, *text, out, changed);
    case NORMALIZE_LOWERCASE:
        *changed = true;
        return append_lowercase(*text, out);
    case NORMALIZE_STRIP:
        *text = strip_ends(step, *text);
        return true;
    case NORMALIZE_PREPEND:
        *changed = text->len > 0;
        return !*changed || (text_append(out, step->to, step->to_len) &&
                             text_append(out, text->data, text->len));
    case NORMALIZE_REPLACE:
        return replace_text(*text, step->from, step->from_len, step->to, step->to_len, limit, out,
                            changed);
    }
    return false;
}

kvasir_status normalizer_run(const struct normalizer *n, struct normalizer_scratch *scratch,
                             struct text_span text, struct text_span *out, kvasir_error *err) {
    size_t limit = growth_limit(text.len);
    int next = 0; /* the buffer that `text` is not in */
    ASSERT(n->n >= 0 && n->n <= NORMALIZER_STEPS_MAX);
    for (int i = 0; i < n->n; i++) {
        struct text_buf *to = &scratch->text[next];
        to->len = 0;
        bool changed = false;
        if (!run_normalizer_step(&n->step[i], scratch, limit, &text, to, &changed))
            return fail(err, KVASIR_ERR_MEMORY,
                        "not enough memory to normalize a text of %zu bytes", text.len);
        if (!changed)
            continue;
        if (to->len > limit)
            return fail(err, KVASIR_ERR_TEXT, "the normalizer makes the text too long (%zu bytes)",
                        to->len);
        text = (struct text_span){to->data, to->len};
        next = !next;
    }
    *out = text;
    return KVASIR_OK;
}
