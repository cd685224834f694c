/* SPDX-License-Identifier: Apache-2.0 */
/* nodes.c: several memory nodes (NUMA). The outputs of a matrix are dealt to the nodes, in
 * proportion to their threads; so are its rows, which lie on the node whose threads multiply them
 * first. With one node there is one share, and nothing is moved.
 *
 *     rows of w        | node 0's            | node 1's            |     lie there
 *     items of a run   | w0: node 0's, w1: node 0's | w0: node 1's, w1: node 1's |
 *     threads          | node 0's                   | node 1's                   |
 *
 * Items are numbered by node, so that neighbours stay neighbours. Who computes an item changes no
 * bit: a thread that has nothing left takes items of its own node, then of others (util/threads.c).
 *
 * A mapped file's pages are in the page cache, which has no memory policy: they come to lie
 * where they are first read. So each node's threads read the rows of the node when the matrix is
 * put, and move what lay elsewhere before.
 *
 * Left out: scales that are arrays of their own (MLX folders: a tenth of the bytes), scratch and
 * activations, which are in caches. Pages of the KV cache hold all heads of all layers of a group,
 * so no node can have them: they are interleaved (cpu_arena_create), and attention has no
 * preference.
 */
#include "backend/cpu/cpu_internal.h"
#include "util/node_memory.h"

/* ---- items ----------------------------------------------------------------------------------- */

/* A multiple of ITEM_OUTPUTS, so that the same rows are a node's whatever a range has. */
uint32_t node_first_output(const struct cpu_backend *b, uint32_t n, int node) {
    const uint64_t before = (uint64_t)b->nodes.first[node], threads = (uint64_t)b->threads;
    ASSERT(node <= b->nodes.n && before <= threads);
    return before == threads ? n : (uint32_t)(n * before / threads) / ITEM_OUTPUTS * ITEM_OUTPUTS;
}

/* Ranges of nodes before this one. Only a matrix's last range may be shorter than others. */
static uint32_t ranges_before(const struct cpu_backend *b, uint32_t n, int node, uint32_t outputs) {
    return (node_first_output(b, n, node) + outputs - 1) / outputs;
}

void product_items_init(const struct cpu_backend *b, struct product_items *items,
                        const struct backend_weight *const *w, uint32_t count, uint32_t outputs) {
    size_t n = 0;
    ASSERT(count <= MATMULS_MAX && ITEM_OUTPUTS % outputs == 0);
    items->n_spans = 0;
    for (int node = 0; node < b->nodes.n; node++) {
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t first = ranges_before(b, w[i]->w.n, node, outputs),
                           end = ranges_before(b, w[i]->w.n, node + 1, outputs);
            if (first == end)
                continue;
            items->spans[items->n_spans++] = (struct item_span){(uint32_t)n, i, first};
            n += end - first;
        }
        items->ends[node] = n;
    }
    ASSERT(n <= UINT32_MAX);
}

struct product_item product_item_at(const struct product_items *items, size_t item) {
    uint32_t i = 0;
    while (i + 1 < items->n_spans && item >= items->spans[i + 1].first_item)
        i++;
    const struct item_span *s = &items->spans[i];
    return (struct product_item){s->matrix, s->first_range + (uint32_t)item - s->first_item};
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Bytes that a thread moves at a time. */
enum { PIECE_BYTES = 4 << 20 };

struct move_job {
    const struct cpu_backend *b;
    const struct weight *w;
    size_t row_bytes;
    size_t ends[TOPOLOGY_NODES_MAX]; /* pieces of this node and those before it */
};

static void move_piece(void *ctx, size_t item, int worker) {
    const struct move_job *j = ctx;
    int node = 0;
    (void)worker;
    while (item >= j->ends[node])
        node++;
    const size_t at = (item - (node ? j->ends[node - 1] : 0)) * PIECE_BYTES,
                 first = j->row_bytes * node_first_output(j->b, j->w->n, node) + at,
                 end = j->row_bytes * node_first_output(j->b, j->w->n, node + 1);
    node_memory_move((const uint8_t *)j->w->data + first, min_size(end - first, PIECE_BYTES),
                     j->b->machine.node_number[node]);
}

void cpu_weight_place(struct cpu_backend *b, const struct weight *w) {
    struct move_job j = {
        .b = b, .w = w, .row_bytes = weight_row_bytes(weight_traits_of(w->type), w->k)};
    size_t pieces = 0;
    if (b->nodes.n == 1)
        return;
    for (int node = 0; node < b->nodes.n; node++) {
        const size_t rows = node_first_output(b, w->n, node + 1) - node_first_output(b, w->n, node);
        pieces += (rows * j.row_bytes + PIECE_BYTES - 1) / PIECE_BYTES;
        j.ends[node] = pieces;
    }
    thread_pool_run_on(b->pool, j.ends, move_piece, &j);
}
