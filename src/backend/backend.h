/* SPDX-License-Identifier: Apache-2.0 */
/* backend/: the contract between the engine and a device.
 *
 * A step of the model is a list of operations enqueued on a backend: each call below records (or,
 * on the CPU, runs) one operation and returns nothing. Nothing comes back to the host until
 * backend_read. So a GPU fits behind the same calls: they become kernel launches of one stream or
 * nodes of one graph. Everything an operation needs is in its arguments: plain data, no callbacks,
 * no pointers into the cache's own structures.
 *
 * Invariants every backend keeps (I1 of DESIGN.md):
 *   B1  The result of a row depends on that row, its weights and the cache bytes it sees: never on
 *       the other rows of the step, on how a prompt was cut into steps, on the number of threads.
 *   B2  K and V of new tokens are stored before any attention of that layer runs, and attention
 *       reads them back from their pages: a token sees itself as stored.
 *   B3  What a query at position p sees depends on p only: positions < keep and those in
 *       (p - span, p].
 *   B4  Attention reduces over runs of a fixed length at absolute positions (RUN_TOKENS on CPUs),
 *       merged in order of position.
 *
 * Buffers are device memory: from backend_alloc, or constants from backend_upload; on the CPU they
 * are ordinary pointers. Matrices are row-major, a row is a token. `float *x [rows][dim]` is dense.
 */
#ifndef KVASIR_BACKEND_H
#define KVASIR_BACKEND_H

#include "quant/quant.h"
#include "util/util.h"

struct backend;

enum {
    /* attention run: maxima, sums and weights are computed per run, runs merged in order */
    RUN_TOKENS = 512,
    PAGE_ADDR_UNIT = 4096, /* a page's address counts these from the arena's base */
    HEAD_DIM_MAX = 512,
    GQA_MAX = 16, /* query heads a KV head may serve */
};

/* ---- plain data that cache/ hands to the backend --------------------------------------------- */

/* How one page is cut: [layer][kv head][K tile | V tile]. One per
 * (layer group, K format, V format). */
struct page_layout {
    struct tile_layout k, v;
    bool centred; /* K tiles hold rope(k - c): see struct key_centre */
    uint32_t kv_heads, layers;
    uint32_t head_bytes;  /* k.bytes + v.bytes */
    uint32_t layer_bytes; /* head_bytes * kv_heads */
    size_t page_bytes;    /* layer_bytes * layers, rounded up to PAGE_ADDR_UNIT */
};

/* centred is false: whoever hands out the pages sets it. */
void page_layout_init(struct page_layout *l, uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                      struct kv_format k, struct kv_format v);

/* One entry of a sequence's page table. */
struct kv_page {
    uint32_t addr;   /* arena base + addr * PAGE_ADDR_UNIT */
    uint16_t layout; /* index into kv_view.layouts: the format belongs to the page */
    uint16_t reserved;
};

/* Centred keys (DESIGN section 3). A key has a large constant part c, the same for all tokens of a
 * (layer, KV head), that RoPE turns into a known function of the position, so it need not be
 * stored: a centred page holds rope(k - c, t), and a score adds q . rope(c, t).
 *
 * Per rotated pair j (dims j and j + n of a head, n = pairs of the rope) with frequency w_j:
 *
 *     rope(c, t)  = (c1 cos wt - c2 sin wt,  c2 cos wt + c1 sin wt)
 *     q . rope(c, t) = A cos wt + B sin wt,     A = q1 c1 + q2 c2,  B = q2 c1 - q1 c2
 *
 * Only the pairs that need it have a centre; a head may have none. One of these serves a layer
 * group for the life of its cache. */
struct centre_pair {
    uint32_t pair; /* j */
    float c1, c2;
};
struct key_centre {
    uint32_t layers, kv_heads; /* of the group */
    uint32_t n;                /* pairs of the rope */
    uint32_t pairs_max;        /* most pairs of one head */
    const double *inv_freq;    /* [n] w_j */
    /* pairs of (layer, head) i = layer * kv_heads + head: [first[i], first[i + 1]) */
    const uint32_t *first;
    const struct centre_pair *pairs; /* rising by pair inside a head */
};
/* key += sign * rope(c, pos) for one row of one head: 1 puts a stored row's centre back, -1 takes
 * it off. The definition, in double: a backend's own way of storing agrees to rounding. */
void key_centre_add(const struct key_centre *c, uint32_t layer, uint32_t head, uint32_t pos,
                    double sign, float *key);

