/* SPDX-License-Identifier: Apache-2.0 */
/* Fingerprints: what two caches must agree in so that the pages of one mean the same in the other.
 *
 *     model    configuration, rope frequencies, and of every tensor: name, type, shape, groups, and
 *              three samples of 64 bytes (begin, middle, end) of its data, of its scales and of its
 *              biases, in order of names
 *     context  model, formats of K and V with the versions of their storage order and arithmetic,
 *              exact start, rotation, activations' rounding, centres
 *
 * Each is written out as text and bytes, then hashed by XXH3 to 64 bits; what is hashed begins with
 * a version. Not in it: threads, chunks and the budget, which change no bit, and the tier, which
 * changes float sums by rounding only.
 *
 * A model is not read as a whole: that would take as long as the disk needs. Checkpoints that
 * differ in some weights but in none of the samples pass as one; training changes all of them (that
 * of scales and biases alone, those).
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

static bool put_tensor(struct text_buf *b, const struct checkpoint_tensor *t) {
    bool good = text_printf(b, "tensor %s %d", t->name, (int)t->type);
    for (uint32_t d = 0; good && d < t->n_dims; d++)
        good = text_printf(b, " %" PRIu64, t->dims[d]);
    struct weight w = checkpoint_weight(t);
    size_t data = w.n * weight_row_bytes(weight_traits_of(t->type), w.k);
    size_t beside = (t->bytes - data) / (t->biases ? 2 : 1); /* biases are as many as scales */
    return good && text_printf(b, " by %u %u %d\n", w.group, w.group_rows, (int)w.scalar) &&
           put_samples(b, t->data, data) && put_samples(b, t->scales, beside) &&
           put_samples(b, t->biases, beside);
}

static bool put_model(struct text_buf *b, const struct model *m, double *inv_freq) {
    const struct model_config *c = model_config(m);
    uint32_t n = c->rope.dims / 2;
    model_inv_freq(m, inv_freq);
    bool good =
        text_printf(b, "kvasir model 2\n%s %u %u %u %u %u %u %u window %u eps %a rope %u %d\n",
                    c->arch, c->layers, c->dim, c->ffn_dim, c->heads, c->kv_heads, c->head_dim,
                    c->vocab, c->window, (double)c->norm_eps, n, c->rope.adjacent) &&
        text_append(b, (const char *)inv_freq, n * sizeof *inv_freq);
    const struct checkpoint *file = model_checkpoint(m);
    for (size_t i = 0; good && i < checkpoint_tensor_count(file); i++)
        good = put_tensor(b, checkpoint_tensor_at(file, i));
    return good;
}

kvasir_status model_identity(const struct model *m, uint64_t *out, kvasir_error *err) {
    struct text_buf b = {0};
    double *inv_freq = mem_calloc(model_config(m)->rope.dims / 2, sizeof *inv_freq);
    bool good = inv_freq && put_model(&b, m, inv_freq);
    if (good)
        *out = XXH3_64bits(b.data, b.len);
    mem_free(inv_freq);
    text_free(&b);
    return good ? KVASIR_OK : fail(err, KVASIR_ERR_MEMORY, "model fingerprint: out of memory");
}

static bool put_centres(struct text_buf *b, const struct key_centre *c) {
    if (!c)
        return text_printf(b, "centre none\n");
    size_t heads = (size_t)c->layers * c->kv_heads;
    return text_printf(b, "centre\n") &&
           text_append(b, (const char *)c->first, (heads + 1) * sizeof *c->first) &&
           text_append(b, (const char *)c->pairs, c->first[heads] * sizeof *c->pairs);
}

kvasir_status context_fingerprint(const struct kvasir_context *c, uint64_t *out,
                                  kvasir_error *err) {
    const struct kv_cache_options *o = &c->options.cache;
    struct kv_format k, v;
    kv_cache_formats(c->cache, &k, &v);
    struct text_buf b = {0};
    bool good =
        text_printf(&b,
                    "kvasir context 2\nmodel %016" PRIx64 "\nk %d %d %d v %d %d %d order %d "
                    "arithmetic %d\nstart %u max %u keep %u act %d\n",
                    c->model->id, k.bits, k.group, k.scalar, v.bits, v.group, v.scalar,
                    KV_ORDER_VERSION, KV_ARITHMETIC_VERSION, kv_cache_start_pages(c->cache),
                    o->max_size, o->keep, c->options.backend.act_bits) &&
        put_centres(&b, c->centres ? &c->centres->centre : NULL);
    if (good)
        *out = XXH3_64bits(b.data, b.len);
    text_free(&b);
    return good ? KVASIR_OK : fail(err, KVASIR_ERR_MEMORY, "fingerprint: out of memory");
}
