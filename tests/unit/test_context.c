/* SPDX-License-Identifier: Apache-2.0 */
/* What a context derives from a model and its options: fingerprints, and the step size for a model
 * of odd proportions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include "engine/engine.h"
#include "model_files.h"
#include "tensors.h"

#include <cmocka.h>

static struct temp_folder folder;
static kvasir_error err;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

/* ---- models ---------------------------------------------------------------------------------- */

static uint64_t folder_id(const struct text_buf *tensors, const char *config) {
    kvasir_model *m;
    temp_write(&folder, "config.json", config, strlen(config));
    temp_write(&folder, "model.safetensors", tensors->data, tensors->len);
    need(kvasir_model_open(folder.path, &m, &err));
    uint64_t id = m->id;
    kvasir_model_close(m);
    return id;
}

/* Training may change only the scales or only the biases: that is a different model too. */
static void every_tensor_counts(const char *config, bool f8) {
    struct text_buf b = tiny_folder_tensors(f8);
    uint64_t header, first = folder_id(&b, config);
    memcpy(&header, b.data, sizeof header);
    const char *text = b.data + sizeof header;
    unsigned tensors = 0;
    for (const char *at = text; (at = strstr(at, "\"data_offsets\":[")) != NULL; tensors++) {
        char *start = b.data + sizeof header + header + strtoull(at + 16, (char **)&at, 10);
        char *end = b.data + sizeof header + header + strtoull(at + 1, NULL, 10);
        char *const places[] = {start, start + (end - start) / 2, end - 1};
        for (int i = 0; i < 3; i++) {
            *places[i] ^= 1;
            if (folder_id(&b, config) == first)
                fail_msg("tensor %u changed, and the model's fingerprint did not", tensors);
            *places[i] ^= 1;
        }
    }
    assert_int_equal(tensors,
                     f8 ? 3 + 2 * (2 + 7 * 2) : 4 + 2 * (2 + 7 * 3) - 1); /* mxfp4: no biases */
    assert_int_equal(folder_id(&b, config), first);
    text_free(&b);
}

static void test_model_fingerprint(void **state) {
    (void)state;
    every_tensor_counts(TINY_MLX_CONFIG, false);
    every_tensor_counts(TINY_F8_CONFIG, true);
}

