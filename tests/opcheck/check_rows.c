/* SPDX-License-Identifier: Apache-2.0 */
/* check_rows.c: operations over rows against the reference's table. Each is called on both with the
 * same inputs; then some rows alone on the device, whose bits must be those that they had among the
 * others. Arguments in host memory are overwritten as soon as a call returns: they were consumed.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "opcheck.h"
#include "random_weights.h"
#include <math.h>

enum {
    ROWS_MAX = 40,
    DIM_MAX = 512,
    HEADS = 3,
    HEAD_DIM = 64,
    EXPERTS_MAX = 40,
    TOP_K_MAX = 5,
    EXPERT_DIM_MAX = 256 /* also the blocks of Q4_K and others */
};

static const uint32_t ROWS[] = {1, 2, 9, ROWS_MAX};
enum { ROW_COUNTS = sizeof ROWS / sizeof *ROWS };

static void begin_beside(int act_bits, int reference_bits) {
    const struct backend_limits limits = {.rows = ROWS_MAX,
                                          .seqs = 1,
                                          .dim = DIM_MAX,
                                          .head_dim = HEAD_DIM,
                                          .experts = EXPERTS_MAX,
                                          .top_k = TOP_K_MAX,
                                          .expert_dim = EXPERT_DIM_MAX,
                                          .pages = 4,
                                          .groups = 1,
                                          .group = {{HEADS, HEADS, HEAD_DIM, false}}};
    device_begin_beside(&limits, act_bits, reference_bits);
}
static void begin(int act_bits) {
    begin_beside(act_bits, act_bits);
}

/* ---- the same floats on both ----------------------------------------------------------------- */

struct both {
    float *device, *host;
    size_t n;
};

static struct both both_of(float *x, size_t n) {
    return (struct both){device_copy(x, n * sizeof *x), x, n};
}
/* Normal numbers times `size`. */
static struct both wide_both(size_t n, float size) {
    float *x = plain_floats(n);
    for (size_t i = 0; i < n; i++)
        x[i] *= size;
    return both_of(x, n);
}
static struct both random_both(size_t n) {
    return wide_both(n, 1);
}
static struct both output(size_t n) {
    return (struct both){device_buffer(n * sizeof(float)), plain(n * sizeof(float)), n};
}
/* A copy that both may write to. */
static struct both copy_of(const struct both *x) {
    float *host = plain(x->n * sizeof *host);
    memcpy(host, x->host, x->n * sizeof *host);
    return (struct both){device_copy(host, x->n * sizeof *host), host, x->n};
}

/* What the device made of y, held against the reference. */
static const float *compare(const struct both *y, size_t rows, double tolerance) {
    const float *got = from_device(y->device, y->n * sizeof *got);
    check_rows_near("y", got, y->host, rows, y->n / rows, tolerance);
    return got;
}

static void same_bits(const float *device_y, const float *want, size_t n, const char *what) {
    const float *got = from_device(device_y, n * sizeof *got);
    check_that(memcmp(got, want, n * sizeof *got) == 0, "%s: other bits", what);
}

static void spoil(void *p, size_t bytes) {
    memset(p, 0xff, bytes);
}

/* ---- one input, one output ------------------------------------------------------------------- */

/* Rows as heads have them in a long step: more than a grid's y holds. */
enum { NORM_ROWS = 70001 };

static void check_rms_norm(void) {
    static const uint32_t DIMS[] = {64, 96, DIM_MAX, 513, 1203};
    enum { N_DIMS = sizeof DIMS / sizeof *DIMS };
    if (!device_has(rms_norm) || !family_begin("rms_norm", "rows of 64 to 1,203"))
        return;
    for (uint32_t i = 0; i <= N_DIMS * ROW_COUNTS; i++) {
        const bool many = i == N_DIMS * ROW_COUNTS;
        const uint32_t dim = many ? 16 : DIMS[i % N_DIMS];
        const uint32_t rows = many ? NORM_ROWS : ROWS[i / N_DIMS];
        case_begin("%u rows of %u", rows, dim);
        begin(8);
        struct both x = random_both((size_t)rows * dim), gain = random_both(dim);
        struct both y = i % 2 ? output(x.n) : copy_of(&x);
        const bool ones = i % 3 == 0;
        op_rms_norm(reference, i % 2 ? x.host : y.host, ones ? NULL : gain.host, rows, dim, 1e-5f,
                    y.host);
        op_rms_norm(device, i % 2 ? x.device : y.device, ones ? NULL : gain.device, rows, dim,
                    1e-5f, y.device);
        const float *got = compare(&y, rows, choice->rows_near);
        const uint32_t row = random_below(rows);
        float *alone = device_buffer(dim * sizeof *alone);
        op_rms_norm(device, x.device + (size_t)row * dim, ones ? NULL : gain.device, 1, dim, 1e-5f,
                    alone);
        same_bits(alone, got + (size_t)row * dim, dim, "a row alone");
    }
    family_end();
}

