/* SPDX-License-Identifier: Apache-2.0 */
/* template_json.c: values as JSON, like Hugging Face's tojson: json.dumps without HTML escapes. */
#include <math.h>

#include "text/template_internal.h"

static void put_json_str(struct tpl *t, struct tpl_out *out, const struct tpl_str *s, bool ascii) {
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    size_t plain = 0;
    tpl_charge_bytes(t, s->len);
    tpl_out_lit(t, out, "\"");
    for (size_t i = 0, next = 0; i < s->len; i = next) {
        uint32_t c = utf8_next(s->data, &next);
        const char *known = c && c < 0x80 ? strchr(from, (int)c) : NULL;
        if (!known && c >= 0x20 && !(ascii && c > 0x7e))
            continue;
        tpl_out_part(t, out, s, plain, i);
        plain = next;
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
    tpl_out_part(t, out, s, plain, s->len);
    tpl_out_lit(t, out, "\"");
}

struct json_print {
    struct tpl *t;
    struct tpl_out *out;
    const struct tpl_json_style *style;
    size_t level;
};

static void put_json_value(struct json_print *w, tval v);

static void json_break(struct json_print *w) {
    if (!w->style->indented)
        return;
    tpl_out_lit(w->t, w->out, "\n");
    for (size_t i = 0; i < w->level; i++)
        tpl_out_str(w->t, w->out, w->style->indent);
}

static void put_json_float(struct json_print *w, double f) {
    if (isnan(f) || isinf(f))
        tpl_out_printf(w->t, w->out, "%s", isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
    else
        tpl_put_number(w->t, w->out, tpl_float(f));
}

static void put_json_key(struct json_print *w, tval key) {
    if (key.type == TPL_STR) {
        put_json_str(w->t, w->out, key.s, w->style->ascii);
        return;
    }
    if (!tpl_is_number(key) && key.type != TPL_NONE)
        tpl_fail(w->t, "keys must be str, int, float, bool or None, not %s", tpl_type_name(key));
    tpl_out_lit(w->t, w->out, "\"");
    put_json_value(w, key);
    tpl_out_lit(w->t, w->out, "\"");
}

static void put_json_dict(struct json_print *w, const struct tpl_dict *d) {
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
            tpl_out_str(w->t, w->out, w->style->item_sep);
        json_break(w);
        put_json_key(w, keys ? keys[i] : entries[i].key);
        tpl_out_str(w->t, w->out, w->style->key_sep);
        put_json_value(w, values ? values[i] : entries[i].value);
    }
    ASSERT(w->level > 0);
    w->level--;
    json_break(w);
    tpl_out_lit(w->t, w->out, "}");
}

static void put_json_list(struct json_print *w, const struct tpl_list *list) {
    if (!list->n) {
        tpl_out_lit(w->t, w->out, "[]");
        return;
    }
    tpl_out_lit(w->t, w->out, "[");
    w->level++;
    for (size_t i = 0; i < list->n; i++) {
        if (i)
            tpl_out_str(w->t, w->out, w->style->item_sep);
        json_break(w);
        put_json_value(w, list->items[i]);
    }
    w->level--;
    json_break(w);
    tpl_out_lit(w->t, w->out, "]");
}

static void put_json_value(struct json_print *w, tval v) {
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
        tpl_put_number(w->t, w->out, v);
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
    put_json_value(&(struct json_print){t, out, style, 0}, v);
}
