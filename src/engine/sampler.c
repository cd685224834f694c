/* SPDX-License-Identifier: Apache-2.0 */
/* sampler.c: from logits to the next token. A sampler owns its options and the last accepted
 * tokens. Scratch for one vocabulary may be shared by the samplers of one thread.
 *
 *     logits [vocab]
 *        | allowed tokens        else -inf
 *        | logit bias            l + b
 *        | repetition penalty    l < 0 ? l * p : l / p    each distinct id of its context, once
 *        | presence penalty      l - p                    each distinct id of its context, once
 *        | frequency penalty     l - p                    each id of its context, every time
 *        +-- temp 0 -----------------------------------------------> the largest, lowest id first
 *        v
 *     candidates, largest first:   c0  c1  c2  c3  c4  c5 | c6 ...  c(vocab-1)
 *        | top_p   keep a candidate while the probability before it is below top_p
 *        | min_p   ... while its probability is at least min_p times the largest, and the first
 *        |         min_tokens_to_keep in any case
 *        v
 *                                  c0  c1  c2  c3  c4  c5        probabilities of these alone:
 *        | xtc     with probability xtc_probability: drop those above xtc_threshold except the
 *        |         least likely of them and those in xtc_special
 *        v                         .3  .25 .2  .12 .08 .05       threshold 0.1: drop c0 c1 c2
 *                                              c3  c4  c5
 *        | top_k   keep the first top_k
 *        v
 *     draw c with probability ~ exp(l / temp); without filters first a block of 256 tokens
 *
 * mlx-lm applies these filters one after the other, each to what the previous one left, all with
 * probabilities at temperature 1. top_p and min_p keep the start of the same descending order, so
 * one walk down that order with several stop conditions gives the same; so does top_k if xtc does
 * not come in between. A heap produces as much of the order as is needed, at first of the few
 * candidates near the largest: a whole vocabulary is sorted only if the options keep all of it.
 *
 * Invariants
 *   SAMPLE-1  A pick depends on the options, the logits, the accepted tokens and the number of
 *             picks so far. Random numbers are a function of (seed, draw number, purpose), not a
 *             state.
 *   SAMPLE-2  Equal logits are ordered by id; sums run in a fixed order; exp is our own. So the
 *             same inputs give the same token on every machine. Weights and their sums are double;
 *             weights of a whole vocabulary and of its blocks are sums of floats, exact to 1e-6.
 *   SAMPLE-3  Whatever the logits hold (NaN, infinities), the result is an id below vocab. NaN is
 *             never chosen unless everything is NaN.
 *   SAMPLE-4  If only some tokens are allowed (sampler_allow), the result is one of them, even if
 *             all their logits are NaN or -inf.
 *   SAMPLE-5  Between two calls scratch holds nothing that counts, and scratch->marks is all zero.
 */
#include "engine/sampler.h"

#include <math.h>
#include <string.h>

struct sampler_scratch {
    uint32_t vocab;
    double *weights; /* [vocab] of kept */
    float *logits;   /* [vocab] after bias and penalties */
    float *peaks;    /* [blocks_of(vocab)] the largest logit of each block */
    uint32_t *ids;   /* [vocab] see walk; distinct ids of a context */
    uint32_t *kept;  /* [vocab] candidates */
    uint8_t *marks;  /* [vocab] */
};

struct kvasir_sampler {
    kvasir_sampling options;
    kvasir_logit_bias *bias; /* [options.n_logit_bias] */
    int32_t *special;        /* [options.n_xtc_special] */
    uint32_t vocab;
    uint64_t draws;
    int32_t *recent;      /* [recent_cap] ring of accepted ids; NULL without penalties */
    uint32_t recent_cap;  /* the largest context, or all ids that will be accepted */
    uint32_t recent_n;    /* ids in the ring */
    uint32_t recent_next; /* index of the next one */
    struct sampler_scratch *scratch;
    struct sampler_scratch *own; /* NULL: shared */
    const uint64_t *allowed;     /* NULL: all tokens */
};