/* One sequence in one layer group, as a step sees it. Pages of positions no query of this step or
 * later can see may be gone: the table holds page numbers [0, kept_pages) and then
 * [base_page, base_page + n - kept_pages).
 *
 *     number:   0 .. kept-1 |  (dropped)  | base_page ................ newest
 *     pages[]:  0 .. kept-1 |               kept ..................... n-1
 */
struct kv_view {
    const uint8_t *arena;
    const struct page_layout *layouts; /* of this layer group; all have its heads and head_dim */
    /* Of this layer group, the same for all sequences; NULL where no layout is centred. */
    const struct key_centre *centre;
    const struct kv_page *pages;
    uint32_t n_pages;
    uint32_t kept_pages, base_page;
    /* visibility, see B3; span is UINT32_MAX where everything before p is seen */
    uint32_t keep, span;
};

/* Index into view->pages of page `number`, or UINT32_MAX when it was dropped or never taken. */
static inline uint32_t kv_view_index(const struct kv_view *v, uint32_t number) {
    uint32_t i = number < v->kept_pages   ? number
                 : number >= v->base_page ? v->kept_pages + (number - v->base_page)
                                          : UINT32_MAX;
    return i < v->n_pages ? i : UINT32_MAX;
}

/* The recurrent state of one sequence, as a step sees it: one record of all recurrent layers, which
 * the operations of those layers read and write. Zeros are the state before position 0. What of it
 * a layer has, and where, is the model's business: operations take the byte at which theirs
 * begins (a multiple of 64). */
struct state_view {
    const uint8_t *arena;
    uint32_t addr; /* in units of PAGE_ADDR_UNIT */
};

/* The rows of a step that belong to one sequence: rows [row, row + rows) are positions
 * [pos, pos + rows). */
struct batch_seq {
    uint32_t row, rows;
    uint32_t pos;
};

/* A step: any number of sequences of any lengths, no padding. */
struct batch {
    uint32_t rows;
    const int32_t *tokens; /* [rows] */
    const uint32_t *pos;   /* [rows] */
    uint32_t n_seqs;
    const struct batch_seq *seqs;    /* [n_seqs], in any order */
    const struct kv_view *views;     /* [layer group][n_seqs] */
    const struct state_view *states; /* [n_seqs]; NULL: the model has no recurrent layer */
    uint32_t n_logit_rows;
    const uint32_t *logit_rows; /* [n_logit_rows], rising */
};

/* ---- life ------------------------------------------------------------------------------------ */

struct backend_options {
    int threads;        /* 0: one per core */
    enum cpu_tier tier; /* at most this one; CPU_TIER_COUNT: the best this machine has */
    /* 8 or 16: planes that activations are rounded to before a product with quantized weights */
    int act_bits;
};

kvasir_status backend_cpu_create(struct backend **out, const struct backend_options *opt,
                                 kvasir_error *err) MUST_CHECK;
/* A backend for simulations: pages of its arena have addresses and no bytes. What is written or
 * copied there is lost, what is read is zeros. No operation may be called. */
kvasir_status backend_null_create(struct backend **out, kvasir_error *err) MUST_CHECK;
void backend_destroy(struct backend *b);
const char *backend_tier(const struct backend *b);
int backend_threads(const struct backend *b);
/* The most that operations will be asked for. */
struct backend_limits {
    uint32_t rows;     /* of a step */
    uint32_t dim;      /* inputs of a product */
    uint32_t head_dim; /* of attention */
    /* of op_experts; 0: it is never called */
    uint32_t experts, top_k, expert_dim; /* expert_dim: inputs of an expert's down product */
};
/* Scratch for these: called once at start-up, so that no operation allocates (I6). */
kvasir_status backend_reserve(struct backend *b, const struct backend_limits *limits,
                              kvasir_error *err) MUST_CHECK;

/* Tables for a layer group's centred keys, after backend_reserve and before any operation sees a
 * view with this centre. The centre is borrowed for the backend's life. */
kvasir_status backend_reserve_centre(struct backend *b, const struct key_centre *c,
                                     kvasir_error *err) MUST_CHECK;

void *backend_alloc(struct backend *b, size_t bytes) MUST_CHECK;
void backend_free(struct backend *b, void *p);
/* Constants that operations read as buffers: gains, biases. Returns device memory that holds what
 * the host memory holds now: a copy, or, where the device reads host memory, that memory itself, so
 * the caller keeps it unchanged until backend_upload_free. Made when a run is created. NULL: no
 * memory is left. */
