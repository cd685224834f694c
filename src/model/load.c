/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint -> model: every tensor is bound to its place in the family's forward and checked
 * against the configuration.
 *
 *     model.embed_tokens        [vocab][dim]
 *     model.layers.N
 *       .input_layernorm        [dim]
 *       .self_attn.q_proj       [heads * head_dim][dim]      + bias in qwen2
 *       .self_attn.k_proj       [kv_heads * head_dim][dim]   + bias in qwen2
 *       .self_attn.v_proj       [kv_heads * head_dim][dim]   + bias in qwen2
 *       .self_attn.{q,k}_norm   [head_dim]                   qwen3
 *       .self_attn.o_proj       [dim][heads * head_dim]
 *       .post_attention_layernorm [dim]
 *       .mlp.{gate,up}_proj     [ffn_dim][dim]
 *       .mlp.down_proj          [dim][ffn_dim]
 *     model.norm                [dim]
 *     lm_head                   [vocab][dim]                 the embedding where tied
 *     rope_freqs                [rope.dims / 2]              GGUF of Llama 3 models
 *
 * Invariants
 *   L1  A bound matrix stays where it is mapped, in its own type. Vectors are converted to float32
 *       once: they are small and every row of every step reads them.
 *   L2  Every tensor of the file has a place. One that has none (a bias, a norm, an expert that the
 *       family lacks) would be left out of the arithmetic in silence, so it is an error that names
 *       it.
 *   L3  After model_open no operation needs to check a shape again.
 */
#include <stdio.h>

#include "model/model_internal.h"

/* ---- binding one tensor ---------------------------------------------------------------------- */

struct binder {
    const struct checkpoint *checkpoint;
    struct model *model;
    bool *bound; /* [n_tensors] */
    kvasir_error *err;
};

static kvasir_status bind(struct binder *b, const char *name, const uint64_t *dims, uint32_t n_dims,
                          const struct checkpoint_tensor **out) {
    const struct checkpoint_tensor *t = checkpoint_find(b->checkpoint, name);
    if (!t)
        return fail(b->err, KVASIR_ERR_FORMAT, "tensor %s is missing", name);
    if (t->n_dims != n_dims || memcmp(t->dims, dims, n_dims * sizeof *dims) != 0) {
        char found[SHAPE_TEXT_MAX], expected[SHAPE_TEXT_MAX];
        return fail(b->err, KVASIR_ERR_FORMAT, "tensor %s has shape %s, expected %s", name,
                    shape_text(t->dims, t->n_dims, found), shape_text(dims, n_dims, expected));
    }
    b->bound[t - checkpoint_tensor_at(b->checkpoint, 0)] = true;
    b->model->weight_bytes += t->bytes;
    *out = t;
    return KVASIR_OK;
}

static kvasir_status bind_matrix(struct binder *b, const char *name, uint32_t n, uint32_t k,
                                 struct weight *w) {
    const struct checkpoint_tensor *t = NULL;
    TRY(bind(b, name, (uint64_t[]){n, k}, 2, &t));
    *w = checkpoint_weight(t);
    return KVASIR_OK;
}

static kvasir_status bind_vector(struct binder *b, const char *name, uint32_t n, float **out) {
    const struct checkpoint_tensor *t = NULL;
    TRY(bind(b, name, (uint64_t[]){n}, 1, &t));
    *out = mem_alloc_aligned(n * sizeof **out);
    if (!*out)
        return fail(b->err, KVASIR_ERR_MEMORY, "out of memory for %s", name);
    struct weight w = checkpoint_weight(t);
    weight_traits_of(t->type)->decode(&w, 0, *out);
    return KVASIR_OK;
}

/* ---- binding a layer ------------------------------------------------------------------------- */

struct layer_name {
    char text[96];
};

static struct layer_name layer_name(uint32_t layer, const char *part) {
    struct layer_name name;
    snprintf(name.text, sizeof name.text, "model.layers.%u.%s", layer, part);
    return name;
}

#define MATRIX(part, n, k, w) TRY(bind_matrix(b, layer_name(i, part ".weight").text, n, k, w))
#define VECTOR(part, n, v)    TRY(bind_vector(b, layer_name(i, part).text, n, v))

static kvasir_status bind_layer(struct binder *b, uint32_t i, struct layer_weights *l) {
    const struct model_config *c = &b->model->config;
    const uint32_t q_dim = c->heads * c->head_dim, kv_dim = c->kv_heads * c->head_dim;

    VECTOR("input_layernorm.weight", c->dim, &l->attn_norm);
    MATRIX("self_attn.q_proj", q_dim, c->dim, &l->q);
    MATRIX("self_attn.k_proj", kv_dim, c->dim, &l->k);
    MATRIX("self_attn.v_proj", kv_dim, c->dim, &l->v);
    MATRIX("self_attn.o_proj", c->dim, q_dim, &l->o);
    if (strcmp(c->arch, "qwen2") == 0) {
        VECTOR("self_attn.q_proj.bias", q_dim, &l->q_bias);
        VECTOR("self_attn.k_proj.bias", kv_dim, &l->k_bias);
        VECTOR("self_attn.v_proj.bias", kv_dim, &l->v_bias);
    }
    if (strcmp(c->arch, "qwen3") == 0) {
        VECTOR("self_attn.q_norm.weight", c->head_dim, &l->q_norm);
        VECTOR("self_attn.k_norm.weight", c->head_dim, &l->k_norm);
    }
    VECTOR("post_attention_layernorm.weight", c->dim, &l->ffn_norm);
    MATRIX("mlp.gate_proj", c->ffn_dim, c->dim, &l->gate);
    MATRIX("mlp.up_proj", c->ffn_dim, c->dim, &l->up);
    MATRIX("mlp.down_proj", c->dim, c->ffn_dim, &l->down);
    return KVASIR_OK;
}

