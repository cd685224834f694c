/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling: the test vectors of mlx-lm's samplers and processors, the order of the filters, draws
 * that follow the distribution, and picks that depend on nothing but options, logits and draw
 * number.
 */
#include "engine/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB_MAX = 1024 };

static kvasir_sampler *make(kvasir_sampling o, uint32_t vocab) {
    kvasir_sampler *s = NULL;
    kvasir_error err;
    o.struct_size = sizeof o;
    if (o.repetition_context == 0)
        o.repetition_context = 20;
    if (o.presence_context == 0)
        o.presence_context = 20;
    if (o.frequency_context == 0)
        o.frequency_context = 20;
    assert_int_equal(kvasir_sampler_create(&o, vocab, &s, &err), KVASIR_OK);
    return s;
}

/* The probabilities that tokens are drawn with; p [vocab]. */
static void distribution(kvasir_sampler *s, const float *logits, uint32_t vocab, double *p) {
    const uint32_t *ids;
    const double *weights;
    size_t n = sampler_weigh(s, logits, &ids, &weights);
    double sum = 0;
    for (uint32_t i = 0; i < vocab; i++)
        p[i] = 0;
    for (size_t i = 0; i < n; i++)
        sum += weights[i];
    for (size_t i = 0; i < n; i++)
        p[ids[i]] += weights[i] / sum;
}

/* Logits whose probabilities are p4; 0 becomes -inf. */
static void logits_of(const double p4[4], float logits[4]) {
    for (int i = 0; i < 4; i++)
        logits[i] = p4[i] > 0 ? (float)m_log(p4[i]) : -INFINITY;
}

static void check_four(kvasir_sampling o, const double in[4], const double want[4]) {
    float logits[4];
    double got[4];
    logits_of(in, logits);
    kvasir_sampler *s = make(o, 4);
    distribution(s, logits, 4, got);
    for (int i = 0; i < 4; i++)
        assert_true(fabs(got[i] - want[i]) < 1e-4);
    kvasir_sampler_destroy(s);
}

static void test_mlx_vectors(void **state) {
    (void)state;
    static const double A[4] = {.9, 0, 0, .1}, B[4] = {0, .5, .4, .1}, C[4] = {.6, 0, .1, .3};
    static const double ONE[4] = {1, 0, 0, 0};
    check_four((kvasir_sampling){.temp = 1, .top_p = 0.3f}, A, ONE);
    check_four((kvasir_sampling){.temp = 1, .top_p = 0.95f}, A, A);
    check_four((kvasir_sampling){.temp = 1, .top_p = 0.4f}, B, (double[4]){0, 1, 0, 0});
    check_four((kvasir_sampling){.temp = 1, .top_p = 0.6f}, B, (double[4]){0, .5556, .4444, 0});
    check_four((kvasir_sampling){.temp = 1, .min_p = 0.8f}, A, ONE);
    check_four((kvasir_sampling){.temp = 1, .min_p = 0.05f}, A, A);
    check_four((kvasir_sampling){.temp = 1, .top_k = 2}, C, (double[4]){.6667, 0, 0, .3333});
    static const double X[4] = {.4, .3, .15, .15};
    kvasir_sampling xtc = {.temp = 1, .xtc_probability = 1, .xtc_threshold = 0.2f};
    check_four(xtc, X, (double[4]){0, .5, .25, .25});
    xtc.xtc_threshold = 0.1f;
    check_four(xtc, X, (double[4]){0, 0, .5, .5});
    xtc.xtc_special = (const int32_t[]){0};
    xtc.n_xtc_special = 1;
    check_four(xtc, X, (double[4]){4. / 7, 0, 1.5 / 7, 1.5 / 7});
    /* off */
    check_four((kvasir_sampling){.temp = 1, .top_p = 1, .top_k = 4}, C, C);
    check_four((kvasir_sampling){.temp = 1, .xtc_threshold = 0.1f}, X, X);
    check_four((kvasir_sampling){.temp = 1}, B, B);
}

static void test_filters_use_temperature_one(void **state) {
    (void)state;
    /* top_p 0.6 keeps two of B; at temperature 1/2 they are drawn in proportion to their
     * squares. */
    static const double B[4] = {0, .5, .4, .1};
    check_four((kvasir_sampling){.temp = 0.5f, .top_p = 0.6f}, B,
               (double[4]){0, .25 / .41, .16 / .41, 0});
    /* all three: top_p leaves 0.5, 0.4; min_p 0.9 of 0.5 is 0.45 */
    check_four((kvasir_sampling){.temp = 1, .top_p = 0.6f, .min_p = 0.9f, .top_k = 3}, B,
               (double[4]){0, 1, 0, 0});
}

