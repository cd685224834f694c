// SPDX-License-Identifier: Apache-2.0
// record.cu: a step's operations, recorded, joined and run, from the second time on as one graph.
//
// A step of a language model is hundreds of operations of a few microseconds each. Launched one by
// one they cost more than they compute. So the table's functions only write down what they were
// called with, until somebody waits for the result or touches the device otherwise:
//
//     step_begin   tables -> pinned memory                               step.cu
//     operations   records; their host arrays -> pinned memory, after the tables
//     step_submit  a step like an earlier one:  its graph
//                  else:                        one copy of tables and arrays, then the launches
//
//     records:  ... rms_norm  matmul  rope  rope  kv_store  attention  matmul  add ...
//     launches:    [norm+round product][rope, store       ][attention][round product+add] ...
//
// Where keys are balanced, rope has a launch of its own, and the store's turns queries, too.
//
// A step is like an earlier one if its plan (step.cu: sizes of tables and launches) and all its
// records are the same bytes: then everything that a kernel of it gets is the same, but for what
// the copy brings. A graph is captured when a step comes the second time: prompts of odd lengths
// come once. Plans of few rows are rounded up, so that they come again (GRAPH_ROWS).
//
// Invariants:
//   CUDA-7  Nothing else is enqueued while records wait: whatever uses the stream calls step_submit
//           first (memory.cu's can_work and wait), so that the order is that of the calls.
//   CUDA-5  A graph is a function of addresses and of the matrices' views: graphs_drop forgets all
//           of them when one of these is given back or fixed buffers are made anew.
//   CUDA-8  Operations that are joined have the bits that they have alone: each value has the same
//           operations in the same order.
#include <string.h>

#include "backend/cuda/product.cuh"

struct step_graph {
    step_plan plan;
    op_record *records;
    uint32_t n;
    uint64_t used;        // the time of its last step
    cudaGraphExec_t exec; // NULL: it came once
};

// ---- which operations are one launch ---------------------------------------------------------

static bool feeds(const rms_norm_op &norm, const matmul_op &m) {
    return m.x == norm.y && m.rows == norm.rows && weight_view_of(m.w[0])->k == norm.dim;
}
static bool feeds(const gate_mul_op &gate, const matmul_op &m) {
    return m.x == gate.y && gate.n == (size_t)m.rows * weight_view_of(m.w[0])->k;
}
static bool adds(const matmul_op &m, const add_op &add) {
    return m.count == 1 && add.y == m.y[0] && add.x != m.y[0] && add.x != m.x &&
           add.n == (size_t)m.rows * weight_view_of(m.w[0])->n;
}
static bool gates(const matmul_op &m, const gate_mul_op &gate) {
    return m.count == 2 && gate.gate == m.y[0] && gate.up == m.y[1] && gate.y != m.x &&
           gate.n == (size_t)m.rows * weight_view_of(m.w[0])->n;
}
static bool same_angles(const rope_op &a, const rope_op &b) {
    return a.rows == b.rows && a.head_dim == b.head_dim && a.cos_in == b.cos_in &&
           a.sin_in == b.sin_in && a.n == b.n && a.adjacent == b.adjacent && a.x != b.x;
}

// The product at r[0], with what comes before it and what comes after it. Returns how many records
// from r[0] on were run.
static uint32_t run_product(cuda_backend *b, const op_record *r, uint32_t n,
                            matmul_neighbours with) {
    if (n > 1 && r[1].kind == OP_add && adds(r[0].matmul, r[1].add))
        with.sum = &r[1].add;
    if (n > 1 && r[1].kind == OP_gate_mul && gates(r[0].matmul, r[1].gate_mul) &&
        product_gates(b, r[0].matmul))
        with.gated = &r[1].gate_mul;
    run_matmul(b, r[0].matmul, with);
    return with.sum || with.gated ? 2 : 1;
}

