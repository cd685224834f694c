/* SPDX-License-Identifier: Apache-2.0 */
/* seq_api.c: kvasir_seq, tokens evaluated step by step.
 *
 * All reasons to refuse a call (context length, budget, token ids) are checked before the first
 * step, so that a refused call has changed nothing. A step prepares pages, runs the model over its
 * rows, and commits them. */
#include <inttypes.h>
#include <string.h>

#include "engine/centre.h"
#include "engine/sampler.h"
#include "engine/struct_size.h"

/* What all ways to make a sequence end with: reserves, so that steps do not allocate (a rotating
 * sequence may grow beyond ctx), or frees it. */
static kvasir_status finish_create(struct kvasir_seq *s, kvasir_status status, kvasir_seq **out,
                                   kvasir_error *err) {
    if (status == KVASIR_OK)
        status = seq_reserve(s->seq, s->ctx->options.ctx, err);
    *out = status == KVASIR_OK ? s : NULL;
    if (status != KVASIR_OK)
        kvasir_seq_destroy(s);
    return status;
}

static kvasir_status alloc(struct kvasir_context *ctx, struct kvasir_seq **out, kvasir_error *err) {
    *out = mem_calloc(1, sizeof **out);
    if (!*out)
        return fail(err, KVASIR_ERR_MEMORY, "sequence: out of memory");
    (*out)->ctx = ctx;
    return KVASIR_OK;
}

kvasir_status kvasir_seq_create(kvasir_context *ctx, kvasir_seq **out, kvasir_error *err) {
    struct kvasir_seq *s;
    TRY(alloc(ctx, &s, err));
    return finish_create(s, seq_create(ctx->cache, &s->seq, err), out, err);
}

kvasir_status kvasir_seq_load(kvasir_context *ctx, const kvasir_prompt_cache *p, bool convert,
                              kvasir_seq **out, kvasir_error *err) {
    struct kvasir_seq *s;
    *out = NULL;
    TRY(alloc(ctx, &s, err));
    kvasir_status status = prompt_cache_load(ctx, p, convert, &s->seq, err);
    s->foreign = !prompt_cache_is_native(p, ctx);
    if (status ==
        KVASIR_OK) /* a trim cannot run the file's tokens again if it does not name them */
        status = seq_snapshot(s->seq, err);
    return finish_create(s, status, out, err);
}

void kvasir_seq_destroy(kvasir_seq *s) {
    if (!s)
        return;
    seq_destroy(s->seq);
    device_picks_deinit(&s->picks);
    /* While others go on, their next pages are taken from the memory of this one's. */
    struct kv_pool *pool = kv_cache_pool(s->ctx->cache);
    while (kv_pool_stats(pool).pages_used == 0 && kv_pool_rest(pool))
        ;
    mem_free(s);
}

kvasir_status kvasir_seq_fork(kvasir_seq *s, kvasir_seq **out, kvasir_error *err) {
    struct kvasir_seq *f;
    TRY(alloc(s->ctx, &f, err));
    f->foreign = s->foreign;
    return finish_create(f, seq_fork(s->seq, &f->seq, err), out, err);
}

uint32_t kvasir_seq_length(const kvasir_seq *s) {
    return seq_length(s->seq);
}
const int32_t *kvasir_seq_tokens(const kvasir_seq *s) {
    return seq_tokens(s->seq);
}
uint64_t kvasir_seq_bytes(const kvasir_seq *s) {
    return seq_bytes(s->seq);
}
uint64_t kvasir_seq_bytes_16bit(const kvasir_seq *s) {
    return seq_bytes_16bit(s->seq);
}

kvasir_status kvasir_seq_snapshot(kvasir_seq *s, kvasir_error *err) {
    return seq_snapshot(s->seq, err);
}

/* ---- evaluation ------------------------------------------------------------------------------ */

