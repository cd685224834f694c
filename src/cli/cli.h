/* SPDX-License-Identifier: Apache-2.0 */
/* cli/: the program `kvasir`. One file per command on top of kvasir.h, and helpers:
 *
 *   main.c                                 finds the command; the only place that decides an exit
 *   generate.c  cache_prompt.c  cache_folder.c  batch.c  perplexity.c  quality.c  bench.c
 *   bench_kv_cache.c  calibrate.c  demo.c  embed.c  info.c  tokenize.c  convert.c  simulate.c
 *   grammar_check.c
 *   serve.c                                the commands
 *   serve_X.c   parts of serve, with a header of their own, serve.h
 *   options.c   one table per command: reading flags
 *   option_table.c  a row of it
 *   foreign_flags.c  flags of llama-server, vLLM, mlx_lm.server and vllm-mlx
 *   help.c      the same tables for people: --help, man pages, docs/
 *   settings.c  the same tables from a file and the environment
 *   output.c    error lines, bytes for people, JSON, progress, what a context tells its user
 *   files.c     text in; files out that appear only when complete
 *   prompt.c    from a user's prompt to token ids
 *   chat.c      from a chat to token ids
 *   chat_X.c    `kvasir chat`, with a header of its own, chat_main.h
 *   sampling.c, rerank_form.c  flags of sampling, and of reranking
 *   models.c    pull, list, show, rm; model_names.c: -m with the name of a model
 *   exactness.c, exactness_client.c  a server's answers, cold and warm, with a header of their own
 *   remote.c    URL and key of a server that is asked
 *   results.c   a batch's file of results, which a later run continues
 *   calibrating.c  calibrations that nobody asked for
 *   stream.c    writes the answer: stop texts, whole writes
 *   interrupt.c Ctrl-C
 *   notify.c    messages to systemd
 *   bench_X.c   parts of bench, with a header of their own, bench.h; quality_X.c of quality
 *   text_windows.c, svg.c  a text in windows, and plots; with headers of their own
 *   top.c, top_read.c, top_view.c  a running server's figures, with a header of their own, top.h
 *   sandbox.c   serve's access to files and system calls
 *
 * Standard output carries only results; everything else goes to standard error. A command returns
 * an exit code and closes what it opened. Exit codes are part of the interface.
 */
#ifndef KVASIR_CLI_H
#define KVASIR_CLI_H

#include <kvasir.h>

#include "api/api.h"
#include "files/safetensors.h"
#include "hub/hub.h"
#include "lab/lab.h"
#include "thread_count.h"
#include "util/bytes.h"
#include "util/json.h"
#include "util/near.h"
#include <jansson.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

enum exit_code {
    EXIT_GOOD = 0,
    EXIT_RUN = 1,          /* the run failed: files, memory, budget, damaged input */
    EXIT_USAGE = 2,        /* the command line is wrong or asks for something impossible */
    EXIT_CHANGED = 3,      /* serve: the model's files were changed while they were in use */
    EXIT_INTERRUPTED = 130 /* Ctrl-C ended the run early (128 + SIGINT, as shells have it) */
};

/* The commands; argv[0] is the command's name. */
int generate_main(int argc, char **argv);
int cache_prompt_main(int argc, char **argv);
int cache_main(int argc, char **argv);
int batch_main(int argc, char **argv);
int chat_main(int argc, char **argv);
int perplexity_main(int argc, char **argv);
int quality_main(int argc, char **argv);
int bench_main(int argc, char **argv);
int bench_kv_cache_main(int argc, char **argv);
int info_main(int argc, char **argv);
int embed_main(int argc, char **argv);
int tokenize_main(int argc, char **argv);
int convert_main(int argc, char **argv);
int calibrate_main(int argc, char **argv);
int simulate_main(int argc, char **argv);
int grammar_main(int argc, char **argv);
int exactness_main(int argc, char **argv);
int demo_main(int argc, char **argv);
int pull_main(int argc, char **argv);
int list_main(int argc, char **argv);
int show_main(int argc, char **argv);
int rm_main(int argc, char **argv);
int serve_main(int argc, char **argv);
int top_main(int argc, char **argv);

/* ---- options (options.c) --------------------------------------------------------------------- */

enum option_kind {
    OPTION_FLAG,    /* bool */
    OPTION_TEXT,    /* const char * */
    OPTION_TEXTS,   /* struct text_list; the flag is given once per text */
    OPTION_WORDS,   /* struct text_list; all words up to the next flag */
    OPTION_REST,    /* struct word_list: all further operands */
    OPTION_NUMBERS, /* struct number_list: whole numbers with commas between them */
    OPTION_U32,
    OPTION_I32,
    OPTION_INT,
    OPTION_U64,
    OPTION_FLOAT,
    OPTION_BYTES,  /* uint64_t; typed with a unit: 4GB, 1.5GiB */
    OPTION_JSON,   /* const char *; in a --config file an object, too */
    OPTION_CONFIG, /* struct settings */
};

enum { TEXT_LIST_MAX = 32 };
struct text_list {
    const char *items[TEXT_LIST_MAX];
    size_t n;
};

enum { NUMBER_LIST_MAX = 16 };
struct number_list {
    uint32_t items[NUMBER_LIST_MAX];
    size_t n;
};

/* Rising, each once; without 0 if that means none. */
void number_list_settle(struct number_list *list, bool zero_is_none);

/* Any number; free() items. */
struct word_list {
    const char **items; /* [n] */
    size_t n, cap;
};

