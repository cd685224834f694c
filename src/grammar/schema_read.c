/* SPDX-License-Identifier: Apache-2.0 */
/* schema_read.c: the text of a schema, its references, and what is kept while it is compiled. */
#include <stdlib.h>
#include <string.h>

#include "grammar/schema.h"
#include "util/json.h"

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

const struct language *schema_language(struct schema_compiler *c, kvasir_status status,
                                       struct language *l, json_t *node, const char *keyword) {
    if (c->status)
        return NULL;
    if (status) {
        char why[200];
        snprintf(why, sizeof why, "%.190s", c->err ? c->err->text : "");
        schema_fail(c, status, node, keyword, why);
        return NULL;
    }
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
    if (c->status)
        return NULL;
    if (status) {
        char why[200];
        snprintf(why, sizeof why, "%.190s", c->err ? c->err->text : "");
        schema_fail(c, status, node, keyword, why);
        return NULL;
    }
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
    if (!json_is_number(value) || number < 0 || number != (double)(uint64_t)number)
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

/* ---- references ------------------------------------------------------------------------------ */

static const char *id_of(json_t *node) {
    json_t *id = json_object_get(node, "$id");
    if (!json_is_string(id))
        id = json_object_get(node, "id"); /* draft 4 */
    return json_string_value(id);
}

/* `reference` from where `base` is: RFC 3986 as far as ids of schemas need it. Without fragment. */
static char *join_uri(const char *base, const char *reference) {
    struct text_buf out = {0};
    const size_t ref = strcspn(reference, "#");
    const char *scheme = memchr(reference, ':', ref);
    const char *slashes = base ? strstr(base, "://") : NULL;
    bool good = true;
    if (scheme || !base) {
        good = text_append(&out, reference, ref);
    } else if (ref == 0) {
        good = text_append(&out, base, strcspn(base, "#"));
    } else if (*reference == '/') {
        const char *root = slashes ? strchr(slashes + 3, '/') : base;
        good = text_append(&out, base, root ? (size_t)(root - base) : strlen(base)) &&
               text_append(&out, reference, ref);
    } else {
        size_t n = strcspn(base, "#");
        while (n && base[n - 1] != '/')
            n--;
        good = text_append(&out, base, n) && text_append(&out, reference, ref);
    }
    if (good && text_append(&out, "", 1))
        return out.data;
    text_free(&out);
    return NULL;
}

const char *const SCHEMA_REFERENCE[SCHEMA_REFERENCES] = {"$ref", "$dynamicRef", "$recursiveRef"};

/* base: the innermost schema with an id around `at`, in c->ids, + 1; 0: none. */
static bool collect(struct schema_compiler *c, json_t *at, uint32_t base) {
    const char *key, *id = json_is_object(at) ? id_of(at) : NULL;
    json_t *value;
    size_t i;
    if (!schema_take(c, id ? 100 : 6))
        return false;
    if (id && *id != '#') {
        char *whole = join_uri(base ? c->ids[base - 1].id : NULL, id);
        json_t *kept = whole ? schema_make(c, json_string(whole)) : NULL;
        mem_free(whole);
        if (!kept || !ARRAY_GROW(c->ids, c->ids_cap, c->n_ids + 1))
            return schema_no_memory(c); /* an earlier failure stays */
        c->ids[c->n_ids++] = (struct schema_id){json_string_value(kept), at};
        base = (uint32_t)c->n_ids;
    }
    for (i = 0; base && json_is_object(at) && i < SCHEMA_REFERENCES; i++)
        if (json_object_get(at, SCHEMA_REFERENCE[i]) && !schema_refers(c, at, base - 1))
            return false;
    json_object_foreach(at, key, value) {
        if (strcmp(key, "enum") != 0 && strcmp(key, "const") != 0 && !collect(c, value, base))
            return false;
    }
    json_array_foreach(at, i, value) {
        if (!collect(c, value, base))
            return false;
    }
    return true;
}

static int hex_of(char ch) {
    return ch >= '0' && ch <= '9'                 ? ch - '0'
           : (ch | 32) >= 'a' && (ch | 32) <= 'f' ? (ch | 32) - 'a' + 10
                                                  : -1;
}

/* One name of a pointer, with ~0 ~1 and %XX resolved, into `name`. */
static void read_name(const char **at, char *name, size_t size) {
    size_t n = 0;
    for (; **at && **at != '/'; (*at)++) {
        char ch = **at;
        if (ch == '%' && hex_of((*at)[1]) >= 0 && hex_of((*at)[2]) >= 0) {
            ch = (char)(hex_of((*at)[1]) * 16 + hex_of((*at)[2]));
            *at += 2;
        }
        if (ch == '~' && ((*at)[1] == '0' || (*at)[1] == '1')) {
            ch = (*at)[1] == '0' ? '~' : '/';
            (*at)++;
        }
        if (n + 1 < size)
            name[n++] = ch;
    }
    name[n] = 0;
}

static json_t *follow_pointer(json_t *at, const char *pointer) {
    char name[1024];
    while (at && *pointer == '/') {
        pointer++;
        read_name(&pointer, name, sizeof name);
        at = json_is_array(at) ? json_array_get(at, strtoul(name, NULL, 10))
                               : json_object_get(at, name);
    }
    return *pointer ? NULL : at;
}

enum { VISIT_STEPS = 20 }; /* for a look at a node's names */

/* Within one resource: what has an id of its own is another. */
static json_t *find_anchor(struct schema_compiler *c, json_t *at, const char *name, bool inner) {
    static const char *const WORDS[] = {"$anchor", "$dynamicAnchor"};
    const char *key, *id = json_is_object(at) ? id_of(at) : NULL;
    json_t *value, *found;
    size_t i;
    if (!schema_take(c, VISIT_STEPS))
        return NULL;
    for (i = 0; i < 2; i++) {
        const char *anchor = json_string_value(json_object_get(at, WORDS[i]));
        if (anchor && strcmp(anchor, name) == 0 && !(inner && id && *id != '#'))
            return at;
    }
    if (id && *id == '#' && strcmp(id + 1, name) == 0)
        return at;
    if (inner && id && *id != '#')
        return NULL;
    json_object_foreach(at, key, value) {
        if ((found = find_anchor(c, value, name, true)))
            return found;
    }
    json_array_foreach(at, i, value) {
        if ((found = find_anchor(c, value, name, true)))
            return found;
    }
    return NULL;
}

static size_t count_dynamic(struct schema_compiler *c, json_t *at, const char *name) {
    const char *key, *anchor = json_string_value(json_object_get(at, "$dynamicAnchor"));
    json_t *value;
    size_t i, n = anchor && strcmp(anchor, name) == 0;
    if (!schema_take(c, VISIT_STEPS))
        return 0;
    json_object_foreach(at, key, value) {
        n += count_dynamic(c, value, name);
    }
    json_array_foreach(at, i, value) {
        n += count_dynamic(c, value, name);
    }
    return n;
}

json_t *schema_resolve(struct schema_compiler *c, json_t *node, const char *keyword,
                       const char *reference) {
    const struct schema_id *base = schema_base(c, node);
    const char *fragment = strchr(reference, '#');
    json_t *at = base ? base->node : c->root;
    if (fragment != reference) {
        char *whole = join_uri(base ? base->id : NULL, reference);
        at = NULL;
        if (!schema_take(c, 2 * c->n_ids)) {
            mem_free(whole);
            return NULL;
        }
        for (size_t i = 0; whole && !at && i < c->n_ids; i++) {
            const size_t n = strcspn(c->ids[i].id, "#");
            if (strlen(whole) == n && memcmp(whole, c->ids[i].id, n) == 0)
                at = c->ids[i].node;
        }
        mem_free(whole);
        if (!at) {
            schema_fail(c, KVASIR_ERR_UNSUPPORTED, node, keyword,
                        "refers to another document, which is not here");
            return NULL;
        }
    }
    if (fragment && fragment[1] == '/')
        at = follow_pointer(at, fragment + 1);
    else if (fragment && fragment[1])
        at = find_anchor(c, at, fragment + 1, false);
    if (strcmp(keyword, "$dynamicRef") == 0 && fragment &&
        count_dynamic(c, c->root, fragment + 1) > 1) {
        schema_fail(c, KVASIR_ERR_UNSUPPORTED, node, keyword,
                    "which of several schemas it means depends on the way to it");
        return NULL;
    }
    if (!at || (!json_is_object(at) && !json_is_boolean(at))) {
        schema_fail(c, KVASIR_ERR_ARGUMENT, node, keyword, "there is no schema at this place");
        return NULL;
    }
    return schema_take(c, 20) ? at : NULL;
}

/* ---- all of it ------------------------------------------------------------------------------- */

bool schema_read(struct schema_compiler *c, struct text_span text) {
    struct language *l;
    struct numbers *n;
    c->made = json_array();
    if (!c->made)
        return schema_no_memory(c);
    if (!schema_take(c, 4 * text.len))
        return false;
    if (json_load_request(text.data, text.len, JSON_ALLOW_NUL | JSON_DECODE_ANY, &c->root,
                          c->err)) {
        c->status = KVASIR_ERR_ARGUMENT;
        if (c->err)
            c->err->code = c->status;
        return false;
    }
    if (!json_is_object(c->root) && !json_is_boolean(c->root))
        return schema_fail(c, KVASIR_ERR_ARGUMENT, c->root, "",
                           "a schema is an object, true or false");
    const char *draft = json_string_value(json_object_get(c->root, "$schema"));
    c->legacy = draft && (strstr(draft, "draft-03") || strstr(draft, "draft-04") ||
                          strstr(draft, "draft-06") || strstr(draft, "draft-07"));
    json_t *canonical = json_object_get(c->root, "x-canonical");
    if (canonical && !json_is_boolean(canonical))
        return schema_fail(c, KVASIR_ERR_ARGUMENT, c->root, "x-canonical", "must be true or false");
    c->canonical = json_is_true(canonical);
    kvasir_status status = language_any(c->b, 0, LANGUAGE_UNBOUNDED, &l, c->err);
    if (!(c->any_string = schema_language(c, status, l, c->root, "")))
        return false;
    status = numbers_any(c->b, &n, c->err);
    if (!(c->any_number = schema_numbers(c, status, n, c->root, "")))
        return false;
    return schema_goals_begin(c) && collect(c, c->root, 0);
}
