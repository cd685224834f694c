/* SPDX-License-Identifier: Apache-2.0 */
/* kvasir_engine.h: many sequences at once; kvasir.h includes it, whose rules hold.
 *
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

/* ---- engine ------------------------------------------------------------------------------- */

typedef struct kvasir_engine kvasir_engine;

typedef struct kvasir_engine_options {
    size_t struct_size;
    /* As for kvasir_context_create. prefill_chunk is the most rows of a step, of all requests
     * together. cache_bytes is ignored in favour of the next fields. */
    kvasir_context_options context;
    /* The budget of running sequences, stored prefixes, their states and tables, the prefix tree
     * and step buffers. 0: cache_memory_percent of the memory that is free beside the weights, the
     * GPU's on a GPU. */
    uint64_t cache_memory_bytes;
    double cache_memory_percent; /* 0 to 100, of free memory */
    uint32_t max_running;        /* most sequences that run at once */
    uint32_t max_waiting;        /* most requests that wait */
    bool no_prefix_cache;        /* do not store prefixes */
    /* Limits within the budget; 0: none. They are enforced on stored_entries and stored_bytes of
     * kvasir_engine_stats. A stored prompt that a longer one extends counts as part of that one.
     * What running requests hold does not count, except their nodes of the tree, in bytes. */
    uint32_t stored_max_entries;
    uint64_t stored_max_bytes;
    /* formats of stored prefixes, as kv_bits; NULL: as they were computed */
    const char *stored_kv_bits, *stored_kv_group_size;
    uint32_t min_quantize_tokens; /* shorter prefixes keep their formats */
    /* Stores below the memory for prefixes (docs/tiers.md); NULL: none. A prefix from there gives
     * the bits that computing it would give. */
    const char *cache_dir;      /* a folder, which is made if it is missing */
    uint64_t cache_disk_bytes;  /* of all files in it, at most */
    double cache_flush_seconds; /* kvasir_engine_destroy may write for so long what is not there */
    const char *cache_remote;   /* redis://[user:password@]host:port[/db] */
    const char *cache_remote_secret_file; /* 16 to 4096 bytes; NULL: records are not signed */
    uint32_t cache_remote_ttl_seconds;    /* after which a record goes; 0: when the store likes */
    /* One line about a store that fails or has recovered; from any thread. NULL: nobody is told. */
    void (*on_note)(void *user, const char *line);
    void *note_user;
    uint64_t cache_remote_tenant_bytes; /* that cache_remote takes of one salt; 0: no limit */
    /* While answers are written, prompts get only as many tokens of a step as keep it near so many
     * milliseconds, by how long the last steps took. 0: prefill_chunk alone limits a step */
    uint32_t target_step_ms;
    /* Of a GPU: so much of the host's memory, pinned, for prefixes that have to leave the GPU's. It
     * is a store like those above, asked before them, and ends with the engine. 0: none */
    uint64_t cache_host_bytes;
} kvasir_engine_options;
KVASIR_API void kvasir_engine_init(kvasir_engine_options *options, size_t struct_size,
                                   size_t context_size);
/* kvasir_context_defaults, 75 %, 32 running, 1024 waiting, 256 tokens. */
static inline kvasir_engine_options kvasir_engine_defaults(void) {
    kvasir_engine_options options;
    kvasir_engine_init(&options, sizeof options, sizeof options.context);
    return options;
}

/* Starts the engine's thread. Borrows the model for the engine's life. */
KVASIR_API kvasir_status kvasir_engine_create(const kvasir_model *model,
                                              const kvasir_engine_options *options,
                                              kvasir_engine **out, kvasir_error *err);
/* Cancels all requests, whose last events come before this returns, and ends the thread. */
KVASIR_API void kvasir_engine_destroy(kvasir_engine *engine);

typedef enum kvasir_event_kind {
    KVASIR_EVENT_START,    /* it runs; cached_tokens and hit are known */
    KVASIR_EVENT_PROGRESS, /* prompt_done of prompt_tokens were evaluated */
    KVASIR_EVENT_TOKEN,    /* of one choice */
    KVASIR_EVENT_DONE,     /* one choice is complete, or the request failed */
    /* With prompt_logprobs, between START and the first TOKEN: one for each token of the prompt but
     * the first, in order; token, logprob, rank and top are set */
    KVASIR_EVENT_PROMPT_TOKEN,
} kvasir_event_kind;