static void check_rope(void) {
    enum { N = HEAD_DIM / 2, WIDTH = HEADS * HEAD_DIM };
    if (!device_has(rope_table) || !device_has(rope) || !family_begin("rope", "and its table"))
        return;
    for (uint32_t i = 0; i < 2 * ROW_COUNTS; i++) {
        const uint32_t rows = ROWS[i / 2], n = i % 3 ? N : N / 2;
        const bool adjacent = i % 2 != 0;
        case_begin("%u rows, %u pairs%s", rows, n, adjacent ? ", adjacent" : "");
        begin(8);
        uint32_t pos[2][ROWS_MAX];
        double inv_freq[2][N];
        for (uint32_t r = 0; r < rows; r++)
            pos[0][r] = pos[1][r] = random_below(200000);
        for (uint32_t j = 0; j < n; j++)
            inv_freq[0][j] = inv_freq[1][j] = m_pow(10000, -(double)j / n);
        struct both c = output((size_t)rows * n), s = output((size_t)rows * n);
        op_rope_table(reference, pos[0], rows, inv_freq[0], n, 1.5f, c.host, s.host);
        op_rope_table(device, pos[1], rows, inv_freq[1], n, 1.5f, c.device, s.device);
        spoil(pos[1], sizeof pos[1]);
        spoil(inv_freq[1], sizeof inv_freq[1]);
        compare(&c, rows, choice->rows_near);
        compare(&s, rows, choice->rows_near);
        struct both in = random_both((size_t)rows * WIDTH), x = copy_of(&in);
        op_rope(reference, x.host, rows, HEADS, HEAD_DIM, c.host, s.host, n, adjacent);
        op_rope(device, x.device, rows, HEADS, HEAD_DIM, c.device, s.device, n, adjacent);
        const float *got = compare(&x, rows, choice->rows_near);
        const uint32_t row = random_below(rows);
        float *alone = device_copy(in.host + (size_t)row * WIDTH, WIDTH * sizeof *alone);
        op_rope(device, alone, 1, HEADS, HEAD_DIM, c.device + (size_t)row * n,
                s.device + (size_t)row * n, n, adjacent);
        same_bits(alone, got + (size_t)row * WIDTH, WIDTH, "a row alone");
    }
    family_end();
}

/* ---- elementwise ----------------------------------------------------------------------------- */

static const size_t COUNTS[] = {1, 31, 1024, 1025, 5000, 70001};
enum { N_COUNTS = sizeof COUNTS / sizeof *COUNTS };

static void check_gates(void) {
    if (!device_has(gate_mul) || !family_begin("gate_mul", "%d kinds", GATE_KINDS))
        return;
    for (uint32_t i = 0; i < GATE_KINDS * N_COUNTS; i++) {
        const enum gate_kind kind = (enum gate_kind)(i % GATE_KINDS);
        const size_t n = COUNTS[i / GATE_KINDS];
        case_begin("kind %d, %zu values", (int)kind, n);
        begin(8);
        /* beyond what GATE_SWIGLU_CLAMPED limits, and where sigmoids are 0 or 1 */
        struct both gate = wide_both(n, i % 2 ? 40 : 5), up = wide_both(n, 5);
        struct both y = output(n), y2 = copy_of(&gate);
        op_gate_mul(reference, kind, gate.host, up.host, n, y.host);
        op_gate_mul(device, kind, gate.device, up.device, n, y.device);
        const float *got = compare(&y, 1, choice->rows_near);
        op_gate_mul(device, kind, y2.device, up.device, n, y2.device);
        same_bits(y2.device, got, n, "in place");
    }
    family_end();
}

