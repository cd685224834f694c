/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the CPU backend share: the backend itself and its scratch memory. */
#ifndef KVASIR_CPU_INTERNAL_H
#define KVASIR_CPU_INTERNAL_H

#include <stdatomic.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels.h"
#include "util/topology.h"

/* Query rows (tokens x heads of one KV head) that share each tile: enough that unpacking a tile is
 * a few percent, few enough that their scores of one split (64 x 512 floats) stay in L2. */
enum { BLOCK_ROWS = 64 };

enum { SPLIT_TILES = SPLIT_TOKENS / TILE_TOKENS };
_Static_assert(SPLIT_TILES *TILE_TOKENS == SPLIT_TOKENS, "a split is a whole number of tiles");

/* Partial results of attention over one split: what is merged. */
struct partial {
    float max; /* -INFINITY: the row sees nothing of the split */
    float sum;
};

/* Layer groups with centred keys. */
enum { CENTRES_MAX = 4 };

/* Angles of one rope (centre.c). */
struct centre_table {
    const struct key_centre *centre;
    float *waves;   /* [n][2][64] cos, then sin of (t - 31.5) w: what centre_tile reads */
    double *tiles;  /* [8][n][2] cos, sin of (64 i + 31.5) w: the middle of tile i of a split */
    double *splits; /* [level][digit][n][2] cos, sin of 512 digit 16^level w */
};

/* A and B of kernels.h's centre_tile for the block at hand (centre.c). */
struct centre_scratch {
    uint32_t rows;   /* of the block */
    uint32_t pairs;  /* of the block's head; 0: it has no centre */
    uint32_t split;  /* that split_ab belongs to; UINT32_MAX: none yet */
    uint32_t *index; /* [pairs] */
    float *start_ab; /* [row][pairs][2] A, B at position 0 */
    float *split_ab; /* the same at the split's start */
    float *split_ba; /* that as B, A */
    float *tile_ab;  /* at a tile's middle */
    float *turn_cos; /* [tile of a split][pairs][2]: cos, cos */
    float *turn_sin; /* [tile of a split][pairs][2]: sin, -sin */
    void *memory;    /* holds all of these */
};

/* Rows that products multiply: as they are, rounded to codes, and with act_bits 16 what that left,
 * rounded too (product.c). */
struct product_input {
    struct act_rows act, rest; /* rest.x is act.rest; both NULL at 8 bits */
};

/* Buffers of op_experts (experts.c). A pair is (row, rank). A slot is the index of a pair after
 * pairs are sorted by expert. */
struct expert_scratch {
    uint32_t *chosen;  /* [row][top_k] experts, in falling order of logits */
    float *weight;     /* [row][top_k] */
    uint32_t *slot_of; /* [row][top_k] */
    uint32_t *row_of;  /* [slot] */
    uint32_t *first;   /* [experts + 1] slots of expert e: [first[e], first[e + 1]) */
    uint32_t *active;  /* [experts] those that have slots, rising */
    struct product_input input;
    float *x;      /* [slot][dim] gathered rows, later the outputs of the experts */
    float *wide;   /* [slot][2 * expert_dim] outputs of gate and up */
    float *hidden; /* [slot][expert_dim] inputs of down */
};

/* One worker's own scratch. */
struct worker_scratch {
    struct query_rows queries[BASIS_COUNT]; /* of up to BLOCK_ROWS rows, in each basis */
    uint32_t packed;                        /* bit i: queries[i] are those of the block at hand */
    float *stored, *stored_plain; /* [TILE_TOKENS][head_dim] rows of a page (kv_store.c) */
    float *turned;                /* [BLOCK_ROWS][head_dim] rows of q in another basis */
    float *turned_out;            /* [BLOCK_ROWS][head_dim] H times what a split gives */
    float *scores;                /* [BLOCK_ROWS][SPLIT_TOKENS] */
    struct split *visited;        /* [2]: this split and the next (attention.h) */
    struct partial *split, *all;  /* [BLOCK_ROWS] of this split; of all splits so far */
    float *split_out, *all_out;   /* [BLOCK_ROWS][head_dim] */
    void *panel;                  /* product_scratch_bytes */
    float *term;                  /* [rows][ITEM_OUTPUTS]: the second term of a matmul */
    void *memory;                 /* holds all of these */
    struct centre_scratch centre;
};