/* ---- life ------------------------------------------------------------------------------------ */

enum { BLOCK = PICK_BLOCK }; /* with smaller ones it takes longer to find each one's largest */
static uint32_t blocks_of(uint32_t vocab) {
    return vocab / BLOCK + (vocab % BLOCK != 0);
}
static uint32_t block_size(uint32_t vocab, uint32_t block) {
    return min_u32(BLOCK, vocab - block * BLOCK);
}

/* The arrays follow one another in the order of the struct; none needs more alignment than the
 * one before it. */
enum { SCRATCH_BYTES = sizeof(double) + sizeof(float) + 2 * sizeof(uint32_t) + 1 };

size_t sampler_scratch_bytes(uint32_t vocab) {
    return sizeof(struct sampler_scratch) + (size_t)vocab * SCRATCH_BYTES +
           blocks_of(vocab) * sizeof(float);
}

kvasir_status sampler_scratch_create(uint32_t vocab, struct sampler_scratch **out,
                                     kvasir_error *err) {
    struct sampler_scratch *s = mem_calloc(1, sampler_scratch_bytes(vocab));
    if (!s)
        return fail(err, KVASIR_ERR_MEMORY, "sampler: out of memory for a vocabulary of %u", vocab);
    s->vocab = vocab;
    s->weights = (double *)(s + 1);
    s->logits = (float *)(s->weights + vocab);
    s->peaks = s->logits + vocab;
    s->ids = (uint32_t *)(s->peaks + blocks_of(vocab));
    s->kept = s->ids + vocab;
    s->marks = (uint8_t *)(s->kept + vocab);
    *out = s;
    return KVASIR_OK;
}

void sampler_scratch_destroy(struct sampler_scratch *s) {
    mem_free(s);
}

/* The largest context of the penalties that are on. */
static uint32_t context_of(const kvasir_sampling *o) {
    uint32_t n = penalises_repeats(o) ? o->repetition_context : 0;
    if (o->presence_penalty != 0 && o->presence_context > n)
        n = o->presence_context;
    if (o->frequency_penalty != 0 && o->frequency_context > n)
        n = o->frequency_context;
    return n;
}

/* NULL if n is 0 or memory ran out. */
static void *copy_of(const void *items, size_t n, size_t size) {
    void *copy = n ? mem_calloc(n, size) : NULL;
    if (copy)
        memcpy(copy, items, n * size);
    return copy;
}

static kvasir_status create(const kvasir_sampling *o, uint32_t vocab, uint32_t accepts,
                            struct sampler_scratch *scratch, kvasir_sampler **out,
                            kvasir_error *err) {
    kvasir_sampler *s = mem_calloc(1, sizeof *s);
    if (!s)
        return fail(err, KVASIR_ERR_MEMORY, "sampler: out of memory");
    s->options = *o;
    s->bias = copy_of(o->logit_bias, o->n_logit_bias, sizeof *s->bias);
    s->special = copy_of(o->xtc_special, o->n_xtc_special, sizeof *s->special);
    s->vocab = vocab;
    s->scratch = scratch;
    s->recent_cap = context_of(o) < accepts ? context_of(o) : accepts;
    if (s->recent_cap)
        s->recent = mem_calloc(s->recent_cap, sizeof *s->recent);
    if ((o->n_logit_bias && !s->bias) || (o->n_xtc_special && !s->special) ||
        (s->recent_cap && !s->recent)) {
        kvasir_sampler_destroy(s);
        return fail(err, KVASIR_ERR_MEMORY, "sampler: out of memory");
    }
    *out = s;
    return KVASIR_OK;
}

