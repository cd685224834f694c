/* SPDX-License-Identifier: Apache-2.0 */
/* kvasir.h: the public interface of libkvasir, with kvasir_status.h, kvasir_text.h and
 * kvasir_calibrate.h, kvasir_batch.h, kvasir_engine.h, kvasir_stored.h.
 *
 * Kvasir runs open-weight language models with a KV cache that is quantized end to end. Five
 * objects:
 *
 *   kvasir_model     a checkpoint (GGUF file or safetensors folder), mapped; immutable, sharable
 *   kvasir_tokenizer text to tokens and back, chats to text; of a model, or opened alone
 *   kvasir_context   threads, kernels and pages of one cache for one model; one thread at a time
 *   kvasir_seq       one sequence of tokens and its pages: evaluated, trimmed, forked
 *   kvasir_sampler   picks the next token from logits
 *
 * A short program (examples: docs/examples/answers.c, src/cli/generate.c):
 *
 *     kvasir_model_open(path, &model, &err);
 *     kvasir_context_options opt = kvasir_context_defaults();
 *     kvasir_context_create(model, &opt, &ctx, &err);
 *     kvasir_seq_create(ctx, &seq, &err);
 *     kvasir_tokenizer *t = kvasir_model_tokenizer(model);
 *     kvasir_tokenize(t, text, strlen(text), KVASIR_TOKENIZE_ADD_SPECIAL, &ids, &n, &err);
 *     kvasir_eval_options last = kvasir_eval_defaults();
 *     last.last_logits = logits;
 *     kvasir_seq_eval(seq, ids, n, &last, &err);
 *     while ((id = kvasir_sampler_pick(sampler, logits)) != end) {
 *         kvasir_sampler_accept(sampler, id);
 *         kvasir_seq_eval(seq, &id, 1, &last, &err);
 *     }
 *
 * Rules for all functions. Those that can fail return a kvasir_status, 0 for success, and fill the
 * kvasir_error that is passed (NULL is allowed). A failed call changes nothing but its error.
 * Arguments are borrowed for the call. The result of a `create` or `open` is released with its
 * `destroy` or `close`, which accept NULL. A model outlives its contexts, a context its sequences.
 * Strings are UTF-8, sizes are bytes, positions count tokens from 0.
 *
 * Option structs begin with struct_size, which their `_defaults` function sets: initialise them
 * with it. Later versions may add fields at the end. A program that was built with an older header
 * gets the defaults of the fields it does not know; one that was built with a newer header than the
 * library gets KVASIR_ERR_ARGUMENT.
 */
#ifndef KVASIR_H
#define KVASIR_H

#include "kvasir_calibrate.h"
#include "kvasir_status.h"
#include "kvasir_text.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- model -------------------------------------------------------------------------------- */

typedef struct kvasir_model kvasir_model;

/* path: a GGUF file, or a folder with config.json and *.safetensors. Weights are memory-mapped. */
KVASIR_API kvasir_status kvasir_model_open(const char *path, kvasir_model **out, kvasir_error *err);

typedef struct kvasir_model_options {
    size_t struct_size;
    bool no_mmap; /* read the files into memory of their size instead of mapping them */
    bool mlock;   /* keep the files in memory; an error if the limit of locked memory is lower */
} kvasir_model_options;
KVASIR_API void kvasir_model_init(kvasir_model_options *options, size_t struct_size);
/* false, false */
static inline kvasir_model_options kvasir_model_defaults(void) {
    kvasir_model_options options;
    kvasir_model_init(&options, sizeof options);
    return options;
}
/* options may be NULL: the defaults. */
KVASIR_API kvasir_status kvasir_model_open_with(const char *path,
                                                const kvasir_model_options *options,
                                                kvasir_model **out, kvasir_error *err);
KVASIR_API void kvasir_model_close(kvasir_model *model);

/* Mapped files that are changed or truncated while they are in use give wrong weights; reading past
 * the new end of a file ends the process (SIGBUS). For programs that cannot rule that out:
 * installs a handler of SIGBUS for the process. From then on such reads give zeros, and all calls
 * that evaluate with the model, or load from the file, fail with KVASIR_ERR_IO, the file and the
 * offset. Other causes of SIGBUS keep the action they had. Call it once, before threads start. */