static void check_elementwise(void) {
    if (!device_has(add) && !device_has(scale) && !device_has(softcap))
        return;
    if (!family_begin("elementwise", "add, scale, softcap"))
        return;
    for (uint32_t i = 0; i < N_COUNTS; i++) {
        const size_t n = COUNTS[i];
        case_begin("%zu values", n);
        begin(8);
        struct both x = random_both(n), y = random_both(n), z = copy_of(&x);
        if (device_has(add)) {
            op_add(reference, z.host, y.host, 0.7f, n);
            op_add(device, z.device, y.device, 0.7f, n);
            compare(&z, 1, choice->rows_near);
        }
        z = copy_of(&x);
        if (device_has(scale)) {
            op_scale(reference, z.host, 1.7f, n);
            op_scale(device, z.device, 1.7f, n);
            compare(&z, 1, choice->rows_near);
        }
        z = copy_of(&x);
        if (device_has(softcap)) {
            op_softcap(reference, z.host, 1.5f, n);
            op_softcap(device, z.device, 1.5f, n);
            compare(&z, 1, choice->rows_near);
        }
    }
    family_end();
}

/* ---- moving rows ----------------------------------------------------------------------------- */

static void check_moves(void) {
    enum { DIM = 96, BLOCKS = 3, N = 20 };
    if (!device_has(gate_rows) && !device_has(rearrange) && !device_has(gather_rows))
        return;
    if (!family_begin("rows", "gate_rows, rearrange, gather_rows"))
        return;
    for (uint32_t i = 0; i < ROW_COUNTS; i++) {
        const uint32_t rows = ROWS[i];
        case_begin("%u rows", rows);
        begin(8);
        struct both in = random_both((size_t)rows * DIM), gate = random_both(rows);
        struct both x = copy_of(&in), to = output((size_t)rows * DIM), y = output(in.n);
        if (device_has(gate_rows)) {
            op_gate_rows(reference, x.host, gate.host, rows, DIM);
            op_gate_rows(device, x.device, gate.device, rows, DIM);
            compare(&x, rows, choice->rows_near);
        }
        if (device_has(rearrange)) { /* the rest of y stays as it is */
            const struct block_strides from = {DIM, 30}, at = {DIM, 31};
            memset(to.host, 0xff, to.n * sizeof *to.host); /* what device_buffer holds */
            op_rearrange(reference, rows, BLOCKS, N, in.host, from, to.host, at);
            op_rearrange(device, rows, BLOCKS, N, in.device, from, to.device, at);
            compare(&to, rows, 0);
        }
        if (device_has(gather_rows)) {
            uint32_t index[2][ROWS_MAX];
            for (uint32_t r = 0; r < rows; r++)
                index[0][r] = index[1][r] = random_below(rows);
            op_gather_rows(reference, in.host, index[0], rows, DIM, y.host);
            op_gather_rows(device, in.device, index[1], rows, DIM, y.device);
            spoil(index[1], sizeof index[1]);
            compare(&y, rows, 0);
        }
    }
    family_end();
}

/* ---- matrices -------------------------------------------------------------------------------- */

struct matrix {
    const struct backend_weight *device, *reference; /* NULL: the device does not have the type */
};

/* Every type in one way; weight_traits_at lists them. */
static uint32_t type_count(void) {
    uint32_t n = 0;
    while (weight_traits_at(n))
        n++;
    return n;
}
static bool is_float(enum weight_type t) {
    return weight_traits_of(t)->run_values == 0;
}
/* A shape of this type with about k inputs: whole blocks. */
static struct weight shape_of(enum weight_type type, uint32_t n, uint32_t k) {
    const uint32_t unit = weight_traits_of(type)->block_values;
    struct weight w;
    weight_shape(&w, type, random_below(weight_ways(type)), n, (k + unit - 1) / unit * unit);
    if (w.group > 0 && w.k % w.group != 0 && type != WEIGHT_F8_E4M3)
        w.k = (w.k + w.group - 1) / w.group * w.group;
    return w;
}

static struct matrix matrix_make(const struct weight *shape, uint32_t n) {
    kvasir_error err = {0};
    struct matrix m = {0};
    struct weight *w = plain(sizeof *w); /* must last until weight_drop */
    *w = *shape;
    w->n = n;
    if (w->type == WEIGHT_F8_E4M3 && w->group_rows > n)
        w->group_rows = n;
    make_weight(w, false, plain);
    must(backend_weight_put(reference, w, &m.reference, &err), &err, "weight_put");
    const kvasir_status status = backend_weight_put(device, w, &m.device, &err);
    if (status != KVASIR_OK) {
        check_that(status == KVASIR_ERR_UNSUPPORTED, "weight_put: %s", err.text);
        m.device = NULL;
    }
    return m;
}

