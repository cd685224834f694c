/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of the CPU backend that are more than a kernel, on every tier that the machine has:
 *
 *   attention   soft caps and sinks against a softmax in double over 32-bit pages
 *   experts     against a naive mixture in double; a row has the same bits alone, with other rows,
 *               and on two threads
 *   recurrent   against the recurrences in double; the same bits however tokens are cut into steps
 *   the rest    one line each
 *
 * Quantized weights are compared through decode: the naive mixture multiplies the same values.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu_internal.h"

#include "random_programs.h"

#include <cmocka.h> /* after util.h, which defines a macro `fail` */

static kvasir_error err;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static float random_float(float size) {
    return size * ((float)random_below(20001) / 10000 - 1);
}

static float *random_floats(size_t n, float size) {
    float *x = malloc((n ? n : 1) * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = random_float(size);
    return x;
}

static struct backend *make_backend(enum cpu_tier tier, int threads, int act_bits,
                                    struct backend_limits limits) {
    struct backend *b;
    struct backend_cpu_options o = {.threads = threads, .tier = tier, .act_bits = act_bits};
    need(backend_cpu_create(&b, &o, &err));
    need(backend_reserve(b, &limits, &err));
    return b;
}

static void near(const char *what, size_t i, double got, double want, double bound) {
    if (!(fabs(got - want) <= bound))
        fail_msg("%s[%zu] is %.9g, should be %.9g +- %.3g", what, i, got, want, bound);
}

typedef void tier_fn(enum cpu_tier tier);

static void for_tiers(tier_fn *fn) {
    for (int tier = 0; tier < CPU_TIER_COUNT; tier++)
        if (cpu_tier_have((enum cpu_tier)tier))
            fn((enum cpu_tier)tier);
}

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

/* ---- attention ------------------------------------------------------------------------------- */

enum { KV_HEADS = 2, GQA = 3, HEADS = KV_HEADS * GQA, DIM = 64, TOKENS = 600, QUERIES = 70 };
enum { LONG_TOKENS = 2100 };

struct pages {
    struct page_layout layout;
    struct kv_page table[LONG_TOKENS / TILE_TOKENS + 1];
    struct kv_view view;
};

static void pages_init(struct pages *p, struct backend *b, uint32_t dim, uint32_t span) {
    struct kv_format f32 = {32, SCALAR_F32, 0, KV_ROWS};
    *p = (struct pages){0};
    page_layout_init(&p->layout, 1, KV_HEADS, dim, f32, f32);
    uint32_t n = sizeof p->table / sizeof *p->table;
    struct backend_arena *arena = backend_arena_create(b, n * p->layout.page_bytes);
    for (uint32_t i = 0; i < n; i++)
        p->table[i].addr = (uint32_t)(i * p->layout.page_bytes / PAGE_ADDR_UNIT);
    p->view = (struct kv_view){
        .arena = arena, .layouts = &p->layout, .pages = p->table, .n_pages = n, .span = span};
}

/* Of tokens [0, keep) and [first, end). k, v: of token 0 and this head */
static void naive_attention(const float *q, const float *k, const float *v, uint32_t dim,
                            uint32_t keep, uint32_t first, uint32_t end,
                            const struct attention_args *args, double sink, double *out) {
    static double score[LONG_TOKENS];
    double max = sink, sum = 0;
    for (uint32_t t = 0; t < end; t++) {
        if (t >= keep && t < first)
            continue;
        double dot = 0;
        for (uint32_t i = 0; i < dim; i++)
            dot += (double)q[i] * k[(size_t)t * KV_HEADS * dim + i];
        dot *= args->scale;
        score[t] = args->softcap > 0 ? args->softcap * tanh(dot / args->softcap) : dot;
        max = fmax(max, score[t]);
    }
    memset(out, 0, dim * sizeof *out);
    for (uint32_t t = 0; t < end; t++) {
        if (t >= keep && t < first)
            continue;
        double p = exp(score[t] - max);
        sum += p;
        for (uint32_t i = 0; i < dim; i++)
            out[i] += p * v[(size_t)t * KV_HEADS * dim + i];
    }
    sum += exp(sink - max);
    for (uint32_t i = 0; i < dim; i++)
        out[i] /= sum;
}

static void check_attention(enum cpu_tier tier, const struct attention_args *args, uint32_t dim,
                            uint32_t span, uint32_t rows) {
    struct backend *b = make_backend(
        tier, 2, 8, (struct backend_limits){.rows = TOKENS, .dim = 64, .head_dim = dim});
    struct pages p;
    pages_init(&p, b, dim, span);
    size_t kv = (size_t)TOKENS * KV_HEADS * dim, n = (size_t)rows * HEADS * dim;
    float *k = random_floats(kv, 1), *v = random_floats(kv, 1), *q = random_floats(n, 4);
    float *out = malloc(n * sizeof *out);
    struct batch_seq all = {.rows = TOKENS}, last = {.rows = rows, .pos = TOKENS - rows};
    op_kv_store(b, &(struct batch){.rows = TOKENS, .n_seqs = 1, .seqs = &all}, &p.view, 0, k, v);
    op_attention(b, &(struct batch){.rows = rows, .n_seqs = 1, .seqs = &last}, &p.view, 0, q, args,
                 out);
    for (uint32_t i = 0; i < rows * HEADS; i++) {
        double want[HEAD_DIM_MAX];
        uint32_t pos = last.pos + i / HEADS, head = i % HEADS;
        size_t from = (size_t)(head / GQA) * dim;
        naive_attention(q + (size_t)i * dim, k + from, v + from, dim, 0,
                        pos < span ? 0 : pos + 1 - span, pos + 1, args,
                        args->sinks ? (double)args->sinks[head] : -INFINITY, want);
        for (uint32_t d = 0; span == 0 && d < dim; d++)
            assert_true(out[(size_t)i * dim + d] == 0);
        for (uint32_t d = 0; d < dim; d++) /* scores to 50 u, values below 1 */
            near("attended", (size_t)i * dim + d, out[(size_t)i * dim + d], want[d], 2e-5);
    }
    backend_arena_destroy(b, p.view.arena);
    backend_destroy(b);
    free(k);
    free(v);
    free(q);
    free(out);
}

static void attention_of_tier(enum cpu_tier tier) {
    /* no sink, one that dominates every score, ordinary ones */
    static const float SINKS[HEADS] = {-INFINITY, 80, 1, -3, 12, 0};
    static const struct attention_args ARGS[] = {{HEADS, 0.5f, 0, NULL},
                                                 {HEADS, 0.5f, 5, NULL},
                                                 {HEADS, 0.5f, 0, SINKS},
                                                 {HEADS, 0.5f, 9, SINKS}};
    for (size_t i = 0; i < sizeof ARGS / sizeof *ARGS; i++) {
        check_attention(tier, &ARGS[i], DIM, UINT32_MAX, QUERIES); /* whole mode */
        check_attention(tier, &ARGS[i], DIM, UINT32_MAX, 1);       /* shared mode, 2 splits */
        check_attention(tier, &ARGS[i], DIM, 100, QUERIES);        /* tiles that no row sees */
    }
    check_attention(tier, &(struct attention_args){HEADS, 0.2f, 9, SINKS}, HEAD_DIM_MAX, 550, 5);
    static const float FINITE[HEADS] = {0, 80, -80, -3, 12, 1};
    check_attention(tier, &(struct attention_args){HEADS, 0.5f, 0, FINITE}, DIM, 0, QUERIES);
}

static void test_attention(void **state) {
    (void)state;
    for_tiers(attention_of_tier);
}

/* More kept positions than a split has: a query sees those of the later splits, too. */
static void keep_of_tier(enum cpu_tier tier) {
    enum { LONG = 1300, KEEP = 600, SPAN = 100 };
    const struct attention_args args = {HEADS, 0.5f, 0, NULL};
    static const uint32_t ROWS_OF[] = {1, QUERIES}; /* shared mode, whole mode */
    struct backend *b =
        make_backend(tier, 2, 8, (struct backend_limits){.rows = LONG, .dim = 64, .head_dim = DIM});
    struct pages p;
    pages_init(&p, b, DIM, UINT32_MAX);
    const size_t kv = (size_t)LONG * KV_HEADS * DIM, n = (size_t)QUERIES * HEADS * DIM;
    float *k = random_floats(kv, 1), *v = random_floats(kv, 1), *q = random_floats(n, 1);
    float *out = malloc(n * sizeof *out);
    struct batch_seq all = {.rows = LONG};
    op_kv_store(b, &(struct batch){.rows = LONG, .n_seqs = 1, .seqs = &all}, &p.view, 0, k, v);
    p.view.keep = KEEP;
    p.view.span = SPAN;
    for (int c = 0; c < 2; c++) {
        const uint32_t rows = ROWS_OF[c];
        struct batch_seq last = {.rows = rows, .pos = LONG - rows};
        op_attention(b, &(struct batch){.rows = rows, .n_seqs = 1, .seqs = &last}, &p.view, 0, q,
                     &args, out);
        for (uint32_t i = 0; i < rows * HEADS; i++) {
            const uint32_t pos = last.pos + i / HEADS;
            const size_t from = (size_t)(i % HEADS / GQA) * DIM;
            double want[DIM];
            naive_attention(q + (size_t)i * DIM, k + from, v + from, DIM, KEEP, pos + 1 - SPAN,
                            pos + 1, &args, -INFINITY, want);
            for (uint32_t d = 0; d < DIM; d++)
                near("attended", (size_t)i * DIM + d, out[(size_t)i * DIM + d], want[d], 2e-5);
        }
    }
    backend_arena_destroy(b, p.view.arena);
    backend_destroy(b);
    free(k);
    free(v);
    free(q);
    free(out);
}

static void test_long_keep(void **state) {
    (void)state;
    for_tiers(keep_of_tier);
}

/* With many workers and many rows, the partial results of all splits do not fit in memory at once:
 * splits are computed in waves. The bits are those of whole mode. */
static void test_waves(void **state) {
    (void)state;
    enum { ROWS_MANY = 700, THREADS = 64 };
    const struct attention_args args = {HEADS, 0.5f, 0, NULL};
    struct backend *b =
        make_backend(CPU_TIER_COUNT, 2, 8,
                     (struct backend_limits){.rows = LONG_TOKENS, .dim = 64, .head_dim = DIM});
    struct pages p;
    pages_init(&p, b, DIM, UINT32_MAX);
    const size_t kv = (size_t)LONG_TOKENS * KV_HEADS * DIM, n = (size_t)ROWS_MANY * HEADS * DIM;
    float *k = random_floats(kv, 1), *v = random_floats(kv, 1), *q = random_floats(n, 1);
    float *out[2] = {malloc(n * sizeof(float)), malloc(n * sizeof(float))};
    struct batch_seq all = {.rows = LONG_TOKENS},
                     last = {.rows = ROWS_MANY, .pos = LONG_TOKENS - ROWS_MANY};
    const struct batch batch = {.rows = ROWS_MANY, .n_seqs = 1, .seqs = &last};
    op_kv_store(b, &(struct batch){.rows = LONG_TOKENS, .n_seqs = 1, .seqs = &all}, &p.view, 0, k,
                v);
    /* the results of two splits of each block have room, those of three, the fewest, have not */
    assert_true(3 * ROWS_MANY * HEADS <= PARTIAL_ROWS && 4 * ROWS_MANY * HEADS > PARTIAL_ROWS &&
                last.pos >= 2 * SPLIT_TOKENS);
    op_attention(b, &batch, &p.view, 0, q, &args, out[0]);
    const int threads = cpu_of(b)->threads;
    cpu_of(b)->threads = THREADS; /* attention divides the work as for so many */
    op_attention(b, &batch, &p.view, 0, q, &args, out[1]);
    cpu_of(b)->threads = threads;
    assert_memory_equal(out[0], out[1], n * sizeof(float));
    backend_arena_destroy(b, p.view.arena);
    backend_destroy(b);
    free(k);
    free(v);
    free(q);
    free(out[0]);
    free(out[1]);
}

/* No sinks and sinks without weight give the same bits. */
static void same_without_sinks(enum cpu_tier tier) {
    float sinks[HEADS];
    for (int i = 0; i < HEADS; i++)
        sinks[i] = -INFINITY;
    struct backend *b =
        make_backend(tier, 1, 8, (struct backend_limits){.rows = 8, .dim = 64, .head_dim = DIM});
    struct pages p;
    pages_init(&p, b, DIM, UINT32_MAX);
    size_t n = 8 * HEADS * DIM;
    float *k = random_floats(n, 1), *v = random_floats(n, 1), *q = random_floats(n, 1), *out[2];
    struct batch_seq seq = {.rows = 8};
    struct batch batch = {.rows = 8, .n_seqs = 1, .seqs = &seq};
    op_kv_store(b, &batch, &p.view, 0, k, v);
    for (int i = 0; i < 2; i++) {
        out[i] = malloc(n * sizeof *out[i]);
        op_attention(b, &batch, &p.view, 0, q,
                     &(struct attention_args){HEADS, 0.125f, 0, i ? sinks : NULL}, out[i]);
    }
    assert_memory_equal(out[0], out[1], n * sizeof *out[0]);
    backend_arena_destroy(b, p.view.arena);
    backend_destroy(b);
    free(k);
    free(v);
    free(q);
    free(out[0]);
    free(out[1]);
}

static void test_no_sinks(void **state) {
    (void)state;
    for_tiers(same_without_sinks);
}

/* ---- experts --------------------------------------------------------------------------------- */

enum { EXPERTS = 7, TOP_K = 3, MODEL_DIM = 96, HIDDEN = 160, ROWS = 37, WIDE = 2 * HIDDEN };

/* One layer with all that it points to. */
struct mixture {
    struct expert_layer layer;
    struct expert experts[EXPERTS];
    struct weight weights[EXPERTS][3];
    float *values[EXPERTS][3]; /* decoded */
    float scale[EXPERTS];
    bool in_turn;
};

/* [n][k] of one of three types, made of random values. */
static void make_matrix(struct weight *w, enum weight_type type, uint32_t n, uint32_t k,
                        float **values) {
    const struct weight_traits *t = weight_traits_of(type);
    size_t bytes = weight_row_bytes(t, k);
    uint8_t *data = malloc(n * bytes);
    *w = (struct weight){.data = data, .type = type, .n = n, .k = k};
    for (size_t i = 0; i < n * bytes; i++)
        data[i] = (uint8_t)random_below(256);
    for (size_t i = 0; i < n * bytes / t->block_bytes; i++) {
        uint8_t *block = data + i * t->block_bytes;
        if (type == WEIGHT_F32)
            scalar_store(SCALAR_F32, block, 0, random_float(0.3f));
        else
            for (int s = 0; s < (t->has_min ? 2 : 1); s++)
                scalar_store(SCALAR_F16, block, (size_t)s, random_float(0.02f));
    }
    *values = malloc((size_t)n * k * sizeof **values);
    for (uint32_t row = 0; row < n; row++)
        t->decode(w, row, *values + (size_t)row * k);
}

static struct mixture *make_mixture(enum weight_type type, enum gate_kind gate, bool in_turn,
                                    bool normalize) {
    struct mixture *m = calloc(1, sizeof *m);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        struct weight *w = m->weights[e];
        make_matrix(&w[0], type, in_turn ? WIDE : HIDDEN, MODEL_DIM, &m->values[e][0]);
        make_matrix(&w[1], type, HIDDEN, MODEL_DIM, &m->values[e][1]);
        make_matrix(&w[2], type, MODEL_DIM, HIDDEN, &m->values[e][2]);
        m->in_turn = in_turn;
        m->scale[e] = 1 + random_float(0.5f);
    }
    m->layer = (struct expert_layer){
        .n = EXPERTS, .top_k = TOP_K, .experts = m->experts, .gate = gate, .normalize = normalize};
    if (in_turn) {
        m->layer.gate_bias = random_floats(EXPERTS * WIDE, 1);
        m->layer.down_bias = random_floats(EXPERTS * MODEL_DIM, 1);
        m->layer.scale = m->scale;
    }
    return m;
}

