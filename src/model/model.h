/* SPDX-License-Identifier: Apache-2.0 */
/* model/: checkpoints, and one readable forward pass per family.
 *
 *   checkpoint   files mapped read-only, a table of tensors, the configuration, the tokenizer's
 *                data (gguf.c, hf_folder.c + config.c behind one interface: checkpoint.c)
 *   model        the checkpoint's tensors bound to the places of a family (load.c, bind.c and the
 *                family's own file), checked for shape
 *   model_run    buffers of one backend for steps of up to max_rows rows (run.c), and the forward
 *                pass (llama.c, gemma.c ...: family.c has the list)
 *
 * Nothing in a file is trusted: every count, length, offset and product of dims is checked before
 * use; errors name the file and the byte offset, or the JSON field.
 */
#ifndef KVASIR_MODEL_H
#define KVASIR_MODEL_H

#include "cache/cache.h"
#include "kvasir.h"
#include "text/text.h"

/* ---- configuration --------------------------------------------------------------------------- */

enum rope_kind {
    ROPE_PLAIN,
    ROPE_LINEAR,       /* positions / factor */
    ROPE_DYNAMIC,      /* theta grows with --ctx past the original context */
    ROPE_LLAMA3,       /* long waves / factor */
    ROPE_YARN,         /* long waves / factor, a ramp to the short ones; scaled */
    ROPE_LONG,         /* a divisor for each pair, by --ctx one list or the other; scaled */
    ROPE_PROPORTIONAL, /* only the first pairs are rotated (gemma4) */
};

enum { ROPE_PAIRS_MAX = HEAD_DIM_MAX / 2 };

struct rope_config {
    enum rope_kind kind;
    uint32_t dims; /* rotated dims of a head (even) */
    double theta;
    double factor;
    uint32_t original_ctx;                    /* 0: the file does not say */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow;              /* yarn */
    bool truncate;                            /* yarn: the ramp begins and ends at whole pairs */
    double attention_factor;       /* of cos and sin; 0: by formula (yarn, longrope) or 1 */
    double mscale, mscale_all_dim; /* yarn: in that formula; 0: not given */
    uint32_t rotated;              /* proportional: number of pairs that are rotated */
    float short_factors[ROPE_PAIRS_MAX], long_factors[ROPE_PAIRS_MAX]; /* longrope [dims / 2] */
    bool adjacent; /* rows of wq, wk are in GGUF llama order: pairs side by side */
};

enum layer_kind {
    LAYER_ATTENTION,
    LAYER_DELTA, /* gated delta net */
    LAYER_CONV,  /* short convolution */
};

enum { LAYERS_MAX = 512, ROPES_MAX = 2, NO_ROPE = 255 };

/* What differs between the layers of a model. */
struct layer_config {
    uint8_t kind; /* enum layer_kind */
    uint8_t rope; /* index into ropes; NO_ROPE: queries and keys are not rotated */
    bool experts; /* op_experts in place of a feed-forward, or beside it */
    bool k_is_v;  /* no projection for V: K before its norm and rope is used */
    uint32_t kv_heads, head_dim;
    uint32_t window;  /* sliding window; 0: none */
    uint32_t kv_from; /* layer whose K and V it reads: its own number, or an earlier one */
    uint32_t ffn_dim;
};

struct model_config {
    char arch[32]; /* of a row of family.c's table */
    char name[96];
    uint32_t n_layers, dim, ffn_dim, heads, kv_heads, head_dim, vocab; /* of most layers */
    uint32_t mtp_layers; /* after those in a GGUF file: they predict further tokens, not run */
    uint32_t ctx_train;  /* 0: the file does not say */
    uint32_t window;     /* of the layers that have one; 0: none has */
    float norm_eps;
    bool tied_embedding;
    bool from_gguf;   /* some facts follow from which tensors exist, not from fields */
    bool unit_offset; /* gains of norms are stored less 1; GGUF has them with the 1 added */
    enum { BIAS_NONE, BIAS_QKV, BIAS_ALL } attention_bias;
    enum gate_kind gate;
    /* 1 if a family has none; softcaps 0 */
    float embed_scale, residual_scale, logit_scale;
    float attention_scale; /* 0: 1 / sqrt(head_dim) */
    float attention_softcap, logit_softcap;
    /* experts; n 0: none */
    struct {
        uint32_t n, top_k, dim, shared_dim; /* shared_dim: of the expert that all rows take */
        bool normalize;
    } moe;
    /* gated delta net; width: of the convolution before it, or of a convolution layer */
    struct {
        uint32_t key_heads, value_heads, key_dim, value_dim;
        bool keys_cycle; /* of struct delta_layer: Qwen3.5's order in GGUF */
    } delta;
    uint32_t conv_width;
    uint32_t layer_input_dim, layer_input_vocab; /* gemma4's inputs per layer; 0: none */
    struct rope_config ropes[ROPES_MAX];         /* [n_ropes] */
    uint32_t n_ropes;
    struct layer_config layers[LAYERS_MAX]; /* [n_layers] */
};