static void matrix_drop(struct matrix *m) {
    backend_weight_drop(device, m->device);
    backend_weight_drop(reference, m->reference);
}

/* Says that a type is absent, or begins its family. */
static bool type_begins(const char *operation, enum weight_type type, int act_bits) {
    const char *name = weight_traits_of(type)->name;
    case_begin("%s", name);
    const struct weight shape = shape_of(type, 16, 256);
    struct matrix m = matrix_make(&shape, 16);
    const bool has = m.device != NULL;
    matrix_drop(&m);
    if (!has && act_bits == 8)
        printf("absent: %s of %s\n", operation, name);
    return has && family_begin(operation, "%s, act %d", name, act_bits);
}

/* ---- embed, product -------------------------------------------------------------------------- */

/* -0 of MXFP4_MLX may be 0. */
static void same_values(const float *got, const float *want, size_t rows, size_t dim) {
    for (size_t i = 0; i < rows * dim; i++)
        check_that(got[i] == want[i] || (isnan(got[i]) && isnan(want[i])),
                   "y[%zu][%zu] is %.9g, should be %.9g", i / dim, i % dim, (double)got[i],
                   (double)want[i]);
}

static void check_embed(void) {
    enum { N = 50 };
    if (!device_has(embed) || !family_begin("embed", "%u types", type_count()))
        return;
    for (uint32_t i = 0; i < type_count(); i++) {
        const enum weight_type type = weight_traits_at(i)->type;
        int32_t tokens[2][ROWS_MAX];
        case_begin("%s", weight_traits_of(type)->name);
        begin(8);
        const struct weight shape = shape_of(type, N, i % 2 ? 128 : 320);
        struct matrix m = matrix_make(&shape, N);
        struct both y = output((size_t)ROWS_MAX * shape.k);
        for (uint32_t r = 0; r < ROWS_MAX; r++)
            tokens[0][r] = tokens[1][r] = (int32_t)random_below(N);
        if (!m.device)
            continue;
        op_embed(reference, m.reference, tokens[0], ROWS_MAX, y.host);
        op_embed(device, m.device, tokens[1], ROWS_MAX, y.device);
        spoil(tokens[1], sizeof tokens[1]);
        same_values(from_device(y.device, y.n * sizeof(float)), y.host, ROWS_MAX, shape.k);
        matrix_drop(&m);
    }
    family_end();
}

/* Up to MATMULS_MAX matrices of one input. */
static void product_case(enum weight_type type, uint32_t rows, uint32_t wide, int act_bits) {
    static const uint32_t OUTPUTS[MATMULS_MAX] = {70, 1, 33, 128};
    struct matrix m[MATMULS_MAX];
    const struct backend_weight *w[2][MATMULS_MAX];
    const float *bias[2][MATMULS_MAX];
    float *y[2][MATMULS_MAX];
    struct both out[MATMULS_MAX];
    const uint32_t count = 1 + random_below(MATMULS_MAX);
    const struct weight shape = shape_of(type, OUTPUTS[0], wide);
    const uint32_t k = shape.k;
    const double near = by_f16(&shape, act_bits) ? choice->halves_near : choice->weights_near;
    case_begin("%u rows of %u, %u matrices", rows, k, count);
    begin_beside(act_bits, by_f16(&shape, act_bits) ? 16 : act_bits);
    struct both x = random_both((size_t)rows * k);
    for (uint32_t i = 0; i < count; i++) {
        struct both b = random_both(OUTPUTS[i]);
        const bool biased = random_bits() & 1;
        m[i] = matrix_make(&shape, OUTPUTS[i]);
        out[i] = output((size_t)rows * OUTPUTS[i]);
        w[0][i] = m[i].reference, w[1][i] = m[i].device;
        bias[0][i] = biased ? b.host : NULL, bias[1][i] = biased ? b.device : NULL;
        y[0][i] = out[i].host, y[1][i] = out[i].device;
    }
    op_matmul(reference, x.host, rows, w[0], bias[0], y[0], count);
    op_matmul(device, x.device, rows, w[1], bias[1], y[1], count);
    spoil(y[1], sizeof y[1]);
    for (uint32_t i = 0; i < count; i++) {
        const float *got = compare(&out[i], rows, near);
        const uint32_t row = random_below(rows), n = OUTPUTS[i];
        float *alone = device_buffer(n * sizeof *alone);
        op_matmul(device, x.device + (size_t)row * k, 1, &w[1][i], &bias[1][i], &alone, 1);
        same_bits(alone, got + (size_t)row * n, n, "a row alone");
    }
    for (uint32_t i = 0; i < count; i++)
        matrix_drop(&m[i]);
}

