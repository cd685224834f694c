/* SPDX-License-Identifier: Apache-2.0 */
/* quality.c: `kvasir quality`, what each format of the cache costs in quality, beside its bytes.
 *
 *     kv bits    depth  bytes/token   bits    KL mean     median       99 %  same top ...
 *     f32            0        46080  32.00          -          -          -         -
 *     8,4            0         9408   6.53    0.01059   0.005617    0.09165   93.76 %
 */
#include "quality.h"

#include "svg.h"

/* clang-format off */
#define ROW(field) .offset = offsetof(struct quality_args, field)
static const struct option OPTIONS[] = {
    MODEL_OPTION(struct quality_args),
    LOAD_OPTIONS(struct quality_args, load),
    TEXT_WINDOW_OPTIONS(struct quality_args, file, window, windows, "8"),
    {.name = "--depths", .value = "N,...", .kind = OPTION_NUMBERS, ROW(depths), .initial = "0",
     .max = 1 << 24,
     .help = "for each N, figures of only those tokens of a window that have N or more tokens of "
             "the window before them"},
    FORMATS_OPTION(struct quality_args, bits),
    GROUP_OPTIONS(struct quality_args, context),
    DEVICE_OPTIONS(struct quality_args, context),
    {.name = "--resume", .value = "FILE", .kind = OPTION_TEXT, ROW(resume),
     .help = "keep the results of finished windows in this file, and go on from those in it"},
    {.name = "--svg", .value = "FILE", .kind = OPTION_TEXT, ROW(svg),
     .help = "write a plot of KL divergence by bits a value"},
    {.name = "--peers", .value = "FILE", .kind = OPTION_TEXT, ROW(peers),
     .help = "JSON file with other programs' figures, for --svg"},
    {.name = "--json", .kind = OPTION_FLAG, ROW(json), .help = "print the results as one JSON "
                                                               "object"},
    {.name = "--quiet", .alias = "-q", .kind = OPTION_FLAG, ROW(quiet),
     .help = "print nothing but errors on standard error"},
};
/* clang-format on */

static const struct command COMMAND = {
    .name = "quality",
    .summary = "Measures what cache formats cost: KL divergence from an exact run, perplexity, "
               "bytes, speed.",
    .usage = "-m MODEL -f TEXT [--kv-bits 8,4 f16] [flags]",
    .options = OPTIONS,
    .n_options = sizeof OPTIONS / sizeof *OPTIONS,
    .details =
        "Windows of the text are run with each format and, beside them, with f32 pages, the exact "
        "run: the\nsame model, act bits and arithmetic. Every token attends to what the cache "
        "stores, its own K and V\nincluded. Speed is that of these runs, which compute the logits "
        "of all tokens; `kvasir bench`\nmeasures speed. Ctrl-C ends the run without results (exit "
        "code 130); with --resume finished windows\nare kept. Exit codes: 0 success, 1 the run "
        "failed, 2 wrong usage.",
};

static int settle_args(struct quality_args *a) {
    number_list_settle(&a->depths, false);
    int code = kv_bits_settle(&COMMAND, &a->bits, a->context.kv_bits, QUALITY_FORMATS_MAX);
    if (!code && a->peers && !a->svg)
        return usage_error(&COMMAND, "--peers: only allowed with --svg");
    if (!code && a->depths.items[a->depths.n - 1] + 1 >= a->window)
        return usage_error(&COMMAND,
                           "--depths: a window of %u tokens has no prediction behind %u others",
                           a->window, a->depths.items[a->depths.n - 1]);
    return code;
}

static int quality(struct quality_args *a, kvasir_model **model, struct quality_results *r,
                   json_t **peers, struct out_file *svg) {
    kvasir_error err;
    const char *path = a->model;
    int code = settle_args(a);
    if (!code && a->peers)
        code = quality_peers_read(&COMMAND, a->peers, peers);
    if (!code && a->svg)
        code = out_open(&COMMAND, svg, "--svg", a->svg); /* checked before the work */
    if (!code)
        code = model_resolve(&COMMAND, &path);
    if (code)
        return code;
    if (kvasir_model_open_with(path, &a->load, model, &err))
        return library_error(&COMMAND, &err);
    model_base_name(path, r->name);
    code = model_unchanged(&COMMAND, *model, quality_measure(&COMMAND, *model, r));
    if (!code && a->svg) {
        struct text_buf text = {0};
        code = svg_write(&COMMAND, svg, quality_svg(r, *peers, &text), &text);
    }
    if (code)
        return code;
    return a->json ? quality_print_json(&COMMAND, r) : quality_print_table(&COMMAND, r);
}

int quality_main(int argc, char **argv) {
    struct quality_args a = {.load = kvasir_model_defaults(), .context = kvasir_context_defaults()};
    /* Near float32, so that the cache is what is measured; a step's logits of every format are in
     * memory. */
    a.context.act_bits = 16;
    a.context.prefill_chunk = 128;
    struct quality_results r = {.a = &a};
    struct out_file svg = {0};
    kvasir_model *model = NULL;
    json_t *peers = NULL;
    int code;
    if (!options_read(&COMMAND, argc, argv, &a, &code))
        return code;
    catch_interrupt();
    code = quality(&a, &model, &r, &peers, &svg);
    out_abandon(&svg);
    json_decref(peers);
    quality_results_free(&r);
    kvasir_model_close(model);
    return code;
}
