/* SPDX-License-Identifier: Apache-2.0 */
/* kvasir_engine.h: many sequences at once; kvasir.h includes it, whose rules hold.
 *
 *   kvasir_batch    sequences of one context that take a step together
 *   kvasir_engine   a context with a thread of its own, a prefix tree and a scheduler: requests go
 *                   in from any thread, tokens come out as events
 *
 *     kvasir_engine_options opt = kvasir_engine_defaults();
 *     kvasir_engine_create(model, &opt, &engine, &err);
 *     kvasir_request r = kvasir_request_defaults();
 *     r.tokens = ids; r.n_tokens = n; r.on_event = print; r.user = &answer;
 *     kvasir_engine_submit(engine, &r, &id, &err);
 *     ... print() is called for every token, and once with KVASIR_EVENT_DONE ...
 *     kvasir_engine_destroy(engine);
 */
#ifndef KVASIR_PUBLIC_ENGINE_H
#define KVASIR_PUBLIC_ENGINE_H

#ifndef KVASIR_H
#error "include <kvasir.h>"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- batches ------------------------------------------------------------------------------ */

/* Sequences of one context, of any lengths and formats, in an order. Nothing is padded and nothing
 * copied by any of these calls: a batch is a list of them. A sequence that is in a batch belongs to
 * it; of contexts, threads and errors the rules of kvasir_seq hold. */
typedef struct kvasir_batch kvasir_batch;

/* A batch of n sequences (0: empty), which it takes over once the call has succeeded; no sequence
 * twice. */
KVASIR_API kvasir_status kvasir_batch_merge(kvasir_context *ctx, kvasir_seq *const *seqs, size_t n,
                                            kvasir_batch **out, kvasir_error *err);
KVASIR_API void kvasir_batch_destroy(kvasir_batch *batch); /* and its sequences */
KVASIR_API size_t kvasir_batch_size(const kvasir_batch *batch);
/* Sequence i, which stays in the batch: to fork, trim, save or look at. */
KVASIR_API kvasir_seq *kvasir_batch_seq(const kvasir_batch *batch, size_t i);
/* Takes sequence i out, which is the caller's then; those behind it move up. */
KVASIR_API kvasir_status kvasir_batch_extract(kvasir_batch *batch, size_t i, kvasir_seq **out,
                                              kvasir_error *err);
/* Keeps the n sequences of `keep` (rising), destroys the others. */
KVASIR_API kvasir_status kvasir_batch_filter(kvasir_batch *batch, const size_t *keep, size_t n,
                                             kvasir_error *err);
/* Appends the sequences of `from`, of the same context, which is empty then. */
KVASIR_API kvasir_status kvasir_batch_extend(kvasir_batch *batch, kvasir_batch *from,
                                             kvasir_error *err);
/* counts[i] tokens (0: none) of sequence i, one sequence's after the other's in `tokens`, all in
 * the same steps as far as those reach. logits [size][vocab], row i of sequence i's last token,
 * unchanged where it had none; NULL: not wanted. A call that is refused has changed nothing. */
KVASIR_API kvasir_status kvasir_batch_eval(kvasir_batch *batch, const int32_t *tokens,
                                           const uint32_t *counts, float *logits,
                                           kvasir_error *err);

/* ---- engine ------------------------------------------------------------------------------- */

typedef struct kvasir_engine kvasir_engine;

typedef struct kvasir_engine_options {
    size_t struct_size;
    /* As of kvasir_context_create; prefill_chunk is the most rows of a step, of all requests
     * together; cache_bytes is not used, but what follows. */
    kvasir_context_options context;
    /* One budget of live sequences, stored prefixes, their states, tables, tree and the buffers of
     * steps. 0: cache_memory_percent of what is free beside the weights. */
    uint64_t cache_memory_bytes;
    double cache_memory_percent; /* 0 to 100, of free memory */
    uint32_t max_running;        /* requests' sequences in steps at once, at most */
    uint32_t max_waiting;        /* requests that wait, at most */
    bool no_prefix_cache;        /* prefixes are not kept */
    /* Beside the budget; 0: no limit. A stored prompt that another one goes on from is part of that
     * one; what running requests hold does not count, but their nodes of the tree, in bytes. */
    uint32_t stored_max_entries; /* stored prompts, at most; most stored_entries of the figures */
    uint64_t stored_max_bytes;   /* most stored_bytes of the figures, as far as it may be evicted */
    /* stored prefixes at other bits than live ones, as kv_bits; NULL: as they are */
    const char *stored_kv_bits, *stored_kv_group_size;
    uint32_t min_quantize_tokens; /* of prefixes with at least so many tokens */
} kvasir_engine_options;
KVASIR_API void kvasir_engine_init(kvasir_engine_options *options, size_t struct_size,
                                   size_t context_size);
/* kvasir_context_defaults but prefill_chunk 128, 75 %, 32 running, 1024 waiting, 256 tokens. */
static inline kvasir_engine_options kvasir_engine_defaults(void) {
    kvasir_engine_options options;
    kvasir_engine_init(&options, sizeof options, sizeof options.context);
    return options;
}

