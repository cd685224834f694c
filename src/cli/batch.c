/* SPDX-License-Identifier: Apache-2.0 */
/* batch.c: `kvasir batch`, a file of OpenAI requests to a file of results.
 *
 *     this thread                   engine's thread          writer
 *     lines -> jobs, submitted  ->  events into answers  ->  results, progress
 *                 ^                                             |
 *                 +---- room: the number of jobs is limited ----+
 *
 * All three share struct batch under one lock: a list of jobs in the order of the input. The writer
 * takes those that are complete: any, or (--order input) only the first.
 *
 * Invariants
 *   BATCH-1  A job is in the list from before it is submitted until the writer takes it, which it
 *            may do once the job is complete and submit has returned.
 *   BATCH-2  A failed request is a result like any other. An input that is not a batch (not JSON,
 *            no custom_id, a duplicate one) ends the run; a file is checked for that before
 *            anything is loaded.
 *   BATCH-3  Whatever ends the run, the file of results can be continued: cancelled requests are
 *            not in it, and with --order input nothing after the first of them.
 *
 * SIGINT is blocked in all other threads, so that it interrupts this one's wait for a line of
 * standard input.
 */
#include "cli.h"
#include "server/server.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct batch_args {
    kvasir_model_options load;
    const char *model, *in, *out, *order, *rerank_form, *generation_config, *seed;
    struct chat_args chat;
    kvasir_sampling sampling; /* of requests that do not say; its seed changes theirs */
    struct engine_args engine;
    uint32_t max_tokens;
    bool clamp_tokens, strict_fields, quiet;
};

/* clang-format off */
#define ROW(field) .offset = offsetof(struct batch_args, field)
static const struct option OPTIONS[] = {
    MODEL_OPTION(struct batch_args),
    LOAD_OPTIONS(struct batch_args, load),
    {.name = "--input", .alias = "-i", .value = "FILE", .kind = OPTION_TEXT, ROW(in),
     .required = true, .shown = "",
     .help = "requests, one JSON object per line; - is standard input"},
    {.name = "--out", .alias = "-o", .value = "FILE", .kind = OPTION_TEXT, ROW(out),
     .required = true, .shown = "",
     .help = "file for the results; if it exists, only requests without a result in it are run, "
             "and theirs are added"},
    {.name = "--order", .value = "ORDER", .kind = OPTION_TEXT, ROW(order), .initial = "finished",
     .help = "order of results: finished (that in which requests finish) or input (that of the "
             "input)"},
    {.name = "--max-tokens", .alias = "-n", .value = "N", .kind = OPTION_U32, ROW(max_tokens),
     .initial = "512", .max = UINT32_MAX,
     .help = "maximum tokens to generate for a request that sets no limit; 0: as many as fit"},
    {.name = "--clamp-max-tokens", .kind = OPTION_FLAG, ROW(clamp_tokens),
     .help = "shorten answers whose max_tokens does not fit the context, instead of failing the "
             "request"},
    {.name = "--strict-fields", .kind = OPTION_FLAG, ROW(strict_fields),
     .help = "fail requests with unknown fields, instead of naming them in the answer's "
             "\"warnings\""},
    DRAWING_OPTIONS(struct batch_args, sampling, NO_ALIAS),
    GENERATION_OPTION(struct batch_args, generation_config),
    {.name = "--seed", .value = "N", .kind = OPTION_TEXT, ROW(seed), .shown = "0",
     .help = "random seed of requests that bring none; each also draws by its custom_id"},
    RERANK_OPTION(struct batch_args, rerank_form),
    CHAT_OPTIONS(struct batch_args, chat),
    ENGINE_OPTIONS(struct batch_args, engine),
    {.name = "--quiet", .alias = "-q", .kind = OPTION_FLAG, ROW(quiet),
     .help = "print nothing but errors on standard error"},
};
/* clang-format on */

static const struct command COMMAND = {
    .name = "batch",
    .summary = "Answers a file of requests in OpenAI's batch format, many at the same time.",
    .usage = "-m MODEL -i REQUESTS -o RESULTS [flags]",
    .options = OPTIONS,
    .n_options = sizeof OPTIONS / sizeof *OPTIONS,
    .details = "To resume an interrupted run (Ctrl-C, exit code 130), run the same command again.\n"
               "Exit codes: 0 success, 1 a request or the run failed, 2 wrong usage.",
};

