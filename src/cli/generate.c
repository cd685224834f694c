/* SPDX-License-Identifier: Apache-2.0 */
/* generate.c: `kvasir generate`, a prompt and its answer.
 *
 *     flags, prompt text, --logits file   everything that can be wrong without a model
 *         |
 *     model -> token ids -> context, sequence, sampler
 *         |
 *     prompt evaluated, next token picked  (--logits rows streamed out)
 *         |
 *     end token? -> text, stop text? -> enough? -> evaluate that token, pick the next one ...
 *         |
 *     summary on standard error, or one JSON object on standard output
 *
 * The answer ends for one of the reasons of enum finish. Ctrl-C is one of them: it is checked
 * between steps, and a second one kills the program as usual. `answer` counts the tokens that were
 * chosen, without an end token. Decode steps are evaluations of one token, so there is one fewer
 * than tokens if the length ended the answer.
 *
 * Not supported: several turns, several prompts.
 */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum finish { FINISH_LENGTH, FINISH_END, FINISH_STOP, FINISH_CONTEXT, FINISH_INTERRUPTED };
static const char *const FINISH_NAMES[] = {"length", "end", "stop", "context", "interrupted"};

struct generate_args {
    kvasir_model_options load;
    const char *model, *logits, *prompt_cache;
    struct prompt_args prompt;
    uint32_t max_tokens;
    struct sampling_args sampling;
    struct text_list stop;
    struct cache_args cache;
    const char *json_schema, *grammar, *regex; /* at most one */
    bool ignore_eos, json, quiet, convert_cache;
};

/* clang-format off */
#define ROW(field) .offset = offsetof(struct generate_args, field)
static const struct option OPTIONS[] = {
    MODEL_OPTION(struct generate_args),
    LOAD_OPTIONS(struct generate_args, load),
    {.name = "--prompt", .alias = "-p", .value = "TEXT", .kind = OPTION_TEXT, ROW(prompt.text),
     .help = "the prompt"},
    {.name = "--file", .alias = "-f", .value = "FILE", .kind = OPTION_TEXT, ROW(prompt.file),
     .shown = "standard input", .help = "read the prompt from this file; - is standard input"},
    {.name = "--tokens", .value = "IDS", .kind = OPTION_TEXT, ROW(prompt.tokens),
     .help = "the prompt as token ids: 1,2,3"},
    {.name = "--system", .value = "TEXT", .kind = OPTION_TEXT, ROW(prompt.system),
     .help = "system message before the prompt"},
    {.name = "--raw", .kind = OPTION_FLAG, ROW(prompt.raw),
     .help = "use the prompt as is, without a chat template"},
    CHAT_OPTIONS(struct generate_args, prompt.chat),
    {.name = "--max-tokens", .alias = "-n", .value = "N", .kind = OPTION_U32, ROW(max_tokens),
     .initial = "256", .max = UINT32_MAX,
     .help = "maximum tokens to generate; 0 evaluates the prompt only"},
    SAMPLING_OPTIONS(struct generate_args, sampling),
    {.name = "--stop", .value = "TEXT", .kind = OPTION_TEXTS, ROW(stop),
     .help = "end the answer before this text; may be given several times"},
    {.name = "--json-schema", .value = "FILE", .kind = OPTION_TEXT, ROW(json_schema),
     .help = "the answer is JSON of this JSON Schema"},
    {.name = "--grammar", .value = "FILE", .kind = OPTION_TEXT, ROW(grammar),
     .help = "the answer is a text of this grammar, in llama.cpp's GBNF"},
    {.name = "--regex", .value = "EXPR", .kind = OPTION_TEXT, ROW(regex),
     .help = "the whole answer matches this regular expression"},
    {.name = "--ignore-eos", .kind = OPTION_FLAG, ROW(ignore_eos),
     .help = "do not stop at end tokens"},
    {.name = "--prompt-cache", .value = "FILE", .kind = OPTION_TEXT, ROW(prompt_cache),
     .help = "continue from a prompt-cache file that cache-prompt or mlx-lm wrote, in its formats"},
    {.name = "--convert-cache", .kind = OPTION_FLAG, ROW(convert_cache),
     .help = "convert the file's keys and values to the formats of --kv-bits and --kv-group-size"},
    CACHE_OPTIONS(struct generate_args),
    {.name = "--logits", .value = "FILE", .kind = OPTION_TEXT, ROW(logits),
     .help = "write the prompt's logits as safetensors: \"logits\" F32 [tokens, vocab]"},
    {.name = "--json", .kind = OPTION_FLAG, ROW(json),
     .help = "print one JSON object with text, token ids and statistics instead of the text"},
    {.name = "--quiet", .alias = "-q", .kind = OPTION_FLAG, ROW(quiet),
     .help = "print nothing but errors on standard error"},
};
/* clang-format on */

