/* SPDX-License-Identifier: Apache-2.0 */
/* template_methods.c: the methods of str, list, tuple and dict, and the text operations that
 * filters share with them.
 *
 * The sandbox is immutable: methods that change their object (list.append, dict.update ...) exist
 * by name, but give an Undefined that fails with Jinja2's security message when it is used. Methods
 * that are not here are undefined.
 */
#include <utf8proc.h>

#include "text/template_internal.h"

/* ---- text operations ------------------------------------------------------------------------- */

tval tpl_substr(struct tpl *t, const struct tpl_str *s, size_t from, size_t to) {
    struct tpl_str *part = tpl_alloc(t, 1, sizeof *part);
    *part = *tpl_str_borrow(t, s->data + from, to > from ? to - from : 0).s;
    part->markup = s->markup;
    return tpl_from_str(part);
}

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
        size_t n = to - from;
        uint32_t c = tpl_utf8_at(s->data + from, &n);
        if (set ? !in_set(set, s->data + from, n) : !tpl_is_space(c))
            break;
        from += n;
    }
    while (right && to > from) {
        size_t at = to - 1;
        while (at > from && ((unsigned char)s->data[at] & 0xc0) == 0x80)
            at--;
        size_t n = to - at;
        uint32_t c = tpl_utf8_at(s->data + at, &n);
        if (set ? !in_set(set, s->data + at, n) : !tpl_is_space(c))
            break;
        to = at;
    }
    return from == 0 && to == s->len ? tpl_from_str(s) : tpl_substr(t, s, from, to);
}

static bool is_cased(uint32_t c, bool *upper) {
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
    for (size_t i = 0, n; i < s->len; i += n) {
        n = s->len - i;
        uint32_t c = tpl_utf8_at(s->data + i, &n);
        bool upper, cased = is_cased(c, &upper);
        bool raise = how == CASE_UPPER || (how == CASE_SWAP ? !upper : start && how != CASE_LOWER);
        uint32_t mapped = raise ? to_upper(c) : to_lower(c);
        char bytes[4];
        tpl_out_put(t, &out, bytes, tpl_put_utf8(bytes, mapped));
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
        tpl_out_put(t, &out, s->data + at, hit - at);
        tpl_out_put(t, &out, to->data, to->len);
        at = hit + from->len;
        left--;
        if (from->len == 0) { /* between all characters */
            size_t n = s->len - at;
            if (n)
                (void)tpl_utf8_at(s->data + at, &n);
            tpl_out_put(t, &out, s->data + at, n);
            at += n ? n : 1;
        }
    }
    if (at < s->len)
        tpl_out_put(t, &out, s->data + at, s->len - at);
    return tpl_str_like(t, tpl_str_from_out(t, &out), s);
}

