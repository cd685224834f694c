/* SPDX-License-Identifier: Apache-2.0 */
/* engine/: requests, continuous batching, sampling; the public objects of kvasir.h.
 *
 *   model_api.c    kvasir_model: a checkpoint bound to its family's forward pass; conversion
 *   text_api.c     kvasir_tokenizer: tokenizer, chat template, special tokens
 *   formats.c      texts to cache formats, bytes of a token
 *   context_options.c
 *                  a context's options with defaults filled in: formats, length, budget, facts
 *   context.c  context_api.c
 *                  kvasir_context: backend, cache, the buffers of a step; creation for a caller
 *   step.c         rows of any sequences as one batch
 *   seq_api.c      kvasir_seq: evaluation in steps, trim, fork, reading back
 *   batch_api.c    kvasir_batch: lists of sequences that take a step together
 *   device_picks.c what a device is told of tokens that it picks
 *   scheduler.c    requests to steps: admission, fairness, preemption
 *   engine_api.c  engine_request.c  engine_cache.c  engine_stats.c
 *                  kvasir_engine: its thread and lists; requests, sampling, events; forgetting and
 *                  explaining stored prefixes; figures
 *   grammar_api.c  guide.c  answer_grammar.c
 *                  kvasir_grammar; answers that must be texts of one: sets of tokens, forced tokens
 *   prompt_rows.c  log-probabilities of prompts, embeddings
 *   prompt_cache.c  prompt_loads.c  prompt_cache_save.c  prompt_cache_checksum.c
 *                  mlx-lm's prompt-cache files to sequences and back
 *   centre.c  key_bases.c  centre_file.c
 *                  key centres: which pairs of which heads get one; bases of balanced keys; the
 *                  calibration file
 *   calibration.c  calibration_kept.c  moments.c  balance.c
 *                  what that file holds, measured; kept for contexts that have none
 *   fingerprint.c  what cached bytes depend on, in 64 bits
 *   identity.c     the same and all weights, in 128 bits: names of stored pages begin with it
 *   sampler.c      kvasir_sampler; log-probabilities
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
#include "util/ranked.h"

struct kvasir_tokenizer {
    char *path;                  /* of the checkpoint */
    struct tokenizer *tokenizer; /* NULL: none, because of tokenizer_error */
    kvasir_error tokenizer_error;
    struct template *template; /* NULL: none, because of template_error */
    kvasir_error template_error;
    bool has_template; /* the checkpoint has one, even if it does not parse */
    json_t *variables; /* "bos_token": "<s>" ...: special tokens, as templates see them */
};
/* The checkpoint is borrowed for the call; path is for errors. A part that the checkpoint lacks is
 * not an error. */
kvasir_status text_create(const struct checkpoint *c, const char *path,
                          struct kvasir_tokenizer **out, kvasir_error *err) MUST_CHECK;

struct kvasir_grammar {
    struct grammar *grammar; /* grammar/grammar.h */
};

struct kvasir_model {
    struct model *model;
    char *path;  /* as it was opened */
    uint64_t id; /* model_identity */
    struct kvasir_tokenizer *text;
    char weight_types[160];
    uint64_t parameters;
};

/* Options after parsing, with defaults filled in (context_options.c). */
struct settled {
    struct kv_shape shapes[CACHE_GROUPS_MAX]; /* [n_groups] the model's layer groups */
    uint32_t n_groups;
    struct kv_cache_options cache;
    uint32_t ctx;
    uint32_t snapshot_tokens; /* a state is kept every so many tokens; 0: only on request */
    uint32_t visible;         /* tokens a query sees at most (rotation, window); 0: all */
    uint64_t ctx_bytes;     /* most cache bytes of a sequence of ctx tokens, or of any if bounded */
    uint32_t prefill_chunk; /* rows of a step, at most */
    uint32_t logit_rows;    /* rows whose logits are computed at a time */
    uint64_t kv_bytes_per_token, kv_bytes_per_token16; /* of new pages; at 16 bits */
    /* Shadows of a sequence: of its open page; of the exact tail. 0: none */
    uint64_t open_page_bytes, tail_bytes;
    uint32_t n_facts;
    kvasir_fact facts[KVASIR_FACTS_MAX];
};
/* Tokens of the exact start that was asked for, of a cache whose formats and rungs are known. */
uint32_t options_start(uint32_t asked, const struct kv_cache_options *o);
/* The caller's options, of any version, as this one's. */
kvasir_status context_options_read(const kvasir_context_options *given, kvasir_context_options *out,
                                   kvasir_error *err) MUST_CHECK;