static void test_repetition_penalty(void **state) {
    (void)state;
    /* tokens 0 0 0 1 1, penalty 1.5, on [1, .5, 0, -.5]: each distinct id once */
    static const float LOGITS[4] = {1, 0.5f, 0, -0.5f};
    static const int32_t SEEN[] = {0, 0, 0, 1, 1};
    static const double WANT[4] = {1 / 1.5, 0.5 / 1.5, 0, -0.5};
    double p[4];
    kvasir_sampler *s = make((kvasir_sampling){.temp = 1, .repetition_penalty = 1.5f}, 4);
    for (size_t i = 0; i < sizeof SEEN / sizeof *SEEN; i++)
        kvasir_sampler_accept(s, SEEN[i]);
    distribution(s, LOGITS, 4, p);
    for (int i = 0; i < 4; i++)
        assert_true(fabs(m_log(p[i] / p[2]) - WANT[i]) < 1e-6);
    /* a negative logit is multiplied */
    kvasir_sampler_accept(s, 3);
    distribution(s, LOGITS, 4, p);
    assert_true(fabs(m_log(p[3] / p[2]) + 0.75) < 1e-6);
    kvasir_sampler_destroy(s);
}

/* Checks the logits after bias and penalties. The distribution shows only their differences, so
 * token 2 counts as 0. */
static void check_processed(kvasir_sampling o, const float logits[4], const double want[4]) {
    static const int32_t SEEN[] = {0, 0, 0, 1, 1};
    double p[4];
    o.temp = 1;
    kvasir_sampler *s = make(o, 4);
    for (size_t i = 0; i < sizeof SEEN / sizeof *SEEN; i++)
        kvasir_sampler_accept(s, SEEN[i]);
    distribution(s, logits, 4, p);
    for (int i = 0; i < 4; i++)
        assert_true(fabs(m_log(p[i] / p[2]) - want[i]) < 1e-6);
    kvasir_sampler_destroy(s);
}

static void test_presence_and_frequency(void **state) {
    (void)state;
    static const float ZEROS[4] = {0}, LOGITS[4] = {1, 0.5f, 0, -0.5f};
    kvasir_sampling o = {.presence_penalty = 0.5f};
    check_processed(o, ZEROS, (double[4]){-.5, -.5, 0, 0});
    o = (kvasir_sampling){.frequency_penalty = 0.5f};
    check_processed(o, ZEROS, (double[4]){-1.5, -1, 0, 0});
    o = (kvasir_sampling){
        .repetition_penalty = 1.5f, .presence_penalty = 0.5f, .frequency_penalty = 0.25f};
    check_processed(o, LOGITS, (double[4]){1 / 1.5 - 1.25, .5 / 1.5 - 1, 0, -.5});
    /* each has a context of its own: 0 0 [0 1 1], 0 0 0 [1 1], 0 0 0 1 [1] */
    o.repetition_context = 3, o.presence_context = 2, o.frequency_context = 1;
    check_processed(o, LOGITS, (double[4]){1 / 1.5, .5 / 1.5 - .75, 0, -.5});
    o.repetition_context = 1, o.presence_context = 3, o.frequency_context = 4;
    check_processed(o, LOGITS, (double[4]){1 - .5 - .5, .5 / 1.5 - .5 - .5, 0, -.5});
    /* negative penalties make tokens likelier */
    o = (kvasir_sampling){.presence_penalty = -1, .frequency_penalty = -0.5f};
    check_processed(o, ZEROS, (double[4]){2.5, 2, 0, 0});
}

static void test_logit_bias(void **state) {
    (void)state;
    static const float LOGITS[4] = {1, 0.5f, 0, -0.5f};
    kvasir_logit_bias bias[] = {{1, 1}, {3, -0.5f}, {1, 0.25f}};
    kvasir_sampling o = {.logit_bias = bias, .n_logit_bias = 3};
    check_processed(o, LOGITS, (double[4]){1, 1.75, 0, -1});
    /* added before the repetition penalty, which multiplies what is negative by then */
    bias[0] = (kvasir_logit_bias){0, -3};
    o.n_logit_bias = 1;
    o.repetition_penalty = 2;
    check_processed(o, LOGITS, (double[4]){-4, .25, 0, -.5});
    /* copied; greedy picks use it */
    o.repetition_penalty = 0;
    kvasir_sampler *s = make(o, 4);
    bias[0] = (kvasir_logit_bias){2, 100};
    assert_int_equal(kvasir_sampler_pick(s, LOGITS), 1);
    kvasir_sampler_destroy(s);
    /* a sum that overflows float is still the largest */
    bias[0] = (kvasir_logit_bias){2, 3e38f};
    o.temp = 1;
    s = make(o, 4);
    assert_int_equal(kvasir_sampler_pick(s, (const float[]){0, 3e38f, 3e38f, 0}), 2);
    kvasir_sampler_destroy(s);
}

static void test_greedy_is_penalised(void **state) {
    (void)state;
    static const float LOGITS[4] = {2, 1.9f, 1.8f, 0};
    static const kvasir_sampling CASES[] = {
        {.repetition_penalty = 2}, {.presence_penalty = 1}, {.frequency_penalty = 1}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        kvasir_sampler *s = make(CASES[i], 4);
        for (int32_t want = 0; want < 3; want++) {
            assert_int_equal(kvasir_sampler_pick(s, LOGITS), want);
            kvasir_sampler_accept(s, want);
        }
        kvasir_sampler_destroy(s);
    }
}