kvasir_status sampler_create_shared(const kvasir_sampling *sampling, uint32_t vocab,
                                    uint32_t accepts, struct sampler_scratch *scratch,
                                    kvasir_sampler **out, kvasir_error *err) {
    TRY(sampler_options_check(sampling, vocab, err));
    ASSERT(scratch->vocab == vocab);
    return create(sampling, vocab, accepts, scratch, out, err);
}

kvasir_status kvasir_sampler_create(const kvasir_sampling *sampling, uint32_t vocab,
                                    kvasir_sampler **out, kvasir_error *err) {
    kvasir_sampling settled;
    TRY(sampler_options_settle(sampling, vocab, &settled, err));
    struct sampler_scratch *own = NULL;
    TRY(sampler_scratch_create(vocab, &own, err));
    kvasir_status status = create(&settled, vocab, UINT32_MAX, own, out, err);
    if (status == KVASIR_OK)
        (*out)->own = own;
    else
        sampler_scratch_destroy(own);
    return status;
}

void kvasir_sampler_destroy(kvasir_sampler *s) {
    if (!s)
        return;
    mem_free(s->bias);
    mem_free(s->special);
    mem_free(s->recent);
    sampler_scratch_destroy(s->own);
    mem_free(s);
}

/* ---- bias and penalties ---------------------------------------------------------------------- */

void kvasir_sampler_accept(kvasir_sampler *s, int32_t id) {
    if (!s->recent || id < 0 || (uint32_t)id >= s->vocab)
        return;
    s->recent[s->recent_next] = id;
    s->recent_next = (s->recent_next + 1) % s->recent_cap;
    if (s->recent_n < s->recent_cap)
        s->recent_n++;
}

/* Number of accepted ids in a context. */
static uint32_t held_by(const kvasir_sampler *s, uint32_t context) {
    return s->recent_n < context ? s->recent_n : context;
}

/* The i-th newest id, from 0; i < recent_n. */
static uint32_t recent_id(const kvasir_sampler *s, uint32_t i) {
    DEBUG_ASSERT(i < s->recent_n && s->recent_next < s->recent_cap);
    uint32_t newest = s->recent_next + s->recent_cap - 1; /* caps are at most CONTEXT_MAX */
    return (uint32_t)s->recent[(newest - i) % s->recent_cap];
}

/* Fills scratch->ids with the distinct ids of a context; returns their number. */
static uint32_t distinct(const kvasir_sampler *s, uint32_t context) {
    struct sampler_scratch *w = s->scratch;
    uint32_t n = 0;
    for (uint32_t i = 0, held = held_by(s, context); i < held; i++) {
        uint32_t id = recent_id(s, i);
        w->ids[n] = id;
        n += !w->marks[id];
        w->marks[id] = 1;
    }
    ASSERT(n <= s->vocab);
    for (uint32_t i = 0; i < n; i++)
        w->marks[w->ids[i]] = 0;
    return n;
}

void sampler_allow(kvasir_sampler *s, const uint64_t *bits) {
    s->allowed = bits;
}

static bool is_allowed(const kvasir_sampler *s, uint32_t id) {
    return !s->allowed || (s->allowed[id / 64] >> id % 64 & 1);
}

static void copy_allowed(const kvasir_sampler *s, const float *given, float *logits) {
    if (!s->allowed)
        memcpy(logits, given, s->vocab * sizeof *logits);
    for (uint32_t i = 0; s->allowed && i < s->vocab; i++)
        logits[i] = is_allowed(s, i) ? given[i] : -INFINITY;
}

/* Calls f for each change of a logit, in order, until it returns false; returns whether it never
 * did. */