/* A matrix is the mapped one. */
struct backend_weight {
    struct weight w;
};

struct backend_arena {
    uint8_t *base;
    size_t bytes;
};

struct cpu_backend {
    struct backend base;
    struct kernels kernels;
    struct thread_pool *pool;
    int threads, act_bits;
    struct topology machine;
    struct thread_nodes nodes;      /* of the threads */
    struct backend_limits limits;   /* what scratch was made for */
    struct product_input input;     /* of op_matmul: limits.rows x limits.dim */
    struct expert_scratch experts;  /* empty if limits.experts is 0 */
    struct worker_scratch *scratch; /* [threads] */
    struct partial *partials;       /* [PARTIAL_ROWS] of split attention */
    float *partial_out;             /* [PARTIAL_ROWS][head_dim] */
    atomic_uint *finished;          /* [PARTIAL_ROWS]: at a cut block's first row, ended items */
    struct block_plan *plans;       /* [limits.rows]: the blocks of a step (attention.c) */
    struct page_key *page_keys;     /* [limits.rows] */
    uint32_t *first_pages;          /* [limits.rows + 1] (kv_store.c) */
    struct centre_table centres[CENTRES_MAX]; /* [n_centres] */
    uint32_t n_centres;
    uint32_t centre_pairs; /* most of one head: workers have room for so many */
};

static inline struct cpu_backend *cpu_of(struct backend *b) {
    return (struct cpu_backend *)b;
}

/* The bytes [at, at + bytes) of an arena. */
static inline uint8_t *arena_at(const struct backend_arena *a, size_t at, size_t bytes) {
    ASSERT(at <= a->bytes && bytes <= a->bytes - at);
    return a->base + at;
}

static inline const struct kv_page *page_of(const struct kv_view *v, uint32_t number) {
    const uint32_t i = kv_view_index(v, number);
    ASSERT(i != UINT32_MAX); /* a table lacks a page that a query sees */
    return &v->pages[i];
}

/* The K tile of a head; its V tile comes right after. */
static inline uint8_t *head_tiles(const struct kv_view *v, const struct kv_page *page,
                                  uint32_t layer, uint32_t head) {
    const struct page_layout *l = &v->layouts[page->layout];
    return arena_at(v->arena, page_offset(page->addr) + page_tile(l, layer, head, TILE_K),
                    l->head_bytes);
}

/* Rows of partial results that a wave of attention holds: 256 splits (131,072 tokens) of 64 rows.
 */
enum { PARTIAL_ROWS = 16384 };

/* Most outputs of one item of a matmul. For one row that is about 100 KiB of weights, tens of
 * microseconds: small enough to balance two to sixteen threads, large compared with the cost of
 * taking an item. With several rows, half as many outputs take as long. */
enum { ITEM_OUTPUTS = 64, ITEM_OUTPUTS_ROWS = 32 };

/* The next `bytes` of a region at `base`, with 64-byte alignment; *used: of the region so far. base
 * NULL: NULL, to find out how large the region must be. */
static inline void *cut(uint8_t *base, size_t *used, size_t bytes) {
    void *p = base ? base + *used : NULL;
    *used += round_up(bytes, 64);
    return p;
}

/* ---- operations, by file --------------------------------------------------------------------- */

kvasir_status cpu_reserve_centre(struct backend *b, const struct key_centre *c,
                                 kvasir_error *err) MUST_CHECK;
void cpu_matmul(struct backend *b, const float *x, uint32_t rows,
                const struct backend_weight *const *w, const float *const *bias, float *const *y,
                uint32_t count);
void cpu_kv_store(struct backend *b, const struct batch *batch, const struct kv_view *views,
                  uint32_t layer, const float *k, const float *v);
void cpu_attention(struct backend *b, const struct batch *batch, const struct kv_view *views,
                   uint32_t layer, const float *q, const struct attention_args *args, float *out);
void cpu_experts(struct backend *b, const float *x, uint32_t rows, const float *logits,
                 const struct expert_layer *layer, float *y);
