/* SPDX-License-Identifier: Apache-2.0 */
/* backend/: the contract between the engine and a device.
 *
 * A backend is a table of operations (struct backend_ops) and plain data. cpu/cpu.h, null/null.h
 * and cuda/cuda.h each declare how one is created; after that every call goes through the table.
 *
 * A step of the model is a list of operations that are enqueued: a call records (or, on the CPU,
 * runs) one operation and returns nothing. Nothing comes back to the host until backend_read. So a
 * call may become a kernel launch of one stream. Everything that an operation needs is in its
 * arguments: plain data, no callbacks, no pointers into the cache's own structures.
 *
 *     memory          who owns it                       how the host names it
 *     buffers         backend_alloc, backend_upload     device pointers (float *), never followed
 *     weights         backend_weight_put                struct backend_weight *
 *     pages, states   the arena (backend_arena_create)  struct backend_arena * and a byte offset;
 *                                                       a page's address counts units of 4 KiB
 *
 * Only a backend turns a handle and an offset into an address. page_tile gives the offset of a
 * tile; nobody else computes it.
 *
 * Errors stick. After the first error of a device nothing runs any more, reads give zeros, and
 * backend_flush and every read return that error. Enqueueing never reports one.
 *
 * Invariants that every backend keeps (same tokens, whatever the cache did):
 *   BACKEND-1  The result of a row depends on that row, its weights and the cache bytes it sees,
 *              never on the other rows of the step, on how a prompt was cut into steps or on the
 *              number of threads.
 *   BACKEND-2  K and V of new tokens are stored before any attention of that layer runs, and
 *              attention reads them back from their pages: a token sees itself as stored. (Of
 *              formats that are encoded when a page is full: as the page's shadow has it, and so
 *              the pages of the exact tail.)
 *   BACKEND-3  What a query at position p sees depends on p only: positions < keep and those in
 *              (p - span, p].
 *   BACKEND-4  Attention reduces inside splits of a fixed length at absolute positions
 *              (SPLIT_TOKENS on CPUs), which are merged in order of position.
 *
 * Matrices are row-major, a row is a token. `float *x [rows][dim]` is dense.
 */
#ifndef KVASIR_BACKEND_H
#define KVASIR_BACKEND_H

#include "backend/pick.h"
#include "backend/shapes.h"

#ifdef __CUDACC__
#define BACKEND_DEVICE __host__ __device__
#else
#define BACKEND_DEVICE
#endif

struct backend;
struct backend_weight; /* a matrix in a backend's own form */
struct backend_arena;  /* the memory that pages and states live in */

enum {
    PAGE_ADDR_UNIT = 4096,  /* a page's address counts these from the arena's start */
    BACKEND_GROUPS_MAX = 8, /* layer groups of a model */
};

/* ---- plain data that cache/ hands to the backend --------------------------------------------- */

/* The basis that rows of a page are in. q . k = (M^T q) . (M^-1 k) for any invertible M, and
 * H H = 1 for an orthonormal Hadamard matrix H, so a basis changes no score and no output, but what
 * errors codes make: spread over all dims, or where queries notice them least. */
enum page_basis {
    BASIS_PLAIN,    /* k, v */
    BASIS_HADAMARD, /* H k, H v */
    BASIS_BALANCED, /* M^-1 k (struct key_basis), H v */
    BASIS_COUNT
};

/* How one page is cut: [layer][kv head][K tile | V tile]. One per
 * (layer group, K format, V format). */
struct page_layout {
    struct tile_layout k, v;
    bool centred;  /* K tiles hold rope(k - c): see struct key_centre */
    uint8_t basis; /* enum page_basis */
    uint32_t kv_heads, layers;
    uint32_t head_bytes;  /* k.bytes + v.bytes */
    uint32_t layer_bytes; /* head_bytes * kv_heads */
    size_t page_bytes;    /* layer_bytes * layers, rounded up to PAGE_ADDR_UNIT */
};

/* centred is false and basis BASIS_PLAIN: whoever hands out the pages sets them. */
void page_layout_init(struct page_layout *l, uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                      struct kv_format k, struct kv_format v);

/* Byte offset of an address in the arena. */
static inline BACKEND_DEVICE size_t page_offset(uint32_t addr) {
    return (size_t)addr * PAGE_ADDR_UNIT;
}
/* Byte offset of a tile from the start of its page. The one place that computes it: a backend whose
 * kernels have a layout of their own (CUDA) passes the same three sizes. */
