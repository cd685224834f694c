/* SPDX-License-Identifier: Apache-2.0 */
/* template_dict.c: ordered dictionaries with Python's idea of equal keys (1, 1.0 and True are one
 * key).
 *
 *     entries  [ key value hash ][ ... ]          in order of first insertion
 *     index    [ 0 ][ 2 ][ 0 ][ 1 ] ...           entry number + 1 at hash & (size - 1), probed on
 *
 * Small dictionaries have no index. The hash of text is FNV-1a: a template or a request that
 * collides keys on purpose is stopped by the step limit, as each probe past the first few is
 * charged.
 */
#include "text/template_internal.h"

#define INDEX_FROM 8 /* up to here a scan over hashes is as fast */

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

static uint64_t mix(uint64_t h) {
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdu;
    h ^= h >> 33;
    return h;
}

static uint64_t hash_value(struct tpl *t, tval v) {
    uint64_t h = 14695981039346656037u;
    int64_t i;
    if (v.type == TPL_STR) {
        for (size_t k = 0; k < v.s->len; k++)
            h = (h ^ (unsigned char)v.s->data[k]) * 1099511628211u;
        tpl_charge_bytes(t, v.s->len);
        return mix(h);
    }
    if (tpl_as_int(v, &i))
        return mix((uint64_t)i);
    switch (v.type) {
    case TPL_FLOAT:
        if (v.f >= -9e18 && v.f <= 9e18)
            return mix((uint64_t)(int64_t)v.f); /* equal to the hash of an equal integer */
        return 1;
    case TPL_TUPLE:
        tpl_enter(t);
        for (size_t k = 0; k < v.list->n; k++)
            h = (h ^ hash_value(t, v.list->items[k])) * 1099511628211u;
        tpl_charge(t, v.list->n);
        tpl_leave(t);
        return mix(h);
    case TPL_LIST:
    case TPL_DICT:
    case TPL_VIEW:
        tpl_fail(t, "unhashable type: '%s'", tpl_type_name(v));
    default:
        return (uint64_t)v.type;
    }
}

static struct tpl_entry *find(struct tpl *t, const struct tpl_dict *d, tval key, uint64_t hash) {
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (d->entries[i].hash == hash && tpl_equal(t, d->entries[i].key, key))
                return &d->entries[i];
        return NULL;
    }
    size_t mask = d->index_size - 1;
    for (size_t slot = hash & mask; d->index[slot]; slot = (slot + 1) & mask) {
        struct tpl_entry *e = &d->entries[d->index[slot] - 1];
        tpl_charge(t, 1);
        if (e->hash == hash && tpl_equal(t, e->key, key))
            return e;
    }
    return NULL;
}

static void index_add(struct tpl_dict *d, size_t entry) {
    size_t mask = d->index_size - 1, slot = d->entries[entry].hash & mask;
    while (d->index[slot])
        slot = (slot + 1) & mask;
    d->index[slot] = (uint32_t)entry + 1;
}

static void grow(struct tpl *t, struct tpl_dict *d) {
    size_t cap = d->cap ? d->cap * 2 : 4;
    if (cap > UINT32_MAX / 2)
        tpl_fail(t, "a dictionary with more than %zu entries", d->cap);
    struct tpl_entry *entries = tpl_alloc(t, cap, sizeof *entries);
    if (d->n)
        memcpy(entries, d->entries, d->n * sizeof *entries);
    d->entries = entries;
    d->cap = cap;
    if (cap <= INDEX_FROM)
        return;
    d->index_size = cap * 2; /* cap is a power of two: at most half full */
    d->index = tpl_alloc(t, d->index_size, sizeof *d->index);
    for (size_t i = 0; i < d->n; i++)
        index_add(d, i);
}

void tpl_dict_set(struct tpl *t, struct tpl_dict *d, tval key, tval value) {
    uint64_t hash = hash_value(t, key);
    struct tpl_entry *e = find(t, d, key, hash);
    if (e) {
        e->value = value;
        return;
    }
    if (d->n == d->cap)
        grow(t, d);
    d->entries[d->n++] = (struct tpl_entry){key, value, hash};
    if (d->index)
        index_add(d, d->n - 1);
}

const tval *tpl_dict_get(struct tpl *t, const struct tpl_dict *d, tval key) {
    struct tpl_entry *e = find(t, d, key, hash_value(t, key));
    return e ? &e->value : NULL;
}
