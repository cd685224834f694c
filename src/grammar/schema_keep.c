/* SPDX-License-Identifier: Apache-2.0 */
/* schema_keep.c: what is kept of a schema while it is compiled, what that costs, and errors. */
#include <stdlib.h>
#include <string.h>

#include "grammar/schema.h"

/* ---- errors ---------------------------------------------------------------------------------- */

/* The JSON pointer of a node, found by looking for it. */
static bool find_path(json_t *at, json_t *node, struct text_buf *path) {
    const size_t len = path->len;
    const char *key;
    json_t *value;
    size_t i;
    if (at == node)
        return true;
    json_object_foreach(at, key, value) {
        if (!text_puts(path, "/") || !text_puts(path, key))
            return false;
        if (find_path(value, node, path))
            return true;
        path->len = len;
    }
    json_array_foreach(at, i, value) {
        if (!text_printf(path, "/%zu", i))
            return false;
        if (find_path(value, node, path))
            return true;
        path->len = len;
    }
    return false;
}

bool schema_fail(struct schema_compiler *c, kvasir_status code, json_t *node, const char *keyword,
                 const char *why) {
    struct text_buf path = {0};
    if (c->status)
        return false;
    const bool found = node && find_path(c->root, node, &path);
    c->status = fail(c->err, code, "#%.*s%s%s: %s", found ? (int)path.len : 0,
                     found && path.len ? path.data : "", *keyword ? "/" : "", keyword, why);
    text_free(&path);
    return false;
}

bool schema_no_memory(struct schema_compiler *c) {
    if (!c->status)
        c->status = fail(c->err, KVASIR_ERR_MEMORY, "out of memory for a schema");
    return false;
}

bool schema_take(struct schema_compiler *c, uint64_t steps) {
    if (!c->status && !budget_take(c->b, steps, 0))
        c->status = grammar_too_large(c->err, "#");
    return !c->status;
}

/* ---- memory ---------------------------------------------------------------------------------- */

void *schema_alloc(struct schema_compiler *c, size_t n, size_t size) {
    enum { CHUNK = 32 << 10 };
    const size_t bytes = round_up(n * size + !n, 16);
    struct schema_chunk *chunk = c->chunks;
    if (c->status)
        return NULL;
    if (!budget_take(c->b, 4 + bytes / 32, bytes)) {
        c->status = grammar_too_large(c->err, "#");
        return NULL;
    }
    if (!chunk || chunk->size - chunk->used < bytes) {
        const size_t room = bytes > CHUNK ? bytes : CHUNK, head = round_up(sizeof *chunk, 16);
        chunk = mem_calloc(1, head + room);
        if (!chunk) {
            schema_no_memory(c);
            return NULL;
        }
        *chunk = (struct schema_chunk){c->chunks, 0, room};
        c->chunks = chunk;
    }
    void *at = (char *)chunk + round_up(sizeof *chunk, 16) + chunk->used;
    chunk->used += bytes;
    return at;
}

/* Whether a language or a set of numbers was made; otherwise it failed, with the node named. */
static bool made_well(struct schema_compiler *c, kvasir_status status, json_t *node,
                      const char *keyword) {
    char why[200];
    if (c->status)
        return false;
    if (!status)
        return true;
    snprintf(why, sizeof why, "%.190s", c->err ? c->err->text : "");
    schema_fail(c, status, node, keyword, why);
    return false;
}

const struct language *schema_language(struct schema_compiler *c, kvasir_status status,
                                       struct language *l, json_t *node, const char *keyword) {
    if (!made_well(c, status, node, keyword))
        return NULL;
    if (!ARRAY_GROW(c->languages, c->languages_cap, c->n_languages + 1)) {
        language_release(l);
        schema_no_memory(c);
        return NULL;
    }
    return c->languages[c->n_languages++] = l;
}

static bool make_strings(struct schema_compiler *c, struct schema_known *k, json_t *node,
                         const char *keyword) {
    struct language *l = NULL;
    const uint64_t steps = c->b->steps;
    const kvasir_status status = k->is_format ? language_format(c->b, k->text.data, &l, c->err)
                                              : language_regex(c->b, k->text, false, &l, c->err);
    if (k->is_format && status && steps - c->b->steps <= 1000)
        return true; /* there is none such */
    k->language = schema_language(c, status, status ? NULL : l, node, keyword);
    return k->language != NULL;
}

