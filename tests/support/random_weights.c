/* SPDX-License-Identifier: Apache-2.0 */
/* random_weights.c: random weights of every type, also at the ends of what a type can hold.
 *
 * A block of a GGUF type is code bytes with scales among them. Codes may be any bits, sub-scales
 * too, but a random f16 would often be Inf or NaN: scales are random numbers, written to their
 * places. Codes that are all at the top or all at the bottom are what saturates 16-bit sums;
 * sub-scales are taken to their ends likewise. Types whose scales are arrays of their own come in
 * several ways: scalar types, groups. Benchmarks do without the extremes: rows of subnormals take
 * other times.
 */
#include "random_weights.h"
#include "random_data.h"

static bool extremes; /* wanted by the current call of make_weight */

static bool rarely(void) {
    return extremes && random_below(6) == 0;
}

enum ends { ENDS_ANY, ENDS_TOP, ENDS_BOTTOM, ENDS_KINDS };

static enum ends random_ends(void) {
    return !extremes || random_bits() & 1 ? ENDS_ANY : (enum ends)random_below(ENDS_KINDS);
}

static void fill_bytes(uint8_t *p, size_t n, enum ends ends, uint8_t top, uint8_t bottom) {
    for (size_t i = 0; i < n; i++)
        p[i] = ends == ENDS_TOP ? top : ends == ENDS_BOTTOM ? bottom : (uint8_t)random_bits();
}

static float random_scale(void) {
    static const float FACTORS[] = {0, 0x1p-20f, 1000}; /* the second: subnormal in f16 */
    return random_normal() * (rarely() ? FACTORS[random_below(3)] : 0.05f);
}

static uint8_t random_e8m0(void) {
    static const uint8_t EDGES[] = {0, 1, 2, 150};
    return rarely() ? EDGES[random_below(4)] : (uint8_t)(115 + random_below(12));
}

/* Bytes whose codes are the largest and the smallest of a type. */
static uint8_t top_byte(enum weight_type t) {
    bool e2m1 = t == WEIGHT_MXFP4 || t == WEIGHT_MXFP4_MLX;
    return t == WEIGHT_Q8_0 || t == WEIGHT_Q8_K ? 0x7f : e2m1 ? 0x77 : 0xff;
}

static uint8_t bottom_byte(enum weight_type t) {
    bool e2m1 = t == WEIGHT_MXFP4 || t == WEIGHT_MXFP4_MLX;
    return t == WEIGHT_Q8_0 || t == WEIGHT_Q8_K ? 0x80 : e2m1 ? 0xff : 0;
}

/* ---- blocks with their scales inside --------------------------------------------------------- */

/* Where a block's scales are (quant/weight.c and weight_k.c show the rest). */
static const struct scale_places {
    enum weight_type type;
    uint8_t f16_count, f16_at[2];
    uint8_t sub_at, sub_bytes;
} PLACES[] = {
    {WEIGHT_Q4_0, 1, {0}, 0, 0},       {WEIGHT_Q4_1, 2, {0, 2}, 0, 0},
    {WEIGHT_Q5_0, 1, {0}, 0, 0},       {WEIGHT_Q5_1, 2, {0, 2}, 0, 0},
    {WEIGHT_Q8_0, 1, {0}, 0, 0},       {WEIGHT_IQ4_NL, 1, {0}, 0, 0},
    {WEIGHT_Q2_K, 2, {80, 82}, 0, 16}, {WEIGHT_Q3_K, 1, {108}, 96, 12},
    {WEIGHT_Q4_K, 2, {0, 2}, 4, 12},   {WEIGHT_Q5_K, 2, {0, 2}, 4, 12},
    {WEIGHT_Q6_K, 1, {208}, 192, 16},  {WEIGHT_IQ4_XS, 1, {0}, 2, 6},
};

static void make_scales(enum weight_type type, uint8_t *block) {
    if (type == WEIGHT_MXFP4)
        block[0] = random_e8m0();
    if (type == WEIGHT_Q8_K)
        scalar_store(SCALAR_F32, block, 0, random_scale());
    for (size_t i = 0; i < sizeof PLACES / sizeof *PLACES; i++) {
        const struct scale_places *p = &PLACES[i];
        if (p->type != type)
            continue;
        fill_bytes(block + p->sub_at, p->sub_bytes, random_ends(), 0xff, 0);
        for (int s = 0; s < p->f16_count; s++)
            scalar_store(SCALAR_F16, block + p->f16_at[s], 0, random_scale());
    }
}