static void test_repetition_context(void **state) {
    (void)state;
    static const float LOGITS[4] = {2, 1.9f, 0, 0};
    kvasir_sampler *s =
        make((kvasir_sampling){.repetition_penalty = 2, .repetition_context = 2}, 4);
    assert_int_equal(kvasir_sampler_pick(s, LOGITS), 0);
    kvasir_sampler_accept(s, 0);
    assert_int_equal(kvasir_sampler_pick(s, LOGITS), 1);
    kvasir_sampler_accept(s, 2);
    assert_int_equal(kvasir_sampler_pick(s, LOGITS), 1);
    kvasir_sampler_accept(s, 3); /* pushes 0 out */
    assert_int_equal(kvasir_sampler_pick(s, LOGITS), 0);
    kvasir_sampler_accept(s, -1); /* not an id: ignored */
    kvasir_sampler_accept(s, 4);
    assert_int_equal(kvasir_sampler_pick(s, LOGITS), 0);
    kvasir_sampler_destroy(s);
}

/* Sizes around those of the argmax's blocks, with the largest logit at every kind of place. */
static void test_argmax(void **state) {
    (void)state;
    static const uint32_t SIZES[] = {1, 2, 31, 32, 33, 1023, 1024, 1025, 2048, 5000};
    static float logits[5000];
    for (size_t c = 0; c < sizeof SIZES / sizeof *SIZES; c++) {
        uint32_t vocab = SIZES[c];
        kvasir_sampler *s = make((kvasir_sampling){0}, vocab);
        for (uint32_t at = 0; at < vocab; at += vocab < 50 || at + 40 > vocab ? 1 : 37) {
            for (uint32_t i = 0; i < vocab; i++)
                logits[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? -INFINITY : -1;
            logits[at] = logits[vocab - 1] = 0; /* ties: the first wins */
            assert_int_equal(kvasir_sampler_pick(s, logits), at);
            logits[vocab - 1] = 1;
            assert_int_equal(kvasir_sampler_pick(s, logits), vocab - 1);
            for (uint32_t i = 0; i < vocab; i++)
                logits[i] = NAN;
            logits[at] = -INFINITY;
            assert_int_equal(kvasir_sampler_pick(s, logits), at);
        }
        kvasir_sampler_destroy(s);
    }
}

static void test_greedy(void **state) {
    (void)state;
    static const float TIE[4] = {1, 3, 3, 2};
    static const float NANS[4] = {NAN, 1, NAN, 0}, ALL_NAN[4] = {NAN, NAN, NAN, NAN};
    static const float INF[4] = {0, 1, INFINITY, 0};
    kvasir_sampler *greedy = make((kvasir_sampling){0}, 4);
    kvasir_sampler *warm = make((kvasir_sampling){.temp = 1, .top_p = 0.9f}, 4);
    assert_int_equal(kvasir_sampler_pick(greedy, TIE), 1);
    assert_int_equal(kvasir_sampler_pick(greedy, NANS), 1);
    assert_int_equal(kvasir_sampler_pick(greedy, ALL_NAN), 0);
    for (int i = 0; i < 50; i++) {
        int32_t id = kvasir_sampler_pick(warm, NANS);
        assert_true(id == 1 || id == 3);
        assert_int_equal(kvasir_sampler_pick(warm, ALL_NAN), 0);
        assert_int_equal(kvasir_sampler_pick(warm, INF), 2);
    }
    kvasir_sampler_destroy(greedy);
    kvasir_sampler_destroy(warm);
}

/* Some bumpy logits with ties. */
static void bumpy(float *logits, uint32_t vocab, uint32_t seed) {
    for (uint32_t i = 0; i < vocab; i++) {
        seed = seed * 1664525u + 1013904223u;
        logits[i] = (float)(seed >> 24) / 32.0f;
    }
}

static int rank_better(const float *l, uint32_t a, uint32_t b) {
    return l[a] > l[b] || (l[a] == l[b] && a < b);
}

/* The filters one after the other over a fully sorted vocabulary, in mlx-lm's order. */
static void reference(const float *l, uint32_t vocab, const kvasir_sampling *o, bool *keep) {
    double max = -1e30, sum = 0;
    for (uint32_t i = 0; i < vocab; i++)
        max = (double)l[i] > max ? (double)l[i] : max;
    for (uint32_t i = 0; i < vocab; i++)
        sum += m_exp((double)l[i] - max);
    for (uint32_t i = 0; i < vocab; i++) {
        uint32_t before = 0;
        double mass = 0;
        for (uint32_t j = 0; j < vocab; j++)
            if (rank_better(l, j, i)) {
                before++;
                mass += m_exp((double)l[j] - max) / sum;
            }
        keep[i] = (o->top_p == 0 || mass < (double)o->top_p) &&
                  m_exp((double)l[i] - max) >= (double)o->min_p &&
                  (o->top_k == 0 || before < (uint32_t)o->top_k);
    }
}

static void test_filters_against_sorting(void **state) {
    (void)state;
    static float logits[VOCAB_MAX];
    static bool keep[VOCAB_MAX];
    static double p[VOCAB_MAX];
    static const kvasir_sampling CASES[] = {
        {.temp = 1, .top_p = 0.37f},
        {.temp = 0.7f, .top_k = 40},
        {.temp = 2, .min_p = 0.03f},
        {.temp = 1, .top_p = 0.9f, .top_k = 200, .min_p = 0.001f},
        {.temp = 1, .top_p = 0.99f, .top_k = 5},
    };
    for (uint32_t seed = 0; seed < 5; seed++)
        for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
            uint32_t vocab = 204 + seed * 205;
            bumpy(logits, vocab, seed);
            reference(logits, vocab, &CASES[c], keep);
            kvasir_sampler *s = make(CASES[c], vocab);
            distribution(s, logits, vocab, p);
            for (uint32_t i = 0; i < vocab; i++)
                assert_int_equal(p[i] > 0, keep[i]);
            kvasir_sampler_destroy(s);
        }
}