/* Starts the thread. The model is borrowed for the engine's life. */
KVASIR_API kvasir_status kvasir_engine_create(const kvasir_model *model,
                                              const kvasir_engine_options *options,
                                              kvasir_engine **out, kvasir_error *err);
/* Cancels what is there (their last events come before this returns) and ends the thread. */
KVASIR_API void kvasir_engine_destroy(kvasir_engine *engine);

typedef enum kvasir_event_kind {
    KVASIR_EVENT_START,    /* it runs: cached_tokens and hit are known */
    KVASIR_EVENT_PROGRESS, /* prompt_done of prompt_tokens have been run */
    KVASIR_EVENT_TOKEN,    /* of one choice */
    KVASIR_EVENT_DONE,     /* one choice is complete, or the request failed */
} kvasir_event_kind;

typedef enum kvasir_finish {
    KVASIR_FINISH_STOP,   /* an end token, a stop token or a stop text */
    KVASIR_FINISH_LENGTH, /* max_tokens, or the context is full */
    KVASIR_FINISH_CANCELLED,
    KVASIR_FINISH_ERROR,
} kvasir_finish;

/* Where a prompt met what was stored. */
typedef enum kvasir_hit {
    KVASIR_HIT_MISS,
    KVASIR_HIT_EXACT,         /* a stored prompt, whole */
    KVASIR_HIT_PREFIX,        /* a stored one goes before */
    KVASIR_HIT_SUPERSEQUENCE, /* the prompt is the beginning of a stored one */
    KVASIR_HIT_COMMON_PREFIX, /* both go on, otherwise */
    KVASIR_HIT_KINDS
} kvasir_hit;
/* "miss", "exact", "prefix", "supersequence", "common_prefix" */
KVASIR_API const char *kvasir_hit_text(kvasir_hit hit);

enum { KVASIR_TOP_LOGPROBS_MAX = 20 };
typedef struct kvasir_token_logprob {
    int32_t token;
    /* natural, of the model's distribution: before json_object, penalties, filters, temperature */
    float logprob;
} kvasir_token_logprob;

/* Valid during the call. */
typedef struct kvasir_event {
    uint64_t request;
    kvasir_event_kind kind;
    uint32_t choice;                                                       /* < n */
    uint32_t prompt_tokens, cached_tokens, prompt_done, completion_tokens; /* so far */
    kvasir_hit hit;
    /* TOKEN, and DONE with the rest of the text. text: what became certain with this token, [len]:
     * whole characters that belong to no stop text. */
    int32_t token;
    const char *text;
    size_t len;
    float logprob;                   /* of token, where asked for */
    const kvasir_token_logprob *top; /* [n_top], largest first */
    size_t n_top;
    /* DONE */
    kvasir_finish finish;
    const char *stop;          /* the stop text before which the answer ends; NULL: none */
    const kvasir_error *error; /* KVASIR_FINISH_ERROR */
    uint64_t cache_bytes;      /* of the choice's pages and states at its end; shared ones, too */
    bool last;                 /* nothing more comes of this request */
} kvasir_event;
/* Called on the engine's thread, which waits meanwhile: take the event and return. May cancel, may
 * not submit or destroy. */
typedef void kvasir_event_fn(void *user, const kvasir_event *event);

typedef struct kvasir_request {
    size_t struct_size;
    const int32_t *tokens; /* the prompt, [n_tokens], n_tokens > 0; copied */
    size_t n_tokens;
    uint32_t max_tokens;      /* of each choice; 0: what the context has room for */
    uint32_t n;               /* choices, 1 to max_running: forks of the prompt */
    kvasir_sampling sampling; /* choice i draws from seed + i */
    const char *const *stops; /* texts that end an answer and are not in it; copied */
    size_t n_stops;
    const int32_t *stop_tokens; /* tokens that do, beside the vocabulary's; copied */
    size_t n_stop_tokens;
    /* Control tokens whose names are a part of the answer's text (kvasir_detok_show); copied. One
     * that ends the answer gives no text. */
    const int32_t *shown_tokens;
    size_t n_shown_tokens;
    bool ignore_end; /* the vocabulary's end tokens do not end the answer */
    /* The answer is one JSON object (RFC 8259) and ends with its last brace: of the tokens that can
     * come next there one is sampled, as if the logits of all others were -inf. End and stop tokens
     * are never chosen; max_tokens and stop texts may cut it. At most 64 levels, 64 blanks in a
     * row, 64 digits of a number's whole part and of its fraction, 2 of its exponent; no \u0000.
     * Refused: without a tokenizer that can write it, and with ignore_end. Where a vocabulary
     * leads into a dead end the choice ends with an error. */
    bool json_object;
    /* -1: no logprobs; 0 to KVASIR_TOP_LOGPROBS_MAX: the token's and those of so many likeliest */
    int32_t top_logprobs;
    const char *salt; /* requests share prefixes with those of the same salt; NULL: "" */
    /* The prompt goes on behind what this file holds; borrowed until the last event. */
    const kvasir_prompt_cache *prompt_cache;
    kvasir_event_fn *on_event;
    void *user;
} kvasir_request;
KVASIR_API void kvasir_request_init(kvasir_request *request, size_t struct_size,
                                    size_t sampling_size);
