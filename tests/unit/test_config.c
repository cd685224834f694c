/* SPDX-License-Identifier: Apache-2.0 */
/* config.json: both spellings of every family, the defaults, and each field's refusals. A case is a
 * known good document with some fields replaced.
 */
#include "model_files.h"

static const char llama_base[] =
    "{'architectures':['LlamaForCausalLM'],'hidden_size':128,'intermediate_size':256,"
    "'num_hidden_layers':4,'num_attention_heads':4,'num_key_value_heads':2,'vocab_size':512,"
    "'rms_norm_eps':1e-5,'max_position_embeddings':4096,'hidden_act':'silu'}";

/* `text` with ' for ": JSON in C is hard to read otherwise. */
static json_t *quoted(const char *text) {
    char buf[2048];
    assert_true(strlen(text) < sizeof buf);
    size_t n = 0;
    for (; text[n]; n++)
        buf[n] = text[n] == '\'' ? '"' : text[n];
    buf[n] = 0;
    json_error_t err;
    json_t *value = json_loads(buf, JSON_ALLOW_NUL, &err);
    if (!value)
        fail_msg("%s: %s", err.text, buf);
    return value;
}

/* Parses the base document with the fields of `changes` replaced or added. */
static kvasir_status parse_all(const char *changes, struct model_config *c, struct quantization *q,
                               kvasir_error *err) {
    json_t *document = quoted(llama_base), *more = quoted(changes);
    assert_int_equal(json_object_update(document, more), 0);
    char *text = json_dumps(document, 0);
    kvasir_status status = config_parse(text, strlen(text), c, q, err);
    free(text);
    json_decref(more);
    json_decref(document);
    return status;
}

static kvasir_status parse(const char *changes, struct model_config *c, kvasir_error *err) {
    struct quantization q;
    kvasir_status status = parse_all(changes, c, &q, err);
    quantization_deinit(&q);
    return status;
}

static struct model_config accepted(const char *changes) {
    struct model_config c;
    kvasir_error err = {0};
    if (parse(changes, &c, &err) != KVASIR_OK)
        fail_msg("%s: %s", changes, err.text);
    return c;
}

static void test_sizes(void **state) {
    (void)state;
    struct model_config c = accepted("{}");
    assert_string_equal(c.arch, "llama");
    assert_int_equal(c.n_layers, 4);
    assert_int_equal(c.dim, 128);
    assert_int_equal(c.ffn_dim, 256);
    assert_int_equal(c.heads, 4);
    assert_int_equal(c.kv_heads, 2);
    assert_int_equal(c.head_dim, 32);
    assert_int_equal(c.vocab, 512);
    assert_int_equal(c.ctx_train, 4096);
    assert_int_equal(c.window, 0);
    assert_false(c.tied_embedding);
    assert_int_equal(c.ropes[0].kind, ROPE_PLAIN);
    assert_int_equal(c.ropes[0].dims, 32);
    assert_int_equal((int)c.ropes[0].theta, 10000);
    assert_false(c.ropes[0].adjacent);

    assert_int_equal(accepted("{'head_dim':64}").head_dim, 64);
    assert_int_equal(accepted("{'head_dim':64}").ropes[0].dims, 64);
    assert_int_equal(accepted("{'head_dim':null}").head_dim, 32);
    assert_int_equal(accepted("{'num_key_value_heads':null}").kv_heads, 4);
    assert_int_equal(accepted("{'max_position_embeddings':null}").ctx_train, 0);
    assert_true(accepted("{'tie_word_embeddings':true}").tied_embedding);
    assert_int_equal(accepted("{'architectures':['Qwen3ForCausalLM']}").head_dim, 128);
    assert_string_equal(accepted("{'architectures':['Qwen3ForCausalLM']}").arch, "qwen3");
    assert_string_equal(accepted("{'architectures':['Qwen2ForCausalLM']}").arch, "qwen2");
    assert_string_equal(accepted("{'architectures':['MistralForCausalLM']}").arch, "mistral");
    /* Fields that other tools write, and attention_bias in a family that has biases anyway. */
    accepted("{'torch_dtype':'bfloat16','use_cache':true,'pretraining_tp':1,'x':[[[{}]]]}");
    accepted("{'architectures':['Qwen2ForCausalLM'],'attention_bias':true}");
}

