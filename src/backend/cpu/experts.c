/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: each row goes through the few experts that its router chose.
 *
 * Rows are sorted by expert, so that every matrix is read once for all rows that chose it:
 *
 *      router       row 0: e3 e1    row 1: e1 e0    row 2: e3 e0          route, by rank
 *      slots        | e0: row 1, row 2 | e1: row 0, row 1 | e3: row 0, row 2 |   sort_pairs
 *      per slot     gather the row, round it                              gather_item
 *      per expert   and range of outputs: gate and up of its slots        wide_item
 *      per slot     gated(gate) * up, rounded                             hidden_item
 *      per expert   and range of outputs: down of its slots               down_item
 *      per row      its top_k slots, weighed and added in order of rank   combine_row
 *
 * The result of a row depends on its own values and logits alone (BACKEND-1): an output of a matmul
 * does not depend on the other rows of the call, and the sum over a row's experts is in order of
 * rank, not in order of slots.
 *
 * Everything is in scratch that backend_reserve made for limits.rows x limits.top_k slots.
 */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_internal.h"

/* ---- scratch --------------------------------------------------------------------------------- */

bool experts_init(struct cpu_backend *b) {
    const struct backend_limits *l = &b->limits;
    struct expert_scratch *s = &b->experts;
    size_t pairs = (size_t)l->rows * l->top_k;
    uint32_t inputs = l->dim > l->expert_dim ? l->dim : l->expert_dim;
    s->chosen = mem_alloc_aligned(pairs * sizeof *s->chosen);
    s->weight = mem_alloc_aligned(pairs * sizeof *s->weight);
    s->slot_of = mem_alloc_aligned(pairs * sizeof *s->slot_of);
    s->row_of = mem_alloc_aligned(pairs * sizeof *s->row_of);
    s->first = mem_alloc_aligned(((size_t)l->experts + 1) * sizeof *s->first);
    s->active = mem_alloc_aligned(l->experts * sizeof *s->active);
    s->x = mem_alloc_aligned(pairs * l->dim * sizeof *s->x);
    s->wide = mem_alloc_aligned(pairs * 2 * l->expert_dim * sizeof *s->wide);
    s->hidden = mem_alloc_aligned(pairs * l->expert_dim * sizeof *s->hidden);
    return product_input_init(&s->input, b->act_bits, pairs, inputs) && s->chosen && s->weight &&
           s->slot_of && s->row_of && s->first && s->active && s->x && s->wide && s->hidden;
}

void experts_deinit(struct cpu_backend *b) {
    struct expert_scratch *s = &b->experts;
    void *memory[] = {s->chosen, s->weight, s->slot_of, s->row_of, s->first,
                      s->active, s->x,      s->wide,    s->hidden};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        mem_free(memory[i]);
    product_input_deinit(&s->input);
}

/* ---- routing --------------------------------------------------------------------------------- */

struct expert_job {
    struct cpu_backend *b;
    struct expert_scratch *s;
    const struct expert_layer *layer;
    const float *x, *logits;
    float *y;
    uint32_t rows, dim, expert_dim;
    bool wide_codes, down_codes;     /* some matrix that rows chose reads codes */
    struct product_items items;      /* of one expert, in the current matmuls */
    size_t ends[TOPOLOGY_NODES_MAX]; /* items of all that were chosen, as items.ends */
};

/* NaN counts as the largest, so that it is chosen and shows in the result. */
static bool larger(float a, float b) {
    return a > b || (isnan(a) && !isnan(b));
}

/* Whether expert i ranks before expert j: by logit, then by number. This is a strict order even
 * with NaN, so that each expert has exactly one rank. */
static bool before(const float *logits, uint32_t i, uint32_t j) {
    return larger(logits[i], logits[j]) || (i < j && !larger(logits[j], logits[i]));
}

static void choose(const float *logits, uint32_t n, uint32_t top_k, uint32_t *chosen) {
    for (uint32_t rank = 0; rank < top_k; rank++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t e = 0; e < n; e++)
            if ((rank == 0 || before(logits, chosen[rank - 1], e)) &&
                (best == UINT32_MAX || before(logits, e, best)))
                best = e;
        ASSERT(best < n);
        chosen[rank] = best;
    }
}

