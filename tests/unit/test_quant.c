/* SPDX-License-Identifier: Apache-2.0 */
/* quant/: the definitions against independent ones.
 *
 *   affine   every bit of ../shared/fixtures/mlx/quantize (mlx 0.32.4); its table of NaN and Inf
 *   tiles    the order formula of quant.h, written a second time below, over whole tiles
 *   ranges   KV_TILE: scales, biases and codes from the formulas, NaN, Inf, constant ranges
 *   16 bits  f16 and bf16 against the rule of rounding itself, over all 65,536 numbers
 *
 * Weight types: test_weights.c.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "quant/quant.h"

#include <cmocka.h> /* after util.h, which defines a macro `fail` */

#define COUNT(a)     (sizeof(a) / sizeof *(a))
#define QUANTIZE_DIR SHARED_DIR "/fixtures/mlx/quantize"

enum { DIM_MAX = 512 }; /* the largest head size that is tested */

static const unsigned BITS[] = {8, 6, 5, 4, 3, 2}, GROUPS[] = {32, 64, 128};
static const char *const SCALARS[] = {"float16", "bfloat16", "float32"}; /* by enum scalar_type */

static uint32_t random_state = 1;
static uint32_t random_bits(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}
static float random_unit(void) {
    return (float)random_bits() / 0x1p23f - 1;
}

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
/* The same number, including the sign of zero; all NaNs count as equal. */
static bool same(float a, float b) {
    return bits_of(a) == bits_of(b) || (isnan(a) && isnan(b));
}

/* ---- 16-bit floats --------------------------------------------------------------------------- */

/* Value of a 16-bit pattern from its fields, in double. */
static double field_value(uint16_t h, int exponent_bits) {
    int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (h & 0x7fff) >> mantissa_bits, mantissa = h & ((1 << mantissa_bits) - 1);
    double v = exponent == 0
                   ? ldexp(mantissa, 1 - bias - mantissa_bits)
                   : ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    return h & 0x8000 ? -v : v;
}

static void check_rounding(int exponent_bits, uint16_t (*to)(float), float (*from)(uint16_t)) {
    uint16_t inf = (uint16_t)(((1 << exponent_bits) - 1) << (15 - exponent_bits));
    for (uint32_t i = 0; i < inf; i++) {
        uint16_t h = (uint16_t)i, even = (uint16_t)(i & 1 ? i + 1 : i);
        double v = field_value(h, exponent_bits),
               next = field_value((uint16_t)(i + 1), exponent_bits);
        /* after the largest number, `next` is what would follow: overflow is decided halfway to
         * it */
        float middle = (float)((v + next) / 2);
        assert_true(same(from(h), (float)v));
        assert_true(same(from((uint16_t)(h | 0x8000)), (float)-v));
        assert_int_equal(to((float)v), h);
        if (isinf(middle)) /* bf16: halfway between its largest and 2^128 is not a float32 */
            continue;
        assert_int_equal(to(middle), even);
        assert_int_equal(to(-middle), even | 0x8000);
        assert_int_equal(to(nextafterf(middle, 0)), h);
        assert_int_equal(to(nextafterf(middle, INFINITY)), h + 1);
    }
    assert_int_equal(to(INFINITY), inf);
    assert_int_equal(to(-INFINITY), inf | 0x8000);
    assert_int_equal(to(exponent_bits == 5 ? 65520.0f : 3.4028235e38f), inf);
    assert_true(from(inf) == INFINITY && from((uint16_t)(inf | 0x8000)) == -INFINITY);
    for (uint32_t i = inf + 1u; i < 0x8000; i++) {
        assert_true(isnan(from((uint16_t)i)));
        assert_true(isnan(from(to(from((uint16_t)i)))));
    }
    uint32_t low_payload = 0x7f800001; /* NaN whose upper mantissa bits are all 0 */
    float nan;
    memcpy(&nan, &low_payload, 4);
    assert_true(isnan(from(to(nan))));
}

static void test_half(void **state) {
    (void)state;
    check_rounding(5, f32_to_f16, f16_to_f32);
    check_rounding(8, f32_to_bf16, bf16_to_f32);
    assert_int_equal(f32_to_f16(0x1p-25f), 0); /* a tie with zero */
    assert_int_equal(f32_to_f16(1e-45f), 0);
    for (uint32_t i = 0x7c01; i < 0x8000; i++) { /* NaN become quiet, as vcvtph2ps has them */
        const uint32_t quiet = 0x7fc00000 | (i & 0x3ff) << 13;
        uint32_t bits[2];
        const float nan[2] = {f16_to_f32((uint16_t)i), f16_to_f32((uint16_t)(i | 0x8000))};
        memcpy(bits, nan, sizeof bits);
        assert_int_equal(bits[0], quiet);
        assert_int_equal(bits[1], quiet | 0x80000000);
    }
}

