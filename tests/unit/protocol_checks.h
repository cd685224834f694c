/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of single protocols share: a body read by one of them, and refused. */
#ifndef KVASIR_PROTOCOL_CHECKS_H
#define KVASIR_PROTOCOL_CHECKS_H

#include "api_checks.h"

static struct api_request r;
static const struct protocol *protocol; /* of the functions below */

static inline bool read_text_body(const char *text) {
    struct api_body body = {0};
    memset(&err, 'x', sizeof err);
    const bool good =
        api_body_read(text, strlen(text), setup.vocab, protocol->wants, &body, &err) &&
        protocol->read(&setup, &body, &r, &err);
    api_body_free(&body);
    return good;
}

static inline void bad(const char *text, const char *param, const char *why) {
    struct api_request before = r;
    if (read_text_body(text))
        fail_msg("taken: %s", text);
    assert_memory_equal(&before, &r, sizeof r);
    check_refused(text, param, why);
}

#endif
