/* SPDX-License-Identifier: Apache-2.0 */
/* How often a layer's threads meet. A run of several items ends when all of them are done; each
 * such end is a barrier, and on many cores a decode step of a small model waits there longer than
 * it computes. Runs are counted in thread_pool_run and thread_pool_run_on, which the linker
 * replaces, as it does topology_read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "backend/cpu/cpu.h"
#include "util/topology.h"

#include <kvasir.h>

#include <cmocka.h> /* after util.h, which defines a macro `fail` */

enum { LAYERS = 4, PROMPT = 600, VOCAB = 512 }; /* the prompt fills a split of attention */

static kvasir_error err;
static long barriers;

void __real_thread_pool_run(struct thread_pool *p, size_t items, thread_fn *fn, void *ctx);
void __wrap_thread_pool_run(struct thread_pool *p, size_t items, thread_fn *fn, void *ctx);
void __wrap_thread_pool_run(struct thread_pool *p, size_t items, thread_fn *fn, void *ctx) {
    barriers += items > 1;
    __real_thread_pool_run(p, items, fn, ctx);
}

/* Of one memory node, whatever this machine has. */
void __wrap_topology_read(struct topology *t);
void __wrap_topology_read(struct topology *t) {
    *t = (struct topology){.cpus = 1, .cores = 1, .nodes = 1};
}

void __real_thread_pool_run_on(struct thread_pool *p, const size_t *ends, thread_fn *fn, void *ctx);
void __wrap_thread_pool_run_on(struct thread_pool *p, const size_t *ends, thread_fn *fn, void *ctx);
void __wrap_thread_pool_run_on(struct thread_pool *p, const size_t *ends, thread_fn *fn,
                               void *ctx) {
    barriers += ends[0] > 1; /* of the only node */
    __real_thread_pool_run_on(p, ends, fn, ctx);
}

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

/* Barriers of a step that appends a token to each of n sequences. */
static long count(const char *name, const char *bits, size_t n) {
    enum { MOST = 16 };
    static const int32_t prompt[PROMPT] = {1, 2, 3};
    uint32_t ones[MOST];
    char path[256];
    kvasir_model *model;
    kvasir_context *ctx;
    kvasir_seq *seqs[MOST];
    kvasir_batch *batch;
    static float logits[MOST * VOCAB];
    snprintf(path, sizeof path, "%s/fixtures/tiny/%s", SHARED_DIR, name);
    need(kvasir_model_open(path, &model, &err));
    kvasir_context_options o = kvasir_context_defaults();
    o.kv_bits = bits;
    o.threads = 2;
    o.ctx = 1024;
    o.cache_bytes = 64 << 20;
    need(kvasir_context_create(model, &o, &ctx, &err));
    for (size_t i = 0; i < n; i++) {
        ones[i] = 1;
        if (i > 0) {
            need(kvasir_seq_fork(seqs[0], &seqs[i], &err));
            continue;
        }
        need(kvasir_seq_create(ctx, &seqs[0], &err));
        need(kvasir_seq_eval(seqs[0], prompt, PROMPT, NULL, &err));
    }
    need(kvasir_batch_merge(ctx, seqs, n, &batch, &err));
    barriers = 0;
    need(kvasir_batch_eval(batch, prompt, ones, logits, &err));
    const long counted = barriers;
    kvasir_batch_destroy(batch);
    kvasir_context_destroy(ctx);
    kvasir_model_close(model);
    return counted;
}

/* Products of q, k and v; the store; attention; the product of o; of gate and up; of down. Beside
 * the layers' there is the product of the head. */
static void test_one_row(void **state) {
    (void)state;
    static const char *const MODELS[] = {"llama", "qwen3", "gemma3"}, *const BITS[] = {"8,4",
                                                                                       "f16"};
    for (size_t m = 0; m < sizeof MODELS / sizeof *MODELS; m++)
        for (size_t b = 0; b < sizeof BITS / sizeof *BITS; b++)
            assert_int_equal(count(MODELS[m], BITS[b], 1), 6 * LAYERS + 1);
}

/* A few rows of several sequences. (With quantized weights there are four more, since the inputs of
 * products are rounded in parallel.) */
static void test_few_rows(void **state) {
    (void)state;
    assert_int_equal(count("llama", "8,4", 4), 6 * LAYERS + 1);
}

/* Norms of the heads of one row. */
static void test_head_norms(void **state) {
    (void)state;
    enum { HEADS = 64, DIM = 128 };
    static float x[HEADS * DIM], gain[DIM];
    const struct backend_cpu_options o = {.threads = 2, .tier = CPU_TIER_COUNT, .act_bits = 8};
    struct backend *b;
    need(backend_cpu_create(&b, &o, &err));
    barriers = 0;
    op_rms_norm(b, x, gain, HEADS, DIM, 1e-6f, x);
    assert_int_equal(barriers, 0);
    backend_destroy(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_row),
        cmocka_unit_test(test_few_rows),
        cmocka_unit_test(test_head_norms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