static inline BACKEND_DEVICE size_t page_tile_at(uint32_t layer_bytes, uint32_t head_bytes,
                                                 uint32_t k_bytes, uint32_t layer, uint32_t head,
                                                 enum tile_kind part) {
    return (size_t)layer * layer_bytes + (size_t)head * head_bytes + (part == TILE_V ? k_bytes : 0);
}
static inline size_t page_tile(const struct page_layout *l, uint32_t layer, uint32_t head,
                               enum tile_kind part) {
    return page_tile_at(l->layer_bytes, l->head_bytes, l->k.bytes, layer, head, part);
}

/* Whether rows are encoded when the page is full (kv_format_whole). Its K and V agree on that. */
static inline bool page_is_whole(const struct page_layout *l) {
    return kv_format_whole(l->k.format);
}

/* One entry of a sequence's page table. */
struct kv_page {
    uint32_t addr;   /* of the arena, in units of PAGE_ADDR_UNIT */
    uint16_t layout; /* index into kv_view.layouts: the format belongs to the page */
    uint16_t reserved;
};

/* Centred keys (docs/design.md). A key has a large constant part c, the same for all tokens of a
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
/* key += sign * rope(c, pos) for one row of one head: 1 adds the centre to a stored row, -1
 * subtracts it. The definition, in double: what a backend stores agrees up to rounding. */
void key_centre_add(const struct key_centre *c, uint32_t layer, uint32_t head, uint32_t pos,
                    double sign, float *key);
/* The middle of a tile, about which the waves are even and odd. */
#define TILE_MIDDLE ((TILE_TOKENS - 1) / 2.0)
/* waves [n][2][64]: cos, then sin of (t - TILE_MIDDLE) w_j for the 64 tokens t of a tile. */
void key_centre_waves(const struct key_centre *c, float *waves);

/* Balanced keys: a basis for each (layer, KV head) of a layer group in which every channel has the
 * same energy in keys and in queries. Matrices are stored input by input, so that lanes are
 * outputs: y[out] = sum over in, in order, of x[in] * matrix[in][out]. */
struct key_basis {
    uint32_t layers, kv_heads, head_dim; /* of the group */
    const float *inverse;                /* [layer][kv head][in][out] of M^-1: for keys */
    const float *forward;                /* [layer][kv head][in][out] of M^T: for queries */
};
/* The matrix of (layer, head) among one of these. */
static inline const float *key_basis_at(const struct key_basis *b, const float *matrices,
                                        uint32_t layer, uint32_t head) {
    const size_t dim = b->head_dim;
    return matrices + ((size_t)layer * b->kv_heads + head) * dim * dim;
}

/* Which row of a page: of K or V, its layer inside the group, KV head and position. */
struct row_place {
    enum tile_kind part;
    uint32_t layer, head, position;
};
/* x [head_dim], decoded from a page of this layout, in the plain basis: k = M k', v = H v'. */
void page_row_to_plain(const struct page_layout *l, const struct key_basis *basis,
                       const struct row_place *at, float *x);
/* The other way: x as it is encoded. */
void page_row_from_plain(const struct page_layout *l, const struct key_basis *basis,
                         const struct row_place *at, float *x);

/* One sequence in one layer group, as a step sees it. Pages that no query of this step or
 * later can see may have been dropped: the table holds page numbers [0, kept_pages) and then
 * [base_page, base_page + n - kept_pages).
 *
 *     number:   0 .. kept-1 |  (dropped)  | base_page ................ newest
 *     pages[]:  0 .. kept-1 |               kept ..................... n-1
 */
struct kv_view {
    struct backend_arena *arena;
    const struct page_layout *layouts; /* of this layer group; all have its heads and head_dim */
    /* Of this layer group, the same for all sequences; NULL if no layout is centred. */
    const struct key_centre *centre;
    /* Likewise; NULL if no layout is BASIS_BALANCED. */
    const struct key_basis *basis;
    const struct kv_page *pages;
    uint32_t n_pages;
    uint32_t kept_pages, base_page;
    /* Shadows of pages that are encoded when they are full: their rows at 16 bits, in the basis of
     * the page. Entry i is that of page number shadow_first + i. There is one for each such page
     * that the step writes to or that a query of it sees exactly: a query sees the page of its own
     * position and those of its exact tail (kv_sees_shadow) as their shadows have them, and the
     * others as they were encoded. */
    const struct kv_page *shadows;
    uint32_t n_shadows, shadow_first, tail_pages;
    /* visibility, see BACKEND-3; span is UINT32_MAX if everything before p is seen */
    uint32_t keep, span;
};

/* Index into view->pages of page `number`, or UINT32_MAX when it was dropped or never taken. */
static inline uint32_t kv_view_index(const struct kv_view *v, uint32_t number) {
    uint32_t i = number < v->kept_pages   ? number
                 : number >= v->base_page ? v->kept_pages + (number - v->base_page)
                                          : UINT32_MAX;
    return i < v->n_pages ? i : UINT32_MAX;
}

