/* SPDX-License-Identifier: Apache-2.0 */
/* Reads what a folder's config.json says about quantized modules.
 *
 *     mlx    "quantization" (mlx-lm writes a copy of it as "quantization_config"):
 *            { "group_size": 64, "bits": 4, "mode": "affine",
 *              "model.layers.0.mlp.down_proj": { "group_size": 32, "bits": 6 },  as told here
 *              "lm_head": false }                                                not quantized
 *     F8     "quantization_config": { "quant_method": "fp8", "weight_block_size": [128, 128] }
 *
 * A module that no key names is quantized in the usual way if the files have scales for it. Modules
 * are found with and without "model." before them. What a module's own object omits is mlx's
 * default for its mode, not the usual value, as in mlx-lm.
 *
 * Refused by name: formats with other packings (GPTQ, AWQ, bitsandbytes) and mlx's modes nvfp4 and
 * mxfp8.
 */
#include <stdio.h>

#include "model/model_internal.h"

enum { BLOCK_SIDE_MAX = 1 << 16 };

/* ---- mlx ------------------------------------------------------------------------------------- */

static kvasir_status read_mode(const struct json_scope *s, enum mlx_mode *mode) {
    const char *text = "affine";
    TRY(json_get_string(s, "mode", false, &text));
    *mode = strcmp(text, "mxfp4") == 0 ? MLX_MXFP4 : MLX_AFFINE;
    if (*mode == MLX_AFFINE && strcmp(text, "affine") != 0)
        return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                    "field %smode: %.60s is not supported, only affine and mxfp4", s->prefix, text);
    return KVASIR_OK;
}

static kvasir_status read_format(const struct json_scope *s, bool required,
                                 struct mlx_format *format) {
    static const char *const bits_allowed = "2, 3, 4, 5, 6 and 8";
    TRY(read_mode(s, &format->mode));
    bool affine = format->mode == MLX_AFFINE;
    format->bits = 4;
    format->group = affine ? 64 : 32;
    TRY(json_get_u32(s, "bits", required && affine, 0, UINT32_MAX, &format->bits));
    TRY(json_get_u32(s, "group_size", required && affine, 0, UINT32_MAX, &format->group));
    uint32_t b = format->bits, g = format->group;
    if (affine ? b < 2 || b > 8 || b == 7 : b != 4)
        return fail(s->err, KVASIR_ERR_UNSUPPORTED, "field %sbits: %u is not supported, only %s",
                    s->prefix, b, affine ? bits_allowed : "4 (mode mxfp4)");
    if (affine ? g != 32 && g != 64 && g != 128 : g != 32)
        return fail(s->err, KVASIR_ERR_UNSUPPORTED,
                    "field %sgroup_size: %u is not supported, only %s", s->prefix, g,
                    affine ? "32, 64 and 128" : "32 (mode mxfp4)");
    return KVASIR_OK;
}

static kvasir_status read_module(const struct quantization *q, const char *module,
                                 const json_t *object, struct mlx_format *format,
                                 kvasir_error *err) {
    char prefix[128];
    snprintf(prefix, sizeof prefix, "%s.%.90s.", q->field, module);
    return read_format(&(struct json_scope){object, prefix, err}, false, format);
}

/* Every module's object is checked here, so that a wrong one is reported even if its module is
 * missing. */
static kvasir_status read_mlx(struct quantization *q, kvasir_error *err) {
    char prefix[32];
    const char *key;
    json_t *value;
    struct mlx_format format;
    q->method = QUANTIZED_MLX;
    snprintf(prefix, sizeof prefix, "%s.", q->field);
    TRY(read_format(&(struct json_scope){q->object, prefix, err}, true, &q->usual));
    json_object_foreach(q->object, key, value) {
        if (!st_name_is_clean(key, strlen(key)))
            return fail(err, KVASIR_ERR_FORMAT, "field %s has a key with control characters",
                        q->field);
        if (json_is_object(value))
            TRY(read_module(q, key, value, &format, err));
    }
    return KVASIR_OK;
}

