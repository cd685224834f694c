/* SPDX-License-Identifier: Apache-2.0 */
/* hub_repository.c: repositories of Hugging Face, in the cache of its own programs, so that a model
 * is on a machine once, whoever fetched it:
 *
 *     models--ORG--REPO/blobs/HASH                   a file's bytes; HASH.incomplete before that
 *     models--ORG--REPO/snapshots/COMMIT/FILE        a link to them
 *     models--ORG--REPO/refs/REVISION                the commit; written when all files are there
 *     .locks/models--ORG--REPO/HASH.lock             held (flock) by whoever fetches the blob
 *
 * HASH is the sha256 of large files, which is compared, and git's name of small ones, of which the
 * size is. What of a repository is fetched: a GGUF file, or its parts, if one is named or nothing
 * else is there; otherwise the safetensors at its root and what belongs to them.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hub/hub_internal.h"

struct repo_file {
    const char *name; /* in the repository */
    const char *hash;
    uint64_t bytes;
    bool large; /* hash is a sha256 */
    bool wanted;
};
struct repository {
    const struct hub *hub;
    const struct hub_name *name;
    char dir[HUB_PATH_MAX], commit[72], snapshot[HUB_PATH_MAX];
    json_t *listing; /* owns the texts of files */
    struct repo_file *files;
    size_t n;
    kvasir_error *err;
};

/* ---- places ---------------------------------------------------------------------------------- */

/* models--ORG--REPO */
static void folder_name(const char *repo, char out[HUB_TEXT_MAX]) {
    const int org = (int)strcspn(repo, "/");
    snprintf(out, HUB_TEXT_MAX, "models--%.*s--%s", org, repo, repo + org + 1);
}

static kvasir_status place(struct repository *r, const struct hub *h, const struct hub_name *name,
                           kvasir_error *err) {
    char folder[HUB_TEXT_MAX];
    *r = (struct repository){.hub = h, .name = name, .err = err};
    folder_name(name->from, folder);
    return hub_join(r->dir, h->hf_cache, folder, err);
}

static kvasir_status join3(char out[HUB_PATH_MAX], const char *dir, const char *folder,
                           const char *name, kvasir_error *err) {
    char middle[HUB_PATH_MAX];
    TRY(hub_join(middle, dir, folder, err));
    return hub_join(out, middle, name, err);
}

/* The commit that a revision is here; "" if it is not known. */
static kvasir_status read_commit(struct repository *r, kvasir_error *err) {
    char path[HUB_PATH_MAX], *text;
    size_t len;
    bool exists;
    *r->commit = *r->snapshot = 0;
    TRY(join3(path, r->dir, "refs", r->name->revision, err));
    TRY(file_exists(path, &exists, err));
    if (exists) {
        TRY(file_read_all(path, 4096, &text, &len, err));
        text[strcspn(text, " \r\n")] = 0;
        if (hub_is_hash(text))
            snprintf(r->commit, sizeof r->commit, "%s", text);
        mem_free(text);
    } else if (hub_is_hash(r->name->revision)) {
        snprintf(r->commit, sizeof r->commit, "%.64s", r->name->revision);
    }
    return *r->commit ? join3(r->snapshot, r->dir, "snapshots", r->commit, err) : KVASIR_OK;
}

/* ---- which files ----------------------------------------------------------------------------- */

/* Whether a name has `what` between '.', '-' or '_' in front and '.', '-' or its end after it, in
 * any case of letters: "Q4_K" is not in "x-Q4_K_M.gguf". */
static bool has_word(const char *name, const char *what) {
    const size_t n = strlen(what);
    for (const char *at = name; strlen(at) >= n; at++)
        if (strncasecmp(at, what, n) == 0 && (at == name || strchr("-._/", at[-1])) &&
            (!at[n] || strchr("-.", at[n])))
            return true;
    return false;
}

