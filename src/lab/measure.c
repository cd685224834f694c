/* SPDX-License-Identifier: Apache-2.0 */
/* measure.c: how far one distribution is from another, what many such distances are like, and what
 * a cache format costs in bytes, error and time. Pure functions of their arguments.
 *
 * lab_kv_bench walks a cache tile by tile, so it holds only one tile of float rows, whatever the
 * size of the cache:
 *
 *     for each layer, part (K, V), head, page of 64 tokens:
 *
 *         rows [64][head_dim] -+-> tile in format 0 -> rows back -> |error|, seconds
 *         (normal numbers, or  +-> tile in format 1 -> ...
 *          K, V of a sequence) +-> ...
 *
 * It encodes and decodes with quant/'s tile_encode_row and tile_decode_row: scalar, one thread, the
 * definition of the formats. So errors and bytes are exactly those of every tier. Times are those
 * of the definition, an upper bound for a tier; `kcheck --bench` measures the tiers.
 *
 * Not measured: errors of attention over the tiles. Perplexity shows their effect.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "lab/lab.h"

/* ---- distributions --------------------------------------------------------------------------- */

static uint32_t argmax(const float *x, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

static double nll_of(double max, double sum, float logit) {
    return max + m_log(sum) - (double)logit;
}

/* Logits whose exponentials are taken together, in vectors (m_exp_each). */
enum { BLOCK = 1024 };

static uint32_t block_at(uint32_t at, uint32_t vocab) {
    return vocab - at < BLOCK ? vocab - at : BLOCK;
}

/* e[i] = exp(logits[i] - max), added to the sum in the order of i. */
static void exp_block(const float *logits, uint32_t n, double max, double *e, double *sum) {
    for (uint32_t i = 0; i < n; i++)
        e[i] = (double)logits[i] - max;
    m_exp_each(e, n);
    for (uint32_t i = 0; i < n; i++)
        *sum += e[i];
}

double lab_nll(const float *logits, uint32_t vocab, int32_t target) {
    if (target < 0 || (uint32_t)target >= vocab)
        return (double)NAN;
    double max = (double)logits[argmax(logits, vocab)], sum = 0, e[BLOCK];
    for (uint32_t at = 0; at < vocab; at += BLOCK)
        exp_block(logits + at, block_at(at, vocab), max, e, &sum);
    return nll_of(max, sum, logits[target]);
}

/* With e_i = exp(p_i - max p) and S = sum e: KL = sum e_i (p_i - q_i) / S - (ln S_p - ln S_q),
 * where each ln includes its maximum. One pass after the maxima are known. */
lab_divergence lab_compare_logits(const float *p, const float *q, uint32_t vocab, int32_t target) {
    uint32_t top_p = argmax(p, vocab), top_q = argmax(q, vocab);
    double max_p = (double)p[top_p], max_q = (double)q[top_q];
    double sum_p = 0, sum_q = 0, cross = 0, e_p[BLOCK], e_q[BLOCK];
    for (uint32_t at = 0; at < vocab; at += BLOCK) {
        const uint32_t n = block_at(at, vocab);
        exp_block(p + at, n, max_p, e_p, &sum_p);
        exp_block(q + at, n, max_q, e_q, &sum_q);
        for (uint32_t i = 0; i < n; i++)
            if (e_p[i] > 0) /* 0 (ln 0 - ln q) is 0 */
                cross += e_p[i] * ((double)p[at + i] - (double)q[at + i]);
    }
    double kl = cross / sum_p - (max_p + m_log(sum_p)) + (max_q + m_log(sum_q));
    bool in_range = target >= 0 && (uint32_t)target < vocab;
    return (lab_divergence){
        .kl = kl < 0 ? 0 : kl, /* rounding of equal distributions */
        .nll_p = in_range ? nll_of(max_p, sum_p, p[target]) : (double)NAN,
        .nll_q = in_range ? nll_of(max_q, sum_q, q[target]) : (double)NAN,
        .same_top = top_p == top_q,
    };
}

/* ---- many values ----------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *sorted, size_t n, double q) {
    double at = q * (double)(n - 1);
    size_t low = (size_t)at, high = low + 1 < n ? low + 1 : low;
    return sorted[low] + (at - (double)low) * (sorted[high] - sorted[low]);
}

lab_summary lab_summarize(double *values, size_t n) {
    ASSERT(n > 0);
    lab_summary s = {0};
    double squares = 0;
    for (size_t i = 0; i < n; i++)
        s.mean += values[i];
    s.mean /= (double)n;
    for (size_t i = 0; i < n; i++)
        squares += (values[i] - s.mean) * (values[i] - s.mean);
    s.error = n > 1 ? m_sqrt(squares / (double)(n - 1) / (double)n) : 0;
    qsort(values, n, sizeof *values, compare_doubles);
    s.median = quantile(values, n, 0.5);
    s.p99 = quantile(values, n, 0.99);
    s.p999 = quantile(values, n, 0.999);
    s.max = values[n - 1];
    return s;
}

/* ---- normal numbers -------------------------------------------------------------------------- */

/* One stream for a whole cache, in the order [layer][K, V][head][token][dim]. So the data
 * depends on the seed and the shape, not on the formats. */
struct normal_stream {
    uint64_t state;
    bool has_spare;
    double spare;
};

/* SplitMix64. */
static uint64_t next_bits(struct normal_stream *s) {
    return mix_bits(s->state += 0x9e3779b97f4a7c15ULL);
}

/* Marsaglia's polar method: needs no sine or cosine, and gives two numbers for each point in the
 * unit circle. */
static float next_normal(struct normal_stream *s) {
    if (s->has_spare) {
        s->has_spare = false;
        return (float)s->spare;
    }
    double x, y, r;
    do {
        x = (double)(int64_t)(next_bits(s) >> 11) * 0x1p-52 - 1;
        y = (double)(int64_t)(next_bits(s) >> 11) * 0x1p-52 - 1;
        r = x * x + y * y;
    } while (r >= 1 || r == 0);
    double scale = m_sqrt(-2 * m_log(r) / r);
    s->has_spare = true;
    s->spare = y * scale;
    return (float)(x * scale);
}

/* ---- the bench ------------------------------------------------------------------------------- */

/* Far above any model's cache. They keep every product below 2^64. */
enum {
    BENCH_LAYERS_MAX = 1024,
    HEADS_MAX = 1024,
    TOKENS_MAX = 1 << 24,
    DIM_MAX = 4096,
    FORMATS_MAX = 64
};

struct candidate {
    struct tile_layout layouts[2]; /* K, V */
    lab_kv_bench_row row;
    double error_sum; /* of |x - stored x| */
};

struct bench {
    uint32_t layers, seq_len, heads, head_dim;
    const kvasir_seq *seq; /* NULL: normal numbers */
    struct normal_stream normal;
    struct candidate *candidates; /* [n_candidates] */
    size_t n_candidates;
    float *rows, *back; /* [64][head_dim] */
    uint8_t *tile;      /* of the widest format */
};

static kvasir_status take_shape(struct bench *b, const lab_kv_bench_options *o, kvasir_error *err) {
    b->seq = o->seq;
    b->normal.state = o->seed;
    b->layers = o->layers;
    b->seq_len = o->seq_len;
    b->heads = o->heads;
    b->head_dim = o->head_dim;
    if (o->seq) {
        const struct model_config *model = model_config(o->seq->ctx->model->model);
        b->layers = model->n_layers;
        b->seq_len = kvasir_seq_length(o->seq);
        b->heads = model->kv_heads;
        b->head_dim = model->head_dim;
    }
    const struct {
        const char *field;
        uint32_t value, max;
    } bounds[] = {{"kv_bench.layers", b->layers, BENCH_LAYERS_MAX},
                  {"kv_bench.seq_len", b->seq_len, TOKENS_MAX},
                  {"kv_bench.heads", b->heads, HEADS_MAX},
                  {"kv_bench.head_dim", b->head_dim, DIM_MAX}};
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        if (bounds[i].value == 0 || bounds[i].value > bounds[i].max)
            return fail_field(err, KVASIR_ERR_ARGUMENT, bounds[i].field,
                              "%u is not between 1 and %u", bounds[i].value, bounds[i].max);
    if (o->n_formats == 0 || o->n_formats > FORMATS_MAX)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "kv_bench.formats",
                          "%zu formats, not between 1 and %d", o->n_formats, FORMATS_MAX);
    return KVASIR_OK;
}

