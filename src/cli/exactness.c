/* SPDX-License-Identifier: Apache-2.0 */
/* exactness.c: `kvasir exactness`: does a server give the same answer to the same request, whatever
 * it has cached and whoever else is served?
 *
 * Each prompt is answered in every case below, greedy, with log-probabilities. The first case is
 * the reference. Two answers are the same if each token and each log-probability is, as the server
 * prints it. Prompts are made of random sentences, so that no two share more than the chat
 * template, and those of a run are unlike those of any other: the first request of one is cold.
 *
 *     cold      first request for the prompt, alone
 *     warm      again: the prompt is cached
 *     batched   again, together with strangers
 *     evicted   again, after a flood of other prompts, to which the cache gave way if it is small
 *     fresh     --start: after a restart, alone
 *     crowd     --start: after a restart, cold, together with strangers
 *     prefix    --start: after a restart, when its first half is cached already
 *     restored  --start: after a restart at which nothing was deleted, as restored from a disk
 */
#include "cli/exactness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct exactness_args {
    const char *url, *api_key, *model, *start, *api, *seed;
    uint32_t prompts, words, max_tokens, strangers, flood;
    float start_seconds, request_seconds;
    bool json, quiet;
};

/* clang-format off */
#define ROW(field) .offset = offsetof(struct exactness_args, field)
static const struct option OPTIONS[] = {
    {.name = "--url", .value = "URL", .kind = OPTION_TEXT, ROW(url), .required = true,
     .help = "the server, which speaks OpenAI's API: http://127.0.0.1:8080"},
    {.name = "--api-key", .value = "KEY", .kind = OPTION_TEXT, ROW(api_key), .help = "its key"},
    {.name = "--model", .alias = "-m", .value = "NAME", .kind = OPTION_TEXT, ROW(model),
     .shown = "the first that it lists", .help = "the model's name there"},
    {.name = "--start", .value = "COMMAND", .kind = OPTION_TEXT, ROW(start),
     .help = "a shell command that starts the server; it is started anew between cases"},
    {.name = "--api", .value = "API", .kind = OPTION_TEXT, ROW(api), .initial = "chat",
     .help = "chat or completions"},
    {.name = "--prompts", .value = "N", .kind = OPTION_U32, ROW(prompts), .initial = "4", .min = 1,
     .max = 64, .help = "number of prompts"},
    {.name = "--words", .value = "N", .kind = OPTION_U32, ROW(words), .initial = "400", .min = 8,
     .max = 1000000, .help = "words of a prompt"},
    {.name = "--max-tokens", .alias = "-n", .value = "N", .kind = OPTION_U32, ROW(max_tokens),
     .initial = "64", .min = 1, .max = EXACT_TOKENS_MAX, .help = "length of an answer"},
    {.name = "--strangers", .value = "N", .kind = OPTION_U32, ROW(strangers), .initial = "7",
     .max = 256, .help = "other requests at the same time, where a case has them"},
    {.name = "--flood", .value = "N", .kind = OPTION_U32, ROW(flood), .initial = "32",
     .max = 100000, .help = "other prompts before the case evicted; 0: leave it out"},
    {.name = "--start-seconds", .value = "S", .kind = OPTION_FLOAT, ROW(start_seconds),
     .initial = "300", .min = 1, .max = 86400, .help = "how long the server may take to start"},
    {.name = "--request-seconds", .value = "S", .kind = OPTION_FLOAT, ROW(request_seconds),
     .initial = "600", .min = 1, .max = 86400, .help = "how long an answer may take"},
    {.name = "--seed", .value = "N", .kind = OPTION_TEXT, ROW(seed), .shown = "random, printed",
     .help = "of the prompts; the same seed asks the same"},
    {.name = "--json", .kind = OPTION_FLAG, ROW(json), .help = "print one JSON object"},
    {.name = "--quiet", .alias = "-q", .kind = OPTION_FLAG, ROW(quiet),
     .help = "print nothing but errors on standard error"},
};
/* clang-format on */

static const struct command COMMAND = {
    .name = "exactness",
    .summary = "Says whether a server's answers depend on its cache and on other requests.",
    .usage = "--url URL [--start COMMAND] [flags]",
    .options = OPTIONS,
    .n_options = sizeof OPTIONS / sizeof *OPTIONS,
    .details = "Exit codes: 0 all answers are the same, 1 the server failed, 2 wrong usage, 3 some "
               "answers differ.",
};
enum { EXIT_DIFFERENT = 3 };