/* One row: a flag, the field of the command's argument struct it sets, its default, its help. */
struct option {
    const char *name;  /* "--max-tokens"; "MODEL" without dashes: an operand */
    const char *alias; /* "-n", or another program's name for it: "--max-model-len"; NULL */
    const char *value; /* name of its value in --help; NULL for a flag */
    size_t offset;     /* of the field */
    /* default, read as if typed; NULL: the value already in the struct (the library's default) */
    const char *initial;
    const char *shown; /* default as shown in --help; NULL: the value itself; "": none */
    double min, max;   /* of numbers */
    const char *help;
    enum option_kind kind;
    bool required;
    const char *instead; /* a flag that may be given in place of a required one; NULL */
    bool number_too;     /* a text that may be a whole number in a --config file */
    bool auto_too;       /* a number that may be "auto", which is 0 */
};

enum { OPTIONS_MAX = 128 };
struct command {
    const char *name, *summary, *usage;
    const struct option *options; /* [n_options], at most OPTIONS_MAX */
    size_t n_options;
    const char *details; /* paragraphs under the flags in --help; NULL: none */
};

/* Reads argv[1 ..] into args, a struct that may already contain the library's defaults. False: help
 * or an error was printed; *exit_code is what to return. */
bool options_read(const struct command *c, int argc, char **argv, void *args, int *exit_code);

/* A row (option_table.c). */
void *option_field(const struct option *o, void *args);
/* Sets the row's field from text; `flag` names it in errors. */
int option_read(const struct command *c, const struct option *o, const char *flag, const char *text,
                void *args);
/* By a name or alias with its dashes, [n]; NULL: no such flag. */
const struct option *option_find(const struct command *c, const char *name, size_t n);

/* foreign_flags.c: flags of other programs. The row of ours with the same meaning; NULL: none. */
const struct option *foreign_option(const struct command *c, const char *name, size_t n);
/* A flag that no row has: it and its value, from argv[*at] on or after '=' (value), are accepted
 * with a note or by another flag, or an error says why not or what may be meant. *set: the row that
 * it sets; NULL: none. */
int foreign_read(const struct command *c, const char *word, const char *value, int argc,
                 char **argv, int *at, void *args, const struct option **set);

/* help.c: if `word` is --help, -h, --help=man, --help=markdown or --help=flags, prints that; else
 * returns false. */
bool help_print(const struct command *c, const char *word, void *args);

/* settings.c: flags from other places than the command line; owns the strings that were read. */
struct settings {
    const char *path; /* --config; NULL */
    json_t *kept;
};
/* clang-format off */
#define CONFIG_OPTION(type, settings)                                                              \
    {.name = "--config", .value = "FILE", .kind = OPTION_CONFIG,                                   \
     .offset = offsetof(type, settings),                                                           \
     .help = "JSON file with flags: {\"kv-bits\": \"8,4\"}; environment variables such as "        \
             "KVASIR_KV_BITS override it"}
/* clang-format on */
/* Fills rows that are not `given` yet, if the command has a CONFIG_OPTION row. */
int settings_read(const struct command *c, bool *given, void *args);
/* Sets the row of a flag, which the command has, from a JSON value as in such a file, whose strings
 * s->kept (an array) keeps. where: begins errors. */
int settings_member(const struct command *c, struct settings *s, const char *where, const char *key,
                    const json_t *value, void *args);
void settings_free(struct settings *s);

/* The flags of every command that runs one sequence over a cache. */
struct cache_args {
    kvasir_context_options options;
    uint64_t cache_mib;
};
struct cache_args cache_args_defaults(void);
/* options with the budget in bytes */
kvasir_context_options cache_args_options(const struct cache_args *a);

/* calibrating.c: lets a context with these options measure a calibration if it wants one and there
 * is none, and keep it; a line on standard error says so unless quiet. What they refer to lives
 * until the process ends; one context at a time. */
void calibrate_unasked(kvasir_context_options *o, const char *model, bool quiet);
const char *calibrations_folder(void);
void calibrations_make_folder(void); /* a failure shows when a file is written */
/* Whether such a context may ask for one. */
bool may_calibrate(const kvasir_context_options *o);
/* What is said at the end. */
enum { CALIBRATING_LINE_MAX = 600 };
void calibrating_line(const kvasir_calibrating *now, const char *model, const char *bits,
                      char line[CALIBRATING_LINE_MAX]);

/* Formats of --kv-bits to compare; `one` if there are none. An error if there are more than `most`
 * or if one is given twice. */
int kv_bits_settle(const struct command *c, struct text_list *bits, const char *one, size_t most);

/* The flags of every command that runs an engine. */
struct engine_args {
    kvasir_engine_options options;
    uint64_t memory_mib, host_mib;
    float memory_percent, disk_gib, tenant_gib, flush_seconds;
};
struct engine_args engine_args_defaults(void);
/* The options for the engine, or EXIT_USAGE after an error message. */
int engine_args_options(const struct command *c, const struct engine_args *a,
                        kvasir_engine_options *out);

/* clang-format off */
/* other: a flag that may be given in its place. */
#define MODEL_OPTION_OR(type, other)                                                               \
    {.name = "--model", .alias = "-m", .value = "MODEL", .kind = OPTION_TEXT, .required = true,    \
     .instead = other, .offset = offsetof(type, model), .shown = "",                               \
     .help = "GGUF file, folder with config.json and safetensors, or a name that was pulled "      \
             "(kvasir pull)"}
#define MODEL_OPTION(type) MODEL_OPTION_OR(type, NULL)

/* Of a kvasir_model_options. */
#define LOAD_OPTIONS(type, load)                                                                   \
    {.name = "--mlock", .kind = OPTION_FLAG, .offset = offsetof(type, load.mlock),                 \
     .help = "lock the model's files in memory; the limit of locked memory (ulimit -l) must "      \
             "allow it"},                                                                          \
    {.name = "--no-mmap", .kind = OPTION_FLAG, .offset = offsetof(type, load.no_mmap),             \
     .help = "read the model's files into memory instead of mapping them: later changes to them "  \
             "do not matter, but they take that much memory"}

