/* SPDX-License-Identifier: Apache-2.0 */
/* template_value.c: makes and reads values: strings, lists, Undefined, iteration.
 *
 * `x + y` of strings and lists copies x only if something was already appended to x. Otherwise y is
 * written after x and both share the buffer, because what x covers never changes:
 *
 *     buffer  [ h e l l o   w o r l d . . . . ]     used = 11, cap = 16
 *     x       [ h e l l o ]      x + " world"  [ h e l l o   w o r l d ]
 */
#define _GNU_SOURCE /* memmem */
#include "text/template_internal.h"

/* ---- strings --------------------------------------------------------------------------------- */

static size_t count_chars(const char *data, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += !utf8_is_inside(data[i]);
    return n;
}

static struct tpl_str *str_over(struct tpl *t, const char *data, size_t len) {
    struct tpl_str *s = tpl_alloc(t, 1, sizeof *s);
    s->data = data;
    s->len = len;
    s->chars = count_chars(data, len);
    return s;
}

tval tpl_str_borrow(struct tpl *t, const char *data, size_t len) {
    return tpl_from_str(str_over(t, data, len));
}

tval tpl_str_by(struct tpl *t, const char *data, size_t len, enum kvasir_author author) {
    struct tpl_str *s = str_over(t, data, len);
    s->by.all = (uint8_t)author;
    return tpl_from_str(s);
}

tval tpl_str_own(struct tpl *t, const char *data, size_t len) {
    return tpl_str_by(t, data, len, KVASIR_BY_TEMPLATE);
}

tval tpl_str_copy(struct tpl *t, const char *data, size_t len) {
    char *copy = tpl_arena_take(t, t->arena, len);
    if (len)
        memcpy(copy, data, len);
    return tpl_str_borrow(t, copy, len);
}

tval tpl_str_from_out(struct tpl *t, const struct tpl_out *out) {
    if (!out->data)
        return tpl_str_borrow(t, "", 0);
    struct tpl_strbuf *buf = tpl_alloc(t, 1, sizeof *buf);
    *buf = (struct tpl_strbuf){out->data, out->len, out->cap, out->by};
    struct tpl_str *s = str_over(t, out->data, out->len);
    s->buf = buf;
    s->by = out->by;
    return tpl_from_str(s);
}

tval tpl_str_join2(struct tpl *t, const struct tpl_str *a, const struct tpl_str *b) {
    if (!b->len && a->markup == b->markup)
        return tpl_from_str(a);
    struct tpl_str *s = tpl_alloc(t, 1, sizeof *s);
    tpl_charge_bytes(t, b->len);
    struct tpl_strbuf *buf = a->buf;
    bool last = buf && a->data + a->len == buf->data + buf->used;
    if (!last || buf->cap - buf->used < b->len) {
        size_t need = a->len + b->len, cap = need < 256 ? need : need * 2;
        tpl_charge_bytes(t, a->len);
        buf = tpl_alloc(t, 1, sizeof *buf);
        *buf = (struct tpl_strbuf){
            .data = tpl_arena_take(t, t->arena, cap), .used = a->len, .cap = cap};
        if (a->len)
            memcpy(buf->data, a->data, a->len);
        tpl_note_authors(t, &buf->by, 0, cap, a->by, a->len);
        s->data = buf->data;
    } else {
        s->data = a->data;
    }
    ASSERT(b->len <= buf->cap - buf->used && s->data == buf->data);
    tpl_note_authors(t, &buf->by, buf->used, buf->cap, b->by, b->len);
    if (b->len)
        memcpy(buf->data + buf->used, b->data, b->len);
    buf->used += b->len;
    s->by = buf->by;
    s->len = a->len + b->len;
    s->chars = a->chars + b->chars;
    s->buf = buf;
    s->markup = a->markup || b->markup;
    return tpl_from_str(s);
}

