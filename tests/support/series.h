/* SPDX-License-Identifier: Apache-2.0 */
/* Prometheus' text format 0.0.4, read back by its own rules: each family once, with a type and all
 * of its samples together; no sample twice; histograms cumulative. A text that breaks a rule fails
 * the test. One thread at a time. */
#ifndef SERIES_H
#define SERIES_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { SERIES_MAX = 1000, NAME_MAX_LEN = 400 };

struct series {
    char name[NAME_MAX_LEN]; /* with its labels, as written */
    char type;               /* of its family: c, g, h */
    double value;
};
static struct series read_back[SERIES_MAX];
static size_t n_series;
static char families[20000]; /* " name name " */

static inline bool name_char(char c, bool first) {
    return c == '_' || c == ':' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (!first && c >= '0' && c <= '9');
}

static inline const char *read_name(const char *at) {
    assert_true(name_char(*at, true));
    while (name_char(*at, false))
        at++;
    return at;
}

/* {name="value",...}; the only escapes are \\ \" and \n. */
static inline const char *read_labels(const char *at) {
    do {
        at = read_name(at + 1);
        assert_true(strncmp(at, "=\"", 2) == 0);
        for (at += 2; *at != '"'; at++) {
            assert_true(*at && *at != '\n');
            if (*at == '\\')
                assert_non_null(strchr("\\\"n", *++at));
        }
        at++;
    } while (*at == ',');
    assert_int_equal(*at, '}');
    return at + 1;
}

/* Whether a sample's name belongs to the family. */
static inline bool belongs(const char *name, size_t len, const char *family, char type) {
    static const char *const PARTS[] = {"_bucket", "_sum", "_count"};
    const size_t n = strlen(family);
    if (len < n || strncmp(name, family, n) != 0)
        return false;
    if (type != 'h')
        return len == n;
    for (int i = 0; i < 3; i++)
        if (len == n + strlen(PARTS[i]) && strncmp(name + n, PARTS[i], len - n) == 0)
            return true;
    return false;
}

static inline void read_sample(const char *line, const char *family, char type) {
    struct series *s = &read_back[n_series++];
    const char *at = read_name(line);
    assert_true(n_series < SERIES_MAX);
    assert_true(belongs(line, (size_t)(at - line), family, type));
    if (*at == '{')
        at = read_labels(at);
    snprintf(s->name, sizeof s->name, "%.*s", (int)(at - line), line);
    char *end;
    assert_int_equal(*at, ' ');
    s->value = strtod(at + 1, &end);
    s->type = type;
    assert_true(end > at + 1 && *end == '\n' && s->value >= 0);
    for (size_t i = 0; i + 1 < n_series; i++)
        assert_string_not_equal(read_back[i].name, s->name);
}

static inline void read_text(const char *text) {
    char family[200] = "", type[20] = "";
    n_series = 0;
    strcpy(families, " ");
    for (const char *line = text, *next; *line; line = next) {
        char name[200], word[20];
        next = strchr(line, '\n');
        assert_non_null(next);
        next++;
        if (sscanf(line, "# HELP %199s", name) == 1) {
            char once[210];
            snprintf(once, sizeof once, " %s ", name);
            assert_null(strstr(families, once)); /* all lines of a family are together */
            strcat(families, once + 1);
            snprintf(family, sizeof family, "%s", name);
            type[0] = 0;
        } else if (sscanf(line, "# TYPE %199s %19s", name, word) == 2) {
            assert_string_equal(name, family);
            snprintf(type, sizeof type, "%s", word);
            assert_true(!strcmp(type, "counter") || !strcmp(type, "gauge") ||
                        !strcmp(type, "histogram"));
            const size_t n = strlen(name);
            if (type[0] == 'c')
                assert_string_equal(name + n - 6, "_total");
        } else {
            assert_true(type[0]);
            read_sample(line, family, type[0]);
        }
    }
}

static inline const struct series *find(const char *name) {
    for (size_t i = 0; i < n_series; i++)
        if (strcmp(read_back[i].name, name) == 0)
            return &read_back[i];
    return NULL;
}

static inline double value(const char *name) {
    const struct series *s = find(name);
    if (!s)
        fail_msg("%s is not there", name);
    return s->value;
}

/* Buckets are cumulative and end at the count. All our histograms have one set of labels. */
static inline void check_histograms(void) {
    double last = 0;
    char base[NAME_MAX_LEN] = "";
    for (size_t i = 0; i < n_series; i++) {
        const char *bucket = strstr(read_back[i].name, "_bucket{");
        if (!bucket)
            continue;
        const size_t n = (size_t)(bucket - read_back[i].name);
        if (strncmp(base, read_back[i].name, n) != 0 || base[n])
            last = 0;
        snprintf(base, sizeof base, "%.*s", (int)n, read_back[i].name);
        assert_true(read_back[i].value >= last);
        last = read_back[i].value;
        if (strstr(bucket, "le=\"+Inf\"")) {
            assert_non_null(strstr(read_back[i + 1].name, "_sum"));
            assert_non_null(strstr(read_back[i + 2].name, "_count"));
            assert_true(read_back[i + 2].value == last);
        }
    }
}

#endif