/* Gives its matrices to the backend. */
static void put_mixture(struct mixture *m, struct backend *b) {
    for (uint32_t e = 0; e < EXPERTS; e++) {
        const struct backend_weight *w[3];
        for (int i = 0; i < 3; i++)
            need(backend_weight_put(b, &m->weights[e][i], &w[i], &err));
        m->experts[e] = (struct expert){w[0], m->in_turn ? NULL : w[1], w[2]};
    }
}

static void free_mixture(struct mixture *m) {
    for (uint32_t e = 0; e < EXPERTS; e++)
        for (int i = 0; i < 3; i++) {
            free((void *)m->weights[e][i].data);
            free(m->values[e][i]);
        }
    free((void *)m->layer.gate_bias);
    free((void *)m->layer.down_bias);
    free(m);
}

static double dot(const float *w, const double *x, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += w[i] * x[i];
    return sum;
}

static double gate_of(enum gate_kind kind, double g, double u) {
    if (kind == GATE_SILU)
        return g * sigmoid(g) * u;
    g = fmin(g, 7);
    return g * sigmoid(1.702 * g) * (fmin(fmax(u, -7), 7) + 1);
}

static void naive_expert(const struct mixture *m, uint32_t e, const double *x, double *out) {
    const struct expert_layer *l = &m->layer;
    double hidden[HIDDEN];
    bool in_turn = !m->experts[e].up;
    for (uint32_t i = 0; i < HIDDEN; i++) {
        const float *gate = m->values[e][0], *up = in_turn ? gate : m->values[e][1];
        uint32_t g = in_turn ? 2 * i : i, u = in_turn ? 2 * i + 1 : i;
        double a = dot(gate + (size_t)g * MODEL_DIM, x, MODEL_DIM);
        double b = dot(up + (size_t)u * MODEL_DIM, x, MODEL_DIM);
        if (l->gate_bias) {
            a += l->gate_bias[e * WIDE + g];
            b += l->gate_bias[e * WIDE + u];
        }
        hidden[i] = gate_of(l->gate, a, b);
    }
    for (uint32_t i = 0; i < MODEL_DIM; i++)
        out[i] = dot(m->values[e][2] + (size_t)i * HIDDEN, hidden, HIDDEN) +
                 (l->down_bias ? (double)l->down_bias[e * MODEL_DIM + i] : 0);
}

