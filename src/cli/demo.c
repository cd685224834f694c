/* SPDX-License-Identifier: Apache-2.0 */
/* demo.c: `kvasir demo`, one question about a long text, answered over two caches side by side.
 *
 *     text, question -> token ids -> a context for each format of the cache, prompt evaluated
 *         |
 *     a token over one cache, a token over the other, until both have answered
 *         |
 *     the sentence of conclusion
 *
 * The sides take turns, so that both meet the same noise of the machine; each has a clock of its
 * own. On a terminal the answers grow in two columns; elsewhere they are printed when they are
 * complete.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct demo_args {
    kvasir_model_options load;
    const char *model, *text, *question, *beside;
    uint32_t max_tokens;
    struct sampling_args sampling;
    struct cache_args cache;
    bool json;
};

/* clang-format off */
#define ROW(field) .offset = offsetof(struct demo_args, field)
static const struct option OPTIONS[] = {
    MODEL_OPTION(struct demo_args),
    LOAD_OPTIONS(struct demo_args, load),
    {.name = "--file", .alias = "-f", .value = "FILE", .kind = OPTION_TEXT, .required = true,
     ROW(text), .shown = "", .help = "the text; - is standard input"},
    {.name = "--prompt", .alias = "-p", .value = "TEXT", .kind = OPTION_TEXT, .required = true,
     ROW(question), .shown = "", .help = "the question about it"},
    {.name = "--beside", .value = "K,V", .kind = OPTION_TEXT, .number_too = true, ROW(beside),
     .initial = "f16", .help = "formats of the cache that --kv-bits is compared with"},
    {.name = "--max-tokens", .alias = "-n", .value = "N", .kind = OPTION_U32, ROW(max_tokens),
     .initial = "96", .min = 1, .max = UINT32_MAX, .help = "maximum tokens of each answer"},
    SAMPLING_OPTIONS(struct demo_args, sampling),
    CACHE_OPTIONS(struct demo_args),
    {.name = "--json", .kind = OPTION_FLAG, ROW(json),
     .help = "print one JSON object with both answers and figures instead"},
};
/* clang-format on */

static const struct command COMMAND = {
    .name = "demo",
    .summary = "Answers a question about a long text over two caches, side by side.",
    .usage = "-m MODEL -f FILE -p QUESTION [--kv-bits 8,4] [flags]",
    .options = OPTIONS,
    .n_options = sizeof OPTIONS / sizeof *OPTIONS,
    .details = "Both sides have the same weights, prompt and seed, and take turns token by token. "
               "Ctrl-C ends the\nanswers (exit code 130). Exit codes: 0 success, 1 the run failed, "
               "2 wrong usage.",
};

enum { SIDES = 2 };
struct side {
    const char *bits;
    kvasir_context *ctx;
    kvasir_seq *seq;
    kvasir_sampler *sampler;
    kvasir_detok *detok;
    int32_t next; /* token, picked with the evaluation of the newest one */
    struct text_buf answer;
    uint32_t tokens;
    bool ended;
    double prompt_seconds, seconds; /* seconds: of answering */
};
struct demo {
    const struct demo_args *a;
    struct prompt prompt;
    kvasir_model *model;
    kvasir_model_info info;
    struct sampling sampling;
    struct side sides[SIDES]; /* --beside, --kv-bits */
    struct progress progress;
    size_t lines; /* of the columns that are on the screen */
};

/* ---- set-up ---------------------------------------------------------------------------------- */

/* The text, a blank line, the question. */
static int read_question(struct demo *d) {
    char *text;
    size_t len;
    int code = read_text(&COMMAND, "--file", d->a->text, &text, &len);
    if (code)
        return code;
    struct text_buf all = {0};
    const char *question = d->a->question;
    if (!text_append(&all, text, len) || !text_append(&all, "\n\n", 2) ||
        !text_append(&all, question, strlen(question) + 1)) {
        code = run_error(&COMMAND, "out of memory");
    } else {
        const struct prompt_args p = {.text = all.data};
        code = prompt_read(&COMMAND, &p, &d->prompt);
        if (!code)
            code = prompt_encode(&COMMAND, &p, d->model, &d->info, &d->prompt);
    }
    free(text);
    text_free(&all);
    return code;
}