/* Parts of the next. */
#define GROUP_OPTIONS(type, context)                                                               \
    {.name = "--kv-group-size", .value = "G", .kind = OPTION_TEXT, .number_too = true,             \
     .offset = offsetof(type, context.kv_group_size),                                              \
     .shown = "64 if it divides the head size, else 32",                                           \
     .help = "values that share a scale and a bias: 32, 64 or 128; one for both, or K,V"},         \
    {.name = "--kv-exact-tail", .value = "N", .kind = OPTION_U32, .max = UINT32_MAX,               \
     .offset = offsetof(type, context.kv_exact_tail),                                              \
     .help = "with r and t formats: each token sees the last N tokens in f16, besides its own "    \
             "page; N is rounded up to a multiple of 64"},                                         \
    {.name = "--key-centre", .alias = "--calibrate", .value = "C", .kind = OPTION_TEXT,            \
     .offset = offsetof(type, context.key_centre),                                                 \
     .help = "constant part of keys that a quantized cache need not store, and the basis of a "    \
             "tile format's keys: bias (the model's key biases), a file from calibrate, off, or "  \
             "auto: the biases, else calibrate's file next to the model, else off; for tiles that "\
             "file, else one measured at the first start and kept in ~/.cache/kvasir"},            \
    {.name = "--quantized-kv-start", .value = "N", .kind = OPTION_U32, .max = UINT32_MAX - 1,      \
     .offset = offsetof(type, context.quantized_kv_start),                                         \
     .shown = "64 if K's format is a tile (t...) or auto, else 0",                                 \
     .help = "keep the first N tokens in f16; N is rounded up to a multiple of 64"}
/* Formats to compare, a text_list. */
#define FORMATS_OPTION(type, bits)                                                                 \
    {.name = "--kv-bits", .value = "K,V ...", .kind = OPTION_WORDS,                                \
     .offset = offsetof(type, bits), .shown = "8,4",                                               \
     .help = "formats of K and V to compare, separated by spaces: 8,4 f16 4"}
#define DEVICE_OPTIONS(type, context)                                                              \
    {.name = "--prefill-chunk", .alias = "--prefill-step-size", .value = "N",                      \
     .kind = OPTION_U32, .max = 4096, .offset = offsetof(type, context.prefill_chunk),             \
     .help = "maximum tokens evaluated in one step; 0: 128 on a CPU, 2048 on a GPU"},              \
    {.name = "--device", .value = "D", .kind = OPTION_TEXT,                                        \
     .offset = offsetof(type, context.device),                                                     \
     .help = "what to compute on: cpu, cuda or cuda:N (a GPU; needs a build with CUDA), or auto: " \
             "a GPU if there is one, else the CPU"},                                               \
    THREADS_OPTION(type, context.threads),                                                         \
    {.name = "--cpu-tier", .value = "TIER", .kind = OPTION_TEXT,                                   \
     .offset = offsetof(type, context.cpu_tier),                                                   \
     .help = "highest instruction set to use: auto, ref, avx2, avx512, avx512vnni, amx, neon, "    \
             "neondot"},                                                                           \
    {.name = "--act-bits", .value = "N", .kind = OPTION_INT, .min = 8, .max = 16,                  \
     .offset = offsetof(type, context.act_bits),                                                   \
     .help = "bits of activations in matmuls with quantized weights: 8, or 16 for nearly float32"}
#define CONTEXT_OPTIONS(type, context)                                                             \
    {.name = "--kv-bits", .value = "K,V", .kind = OPTION_TEXT, .number_too = true,                 \
     .offset = offsetof(type, context.kv_bits),                                                    \
     .help = "formats of K and V: f32 f16 bf16 8 6 5 4 3 2, or llama.cpp's names such as q8_0; "   \
             "one value for both; or rotated r8,4 and tiles t5,4 t4 t4,3 t3 ..., which keep more " \
             "quality at the same bits and share prefixes by whole pages; or auto: r8,4, and as "  \
             "memory fills the oldest and least used pages become t4, then t3"},                   \
    {.name = "--kv-floor", .value = "F", .kind = OPTION_TEXT,                                      \
     .offset = offsetof(type, context.kv_floor), .shown = "t3",                                    \
     .help = "with --kv-bits auto: no page gets fewer bits than F: r8,4, t4 or t3"},               \
    GROUP_OPTIONS(type, context),                                                                  \
    {.name = "--max-kv-size", .value = "N", .kind = OPTION_U32, .max = UINT32_MAX,                 \
     .offset = offsetof(type, context.max_kv_size), .shown = "0, all",                             \
     .help = "rotating cache: a token sees at most N tokens, the first --kv-keep and the "         \
             "newest"},                                                                            \
    {.name = "--kv-keep", .value = "N", .kind = OPTION_U32, .max = UINT32_MAX,                     \
     .offset = offsetof(type, context.kv_keep),                                                    \
     .help = "first tokens that a rotating cache never drops"},                                    \
    {.name = "--ctx", .alias = "--max-model-len", .value = "N", .kind = OPTION_U32,                \
     .max = UINT32_MAX,                                                                            \
     .offset = offsetof(type, context.ctx), .shown = "from the model and free memory",             \
     .help = "context length: maximum tokens per sequence"},                                       \
    DEVICE_OPTIONS(type, context)

#define SNAPSHOT_OPTION(type, context, initial, text)                                              \
    {.name = "--snapshot-tokens", .value = "N", .kind = OPTION_U32, .max = 1 << 30,                \
     .offset = offsetof(type, context.snapshot_tokens), .shown = initial, .help = text}

