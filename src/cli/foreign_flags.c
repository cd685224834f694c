/* SPDX-License-Identifier: Apache-2.0 */
/* foreign_flags.c: flags of llama-server, vLLM, mlx_lm.server and vllm-mlx, so that a command line
 * that somebody has works here, or says what to change.
 *
 *     SAME      another name of one of our flags
 *     CACHE_K, CACHE_V, CACHE    formats of the cache, parts of --kv-bits
 *     NOTED     not needed here: accepted with a note that says why
 *     REFUSED   cannot be had: an error that says what to do
 *
 * A command takes SAME if it has our flag, the others if it runs a model. Our own flags are never
 * looked up here. These names are for the command line only, not for variables and --config.
 */
#include "cli.h"

#include <string.h>
#include <sys/stat.h>

#include "util/near.h"

enum foreign_kind { SAME, CACHE_K, CACHE_V, CACHE, NOTED, REFUSED };

/* value, of NOTED: NULL: it takes none; "": any; otherwise the words that are possible here,
 * between blanks; if the first is "?", it may lack. */
struct foreign {
    const char *names[3];
    enum foreign_kind kind;
    const char *ours, *value, *why;
};

#define GPU    "this build computes on the CPU only: leave it out"
#define LORA   "adapters are not supported: merge it into the model first (mlx_lm.fuse)"
#define DRAFT  "there is no speculative decoding: leave it out"
#define ALWAYS "it is always on"

