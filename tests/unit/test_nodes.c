/* SPDX-License-Identifier: Apache-2.0 */
/* Several memory nodes, on machines that are not at hand: which node each thread is of, whose work
 * it turns to, which items and which rows of a matrix are a node's, what is moved where. Every item
 * is computed once, and to the same bits as on one node. What is asked of the system is recorded by
 * the linker's wrappers. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu_internal.h"
#include "util/node_memory.h"

#include "random_weights.h"

#include <cmocka.h> /* after util.h, which defines a macro `fail` */

static kvasir_error err;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

/* ---- machines -------------------------------------------------------------------------------- */

/* Cores of each node; their CPUs do not exist, so that nothing is bound. */
struct machine {
    int nodes, cores[4], threads;
};
static const struct machine MACHINES[] = {
    {1, {4}, 4},    {2, {2, 2}, 4},       {2, {6, 2}, 8},       {2, {2, 2}, 3},
    {2, {2, 2}, 8}, {4, {1, 1, 1, 1}, 4}, {4, {1, 1, 1, 1}, 2}, {4, {3, 1, 2, 2}, 8},
};
enum { MACHINES_N = sizeof MACHINES / sizeof *MACHINES, FIRST_CPU = 8000 };

static struct topology topology_of(const struct machine *m) {
    struct topology t = {.nodes = m->nodes};
    memset(t.cpu_node, NODE_NONE, sizeof t.cpu_node);
    for (int node = 0; node < m->nodes; node++) {
        t.node_number[node] = (uint16_t)(900 + node);
        for (int i = 0; i < m->cores[node]; i++, t.cores++) {
            const int cpu = FIRST_CPU + t.cores;
            t.core[t.cores] = (struct topology_core){(uint16_t)cpu, (uint16_t)node};
            t.cpu_node[cpu] = (uint8_t)node;
        }
    }
    t.cpus = t.cores;
    return t;
}

/* ---- threads --------------------------------------------------------------------------------- */

static void test_deal(void **state) {
    static const int FIRST[MACHINES_N][5] = {
        {0, 4},    {0, 2, 4},       {0, 6, 8},       {0, 2, 3},
        {0, 4, 8}, {0, 1, 2, 3, 4}, {0, 1, 1, 2, 2}, {0, 3, 4, 6, 8},
    };
    struct thread_nodes nodes;
    (void)state;
    for (int i = 0; i < MACHINES_N; i++) {
        const struct topology t = topology_of(&MACHINES[i]);
        topology_deal(&t, MACHINES[i].threads, &nodes);
        assert_int_equal(nodes.n, t.nodes);
        for (int node = 0; node <= nodes.n; node++)
            assert_int_equal(nodes.first[node], FIRST[i][node]);
        topology_deal(&t, 1, &nodes);
        assert_int_equal(nodes.n, 1);
        assert_int_equal(nodes.first[1], 1);
    }
}

static void test_turns(void **state) {
    struct thread_nodes nodes;
    (void)state;
    for (int i = 0; i < MACHINES_N; i++) {
        const struct topology t = topology_of(&MACHINES[i]);
        const int threads = MACHINES[i].threads;
        topology_deal(&t, threads, &nodes);
        for (int thread = 0; thread < threads; thread++) {
            const int node = thread_nodes_of(&nodes, thread),
                      own = nodes.first[node + 1] - nodes.first[node];
            uint64_t seen = 0;
            assert_int_equal(thread_nodes_turn(&nodes, thread, 0), thread);
            for (int turn = 0; turn < threads; turn++) {
                const int whose = thread_nodes_turn(&nodes, thread, turn);
                assert_true(thread_nodes_of(&nodes, whose) == node || turn >= own);
                seen |= 1ULL << whose;
            }
            assert_true(seen == (1ULL << threads) - 1);
        }
    }
}

/* Items that end only when all of them have begun: each thread has exactly one. */
struct meeting {
    atomic_int begun;
    int n, worker[8];
    struct cpu_mask cpus[8]; /* of the thread */
};

static void meet(void *ctx, size_t item, int worker) {
    struct meeting *m = ctx;
    m->worker[item] = worker;
    (void)sched_getaffinity(0, sizeof m->cpus->bits, (cpu_set_t *)m->cpus[item].bits);
    atomic_fetch_add(&m->begun, 1);
    while (atomic_load(&m->begun) < m->n)
        sched_yield();
}