static kvasir_status take_format(struct bench *b, struct candidate *c, const char *text,
                                 const char *group_text, kvasir_error *err) {
    struct kv_format formats[2];
    uint32_t groups[2];
    TRY(options_parse_groups("kv_bench.kv_group_size", group_text, &groups[0], &groups[1], err));
    TRY(fail_of_field(kv_format_parse_pair(text, &formats[0], &formats[1], err), err,
                      "kv_bench.formats"));
    if (formats[0].kind == KV_TILE || formats[1].kind == KV_TILE)
        return fail_field(
            err, KVASIR_ERR_UNSUPPORTED, "kv_bench.formats",
            "\"%.40s\" encodes whole pages in a basis of the model, which is measured "
            "with the model only (kvasir quality)",
            text);
    for (int part = 0; part < 2; part++) {
        TRY(fail_of_field(kv_format_settle(&formats[part], b->head_dim, groups[part], err), err,
                          "kv_bench.kv_group_size"));
        tile_layout_init(&c->layouts[part], part == 0 ? TILE_K : TILE_V, formats[part],
                         b->head_dim);
    }
    strncpy(c->row.format, text, sizeof c->row.format - 1);
    uint64_t rows = (uint64_t)b->layers * b->heads * b->seq_len;
    c->row.bytes = rows * ((c->layouts[0].bytes + c->layouts[1].bytes) / TILE_TOKENS);
    c->row.bytes16 = rows * b->head_dim * 2 * 2;
    return KVASIR_OK;
}