/* A prompt-cache file that requests start from. */
struct cache_file {
    struct cache_file *next;
    kvasir_prompt_cache *cache;
    size_t users; /* under the lock */
    char path[];
};

struct job {
    struct job *next;
    struct batch *batch;
    char *custom_id;
    const struct protocol *protocol; /* of its url; NULL: there is none */
    struct cache_file *cache;        /* NULL: none */
    struct api_request request;      /* until the answer is written */
    struct api_answer answer;
    struct api_error error;   /* status 0: none */
    bool submitted, complete; /* under the lock */
};

struct batch {
    const struct batch_args *a;
    struct chat chat;
    kvasir_engine_options options;
    struct api_setup setup;
    struct answer_syntax syntax; /* of the model's answers */
    struct grammar_cache *grammars;
    kvasir_model *model;
    kvasir_engine *engine;
    struct line_reader in;
    json_t *seen;   /* object: custom_id -> line */
    size_t to_do;   /* requests that were counted in the input; 0: not known */
    size_t skipped; /* finished before */
    struct cache_file *files;
    char name[MODEL_NAME_BYTES]; /* of the model, in results */
    enum rerank_form rerank;

    pthread_t writer;
    bool writing; /* the writer was started */
    pthread_mutex_t lock;
    pthread_cond_t
        changed; /* signalled for an answer, room in the engine's queue or in the list, the end */
    /* under the lock */
    struct results results;
    struct job *first, **last;
    size_t jobs, done, failed;
    struct progress progress;
    bool closing;   /* the writer ends when nothing is left to write */
    int write_code; /* of the writer, which has ended then */
};

static int no_memory(void) {
    return run_error(&COMMAND, "out of memory");
}

/* ---- prompt-cache files ---------------------------------------------------------------------- */

/* Unused files stay open for later requests until another one is opened. */
static void close_unused(struct batch *b) {
    pthread_mutex_lock(&b->lock);
    for (struct cache_file **at = &b->files; *at;) {
        struct cache_file *f = *at;
        if (f->users) {
            at = &f->next;
            continue;
        }
        *at = f->next;
        kvasir_prompt_cache_close(f->cache);
        free(f);
    }
    pthread_mutex_unlock(&b->lock);
}

static struct cache_file *open_file(struct batch *b, const char *path, kvasir_error *err) {
    struct cache_file *f = malloc(sizeof *f + strlen(path) + 1);
    if (!f) {
        *err = (kvasir_error){.code = KVASIR_ERR_MEMORY, .offset = -1, .text = "out of memory"};
        return NULL;
    }
    *f = (struct cache_file){.next = b->files};
    memcpy(f->path, path, strlen(path) + 1);
    if (kvasir_prompt_cache_open(b->model, path, &f->cache, err)) {
        free(f);
        return NULL;
    }
    b->files = f;
    if (!b->a->quiet) {
        kvasir_context_info info;
        kvasir_engine_get_context(b->engine, &info);
        warn_prompt_cache(f->cache, path, &info);
    }
    return f;
}

