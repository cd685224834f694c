/* SPDX-License-Identifier: Apache-2.0 */
/* lab/: experiments on the library, in the program and the tests but not in libkvasir.
 *
 *   lab_simulate         replays recorded requests through scheduler, prefix tree and page pool
 *                        without a model: what a budget would hit, how long requests would wait
 *   lab_simulate_random  random requests with faults; checks everything after every step
 *   lab_calibrate        measures the constant parts of keys, and bases that balance them
 *   lab_kv_bench         memory, error and speed of each cache format
 *   lab_ceiling, lab_run_work
 *                        what a machine can read and multiply, and what a run of a model must
 *   lab_cache_folder     what is in a folder of stored pages, and its upkeep
 *
 * The rules of kvasir.h hold. In a replay pages are accounted for and have no memory; time is
 * virtual, from a cost model, so it is the same on every machine.
 */
#ifndef LAB_LAB_H
#define LAB_LAB_H

#include "kvasir.h"

/* ---- calibration -------------------------------------------------------------------------- */

typedef struct lab_calibrate_options {
    const char *text; /* [len]; NULL: a built-in text */
    size_t len;
    uint32_t tokens; /* how many of its first tokens to run; 0: 512 */
    int threads;
    const char *cpu_tier;            /* NULL: "auto" */
    kvasir_progress_fn *on_progress; /* NULL: none */
    void *user;
} lab_calibrate_options;
typedef struct lab_calibration {
    void *file; /* contents of a key_centre file, [size]; kvasir_free */
    size_t size;
    uint32_t tokens;       /* averaged over */
    uint32_t rotary_pairs; /* of a head; 0: keys of this model have no centres */
    double pairs;          /* how many of them will be centred, on average */
    uint32_t heads;        /* KV heads of all layers: each has a basis */
    /* So many times the squared error of a score is what it is in these bases if keys are rotated
     * by a Hadamard matrix alone, at equal bits: geometric mean over heads. */
    double gain;
} lab_calibration;
/* Measures the constant part of the model's keys, and the bases in which keys are balanced, over a
 * text. */
kvasir_status lab_calibrate(const kvasir_model *model, const lab_calibrate_options *options,
                            lab_calibration *out, kvasir_error *err);
/* Path of the file that key_centre "auto" looks for: beside a GGUF file, inside a folder. *path:
 * kvasir_free. */
kvasir_status lab_calibration_path(const kvasir_model *model, char **path, kvasir_error *err);

/* ---- measuring ---------------------------------------------------------------------------- */

typedef struct lab_kv_bench_options {
    uint32_t layers, seq_len, heads, head_dim; /* K and V [layers][heads][seq_len][head_dim] */
    const char *const *formats;                /* each as kv_bits: "8", "4" ... */
    size_t n_formats;
    const char *kv_group_size;
    uint64_t seed; /* of the normally distributed data */
    /* not NULL: measure its K and V instead; its shape replaces layers, heads, head_dim, seq_len */
    const kvasir_seq *seq;
} lab_kv_bench_options;
typedef struct lab_kv_bench_row {
    char format[32];
    uint64_t bytes, bytes16; /* of the whole cache; the same at 16 bits */
    double mean_error, max_error;
    double encode_seconds, decode_seconds; /* for all layers, summed */
    double encode_gb_s, decode_gb_s;       /* float32 bytes in, out */
} lab_kv_bench_row;
typedef void lab_kv_bench_fn(void *user, const lab_kv_bench_row *row);
/* Calls fn once per format. Memory: one layer at a time. */
kvasir_status lab_kv_bench(const lab_kv_bench_options *options, lab_kv_bench_fn *fn, void *user,
                           kvasir_error *err);

/* KL divergence of q from p, sum p (ln p - ln q) in nats, and -ln p[target], -ln q[target], from
 * logits [vocab]. */
typedef struct lab_divergence {
    double kl, nll_p, nll_q;
    bool same_top;
} lab_divergence;
lab_divergence lab_compare_logits(const float *p, const float *q, uint32_t vocab, int32_t target);
/* -ln p(target) */
double lab_nll(const float *logits, uint32_t vocab, int32_t target);

/* What n > 0 values are like. Between two ranks quantiles are interpolated, as numpy does. */
typedef struct lab_summary {
    double mean, error; /* error: the mean's standard error, of independent values; 0 if n is 1 */
    double median, p99, p999, max;
} lab_summary;
lab_summary lab_summarize(double *values, size_t n); /* sorts them */

