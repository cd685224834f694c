/* SPDX-License-Identifier: Apache-2.0 */
/* engine/: the public objects of kvasir.h over model/, cache/, backend/ and text/.
 *
 *   model_api.c    kvasir_model: checkpoint, configuration
 *   text_api.c     kvasir_tokenizer: tokenizer, chat template, special tokens
 *   options.c      kvasir_context_options settled: formats, context length, budget, facts
 *   plan_api.c     what memory will be for, of an engine that is there
 *   context.c      kvasir_context: backend, cache, the buffers of a step
 *   step.c         rows of any sequences to one batch
 *   seq_api.c      kvasir_seq: evaluation in steps, trim, fork, reading back
 *   batch_api.c    kvasir_batch: lists of sequences that take a step together
 *   scheduler.c    requests to steps: admission, fairness, preemption
 *   engine_api.c  engine_request.c  engine_figures.c
 *                  kvasir_engine: the thread and its lists; its requests, sampling, events; what it
 *                  says about itself
 *   prompt_cache.c  prompt_cache_save.c  prompt_cache_checksum.c
 *                  mlx-lm's prompt-cache files to sequences and back
 *   centre.c  centre_file.c  calibrate.c
 *                  key centres: which pairs of which heads get one; the calibration file; making it
 *   convert_api.c  kvasir_convert: checkpoints to folders that mlx-lm loads
 *   fingerprint.c  what cached bytes depend on, as 64 bits
 *   sampler.c      kvasir_sampler; log-probabilities
 *   measure.c      losses, divergences, bench-kv-cache
 *   trace.c  belady.c
 *                  recorded requests; what the best and the plainest cache would hit of them
 *   simulate.c  simulate_shape.c  simulate_random.c
 *                  the scheduler and the cache without a model: replays, random requests
 *
 * One thread owns a context and everything made from it.
 */
#ifndef KVASIR_ENGINE_H
#define KVASIR_ENGINE_H

#include "backend/cpu/cpu.h"
#include "cache/cache.h"
#include "files/files.h"
#include "kvasir.h"
#include "model/model.h"

struct kvasir_tokenizer {
    char *path;                  /* of the checkpoint */
    struct tokenizer *tokenizer; /* NULL: none; why stands in tokenizer_error */
    kvasir_error tokenizer_error;
    struct template *template; /* NULL: none; why stands in template_error */
    kvasir_error template_error;
    bool has_template; /* there is one, if only one that does not parse */
    json_t *variables; /* "bos_token": "<s>" ...: what templates see of the vocabulary */
};
/* The checkpoint is borrowed for the call; path stands in errors. A part that the checkpoint lacks
 * is no failure. */
kvasir_status text_create(const struct checkpoint *c, const char *path,
                          struct kvasir_tokenizer **out, kvasir_error *err) MUST_CHECK;

struct kvasir_model {
    struct model *model;
    char *path;  /* as it was opened */
    uint64_t id; /* model_identity */
    struct kvasir_tokenizer *text;
    char weight_types[160];
    uint64_t parameters;
};

/* Options after parsing and defaults (options.c). */
struct settled {
    struct kv_shape shapes[CACHE_GROUPS_MAX]; /* [n_groups] the model's layer groups */
    uint32_t n_groups;
    struct kv_cache_options cache;
    uint32_t ctx;
    uint32_t snapshot_tokens; /* states are kept every so many tokens; 0: none by itself */
    uint32_t visible;         /* tokens a query sees at most (rotation, window); 0: all */
    uint64_t ctx_bytes;     /* most cache bytes of a sequence of ctx tokens; of any where bounded */
    uint32_t prefill_chunk; /* rows of a step, at most */
    uint32_t logit_rows;    /* of them, those whose logits are computed at a time */
    uint64_t kv_bytes_per_token, kv_bytes_per_token16;
    uint32_t n_facts;
    kvasir_fact facts[KVASIR_FACTS_MAX];
};
/* The CPU backend that they ask for. */
kvasir_status options_backend(const kvasir_context_options *o, struct backend_cpu_options *out,
                              kvasir_error *err) MUST_CHECK;
/* All else, within what the backend can do. */
kvasir_status options_settle(const struct kvasir_model *m, const kvasir_context_options *o,
                             const struct backend_info *device, struct settled *out,
                             kvasir_error *err) MUST_CHECK;
/* Numbers that the kind does not have are 0. */
void settled_fact(struct settled *s, kvasir_fact_kind kind, uint64_t a, uint64_t b, uint64_t c,
                  uint64_t d);
/* kv_bits and kv_group_size into k, v, group_k and group_v. */
kvasir_status options_parse_formats(const char *bits, const char *groups,
                                    struct kv_cache_options *o, kvasir_error *err) MUST_CHECK;
/* "64" or "64,32" (K,V); NULL gives 0, 0: the default of each head size. Errors are of
 * `field`. */
kvasir_status options_parse_groups(const char *field, const char *text, uint32_t *k, uint32_t *v,
                                   kvasir_error *err) MUST_CHECK;

/* "K 8 g64, V 4 g64" */
void format_pair_text(struct kv_format k, struct kv_format v, char text[64]);
void cache_format_text(const struct kv_cache *c, char text[64]); /* the first group's */

