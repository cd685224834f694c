/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of the CUDA backend as graphs, and what opcheck measures with. Not part of the contract:
 * only tests/opcheck includes this. Every backend here is one of backend_cuda_create.
 *
 * A step that was captured once is replayed for any other batch of the same bucket: its tables are
 * the only thing that changes, and they come with one copy.
 *
 *     cuda_capture_begin, backend_step_begin, op_..., cuda_capture_end      once
 *     cuda_step_update, cuda_graph_launch                                   for each step
 */
#ifndef KVASIR_CUDA_GRAPH_H
#define KVASIR_CUDA_GRAPH_H

#ifdef __cplusplus
extern "C" {
#endif

#include "backend/backend.h"

struct cuda_graph;

/* Between begin and end, operations are recorded, not run. backend_step_begin comes first. */
void cuda_capture_begin(struct backend *b);
kvasir_status cuda_capture_end(struct backend *b, struct cuda_graph **out,
                               kvasir_error *err) MUST_CHECK;
/* Sets what the next launch's copy takes. KVASIR_ERR_ARGUMENT: the batch does not fit the bucket
 * that was captured (more items than its launches have blocks, other formats). The graph keeps its
 * last tables then; this error does not stick. */
kvasir_status cuda_step_update(struct backend *b, struct cuda_graph *g, const struct batch *batch,
                               kvasir_error *err) MUST_CHECK;
void cuda_graph_launch(struct backend *b, struct cuda_graph *g);
void cuda_graph_destroy(struct cuda_graph *g);

/* A sequence with at least this many rows in a step goes to the prefill kernel, any other to the
 * decode kernel: the bits are the same. 0: what is fast. Reserves again, with the last limits. */
kvasir_status cuda_prefill_rows(struct backend *b, uint32_t rows, kvasir_error *err) MUST_CHECK;

/* Microseconds of device time that enqueue(ctx), called `times` times, takes. Waits. */
double cuda_time_us(struct backend *b, void (*enqueue)(void *ctx), void *ctx, int times);
/* Bytes per second that a kernel reads which does nothing else, over a buffer of `bytes`. Waits. */
double cuda_read_ceiling(struct backend *b, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
