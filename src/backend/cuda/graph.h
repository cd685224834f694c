/* SPDX-License-Identifier: Apache-2.0 */
/* What opcheck checks and measures the CUDA backend with. Not part of the contract: only
 * tests/opcheck includes this. Every backend here is one of backend_cuda_create. */
#ifndef KVASIR_CUDA_GRAPH_H
#define KVASIR_CUDA_GRAPH_H

#ifdef __cplusplus
extern "C" {
#endif

#include "backend/backend.h"

/* Operations run as they are called, each with launches of its own (record.cu); false is how it
 * begins: a step's operations are recorded, joined, and run together, from the second time on as
 * one graph. The bits are the same. */
void cuda_one_by_one(struct backend *b, bool on);
/* Hands what was recorded to the device and does not wait. */
void cuda_step_submit(struct backend *b);
/* Since the backend was made. */
struct cuda_graph_counts {
    uint64_t captured, launched; /* launched: with what was just captured */
};
struct cuda_graph_counts cuda_graph_counts(const struct backend *b);

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