/* The step under way (step.c), filled anew by each. */
struct step_buffers {
    int32_t *tokens;            /* [prefill_chunk] */
    uint32_t *pos, *logit_rows; /* the same */
    uint32_t *order;            /* the same: parts by cost, the dearest first */
    uint32_t *first_row;        /* the same: of a part */
    struct batch_seq *seqs;     /* the same */
    struct kv_view *views;      /* [layer group][sequence] */
    struct state_view *states;  /* [prefill_chunk] */
    uint32_t wanted;            /* rows of logit_rows */
    uint32_t slice, slice_end;  /* of those, whose logits are here */
    float *logits;              /* [options.logit_rows][vocab], host memory */
};

struct kvasir_context {
    const struct kvasir_model *model;
    struct settled options;
    struct backend *backend;
    struct backend_info device; /* of the backend */
    struct kv_cache *cache;
    struct centres *centres; /* NULL: no keys are centred */
    struct model_run *run;
    uint64_t fingerprint;
    uint32_t n_groups;
    struct step_buffers step;
};

/* A context on a backend, which it owns from then on, also on failure. kvasir_context_create makes
 * one on a CPU. */
kvasir_status context_create_take(const struct kvasir_model *model,
                                  const kvasir_context_options *options, struct backend *backend,
                                  struct kvasir_context **out, kvasir_error *err) MUST_CHECK;

struct kvasir_seq {
    struct kvasir_context *ctx;
    struct kv_seq *seq;
};

/* ---- steps (step.c) -------------------------------------------------------------------------- */

kvasir_status step_init(struct kvasir_context *c, kvasir_error *err) MUST_CHECK;
void step_deinit(struct kvasir_context *c);
uint64_t step_bytes(const struct kvasir_context *c); /* of its buffers */

/* Rows of one sequence, which is prepared for them. */
struct step_part {
    struct kv_seq *seq;
    const int32_t *tokens; /* [rows] */
    uint32_t rows;
    uint32_t wanted; /* logits of its last so many rows */
};
/* Runs the model over all parts' rows, at most prefill_chunk, and commits them. A failure is the
 * device's: no row is committed then, and every later step fails, too. */
kvasir_status step_run(struct kvasir_context *c, const struct step_part *parts, uint32_t n,
                       kvasir_error *err) MUST_CHECK;
/* Logits of the step's wanted row `row`, with as many after it as options.logit_rows still had room
 * for: asked for in rising order, each slice is computed once. Valid until a row of another slice
 * is asked for. */
kvasir_status step_logits(struct kvasir_context *c, uint32_t row, const float **logits,
                          kvasir_error *err) MUST_CHECK;

/* Where a token's attention costs as much as its products with weights: what tree_create asks for.
 * Of one token: those products, and those of attention for each cached token. */
static inline uint32_t rebuild_tokens(double weights, double attention) {
    return attention > 0 && weights > attention ? (uint32_t)(weights / attention) : 1;
}

/* ---- what seq_api.c and batch_api.c share ---- */

kvasir_status seq_check_tokens(const struct kvasir_context *c, const int32_t *tokens, size_t n,
                               kvasir_error *err) MUST_CHECK;
/* That n more tokens fit the context. */
kvasir_status seq_check_length(const struct kvasir_seq *s, size_t n, kvasir_error *err) MUST_CHECK;
/* States that will be kept on the way to `length`, but for one just there. */
uint32_t seq_snapshots_until(const struct kvasir_seq *s, uint32_t length);
kvasir_status seq_snapshot_if_due(struct kvasir_seq *s, kvasir_error *err) MUST_CHECK;
/* Rows of the next step: steps end where a state is to be kept. */
uint32_t seq_step_rows(const struct kvasir_seq *s, size_t left, uint32_t most);

/* ---- prompt-cache files (prompt_cache.c, prompt_cache_save.c) -------------------------------- */

/* The model's layer groups with the file's formats, and how full layers rotate (0: not). */
void prompt_cache_shape(const struct kvasir_prompt_cache *p,
                        struct kv_shape shapes[CACHE_GROUPS_MAX], uint32_t *max_size,
                        uint32_t *keep);

/* Its tokens, -1 where the file does not say them. */
const int32_t *prompt_cache_ids(const struct kvasir_prompt_cache *p);
uint32_t prompt_cache_value_head(const struct model_config *c, uint32_t head);
/* Of classes, numbers, tensors and metadata, in their order; metadata rise by key. */
kvasir_status prompt_cache_checksum(const struct prompt_file *f, uint64_t *out,
                                    kvasir_error *err) MUST_CHECK;

/* ---- fingerprints (fingerprint.c) ------------------------------------------------------------ */

void fingerprint_text(uint64_t fingerprint, char out[17]); /* as people and files have it */
kvasir_status model_identity(const struct model *m, uint64_t *out, kvasir_error *err) MUST_CHECK;
kvasir_status context_fingerprint(const struct kvasir_context *c, uint64_t *out,
                                  kvasir_error *err) MUST_CHECK;
/* Of how K was turned: what ctx chose of the model's RoPE. */
kvasir_status rope_fingerprint(const struct kvasir_context *c, uint64_t *out,
                               kvasir_error *err) MUST_CHECK;

#endif
