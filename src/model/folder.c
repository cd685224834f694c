/* SPDX-License-Identifier: Apache-2.0 */
/* A Hugging Face folder's files for text.
 *
 *     tokenizer.json           mapped; text/ parses it                        spec.json
 *     tokenizer_config.json    mapped; text/ reads the special tokens         spec.config
 *     generation_config.json   eos_token_id: a number or a list of them       spec.ends
 *                              recommended sampling (sampling_hints.c)        sampling
 *     config.json              eos_token_id
 *     1_Pooling/config.json    how sentence-transformers pools rows           pooling
 *     chat_template.jinja      else chat_template.json's "chat_template", else
 *                              tokenizer_config.json's: a string, or [{name, template}] of which
 *                              "default" counts
 *
 * All of them may be missing. One that exists and is broken is an error: a model without its end
 * token or template would answer badly without saying why.
 *
 * Not read: tokenizer.model (a protobuf; all current folders have tokenizer.json too),
 * additional_chat_templates/.
 */
#include <dirent.h>
#include <stdio.h>

#include "model/model_internal.h"

enum {
    DOCUMENT_MAX = 64 << 20, /* a tokenizer_config.json lists 262,144 tokens in some 20 MB */
    TEMPLATE_MAX = 1 << 20,  /* the longest known has 17 KB */
    ENDS_MAX = 64,
};

/* ---- paths and errors ------------------------------------------------------------------------ */

kvasir_status in_file(const char *path, kvasir_status status, kvasir_error *err) {
    if (status != KVASIR_OK)
        fail_prefix(err, path);
    return status;
}

kvasir_status folder_path(char path[PATH_MAX_BYTES], const char *folder, const char *name,
                          kvasir_error *err) {
    int n = snprintf(path, PATH_MAX_BYTES, "%s/%s", folder, name);
    if (n < 0 || n >= PATH_MAX_BYTES)
        return fail(err, KVASIR_ERR_ARGUMENT, "%.200s: the path is too long", folder);
    return KVASIR_OK;
}

kvasir_status folder_fail_missing(const char *folder, const char *name, kvasir_error *err) {
    kvasir_status status = fail(err, KVASIR_ERR_IO, "%s: the folder holds no %s", folder, name);
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        size_t len = strlen(e->d_name);
        if (len > 5 && strcmp(e->d_name + len - 5, ".gguf") == 0) {
            status = fail(err, KVASIR_ERR_IO,
                          "%s: the folder holds no %s; for GGUF give the file, as in %s/%s", folder,
                          name, folder, e->d_name);
            break;
        }
    }
    if (dir)
        closedir(dir);
    return status;
}

/* Maps a file if it exists; else map->data stays NULL. */
static kvasir_status map_file(struct checkpoint *c, const char *folder, const char *name,
                              struct file_map *map, kvasir_error *err) {
    char path[PATH_MAX_BYTES];
    *map = (struct file_map){0};
    TRY(folder_path(path, folder, name, err));
    bool exists;
    TRY(file_exists(path, &exists, err));
    return exists ? checkpoint_map(c, path, map, err) : KVASIR_OK;
}

typedef kvasir_status parse_fn(const char *text, size_t len, int64_t at, json_t **out,
                               kvasir_error *err);

/* The object in a mapped file; NULL if there is no file. */
static kvasir_status parse_object(const struct file_map *map, parse_fn *parse, json_t **out,
                                  kvasir_error *err) {
    *out = NULL;
    if (!map->data)
        return KVASIR_OK;
    if (map->size > DOCUMENT_MAX)
        return fail(err, KVASIR_ERR_FORMAT, "the file has %zu bytes, at most %d are read",
                    map->size, DOCUMENT_MAX);
    TRY(parse((const char *)map->data, map->size, 0, out, err));
    if (json_is_object(*out))
        return KVASIR_OK;
    kvasir_status status = fail(err, KVASIR_ERR_FORMAT,
                                "the file's document must be an object, found %s", json_kind(*out));
    json_decref(*out);
    *out = NULL;
    return status;
}

/* ---- tokens that end an answer --------------------------------------------------------------- */

