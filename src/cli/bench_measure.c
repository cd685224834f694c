/* SPDX-License-Identifier: Apache-2.0 */
/* bench_measure.c: runs everything that `kvasir bench` reports.
 *
 *     side    one format: a context with threads of its own, over the same weights
 *       seed    512 tokens that were computed
 *       bases   sequences of each depth, as many as the largest batch: copies of the seed's pages,
 *               or the base of the depth before and further copies, so that all depths take little
 *               more memory than the largest
 *     run     forks of the bases, so that the next run finds them as they were
 *
 * A sequence shorter than the seed is computed. Token ids are random, the same in every run. Steps
 * also pick, greedily, the tokens that would come next.
 */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEED_TOKENS = 512 };

struct side {
    kvasir_context *ctx;
    kvasir_seq *seed;
    kvasir_seq **bases; /* [depth][batch_max] */
};

struct bench {
    const struct command *command;
    kvasir_model *model;
    struct bench_results *r;
    struct side sides[BENCH_FORMATS_MAX];
    size_t n_sides;
    uint32_t batch_max, tokens_max; /* tokens_max: of a prompt or an answer */
    int32_t *ids;                   /* [n_ids] random */
    size_t n_ids;
    kvasir_sampler **samplers; /* [batch_max] greedy */
    int32_t *picked;           /* [batch_max] */
    uint32_t *counts;          /* [batch_max] ones */
    kvasir_seq **forks;
    lab_ceiling *ceiling; /* NULL: a GPU */
    struct progress progress;
    size_t done; /* runs */
};

static int library(const struct bench *b, const kvasir_error *err) {
    if (!interrupted())
        return library_error(b->command, err);
    run_error(b->command, "interrupted: there are no results");
    return EXIT_INTERRUPTED;
}

/* ---- set-up ---------------------------------------------------------------------------------- */

static uint32_t largest(const struct number_list *list) {
    return list->n ? list->items[list->n - 1] : 0;
}

static int make_tokens(struct bench *b) {
    const struct bench_args *a = b->r->a;
    const size_t answers = (size_t)a->answer * b->batch_max;
    uint64_t state = 0x9e3779b97f4a7c15;
    b->n_ids = answers > b->tokens_max ? answers : b->tokens_max;
    b->n_ids = b->n_ids > SEED_TOKENS ? b->n_ids : SEED_TOKENS;
    b->ids = malloc(b->n_ids * sizeof *b->ids);
    b->samplers = calloc(b->batch_max, sizeof *b->samplers);
    b->picked = malloc(b->batch_max * sizeof *b->picked);
    b->counts = malloc(b->batch_max * sizeof *b->counts);
    b->forks = calloc(b->batch_max, sizeof *b->forks);
    if (!b->ids || !b->samplers || !b->picked || !b->counts || !b->forks)
        return run_error(b->command, "out of memory");
    for (size_t i = 0; i < b->n_ids; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        b->ids[i] = (int32_t)((state >> 33) % b->r->model.vocab);
    }
    const kvasir_sampling greedy = kvasir_sampling_defaults();
    kvasir_error err;
    for (uint32_t i = 0; i < b->batch_max; i++) {
        b->counts[i] = 1;
        if (kvasir_sampler_create(&greedy, b->r->model.vocab, &b->samplers[i], &err))
            return library(b, &err);
    }
    return EXIT_GOOD;
}

/* Whether the base of the depth before can be extended. */
static bool goes_on(const struct number_list *depths, size_t i) {
    return i > 0 && depths->items[i - 1] % LAB_PAGE_TOKENS == 0 && depths->items[i] >= SEED_TOKENS;
}

/* Tokens of the base of depth i whose pages are its own. */
static uint32_t own_tokens(const struct number_list *depths, size_t i) {
    return depths->items[i] - (goes_on(depths, i) ? depths->items[i - 1] : 0);
}

