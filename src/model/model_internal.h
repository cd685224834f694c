/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of model/ share. Nobody outside model/ (but its unit tests) includes this.
 *
 *     checkpoint.c   opens a model's files
 *       tensor_table.c their tensors, sorted by name
 *       gguf_parts.c   a GGUF model: one file, or the parts of a split one
 *         gguf.c         a file's values
 *         gguf_tensors.c its tensors
 *         gguf_config.c  what the values mean: the configuration
 *         gguf_names.c   Hugging Face's names for its tensors
 *         gguf_text.c    the vocabulary and the chat template
 *       hf_folder.c    a folder: tensors of one or several files
 *         modules.c      those that belong together joined: mlx's and 8-bit floats' scales
 *         config.c       its config.json
 *         quantization.c what that says about quantized modules
 *         folder.c       its text files: tokenizer, chat template, end tokens
 *         json_fields.c  JSON with bounds
 *     load.c         struct model: tensors bound to their places
 *     model.c        what it says about itself
 *     family.h       what forwards are written with, and the families' own files
 *     rope.c         frequencies of all kinds of rope
 */
#ifndef KVASIR_MODEL_INTERNAL_H
#define KVASIR_MODEL_INTERNAL_H

#include <string.h>

#include "files/safetensors.h"
#include "model/model.h"
#include "util/json.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "checkpoints are read where they lie");

/* Bounds on what a configuration may say. Far above every model there is, and low enough that no
 * product of two of them leaves 64 bits and none leaves the 32 bits of struct weight. */
enum {
    HEADS_MAX = 4096,
    DIM_MAX = 1 << 20,
    FFN_MAX = 1 << 22,
    VOCAB_MAX = 1 << 24,
    CTX_MAX = 1 << 30,
    EXPERTS_MAX = 4096,
    HEAD_DIM_UNIT = 4, /* what tiles ask for; quantized pages want more (kv_format_settle) */
};

/* ---- checkpoint (checkpoint.c) --------------------------------------------------------------- */

struct checkpoint {
    const char *format;
    struct model_config config;
    bool copy, lock;       /* kvasir_model_options */
    struct file_map *maps; /* [n_maps] */
    size_t n_maps;
    size_t n_weight_maps; /* the first of them, which have tensors; the rest was read for good */
    struct checkpoint_tensor *tensors; /* [n_tensors], rising by name once sealed; names owned */
    size_t n_tensors, cap_tensors;
    enum checkpoint_pooling pooling;
    bool has_tokenizer;
    struct tokenizer_spec tokenizer; /* its pointers are owned, the text of its spans is mapped */
    char *chat_template;
    struct sampling_hints sampling;
};

/* Maps one more file, or reads it; *map stays valid until the checkpoint closes. */
kvasir_status checkpoint_map(struct checkpoint *c, const char *path, struct file_map *map,
                             kvasir_error *err) MUST_CHECK;
/* Appends a tensor; takes name, also on failure (from mem_*; NULL means that memory ran out). */
kvasir_status checkpoint_add_take(struct checkpoint *c, char *name,
                                  const struct checkpoint_tensor *tensor,
                                  kvasir_error *err) MUST_CHECK;
/* Sorts by name; a duplicate name is an error. */
kvasir_status checkpoint_seal(struct checkpoint *c, kvasir_error *err) MUST_CHECK;

/* The position of a tensor's data. */
struct extent {
    const char *name;
    const uint8_t *data;
    size_t bytes;
};
/* Sorts by data; an empty extent comes before another one at the same place. */
void extents_sort(struct extent *list, size_t n);

/* *bytes of n_dims dims (slowest first) of a type. False if a product overflows or the fastest dim
 * is not a whole number of blocks. */
bool tensor_bytes(enum weight_type type, const uint64_t *dims, uint32_t n_dims,
                  size_t *bytes) MUST_CHECK;
/* Adds a token that ends an answer; duplicates are ignored. */
kvasir_status checkpoint_add_end(struct checkpoint *c, int32_t id, kvasir_error *err) MUST_CHECK;
/* Whether name is longer than tail and ends with it. */
bool ends_with(const char *name, const char *tail);
/* Tensors that a model does not use: rotation tables of old files, the copy of the embedding of a
 * tied head, keys of layers that read another's, parts for pictures and sound. */
bool tensor_is_spare(const struct model_config *c, const char *name);
/* Parts for pictures, sound and further tokens (MTP), of models of which only the text part is
 * run. */
bool tensor_is_of_another_part(const char *name);

