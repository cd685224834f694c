/* SPDX-License-Identifier: Apache-2.0 */
/* Every weight type in a whole model: random blocks in a tiny file of that type, and a twin whose
 * weights are the same values in float32. Both run through the public interface with f32 pages and
 * --act-bits 16, in the reference tier and in the best this machine has; their logits must agree.
 *
 *     GGUF types                          MODEL.gguf          twin.gguf, F32
 *     AFFINE2..8 x groups x scalars       FOLDER (mlx)        twin folder, F32
 *     MXFP4_MLX; F8_E4M3 x scales         FOLDER              twin folder, F32
 *
 * The bound. kcheck allows an output of a product gamma(2 B + 3) sum|terms| for quantized and
 * gamma(k + 1) sum|terms| for float weights (gamma(n) ~ n 2^-24, B = k / 32). With random signs
 * sum|terms| is about 0.8 sqrt(k) times an output, so for k = 512, the widest row here, one product
 * of a model and of its twin together may differ by
 *
 *     (35 + 513) 2^-24 * 0.8 sqrt(512) = 5.9e-4 of an output
 *
 * if every rounding errs the same way, and by the root of that many roundings, sqrt(548) 2^-24 *
 * 0.8 sqrt(512) = 2.5e-5, if they err independently. BOUND is the latter. (The activations'
 * rounding to 30 bits is a thousandth of it. Norms divide by the size that earlier products have
 * reached, so the errors of 15 products in a row add up rather than multiply, and they are just as
 * independent.) A wrong code, scale, minimum or run shows above 1e-3.
 */
#include <math.h>

#include <kvasir.h>

#include "model_files.h"

#define BOUND 2.5e-5

static const char *const TIERS[] = {"ref", "auto"};

enum {
    DIM = 256, /* a multiple of every block */
    FFN = 512,
    LAYERS = 2,
    HEADS = 4,
    KV_DIM = 128,
    VOCAB = 96,
    TOKENS = 12,
    ROW_MAX = FFN,
};

static struct temp_folder folder;
static uint64_t rng_state;
static double worst_of_all;

