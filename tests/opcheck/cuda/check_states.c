/* SPDX-License-Identifier: Apache-2.0 */
/* check_states.c: recurrent layers in a graph. The step, twice over so that states move on:
 *
 *     m = short_conv(x)     q, k and v of the delta rule
 *     y = delta_rule(m)
 *     y = norm(y)
 *
 * is run call by call and as a graph; what both leave, y and the states, must be equal byte for
 * byte:
 *
 *     batch A   five sequences of 1 to 5 rows
 *     batch B   of A's bucket: six sequences, in other states
 */
#include <string.h>

#include "backend/cuda/graph.h"
#include "opcheck.h"

enum { ROWS = 13, SEQS = 6, STATES = 7, STATE_PAGES = 16, ARENA_BYTES = 2 << 20 };
enum { KEY_HEADS = 2, VALUE_HEADS = 4, KEY_DIM = 64, VALUE_DIM = 48, WIDTH = 4 };
enum {
    VALUES = VALUE_HEADS * VALUE_DIM,
    CHANNELS = 2 * KEY_HEADS * KEY_DIM + VALUES,
    WINDOW = 64,   /* where the states' parts begin */
    MATRIX = 8192, /* WINDOW and (WIDTH - 1) * CHANNELS floats are before it */
    STATE_BYTES = MATRIX + VALUE_HEADS * KEY_DIM * VALUE_DIM * 4
};
_Static_assert(WINDOW + (WIDTH - 1) * CHANNELS * 4 <= MATRIX, "the window ends before the matrix");
_Static_assert(STATE_BYTES <= STATE_PAGES * PAGE_ADDR_UNIT, "a state fits its pages");

static struct net {
    struct backend_arena *arena;
    const uint8_t *image; /* the arena before any step */
    float *x, *w, *beta, *a, *m, *y;
    struct delta_layer delta;
} net;

static float *random_buffer(size_t n) {
    return device_copy(plain_floats(n), n * sizeof(float));
}

static void net_make(void) {
    float rate[VALUE_HEADS] = {0.1f, 1.0f, 3.0f, 0.01f}; /* positive: states do not grow */
    float *image = plain(ARENA_BYTES);
    fill(image, ARENA_BYTES / sizeof *image, FILL_NORMAL);
    net.image = (const uint8_t *)image;
    net.arena = backend_arena_create(device, ARENA_BYTES);
    backend_arena_take(device, net.arena, 0, ARENA_BYTES, true);
    net.x = random_buffer((size_t)ROWS * CHANNELS);
    net.w = random_buffer((size_t)WIDTH * CHANNELS);
    net.beta = random_buffer((size_t)ROWS * VALUE_HEADS);
    net.a = random_buffer((size_t)ROWS * VALUE_HEADS);
    net.m = device_buffer((size_t)ROWS * CHANNELS * sizeof(float));
    net.y = device_buffer((size_t)ROWS * VALUES * sizeof(float));
    net.delta = (struct delta_layer){.key_heads = KEY_HEADS,
                                     .value_heads = VALUE_HEADS,
                                     .key_dim = KEY_DIM,
                                     .value_dim = VALUE_DIM,
                                     .rate = device_copy(rate, sizeof rate),
                                     .bias = random_buffer(VALUE_HEADS)};
}

static void enqueue(const struct batch *batch) {
    backend_step_begin(device, batch, 0);
    for (int i = 0; i < 2; i++) {
        op_short_conv(device, batch, WINDOW, net.x, net.w, WIDTH, CHANNELS, true, net.m);
        op_delta_rule(device, batch, MATRIX, net.m, net.beta, net.a, &net.delta, net.y);
        op_rms_norm(device, net.y, NULL, batch->rows * VALUE_HEADS, VALUE_DIM, 1e-6f, net.y);
    }
}

/* y of the batch's rows, then the arena. */
static const uint8_t *outcome(const struct batch *batch) {
    const size_t y_bytes = (size_t)batch->rows * VALUES * sizeof(float);
    kvasir_error err = {0};
    uint8_t *out = plain((size_t)ROWS * VALUES * sizeof(float) + ARENA_BYTES);
    backend_arena_write(device, net.arena, 0, net.image, ARENA_BYTES);
    enqueue(batch);
    must(backend_read(device, out, net.y, y_bytes, &err), &err, "read");
    must(backend_arena_read(device, net.arena, 0, out + y_bytes, ARENA_BYTES, &err), &err,
         "arena_read");
    return out;
}

static void check_same(const struct batch *batch, const uint8_t *got, const uint8_t *want,
                       const char *what) {
    const size_t y_bytes = (size_t)batch->rows * VALUES * sizeof(float);
    check_that(memcmp(got, want, y_bytes) == 0, "%s: another output", what);
    check_that(memcmp(got + y_bytes, want + y_bytes, ARENA_BYTES) == 0, "%s: other states", what);
    check_that(memcmp(want + y_bytes, net.image, ARENA_BYTES) != 0, "%s: no state moved", what);
}

static void check_replay(const struct batch *a, const struct batch *b) {
    cuda_one_by_one(device, true);
    const uint8_t *a_plain = outcome(a), *b_plain = outcome(b);
    cuda_one_by_one(device, false);
    check_same(a, outcome(a), a_plain, "the recorded step");
    check_same(a, outcome(a), a_plain, "the captured step");
    const struct cuda_graph_counts before = cuda_graph_counts(device);
    check_same(b, outcome(b), b_plain, "another step of the bucket");
    const struct cuda_graph_counts after = cuda_graph_counts(device);
    check_that(after.captured == before.captured && after.launched == before.launched + 1,
               "the other step did not run as the graph");
    check_same(a, outcome(a), a_plain, "the captured step after another");
}

void check_cuda_states(void) {
    const struct backend_limits limits = {.rows = ROWS,
                                          .seqs = SEQS,
                                          .dim = 64,
                                          .head_dim = 64,
                                          .pages = 4,
                                          .groups = 1,
                                          .group = {{1, 1, 64}}};
    const struct batch_seq a_seqs[] = {{0, 1, 7}, {1, 3, 0}, {4, 5, 100}, {9, 2, 64}, {11, 2, 1}},
                           b_seqs[] = {{2, 4, 50}, {0, 2, 9}, {9, 3, 0},
                                       {6, 1, 77}, {7, 2, 5}, {12, 1, 6}};
    if (!family_begin("step", "states"))
        return;
    case_begin("two batches");
    device_begin(&limits, 8);
    net_make();
    struct state_view states[STATES];
    for (uint32_t s = 0; s < STATES; s++)
        states[s] = (struct state_view){net.arena, (STATES - s) * STATE_PAGES};
    const struct batch a = {.rows = ROWS, .n_seqs = 5, .seqs = a_seqs, .states = states + 2},
                       b = {.rows = ROWS, .n_seqs = 6, .seqs = b_seqs, .states = states};
    check_replay(&a, &b);
    backend_arena_destroy(device, net.arena);
    family_end();
}