/* device.c: the backend of these options, which have all their fields. */
kvasir_status device_create(const kvasir_context_options *o, struct backend **out,
                            kvasir_error *err) MUST_CHECK;
/* Options of the CPU backend, from those of a context. */
kvasir_status options_backend(const kvasir_context_options *o, struct backend_cpu_options *out,
                              kvasir_error *err) MUST_CHECK;
/* Free memory of a device: its own, or the host's if it uses that; and what of it the model's
 * weights leave, for caches and buffers of steps. */
uint64_t device_free_bytes(const struct backend_info *device);
uint64_t device_beside_weights(const struct backend_info *device, const struct kvasir_model *m);
/* All other options, within what the backend can do. */
kvasir_status options_settle(const struct kvasir_model *m, const kvasir_context_options *o,
                             const struct backend_info *device, struct settled *out,
                             kvasir_error *err) MUST_CHECK;
/* The most bytes of a sequence of so many tokens; with a ladder, at its top. */
uint64_t settled_best_bytes(const struct settled *s, uint32_t tokens);
/* Adds a fact; numbers that its kind does not use are 0. */
void settled_fact(struct settled *s, kvasir_fact_kind kind, uint64_t a, uint64_t b, uint64_t c,
                  uint64_t d);

/* ---- formats (formats.c) --------------------------------------------------------------------- */

/* kv_bits and kv_group_size into k, v, group_k and group_v. */
kvasir_status options_parse_formats(const char *bits, const char *groups,
                                    struct kv_cache_options *o, kvasir_error *err) MUST_CHECK;
/* The same of a context's, which may be "auto": then k and v are those of new pages, and the rungs
 * those of the ladder down to `floor`. */
kvasir_status options_parse_live(const char *bits, const char *floor, const char *groups,
                                 struct kv_cache_options *o, kvasir_error *err) MUST_CHECK;
/* The format of new pages: that of kv_bits, which may be "auto". */
const char *formats_of_new_pages(const char *kv_bits);
/* "64" or "64,32" (K,V); NULL gives 0, 0: the default of each head size. Errors are of
 * `field`. */
kvasir_status options_parse_groups(const char *field, const char *text, uint32_t *k, uint32_t *v,
                                   kvasir_error *err) MUST_CHECK;

/* A layer group's formats, and bytes of one token in all its layers: a page is 64 times that,
 * rounded up to 4 KiB. */
kvasir_status formats_group_bytes(const struct kv_shape *shape, const struct kv_cache_options *o,
                                  struct kv_format *k, struct kv_format *v, uint64_t *bytes,
                                  kvasir_error *err) MUST_CHECK;
/* The same, summed over n layer groups. */
kvasir_status formats_token_bytes(const struct kv_shape *shapes, uint32_t n,
                                  const struct kv_cache_options *o, uint64_t *bytes,
                                  kvasir_error *err) MUST_CHECK;

/* "K 8 g64, V 4 g64" */
void format_pair_text(struct kv_format k, struct kv_format v, char text[64]);
void cache_format_text(const struct kv_cache *c, char text[64]); /* the first group's */