static int open_model(struct demo *d) {
    kvasir_error err;
    int code = sampling_read(&COMMAND, &d->a->sampling, &d->sampling);
    if (code)
        return code;
    if (kvasir_model_open_with(d->a->model, &d->a->load, &d->model, &err))
        return library_error(&COMMAND, &err);
    kvasir_model_get_info(d->model, &d->info);
    code = sampling_settle(&COMMAND, d->a->sampling.generation_config, d->model,
                           &d->sampling.options, NULL);
    return code ? code : read_question(d);
}

static int open_side(struct demo *d, struct side *s) {
    kvasir_error err;
    kvasir_context_options o = cache_args_options(&d->a->cache);
    o.kv_bits = s->bits;
    calibrate_unasked(&o, d->a->model, false);
    if (!o.ctx)
        o.ctx = (uint32_t)d->prompt.n + d->a->max_tokens;
    const kvasir_status status = kvasir_context_create(d->model, &o, &s->ctx, &err);
    if (status && s == d->sides && err.field && strcmp(err.field, "context.kv_bits") == 0)
        return usage_error(&COMMAND, "--beside: %s", err.text);
    if (status || kvasir_seq_create(s->ctx, &s->seq, &err) ||
        kvasir_sampler_create(&d->sampling.options, d->info.vocab, &s->sampler, &err) ||
        kvasir_detok_create(kvasir_model_tokenizer(d->model), &s->detok, &err))
        return library_error(&COMMAND, &err);
    for (size_t i = 0; i < d->prompt.n; i++)
        kvasir_sampler_accept(s->sampler, d->prompt.ids[i]);
    return EXIT_GOOD;
}

static bool show_progress(void *user, size_t done, size_t total) {
    struct demo *d = user;
    (void)total;
    progress_step(&d->progress, done);
    return !interrupted();
}

static int run_prompt(struct demo *d, struct side *s) {
    kvasir_error err;
    char what[64];
    kvasir_eval_options eval = {
        .struct_size = sizeof(kvasir_eval_options), .on_progress = show_progress, .user = d};
    snprintf(what, sizeof what, "reading, %s cache", s->bits);
    progress_start(&d->progress, what, d->prompt.n, "tokens");
    const double start = clock_seconds();
    const kvasir_status status =
        kvasir_seq_pick(s->seq, d->prompt.ids, d->prompt.n, &eval, s->sampler, &s->next, &err);
    s->prompt_seconds = clock_seconds() - start;
    progress_end(&d->progress);
    if (status && status != KVASIR_ERR_CANCELLED)
        return library_error(&COMMAND, &err);
    return status ? EXIT_INTERRUPTED : EXIT_GOOD;
}

/* ---- two columns ----------------------------------------------------------------------------- */

enum { COLUMN_MIN = 24, COLUMN_MAX = 60, COLUMN_PLAIN = 48 };

static double tokens_per_second(const struct side *s) {
    return ratio(s->tokens, s->seconds);
}

static size_t column_width(void) {
    struct winsize w;
    size_t width = COLUMN_PLAIN;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col)
        width = w.ws_col > 3 ? (w.ws_col - 3u) / 2 : 0;
    return width < COLUMN_MIN ? COLUMN_MIN : width > COLUMN_MAX ? COLUMN_MAX : width;
}

/* Bytes of the text's next line of at most `width` characters, cut at a blank if there is one.
 * *skip: of the blank or line end after it. */
static size_t next_line(const char *text, size_t len, size_t width, size_t *skip) {
    size_t characters = 0, blank = 0, i = 0;
    for (; i < len && text[i] != '\n'; i++) {
        const bool begins = ((unsigned char)text[i] & 0xc0) != 0x80;
        if (begins && characters == width)
            break;
        characters += begins;
        if (text[i] == ' ')
            blank = i;
    }
    if (i < len && text[i] != '\n' && blank)
        i = blank;
    *skip = i < len && (text[i] == '\n' || text[i] == ' ');
    return i;
}

