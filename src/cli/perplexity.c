/* SPDX-License-Identifier: Apache-2.0 */
/* perplexity.c: `kvasir perplexity`, how well a model predicts a text when it reads everything
 * through its cache, and how far that is from another run.
 *
 * text_windows.h has how the text is cut. Each window is a new sequence; a token attends only to
 * stored bytes, including its own.
 *
 * A base file (--save-base) is safetensors: "ids" I32 [windows, w], "logits" F32 [windows, w-1,
 * vocab], in the order they were computed. It may be many GB: it is written and read row by row.
 * A run against it (--base) must cut the same windows of the same ids; it may cut fewer.
 */
#include "text_windows.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct perplexity_args {
    kvasir_model_options load;
    const char *model, *file, *save_base, *base, *nll;
    uint32_t window, windows;
    struct cache_args cache;
    bool json, quiet;
};

/* clang-format off */
#define ROW(field) .offset = offsetof(struct perplexity_args, field)
static const struct option OPTIONS[] = {
    MODEL_OPTION(struct perplexity_args),
    LOAD_OPTIONS(struct perplexity_args, load),
    TEXT_WINDOW_OPTIONS(struct perplexity_args, file, window, windows, "16"),
    CACHE_OPTIONS(struct perplexity_args),
    {.name = "--save-base", .value = "FILE", .kind = OPTION_TEXT, ROW(save_base),
     .help = "write all logits, so that other runs can be compared with them"},
    {.name = "--base", .value = "FILE", .kind = OPTION_TEXT, ROW(base),
     .help = "report the KL divergence from the run that saved FILE"},
    {.name = "--nll", .value = "FILE", .kind = OPTION_TEXT, ROW(nll),
     .help = "write each token's loss as safetensors: \"nll\" F32 [windows, window-1]"},
    {.name = "--json", .kind = OPTION_FLAG, ROW(json), .help = "print the results as one JSON "
                                                               "object"},
    {.name = "--quiet", .alias = "-q", .kind = OPTION_FLAG, ROW(quiet),
     .help = "print nothing but errors on standard error"},
};
/* clang-format on */

static const struct command COMMAND = {
    .name = "perplexity",
    .summary = "Measures a model's loss on a text, through its quantized KV cache.",
    .usage = "-m MODEL -f TEXT [flags]",
    .options = OPTIONS,
    .n_options = sizeof OPTIONS / sizeof *OPTIONS,
};

struct base_file {
    struct file_map map;
    const uint8_t *ids;    /* [windows][window] int32, at any address */
    const uint8_t *logits; /* [windows][window-1][vocab] float, likewise */
    float *row;            /* [vocab] */
};

struct run {
    const struct perplexity_args *a;
    kvasir_model *model;
    kvasir_model_info info;
    kvasir_context *ctx;
    struct text_windows text;
    int32_t *ids;      /* [window], the current window */
    uint32_t n_window; /* its number */
    size_t done;       /* predictions so far: nll, kl [text.n * (window - 1)] */
    double *nll, *kl;  /* kl NULL without --base */
    uint64_t same_top;
    struct out_file base_out, nll_out;
    struct base_file base;
    struct progress progress;
    int code; /* of a failure inside a callback, which printed an error */
};

/* Arrays of all predictions. */
static int make_arrays(struct run *r) {
    size_t n = (size_t)r->text.n * (r->a->window - 1);
    r->ids = malloc(r->a->window * sizeof *r->ids);
    r->nll = malloc(n * sizeof *r->nll);
    r->kl = r->a->base ? malloc(n * sizeof *r->kl) : NULL;
    if (!r->ids || !r->nll || (r->a->base && !r->kl))
        return run_error(&COMMAND, "out of memory for %zu predictions", n);
    return EXIT_GOOD;
}

/* ---- the base file --------------------------------------------------------------------------- */