static void naive_mixture(const struct mixture *m, const float *x, const float *logits, double *y) {
    bool taken[EXPERTS] = {false};
    uint32_t chosen[TOP_K];
    double all = 0, some = 0, in[MODEL_DIM], out[MODEL_DIM];
    for (uint32_t rank = 0; rank < TOP_K; rank++) {
        uint32_t best = EXPERTS;
        for (uint32_t e = 0; e < EXPERTS; e++)
            if (!taken[e] && (best == EXPERTS || logits[e] > logits[best]))
                best = e;
        taken[best] = true;
        chosen[rank] = best;
        some += exp((double)logits[best]);
    }
    for (uint32_t e = 0; e < EXPERTS; e++)
        all += exp((double)logits[e]);
    for (uint32_t i = 0; i < MODEL_DIM; i++) {
        in[i] = x[i];
        y[i] = 0;
    }
    for (uint32_t rank = 0; rank < TOP_K; rank++) {
        uint32_t e = chosen[rank];
        double w = exp((double)logits[e]) / (m->layer.normalize ? some : all);
        naive_expert(m, e, in, out);
        for (uint32_t i = 0; i < MODEL_DIM; i++)
            y[i] += w * (m->layer.scale ? (double)m->layer.scale[e] : 1) * out[i];
    }
}

