/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a folder's files -> the tensors of a checkpoint: tensors that belong together are
 * joined.
 *
 *     mlx     X.weight U32 [n][k*b/32] + X.scales, X.biases [n][k/group]    -> X.weight AFFINEb
 *             X.weight U32 [n][k/8]    + X.scales U8 [n][k/32]              -> X.weight MXFP4_MLX
 *     F8      X.weight F8_E4M3 [n][k]  + X.weight_scale[_inv], or no scale  -> X.weight F8_E4M3
 *               one scale for all: [] or [1] or [1,1]; one for each row: [n] or [n,1];
 *               one for each block: [ceil(n/rows)][ceil(k/cols)]
 *     others  F32, F16, BF16                                                as they are
 *
 * In spite of the name "weight_scale_inv", a value is code * scale in all of them.
 *
 * Invariants
 *   MODULES-1  A joined tensor's shape is [n][k] of the matrix, and every array of it has exactly
 *              the shape that n, k and the configuration ask for. (Twice the group with half the
 *              bits fits the same arrays with twice the k: load.c, which knows every k, refuses
 *              that.)
 *   MODULES-2  Every tensor of the files ends up in one of the checkpoint, or is one of those that
 *              is_activation_scale names, or of a part that is not run (tensor_is_of_another_part):
 *              such a part's shapes and types do not matter, and it is left alone.
 */
#include <inttypes.h>
#include <stdio.h>

#include "model/model_internal.h"

struct joiner {
    struct st_table *raw;
    const struct quantization *quantization;
    struct checkpoint *checkpoint;
    bool any_f8;
    kvasir_error *err;
};

/* X of "X.weight", mem_free; NULL: no memory. */
static char *module_of(const struct st_tensor *weight) {
    return mem_strndup(weight->name, strlen(weight->name) - (sizeof ".weight" - 1));
}

static struct st_tensor *part_of(const struct joiner *j, const char *module, const char *part) {
    char name[512]; /* no family has longer names */
    int n = snprintf(name, sizeof name, "%s.%s", module, part);
    return n > 0 && (size_t)n < sizeof name ? st_find(j->raw, name) : NULL;
}

static bool begins_with(const char *name, const char *head) {
    return strncmp(name, head, strlen(head)) == 0;
}

/* In models with pictures or sound the text's tensors have a prefix of their own; checkpoints of
 * the bare model, without the head's class, omit "model.". */
static char *full_name(const char *name) {
    static const char *const homes[] = {"language_model.model.", "model.language_model."};
    static const char *const bare[] = {"layers.",
                                       "embed_tokens.",
                                       "norm.",
                                       "embedding_norm.",
                                       "embed_tokens_per_layer.",
                                       "per_layer_model_projection.",
                                       "per_layer_projection_norm."};
    struct text_buf full = {0};
    for (size_t i = 0; i < sizeof homes / sizeof *homes; i++)
        if (begins_with(name, homes[i]))
            return text_printf(&full, "model.%s", name + strlen(homes[i])) ? full.data : NULL;
    if (begins_with(name, "language_model."))
        name += strlen("language_model.");
    for (size_t i = 0; i < sizeof bare / sizeof *bare; i++)
        if (begins_with(name, bare[i]))
            return text_printf(&full, "model.%s", name) ? full.data : NULL;
    return mem_strdup(name);
}

static kvasir_status add(struct joiner *j, const char *name, const struct checkpoint_tensor *t) {
    return checkpoint_add_take(j->checkpoint, full_name(name), t, j->err);
}

static bool scalar_of(const struct st_tensor *t, enum scalar_type *scalar) {
    switch (t->dtype) {
    case ST_F32:
        *scalar = SCALAR_F32;
        return true;
    case ST_F16:
        *scalar = SCALAR_F16;
        return true;
    case ST_BF16:
        *scalar = SCALAR_BF16;
        return true;
    default:
        return false;
    }
}

/* ---- mlx ------------------------------------------------------------------------------------- */

/* The product of all dims but the fastest: rows, also of a stack of matrices [experts][n]. */
static uint64_t rows_of(const struct st_tensor *t) {
    uint64_t n = 1;
    for (uint32_t i = 0; i + 1 < t->n_dims; i++) /* no overflow: its bytes are in the file */
        n *= t->dims[i];
    return n;
}
static uint64_t cols_of(const struct st_tensor *t) {
    return t->dims[t->n_dims - 1];
}