static const char *base_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The length of a name before "-00002-of-00003.gguf"; 0: it is not of a part. */
static size_t part_stem(const char *name, unsigned *part) {
    const size_t n = strlen(name), end = sizeof ".gguf" - 1;
    if (n <= end || strcmp(name + n - end, ".gguf") != 0)
        return 0;
    const unsigned number = hub_part_number(name, n - end);
    *part = number ? number : *part;
    return number ? n - end - HUB_PART_BYTES : 0;
}

/* A model in GGUF: neither a later part nor what reads pictures. */
static bool is_gguf_model(const char *name) {
    unsigned part = 1;
    return hub_ends_with(name, ".gguf") && !strstr(name, "mmproj") &&
           (part_stem(name, &part) == 0 || part == 1);
}

static bool same_model(const char *a, const char *b) {
    unsigned part;
    const size_t stem = part_stem(a, &part);
    return strcmp(a, b) == 0 || (stem && part_stem(b, &part) == stem && strncmp(a, b, stem) == 0);
}

static bool matches(const char *name, const char *what) {
    return strcmp(name, what) == 0 || (is_gguf_model(name) && has_word(base_of(name), what));
}

/* At the root of a repository, what a model in safetensors consists of. */
static bool belongs_to_safetensors(const char *name) {
    static const char *const ENDS[] = {".safetensors", ".json", ".jinja", ".model", ".txt"};
    if (strchr(name, '/') || strncmp(name, "consolidated", 12) == 0)
        return false;
    for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS; i++)
        if (hub_ends_with(name, ENDS[i]))
            return true;
    return false;
}

/* Names of the choices, for errors. */
static void list_choices(char *out, size_t room, const char *const *names, size_t n) {
    size_t len = 0;
    *out = 0;
    for (size_t i = 0; i < n && len + 2 < room; i++) {
        const int more = snprintf(out + len, room - len, "%s%s", i ? ", " : "", names[i]);
        len += (size_t)(more > 0 ? more : 0);
    }
    if (len >= room - 4 && room > 8)
        memcpy(out + room - 5, " ...", 5);
}

/* Which of several models is meant: the name's, the only one, or one in a usual format. NULL: none,
 * an error. */
static const char *choose(const struct hub_name *name, const char *const *models, size_t n,
                          kvasir_error *err) {
    static const char *const USUAL[] = {"Q4_K_M", "Q4_0", "Q4_1", "Q8_0"};
    char all[300];
    const char *found = NULL;
    size_t hits = 0;
    for (size_t i = 0; i < n && *name->file; i++)
        if (matches(models[i], name->file)) {
            found = models[i];
            hits++;
            if (strcmp(found, name->file) == 0)
                return found;
        }
    if (hits == 1)
        return found;
    for (size_t u = 0; u < sizeof USUAL / sizeof *USUAL && n > 1 && !*name->file; u++)
        for (size_t i = 0; i < n; i++)
            if (has_word(base_of(models[i]), USUAL[u]))
                return models[i];
    if (n == 1 && !*name->file)
        return models[0];
    list_choices(all, sizeof all, models, n);
    if (*name->file)
        fail(err, KVASIR_ERR_ARGUMENT, "hf:%.100s has %s \"%.60s\"; its GGUF files: %s", name->from,
             hits ? "several files" : "no file", name->file, n ? all : "none");
    else
        fail(err, KVASIR_ERR_ARGUMENT, "hf:%.100s: choose a file or format after a colon: %s",
             name->from, all);
    return NULL;
}

/* Whether the model is the safetensors at the root. */
static bool wants_safetensors(const struct repository *r) {
    bool config = false, weights = false;
    for (size_t i = 0; i < r->n; i++) {
        const char *name = r->files[i].name;
        config = config || strcmp(name, "config.json") == 0;
        weights = weights || (!strchr(name, '/') && hub_ends_with(name, ".safetensors"));
    }
    return config && weights && !*r->name->file;
}