static void weigh_chosen(const struct expert_layer *l, const float *logits, const uint32_t *chosen,
                         float *weight) {
    double max = logits[chosen[0]], sum = 0;
    for (uint32_t i = 0; i < (l->normalize ? l->top_k : l->n); i++)
        sum += m_exp((double)logits[l->normalize ? chosen[i] : i] - max);
    for (uint32_t rank = 0; rank < l->top_k; rank++) {
        weight[rank] = (float)(m_exp((double)logits[chosen[rank]] - max) / sum);
        if (l->scale)
            weight[rank] *= l->scale[chosen[rank]];
    }
}

static void route_row(void *ctx, size_t row, int worker) {
    (void)worker;
    const struct expert_job *j = ctx;
    const struct expert_layer *l = j->layer;
    const float *logits = j->logits + row * l->n;
    uint32_t *chosen = j->s->chosen + row * l->top_k;
    choose(logits, l->n, l->top_k, chosen);
    weigh_chosen(l, logits, chosen, j->s->weight + row * l->top_k);
}

/* Gives every pair its slot: experts in rising order, rows in order inside each. Returns the number
 * of experts that were chosen. */
static uint32_t sort_pairs(const struct expert_job *j) {
    struct expert_scratch *s = j->s;
    uint32_t n = j->layer->n, top_k = j->layer->top_k, pairs = j->rows * top_k, active = 0;
    memset(s->first, 0, (n + 1) * sizeof *s->first);
    for (uint32_t i = 0; i < pairs; i++)
        s->first[s->chosen[i] + 1]++;
    for (uint32_t e = 0; e < n; e++) {
        if (s->first[e + 1])
            s->active[active++] = e;
        s->first[e + 1] += s->first[e];
    }
    for (uint32_t i = 0; i < pairs; i++) { /* first[e] moves to the end of e's slots */
        s->slot_of[i] = s->first[s->chosen[i]]++;
        s->row_of[s->slot_of[i]] = i / top_k;
    }
    memmove(s->first + 1, s->first, n * sizeof *s->first);
    s->first[0] = 0;
    ASSERT(s->first[n] == pairs && active <= n);
    return active;
}

/* ---- the experts ----------------------------------------------------------------------------- */

static void gather_item(void *ctx, size_t slot, int worker) {
    (void)worker;
    const struct expert_job *j = ctx;
    struct expert_scratch *s = j->s;
    memcpy(s->x + slot * j->dim, j->x + (size_t)s->row_of[slot] * j->dim, j->dim * sizeof *s->x);
    if (j->wide_codes)
        product_input_pack(j->b, &s->input, (uint32_t)slot);
}

/* The expert of a work item, and its slots. */
struct expert_item {
    uint32_t e;
    struct product_item at;
    size_t slot; /* its first */
    const struct expert *expert;
    struct product_input input;
};

/* Sets the items of the matrices that an expert multiplies together. */
static void set_items(struct expert_job *j, const struct backend_weight *const *w, uint32_t count,
                      size_t active) {
    product_items_init(j->b, &j->items, w, count, ITEM_OUTPUTS);
    for (int node = 0; node < j->b->nodes.n; node++)
        j->ends[node] = active * j->items.ends[node];
}

/* A node has its ranges of one expert after the other. */
static struct expert_item find_item(const struct expert_job *j, size_t item) {
    struct expert_scratch *s = j->s;
    int node = 0;
    while (item >= j->ends[node])
        node++;
    const size_t first = node ? j->items.ends[node - 1] : 0, ranges = j->items.ends[node] - first;
    item -= node ? j->ends[node - 1] : 0;
    uint32_t e = s->active[item / ranges], slot = s->first[e];
    DEBUG_ASSERT(slot < s->first[e + 1]);
    return (struct expert_item){.e = e,
                                .at = product_item_at(&j->items, first + item % ranges),
                                .slot = slot,
                                .expert = &j->layer->experts[e],
                                .input =
                                    product_input_part(&s->input, slot, s->first[e + 1] - slot)};
}

static const float *bias_of(const float *bias, uint32_t e, const struct weight *w) {
    return bias ? bias + (size_t)e * w->n : NULL;
}

/* All gates, then all ups, [slot][expert_dim] each. If rows of gate and up alternate in the matrix:
 * [slot][2 expert_dim]. */
static float *ups(const struct expert_job *j) {
    return j->s->wide + (size_t)j->rows * j->layer->top_k * j->expert_dim;
}