/* Checks a part of a module: the same number of rows, the right type. */
static kvasir_status check_part(struct joiner *j, const char *module, const char *part,
                                const struct st_tensor *t, const struct st_tensor *w, bool bytes) {
    enum scalar_type scalar;
    if (!t)
        return fail(j->err, KVASIR_ERR_FORMAT, "tensor %s.%s is missing", module, part);
    if (t->n_dims != w->n_dims ||
        memcmp(t->dims, w->dims, (w->n_dims - 1) * sizeof *w->dims) != 0) {
        char found[SHAPE_TEXT_MAX];
        return fail(j->err, KVASIR_ERR_FORMAT,
                    "tensor %s has shape %s, expected %" PRIu64 " rows as %s has", t->name,
                    shape_text(t->dims, t->n_dims, found), rows_of(w), w->name);
    }
    if (bytes ? t->dtype != ST_U8 : !scalar_of(t, &scalar))
        return fail(j->err, KVASIR_ERR_UNSUPPORTED, "tensor %s has dtype %s, expected %s", t->name,
                    st_dtype_name(t->dtype), bytes ? "U8 (mode mxfp4)" : "F16, BF16 or F32");
    return KVASIR_OK;
}

/* Whether rows of `words` 32-bit words and of `groups` scales have the same number of codes. */
static kvasir_status check_packing(struct joiner *j, const char *module, struct mlx_format f,
                                   uint64_t words, uint64_t groups) {
    uint64_t k;
    if (__builtin_mul_overflow(groups, f.group, &k) || k > UINT32_MAX || words > UINT32_MAX ||
        k * f.bits != words * 32)
        return fail(j->err, KVASIR_ERR_FORMAT,
                    "tensor %s.weight: %" PRIu64 " words a row are not %" PRIu64
                    " groups of %u codes of %u bits (field %s)",
                    module, words, groups, f.group, f.bits, j->quantization->field);
    return KVASIR_OK;
}

static kvasir_status join_mlx_parts(struct joiner *j, struct st_tensor *w, const char *module) {
    struct st_tensor *scales = part_of(j, module, "scales"), *biases = part_of(j, module, "biases");
    struct mlx_format f;
    TRY(quantization_of_module(j->quantization, module, &f, j->err));
    bool affine = f.mode == MLX_AFFINE;
    if ((w->n_dims != 2 && w->n_dims != 3) || rows_of(w) > UINT32_MAX)
        return fail(j->err, KVASIR_ERR_FORMAT, "tensor %s must be a matrix, or a stack of some",
                    w->name);
    TRY(check_part(j, module, "scales", scales, w, !affine));
    TRY(check_packing(j, module, f, cols_of(w), cols_of(scales)));
    struct checkpoint_tensor t = {
        .type = affine ? WEIGHT_AFFINE2 + (f.bits - 2) : WEIGHT_MXFP4_MLX,
        .n_dims = w->n_dims,
        .data = w->data,
        .bytes = w->bytes + scales->bytes,
        .scales = scales->data,
        .group = f.group,
    };
    memcpy(t.dims, w->dims, sizeof t.dims);
    t.dims[t.n_dims - 1] = cols_of(scales) * f.group;
    if (affine) {
        TRY(check_part(j, module, "biases", biases, w, false));
        if (cols_of(biases) != cols_of(scales) || biases->dtype != scales->dtype)
            return fail(j->err, KVASIR_ERR_FORMAT,
                        "tensor %s.biases must have the shape and dtype of %s.scales", module,
                        module);
        t.biases = biases->data;
        t.bytes += biases->bytes;
        (void)scalar_of(scales, &t.scalar);
        biases->taken = true;
    }
    w->taken = scales->taken = true;
    return add(j, w->name, &t);
}

static kvasir_status join_mlx(struct joiner *j, struct st_tensor *w) {
    if (j->quantization->method != QUANTIZED_MLX || !ends_with(w->name, ".weight"))
        return fail(j->err, KVASIR_ERR_UNSUPPORTED,
                    "tensor %s has dtype U32, which only a quantized module's weight may have "
                    "(field quantization)",
                    w->name);
    char *module = module_of(w);
    if (!module)
        return fail(j->err, KVASIR_ERR_MEMORY, "out of memory for tensor names");
    kvasir_status status = join_mlx_parts(j, w, module);
    mem_free(module);
    return status;
}

/* Refuses an object of the configuration for a module that does not exist or is not quantized. */
static kvasir_status check_named_modules(struct joiner *j) {
    const struct quantization *q = j->quantization;
    const char *module;
    json_t *value;
    if (q->method != QUANTIZED_MLX)
        return KVASIR_OK;
    json_object_foreach(q->object, module, value) {
        if (!json_is_object(value))
            continue;
        const struct st_tensor *w = part_of(j, module, "weight");
        struct text_buf longer = {0};
        if (!w && text_printf(&longer, "model.%s", module))
            w = part_of(j, longer.data, "weight");
        text_free(&longer);
        if (!w && strncmp(module, "model.", 6) == 0)
            w = part_of(j, module + 6, "weight");
        if (!w || w->dtype != ST_U32)
            return fail(j->err, KVASIR_ERR_FORMAT,
                        "field %s.%.90s: no quantized module has this name", q->field, module);
    }
    return KVASIR_OK;
}