const void *backend_upload(struct backend *b, const void *host, size_t bytes) MUST_CHECK;
/* What backend_upload returned, or NULL; the host memory stays the caller's. */
void backend_upload_free(struct backend *b, const void *device);
/* Waits for everything enqueued and copies to host memory. */
void backend_read(struct backend *b, void *host, const void *device, size_t bytes);
/* The other way, in order with everything enqueued: what `host` holds now. */
void backend_write(struct backend *b, void *device, const void *host, size_t bytes);

/* The arena that pages live in: address space now, memory when a page is taken. */
void *backend_arena_reserve(struct backend *b, size_t bytes) MUST_CHECK;
void backend_arena_unreserve(struct backend *b, void *arena, size_t bytes);
/* gives memory back; reads as zeros after */
void backend_arena_release(struct backend *b, void *at, size_t bytes);
/* Before a page is used: it has memory, and reads as zeros. fresh: nothing was stored there yet, or
 * not since it was released; a host's memory is zero then, and comes when it is touched. */
void backend_arena_take(struct backend *b, void *at, size_t bytes, bool fresh);
void backend_arena_copy(struct backend *b, void *to, const void *from, size_t bytes);
/* Address space that a page takes: its bytes, or one unit where pages have none (null backend). */
size_t backend_page_extent(const struct backend *b, size_t page_bytes);

/* Order. Everything below, and backend_arena_take, _copy and _release, happens in the order of the
 * calls. Host arguments (struct batch and all it points to, tokens, positions, inv_freq, arrays of
 * pointers, struct weight) are consumed before a call returns: the caller may change or free them
 * at once; only what a weight points to stays where it is. Every batch has at least one sequence
 * and every sequence at least one row. A backend whose memory is not the host's copies weights when
 * a run is created; on the CPU they are used where they are mapped. Gains and biases come from
 * backend_upload.
 */

/* Before the operations of a step, once: the batch that op_kv_store and op_attention are called
 * with until the next step begins, whose tables a device takes here in one copy. batch->views is
 * [groups][n_seqs], groups the model's layer groups. */
void backend_step_begin(struct backend *b, const struct batch *batch, uint32_t groups);

/* ---- operations ------------------------------------------------------------------------------ */

/* y[row] = weight row tokens[row], in float32. */
void op_embed(struct backend *b, const struct weight *w, const int32_t *tokens, uint32_t rows,
              float *y);
/* y = x / sqrt(mean(x^2) + eps) * gain, over each `dim` values; x is [rows][dim]; y may be x. gain
 * is [dim] float32; NULL: ones. */
void op_rms_norm(struct backend *b, const float *x, const float *gain, uint32_t rows, uint32_t dim,
                 float eps, float *y);
/* Several products of the same input: y[i] = x . w[i]^T (+ bias[i] where not NULL). x [rows][k],
 * y[i] [rows][w[i]->n]. Activations are rounded once for all of them where a weight's type asks for
 * it. count <= 4. */
void op_product(struct backend *b, const float *x, uint32_t rows, const struct weight *const *w,
                const float *const *bias, float *const *y, uint32_t count);
/* cos, sin of pos[row] * inv_freq[i] as float32, [rows][n]; inv_freq is host memory, [n]. */
void op_rope_table(struct backend *b, const uint32_t *pos, uint32_t rows, const double *inv_freq,
                   uint32_t n, float scale, float *cos_out, float *sin_out);
/* Rotates x [rows][heads][head_dim] in place: the first 2*n dims of each head. Pairs are (i, i + n)
 * in the result; `adjacent` says that the input holds them as (2i, 2i+1), as GGUF's llama arch
 * orders the rows of wq and wk. */
void op_rope(struct backend *b, float *x, uint32_t rows, uint32_t heads, uint32_t head_dim,
             const float *cos_in, const float *sin_in, uint32_t n, bool adjacent);
/* Encodes K and V of every row of the batch into its page. k, v: [rows][kv_heads][head_dim]. layer
 * counts inside the group; views is this group's [n_seqs]. */
void op_kv_store(struct backend *b, const struct batch *batch, const struct kv_view *views,
                 uint32_t layer, const float *k, const float *v);
struct attention_args {
    uint32_t heads; /* query heads */
    float scale;
    float softcap; /* a score x becomes softcap * tanh(x / softcap); 0: it stays x */
    const float
        *sinks; /* [heads]: one more score in each head's softmax, of no value; NULL: none */
};
/* out[row][head] = softmax(scale * q . K) V over what the row sees.
 * q, out: [rows][heads][head_dim]. */
void op_attention(struct backend *b, const struct batch *batch, const struct kv_view *views,
                  uint32_t layer, const float *q, const struct attention_args *args, float *out);

