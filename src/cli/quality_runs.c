/* SPDX-License-Identifier: Apache-2.0 */
/* quality_runs.c: the runs of `kvasir quality` and their kept values, and what those say, as table,
 * JSON and plot show it.
 */
#include "quality.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- runs ------------------------------------------------------------------------------------ */

bool quality_run_reserve(const struct quality_results *r, struct quality_run *run,
                         uint32_t windows) {
    if (windows <= run->cap)
        return true;
    const size_t n = (size_t)windows * r->rows;
    float *kl = realloc(run->kl, n * sizeof *kl);
    run->kl = kl ? kl : run->kl;
    float *nll = realloc(run->nll, n * sizeof *nll);
    run->nll = nll ? nll : run->nll;
    uint8_t *same_top = realloc(run->same_top, n);
    run->same_top = same_top ? same_top : run->same_top;
    if (!kl || !nll || !same_top)
        return false;
    run->cap = windows;
    return true;
}

struct quality_run *quality_run_find(struct quality_results *r, const char *fingerprint) {
    for (size_t i = 0; i < r->n_runs; i++)
        if (strcmp(r->runs[i].fingerprint, fingerprint) == 0)
            return &r->runs[i];
    struct quality_run *runs = realloc(r->runs, (r->n_runs + 1) * sizeof *runs);
    if (!runs)
        return NULL;
    r->runs = runs;
    struct quality_run *run = &runs[r->n_runs++];
    *run = (struct quality_run){0};
    snprintf(run->fingerprint, sizeof run->fingerprint, "%s", fingerprint);
    return run;
}

void quality_results_free(struct quality_results *r) {
    for (size_t i = 0; i < r->n_runs; i++) {
        free(r->runs[i].kl);
        free(r->runs[i].nll);
        free(r->runs[i].same_top);
    }
    free(r->runs);
    r->runs = NULL;
    r->n_runs = 0;
    text_windows_free(&r->text);
}

/* ---- figures --------------------------------------------------------------------------------- */

/* The values of positions from `depth` on, of this run's windows; returns how many. */
static size_t take(const struct quality_results *r, const float *kept, uint32_t depth,
                   double *values) {
    size_t n = 0;
    for (uint32_t w = 0; w < r->text.n; w++)
        for (uint32_t i = depth - r->first; i < r->rows; i++)
            values[n++] = (double)kept[(size_t)w * r->rows + i];
    return n;
}

static double share_of_same_top(const struct quality_results *r, const struct quality_run *run,
                                uint32_t depth) {
    size_t n = 0, same = 0;
    for (uint32_t w = 0; w < r->text.n; w++)
        for (uint32_t i = depth - r->first; i < r->rows; i++, n++)
            same += run->same_top[(size_t)w * r->rows + i];
    return (double)same / (double)n;
}

uint32_t quality_pages(const struct quality_results *r) {
    return (r->a->window - 1) / LAB_PAGE_TOKENS + 1;
}

bool quality_figures(const struct quality_results *r, const struct quality_run *run, uint32_t depth,
                     struct quality_figures *f) {
    double *values = malloc((size_t)r->text.n * r->rows * sizeof *values);
    if (!values)
        return false;
    *f = (struct quality_figures){.same_top = share_of_same_top(r, run, depth)};
    f->predictions = take(r, run->kl, depth, values);
    f->kl = lab_summarize(values, f->predictions);
    take(r, r->runs[r->exact].nll, depth, values);
    const double exact = lab_summarize(values, f->predictions).mean;
    take(r, run->nll, depth, values);
    f->nll = lab_summarize(values, f->predictions);
    free(values);
    f->ppl = exp(f->nll.mean);
    f->ppl_ratio = exp(f->nll.mean - exact);
    f->token_bytes = (double)run->pages_bytes / (quality_pages(r) * LAB_PAGE_TOKENS);
    f->value_bits = 16 * ratio(f->token_bytes, (double)run->info.kv_bytes_per_token16);
    f->speed = ratio((double)run->windows * (r->a->window - 1), run->seconds);
    return true;
}
