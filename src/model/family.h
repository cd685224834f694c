/* SPDX-License-Identifier: Apache-2.0 */
/* What a family file is written with. Only files of model/ include this.
 *
 *     family.c   the list: class of config.json, name -> a row of a family's file
 *     config_fields.c, config_rope.c
 *                helpers for fields of config.json
 *     gguf_keys.c
 *                the same for GGUF's keys
 *     bind.c     tensors bound to their places
 *     run.c      struct model_run: buffers, constants, rope tables, the life of a run
 *     blocks.c   the steps that forwards are made of
 *     llama.c gemma.c gemma4.c gpt_oss.c qwen_hybrid.c lfm2.c olmo3.c olmoe.c
 *                one family each: read (its fields of config.json), gguf_read (its keys of GGUF),
 *                bind (its tensors), forward, and its rows of the table
 *
 * Calls go one way: load.c, config.c and gguf_config.c call families through the table, families
 * call helpers. A new family is one such file and a line in family.c (docs/adding-a-model.md).
 */
#ifndef KVASIR_MODEL_FAMILY_H
#define KVASIR_MODEL_FAMILY_H

#include "model/model_internal.h"

struct binder;
struct model_run;
struct gguf_keys;

/* A tensor's name in GGUF and in a folder (gguf_names.c). */
struct gguf_name {
    const char *gguf, *hf;
};
enum { GGUF_LISTS = 2 };

/* Defaults of a class in transformers for a wrapped model (text_config); 0: none. */
struct class_sizes {
    uint32_t layers, dim, ffn_dim, heads, kv_heads, vocab, ctx, window;
    double eps;
};

enum { FAMILY_CLASSES = 3 };
struct family {
    const char *arch;                    /* of struct model_config; NULL: no more rows */
    const char *classes[FAMILY_CLASSES]; /* "architectures" of config.json; the last ones NULL */
    uint32_t head_dim;                   /* if the configuration has none; 0: dim / heads */
    bool heads_are_kv; /* as many KV heads as heads if the configuration has none */
    bool tied;         /* tie_word_embeddings if the configuration has none */
    double theta;      /* rope_theta likewise; 0: 10000 */
    struct class_sizes wrapped;
    kvasir_status (*read)(const struct json_scope *s, struct model_config *c);
    kvasir_status (*bind)(struct binder *b, uint32_t layer, struct layer_weights *l);
    /* The layers of a step: from the embedding in r->x to the last residual there. */
    void (*forward)(struct model_run *r, const struct batch *batch);
    kvasir_status (*bind_model)(struct binder *b); /* tensors beside the layers; NULL: the usual */
    const char *final_norm;                        /* name of its tensor; NULL: "model.norm" */
    const char *gguf;                              /* general.architecture; NULL: it has none */
    kvasir_status (*gguf_read)(struct gguf_keys *k, struct model_config *c);
    const struct gguf_name *gguf_names[GGUF_LISTS]; /* beside everyone's; ends with NULL */
};
/* NULL: there is none. */
const struct family *family_of_class(const char *class_name);
const struct family *family_of_arch(const char *arch);
const struct family *family_of_gguf(const char *arch, size_t len);
/* "LlamaForCausalLM, MistralForCausalLM ..." for errors */
const char *family_class_list(char *buf, size_t size);
const char *family_gguf_list(char *buf, size_t size);

/* ---- reading config.json (config_fields.c, config_rope.c) ------------------------------------ */

/* Fills the layers: attention with the model's heads, rope 0, no window. After this a family's
 * read() changes what differs. */
void config_layers_init(struct model_config *c);
/* field "layer_types": *type of a layer; NULL if there is no such field. */
kvasir_status config_layer_type(const struct json_scope *s, const struct model_config *c,
                                uint32_t layer, const char **type) MUST_CHECK;
/* layer_types of "full_attention" and "sliding_attention"; without the field every layer i with
 * (i + 1) % pattern != 0 slides (0: none). The window is field sliding_window, else c->window. */
kvasir_status config_windows(const struct json_scope *s, struct model_config *c,
                             uint32_t pattern) MUST_CHECK;
/* A factor of the arithmetic: *out is unchanged if the field is missing. */
kvasir_status config_float(const struct json_scope *s, const char *key, float *out) MUST_CHECK;
/* A number safe for arithmetic: neither it nor its inverse or square overflows float32. */
kvasir_status config_number(const struct json_scope *s, const char *key, bool required,
                            double *out) MUST_CHECK;