static const struct command COMMAND = {
    .name = "generate",
    .summary = "Answers a prompt, with a quantized KV cache.",
    .usage = "-m MODEL [-p TEXT | -f FILE | --tokens IDS] [flags]",
    .options = OPTIONS,
    .n_options = sizeof OPTIONS / sizeof *OPTIONS,
    .details = "The prompt is read from standard input if no flag gives it. Ctrl-C ends the answer "
               "(exit code 130);\na second Ctrl-C kills the program. Exit codes: 0 success, 1 the "
               "run failed, 2 wrong usage.",
};

struct run {
    const struct generate_args *a;
    struct prompt prompt;
    struct out_file logits_file;
    kvasir_model *model;
    kvasir_model_info info;
    kvasir_context *ctx;
    kvasir_seq *seq;
    kvasir_prompt_cache *cache; /* --prompt-cache */
    uint32_t cached;            /* tokens of it */
    kvasir_sampler *sampler;
    struct sampling sampling;
    kvasir_stop *stop;
    kvasir_grammar *grammar; /* NULL: any answer */
    kvasir_guide *guide;
    kvasir_detok *detok; /* NULL: the checkpoint has no tokenizer, so ids are printed */
    int32_t next;    /* token, picked with the evaluation of the newest one; or, of a grammar, */
    float *logits;   /* [vocab] to pick it from */
    int32_t *answer; /* [answer_n] */
    size_t answer_n, answer_cap;
    uint32_t limit; /* of answer_n */
    enum finish finish, at_limit;
    struct stream stream;
    struct progress progress;
    bool write_failed; /* --logits: the line was printed */
    double prompt_seconds, decode_seconds;
    uint64_t steps; /* evaluations of one token */
};

/* ---- before the model ------------------------------------------------------------------------ */

static int make_stop(struct run *r) {
    kvasir_error err;
    if (kvasir_stop_create(r->a->stop.items, r->a->stop.n, &r->stop, &err))
        return library_error(&COMMAND, &err);
    return EXIT_GOOD;
}

static int compile(struct run *r, kvasir_grammar_kind kind, const char *flag, const char *text,
                   size_t len) {
    kvasir_error err;
    if (kvasir_grammar_create(kind, text, len, &r->grammar, &err))
        return usage_error(&COMMAND, "%s: %s", flag, err.text);
    return EXIT_GOOD;
}

/* Compiles what a flag asks of the answer. */
static int make_grammar(struct run *r) {
    const struct generate_args *a = r->a;
    const char *flag = a->json_schema ? "--json-schema"
                       : a->grammar   ? "--grammar"
                                      : "--regex",
               *file = a->json_schema ? a->json_schema : a->grammar;
    char *text = NULL;
    size_t len;
    if (!file && !a->regex)
        return EXIT_GOOD;
    if (!!a->json_schema + !!a->grammar + !!a->regex > 1)
        return usage_error(&COMMAND, "%s: not allowed with %s", flag,
                           a->regex ? "--regex" : "--grammar");
    if (a->ignore_eos)
        return usage_error(&COMMAND, "%s: not allowed with --ignore-eos", flag);
    if (!file)
        return compile(r, KVASIR_GRAMMAR_REGEX, flag, a->regex, strlen(a->regex));
    int code = read_text(&COMMAND, flag, file, &text, &len);
    char name[256];
    snprintf(name, sizeof name, "%s: %s", flag, file);
    if (!code)
        code = compile(r, a->json_schema ? KVASIR_GRAMMAR_JSON_SCHEMA : KVASIR_GRAMMAR_GBNF, name,
                       text, len);
    free(text);
    return code;
}