/* For the bases of all depths, a fork of each of one depth, and the seed. */
static uint64_t cache_bytes(const struct bench *b, const kvasir_context_options *o) {
    const struct number_list *depths = &b->r->a->depths;
    uint64_t all = lab_sequence_bytes(b->model, o, SEED_TOKENS);
    for (size_t i = 0; i < depths->n; i++)
        all += b->batch_max * lab_sequence_bytes(b->model, o, own_tokens(depths, i));
    return all + (b->batch_max + 1) * lab_sequence_bytes(b->model, o, b->tokens_max);
}

static int make_side(struct bench *b, size_t format) {
    const struct bench_args *a = b->r->a;
    struct side *s = &b->sides[b->n_sides++];
    kvasir_context_options o = a->context;
    kvasir_error err;
    const bool deep = largest(&a->depths) >= SEED_TOKENS;
    o.kv_bits = a->bits.items[format];
    o.ctx = largest(&a->depths) + b->tokens_max;
    o.cache_bytes = cache_bytes(b, &o);
    calibrate_unasked(&o, a->model, a->quiet);
    s->bases = calloc(a->depths.n * b->batch_max, sizeof *s->bases);
    if (!s->bases)
        return run_error(b->command, "out of memory");
    if (kvasir_context_create(b->model, &o, &s->ctx, &err))
        return library(b, &err);
    kvasir_context_get_info(s->ctx, &b->r->formats[format]);
    if (!a->quiet)
        print_context_facts(&b->r->formats[format]);
    if (deep && (kvasir_seq_create(s->ctx, &s->seed, &err) ||
                 kvasir_seq_eval(s->seed, b->ids, SEED_TOKENS, NULL, &err)))
        return library(b, &err);
    return EXIT_GOOD;
}

/* All formats are in memory at once. A GPU's memory is its own. */
static int check_memory(const struct bench *b) {
    const uint64_t available = memory_available_bytes();
    const struct number_list *depths = &b->r->a->depths;
    uint32_t apart =
        0; /* tokens of bases beside that of the largest depth and what it goes on from */
    uint64_t need = 0;
    for (size_t i = 0; i < depths->n; i++)
        apart += own_tokens(depths, i);
    apart -= largest(depths);
    for (size_t i = 0; i < b->n_sides; i++) {
        const kvasir_context_info *info = &b->r->formats[i];
        need += (info->ctx_bytes + apart * info->kv_bytes_per_token) * b->batch_max;
    }
    char text[24], free_text[24];
    if (!b->ceiling || available == 0 || need < available)
        return EXIT_GOOD;
    return run_error(b->command,
                     "the caches of all formats need %s, and %s of memory are free: give fewer "
                     "--kv-bits, or a smaller --depth or --batch",
                     human_bytes((double)need, text), human_bytes((double)available, free_text));
}

static int make_ceiling(struct bench *b) {
    struct bench_results *r = b->r;
    const kvasir_context_info *info = &r->formats[0];
    kvasir_error err;
    r->floats = lab_multiplies_floats(b->model);
    r->known = strcmp(info->kind, "cpu") == 0;
    if (r->known && lab_ceiling_create(info->threads, info->cpu_tier, r->floats, &b->ceiling, &err))
        return library(b, &err);
    return EXIT_GOOD;
}

/* Rows in the order in which they are measured. */
static int make_rows(struct bench *b) {
    struct bench_results *r = b->r;
    const struct bench_args *a = r->a;
    const size_t answers = a->answer ? a->batches.n : 0, cells = a->prompts.n + answers;
    r->rows = calloc(a->depths.n * cells * a->bits.n, sizeof *r->rows);
    r->read = calloc(a->depths.n * cells * a->rounds, sizeof *r->read);
    r->multiply = calloc(a->depths.n * cells * a->rounds, sizeof *r->multiply);
    if (!r->rows || !r->read || !r->multiply)
        return run_error(b->command, "out of memory");
    for (size_t d = 0; d < a->depths.n; d++)
        for (size_t c = 0; c < cells; c++)
            for (size_t f = 0; f < a->bits.n; f++) {
                const bool decode = c >= a->prompts.n;
                r->rows[r->n_rows++] =
                    (struct bench_row){.bits = a->bits.items[f],
                                       .format = f,
                                       .place = d,
                                       .decode = decode,
                                       .depth = a->depths.items[d],
                                       .tokens = decode ? a->answer : a->prompts.items[c],
                                       .batch = decode ? a->batches.items[c - a->prompts.n] : 1};
            }
    return EXIT_GOOD;
}

