/* SPDX-License-Identifier: Apache-2.0 */
/* A prompt cache's description as text, for tests to compare, and a comparison with the data:
 *
 *     legacy {model=m} | QuantizedKVCache offset 3 heads 2 rows 3 K 8g64f16 dim 64 V 4g64f16 dim 64
 *     032 {} | CacheList [KVCache none | ArraysCache f32(1,3,4) none padding none lengths none]
 */
#ifndef KVASIR_TEST_PROMPT_TEXT_H
#define KVASIR_TEST_PROMPT_TEXT_H

#include <stdlib.h>
#include <string.h>

#include "files/prompt_file.h"

static inline void prompt_text_add(struct text_buf *out, const char *text) {
    if (!text_append(out, text, strlen(text)))
        abort();
}

static inline void prompt_text_number(struct text_buf *out, const char *name, uint32_t n) {
    if (!text_printf(out, "%s%u", name, n))
        abort();
}

static inline void prompt_text_tensor(struct text_buf *out, const struct prompt_tensor *t) {
    if (!t->present) {
        prompt_text_add(out, "none");
        return;
    }
    prompt_text_add(out, st_dtype_name(t->dtype));
    for (uint32_t i = 0; i < t->n_dims; i++)
        prompt_text_number(out, i ? "," : "(", t->dims[i]);
    prompt_text_add(out, t->n_dims ? ")" : "()");
}

static inline void prompt_text_kv(struct text_buf *out, const struct prompt_entry *e) {
    static const char *const scalars[] = {"f16", "bf16", "f32"};
    const struct prompt_kv *kv = &e->kv;
    prompt_text_number(out, " offset ", kv->offset);
    if (prompt_class_is_ring(e->class)) {
        prompt_text_number(out, " keep ", kv->keep);
        prompt_text_number(out, " max ", kv->max_size);
        prompt_text_number(out, " idx ", kv->idx);
    }
    if (kv->guessed)
        prompt_text_add(out, " guessed");
    prompt_text_number(out, " heads ", kv->heads);
    prompt_text_number(out, " rows ", kv->rows);
    if (prompt_class_is_started(e->class)) {
        prompt_text_number(out, " start ", kv->start);
        prompt_text_number(out, " exact ", kv->exact);
    }
    for (int i = 0; i < 2; i++) {
        const struct prompt_side *side = &kv->sides[i];
        prompt_text_add(out, i ? " V " : " K ");
        if (prompt_class_is_affine(e->class)) {
            prompt_text_number(out, "", side->format.bits);
            prompt_text_number(out, "g", side->format.group);
        }
        prompt_text_add(out, side->parts[0].present ? scalars[side->format.scalar] : "none");
        prompt_text_number(out, " dim ", side->dim);
    }
}

static inline void prompt_text_entries(struct text_buf *out, const struct prompt_entry *e,
                                       uint32_t n) {
    for (uint32_t i = 0; i < n; i++, e++) {
        prompt_text_add(out, i ? " | " : "");
        prompt_text_add(out, prompt_class_name(e->class));
        if (prompt_class_is_kv(e->class))
            prompt_text_kv(out, e);
        for (uint32_t j = 0; e->class == PROMPT_ARRAYS && j < e->arrays.n; j++) {
            prompt_text_add(out, " ");
            prompt_text_tensor(out, &e->arrays.states[j]);
        }
        if (e->class == PROMPT_ARRAYS) {
            prompt_text_add(out, " padding ");
            prompt_text_tensor(out, &e->arrays.left_padding);
            prompt_text_add(out, " lengths ");
            prompt_text_tensor(out, &e->arrays.lengths);
        }
        if (e->class == PROMPT_LIST) {
            prompt_text_add(out, " [");
            prompt_text_entries(out, e->list.children, e->list.n);
            prompt_text_add(out, "]");
        }
    }
}

