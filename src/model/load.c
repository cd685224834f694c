/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint -> model: every tensor is bound to its place in the family's forward and checked
 * against the configuration. Which places a layer has is said by bind() of the family's file, in
 * the words that stand here; the embedding, the last norm and the head are everyone's.
 *
 * Invariants
 *   L1  A bound matrix stays where it is mapped, in its own type; one that a file has turned (two
 *       families' experts and convolutions) is copied once. Vectors are converted to float32 once:
 *       they are small and every row of every step reads them.
 *   L2  Every tensor of the file has a place. One that has none (a bias, a norm, an expert that the
 *       family lacks) would be left out of the arithmetic in silence, so it is an error that names
 *       it.
 *   L3  After model_open no operation needs to check a shape again.
 */
#include <stdio.h>

#include "model/family.h"

enum { STATE_ALIGNMENT = 64 }; /* what operations ask for */

/* ---- binding one tensor ---------------------------------------------------------------------- */

bool bind_has(const struct binder *b, const char *name) {
    return checkpoint_find(b->checkpoint, name) != NULL;
}

/* Dims of 1 in front do not count: tools that write GGUF leave them away. */
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
    b->bound[t - checkpoint_tensor_at(b->checkpoint, 0)] = true;
    b->model->weight_bytes += t->bytes;
    *out = t;
    return KVASIR_OK;
}

static kvasir_status matrix_add(struct binder *b, const struct weight *w, matrix_id *out) {
    struct model *m = b->model;
    if (m->n_matrices == m->cap_matrices) {
        const uint32_t cap = m->cap_matrices * 2;
        struct weight *matrices = mem_realloc(m->matrices, cap, sizeof *matrices);
        if (!matrices)
            return fail(b->err, KVASIR_ERR_MEMORY, "out of memory for the model's matrices");
        m->matrices = matrices;
        m->cap_matrices = cap;
    }
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
    if (m->n_vectors == m->cap_vectors) {
        uint32_t cap = m->cap_vectors * 2;
        struct model_vector *vectors = mem_realloc(m->vectors, cap, sizeof *vectors);
        if (!vectors)
            return fail(b->err, KVASIR_ERR_MEMORY, "out of memory for the model's vectors");
        m->vectors = vectors;
        m->cap_vectors = cap;
    }
    *data = mem_alloc_aligned(n * sizeof **data);
    if (!*data)
        return fail(b->err, KVASIR_ERR_MEMORY, "out of memory for the model's vectors");
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
    void **copies = mem_realloc(m->copies, m->n_copies + 1, sizeof *copies);
    if (copies)
        m->copies = copies;
    *out = copies ? mem_alloc_aligned(bytes) : NULL;
    if (!*out)
        return fail(b->err, KVASIR_ERR_MEMORY, "out of memory for a copy of %zu bytes of weights",
                    bytes);
    m->copies[m->n_copies++] = *out;
    return KVASIR_OK;
}

/* ---- parts of a layer ------------------------------------------------------------------------ */