/* ---- checkpoint ------------------------------------------------------------------------------ */

enum { TENSOR_DIMS_MAX = 4 };

struct checkpoint_tensor {
    const char *name;
    enum weight_type type;
    uint32_t n_dims;
    uint64_t dims[TENSOR_DIMS_MAX]; /* slowest first, as in safetensors: a matrix is [n][k] */
    const void *data;
    size_t bytes; /* of data, scales and biases together */
    /* If the type has them, as in struct weight. */
    const void *scales, *biases;
    uint32_t group, group_rows;
    enum scalar_type scalar;
};
/* As a matrix [n][k]: every dim but the fastest counts rows. A vector is one row. */
struct weight checkpoint_weight(const struct checkpoint_tensor *t);

struct checkpoint;
/* path: a GGUF file (any part of a split one: the others are in the same folder), or a folder with
 * config.json and *.safetensors (single, or sharded with an index). */
kvasir_status checkpoint_open(const char *path, struct checkpoint **out,
                              kvasir_error *err) MUST_CHECK;
/* The same, read as the options say. */
kvasir_status checkpoint_open_as(const char *path, const kvasir_model_options *o,
                                 struct checkpoint **out, kvasir_error *err) MUST_CHECK;
/* Opens only what text needs: vocabulary, end tokens, chat template; no tensors, no configuration.
 * path: a GGUF file of any architecture, a folder with a tokenizer.json, or a tokenizer.json (the
 * other files in its folder are read as those of a folder). checkpoint_tokenizer is not NULL. */
kvasir_status checkpoint_open_text(const char *path, struct checkpoint **out,
                                   kvasir_error *err) MUST_CHECK;
void checkpoint_close(struct checkpoint *c);
/* Fails if a read of a mapped file failed since it was opened (file_map_check): what was read or
 * computed may be wrong. One load while all is well. */
kvasir_status checkpoint_check(const struct checkpoint *c, kvasir_error *err) MUST_CHECK;
/* Also compares the files of tensors with what they were when they were opened. From any thread. */
kvasir_status checkpoint_verify(const struct checkpoint *c, kvasir_error *err) MUST_CHECK;
/* The files of tensors; NULL after the last. */
const struct file_map *checkpoint_file(const struct checkpoint *c, size_t i);
const struct model_config *checkpoint_config(const struct checkpoint *c);
/* Tensors have Hugging Face names ("model.layers.0.self_attn.q_proj.weight"), whatever the file
 * calls them. NULL: none. */
const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *c, const char *name);
size_t checkpoint_tensor_count(const struct checkpoint *c);
const struct checkpoint_tensor *checkpoint_tensor_at(const struct checkpoint *c, size_t i);
/* The vocabulary, borrowed from the checkpoint; NULL when the files hold none. */
const struct tokenizer_spec *checkpoint_tokenizer(const struct checkpoint *c);
/* The chat template's source, NUL-terminated; NULL when there is none. */
const char *checkpoint_chat_template(const struct checkpoint *c);
/* What the model's makers recommend for sampling (sampling_hints.c). */
enum sampling_hint {
    HINT_TEMP,
    HINT_TOP_P,
    HINT_MIN_P,
    HINT_REPETITION,
    HINT_TOP_K,
    N_SAMPLING_HINTS
};
struct sampling_hints {
    double value[N_SAMPLING_HINTS];
    bool given[N_SAMPLING_HINTS];
};
const struct sampling_hints *checkpoint_sampling(const struct checkpoint *c);
/* "GGUF v3", "safetensors", "MLX safetensors"; of text alone "GGUF v3", "tokenizer.json" */
const char *checkpoint_format(const struct checkpoint *c);
/* How it says that embeddings are made of rows' states. */
enum checkpoint_pooling { POOLING_UNSAID, POOLING_LAST, POOLING_MEAN, POOLING_OTHER };
enum checkpoint_pooling checkpoint_pooling(const struct checkpoint *c);

/* ---- model ----------------------------------------------------------------------------------- */

/* Version of the arithmetic that makes rows of K and V, and states, from tokens: forward passes,
 * operations, kernels of every tier. Raise it when any bit of them changes; stored pages of earlier
 * builds are then not found. CUDA has its own beside it (cuda/backend.cu). KV_ARITHMETIC_VERSION
 * (quant.h) is that of what pages hold of the same rows. golden.bits fails if recorded logits
 * change and neither was raised. */
#define MODEL_ARITHMETIC_VERSION 1

