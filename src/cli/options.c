/* SPDX-License-Identifier: Apache-2.0 */
/* options.c: reads a command line by a table of rows (struct option in cli.h). help.c prints the
 * same table, settings.c fills it from a file and the environment.
 *
 *     "--flag value", "--flag=value", "-f value", a flag without value, operands in the order of
 *     their rows, "--" before one that begins with a dash
 *
 * A row's default is text that is read like a typed value, or the value that the argument struct
 * already had (so that the library's defaults are written only in the library). An error is one
 * line that names the flag as it was typed, with exit code 2.
 *
 * Flags that the table lacks may be another program's (foreign_flags.c).
 *
 * Not supported: abbreviations, joined short flags.
 */
#include "cli.h"

#include <string.h>

/* ---- reading --------------------------------------------------------------------------------- */

static bool is_flag(const struct option *o) {
    return o->name[0] == '-';
}

static const struct option *find_flag(const struct command *c, const char *word,
                                      const char **value) {
    const char *equals = strncmp(word, "--", 2) == 0 ? strchr(word, '=') : NULL;
    const size_t n = equals ? (size_t)(equals - word) : strlen(word);
    const struct option *o = option_find(c, word, n);
    *value = equals ? equals + 1 : NULL;
    return o ? o : foreign_option(c, word, n);
}

static int read_operand(const struct command *c, const char *word, void *args) {
    const struct option *last = NULL;
    for (size_t i = 0; i < c->n_options; i++) {
        const struct option *o = &c->options[i];
        if (is_flag(o))
            continue;
        if (o->kind == OPTION_REST || !*(const char **)option_field(o, args))
            return option_read(c, o, o->name, word, args);
        last = o;
    }
    const struct option *model = option_find(c, "--model", strlen("--model"));
    if (!last && model && model->required && !*(const char **)option_field(model, args))
        return option_read(c, model, "MODEL", word, args); /* as with vllm serve */
    if (last)
        return usage_error(c, "one %s only, then came \"%.60s\"", last->name, word);
    if (option_find(c, "--prompt", strlen("--prompt")))
        return usage_error(c, "unexpected argument \"%.60s\": a prompt comes after -p", word);
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
        const struct option *other =
            o->instead ? option_find(c, o->instead, strlen(o->instead)) : NULL;
        if (o->required && !*(const char **)option_field(o, args) &&
            !(other && *(const char **)option_field(other, args)))
            return usage_error(c, "%s: missing%s; see kvasir %s --help",
                               o->alias ? o->alias : o->name,
                               strcmp(o->name, "--model") == 0
                                   ? ": a model's file, folder or name (kvasir list --short)"
                                   : "",
                               c->name);
    }
    for (size_t i = 0; i < c->n_options; i++) {
        const struct option *o = &c->options[i];
        const bool model = strcmp(o->name, "--model") == 0 || strcmp(o->name, "MODEL") == 0;
        if (model && o->required && *(const char **)option_field(o, args))
            return model_resolve(c, option_field(o, args));
    }
    return EXIT_GOOD;
}

/* Reads one flag with its values, which start at argv[*at]. */
static int read_flag(const struct command *c, const struct option *o, const char *word,
                     const char *value, int argc, char **argv, int *at, void *args) {
    char flag[64];
    snprintf(flag, sizeof flag, "%.*s", (int)(value ? value - 1 - word : (long)strlen(word)), word);
    if (o->kind == OPTION_FLAG)
        return value ? usage_error(c, "%s: takes no value", flag)
                     : option_read(c, o, flag, NULL, args);
    const char *unused;
    if (!value) {
        /* One of our flags is not a value: "-m --json" lacks the model. If such a value is meant,
         * it is written as "--prompt=--json". */
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
        if (help_print(c, argv[at], args)) { /* before anything typed has replaced a default */
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
        } else if (word[0] == '-' && word[1] != 0) {
            code = foreign_read(c, word, value, argc, argv, &at, args, &o);
            if (!code && o)
                given[o - c->options] = true;
        } else
            code = read_operand(c, word, args);
    }
    if (!code)
        code = settings_read(c, given, args);
    if (!code)
        code = check_required(c, args);
    *exit_code = code;
    return code == EXIT_GOOD;
}

/* ---- lists ----------------------------------------------------------------------------------- */

static int compare_numbers(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

void number_list_settle(struct number_list *list, bool zero_is_none) {
    size_t n = 0;
    qsort(list->items, list->n, sizeof *list->items, compare_numbers);
    for (size_t i = 0; i < list->n; i++) {
        const uint32_t item = list->items[i];
        if ((n == 0 || list->items[n - 1] != item) && (item != 0 || !zero_is_none))
            list->items[n++] = item;
    }
    list->n = n;
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

int kv_bits_settle(const struct command *c, struct text_list *bits, const char *one, size_t most) {
    if (bits->n == 0)
        bits->items[bits->n++] = one;
    if (bits->n > most)
        return usage_error(c, "--kv-bits: more than %zu formats", most);
    for (size_t i = 0; i < bits->n; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(bits->items[i], bits->items[k]) == 0)
                return usage_error(c, "--kv-bits: %.40s is given twice", bits->items[i]);
    return EXIT_GOOD;
}

struct engine_args engine_args_defaults(void) {
    kvasir_engine_options options = kvasir_engine_defaults();
    return (struct engine_args){.options = options,
                                .memory_percent = (float)options.cache_memory_percent,
                                .disk_gib = (float)(options.cache_disk_bytes >> 30),
                                .flush_seconds = (float)options.cache_flush_seconds};
}

int engine_args_options(const struct command *c, const struct engine_args *a,
                        kvasir_engine_options *out) {
    if (a->options.stored_kv_group_size && !a->options.stored_kv_bits)
        return usage_error(c, "--kv-cache-quantization-group-size: only allowed with "
                              "--kv-cache-quantization-bits");
    if (a->options.stored_kv_bits && a->options.no_prefix_cache)
        return usage_error(c, "--kv-cache-quantization-bits: not allowed with --no-prefix-cache");
    if (a->options.cache_remote_secret_file && !a->options.cache_remote)
        return usage_error(c, "--cache-remote-secret-file: only allowed with --cache-remote");
    if (a->tenant_gib > 0 && !a->options.cache_remote)
        return usage_error(c, "--cache-remote-tenant-gb: only allowed with --cache-remote");
    const char *store = a->host_mib               ? "--cache-host-mb"
                        : a->options.cache_dir    ? "--cache-dir"
                        : a->options.cache_remote ? "--cache-remote"
                                                  : NULL;
    if (a->options.no_prefix_cache && store)
        return usage_error(c, "%s: not allowed with --no-prefix-cache", store);
    *out = a->options;
    out->cache_disk_bytes = (uint64_t)((double)a->disk_gib * (1 << 30));
    out->cache_remote_tenant_bytes = (uint64_t)((double)a->tenant_gib * (1 << 30));
    out->cache_flush_seconds = (double)a->flush_seconds;
    out->cache_memory_bytes = a->memory_mib << 20;
    out->cache_host_bytes = a->host_mib << 20;
    /* vllm-mlx uses a fraction: 0.2 */
    out->cache_memory_percent = (double)a->memory_percent * (a->memory_percent < 1 ? 100 : 1);
    return EXIT_GOOD;
}
