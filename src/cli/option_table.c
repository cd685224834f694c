/* SPDX-License-Identifier: Apache-2.0 */
/* option_table.c: rows of a command's table: finds them by name and sets them from text. */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- values ---------------------------------------------------------------------------------- */

void *option_field(const struct option *o, void *args) {
    return (char *)args + o->offset;
}

static int bad_number(const struct command *c, const struct option *o, const char *flag,
                      const char *text) {
    const size_t n = strlen(o->name);
    const char *unit = n > 3 ? o->name + n - 3 : "";
    return usage_error(c, "%s: \"%.60s\" is not a %snumber%s%s", flag, text,
                       o->kind == OPTION_FLOAT ? "" : "whole ",
                       strcmp(unit, "-mb") == 0   ? " of MiB"
                       : strcmp(unit, "-gb") == 0 ? " of GiB"
                                                  : "",
                       o->auto_too ? " or \"auto\"" : "");
}

static int out_of_range(const struct command *c, const struct option *o, const char *flag,
                        const char *text) {
    return usage_error(c, "%s: %.60s is out of range, it goes from %.10g to %.20g", flag, text,
                       o->min, o->max);
}

static int read_whole(const struct command *c, const struct option *o, const char *flag,
                      const char *text, void *args) {
    bool negative = *text == '-';
    const char *digits = o->auto_too && strcmp(text, "auto") == 0 ? "0" : text + negative;
    if (*digits == 0 || strspn(digits, "0123456789") != strlen(digits))
        return bad_number(c, o, flag, text);
    errno = 0;
    unsigned long long n = strtoull(digits, NULL, 10);
    if (errno || (negative && n != 0) || (double)n < o->min || (double)n > o->max)
        return out_of_range(c, o, flag, text);
    if (o->kind == OPTION_U64)
        *(uint64_t *)option_field(o, args) = n;
    else if (o->kind == OPTION_U32)
        *(uint32_t *)option_field(o, args) = (uint32_t)n;
    else if (o->kind == OPTION_I32)
        *(int32_t *)option_field(o, args) = (int32_t)n;
    else
        *(int *)option_field(o, args) = (int)n;
    return EXIT_GOOD;
}

static int read_float(const struct command *c, const struct option *o, const char *flag,
                      const char *text, void *args) {
    char *end;
    double x = strtod(text, &end);
    if (*text == 0 || *end || strspn(text, "0123456789.eE+-") != strlen(text))
        return bad_number(c, o, flag, text);
    if (!(x >= o->min && x <= o->max))
        return out_of_range(c, o, flag, text);
    *(float *)option_field(o, args) = (float)x;
    return EXIT_GOOD;
}

static int append_text(const struct command *c, const char *flag, const char *text,
                       struct text_list *list) {
    if (list->n == TEXT_LIST_MAX)
        return usage_error(c, "%s: more than %d values", flag, TEXT_LIST_MAX);
    list->items[list->n++] = text;
    return EXIT_GOOD;
}

/* Replaces the default, and what was typed before. */
static int read_numbers(const struct command *c, const struct option *o, const char *flag,
                        const char *text, struct number_list *list) {
    for (list->n = 0;;) {
        const struct option one = {
            .name = o->name, .kind = OPTION_U32, .min = o->min, .max = o->max};
        const size_t length = strcspn(text, ",");
        char number[64];
        snprintf(number, sizeof number, "%.*s", (int)(length < 60 ? length : 60), text);
        if (list->n == NUMBER_LIST_MAX)
            return usage_error(c, "%s: more than %d numbers", flag, NUMBER_LIST_MAX);
        const int code = read_whole(c, &one, flag, number, &list->items[list->n]);
        if (code)
            return code;
        list->n++;
        if (!text[length])
            return EXIT_GOOD;
        text += length + 1;
    }
}

static int append_word(const struct command *c, const char *text, struct word_list *list) {
    if (!ARRAY_GROW(list->items, list->cap, list->n + 1))
        return run_error(c, "out of memory");
    list->items[list->n++] = text;
    return EXIT_GOOD;
}

/* Bytes with the units of mlx_lm.server, which are decimal, and with binary ones. */
static int read_bytes(const struct command *c, const struct option *o, const char *flag,
                      const char *text, void *args) {
    static const struct {
        const char *name;
        double bytes;
    } UNITS[] = {{"", 1},         {"B", 1},        {"K", 1e3},      {"KB", 1e3},    {"M", 1e6},
                 {"MB", 1e6},     {"G", 1e9},      {"GB", 1e9},     {"T", 1e12},    {"TB", 1e12},
                 {"KIB", 0x1p10}, {"MIB", 0x1p20}, {"GIB", 0x1p30}, {"TIB", 0x1p40}};
    const size_t digits = strspn(text, "0123456789.");
    char *end;
    const double x = strtod(text, &end);
    for (size_t i = 0; digits && end == text + digits && i < sizeof UNITS / sizeof *UNITS; i++)
        if (strcasecmp(end, UNITS[i].name) == 0) {
            if (x * UNITS[i].bytes > 0x1p60)
                return usage_error(c, "%s: %.60s is out of range", flag, text);
            *(uint64_t *)option_field(o, args) = (uint64_t)(x * UNITS[i].bytes);
            return EXIT_GOOD;
        }
    return usage_error(c,
                       "%s: \"%.60s\" is not a number of bytes such as 4GB, 500M or "
                       "1.5GiB",
                       flag, text);
}

int option_read(const struct command *c, const struct option *o, const char *flag, const char *text,
                void *args) {
    switch (o->kind) {
    case OPTION_FLAG:
        *(bool *)option_field(o, args) = true;
        return EXIT_GOOD;
    case OPTION_TEXT:
    case OPTION_JSON:
        *(const char **)option_field(o, args) = text;
        return EXIT_GOOD;
    case OPTION_CONFIG:
        ((struct settings *)option_field(o, args))->path = text;
        return EXIT_GOOD;
    case OPTION_TEXTS:
    case OPTION_WORDS:
        return append_text(c, flag, text, option_field(o, args));
    case OPTION_REST:
        return append_word(c, text, option_field(o, args));
    case OPTION_NUMBERS:
        return read_numbers(c, o, flag, text, option_field(o, args));
    case OPTION_FLOAT:
        return read_float(c, o, flag, text, args);
    case OPTION_BYTES:
        return read_bytes(c, o, flag, text, args);
    case OPTION_U32:
    case OPTION_I32:
    case OPTION_INT:
    case OPTION_U64:
        return read_whole(c, o, flag, text, args);
    }
    return EXIT_USAGE;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Whether the n bytes of text are exactly the name. */
static bool is_name(const char *name, const char *text, size_t n) {
    return name && strlen(name) == n && memcmp(name, text, n) == 0;
}

const struct option *option_find(const struct command *c, const char *name, size_t n) {
    for (size_t i = 0; i < c->n_options; i++) {
        const struct option *o = &c->options[i];
        if (o->name[0] == '-' && (is_name(o->name, name, n) || is_name(o->alias, name, n)))
            return o;
    }
    return NULL;
}
