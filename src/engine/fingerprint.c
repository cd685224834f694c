/* SPDX-License-Identifier: Apache-2.0 */
/* fingerprint.c: hashes of all that two caches must agree on, so that the pages of one mean the
 * same in the other.
 *
 *     model    configuration, rope frequencies, and for every tensor, in order of names: name,
 *              type, shape, groups, and three samples of 64 bytes (start, middle, end) of its
 *              data, its scales and its biases
 *     context  model, formats of K and V with the versions of their storage order and arithmetic,
 *              exact start, exact tail, rotation, activations' rounding, centres, hashes of bases
 *
 * Each is written as text and bytes, starting with a version, and hashed by XXH3 to 64 bits. Not
 * included: threads, chunks and the budget, which change no bit, and the tier, which changes float
 * sums by rounding only.
 *
 * Only samples of a checkpoint are hashed, because reading all of it takes as long as the disk
 * needs. Checkpoints that differ only outside the samples have the same fingerprint; training
 * changes all weights, and training scales or biases alone changes all of those. identity.c hashes
 * all of it, and the same texts.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "engine/centre.h"

enum { SAMPLE = 64 };

static bool put_samples(struct text_buf *b, const void *data, size_t bytes) {
    if (!data)
        return true;
    size_t n = bytes < SAMPLE ? bytes : SAMPLE;
    const char *at = data;
    return text_append(b, at, n) && text_append(b, at + (bytes - n) / 2, n) &&
           text_append(b, at + (bytes - n), n);
}

bool fingerprint_put_tensor(struct text_buf *b, const struct checkpoint_tensor *t,
                            struct tensor_part parts[TENSOR_PARTS]) {
    bool good = text_printf(b, "tensor %s %d", t->name, (int)t->type);
    for (uint32_t d = 0; good && d < t->n_dims; d++)
        good = text_printf(b, " %" PRIu64, t->dims[d]);
    struct weight w = checkpoint_weight(t);
    size_t data = w.n * weight_row_bytes(weight_traits_of(t->type), w.k);
    size_t beside = (t->bytes - data) / (t->biases ? 2 : 1); /* biases are as many as scales */
    parts[0] = (struct tensor_part){t->data, data};
    parts[1] = (struct tensor_part){t->scales, t->scales ? beside : 0};
    parts[2] = (struct tensor_part){t->biases, t->biases ? beside : 0};
    return good && text_printf(b, " by %u %u %d\n", w.group, w.group_rows, (int)w.scalar);
}

static bool put_tensor(struct text_buf *b, const struct checkpoint_tensor *t) {
    struct tensor_part parts[TENSOR_PARTS];
    bool good = fingerprint_put_tensor(b, t, parts);
    for (int i = 0; good && i < TENSOR_PARTS; i++)
        good = put_samples(b, parts[i].data, parts[i].bytes);
    return good;
}

static bool put_rope(struct text_buf *b, const struct rope_config *r) {
    const uint32_t n = r->kind == ROPE_LONG ? r->dims / 2 : 0;
    return text_printf(b, "rope %d %u %a %a %u %a %a %a %a %d %a %a %a %u %d\n", (int)r->kind,
                       r->dims, r->theta, r->factor, r->original_ctx, r->low_freq_factor,
                       r->high_freq_factor, r->beta_fast, r->beta_slow, r->truncate,
                       r->attention_factor, r->mscale, r->mscale_all_dim, r->rotated,
                       r->adjacent) &&
           text_append(b, (const char *)r->short_factors, n * sizeof *r->short_factors) &&
           text_append(b, (const char *)r->long_factors, n * sizeof *r->long_factors);
}

static bool put_layer(struct text_buf *b, const struct layer_config *l) {
    return text_printf(b, "layer %d %d %d %d %u %u %u %u %u\n", l->kind, l->rope, l->experts,
                       l->k_is_v, l->kv_heads, l->head_dim, l->window, l->kv_from, l->ffn_dim);
}

bool fingerprint_put_config(struct text_buf *b, const struct model_config *c) {
    bool good =
        text_printf(b, "kvasir model 3\n%s %u %u %u %u %u %u %u eps %a gate %d offset %d\n",
                    c->arch, c->n_layers, c->dim, c->ffn_dim, c->heads, c->kv_heads, c->head_dim,
                    c->vocab, (double)c->norm_eps, (int)c->gate, c->unit_offset) &&
        text_printf(b, "scales %a %a %a %a caps %a %a\n", (double)c->embed_scale,
                    (double)c->residual_scale, (double)c->logit_scale, (double)c->attention_scale,
                    (double)c->attention_softcap, (double)c->logit_softcap) &&
        text_printf(b, "experts %u %u %u %u %d delta %u %u %u %u %d conv %u inputs %u %u\n",
                    c->moe.n, c->moe.top_k, c->moe.dim, c->moe.shared_dim, c->moe.normalize,
                    c->delta.key_heads, c->delta.value_heads, c->delta.key_dim, c->delta.value_dim,
                    c->delta.keys_cycle, c->conv_width, c->layer_input_dim, c->layer_input_vocab);
    for (uint32_t i = 0; good && i < c->n_ropes; i++)
        good = put_rope(b, &c->ropes[i]);
    for (uint32_t i = 0; good && i < c->n_layers; i++)
        good = put_layer(b, &c->layers[i]);
    return good;
}

static bool put_model(struct text_buf *b, const struct model *m) {
    bool good = fingerprint_put_config(b, model_config(m));
    const struct checkpoint *file = model_checkpoint(m);
    for (size_t i = 0; good && i < checkpoint_tensor_count(file); i++)
        good = put_tensor(b, checkpoint_tensor_at(file, i));
    return good;
}