static void test_rope(void **state) {
    (void)state;
    assert_int_equal((int)accepted("{'rope_theta':500000}").ropes[0].theta, 500000);
    assert_int_equal((int)accepted("{'rope_theta':5e5,'rope_scaling':null}").ropes[0].theta,
                     500000);
    assert_int_equal((int)accepted("{'rope_parameters':{'rope_theta':7e4}}").ropes[0].theta, 70000);
    assert_int_equal(accepted("{'rope_scaling':{'type':'default'}}").ropes[0].kind, ROPE_PLAIN);
    static const char *const spellings[] = {
        "{'rope_parameters':{'rope_type':'llama3','rope_theta':500000.0,'factor':8.0,"
        "'low_freq_factor':1.0,'high_freq_factor':4.0,'original_max_position_embeddings':128}}",
        "{'rope_theta':500000.0,'rope_scaling':{'rope_type':'llama3','factor':8.0,"
        "'low_freq_factor':1.0,'high_freq_factor':4.0,'original_max_position_embeddings':128}}",
        "{'rope_theta':500000.0,'rope_scaling':{'type':'llama3','factor':8,"
        "'low_freq_factor':1,'high_freq_factor':4,'original_max_position_embeddings':128}}",
    };
    for (size_t i = 0; i < 3; i++) {
        struct rope_config r = accepted(spellings[i]).ropes[0];
        assert_int_equal(r.kind, ROPE_LLAMA3);
        assert_int_equal((int)r.theta, 500000);
        assert_int_equal((int)r.factor, 8);
        assert_int_equal((int)r.low_freq_factor, 1);
        assert_int_equal((int)r.high_freq_factor, 4);
        assert_int_equal(r.original_ctx, 128);
    }
}

static void test_window(void **state) {
    (void)state;
#define MISTRAL "'architectures':['MistralForCausalLM']"
#define QWEN    "'architectures':['Qwen2ForCausalLM']"
    assert_int_equal(accepted("{" MISTRAL ",'sliding_window':48}").window, 48);
    assert_int_equal(accepted("{" MISTRAL ",'sliding_window':null}").window, 0);
    assert_int_equal(accepted("{'sliding_window':48}").window, 0); /* llama has no windows */
    assert_int_equal(accepted("{" QWEN ",'sliding_window':48}").window, 0);
    assert_int_equal(accepted("{" QWEN ",'sliding_window':48,'use_sliding_window':false}").window,
                     0);
    assert_int_equal(accepted("{" QWEN ",'sliding_window':48,'use_sliding_window':true,"
                              "'max_window_layers':0}")
                         .window,
                     48);
    assert_int_equal(accepted("{" QWEN ",'sliding_window':48,'use_sliding_window':true,"
                              "'max_window_layers':4}")
                         .window,
                     0);
    assert_int_equal(accepted("{" QWEN ",'sliding_window':48,'use_sliding_window':true,"
                              "'max_window_layers':4,'layer_types':['sliding_attention',"
                              "'sliding_attention','sliding_attention','sliding_attention']}")
                         .window,
                     48);
}

static struct quantization quantized(const char *changes) {
    struct model_config c;
    struct quantization q;
    kvasir_error err = {0};
    if (parse_all(changes, &c, &q, &err) != KVASIR_OK)
        fail_msg("%s: %s", changes, err.text);
    return q;
}