/* n 1, kvasir_sampling_defaults, top_logprobs -1, all else 0. */
static inline kvasir_request kvasir_request_defaults(void) {
    kvasir_request request;
    kvasir_request_init(&request, sizeof request, sizeof request.sampling);
    return request;
}

/* From any thread. KVASIR_ERR_BUSY: max_waiting requests wait. KVASIR_ERR_CONTEXT and
 * KVASIR_ERR_BUDGET, with the numbers: it could never run. */
KVASIR_API kvasir_status kvasir_engine_submit(kvasir_engine *engine, const kvasir_request *request,
                                              uint64_t *id, kvasir_error *err);
/* From any thread. Before its next step the request gives back what it holds; its last event says
 * KVASIR_FINISH_CANCELLED. Nothing happens where it is done. */
KVASIR_API void kvasir_engine_cancel(kvasir_engine *engine, uint64_t id);
/* From any thread: forgets stored prefixes that no live sequence uses; of one salt, or all where
 * NULL. */
KVASIR_API void kvasir_engine_forget(kvasir_engine *engine, const char *salt);

/* Steps are counted by how long they took: those of at most KVASIR_STEP_SECONDS(i), but not of what
 * i - 1 says, by step_counts[i]; the last one counts all longer ones. */
enum { KVASIR_STEP_COUNTS = 18 };
#define KVASIR_STEP_SECONDS(i) (0.00025 * (double)(1u << (i))) /* 0.25 ms ... 16.384 s */

typedef struct kvasir_engine_stats {
    uint32_t running, waiting;
    uint64_t steps, requests, finished, cancelled, failed, preemptions;
    uint64_t prompt_tokens, cached_tokens, generated_tokens;
    uint64_t rerun_tokens; /* run again after a preemption */
    uint64_t hits[KVASIR_HIT_KINDS];
    uint64_t budget_bytes, used_bytes, peak_bytes;
    uint64_t fixed_bytes;  /* of used: the buffers of steps */
    uint64_t stored_bytes; /* of used: pages and states that only the tree holds, and the tree */
    /* stored prompts that no request runs on, and others do not go on from; of all that is stored,
     * running requests' included: tokens, nodes of the tree */
    uint64_t stored_entries, stored_tokens, tree_nodes;
    uint64_t store_rejections; /* times that something did not fit the budget and was not stored */
    uint64_t evicted_pages, requantized_pages;
    double step_seconds; /* of all steps */
    uint64_t step_counts[KVASIR_STEP_COUNTS];
} kvasir_engine_stats;
KVASIR_API void kvasir_engine_get_stats(kvasir_engine *engine, kvasir_engine_stats *stats);

/* used_bytes by what it is; stored: of stored_bytes, live: all else. Formats that the engine has
 * had pages in, "states" of recurrent layers where there are, "tables": what is no page. */
typedef struct kvasir_format_bytes {
    char format[64]; /* "K 8 g64, V 4 g64" */
    uint64_t live_bytes, stored_bytes;
} kvasir_format_bytes;
/* Fills in at most `cap` of them; returns how many there are, which only grows. With stats, where
 * not NULL, of the same moment. */
KVASIR_API size_t kvasir_engine_get_formats(kvasir_engine *engine, kvasir_format_bytes *formats,
                                            size_t cap, kvasir_engine_stats *stats);
KVASIR_API void kvasir_engine_get_context(kvasir_engine *engine, kvasir_context_info *info);

/* What memory is for; nothing of it changes while the engine lives. */
typedef struct kvasir_memory_plan {
    uint64_t weight_bytes; /* mapped, not of the budget */
    uint64_t budget_bytes;
    uint64_t step_bytes;  /* of the budget: the buffers of steps */
    uint64_t state_bytes; /* of recurrent layers, a sequence; 0: there are none */
    uint32_t fit_tokens;  /* of a sequence that has the budget alone */
    /* A sequence's first tokens that stay f16 (quantized_kv_start, whole pages), their bytes, and
     * what they would take in the formats of the others. */
    uint32_t start_tokens;
    uint64_t start_bytes, start_bytes_quantized;
    uint32_t n_groups;
    kvasir_layer_group groups[KVASIR_LAYER_GROUPS_MAX];
} kvasir_memory_plan;
KVASIR_API void kvasir_engine_get_plan(const kvasir_engine *engine, kvasir_memory_plan *plan);
/* Of one sequence of so many tokens. */
typedef struct kvasir_sequence_plan {
    uint64_t bytes;      /* the most of its pages and states while it grows */
    uint64_t bytes16;    /* at 16 bits, as kvasir_seq_bytes_16bit counts */
    uint64_t need_bytes; /* of the budget: bytes, copies of pages, tables, its part of the tree */
} kvasir_sequence_plan;
KVASIR_API void kvasir_engine_plan_sequence(const kvasir_engine *engine, uint32_t tokens,
                                            kvasir_sequence_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
