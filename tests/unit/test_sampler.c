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

#include <cmocka.h>

enum { VOCAB_MAX = 1024 };

static kvasir_sampler *make(kvasir_sampling o, uint32_t vocab) {
    kvasir_sampler *s = NULL;
    kvasir_error err;
    if (o.repetition_context == 0)
        o.repetition_context = 20;
    assert_int_equal(kvasir_sampler_create(&o, vocab, &s, &err), KVASIR_OK);
    return s;
}

/* What a token is drawn with, normalised; p [vocab]. */
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
    /* off */
    check_four((kvasir_sampling){.temp = 1, .top_p = 1, .top_k = 4}, C, C);
    check_four((kvasir_sampling){.temp = 1}, B, B);
}

static void test_filters_use_temperature_one(void **state) {
    (void)state;
    /* top_p 0.6 keeps two of B; at temperature 1/2 they are drawn with their squares. */
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
    kvasir_sampler_accept(s, -1); /* no id: nothing happens */
    kvasir_sampler_accept(s, 4);
    assert_int_equal(kvasir_sampler_pick(s, LOGITS), 0);
    kvasir_sampler_destroy(s);
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

/* The filters one after the other over a fully sorted vocabulary, as mlx-lm has them. */
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
        kvasir_sampler_accept(a, id); /* b accepts nothing: without a penalty that is the same */
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

static void test_bad_options(void **state) {
    (void)state;
    static const struct {
        kvasir_sampling o;
        const char *flag;
    } CASES[] = {
        {{.temp = -1}, "--temp"},
        {{.temp = NAN}, "--temp"},
        {{.temp = INFINITY}, "--temp"},
        {{.top_p = 1.5f}, "--top-p"},
        {{.top_p = NAN}, "--top-p"},
        {{.min_p = -0.1f}, "--min-p"},
        {{.top_k = -1}, "--top-k"},
        {{.top_k = 5}, "--top-k"},
        {{.repetition_penalty = -1}, "--repetition-penalty"},
        {{.repetition_penalty = 1.1f}, "--repetition-penalty"}, /* context 0 */
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        kvasir_sampler *s = NULL;
        kvasir_error err;
        assert_int_equal(kvasir_sampler_create(&CASES[i].o, 4, &s, &err), KVASIR_ERR_ARGUMENT);
        assert_null(s);
        assert_memory_equal(err.text, CASES[i].flag, __builtin_strlen(CASES[i].flag));
    }
    kvasir_sampler *s = NULL;
    assert_int_equal(kvasir_sampler_create(&(kvasir_sampling){0}, 0, &s, NULL),
                     KVASIR_ERR_ARGUMENT);
    kvasir_sampler_destroy(NULL);
}

static void test_defaults(void **state) {
    (void)state;
    kvasir_sampling o = kvasir_sampling_defaults();
    assert_true(o.temp == 0 && o.repetition_penalty == 0);
    assert_int_equal(o.repetition_context, 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mlx_vectors),
        cmocka_unit_test(test_filters_use_temperature_one),
        cmocka_unit_test(test_repetition_penalty),
        cmocka_unit_test(test_repetition_context),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_filters_against_sorting),
        cmocka_unit_test(test_same_seed_same_tokens),
        cmocka_unit_test(test_draws_follow_the_distribution),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
