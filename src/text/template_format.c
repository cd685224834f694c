/* SPDX-License-Identifier: Apache-2.0 */
/* template_format.c: Python's two formats: "..." % x and "...".format(x).
 *
 *     %[(key)][-+ 0#][width|*][.precision|.*]conversion      one of s r d i u x X o c e E f F g G %
 *     {[name or number][.attr|[key]]...[!r|!s][:spec]}       [[fill]<>=^][+- ][#][0][w][,][.p]type
 *
 * Widths and precisions are bounded, so that a format cannot evade the memory limit.
 */
#include <math.h>

#include "text/template_internal.h"

#define MAX_WIDTH 100000 /* of a field, in characters */

/* A field of either format. */
struct format_field {
    char fill_bytes[4];
    size_t fill_len;
    char align; /* < > ^ = or 0 */
    char sign;  /* + - or space */
    bool alternate;
    char group;               /* , _ or 0 */
    int64_t width, precision; /* -1: none */
    char type;                /* 0: none */
};

static void put_padding(struct tpl *t, struct tpl_out *out, const struct format_field *f,
                        int64_t n) {
    for (int64_t i = 0; i < n; i++)
        tpl_out_put(t, out, f->fill_bytes, f->fill_len);
}

/* Writes prefix (sign, 0x) and text, padded to the field's width. */
static void put_field(struct tpl *t, struct tpl_out *out, const struct format_field *f,
                      const char *prefix, const struct tpl_str *text, char default_align) {
    size_t prefix_len = strlen(prefix);
    int64_t pad = f->width - (int64_t)(text->chars + prefix_len);
    char align = f->align ? f->align : default_align;
    pad = pad < 0 ? 0 : pad;
    int64_t before = align == '>' ? pad : align == '^' ? pad / 2 : 0;
    put_padding(t, out, f, before);
    tpl_out_put(t, out, prefix, prefix_len);
    if (align == '=')
        put_padding(t, out, f, pad);
    tpl_out_str(t, out, text);
    if (align == '<' || align == '^')
        put_padding(t, out, f, pad - before);
}

static const struct tpl_str *group_digits(struct tpl *t, const struct tpl_str *digits, char mark,
                                          size_t every) {
    struct tpl_out out = {0};
    size_t whole = 0;
    while (whole < digits->len && digits->data[whole] != '.' && digits->data[whole] != 'e')
        whole++;
    for (size_t i = 0; i < whole; i++) {
        if (i && (whole - i) % every == 0)
            tpl_out_put(t, &out, &mark, 1);
        tpl_out_put(t, &out, digits->data + i, 1);
    }
    tpl_out_put(t, &out, digits->data + whole, digits->len - whole);
    return tpl_str_from_out(t, &out).s;
}

static void put_int_field(struct tpl *t, struct tpl_out *out, const struct format_field *f,
                          int64_t value) {
    unsigned long long u = value < 0 ? 0 - (unsigned long long)value : (unsigned long long)value;
    struct tpl_out digits = {0};
    char prefix[4] = "", *p = prefix;
    if (value < 0 || f->sign == '+' || f->sign == ' ')
        *p++ = value < 0 ? '-' : f->sign;
    if (f->alternate && f->type && strchr("xXob", f->type)) {
        *p++ = '0';
        *p++ = f->type;
    }
    ASSERT(p < prefix + sizeof prefix);
    *p = 0;
    if (f->type == 'b') {
        int top = 63;
        while (top > 0 && !(u >> top & 1))
            top--;
        for (; top >= 0; top--)
            tpl_out_put(t, &digits, u >> top & 1 ? "1" : "0", 1);
    } else {
        tpl_out_printf(t, &digits,
                       f->type == 'x'   ? "%llx"
                       : f->type == 'X' ? "%llX"
                       : f->type == 'o' ? "%llo"
                                        : "%llu",
                       u);
    }
    const struct tpl_str *text = tpl_str_from_out(t, &digits).s;
    if (f->group)
        text = group_digits(t, text, f->group, f->type && strchr("xXob", f->type) ? 4 : 3);
    while (f->precision > (int64_t)text->len) /* %.5d: at least 5 digits */
        text = tpl_str_join2(t, tpl_lit(t, "0").s, text).s;
    put_field(t, out, f, prefix, text, '>');
}

