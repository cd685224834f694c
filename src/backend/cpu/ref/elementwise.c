/* SPDX-License-Identifier: Apache-2.0 */
/* ref/elementwise.c: the small operations of a layer, in double and rounded once. */
#include <string.h>

#include "backend/cpu/ref/ref.h"

void rms_norm_ref(const float *x, const float *gain, uint32_t dim, float eps, float *y) {
    double sum = 0;
    for (uint32_t i = 0; i < dim; i++)
        sum += (double)x[i] * x[i];
    double inverse = 1 / m_sqrt(sum / dim + (double)eps);
    for (uint32_t i = 0; i < dim; i++)
        y[i] = (float)(x[i] * inverse * gain[i]);
}

void rope_ref(float *head, uint32_t n, const float *cos_in, const float *sin_in, bool adjacent) {
    float in[HEAD_DIM_MAX];
    memcpy(in, head, 2 * (size_t)n * sizeof *in);
    for (uint32_t i = 0; i < n; i++) {
        double a = adjacent ? in[2 * i] : in[i], b = adjacent ? in[2 * i + 1] : in[i + n];
        head[i] = (float)(a * cos_in[i] - b * sin_in[i]);
        head[i + n] = (float)(b * cos_in[i] + a * sin_in[i]);
    }
}

void silu_mul_ref(const float *gate, const float *up, size_t n, float *y) {
    for (size_t i = 0; i < n; i++) {
        double g = gate[i];
        y[i] = (float)(g / (1 + m_exp(-g)) * up[i]);
    }
}

void add_ref(float *x, const float *y, size_t n) {
    for (size_t i = 0; i < n; i++)
        x[i] += y[i];
}
