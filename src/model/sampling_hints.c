/* SPDX-License-Identifier: Apache-2.0 */
/* sampling_hints.c: what a model's makers recommend for sampling.
 *
 *     generation_config.json   temperature, top_p, top_k, min_p, repetition_penalty, do_sample
 *     GGUF                     general.sampling.temp, top_p, top_k, min_p, penalty_repeat
 *
 * "do_sample": false means that the likeliest token is taken, whatever the temperature; true
 * without a temperature means 1, as in transformers.
 */
#include "model/model_internal.h"

#include <math.h>
#include <stdio.h>

static const struct {
    const char *json, *gguf;
    double least, most;
} HINTS[N_SAMPLING_HINTS] = {
    [HINT_TEMP] = {"temperature", "general.sampling.temp", 0, 1000},
    [HINT_TOP_P] = {"top_p", "general.sampling.top_p", 0, 1},
    [HINT_MIN_P] = {"min_p", "general.sampling.min_p", 0, 1},
    [HINT_REPETITION] = {"repetition_penalty", "general.sampling.penalty_repeat", 0, 1000},
    [HINT_TOP_K] = {"top_k", "general.sampling.top_k", -1, INT32_MAX},
};

static kvasir_status take(struct sampling_hints *out, enum sampling_hint i, const char *field,
                          bool number, double x, kvasir_error *err) {
    ASSERT(i < N_SAMPLING_HINTS && HINTS[i].json);
    if (!number || !(x >= HINTS[i].least && x <= HINTS[i].most))
        return fail(err, KVASIR_ERR_FORMAT, "%s must be a number from %g to %g", field,
                    HINTS[i].least, HINTS[i].most);
    out->value[i] = x;
    out->given[i] = true;
    return KVASIR_OK;
}

kvasir_status sampling_hints_json(const json_t *document, struct sampling_hints *out,
                                  kvasir_error *err) {
    const json_t *sample = json_object_get(document, "do_sample");
    for (enum sampling_hint i = 0; i < N_SAMPLING_HINTS; i++) {
        const json_t *value = json_object_get(document, HINTS[i].json);
        char field[64];
        snprintf(field, sizeof field, "field %s", HINTS[i].json);
        if (value && !json_is_null(value))
            TRY(take(out, i, field, json_is_number(value), json_number_value(value), err));
    }
    if (json_is_false(sample) || (json_is_true(sample) && !out->given[HINT_TEMP]))
        TRY(take(out, HINT_TEMP, "field temperature", true, json_is_true(sample), err));
    return KVASIR_OK;
}

kvasir_status sampling_hints_gguf(const struct gguf *g, struct sampling_hints *out,
                                  kvasir_error *err) {
    for (enum sampling_hint i = 0; i < N_SAMPLING_HINTS; i++) {
        const struct gguf_value *value = gguf_find(g, HINTS[i].gguf);
        double x = NAN;
        char field[64];
        snprintf(field, sizeof field, "metadata %s", HINTS[i].gguf);
        if (value) {
            const bool number = gguf_number(value, &x);
            TRY(take(out, i, field, number, x, err));
        }
    }
    return KVASIR_OK;
}
