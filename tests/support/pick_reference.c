/* SPDX-License-Identifier: Apache-2.0 */
#include "pick_reference.h"

#include <stdbool.h>
#include <stdlib.h>

#include "random_data.h"
#include "util/util.h"

struct token {
    float value;
    int32_t id;
};

static int order(const void *a, const void *b) {
    const struct token *x = a, *y = b;
    if (x->value != y->value)
        return x->value > y->value ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* NaN counts as -inf. */
static float value_of(float logit) {
    return isnan(logit) ? -INFINITY : logit;
}

/* The vocabulary in order. */
static void sort_tokens(const float *x, uint32_t vocab, struct token *out) {
    for (uint32_t i = 0; i < vocab; i++)
        out[i] = (struct token){value_of(x[i]), (int32_t)i};
    qsort(out, vocab, sizeof *out, order);
}

/* In four chains, as SAMPLE-2 wants sums of doubles. */
static double sum_of(const double *x, uint32_t n) {
    double chains[4] = {0};
    for (uint32_t i = 0; i < n; i++)
        chains[i % 4] += x[i];
    return (chains[0] + chains[1]) + (chains[2] + chains[3]);
}

static double weight(float value, float max, float temp) {
    return m_exp(((double)value - (double)max) / (double)temp);
}

static int32_t draw_of_all(const float *x, uint32_t vocab, const struct pick *p,
                           const struct token *first) {
    const uint32_t blocks = (vocab + PICK_BLOCK - 1) / PICK_BLOCK;
    double *sums = calloc(blocks, sizeof *sums), weights[PICK_BLOCK] = {0}, target, exact;
    for (uint32_t b = 0; b < blocks; b++)
        sums[b] = m_exp_sum(x + b * PICK_BLOCK, min_u32(PICK_BLOCK, vocab - b * PICK_BLOCK),
                            first->value, pick_scale(p->temp));
    target = p->at * sum_of(sums, blocks);
    const uint32_t block = pick_reached(sums, blocks, &target),
                   n = min_u32(PICK_BLOCK, vocab - block * PICK_BLOCK);
    for (uint32_t i = 0; i < n; i++)
        weights[i] = weight(value_of(x[block * PICK_BLOCK + i]), first->value, p->temp);
    exact = sum_of(weights, n);
    target *= exact / sums[block];
    free(sums);
    return exact > 0 ? (int32_t)(block * PICK_BLOCK + pick_reached(weights, n, &target))
                     : first->id;
}

static int32_t draw_filtered(const float *x, uint32_t vocab, const struct pick *p,
                             const struct token *tokens) {
    const float max = tokens[0].value;
    const uint32_t limit = p->top_k ? p->top_k : vocab;
    const bool by_mass = p->top_p > 0 && p->top_p < 1;
    const double mass = by_mass ? m_exp_sum(x, vocab, max, 1) * (double)p->top_p : INFINITY;
    double *weights = calloc(vocab, sizeof *weights), before = 0;
    uint32_t n = 0;
    for (; n < vocab && n < limit; n++) {
        const double w = m_exp((double)tokens[n].value - (double)max);
        if (n > 0 && (before >= mass || (w < (double)p->min_p && n >= p->at_least)))
            break;
        before += w;
    }
    for (uint32_t i = 0; i < n; i++)
        weights[i] = n > 1 ? weight(tokens[i].value, max, p->temp) : 1;
    double target = p->at * sum_of(weights, n);
    const uint32_t at = pick_reached(weights, n, &target);
    free(weights);
    return tokens[at].id;
}

static int32_t draw(const float *x, uint32_t vocab, const struct pick *p,
                    const struct token *tokens) {
    if (p->temp == 0 || isinf(tokens[0].value)) {
        for (uint32_t i = 0; i < vocab; i++)
            if (x[i] == tokens[0].value)
                return (int32_t)i;
        return 0; /* all are NaN */
    }
    const bool all =
        !(p->top_p > 0 && p->top_p < 1) && p->min_p == 0 && (p->top_k == 0 || p->top_k == vocab);
    return (all ? draw_of_all : draw_filtered)(x, vocab, p, tokens);
}

static void find_logs(const float *row, uint32_t vocab, const struct pick *p,
                      const struct token *tokens, int32_t token, struct pick_logs *out) {
    enum { PART = 1024 };
    double part[PART] = {0};
    out->value = value_of(row[token]);
    out->max = tokens[0].value;
    out->sum = 0;
    for (uint32_t at = 0; at < vocab; at += PART) {
        const uint32_t n = min_u32(PART, vocab - at);
        for (uint32_t i = 0; i < n; i++)
            part[i] = m_exp(pick_below((double)value_of(row[at + i]), (double)out->max));
        out->sum += sum_of(part, n);
    }
    for (int32_t i = 0; i < p->n_top; i++) {
        out->ids[i] = tokens[i].id;
        out->values[i] = tokens[i].value;
    }
}

void pick_reference(const float *row, uint32_t vocab, const struct pick *p, struct picked *out) {
    struct token *tokens = calloc(vocab, sizeof *tokens);
    float *x = calloc(vocab, sizeof *x);
    memcpy(x, row, vocab * sizeof *x);
    for (uint32_t i = 0; i < p->n_edits; i++)
        x[p->edits[i].id] = pick_edited(x[p->edits[i].id], &p->edits[i]);
    sort_tokens(x, vocab, tokens);
    out->token = draw(x, vocab, p, tokens);
    sort_tokens(row, vocab, tokens);
    if (p->n_top >= 0)
        find_logs(row, vocab, p, tokens, out->token, &out->logs);
    free(tokens);
    free(x);
}

void pick_fill_logits(float *x, uint32_t n) {
    fill_any(x, n);
    for (uint32_t i = 0; i < 4 && random_below(3) == 0; i++)
        x[random_below(n)] = EDGE_VALUE[random_below(EDGE_VALUES)];
    if (random_below(20) == 0)
        for (uint32_t i = 0; i < n; i++)
            x[i] = EDGE_VALUE[random_below(3)];
}