static bool each_edit(const kvasir_sampler *s, bool (*f)(void *ctx, struct pick_edit e),
                      void *ctx) {
    const kvasir_sampling *o = &s->options;
    const uint32_t *ids = s->scratch->ids;
    bool all = true;
    for (size_t i = 0; i < o->n_logit_bias && all; i++)
        all = f(ctx, (struct pick_edit){(uint32_t)s->bias[i].token, 0, s->bias[i].bias});
    if (penalises_repeats(o) && all)
        for (uint32_t i = 0, n = distinct(s, o->repetition_context); i < n && all; i++)
            all = f(ctx, (struct pick_edit){ids[i], 1, o->repetition_penalty});
    if (o->presence_penalty != 0 && all)
        for (uint32_t i = 0, n = distinct(s, o->presence_context); i < n && all; i++)
            all = f(ctx, (struct pick_edit){ids[i], 0, -o->presence_penalty});
    if (o->frequency_penalty != 0 && all)
        for (uint32_t i = 0, n = held_by(s, o->frequency_context); i < n && all; i++)
            all = f(ctx, (struct pick_edit){recent_id(s, i), 0, -o->frequency_penalty});
    return all;
}

static bool apply_edit(void *logits, struct pick_edit e) {
    float *x = (float *)logits + e.id;
    *x = pick_edited(*x, &e);
    return true;
}

/* The logits of allowed tokens with bias and penalties, in scratch. */
static const float *process(const kvasir_sampler *s, const float *given) {
    float *logits = s->scratch->logits;
    copy_allowed(s, given, logits);
    (void)each_edit(s, apply_edit, logits);
    return logits;
}

/* ---- order ----------------------------------------------------------------------------------- */

/* NaN counts as the least likely. */
static float value_of(const float *logits, uint32_t id) {
    return isnan(logits[id]) ? -INFINITY : logits[id];
}

/* The largest of n values without NaN; -inf if there is none. Compilers turn 32 maxima side by
 * side into a few vectors; one maximum would be a chain of n comparisons. */
static float largest_of(const float *x, size_t n) {
    enum { LANES = 32 };
    float best[LANES], all = -INFINITY;
    for (size_t l = 0; l < LANES; l++)
        best[l] = -INFINITY;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t l = 0; l < LANES; l++)
            best[l] = x[i + l] > best[l] ? x[i + l] : best[l];
    for (; i < n; i++)
        all = x[i] > all ? x[i] : all;
    for (size_t l = 0; l < LANES; l++)
        all = best[l] > all ? best[l] : all;
    return all;
}

/* The first id with the largest logit; 0 if all are NaN. Only the block that has the largest
 * logit is searched for its id. peaks [blocks_of(vocab)] receives the largest of each; NULL: no. */
static uint32_t largest(const float *logits, uint32_t vocab, float *peaks) {
    float best = -INFINITY;
    uint32_t block = 0;
    for (uint32_t b = 0; b < blocks_of(vocab); b++) {
        float max = largest_of(logits + b * BLOCK, block_size(vocab, b));
        if (peaks)
            peaks[b] = max;
        block = max > best ? b : block;
        best = max > best ? max : best;
    }
    for (uint32_t i = block * BLOCK; i < vocab; i++)
        if (logits[i] == best)
            return i;
    return 0;
}