static void test_min_tokens_to_keep(void **state) {
    (void)state;
    static const double P[4] = {.6, .25, .1, .05};
    kvasir_sampling o = {.temp = 1, .min_p = 0.8f, .min_tokens_to_keep = 2};
    check_four(o, P, (double[4]){.6 / .85, .25 / .85, 0, 0});
    o.min_tokens_to_keep = 4;
    check_four(o, P, P);
    o.min_p = 0.1f; /* keeps more than min_tokens_to_keep */
    o.min_tokens_to_keep = 1;
    check_four(o, P, (double[4]){.6 / .95, .25 / .95, .1 / .95, 0});
    o = (kvasir_sampling){.temp = 1, .top_p = 0.5f, .min_p = 0.8f, .min_tokens_to_keep = 3};
    check_four(o, P, (double[4]){1, 0, 0, 0}); /* nothing brings back what top_p removed */
    o = (kvasir_sampling){.temp = 1, .min_p = 0.8f, .min_tokens_to_keep = 3, .top_k = 2};
    check_four(o, P, (double[4]){.6 / .85, .25 / .85, 0, 0});
}

/* What mlx-lm's functions do, each over the whole vocabulary; -inf means removed. All logits
 * differ, so there are no ties. */
static void mlx_filters(double *l, uint32_t vocab, const kvasir_sampling *o, const bool *special) {
    static double p[VOCAB_MAX];
    double max = -INFINITY, sum = 0, last = INFINITY;
    for (uint32_t i = 0; i < vocab; i++)
        max = l[i] > max ? l[i] : max;
    for (uint32_t i = 0; i < vocab; i++)
        sum += p[i] = m_exp(l[i] - max);
    for (uint32_t i = 0; i < vocab && o->top_p > 0; i++) {
        double above = 0;
        for (uint32_t j = 0; j < vocab; j++)
            above += p[j] > p[i] ? p[j] : 0;
        if (above >= (double)o->top_p * sum)
            l[i] = -INFINITY;
    }
    for (uint32_t i = 0; i < vocab && o->min_p > 0; i++) {
        uint32_t above = 0;
        for (uint32_t j = 0; j < vocab; j++)
            above += p[j] > p[i];
        if (p[i] < (double)o->min_p && above >= o->min_tokens_to_keep)
            l[i] = -INFINITY;
    }
    sum = 0;
    for (uint32_t i = 0; i < vocab; i++)
        sum += p[i] = m_exp(l[i] - max);
    for (uint32_t i = 0; i < vocab && o->xtc_probability > 0; i++)
        if (p[i] / sum > (double)o->xtc_threshold && p[i] < last)
            last = p[i];
    for (uint32_t i = 0; i < vocab; i++)
        if (p[i] > last && !special[i])
            l[i] = -INFINITY;
    for (uint32_t i = 0; i < vocab; i++) {
        uint32_t above = 0;
        for (uint32_t j = 0; j < vocab; j++)
            above += l[j] > l[i] || (l[j] == l[i] && j < i);
        p[i] = o->top_k > 0 && above >= (uint32_t)o->top_k ? -INFINITY : l[i];
    }
    for (uint32_t i = 0; i < vocab; i++)
        l[i] = p[i];
}