tval tpl_str_marked(struct tpl *t, const struct tpl_str *s, bool markup) {
    if (s->markup == markup)
        return tpl_from_str(s);
    struct tpl_str *copy = tpl_alloc(t, 1, sizeof *copy);
    *copy = *s;
    copy->markup = markup;
    return tpl_from_str(copy);
}

tval tpl_str_like(struct tpl *t, tval v, const struct tpl_str *model) {
    return tpl_str_marked(t, v.s, model->markup);
}

bool tpl_str_is(tval v, const char *text) {
    return v.type == TPL_STR && v.s->len == strlen(text) && memcmp(v.s->data, text, v.s->len) == 0;
}

bool tpl_str_equal(const struct tpl_str *a, const struct tpl_str *b) {
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

size_t tpl_str_offset(const struct tpl_str *s, size_t chars) {
    if (s->chars == s->len || chars >= s->chars)
        return chars < s->chars ? chars : s->len;
    size_t i = 0;
    for (size_t seen = 0; i < s->len; i++)
        if (!utf8_is_inside(s->data[i]) && seen++ == chars)
            break;
    return i;
}

size_t tpl_find(const char *hay, size_t from, size_t to, const char *needle, size_t len) {
    const char *hit = len == 1 ? memchr(hay + from, needle[0], to - from)
                               : memmem(hay + from, to - from, needle, len); /* glibc's is linear */
    return hit ? (size_t)(hit - hay) : SIZE_MAX;
}

const char *tpl_excerpt(struct tpl *t, const struct tpl_str *s) {
    size_t n = s->len;
    if (n > 60)
        for (n = 57; n && utf8_is_inside(s->data[n]);)
            n--;
    char *text = tpl_alloc(t, n + 4, 1);
    memcpy(text, s->data, n);
    memcpy(text + n, n < s->len ? "..." : "", n < s->len ? 3 : 0);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20)
            *c = ' ';
    return text;
}

tval tpl_substr(struct tpl *t, const struct tpl_str *s, size_t from, size_t to) {
    DEBUG_ASSERT(from <= s->len && to <= s->len);
    struct tpl_str *part = str_over(t, s->data + from, to > from ? to - from : 0);
    part->markup = s->markup;
    part->by = tpl_authors_from(s, from);
    return tpl_from_str(part);
}

/* ---- lists ----------------------------------------------------------------------------------- */

static tval list_over(struct tpl *t, enum tpl_type type, const tval *items, size_t n,
                      struct tpl_listbuf *buf) {
    struct tpl_list *list = tpl_alloc(t, 1, sizeof *list);
    list->items = items;
    list->n = n;
    list->buf = buf;
    return (tval){.type = type, .list = list};
}

tval tpl_list_of(struct tpl *t, enum tpl_type type, const tval *items, size_t n) {
    tval *copy = tpl_alloc(t, n, sizeof *copy);
    if (n)
        memcpy(copy, items, n * sizeof *copy);
    return list_over(t, type, copy, n, NULL);
}

tval tpl_list_join2(struct tpl *t, tval a, tval b) {
    const struct tpl_list *x = a.list, *y = b.list;
    struct tpl_listbuf *buf = x->buf;
    bool last = buf && x->items + x->n == buf->items + buf->used;
    tpl_charge(t, y->n);
    if (!last || buf->cap - buf->used < y->n) {
        size_t cap = (x->n + y->n) * 2;
        tpl_charge(t, x->n);
        buf = tpl_alloc(t, 1, sizeof *buf);
        *buf = (struct tpl_listbuf){tpl_alloc(t, cap, sizeof(tval)), x->n, cap};
        if (x->n)
            memcpy(buf->items, x->items, x->n * sizeof(tval));
    }
    ASSERT(y->n <= buf->cap - buf->used);
    if (y->n)
        memcpy(buf->items + buf->used, y->items, y->n * sizeof(tval));
    buf->used += y->n;
    return list_over(t, a.type, buf->items, x->n + y->n, buf);
}

