/* SPDX-License-Identifier: Apache-2.0 */
/* bind.c: a checkpoint's tensors bound to a model's places, each checked against the shape that the
 * configuration asks for. load.c and the families' bind() are written with these.
 *
 *   LOAD-1  A bound matrix stays where it is mapped, in its own type; one that a file has
 *           transposed (two families' experts and convolutions) is copied once. Vectors are
 *           converted to float32 once: they are small and every row of every step reads them.
 */
#include <stdio.h>

#include "model/family.h"
#include "util/bytes.h"

/* ---- binding one tensor ---------------------------------------------------------------------- */

bool bind_has(const struct binder *b, const char *name) {
    return checkpoint_find(b->checkpoint, name) != NULL;
}

/* Leading dims of 1 do not count: tools that write GGUF drop them. */
static bool same_dims(const uint64_t *a, uint32_t n_a, const uint64_t *b, uint32_t n_b) {
    for (; n_a > 1 && a[0] == 1; n_a--)
        a++;
    for (; n_b > 1 && b[0] == 1; n_b--)
        b++;
    return n_a == n_b && memcmp(a, b, n_a * sizeof *a) == 0;
}

static kvasir_status bind(struct binder *b, const char *name, const uint64_t *dims, uint32_t n_dims,
                          const struct checkpoint_tensor **out) {
    const struct checkpoint_tensor *t = checkpoint_find(b->checkpoint, name);
    if (!t)
        return fail(b->err, KVASIR_ERR_FORMAT, "tensor %s is missing", name);
    if (!same_dims(t->dims, t->n_dims, dims, n_dims)) {
        char found[SHAPE_TEXT_MAX], expected[SHAPE_TEXT_MAX];
        return fail(b->err, KVASIR_ERR_FORMAT, "tensor %s has shape %s, expected %s", name,
                    shape_text(t->dims, t->n_dims, found), shape_text(dims, n_dims, expected));
    }
    const size_t at = (size_t)(t - checkpoint_tensor_at(b->checkpoint, 0));
    ASSERT(at < checkpoint_tensor_count(b->checkpoint));
    b->bound[at] = true;
    b->model->weight_bytes += t->bytes;
    *out = t;
    return KVASIR_OK;
}

static kvasir_status matrix_add(struct binder *b, const struct weight *w, matrix_id *out) {
    struct model *m = b->model;
    if (!ARRAY_GROW(m->matrices, m->cap_matrices, m->n_matrices + 1))
        return fail(b->err, KVASIR_ERR_MEMORY, "out of memory for the model's matrices");
    ASSERT(m->n_matrices > 0 && m->n_matrices < m->cap_matrices); /* 0 is none */
    *out = m->n_matrices;
    m->matrices[m->n_matrices++] = *w;
    return KVASIR_OK;
}

kvasir_status bind_joint(struct binder *b, const char *name, uint32_t n, uint32_t k,
                         struct weight *w) {
    const struct checkpoint_tensor *t = NULL;
    TRY(bind(b, name, (uint64_t[]){n, k}, 2, &t));
    *w = checkpoint_weight(t);
    return KVASIR_OK;
}

kvasir_status bind_matrix(struct binder *b, const char *name, uint32_t n, uint32_t k,
                          matrix_id *out) {
    struct weight w;
    TRY(bind_joint(b, name, n, k, &w));
    return matrix_add(b, &w, out);
}

kvasir_status bind_stack(struct binder *b, const char *name, uint32_t experts, uint32_t n,
                         uint32_t k, struct weight *w) {
    const struct checkpoint_tensor *t = NULL;
    TRY(bind(b, name, (uint64_t[]){experts, n, k}, 3, &t));
    *w = checkpoint_weight(t);
    return KVASIR_OK;
}

kvasir_status vector_make(struct binder *b, uint32_t n, vector_id *out, float **data) {
    struct model *m = b->model;
    if (!ARRAY_GROW(m->vectors, m->cap_vectors, m->n_vectors + 1))
        return fail(b->err, KVASIR_ERR_MEMORY, "out of memory for the model's vectors");
    *data = mem_alloc_aligned(n * sizeof **data);
    if (!*data)
        return fail(b->err, KVASIR_ERR_MEMORY, "out of memory for the model's vectors");
    ASSERT(m->n_vectors > 0 && m->n_vectors < m->cap_vectors);
    *out = m->n_vectors;
    m->vectors[m->n_vectors++] = (struct model_vector){*data, n};
    return KVASIR_OK;
}

static void decode_all(const struct weight *w, float *out) {
    for (uint32_t row = 0; row < w->n; row++)
        weight_traits_of(w->type)->decode(w, row, out + (size_t)row * w->k);
}