static void check_product(void) {
    static const uint32_t KS[] = {64, 128, DIM_MAX};
    for (uint32_t i = 0; device_has(matmul) && i < type_count(); i++) {
        const enum weight_type type = weight_traits_at(i)->type;
        for (int act_bits = 8; act_bits <= (is_float(type) ? 8 : 16); act_bits += 8) {
            if (!type_begins("matmul", type, act_bits))
                continue;
            for (uint32_t j = 0; j < ROW_COUNTS; j++)
                product_case(type, ROWS[j], KS[(i + j) % 3], act_bits);
            family_end();
        }
    }
}

/* A matrix that is multiplied by f16, and both sides for `rows` rows of its inputs or outputs. */
static struct weight halves_shape(enum weight_type type, uint32_t n, uint32_t k) {
    struct weight shape;
    do
        shape = shape_of(type, n, k);
    while (!by_f16(&shape, 8));
    return shape;
}
static void begin_halves(const struct weight *shape, uint32_t rows) {
    const struct backend_limits limits = {.rows = rows,
                                          .seqs = 1,
                                          .dim = shape->n > shape->k ? shape->n : shape->k,
                                          .head_dim = HEAD_DIM,
                                          .pages = 1,
                                          .groups = 1,
                                          .group = {{1, 1, HEAD_DIM, false}}};
    device_begin_beside(&limits, 8, 16);
}

/* By f16: every kernel, which the rows and the outputs choose, and inputs of several runs. */
static void halves_case(enum weight_type type, uint32_t rows, uint32_t n, uint32_t k) {
    const float *const no_bias = NULL;
    const struct weight shape = halves_shape(type, n, k);
    case_begin("%u rows, %u x %u", rows, n, shape.k);
    begin_halves(&shape, rows);
    struct matrix m = matrix_make(&shape, n);
    struct both x = random_both((size_t)rows * shape.k), y = output((size_t)rows * n);
    op_matmul(reference, x.host, rows, &m.reference, &no_bias, &y.host, 1);
    op_matmul(device, x.device, rows, &m.device, &no_bias, &y.device, 1);
    const float *got = compare(&y, rows, choice->halves_near);
    float *alone = device_buffer(n * sizeof *alone);
    for (uint32_t row = 0; row < rows; row += 1 + rows / 4) {
        op_matmul(device, x.device + (size_t)row * shape.k, 1, &m.device, &no_bias, &alone, 1);
        same_bits(alone, got + (size_t)row * n, n, "a row alone");
    }
    matrix_drop(&m);
}

/* A norm, a product of it and the gate of its outputs: in a step, where all are joined, and one by
 * one. */
static void gated_case(enum weight_type type, uint32_t rows, uint32_t n, uint32_t k) {
    const float *const no_bias[2] = {NULL};
    const struct weight shape = halves_shape(type, n, k);
    const struct batch_seq seq = {.rows = rows};
    const struct batch batch = {.rows = rows, .n_seqs = 1, .seqs = &seq};
    case_begin("%u rows, two of %u x %u", rows, n, shape.k);
    begin_halves(&shape, rows);
    struct matrix m[2] = {matrix_make(&shape, n), matrix_make(&shape, n)};
    const struct backend_weight *const w[2] = {m[0].device, m[1].device};
    const struct both x = random_both((size_t)rows * shape.k);
    const size_t values = (size_t)rows * n, inputs = (size_t)rows * shape.k;
    const float *apart[2] = {NULL};
    for (int joined = 0; joined < 2; joined++) {
        float *h = device_buffer(inputs * sizeof *h), *y[2];
        y[0] = device_buffer(values * sizeof *h);
        y[1] = device_buffer(values * sizeof *h);
        if (joined)
            backend_step_begin(device, &batch, 0);
        op_rms_norm(device, x.device, NULL, rows, shape.k, 1e-5f, h);
        op_matmul(device, h, rows, w, no_bias, y, 2);
        op_gate_mul(device, GATE_SILU, y[0], y[1], values, y[0]);
        if (joined) {
            same_bits(y[0], apart[0], values, "gated, joined");
            same_bits(h, apart[1], inputs, "norm, joined");
        }
        apart[0] = from_device(y[0], values * sizeof *h);
        apart[1] = from_device(h, inputs * sizeof *h);
    }
    matrix_drop(&m[0]);
    matrix_drop(&m[1]);
}

