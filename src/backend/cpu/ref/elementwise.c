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
        y[i] = (float)(x[i] * inverse * (gain ? gain[i] : 1.0f));
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

/* What a gate makes of its input, in double. */
static double gated(enum gate_kind kind, double x) {
    switch (kind) {
    case GATE_SILU:
        return x * m_sigmoid(x);
    case GATE_GELU_TANH: /* (1 + tanh u) / 2 is the sigmoid of 2 u, without what tanh loses at -1 */
        return x * m_sigmoid(2 * GELU_ROOT * (x + GELU_CUBIC * x * x * x));
    case GATE_SIGMOID:
        return m_sigmoid(x);
    default:
        x = x > (double)SWIGLU_LIMIT ? (double)SWIGLU_LIMIT : x;
        return x * m_sigmoid(SWIGLU_ALPHA * x);
    }
}

void gate_none_ref(const float *gate, const float *up, size_t n, float *y) {
    for (size_t i = 0; i < n; i++)
        y[i] = gate[i] * up[i];
}

void gate_silu_ref(const float *gate, const float *up, size_t n, float *y) {
    for (size_t i = 0; i < n; i++)
        y[i] = (float)(gated(GATE_SILU, gate[i]) * up[i]);
}

void gate_gelu_tanh_ref(const float *gate, const float *up, size_t n, float *y) {
    for (size_t i = 0; i < n; i++)
        y[i] = (float)(gated(GATE_GELU_TANH, gate[i]) * up[i]);
}

void gate_sigmoid_ref(const float *gate, const float *up, size_t n, float *y) {
    for (size_t i = 0; i < n; i++)
        y[i] = (float)(gated(GATE_SIGMOID, gate[i]) * up[i]);
}

void gate_swiglu_clamped_ref(const float *gate, const float *up, size_t n, float *y) {
    for (size_t i = 0; i < n; i++) {
        float u = up[i] > SWIGLU_LIMIT    ? SWIGLU_LIMIT
                  : up[i] < -SWIGLU_LIMIT ? -SWIGLU_LIMIT
                                          : up[i];
        y[i] = (float)(gated(GATE_SWIGLU_CLAMPED, gate[i]) * ((double)u + 1));
    }
}

void add_ref(float *x, const float *y, float scale, size_t n) {
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(x[i] + (double)scale * y[i]);
}

void scale_ref(float *x, float scale, size_t n) {
    for (size_t i = 0; i < n; i++)
        x[i] *= scale;
}

void softcap_ref(float *x, size_t n, float cap) {
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(cap * m_tanh((double)x[i] / cap));
}
