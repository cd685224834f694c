/* SPDX-License-Identifier: Apache-2.0 */
/* bench_kv_cache.c: `kvasir bench-kv-cache`, what each cache format costs in bytes, error and time,
 * on normal data or on K and V of a real text (vllm-mlx's command of the same name).
 *
 *     mode         memory  saving   mean err    max err     encode             decode
 *     f16      256.00 MiB   1.00x                                    reference for "saving"
 *     8        136.00 MiB   1.88x    0.00571    0.01953    812.4 ms  0.66 GB/s ...
 *
 * Savings are relative to 16-bit values. Times are those of the scalar reference code on one thread
 * (src/quant), not of a CPU tier.
 */
#include "cli.h"

#include <stdlib.h>
#include <unistd.h>

struct bench_args {
    kvasir_model_options load;
    const char *model, *file, *group_size;
    uint32_t layers, seq_len, heads, head_dim; /* 0: not given */
    uint64_t seed;
    struct text_list bits;
    int threads;
    bool json, quiet;
};

/* The source system's configuration: a 7B model's. */
static const uint32_t LAYERS = 32, SEQ_LEN = 512, HEADS = 32, HEAD_DIM = 128;
static const char *const BITS[] = {"8", "4"};

/* clang-format off */
#define ROW(field) .offset = offsetof(struct bench_args, field)
static const struct option OPTIONS[] = {
    {.name = "--layers", .value = "N", .kind = OPTION_U32, ROW(layers), .shown = "32",
     .min = 1, .max = 1024, .help = "number of layers"},
    {.name = "--seq-len", .value = "N", .kind = OPTION_U32, ROW(seq_len), .shown = "512",
     .min = 1, .max = 1 << 20, .help = "number of tokens; with -m the first N of the text"},
    {.name = "--heads", .value = "N", .kind = OPTION_U32, ROW(heads), .shown = "32",
     .min = 1, .max = 1024, .help = "number of KV heads"},
    {.name = "--head-dim", .value = "N", .kind = OPTION_U32, ROW(head_dim), .shown = "128",
     .min = 4, .max = 4096, .help = "head size"},
    {.name = "--bits", .value = "B ...", .kind = OPTION_WORDS, ROW(bits), .shown = "8 4",
     .help = "formats to measure, separated by spaces, each written as for --kv-bits: 8 8,4 f16"},
    {.name = "--group-size", .value = "G", .kind = OPTION_TEXT, ROW(group_size), .initial = "64",
     .help = "values that share a scale and a bias: 32, 64 or 128; one for both, or K,V"},
    {.name = "--seed", .value = "N", .kind = OPTION_U64, ROW(seed), .max = 9.2e18,
     .help = "seed of the random data, which is normally distributed"},
    {.name = "--model", .alias = "-m", .value = "MODEL", .kind = OPTION_TEXT, ROW(model),
     .help = "measure K and V of this model on the text of -f"},
    LOAD_OPTIONS(struct bench_args, load),
    {.name = "--file", .alias = "-f", .value = "TEXT", .kind = OPTION_TEXT, ROW(file),
     .help = "the text for -m; - is standard input"},
    THREADS_OPTION(struct bench_args, threads),
    {.name = "--json", .kind = OPTION_FLAG, ROW(json), .help = "print the results as one JSON "
                                                               "object"},
    {.name = "--quiet", .alias = "-q", .kind = OPTION_FLAG, ROW(quiet),
     .help = "print nothing but errors on standard error"},
};
/* clang-format on */

static const struct command COMMAND = {
    .name = "bench-kv-cache",
    .summary = "Measures memory, error and time of KV cache formats.",
    .usage = "[-m MODEL -f TEXT] [flags]",
    .options = OPTIONS,
    .n_options = sizeof OPTIONS / sizeof *OPTIONS,
    .details = "Times are those of the scalar reference code on one thread. Savings are relative "
               "to 16 bits.",
};

/* ---- rows ------------------------------------------------------------------------------------ */

struct table {
    lab_kv_bench_row rows[TEXT_LIST_MAX];
    size_t n;
};

static void take_row(void *user, const lab_kv_bench_row *row) {
    struct table *t = user;
    if (t->n < TEXT_LIST_MAX)
        t->rows[t->n++] = *row;
}

static int print_table(const struct table *t, const lab_kv_bench_options *o) {
    char bytes[24];
    printf("KV cache: %u layers, seq_len %u, %u heads, head_dim %u, groups of %s, %s\n\n",
           o->layers, o->seq_len, o->heads, o->head_dim, o->kv_group_size,
           o->seq ? "K and V of the text" : "normal data");
    printf("%-8s %12s %8s %10s %10s %22s %22s\n", "mode", "memory", "saving", "mean err", "max err",
           "encode", "decode");
    printf("%-8s %12s %7.2fx %10s %10s %22s %22s\n", "16-bit",
           human_bytes((double)t->rows[0].bytes16, bytes), 1.0, "-", "-", "-", "-");
    for (size_t i = 0; i < t->n; i++) {
        const lab_kv_bench_row *r = &t->rows[i];
        printf("%-8s %12s %7.2fx %10.5f %10.5f %10.1f ms %4.2f GB/s %10.1f ms %4.2f GB/s\n",
               r->format, human_bytes((double)r->bytes, bytes),
               ratio((double)r->bytes16, (double)r->bytes), r->mean_error, r->max_error,
               r->encode_seconds * 1e3, r->encode_gb_s, r->decode_seconds * 1e3, r->decode_gb_s);
    }
    return finish_output(&COMMAND);
}