static void check_gated(void) {
    static const uint32_t SHAPES[][3] = {{1, 256, 544},    {8, 200, 160},    {20, 256, 480},
                                         {20, 12800, 160}, {20, 12928, 160}, {70, 12800, 2080},
                                         {100, 12801, 96}, {1, 8500, 3616},  {1, 8500, 3616},
                                         {2, 8500, 3616},  {2, 200, 4640},   {1, 200, 4640}};
    if (choice->halves_near <= 0 || !family_begin("matmul", "gated"))
        return;
    /* types in turn: a shape that stands twice is made with both */
    for (uint32_t j = 0; j < sizeof SHAPES / sizeof *SHAPES; j++)
        gated_case(j % 2 ? WEIGHT_Q4_1 : WEIGHT_Q4_0, SHAPES[j][0], SHAPES[j][1], SHAPES[j][2]);
    family_end();
}

static void check_halves(void) {
    static const enum weight_type TYPES[] = {WEIGHT_Q4_0, WEIGHT_Q4_1, WEIGHT_AFFINE4};
    static const uint32_t SHAPES[][3] = {
        {1, 70, 1120},    {2, 33, 2080},     {3, 200, 544},    {8, 130, 1120},    {16, 130, 1120},
        {16, 17000, 96},  {40, 200, 2080},   {64, 70, 96},     {65, 70, 1120},    {40, 70, 4160},
        {40, 25700, 160}, {130, 11400, 576}, {20, 6400, 4640}, {17, 25700, 4640}, {65, 12800, 4640},
        {2, 8500, 3616},  {2, 130, 4640},    {8, 6400, 4640},  {16, 6400, 4640}};
    for (uint32_t i = 0; choice->halves_near > 0 && i < sizeof TYPES / sizeof *TYPES; i++) {
        if (!family_begin("matmul by f16", "%s", weight_traits_of(TYPES[i])->name))
            continue;
        for (uint32_t j = 0; j < sizeof SHAPES / sizeof *SHAPES; j++)
            halves_case(TYPES[i], SHAPES[j][0], SHAPES[j][1], SHAPES[j][2]);
        family_end();
    }
}

/* ---- experts --------------------------------------------------------------------------------- */

/* Outputs of experts' first matmuls are rounded as inputs of the next: if a sum falls to the other
 * side of a rounding to 8 bits, a term moves by 1 in 127. */
static double experts_near(int act_bits) {
    return choice->weights_near > 0 && act_bits == 8 ? choice->weights_near + 2e-2
                                                     : choice->weights_near;
}

struct expert_shape {
    uint32_t n, top_k, dim, expert_dim;
};

struct expert_case {
    struct expert_shape shape;
    struct matrix gate[EXPERTS_MAX], up[EXPERTS_MAX], down[EXPERTS_MAX];
    struct expert experts[2][EXPERTS_MAX]; /* of the reference, of the device */
    struct expert_layer layer[2];
};

static void experts_bias(struct expert_case *c, uint32_t wide, bool pairs) {
    const struct expert_shape *s = &c->shape;
    struct both gate_bias = random_both((size_t)s->n * wide), scale = random_both(s->n),
                up_bias = random_both((size_t)s->n * s->expert_dim),
                down_bias = random_both((size_t)s->n * s->dim);
    c->layer[0].gate_bias = gate_bias.host, c->layer[1].gate_bias = gate_bias.device;
    c->layer[0].down_bias = down_bias.host, c->layer[1].down_bias = down_bias.device;
    c->layer[0].scale = scale.host, c->layer[1].scale = scale.device;
    if (!pairs)
        c->layer[0].up_bias = up_bias.host, c->layer[1].up_bias = up_bias.device;
}

