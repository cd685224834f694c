/* SPDX-License-Identifier: Apache-2.0 */
/* quant/: number formats. The functions here are the *definition* of every format that Kvasir
 * stores or reads: slow, scalar, exact. The tiers of backend/cpu do the same faster and are checked
 * against these byte for byte.
 *
 * Two kinds of numbers live here:
 *   cache formats   struct kv_format: how the K or the V of 64 tokens of one layer and head is
 *                   stored (a tile)
 *   weight types    enum weight_type: blocks of a checkpoint, read where they are mapped
 */
#ifndef KVASIR_QUANT_H
#define KVASIR_QUANT_H

#include <string.h>

#include "util/util.h"

/* ---- 16-bit floats (half.c) ------------------------------------------------------------ */

/* Numbers are in files: frozen. */
enum scalar_type { SCALAR_F16 = 0, SCALAR_BF16 = 1, SCALAR_F32 = 2 };

uint16_t f32_to_f16(float f); /* nearest even; subnormals kept; NaN stays NaN */
/* Here and without branches (but for the type), so that loops over a row become vectors. */
static inline float float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static inline float f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const int32_t rest = h & 0x7fff, normal = (rest << 13) + ((127 - 15) << 23);
    const float subnormal = (float)rest * 0x1p-24f; /* exact */
    /* masks: compilers make branches of ?: */
    const int32_t is_normal = -(rest >= 0x400), is_inf = -(rest >= 0x7c00);
    const int32_t quiet = -(rest > 0x7c00) & 0x400000; /* as vcvtph2ps does */
    int32_t bits;
    memcpy(&bits, &subnormal, sizeof bits);
    bits = (normal & is_normal) | (bits & ~is_normal) | ((0x7f800000 | quiet) & is_inf);
    return float_of_bits(sign | (uint32_t)bits);
}
static inline float bf16_to_f32(uint16_t h) {
    return float_of_bits((uint32_t)h << 16);
}
uint16_t f32_to_bf16(float f); /* nearest even */
size_t scalar_bytes(enum scalar_type t);
float scalar_round(enum scalar_type t, float x); /* T(x) as float */
/* Element i of an array of T. */
static inline float scalar_load(enum scalar_type t, const void *p, size_t i) {
    if (t == SCALAR_F32) {
        float f;
        memcpy(&f, (const uint8_t *)p + 4 * i, sizeof f);
        return f;
    }
    uint16_t h;
    memcpy(&h, (const uint8_t *)p + 2 * i, sizeof h);
    return t == SCALAR_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}
void scalar_store(enum scalar_type t, void *p, size_t i, float x); /* rounds to T */

/* ---- cache formats (format.c) ---------------------------------------------------------------- */

/* Storage order and arithmetic version: part of every file and fingerprint. Raise it when either
 * changes. (MODEL_ARITHMETIC_VERSION of model.h: the rows that are stored.) */
#define KV_ORDER_VERSION      1
#define KV_ARITHMETIC_VERSION 2

/* When and how a row becomes codes. Numbers are in fingerprints: frozen. */
enum kv_kind {
    /* "8": each row when it is stored, as it is. */
    KV_ROWS = 0,
    /* "r8": when the page is full; rows are rotated (HADAMARD of backend.h). */
    KV_ROTATED = 1,
    /* "t4": when the page is full; K of all 64 tokens has one range per channel, V of a token one
     * range; rows are in a basis of their own (backend.h). */
    KV_TILE = 2,
};

/* bits 32 or 16: exact, group 0, scalar F32, or F16 / BF16.
 * bits 8 6 5 4 3 2: value = scale * code + bias, with scale and bias stored as `scalar`.
 *   KV_ROWS, KV_ROTATED: affine, per token and group of `group` consecutive dims (the arithmetic of
 *     mx.quantize, mode affine; see affine.c)
 *   KV_TILE: K per dim over the 64 tokens, V per token over all dims (range.c); group 0 */
struct kv_format {
    uint8_t bits;
    uint8_t scalar; /* enum scalar_type */
    uint8_t group;
    uint8_t kind; /* enum kv_kind */
};

static inline bool kv_format_exact(struct kv_format f) {
    return f.bits >= 16;
}
/* Rows become codes when the page is full; until then they are kept at 16 bits. */
static inline bool kv_format_whole(struct kv_format f) {
    return f.kind != KV_ROWS;
}
bool kv_format_equal(struct kv_format a, struct kv_format b);
/* "f32" "f16" "bf16" "8" "6" "5" "4" "3" "2", or "K,V" of two of them; "r" or "t" and one or two
 * numbers of bits: "r8,4", "t4". Groups and scalar type of formats with codes are left 0 / F16. err
 * names what is allowed. */
