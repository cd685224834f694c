/* SPDX-License-Identifier: Apache-2.0 */
/* batch_api.c: kvasir_batch, a list of sequences. A sequence is tokens and page tables, and a step
 * takes rows of any sequences. So merge, extract, filter and extend, for which a batched cache with
 * padded tensors has whole classes, are edits of that list.
 *
 * A step of more rows than prefill_chunk is run in several turns. Which rows run together changes
 * no bit. */
#include <inttypes.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/sampler.h"

struct kvasir_batch {
    struct kvasir_context *ctx;
    struct kvasir_seq **seqs; /* [n] */
    size_t n, cap;
    /* of the current step, [cap] */
    struct step_part *parts, *turn; /* each sequence's remaining rows; this turn's rows */
    size_t *owner;                  /* indices of this turn's sequences */
    struct device_picks picks;      /* of kvasir_batch_pick */
    bool *told;                     /* [cap] of this turn's sequences: the device picks */
};

/* What a step is for: the logits, if anything, or the tokens. */
struct outputs {
    float *logits;
    struct kvasir_sampler *const *samplers; /* NULL: no tokens */
    int32_t *ids;
};

static kvasir_status room(struct kvasir_batch *b, size_t n, kvasir_error *err) {
    if (n <= b->cap)
        return KVASIR_OK;
    const size_t cap = n > 2 * b->cap ? n : 2 * b->cap;
    void **const arrays[] = {(void **)&b->seqs, (void **)&b->parts, (void **)&b->turn,
                             (void **)&b->owner, (void **)&b->told};
    const size_t sizes[] = {sizeof *b->seqs, sizeof *b->parts, sizeof *b->turn, sizeof *b->owner,
                            sizeof *b->told};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *grown = mem_realloc(*arrays[i], cap, sizes[i]);
        if (!grown)
            return fail(err, KVASIR_ERR_MEMORY, "batch of %zu sequences: out of memory", n);
        *arrays[i] = grown;
    }
    b->cap = cap;
    return KVASIR_OK;
}

static bool holds(const struct kvasir_batch *b, const struct kvasir_seq *seq) {
    for (size_t i = 0; i < b->n; i++)
        if (b->seqs[i] == seq)
            return true;
    return false;
}

kvasir_status kvasir_batch_merge(kvasir_context *ctx, kvasir_seq *const *seqs, size_t n,
                                 kvasir_batch **out, kvasir_error *err) {
    struct kvasir_batch *b = mem_calloc(1, sizeof *b);
    if (!b)
        return fail(err, KVASIR_ERR_MEMORY, "batch: out of memory");
    b->ctx = ctx;
    kvasir_status status = room(b, n ? n : 1, err);
    for (size_t i = 0; i < n && status == KVASIR_OK; i++) {
        if (seqs[i]->ctx != ctx)
            status = fail(err, KVASIR_ERR_ARGUMENT, "sequence %zu belongs to another context", i);
        else if (holds(b, seqs[i]))
            status = fail(err, KVASIR_ERR_ARGUMENT, "sequence %zu is listed twice", i);
        else
            b->seqs[b->n++] = seqs[i];
    }
    if (status != KVASIR_OK) {
        b->n = 0; /* they stay the caller's */
        kvasir_batch_destroy(b);
        return status;
    }
    *out = b;
    return KVASIR_OK;
}

void kvasir_batch_destroy(kvasir_batch *b) {
    if (!b)
        return;
    for (size_t i = 0; i < b->n; i++)
        kvasir_seq_destroy(b->seqs[i]);
    mem_free(b->seqs);
    mem_free(b->parts);
    mem_free(b->turn);
    mem_free(b->owner);
    mem_free(b->told);
    device_picks_deinit(&b->picks);
    mem_free(b);
}

size_t kvasir_batch_size(const kvasir_batch *b) {
    return b->n;
}

