/* SPDX-License-Identifier: Apache-2.0 */
/* check_attention.c: attention on CUDA.
 *
 * Against a reference in double, over the scene's image of the pages, with the query and the values
 * of affine tiles rounded as in arithmetic.cuh, and nothing else rounded. u = 2^-24, gamma(n) as in
 * kcheck. For a row with scores s_t (natural units), p_t = exp(s_t - max) and P = sum p:
 *
 *   score    dim products and additions of the tensor core (it truncates: 2 u each)
 *            e_t = gamma(2 dim) sum|terms|
 *   weight   the exponential (2 ulp) of a difference that was rounded:
 *            d_t = e_t + 2^-22 + u (|s_t| + |max|) 2;  relative, of p_t
 *   sums     a value is added at most 8 x 4 times in its chain, 3 in the tree, then twice at each
 *            fold of 8 runs and of the supers; 16 products an instruction, truncated:
 *            N = 64 + 2 * supers + 2 * 16 * 16
 *   rounding p by half an ulp of 11 (bf16: 8) bits, and 2^-31 of the weight at M where f16
 *            underflows
 *
 *   |out - want| <= 1/P sum_t p_t (d_t (|v_t| + |want|) + gamma(N) (|v_t| + |want|)) + rounding
 *
 * Pages in another basis: the query is turned in float32, with the device's order of operations, so
 * that its bits are known. Their part of the output and of its bound is rotated back by H, whose
 * additions and factor add gamma(log2 dim + 1) of the sum of |terms|. Where a row sees pages of two
 * bases, the weight of a basis has the relative error of its tokens' weights, and 2^-20.
 *
 * O2: the bits of every row are the same from the decode and the prefill kernel, from kernels that
 * were compiled for one format and for all, alone and in the batch, and cut into steps anywhere.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/graph.h"
#include "opcheck.h"

enum { SUPER = 2048 };

/* ---- the reference --------------------------------------------------------------------------- */

static double round_to_bits(double x, int bits) {
    if (x == 0)
        return 0;
    int e;
    double m = frexp(x, &e);
    return ldexp(rint(ldexp(m, bits)), e - bits);
}
static double round_to_f16(double x) {
    if (fabs(x) < 0x1p-14)
        return rint(x * 0x1p24) * 0x1p-24;
    uint64_t bits; /* of a power of two that leaves x 11 bits when it is added */
    memcpy(&bits, &x, sizeof bits);
    bits = (bits & 0x7ff0000000000000) + ((uint64_t)42 << 52);
    double much;
    memcpy(&much, &bits, sizeof much);
    return x < 0 ? (x - much) + much : (x + much) - much;
}
/* Queries and weights are bf16 for such a tile, else f16. */
static bool is_bf16(struct kv_format f) {
    return kv_format_exact(f) && f.scalar == SCALAR_BF16;
}

/* The query row as it is used with a page of this format. x = q * scale in float32. */
static void round_query(const float *x, uint32_t dim, struct kv_format f, double *out) {
    float m = 0;
    for (uint32_t i = 0; i < dim; i++)
        m = fabsf(x[i]) > m ? fabsf(x[i]) : m;
    int e;
    frexpf(m, &e); /* m / 2^(e - 1) lies in [1, 2) */
    for (uint32_t i = 0; i < dim; i++) {
        double y = m < 1e-30f ? 0 : ldexp((double)x[i], 1 - e);
        out[i] = ldexp(is_bf16(f) ? round_to_bits(y, 8) : round_to_f16(y), e - 1);
    }
}

struct token {
    double v[HEAD_DIM_MAX], k_terms;
    double p, s, d; /* weight, score, the weight's relative error */
};

static void decode_token(const struct tile_layout *l, const uint8_t *tile, uint32_t t,
                         double *out) {
    float x[HEAD_DIM_MAX], s[HEAD_DIM_MAX], b[HEAD_DIM_MAX];
    uint8_t codes[HEAD_DIM_MAX];
    if (kv_format_exact(l->format)) {
        tile_decode_row(l, tile, t, x);
        for (uint32_t i = 0; i < l->head_dim; i++)
            out[i] = (double)x[i];
        return;
    }
    if (l->group)
        tile_get_row(l, tile, t, codes, s, b);
    else {
        tile_get_row(l, tile, t, codes, NULL, NULL);
        tile_get_channels(l, tile, s, b);
    }
    for (uint32_t i = 0; i < l->head_dim; i++) {
        uint32_t g = l->group ? i / l->group : i;
        out[i] = round_to_f16(round_to_f16((double)s[g]) * codes[i] + round_to_f16((double)b[g]));
    }
}