/* The first position of the window of a query at p: 0 if it sees everything before it. */
static inline BACKEND_DEVICE uint32_t kv_window_start(uint32_t span, uint32_t p) {
    return span == UINT32_MAX || p < span ? 0 : p + 1 - span;
}

/* The first page of the exact tail of the queries in page `number`: one of those that the first of
 * them sees. */
static inline BACKEND_DEVICE uint32_t kv_tail_first(uint32_t tail_pages, uint32_t span,
                                                    uint32_t number) {
    const uint32_t first = number > tail_pages ? number - tail_pages : 0,
                   window = kv_window_start(span, number * TILE_TOKENS) / TILE_TOKENS;
    return first > window ? first : window;
}

/* The first page whose rows queries in page `from` see at 16 bits, if it is encoded when it is
 * full: a function of these numbers alone. Not a kept page that leaves the window before the last
 * of these queries: it stays, but its shadow goes as others do. */
static inline BACKEND_DEVICE uint32_t kv_shadow_first(uint32_t kept_pages, uint32_t span,
                                                      uint32_t tail_pages, uint32_t from) {
    const uint32_t last = from * TILE_TOKENS + TILE_TOKENS - 1,
                   window = kv_window_start(span, last) / TILE_TOKENS,
                   stays = kept_pages < window ? kept_pages : window,
                   first = kv_tail_first(tail_pages, span, from);
    return first > stays ? first : stays;
}

/* Whether queries in page `from` see those of page `number` so. */
static inline bool kv_sees_shadow(const struct kv_view *v, uint32_t from, uint32_t number) {
    return number >= kv_shadow_first(v->kept_pages, v->span, v->tail_pages, from);
}

/* The shadow of page `number`; NULL: it has none. */
static inline const struct kv_page *kv_view_shadow(const struct kv_view *v, uint32_t number) {
    const uint32_t i = number - v->shadow_first; /* a smaller number wraps round */
    return i < v->n_shadows ? &v->shadows[i] : NULL;
}

/* The recurrent state of one sequence, as a step sees it: the states of all recurrent layers in one
 * extent, which the operations of those layers read and write. It is zeros before position 0. The
 * model decides which layer has which part: operations take the byte at which theirs begins (a
 * multiple of 64). */
struct state_view {
    struct backend_arena *arena;
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
};

/* A page whose rows are decoded, and encoded into another page in another layout. */
struct page_conversion {
    const struct page_layout *from, *to; /* same layers, heads and head_dim */
    uint32_t from_addr, to_addr;         /* different pages; the target is all zeros */
    const struct key_centre *centre;     /* NULL: neither layout is centred */
    const struct key_basis *basis;       /* NULL: neither layout is BASIS_BALANCED */
    uint32_t position, rows;             /* of the page's first row; rows that it holds */
};
/* The definition, between pages in host memory: what the operation of the same name does. Tile by
 * tile through quant/, so the new bytes depend on the old ones alone. Between bases a row is made
 * plain and then brought into the other one; between a centred K tile and one that is not,
 * rope(c, t) of the row's position is added or subtracted while it is plain. A tile that keeps its
 * format and basis is copied, and one of a bit less in the same basis drops the codes' lowest bit
 * (tile_drop_bit). To a page that is encoded whole goes a full one. */
void page_convert(const struct page_conversion *c, const uint8_t *from, uint8_t *to);
/* Of one head of a layer: that of others neither matters nor is touched. */
void page_convert_head(const struct page_conversion *c, uint32_t layer, uint32_t head,
                       const uint8_t *from, uint8_t *to);

/* Makes the slots of a page from `token` on read as zeros. */
void page_clear_tail(struct backend *b, struct backend_arena *a, const struct page_layout *l,
                     uint32_t addr, uint32_t token);

/* ---- experts and recurrent layers ------------------------------------------------------------ */

struct expert {
    const struct backend_weight *gate,
        *up;                           /* [expert_dim][dim]; up NULL: rows of gate are gate, up in
                                          turn */
    const struct backend_weight *down; /* [dim][expert_dim] */
};
struct expert_layer {
    uint32_t n, top_k;                            /* top_k <= n */
    const struct expert *experts;                 /* [n], host memory that stays as it is */
    const float *gate_bias, *up_bias, *down_bias; /* [n][outputs of the matrix]; NULL: none */
    const float *scale; /* [n]: factor of an expert's weight; NULL: ones */
    enum gate_kind gate;
    bool normalize; /* weights are softmax over the chosen, not over all */
};

struct attention_args {
    uint32_t heads; /* query heads */
    float scale;
    float softcap; /* a score x becomes softcap * tanh(x / softcap); 0: no cap */
    const float
        *sinks; /* [heads]: one more score in each head's softmax, without a value; NULL: none */
};