static void put_float_field(struct tpl *t, struct tpl_out *out, const struct format_field *f,
                            double value) {
    struct tpl_out digits = {0};
    char prefix[2] = "", shortest[TPL_FLOAT_CHARS];
    double abs_value = fabs(value);
    if (signbit(value) && !isnan(value))
        prefix[0] = '-';
    else if (f->sign == '+' || f->sign == ' ')
        prefix[0] = f->sign;
    int precision = f->precision < 0 ? 6 : (int)f->precision;
    char type = f->type;
    if (isnan(value) || isinf(value)) {
        bool upper = type == 'F' || type == 'E' || type == 'G';
        tpl_out_put(t, &digits, isnan(value) ? upper ? "NAN" : "nan" : upper ? "INF" : "inf", 3);
    } else if (type == '%') {
        tpl_put_double(t, &digits, abs_value * 100, 'f', precision, false);
        tpl_out_lit(t, &digits, "%");
    } else if (!type && f->precision < 0) {
        tpl_out_put(t, &digits, shortest, tpl_print_double(shortest, abs_value));
    } else {
        tpl_put_double(t, &digits, abs_value, type ? type : 'g', precision, f->alternate);
    }
    const struct tpl_str *text = tpl_str_from_out(t, &digits).s;
    put_field(t, out, f, prefix, f->group ? group_digits(t, text, f->group, 3) : text, '>');
}

static void put_text_field(struct tpl *t, struct tpl_out *out, const struct format_field *f,
                           const struct tpl_str *s) {
    if (f->precision >= 0 && (size_t)f->precision < s->chars)
        s = tpl_substr(t, s, 0, tpl_str_offset(s, (size_t)f->precision)).s;
    put_field(t, out, f, "", s, '<');
}

/* A number in a format; -1 if there is none. */
static int64_t scan_number(struct tpl *t, const struct tpl_str *s, size_t *i, int64_t most) {
    int64_t n = -1;
    for (; *i < s->len && s->data[*i] >= '0' && s->data[*i] <= '9'; ++*i) {
        n = (n < 0 ? 0 : n) * 10 + (s->data[*i] - '0');
        if (n > most)
            tpl_fail(t, "a width or precision in a format is above %lld", (long long)most);
    }
    return n;
}

/* ---- "..." % args ---------------------------------------------------------------------------- */

struct percent_format {
    struct tpl *t;
    const struct tpl_str *s;
    size_t i;
    tval args; /* a tuple holds the arguments; any other value is the one argument */
    size_t used;
};

static tval next_arg(struct percent_format *p) {
    bool tuple = p->args.type == TPL_TUPLE;
    if (p->used >= (tuple ? p->args.list->n : 1))
        tpl_fail(p->t, "not enough arguments for format string");
    p->used++;
    return tuple ? p->args.list->items[p->used - 1] : p->args;
}

static int64_t percent_number(struct percent_format *p, int64_t most) {
    if (p->i < p->s->len && p->s->data[p->i] == '*') {
        p->i++;
        int64_t n = tpl_need_int(p->t, next_arg(p), "* in a format");
        if (n > most || n < -most)
            tpl_fail(p->t, "a width or precision in a format is above %lld", (long long)most);
        return n;
    }
    return scan_number(p->t, p->s, &p->i, most);
}

static void percent_flags(struct percent_format *p, struct format_field *f) {
    bool zero = false;
    for (; p->i < p->s->len; p->i++) {
        char c = p->s->data[p->i];
        if (c == '-')
            f->align = '<';
        else if (c == '0')
            zero = true;
        else if (c == '#')
            f->alternate = true;
        else if (c == '+' || (c == ' ' && f->sign != '+'))
            f->sign = c;
        else if (c != ' ')
            break;
    }
    if (zero && !f->align) {
        f->align = '=';
        f->fill_bytes[0] = '0';
    }
}