static int start_base_out(struct run *r) {
    struct st_header h = {0};
    json_t *metadata = json_pack("{s:s, s:s}", "writer", "kvasir perplexity --save-base", "kv_bits",
                                 r->a->cache.options.kv_bits);
    st_add_metadata(&h, metadata);
    json_decref(metadata);
    st_add(&h, "ids", ST_I32, (uint64_t[]){r->text.n, r->a->window}, 2);
    st_add(&h, "logits", ST_F32, (uint64_t[]){r->text.n, r->a->window - 1, r->info.vocab}, 3);
    int code = out_write_header(&COMMAND, &r->base_out, &h);
    for (uint32_t w = 0; w < r->text.n && !code; w++) {
        text_windows_take(&r->text, w, r->ids);
        code = out_write(&COMMAND, &r->base_out, r->ids, r->a->window * sizeof *r->ids);
    }
    return code;
}

static int check_base_shape(struct run *r, const uint64_t ids[2], const uint64_t logits[3]) {
    if (ids[1] != r->a->window)
        return usage_error(&COMMAND, "--base: %s has windows of %llu tokens, --window is %u",
                           r->a->base, (unsigned long long)ids[1], r->a->window);
    if (logits[2] != r->info.vocab)
        return usage_error(&COMMAND, "--base: %s has a vocabulary of %llu, the model %u",
                           r->a->base, (unsigned long long)logits[2], r->info.vocab);
    if (logits[0] != ids[0] || logits[1] != ids[1] - 1)
        return run_error(&COMMAND, "--base: %s: its ids and logits do not fit each other",
                         r->a->base);
    if (ids[0] < r->text.n)
        return usage_error(&COMMAND, "--base: %s has %llu windows, this run has %u (--windows)",
                           r->a->base, (unsigned long long)ids[0], r->text.n);
    return EXIT_GOOD;
}

static int check_base_ids(struct run *r) {
    for (uint32_t w = 0; w < r->text.n; w++) {
        size_t bytes = r->a->window * sizeof *r->ids;
        text_windows_take(&r->text, w, r->ids);
        if (memcmp(r->ids, r->base.ids + w * bytes, bytes) != 0)
            return usage_error(&COMMAND,
                               "--base: %s was saved for another text or tokenizer: window %u "
                               "differs",
                               r->a->base, w);
    }
    return EXIT_GOOD;
}

static int find_base(struct run *r, const struct st_table *table, const char *name,
                     enum st_dtype dtype, uint32_t rank, const struct st_tensor **out) {
    const struct st_tensor *t = *out = st_find(table, name);
    if (!t)
        return run_error(&COMMAND,
                         "--base: %s: has no tensor \"%s\": it was not written by --save-base",
                         r->a->base, name);
    if (t->dtype != dtype || t->n_dims != rank || t->bytes == 0)
        return run_error(&COMMAND, "--base: %s: tensor \"%s\" is not %s of rank %u", r->a->base,
                         name, st_dtype_name(dtype), rank);
    return EXIT_GOOD;
}

static int check_base(struct run *r, const struct st_table *table) {
    const struct st_tensor *ids, *logits;
    int code = find_base(r, table, "ids", ST_I32, 2, &ids);
    if (!code)
        code = find_base(r, table, "logits", ST_F32, 3, &logits);
    if (!code)
        code = check_base_shape(r, ids->dims, logits->dims);
    if (code)
        return code;
    r->base.ids = ids->data;
    r->base.logits = logits->data;
    return check_base_ids(r);
}

static int open_base(struct run *r) {
    struct base_file *b = &r->base;
    struct st_table table = {0};
    kvasir_error err;
    b->row = malloc(r->info.vocab * sizeof *b->row);
    if (!b->row)
        return run_error(&COMMAND, "out of memory");
    if (file_map_open(&b->map, r->a->base, &err))
        return run_error(&COMMAND, "--base: %s", err.text);
    bool bad = st_read(&table, &b->map, NULL, &err) || st_sort(&table, &err) ||
               st_check_data(&table, 0, &b->map, &err);
    int code =
        bad ? run_error(&COMMAND, "--base: %s: %s", r->a->base, err.text) : check_base(r, &table);
    st_table_free(&table);
    return code;
}

/* ---- a window -------------------------------------------------------------------------------- */

static void compare_row(struct run *r, const float *logits, int32_t target) {
    size_t bytes = r->info.vocab * sizeof *logits;
    memcpy(r->base.row, r->base.logits + r->done * bytes, bytes);
    lab_divergence d = lab_compare_logits(r->base.row, logits, r->info.vocab, target);
    r->nll[r->done] = d.nll_q;
    r->kl[r->done] = d.kl;
    r->same_top += d.same_top;
}