static const struct backend_limits EXPERT_LIMITS = {.rows = ROWS,
                                                    .dim = MODEL_DIM,
                                                    .head_dim = DIM,
                                                    .experts = EXPERTS,
                                                    .top_k = TOP_K,
                                                    .expert_dim = HIDDEN};

/* With ties: every other row has small integers. */
static float *random_logits(void) {
    float *logits = random_floats((size_t)ROWS * EXPERTS, 4);
    for (size_t i = 0; i < (size_t)ROWS * EXPERTS; i++)
        if (i / EXPERTS % 2)
            logits[i] = (float)random_below(3);
    return logits;
}

/* `bound`: the error that rounded activations may cause, relative to the largest output. With 8
 * bits each is off by up to 1/254 of its block's largest, twice (before gate and up, and before
 * down), which adds up to percents. With 16 bits it is next to nothing. */
static void check_mixture(enum cpu_tier tier, struct mixture *m, int act_bits, double bound) {
    size_t n = (size_t)ROWS * MODEL_DIM;
    float *x = random_floats(n, 1), *logits = random_logits(), *y = malloc(n * sizeof *y);
    float *other = malloc(n * sizeof *y), largest = 0;
    struct backend *one = make_backend(tier, 1, act_bits, EXPERT_LIMITS);
    struct backend *two = make_backend(tier, 2, act_bits, EXPERT_LIMITS);
    put_mixture(m, one);
    op_experts(one, x, ROWS, logits, &m->layer, y);
    op_experts(two, x, ROWS, logits, &m->layer, other);
    assert_memory_equal(y, other, n * sizeof *y);
    for (uint32_t r = 0; r < ROWS; r += 1 + random_below(3)) {
        size_t at = (size_t)r * MODEL_DIM, from = random_below(r + 1);
        op_experts(two, x + at, 1, logits + r * EXPERTS, &m->layer, other);
        assert_memory_equal(y + at, other, MODEL_DIM * sizeof *y);
        op_experts(one, x + from * MODEL_DIM, (uint32_t)(r + 1 - from), logits + from * EXPERTS,
                   &m->layer, other);
        assert_memory_equal(y + at, other + (r - from) * MODEL_DIM, MODEL_DIM * sizeof *y);
    }
    for (size_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(y[i]));
    for (uint32_t r = 0; r < ROWS; r++) {
        double want[MODEL_DIM];
        naive_mixture(m, x + (size_t)r * MODEL_DIM, logits + (size_t)r * EXPERTS, want);
        for (uint32_t i = 0; i < MODEL_DIM; i++)
            near("expert output", (size_t)r * MODEL_DIM + i, y[(size_t)r * MODEL_DIM + i], want[i],
                 bound * largest);
    }
    backend_destroy(one);
    backend_destroy(two);
    free(x);
    free(logits);
    free(y);
    free(other);
}

