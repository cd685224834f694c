/* SPDX-License-Identifier: Apache-2.0 */
/* quality_state.c: the file of --resume, which has the results of finished windows.
 *
 * It is safetensors: for each run "FINGERPRINT.nll" and "FINGERPRINT.kl" F32 and
 * "FINGERPRINT.same_top" U8, all [windows][rows]. Its metadata are "settings", which must be the
 * same (struct quality_results), and for each run "FINGERPRINT": {"kv_bits", "seconds",
 * "pages_bytes"}. It is replaced as a whole after each window. Runs of other formats than this
 * command's stay in it.
 */
#include "quality.h"

#include <string.h>

enum { NAME_BYTES = 40, WINDOWS_MAX = 1 << 24 };

static const char *tensor_name(const char *fingerprint, const char *part, char out[NAME_BYTES]) {
    snprintf(out, NAME_BYTES, "%.16s.%s", fingerprint, part);
    return out;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int damaged(const struct command *c, const struct quality_results *r, const char *why) {
    return run_error(c, "--resume: %s: %s", r->a->resume, why);
}

static const struct st_tensor *part_of(const struct quality_results *r,
                                       const struct st_table *table, const char *fingerprint,
                                       const char *part, enum st_dtype dtype) {
    char name[NAME_BYTES];
    const struct st_tensor *t = st_find(table, tensor_name(fingerprint, part, name));
    bool good = t && t->dtype == dtype && t->n_dims == 2 && t->dims[0] >= 1 &&
                t->dims[0] <= WINDOWS_MAX && t->dims[1] == r->rows;
    return good ? t : NULL;
}

static int take_run(const struct command *c, struct quality_results *r,
                    const struct st_table *table, const char *fingerprint, const json_t *about) {
    const struct st_tensor *nll = part_of(r, table, fingerprint, "nll", ST_F32),
                           *kl = part_of(r, table, fingerprint, "kl", ST_F32),
                           *same = part_of(r, table, fingerprint, "same_top", ST_U8);
    const char *bits = json_string_value(json_object_get(about, "kv_bits"));
    const json_t *seconds = json_object_get(about, "seconds"),
                 *pages_bytes = json_object_get(about, "pages_bytes");
    if (strlen(fingerprint) != 16 || !nll || !kl || !same || kl->dims[0] != nll->dims[0] ||
        same->dims[0] != nll->dims[0] || !bits || !json_is_number(seconds) ||
        !json_is_integer(pages_bytes))
        return damaged(c, r, "not a file of kvasir quality");
    struct quality_run *run = quality_run_find(r, fingerprint);
    if (!run || !quality_run_reserve(r, run, (uint32_t)nll->dims[0]))
        return damaged(c, r, "out of memory");
    snprintf(run->bits, sizeof run->bits, "%s", bits);
    run->windows = (uint32_t)nll->dims[0];
    run->seconds = json_number_value(seconds);
    run->pages_bytes = (uint64_t)json_integer_value(pages_bytes);
    memcpy(run->nll, nll->data, nll->bytes);
    memcpy(run->kl, kl->data, kl->bytes);
    memcpy(run->same_top, same->data, same->bytes);
    return EXIT_GOOD;
}

static int take_runs(const struct command *c, struct quality_results *r,
                     const struct st_table *table, json_t *metadata) {
    const char *settings = json_string_value(json_object_get(metadata, "settings")), *key;
    json_t *value;
    if (!settings)
        return damaged(c, r, "not a file of kvasir quality");
    if (strcmp(settings, r->settings) != 0)
        return usage_error(c, "--resume: %s is of another run (%.200s), this one is: %s",
                           r->a->resume, settings, r->settings);
    json_object_foreach(metadata, key, value) {
        kvasir_error err;
        json_t *about = NULL;
        if (strcmp(key, "settings") == 0 || strcmp(key, "writer") == 0)
            continue;
        const char *text = json_string_value(value);
        if (json_load_bounded(text, strlen(text), 0, 0, &about, &err))
            return damaged(c, r, err.text);
        int code = take_run(c, r, table, key, about);
        json_decref(about);
        if (code)
            return code;
    }
    return EXIT_GOOD;
}

int quality_state_read(const struct command *c, struct quality_results *r) {
    struct file_map map = {0};
    struct st_table table = {0};
    json_t *metadata = NULL;
    kvasir_error err;
    bool there;
    if (file_exists(r->a->resume, &there, &err))
        return damaged(c, r, err.text);
    if (!there)
        return EXIT_GOOD;
    if (file_map_read(&map, r->a->resume, &err))
        return run_error(c, "--resume: %s", err.text);
    bool bad = st_read(&table, &map, &metadata, &err) || st_sort(&table, &err) ||
               st_check_data(&table, 0, &map, &err);
    int code = bad ? damaged(c, r, err.text) : take_runs(c, r, &table, metadata);
    json_decref(metadata);
    st_table_free(&table);
    file_map_close(&map);
    return code;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void add_run(const struct quality_results *r, const struct quality_run *run,
                    struct st_header *h, json_t *metadata) {
    const uint64_t dims[] = {run->windows, r->rows};
    char name[NAME_BYTES];
    json_t *about = json_object();
    put_text(about, "kv_bits", run->bits);
    put_real(about, "seconds", run->seconds);
    put_whole(about, "pages_bytes", run->pages_bytes);
    char *text = json_dumps(about, 0);
    put_text(metadata, run->fingerprint, text);
    mem_free(text);
    json_decref(about);
    st_add(h, tensor_name(run->fingerprint, "nll", name), ST_F32, dims, 2);
    st_add(h, tensor_name(run->fingerprint, "kl", name), ST_F32, dims, 2);
    st_add(h, tensor_name(run->fingerprint, "same_top", name), ST_U8, dims, 2);
}

int quality_state_write(const struct command *c, const struct quality_results *r) {
    struct out_file out = {0};
    struct st_header h = {0};
    json_t *metadata = json_object();
    put_text(metadata, "writer", "kvasir quality --resume");
    put_text(metadata, "settings", r->settings);
    for (size_t i = 0; i < r->n_runs; i++)
        if (r->runs[i].windows)
            add_run(r, &r->runs[i], &h, metadata);
    st_add_metadata(&h, metadata);
    json_decref(metadata);
    int code = out_open(c, &out, "--resume", r->a->resume);
    if (code) {
        st_header_free(&h);
        return code;
    }
    code = out_write_header(c, &out, &h);
    for (size_t i = 0; i < r->n_runs && !code; i++) {
        const struct quality_run *run = &r->runs[i];
        const size_t n = (size_t)run->windows * r->rows;
        code = out_write(c, &out, run->nll, n * sizeof *run->nll);
        if (!code)
            code = out_write(c, &out, run->kl, n * sizeof *run->kl);
        if (!code)
            code = out_write(c, &out, run->same_top, n);
    }
    if (!code)
        code = out_commit(c, &out);
    out_abandon(&out);
    return code;
}
