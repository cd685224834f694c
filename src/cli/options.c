/* SPDX-License-Identifier: Apache-2.0 */
/* options.c: reads a command line by a table of rows (struct option in cli.h). help.c prints the
 * same table, settings.c fills it from a file and the environment.
 *
 *     "--flag value", "--flag=value", "-f value", a flag without value, operands in the order of
 *     their rows, "--" before one that begins with a dash
 *
 * A row's default is text read like a typed value, or what the argument struct held before (so that
 * the library's own defaults are written once, in the library). An error is one line that names the
 * flag as it was typed, exit code 2.
 *
 * Left out: abbreviations, joined short flags.
 */
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
    return usage_error(c, "%s: \"%.60s\" is not a %snumber", flag, text,
                       o->kind == OPTION_FLOAT ? "" : "whole ");
}

static int out_of_range(const struct command *c, const struct option *o, const char *flag,
                        const char *text) {
    return usage_error(c, "%s: %.60s is out of range, it goes from %.10g to %.20g", flag, text,
                       o->min, o->max);
}

static int read_whole(const struct command *c, const struct option *o, const char *flag,
                      const char *text, void *args) {
    bool negative = *text == '-';
    const char *digits = text + negative;
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

/* Bytes with the units of mlx_lm.server, which are decimal, and binary ones. */
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
    return usage_error(c, "%s: \"%.60s\" is no number of bytes, as 4GB, 500M or 1.5GiB", flag,
                       text);
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

/* ---- reading --------------------------------------------------------------------------------- */

static bool is_flag(const struct option *o) {
    return o->name[0] == '-';
}

/* [n] of text is the name, to the end. */
static bool is_name(const char *name, const char *text, size_t n) {
    return name && strlen(name) == n && memcmp(name, text, n) == 0;
}

const struct option *option_find(const struct command *c, const char *name, size_t n) {
    for (size_t i = 0; i < c->n_options; i++) {
        const struct option *o = &c->options[i];
        if (is_flag(o) && (is_name(o->name, name, n) || is_name(o->alias, name, n)))
            return o;
    }
    return NULL;
}

/* The row of "--name" or of the part before '=' in "--name=value"; *value is behind the '=', or
 * NULL. */
static const struct option *find_flag(const struct command *c, const char *word,
                                      const char **value) {
    const char *equals = strncmp(word, "--", 2) == 0 ? strchr(word, '=') : NULL;
    *value = equals ? equals + 1 : NULL;
    return option_find(c, word, equals ? (size_t)(equals - word) : strlen(word));
}

static int read_operand(const struct command *c, const char *word, void *args) {
    const struct option *last = NULL;
    for (size_t i = 0; i < c->n_options; i++) {
        const struct option *o = &c->options[i];
        if (is_flag(o))
            continue;
        if (!*(const char **)option_field(o, args))
            return option_read(c, o, o->name, word, args);
        last = o;
    }
    if (last)
        return usage_error(c, "one %s only, then came \"%.60s\"", last->name, word);
    return usage_error(c, "unexpected argument \"%.60s\"; see kvasir %s --help", word, c->name);
}

static int set_defaults(const struct command *c, void *args) {
    int code = EXIT_GOOD;
    for (size_t i = 0; i < c->n_options && !code; i++)
        if (c->options[i].initial)
            code = option_read(c, &c->options[i], c->options[i].name, c->options[i].initial, args);
    return code;
}

static int check_required(const struct command *c, void *args) {
    for (size_t i = 0; i < c->n_options; i++) {
        const struct option *o = &c->options[i];
        if (o->required && !*(const char **)option_field(o, args))
            return usage_error(c, "%s: missing; see kvasir %s --help",
                               o->alias ? o->alias : o->name, c->name);
    }
    return EXIT_GOOD;
}

/* One flag with its values, which start at argv[*at] behind it. */
static int read_flag(const struct command *c, const struct option *o, const char *word,
                     const char *value, int argc, char **argv, int *at, void *args) {
    char flag[64];
    snprintf(flag, sizeof flag, "%.*s", (int)(value ? value - 1 - word : (long)strlen(word)), word);
    if (o->kind == OPTION_FLAG)
        return value ? usage_error(c, "%s: takes no value", flag)
                     : option_read(c, o, flag, NULL, args);
    const char *unused;
    if (!value) {
        /* A flag of ours is not a value: "-m --json" forgot the model. "--prompt=--json" says so
         * where it is meant. */
        if (*at == argc || find_flag(c, argv[*at], &unused))
            return usage_error(c, "%s: needs a value", flag);
        value = argv[(*at)++];
    }
    int code = option_read(c, o, flag, value, args);
    while (o->kind == OPTION_WORDS && !code && *at < argc && argv[*at][0] != '-')
        code = option_read(c, o, flag, argv[(*at)++], args);
    return code;
}

bool options_read(const struct command *c, int argc, char **argv, void *args, int *exit_code) {
    bool given[OPTIONS_MAX] = {false};
    ASSERT(c->n_options <= OPTIONS_MAX);
    int code = set_defaults(c, args);
    for (int at = 1; at < argc && !code; at++)
        if (help_print(c, argv[at], args)) { /* first: nothing typed has replaced a default yet */
            *exit_code = finish_output(c);
            return false;
        }
    for (int at = 1; at < argc && !code;) {
        const char *word = argv[at++], *value;
        const struct option *o = find_flag(c, word, &value);
        if (strcmp(word, "--") == 0 && at < argc)
            code = read_operand(c, argv[at++], args);
        else if (o) {
            given[o - c->options] = true;
            code = read_flag(c, o, word, value, argc, argv, &at, args);
        } else if (word[0] == '-' && word[1] != 0)
            code = usage_error(c, "unknown flag \"%.60s\"; see kvasir %s --help", word, c->name);
        else
            code = read_operand(c, word, args);
    }
    if (!code)
        code = settings_read(c, given, args);
    if (!code)
        code = check_required(c, args);
    *exit_code = code;
    return code == EXIT_GOOD;
}

/* ---- flags of the cache ---------------------------------------------------------------------- */

struct cache_args cache_args_defaults(void) {
    return (struct cache_args){.options = kvasir_context_defaults()};
}

kvasir_context_options cache_args_options(const struct cache_args *a) {
    kvasir_context_options options = a->options;
    options.cache_bytes = a->cache_mib << 20;
    return options;
}

struct engine_args engine_args_defaults(void) {
    kvasir_engine_options options = kvasir_engine_defaults();
    return (struct engine_args){.options = options,
                                .memory_percent = (float)options.cache_memory_percent};
}

int engine_args_options(const struct command *c, const struct engine_args *a,
                        kvasir_engine_options *out) {
    if (a->options.stored_kv_group_size && !a->options.stored_kv_bits)
        return usage_error(c, "--kv-cache-quantization-group-size: has no place without "
                              "--kv-cache-quantization-bits");
    if (a->options.stored_kv_bits && a->options.no_prefix_cache)
        return usage_error(c, "--kv-cache-quantization-bits: has no place with --no-prefix-cache");
    *out = a->options;
    out->cache_memory_bytes = a->memory_mib << 20;
    /* vllm-mlx has a fraction here: 0.2 */
    out->cache_memory_percent = (double)a->memory_percent * (a->memory_percent < 1 ? 100 : 1);
    return EXIT_GOOD;
}
