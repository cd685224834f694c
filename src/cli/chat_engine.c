/* SPDX-License-Identifier: Apache-2.0 */
/* chat_engine.c: `kvasir chat -m MODEL`: a model in this process answers, through an engine, so
 * that a turn reuses the stored prefix of the chat so far.
 *
 *     this thread                                engine's thread
 *     messages -> ids, submitted             ->  events: text into `came`, figures
 *     `came` -> reasoning | text, shown      <-
 *     Ctrl-C -> kvasir_engine_cancel
 *
 * Which part of an answer is reasoning is decided as in the server (api/answer_syntax.h).
 */
#include "cli/chat_main.h"

#include <stdlib.h>
#include <string.h>

struct engine_source {
    const struct command *c;
    const struct chat_options *o;
    struct chat chat;
    struct sampling sampling;
    kvasir_model *model;
    kvasir_engine *engine;
    uint64_t turns;
    struct answer_options syntax; /* of its answers */
    int32_t *shown_tokens;        /* [n_shown_tokens]: those of reasoning */
    size_t n_shown_tokens;
    struct answer *answer; /* that is under way */
    int code;              /* exit code of showing it */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* one of these: */
    struct text_buf came;   /* text that is not shown yet */
    bool complete, no_memory;
    kvasir_event last; /* statistics and the end; its pointers are not used */
    kvasir_error error;
};