typedef enum kvasir_finish {
    KVASIR_FINISH_STOP,   /* an end token, a stop token or a stop text */
    KVASIR_FINISH_LENGTH, /* max_tokens, or the context is full */
    KVASIR_FINISH_CANCELLED,
    KVASIR_FINISH_ERROR,
} kvasir_finish;

/* How a prompt matched stored prefixes. */
typedef enum kvasir_hit {
    KVASIR_HIT_MISS,
    KVASIR_HIT_EXACT,         /* the whole prompt is stored */
    KVASIR_HIT_PREFIX,        /* a stored prompt is its beginning */
    KVASIR_HIT_SUPERSEQUENCE, /* it is the beginning of a stored prompt */
    KVASIR_HIT_COMMON_PREFIX, /* they begin alike and then differ */
    KVASIR_HIT_KINDS
} kvasir_hit;
/* "miss", "exact", "prefix", "supersequence", "common_prefix" */
KVASIR_API const char *kvasir_hit_text(kvasir_hit hit);

/* Why no more of a prompt came from stored prefixes. */
typedef enum kvasir_miss {
    KVASIR_MISS_NOTHING,       /* all did, but the last token, which is always computed */
    KVASIR_MISS_NOT_LOOKED_UP, /* prefixes are not kept, or the request continues a prompt cache */
    KVASIR_MISS_NEW,           /* the next token was never stored after those before; or long ago */
    KVASIR_MISS_EVICTED,       /* the next page was stored and had to make room lately */
    KVASIR_MISS_EXPIRED,       /* the next page was stored for a time that is over */
    /* The tokens are stored, and something that the next one needs is not: */
    KVASIR_MISS_WINDOW,  /* pages of layers with a window, which made room */
    KVASIR_MISS_STATE,   /* the state of recurrent layers at this length */
    KVASIR_MISS_FORMATS, /* a page in the formats of running requests: it is stored in others */
    KVASIR_MISS_KINDS
} kvasir_miss;
/* "nothing", "not_looked_up", "never_seen", "evicted", "expired", "window_dropped", "no_state",
 * "other_formats" */
KVASIR_API const char *kvasir_miss_text(kvasir_miss why);

enum { KVASIR_TOP_LOGPROBS_MAX = 20 };
typedef struct kvasir_token_logprob {
    int32_t token;
    /* natural; of the model's distribution, before grammar, penalties, filters, temperature */
    float logprob;
} kvasir_token_logprob;

/* Valid during the call. */
typedef struct kvasir_event {
    uint64_t request;
    kvasir_event_kind kind;
    uint32_t choice;                                                       /* < n */
    uint32_t prompt_tokens, cached_tokens, prompt_done, completion_tokens; /* so far */
    kvasir_hit hit;
    /* TOKEN, and DONE with the rest of the text. text: [len], what became certain with this token:
     * whole characters that do not belong to a stop text. */
    int32_t token;
    const char *text;
    size_t len;
    float logprob;                   /* of token, if requested */
    const kvasir_token_logprob *top; /* [n_top], largest first */
    size_t n_top;
    /* DONE */
    kvasir_finish finish;
    const char *stop;          /* the stop text before which the answer ends; NULL: none */
    const kvasir_error *error; /* KVASIR_FINISH_ERROR */
    uint64_t cache_bytes;      /* of the choice's pages and states at its end, shared ones, too */
    bool last;                 /* the last event of this request */
    /* From START on: how many of the prompt's first tokens were stored, used or not; why no more
     * were used; and which token follows them where they are stored, -1: none. */
    uint32_t common_tokens;
    kvasir_miss why;
    int32_t other_token;
    const float *embedding; /* DONE: [n_embedding], of length 1; NULL: none was asked for */
    size_t n_embedding;
    uint32_t rank; /* PROMPT_TOKEN: so many tokens are at least as likely, itself counted */
    const float *asked_logprobs; /* DONE: [n_asked], of asked_tokens */
    size_t n_asked;
    double lookup_seconds; /* START: how long stored prefixes were looked up and loaded */
    /* DONE: of the choice's pages, those that kv_bits "auto" had given fewer bits, once for each
     * layer group */
    uint32_t requantized_pages;
} kvasir_event;
/* Called on the engine's thread, which waits meanwhile: copy what is needed and return. It may call
 * kvasir_engine_cancel, but not submit or destroy. */
