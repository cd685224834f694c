/* SPDX-License-Identifier: Apache-2.0 */
/* template_text.c: operations on text that methods and filters share: strip, case, replace, lines,
 * padding. */
#include <utf8proc.h>

#include "text/template_internal.h"

static bool in_set(const struct tpl_str *chars, const char *c, size_t n) {
    return tpl_find(chars->data, 0, chars->len, c, n) != SIZE_MAX;
}

tval tpl_strip(struct tpl *t, const struct tpl_str *s, tval chars, bool left, bool right) {
    const struct tpl_str *set = NULL;
    if (!tpl_is_missing(chars) && chars.type != TPL_NONE)
        set = tpl_need_str(t, chars, "strip arg");
    size_t from = 0, to = s->len;
    tpl_charge_bytes(t, s->len);
    while (left && from < to) {
        size_t next = from;
        uint32_t c = utf8_next(s->data, &next);
        if (set ? !in_set(set, s->data + from, next - from) : !tpl_is_space(c))
            break;
        from = next;
    }
    while (right && to > from) {
        size_t at;
        uint32_t c = utf8_before(s->data, to, &at);
        if (set ? !in_set(set, s->data + at, to - at) : !tpl_is_space(c))
            break;
        to = at;
    }
    return from == 0 && to == s->len ? tpl_from_str(s) : tpl_substr(t, s, from, to);
}

bool tpl_is_cased(uint32_t c, bool *upper) {
    utf8proc_category_t cat = utf8proc_category((utf8proc_int32_t)c);
    *upper = cat == UTF8PROC_CATEGORY_LU || cat == UTF8PROC_CATEGORY_LT;
    return *upper || cat == UTF8PROC_CATEGORY_LL;
}

static uint32_t to_upper(uint32_t c) {
    return (uint32_t)utf8proc_toupper((utf8proc_int32_t)c);
}

static uint32_t to_lower(uint32_t c) {
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
}

tval tpl_change_case(struct tpl *t, const struct tpl_str *s, enum tpl_case how) {
    struct tpl_out out = {0};
    bool start = true;
    tpl_charge_bytes(t, s->len * 4);
    for (size_t i = 0; i < s->len;) {
        uint8_t author = s->by.each ? (uint8_t)s->by.each[i] : s->by.all;
        uint32_t c = utf8_next(s->data, &i);
        bool upper, cased = tpl_is_cased(c, &upper);
        bool raise = how == CASE_UPPER || (how == CASE_SWAP ? !upper : start && how != CASE_LOWER);
        uint32_t mapped = raise ? to_upper(c) : to_lower(c);
        char bytes[4];
        tpl_out_by(t, &out, bytes, utf8_put(bytes, mapped), (struct tpl_authors){.all = author});
        if (how == CASE_TITLE_METHOD)
            start = !cased;
        else if (how == CASE_TITLE_FILTER)
            start = tpl_is_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c));
        else
            start = false;
    }
    return tpl_str_like(t, tpl_str_from_out(t, &out), s);
}

tval tpl_replace(struct tpl *t, const struct tpl_str *s, const struct tpl_str *from,
                 const struct tpl_str *to, int64_t count) {
    struct tpl_out out = {0};
    size_t at = 0;
    uint64_t left = count < 0 ? UINT64_MAX : (uint64_t)count;
    tpl_charge_bytes(t, s->len);
    while (left && at <= s->len) {
        size_t hit = tpl_find(s->data, at, s->len, from->data, from->len);
        if (hit == SIZE_MAX)
            break;
        tpl_charge(t, 1);
        tpl_out_part(t, &out, s, at, hit);
        tpl_out_str(t, &out, to);
        at = hit + from->len;
        left--;
        if (from->len == 0) { /* between all characters */
            size_t next = at;
            if (at < s->len) {
                (void)utf8_next(s->data, &next);
                tpl_out_part(t, &out, s, at, next);
            }
            at = next > at ? next : at + 1;
        }
    }
    if (at < s->len)
        tpl_out_part(t, &out, s, at, s->len);
    return tpl_str_like(t, tpl_str_from_out(t, &out), s);
}

tval tpl_split_lines(struct tpl *t, const struct tpl_str *s, bool keep_ends) {
    struct tpl_items lines = {0};
    size_t from = 0;
    tpl_charge_bytes(t, s->len);
    for (size_t i = 0; i < s->len;) {
        size_t at = i;
        uint32_t c = utf8_next(s->data, &i);
        bool end = (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
                   c == 0x2029;
        if (!end)
            continue;
        if (c == '\r' && i < s->len && s->data[i] == '\n')
            i++;
        tpl_charge(t, 1);
        tpl_items_push(t, &lines, tpl_substr(t, s, from, keep_ends ? i : at));
        from = i;
    }
    if (from < s->len)
        tpl_items_push(t, &lines, tpl_substr(t, s, from, s->len));
    return tpl_items_finish(t, &lines, TPL_LIST);
}

tval tpl_center(struct tpl *t, const struct tpl_str *s, int64_t width, const struct tpl_str *fill,
                int where) {
    struct tpl_out out = {0};
    if (fill->chars != 1)
        tpl_fail(t, "The fill character must be exactly one character long");
    if (width <= (int64_t)s->chars)
        return tpl_from_str(s);
    uint64_t pad = (uint64_t)width - s->chars;
    uint64_t left = where < 0 ? 0 : where > 0 ? pad : pad / 2 + (pad & (uint64_t)width & 1);
    tpl_charge(t, pad);
    for (uint64_t i = 0; i < left; i++)
        tpl_out_str(t, &out, fill);
    tpl_out_str(t, &out, s);
    for (uint64_t i = left; i < pad; i++)
        tpl_out_str(t, &out, fill);
    return tpl_str_like(t, tpl_str_from_out(t, &out), s);
}