static void test_own_node_first(void **state) {
    const struct topology t = topology_of(&MACHINES[1]); /* two nodes of two threads */
    struct thread_pool *pool;
    (void)state;
    need(thread_pool_create_on(&pool, 4, &t, &err));
    struct meeting m = {.n = 4};
    thread_pool_run_on(pool, (size_t[]){2, 4}, meet, &m);
    for (int i = 0; i < 4; i++)
        assert_int_equal(m.worker[i], i);
    m = (struct meeting){.n = 4};
    thread_pool_run_on(pool, (size_t[]){0, 4}, meet, &m); /* node 0 has none: it helps */
    assert_int_equal(m.worker[0] + m.worker[1] + m.worker[2] + m.worker[3], 0 + 1 + 2 + 3);
    m = (struct meeting){.n = 4};
    thread_pool_run_on(pool, (size_t[]){4, 4}, meet, &m);
    assert_int_equal(m.worker[0] + m.worker[1] + m.worker[2] + m.worker[3], 0 + 1 + 2 + 3);
    thread_pool_destroy(pool);
}

static void count_item(void *ctx, size_t item, int worker) {
    (void)worker;
    ((int *)ctx)[item]++;
}

static void test_every_item_once(void **state) {
    enum { ITEMS = 500 };
    static int count[ITEMS];
    (void)state;
    for (int i = 0; i < MACHINES_N; i++) {
        const struct topology t = topology_of(&MACHINES[i]);
        struct thread_nodes nodes;
        struct thread_pool *pool;
        topology_deal(&t, MACHINES[i].threads, &nodes);
        need(thread_pool_create_on(&pool, MACHINES[i].threads, &t, &err));
        for (size_t run = 0; run < 40; run++) {
            size_t ends[TOPOLOGY_NODES_MAX], n = 0;
            for (int node = 0; node < nodes.n; node++) {
                n += nodes.first[node] == nodes.first[node + 1] ? 0 : run * 37 % 100;
                ends[node] = n;
            }
            memset(count, 0, sizeof count);
            thread_pool_run_on(pool, ends, count_item, count);
            for (size_t item = 0; item < ITEMS; item++)
                assert_int_equal(count[item], item < n);
        }
        thread_pool_destroy(pool);
    }
}

/* With two CPUs as two nodes, a thread may run on its node's only. The caller's stays free. */
static void test_bound(void **state) {
    struct topology t = {.cpus = 2, .cores = 2, .nodes = 2};
    struct cpu_mask may = {0};
    struct thread_pool *pool;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof may.bits, (cpu_set_t *)may.bits), 0);
    memset(t.cpu_node, NODE_NONE, sizeof t.cpu_node);
    int n = 0;
    for (int cpu = 0; cpu < TOPOLOGY_CPUS_MAX && n < 2; cpu++)
        if (cpu_mask_has(&may, cpu)) {
            t.core[n] = (struct topology_core){(uint16_t)cpu, (uint16_t)n};
            t.cpu_node[cpu] = (uint8_t)n++;
        }
    if (n < 2)
        skip();
    need(thread_pool_create_on(&pool, 2, &t, &err));
    struct meeting m = {.n = 2};
    thread_pool_run_on(pool, (size_t[]){1, 2}, meet, &m);
    assert_memory_equal(&m.cpus[0], &may, sizeof may);
    for (int cpu = 0; cpu < TOPOLOGY_CPUS_MAX; cpu++)
        assert_int_equal(cpu_mask_has(&m.cpus[1], cpu), cpu == t.core[1].cpu);
    thread_pool_destroy(pool);
}

/* ---- items ----------------------------------------------------------------------------------- */

static struct backend *make_backend(const struct machine *m, enum cpu_tier tier) {
    const struct topology t = topology_of(m);
    const struct backend_cpu_options o = {
        .threads = m->threads, .tier = tier, .act_bits = 8, .machine = &t};
    const struct backend_limits limits = {
        .rows = 5, .dim = 64, .head_dim = 64, .experts = 3, .top_k = 2, .expert_dim = 192};
    struct backend *b;
    need(backend_cpu_create(&b, &o, &err));
    need(backend_reserve(b, &limits, &err));
    return b;
}

enum { MATRICES = 3 };
static const uint32_t OUTPUTS[MATRICES] = {1000, 64, 31};