struct model;
kvasir_status model_open(const char *path, struct model **out, kvasir_error *err) MUST_CHECK;
/* The same, read as the options say. */
kvasir_status model_open_as(const char *path, const kvasir_model_options *o, struct model **out,
                            kvasir_error *err) MUST_CHECK;
void model_close(struct model *m);
const struct checkpoint *model_checkpoint(const struct model *m);
const struct model_config *model_config(const struct model *m);
uint64_t model_weight_bytes(const struct model *m);
/* What a step reads of them and multiplies with. All experts; of tables whose rows are looked up
 * (an embedding that is not the head, too) nothing. */
struct model_work {
    double bytes, head_bytes, expert_bytes;
    double multiplies, head_multiplies, expert_multiplies; /* of one row */
    bool floats;                                           /* most are in float32, not with codes */
    /* Multiplications of a row's attention with each cached token that it sees, per layer group. */
    double attention[CACHE_GROUPS_MAX];
};
struct model_work model_work(const struct model *m);
/* Those of them that memory_available_bytes counts as free: in mapped files that are not locked. */
uint64_t model_cached_bytes(const struct model *m);

/* inv_freq [dims / 2]: angle of a position, per pair of a rope, in a context of ctx positions (0:
 * the trained one). Returns the factor of its cosines and sines. */
float model_inv_freq(const struct model *m, uint32_t rope, uint32_t ctx, double *inv_freq);
/* Whether keys can be centred (engine/centre.c): all layers have the same shape and the same rope,
 * which --ctx does not change. Required by the functions below. */
bool model_keys_alike(const struct model *m);
/* The constant part of every key of a head before rope, mean [dims / 2][2] of pairs (i, i + n).
 * False: there is none. */
bool model_key_bias(const struct model *m, uint32_t layer, uint32_t head, float *mean);
/* Estimates from the weights how far a dim of the head's keys spreads around that constant. scratch
 * [dim]. */
double model_key_spread(const struct model *m, uint32_t layer, uint32_t head, float *scratch);

/* Where a layer's K and V are stored: index of its layer group, and its place in there. */
struct kv_place {
    uint32_t group, layer;
};
/* Layers with the same KV heads, head_dim and window share page tables; layers that read another's
 * K and V have none. Their centre is left NULL. More than CACHE_GROUPS_MAX kinds were refused when
 * the model was opened. Returns the number of groups; 0 for a model without attention. */
uint32_t model_kv_groups(const struct model *m, struct kv_shape groups[CACHE_GROUPS_MAX]);
struct kv_place model_kv_place(const struct model *m, uint32_t layer);
/* Bytes of a sequence's recurrent state; 0: it has none. */
uint64_t model_state_bytes(const struct model *m);
/* A recurrent layer's part of it: at byte `window` the inputs that its convolution still sees,
 * float32 [width - 1][channels], oldest first; at byte `matrix` a delta net's
 * [value_heads][key_dim][value_dim]. */
struct state_layout {
    uint64_t window, matrix, end;
    uint32_t width, channels;
};
struct state_layout model_state_layout(const struct model *m, uint32_t layer);

/* The most that steps of a run have. */
struct run_limits {
    uint32_t rows;
    uint32_t logit_rows; /* that produce logits at a time */
    uint32_t ctx;        /* positions of a sequence */
    uint32_t tail_pages; /* of its exact tail (struct kv_view) */
};

struct model_run;
/* Creates buffers for such steps. The model and the backend are borrowed until the run is
 * destroyed. Nothing is allocated after this. */
kvasir_status model_run_create(const struct model *m, struct backend *b,
                               const struct run_limits *limits, struct model_run **out,
                               kvasir_error *err) MUST_CHECK;
void model_run_destroy(struct model_run *r);
/* Bytes of those buffers. */
uint64_t model_run_bytes(const struct model *m, uint32_t max_rows, uint32_t max_logit_rows);
/* Enqueues one step: stores K and V of every row and leaves each row's last residual in the run. */
void model_forward(struct model_run *r, const struct batch *batch);
/* Enqueues the logits [n][vocab] of some rows of the last step, rising, at most max_logit_rows at a
 * time; into device memory owned by the run, valid until the next head or step. */
const float *model_head(struct model_run *r, const uint32_t *rows, uint32_t n);
/* The same before the head: the rows' states after the last norm [n][dim]; n at most max_rows. */
const float *model_hidden(struct model_run *r, const uint32_t *rows, uint32_t n);

/* ---- converting (convert_tensors.c) ---------------------------------------------------------- */

/* kvasir_convert; `how` is o->model with defaults filled in */
kvasir_status model_convert(const char *in, const char *out, const kvasir_convert_options *o,
                            const kvasir_model_options *how, kvasir_error *err) MUST_CHECK;

#endif
