/* SPDX-License-Identifier: Apache-2.0 */
/* keys.c: what can be known of a model's keys before any token is run: their constant part and how
 * far they spread around it. Key centres are chosen from both (engine/centre.c). */
#include "model/model_internal.h"

/* Only every ROW_STEP-th row of Wk is read: the spread of a head is a mean over them. */
enum { ROW_STEP = 4 };

bool model_key_bias(const struct model *m, uint32_t layer, uint32_t head, float *mean) {
    const struct layer_weights *l = &m->layers[layer];
    const struct model_config *c = &m->config;
    if (!l->k_bias || l->k_norm) /* with a norm after it, it is not a constant */
        return false;
    ASSERT((head + 1) * c->head_dim <= m->vectors[l->k_bias].n);
    const float *bias = m->vectors[l->k_bias].data + (size_t)head * c->head_dim;
    uint32_t n = c->ropes[0].dims / 2;
    for (uint32_t j = 0; j < n; j++) {
        mean[2 * j] = c->ropes[0].adjacent ? bias[2 * j] : bias[j];
        mean[2 * j + 1] = c->ropes[0].adjacent ? bias[2 * j + 1] : bias[j + n];
    }
    return true;
}

/* A dim of a key is W h + b, where h is a vector of length sqrt(dim) whose parts are scaled by the
 * norm's gain. For random directions the mean square of W h is |W gain|^2. */
double model_key_spread(const struct model *m, uint32_t layer, uint32_t head, float *scratch) {
    const struct layer_weights *l = &m->layers[layer];
    const struct model_config *c = &m->config;
    const struct weight *keys = model_matrix(m, l->k);
    const struct weight_traits *traits = weight_traits_of(keys->type);
    const float *gain = m->vectors[l->attn_norm].data;
    double sum = 0;
    ASSERT((head + 1) * c->head_dim <= keys->n && keys->k == c->dim);
    for (uint32_t row = 0; row < c->head_dim; row += ROW_STEP) {
        traits->decode(keys, head * c->head_dim + row, scratch);
        for (uint32_t i = 0; i < c->dim; i++) {
            double x = (double)scratch[i] * (double)gain[i];
            sum += x * x;
        }
    }
    return m_sqrt(sum / ((c->head_dim + ROW_STEP - 1) / ROW_STEP));
}
