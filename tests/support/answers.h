/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of a kvasir_engine and their results. Events are recorded, and their order is checked,
 * on the engine's thread; tests look at them after the last one. */
#ifndef ANSWERS_H
#define ANSWERS_H

#include <stdbool.h>

#include <kvasir.h>

enum { ANSWER_CHOICES = 8, ANSWER_TOKENS = 1300, ANSWER_TEXT = 8192, ANSWER_TOPS = 20 };

struct answer_choice {
    int32_t tokens[ANSWER_TOKENS]; /* of TOKEN events */
    float logprobs[ANSWER_TOKENS];
    kvasir_token_logprob top[ANSWER_TOKENS][ANSWER_TOPS];
    size_t n_top[ANSWER_TOKENS];
    uint32_t n, completion; /* TOKEN events; what the last event says */
    char text[ANSWER_TEXT];
    size_t len;
    bool done;
    kvasir_finish finish;
    char stop[64]; /* the stop text that ended it, cut; "": none */
};

/* All zero except the request. */
struct answer {
    kvasir_request request;
    kvasir_engine *engine; /* answer_submit */
    uint64_t id;
    uint32_t cancel_at;  /* cancels itself at this many tokens of choice 0; 0: never */
    bool cancel_running; /* cancels itself with its START event */
    uint32_t hold_at;    /* at this many, the engine's thread waits for answers_release */
    struct answer_choice choices[ANSWER_CHOICES];
    uint32_t starts, progress, lasts;
    uint32_t prompt_tokens, cached_tokens, prompt_done, common_tokens;
    kvasir_hit hit;
    kvasir_miss why;
    int32_t other_token;
    kvasir_error error;
    const char *wrong; /* the first event that breaks a rule, or NULL */
};

/* Options of an engine for tiny models: chunks of PREFILL_CHUNK rows. */
kvasir_engine_options answers_options(uint32_t prefill_chunk);
/* Fails the test if the engine cannot be created. */
kvasir_engine *answers_engine(const kvasir_model *model, const kvasir_engine_options *o);

/* Sets on_event and user. */
kvasir_status answer_submit(kvasir_engine *e, struct answer *a, kvasir_error *err);
/* Up to 8 at once, under one id. */
kvasir_status answers_submit_all(kvasir_engine *e, struct answer **a, size_t n, kvasir_error *err);
/* Waits for the last event; fails the test if one broke a rule. */
void answer_wait(struct answer *a);
/* answer_submit and answer_wait; fails the test if the request is refused or ends with an error. */
void answer_run(kvasir_engine *e, struct answer *a);
struct answer *answer_new(const int32_t *tokens, size_t n, uint32_t max_tokens);
void answers_release(void); /* requests held at hold_at go on, now and later ones */
void answers_hold(void);
void answer_wait_held(void); /* until the engine's thread is held */

/* The engine's figures once all requests have ended; checks what must always hold. */
kvasir_engine_stats engine_settled(kvasir_engine *e);

/* The tokens [max_tokens] that the same request gives alone, without an engine. Returns how many
 * (an end token ends them and is not one of them, unless ignore_end). */
uint32_t answer_alone(const kvasir_model *model, const kvasir_context_options *o,
                      const kvasir_request *r, uint32_t choice, int32_t *tokens);

#endif