/* before: the same sequence at the depth before; NULL: this one cannot go on from there. */
static kvasir_status make_base(const struct bench *b, struct side *s, uint32_t depth,
                               kvasir_seq *before, kvasir_seq **out, kvasir_error *err) {
    kvasir_status status =
        before ? kvasir_seq_fork(before, out, err) : kvasir_seq_create(s->ctx, out, err);
    if (status || depth == 0)
        return status;
    return depth < SEED_TOKENS ? kvasir_seq_eval(*out, b->ids, depth, NULL, err)
                               : lab_extend(*out, s->seed, depth, err);
}

static int make_bases(struct bench *b) {
    const struct number_list *depths = &b->r->a->depths;
    const uint32_t n = b->batch_max;
    kvasir_error err;
    for (size_t f = 0; f < b->n_sides; f++)
        for (size_t i = 0; i < depths->n * n; i++) {
            struct side *s = &b->sides[f];
            kvasir_seq *before = goes_on(depths, i / n) ? s->bases[i - n] : NULL;
            if (make_base(b, s, depths->items[i / n], before, &s->bases[i], &err) || interrupted())
                return library(b, &err);
        }
    return EXIT_GOOD;
}

static int set_up(struct bench *b) {
    const struct bench_args *a = b->r->a;
    b->batch_max = a->answer ? largest(&a->batches) : 1;
    b->tokens_max = largest(&a->prompts) > a->answer ? largest(&a->prompts) : a->answer;
    kvasir_model_get_info(b->model, &b->r->model);
    if (!a->quiet)
        print_model_line(&b->r->model);
    int code = make_tokens(b);
    for (size_t i = 0; i < a->bits.n && !code; i++)
        code = make_side(b, i);
    if (!code)
        code = make_ceiling(b);
    if (!code)
        code = check_memory(b);
    if (!code)
        code = make_rows(b);
    return code ? code : make_bases(b);
}

/* ---- runs ------------------------------------------------------------------------------------ */

static bool go_on(void *user, size_t done, size_t total) {
    (void)user;
    (void)done;
    (void)total;
    return !interrupted();
}

static kvasir_status run_prompt(struct bench *b, const struct side *s, const struct bench_row *row,
                                double *seconds, kvasir_error *err) {
    kvasir_eval_options eval = {.struct_size = sizeof(kvasir_eval_options), .on_progress = go_on};
    kvasir_seq *seq;
    kvasir_status status = kvasir_seq_fork(s->bases[row->place * b->batch_max], &seq, err);
    if (status)
        return status;
    const double start = clock_seconds();
    status = kvasir_seq_pick(seq, b->ids, row->tokens, &eval, b->samplers[0], b->picked, err);
    *seconds = clock_seconds() - start;
    kvasir_seq_destroy(seq);
    return status;
}

/* Forks of the row's bases as a batch. */
static kvasir_status fork_bases(struct bench *b, const struct side *s, const struct bench_row *row,
                                kvasir_batch **out, kvasir_error *err) {
    kvasir_seq **bases = &s->bases[row->place * b->batch_max];
    const uint32_t n = row->batch;
    kvasir_status status = KVASIR_OK;
    uint32_t made = 0;
    while (made < n && !status) {
        ASSERT(kvasir_seq_length(bases[made]) == row->depth);
        status = kvasir_seq_fork(bases[made], &b->forks[made], err);
        made += !status;
    }
    if (!status)
        status = kvasir_batch_merge(s->ctx, b->forks, n, out, err);
    for (uint32_t i = 0; i < made && status; i++)
        kvasir_seq_destroy(b->forks[i]);
    return status;
}

static kvasir_status run_answers(struct bench *b, const struct side *s, const struct bench_row *row,
                                 double *seconds, kvasir_error *err) {
    kvasir_batch *batch;
    kvasir_status status = fork_bases(b, s, row, &batch, err);
    if (status)
        return status;
    const double start = clock_seconds();
    for (uint32_t t = 0; t < row->tokens && !status && !interrupted(); t++)
        status = kvasir_batch_pick(batch, b->ids + (size_t)t * row->batch, b->counts, b->samplers,
                                   b->picked, err);
    *seconds = clock_seconds() - start;
    kvasir_batch_destroy(batch);
    return status;
}

