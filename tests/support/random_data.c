/* SPDX-License-Identifier: Apache-2.0 */
/* random_data.c: see the header. */
#include <math.h>

#include "random_data.h"

const float EDGE_VALUE[EDGE_VALUES] = {
    INFINITY,  -INFINITY, NAN,      65504,  65520,      -65519.996f, 3e38f,      -3e38f,
    0x1p-24f,  6e-8f,     0x1p-25f, 1e-45f, -1e-40f,    1e-7f,       -1e-7f,     5e-8f,
    0x1p-133f, -0.0f,     1,        -1,     1.0009765f, 2049,        3.3895e38f, 0.5f};

static uint64_t random_state;

void random_start(uint64_t seed, const char *text) {
    random_state = seed;
    for (const char *c = text; *c; c++)
        random_state = (random_state ^ (uint8_t)*c) * 0x100000001b3u;
}

uint32_t random_bits(void) { /* splitmix64 */
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(z >> 32);
}

uint32_t random_below(uint32_t n) {
    return (uint32_t)((uint64_t)random_bits() * n >> 32);
}

static float random_unit(void) { /* (0, 1) */
    return ((float)(random_bits() >> 8) + 0.5f) * 0x1p-24f;
}

/* Nearly: the sum of four uniform numbers, at most 3.5 deviations from 0. A logarithm and a cosine
 * for each took a sixth of kcheck's time; what is larger comes from the other kinds of fill. */
float random_normal(void) {
    const uint32_t a = random_bits(), b = random_bits();
    const int sum = (int)((a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16)) - 2 * 0xffff;
    return (float)sum * (1.7320508f / 65536);
}

float random_of(const float *values, uint32_t n) {
    return values[random_below(n)];
}

static float fill_one(enum fill_kind kind, float v) {
    switch (kind) {
    case FILL_UNIFORM:
        return random_unit();
    case FILL_ZERO:
        return random_bits() & 1 ? 0.0f : -0.0f;
    case FILL_CONSTANT:
        return v;
    case FILL_OUTLIERS:
        return random_normal() * (random_below(40) == 0 ? 1e4f : 1);
    case FILL_TINY:
        return random_normal() * ldexpf(1, -14 - (int)random_below(134));
    case FILL_SCALES:
        return random_normal() * ldexpf(1, 10 - (int)random_below(31));
    case FILL_SIGNS:
        return random_bits() & 1 ? v : -v;
    case FILL_NARROW:
        return v * 100 + random_normal() * 1e-3f;
    default:
        return random_normal();
    }
}

void fill(float *x, size_t n, enum fill_kind kind) {
    float v = random_normal();
    for (size_t i = 0; i < n; i++)
        x[i] = kind == FILL_ONE ? 0 : fill_one(kind, v);
    if (kind == FILL_ONE && n > 0)
        x[random_below((uint32_t)n)] = v;
}

void fill_any(float *x, size_t n) {
    /* half of the cases are plain: the others try the edges */
    fill(x, n, random_bits() & 1 ? FILL_NORMAL : (enum fill_kind)random_below(FILL_KINDS));
}