/* ropes[0] for all layers. */
kvasir_status config_one_rope(const struct json_scope *s, struct model_config *c,
                              double theta) MUST_CHECK;
/* An error if the file has a rope for each kind of layer and the family read only one. */
kvasir_status config_check_ropes(const struct json_scope *s,
                                 const struct model_config *c) MUST_CHECK;
/* Reads a rope object (rope_parameters, rope_scaling, or one inside) into *rope, over its present
 * values. */
kvasir_status config_rope(const struct json_scope *s, const struct model_config *c,
                          struct rope_config *rope) MUST_CHECK;
/* rope_parameters of full_attention and sliding_attention, or one for both (spellings old and new):
 * ropes[0] for the layers without a window, ropes[1] for those with one; rope_local_base_freq. */
kvasir_status config_ropes_by_window(const struct json_scope *s, struct model_config *c,
                                     double local_theta) MUST_CHECK;
/* An activation of the feed-forward: field hidden_act or hidden_activation. */
kvasir_status config_gate(const struct json_scope *s, struct model_config *c) MUST_CHECK;
/* Sets moe.dim; an error if the rows of moe.n experts' matrices cannot be counted in 32 bits. */
kvasir_status config_experts_fit(const struct json_scope *s, struct model_config *c,
                                 uint32_t dim) MUST_CHECK;
/* Experts, with the fields of Qwen's classes. */
kvasir_status config_experts(const struct json_scope *s, struct model_config *c) MUST_CHECK;
/* Field attention_bias: q, k, v and o have one. */
kvasir_status config_attention_bias(const struct json_scope *s, struct model_config *c) MUST_CHECK;
/* A field that must be false, null or missing. */
kvasir_status config_refuse(const struct json_scope *s, const char *key) MUST_CHECK;

/* ---- reading GGUF (gguf_keys.c) -------------------------------------------------------------- */

/* The file's keys "ARCH.NAME". When a family's gguf_read begins, the common ones have been read:
 * sizes (per layer if the file has lists), ropes[0] for all layers, no window, no experts. */
struct gguf_keys {
    const struct gguf *g;
    const char *arch; /* general.architecture */
    uint32_t blocks;  /* n_layers and the layers after them that are not run: the length of lists */
    uint64_t asked;   /* bit i: key i of those that change the arithmetic was read */
    char key[96];     /* the whole key that was read last */
    kvasir_error *err;
};
/* Returns the whole key. One that changes the arithmetic counts as known to the family from here
 * on. */
const char *gguf_key_name(struct gguf_keys *k, const char *name);
bool gguf_key_there(struct gguf_keys *k, const char *name);
/* As gguf_get_*. */
kvasir_status gguf_key_u32(struct gguf_keys *k, const char *name, bool required, uint32_t min,
                           uint32_t max, uint32_t *out) MUST_CHECK;
/* One value per block. */
kvasir_status gguf_key_layers(struct gguf_keys *k, const char *name, bool required, uint32_t min,
                              uint32_t max, uint32_t out[LAYERS_MAX]) MUST_CHECK;
/* A number safe for arithmetic, from 1e-15 to 1e15; 0 counts as missing: *out is unchanged. */
kvasir_status gguf_key_double(struct gguf_keys *k, const char *name, double *out) MUST_CHECK;
kvasir_status gguf_key_float(struct gguf_keys *k, const char *name, float *out) MUST_CHECK;
/* The key of the last gguf_key_name, from 1e-15 to 1e15. */
kvasir_status gguf_key_factor(struct gguf_keys *k, bool required, double *out) MUST_CHECK;
/* An error for a key that changes the arithmetic and that nobody asked for. */
kvasir_status gguf_refuse_arithmetic(struct gguf_keys *k, const struct model_config *c) MUST_CHECK;
/* Value heads must be as long as key heads. */
kvasir_status gguf_value_length(struct gguf_keys *k, const char *name,
                                uint32_t key_length) MUST_CHECK;
/* attention.sliding_window (`window` if it is missing; 0: none) and its pattern, a list or a
 * number: of every so many layers the last has no window; 0: all have one (`period` if it is
 * missing). */
kvasir_status gguf_windows(struct gguf_keys *k, struct model_config *c, uint32_t window,
                           uint32_t period) MUST_CHECK;
/* ropes[1] for the layers with a window: never scaled, base rope.freq_base_swa (local_theta if it
 * is missing). */
kvasir_status gguf_ropes_by_window(struct gguf_keys *k, struct model_config *c,
                                   double local_theta) MUST_CHECK;