/* ---- F8 -------------------------------------------------------------------------------------- */

static kvasir_status read_f8(struct quantization *q, const char *method, kvasir_error *err) {
    static const char *const known[] = {"fp8", "compressed-tensors", "fbgemm_fp8", "modelopt"};
    size_t i = 0;
    if (strcmp(method, "mxfp4") == 0) /* gpt-oss: tensor names show it (modules.c) */
        return KVASIR_OK;
    while (i < sizeof known / sizeof *known && strcmp(method, known[i]) != 0)
        i++;
    if (i == sizeof known / sizeof *known)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "field %s.quant_method: %.60s is not supported, only mlx's quantization and "
                    "8-bit floats (fp8, compressed-tensors, fbgemm_fp8, modelopt)",
                    q->field, method);
    q->method = QUANTIZED_F8;
    const json_t *block = json_object_get(q->object, "weight_block_size");
    if (!block || json_is_null(block))
        return KVASIR_OK;
    json_int_t rows = json_integer_value(json_array_get(block, 0));
    json_int_t cols = json_integer_value(json_array_get(block, 1));
    if (json_array_size(block) != 2 || rows < 1 || rows > BLOCK_SIDE_MAX || cols < 1 ||
        cols > BLOCK_SIDE_MAX)
        return fail(err, KVASIR_ERR_FORMAT,
                    "field %s.weight_block_size must be two integers from 1 to %d", q->field,
                    BLOCK_SIDE_MAX);
    q->block_rows = (uint32_t)rows;
    q->block_cols = (uint32_t)cols;
    return KVASIR_OK;
}

/* ---- the field ------------------------------------------------------------------------------- */

kvasir_status quantization_read(const struct json_scope *s, struct quantization *q) {
    static const char *const fields[] = {"quantization", "quantization_config"};
    *q = (struct quantization){0};
    for (size_t i = 0; i < 2 && !q->object; i++) {
        json_t *object = json_object_get(s->object, fields[i]);
        if (!object || json_is_null(object))
            continue;
        if (!json_is_object(object))
            return fail(s->err, KVASIR_ERR_FORMAT, "field %s must be an object, found %s",
                        fields[i], json_kind(object));
        q->field = fields[i];
        q->object = json_incref(object);
    }
    if (!q->object)
        return KVASIR_OK;
    char prefix[32];
    snprintf(prefix, sizeof prefix, "%s.", q->field);
    const char *method = NULL;
    TRY(json_get_string(&(struct json_scope){q->object, prefix, s->err}, "quant_method", false,
                        &method));
    return method ? read_f8(q, method, s->err) : read_mlx(q, s->err);
}

void quantization_deinit(struct quantization *q) {
    json_decref(q->object);
    *q = (struct quantization){0};
}

/* The module's own entry, by either of its names. */
static const json_t *module_entry(const struct quantization *q, const char *module) {
    static const char front[] = "model.";
    const size_t len = sizeof front - 1;
    const json_t *entry = json_object_get(q->object, module);
    if (entry)
        return entry;
    if (strncmp(module, front, len) == 0)
        return json_object_get(q->object, module + len);
    char longer[256];
    int n = snprintf(longer, sizeof longer, "%s%s", front, module);
    return n > 0 && (size_t)n < sizeof longer ? json_object_get(q->object, longer) : NULL;
}

kvasir_status quantization_of_module(const struct quantization *q, const char *module,
                                     struct mlx_format *format, kvasir_error *err) {
    const json_t *entry = module_entry(q, module);
    *format = q->usual;
    if (json_is_false(entry))
        return fail(err, KVASIR_ERR_FORMAT,
                    "tensor %s.weight is quantized, field %s.%.90s says it is not", module,
                    q->field, module);
    return json_is_object(entry) ? read_module(q, module, entry, format, err) : KVASIR_OK;
}
