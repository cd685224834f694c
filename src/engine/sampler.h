/* SPDX-License-Identifier: Apache-2.0 */
/* sampler.h: the sampler's internal interface. The engine's own files and the tests look at the
 * distribution that a token is drawn from, and let samplers share scratch. Others use kvasir.h.
 */
#ifndef KVASIR_ENGINE_SAMPLER_H
#define KVASIR_ENGINE_SAMPLER_H

#include "backend/backend.h"
#include "kvasir.h"
#include "util/util.h"

/* sampler_options.c: *out is what `given` asks for, with defaults; refuses what makes no sense. */
kvasir_status sampler_options_settle(const kvasir_sampling *given, uint32_t vocab,
                                     kvasir_sampling *out, kvasir_error *err) MUST_CHECK;
kvasir_status sampler_options_check(const kvasir_sampling *settled, uint32_t vocab,
                                    kvasir_error *err) MUST_CHECK;
static inline bool penalises_repeats(const kvasir_sampling *o) {
    return o->repetition_penalty != 0 && o->repetition_penalty != 1;
}

/* Memory that a pick needs for a whole vocabulary, 21 bytes a token. Samplers of one thread may
 * share it: it holds nothing between two picks. */
struct sampler_scratch;
kvasir_status sampler_scratch_create(uint32_t vocab, struct sampler_scratch **out,
                                     kvasir_error *err) MUST_CHECK;
void sampler_scratch_destroy(struct sampler_scratch *scratch);
size_t sampler_scratch_bytes(uint32_t vocab); /* of the heap */

/* kvasir_sampler_create with borrowed scratch for this vocabulary, which must outlive the
 * sampler. The sampler itself is then as large as its options and contexts. At most `accepts`
 * ids will be accepted, so a larger context takes no more memory than that. */
kvasir_status sampler_create_shared(const kvasir_sampling *sampling, uint32_t vocab,
                                    uint32_t accepts, struct sampler_scratch *scratch,
                                    kvasir_sampler **out, kvasir_error *err) MUST_CHECK;

/* kvasir_sampler_pick with this scratch instead of the sampler's: several samplers pick at once. */
int32_t sampler_pick_with(kvasir_sampler *s, struct sampler_scratch *scratch, const float *logits);

/* Refuses a sampler that was made for another vocabulary. */
kvasir_status sampler_check_vocab(const kvasir_sampler *s, uint32_t vocab,
                                  kvasir_error *err) MUST_CHECK;

/* From now on only these tokens are picked. bits: token i is bit i % 64 of word i / 64; at least
 * one is set. Borrowed until the last pick, and read by each. The logits of all other tokens
 * become -inf before anything else. NULL: all tokens. */
void sampler_allow(kvasir_sampler *s, const uint64_t *bits);

/* The tokens that may be drawn and their weights (the likeliest has 1; they are not normalised).
 * Returns their number n, 1 <= n <= vocab. ids [n] and weights [n] belong to the scratch until
 * its next use. With temp 0 it is the one greedy token. A pick draws from this. */
size_t sampler_weigh(kvasir_sampler *s, const float *logits, const uint32_t **ids,
                     const double **weights);

/* What a device is told for the sampler's next pick, but row and n_top. edits [PICK_EDITS_MAX]: its
 * bias and penalties, which *out refers to. False: this pick is one for the CPU (some tokens are
 * not allowed, xtc, too many edits). */
bool sampler_describe(const kvasir_sampler *s, struct pick_edit *edits, struct pick *out);
/* The device has made that pick. */
void sampler_picked(kvasir_sampler *s);

enum { TOP_LOGPROBS_MAX = KVASIR_TOP_LOGPROBS_MAX };
/* Natural log-softmax of logits [vocab], at `token` and of the n_top largest, largest first, equal
 * ones by id; n_top <= TOP_LOGPROBS_MAX, vocab. NaN counts as -inf; no result is NaN. */
void sampler_logprobs(const float *logits, uint32_t vocab, int32_t token, uint32_t n_top,
                      float *logprob, kvasir_token_logprob *top);
/* The same from what a device has found. */
void sampler_finish_logprobs(const struct pick_logs *logs, uint32_t n_top, float *logprob,
                             kvasir_token_logprob *top);
/* How many tokens are at least as likely; 1: none but this one. */
uint32_t sampler_rank(const float *logits, uint32_t vocab, int32_t token);

#endif