#define CACHE_OPTIONS(type)                                                                        \
    CONTEXT_OPTIONS(type, cache.options),                                                          \
    SNAPSHOT_OPTION(type, cache.options, "0, none",                                                \
        "keep the state of recurrent layers and the exact tail every N tokens (whole pages), "     \
        "for later trims"),                                                                        \
    {.name = "--cache-mb", .value = "N", .kind = OPTION_U64, .max = 1 << 30,                       \
     .offset = offsetof(type, cache.cache_mib), .shown = "from --ctx and free memory",             \
     .help = "memory for the cache's pages, in MiB"}

#define ENGINE_OPTIONS(type, engine)                                                               \
    CONTEXT_OPTIONS(type, engine.options.context),                                                 \
    SNAPSHOT_OPTION(type, engine.options.context, "0, every 1,024",                                \
        "keep the state of recurrent layers and the exact tail every N tokens (whole pages), so "  \
        "that other requests can resume there"),                                                   \
    {.name = "--cache-memory-mb", .value = "N", .kind = OPTION_U64, .max = 1 << 30,                \
     .offset = offsetof(type, engine.memory_mib), .shown = "from --cache-memory-percent",          \
     .help = "memory for the whole cache, in MiB: running sequences and stored prefixes"},         \
    {.name = "--cache-memory-percent", .value = "P", .kind = OPTION_FLOAT, .max = 100,             \
     .offset = offsetof(type, engine.memory_percent),                                              \
     .help = "the same, as a percentage of the memory (on a GPU, of its own) that the weights "    \
             "leave free; a value below 1 is a fraction: 0.2 means 20"},                           \
    {.name = "--max-num-seqs", .value = "N", .kind = OPTION_U32, .min = 1, .max = 65536,           \
     .offset = offsetof(type, engine.options.max_running),                                         \
     .help = "maximum number of sequences that run at the same time"},                             \
    {.name = "--target-step-ms", .value = "N", .kind = OPTION_U32, .max = 60000,                   \
     .offset = offsetof(type, engine.options.target_step_ms), .shown = "0, none",                  \
     .help = "while answers are written, prompts get only as many tokens of a step as keep it "    \
             "near N ms"},                                                                         \
    {.name = "--kv-cache-quantization-bits", .value = "K,V", .kind = OPTION_TEXT,                  \
     .number_too = true,                                                                           \
     .offset = offsetof(type, engine.options.stored_kv_bits), .shown = "unchanged",                \
     .help = "convert stored prefixes to these formats, written as for --kv-bits"},                \
    {.name = "--kv-cache-quantization-group-size", .value = "G", .kind = OPTION_TEXT,              \
     .offset = offsetof(type, engine.options.stored_kv_group_size),                                \
     .shown = "as for --kv-group-size", .help = "group size of stored prefixes"},                  \
    {.name = "--kv-cache-min-quantize-tokens", .value = "N", .kind = OPTION_U32,                   \
     .max = UINT32_MAX, .offset = offsetof(type, engine.options.min_quantize_tokens),              \
     .help = "do not convert stored prefixes of fewer than N tokens"},                             \
    {.name = "--no-prefix-cache", .alias = "--disable-prefix-cache", .kind = OPTION_FLAG,          \
     .offset = offsetof(type, engine.options.no_prefix_cache),                                     \
     .help = "do not store prefixes for later requests"},                                          \
    {.name = "--cache-host-mb", .value = "N", .kind = OPTION_U64, .max = 1 << 30,                  \
     .offset = offsetof(type, engine.host_mib), .shown = "0, none",                                \
     .help = "on a GPU: memory of the host, in MiB, for prefixes that have to leave the GPU's"},   \
    {.name = "--cache-dir", .value = "DIR", .kind = OPTION_TEXT, .shown = "none",                  \
     .offset = offsetof(type, engine.options.cache_dir),                                           \
     .help = "keep prefixes in this folder, too, so that they outlive memory and restarts"},       \
    {.name = "--cache-disk-gb", .value = "N", .kind = OPTION_FLOAT, .max = 1 << 20,                \
     .offset = offsetof(type, engine.disk_gib),                                                    \
     .help = "the most that --cache-dir may take, in GiB"},                                        \
    {.name = "--cache-flush-seconds", .value = "S", .kind = OPTION_FLOAT, .max = 86400,            \
     .offset = offsetof(type, engine.flush_seconds),                                               \
     .help = "at the end, write for so long what the stores lack"},                                \
    {.name = "--cache-remote", .value = "URL", .kind = OPTION_TEXT, .shown = "none",               \
     .offset = offsetof(type, engine.options.cache_remote),                                        \
     .help = "share prefixes through Redis or Valkey: redis://[user:password@]host:port[/db]"},    \
    {.name = "--cache-remote-secret-file", .value = "FILE", .kind = OPTION_TEXT, .shown = "none",  \
     .offset = offsetof(type, engine.options.cache_remote_secret_file),                            \
     .help = "sign shared prefixes, and hide their names, with the bytes of this file"},           \
    {.name = "--cache-remote-ttl", .value = "S", .kind = OPTION_U32, .max = UINT32_MAX,            \
     .offset = offsetof(type, engine.options.cache_remote_ttl_seconds),                            \
     .help = "seconds that shared prefixes stay after they were stored; 0: no limit"},             \
    {.name = "--cache-remote-tenant-gb", .value = "N", .kind = OPTION_FLOAT, .max = 1 << 20,       \
     .offset = offsetof(type, engine.tenant_gib), .shown = "0, no limit",                          \
     .help = "the most in --cache-remote of one API key and cache_salt, in GiB"}