static void experts_of_tier(enum cpu_tier tier) {
    static const enum weight_type TYPES[] = {WEIGHT_F32, WEIGHT_Q8_0, WEIGHT_Q4_1};
    for (int i = 0; i < 3; i++)
        for (int in_turn = 0; in_turn < 2; in_turn++) {
            struct mixture *m = make_mixture(TYPES[i], in_turn ? GATE_SWIGLU_CLAMPED : GATE_SILU,
                                             in_turn, i % 2 == in_turn);
            check_mixture(tier, m, 8, i == 0 ? 2e-6 : 0.06);
            check_mixture(tier, m, 16, 2e-6);
            free_mixture(m);
        }
}

static void test_experts(void **state) {
    (void)state;
    for_tiers(experts_of_tier);
}

/* NaN and infinite logits spoil their own row and nothing else. */
static void bad_logits_of_tier(enum cpu_tier tier) {
    struct mixture *m = make_mixture(WEIGHT_Q8_0, GATE_SILU, false, true);
    size_t n = (size_t)ROWS * MODEL_DIM;
    float *x = random_floats(n, 1), *logits = random_logits(), *y = malloc(n * sizeof *y);
    float *good = malloc(n * sizeof *y);
    struct backend *b = make_backend(tier, 2, 8, EXPERT_LIMITS);
    put_mixture(m, b);
    op_experts(b, x, ROWS, logits, &m->layer, good);
    for (uint32_t e = 0; e < EXPERTS; e++)
        logits[2 * EXPERTS + e] = NAN;
    logits[5 * EXPERTS + 4] = NAN;
    logits[6 * EXPERTS + 1] = INFINITY;
    for (uint32_t e = 0; e < EXPERTS; e++)
        logits[8 * EXPERTS + e] = -INFINITY;
    op_experts(b, x, ROWS, logits, &m->layer, y);
    for (uint32_t r = 0; r < ROWS; r++)
        if (r == 2 || r == 5 || r == 6 || r == 8)
            assert_true(isnan(y[(size_t)r * MODEL_DIM]));
        else
            assert_memory_equal(y + (size_t)r * MODEL_DIM, good + (size_t)r * MODEL_DIM,
                                MODEL_DIM * sizeof *y);
    backend_destroy(b);
    free_mixture(m);
    free(x);
    free(logits);
    free(y);
    free(good);
}