static void make_blocks(const struct weight_traits *t, uint8_t *p, uint32_t k, enum ends ends) {
    for (uint32_t i = 0; i < k; i += t->block_values, p += t->block_bytes) {
        fill_bytes(p, t->block_bytes, ends, top_byte(t->type), bottom_byte(t->type));
        make_scales(t->type, p);
    }
}

/* ---- plain arrays ---------------------------------------------------------------------------- */

static void make_floats(enum weight_type type, uint8_t *p, uint32_t k) {
    enum scalar_type t = type == WEIGHT_F32   ? SCALAR_F32
                         : type == WEIGHT_F16 ? SCALAR_F16
                                              : SCALAR_BF16;
    float x[WEIGHT_K_MAX];
    if (extremes)
        fill_any(x, k);
    else
        fill(x, k, FILL_NORMAL);
    for (uint32_t i = 0; i < k; i++)
        scalar_store(t, p, i, x[i]);
}

static void make_f8(uint8_t *p, uint32_t k, enum ends ends) {
    fill_bytes(p, k, ends, 0x7e, 0xfe); /* +-448 */
    for (uint32_t i = 0; i < k; i++)
        if ((p[i] & 0x7f) == 0x7f)
            p[i] ^= 1; /* NaN */
}

/* ---- all of them ----------------------------------------------------------------------------- */

static bool affine(enum weight_type t) {
    return t >= WEIGHT_AFFINE2 && t <= WEIGHT_AFFINE8;
}

uint32_t weight_ways(enum weight_type t) {
    return affine(t) ? 9 : t == WEIGHT_F8_E4M3 ? 10 : 1;
}

void weight_shape(struct weight *w, enum weight_type type, uint32_t way, uint32_t n, uint32_t k) {
    static const uint32_t GROUPS[] = {64, 32, 128};
    *w = (struct weight){.type = type, .n = n, .k = k};
    if (affine(type)) {
        w->group = GROUPS[way / 3];
        w->scalar = (enum scalar_type)(way % 3);
    }
    if (type == WEIGHT_F8_E4M3 && way > 0) {
        /* one for all, one per row, one per tile of any size */
        w->group_rows = way <= 3 ? n : way <= 6 ? 1 : 1 + random_below(n);
        w->group = way <= 6 ? k : 1 + random_below(k);
        w->scalar = (enum scalar_type)(way % 3);
    }
}

struct weight_sizes weight_sizes(const struct weight *w) {
    struct weight_sizes s = {w->n * weight_row_bytes(weight_traits_of(w->type), w->k), 0, 0};
    if (affine(w->type))
        s.scales = s.biases = (size_t)w->n * (w->k / w->group) * scalar_bytes(w->scalar);
    if (w->type == WEIGHT_MXFP4_MLX)
        s.scales = (size_t)w->n * (w->k / 32);
    if (w->type == WEIGHT_F8_E4M3 && w->group > 0)
        s.scales = (size_t)((w->n + w->group_rows - 1) / w->group_rows) *
                   ((w->k + w->group - 1) / w->group) * scalar_bytes(w->scalar);
    return s;
}

static void make_rows(const struct weight *w, uint8_t *data) {
    const struct weight_traits *t = weight_traits_of(w->type);
    size_t row_bytes = weight_row_bytes(t, w->k);
    for (uint32_t j = 0; j < w->n; j++) {
        uint8_t *row = data + j * row_bytes;
        enum ends ends = random_ends();
        if (t->unpack)
            make_blocks(t, row, w->k, ends);
        else if (w->type == WEIGHT_F8_E4M3)
            make_f8(row, w->k, ends);
        else if (t->run_values > 0)
            fill_bytes(row, row_bytes, ends, top_byte(w->type), bottom_byte(w->type));
        else
            make_floats(w->type, row, w->k);
    }
}

static void *make_scale_array(const struct weight *w, size_t bytes, void *(*take)(size_t)) {
    if (bytes == 0)
        return NULL;
    uint8_t *p = take(bytes);
    if (w->type == WEIGHT_MXFP4_MLX)
        for (size_t i = 0; i < bytes; i++)
            p[i] = random_e8m0();
    else
        for (size_t i = 0; i < bytes / scalar_bytes(w->scalar); i++)
            scalar_store(w->scalar, p, i, random_scale());
    return p;
}

void make_weight(struct weight *w, bool with_extremes, void *(*take)(size_t)) {
    extremes = with_extremes;
    struct weight_sizes s = weight_sizes(w);
    uint8_t *data = take(s.data);
    make_rows(w, data);
    w->data = data;
    w->scales = make_scale_array(w, s.scales, take);
    w->biases = make_scale_array(w, s.biases, take);
}
