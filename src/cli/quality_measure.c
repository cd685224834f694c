/* SPDX-License-Identifier: Apache-2.0 */
/* quality_measure.c: the runs of `kvasir quality`, side by side in steps, so that no more logits
 * are in memory than those of one step:
 *
 *     step 0: exact run -> logits [rows of a step][vocab]
 *             format 0  -> compared with them, row by row
 *             format 1  -> ...
 *     step 1: exact run -> ...
 *
 * By I1 (docs/design.md) it does not matter to the logits where a window is cut into steps. The
 * first step is one page, whose bytes are measured. A window is run only with the formats that lack
 * it (--resume), and the exact run beside them.
 */
#include "quality.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char EXACT[] = "f32";

struct side {
    struct quality_run *run;
    kvasir_context *ctx; /* NULL: all its windows are finished */
    kvasir_seq *seq;
    double seconds; /* of the window */
};

struct measure {
    const struct command *command;
    kvasir_model *model;
    struct quality_results *r;
    struct side sides[1 + QUALITY_FORMATS_MAX]; /* [n_sides]: the exact run first */
    size_t n_sides;
    float *logits; /* [step][vocab] of the exact run */
    int32_t *ids;  /* [window] */
    uint32_t step, n_window;
    const struct side *side; /* that takes the step */
    size_t at;               /* the step's first position */
    double comparing;        /* seconds in take_logits during the step */
    struct progress progress;
};

static int library(const struct measure *m, const kvasir_error *err) {
    if (!interrupted())
        return library_error(m->command, err);
    const struct quality_args *a = m->r->a;
    if (a->resume)
        run_error(m->command, "interrupted: %s has the finished windows", a->resume);
    else
        run_error(m->command, "interrupted: nothing was kept (--resume)");
    return EXIT_INTERRUPTED;
}

/* ---- set-up ---------------------------------------------------------------------------------- */

static int make_side(struct measure *m, const char *bits) {
    kvasir_context_options o = m->r->a->context;
    kvasir_error err;
    o.kv_bits = bits;
    o.ctx = m->r->a->window;
    if (m->n_sides == 0)
        o.key_centre = "off"; /* it has none, and needs no note of that */
    calibrate_unasked(&o, m->r->a->model, m->r->a->quiet);
    if (kvasir_context_create(m->model, &o, &m->sides[m->n_sides].ctx, &err))
        return library(m, &err);
    m->n_sides++;
    return EXIT_GOOD;
}

/* Everything that changes a kept value and is not in a run's fingerprint, or is better named. */
static void note_settings(struct measure *m, const kvasir_context_info *exact) {
    struct quality_results *r = m->r;
    snprintf(r->settings, sizeof r->settings,
             "model %s, text %016llx, windows of %u from position %u, %s, act bits %d",
             r->model.fingerprint, (unsigned long long)r->text.text_hash, r->a->window, r->first,
             exact->cpu_tier, exact->act_bits);
}

/* The place in r->runs of side i. */
static int find_run(struct measure *m, size_t i, const kvasir_context_info *info, size_t *place) {
    struct quality_results *r = m->r;
    const char *bits = i ? r->a->bits.items[i - 1] : EXACT;
    struct quality_run *run = quality_run_find(r, info->fingerprint);
    if (!run || !quality_run_reserve(r, run, r->text.n))
        return run_error(m->command, "out of memory");
    *place = (size_t)(run - r->runs);
    if (i > 0 && *place == r->exact)
        return usage_error(
            m->command, "--kv-bits: %s is the exact run, which the others are compared with", bits);
    for (size_t k = 0; k + 1 < i; k++)
        if (r->formats[k] == *place)
            return usage_error(m->command, "--kv-bits: %s and %s are the same", bits,
                               r->a->bits.items[k]);
    snprintf(run->bits, sizeof run->bits, "%s", bits);
    run->info = *info;
    return EXIT_GOOD;
}

