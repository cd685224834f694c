/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of hub/ share. Each calls only those before it: hub_name.c, hub_transfer.c,
 * hub_repository.c, hub_package.c, hub.c. */
#ifndef HUB_HUB_INTERNAL_H
#define HUB_HUB_INTERNAL_H

#include <jansson.h>
#include <sodium.h>

#include "hub/hub.h"

/* ---- hub_name.c ---- */
bool hub_is_hash(const char *text); /* 40 or 64 hexadecimal digits */
bool hub_is_path(const char *path); /* relative, below where it starts, of sane length */
bool hub_ends_with(const char *text, const char *end); /* in any case of letters */

/* A path for a URL, with %XX where it must be; mem_free. NULL: out of memory. */
char *hub_escape_path(const char *path) MUST_CHECK;

/* ---- hub_transfer.c ---- */
/* dir/name, or an error if that is too long. */
kvasir_status hub_join(char out[HUB_PATH_MAX], const char *dir, const char *name,
                       kvasir_error *err) MUST_CHECK;
/* KVASIR_ERR_IO with the numbers if the file system of `dir` has too little room. */
kvasir_status hub_check_room(const char *dir, uint64_t bytes, kvasir_error *err) MUST_CHECK;
/* The lower-case digits of a file's sha256. */
kvasir_status hub_file_sum(const struct hub *h, const char *path, char out[HUB_SHA_BYTES],
                           kvasir_error *err) MUST_CHECK;
/* A sum that is being taken. */
void hub_sum_text(crypto_hash_sha256_state *sum, char out[HUB_SHA_BYTES]);

struct hub_request {
    const char *url;
    const char *what;   /* for progress and errors: "ORG/REPO: config.json" */
    const char *accept; /* NULL: anything */
    bool token;         /* send hub.hf_token: the URL is the endpoint's */
};
/* GET of JSON. *status: of HTTP; not 200 is no error, and then *out is NULL. */
kvasir_status hub_get_json(const struct hub *h, const struct hub_request *r, json_t **out,
                           long *status, kvasir_error *err) MUST_CHECK;
/* An error for a status that is not 200. */
kvasir_status hub_refused(const struct hub *h, const struct hub_request *r, long status,
                          kvasir_error *err);

struct hub_file {
    const char *path;           /* where it is to be */
    const char *part;           /* while it is not complete; what is there is gone on with */
    const char *lock;           /* held meanwhile */
    uint64_t bytes;             /* 0: not known */
    char sha256[HUB_SHA_BYTES]; /* that it has to have; "": any. Set to what it has. */
};
/* GET of a file, complete and under its name afterwards. */
kvasir_status hub_get_file(const struct hub *h, const struct hub_request *r, struct hub_file *f,
                           kvasir_error *err) MUST_CHECK;

/* ---- hub_repository.c ---- */
kvasir_status repository_find(const struct hub *h, const struct hub_name *name,
                              char path[HUB_PATH_MAX], kvasir_error *err) MUST_CHECK;
kvasir_status repository_pull(const struct hub *h, const struct hub_name *name, bool verify,
                              kvasir_error *err) MUST_CHECK;
kvasir_status repository_list(const struct hub *h, hub_model_fn *each, void *user,
                              kvasir_error *err) MUST_CHECK;
kvasir_status repository_remove(const struct hub *h, const struct hub_name *name, uint64_t *bytes,
                                kvasir_error *err) MUST_CHECK;

/* ---- hub_package.c: links, too ---- */
kvasir_status package_find(const struct hub *h, const struct hub_name *name,
                           char path[HUB_PATH_MAX], kvasir_error *err) MUST_CHECK;
kvasir_status package_pull(const struct hub *h, const struct hub_name *name, bool verify,
                           kvasir_error *err) MUST_CHECK;
kvasir_status package_list(const struct hub *h, hub_model_fn *each, void *user,
                           kvasir_error *err) MUST_CHECK;
kvasir_status package_remove(const struct hub *h, const struct hub_name *name, uint64_t *bytes,
                             kvasir_error *err) MUST_CHECK;

#endif