kvasir_status seq_check_tokens(const struct kvasir_context *c, const int32_t *tokens, size_t n,
                               kvasir_error *err) {
    uint32_t vocab = model_config(c->model->model)->vocab;
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= vocab)
            return fail(err, KVASIR_ERR_ARGUMENT,
                        "token %" PRId32 " at index %zu is not in the vocabulary of %u", tokens[i],
                        i, vocab);
    return KVASIR_OK;
}

kvasir_status seq_check_length(const struct kvasir_seq *s, size_t n, kvasir_error *err) {
    const struct kvasir_context *c = s->ctx;
    uint64_t end = seq_length(s->seq) + (uint64_t)n;
    if (end > c->options.ctx && !c->options.cache.max_size)
        return fail(err, KVASIR_ERR_CONTEXT, "%" PRIu64 " tokens do not fit the context of %u", end,
                    c->options.ctx);
    if (end > UINT32_MAX - TILE_TOKENS)
        return fail(err, KVASIR_ERR_CONTEXT, "a sequence cannot have more than 2^32 tokens");
    return KVASIR_OK;
}

uint32_t seq_snapshots_until(const struct kvasir_seq *s, uint32_t length) {
    /* A state is copied by the step after its snapshot, an exact tail at once. */
    const uint32_t every = s->ctx->options.snapshot_tokens,
                   last = kv_cache_tail_pages(s->ctx->cache) ? length : length - 1;
    return every ? last / every - seq_length(s->seq) / every : 0;
}

static kvasir_status check_room(const struct kvasir_seq *s, size_t n, uint32_t step,
                                kvasir_error *err) {
    const struct kvasir_context *c = s->ctx;
    TRY(seq_check_length(s, n, err));
    const uint32_t end = seq_length(s->seq) + (uint32_t)n;
    struct kv_pool_stats pool = kv_pool_stats(kv_cache_pool(c->cache));
    const uint64_t used = pool.used_bytes + pool.charged_bytes - kv_cache_ladder_bytes(c->cache);
    uint64_t need = seq_need_bytes(s->seq, end, step, seq_snapshots_until(s, end));
    if (need > pool.budget_bytes - used)
        return fail(err, KVASIR_ERR_BUDGET,
                    "%u tokens need %" PRIu64 " more bytes of cache: the budget is %" PRIu64
                    ", of which %" PRIu64 " are in use",
                    end, need, pool.budget_bytes, used);
    return seq_reserve(s->seq, end, err);
}

kvasir_status seq_snapshot_if_due(struct kvasir_seq *s, kvasir_error *err) {
    const uint32_t every = s->ctx->options.snapshot_tokens;
    return every && seq_length(s->seq) % every == 0 ? seq_snapshot(s->seq, err) : KVASIR_OK;
}

/* One step over n tokens, logits of the last `wanted` rows. */
static kvasir_status step(struct kvasir_seq *s, const int32_t *tokens, uint32_t n, uint32_t wanted,
                          const float **logits, kvasir_error *err) {
    ASSERT(wanted <= s->ctx->options.logit_rows);
    TRY(seq_prepare(s->seq, n, err));
    TRY(step_run(s->ctx, &(struct step_part){s->seq, tokens, n, wanted, false}, 1, NULL, err));
    if (wanted)
        TRY(step_logits(s->ctx, 0, logits, err));
    return seq_snapshot_if_due(s, err);
}

/* The same with the token that `sampler` picks from the last row; the device does if it can. */
static kvasir_status step_and_pick(struct kvasir_seq *s, const int32_t *tokens, uint32_t n,
                                   struct kvasir_sampler *sampler, int32_t *id, kvasir_error *err) {
    struct kvasir_context *c = s->ctx;
    struct device_picks *p = &s->picks;
    const struct picked *made = NULL;
    const float *logits;
    TRY(device_picks_reserve(c, p, 1, err));
    TRY(seq_prepare(s->seq, n, err));
    device_picks_clear(p);
    const bool on_device = device_picks_add(c, p, sampler, 0, -1);
    TRY(step_run(c, &(struct step_part){s->seq, tokens, n, 1, false}, 1, &p->step, err));
    if (on_device)
        made = device_picks_take(p, sampler);
    if (!made)
        TRY(step_logits(c, 0, &logits, err));
    *id = made ? made->token : kvasir_sampler_pick(sampler, logits);
    return seq_snapshot_if_due(s, err);
}