/* Experts in every layer, their weights divided by their sum. */
kvasir_status gguf_experts(struct gguf_keys *k, struct model_config *c) MUST_CHECK;
/* Names of experts, for a family's row. */
extern const struct gguf_name gguf_expert_names[];

/* ---- binding (bind.c) ------------------------------------------------------------------------ */

struct binder {
    const struct checkpoint *checkpoint;
    struct model *model;
    bool *bound; /* [n_tensors] */
    kvasir_error *err;
};

/* By whole names. */
bool bind_has(const struct binder *b, const char *name);
kvasir_status bind_matrix(struct binder *b, const char *name, uint32_t n, uint32_t k,
                          matrix_id *out) MUST_CHECK;
/* One that is cut into matrices (bind_rows). */
kvasir_status bind_joint(struct binder *b, const char *name, uint32_t n, uint32_t k,
                         struct weight *w) MUST_CHECK;
kvasir_status bind_vector(struct binder *b, const char *name, uint32_t n,
                          vector_id *out) MUST_CHECK;
/* A gain: 1 is added if the family stores gains less 1. */
kvasir_status bind_norm(struct binder *b, const char *name, uint32_t n, vector_id *out) MUST_CHECK;
/* A vector that is computed, not bound; the caller fills its data. */
kvasir_status vector_make(struct binder *b, uint32_t n, vector_id *out, float **data) MUST_CHECK;

/* Parts of a layer: "model.layers.N.PART"; a matrix ends with ".weight". */
bool layer_has(const struct binder *b, uint32_t layer, const char *part);
kvasir_status layer_matrix(struct binder *b, uint32_t layer, const char *part, uint32_t n,
                           uint32_t k, matrix_id *out) MUST_CHECK;
kvasir_status layer_vector(struct binder *b, uint32_t layer, const char *part, uint32_t n,
                           vector_id *out) MUST_CHECK;
/* "PART.weight", as bind_norm. */
kvasir_status layer_norm(struct binder *b, uint32_t layer, const char *part, uint32_t n,
                         vector_id *out) MUST_CHECK;
/* A depthwise convolution [channels][1][width] (GGUF: [channels][width]), transposed to
 * [width][channels]. */
kvasir_status layer_conv(struct binder *b, uint32_t layer, const char *part, uint32_t channels,
                         uint32_t width, vector_id *out) MUST_CHECK;
/* gate_proj, up_proj, down_proj below `part`. */
kvasir_status layer_mlp(struct binder *b, uint32_t layer, const char *part, uint32_t ffn_dim,
                        struct mlp_weights *w) MUST_CHECK;
/* q_proj, k_proj, v_proj (or all three in qkv_proj) and o_proj below self_attn, with the heads and
 * biases of the configuration and q_blocks times as many outputs of q. */
kvasir_status layer_attention(struct binder *b, uint32_t layer, uint32_t q_blocks,
                              struct layer_weights *l) MUST_CHECK;
/* Experts below `part` ("mlp"): one by one (experts.E.gate_proj ...), or all in one tensor each
 * (experts.gate_up_proj, switch_mlp.gate_proj ...). */
kvasir_status layer_experts(struct binder *b, uint32_t layer, const char *part,
                            struct layer_weights *l) MUST_CHECK;
/* Rows [first, first + n) of a bound matrix. */
kvasir_status bind_rows(struct binder *b, const struct weight *w, uint32_t first, uint32_t n,
                        matrix_id *out) MUST_CHECK;
/* Memory owned by the model, for a matrix that has another layout in the file. */
kvasir_status bind_copy(struct binder *b, size_t bytes, void **out) MUST_CHECK;
/* Memory for the layer's experts, whose matrices are bound later; gpt_oss binds them in its own
 * way. */
enum { PLACE_GATE, PLACE_UP, PLACE_DOWN, PLACES }; /* expert_matrices[PLACES e + PLACE] */
kvasir_status experts_alloc(struct binder *b, struct layer_weights *l) MUST_CHECK;
/* Expert e's matrix is rows [e * stride + first, + n) of the stack. */
kvasir_status experts_spread(struct binder *b, struct layer_weights *l, int place,
                             const struct weight *stack, uint32_t stride, uint32_t first,
                             uint32_t n) MUST_CHECK;
/* [experts][n][k] as one matrix of all rows; whole name. */
kvasir_status bind_stack(struct binder *b, const char *name, uint32_t experts, uint32_t n,
                         uint32_t k, struct weight *w) MUST_CHECK;