static kvasir_status mark_wanted(struct repository *r) {
    if (wants_safetensors(r)) {
        for (size_t i = 0; i < r->n; i++)
            r->files[i].wanted = belongs_to_safetensors(r->files[i].name);
        return KVASIR_OK;
    }
    const char **models = mem_calloc(r->n + 1, sizeof *models);
    size_t n = 0;
    if (!models)
        return fail(r->err, KVASIR_ERR_MEMORY, "out of memory");
    for (size_t i = 0; i < r->n; i++)
        if (is_gguf_model(r->files[i].name))
            models[n++] = r->files[i].name;
    kvasir_status status = KVASIR_OK;
    const char *chosen = NULL;
    if (n == 0)
        status = fail(r->err, KVASIR_ERR_UNSUPPORTED,
                      "%s: has neither GGUF files nor config.json with safetensors", r->name->text);
    else if (!(chosen = choose(r->name, models, n, r->err)))
        status = KVASIR_ERR_ARGUMENT;
    for (size_t i = 0; chosen && i < r->n; i++)
        r->files[i].wanted = same_model(chosen, r->files[i].name);
    mem_free(models);
    return status;
}

/* ---- what the hub says ----------------------------------------------------------------------- */

static kvasir_status bad_listing(struct repository *r) {
    return fail(r->err, KVASIR_ERR_FORMAT, "%s: the hub's listing is not as expected",
                r->name->text);
}

static kvasir_status read_file(struct repository *r, const json_t *item) {
    const json_t *large = json_object_get(item, "lfs");
    const json_t *hash =
        json_is_object(large) ? json_object_get(large, "sha256") : json_object_get(item, "blobId");
    if (json_is_object(large) && !hash)
        hash = json_object_get(large, "oid");
    const json_t *bytes = json_object_get(json_is_object(large) ? large : item, "size");
    struct repo_file f = {.name = json_string_value(json_object_get(item, "rfilename")),
                          .hash = json_string_value(hash),
                          .bytes = (uint64_t)json_integer_value(bytes),
                          .large = json_is_object(large)};
    if (!f.name || !f.hash || !hub_is_hash(f.hash) || !json_is_integer(bytes) ||
        json_integer_value(bytes) < 0 || (f.large && strlen(f.hash) != 64))
        return bad_listing(r);
    if (hub_is_path(f.name)) /* no other name can be one that is wanted */
        r->files[r->n++] = f;
    return KVASIR_OK;
}

static kvasir_status read_listing(struct repository *r) {
    char url[2 * HUB_TEXT_MAX];
    long status;
    const struct hub_name *n = r->name;
    if (snprintf(url, sizeof url, "%s/api/models/%s/revision/%s?blobs=true", r->hub->hf_endpoint,
                 n->from, n->revision) >= (int)sizeof url)
        return fail(r->err, KVASIR_ERR_ARGUMENT, "%s: the URL is too long", n->text);
    const struct hub_request request = {.url = url, .what = n->text, .token = true};
    TRY(hub_get_json(r->hub, &request, &r->listing, &status, r->err));
    if (status != 200)
        return hub_refused(r->hub, &request, status, r->err);
    const char *commit = json_string_value(json_object_get(r->listing, "sha"));
    const json_t *files = json_object_get(r->listing, "siblings");
    if (!commit || !hub_is_hash(commit) || !json_is_array(files))
        return bad_listing(r);
    snprintf(r->commit, sizeof r->commit, "%s", commit);
    r->files = mem_calloc(json_array_size(files) + 1, sizeof *r->files);
    if (!r->files)
        return fail(r->err, KVASIR_ERR_MEMORY, "out of memory");
    for (size_t i = 0; i < json_array_size(files); i++)
        TRY(read_file(r, json_array_get(files, i)));
    TRY(mark_wanted(r));
    return join3(r->snapshot, r->dir, "snapshots", r->commit, r->err);
}

/* ---- fetching -------------------------------------------------------------------------------- */

static bool has_blob(const char *path, const struct repo_file *f) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == f->bytes;
}