uint32_t seq_step_rows(const struct kvasir_seq *s, size_t left, uint32_t most) {
    const uint32_t every = s->ctx->options.snapshot_tokens;
    uint32_t rows = left < most ? (uint32_t)left : most;
    uint32_t to_snapshot = every ? every - seq_length(s->seq) % every : rows;
    return rows < to_snapshot ? rows : to_snapshot;
}

static const struct sized_struct SIZED_EVAL = {
    .name = "kvasir_eval_options",
    .maker = "kvasir_eval_defaults()",
    .field = "eval.struct_size",
    .size = sizeof(kvasir_eval_options),
};
_Static_assert(sizeof(kvasir_eval_options) == 40,
               "later fields begin here at the earliest (struct_size.h)");

/* One step of an evaluation, the tokens from `done` on. sampler: NULL, or the last row is its. */
static kvasir_status eval_step(struct kvasir_seq *s, const int32_t *tokens, size_t done,
                               uint32_t rows, bool last, const kvasir_eval_options *o,
                               struct kvasir_sampler *sampler, int32_t *id, kvasir_error *err) {
    const uint32_t vocab = model_config(s->ctx->model->model)->vocab,
                   wanted = o->on_logits                          ? rows
                            : last && (o->last_logits || sampler) ? 1
                                                                  : 0;
    const float *logits = NULL, *end;
    if (last && sampler && !o->on_logits && !o->last_logits)
        return step_and_pick(s, tokens + done, rows, sampler, id, err);
    TRY(step(s, tokens + done, rows, wanted, &logits, err));
    if (o->on_logits && !o->on_logits(o->user, done, rows, logits))
        return fail(err, KVASIR_ERR_CANCELLED, "cancelled");
    if (!last || !wanted)
        return KVASIR_OK;
    end = logits + (size_t)(wanted - 1) * vocab;
    if (o->last_logits)
        memcpy(o->last_logits, end, vocab * sizeof(float));
    if (sampler)
        *id = kvasir_sampler_pick(sampler, end);
    return KVASIR_OK;
}

static kvasir_status eval(struct kvasir_seq *s, const int32_t *tokens, size_t n,
                          const kvasir_eval_options *options, struct kvasir_sampler *sampler,
                          int32_t *id, kvasir_error *err) {
    kvasir_eval_options settled = kvasir_eval_defaults();
    const kvasir_eval_options *o = &settled;
    if (options)
        TRY(struct_read(&SIZED_EVAL, options, &settled, err));
    struct kvasir_context *c = s->ctx;
    uint32_t most = c->options.prefill_chunk;
    if (o->on_logits && most > c->options.logit_rows)
        most = c->options.logit_rows;
    if (n == 0)
        return fail(err, KVASIR_ERR_ARGUMENT, "no tokens to evaluate");
    TRY(seq_check_tokens(c, tokens, n, err));
    TRY(check_room(s, n, most, err));
    for (size_t done = 0; done < n;) {
        const uint32_t rows = seq_step_rows(s, n - done, most);
        TRY(eval_step(s, tokens, done, rows, done + rows == n, o, sampler, id, err));
        done += rows;
        if (o->on_progress && !o->on_progress(o->user, done, n))
            return fail(err, KVASIR_ERR_CANCELLED, "cancelled");
    }
    return KVASIR_OK;
}

kvasir_status kvasir_seq_eval(kvasir_seq *s, const int32_t *tokens, size_t n,
                              const kvasir_eval_options *options, kvasir_error *err) {
    return eval(s, tokens, n, options, NULL, NULL, err);
}