static bool take_logits(void *user, size_t first, size_t rows, const float *logits) {
    struct run *r = user;
    size_t vocab = r->info.vocab;
    for (size_t i = 0; i < rows && !r->code; i++) {
        const float *row = logits + i * vocab;
        int32_t target = r->ids[first + i + 1];
        if (r->a->base)
            compare_row(r, row, target);
        else
            r->nll[r->done] = lab_nll(row, r->info.vocab, target);
        if (!r->code && r->base_out.open)
            r->code = out_write(&COMMAND, &r->base_out, row, vocab * sizeof *row);
        r->done++;
    }
    return !r->code && !interrupted();
}

static bool show_progress(void *user, size_t done, size_t total) {
    struct run *r = user;
    (void)total;
    progress_step(&r->progress, done);
    return !interrupted();
}

static double mean_of(const double *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    return sum / (double)n;
}

static void print_window(const struct run *r, double seconds) {
    size_t n = r->a->window - 1;
    double here = mean_of(r->nll + r->done - n, n), all = mean_of(r->nll, r->done);
    fprintf(stderr, "window %u of %u: ppl %.4f, so far %.4f", r->n_window + 1, r->text.n, exp(here),
            exp(all));
    if (r->kl)
        fprintf(stderr, ", KL %.6f", mean_of(r->kl, r->done));
    fprintf(stderr, ", %.1f s\n", seconds);
}

static int run_window(struct run *r, uint32_t number) {
    kvasir_seq *seq;
    kvasir_error err;
    if (kvasir_seq_create(r->ctx, &seq, &err))
        return library_error(&COMMAND, &err);
    r->n_window = number;
    text_windows_take(&r->text, number, r->ids);
    char what[32];
    snprintf(what, sizeof what, "window %u of %u", number + 1, r->text.n);
    progress_start(&r->progress, r->a->quiet ? NULL : what, r->a->window - 1, "tokens");
    double start = clock_seconds();
    kvasir_eval_options eval = {.struct_size = sizeof(kvasir_eval_options),
                                .on_logits = take_logits,
                                .on_progress = show_progress,
                                .user = r};
    kvasir_status status = kvasir_seq_eval(seq, r->ids, r->a->window - 1, &eval, &err);
    progress_end(&r->progress);
    kvasir_seq_destroy(seq);
    if (r->code)
        return r->code;
    if (interrupted()) {
        run_error(&COMMAND, "interrupted: nothing was written");
        return EXIT_INTERRUPTED;
    }
    if (status)
        return library_error(&COMMAND, &err);
    if (file_map_check(&r->base.map, &err))
        return run_error(&COMMAND, "--base: %s", err.text);
    if (!r->a->quiet)
        print_window(r, clock_seconds() - start);
    return EXIT_GOOD;
}

/* ---- figures --------------------------------------------------------------------------------- */

struct figures {
    lab_summary nll, kl;
    double same_top;
    uint64_t token_bytes, token_bytes16;
};

/* Sorts the run's values. */
static struct figures figures_of(struct run *r) {
    kvasir_context_info info;
    kvasir_context_get_info(r->ctx, &info);
    struct figures f = {.nll = lab_summarize(r->nll, r->done),
                        .token_bytes = info.kv_bytes_per_token,
                        .token_bytes16 = info.kv_bytes_per_token16};
    if (r->kl) {
        f.kl = lab_summarize(r->kl, r->done);
        f.same_top = (double)r->same_top / (double)r->done;
    }
    return f;
}

static int print_json(const struct run *r, const struct figures *f) {
    json_t *o = json_object();
    put_real(o, "ppl", exp(f->nll.mean));
    put_real(o, "nll_mean", f->nll.mean);
    put_whole(o, "tokens", r->done);
    put_whole(o, "kv_bytes_per_token", f->token_bytes);
    if (r->kl)
        put_divergence(o, &f->kl, f->same_top);
    return json_print(&COMMAND, o);
}

