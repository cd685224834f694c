/* SPDX-License-Identifier: Apache-2.0 */
/* centre_file.c: the calibration file: means and spreads of a model's keys, as safetensors.
 *
 *     | u64 n | header: n bytes of JSON, padded with blanks | mean | rms |
 *
 *     mean  F32 [layers, kv_heads, pairs, 2]   key pairs (i, i + n) before RoPE
 *     rms   F32 [layers, kv_heads, pairs]      spread of a dim around its mean
 *     metadata  format     "kvasir key centre 1"
 *               model      model_identity, 16 hex digits
 *               tokens     how many were averaged over
 *               checksum   XXH64 of model, tokens and the data, 16 hex digits
 *
 * Reading is strict. The shape follows from the model, and a file counts as damaged if any byte
 * differs from what we would write for its data, so tensors and offsets of the header need no other
 * check.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#include <xxhash.h>

#include "engine/centre.h"
#include "files/safetensors.h"

#define FORMAT "kvasir key centre 1"

static size_t mean_count(const struct key_stats *s) {
    return (size_t)s->layers * s->kv_heads * s->n * 2;
}
static size_t rms_count(const struct key_stats *s) {
    return mean_count(s) / 2;
}
static size_t data_bytes(const struct key_stats *s) {
    return (mean_count(s) + rms_count(s)) * sizeof(float);
}

kvasir_status centre_file_path(const struct kvasir_model *m, struct text_buf *out,
                               kvasir_error *err) {
    const char *tail = file_is_dir(m->path) ? "/" : ".";
    if (!text_printf(out, "%s%skey-centre.safetensors", m->path, tail))
        return fail(err, KVASIR_ERR_MEMORY, "%s: out of memory", m->path);
    return KVASIR_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Each hash is the seed of the next one. */
static uint64_t checksum_of(const struct key_stats *s, uint64_t model_id, uint32_t tokens) {
    XXH64_hash_t h = XXH64(&tokens, sizeof tokens, model_id);
    h = XXH64(s->mean, mean_count(s) * sizeof(float), h);
    return XXH64(s->rms, rms_count(s) * sizeof(float), h);
}

static bool put_header(const struct key_stats *s, uint64_t model_id, uint32_t tokens,
                       struct text_buf *out) {
    const uint64_t mean[] = {s->layers, s->kv_heads, s->n, 2};
    struct st_header h = {0};
    char id[20], count[12], sum[20];
    snprintf(id, sizeof id, "%016" PRIx64, model_id);
    snprintf(count, sizeof count, "%" PRIu32, tokens);
    snprintf(sum, sizeof sum, "%016" PRIx64, checksum_of(s, model_id, tokens));
    json_t *metadata = json_pack("{s:s, s:s, s:s, s:s}", "format", FORMAT, "model", id, "tokens",
                                 count, "checksum", sum);
    st_add_metadata(&h, metadata);
    json_decref(metadata);
    st_add(&h, "mean", ST_F32, mean, 4);
    st_add(&h, "rms", ST_F32, mean, 3);
    return st_finish(&h, 0, out);
}

kvasir_status centre_file_write(const struct key_stats *s, uint64_t model_id, uint32_t tokens,
                                struct text_buf *out, kvasir_error *err) {
    bool good = put_header(s, model_id, tokens, out) &&
                text_append(out, s->mean, mean_count(s) * sizeof(float)) &&
                text_append(out, s->rms, rms_count(s) * sizeof(float));
    if (!good)
        text_free(out);
    return good ? KVASIR_OK : fail(err, KVASIR_ERR_MEMORY, "calibration file: out of memory");
}

/* ---- reading --------------------------------------------------------------------------------- */

static kvasir_status damaged(const char *path, const char *what, kvasir_error *err) {
    return fail(err, KVASIR_ERR_FORMAT, "%s: %s; make it again with kvasir calibrate, or remove it",
                path, what);
}

static bool number_field(const json_t *metadata, const char *key, const char *digits, int base,
                         uint64_t *out) {
    const char *text = json_string_value(json_object_get(metadata, key));
    size_t len = text ? strlen(text) : 0;
    if (len == 0 || len > 16 || strspn(text, digits) != len)
        return false;
    *out = strtoull(text, NULL, base);
    return true;
}

static kvasir_status read_metadata(const char *path, const json_t *metadata, uint64_t model_id,
                                   uint32_t *tokens, kvasir_error *err) {
    const char *format = json_string_value(json_object_get(metadata, "format"));
    uint64_t id, count;
    if (!format || strcmp(format, FORMAT) != 0)
        return damaged(path, "not a calibration file of this version", err);
    if (!number_field(metadata, "model", "0123456789abcdef", 16, &id) ||
        !number_field(metadata, "tokens", "0123456789", 10, &count) || count > UINT32_MAX)
        return damaged(path, "its metadata is damaged", err);
    if (id != model_id)
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "%s was made with another model (%016" PRIx64 ", this one is %016" PRIx64
                    "); make it again with kvasir calibrate, or remove it",
                    path, id, model_id);
    *tokens = (uint32_t)count;
    return KVASIR_OK;
}

/* Takes the data of a file. The file must be exactly what we write for them. */
static kvasir_status take_data(const char *path, const struct file_map *map, size_t start,
                               uint64_t model_id, uint32_t tokens, struct key_stats *s,
                               kvasir_error *err) {
    const uint8_t *data = map->data + start;
    if (map->size - start != data_bytes(s))
        return damaged(path, "its data does not have the model's shape", err);
    memcpy(s->mean, data, mean_count(s) * sizeof(float));
    memcpy(s->rms, data + mean_count(s) * sizeof(float), rms_count(s) * sizeof(float));
    struct text_buf same = {0};
    TRY(centre_file_write(s, model_id, tokens, &same, err));
    bool good = same.len == map->size && memcmp(same.data, map->data, map->size) == 0;
    text_free(&same);
    if (!good)
        return damaged(path, "its header or checksum is wrong", err);
    for (size_t i = 0; i < mean_count(s); i++)
        if (!isfinite(s->mean[i]))
            return damaged(path, "a mean is not finite", err);
    for (size_t i = 0; i < rms_count(s); i++)
        if (!(isfinite(s->rms[i]) && s->rms[i] >= 0))
            return damaged(path, "a spread is not finite or below 0", err);
    return KVASIR_OK;
}

kvasir_status centre_file_read(const char *path, uint64_t model_id, struct key_stats *s,
                               kvasir_error *err) {
    struct file_map map;
    struct st_table table = {0};
    json_t *metadata;
    uint32_t tokens = 0;
    kvasir_error why;
    TRY(file_map_open(&map, path, err));
    kvasir_status status = st_read(&table, &map, &metadata, &why);
    if (status != KVASIR_OK)
        status = damaged(path, why.text, err);
    else
        status = read_metadata(path, metadata, model_id, &tokens, err);
    if (status == KVASIR_OK)
        status = take_data(path, &map, table.base, model_id, tokens, s, err);
    if (file_map_check(&map, NULL) != KVASIR_OK)
        status = file_map_check(&map, err);
    json_decref(metadata);
    st_table_free(&table);
    file_map_close(&map);
    return status;
}