/* ---- prompts --------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
    return mix_bits(*state += 0x9e3779b97f4a7c15u);
}

/* Sentences of random words; NULL: out of memory. */
static char *make_prompt(uint64_t seed, uint32_t words) {
    static const char *const WORDS[] = {
        "the",  "river",  "a",      "letter", "old",   "garden", "walks",  "toward",
        "city", "seven",  "stones", "under",  "light", "quiet",  "house",  "opens",
        "road", "winter", "blue",   "bird",   "reads", "every",  "bridge", "and",
        "slow", "engine", "table",  "green",  "paper", "near",   "market", "song"};
    struct text_buf out = {0};
    bool good = true;
    for (uint32_t i = 0; i < words && good; i++) {
        const char *word = WORDS[next_random(&seed) % (sizeof WORDS / sizeof *WORDS)];
        const bool end = i % 11 == 10 || i + 1 == words;
        good = text_printf(&out, "%s%s", word, end ? ". " : " ");
    }
    good = good && text_puts(&out, "Go on with this text.");
    if (good)
        return out.data;
    text_free(&out);
    return NULL;
}

/* ---- a run ----------------------------------------------------------------------------------- */

enum { PROMPTS_MAX = 64, CASES_MAX = 8 };

/* Where an answer first differs from the reference. */
struct difference {
    bool some;
    uint32_t prompt, token;
    struct exact_token want, got;
    bool ended; /* one of them has no such token */
};
struct result {
    const char *name;
    uint32_t same;
    double largest; /* change of a log-probability before the first other token, over all prompts */
    int64_t cached; /* tokens of the prompts that the server says were cached; -1: it does not */
    struct difference first;
};
struct run {
    const struct exactness_args *a;
    struct exact_server server;
    uint64_t seed;
    struct exact_answer reference[PROMPTS_MAX];
    struct result results[CASES_MAX];
    size_t n_results;
    bool no_logprobs;
};

/* Prompts of the run, of strangers and of floods. */
static uint64_t seed_of(const struct run *r, uint64_t kind, uint64_t i) {
    uint64_t state = r->seed ^ (kind << 56) ^ (i * 0x9e3779b97f4a7c15u);
    return next_random(&state);
}

static void note_difference(struct result *out, uint32_t prompt, uint32_t token,
                            const struct exact_answer *want, const struct exact_answer *got) {
    if (out->first.some)
        return;
    out->first = (struct difference){.some = true, .prompt = prompt, .token = token};
    out->first.ended = token >= want->n || token >= got->n;
    if (token < want->n)
        out->first.want = want->tokens[token];
    if (token < got->n)
        out->first.got = got->tokens[token];
}

/* Whether two answers are the same; notes the first place where they are not. */
static bool compare(struct result *out, uint32_t prompt, const struct exact_answer *want,
                    const struct exact_answer *got) {
    bool same = true;
    uint32_t i = 0;
    for (; i < want->n && i < got->n; i++) {
        const struct exact_token *w = &want->tokens[i], *g = &got->tokens[i];
        if (w->logprob != g->logprob || strcmp(w->text, g->text) != 0) {
            note_difference(out, prompt, i, want, got);
            same = false;
        }
        if (strcmp(w->text, g->text) != 0)
            break;
        out->largest = fmax(out->largest, fabs(w->logprob - g->logprob));
    }
    if (same && (want->n != got->n || strcmp(want->text, got->text) != 0 ||
                 strcmp(want->finish, got->finish) != 0)) {
        note_difference(out, prompt, i, want, got);
        same = false;
    }
    return same;
}

/* Asks for the prompt, together with so many strangers, after them if `later`. */
static int ask(struct run *r, uint32_t prompt, uint32_t strangers, uint64_t kind,
               struct exact_answer *out) {
    const size_t n = (size_t)strangers + 1;
    char **prompts = calloc(n, sizeof *prompts);
    struct exact_answer *answers = calloc(n, sizeof *answers);
    bool memory = prompts && answers;
    for (size_t i = 0; memory && i < n; i++) {
        const uint32_t words = i == strangers ? r->a->words : r->a->words / 2 + 8 * (uint32_t)i;
        const uint64_t seed =
            i == strangers ? seed_of(r, 0, prompt) : seed_of(r, kind, prompt * (uint64_t)1000 + i);
        prompts[i] = make_prompt(seed, words);
        memory = prompts[i] != NULL;
    }
    int code = memory ? exact_ask(&r->server, (const char *const *)prompts, n, answers)
                      : run_error(&COMMAND, "out of memory");
    if (!code) {
        *out = answers[strangers];
        answers[strangers] = (struct exact_answer){0};
    }
    for (size_t i = 0; i < n; i++) {
        if (prompts)
            mem_free(prompts[i]);
        if (answers)
            exact_answer_free(&answers[i]);
    }
    free(prompts);
    free(answers);
    return code;
}