static int print_text(const struct run *r, const struct figures *f) {
    double ppl = exp(f->nll.mean);
    printf("perplexity   %.4f +- %.4f over %zu predictions\n", ppl, ppl * f->nll.error, r->done);
    printf("mean loss    %.6f nats\n", f->nll.mean);
    printf("cache        %llu bytes a token (16-bit: %llu, %.2fx)\n",
           (unsigned long long)f->token_bytes, (unsigned long long)f->token_bytes16,
           ratio((double)f->token_bytes16, (double)f->token_bytes));
    if (r->kl) {
        printf("KL from base mean %.6g, median %.6g, 99 %% %.6g, 99.9 %% %.6g, max %.6g\n",
               f->kl.mean, f->kl.median, f->kl.p99, f->kl.p999, f->kl.max);
        printf("same top     %.2f %%\n", 100 * f->same_top);
    }
    return finish_output(&COMMAND);
}

static int write_nll(struct run *r) {
    struct st_header h = {0};
    st_add(&h, "nll", ST_F32, (uint64_t[]){r->text.n, r->a->window - 1}, 2);
    int code = out_write_header(&COMMAND, &r->nll_out, &h);
    for (size_t i = 0; i < r->done && !code;) {
        float x[1024];
        size_t n = 0;
        while (n < 1024 && i < r->done)
            x[n++] = (float)r->nll[i++];
        code = out_write(&COMMAND, &r->nll_out, x, n * sizeof *x);
    }
    return code ? code : out_commit(&COMMAND, &r->nll_out);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int open_outputs(struct run *r) {
    if (r->a->base && r->a->save_base)
        return usage_error(&COMMAND, "--base and --save-base: give one of them");
    int code = EXIT_GOOD;
    if (r->a->save_base)
        code = out_open(&COMMAND, &r->base_out, "--save-base", r->a->save_base);
    if (!code && r->a->nll)
        code = out_open(&COMMAND, &r->nll_out, "--nll", r->a->nll);
    return code;
}

static int open_all(struct run *r) {
    kvasir_error err;
    if (kvasir_model_open_with(r->a->model, &r->a->load, &r->model, &err))
        return library_error(&COMMAND, &err);
    kvasir_model_get_info(r->model, &r->info);
    int code = text_windows_read(&COMMAND, r->model, r->a->file, r->a->window, r->a->windows,
                                 r->a->quiet, &r->text);
    if (!code)
        code = make_arrays(r);
    if (code)
        return code;
    kvasir_context_options options = cache_args_options(&r->a->cache);
    calibrate_unasked(&options, r->a->model, r->a->quiet);
    if (kvasir_context_create(r->model, &options, &r->ctx, &err))
        return library_error(&COMMAND, &err);
    if (!r->a->quiet) {
        kvasir_context_info info;
        kvasir_context_get_info(r->ctx, &info);
        print_model_line(&r->info);
        print_context_facts(&info);
    }
    if (r->a->base)
        return open_base(r);
    return r->base_out.open ? start_base_out(r) : EXIT_GOOD;
}

static int perplexity(struct run *r) {
    catch_interrupt();
    int code = open_outputs(r);
    if (!code)
        code = open_all(r);
    for (uint32_t w = 0; w < r->text.n && !code; w++)
        code = run_window(r, w);
    code = model_unchanged(&COMMAND, r->model, code);
    if (!code && r->base_out.open)
        code = out_commit(&COMMAND, &r->base_out);
    if (!code && r->nll_out.open)
        code = write_nll(r);
    if (code)
        return code;
    struct figures f = figures_of(r);
    return r->a->json ? print_json(r, &f) : print_text(r, &f);
}

int perplexity_main(int argc, char **argv) {
    struct perplexity_args a = {.load = kvasir_model_defaults(), .cache = cache_args_defaults()};
    int code;
    if (!options_read(&COMMAND, argc, argv, &a, &code))
        return code;
    struct run r = {.a = &a};
    code = perplexity(&r);
    out_abandon(&r.base_out);
    out_abandon(&r.nll_out);
    file_map_close(&r.base.map);
    free(r.base.row);
    free(r.ids);
    free(r.nll);
    free(r.kl);
    text_windows_free(&r.text);
    kvasir_context_destroy(r.ctx);
    kvasir_model_close(r.model);
    return code;
}