/* ---- formats --------------------------------------------------------------------------------- */

static void test_format_parse(void **state) {
    (void)state;
    struct kv_format k = {0}, v = {0};
    kvasir_error err;
    assert_int_equal(kv_format_parse_pair("8,4", &k, &v, &err), KVASIR_OK);
    assert_true(k.bits == 8 && v.bits == 4 && k.group == 0 && k.scalar == SCALAR_F16);
    assert_int_equal(kv_format_parse_pair("bf16", &k, &v, &err), KVASIR_OK);
    assert_true(kv_format_equal(k, v) && k.bits == 16 && k.scalar == SCALAR_BF16);
    assert_int_equal(kv_format_parse_pair("f32,2", &k, &v, &err), KVASIR_OK);
    assert_true(k.bits == 32 && k.scalar == SCALAR_F32 && v.bits == 2);
    assert_false(kv_format_equal(k, v));
    assert_int_equal(kv_format_parse_pair("r8,4", &k, &v, &err), KVASIR_OK);
    assert_true(k.kind == KV_ROTATED && k.bits == 8 && v.kind == KV_ROTATED && v.bits == 4);
    assert_int_equal(kv_format_parse_pair("t5,4", &k, &v, &err), KVASIR_OK);
    assert_true(k.kind == KV_TILE && k.bits == 5 && v.kind == KV_TILE && v.bits == 4);
    assert_int_equal(kv_format_parse_pair("t3", &k, &v, &err), KVASIR_OK);
    assert_true(k.kind == KV_TILE && k.bits == 3 && k.group == 0 && kv_format_equal(k, v));
    static const char *const BAD[] = {"",   "7",    "8,",   ",8",    "8,4,2", "8 4",  "16",
                                      "08", "f161", "8, 4", "F16",   "-8",    "8,7",  "t",
                                      "r",  "t7",   "t4,",  "t4,t4", "r16",   "tf16", "4,t4"};
    for (size_t i = 0; i < COUNT(BAD); i++) {
        struct kv_format k0 = k, v0 = v;
        assert_int_equal(kv_format_parse_pair(BAD[i], &k, &v, &err), KVASIR_ERR_ARGUMENT);
        assert_non_null(strstr(err.text, "f32, f16, bf16, 8, 6, 5, 4, 3, 2"));
        assert_true(kv_format_equal(k, k0) && kv_format_equal(v, v0));
    }
}

static void test_format_settle(void **state) {
    (void)state;
    kvasir_error err;
    static const struct {
        uint32_t head_dim, asked, settled;
    } GOOD[] = {{64, 0, 64}, {96, 0, 32},     {128, 0, 64},
                {32, 0, 32}, {128, 128, 128}, {256, 32, 32}};
    for (size_t i = 0; i < COUNT(GOOD); i++) {
        struct kv_format f = {4, SCALAR_F16, 0, KV_ROWS};
        assert_int_equal(kv_format_settle(&f, GOOD[i].head_dim, GOOD[i].asked, &err), KVASIR_OK);
        assert_int_equal(f.group, GOOD[i].settled);
    }
    struct kv_format f = {8, SCALAR_F16, 0, KV_ROWS};
    assert_int_equal(kv_format_settle(&f, 96, 64, &err), KVASIR_ERR_ARGUMENT);
    assert_string_equal(err.text, "group 64 does not fit head size 96: it can be one of 32");
    assert_int_equal(kv_format_settle(&f, 128, 16, &err), KVASIR_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "32, 64, 128"));
    assert_int_equal(kv_format_settle(&f, 80, 0, &err), KVASIR_ERR_UNSUPPORTED);
    assert_int_equal(f.group, 0);
    struct kv_format exact = {16, SCALAR_F16, 0, KV_ROWS};
    assert_int_equal(kv_format_settle(&exact, 80, 64, &err), KVASIR_OK);
    assert_int_equal(exact.group, 0);
    assert_int_equal(kv_format_settle(&exact, 82, 0, &err), KVASIR_ERR_UNSUPPORTED);
}