/* Other prompts, as long as ours, a few at a time. */
static int flood(struct run *r) {
    int code = EXIT_GOOD;
    const uint32_t max_tokens = r->server.max_tokens;
    r->server.max_tokens = 1;
    for (uint32_t i = 0; i < r->a->flood && !code; i++) {
        char *prompt = make_prompt(seed_of(r, 1, i), r->a->words);
        struct exact_answer answer = {0};
        code = prompt ? exact_ask(&r->server, (const char *const *)&prompt, 1, &answer)
                      : run_error(&COMMAND, "out of memory");
        exact_answer_free(&answer);
        mem_free(prompt);
    }
    r->server.max_tokens = max_tokens;
    return code;
}

/* The first half of a prompt, as a text of its own that ends there. */
static int ask_half(struct run *r, uint32_t prompt) {
    struct exact_answer answer = {0};
    char *text = make_prompt(seed_of(r, 0, prompt), r->a->words);
    if (!text)
        return run_error(&COMMAND, "out of memory");
    size_t half = strlen(text) / 2;
    while (half && text[half] != ' ')
        half--;
    text[half] = 0;
    int code = exact_ask(&r->server, (const char *const *)&text, 1, &answer);
    exact_answer_free(&answer);
    mem_free(text);
    return code;
}

/* ---- cases ----------------------------------------------------------------------------------- */

enum before { NOTHING, RESTART, HALVES, FLOOD };
static const struct exact_case {
    const char *name;
    enum before before;
    bool strangers, needs_start;
    uint64_t kind; /* of the strangers' prompts */
} CASES[CASES_MAX] = {
    {"cold", NOTHING, false, false, 0},   {"warm", NOTHING, false, false, 0},
    {"batched", NOTHING, true, false, 2}, {"evicted", FLOOD, false, false, 0},
    {"fresh", RESTART, false, true, 0},   {"crowd", RESTART, true, true, 3},
    {"prefix", HALVES, false, true, 0},   {"restored", RESTART, false, true, 0},
};

static int prepare(struct run *r, const struct exact_case *c) {
    int code = EXIT_GOOD;
    if (c->before == RESTART || c->before == HALVES)
        code = exact_server_start(&r->server);
    for (uint32_t i = 0; c->before == HALVES && i < r->a->prompts && !code; i++)
        code = ask_half(r, i);
    if (c->before == FLOOD && !code)
        code = flood(r);
    return code;
}

static int run_case(struct run *r, const struct exact_case *c) {
    struct result *out = &r->results[r->n_results++];
    *out = (struct result){.name = c->name};
    int code = prepare(r, c);
    for (uint32_t i = 0; i < r->a->prompts && !code; i++) {
        struct exact_answer answer = {0};
        code = ask(r, i, c->strangers ? r->a->strangers : 0, c->kind, &answer);
        if (code)
            break;
        out->cached =
            answer.cached_tokens < 0 || out->cached < 0 ? -1 : out->cached + answer.cached_tokens;
        if (r->n_results == 1) {
            r->reference[i] = answer;
            r->no_logprobs = r->no_logprobs || answer.n == 0;
            out->same++;
        } else {
            out->same += compare(out, i, &r->reference[i], &answer);
            exact_answer_free(&answer);
        }
    }
    return code;
}

/* ---- report ---------------------------------------------------------------------------------- */

/* A token's text with its line ends and quotes shown. */
static void put_quoted(const char *text, char out[4 * EXACT_TOKEN_BYTES]) {
    size_t n = 0;
    for (; *text && n + 5 < 4 * EXACT_TOKEN_BYTES; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '\n')
            n += (size_t)sprintf(out + n, "\\n");
        else if (c < 0x20 || c == 0x7f)
            n += (size_t)sprintf(out + n, "\\x%02x", c);
        else
            out[n++] = *text;
    }
    out[n] = 0;
}

static void print_difference(const struct difference *d) {
    char want[4 * EXACT_TOKEN_BYTES], got[4 * EXACT_TOKEN_BYTES];
    put_quoted(d->want.text, want);
    put_quoted(d->got.text, got);
    printf("  prompt %u, token %u: ", d->prompt + 1, d->token + 1);
    if (d->ended)
        printf("another length or end");
    else
        printf("\"%s\" %.9g, now \"%s\" %.9g", want, d->want.logprob, got, d->got.logprob);
}

