// SPDX-License-Identifier: Apache-2.0
// ops.cuh: the operations of a step as data. record.cu makes them where the contract's functions
// are called, and calls run_X, which launches the kernels, in the file that has them.
//
// Pointers are the device's, also those of arrays that the caller had in host memory (cuda_bring).
// What an operation takes from the batch is found in the step's tables.
//
// Records are compared as bytes (record.cu): members are multiples of 4 bytes and packed, so that
// nothing lies between them.
#pragma once

#pragma pack(push, 4)

struct embed_op {
    const struct backend_weight *w;
    const int32_t *tokens;
    uint32_t rows;
    float *y;
};
struct rms_norm_op {
    const float *x, *gain;
    uint32_t rows, dim;
    float eps;
    float *y;
};
struct matmul_op {
    const float *x;
    uint32_t rows, count;
    const struct backend_weight *w[MATMULS_MAX];
    const float *bias[MATMULS_MAX];
    float *y[MATMULS_MAX];
};
struct rope_table_op {
    const uint32_t *pos;
    uint32_t rows;
    const double *inv_freq;
    uint32_t n;
    float scale;
    float *cos_out, *sin_out;
};
struct rope_op {
    float *x;
    uint32_t rows, heads, head_dim;
    const float *cos_in, *sin_in;
    uint32_t n, adjacent;
};
struct kv_store_op {
    uint32_t group, layer;
    const float *k, *v;
    dev_centre centre;
    dev_basis basis;
};
struct attention_op {
    uint32_t group, layer;
    const float *q;
    uint32_t heads;
    float scale, softcap;
    const float *sinks;
    float *out;
    dev_centre centre;
    dev_basis basis;
};
struct gate_mul_op {
    uint32_t kind; // enum gate_kind
    const float *gate, *up;
    size_t n;
    float *y;
};
struct add_op {
    float *x;
    const float *y;
    float scale;
    size_t n;
};
struct scale_op {
    float *x;
    float scale;
    size_t n;
};
struct softcap_op {
    float *x;
    float cap;
    size_t n;
};
struct gate_rows_op {
    float *x;
    const float *gate;
    uint32_t rows, dim;
};
struct rearrange_op {
    uint32_t rows, blocks, n;
    const float *from;
    block_strides from_strides;
    float *to;
    block_strides to_strides;
};
struct gather_rows_op {
    const float *x;
    const uint32_t *index;
    uint32_t n, dim;
    float *y;
};
struct experts_op {
    const float *x;
    uint32_t rows;
    const float *logits;
    const struct expert *experts; // and the other members of struct expert_layer
    uint32_t n, top_k;
    const float *gate_bias, *up_bias, *down_bias, *scale;
    uint32_t gate, normalize;
    float *y;
};
struct short_conv_op {
    size_t at;
    const float *x, *w;
    uint32_t width, channels, silu;
    float *y;
};
struct delta_rule_op {
    size_t at;
    const float *qkv, *beta, *a;
    uint32_t key_heads, value_heads, key_dim, value_dim; // struct delta_layer
    const float *rate, *bias;
    uint32_t keys_cycle;
    float *y;
};

#define OP_KIND(name) OP_##name,
enum op_kind : uint32_t { BACKEND_OPERATIONS(OP_KIND) };
struct op_record {
    enum op_kind kind;
    union {
        embed_op embed;
        rms_norm_op rms_norm;
        matmul_op matmul;
        rope_table_op rope_table;
        rope_op rope;
        kv_store_op kv_store;
        attention_op attention;
        gate_mul_op gate_mul;
        add_op add;
        scale_op scale;
        gate_rows_op gate_rows;
        softcap_op softcap;
        rearrange_op rearrange;
        gather_rows_op gather_rows;
        experts_op experts;
        short_conv_op short_conv;
        delta_rule_op delta_rule;
    };
};
#undef OP_KIND

#pragma pack(pop)

// What one launch can do besides a product: the operation before it, which makes its input, and
// the one after it, which adds its output to something or multiplies its outputs. Absent: NULL.
struct matmul_neighbours {
    const rms_norm_op *norm;
    const gate_mul_op *gate;
    const add_op *sum;
    const gate_mul_op *gated; // of this product's two outputs
};

// Each in the file of its kernels. Inside a capture too.
void run_matmul(cuda_backend *b, const matmul_op &op, matmul_neighbours with);
// Whether `gated` belongs to this product, rather than `gate` to the next one: what is faster.
bool product_gates(const cuda_backend *b, const matmul_op &op);
// second: of the same angles, in the same launch; NULL: none.
void run_rope(cuda_backend *b, const rope_op &op, const rope_op *second);
void run_embed(cuda_backend *b, const embed_op &op);
void run_rms_norm(cuda_backend *b, const rms_norm_op &op);
void run_rope_table(cuda_backend *b, const rope_table_op &op);
// next: attention of the same layer, which comes then, or NULL. True: its queries for balanced keys
// were turned by the way.
bool run_kv_store(cuda_backend *b, const kv_store_op &op, const attention_op *next);
// encode.cu: two ropes of the same angles and the store of what the second has turned, as one
// launch; where that is possible.
bool rope_store_fits(const cuda_backend *b, const rope_op &q, const rope_op &k,
                     const kv_store_op &store);
void run_rope_store(cuda_backend *b, const rope_op &q, const rope_op &k, const kv_store_op &store);
// turned: those for balanced keys were.
void run_attention(cuda_backend *b, const attention_op &op, bool turned);
void run_gate_mul(cuda_backend *b, const gate_mul_op &op);
void run_add(cuda_backend *b, const add_op &op);
void run_scale(cuda_backend *b, const scale_op &op);
void run_softcap(cuda_backend *b, const softcap_op &op);
void run_gate_rows(cuda_backend *b, const gate_rows_op &op);
void run_rearrange(cuda_backend *b, const rearrange_op &op);
void run_gather_rows(cuda_backend *b, const gather_rows_op &op);
void run_experts(cuda_backend *b, const experts_op &op);
void run_short_conv(cuda_backend *b, const short_conv_op &op);
void run_delta_rule(cuda_backend *b, const delta_rule_op &op);