/* clang-format on */

/* ---- output (output.c) ----------------------------------------------------------------------- */

/* Print one line on standard error, "kvasir COMMAND: ...". Both return the exit code of that
 * kind. */
int usage_error(const struct command *c, const char *format, ...) PRINTF_LIKE(2, 3);
int run_error(const struct command *c, const char *format, ...) PRINTF_LIKE(2, 3);
/* Reports a failed library call: EXIT_USAGE if an option was wrong or cannot be honoured, else
 * EXIT_RUN. */
int library_error(const struct command *c, const kvasir_error *err);
/* After the model was used, code being what that ended with: what came of it may be wrong if its
 * files were changed meanwhile. Reports that; EXIT_RUN then. model: may be NULL. */
int model_unchanged(const struct command *c, const kvasir_model *model, int code);

/* "10.8 MiB". buf holds at least 24 bytes; returns buf. */
/* a / b; 0 if b is 0 */
double ratio(double a, double b);
/* "8,192"; returns out. */
const char *grouped_number(uint32_t n, char out[16]);
/* What a context computes on: "AMD EPYC, avx2, 2 threads". Returns out. */
enum { MACHINE_BYTES = 192 };
const char *context_machine(const kvasir_context_info *info, char out[MACHINE_BYTES]);

void put_text(json_t *object, const char *key, const char *text); /* null for NULL */
void put_whole(json_t *object, const char *key, uint64_t value);
void put_real(json_t *object, const char *key, double value); /* null for NaN and infinities */
void put_ids(json_t *object, const char *key, const int32_t *ids, size_t n);
void put_machine(json_t *object, const kvasir_context_info *info); /* as context_machine */
/* KL divergence, and the share of rows with the same likeliest token. */
void put_divergence(json_t *object, const lab_summary *kl, double same_top);
/* One object on one line of standard output, then frees it. */
int json_print(const struct command *c, json_t *object);
/* Flushes standard output; EXIT_RUN and a message if that failed. */
int finish_output(const struct command *c);

/* The last part of the model's path, as clients see it. */
enum { MODEL_NAME_BYTES = 256 };
void model_base_name(const char *path, char out[MODEL_NAME_BYTES]);

/* Whether what is written to it may have colours: a terminal that knows them, and no NO_COLOR. */
bool use_colour(FILE *to);

/* Progress on standard error: a line that rewrites itself on a terminal and is cleared at the end,
 * else a line every few seconds. */
struct progress {
    const char *what, *unit; /* "prompt", "tokens"; what NULL: quiet */
    size_t total;            /* 0: not known */
    size_t first;            /* that were there before: they do not count as speed */
    double start, last;
    bool bytes, terminal, shown; /* bytes: the unit is shown as KiB, MiB ... */
};
void progress_start(struct progress *p, const char *what, size_t total, const char *unit);
void progress_step(struct progress *p, size_t done);
void progress_end(struct progress *p);

/* The model, the cache it will use and the library's notes, on standard error. */
void print_model_line(const kvasir_model_info *m);
void print_context_facts(const kvasir_context_info *info);
/* Sampling of requests that do not say. recommended: some of it by the model's makers. */
void print_sampling_line(const kvasir_sampling *s, bool recommended);
/* The stores below the memory for prefixes, without passwords. Nothing if there are none. */
void print_stores_line(kvasir_engine *engine, const kvasir_engine_options *options);
/* Warnings on standard error if the file was computed otherwise than the context computes. */
void warn_prompt_cache(const kvasir_prompt_cache *cache, const char *path,
                       const kvasir_context_info *info);
/* The JSON keys of the same facts. */
void put_context_facts(json_t *object, const kvasir_context_info *info);

/* remote.c: a server's URL, given with or without /v1, up to where /v1 begins; mem_free. NULL: out
 * of memory. And the headers of requests of JSON to it: curl_slist_free_all, also after an
 * error. */
char *remote_base(const char *url);
struct curl_slist;
int remote_headers(const struct command *c, const char *api_key, struct curl_slist **out);
int remote_check_url(const struct command *c, const char *url);
/* What a CURLcode means and what to do. error: curl's own text, or "". Returns out. */
enum { REMOTE_WHY_MAX = 256 };
const char *remote_explain(int result, const char *error, char out[REMOTE_WHY_MAX]);
struct remote_reply {
    long status;
    struct text_buf body;     /* text_free */
    char why[REMOTE_WHY_MAX]; /* there is none */
};
/* What all requests of commands have in common, on a CURL handle; url and why[CURL_ERROR_SIZE] live
 * until the transfer has ended. */
void remote_setup(void *curl, const char *url, struct curl_slist *headers, char *why);
/* GET of base and path. False: there is no whole reply. */
bool remote_get(const char *base, const char *path, struct curl_slist *headers,
                struct remote_reply *out);

/* model_names.c: -m. Of a name that is no path, the path of the model that was pulled under it; an
 * error says how to get it. The path lives until the process ends. */
int model_resolve(const struct command *c, const char **model);
/* What to append to the error that a model does not exist: how to get one. Returns out; "": it is
 * about something else. */
enum { MODEL_HINT_MAX = 128 };
const char *model_hint(const char *error, char out[MODEL_HINT_MAX]);
/* A folder or file of the user: $base/name, or if that is not set ~/home/name. */
void user_folder(char out[HUB_PATH_MAX], const char *base, const char *home, const char *name);
/* A name as users type it, also without "hf:". */
kvasir_status model_name_read(const char *text, struct hub_name *name,
                              kvasir_error *err) MUST_CHECK;
/* Folders, addresses and token; no callbacks. */
void hub_from_environment(struct hub *h);