/* ---- MXFP4 as gpt-oss has it ----------------------------------------------------------------- */

/* X_blocks U8 [experts][n][k/32][16] with X_scales U8 [experts][n][k/32]: byte i of a block has
 * values 2i and 2i + 1, so the bytes are the same as in mlx's words. */
static kvasir_status join_mxfp4(struct joiner *j, struct st_tensor *blocks) {
    enum { BLOCK = 32 };
    char name[512];
    const size_t len = strlen(blocks->name) - (sizeof "_blocks" - 1);
    if (len + sizeof "_scales" > sizeof name)
        return fail(j->err, KVASIR_ERR_FORMAT, "tensor %.60s...: the name is too long",
                    blocks->name);
    snprintf(name, sizeof name, "%.*s_scales", (int)len, blocks->name);
    struct st_tensor *scales = st_find(j->raw, name);
    if (!scales || scales->dtype != ST_U8 || blocks->n_dims != 4 || scales->n_dims != 3 ||
        blocks->dims[3] != BLOCK / 2 ||
        memcmp(blocks->dims, scales->dims, 3 * sizeof *scales->dims) != 0)
        return fail(j->err, KVASIR_ERR_FORMAT,
                    "tensor %s: %s must be there, U8, and have a scale for each block of 16 bytes",
                    blocks->name, name);
    if (rows_of(scales) > UINT32_MAX || cols_of(scales) > UINT32_MAX / BLOCK)
        return fail(j->err, KVASIR_ERR_FORMAT, "tensor %s is too large", blocks->name);
    struct checkpoint_tensor t = {
        .type = WEIGHT_MXFP4_MLX,
        .n_dims = 3,
        .dims = {scales->dims[0], scales->dims[1], scales->dims[2] * BLOCK},
        .data = blocks->data,
        .bytes = blocks->bytes + scales->bytes,
        .scales = scales->data,
        .group = BLOCK};
    blocks->taken = scales->taken = true;
    name[len] = 0;
    return add(j, name, &t);
}

/* ---- F8 -------------------------------------------------------------------------------------- */

/* Sets group and group_rows from the scale's shape; false: the shape has no meaning. */
static bool settle_scale(const struct quantization *q, const struct st_tensor *scale,
                         struct checkpoint_tensor *t) {
    uint64_t n = t->dims[0], k = t->dims[1], count = 1;
    for (uint32_t i = 0; i < scale->n_dims; i++) /* no overflow: its bytes are in the file */
        count *= scale->dims[i];
    uint64_t rows = scale->n_dims ? scale->dims[0] : 1;
    t->group_rows = count == 1 ? (uint32_t)n : 1;
    t->group = (uint32_t)k;
    if (count == 1 || (count == n && rows == n && scale->n_dims <= 2))
        return true;
    t->group_rows = q->block_rows;
    t->group = q->block_cols;
    return q->block_rows && scale->n_dims == 2 &&
           scale->dims[0] == (n + q->block_rows - 1) / q->block_rows &&
           scale->dims[1] == (k + q->block_cols - 1) / q->block_cols;
}

static kvasir_status join_f8_parts(struct joiner *j, struct st_tensor *w, const char *module) {
    struct st_tensor *scale = part_of(j, module, "weight_scale"),
                     *inverse = part_of(j, module, "weight_scale_inv");
    struct checkpoint_tensor t = {.type = WEIGHT_F8_E4M3,
                                  .n_dims = 2,
                                  .dims = {w->dims[0], w->dims[1]},
                                  .data = w->data,
                                  .bytes = w->bytes};
    if (scale && inverse)
        return fail(j->err, KVASIR_ERR_FORMAT, "tensors %s and %s: a weight has one scale",
                    scale->name, inverse->name);
    scale = scale ? scale : inverse;
    if (scale) {
        if (!scalar_of(scale, &t.scalar))
            return fail(j->err, KVASIR_ERR_UNSUPPORTED,
                        "tensor %s has dtype %s, expected F16, BF16 or F32", scale->name,
                        st_dtype_name(scale->dtype));
        if (!settle_scale(j->quantization, scale, &t)) {
            char found[SHAPE_TEXT_MAX], of[SHAPE_TEXT_MAX];
            return fail(j->err, KVASIR_ERR_FORMAT,
                        "tensor %s has shape %s: neither one scale, nor one for each row, nor one "
                        "for each block (field quantization_config.weight_block_size) of %s",
                        scale->name, shape_text(scale->dims, scale->n_dims, found),
                        shape_text(t.dims, 2, of));
        }
        t.scales = scale->data;
        t.bytes += scale->bytes;
        scale->taken = true;
    }
    w->taken = j->any_f8 = true;
    return add(j, w->name, &t);
}