static bool visible(const struct kv_view *v, uint32_t p, uint32_t at) {
    return at <= p && (at < v->keep || v->span == UINT32_MAX || p - at < v->span);
}

struct row_reference {
    double out[HEAD_DIM_MAX], bound[HEAD_DIM_MAX];
};

/* The query in a basis, as basis.cuh computes it. */
static void turn_query(const struct scene *c, enum page_basis basis, uint32_t layer, uint32_t kv,
                       const float *q, float *out) {
    const uint32_t dim = c->head_dim;
    memcpy(out, q, dim * sizeof *out);
    if (basis == BASIS_HADAMARD)
        hadamard_rotate(out, dim);
    if (basis != BASIS_BALANCED)
        return;
    const float *m = key_basis_at(c->basis, c->basis->forward, layer, kv);
    for (uint32_t i = 0; i < dim; i++) {
        float part[4] = {0};
        for (uint32_t j = 0; j < dim; j++)
            part[j / (dim / 4)] = fmaf(q[j], m[(size_t)j * dim + i], part[j / (dim / 4)]);
        out[i] = (part[0] + part[1]) + (part[2] + part[3]);
    }
}

/* x = H x, and of the bound; what float32 adds to that. */
static void rotate_back(double *x, double *bound, uint32_t dim) {
    double turned[HEAD_DIM_MAX], all = 0, error = 0;
    for (uint32_t i = 0; i < dim; i++) {
        all += fabs(x[i]);
        error += bound[i];
    }
    for (uint32_t i = 0; i < dim; i++) {
        turned[i] = 0;
        for (uint32_t j = 0; j < dim; j++)
            turned[i] += (__builtin_popcount(i & j) % 2 ? -x[j] : x[j]) / sqrt((double)dim);
    }
    for (uint32_t i = 0; i < dim; i++) {
        x[i] = turned[i];
        bound[i] = (error + gamma_of(10) * all) / sqrt((double)dim);
    }
}

/* What the pages of one basis, or of all that are not plain, contribute: sums of p v and of p,
 * the error of the former and of the latter. */
struct part {
    double out[HEAD_DIM_MAX], error[HEAD_DIM_MAX], sum, sum_error;
};

/* Adds the tokens of one part; out / sum is known before the errors are. */
static void add_part(const struct scene *c, uint32_t s, uint32_t p, const struct token *tokens,
                     bool turned, struct part *part) {
    const uint32_t dim = c->head_dim;
    const double supers = (double)(p / SUPER) + 1, g = gamma_of(64 + 2 * supers + 512);
    memset(part, 0, sizeof *part);
    for (int errors = 0; errors < 2; errors++)
        for (uint32_t t = 0; t <= p; t++) {
            const struct token *k = &tokens[t];
            if (k->s == -INFINITY)
                continue;
            const struct page_layout *l =
                &c->layouts[scene_page_seen(c, s, t / TILE_TOKENS, p)->layout];
            if ((l->basis != BASIS_PLAIN) != turned)
                continue;
            const double half = is_bf16(l->v.format) ? 0x1p-8 : 0x1p-11;
            if (!errors)
                part->sum += k->p;
            else
                part->sum_error += k->p * (k->d + g);
            for (uint32_t i = 0; i < dim; i++) {
                const double v = fabs(k->v[i]);
                if (!errors)
                    part->out[i] += k->p * k->v[i];
                else
                    part->error[i] +=
                        k->p * (half * v + (k->d + g) * (v + fabs(part->out[i]) / part->sum)) +
                        0x1p-31 * v;
            }
        }
}

