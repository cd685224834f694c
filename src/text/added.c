/* SPDX-License-Identifier: Apache-2.0 */
/* added.c: added tokens: control tokens and others that are found in text by their name, before
 * anything is normalized or cut.
 *
 *     token     "<a>" "<a><b>" "<|end|>" ...    sorted by their bytes
 *     first[c]  where those that begin with byte c are
 *
 * Of several matches the leftmost wins, then the longest. Two peculiarities of Hugging Face's
 * tokenizers are kept:
 *   - A match that is refused (a control token without TOKENIZE_PARSE_SPECIAL, or single_word
 *     inside a word) stays text as a whole: nothing is searched inside it.
 *   - lstrip and rstrip take the white space next to the token with it, but the search continues
 *     right after the token itself.
 *
 * With authors, a special token that its authors may not write is refused, too. But whatever others
 * write around it cannot hide a token of the template: inside such a match the template's bytes are
 * searched, first for a shorter token.
 *
 * Names that are not UTF-8 are never searched: they could only match in broken text or cut a
 * character in two. So the text between tokens stays valid.
 */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

kvasir_status added_put(struct added_set *a, struct added_token token, kvasir_error *err) {
    struct text_span text = token.text;
    if (text.len == 0 || utf8_check(text.data, text.len) != text.len)
        return KVASIR_OK;
    token.text.data = mem_strndup(text.data, text.len);
    if (!token.text.data || !ARRAY_GROW(a->token, a->cap, a->n + 1)) {
        mem_free((char *)token.text.data);
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory for %zu added tokens", a->n + 1);
    }
    a->token[a->n++] = token;
    return KVASIR_OK;
}

static int compare_texts(const void *a, const void *b) {
    const struct added_token *x = a, *y = b;
    int order = span_compare(x->text, y->text);
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

void added_sort(struct added_set *a) {
    if (a->n == 0)
        return;
    qsort(a->token, a->n, sizeof *a->token, compare_texts);
    for (size_t i = 0; i < a->n; i++)
        a->first[(uint8_t)a->token[i].text.data[0] + 1]++;
    for (int c = 0; c < 256; c++)
        a->first[c + 1] += a->first[c];
    ASSERT(a->first[256] == a->n);
}

void added_deinit(struct added_set *a) {
    for (size_t i = 0; i < a->n; i++)
        mem_free((char *)a->token[i].text.data);
    mem_free(a->token);
    memset(a, 0, sizeof *a);
}

/* ---- finding --------------------------------------------------------------------------------- */

/* The first of [low, high) whose byte at `depth` is not below `byte`. */
static size_t lower_bound(const struct added_set *a, size_t low, size_t high, size_t depth,
                          int byte) {
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uint8_t)a->token[middle].text.data[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest token that `text` begins with; NULL if there is none. The candidates are a range of
 * the sorted list that narrows with each byte. One that ends here is first in the range. A single
 * candidate is compared at once. */
static const struct added_token *token_at(const struct added_set *a, const char *text, size_t len) {
    const struct added_token *found = NULL;
    size_t low = a->first[(uint8_t)text[0]], high = a->first[(uint8_t)text[0] + 1];
    for (size_t depth = 1; low < high; depth++) {
        if (high - low == 1) {
            struct text_span last = a->token[low].text;
            bool match = last.len <= len && memcmp(last.data, text, last.len) == 0;
            return match ? &a->token[low] : found;
        }
        if (a->token[low].text.len == depth)
            found = &a->token[low];
        while (low < high && a->token[low].text.len == depth)
            low++;
        if (depth == len)
            break;
        DEBUG_ASSERT(depth < len && high <= a->n);
        int byte = (uint8_t)text[depth];
        low = lower_bound(a, low, high, depth, byte);
        high = lower_bound(a, low, high, depth, byte + 1);
    }
    return found;
}

static bool stands_alone(struct text_span text, size_t start, size_t end) {
    size_t at = end, before;
    if (start > 0 && is_word(utf8_before(text.data, start, &before)))
        return false;
    return end == text.len || !is_word(utf8_next(text.data, &at));
}

static bool is_marker(const kvasir_authors *by, int32_t id) {
    for (size_t i = 0; i < by->n_markers; i++)
        if (by->markers[i] == id)
            return true;
    return false;
}

/* Where the template's bytes that begin at `at` end; at most `end`. */
static size_t template_end(const kvasir_authors *by, size_t at, size_t end) {
    while (at < end && by->each[at] == KVASIR_BY_TEMPLATE)
        at++;
    return at;
}

/* Whether the authors of text[at, end) may write this special token. */
static bool may_write(const kvasir_authors *by, const struct added_token *token, size_t at,
                      size_t end) {
    char least = KVASIR_BY_TEMPLATE;
    for (; at < end; at++)
        least = by->each[at] < least ? by->each[at] : least;
    return least == KVASIR_BY_TEMPLATE ||
           (least == KVASIR_BY_ASSISTANT && is_marker(by, token->id));
}

/* token_at, without special tokens that their authors may not write. Sets *at to where the search
 * continues if there is none. */
static const struct added_token *written_token_at(const struct added_set *a, struct text_span text,
                                                  const kvasir_authors *by, size_t *at) {
    size_t from = *at;
    const struct added_token *token = token_at(a, text.data + from, text.len - from);
    if (!token) {
        ++*at;
        return NULL;
    }
    size_t end = from + token->text.len;
    if (!by || !token->special || may_write(by, token, from, end))
        return token;
    size_t own = template_end(by, from, end);
    token = own > from ? token_at(a, text.data + from, own - from) : NULL;
    for (++*at; *at < end && by->each[*at] != KVASIR_BY_TEMPLATE;)
        ++*at;
    return token;
}

kvasir_status added_split(const struct added_set *a, struct text_span text, bool parse_special,
                          const kvasir_authors *by, const struct added_sink *sink,
                          kvasir_error *err) {
    size_t plain = 0;  /* text[plain, at) holds no token */
    size_t spaces = 0; /* the end of the white space that was stripped last: walked only once */
    for (size_t at = 0; a->n && at < text.len;) {
        size_t start = at;
        const struct added_token *token = written_token_at(a, text, by, &at);
        if (!token)
            continue;
        size_t end = start + token->text.len;
        at = end;
        if ((token->special && !parse_special) ||
            (token->single_word && !stands_alone(text, start, end)))
            continue;
        if (token->lstrip)
            start = spaces_before(text, plain, start);
        if (token->rstrip)
            end = spaces = end < spaces ? spaces : spaces_after(text, end);
        if (plain < start)
            TRY(sink->plain(sink->ctx, (struct text_span){text.data + plain, start - plain}, plain,
                            err));
        TRY(sink->found(sink->ctx, token->id, err));
        plain = end;
    }
    if (plain < text.len)
        TRY(sink->plain(sink->ctx, (struct text_span){text.data + plain, text.len - plain}, plain,
                        err));
    return KVASIR_OK;
}
