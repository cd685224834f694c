/* SPDX-License-Identifier: Apache-2.0 */
/* api_body.c: one walk over a body's text, and one over each array of ids in it. What is kept, and
 * so charged to the request, are the trees and the integers; a member that is not wanted costs
 * nothing, whatever its size. */
#include "api/api_body.h"
#include "api/api_fields.h"

#include <stdio.h>
#include <string.h>

#include "util/json.h"

/* ---- what is wanted -------------------------------------------------------------------------- */

enum api_want api_want_of(const struct api_names *lists, size_t n, const char *name, size_t len,
                          const char **known) {
    for (size_t i = 0; i < n; i++)
        for (const char *const *at = lists[i].names; *at; at++)
            if (json_name_is(name, len, *at)) {
                *known = *at;
                return lists[i].want;
            }
    return API_SKIP;
}

/* ---- ids ------------------------------------------------------------------------------------- */

/* Digits, and nothing else; -1: not such a number, or a large one. */
static int64_t plain_number(const char *text, size_t len) {
    int64_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9' || i == 10)
            return -1;
        n = 10 * n + (text[i] - '0');
    }
    return n;
}

/* A tree of the same type, and for numbers of the same value. */
static json_t *sketch(const char *text, size_t len) {
    json_error_t problem;
    return *text == '"'   ? json_string("")
           : *text == '[' ? json_array()
           : *text == '{'
               ? json_object()
               : json_load_metered(text, len, JSON_DECODE_ANY, JSON_VALUE_BYTES, &problem);
}

/* An item that is not a plain id: one after all ("-0"), or why not. False: out of memory. */
static bool read_odd_id(struct api_ids *list, const struct json_part *item, int32_t *id) {
    char at[API_PATH_MAX];
    json_t *value = sketch(item->value, item->value_len);
    const json_int_t n = json_integer_value(value);
    const size_t first = list->n_ends ? list->ends[list->n_ends - 1] : 0;
    snprintf(at, sizeof at, "%.100s[%zu]", list->path, list->n - first);
    if (!value)
        return false;
    if (!json_is_integer(value))
        api_wrong_type(&list->refused, at, value, "a whole number");
    else if (n < 0 || n >= list->vocab)
        api_refuse(&list->refused, at, "%lld is not a token id (0 to %u)", (long long)n,
                   list->vocab - 1);
    json_decref(value);
    *id = (int32_t)n;
    return true;
}

static kvasir_status take_id(void *user, const struct json_part *item, kvasir_error *err) {
    struct api_ids *list = user;
    const int64_t n = plain_number(item->value, item->value_len);
    int32_t id = (int32_t)n;
    if (list->refused.status)
        return KVASIR_OK;
    if (((n < 0 || n >= list->vocab) && !read_odd_id(list, item, &id)) ||
        !ARRAY_GROW(list->ids, list->cap, list->n + 1))
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory for token ids");
    if (!list->refused.status)
        list->ids[list->n++] = id;
    return KVASIR_OK;
}

/* An item of an array of arrays of ids. */
static kvasir_status take_list(void *user, const struct json_part *item, kvasir_error *err) {
    struct api_ids *list = user;
    if (list->refused.status)
        return KVASIR_OK;
    snprintf(list->path, sizeof list->path, "%.32s[%zu]", list->name, list->n_ends);
    if (*item->value != '[') {
        json_t *value = sketch(item->value, item->value_len);
        if (!value)
            return fail(err, KVASIR_ERR_MEMORY, "not enough memory for token ids");
        api_wrong_type(&list->refused, list->path, value, "an array of token ids");
        json_decref(value);
        return KVASIR_OK;
    }
    TRY(json_walk(item->value, item->value_len, take_id, list, err));
    if (!ARRAY_GROW(list->ends, list->ends_cap, list->n_ends + 1))
        return fail(err, KVASIR_ERR_MEMORY, "not enough memory for token ids");
    list->ends[list->n_ends++] = list->n;
    return KVASIR_OK;
}

/* The first character of an array's first item; 0: there is none. */
static kvasir_status see_first(void *user, const struct json_part *item, kvasir_error *err) {
    char *first = user;
    (void)err;
    *first = *first ? *first : *item->value;
    return KVASIR_OK;
}

static struct api_ids *find_ids(struct api_body *body, const char *name) {
    for (size_t i = 0; i < body->n_lists; i++)
        if (strcmp(body->lists[i].name, name) == 0)
            return &body->lists[i];
    return NULL;
}

/* ---- members --------------------------------------------------------------------------------- */

struct body_reader {
    struct api_body *body;
    api_want_fn *wants;
    uint32_t vocab;
    size_t len;
    uint64_t tree_bytes;
};

static kvasir_status take_tree(struct body_reader *r, const struct json_part *m, const char *name,
                               kvasir_error *err) {
    json_t *value;
    TRY(json_load_part(m, r->len, &r->tree_bytes, &value, err));
    return json_object_set_new(r->body->members, name, value) == 0
               ? KVASIR_OK
               : fail(err, KVASIR_ERR_MEMORY, "not enough memory for a request");
}

/* The value is an array. */
static kvasir_status take_ids(struct body_reader *r, const struct json_part *m, const char *name,
                              bool prompt, kvasir_error *err) {
    char first = 0;
    if (prompt)
        TRY(json_walk(m->value, m->value_len, see_first, &first, err));
    if (first == '"')
        return take_tree(r, m, name, err);
    ASSERT(r->body->n_lists < API_ID_LISTS); /* the walk refuses names that come twice */
    struct api_ids *list = &r->body->lists[r->body->n_lists++];
    *list = (struct api_ids){.name = name, .vocab = r->vocab};
    snprintf(list->path, sizeof list->path, "%.60s", name);
    return json_walk(m->value, m->value_len, first == '[' ? take_list : take_id, list, err);
}