static size_t print_cell(const char *text, size_t len, size_t width) {
    size_t shown = 0;
    for (size_t i = 0; i < len; i++) {
        const unsigned char c = (unsigned char)text[i];
        shown += (c & 0xc0) != 0x80;
        putchar(c < 0x20 || c == 0x7f ? ' ' : c); /* a model writes no terminal sequences */
    }
    return shown < width ? width - shown : 0;
}

static void print_row(const char *left, size_t left_len, const char *right, size_t right_len,
                      size_t width, const char *end) {
    const size_t rest = print_cell(left, left_len, width);
    printf("%*s | ", (int)rest, "");
    print_cell(right, right_len, width);
    fputs(end, stdout);
}

static void side_line(const struct side *s, bool names, char *out, size_t size) {
    char bytes[24];
    if (names)
        snprintf(out, size, "%s cache", s->bits);
    else
        snprintf(out, size, "%.1f tokens/s, %s", tokens_per_second(s),
                 human_bytes((double)kvasir_seq_bytes(s->seq), bytes));
}

/* Prints both answers side by side, over what was printed last. */
static void show_columns(struct demo *d, bool terminal) {
    const size_t width = column_width();
    const char *end = terminal ? "\033[K\n" : "\n";
    char left[80], right[80];
    if (d->lines)
        printf("\033[%zuA", d->lines);
    d->lines = 0;
    for (int names = 1; names >= 0; names--, d->lines++) {
        side_line(&d->sides[0], names, left, sizeof left);
        side_line(&d->sides[1], names, right, sizeof right);
        print_row(left, strlen(left), right, strlen(right), width, end);
    }
    size_t at[SIDES] = {0};
    for (bool more = true; more; d->lines++) {
        const char *text[SIDES] = {"", ""};
        size_t len[SIDES] = {0}, skip;
        more = false;
        for (int i = 0; i < SIDES; i++) {
            const struct text_buf *answer = &d->sides[i].answer;
            if (at[i] >= answer->len)
                continue;
            text[i] = answer->data + at[i];
            len[i] = next_line(text[i], answer->len - at[i], width, &skip);
            at[i] += len[i] + skip;
            more |= at[i] < answer->len;
        }
        print_row(text[0], len[0], text[1], len[1], width, end);
    }
    fflush(stdout);
}

/* ---- answers --------------------------------------------------------------------------------- */

static int add_text(struct side *s, const char *text, size_t len) {
    while (s->answer.len == 0 && len && (*text == '\n' || *text == ' ')) {
        text++;
        len--;
    }
    return text_append(&s->answer, text, len) ? EXIT_GOOD : run_error(&COMMAND, "out of memory");
}

/* The next token of a side, and its evaluation, with which the one after it is picked. */
static int step(struct demo *d, struct side *s) {
    const double start = clock_seconds();
    const int32_t id = s->next;
    kvasir_sampler_accept(s->sampler, id);
    const char *text;
    size_t len;
    kvasir_error err;
    s->ended = kvasir_token_is_end(kvasir_model_tokenizer(d->model), id);
    if (s->ended)
        return EXIT_GOOD;
    if (kvasir_detok_push(s->detok, id, &text, &len, &err) ||
        kvasir_seq_pick(s->seq, &id, 1, NULL, s->sampler, &s->next, &err))
        return library_error(&COMMAND, &err);
    s->tokens++;
    s->seconds += clock_seconds() - start;
    s->ended = s->tokens == d->a->max_tokens;
    return add_text(s, text, len);
}

static int finish_text(struct side *s) {
    const char *text;
    size_t len;
    kvasir_error err;
    if (kvasir_detok_finish(s->detok, &text, &len, &err))
        return library_error(&COMMAND, &err);
    return add_text(s, text, len);
}

