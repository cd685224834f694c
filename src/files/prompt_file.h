/* SPDX-License-Identifier: Apache-2.0 */
/* Prompt-cache files of mlx-lm (save_prompt_cache): what a file says, as plain data. Knows nothing
 * of pages, sequences or models. Any thread; a struct prompt_file belongs to one.
 *
 *     | u64 n | header: n bytes of JSON, padded or not | tensors' data, in any order |
 *
 * Two forms (enum prompt_form). The metadata key 2.0 tells them apart: "" or a class name.
 *
 *                   mlx-lm 0.32.0 and later        mlx-lm up to 0.31.3 (legacy)
 *   __metadata__    0.KEY   user metadata          0.I[.J] meta_state of layer I, in decimals
 *                   1.I     class of layer I       1.KEY   user metadata
 *                   2.0     ""                     2.I     class of layer I
 *                   2.N.0   name of a tensor that stands for a Python value, 2.N.1 its kind:
 *                           "scalar" (I32 []), "string" (I32 code points), "none" (F32 [0])
 *   tensors of layer I (J: 0 codes, 1 scales, 2 biases)
 *   KVCache         I.0 K  I.1 V  I.2 offset       I.0 K  I.1 V                     meta ""
 *   QuantizedKVCache
 *                   I.0.J K  I.1.J V  I.2 offset   I.0.J K  I.1.J V
 *                   I.3 group  I.4 bits            meta a, b or c
 *   RotatingKVCache I.0 K  I.1 V  I.2 offset       I.0 K  I.1 V
 *                   I.3 keep I.4 max_size I.5 idx  meta keep max_size offset idx
 *   QuantizedRotatingKVCache      (no such)        I.0.J K  I.1.J V                 meta d or e
 *   ExactStartQuantizedKVCache, ExactStartQuantizedRotatingKVCache: ours, mlx-lm refuses them
 *                                 (no such)        I.0.J K  I.1.J V  I.2 K  I.3 V   meta f or g
 *   ArraysCache     I.0.J states  I.1 left_padding I.J states, or as in the other form with
 *                   I.2 lengths                    F32 [0] for None                 meta ""
 *   CacheList       I.C.0... child C, I.C.1 its    I.C... child C
 *                   class, a string                meta 0.I.0.C its class, 0.I.1.C[.J] its own
 *
 *   a  offset group bits                                     mlx-lm
 *   b  offset key_group key_bits value_group value_bits      PR 1074, where K and V differ
 *   c  "2" offset group key_bits value_bits                  PR 1550; read, never written
 *   d  keep max_size offset idx, then what b has after offset PR 1074
 *   e  keep max_size offset idx                              PR 1074; read, never written
 *   f  what b has, then start                                ours
 *   g  what d has, then start                                ours
 *
 * The rows of positions below `start`, which come first, are F16 and in tensors of their own (I.2,
 * I.3); those of the others follow in I.0.J and I.1.J. Either may have no rows.
 *
 * Older files keep offset rows (a ring: at most offset). Newer ones keep the whole buffer, in which
 * rows from the offset on are unused.
 *
 * Decisions:
 *   FILE-1  Nothing is read or kept that was not checked: every tensor and every metadata key
 *           belongs to a layer or to the user, shapes of a layer agree with each other and with its
 *           numbers, all layers have seen the same tokens (their offsets are equal), a ring's idx
 *           is one that mlx-lm can reach, an exact start has the rows of its positions and no
 *           others. Values are not checked: they may be NaN or Inf.
 *   FILE-2  A file has one form. What only the pull requests' classes and ours hold (K and V that
 *           differ in bits or group, a quantized ring, an exact start) makes the whole file legacy,
 *           whatever was asked for: the newer form has no place for them. prompt_file_form says
 *           which it will be.
 *   FILE-3  One sequence per file: a batch of more is refused.
 */
#ifndef KVASIR_PROMPT_FILE_H
#define KVASIR_PROMPT_FILE_H