// Runs r[0] and what can be joined with it. Returns how many records that were.
static uint32_t run_some(cuda_backend *b, const op_record *r, uint32_t n) {
    const bool product_next = n > 1 && r[1].kind == OP_matmul;
    if (r->kind == OP_matmul)
        return run_product(b, r, n, {});
    if (r->kind == OP_rms_norm && product_next && feeds(r->rms_norm, r[1].matmul))
        return 1 + run_product(b, r + 1, n - 1, {&r->rms_norm, nullptr, nullptr, nullptr});
    if (r->kind == OP_gate_mul && product_next && feeds(r->gate_mul, r[1].matmul))
        return 1 + run_product(b, r + 1, n - 1, {nullptr, &r->gate_mul, nullptr, nullptr});
    if (r->kind == OP_rope) {
        const bool two = n > 1 && r[1].kind == OP_rope && same_angles(r->rope, r[1].rope);
        if (two && n > 2 && r[2].kind == OP_kv_store &&
            rope_store_fits(b, r->rope, r[1].rope, r[2].kv_store)) {
            run_rope_store(b, r->rope, r[1].rope, r[2].kv_store);
            return 3;
        }
        run_rope(b, r->rope, two ? &r[1].rope : nullptr);
        return two ? 2 : 1;
    }
    if (r->kind == OP_kv_store) {
        const bool attends = n > 1 && r[1].kind == OP_attention &&
                             r[1].attention.group == r->kv_store.group &&
                             r[1].attention.layer == r->kv_store.layer;
        const bool turned = run_kv_store(b, r->kv_store, attends ? &r[1].attention : nullptr);
        if (!turned)
            return 1;
        run_attention(b, r[1].attention, true);
        return 2;
    }
    switch (r->kind) {
    case OP_attention:
        run_attention(b, r->attention, false);
        break;
#define ALONE(name)                                                                                \
    case OP_##name:                                                                                \
        run_##name(b, r->name);                                                                    \
        break;
        ALONE(embed)
        ALONE(rms_norm)
        ALONE(rope_table)
        ALONE(gate_mul)
        ALONE(add)
        ALONE(scale)
        ALONE(gate_rows)
        ALONE(softcap)
        ALONE(rearrange)
        ALONE(gather_rows)
        ALONE(experts)
        ALONE(short_conv)
        ALONE(delta_rule)
#undef ALONE
    case OP_matmul:
    case OP_rope:
    case OP_kv_store:
        break; // above
    }
    return 1;
}

// Tables and arrays to the device, then the kernels.
static void run_step(cuda_backend *b) {
    const step_recorder &s = b->recorder;
    cuda_ok(b, cudaMemcpyAsync(b->dev_tables, b->host_tables, b->step.bytes + s.brought,
                               cudaMemcpyHostToDevice, b->stream));
    for (uint32_t i = 0; i < s.n && cuda_works(b);)
        i += run_some(b, s.records + i, s.n - i);
}

// ---- graphs ----------------------------------------------------------------------------------

static void graph_forget(step_graph *g) {
    if (g->exec)
        (void)cudaGraphExecDestroy(g->exec);
    mem_free(g->records);
    *g = step_graph{};
}

void graphs_drop(cuda_backend *b) {
    for (uint32_t i = 0; i < b->n_graphs; i++)
        graph_forget(&b->graphs[i]);
    mem_free(b->graphs);
    b->graphs = nullptr;
    b->n_graphs = 0;
}

static step_graph *graph_find(cuda_backend *b) {
    const step_recorder &s = b->recorder;
    for (uint32_t i = 0; i < b->n_graphs; i++) {
        step_graph *g = &b->graphs[i];
        if (g->n == s.n && memcmp(&g->plan, &b->step, sizeof b->step) == 0 &&
            memcmp(g->records, s.records, s.n * sizeof *s.records) == 0)
            return g;
    }
    return nullptr;
}

// A place for the step, which came the first time: a new one, or that of the step which did not
// come for the longest time. Without memory there is none, and nothing is remembered.
static void graph_note(cuda_backend *b) {
    const step_recorder &s = b->recorder;
    if (!b->graphs)
        b->graphs = (step_graph *)mem_calloc(GRAPHS_MAX, sizeof *b->graphs);
    op_record *records = (op_record *)mem_alloc(s.n * sizeof *records);
    if (!b->graphs || !records) {
        mem_free(records);
        return;
    }
    step_graph *g = b->graphs;
    if (b->n_graphs < GRAPHS_MAX)
        g += b->n_graphs++;
    else
        for (uint32_t i = 1; i < GRAPHS_MAX; i++)
            g = b->graphs[i].used < g->used ? &b->graphs[i] : g;
    graph_forget(g);
    memcpy(&g->plan, &b->step, sizeof g->plan); // with the bytes between its members
    memcpy(records, s.records, s.n * sizeof *records);
    g->records = records;
    g->n = s.n;
    g->used = s.steps;
}