KVASIR_API void kvasir_catch_file_faults(void);
/* Whether the files of the weights still have the size and the time of change that they had when
 * they were opened; if not, KVASIR_ERR_IO from now on, also of evaluations. A few system calls;
 * from any thread. Replacing a file by another of its name (rename) is no change. */
KVASIR_API kvasir_status kvasir_model_verify(const kvasir_model *model, kvasir_error *err);

/* Strings belong to the model. */
typedef struct kvasir_model_info {
    const char *arch, *name, *format; /* "llama", "SmolLM2 135M", "GGUF v3" */
    const char *weight_types;         /* "Q4_1 210, F32 61, Q8_0 1": tensors of each type */
    uint32_t layers, dim, ffn_dim, heads, kv_heads, head_dim, vocab;
    uint32_t ctx_train; /* trained context; 0: unknown */
    uint32_t window;    /* sliding window; 0: none */
    uint64_t parameters, weight_bytes;
    char fingerprint[17]; /* of its configuration and of samples of its weights, 16 hex digits */
} kvasir_model_info;
KVASIR_API void kvasir_model_get_info(const kvasir_model *model, kvasir_model_info *info);

/* Belongs to the model. Never NULL: if the checkpoint has no tokenizer or template that this build
 * reads, calls that need it fail with the reason. */
KVASIR_API kvasir_tokenizer *kvasir_model_tokenizer(const kvasir_model *model);

/* Exact cache bytes of a token, K and V of all layers; formats as in kvasir_context_options. */
KVASIR_API kvasir_status kvasir_model_kv_bytes(const kvasir_model *model, const char *kv_bits,
                                               const char *kv_group_size, uint64_t *bytes,
                                               kvasir_error *err);

typedef bool kvasir_progress_fn(void *user, size_t done, size_t total); /* false: cancel */

typedef struct kvasir_convert_options {
    size_t struct_size;
    uint32_t bits;       /* 0: no quantization; 2 3 4 5 6 8: matrices as mx.quantize, mode affine */
    uint32_t group_size; /* 32, 64, 128; matrices that it does not divide keep dtype */
    const char *dtype;   /* "bf16", "f16", "f32": of everything else, and of scales and biases */
    kvasir_progress_fn *on_progress; /* rows; NULL: none */
    void *user;
    const kvasir_model_options *model; /* how `in` is read; NULL: the defaults */
} kvasir_convert_options;
KVASIR_API void kvasir_convert_init(kvasir_convert_options *options, size_t struct_size);
/* bits 0, group 64, bf16 */
static inline kvasir_convert_options kvasir_convert_defaults(void) {
    kvasir_convert_options options;
    kvasir_convert_init(&options, sizeof options);
    return options;
}
/* Writes any checkpoint that kvasir_model_open reads as a folder that mlx-lm loads. `out` must not
 * exist; it appears once it is complete. Takes less memory than its largest tensor, beside maps. */
KVASIR_API kvasir_status kvasir_convert(const char *in, const char *out,
                                        const kvasir_convert_options *options, kvasir_error *err);

/* ---- context ------------------------------------------------------------------------------ */

typedef struct kvasir_context kvasir_context;
typedef struct kvasir_prompt_cache kvasir_prompt_cache;