/* The job's file, opened unless another request has it open. */
static void use_file(struct batch *b, struct job *j) {
    kvasir_error err;
    struct cache_file *f = b->files;
    while (f && strcmp(f->path, j->request.prompt_cache) != 0)
        f = f->next;
    if (!f) {
        close_unused(b);
        f = open_file(b, j->request.prompt_cache, &err);
    }
    if (!f) {
        api_error_of(&j->error, &err);
        if (err.code != KVASIR_ERR_MEMORY)
            j->error.status = HTTP_BAD_REQUEST; /* the file that it names does not exist */
        snprintf(j->error.param, sizeof j->error.param, "prompt_cache");
        return;
    }
    pthread_mutex_lock(&b->lock);
    f->users++;
    pthread_mutex_unlock(&b->lock);
    j->cache = f;
    j->request.engine.prompt_cache = f->cache;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static struct job *job_create(struct batch *b, const char *custom_id) {
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;
    j->batch = b;
    j->custom_id = strdup(custom_id);
    if (!j->custom_id) {
        free(j);
        return NULL;
    }
    return j;
}

/* Under the lock, or when only one thread is left. */
static void job_free(struct job *j) {
    if (j->cache)
        j->cache->users--;
    api_answer_free(&j->answer); /* looks at the request */
    api_request_free(&j->request);
    free(j->custom_id);
    free(j);
}

static void on_event(void *user, const kvasir_event *e) {
    struct job *j = user;
    struct batch *b = j->batch;
    api_answer_event(&j->answer, e);
    if (e->kind != KVASIR_EVENT_START && !e->last)
        return;
    pthread_mutex_lock(&b->lock);
    j->complete = e->last;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

/* ---- the writer ------------------------------------------------------------------------------ */

/* {"status_code", "request_id", "body"} */
static json_t *response_of(const struct batch *b, struct job *j) {
    uint64_t hash = hash_fnv1a(j->custom_id, strlen(j->custom_id));
    char id[64], request_id[32];
    snprintf(request_id, sizeof request_id, "req_%016llx", (unsigned long long)hash);
    const struct protocol_context context = {
        .setup = &b->setup, .request = &j->request, .id = id, .created = (int64_t)time(NULL)};
    json_t *body = NULL;
    if (!j->error.status) {
        snprintf(id, sizeof id, "%s%016llx", j->protocol->id_prefix, (unsigned long long)hash);
        body = j->protocol->body(&j->answer, &context, &j->error);
    }
    int status = body ? 200 : j->error.status;
    if (!body)
        body = openai_error_json(&j->error);
    return json_pack("{s:i, s:s, s:o}", "status_code", status, "request_id", request_id, "body",
                     body);
}

static int write_result(struct batch *b, struct job *j) {
    char id[48];
    snprintf(id, sizeof id, RESULT_ID "%016llx",
             (unsigned long long)hash_fnv1a(j->custom_id, strlen(j->custom_id)));
    json_t *line = json_pack("{s:s, s:s, s:o, s:n}", "id", id, "custom_id", j->custom_id,
                             "response", response_of(b, j), "error");
    return line ? results_write(&COMMAND, &b->results, line) : no_memory();
}

/* Removes the next job to be written from the list; NULL: none is ready. A cancelled job is
 * dropped; with --order input it stays in front of all others. */
static struct job *take_ready(struct batch *b) {
    bool in_order = strcmp(b->a->order, "input") == 0;
    for (struct job **at = &b->first; *at; at = &(*at)->next) {
        struct job *j = *at;
        if (j->complete && j->submitted && !j->answer.cancelled) {
            *at = j->next;
            if (b->last == &j->next)
                b->last = at;
            return j;
        }
        if (in_order)
            break;
    }
    return NULL;
}

static void *write_results(void *user) {
    struct batch *b = user;
    pthread_mutex_lock(&b->lock);
    while (!b->write_code) {
        struct job *j = take_ready(b);
        if (!j && b->closing)
            break;
        if (!j) {
            wait_change(&b->changed, &b->lock);
        } else {
            pthread_mutex_unlock(&b->lock);
            int code = write_result(b, j);
            pthread_mutex_lock(&b->lock);
            b->write_code = code;
            b->done += !code;
            b->failed += !code && j->error.status;
            b->jobs--;
            job_free(j);
            pthread_cond_broadcast(&b->changed);
        }
        const size_t done = b->done;
        pthread_mutex_unlock(&b->lock); /* the engine's thread takes it */
        progress_step(&b->progress, done);
        pthread_mutex_lock(&b->lock);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* ---- requests -------------------------------------------------------------------------------- */

static bool stop_wanted(const struct batch *b) {
    return interrupted() || b->write_code;
}

/* Adds to the list once it has room: it holds as many as the engine, running and waiting. False:
 * the run has to end. */
static bool enlist(struct batch *b, struct job *j) {
    const size_t room = (size_t)b->options.max_running + b->options.max_waiting;
    pthread_mutex_lock(&b->lock);
    while (b->jobs >= room && !stop_wanted(b))
        wait_change(&b->changed, &b->lock);
    bool good = !stop_wanted(b);
    if (good) {
        *b->last = j;
        b->last = &j->next;
        b->jobs++;
    }
    pthread_mutex_unlock(&b->lock);
    return good;
}

/* A line of the input. */
struct line {
    json_t *members;  /* object: all that is needed but the body */
    const char *body; /* [body_len], of the line: an object, or an empty array if it is none */
    size_t body_len;
    uint64_t tree_bytes;
    bool object; /* the line is one */
};

/* Hands a listed job to the engine. */
static void submit(struct batch *b, struct job *j) {
    struct api_error err;
    kvasir_status status = KVASIR_OK;
    bool stopped = false;
    while (!j->error.status && !stopped) {
        status = api_submit(b->engine, &j->request, on_event, j, NULL, &err);
        if (status != KVASIR_ERR_BUSY)
            break;
        pthread_mutex_lock(&b->lock);
        wait_change(&b->changed, &b->lock);
        stopped = stop_wanted(b);
        pthread_mutex_unlock(&b->lock);
    }
    pthread_mutex_lock(&b->lock);
    if (stopped)
        j->answer.cancelled = j->complete = true;
    else if (status)
        j->error = err;
    j->complete |= j->error.status != 0;
    j->submitted = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static void refuse(struct job *j, const char *param, const char *text) {
    j->error = (struct api_error){.status = HTTP_BAD_REQUEST};
    snprintf(j->error.param, sizeof j->error.param, "%s", param);
    snprintf(j->error.text, sizeof j->error.text, "%s: %s", param, text);
}

/* NULL: requests to this path cannot be in a batch. */
static const struct protocol *protocol_of(const char *url) {
    static const struct {
        const char *url;
        const struct protocol *protocol;
    } ALL[] = {{"/v1/chat/completions", &PROTOCOL_CHAT},
               {"/v1/completions", &PROTOCOL_COMPLETIONS},
               {"/v1/embeddings", &PROTOCOL_EMBEDDINGS},
               {"/v1/rerank", &PROTOCOL_RERANK}};
    for (size_t i = 0; url && i < sizeof ALL / sizeof *ALL; i++)
        if (strcmp(url, ALL[i].url) == 0)
            return ALL[i].protocol;
    return NULL;
}

/* Reads the line's request into the job, or what is wrong with it. */
static void read_request(struct batch *b, struct job *j, const struct line *line) {
    const char *method = json_string_value(json_object_get(line->members, "method"));
    const char *url = json_string_value(json_object_get(line->members, "url"));
    struct api_setup setup = b->setup;
    struct api_body body;
    j->protocol = protocol_of(url);
    /* A request without a seed gets one of its own, which is the same in every run. */
    setup.sampling.seed += hash_fnv1a(j->custom_id, strlen(j->custom_id));
    if (!method || strcmp(method, "POST") != 0)
        refuse(j, "method", "is not \"POST\"");
    else if (!j->protocol)
        refuse(j, "url",
               "is none of \"/v1/chat/completions\", \"/v1/completions\", \"/v1/embeddings\" and "
               "\"/v1/rerank\"");
    else if (!api_body_read(line->body, line->body_len, setup.vocab, j->protocol->wants, &body,
                            &j->error))
        return;
    else if (!j->protocol->read(&setup, &body, &j->request, &j->error))
        api_body_free(&body);
    else if (api_body_free(&body), !api_answer_init(&j->answer, &j->request))
        api_error_of(
            &j->error,
            &(kvasir_error){.code = KVASIR_ERR_MEMORY, .offset = -1, .text = "out of memory"});
    else if (j->request.prompt_cache)
        use_file(b, j);
}

static int run_request(struct batch *b, const char *custom_id, const struct line *line) {
    struct job *j = job_create(b, custom_id);
    if (!j)
        return no_memory();
    read_request(b, j, line);
    if (enlist(b, j)) {
        submit(b, j);
        return EXIT_GOOD;
    }
    pthread_mutex_lock(&b->lock);
    job_free(j);
    pthread_mutex_unlock(&b->lock);
    return EXIT_GOOD;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* The line's custom_id; EXIT_RUN with a message if it has none or another line has the same. */
static int take_id(struct batch *b, const json_t *line, const char **custom_id) {
    const json_t *id = json_object_get(line, "custom_id");
    *custom_id = json_string_value(id);
    if (!*custom_id || !**custom_id || strlen(*custom_id) != json_string_length(id))
        return run_error(&COMMAND, "-i: %s: line %zu: \"custom_id\" is %s", b->in.name,
                         b->in.number,
                         !id                  ? "missing"
                         : json_is_string(id) ? "empty or holds a NUL character"
                                              : "not a string");
    json_int_t before = json_integer_value(json_object_get(b->seen, *custom_id));
    if (before && (size_t)before != b->in.number)
        return run_error(&COMMAND, "-i: %s: line %zu: custom_id \"%.100s\" is that of line %lld",
                         b->in.name, b->in.number, *custom_id, (long long)before);
    if (!before &&
        json_object_set_new(b->seen, *custom_id, json_integer((json_int_t)b->in.number)) != 0)
        return no_memory();
    return EXIT_GOOD;
}

static kvasir_status take_member(void *user, const struct json_part *m, kvasir_error *err) {
    static const char *const NAMES[] = {"custom_id", "method", "url"};
    struct line *line = user;
    line->object = m->name != NULL;
    if (line->object && json_name_is(m->name, m->name_len, "body")) {
        line->body = m->value;
        line->body_len = m->value_len;
    }
    for (size_t i = 0; line->object && i < sizeof NAMES / sizeof *NAMES; i++) {
        json_t *value;
        if (!json_name_is(m->name, m->name_len, NAMES[i]))
            continue;
        TRY(json_load_part(m, m->value_len, &line->tree_bytes, &value, err));
        if (json_object_set_new(line->members, NAMES[i], value) != 0)
            return fail(err, KVASIR_ERR_MEMORY, "out of memory");
    }
    return KVASIR_OK;
}

static int read_line(struct batch *b, struct line *line, const char **custom_id) {
    static const char NO_OBJECT[] = "[]";
    kvasir_error why;
    *line = (struct line){.members = json_object(), .body = NO_OBJECT, .body_len = 2};
    if (!line->members)
        return no_memory();
    const bool read = json_walk(b->in.line, b->in.len, take_member, line, &why) == KVASIR_OK;
    if (!read || !line->object)
        return run_error(&COMMAND, "-i: %s: line %zu (at byte %llu): %s", b->in.name, b->in.number,
                         (unsigned long long)b->in.byte, read ? "is not a JSON object" : why.text);
    if (*line->body != '{') {
        line->body = NO_OBJECT;
        line->body_len = 2;
    }
    return take_id(b, line->members, custom_id);
}

/* Goes through the input: only checks it, or runs what is not finished. */
static int each_line(struct batch *b, bool run) {
    int code;
    while (!(code = line_next(&COMMAND, &b->in)) && b->in.line) {
        if (line_is_blank(b->in.line, b->in.len))
            continue;
        struct line line;
        const char *custom_id;
        code = read_line(b, &line, &custom_id);
        bool finished = !code && results_has(&b->results, custom_id);
        if (!code && !finished && run)
            code = run_request(b, custom_id, &line);
        b->skipped += finished && run;
        b->to_do += !code && !finished && !run;
        json_decref(line.members);
        if (code || interrupted())
            break;
        pthread_mutex_lock(&b->lock);
        bool stop = stop_wanted(b);
        pthread_mutex_unlock(&b->lock);
        if (stop)
            break;
    }
    return code;
}

/* Returns to the start of the input; its name stays. */
static int rewind_input(struct batch *b) {
    int fd = b->in.fd;
    const char *name = b->in.name;
    line_reader_free(&b->in);
    b->in.fd = fd;
    b->in.name = name;
    if (lseek(fd, 0, SEEK_SET) != 0)
        return run_error(&COMMAND, "-i: %s: %s", name, strerror(errno));
    return EXIT_GOOD;
}

/* Opens the files and checks the input if it is a file. *nothing: all requests are finished. */
static int open_files(struct batch *b, bool *nothing) {
    struct stat st;
    const char *path = b->a->in;
    kvasir_error err;
    bool standard = strcmp(path, "-") == 0;
    b->in.name = standard ? "standard input" : path;
    b->in.fd = STDIN_FILENO;
    if (!standard && stat(path, &st) == 0 && S_ISFIFO(st.st_mode))
        b->in.fd = open(path, O_RDONLY | O_CLOEXEC); /* requests that come in: waits for a writer */
    else if (!standard && file_open_input(path, &b->in.fd, &err))
        return run_error(&COMMAND, "-i: %s", err.text);
    if (b->in.fd < 0 || fstat(b->in.fd, &st) != 0)
        return run_error(&COMMAND, "-i: %s: %s", path, strerror(errno));
    b->seen = json_object();
    if (!b->seen)
        return no_memory();
    int code = results_open(&COMMAND, &b->results, b->a->out);
    if (!code && b->results.cut && !b->a->quiet)
        fprintf(stderr, "note:   %s: its last line was torn, it is run again\n", b->a->out);
    if (code || !S_ISREG(st.st_mode) || standard)
        return code;
    code = each_line(b, false);
    *nothing = !code && !interrupted() && b->to_do == 0;
    if (*nothing)
        b->skipped = json_object_size(b->seen);
    return code ? code : rewind_input(b);
}

/* ---- model and engine ------------------------------------------------------------------------ */

static int open_model(struct batch *b) {
    kvasir_error err;
    kvasir_model_info info;
    kvasir_sampling sampling = b->a->sampling;
    bool recommended;
    if (kvasir_model_open_with(b->a->model, &b->a->load, &b->model, &err))
        return library_error(&COMMAND, &err);
    kvasir_model_get_info(b->model, &info);
    kvasir_tokenizer *text = kvasir_model_tokenizer(b->model);
    int code = chat_set_template(&COMMAND, &b->chat, text);
    if (!code)
        code =
            sampling_settle(&COMMAND, b->a->generation_config, b->model, &sampling, &recommended);
    if (code)
        return code;
    if (!b->a->quiet) {
        print_model_line(&info);
        print_sampling_line(&sampling, recommended);
    }
    b->syntax = answer_syntax_of(text);
    model_base_name(b->a->model, b->name);
    b->grammars = grammar_cache_create(0, 0);
    if (!b->grammars)
        return no_memory();
    b->setup = (struct api_setup){.tokenizer = text,
                                  .syntax = &b->syntax,
                                  .variables = b->chat.kwargs,
                                  .all_control = b->chat.all_control,
                                  .model = b->name,
                                  .vocab = info.vocab,
                                  .max_choices = b->options.max_running,
                                  .max_prompts = API_PROMPTS_MAX,
                                  .max_tokens = b->a->max_tokens,
                                  .sampling = sampling,
                                  .grammars = b->grammars,
                                  .width = info.dim,
                                  .pooling = kvasir_model_pooling(b->model),
                                  .rerank = b->rerank,
                                  .clamp_tokens = b->a->clamp_tokens,
                                  .strict_fields = b->a->strict_fields,
                                  .prompt_cache = true};
    return EXIT_GOOD;
}

/* Starts the engine and the writer, whose threads must not get SIGINT. */
static int start(struct batch *b) {
    kvasir_error err;
    calibrate_unasked(&b->options.context, b->a->model, b->a->quiet);
    hold_interrupt(true);
    int code = EXIT_GOOD;
    if (kvasir_engine_create(b->model, &b->options, &b->engine, &err))
        code = library_error(&COMMAND, &err);
    if (!code) {
        kvasir_context_info info;
        kvasir_engine_get_context(b->engine, &info);
        if (!b->a->quiet) {
            print_context_facts(&info);
            print_stores_line(b->engine, &b->options);
        }
        progress_start(&b->progress, b->a->quiet ? NULL : "batch", b->to_do, "requests");
        b->writing = pthread_create(&b->writer, NULL, write_results, b) == 0;
        if (!b->writing)
            code = run_error(&COMMAND, "cannot start a thread");
    }
    hold_interrupt(false);
    return code;
}

/* Waits until everything is written or the run has to end. */
static void wait_written(struct batch *b) {
    pthread_mutex_lock(&b->lock);
    while (b->jobs > 0 && !stop_wanted(b))
        wait_change(&b->changed, &b->lock);
    pthread_mutex_unlock(&b->lock);
}

/* Ends the engine, which delivers its last events first, and then the writer. */
static void stop(struct batch *b) {
    kvasir_engine_destroy(b->engine);
    b->engine = NULL;
    if (b->writing) {
        pthread_mutex_lock(&b->lock);
        b->closing = true;
        pthread_cond_broadcast(&b->changed);
        pthread_mutex_unlock(&b->lock);
        pthread_join(b->writer, NULL);
        progress_end(&b->progress);
    }
    b->writing = false;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void print_summary(const struct batch *b, const kvasir_engine_stats *s, double seconds) {
    char peak[24], budget[24];
    fprintf(stderr, "batch:  %zu requests in %.2f s, %zu failed", b->done, seconds, b->failed);
    fprintf(stderr, b->skipped ? ", %zu finished before\n" : "\n", b->skipped);
    fprintf(stderr, "prompt: %llu tokens, %llu of them from the cache\n",
            (unsigned long long)s->prompt_tokens, (unsigned long long)s->cached_tokens);
    fprintf(stderr, "answer: %llu tokens, %.1f tokens/s\n", (unsigned long long)s->generated_tokens,
            ratio((double)s->generated_tokens, seconds));
    fprintf(stderr, "cache:  at most %s of %s; preempted %llu times\n",
            human_bytes((double)s->peak_bytes, peak), human_bytes((double)s->budget_bytes, budget),
            (unsigned long long)s->preemptions);
}

static int run_batch(struct batch *b) {
    bool nothing = false;
    int code = engine_args_options(&COMMAND, &b->a->engine, &b->options);
    if (!code)
        code = chat_read(&COMMAND, &b->a->chat, &b->chat);
    catch_interrupt();
    if (!code)
        code = open_files(b, &nothing);
    if (nothing && !b->a->quiet)
        fprintf(stderr, "batch:  all %zu requests were finished before\n", b->skipped);
    if (code || nothing || interrupted())
        return code;
    code = open_model(b);
    if (!code)
        code = start(b);
    if (code)
        return code;
    double begin = clock_seconds();
    code = each_line(b, true);
    if (code == EXIT_INTERRUPTED)
        code = EXIT_GOOD; /* batch_main reports it after the summary */
    if (!code)
        wait_written(b);
    kvasir_engine_stats stats;
    kvasir_engine_get_stats(b->engine, &stats);
    stop(b);
    code = model_unchanged(&COMMAND, b->model, code ? code : b->write_code);
    if (!code && !b->a->quiet)
        print_summary(b, &stats, clock_seconds() - begin);
    if (!code && b->failed && !interrupted())
        code = run_error(&COMMAND, "%zu of %zu requests failed: the results say why", b->failed,
                         b->done);
    return code;
}

int batch_main(int argc, char **argv) {
    struct batch_args a = {.load = kvasir_model_defaults(),
                           .sampling = sampling_unset(),
                           .engine = engine_args_defaults()};
    int code;
    if (!options_read(&COMMAND, argc, argv, &a, &code))
        return code;
    a.sampling.seed = 0;
    if (a.seed)
        code = sampling_seed(&COMMAND, a.seed, &a.sampling.seed);
    if (code)
        return code;
    if (strcmp(a.order, "input") != 0 && strcmp(a.order, "finished") != 0)
        return usage_error(&COMMAND, "--order: \"%.40s\" is neither input nor finished", a.order);
    enum rerank_form rerank;
    code = rerank_form_read(&COMMAND, a.rerank_form, a.model, &rerank);
    if (code)
        return code;
    struct batch b = {.a = &a,
                      .rerank = rerank,
                      .in.fd = -1,
                      .last = &b.first,
                      .lock = PTHREAD_MUTEX_INITIALIZER,
                      .changed = PTHREAD_COND_INITIALIZER};
    code = run_batch(&b);
    stop(&b);
    int closed = results_close(&COMMAND, &b.results);
    code = code ? code : closed;
    while (b.first) {
        struct job *j = b.first;
        b.first = j->next;
        job_free(j);
    }
    close_unused(&b);
    grammar_cache_destroy(b.grammars);
    kvasir_model_close(b.model);
    chat_free(&b.chat);
    json_decref(b.seen);
    if (b.in.fd > STDIN_FILENO)
        close(b.in.fd);
    line_reader_free(&b.in);
    return !code && interrupted() ? EXIT_INTERRUPTED : code;
}
