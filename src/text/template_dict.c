/* SPDX-License-Identifier: Apache-2.0 */
/* template_dict.c: equality of values, and ordered dictionaries. Keys are equal as in Python: 1,
 * 1.0 and True are one key.
 *
 *     entries  [ key value hash ][ ... ]          in order of first insertion
 *     index    [ 0 ][ 2 ][ 0 ][ 1 ] ...           entry number + 1, at or after hash & mask
 *
 * Small dictionaries have no index. The hash of a string is FNV-1a. Each probe is charged as a
 * step, so the step limit stops a template or request that makes keys collide on purpose.
 */
#include <math.h>

#include "text/template_internal.h"

#define INDEX_FROM 8 /* up to here a scan of the hashes is as fast */

struct tpl_dict *tpl_dict_new(struct tpl *t) {
    return tpl_alloc(t, 1, sizeof(struct tpl_dict));
}

bool tpl_is_hashable(struct tpl *t, tval v) {
    bool hashable = v.type != TPL_LIST && v.type != TPL_DICT && v.type != TPL_VIEW;
    tpl_enter(t);
    for (size_t i = 0; v.type == TPL_TUPLE && hashable && i < v.list->n; i++) {
        tpl_charge(t, 1);
        hashable = tpl_is_hashable(t, v.list->items[i]);
    }
    tpl_leave(t);
    return hashable;
}

static uint64_t hash_value(struct tpl *t, tval v) {
    uint64_t h = TPL_TUPLE;
    int64_t i;
    if (v.type == TPL_STR) {
        tpl_charge_bytes(t, v.s->len);
        return mix_bits(hash_fnv1a(v.s->data, v.s->len));
    }
    if (tpl_as_int(v, &i))
        return mix_bits((uint64_t)i);
    switch (v.type) {
    case TPL_FLOAT:
        if (v.f >= -9e18 && v.f <= 9e18)
            return mix_bits((uint64_t)(int64_t)v.f); /* as the hash of an equal integer */
        return 1;
    case TPL_TUPLE:
        tpl_enter(t);
        for (size_t k = 0; k < v.list->n; k++)
            h = mix_bits(h ^ hash_value(t, v.list->items[k]));
        tpl_charge(t, v.list->n);
        tpl_leave(t);
        return h;
    case TPL_LIST:
    case TPL_DICT:
    case TPL_VIEW:
        tpl_fail(t, "unhashable type: '%s'", tpl_type_name(v));
    default:
        return (uint64_t)v.type;
    }
}

static struct tpl_entry *dict_find(struct tpl *t, const struct tpl_dict *d, tval key,
                                   uint64_t hash) {
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (d->entries[i].hash == hash && tpl_equal(t, d->entries[i].key, key))
                return &d->entries[i];
        return NULL;
    }
    size_t mask = d->index_size - 1;
    for (size_t slot = hash & mask; d->index[slot]; slot = (slot + 1) & mask) {
        DEBUG_ASSERT(d->index[slot] <= d->n);
        struct tpl_entry *e = &d->entries[d->index[slot] - 1];
        tpl_charge(t, 1);
        if (e->hash == hash && tpl_equal(t, e->key, key))
            return e;
    }
    return NULL;
}

static void dict_index_add(struct tpl_dict *d, size_t entry) {
    size_t mask = d->index_size - 1, slot = d->entries[entry].hash & mask;
    while (d->index[slot])
        slot = (slot + 1) & mask;
    d->index[slot] = (uint32_t)entry + 1;
}

static void dict_grow(struct tpl *t, struct tpl_dict *d) {
    if (d->cap > UINT32_MAX / 4)
        tpl_fail(t, "the dictionary has more than %zu entries", d->cap);
    TPL_GROW(t, t->arena, d->entries, d->n, d->cap, 4);
    if (d->cap <= INDEX_FROM)
        return;
    d->index_size = d->cap * 2; /* cap is a power of two: at most half full */
    d->index = tpl_alloc(t, d->index_size, sizeof *d->index);
    ASSERT((d->index_size & (d->index_size - 1)) == 0 && d->n < d->index_size);
    for (size_t i = 0; i < d->n; i++)
        dict_index_add(d, i);
}

