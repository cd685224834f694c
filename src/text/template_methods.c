/* SPDX-License-Identifier: Apache-2.0 */
/* template_methods.c: the methods of str, list, tuple and dict.
 *
 * The sandbox is immutable. Methods that change their object (list.append, dict.update ...) exist
 * by name, but give an Undefined that fails with Jinja2's security message when it is used. Methods
 * that are not here are undefined.
 */
#include <utf8proc.h>

#include "text/template_internal.h"

/* ---- str: case, strip, pad ------------------------------------------------------------------- */

TPL_EXPR(str_upper, tpl_change_case(t, self.s, CASE_UPPER))
TPL_EXPR(str_lower, tpl_change_case(t, self.s, CASE_LOWER))
TPL_EXPR(str_capitalize, tpl_change_case(t, self.s, CASE_CAPITALIZE))
TPL_EXPR(str_title, tpl_change_case(t, self.s, CASE_TITLE_METHOD))
TPL_EXPR(str_swapcase, tpl_change_case(t, self.s, CASE_SWAP))

TPL_EXPR(str_strip, tpl_strip(t, self.s, p[0], true, true))
TPL_EXPR(str_lstrip, tpl_strip(t, self.s, p[0], true, false))
TPL_EXPR(str_rstrip, tpl_strip(t, self.s, p[0], false, true))

static tval pad_text(struct tpl *t, tval self, const tval *p, int where) {
    const struct tpl_str *fill =
        p[1].type == TPL_UNSET ? tpl_lit(t, " ").s : tpl_need_str(t, p[1], "fill character");
    return tpl_center(t, self.s, tpl_need_int(t, p[0], "width"), fill, where);
}
TPL_EXPR(str_center, pad_text(t, self, p, 0))
TPL_EXPR(str_ljust, pad_text(t, self, p, -1))
TPL_EXPR(str_rjust, pad_text(t, self, p, 1))
TPL_FN(str_zfill) {
    const struct tpl_str *s = self.s, *zero = tpl_lit(t, "0").s;
    size_t sign = s->len && (s->data[0] == '-' || s->data[0] == '+');
    int64_t width = tpl_need_int(t, p[0], "width") - (int64_t)sign;
    tval digits = tpl_center(t, tpl_substr(t, s, sign, s->len).s, width, zero, 1);
    return tpl_str_join2(t, tpl_substr(t, s, 0, sign).s, digits.s);
}

/* ---- str: search ----------------------------------------------------------------------------- */

/* The byte range [from, to) of an optional start and end in code points. False if start is after
 * end. */