static int prepare(struct run *r) {
    int code = sampling_read(&COMMAND, &r->a->sampling, &r->sampling);
    if (!code)
        code = make_stop(r);
    if (!code)
        code = make_grammar(r);
    if (!code)
        code = prompt_read(&COMMAND, &r->a->prompt, &r->prompt);
    catch_interrupt(); /* from here on there is a file to remove on failure */
    if (!code && r->a->logits)
        code = out_open(&COMMAND, &r->logits_file, "--logits", r->a->logits);
    return code;
}

/* ---- set-up ---------------------------------------------------------------------------------- */

static int open_model(struct run *r) {
    kvasir_error err;
    if (kvasir_model_open_with(r->a->model, &r->a->load, &r->model, &err))
        return library_error(&COMMAND, &err);
    kvasir_model_get_info(r->model, &r->info);
    kvasir_status status = kvasir_detok_create(kvasir_model_tokenizer(r->model), &r->detok, &err);
    if (status && status != KVASIR_ERR_UNSUPPORTED)
        return library_error(&COMMAND, &err);
    if (!r->detok && r->a->stop.n)
        return usage_error(&COMMAND, "--stop: this model has no tokenizer to make text with");
    if (r->grammar && kvasir_guide_create(kvasir_model_tokenizer(r->model), r->info.vocab,
                                          r->grammar, &r->guide, &err))
        return library_error(&COMMAND, &err);
    int code = sampling_settle(&COMMAND, r->a->sampling.generation_config, r->model,
                               &r->sampling.options, NULL);
    if (!code && r->detok)
        code = sampling_protect(&COMMAND, kvasir_model_tokenizer(r->model), &r->sampling);
    return code ? code : prompt_encode(&COMMAND, &r->a->prompt, r->model, &r->info, &r->prompt);
}

/* Formats come from the file unless flags give them; flags that differ from the file are refused
 * when it is loaded. */
static bool formats_are_said(const kvasir_context_options *o) {
    const kvasir_context_options d = kvasir_context_defaults();
    return o->kv_bits != d.kv_bits || o->kv_group_size || o->max_kv_size ||
           o->kv_keep != d.kv_keep || o->quantized_kv_start != d.quantized_kv_start ||
           o->kv_exact_tail || o->kv_floor || o->key_centre != d.key_centre;
}

static kvasir_status open_sequence(struct run *r, kvasir_error *err) {
    kvasir_context_options options = cache_args_options(&r->a->cache);
    kvasir_status status = KVASIR_OK;
    if (r->a->prompt_cache)
        status = kvasir_prompt_cache_open(r->model, r->a->prompt_cache, &r->cache, err);
    if (r->cache && !r->a->convert_cache && !formats_are_said(&options))
        options.like = r->cache;
    calibrate_unasked(&options, r->a->model, r->a->quiet);
    if (!status)
        status = kvasir_context_create(r->model, &options, &r->ctx, err);
    if (status || !r->cache)
        return status ? status : kvasir_seq_create(r->ctx, &r->seq, err);
    r->cached = kvasir_prompt_cache_tokens(r->cache);
    return kvasir_seq_load(r->ctx, r->cache, r->a->convert_cache, &r->seq, err);
}

static int open_context(struct run *r) {
    kvasir_error err;
    if (kvasir_sampler_create(&r->sampling.options, r->info.vocab, &r->sampler, &err) ||
        open_sequence(r, &err))
        return library_error(&COMMAND, &err);
    r->logits = r->guide ? malloc(r->info.vocab * sizeof *r->logits) : NULL;
    if (r->guide && !r->logits)
        return run_error(&COMMAND, "out of memory");
    for (uint32_t i = 0; i < r->cached; i++)
        if (kvasir_seq_tokens(r->seq)[i] >= 0) /* the file may not state them */
            kvasir_sampler_accept(r->sampler, kvasir_seq_tokens(r->seq)[i]);
    for (size_t i = 0; i < r->prompt.n; i++)
        kvasir_sampler_accept(r->sampler, r->prompt.ids[i]);
    return EXIT_GOOD;
}

/* The context may end the answer before -n does. Its last position is for the last token but one,
 * since the last token need not be evaluated. A prompt that does not fit is refused by the
 * evaluation. */
