/* SPDX-License-Identifier: Apache-2.0 */
/* exp (exp.h), log, tanh, sin and cos that have the same bits on every machine: only +, -, *, /,
 * conversions and bits of IEEE doubles, in the order written (the build sets -ffp-contract=off),
 * polynomials after an exact argument reduction.
 *
 * These are not fast, except m_exp_each and m_exp_sum, which run over whole vocabularies. The
 * exponentials of attention are vectors inside backend/cpu's tiers; these functions serve tables,
 * merges and sampling.
 */
#include "util/exp.h"
#include "util/util.h"

double m_exp(double x) {
    return exp_lane(x);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void exp_each_avx2(double *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        x[i] = exp_lane(x[i]);
}
#endif

void m_exp_each(double *x, size_t n) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) { /* cached at start: cpuid is slow in a virtual machine */
        exp_each_avx2(x, n);
        return;
    }
#endif
    for (size_t i = 0; i < n; i++)
        x[i] = exp_lane(x[i]);
}

float m_expf(float x) {
    return (float)m_exp((double)x);
}

/* The sum of a block's values, at most EXP_SUM_BLOCK: the same on every machine (exp.h). */
static inline __attribute__((always_inline)) double exp_sum_block(const float *x, size_t n,
                                                                  float max, float scale) {
    float lanes[EXP_SUM_LANES] = {0};
    double sums[EXP_SUM_LANES];
    size_t i = 0;
    for (; i + EXP_SUM_LANES <= n; i += EXP_SUM_LANES)
        for (size_t l = 0; l < EXP_SUM_LANES; l++)
            lanes[l] += exp_lane_f((x[i + l] - max) * scale);
    for (; i < n; i++)
        lanes[0] += exp_lane_f((x[i] - max) * scale);
    for (size_t l = 0; l < EXP_SUM_LANES; l++)
        sums[l] = (double)lanes[l];
    for (size_t half = EXP_SUM_LANES / 2; half > 0; half /= 2)
        for (size_t l = 0; l < half; l++)
            sums[l] += sums[l + half];
    return sums[0];
}

static inline __attribute__((always_inline)) double exp_sum(const float *x, size_t n, float max,
                                                            float scale) {
    double sum = 0;
    for (size_t at = 0; at < n; at += EXP_SUM_BLOCK)
        sum += exp_sum_block(x + at, n - at < EXP_SUM_BLOCK ? n - at : EXP_SUM_BLOCK, max, scale);
    return sum;
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static double exp_sum_avx2(const float *x, size_t n, float max,
                                                           float scale) {
    return exp_sum(x, n, max, scale);
}
#endif

double m_exp_sum(const float *x, size_t n, float max, float scale) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        return exp_sum_avx2(x, n, max, scale);
#endif
    return exp_sum(x, n, max, scale);
}

/* 2 artanh s - 2 s for |s| < 0.172: the next term is s^23/23 < 2e-19. */
static double artanh_rest(double s) {
    double z = s * s, p = 1.0 / 21.0;
    for (int i = 19; i >= 3; i -= 2)
        p = p * z + 1.0 / i;
    return 2.0 * s * z * p;
}

/* x = 2^k m, m in [sqrt(1/2), sqrt 2); ln m = 2 artanh s, s = (m-1)/(m+1). */
double m_log(double x) {
    if (!(x > 0))
        return x == 0 ? -(double)INFINITY : (double)NAN;
    if (x > 1.7976931348623157e308)
        return x;
    int k = 0;
    if (x < 2.2250738585072014e-308) {
        x *= 18014398509481984.0; /* 2^54 */
        k = -54;
    }
    uint64_t u = bits_of_double(x);
    k += (int)(u >> 52) - 1023;
    double m = double_of_bits((u & 0xfffffffffffffULL) | 0x3ff0000000000000ULL);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        k++;
    }
    double s = (m - 1.0) / (m + 1.0);
    return k * LN2_HIGH + (2.0 * s + (artanh_rest(s) + k * LN2_LOW));
}

double m_pow(double base, double exponent) {
    return m_exp(exponent * m_log(base));
}

