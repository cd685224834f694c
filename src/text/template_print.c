/* SPDX-License-Identifier: Apache-2.0 */
/* template_print.c: values as text, like Python's str() and repr(); HTML escapes; the failure on an
 * Undefined. */
#include "text/template_internal.h"

/* ---- str() and repr() ------------------------------------------------------------------------ */

static void put_repr_str(struct tpl *t, struct tpl_out *out, const struct tpl_str *s) {
    bool has_single = s->len && memchr(s->data, '\'', s->len);
    char quote = has_single && !memchr(s->data, '"', s->len) ? '"' : '\'';
    static const char short_from[] = "\n\r\t\\", short_to[] = "nrt\\";
    tpl_charge_bytes(t, s->len);
    tpl_out_put(t, out, &quote, 1);
    for (size_t i = 0, next = 0; i < s->len; i = next) {
        uint32_t c = utf8_next(s->data, &next);
        const char *known = c && c < 0x80 ? strchr(short_from, (int)c) : NULL;
        if (known || c == (uint32_t)quote) {
            tpl_out_lit(t, out, "\\");
            tpl_out_put(t, out, known ? &short_to[known - short_from] : &quote, 1);
        } else if (c == ' ' || is_printable(c)) {
            tpl_out_part(t, out, s, i, next);
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
        tpl_put_number(t, out, v);
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
        tpl_out_str(t, out, v.s);
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
        tpl_out_part(t, out, s, plain, i);
        tpl_out_put(t, out, to[hit - from], strlen(to[hit - from]));
        plain = i + 1;
    }
    tpl_out_part(t, out, s, plain, s->len);
}

_Noreturn void tpl_fail_undefined(struct tpl *t, tval v) {
    const struct tpl_undef *u = v.undef;
    struct tpl_out repr = {0};
    bool none = u->owner && strcmp(u->owner, "NoneType") == 0;
    const char *owner = !u->owner ? "" : none ? "None" : u->owner, *kind = none ? "" : " object";
    tpl_put_repr(t, &repr, u->name);
    const char *name = tpl_excerpt(t, tpl_str_from_out(t, &repr).s);
    switch (u->kind) {
    case TPL_UNDEF_NAME:
        tpl_fail(t, "%s is undefined", name);
    case TPL_UNDEF_ATTR:
        tpl_fail(t, "'%s%s' has no attribute %s", owner, kind, name);
    case TPL_UNDEF_ITEM:
        tpl_fail(t, "%s%s has no element %s", owner, kind, name);
    case TPL_UNDEF_UNSAFE:
        tpl_fail(t, "access to attribute %s of '%s' object is unsafe.", name, u->owner);
    case TPL_UNDEF_HINT:
        break;
    }
    tpl_fail(t, "%s", owner);
}