enum { KVASIR_WEIGHT_MAX = 1000, KVASIR_TTL_MAX = 10 * 365 * 24 * 3600 };

typedef void kvasir_event_fn(void *user, const kvasir_event *event);

/* Which rows of a text its embedding is made of. */
typedef enum kvasir_pooling {
    KVASIR_POOLING_NONE,
    KVASIR_POOLING_LAST,
    KVASIR_POOLING_MEAN
} kvasir_pooling;
/* As the checkpoint says, otherwise LAST. NONE: it says a way that is not known here. */
KVASIR_API kvasir_pooling kvasir_model_pooling(const kvasir_model *model);

typedef struct kvasir_request {
    size_t struct_size;
    const int32_t *tokens; /* the prompt, [n_tokens], n_tokens > 0; copied */
    size_t n_tokens;
    uint32_t max_tokens;      /* of each choice; 0: as many as fit the context */
    uint32_t n;               /* choices, 1 to max_running: forks of the prompt */
    kvasir_sampling sampling; /* choice i draws from seed + i */
    const char *const *stops; /* texts that end an answer and are not in it; copied */
    size_t n_stops;
    const int32_t *stop_tokens; /* tokens that end it, besides the vocabulary's; copied */
    size_t n_stop_tokens;
    /* Control tokens whose names are part of the answer's text (kvasir_detok_show); copied. A token
     * that ends the answer adds no text. */
    const int32_t *shown_tokens;
    size_t n_shown_tokens;
    bool ignore_end; /* the vocabulary's end tokens do not end the answer */
    /* -1: no logprobs; 0 to KVASIR_TOP_LOGPROBS_MAX: the token's and those of so many likeliest */
    int32_t top_logprobs;
    const char *salt; /* requests share prefixes only with the same salt; NULL: "" */
    /* The prompt continues the tokens of this file; borrowed until the last event. */
    const kvasir_prompt_cache *prompt_cache;
    kvasir_event_fn *on_event;
    void *user;
    /* Whose request it is, a number of the caller's; 0: nobody's in particular. While requests of
     * several tenants wait, each tenant gets tokens in proportion to its weight, however many
     * requests it has. */
    uint64_t tenant;
    uint32_t weight; /* of the tenant from now on, at most KVASIR_WEIGHT_MAX; 0: 1 */
    /* What the request stores is not found any more, neither in memory nor in a store below it,
     * after so many seconds, counted from its end at the latest; 0: no limit. A page that another
     * request stores, too, lives as long as the longer of both. */
    uint64_t ttl_seconds; /* at most KVASIR_TTL_MAX */
    /* It finds stored prefixes; nothing that it computes is stored anywhere. After a preemption it
     * is computed again. Not together with the two others. */
    bool no_store;
    /* What it stores, and the prefix that it found, make room in memory after all else: as long as
     * such prefixes take at most half of cache_memory_bytes. kvasir_engine_forget ends that. */
    bool pin;
    /* The answer is a text of it: only tokens that can come next are sampled, as if all other
     * logits were -inf. End and stop tokens may come where it may end; max_tokens and stop texts
     * may cut it off. What has no alternative comes in one step, unless there is top_logprobs. If
     * no token can come next, the choice ends with an error. Not together with ignore_end.
     * Borrowed for the call. */
    const kvasir_grammar *grammar;
    bool shorten; /* if max_tokens do not fit, as many as fit */
    /* Only the prompt is evaluated: there are no TOKEN events, max_tokens means nothing, and the
     * prompt may fill the context. */
    bool no_answer;
    /* As top_logprobs, of the prompt's tokens but the first; -1: none. All of the prompt is
     * evaluated, whatever prefixes are stored. Not together with prompt_cache. */
    int32_t prompt_logprobs;
    /* The prompt's embedding, and no answer: the states after the last layer and its norm, pooled,
     * scaled to length 1. With KVASIR_POOLING_MEAN, again, all of the prompt is evaluated. Only
     * with n 1; not together with prompt_logprobs, grammar and prompt_cache. */
    kvasir_pooling embed;
    /* The log-probabilities that these tokens have after the prompt, and no answer; copied, at most
     * KVASIR_TOP_LOGPROBS_MAX. Only with n 1; not together with embed and grammar. */
    const int32_t *asked_tokens;
    size_t n_asked_tokens;
    /* Of the tenant's requests that wait those of the lowest priority start first, and their
     * prompts are computed first; but every fourth that starts is the one that waits longest. */
    int32_t priority;
} kvasir_request;
KVASIR_API void kvasir_request_init(kvasir_request *request, size_t struct_size,
                                    size_t sampling_size);