struct block_strides {
    uint32_t row, block; /* in values */
};

struct delta_layer {
    uint32_t key_heads, value_heads, key_dim, value_dim;
    const float *rate, *bias;
    bool keys_cycle;
};

/* ---- what a backend is asked for, and what it can do ----------------------------------------- */

/* The most that operations will be asked for. */
struct backend_limits {
    uint32_t rows;     /* of a step */
    uint32_t seqs;     /* of a step; 0: as many as rows */
    uint32_t dim;      /* inputs of a matmul */
    uint32_t head_dim; /* of attention */
    uint32_t vocab;    /* logits of a row of `pick` */
    /* of op_experts; 0: it is never called */
    uint32_t experts, top_k, expert_dim; /* expert_dim: inputs of an expert's down matrix */
    /* For the tables of a step on a device; the CPU needs none of it. */
    uint64_t pages;  /* entries of all page tables of one layer group in a step, and shadows */
    uint32_t groups; /* layer groups */
    struct backend_group {
        uint32_t heads, kv_heads, head_dim; /* heads: query heads */
        bool softcap_or_sinks;              /* attention may be called with these */
    } group[BACKEND_GROUPS_MAX];
};

/* What a backend is and can do. Constant for its life. */
struct backend_info {
    char name[96];    /* for people: "NVIDIA H200, sm_90, 132 SMs" */
    const char *kind; /* "cpu", "cuda", "null"; with equal kinds, tiers and act_bits, equal bits */
    const char *tier; /* of its kernels: "avx2", "sm_90"; equal ones by cpu_tier_of_bits */
    /* Workers among whom the sequences of a batch are divided, in order, so that their order can
     * balance the load. 1: order makes no difference. */
    uint32_t workers;
    uint32_t rows_good;       /* a step with more rows is hardly faster per row; up to 4096 */
    uint32_t rows_max;        /* of a step */
    int act_bits;             /* of activations in a matmul with quantized weights: 8 or 16 */
    uint32_t logit_rows;      /* rows whose logits are computed at a time */
    uint64_t memory_bytes;    /* free memory of the device; 0: it uses the host's */
    bool pages_without_bytes; /* each page takes one unit of the arena, whatever its size */
    bool gives_pages_back;    /* arena_release gives back the memory of any single page */
};

/* ---- the table ------------------------------------------------------------------------------- */

/* Order: everything that is enqueued, and arena_take, _copy, _write and _release, happens in the
 * order of the calls. Host arguments (struct batch and all it points to, tokens, positions,
 * inv_freq, arrays of pointers) are consumed before a call returns: the caller may change or free
 * them at once. Every batch has at least one sequence and every sequence at least one row. Gains
 * and biases are buffers, from upload.
 *
 * One thread calls. After `reserve`, and once weights and arena are there, nothing allocates on the
 * host (I6).
 *
 * The members up to step_begin are never NULL. An operation below it is NULL when the backend lacks
 * it (backend_absent): model_run_create refuses a model on such a backend. */
struct backend_ops {
    /* ---- life ---- */
    void (*destroy)(struct backend *b); /* frees b; weights and arenas went before */
    void (*info)(const struct backend *b, struct backend_info *out);
    /* Scratch for these: called once, before any operation, so that no operation allocates. */
    kvasir_status (*reserve)(struct backend *b, const struct backend_limits *limits,
                             kvasir_error *err) MUST_CHECK;
    /* Tables for a layer group's centred keys, after reserve and before any operation sees a view
     * with this centre. The centre is borrowed for the backend's life. */
    kvasir_status (*reserve_centre)(struct backend *b, const struct key_centre *c,
                                    kvasir_error *err) MUST_CHECK;
    /* The same of its balanced keys. NULL, the operation: the device reads the host's matrices. */
    kvasir_status (*reserve_basis)(struct backend *b, const struct key_basis *basis,
                                   kvasir_error *err) MUST_CHECK;
    /* KVASIR_ERR_UNSUPPORTED, naming the format, when pages of this layout cannot be used. */
    kvasir_status (*check_layout)(const struct backend *b, const struct page_layout *l,
                                  kvasir_error *err) MUST_CHECK;
    /* Waits for everything enqueued; the first error so far. */
    kvasir_status (*flush)(struct backend *b, kvasir_error *err) MUST_CHECK;

