/* SPDX-License-Identifier: Apache-2.0 */
/* template_filters.c: filters on one value (text, numbers, JSON). Filters on sequences are in
 * template_sequences.c.
 *
 * Each does what Jinja2's filter of that name does without automatic escaping. tojson is Hugging
 * Face's: json.dumps without HTML escapes.
 */
#include <math.h>

#include "text/template_internal.h"

/* ---- text ------------------------------------------------------------------------------------ */

TPL_EXPR(filter_upper, tpl_change_case(t, tpl_to_str(t, self), CASE_UPPER))
TPL_EXPR(filter_lower, tpl_change_case(t, tpl_to_str(t, self), CASE_LOWER))
TPL_EXPR(filter_capitalize, tpl_change_case(t, tpl_to_str(t, self), CASE_CAPITALIZE))
TPL_EXPR(filter_title, tpl_change_case(t, tpl_to_str(t, self), CASE_TITLE_FILTER))
TPL_EXPR(filter_trim, tpl_strip(t, tpl_to_str(t, self), p[0], true, true))
TPL_EXPR(filter_string, tpl_from_str(tpl_to_str(t, self)))

TPL_FN(filter_replace) {
    bool all = p[2].type == TPL_UNSET || p[2].type == TPL_NONE;
    return tpl_replace(t, tpl_str_marked(t, tpl_to_str(t, self), false).s, tpl_to_str(t, p[0]),
                       tpl_to_str(t, p[1]), all ? -1 : tpl_need_int(t, p[2], "count"));
}

TPL_FN(filter_center) {
    int64_t width = tpl_int_or(t, p[0], 80, "width");
    return tpl_center(t, tpl_to_str(t, self), width, tpl_lit(t, " ").s, 0);
}

TPL_FN(filter_indent) {
    const struct tpl_str *s = tpl_need_str(t, self, "the text to indent"), *by;
    bool first = tpl_truth(p[1]), blank = tpl_truth(p[2]);
    if (p[0].type == TPL_STR)
        by = p[0].s;
    else
        by = tpl_center(t, tpl_lit(t, "").s, tpl_int_or(t, p[0], 4, "width"), tpl_lit(t, " ").s, 0)
                 .s;
    /* one more line end, or a last empty line would be lost */
    const struct tpl_str *ended = tpl_str_join2(t, s, tpl_lit(t, "\n").s).s;
    const struct tpl_list *lines = tpl_split_lines(t, ended, false).list;
    struct tpl_out out = {0};
    for (size_t i = 0; i < lines->n; i++) {
        const struct tpl_str *line = lines->items[i].s;
        if (i)
            tpl_out_lit(t, &out, "\n");
        if (i ? line->len || blank : first)
            tpl_out_str(t, &out, by);
        tpl_out_str(t, &out, line);
    }
    return tpl_str_from_out(t, &out);
}

TPL_FN(filter_truncate) {
    const struct tpl_str *end =
        p[2].type == TPL_UNSET ? tpl_lit(t, "...").s : tpl_need_str(t, p[2], "end");
    int64_t length = tpl_int_or(t, p[0], 255, "length");
    int64_t leeway =
        tpl_is_missing(p[3]) || p[3].type == TPL_NONE ? 5 : tpl_need_int(t, p[3], "leeway");
    if (length < (int64_t)end->chars || leeway < 0)
        tpl_fail(t, "expected length >= %zu and leeway >= 0", end->chars);
    if (tpl_length(t, self) <= (uint64_t)length + (uint64_t)leeway)
        return self;
    const struct tpl_str *s = tpl_need_str(t, self, "the text to truncate");
    size_t cut = tpl_str_offset(s, (size_t)length - end->chars);
    if (!tpl_truth(p[1])) /* back to the last space */
        for (size_t i = cut; i-- > 0;)
            if (s->data[i] == ' ') {
                cut = i;
                break;
            }
    return tpl_str_join2(t, tpl_substr(t, s, 0, cut).s, end);
}

TPL_FN(filter_wordcount) {
    const struct tpl_str *s = tpl_to_str(t, self);
    const struct tpl_builtin *is_alnum = tpl_str_method_find("isalnum", 7);
    int64_t words = 0;
    bool inside = false;
    for (size_t i = 0, next = 0; i < s->len; i = next) {
        (void)utf8_next(s->data, &next);
        tval c = tpl_substr(t, s, i, next);
        bool word = s->data[i] == '_' || is_alnum->fn(t, c, NULL, NULL).b;
        words += word && !inside;
        inside = word;
    }
    return tpl_int(words);
}