void cpu_short_conv(struct backend *b, const struct batch *batch, size_t at, const float *x,
                    const float *w, uint32_t width, uint32_t channels, bool silu, float *y);
void cpu_delta_rule(struct backend *b, const struct batch *batch, size_t at, const float *qkv,
                    const float *beta, const float *a, const struct delta_layer *layer, float *y);

/* ---- products (product.c) -------------------------------------------------------------------- */

bool product_input_init(struct product_input *in, int bits, size_t rows, uint32_t dim) MUST_CHECK;
void product_input_deinit(struct product_input *in);
/* Sets x [rows][k] as the input. Weights that need codes can be multiplied after every row is
 * packed. */
void product_input_set(struct product_input *in, const float *x, uint32_t rows, uint32_t k);
void product_input_pack(const struct cpu_backend *b, struct product_input *in, uint32_t row);
/* Its rows [first, first + rows), which share its memory. */
struct product_input product_input_part(const struct product_input *in, size_t first,
                                        uint32_t rows);
/* Whether matmuls with this type read codes, not floats. */
bool product_takes_codes(enum weight_type t);
/* y[r][i] = row r . w[i] (+ bias[i] if not NULL) for the outputs i of one range; y [rows][w->n],
 * at most limits.rows rows; outputs <= ITEM_OUTPUTS */
void product_range(struct cpu_backend *b, const struct product_input *in, const struct weight *w,
                   uint32_t range, uint32_t outputs, const float *bias, float *y, int worker);

/* ---- memory nodes (nodes.c) ------------------------------------------------------------------ */

/* Ranges of outputs of matrices that are multiplied together, as items of a run: those of the first
 * node, matrix by matrix, then those of the next. */
struct product_items {
    uint32_t n_spans;  /* all that threads read: one cache line with one node */
    struct item_span { /* of one node and matrix */
        uint32_t first_item, matrix, first_range;
    } spans[TOPOLOGY_NODES_MAX * MATMULS_MAX];
    size_t ends[TOPOLOGY_NODES_MAX]; /* [nodes]: items of this node and those before it */
};
struct product_item {
    uint32_t matrix, range;
};
/* outputs: of a range, a divisor of ITEM_OUTPUTS; count <= MATMULS_MAX. */
void product_items_init(const struct cpu_backend *b, struct product_items *items,
                        const struct backend_weight *const *w, uint32_t count, uint32_t outputs);
struct product_item product_item_at(const struct product_items *items, size_t item);

/* Outputs [node_first_output(b, n, i), node_first_output(b, n, i + 1)) of n are node i's. */
uint32_t node_first_output(const struct cpu_backend *b, uint32_t n, int node);
/* Has each node's rows of a matrix in its memory. Nothing with one node. */
void cpu_weight_place(struct cpu_backend *b, const struct weight *w);

/* ---- experts (experts.c) --------------------------------------------------------------------- */

bool experts_init(struct cpu_backend *b) MUST_CHECK;
void experts_deinit(struct cpu_backend *b);

/* ---- centred keys (centre.c) ----------------------------------------------------------------- */

/* The table that backend_reserve_centre made; NULL for NULL. */
const struct centre_table *centre_find(const struct cpu_backend *b, const struct key_centre *c);
void centre_deinit(struct cpu_backend *b);
/* out = k - rope(c, pos) for KV head `head` of `layer`; k, out: [head_dim] */
void centre_take_off(const struct centre_table *t, uint32_t layer, uint32_t head, uint32_t pos,
                     uint32_t head_dim, const float *k, float *out);
/* Computes A and B of packed query rows. t NULL: no centre. */
void centre_pack(const struct centre_table *t, uint32_t layer, uint32_t head,
                 const struct query_rows *q, struct centre_scratch *s);
/* Adds q . rope(c, t) to the scores of packed rows [row, row + rows) with tile number `tile`, which
 * has centred keys. */
void centre_add(const struct kernels *k, const struct centre_table *t, uint32_t tile, uint32_t row,
                uint32_t rows, struct centre_scratch *s, float *scores, size_t stride);

#endif
