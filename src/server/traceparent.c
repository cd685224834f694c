/* SPDX-License-Identifier: Apache-2.0 */
/* traceparent.c: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01": version, trace, span,
 * flags. A later version may have more behind another dash; "ff" is none.
 */
#include "server/traceparent.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "util/util.h"

enum { AT_TRACE = 3, AT_SPAN = AT_TRACE + TRACE_ID_DIGITS + 1, AT_FLAGS = AT_SPAN + 17, LEN = 55 };

/* n lower-case hex digits. */
static bool is_hex(const char *text, size_t n) {
    return strspn(text, "0123456789abcdef") >= n;
}

static bool is_id(const char *text, size_t n) {
    return is_hex(text, n) && strspn(text, "0") < n;
}

bool traceparent_read(const char *text, struct trace_ids *out) {
    *out = (struct trace_ids){.sampled = true};
    if (!text || strlen(text) < LEN || !is_hex(text, 2) || memcmp(text, "ff", 2) == 0)
        return false;
    const bool first = memcmp(text, "00", 2) == 0;
    if (text[AT_TRACE - 1] != '-' || text[AT_SPAN - 1] != '-' || text[AT_FLAGS - 1] != '-' ||
        (first ? text[LEN] != 0 : text[LEN] != 0 && text[LEN] != '-') ||
        !is_id(text + AT_TRACE, TRACE_ID_DIGITS) || !is_id(text + AT_SPAN, SPAN_ID_DIGITS) ||
        !is_hex(text + AT_FLAGS, 2))
        return false;
    snprintf(out->trace, sizeof out->trace, "%.32s", text + AT_TRACE);
    snprintf(out->parent, sizeof out->parent, "%.16s", text + AT_SPAN);
    out->sampled = strchr("13579bdf", text[AT_FLAGS + 1]) != NULL;
    return true;
}

bool trace_random_id(char *out, unsigned n) {
    unsigned char bytes[TRACE_ID_DIGITS / 2];
    ASSERT(n % 2 == 0 && n / 2 <= sizeof bytes);
    if (getentropy(bytes, n / 2) != 0)
        return false;
    bytes[0] |= 1; /* so that it is not zero */
    for (unsigned i = 0; i < n / 2; i++)
        snprintf(out + 2 * (size_t)i, 3, "%02x", bytes[i]);
    return true;
}
