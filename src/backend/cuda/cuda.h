/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend: the operations of backend.h that a model's attention and products need, over
 * pages in the one storage order. No model runs on it yet: opcheck does, and proves the contract.
 *
 * One stream. Every call enqueues and returns, but for those that say that they wait. A step is
 *
 *     cuda_step_begin         the batch and its page tables, one copy into fixed device buffers
 *     cuda_kv_store, cuda_attention, cuda_product, ...        read them from there
 *
 * so a step that was captured once (cuda_capture_begin .. _end) is replayed for any other batch of
 * the same bucket: cuda_step_update writes what the copy reads, cuda_graph_launch repeats the rest.
 *
 * Errors of the device stick: after the first one every call does nothing, and cuda_status and
 * cuda_read report it.
 *
 * Built by `make cuda` where nvcc is; no other build has a CUDA table.
 */
#ifndef KVASIR_CUDA_H
#define KVASIR_CUDA_H

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cuda_backend;
struct cuda_weight; /* a matrix in device memory, in the order that the product reads */
struct cuda_graph;

enum { CUDA_GROUPS_MAX = 8, CUDA_LAYOUTS_MAX = 8 }; /* layer groups; page layouts of a group */

/* What fixed buffers are made for; a step within these allocates nothing. */
struct cuda_limits {
    uint32_t max_rows, max_seqs; /* of a step */
    uint32_t max_pages;          /* entries of all page tables of one layer group in a step */
    uint32_t max_inputs;         /* of a product; its rows are max_rows */
    uint32_t groups;             /* layer groups */
    struct {
        uint32_t heads, kv_heads, head_dim; /* query heads; 64, 128 or 256 dims */
    } group[CUDA_GROUPS_MAX];
    /* A sequence with at least this many rows in a step goes to the prefill kernel, any other to
     * the decode kernel: the bits are the same. 0: what is fast. */
    uint32_t prefill_rows;
};

/* ---- life ------------------------------------------------------------------------------------ */

/* KVASIR_ERR_UNSUPPORTED where there is no device of compute capability 8.0 or newer. */
kvasir_status cuda_create(struct cuda_backend **out, kvasir_error *err) MUST_CHECK;
void cuda_destroy(struct cuda_backend *b);
/* "NVIDIA H200, sm_90, 132 SMs" */
const char *cuda_name(const struct cuda_backend *b);
kvasir_status cuda_reserve(struct cuda_backend *b, const struct cuda_limits *l,
                           kvasir_error *err) MUST_CHECK;
/* Waits for all that was enqueued; the first error of the device so far. */
kvasir_status cuda_status(struct cuda_backend *b, kvasir_error *err) MUST_CHECK;

/* ---- memory ---------------------------------------------------------------------------------- */

void *cuda_alloc(struct cuda_backend *b, size_t bytes) MUST_CHECK; /* NULL: none left */
void cuda_free(struct cuda_backend *b, void *p);                   /* waits */
/* In order with the operations; host memory is consumed before the call returns. */
void cuda_upload(struct cuda_backend *b, void *device, const void *host, size_t bytes);
/* Waits. */
kvasir_status cuda_read(struct cuda_backend *b, void *host, const void *device, size_t bytes,
                        kvasir_error *err) MUST_CHECK;

/* The arena: address space now, memory in units of 2 MiB when cuda_arena_take comes to them;
 * release gives whole units back (and waits). */
void *cuda_arena_reserve(struct cuda_backend *b, size_t bytes) MUST_CHECK;
void cuda_arena_unreserve(struct cuda_backend *b, void *arena, size_t bytes);
void cuda_arena_release(struct cuda_backend *b, void *at, size_t bytes);
void cuda_arena_take(struct cuda_backend *b, void *at, size_t bytes);
void cuda_arena_copy(struct cuda_backend *b, void *to, const void *from, size_t bytes);

/* Q4_0 or AFFINE4 (group 32, 64 or 128, scales f16 or bf16). Copied, and put into the order that
 * the product reads. */
kvasir_status cuda_weight_create(struct cuda_backend *b, const struct weight *w,
                                 struct cuda_weight **out, kvasir_error *err) MUST_CHECK;
void cuda_weight_destroy(struct cuda_backend *b, struct cuda_weight *w);

/* ---- a step ---------------------------------------------------------------------------------- */

/* Checks the batch against the limits and enqueues the copy of its tables. batch->views is
 * [groups][n_seqs]. Formats: f16, bf16, and affine of 8, 4 or 2 bits (K: 8 or 4) with groups of 32
 * or 64; KVASIR_ERR_UNSUPPORTED names another. */
kvasir_status cuda_step_begin(struct cuda_backend *b, const struct batch *batch,
                              kvasir_error *err) MUST_CHECK;

/* op_kv_store and op_attention of backend.h, of the batch that the step began with; views point
 * into batch->views, heads is the limits' of that group. The arithmetic: arithmetic.cuh. */
void cuda_kv_store(struct cuda_backend *b, const struct batch *batch, const struct kv_view *views,
                   uint32_t layer, const float *k, const float *v);
void cuda_attention(struct cuda_backend *b, const struct batch *batch, const struct kv_view *views,
                    uint32_t layer, const float *q, uint32_t heads, float scale, float *out);
/* y = x . w^T (+ bias where not NULL); x [rows][k], y [rows][n]. act_bits 8 or 16 as in backend.h
 * (16: one 15-bit term). */
void cuda_product(struct cuda_backend *b, const float *x, uint32_t rows,
                  const struct cuda_weight *w, const float *bias, int act_bits, float *y);

/* ---- a step as a graph ----------------------------------------------------------------------- */

/* Between begin and end, operations are recorded, not run: cuda_step_begin first. */
void cuda_capture_begin(struct cuda_backend *b);
kvasir_status cuda_capture_end(struct cuda_backend *b, struct cuda_graph **out,
                               kvasir_error *err) MUST_CHECK;
/* What the next launch's copy takes. KVASIR_ERR_ARGUMENT where the batch is not of the bucket that
 * was captured (more items than its launches have blocks, other formats). */
kvasir_status cuda_step_update(struct cuda_backend *b, struct cuda_graph *g,
                               const struct batch *batch, kvasir_error *err) MUST_CHECK;
void cuda_graph_launch(struct cuda_backend *b, struct cuda_graph *g);
void cuda_graph_destroy(struct cuda_graph *g);

/* ---- time ------------------------------------------------------------------------------------ */

/* Microseconds of device time from before to after what enqueue(ctx) enqueues `times` times. Waits.
 */
double cuda_time_us(struct cuda_backend *b, void (*enqueue)(void *ctx), void *ctx, int times);
/* Bytes read from device memory per second: a kernel that reads `bytes` of a buffer and no more. */
double cuda_read_ceiling(struct cuda_backend *b, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