/* One layer of one head of 64 dims, Q4_0, with an FFN of ffn_dim. */
static kvasir_model *open_wide(uint32_t ffn_dim) {
    const struct {
        const char *key;
        uint32_t value;
    } sizes[] = {{"llama.block_count", 1},
                 {"llama.embedding_length", 64},
                 {"llama.feed_forward_length", ffn_dim},
                 {"llama.context_length", 512},
                 {"llama.attention.head_count", 1},
                 {"llama.vocab_size", 32}};
    struct gguf_writer w = {0};
    gguf_string(&w, "general.architecture", "llama");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        gguf_u32(&w, sizes[i].key, sizes[i].value);
    gguf_f32(&w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_matrix(&w, "token_embd.weight", WEIGHT_Q4_0, 32, 64);
    gguf_vector(&w, "output_norm.weight", 64);
    gguf_vector(&w, "blk.0.attn_norm.weight", 64);
    gguf_vector(&w, "blk.0.ffn_norm.weight", 64);
    for (const char *const *name = (const char *const[]){"q", "k", "v", "output", NULL}; *name;
         name++) {
        char text[64];
        snprintf(text, sizeof text, "blk.0.attn_%s.weight", *name);
        gguf_matrix(&w, text, WEIGHT_Q4_0, 64, 64);
    }
    gguf_matrix(&w, "blk.0.ffn_gate.weight", WEIGHT_Q4_0, ffn_dim, 64);
    gguf_matrix(&w, "blk.0.ffn_up.weight", WEIGHT_Q4_0, ffn_dim, 64);
    gguf_matrix(&w, "blk.0.ffn_down.weight", WEIGHT_Q4_0, 64, ffn_dim);
    struct text_buf file = gguf_finish(&w, 32);
    kvasir_model *m;
    need(kvasir_model_open(temp_write(&folder, "wide.gguf", file.data, file.len), &m, &err));
    text_free(&file);
    return m;
}

/* ---- contexts -------------------------------------------------------------------------------- */

static kvasir_context *context_of(const kvasir_model *m, kvasir_context_options o) {
    kvasir_context *ctx;
    o.threads = 1;
    need(kvasir_context_create(m, &o, &ctx, &err));
    return ctx;
}

static uint64_t fingerprint_of(const kvasir_model *m, kvasir_context_options o) {
    kvasir_context *ctx = context_of(m, o);
    uint64_t value = ctx->fingerprint;
    kvasir_context_destroy(ctx);
    return value;
}

static uint64_t fingerprint(const kvasir_model *m, const char *bits, uint32_t start) {
    kvasir_context_options o = kvasir_context_defaults();
    o.kv_bits = bits;
    o.quantized_kv_start = start;
    return fingerprint_of(m, o);
}

static void test_exact_start(void **state) {
    (void)state;
    kvasir_model *m = open_wide(64);
    uint64_t none = fingerprint(m, "8", 0), page = fingerprint(m, "8", 64);
    assert_true(none != page);
    assert_true(page == fingerprint(m, "8", 1)); /* whole pages are exact */
    assert_true(page != fingerprint(m, "8", 65));
    assert_true(fingerprint(m, "f16", 0) == fingerprint(m, "f16", 64));
    kvasir_model_close(m);
}

/* What no option says: 64 tokens if keys are tiles or may become ones. */
static void test_start_by_format(void **state) {
    (void)state;
    static const struct {
        const char *bits, *floor;
        uint32_t asked, start;
    } CASES[] = {
        {"8,4", NULL, KVASIR_START_BY_FORMAT, 0},
        {"f16", NULL, KVASIR_START_BY_FORMAT, 0},
        {"r8,4", NULL, KVASIR_START_BY_FORMAT, 0},
        {"t4", NULL, KVASIR_START_BY_FORMAT, 64},
        {"t5,4", NULL, KVASIR_START_BY_FORMAT, 64},
        {"t2", NULL, KVASIR_START_BY_FORMAT, 64},
        {"auto", NULL, KVASIR_START_BY_FORMAT, 64},
        {"auto", "t4", KVASIR_START_BY_FORMAT, 64},
        {"auto", "r8,4", KVASIR_START_BY_FORMAT, 0},
        {"t4", NULL, 0, 0},
        {"t4", NULL, 65, 128},
        {"auto", NULL, 0, 0},
        {"8,4", NULL, 1, 64},
    };
    kvasir_model *m = open_wide(64);
    assert_int_equal(kvasir_context_defaults().quantized_kv_start, KVASIR_START_BY_FORMAT);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        kvasir_context_options o = kvasir_context_defaults();
        kvasir_context_info info;
        uint64_t told = 0;
        o.kv_bits = CASES[i].bits;
        o.kv_floor = CASES[i].floor;
        o.quantized_kv_start = CASES[i].asked;
        kvasir_context *ctx = context_of(m, o);
        kvasir_context_get_info(ctx, &info);
        for (uint32_t f = 0; f < info.n_facts; f++) {
            assert_int_not_equal(info.facts[f].kind, KVASIR_FACT_START_UNUSED);
            if (info.facts[f].kind == KVASIR_FACT_START_EXACT)
                told = info.facts[f].n[0];
        }
        assert_int_equal(told, CASES[i].start);
        assert_int_equal(kv_cache_start_pages(ctx->cache) * TILE_TOKENS, CASES[i].start);
        kvasir_context_destroy(ctx);
    }
    kvasir_model_close(m);
}

static uint64_t rotating(const kvasir_model *m, uint32_t max_size, uint32_t keep) {
    kvasir_context_options o = kvasir_context_defaults();
    o.max_kv_size = max_size;
    o.kv_keep = keep;
    return fingerprint_of(m, o);
}

/* Each token that a query sees counts: the content of all but the first pages depends on it. */
static void test_rotation(void **state) {
    (void)state;
    kvasir_model *m = open_wide(64);
    const uint64_t all = rotating(m, 0, 4), some = rotating(m, 128, 4);
    assert_true(some != all);
    assert_true(some == rotating(m, 128, 4));
    assert_true(some != rotating(m, 129, 4));
    assert_true(some != rotating(m, 192, 4));
    assert_true(some != rotating(m, 128, 0));
    assert_true(some != rotating(m, 128, 5));
    assert_true(rotating(m, 128, 0) != rotating(m, 128, 5));
    assert_true(all == rotating(m, 0, 5)); /* without rotation, --kv-keep has no effect */
    kvasir_model_close(m);
}

/* The fingerprint with a context of `ctx` tokens. */
static uint64_t of_length(const kvasir_model *m, uint32_t ctx) {
    kvasir_context_options o = kvasir_context_defaults();
    o.kv_bits = "f16";
    o.ctx = ctx;
    return fingerprint_of(m, o);
}

