/* SPDX-License-Identifier: Apache-2.0 */
/* cache_prompt.c: `kvasir cache-prompt`, evaluates a prompt once and writes its cache to a file
 * from which `generate --prompt-cache` and mlx-lm continue.
 *
 * The prompt ends with the user's text: what a chat template writes after it is written when the
 * text is continued. The file appears only when it is complete.
 */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct cache_prompt_args {
    kvasir_model_options load;
    const char *model, *out, *format;
    struct prompt_args prompt;
    struct cache_args cache;
    bool json, quiet;
};

/* clang-format off */
#define ROW(field) .offset = offsetof(struct cache_prompt_args, field)
static const struct option OPTIONS[] = {
    MODEL_OPTION(struct cache_prompt_args),
    LOAD_OPTIONS(struct cache_prompt_args, load),
    {.name = "--prompt", .alias = "-p", .value = "TEXT", .kind = OPTION_TEXT, ROW(prompt.text),
     .help = "the beginning of the prompt"},
    {.name = "--file", .alias = "-f", .value = "FILE", .kind = OPTION_TEXT, ROW(prompt.file),
     .shown = "standard input", .help = "read it from a file; - is standard input"},
    {.name = "--tokens", .value = "IDS", .kind = OPTION_TEXT, ROW(prompt.tokens),
     .help = "the beginning of the prompt as token ids: 1,2,3"},
    {.name = "--system", .value = "TEXT", .kind = OPTION_TEXT, ROW(prompt.system),
     .help = "system message before the prompt"},
    {.name = "--raw", .kind = OPTION_FLAG, ROW(prompt.raw),
     .help = "use the text as is, without a chat template"},
    CHAT_OPTIONS(struct cache_prompt_args, prompt.chat),
    {.name = "--out", .alias = "-o", .value = "FILE", .kind = OPTION_TEXT, ROW(out),
     .required = true, .shown = "", .help = "file to write; an existing one is replaced"},
    {.name = "--format", .value = "FORM", .kind = OPTION_TEXT, ROW(format), .initial = "current",
     .help = "current: layout of mlx-lm 0.32 and later, where it can hold the cache, else legacy; "
             "legacy: layout up to 0.31"},
    CACHE_OPTIONS(struct cache_prompt_args),
    {.name = "--json", .kind = OPTION_FLAG, ROW(json), .help = "print the results as one JSON "
                                                               "object"},
    {.name = "--quiet", .alias = "-q", .kind = OPTION_FLAG, ROW(quiet),
     .help = "print nothing but errors on standard error"},
};
/* clang-format on */

static const struct command COMMAND = {
    .name = "cache-prompt",
    .summary = "Evaluates the beginning of a prompt and writes its cache to a file.",
    .usage = "-m MODEL [-p TEXT | -f FILE | --tokens IDS] -o FILE [flags]",
    .options = OPTIONS,
    .n_options = sizeof OPTIONS / sizeof *OPTIONS,
    .details =
        "kvasir generate --prompt-cache FILE continues from the file. So does mlx_lm.generate\n"
        "--prompt-cache-file if nothing is quantized, or if K and V have the same format, no\n"
        "layer is bounded (by a sliding window or --max-kv-size) and there is no exact start\n"
        "(--quantized-kv-start). Formats \"r...\" and \"t...\" are written as f16, with an exact\n"
        "start or without, and count as not quantized.\n"
        "Files hold keys that are not centred: --key-centre may only be auto or off (both mean\n"
        "off). K and V must both be quantized, or neither.",
};

struct run {
    const struct cache_prompt_args *a;
    struct prompt prompt;
    kvasir_model *model;
    kvasir_model_info info;
    kvasir_context *ctx;
    kvasir_seq *seq;
    struct progress progress;
    double seconds;
};

static int check_flags(const struct cache_prompt_args *a) {
    if (strcmp(a->format, "current") != 0 && strcmp(a->format, "legacy") != 0)
        return usage_error(&COMMAND, "--format: \"%.40s\" is neither current nor legacy",
                           a->format);
    if (strcmp(a->cache.options.key_centre, "auto") != 0 &&
        strcmp(a->cache.options.key_centre, "off") != 0)
        return usage_error(&COMMAND, "--key-centre %.60s: files hold keys that are not centred",
                           a->cache.options.key_centre);
    const char *comma = strchr(a->cache.options.kv_bits, ',');
    if (comma && (strchr(comma, 'f') == NULL) !=
                     (memchr(a->cache.options.kv_bits, 'f',
                             (size_t)(comma - a->cache.options.kv_bits)) == NULL))
        return usage_error(&COMMAND,
                           "--kv-bits %.20s: no class of mlx-lm holds K or V quantized "
                           "alone",
                           a->cache.options.kv_bits);
    return EXIT_GOOD;
}