static uint64_t rng(void) { /* splitmix64 */
    uint64_t z = rng_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static float uniform(float low, float high) {
    return low + (high - low) * (float)(rng() >> 40) * 0x1p-24f;
}

/* ---- random weights -------------------------------------------------------------------------- */

/* What is being tested: a type, and for types of folders its parameters. */
struct subject {
    enum weight_type type;
    enum scalar_type scalar;
    uint32_t group, group_rows; /* F8; ROWS_ALL: all rows */
    bool scaled;
};
enum { ROWS_ALL = 0 };

/* Where the 16-bit scale and minimum of a GGUF block are, and the largest |code| (times the largest
 * sub-scale) that the scale multiplies. Minima are described likewise. */
static const struct {
    enum weight_type type;
    int scale, min; /* byte offsets; -1: none */
    float codes, mins;
} BLOCKS[] = {
    {WEIGHT_Q4_0, 0, -1, 8, 1},          {WEIGHT_Q4_1, 0, 2, 8, -1},
    {WEIGHT_Q5_0, 0, -1, 16, 1},         {WEIGHT_Q5_1, 0, 2, 16, -1},
    {WEIGHT_Q8_0, 0, -1, 128, 1},        {WEIGHT_IQ4_NL, 0, -1, 127, 1},
    {WEIGHT_Q2_K, 80, 82, 2 * 15, 15},   {WEIGHT_Q3_K, 108, -1, 4 * 32, 1},
    {WEIGHT_Q4_K, 0, 2, 8 * 63, 63},     {WEIGHT_Q5_K, 0, 2, 16 * 63, 63},
    {WEIGHT_Q6_K, 208, -1, 32 * 128, 1}, {WEIGHT_IQ4_XS, 0, -1, 127 * 32, 1},
};

static void set_f16(uint8_t *at, float value) {
    scalar_store(SCALAR_F16, at, 0, value);
}

/* Sets scales so that values are about 0.1 at most. The codes stay arbitrary. */
static void settle_block(enum weight_type type, uint8_t *block) {
    const float d = uniform(0.03f, 0.1f);
    if (type == WEIGHT_MXFP4) {
        block[0] = (uint8_t)(120 + rng() % 4);
        return;
    }
    if (type == WEIGHT_Q8_K) {
        memcpy(block, &(float){d / 128}, sizeof d);
        return;
    }
    for (size_t i = 0; i < sizeof BLOCKS / sizeof *BLOCKS; i++) {
        if (BLOCKS[i].type != type)
            continue;
        set_f16(block + BLOCKS[i].scale, d / BLOCKS[i].codes);
        if (BLOCKS[i].min >= 0)
            set_f16(block + BLOCKS[i].min, d / BLOCKS[i].mins);
        return;
    }
    fail_msg("no scale is known for blocks of type %d", type);
}

/* data [n][k] of the type, from mem_alloc. */
static uint8_t *random_data(enum weight_type type, size_t values, size_t *bytes) {
    const struct weight_traits *t = weight_traits_of(type);
    *bytes = values / t->block_values * t->block_bytes;
    uint8_t *data = mem_alloc(*bytes);
    assert_non_null(data);
    for (size_t i = 0; i < *bytes; i++)
        data[i] = (uint8_t)rng();
    if (type == WEIGHT_F32 || type == WEIGHT_F16 || type == WEIGHT_BF16) {
        enum scalar_type s = type == WEIGHT_F32   ? SCALAR_F32
                             : type == WEIGHT_F16 ? SCALAR_F16
                                                  : SCALAR_BF16;
        for (size_t i = 0; i < values; i++)
            scalar_store(s, data, i, uniform(-0.1f, 0.1f));
    } else if (type == WEIGHT_F8_E4M3) {
        for (size_t i = 0; i < values; i++) /* up to 0.25, subnormals too; no NaN */
            data[i] = (uint8_t)(data[i] & 0x80) | (uint8_t)(data[i] % 41);
    } else if ((uint32_t)type < WEIGHT_GGUF_END) {
        for (size_t i = 0; i < *bytes; i += t->block_bytes)
            settle_block(type, data + i);
    }
    return data;
}

static void *random_scalars(enum scalar_type s, size_t n, float low, float high) {
    void *out = mem_alloc(n * scalar_bytes(s));
    assert_non_null(out);
    for (size_t i = 0; i < n; i++)
        scalar_store(s, out, i, uniform(low, high));
    return out;
}

static bool is_affine(enum weight_type type) {
    return type >= WEIGHT_AFFINE2 && type <= WEIGHT_AFFINE8;
}

/* A random matrix; free_weight frees it. *scales: their number. */
static struct weight random_weight(const struct subject *s, uint32_t n, uint32_t k, size_t *bytes,
                                   size_t *scales) {
    struct weight w = {.type = s->type, .n = n, .k = k, .group = s->group, .scalar = s->scalar};
    w.data = random_data(s->type, (size_t)n * k, bytes);
    *scales = 0;
    if (is_affine(s->type)) {
        float codes = (float)((1 << (s->type - WEIGHT_AFFINE2 + 2)) - 1);
        *scales = (size_t)n * (k / s->group);
        w.scales = random_scalars(s->scalar, *scales, -0.2f / codes, 0.2f / codes);
        void *biases = random_scalars(s->scalar, *scales, -0.02f, 0.02f);
        for (size_t i = 0; i < *scales; i++) /* centred on the middle code */
            scalar_store(s->scalar, biases, i,
                         scalar_load(s->scalar, biases, i) -
                             scalar_load(s->scalar, w.scales, i) * codes / 2);
        w.biases = biases;
    } else if (s->type == WEIGHT_MXFP4_MLX) {
        *scales = (size_t)n * (k / 32);
        uint8_t *e = mem_alloc(*scales);
        assert_non_null(e);
        for (size_t i = 0; i < *scales; i++)
            e[i] = (uint8_t)(120 + rng() % 4);
        w.scales = e;
    } else if (s->scaled) {
        w.group_rows = s->group_rows == ROWS_ALL ? n : s->group_rows;
        w.group = s->group == 0 ? k : s->group;
        *scales = (size_t)((n + w.group_rows - 1) / w.group_rows) * ((k + w.group - 1) / w.group);
        w.scales = random_scalars(s->scalar, *scales, 0.1f, 0.6f);
    }
    return w;
}

static void free_weight(struct weight *w) {
    mem_free((void *)w->data);
    mem_free((void *)w->scales);
    mem_free((void *)w->biases);
}

/* ---- a model and its twin -------------------------------------------------------------------- */

struct pair {
    const struct subject *subject;
    bool gguf;
    struct gguf_writer g, g_twin;
    struct safetensors_writer s, s_twin;
};

static void add_matrix_gguf(struct pair *p, const char *name, const struct weight *w, size_t bytes,
                            const float *values) {
    const uint64_t dims[] = {w->k, w->n};
    gguf_data(&p->g, name, w->type, 2, dims, w->data, bytes);
    gguf_data(&p->g_twin, name, WEIGHT_F32, 2, dims, values, (size_t)w->n * w->k * sizeof *values);
}

static const char *scalar_dtype(enum scalar_type s) {
    return s == SCALAR_F16 ? "F16" : s == SCALAR_BF16 ? "BF16" : "F32";
}

static const char *part_name(const char *module, const char *part) {
    static char name[128];
    snprintf(name, sizeof name, "%s.%s", module, part);
    return name;
}

static void add_f8_scale(struct pair *p, const char *module, const struct weight *w,
                         size_t scales) {
    const uint32_t k_groups = (w->k + w->group - 1) / w->group;
    const uint64_t dims[] = {scales / k_groups, k_groups};
    bool blocks = w->group < w->k;
    safetensors_add(&p->s, part_name(module, blocks ? "weight_scale_inv" : "weight_scale"),
                    scalar_dtype(w->scalar), blocks ? 2 : scales > 1, dims, w->scales,
                    scales * scalar_bytes(w->scalar));
    safetensors_add(&p->s, part_name(module, "input_scale"), "F32", 0, NULL, &(float){3}, 4);
}

static void add_matrix_folder(struct pair *p, const char *module, const struct weight *w,
                              size_t bytes, size_t scales, const float *values) {
    uint64_t dims[] = {w->n, w->k};
    safetensors_add(&p->s_twin, part_name(module, "weight"), "F32", 2, dims, values,
                    (size_t)w->n * w->k * sizeof *values);
    if (w->type == WEIGHT_F8_E4M3) {
        safetensors_add(&p->s, part_name(module, "weight"), "F8_E4M3", 2, dims, w->data, bytes);
        if (w->scales)
            add_f8_scale(p, module, w, scales);
        return;
    }
    dims[1] = bytes / 4 / w->n;
    safetensors_add(&p->s, part_name(module, "weight"), "U32", 2, dims, w->data, bytes);
    dims[1] = scales / w->n;
    if (w->type == WEIGHT_MXFP4_MLX) {
        safetensors_add(&p->s, part_name(module, "scales"), "U8", 2, dims, w->scales, scales);
        return;
    }
    size_t size = scales * scalar_bytes(w->scalar);
    const char *dtype = scalar_dtype(w->scalar);
    safetensors_add(&p->s, part_name(module, "scales"), dtype, 2, dims, w->scales, size);
    safetensors_add(&p->s, part_name(module, "biases"), dtype, 2, dims, w->biases, size);
}

/* layer < 0: of the whole model. */
static void name_tensor(const struct pair *p, int layer, const char *gguf, const char *hf,
                        char name[96]) {
    if (layer < 0)
        snprintf(name, 96, "%s", p->gguf ? gguf : hf);
    else if (p->gguf)
        snprintf(name, 96, "blk.%d.%s", layer, gguf);
    else
        snprintf(name, 96, "model.layers.%d.%s", layer, hf);
}

static void add_matrix(struct pair *p, int layer, const char *gguf, const char *hf, uint32_t n,
                       uint32_t k) {
    char name[96];
    size_t bytes, scales;
    struct weight w = random_weight(p->subject, n, k, &bytes, &scales);
    float *values = mem_alloc((size_t)n * k * sizeof *values);
    assert_non_null(values);
    for (uint32_t row = 0; row < n; row++)
        weight_traits_of(w.type)->decode(&w, row, values + (size_t)row * k);
    name_tensor(p, layer, gguf, hf, name);
    if (p->gguf)
        add_matrix_gguf(p, part_name(name, "weight"), &w, bytes, values);
    else
        add_matrix_folder(p, name, &w, bytes, scales, values);
    mem_free(values);
    free_weight(&w);
}

static void add_norm(struct pair *p, int layer, const char *gguf, const char *hf) {
    char name[96];
    float gain[DIM];
    const uint64_t dim = DIM;
    for (int i = 0; i < DIM; i++)
        gain[i] = uniform(0.5f, 1.5f);
    name_tensor(p, layer, gguf, hf, name);
    for (int twin = 0; twin < 2; twin++)
        if (p->gguf)
            gguf_data(twin ? &p->g_twin : &p->g, part_name(name, "weight"), WEIGHT_F32, 1, &dim,
                      gain, sizeof gain);
        else
            safetensors_add(twin ? &p->s_twin : &p->s, part_name(name, "weight"), "F32", 1, &dim,
                            gain, sizeof gain);
}

static void add_tensors(struct pair *p) {
    add_matrix(p, -1, "token_embd", "model.embed_tokens", VOCAB, DIM);
    for (int i = 0; i < LAYERS; i++) {
        add_norm(p, i, "attn_norm", "input_layernorm");
        add_matrix(p, i, "attn_q", "self_attn.q_proj", DIM, DIM);
        add_matrix(p, i, "attn_k", "self_attn.k_proj", KV_DIM, DIM);
        add_matrix(p, i, "attn_v", "self_attn.v_proj", KV_DIM, DIM);
        add_matrix(p, i, "attn_output", "self_attn.o_proj", DIM, DIM);
        add_norm(p, i, "ffn_norm", "post_attention_layernorm");
        add_matrix(p, i, "ffn_gate", "mlp.gate_proj", FFN, DIM);
        add_matrix(p, i, "ffn_up", "mlp.up_proj", FFN, DIM);
        add_matrix(p, i, "ffn_down", "mlp.down_proj", DIM, FFN);
    }
    add_norm(p, -1, "output_norm", "model.norm");
    add_matrix(p, -1, "output", "lm_head", VOCAB, DIM);
}

static void add_values(struct gguf_writer *w) {
    gguf_string(w, "general.architecture", "llama");
    gguf_u32(w, "llama.block_count", LAYERS);
    gguf_u32(w, "llama.embedding_length", DIM);
    gguf_u32(w, "llama.feed_forward_length", FFN);
    gguf_u32(w, "llama.context_length", 256);
    gguf_u32(w, "llama.attention.head_count", HEADS);
    gguf_u32(w, "llama.attention.head_count_kv", HEADS * KV_DIM / DIM);
    gguf_u32(w, "llama.vocab_size", VOCAB);
    gguf_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
}

static void write_config(const char *path, const struct subject *s) {
    char text[1024], quantized[128] = "";
    if (s && s->type == WEIGHT_F8_E4M3)
        snprintf(quantized, sizeof quantized,
                 ",\"quantization_config\":{\"quant_method\":\"fp8\","
                 "\"weight_block_size\":[%u,%u]}",
                 s->group_rows ? s->group_rows : 1, s->group ? s->group : 1);
    else if (s && s->type == WEIGHT_MXFP4_MLX)
        snprintf(quantized, sizeof quantized,
                 ",\"quantization\":{\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\"}");
    else if (s)
        snprintf(quantized, sizeof quantized, ",\"quantization\":{\"group_size\":%u,\"bits\":%d}",
                 s->group, s->type - WEIGHT_AFFINE2 + 2);
    int n = snprintf(text, sizeof text,
                     "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":%d,"
                     "\"intermediate_size\":%d,\"num_hidden_layers\":%d,"
                     "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"vocab_size\":%d,"
                     "\"max_position_embeddings\":256,\"rms_norm_eps\":1e-5%s}",
                     DIM, FFN, LAYERS, HEADS, HEADS * KV_DIM / DIM, VOCAB, quantized);
    temp_write(&folder, path, text, (size_t)n);
}

static void write_bytes(const char *name, struct text_buf bytes) {
    temp_write(&folder, name, bytes.data, bytes.len);
    text_free(&bytes);
}

/* Writes both; the paths are in the temporary folder. */
static void write_pair(const struct subject *s, char model[192], char twin[192]) {
    struct pair p = {.subject = s, .gguf = (uint32_t)s->type < WEIGHT_GGUF_END};
    add_tensors(&p);
    snprintf(model, 192, "%s/%s", folder.path, p.gguf ? "model.gguf" : "model");
    snprintf(twin, 192, "%s/%s", folder.path, p.gguf ? "twin.gguf" : "twin");
    if (p.gguf) {
        add_values(&p.g);
        add_values(&p.g_twin);
        write_bytes("model.gguf", gguf_finish(&p.g, 32));
        write_bytes("twin.gguf", gguf_finish(&p.g_twin, 32));
        return;
    }
    write_config("model/config.json", s);
    write_config("twin/config.json", NULL);
    write_bytes("model/model.safetensors", safetensors_finish(&p.s));
    write_bytes("twin/model.safetensors", safetensors_finish(&p.s_twin));
}

/* ---- running --------------------------------------------------------------------------------- */

static bool keep_logits(void *user, size_t first, size_t rows, const float *logits) {
    memcpy((float *)user + first * VOCAB, logits, rows * VOCAB * sizeof *logits);
    return true;
}

static void need(kvasir_status status, const kvasir_error *err) {
    if (status != KVASIR_OK)
        fail_msg("%s", err->text);
}

static void run(const char *path, const char *tier, float logits[TOKENS * VOCAB]) {
    kvasir_error err;
    kvasir_model *model;
    kvasir_context *ctx;
    kvasir_seq *seq;
    int32_t tokens[TOKENS];
    kvasir_context_options o = kvasir_context_defaults();
    o.kv_bits = "f32";
    o.act_bits = 16;
    o.cpu_tier = tier;
    o.cache_bytes = 16 << 20;
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = i * 37 % VOCAB;
    need(kvasir_model_open(path, &model, &err), &err);
    need(kvasir_context_create(model, &o, &ctx, &err), &err);
    need(kvasir_seq_create(ctx, &seq, &err), &err);
    kvasir_eval_options eval = {
        .struct_size = sizeof(kvasir_eval_options), .on_logits = keep_logits, .user = logits};
    need(kvasir_seq_eval(seq, tokens, TOKENS, &eval, &err), &err);
    kvasir_seq_destroy(seq);
    kvasir_context_destroy(ctx);
    kvasir_model_close(model);
}

static void check(const struct subject *s, const char *words) {
    static float ours[TOKENS * VOCAB], twins[TOKENS * VOCAB];
    char model[192], twin[192];
    write_pair(s, model, twin);
    printf("%-10s %-18s", weight_traits_of(s->type)->name, words);
    for (size_t t = 0; t < sizeof TIERS / sizeof *TIERS; t++) {
        double largest = 0, worst = 0;
        run(model, TIERS[t], ours);
        run(twin, TIERS[t], twins);
        for (int i = 0; i < TOKENS * VOCAB; i++) {
            worst = fmax(worst, fabs((double)ours[i] - (double)twins[i]));
            largest = fmax(largest, fabs((double)twins[i]));
        }
        printf("  %s %.1e", TIERS[t], worst / largest);
        worst_of_all = fmax(worst_of_all, worst / largest);
        assert_true(isfinite(largest) && largest > 0.1);
        assert_true(worst <= BOUND * largest);
    }
    printf("\n");
}

/* ---- the types ------------------------------------------------------------------------------- */

static void test_gguf_types(void **state) {
    (void)state;
    const struct weight_traits *t;
    for (uint32_t i = 0; (t = weight_traits_at(i)) != NULL; i++)
        if ((uint32_t)t->type < WEIGHT_GGUF_END)
            check(&(struct subject){.type = t->type}, "");
}

static void test_affine(void **state) {
    (void)state;
    static const enum scalar_type scalars[] = {SCALAR_F16, SCALAR_BF16, SCALAR_F32};
    const struct weight_traits *t;
    for (uint32_t i = 0; (t = weight_traits_at(i)) != NULL; i++)
        for (uint32_t g = 0; is_affine(t->type) && g < 9; g++) {
            struct subject s = {.type = t->type, .group = 32u << g / 3, .scalar = scalars[g % 3]};
            char words[32];
            snprintf(words, sizeof words, "g%u %s", s.group, scalar_dtype(s.scalar));
            check(&s, words);
        }
}

static void test_mxfp4_mlx(void **state) {
    (void)state;
    check(&(struct subject){.type = WEIGHT_MXFP4_MLX}, "");
}

static void test_f8(void **state) {
    (void)state;
    static const struct {
        struct subject subject;
        const char *words;
    } cases[] = {
        {{WEIGHT_F8_E4M3, SCALAR_F32, 0, 0, false}, "no scale"},
        {{WEIGHT_F8_E4M3, SCALAR_F32, 0, ROWS_ALL, true}, "one scale, F32"},
        {{WEIGHT_F8_E4M3, SCALAR_BF16, 0, ROWS_ALL, true}, "one scale, BF16"},
        {{WEIGHT_F8_E4M3, SCALAR_BF16, 0, 1, true}, "rows, BF16"},
        {{WEIGHT_F8_E4M3, SCALAR_F16, 0, 1, true}, "rows, F16"},
        {{WEIGHT_F8_E4M3, SCALAR_F32, 128, 128, true}, "blocks of 128x128"},
        {{WEIGHT_F8_E4M3, SCALAR_F32, 48, 80, true}, "blocks of 80x48"}, /* some are cut */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(&cases[i].subject, cases[i].words);
}

static int report(void **state) {
    (void)state;
    printf("largest difference %.2e of the largest logit (bound %.1e)\n", worst_of_all, BOUND);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf_types),
        cmocka_unit_test(test_affine),
        cmocka_unit_test(test_mxfp4_mlx),
        cmocka_unit_test(test_f8),
    };
    const char *seed = getenv("KVASIR_SEED");
    rng_state = seed ? strtoull(seed, NULL, 10) : 20261121;
    printf("KVASIR_SEED=%llu\n", (unsigned long long)rng_state);
    temp_folder_make(&folder);
    if (mkdir(temp_file(&folder, "model"), 0700) != 0 ||
        mkdir(temp_file(&folder, "twin"), 0700) != 0)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, report);
    temp_folder_remove(&folder);
    return failed;
}