/* Buffers of the current step (step.c). */
struct step_buffers {
    int32_t *tokens;            /* [prefill_chunk] */
    uint32_t *pos, *logit_rows; /* the same */
    struct ranked *order;       /* the same: parts by cost, highest first */
    struct ranked *order_scratch;
    uint32_t *first_row;       /* the same: of a part */
    struct batch_seq *seqs;    /* the same */
    struct kv_view *views;     /* [layer group][sequence] */
    struct state_view *states; /* [prefill_chunk] */
    bool *hidden;              /* the same: of logit_rows, those whose states are wanted instead */
    uint32_t wanted;           /* rows of logit_rows */
    uint32_t slice, slice_end; /* of those, the rows whose results have been computed */
    const float *computed;     /* theirs on the device: [rows][vocab], or states */
    const float *results;      /* the same in host memory; NULL: fetched row by row */
    const struct step_picks *picks; /* of the step; NULL: none */
    uint32_t picked;                /* of these, how many the device has made */
};

struct kvasir_context {
    const struct kvasir_model *model;
    struct settled options;
    struct backend *backend;
    struct backend_info device; /* of the backend */
    struct kv_cache *cache;
    struct centres *centres; /* NULL: no keys are centred */
    struct key_bases *bases; /* NULL: no keys are balanced */
    struct model_run *run;
    uint64_t fingerprint;
    uint32_t n_groups;
    struct step_buffers step;
};

struct calibration;
/* A context on a backend, which it owns from then on, also on failure. known: as for
 * centres_settle. */
kvasir_status context_create_take(const struct kvasir_model *model,
                                  const kvasir_context_options *options, struct calibration *known,
                                  struct backend *backend, struct kvasir_context **out,
                                  kvasir_error *err) MUST_CHECK;

/* ---- tokens of a step that the device picks (device_picks.c) --------------------------------- */

/* As soon as it has the logits of their rows. */
struct step_picks {
    struct pick
        *list; /* rising rows, counted among the step's wanted ones; the step changes them */
    uint32_t n;
    struct picked *out; /* [n]; those of rows before step_rows_ready are there */
};
/* Whether the device can. */
static inline bool step_can_pick(const struct kvasir_context *c) {
    return c->backend->ops->pick != NULL;
}

/* All 0 at first. */
struct device_picks {
    struct step_picks step;  /* list and out [cap] */
    struct pick_edit *edits; /* of the list; n_edits used */
    uint32_t cap, n_edits;
    uint32_t taken; /* of step.out */
};
/* Room for so many picks of a step. What it held is lost. */
kvasir_status device_picks_reserve(const struct kvasir_context *c, struct device_picks *p,
                                   uint32_t most, kvasir_error *err) MUST_CHECK;
uint64_t device_picks_bytes(const struct kvasir_context *c, uint32_t most); /* of that */
void device_picks_deinit(struct device_picks *p);
void device_picks_clear(struct device_picks *p); /* before each step */
/* Adds a sampler's next pick, with the n_top of struct pick, from the step's wanted row `row`.
 * False: the device cannot make it. */
bool device_picks_add(const struct kvasir_context *c, struct device_picks *p,
                      const struct kvasir_sampler *sampler, uint32_t row, int32_t n_top);
/* The next one that was added, whose row has been reached: its sampler has drawn now. NULL: the
 * device gives it back, and the row is to be read. */
const struct picked *device_picks_take(struct device_picks *p, struct kvasir_sampler *sampler);

struct kvasir_seq {
    struct kvasir_context *ctx;
    struct kv_seq *seq;
    struct device_picks picks; /* of kvasir_seq_pick */
    bool foreign; /* some of its rows may have been computed otherwise than by a context like ctx */
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
    uint32_t wanted; /* logits of its last so many rows, or */
    bool hidden;     /* their states after the last norm */
};
/* Runs the model over all parts' rows, at most prefill_chunk, and commits them. An error is the
 * device's: no row is committed then, and every later step fails, too. picks: NULL: none; else they
 * stay where they are while results of this step are asked for. */
kvasir_status step_run(struct kvasir_context *c, const struct step_part *parts, uint32_t n,
                       const struct step_picks *picks, kvasir_error *err) MUST_CHECK;
/* Logits of the step's wanted row `row`. They are computed in slices of options.logit_rows rows: if
 * rows are requested in rising order, each slice is computed once. Valid until another row is
 * requested. */