    /* ---- buffers ---- */
    void *(*alloc)(struct backend *b, size_t bytes)MUST_CHECK; /* NULL: no memory is left */
    void (*free)(struct backend *b, void *p);
    /* Constants that operations read as buffers. Returns device memory that holds what the host
     * memory holds now: a copy, or, if the device reads host memory, that memory itself, so the
     * caller keeps it unchanged until upload_free. NULL: no memory is left. */
    const void *(*upload)(struct backend *b, const void *host, size_t bytes);
    void (*upload_free)(struct backend *b, const void *device);
    /* Waits for everything enqueued and copies to host memory: zeros after an error. */
    kvasir_status (*read)(struct backend *b, void *host, const void *device, size_t bytes,
                          kvasir_error *err) MUST_CHECK;
    /* Waits likewise; *out is where the host finds the bytes: this memory itself, or a copy that
     * stays until the next fetch. NULL after an error. */
    kvasir_status (*fetch)(struct backend *b, const void *device, size_t bytes, const void **out,
                           kvasir_error *err) MUST_CHECK;
    /* The other way, in order with everything enqueued: what `host` holds now. */
    void (*write)(struct backend *b, void *device, const void *host, size_t bytes);
    /* Waits as read. Draws tokens from rows of logits [..][limits.vocab], which stay as they are: n
     * picks, at most info.logit_rows, no row twice. NULL, the operation: logits are in the host's
     * memory, or are fetched. */
    kvasir_status (*pick)(struct backend *b, const float *logits, const struct pick *picks,
                          uint32_t n, struct picked *out, kvasir_error *err) MUST_CHECK;

    /* ---- weights ---- */
    /* A matrix as matmul reads it: on the CPU the mapped one, on a device a repacked copy. The
     * caller keeps *w and what it points to unchanged until weight_drop. KVASIR_ERR_UNSUPPORTED:
     * there is no matmul with this type. */
    kvasir_status (*weight_put)(struct backend *b, const struct weight *w,
                                const struct backend_weight **out, kvasir_error *err) MUST_CHECK;
    void (*weight_drop)(struct backend *b, const struct backend_weight *w); /* or NULL */

    /* ---- the host's threads ---- */
    /* Calls fn(ctx, item, worker) for each item, on the threads that operations use, and waits, as
     * thread_pool_run. NULL: the backend has none. */
    void (*host_run)(struct backend *b, size_t items, thread_fn *fn, void *ctx);

    /* ---- the arena: address space now, memory when a page is taken ---- */
    struct backend_arena *(*arena_create)(struct backend *b, size_t bytes); /* NULL: no space */
    void (*arena_destroy)(struct backend *b, struct backend_arena *a);
    /* Before a page is used: it has memory from now on, and reads as zeros. fresh: nothing was
     * stored there since the arena was created or the page released. Memory of the host is zero
     * then, and is touched, so that using the page causes no page fault. */
    void (*arena_take)(struct backend *b, struct backend_arena *a, uint32_t addr, size_t bytes,
                       bool fresh);
    /* Gets memory for a page that is not taken, or is about to be, without reading or writing it,
     * from any thread. NULL: page faults are none of the backend's business. */
    void (*arena_populate)(struct backend *b, struct backend_arena *a, uint32_t addr, size_t bytes);
    /* Where a page is in the host's memory, for threads that read files into it or write it to
     * files; valid while the page is taken. NULL, the operation or what it returns: the host cannot
     * reach pages. */
    uint8_t *(*arena_host)(struct backend *b, struct backend_arena *a, uint32_t addr, size_t bytes);
    /* Gives memory back. The page must be taken again before it is used. */
    void (*arena_release)(struct backend *b, struct backend_arena *a, uint32_t addr, size_t bytes);
    void (*arena_copy)(struct backend *b, struct backend_arena *a, uint32_t to, uint32_t from,
                       size_t bytes);
    /* As read and write; `at` is a byte offset (page_offset, page_tile). */
    kvasir_status (*arena_read)(struct backend *b, const struct backend_arena *a, size_t at,
                                void *host, size_t bytes, kvasir_error *err) MUST_CHECK;
    void (*arena_write)(struct backend *b, struct backend_arena *a, size_t at, const void *host,
                        size_t bytes);
    /* Makes `count` pieces of `width` bytes zeros, `pitch` apart, from byte offset `at` on. */
    void (*arena_zero)(struct backend *b, struct backend_arena *a, size_t at, size_t width,
                       size_t pitch, size_t count);
    void (*page_convert)(struct backend *b, struct backend_arena *a,
                         const struct page_conversion *c);