static int run_answers(struct demo *d) {
    const bool terminal = !d->a->json && isatty(STDOUT_FILENO);
    int code = EXIT_GOOD;
    while (!code && !interrupted() && !(d->sides[0].ended && d->sides[1].ended)) {
        for (int i = 0; !code && i < SIDES; i++)
            if (!d->sides[i].ended)
                code = step(d, &d->sides[i]);
        if (!code && terminal)
            show_columns(d, true);
    }
    for (int i = 0; !code && i < SIDES; i++)
        code = finish_text(&d->sides[i]);
    if (!code && !d->a->json)
        show_columns(d, terminal);
    return code ? code : interrupted() ? EXIT_INTERRUPTED : EXIT_GOOD;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* Characters that the answers begin with in common; SIZE_MAX: they are the same. */
static size_t common_length(const struct text_buf *x, const struct text_buf *y) {
    size_t i = 0, n = 0;
    for (; i < x->len && i < y->len && x->data[i] == y->data[i]; i++)
        n += ((unsigned char)x->data[i] & 0xc0) != 0x80;
    return i == x->len && i == y->len ? SIZE_MAX : n;
}

static void print_conclusion(const struct demo *d) {
    const struct side *x = &d->sides[0], *y = &d->sides[1];
    const double bytes = (double)kvasir_seq_bytes(x->seq), less = (double)kvasir_seq_bytes(y->seq);
    const size_t common = common_length(&x->answer, &y->answer);
    char from[24], to[24];
    printf("\nAfter %zu tokens of text the %s cache takes %s instead of %s, %.1f times less,\n"
           "and answers %.2f times as fast. ",
           d->prompt.n, y->bits, human_bytes(less, to), human_bytes(bytes, from),
           ratio(bytes, less), ratio(tokens_per_second(y), tokens_per_second(x)));
    if (common == SIZE_MAX)
        printf("Both answers are the same.\n");
    else
        printf("The answers are the same for %zu characters.\n", common);
}

static json_t *side_json(const struct side *s) {
    json_t *o = json_object();
    put_text(o, "kv_bits", s->bits);
    json_object_set_new(o, "text",
                        json_stringn(s->answer.len ? s->answer.data : "", s->answer.len));
    put_whole(o, "tokens", s->tokens);
    put_real(o, "tokens_per_second", tokens_per_second(s));
    put_real(o, "prompt_seconds", s->prompt_seconds);
    put_whole(o, "cache_bytes", kvasir_seq_bytes(s->seq));
    return o;
}

static int print_json(const struct demo *d) {
    json_t *o = json_object(), *sides = json_array();
    put_whole(o, "prompt_tokens", d->prompt.n);
    for (int i = 0; i < SIDES; i++)
        json_array_append_new(sides, side_json(&d->sides[i]));
    json_object_set_new(o, "sides", sides);
    return json_print(&COMMAND, o);
}

static int run(struct demo *d) {
    catch_interrupt();
    int code = open_model(d);
    for (int i = 0; !code && i < SIDES; i++)
        code = open_side(d, &d->sides[i]);
    for (int i = 0; !code && i < SIDES; i++)
        code = run_prompt(d, &d->sides[i]);
    if (!code)
        code = run_answers(d);
    code = model_unchanged(&COMMAND, d->model, code);
    if (code && code != EXIT_INTERRUPTED)
        return code;
    if (d->a->json)
        return print_json(d) ? EXIT_RUN : code;
    if (!code)
        print_conclusion(d);
    return finish_output(&COMMAND) ? EXIT_RUN : code;
}

int demo_main(int argc, char **argv) {
    struct demo_args a = {.load = kvasir_model_defaults(),
                          .sampling = sampling_args_defaults(),
                          .cache = cache_args_defaults()};
    int code;
    if (!options_read(&COMMAND, argc, argv, &a, &code))
        return code;
    struct demo d = {.a = &a};
    d.sides[0].bits = a.beside;
    d.sides[1].bits = a.cache.options.kv_bits;
    code = run(&d);
    for (int i = 0; i < SIDES; i++) {
        struct side *s = &d.sides[i];
        text_free(&s->answer);
        kvasir_detok_destroy(s->detok);
        kvasir_sampler_destroy(s->sampler);
        kvasir_seq_destroy(s->seq);
        kvasir_context_destroy(s->ctx);
    }
    sampling_free(&d.sampling);
    kvasir_model_close(d.model);
    prompt_free(&d.prompt);
    return code;
}