static bool char_range(struct tpl *t, const struct tpl_str *s, tval start, tval end, size_t *from,
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
    DEBUG_ASSERT(*from <= s->len && *to <= s->len);
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
    bool inside = char_range(t, self.s, p[1], p[2], &from, &to), has = false;
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
TPL_EXPR(str_startswith, has_affix(t, self, p, false))
TPL_EXPR(str_endswith, has_affix(t, self, p, true))

static size_t find_last(const char *hay, size_t from, size_t to, const char *needle, size_t len) {
    if (len > to - from)
        return SIZE_MAX;
    for (size_t at = to - len + 1; at-- > from;)
        if (len == 0 || (hay[at] == needle[0] && memcmp(hay + at, needle, len) == 0))
            return at;
    return SIZE_MAX;
}

/* The index in code points, or -1. */
static int64_t find_chars(struct tpl *t, tval self, const tval *p, bool last) {
    const struct tpl_str *s = self.s, *needle = tpl_need_str(t, p[0], "the text to find");
    size_t from, to, hit;
    if (!char_range(t, s, p[1], p[2], &from, &to))
        return -1;
    if (last) {
        tpl_charge(t, needle->len / 64 * (to - from)); /* find_last compares at every place */
        hit = find_last(s->data, from, to, needle->data, needle->len);
    } else {
        hit = tpl_find(s->data, from, to, needle->data, needle->len);
    }
    return hit == SIZE_MAX ? -1 : (int64_t)tpl_substr(t, s, 0, hit).s->chars;
}
TPL_EXPR(str_find, tpl_int(find_chars(t, self, p, false)))
TPL_EXPR(str_rfind, tpl_int(find_chars(t, self, p, true)))

static tval need_found(struct tpl *t, int64_t at) {
    if (at < 0)
        tpl_fail(t, "substring not found");
    return tpl_int(at);
}
TPL_EXPR(str_index, need_found(t, find_chars(t, self, p, false)))
TPL_EXPR(str_rindex, need_found(t, find_chars(t, self, p, true)))

TPL_FN(str_count) {
    const struct tpl_str *needle = tpl_need_str(t, p[0], "the text to count");
    size_t from, to;
    int64_t n = 0;
    if (!char_range(t, self.s, p[1], p[2], &from, &to))
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

TPL_FN(str_replace) {
    int64_t count = tpl_int_or(t, p[2], -1, "count");
    return tpl_replace(t, self.s, tpl_need_str(t, p[0], "replace() argument 1"),
                       tpl_need_str(t, p[1], "replace() argument 2"), count);
}

/* The end of the white space (or of the word) that begins at `at`. */
static size_t run_end(const struct tpl_str *s, size_t at, bool space) {
    for (size_t next = at; at < s->len; at = next)
        if (tpl_is_space(utf8_next(s->data, &next)) != space)
            break;
    return at;
}

static void split_words(struct tpl *t, const struct tpl_str *s, int64_t most,
                        struct tpl_items *parts) {
    for (size_t at = run_end(s, 0, true); at < s->len;) {
        size_t end = most == 0 ? s->len : run_end(s, at, false);
        tval part = tpl_substr(t, s, at, end);
        tpl_charge(t, 1);
        tpl_items_push(t, parts, part);
        most -= most > 0;
        at = run_end(s, end, true);
    }
}

/* rsplit: splits into all words, then joins those before the last `most` again. */
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

static tval split_text(struct tpl *t, tval self, const tval *p, bool from_right) {
    struct tpl_items parts = {0};
    int64_t most = tpl_int_or(t, p[1], -1, "maxsplit");
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
TPL_EXPR(str_split, split_text(t, self, p, false))
TPL_EXPR(str_rsplit, split_text(t, self, p, true))

TPL_EXPR(str_splitlines, tpl_split_lines(t, self.s, tpl_truth(p[0])))

static tval partition_text(struct tpl *t, tval self, const tval *p, bool last) {
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
        parts[1] = tpl_substr(t, s, at, at + sep->len); /* not p[0]: its authors */
        parts[2] = tpl_substr(t, s, at + sep->len, s->len);
    } else if (last) {
        parts[0] = empty;
        parts[2] = self;
    }
    return tpl_list_of(t, TPL_TUPLE, parts, 3);
}
TPL_EXPR(str_partition, partition_text(t, self, p, false))
TPL_EXPR(str_rpartition, partition_text(t, self, p, true))

TPL_FN(str_join) {
    struct tpl_out out = {0};
    struct tpl_iter it = tpl_iter_begin(t, p[0]);
    tval item;
    for (size_t i = 0; tpl_iter_next(t, &it, &item); i++) {
        if (item.type != TPL_STR)
            tpl_fail(t, "sequence item %zu: expected str instance, %s found", i,
                     tpl_type_name(item));
        if (i)
            tpl_out_str(t, &out, self.s);
        tpl_out_str(t, &out, item.s);
    }
    return tpl_str_like(t, tpl_str_from_out(t, &out), self.s);
}

TPL_FN(str_removeprefix) {
    const struct tpl_str *affix = tpl_need_str(t, p[0], "removeprefix() argument");
    bool has = affix_is(self.s, 0, self.s->len, affix, false);
    return has ? tpl_substr(t, self.s, affix->len, self.s->len) : self;
}
TPL_FN(str_removesuffix) {
    const struct tpl_str *affix = tpl_need_str(t, p[0], "removesuffix() argument");
    bool has = affix_is(self.s, 0, self.s->len, affix, true);
    return has ? tpl_substr(t, self.s, 0, self.s->len - affix->len) : self;
}
TPL_EXPR(str_format, tpl_format_braces(t, self.s, call))

/* ---- str: kinds of characters ---------------------------------------------------------------- */

enum char_kind { KIND_ALPHA, KIND_DIGIT, KIND_ALNUM, KIND_SPACE, KIND_ASCII };

static bool is_kind(uint32_t c, enum char_kind kind) {
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

static tval all_kind(struct tpl *t, const struct tpl_str *s, enum char_kind kind) {
    bool all = s->len > 0 || kind == KIND_ASCII;
    tpl_charge_bytes(t, s->len);
    for (size_t i = 0; i < s->len && all;)
        all = is_kind(utf8_next(s->data, &i), kind);
    return tpl_bool(all);
}

TPL_EXPR(str_isalpha, all_kind(t, self.s, KIND_ALPHA))
TPL_EXPR(str_isdigit, all_kind(t, self.s, KIND_DIGIT))
TPL_EXPR(str_isalnum, all_kind(t, self.s, KIND_ALNUM))
TPL_EXPR(str_isspace, all_kind(t, self.s, KIND_SPACE))
TPL_EXPR(str_isascii, all_kind(t, self.s, KIND_ASCII))

static tval all_case(struct tpl *t, const struct tpl_str *s, bool want_upper) {
    bool any = false;
    tpl_charge_bytes(t, s->len);
    for (size_t i = 0; i < s->len;) {
        bool upper;
        if (!tpl_is_cased(utf8_next(s->data, &i), &upper))
            continue;
        if (upper != want_upper)
            return tpl_bool(false);
        any = true;
    }
    return tpl_bool(any);
}
TPL_EXPR(str_isupper, all_case(t, self.s, true))
TPL_EXPR(str_islower, all_case(t, self.s, false))

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

TPL_FN(list_count) {
    int64_t n = 0;
    for (size_t i = 0; i < self.list->n; i++)
        n += tpl_equal(t, self.list->items[i], p[0]);
    return tpl_int(n);
}

TPL_FN(list_index) {
    for (size_t i = 0; i < self.list->n; i++)
        if (tpl_equal(t, self.list->items[i], p[0]))
            return tpl_int((int64_t)i);
    tpl_fail(t, "the value is not in the %s", tpl_type_name(self));
}

TPL_FN(same_value) { /* values do not change: a copy is the same */
    return self;
}

static tval dict_view(struct tpl *t, tval self, enum tpl_view_kind kind) {
    struct tpl_view *v = tpl_alloc(t, 1, sizeof *v);
    *v = (struct tpl_view){kind, self.dict};
    return (tval){.type = TPL_VIEW, .view = v};
}
TPL_EXPR(dict_keys, dict_view(t, self, TPL_KEYS))
TPL_EXPR(dict_values, dict_view(t, self, TPL_VALUES))
TPL_EXPR(dict_items, dict_view(t, self, TPL_ITEMS))
TPL_FN(dict_get) {
    const tval *found = tpl_dict_get(t, self.dict, p[0]);
    return found ? *found : p[1].type == TPL_UNSET ? tpl_none() : p[1];
}

static const struct tpl_builtin list_methods[] = {
    {"copy", "", same_value},
    {"count", "value", list_count},
    {"index", "value", list_index},
};
static const struct tpl_builtin dict_methods[] = {
    {"copy", "", same_value}, {"get", "key default?", dict_get}, {"items", "", dict_items},
    {"keys", "", dict_keys},  {"values", "", dict_values},
};

static bool is_listed(const char *const *names, size_t n, const struct tpl_str *name) {
    for (size_t i = 0; i < n; i++)
        if (strlen(names[i]) == name->len && memcmp(names[i], name->data, name->len) == 0)
            return true;
    return false;
}

const struct tpl_builtin *tpl_str_method_find(const char *name, size_t len) {
    static const struct tpl_table table = TPL_TABLE(str_methods);
    return tpl_search(&table, name, len);
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
        *unsafe = is_listed(list_changes, COUNT(list_changes), name);
        return tpl_search(&(struct tpl_table)TPL_TABLE(list_methods), s, n);
    case TPL_TUPLE:
        return tpl_search(&(struct tpl_table){list_methods + 1, COUNT(list_methods) - 1}, s, n);
    case TPL_DICT:
        *unsafe = is_listed(dict_changes, COUNT(dict_changes), name);
        return tpl_search(&(struct tpl_table)TPL_TABLE(dict_methods), s, n);
    default:
        return NULL;
    }
}