kvasir_status kv_format_parse_pair(const char *text, struct kv_format *k, struct kv_format *v,
                                   kvasir_error *err) MUST_CHECK;
/* Settles the group for a head size: group 0 takes the largest of 64, 32 that divides head_dim; one
 * that does not divide is an error that names those that do. Formats without groups get 0. */
kvasir_status kv_format_settle(struct kv_format *f, uint32_t head_dim, uint32_t group,
                               kvasir_error *err) MUST_CHECK;
/* "f16", "8 g64", "4 g32 bf16", "r8 g64", "t4": for people. buf holds at least 24 bytes; returns
 * buf. */
char *kv_format_name(struct kv_format f, char *buf);
/* ---- tiles (tile.c): the one storage order --------------------------------------------------- */

/* A tile holds 64 tokens x head_dim of K or of V. Both are the same matrix, transposed: a
 * matrix with LANES and a REDUCTION axis, along which four consecutive elements sit side by side:
 *
 *                 K tile (scores reduce over dims)         V tile (outputs reduce over tokens)
 *     lanes       64 tokens                                head_dim dims
 *     reduction   head_dim dims                            64 tokens
 *
 *     element (r, lane)  ->  index  (r/4) * 4*lanes + lane*4 + r%4
 *
 *     row r/4 = 0:   | lane 0: r0 r1 r2 r3 | lane 1: r0 r1 r2 r3 | lane 2 ...   <- 4*lanes elements
 *     row r/4 = 1:   | lane 0: r4 r5 r6 r7 | lane 1: r4 r5 r6 r7 | ...
 *
 * so K is [dim/4][token][4 dims] and V is [token/4][dim][4 tokens]: a SIMD load holds four products
 * for each of its lanes and nothing is ever summed across lanes. 16- and 32-bit elements and 8-bit
 * codes are stored just so.
 *
 * Codes of other widths are split into planes of 4, 2 and 1 bits (6 = 4 low + 2 high, 5 = 4 + 1,
 * 3 = 2 + 1). A plane of w bits packs 8/w successive rows into one row of bytes: with R = r/4 and
 * P = 8/w
 *
 *     byte  (R / P) * 4*lanes + lane*4 + r%4,     bits  [w * (R % P), w * (R % P) + w)
 *
 * so unpacking is a shift and a mask of whole vectors. After the planes (low plane first) come
 * scales, then biases, each [group][64 tokens] of the scalar type, for K and V alike. In KV_TILE
 * they are [reduction], K and V alike: what is multiplied with the codes takes the scales.
 *
 *     tile:  | plane 0 | plane 1 | scales [head_dim/group][64] | biases [head_dim/group][64] |
 *
 * Offsets are multiples of 32 bytes (head_dim is a multiple of 32 for formats with codes, of 4 for
 * exact ones). A zeroed tile reads as zeros. */
enum { TILE_TOKENS = 64, TILE_PLANES_MAX = 2 };

enum tile_kind { TILE_K, TILE_V };

struct tile_layout {
    struct kv_format format;
    uint8_t kind;        /* enum tile_kind */
    uint8_t plane_count; /* 1 or 2; 1 for exact formats */
    uint8_t plane_bits[TILE_PLANES_MAX];
    /* position of the plane's bits in the code: {0, 4} for 6 bits */
    uint8_t plane_shift[TILE_PLANES_MAX];
    uint32_t plane_offset[TILE_PLANES_MAX]; /* bytes from the tile's start */
    uint32_t head_dim;
    uint32_t lanes, reduction; /* K: 64, head_dim; V: head_dim, 64 */
    uint32_t group, groups;    /* dims that share a token's scale, head_dim / group; 0: none do */
    uint32_t scale_offset, bias_offset;
    uint32_t bytes; /* whole tile */
};

void tile_layout_init(struct tile_layout *l, enum tile_kind kind, struct kv_format f,
                      uint32_t head_dim);
/* Bytes of such a tile, with scales and biases. */
uint32_t tile_bytes(enum tile_kind kind, struct kv_format f, uint32_t head_dim);

/* What values are rounded to before they are quantized with scales of type t: t, but nothing with
 * bfloat16. Eight bits are fewer than what codes of 8 bits tell apart, and a step's K and V are
 * float32: what a bfloat16 model makes has these bits anyway, and is quantized as mx.quantize does.
 */
static inline enum scalar_type affine_input(enum scalar_type t) {
    return t == SCALAR_BF16 ? SCALAR_F32 : t;
}
/* Stores row x [head_dim] of one token (0..63): rounds to the scalar type or, for affine formats,
 * to affine_input of it, and quantizes. The definition of every encode_row kernel. Other tokens of
 * the tile keep their bits. Not for KV_TILE. */