static void settle_limit(struct run *r) {
    kvasir_context_info info;
    kvasir_context_get_info(r->ctx, &info);
    if (!r->a->quiet) {
        print_model_line(&r->info);
        print_context_facts(&info);
        if (r->cache)
            warn_prompt_cache(r->cache, r->a->prompt_cache, &info);
        if (r->sampling.options.temp > 0)
            fprintf(stderr, "seed:   %llu\n", (unsigned long long)r->sampling.options.seed);
    }
    r->limit = r->a->max_tokens;
    r->at_limit = FINISH_LENGTH;
    const uint64_t begin = r->cached + (uint64_t)r->prompt.n;
    uint64_t end = begin + r->limit;
    bool rotates = info.ctx == 0;
    if (!r->a->quiet && rotates && r->info.ctx_train && end > r->info.ctx_train)
        fprintf(stderr, "warning: up to %llu tokens: past the %u the model was trained for\n",
                (unsigned long long)end, r->info.ctx_train);
    if (rotates || begin > info.ctx)
        return;
    uint64_t room = (uint64_t)info.ctx - begin + 1;
    if (room < r->limit) {
        r->limit = (uint32_t)room;
        r->at_limit = FINISH_CONTEXT;
        if (!r->a->quiet)
            fprintf(stderr, "note:   the context ends the answer after %u tokens\n", r->limit);
    }
}

/* ---- prompt ---------------------------------------------------------------------------------- */

static bool write_logits(void *user, size_t first, size_t rows, const float *logits) {
    struct run *r = user;
    (void)first; /* rising, without gaps */
    r->write_failed =
        out_write(&COMMAND, &r->logits_file, logits, rows * r->info.vocab * sizeof *logits) != 0;
    return !r->write_failed && !interrupted();
}

static bool show_progress(void *user, size_t done, size_t total) {
    struct run *r = user;
    (void)total;
    progress_step(&r->progress, done);
    return !interrupted();
}

/* Evaluates tokens and picks the next one, unless that waits for what a grammar allows. */
static kvasir_status evaluate(struct run *r, const int32_t *ids, size_t n,
                              kvasir_eval_options *eval, kvasir_error *err) {
    if (!r->guide)
        return kvasir_seq_pick(r->seq, ids, n, eval, r->sampler, &r->next, err);
    eval->last_logits = r->logits;
    return kvasir_seq_eval(r->seq, ids, n, eval, err);
}

static int run_prompt(struct run *r) {
    kvasir_eval_options eval = {
        .struct_size = sizeof(kvasir_eval_options), .on_progress = show_progress, .user = r};
    if (r->logits_file.open) {
        struct st_header h = {0};
        st_add(&h, "logits", ST_F32, (uint64_t[]){r->prompt.n, r->info.vocab}, 2);
        int code = out_write_header(&COMMAND, &r->logits_file, &h);
        if (code)
            return code;
        eval.on_logits = write_logits;
    }
    kvasir_error err;
    progress_start(&r->progress, r->a->quiet ? NULL : "prompt", r->prompt.n, "tokens");
    double start = clock_seconds();
    kvasir_status status = evaluate(r, r->prompt.ids, r->prompt.n, &eval, &err);
    r->prompt_seconds = clock_seconds() - start;
    progress_end(&r->progress);
    if (r->write_failed)
        return EXIT_RUN;
    if (status == KVASIR_ERR_CANCELLED)
        return EXIT_GOOD; /* the interrupt ends the answer before it begins */
    if (status)
        return library_error(&COMMAND, &err);
    return r->logits_file.open ? out_commit(&COMMAND, &r->logits_file) : EXIT_GOOD;
}

/* ---- answer ---------------------------------------------------------------------------------- */

static int keep_id(struct run *r, int32_t id) {
    if (!ARRAY_GROW(r->answer, r->answer_cap, r->answer_n + 1))
        return run_error(&COMMAND, "out of memory");
    r->answer[r->answer_n++] = id;
    return EXIT_GOOD;
}

static int check_stream(const struct run *r) {
    if (!r->stream.write_error)
        return EXIT_GOOD;
    return run_error(&COMMAND, "standard output: %s", strerror(r->stream.write_error));
}

static int show_token(struct run *r, int32_t id) {
    char number[16];
    const char *text = number;
    size_t len;
    kvasir_error err;
    if (!r->detok)
        len = (size_t)snprintf(number, sizeof number, "%s%d", r->answer_n > 1 ? " " : "", id);
    else if (kvasir_detok_push(r->detok, id, &text, &len, &err))
        return library_error(&COMMAND, &err);
    stream_push(&r->stream, text, len);
    return check_stream(r);
}