static kvasir_status check_room(const struct repository *r) {
    char path[HUB_PATH_MAX];
    struct stat st;
    uint64_t bytes = 0;
    for (size_t i = 0; i < r->n; i++) {
        const struct repo_file *f = &r->files[i];
        if (!f->wanted)
            continue;
        TRY(join3(path, r->dir, "blobs", f->hash, r->err));
        if (has_blob(path, f))
            continue;
        bytes += f->bytes;
        strcat(path, ".incomplete"); /* hub_join leaves room for it */
        if (stat(path, &st) == 0 && (uint64_t)st.st_size <= f->bytes)
            bytes -= (uint64_t)st.st_size;
    }
    return hub_check_room(r->dir, bytes, r->err);
}

static kvasir_status verify_blob(const struct repository *r, const struct repo_file *f,
                                 const char *blob) {
    char sum[HUB_SHA_BYTES];
    if (!f->large)
        return KVASIR_OK;
    TRY(hub_file_sum(r->hub, blob, sum, r->err));
    if (strcmp(sum, f->hash) == 0)
        return KVASIR_OK;
    unlink(blob);
    return KVASIR_OK; /* it is fetched again */
}

static kvasir_status fetch_blob(const struct repository *r, const struct repo_file *f,
                                const char *blob) {
    ASSERT(f->wanted);
    char url[3 * HUB_TEXT_MAX], what[2 * HUB_TEXT_MAX], part[HUB_PATH_MAX], lock[HUB_PATH_MAX];
    char folder[HUB_TEXT_MAX], locks[HUB_PATH_MAX], name[80];
    folder_name(r->name->from, folder);
    TRY(join3(locks, r->hub->hf_cache, ".locks", folder, r->err));
    TRY(folder_make_all(locks, 0777, r->err));
    snprintf(name, sizeof name, "%s.lock", f->hash);
    TRY(hub_join(lock, locks, name, r->err));
    if (snprintf(part, sizeof part, "%s.incomplete", blob) >= (int)sizeof part)
        return fail(r->err, KVASIR_ERR_ARGUMENT, "%s: the path is too long", blob);
    snprintf(what, sizeof what, "%s: %s", r->name->from, f->name);
    char *escaped = hub_escape_path(f->name);
    if (!escaped)
        return fail(r->err, KVASIR_ERR_MEMORY, "out of memory");
    snprintf(url, sizeof url, "%s/%s/resolve/%s/%s", r->hub->hf_endpoint, r->name->from, r->commit,
             escaped);
    mem_free(escaped);
    const struct hub_request request = {.url = url, .what = what, .token = true};
    struct hub_file file = {.path = blob, .part = part, .lock = lock, .bytes = f->bytes};
    if (f->large)
        memcpy(file.sha256, f->hash, 65);
    return hub_get_file(r->hub, &request, &file, r->err);
}

/* snapshots/COMMIT/FILE: a link to ../../blobs/HASH, one step up more for each folder in FILE. */
static kvasir_status link_blob(const struct repository *r, const struct repo_file *f) {
    char path[HUB_PATH_MAX], folder[HUB_PATH_MAX], target[2 * HUB_TEXT_MAX];
    ASSERT(hub_is_path(f->name) && hub_is_hash(f->hash)); /* so it is below the snapshot */
    TRY(hub_join(path, r->snapshot, f->name, r->err));
    snprintf(folder, sizeof folder, "%.*s", (int)(base_of(path) - path - 1), path);
    TRY(folder_make_all(folder, 0777, r->err));
    size_t len = 0;
    for (const char *at = f->name; (at = strchr(at, '/')); at++)
        len += (size_t)snprintf(target + len, sizeof target - len, "../");
    snprintf(target + len, sizeof target - len, "../../blobs/%s", f->hash);
    if (symlink(target, path) == 0)
        return KVASIR_OK;
    if (errno == EEXIST && unlink(path) == 0 && symlink(target, path) == 0)
        return KVASIR_OK;
    return fail(r->err, KVASIR_ERR_IO, "%s: %s", path, strerror(errno));
}