static void test_bad_logits(void **state) {
    (void)state;
    for_tiers(bad_logits_of_tier);
}

/* ---- recurrent layers ------------------------------------------------------------------------ */

enum { WIDTH = 4, KEY_HEADS = 2, VALUE_HEADS = 6, KEY_DIM = 40, VALUE_DIM = 24, SEQS = 3 };
enum { KEYS = KEY_HEADS * KEY_DIM, VALUES = VALUE_HEADS * VALUE_DIM };
enum { CHANNELS = 2 * KEYS + VALUES, STEPS = 33 };
enum { DELTA_AT = (WIDTH - 1) * CHANNELS * 4 / 64 * 64 + 64, RECORD_UNITS = 8 };

/* One layer's input for STEPS tokens of SEQS sequences: [seq][step]. */
struct recurrent {
    struct delta_layer layer;
    float *w, *x, *beta, *a;
};

struct outputs {
    float *conv, *y; /* [seq][step][CHANNELS], [VALUES] */
    struct backend_arena *records;
    uint8_t *arena; /* what the records hold at the end */
};

static void put_row(float *to, const float *from, size_t n) {
    memcpy(to, from, n * sizeof *to);
}

/* Rows [first[s], first[s] + rows[s]) of every sequence s, in one step. */
static void recurrent_step(struct backend *b, const struct recurrent *in, struct outputs *out,
                           const uint32_t *first, const uint32_t *rows) {
    enum { MOST = SEQS * STEPS };
    static float x[MOST * CHANNELS], conv[MOST * CHANNELS], beta[MOST * VALUE_HEADS],
        a[MOST * VALUE_HEADS], y[MOST * VALUES];
    struct batch_seq seqs[SEQS];
    struct state_view views[SEQS];
    struct batch batch = {.seqs = seqs, .states = views};
    for (uint32_t s = 0; s < SEQS; s++) {
        if (!rows[s])
            continue;
        views[batch.n_seqs] = (struct state_view){out->records, s * RECORD_UNITS};
        seqs[batch.n_seqs++] = (struct batch_seq){batch.rows, rows[s], first[s]};
        for (uint32_t r = 0; r < rows[s]; r++, batch.rows++) {
            size_t at = s * STEPS + first[s] + r;
            put_row(x + batch.rows * CHANNELS, in->x + at * CHANNELS, CHANNELS);
            put_row(beta + batch.rows * VALUE_HEADS, in->beta + at * VALUE_HEADS, VALUE_HEADS);
            put_row(a + batch.rows * VALUE_HEADS, in->a + at * VALUE_HEADS, VALUE_HEADS);
        }
    }
    memcpy(conv, x, batch.rows * CHANNELS * sizeof *x);
    op_short_conv(b, &batch, 0, conv, in->w, WIDTH, CHANNELS, true, conv); /* in place */
    op_delta_rule(b, &batch, DELTA_AT, conv, beta, a, &in->layer, y);
    for (uint32_t i = 0; i < batch.n_seqs; i++) {
        size_t at = views[i].addr / RECORD_UNITS * STEPS + seqs[i].pos;
        put_row(out->conv + at * CHANNELS, conv + seqs[i].row * CHANNELS,
                (size_t)seqs[i].rows * CHANNELS);
        put_row(out->y + at * VALUES, y + seqs[i].row * VALUES, (size_t)seqs[i].rows * VALUES);
    }
}

