/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of a folder combined into weights: mlx's formats and 8-bit floats, and every way in which
 * the parts of a module, or the configuration and the files, can disagree. A case is a good folder
 * with one tensor replaced, removed or added. That values are right is checked by golden/blocks.c.
 */
#include "model_files.h"

static struct temp_folder folder;

struct tensor {
    const char *name, *dtype; /* dtype NULL: left out */
    uint32_t n_dims;
    uint64_t dims[4];
};
enum { TENSORS_MAX = 8 };

static uint64_t dtype_bytes(const char *dtype) {
    return strcmp(dtype, "F32") == 0 || strcmp(dtype + 1, "32") == 0 ? 4
           : strcmp(dtype, "F16") == 0 || strcmp(dtype, "BF16") == 0 ? 2
                                                                     : 1;
}

/* Writes the base; `change` (may be NULL) replaces the tensor of its name or is added last. */
static void write_folder(const char *config, const struct tensor *base,
                         const struct tensor *change) {
    static const uint8_t zeros[1 << 16];
    struct safetensors_writer w = {0};
    bool placed = !change;
    for (size_t i = 0; i < TENSORS_MAX && (base[i].name || !placed); i++) {
        const struct tensor *t = &base[i];
        if (!placed && (!t->name || strcmp(t->name, change->name) == 0)) {
            t = change;
            placed = true;
        }
        if (!t->dtype)
            continue;
        uint64_t bytes = dtype_bytes(t->dtype);
        for (uint32_t d = 0; d < t->n_dims; d++)
            bytes *= t->dims[d];
        assert_true(bytes <= sizeof zeros);
        safetensors_add(&w, t->name, t->dtype, t->n_dims, t->dims, zeros, bytes);
    }
    struct text_buf b = safetensors_finish(&w);
    temp_write(&folder, "model.safetensors", b.data, b.len);
    text_free(&b);
    char text[1024];
    int n = snprintf(text, sizeof text, TINY_CONFIG_WITH("%s"), config);
    for (int i = 0; i < n; i++)
        if (text[i] == '\'')
            text[i] = '"';
    temp_write(&folder, "config.json", text, (size_t)n);
}

