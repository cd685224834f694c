/* SPDX-License-Identifier: Apache-2.0 */
/* bench_figures.c: medians and spreads of what was measured, as table, JSON and plot show them. */
#include "bench.h"

struct bench_figure bench_figure(const double *values, size_t n) {
    struct bench_figure f = {lab_median(values, n), values[0], values[0]};
    for (size_t i = 1; i < n; i++) {
        f.least = values[i] < f.least ? values[i] : f.least;
        f.most = values[i] > f.most ? values[i] : f.most;
    }
    return f;
}

struct bench_figure bench_speed(const struct bench_results *r, const struct bench_row *row) {
    double speeds[BENCH_ROUNDS_MAX] = {0};
    for (uint32_t i = 0; i < r->a->rounds; i++)
        speeds[i] = (double)row->tokens * row->batch / row->seconds[i];
    return bench_figure(speeds, r->a->rounds);
}

/* Of the round's steps. */
static double round_slope(const struct bench_results *r, size_t format, uint32_t batch,
                          uint32_t round) {
    double tokens[NUMBER_LIST_MAX] = {0}, times[NUMBER_LIST_MAX] = {0};
    size_t n = 0;
    for (size_t i = 0; i < r->n_rows; i++) {
        const struct bench_row *row = &r->rows[i];
        if (!row->decode || row->format != format || row->batch != batch)
            continue;
        tokens[n] = (double)batch * row->depth;
        times[n++] = 1e9 * row->seconds[round] / row->tokens;
    }
    return lab_slope(tokens, times, n);
}

bool bench_slope(const struct bench_results *r, size_t format, uint32_t batch,
                 struct bench_figure *ns) {
    double slopes[BENCH_ROUNDS_MAX] = {0};
    if (r->a->answer == 0 || r->a->depths.n < 2)
        return false;
    for (uint32_t i = 0; i < r->a->rounds; i++)
        slopes[i] = round_slope(r, format, batch, i);
    *ns = bench_figure(slopes, r->a->rounds);
    return true;
}