struct layer_name layer_name(uint32_t layer, const char *part, const char *tail) {
    struct layer_name name;
    snprintf(name.text, sizeof name.text, "model.layers.%u.%s%s", layer, part, tail);
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
    float *turned;
    TRY(bind(b, name.text, dims, flat ? 2 : 3, &t));
    TRY(vector_make(b, channels * width, out, &turned));
    float *rows = mem_calloc((size_t)channels * width, sizeof *rows);
    if (!rows)
        return fail(b->err, KVASIR_ERR_MEMORY, "out of memory for %s", name.text);
    struct weight w = checkpoint_weight(t);
    decode_all(&w, rows);
    for (uint32_t c = 0; c < channels; c++)
        for (uint32_t j = 0; j < width; j++)
            turned[(size_t)j * channels + c] = rows[(size_t)c * width + j];
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

/* Values [first, first + n) of a vector as one of their own. */
static kvasir_status cut_vector(struct binder *b, vector_id from, uint32_t first, uint32_t n,
                                vector_id *out) {
    float *data;
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

/* mlx's switch_mlp.gate_proj.weight, and GGUF's, one stack each */
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

/* ---- binding the model ----------------------------------------------------------------------- */

/* One divisor for each pair of ropes[0]. A pair with one of 10^30 does not turn. */
static kvasir_status bind_divisors(struct binder *b, const char *name, const float **out) {
    const uint32_t pairs = b->model->config.ropes[0].dims / 2;
    vector_id factors;
    float *data;
    TRY(bind_values(b, name, (uint64_t[]){pairs}, 1, &factors, &data));
    for (uint32_t i = 0; i < pairs; i++)
        if (!(data[i] >= 1e-6f && data[i] <= 1e30f))
            return fail(b->err, KVASIR_ERR_FORMAT, "tensor %s: factor %u is %g", name, i,
                        (double)data[i]);
    *out = data;
    return KVASIR_OK;
}

/* What GGUF has as tensors: Llama 3's frequency scaling, the part of Gemma 4's heads that turns,
 * longrope's two lists. */
static kvasir_status bind_rope_factors(struct binder *b) {
    static const char freqs[] = "rope_freqs.weight", longer[] = "rope_factors_long.weight",
                      shorter[] = "rope_factors_short.weight";
    struct model *m = b->model;
    struct rope_config *r = &m->config.ropes[0];
    const float *list;
    if (bind_has(b, freqs))
        TRY(bind_divisors(b, freqs, &m->rope_factors));
    const bool there = bind_has(b, longer) || bind_has(b, shorter);
    if (!there && !(m->config.from_gguf && r->kind == ROPE_LONG))
        return KVASIR_OK;
    r->kind = ROPE_LONG;
    if (!(r->attention_factor > 0)) /* llama.cpp knows no formula for it */
        r->attention_factor = 1;
    TRY(bind_divisors(b, longer, &list));
    memcpy(r->long_factors, list, r->dims / 2 * sizeof *list);
    TRY(bind_divisors(b, shorter, &list));
    memcpy(r->short_factors, list, r->dims / 2 * sizeof *list);
    return KVASIR_OK;
}

static kvasir_status check_all_bound(const struct binder *b) {
    for (size_t i = 0; i < checkpoint_tensor_count(b->checkpoint); i++) {
        const char *name = checkpoint_tensor_at(b->checkpoint, i)->name;
        if (!b->bound[i] && !tensor_is_spare(&b->model->config, name))
            return fail(b->err, KVASIR_ERR_UNSUPPORTED, "tensor %s has no place in a %s model",
                        name, b->model->config.arch);
    }
    return KVASIR_OK;
}

static kvasir_status bind_all(struct binder *b) {
    struct model *m = b->model;
    const struct model_config *c = &m->config;
    char norm[64];
    TRY(bind_matrix(b, "model.embed_tokens.weight", c->vocab, c->dim, &m->embed));
    for (uint32_t i = 0; i < c->n_layers; i++)
        TRY(m->family->bind(b, i, &m->layers[i]));
    if (m->family->bind_model)
        TRY(m->family->bind_model(b));
    snprintf(norm, sizeof norm, "%s.weight",
             m->family->final_norm ? m->family->final_norm : "model.norm");
    TRY(bind_norm(b, norm, c->dim, &m->final_norm));
    m->head = m->embed;
    if (!c->tied_embedding)
        TRY(bind_matrix(b, "lm_head.weight", c->vocab, c->dim, &m->head));
    TRY(bind_rope_factors(b));
    return check_all_bound(b);
}

/* ---- what the cache holds of it -------------------------------------------------------------- */

static bool same_shape(const struct kv_shape *s, const struct layer_config *l) {
    return s->kv_heads == l->kv_heads && s->head_dim == l->head_dim && s->window == l->window;
}

static kvasir_status place_layers(struct model *m, kvasir_error *err) {
    const struct model_config *c = &m->config;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_config *l = &c->layers[i];
        if (l->kind != LAYER_ATTENTION)
            continue;
        if (l->kv_from != i) {
            m->places[i] = m->places[l->kv_from];
            continue;
        }
        uint32_t g = 0;
        while (g < m->n_groups && !same_shape(&m->groups[g], l))
            g++;
        if (g == CACHE_GROUPS_MAX)
            return fail(err, KVASIR_ERR_UNSUPPORTED,
                        "layers of more than %d kinds (KV heads, head size, window)",
                        CACHE_GROUPS_MAX);
        if (g == m->n_groups)
            m->groups[m->n_groups++] = (struct kv_shape){
                .kv_heads = l->kv_heads, .head_dim = l->head_dim, .window = l->window};
        m->places[i] = (struct kv_place){g, m->groups[g].layers++};
    }
    return KVASIR_OK;
}

struct state_layout model_state_layout(const struct model *m, uint32_t layer) {
    const struct model_config *c = &m->config;
    const bool delta = c->layers[layer].kind == LAYER_DELTA;
    struct state_layout l = {.window = m->state_at[layer], .width = c->conv_width};
    l.channels = delta ? 2 * c->delta.key_heads * c->delta.key_dim +
                             c->delta.value_heads * c->delta.value_dim
                       : c->dim;
    l.matrix =
        l.window + round_up((uint64_t)(l.width - 1) * l.channels * sizeof(float), STATE_ALIGNMENT);
    l.end = l.matrix;
    if (delta)
        l.end += round_up((uint64_t)c->delta.value_heads * c->delta.key_dim * c->delta.value_dim *
                              sizeof(float),
                          STATE_ALIGNMENT);
    return l;
}

static void place_states(struct model *m) {
    for (uint32_t i = 0; i < m->config.n_layers; i++) {
        m->state_at[i] = m->state_bytes;
        if (m->config.layers[i].kind != LAYER_ATTENTION)
            m->state_bytes = model_state_layout(m, i).end;
    }
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* What kernels and tiles take for granted. */
static kvasir_status check_layer(const struct model_config *c, uint32_t i, kvasir_error *err) {
    const struct layer_config *l = &c->layers[i];
    if (l->kind != LAYER_ATTENTION)
        return KVASIR_OK;
    if (l->head_dim > HEAD_DIM_MAX || l->head_dim % HEAD_DIM_UNIT != 0)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "heads of %u dims are not supported, only multiples of %d up to %d",
                    l->head_dim, HEAD_DIM_UNIT, HEAD_DIM_MAX);
    if (c->heads % l->kv_heads != 0 || c->heads / l->kv_heads > GQA_MAX)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "%u heads for %u KV heads are not supported: must be a multiple, at most %d",
                    c->heads, l->kv_heads, GQA_MAX);
    const struct rope_config *rope = l->rope == NO_ROPE ? NULL : &c->ropes[l->rope];
    if (rope && (rope->dims < 2 || rope->dims % 2 != 0 || rope->dims > l->head_dim))
        return fail(err, KVASIR_ERR_FORMAT, "rope turns %u of a head's %u dims: must be even",
                    rope->dims, l->head_dim);
    return KVASIR_OK;
}