/* clang-format off */
static const struct foreign FLAGS[] = {
    /* llama-server */
    {{"-c", "--ctx-size"}, SAME, "--ctx", NULL, NULL},
    {{"-t"}, SAME, "--threads", NULL, NULL},
    {{"-np", "--parallel"}, SAME, "--max-num-seqs", NULL, NULL},
    {{"-ctk", "--cache-type-k"}, CACHE_K, NULL, NULL, NULL},
    {{"-ctv", "--cache-type-v"}, CACHE_V, NULL, NULL, NULL},
    {{"-a", "--alias"}, SAME, "--served-model-name", NULL, NULL},
    {{"--models-dir"}, SAME, "--models", NULL, NULL}, /* no alias: KVASIR_MODELS_DIR is pull's */
    {{"--n-predict", "--predict"}, SAME, "--max-tokens", NULL, NULL},
    {{"--temperature"}, SAME, "--temp", NULL, NULL},
    {{"--repeat-penalty"}, SAME, "--repetition-penalty", NULL, NULL},
    {{"--repeat-last-n"}, SAME, "--repetition-context-size", NULL, NULL},
    {{"--chat-template-file"}, SAME, "--chat-template", NULL, NULL},
    {{"-ub", "--ubatch-size"}, SAME, "--prefill-chunk", NULL, NULL},
    {{"-b", "--batch-size"}, NOTED, NULL, "", "--prefill-chunk limits a step"},
    {{"-tb", "--threads-batch"}, NOTED, NULL, "", "--threads is for prompts, too"},
    {{"--threads-http"}, NOTED, NULL, "", "the server takes as many as it needs"},
    {{"--jinja", "--no-jinja"}, NOTED, NULL, NULL, "chat templates are always rendered"},
    {{"--metrics"}, NOTED, NULL, NULL, "/metrics is always there"},
    {{"--slots", "--no-slots"}, NOTED, NULL, NULL, "/slots is always there"},
    {{"-fa", "--flash-attn"}, NOTED, NULL, "? on off auto 0 1",
     "attention never stores its weights"},
    {{"-cb", "--cont-batching"}, NOTED, NULL, NULL, ALWAYS},
    {{"-kvu", "--kv-unified"}, NOTED, NULL, NULL, ALWAYS},
    {{"--cache-reuse"}, NOTED, NULL, "", "every common beginning of prompts is reused"},
    {{"-v", "--verbose"}, NOTED, NULL, NULL, "each request is logged in a line"},
    {{"-lv", "--verbosity"}, NOTED, NULL, "", "each request is logged in a line; see --log-level"},
    {{"--no-warmup", "--warmup"}, NOTED, NULL, NULL, "the first request is as fast as others"},
    {{"--mmap"}, NOTED, NULL, NULL, ALWAYS},
    {{"--reasoning-format"}, NOTED, NULL, "auto deepseek", "reasoning is always a part of its own"},
    {{"--reasoning-budget"}, NOTED, NULL, "-1", "reasoning has no limit of its own"},
    {{"-ngl", "--gpu-layers", "--n-gpu-layers"}, NOTED, NULL, "0", GPU},
    {{"-dev", "--device"}, NOTED, NULL, "none cpu", GPU},
    {{"-sm", "--split-mode"}, NOTED, NULL, "none", GPU},
    {{"-ts", "--tensor-split"}, REFUSED, NULL, NULL, GPU},
    {{"-mg", "--main-gpu"}, REFUSED, NULL, NULL, GPU},
    {{"--lora", "--lora-scaled"}, REFUSED, NULL, NULL, LORA},
    {{"--mmproj", "--mmproj-url"}, REFUSED, NULL, NULL, "images are not supported: leave it out"},
    {{"-md", "--model-draft"}, REFUSED, NULL, NULL, DRAFT},
    {{"--draft", "--draft-max", "--draft-min"}, REFUSED, NULL, NULL, DRAFT},
    {{"-hf", "-hfr", "--hf-repo"}, REFUSED, NULL, NULL,
     "run kvasir pull hf:REPOSITORY[:FORMAT] once, then give -m that name"},
    {{"-mu", "--model-url"}, REFUSED, NULL, NULL,
     "run kvasir pull URL once, then give -m the URL"},
    /* vLLM */
    {{"--kv-cache-dtype"}, CACHE, NULL, NULL, NULL},
    {{"--enable-prefix-caching"}, NOTED, NULL, NULL, ALWAYS},
    {{"--no-enable-prefix-caching"}, SAME, "--no-prefix-cache", NULL, NULL},
    {{"--max-num-batched-tokens"}, SAME, "--prefill-chunk", NULL, NULL},
    {{"--gpu-memory-utilization"}, SAME, "--cache-memory-percent", NULL, NULL},
    {{"--dtype"}, NOTED, NULL, "auto half float16 bfloat16 float float32",
     "weights keep their types, sums are float32"},
    {{"--trust-remote-code"}, NOTED, NULL, NULL, "no code of a model is ever run"},
    {{"--enable-auto-tool-choice"}, NOTED, NULL, NULL, ALWAYS},
    {{"--enable-chunked-prefill"}, NOTED, NULL, NULL, ALWAYS},
    {{"--scheduling-policy"}, NOTED, NULL, "priority fcfs",
     "the shortest goes first, by \"priority\", with ageing"},
    {{"--enforce-eager"}, NOTED, NULL, NULL, "there are no graphs to capture"},
    {{"--block-size"}, NOTED, NULL, "", "pages have 64 tokens"},
    {{"--tensor-parallel-size", "-tp"}, NOTED, NULL, "1", GPU},
    {{"--pipeline-parallel-size", "-pp"}, NOTED, NULL, "1", GPU},
    {{"--otlp-traces-endpoint"}, SAME, "--otlp-endpoint", NULL, NULL},
    {{"--disable-log-requests", "--disable-log-stats"}, NOTED, NULL, NULL,
     "a request is one line of the log"},
    {{"--uvicorn-log-level"}, NOTED, NULL, "", "a request is one line of the log"},
    {{"--enable-lora", "--lora-modules"}, REFUSED, NULL, NULL, LORA},
    {{"--speculative-config"}, REFUSED, NULL, NULL, DRAFT},
    /* mlx_lm.server */
    {{"--chat-template-args"}, SAME, "--chat-template-kwargs", NULL, NULL},
    {{"--log-level"}, NOTED, NULL, "", "a request is one line of the log"},
    {{"--use-default-chat-template"}, NOTED, NULL, NULL, "the model's template is always used"},
    {{"--decode-concurrency"}, SAME, "--max-num-seqs", NULL, NULL},
    {{"--prompt-concurrency"}, NOTED, NULL, "", "prompts share the steps of --prefill-chunk"},
    {{"--adapter-path"}, REFUSED, NULL, NULL, LORA},
    {{"--draft-model", "--num-draft-tokens"}, REFUSED, NULL, NULL, DRAFT},
    {{"--pipeline"}, REFUSED, NULL, NULL, "there is one machine: leave it out"},
    /* vllm-mlx */
    {{"--enable-metrics"}, NOTED, NULL, NULL, "/metrics is always there"},
    {{"--default-chat-template-kwargs"}, SAME, "--chat-template-kwargs", NULL, NULL},
    {{"--timeout", "-to"}, NOTED, NULL, "", "a request ends when it is done or its client is gone"},
    {{"--offline"}, NOTED, NULL, NULL, "nothing is ever downloaded"},
    {{"--ssd-cache-dir"}, SAME, "--cache-dir", NULL, NULL},
    {{"--use-paged-cache"}, NOTED, NULL, NULL, ALWAYS},
    {{"--no-memory-aware-cache"}, NOTED, NULL, NULL, "the cache has a budget: --cache-memory-mb"},
    {{"--stream-interval"}, NOTED, NULL, "1", "each token is sent as it comes"},
    {{"--rate-limit"}, REFUSED, NULL, NULL, "write quotas into the lines of --api-key-file"},
    {{"--mcp-config"}, REFUSED, NULL, NULL, "tools are the client's affair: leave it out"},
};
/* clang-format on */
enum { N_FLAGS = sizeof FLAGS / sizeof *FLAGS, N_NAMES = 3 };