TPL_FN(filter_format) {
    const struct tpl_str *s = tpl_to_str(t, self);
    if (call->n_kw && call->n_pos)
        tpl_fail(t, "can't handle positional and keyword arguments at the same time");
    if (!call->n_kw)
        return tpl_format_percent(t, s, tpl_list_of(t, TPL_TUPLE, call->pos, call->n_pos));
    struct tpl_dict *d = tpl_dict_new(t);
    for (size_t i = 0; i < call->n_kw; i++)
        tpl_dict_set(t, d, tpl_from_str(call->kw[i].name), call->kw[i].value);
    return tpl_format_percent(t, s, (tval){.type = TPL_DICT, .dict = d});
}

TPL_EXPR(filter_safe, tpl_str_marked(t, tpl_to_str(t, self), true))

static tval escape_html(struct tpl *t, const struct tpl_str *s) {
    struct tpl_out out = {0};
    tpl_put_escaped(t, &out, s);
    return tpl_str_marked(t, tpl_str_from_out(t, &out).s, true);
}
TPL_EXPR(filter_escape,
         self.type == TPL_STR && self.s->markup ? self : escape_html(t, tpl_to_str(t, self)))
TPL_EXPR(filter_forceescape, escape_html(t, tpl_to_str(t, self)))

TPL_FN(filter_urlencode) {
    if (tpl_is_iterable(self) && self.type != TPL_STR)
        tpl_fail(t, "urlencode supports only text");
    const struct tpl_str *s = tpl_to_str(t, self);
    struct tpl_out out = {0};
    for (size_t i = 0; i < s->len; i++) {
        unsigned char c = (unsigned char)s->data[i];
        bool kept = (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
        kept = kept || (c >= '0' && c <= '9') || (c && strchr("-_.~/", c));
        if (kept)
            tpl_out_put(t, &out, s->data + i, 1);
        else
            tpl_out_printf(t, &out, "%%%02X", c);
    }
    return tpl_str_from_out(t, &out);
}

/* ---- values ---------------------------------------------------------------------------------- */

TPL_FN(filter_default) {
    if (self.type == TPL_UNDEFINED || (tpl_truth(p[1]) && !tpl_truth(self)))
        return p[0].type == TPL_UNSET ? tpl_lit(t, "") : p[0];
    return self;
}

TPL_FN(filter_attr) {
    tval name = tpl_from_str(tpl_need_str(t, p[0], "attribute name"));
    tval v = tpl_get_attr(t, self, name);
    /* an item is not an attribute */
    bool item = self.type == TPL_DICT && v.type != TPL_METHOD && v.type != TPL_UNDEFINED;
    return item ? tpl_undef_attr(t, self, name) : v;
}

TPL_FN(filter_tojson) {
    struct tpl_out out = {0};
    struct tpl_json_style style = {.ascii = tpl_truth(p[0]), .sort = tpl_truth(p[3])};
    style.indented = !tpl_is_missing(p[1]) && p[1].type != TPL_NONE;
    style.indent = tpl_lit(t, "").s;
    style.item_sep = style.indented ? tpl_lit(t, ",").s : tpl_lit(t, ", ").s;
    style.key_sep = tpl_lit(t, ": ").s;
    if (style.indented)
        style.indent =
            p[1].type == TPL_STR
                ? p[1].s
                : tpl_center(t, style.indent, tpl_need_int(t, p[1], "indent"), tpl_lit(t, " ").s, 0)
                      .s;
    if (!tpl_is_missing(p[2]) && p[2].type != TPL_NONE) {
        const struct tpl_list *seps = tpl_to_list(t, p[2]);
        if (seps->n != 2)
            tpl_fail(t, "separators must be two strings");
        style.item_sep = tpl_need_str(t, seps->items[0], "separators");
        style.key_sep = tpl_need_str(t, seps->items[1], "separators");
    }
    tpl_put_json(t, &out, self, &style);
    return tpl_str_from_out(t, &out);
}

/* ---- numbers --------------------------------------------------------------------------------- */

TPL_FN(filter_abs) {
    int64_t i;
    if (!tpl_is_number(self))
        tpl_fail(t, "bad operand type for abs(): '%s'", tpl_type_name(self));
    if (!tpl_as_int(self, &i))
        return tpl_float(fabs(self.f));
    return i < 0 ? tpl_arith(t, OP_SUB, tpl_int(0), self) : tpl_int(i);
}

/* Python's float(text): surrounding spaces, single underscores between digits, inf and nan. */
static bool text_to_double(struct tpl *t, const struct tpl_str *text, double *out) {
    const struct tpl_str *s = tpl_strip(t, text, tpl_none(), true, true).s;
    char copy[400];
    size_t n = 0, from = s->len && (s->data[0] == '-' || s->data[0] == '+');
    tval word = tpl_change_case(t, tpl_substr(t, s, from, s->len).s, CASE_LOWER);
    bool negative = s->len && s->data[0] == '-';
    if (tpl_str_is(word, "inf") || tpl_str_is(word, "infinity") || tpl_str_is(word, "nan")) {
        *out = tpl_str_is(word, "nan") ? (double)NAN : negative ? -HUGE_VAL : HUGE_VAL;
        return true;
    }
    for (size_t i = 0; i < s->len; i++) {
        char c = s->data[i];
        bool digit = c >= '0' && c <= '9';
        bool between = i && i + 1 < s->len && s->data[i - 1] >= '0' && s->data[i - 1] <= '9' &&
                       s->data[i + 1] >= '0' && s->data[i + 1] <= '9';
        if (c == '_' && between)
            continue;
        if (n == sizeof copy || !(digit || (c && strchr("+-.eE", c))))
            return false;
        copy[n++] = c;
    }
    return tpl_parse_double(copy, n, out);
}

/* Python's int(text, base). False if text is not an integer or does not fit. */
static bool text_to_int(struct tpl *t, const struct tpl_str *text, int64_t base, int64_t *out) {
    const struct tpl_str *s = tpl_strip(t, text, tpl_none(), true, true).s;
    size_t i = s->len && (s->data[0] == '-' || s->data[0] == '+');
    bool negative = i && s->data[0] == '-', prefixed = false;
    int64_t value = 0;
    if (s->len > i + 2 && s->data[i] == '0') {
        char c = (char)(s->data[i + 1] | 0x20);
        int64_t named = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : -1;
        if (named == base || (named > 0 && base == 0)) {
            base = named;
            i += 2;
            prefixed = true;
        }
    }
    base = base ? base : 10;
    size_t first = i;
    for (; i < s->len; i++) {
        char c = s->data[i];
        if (c == '_' && (i > first || prefixed) && i + 1 < s->len && s->data[i + 1] != '_')
            continue;
        int digit = c >= '0' && c <= '9'                     ? c - '0'
                    : (c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? (c | 0x20) - 'a' + 10
                                                             : 99;
        if (digit >= base || __builtin_mul_overflow(value, base, &value) ||
            __builtin_sub_overflow(value, (int64_t)digit, &value)) /* reaches INT64_MIN */
            return false;
    }
    if (!negative && value == INT64_MIN)
        return false;
    *out = negative ? value : -value;
    return i > first;
}

static bool double_to_int(double f, int64_t *out) {
    bool fits = f >= -9223372036854775808.0 && f < 9223372036854775808.0;
    *out = fits ? (int64_t)f : 0;
    return fits;
}

TPL_FN(filter_int) {
    tval fallback = p[0].type == TPL_UNSET ? tpl_int(0) : p[0];
    int64_t base = tpl_int_or(t, p[1], 10, "base"), i;
    double f;
    tpl_need_defined(t, self);
    if (base != 0 && (base < 2 || base > 36))
        tpl_fail(t, "int() base must be >= 2 and <= 36, or 0");
    if (tpl_as_int(self, &i))
        return tpl_int(i);
    if (self.type == TPL_STR && text_to_int(t, self.s, base, &i))
        return tpl_int(i);
    if (self.type == TPL_FLOAT) {
        if (isinf(self.f))
            tpl_fail(t, "cannot convert float infinity to integer");
        if (isnan(self.f))
            return fallback;
        if (!double_to_int(self.f, &i))
            tpl_fail(t, "the integer result does not fit in 64 bits");
        return tpl_int(i);
    }
    if (self.type == TPL_STR && text_to_double(t, self.s, &f) && double_to_int(f, &i))
        return tpl_int(i);
    return fallback;
}

TPL_FN(filter_float) {
    double f;
    tpl_need_defined(t, self);
    if (tpl_is_number(self))
        return tpl_float(tpl_as_double(self));
    if (self.type == TPL_STR && text_to_double(t, self.s, &f))
        return tpl_float(f);
    return p[0].type == TPL_UNSET ? tpl_float(0) : p[0];
}

static double power_of_ten(int64_t n) {
    double r = 1;
    for (; n > 0; n--)
        r *= 10;
    return r;
}

/* Rounds to n digits after the point. Ties of the exact binary value go to even, as decimal
 * printing does. */
static double round_digits(struct tpl *t, double value, int64_t n) {
    if (isnan(value) || isinf(value) || n > 300)
        return value;
    if (n < -308)
        return copysign(0, value);
    if (n < 0) {
        double unit = power_of_ten(-n);
        return nearbyint(value / unit) * unit;
    }
    struct tpl_out out = {0};
    double r = value;
    tpl_put_double(t, &out, value, 'f', (int)n, false);
    return tpl_parse_double(out.data, out.len, &r) ? r : value;
}

static int64_t round_int(struct tpl *t, int64_t value, int64_t n) {
    if (n >= 0)
        return value;
    if (n < -18)
        return 0;
    int64_t unit = 1;
    for (; n < 0; n++)
        unit *= 10;
    int64_t rest = value % unit, down = value - rest;
    int64_t twice_over = (rest < 0 ? -rest : rest) - unit / 2;
    bool away = twice_over > 0 || (twice_over == 0 && down / unit % 2 != 0);
    tval r = !away ? tpl_int(down)
                   : tpl_arith(t, OP_ADD, tpl_int(down), tpl_int(rest < 0 ? -unit : unit));
    return r.i;
}

TPL_FN(filter_round) {
    int64_t n = tpl_int_or(t, p[0], 0, "precision"), i;
    bool common = p[1].type == TPL_UNSET || tpl_str_is(p[1], "common");
    bool up = tpl_str_is(p[1], "ceil");
    if (!common && !up && !tpl_str_is(p[1], "floor"))
        tpl_fail(t, "method must be common, ceil or floor");
    tpl_need_defined(t, self);
    if (!tpl_is_number(self))
        tpl_fail(t, "type %s doesn't define __round__ method", tpl_type_name(self));
    if (common)
        return tpl_as_int(self, &i) ? tpl_int(round_int(t, i, n))
                                    : tpl_float(round_digits(t, self.f, n));
    if (n < -300 || n > 300)
        tpl_fail(t, "the precision %lld is out of range", (long long)n);
    double unit = n < 0 ? 1 / power_of_ten(-n) : power_of_ten(n);
    double scaled = tpl_as_double(self) * unit;
    return tpl_float((up ? ceil(scaled) : floor(scaled)) / unit);
}

static const struct tpl_builtin value_filters[] = {
    {"abs", "", filter_abs},
    {"attr", "name", filter_attr},
    {"capitalize", "", filter_capitalize},
    {"center", "width?", filter_center},
    {"d", "default_value? boolean?", filter_default},
    {"default", "default_value? boolean?", filter_default},
    {"e", "", filter_escape},
    {"escape", "", filter_escape},
    {"float", "default?", filter_float},
    {"forceescape", "", filter_forceescape},
    {"format", NULL, filter_format},
    {"indent", "width? first? blank?", filter_indent},
    {"int", "default? base?", filter_int},
    {"lower", "", filter_lower},
    {"replace", "old new count?", filter_replace},
    {"round", "precision? method?", filter_round},
    {"safe", "", filter_safe},
    {"string", "", filter_string},
    {"title", "", filter_title},
    {"tojson", "ensure_ascii? indent? separators? sort_keys?", filter_tojson},
    {"trim", "chars?", filter_trim},
    {"truncate", "length? killwords? end? leeway?", filter_truncate},
    {"upper", "", filter_upper},
    {"urlencode", "", filter_urlencode},
    {"wordcount", "", filter_wordcount},
};

const struct tpl_table tpl_value_filters = TPL_TABLE(value_filters);