static kvasir_status write_ref(const struct repository *r) {
    ASSERT(hub_is_hash(r->commit));
    char path[HUB_PATH_MAX], folder[HUB_PATH_MAX];
    struct file_replacer ref;
    TRY(join3(path, r->dir, "refs", r->name->revision, r->err));
    snprintf(folder, sizeof folder, "%.*s", (int)(base_of(path) - path - 1), path);
    TRY(folder_make_all(folder, 0777, r->err));
    TRY(file_replace_begin(&ref, path, false, r->err));
    kvasir_status status = file_write(&ref.out, r->commit, strlen(r->commit), r->err);
    if (status == KVASIR_OK)
        status = file_replace_commit(&ref, r->err);
    file_replace_abandon(&ref);
    return status;
}

static kvasir_status fetch_all(const struct repository *r, bool verify) {
    char blobs[HUB_PATH_MAX], blob[HUB_PATH_MAX];
    TRY(hub_join(blobs, r->dir, "blobs", r->err));
    TRY(folder_make_all(blobs, 0777, r->err));
    TRY(check_room(r));
    for (size_t i = 0; i < r->n; i++) {
        const struct repo_file *f = &r->files[i];
        if (!f->wanted)
            continue;
        TRY(hub_join(blob, blobs, f->hash, r->err));
        if (verify && has_blob(blob, f))
            TRY(verify_blob(r, f, blob));
        if (!has_blob(blob, f)) {
            unlink(blob); /* of another size: not what its name says */
            TRY(fetch_blob(r, f, blob));
        }
        TRY(link_blob(r, f));
    }
    return write_ref(r);
}

kvasir_status repository_pull(const struct hub *h, const struct hub_name *name, bool verify,
                              kvasir_error *err) {
    struct repository r;
    TRY(place(&r, h, name, err));
    kvasir_status status = read_listing(&r);
    if (status == KVASIR_OK)
        status = fetch_all(&r, verify);
    json_decref(r.listing);
    mem_free(r.files);
    return status;
}

/* ---- what is here ---------------------------------------------------------------------------- */

typedef void snapshot_fn(void *user, const char *file, const char *path);

/* Every file of a snapshot, whose link leads to one. */
static void walk(const char *dir, const char *below, snapshot_fn *each, void *user) {
    char path[HUB_PATH_MAX], name[HUB_TEXT_MAX];
    kvasir_error err;
    struct stat st;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (*e->d_name == '.' || strlen(below) + strlen(e->d_name) + 2 > sizeof name ||
            hub_join(path, dir, e->d_name, &err) != KVASIR_OK || stat(path, &st) != 0)
            continue;
        snprintf(name, sizeof name, "%.200s%s%.255s", below, *below ? "/" : "", e->d_name);
        if (S_ISDIR(st.st_mode) && hub_is_path(name))
            walk(path, name, each, user);
        else if (S_ISREG(st.st_mode))
            each(user, name, path);
    }
    if (d)
        closedir(d);
}

struct snapshot {
    char *names[512]; /* GGUF models */
    size_t n;
    bool config, weights, no_memory;
    uint64_t bytes; /* of the files of safetensors */
    uint32_t files;
};

static void note_file(void *user, const char *file, const char *path) {
    struct snapshot *s = user;
    struct stat st;
    s->config = s->config || strcmp(file, "config.json") == 0;
    s->weights = s->weights || (!strchr(file, '/') && hub_ends_with(file, ".safetensors"));
    if (belongs_to_safetensors(file) && stat(path, &st) == 0) {
        s->bytes += (uint64_t)st.st_size;
        s->files++;
    }
    if (!is_gguf_model(file) || s->n == sizeof s->names / sizeof *s->names)
        return;
    s->names[s->n] = mem_strdup(file);
    s->no_memory = s->no_memory || !s->names[s->n];
    s->n += s->names[s->n] != NULL;
}

static void snapshot_free(struct snapshot *s) {
    for (size_t i = 0; i < s->n; i++)
        mem_free(s->names[i]);
}

