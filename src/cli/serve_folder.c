/* SPDX-License-Identifier: Apache-2.0 */
/* serve_folder.c: `kvasir serve --models`, which models: those of a folder,
 *
 *     DIR/small.gguf                      "small"
 *     DIR/big-00001-of-00002.gguf, ...    "big"
 *     DIR/chat/config.json, ...           "chat"
 *
 * in the order of their names, or those of a file, an array of objects:
 *
 *     [{"path": "m/small.gguf", "aliases": ["gpt-4o-mini"], "share": 30, "pinned": true,
 *       "default": true, "kv-bits": "8,4", "ctx": 8192}, ...]
 *
 * Members that are not this file's own are flags of the command that concern one model (FLAGS), as
 * in a file of --config, and go before those of the command line. Nothing is opened here.
 */
#include "serve.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char SUFFIX[] = ".gguf";

static int no_memory(const struct serve_models *all) {
    return run_error(all->command, "--models: out of memory");
}

/* ---- files ----------------------------------------------------------------------------------- */

static bool ends_with(const char *name, const char *end) {
    const size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

/* A path's last part without ".gguf" and the number of a part. mem_free. */
static char *name_of(const char *path) {
    char base[MODEL_NAME_BYTES];
    model_base_name(path, base);
    size_t n = strlen(base);
    if (ends_with(base, SUFFIX))
        n -= sizeof SUFFIX - 1;
    if (hub_part_number(base, n))
        n -= HUB_PART_BYTES;
    return mem_strndup(base, n);
}

static bool is_file(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static uint64_t size_of(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/* Of all weights in a folder; of a file, or all parts of it. */
static uint64_t weights_of(const char *path) {
    char folder[PATH_MAX], file[PATH_MAX + 256], *own = NULL;
    uint64_t bytes = 0;
    const bool whole = file_is_dir(path);
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s",
             whole || !slash ? PATH_MAX - 1 : (int)(slash - path) + 1,
             whole   ? path
             : slash ? path
                     : ".");
    DIR *dir = opendir(folder);
    if (!whole)
        own = name_of(path);
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        char *name = whole ? NULL : name_of(e->d_name);
        const bool is_own =
            whole ? ends_with(e->d_name, ".safetensors")
                  : name && own && strcmp(name, own) == 0 && ends_with(e->d_name, SUFFIX);
        snprintf(file, sizeof file, "%s/%s", folder, e->d_name);
        bytes += is_own ? size_of(file) : 0;
        mem_free(name);
    }
    if (dir)
        closedir(dir);
    mem_free(own);
    return bytes;
}

/* ---- the list -------------------------------------------------------------------------------- */

static struct serve_model *add(struct serve_models *all, const struct serve_args *a,
                               const char *path) {
    if (!ARRAY_GROW(all->items, all->cap, all->n + 1))
        return NULL;
    struct serve_model *m = &all->items[all->n++];
    *m = (struct serve_model){.args = *a, .path = mem_strdup(path), .name = name_of(path)};
    m->file_bytes = weights_of(path);
    return m->path && m->name ? m : NULL;
}

/* Whether a folder's entry is a model: *path is its path then. */
static bool is_model(const char *folder, const char *name, char path[PATH_MAX]) {
    char config[PATH_MAX + 16];
    if (*name == '.' || snprintf(path, PATH_MAX, "%s/%s", folder, name) >= PATH_MAX)
        return false;
    snprintf(config, sizeof config, "%s/config.json", path);
    if (file_is_dir(path))
        return is_file(config);
    return is_file(path) && ends_with(name, SUFFIX) &&
           hub_part_number(name, strlen(name) - (sizeof SUFFIX - 1)) <= 1;
}

static int by_name(const void *a, const void *b) {
    const struct serve_model *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int read_folder(struct serve_models *all, const struct serve_args *a) {
    const struct command *c = all->command;
    char path[PATH_MAX], folder[PATH_MAX];
    size_t n = (size_t)snprintf(folder, sizeof folder, "%s", a->models);
    while (n > 1 && n < sizeof folder && folder[n - 1] == '/')
        folder[--n] = 0;
    DIR *dir = opendir(folder);
    if (!dir)
        return run_error(c, "--models: %.200s: cannot open: %s", a->models, strerror(errno));
    bool good = true;
    for (struct dirent *e; good && (e = readdir(dir)) != NULL;)
        good = !is_model(folder, e->d_name, path) || add(all, a, path);
    closedir(dir);
    if (!good)
        return no_memory(all);
    if (all->n == 0)
        return usage_error(c,
                           "--models: %.200s: contains no model: no GGUF file, and no folder with "
                           "config.json",
                           a->models);
    qsort(all->items, all->n, sizeof *all->items, by_name);
    return EXIT_GOOD;
}

/* ---- a file ---------------------------------------------------------------------------------- */

/* Flags that may differ from model to model. */
static const char *const FLAGS[] = {"mlock",
                                    "no-mmap",
                                    "kv-bits",
                                    "kv-group-size",
                                    "quantized-kv-start",
                                    "kv-exact-tail",
                                    "max-kv-size",
                                    "kv-keep",
                                    "ctx",
                                    "prefill-chunk",
                                    "target-step-ms",
                                    "threads",
                                    "act-bits",
                                    "snapshot-tokens",
                                    "max-num-seqs",
                                    "no-prefix-cache",
                                    "kv-cache-quantization-bits",
                                    "kv-cache-quantization-group-size",
                                    "kv-cache-min-quantize-tokens",
                                    "prompt-cache-size",
                                    "prompt-cache-bytes",
                                    "chat-template",
                                    "chat-template-kwargs",
                                    "control-tokens",
                                    "tool-call-parser",
                                    "reasoning-parser",
                                    "max-tokens",
                                    "max-request-tokens",
                                    "temp",
                                    "top-p",
                                    "min-p",
                                    "top-k",
                                    "min-tokens-to-keep",
                                    "xtc-probability",
                                    "xtc-threshold",
                                    "repetition-penalty",
                                    "repetition-context-size",
                                    "presence-penalty",
                                    "presence-context-size",
                                    "frequency-penalty",
                                    "frequency-context-size",
                                    "generation-config"};

static bool is_flag(const char *key) {
    size_t i = 0;
    while (i < sizeof FLAGS / sizeof *FLAGS && strcmp(FLAGS[i], key) != 0)
        i++;
    return i < sizeof FLAGS / sizeof *FLAGS;
}

static int wrong(const struct serve_models *all, const char *where, const char *key,
                 const char *what) {
    return usage_error(all->command, "%s: \"%.60s\": must be %s", where, key, what);
}

static int read_aliases(struct serve_models *all, struct serve_model *m, const char *where,
                        const json_t *value) {
    const size_t n = json_array_size(value);
    if (!json_is_array(value))
        return wrong(all, where, "aliases", "an array of strings");
    m->aliases = mem_calloc(n + 1, sizeof *m->aliases);
    if (!m->aliases)
        return no_memory(all);
    for (; m->n_aliases < n; m->n_aliases++) {
        const char *text = json_string_value(json_array_get(value, m->n_aliases));
        if (!text || !*text)
            return wrong(all, where, "aliases", "an array of strings that are not empty");
        m->aliases[m->n_aliases] = text;
    }
    return EXIT_GOOD;
}

static int set_name(const struct serve_models *all, struct serve_model *m, const char *name) {
    mem_free(m->name);
    m->name = mem_strdup(name);
    return m->name ? EXIT_GOOD : no_memory(all);
}

static int read_name(const struct serve_models *all, struct serve_model *m, const char *where,
                     const json_t *value) {
    const char *text = json_string_value(value);
    if (!text || !*text)
        return wrong(all, where, "name", "a string that is not empty");
    return set_name(all, m, text);
}

static int read_member(struct serve_models *all, struct serve_model *m, const char *where,
                       const char *key, const json_t *value) {
    bool *flag = strcmp(key, "pinned") == 0    ? &m->pinned
                 : strcmp(key, "default") == 0 ? &m->is_default
                                               : NULL;
    const double number = json_number_value(value);
    if (flag && !json_is_boolean(value))
        return wrong(all, where, key, "true or false");
    if (flag)
        *flag = json_is_true(value);
    else if (strcmp(key, "name") == 0)
        return read_name(all, m, where, value);
    else if (strcmp(key, "aliases") == 0)
        return read_aliases(all, m, where, value);
    else if (strcmp(key, "share") == 0 && !(number > 0 && number <= 100))
        return wrong(all, where, key, "a number above 0 and at most 100: percent of the cache");
    else if (strcmp(key, "share") == 0)
        m->share = number;
    else if (strcmp(key, "cache-memory-mb") == 0 && (!json_is_integer(value) || number < 1))
        return wrong(all, where, key, "a whole number above 0");
    else if (strcmp(key, "cache-memory-mb") == 0)
        m->own_bytes = (uint64_t)json_integer_value(value) << 20;
    else if (strcmp(key, "path") != 0 && is_flag(key))
        return settings_member(all->command, &all->kept, where, key, value, &m->args);
    else if (strcmp(key, "path") != 0)
        return usage_error(all->command,
                           "%s: \"%.60s\" is neither name, path, aliases, share, cache-memory-mb, "
                           "pinned or default, nor a flag that a model can have of its own",
                           where, key);
    return EXIT_GOOD;
}

static int read_entry(struct serve_models *all, const struct serve_args *a, const char *where,
                      const json_t *entry) {
    const char *given = json_string_value(json_object_get(entry, "path")), *path = given, *key;
    json_t *value;
    if (!json_is_object(entry))
        return usage_error(all->command, "%s: is not an object with a \"path\"", where);
    if (!given || !*given)
        return wrong(all, where, "path", "the path of a GGUF file or of a folder");
    int code = model_resolve(all->command, &path);
    if (code)
        return code;
    struct serve_model *m = add(all, a, path);
    code = !m ? no_memory(all) : path != given ? set_name(all, m, given) : EXIT_GOOD;
    json_object_foreach((json_t *)(uintptr_t)entry, key, value) {
        if (!code)
            code = read_member(all, m, where, key, value);
    }
    if (!code && m->share > 0 && m->own_bytes)
        return usage_error(all->command, "%s: \"share\" and \"cache-memory-mb\": give one", where);
    return code;
}

static int read_file(struct serve_models *all, const struct serve_args *a) {
    const struct command *c = all->command;
    char *text, where[300];
    size_t len, i;
    kvasir_error why;
    json_t *file, *entry;
    int code = read_text(c, "--models", a->models, &text, &len);
    if (code)
        return code;
    const kvasir_status status = json_load_bounded(text, len, 0, 0, &file, &why);
    free(text);
    if (status != KVASIR_OK)
        return usage_error(c, "--models: %.200s: %s", a->models, why.text);
    if (json_array_append_new(all->kept.kept, file) != 0)
        return no_memory(all);
    if (!json_is_array(file) || json_array_size(file) == 0)
        return usage_error(c, "--models: %.200s: is not an array of models", a->models);
    json_array_foreach(file, i, entry) {
        snprintf(where, sizeof where, "--models: %.200s: model %zu", a->models, i + 1);
        if (!code)
            code = read_entry(all, a, where, entry);
    }
    return code;
}

int serve_folder_read(struct serve_models *all, const struct serve_args *a) {
    return file_is_dir(a->models) ? read_folder(all, a) : read_file(all, a);
}