/* ---- speed -------------------------------------------------------------------------------- */

/* The middle value, or the mean of the two in the middle. n > 0; values keep their order. */
double lab_median(const double *values, size_t n);
/* Slope of the line with the least squares through (x, y) [n]; NaN if all x are the same. */
double lab_slope(const double *x, const double *y, size_t n);

/* Makes the sequence `length` tokens long by copies of the pages of `from`, which may be the
 * sequence itself, instead of running those tokens. Copied keys were rotated for other positions,
 * so what the model computes from them means nothing; the work is the same. Both hold whole pages
 * (KVASIR_ERR_ARGUMENT), in the context's formats; `from` has some after the exact start if
 * `length` is past that. */
enum { LAB_PAGE_TOKENS = 64 };
kvasir_status lab_extend(kvasir_seq *seq, const kvasir_seq *from, uint32_t length,
                         kvasir_error *err);

/* At least what a sequence of so many tokens takes of a context's cache_bytes, with these formats
 * and exact tail; in windows, too, all tokens are counted. */
uint64_t lab_sequence_bytes(const kvasir_model *model, const kvasir_context_options *options,
                            uint32_t tokens);
/* Bytes of full pages, of all layer groups together, as a sequence of so many has them: its first
 * ones are those of the exact start. Windows are not considered. */
uint64_t lab_pages_bytes(const kvasir_context *ctx, uint32_t pages);

/* `tokens` more tokens of each of `seqs` sequences that hold `position` tokens each. */
typedef struct lab_run {
    uint32_t position, tokens, seqs;
    bool decode; /* a token of each sequence a step; else as many as a step takes, for one answer */
} lab_run;
/* What that must read, at the size in which it is stored, and multiply. A step reads what it needs
 * of the weights and of each sequence's cache once. Of experts: as many as a step of so many rows
 * meets if all are chosen alike often. */
typedef struct lab_work {
    uint32_t steps;
    double weight_bytes, cache_bytes; /* of all steps; cache: pages and states */
    double multiplies;                /* multiply-adds with weights and in attention */
} lab_work;
lab_work lab_run_work(const kvasir_context *ctx, const lab_run *run);
/* Most of the model's multiply-adds are those of 32-bit floats, not of 8-bit codes. */
bool lab_multiplies_floats(const kvasir_model *model);
/* The least seconds that the work can take on a machine that reads and multiplies so much a second.
 * *memory: it is reading that takes them. */
double lab_roofline(const lab_work *work, double read, double multiply, bool *memory);

/* Measures what this machine's memory and multipliers give to so many threads. */
typedef struct lab_ceiling lab_ceiling;
/* tier: as kvasir_context_info.cpu_tier. floats: multiply-adds of 32-bit floats, else of 8-bit
 * codes into sums of integers. */
kvasir_status lab_ceiling_create(int threads, const char *tier, bool floats, lab_ceiling **out,
                                 kvasir_error *err);
void lab_ceiling_destroy(lab_ceiling *c);
/* Bytes a second, read in order by all threads from memory that no cache holds. */
double lab_ceiling_read(lab_ceiling *c);
/* Multiply-adds a second, from registers, with the tier's fastest instruction; 0: not known for
 * this tier. */
double lab_ceiling_multiply(lab_ceiling *c);

/* ---- simulation --------------------------------------------------------------------------- */