static kvasir_status check_config(const struct checkpoint *checkpoint, kvasir_error *err) {
    const struct model_config *c = checkpoint_config(checkpoint);
    const struct tokenizer_spec *t = checkpoint_tokenizer(checkpoint);
    for (uint32_t i = 0; i < c->n_layers; i++)
        TRY(check_layer(c, i, err));
    for (uint32_t i = 0; i < c->n_ropes; i++) /* also of one that no layer turns by */
        if (c->ropes[i].dims > HEAD_DIM_MAX || c->ropes[i].dims % 2 != 0)
            return fail(err, KVASIR_ERR_FORMAT,
                        "the configuration's rope turns %u dims: must be even, at most %d",
                        c->ropes[i].dims, HEAD_DIM_MAX);
    if (c->n_layers > checkpoint_tensor_count(checkpoint)) /* before memory is taken for them */
        return fail(err, KVASIR_ERR_FORMAT, "the configuration has %u layers, the file %zu tensors",
                    c->n_layers, checkpoint_tensor_count(checkpoint));
    if (t && t->n_tokens > c->vocab)
        return fail(err, KVASIR_ERR_FORMAT, "the tokenizer has %zu tokens, the model only %u",
                    t->n_tokens, c->vocab);
    return KVASIR_OK;
}

