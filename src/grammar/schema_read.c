/* SPDX-License-Identifier: Apache-2.0 */
/* schema_read.c: the text of a schema, and its references. */
#include <stdlib.h>
#include <string.h>

#include "grammar/schema.h"
#include "util/json.h"

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