/* ---- files (files.c) ------------------------------------------------------------------------- */

/* A whole file, or standard input for "-", as a fresh NUL-terminated string of *len bytes. `flag`
 * names the flag in errors. */
int read_text(const struct command *c, const char *flag, const char *path, char **text,
              size_t *len);

/* Reads a file line by line; memory for the longest line. Flushes standard output before it waits
 * for more input. Zero-initialised reads standard input; for other files set fd and name first.
 * Ctrl-C ends the wait if the command catches it. */
struct line_reader {
    int fd;
    const char *name;   /* for errors; NULL: "standard input" */
    const char *line;   /* [len], without its end, valid until the next call; NULL: no more */
    size_t len, number; /* from 1 */
    uint64_t byte;      /* offset of the line */
    char *data;
    size_t start, end, cap;
    uint64_t base; /* offset of data[0] */
    bool over;
};
int line_next(const struct command *c, struct line_reader *in);
void line_reader_free(struct line_reader *in); /* fd stays open */
/* Only blanks. */
bool line_is_blank(const char *line, size_t len);

/* A file that is either complete or absent (file_replacer). Anything but a regular file (a pipe,
 * /dev/null) is written directly. Zero-initialised is closed. */
struct out_file {
    struct file_replacer to; /* only its `out` if direct */
    const char *flag;        /* "--logits", for errors */
    bool open, direct;
};
int out_open(const struct command *c, struct out_file *o, const char *flag, const char *path);
int out_write(const struct command *c, struct out_file *o, const void *data, size_t bytes);
/* Writes the header of a safetensors file, whose data follow. Fails if the disk has too little room
 * for all of it. Frees h. */
int out_write_header(const struct command *c, struct out_file *o, struct st_header *h);
int out_commit(const struct command *c, struct out_file *o);
void out_abandon(struct out_file *o); /* removes what was written; does nothing if closed */

/* ---- results of a batch (results.c) ---------------------------------------------------------- */

/* Results, one JSON object per line with a "custom_id". An existing file is continued; anything but
 * a regular file is only written. Zero-initialised is closed. */
struct results {
    FILE *f;
    const char *path;
    json_t *finished; /* object: the custom_ids already in the file */
    bool cut;         /* its last line was incomplete and was removed */
};
int results_open(const struct command *c, struct results *r, const char *path);
bool results_has(const struct results *r, const char *custom_id);
/* Writes a line and flushes it; frees the object. */
int results_write(const struct command *c, struct results *r, json_t *object);
int results_close(const struct command *c, struct results *r);
/* The beginning of every line. */
#define RESULT_ID "batch_req_"

/* ---- Ctrl-C (interrupt.c) -------------------------------------------------------------------- */

/* From now on the first Ctrl-C makes interrupted() true; the second one kills as usual. Called
 * again, it forgets an earlier one. */
void catch_interrupt(void);
/* The parent had the signal ignored (nohup, a script's background job): it stays so. */
bool signal_is_ignored(int number);
bool interrupted(void);
/* Whether a SIGINT or SIGTERM has come that this thread holds back. */
bool interrupt_waits(void);
/* Threads that are started between hold_interrupt(true) and (false) do not get SIGINT, so that it
 * interrupts waits of this thread. */
void hold_interrupt(bool hold);
/* pthread_cond_wait for at most a tenth of a second, because Ctrl-C wakes nobody. */
void wait_change(pthread_cond_t *changed, pthread_mutex_t *lock);

/* ---- chats (chat.c) -------------------------------------------------------------------------- */

struct chat_args {
    const char *template_file, *kwargs, *control; /* NULL: not given */
};
/* clang-format off */
#define CHAT_OPTIONS(type, chat)                                                                   \
    {.name = "--chat-template", .value = "FILE", .kind = OPTION_TEXT,                              \
     .offset = offsetof(type, chat.template_file), .shown = "the model's own",                     \
     .help = "file with a Jinja chat template"},                                                   \
    {.name = "--chat-template-kwargs", .value = "JSON", .kind = OPTION_JSON,                       \
     .offset = offsetof(type, chat.kwargs),                                                        \
     .help = "JSON object with variables for the chat template: {\"enable_thinking\": false}"}, \
    {.name = "--control-tokens", .value = "WHO", .kind = OPTION_TEXT,                              \
     .offset = offsetof(type, chat.control), .shown = "template",                                  \
     .help = "who may write control tokens in a chat: template, or all (also messages)"}
/* clang-format on */

struct chat {
    const char *file; /* --chat-template; NULL */
    char *source;     /* its text, [source_len] */
    size_t source_len;
    json_t *kwargs;   /* NULL: none */
    bool all_control; /* --control-tokens all */
};
/* Reads what the flags name. Needs no model. */
int chat_read(const struct command *c, const struct chat_args *a, struct chat *chat);
int chat_set_template(const struct command *c, const struct chat *chat, kvasir_tokenizer *t);
/* request: the object for kvasir_chat_render; the variables of the flag are added to it. *ids:
 * kvasir_free. */
kvasir_status chat_encode(const struct chat *chat, const kvasir_tokenizer *t, json_t *request,
                          int32_t **ids, size_t *n, kvasir_error *err);
/* The text alone; kvasir_free. *authors: who wrote it, likewise; NULL with --control-tokens all. */
kvasir_status chat_render(const struct chat *chat, const kvasir_tokenizer *t, json_t *request,
                          char **text, char **authors, size_t *len, kvasir_error *err);
void chat_free(struct chat *chat);
/* Appends {"role", "content"}. If the text is not UTF-8, an error names the role. */
int chat_add_message(const struct command *c, json_t *messages, const char *role, const char *text,
                     size_t len);

