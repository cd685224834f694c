/* SPDX-License-Identifier: Apache-2.0 */
/* grammar.c: compiled grammars, places in a text, and the sets of tokens that may come next. The
 * machine of a grammar is shared by all its places, under one lock.
 *
 * A place has the number of its state and a copy of the state's block, from which the state is
 * found again once the machine has forgotten it.
 *
 * The set of tokens of a state has two parts: the plain tokens of a JSON string, kept once for all
 * states with the same text key (or, for any text, by the vocabulary), and the rest, kept with the
 * state.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "grammar/vocab.h"

/* machine.work for a set of tokens: about half a second. */
enum { ALLOW_WORK = 1 << 19 };

struct grammar {
    atomic_uint refs;
    struct recognizer *recognizer;
    pthread_mutex_t lock;
    struct machine machine; /* under the lock */
};

struct grammar_place {
    struct grammar *g;
    uint32_t state; /* in the machine of this generation */
    uint64_t generation;
    struct text_buf block;
};

/* ---- compiling ------------------------------------------------------------------------------- */

struct grammar_limits grammar_limits_default(void) {
    return (struct grammar_limits){.text_bytes = 1 << 20,
                                   .compiled_bytes = 64 << 20,
                                   .steps = 6 * 1000 * 1000,
                                   .machine_bytes = 32 << 20};
}

static kvasir_status out_of_memory(kvasir_error *err) {
    return fail(err, KVASIR_ERR_MEMORY, "not enough memory for a grammar");
}

kvasir_status grammar_of(struct recognizer *r, size_t machine_bytes, struct grammar **out,
                         kvasir_error *err) {
    struct grammar *g = mem_calloc(1, sizeof *g);
    if (!g || !machine_init(&g->machine, r, machine_bytes)) {
        r->ops->destroy(r);
        mem_free(g);
        return out_of_memory(err);
    }
    atomic_init(&g->refs, 1);
    g->recognizer = r;
    pthread_mutex_init(&g->lock, NULL);
    *out = g;
    return KVASIR_OK;
}

kvasir_status grammar_compile(enum grammar_kind kind, struct text_span text,
                              const struct grammar_limits *limits, struct grammar **out,
                              kvasir_error *err) {
    static kvasir_status (*const compile[GRAMMAR_KINDS])(struct text_span, struct grammar_budget *,
                                                         struct recognizer **, kvasir_error *) = {
        [GRAMMAR_JSON_SCHEMA] = schema_compile,
        [GRAMMAR_REGEX] = regex_compile,
        [GRAMMAR_GBNF] = gbnf_compile,
    };
    const struct grammar_limits default_limits = grammar_limits_default();
    const struct grammar_limits *l = limits ? limits : &default_limits;
    struct grammar_budget budget = {.steps = l->steps, .bytes = l->compiled_bytes};
    struct recognizer *r;
    ASSERT(kind < GRAMMAR_KINDS);
    if (text.len > l->text_bytes)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "the text has %zu bytes; at most %zu are allowed",
                    text.len, l->text_bytes);
    const size_t good = utf8_check(text.data, text.len);
    if (good < text.len)
        return fail_at(err, KVASIR_ERR_ARGUMENT, (int64_t)good, "the text is not UTF-8");
    TRY(compile[kind](text, &budget, &r, err));
    return grammar_of(r, l->machine_bytes, out, err);
}

struct grammar *grammar_retain(struct grammar *g) {
    atomic_fetch_add(&g->refs, 1);
    return g;
}

void grammar_release(struct grammar *g) {
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1)
        return;
    machine_free(&g->machine);
    g->recognizer->ops->destroy(g->recognizer);
    pthread_mutex_destroy(&g->lock);
    mem_free(g);
}

size_t grammar_bytes(struct grammar *g) {
    pthread_mutex_lock(&g->lock);
    const size_t bytes = sizeof *g + machine_bytes(&g->machine);
    pthread_mutex_unlock(&g->lock);
    return bytes + g->recognizer->ops->bytes(g->recognizer);
}

