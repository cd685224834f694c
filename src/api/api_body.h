/* SPDX-License-Identifier: Apache-2.0 */
/* api_body.h: a request's body, read once from its text (api_body.c).
 *
 *     {"messages": [..], "stop_token_ids": [5, 6], "metadata": {..}, ..}
 *          |                    |                       |
 *          member: a tree       ids: integers           not wanted: checked and passed over
 *
 * A protocol says by name which members it wants. Wrong ids are no error yet: api_take_ids reports
 * them, so that errors come in the order in which members are used. Members that are not wanted are
 * looked up in the table of api_fields.c: other names of wanted ones are read as those, the names
 * of unknown ones are noted.
 */
#ifndef API_API_BODY_H
#define API_API_BODY_H

#include "api/api_json.h"

enum api_want {
    API_SKIP,
    API_TREE,
    API_IDS,    /* integers, if it is an array */
    API_PROMPT, /* the same; an array of arrays of them, too */
};
/* `names` ends with NULL. */
struct api_names {
    enum api_want want;
    const char *const *names;
};
/* What a protocol wants of a member. name: as it is between its quotes; *known: as we spell it,
 * unless it is skipped. */
typedef enum api_want api_want_fn(const char *name, size_t len, const char **known);
enum api_want api_want_of(const struct api_names *lists, size_t n, const char *name, size_t len,
                          const char **known);

struct api_ids {
    const char *name; /* of the member */
    char path[64];    /* of the array that is read: "prompt[0]" */
    int32_t *ids;     /* [n] */
    size_t n, cap;
    size_t *ends; /* [n_ends] of an array of arrays: where each one's ids end; NULL: it is none */
    size_t n_ends, ends_cap;
    uint32_t vocab;
    struct api_error refused; /* status 0: they are good */
};

/* The first names that nobody knows, cut at characters. */
enum { API_UNKNOWN_MAX = 8, API_UNKNOWN_BYTES = 48 };
struct api_unknown {
    struct {
        char name[API_UNKNOWN_BYTES];
        const char *near; /* a known name that may be meant; NULL */
    } fields[API_UNKNOWN_MAX];
    size_t n; /* of all, more than are kept perhaps */
};

enum { API_ID_LISTS = 2 }; /* no protocol wants more */
struct api_body {
    json_t *members;            /* object */
    struct api_unknown unknown; /* members, by name */
    struct api_ids lists[API_ID_LISTS];
    size_t n_lists;
};
/* vocab: ids are below it. False with *err; there is nothing to free then. */
bool api_body_read(const char *text, size_t len, uint32_t vocab, api_want_fn *wants,
                   struct api_body *out, struct api_error *err);
void api_body_free(struct api_body *body);
/* Members of a body that are strings, before the rest is read: out[i] of names[i], which end with
 * NULL. mem_free each; NULL: there is none, or it is no string. False with *err: the body is no
 * JSON object, or there is no memory. */
bool api_body_peek(const char *text, size_t len, const char *const *names, char **out,
                   struct api_error *err);
/* Whether the member is an array of ids; if not, it may be among the members. */
bool api_has_ids(struct api_body *body, const char *name);
/* The ids of a member that has them; *ids: mem_free. */
bool api_take_ids(struct api_body *body, const char *name, int32_t **ids, size_t *n,
                  struct api_error *err);
/* The same of a prompt. *ends: mem_free; NULL: the member is one array of ids. */
bool api_take_id_lists(struct api_body *body, const char *name, int32_t **ids, size_t *n,
                       size_t **ends, size_t *n_ends, struct api_error *err);

#endif