static void test_all_filters_one_by_one(void **state) {
    (void)state;
    static float logits[VOCAB_MAX];
    static double want[VOCAB_MAX], got[VOCAB_MAX];
    static const float P[] = {0, 0.3f, 0.9f, 0.999f}, MIN[] = {0, 0.5f, 0.01f, 1e-7f};
    static const float THRESHOLDS[] = {0.5f, 0.1f, 0.01f, 0};
    static const int32_t K[] = {0, 1, 5, 60};
    bool special[VOCAB_MAX] = {[3] = true, [70] = true};
    const int32_t ids[] = {70, -1, 3, 100000}; /* -1 and 100000 are not tokens here: ignored */
    srand(11);
    for (int round = 0; round < 400; round++) {
        uint32_t vocab = 71 + (uint32_t)rand() % 80;
        for (uint32_t i = 0; i < vocab; i++)
            logits[i] = (float)(rand() % 4096 * (int)VOCAB_MAX + (int)i) / 3e5f;
        logits[3] += (float)(rand() % 10);
        kvasir_sampling o = {.temp = 0.5f + (float)(rand() % 3),
                             .top_p = P[rand() % 4],
                             .min_p = MIN[rand() % 4],
                             .min_tokens_to_keep = 1 + (uint32_t)rand() % 4,
                             .xtc_probability = (float)(rand() % 4 > 0),
                             .xtc_threshold = THRESHOLDS[rand() % 4],
                             .xtc_special = ids,
                             .n_xtc_special = 4,
                             .top_k = K[rand() % 4]};
        double sum = 0;
        for (uint32_t i = 0; i < vocab; i++)
            want[i] = (double)logits[i];
        mlx_filters(want, vocab, &o, special);
        for (uint32_t i = 0; i < vocab; i++)
            sum += want[i] = m_exp((want[i] - 20) / (double)o.temp);
        kvasir_sampler *s = make(o, vocab);
        distribution(s, logits, vocab, got);
        for (uint32_t i = 0; i < vocab; i++)
            assert_true(fabs(got[i] - want[i] / sum) < 1e-6);
        kvasir_sampler_destroy(s);
    }
}

static void test_xtc_coin(void **state) {
    (void)state;
    enum { DRAWS = 20000 };
    static const double P[4] = {.4, .3, .15, .15};
    float logits[4];
    logits_of(P, logits);
    /* expected: 1/4 * {0, .5, .25, .25} + 3/4 * P, from one seed and from many */
    static const double WANT[4] = {.3, .35, .175, .175};
    kvasir_sampling o = {.temp = 1, .xtc_probability = 0.25f, .xtc_threshold = 0.2f, .seed = 5};
    kvasir_sampler *s = make(o, 4);
    int count[4] = {0};
    for (int i = 0; i < DRAWS; i++)
        count[kvasir_sampler_pick(s, logits)]++;
    kvasir_sampler_destroy(s);
    for (int i = 0; i < DRAWS; i++) {
        o.seed = (uint64_t)i;
        s = make(o, 4);
        count[kvasir_sampler_pick(s, logits)]++;
        kvasir_sampler_destroy(s);
    }
    for (int i = 0; i < 4; i++) {
        double expected = WANT[i] * 2 * DRAWS, deviation = sqrt(expected * (1 - WANT[i]));
        assert_true(fabs(count[i] - expected) < 5 * deviation);
    }
    /* reading the distribution does not change the coins of the next picks */
    double looked[4];
    kvasir_sampler *a = make(o, 4), *b = make(o, 4);
    for (int i = 0; i < 100; i++) {
        distribution(a, logits, 4, looked);
        int32_t id = kvasir_sampler_pick(a, logits);
        assert_true(looked[id] > 0);
        assert_int_equal(id, kvasir_sampler_pick(b, logits));
    }
    kvasir_sampler_destroy(a);
    kvasir_sampler_destroy(b);
}

/* xtc may leave only tokens so far below the largest that their weights next to it are 0. */
static void test_xtc_leaves_little(void **state) {
    (void)state;
    static const float LOGITS[6] = {NAN, 0, -INFINITY, -700, -700.5f, NAN};
    kvasir_sampling o = {
        .temp = 0.25f, .xtc_probability = 1, .xtc_threshold = 0, .min_tokens_to_keep = 1};
    for (int filters = 0; filters < 4; filters++) {
        o.top_p = filters & 1 ? 1 - 0x1p-20f : 0;
        o.top_k = filters & 2 ? 5 : 0;
        kvasir_sampler *s = make(o, 6);
        for (int i = 0; i < 50; i++) {
            int32_t id = kvasir_sampler_pick(s, LOGITS);
            assert_int_equal(id, filters & 1 ? 1 : 4);
        }
        kvasir_sampler_destroy(s);
    }
}