static kvasir_status fill_rows(struct bench *b, uint32_t layer, int part, uint32_t head,
                               uint32_t first, uint32_t n, kvasir_error *err) {
    if (b->seq)
        return kvasir_seq_read_kv(b->seq, part == 0 ? KVASIR_PART_K : KVASIR_PART_V, layer, head,
                                  first, n, b->rows, err);
    for (size_t i = 0; i < (size_t)n * b->head_dim; i++)
        b->rows[i] = next_normal(&b->normal);
    return KVASIR_OK;
}

static void measure_tile(struct bench *b, struct candidate *c, int part, uint32_t n) {
    const struct tile_layout *l = &c->layouts[part];
    ASSERT(n <= TILE_TOKENS && l->bytes <= TILE_TOKENS * b->head_dim * sizeof(float));
    memset(b->tile, 0, l->bytes);
    double start = clock_seconds();
    for (uint32_t t = 0; t < n; t++)
        tile_encode_row(l, b->tile, t, b->rows + (size_t)t * b->head_dim);
    double encoded = clock_seconds();
    for (uint32_t t = 0; t < n; t++)
        tile_decode_row(l, b->tile, t, b->back + (size_t)t * b->head_dim);
    double decoded = clock_seconds();
    c->row.encode_seconds += encoded - start;
    c->row.decode_seconds += decoded - encoded;
    double sum = 0, max = c->row.max_error;
    for (size_t i = 0; i < (size_t)n * b->head_dim; i++) {
        double error = fabs((double)b->rows[i] - (double)b->back[i]);
        sum += error;
        max = error > max ? error : max;
    }
    c->error_sum += sum;
    c->row.max_error = max;
}

static kvasir_status measure_layer(struct bench *b, uint32_t layer, kvasir_error *err) {
    for (int part = 0; part < 2; part++)
        for (uint32_t head = 0; head < b->heads; head++)
            for (uint32_t first = 0; first < b->seq_len; first += TILE_TOKENS) {
                uint32_t left = b->seq_len - first, n = left < TILE_TOKENS ? left : TILE_TOKENS;
                TRY(fill_rows(b, layer, part, head, first, n, err));
                for (size_t i = 0; i < b->n_candidates; i++)
                    measure_tile(b, &b->candidates[i], part, n);
            }
    return KVASIR_OK;
}

static void finish_row(const struct bench *b, struct candidate *c) {
    double values = 2.0 * b->layers * b->heads * b->seq_len * b->head_dim;
    c->row.mean_error = c->error_sum / values;
    if (c->row.encode_seconds > 0)
        c->row.encode_gb_s = values * 4 / 1e9 / c->row.encode_seconds;
    if (c->row.decode_seconds > 0)
        c->row.decode_gb_s = values * 4 / 1e9 / c->row.decode_seconds;
}

static kvasir_status allocate(struct bench *b, size_t n_formats, kvasir_error *err) {
    size_t tile_floats = (size_t)TILE_TOKENS * b->head_dim;
    b->n_candidates = n_formats;
    b->candidates = mem_calloc(n_formats, sizeof *b->candidates);
    b->rows = mem_calloc(tile_floats, sizeof *b->rows);
    b->back = mem_calloc(tile_floats, sizeof *b->back);
    b->tile = mem_alloc_aligned(tile_floats * sizeof(float)); /* no format is wider than f32 */
    if (!b->candidates || !b->rows || !b->back || !b->tile)
        return fail(err, KVASIR_ERR_MEMORY, "bench-kv-cache: out of memory");
    return KVASIR_OK;
}

kvasir_status lab_kv_bench(const lab_kv_bench_options *options, lab_kv_bench_fn *fn, void *user,
                           kvasir_error *err) {
    struct bench b = {0};
    kvasir_status status;
    TRY_GOTO(take_shape(&b, options, err));
    TRY_GOTO(allocate(&b, options->n_formats, err));
    for (size_t i = 0; i < b.n_candidates; i++)
        TRY_GOTO(
            take_format(&b, &b.candidates[i], options->formats[i], options->kv_group_size, err));
    for (uint32_t layer = 0; layer < b.layers; layer++)
        TRY_GOTO(measure_layer(&b, layer, err));
    for (size_t i = 0; i < b.n_candidates; i++) {
        finish_row(&b, &b.candidates[i]);
        fn(user, &b.candidates[i].row);
    }
done:
    mem_free(b.candidates);
    mem_free(b.rows);
    mem_free(b.back);
    mem_free(b.tile);
    return status;
}