/* Checks before minutes of evaluation what can be known of a file that cannot be written. */
static int check_out(const char *path) {
    struct stat st;
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    if (!folder)
        return run_error(&COMMAND, "out of memory");
    bool writable = access(folder, W_OK) == 0;
    int why = errno;
    free(folder);
    if (!writable)
        return run_error(&COMMAND, "-o: %s: %s", path, strerror(why));
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return run_error(&COMMAND, "-o: %s: is a %s, not a file: it is not replaced", path,
                         S_ISDIR(st.st_mode)   ? "folder"
                         : S_ISLNK(st.st_mode) ? "link"
                                               : "device or pipe");
    return EXIT_GOOD;
}

static int open_all(struct run *r) {
    kvasir_error err;
    if (kvasir_model_open_with(r->a->model, &r->a->load, &r->model, &err))
        return library_error(&COMMAND, &err);
    kvasir_model_get_info(r->model, &r->info);
    int code = prompt_encode(&COMMAND, &r->a->prompt, r->model, &r->info, &r->prompt);
    if (code)
        return code;
    kvasir_context_options options = cache_args_options(&r->a->cache);
    options.key_centre = "off";
    if (kvasir_context_create(r->model, &options, &r->ctx, &err) ||
        kvasir_seq_create(r->ctx, &r->seq, &err))
        return library_error(&COMMAND, &err);
    return EXIT_GOOD;
}

static bool show_progress(void *user, size_t done, size_t total) {
    struct run *r = user;
    (void)total;
    progress_step(&r->progress, done);
    return !interrupted();
}

static int evaluate(struct run *r) {
    kvasir_error err;
    kvasir_eval_options eval = {
        .struct_size = sizeof(kvasir_eval_options), .on_progress = show_progress, .user = r};
    progress_start(&r->progress, r->a->quiet ? NULL : "prompt", r->prompt.n, "tokens");
    double start = clock_seconds();
    kvasir_status status = kvasir_seq_eval(r->seq, r->prompt.ids, r->prompt.n, &eval, &err);
    r->seconds = clock_seconds() - start;
    progress_end(&r->progress);
    if (status == KVASIR_ERR_CANCELLED)
        return EXIT_INTERRUPTED;
    return status ? library_error(&COMMAND, &err) : EXIT_GOOD;
}

static int tell(const struct run *r) {
    kvasir_context_info info;
    char bytes[24];
    kvasir_context_get_info(r->ctx, &info);
    if (!r->a->quiet) {
        print_context_facts(&info);
        fprintf(stderr, "%s: %zu tokens in %.2f s, %s of cache\n", r->a->out, r->prompt.n,
                r->seconds, human_bytes((double)kvasir_seq_bytes(r->seq), bytes));
    }
    if (!r->a->json)
        return EXIT_GOOD;
    json_t *o = json_object();
    put_text(o, "file", r->a->out);
    put_whole(o, "tokens", r->prompt.n);
    put_real(o, "seconds", r->seconds);
    put_whole(o, "cache_bytes", kvasir_seq_bytes(r->seq));
    put_context_facts(o, &info);
    return json_print(&COMMAND, o);
}

static int cache_prompt(struct run *r) {
    kvasir_error err;
    int code = check_flags(r->a);
    if (!code)
        code = check_out(r->a->out);
    if (!code)
        code = prompt_read(&COMMAND, &r->a->prompt, &r->prompt);
    catch_interrupt();
    if (!code)
        code = open_all(r);
    if (!code)
        code = model_unchanged(&COMMAND, r->model, evaluate(r));
    if (!code && kvasir_seq_save(r->seq, r->a->out, strcmp(r->a->format, "legacy") == 0, &err))
        code = library_error(&COMMAND, &err);
    return code ? code : tell(r);
}

int cache_prompt_main(int argc, char **argv) {
    struct cache_prompt_args a = {.load = kvasir_model_defaults(), .cache = cache_args_defaults()};
    int code;
    if (!options_read(&COMMAND, argc, argv, &a, &code))
        return code;
    a.prompt.part = PROMPT_HEAD;
    struct run r = {.a = &a};
    code = cache_prompt(&r);
    kvasir_seq_destroy(r.seq);
    kvasir_context_destroy(r.ctx);
    kvasir_model_close(r.model);
    prompt_free(&r.prompt);
    return code;
}