kvasir_status bind_values(struct binder *b, const char *name, const uint64_t *dims, uint32_t n_dims,
                          vector_id *out, float **data) {
    const struct checkpoint_tensor *t = NULL;
    uint32_t n = 1;
    TRY(bind(b, name, dims, n_dims, &t));
    for (uint32_t i = 0; i < n_dims; i++)
        n *= (uint32_t)dims[i];
    TRY(vector_make(b, n, out, data));
    struct weight w = checkpoint_weight(t);
    decode_all(&w, *data);
    return KVASIR_OK;
}

kvasir_status bind_vector(struct binder *b, const char *name, uint32_t n, vector_id *out) {
    float *data;
    return bind_values(b, name, (uint64_t[]){n}, 1, out, &data);
}

kvasir_status bind_norm(struct binder *b, const char *name, uint32_t n, vector_id *out) {
    float *gain;
    TRY(bind_values(b, name, (uint64_t[]){n}, 1, out, &gain));
    for (uint32_t i = 0; b->model->config.unit_offset && i < n; i++)
        gain[i] += 1;
    return KVASIR_OK;
}

kvasir_status bind_rows(struct binder *b, const struct weight *w, uint32_t first, uint32_t n,
                        matrix_id *out) {
    const struct weight_traits *t = weight_traits_of(w->type);
    struct weight part = *w;
    ASSERT(first <= w->n && n <= w->n - first);
    part.data = (const uint8_t *)w->data + first * weight_row_bytes(t, w->k);
    part.n = n;
    if (!w->scales)
        return matrix_add(b, &part, out);
    const uint32_t shared = w->group_rows ? w->group_rows : 1;
    if (shared < w->n && first % shared != 0)
        return fail(b->err, KVASIR_ERR_UNSUPPORTED,
                    "a joint matrix is cut at row %u, inside a block of %u rows with one scale",
                    first, shared);
    const size_t groups = w->type == WEIGHT_MXFP4_MLX ? w->k / 32
                                                      : w->k / w->group + (w->k % w->group != 0),
                 scalar = w->type == WEIGHT_MXFP4_MLX ? 1
                          : w->scalar == SCALAR_F32   ? 4
                                                      : 2,
                 at = first / shared * groups * scalar;
    part.scales = (const uint8_t *)w->scales + at;
    if (w->biases)
        part.biases = (const uint8_t *)w->biases + at;
    return matrix_add(b, &part, out);
}

kvasir_status bind_copy(struct binder *b, size_t bytes, void **out) {
    struct model *m = b->model;
    char size[HUMAN_BYTES];
    void **copies = mem_realloc(m->copies, m->n_copies + 1, sizeof *copies);
    if (copies)
        m->copies = copies;
    *out = copies ? mem_alloc_aligned(bytes) : NULL;
    if (!*out)
        return fail(b->err, KVASIR_ERR_MEMORY, "out of memory for a copy of %s of weights",
                    human_bytes((double)bytes, size));
    m->copies[m->n_copies++] = *out;
    return KVASIR_OK;
}

/* ---- parts of a layer ------------------------------------------------------------------------ */

struct layer_name layer_name(uint32_t layer, const char *part, const char *tail) {
    struct layer_name name;
    int len = snprintf(name.text, sizeof name.text, "model.layers.%u.%s%s", layer, part, tail);
    ASSERT(len > 0 && (size_t)len < sizeof name.text);
    return name;
}

bool layer_has(const struct binder *b, uint32_t layer, const char *part) {
    return bind_has(b, layer_name(layer, part, "").text);
}

kvasir_status layer_matrix(struct binder *b, uint32_t layer, const char *part, uint32_t n,
                           uint32_t k, matrix_id *out) {
    return bind_matrix(b, layer_name(layer, part, ".weight").text, n, k, out);
}

kvasir_status layer_vector(struct binder *b, uint32_t layer, const char *part, uint32_t n,
                           vector_id *out) {
    return bind_vector(b, layer_name(layer, part, "").text, n, out);
}

kvasir_status layer_norm(struct binder *b, uint32_t layer, const char *part, uint32_t n,
                         vector_id *out) {
    return bind_norm(b, layer_name(layer, part, ".weight").text, n, out);
}