enum plan { ALL_AT_ONCE, ONE_BY_ONE, SEQUENCE_AFTER_SEQUENCE, RANDOM_PIECES, PLANS };

static struct outputs run_plan(enum cpu_tier tier, const struct recurrent *in, enum plan plan) {
    struct backend *b =
        make_backend(tier, plan == ALL_AT_ONCE ? 1 : 2, 8,
                     (struct backend_limits){.rows = SEQS * STEPS, .dim = 64, .head_dim = DIM});
    struct outputs out = {calloc(SEQS * STEPS * CHANNELS, 4), calloc(SEQS * STEPS * VALUES, 4),
                          backend_arena_create(b, SEQS * RECORD_UNITS * PAGE_ADDR_UNIT),
                          malloc(SEQS * RECORD_UNITS * PAGE_ADDR_UNIT)};
    uint32_t done[SEQS] = {0}, left = SEQS * STEPS;
    while (left) {
        uint32_t rows[SEQS] = {0};
        bool one = false;
        for (uint32_t s = 0; s < SEQS; s++) {
            uint32_t most = STEPS - done[s];
            rows[s] = plan == ONE_BY_ONE      ? most > 0
                      : plan == RANDOM_PIECES ? random_below(most + 1)
                      : plan == ALL_AT_ONCE   ? most
                      : one                   ? 0
                                              : most;
            one |= rows[s] > 0;
        }
        if (one)
            recurrent_step(b, in, &out, done, rows);
        for (uint32_t s = 0; s < SEQS; s++) {
            done[s] += rows[s];
            left -= rows[s];
        }
    }
    need(backend_arena_read(b, out.records, 0, out.arena, SEQS * RECORD_UNITS * PAGE_ADDR_UNIT,
                            &err));
    backend_arena_destroy(b, out.records);
    backend_destroy(b);
    return out;
}

/* Checks sequence s of both layers against recurrences in double. */
static void check_recurrences(const struct recurrent *in, const struct outputs *out, uint32_t s) {
    static double state[VALUE_HEADS][KEY_DIM][VALUE_DIM], conv[CHANNELS];
    memset(state, 0, sizeof state);
    for (uint32_t t = 0; t < STEPS; t++) {
        size_t row = s * STEPS + t;
        for (uint32_t c = 0; c < CHANNELS; c++) {
            double sum = 0;
            for (uint32_t j = 0; j < WIDTH; j++)
                if (t + j >= WIDTH - 1)
                    sum += (double)in->w[j * CHANNELS + c] *
                           in->x[(row + j - (WIDTH - 1)) * CHANNELS + c];
            conv[c] = sum * sigmoid(sum);
            near("conv", row * CHANNELS + c, out->conv[row * CHANNELS + c], conv[c], 1e-6);
        }
        for (uint32_t h = 0; h < VALUE_HEADS; h++) {
            uint32_t group = in->layer.keys_cycle ? h % KEY_HEADS : h / (VALUE_HEADS / KEY_HEADS);
            const double *q = conv + group * KEY_DIM, *k = q + KEYS, *v = conv + 2 * KEYS;
            double qq = 1e-6, kk = 1e-6, pre = in->a[row * VALUE_HEADS + h] + in->layer.bias[h];
            double soft = fmax(pre, 0) + log1p(exp(-fabs(pre)));
            double decay = exp(-in->layer.rate[h] * soft);
            double beta = sigmoid(in->beta[row * VALUE_HEADS + h]);
            for (uint32_t i = 0; i < KEY_DIM; i++) {
                qq += q[i] * q[i];
                kk += k[i] * k[i];
            }
            for (uint32_t c = 0; c < VALUE_DIM; c++) {
                double held = 0, y = 0;
                for (uint32_t i = 0; i < KEY_DIM; i++) {
                    state[h][i][c] *= decay;
                    held += state[h][i][c] * k[i] / sqrt(kk);
                }
                for (uint32_t i = 0; i < KEY_DIM; i++) {
                    state[h][i][c] += k[i] / sqrt(kk) * beta * (v[h * VALUE_DIM + c] - held);
                    y += state[h][i][c] * q[i] / sqrt(qq) / sqrt(KEY_DIM);
                }
                size_t at = row * VALUES + h * VALUE_DIM + c;
                near("delta", at, out->y[at], y, 2e-6);
            }
        }
    }
}

