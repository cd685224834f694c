/* SPDX-License-Identifier: Apache-2.0 */
/* sampler_options.c: what a caller may ask of a sampler, its defaults, and what is refused.
 *
 * A context of 0 is refused: mlx-lm's slice [-0:] would mean all tokens, a reader would expect
 * none.
 */
#include <math.h>

#include "engine/sampler.h"
#include "engine/struct_size.h"

/* A context's size comes from a request and its ring is allocated: 4 MiB at most. No model's
 * context is longer. */
enum { CONTEXT_MAX = 1 << 20 };

const struct sized_struct SIZED_SAMPLING = {
    .name = "kvasir_sampling",
    .maker = "kvasir_sampling_defaults()",
    .field = "sampling.struct_size",
    .size = sizeof(kvasir_sampling),
};
_Static_assert(sizeof(kvasir_sampling) == 104,
               "later fields begin here at the earliest (struct_size.h)");
static const kvasir_sampling DEFAULTS = {.struct_size = sizeof(kvasir_sampling),
                                         .repetition_context = 20,
                                         .presence_context = 20,
                                         .frequency_context = 20,
                                         .min_tokens_to_keep = 1,
                                         .xtc_threshold = 0.1f};

kvasir_status sampler_options_settle(const kvasir_sampling *given, uint32_t vocab,
                                     kvasir_sampling *out, kvasir_error *err) {
    *out = DEFAULTS;
    TRY(struct_read(&SIZED_SAMPLING, given, out, err));
    return sampler_options_check(out, vocab, err);
}

void kvasir_sampling_init(kvasir_sampling *sampling, size_t struct_size) {
    struct_write(&SIZED_SAMPLING, &DEFAULTS, sampling, struct_size, 0);
}

static kvasir_status check_filters(const kvasir_sampling *o, uint32_t vocab, kvasir_error *err) {
    if (!(o->temp >= 0) || isinf(o->temp))
        return fail_field(err, KVASIR_ERR_ARGUMENT, "sampling.temp",
                          "%g is not a finite number of at least 0", (double)o->temp);
    if (!(o->top_p >= 0 && o->top_p <= 1))
        return fail_field(err, KVASIR_ERR_ARGUMENT, "sampling.top_p", "%g is not between 0 and 1",
                          (double)o->top_p);
    if (!(o->min_p >= 0 && o->min_p <= 1))
        return fail_field(err, KVASIR_ERR_ARGUMENT, "sampling.min_p", "%g is not between 0 and 1",
                          (double)o->min_p);
    if (o->min_tokens_to_keep > vocab)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "sampling.min_tokens_to_keep",
                          "%u is more than the vocabulary size %u", o->min_tokens_to_keep, vocab);
    if (!(o->xtc_probability >= 0 && o->xtc_probability <= 1))
        return fail_field(err, KVASIR_ERR_ARGUMENT, "sampling.xtc_probability",
                          "%g is not between 0 and 1", (double)o->xtc_probability);
    if (!(o->xtc_threshold >= 0 && o->xtc_threshold <= 0.5f))
        return fail_field(err, KVASIR_ERR_ARGUMENT, "sampling.xtc_threshold",
                          "%g is not between 0 and 0.5", (double)o->xtc_threshold);
    if (o->top_k < 0 || (uint32_t)o->top_k > vocab)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "sampling.top_k",
                          "%d is not between 0 and the vocabulary size %u", o->top_k, vocab);
    return KVASIR_OK;
}

/* fields: of the penalty and of its context */
static kvasir_status check_penalty(const char *const fields[2], float penalty, float least,
                                   uint32_t context, kvasir_error *err) {
    if (!isfinite(penalty) || penalty < least)
        return fail_field(err, KVASIR_ERR_ARGUMENT, fields[0], "%g is not a finite number%s",
                          (double)penalty, least == 0 ? " of at least 0" : "");
    if (penalty != 0 && (context == 0 || context > CONTEXT_MAX))
        return fail_field(err, KVASIR_ERR_ARGUMENT, fields[1], "%u is not between 1 and %d",
                          context, CONTEXT_MAX);
    return KVASIR_OK;
}

static kvasir_status check_bias(const kvasir_sampling *o, uint32_t vocab, kvasir_error *err) {
    for (size_t i = 0; i < o->n_logit_bias; i++) {
        const kvasir_logit_bias *b = &o->logit_bias[i];
        if (b->token < 0 || (uint32_t)b->token >= vocab)
            return fail_field(err, KVASIR_ERR_ARGUMENT, "sampling.logit_bias",
                              "id %d is not below the vocabulary size %u", b->token, vocab);
        if (!isfinite(b->bias))
            return fail_field(err, KVASIR_ERR_ARGUMENT, "sampling.logit_bias",
                              "%g of id %d is not finite", (double)b->bias, b->token);
    }
    return KVASIR_OK;
}

kvasir_status sampler_options_check(const kvasir_sampling *o, uint32_t vocab, kvasir_error *err) {
    if (vocab == 0)
        return fail(err, KVASIR_ERR_ARGUMENT, "sampler: the vocabulary is empty");
    TRY(check_filters(o, vocab, err));
    uint32_t context = penalises_repeats(o) ? o->repetition_context : 1;
    TRY(check_penalty(
        (const char *const[]){"sampling.repetition_penalty", "sampling.repetition_context"},
        o->repetition_penalty, 0, context, err));
    TRY(check_penalty(
        (const char *const[]){"sampling.presence_penalty", "sampling.presence_context"},
        o->presence_penalty, -INFINITY, o->presence_context, err));
    TRY(check_penalty(
        (const char *const[]){"sampling.frequency_penalty", "sampling.frequency_context"},
        o->frequency_penalty, -INFINITY, o->frequency_context, err));
    return check_bias(o, vocab, err);
}

kvasir_status kvasir_sampling_check(const kvasir_sampling *sampling, uint32_t vocab,
                                    kvasir_error *err) {
    kvasir_sampling settled;
    return sampler_options_settle(sampling, vocab, &settled, err);
}