/* The same among the allowed tokens. If all of them are NaN or -inf, the first allowed one. */
static uint32_t likeliest(const kvasir_sampler *s, const float *logits) {
    uint32_t id = largest(logits, s->vocab, s->scratch->peaks);
    for (uint32_t i = 0; !is_allowed(s, id) && i < s->vocab; i++)
        id = i;
    return id;
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

static void make_heap(const float *logits, uint32_t *heap, uint32_t n) {
    for (uint32_t i = n / 2; i-- > 0;)
        sift_down(logits, heap, n, i);
}

/* Removes the first id in order from a heap of n. */
static uint32_t take_best(const float *logits, uint32_t *heap, uint32_t n) {
    uint32_t best = heap[0];
    heap[0] = heap[n - 1];
    sift_down(logits, heap, n - 1, 0);
    return best;
}

/* exp(logits[id] - max), 0 .. 1: the probability at temperature 1 divided by the largest one. */
static double relative(const float *logits, uint32_t id, double max) {
    return m_exp((double)value_of(logits, id) - max);
}

/* weights[i] = exp((logits[kept[i]] - max) / temp) for the first n of scratch->kept. */
static void weigh(struct sampler_scratch *w, const float *logits, float max, float temp,
                  uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        w->weights[i] = ((double)value_of(logits, w->kept[i]) - (double)max) / (double)temp;
    m_exp_each(w->weights, n);
}

/* Four sums, because each step of a single one would wait for the last. */
static double sum_of(const double *x, size_t n) {
    double sum[4] = {0};
    for (size_t i = 0; i < n; i++)
        sum[i % 4] += x[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* ---- filters --------------------------------------------------------------------------------- */

/* When a walk down the order ends. The first candidate is always kept. Probabilities are divided
 * by the largest one. */
struct cut {
    double mass;       /* kept candidates may have so much before the last */
    double least;      /* the smallest that is kept, but */
    uint32_t at_least; /* so many are kept in any case */
    uint32_t limit;
};

/* A walk that ends early hardly meets candidates further below the largest than PICK_NEAR, so they
 * become a heap only if a walk reaches them. */
static bool is_near(float logit, float max) {
    return logit >= max - PICK_NEAR;
}

/* The near ones of the vocabulary, in any order: only blocks that have some are looked at. */
static uint32_t find_near(struct sampler_scratch *w, const float *logits, float max) {
    uint32_t n = 0;
    for (uint32_t b = 0; b < blocks_of(w->vocab); b++) {
        const uint32_t end = b * BLOCK + block_size(w->vocab, b);
        if (!is_near(w->peaks[b], max))
            continue;
        for (uint32_t i = b * BLOCK; i < end; i++) {
            w->ids[n] = i;
            n += is_near(logits[i], max);
        }
    }
    return n;
}

/* The same of scratch->kept [n]. */
static uint32_t find_near_kept(struct sampler_scratch *w, const float *logits, float max,
                               uint32_t n) {
    uint32_t near = 0, far = n;
    for (uint32_t i = 0; i < n; i++)
        w->ids[is_near(logits[w->kept[i]], max) ? near++ : --far] = w->kept[i];
    ASSERT(near == far);
    return near;
}

static void find_far(struct sampler_scratch *w, const float *logits, float max, uint32_t near) {
    for (uint32_t i = 0; i < w->vocab; i++)
        if (!is_near(logits[i], max))
            w->ids[near++] = i;
    ASSERT(near == w->vocab);
}

/* Keeps the candidates before the cut in scratch->kept, in order, and returns their number. There
 * are n: those in scratch->kept or, if `whole`, the vocabulary, whose far ones are gathered only if
 * the walk reaches them.
 *
 *     ids:  | heap of the near ones | the far ones |
 *           0                      near            n */
static uint32_t walk(struct sampler_scratch *w, const float *logits, float max, uint32_t n,
                     bool whole, const struct cut *cut) {
    const uint32_t near = whole ? find_near(w, logits, max) : find_near_kept(w, logits, max, n);
    uint32_t *heap = w->ids, left = near, kept = 0;
    double mass = 0;
    make_heap(logits, heap, near);
    while (kept < n && kept < cut->limit) {
        if (left == 0) {
            if (whole)
                find_far(w, logits, max, near);
            heap = w->ids + near;
            left = n - near;
            make_heap(logits, heap, left);
        }
        uint32_t id = take_best(logits, heap, left--);
        double p = relative(logits, id, (double)max);
        if (kept > 0 && (mass >= cut->mass || (p < cut->least && kept >= cut->at_least)))
            break;
        mass += p;
        w->kept[kept++] = id;
    }
    return kept;
}

static void mark_special(const kvasir_sampler *s, uint8_t mark) {
    for (size_t i = 0; i < s->options.n_xtc_special; i++)
        if (s->special[i] >= 0 && (uint32_t)s->special[i] < s->vocab)
            s->scratch->marks[s->special[i]] = mark;
}

/* XTC: drops the candidates above the threshold, except the least likely of them, from
 * scratch->kept [n], in any order. At least that one is left, with a probability above 0. */
static uint32_t drop_likely(const kvasir_sampler *s, const float *logits, float max, uint32_t n) {
    struct sampler_scratch *w = s->scratch;
    double last = INFINITY;
    weigh(w, logits, max, 1, n);
    double threshold = (double)s->options.xtc_threshold * sum_of(w->weights, n);
    for (uint32_t i = 0; i < n; i++)
        if (w->weights[i] > threshold && w->weights[i] < last)
            last = w->weights[i];
    uint32_t kept = 0;
    mark_special(s, 1);
    for (uint32_t i = 0; i < n; i++)
        if (w->weights[i] <= last || w->marks[w->kept[i]])
            w->kept[kept++] = w->kept[i];
    mark_special(s, 0);
    ASSERT(kept > 0);
    return kept;
}

/* Fills scratch->kept with the candidates that the filters keep, and returns their number. */
static uint32_t filter(const kvasir_sampler *s, const float *logits, float max, bool xtc) {
    const kvasir_sampling *o = &s->options;
    struct sampler_scratch *w = s->scratch;
    uint32_t n = s->vocab, top_k = o->top_k > 0 ? (uint32_t)o->top_k : n;
    const bool by_mass = o->top_p > 0 && o->top_p < 1, ordered = by_mass || o->min_p > 0;
    struct cut cut = {.mass = INFINITY,
                      .least = (double)o->min_p,
                      .at_least = o->min_tokens_to_keep,
                      .limit = xtc ? n : top_k};
    if (by_mass)
        cut.mass = m_exp_sum(logits, n, max, 1) * (double)o->top_p;
    if (ordered || (top_k < n && !xtc))
        n = walk(w, logits, max, n, true, &cut);
    else
        for (uint32_t i = 0; i < n; i++)
            w->kept[i] = i;
    if (xtc)
        n = drop_likely(s, logits, max, n);
    if (n <= top_k)
        return n;
    return ordered
               ? top_k
               : walk(w, logits, max, n, false, &(struct cut){.mass = INFINITY, .limit = top_k});
}

/* ---- drawing --------------------------------------------------------------------------------- */

/* Purposes of random numbers: constants that keep the streams of a seed apart. */
#define FOR_TOKEN 0x632be59bd9b4e019ULL
#define FOR_XTC   0xd1342543de82ef95ULL

/* Number `draw` of a seed's stream, uniform in [0, 1) with 53 bits. The seed is mixed first;
 * otherwise seeds that differ by the golden-ratio step would give the same stream, shifted. */
static double uniform(uint64_t seed, uint64_t draw, uint64_t what_for) {
    uint64_t bits = mix_bits(mix_bits(seed + what_for) + draw * 0x9e3779b97f4a7c15ULL);
    return (double)(bits >> 11) * 0x1p-53;
}

static bool is_edited(const kvasir_sampling *o) {
    return o->n_logit_bias || penalises_repeats(o) || o->presence_penalty != 0 ||
           o->frequency_penalty != 0;
}

/* The logits with bias, penalties and what is not allowed; *best: the id of the largest. */
static const float *logits_of(const kvasir_sampler *s, const float *logits, uint32_t *best) {
    if (s->allowed || is_edited(&s->options))
        logits = process(s, logits);
    *best = likeliest(s, logits);
    return logits;
}

size_t sampler_weigh(kvasir_sampler *s, const float *logits, const uint32_t **ids,
                     const double **weights) {
    const kvasir_sampling *o = &s->options;
    struct sampler_scratch *w = s->scratch;
    uint32_t best, n = 1;
    *ids = w->kept;
    *weights = w->weights;
    logits = logits_of(s, logits, &best);
    float max = value_of(logits, best);
    w->kept[0] = best;
    if (o->temp > 0 && !isinf(max)) {
        bool xtc = o->xtc_probability > 0 &&
                   uniform(o->seed, s->draws, FOR_XTC) < (double)o->xtc_probability;
        n = filter(s, logits, max, xtc);
        if (xtc) { /* the largest may be gone; without this all weights could underflow to 0 */
            max = -INFINITY;
            for (uint32_t i = 0; i < n; i++)
                max = logits[w->kept[i]] > max ? logits[w->kept[i]] : max;
        }
    }
    if (n > 1)
        weigh(w, logits, max, o->temp, n);
    else
        w->weights[0] = 1;
    ASSERT(n > 0 && n <= s->vocab);
    return n;
}

static bool keeps_all(const kvasir_sampler *s) {
    const kvasir_sampling *o = &s->options;
    return o->temp > 0 && !(o->top_p > 0 && o->top_p < 1) && !(o->min_p > 0) &&
           (o->top_k == 0 || (uint32_t)o->top_k == s->vocab) && !(o->xtc_probability > 0);
}

/* Draws from the whole vocabulary: a block by the sums of blocks, then one of its tokens. at: the
 * random number, 0 .. 1. */
static uint32_t pick_of_all(const kvasir_sampler *s, const float *logits, double at) {
    struct sampler_scratch *w = s->scratch;
    const float temp = s->options.temp;
    uint32_t best;
    logits = logits_of(s, logits, &best);
    const float max = value_of(logits, best);
    if (isinf(max))
        return best;
    const uint32_t blocks = blocks_of(s->vocab);
    for (uint32_t b = 0; b < blocks; b++)
        w->weights[b] =
            m_exp_sum(logits + b * BLOCK, block_size(s->vocab, b), max, pick_scale(temp));
    double target = at * sum_of(w->weights, blocks);
    const uint32_t block = pick_reached(w->weights, blocks, &target);
    const double of_block = w->weights[block];
    const uint32_t n = block_size(s->vocab, block), first = block * BLOCK;
    for (uint32_t i = 0; i < n; i++)
        w->kept[i] = first + i;
    weigh(w, logits, max, temp, n);
    const double exact = sum_of(w->weights, n);
    target *= exact / of_block;
    return exact > 0 ? first + pick_reached(w->weights, n, &target) : best;
}

int32_t kvasir_sampler_pick(kvasir_sampler *s, const float *logits) {
    const uint32_t *ids;
    const double *weights;
    const double at = uniform(s->options.seed, s->draws, FOR_TOKEN);
    uint32_t token;
    if (keeps_all(s)) {
        token = pick_of_all(s, logits, at);
    } else {
        const size_t n = sampler_weigh(s, logits, &ids, &weights);
        double target = at * sum_of(weights, n);
        token = ids[pick_reached(weights, (uint32_t)n, &target)];
    }
    s->draws++;
    ASSERT(token < s->vocab); /* SAMPLE-3 */
    return (int32_t)token;
}

int32_t sampler_pick_with(kvasir_sampler *s, struct sampler_scratch *scratch, const float *logits) {
    struct sampler_scratch *const before = s->scratch;
    ASSERT(scratch->vocab == s->vocab);
    s->scratch = scratch;
    const int32_t token = kvasir_sampler_pick(s, logits);
    s->scratch = before;
    return token;
}

/* ---- picks of a device ----------------------------------------------------------------------- */

struct edit_list {
    struct pick_edit *edits;
    uint32_t n;
};

static bool list_edit(void *ctx, struct pick_edit e) {
    struct edit_list *l = ctx;
    if (l->n == PICK_EDITS_MAX)
        return false;
    l->edits[l->n++] = e;
    return true;
}

kvasir_status sampler_check_vocab(const kvasir_sampler *s, uint32_t vocab, kvasir_error *err) {
    if (s->vocab == vocab)
        return KVASIR_OK;
    return fail(err, KVASIR_ERR_ARGUMENT, "the sampler is for %u tokens, the model has %u",
                s->vocab, vocab);
}

bool sampler_describe(const kvasir_sampler *s, struct pick_edit *edits, struct pick *out) {
    const kvasir_sampling *o = &s->options;
    struct edit_list list = {edits, 0};
    if (s->allowed || o->xtc_probability > 0 || !each_edit(s, list_edit, &list))
        return false;
    *out = (struct pick){.n_edits = list.n,
                         .edits = edits,
                         .at = uniform(o->seed, s->draws, FOR_TOKEN),
                         .temp = o->temp,
                         .top_p = o->top_p,
                         .min_p = o->min_p,
                         .top_k = (uint32_t)o->top_k,
                         .at_least = o->min_tokens_to_keep,
                         .n_top = -1};
    return true;
}

void sampler_picked(kvasir_sampler *s) {
    s->draws++;
}

/* ---- log-probabilities ----------------------------------------------------------------------- */

/* Inserts after values that are not smaller. ids come in rising order, so equal ones are sorted
 * by id. */
static void insert_top(kvasir_token_logprob *top, uint32_t n, uint32_t id, float value) {
    DEBUG_ASSERT(n > 0 && n <= TOP_LOGPROBS_MAX);
    uint32_t at = n - 1;
    for (; at > 0 && top[at - 1].logprob < value; at--)
        top[at] = top[at - 1];
    top[at] = (kvasir_token_logprob){(int32_t)id, value};
}

static float logprob_of(float value, double max, double log_sum) {
    return (float)(pick_below((double)value, max) - log_sum);
}

uint32_t sampler_rank(const float *logits, uint32_t vocab, int32_t token) {
    ASSERT(token >= 0 && (uint32_t)token < vocab);
    const float least = value_of(logits, (uint32_t)token);
    uint32_t n = 0;
    for (uint32_t i = 0; i < vocab; i++)
        n += value_of(logits, i) >= least;
    return n;
}

void sampler_logprobs(const float *logits, uint32_t vocab, int32_t token, uint32_t n_top,
                      float *logprob, kvasir_token_logprob *top) {
    ASSERT(n_top <= TOP_LOGPROBS_MAX && n_top <= vocab && token >= 0 && (uint32_t)token < vocab);
    enum { PART = 1024 };
    double max = (double)value_of(logits, largest(logits, vocab, NULL)), sum = 0, block[PART];
    for (uint32_t at = 0; at < vocab; at += PART) {
        const uint32_t n = vocab - at < PART ? vocab - at : PART;
        for (uint32_t i = 0; i < n; i++)
            block[i] = pick_below((double)value_of(logits, at + i), max);
        m_exp_each(block, n);
        sum += sum_of(block, n);
    }
    for (uint32_t i = 0; n_top && i < vocab; i++) {
        float value = value_of(logits, i);
        if (i < n_top)
            insert_top(top, i + 1, i, value);
        else if (value > top[n_top - 1].logprob)
            insert_top(top, n_top, i, value);
    }
    const double log_sum = m_log(sum);
    for (uint32_t i = 0; i < n_top; i++)
        top[i].logprob = logprob_of(top[i].logprob, max, log_sum);
    *logprob = logprob_of(value_of(logits, (uint32_t)token), max, log_sum);
}

void sampler_finish_logprobs(const struct pick_logs *logs, uint32_t n_top, float *logprob,
                             kvasir_token_logprob *top) {
    const double max = (double)logs->max, log_sum = m_log(logs->sum);
    for (uint32_t i = 0; i < n_top; i++)
        top[i] = (kvasir_token_logprob){logs->ids[i], logprob_of(logs->values[i], max, log_sum)};
    *logprob = logprob_of(logs->value, max, log_sum);
}