/* Samplers of all kinds take turns on one scratch buffer: each draws what it draws alone. */
static void test_shared_scratch(void **state) {
    (void)state;
    enum { N = 32 };
    static float logits[VOCAB_MAX];
    const int32_t special[] = {1, 2, 3};
    const kvasir_logit_bias bias[] = {{5, 3}, {1023, -1}};
    struct sampler_scratch *scratch;
    kvasir_sampler *alone[N], *shared[N];
    kvasir_error err;
    assert_int_equal(sampler_scratch_create(VOCAB_MAX, &scratch, &err), KVASIR_OK);
    assert_true(sampler_scratch_bytes(VOCAB_MAX) >= 21 * VOCAB_MAX);
    assert_true(sampler_scratch_bytes(VOCAB_MAX) < 21 * VOCAB_MAX + 128);
    for (int i = 0; i < N; i++) {
        kvasir_sampling o = kvasir_sampling_defaults();
        o.temp = (float)(i & 1);
        o.top_p = i & 2 ? 0.9f : 0;
        o.xtc_probability = i & 4 ? 0.5f : 0;
        o.top_k = i & 8 ? 20 : 0;
        o.presence_penalty = i & 16 ? 0.5f : 0;
        o.frequency_penalty = i % 3 ? 0.25f : 0;
        o.frequency_context = 7;
        o.presence_context = i & 2 ? 1 << 20 : 20; /* all accepted tokens */
        o.repetition_penalty = i % 5 ? 1.1f : 0;
        o.logit_bias = bias, o.n_logit_bias = i & 1 ? 2 : 1;
        o.xtc_special = special, o.n_xtc_special = 3;
        o.seed = (uint64_t)i % 4;
        assert_int_equal(kvasir_sampler_create(&o, VOCAB_MAX, &alone[i], &err), KVASIR_OK);
        assert_int_equal(sampler_create_shared(&o, VOCAB_MAX, 60, scratch, &shared[i], &err),
                         KVASIR_OK);
    }
    int32_t drawn[N][60];
    for (int i = 0; i < N; i++)
        for (int step = 0; step < 60; step++) {
            bumpy(logits, VOCAB_MAX, (uint32_t)step);
            drawn[i][step] = kvasir_sampler_pick(alone[i], logits);
            kvasir_sampler_accept(alone[i], drawn[i][step]);
        }
    for (int step = 0; step < 60; step++)
        for (int i = N; i-- > 0;) {
            bumpy(logits, VOCAB_MAX, (uint32_t)step);
            assert_int_equal(kvasir_sampler_pick(shared[i], logits), drawn[i][step]);
            kvasir_sampler_accept(shared[i], drawn[i][step]);
        }
    for (int i = 0; i < N; i++) {
        kvasir_sampler_destroy(alone[i]);
        kvasir_sampler_destroy(shared[i]);
    }
    sampler_scratch_destroy(scratch);
    sampler_scratch_destroy(NULL);
}

static void test_logprobs(void **state) {
    (void)state;
    static float logits[VOCAB_MAX];
    kvasir_token_logprob top[TOP_LOGPROBS_MAX];
    float logprob;
    for (uint32_t vocab = 1; vocab <= VOCAB_MAX; vocab = vocab * 2 + vocab % 3) {
        bumpy(logits, vocab, vocab);
        double sum = 0;
        for (uint32_t i = 0; i < vocab; i++)
            sum += m_exp((double)logits[i]);
        uint32_t n_top = vocab < TOP_LOGPROBS_MAX ? vocab : TOP_LOGPROBS_MAX;
        for (uint32_t n = 0; n <= n_top; n++) {
            uint32_t token = (n * 31) % vocab;
            sampler_logprobs(logits, vocab, (int32_t)token, n, &logprob, top);
            assert_true(fabs((double)logprob - ((double)logits[token] - m_log(sum))) < 1e-5);
            for (uint32_t i = 0; i < n; i++) {
                uint32_t before = 0, id = (uint32_t)top[i].token;
                for (uint32_t j = 0; j < vocab; j++)
                    before += (uint32_t)rank_better(logits, j, id);
                assert_int_equal(before, i);
                assert_true(fabs((double)top[i].logprob - ((double)logits[id] - m_log(sum))) <
                            1e-5);
            }
        }
    }
}

static void test_logprobs_of_odd_logits(void **state) {
    (void)state;
    static const float INF[4] = {NAN, INFINITY, 3, INFINITY}, GONE[3] = {NAN, -INFINITY, NAN};
    static const float SOME[4] = {NAN, -INFINITY, 1, 1};
    kvasir_token_logprob top[4];
    float logprob;
    sampler_logprobs(INF, 4, 2, 3, &logprob, top);
    assert_true(isinf(logprob) && logprob < 0);
    assert_int_equal(top[0].token, 1);
    assert_int_equal(top[1].token, 3);
    assert_int_equal(top[2].token, 2);
    assert_true(fabs((double)top[1].logprob + m_log(2)) < 1e-6);
    sampler_logprobs(GONE, 3, 0, 3, &logprob, top);
    for (int i = 0; i < 3; i++)
        assert_true(fabs((double)top[i].logprob + m_log(3)) < 1e-6);
    sampler_logprobs(SOME, 4, 0, 4, &logprob, top);
    assert_true(isinf(logprob) && logprob < 0);
    static const int32_t ORDER[4] = {2, 3, 0, 1};
    for (int i = 0; i < 4; i++)
        assert_int_equal(top[i].token, ORDER[i]);
}

static void test_same_seed_same_tokens(void **state) {
    (void)state;
    static float logits[VOCAB_MAX];
    bumpy(logits, VOCAB_MAX, 7);
    kvasir_sampling o = {.temp = 1, .top_p = 0.95f, .seed = 42};
    kvasir_sampler *a = make(o, VOCAB_MAX), *b = make(o, VOCAB_MAX);
    o.seed = 43;
    kvasir_sampler *c = make(o, VOCAB_MAX);
    int other = 0;
    for (int i = 0; i < 200; i++) {
        int32_t id = kvasir_sampler_pick(a, logits);
        kvasir_sampler_accept(a, id); /* without penalties it makes no difference to b */
        assert_int_equal(id, kvasir_sampler_pick(b, logits));
        other += id != kvasir_sampler_pick(c, logits);
    }
    assert_true(other > 150);
    kvasir_sampler_destroy(a);
    kvasir_sampler_destroy(b);
    kvasir_sampler_destroy(c);
}