#include "files/safetensors.h"
#include "quant/quant.h"
#include "util/util.h"

enum prompt_form { PROMPT_FORM_032, PROMPT_FORM_LEGACY };

enum prompt_class {
    PROMPT_KV,
    PROMPT_QUANTIZED,
    PROMPT_ROTATING,
    PROMPT_QUANTIZED_ROTATING,
    PROMPT_STARTED, /* quantized, with an exact start */
    PROMPT_STARTED_ROTATING,
    PROMPT_ARRAYS,
    PROMPT_LIST,
};
const char *prompt_class_name(enum prompt_class class); /* as in files */

/* ---- tensors --------------------------------------------------------------------------------- */

/* Produces rows [row, row + n) of one block of a tensor in out, for the writer. A block is a KV
 * head of a cache's tensor [1, heads, rows, width]; other tensors are one block, whose rows are as
 * long as their last dim. Blocks and rows are asked for in rising order, each row once. */
typedef kvasir_status prompt_rows_fn(void *ctx, uint32_t block, uint32_t row, uint32_t n, void *out,
                                     kvasir_error *err);

struct prompt_tensor {
    bool present; /* false: None, and the rest is 0 */
    enum st_dtype dtype;
    uint32_t n_dims; /* 0: a scalar */
    uint32_t dims[ST_DIMS_MAX];
    size_t bytes; /* what dims and dtype say */
    /* Little-endian, last dim fastest, at any address: mlx aligns nothing. A file's is valid until
     * it is closed. */
    const uint8_t *data;
    prompt_rows_fn *rows; /* if data is NULL */
    void *ctx;
};
/* A tensor without data. dims are below 2^31, and their product fits. */
struct prompt_tensor prompt_tensor_of(enum st_dtype dtype, uint32_t n_dims, const uint32_t *dims);

/* ---- layers ---------------------------------------------------------------------------------- */

enum { PROMPT_PARTS = 3 };
/* K or V of a layer. All parts are [1, heads, rows, .], without the rows of an exact start. */
struct prompt_side {
    struct kv_format format; /* affine in quantized classes, else exact (group 0) */
    uint32_t dim;            /* values of a head's row */
    /* Exact: the values [dim] and nothing else. Affine: codes [dim*bits/32] U32 (affine_pack_row),
     * scales and biases [dim/group] of format.scalar. */
    struct prompt_tensor parts[PROMPT_PARTS];
    struct prompt_tensor start; /* of an exact start: F16 [1, heads, exact, dim] */
};

/* Counts are below 2^31. */
struct prompt_kv {
    uint32_t heads, rows;
    uint32_t offset;             /* tokens ever seen: the next position */
    uint32_t keep, max_size;     /* of rings; 0 of others */
    uint32_t idx;                /* of rings: the row after the newest */
    uint32_t start, exact;       /* positions of an exact start; rows that it has: the first ones */
    bool guessed;                /* form e: bits and group are the most likely of several */
    struct prompt_side sides[2]; /* K, V; both or none have tensors */
};

struct prompt_arrays {
    uint32_t n;
    struct prompt_tensor *states;               /* [n] of shape [1, ...], any of them may be None */
    struct prompt_tensor left_padding, lengths; /* I32 [1] */
};

struct prompt_list {
    uint32_t n; /* at least 1 */
    struct prompt_entry *children;
};

/* A layer, or a child of one. */
struct prompt_entry {
    enum prompt_class class;
    union {
        struct prompt_kv kv; /* the classes before PROMPT_ARRAYS */
        struct prompt_arrays arrays;
        struct prompt_list list;
    };
};