static void check_items(const struct cpu_backend *b, uint32_t outputs) {
    const struct backend_weight w[MATRICES] = {
        {.w.n = OUTPUTS[0]}, {.w.n = OUTPUTS[1]}, {.w.n = OUTPUTS[2]}};
    bool seen[MATRICES][32] = {{false}};
    struct product_items items;
    size_t item = 0, ranges = 0;
    product_items_init(b, &items, (const struct backend_weight *[]){&w[0], &w[1], &w[2]}, MATRICES,
                       outputs);
    for (int node = 0; node < b->nodes.n; node++)
        for (; item < items.ends[node]; item++) {
            const struct product_item at = product_item_at(&items, item);
            const uint32_t n = OUTPUTS[at.matrix], first = at.range * outputs;
            assert_true(first < n && !seen[at.matrix][at.range]);
            seen[at.matrix][at.range] = true;
            assert_true(first >= node_first_output(b, n, node));
            assert_true(min_u32(first + outputs, n) <= node_first_output(b, n, node + 1));
        }
    for (int i = 0; i < MATRICES; i++)
        ranges += (OUTPUTS[i] + outputs - 1) / outputs;
    assert_int_equal(item, ranges);
}

static void test_items(void **state) {
    (void)state;
    for (int i = 0; i < MACHINES_N; i++) {
        struct backend *b = make_backend(&MACHINES[i], CPU_TIER_REF);
        check_items(cpu_of(b), ITEM_OUTPUTS);
        check_items(cpu_of(b), ITEM_OUTPUTS_ROWS);
        backend_destroy(b);
    }
    struct backend *b = make_backend(&MACHINES[2], CPU_TIER_REF); /* six and two cores */
    assert_int_equal(node_first_output(cpu_of(b), 1000, 0), 0);
    assert_int_equal(node_first_output(cpu_of(b), 1000, 1), 704); /* 750, a multiple of 64 */
    assert_int_equal(node_first_output(cpu_of(b), 1000, 2), 1000);
    backend_destroy(b);
}

/* ---- bits ------------------------------------------------------------------------------------ */

enum { DIM = 64, HIDDEN = 192, EXPERTS = 3, TOP_K = 2, ROWS = 5, OUT = 1095 };

struct layer {
    struct weight wide[MATRICES], expert[EXPERTS][3];
};

static void make(struct weight *w, uint32_t n, uint32_t k) {
    weight_shape(w, WEIGHT_Q4_1, 0, n, k);
    make_weight(w, false, malloc);
}

static void make_layer(struct layer *l) {
    for (int i = 0; i < MATRICES; i++)
        make(&l->wide[i], OUTPUTS[i], DIM);
    for (int e = 0; e < EXPERTS; e++) {
        make(&l->expert[e][0], HIDDEN, DIM);
        make(&l->expert[e][1], HIDDEN, DIM);
        make(&l->expert[e][2], DIM, HIDDEN);
    }
}

/* What a backend makes of the rows x: out [ROWS][OUT], mixed [ROWS][DIM]. */
static void compute(struct backend *b, const struct layer *l, uint32_t rows, const float *x,
                    float *out, float *mixed) {
    static const float logits[ROWS * EXPERTS] = {1, 2, 3, 3, 2, 1, 1, 3, 2, 2, 2, 2, 0, 1, 0};
    const struct backend_weight *w[MATRICES];
    struct expert experts[EXPERTS];
    float *y[MATRICES];
    for (int i = 0; i < MATRICES; i++) {
        need(backend_weight_put(b, &l->wide[i], &w[i], &err));
        y[i] = out;
        out += ROWS * OUTPUTS[i];
    }
    for (int e = 0; e < EXPERTS; e++) {
        need(backend_weight_put(b, &l->expert[e][0], &experts[e].gate, &err));
        need(backend_weight_put(b, &l->expert[e][1], &experts[e].up, &err));
        need(backend_weight_put(b, &l->expert[e][2], &experts[e].down, &err));
    }
    const struct expert_layer mixture = {
        .n = EXPERTS, .top_k = TOP_K, .experts = experts, .gate = GATE_SILU, .normalize = true};
    op_matmul(b, x, rows, w, (const float *[MATRICES]){NULL}, y, MATRICES);
    op_experts(b, x, rows, logits, &mixture, mixed);
}