static void graph_capture(cuda_backend *b, step_graph *g) {
    cudaGraph_t nodes = nullptr;
    if (!cuda_ok(b, cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal)))
        return;
    b->capturing = true;
    run_step(b);
    const cudaError_t e = cudaStreamEndCapture(b->stream, &nodes); // also after an error
    b->capturing = false;
    if (cuda_ok(b, e))
        cuda_ok(b, cudaGraphInstantiate(&g->exec, nodes, 0));
    if (nodes)
        (void)cudaGraphDestroy(nodes);
    b->recorder.counts.captured++;
}

// ---- a step ----------------------------------------------------------------------------------

void step_record(cuda_backend *b) {
    step_recorder *s = &b->recorder;
    s->n = 0;
    s->brought = 0;
    s->steps++;
    s->recording = true;
    if (s->off)
        step_submit(b); // its tables
}

// A submitted step's tables are on the device: what comes after it runs at once.
void step_submit(cuda_backend *b) {
    step_recorder *s = &b->recorder;
    if (!s->recording)
        return;
    s->recording = false;
    if (!cuda_works(b))
        return;
    const bool may_return = s->n > 0 && b->step.rows <= GRAPH_ROWS;
    step_graph *g = may_return ? graph_find(b) : nullptr;
    if (g && !g->exec)
        graph_capture(b, g);
    if (g && cuda_works(b)) {
        g->used = s->steps;
        s->counts.launched++;
        cuda_ok(b, cudaGraphLaunch(g->exec, b->stream));
    } else if (cuda_works(b)) {
        run_step(b);
        if (may_return)
            graph_note(b);
    }
    cuda_ok(b, cudaEventRecord(b->tables_read, b->stream));
}

void record_close(cuda_backend *b) {
    b->recorder.recording = false;
    graphs_drop(b);
    mem_free(b->recorder.records);
    b->recorder.records = nullptr;
    b->recorder.most = 0;
}

// Writes an operation down or, outside a recorded step, runs it.
static void take(cuda_backend *b, const op_record &r) {
    step_recorder *s = &b->recorder;
    if (!cuda_works(b))
        return;
    if (s->recording && s->n == s->most) {
        const uint32_t most = s->most ? 2 * s->most : 512;
        op_record *more = (op_record *)mem_alloc(most * sizeof *more);
        if (more) {
            memcpy(more, s->records, s->n * sizeof *more);
            mem_free(s->records);
            s->records = more;
            s->most = most;
        } else
            step_submit(b); // without memory the rest runs one by one
    }
    if (s->recording)
        s->records[s->n++] = r;
    else
        (void)run_some(b, &r, 1);
}

static op_record record_of(enum op_kind kind) {
    op_record r;
    memset(&r, 0, sizeof r); // also what its kind does not use
    r.kind = kind;
    return r;
}

// ---- host arrays -----------------------------------------------------------------------------

// In a recorded step: after the tables, in the order of the calls, so that a step like it has them
// at the same addresses.
const void *record_bring(cuda_backend *b, const void *host, size_t bytes) {
    step_recorder *s = &b->recorder;
    const size_t at = b->step.bytes + s->brought;
    if (s->recording && b->tables_bytes - at < bytes)
        step_submit(b);
    if (!s->recording)
        return cuda_bring(b, host, bytes);
    memcpy(b->host_tables + at, host, bytes);
    s->brought += round_up(bytes, 16);
    return b->dev_tables + at;
}

// ---- the table's operations ------------------------------------------------------------------

void cuda_embed(struct backend *base, const struct backend_weight *w, const int32_t *tokens,
                uint32_t rows, float *y) {
    cuda_backend *b = cuda_of(base);
    op_record r = record_of(OP_embed);
    if (rows == 0 || !cuda_works(b))
        return;
    r.embed = {w, (const int32_t *)record_bring(b, tokens, rows * sizeof *tokens), rows, y};
    take(b, r);
}

void cuda_rms_norm(struct backend *base, const float *x, const float *gain, uint32_t rows,
                   uint32_t dim, float eps, float *y) {
    op_record r = record_of(OP_rms_norm);
    ASSERT(dim > 0);
    r.rms_norm = {x, gain, rows, dim, eps, y};
    if (rows > 0)
        take(cuda_of(base), r);
}