/* n 1, kvasir_sampling_defaults, top_logprobs and prompt_logprobs -1, all else 0. */
static inline kvasir_request kvasir_request_defaults(void) {
    kvasir_request request;
    kvasir_request_init(&request, sizeof request, sizeof request.sampling);
    return request;
}

/* From any thread. KVASIR_ERR_BUSY: max_waiting requests are waiting. KVASIR_ERR_CONTEXT,
 * KVASIR_ERR_BUDGET: it could never run. */
KVASIR_API kvasir_status kvasir_engine_submit(kvasir_engine *engine, const kvasir_request *request,
                                              uint64_t *id, kvasir_error *err);
/* n of them (1 or more), all or none; each runs as if submitted alone. They take one place among
 * max_waiting, and share one id, by which one call cancels all; their `user` tells them apart.
 * *refused (or NULL): the index of the one because of which none was taken; n: not because of one.
 */
KVASIR_API kvasir_status kvasir_engine_submit_all(kvasir_engine *engine,
                                                  const kvasir_request *const *requests, size_t n,
                                                  uint64_t *id, size_t *refused, kvasir_error *err);
/* From any thread. The request releases its memory before the next step; its last event says
 * KVASIR_FINISH_CANCELLED. Does nothing if the request is done. */
KVASIR_API void kvasir_engine_cancel(kvasir_engine *engine, uint64_t id);
/* A histogram of step times: step_counts[i] counts steps of at most KVASIR_STEP_SECONDS(i) that
 * step_counts[i - 1] does not count; the last one counts all longer ones. */
enum { KVASIR_STEP_COUNTS = 18 };
#define KVASIR_STEP_SECONDS(i) (0.00025 * (double)(1u << (i))) /* 0.25 ms ... 16.384 s */

typedef struct kvasir_engine_stats {
    uint32_t running, waiting;
    uint64_t steps, requests, finished, cancelled, failed, preemptions;
    uint64_t prompt_tokens, cached_tokens, generated_tokens;
    uint64_t rerun_tokens; /* evaluated again after a preemption */
    uint64_t hits[KVASIR_HIT_KINDS];
    uint64_t budget_bytes, used_bytes, peak_bytes;
    uint64_t fixed_bytes; /* part of used: step buffers */
    /* part of used: pages and states that only the tree holds, and the tree */
    uint64_t stored_bytes;
    /* Stored prompts that no request uses and no longer one extends. Tokens and nodes of the tree,
     * including those of running requests. */
    uint64_t stored_entries, stored_tokens, tree_nodes;
    uint64_t store_rejections; /* times that something was not stored for lack of room */
    uint64_t evicted_pages, requantized_pages;
    double step_seconds; /* of all steps */
    uint64_t step_counts[KVASIR_STEP_COUNTS];
    /* Memory that the budget stands for: used_bytes, free pages that keep their memory for the next
     * ones, and tables of free pages. At most budget_bytes and 1 %. On a GPU, whose memory goes
     * back in larger pieces, it can be more. */
    uint64_t resident_bytes;
    /* Prefixes from the stores below: loads that were begun, what they brought (tokens beyond those
     * in memory), and those that were not begun because computing is faster, were given up because
     * they took too long, or ended before a record that was missing or damaged. Pages of 64 tokens
     * given to the stores, each store counted; those of them that were given up for lack of room or
     * time, or that the store did not take. */
    uint64_t tier_loads, tier_tokens, tier_pages, tier_bytes;
    uint64_t tier_loads_slow, tier_loads_late, tier_loads_cut;
    uint64_t tier_offered_pages, tier_unwritten_pages;
    uint64_t misses[KVASIR_MISS_KINDS]; /* requests, as hits */
    uint64_t pinned_bytes; /* that pinned prefixes took when they were pinned; part of stored_bytes
                              or of what running requests hold */
    uint64_t expired_tokens; /* of prefixes that were removed because their time was over */
    /* Of grammars: tokens without an alternative, sets of tokens made, waits of steps for one. */
    uint64_t forced_tokens, masks, mask_waits;
    double mask_seconds, mask_wait_seconds;
} kvasir_engine_stats;
KVASIR_API void kvasir_engine_get_stats(kvasir_engine *engine, kvasir_engine_stats *stats);
/* KVASIR_OK while the device works. After its first error all requests, running and later ones, end
 * with that error, and this returns it. From any thread. */
