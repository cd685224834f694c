/* SPDX-License-Identifier: Apache-2.0 */
/* bench.c: `kvasir bench`, how fast a model is by depth, batch and format of the cache, and how
 * near that is to what the machine can do.
 *
 *     test         kv bits  depth batch   tokens/s ... ms/token  step reads  of the roofline
 *     prompt 512   8,4          0     1    812.30 ...   1.231    92.7 MiB  41 % (39 to 43) multiply
 *     decode 64    8,4      8,192     1    115.01 ...   8.695   165.2 MiB  62 % (60 to 64) memory
 */
#include "bench.h"
#include "svg.h"

#include <stdlib.h>
#include <string.h>

/* clang-format off */
#define ROW(field) .offset = offsetof(struct bench_args, field)
static const struct option OPTIONS[] = {
    MODEL_OPTION(struct bench_args),
    LOAD_OPTIONS(struct bench_args, load),
    FORMATS_OPTION(struct bench_args, bits),
    GROUP_OPTIONS(struct bench_args, context),
    {.name = "--depth", .alias = "-d", .value = "N,...", .kind = OPTION_NUMBERS, ROW(depths),
     .initial = "0,8192", .max = 1 << 24,
     .help = "tokens that the cache holds before a run"},
    {.name = "--prompt-tokens", .alias = "--n-prompt", .value = "N,...", .kind = OPTION_NUMBERS,
     ROW(prompts), .initial = "512", .max = 1 << 20, .help = "tokens of prompts; 0: none"},
    {.name = "--max-tokens", .alias = "-n", .value = "N", .kind = OPTION_U32, ROW(answer),
     .initial = "64", .max = 1 << 16, .help = "tokens of each answer; 0: none"},
    {.name = "--batch", .alias = "-b", .value = "N,...", .kind = OPTION_NUMBERS, ROW(batches),
     .initial = "1", .min = 1, .max = 1024,
     .help = "sequences that are answered together, each with the depth's tokens of its own"},
    {.name = "--repetitions", .alias = "-r", .value = "N", .kind = OPTION_U32, ROW(rounds),
     .initial = "5", .min = 1, .max = BENCH_ROUNDS_MAX,
     .help = "times that everything is measured, after one run to warm up"},
    DEVICE_OPTIONS(struct bench_args, context),
    {.name = "--svg", .value = "FILE", .kind = OPTION_TEXT, ROW(svg),
     .help = "write a plot of tokens a second by depth"},
    {.name = "--json", .kind = OPTION_FLAG, ROW(json), .help = "print the results as one JSON "
                                                               "object"},
    {.name = "--quiet", .alias = "-q", .kind = OPTION_FLAG, ROW(quiet),
     .help = "print nothing but errors on standard error"},
};
/* clang-format on */

static const struct command COMMAND = {
    .name = "bench",
    .summary = "Measures a model's speed by depth, batch and cache format, beside the machine's.",
    .usage = "-m MODEL [--kv-bits 8,4 f16] [--depth 0,8192] [flags]",
    .options = OPTIONS,
    .n_options = sizeof OPTIONS / sizeof *OPTIONS,
    .details =
        "Depths are filled with copies of computed pages: what is computed from them means "
        "nothing, but the\nwork is the same. Formats take turns. The roofline is the least time "
        "in which this machine can\nread what a step reads, or multiply what it multiplies. "
        "Nothing else should run on the machine.\nCtrl-C ends the run without results (exit code "
        "130). Exit codes: 0 success, 1 the run failed,\n2 wrong usage.",
};

static int settle_args(struct bench_args *a) {
    int code = kv_bits_settle(&COMMAND, &a->bits, a->context.kv_bits, BENCH_FORMATS_MAX);
    if (code)
        return code;
    number_list_settle(&a->depths, false);
    number_list_settle(&a->prompts, true);
    number_list_settle(&a->batches, true);
    if (a->prompts.n == 0 && a->answer == 0)
        return usage_error(&COMMAND, "--prompt-tokens and --max-tokens: both are 0, so that there "
                                     "is nothing to measure");
    return EXIT_GOOD;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int write_svg(const struct bench_results *r, struct out_file *out) {
    struct text_buf text = {0};
    return svg_write(&COMMAND, out, bench_svg(r, &text), &text);
}

static int bench(struct bench_args *a, kvasir_model **model, struct bench_results *r,
                 struct out_file *svg) {
    kvasir_error err;
    const char *path = a->model;
    int code = settle_args(a);
    if (!code && a->svg)
        code = out_open(&COMMAND, svg, "--svg", a->svg); /* checked before the work */
    if (!code)
        code = model_resolve(&COMMAND, &path);
    if (code)
        return code;
    if (kvasir_model_open_with(path, &a->load, model, &err))
        return library_error(&COMMAND, &err);
    model_base_name(path, r->name);
    code = model_unchanged(&COMMAND, *model, bench_measure(&COMMAND, *model, r));
    if (!code && a->svg)
        code = write_svg(r, svg);
    if (code)
        return code;
    return a->json ? bench_print_json(&COMMAND, r) : bench_print_table(&COMMAND, r);
}

int bench_main(int argc, char **argv) {
    struct bench_args a = {.load = kvasir_model_defaults(), .context = kvasir_context_defaults()};
    struct bench_results r = {.a = &a};
    struct out_file svg = {0};
    kvasir_model *model = NULL;
    int code;
    if (!options_read(&COMMAND, argc, argv, &a, &code))
        return code;
    catch_interrupt();
    code = bench(&a, &model, &r, &svg);
    out_abandon(&svg);
    bench_results_free(&r);
    kvasir_model_close(model);
    return code;
}
