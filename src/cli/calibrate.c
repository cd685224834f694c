/* SPDX-License-Identifier: Apache-2.0 */
/* calibrate.c: `kvasir calibrate`, measures a model's keys and queries and writes the result beside
 * the model, where --key-centre auto finds it. The file appears only when it is complete. */
#include "cli.h"

#include <stdlib.h>

struct calibrate_args {
    kvasir_model_options load;
    const char *model, *file, *out, *cpu_tier;
    uint32_t tokens;
    int threads;
    bool json, quiet;
};

/* clang-format off */
#define ROW(field) .offset = offsetof(struct calibrate_args, field)
static const struct option OPTIONS[] = {
    MODEL_OPTION(struct calibrate_args),
    LOAD_OPTIONS(struct calibrate_args, load),
    {.name = "--file", .alias = "-f", .value = "TEXT", .kind = OPTION_TEXT, ROW(file),
     .shown = "a built-in text", .help = "file with text to run the model on; - is standard input"},
    {.name = "--out", .alias = "-o", .value = "FILE", .kind = OPTION_TEXT, ROW(out),
     .shown = "next to the model, where auto finds it", .help = "calibration file to write"},
    {.name = "--tokens", .alias = "-n", .value = "N", .kind = OPTION_U32, ROW(tokens),
     .initial = "512", .min = 128, .max = 8192, .help = "run the first N tokens of the text"},
    THREADS_OPTION(struct calibrate_args, threads),
    {.name = "--cpu-tier", .value = "TIER", .kind = OPTION_TEXT, ROW(cpu_tier), .initial = "auto",
     .help = "highest instruction set to use: auto, ref, avx2, avx512, avx512vnni, amx, neon, "
             "neondot"},
    {.name = "--json", .kind = OPTION_FLAG, ROW(json), .help = "print the results as one JSON "
                                                               "object"},
    {.name = "--quiet", .alias = "-q", .kind = OPTION_FLAG, ROW(quiet),
     .help = "print nothing but errors on standard error"},
};
/* clang-format on */

static const struct command COMMAND = {
    .name = "calibrate",
    .summary = "Measures the constant part of a model's keys, so that a quantized cache need not "
               "store it.",
    .usage = "-m MODEL [-f TEXT] [-o FILE]",
    .options = OPTIONS,
    .n_options = sizeof OPTIONS / sizeof *OPTIONS,
    .details =
        "If a model has no key biases, --key-centre auto (the default) uses the file next to "
        "it.\n--key-centre FILE uses that calibration file.\n"
        "The file also has a basis for each KV head, which balances its keys with its queries.",
};

struct run {
    const struct calibrate_args *a;
    kvasir_model *model;
    char *text, *path;
    lab_calibration result;
    struct out_file out;
    struct progress progress;
};

static bool on_progress(void *user, size_t done, size_t total) {
    struct run *r = user;
    r->progress.total = total;
    progress_step(&r->progress, done);
    return !interrupted();
}

static int measure(struct run *r) {
    const struct calibrate_args *a = r->a;
    lab_calibrate_options o = {.tokens = a->tokens,
                               .threads = a->threads,
                               .cpu_tier = a->cpu_tier,
                               .on_progress = on_progress,
                               .user = r};
    int code = a->file ? read_text(&COMMAND, "-f", a->file, &r->text, &o.len) : EXIT_GOOD;
    if (code)
        return code;
    o.text = r->text;
    kvasir_error err;
    progress_start(&r->progress, a->quiet ? NULL : "calibrating", a->tokens, "tokens");
    kvasir_status status = lab_calibrate(r->model, &o, &r->result, &err);
    progress_end(&r->progress);
    if (status == KVASIR_ERR_CANCELLED)
        return EXIT_INTERRUPTED;
    return status ? library_error(&COMMAND, &err) : EXIT_GOOD;
}

static int tell(const struct run *r, const char *path) {
    const lab_calibration *c = &r->result;
    if (r->a->json) {
        json_t *o = json_object();
        put_text(o, "file", path);
        put_whole(o, "bytes", c->size);
        put_whole(o, "tokens", c->tokens);
        put_whole(o, "rotary_pairs", c->rotary_pairs);
        put_real(o, "pairs_per_head", c->pairs);
        put_whole(o, "heads", c->heads);
        put_real(o, "gain", c->gain);
        return json_print(&COMMAND, o);
    }
    if (r->a->quiet)
        return EXIT_GOOD;
    fprintf(stderr, "%s: bases of %u heads from %u tokens", path, c->heads, c->tokens);
    if (c->rotary_pairs)
        fprintf(stderr,
                ", and means; --key-centre with this file centres %.1f of %u rotary pairs a head "
                "on average",
                c->pairs, c->rotary_pairs);
    fprintf(stderr, "\n");
    return EXIT_GOOD;
}

static int calibrate(struct run *r) {
    const struct calibrate_args *a = r->a;
    kvasir_error err;
    if (kvasir_model_open_with(a->model, &a->load, &r->model, &err) ||
        lab_calibration_path(r->model, &r->path, &err))
        return library_error(&COMMAND, &err);
    const char *path = a->out ? a->out : r->path;
    int code = out_open(&COMMAND, &r->out, "-o", path); /* checked before the work */
    if (!code)
        code = model_unchanged(&COMMAND, r->model, measure(r));
    if (!code)
        code = out_write(&COMMAND, &r->out, r->result.file, r->result.size);
    if (!code)
        code = out_commit(&COMMAND, &r->out);
    return code ? code : tell(r, path);
}

int calibrate_main(int argc, char **argv) {
    struct calibrate_args a = {.load = kvasir_model_defaults()};
    struct run r = {.a = &a};
    int code;
    if (!options_read(&COMMAND, argc, argv, &a, &code))
        return code;
    catch_interrupt();
    code = calibrate(&r);
    out_abandon(&r.out);
    free(r.text);
    kvasir_free(r.path);
    kvasir_free(r.result.file);
    kvasir_model_close(r.model);
    return code;
}