static inline bool prompt_class_is_kv(enum prompt_class class) {
    return class <= PROMPT_STARTED_ROTATING;
}
static inline bool prompt_class_is_started(enum prompt_class class) {
    return class == PROMPT_STARTED || class == PROMPT_STARTED_ROTATING;
}
/* Only in files of the legacy form. */
static inline bool prompt_class_is_legacy(enum prompt_class class) {
    return class == PROMPT_QUANTIZED_ROTATING || prompt_class_is_started(class);
}
static inline bool prompt_class_is_affine(enum prompt_class class) {
    return class == PROMPT_QUANTIZED || class == PROMPT_QUANTIZED_ROTATING ||
           prompt_class_is_started(class);
}
static inline bool prompt_class_is_ring(enum prompt_class class) {
    return class == PROMPT_ROTATING || class == PROMPT_QUANTIZED_ROTATING ||
           class == PROMPT_STARTED_ROTATING;
}

/* ---- where a token's row is ------------------------------------------------------------------ */

/* A ring of max_size 8, keep 2 (the first tokens stay), by row:
 *
 *     offset  6, idx  6   [0 1 2 3 4 5 - -]             before the wrap: as a KVCache's buffer
 *     offset  8, idx  8   [0 1 2 3 4 5 6 7]             full
 *     offset 11, idx  5   [0 1 | 8 9 10 | 5 6 7]        wrapped: newest before idx, oldest at it
 *     offset 23, idx 10   [0 1 | 15 ... 22]             after a chunk: more rows, in order
 */

/* The row of position `position`; -1 if it has none (never seen, or dropped). */
int64_t prompt_entry_row(const struct prompt_kv *kv, uint32_t position);
/* How many rows have a position below kv->start, if rows are in order of position. */
uint32_t prompt_start_rows(const struct prompt_kv *kv);

/* ---- rows of a file's tensors ---------------------------------------------------------------- */

/* A row of an affine side, counted after those of an exact start: codes [dim], one per byte,
 * scales and biases [dim/group], as tile_put_row takes them; exact. The reverse is affine_pack_row
 * and scalar_store. */
void prompt_side_get_row(const struct prompt_side *side, uint32_t head, uint32_t row,
                         uint8_t *codes, float *scales, float *biases);
/* A row of an exact side, x [dim]. */
void prompt_side_get_values(const struct prompt_side *side, uint32_t head, uint32_t row, float *x);
/* Likewise of an exact start. */
void prompt_start_get_values(const struct prompt_side *side, uint32_t head, uint32_t row, float *x);

/* For callers that know a layer's head sizes: settles what was guessed, and checks `dim` of all
 * others. */
kvasir_status prompt_entry_settle(struct prompt_kv *kv, uint32_t key_dim, uint32_t value_dim,
                                  kvasir_error *err) MUST_CHECK;

/* ---- files ----------------------------------------------------------------------------------- */

struct prompt_pair {
    const char *key, *value; /* UTF-8 */
};

struct prompt_file {
    enum prompt_form form;
    uint32_t n_metadata;
    struct prompt_pair *metadata; /* the user's, [n_metadata]; sorted by key if read from a file */
    uint32_t n_entries;
    struct prompt_entry *entries; /* layers */
    /* Of prompt_file_open; zero in a description that the caller made. */
    struct file_map map;
    struct json_t *header; /* the metadata: holds the strings */
};

/* Errors name the file and the tensor or metadata key. KVASIR_ERR_UNSUPPORTED: a class or number
 * type that is not read; KVASIR_ERR_FORMAT: damage. *f is empty after a failure. */
kvasir_status prompt_file_open(const char *path, struct prompt_file *f,
                               kvasir_error *err) MUST_CHECK;
void prompt_file_close(struct prompt_file *f); /* may be empty */

/* The form that prompt_file_write gives it (FILE-2). */
enum prompt_form prompt_file_form(const struct prompt_file *f);
/* Writes f to path, which is replaced once everything is on the disk and kept on any failure. f is
 * made by the caller or comes from an open file (also the one at path). A description that violates
 * FILE-1 is KVASIR_ERR_ARGUMENT. Legacy files take only the rows below the offset and have no way
 * to say None for a state. */
kvasir_status prompt_file_write(const char *path, const struct prompt_file *f,
                                kvasir_error *err) MUST_CHECK;

#endif
