/* SPDX-License-Identifier: Apache-2.0 */
/* sampler < CASES: prints each token's probability of being drawn, one line per case; for
 * sampler.py, which defines the format of a case. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/sampler.h"

enum { MANY = 4096 };

/* Reads everything before the logits. False at the end of the input. */
static bool read_case(uint32_t *vocab, kvasir_sampling *o, int32_t *seen, size_t *n_seen) {
    static int32_t special[MANY];
    static kvasir_logit_bias bias[MANY];
    if (scanf("%u %f %f %f %u %f %f %d", vocab, &o->temp, &o->top_p, &o->min_p,
              &o->min_tokens_to_keep, &o->xtc_probability, &o->xtc_threshold, &o->top_k) != 8)
        return false;
    int read = scanf("%f %u %f %u %f %u", &o->repetition_penalty, &o->repetition_context,
                     &o->presence_penalty, &o->presence_context, &o->frequency_penalty,
                     &o->frequency_context);
    read += scanf("%zu", &o->n_xtc_special);
    for (size_t i = 0; i < o->n_xtc_special && i < MANY; i++)
        read += scanf("%d", &special[i]) - 1;
    read += scanf("%zu", &o->n_logit_bias);
    for (size_t i = 0; i < o->n_logit_bias && i < MANY; i++)
        read += scanf("%d %f", &bias[i].token, &bias[i].bias) - 2;
    read += scanf("%zu", n_seen);
    for (size_t i = 0; i < *n_seen && i < MANY; i++)
        read += scanf("%d", &seen[i]) - 1;
    o->xtc_special = special;
    o->logit_bias = bias;
    return read == 9 && *vocab <= MANY;
}

int main(void) {
    static float logits[MANY];
    static double p[MANY];
    static int32_t seen[MANY];
    uint32_t vocab;
    size_t n_seen;
    for (kvasir_sampling o = {.struct_size = sizeof o}; read_case(&vocab, &o, seen, &n_seen);) {
        kvasir_sampler *s;
        kvasir_error err;
        if (kvasir_sampler_create(&o, vocab, &s, &err) != KVASIR_OK) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        for (uint32_t i = 0; i < vocab; i++)
            if (scanf("%f", &logits[i]) != 1)
                return 1;
        for (size_t i = 0; i < n_seen; i++)
            kvasir_sampler_accept(s, seen[i]);
        const uint32_t *ids;
        const double *weights;
        size_t n = sampler_weigh(s, logits, &ids, &weights);
        double sum = 0;
        for (uint32_t i = 0; i < vocab; i++)
            p[i] = 0;
        for (size_t i = 0; i < n; i++)
            sum += weights[i];
        for (size_t i = 0; i < n; i++)
            p[ids[i]] = weights[i] / sum;
        for (uint32_t i = 0; i < vocab; i++)
            printf("%.9g%c", p[i], i + 1 < vocab ? ' ' : '\n');
        kvasir_sampler_destroy(s);
    }
    return 0;
}