static void test_draws_follow_the_distribution(void **state) {
    (void)state;
    static const double P[4] = {.1, .2, .3, .4};
    enum { DRAWS = 40000 };
    float logits[4];
    int count[4] = {0};
    logits_of(P, logits);
    /* consecutive seeds, one draw each, and one seed, many draws: both must be uniform */
    kvasir_sampler *s = make((kvasir_sampling){.temp = 1, .seed = 1}, 4);
    for (int i = 0; i < DRAWS; i++)
        count[kvasir_sampler_pick(s, logits)]++;
    kvasir_sampler_destroy(s);
    for (int i = 0; i < DRAWS; i++) {
        s = make((kvasir_sampling){.temp = 1, .seed = (uint64_t)i}, 4);
        count[kvasir_sampler_pick(s, logits)]++;
        kvasir_sampler_destroy(s);
    }
    for (int i = 0; i < 4; i++) {
        double expected = P[i] * 2 * DRAWS, deviation = sqrt(expected * (1 - P[i]));
        assert_true(fabs(count[i] - expected) < 5 * deviation);
    }
}

/* ---- allowed tokens -------------------------------------------------------------------------- */

static bool in_set(const uint64_t *bits, uint32_t id) {
    return bits[id / 64] >> id % 64 & 1;
}

/* The draws are those from logits with all other tokens at -inf, whatever the options. */
static void test_allowed_is_as_if_others_were_out(void **state) {
    (void)state;
    enum { VOCAB = 700 };
    static float logits[VOCAB], masked[VOCAB];
    uint64_t bits[(VOCAB + 63) / 64];
    const kvasir_logit_bias bias[] = {{3, 50}, {699, 30}, {64, -5}};
    srand(11);
    for (int round = 0; round < 300; round++) {
        kvasir_sampling o = {.temp = (float)(round % 4), .seed = (uint64_t)round};
        o.top_p = round & 4 ? 0.8f : 0;
        o.min_p = round & 8 ? 0.05f : 0;
        o.top_k = round & 16 ? 5 : 0;
        o.xtc_probability = round & 32 ? 1 : 0;
        o.xtc_threshold = 0.1f;
        o.min_tokens_to_keep = round & 64 ? 10 : 0;
        o.repetition_penalty = round & 128 ? 1.5f : 0;
        o.logit_bias = bias;
        o.n_logit_bias = round & 1 ? 3 : 0;
        kvasir_sampler *a = make(o, VOCAB), *b = make(o, VOCAB);
        memset(bits, 0, sizeof bits);
        for (int n = 1 + (round % 3 ? rand() % 10 : rand() % VOCAB); n > 0; n--) {
            const int id = rand() % VOCAB;
            bits[id / 64] |= 1ULL << id % 64;
        }
        sampler_allow(a, bits);
        for (int draw = 0; draw < 20; draw++) {
            for (uint32_t i = 0; i < VOCAB; i++) {
                logits[i] = (float)(rand() % 1000) / 100 + (in_set(bits, i) ? 0 : 100);
                masked[i] = in_set(bits, i) ? logits[i] : -INFINITY;
            }
            const int32_t id = kvasir_sampler_pick(a, logits);
            assert_true(in_set(bits, (uint32_t)id));
            assert_int_equal(id, kvasir_sampler_pick(b, masked));
            kvasir_sampler_accept(a, id);
            kvasir_sampler_accept(b, id);
        }
        sampler_allow(a, NULL);
        const int32_t id = kvasir_sampler_pick(a, logits);
        assert_int_equal(id, kvasir_sampler_pick(b, logits));
        kvasir_sampler_destroy(a);
        kvasir_sampler_destroy(b);
    }
}

/* Odd logits: the only allowed token is picked all the same. */
static void test_allowed_of_odd_logits(void **state) {
    (void)state;
    enum { VOCAB = 130 };
    static const float odd[] = {-INFINITY, NAN, INFINITY, -3.4e38f, 3.4e38f};
    float logits[VOCAB];
    for (uint32_t only = 0; only < VOCAB; only += 43)
        for (int i = 0; i < 5; i++)
            for (int k = 0; k < 5; k++)
                for (int temp = 0; temp < 2; temp++) {
                    uint64_t bits[3] = {0};
                    bits[only / 64] |= 1ULL << only % 64;
                    kvasir_sampler *s = make(
                        (kvasir_sampling){.temp = (float)temp, .top_k = 3, .repetition_penalty = 2},
                        VOCAB);
                    kvasir_sampler_accept(s, (int32_t)only);
                    for (uint32_t t = 0; t < VOCAB; t++)
                        logits[t] = odd[t == only ? i : k];
                    sampler_allow(s, bits);
                    assert_int_equal(kvasir_sampler_pick(s, logits), only);
                    kvasir_sampler_destroy(s);
                }
}