#define KVASIR_START_BY_FORMAT UINT32_MAX
typedef struct kvasir_context_options {
    size_t struct_size;
    const char *kv_bits; /* "8,4": K,V; of f32 f16 bf16 8 6 5 4 3 2; or "r8,4", "t4", "auto" */
    /* "64", "64,32"; NULL: the largest of 64, 32 that divides head_dim. Layers whose head_dim
     * neither divides stay f16, which is a fact of the context; an error if that is all layers. */
    const char *kv_group_size;
    /* Constants that quantized keys are stored without: "auto" (the model's key biases, else the
     * file next to the model, else off), "bias", "off", or a file of `kvasir calibrate`. */
    const char *key_centre;
    /* The first N tokens, rounded up to pages of 64, stay f16. KVASIR_START_BY_FORMAT: 64 if keys
     * are tiles ("t4") or may become ones ("auto" whose floor is one), else 0. */
    uint32_t quantized_kv_start;
    uint32_t max_kv_size; /* > 0: a query sees the first kv_keep and the newest N - kv_keep */
    uint32_t kv_keep;     /* < max_kv_size */
    uint32_t ctx;         /* most tokens of a sequence; 0: by the model and free memory */
    uint64_t cache_bytes; /* budget of all pages; 0: four sequences of ctx, or free memory */
    /* If not NULL, formats, the exact start, max_kv_size and kv_keep are those of this file instead
     * of the fields above; keys are not centred, and there is no exact tail. */
    const kvasir_prompt_cache *like;
    uint32_t prefill_chunk; /* most tokens of a step, up to 4096; 0: 128 on a CPU, 2048 on a GPU */
    /* Snapshots of recurrent layers and exact tails are kept every so many tokens (whole pages);
     * 0: none. In an engine they are what prefix hits need, and 0 means every 1024. */
    uint32_t snapshot_tokens;
    int threads;            /* 0: one per physical core, at most the control groups' quota */
    const char *cpu_tier;   /* "auto", or ref, avx2, avx512, avx512vnni, amx, neon, neondot */
    int act_bits;           /* 8 or 16: rounding of activations in quantized matmuls */
    const char *device;     /* "cpu", "cuda", "cuda:N"; "auto": a GPU if there is one */
    uint32_t kv_exact_tail; /* "r8,4", "t4": a query sees the last N tokens (whole pages) as f16 */
    const kvasir_calibrate_options *calibrate; /* for "auto", if it misses a file; NULL: do not */
    const char *kv_floor; /* of kv_bits "auto": no page gets fewer bits; r8,4, t4; NULL: t3 */
} kvasir_context_options;
KVASIR_API void kvasir_context_init(kvasir_context_options *options, size_t struct_size);
/* kv_bits "8,4", start by format, kv_keep 4, act_bits 8, others "auto" or 0. */
static inline kvasir_context_options kvasir_context_defaults(void) {
    kvasir_context_options options;
    kvasir_context_init(&options, sizeof options);
    return options;
}

/* Borrows the model for the context's life. */
KVASIR_API kvasir_status kvasir_context_create(const kvasir_model *model,
                                               const kvasir_context_options *options,
                                               kvasir_context **out, kvasir_error *err);
KVASIR_API void kvasir_context_destroy(kvasir_context *ctx); /* after its sequences */

/* Decisions that the options did not state, or that differ from them; numbers are n[0], n[1] */
#define KVASIR_FACT_MAP(X)                                                                         \
    X(LAYERS_EXACT)    /* layers, head size: no group size fits, so they stay f16; once a group */ \
    X(CHUNK_LOWERED)   /* prefill_chunk as requested, as it is, bytes of a step's row */           \
    X(CTX_LOWERED)     /* ctx, the model's, the budget that the model's would exceed */            \
    X(CTX_UNTRAINED)   /* ctx, the tokens that the model was trained for */                        \
    X(BUDGET_SMALL)    /* bytes that a sequence may need, the smaller budget */                    \
    X(BUDGET_TOKENS)   /* tokens of a sequence that fit the budget, fewer than ctx */              \
    X(START_UNUSED)    /* quantized_kv_start has no effect: the cache is not quantized */          \
    X(START_EXACT)     /* first tokens that stay f16, bytes of one of them, of any other */        \
    X(TAIL_UNUSED)     /* kv_exact_tail has no effect: the cache is not quantized */               \
    X(TAIL_EXACT)      /* tokens before a query that it sees as f16, bytes of one of them */       \
    X(MAX_SIZE_UNUSED) /* max_kv_size has no effect: every layer has its own window */             \
    X(WINDOW_KEPT)     /* max_kv_size, the window of layers that ignore it */                      \
    X(SNAPSHOT_UNUSED) /* snapshot_tokens has no effect: no recurrent layer, no exact tail */      \
    X(CENTRE_UNUSED)   /* key_centre has no effect: keys are not quantized */                      \
    X(CENTRE_NOTHING)  /* source (kvasir_centre_source), whose constants are too small to help */  \
    X(CENTRED)         /* source, centred pairs, heads they are in, rotary pairs of a head */      \
    X(BALANCED)        /* source; keys of tile formats are balanced with their queries */          \
    X(NOT_BALANCED)    /* keys of tile formats are rotated: there is no calibration */             \
    X(RUNNING_LOWERED) /* max_running as requested, as it is */                                    \
    X(LADDER)          /* kv_bits "auto": its rungs, bytes of a token in r8,4, at the floor */     \
    X(THREADS)   /* threads was 0: threads, physical cores, CPUs, 100 x quota of CPUs or 0 */      \
    X(OPEN_PAGE) /* newest tokens that are f16, too, until their page is full; their bytes */