/* tanh a = e / (e + 2) with e = e^2a - 1; near 0 that e is summed without the 1. */
double m_tanh(double x) {
    double a = x < 0 ? -x : x;
    if (x != x)
        return x;
    double e = 2 * a < 0.34 ? exp_rest(2 * a) : m_exp(2 * a) - 1.0;
    double t = a > 20 ? 1.0 : e / (e + 2.0);
    return x < 0 ? -t : t;
}

/* At worst one term vanishes next to the other's 1. Overflow only reaches the limit. */
double m_sigmoid(double x) {
    return 1.0 / (1.0 + m_exp(-x));
}

/* max(x, 0) + ln(1 + e), e = e^-|x|; a small e would vanish in 1 + e. */
double m_softplus(double x) {
    double e = m_exp(x < 0 ? x : -x), s = e / (2.0 + e);
    double rest = e < 0.41 ? 2.0 * s + artanh_rest(s) : m_log(1.0 + e);
    return x > 0 ? x + rest : rest;
}

/* |x| = mantissa * 2^-shift. In units of a quarter turn it is mantissa * (2/pi) * 2^-shift. 2/pi to
 * 128 bits makes the 64 fraction bits exact enough for every |x| < 2^40. Returns the quarter turns
 * mod 4 and the rest in [-pi/4, pi/4]. */
static unsigned reduce_quarter(double x, double *rest) {
    static const uint64_t two_over_pi_high = 0xa2f9836e4e441529ULL,
                          two_over_pi_low = 0xfc2757d1f534ddc0ULL;
    uint64_t u = bits_of_double(x);
    uint64_t mantissa = (u & 0xfffffffffffffULL) | 0x10000000000000ULL;
    int shift = 1075 - (int)(u >> 52); /* 13 .. 53 for x in [0.5, 2^40) */
    unsigned __int128 low = (unsigned __int128)mantissa * two_over_pi_low;
    unsigned __int128 high = (unsigned __int128)mantissa * two_over_pi_high + (uint64_t)(low >> 64);
    /* x * 2/pi = (high * 2^64 + low part) * 2^-(128 + shift): the binary point is at bit 64 + shift
     * of `high`. */
    unsigned __int128 turns = high >> shift; /* point at bit 64 */
    unsigned quarter = (unsigned)(turns >> 64);
    int64_t fraction = (int64_t)(uint64_t)turns; /* >= 1/2 turns negative: round to nearest */
    if (fraction < 0)
        quarter++;
    *rest = (double)fraction * 5.421010862427522e-20 * 1.5707963267948966;
    return quarter & 3;
}

void m_sincos(double x, double *sin_out, double *cos_out) {
    double a = x < 0 ? -x : x, r = a;
    if (!(a < 0x1p40)) { /* NaN, or absurd values of a file */
        *sin_out = 0;
        *cos_out = 1;
        return;
    }
    unsigned quarter = a < 0.5 ? 0 : reduce_quarter(a, &r);
    double z = r * r;
    /* Taylor: next terms r^19/19! < 1e-19 and r^20/20! < 4e-21 at pi/4. */
    double s = 1.0 / 355687428096000.0, c = -1.0 / 6402373705728000.0;
    static const double sine[] = {
        -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0,
        -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0};
    static const double cosine[] = {
        1.0 / 20922789888000.0, -1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0,
        1.0 / 40320.0,          -1.0 / 720.0,         1.0 / 24.0};
    for (size_t i = 0; i < sizeof sine / sizeof *sine; i++) {
        s = s * z + sine[i];
        c = c * z + cosine[i];
    }
    s = r + r * z * s;
    c = 1.0 - (0.5 * z - z * z * c);
    double sines[4] = {s, c, -s, -c}, cosines[4] = {c, -s, -c, s};
    *sin_out = x < 0 ? -sines[quarter] : sines[quarter];
    *cos_out = cosines[quarter];
}

/* The square root is one correctly rounded instruction everywhere. */
double m_sqrt(double x) {
    return __builtin_sqrt(x);
}