static kvasir_status add_end(struct checkpoint *c, const json_t *value, kvasir_error *err) {
    json_int_t id = json_integer_value(value);
    if (!json_is_integer(value) || id < 0 || id >= VOCAB_MAX)
        return fail(err, KVASIR_ERR_FORMAT,
                    "field eos_token_id must be a token's number or a list of them, found %s",
                    json_kind(value));
    if (c->tokenizer.n_ends >= ENDS_MAX)
        return fail(err, KVASIR_ERR_FORMAT, "field eos_token_id has more than %d tokens", ENDS_MAX);
    return checkpoint_add_end(c, (int32_t)id, err);
}

static kvasir_status add_ends(struct checkpoint *c, const json_t *document, kvasir_error *err) {
    const json_t *value = json_object_get(document, "eos_token_id"), *item;
    if (!value || json_is_null(value))
        return KVASIR_OK;
    if (!json_is_array(value))
        return add_end(c, value, err);
    size_t i;
    json_array_foreach(value, i, item) {
        TRY(add_end(c, item, err));
    }
    return KVASIR_OK;
}

/* Tokens that end an answer; with `hints` also recommended sampling. */
static kvasir_status read_generation(struct checkpoint *c, const char *folder, const char *name,
                                     struct sampling_hints *hints, kvasir_error *err) {
    struct file_map map;
    json_t *document;
    char path[PATH_MAX_BYTES];
    TRY(folder_path(path, folder, name, err));
    TRY(map_file(c, folder, name, &map, err));
    TRY(in_file(path, parse_object(&map, json_parse, &document, err), err));
    kvasir_status status = add_ends(c, document, err);
    if (status == KVASIR_OK && hints)
        status = sampling_hints_json(document, hints, err);
    json_decref(document);
    return in_file(path, status, err);
}

/* ---- pooling --------------------------------------------------------------------------------- */

/* One flag of {"pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true, ...} is set. */
static enum checkpoint_pooling pooling_of(const json_t *document) {
    static const char MODE[] = "pooling_mode_";
    enum checkpoint_pooling pooling = POOLING_UNSAID;
    const char *name;
    const json_t *value;
    json_object_foreach((json_t *)document, name, value) {
        if (strncmp(name, MODE, sizeof MODE - 1) != 0 || !json_is_true(value))
            continue;
        const char *mode = name + sizeof MODE - 1;
        const bool said = pooling != POOLING_UNSAID; /* several are joined */
        pooling = said                               ? POOLING_OTHER
                  : strcmp(mode, "lasttoken") == 0   ? POOLING_LAST
                  : strcmp(mode, "mean_tokens") == 0 ? POOLING_MEAN
                                                     : POOLING_OTHER;
    }
    return pooling;
}

static kvasir_status read_pooling(struct checkpoint *c, const char *folder, kvasir_error *err) {
    static const char NAME[] = "1_Pooling/config.json";
    struct file_map map;
    json_t *document;
    char path[PATH_MAX_BYTES];
    TRY(folder_path(path, folder, NAME, err));
    TRY(map_file(c, folder, NAME, &map, err));
    TRY(in_file(path, parse_object(&map, json_parse, &document, err), err));
    c->pooling = pooling_of(document);
    json_decref(document);
    return KVASIR_OK;
}

/* ---- chat template --------------------------------------------------------------------------- */

/* "chat_template" of a document, if it has one. */
static kvasir_status take_template(struct checkpoint *c, const json_t *document,
                                   kvasir_error *err) {
    const json_t *value = json_object_get(document, "chat_template"), *item;
    if (json_is_array(value)) {
        const json_t *list = value;
        size_t i;
        value = NULL;
        json_array_foreach(list, i, item) {
            const char *name = json_string_value(json_object_get(item, "name"));
            if (name && strcmp(name, "default") == 0)
                value = json_object_get(item, "template");
        }
    }
    if (!value || json_is_null(value))
        return KVASIR_OK;
    if (!json_is_string(value))
        return fail(err, KVASIR_ERR_FORMAT, "field chat_template must be a string, found %s",
                    json_kind(value));
    c->chat_template = mem_strdup(json_string_value(value));
    return c->chat_template ? KVASIR_OK
                            : fail(err, KVASIR_ERR_MEMORY, "out of memory for chat_template");
}

