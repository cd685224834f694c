/* SPDX-License-Identifier: Apache-2.0 */
/* check_recurrent.c: one token of the recurrent layers. gamma as in check_attention.c; the last
 * rounding of each is that of ref's own result.
 *
 *   short_conv  a chain of `width` products and additions; 1
 *                                                  E = gamma(width + 1) sum|w in|
 *               silu: its slope is below 1.1; the bound of gate_mul but for up
 *                                                  1.1 E + gamma(8) |y|
 *               The state is moved, not computed: the bits.
 *   delta_step  key_dim K. The decayed state: 1. held = sum k_i s_i: a chain of K products, K - 1
 *               additions                          Eh = gamma(K + 1) sum|k_i s_i|
 *               change = beta (v - held): difference, product
 *                                     Ed = |beta| Eh + gamma(2) |beta| (|v| + |held| + Eh)
 *               s_i + k_i change: 1 for s_i, product, sum; 1
 *                                                  Ei = gamma(4) (|s_i| + |k_i change|) + |k_i| Ed
 *               y = sum q_i S_i: a chain, over S_i off by Ei; 1
 *                                                  gamma(K + 1) sum|q_i S_i| + 1.01 sum|q_i| Ei
 *               (1.01 covers products of two errors)
 *
 * Underflow: a product may lose 2^-150; FLOOR per term covers what follows from that.
 */
#include <math.h>
#include <string.h>

#include "kcheck.h"

#define FLOOR 0x1p-120

static const uint32_t SIZES[] = {1,  2,  3,  4,  5,  7,  8,  9,  15, 16,  17,  20,
                                 31, 32, 33, 48, 63, 64, 65, 80, 96, 128, 200, 256};
enum { SIZE_COUNT = sizeof SIZES / sizeof *SIZES };

/* ---- short_conv ------------------------------------------------------------------------------ */

struct conv_case {
    uint32_t width, n;
    size_t stride;
    bool silu;
    const float *w, *was, *x; /* was: the state before */
};

static void compare_conv(const struct conv_case *c, const float *state, const float *y,
                         const float *want) {
    for (uint32_t i = 0; i < c->n; i++) {
        double sum = 0, terms = 0;
        for (uint32_t j = 0; j < c->width; j++) {
            double in = j + 1 < c->width ? c->was[j * c->stride + i] : c->x[i];
            sum += c->w[j * c->stride + i] * in;
            terms += fabs(c->w[j * c->stride + i] * in);
        }
        double e = gamma_of(c->width + 1) * terms + FLOOR, exact = sum, bound = e;
        if (c->silu) {
            exact = sum / (1 + exp(-sum));
            bound = 1.1 * e + gamma_of(8) * fabs(exact) + 0x1p-120 * fabs(sum);
        }
        check_near("y", 0, i, y[i], want[i], bound);
        check_meaning("meaning of y", 0, i, y[i], exact, bound);
    }
    for (uint32_t j = 0; j + 1 < c->width; j++) {
        const float *from = j + 2 < c->width ? c->was + (j + 1) * c->stride : c->x;
        check_that(memcmp(state + j * c->stride, from, c->n * sizeof *from) == 0,
                   "row %u of the state is not what it should be", j);
    }
}

static void check_conv_case(const struct tier *t, uint32_t width, uint32_t n) {
    struct conv_case c = {.width = width, .n = n, .silu = random_bits() & 1};
    bool in_place = random_bits() & 1;
    c.stride = n + (random_bits() & 1) * random_below(100);
    case_begin("width %u, %u channels of %zu%s%s", width, n, c.stride, c.silu ? ", silu" : "",
               in_place ? ", in place" : "");
    size_t taps = (width - 1) * c.stride + n, held = width > 1 ? taps - c.stride : 0;
    float *w = guarded(taps * sizeof *w), *state = held ? guarded(held * sizeof *state) : NULL;
    float *x = guarded(n * sizeof *x), *y = in_place ? x : guarded(n * sizeof *y);
    float *was = plain(taps * sizeof *was), *in = plain(n * sizeof *in),
          *want = plain(n * sizeof *y);
    float *ref_state = plain(taps * sizeof *was);
    for (uint32_t j = 0; j < width; j++) /* gaps stay as they are */
        fill_any(w + j * c.stride, n);
    for (uint32_t j = 0; j + 1 < width; j++)
        fill_any(state + j * c.stride, n);
    fill_any(x, n);
    freeze(w);
    if (held) {
        memcpy(was, state, held * sizeof *was);
        memcpy(ref_state, state, held * sizeof *was);
    }
    memcpy(in, x, n * sizeof *in);
    if (!in_place)
        freeze(x);
    c.w = w;
    c.was = was;
    c.x = in;
    ref.short_conv(ref_state, w, c.stride, width, in, n, c.silu, want);
    call_short_conv(t->k.short_conv, state, w, c.stride, width, x, n, c.silu, y);
    compare_conv(&c, state, y, want);
    check_that(!held || gaps_untouched(state, width - 1, n, c.stride), "wrote between rows");
    case_end();
}