/* Attention of one row and head of sequence s at position p. */
static void attend_in_double(const struct scene *c, uint32_t s, uint32_t layer, uint32_t head,
                             uint32_t p, const float *q, float scale, struct row_reference *r) {
    const struct kv_view *view = &c->views[s];
    uint32_t dim = c->head_dim, kv = head / (c->heads / c->kv_heads);
    struct token *tokens = calloc(p + 1, sizeof *tokens);
    double max = -INFINITY, rounded[SCENE_LAYOUTS][HEAD_DIM_MAX];
    for (int i = 0; i < SCENE_LAYOUTS; i++) {
        float x[HEAD_DIM_MAX];
        turn_query(c, (enum page_basis)c->layouts[i].basis, layer, kv, q, x);
        for (uint32_t j = 0; j < dim; j++)
            x[j] *= scale;
        round_query(x, dim, c->layouts[i].k.format, rounded[i]);
    }
    for (uint32_t t = 0; t <= p; t++) {
        tokens[t].s = -INFINITY;
        if (!visible(view, p, t))
            continue;
        const struct kv_page *page = scene_page_seen(c, s, t / TILE_TOKENS, p);
        const struct page_layout *l = &view->layouts[page->layout];
        const uint8_t *tiles = c->image + page_offset(page->addr) + page_tile(l, layer, kv, TILE_K);
        double k[HEAD_DIM_MAX], dot = 0, terms = 0;
        decode_token(&l->k, tiles, t % TILE_TOKENS, k);
        const double *y = rounded[page->layout];
        for (uint32_t i = 0; i < dim; i++) {
            dot += y[i] * k[i];
            terms += fabs(y[i] * k[i]);
        }
        tokens[t].s = dot;
        tokens[t].k_terms = terms * gamma_of(2.0 * dim);
        decode_token(&l->v, tiles + l->k.bytes, t % TILE_TOKENS, tokens[t].v);
        max = dot > max ? dot : max;
    }
    for (uint32_t t = 0; t <= p; t++) {
        struct token *k = &tokens[t];
        k->p = k->s == -INFINITY ? 0 : exp(k->s - max);
        k->d = k->k_terms + 0x1p-21 + 0x1p-22 * (fabs(k->s) + fabs(max));
    }
    static struct part parts[2];
    for (int i = 0; i < 2; i++) {
        add_part(c, s, p, tokens, i == 1, &parts[i]);
        if (i == 1)
            rotate_back(parts[i].out, parts[i].error, dim);
    }
    const bool both = parts[0].sum > 0 && parts[1].sum > 0;
    const double sum = parts[0].sum + parts[1].sum;
    for (uint32_t i = 0; i < dim; i++) {
        r->out[i] = (parts[0].out[i] + parts[1].out[i]) / sum;
        double error = parts[0].error[i] + parts[1].error[i];
        for (int j = 0; both && j < 2; j++)
            error += (parts[j].sum_error + 0x1p-20 * parts[j].sum) *
                     (fabs(parts[j].out[i]) / parts[j].sum + fabs(r->out[i]));
        r->bound[i] = error / sum + 0x1p-22 * fabs(r->out[i]) + 1e-30;
    }
    free(tokens);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Attention of a batch over layer `layer`; the host's copy, [rows][heads][dim]. q: of the batch. */
static const float *attend(const struct scene *c, const struct batch *batch, uint32_t layer,
                           const float *q, float scale) {
    size_t bytes = (size_t)batch->rows * c->heads * c->head_dim * sizeof *q;
    float *device_q = device_copy(q, bytes), *out = device_buffer(bytes);
    const struct attention_args args = {.heads = c->heads, .scale = scale};
    backend_step_begin(device, batch, 1);
    op_attention(device, batch, batch->views, layer, device_q, &args, out);
    return from_device(out, bytes);
}

/* The same with another threshold between the kernels. */
static const float *attend_by(const struct scene *c, const struct batch *batch, uint32_t layer,
                              const float *q, float scale, uint32_t prefill_rows) {
    kvasir_error err = {0};
    must(cuda_prefill_rows(device, prefill_rows, &err), &err, "cuda_prefill_rows");
    return attend(c, batch, layer, q, scale);
}

static void same_bits(const char *what, const struct scene *c, const float *got, const float *want,
                      uint32_t rows) {
    size_t n = (size_t)rows * c->heads * c->head_dim;
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0) {
            check_that(false, "%s: row %zu head %zu dim %zu: %a, not %a", what,
                       i / (c->heads * c->head_dim), i / c->head_dim % c->heads, i % c->head_dim,
                       (double)got[i], (double)want[i]);
            return;
        }
    check_that(true, "%s", what);
}

