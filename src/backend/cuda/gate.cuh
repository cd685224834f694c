// SPDX-License-Identifier: Apache-2.0
// gate.cuh: gates and their functions, in float32; the definition is cpu/ref/elementwise.c.
#pragma once

#include "backend/cuda/internal.cuh"

__device__ __forceinline__ float sigmoid_of(float x) {
    return 1.0f / (1.0f + expf(-x));
}

// gated(g) * u
__device__ __forceinline__ float gate_value(gate_kind kind, float g, float u) {
    constexpr float GELU_TWO_ROOTS = 2 * 0.7978845608028654f, GELU_CUBIC = 0.044715f,
                    SWIGLU_ALPHA = 1.702f, LIMIT = SWIGLU_LIMIT;
    switch (kind) {
    case GATE_NONE:
        return g * u;
    case GATE_SILU:
        return g * sigmoid_of(g) * u;
    case GATE_GELU_TANH: // (1 + tanh v) / 2 is the sigmoid of 2 v
        return g * sigmoid_of(GELU_TWO_ROOTS * (g + GELU_CUBIC * g * g * g)) * u;
    case GATE_SIGMOID:
        return sigmoid_of(g) * u;
    default: // GATE_SWIGLU_CLAMPED; comparisons, so that NaN stays
        g = g > LIMIT ? LIMIT : g;
        u = u > LIMIT ? LIMIT : u < -LIMIT ? -LIMIT : u;
        return g * sigmoid_of(SWIGLU_ALPHA * g) * (u + 1.0f);
    }
}