/* ---- prompt (prompt.c) ----------------------------------------------------------------------- */

/* A prompt that is evaluated in two parts (cache-prompt, generate --prompt-cache) is cut where the
 * user's text begins or ends: what the template writes before it belongs to the first part, what it
 * writes after it to the second.
 *
 *     whole   [template][user's text][template]
 *     head    [template][user's text]
 *     tail              [user's text][template] */
enum prompt_part { PROMPT_WHOLE, PROMPT_HEAD, PROMPT_TAIL };
struct prompt_args {
    const char *text, *file, *tokens, *system;
    struct chat_args chat;
    bool raw;
    enum prompt_part part;
};
struct prompt {
    struct chat chat;
    char *text; /* NULL with --tokens */
    size_t len;
    const int32_t *ids; /* [n]: one of the next two */
    size_t n;
    int32_t *typed;   /* from --tokens */
    int32_t *encoded; /* from the tokenizer; kvasir_free */
};
/* Checks the flags against each other and reads the text. Needs no model. */
int prompt_read(const struct command *c, const struct prompt_args *a, struct prompt *p);
/* Fills ids: chat template, tokenizer, or the typed ids checked against the vocabulary. */
int prompt_encode(const struct command *c, const struct prompt_args *a, const kvasir_model *model,
                  const kvasir_model_info *info, struct prompt *p);
void prompt_free(struct prompt *p);

/* ---- sampling (sampling.c) ------------------------------------------------------------------- */

/* Fields that a model's makers recommend are unset until a flag or sampling_settle sets them. */
struct sampling_args {
    kvasir_sampling options;
    const char *generation_config;
    const char *seed, *logit_bias; /* NULL: not given */
};
struct sampling_args sampling_args_defaults(void);
/* The library's defaults, with those fields unset. */
kvasir_sampling sampling_unset(void);
/* Whether a number was set. */
bool sampling_is_set(float x);
/* Sets what is unset: as the model's makers recommend, or with --generation-config none by the
 * library's defaults. *recommended: something came from the model; NULL: not wanted. */
int sampling_settle(const struct command *c, const char *generation_config,
                    const kvasir_model *model, kvasir_sampling *s, bool *recommended);

