// SPDX-License-Identifier: Apache-2.0
// experts.cu: mixtures of experts. An item is (row, rank): the expert that the row's router chose
// as its rank-th.
//
//     route      a warp for each row: experts in falling order of logits, then their weights
//     products   gate and up of every item, gated(gate) * up, down        product.cu, rows.cu
//     combine    a row's items, weighed and added in order of rank
//
//     chosen, weight   [row][rank]
//     wide             gates [item][expert_dim], then ups likewise; if rows of gate and up
//                      alternate in the matrix: [item][2 expert_dim]. Then what down gives:
//                      [item][dim]
//     hidden           [item][expert_dim]
//
// A layer's matrices are found in tables of views on the device, made at the layer's first call:
// after reserve, but once. That call cannot come inside a capture; the others can.
//
// Invariants:
//   * the order of experts is strict: by logit, NaN first, of equal ones the lower number
//   * an item's values depend on its row and its expert alone, a row's sum on its items alone
//   * all experts of a layer have the same shape and form in each of their matrices
#include <algorithm>

#include "backend/cuda/product.cuh"

enum { EXPERT_MATRICES = 3 }; // gate, up, down

// A layer's matrices. Up's are absent where gate's have its rows.
struct expert_table {
    const struct expert *experts; // whose they are
    uint32_t n;
    weight_view *views;                    // device: [EXPERT_MATRICES][n]
    chosen_products part[EXPERT_MATRICES]; // without biases
    expert_table *next;
};