static kvasir_status join_f8(struct joiner *j, struct st_tensor *w) {
    if (!ends_with(w->name, ".weight") || w->n_dims != 2 || w->dims[0] > UINT32_MAX ||
        w->dims[1] > UINT32_MAX)
        return fail(j->err, KVASIR_ERR_UNSUPPORTED,
                    "tensor %s has dtype F8_E4M3, which only a module's matrix may have", w->name);
    char *module = module_of(w);
    if (!module)
        return fail(j->err, KVASIR_ERR_MEMORY, "out of memory for tensor names");
    kvasir_status status = join_f8_parts(j, w, module);
    mem_free(module);
    return status;
}

/* Scales for engines that round activations (or the cache) to 8-bit floats. Our matmuls round
 * activations themselves and to more bits, and pages have formats of their own: without these
 * scales the result is closer to the unquantized one. */
static bool is_activation_scale(const char *name) {
    static const char *const tails[] = {".input_scale", ".activation_scale", ".output_scale",
                                        ".q_scale",     ".k_scale",          ".v_scale"};
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++)
        if (ends_with(name, tails[i]))
            return true;
    return false;
}

/* ---- the others ------------------------------------------------------------------------------ */

static kvasir_status add_plain(struct joiner *j, const struct st_tensor *r) {
    static const enum weight_type types[] = {
        [SCALAR_F16] = WEIGHT_F16, [SCALAR_BF16] = WEIGHT_BF16, [SCALAR_F32] = WEIGHT_F32};
    enum scalar_type scalar;
    if ((j->any_f8 || j->quantization->method == QUANTIZED_F8) && is_activation_scale(r->name))
        return KVASIR_OK;
    bool part = ends_with(r->name, ".scales") || ends_with(r->name, ".biases") ||
                ends_with(r->name, ".weight_scale") || ends_with(r->name, ".weight_scale_inv");
    if (part)
        return fail(j->err, KVASIR_ERR_FORMAT, "tensor %s does not belong to a quantized weight",
                    r->name);
    if (!scalar_of(r, &scalar))
        return fail(j->err, KVASIR_ERR_UNSUPPORTED,
                    r->dtype == ST_U8
                        ? "tensor %s has dtype %s, which only the scales of an mxfp4 module may "
                          "have"
                        : "tensor %s has dtype %s, which is not supported for weights",
                    r->name, st_dtype_name(r->dtype));
    if (r->n_dims > TENSOR_DIMS_MAX)
        return fail(j->err, KVASIR_ERR_UNSUPPORTED, "tensor %s has %u dims, supported are %d",
                    r->name, r->n_dims, TENSOR_DIMS_MAX);
    struct checkpoint_tensor t = {
        .type = types[scalar], .n_dims = r->n_dims, .data = r->data, .bytes = r->bytes};
    memcpy(t.dims, r->dims, sizeof t.dims);
    return add(j, r->name, &t);
}

/* Parts that are not run are taken before anything is joined. */
static kvasir_status take_other_parts(struct joiner *j) {
    for (size_t i = 0; i < j->raw->n; i++) {
        char *name = full_name(j->raw->list[i].name);
        if (!name)
            return fail(j->err, KVASIR_ERR_MEMORY, "out of memory for tensor names");
        j->raw->list[i].taken = tensor_is_of_another_part(name);
        mem_free(name);
    }
    return KVASIR_OK;
}

kvasir_status modules_join(struct st_table *raw, const struct quantization *quantization,
                           struct checkpoint *c, kvasir_error *err) {
    struct joiner j = {.raw = raw, .quantization = quantization, .checkpoint = c, .err = err};
    TRY(check_named_modules(&j));
    TRY(take_other_parts(&j));
    for (size_t i = 0; i < raw->n; i++) {
        if (raw->list[i].taken)
            continue;
        if (raw->list[i].dtype == ST_U32)
            TRY(join_mlx(&j, &raw->list[i]));
        if (raw->list[i].dtype == ST_F8_E4M3)
            TRY(join_f8(&j, &raw->list[i]));
        if (raw->list[i].dtype == ST_U8 && ends_with(raw->list[i].name, "_blocks"))
            TRY(join_mxfp4(&j, &raw->list[i]));
    }
    for (size_t i = 0; i < raw->n; i++)
        if (!raw->list[i].taken)
            TRY(add_plain(&j, &raw->list[i]));
    return KVASIR_OK;
}
