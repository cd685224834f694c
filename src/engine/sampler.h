/* SPDX-License-Identifier: Apache-2.0 */
/* sampler.h: the sampler seen from inside. The engine's own files and the tests look at the
 * distribution that a token is drawn from; everybody else uses kvasir.h.
 */
#ifndef KVASIR_ENGINE_SAMPLER_H
#define KVASIR_ENGINE_SAMPLER_H

#include "base/base.h"

/* The tokens that may be drawn and their weights (> 0 for the likeliest, not normalised): returns
 * their number n, 1 <= n <= vocab. ids [n], weights [n] belong to the sampler until its next call.
 * With temp 0 that is the one greedy token. A pick is a draw from this. */
size_t sampler_weigh(kvasir_sampler *s, const float *logits, const uint32_t **ids,
                     const double **weights);

#endif