static int pick(struct run *r, int32_t *id) {
    kvasir_error err;
    if (!r->guide)
        *id = r->next;
    else if (kvasir_guide_pick(r->guide, r->sampler, r->logits, id, &err))
        return library_error(&COMMAND, &err);
    kvasir_sampler_accept(r->sampler, *id);
    return EXIT_GOOD;
}

static int add_token(struct run *r, int32_t id, bool *complete) {
    kvasir_error err;
    int code = keep_id(r, id);
    if (!code)
        code = show_token(r, id);
    if (!code && r->guide && kvasir_guide_add(r->guide, id, complete, &err))
        code = library_error(&COMMAND, &err);
    return code;
}

static int run_answer(struct run *r) {
    double start = clock_seconds();
    const kvasir_tokenizer *text = kvasir_model_tokenizer(r->model);
    bool complete = false;
    r->finish = r->at_limit;
    int code = EXIT_GOOD;
    while (!code && r->answer_n < r->limit) {
        int32_t id;
        code = pick(r, &id);
        if (code || interrupted() || (!r->a->ignore_eos && kvasir_token_is_end(text, id))) {
            r->finish = interrupted() ? FINISH_INTERRUPTED : FINISH_END;
            break;
        }
        code = add_token(r, id, &complete);
        if (r->stream.stopped || complete) {
            r->finish = r->stream.stopped ? FINISH_STOP : FINISH_END;
            break;
        }
        if (code || r->answer_n == r->limit)
            break;
        kvasir_error err;
        kvasir_eval_options last = kvasir_eval_defaults();
        if (evaluate(r, &id, 1, &last, &err))
            code = library_error(&COMMAND, &err);
        else
            r->steps++;
    }
    r->decode_seconds = clock_seconds() - start;
    return code;
}

/* Prints the rest that was held back, and a line end so that the shell's prompt starts on its own
 * line. */
static int end_text(struct run *r) {
    const char *text = "";
    size_t len = 0;
    kvasir_error err;
    if (r->detok && !r->stream.stopped && kvasir_detok_finish(r->detok, &text, &len, &err))
        return library_error(&COMMAND, &err);
    if (!r->stream.stopped && stream_push(&r->stream, text, len))
        stream_finish(&r->stream);
    if (r->stream.stopped)
        r->finish = FINISH_STOP;
    int code = check_stream(r);
    if (code || !r->stream.to)
        return code;
    if (r->stream.text.len > 0 && r->stream.text.data[r->stream.text.len - 1] != '\n')
        putchar('\n');
    return finish_output(&COMMAND);
}

/* ---- figures --------------------------------------------------------------------------------- */

/* A rotating cache holds fewer tokens than were evaluated: only those it holds are compared with 16
 * bits. */
static uint64_t tokens_held(const struct run *r) {
    kvasir_context_info info;
    kvasir_context_get_info(r->ctx, &info);
    uint32_t length = kvasir_seq_length(r->seq);
    return info.visible && info.visible < length ? info.visible : length;
}

/* Fewer than the prompt has if Ctrl-C interrupted it. */
static size_t prompt_evaluated(const struct run *r) {
    uint32_t length = kvasir_seq_length(r->seq) - r->cached;
    return length < r->prompt.n ? length : r->prompt.n;
}

static void print_summary(const struct run *r) {
    uint64_t used = kvasir_seq_bytes(r->seq), held = tokens_held(r);
    char bytes[24], bytes16[24], peak[24];
    size_t evaluated = prompt_evaluated(r);
    if (r->cached)
        fprintf(stderr, "\nfile:   %u tokens from %s", r->cached, r->a->prompt_cache);
    fprintf(stderr, "\nprompt: %zu tokens in %.2f s, %.1f tokens/s\n", evaluated, r->prompt_seconds,
            ratio((double)evaluated, r->prompt_seconds));
    fprintf(stderr, "answer: %zu tokens in %.2f s, %.1f tokens/s (ended by: %s)\n", r->answer_n,
            r->decode_seconds, ratio((double)r->steps, r->decode_seconds), FINISH_NAMES[r->finish]);
    uint64_t used16 = kvasir_seq_bytes_16bit(r->seq);
    fprintf(stderr, "cache:  %llu tokens in %s of pages; at 16 bits %s, %.2fx; peak memory %s\n",
            (unsigned long long)held, human_bytes((double)used, bytes),
            human_bytes((double)used16, bytes16), ratio((double)used16, (double)used),
            human_bytes((double)memory_resident_peak_bytes(), peak));
}