/* Llama 3's frequency scaling as GGUF has it: one divisor for each pair. */
static kvasir_status bind_rope_factors(struct binder *b) {
    static const char name[] = "rope_freqs.weight";
    if (!checkpoint_find(b->checkpoint, name))
        return KVASIR_OK;
    uint32_t pairs = b->model->config.rope.dims / 2;
    TRY(bind_vector(b, name, pairs, &b->model->rope_factors));
    for (uint32_t i = 0; i < pairs; i++) {
        float factor = b->model->rope_factors[i];
        if (!(factor >= 1e-6f && factor <= 1e6f))
            return fail(b->err, KVASIR_ERR_FORMAT, "tensor %s: factor %u is %g", name, i,
                        (double)factor);
    }
    return KVASIR_OK;
}

/* ---- binding the model ----------------------------------------------------------------------- */

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
    TRY(bind_matrix(b, "model.embed_tokens.weight", c->vocab, c->dim, &m->embed));
    for (uint32_t i = 0; i < c->layers; i++)
        TRY(bind_layer(b, i, &m->layers[i]));
    TRY(bind_vector(b, "model.norm.weight", c->dim, &m->final_norm));
    m->head = m->embed;
    if (!c->tied_embedding)
        TRY(bind_matrix(b, "lm_head.weight", c->vocab, c->dim, &m->head));
    TRY(bind_rope_factors(b));
    return check_all_bound(b);
}

/* What kernels and tiles take for granted. */
static kvasir_status check_config(const struct checkpoint *checkpoint, kvasir_error *err) {
    const struct model_config *c = checkpoint_config(checkpoint);
    const struct tokenizer_spec *t = checkpoint_tokenizer(checkpoint);
    if (c->head_dim > HEAD_DIM_MAX || c->head_dim % HEAD_DIM_UNIT != 0)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "heads of %u dims are not supported, only multiples of %d up to %d",
                    c->head_dim, HEAD_DIM_UNIT, HEAD_DIM_MAX);
    if (c->heads % c->kv_heads != 0 || c->heads / c->kv_heads > GQA_MAX)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "%u heads for %u KV heads are not supported: must be a multiple, at most %d",
                    c->heads, c->kv_heads, GQA_MAX);
    if (c->rope.dims < 2 || c->rope.dims % 2 != 0 || c->rope.dims > c->head_dim)
        return fail(err, KVASIR_ERR_FORMAT, "rope turns %u of a head's %u dims: must be even",
                    c->rope.dims, c->head_dim);
    if (c->layers > checkpoint_tensor_count(checkpoint)) /* before memory is taken for them */
        return fail(err, KVASIR_ERR_FORMAT, "the configuration has %u layers, the file %zu tensors",
                    c->layers, checkpoint_tensor_count(checkpoint));
    if (t && t->n_tokens > c->vocab)
        return fail(err, KVASIR_ERR_FORMAT, "the tokenizer has %zu tokens, the model only %u",
                    t->n_tokens, c->vocab);
    return KVASIR_OK;
}

static kvasir_status load(struct model *m, kvasir_error *err) {
    struct binder b = {.checkpoint = m->checkpoint, .model = m, .err = err};
    TRY(check_config(m->checkpoint, err));
    m->config = *checkpoint_config(m->checkpoint);
    m->layers = mem_calloc(m->config.layers, sizeof *m->layers);
    b.bound = mem_calloc(checkpoint_tensor_count(m->checkpoint), sizeof *b.bound);
    kvasir_status status = m->layers && b.bound
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
    for (uint32_t i = 0; m->layers && i < m->config.layers; i++) {
        struct layer_weights *l = &m->layers[i];
        float *vectors[] = {l->attn_norm, l->q_bias, l->k_bias,  l->v_bias,
                            l->q_norm,    l->k_norm, l->ffn_norm};
        for (size_t j = 0; j < sizeof vectors / sizeof *vectors; j++)
            mem_free(vectors[j]);
    }
    mem_free(m->layers);
    mem_free(m->final_norm);
    mem_free(m->rope_factors);
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
    const struct model_config *c = &m->config;
    groups[0] = (struct kv_shape){
        .layers = c->layers,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .window = c->window,
    };
    return 1;
}