/* The protocol's wish, or the tree of a field that api_fields.c knows what to do with. */
static enum api_want want_of(struct body_reader *r, const struct json_part *m, const char **name) {
    const char *ours;
    const enum api_want want = r->wants(m->name, m->name_len, name);
    if (want != API_SKIP)
        return want;
    const struct api_field *field = api_field_find(m->name, m->name_len);
    const bool renamed =
        field && (field->kind == API_FIELD_ALIAS || field->kind == API_FIELD_VARIABLE);
    if (!field || (renamed && r->wants(field->with, strlen(field->with), &ours) != API_TREE)) {
        api_field_note(&r->body->unknown, m->name, m->name_len, r->wants);
        return API_SKIP;
    }
    *name = field->name;
    return field->kind == API_FIELD_HARMLESS ? API_SKIP : API_TREE;
}

static kvasir_status take_member(void *user, const struct json_part *m, kvasir_error *err) {
    struct body_reader *r = user;
    const char *name;
    if (!m->name) /* an item: the body is no object */
        return KVASIR_OK;
    const enum api_want want = want_of(r, m, &name);
    if (want == API_SKIP)
        return KVASIR_OK;
    if (find_ids(r->body, name) || json_object_get(r->body->members, name))
        return KVASIR_OK; /* the walk refuses it at the object's end */
    if (want == API_TREE || *m->value != '[')
        return take_tree(r, m, name, err);
    return take_ids(r, m, name, want == API_PROMPT, err);
}

/* ---- bodies ---------------------------------------------------------------------------------- */

static bool is_object(const char *text, size_t len) {
    size_t at = 0;
    while (at < len &&
           (text[at] == ' ' || text[at] == '\t' || text[at] == '\r' || text[at] == '\n'))
        at++;
    return at < len && text[at] == '{';
}

/* What a walk ended with as an error of the client; returns false. */
static bool walk_failed(kvasir_status status, const kvasir_error *why, struct api_error *err) {
    return status == KVASIR_OK ? api_refuse(err, NULL, "the request body is not a JSON object")
           : status == KVASIR_ERR_MEMORY ? api_no_memory(err)
                                         : api_refuse(err, NULL, "%s", why->text);
}

bool api_body_read(const char *text, size_t len, uint32_t vocab, api_want_fn *wants,
                   struct api_body *out, struct api_error *err) {
    *out = (struct api_body){.members = json_object()};
    struct body_reader r = {.body = out, .wants = wants, .vocab = vocab, .len = len};
    kvasir_error why;
    if (!out->members)
        return api_no_memory(err);
    const kvasir_status status = json_walk(text, len, take_member, &r, &why);
    const bool object = status == KVASIR_OK && is_object(text, len);
    if (object && api_fields_settle(out->members, err))
        return true;
    api_body_free(out);
    if (object)
        return false;
    return walk_failed(status, &why, err);
}

void api_body_free(struct api_body *body) {
    json_decref(body->members);
    for (size_t i = 0; i < body->n_lists; i++)
        mem_free(body->lists[i].ids), mem_free(body->lists[i].ends);
    *body = (struct api_body){0};
}

bool api_has_ids(struct api_body *body, const char *name) {
    return find_ids(body, name) != NULL;
}

bool api_take_id_lists(struct api_body *body, const char *name, int32_t **ids, size_t *n,
                       size_t **ends, size_t *n_ends, struct api_error *err) {
    struct api_ids *list = find_ids(body, name);
    ASSERT(list && list->n <= list->cap);
    if (list->refused.status) {
        *err = list->refused;
        return false;
    }
    *ids = list->ids;
    *n = list->n;
    *ends = list->ends;
    *n_ends = list->n_ends;
    list->ids = NULL;
    list->ends = NULL;
    return true;
}

bool api_take_ids(struct api_body *body, const char *name, int32_t **ids, size_t *n,
                  struct api_error *err) {
    size_t *ends, n_ends;
    const bool good = api_take_id_lists(body, name, ids, n, &ends, &n_ends, err);
    ASSERT(!good || !ends); /* of API_PROMPT only */
    return good;
}

/* ---- some members only ----------------------------------------------------------------------- */

struct peek {
    const char *const *names;
    char **out;
    size_t len;
    uint64_t tree_bytes;
};

static kvasir_status peek_member(void *user, const struct json_part *m, kvasir_error *err) {
    struct peek *p = user;
    json_t *value;
    size_t i = 0;
    while (m->name && p->names[i] && !json_name_is(m->name, m->name_len, p->names[i]))
        i++;
    if (!m->name || !p->names[i] || p->out[i] || *m->value != '"')
        return KVASIR_OK;
    TRY(json_load_part(m, p->len, &p->tree_bytes, &value, err));
    p->out[i] = mem_strdup(json_string_value(value));
    json_decref(value);
    return p->out[i] ? KVASIR_OK : fail(err, KVASIR_ERR_MEMORY, "not enough memory for a request");
}

bool api_body_peek(const char *text, size_t len, const char *const *names, char **out,
                   struct api_error *err) {
    struct peek p = {.names = names, .out = out, .len = len};
    kvasir_error why;
    for (size_t i = 0; names[i]; i++)
        out[i] = NULL;
    const kvasir_status status = json_walk(text, len, peek_member, &p, &why);
    if (status == KVASIR_OK && is_object(text, len))
        return true;
    for (size_t i = 0; names[i]; i++) {
        mem_free(out[i]);
        out[i] = NULL;
    }
    return walk_failed(status, &why, err);
}