kvasir_status step_logits(struct kvasir_context *c, uint32_t row, const float **logits,
                          kvasir_error *err) MUST_CHECK;
/* The same without the logits: the slice of `row` is computed, and the picks from it are made. */
kvasir_status step_reach(struct kvasir_context *c, uint32_t row, kvasir_error *err) MUST_CHECK;

/* Results of wanted rows before this one have been computed. */
uint32_t step_rows_ready(const struct kvasir_context *c);

/* The same of a row of a part that is `hidden`: its state [dim]. A slice of states has as many rows
 * as there is room for in a slice of logits, in most models all of a step. */
kvasir_status step_hidden(struct kvasir_context *c, uint32_t row, const float **state,
                          kvasir_error *err) MUST_CHECK;

/* The position at which a token's attention costs as much as its matmuls with weights (for
 * tree_create). weights: multiplications of those; attention: of attention per cached token. */
static inline uint32_t rebuild_tokens(double weights, double attention) {
    return attention > 0 && weights > attention ? (uint32_t)(weights / attention) : 1;
}

/* ---- what seq_api.c and batch_api.c share ---- */

kvasir_status seq_check_tokens(const struct kvasir_context *c, const int32_t *tokens, size_t n,
                               kvasir_error *err) MUST_CHECK;
/* Fails with KVASIR_ERR_CONTEXT unless n more tokens fit. */
kvasir_status seq_check_length(const struct kvasir_seq *s, size_t n, kvasir_error *err) MUST_CHECK;
/* How many states will be kept before `length`. */
uint32_t seq_snapshots_until(const struct kvasir_seq *s, uint32_t length);
kvasir_status seq_snapshot_if_due(struct kvasir_seq *s, kvasir_error *err) MUST_CHECK;
/* Rows of the next step: steps end at positions at which a state is kept. */
uint32_t seq_step_rows(const struct kvasir_seq *s, size_t left, uint32_t most);

/* ---- prompt-cache files (prompt_cache.c, prompt_cache_save.c) -------------------------------- */

/* The model's layer groups with the file's formats; the file's exact start, and the rotation of
 * layers without a window (0: none), in `cache`. */
void prompt_cache_shape(const struct kvasir_prompt_cache *p,
                        struct kv_shape shapes[CACHE_GROUPS_MAX], struct kv_cache_options *cache);

/* A new sequence with the file's tokens, in a context whose cache has the file's formats in the
 * same pages, or with convert in any. The file is refused before anything is made of it
 * (PROMPT-1). */
kvasir_status prompt_cache_load(struct kvasir_context *ctx, const struct kvasir_prompt_cache *p,
                                bool convert, struct kv_seq **out, kvasir_error *err) MUST_CHECK;
/* The same in steps, for an engine that must not wait for a file (prompt_loads.c). */
struct prompt_load;
/* Checks the file, and makes an empty sequence for it, the caller's. p is borrowed. */
kvasir_status prompt_load_begin(const struct kvasir_context *ctx,
                                const struct kvasir_prompt_cache *p, bool convert,
                                struct prompt_load **out, struct kv_seq **seq,
                                kvasir_error *err) MUST_CHECK;
void prompt_load_destroy(struct prompt_load *l); /* or NULL */
size_t prompt_load_page_bytes(const struct prompt_load *l);
/* Makes the tiles [prompt_load_page_bytes] of the page that begins with position `first`, and with
 * the last page the state. By any thread, one at a time. */
kvasir_status prompt_load_make(struct prompt_load *l, uint32_t first, uint8_t *tiles,
                               kvasir_error *err) MUST_CHECK;
/* By the thread that owns the cache: writes them to a prepared page; then commits so many rows, and
 * with the last of the file checks that it was whole all the time. */
void prompt_load_put(const struct prompt_load *l, struct kv_seq *seq, uint32_t number,
                     const uint8_t *tiles);
kvasir_status prompt_load_commit(const struct prompt_load *l, struct kv_seq *seq, uint32_t rows,
                                 kvasir_error *err) MUST_CHECK;
