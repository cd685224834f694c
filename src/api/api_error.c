/* SPDX-License-Identifier: Apache-2.0 */
/* api_error.c: texts of errors, and errors of the library as errors of a request. */
#include "api/api_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "util/utf8.h"

/* Makes text one line of UTF-8: quoted input may contain anything, and may be cut in a
 * character. */
static void make_line(char *text) {
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    text[utf8_check(text, strlen(text))] = 0;
}

bool api_refuse(struct api_error *err, const char *path, const char *format, ...) {
    _Static_assert(API_PATH_MAX + 2 < sizeof err->text, "a path leaves room for the reason");
    *err = (struct api_error){.status = HTTP_BAD_REQUEST};
    size_t n = 0;
    if (path) {
        snprintf(err->param, sizeof err->param, "%s", path);
        n = (size_t)snprintf(err->text, sizeof err->text, "%.*s: ", API_PATH_MAX, path);
    }
    ASSERT(n < sizeof err->text);
    va_list args;
    va_start(args, format);
    vsnprintf(err->text + n, sizeof err->text - n, format, args);
    va_end(args);
    make_line(err->param);
    make_line(err->text);
    return false;
}

bool api_rename(struct api_error *err, const char *from, const char *to) {
    size_t n = strlen(from);
    struct api_error named = *err;
    if (strncmp(err->param, from, n) != 0 || (err->param[n] && !strchr(".[", err->param[n])))
        return false;
    snprintf(named.param, sizeof named.param, "%s%.100s", to, err->param + n);
    snprintf(named.text, sizeof named.text, "%s%.600s", to, err->text + n);
    *err = named;
    return true;
}

bool api_no_memory(struct api_error *err) {
    api_refuse(err, NULL, "out of memory");
    err->status = HTTP_SERVER_ERROR;
    return false;
}

/* Members of a body whose names differ from the option they set. */
static const struct {
    const char *field, *path;
} PATHS[] = {
    {"request.stops", "stop"},
    {"request.tokens", "prompt"},
    {"sampling.frequency_context", "frequency_context_size"},
    {"sampling.presence_context", "presence_context_size"},
    {"sampling.repetition_context", "repetition_context_size"},
    {"sampling.temp", "temperature"},
};

/* The member of a body that sets an option; NULL: a server's option, which no client sends. */
static const char *path_of(const char *field) {
    for (size_t i = 0; field && i < sizeof PATHS / sizeof *PATHS; i++)
        if (strcmp(PATHS[i].field, field) == 0)
            return PATHS[i].path;
    const bool sent =
        field && (strncmp(field, "request.", 8) == 0 || strncmp(field, "sampling.", 9) == 0);
    return sent ? strchr(field, '.') + 1 : NULL;
}

void api_error_of(struct api_error *out, const kvasir_error *err) {
    api_refuse(out, path_of(err->field), "%s", err->text);
    /* A prompt that is too long for context or budget is the client's error. */
    if (err->code == KVASIR_ERR_MEMORY || err->code == KVASIR_ERR_IO)
        out->status = HTTP_SERVER_ERROR;
    else if (err->code == KVASIR_ERR_BUSY)
        out->status = HTTP_TOO_MANY_REQUESTS;
    else if (err->code == KVASIR_ERR_CANCELLED)
        out->status = HTTP_CLIENT_CLOSED;
    else if (err->code == KVASIR_ERR_CONTEXT || err->code == KVASIR_ERR_BUDGET)
        out->code = API_CONTEXT_EXCEEDED;
}

bool api_library_failed(struct api_error *err, const char *path, const kvasir_error *why) {
    api_error_of(err, why);
    if (err->status != HTTP_BAD_REQUEST)
        return false;
    const char *code = err->code;
    api_refuse(err, path, "%s", why->text);
    err->code = code;
    return false;
}
