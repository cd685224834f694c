/* SPDX-License-Identifier: Apache-2.0 */
/* What the prompt_file*.c share. Nobody else includes this.
 *
 *     prompt_file.c         classes, rings, rows, and the check of a description (FILE-1)
 *     prompt_file_header.c  a file cut into tensors and metadata, nothing said of their meaning
 *     prompt_file_read.c    what they mean
 *     prompt_file_write.c   the way back
 */
#ifndef KVASIR_PROMPT_FILE_INTERNAL_H
#define KVASIR_PROMPT_FILE_INTERNAL_H

#include "files/prompt_file.h"

/* CacheLists inside CacheLists. Models have none; the limit bounds recursion and names. */
enum { PROMPT_DEPTH_MAX = 4, PROMPT_NAME_MAX = 128 };
/* The largest value of mlx's shapes and I32 scalars. */
enum { PROMPT_COUNT_MAX = INT32_MAX };

/* Prefixes of the names of an entry's tensors and metadata: "12", "12.1.0" ... and "0.12",
 * "0.12.1.1" ... */
struct prompt_scope {
    enum prompt_form form;
    uint32_t depth; /* lists around it */
    char tensor[PROMPT_NAME_MAX], meta[PROMPT_NAME_MAX];
};
struct prompt_scope prompt_scope_layer(enum prompt_form form, uint32_t layer);
struct prompt_scope prompt_scope_child(const struct prompt_scope *list, uint32_t child);

/* prefix.SUFFIX; returns name. */
const char *prompt_name(char name[PROMPT_NAME_MAX], const char *prefix, const char *suffix, ...)
    PRINTF_LIKE(3, 4);
/* Of part `part` of K (0) or V (1). */
const char *prompt_part_name(char name[PROMPT_NAME_MAX], const struct prompt_scope *s,
                             enum prompt_class class, int side, int part);
/* Of K's (0) or V's (1) exact start. */
const char *prompt_start_name(char name[PROMPT_NAME_MAX], const struct prompt_scope *s, int side);

bool prompt_dtype_known(enum st_dtype dtype); /* types that prompt caches use */
bool prompt_bits_known(uint32_t bits);
bool prompt_group_known(uint32_t group);
/* Derives heads, rows, scalar types and dims from the tensors and from bits and groups (0: to be
 * guessed). What cannot be derived stays 0, and the check finds it. */
void prompt_kv_derive(struct prompt_kv *kv, enum prompt_class class);

/* Checks FILE-1. Errors name the tensor as the form does. */
kvasir_status prompt_file_check(const struct prompt_file *f, enum prompt_form form,
                                kvasir_error *err) MUST_CHECK;

/* ---- prompt_file_header.c -------------------------------------------------------------------- */

enum prompt_kind { PROMPT_PLAIN, PROMPT_SCALAR, PROMPT_STRING, PROMPT_NONE };

struct prompt_raw {
    const char *name; /* borrowed from the table */
    struct prompt_tensor tensor;
    enum prompt_kind kind; /* all plain until the form is known */
    bool taken;
};
struct prompt_meta {
    const char *key, *value; /* borrowed from the JSON */
    bool taken;
};
struct prompt_header {
    struct json_t *json;        /* the metadata */
    struct st_table table;      /* the tensors as the file has them */
    struct prompt_raw *tensors; /* rising by name */
    struct prompt_meta *metas;  /* rising by key */
    size_t n_tensors, n_metas;
};
/* Call deinit also after a failure; the caller owns json. */
kvasir_status prompt_header_read(const struct file_map *map, struct prompt_header *h,
                                 kvasir_error *err) MUST_CHECK;
kvasir_status prompt_header_check_data(const struct prompt_header *h, const struct file_map *map,
                                       kvasir_error *err) MUST_CHECK;
void prompt_header_deinit(struct prompt_header *h);
/* NULL if there is none. */
struct prompt_raw *prompt_header_tensor(const struct prompt_header *h, const char *name);
struct prompt_meta *prompt_header_meta(const struct prompt_header *h, const char *key);

#endif