    /* ---- lanes: copies of pages by other threads, beside the operations. All of these are NULL if
     * arena_host is not: then threads copy by themselves. ---- */
    /* Host memory that the device reads and writes at full speed. Slow to get, and never swapped.
     * From any thread. NULL: no memory is left. */
    void *(*pinned_alloc)(struct backend *b, size_t bytes)MUST_CHECK;
    void (*pinned_free)(struct backend *b, void *p); /* or NULL */
    /* What the copies of one thread go through, at most one thread at a time. NULL: no memory. */
    struct backend_lane *(*lane_create)(struct backend *b)MUST_CHECK;
    void (*lane_destroy)(struct backend *b,
                         struct backend_lane *l); /* or NULL; nothing is copied */
    /* By whoever calls the operations: copies that lanes begin from now on come after all that was
     * enqueued so far. What is enqueued later does not wait for lanes: it must not use what they
     * write before lane_wait has returned, nor write what they read. */
    void (*lanes_follow)(struct backend *b);
    /* Before lanes write all of a page: it has memory from now on, and holds anything. */
    void (*arena_map)(struct backend *b, struct backend_arena *a, uint32_t addr, size_t bytes);
    /* Begin to copy to or from a part of a page that is taken until lane_wait returns; `at` is a
     * byte offset. host: of pinned_alloc. */
    void (*lane_put)(struct backend_lane *l, struct backend_arena *a, size_t at, const void *host,
                     size_t bytes);
    void (*lane_get)(struct backend_lane *l, const struct backend_arena *a, size_t at, void *host,
                     size_t bytes);
    /* Waits for the lane's copies, asleep. False: one of them, now or earlier, has failed. */
    bool (*lane_wait)(struct backend_lane *l);

    /* ---- a step ---- */
    /* Before the operations of a step, once: the batch that kv_store, attention, short_conv and
     * delta_rule are called with until the next step begins, whose tables a device takes here in
     * one copy. batch->views is [groups][n_seqs], groups the model's layer groups. A batch that the
     * backend cannot run is an error that sticks. */
    void (*step_begin)(struct backend *b, const struct batch *batch, uint32_t groups);

    /* ---- operations: BACKEND_OPERATIONS lists them ---- */
    /* y[row] = weight row tokens[row], in float32. */
    void (*embed)(struct backend *b, const struct backend_weight *w, const int32_t *tokens,
                  uint32_t rows, float *y);
    /* y = x / sqrt(mean(x^2) + eps) * gain, over each `dim` values; x is [rows][dim]; y may be x.
     * gain is [dim] float32; NULL: ones. */
    void (*rms_norm)(struct backend *b, const float *x, const float *gain, uint32_t rows,
                     uint32_t dim, float eps, float *y);
    /* Several matrix products of the same input: y[i] = x . w[i]^T (+ bias[i] if not NULL). x
     * [rows][k], y[i] [rows][outputs of w[i]]. Activations are rounded once for all of them if a
     * weight's type asks for it. count <= MATMULS_MAX. */
    void (*matmul)(struct backend *b, const float *x, uint32_t rows,
                   const struct backend_weight *const *w, const float *const *bias, float *const *y,
                   uint32_t count);
    /* cos, sin of pos[row] * inv_freq[i] as float32, [rows][n]; inv_freq is host memory, [n]. */
    void (*rope_table)(struct backend *b, const uint32_t *pos, uint32_t rows,
                       const double *inv_freq, uint32_t n, float scale, float *cos_out,
                       float *sin_out);
    /* Rotates x [rows][heads][head_dim] in place: the first 2*n dims of each head. Pairs are
     * (i, i + n) in the result; `adjacent` says that the input holds them as (2i, 2i+1), as GGUF's
     * llama arch orders the rows of wq and wk. */
    void (*rope)(struct backend *b, float *x, uint32_t rows, uint32_t heads, uint32_t head_dim,
                 const float *cos_in, const float *sin_in, uint32_t n, bool adjacent);
    /* Encodes K and V of every row of the batch into its page, or into the page's shadow, and from
     * there into the page with the row that fills it. k, v: [rows][kv_heads][head_dim].
     * layer counts inside the group; views is this group's [n_seqs]. */
    void (*kv_store)(struct backend *b, const struct batch *batch, const struct kv_view *views,
                     uint32_t layer, const float *k, const float *v);
    /* out[row][head] = softmax(scale * q . K) V over what the row sees.
     * q, out: [rows][heads][head_dim]. */
    void (*attention)(struct backend *b, const struct batch *batch, const struct kv_view *views,
                      uint32_t layer, const float *q, const struct attention_args *args,
                      float *out);
    /* y = gated(gate) * up, elementwise over n values; y may be gate or up. If they are the two
     * outputs of the matmul before it, the one that is not y is undefined after it. */
    void (*gate_mul)(struct backend *b, enum gate_kind kind, const float *gate, const float *up,
                     size_t n, float *y);
    void (*add)(struct backend *b, float *x, const float *y, float scale,
                size_t n);                                             /* x += scale y */
    void (*scale)(struct backend *b, float *x, float scale, size_t n); /* x *= scale */
    /* x[row] *= sigmoid(gate[row]); x is [rows][dim]. */
    void (*gate_rows)(struct backend *b, float *x, const float *gate, uint32_t rows, uint32_t dim);
    void (*softcap)(struct backend *b, float *x, float cap, size_t n); /* x = cap tanh(x / cap) */
    /* Blocks of n values from one place to another that does not overlap it:
     * to[row * to_row + block * to_block + i] = from[row * from_row + block * from_block + i]. */
    void (*rearrange)(struct backend *b, uint32_t rows, uint32_t blocks, uint32_t n,
                      const float *from, struct block_strides from_strides, float *to,
                      struct block_strides to_strides);
    /* y[i] = x[index[i]], rows of dim. */
    void (*gather_rows)(struct backend *b, const float *x, const uint32_t *index, uint32_t n,
                        uint32_t dim, float *y);
    /* Each row goes through the top_k experts of its largest logits (of equal ones the lower
     * number):
     *     y[row] = sum of  w_e * down_e(gated(gate_e x) * up_e x)  in falling order of logits,
     * w = softmax(logits[row]) times scale. logits: [rows][n], of the router. An expert's matrices
     * are read once for all rows that chose it. y may not be x. */
    void (*experts)(struct backend *b, const float *x, uint32_t rows, const float *logits,
                    const struct expert_layer *layer, float *y);