static void percent_value(struct percent_format *p, struct tpl_out *out, struct format_field *f,
                          tval v) {
    struct tpl *t = p->t;
    if (f->type == 's' || f->type == 'r' || f->type == 'c') {
        const struct tpl_str *text = NULL;
        struct tpl_out repr = {0};
        if (f->align == '=') { /* 0 pads only numbers */
            f->align = '>';
            f->fill_bytes[0] = ' ';
        }
        f->align = f->align ? f->align : '>';
        if (f->type == 'r') {
            tpl_put_repr(t, &repr, v);
            text = tpl_str_from_out(t, &repr).s;
        } else if (f->type == 'c' && v.type != TPL_STR) {
            int64_t code = tpl_need_int(t, v, "%c");
            char bytes[4];
            if (code < 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
                tpl_fail(t, "%%c needs a character");
            text = tpl_str_copy(t, bytes, utf8_put(bytes, (uint32_t)code)).s;
        } else {
            text = tpl_to_str(t, v);
        }
        put_text_field(t, out, f, text);
        return;
    }
    tpl_need_defined(t, v);
    if (!tpl_is_number(v))
        tpl_fail(t, "%%%c format: a number is required, not %s", f->type, tpl_type_name(v));
    int64_t whole;
    if (strchr("eEfFgG", f->type)) {
        put_float_field(t, out, f, tpl_as_double(v));
    } else if (tpl_as_int(v, &whole)) {
        put_int_field(t, out, f, whole);
    } else if (strchr("diu", f->type) && fabs(v.f) < 9.2e18) {
        put_int_field(t, out, f, (int64_t)v.f);
    } else {
        tpl_fail(t, "%%%c format: an integer is required, not %s", f->type, tpl_type_name(v));
    }
}

static void percent_field(struct percent_format *p, struct tpl_out *out) {
    struct format_field f = {.fill_bytes = " ", .fill_len = 1, .precision = -1};
    const struct tpl_str *s = p->s;
    tval v = tpl_unset();
    if (p->i < s->len && s->data[p->i] == '(') {
        size_t end = tpl_find(s->data, p->i, s->len, ")", 1);
        if (end == SIZE_MAX || p->args.type != TPL_DICT)
            tpl_fail(p->t, end == SIZE_MAX ? "incomplete format key" : "format requires a mapping");
        tval key = tpl_substr(p->t, s, p->i + 1, end);
        const tval *found = tpl_dict_get(p->t, p->args.dict, key);
        if (!found)
            tpl_fail(p->t, "the format has no argument '%s'", tpl_excerpt(p->t, key.s));
        v = *found;
        p->used = 1;
        p->i = end + 1;
    }
    percent_flags(p, &f);
    f.width = percent_number(p, MAX_WIDTH);
    if (f.width < -1) {
        f.align = '<';
        f.width = -f.width;
    }
    if (p->i < s->len && s->data[p->i] == '.') {
        p->i++;
        f.precision = percent_number(p, TPL_PRECISION_MAX);
        f.precision = f.precision < 0 ? 0 : f.precision;
    }
    while (p->i < s->len && strchr("hlL", s->data[p->i]) && s->data[p->i])
        p->i++;
    if (p->i >= s->len)
        tpl_fail(p->t, "incomplete format");
    f.type = s->data[p->i++];
    if (f.type == '%') {
        tpl_out_part(p->t, out, s, p->i - 1, p->i);
        return;
    }
    if (!f.type || !strchr("srdiuxXoceEfFgG", f.type))
        tpl_fail(p->t, "unsupported format character '%c'", f.type >= ' ' ? f.type : '?');
    percent_value(p, out, &f, v.type == TPL_UNSET ? next_arg(p) : v);
}

tval tpl_format_percent(struct tpl *t, const struct tpl_str *format, tval args) {
    struct percent_format p = {.t = t, .s = format, .args = args};
    struct tpl_out out = {0};
    while (p.i < format->len) {
        const char *from = format->data + p.i, *next = memchr(from, '%', format->len - p.i);
        size_t plain = next ? (size_t)(next - from) : format->len - p.i;
        tpl_charge_bytes(t, plain);
        tpl_out_part(t, &out, format, p.i, p.i + plain);
        p.i += plain + (next ? 1 : 0);
        if (next)
            percent_field(&p, &out);
    }
    bool all = args.type == TPL_TUPLE
                   ? p.used >= args.list->n
                   : p.used > 0 || args.type == TPL_DICT || args.type == TPL_LIST ||
                         args.type == TPL_RANGE || args.type == TPL_UNDEFINED;
    if (!all)
        tpl_fail(t, "not all arguments converted during string formatting");
    return tpl_str_from_out(t, &out);
}

/* ---- "...".format(...) ----------------------------------------------------------------------- */

struct brace_format {
    struct tpl *t;
    const struct tpl_str *s;
    const struct tpl_call *call;
    size_t next_auto;
};

static tval first_value(struct brace_format *b, const struct tpl_str *name) {
    int64_t number = name->len ? 0 : (int64_t)b->next_auto++;
    bool is_number = true;
    for (size_t i = 0; i < name->len && is_number; i++) {
        is_number = name->data[i] >= '0' && name->data[i] <= '9' && i < 9;
        number = number * 10 + (name->data[i] - '0');
    }
    if (is_number) {
        if ((size_t)number >= b->call->n_pos)
            tpl_fail(b->t, "Replacement index %lld out of range for positional args tuple",
                     (long long)number);
        return b->call->pos[number];
    }
    for (size_t i = 0; i < b->call->n_kw; i++)
        if (tpl_str_equal(b->call->kw[i].name, name))
            return b->call->kw[i].value;
    tpl_fail(b->t, "the format has no argument '%s'", tpl_excerpt(b->t, name));
}

/* The value of name.attr[key]; `from` and `to` are byte offsets in the format. */
static tval field_value(struct brace_format *b, size_t from, size_t to) {
    const char *d = b->s->data;
    size_t i = from;
    while (i < to && d[i] != '.' && d[i] != '[')
        i++;
    tval v = first_value(b, tpl_substr(b->t, b->s, from, i).s);
    while (i < to) {
        bool attr = d[i] == '.';
        size_t start = ++i;
        while (i < to && (attr ? d[i] != '.' && d[i] != '[' : d[i] != ']'))
            i++;
        tval key = tpl_substr(b->t, b->s, start, i);
        bool digits = !attr && i > start && i - start < 10;
        int64_t index = 0;
        for (size_t k = start; k < i; k++) {
            digits = digits && d[k] >= '0' && d[k] <= '9';
            index = digits ? index * 10 + (d[k] - '0') : 0;
        }
        v = attr ? b->t->get_attr(b->t, v, key)
                 : b->t->get_item(b->t, v, digits ? tpl_int(index) : key);
        if (!attr && i++ >= to)
            tpl_fail(b->t, "Missing ']' in format string");
    }
    return v;
}

static struct format_field scan_spec(struct tpl *t, const struct tpl_str *s) {
    struct format_field f = {.fill_bytes = " ", .fill_len = 1, .precision = -1};
    size_t i = 0, n = 0;
    if (s->len)
        (void)utf8_next(s->data, &n);
    if (s->len > n && n && strchr("<>=^", s->data[n]) && s->data[n]) {
        memcpy(f.fill_bytes, s->data, n);
        f.fill_len = n;
        f.align = s->data[n];
        i = n + 1;
    } else if (s->len && s->data[0] && strchr("<>=^", s->data[0])) {
        f.align = s->data[i++];
    }
    if (i < s->len && s->data[i] && strchr("+- ", s->data[i]))
        f.sign = s->data[i++];
    if (i < s->len && s->data[i] == '#') {
        f.alternate = true;
        i++;
    }
    if (i < s->len && s->data[i] == '0') {
        i++;
        if (!f.align) {
            f.align = '=';
            f.fill_bytes[0] = '0';
        }
    }
    f.width = scan_number(t, s, &i, MAX_WIDTH);
    if (i < s->len && (s->data[i] == ',' || s->data[i] == '_'))
        f.group = s->data[i++];
    if (i < s->len && s->data[i] == '.') {
        i++;
        f.precision = scan_number(t, s, &i, TPL_PRECISION_MAX);
        if (f.precision < 0)
            tpl_fail(t, "Format specifier missing precision");
    }
    if (i < s->len)
        f.type = s->data[i++];
    if (i < s->len || (f.type && !strchr("sdbxXoceEfFgGn%", f.type)))
        tpl_fail(t, "Invalid format specifier '%s'", tpl_excerpt(t, s));
    return f;
}

static void put_spec(struct tpl *t, struct tpl_out *out, tval v, const struct tpl_str *spec) {
    struct format_field f = scan_spec(t, spec);
    int64_t whole;
    bool for_float = f.type && strchr("eEfFgG%", f.type);
    f.type = f.type == 'n' ? 'd' : f.type;
    if (v.type == TPL_FLOAT || (tpl_as_int(v, &whole) && for_float)) {
        if (f.type && !for_float)
            tpl_fail(t, "Unknown format code '%c' for object of type 'float'", f.type);
        put_float_field(t, out, &f, tpl_as_double(v));
    } else if (tpl_as_int(v, &whole) && (v.type == TPL_INT || f.type)) {
        if (f.type == 's' || f.type == 'c')
            tpl_fail(t, "Unknown format code '%c' for object of type 'int'", f.type);
        f.precision = -1;
        put_int_field(t, out, &f, whole);
    } else {
        if ((f.type && f.type != 's') || f.align == '=')
            tpl_fail(t, "Unknown format code '%c' for object of type '%s'", f.type ? f.type : '=',
                     tpl_type_name(v));
        if (v.type != TPL_STR && v.type != TPL_BOOL && spec->len)
            tpl_fail(t, "unsupported format string passed to %s.__format__", tpl_type_name(v));
        put_text_field(t, out, &f, tpl_to_str(t, v));
    }
}

static void braces_field(struct brace_format *b, struct tpl_out *out, size_t from, size_t to) {
    const char *d = b->s->data;
    size_t name_end = from;
    int open = 0;
    for (; name_end < to && (open || (d[name_end] != '!' && d[name_end] != ':')); name_end++)
        open += (d[name_end] == '[') - (d[name_end] == ']');
    size_t i = name_end;
    tval v = field_value(b, from, name_end);
    if (i < to && d[i] == '!') {
        char how = i + 1 < to ? d[i + 1] : 0;
        struct tpl_out text = {0};
        if (how == 's')
            tpl_put_str(b->t, &text, v);
        else if (how == 'r')
            tpl_put_repr(b->t, &text, v);
        else
            tpl_fail(b->t, "Unknown conversion specifier in a format");
        v = tpl_str_from_out(b->t, &text);
        i += 2;
    }
    if (i < to && d[i] != ':')
        tpl_fail(b->t, "expected ':' after conversion specifier");
    put_spec(b->t, out, v, tpl_substr(b->t, b->s, i < to ? i + 1 : to, to).s);
}

tval tpl_format_braces(struct tpl *t, const struct tpl_str *format, const struct tpl_call *call) {
    struct brace_format b = {t, format, call, 0};
    struct tpl_out out = {0};
    const char *d = format->data;
    tpl_charge_bytes(t, format->len);
    for (size_t i = 0; i < format->len; i++) {
        if (d[i] != '{' && d[i] != '}') {
            tpl_out_part(t, &out, format, i, i + 1);
        } else if (i + 1 < format->len && d[i + 1] == d[i]) {
            tpl_out_part(t, &out, format, i, i + 1);
            i++;
        } else {
            size_t end = d[i] == '{' ? tpl_find(d, i, format->len, "}", 1) : SIZE_MAX;
            if (end == SIZE_MAX)
                tpl_fail(t, "Single '%c' encountered in format string", d[i]);
            if (memchr(d + i + 1, '{', end - i - 1))
                tpl_fail(t, "nested replacement fields are not supported");
            braces_field(&b, &out, i + 1, end);
            i = end;
        }
    }
    return tpl_str_from_out(t, &out);
}
