/* SPDX-License-Identifier: Apache-2.0 */
/* settings.c: flags from the environment and from a file, for commands with a row CONFIG_OPTION.
 *
 *     command line  >  KVASIR_<FLAG>  >  --config FILE (or KVASIR_CONFIG)  >  default
 *
 * A variable is a flag's long name in capitals, with _ for -: KVASIR_KV_BITS. Its text is read as
 * if typed. For a flag without value it is 1, true, 0 or false; for a flag that may be given
 * several times, texts separated by commas. Other variables that begin with KVASIR_ are ignored.
 *
 * The file is one JSON object, whose keys are long names without their dashes:
 *
 *     {"kv-bits": "8,4", "max-num-seqs": 16, "prompt-cache-bytes": "4GB", "log-prompts": true,
 *      "api-key": ["a", "b"], "chat-template-kwargs": {"enable_thinking": false}}
 *
 * An unknown key, a duplicate key and a value of the wrong type are errors. File names are relative
 * to the working directory, as on the command line.
 *
 * Each source fills only what the sources before it have not set: lists are replaced, never joined.
 */
#include "cli.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

struct reader {
    const struct command *command;
    struct settings *settings;
    bool *given; /* [n_options] */
    void *args;
};

/* Keeps the object for as long as the settings live; NULL: out of memory. */
static json_t *keep(struct reader *r, json_t *value) {
    return json_array_append_new(r->settings->kept, value) == 0 ? value : NULL;
}

static int no_memory(const struct reader *r) {
    return run_error(r->command, "--config: out of memory");
}

static int set(struct reader *r, const struct option *o, const char *name, const char *text) {
    r->given[o - r->command->options] = true;
    return option_read(r->command, o, name, text, r->args);
}

static int set_flag(struct reader *r, const struct option *o, const char *name, bool on) {
    if (on)
        return set(r, o, name, NULL);
    r->given[o - r->command->options] = true;
    return EXIT_GOOD;
}

/* ---- environment ----------------------------------------------------------------------------- */

enum { NAME_MAX_BYTES = 80 };