    /* Recurrent layers: rows of a sequence go in order of position, one by one, also when a step
     * has many (I1). `at`: byte of the state where the layer's part begins. */

    /* y[row][c] = sum over j < width of w[j][c] * x[row - (width - 1) + j][c], in order of j, then
     * silu if asked for. Inputs before the step's first row of a sequence are the state,
     * float32 [width - 1][channels], oldest first. w: [width][channels]. y may be x. */
    void (*short_conv)(struct backend *b, const struct batch *batch, size_t at, const float *x,
                       const float *w, uint32_t width, uint32_t channels, bool silu, float *y);
    /* The gated delta rule. A value head h has the key head h / (value_heads / key_heads), or if
     * keys_cycle h % key_heads, and the state S, float32 [value_heads][key_dim][value_dim]:
     *     q = q / sqrt(sum q^2 + 1e-6) / sqrt(key_dim),  k = k / sqrt(sum k^2 + 1e-6)
     *     S = S * exp(-rate[h] * softplus(a + bias[h]))
     *     S = S + k (sigmoid(beta) (v - S^T k))^T
     *     y = S^T q
     * key_dim is at most HEAD_DIM_MAX.
     * qkv: [rows][q: key_heads * key_dim | k: the same | v: value_heads * value_dim]
     * beta, a: [rows][value_heads]; rate, bias: [value_heads]; y: [rows][value_heads][value_dim] */
    void (*delta_rule)(struct backend *b, const struct batch *batch, size_t at, const float *qkv,
                       const float *beta, const float *a, const struct delta_layer *layer,
                       float *y);
};

enum { MATMULS_MAX = 4 }; /* of one input */

/* Each backend's own struct begins with this one. */
struct backend {
    const struct backend_ops *ops;
};

/* clang-format off */
/* What a backend must have, apart from flush, buffers and weights (host.h has the host's);
 * reserve_basis, pick, arena_populate and host_run may be missing, and arena_host or the lanes. */
#define BACKEND_MEMBERS(X)                                                                         \
    X(destroy) X(info) X(reserve) X(reserve_centre) X(check_layout) X(arena_create)                \
    X(arena_destroy) X(arena_take) X(arena_release) X(arena_copy) X(arena_read) X(arena_write)     \
    X(arena_zero) X(page_convert) X(step_begin)
#define BACKEND_OPERATIONS(X)                                                                      \
    X(embed) X(rms_norm) X(matmul) X(rope_table) X(rope) X(kv_store) X(attention) X(gate_mul)     \
    X(add) X(scale) X(gate_rows) X(softcap) X(rearrange) X(gather_rows) X(experts) X(short_conv)   \
    X(delta_rule)
/* All or none. */
#define LANE_MEMBERS(X)                                                                            \
    X(pinned_alloc) X(pinned_free) X(lane_create) X(lane_destroy) X(lanes_follow) X(arena_map)     \
    X(lane_put) X(lane_get) X(lane_wait)
/* clang-format on */

/* The name of the i-th operation that b lacks; NULL: it lacks fewer. */
const char *backend_absent(const struct backend *b, uint32_t i);

/* ---- calls through the table, which documents them ------------------------------------------- */

static inline void backend_destroy(struct backend *b) { /* or NULL */
    if (b)
        b->ops->destroy(b);
}

#define BACKEND_CALL(name, b, ...) ((b)->ops->name((b), __VA_ARGS__))