void tpl_items_push(struct tpl *t, struct tpl_items *into, tval v) {
    TPL_GROW(t, t->arena, into->items, into->n, into->cap, 8);
    into->items[into->n++] = v;
}

tval tpl_items_finish(struct tpl *t, const struct tpl_items *items, enum tpl_type type) {
    if (type != TPL_CURSOR)
        return list_over(t, type, items->items, items->n, NULL);
    struct tpl_cursor *c = tpl_alloc(t, 1, sizeof *c);
    c->list = list_over(t, TPL_LIST, items->items, items->n, NULL).list;
    return (tval){.type = TPL_CURSOR, .cursor = c};
}

tval tpl_pair(struct tpl *t, tval a, tval b) {
    return tpl_list_of(t, TPL_TUPLE, (tval[]){a, b}, 2);
}

/* ---- Undefined ------------------------------------------------------------------------------- */

tval tpl_undef(struct tpl *t, enum tpl_undef_kind kind, const char *owner, tval name) {
    struct tpl_undef *u = tpl_alloc(t, 1, sizeof *u);
    *u = (struct tpl_undef){kind, owner, name};
    return (tval){.type = TPL_UNDEFINED, .undef = u};
}

tval tpl_undef_name(struct tpl *t, const struct tpl_str *name) {
    return tpl_undef(t, TPL_UNDEF_NAME, NULL, tpl_from_str(name));
}

tval tpl_undef_hint(struct tpl *t, const char *text) {
    return tpl_undef(t, TPL_UNDEF_HINT, text, tpl_none());
}

tval tpl_undef_attr(struct tpl *t, tval owner, tval name) {
    return tpl_undef(t, name.type == TPL_STR ? TPL_UNDEF_ATTR : TPL_UNDEF_ITEM,
                     tpl_type_name(owner), name);
}

/* ---- reading --------------------------------------------------------------------------------- */

const char *tpl_type_name(tval v) {
    static const char *const names[] = {
        [TPL_UNSET] = "nothing",     [TPL_UNDEFINED] = "Undefined",
        [TPL_NONE] = "NoneType",     [TPL_BOOL] = "bool",
        [TPL_INT] = "int",           [TPL_FLOAT] = "float",
        [TPL_STR] = "str",           [TPL_LIST] = "list",
        [TPL_TUPLE] = "tuple",       [TPL_DICT] = "dict",
        [TPL_CURSOR] = "generator",  [TPL_RANGE] = "range",
        [TPL_SPACE] = "Namespace",   [TPL_MACRO] = "Macro",
        [TPL_FUNCTION] = "function", [TPL_METHOD] = "builtin_function_or_method",
        [TPL_LOOP] = "LoopContext",
    };
    static const char *const views[] = {"dict_keys", "dict_values", "dict_items"};
    _Static_assert(COUNT(names) == TPL_LOOP + 1, "every type has a name");
    _Static_assert(COUNT(views) == TPL_ITEMS + 1, "every view has a name");
    if (v.type == TPL_VIEW)
        return views[v.view->kind];
    return v.type == TPL_STR && v.s->markup ? "Markup" : names[v.type];
}

bool tpl_has_length(tval v) {
    return v.type == TPL_STR || v.type == TPL_LIST || v.type == TPL_TUPLE || v.type == TPL_DICT ||
           v.type == TPL_VIEW || v.type == TPL_RANGE || v.type == TPL_UNDEFINED;
}

static size_t length_of(tval v) {
    switch (v.type) {
    case TPL_STR:
        return v.s->chars;
    case TPL_LIST:
    case TPL_TUPLE:
        return v.list->n;
    case TPL_DICT:
        return v.dict->n;
    case TPL_VIEW:
        return v.view->dict->n;
    case TPL_RANGE:
        return v.range->n;
    default:
        return 0;
    }
}