void tile_encode_row(const struct tile_layout *l, void *tile, uint32_t token, const float *x);
/* Stores all 64 rows [64][head_dim], which a page at 16 bits held. The definition of every
 * encode_tile kernel. */
void tile_encode(const struct tile_layout *l, void *tile, const float *rows);
/* Whether a tile of `from` becomes one of `to` by tile_drop_bit: KV_TILE of one bit less. */
bool tile_drops_bit(const struct tile_layout *from, const struct tile_layout *to);
/* Codes lose their lowest bit: two neighbours become the value between them, in ranges of twice the
 * step. Encoding the values again would keep the ends of a range: from 4 bits to 3 its step would
 * be 15/7 old ones, while each code would still stand for two old ones. So values would move
 * outwards, and all keys and values be some 6 % longer (docs/quality.md). */
void tile_drop_bit(const struct tile_layout *from, const void *in, const struct tile_layout *to,
                   void *out);
/* Reads one token back: value = float32(scale) * code + float32(bias), in float32, product then
 * sum; exact: the stored value. */
void tile_decode_row(const struct tile_layout *l, const void *tile, uint32_t token, float *x);
/* The parts of a row of codes: codes [head_dim] one a byte, scales and biases [groups] as float. */
void tile_put_row(const struct tile_layout *l, void *tile, uint32_t token, const uint8_t *codes,
                  const float *scales, const float *biases);
void tile_get_row(const struct tile_layout *l, const void *tile, uint32_t token, uint8_t *codes,
                  float *scales, float *biases);
/* Scales and biases [head_dim] of a K tile of KV_TILE, whose rows have no groups. */
void tile_get_channels(const struct tile_layout *l, const void *tile, float *scales, float *biases);

/* ---- the affine arithmetic of mx.quantize (affine.c) ----------------------------------------- */

/* Quantizes n values (n a multiple of group) that are already values of the scalar type. codes [n];
 * scales and biases [n/group] rounded to T. NaN and Inf: affine.c,
 * AFFINE-4; a group with one Inf gets the scale NaN. */
void affine_quantize(const float *x, size_t n, unsigned bits, unsigned group, enum scalar_type t,
                     uint8_t *codes, float *scales, float *biases);
/* mx.dequantize: T(T(code * scale) + bias). */
void affine_dequantize(const uint8_t *codes, const float *scales, const float *biases, size_t n,
                       unsigned group, enum scalar_type t, float *x);
/* mlx's packing of a row: one LSB-first bit stream in little-endian 32-bit words; n * bits is a
 * multiple of 32. */
void affine_pack_row(const uint8_t *codes, size_t n, unsigned bits, uint32_t *words);
void affine_unpack_row(const uint32_t *words, size_t n, unsigned bits, uint8_t *codes);

/* ---- ranges from end to end (range.c): KV_TILE ----------------------------------------------- */

/* n values, `stride` apart, share a scale and a bias of type t. In float32, each operation rounded:
 *     bias = T(min) (+0 for -0),  scale = T(max((max - min) / (2^bits - 1), 1e-7)),
 *     code = clamp(rint((x - bias) / scale), 0, 2^bits - 1)
 * NaN does not count in a range that has other values; its code is 0. With an Inf the scale is Inf
 * or NaN, so that nothing plausible is read back. */
void range_find(const float *x, size_t n, size_t stride, unsigned bits, enum scalar_type t,
                float *scale, float *bias);
uint8_t range_code(float x, unsigned bits, float scale, float bias);

/* ---- weight types (weight.c, weight_k.c, weight_rows.c) -------------------------------------- */

/* Numbers below WEIGHT_GGUF_END are GGUF's (ggml_type), the others ours: no number of a file. A new
 * type is one row of the table in weight.c. */
enum { WEIGHT_GGUF_END = 1000 };
enum weight_type {
    WEIGHT_F32 = 0,
    WEIGHT_F16 = 1,
    WEIGHT_Q4_0 = 2,
    WEIGHT_Q4_1 = 3,
    WEIGHT_Q5_0 = 6,
    WEIGHT_Q5_1 = 7,
    WEIGHT_Q8_0 = 8,
    WEIGHT_Q2_K = 10,
    WEIGHT_Q3_K = 11,
    WEIGHT_Q4_K = 12,
    WEIGHT_Q5_K = 13,
    WEIGHT_Q6_K = 14,
    WEIGHT_Q8_K = 15,
    WEIGHT_IQ4_NL = 20,
    WEIGHT_IQ4_XS = 23,
    WEIGHT_BF16 = 30,
    WEIGHT_MXFP4 = 39,
    /* safetensors: codes, scales and biases are arrays of their own (struct weight) */
    WEIGHT_AFFINE2 = 1002, /* mx.quantize, mode affine */
    WEIGHT_AFFINE3 = 1003,
    WEIGHT_AFFINE4 = 1004,
    WEIGHT_AFFINE5 = 1005,
    WEIGHT_AFFINE6 = 1006,
    WEIGHT_AFFINE8 = 1008,
    WEIGHT_MXFP4_MLX = 1014, /* mx.quantize, mode mxfp4 */
    WEIGHT_F8_E4M3 = 1018,
};

