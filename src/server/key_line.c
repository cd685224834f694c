/* SPDX-License-Identifier: Apache-2.0 */
/* key_line.c: a line of a key file, "KEY [NAME=VALUE ...]". */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/server.h"
#include "util/utf8.h"
#include "util/util.h"

static bool read_number(const char *text, uint64_t most, uint64_t *out) {
    char *end;
    if (*text < '1' || *text > '9' || strlen(text) > 15)
        return false;
    *out = strtoull(text, &end, 10);
    return !*end && *out <= most;
}

/* The end of that day, UTC. */
static bool read_date(const char *text, int64_t *out) {
    struct tm day = {0};
    const char *end = strptime(text, "%Y-%m-%d", &day);
    if (!end || *end || strlen(text) != 10)
        return false;
    const int written = day.tm_mday;
    *out = (int64_t)timegm(&day) + 24 * 3600;
    return day.tm_mday == written; /* timegm makes March of February 30 */
}

/* It becomes a label of figures and a part of messages. */
static bool is_name(const char *text) {
    const size_t n = strlen(text);
    bool good = n > 0 && n <= SERVER_KEY_NAME_MAX && utf8_check(text, n) == n;
    for (size_t i = 0; i < n; i++)
        good = good && (unsigned char)text[i] >= 0x20 && text[i] != 0x7f;
    return good;
}

static const char *read_word(char *word, struct server_key *out) {
    char *value = strchr(word, '=');
    uint64_t n = 0;
    if (!value)
        return "expected NAME=VALUE";
    *value++ = 0;
    if (strcmp(word, "name") == 0) {
        out->name = value;
        return is_name(value) ? NULL : "a name has 1 to 64 bytes of UTF-8";
    }
    if (strcmp(word, "expires") == 0)
        return read_date(value, &out->expires_s) ? NULL : "not a date such as 2027-12-31";
    const bool weight = strcmp(word, "weight") == 0;
    const char *wrong =
        weight ? "not a number from 1 to 1000" : "not a number from 1 to 4294967295";
    const bool good = read_number(value, weight ? KVASIR_WEIGHT_MAX : UINT32_MAX, &n);
    if (weight)
        out->weight = (uint32_t)n;
    else if (strcmp(word, "concurrent") == 0)
        out->concurrent = (uint32_t)n;
    else if (strcmp(word, "requests_per_minute") == 0)
        out->requests_per_minute = (uint32_t)n;
    else if (strcmp(word, "tokens_per_minute") == 0)
        out->tokens_per_minute = (uint32_t)n;
    else
        return "unknown: name, weight, concurrent, requests_per_minute, tokens_per_minute or "
               "expires";
    return good ? NULL : wrong;
}

const char *server_read_key(char *line, struct server_key *out, size_t *column) {
    const char *blanks = " \t\r";
    *out = (struct server_key){.key = line};
    for (char *at = line + strcspn(line, blanks); *at; at += strcspn(at, blanks)) {
        *at++ = 0;
        at += strspn(at, blanks);
        const size_t n = strcspn(at, blanks);
        const char after = at[n];
        if (!n)
            break;
        at[n] = 0;
        *column = (size_t)(at - line) + 1;
        const char *why = read_word(at, out);
        if (why)
            return why;
        at[n] = after;
        at += n;
        ASSERT(at > line);
    }
    *column = 1;
    return NULL;
}