typedef struct lab_simulate_options {
    /* Recorded requests: one JSON object a line with timestamp (milliseconds), input_length,
     * output_length, hash_ids (of blocks of 512 prompt tokens), as published for Mooncake. "-":
     * standard input. */
    const char *trace;
    uint32_t limit; /* only the first so many requests; 0: all */
    double speed;   /* requests arrive so many times as fast as recorded; 0: all at the start */
    /* A name (smollm2-135m, qwen3-0.6b, qwen3-8b, llama3-8b, llama3-70b) or sizes:
     * "layers,kv_heads,head_dim[,heads,ffn,dim,vocab]". Without the last four, Llama 3's
     * proportions: 4 heads a KV head, dim heads * head_dim, ffn 3.5 * dim, vocab 128256. */
    const char *model_shape;
    uint32_t window;           /* some layers see so many tokens only; 0: none */
    uint32_t window_layers;    /* how many; 0: half of them */
    const char *kv_bits;       /* as in kvasir_context_options */
    const char *kv_floor;      /* likewise */
    const char *kv_group_size; /* likewise */
    uint64_t budget_bytes;     /* 0: budget_percent counts */
    double budget_percent;     /* of lab_simulation.all_bytes */
    /* Stores below the memory: what they hold, and bytes a second, each way. Nothing has to be
     * waited for but those bytes. 0 bytes: there is no such store */
    uint64_t host_bytes, disk_bytes, remote_bytes;
    double host_bandwidth, disk_bandwidth, remote_bandwidth;
    uint32_t max_running;   /* as in kvasir_engine_options, max_running <= prefill_chunk */
    uint32_t max_waiting;   /* if so many wait, clients hold back later requests */
    uint32_t prefill_chunk; /* rows of a step, at most */
    /* Who is served next (engine/policy.h): "shortest", the engine's; "equal", by arrival, with
     * equal parts of a step for all prompts; "fcfs", by arrival */
    const char *policy;
    uint32_t target_step_ms; /* as in kvasir_engine_options */
    bool no_prefix_cache;
    /* A step takes bytes / bandwidth + operations / compute. Bytes: the weights, and what each
     * sequence has cached, once. Operations: two for each weight and row (the head's only for
     * rows whose logits are wanted), four for each cached token that a row sees, head and dim. */
    double bandwidth;                /* bytes a second */
    double compute;                  /* operations a second */
    double weight_bits;              /* of one weight in memory */
    kvasir_progress_fn *on_progress; /* requests that ended; NULL: none */
    void *user;
} lab_simulate_options;
/* speed 1, llama3-8b, kv_bits "8,4", 100 %, 32 running, 1024 waiting, prefill_chunk 512, policy
 * "shortest", an H200's data sheet (4.8e12 bytes and 989e12 operations a second), 16-bit weights,
 * 40e9 bytes a second of a host's memory (PCIe 5), 5e9 of a disk (NVMe) and 1.25e9 of a remote
 * store (10 Gbit/s), everything else 0.
 */
lab_simulate_options lab_simulate_defaults(void);

/* Over all requests. */
typedef struct lab_spread {
    double mean, p50, p90, p99, max;
} lab_spread;

/* A store below the memory, at the end. */
typedef struct lab_simulated_tier {
    const char *name; /* "host", "disk", "remote" */
    uint64_t limit_bytes, bytes, records, dropped_records;
    uint64_t read_bytes, written_bytes;
    double hit_rate; /* tokens that were loaded from it, as a share of prompt tokens */
} lab_simulated_tier;
enum { LAB_TIERS_MAX = 3 };

/* A format of fewer bits to which kv_bits "auto" has re-encoded so many pages, each counted once
 * for each layer group and step down. */
typedef struct lab_simulated_rung {
    char format[64];
    uint64_t pages;
} lab_simulated_rung;
enum { LAB_RUNGS_MAX = 2 };

typedef struct lab_simulation {
    uint32_t requests;
    uint64_t prompt_tokens, answer_tokens; /* of the trace */
    double trace_seconds;                  /* last arrival */
    /* model and cache */
    char shape[96], kv_format[64];
    uint32_t layers, window_layers;
    uint64_t weight_bytes, kv_bytes_per_token, page_bytes; /* of 64 tokens, all layers, when new */
    uint64_t all_pages, all_bytes; /* of all requests, each distinct page once, with exact starts */
    /* If the budget held nothing but pages, with "auto" all at the floor, and exact starts as often
     * as among all pages. */
    uint64_t budget_pages;
    uint64_t need_bytes;       /* of the largest request alone */
    kvasir_engine_stats stats; /* at the end */
    uint64_t tree_nodes;
    /* shares of prompt tokens: the engine's; plain LRU's and Belady's in whole pages, with a
     * cache of budget_pages that serves one request after the other */
    double hit_rate, lru_hit_rate, best_hit_rate;
    /* with stores below the memory: what of hit_rate was not loaded, and Belady's with one cache of
     * the size of all together; n_tiers 0: there are none */
    lab_simulated_tier tiers[LAB_TIERS_MAX];
    uint32_t n_tiers;
    double memory_hit_rate, best_hit_rate_all;
    lab_simulated_rung rungs[LAB_RUNGS_MAX]; /* [n_rungs] down to the floor; 0: no "auto" */
    uint32_t n_rungs;
    /* virtual seconds: from arrival to the first step; to the first token; to the last one */
    lab_spread queued, first_token, total;
    lab_spread step; /* of steps in which a request had one row: what tokens of answers wait for */
    double virtual_seconds, busy_seconds;
    /* of this machine */
    double wall_seconds;   /* the replay alone: without reading the trace, LRU and Belady */
    double engine_seconds; /* of those, in the engine: without making tokens and the cost model */
} lab_simulation;
/* KVASIR_ERR_BUDGET, with the numbers, if a request does not fit the budget alone. */
kvasir_status lab_simulate(const lab_simulate_options *options, lab_simulation *out,
                           kvasir_error *err);