typedef enum kvasir_fact_kind {
#define KVASIR_FACT_ENUM(name) KVASIR_FACT_##name,
    KVASIR_FACT_MAP(KVASIR_FACT_ENUM)
#undef KVASIR_FACT_ENUM
} kvasir_fact_kind;
typedef struct kvasir_fact {
    kvasir_fact_kind kind;
    uint64_t n[4];
} kvasir_fact;

/* Layers with the same head shape, window and formats. */
typedef struct kvasir_layer_group {
    uint32_t layers, kv_heads, head_dim;
    uint32_t window;                 /* tokens that a query sees; 0: no window of its own */
    char k_format[24], v_format[24]; /* "8 g64", "f16" */
    uint64_t bytes_per_token, bytes_per_token16;
} kvasir_layer_group;
enum { KVASIR_LAYER_GROUPS_MAX = 8, KVASIR_FACTS_MAX = 24 };

typedef struct kvasir_context_info {
    uint32_t ctx;                  /* most tokens of a sequence; 0: any number (rotation) */
    uint32_t visible;              /* most tokens a query sees (rotation, window); 0: all */
    uint64_t ctx_bytes;            /* most of a sequence of ctx tokens; of any if bounded */
    uint64_t cache_bytes;          /* budget */
    uint64_t kv_bytes_per_token;   /* in the context's format */
    uint64_t kv_bytes_per_token16; /* the same token at 16 bits */
    char kv_format[64];            /* "K 8 g64, V 4 g64" */
    char fingerprint[17];          /* of everything that cached bytes depend on, 16 hex digits */
    const char *kind, *device;     /* "cpu", "cuda"; "NVIDIA H200, sm_90, 132 SMs" */
    const char *cpu_tier;          /* of a GPU its architecture: "sm_90" */
    int threads, act_bits;
    uint64_t used_bytes, peak_bytes; /* pages in use, now and at peak */
    uint32_t prefill_chunk;          /* most tokens of a step */
    uint64_t state_bytes;            /* of recurrent layers, per sequence; 0: none */
    uint32_t recurrent_layers;
    uint32_t sharing_layers; /* layers that read the K and V of another layer */
    uint32_t n_groups, n_facts;
    kvasir_layer_group groups[KVASIR_LAYER_GROUPS_MAX]; /* [n_groups] */
    kvasir_fact facts[KVASIR_FACTS_MAX];                /* [n_facts] */
} kvasir_context_info;
KVASIR_API void kvasir_context_get_info(const kvasir_context *ctx, kvasir_context_info *info);

/* ---- sequence ----------------------------------------------------------------------------- */

typedef struct kvasir_seq kvasir_seq;
KVASIR_API kvasir_status kvasir_seq_create(kvasir_context *ctx, kvasir_seq **out,
                                           kvasir_error *err);
KVASIR_API void kvasir_seq_destroy(kvasir_seq *seq);
/* A new sequence with the same tokens. Pages are shared; only a partly filled one is copied. */
KVASIR_API kvasir_status kvasir_seq_fork(kvasir_seq *seq, kvasir_seq **out, kvasir_error *err);
KVASIR_API uint32_t kvasir_seq_length(const kvasir_seq *seq);
KVASIR_API const int32_t *kvasir_seq_tokens(const kvasir_seq *seq); /* [length] */
KVASIR_API uint64_t kvasir_seq_bytes(const kvasir_seq *seq);        /* of its pages and states */
/* The same at 16 bits without paging: the tokens that each layer sees, and the states. */
KVASIR_API uint64_t kvasir_seq_bytes_16bit(const kvasir_seq *seq);
/* Forgets everything from `length` on. Fails, naming the nearest lengths that work, if rotation or
 * a window has dropped a page that position `length` sees. 0 always works. With recurrent layers or
 * an exact tail it goes back to the newest snapshot at or before `length` (or to the start), other
 * formats that are encoded a page at a time ("t4") to a page's start; the rest is evaluated again:
 * *rerun tokens, if not NULL. If the budget does not allow it, the sequence stays that much shorter
 * (KVASIR_ERR_BUDGET). KVASIR_ERR_ARGUMENT, and nothing changes, if one of them is -1. */