namespace {

enum { GATE, UP, DOWN, WARP = 32, BLOCK_THREADS = 256 };

// ---- routing ---------------------------------------------------------------------------------

struct route_args {
    const float *logits, *scale;
    uint32_t rows, n, top_k;
    bool normalize;
    uint32_t *chosen;
    float *weight;
};

// Larger for the expert that ranks before; above 0 and below UINT64_MAX.
__device__ __forceinline__ uint64_t rank_key(float logit, uint32_t expert) {
    uint32_t u = __float_as_uint(logit == 0 ? 0.0f : logit);
    u = u >> 31 ? ~u : u | 0x80000000u;
    if (isnan(logit))
        u = UINT32_MAX;
    return (uint64_t)u << 32 | (UINT32_MAX - 1 - expert);
}

__device__ __forceinline__ void choose(const route_args &a, const float *logits, uint32_t lane,
                                       uint32_t *chosen) {
    uint64_t last = UINT64_MAX;
    for (uint32_t rank = 0; rank < a.top_k; rank++) {
        uint64_t best = 0;
        for (uint32_t e = lane; e < a.n; e += WARP) {
            const uint64_t key = rank_key(logits[e], e);
            if (key < last && key > best)
                best = key;
        }
        last = best = warp_max(best);
        if (lane == 0)
            chosen[rank] = UINT32_MAX - 1 - (uint32_t)best;
    }
    __syncwarp(); // every lane sees what lane 0 wrote
}

__global__ void __launch_bounds__(BLOCK_THREADS) route_kernel(route_args a) {
    const uint32_t row = blockIdx.x * (BLOCK_THREADS / WARP) + threadIdx.x / WARP;
    const uint32_t lane = threadIdx.x % WARP;
    kernel_begins();
    if (row >= a.rows) // the whole warp
        return;
    const float *logits = a.logits + (size_t)row * a.n;
    uint32_t *chosen = a.chosen + (size_t)row * a.top_k;
    choose(a, logits, lane, chosen);
    const double most = logits[chosen[0]];
    double sum = 0;
    for (uint32_t i = lane; i < (a.normalize ? a.top_k : a.n); i += WARP)
        sum += exp((double)logits[a.normalize ? chosen[i] : i] - most);
    sum = warp_sum(sum);
    for (uint32_t rank = lane; rank < a.top_k; rank += WARP) {
        const uint32_t e = chosen[rank];
        const float weight = (float)(exp((double)logits[e] - most) / sum);
        a.weight[(size_t)row * a.top_k + rank] = a.scale ? weight * a.scale[e] : weight;
    }
}

// ---- a row's sum -----------------------------------------------------------------------------

// grid: [row][256 values]
__global__ void __launch_bounds__(BLOCK_THREADS)
    combine_kernel(const float *down, const float *weight, uint32_t top_k, uint32_t dim, float *y) {
    const uint32_t i = blockIdx.y * BLOCK_THREADS + threadIdx.x;
    const size_t first = (size_t)blockIdx.x * top_k;
    kernel_begins();
    if (i >= dim)
        return;
    float sum = 0;
    for (uint32_t rank = 0; rank < top_k; rank++)
        sum = fmaf(weight[first + rank], down[(first + rank) * dim + i], sum);
    y[(size_t)blockIdx.x * dim + i] = sum;
}

// ---- a layer's matrices ----------------------------------------------------------------------

const struct backend_weight *matrix_of(const struct expert *e, int part) {
    return part == GATE ? e->gate : part == UP ? e->up : e->down;
}

bool same_shape(const weight_view &a, const weight_view &b) {
    return a.n == b.n && a.k == b.k && a.pairs == b.pairs && a.quads == b.quads &&
           a.group == b.group && a.form == b.form && a.biased == b.biased && a.bf16 == b.bf16 &&
           a.minus_8 == b.minus_8;
}

// Fills views and t->part but for their addresses.
kvasir_status gather_views(expert_table *t, weight_view *views, kvasir_error *err) {
    for (int part = 0; part < EXPERT_MATRICES; part++) {
        if (!matrix_of(&t->experts[0], part))
            continue;
        const weight_view &shape = *weight_view_of(matrix_of(&t->experts[0], part));
        t->part[part].shape = shape;
        for (uint32_t e = 0; e < t->n; e++) {
            const weight_view &v = *weight_view_of(matrix_of(&t->experts[e], part));
            if (!same_shape(v, shape))
                return fail(err, KVASIR_ERR_UNSUPPORTED,
                            "CUDA: experts 0 and %u of a layer have matrices of different types",
                            e);
            views[part * t->n + e] = v;
        }
    }
    return KVASIR_OK;
}

kvasir_status fill_table(cuda_backend *b, expert_table *t, kvasir_error *err) {
    const size_t count = (size_t)EXPERT_MATRICES * t->n;
    weight_view *views = (weight_view *)mem_calloc(count, sizeof *views);
    if (!views)
        return fail(err, KVASIR_ERR_MEMORY, "CUDA: a table of experts: out of memory");
    kvasir_status status = gather_views(t, views, err);
    if (status == KVASIR_OK) {
        t->views = (weight_view *)cuda_alloc(&b->base, count * sizeof *views);
        if (t->views)
            cuda_write(&b->base, t->views, views, count * sizeof *views);
        else
            status = fail(err, KVASIR_ERR_MEMORY, "CUDA: a table of %u experts: no memory", t->n);
    }
    for (int part = 0; part < EXPERT_MATRICES; part++)
        t->part[part].table = t->views + (size_t)part * t->n;
    mem_free(views);
    return status;
}

kvasir_status make_table(cuda_backend *b, const experts_op &op, kvasir_error *err) {
    ASSERT(!b->capturing); // of a step that came before
    expert_table *t = (expert_table *)mem_calloc(1, sizeof *t);
    if (!t)
        return fail(err, KVASIR_ERR_MEMORY, "CUDA: a table of experts: out of memory");
    t->experts = op.experts;
    t->n = op.n;
    t->next = b->experts.tables;
    b->experts.tables = t;
    return fill_table(b, t, err);
}

// NULL after an error.
const expert_table *table_of(cuda_backend *b, const experts_op &op) {
    kvasir_error err;
    const expert_table *t = b->experts.tables;
    while (t && t->experts != op.experts)
        t = t->next;
    if (!t && cuda_works(b)) {
        if (make_table(b, op, &err) != KVASIR_OK)
            cuda_stick(b, &err);
        t = b->experts.tables;
    }
    return cuda_works(b) ? t : nullptr;
}

} // namespace