static int run_once(struct bench *b, const struct bench_row *row, double *seconds) {
    const struct side *s = &b->sides[row->format];
    kvasir_error err;
    kvasir_status status =
        row->decode ? run_answers(b, s, row, seconds, &err) : run_prompt(b, s, row, seconds, &err);
    if (status || interrupted())
        return library(b, &err);
    progress_step(&b->progress, ++b->done);
    return EXIT_GOOD;
}

/* The machine as it is now. */
static void take_ceilings(struct bench *b, double *read, double *multiply) {
    struct bench_results *r = b->r;
    *read = *multiply = 0;
    if (!b->ceiling)
        return;
    *read = r->read[r->n_ceilings] = lab_ceiling_read(b->ceiling);
    *multiply = r->multiply[r->n_ceilings] = lab_ceiling_multiply(b->ceiling);
    r->n_ceilings++;
}

/* rows [n_sides]: one of each format. */
static int warm_up(struct bench *b, struct bench_row *rows) {
    int code = EXIT_GOOD;
    for (size_t f = 0; f < b->n_sides && !code; f++) {
        const lab_run run = {rows[f].depth, rows[f].tokens, rows[f].batch, rows[f].decode};
        double ignored;
        rows[f].work = lab_run_work(b->sides[f].ctx, &run);
        code = run_once(b, &rows[f], &ignored);
    }
    return code;
}

/* Every second round goes the other way round. */
static int measure_cell(struct bench *b, struct bench_row *rows, uint32_t round) {
    const size_t n = b->n_sides;
    double read, multiply;
    int code = EXIT_GOOD;
    take_ceilings(b, &read, &multiply);
    for (size_t i = 0; i < n && !code; i++) {
        struct bench_row *row = &rows[round % 2 ? n - 1 - i : i];
        code = run_once(b, row, &row->seconds[round]);
        row->percent[round] =
            read > 0
                ? 100 * lab_roofline(&row->work, read, multiply, &row->memory) / row->seconds[round]
                : (double)NAN;
    }
    return code;
}

static int measure_all(struct bench *b) {
    struct bench_results *r = b->r;
    int code = EXIT_GOOD;
    for (size_t i = 0; i < r->n_rows && !code; i += b->n_sides)
        code = warm_up(b, &r->rows[i]);
    for (uint32_t round = 0; round < r->a->rounds && !code; round++)
        for (size_t i = 0; i < r->n_rows && !code; i += b->n_sides)
            code = measure_cell(b, &r->rows[i], round);
    return code;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void clean_up(struct bench *b) {
    for (size_t f = 0; f < b->n_sides; f++) {
        struct side *s = &b->sides[f];
        for (size_t i = 0; s->bases && i < b->r->a->depths.n * b->batch_max; i++)
            kvasir_seq_destroy(s->bases[i]);
        kvasir_seq_destroy(s->seed);
        kvasir_context_destroy(s->ctx);
        free(s->bases);
    }
    lab_ceiling_destroy(b->ceiling);
    free(b->ids);
    for (uint32_t i = 0; b->samplers && i < b->batch_max; i++)
        kvasir_sampler_destroy(b->samplers[i]);
    free(b->samplers);
    free(b->picked);
    free(b->counts);
    free(b->forks);
}

int bench_measure(const struct command *c, kvasir_model *model, struct bench_results *r) {
    struct bench b = {.command = c, .model = model, .r = r};
    int code = set_up(&b);
    if (!code) {
        const size_t runs = r->n_rows * (r->a->rounds + 1);
        progress_start(&b.progress, r->a->quiet ? NULL : "measuring", runs, "runs");
        code = measure_all(&b);
        progress_end(&b.progress);
    }
    clean_up(&b);
    return code;
}

void bench_results_free(struct bench_results *r) {
    free(r->rows);
    free(r->read);
    free(r->multiply);
}
