/* SPDX-License-Identifier: Apache-2.0 */
/* ref/recurrent.c: one token of the recurrent layers, sums in double; states and results are
 * rounded when they are stored.
 */
#include "backend/cpu/ref/ref.h"

void short_conv_ref(float *state, const float *w, size_t stride, uint32_t width, const float *x,
                    size_t n, bool silu, float *y) {
    ASSERT(width > 0);
    uint32_t last = width - 1;
    for (size_t c = 0; c < n; c++) {
        float in = x[c];
        double sum = 0;
        for (uint32_t j = 0; j < last; j++) {
            float *at = state + j * stride + c;
            sum += (double)w[j * stride + c] * *at;
            *at = j + 1 < last ? at[stride] : in;
        }
        sum += (double)w[last * stride + c] * in;
        y[c] = (float)(silu ? sum * m_sigmoid(sum) : sum);
    }
}

void delta_step_ref(float *state, uint32_t key_dim, uint32_t value_dim, const struct delta_token *t,
                    float *y) {
    for (uint32_t c = 0; c < value_dim; c++) {
        double held = 0, sum = 0;
        for (uint32_t i = 0; i < key_dim; i++)
            held += (double)t->k[i] * ((double)t->decay * state[(size_t)i * value_dim + c]);
        double change = t->beta * (t->v[c] - held);
        for (uint32_t i = 0; i < key_dim; i++) {
            float *s = state + (size_t)i * value_dim + c;
            *s = (float)((double)t->decay * *s + t->k[i] * change);
            sum += (double)t->q[i] * *s;
        }
        y[c] = (float)sum;
    }
}