/* "[576, 1536]" */
enum { SHAPE_TEXT_MAX = 192 };
const char *shape_text(const uint64_t *dims, uint32_t n_dims, char buf[SHAPE_TEXT_MAX]);

/* ---- readers --------------------------------------------------------------------------------- */

kvasir_status gguf_open(struct checkpoint *c, const char *path, kvasir_error *err) MUST_CHECK;
/* Metadata of a file of any architecture, for its vocabulary and template; no tensors. */
kvasir_status gguf_open_text(struct checkpoint *c, const char *path, kvasir_error *err) MUST_CHECK;
kvasir_status safetensors_open(struct checkpoint *c, const char *folder,
                               kvasir_error *err) MUST_CHECK;

/* ---- JSON (json_fields.c) -------------------------------------------------------------------- */

/* json_load_bounded (util/json.h). `at` is the offset of the text in its file. */
kvasir_status json_parse(const char *text, size_t len, int64_t at, json_t **out,
                         kvasir_error *err) MUST_CHECK;
/* For documents whose numbers are not read: a tokenizer's model_max_length may be 10^30. */
kvasir_status json_parse_strings(const char *text, size_t len, int64_t at, json_t **out,
                                 kvasir_error *err) MUST_CHECK;
/* Field `key` of an object; `prefix` ("" or "rope_scaling.") precedes it in errors. null counts as
 * missing. If the field is missing, *out is unchanged, unless `required`. Doubles must be finite
 * and above 0, as all are that we read. */
struct json_scope {
    const json_t *object;
    const char *prefix;
    kvasir_error *err;
};
kvasir_status json_get_u32(const struct json_scope *s, const char *key, bool required, uint32_t min,
                           uint32_t max, uint32_t *out) MUST_CHECK;
kvasir_status json_get_double(const struct json_scope *s, const char *key, bool required,
                              double *out) MUST_CHECK;
kvasir_status json_get_bool(const struct json_scope *s, const char *key, bool *out) MUST_CHECK;
/* *out borrowed from the document. */
kvasir_status json_get_string(const struct json_scope *s, const char *key, bool required,
                              const char **out) MUST_CHECK;

/* ---- config.json (config.c, quantization.c) -------------------------------------------------- */

enum mlx_mode { MLX_AFFINE, MLX_MXFP4 };
struct mlx_format {
    enum mlx_mode mode;
    uint32_t bits, group;
};

struct quantization {
    enum { QUANTIZED_NOT, QUANTIZED_MLX, QUANTIZED_F8 } method;
    const char *field;               /* the field that states it, for errors */
    json_t *object;                  /* its value, with the modules' own entries; owned */
    struct mlx_format usual;         /* of modules without one */
    uint32_t block_rows, block_cols; /* of F8 scales; 0: none */
};

/* The field of a config.json's document; deinit also after a failure. */
kvasir_status quantization_read(const struct json_scope *document,
                                struct quantization *q) MUST_CHECK;
void quantization_deinit(struct quantization *q);
/* How a module of mlx is packed; an error if the field says that it is not. */
kvasir_status quantization_of_module(const struct quantization *q, const char *module,
                                     struct mlx_format *format, kvasir_error *err) MUST_CHECK;

/* Text of a config.json; errors name the field. q: as quantization_read. */
kvasir_status config_parse(const char *text, size_t len, struct model_config *out,
                           struct quantization *q, kvasir_error *err) MUST_CHECK;

/* ---- a folder's tensors (hf_folder.c, modules.c) --------------------------------------------- */

/* Integers and booleans occur only in parts that are not run; elsewhere they are refused. */
/* Appends the checkpoint's tensors. */
kvasir_status modules_join(struct st_table *raw, const struct quantization *quantization,
                           struct checkpoint *c, kvasir_error *err) MUST_CHECK;

/* ---- a folder's files (folder.c) ------------------------------------------------------------- */

enum { PATH_MAX_BYTES = 4096 };
kvasir_status folder_path(char path[PATH_MAX_BYTES], const char *folder, const char *name,
                          kvasir_error *err) MUST_CHECK;
/* Puts the file's name in front of a failure's text; returns status. */
kvasir_status in_file(const char *path, kvasir_status status, kvasir_error *err);
/* "holds no NAME", with a hint if the folder contains a GGUF file. */
kvasir_status folder_fail_missing(const char *folder, const char *name, kvasir_error *err);
/* Tokenizer, chat template and end tokens, if the folder has them. */
kvasir_status folder_read_text(struct checkpoint *c, const char *folder,
                               kvasir_error *err) MUST_CHECK;