static bool runs_model(const struct command *c) {
    return option_find(c, "--model", strlen("--model")) != NULL;
}

static const struct foreign *find(const char *name, size_t n) {
    for (size_t i = 0; i < N_FLAGS; i++)
        for (size_t k = 0; k < N_NAMES && FLAGS[i].names[k]; k++)
            if (strlen(FLAGS[i].names[k]) == n && memcmp(FLAGS[i].names[k], name, n) == 0)
                return &FLAGS[i];
    return NULL;
}

const struct option *foreign_option(const struct command *c, const char *name, size_t n) {
    const struct foreign *f = find(name, n);
    return f && f->kind == SAME ? option_find(c, f->ours, strlen(f->ours)) : NULL;
}

/* ---- what may be meant ----------------------------------------------------------------------- */

static void try_name(struct near *near, const char *word, size_t n, const char *name) {
    if (name && strncmp(name, "--", 2) == 0)
        near_try(near, word, n, name + 2);
}

static int unknown(const struct command *c, const char *word, size_t n) {
    struct near near = {0};
    if (strncmp(word, "--", 2) == 0)
        for (size_t i = 0; i < c->n_options; i++) {
            try_name(&near, word + 2, n - 2, c->options[i].name);
            try_name(&near, word + 2, n - 2, c->options[i].alias);
        }
    if (near.best)
        return usage_error(c, "unknown flag \"%.60s\": did you mean --%s? See kvasir %s --help",
                           word, near.best, c->name);
    return usage_error(c, "unknown flag \"%.60s\"; see kvasir %s --help", word, c->name);
}

/* ---- formats of the cache -------------------------------------------------------------------- */

/* The program's command line is read once. */
static char made_bits[48];

