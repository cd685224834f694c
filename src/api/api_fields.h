/* SPDX-License-Identifier: Apache-2.0 */
/* api_fields.h: fields of bodies that no protocol here reads, but other servers do (api_fields.c).
 *
 *     another name of a field    read as that field
 *     would change the answer    refused by its name, unless its value is neutral
 *     changes no answer          ignored
 *     all others                 unknown: ignored with a warning, or refused ("strict")
 */
#ifndef API_API_FIELDS_H
#define API_API_FIELDS_H

#include "api/api_body.h"
#include "api/api_request.h"

enum api_field_kind {
    API_FIELD_ALIAS,    /* of `with` */
    API_FIELD_VARIABLE, /* true or false: a member of `with`, an object */
    API_FIELD_REFUSED,  /* unless it has one of the values in `with`, a JSON array; NULL: none */
    API_FIELD_HARMLESS,
};
struct api_field {
    const char *name;
    enum api_field_kind kind;
    const char *with;
};
/* name: as it is between its quotes; NULL: unknown. */
const struct api_field *api_field_find(const char *name, size_t len);
/* Notes an unknown name. wants: of the protocol, which alone has names that may be meant. */
void api_field_note(struct api_unknown *unknown, const char *name, size_t len, api_want_fn *wants);

/* Reads other names of fields as those fields. False with *err: a value is of the wrong type, or
 * both names are there with different values. */
bool api_fields_settle(json_t *members, struct api_error *err);
/* Refuses members that would change the answer. but: one that this protocol reads; NULL: none.
 * False with *err. */
bool api_fields_check(json_t *members, const char *but, struct api_error *err);
/* Unknown fields become warnings of the request, or are refused if the setup is strict. */
bool api_fields_warn(const struct api_setup *setup, const struct api_body *body,
                     struct api_request *r, struct api_error *err);
/* The names of unknown fields, "frob,temprature", with ? for what is no word; mem_free. NULL: there
 * are none, or no memory for them. */
char *api_fields_unknown(const struct api_body *body);
/* An error of a field that the client sent under another name gets that name. */
void api_fields_rename(const struct api_body *body, struct api_error *err);

#endif