KVASIR_API kvasir_status kvasir_engine_get_error(kvasir_engine *engine, kvasir_error *err);

/* One store below the memory, in the order in which they are asked. */
typedef struct kvasir_tier_stats {
    const char *name;                                /* "disk", "remote" */
    uint64_t records, bytes, limit_bytes;            /* what it has; 0: others write to it, too */
    uint64_t reads, read_bytes, writes, write_bytes; /* that succeeded */
    uint64_t missing, damaged, failed;               /* reads that did not */
    uint64_t write_failures;
    uint64_t dropped;    /* records that made room, expired or were forgotten */
    double read_seconds; /* of reads that succeeded */
    bool down;           /* after errors it does nothing for a while */
    /* pages of hits, of 64 tokens; loads begun, given up as too late, not begun as too slow */
    uint64_t hit_pages, loads, loads_late, loads_slow;
} kvasir_tier_stats;
/* Fills at most `cap` and returns how many there are. From any thread. */
KVASIR_API size_t kvasir_engine_get_tiers(kvasir_engine *engine, kvasir_tier_stats *tiers,
                                          size_t cap);

/* used_bytes by format: stored_bytes and the rest (live). Formats are those that the engine has had
 * pages in; "states": of recurrent layers; "tables": everything that is not a page. */
typedef struct kvasir_format_bytes {
    char format[64]; /* "K 8 g64, V 4 g64" */
    uint64_t live_bytes, stored_bytes;
} kvasir_format_bytes;
/* Fills at most `cap` of them and returns how many there are, which only grows. *stats, if not
 * NULL, is of the same moment. */
KVASIR_API size_t kvasir_engine_get_formats(kvasir_engine *engine, kvasir_format_bytes *formats,
                                            size_t cap, kvasir_engine_stats *stats);
KVASIR_API void kvasir_engine_get_context(kvasir_engine *engine, kvasir_context_info *info);

/* How memory is used. It does not change while the engine exists. */
typedef struct kvasir_memory_plan {
    uint64_t weight_bytes; /* mapped, not part of the budget */
    uint64_t budget_bytes;
    uint64_t step_bytes;  /* part of the budget: step buffers */
    uint64_t state_bytes; /* of recurrent layers, per sequence; 0: none */
    uint32_t fit_tokens;  /* of a sequence that has the whole budget */
    /* The first tokens of a sequence that stay f16 (quantized_kv_start, whole pages), their bytes,
     * and their bytes in the formats of the others. */
    uint32_t start_tokens;
    uint64_t start_bytes, start_bytes_quantized;
    /* What a sequence takes at 16 bits beside its pages, in formats that encode a page when it is
     * full: for its newest page, and for the pages before that which a query sees as f16
     * (kv_exact_tail). 0: none. */
    uint64_t open_page_bytes;
    uint32_t tail_tokens;
    uint64_t tail_bytes;
    uint32_t n_groups;
    kvasir_layer_group groups[KVASIR_LAYER_GROUPS_MAX];
} kvasir_memory_plan;
KVASIR_API void kvasir_engine_get_plan(const kvasir_engine *engine, kvasir_memory_plan *plan);
/* Of one sequence of so many tokens. */
typedef struct kvasir_sequence_plan {
    uint64_t bytes;      /* of its pages and states, at most while it grows */
    uint64_t bytes16;    /* at 16 bits, as by kvasir_seq_bytes_16bit */
    uint64_t need_bytes; /* of the budget: bytes, copied pages, tables, its part of the tree */
} kvasir_sequence_plan;
KVASIR_API void kvasir_engine_plan_sequence(const kvasir_engine *engine, uint32_t tokens,
                                            kvasir_sequence_plan *plan);

#ifdef __cplusplus
}
#endif

#include "kvasir_stored.h" /* what may be asked of stored prefixes */

#endif