tval tpl_split_lines(struct tpl *t, const struct tpl_str *s, bool keep_ends) {
    struct tpl_items lines = {0};
    size_t from = 0;
    tpl_charge_bytes(t, s->len);
    for (size_t i = 0, n; i < s->len;) {
        n = s->len - i;
        uint32_t c = tpl_utf8_at(s->data + i, &n);
        bool end = (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
                   c == 0x2029;
        size_t at = i;
        i += n;
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
        tpl_out_put(t, &out, fill->data, fill->len);
    tpl_out_put(t, &out, s->data, s->len);
    for (uint64_t i = left; i < pad; i++)
        tpl_out_put(t, &out, fill->data, fill->len);
    return tpl_str_like(t, tpl_str_from_out(t, &out), s);
}

/* ---- str: case, strip, pad ------------------------------------------------------------------- */

#define METHOD(fn_name)                                                                            \
    static tval fn_name(struct tpl *t, tval self, const tval *p, const struct tpl_call *call)
#define UNUSED(x) ((void)(x))

#define CASE_METHOD(fn_name, how)                                                                  \
    METHOD(fn_name) {                                                                              \
        UNUSED(p), UNUSED(call);                                                                   \
        return tpl_change_case(t, self.s, how);                                                    \
    }
CASE_METHOD(str_upper, CASE_UPPER)
CASE_METHOD(str_lower, CASE_LOWER)
CASE_METHOD(str_capitalize, CASE_CAPITALIZE)
CASE_METHOD(str_title, CASE_TITLE_METHOD)
CASE_METHOD(str_swapcase, CASE_SWAP)

METHOD(str_strip) {
    UNUSED(call);
    return tpl_strip(t, self.s, p[0], true, true);
}
METHOD(str_lstrip) {
    UNUSED(call);
    return tpl_strip(t, self.s, p[0], true, false);
}
METHOD(str_rstrip) {
    UNUSED(call);
    return tpl_strip(t, self.s, p[0], false, true);
}

static tval pad(struct tpl *t, tval self, const tval *p, int where) {
    const struct tpl_str *fill =
        p[1].type == TPL_UNSET ? tpl_lit(t, " ").s : tpl_need_str(t, p[1], "fill character");
    return tpl_center(t, self.s, tpl_need_int(t, p[0], "width"), fill, where);
}
METHOD(str_center) {
    UNUSED(call);
    return pad(t, self, p, 0);
}
METHOD(str_ljust) {
    UNUSED(call);
    return pad(t, self, p, -1);
}
METHOD(str_rjust) {
    UNUSED(call);
    return pad(t, self, p, 1);
}
METHOD(str_zfill) {
    UNUSED(call);
    const struct tpl_str *s = self.s, *zero = tpl_lit(t, "0").s;
    size_t sign = s->len && (s->data[0] == '-' || s->data[0] == '+');
    int64_t width = tpl_need_int(t, p[0], "width") - (int64_t)sign;
    tval digits = tpl_center(t, tpl_substr(t, s, sign, s->len).s, width, zero, 1);
    return tpl_str_join2(t, tpl_substr(t, s, 0, sign).s, digits.s);
}

/* ---- str: search ----------------------------------------------------------------------------- */

/* [from, to) in bytes of optional start and end in code points; false where start is behind the
 * end. */
static bool span(struct tpl *t, const struct tpl_str *s, tval start, tval end, size_t *from,
                 size_t *to) {
    int64_t n = (int64_t)s->chars, a = 0, b = n;
    if (start.type != TPL_UNSET && start.type != TPL_NONE)
        a = tpl_need_int(t, start, "start");
    if (end.type != TPL_UNSET && end.type != TPL_NONE)
        b = tpl_need_int(t, end, "end");
    a = a < 0 ? (a + n < 0 ? 0 : a + n) : a;
    b = b < 0 ? (b + n < 0 ? 0 : b + n) : b > n ? n : b;
    tpl_charge_bytes(t, s->len);
    *from = tpl_str_offset(s, (size_t)a);
    *to = tpl_str_offset(s, (size_t)b);
    return a <= b;
}

static bool affix_is(const struct tpl_str *s, size_t from, size_t to, const struct tpl_str *affix,
                     bool at_end) {
    if (affix->len > to - from)
        return false;
    return memcmp(s->data + (at_end ? to - affix->len : from), affix->data, affix->len) == 0;
}

static tval has_affix(struct tpl *t, tval self, const tval *p, bool at_end) {
    size_t from, to;
    bool inside = span(t, self.s, p[1], p[2], &from, &to), has = false;
    if (p[0].type == TPL_TUPLE) {
        for (size_t i = 0; i < p[0].list->n && !has; i++) {
            tpl_charge(t, 1);
            const struct tpl_str *affix = tpl_need_str(t, p[0].list->items[i], "affix");
            has = inside && affix_is(self.s, from, to, affix, at_end);
        }
    } else {
        const struct tpl_str *affix =
            tpl_need_str(t, p[0], at_end ? "endswith first arg" : "startswith first arg");
        has = inside && affix_is(self.s, from, to, affix, at_end);
    }
    return tpl_bool(has);
}
METHOD(str_startswith) {
    UNUSED(call);
    return has_affix(t, self, p, false);
}
METHOD(str_endswith) {
    UNUSED(call);
    return has_affix(t, self, p, true);
}

static size_t find_last(const char *hay, size_t from, size_t to, const char *needle, size_t len) {
    if (len > to - from)
        return SIZE_MAX;
    for (size_t at = to - len + 1; at-- > from;)
        if (len == 0 || (hay[at] == needle[0] && memcmp(hay + at, needle, len) == 0))
            return at;
    return SIZE_MAX;
}

/* The position in code points, or -1. */
static int64_t find_chars(struct tpl *t, tval self, const tval *p, bool last) {
    const struct tpl_str *s = self.s, *needle = tpl_need_str(t, p[0], "the text to find");
    size_t from, to, hit;
    if (!span(t, s, p[1], p[2], &from, &to))
        return -1;
    if (last) {
        tpl_charge(t, needle->len / 64 * (to - from)); /* the plain search from the back */
        hit = find_last(s->data, from, to, needle->data, needle->len);
    } else {
        hit = tpl_find(s->data, from, to, needle->data, needle->len);
    }
    return hit == SIZE_MAX ? -1 : (int64_t)tpl_substr(t, s, 0, hit).s->chars;
}
METHOD(str_find) {
    UNUSED(call);
    return tpl_int(find_chars(t, self, p, false));
}
METHOD(str_rfind) {
    UNUSED(call);
    return tpl_int(find_chars(t, self, p, true));
}

static tval need_found(struct tpl *t, int64_t at) {
    if (at < 0)
        tpl_fail(t, "substring not found");
    return tpl_int(at);
}
METHOD(str_index) {
    UNUSED(call);
    return need_found(t, find_chars(t, self, p, false));
}
METHOD(str_rindex) {
    UNUSED(call);
    return need_found(t, find_chars(t, self, p, true));
}

METHOD(str_count) {
    UNUSED(call);
    const struct tpl_str *needle = tpl_need_str(t, p[0], "the text to count");
    size_t from, to;
    int64_t n = 0;
    if (!span(t, self.s, p[1], p[2], &from, &to))
        return tpl_int(0);
    if (needle->len == 0)
        return tpl_int((int64_t)tpl_substr(t, self.s, from, to).s->chars + 1);
    while ((from = tpl_find(self.s->data, from, to, needle->data, needle->len)) != SIZE_MAX) {
        from += needle->len;
        n++;
    }
    return tpl_int(n);
}

/* ---- str: cut and join ----------------------------------------------------------------------- */

METHOD(str_replace) {
    UNUSED(call);
    int64_t count = p[2].type == TPL_UNSET ? -1 : tpl_need_int(t, p[2], "count");
    return tpl_replace(t, self.s, tpl_need_str(t, p[0], "replace() argument 1"),
                       tpl_need_str(t, p[1], "replace() argument 2"), count);
}

static size_t skip_blanks(const struct tpl_str *s, size_t at) {
    for (size_t n; at < s->len; at += n) {
        n = s->len - at;
        if (!tpl_is_space(tpl_utf8_at(s->data + at, &n)))
            break;
    }
    return at;
}

static size_t skip_word(const struct tpl_str *s, size_t at) {
    for (size_t n; at < s->len; at += n) {
        n = s->len - at;
        if (tpl_is_space(tpl_utf8_at(s->data + at, &n)))
            break;
    }
    return at;
}

static void split_words(struct tpl *t, const struct tpl_str *s, int64_t most,
                        struct tpl_items *parts) {
    for (size_t at = skip_blanks(s, 0); at < s->len;) {
        size_t end = most == 0 ? s->len : skip_word(s, at);
        tval part = tpl_substr(t, s, at, end);
        tpl_charge(t, 1);
        tpl_items_push(t, parts, part);
        most -= most > 0;
        at = skip_blanks(s, end);
    }
}

/* From the back: words are collected forwards, then those in front of the last `most` are joined
 * again. */
static void rsplit_words(struct tpl *t, const struct tpl_str *s, int64_t most,
                         struct tpl_items *parts) {
    struct tpl_items all = {0};
    split_words(t, s, -1, &all);
    size_t rest = most < 0 || all.n <= (size_t)most ? 0 : all.n - (size_t)most;
    if (rest) {
        const struct tpl_str *last = all.items[rest - 1].s;
        tpl_items_push(t, parts, tpl_substr(t, s, 0, (size_t)(last->data - s->data) + last->len));
    }
    for (size_t i = rest; i < all.n; i++)
        tpl_items_push(t, parts, all.items[i]);
}

static void split_by(struct tpl *t, const struct tpl_str *s, const struct tpl_str *sep,
                     int64_t most, bool from_right, struct tpl_items *parts) {
    size_t from = 0, to = s->len, hit;
    struct tpl_items back = {0};
    for (; most != 0; most -= most > 0) {
        tpl_charge(t, 1);
        hit = from_right ? find_last(s->data, from, to, sep->data, sep->len)
                         : tpl_find(s->data, from, to, sep->data, sep->len);
        if (hit == SIZE_MAX)
            break;
        if (from_right) {
            tpl_items_push(t, &back, tpl_substr(t, s, hit + sep->len, to));
            to = hit;
        } else {
            tpl_items_push(t, parts, tpl_substr(t, s, from, hit));
            from = hit + sep->len;
        }
    }
    tpl_items_push(t, parts, tpl_substr(t, s, from, to));
    while (back.n)
        tpl_items_push(t, parts, back.items[--back.n]);
}

static tval split(struct tpl *t, tval self, const tval *p, bool from_right) {
    struct tpl_items parts = {0};
    int64_t most = p[1].type == TPL_UNSET ? -1 : tpl_need_int(t, p[1], "maxsplit");
    tpl_charge_bytes(t, self.s->len * 2);
    if (p[0].type == TPL_UNSET || p[0].type == TPL_NONE) {
        (from_right ? rsplit_words : split_words)(t, self.s, most, &parts);
    } else {
        const struct tpl_str *sep = tpl_need_str(t, p[0], "separator");
        if (!sep->len)
            tpl_fail(t, "empty separator");
        if (from_right)
            tpl_charge(t, sep->len / 64 * self.s->len);
        split_by(t, self.s, sep, most, from_right, &parts);
    }
    return tpl_items_finish(t, &parts, TPL_LIST);
}
METHOD(str_split) {
    UNUSED(call);
    return split(t, self, p, false);
}
METHOD(str_rsplit) {
    UNUSED(call);
    return split(t, self, p, true);
}

METHOD(str_splitlines) {
    UNUSED(call);
    return tpl_split_lines(t, self.s, tpl_truth(p[0]));
}

static tval partition(struct tpl *t, tval self, const tval *p, bool last) {
    const struct tpl_str *s = self.s, *sep = tpl_need_str(t, p[0], "separator");
    tval empty = tpl_lit(t, "");
    if (!sep->len)
        tpl_fail(t, "empty separator");
    tpl_charge_bytes(t, s->len * (last ? sep->len : 1));
    size_t at = last ? find_last(s->data, 0, s->len, sep->data, sep->len)
                     : tpl_find(s->data, 0, s->len, sep->data, sep->len);
    tval parts[3] = {self, empty, empty};
    if (at != SIZE_MAX) {
        parts[0] = tpl_substr(t, s, 0, at);
        parts[1] = p[0];
        parts[2] = tpl_substr(t, s, at + sep->len, s->len);
    } else if (last) {
        parts[0] = empty;
        parts[2] = self;
    }
    return tpl_list_of(t, TPL_TUPLE, parts, 3);
}
METHOD(str_partition) {
    UNUSED(call);
    return partition(t, self, p, false);
}
METHOD(str_rpartition) {
    UNUSED(call);
    return partition(t, self, p, true);
}

METHOD(str_join) {
    UNUSED(call);
    struct tpl_out out = {0};
    struct tpl_iter it = tpl_iter_begin(t, p[0]);
    tval item;
    for (size_t i = 0; tpl_iter_next(t, &it, &item); i++) {
        if (item.type != TPL_STR)
            tpl_fail(t, "sequence item %zu: expected str instance, %s found", i,
                     tpl_type_name(item));
        if (i)
            tpl_out_put(t, &out, self.s->data, self.s->len);
        tpl_out_put(t, &out, item.s->data, item.s->len);
    }
    return tpl_str_like(t, tpl_str_from_out(t, &out), self.s);
}

METHOD(str_removeprefix) {
    UNUSED(call);
    const struct tpl_str *affix = tpl_need_str(t, p[0], "removeprefix() argument");
    bool has = affix_is(self.s, 0, self.s->len, affix, false);
    return has ? tpl_substr(t, self.s, affix->len, self.s->len) : self;
}
METHOD(str_removesuffix) {
    UNUSED(call);
    const struct tpl_str *affix = tpl_need_str(t, p[0], "removesuffix() argument");
    bool has = affix_is(self.s, 0, self.s->len, affix, true);
    return has ? tpl_substr(t, self.s, 0, self.s->len - affix->len) : self;
}
METHOD(str_format) {
    UNUSED(p);
    return tpl_format_braces(t, self.s, call);
}

/* ---- str: kinds of characters ---------------------------------------------------------------- */

enum kind { KIND_ALPHA, KIND_DIGIT, KIND_ALNUM, KIND_SPACE, KIND_ASCII };

static bool is_kind(uint32_t c, enum kind kind) {
    utf8proc_category_t cat = utf8proc_category((utf8proc_int32_t)c);
    bool alpha = cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_LO;
    switch (kind) {
    case KIND_ALPHA:
        return alpha;
    case KIND_DIGIT:
        return cat == UTF8PROC_CATEGORY_ND;
    case KIND_ALNUM:
        return alpha || (cat >= UTF8PROC_CATEGORY_ND && cat <= UTF8PROC_CATEGORY_NO);
    case KIND_SPACE:
        return tpl_is_space(c);
    default:
        return c < 0x80;
    }
}

static tval all_kind(struct tpl *t, const struct tpl_str *s, enum kind kind) {
    bool all = s->len > 0 || kind == KIND_ASCII;
    tpl_charge_bytes(t, s->len);
    for (size_t i = 0, n; i < s->len && all; i += n) {
        n = s->len - i;
        all = is_kind(tpl_utf8_at(s->data + i, &n), kind);
    }
    return tpl_bool(all);
}

#define KIND_METHOD(fn_name, kind)                                                                 \
    METHOD(fn_name) {                                                                              \
        UNUSED(p), UNUSED(call);                                                                   \
        return all_kind(t, self.s, kind);                                                          \
    }
KIND_METHOD(str_isalpha, KIND_ALPHA)
KIND_METHOD(str_isdigit, KIND_DIGIT)
KIND_METHOD(str_isalnum, KIND_ALNUM)
KIND_METHOD(str_isspace, KIND_SPACE)
KIND_METHOD(str_isascii, KIND_ASCII)

static tval all_case(struct tpl *t, const struct tpl_str *s, bool want_upper) {
    bool any = false;
    tpl_charge_bytes(t, s->len);
    for (size_t i = 0, n; i < s->len; i += n) {
        bool upper;
        n = s->len - i;
        if (!is_cased(tpl_utf8_at(s->data + i, &n), &upper))
            continue;
        if (upper != want_upper)
            return tpl_bool(false);
        any = true;
    }
    return tpl_bool(any);
}
METHOD(str_isupper) {
    UNUSED(p), UNUSED(call);
    return all_case(t, self.s, true);
}
METHOD(str_islower) {
    UNUSED(p), UNUSED(call);
    return all_case(t, self.s, false);
}

static const struct tpl_builtin str_methods[] = {
    {"capitalize", "", str_capitalize},
    {"center", "width fillchar?", str_center},
    {"count", "sub start? end?", str_count},
    {"endswith", "suffix start? end?", str_endswith},
    {"find", "sub start? end?", str_find},
    {"format", NULL, str_format},
    {"index", "sub start? end?", str_index},
    {"isalnum", "", str_isalnum},
    {"isalpha", "", str_isalpha},
    {"isascii", "", str_isascii},
    {"isdecimal", "", str_isdigit},
    {"isdigit", "", str_isdigit},
    {"islower", "", str_islower},
    {"isnumeric", "", str_isdigit},
    {"isspace", "", str_isspace},
    {"isupper", "", str_isupper},
    {"join", "iterable", str_join},
    {"ljust", "width fillchar?", str_ljust},
    {"lower", "", str_lower},
    {"casefold", "", str_lower},
    {"lstrip", "chars?", str_lstrip},
    {"partition", "sep", str_partition},
    {"removeprefix", "prefix", str_removeprefix},
    {"removesuffix", "suffix", str_removesuffix},
    {"replace", "old new count?", str_replace},
    {"rfind", "sub start? end?", str_rfind},
    {"rindex", "sub start? end?", str_rindex},
    {"rjust", "width fillchar?", str_rjust},
    {"rpartition", "sep", str_rpartition},
    {"rsplit", "sep? maxsplit?", str_rsplit},
    {"rstrip", "chars?", str_rstrip},
    {"split", "sep? maxsplit?", str_split},
    {"splitlines", "keepends?", str_splitlines},
    {"startswith", "prefix start? end?", str_startswith},
    {"strip", "chars?", str_strip},
    {"swapcase", "", str_swapcase},
    {"title", "", str_title},
    {"upper", "", str_upper},
    {"zfill", "width", str_zfill},
};

/* ---- list, tuple, dict ----------------------------------------------------------------------- */

METHOD(list_count) {
    UNUSED(call);
    int64_t n = 0;
    for (size_t i = 0; i < self.list->n; i++)
        n += tpl_equal(t, self.list->items[i], p[0]);
    return tpl_int(n);
}

METHOD(list_index) {
    UNUSED(call);
    for (size_t i = 0; i < self.list->n; i++)
        if (tpl_equal(t, self.list->items[i], p[0]))
            return tpl_int((int64_t)i);
    tpl_fail(t, "the value is not in the %s", tpl_type_name(self));
}

METHOD(copy) { /* nothing changes it: a copy is the same */
    UNUSED(t), UNUSED(p), UNUSED(call);
    return self;
}

static tval view(struct tpl *t, tval self, enum tpl_view_kind kind) {
    struct tpl_view *v = tpl_alloc(t, 1, sizeof *v);
    *v = (struct tpl_view){kind, self.dict};
    return (tval){.type = TPL_VIEW, .view = v};
}
METHOD(dict_keys) {
    UNUSED(p), UNUSED(call);
    return view(t, self, TPL_KEYS);
}
METHOD(dict_values) {
    UNUSED(p), UNUSED(call);
    return view(t, self, TPL_VALUES);
}
METHOD(dict_items) {
    UNUSED(p), UNUSED(call);
    return view(t, self, TPL_ITEMS);
}
METHOD(dict_get) {
    UNUSED(call);
    const tval *found = tpl_dict_get(t, self.dict, p[0]);
    return found ? *found : p[1].type == TPL_UNSET ? tpl_none() : p[1];
}

static const struct tpl_builtin list_methods[] = {
    {"copy", "", copy},
    {"count", "value", list_count},
    {"index", "value", list_index},
};
static const struct tpl_builtin dict_methods[] = {
    {"copy", "", copy},      {"get", "key default?", dict_get}, {"items", "", dict_items},
    {"keys", "", dict_keys}, {"values", "", dict_values},
};

static bool listed(const char *const *names, size_t n, const struct tpl_str *name) {
    for (size_t i = 0; i < n; i++)
        if (strlen(names[i]) == name->len && memcmp(names[i], name->data, name->len) == 0)
            return true;
    return false;
}

#define COUNT(a) (sizeof(a) / sizeof *(a))

const struct tpl_builtin *tpl_search(const struct tpl_builtin *table, size_t n, const char *name,
                                     size_t len) {
    for (size_t i = 0; i < n; i++)
        if (strlen(table[i].name) == len && memcmp(table[i].name, name, len) == 0)
            return &table[i];
    return NULL;
}

const struct tpl_builtin *tpl_str_method_find(const char *name, size_t len) {
    return tpl_search(str_methods, COUNT(str_methods), name, len);
}

const struct tpl_builtin *tpl_method_find(tval self, const struct tpl_str *name, bool *unsafe) {
    static const char *const list_changes[] = {"append", "clear",  "extend",  "insert",
                                               "pop",    "remove", "reverse", "sort"};
    static const char *const dict_changes[] = {"clear", "pop", "popitem", "setdefault", "update"};
    const char *s = name->data;
    size_t n = name->len;
    *unsafe = false;
    switch (self.type) {
    case TPL_STR:
        return tpl_str_method_find(s, n);
    case TPL_LIST:
        *unsafe = listed(list_changes, COUNT(list_changes), name);
        return tpl_search(list_methods, COUNT(list_methods), s, n);
    case TPL_TUPLE:
        return tpl_search(list_methods + 1, COUNT(list_methods) - 1, s, n);
    case TPL_DICT:
        *unsafe = listed(dict_changes, COUNT(dict_changes), name);
        return tpl_search(dict_methods, COUNT(dict_methods), s, n);
    default:
        return NULL;
    }
}
