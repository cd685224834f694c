/* SPDX-License-Identifier: Apache-2.0 */
/* sampling.c: the flags that control sampling; SAMPLING_OPTIONS in cli.h lists them.
 *
 * Ranges that depend on the vocabulary are checked by the library.
 */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* No flag takes these values. */
static const float UNSET = NAN;
enum { UNSET_K = INT32_MIN };

bool sampling_is_set(float x) {
    return !isnan(x);
}

kvasir_sampling sampling_unset(void) {
    kvasir_sampling s = kvasir_sampling_defaults();
    s.temp = s.top_p = s.min_p = s.repetition_penalty = UNSET;
    s.top_k = UNSET_K;
    return s;
}

struct sampling_args sampling_args_defaults(void) {
    return (struct sampling_args){.options = sampling_unset()};
}

int sampling_settle(const struct command *c, const char *generation_config,
                    const kvasir_model *model, kvasir_sampling *s, bool *recommended) {
    static const char *const MODEL[] = {"model", "auto"}, *const NONE[] = {"none", "vllm"};
    kvasir_sampling d = kvasir_sampling_defaults();
    bool ours = false, theirs = false;
    for (size_t i = 0; i < 2; i++) {
        theirs |= strcmp(generation_config, MODEL[i]) == 0;
        ours |= strcmp(generation_config, NONE[i]) == 0;
    }
    if (!ours && !theirs)
        return usage_error(c, "--generation-config: \"%.40s\" is neither model nor none",
                           generation_config);
    const bool any = theirs && model && kvasir_model_sampling(model, &d);
    s->temp = sampling_is_set(s->temp) ? s->temp : d.temp;
    s->top_p = sampling_is_set(s->top_p) ? s->top_p : d.top_p;
    s->min_p = sampling_is_set(s->min_p) ? s->min_p : d.min_p;
    s->repetition_penalty =
        sampling_is_set(s->repetition_penalty) ? s->repetition_penalty : d.repetition_penalty;
    s->top_k = s->top_k != UNSET_K ? s->top_k : d.top_k;
    if (recommended)
        *recommended = any;
    return EXIT_GOOD;
}

int sampling_seed(const struct command *c, const char *text, uint64_t *seed) {
    if (!text) {
        /* 53 bits: a JSON reader that keeps numbers as doubles gets the seed back exactly. */
        if (getrandom(seed, sizeof *seed, 0) != (ssize_t)sizeof *seed)
            *seed = (uint64_t)(clock_seconds() * 1e9);
        *seed >>= 11;
        return EXIT_GOOD;
    }
    errno = 0;
    *seed = strtoull(text, NULL, 10);
    if (*text == 0 || strspn(text, "0123456789") != strlen(text) || errno ||
        *seed > INT64_MAX) /* the largest that JSON output can represent */
        return usage_error(c, "--seed: \"%.60s\" is not a whole number below 2^63", text);
    return EXIT_GOOD;
}

/* "ID:BIAS" at s; *end is the text after it. False: it is not one. */
static bool read_bias(const char *s, kvasir_logit_bias *b, const char **end) {
    size_t digits = strspn(s, "0123456789");
    errno = 0;
    unsigned long id = strtoul(s, NULL, 10);
    if (digits == 0 || s[digits] != ':' || errno || id > INT32_MAX)
        return false;
    s += digits + 1;
    char *behind;
    b->token = (int32_t)id;
    b->bias = strtof(s, &behind);
    *end = behind;
    return behind != s && strspn(s, "0123456789.eE+-") == (size_t)(behind - s);
}

static int read_biases(const struct command *c, const char *text, struct sampling *s) {
    size_t cap = 1;
    for (const char *at = text; *at; at++)
        cap += *at == ',';
    s->bias = malloc(cap * sizeof *s->bias);
    if (!s->bias)
        return run_error(c, "--logit-bias: out of memory");
    s->options.logit_bias = s->bias;
    for (const char *at = text, *end;; at = end + 1) {
        if (!read_bias(at, &s->bias[s->options.n_logit_bias], &end) || (*end && *end != ','))
            return usage_error(c, "--logit-bias: \"%.40s\" at place %td is not ID:BIAS", at,
                               at - text + 1);
        s->options.n_logit_bias++;
        if (!*end)
            return EXIT_GOOD;
    }
}

int sampling_read(const struct command *c, const struct sampling_args *a, struct sampling *s) {
    s->options = a->options;
    int code = sampling_seed(c, a->seed, &s->options.seed);
    if (!code && a->logit_bias)
        code = read_biases(c, a->logit_bias, s);
    return code;
}

int sampling_protect(const struct command *c, const kvasir_tokenizer *t, struct sampling *s) {
    kvasir_error err;
    if (s->options.xtc_probability > 0 &&
        kvasir_xtc_special(t, &s->special, &s->options.n_xtc_special, &err))
        return library_error(c, &err);
    s->options.xtc_special = s->special;
    return EXIT_GOOD;
}

void sampling_free(struct sampling *s) {
    free(s->bias);
    kvasir_free(s->special);
    *s = (struct sampling){0};
}
