/* SPDX-License-Identifier: Apache-2.0 */
/* template_print.c: values to text: Python's str() and repr(), json.dumps as Hugging Face's tojson
 * calls it, HTML escapes, and the characters and decimal numbers below them.
 *
 * Doubles are printed with the fewest digits that read back as the same double, laid out as
 * Python's repr does (exponent below 1e-4 and from 1e16 on). printf and strtod follow the process's
 * locale: the decimal point is replaced here, so a program that calls setlocale gets the same
 * prompts.
 */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <utf8proc.h>

#include "text/template_internal.h"

/* ---- characters ------------------------------------------------------------------------------ */

size_t tpl_put_utf8(char *to, uint32_t c) {
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)to);
}

uint32_t tpl_utf8_at(const char *s, size_t *len) {
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80) {
        *len = 1;
        return u[0];
    }
    size_t n = u[0] >= 0xf0 ? 4 : u[0] >= 0xe0 ? 3 : 2;
    if (n > *len) { /* a slice of something invalid: not a character, but never read past the end */
        *len = 1;
        return 0xfffd;
    }
    uint32_t c = n == 4 ? u[0] & 0x07u : n == 3 ? u[0] & 0x0fu : u[0] & 0x1fu;
    for (size_t i = 1; i < n; i++)
        c = c << 6 | (u[i] & 0x3fu);
    *len = n;
    return c;
}

bool tpl_is_space(uint32_t c) {
    if (c < 0x80)
        return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool tpl_is_printable(uint32_t c) {
    if (c < 0x80)
        return c >= 0x20 && c < 0x7f;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    default:
        return true;
    }
}

/* ---- numbers --------------------------------------------------------------------------------- */

bool tpl_parse_double(const char *text, size_t len, double *out) {
    char copy[512];
    const char *point = localeconv()->decimal_point;
    size_t n = 0, point_len = strlen(point);
    for (size_t i = 0; i < len; i++) {
        if (n + point_len + 1 >= sizeof copy)
            return false;
        if (text[i] == '.') {
            memcpy(copy + n, point, point_len);
            n += point_len;
        } else if (strchr("0123456789+-eE", text[i]) && text[i]) {
            copy[n++] = text[i];
        } else {
            return false;
        }
    }
    copy[n] = 0;
    char *end;
    *out = strtod(copy, &end);
    return n > 0 && end == copy + n;
}

/* Significant digits and decimal exponent of |value|, the fewest that read back. digits has room
 * for 18. */
static int shortest_digits(double value, char *digits, int *exponent) {
    char text[64];
    int n = 0;
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, fabs(value));
        if (strtod(text, NULL) == fabs(value))
            break;
    }
    char *e = strchr(text, 'e');
    *exponent = (int)strtol(e + 1, NULL, 10);
    for (char *c = text; c < e; c++)
        if (*c >= '0' && *c <= '9') /* the decimal point may be any text */
            digits[n++] = *c;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    return n;
}

