/* SPDX-License-Identifier: Apache-2.0 */
/* sampler.h: the sampler seen from inside. The engine's own files and the tests look at the
 * distribution that a token is drawn from, and let samplers share scratch; everybody else uses
 * kvasir.h.
 */
#ifndef KVASIR_ENGINE_SAMPLER_H
#define KVASIR_ENGINE_SAMPLER_H

#include "kvasir.h"
#include "util/util.h"

/* What a pick needs for a whole vocabulary, 21 bytes a token. Samplers of one thread may share it:
 * it holds nothing between two picks. */
struct sampler_scratch;
kvasir_status sampler_scratch_create(uint32_t vocab, struct sampler_scratch **out,
                                     kvasir_error *err) MUST_CHECK;
void sampler_scratch_destroy(struct sampler_scratch *scratch);
size_t sampler_scratch_bytes(uint32_t vocab); /* of the heap */

/* kvasir_sampler_create with scratch for this vocabulary, which is borrowed for the sampler's life:
 * what is left of a sampler has the size of its options and contexts. At most `accepts` ids will be
 * accepted: a context that looks further back takes no room for more. */
kvasir_status sampler_create_shared(const kvasir_sampling *sampling, uint32_t vocab,
                                    uint32_t accepts, struct sampler_scratch *scratch,
                                    kvasir_sampler **out, kvasir_error *err) MUST_CHECK;

/* From now on only these tokens are picked: bits, token i in bit i % 64 of word i / 64, borrowed
 * until the last pick and looked at by each; at least one is set. The logits of all others are -inf
 * before anything else is done with them. NULL: all tokens. */
void sampler_allow(kvasir_sampler *s, const uint64_t *bits);

/* The tokens that may be drawn and their weights (the likeliest has 1, none is normalised): returns
 * their number n, 1 <= n <= vocab. ids [n], weights [n] belong to the scratch until its next use.
 * With temp 0 that is the one greedy token. A pick is a draw from this. */
size_t sampler_weigh(kvasir_sampler *s, const float *logits, const uint32_t **ids,
                     const double **weights);

enum { TOP_LOGPROBS_MAX = 20 };
/* Natural log-softmax of logits [vocab], at `token` and of the n_top largest, largest first, equal
 * ones by id; n_top <= TOP_LOGPROBS_MAX, vocab. NaN counts as -inf; no result is NaN. */
void sampler_logprobs(const float *logits, uint32_t vocab, int32_t token, uint32_t n_top,
                      float *logprob, kvasir_token_logprob *top);

#endif