/* What a gate does to its input x before it is multiplied. */
enum gate_kind {
    GATE_NONE,      /* x */
    GATE_SILU,      /* x sigmoid(x) */
    GATE_GELU_TANH, /* x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) */
    GATE_SIGMOID,
    /* gpt_oss: x = min(x, 7), x sigmoid(1.702 x), times clamp(up, -7, 7) + 1 */
    GATE_SWIGLU_CLAMPED,
    GATE_KINDS
};
/* y = gated(gate) * up, elementwise over n values; y may be gate or up. */
void op_gate_mul(struct backend *b, enum gate_kind kind, const float *gate, const float *up,
                 size_t n, float *y);
/* x += scale * y */
void op_add(struct backend *b, float *x, const float *y, float scale, size_t n);
/* x *= scale */
void op_scale(struct backend *b, float *x, float scale, size_t n);
/* x[row] *= sigmoid(gate[row]); x is [rows][dim]. */
void op_gate_rows(struct backend *b, float *x, const float *gate, uint32_t rows, uint32_t dim);
/* x = cap * tanh(x / cap) */
void op_softcap(struct backend *b, float *x, float cap, size_t n);
/* Blocks of n values from one place to another that does not overlap it:
 * to[row * to_row + block * to_block + i] = from[row * from_row + block * from_block + i]. */
struct block_strides {
    uint32_t row, block; /* in values */
};
void op_rearrange(struct backend *b, uint32_t rows, uint32_t blocks, uint32_t n, const float *from,
                  struct block_strides from_strides, float *to, struct block_strides to_strides);
/* ---- experts ---- */

struct expert {
    const struct weight *gate,
        *up;                   /* [expert_dim][dim]; up NULL: rows of gate are gate, up in turn */
    const struct weight *down; /* [dim][expert_dim] */
};
struct expert_layer {
    uint32_t n, top_k;            /* top_k <= n */
    const struct expert *experts; /* [n], host memory; stays where it is, as what it points to */
    const float *gate_bias, *up_bias, *down_bias; /* [n][outputs of the matrix]; NULL: none */
    const float *scale; /* [n]: factor of an expert's weight; NULL: ones */
    enum gate_kind gate;
    bool normalize; /* weights are softmax over the chosen, not over all */
};
/* Each row goes through the top_k experts of its largest logits (of equal ones the lower number):
 *     y[row] = sum of  w_e * down_e(gated(gate_e x) * up_e x)  in falling order of logits,
 * w = softmax(logits[row]) times scale. logits: [rows][n], of the router. An expert's matrices are
 * read once for all rows that chose it. y may not be x. */
void op_experts(struct backend *b, const float *x, uint32_t rows, const float *logits,
                const struct expert_layer *layer, float *y);

/* ---- recurrent layers ----
 *
 * Rows of a sequence go in order of position, one by one, also where a step has many (I1). `at`:
 * byte of the record where the layer's state begins. */

/* y[row][c] = sum over j < width of w[j][c] * x[row - (width - 1) + j][c], in order of j, then silu
 * where asked for. Inputs before the step's first row of a sequence are the state,
 * float32 [width - 1][channels], oldest first. w: [width][channels]. y may be x. */
void op_short_conv(struct backend *b, const struct batch *batch, size_t at, const float *x,
                   const float *w, uint32_t width, uint32_t channels, bool silu, float *y);

/* The gated delta rule. A value head h has the key head h / (value_heads / key_heads), or where
 * keys_cycle h % key_heads, and the state S, float32 [value_heads][key_dim][value_dim]:
 *     q = q / sqrt(sum q^2 + 1e-6) / sqrt(key_dim),  k = k / sqrt(sum k^2 + 1e-6)
 *     S = S * exp(-rate[h] * softplus(a + bias[h]))
 *     S = S + k (sigmoid(beta) (v - S^T k))^T
 *     y = S^T q
 * key_dim is at most HEAD_DIM_MAX.
 * qkv: [rows][q: key_heads * key_dim | k: the same | v: value_heads * value_dim]
 * beta, a: [rows][value_heads];  rate, bias: [value_heads];  y: [rows][value_heads][value_dim] */
struct delta_layer {
    uint32_t key_heads, value_heads, key_dim, value_dim;
    const float *rate, *bias;
    bool keys_cycle;
};
void op_delta_rule(struct backend *b, const struct batch *batch, size_t at, const float *qkv,
                   const float *beta, const float *a, const struct delta_layer *layer, float *y);

/* y[i] = x[index[i]], rows of dim. */
void op_gather_rows(struct backend *b, const float *x, const uint32_t *index, uint32_t n,
                    uint32_t dim, float *y);

#endif