/* How rows were computed: two contexts that agree in it give rows and logits the same bits. */
struct arithmetic {
    char act_bits[8], version[32], tier[32];
};
void arithmetic_of(const struct kvasir_context *c, struct arithmetic *out);
void arithmetic_version(char out[32]); /* KV_ and MODEL_ARITHMETIC_VERSION as one text */
/* Whether the file says that its rows were computed as the context's are. */
bool prompt_cache_is_native(const struct kvasir_prompt_cache *p, const struct kvasir_context *c);
/* Its tokens; -1: the file does not say. */
const int32_t *prompt_cache_ids(const struct kvasir_prompt_cache *p);
uint32_t prompt_cache_value_head(const struct model_config *c, uint32_t head);
/* Of classes, numbers, tensors and metadata, in their order; metadata sorted by key. */
kvasir_status prompt_cache_checksum(const struct prompt_file *f, uint64_t *out,
                                    kvasir_error *err) MUST_CHECK;

/* ---- fingerprints (fingerprint.c) ------------------------------------------------------------ */

void fingerprint_text(uint64_t fingerprint, char out[17]); /* hexadecimal, as in files and logs */
kvasir_status model_identity(const struct model *m, uint64_t *out, kvasir_error *err) MUST_CHECK;
kvasir_status context_fingerprint(const struct kvasir_context *c, uint64_t *out,
                                  kvasir_error *err) MUST_CHECK;
/* Of the RoPE frequencies that ctx selected. */
kvasir_status rope_fingerprint(const struct kvasir_context *c, uint64_t *out,
                               kvasir_error *err) MUST_CHECK;
/* What they hash, for identity.c. False: out of memory. */
enum { TENSOR_PARTS = 3 }; /* data, scales, biases */
struct tensor_part {
    const uint8_t *data;
    size_t bytes; /* 0: the tensor's type has no such part */
};
bool fingerprint_put_config(struct text_buf *b, const struct model_config *c) MUST_CHECK;
bool fingerprint_put_tensor(struct text_buf *b, const struct checkpoint_tensor *t,
                            struct tensor_part parts[TENSOR_PARTS]) MUST_CHECK;
bool fingerprint_put_context(struct text_buf *b, const struct kvasir_context *c,
                             const char *model) MUST_CHECK;

/* ---- identities (identity.c) ----------------------------------------------------------------- */

/* Bytes of tensors that were hashed, of all. */
typedef void identity_progress_fn(void *user, uint64_t done, uint64_t total);
/* 128 bits of the checkpoint's configuration and of every byte of its tensors. Not of names that
 * nobody computes with, the tokenizer and the chat template: they change tokens, not pages.
 *
 * cache_path: a file of earlier results, made (0600) or replaced as needed; NULL: none. With it,
 * nothing is read if device, inode, size and both times of all files are as they were. It is only a
 * cache: lines that are damaged count for nothing, and if it cannot be written the next call hashes
 * again. Nor is a result kept of files that changed in the last two seconds, whose times a second
 * change might not move, or that were read into memory (no_mmap).
 *
 * progress (or NULL) is called by this thread: first with 0, last with all bytes; never if nothing
 * is read. One thread per core, 16 at most; seconds for a large model. KVASIR_ERR_IO: a file was
 * changed since it was opened, or cannot be read. */
kvasir_status checkpoint_identity(const struct kvasir_model *m, const char *cache_path,
                                  identity_progress_fn *progress, void *user, struct tier_key *out,
                                  kvasir_error *err) MUST_CHECK;
/* The context fingerprint of cache/tier.h. checkpoint: checkpoint_identity of the context's model.
 * Two contexts have the same only if each computes the same bits for every page and state of the
 * same tokens. Not in it, because they change no bit: budget, threads, chunks, how often states are
 * kept, and ctx but for the RoPE that it selects. Rows that were not computed from tokens alone (of
 * prompt-cache files, of prefixes stored in other formats) are not covered. */
kvasir_status context_identity(const struct kvasir_context *c, struct tier_key checkpoint,
                               struct tier_key *out, kvasir_error *err) MUST_CHECK;

#endif