static json_t *row_json(const lab_kv_bench_row *r) {
    json_t *o = json_object();
    put_text(o, "format", r->format);
    put_whole(o, "bytes", r->bytes);
    put_whole(o, "bytes_16bit", r->bytes16);
    put_real(o, "ratio", ratio((double)r->bytes16, (double)r->bytes));
    put_real(o, "mean_error", r->mean_error);
    put_real(o, "max_error", r->max_error);
    put_real(o, "encode_seconds", r->encode_seconds);
    put_real(o, "decode_seconds", r->decode_seconds);
    put_real(o, "encode_gb_s", r->encode_gb_s);
    put_real(o, "decode_gb_s", r->decode_gb_s);
    return o;
}

static int print_json(const struct table *t, const lab_kv_bench_options *o) {
    json_t *object = json_object(), *rows = json_array();
    put_whole(object, "layers", o->layers);
    put_whole(object, "seq_len", o->seq_len);
    put_whole(object, "heads", o->heads);
    put_whole(object, "head_dim", o->head_dim);
    put_text(object, "group_size", o->kv_group_size);
    put_text(object, "data", o->seq ? "text" : "normal");
    for (size_t i = 0; i < t->n; i++)
        json_array_append_new(rows, row_json(&t->rows[i]));
    json_object_set_new(object, "formats", rows);
    return json_print(&COMMAND, object);
}

static int measure(const struct bench_args *a, const lab_kv_bench_options *o) {
    struct table t = {.n = 0};
    kvasir_error err;
    if (lab_kv_bench(o, take_row, &t, &err))
        return library_error(&COMMAND, &err);
    return a->json ? print_json(&t, o) : print_table(&t, o);
}

/* ---- a real text ----------------------------------------------------------------------------- */

struct real {
    kvasir_model *model;
    kvasir_context *ctx;
    kvasir_seq *seq;
    int32_t *ids;
};

static int tokenize_text(const struct bench_args *a, struct real *r, size_t *n) {
    char *text = NULL;
    size_t len;
    kvasir_error err;
    int code = read_text(&COMMAND, "-f", a->file, &text, &len);
    if (code)
        return code;
    if (kvasir_tokenize(kvasir_model_tokenizer(r->model), text, len, KVASIR_TOKENIZE_ADD_SPECIAL,
                        &r->ids, n, &err))
        code = library_error(&COMMAND, &err);
    else if (*n == 0)
        code = run_error(&COMMAND, "-f: %s: the text is empty", a->file);
    free(text);
    return code;
}

/* K and V as the model computes them: stored as 32-bit floats. */
static int run_text(const struct bench_args *a, struct real *r, lab_kv_bench_options *o) {
    kvasir_error err;
    size_t n;
    const char *path = a->model;
    int code = model_resolve(&COMMAND, &path);
    if (code)
        return code;
    if (kvasir_model_open_with(path, &a->load, &r->model, &err))
        return library_error(&COMMAND, &err);
    code = tokenize_text(a, r, &n);
    if (code)
        return code;
    if (n > o->seq_len)
        n = o->seq_len;
    kvasir_context_options options = kvasir_context_defaults();
    options.kv_bits = "f32";
    options.threads = a->threads;
    options.ctx = (uint32_t)n;
    if (kvasir_context_create(r->model, &options, &r->ctx, &err) ||
        kvasir_seq_create(r->ctx, &r->seq, &err) || kvasir_seq_eval(r->seq, r->ids, n, NULL, &err))
        code = library_error(&COMMAND, &err);
    code = model_unchanged(&COMMAND, r->model, code); /* nothing reads the model after this */
    if (code)
        return code;
    kvasir_model_info info;
    kvasir_model_get_info(r->model, &info);
    o->layers = info.layers;
    o->heads = info.kv_heads;
    o->head_dim = info.head_dim;
    o->seq_len = (uint32_t)n;
    o->seq = r->seq;
    return EXIT_GOOD;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int bench(const struct bench_args *a, struct real *r) {
    lab_kv_bench_options o = {
        .layers = a->layers ? a->layers : LAYERS,
        .seq_len = a->seq_len ? a->seq_len : SEQ_LEN,
        .heads = a->heads ? a->heads : HEADS,
        .head_dim = a->head_dim ? a->head_dim : HEAD_DIM,
        .formats = a->bits.n ? a->bits.items : BITS,
        .n_formats = a->bits.n ? a->bits.n : sizeof BITS / sizeof *BITS,
        .kv_group_size = a->group_size,
        .seed = a->seed,
    };
    if (!a->model != !a->file)
        return usage_error(&COMMAND, "-m and -f: one needs the other");
    if (a->model && (a->layers || a->heads || a->head_dim))
        return usage_error(&COMMAND,
                           "--layers, --heads and --head-dim follow from the model of -m");
    int code = a->model ? run_text(a, r, &o) : EXIT_GOOD;
    /* The library measures all formats before it reports any. */
    if (!code && !a->quiet && isatty(STDERR_FILENO))
        fprintf(stderr, "measuring %u layers of %u tokens in %zu formats ...\n", o.layers,
                o.seq_len, o.n_formats);
    return code ? code : measure(a, &o);
}

int bench_kv_cache_main(int argc, char **argv) {
    struct bench_args a = {.load = kvasir_model_defaults()};
    struct real r = {0};
    int code;
    if (!options_read(&COMMAND, argc, argv, &a, &code))
        return code;
    code = bench(&a, &r);
    kvasir_seq_destroy(r.seq);
    kvasir_context_destroy(r.ctx);
    kvasir_free(r.ids);
    kvasir_model_close(r.model);
    return code;
}