/* A model trained on 128 tokens, with this kind of rope scaling. */
static kvasir_model *open_scaled(const char *rope_type) {
    struct text_buf tensors = tiny_folder_tensors(false);
    char config[1024];
    kvasir_model *m;
    snprintf(config, sizeof config,
             "%.*s,\"max_position_embeddings\":128,\"rope_scaling\":{\"rope_type\":\"%s\","
             "\"factor\":4}}",
             (int)strlen(TINY_MLX_CONFIG) - 1, TINY_MLX_CONFIG, rope_type);
    temp_write(&folder, "config.json", config, strlen(config));
    temp_write(&folder, "model.safetensors", tensors.data, tensors.len);
    text_free(&tensors);
    need(kvasir_model_open(folder.path, &m, &err));
    return m;
}

/* The fingerprint depends on the context's length only where the length selects K's rotation. */
static void test_rope_variants(void **state) {
    (void)state;
    kvasir_model *m = open_wide(64);
    assert_true(of_length(m, 128) == of_length(m, 4096));
    kvasir_model_close(m);
    m = open_scaled("linear");
    assert_true(of_length(m, 128) == of_length(m, 4096));
    kvasir_model_close(m);
    /* dynamic: beyond the trained length each length has its own rotation */
    m = open_scaled("dynamic");
    assert_true(of_length(m, 64) == of_length(m, 128));
    assert_true(of_length(m, 128) != of_length(m, 256));
    assert_true(of_length(m, 256) != of_length(m, 257));
    assert_true(of_length(m, 256) == of_length(m, 256));
    kvasir_model_close(m);
    /* longrope: one rotation up to the original length, one above */
    if (!path_exists(SHARED_DIR "/fixtures/tiny/phi3_long/config.json"))
        return;
    need(kvasir_model_open(SHARED_DIR "/fixtures/tiny/phi3_long", &m, &err));
    assert_true(of_length(m, 64) == of_length(m, 128));
    assert_true(of_length(m, 128) != of_length(m, 129));
    assert_true(of_length(m, 129) == of_length(m, 1024));
    kvasir_model_close(m);
}

/* Whether a file saved under one --ctx loads under another. */
static bool loads(const kvasir_model *m, uint32_t saved_with, uint32_t ctx) {
    const int32_t tokens[20] = {0};
    kvasir_context_options o = kvasir_context_defaults();
    kvasir_prompt_cache *file;
    kvasir_seq *seq;
    char path[512];
    o.kv_bits = "f16";
    o.ctx = saved_with;
    kvasir_context *c = context_of(m, o);
    need(kvasir_seq_create(c, &seq, &err));
    need(kvasir_seq_eval(seq, tokens, 20, NULL, &err));
    snprintf(path, sizeof path, "%s/prompt.safetensors", folder.path);
    need(kvasir_seq_save(seq, path, false, &err));
    kvasir_seq_destroy(seq);
    kvasir_context_destroy(c);
    o.ctx = ctx;
    c = context_of(m, o);
    need(kvasir_prompt_cache_open(m, path, &file, &err));
    const kvasir_status status = kvasir_seq_load(c, file, false, &seq, &err);
    kvasir_prompt_cache_close(file);
    (void)remove(path);
    if (status == KVASIR_OK) {
        kvasir_seq_destroy(seq);
    } else {
        assert_int_equal(status, KVASIR_ERR_ARGUMENT);
        assert_non_null(strstr(err.text, "another RoPE"));
        assert_null(seq);
    }
    kvasir_context_destroy(c);
    return status == KVASIR_OK;
}

/* K is stored after rope: a file whose K was rotated by another variant must be refused. */
static void test_files_know_their_rope(void **state) {
    (void)state;
    kvasir_model *m = open_wide(64);
    assert_true(loads(m, 128, 4096));
    kvasir_model_close(m);
    m = open_scaled("dynamic");
    assert_true(loads(m, 64, 128));
    assert_true(loads(m, 256, 256));
    assert_false(loads(m, 128, 256));
    assert_false(loads(m, 256, 128));
    kvasir_model_close(m);
    if (!path_exists(SHARED_DIR "/fixtures/tiny/phi3_long/config.json"))
        return;
    need(kvasir_model_open(SHARED_DIR "/fixtures/tiny/phi3_long", &m, &err));
    assert_true(loads(m, 129, 1024));
    assert_false(loads(m, 128, 1024));
    kvasir_model_close(m);
}

/* A step must not need many times the file's size in memory. Two buffers of 65,536 dims in 32-bit
 * floats take 256 MiB at 512 rows, for a file of 8 MiB: the step must get fewer rows. */