KVASIR_API kvasir_status kvasir_seq_trim(kvasir_seq *seq, uint32_t length, uint32_t *rerun,
                                         kvasir_error *err);

/* Keeps a snapshot of recurrent layers and an exact tail (only where a page ends) for later trims
 * to this length or a later one. It counts in the budget. Without either it does nothing. */
KVASIR_API kvasir_status kvasir_seq_snapshot(kvasir_seq *seq, kvasir_error *err);
/* Encodes the sequence in other formats (as in kvasir_context_options), and later tokens, too.
 * Forks keep theirs. Rounding is not undone: from now on logits depend on the tokens, and also on
 * the requantizes and trims and the lengths at which they happened; still not on chunks, threads
 * and forks. */
KVASIR_API kvasir_status kvasir_seq_requantize(kvasir_seq *seq, const char *kv_bits,
                                               const char *kv_group_size, kvasir_error *err);

/* Logits [rows][vocab] of tokens first .. first + rows - 1 of the call. False ends the call with
 * KVASIR_ERR_CANCELLED. */
typedef bool kvasir_logits_fn(void *user, size_t first, size_t rows, const float *logits);

typedef struct kvasir_eval_options {
    size_t struct_size;
    float *last_logits;              /* [vocab], of the last token; NULL: not needed */
    kvasir_logits_fn *on_logits;     /* all tokens' logits, step by step; NULL: not needed */
    kvasir_progress_fn *on_progress; /* after each step, in tokens; NULL: none */
    void *user;
} kvasir_eval_options;
/* All 0. */
static inline kvasir_eval_options kvasir_eval_defaults(void) {
    kvasir_eval_options options = {sizeof options, NULL, NULL, NULL, NULL};
    return options;
}
/* Appends n tokens (n > 0) and evaluates them. Beyond ctx (without max_kv_size) it fails with
 * KVASIR_ERR_CONTEXT, beyond the budget with KVASIR_ERR_BUDGET, before any work. After
 * KVASIR_ERR_CANCELLED the sequence contains the steps that were done. options may be NULL. */
KVASIR_API kvasir_status kvasir_seq_eval(kvasir_seq *seq, const int32_t *tokens, size_t n,
                                         const kvasir_eval_options *options, kvasir_error *err);

typedef enum kvasir_kv_part { KVASIR_PART_K, KVASIR_PART_V } kvasir_kv_part;
/* Reads stored rows: n tokens from `first` of one layer and KV head as float [n][head_dim], K after
 * RoPE. Fails if a page was dropped. */
KVASIR_API kvasir_status kvasir_seq_read_kv(const kvasir_seq *seq, kvasir_kv_part part,
                                            uint32_t layer, uint32_t kv_head, uint32_t first,
                                            uint32_t n, float *rows, kvasir_error *err);

/* ---- prompt-cache files ------------------------------------------------------------------- */

/* Reads a file of mlx-lm's save_prompt_cache (any version) or of kvasir_seq_save, if it is of this
 * model, which must outlive it. */
KVASIR_API kvasir_status kvasir_prompt_cache_open(const kvasir_model *model, const char *path,
                                                  kvasir_prompt_cache **out, kvasir_error *err);
KVASIR_API void kvasir_prompt_cache_close(kvasir_prompt_cache *cache);
KVASIR_API uint32_t kvasir_prompt_cache_tokens(const kvasir_prompt_cache *cache);
/* How a file of kvasir_seq_save was computed. A context that differs in it loads the file, but its
 * logits are not those of the tokens computed anew: compare with kvasir_context_info. Files of
 * mlx-lm and of older versions do not say. */
typedef struct kvasir_prompt_cache_info {
    uint32_t tokens;
    int act_bits;          /* 0: unknown */
    const char *tier;      /* of its bits, as cpu_tier; NULL: unknown. Valid until it is closed */
    bool other_arithmetic; /* rows were computed or encoded by another version's arithmetic */
} kvasir_prompt_cache_info;
KVASIR_API void kvasir_prompt_cache_get_info(const kvasir_prompt_cache *cache,
                                             kvasir_prompt_cache_info *info);
