// SPDX-License-Identifier: Apache-2.0
// graph.cu: a step that is captured once and replayed (graph.h). step.cu writes its tables.
//
//   CUDA-5  host_tables hold the tables that the next copy takes: after cuda_capture_end the
//           captured step's, else those of the last step_begin or cuda_step_update. A graph runs
//           only over its own (b->written).
#include "backend/cuda/internal.cuh"

void cuda_capture_begin(struct backend *base) {
    cuda_backend *b = cuda_of(base);
    ASSERT(!b->capturing);
    if (!cuda_works(b))
        return;
    // The captured step's tables are written during the capture, when no event may be waited for.
    cuda_ok(b, cudaEventSynchronize(b->tables_read));
    if (cuda_ok(b, cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal))) {
        b->capturing = true;
        b->captured_step = false;
    }
}

static cuda_graph *graph_make(cuda_backend *b, cudaGraph_t nodes) {
    cuda_graph *g = (cuda_graph *)mem_calloc(1, sizeof *g);
    if (!g)
        return nullptr;
    g->reserved = b->reserved_times;
    g->step = b->step;
    if (cuda_ok(b, cudaGraphInstantiate(&g->exec, nodes, 0)))
        cuda_ok(b, cudaGraphUpload(g->exec, b->stream)); // else the first launch would do it
    return g;
}

kvasir_status cuda_capture_end(struct backend *base, struct cuda_graph **out, kvasir_error *err) {
    cuda_backend *b = cuda_of(base);
    *out = nullptr;
    cudaGraph_t nodes = nullptr;
    if (b->capturing) { // also after an error: the stream must leave the capture
        cudaError_t e = cudaStreamEndCapture(b->stream, &nodes);
        b->capturing = false;
        cuda_ok(b, e);
    } else if (cuda_works(b)) {
        return fail(err, KVASIR_ERR_ARGUMENT, "CUDA: the end of a capture that did not begin");
    }
    kvasir_status status = cuda_status(b, err);
    cuda_graph *g = nullptr;
    if (status == KVASIR_OK && !b->captured_step)
        status = fail(err, KVASIR_ERR_ARGUMENT, "CUDA: a graph without a step");
    if (status == KVASIR_OK && !(g = graph_make(b, nodes)))
        status = fail(err, KVASIR_ERR_MEMORY, "CUDA: a graph: out of memory");
    if (status == KVASIR_OK)
        status = cuda_status(b, err);
    if (nodes)
        (void)cudaGraphDestroy(nodes);
    if (status != KVASIR_OK) {
        cuda_graph_destroy(g);
        return status;
    }
    b->written = g;
    *out = g;
    return KVASIR_OK;
}

void cuda_graph_launch(struct backend *base, struct cuda_graph *g) {
    cuda_backend *b = cuda_of(base);
    ASSERT(!b->capturing);
    if (!cuda_works(b))
        return;
    // CUDA-5: the tables of another step would send its kernels through other arrays' bytes.
    ASSERT(b->written == g && g->reserved == b->reserved_times);
    cuda_ok(b, cudaGraphLaunch(g->exec, b->stream));
    cuda_ok(b, cudaEventRecord(b->tables_read, b->stream));
}

void cuda_graph_destroy(struct cuda_graph *g) {
    if (!g)
        return;
    if (g->exec)
        (void)cudaGraphExecDestroy(g->exec);
    mem_free(g);
}