static void test_bad_options(void **state) {
    (void)state;
    static const kvasir_logit_bias HIGH[] = {{0, 1}, {4, 1}}, LOW[] = {{-1, 1}};
    static const kvasir_logit_bias INFINITE[] = {{1, INFINITY}};
    static const struct {
        kvasir_sampling o;
        const char *field, *text;
    } CASES[] = {
        {{.temp = -1}, "sampling.temp", ""},
        {{.temp = NAN}, "sampling.temp", ""},
        {{.temp = INFINITY}, "sampling.temp", ""},
        {{.top_p = 1.5f}, "sampling.top_p", ""},
        {{.top_p = NAN}, "sampling.top_p", ""},
        {{.min_p = -0.1f}, "sampling.min_p", ""},
        {{.top_k = -1}, "sampling.top_k", ""},
        {{.top_k = 5}, "sampling.top_k", ""},
        {{.repetition_penalty = -1}, "sampling.repetition_penalty", ""},
        {{.repetition_penalty = 1.1f}, "sampling.repetition_context", "0 is not"},
        {{.repetition_penalty = 1.1f, .repetition_context = 1 << 30},
         "sampling.repetition_context",
         "1073741824"},
        {{.presence_penalty = NAN, .presence_context = 1}, "sampling.presence_penalty", "nan"},
        {{.presence_penalty = 1}, "sampling.presence_context", "0 is not"},
        {{.frequency_penalty = -INFINITY, .frequency_context = 1},
         "sampling.frequency_penalty",
         "-inf"},
        {{.frequency_penalty = 1}, "sampling.frequency_context", "0 is not"},
        {{.frequency_penalty = 1, .frequency_context = UINT32_MAX},
         "sampling.frequency_context",
         ""},
        {{.min_tokens_to_keep = 5}, "sampling.min_tokens_to_keep", "5"},
        {{.xtc_probability = 1.1f}, "sampling.xtc_probability", ""},
        {{.xtc_probability = NAN}, "sampling.xtc_probability", ""},
        {{.xtc_threshold = 0.6f}, "sampling.xtc_threshold", "0.6"},
        {{.xtc_threshold = -0.1f}, "sampling.xtc_threshold", ""},
        {{.logit_bias = HIGH, .n_logit_bias = 2}, "sampling.logit_bias", "id 4"},
        {{.logit_bias = LOW, .n_logit_bias = 1}, "sampling.logit_bias", "id -1"},
        {{.logit_bias = INFINITE, .n_logit_bias = 1}, "sampling.logit_bias", "inf of id 1"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        kvasir_sampler *s = NULL;
        kvasir_error err;
        kvasir_sampling o = CASES[i].o;
        o.struct_size = sizeof o;
        assert_int_equal(kvasir_sampler_create(&o, 4, &s, &err), KVASIR_ERR_ARGUMENT);
        assert_null(s);
        assert_string_equal(err.field, CASES[i].field);
        assert_memory_equal(err.text, CASES[i].text, __builtin_strlen(CASES[i].text));
    }
    kvasir_sampler *s = NULL;
    const kvasir_sampling defaults = kvasir_sampling_defaults();
    assert_int_equal(kvasir_sampler_create(&defaults, 0, &s, NULL), KVASIR_ERR_ARGUMENT);
    kvasir_sampler_destroy(NULL);
}

static void test_defaults(void **state) {
    (void)state;
    kvasir_sampling o = kvasir_sampling_defaults();
    assert_true(o.temp == 0 && o.repetition_penalty == 0);
    assert_int_equal(o.repetition_context, 20);
    assert_true(o.presence_penalty == 0 && o.frequency_penalty == 0 && o.n_logit_bias == 0);
    assert_int_equal(o.presence_context, 20);
    assert_int_equal(o.frequency_context, 20);
    assert_true(o.xtc_probability == 0 && o.xtc_threshold == 0.1f && o.min_tokens_to_keep == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mlx_vectors),
        cmocka_unit_test(test_filters_use_temperature_one),
        cmocka_unit_test(test_repetition_penalty),
        cmocka_unit_test(test_repetition_context),
        cmocka_unit_test(test_presence_and_frequency),
        cmocka_unit_test(test_logit_bias),
        cmocka_unit_test(test_greedy_is_penalised),
        cmocka_unit_test(test_argmax),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_filters_against_sorting),
        cmocka_unit_test(test_min_tokens_to_keep),
        cmocka_unit_test(test_all_filters_one_by_one),
        cmocka_unit_test(test_xtc_coin),
        cmocka_unit_test(test_xtc_leaves_little),
        cmocka_unit_test(test_shared_scratch),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_logprobs_of_odd_logits),
        cmocka_unit_test(test_same_seed_same_tokens),
        cmocka_unit_test(test_draws_follow_the_distribution),
        cmocka_unit_test(test_allowed_is_as_if_others_were_out),
        cmocka_unit_test(test_allowed_of_odd_logits),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