kvasir_seq *kvasir_batch_seq(const kvasir_batch *b, size_t i) {
    return i < b->n ? b->seqs[i] : NULL;
}

kvasir_status kvasir_batch_extract(kvasir_batch *b, size_t i, kvasir_seq **out, kvasir_error *err) {
    if (i >= b->n)
        return fail(err, KVASIR_ERR_ARGUMENT, "sequence %zu is out of range: the batch has %zu", i,
                    b->n);
    *out = b->seqs[i];
    b->n--;
    memmove(b->seqs + i, b->seqs + i + 1, (b->n - i) * sizeof *b->seqs);
    return KVASIR_OK;
}

kvasir_status kvasir_batch_filter(kvasir_batch *b, const size_t *keep, size_t n,
                                  kvasir_error *err) {
    for (size_t i = 0; i < n; i++)
        if (keep[i] >= b->n || (i > 0 && keep[i] <= keep[i - 1]))
            return fail(err, KVASIR_ERR_ARGUMENT,
                        "keep[%zu] is %zu: indices must rise and be below %zu", i, keep[i], b->n);
    size_t kept = 0;
    for (size_t i = 0; i < b->n; i++)
        if (kept < n && keep[kept] == i)
            b->seqs[kept++] = b->seqs[i];
        else
            kvasir_seq_destroy(b->seqs[i]);
    b->n = kept;
    return KVASIR_OK;
}

kvasir_status kvasir_batch_extend(kvasir_batch *b, kvasir_batch *from, kvasir_error *err) {
    if (b == from || b->ctx != from->ctx)
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "a batch can only be extended by another batch of the same context");
    TRY(room(b, b->n + from->n, err));
    if (from->n)
        memcpy(b->seqs + b->n, from->seqs, from->n * sizeof *b->seqs);
    b->n += from->n;
    from->n = 0;
    return KVASIR_OK;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Checks all reasons to refuse before anything runs, and fills the parts. */
static kvasir_status check_step(struct kvasir_batch *b, const int32_t *tokens,
                                const uint32_t *counts, kvasir_error *err) {
    const struct kvasir_context *c = b->ctx;
    uint64_t need = 0;
    for (size_t i = 0; i < b->n; i++) {
        struct kv_seq *seq = b->seqs[i]->seq;
        b->parts[i] = (struct step_part){.seq = seq, .tokens = tokens, .rows = counts[i]};
        if (!counts[i])
            continue;
        TRY(seq_check_tokens(c, tokens, counts[i], err));
        TRY(seq_check_length(b->seqs[i], counts[i], err));
        const uint32_t length = seq_length(seq) + counts[i], chunk = c->options.prefill_chunk;
        TRY(seq_reserve(seq, length, err));
        need += seq_need_bytes(seq, length, chunk, seq_snapshots_until(b->seqs[i], length));
        tokens += counts[i];
    }
    const struct kv_pool_stats pool = kv_pool_stats(kv_cache_pool(c->cache));
    const uint64_t used = pool.used_bytes + pool.charged_bytes - kv_cache_ladder_bytes(c->cache);
    if (need > pool.budget_bytes - used)
        return fail(err, KVASIR_ERR_BUDGET,
                    "a step of %zu sequences needs %" PRIu64 " more bytes of cache: the budget is "
                    "%" PRIu64 ", of which %" PRIu64 " are in use",
                    b->n, need, pool.budget_bytes, used);
    return KVASIR_OK;
}

/* The next turn: rows of as many sequences as the buffers hold. Returns their number. */
static uint32_t take_turn(struct kvasir_batch *b) {
    const struct settled *o = &b->ctx->options;
    uint32_t n = 0, rows = 0;
    for (size_t i = 0; i < b->n && rows < o->prefill_chunk; i++) {
        struct step_part *p = &b->parts[i];
        if (!p->rows)
            continue;
        const uint32_t most = seq_step_rows(b->seqs[i], p->rows, o->prefill_chunk - rows);
        ASSERT(n < b->cap && most > 0 && most <= p->rows);
        b->turn[n] = *p;
        b->turn[n].rows = most;
        b->turn[n].wanted = most == p->rows;
        b->owner[n++] = i;
        rows += most;
        p->tokens += most;
        p->rows -= most;
    }
    return n;
}