/* The same from a tokenizer.json and, if that is its name, from the files in its folder. */
kvasir_status folder_read_tokenizer_file(struct checkpoint *c, const char *path,
                                         kvasir_error *err) MUST_CHECK;

/* ---- GGUF as values (gguf.c) ----------------------------------------------------------------- */

/* Numbers are the file's. */
enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPES
};

/* One metadata entry. Strings: data is `count` bytes of text. Arrays: data is the first of `count`
 * elements of type elem. */
struct gguf_value {
    struct text_span key;
    uint32_t type, elem; /* enum gguf_type */
    uint64_t count;
    const uint8_t *data;
    int64_t offset; /* of data in the file, for errors */
};

struct gguf {
    struct file_map map;
    uint32_t version;
    struct gguf_value *values; /* [n_values], rising by key; owned (mem_free) */
    size_t n_values, cap_values;
    uint64_t n_tensors; /* as the head claims */
    size_t infos;       /* offset of the first tensor's entry */
};

/* A position in a mapped file. Reading advances it; it is an error if the file ends before. */
struct gguf_reader {
    const uint8_t *data;
    size_t size, pos;
    kvasir_error *err;
};
kvasir_status gguf_take_u32(struct gguf_reader *r, const char *what, uint32_t *out) MUST_CHECK;
kvasir_status gguf_take_u64(struct gguf_reader *r, const char *what, uint64_t *out) MUST_CHECK;
kvasir_status gguf_take_string(struct gguf_reader *r, const char *what,
                               struct text_span *out) MUST_CHECK;
/* Reads the head and the values of the file in g->map. */
kvasir_status gguf_read_values(struct gguf *g, kvasir_error *err) MUST_CHECK;
/* Appends its tensors to the checkpoint. */
kvasir_status gguf_read_tensors(const struct gguf *g, struct checkpoint *c,
                                kvasir_error *err) MUST_CHECK;

/* NULL: no such key. */
const struct gguf_value *gguf_find(const struct gguf *g, const char *key);
/* Value of `key`, checked for type and range. If the key is missing, *out is unchanged, unless
 * `required`. Doubles must be finite and above 0, as all are that we read. */
kvasir_status gguf_get_u32(const struct gguf *g, const char *key, bool required, uint32_t min,
                           uint32_t max, uint32_t *out, kvasir_error *err) MUST_CHECK;
/* One for each of n layers: an array of n integers or bools, or one integer for all. */
kvasir_status gguf_get_u32s(const struct gguf *g, const char *key, uint32_t n, bool required,
                            uint32_t min, uint32_t max, uint32_t *out,
                            kvasir_error *err) MUST_CHECK;
/* False if the value is not an integer, float or bool. */
bool gguf_number(const struct gguf_value *v, double *out) MUST_CHECK;
kvasir_status gguf_get_double(const struct gguf *g, const char *key, bool required, double *out,
                              kvasir_error *err) MUST_CHECK;
kvasir_status gguf_get_bool(const struct gguf *g, const char *key, bool *out,
                            kvasir_error *err) MUST_CHECK;
kvasir_status gguf_get_string(const struct gguf *g, const char *key, bool required,
                              struct text_span *out, kvasir_error *err) MUST_CHECK;
/* An array of strings as fresh spans into the mapping; *spans NULL and *n 0 if the key is
 * missing. */
kvasir_status gguf_get_strings(const struct gguf *g, const char *key, struct text_span **spans,
                               size_t *n, kvasir_error *err) MUST_CHECK;

/* ---- GGUF as a model (gguf_config.c, gguf_text.c, gguf_names.c) ------------------------------ */

/* "ARCH.pooling_type", once the configuration is read. */
kvasir_status gguf_read_pooling(const struct gguf *g, struct checkpoint *c,
                                kvasir_error *err) MUST_CHECK;
kvasir_status gguf_read_config(const struct gguf *g, struct model_config *out,
                               kvasir_error *err) MUST_CHECK;
kvasir_status gguf_read_tokenizer(const struct gguf *g, struct checkpoint *c,
                                  kvasir_error *err) MUST_CHECK;
/* Hugging Face's name for a tensor of a GGUF file of this architecture (its own name if there is
 * none); mem_free; NULL: out of memory. */
char *gguf_tensor_name(const struct model_config *c, const char *name, size_t len);

/* ---- rope (rope.c) --------------------------------------------------------------------------- */