size_t tpl_print_double(char *to, double value) {
    char digits[32], *o = to;
    int exponent;
    if (isnan(value) || isinf(value))
        return (size_t)sprintf(to, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
    int n = shortest_digits(value, digits, &exponent);
    if (signbit(value))
        *o++ = '-';
    if (exponent < -4 || exponent >= 16) {
        *o++ = digits[0];
        if (n > 1)
            *o++ = '.';
        memcpy(o, digits + 1, (size_t)n - 1);
        o += n - 1;
        o += sprintf(o, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return (size_t)(o - to);
    }
    for (int i = exponent < 0 ? exponent : 0; i < n || i <= exponent + 1; i++) {
        if (i == exponent + 1)
            *o++ = '.';
        *o++ = i >= 0 && i < n ? digits[i] : '0';
    }
    return (size_t)(o - to);
}

void tpl_put_double(struct tpl *t, struct tpl_out *out, double value, char conversion,
                    int precision, bool alternate) {
    char format[8], text[800]; /* 309 digits, the point, MAX_PRECISION more */
    snprintf(format, sizeof format, alternate ? "%%#.*%c" : "%%.*%c", conversion);
    int n = snprintf(text, sizeof text, format, precision, value);
    if (n < 0 || (size_t)n >= sizeof text)
        tpl_fail(t, "a number with too many digits");
    const char *point = localeconv()->decimal_point, *at = strstr(text, point);
    if (!at) {
        tpl_out_put(t, out, text, (size_t)n);
        return;
    }
    tpl_out_put(t, out, text, (size_t)(at - text));
    tpl_out_lit(t, out, ".");
    at += strlen(point);
    tpl_out_put(t, out, at, strlen(at));
}

static void put_number(struct tpl *t, struct tpl_out *out, tval v) {
    char text[TPL_FLOAT_CHARS];
    if (v.type == TPL_INT)
        tpl_out_printf(t, out, "%lld", (long long)v.i);
    else
        tpl_out_put(t, out, text, tpl_print_double(text, v.f));
}

/* ---- str() and repr() ------------------------------------------------------------------------ */

static void put_repr_str(struct tpl *t, struct tpl_out *out, const struct tpl_str *s) {
    bool has_single = s->len && memchr(s->data, '\'', s->len);
    char quote = has_single && !memchr(s->data, '"', s->len) ? '"' : '\'';
    static const char short_from[] = "\n\r\t\\", short_to[] = "nrt\\";
    tpl_charge_bytes(t, s->len);
    tpl_out_put(t, out, &quote, 1);
    for (size_t i = 0, n; i < s->len; i += n) {
        n = s->len - i;
        uint32_t c = tpl_utf8_at(s->data + i, &n);
        const char *known = c && c < 0x80 ? strchr(short_from, (int)c) : NULL;
        if (known || c == (uint32_t)quote) {
            tpl_out_lit(t, out, "\\");
            tpl_out_put(t, out, known ? &short_to[known - short_from] : &quote, 1);
        } else if (c == ' ' || tpl_is_printable(c)) {
            tpl_out_put(t, out, s->data + i, n);
        } else {
            tpl_out_printf(t, out,
                           c < 0x100     ? "\\x%02x"
                           : c < 0x10000 ? "\\u%04x"
                                         : "\\U%08x",
                           (unsigned)c);
        }
    }
    tpl_out_put(t, out, &quote, 1);
}

static void put_repr_items(struct tpl *t, struct tpl_out *out, tval v, const char *open,
                           const char *close) {
    bool items = v.type == TPL_VIEW, first = true;
    tpl_out_put(t, out, open, strlen(open));
    struct tpl_iter it = tpl_iter_begin(t, v);
    for (tval item; tpl_iter_next(t, &it, &item); first = false) {
        if (!first)
            tpl_out_lit(t, out, ", ");
        tpl_put_repr(t, out, item);
    }
    if (v.type == TPL_TUPLE && v.list->n == 1)
        tpl_out_lit(t, out, ",");
    tpl_out_put(t, out, close, strlen(close));
    if (items)
        tpl_out_lit(t, out, ")");
}

static void put_repr_dict(struct tpl *t, struct tpl_out *out, const struct tpl_dict *d) {
    tpl_out_lit(t, out, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            tpl_out_lit(t, out, ", ");
        tpl_put_repr(t, out, d->entries[i].key);
        tpl_out_lit(t, out, ": ");
        tpl_put_repr(t, out, d->entries[i].value);
    }
    tpl_out_lit(t, out, "}");
}

static void put_repr_range(struct tpl *t, struct tpl_out *out, const struct tpl_range *r) {
    long long start = r->start, stop = start + (long long)r->n * r->step;
    tpl_out_printf(t, out, "range(%lld, %lld", start, stop);
    if (r->step != 1)
        tpl_out_printf(t, out, ", %lld", (long long)r->step);
    tpl_out_lit(t, out, ")");
}

void tpl_put_repr(struct tpl *t, struct tpl_out *out, tval v) {
    tpl_charge(t, 1);
    tpl_enter(t);
    switch (v.type) {
    case TPL_UNSET:
    case TPL_UNDEFINED:
        tpl_out_lit(t, out, "Undefined");
        break;
    case TPL_NONE:
        tpl_out_lit(t, out, "None");
        break;
    case TPL_BOOL:
        tpl_out_put(t, out, v.b ? "True" : "False", v.b ? 4 : 5);
        break;
    case TPL_INT:
    case TPL_FLOAT:
        put_number(t, out, v);
        break;
    case TPL_STR:
        if (v.s->markup)
            tpl_out_lit(t, out, "Markup(");
        put_repr_str(t, out, v.s);
        if (v.s->markup)
            tpl_out_lit(t, out, ")");
        break;
    case TPL_LIST:
        put_repr_items(t, out, v, "[", "]");
        break;
    case TPL_TUPLE:
        put_repr_items(t, out, v, "(", ")");
        break;
    case TPL_VIEW:
        tpl_out_printf(t, out, "%s(", tpl_type_name(v));
        put_repr_items(t, out, v, "[", "]");
        break;
    case TPL_DICT:
        put_repr_dict(t, out, v.dict);
        break;
    case TPL_SPACE:
        tpl_out_lit(t, out, "<Namespace ");
        put_repr_dict(t, out, v.dict);
        tpl_out_lit(t, out, ">");
        break;
    case TPL_RANGE:
        put_repr_range(t, out, v.range);
        break;
    case TPL_MACRO:
        tpl_out_lit(t, out, "<Macro ");
        put_repr_str(t, out, t->tmpl->names[v.macro->node->name]);
        tpl_out_lit(t, out, ">");
        break;
    case TPL_CURSOR:
    case TPL_FUNCTION:
    case TPL_METHOD:
    case TPL_LOOP:
        tpl_out_printf(t, out, "<%s object>", tpl_type_name(v));
        break;
    }
    tpl_leave(t);
}

void tpl_put_str(struct tpl *t, struct tpl_out *out, tval v) {
    if (v.type == TPL_STR)
        tpl_out_put(t, out, v.s->data, v.s->len);
    else if (!tpl_is_missing(v))
        tpl_put_repr(t, out, v);
}

const struct tpl_str *tpl_to_str(struct tpl *t, tval v) {
    if (v.type == TPL_STR)
        return v.s;
    struct tpl_out out = {0};
    tpl_put_str(t, &out, v);
    return tpl_str_from_out(t, &out).s;
}

void tpl_put_escaped(struct tpl *t, struct tpl_out *out, const struct tpl_str *s) {
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    size_t plain = 0;
    tpl_charge_bytes(t, s->len);
    for (size_t i = 0; i < s->len; i++) {
        const char *hit = s->data[i] ? strchr(from, s->data[i]) : NULL;
        if (!hit)
            continue;
        tpl_out_put(t, out, s->data + plain, i - plain);
        tpl_out_put(t, out, to[hit - from], strlen(to[hit - from]));
        plain = i + 1;
    }
    tpl_out_put(t, out, s->data + plain, s->len - plain);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_json_str(struct tpl *t, struct tpl_out *out, const struct tpl_str *s, bool ascii) {
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    size_t plain = 0;
    tpl_charge_bytes(t, s->len);
    tpl_out_lit(t, out, "\"");
    for (size_t i = 0, n; i < s->len; i += n) {
        n = s->len - i;
        uint32_t c = tpl_utf8_at(s->data + i, &n);
        const char *known = c && c < 0x80 ? strchr(from, (int)c) : NULL;
        if (!known && c >= 0x20 && !(ascii && c > 0x7e))
            continue;
        tpl_out_put(t, out, s->data + plain, i - plain);
        plain = i + n;
        if (known) {
            tpl_out_lit(t, out, "\\");
            tpl_out_put(t, out, &to[known - from], 1);
        } else if (c < 0x10000) {
            tpl_out_printf(t, out, "\\u%04x", (unsigned)c);
        } else {
            tpl_out_printf(t, out, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((c - 0x10000) >> 10)),
                           (unsigned)(0xdc00 + (c & 0x3ff)));
        }
    }
    tpl_out_put(t, out, s->data + plain, s->len - plain);
    tpl_out_lit(t, out, "\"");
}

struct json_writer {
    struct tpl *t;
    struct tpl_out *out;
    const struct tpl_json_style *style;
    size_t level;
};

static void put_json(struct json_writer *w, tval v);

static void json_break(struct json_writer *w) {
    if (!w->style->indented)
        return;
    tpl_out_lit(w->t, w->out, "\n");
    for (size_t i = 0; i < w->level; i++)
        tpl_out_put(w->t, w->out, w->style->indent->data, w->style->indent->len);
}

static void put_json_float(struct json_writer *w, double f) {
    if (isnan(f) || isinf(f))
        tpl_out_printf(w->t, w->out, "%s", isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
    else
        put_number(w->t, w->out, tpl_float(f));
}

static void put_json_key(struct json_writer *w, tval key) {
    if (key.type == TPL_STR) {
        put_json_str(w->t, w->out, key.s, w->style->ascii);
        return;
    }
    if (!tpl_is_number(key) && key.type != TPL_NONE)
        tpl_fail(w->t, "keys must be str, int, float, bool or None, not %s", tpl_type_name(key));
    tpl_out_lit(w->t, w->out, "\"");
    put_json(w, key);
    tpl_out_lit(w->t, w->out, "\"");
}

static void put_json_dict(struct json_writer *w, const struct tpl_dict *d) {
    const struct tpl_entry *entries = d->entries;
    if (!d->n) {
        tpl_out_lit(w->t, w->out, "{}");
        return;
    }
    tval *keys = NULL, *values = NULL;
    if (w->style->sort) {
        keys = tpl_alloc(w->t, d->n, sizeof *keys);
        values = tpl_alloc(w->t, d->n, sizeof *values);
        for (size_t i = 0; i < d->n; i++) {
            keys[i] = entries[i].key;
            values[i] = entries[i].value;
        }
        tpl_sort(w->t, keys, values, d->n, false);
    }
    tpl_out_lit(w->t, w->out, "{");
    w->level++;
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            tpl_out_put(w->t, w->out, w->style->item_sep->data, w->style->item_sep->len);
        json_break(w);
        put_json_key(w, keys ? keys[i] : entries[i].key);
        tpl_out_put(w->t, w->out, w->style->key_sep->data, w->style->key_sep->len);
        put_json(w, values ? values[i] : entries[i].value);
    }
    w->level--;
    json_break(w);
    tpl_out_lit(w->t, w->out, "}");
}

static void put_json_list(struct json_writer *w, const struct tpl_list *list) {
    if (!list->n) {
        tpl_out_lit(w->t, w->out, "[]");
        return;
    }
    tpl_out_lit(w->t, w->out, "[");
    w->level++;
    for (size_t i = 0; i < list->n; i++) {
        if (i)
            tpl_out_put(w->t, w->out, w->style->item_sep->data, w->style->item_sep->len);
        json_break(w);
        put_json(w, list->items[i]);
    }
    w->level--;
    json_break(w);
    tpl_out_lit(w->t, w->out, "]");
}

static void put_json(struct json_writer *w, tval v) {
    tpl_charge(w->t, 1);
    tpl_enter(w->t);
    switch (v.type) {
    case TPL_NONE:
        tpl_out_lit(w->t, w->out, "null");
        break;
    case TPL_BOOL:
        tpl_out_put(w->t, w->out, v.b ? "true" : "false", v.b ? 4 : 5);
        break;
    case TPL_INT:
        put_number(w->t, w->out, v);
        break;
    case TPL_FLOAT:
        put_json_float(w, v.f);
        break;
    case TPL_STR:
        put_json_str(w->t, w->out, v.s, w->style->ascii);
        break;
    case TPL_LIST:
    case TPL_TUPLE:
        put_json_list(w, v.list);
        break;
    case TPL_DICT:
        put_json_dict(w, v.dict);
        break;
    default:
        tpl_fail(w->t, "Object of type %s is not JSON serializable", tpl_type_name(v));
    }
    tpl_leave(w->t);
}

void tpl_put_json(struct tpl *t, struct tpl_out *out, tval v, const struct tpl_json_style *style) {
    put_json(&(struct json_writer){t, out, style, 0}, v);
}