static void check_scene(struct scene *c, float q_size) {
    const uint32_t layer = c->layers - 1, width = c->heads * c->head_dim;
    const float scale = 1 / sqrtf((float)c->head_dim);
    scene_build(c, true);
    float *q = plain((size_t)c->batch.rows * width * sizeof *q);
    fill(q, (size_t)c->batch.rows * width, FILL_NORMAL);
    for (size_t i = 0; i < (size_t)c->batch.rows * width; i++)
        q[i] *= q_size;
    const float *out = attend_by(c, &c->batch, layer, q, scale, 0);

    /* against the reference: the first, the last and some rows */
    for (uint32_t s = 0; s < c->n_seqs; s++) {
        const struct batch_seq *seq = &c->batch.seqs[s];
        for (uint32_t i = 0; i < seq->rows; i++) {
            if (i != 0 && i + 1 != seq->rows && random_below(seq->rows) > 4)
                continue;
            for (uint32_t h = 0; h < c->heads; h++) {
                if (c->heads > 4 && random_below(c->heads) > 4)
                    continue;
                struct row_reference r;
                size_t at = (size_t)(seq->row + i) * width + (size_t)h * c->head_dim;
                attend_in_double(c, s, layer, h, seq->pos + i, q + at, scale, &r);
                for (uint32_t d = 0; d < c->head_dim; d++)
                    check_near("out", seq->row + i, h * c->head_dim + d, (double)out[at + d],
                               r.out[d], r.bound[d]);
            }
        }
    }
    /* against itself */
    same_bits("prefill kernel", c, attend_by(c, &c->batch, layer, q, scale, 1), out, c->batch.rows);
    same_bits("decode kernel", c, attend_by(c, &c->batch, layer, q, scale, c->batch.rows + 1), out,
              c->batch.rows);
    for (uint32_t s = 0; s < c->n_seqs; s++) {
        const struct batch_seq *seq = &c->batch.seqs[s];
        uint32_t cut = random_below(seq->rows), rows = seq->rows - cut;
        struct batch_seq one;
        struct batch b = scene_part(c, s, cut, rows, &one);
        size_t at = (size_t)(seq->row + cut) * width;
        same_bits("alone, cut", c, attend_by(c, &b, layer, q + at, scale, random_below(3)),
                  out + at, rows);
    }
    scene_free(c);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static const struct kv_format F16_FORMAT = {16, SCALAR_F16, 0, KV_ROWS},
                              BF16_FORMAT = {16, SCALAR_BF16, 0, KV_ROWS};

static struct kv_format affine(uint8_t bits, uint8_t group, enum scalar_type t) {
    return (struct kv_format){bits, (uint8_t)t, group, KV_ROWS};
}

static void random_seqs(struct scene *c, struct scene_seq *seqs, uint32_t longest) {
    static const uint32_t EDGES[] = {1, 2, 63, 64, 65, 128, 255, 256, 257, 320, 511, 513};
    for (uint32_t s = 0; s < c->n_seqs; s++) {
        struct scene_seq *q = &seqs[s];
        q->length = s == 0 ? longest : EDGES[random_below(sizeof EDGES / sizeof *EDGES)];
        uint32_t most = q->length < 200 ? q->length : 200;
        static const uint32_t ROWS[] = {1, 1, 1, 2, 3, 17, 64, 65, 200};
        q->rows = ROWS[random_below(sizeof ROWS / sizeof *ROWS)];
        if (q->rows > most)
            q->rows = most;
        q->keep = 0;
        q->span = UINT32_MAX;
        if (random_below(2)) {
            q->span = 1 + random_below(q->length + 40);
            q->keep = random_below(2) ? random_below(70) : 0;
        }
        q->switch_at = random_below(2) ? UINT32_MAX : random_below(q->length / 64 + 2);
    }
    c->seqs = seqs;
}

static void check_formats(struct kv_format k, struct kv_format v, uint32_t dim) {
    char kn[24], vn[24];
    if (!family_begin("attention", "%s / %s, %u dims", kv_format_name(k, kn), kv_format_name(v, vn),
                      dim))
        return;
    static const uint32_t GQA[] = {1, 2, 3, 4, 5, 7, 8, 16};
    for (uint32_t i = 0; i < (quick ? 2u : 8u); i++) {
        uint32_t gqa = quick ? (i == 0 ? 4 : 8) : GQA[i], kv_heads = 1 + random_below(2);
        struct scene c = {.heads = gqa * kv_heads,
                          .kv_heads = kv_heads,
                          .head_dim = dim,
                          .layers = 1 + random_below(2),
                          .n_seqs = quick ? 2 : 1 + random_below(4),
                          .tail_pages = random_below(4)};
        struct scene_seq seqs[4];
        /* the last case: another format before a switch */
        bool mixed = i % 4 == 3;
        struct kv_format k0 = mixed ? F16_FORMAT : k, v0 = mixed ? F16_FORMAT : v;
        page_layout_init(&c.layouts[0], c.layers, kv_heads, dim, k0, v0);
        page_layout_init(&c.layouts[1], c.layers, kv_heads, dim, k, v);
        random_seqs(&c, seqs, quick ? 600 : 300 + random_below(4500));
        case_begin("gqa %u, %u seqs, longest %u, rows %u, keep %u, span %u, switch %u, tail %u",
                   gqa, c.n_seqs, seqs[0].length, seqs[0].rows, seqs[0].keep, seqs[0].span,
                   seqs[0].switch_at, c.tail_pages);
        c.turned_start = mixed && i > 4;
        scene_set_bases(&c, i % 2 != 0);
        check_scene(&c, i % 2 ? 8 : 1); /* large scores: maxima move */
    }
    family_end();
}

/* One row over many supers: the fold of the last block. */
static void check_long(struct kv_format k, struct kv_format v) {
    char kn[24], vn[24];
    if (!family_begin("attention", "%s / %s, long", kv_format_name(k, kn), kv_format_name(v, vn)))
        return;
    static const uint32_t LENGTHS[] = {2049, 6500, 70000, 2047, 2048, 140001};
    for (uint32_t i = 0; i < (quick ? 2u : 6u); i++) {
        struct scene c = {
            .heads = 4, .kv_heads = 1, .head_dim = 128, .layers = 1, .n_seqs = 1, .tail_pages = i};
        struct scene_seq seq = {LENGTHS[i], 2, 0, UINT32_MAX, UINT32_MAX};
        page_layout_init(&c.layouts[0], 1, 1, 128, k, v);
        page_layout_init(&c.layouts[1], 1, 1, 128, k, v);
        c.seqs = &seq;
        case_begin("%u tokens", seq.length);
        scene_set_bases(&c, true);
        check_scene(&c, 1);
    }
    family_end();
}

/* Rows enough for more blocks than a GPU has multiprocessors, over two super-runs: these have no
 * blocks of their own then, as they have in all other cases. */
static void check_wide(struct kv_format k, struct kv_format v) {
    char kn[24], vn[24];
    if (quick ||
        !family_begin("attention", "%s / %s, wide", kv_format_name(k, kn), kv_format_name(v, vn)))
        return;
    struct scene c = {.heads = 32, .kv_heads = 4, .head_dim = 128, .layers = 1, .n_seqs = 1};
    struct scene_seq seq = {2400, 300, 0, UINT32_MAX, UINT32_MAX};
    page_layout_init(&c.layouts[0], 1, 4, 128, k, v);
    page_layout_init(&c.layouts[1], 1, 4, 128, k, v);
    c.seqs = &seq;
    case_begin("%u rows after %u tokens", seq.rows, seq.length - seq.rows);
    scene_set_bases(&c, false);
    check_scene(&c, 1);
    family_end();
}

/* Two layer groups of one step, of different shapes, formats, windows: the bits of each alone. */
static void check_groups(void) {
    enum { SEQS = 3, GROUPS = 2, LAYER = 1 };
    if (!family_begin("attention", "two layer groups"))
        return;
    struct scene_seq seqs[GROUPS][SEQS] = {{{3000, 1, 0, UINT32_MAX, 20},
                                            {500, 70, 0, UINT32_MAX, UINT32_MAX},
                                            {257, 5, 0, UINT32_MAX, 0}},
                                           {{3000, 1, 4, 700, UINT32_MAX},
                                            {500, 70, 0, 130, UINT32_MAX},
                                            {257, 5, 0, 64, UINT32_MAX}}};
    struct scene c[GROUPS] = {{.heads = 8, .kv_heads = 2, .head_dim = 128},
                              {.heads = 4, .kv_heads = 4, .head_dim = 64}};
    const struct kv_format k[GROUPS] = {affine(8, 64, SCALAR_F16), F16_FORMAT},
                           v[GROUPS] = {affine(4, 64, SCALAR_F16), F16_FORMAT};
    struct kv_view views[GROUPS * SEQS];
    struct backend_limits limits = {.groups = GROUPS};
    const float *alone[GROUPS], *q[GROUPS];
    size_t bytes[GROUPS];
    case_begin("%d sequences", SEQS);
    for (int g = 0; g < GROUPS; g++) {
        c[g].layers = LAYER + 1;
        c[g].n_seqs = SEQS;
        c[g].seqs = seqs[g];
        page_layout_init(&c[g].layouts[0], c[g].layers, c[g].kv_heads, c[g].head_dim, k[g], v[g]);
        page_layout_init(&c[g].layouts[1], c[g].layers, c[g].kv_heads, c[g].head_dim, F16_FORMAT,
                         F16_FORMAT);
        scene_build(&c[g], true);
        size_t n = (size_t)c[g].batch.rows * c[g].heads * c[g].head_dim;
        q[g] = plain_floats(n);
        bytes[g] = n * sizeof *q[g];
        alone[g] = attend_by(&c[g], &c[g].batch, LAYER, q[g], 0.1f, 0);
        scene_detach(&c[g]);
        const struct backend_limits one = scene_limits(&c[g]);
        limits.rows = one.rows;
        limits.seqs = one.seqs;
        limits.dim = limits.dim > one.dim ? limits.dim : one.dim;
        limits.head_dim = limits.head_dim > one.head_dim ? limits.head_dim : one.head_dim;
        limits.pages = limits.pages > one.pages ? limits.pages : one.pages;
        limits.group[g] = one.group[0];
    }
    device_begin(&limits, 8);
    for (int g = 0; g < GROUPS; g++) {
        scene_attach(&c[g]);
        memcpy(views + g * SEQS, c[g].views, SEQS * sizeof *views);
    }
    struct batch batch = c[0].batch;
    batch.views = views;
    backend_step_begin(device, &batch, GROUPS);
    for (int g = GROUPS - 1; g >= 0; g--) {
        const struct attention_args args = {.heads = c[g].heads, .scale = 0.1f};
        float *out = device_buffer(bytes[g]);
        op_attention(device, &batch, views + g * SEQS, LAYER, device_copy(q[g], bytes[g]), &args,
                     out);
        same_bits("group of two", &c[g], from_device(out, bytes[g]), alone[g], batch.rows);
    }
    for (int g = 0; g < GROUPS; g++)
        scene_free(&c[g]);
    family_end();
}

void check_cuda_attention(void) {
    static const uint32_t DIMS[] = {128, 64, 256};
    for (uint32_t i = 0; i < 3; i++) {
        check_formats(F16_FORMAT, F16_FORMAT, DIMS[i]);
        check_formats(BF16_FORMAT, BF16_FORMAT, DIMS[i]);
        static const uint8_t BITS[][2] = {{8, 8}, {8, 4}, {4, 4}, {4, 2}, {8, 2}, {4, 8}};
        for (uint32_t j = 0; j < (quick && i ? 2u : 6u); j++)
            for (uint8_t group = 64; group >= 32; group /= 2)
                check_formats(affine(BITS[j][0], group, SCALAR_F16),
                              affine(BITS[j][1], group, SCALAR_F16), DIMS[i]);
        check_formats(affine(8, 64, SCALAR_BF16), affine(4, 32, SCALAR_BF16), DIMS[i]);
        check_formats(F16_FORMAT, affine(4, 64, SCALAR_F16), DIMS[i]);
        check_formats(affine(4, 32, SCALAR_F16), BF16_FORMAT, DIMS[i]);
        check_formats(rotated_format(8), rotated_format(4), DIMS[i]);
        static const uint8_t TILES[][2] = {{5, 4}, {4, 4}, {3, 3}, {4, 3}};
        for (uint32_t j = 0; j < (quick && i ? 1u : 4u); j++)
            check_formats(tile_format(TILES[j][0]), tile_format(TILES[j][1]), DIMS[i]);
    }
    check_wide(affine(8, 64, SCALAR_F16), affine(4, 64, SCALAR_F16));
    check_wide(tile_format(4), tile_format(4));
    check_groups();
    check_long(F16_FORMAT, F16_FORMAT);
    check_long(affine(8, 64, SCALAR_F16), affine(4, 64, SCALAR_F16));
    check_long(affine(4, 64, SCALAR_F16), affine(4, 64, SCALAR_F16));
    check_long(tile_format(4), tile_format(4));
}