/* inv_freq [dims / 2] for a context of ctx positions, trained on ctx_train; factors divides each,
 * or NULL. Returns the factor of cosines and sines. */
float rope_frequencies(const struct rope_config *rope, uint32_t ctx, uint32_t ctx_train,
                       const float *factors, double *inv_freq);
/* Whether `rope` divides every pair's frequency by its factor [dims / 2]. */
bool rope_has_factors(const struct rope_config *rope, const float *factors);

/* ---- model (load.c) -------------------------------------------------------------------------- */

/* A model's gains, biases and other vectors, in float32, are in one table: this is an index into
 * it; 0: there is none. */
typedef uint32_t vector_id;
struct model_vector {
    float *data; /* [n], owned */
    uint32_t n;
};

/* A matrix of the model, by number: a struct weight in the model, the backend's own form in a run.
 * 0: there is none. */
typedef uint32_t matrix_id;

struct mlp_weights {
    matrix_id gate, up, down; /* [ffn_dim][dim] twice, [dim][ffn_dim] */
};

/* The weights that a layer of any family may have; what it lacks is 0. */
struct layer_weights {
    vector_id attn_norm, attn_post_norm, ffn_norm, ffn_post_norm; /* [dim] before, after a block */

    matrix_id q, k, v, o;
    vector_id q_bias, k_bias, v_bias, o_bias;
    vector_id q_norm, k_norm; /* [head_dim], or over all heads */
    vector_id sinks;          /* [heads] */

    struct mlp_weights mlp;

    matrix_id router; /* [experts][dim] */
    vector_id router_bias, expert_scale;
    vector_id gate_bias, up_bias, down_bias; /* [experts][n] */
    matrix_id *expert_matrices;              /* [moe.n][PLACES], owned */
    struct mlp_weights shared;               /* the expert that all rows take */
    matrix_id shared_gate;                   /* [1][dim] its weight, through a sigmoid */

    /* gated delta net, short convolution */
    matrix_id mixed_in;    /* to the input of the convolution (and more: see the family) */
    matrix_id z_in;        /* [value_heads * value_dim][dim] */
    matrix_id beta, alpha; /* [value_heads][dim]; of both in beta if alpha is 0 */
    matrix_id out;
    vector_id conv;       /* [width][channels] */
    vector_id rate, bias; /* [value_heads] */
    vector_id value_norm; /* [value_dim] */

    /* gemma4 */
    vector_id mlp_post_norm, experts_norm, experts_post_norm, router_scale;
    matrix_id input_gate, input_projection; /* [layer_input_dim][dim], [dim][..] */
    vector_id input_post_norm;
    float scale;
};

struct family;
struct model {
    struct checkpoint *checkpoint;
    struct model_config config;
    const struct family *family;
    matrix_id embed;           /* [vocab][dim] */
    matrix_id head;            /* [vocab][dim]; the embedding if tied */
    vector_id final_norm;      /* [dim] */
    const float *rope_factors; /* [dims / 2] of ropes[0], its frequencies' divisors; NULL: none */
    struct layer_weights *layers;
    struct model_vector *vectors; /* [n_vectors]; the first is none */
    uint32_t n_vectors, cap_vectors;
    struct weight *matrices; /* [n_matrices]; the first is none */
    uint32_t n_matrices, cap_matrices;
    void **copies; /* [n_copies] matrices with another layout in the file; owned */
    uint32_t n_copies;
    /* gemma4's inputs per layer: [layer_input_vocab][n_layers * layer_input_dim], [that][dim] */
    matrix_id layer_embed, layer_projection;
    vector_id layer_projection_norm;
    struct kv_shape groups[CACHE_GROUPS_MAX];
    uint32_t n_groups;
    struct kv_place places[LAYERS_MAX];
    uint64_t state_at[LAYERS_MAX]; /* offset of a recurrent layer's part in the state */
    uint64_t state_bytes;
    uint64_t weight_bytes;
};

static inline const struct weight *model_matrix(const struct model *m, matrix_id id) {
    ASSERT(id < m->n_matrices);
    return &m->matrices[id];
}

/* ---- recommended sampling (sampling_hints.c) ------------------------------------------------- */

/* Of a generation_config.json, NULL: there is none; and of a GGUF file. */
kvasir_status sampling_hints_json(const json_t *document, struct sampling_hints *out,
                                  kvasir_error *err) MUST_CHECK;
kvasir_status sampling_hints_gguf(const struct gguf *g, struct sampling_hints *out,
                                  kvasir_error *err) MUST_CHECK;

#endif