/* The sides' runs, with what --resume has of them. */
static int make_runs(struct measure *m) {
    struct quality_results *r = m->r;
    kvasir_context_info info;
    kvasir_context_get_info(m->sides[0].ctx, &info);
    note_settings(m, &info);
    m->step = info.prefill_chunk;
    int code = r->a->resume ? quality_state_read(m->command, r) : EXIT_GOOD;
    for (size_t i = 0; i < m->n_sides && !code; i++) {
        kvasir_context_get_info(m->sides[i].ctx, &info);
        code = find_run(m, i, &info, i ? &r->formats[i - 1] : &r->exact);
        m->step = info.prefill_chunk < m->step ? info.prefill_chunk : m->step;
        if (i > 0 && !r->a->quiet)
            print_context_facts(&info);
    }
    for (size_t i = 0; i < m->n_sides && !code; i++) { /* runs do not move any more */
        m->sides[i].run = &r->runs[i ? r->formats[i - 1] : r->exact];
        if (i > 0 && m->sides[i].run->windows >= r->text.n) {
            kvasir_context_destroy(m->sides[i].ctx);
            m->sides[i].ctx = NULL;
        }
    }
    return code;
}

static int set_up(struct measure *m) {
    struct quality_results *r = m->r;
    const struct quality_args *a = r->a;
    kvasir_model_get_info(m->model, &r->model);
    r->first = a->depths.items[0];
    r->rows = a->window - 1 - r->first;
    if (!a->quiet)
        print_model_line(&r->model);
    int code =
        text_windows_read(m->command, m->model, a->file, a->window, a->windows, a->quiet, &r->text);
    if (!code)
        code = make_side(m, EXACT);
    for (size_t i = 0; i < a->bits.n && !code; i++)
        code = make_side(m, a->bits.items[i]);
    if (!code)
        code = make_runs(m);
    if (code)
        return code;
    m->ids = malloc(a->window * sizeof *m->ids);
    m->logits = malloc((size_t)m->step * r->model.vocab * sizeof *m->logits);
    return m->ids && m->logits ? EXIT_GOOD : run_error(m->command, "out of memory");
}

/* ---- a window -------------------------------------------------------------------------------- */

/* Keeps the exact run's logits, or compares another's with them. */
static bool take_logits(void *user, size_t first, size_t rows, const float *logits) {
    struct measure *m = user;
    const double start = clock_seconds();
    const uint32_t vocab = m->r->model.vocab;
    const bool exact = m->side == m->sides;
    struct quality_run *run = m->side->run;
    for (size_t i = 0; i < rows; i++) {
        const float *row = logits + i * vocab;
        float *kept = m->logits + (first + i) * vocab;
        const size_t position = m->at + first + i;
        const size_t place = (size_t)m->n_window * m->r->rows + position - m->r->first;
        if (exact)
            memcpy(kept, row, vocab * sizeof *row);
        lab_divergence d = {.nll_q = 0, .same_top = true};
        if (exact)
            d.nll_q = lab_nll(row, vocab, m->ids[position + 1]);
        else
            d = lab_compare_logits(kept, row, vocab, m->ids[position + 1]);
        run->kl[place] = (float)d.kl;
        run->nll[place] = (float)d.nll_q;
        run->same_top[place] = d.same_top;
    }
    m->comparing += clock_seconds() - start;
    return !interrupted();
}

static int run_step(struct measure *m, struct side *s, size_t n) {
    kvasir_error err;
    kvasir_eval_options eval = kvasir_eval_defaults();
    eval.on_logits = m->at >= m->r->first ? take_logits : NULL;
    eval.user = m;
    m->side = s;
    m->comparing = 0;
    const double start = clock_seconds();
    if (kvasir_seq_eval(s->seq, m->ids + m->at, n, &eval, &err) || interrupted())
        return library(m, &err);
    s->seconds += clock_seconds() - start - m->comparing;
    s->run->pages_bytes = lab_pages_bytes(s->ctx, quality_pages(m->r));
    return EXIT_GOOD;
}

