/* SPDX-License-Identifier: Apache-2.0 */
/* kvasir_batch.h: steps that pick the next tokens, and sequences of one context that take a step
 * together; kvasir.h includes it, whose rules hold. */
#ifndef KVASIR_PUBLIC_BATCH_H
#define KVASIR_PUBLIC_BATCH_H

#ifndef KVASIR_H
#error "include <kvasir.h>"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* kvasir_seq_eval, then kvasir_sampler_pick from the last token's logits, which stay on a GPU that
 * picks itself unless the options ask for them. KVASIR_ERR_CANCELLED may come after the pick. */
KVASIR_API kvasir_status kvasir_seq_pick(kvasir_seq *seq, const int32_t *tokens, size_t n,
                                         const kvasir_eval_options *options,
                                         kvasir_sampler *sampler, int32_t *id, kvasir_error *err);

/* An ordered list of sequences of one context, of any lengths and formats. None of these calls pads
 * or copies. A sequence in a batch belongs to the batch. The rules of kvasir_seq about contexts,
 * threads and errors apply. */
typedef struct kvasir_batch kvasir_batch;

/* A batch of n sequences (0: empty). On success it owns them. No sequence may occur twice. */
KVASIR_API kvasir_status kvasir_batch_merge(kvasir_context *ctx, kvasir_seq *const *seqs, size_t n,
                                            kvasir_batch **out, kvasir_error *err);
KVASIR_API void kvasir_batch_destroy(kvasir_batch *batch); /* and its sequences */
KVASIR_API size_t kvasir_batch_size(const kvasir_batch *batch);
/* Sequence i, which stays in the batch: to fork, trim, save or inspect. */
KVASIR_API kvasir_seq *kvasir_batch_seq(const kvasir_batch *batch, size_t i);
/* Removes sequence i, which the caller owns then. Later ones move up. */
KVASIR_API kvasir_status kvasir_batch_extract(kvasir_batch *batch, size_t i, kvasir_seq **out,
                                              kvasir_error *err);
/* Keeps the n sequences of `keep` (rising), destroys the others. */
KVASIR_API kvasir_status kvasir_batch_filter(kvasir_batch *batch, const size_t *keep, size_t n,
                                             kvasir_error *err);
/* Appends the sequences of `from`, a batch of the same context, which becomes empty. */
KVASIR_API kvasir_status kvasir_batch_extend(kvasir_batch *batch, kvasir_batch *from,
                                             kvasir_error *err);
/* Evaluates counts[i] tokens (0: none) of each sequence i, in shared steps. `tokens` has those of
 * sequence 0, then of 1, and so on. logits [size][vocab]: row i is of sequence i's last token,
 * unchanged if it had none; NULL: not needed. A call that fails at once has changed nothing. */
KVASIR_API kvasir_status kvasir_batch_eval(kvasir_batch *batch, const int32_t *tokens,
                                           const uint32_t *counts, float *logits,
                                           kvasir_error *err);
/* The same with the next tokens instead of logits, which stay on a GPU that picks itself: ids[i] is
 * what kvasir_sampler_pick of samplers[i] returns for sequence i's last token, unchanged if it had
 * none. samplers [size]: another one for each sequence that has tokens. */
KVASIR_API kvasir_status kvasir_batch_pick(kvasir_batch *batch, const int32_t *tokens,
                                           const uint32_t *counts, kvasir_sampler *const *samplers,
                                           int32_t *ids, kvasir_error *err);

#ifdef __cplusplus
}
#endif
#endif
