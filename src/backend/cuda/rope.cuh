// SPDX-License-Identifier: Apache-2.0
// rope.cuh: the arithmetic of rope, for the kernel of rows.cu and for the one that stores what it
// has turned (encode.cu): both make the same bits.
#pragma once

#include "backend/cuda/internal.cuh"

// A pair (a, b) turned by an angle.
struct turned_pair {
    float a, b;
};
__device__ __forceinline__ turned_pair turn_pair(float a, float b, float cos, float sin) {
    return {fmaf(a, cos, -(b * sin)), fmaf(a, sin, b * cos)};
}
