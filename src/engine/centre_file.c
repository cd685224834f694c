/* SPDX-License-Identifier: Apache-2.0 */
/* centre_file.c: the calibration file: what was measured of a model's keys, as safetensors.
 *
 *     | u64 n | header: n bytes of JSON, padded with blanks | mean | rms | layers.0.inverse | ...
 *
 *     mean  F32 [layers, kv_heads, pairs, 2]   key pairs (i, i + n) before RoPE
 *     rms   F32 [layers, kv_heads, pairs]      spread of a dim around its mean
 *     layers.N.inverse, layers.N.forward       of every layer that stores keys:
 *           F32 [kv_heads, head_dim, head_dim] struct key_basis
 *     metadata  format     "kvasir key centre 2"; of files without bases 1
 *               model      model_identity, 16 hex digits
 *               tokens     how many were averaged over
 *               checksum   XXH64 of model, tokens and the data, 16 hex digits
 *
 * If the model's keys are not alike (model_keys_alike) there is no mean and no rms.
 *
 * Reading is strict. The shapes follow from the model, and a file counts as damaged if any byte
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

#define FORMAT_CENTRES "kvasir key centre 1"
#define FORMAT_BASES   "kvasir key centre 2"

/* ---- tensors --------------------------------------------------------------------------------- */

struct tensor {
    char name[32];
    uint64_t dims[4];
    uint32_t n_dims;
    float *values; /* [n]; NULL: only their place in a file matters */
    size_t n;
};
/* A file's tensors, in order. */
struct tensors {
    struct tensor *list; /* [n] */
    size_t n, bytes;     /* bytes: of all data */
};

static void add_tensor(struct tensors *t, struct tensor one) {
    one.n = 1;
    for (uint32_t d = 0; d < one.n_dims; d++)
        one.n *= one.dims[d];
    t->list[t->n++] = one;
    t->bytes += one.n * sizeof(float);
}

static void add_layer(struct tensors *t, const struct model *m, uint32_t layer,
                      const struct key_bases *b) {
    const struct layer_config *l = &model_config(m)->layers[layer];
    struct layer_basis basis = {0};
    if (l->kind != LAYER_ATTENTION || l->kv_from != layer)
        return;
    if (b)
        basis = key_bases_of(b, model_kv_place(m, layer));
    for (int i = 0; i < 2; i++) {
        struct tensor one = {.dims = {l->kv_heads, l->head_dim, l->head_dim},
                             .n_dims = 3,
                             .values = i ? basis.forward : basis.inverse};
        snprintf(one.name, sizeof one.name, "layers.%u.%s", layer, i ? "forward" : "inverse");
        add_tensor(t, one);
        ASSERT(!b || t->list[t->n - 1].n == basis.n);
    }
}

/* based: the file has bases; b NULL: only their places. The caller frees the list. */
static kvasir_status tensors_of(const struct model *m, const struct key_stats *s, bool based,
                                const struct key_bases *b, struct tensors *t, kvasir_error *err) {
    const uint32_t layers = model_config(m)->n_layers;
    *t = (struct tensors){.list = mem_calloc(2 + 2 * (size_t)layers, sizeof *t->list)};
    if (!t->list)
        return fail(err, KVASIR_ERR_MEMORY, "calibration file: out of memory");
    if (s->n) {
        add_tensor(t, (struct tensor){.name = "mean",
                                      .dims = {s->layers, s->kv_heads, s->n, 2},
                                      .n_dims = 4,
                                      .values = s->mean});
        add_tensor(t, (struct tensor){.name = "rms",
                                      .dims = {s->layers, s->kv_heads, s->n},
                                      .n_dims = 3,
                                      .values = s->rms});
    }
    for (uint32_t i = 0; based && i < layers; i++)
        add_layer(t, m, i, b);
    return KVASIR_OK;
}