kvasir_status kvasir_seq_pick(kvasir_seq *s, const int32_t *tokens, size_t n,
                              const kvasir_eval_options *options, kvasir_sampler *sampler,
                              int32_t *id, kvasir_error *err) {
    TRY(sampler_check_vocab(sampler, model_config(s->ctx->model->model)->vocab, err));
    return eval(s, tokens, n, options, sampler, id, err);
}

/* A prompt-cache file may not name its tokens; such tokens cannot be evaluated again. */
static kvasir_status check_rerun(const struct kvasir_seq *s, uint32_t length, kvasir_error *err) {
    const uint32_t reached = seq_trim_reach(s->seq, length);
    if (length > seq_length(s->seq))
        return KVASIR_OK; /* which seq_trim refuses */
    for (uint32_t i = reached; i < length; i++)
        if (seq_tokens(s->seq)[i] < 0)
            return fail(err, KVASIR_ERR_ARGUMENT,
                        "cannot trim to %u tokens: tokens %u to %u would be evaluated again, but "
                        "the prompt-cache file did not name token %u: load the file again, or trim "
                        "to no fewer tokens than it has",
                        length, reached, length - 1, i);
    return KVASIR_OK;
}

kvasir_status kvasir_seq_trim(kvasir_seq *s, uint32_t length, uint32_t *rerun, kvasir_error *err) {
    uint32_t reached, most = s->ctx->options.prefill_chunk;
    TRY(check_rerun(s, length, err));
    TRY(seq_trim(s->seq, length, &reached, err));
    ASSERT(reached <= length);
    if (rerun)
        *rerun = length - reached;
    while (seq_length(s->seq) < length) {
        const uint32_t at = seq_length(s->seq);
        const float *logits = NULL;
        TRY(step(s, seq_tokens(s->seq) + at, seq_step_rows(s, length - at, most), 0, &logits, err));
    }
    return KVASIR_OK;
}

kvasir_status kvasir_seq_requantize(kvasir_seq *s, const char *kv_bits, const char *kv_group_size,
                                    kvasir_error *err) {
    struct kv_cache_options o = {0};
    uint64_t bytes;
    /* whether the groups divide the heads */
    TRY(kvasir_model_kv_bytes(s->ctx->model, kv_bits, kv_group_size, &bytes, err));
    TRY(options_parse_formats(kv_bits, kv_group_size, &o, err));
    TRY(seq_requantize(s->seq, o.k, o.v, o.group_k, o.group_v, err));
    return backend_flush(s->ctx->backend, err);
}

kvasir_status kvasir_seq_read_kv(const kvasir_seq *s, kvasir_kv_part part, uint32_t layer,
                                 uint32_t kv_head, uint32_t first, uint32_t n, float *rows,
                                 kvasir_error *err) {
    const struct model *model = s->ctx->model->model;
    const struct model_config *config = model_config(model);
    if (layer >= config->n_layers || config->layers[layer].kind != LAYER_ATTENTION ||
        kv_head >= config->layers[layer].kv_heads)
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "layer %u, KV head %u: the model does not cache these", layer, kv_head);
    const struct kv_place place = model_kv_place(model, layer);
    const uint32_t dim = config->layers[layer].head_dim;
    enum tile_kind kind = part == KVASIR_PART_K ? TILE_K : TILE_V;
    for (uint32_t end = first + n, next; first < end; first = next) {
        bool centred;
        next = (first / TILE_TOKENS + 1) * TILE_TOKENS; /* of the next page */
        next = next < end ? next : end;
        TRY(seq_read(s->seq, place.group, kind, place.layer, kv_head, first, next - first, rows,
                     &centred, err));
        for (uint32_t p = first; p < next; p++, rows += dim)
            if (centred)
                key_centre_add(&s->ctx->centres->centre, place.layer, kv_head, p, 1, rows);
    }
    return KVASIR_OK;
}