/* text_free'd by the caller. */
static inline struct text_buf prompt_text(const struct prompt_file *f) {
    struct text_buf out = {0};
    prompt_text_add(&out, f->form == PROMPT_FORM_032 ? "032 {" : "legacy {");
    for (uint32_t i = 0; i < f->n_metadata; i++) {
        prompt_text_add(&out, i ? "," : "");
        prompt_text_add(&out, f->metadata[i].key);
        prompt_text_add(&out, "=");
        prompt_text_add(&out, f->metadata[i].value);
    }
    prompt_text_add(&out, "} | ");
    prompt_text_entries(&out, f->entries, f->n_entries);
    return out;
}

static inline bool prompt_tensor_same(const struct prompt_tensor *a,
                                      const struct prompt_tensor *b) {
    return a->present == b->present && a->dtype == b->dtype && a->n_dims == b->n_dims &&
           memcmp(a->dims, b->dims, sizeof a->dims) == 0 && a->bytes == b->bytes &&
           (a->bytes == 0 || memcmp(a->data, b->data, a->bytes) == 0);
}

/* Compares the data of two lists that have the same text. */
static inline bool prompt_data_same(const struct prompt_entry *a, const struct prompt_entry *b,
                                    uint32_t n) {
    for (uint32_t i = 0; i < n; i++, a++, b++) {
        for (int j = 0; prompt_class_is_kv(a->class) && j < 2 * PROMPT_PARTS; j++)
            if (!prompt_tensor_same(&a->kv.sides[j / 3].parts[j % 3],
                                    &b->kv.sides[j / 3].parts[j % 3]))
                return false;
        for (int j = 0; prompt_class_is_kv(a->class) && j < 2; j++)
            if (!prompt_tensor_same(&a->kv.sides[j].start, &b->kv.sides[j].start))
                return false;
        for (uint32_t j = 0; a->class == PROMPT_ARRAYS && j < a->arrays.n; j++)
            if (!prompt_tensor_same(&a->arrays.states[j], &b->arrays.states[j]))
                return false;
        if (a->class == PROMPT_ARRAYS &&
            !(prompt_tensor_same(&a->arrays.left_padding, &b->arrays.left_padding) &&
              prompt_tensor_same(&a->arrays.lengths, &b->arrays.lengths)))
            return false;
        if (a->class == PROMPT_LIST &&
            !prompt_data_same(a->list.children, b->list.children, a->list.n))
            return false;
    }
    return true;
}

static inline bool prompt_files_same(const struct prompt_file *a, const struct prompt_file *b) {
    struct text_buf x = prompt_text(a), y = prompt_text(b);
    bool same = x.len == y.len && memcmp(x.data, y.data, x.len) == 0 &&
                prompt_data_same(a->entries, b->entries, a->n_entries);
    text_free(&x);
    text_free(&y);
    return same;
}

/* The position of the token in a ring's row; -1 if the row holds none. */
static inline int64_t ring_position(const struct prompt_kv *kv, uint32_t row) {
    if (row >= kv->rows)
        return -1;
    if (kv->offset <= kv->rows)
        return row < kv->offset ? (int64_t)row : -1;
    if (row < kv->keep)
        return row;
    const uint32_t newest = kv->idx - kv->keep; /* rows [keep, idx) */
    const uint32_t back = row < kv->idx ? kv->idx - row : newest + kv->rows - row;
    return (int64_t)kv->offset - back;
}

/* Tokens that have a row: positions [0, keep) and the newest, or all. */
static inline uint32_t ring_held(const struct prompt_kv *kv) {
    return kv->offset < kv->rows ? kv->offset : kv->rows;
}

/* Whether the rows and positions of a ring or buffer map to each other in both directions. */
static inline bool prompt_rows_consistent(const struct prompt_kv *kv) {
    uint32_t held = 0;
    for (uint32_t row = 0; row < kv->rows; row++) {
        int64_t position = ring_position(kv, row);
        if (position >= (int64_t)kv->offset ||
            (position >= 0 && prompt_entry_row(kv, (uint32_t)position) != row))
            return false;
        held += position >= 0;
    }
    return held == ring_held(kv) && prompt_entry_row(kv, kv->offset) == -1 &&
           ring_position(kv, kv->rows) == -1;
}

#endif
