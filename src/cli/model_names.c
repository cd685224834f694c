/* SPDX-License-Identifier: Apache-2.0 */
/* model_names.c: -m with a name instead of a path, and where models that were pulled are.
 *
 *     KVASIR_MODELS_DIR  XDG_DATA_HOME     models from URLs and packages
 *     HF_HUB_CACHE  HF_HOME  XDG_CACHE_HOME   Hugging Face's cache
 *     HF_ENDPOINT  HF_TOKEN  HF_TOKEN_PATH  HF_HUB_OFFLINE    as its own programs read them
 *     PIP_INDEX_URL                        as pip reads it
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>

/* ---- the environment ------------------------------------------------------------------------- */

/* NULL: not set, or empty. */
static const char *variable(const char *name) {
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

void user_folder(char out[HUB_PATH_MAX], const char *base, const char *home, const char *name) {
    const char *user = variable("HOME");
    if (variable(base))
        snprintf(out, HUB_PATH_MAX, "%s/%s", variable(base), name);
    else
        snprintf(out, HUB_PATH_MAX, "%s/%s/%s", user ? user : "", home, name);
}

static void read_folders(struct hub *h) {
    const char *text = variable("KVASIR_MODELS_DIR");
    if (text)
        snprintf(h->models, sizeof h->models, "%s", text);
    else
        user_folder(h->models, "XDG_DATA_HOME", ".local/share", "kvasir/models");
    text = variable("HF_HUB_CACHE");
    if (text)
        snprintf(h->hf_cache, sizeof h->hf_cache, "%s", text);
    else if ((text = variable("HF_HOME")))
        snprintf(h->hf_cache, sizeof h->hf_cache, "%s/hub", text);
    else
        user_folder(h->hf_cache, "XDG_CACHE_HOME", ".cache", "huggingface/hub");
}

/* Without slashes at the end. */
static void read_url(const char *name, const char *initial, char out[HUB_TEXT_MAX]) {
    const char *text = variable(name);
    size_t n = (size_t)snprintf(out, HUB_TEXT_MAX, "%s", text ? text : initial);
    n = min_size(n, HUB_TEXT_MAX - 1);
    while (n && out[n - 1] == '/')
        out[--n] = 0;
}

/* HF_TOKEN, else the file that `hf auth login` writes. */
static void read_token(char out[HUB_TEXT_MAX]) {
    char path[HUB_PATH_MAX], *text;
    size_t n;
    const char *token = variable("HF_TOKEN");
    if (!token)
        token = variable("HUGGING_FACE_HUB_TOKEN");
    *out = 0;
    if (token) {
        snprintf(out, HUB_TEXT_MAX, "%s", token);
    } else {
        if (variable("HF_TOKEN_PATH"))
            snprintf(path, sizeof path, "%s", variable("HF_TOKEN_PATH"));
        else if (variable("HF_HOME"))
            snprintf(path, sizeof path, "%s/token", variable("HF_HOME"));
        else
            user_folder(path, "XDG_CACHE_HOME", ".cache", "huggingface/token");
        if (file_read_all(path, HUB_TEXT_MAX - 1, &text, &n, NULL) != KVASIR_OK)
            return;
        snprintf(out, HUB_TEXT_MAX, "%s", text);
        mem_free(text);
    }
    out[strcspn(out, " \t\r\n")] = 0; /* also nothing that would be a header of its own */
}

void hub_from_environment(struct hub *h) {
    const char *offline = variable("HF_HUB_OFFLINE");
    *h = (struct hub){.offline = offline && strcmp(offline, "0") != 0 &&
                                 strcasecmp(offline, "false") != 0};
    read_folders(h);
    read_url("HF_ENDPOINT", "https://huggingface.co", h->hf_endpoint);
    read_url("PIP_INDEX_URL", "https://pypi.org/simple", h->index);
    read_token(h->hf_token);
}

/* ---- -m -------------------------------------------------------------------------------------- */

/* "organization/name[:format]" without "hf:", and no folder here has the first name. */
static bool is_bare(const char *text) {
    const size_t n = strcspn(text, "/:"), len = strlen(text);
    char first[128];
    struct stat st;
    if (n == 0 || n >= sizeof first || text[n] != '/' || !text[n + 1] ||
        strchr(text + n + 1, '/') || strchr("./~", *text) ||
        (len > 5 && strcmp(text + len - 5, ".gguf") == 0))
        return false;
    snprintf(first, sizeof first, "%.*s", (int)n, text);
    return stat(first, &st) != 0;
}

kvasir_status model_name_read(const char *text, struct hub_name *name, kvasir_error *err) {
    char full[HUB_TEXT_MAX];
    if (snprintf(full, sizeof full, "%s%s", is_bare(text) ? "hf:" : "", text) < (int)sizeof full)
        return hub_name_read(full, name, err);
    *name = (struct hub_name){0}; /* longer than a name */
    return KVASIR_OK;
}

/* Paths that names stand for, until the process ends. */
struct named_path {
    struct named_path *next;
    char path[HUB_PATH_MAX];
};
static struct named_path *named_paths;

static int keep_path(const struct command *c, const char *path, const char **model) {
    struct named_path *p = mem_calloc(1, sizeof *p);
    if (!p)
        return run_error(c, "out of memory");
    snprintf(p->path, sizeof p->path, "%s", path);
    p->next = named_paths;
    named_paths = p;
    *model = p->path;
    return EXIT_GOOD;
}

/* What -m was if it was neither a path nor a name; NULL. */
static const char *missing;

const char *model_hint(const char *error, char out[MODEL_HINT_MAX]) {
    static const char NO_FILE[] = ": No such file or directory";
    const size_t n = missing ? strlen(missing) : 0;
    struct near near = {0};
    const char *known, *stands_for;
    *out = 0;
    if (!missing || strncmp(error, missing, n) != 0 || strcmp(error + n, NO_FILE) != 0)
        return out;
    for (size_t i = 0; (known = hub_short_name(i, &stands_for)) != NULL; i++)
        near_try(&near, missing, n, known);
    if (near.best && !strchr(missing, '/'))
        snprintf(out, MODEL_HINT_MAX, ": did you mean %s?", near.best);
    else
        snprintf(out, MODEL_HINT_MAX,
                 "; \"kvasir pull\" gets a model by name, \"kvasir list "
                 "--short\" has short names");
    return out;
}

int model_resolve(const struct command *c, const char **model) {
    struct stat st;
    struct hub h;
    struct hub_name name;
    kvasir_error err;
    char path[HUB_PATH_MAX];
    if (stat(*model, &st) == 0)
        return EXIT_GOOD;
    if (model_name_read(*model, &name, &err) != KVASIR_OK)
        return usage_error(c, "-m: %s", err.text);
    if (name.kind == HUB_NOT_A_NAME) {
        missing = *model; /* opening it says what is wrong with the path */
        return EXIT_GOOD;
    }
    hub_from_environment(&h);
    if (hub_find(&h, &name, path, &err) != KVASIR_OK)
        return run_error(c, "-m: %s", err.text);
    if (!*path)
        return usage_error(c, "-m: %.200s is not on this machine: run kvasir pull %.200s", *model,
                           *model);
    return keep_path(c, path, model);
}