/* snapshot_free, unless it failed */
static kvasir_status read_snapshot(const struct repository *r, struct snapshot *s,
                                   kvasir_error *err) {
    walk(r->snapshot, "", note_file, s);
    if (!s->no_memory)
        return KVASIR_OK;
    snapshot_free(s);
    return fail(err, KVASIR_ERR_MEMORY, "out of memory");
}

kvasir_status repository_find(const struct hub *h, const struct hub_name *name,
                              char path[HUB_PATH_MAX], kvasir_error *err) {
    struct repository r;
    struct snapshot s = {0};
    TRY(place(&r, h, name, err));
    TRY(read_commit(&r, err));
    if (!*r.snapshot || !file_is_dir(r.snapshot))
        return KVASIR_OK;
    TRY(read_snapshot(&r, &s, err));
    kvasir_status status = KVASIR_OK;
    kvasir_error none;
    if (s.config && s.weights && !*name->file) {
        memcpy(path, r.snapshot, sizeof r.snapshot);
    } else if (s.n) {
        /* another format of the repository may be what is here: then this one is not */
        const char *chosen = choose(name, (const char *const *)s.names, s.n, &none);
        if (chosen)
            status = hub_join(path, r.snapshot, chosen, err);
    }
    snapshot_free(&s);
    return status;
}

/* A GGUF model's parts, or one file. */
struct parts {
    const char *model;
    struct hub_model *m;
};