static void test_bits(void **state) {
    static struct layer layer;
    static float x[ROWS * DIM], out[2][ROWS * OUT], mixed[2][ROWS * DIM];
    (void)state;
    make_layer(&layer);
    for (int i = 0; i < ROWS * DIM; i++)
        x[i] = (float)(i * 37 % 101 - 50) / 50;
    for (uint32_t rows = 1; rows <= ROWS; rows += ROWS - 1)
        for (int i = 0; i < MACHINES_N; i++) {
            const int at = i > 0; /* the first has one node */
            struct backend *b = make_backend(&MACHINES[i], CPU_TIER_COUNT);
            memset(out[at], 0xff, sizeof out[at]);
            memset(mixed[at], 0xff, sizeof mixed[at]);
            compute(b, &layer, rows, x, out[at], mixed[at]);
            backend_destroy(b);
            assert_memory_equal(out[at], out[0], sizeof out[0]);
            assert_memory_equal(mixed[at], mixed[0], sizeof mixed[0]);
        }
    for (int i = 0; i < MATRICES; i++)
        free((void *)layer.wide[i].data);
    for (int e = 0; e < EXPERTS; e++)
        for (int i = 0; i < 3; i++)
            free((void *)layer.expert[e][i].data);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct move {
    const uint8_t *at;
    size_t bytes;
    int number;
} moves[256];
static size_t n_moves;
static struct move interleaved;

void __wrap_node_memory_move(const void *at, size_t bytes, int number);
void __wrap_node_memory_move(const void *at, size_t bytes, int number) {
    pthread_mutex_lock(&mutex);
    moves[n_moves++ % (sizeof moves / sizeof *moves)] = (struct move){at, bytes, number};
    pthread_mutex_unlock(&mutex);
}

void __wrap_node_memory_interleave(void *at, size_t bytes, const struct topology *t);
void __wrap_node_memory_interleave(void *at, size_t bytes, const struct topology *t) {
    interleaved = (struct move){at, bytes, t->nodes};
}

static int by_place(const void *a, const void *b) {
    const struct move *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

/* Puts a matrix of 96 MB, of which nothing is read, and has what is moved cover it once. */
static void test_moves(void **state) {
    enum { N = 300000, ROW = 320 };
    struct weight w = {.data = mem_reserve((size_t)N * ROW),
                       .type = WEIGHT_Q4_1,
                       .n = N,
                       .k = ROW / WEIGHT_BYTES_Q4_1 * 32};
    const struct backend_weight *put;
    (void)state;
    assert_non_null(w.data);
    for (int i = 0; i < MACHINES_N; i++) {
        struct backend *b = make_backend(&MACHINES[i], CPU_TIER_REF);
        const uint8_t *next = w.data;
        n_moves = 0;
        need(backend_weight_put(b, &w, &put, &err));
        qsort(moves, n_moves, sizeof *moves, by_place);
        for (size_t m = 0; m < n_moves; m++) {
            const size_t row = (size_t)(moves[m].at - (const uint8_t *)w.data) / ROW;
            const int node = moves[m].number - 900;
            assert_ptr_equal(moves[m].at, next);
            assert_in_range(row, node_first_output(cpu_of(b), N, node),
                            node_first_output(cpu_of(b), N, node + 1) - 1);
            next += moves[m].bytes;
            assert_true(next <= (const uint8_t *)w.data +
                                    (size_t)ROW * node_first_output(cpu_of(b), N, node + 1));
        }
        assert_int_equal(next - (const uint8_t *)w.data, MACHINES[i].nodes == 1 ? 0 : N * ROW);
        backend_destroy(b);
    }
    mem_unreserve((void *)w.data, (size_t)N * ROW);
}

static void test_arena(void **state) {
    enum { BYTES = 8 << 20 };
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct backend *b = make_backend(&MACHINES[i], CPU_TIER_REF);
        interleaved = (struct move){0};
        struct backend_arena *a = backend_arena_create(b, BYTES);
        assert_non_null(a);
        assert_int_equal(interleaved.bytes, i ? BYTES : 0);
        assert_ptr_equal(interleaved.at, i ? backend_cpu_arena_bytes(a) : NULL);
        backend_arena_destroy(b, a);
        backend_destroy(b);
    }
}

/* The calls themselves, on whatever this machine is: contents stay. */
void __real_node_memory_move(const void *at, size_t bytes, int number);
void __real_node_memory_interleave(void *at, size_t bytes, const struct topology *t);

static void test_calls(void **state) {
    enum { BYTES = 3 << 20 };
    struct topology t;
    (void)state;
    topology_read(&t);
    uint8_t *p = mem_reserve(BYTES);
    assert_non_null(p);
    __real_node_memory_interleave(p, BYTES, &t);
    memset(p, 7, BYTES);
    __real_node_memory_move(p + 100, BYTES - 100, t.node_number[t.nodes - 1]);
    __real_node_memory_move(p + 100, 50, t.node_number[0]); /* no page begins there */
    for (size_t i = 0; i < BYTES; i++)
        assert_int_equal(p[i], 7);
    mem_unreserve(p, BYTES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deal),           cmocka_unit_test(test_turns),
        cmocka_unit_test(test_own_node_first), cmocka_unit_test(test_every_item_once),
        cmocka_unit_test(test_bound),          cmocka_unit_test(test_items),
        cmocka_unit_test(test_bits),           cmocka_unit_test(test_moves),
        cmocka_unit_test(test_arena),          cmocka_unit_test(test_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