static struct checkpoint *opened(const char *config, const struct tensor *base,
                                 const struct tensor *change) {
    struct checkpoint *c;
    kvasir_error err = {0};
    write_folder(config, base, change);
    if (checkpoint_open(folder.path, &c, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    return c;
}

struct bad_case {
    const char *config;
    struct tensor change;
    kvasir_status status;
    const char *words;
};

static void all_refused(const struct tensor *base, const struct bad_case *cases, size_t n) {
    for (size_t i = 0; i < n; i++) {
        write_folder(cases[i].config, base, cases[i].change.name ? &cases[i].change : NULL);
        assert_refused(folder.path, cases[i].status, cases[i].words);
    }
}
#define ALL_REFUSED(base, cases) all_refused(base, cases, sizeof(cases) / sizeof *(cases))

/* ---- mlx ------------------------------------------------------------------------------------- */

#define Q4 ",'quantization':{'group_size':32,'bits':4}"

/* m: [8][64] with 4 bits, groups of 32 */
static const struct tensor MLX[TENSORS_MAX] = {
    {"m.weight", "U32", 2, {8, 8}},
    {"m.scales", "F16", 2, {8, 2}},
    {"m.biases", "F16", 2, {8, 2}},
    {"n.weight", "BF16", 2, {3, 5}},
};

static void test_mlx(void **state) {
    (void)state;
    static const char *const configs[] = {Q4, ",'quantization_config':{'group_size':32,'bits':4}",
                                          (",'quantization':{'group_size':64,'bits':8,"
                                           "'m':{'group_size':32,'bits':4}}")};
    for (size_t i = 0; i < 3; i++) {
        struct checkpoint *c = opened(configs[i], MLX, NULL);
        assert_string_equal(checkpoint_format(c), "MLX safetensors");
        assert_int_equal(checkpoint_tensor_count(c), 2);
        const struct checkpoint_tensor *t = checkpoint_find(c, "m.weight");
        assert_int_equal(t->type, WEIGHT_AFFINE4);
        assert_int_equal(t->n_dims, 2);
        assert_int_equal(t->dims[0], 8);
        assert_int_equal(t->dims[1], 64);
        assert_int_equal(t->bytes, 8 * 8 * 4 + 2 * 8 * 2 * 2);
        struct weight w = checkpoint_weight(t);
        assert_int_equal(w.group, 32);
        assert_int_equal(w.scalar, SCALAR_F16);
        assert_ptr_equal(w.scales, (const uint8_t *)w.data + 8 * 8 * 4);
        assert_ptr_equal(w.biases, (const uint8_t *)w.scales + 8 * 2 * 2);
        t = checkpoint_find(c, "n.weight");
        assert_int_equal(t->type, WEIGHT_BF16);
        assert_int_equal(t->dims[1], 5);
        checkpoint_close(c);
    }
}

/* Every number of bits, group size and scalar type. */
static void test_mlx_formats(void **state) {
    (void)state;
    static const char *const dtypes[] = {[SCALAR_F16] = "F16", "BF16", "F32"};
    for (uint32_t bits = 2; bits <= 8; bits++)
        for (uint32_t i = 0; bits != 7 && i < 9; i++) {
            uint32_t group = 32u << i / 3;
            char config[96];
            snprintf(config, sizeof config, ",'quantization':{'group_size':%u,'bits':%u}", group,
                     bits);
            const struct tensor base[TENSORS_MAX] = {
                {"m.weight", "U32", 2, {3, 256 * bits / 32}},
                {"m.scales", dtypes[i % 3], 2, {3, 256 / group}},
                {"m.biases", dtypes[i % 3], 2, {3, 256 / group}},
            };
            struct checkpoint *c = opened(config, base, NULL);
            struct weight w = checkpoint_weight(checkpoint_find(c, "m.weight"));
            assert_int_equal(w.type, 1000 + bits);
            assert_int_equal(w.n, 3);
            assert_int_equal(w.k, 256);
            assert_int_equal(w.group, group);
            assert_int_equal(w.scalar, i % 3);
            checkpoint_close(c);
        }
}

static void test_mxfp4(void **state) {
    (void)state;
    static const char *const configs[] = {
        ",'quantization':{'mode':'mxfp4','group_size':32,'bits':4}",
        ",'quantization':{'bits':8,'group_size':64,'m':{'mode':'mxfp4'}}"};
    static const struct tensor base[TENSORS_MAX] = {{"m.weight", "U32", 2, {5, 12}},
                                                    {"m.scales", "U8", 2, {5, 3}}};
    for (size_t i = 0; i < 2; i++) {
        struct checkpoint *c = opened(configs[i], base, NULL);
        struct weight w = checkpoint_weight(checkpoint_find(c, "m.weight"));
        assert_int_equal(w.type, WEIGHT_MXFP4_MLX);
        assert_int_equal(w.n, 5);
        assert_int_equal(w.k, 96);
        assert_null(w.biases);
        checkpoint_close(c);
    }
    static const struct bad_case cases[] = {
        {",'quantization':{'mode':'mxfp4'}",
         {"m.scales", "F16", 2, {5, 3}},
         KVASIR_ERR_UNSUPPORTED,
         "tensor m.scales has dtype F16, expected U8 (mode mxfp4)"},
        {",'quantization':{'mode':'mxfp4'}",
         {"m.biases", "F16", 2, {5, 3}},
         KVASIR_ERR_FORMAT,
         "tensor m.biases does not belong to a quantized weight"},
        {",'quantization':{'mode':'mxfp4'}",
         {"m.scales", "U8", 2, {5, 4}},
         KVASIR_ERR_FORMAT,
         "12 words a row are not 4 groups of 32 codes of 4 bits"},
        {",'quantization':{'mode':'mxfp4'}",
         {"x", "U8", 1, {4}},
         KVASIR_ERR_UNSUPPORTED,
         "tensor x has dtype U8, which only the scales of an mxfp4 module may have"},
        {Q4,
         {"x", "F32", 1, {4}},
         KVASIR_ERR_UNSUPPORTED,
         "tensor m.scales has dtype U8, expected F16, BF16 or F32"},
    };
    ALL_REFUSED(base, cases);
}

static void test_mlx_refused(void **state) {
    (void)state;
    static const struct bad_case cases[] = {
        {"", {0}, KVASIR_ERR_UNSUPPORTED, "tensor m.weight has dtype U32, which only a quantized"},
        {",'quantization':{'group_size':32,'bits':7}",
         {0},
         KVASIR_ERR_UNSUPPORTED,
         "field quantization.bits: 7"},
        {",'quantization':{'group_size':32,'bits':8}",
         {0},
         KVASIR_ERR_FORMAT,
         "tensor m.weight: 8 words a row are not 2 groups of 32 codes of 8 bits (field "
         "quantization)"},
        {",'quantization':{'group_size':64,'bits':4}",
         {0},
         KVASIR_ERR_FORMAT,
         "8 words a row are not 2 groups of 64 codes of 4 bits"},
        {",'quantization':{'group_size':32,'bits':4,'m':{'bits':6}}",
         {0},
         KVASIR_ERR_FORMAT,
         "8 words a row are not 2 groups of 64 codes of 6 bits"},
        {",'quantization':{'group_size':32,'bits':4,'m':false}",
         {0},
         KVASIR_ERR_FORMAT,
         "tensor m.weight is quantized, field quantization.m says it is not"},
        {",'quantization':{'group_size':32,'bits':4,'o':{'bits':4}}",
         {0},
         KVASIR_ERR_FORMAT,
         "field quantization.o: no quantized module has this name"},
        {",'quantization':{'group_size':32,'bits':4,'n':{'bits':4}}",
         {0},
         KVASIR_ERR_FORMAT,
         "field quantization.n: no quantized module has this name"},
        {",'quantization_config':{'quant_method':'gptq','bits':4}",
         {0},
         KVASIR_ERR_UNSUPPORTED,
         "field quantization_config.quant_method: gptq"},
        {Q4,
         {"m.weight", "U32", 2, {8, 7}},
         KVASIR_ERR_FORMAT,
         "tensor m.weight: 7 words a row are not 2 groups"},
        {Q4, {"m.weight", "U32", 2, {8, 0}}, KVASIR_ERR_FORMAT, "tensor m.weight: 0 words a row"},
        {Q4, {"m.weight", "U32", 1, {8}}, KVASIR_ERR_FORMAT, "tensor m.weight must be a matrix"},
        {Q4, {"m.weight", "U32", 3, {8, 8, 1}}, KVASIR_ERR_FORMAT, "expected 64 rows as m.weight"},
        {Q4,
         {"m.weight", "BF16", 2, {8, 64}},
         KVASIR_ERR_FORMAT,
         "tensor m.biases does not belong to a quantized weight"},
        {Q4,
         {"m.weight", "U8", 2, {8, 32}},
         KVASIR_ERR_FORMAT,
         "does not belong to a quantized weight"},
        {Q4,
         {"m.weight", NULL, 0, {0}},
         KVASIR_ERR_FORMAT,
         "does not belong to a quantized weight"},
        {Q4, {"m.scales", NULL, 0, {0}}, KVASIR_ERR_FORMAT, "tensor m.scales is missing"},
        {Q4, {"m.biases", NULL, 0, {0}}, KVASIR_ERR_FORMAT, "tensor m.biases is missing"},
        {Q4,
         {"m.scales", "F16", 2, {7, 2}},
         KVASIR_ERR_FORMAT,
         "tensor m.scales has shape [7, 2], expected 8 rows as m.weight has"},
        {Q4, {"m.scales", "F16", 1, {16}}, KVASIR_ERR_FORMAT, "tensor m.scales has shape [16]"},
        {Q4,
         {"m.scales", "F16", 2, {8, 3}},
         KVASIR_ERR_FORMAT,
         "8 words a row are not 3 groups of 32 codes"},
        {Q4,
         {"m.scales", "U32", 2, {8, 2}},
         KVASIR_ERR_UNSUPPORTED,
         "tensor m.scales has dtype U32"},
        {Q4,
         {"m.biases", "F16", 2, {8, 1}},
         KVASIR_ERR_FORMAT,
         "tensor m.biases must have the shape and dtype of m.scales"},
        {Q4, {"m.biases", "F32", 2, {8, 2}}, KVASIR_ERR_FORMAT, "the shape and dtype of m.scales"},
        {Q4, {"m.biases", "F8_E4M3", 2, {8, 2}}, KVASIR_ERR_UNSUPPORTED, "tensor m.biases has"},
        {Q4,
         {"o.scales", "F16", 2, {8, 2}},
         KVASIR_ERR_FORMAT,
         "tensor o.scales does not belong to a quantized weight"},
        {Q4, {"x", "U32", 1, {8}}, KVASIR_ERR_UNSUPPORTED, "tensor x has dtype U32"},
        {Q4, {"x", "I32", 1, {8}}, KVASIR_ERR_UNSUPPORTED, "tensor x has dtype I32"},
    };
    ALL_REFUSED(MLX, cases);
}

/* Checkpoints whose names lack "model."; quantization entries may have it or not. */
static void test_bare_names(void **state) {
    (void)state;
    static const struct tensor base[TENSORS_MAX] = {
        {"layers.0.mlp.up_proj.weight", "U32", 2, {8, 8}},
        {"layers.0.mlp.up_proj.scales", "F16", 2, {8, 2}},
        {"layers.0.mlp.up_proj.biases", "F16", 2, {8, 2}},
        {"embed_tokens.weight", "F16", 2, {8, 64}},
        {"norm.weight", "F16", 1, {64}},
        {"lm_head.weight", "F16", 2, {8, 64}},
    };
    static const char *const configs[] = {
        Q4,
        (",'quantization':{'bits':8,'group_size':64,"
         "'model.layers.0.mlp.up_proj':{'group_size':32}}"),
        ",'quantization':{'bits':8,'group_size':64,'layers.0.mlp.up_proj':{'group_size':32}}"};
    for (size_t i = 0; i < 3; i++) {
        struct checkpoint *c = opened(configs[i], base, NULL);
        assert_int_equal(checkpoint_find(c, "model.layers.0.mlp.up_proj.weight")->type,
                         WEIGHT_AFFINE4);
        assert_non_null(checkpoint_find(c, "model.embed_tokens.weight"));
        assert_non_null(checkpoint_find(c, "model.norm.weight"));
        assert_non_null(checkpoint_find(c, "lm_head.weight"));
        checkpoint_close(c);
    }
}

/* ---- 8-bit floats ---------------------------------------------------------------------------- */

#define FP8    ",'quantization_config':{'quant_method':'fp8','weight_block_size':[4,16]}"
#define TENSOR ",'quantization_config':{'quant_method':'compressed-tensors'}"

static const struct tensor F8[TENSORS_MAX] = {
    {"m.weight", "F8_E4M3", 2, {6, 40}},
    {"m.input_scale", "F32", 0, {0}},
    {"a.k_scale", "F32", 1, {1}},
    {"n.weight", "BF16", 1, {5}},
};

static void test_f8(void **state) {
    (void)state;
    static const struct {
        const char *config;
        struct tensor scale;
        uint32_t group_rows, group;
        enum scalar_type scalar;
    } cases[] = {
        {TENSOR, {"m.weight_scale", "F32", 0, {0}}, 6, 40, SCALAR_F32},
        {TENSOR, {"m.weight_scale", "BF16", 1, {1}}, 6, 40, SCALAR_BF16},
        {"", {"m.weight_scale", "F16", 2, {1, 1}}, 6, 40, SCALAR_F16},
        {TENSOR, {"m.weight_scale", "F32", 1, {6}}, 1, 40, SCALAR_F32},
        {TENSOR, {"m.weight_scale", "F32", 2, {6, 1}}, 1, 40, SCALAR_F32},
        {FP8, {"m.weight_scale_inv", "F32", 2, {2, 3}}, 4, 16, SCALAR_F32},
        {FP8, {"m.weight_scale", "BF16", 2, {2, 3}}, 4, 16, SCALAR_BF16},
        {FP8, {"m.weight_scale_inv", "F32", 0, {0}}, 6, 40, SCALAR_F32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct checkpoint *c = opened(cases[i].config, F8, &cases[i].scale);
        assert_int_equal(checkpoint_tensor_count(c), 2); /* m, n; activations' scales are dropped */
        struct weight w = checkpoint_weight(checkpoint_find(c, "m.weight"));
        assert_int_equal(w.type, WEIGHT_F8_E4M3);
        assert_int_equal(w.n, 6);
        assert_int_equal(w.k, 40);
        assert_int_equal(w.group_rows, cases[i].group_rows);
        assert_int_equal(w.group, cases[i].group);
        assert_int_equal(w.scalar, cases[i].scalar);
        assert_non_null(w.scales);
        assert_string_equal(checkpoint_format(c), "safetensors");
        checkpoint_close(c);
    }
    struct checkpoint *c = opened(FP8, F8, NULL); /* no scale: as if it were 1 */
    assert_null(checkpoint_weight(checkpoint_find(c, "m.weight")).scales);
    checkpoint_close(c);
}

static void test_f8_refused(void **state) {
    (void)state;
    static const struct bad_case cases[] = {
        {FP8,
         {"m.weight_scale_inv", "F32", 2, {2, 2}},
         KVASIR_ERR_FORMAT,
         "tensor m.weight_scale_inv has shape [2, 2]: neither one scale, nor one for each row, nor "
         "one for each block (field quantization_config.weight_block_size) of [6, 40]"},
        {FP8, {"m.weight_scale_inv", "F32", 2, {3, 2}}, KVASIR_ERR_FORMAT, "has shape [3, 2]"},
        {TENSOR, {"m.weight_scale_inv", "F32", 2, {2, 3}}, KVASIR_ERR_FORMAT, "has shape [2, 3]"},
        {TENSOR, {"m.weight_scale", "F32", 1, {5}}, KVASIR_ERR_FORMAT, "has shape [5]"},
        {TENSOR, {"m.weight_scale", "F32", 1, {40}}, KVASIR_ERR_FORMAT, "has shape [40]"},
        {TENSOR, {"m.weight_scale", "F32", 2, {6, 2}}, KVASIR_ERR_FORMAT, "has shape [6, 2]"},
        {TENSOR, {"m.weight_scale", "F32", 2, {1, 6}}, KVASIR_ERR_FORMAT, "has shape [1, 6]"},
        {TENSOR, {"m.weight_scale", "F32", 1, {0}}, KVASIR_ERR_FORMAT, "has shape [0]"},
        {TENSOR, {"m.weight_scale", "F8_E4M3", 1, {6}}, KVASIR_ERR_UNSUPPORTED, "dtype F8_E4M3"},
        {TENSOR,
         {"m.weight_scale", "U8", 1, {6}},
         KVASIR_ERR_UNSUPPORTED,
         "tensor m.weight_scale has dtype U8, expected F16, BF16 or F32"},
        {TENSOR,
         {"m.weight", "F8_E4M3", 1, {6}},
         KVASIR_ERR_UNSUPPORTED,
         "tensor m.weight has dtype F8_E4M3, which only a module's matrix may have"},
        {TENSOR, {"x", "F8_E4M3", 2, {2, 2}}, KVASIR_ERR_UNSUPPORTED, "tensor x has dtype F8_E4M3"},
        {TENSOR,
         {"n.weight_scale", "F32", 1, {6}},
         KVASIR_ERR_FORMAT,
         "tensor n.weight_scale does not belong to a quantized weight"},
        {TENSOR, {"x.weight", "F8_E5M2", 2, {2, 2}}, KVASIR_ERR_UNSUPPORTED, "dtype F8_E5M2"},
    };
    ALL_REFUSED(F8, cases);
    static const struct tensor both[TENSORS_MAX] = {
        {"m.weight", "F8_E4M3", 2, {6, 40}},
        {"m.weight_scale", "F32", 0, {0}},
        {"m.weight_scale_inv", "F32", 0, {0}},
    };
    static const struct bad_case two = {TENSOR, {0}, KVASIR_ERR_FORMAT, "a weight has one scale"};
    all_refused(both, &two, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mlx),        cmocka_unit_test(test_mlx_formats),
        cmocka_unit_test(test_mxfp4),      cmocka_unit_test(test_mlx_refused),
        cmocka_unit_test(test_bare_names), cmocka_unit_test(test_f8),
        cmocka_unit_test(test_f8_refused),
    };
    temp_folder_make(&folder);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    temp_folder_remove(&folder);
    return failed;
}
