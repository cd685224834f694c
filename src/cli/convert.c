/* SPDX-License-Identifier: Apache-2.0 */
/* convert.c: `kvasir convert`, any checkpoint that Kvasir reads to a folder that mlx-lm loads. The
 * folder appears under its name when all of it is on the disk.
 */
#include "cli.h"

struct convert_args {
    const char *in, *out;
    kvasir_model_options load;
    kvasir_convert_options options;
};

/* clang-format off */
static const struct option OPTIONS[] = {
    {.name = "IN", .kind = OPTION_TEXT, .offset = offsetof(struct convert_args, in),
     .required = true, .help = "GGUF file, or folder with config.json and safetensors"},
    {.name = "OUT", .kind = OPTION_TEXT, .offset = offsetof(struct convert_args, out),
     .required = true, .help = "folder to write; it must not exist"},
    {.name = "--bits", .value = "N", .kind = OPTION_U32, .max = 8,
     .offset = offsetof(struct convert_args, options.bits), .shown = "0, no quantization",
     .help = "quantize matrices as mx.quantize does: 2, 3, 4, 5, 6 or 8 bits"},
    {.name = "--group-size", .value = "G", .kind = OPTION_U32, .max = 128,
     .offset = offsetof(struct convert_args, options.group_size),
     .help = "values that share a scale and a bias: 32, 64 or 128"},
    {.name = "--dtype", .value = "TYPE", .kind = OPTION_TEXT,
     .offset = offsetof(struct convert_args, options.dtype),
     .help = "type of scales, biases and tensors that are not quantized: bf16, f16 or f32"},
    LOAD_OPTIONS(struct convert_args, load),
};
/* clang-format on */

static const struct command COMMAND = {
    .name = "convert",
    .summary = "Writes a checkpoint as a folder that mlx-lm loads.",
    .usage = "IN OUT [--bits N] [--group-size G] [--dtype TYPE]",
    .options = OPTIONS,
    .n_options = sizeof OPTIONS / sizeof *OPTIONS,
};

static bool on_progress(void *user, size_t done, size_t total) {
    struct progress *p = user;
    if (!p->total)
        progress_start(p, "converting", total, "rows");
    progress_step(p, done);
    return !interrupted();
}

int convert_main(int argc, char **argv) {
    struct convert_args a = {.load = kvasir_model_defaults(), .options = kvasir_convert_defaults()};
    struct progress progress = {0};
    kvasir_error err;
    int code;
    if (!options_read(&COMMAND, argc, argv, &a, &code))
        return code;
    catch_interrupt();
    a.options.on_progress = on_progress;
    a.options.user = &progress;
    a.options.model = &a.load;
    kvasir_status status = kvasir_convert(a.in, a.out, &a.options, &err);
    if (progress.total)
        progress_end(&progress);
    if (status == KVASIR_ERR_CANCELLED)
        return EXIT_INTERRUPTED;
    return status == KVASIR_OK ? EXIT_GOOD : library_error(&COMMAND, &err);
}