static void wide_item(void *ctx, size_t item, int worker) {
    const struct expert_job *j = ctx;
    struct expert_item i = find_item(j, item);
    const struct weight *w = &i.expert->gate->w;
    const float *bias = j->layer->gate_bias;
    float *y = j->s->wide;
    if (i.at.matrix == 1) {
        w = &i.expert->up->w;
        bias = j->layer->up_bias;
        y = ups(j);
    }
    product_range(j->b, &i.input, w, i.at.range, ITEM_OUTPUTS, bias_of(bias, i.e, w),
                  y + i.slot * w->n, worker);
}

static void hidden_item(void *ctx, size_t slot, int worker) {
    (void)worker;
    const struct expert_job *j = ctx;
    uint32_t n = j->expert_dim;
    float *hidden = j->s->hidden + slot * n, *gate = j->s->wide + slot * n, *up = ups(j) + slot * n;
    if (!j->layer->experts[0].up) { /* separate them: ups into hidden, gates into the first half */
        gate = j->s->wide + slot * 2 * n;
        up = hidden;
        for (uint32_t i = 0; i < n; i++) {
            up[i] = gate[2 * i + 1];
            gate[i] = gate[2 * i];
        }
    }
    j->b->kernels.gate_mul[j->layer->gate](gate, up, n, hidden);
    if (j->down_codes)
        product_input_pack(j->b, &j->s->input, (uint32_t)slot);
}

static void down_item(void *ctx, size_t item, int worker) {
    const struct expert_job *j = ctx;
    struct expert_item i = find_item(j, item);
    const struct weight *w = &i.expert->down->w;
    product_range(j->b, &i.input, w, i.at.range, ITEM_OUTPUTS, bias_of(j->layer->down_bias, i.e, w),
                  j->s->x + i.slot * w->n, worker);
}

static void combine_row(void *ctx, size_t row, int worker) {
    (void)worker;
    const struct expert_job *j = ctx;
    float *y = j->y + row * j->dim;
    memset(y, 0, j->dim * sizeof *y);
    for (uint32_t rank = 0; rank < j->layer->top_k; rank++) {
        size_t pair = row * j->layer->top_k + rank;
        j->b->kernels.add(y, j->s->x + (size_t)j->s->slot_of[pair] * j->dim, j->s->weight[pair],
                          j->dim);
    }
}

void cpu_experts(struct backend *base, const float *x, uint32_t rows, const float *logits,
                 const struct expert_layer *layer, float *y) {
    struct cpu_backend *b = cpu_of(base);
    const struct expert *any = &layer->experts[0];
    struct expert_scratch *s = &b->experts;
    struct expert_job j = {.b = b,
                           .s = s,
                           .layer = layer,
                           .x = x,
                           .logits = logits,
                           .y = y,
                           .rows = rows,
                           .dim = any->gate->w.k,
                           .expert_dim = any->down->w.k};
    const struct backend_limits *limits = &b->limits;
    ASSERT(rows <= limits->rows && layer->n <= limits->experts);
    ASSERT(layer->top_k <= limits->top_k && layer->top_k <= layer->n);
    ASSERT(j.dim <= limits->dim && j.expert_dim <= limits->expert_dim);
    uint32_t slots = rows * layer->top_k;
    thread_pool_run(b->pool, rows, route_row, &j);
    size_t active = sort_pairs(&j);
    for (size_t i = 0; i < active; i++) {
        const struct expert *e = &layer->experts[s->active[i]];
        j.wide_codes |=
            product_takes_codes(e->gate->w.type) || (e->up && product_takes_codes(e->up->w.type));
        j.down_codes |= product_takes_codes(e->down->w.type);
    }
    product_input_set(&s->input, s->x, slots, j.dim);
    thread_pool_run(b->pool, slots, gather_item, &j);
    set_items(&j, (const struct backend_weight *[]){any->gate, any->up}, any->up ? 2 : 1, active);
    thread_pool_run_on(b->pool, j.ends, wide_item, &j);
    product_input_set(&s->input, s->hidden, slots, j.expert_dim);
    thread_pool_run(b->pool, slots, hidden_item, &j);
    set_items(&j, &any->down, 1, active);
    thread_pool_run_on(b->pool, j.ends, down_item, &j);
    thread_pool_run(b->pool, rows, combine_row, &j);
}