/* Sets K, V or both of --kv-bits to a format. */
static int set_cache(const struct command *c, enum foreign_kind kind, const struct option *bits,
                     const char *text, void *args) {
    char k[20], v[20];
    const char *now = *(const char **)option_field(bits, args), *comma = strchr(now, ',');
    snprintf(k, sizeof k, "%.*s", (int)(comma ? comma - now : (long)strlen(now)), now);
    snprintf(v, sizeof v, "%.19s", comma ? comma + 1 : now);
    if (kind != CACHE_V)
        snprintf(k, sizeof k, "%.19s", text);
    if (kind != CACHE_K)
        snprintf(v, sizeof v, "%.19s", text);
    snprintf(made_bits, sizeof made_bits, "%s,%s", k, v);
    return option_read(c, bits, bits->name, made_bits, args);
}

/* vLLM's names; NULL: the format of --kv-bits. */
static int read_dtype(const struct command *c, const char *flag, const char *text,
                      const char **format) {
    static const char *const NAMES[][2] = {
        {"fp8", "8"},         {"fp8_e4m3", "8"},  {"fp8_e5m2", "8"}, {"int8", "8"},
        {"bfloat16", "bf16"}, {"float16", "f16"}, {"half", "f16"},   {"auto", NULL}};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
        if (strcmp(text, NAMES[i][0]) == 0) {
            *format = NAMES[i][1];
            return EXIT_GOOD;
        }
    return usage_error(c,
                       "%s: \"%.40s\" is not auto, fp8, int8, bfloat16 or float16; --kv-bits has "
                       "more formats",
                       flag, text);
}

static int read_cache(const struct command *c, const struct foreign *f, const char *flag,
                      const char *text, void *args, const struct option **set) {
    const char *format = text;
    const struct option *bits = option_find(c, "--kv-bits", strlen("--kv-bits"));
    const int code = f->kind == CACHE ? read_dtype(c, flag, text, &format) : EXIT_GOOD;
    if (code || !format)
        return code;
    *set = bits;
    return set_cache(c, f->kind, bits, format, args);
}

/* ---- notes ----------------------------------------------------------------------------------- */

/* Whether the word is one of a list, between blanks. */
static bool listed(const char *list, const char *word) {
    const size_t n = strlen(word);
    for (const char *at = list; n && at; at = strchr(at, ' ')) {
        at += *at == ' ';
        if (strncmp(at, word, n) == 0 && (at[n] == ' ' || !at[n]))
            return true;
    }
    return false;
}

static int note(const struct command *c, const struct foreign *f, const char *flag,
                const char *text) {
    if (text && *f->value && !listed(f->value, text))
        return usage_error(c, "%s: \"%.40s\": only %s is possible: %s", flag, text, f->value,
                           f->why);
    fprintf(stderr, "note:   %s is not needed here: %s\n", flag, f->why);
    return EXIT_GOOD;
}

/* ---- one flag -------------------------------------------------------------------------------- */

int foreign_read(const struct command *c, const char *word, const char *value, int argc,
                 char **argv, int *at, void *args, const struct option **set) {
    const size_t n = value ? (size_t)(value - 1 - word) : strlen(word);
    const struct foreign *f = find(word, n);
    char flag[64];
    snprintf(flag, sizeof flag, "%.*s", (int)n, word);
    *set = NULL;
    if (!f || f->kind == SAME || !runs_model(c) ||
        (f->kind < NOTED && !option_find(c, "--kv-bits", strlen("--kv-bits"))))
        return unknown(c, word, n);
    if (f->kind == REFUSED)
        return usage_error(c, "%s: %s", flag, f->why);
    const bool none = f->kind == NOTED && !f->value, may = f->value && *f->value == '?';
    if (none && value)
        return usage_error(c, "%s: takes no value", flag);
    if (!none && !value && *at < argc && (!may || listed(f->value, argv[*at])))
        value = argv[(*at)++];
    if (!none && !value && !may)
        return usage_error(c, "%s: needs a value", flag);
    return f->kind == NOTED ? note(c, f, flag, value) : read_cache(c, f, flag, value, args, set);
}
