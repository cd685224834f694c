/* SPDX-License-Identifier: Apache-2.0 */
/* Rope frequencies: how far a pair of dims is rotated from one position to the next.
 *
 *     plain          theta^(-2i / dims), i = 0 .. dims / 2 - 1
 *     linear         / factor
 *     dynamic        theta * (factor * ctx / trained - (factor - 1))^(dims / (dims - 2)) in place
 *                    of theta, where ctx is above the trained length ("NTK")
 *     llama3, yarn   pairs whose wave is long relative to the original context / factor, short ones
 *                    unchanged, a blend in between
 *     longrope       / a factor of its own for each pair: the short list up to the original
 *                    context, the long one beyond
 *     proportional   plain for the first pairs, 0 for the rest, which are never rotated
 *
 * Anything that depends on length depends on ctx, which is fixed at start-up, not on the present
 * length of a sequence. Formulas are those of transformers' modeling_rope_utils.py. Computed in
 * double: the relative error of a float32 frequency is 1e-7, which is a tenth of a radian at
 * position 10^6.
 */
#include "model/model_internal.h"

#define TWO_PI 6.283185307179586

static double plain(double theta, uint32_t i, uint32_t dims) {
    return m_pow(theta, -2.0 * i / dims);
}

/* Depends on how many waves fit into the original context. */
static double llama3_scaled(const struct rope_config *r, double inv_freq) {
    double waves = r->original_ctx * inv_freq / TWO_PI;
    if (waves < r->low_freq_factor)
        return inv_freq / r->factor;
    if (waves > r->high_freq_factor)
        return inv_freq;
    double smooth = (waves - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - smooth) * inv_freq / r->factor + smooth * inv_freq;
}

/* The pair (a fraction) that makes that many turns over the original context. */
static double yarn_pair(const struct rope_config *r, double turns) {
    return r->dims * m_log(r->original_ctx / (turns * TWO_PI)) / (2 * m_log(r->theta));
}

static double whole(double x, bool up) {
    if (!(x > -1e9 && x < 1e9))
        return x;
    double down = (double)(int64_t)x;
    down -= down > x;
    return up && down < x ? down + 1 : down;
}

static void yarn_scale(const struct rope_config *r, double *inv_freq) {
    double low = yarn_pair(r, r->beta_fast), high = yarn_pair(r, r->beta_slow);
    if (r->truncate) {
        low = whole(low, false);
        high = whole(high, true);
    }
    low = low > 0 ? low : 0;
    high = high < r->dims - 1.0 ? high : r->dims - 1.0;
    if (!(high > low) && !(high < low))
        high += 0.001;
    for (uint32_t i = 0; i < r->dims / 2; i++) {
        double ramp = (i - low) / (high - low);
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        inv_freq[i] = inv_freq[i] / r->factor * ramp + inv_freq[i] * (1 - ramp);
    }
}

static double yarn_mscale(double factor, double mscale) {
    return factor <= 1 ? 1 : 0.1 * mscale * m_log(factor) + 1;
}

static double yarn_attention(const struct rope_config *r) {
    if (r->attention_factor > 0)
        return r->attention_factor;
    if (r->mscale > 0 && r->mscale_all_dim > 0)
        return yarn_mscale(r->factor, r->mscale) / yarn_mscale(r->factor, r->mscale_all_dim);
    return yarn_mscale(r->factor, 1);
}

static double longrope_attention(const struct rope_config *r, uint32_t ctx_train) {
    if (r->attention_factor > 0)
        return r->attention_factor;
    double factor = r->factor > 0 ? r->factor : (double)ctx_train / r->original_ctx;
    return factor <= 1 ? 1 : m_sqrt(1 + m_log(factor) / m_log(r->original_ctx));
}

static double theta_of(const struct rope_config *r, uint32_t ctx, uint32_t ctx_train) {
    if (r->kind != ROPE_DYNAMIC || ctx <= ctx_train || r->dims <= 2)
        return r->theta;
    double stretch = r->factor * ctx / ctx_train - (r->factor - 1);
    return r->theta * m_pow(stretch, r->dims / (r->dims - 2.0));
}

float rope_frequencies(const struct rope_config *r, uint32_t ctx, uint32_t ctx_train,
                       const float *factors, double *inv_freq) {
    const uint32_t n = r->dims / 2;
    ASSERT(r->dims >= 2 && r->dims % 2 == 0 && r->dims <= HEAD_DIM_MAX); /* load.c checks it */
    const double theta = theta_of(r, ctx, ctx_train);
    const float *longrope = ctx > r->original_ctx ? r->long_factors : r->short_factors;
    for (uint32_t i = 0; i < n; i++) {
        inv_freq[i] = plain(theta, i, r->dims);
        if (r->kind == ROPE_LLAMA3)
            inv_freq[i] = llama3_scaled(r, inv_freq[i]);
        if (r->kind == ROPE_LONG)
            inv_freq[i] /= (double)longrope[i];
        if (r->kind == ROPE_LINEAR || (r->kind == ROPE_PROPORTIONAL && r->factor > 0))
            inv_freq[i] /= r->factor;
        if (r->kind == ROPE_PROPORTIONAL && i >= r->rotated)
            inv_freq[i] = 0;
        if (factors)
            inv_freq[i] /= (double)factors[i];
    }
    if (r->kind == ROPE_YARN) {
        yarn_scale(r, inv_freq);
        return (float)yarn_attention(r);
    }
    if (r->kind == ROPE_LONG)
        return (float)longrope_attention(r, ctx_train);
    return r->attention_factor > 0 ? (float)r->attention_factor : 1.0f;
}

bool rope_has_factors(const struct rope_config *rope, const float *factors) {
    for (uint32_t i = 0; i < rope->dims / 2; i++) {
        double inv_freq = plain(rope->theta, i, rope->dims);
        double off = inv_freq / llama3_scaled(rope, inv_freq) / (double)factors[i] - 1;
        if (off > 1e-4 || off < -1e-4)
            return false;
    }
    return true;
}