/* Between these two the machine is used, for so much work. */
static struct machine *lock_machine(struct grammar *g, uint64_t work) {
    pthread_mutex_lock(&g->lock);
    machine_allow_work(&g->machine, work);
    return &g->machine;
}

static kvasir_status unlock_machine(struct grammar *g, bool good, kvasir_error *err) {
    const enum recognizer_step failed = g->machine.failed;
    pthread_mutex_unlock(&g->lock);
    if (good)
        return KVASIR_OK;
    if (failed == STEP_LIMIT)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "the grammar costs more to follow than allowed");
    return out_of_memory(err);
}

/* ---- places (these functions hold the lock) -------------------------------------------------- */

/* The place's state in the machine as it is now. STATE_UNKNOWN: out of memory. */
static uint32_t state_of(struct grammar_place *p) {
    struct machine *m = &p->g->machine;
    if (machine_is_full(m) && !machine_forget(m, NULL, 0))
        return STATE_UNKNOWN;
    if (p->generation == m->generation)
        return p->state;
    const uint32_t state = machine_intern(m, (struct text_span){p->block.data, p->block.len});
    if (state != STATE_UNKNOWN) {
        p->state = state;
        p->generation = m->generation;
    }
    return state;
}

static bool move_to(struct grammar_place *p, uint32_t state) {
    const struct machine *m = &p->g->machine;
    const struct text_span block = machine_block(m, state);
    if (block.len > p->block.len && !text_reserve(&p->block, block.len - p->block.len))
        return false;
    p->block.len = 0;
    if (!text_append(&p->block, block.data, block.len))
        return false;
    p->state = state;
    p->generation = m->generation;
    return true;
}

/* The state after `byte`, after forgetting all but *state if the machine is full. */
static uint32_t step_from(struct machine *m, uint32_t *state, uint8_t byte) {
    if (machine_is_full(m) && !machine_forget(m, state, 1))
        return STATE_UNKNOWN;
    return machine_step(m, *state, byte);
}

static bool push_bytes(struct grammar_place *p, struct text_span bytes, size_t *taken) {
    struct machine *m = &p->g->machine;
    uint32_t state = state_of(p), to = state;
    size_t n = 0;
    for (; n < bytes.len && state != STATE_UNKNOWN; n++) {
        to = step_from(m, &state, (uint8_t)bytes.data[n]);
        if (to <= STATE_REFUSED)
            break;
        state = to;
    }
    if (to == STATE_UNKNOWN || !move_to(p, state))
        return false;
    *taken = n;
    return true;
}

/* The only byte that can come in *state; -1: there are several, or the text may end; -2: out of
 * memory. (Also -1 in a dead end, which there should not be: grammar_allow then fails.) */
static int only_byte(struct machine *m, uint32_t *state) {
    int only = -1;
    if (m->states[*state].end != GRAMMAR_OPEN)
        return -1;
    for (unsigned byte = 0; byte < 256; byte++) {
        const uint32_t to = step_from(m, state, (uint8_t)byte);
        if (to == STATE_UNKNOWN)
            return -2;
        if (to == STATE_REFUSED)
            continue;
        if (only >= 0)
            return -1;
        only = (int)byte;
    }
    return only;
}

static bool force_bytes(struct grammar_place *p, size_t max, struct text_buf *out) {
    struct machine *m = &p->g->machine;
    uint32_t state = state_of(p);
    for (size_t n = 0; n < max && state != STATE_UNKNOWN; n++) {
        const int only = only_byte(m, &state);
        const char byte = (char)only;
        if (only == -1 || only == 0xff)
            return true;
        if (only == -2 || !text_append(out, &byte, 1))
            return false;
        state = step_from(m, &state, (uint8_t)only);
    }
    return state != STATE_UNKNOWN;
}

/* ---- the same, for others -------------------------------------------------------------------- */

static kvasir_status make_place(struct grammar *g, struct grammar_place **out, kvasir_error *err) {
    struct grammar_place *p = mem_calloc(1, sizeof *p);
    if (!p)
        return out_of_memory(err);
    p->g = grammar_retain(g);
    *out = p;
    return KVASIR_OK;
}