static kvasir_status load(struct model *m, kvasir_error *err) {
    struct binder b = {.checkpoint = m->checkpoint, .model = m, .err = err};
    TRY(check_config(m->checkpoint, err));
    m->config = *checkpoint_config(m->checkpoint);
    m->family = family_of_arch(m->config.arch);
    TRY(place_layers(m, err));
    place_states(m);
    m->layers = mem_calloc(m->config.n_layers, sizeof *m->layers);
    m->cap_vectors = m->cap_matrices = 64;
    m->n_vectors = m->n_matrices = 1;
    m->matrices = mem_calloc(m->cap_matrices, sizeof *m->matrices);
    m->vectors = mem_calloc(m->cap_vectors, sizeof *m->vectors);
    b.bound = mem_calloc(checkpoint_tensor_count(m->checkpoint), sizeof *b.bound);
    kvasir_status status = m->layers && m->vectors && m->matrices && b.bound
                               ? bind_all(&b)
                               : fail(err, KVASIR_ERR_MEMORY, "out of memory for the layers");
    mem_free(b.bound);
    return status;
}

/* ---- the model ------------------------------------------------------------------------------- */

kvasir_status model_open(const char *path, struct model **out, kvasir_error *err) {
    *out = NULL;
    struct model *m = mem_calloc(1, sizeof *m);
    if (!m)
        return fail(err, KVASIR_ERR_MEMORY, "%s: out of memory", path);
    kvasir_status status;
    TRY_GOTO(checkpoint_open(path, &m->checkpoint, err));
    status = load(m, err);
    if (status != KVASIR_OK)
        fail_prefix(err, path);
done:
    if (status == KVASIR_OK)
        *out = m;
    else
        model_close(m);
    return status;
}

void model_close(struct model *m) {
    if (!m)
        return;
    for (uint32_t i = 0; m->layers && i < m->config.n_layers; i++)
        mem_free(m->layers[i].expert_matrices);
    mem_free(m->layers);
    for (uint32_t i = 0; m->vectors && i < m->n_vectors; i++)
        mem_free(m->vectors[i].data);
    mem_free(m->vectors);
    mem_free(m->matrices);
    for (uint32_t i = 0; i < m->n_copies; i++)
        mem_free(m->copies[i]);
    mem_free(m->copies);
    checkpoint_close(m->checkpoint);
    mem_free(m);
}

const struct checkpoint *model_checkpoint(const struct model *m) {
    return m->checkpoint;
}

const struct model_config *model_config(const struct model *m) {
    return &m->config;
}

uint64_t model_weight_bytes(const struct model *m) {
    return m->weight_bytes;
}

uint32_t model_kv_groups(const struct model *m, struct kv_shape groups[CACHE_GROUPS_MAX]) {
    memcpy(groups, m->groups, m->n_groups * sizeof *groups);
    return m->n_groups;
}

struct kv_place model_kv_place(const struct model *m, uint32_t layer) {
    return m->places[layer];
}

uint64_t model_state_bytes(const struct model *m) {
    return m->state_bytes;
}

float model_inv_freq(const struct model *m, uint32_t rope, uint32_t ctx, double *inv_freq) {
    const struct model_config *c = &m->config;
    return rope_frequencies(&c->ropes[rope], ctx ? ctx : c->ctx_train, c->ctx_train,
                            rope == 0 ? m->rope_factors : NULL, inv_freq);
}

bool model_keys_alike(const struct model *m) {
    const struct model_config *c = &m->config;
    bool alike = m->n_groups == 1 && m->groups[0].layers == c->n_layers && c->n_ropes == 1 &&
                 c->ropes[0].kind != ROPE_DYNAMIC && c->ropes[0].kind != ROPE_LONG &&
                 c->ropes[0].kind != ROPE_YARN;
    for (uint32_t i = 0; i < c->n_layers; i++)
        alike = alike && c->layers[i].rope == 0;
    return alike;
}