static void add_part(void *user, const char *file, const char *path) {
    const struct parts *p = user;
    char target[HUB_PATH_MAX];
    struct stat st;
    if (!same_model(p->model, file) || stat(path, &st) != 0)
        return;
    p->m->bytes += (uint64_t)st.st_size;
    p->m->files++;
    const ssize_t n = readlink(path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = 0;
    if (p->m->files == 1 && strlen(base_of(target)) == 64)
        memcpy(p->m->sha256, base_of(target), HUB_SHA_BYTES);
    if (p->m->files > 1)
        *p->m->sha256 = 0;
}

static kvasir_status list_snapshot(const struct repository *r, hub_model_fn *each, void *user,
                                   kvasir_error *err) {
    struct snapshot s = {0};
    TRY(read_snapshot(r, &s, err));
    struct hub_model m = {.bytes = s.bytes, .files = s.files};
    snprintf(m.revision, sizeof m.revision, "%s", r->commit);
    if (s.config && s.weights) {
        snprintf(m.name, sizeof m.name, "hf:%.200s", r->name->from);
        memcpy(m.path, r->snapshot, sizeof m.path);
        each(user, &m);
    }
    for (size_t i = 0; i < s.n; i++) {
        struct hub_model gguf = {0};
        kvasir_error none;
        memcpy(gguf.revision, m.revision, sizeof gguf.revision);
        snprintf(gguf.name, sizeof gguf.name, "hf:%.200s:%.255s", r->name->from, s.names[i]);
        if (hub_join(gguf.path, r->snapshot, s.names[i], &none) != KVASIR_OK)
            continue;
        walk(r->snapshot, "", add_part, &(struct parts){s.names[i], &gguf});
        each(user, &gguf);
    }
    snapshot_free(&s);
    return KVASIR_OK;
}

/* models--ORG--REPO to ORG/REPO; false: it is something else. */
static bool repo_of(const char *folder, struct hub_name *out) {
    *out = (struct hub_name){.kind = HUB_REPOSITORY, .revision = "main"};
    const char *org = strncmp(folder, "models--", 8) == 0 ? folder + 8 : NULL;
    const char *sep = org ? strstr(org, "--") : NULL;
    if (!sep || strlen(org) >= 200)
        return false;
    snprintf(out->from, sizeof out->from, "%.*s/%s", (int)(sep - org), org, sep + 2);
    return hub_is_path(out->from);
}

kvasir_status repository_list(const struct hub *h, hub_model_fn *each, void *user,
                              kvasir_error *err) {
    DIR *d = opendir(h->hf_cache);
    kvasir_status status = KVASIR_OK;
    if (!d)
        return errno == ENOENT || errno == ENOTDIR
                   ? KVASIR_OK
                   : fail(err, KVASIR_ERR_IO, "%s: %s", h->hf_cache, strerror(errno));
    for (struct dirent *e; status == KVASIR_OK && (e = readdir(d));) {
        struct hub_name name;
        struct repository r;
        if (!repo_of(e->d_name, &name))
            continue;
        status = place(&r, h, &name, err);
        if (status == KVASIR_OK)
            status = read_commit(&r, err);
        if (status == KVASIR_OK && *r.snapshot)
            status = list_snapshot(&r, each, user, err);
    }
    closedir(d);
    return status;
}

/* ---- removing -------------------------------------------------------------------------------- */

struct removal {
    const char *model; /* NULL: all of the safetensors */
    char **paths;      /* links of the model */
    size_t n, cap;
    bool no_memory;
};

static void note_removal(void *user, const char *file, const char *path) {
    struct removal *m = user;
    const bool takes = m->model ? same_model(m->model, file) : belongs_to_safetensors(file);
    if (!takes || m->no_memory)
        return;
    m->no_memory = !ARRAY_GROW(m->paths, m->cap, m->n + 1);
    if (m->no_memory)
        return;
    m->paths[m->n] = mem_strdup(path);
    m->no_memory = !m->paths[m->n];
    m->n += !m->no_memory;
}

struct use {
    const char *blob;
    bool used;
};

static void look_for_use(void *user, const char *file, const char *path) {
    struct use *u = user;
    char target[HUB_PATH_MAX];
    (void)file;
    const ssize_t n = readlink(path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = 0;
    u->used = u->used || strcmp(base_of(target), u->blob) == 0;
}

/* Removes a link, and what it leads to if no other link does. */
static kvasir_status remove_link(const struct repository *r, const char *path, uint64_t *bytes,
                                 kvasir_error *err) {
    char target[HUB_PATH_MAX], blob[HUB_PATH_MAX], snapshots[HUB_PATH_MAX];
    struct stat st;
    const ssize_t n = readlink(path, target, sizeof target - 1);
    target[n > 0 ? n : 0] = 0;
    if (unlink(path) != 0)
        return fail(err, KVASIR_ERR_IO, "%s: %s", path, strerror(errno));
    if (!hub_is_hash(base_of(target)))
        return KVASIR_OK;
    struct use use = {.blob = base_of(target)};
    TRY(hub_join(snapshots, r->dir, "snapshots", err));
    walk(snapshots, "", look_for_use, &use);
    TRY(join3(blob, r->dir, "blobs", use.blob, err));
    if (use.used || stat(blob, &st) != 0)
        return KVASIR_OK;
    if (unlink(blob) != 0)
        return fail(err, KVASIR_ERR_IO, "%s: %s", blob, strerror(errno));
    *bytes += (uint64_t)st.st_size;
    return KVASIR_OK;
}

kvasir_status repository_remove(const struct hub *h, const struct hub_name *name, uint64_t *bytes,
                                kvasir_error *err) {
    struct repository r;
    char path[HUB_PATH_MAX] = "";
    TRY(place(&r, h, name, err));
    TRY(read_commit(&r, err));
    TRY(repository_find(h, name, path, err));
    if (!*path)
        return fail(err, KVASIR_ERR_ARGUMENT, "%s: is not on this machine", name->text);
    const bool folder = strcmp(path, r.snapshot) == 0;
    struct removal m = {.model = folder ? NULL : path + strlen(r.snapshot) + 1};
    walk(r.snapshot, "", note_removal, &m);
    kvasir_status status = m.no_memory ? fail(err, KVASIR_ERR_MEMORY, "out of memory") : KVASIR_OK;
    for (size_t i = 0; i < m.n; i++) {
        if (status == KVASIR_OK)
            status = remove_link(&r, m.paths[i], bytes, err);
        mem_free(m.paths[i]);
    }
    mem_free(m.paths);
    return status;
}