static void experts_make(struct expert_case *c, const struct weight *outer,
                         const struct weight *inner, bool pairs, bool biased) {
    const struct expert_shape *s = &c->shape;
    const uint32_t wide = pairs ? 2 * s->expert_dim : s->expert_dim;
    for (uint32_t e = 0; e < s->n; e++) {
        c->gate[e] = matrix_make(outer, wide);
        c->up[e] = matrix_make(outer, s->expert_dim);
        c->down[e] = matrix_make(inner, s->dim);
        c->experts[0][e] =
            (struct expert){c->gate[e].reference, c->up[e].reference, c->down[e].reference};
        c->experts[1][e] = (struct expert){c->gate[e].device, c->up[e].device, c->down[e].device};
        if (pairs)
            c->experts[0][e].up = c->experts[1][e].up = NULL;
    }
    c->layer[0] = (struct expert_layer){.n = s->n,
                                        .top_k = s->top_k,
                                        .experts = c->experts[0],
                                        .gate = pairs ? GATE_SWIGLU_CLAMPED : GATE_SILU,
                                        .normalize = !pairs};
    c->layer[1] = c->layer[0];
    c->layer[1].experts = c->experts[1];
    if (biased)
        experts_bias(c, wide, pairs);
}

/* Logits of few different values, so that many are equal; the last of several rows has a NaN. */
static struct both router_logits(uint32_t rows, uint32_t n) {
    float *x = plain_floats((size_t)rows * n);
    for (size_t i = 0; i < (size_t)rows * n; i++)
        x[i] = (float)(int)(x[i] * 4);
    if (rows > 1)
        x[(size_t)(rows - 1) * n] = NAN;
    return both_of(x, (size_t)rows * n);
}

/* dim and expert_dim of the shape are rounded up to the type's blocks and groups. */
static void experts_case(enum weight_type type, const struct expert_shape *shape, uint32_t rows,
                         int act_bits) {
    struct weight outer = shape_of(type, shape->expert_dim, shape->dim), inner = outer;
    struct expert_case c = {.shape = *shape};
    const uint32_t block = weight_traits_of(type)->block_values;
    const uint32_t unit = !is_float(type) && outer.group > block ? outer.group : block;
    inner.k = (shape->expert_dim + unit - 1) / unit * unit;
    c.shape.dim = outer.k;
    c.shape.expert_dim = inner.k;
    const uint32_t dim = outer.k;
    const bool pairs = random_bits() & 1, biased = random_bits() & 1;
    case_begin("%u rows%s%s", rows, pairs ? ", gate and up in turn" : "", biased ? ", bias" : "");
    begin(act_bits);
    experts_make(&c, &outer, &inner, pairs, biased);
    struct both x = random_both((size_t)rows * dim), logits = router_logits(rows, shape->n),
                y = output(x.n);
    op_experts(reference, x.host, rows, logits.host, &c.layer[0], y.host);
    op_experts(device, x.device, rows, logits.device, &c.layer[1], y.device);
    const float *got = compare(&y, rows, experts_near(act_bits));
    const uint32_t row = random_below(rows);
    float *alone = device_buffer(dim * sizeof *alone);
    op_experts(device, x.device + (size_t)row * dim, 1, logits.device + (size_t)row * shape->n,
               &c.layer[1], alone);
    same_bits(alone, got + (size_t)row * dim, dim, "a row alone");
    for (uint32_t e = 0; e < shape->n; e++) {
        matrix_drop(&c.gate[e]);
        matrix_drop(&c.up[e]);
        matrix_drop(&c.down[e]);
    }
}

static void check_experts(void) {
    static const struct expert_shape FEW = {6, 2, 128, 96}, MANY = {EXPERTS_MAX, TOP_K_MAX, 32, 32};
    for (uint32_t i = 0; device_has(experts) && i < type_count(); i++) {
        const enum weight_type type = weight_traits_at(i)->type;
        for (int act_bits = 8; act_bits <= (is_float(type) ? 8 : 16); act_bits += 8) {
            if (!type_begins("experts", type, act_bits))
                continue;
            for (uint32_t j = 0; j < ROW_COUNTS; j++)
                experts_case(type, &FEW, ROWS[j], act_bits);
            family_end();
        }
    }
    if (!device_has(experts) || !family_begin("experts", "%d of %d", TOP_K_MAX, EXPERTS_MAX))
        return;
    for (uint32_t j = 0; j < ROW_COUNTS; j++)
        experts_case(WEIGHT_F32, &MANY, ROWS[j], 8);
    family_end();
}

void check_rows(void) {
    begin(8);
    check_rms_norm();
    check_rope();
    check_gates();
    check_elementwise();
    check_moves();
    check_embed();
    check_product();
    check_halves();
    check_gated();
    check_experts();
}