static void on_event(void *user, const kvasir_event *e) {
    struct engine_source *s = user;
    pthread_mutex_lock(&s->lock);
    bool text = e->kind == KVASIR_EVENT_TOKEN || e->kind == KVASIR_EVENT_DONE;
    if (text && !text_append(&s->came, e->text, e->len))
        s->no_memory = true;
    s->last = *e;
    if (e->kind == KVASIR_EVENT_DONE && e->finish == KVASIR_FINISH_ERROR)
        s->error = *e->error;
    s->complete = e->last;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* ---- reasoning and text ---------------------------------------------------------------------- */

/* Content or reasoning: tool calls occur only if tools are offered. */
static bool on_part(void *user, const struct answer_part *part) {
    struct engine_source *s = user;
    s->code = answer_put(s->c, s->answer, part->kind, part->text, part->len);
    return s->code == EXIT_GOOD;
}

/* What the parser returned, as an exit code. */
static int parsed(const struct engine_source *s, bool good) {
    return good ? EXIT_GOOD : s->code ? s->code : run_error(s->c, "out of memory for the answer");
}

/* ---- an answer ------------------------------------------------------------------------------- */

static kvasir_status encode(struct engine_source *s, json_t *messages, int32_t **ids, size_t *n,
                            kvasir_error *err) {
    const kvasir_tokenizer *t = kvasir_model_tokenizer(s->model);
    json_t *request = json_pack("{s:O}", "messages", messages);
    char *prompt, *authors;
    size_t len;
    kvasir_status status = chat_render(&s->chat, t, request, &prompt, &authors, &len, err);
    json_decref(request);
    if (status)
        return status;
    s->syntax.start = answer_start_of(&s->syntax.syntax, prompt, len);
    status = answer_tokenize_prompt(&s->syntax.syntax, t, prompt, len, authors, NULL, ids, n, err);
    kvasir_free(authors);
    kvasir_free(prompt);
    return status;
}

/* Each turn has its own seed, so that a repeated question gets another answer. */
static kvasir_status submit(struct engine_source *s, const int32_t *ids, size_t n, uint64_t *id,
                            kvasir_error *err) {
    kvasir_request request = kvasir_request_defaults();
    request.tokens = ids;
    request.n_tokens = n;
    request.shown_tokens = s->shown_tokens;
    request.n_shown_tokens = s->n_shown_tokens;
    request.max_tokens = s->o->max_tokens;
    request.shorten = true;
    request.sampling = s->sampling.options;
    request.sampling.seed += s->turns++;
    request.on_event = on_event;
    request.user = s;
    s->came.len = 0;
    s->complete = s->no_memory = false;
    return kvasir_engine_submit(s->engine, &request, id, err);
}

/* Shows what comes until the answer is complete, or cancels it. */
static int follow(struct engine_source *s, uint64_t id, struct answer_parser *parser) {
    int code = EXIT_GOOD;
    for (bool complete = false; !complete;) {
        pthread_mutex_lock(&s->lock);
        while (!s->came.len && !s->complete && !interrupted())
            wait_change(&s->changed, &s->lock);
        if (interrupted() && !s->came.len && !s->complete)
            wait_change(&s->changed, &s->lock); /* it was cancelled */
        struct text_buf came = s->came;
        s->came = (struct text_buf){0};
        complete = s->complete;
        if (s->no_memory && !code)
            code = run_error(s->c, "out of memory for the answer");
        pthread_mutex_unlock(&s->lock);
        if (!code)
            code = parsed(s, answer_parser_push(parser, came.data, came.len));
        text_free(&came);
        if (code || interrupted())
            kvasir_engine_cancel(s->engine, id);
    }
    return code ? code : parsed(s, answer_parser_finish(parser, false));
}

/* Answers ids, which it frees. */
static int answer_ids(struct engine_source *s, int32_t *ids, size_t n) {
    kvasir_error err;
    uint64_t id;
    struct answer_parser *parser = answer_parser_create(&s->syntax, on_part, s);
    int code = parser ? EXIT_GOOD : run_error(s->c, "out of memory for the answer");
    if (!code && submit(s, ids, n, &id, &err))
        code = library_error(s->c, &err);
    kvasir_free(ids);
    if (!code)
        code = follow(s, id, parser);
    answer_parser_destroy(parser);
    return code;
}

static int engine_answer(void *self, json_t *messages, struct answer *a) {
    struct engine_source *s = self;
    kvasir_error err;
    int32_t *ids;
    size_t n;
    s->answer = a;
    s->code = EXIT_GOOD;
    s->last = (kvasir_event){0};
    s->error = (kvasir_error){0};
    if (encode(s, messages, &ids, &n, &err))
        return library_error(s->c, &err);
    int code = answer_ids(s, ids, n);
    if (!code && s->error.code)
        code = library_error(s->c, &s->error);
    code = model_unchanged(s->c, s->model, code);
    a->cut = s->last.finish == KVASIR_FINISH_LENGTH;
    a->counted = s->last.last;
    a->prompt_tokens = s->last.prompt_tokens;
    a->cached_tokens = s->last.cached_tokens;
    a->tokens = s->last.completion_tokens;
    return code;
}

static void engine_print_stats(void *self) {
    struct engine_source *s = self;
    kvasir_engine_stats stats;
    kvasir_context_info info;
    char used[24], budget[24], stored[24];
    kvasir_engine_get_stats(s->engine, &stats);
    kvasir_engine_get_context(s->engine, &info);
    fprintf(stderr, "cache:  %s; %s of %s, %s of them stored prefixes\n", info.kv_format,
            human_bytes((double)stats.used_bytes, used),
            human_bytes((double)stats.budget_bytes, budget),
            human_bytes((double)stats.stored_bytes, stored));
}

/* ---- set-up ---------------------------------------------------------------------------------- */

static void engine_close(void *self) {
    struct engine_source *s = self;
    kvasir_engine_destroy(s->engine);
    kvasir_model_close(s->model);
    free(s->shown_tokens);
    sampling_free(&s->sampling);
    chat_free(&s->chat);
    text_free(&s->came);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static int open_model(struct engine_source *s) {
    kvasir_error err;
    kvasir_model_info model;
    kvasir_tokenizer_info info;
    const char *path = s->o->model;
    int code = model_resolve(s->c, &path);
    if (code)
        return code;
    if (kvasir_model_open_with(path, &s->o->load, &s->model, &err))
        return library_error(s->c, &err);
    kvasir_model_get_info(s->model, &model);
    if (!s->o->quiet)
        print_model_line(&model);
    kvasir_tokenizer *t = kvasir_model_tokenizer(s->model);
    code = chat_set_template(s->c, &s->chat, t);
    if (code)
        return code;
    kvasir_tokenizer_get_info(t, &info);
    if (!info.name)
        return usage_error(s->c, "-m: this model has no tokenizer to talk with");
    if (!info.has_chat_template)
        return usage_error(s->c, "-m: this model has no chat template; --chat-template names one");
    s->syntax.syntax = answer_syntax_of(t);
    if (!answer_shown_tokens(&s->syntax.syntax, false, t, &s->shown_tokens, &s->n_shown_tokens))
        return run_error(s->c, "out of memory");
    code = sampling_settle(s->c, s->o->sampling.generation_config, s->model, &s->sampling.options,
                           NULL);
    return code ? code : sampling_protect(s->c, t, &s->sampling);
}

static int open_engine(struct engine_source *s, kvasir_engine_options *options) {
    kvasir_error err;
    kvasir_context_info info;
    calibrate_unasked(&options->context, s->o->model, s->o->quiet);
    hold_interrupt(true);
    kvasir_status status = kvasir_engine_create(s->model, options, &s->engine, &err);
    hold_interrupt(false);
    if (status)
        return library_error(s->c, &err);
    kvasir_engine_get_context(s->engine, &info);
    if (!s->o->quiet) {
        print_context_facts(&info);
        print_stores_line(s->engine, options);
    }
    if (!s->o->quiet && s->sampling.options.temp > 0)
        fprintf(stderr, "seed:   %llu\n", (unsigned long long)s->sampling.options.seed);
    return EXIT_GOOD;
}

int chat_engine_open(const struct command *c, const struct chat_options *o,
                     struct chat_source *out) {
    struct engine_source *s = calloc(1, sizeof *s);
    kvasir_engine_options options;
    if (!s)
        return run_error(c, "out of memory");
    s->c = c;
    s->o = o;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    *out = (struct chat_source){s, engine_answer, engine_print_stats, engine_close};
    int code = engine_args_options(c, &o->engine, &options);
    if (!code)
        code = sampling_read(c, &o->sampling, &s->sampling);
    if (!code)
        code = chat_read(c, &o->chat, &s->chat);
    if (!code)
        code = open_model(s);
    return code ? code : open_engine(s, &options);
}