/* Tokens of the step at m->at: within a page at first, and not across the first kept position. */
static size_t step_tokens(const struct measure *m) {
    const size_t left = m->r->a->window - 1 - m->at;
    size_t n = m->at == 0 && m->step > LAB_PAGE_TOKENS ? LAB_PAGE_TOKENS : m->step;
    if (m->at < m->r->first && m->at + n > m->r->first)
        n = m->r->first - m->at;
    return n < left ? n : left;
}

static bool takes_part(const struct measure *m, const struct side *s) {
    return s == m->sides || (s->ctx && s->run->windows <= m->n_window);
}

static int run_steps(struct measure *m) {
    int code = EXIT_GOOD;
    size_t n;
    for (m->at = 0; m->at + 1 < m->r->a->window && !code; m->at += n) {
        n = step_tokens(m);
        for (size_t i = 0; i < m->n_sides && !code; i++)
            if (m->sides[i].seq)
                code = run_step(m, &m->sides[i], n);
        progress_step(&m->progress, m->at + n);
    }
    return code;
}

static void keep_window(struct measure *m) {
    for (size_t i = 0; i < m->n_sides; i++) {
        struct side *s = &m->sides[i];
        if (!s->seq || s->run->windows > m->n_window)
            continue;
        s->run->seconds += s->seconds;
        s->run->windows = m->n_window + 1;
    }
}

static double mean_of(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i];
    return sum / (double)n;
}

static void print_window(const struct measure *m, double seconds) {
    const struct quality_results *r = m->r;
    const size_t n = r->rows, from = m->n_window * n;
    fprintf(stderr, "window %u of %u: ppl %.4f", m->n_window + 1, r->text.n,
            exp(mean_of(m->sides[0].run->nll + from, n)));
    for (size_t i = 1; i < m->n_sides; i++)
        if (m->sides[i].seq)
            fprintf(stderr, ", KL %s %.4g", m->sides[i].run->bits,
                    mean_of(m->sides[i].run->kl + from, n));
    fprintf(stderr, ", %.1f s\n", seconds);
}

static int run_window(struct measure *m) {
    const struct quality_args *a = m->r->a;
    kvasir_error err;
    char what[48];
    int code = EXIT_GOOD;
    const double start = clock_seconds();
    text_windows_take(&m->r->text, m->n_window, m->ids);
    for (size_t i = 0; i < m->n_sides && !code; i++) {
        struct side *s = &m->sides[i];
        s->seconds = 0;
        if (takes_part(m, s) && kvasir_seq_create(s->ctx, &s->seq, &err))
            code = library(m, &err);
    }
    snprintf(what, sizeof what, "window %u of %u", m->n_window + 1, m->r->text.n);
    progress_start(&m->progress, a->quiet ? NULL : what, a->window - 1, "tokens");
    if (!code)
        code = run_steps(m);
    progress_end(&m->progress);
    if (!code) {
        keep_window(m);
        if (!a->quiet)
            print_window(m, clock_seconds() - start);
    }
    for (size_t i = 0; i < m->n_sides; i++) {
        kvasir_seq_destroy(m->sides[i].seq);
        m->sides[i].seq = NULL;
    }
    return !code && a->resume ? quality_state_write(m->command, m->r) : code;
}

/* Whether a format, or the exact run, lacks the window. */
static bool window_missing(const struct measure *m) {
    bool missing = m->sides[0].run->windows <= m->n_window;
    for (size_t i = 1; i < m->n_sides; i++)
        missing = missing || takes_part(m, &m->sides[i]);
    return missing;
}

/* ---- all of it ------------------------------------------------------------------------------- */

int quality_measure(const struct command *c, kvasir_model *model, struct quality_results *r) {
    struct measure m = {.command = c, .model = model, .r = r};
    int code = set_up(&m);
    for (m.n_window = 0; m.n_window < r->text.n && !code; m.n_window++)
        if (window_missing(&m))
            code = run_window(&m);
    for (size_t i = 0; i < m.n_sides; i++)
        kvasir_context_destroy(m.sides[i].ctx);
    free(m.ids);
    free(m.logits);
    return code;
}
