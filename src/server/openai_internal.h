/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of openai.h share. */
#ifndef SERVER_OPENAI_INTERNAL_H
#define SERVER_OPENAI_INTERNAL_H

#include "server/openai.h"

/* Fills *err with "path: why", returns false. path NULL: no field is to blame. */
bool openai_refuse(struct openai_error *err, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool openai_no_memory(struct openai_error *err);
/* The value is of another kind than `wanted`, "a string". */
bool openai_wrong_type(struct openai_error *err, const char *path, const json_t *value,
                       const char *wanted);

/* A member of the body; NULL where it is missing or null, which are the same everywhere. */
const json_t *openai_get(const json_t *object, const char *name);
/* These leave *out as it is where the member is missing. */
bool openai_flag(const json_t *object, const char *name, bool *out, struct openai_error *err);
bool openai_whole(const json_t *object, const char *name, json_int_t min, json_int_t max,
                  json_int_t *out, struct openai_error *err);
/* A text without NUL bytes, which lives as long as r. */
bool openai_text(struct openai_request *r, const char *path, const json_t *value, const char **out,
                 struct openai_error *err);
/* Array of token ids below vocab; *ids is the caller's (free). */
bool openai_ids(const char *path, const json_t *list, uint32_t vocab, int32_t **ids, size_t *n,
                struct openai_error *err);

/* All fields but the prompt (openai_fields.c). */
bool openai_read_fields(const struct openai_setup *setup, const json_t *body,
                        struct openai_request *r, struct openai_error *err);

#endif