static int print_json(const struct run *r, const kvasir_context_info *info) {
    json_t *o = json_object();
    uint64_t used = kvasir_seq_bytes(r->seq), used16 = kvasir_seq_bytes_16bit(r->seq);
    json_t *text =
        r->detok ? json_stringn(r->stream.text.data ? r->stream.text.data : "", r->stream.text.len)
                 : NULL;
    json_object_set_new(o, "text", text ? text : json_null());
    put_ids(o, "ids", r->answer, r->answer_n);
    put_ids(o, "prompt_ids", r->prompt.ids, r->prompt.n);
    put_text(o, "finish", FINISH_NAMES[r->finish]);
    put_whole(o, "prompt_tokens", r->prompt.n);
    put_whole(o, "cached_tokens", r->cached);
    put_real(o, "prompt_seconds", r->prompt_seconds);
    put_real(o, "prompt_tokens_per_second", ratio((double)prompt_evaluated(r), r->prompt_seconds));
    put_whole(o, "decode_steps", r->steps);
    put_real(o, "decode_seconds", r->decode_seconds);
    put_real(o, "decode_tokens_per_second", ratio((double)r->steps, r->decode_seconds));
    put_whole(o, "cache_tokens", tokens_held(r));
    put_whole(o, "cache_bytes", used);
    put_whole(o, "cache_bytes_16bit", used16);
    put_real(o, "cache_ratio", ratio((double)used16, (double)used));
    put_whole(o, "memory_peak_bytes", memory_resident_peak_bytes());
    put_whole(o, "seed", r->sampling.options.seed);
    put_context_facts(o, info);
    return json_print(&COMMAND, o);
}

static int report(const struct run *r) {
    kvasir_context_info info;
    kvasir_context_get_info(r->ctx, &info);
    if (!r->a->quiet)
        print_summary(r);
    return r->a->json ? print_json(r, &info) : EXIT_GOOD;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int generate(struct run *r) {
    int code = prepare(r);
    if (!code)
        code = open_model(r);
    if (!code)
        code = open_context(r);
    if (code)
        return code;
    settle_limit(r);
    r->stream = (struct stream){.stop = r->stop, .to = r->a->json ? NULL : stdout};
    code = run_prompt(r);
    if (code)
        return model_unchanged(&COMMAND, r->model, code);
    if (interrupted())
        r->finish = FINISH_INTERRUPTED;
    else
        code = run_answer(r);
    /* After an error in the middle the text so far stays on standard output. */
    int end_code = r->stream.write_error ? code : end_text(r);
    code = code ? code : end_code;
    code = model_unchanged(&COMMAND, r->model, code);
    if (!code)
        code = report(r);
    return !code && r->finish == FINISH_INTERRUPTED ? EXIT_INTERRUPTED : code;
}

int generate_main(int argc, char **argv) {
    struct generate_args a = {.load = kvasir_model_defaults(),
                              .sampling = sampling_args_defaults(),
                              .cache = cache_args_defaults()};
    int code;
    if (!options_read(&COMMAND, argc, argv, &a, &code))
        return code;
    if (a.convert_cache && !a.prompt_cache)
        return usage_error(&COMMAND, "--convert-cache: only allowed with --prompt-cache");
    if (a.prompt.system && a.prompt_cache)
        return usage_error(&COMMAND, "--system: not allowed with --prompt-cache, whose file "
                                     "already holds the beginning of the prompt");
    a.prompt.part = a.prompt_cache ? PROMPT_TAIL : PROMPT_WHOLE;
    struct run r = {.a = &a};
    code = generate(&r);
    out_abandon(&r.logits_file);
    stream_free(&r.stream);
    free(r.answer);
    free(r.logits);
    kvasir_detok_destroy(r.detok);
    kvasir_stop_destroy(r.stop);
    kvasir_guide_destroy(r.guide);
    kvasir_grammar_destroy(r.grammar);
    sampling_free(&r.sampling);
    kvasir_sampler_destroy(r.sampler);
    kvasir_seq_destroy(r.seq);
    kvasir_context_destroy(r.ctx);
    kvasir_prompt_cache_close(r.cache);
    kvasir_model_close(r.model);
    prompt_free(&r.prompt);
    return code;
}