/* clang-format off */
/* Aliases of rows of DRAWING_OPTIONS: none, or vllm-mlx's names for a server's defaults. */
#define NO_ALIAS(name)      NULL
#define DEFAULT_ALIAS(name) "--default-" name
#define PENALTY_OPTIONS(type, sampling, kind_, alias_, least, shown_, help_)                       \
    {.name = "--" #kind_ "-penalty", .alias = alias_, .value = "X", .kind = OPTION_FLOAT,          \
     .shown = shown_, .offset = offsetof(type, sampling.kind_##_penalty), .min = least,          \
     .max = 1000, .help = help_},                                                                  \
    {.name = "--" #kind_ "-context-size", .value = "N", .kind = OPTION_U32, .max = UINT32_MAX,     \
     .offset = offsetof(type, sampling.kind_##_context),                                           \
     .help = "how many recent tokens --" #kind_ "-penalty covers, including the prompt's"}
/* Of a kvasir_sampling. */
#define DRAWING_OPTIONS(type, sampling, ALIAS)                                                     \
    {.name = "--temp", .alias = ALIAS("temperature"), .value = "T", .kind = OPTION_FLOAT,          \
     .max = 1000, .offset = offsetof(type, sampling.temp), .shown = "the model's, else 0",         \
     .help = "sampling temperature; 0 always takes the most likely token"},                        \
    {.name = "--top-p", .alias = ALIAS("top-p"), .value = "P", .kind = OPTION_FLOAT, .max = 1,     \
     .shown = "the model's, else off", .offset = offsetof(type, sampling.top_p),                   \
     .help = "sample from the most likely tokens that together have probability P"},               \
    {.name = "--min-p", .alias = ALIAS("min-p"), .value = "P", .kind = OPTION_FLOAT, .max = 1,     \
     .shown = "the model's, else off", .offset = offsetof(type, sampling.min_p),                   \
     .help = "sample from tokens at least P times as likely as the most likely one"},              \
    {.name = "--min-tokens-to-keep", .value = "N", .kind = OPTION_U32, .min = 1,                   \
     .max = UINT32_MAX, .offset = offsetof(type, sampling.min_tokens_to_keep),                     \
     .help = "fewest tokens that --min-p keeps"},                                                  \
    {.name = "--xtc-probability", .value = "P", .kind = OPTION_FLOAT, .max = 1,                    \
     .shown = "0, off", .offset = offsetof(type, sampling.xtc_probability),                        \
     .help = "chance, for each token, that XTC (exclude top choices) drops the most likely "       \
             "candidates"},                                                                        \
    {.name = "--xtc-threshold", .value = "P", .kind = OPTION_FLOAT, .max = 0.5,                    \
     .offset = offsetof(type, sampling.xtc_threshold),                                             \
     .help = "XTC drops candidates above probability P, except the least likely of them"},         \
    {.name = "--top-k", .alias = ALIAS("top-k"), .value = "K", .kind = OPTION_I32,                 \
     .max = INT32_MAX, .shown = "the model's, else off",                                           \
     .offset = offsetof(type, sampling.top_k),                                                     \
     .help = "sample from the K most likely tokens"},                                              \
    PENALTY_OPTIONS(type, sampling, repetition, ALIAS("repetition-penalty"), 0,                    \
                    "the model's, else off",                                                       \
                    "divide the logits of recent tokens by X (multiply negative ones)"),           \
    PENALTY_OPTIONS(type, sampling, presence, ALIAS("presence-penalty"), -1000, "0, off",          \
                    "subtract X from the logits of recent tokens"),                                \
    PENALTY_OPTIONS(type, sampling, frequency, ALIAS("frequency-penalty"), -1000, "0, off",        \
                    "subtract X from a token's logit for each time it is among recent tokens")
#define GENERATION_OPTION(type, field)                                                             \
    {.name = "--generation-config", .value = "WHOSE", .kind = OPTION_TEXT, .initial = "model",     \
     .offset = offsetof(type, field),                                                              \
     .help = "sampling that no flag sets: model, as its makers recommend (generation_config.json " \
             "or the GGUF file; also auto), or none, the most likely token"}
#define RERANK_OPTION(type, field)                                                                 \
    {.name = "--rerank-form", .value = "FORM", .kind = OPTION_TEXT, .initial = "auto",             \
     .offset = offsetof(type, field),                                                              \
     .help = "how /v1/rerank scores a document: cosine (of its embedding and the query's), yes-no "\
             "(asks the model, as Qwen3-Reranker expects), or auto: by the name in the "           \
             "model's path"}
#define SAMPLING_OPTIONS(type, args)                                                               \
    DRAWING_OPTIONS(type, args.options, NO_ALIAS),                                                 \
    GENERATION_OPTION(type, args.generation_config),                                               \
    {.name = "--logit-bias", .value = "ID:BIAS,...", .kind = OPTION_TEXT,                          \
     .offset = offsetof(type, args.logit_bias),                                                    \
     .help = "add BIAS to the logit of token ID: 15:2.5,7:-100"},                                  \
    {.name = "--seed", .value = "N", .kind = OPTION_TEXT, .offset = offsetof(type, args.seed),     \
     .shown = "random, printed", .help = "random seed; the same seed samples the same tokens"}
/* clang-format on */

/* rerank_form.c: of --rerank-form for the model at this path. */
int rerank_form_read(const struct command *c, const char *word, const char *model,
                     enum rerank_form *out);

struct sampling {
    kvasir_sampling options; /* its arrays are the next two */
    kvasir_logit_bias *bias;
    int32_t *special; /* kvasir_free */
};
/* --seed; NULL: a random one. */
int sampling_seed(const struct command *c, const char *text, uint64_t *seed);
/* Everything that needs no model. */
int sampling_read(const struct command *c, const struct sampling_args *a, struct sampling *s);
/* The tokens that XTC never drops, if XTC is on. */
int sampling_protect(const struct command *c, const kvasir_tokenizer *t, struct sampling *s);
void sampling_free(struct sampling *s);

/* ---- the service manager (notify.c) ---------------------------------------------------------- */

/* Tells the service manager, if there is one: "READY=1". */
void notify(const char *state);

/* ---- sandbox (sandbox.c) --------------------------------------------------------------------- */

/* Features that need files or system calls. */
enum sandbox_feature {
    SANDBOX_ALWAYS,
    SANDBOX_MODEL,
    SANDBOX_MODELS,       /* several, loaded while the server runs: sandbox.models */
    SANDBOX_KEY_CENTRE,   /* a file of key means */
    SANDBOX_CALIBRATIONS, /* a folder for them, which exists */
    SANDBOX_CALIBRATING,  /* while the server runs */
    SANDBOX_KEY_FILE,     /* read again at SIGHUP */
    SANDBOX_SOCKET,       /* a Unix socket to listen on */
    SANDBOX_HOST_NAME,    /* the host to listen on may have to be looked up */
    SANDBOX_MANAGER,      /* $NOTIFY_SOCKET */
    SANDBOX_CACHE_DIR,    /* a folder for prefixes, which exists */
    SANDBOX_CACHE_SECRET,
    SANDBOX_TRACES,       /* a collector of them, over HTTP */
    SANDBOX_CACHE_REMOTE, /* a store of prefixes, whose host may have to be looked up at any time */
    SANDBOX_FEATURES
};
struct sandbox {
    const char *uses[SANDBOX_FEATURES]; /* a path, a name or ""; NULL: the feature is not used */
    const char *const *models;          /* [n_models] paths, of SANDBOX_MODELS */
    size_t n_models;
    bool wanted, required; /* --sandbox: not off; on */
    int files_error;       /* why files are not restricted; 0 */
};
int sandbox_read(const struct command *c, const char *mode, struct sandbox *s);
/* From here on the calling thread, and those that it starts, open only what the features need. Only
 * with --sandbox on it is an error if that is impossible. */
int sandbox_files(const struct command *c, struct sandbox *s);
/* From here on all threads make only the system calls that the features need while the server runs.
 * text: what is restricted; "": nothing is to be said; quiet: only if something is not. Errors as
 * above. */
enum { SANDBOX_TEXT_MAX = 256 };
int sandbox_calls(const struct command *c, struct sandbox *s, bool quiet,
                  char text[SANDBOX_TEXT_MAX]);
/* Whether it is the sandbox that keeps the process from reading the file. */
bool sandbox_hides(const struct sandbox *s, const char *path);

/* ---- stream (stream.c) ----------------------------------------------------------------------- */

/* The text of an answer: what kvasir_stop releases is written and kept. */
struct stream {
    kvasir_stop *stop;    /* borrowed */
    FILE *to;             /* NULL: only collected */
    struct text_buf text; /* the answer so far, without what is held back */
    bool stopped;         /* a stop text came: text ends before it */
    int write_error;      /* errno of a failed write, 0 */
};
/* False if there is nothing more to do: a stop text came, or a write or an allocation failed. */
bool stream_push(struct stream *s, const char *text, size_t len);
bool stream_finish(struct stream *s); /* writes what was held back; false as above */
void stream_free(struct stream *s);

#endif