kvasir_status layer_conv(struct binder *b, uint32_t layer, const char *part, uint32_t channels,
                         uint32_t width, vector_id *out) {
    const struct checkpoint_tensor *t = NULL;
    struct layer_name name = layer_name(layer, part, ".weight");
    const struct checkpoint_tensor *there = checkpoint_find(b->checkpoint, name.text);
    /* mlx has [channels][width][1] */
    bool mlx = there && there->n_dims == 3 && there->dims[1] == width && there->dims[2] == 1;
    bool flat = there && there->n_dims == 2; /* GGUF has [channels][width] */
    uint64_t dims[] = {channels, mlx || flat ? width : 1, mlx ? 1 : width};
    float *transposed;
    TRY(bind(b, name.text, dims, flat ? 2 : 3, &t));
    TRY(vector_make(b, channels * width, out, &transposed));
    float *rows = mem_calloc((size_t)channels * width, sizeof *rows);
    if (!rows)
        return fail(b->err, KVASIR_ERR_MEMORY, "out of memory for %s", name.text);
    struct weight w = checkpoint_weight(t);
    decode_all(&w, rows);
    for (uint32_t c = 0; c < channels; c++)
        for (uint32_t j = 0; j < width; j++)
            transposed[(size_t)j * channels + c] = rows[(size_t)c * width + j];
    mem_free(rows);
    return KVASIR_OK;
}

kvasir_status layer_mlp(struct binder *b, uint32_t layer, const char *part, uint32_t ffn_dim,
                        struct mlp_weights *w) {
    const uint32_t dim = b->model->config.dim;
    char name[64];
    snprintf(name, sizeof name, "%s.gate_proj", part);
    TRY(layer_matrix(b, layer, name, ffn_dim, dim, &w->gate));
    snprintf(name, sizeof name, "%s.up_proj", part);
    TRY(layer_matrix(b, layer, name, ffn_dim, dim, &w->up));
    snprintf(name, sizeof name, "%s.down_proj", part);
    return layer_matrix(b, layer, name, dim, ffn_dim, &w->down);
}

/* Values [first, first + n) of a vector as a vector of their own. */
static kvasir_status cut_vector(struct binder *b, vector_id from, uint32_t first, uint32_t n,
                                vector_id *out) {
    float *data;
    ASSERT(from < b->model->n_vectors && first + n <= b->model->vectors[from].n);
    TRY(vector_make(b, n, out, &data));
    memcpy(data, b->model->vectors[from].data + first, n * sizeof *data);
    return KVASIR_OK;
}

/* Rows of q, k and v in one matrix. */
static kvasir_status attention_joint(struct binder *b, uint32_t i, uint32_t q_dim, uint32_t kv_dim,
                                     struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    const uint32_t all = q_dim + 2 * kv_dim;
    struct weight joint;
    vector_id bias;
    TRY(bind_joint(b, layer_name(i, "self_attn.qkv_proj", ".weight").text, all, c->dim, &joint));
    TRY(bind_rows(b, &joint, 0, q_dim, &l->q));
    TRY(bind_rows(b, &joint, q_dim, kv_dim, &l->k));
    TRY(bind_rows(b, &joint, q_dim + kv_dim, kv_dim, &l->v));
    if (c->attention_bias == BIAS_NONE)
        return KVASIR_OK;
    TRY(layer_vector(b, i, "self_attn.qkv_proj.bias", all, &bias));
    TRY(cut_vector(b, bias, 0, q_dim, &l->q_bias));
    TRY(cut_vector(b, bias, q_dim, kv_dim, &l->k_bias));
    return cut_vector(b, bias, q_dim + kv_dim, kv_dim, &l->v_bias);
}

static kvasir_status attention_apart(struct binder *b, uint32_t i, uint32_t q_dim, uint32_t kv_dim,
                                     struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    TRY(layer_matrix(b, i, "self_attn.q_proj", q_dim, c->dim, &l->q));
    TRY(layer_matrix(b, i, "self_attn.k_proj", kv_dim, c->dim, &l->k));
    TRY(layer_matrix(b, i, "self_attn.v_proj", kv_dim, c->dim, &l->v));
    if (c->attention_bias == BIAS_NONE)
        return KVASIR_OK;
    TRY(layer_vector(b, i, "self_attn.q_proj.bias", q_dim, &l->q_bias));
    TRY(layer_vector(b, i, "self_attn.k_proj.bias", kv_dim, &l->k_bias));
    return layer_vector(b, i, "self_attn.v_proj.bias", kv_dim, &l->v_bias);
}

kvasir_status layer_attention(struct binder *b, uint32_t i, uint32_t q_blocks,
                              struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    const uint32_t q_dim = c->heads * c->layers[i].head_dim,
                   kv_dim = c->layers[i].kv_heads * c->layers[i].head_dim;
    TRY(layer_has(b, i, "self_attn.qkv_proj.weight")
            ? attention_joint(b, i, q_blocks * q_dim, kv_dim, l)
            : attention_apart(b, i, q_blocks * q_dim, kv_dim, l));
    TRY(layer_matrix(b, i, "self_attn.o_proj", c->dim, q_dim, &l->o));
    return c->attention_bias == BIAS_ALL
               ? layer_vector(b, i, "self_attn.o_proj.bias", c->dim, &l->o_bias)
               : KVASIR_OK;
}

