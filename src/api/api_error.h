/* SPDX-License-Identifier: Apache-2.0 */
/* api_error.h: why a request is refused or failed, for any protocol. */
#ifndef API_API_ERROR_H
#define API_API_ERROR_H

#include <kvasir.h>

#include "util/http_status.h"
#include "util/util.h"

#define API_CONTEXT_EXCEEDED "context_length_exceeded" /* api_error.code */
enum { API_PATH_MAX = 128 };
struct api_error {
    int status;               /* of HTTP (util/http_status.h) */
    uint32_t retry_after_s;   /* of 429 and 503; 0: a default */
    const char *code;         /* OpenAI's name of the error; NULL: none */
    char param[API_PATH_MAX]; /* path of the field at fault; "": none */
    char text[640];           /* begins with that path; one line of UTF-8 */
};

/* Fills *err with "path: why" and HTTP_BAD_REQUEST; returns false. path NULL: no field is at
 * fault. */
bool api_refuse(struct api_error *err, const char *path, const char *format, ...) PRINTF_LIKE(3, 4);
/* If the error's path begins with `from`, makes it begin with `to`: for protocols that are read as
 * others. Whether it did. */
bool api_rename(struct api_error *err, const char *from, const char *to);
bool api_no_memory(struct api_error *err);
/* A failed call of the library, as the client that sent the request should see it. */
void api_error_of(struct api_error *out, const kvasir_error *err);
/* The same, with the field at fault named if it is the request's fault. Returns false. */
bool api_library_failed(struct api_error *err, const char *path, const kvasir_error *why);

#endif
