/* SPDX-License-Identifier: Apache-2.0 */
/* metrics_join.c: pages of several models as one. In Prometheus' format a family stands once, with
 * the samples of all models:
 *
 *     # HELP family ...            # HELP family ...
 *     # TYPE family gauge     +    # TYPE family gauge     ->    header once,
 *     family 1                     family 2                      family{model_name="a"} 1
 *                                                                family{model_name="b"} 2
 *
 * A page may lack families that another has. Samples that have the label already keep theirs.
 */
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "server/metrics.h"

#define HELP "# HELP "

/* The line after this one. */
static const char *next_line(const char *at) {
    const char *end = strchr(at, '\n');
    ASSERT(end); /* every line of a page ends */
    return end + 1;
}

/* The family whose HELP line begins at `at`: its samples and the next one. */
static const char *samples_of(const char *at) {
    return next_line(next_line(at));
}

static const char *next_family(const char *at) {
    const char *next = strstr(at, "\n" HELP);
    return next ? next + 1 : at + strlen(at);
}

/* Where a page has the family of the HELP line at `of`; NULL: nowhere. */
static const char *find(const char *page, const char *of) {
    const size_t n = sizeof HELP + strcspn(of + sizeof HELP - 1, " "); /* with the blank */
    for (const char *at = page; *at; at = next_family(at))
        if (strncmp(at, of, n) == 0)
            return at;
    return NULL;
}

/* label: model_name="..."; NULL: none */
static bool add_samples(struct text_buf *out, const char *at, const char *label) {
    static const char OWN[] = "model_name=";
    const char *end = next_family(at);
    bool good = true;
    for (at = samples_of(at); good && at < end; at = next_line(at)) {
        const size_t n = (size_t)(next_line(at) - at), name = strcspn(at, "{ ");
        const bool braces = at[name] == '{';
        if (!label || (braces && strncmp(at + name + 1, OWN, sizeof OWN - 1) == 0))
            good = text_append(out, at, n);
        else
            good = text_append(out, at, name) && text_puts(out, "{") && text_puts(out, label) &&
                   text_puts(out, braces ? "," : "}") &&
                   text_append(out, at + name + braces, n - name - braces);
    }
    return good;
}

static bool is_earlier(char *const *pages, size_t page, const char *family) {
    for (size_t i = 0; i < page; i++)
        if (find(pages[i], family))
            return true;
    return false;
}

static bool join(char *const *pages, char *const *labels, size_t n, struct text_buf *out) {
    bool good = true;
    for (size_t i = 0; i < n; i++)
        for (const char *at = pages[i]; good && *at; at = next_family(at)) {
            if (is_earlier(pages, i, at))
                continue;
            good = text_append(out, at, (size_t)(samples_of(at) - at));
            for (size_t k = i; good && k < n; k++) {
                const char *same = find(pages[k], at);
                good = !same || add_samples(out, same, labels[k]);
            }
        }
    return good;
}

char *metrics_join(char *const *pages, const char *const *names, size_t n, size_t *len) {
    struct text_buf out = {0};
    char **labels = mem_calloc(n, sizeof *labels);
    bool good = labels != NULL;
    for (size_t i = 0; good && i < n; i++)
        good = !names[i] || (labels[i] = metrics_label("model_name", names[i])) != NULL;
    good = good && join(pages, labels, n, &out);
    for (size_t i = 0; labels && i < n; i++)
        mem_free(labels[i]);
    mem_free(labels);
    if (!good) {
        text_free(&out);
        return NULL;
    }
    *len = out.len;
    return out.data;
}