/* ---- experts --------------------------------------------------------------------------------- */

kvasir_status experts_alloc(struct binder *b, struct layer_weights *l) {
    const uint32_t n = b->model->config.moe.n;
    l->expert_matrices = mem_calloc(n, PLACES * sizeof *l->expert_matrices);
    return l->expert_matrices ? KVASIR_OK
                              : fail(b->err, KVASIR_ERR_MEMORY, "out of memory for %u experts", n);
}

/* experts.E.gate_proj.weight ... */
static kvasir_status experts_single(struct binder *b, uint32_t layer, const char *part,
                                    struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    for (uint32_t e = 0; e < c->moe.n; e++) {
        char name[64];
        struct mlp_weights w;
        snprintf(name, sizeof name, "%s.experts.%u", part, e);
        TRY(layer_mlp(b, layer, name, c->moe.dim, &w));
        matrix_id *to = &l->expert_matrices[(size_t)PLACES * e];
        to[PLACE_GATE] = w.gate;
        to[PLACE_UP] = w.up;
        to[PLACE_DOWN] = w.down;
    }
    return KVASIR_OK;
}

kvasir_status experts_spread(struct binder *b, struct layer_weights *l, int place,
                             const struct weight *stack, uint32_t stride, uint32_t first,
                             uint32_t n) {
    ASSERT(place >= PLACE_GATE && place < PLACES);
    for (uint32_t e = 0; e < b->model->config.moe.n; e++)
        TRY(bind_rows(b, stack, e * stride + first, n,
                      &l->expert_matrices[(size_t)PLACES * e + (size_t)place]));
    return KVASIR_OK;
}

static kvasir_status experts_fused(struct binder *b, uint32_t layer, const char *part,
                                   struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    const uint32_t n = c->moe.n, dim = c->moe.dim;
    struct weight both, down;
    char name[64];
    snprintf(name, sizeof name, "%s.gate_up_proj", part);
    TRY(bind_stack(b, layer_name(layer, name, "").text, n, 2 * dim, c->dim, &both));
    snprintf(name, sizeof name, "%s.down_proj", part);
    const char *tail = layer_has(b, layer, name) ? "" : ".weight"; /* GGUF has one */
    TRY(bind_stack(b, layer_name(layer, name, tail).text, n, c->dim, dim, &down));
    TRY(experts_spread(b, l, PLACE_GATE, &both, 2 * dim, 0, dim));
    TRY(experts_spread(b, l, PLACE_UP, &both, 2 * dim, dim, dim));
    return experts_spread(b, l, PLACE_DOWN, &down, c->dim, 0, c->dim);
}

/* mlx's switch_mlp.gate_proj.weight, and GGUF's: one stack each. */
static kvasir_status experts_stacked(struct binder *b, uint32_t layer, const char *part,
                                     struct layer_weights *l) {
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    const struct model_config *c = &b->model->config;
    for (int place = PLACE_GATE; place <= PLACE_DOWN; place++) {
        const uint32_t rows = place == PLACE_DOWN ? c->dim : c->moe.dim,
                       k = place == PLACE_DOWN ? c->moe.dim : c->dim;
        struct weight stack;
        char name[96];
        snprintf(name, sizeof name, "%s.%s", part, names[place]);
        TRY(bind_stack(b, layer_name(layer, name, ".weight").text, c->moe.n, rows, k, &stack));
        TRY(experts_spread(b, l, place, &stack, rows, 0, rows));
    }
    return KVASIR_OK;
}

kvasir_status layer_experts(struct binder *b, uint32_t layer, const char *part,
                            struct layer_weights *l) {
    char inside[48], stacked[64], probe[96];
    TRY(experts_alloc(b, l));
    snprintf(inside, sizeof inside, "%s%sexperts", part, *part ? "." : "");
    snprintf(probe, sizeof probe, "%s.gate_up_proj", inside);
    if (layer_has(b, layer, probe))
        return experts_fused(b, layer, inside, l);
    static const char *const homes[] = {"%s%sswitch_mlp", "%s%sexperts", "%s%sexperts.switch_glu"};
    for (size_t i = 0; i < sizeof homes / sizeof *homes; i++) {
        snprintf(stacked, sizeof stacked, homes[i], part, *part ? "." : "");
        snprintf(probe, sizeof probe, "%s.gate_proj.weight", stacked);
        if (layer_has(b, layer, probe))
            return experts_stacked(b, layer, stacked, l);
    }
    return experts_single(b, layer, part, l);
}