void tpl_dict_set(struct tpl *t, struct tpl_dict *d, tval key, tval value) {
    uint64_t hash = hash_value(t, key);
    struct tpl_entry *e = dict_find(t, d, key, hash);
    if (e) {
        e->value = value;
        return;
    }
    if (d->n == d->cap)
        dict_grow(t, d);
    ASSERT(d->n < d->cap);
    d->entries[d->n++] = (struct tpl_entry){key, value, hash};
    if (d->index)
        dict_index_add(d, d->n - 1);
}

const tval *tpl_dict_get(struct tpl *t, const struct tpl_dict *d, tval key) {
    struct tpl_entry *e = dict_find(t, d, key, hash_value(t, key));
    return e ? &e->value : NULL;
}

/* ---- equality -------------------------------------------------------------------------------- */

/* -1, 0 or 1; 2 if one is NaN. */
int tpl_order_numbers(tval a, tval b) {
    if (a.type != TPL_FLOAT && b.type != TPL_FLOAT) {
        int64_t x, y;
        tpl_as_int(a, &x);
        tpl_as_int(b, &y);
        return x < y ? -1 : x > y;
    }
    if (a.type == TPL_FLOAT && b.type == TPL_FLOAT)
        return a.f < b.f ? -1 : a.f > b.f ? 1 : a.f == b.f ? 0 : 2;
    bool swapped = a.type == TPL_FLOAT;
    double f = swapped ? a.f : b.f;
    int64_t i;
    tpl_as_int(swapped ? b : a, &i);
    int order; /* of i and f */
    if (isnan(f))
        return 2;
    if (f >= 9223372036854775808.0)
        order = -1;
    else if (f < -9223372036854775808.0)
        order = 1;
    else {
        int64_t whole = (int64_t)f;
        double rest = f - (double)whole;
        order = i < whole ? -1 : i > whole ? 1 : rest > 0 ? -1 : rest < 0;
    }
    return swapped ? -order : order;
}

static bool equal_lists(struct tpl *t, const struct tpl_list *a, const struct tpl_list *b) {
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!tpl_equal(t, a->items[i], b->items[i]))
            return false;
    return true;
}

static bool equal_dicts(struct tpl *t, const struct tpl_dict *a, const struct tpl_dict *b) {
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const tval *other = tpl_dict_get(t, b, a->entries[i].key);
        if (!other || !tpl_equal(t, a->entries[i].value, *other))
            return false;
    }
    return true;
}

static bool equal_same_type(struct tpl *t, tval a, tval b) {
    switch (a.type) {
    case TPL_UNSET:
    case TPL_UNDEFINED:
    case TPL_NONE:
        return true;
    case TPL_LIST:
    case TPL_TUPLE:
        return equal_lists(t, a.list, b.list);
    case TPL_DICT:
        return equal_dicts(t, a.dict, b.dict);
    case TPL_VIEW:
        return a.view->kind == b.view->kind && a.view->kind != TPL_VALUES &&
               equal_dicts(t, a.view->dict, b.view->dict);
    case TPL_RANGE:
        return a.range->n == b.range->n &&
               (a.range->n == 0 || (a.range->start == b.range->start &&
                                    (a.range->n == 1 || a.range->step == b.range->step)));
    case TPL_METHOD:
        return a.method->builtin == b.method->builtin &&
               tpl_equal(t, a.method->self, b.method->self);
    default:
        return a.macro == b.macro; /* the same object */
    }
}

bool tpl_equal(struct tpl *t, tval a, tval b) {
    tpl_charge(t, 1);
    if (tpl_is_number(a) && tpl_is_number(b))
        return tpl_order_numbers(a, b) == 0;
    if (a.type != b.type)
        return false;
    if (a.type == TPL_STR) {
        tpl_charge_bytes(t, a.s->len);
        return tpl_str_equal(a.s, b.s);
    }
    tpl_enter(t);
    bool equal = equal_same_type(t, a, b);
    tpl_leave(t);
    return equal;
}