static void test_wide_steps(void **state) {
    (void)state;
    kvasir_model *m = open_wide(64), *wide = open_wide(65536);
    kvasir_context_options o = kvasir_context_defaults();
    o.prefill_chunk = 512;
    kvasir_context *ctx = context_of(m, o), *narrow = context_of(wide, o);
    assert_int_equal(ctx->options.prefill_chunk, 512);
    assert_int_equal(ctx->options.n_facts, 0);
    assert_int_equal(narrow->options.prefill_chunk, 32);
    assert_int_equal(narrow->options.facts[0].kind, KVASIR_FACT_CHUNK_LOWERED);
    assert_int_equal(narrow->options.facts[0].n[0], 512);
    assert_int_equal(narrow->options.facts[0].n[1], 32);
    int32_t tokens[100] = {0};
    float logits[32];
    kvasir_eval_options last = {.struct_size = sizeof(kvasir_eval_options), .last_logits = logits};
    kvasir_seq *seq;
    need(kvasir_seq_create(narrow, &seq, &err));
    need(kvasir_seq_eval(seq, tokens, 100, &last, &err));
    kvasir_seq_destroy(seq);
    kvasir_context_destroy(ctx);
    kvasir_context_destroy(narrow);
    kvasir_model_close(m);
    kvasir_model_close(wide);
}

/* One group of layers, with a window: rotation has no effect. */
static void test_every_layer_has_a_window(void **state) {
    (void)state;
    kvasir_model *m;
    kvasir_context_info info;
    kvasir_context_options o = kvasir_context_defaults();
    if (!path_exists(SHARED_DIR "/fixtures/tiny/mistral"))
        skip();
    need(kvasir_model_open(SHARED_DIR "/fixtures/tiny/mistral", &m, &err));
    o.max_kv_size = 16;
    kvasir_context *ctx = context_of(m, o);
    kvasir_context_get_info(ctx, &info);
    assert_int_equal(info.n_groups, 1);
    assert_int_equal(info.visible, 48);
    kvasir_context_destroy(ctx);
    kvasir_model_close(m);
}

/* Figures of a model of two layer groups, whose tensors are of one type. */
static void test_figures(void **state) {
    (void)state;
    if (access(SHARED_DIR "/fixtures/tiny/gemma3/config.json", R_OK) != 0)
        skip();
    kvasir_model *m;
    kvasir_context *c;
    kvasir_model_info info;
    char types[32];
    need(kvasir_model_open(SHARED_DIR "/fixtures/tiny/gemma3", &m, &err));
    kvasir_model_get_info(m, &info);
    const struct checkpoint *file = model_checkpoint(m->model);
    snprintf(types, sizeof types, "%s %zu",
             weight_traits_of(checkpoint_tensor_at(file, 0)->type)->name,
             checkpoint_tensor_count(file));
    assert_string_equal(info.weight_types, types);
    kvasir_context_options o = kvasir_context_defaults();
    o.kv_bits = "f16";
    need(kvasir_context_create(m, &o, &c, &err));
    uint64_t bytes = 0;
    assert_int_equal(c->options.n_groups, 2);
    for (uint32_t g = 0; g < 2; g++) {
        const struct kv_shape *s = &c->options.shapes[g];
        bytes += (uint64_t)10 * s->layers * s->kv_heads * s->head_dim * 2 * sizeof(uint16_t);
    }
    assert_int_equal(kv_cache_bytes_16bit(c->cache, 10), bytes);
    kvasir_context_destroy(c);
    kvasir_model_close(m);
}

/* What a context computes on: bad names, several devices, a GPU that is not there. */
static void test_devices(void **state) {
    (void)state;
    static const char *const BAD[] = {"tpu", "", "cuda:", "cuda:x", "cuda:0,1", "cuda:63", "CPU"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        kvasir_context_options o = kvasir_context_defaults();
        struct backend *b = NULL;
        o.device = BAD[i];
        err = (kvasir_error){0};
        assert_int_not_equal(device_create(&o, &b, &err), KVASIR_OK);
        assert_string_equal(err.field, "context.device");
        assert_null(b);
    }
    kvasir_context_options o = kvasir_context_defaults();
    struct backend *b;
    struct backend_info info;
    o.device = "cpu";
    need(device_create(&o, &b, &err));
    backend_info(b, &info);
    assert_string_equal(info.kind, "cpu");
    backend_destroy(b);
    o.device = "auto"; /* something is always found */
    need(device_create(&o, &b, &err));
    backend_destroy(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_model_fingerprint),
                                       cmocka_unit_test(test_exact_start),
                                       cmocka_unit_test(test_start_by_format),
                                       cmocka_unit_test(test_figures),
                                       cmocka_unit_test(test_rotation),
                                       cmocka_unit_test(test_rope_variants),
                                       cmocka_unit_test(test_files_know_their_rope),
                                       cmocka_unit_test(test_every_layer_has_a_window),
                                       cmocka_unit_test(test_wide_steps),
                                       cmocka_unit_test(test_devices)};
    temp_folder_make(&folder);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    temp_folder_remove(&folder);
    return failed;
}