/* A tensor of any shape as float32. */
kvasir_status bind_values(struct binder *b, const char *name, const uint64_t *dims, uint32_t n_dims,
                          vector_id *out, float **data) MUST_CHECK;
struct layer_name {
    char text[128];
};
/* "model.layers.LAYER.PART" + tail */
struct layer_name layer_name(uint32_t layer, const char *part, const char *tail);

/* ---- a run (run.c) --------------------------------------------------------------------------- */

struct model_run {
    const struct model *model;
    struct backend *backend;
    uint32_t max_logit_rows;
    const float **vectors;                  /* [model's vectors], uploaded */
    const struct backend_weight **matrices; /* [model's matrices] */
    struct expert *experts;                 /* [layer][expert]; NULL: the model has none */
    double *inv_freq[ROPES_MAX];            /* [dims / 2], host */
    float rope_scale[ROPES_MAX];
    /* Device buffers; row < max_rows, logit_row < max_logit_rows. */
    float *x;                                         /* [row][dim] the residual stream */
    float *h;                                         /* [row][dim] a block's input */
    float *t;                                         /* [row][dim] what a block adds to x */
    float *q;                                         /* [row][heads][head_dim] */
    float *k, *v;                                     /* [row][kv_heads][head_dim] */
    float *attended;                                  /* [row][heads][head_dim] */
    float *gate, *up;                                 /* [row][ffn_dim] */
    float *rope_cos[ROPES_MAX], *rope_sin[ROPES_MAX]; /* [row][dims / 2] */
    float *logits;                                    /* [logit_row][vocab] */
    float *router;                                    /* [row][experts] */
    float *routed;                                    /* [row][dim] output of the experts */
    float *wide;            /* [row][widest] outputs of a joint projection */
    float *mixed;           /* [row][channels] input of a convolution */
    float *z;               /* [row][value_heads][value_dim] gate of a delta net */
    float *beta, *alpha;    /* [row][value_heads] */
    float *layer_inputs;    /* [row][n_layers][layer_input_dim] gemma4 */
    float *layer_projected; /* the same, from the embedding's projection */
};

/* A vector on the device; NULL for 0. */
static inline const float *on_device(const struct model_run *r, vector_id v) {
    ASSERT(v < r->model->n_vectors);
    return r->vectors[v];
}

static inline const struct backend_weight *matrix_on_device(const struct model_run *r,
                                                            matrix_id id) {
    ASSERT(id < r->model->n_matrices);
    return r->matrices[id];
}

/* ---- blocks (blocks.c) ----------------------------------------------------------------------- */

/* y = norm(x) over `dim` values of each of `rows` rows. */
void block_norm(struct model_run *r, const float *x, vector_id gain, uint32_t rows, uint32_t dim,
                float *y);
/* x *= scale, unless that is 1. */
void block_scale(struct model_run *r, float *x, float scale, size_t n);
/* y = w x + bias */
void block_matmul(struct model_run *r, const float *x, uint32_t rows, matrix_id w, vector_id bias,
                  float *y);
/* Rotates x [rows][heads][head_dim] by the layer's rope, if it has one. */
void block_rope(struct model_run *r, const struct batch *batch, uint32_t layer, float *x,
                uint32_t heads);
/* Stores r->k and r->v if the layer has its own, and attends with r->q: r->attended. */
void block_attend(struct model_run *r, const struct batch *batch, uint32_t layer);
/* The usual attention, from h to out, with the biases and norms that the layer has. */
void block_attention(struct model_run *r, const struct batch *batch, uint32_t layer, const float *h,
                     float *out);
/* out = down(gated(gate h) * up h) */
void block_mlp(struct model_run *r, const struct mlp_weights *w, const float *h, uint32_t rows,
               float *out);
/* out = output of the layer's experts for h, including the shared one. router_input: input of the
 * router. */
void block_experts(struct model_run *r, const struct layer_weights *l, const float *h,
                   const float *router_input, uint32_t rows, float *out);

/* ---- families -------------------------------------------------------------------------------- */

/* Rows at the end of each family's file, up to one without a name. */
extern const struct family llama_family[], olmo3_family[], olmoe_family[], gemma_family[],
    gemma4_family[], gpt_oss_family[], qwen_hybrid_family[], lfm2_family[];
/* Shared by families. */
void llama_forward(struct model_run *r, const struct batch *batch);
extern const struct gguf_name gemma_gguf_names[];

#endif