// ---- scratch ---------------------------------------------------------------------------------

bool experts_open(cuda_backend *b) {
    const backend_limits *l = &b->limits;
    expert_scratch *s = &b->experts;
    const size_t items = (size_t)l->rows * l->top_k;
    if (l->experts == 0)
        return true;
    return device_array(items, &s->chosen) && device_array(items, &s->weight) &&
           device_array(items * std::max(2 * l->expert_dim, l->dim), &s->wide) &&
           device_array(items * l->expert_dim, &s->hidden);
}

void experts_close(cuda_backend *b) {
    expert_scratch *s = &b->experts;
    void *device[] = {s->chosen, s->weight, s->wide, s->hidden};
    for (void *p : device)
        (void)cudaFree(p);
    s->chosen = nullptr;
    s->weight = s->wide = s->hidden = nullptr;
}

void experts_drop_tables(cuda_backend *b) {
    while (b->experts.tables) {
        expert_table *t = b->experts.tables;
        b->experts.tables = t->next;
        (void)cudaFree(t->views);
        mem_free(t);
    }
}

// ---- the operation ---------------------------------------------------------------------------

// gated(gate x) * (up x) of every item, into hidden.
static void gate_and_up(cuda_backend *b, const expert_table *t, const experts_op &op) {
    const expert_scratch &s = b->experts;
    const uint32_t items = op.rows * op.top_k;
    const size_t values = (size_t)items * t->part[DOWN].shape.k;
    const bool in_turn = !op.experts[0].up;
    chosen_products gate = t->part[GATE], up = t->part[UP];
    gate.bias = op.gate_bias;
    up.bias = op.up_bias;
    float *ups = s.wide + values;
    product_chosen(b, &gate, op.x, op.rows, op.top_k, s.chosen, items, s.wide);
    if (!in_turn)
        product_chosen(b, &up, op.x, op.rows, op.top_k, s.chosen, items, ups);
    gate_values(b, (enum gate_kind)op.gate, s.wide, in_turn ? s.wide + 1 : ups, in_turn ? 2 : 1,
                values, s.hidden);
}

void run_experts(cuda_backend *b, const experts_op &op) {
    const expert_table *t = table_of(b, op);
    if (!t)
        return;
    const backend_limits *l = &b->limits;
    const expert_scratch &s = b->experts;
    const uint32_t dim = t->part[GATE].shape.k, expert_dim = t->part[DOWN].shape.k;
    ASSERT(op.rows <= l->rows && op.n <= l->experts && op.n == t->n);
    ASSERT(op.top_k <= l->top_k && op.top_k > 0 && op.top_k <= op.n);
    ASSERT(dim <= l->dim && expert_dim <= l->expert_dim && t->part[DOWN].shape.n == dim);
    ASSERT(t->part[GATE].shape.n == (op.experts[0].up ? expert_dim : 2 * expert_dim));
    const route_args route = {op.logits, op.scale,          op.rows,  op.n,
                              op.top_k,  op.normalize != 0, s.chosen, s.weight};
    cuda_ok(b, launch_early(b, route_kernel, dim3(blocks_of(op.rows, BLOCK_THREADS / WARP)),
                            BLOCK_THREADS, 0, route));
    gate_and_up(b, t, op);
    chosen_products down = t->part[DOWN];
    down.bias = op.down_bias;
    const uint32_t items = op.rows * op.top_k;
    product_chosen(b, &down, s.hidden, items, 1, s.chosen, items, s.wide);
    if (cuda_works(b))
        cuda_ok(b, launch_early(b, combine_kernel, dim3(op.rows, blocks_of(dim, BLOCK_THREADS)),
                                BLOCK_THREADS, 0, (const float *)s.wide, (const float *)s.weight,
                                op.top_k, dim, op.y));
}
