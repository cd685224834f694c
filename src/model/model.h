/* SPDX-License-Identifier: Apache-2.0 */
/* model/: checkpoints, and one readable forward per family.
 *
 *   checkpoint   files mapped read-only, a table of tensors, the configuration, the tokenizer's
 *                data (gguf.c, safetensors.c + config.c behind one interface: checkpoint.c)
 *   model        the checkpoint's tensors bound to the places of a family (load.c), checked for
 *                shape
 *   model_run    buffers of one backend for steps of up to max_rows rows, and the forward (llama.c)
 *
 * Nothing in a file is trusted: every count, length, offset and product of shapes is checked before
 * use; errors name the file and the byte offset, or the JSON field.
 */
#ifndef KVASIR_MODEL_H
#define KVASIR_MODEL_H

#include "cache/cache.h"
#include "text/text.h"

/* ---- configuration --------------------------------------------------------------------------- */

enum rope_kind { ROPE_PLAIN, ROPE_LLAMA3 };

struct rope_config {
    enum rope_kind kind;
    uint32_t dims; /* rotated dims of a head (even) */
    double theta;
    /* llama3 scaling */
    double factor, low_freq_factor, high_freq_factor;
    uint32_t original_ctx;
    bool adjacent; /* rows of wq, wk are in GGUF llama order: pairs side by side */
};

struct model_config {
    char arch[32]; /* "llama", "mistral", "qwen2", "qwen3" */
    char name[96];
    uint32_t layers, dim, ffn_dim, heads, kv_heads, head_dim, vocab;
    uint32_t ctx_train; /* 0: the file does not say */
    uint32_t window;    /* sliding window of all layers; 0: none */
    float norm_eps;
    bool tied_embedding;
    struct rope_config rope;
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
    /* Where a type has them: as in struct weight. */
    const void *scales, *biases;
    uint32_t group, group_rows;
    enum scalar_type scalar;
};
/* As a matrix [n][k]: every dim but the fastest counts rows. A vector is one row. */
struct weight checkpoint_weight(const struct checkpoint_tensor *t);

struct checkpoint;
/* path: a GGUF file (any part of a split one: the others lie beside it), or a folder with
 * config.json and *.safetensors (single, or sharded with an index). */
kvasir_status checkpoint_open(const char *path, struct checkpoint **out,
                              kvasir_error *err) MUST_CHECK;
/* Only what text needs: vocabulary, end tokens, chat template; no tensors, no configuration. path:
 * a GGUF file of any architecture, a folder with a tokenizer.json, or a tokenizer.json (of the
 * files beside it those are read that a folder's would be). checkpoint_tokenizer is not NULL. */
kvasir_status checkpoint_open_text(const char *path, struct checkpoint **out,
                                   kvasir_error *err) MUST_CHECK;
void checkpoint_close(struct checkpoint *c);
const struct model_config *checkpoint_config(const struct checkpoint *c);
/* Tensors go by Hugging Face names ("model.layers.0.self_attn.q_proj.weight") whatever the file
 * calls them. NULL: none. */
const struct checkpoint_tensor *checkpoint_find(const struct checkpoint *c, const char *name);
size_t checkpoint_tensor_count(const struct checkpoint *c);
const struct checkpoint_tensor *checkpoint_tensor_at(const struct checkpoint *c, size_t i);
/* The vocabulary, borrowed from the checkpoint; NULL when the files hold none. */
const struct tokenizer_spec *checkpoint_tokenizer(const struct checkpoint *c);
/* The chat template's source, NUL-terminated; NULL when there is none. */
const char *checkpoint_chat_template(const struct checkpoint *c);
/* "GGUF v3", "safetensors", "MLX safetensors"; of text alone "GGUF v3", "tokenizer.json" */
const char *checkpoint_format(const struct checkpoint *c);

/* ---- model ----------------------------------------------------------------------------------- */

struct model;
kvasir_status model_open(const char *path, struct model **out, kvasir_error *err) MUST_CHECK;
void model_close(struct model *m);
const struct checkpoint *model_checkpoint(const struct model *m);
const struct model_config *model_config(const struct model *m);
uint64_t model_weight_bytes(const struct model *m);

/* [rope.dims / 2] angle of a position, per rotary pair. */
void model_inv_freq(const struct model *m, double *inv_freq);
/* The constant that every key of a head holds before rope, mean [rope.dims / 2][2] of pairs
 * (i, i + n). False: there is none. */
bool model_key_bias(const struct model *m, uint32_t layer, uint32_t head, float *mean);
/* About how far a dim of the head's keys spreads around that constant, from the weights alone.
 * scratch [dim]. */
double model_key_spread(const struct model *m, uint32_t layer, uint32_t head, float *scratch);

/* Layers that cache alike share page tables. Their centre is left NULL. */
uint32_t model_kv_groups(const struct model *m, struct kv_shape groups[CACHE_GROUPS_MAX]);

struct model_run;
/* Buffers for steps of up to max_rows rows, of which up to max_logit_rows give logits. The model
 * and the backend are borrowed for the run's life. Nothing is allocated after this. */
kvasir_status model_run_create(const struct model *m, struct backend *b, uint32_t max_rows,
                               uint32_t max_logit_rows, struct model_run **out,
                               kvasir_error *err) MUST_CHECK;
void model_run_destroy(struct model_run *r);
/* Bytes of those buffers. */
uint64_t model_run_bytes(const struct model *m, uint32_t max_rows, uint32_t max_logit_rows);
/* Enqueues one step: stores K and V of every row, and computes logits [n_logit_rows][vocab] of the
 * batch's logit rows into device memory owned by the run (valid until the next step). */
const float *model_forward(struct model_run *r, const struct batch *batch);

/* ---- converting (convert.c) ------------------------------------------------------------------ */

/* kvasir_convert */
kvasir_status model_convert(const char *in, const char *out, const kvasir_convert_options *o,
                            kvasir_error *err) MUST_CHECK;

#endif