/* A matrix [n][k]: n outputs, each a row of k inputs, as the checkpoint holds it, mapped or
 * resident. All pointers are borrowed.
 *
 *     GGUF types   data [n] rows of blocks                      scales, biases NULL
 *     AFFINEb      data [n][k*b/32] 32-bit words (affine_pack_row), scales and biases [n][k/group]
 *                  of type scalar
 *     MXFP4_MLX    data [n][k/8] words of 4-bit codes, scales [n][k/32] bytes (E8M0)
 *     F8_E4M3      data [n][k] bytes; scales, if not NULL, of type scalar, one for each
 *                  group_rows x group values: [ceil(n/group_rows)][ceil(k/group)] */
struct weight {
    const void *data, *scales, *biases;
    enum weight_type type;
    uint32_t n, k;
    uint32_t group, group_rows; /* values and rows that share a scale; 0 if the type fixes it */
    enum scalar_type scalar;    /* of scales and biases */
};

struct weight_traits {
    enum weight_type type;
    const char *name;      /* "Q4_1" */
    uint32_t block_values; /* values a block holds: a row is a multiple of it */
    uint32_t block_bytes;  /* of data */
    /* Values that share a scale in the integer products: 32 or 16; 0: a float type, whose products
     * are float32's. */
    uint32_t run_values;
    bool has_min; /* value = d * code + m; else d * code */
    /* Row `row` in float32, out [k]. Reference: gguf's dequantize of the same type, mlx's with
     * float32 scales. */
    void (*decode)(const struct weight *w, uint32_t row, float *out);
    /* Row `row` as the integer products see it (kernels.h): codes [k], d and m [k/run_values] with
     * value = d * code + m in real numbers; m is 0 without has_min. decode differs from it by its
     * own roundings (weight.h), AFFINE8's m by one (weight_rows.c). NULL for float types. */
    void (*parts)(const struct weight *w, uint32_t row, int8_t *codes, float *d, float *m);
    /* For types whose blocks hold their scales: the parts of one block, from which weight.c makes
     * decode and parts. m is not written without has_min. NULL for the others. */
    void (*unpack)(const uint8_t *block, int8_t *codes, float *d, float *m);
};

/* Bytes of a block: fields in the order of weight.c and weight_k.c. Kernels repeat the
 * offsets of fields, but take the size from here. */
enum {
    WEIGHT_BYTES_Q4_0 = 2 + 16,
    WEIGHT_BYTES_Q4_1 = 4 + 16,
    WEIGHT_BYTES_Q5_0 = 2 + 4 + 16,
    WEIGHT_BYTES_Q5_1 = 4 + 4 + 16,
    WEIGHT_BYTES_Q8_0 = 2 + 32,
    WEIGHT_BYTES_IQ4_NL = 2 + 16,
    WEIGHT_BYTES_MXFP4 = 1 + 16,
    WEIGHT_BYTES_Q2_K = 16 + 64 + 2 + 2,
    WEIGHT_BYTES_Q3_K = 32 + 64 + 12 + 2,
    WEIGHT_BYTES_Q4_K = 4 + 12 + 128,
    WEIGHT_BYTES_Q5_K = 4 + 12 + 32 + 128,
    WEIGHT_BYTES_Q6_K = 128 + 64 + 16 + 2,
    WEIGHT_BYTES_Q8_K = 4 + 256 + 32,
    WEIGHT_BYTES_IQ4_XS = 2 + 2 + 4 + 128,
};

/* No block holds more values or runs. */
enum { WEIGHT_BLOCK_MAX = 256, WEIGHT_BLOCK_RUNS_MAX = 16 };
enum { WEIGHT_TYPES_MAX = 32 };
/* NULL when the type is not known. */
const struct weight_traits *weight_traits_of(uint32_t type);
/* The type's place in the table, 0 .. WEIGHT_TYPES_MAX - 1: what kernel tables are indexed with. */
uint32_t weight_index(enum weight_type t);
/* The i-th type of the table; NULL after the last. */
const struct weight_traits *weight_traits_at(uint32_t i);
/* Bytes of a row of n values in data; n is a multiple of block_values. */
size_t weight_row_bytes(const struct weight_traits *t, size_t n);

#endif