#define backend_info(b, ...)           BACKEND_CALL(info, b, __VA_ARGS__)
#define backend_reserve(b, ...)        BACKEND_CALL(reserve, b, __VA_ARGS__)
#define backend_reserve_centre(b, ...) BACKEND_CALL(reserve_centre, b, __VA_ARGS__)
#define backend_reserve_basis(b, ...)  BACKEND_CALL(reserve_basis, b, __VA_ARGS__)
#define backend_check_layout(b, ...)   BACKEND_CALL(check_layout, b, __VA_ARGS__)
#define backend_flush(b, ...)          BACKEND_CALL(flush, b, __VA_ARGS__)
#define backend_alloc(b, ...)          BACKEND_CALL(alloc, b, __VA_ARGS__)
#define backend_free(b, ...)           BACKEND_CALL(free, b, __VA_ARGS__)
#define backend_upload(b, ...)         BACKEND_CALL(upload, b, __VA_ARGS__)
#define backend_upload_free(b, ...)    BACKEND_CALL(upload_free, b, __VA_ARGS__)
#define backend_read(b, ...)           BACKEND_CALL(read, b, __VA_ARGS__)
#define backend_fetch(b, ...)          BACKEND_CALL(fetch, b, __VA_ARGS__)
#define backend_write(b, ...)          BACKEND_CALL(write, b, __VA_ARGS__)
#define backend_pick(b, ...)           BACKEND_CALL(pick, b, __VA_ARGS__)
#define backend_weight_put(b, ...)     BACKEND_CALL(weight_put, b, __VA_ARGS__)
#define backend_weight_drop(b, ...)    BACKEND_CALL(weight_drop, b, __VA_ARGS__)
#define backend_arena_create(b, ...)   BACKEND_CALL(arena_create, b, __VA_ARGS__)
#define backend_arena_destroy(b, ...)  BACKEND_CALL(arena_destroy, b, __VA_ARGS__)
#define backend_arena_take(b, ...)     BACKEND_CALL(arena_take, b, __VA_ARGS__)
#define backend_arena_populate(b, ...) BACKEND_CALL(arena_populate, b, __VA_ARGS__)
#define backend_arena_map(b, ...)      BACKEND_CALL(arena_map, b, __VA_ARGS__)
#define backend_arena_release(b, ...)  BACKEND_CALL(arena_release, b, __VA_ARGS__)
#define backend_arena_copy(b, ...)     BACKEND_CALL(arena_copy, b, __VA_ARGS__)
#define backend_arena_read(b, ...)     BACKEND_CALL(arena_read, b, __VA_ARGS__)
#define backend_arena_write(b, ...)    BACKEND_CALL(arena_write, b, __VA_ARGS__)
#define backend_arena_zero(b, ...)     BACKEND_CALL(arena_zero, b, __VA_ARGS__)
#define backend_page_convert(b, ...)   BACKEND_CALL(page_convert, b, __VA_ARGS__)
#define backend_step_begin(b, ...)     BACKEND_CALL(step_begin, b, __VA_ARGS__)

#define op_embed(b, ...)       BACKEND_CALL(embed, b, __VA_ARGS__)
#define op_rms_norm(b, ...)    BACKEND_CALL(rms_norm, b, __VA_ARGS__)
#define op_matmul(b, ...)      BACKEND_CALL(matmul, b, __VA_ARGS__)
#define op_rope_table(b, ...)  BACKEND_CALL(rope_table, b, __VA_ARGS__)
#define op_rope(b, ...)        BACKEND_CALL(rope, b, __VA_ARGS__)
#define op_kv_store(b, ...)    BACKEND_CALL(kv_store, b, __VA_ARGS__)
#define op_attention(b, ...)   BACKEND_CALL(attention, b, __VA_ARGS__)
#define op_gate_mul(b, ...)    BACKEND_CALL(gate_mul, b, __VA_ARGS__)
#define op_add(b, ...)         BACKEND_CALL(add, b, __VA_ARGS__)
#define op_scale(b, ...)       BACKEND_CALL(scale, b, __VA_ARGS__)
#define op_gate_rows(b, ...)   BACKEND_CALL(gate_rows, b, __VA_ARGS__)
#define op_softcap(b, ...)     BACKEND_CALL(softcap, b, __VA_ARGS__)
#define op_rearrange(b, ...)   BACKEND_CALL(rearrange, b, __VA_ARGS__)
#define op_gather_rows(b, ...) BACKEND_CALL(gather_rows, b, __VA_ARGS__)
#define op_experts(b, ...)     BACKEND_CALL(experts, b, __VA_ARGS__)
#define op_short_conv(b, ...)  BACKEND_CALL(short_conv, b, __VA_ARGS__)
#define op_delta_rule(b, ...)  BACKEND_CALL(delta_rule, b, __VA_ARGS__)

#endif