static void check_short_conv(const struct tier *t) {
    if (!family_begin(t, "short_conv", ""))
        return;
    for (uint32_t width = 1; width <= 5; width++)
        for (int i = 0; i < 4 * SIZE_COUNT; i++)
            check_conv_case(t, width, SIZES[i % SIZE_COUNT]);
    family_end();
}

/* ---- delta_step ------------------------------------------------------------------------------ */

struct delta_case {
    uint32_t key_dim, value_dim;
    struct delta_token token;
    const float *was; /* the state before */
};

/* One value dim: the state and y that it should have, and their bounds. */
static void compare_lane(const struct delta_case *c, uint32_t lane, const float *state,
                         const float *want_state, float y, float want) {
    const struct delta_token *t = &c->token;
    uint32_t keys = c->key_dim, n = c->value_dim;
    double held = 0, terms = 0, sum = 0, sums = 0, errors = 0;
    for (uint32_t i = 0; i < keys; i++) {
        double s = (double)t->decay * c->was[i * n + lane];
        held += t->k[i] * s;
        terms += fabs(t->k[i] * s);
    }
    double eh = gamma_of(keys + 1) * terms + keys * FLOOR, beta = fabs(t->beta);
    double change = t->beta * (t->v[lane] - held);
    double ed = beta * eh + gamma_of(2) * beta * (fabs(t->v[lane]) + fabs(held) + eh) + FLOOR;
    for (uint32_t i = 0; i < keys; i++) {
        size_t at = (size_t)i * n + lane;
        double s = (double)t->decay * c->was[at], add = t->k[i] * change;
        double ei = gamma_of(4) * (fabs(s) + fabs(add)) + 1.01 * fabs(t->k[i]) * ed + FLOOR;
        check_near("state", i, lane, state[at], want_state[at], ei);
        check_meaning("meaning of state", i, lane, state[at], s + add, ei);
        sum += t->q[i] * (s + add);
        sums += fabs(t->q[i] * (s + add));
        errors += fabs(t->q[i]) * ei;
    }
    double bound = gamma_of(keys + 1) * sums + 1.01 * errors + keys * FLOOR;
    check_near("y", 0, lane, y, want, bound);
    check_meaning("meaning of y", 0, lane, y, sum, bound);
}

static void fill_unit(float *x, uint32_t n) {
    double squares = 0;
    fill(x, n, FILL_NORMAL);
    for (uint32_t i = 0; i < n; i++)
        squares += (double)x[i] * x[i];
    for (uint32_t i = 0; i < n; i++)
        x[i] = (float)(x[i] / sqrt(squares + 1e-6));
}

static float *guarded_row(uint32_t n) {
    return guarded(n * sizeof(float));
}

static void check_delta_case(const struct tier *t, uint32_t keys, uint32_t values) {
    static const float GATES[] = {0, 1, 0.5f, 0.999f};
    struct delta_case c = {.key_dim = keys, .value_dim = values};
    case_begin("%u keys, %u values", keys, values);
    size_t n = (size_t)keys * values;
    float *state = guarded(n * sizeof *state), *was = plain(n * sizeof *was);
    float *want_state = plain(n * sizeof *was), *want = plain(values * sizeof *want);
    float *q = guarded_row(keys), *k = guarded_row(keys), *v = guarded_row(values);
    float *y = guarded_row(values);
    fill(state, n, random_bits() & 1 ? FILL_NORMAL : FILL_SCALES);
    fill_unit(q, keys);
    fill_unit(k, keys);
    fill_any(v, values);
    freeze(q);
    freeze(k);
    freeze(v);
    memcpy(was, state, n * sizeof *was);
    memcpy(want_state, state, n * sizeof *was);
    c.was = was;
    c.token = (struct delta_token){q, k, v, GATES[random_below(4)], GATES[random_below(4)]};
    ref.delta_step(want_state, keys, values, &c.token, want);
    call_delta_step(t->k.delta_step, state, keys, values, &c.token, y);
    for (uint32_t lane = 0; lane < values; lane++)
        compare_lane(&c, lane, state, want_state, y[lane], want[lane]);
    case_end();
}

static void check_delta_step(const struct tier *t) {
    static const uint32_t KEYS[] = {1, 2, 3, 16, 64, 100, 128, 256};
    if (!family_begin(t, "delta_step", ""))
        return;
    for (size_t k = 0; k < sizeof KEYS / sizeof *KEYS; k++)
        for (int i = 0; i < SIZE_COUNT; i++)
            check_delta_case(t, KEYS[k], SIZES[i]);
    family_end();
}

void check_recurrent(const struct tier *t) {
    check_short_conv(t);
    check_delta_step(t);
}
