/* SPDX-License-Identifier: Apache-2.0 */
/* sampler.c: from logits to the next token. Owns the sampling options, the last accepted tokens and
 * scratch for one vocabulary; one thread at a time.
 *
 *     logits [vocab]
 *        | repetition penalty: each distinct id of the last repetition_context accepted ones,
 *        |                     once: l < 0 ? l * p : l / p
 *        +-- temp 0 -----------------------------------------------> the largest, lowest id first
 *        v
 *     candidates, largest first:   c0  c1  c2 | c3 ...  c(vocab-1)
 *                                             ^ cut
 *        | top_p   a candidate stays while the probability before it is below top_p
 *        | min_p   ... while its probability is at least min_p times the largest
 *        | top_k   ... while fewer than top_k came before
 *        v
 *     draw c with probability ~ exp(l / temp)
 *
 * mlx-lm applies the three filters one after the other, each on what the one before left, with
 * probabilities at temperature 1 in all of them. Each keeps a beginning of the same descending
 * order, so one walk down that order with three stop conditions is the same; a heap gives as much
 * of the order as is needed and no vocabulary is ever sorted.
 *
 * Invariants
 *   S1  A pick depends on the options, the logits, the accepted tokens and the number of picks made
 *       so far: the random number is a function of (seed, draw number), not a state.
 *   S2  Equal logits are ordered by id; sums run in a fixed order in double; exp is base's own. So
 *       the same inputs give the same token on every machine.
 *   S3  Whatever the logits hold (NaN, infinities), the result is an id below vocab: NaN is never
 *       chosen unless everything is.
 *
 * Left out: logit bias, presence and frequency penalties, xtc.
 */
#include "engine/sampler.h"

#include <math.h>
#include <string.h>

struct kvasir_sampler {
    kvasir_sampling options;
    uint32_t vocab;
    uint64_t draws;
    int32_t *recent;      /* [repetition_context] ring of accepted ids; NULL without a penalty */
    uint32_t recent_n;    /* ids in the ring */
    uint32_t recent_next; /* where the next one goes */
    float *logits;        /* [vocab] after the penalty */
    uint32_t *ids;        /* [vocab] a heap at the front, candidates behind it, see take_best */
    uint32_t *kept;       /* [vocab] candidates, largest first */
    double *weights;      /* [vocab] of kept */
};

/* ---- options --------------------------------------------------------------------------------- */

kvasir_sampling kvasir_sampling_defaults(void) {
    return (kvasir_sampling){.repetition_context = 20};
}

static bool penalises(const kvasir_sampling *o) {
    return o->repetition_penalty != 0 && o->repetition_penalty != 1;
}

static kvasir_status check_options(const kvasir_sampling *o, uint32_t vocab, kvasir_error *err) {
    const kvasir_status bad = KVASIR_ERR_ARGUMENT;
    if (vocab == 0)
        return fail(err, bad, "sampler: the vocabulary is empty");
    if (!(o->temp >= 0) || isinf(o->temp))
        return fail(err, bad, "--temp: %g is not a finite number of at least 0", (double)o->temp);
    if (!(o->top_p >= 0 && o->top_p <= 1))
        return fail(err, bad, "--top-p: %g is not between 0 and 1", (double)o->top_p);
    if (!(o->min_p >= 0 && o->min_p <= 1))
        return fail(err, bad, "--min-p: %g is not between 0 and 1", (double)o->min_p);
    if (o->top_k < 0 || (uint32_t)o->top_k > vocab)
        return fail(err, bad, "--top-k: %d is not between 0 and the vocabulary size %u", o->top_k,
                    vocab);
    if (!(o->repetition_penalty >= 0) || isinf(o->repetition_penalty))
        return fail(err, bad, "--repetition-penalty: %g is not a finite number of at least 0",
                    (double)o->repetition_penalty);
    if (penalises(o) && o->repetition_context == 0)
        return fail(err, bad, "--repetition-penalty: needs a repetition_context above 0");
    return KVASIR_OK;
}

kvasir_status kvasir_sampler_create(const kvasir_sampling *sampling, uint32_t vocab,
                                    kvasir_sampler **out, kvasir_error *err) {
    TRY(check_options(sampling, vocab, err));
    kvasir_sampler *s = mem_calloc(1, sizeof *s);
    if (!s)
        return fail(err, KVASIR_ERR_MEMORY, "sampler: out of memory");
    s->options = *sampling;
    s->vocab = vocab;
    s->logits = mem_calloc(vocab, sizeof *s->logits);
    s->ids = mem_calloc(vocab, sizeof *s->ids);
    s->kept = mem_calloc(vocab, sizeof *s->kept);
    s->weights = mem_calloc(vocab, sizeof *s->weights);
    bool complete = s->logits && s->ids && s->kept && s->weights;
    if (penalises(sampling)) {
        s->recent = mem_calloc(sampling->repetition_context, sizeof *s->recent);
        complete = complete && s->recent;
    }
    if (!complete) {
        kvasir_sampler_destroy(s);
        return fail(err, KVASIR_ERR_MEMORY, "sampler: out of memory for a vocabulary of %u", vocab);
    }
    *out = s;
    return KVASIR_OK;
}

void kvasir_sampler_destroy(kvasir_sampler *s) {
    if (!s)
        return;
    mem_free(s->recent);
    mem_free(s->logits);
    mem_free(s->ids);
    mem_free(s->kept);
    mem_free(s->weights);
    mem_free(s);
}

/* ---- steps ----------------------------------------------------------------------------------- */

