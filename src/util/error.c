/* SPDX-License-Identifier: Apache-2.0 */
/* Filling kvasir_error. One line of text, no allocation: an error can always be reported. */
#include <stdio.h>
#include <string.h>

#include "util/util.h"

const char *kvasir_status_text(kvasir_status status) {
    switch (status) {
#define STATUS_CASE(name, number, text)                                                            \
    case KVASIR_##name:                                                                            \
        return text;
        KVASIR_STATUS_MAP(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown status";
}

static void fill(kvasir_error *err, kvasir_status code, int64_t offset, const char *field,
                 const char *format, va_list args) {
    if (!err)
        return;
    err->code = code;
    err->offset = offset;
    err->field = field;
    vsnprintf(err->text, sizeof err->text, format, args);
    /* Text may quote names from a file. An error stays one line whatever they contain. */
    for (char *p = err->text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
}

kvasir_status fail(kvasir_error *err, kvasir_status code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fill(err, code, -1, NULL, format, args);
    va_end(args);
    return code;
}

kvasir_status fail_at(kvasir_error *err, kvasir_status code, int64_t offset, const char *format,
                      ...) {
    va_list args;
    va_start(args, format);
    fill(err, code, offset, NULL, format, args);
    va_end(args);
    return code;
}

kvasir_status fail_field(kvasir_error *err, kvasir_status code, const char *field,
                         const char *format, ...) {
    va_list args;
    va_start(args, format);
    fill(err, code, -1, field, format, args);
    va_end(args);
    return code;
}

kvasir_status fail_of_field(kvasir_status status, kvasir_error *err, const char *field) {
    if (status != KVASIR_OK && err)
        err->field = field;
    return status;
}

void fail_prefix(kvasir_error *err, const char *prefix) {
    if (!err)
        return;
    char text[sizeof err->text];
    memcpy(text, err->text, sizeof text);
    size_t room = sizeof text - 1, used = strnlen(prefix, room);
    memcpy(err->text, prefix, used);
    for (const char *p = ": "; *p && used < room; p++)
        err->text[used++] = *p;
    size_t rest = strnlen(text, room - used);
    memcpy(err->text + used, text, rest);
    err->text[used + rest] = 0;
}