static void test_format_name(void **state) {
    (void)state;
    char buf[24];
    assert_string_equal(kv_format_name((struct kv_format){16, SCALAR_F16, 0, KV_ROWS}, buf), "f16");
    assert_string_equal(kv_format_name((struct kv_format){32, SCALAR_F32, 0, KV_ROWS}, buf), "f32");
    assert_string_equal(kv_format_name((struct kv_format){8, SCALAR_F16, 64, KV_ROWS}, buf),
                        "8 g64");
    assert_string_equal(kv_format_name((struct kv_format){4, SCALAR_BF16, 128, KV_ROWS}, buf),
                        "4 g128 bf16");
    assert_string_equal(kv_format_name((struct kv_format){4, SCALAR_F16, 0, KV_TILE}, buf), "t4");
    assert_string_equal(kv_format_name((struct kv_format){8, SCALAR_F16, 64, KV_ROTATED}, buf),
                        "r8 g64");
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* The order of quant.h, spelled out bit by bit: sets bit `n` of the code of (token, dim). */
static void model_put_bit(uint8_t *tile, enum tile_kind kind, unsigned bits, uint32_t head_dim,
                          uint32_t token, uint32_t dim, unsigned n, unsigned value) {
    unsigned low = bits == 6 || bits == 5 ? 4 : bits == 3 ? 2 : bits; /* width of plane 0 */
    unsigned w = n < low ? low : bits - low, bit_in_plane = n < low ? n : n - low;
    size_t plane = n < low ? 0 : (size_t)64 * head_dim * low / 8;
    uint32_t lanes = kind == TILE_K ? 64 : head_dim;
    uint32_t r = kind == TILE_K ? dim : token, lane = kind == TILE_K ? token : dim;
    uint32_t R = r / 4, P = 8 / w;
    size_t at = plane + (size_t)(R / P) * 4 * lanes + lane * 4 + r % 4;
    unsigned bit = w * (R % P) + bit_in_plane;
    tile[at] = (uint8_t)((tile[at] & ~(1u << bit)) | value << bit);
}

static void model_put_scalar(uint8_t *at, enum scalar_type t, float x) {
    uint16_t h = t == SCALAR_F16 ? f32_to_f16(x) : f32_to_bf16(x);
    if (t == SCALAR_F32)
        memcpy(at, &x, 4);
    else
        memcpy(at, &h, 2);
}

/* One format: puts random rows in random order into a tile of random bytes and into the model. */
static void check_affine_tile(enum tile_kind kind, struct kv_format f, uint32_t dim) {
    struct tile_layout l;
    tile_layout_init(&l, kind, f, dim);
    uint32_t sb = f.scalar == SCALAR_F32 ? 4 : 2, groups = dim / f.group;
    uint32_t codes_bytes = 64 * dim * f.bits / 8;
    assert_int_equal(l.bytes, codes_bytes + 2 * 64 * groups * sb);
    assert_int_equal(tile_bytes(kind, f, dim), l.bytes);
    assert_true(l.scale_offset % 32 == 0 && l.bias_offset % 32 == 0 && l.plane_offset[1] % 32 == 0);
    uint8_t *tile = malloc(l.bytes), *model = malloc(l.bytes);
    uint8_t codes[DIM_MAX], got[DIM_MAX];
    float s[DIM_MAX / 32], b[DIM_MAX / 32], got_s[DIM_MAX / 32], got_b[DIM_MAX / 32];
    for (uint32_t i = 0; i < l.bytes; i++)
        tile[i] = model[i] = (uint8_t)random_bits();
    for (int step = 0; step < 100; step++) {
        uint32_t token = step < 64 ? (uint32_t)step * 37 % 64 : random_bits() % 64;
        for (uint32_t i = 0; i < dim; i++) {
            codes[i] = (uint8_t)(random_bits() & ((1u << f.bits) - 1));
            for (unsigned n = 0; n < f.bits; n++)
                model_put_bit(model, kind, f.bits, dim, token, i, n, codes[i] >> n & 1);
        }
        for (uint32_t g = 0; g < groups; g++) {
            s[g] = scalar_round(f.scalar, random_unit());
            b[g] = scalar_round(f.scalar, random_unit());
            model_put_scalar(model + codes_bytes + (g * 64 + token) * sb, f.scalar, s[g]);
            model_put_scalar(model + codes_bytes + ((groups + g) * 64 + token) * sb, f.scalar,
                             b[g]);
        }
        tile_put_row(&l, tile, token, codes, s, b);
        assert_memory_equal(tile, model, l.bytes);
        tile_get_row(&l, tile, token, got, got_s, got_b);
        assert_memory_equal(got, codes, dim);
        assert_memory_equal(got_s, s, groups * sizeof *s);
        assert_memory_equal(got_b, b, groups * sizeof *b);
    }
    free(tile);
    free(model);
}

/* encode = round, quantize, put; decode = scale * code + bias. */
static void check_affine_encode(enum tile_kind kind, struct kv_format f, uint32_t dim) {
    struct tile_layout l;
    tile_layout_init(&l, kind, f, dim);
    uint8_t *tile = calloc(l.bytes, 1), *by_parts = calloc(l.bytes, 1), codes[DIM_MAX];
    float x[DIM_MAX], t[DIM_MAX], s[DIM_MAX / 32], b[DIM_MAX / 32], back[DIM_MAX];
    for (uint32_t token = 0; token < 64; token++) {
        for (uint32_t i = 0; i < dim; i++) {
            x[i] = random_unit() * (token % 5 == 0 ? 1e-6f : 3.0f);
            t[i] = scalar_round(affine_input(f.scalar), x[i]);
        }
        affine_quantize(t, dim, f.bits, f.group, f.scalar, codes, s, b);
        tile_put_row(&l, by_parts, token, codes, s, b);
        tile_encode_row(&l, tile, token, x);
        tile_decode_row(&l, tile, token, back);
        for (uint32_t i = 0; i < dim; i++) {
            volatile float product = s[i / f.group] * (float)codes[i];
            assert_true(same(back[i], product + b[i / f.group]));
        }
    }
    assert_memory_equal(tile, by_parts, l.bytes);
    memset(tile, 0, l.bytes);
    tile_decode_row(&l, tile, 7, back);
    for (uint32_t i = 0; i < dim; i++)
        assert_true(back[i] == 0); /* a zeroed tile reads as zeros */
    free(tile);
    free(by_parts);
}

static void test_affine_tiles(void **state) {
    (void)state;
    static const uint32_t DIMS[] = {32, 64, 96, 128, 256, DIM_MAX};
    for (size_t d = 0; d < COUNT(DIMS); d++)
        for (size_t g = 0; g < COUNT(GROUPS); g++)
            for (size_t i = 0; i < COUNT(BITS) * 3 * 2; i++) {
                struct kv_format f = {(uint8_t)BITS[i % 6], (uint8_t)(i / 6 % 3),
                                      (uint8_t)GROUPS[g], KV_ROWS};
                if (DIMS[d] % GROUPS[g] != 0)
                    continue;
                check_affine_tile(i / 18 ? TILE_V : TILE_K, f, DIMS[d]);
                check_affine_encode(i / 18 ? TILE_V : TILE_K, f, DIMS[d]);
            }
}

static void test_exact_tiles(void **state) {
    (void)state;
    static const uint32_t DIMS[] = {4, 32, 80, 128, 256, DIM_MAX};
    for (size_t i = 0; i < COUNT(DIMS) * 3 * 2; i++) {
        enum scalar_type t = (enum scalar_type)(i % 3);
        enum tile_kind kind = i / 3 % 2 ? TILE_V : TILE_K;
        struct kv_format f = {t == SCALAR_F32 ? 32 : 16, (uint8_t)t, 0, KV_ROWS};
        uint32_t dim = DIMS[i / 6], sb = f.bits / 8u;
        struct tile_layout l;
        tile_layout_init(&l, kind, f, dim);
        assert_int_equal(l.bytes, 64 * dim * sb);
        uint8_t *tile = malloc(l.bytes), *model = malloc(l.bytes);
        float x[DIM_MAX], back[DIM_MAX];
        for (uint32_t j = 0; j < l.bytes; j++)
            tile[j] = model[j] = (uint8_t)random_bits();
        for (uint32_t token = 63; token < 64; token--) {
            for (uint32_t j = 0; j < dim; j++) {
                uint32_t lanes = kind == TILE_K ? 64 : dim, r = kind == TILE_K ? j : token;
                uint32_t lane = kind == TILE_K ? token : j;
                x[j] = random_unit() * 100;
                model_put_scalar(model + sb * (r / 4 * 4 * lanes + lane * 4 + r % 4), t, x[j]);
            }
            tile_encode_row(&l, tile, token, x);
            assert_memory_equal(tile, model, l.bytes);
            tile_decode_row(&l, tile, token, back);
            for (uint32_t j = 0; j < dim; j++)
                assert_true(same(back[j], scalar_round(t, x[j])));
        }
        free(tile);
        free(model);
    }
}

/* ---- ranges ---------------------------------------------------------------------------------- */

/* Element `lane` of range r of rows [64][dim]. */
static float in_range(const struct tile_layout *l, const float *rows, uint32_t r, uint32_t lane) {
    return l->kind == TILE_K ? rows[lane * l->head_dim + r] : rows[r * l->head_dim + lane];
}

/* A tile of the model: scales and biases stand [reduction] behind the codes. */
static void model_encode(const struct tile_layout *l, const float *rows, uint8_t *model) {
    const struct kv_format f = l->format;
    const uint32_t codes_bytes = 64 * l->head_dim * f.bits / 8, sb = f.scalar == SCALAR_F32 ? 4 : 2;
    const float top = (float)((1 << f.bits) - 1);
    for (uint32_t r = 0; r < l->reduction; r++) {
        float lo = in_range(l, rows, r, 0), hi = lo;
        for (uint32_t lane = 1; lane < l->lanes; lane++) {
            lo = fminf(lo, in_range(l, rows, r, lane));
            hi = fmaxf(hi, in_range(l, rows, r, lane));
        }
        const float s = scalar_round(f.scalar, fmaxf((hi - lo) / top, 1e-7f)),
                    b = scalar_round(f.scalar, lo);
        model_put_scalar(model + codes_bytes + r * sb, f.scalar, s);
        model_put_scalar(model + codes_bytes + (l->reduction + r) * sb, f.scalar, b);
        for (uint32_t lane = 0; lane < l->lanes; lane++) {
            const float q = fminf(fmaxf(rintf((in_range(l, rows, r, lane) - b) / s), 0), top);
            const bool k = l->kind == TILE_K;
            for (unsigned n = 0; n < f.bits; n++)
                model_put_bit(model, (enum tile_kind)l->kind, f.bits, l->head_dim, k ? lane : r,
                              k ? r : lane, n, (unsigned)q >> n & 1);
        }
    }
}

static void check_whole_tile(enum tile_kind kind, struct kv_format f, uint32_t dim) {
    static float rows[64 * DIM_MAX];
    struct tile_layout l;
    tile_layout_init(&l, kind, f, dim);
    const uint32_t sb = f.scalar == SCALAR_F32 ? 4 : 2, scalars = kind == TILE_K ? dim : 64;
    assert_int_equal(l.bytes, 64 * dim * f.bits / 8 + 2 * scalars * sb);
    assert_int_equal(l.group, kind == TILE_K ? 0 : dim);
    uint8_t *tile = malloc(l.bytes), *model = malloc(l.bytes), codes[DIM_MAX];
    float back[DIM_MAX + 1], s[DIM_MAX], b[DIM_MAX];
    for (uint32_t i = 0; i < l.bytes; i++)
        tile[i] = model[i] = (uint8_t)random_bits();
    for (uint32_t i = 0; i < 64 * dim; i++) /* token 7 and dim 5 have one value each */
        rows[i] = i / dim == 7 ? 3 : i % dim == 5 ? -0.3f : random_unit() * (float)(1 + i % 3);
    tile_encode(&l, tile, rows);
    model_encode(&l, rows, model);
    assert_memory_equal(tile, model, l.bytes);
    for (uint32_t token = 0; token < 64; token++) {
        back[dim] = 12345;
        tile_decode_row(&l, tile, token, back);
        assert_true(same(back[dim], 12345)); /* nothing after the row */
        tile_get_row(&l, tile, token, codes, s, b);
        if (kind == TILE_K)
            tile_get_channels(&l, tile, s, b);
        for (uint32_t i = 0; i < dim; i++) {
            const uint32_t at = kind == TILE_K ? i : 0;
            volatile float product = s[at] * (float)codes[i];
            assert_true(same(back[i], product + b[at]));
            /* half a step, and what rounding of bias and scale to the scalar type moves */
            const float limit = 0.51f * s[at] + fabsf(b[at]) * 0x1p-8f + s[at] * 256 * 0x1p-8f;
            assert_true(fabsf(back[i] - rows[token * dim + i]) <= limit);
        }
    }
    memset(tile, 0, l.bytes);
    tile_decode_row(&l, tile, 9, back);
    for (uint32_t i = 0; i < dim; i++)
        assert_true(same(back[i], 0));
    free(tile);
    free(model);
}

static void test_whole_tiles(void **state) {
    (void)state;
    static const uint32_t DIMS[] = {32, 64, 96, 128, 160, 192, 320, DIM_MAX};
    for (size_t i = 0; i < COUNT(DIMS) * COUNT(BITS) * 3 * 2; i++)
        check_whole_tile(
            i % 2 ? TILE_V : TILE_K,
            (struct kv_format){(uint8_t)BITS[i / 2 % 6], (uint8_t)(i / 12 % 3), 0, KV_TILE},
            DIMS[i / 36]);
}

/* What a tile of one bit less holds is in the middle of two values that the tile could hold. */
static void check_dropped_bit(enum tile_kind kind, unsigned bits, uint32_t dim) {
    static float rows[64 * DIM_MAX];
    struct tile_layout l[2];
    uint8_t *tile[2];
    double error = 0, fresh = 0, along = 0, squares = 0;
    for (unsigned i = 0; i < 2; i++) {
        tile_layout_init(&l[i], kind, (struct kv_format){(uint8_t)(bits - i), 0, 0, KV_TILE}, dim);
        tile[i] = malloc(l[i].bytes);
    }
    for (uint32_t i = 0; i < 64 * dim; i++)
        rows[i] = random_unit() + random_unit() + random_unit() + 2;
    assert_true(tile_drops_bit(&l[0], &l[1]) && !tile_drops_bit(&l[1], &l[0]));
    tile_encode(&l[0], tile[0], rows);
    memset(tile[1], 0xa5, l[1].bytes);
    tile_drop_bit(&l[0], tile[0], &l[1], tile[1]);
    for (uint32_t token = 0; token < 64; token++) {
        uint8_t codes[2][DIM_MAX];
        float s[DIM_MAX], b[DIM_MAX], back[DIM_MAX];
        tile_get_row(&l[0], tile[0], token, codes[0], s, b);
        tile_get_row(&l[1], tile[1], token, codes[1], s, b);
        if (kind == TILE_K)
            tile_get_channels(&l[0], tile[0], s, b);
        else
            tile_get_row(&l[0], tile[0], token, codes[0], s, b);
        tile_decode_row(&l[1], tile[1], token, back);
        for (uint32_t i = 0; i < dim; i++) {
            const uint32_t at = kind == TILE_K ? i : 0;
            const float x = rows[token * dim + i],
                        middle = b[at] + s[at] * ((float)(codes[0][i] & ~1) + 0.5f);
            assert_int_equal(codes[1][i], codes[0][i] / 2);
            assert_true(fabsf(back[i] - middle) <= (fabsf(b[at]) + s[at]) * 0x1p-10f);
            error += (double)(back[i] - x) * (back[i] - x);
            along += (double)(back[i] - x) * (x - 2);
            squares += (double)(x - 2) * (x - 2);
        }
    }
    tile_encode(&l[1], tile[1], rows);
    for (uint32_t token = 0; token < 64; token++) {
        float back[DIM_MAX];
        tile_decode_row(&l[1], tile[1], token, back);
        for (uint32_t i = 0; i < dim; i++)
            fresh += (double)(back[i] - rows[token * dim + i]) * (back[i] - rows[token * dim + i]);
    }
    assert_true(error < 1.1 * fresh);
    assert_true(fabs(along) < 0.02 * squares); /* values keep their distances on average */
    free(tile[0]);
    free(tile[1]);
}

static void test_dropped_bits(void **state) {
    (void)state;
    static const uint32_t DIMS[] = {64, 96, 160, DIM_MAX};
    for (unsigned i = 0; i < COUNT(DIMS) * 2; i++)
        for (unsigned bits = 4; bits <= 6; bits++)
            check_dropped_bit(i % 2 ? TILE_V : TILE_K, bits, DIMS[i / 2]);
    struct tile_layout k, v, rotated, wide;
    tile_layout_init(&k, TILE_K, (struct kv_format){4, SCALAR_F16, 0, KV_TILE}, 64);
    tile_layout_init(&v, TILE_V, (struct kv_format){3, SCALAR_F16, 0, KV_TILE}, 64);
    tile_layout_init(&rotated, TILE_V, (struct kv_format){4, SCALAR_F16, 64, KV_ROTATED}, 64);
    tile_layout_init(&wide, TILE_V, (struct kv_format){4, SCALAR_F32, 0, KV_TILE}, 64);
    assert_false(tile_drops_bit(&k, &v) || tile_drops_bit(&rotated, &v));
    assert_false(tile_drops_bit(&wide, &v) || tile_drops_bit(&k, &k));
}

static void check_range(const float *x, size_t n, enum scalar_type t, float scale, float bias) {
    float s, b;
    range_find(x, n, 1, 2, t, &s, &b);
    assert_true(same(s, scale));
    assert_true(same(b, bias));
}

static void test_ranges(void **state) {
    (void)state;
    static const float EVEN[] = {-3, 0, 3, 6, NAN};
    check_range(EVEN, 4, SCALAR_F16, 3, -3);
    check_range(EVEN, 5, SCALAR_F16, 3, -3); /* NaN does not count */
    for (int i = 0; i < 4; i++)
        assert_int_equal(range_code(EVEN[i], 2, 3, -3), i);
    assert_int_equal(range_code(NAN, 2, 3, -3), 0);
    assert_int_equal(range_code(-1.5f, 2, 3, -3), 0); /* ties to even */
    assert_int_equal(range_code(1.5f, 2, 3, -3), 2);
    assert_int_equal(range_code(-9, 2, 3, -3), 0); /* outside, after rounding of the ends */
    assert_int_equal(range_code(100, 2, 3, -3), 3);
    static const float CONSTANT[] = {5, 5}, ZEROS[] = {-0.0f, 0, -0.0f};
    check_range(CONSTANT, 2, SCALAR_F32, 1e-7f, 5);
    check_range(CONSTANT, 2, SCALAR_F16, 0x1p-23f, 5);
    check_range(ZEROS, 3, SCALAR_F16, 0x1p-23f, 0);
    check_range(ZEROS + 1, 2, SCALAR_F16, 0x1p-23f, 0);
    static const float WIDE[] = {-65504, 65504};
    check_range(WIDE, 2, SCALAR_F16, f16_to_f32(f32_to_f16(131008.0f / 3)), -65504);
    static const float HIGH[] = {1, INFINITY}, LOW[] = {-INFINITY, 1},
                       BOTH[] = {-INFINITY, INFINITY};
    check_range(HIGH, 2, SCALAR_F16, INFINITY, 1);
    check_range(LOW, 2, SCALAR_F16, INFINITY, -INFINITY);
    check_range(BOTH, 2, SCALAR_F16, INFINITY, -INFINITY);
    check_range(BOTH, 1, SCALAR_F16, NAN, -INFINITY);
    check_range(EVEN + 4, 1, SCALAR_F16, 0x1p-23f, INFINITY); /* nothing but NaN */
}

/* ---- NaN, Inf and overflow (the table of the fixture's README) ------------------------------- */

struct group_result {
    uint8_t codes[64];
    float scale, bias, back[64];
};

static struct group_result quantize_group(const float *x, unsigned bits, enum scalar_type t) {
    struct group_result r;
    affine_quantize(x, 64, bits, 64, t, r.codes, &r.scale, &r.bias);
    affine_dequantize(r.codes, &r.scale, &r.bias, 64, 64, t, r.back);
    return r;
}

static void assert_destroyed(const float *x, unsigned bits, enum scalar_type t, float bias) {
    struct group_result r = quantize_group(x, bits, t);
    assert_true(isnan(r.scale) && same(r.bias, bias));
    for (int i = 0; i < 64; i++)
        assert_true(r.codes[i] == 0 && isnan(r.back[i]));
}

static void check_some_nan(const float *good, unsigned bits, enum scalar_type t) {
    float x[64];
    memcpy(x, good, sizeof x);
    x[0] = x[13] = x[63] = NAN;
    struct group_result r = quantize_group(x, bits, t);
    float rest[64]; /* x with a neighbour instead of each NaN: its range is that of the others */
    memcpy(rest, x, sizeof x);
    rest[0] = rest[13] = rest[63] = x[1];
    struct group_result want = quantize_group(rest, bits, t);
    assert_true(same(r.scale, want.scale) && same(r.bias, want.bias));
    for (int i = 0; i < 64; i++) {
        bool nan = i == 0 || i == 13 || i == 63;
        assert_int_equal(r.codes[i], nan ? 0 : want.codes[i]);
        assert_true(same(r.back[i], nan ? r.bias : want.back[i]));
    }
}

static void check_overflow(unsigned bits, enum scalar_type t) {
    float x[64] = {0};
    for (int negative = 0; negative < 2; negative++) {
        x[5] = negative ? -3e38f : 3e38f;
        x[6] = negative ? 2e38f : -2e38f;
        x[5] = scalar_round(t, x[5]);
        x[6] = scalar_round(t, x[6]);
        struct group_result r = quantize_group(x, bits, t);
        assert_true(same(r.scale, negative ? INFINITY : -INFINITY) && same(r.bias, 0));
        for (int i = 0; i < 64; i++)
            assert_true(r.codes[i] == 0 && isnan(r.back[i]));
    }
}

static void test_not_finite(void **state) {
    (void)state;
    for (size_t c = 0; c < COUNT(BITS) * 3; c++) {
        unsigned bits = BITS[c % 6];
        enum scalar_type t = (enum scalar_type)(c / 6);
        float good[64], x[64];
        for (int i = 0; i < 64; i++)
            good[i] = scalar_round(t, random_unit());
        check_some_nan(good, bits, t);
        for (int i = 0; i < 64; i++)
            x[i] = NAN;
        assert_destroyed(x, bits, t, -INFINITY);
        memcpy(x, good, sizeof x);
        x[3] = -INFINITY;
        assert_destroyed(x, bits, t, -INFINITY);
        x[9] = INFINITY;
        assert_destroyed(x, bits, t, INFINITY);
        x[3] = NAN;
        assert_destroyed(x, bits, t, INFINITY);
        for (int i = 0; i < 64; i++)
            x[i] = INFINITY;
        assert_destroyed(x, bits, t, INFINITY);
        if (t != SCALAR_F16)
            check_overflow(bits, t);
    }
}

/* ---- mlx's goldens --------------------------------------------------------------------------- */

enum { ROWS = 40, COLS = 384 };

/* A safetensors file, just enough for the fixtures: byte ranges by name. */
struct tensors {
    uint8_t *file;
    size_t size;
    json_t *header;
    const uint8_t *data;
};

static void tensors_open(struct tensors *t, const char *path) {
    kvasir_error err;
    char *text;
    if (file_read_all(path, 1 << 26, &text, &t->size, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    t->file = (uint8_t *)text;
    uint64_t n;
    assert_true(t->size > 8);
    memcpy(&n, t->file, 8);
    assert_true(n < t->size - 8);
    t->header = json_loadb(text + 8, n, 0, NULL);
    assert_non_null(t->header);
    t->data = t->file + 8 + n;
}

static const uint8_t *tensors_get(const struct tensors *t, const char *name, size_t bytes) {
    json_t *range = json_object_get(json_object_get(t->header, name), "data_offsets");
    json_int_t from = json_integer_value(json_array_get(range, 0));
    json_int_t to = json_integer_value(json_array_get(range, 1));
    if (!range || (size_t)(to - from) != bytes || (size_t)to > t->size)
        fail_msg("tensor %s is not there or has another size", name);
    return t->data + from;
}

static void tensors_close(struct tensors *t) {
    json_decref(t->header);
    mem_free(t->file);
}

/* The number of elements of type t that differ in any bit. */
static int differing(enum scalar_type t, const uint8_t *want, const float *got, size_t n) {
    int bad = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t stored[4];
        model_put_scalar(stored, t, got[i]);
        bad += memcmp(stored, want + i * scalar_bytes(t), scalar_bytes(t)) != 0;
    }
    return bad;
}

static int check_golden(const struct tensors *file, enum scalar_type t, unsigned bits,
                        unsigned group) {
    static float x[ROWS * COLS], s[ROWS * COLS / 32], b[ROWS * COLS / 32], back[ROWS * COLS];
    static uint8_t codes[ROWS * COLS], unpacked[COLS];
    static uint32_t words[ROWS * COLS / 4];
    size_t n = ROWS * COLS, sb = scalar_bytes(t), row_words = COLS * bits / 32;
    char name[64];
#define GET(what, bytes)                                                                           \
    (snprintf(name, sizeof name, "b%u.g%u." what, bits, group), tensors_get(file, name, bytes))
    const uint8_t *in = tensors_get(file, "x", n * sb);
    for (size_t i = 0; i < n; i++)
        x[i] = scalar_load(t, in, i);
    affine_quantize(x, n, bits, group, t, codes, s, b);
    affine_dequantize(codes, s, b, n, group, t, back);
    for (size_t row = 0; row < ROWS; row++) {
        affine_pack_row(codes + row * COLS, COLS, bits, words + row * row_words);
        affine_unpack_row(words + row * row_words, COLS, bits, unpacked);
        assert_memory_equal(unpacked, codes + row * COLS, COLS);
    }
    const uint8_t *want = GET("codes", ROWS * row_words * 4);
    int bad = 0;
    for (size_t i = 0; i < ROWS * row_words; i++)
        bad += memcmp(&words[i], want + 4 * i, 4) != 0;
    bad += differing(t, GET("scales", n / group * sb), s, n / group);
    bad += differing(t, GET("biases", n / group * sb), b, n / group);
    bad += differing(t, GET("dequantized", n * sb), back, n);
#undef GET
    return bad;
}

static void test_mlx_goldens(void **state) {
    (void)state;
    for (int t = 0; t < 3; t++) {
        char path[1024];
        snprintf(path, sizeof path, QUANTIZE_DIR "/%s.safetensors", SCALARS[t]);
        struct tensors file;
        tensors_open(&file, path);
        for (size_t i = 0; i < COUNT(BITS) * COUNT(GROUPS); i++) {
            unsigned bits = BITS[i % 6], group = GROUPS[i / 6];
            int bad = check_golden(&file, (enum scalar_type)t, bits, group);
            if (bad)
                print_error("%s, %u bits, group %u: %d words differ\n", SCALARS[t], bits, group,
                            bad);
            assert_int_equal(bad, 0);
        }
        tensors_close(&file);
    }
}

int main(void) {
    const struct CMUnitTest own[] = {
        cmocka_unit_test(test_half),          cmocka_unit_test(test_format_parse),
        cmocka_unit_test(test_format_settle), cmocka_unit_test(test_format_name),
        cmocka_unit_test(test_affine_tiles),  cmocka_unit_test(test_exact_tiles),
        cmocka_unit_test(test_not_finite),    cmocka_unit_test(test_whole_tiles),
        cmocka_unit_test(test_ranges),        cmocka_unit_test(test_dropped_bits),
    };
    const struct CMUnitTest golden[] = {cmocka_unit_test(test_mlx_goldens)};
    int failed = cmocka_run_group_tests_name("quant", own, NULL, NULL);
    FILE *f = fopen(QUANTIZE_DIR "/float16.safetensors", "rb");
    if (!f) {
        print_message("skipped the goldens: %s is not there\n", QUANTIZE_DIR);
        return failed ? failed : 77;
    }
    fclose(f);
    return failed + cmocka_run_group_tests_name("mlx goldens", golden, NULL, NULL);
}