static kvasir_status read_template_in(struct checkpoint *c, const char *folder, const char *name,
                                      const struct file_map *map, kvasir_error *err) {
    json_t *document;
    char path[PATH_MAX_BYTES];
    TRY(folder_path(path, folder, name, err));
    TRY(in_file(path, parse_object(map, json_parse_strings, &document, err), err));
    kvasir_status status = take_template(c, document, err);
    json_decref(document);
    return in_file(path, status, err);
}

/* tokenizer_config: the mapped file. */
static kvasir_status read_template(struct checkpoint *c, const char *folder,
                                   const struct file_map *tokenizer_config, kvasir_error *err) {
    char path[PATH_MAX_BYTES];
    struct file_map map;
    TRY(folder_path(path, folder, "chat_template.jinja", err));
    bool exists;
    TRY(file_exists(path, &exists, err));
    if (exists) {
        size_t len;
        TRY(file_read_all(path, TEMPLATE_MAX, &c->chat_template, &len, err));
        if (strlen(c->chat_template) != len)
            return fail_at(err, KVASIR_ERR_FORMAT, (int64_t)strlen(c->chat_template),
                           "%s: the file holds a zero byte", path);
        return KVASIR_OK;
    }
    TRY(map_file(c, folder, "chat_template.json", &map, err));
    TRY(read_template_in(c, folder, "chat_template.json", &map, err));
    if (c->chat_template)
        return KVASIR_OK;
    return read_template_in(c, folder, "tokenizer_config.json", tokenizer_config, err);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static struct text_span span_of(const struct file_map *map) {
    return (struct text_span){(const char *)map->data, map->size};
}

/* Reads the files next to a tokenizer.json. */
static kvasir_status read_neighbours(struct checkpoint *c, const char *folder, kvasir_error *err) {
    struct file_map map;
    TRY(map_file(c, folder, "tokenizer_config.json", &map, err));
    c->tokenizer.config = span_of(&map);
    TRY(read_template(c, folder, &map, err));
    TRY(read_generation(c, folder, "generation_config.json", &c->sampling, err));
    return read_generation(c, folder, "config.json", NULL, err);
}

static void set_tokenizer(struct checkpoint *c, const struct file_map *map) {
    struct tokenizer_spec *t = &c->tokenizer;
    t->json = span_of(map);
    t->bos = t->eos = t->eot = t->unk = t->pad = -1;
    c->has_tokenizer = map->data != NULL;
}

kvasir_status folder_read_text(struct checkpoint *c, const char *folder, kvasir_error *err) {
    struct file_map map;
    TRY(map_file(c, folder, "tokenizer.json", &map, err));
    set_tokenizer(c, &map);
    TRY(read_pooling(c, folder, err));
    return read_neighbours(c, folder, err);
}

kvasir_status folder_read_tokenizer_file(struct checkpoint *c, const char *path,
                                         kvasir_error *err) {
    static const char usual[] = "tokenizer.json";
    struct file_map map;
    TRY(checkpoint_map(c, path, &map, err));
    size_t begin = 0; /* as every JSON reader skips them */
    while (begin < map.size && memchr(" \t\r\n", map.data[begin], 4))
        begin++;
    if (begin == map.size || map.data[begin] != '{')
        return fail_at(err, KVASIR_ERR_FORMAT, (int64_t)begin,
                       "%s: neither a GGUF file nor a tokenizer.json", path);
    set_tokenizer(c, &map);
    /* For a file of another name, the files next to it are not read. */
    const char *slash = strrchr(path, '/');
    if (strcmp(slash ? slash + 1 : path, usual) != 0)
        return KVASIR_OK;
    char folder[PATH_MAX_BYTES];
    int len = slash ? (int)(slash - path) : 1;
    if (len >= PATH_MAX_BYTES)
        return fail(err, KVASIR_ERR_ARGUMENT, "%.200s: the path is too long", path);
    snprintf(folder, sizeof folder, "%.*s", len, slash ? (len ? path : "/") : ".");
    return read_neighbours(c, folder, err);
}