bool schema_strings(struct schema_compiler *c, struct text_span text, bool is_format, json_t *node,
                    const char *keyword, const struct language **out) {
    struct schema_known made = {text, is_format, NULL};
    if (!schema_take(c, 4 + c->n_known / 4))
        return false;
    for (size_t i = 0; i < c->n_known; i++)
        if (c->known[i].is_format == is_format && span_compare(c->known[i].text, text) == 0) {
            *out = c->known[i].language;
            return true;
        }
    if (!make_strings(c, &made, node, keyword))
        return false;
    if (!ARRAY_GROW(c->known, c->known_cap, c->n_known + 1))
        return schema_no_memory(c);
    c->known[c->n_known++] = made;
    *out = made.language;
    return true;
}

const struct numbers *schema_numbers(struct schema_compiler *c, kvasir_status status,
                                     struct numbers *n, json_t *node, const char *keyword) {
    if (!made_well(c, status, node, keyword))
        return NULL;
    if (!ARRAY_GROW(c->numbers, c->numbers_cap, c->n_numbers + 1)) {
        numbers_release(n);
        schema_no_memory(c);
        return NULL;
    }
    if (c->canonical)
        numbers_make_canonical(n);
    return c->numbers[c->n_numbers++] = n;
}

void schema_free(struct schema_compiler *c) {
    for (size_t i = 0; i < c->n_languages; i++)
        language_release(c->languages[i]);
    for (size_t i = 0; i < c->n_numbers; i++)
        numbers_release(c->numbers[i]);
    while (c->chunks) {
        struct schema_chunk *next = c->chunks->next;
        mem_free(c->chunks);
        c->chunks = next;
    }
    mem_free(c->languages);
    mem_free(c->known);
    mem_free(c->numbers);
    mem_free(c->nodes);
    mem_free(c->goals);
    mem_free(c->ids);
    mem_free(c->referrers);
    mem_free(c->by_node.slots);
    mem_free(c->by_literals.slots);
    mem_free(c->by_referrer.slots);
    json_decref(c->made);
    json_decref(c->root);
}

/* ---- branches -------------------------------------------------------------------------------- */

enum { BRANCHES_MAX = 4096 };

bool schema_add(struct schema_compiler *c, struct schema_list *list,
                const struct schema_branch *branch) {
    if (list->n >= BRANCHES_MAX || !schema_take(c, 30)) {
        if (!c->status)
            c->status = grammar_too_large(c->err, "#");
        return false;
    }
    if (!ARRAY_GROW(list->all, list->cap, list->n + 1))
        return schema_no_memory(c);
    list->all[list->n++] = *branch;
    return true;
}

void schema_list_free(struct schema_list *list) {
    mem_free(list->all);
    *list = (struct schema_list){0};
}

/* ---- values ---------------------------------------------------------------------------------- */

struct text_span schema_text(json_t *string) {
    return (struct text_span){json_string_value(string), json_string_length(string)};
}

bool schema_count(struct schema_compiler *c, json_t *node, const char *keyword, uint32_t *out) {
    json_t *value = json_object_get(node, keyword);
    const double number = json_number_value(value);
    /* from 2^53 on all doubles are whole */
    const bool whole = number >= 0x1p53 || (number >= 0 && number == (double)(uint64_t)number);
    if (!json_is_number(value) || !whole)
        return schema_fail(c, KVASIR_ERR_ARGUMENT, node, keyword,
                           "is not a whole number from 0 on");
    *out = number < SCHEMA_UNBOUNDED ? (uint32_t)number : SCHEMA_UNBOUNDED - 1;
    return true;
}

json_t *schema_make(struct schema_compiler *c, json_t *node) {
    enum { STEPS = 60 }; /* with what making and freeing it costs */
    if (json_array_append_new(c->made, node) == 0)
        return schema_take(c, STEPS) ? node : NULL;
    schema_no_memory(c);
    return NULL;
}
