/* SPDX-License-Identifier: Apache-2.0 */
/* calibration_kept.c: a context's calibration, if it wants one and its user made none.
 *
 *     the file beside the model        `kvasir calibrate` wrote it: centre.c reads it
 *     FOLDER/FINGERPRINT.safetensors   kept earlier: read here
 *     neither                          measured now over the built-in text, and kept there
 *
 * The folder is not the model's. The file beside a model counts for all formats, so one that nobody
 * asked for would change the bits of formats without bases, and their stored pages would miss. And
 * a server in a sandbox may write to one folder of its own, not to the models'.
 *
 * What cannot be written serves this context only. The same machine measures the same bits again.
 */
#include <inttypes.h>
#include <string.h>

#include "engine/calibration.h"
#include "engine/struct_size.h"

/* All of the built-in text, 600 to 700 tokens: heads of 256 dims need more than 512 (mean KL of
 * Gemma-3-270M at t4: 0.0040 with 512, 0.0036 with 673). */
enum { TOKENS = 1024 };

static const struct sized_struct SIZED_CALIBRATE = {
    .name = "kvasir_calibrate_options",
    .maker = "kvasir_calibrate_defaults()",
    .field = "calibrate.struct_size",
    .size = sizeof(kvasir_calibrate_options),
};
_Static_assert(sizeof(kvasir_calibrate_options) == 32,
               "later fields begin here at the earliest (struct_size.h)");

struct search {
    const struct kvasir_model *m;
    kvasir_calibrate_options how;
    struct text_buf path; /* no data: nothing is kept */
    double start;
};

/* Whether the model's keys can be stored in these formats with bases. */
static bool are_based(const struct kvasir_model *m, const struct kv_cache_options *formats) {
    struct kv_shape shapes[CACHE_GROUPS_MAX];
    struct kv_format k, v;
    uint64_t bytes;
    const uint32_t n = model_kv_groups(m->model, shapes);
    for (uint32_t g = 0; g < n && centres_want_bases(formats); g++)
        if (formats_group_bytes(&shapes[g], formats, &k, &v, &bytes, NULL) == KVASIR_OK)
            return true;
    return false;
}

/* *wanted: by the options, and there is no file beside the model. */
static kvasir_status is_wanted(const struct kvasir_model *m, const kvasir_context_options *o,
                               bool *wanted, kvasir_error *err) {
    struct kv_cache_options formats = {0};
    struct text_buf beside = {0};
    bool exists = false;
    kvasir_status status;
    *wanted = false;
    if (!o->calibrate || o->like || strcmp(o->key_centre, "auto") != 0)
        return KVASIR_OK;
    TRY(options_parse_live(o->kv_bits, o->kv_floor, o->kv_group_size, &formats, err));
    if (!are_based(m, &formats) || !m->text->tokenizer)
        return KVASIR_OK;
    TRY_GOTO(centre_file_path(m, &beside, err));
    TRY_GOTO(file_exists(beside.data, &exists, err));
    *wanted = !exists;
done:
    text_free(&beside);
    return status;
}

static kvasir_status read_kept(const struct search *s, struct calibration *out, bool *found,
                               kvasir_error *err) {
    *found = false;
    if (s->path.data)
        TRY(file_exists(s->path.data, found, err));
    if (!*found)
        return KVASIR_OK;
    TRY(key_stats_init(&out->stats, s->m->model, err));
    const kvasir_status status =
        centre_file_read(s->path.data, s->m->model, s->m->id, &out->stats, &out->bases, err);
    return fail_of_field(status, err, "context.key_centre");
}

static bool on_progress(void *user, size_t done, size_t total) {
    const struct search *s = user;
    const kvasir_calibrating now = {
        .done = done, .total = total, .seconds = clock_seconds() - s->start};
    return !s->how.on_event || s->how.on_event(s->how.user, &now);
}

static kvasir_status write_file(const struct search *s, const struct calibration *c,
                                kvasir_error *err) {
    struct file_replacer to = {.out.fd = -1};
    struct text_buf file = {0};
    kvasir_status status;
    TRY_GOTO(folder_make_all(s->how.folder, 0700, err));
    TRY_GOTO(centre_file_write(s->m->model, s->m->id, &c->stats, &c->bases, c->tokens, &file, err));
    TRY_GOTO(file_replace_begin(&to, s->path.data, false, err));
    TRY_GOTO(file_write(&to.out, file.data, file.len, err));
    status = file_replace_commit(&to, err);
done:
    file_replace_abandon(&to);
    text_free(&file);
    return status;
}

static kvasir_status measure(struct search *s, const kvasir_context_options *o,
                             struct calibration *out, kvasir_error *err) {
    const struct calibrate_options options = {.tokens = TOKENS,
                                              .threads = o->threads,
                                              .cpu_tier = o->cpu_tier,
                                              .on_progress = on_progress,
                                              .user = s};
    kvasir_error why = {.text = "there is no folder to keep it in"};
    s->start = clock_seconds();
    TRY(calibration_measure(s->m, &options, out, err));
    const bool kept = s->path.data && write_file(s, out, &why) == KVASIR_OK;
    const kvasir_calibrating end = {.ended = true,
                                    .done = out->tokens,
                                    .total = out->tokens,
                                    .seconds = clock_seconds() - s->start,
                                    .path = kept ? s->path.data : NULL,
                                    .why = kept ? NULL : why.text};
    if (s->how.on_event && !s->how.on_event(s->how.user, &end))
        return fail(err, KVASIR_ERR_CANCELLED, "cancelled");
    return KVASIR_OK;
}

kvasir_status calibration_find(const struct kvasir_model *m, const kvasir_context_options *o,
                               struct calibration *out, kvasir_error *err) {
    struct search s = {.m = m, .how = kvasir_calibrate_defaults()};
    bool wanted, found;
    kvasir_status status;
    *out = (struct calibration){0};
    if (o->calibrate)
        TRY(struct_read(&SIZED_CALIBRATE, o->calibrate, &s.how, err));
    TRY(is_wanted(m, o, &wanted, err));
    if (!wanted)
        return KVASIR_OK;
    if (s.how.folder && !text_printf(&s.path, "%s/%016" PRIx64 ".safetensors", s.how.folder, m->id))
        return fail(err, KVASIR_ERR_MEMORY, "calibration: out of memory");
    TRY_GOTO(read_kept(&s, out, &found, err));
    if (!found)
        status = measure(&s, o, out, err);
done:
    text_free(&s.path);
    return status;
}