/* Hashes b and frees it. good: there was memory for all of it. */
static kvasir_status finish(struct text_buf *b, bool good, const char *what, uint64_t *out,
                            kvasir_error *err) {
    if (good)
        *out = XXH3_64bits(b->data, b->len);
    text_free(b);
    return good ? KVASIR_OK : fail(err, KVASIR_ERR_MEMORY, "%s: out of memory", what);
}

void fingerprint_text(uint64_t fingerprint, char out[17]) {
    snprintf(out, 17, "%016" PRIx64, fingerprint);
}

kvasir_status model_identity(const struct model *m, uint64_t *out, kvasir_error *err) {
    struct text_buf b = {0};
    bool good = put_model(&b, m);
    return finish(&b, good, "model fingerprint", out, err);
}

/* The RoPE that the context length selects: longrope has two variants, dynamic one per length. */
static bool put_variant(struct text_buf *b, const struct kvasir_context *c) {
    const struct model *m = c->model->model;
    double inv_freq[ROPE_PAIRS_MAX];
    for (uint32_t i = 0; i < model_config(m)->n_ropes; i++) {
        float scale = model_inv_freq(m, i, c->options.ctx, inv_freq);
        if (!text_printf(b, "turns %u %a\n", i, (double)scale) ||
            !text_append(b, (const char *)inv_freq,
                         model_config(m)->ropes[i].dims / 2 * sizeof *inv_freq))
            return false;
    }
    return true;
}

kvasir_status rope_fingerprint(const struct kvasir_context *c, uint64_t *out, kvasir_error *err) {
    struct text_buf b = {0};
    bool good = put_variant(&b, c);
    return finish(&b, good, "fingerprint", out, err);
}

/* Files from before there was a second version say nothing of it: it was 1. */
void arithmetic_version(char out[32]) {
    int n = snprintf(out, 32, "%d", KV_ARITHMETIC_VERSION);
    if (MODEL_ARITHMETIC_VERSION != 1)
        snprintf(out + n, 32 - (size_t)n, ".%d", MODEL_ARITHMETIC_VERSION);
}

void arithmetic_of(const struct kvasir_context *c, struct arithmetic *out) {
    const char *tier = cpu_tier_of_bits(c->device.tier);
    ASSERT(strlen(tier) < sizeof out->tier);
    snprintf(out->act_bits, sizeof out->act_bits, "%d", c->device.act_bits);
    arithmetic_version(out->version);
    snprintf(out->tier, sizeof out->tier, "%s", tier);
}

static bool put_centres(struct text_buf *b, const struct key_centre *c) {
    if (!c)
        return text_printf(b, "centre none\n");
    size_t heads = (size_t)c->layers * c->kv_heads;
    return text_printf(b, "centre\n") &&
           text_append(b, (const char *)c->first, (heads + 1) * sizeof *c->first) &&
           text_append(b, (const char *)c->pairs, c->first[heads] * sizeof *c->pairs);
}

/* Their hashes: the matrices may be a hundred megabytes. */
static bool put_bases(struct text_buf *b, const struct kvasir_context *c) {
    for (uint32_t g = 0; g < c->n_groups; g++) {
        const struct key_basis *basis = c->options.shapes[g].basis;
        if (!basis)
            continue;
        const size_t bytes = key_basis_values(basis) * sizeof(float);
        const XXH128_hash_t hashes[] = {XXH3_128bits(basis->inverse, bytes),
                                        XXH3_128bits(basis->forward, bytes)};
        if (!text_printf(b, "basis %u\n", g) ||
            !text_append(b, (const char *)hashes, sizeof hashes))
            return false;
    }
    return true;
}

bool fingerprint_put_context(struct text_buf *b, const struct kvasir_context *c,
                             const char *model) {
    const struct kv_cache_options *o = &c->options.cache;
    bool good =
        text_printf(b,
                    "kvasir context 3\nmodel %s\norder %d arithmetic %d\n"
                    "start %u max %u keep %u act %d\n",
                    model, KV_ORDER_VERSION, KV_ARITHMETIC_VERSION, kv_cache_start_pages(c->cache),
                    o->max_size, o->keep, c->device.act_bits);
    if (kv_cache_start_pages(c->cache) && kv_cache_is_whole(c->cache)) /* since it is in a basis */
        good = good && text_printf(b, "start 2\n");
    for (uint32_t g = 0; good && g < c->n_groups; g++) {
        struct kv_format k, v;
        kv_cache_formats(c->cache, g, &k, &v);
        good = text_printf(b, "k %d %d %d v %d %d %d\n", k.bits, k.group, k.scalar, v.bits, v.group,
                           v.scalar) &&
               (k.kind == KV_ROWS || text_printf(b, "kind %d %d\n", k.kind, v.kind));
    }
    const uint32_t tail = kv_cache_tail_pages(c->cache);
    if (tail) /* rows depend on what the queries of earlier layers saw */
        good = good && text_printf(b, "tail %u\n", tail);
    return good && put_variant(b, c) && put_centres(b, c->centres ? &c->centres->centre : NULL) &&
           put_bases(b, c);
}

kvasir_status context_fingerprint(const struct kvasir_context *c, uint64_t *out,
                                  kvasir_error *err) {
    struct text_buf b = {0};
    char model[17];
    fingerprint_text(c->model->id, model);
    bool good = fingerprint_put_context(&b, c, model);
    return finish(&b, good, "fingerprint", out, err);
}