size_t tpl_length(struct tpl *t, tval v) {
    if (!tpl_has_length(v))
        tpl_fail(t, "object of type '%s' has no len()", tpl_type_name(v));
    return length_of(v);
}

bool tpl_truth(tval v) {
    switch (v.type) {
    case TPL_UNSET:
    case TPL_UNDEFINED:
    case TPL_NONE:
        return false;
    case TPL_BOOL:
        return v.b;
    case TPL_INT:
        return v.i != 0;
    case TPL_FLOAT:
        return v.f != 0;
    default:
        return !tpl_has_length(v) || length_of(v) > 0;
    }
}

tval tpl_item(struct tpl *t, tval v, size_t i) {
    DEBUG_ASSERT(i < length_of(v));
    if (v.type == TPL_RANGE)
        return tpl_int(v.range->start + (int64_t)i * v.range->step);
    if (v.type == TPL_STR) {
        size_t from = tpl_str_offset(v.s, i), to = from;
        tpl_charge_bytes(t, from);
        (void)utf8_next(v.s->data, &to);
        return tpl_substr(t, v.s, from, to);
    }
    return v.list->items[i];
}

bool tpl_as_int(tval v, int64_t *out) {
    *out = v.type == TPL_BOOL ? v.b : v.type == TPL_INT ? v.i : 0;
    return v.type == TPL_BOOL || v.type == TPL_INT;
}

double tpl_as_double(tval v) {
    return v.type == TPL_FLOAT ? v.f : v.type == TPL_BOOL ? (double)v.b : (double)v.i;
}

/* ---- iteration ------------------------------------------------------------------------------- */

bool tpl_is_iterable(tval v) {
    return tpl_has_length(v) || v.type == TPL_CURSOR || v.type == TPL_LOOP;
}

struct tpl_iter tpl_iter_begin(struct tpl *t, tval v) {
    if (!tpl_is_iterable(v) || v.type == TPL_LOOP)
        tpl_fail(t, "'%s' object is not iterable", tpl_type_name(v));
    return (struct tpl_iter){.of = v};
}

static tval view_item(struct tpl *t, const struct tpl_dict *d, enum tpl_view_kind kind, size_t i) {
    const struct tpl_entry *e = &d->entries[i];
    return kind == TPL_KEYS     ? e->key
           : kind == TPL_VALUES ? e->value
                                : tpl_pair(t, e->key, e->value);
}

bool tpl_iter_next(struct tpl *t, struct tpl_iter *it, tval *out) {
    tval v = it->of;
    tpl_charge(t, 1);
    if (v.type == TPL_CURSOR) {
        DEBUG_ASSERT(v.cursor->next <= v.cursor->list->n);
        if (v.cursor->next >= v.cursor->list->n)
            return false;
        *out = v.cursor->list->items[v.cursor->next++];
        return true;
    }
    if (v.type == TPL_STR) {
        if (it->next >= v.s->len)
            return false;
        size_t from = it->next;
        (void)utf8_next(v.s->data, &it->next);
        tval c = tpl_substr(t, v.s, from, it->next);
        *out = tpl_str_marked(t, c.s, false);
        return true;
    }
    if (it->next >= length_of(v))
        return false;
    size_t i = it->next++;
    if (v.type == TPL_DICT)
        *out = v.dict->entries[i].key;
    else if (v.type == TPL_VIEW)
        *out = view_item(t, v.view->dict, v.view->kind, i);
    else
        *out = tpl_item(t, v, i);
    return true;
}

const struct tpl_list *tpl_to_list(struct tpl *t, tval v) {
    if (v.type == TPL_LIST || v.type == TPL_TUPLE)
        return v.list;
    struct tpl_items items = {0};
    struct tpl_iter it = tpl_iter_begin(t, v);
    for (tval item; tpl_iter_next(t, &it, &item);)
        tpl_items_push(t, &items, item);
    return tpl_items_finish(t, &items, TPL_LIST).list;
}