kvasir_status centre_file_path(const struct kvasir_model *m, struct text_buf *out,
                               kvasir_error *err) {
    const char *tail = file_is_dir(m->path) ? "/" : ".";
    if (!text_printf(out, "%s%skey-centre.safetensors", m->path, tail))
        return fail(err, KVASIR_ERR_MEMORY, "%s: out of memory", m->path);
    return KVASIR_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* What a header says beside its tensors. */
struct origin {
    uint64_t model_id;
    uint32_t tokens;
    bool based;
};

/* Each hash is the seed of the next one. data: of the file; NULL: of the tensors' values. */
static uint64_t checksum_of(const struct tensors *t, const struct origin *o, const uint8_t *data) {
    XXH64_hash_t h = XXH64(&o->tokens, sizeof o->tokens, o->model_id);
    for (size_t i = 0; i < t->n; i++) {
        const size_t bytes = t->list[i].n * sizeof(float);
        h = XXH64(data ? (const void *)data : t->list[i].values, bytes, h);
        data = data ? data + bytes : NULL;
    }
    return h;
}

static bool put_header(const struct tensors *t, const struct origin *o, uint64_t checksum,
                       struct text_buf *out) {
    struct st_header h = {0};
    char id[20], count[12], sum[20];
    snprintf(id, sizeof id, "%016" PRIx64, o->model_id);
    snprintf(count, sizeof count, "%" PRIu32, o->tokens);
    snprintf(sum, sizeof sum, "%016" PRIx64, checksum);
    json_t *metadata =
        json_pack("{s:s, s:s, s:s, s:s}", "format", o->based ? FORMAT_BASES : FORMAT_CENTRES,
                  "model", id, "tokens", count, "checksum", sum);
    st_add_metadata(&h, metadata);
    json_decref(metadata);
    for (size_t i = 0; i < t->n; i++)
        st_add(&h, t->list[i].name, ST_F32, t->list[i].dims, t->list[i].n_dims);
    return st_finish(&h, 0, out);
}

kvasir_status centre_file_write(const struct model *m, uint64_t model_id, const struct key_stats *s,
                                const struct key_bases *b, uint32_t tokens, struct text_buf *out,
                                kvasir_error *err) {
    const struct origin o = {model_id, tokens, b != NULL};
    struct tensors t;
    TRY(tensors_of(m, s, o.based, b, &t, err));
    bool good = put_header(&t, &o, checksum_of(&t, &o, NULL), out);
    for (size_t i = 0; good && i < t.n; i++)
        good = text_append(out, t.list[i].values, t.list[i].n * sizeof(float));
    mem_free(t.list);
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
                                   struct origin *o, kvasir_error *err) {
    const char *format = json_string_value(json_object_get(metadata, "format"));
    uint64_t id, count;
    o->based = format && strcmp(format, FORMAT_BASES) == 0;
    if (!format || (!o->based && strcmp(format, FORMAT_CENTRES) != 0))
        return damaged(path, "not a calibration file of this version", err);
    if (!number_field(metadata, "model", "0123456789abcdef", 16, &id) ||
        !number_field(metadata, "tokens", "0123456789", 10, &count) || count > UINT32_MAX)
        return damaged(path, "its metadata is damaged", err);
    if (id != model_id)
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "%s was made with another model (%016" PRIx64 ", this one is %016" PRIx64
                    "); make it again with kvasir calibrate, or remove it",
                    path, id, model_id);
    o->model_id = id;
    o->tokens = (uint32_t)count;
    return KVASIR_OK;
}

/* The file must be exactly what we write for its data. */
static kvasir_status check_bytes(const char *path, const struct file_map *map, size_t start,
                                 const struct tensors *t, const struct origin *o,
                                 kvasir_error *err) {
    struct text_buf header = {0};
    if (t->n == 0 || map->size - start != t->bytes)
        return damaged(path, "its data does not have the model's shape", err);
    if (!put_header(t, o, checksum_of(t, o, map->data + start), &header))
        return fail(err, KVASIR_ERR_MEMORY, "%s: out of memory", path);
    const bool good = header.len == start && memcmp(header.data, map->data, start) == 0;
    text_free(&header);
    return good ? KVASIR_OK : damaged(path, "its header or checksum is wrong", err);
}

static kvasir_status check_values(const char *path, const struct tensors *t,
                                  const struct key_stats *s, kvasir_error *err) {
    char what[80];
    for (size_t i = 0; i < t->n; i++) {
        const struct tensor *one = &t->list[i];
        const bool spread = one->values && one->values == s->rms;
        for (size_t k = 0; one->values && k < one->n; k++)
            if (!isfinite(one->values[k]) || (spread && one->values[k] < 0)) {
                snprintf(what, sizeof what, "a value of %s is not finite%s", one->name,
                         spread ? ", or below 0" : "");
                return damaged(path, what, err);
            }
    }
    return KVASIR_OK;
}

/* Takes the data of a file. */
static kvasir_status take_data(const char *path, const struct file_map *map, size_t start,
                               const struct model *m, const struct origin *o, struct key_stats *s,
                               struct key_bases *b, kvasir_error *err) {
    const bool take_bases = o->based && b;
    const uint8_t *data = map->data + start;
    struct tensors t;
    kvasir_status status;
    if (take_bases)
        TRY(key_bases_init(b, m, err));
    TRY(tensors_of(m, s, o->based, take_bases ? b : NULL, &t, err));
    TRY_GOTO(check_bytes(path, map, start, &t, o, err));
    for (size_t i = 0; i < t.n; i++) {
        const size_t bytes = t.list[i].n * sizeof(float);
        if (t.list[i].values)
            memcpy(t.list[i].values, data, bytes);
        data += bytes;
    }
    status = check_values(path, &t, s, err);
done:
    mem_free(t.list);
    return status;
}

kvasir_status centre_file_read(const char *path, const struct model *m, uint64_t model_id,
                               struct key_stats *s, struct key_bases *b, kvasir_error *err) {
    struct file_map map;
    struct st_table table = {0};
    struct origin origin;
    json_t *metadata;
    kvasir_error why;
    TRY(file_map_open(&map, path, err));
    kvasir_status status = st_read(&table, &map, &metadata, &why);
    if (status != KVASIR_OK)
        status = damaged(path, why.text, err);
    else
        status = read_metadata(path, metadata, model_id, &origin, err);
    if (status == KVASIR_OK)
        status = take_data(path, &map, table.base, m, &origin, s, b, err);
    if (file_map_check(&map, NULL) != KVASIR_OK)
        status = file_map_check(&map, err);
    json_decref(metadata);
    st_table_free(&table);
    file_map_close(&map);
    return status;
}