static void assert_format(const struct quantization *q, const char *module, enum mlx_mode mode,
                          uint32_t bits, uint32_t group) {
    struct mlx_format f;
    kvasir_error err = {0};
    if (quantization_of_module(q, module, &f, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    assert_int_equal(f.mode, mode);
    assert_int_equal(f.bits, bits);
    assert_int_equal(f.group, group);
}

/* Fields that a module's entry omits have mlx's defaults: 4 bits, groups of 64 (mxfp4: 32). */
static void test_quantization(void **state) {
    (void)state;
    static const char entries[] =
        "{'%s':{'group_size':128,'bits':6,'a':{'bits':8},'model.b':{'group_size':32},'c':false,"
        "'model.layers.0.d':{'mode':'mxfp4'},'lm_head':true,'model.e':{}},'torch_dtype':'x'}";
    static const char *const fields[] = {"quantization", "quantization_config"};
    for (size_t i = 0; i < 2; i++) {
        char changes[512];
        snprintf(changes, sizeof changes, entries, fields[i]);
        struct quantization q = quantized(changes);
        assert_int_equal(q.method, QUANTIZED_MLX);
        assert_string_equal(q.field, fields[i]);
        assert_format(&q, "z", MLX_AFFINE, 6, 128);
        assert_format(&q, "lm_head", MLX_AFFINE, 6, 128);
        assert_format(&q, "a", MLX_AFFINE, 8, 64);
        assert_format(&q, "model.a", MLX_AFFINE, 8, 64);
        assert_format(&q, "b", MLX_AFFINE, 4, 32);
        assert_format(&q, "model.b", MLX_AFFINE, 4, 32);
        assert_format(&q, "layers.0.d", MLX_MXFP4, 4, 32);
        assert_format(&q, "e", MLX_AFFINE, 4, 64);
        struct mlx_format f;
        kvasir_error err = {0};
        assert_int_equal(quantization_of_module(&q, "model.c", &f, &err), KVASIR_ERR_FORMAT);
        assert_non_null(strstr(err.text, "tensor model.c.weight is quantized"));
        quantization_deinit(&q);
    }
    /* mlx-lm writes both; the first is mlx's own. */
    struct quantization q = quantized("{'quantization':{'group_size':64,'bits':4},"
                                      "'quantization_config':{'group_size':32,'bits':8}}");
    assert_format(&q, "a", MLX_AFFINE, 4, 64);
    quantization_deinit(&q);
    q = quantized("{'quantization':{'mode':'mxfp4'},'quantization_config':null}");
    assert_format(&q, "a", MLX_MXFP4, 4, 32);
    quantization_deinit(&q);
    q = quantized("{'quantization':null}");
    assert_int_equal(q.method, QUANTIZED_NOT);
    quantization_deinit(&q);
    q = quantized("{'quantization_config':{'quant_method':'fp8','weight_block_size':[128,64]}}");
    assert_int_equal(q.method, QUANTIZED_F8);
    assert_int_equal(q.block_rows, 128);
    assert_int_equal(q.block_cols, 64);
    quantization_deinit(&q);
    q = quantized("{'quantization_config':{'quant_method':'compressed-tensors',"
                  "'weight_block_size':null}}");
    assert_int_equal(q.method, QUANTIZED_F8);
    assert_int_equal(q.block_rows, 0);
    quantization_deinit(&q);
}

/* Every refusal names its field. */
static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *changes;
        kvasir_status status;
        const char *words;
    } cases[] = {
        {"{'architectures':['GemmaForCausalLM']}", KVASIR_ERR_UNSUPPORTED,
         "field architectures: GemmaForCausalLM is not supported"},
        {"{'architectures':null}", KVASIR_ERR_FORMAT, "field architectures must be an array"},
        {"{'architectures':[]}", KVASIR_ERR_FORMAT, "field architectures must be an array"},
        {"{'architectures':[7]}", KVASIR_ERR_FORMAT, "field architectures must be an array"},
        {"{'architectures':['A','B']}", KVASIR_ERR_FORMAT, "field architectures must be an array"},
        {"{'hidden_act':'gelu'}", KVASIR_ERR_UNSUPPORTED, "field hidden_act: gelu"},
        {"{'hidden_act':3}", KVASIR_ERR_FORMAT, "field hidden_act must be a string"},
        {"{'mlp_bias':true}", KVASIR_ERR_UNSUPPORTED, "field mlp_bias: true"},
        {"{'attention_bias':1}", KVASIR_ERR_FORMAT, "field attention_bias must be true or false"},
        {"{'quantization_config':{}}", KVASIR_ERR_FORMAT,
         "field quantization_config.bits is missing"},
        {"{'quantization':{'bits':4}}", KVASIR_ERR_FORMAT,
         "field quantization.group_size is missing"},
        {"{'quantization':7}", KVASIR_ERR_FORMAT, "field quantization must be an object"},
        {"{'quantization':{'bits':7,'group_size':64}}", KVASIR_ERR_UNSUPPORTED,
         "field quantization.bits: 7 is not supported, only 2, 3, 4, 5, 6 and 8"},
        {"{'quantization':{'bits':1,'group_size':64}}", KVASIR_ERR_UNSUPPORTED,
         "field quantization.bits: 1"},
        {"{'quantization':{'bits':-4,'group_size':64}}", KVASIR_ERR_FORMAT,
         "field quantization.bits is -4"},
        {"{'quantization_config':{'bits':4,'group_size':16}}", KVASIR_ERR_UNSUPPORTED,
         "field quantization_config.group_size: 16 is not supported, only 32, 64 and 128"},
        {"{'quantization':{'bits':4,'group_size':32,'mode':'nvfp4'}}", KVASIR_ERR_UNSUPPORTED,
         "field quantization.mode: nvfp4"},
        {"{'quantization':{'bits':8,'mode':'mxfp4'}}", KVASIR_ERR_UNSUPPORTED,
         "field quantization.bits: 8 is not supported, only 4 (mode mxfp4)"},
        {"{'quantization':{'group_size':64,'mode':'mxfp4'}}", KVASIR_ERR_UNSUPPORTED,
         "field quantization.group_size: 64 is not supported, only 32 (mode mxfp4)"},
        {"{'quantization':{'bits':4,'group_size':64,'a.b':{'bits':9}}}", KVASIR_ERR_UNSUPPORTED,
         "field quantization.a.b.bits: 9"},
        {"{'quantization':{'bits':4,'group_size':64,'a\\nb':{'bits':4}}}", KVASIR_ERR_FORMAT,
         "field quantization has a key with control characters"},
        {"{'quantization_config':{'quant_method':'awq','bits':4}}", KVASIR_ERR_UNSUPPORTED,
         "field quantization_config.quant_method: awq"},
        {"{'quantization_config':{'quant_method':3}}", KVASIR_ERR_FORMAT,
         "field quantization_config.quant_method must be a string"},
        {"{'quantization_config':{'quant_method':'fp8','weight_block_size':[128]}}",
         KVASIR_ERR_FORMAT, "field quantization_config.weight_block_size must be two integers"},
        {"{'quantization_config':{'quant_method':'fp8','weight_block_size':[128,0]}}",
         KVASIR_ERR_FORMAT, "field quantization_config.weight_block_size must be two integers"},
        {"{'quantization_config':{'quant_method':'fp8','weight_block_size':'x'}}",
         KVASIR_ERR_FORMAT, "field quantization_config.weight_block_size must be two integers"},
        {"{'hidden_size':null}", KVASIR_ERR_FORMAT, "field hidden_size is missing"},
        {"{'hidden_size':0}", KVASIR_ERR_FORMAT, "field hidden_size is 0, must be from 1"},
        {"{'hidden_size':-1}", KVASIR_ERR_FORMAT, "field hidden_size is -1"},
        {"{'hidden_size':9000000000000000000}", KVASIR_ERR_FORMAT, "field hidden_size is 9"},
        {"{'hidden_size':128.0}", KVASIR_ERR_FORMAT, "must be an integer, found a real number"},
        {"{'hidden_size':'128'}", KVASIR_ERR_FORMAT, "must be an integer, found a string"},
        {"{'hidden_size':130}", KVASIR_ERR_FORMAT, "4 heads do not divide hidden_size 130"},
        {"{'intermediate_size':[]}", KVASIR_ERR_FORMAT, "field intermediate_size"},
        {"{'num_hidden_layers':5000}", KVASIR_ERR_FORMAT, "field num_hidden_layers is 5000"},
        {"{'num_attention_heads':true}", KVASIR_ERR_FORMAT, "field num_attention_heads"},
        {"{'num_key_value_heads':0}", KVASIR_ERR_FORMAT, "field num_key_value_heads"},
        {"{" MISTRAL ",'num_key_value_heads':null}", KVASIR_ERR_FORMAT,
         "field num_key_value_heads is missing"},
        {"{'vocab_size':99999999}", KVASIR_ERR_FORMAT, "field vocab_size is 99999999"},
        {"{'rms_norm_eps':0}", KVASIR_ERR_FORMAT, "field rms_norm_eps is 0, must be above 0"},
        {"{'rms_norm_eps':null}", KVASIR_ERR_FORMAT, "field rms_norm_eps is missing"},
        {"{'tie_word_embeddings':0}", KVASIR_ERR_FORMAT, "field tie_word_embeddings"},
        {"{'rope_theta':-1}", KVASIR_ERR_FORMAT, "field rope_theta is -1"},
        {"{'rope_theta':'x'}", KVASIR_ERR_FORMAT, "field rope_theta must be a number"},
        {"{'rope_scaling':3}", KVASIR_ERR_FORMAT, "field rope_scaling must be an object"},
        {"{'rope_scaling':{'type':'linear'}}", KVASIR_ERR_FORMAT,
         "field rope_scaling.factor is missing"},
        {"{'rope_parameters':{'rope_type':'yarn'}}", KVASIR_ERR_FORMAT,
         "field rope_parameters.factor is missing"},
        {"{'rope_parameters':{'rope_type':'warp'}}", KVASIR_ERR_UNSUPPORTED,
         "field rope_parameters.rope_type: warp is not supported"},
        {"{'rope_parameters':{'rope_type':'longrope','short_factor':[1]}}", KVASIR_ERR_FORMAT,
         "field rope_parameters.short_factor must be an array of"},
        {"{'rope_parameters':{'rope_type':'llama3','factor':8}}", KVASIR_ERR_FORMAT,
         "field rope_parameters.low_freq_factor is missing"},
        {"{'rope_parameters':{'rope_type':'llama3','factor':8,'low_freq_factor':4,"
         "'high_freq_factor':4}}",
         KVASIR_ERR_FORMAT, "field rope_parameters.high_freq_factor is 4"},
        {"{'rope_parameters':{'partial_rotary_factor':1.5}}", KVASIR_ERR_FORMAT,
         "field rope_parameters.partial_rotary_factor"},
        {"{'rope_parameters':{'full_attention':{'rope_theta':1e4}}}", KVASIR_ERR_UNSUPPORTED,
         "field rope_parameters.full_attention"},
        {"{'layer_types':['full_attention']}", KVASIR_ERR_FORMAT, "field layer_types"},
        {"{'layer_types':['full_attention',1,'full_attention','full_attention']}",
         KVASIR_ERR_FORMAT, "field layer_types[1]"},
        {"{'layer_types':['linear_attention','a','b','c']}", KVASIR_ERR_UNSUPPORTED,
         "field layer_types[0]: linear_attention"},
        {"{'layer_types':['sliding_attention','full_attention','full_attention',"
         "'full_attention']}",
         KVASIR_ERR_FORMAT, "layer 0 has a sliding window, but sliding_window is missing"},
        {"{" MISTRAL ",'sliding_window':0}", KVASIR_ERR_FORMAT, "field sliding_window is 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_config c;
        kvasir_error err = {0};
        kvasir_status status = parse(cases[i].changes, &c, &err);
        if (status != cases[i].status || err.code != status || !strstr(err.text, cases[i].words))
            fail_msg("%s: status %d: %s", cases[i].changes, status, err.text);
    }
}

static void refused_text(const char *text, size_t len, int64_t offset, const char *words) {
    struct model_config c;
    struct quantization q;
    kvasir_error err = {0};
    assert_int_equal(config_parse(text, len, &c, &q, &err), KVASIR_ERR_FORMAT);
    quantization_deinit(&q);
    if (!strstr(err.text, words) || (offset >= 0 && err.offset != offset))
        fail_msg("at %lld: %s", (long long)err.offset, err.text);
}

static void test_not_json(void **state) {
    (void)state;
    refused_text("", 0, -1, "JSON does not parse");
    refused_text("{", 1, -1, "JSON does not parse");
    refused_text("[]", 2, -1, "must be an object, found an array");
    refused_text("{} x", 4, -1, "JSON does not parse");
    refused_text("{\"a\":1,\"a\":2}", 13, -1, "duplicate");
    refused_text("{\"a\":\"\xff\"}", 9, -1, "JSON does not parse");
    refused_text("{\"hidden_size\":1e999}", 21, -1, "JSON does not parse");
    refused_text("{\"a\":\"\\u0000\"}", 14, -1, "JSON does not parse");
    /* A million nested brackets must not reach the parser; brackets in strings do not nest. */
    enum { DEEP = 1000000 };
    char *text = malloc(DEEP);
    assert_non_null(text);
    memset(text, '[', DEEP);
    refused_text(text, DEEP, 32, "nested deeper than 32 levels");
    memset(text, '{', DEEP); /* nor a third of a million small objects: 300 bytes each in memory */
    for (size_t i = 0; i + 3 <= DEEP; i += 3)
        memcpy(text + i, i ? "{}," : "[[,", 3);
    refused_text(text, DEEP, 0, "more than 32 times its size in memory");
    memset(text, '[', DEEP);
    memcpy(text, "{\"\\\"", 4);
    memcpy(text + DEEP - 4, "\":1}", 4);
    refused_text(text, DEEP, -1, "field architectures must be an array");
    free(text);
}

/* The configurations that transformers wrote for the fixtures. */
static void test_fixtures(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint32_t head_dim, window;
        enum rope_kind rope;
        bool tied;
    } models[] = {{"llama", 64, 0, ROPE_LLAMA3, true},
                  {"mistral", 64, 48, ROPE_PLAIN, false},
                  {"qwen2", 32, 0, ROPE_PLAIN, true},
                  {"qwen3", 64, 0, ROPE_PLAIN, true}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[256];
        snprintf(path, sizeof path, SHARED_DIR "/fixtures/tiny/%s/config.json", models[i].name);
        char *text;
        size_t len;
        struct model_config c;
        struct quantization q;
        kvasir_error err = {0};
        if (file_read_all(path, 1 << 20, &text, &len, &err) != KVASIR_OK ||
            config_parse(text, len, &c, &q, &err) != KVASIR_OK)
            fail_msg("%s: %s", path, err.text);
        mem_free(text);
        quantization_deinit(&q);
        assert_string_equal(c.arch, models[i].name);
        assert_int_equal(c.head_dim, models[i].head_dim);
        assert_int_equal(c.window, models[i].window);
        assert_int_equal(c.ropes[0].kind, models[i].rope);
        assert_int_equal(c.tied_embedding, models[i].tied);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),   cmocka_unit_test(test_rope),
        cmocka_unit_test(test_window),  cmocka_unit_test(test_quantization),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_not_json),
    };
    const struct CMUnitTest fixtures[] = {cmocka_unit_test(test_fixtures)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (access(SHARED_DIR "/fixtures/tiny/llama/config.json", R_OK) != 0) {
        printf("not there: " SHARED_DIR "/fixtures/tiny\n");
        return failed ? failed : 77;
    }
    return failed + cmocka_run_group_tests(fixtures, NULL, NULL);
}