void kvasir_sampler_accept(kvasir_sampler *s, int32_t id) {
    if (!s->recent || id < 0 || (uint32_t)id >= s->vocab)
        return;
    s->recent[s->recent_next] = id;
    s->recent_next = (s->recent_next + 1) % s->options.repetition_context;
    if (s->recent_n < s->options.repetition_context)
        s->recent_n++;
}

/* Reads the given logits and writes the copy, so an id that was accepted twice is penalised
 * once. */
static void penalise(kvasir_sampler *s, const float *logits) {
    memcpy(s->logits, logits, s->vocab * sizeof *logits);
    float penalty = s->options.repetition_penalty;
    for (uint32_t i = 0; i < s->recent_n; i++) {
        int32_t id = s->recent[i];
        s->logits[id] = logits[id] < 0 ? logits[id] * penalty : logits[id] / penalty;
    }
}

/* NaN counts as the least likely. */
static float value_of(const float *logits, uint32_t id) {
    return isnan(logits[id]) ? -INFINITY : logits[id];
}

static uint32_t largest(const float *logits, uint32_t vocab) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (value_of(logits, i) > value_of(logits, best))
            best = i;
    return best;
}

static bool ranks_before(const float *logits, uint32_t a, uint32_t b) {
    float x = value_of(logits, a), y = value_of(logits, b);
    return x > y || (x == y && a < b);
}

static void sift_down(const float *logits, uint32_t *heap, uint32_t n, uint32_t at) {
    uint32_t id = heap[at];
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && ranks_before(logits, heap[child + 1], heap[child]))
            child++;
        if (!ranks_before(logits, heap[child], id))
            break;
        heap[at] = heap[child];
    }
    heap[at] = id;
}

/* Takes the first of the order out of a heap of n. */
static uint32_t take_best(const float *logits, uint32_t *heap, uint32_t n) {
    uint32_t best = heap[0];
    heap[0] = heap[n - 1];
    sift_down(logits, heap, n - 1, 0);
    return best;
}

/* exp(logits[id] - max), 0 .. 1: the probability at temperature 1 in units of the largest. */
static double relative(const float *logits, uint32_t id, double max) {
    return m_exp((double)value_of(logits, id) - max);
}

/* Fills s->kept with the candidates that top_p, min_p and top_k leave; returns their number. */
static size_t filter(kvasir_sampler *s, const float *logits, double max) {
    const kvasir_sampling *o = &s->options;
    bool by_mass = o->top_p > 0 && o->top_p < 1;
    double mass_wanted = 0, mass = 0;
    if (by_mass) {
        for (uint32_t i = 0; i < s->vocab; i++)
            mass_wanted += relative(logits, i, max);
        mass_wanted *= (double)o->top_p;
    }
    for (uint32_t i = 0; i < s->vocab; i++)
        s->ids[i] = i;
    for (uint32_t i = s->vocab / 2; i-- > 0;)
        sift_down(logits, s->ids, s->vocab, i);

    uint32_t limit = o->top_k > 0 ? (uint32_t)o->top_k : s->vocab, n = 0;
    while (n < limit) {
        uint32_t id = take_best(logits, s->ids, s->vocab - n);
        double p = relative(logits, id, max);
        /* the likeliest always stays */
        if (n > 0 && ((by_mass && mass >= mass_wanted) || p < (double)o->min_p))
            break;
        mass += p;
        s->kept[n++] = id;
    }
    return n;
}

size_t sampler_weigh(kvasir_sampler *s, const float *logits, const uint32_t **ids,
                     const double **weights) {
    const kvasir_sampling *o = &s->options;
    if (s->recent) {
        penalise(s, logits);
        logits = s->logits;
    }
    *ids = s->kept;
    *weights = s->weights;
    uint32_t best = largest(logits, s->vocab);
    double max = (double)value_of(logits, best);
    if (o->temp == 0 || isinf(max)) {
        s->kept[0] = best;
        s->weights[0] = 1;
        return 1;
    }
    size_t n = s->vocab;
    bool filters = (o->top_p > 0 && o->top_p < 1) || o->min_p > 0 || o->top_k > 0;
    if (filters)
        n = filter(s, logits, max);
    else
        for (uint32_t i = 0; i < s->vocab; i++)
            s->kept[i] = i;
    for (size_t i = 0; i < n; i++)
        s->weights[i] = m_exp(((double)value_of(logits, s->kept[i]) - max) / (double)o->temp);
    return n;
}

/* ---- drawing --------------------------------------------------------------------------------- */

/* The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64 bits in which every
 * output bit depends on every input bit. */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
    return x ^ x >> 31;
}

/* Number `draw` of a seed's stream, uniform in [0, 1) with 53 bits. The seed is mixed first, or
 * seeds that differ by the golden-ratio step would be the same stream shifted. */
static double uniform(uint64_t seed, uint64_t draw) {
    uint64_t bits = mix(mix(seed + 0x632be59bd9b4e019ULL) + draw * 0x9e3779b97f4a7c15ULL);
    return (double)(bits >> 11) * 0x1p-53;
}

int32_t kvasir_sampler_pick(kvasir_sampler *s, const float *logits) {
    const uint32_t *ids;
    const double *weights;
    size_t n = sampler_weigh(s, logits, &ids, &weights);
    double total = 0, run = 0;
    for (size_t i = 0; i < n; i++)
        total += weights[i];
    double target = uniform(s->options.seed, s->draws++) * total;
    size_t last = 0; /* rounding may leave run a hair below target at the end */
    for (size_t i = 0; i < n; i++) {
        if (weights[i] == 0)
            continue;
        last = i;
        run += weights[i];
        if (run > target)
            break;
    }
    return (int32_t)ids[last];
}