/* Has the device pick what it can of the turn's n sequences. */
static void tell_device(struct kvasir_batch *b, uint32_t n, const struct outputs *o) {
    uint32_t row = 0;
    device_picks_clear(&b->picks);
    for (uint32_t i = 0; i < n; i++) {
        b->told[i] = o->samplers && b->turn[i].wanted &&
                     device_picks_add(b->ctx, &b->picks, o->samplers[b->owner[i]], row, -1);
        row += b->turn[i].wanted;
    }
}

/* What is wanted of the turn's i-th sequence, whose row this is. */
static kvasir_status put_output(struct kvasir_batch *b, uint32_t i, uint32_t row,
                                const struct outputs *o, kvasir_error *err) {
    const size_t vocab = model_config(b->ctx->model->model)->vocab, owner = b->owner[i];
    const struct picked *made = NULL;
    const float *from;
    if (b->told[i]) {
        TRY(step_reach(b->ctx, row, err));
        made = device_picks_take(&b->picks, o->samplers[owner]);
    }
    if (made) {
        o->ids[owner] = made->token;
        return KVASIR_OK;
    }
    TRY(step_logits(b->ctx, row, &from, err));
    if (o->samplers)
        o->ids[owner] = kvasir_sampler_pick(o->samplers[owner], from);
    else
        memcpy(o->logits + owner * vocab, from, vocab * sizeof *from);
    return KVASIR_OK;
}

static kvasir_status run_turn(struct kvasir_batch *b, uint32_t n, const struct outputs *o,
                              kvasir_error *err) {
    for (uint32_t i = 0; i < n; i++)
        TRY(seq_prepare(b->turn[i].seq, b->turn[i].rows, err));
    tell_device(b, n, o);
    TRY(step_run(b->ctx, b->turn, n, &b->picks.step, err));
    for (uint32_t i = 0, row = 0; i < n; i++) {
        if (b->turn[i].wanted && (o->logits || o->samplers))
            TRY(put_output(b, i, row, o, err));
        row += b->turn[i].wanted;
        TRY(seq_snapshot_if_due(b->seqs[b->owner[i]], err));
    }
    return KVASIR_OK;
}

static kvasir_status eval(struct kvasir_batch *b, const int32_t *tokens, const uint32_t *counts,
                          const struct outputs *o, kvasir_error *err) {
    TRY(check_step(b, tokens, counts, err));
    for (uint32_t n; (n = take_turn(b)) > 0;)
        TRY(run_turn(b, n, o, err));
    return KVASIR_OK;
}

kvasir_status kvasir_batch_eval(kvasir_batch *b, const int32_t *tokens, const uint32_t *counts,
                                float *logits, kvasir_error *err) {
    return eval(b, tokens, counts, &(struct outputs){.logits = logits}, err);
}

kvasir_status kvasir_batch_pick(kvasir_batch *b, const int32_t *tokens, const uint32_t *counts,
                                kvasir_sampler *const *samplers, int32_t *ids, kvasir_error *err) {
    const uint32_t most = (uint32_t)min_size(b->n, b->ctx->options.prefill_chunk),
                   vocab = model_config(b->ctx->model->model)->vocab;
    for (size_t i = 0; i < b->n; i++)
        if (counts[i])
            TRY(sampler_check_vocab(samplers[i], vocab, err));
    TRY(device_picks_reserve(b->ctx, &b->picks, most, err));
    return eval(b, tokens, counts, &(struct outputs){.samplers = samplers, .ids = ids}, err);
}