static void recurrent_in_order(enum cpu_tier tier, bool keys_cycle) {
    size_t n = SEQS * STEPS;
    struct recurrent in = {.w = random_floats(WIDTH * CHANNELS, 1),
                           .x = random_floats(n * CHANNELS, 2),
                           .beta = random_floats(n * VALUE_HEADS, 5),
                           .a = random_floats(n * VALUE_HEADS, 5)};
    float *rate = random_floats(VALUE_HEADS, 1), *bias = random_floats(VALUE_HEADS, 2);
    for (int i = 0; i < VALUE_HEADS; i++)
        rate[i] = fabsf(rate[i]);
    for (size_t i = 0; i < n * VALUE_HEADS; i += 5) /* gates saturated at both ends */
        in.a[i] = in.beta[i] = i % 2 ? 90 : -90;
    in.layer =
        (struct delta_layer){KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, rate, bias, keys_cycle};
    struct outputs want = run_plan(tier, &in, ALL_AT_ONCE);
    for (uint32_t s = 0; s < SEQS; s++)
        check_recurrences(&in, &want, s);
    for (int plan = ONE_BY_ONE; plan < PLANS; plan++) {
        struct outputs out = run_plan(tier, &in, (enum plan)plan);
        assert_memory_equal(out.conv, want.conv, n * CHANNELS * 4);
        assert_memory_equal(out.y, want.y, n * VALUES * 4);
        assert_memory_equal(out.arena, want.arena, SEQS * RECORD_UNITS * PAGE_ADDR_UNIT);
        free(out.conv);
        free(out.y);
        free(out.arena);
    }
    free(want.conv);
    free(want.y);
    free(want.arena);
    free(in.w);
    free(in.x);
    free(in.beta);
    free(in.a);
    free(rate);
    free(bias);
}

static void recurrent_of_tier(enum cpu_tier tier) {
    recurrent_in_order(tier, false);
    recurrent_in_order(tier, true);
}

static void test_recurrent(void **state) {
    (void)state;
    assert_true(DELTA_AT + VALUE_HEADS * KEY_DIM * VALUE_DIM * 4 <= RECORD_UNITS * PAGE_ADDR_UNIT);
    for_tiers(recurrent_of_tier);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void small_ops_of_tier(enum cpu_tier tier) {
    enum { N = 2500, HEIGHT = 25, LENGTH = N / HEIGHT };
    struct backend *b =
        make_backend(tier, 2, 8, (struct backend_limits){.rows = 64, .dim = 64, .head_dim = DIM});
    float *x = random_floats(N, 3), *y = random_floats(N, 3), *z = malloc(N * sizeof *z);
    op_gate_mul(b, GATE_SIGMOID, x, y, N, z);
    for (size_t i = 0; i < N; i++)
        near("gate", i, z[i], sigmoid(x[i]) * y[i], 2e-6);
    memcpy(z, x, N * sizeof *z);
    op_add(b, z, y, -0.5f, N);
    for (size_t i = 0; i < N; i++)
        near("add", i, z[i], x[i] - 0.5 * (double)y[i], 1e-6);
    op_scale(b, z, 4, N);
    op_softcap(b, z, 2, N);
    for (size_t i = 0; i < N; i++)
        near("cap", i, z[i], 2 * tanh(2 * (x[i] - 0.5 * (double)y[i])), 4e-6);
    memcpy(z, x, N * sizeof *z);
    op_gate_rows(b, z, y, HEIGHT, LENGTH);
    for (size_t i = 0; i < N; i++)
        near("row", i, z[i], x[i] * sigmoid(y[i / LENGTH]), 1e-6);
    op_rms_norm(b, x, NULL, HEIGHT, LENGTH, 1e-6f, z);
    for (size_t r = 0; r < HEIGHT; r++) {
        double sum = 0;
        for (size_t i = 0; i < LENGTH; i++)
            sum += (double)x[r * LENGTH + i] * x[r * LENGTH + i];
        for (size_t i = 0; i < LENGTH; i++)
            near("norm", i, z[r * LENGTH + i], x[r * LENGTH + i] / sqrt(sum / LENGTH + 1e-6), 1e-6);
    }
    /* takes the second half of every block of 20 and puts these halves next to each other */
    memset(z, 0, N * sizeof *z);
    op_rearrange(b, HEIGHT, 5, 10, x + 10, (struct block_strides){LENGTH, 20}, z,
                 (struct block_strides){50, 10});
    for (size_t i = 0; i < HEIGHT * 50; i++)
        assert_true(z[i] == x[i / 50 * LENGTH + i % 50 / 10 * 20 + 10 + i % 10]);
    assert_true(z[HEIGHT * 50] == 0);
    backend_destroy(b);
    free(x);
    free(y);
    free(z);
}

static void test_small_ops(void **state) {
    (void)state;
    for_tiers(small_ops_of_tier);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention), cmocka_unit_test(test_long_keep),
        cmocka_unit_test(test_waves),     cmocka_unit_test(test_no_sinks),
        cmocka_unit_test(test_experts),   cmocka_unit_test(test_bad_logits),
        cmocka_unit_test(test_recurrent), cmocka_unit_test(test_small_ops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
