/* SPDX-License-Identifier: Apache-2.0 */
/* embed.c: `kvasir embed`, the embeddings of texts, as /v1/embeddings makes them.
 *
 *     lines of a file --> WAVE texts at a time --> engine --> a line each, in order
 *
 * A text's numbers do not depend on what it is evaluated with.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct embed_args {
    kvasir_model_options load;
    const char *model, *text, *file;
    kvasir_engine_options engine;
    bool json, quiet;
};

/* clang-format off */
#define ROW(field) .offset = offsetof(struct embed_args, field)
static const struct option OPTIONS[] = {
    MODEL_OPTION(struct embed_args),
    LOAD_OPTIONS(struct embed_args, load),
    {.name = "--prompt", .alias = "-p", .value = "TEXT", .kind = OPTION_TEXT, ROW(text),
     .shown = "", .help = "the text"},
    {.name = "--file", .alias = "-f", .value = "FILE", .kind = OPTION_TEXT, ROW(file),
     .shown = "", .help = "file with a text on each line; - is standard input"},
    {.name = "--json", .kind = OPTION_FLAG, ROW(json),
     .help = "print a JSON object per text: index, tokens, embedding"},
    CONTEXT_OPTIONS(struct embed_args, engine.context),
    {.name = "--quiet", .alias = "-q", .kind = OPTION_FLAG, ROW(quiet),
     .help = "print nothing but errors on standard error"},
};
/* clang-format on */

static const struct command COMMAND = {
    .name = "embed",
    .summary = "Prints the embedding of a text, or of each line of a file.",
    .usage = "-m MODEL (-p TEXT | -f FILE) [flags]",
    .options = OPTIONS,
    .n_options = sizeof OPTIONS / sizeof *OPTIONS,
    .details = "An embedding has length 1. The model says how its tokens are pooled: by\n"
               "1_Pooling/config.json beside it, or a key of its GGUF file; otherwise the last\n"
               "token's state is taken.",
};

enum { WAVE = 64 };

struct text {
    struct run *run;
    int32_t *ids; /* kvasir_free */
    size_t n_ids;
    float *embedding; /* [width] */
};

struct run {
    const struct embed_args *a;
    kvasir_model *model;
    kvasir_engine *engine;
    uint32_t width;
    kvasir_pooling pooling;
    size_t printed; /* texts */
    struct text texts[WAVE];
    size_t n;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under the lock */
    size_t open; /* requests */
    bool failed;
    kvasir_error error;
};