static void print_result(const struct run *r, const struct result *out) {
    char cached[32] = "";
    if (out == r->results)
        printf("%-10s%-12s%10s\n", "case", "same", "cached");
    if (out->cached >= 0)
        snprintf(cached, sizeof cached, "%lld", (long long)out->cached);
    printf("%-10s%4u of %-4u%10s", out->name, out->same, r->a->prompts, cached);
    if (out == r->results)
        printf("  the reference");
    else if (out->first.some)
        print_difference(&out->first);
    if (out->largest > 0)
        printf("; log-probabilities of the same tokens change by up to %.2g", out->largest);
    printf("\n");
}

static json_t *json_result(const struct result *out) {
    json_t *o = json_object();
    put_text(o, "case", out->name);
    put_whole(o, "same", out->same);
    if (out->cached >= 0)
        put_whole(o, "cached_tokens", (uint64_t)out->cached);
    put_real(o, "largest_logprob_change", out->largest);
    if (out->first.some) {
        json_t *d = json_object();
        put_whole(d, "prompt", out->first.prompt);
        put_whole(d, "token", out->first.token);
        put_text(d, "want", out->first.want.text);
        put_real(d, "want_logprob", out->first.want.logprob);
        put_text(d, "got", out->first.got.text);
        put_real(d, "got_logprob", out->first.got.logprob);
        json_object_set_new(o, "first_difference", d);
    }
    return o;
}

static int report_json(const struct run *r) {
    json_t *all = json_object(), *cases = json_array();
    for (size_t i = 0; i < r->n_results; i++)
        json_array_append_new(cases, json_result(&r->results[i]));
    put_text(all, "url", r->a->url);
    put_text(all, "model", r->a->model ? r->a->model : r->server.found_model);
    put_whole(all, "seed", r->seed);
    put_whole(all, "prompts", r->a->prompts);
    json_object_set_new(all, "logprobs", json_boolean(!r->no_logprobs));
    json_object_set_new(all, "cases", cases);
    return json_print(&COMMAND, all);
}

/* ---- the command ----------------------------------------------------------------------------- */

static int read_args(struct run *r) {
    const struct exactness_args *a = r->a;
    const bool completions = strcmp(a->api, "completions") == 0;
    if (!completions && strcmp(a->api, "chat") != 0)
        return usage_error(&COMMAND, "--api: \"%.40s\" is neither chat nor completions", a->api);
    if (a->seed) {
        int code = sampling_seed(&COMMAND, a->seed, &r->seed);
        if (code)
            return code;
    } else if (getrandom(&r->seed, sizeof r->seed, 0) != (ssize_t)sizeof r->seed) {
        return run_error(&COMMAND, "the system has no random numbers");
    }
    r->seed &= INT64_MAX; /* a number of JSON */
    r->server = (struct exact_server){.c = &COMMAND,
                                      .url = a->url,
                                      .api_key = a->api_key,
                                      .model = a->model,
                                      .start = a->start,
                                      .start_seconds = (double)a->start_seconds,
                                      .request_seconds = (double)a->request_seconds,
                                      .completions = completions,
                                      .max_tokens = a->max_tokens};
    return exact_server_open(&r->server);
}

static int run_cases(struct run *r) {
    int code = exact_server_start(&r->server);
    if (!code && !r->a->quiet)
        fprintf(stderr, "seed:   %llu\n", (unsigned long long)r->seed);
    for (size_t i = 0; i < CASES_MAX && !code; i++) {
        const struct exact_case *c = &CASES[i];
        if ((c->needs_start && !r->a->start) || (c->before == FLOOD && !r->a->flood) ||
            (c->strangers && !r->a->strangers))
            continue;
        code = run_case(r, c);
        if (!code && !r->a->json)
            print_result(r, &r->results[r->n_results - 1]);
        fflush(stdout);
    }
    return code;
}

int exactness_main(int argc, char **argv) {
    struct exactness_args a = {0};
    struct run *r = calloc(1, sizeof *r);
    int code;
    bool different = false;
    if (!r)
        return run_error(&COMMAND, "out of memory");
    r->a = &a;
    if (!options_read(&COMMAND, argc, argv, &a, &code)) {
        free(r);
        return code;
    }
    catch_interrupt();
    code = read_args(r);
    if (!code)
        code = run_cases(r);
    exact_server_close(&r->server);
    for (size_t i = 0; i < r->n_results; i++)
        different = different || r->results[i].first.some;
    if (!code && a.json)
        code = report_json(r);
    else if (!code && r->no_logprobs)
        printf("the server gave no log-probabilities: only texts were compared\n");
    if (!code)
        code = finish_output(&COMMAND);
    for (uint32_t i = 0; i < PROMPTS_MAX; i++)
        exact_answer_free(&r->reference[i]);
    free(r);
    return code ? code : different ? EXIT_DIFFERENT : EXIT_GOOD;
}
