/* SPDX-License-Identifier: Apache-2.0 */
/* quality_print.c: what `kvasir quality` found, as a table and as JSON. */
#include "quality.h"

static const struct quality_run *run_at(const struct quality_results *r, size_t i) {
    return &r->runs[i ? r->formats[i - 1] : r->exact];
}

/* ---- table ----------------------------------------------------------------------------------- */

static void print_head(const struct quality_results *r) {
    const kvasir_context_info *info = &r->runs[r->exact].info;
    char weights[24], machine[MACHINE_BYTES], window[16];
    printf("model    %s: %s, %.1f M parameters, weights %s\n", r->name, r->model.arch,
           (double)r->model.parameters / 1e6, human_bytes((double)r->model.weight_bytes, weights));
    printf("machine  %s, activations %d bits\n", context_machine(info, machine), info->act_bits);
    printf("text     %s: %u window%s of %s tokens\n\n", r->a->file, r->text.n,
           r->text.n == 1 ? "" : "s", grouped_number(r->a->window, window));
}

static void print_row(const struct quality_run *run, uint32_t depth, bool exact,
                      const struct quality_figures *f) {
    char number[16];
    printf("%-9s %9s %9zu %11.0f %6.2f ", run->bits, grouped_number(depth, number), f->predictions,
           f->token_bytes, f->value_bits);
    if (exact)
        printf("%10s %10s %10s %9s ", "-", "-", "-", "-");
    else
        printf("%10.4g %10.4g %10.4g %7.2f %% ", f->kl.mean, f->kl.median, f->kl.p99,
               100 * f->same_top);
    printf("%12.4f %9.4f %9.1f\n", f->ppl, f->ppl_ratio, f->speed);
}

int quality_print_table(const struct command *c, const struct quality_results *r) {
    print_head(r);
    printf("%-9s %9s %9s %11s %6s %10s %10s %10s %9s %12s %9s %9s\n", "kv bits", "depth", "tokens",
           "bytes/token", "bits", "KL mean", "median", "99 %", "same top", "perplexity", "ratio",
           "tokens/s");
    for (size_t i = 0; i <= r->a->bits.n; i++)
        for (size_t d = 0; d < r->a->depths.n; d++) {
            const uint32_t depth = r->a->depths.items[d];
            struct quality_figures f;
            if (!quality_figures(r, run_at(r, i), depth, &f))
                return run_error(c, "out of memory");
            print_row(run_at(r, i), depth, i == 0, &f);
        }
    return finish_output(c);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *row_json(const struct quality_run *run, uint32_t depth, bool exact,
                        const struct quality_figures *f) {
    json_t *o = json_object();
    put_text(o, "kv_bits", run->bits);
    put_text(o, "kv_format", run->info.kv_format);
    put_whole(o, "depth", depth);
    put_whole(o, "tokens", f->predictions);
    put_whole(o, "kv_bytes_per_token", run->info.kv_bytes_per_token);
    put_real(o, "page_bytes_per_token", f->token_bytes);
    put_real(o, "bits_per_value", f->value_bits);
    if (!exact) {
        put_divergence(o, &f->kl, f->same_top);
        put_real(o, "kld_error", f->kl.error);
    }
    put_real(o, "nll_mean", f->nll.mean);
    put_real(o, "ppl", f->ppl);
    put_real(o, "ppl_ratio", f->ppl_ratio);
    put_real(o, "tokens_per_second", f->speed);
    return o;
}

int quality_print_json(const struct command *c, const struct quality_results *r) {
    json_t *o = json_object(), *machine = json_object(), *rows = json_array();
    put_text(o, "model", r->name);
    put_text(o, "arch", r->model.arch);
    put_text(o, "text", r->a->file);
    put_whole(o, "windows", r->text.n);
    put_whole(o, "window", r->a->window);
    put_machine(machine, &r->runs[r->exact].info);
    json_object_set_new(o, "machine", machine);
    for (size_t i = 0; i <= r->a->bits.n; i++)
        for (size_t d = 0; d < r->a->depths.n; d++) {
            const uint32_t depth = r->a->depths.items[d];
            struct quality_figures f;
            if (!quality_figures(r, run_at(r, i), depth, &f)) {
                json_decref(rows);
                json_decref(o);
                return run_error(c, "out of memory");
            }
            json_array_append_new(rows, row_json(run_at(r, i), depth, i == 0, &f));
        }
    json_object_set_new(o, "results", rows);
    return json_print(c, o);
}