/* On the engine's thread. */
static void on_event(void *user, const kvasir_event *e) {
    struct text *t = user;
    struct run *r = t->run;
    pthread_mutex_lock(&r->lock);
    if (e->embedding)
        memcpy(t->embedding, e->embedding, r->width * sizeof *t->embedding);
    if (e->kind == KVASIR_EVENT_DONE && e->error && !r->failed) {
        r->failed = true;
        r->error = *e->error;
    }
    r->open -= e->last;
    if (e->last)
        pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

static int print_text(struct run *r, const struct text *t) {
    if (!r->a->json) {
        for (uint32_t i = 0; i < r->width; i++)
            printf("%.9g%c", (double)t->embedding[i], i + 1 < r->width ? ' ' : '\n');
        r->printed++;
        return EXIT_GOOD;
    }
    json_t *values = json_array(),
           *line = json_pack("{s:I, s:I, s:O}", "index", (json_int_t)r->printed++, "tokens",
                             (json_int_t)t->n_ids, "embedding", values);
    for (uint32_t i = 0; line && i < r->width; i++)
        json_array_append_new(values, json_real((double)t->embedding[i]));
    json_decref(values);
    return line ? json_print(&COMMAND, line) : run_error(&COMMAND, "out of memory");
}

static void free_texts(struct run *r) {
    for (size_t i = 0; i < r->n; i++) {
        kvasir_free(r->texts[i].ids);
        free(r->texts[i].embedding);
    }
    r->n = 0;
}

/* Waits for all requests that are open; Ctrl-C ends that. */
static int wait_all(struct run *r) {
    pthread_mutex_lock(&r->lock);
    while (r->open && !interrupted())
        wait_change(&r->changed, &r->lock);
    const bool failed = r->failed;
    const kvasir_error error = r->error;
    pthread_mutex_unlock(&r->lock);
    if (interrupted())
        return EXIT_INTERRUPTED;
    return failed ? library_error(&COMMAND, &error) : EXIT_GOOD;
}

/* Evaluates the texts that have been read, and prints them. */
static int run_wave(struct run *r) {
    kvasir_request requests[WAVE];
    const kvasir_request *all[WAVE];
    kvasir_error err;
    size_t refused;
    for (size_t i = 0; i < r->n; i++) {
        requests[i] = kvasir_request_defaults();
        requests[i].tokens = r->texts[i].ids;
        requests[i].n_tokens = r->texts[i].n_ids;
        requests[i].embed = r->pooling;
        requests[i].on_event = on_event;
        requests[i].user = &r->texts[i];
        all[i] = &requests[i];
    }
    r->open = r->n;
    if (r->n && kvasir_engine_submit_all(r->engine, all, r->n, NULL, &refused, &err)) {
        r->open = 0;
        if (!r->a->file || refused >= r->n)
            return library_error(&COMMAND, &err);
        return run_error(&COMMAND, "-f: line %zu: %s", r->printed + refused + 1, err.text);
    }
    int code = wait_all(r);
    for (size_t i = 0; i < r->n && !code; i++)
        code = print_text(r, &r->texts[i]);
    if (!code) /* otherwise the engine may still have some */
        free_texts(r);
    return code;
}

static int add_text(struct run *r, const char *text, size_t len) {
    struct text *t = &r->texts[r->n];
    kvasir_error err;
    *t = (struct text){.run = r, .embedding = calloc(r->width, sizeof *t->embedding)};
    if (!t->embedding)
        return run_error(&COMMAND, "out of memory");
    r->n++;
    if (kvasir_tokenize(kvasir_model_tokenizer(r->model), text, len,
                        KVASIR_TOKENIZE_ADD_SPECIAL | KVASIR_TOKENIZE_PARSE_SPECIAL, &t->ids,
                        &t->n_ids, &err))
        return library_error(&COMMAND, &err);
    if (t->n_ids == 0 && r->a->file)
        return run_error(&COMMAND, "-f: line %zu has no tokens", r->printed + r->n);
    return t->n_ids ? EXIT_GOOD : usage_error(&COMMAND, "-p: the text has no tokens");
}

static int run_lines(struct run *r) {
    char *text = NULL;
    size_t len = 0;
    int code = read_text(&COMMAND, "-f", r->a->file, &text, &len);
    struct progress progress;
    const bool watched = !r->a->quiet && isatty(STDERR_FILENO) && !isatty(STDOUT_FILENO);
    progress_start(&progress, watched ? "embed" : NULL, len, "bytes");
    for (size_t at = 0; at < len && !code;) {
        const char *end = memchr(text + at, '\n', len - at);
        const size_t n = end ? (size_t)(end - text) - at : len - at;
        code = add_text(r, text + at, n);
        at += n + 1;
        if (!code && (r->n == WAVE || at >= len))
            code = run_wave(r);
        progress_step(&progress, min_size(at, len));
    }
    progress_end(&progress);
    free(text);
    return code;
}

static int run_embed(struct run *r) {
    kvasir_model_info info;
    kvasir_error err;
    if (kvasir_model_open_with(r->a->model, &r->a->load, &r->model, &err))
        return library_error(&COMMAND, &err);
    kvasir_model_get_info(r->model, &info);
    r->width = info.dim;
    r->pooling = kvasir_model_pooling(r->model);
    if (r->pooling == KVASIR_POOLING_NONE)
        return run_error(&COMMAND,
                         "-m: %s pools its embeddings in a way that is not supported: "
                         "only the last token and the mean are",
                         r->a->model);
    if (!r->a->quiet)
        print_model_line(&info);
    kvasir_engine_options options = r->a->engine;
    calibrate_unasked(&options.context, r->a->model, r->a->quiet);
    hold_interrupt(true);
    const kvasir_status status = kvasir_engine_create(r->model, &options, &r->engine, &err);
    hold_interrupt(false);
    if (status)
        return library_error(&COMMAND, &err);
    if (r->a->file)
        return run_lines(r);
    const int code = add_text(r, r->a->text, strlen(r->a->text));
    return code ? code : run_wave(r);
}

int embed_main(int argc, char **argv) {
    struct embed_args a = {.load = kvasir_model_defaults(), .engine = kvasir_engine_defaults()};
    int code;
    a.engine.no_prefix_cache = true;
    if (!options_read(&COMMAND, argc, argv, &a, &code))
        return code;
    if (!a.text == !a.file)
        return usage_error(&COMMAND, "either -p TEXT or -f FILE is needed");
    struct run r = {
        .a = &a, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    catch_interrupt();
    code = run_embed(&r);
    kvasir_engine_destroy(r.engine);
    free_texts(&r);
    code = model_unchanged(&COMMAND, r.model, code);
    kvasir_model_close(r.model);
    const int flushed = finish_output(&COMMAND);
    return code ? code : flushed;
}