void cuda_matmul(struct backend *base, const float *x, uint32_t rows,
                 const struct backend_weight *const *w, const float *const *bias, float *const *y,
                 uint32_t count) {
    cuda_backend *b = cuda_of(base);
    op_record r = record_of(OP_matmul);
    ASSERT(count >= 1 && count <= MATMULS_MAX);
    ASSERT(b->reserved || !cuda_works(b));
    if (rows == 0 || !cuda_works(b))
        return;
    r.matmul.x = x;
    r.matmul.rows = rows;
    r.matmul.count = count;
    for (uint32_t i = 0; i < count; i++) {
        const weight_view *v = weight_view_of(w[i]);
        ASSERT(rows <= b->limits.rows && v->k <= b->limits.dim);
        ASSERT(v->k == weight_view_of(w[0])->k);
        r.matmul.w[i] = w[i];
        r.matmul.bias[i] = bias[i];
        r.matmul.y[i] = y[i];
    }
    take(b, r);
}

void cuda_rope_table(struct backend *base, const uint32_t *pos, uint32_t rows,
                     const double *inv_freq, uint32_t n, float scale, float *cos_out,
                     float *sin_out) {
    cuda_backend *b = cuda_of(base);
    op_record r = record_of(OP_rope_table);
    ASSERT(rows <= b->limits.rows && 2 * n <= HEAD_DIM_MAX);
    if (rows == 0 || n == 0 || !cuda_works(b))
        return;
    auto positions = (const uint32_t *)record_bring(b, pos, rows * sizeof *pos);
    auto frequencies = (const double *)record_bring(b, inv_freq, n * sizeof *inv_freq);
    r.rope_table = {positions, rows, frequencies, n, scale, cos_out, sin_out};
    take(b, r);
}

void cuda_rope(struct backend *base, float *x, uint32_t rows, uint32_t heads, uint32_t head_dim,
               const float *cos_in, const float *sin_in, uint32_t n, bool adjacent) {
    cuda_backend *b = cuda_of(base);
    op_record r = record_of(OP_rope);
    ASSERT(rows <= b->limits.rows && 2 * n <= head_dim && 2 * n <= HEAD_DIM_MAX);
    ASSERT((uint64_t)rows * heads <= UINT32_MAX);
    r.rope = {x, rows, heads, head_dim, cos_in, sin_in, n, adjacent};
    if (rows > 0 && heads > 0 && n > 0)
        take(b, r);
}

void cuda_kv_store(struct backend *base, const struct batch *batch, const struct kv_view *views,
                   uint32_t layer, const float *k, const float *v) {
    cuda_backend *b = cuda_of(base);
    op_record r = record_of(OP_kv_store);
    uint32_t group;
    if (!operation_begins(b, batch, views, layer, &group))
        return;
    r.kv_store = {
        group, layer, k, v, centre_find(b, views[0].centre), basis_find(b, views[0].basis)};
    take(b, r);
}

void cuda_attention(struct backend *base, const struct batch *batch, const struct kv_view *views,
                    uint32_t layer, const float *q, const struct attention_args *args, float *out) {
    cuda_backend *b = cuda_of(base);
    op_record r = record_of(OP_attention);
    uint32_t group;
    if (!operation_begins(b, batch, views, layer, &group))
        return;
    // blocks and scratch were made for the limits' heads
    ASSERT(args->heads == b->limits.group[group].heads);
    if ((args->softcap != 0 || args->sinks) && !b->limits.group[group].softcap_or_sinks) {
        kvasir_error err;
        fail(&err, KVASIR_ERR_ARGUMENT,
             "CUDA: attention with %s in layer group %u, which was reserved without",
             args->sinks ? "sinks" : "a soft cap", group);
        cuda_stick(b, &err);
    }
    r.attention = {group,
                   layer,
                   q,
                   args->heads,
                   args->scale,
                   args->softcap,
                   args->sinks,
                   out,
                   centre_find(b, views[0].centre),
                   basis_find(b, views[0].basis)};
    take(b, r);
}

void cuda_gate_mul(struct backend *b, enum gate_kind kind, const float *gate, const float *up,
                   size_t n, float *y) {
    op_record r = record_of(OP_gate_mul);
    ASSERT(kind < GATE_KINDS);
    r.gate_mul = {(uint32_t)kind, gate, up, n, y};
    take(cuda_of(b), r);
}