/* A new sequence with the file's tokens and its bytes unchanged; in a context of other formats or
 * another exact start only with `convert`. A file that says its keys were rotated by another rope
 * is refused. Tokens that a file lacks are -1. Recurrent layers: a snapshot is kept at its end. */
KVASIR_API kvasir_status kvasir_seq_load(kvasir_context *ctx, const kvasir_prompt_cache *cache,
                                         bool convert, kvasir_seq **out, kvasir_error *err);
/* Writes a file of mlx-lm's form 0.32 if that can store the cache: K and V alike, not quantized and
 * bounded, no exact start. Otherwise, or with `legacy`, of 0.31, with classes of mlx-lm #1074, or
 * ours for an exact start. "r8,4", "t4" and the like become f16. Replaces an existing file. */
KVASIR_API kvasir_status kvasir_seq_save(const kvasir_seq *seq, const char *path, bool legacy,
                                         kvasir_error *err);

/* ---- sampling ----------------------------------------------------------------------------- */

typedef struct kvasir_logit_bias {
    int32_t token;
    float bias; /* finite; added to the token's logit */
} kvasir_logit_bias;

/* Applied in mlx-lm's order: logit bias, repetition, presence and frequency penalty; then temp 0
 * picks the largest logit; otherwise top_p, min_p, xtc, top_k, temperature, draw. Filters use
 * probabilities at temperature 1. The context of a penalty is how many of the newest accepted
 * tokens it looks at. Arrays are copied by kvasir_sampler_create. */
typedef struct kvasir_sampling {
    size_t struct_size;
    float temp;                  /* 0: greedy */
    float top_p;                 /* 0 or 1: off */
    float min_p;                 /* 0: off */
    uint32_t min_tokens_to_keep; /* min_p keeps at least so many; 0 means 1 */
    /* With this probability, drawn for every token, xtc drops all tokens above the threshold except
     * the least likely of them, among those that top_p and min_p keep. */
    float xtc_probability;      /* 0: off */
    float xtc_threshold;        /* 0 to 0.5 */
    const int32_t *xtc_special; /* [n_xtc_special], never dropped by xtc */
    size_t n_xtc_special;
    int32_t top_k;            /* 0: off */
    float repetition_penalty; /* 0 or 1: off; multiplies negative logits, divides others, once */
    uint32_t repetition_context;
    float presence_penalty; /* 0: off; subtracted once from each token in the context */
    uint32_t presence_context;
    float frequency_penalty; /* 0: off; subtracted as often as a token is in the context */
    uint32_t frequency_context;
    const kvasir_logit_bias *logit_bias; /* [n_logit_bias]; biases of one token add up */
    size_t n_logit_bias;
    uint64_t seed;
} kvasir_sampling;
KVASIR_API void kvasir_sampling_init(kvasir_sampling *sampling, size_t struct_size);
/* Greedy; contexts 20, min_tokens_to_keep 1, xtc_threshold 0.1, all else 0. */
static inline kvasir_sampling kvasir_sampling_defaults(void) {
    kvasir_sampling sampling;
    kvasir_sampling_init(&sampling, sizeof sampling);
    return sampling;
}

/* Checks ranges as kvasir_sampler_create and kvasir_engine_submit do. */
KVASIR_API kvasir_status kvasir_sampling_check(const kvasir_sampling *sampling, uint32_t vocab,
                                               kvasir_error *err);

typedef struct kvasir_sampler kvasir_sampler;
KVASIR_API kvasir_status kvasir_sampler_create(const kvasir_sampling *sampling, uint32_t vocab,
                                               kvasir_sampler **out, kvasir_error *err);
KVASIR_API void kvasir_sampler_destroy(kvasir_sampler *sampler);
KVASIR_API int32_t kvasir_sampler_pick(kvasir_sampler *sampler, const float *logits); /* [vocab] */
KVASIR_API void kvasir_sampler_accept(kvasir_sampler *sampler, int32_t id); /* prompt tokens too */

#ifdef __cplusplus
}
#endif

#include "kvasir_batch.h"  /* steps that pick the next tokens, or take several sequences */
#include "kvasir_engine.h" /* requests of many clients at once */
#endif