/* "--kv-bits" to "KVASIR_KV_BITS" */
static void variable_name(const char *flag, char name[NAME_MAX_BYTES]) {
    size_t n = (size_t)snprintf(name, NAME_MAX_BYTES, "KVASIR_");
    for (const char *p = flag + 2; *p && n + 1 < NAME_MAX_BYTES; p++)
        name[n++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    name[n] = 0;
}

static int set_list(struct reader *r, const struct option *o, const char *name, const char *text) {
    int code = EXIT_GOOD;
    while (!code) {
        const size_t n = strcspn(text, ",");
        const json_t *item = keep(r, json_stringn_nocheck(text, n));
        if (!item)
            return no_memory(r);
        code = set(r, o, name, json_string_value(item));
        text += n;
        if (!*text)
            break;
        text++;
    }
    return code;
}

/* One name of a row; NULL and short ones have no variable. */
static int read_variable(struct reader *r, const struct option *o, const char *flag,
                         const char **taken) {
    char name[NAME_MAX_BYTES];
    if (!flag || strncmp(flag, "--", 2) != 0)
        return EXIT_GOOD;
    variable_name(flag, name);
    const char *text = getenv(name);
    if (!text)
        return EXIT_GOOD;
    if (*taken)
        return usage_error(r->command, "%s: the environment has it as %s, too", *taken, flag);
    *taken = flag;
    if (o->kind == OPTION_TEXTS || o->kind == OPTION_WORDS)
        return set_list(r, o, name, text);
    if (o->kind != OPTION_FLAG)
        return set(r, o, name, text);
    const bool on = strcmp(text, "1") == 0 || strcmp(text, "true") == 0;
    if (!on && strcmp(text, "0") != 0 && strcmp(text, "false") != 0)
        return usage_error(r->command, "%s: \"%.60s\" is not 1, true, 0 or false", name, text);
    return set_flag(r, o, name, on);
}

static int read_variables(struct reader *r) {
    int code = EXIT_GOOD;
    for (size_t i = 0; i < r->command->n_options && !code; i++) {
        const struct option *o = &r->command->options[i];
        const char *taken = NULL;
        if (r->given[i])
            continue;
        code = read_variable(r, o, o->name, &taken);
        if (!code)
            code = read_variable(r, o, o->alias, &taken);
    }
    return code;
}

/* ---- file ------------------------------------------------------------------------------------ */

/* What the file may contain for a row. */
static const char *wanted_type(const struct option *o) {
    switch (o->kind) {
    case OPTION_FLAG:
        return "true or false";
    case OPTION_TEXT:
    case OPTION_CONFIG:
        return o->number_too ? "a string or a whole number" : "a string";
    case OPTION_JSON:
        return "an object or a string";
    case OPTION_TEXTS:
    case OPTION_WORDS:
        return "a string or an array of strings";
    case OPTION_BYTES:
        return "a number or a string with a unit";
    default:
        return o->auto_too ? "a number or \"auto\"" : "a number";
    }
}

static bool is_list(const struct option *o) {
    return o->kind == OPTION_TEXTS || o->kind == OPTION_WORDS;
}

/* A JSON value of a type that the row takes, as text that is kept; NULL: another type, or out of
 * memory. */
static const char *text_of(struct reader *r, const struct option *o, const json_t *value) {
    const bool number = o->kind == OPTION_U32 || o->kind == OPTION_I32 || o->kind == OPTION_INT ||
                        o->kind == OPTION_U64 || o->kind == OPTION_FLOAT;
    const bool whole = json_is_integer(value) && o->number_too;
    if (json_is_string(value) && (!number || o->auto_too) && o->kind != OPTION_FLAG)
        return json_string_value(value);
    if (whole || (json_is_number(value) && (number || o->kind == OPTION_BYTES)) ||
        (json_is_object(value) && o->kind == OPTION_JSON)) {
        char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
        const json_t *kept = text ? keep(r, json_string(text)) : NULL;
        free(text);
        return json_string_value(kept);
    }
    return NULL;
}

static int read_value(struct reader *r, const struct option *o, const char *name,
                      const json_t *value) {
    if (o->kind == OPTION_FLAG && json_is_boolean(value))
        return set_flag(r, o, name, json_is_true(value));
    int code = EXIT_GOOD;
    size_t i = 0;
    const json_t *item = value;
    do {
        if (is_list(o) && json_is_array(value) && !(item = json_array_get(value, i)))
            break; /* the array's end */
        const char *text = text_of(r, o, item);
        if (!text)
            return usage_error(r->command, "%s: must be %s", name, wanted_type(o));
        code = set(r, o, name, text);
    } while (!code && item != value && ++i);
    return code;
}

/* place: where it is, for the error. */
static int no_such_key(const struct command *c, const char *place, const char *flag) {
    struct near near = {0};
    for (size_t i = 0; i < c->n_options; i++)
        if (c->options[i].name[0] == '-')
            near_try(&near, flag, strlen(flag), c->options[i].name);
    return usage_error(c, "%s: kvasir %s has no such flag%s%s%s", place, c->name,
                       near.best ? ": did you mean \"" : "", near.best ? near.best + 2 : "",
                       near.best ? "\"?" : "");
}

static int read_member(struct reader *r, const bool *before, const char *key, const json_t *value) {
    const struct command *c = r->command;
    char flag[NAME_MAX_BYTES], name[256];
    const int n = snprintf(flag, sizeof flag, "--%s", key);
    const struct option *o = n < (int)sizeof flag ? option_find(c, flag, (size_t)n) : NULL;
    snprintf(name, sizeof name, "--config: %.120s: \"%.60s\"", r->settings->path, key);
    if (!o)
        return no_such_key(c, name, flag);
    if (o->kind == OPTION_CONFIG)
        return usage_error(c, "%s: a file cannot name another", name);
    const size_t row = (size_t)(o - c->options);
    if (before[row])
        return EXIT_GOOD;
    if (r->given[row])
        return usage_error(c, "%s: the file has %s twice, under both its names", name, o->name);
    return read_value(r, o, name, value);
}

static int read_file(struct reader *r) {
    const struct command *c = r->command;
    const char *path = r->settings->path, *key;
    char *text;
    size_t len;
    json_t *value;
    kvasir_error why;
    bool before[OPTIONS_MAX];
    int code = read_text(c, "--config", path, &text, &len);
    if (code)
        return code;
    json_t *file;
    const kvasir_status status = json_load_bounded(text, len, 0, 0, &file, &why);
    free(text);
    if (status != KVASIR_OK)
        return usage_error(c, "--config: %.200s: %s", path, why.text);
    if (!keep(r, file))
        return no_memory(r);
    if (!json_is_object(file))
        return usage_error(c, "--config: %.200s: is not a JSON object", path);
    memcpy(before, r->given, c->n_options);
    json_object_foreach(file, key, value) {
        code = read_member(r, before, key, value);
        if (code)
            break;
    }
    return code;
}

/* ---- both ------------------------------------------------------------------------------------ */

int settings_read(const struct command *c, bool *given, void *args) {
    struct reader r = {.command = c, .given = given, .args = args};
    for (size_t i = 0; i < c->n_options; i++)
        if (c->options[i].kind == OPTION_CONFIG)
            r.settings = option_field(&c->options[i], args);
    if (!r.settings)
        return EXIT_GOOD;
    r.settings->kept = json_array();
    int code = r.settings->kept ? read_variables(&r) : no_memory(&r);
    if (!code && r.settings->path)
        code = read_file(&r);
    return code;
}

int settings_member(const struct command *c, struct settings *s, const char *where, const char *key,
                    const json_t *value, void *args) {
    bool given[OPTIONS_MAX] = {false};
    struct reader r = {.command = c, .settings = s, .given = given, .args = args};
    char flag[NAME_MAX_BYTES], name[400];
    const int n = snprintf(flag, sizeof flag, "--%s", key);
    const struct option *o = n < (int)sizeof flag ? option_find(c, flag, (size_t)n) : NULL;
    ASSERT(o); /* the caller has looked */
    snprintf(name, sizeof name, "%.300s: \"%.60s\"", where, key);
    return read_value(&r, o, name, value);
}

void settings_free(struct settings *s) {
    json_decref(s->kept);
    *s = (struct settings){0};
}