kvasir_status grammar_begin(struct grammar *g, struct grammar_place **out, kvasir_error *err) {
    struct grammar_place *p = NULL;
    TRY(make_place(g, &p, err));
    const uint32_t state = machine_start(lock_machine(g, 0));
    const bool good = state != STATE_UNKNOWN && move_to(p, state);
    const kvasir_status status = unlock_machine(g, good, err);
    if (status == KVASIR_OK)
        *out = p;
    else
        grammar_place_destroy(p);
    return status;
}

kvasir_status grammar_place_copy(const struct grammar_place *p, struct grammar_place **out,
                                 kvasir_error *err) {
    struct grammar_place *copy = NULL;
    TRY(make_place(p->g, &copy, err));
    if (!text_append(&copy->block, p->block.data, p->block.len)) {
        grammar_place_destroy(copy);
        return out_of_memory(err);
    }
    copy->state = p->state;
    copy->generation = p->generation;
    *out = copy;
    return KVASIR_OK;
}

void grammar_place_destroy(struct grammar_place *p) {
    if (!p)
        return;
    grammar_release(p->g);
    text_free(&p->block);
    mem_free(p);
}

kvasir_status grammar_push(struct grammar_place *p, struct text_span bytes, size_t *taken,
                           kvasir_error *err) {
    lock_machine(p->g, UINT64_MAX);
    return unlock_machine(p->g, push_bytes(p, bytes, taken), err);
}

enum grammar_end grammar_place_end(struct grammar_place *p) {
    const struct recognizer *r = p->g->recognizer;
    return r->ops->end(r, (struct text_span){p->block.data, p->block.len});
}

/* Without the beginning of a character at the end. */
static size_t whole_characters(const char *text, size_t len) {
    for (size_t back = 1; back <= 3 && back <= len; back++) {
        const uint8_t *at = (const uint8_t *)text + len - back;
        if ((*at & 0xc0) != 0x80)
            return utf8_length(at, back) == 0 ? len - back : len;
    }
    return len;
}

kvasir_status grammar_forced(struct grammar_place *p, size_t max, struct text_buf *out,
                             kvasir_error *err) {
    const size_t before = out->len;
    lock_machine(p->g, ALLOW_WORK);
    TRY(unlock_machine(p->g, force_bytes(p, max, out), err));
    if (out->len > before) {
        out->len = before + whole_characters(out->data + before, out->len - before);
        out->data[out->len] = 0;
    }
    return KVASIR_OK;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* Adds the plain tokens of a JSON string. */
static bool add_text(struct machine *m, const struct grammar_vocab *v, uint64_t key,
                     uint32_t *state, uint64_t *bits) {
    if (!(key & TEXT_KEY_OWN)) {
        vocab_add_text(v, text_key_room(key), bits);
        return true;
    }
    const struct kept_set *kept = machine_keyed_set(m, key);
    if (kept) {
        kept_set_add(kept, bits, v->n_ids);
        return true;
    }
    if (!vocab_add_plain(v, m, state, bits))
        return false;
    machine_keep_keyed_set(m, key, bits);
    return true;
}

/* bits: zeros. */
static bool add_tokens(struct grammar_place *p, const struct grammar_vocab *v, uint64_t *bits) {
    struct machine *m = &p->g->machine;
    uint32_t state = state_of(p);
    if (state == STATE_UNKNOWN || !machine_use_vocab(m, v->number, v->n_ids))
        return false;
    const uint64_t key = machine_text_key(m, state);
    if (key && !add_text(m, v, key, &state, bits))
        return false;
    return vocab_add_rest(v, m, &state, bits);
}

kvasir_status grammar_allow(struct grammar_place *p, const struct grammar_vocab *v, uint64_t *bits,
                            kvasir_error *err) {
    memset(bits, 0, token_set_words(v->n_ids) * sizeof *bits);
    lock_machine(p->g, ALLOW_WORK);
    return unlock_machine(p->g, add_tokens(p, v, bits), err);
}
