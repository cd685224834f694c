/* SPDX-License-Identifier: Apache-2.0 */
/* The next token of a row, drawn where its logits are: what a device that has the operation `pick`
 * is told, and what comes back. engine/sampler.c says what a sampler does and in which order; here
 * is the part of it that a device can do, with the same bits. */
#ifndef KVASIR_BACKEND_PICK_H
#define KVASIR_BACKEND_PICK_H

#include "util/exp.h"

enum {
    PICK_BLOCK = 256,     /* logits whose largest, and whose weight, are found together */
    PICK_EDITS_MAX = 512, /* of one pick */
    PICK_TOP_MAX = 20,
};

/* Tokens are ordered by logit, of equal ones the lower id first; NaN counts as -inf. A walk down
 * that order begins with those whose logit is at least (largest - PICK_NEAR): exp(-12) is 6e-6, so
 * in a vocabulary of 150,000 all others together weigh less than the largest one. */
#define PICK_NEAR 12.0f

/* One change of a logit x: bias and penalties. */
struct pick_edit {
    uint32_t id;
    uint32_t repeated; /* 0: x + value; else x < 0 ? x * value : x / value */
    float value;
};

EVERYWHERE_INLINE float pick_edited(float x, const struct pick_edit *e) {
    if (!e->repeated)
        return x + e->value;
    return x < 0 ? x * e->value : x / e->value;
}

/* The first of n weights with which their running sum is above *target, or the last one above 0 if
 * rounding leaves the sum below it. *target becomes what was left of it before that weight. */
EVERYWHERE_INLINE uint32_t pick_reached(const double *weights, uint32_t n, double *target) {
    uint32_t last = 0;
    double run = 0, before = 0;
    for (uint32_t i = 0; i < n && run <= *target; i++) {
        if (weights[i] == 0)
            continue;
        last = i;
        before = run;
        run += weights[i];
    }
    *target -= before;
    return last;
}

/* What a whole vocabulary's logits are multiplied with for this temperature: finite, so that 0
 * stays 0. */
EVERYWHERE_INLINE float pick_scale(float temp) {
    return temp > 1e-30f ? 1 / temp : 1e30f;
}

/* ln of exp(value - max). If the largest is infinite, it has all of the weight. */
EVERYWHERE_INLINE double pick_below(double value, double max) {
    return value == max ? 0 : value - max;
}

struct pick {
    uint32_t row;                  /* of the logits */
    uint32_t n_edits;              /* at most PICK_EDITS_MAX, done in order */
    const struct pick_edit *edits; /* ids below the vocabulary's size */
    double at;                     /* the random number, 0 <= at < 1 */
    float temp;                    /* 0: the first in order, whatever else is asked for */
    float top_p, min_p;            /* 0: off; top_p also from 1 on */
    uint32_t top_k;                /* 0, or the vocabulary's size: off */
    uint32_t at_least;             /* tokens that min_p leaves */
    int32_t n_top; /* at most PICK_TOP_MAX and the vocabulary's size; -1: no log-probabilities */
};

/* Of the logits before all edits: log-probabilities without the logarithm, which the host adds. */
struct pick_logs {
    float value;               /* of the token */
    float max;                 /* the largest */
    double sum;                /* of exp(logit - max), in the order of sampler_logprobs */
    int32_t ids[PICK_TOP_MAX]; /* the first n_top in order, and their logits */
    float values[PICK_TOP_MAX];
};

struct picked {
    int32_t token; /* -1: the device cannot pick from this row (too many tokens come into question):
                      the caller reads it */
    struct pick_logs logs; /* if they were asked for and there is a token */
};

#endif