typedef struct lab_simulate_random_options {
    uint64_t seed;
    uint32_t programs;               /* program i has the seed `seed` + i */
    kvasir_progress_fn *on_progress; /* programs; NULL: none */
    void *user;
} lab_simulate_random_options;
typedef struct lab_random_simulation {
    uint64_t programs, steps, requests, finished, refused, cancelled, failed;
    uint64_t hits, preemptions, evicted_pages, forgets, device_faults;
    uint64_t tokens_checked; /* seen by steps in pages and found correct */
    char violation[400];     /* what went wrong, and in which program; empty: nothing */
} lab_random_simulation;
/* Random caches (windows, rotation, states of recurrent layers) of a few pages, and random
 * requests with common prefixes: cancels at any step, requests that do not fit, preemption,
 * failing steps, forgotten prefixes. After every step it checks the tree's invariants, the
 * pool's figures against a count of all that sequences and tree hold, every request's tokens,
 * and the contents of every page that a sequence sees; at the end, that nothing is left. It
 * stops at the first violation, or aborts in the tree's own check. KVASIR_OK says only that the
 * simulation ran. */
kvasir_status lab_simulate_random(const lab_simulate_random_options *options,
                                  lab_random_simulation *out, kvasir_error *err);

/* ---- a folder of stored pages ------------------------------------------------------------- */

/* What is stored of one model with one set of cache options (context) for one salt (root). */
typedef struct lab_cache_group {
    char context[33], root[33]; /* hexadecimal digits */
    char formats[64];           /* of K and V; several: the newest and " ..." */
    uint64_t pages, states;     /* records */
    uint64_t tokens;            /* in whole pages, of the layer group that has the most */
    uint64_t bytes;             /* in files */
    uint64_t last_written;      /* seconds since 1970 */
} lab_cache_group;
typedef struct lab_cache_damage {
    char file[16]; /* its name in the folder */
    uint64_t offset, bytes;
    bool torn; /* no damage: the end of a write that a crash cut off, or that is under way */
} lab_cache_damage;
typedef struct lab_cache_waste {
    uint64_t records, bytes;
} lab_cache_waste;
typedef struct lab_cache_folder {
    uint64_t files, bytes;   /* of records */
    lab_cache_group *groups; /* [n_groups]: the most recently written first */
    size_t n_groups;
    lab_cache_waste older, expired, forgotten; /* takes space, and is not found */
    lab_cache_damage *places;                  /* [n_places]: the first 1,000 */
    size_t n_places;
    uint64_t damaged, torn; /* of all places */
} lab_cache_folder;
/* Changes nothing, also while a server uses the folder. payloads: reads and compares all bytes.
 * on_progress (NULL: none) gets bytes; KVASIR_ERR_CANCELLED if it returned false. */
kvasir_status lab_cache_folder_read(const char *dir, bool payloads, kvasir_progress_fn *on_progress,
                                    void *user, lab_cache_folder *out, kvasir_error *err);
void lab_cache_folder_free(lab_cache_folder *folder);
/* Removes what is not found any more and, with a limit (0: none), the oldest records. *before,
 * *after: bytes in files. KVASIR_ERR_BUSY: a server uses the folder; likewise for clear, which
 * removes all records. */
kvasir_status lab_cache_folder_compact(const char *dir, uint64_t limit_bytes, uint64_t *before,
                                       uint64_t *after, kvasir_error *err);
kvasir_status lab_cache_folder_clear(const char *dir, uint64_t *removed, kvasir_error *err);

#endif