void cuda_add(struct backend *b, float *x, const float *y, float scale, size_t n) {
    op_record r = record_of(OP_add);
    r.add = {x, y, scale, n};
    take(cuda_of(b), r);
}

void cuda_scale(struct backend *b, float *x, float scale, size_t n) {
    op_record r = record_of(OP_scale);
    r.scale = {x, scale, n};
    take(cuda_of(b), r);
}

void cuda_softcap(struct backend *b, float *x, float cap, size_t n) {
    op_record r = record_of(OP_softcap);
    r.softcap = {x, cap, n};
    take(cuda_of(b), r);
}

void cuda_gate_rows(struct backend *b, float *x, const float *gate, uint32_t rows, uint32_t dim) {
    op_record r = record_of(OP_gate_rows);
    r.gate_rows = {x, gate, rows, dim};
    if (rows > 0 && dim > 0)
        take(cuda_of(b), r);
}

void cuda_rearrange(struct backend *b, uint32_t rows, uint32_t blocks, uint32_t n,
                    const float *from, struct block_strides from_strides, float *to,
                    struct block_strides to_strides) {
    op_record r = record_of(OP_rearrange);
    ASSERT(from_strides.row >= n && to_strides.row >= n && (uint64_t)blocks * n <= UINT32_MAX);
    r.rearrange = {rows, blocks, n, from, from_strides, to, to_strides};
    if (rows > 0 && blocks * n > 0)
        take(cuda_of(b), r);
}

void cuda_gather_rows(struct backend *base, const float *x, const uint32_t *index, uint32_t n,
                      uint32_t dim, float *y) {
    cuda_backend *b = cuda_of(base);
    op_record r = record_of(OP_gather_rows);
    ASSERT(n <= b->limits.rows);
    for (uint32_t i = 0; i < n; i++)
        ASSERT(index[i] < b->limits.rows);
    if (n == 0 || dim == 0 || !cuda_works(b))
        return;
    r.gather_rows = {x, (const uint32_t *)record_bring(b, index, n * sizeof *index), n, dim, y};
    take(b, r);
}

void cuda_experts(struct backend *b, const float *x, uint32_t rows, const float *logits,
                  const struct expert_layer *l, float *y) {
    op_record r = record_of(OP_experts);
    r.experts = {
        x,          rows,         logits,   l->experts,        l->n,         l->top_k, l->gate_bias,
        l->up_bias, l->down_bias, l->scale, (uint32_t)l->gate, l->normalize, y};
    if (rows > 0)
        take(cuda_of(b), r);
}

// False after an error. The step has the states of its sequences.
static bool recurrent_begins(const cuda_backend *b, const batch *batch) {
    if (!cuda_works(b))
        return false;
    ASSERT(b->step.has_states && batch->n_seqs <= b->step.n_seqs);
    return true;
}

void cuda_short_conv(struct backend *base, const struct batch *batch, size_t at, const float *x,
                     const float *w, uint32_t width, uint32_t channels, bool silu, float *y) {
    op_record r = record_of(OP_short_conv);
    ASSERT(width > 0 && channels > 0);
    r.short_conv = {at, x, w, width, channels, silu, y};
    if (recurrent_begins(cuda_of(base), batch))
        take(cuda_of(base), r);
}

void cuda_delta_rule(struct backend *base, const struct batch *batch, size_t at, const float *qkv,
                     const float *beta, const float *a, const struct delta_layer *l, float *y) {
    op_record r = record_of(OP_delta_rule);
    ASSERT(l->key_dim <= HEAD_DIM_MAX && l->key_heads > 0 && l->value_heads > 0);
    r.delta_rule = {at,         qkv,          beta,    a,       l->key_heads,  l->value_heads,
                    l->key_dim, l->value_dim, l->rate, l->bias, l->keys_cycle, y};
    if (recurrent_begins(cuda_of(base), batch))
        take(cuda_of(base), r);
}

// ---- for opcheck -----------------------------------------------------------------------------

void cuda_one_by_one(struct backend *base, bool on) {
    cuda_backend *b = cuda_of(base);
    step_submit(b);
    b->recorder.off = on;
}

void cuda_step_submit(struct backend *b) {
    step_submit(cuda_of(b));
}

struct cuda_graph_counts cuda_graph_counts(const struct backend *b) {
    return ((const cuda_backend *)b)->recorder.counts;
}
