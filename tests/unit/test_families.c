/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of every family: what is read from it, and that each field is refused by its name if
 * it has the wrong type, is out of range, or contradicts another field. The base documents are the
 * fuzzer's seeds (tests/fuzz/corpus/config), which transformers wrote for the tiny models.
 *
 * After that: tensors that do not fit their configuration, with the fixtures of ../shared.
 */
#include "model_files.h"

#include "forms.h"

static struct temp_folder folder;

/* ---- documents ------------------------------------------------------------------------------- */

static json_t *base(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/tests/fuzz/corpus/config/%s", SOURCE_DIR, name);
    json_t *document = json_load_file(path, 0, NULL);
    if (!document)
        fail_msg("%s does not parse", path);
    return document;
}

/* JSON with ' for ". */
static json_t *quoted(const char *text) {
    char buf[1024];
    size_t n = 0;
    assert_true(strlen(text) < sizeof buf);
    for (; text[n]; n++)
        buf[n] = text[n] == '\'' ? '"' : text[n];
    buf[n] = 0;
    json_t *value = json_loads(buf, JSON_DECODE_ANY, NULL);
    if (!value)
        fail_msg("does not parse: %s", buf);
    return value;
}

static kvasir_status parse(const json_t *document, struct model_config *c, kvasir_error *err) {
    struct quantization q;
    char *text = json_dumps(document, 0);
    *err = (kvasir_error){0};
    kvasir_status status = config_parse(text, strlen(text), c, &q, err);
    quantization_deinit(&q);
    free(text);
    return status;
}

/* Parses a base document with the fields of `patch` replaced, in text_config if it has one. */
static kvasir_status parse_patched(const char *name, const char *patch, struct model_config *c,
                                   kvasir_error *err) {
    json_t *document = base(name), *fields = quoted(patch);
    json_t *text = json_object_get(document, "text_config");
    assert_int_equal(json_object_update(text ? text : document, fields), 0);
    kvasir_status status = parse(document, c, err);
    json_decref(fields);
    json_decref(document);
    return status;
}

static struct model_config accepted(const char *name, const char *patch) {
    struct model_config c;
    kvasir_error err;
    if (parse_patched(name, patch, &c, &err) != KVASIR_OK)
        fail_msg("%s %s: %s", name, patch, err.text);
    return c;
}

/* ---- each field ------------------------------------------------------------------------------ */

/* For each kind of field, values that must be refused. */
static const struct {
    char kind;
    const char *values[9];
} WRONG[] = {
    {'u', {"'x'", "[]", "{}", "1.5", "true", "0", "-1", "9000000000000"}}, /* a count */
    {'z', {"'x'", "[]", "{}", "1.5", "true", "-1", "9000000000000"}},      /* may be 0 */
    {'d', {"'x'", "[]", "{}", "true", "0", "-1", "1e300", "1e-300"}},      /* a number above 0 */
    {'b', {"'x'", "[]", "{}", "1", "0.5"}},
    {'s', {"1", "[]", "{}", "true", "'no such thing'"}},
    {'o', {"1", "[]", "'x'", "true"}},
    {'l', {"1", "{}", "'x'", "true"}},
};

#define SIZES                                                                                      \
    "u:num_hidden_layers u:hidden_size u:vocab_size u:max_position_embeddings "                    \
    "u:num_attention_heads u:num_key_value_heads u:head_dim b:tie_word_embeddings d:rope_theta "   \
    "o:rope_parameters o:quantization o:quantization_config "
#define USUAL   SIZES "u:intermediate_size d:rms_norm_eps "
#define TYPES   "l:layer_types "
#define ROPE    "d:rope_parameters.rope_theta d:rope_parameters.partial_rotary_factor "
#define EXPERTS "u:num_experts_per_tok u:moe_intermediate_size b:norm_topk_prob "
#define BY_KIND                                                                                    \
    "o:rope_parameters.full_attention o:rope_parameters.sliding_attention "                        \
    "s:rope_parameters.full_attention.rope_type d:rope_parameters.sliding_attention.rope_theta "
#define DELTA                                                                                      \
    "u:linear_num_key_heads u:linear_num_value_heads u:linear_key_head_dim "                       \
    "u:linear_value_head_dim u:linear_conv_kernel_dim "
#define GEMMA4                                                                                     \
    "s:hidden_activation b:attention_bias d:final_logit_softcapping "                              \
    "z:hidden_size_per_layer_input "                                                               \
    "u:vocab_size_per_layer_input b:attention_k_eq_v b:enable_moe_block b:use_double_wide_mlp "    \
    "z:num_kv_shared_layers u:sliding_window s:use_bidirectional_attention o:per_layer_config "

static const struct {
    const char *base, *fields;
} FIELDS[] = {
    {"llama", USUAL ROPE
     "d:partial_rotary_factor s:hidden_act b:attention_bias b:mlp_bias s:rope_parameters.rope_type "
     "d:rope_parameters.factor d:rope_parameters.low_freq_factor "
     "d:rope_parameters.high_freq_factor l:architectures "
     "u:rope_parameters.original_max_position_embeddings"},
    {"dynamic", USUAL ROPE "d:rope_parameters.factor"},
    {"mistral", USUAL ROPE "s:hidden_act u:sliding_window"},
    {"qwen2", USUAL ROPE TYPES "b:use_sliding_window u:sliding_window"},
    {"qwen3", USUAL ROPE TYPES "b:use_sliding_window u:sliding_window b:attention_bias"},
    {"qwen3_yarn",
     USUAL ROPE "d:rope_parameters.factor d:rope_parameters.beta_fast d:rope_parameters.beta_slow "
                "d:rope_parameters.attention_factor d:rope_parameters.mscale "
                "d:rope_parameters.mscale_all_dim b:rope_parameters.truncate "
                "u:rope_parameters.original_max_position_embeddings"},
    {"qwen3_moe", USUAL ROPE EXPERTS "s:hidden_act u:num_local_experts u:num_experts "
                                     "u:decoder_sparse_step l:mlp_only_layers"},
    {"smollm3", USUAL ROPE TYPES "u:no_rope_layer_interval l:no_rope_layers"},
    {"granite", USUAL ROPE "d:embedding_multiplier d:residual_multiplier d:attention_multiplier "
                           "d:logits_scaling b:attention_bias"},
    {"phi3_long", USUAL ROPE "d:rope_parameters.attention_factor d:rope_parameters.factor "
                             "l:rope_parameters.short_factor l:rope_parameters.long_factor "
                             "u:original_max_position_embeddings"},
    {"olmo3", USUAL TYPES BY_KIND "s:hidden_act u:sliding_window b:attention_bias"},
    {"olmoe", USUAL ROPE EXPERTS "s:hidden_act b:attention_bias u:num_experts d:clip_qkv"},
    {"gemma2", USUAL ROPE TYPES "s:hidden_activation d:query_pre_attn_scalar u:sliding_window "
                                "d:attn_logit_softcapping d:final_logit_softcapping "
                                "b:use_bidirectional_attention"},
    {"gemma3", USUAL TYPES BY_KIND "d:query_pre_attn_scalar u:sliding_window_pattern "
                                   "d:rope_local_base_freq b:use_bidirectional_attention"},
    {"gemma4", USUAL TYPES BY_KIND GEMMA4},
    {"gemma4_full", USUAL TYPES BY_KIND GEMMA4 "u:num_experts u:top_k_experts "
                                               "u:moe_intermediate_size "
                                               "u:per_layer_config.1.head_dim "
                                               "u:per_layer_config.3.num_key_value_heads "
                                               "o:per_layer_config.3"},
    {"gemma4_shared", USUAL TYPES BY_KIND GEMMA4},
    {"gpt_oss", USUAL ROPE TYPES "s:hidden_act u:num_local_experts u:num_experts_per_tok "
                                 "d:swiglu_limit u:sliding_window"},
    {"qwen3_next", USUAL ROPE TYPES EXPERTS DELTA "s:hidden_act b:attention_bias u:num_experts "
                                                  "u:full_attention_interval "
                                                  "z:shared_expert_intermediate_size"},
    {"qwen3_5", USUAL ROPE TYPES DELTA "s:hidden_act u:full_attention_interval"},
    {"qwen3_5_moe", USUAL ROPE TYPES EXPERTS DELTA "z:shared_expert_intermediate_size"},
    {"lfm2", SIZES "u:intermediate_size d:norm_eps " ROPE TYPES
                   "u:conv_L_cache b:conv_bias b:tie_embedding b:block_auto_adjust_ff_dim "
                   "d:block_ffn_dim_multiplier u:block_multiple_of u:block_ff_dim"},
    {"lfm2_old", "l:full_attn_idxs u:block_ff_dim"},
    {"gemma3_wrapped", "u:text_config.hidden_size u:text_config.num_attention_heads "
                       "u:text_config.vocab_size d:text_config.rms_norm_eps o:text_config "
                       "d:text_config.rope_scaling.factor b:tie_word_embeddings"},
    {"qwen3_5_moe_wrapped", "u:text_config.num_local_experts u:text_config.linear_key_head_dim "
                            "o:text_config o:text_config.rope_parameters"},
};

static void set_field(json_t *document, const char *path, json_t *value) {
    char part[64];
    const char *dot;
    while ((dot = strchr(path, '.')) != NULL) {
        snprintf(part, sizeof part, "%.*s", (int)(dot - path), path);
        document = json_object_get(document, part);
        assert_non_null(document);
        path = dot + 1;
    }
    json_object_set(document, path, value);
}

static void refuse_field(const char *name, const char *path, const char *value) {
    struct model_config c;
    kvasir_error err;
    json_t *document = base(name), *wrong = quoted(value);
    const char *last = strrchr(path, '.') ? strrchr(path, '.') + 1 : path;
    set_field(document, path, wrong);
    kvasir_status status = parse(document, &c, &err);
    if (status == KVASIR_OK)
        fail_msg("%s: %s: %s is accepted", name, path, value);
    if ((status != KVASIR_ERR_FORMAT && status != KVASIR_ERR_UNSUPPORTED) ||
        !strstr(err.text, last) || err.code != status)
        fail_msg("%s: %s: %s: %d: %s", name, path, value, status, err.text);
    json_decref(wrong);
    json_decref(document);
}

static void test_fields(void **state) {
    (void)state;
    size_t n = 0;
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
        accepted(FIELDS[i].base, "{}");
        char fields[2048], *rest = fields;
        assert_true(strlen(FIELDS[i].fields) < sizeof fields);
        strcpy(fields, FIELDS[i].fields);
        for (char *one; (one = strtok_r(rest, " ", &rest)) != NULL;)
            for (size_t w = 0; w < sizeof WRONG / sizeof *WRONG; w++)
                for (size_t v = 0; WRONG[w].kind == one[0] && WRONG[w].values[v]; v++, n++)
                    refuse_field(FIELDS[i].base, one + 2, WRONG[w].values[v]);
    }
    printf("%zu wrong fields refused\n", n);
}

/* ---- what is read ---------------------------------------------------------------------------- */

static void test_wrapped(void **state) {
    (void)state;
    struct model_config c = accepted("gemma3_wrapped", "{}");
    assert_string_equal(c.arch, "gemma3");
    assert_int_equal(c.n_layers, 34);
    assert_int_equal(c.dim, 2560);
    assert_int_equal(c.heads, 8);
    assert_int_equal(c.kv_heads, 4);
    assert_int_equal(c.head_dim, 256);
    assert_int_equal(c.vocab, 262208);
    assert_int_equal(c.ctx_train, 131072);
    assert_true(c.tied_embedding);
    assert_int_equal(c.layers[4].window, 1024);
    assert_int_equal(c.layers[5].window, 0);
    assert_int_equal(c.layers[5].rope, 0);
    assert_int_equal(c.ropes[0].kind, ROPE_LINEAR);
    assert_int_equal((int)c.ropes[0].factor, 8);
    assert_int_equal((int)c.ropes[0].theta, 1000000);
    assert_int_equal(c.layers[4].rope, 1);
    assert_int_equal(c.ropes[1].kind, ROPE_PLAIN);
    assert_int_equal((int)c.ropes[1].theta, 10000);
    c = accepted("gemma3_wrapped", "{'vocab_size':1000,'num_attention_heads':16}");
    assert_int_equal(c.vocab, 1000);
    assert_int_equal(c.heads, 16);
    c = accepted("qwen3_5_moe_wrapped", "{}");
    assert_int_equal(c.moe.n, 4);
    assert_int_equal(c.ropes[0].dims, 16);
    assert_true(c.moe.normalize);
    assert_true(accepted("qwen3_5_moe", "{'norm_topk_prob':false}").moe.normalize);
    assert_false(accepted("qwen3_next", "{'norm_topk_prob':false}").moe.normalize);
    assert_int_equal(accepted("qwen3_next", "{'shared_expert_intermediate_size':0}").moe.shared_dim,
                     0);
    assert_int_equal(accepted("qwen3_moe", "{'shared_expert_intermediate_size':32}").moe.shared_dim,
                     0);
}

static void test_layers(void **state) {
    (void)state;
    struct model_config c =
        accepted("qwen3_moe", "{'use_sliding_window':true,'sliding_window':32}");
    for (int i = 0; i < 4; i++)
        assert_int_equal(c.layers[i].window, 32);
    c = accepted("smollm3", "{'use_sliding_window':true,'sliding_window':32,'layer_types':null}");
    for (int i = 0; i < 4; i++)
        assert_int_equal(c.layers[i].window, i == 3 ? 32 : 0);
    c = accepted("qwen3_moe", "{'decoder_sparse_step':2,'mlp_only_layers':[3]}");
    for (int i = 0; i < 4; i++)
        assert_int_equal(c.layers[i].experts, i == 1);
    c = accepted("gemma4", "{'layer_types':['sliding_attention','full_attention',"
                           "'sliding_attention','sliding_attention']}");
    assert_int_equal(c.layers[3].window, 0); /* transformers forces the last to full attention */
    c = accepted("gemma4_shared", "{}");
    assert_int_equal(c.layers[2].kv_from, 0);
    assert_int_equal(c.layers[3].kv_from, 1);
    assert_int_equal(c.layers[3].ffn_dim, 512);
    c = accepted("lfm2_old", "{}");
    for (int i = 0; i < 4; i++)
        assert_int_equal(c.layers[i].kind, i == 2 ? LAYER_ATTENTION : LAYER_CONV);
    assert_int_equal(c.ffn_dim, 192); /* 2/3 of 256, up to a multiple of 32 */
}

/* ---- fields that contradict others ----------------------------------------------------------- */

#define FORMAT KVASIR_ERR_FORMAT
#define UNSUP  KVASIR_ERR_UNSUPPORTED

static const struct {
    const char *base, *patch;
    kvasir_status status;
    const char *words;
} ODD[] = {
    {"qwen3", "{'num_attention_heads':5}", UNSUP, "field num_key_value_heads: 5 heads for 2 KV"},
    {"qwen3", "{'num_attention_heads':34}", UNSUP, "field num_key_value_heads: 34 heads for 2"},
    {"qwen3", "{'head_dim':62}", UNSUP, "field head_dim: heads of 62 dims are not supported"},
    {"qwen3", "{'head_dim':516}", UNSUP, "field head_dim: heads of 516 dims"},
    {"llama", "{'head_dim':null,'hidden_size':130}", FORMAT, "do not divide hidden_size 130"},
    {"qwen3_moe", "{'num_experts_per_tok':9}", FORMAT, "field num_experts_per_tok is 9, must be"},
    {"qwen3_moe", "{'mlp_only_layers':[4]}", FORMAT,
     "field mlp_only_layers[0] is not the number of a layer"},
    {"qwen3_moe", "{'mlp_only_layers':['0']}", FORMAT,
     "field mlp_only_layers[0] is not the number of a layer"},
    {"qwen3_moe", "{'num_local_experts':4096,'moe_intermediate_size':4194304}", UNSUP,
     "field moe_intermediate_size: 4096 experts of 4194304 are too many"},
    {"qwen3_moe", "{'num_local_experts':null}", FORMAT, "field num_experts is missing"},
    {"olmoe", "{'clip_qkv':8.0}", UNSUP, "field clip_qkv: only null is supported"},
    {"qwen3",
     "{'layer_types':['full_attention','full_attention','sliding_attention',"
     "'full_attention']}",
     FORMAT, "field layer_types[2]: sliding_attention"},
    {"smollm3", "{'no_rope_layers':[1,1,1]}", FORMAT, "field no_rope_layers must be an array of 4"},
    {"smollm3", "{'no_rope_layers':[1,1,1,2]}", FORMAT, "field no_rope_layers[3] must be 0 or 1"},
    {"smollm3", "{'no_rope_layers':[1,true,1,0]}", FORMAT, "field no_rope_layers[1] must be 0 or"},
    {"smollm3", "{'mlp_bias':true}", UNSUP, "field mlp_bias: true is not supported"},
    {"phi3_long", "{'head_dim':64}", FORMAT, "short_factor must be an array of 32 numbers"},
    {"phi3_long", "{'head_dim':1024}", UNSUP, "field head_dim: heads of 1024 dims"},
    {"phi3_long", "{'max_position_embeddings':null}", FORMAT,
     "field max_position_embeddings is missing"},
    {"dynamic", "{'max_position_embeddings':null}", FORMAT,
     "field max_position_embeddings is missing; rope_parameters.rope_type needs it"},
    {"qwen3_yarn", "{'rope_parameters':{'rope_type':'yarn','factor':4,'rope_theta':1}}", FORMAT,
     "rope_theta is 1, must be above 1"},
    {"olmo3",
     "{'layer_types':['chunked_attention','full_attention','full_attention',"
     "'full_attention']}",
     UNSUP, "field layer_types[0]: chunked_attention"},
    {"olmo3", "{'sliding_window':null}", FORMAT, "sliding_window is missing"},
    {"gemma2", "{'hidden_activation':'gelu'}", UNSUP, "field hidden_activation: gelu"},
    {"gemma3", "{'use_bidirectional_attention':true}", UNSUP,
     "field use_bidirectional_attention: true is not supported"},
    {"gemma3", "{'rms_norm_eps':1.5}", FORMAT, "field rms_norm_eps is 1.5, must be at most 1"},
    {"gemma4", "{'use_bidirectional_attention':'all'}", UNSUP,
     "field use_bidirectional_attention: all is not supported"},
    {"gemma4", "{'rope_parameters':{'rope_type':'default','rope_theta':1e4}}", UNSUP,
     "field rope_parameters: one rope for all layers"},
    {"gemma4", "{'rope_scaling':{'rope_type':'linear','factor':8}}", UNSUP, "one rope for all"},
    {"gemma4", "{'attention_bias':true}", UNSUP, "field attention_bias: true is not supported"},
    {"gemma4", "{'num_kv_shared_layers':5}", FORMAT, "field num_kv_shared_layers is 5, must be"},
    {"gemma4", "{'num_kv_shared_layers':4}", FORMAT,
     "field num_kv_shared_layers: no layer before 0 has K and V for layer 0"},
    {"gemma4", "{'num_kv_shared_layers':1}", FORMAT,
     "field num_kv_shared_layers: no layer before 3 has K and V for layer 3"},
    {"gemma4", "{'per_layer_config':{'4':{'head_dim':64}}}", FORMAT,
     "field per_layer_config.4 must be an object for one of 4 layers"},
    {"gemma4", "{'per_layer_config':{'01':{'head_dim':64}}}", FORMAT, "field per_layer_config.01"},
    {"gemma4", "{'per_layer_config':{'3':{'intermediate_size':64}}}", UNSUP,
     "field per_layer_config.3.intermediate_size is not supported"},
    {"gemma4", "{'per_layer_config':{'0':{'head_dim':128}}}", UNSUP,
     "field per_layer_config.0.head_dim: 128, others of its kind have 64"},
    {"gemma4", "{'per_layer_config':{'3':{'num_key_value_heads':3}}}", UNSUP,
     "field num_key_value_heads: 4 heads for 3 KV heads"},
    {"gemma4_shared", "{'per_layer_config':{'1':{'head_dim':128},'3':{'head_dim':256}}}", FORMAT,
     "layer 3 reads layer 1, whose heads differ"},
    {"gemma4_full",
     "{'num_kv_shared_layers':0,'per_layer_config':{'1':{'head_dim':128},'3':{'head_dim':256}}}",
     UNSUP, "field per_layer_config.1.head_dim: 128, others of its kind have 256"},
    {"gemma4_full", "{'top_k_experts':5}", FORMAT, "field top_k_experts is 5, must be from 1 to 4"},
    {"gemma4_full", "{'top_k_experts':null}", FORMAT, "field top_k_experts is missing"},
    {"gemma4_shared", "{'intermediate_size':4194304}", FORMAT,
     "field use_double_wide_mlp: twice 4194304 is above"},
    {"gpt_oss", "{'num_experts_per_tok':5}", FORMAT, "field num_experts_per_tok is 5, must be"},
    {"gpt_oss", "{'swiglu_limit':8.0}", UNSUP, "field swiglu_limit: 8 is not supported, only 7"},
    {"gpt_oss", "{'hidden_act':'gelu'}", UNSUP, "field hidden_act: gelu"},
    {"gpt_oss", "{'rope_parameters':null}", FORMAT, "field rope_parameters is missing"},
    {"gpt_oss", "{'sliding_window':null}", FORMAT, "sliding_window is missing"},
    {"qwen3_5", "{'linear_num_value_heads':3}", FORMAT,
     "field linear_num_value_heads: 3 is not a multiple of 2 key heads"},
    {"qwen3_5", "{'linear_key_head_dim':513}", FORMAT, "field linear_key_head_dim is 513, must be"},
    {"qwen3_5", "{'linear_value_head_dim':513}", FORMAT, "field linear_value_head_dim is 513"},
    {"qwen3_5", "{'linear_conv_kernel_dim':1}", FORMAT, "field linear_conv_kernel_dim is 1, must"},
    {"qwen3_5", "{'linear_conv_kernel_dim':65}", FORMAT, "field linear_conv_kernel_dim is 65"},
    {"qwen3_5", "{'linear_conv_kernel_dim':null}", FORMAT, "field linear_conv_kernel_dim is mis"},
    {"qwen3_5", "{'attention_bias':true}", UNSUP, "field attention_bias: true"},
    {"qwen3_5",
     "{'layer_types':['linear_attention','sliding_attention','linear_attention',"
     "'full_attention']}",
     UNSUP, "field layer_types[1]: sliding_attention"},
    {"qwen3_5", "{'partial_rotary_factor':0.01,'rope_parameters':{}}", UNSUP,
     "field partial_rotary_factor: 0.01 of 64 dims rotates none of them"},
    {"lfm2", "{'layer_types':['conv','conv','full_attention','mamba']}", UNSUP,
     "field layer_types[3]: mamba is not supported"},
    {"lfm2", "{'layer_types':['conv']}", FORMAT, "field layer_types must be an array of 4"},
    {"lfm2", "{'layer_types':null}", FORMAT, "field layer_types is missing, and full_attn_idxs"},
    {"lfm2", "{'conv_bias':true}", UNSUP, "field conv_bias: true is not supported"},
    {"lfm2", "{'conv_L_cache':1}", FORMAT, "field conv_L_cache is 1, must be from 2"},
    {"lfm2", "{'block_ffn_dim_multiplier':1e9}", FORMAT, "field block_ffn_dim_multiplier: 1e+09"},
    {"lfm2", "{'block_ffn_dim_multiplier':0.0001}", FORMAT, "field block_ffn_dim_multiplier"},
    {"lfm2_old", "{'full_attn_idxs':[4]}", FORMAT,
     "field full_attn_idxs[0] is not the number of a layer"},
    {"gemma3_wrapped", "{'num_attention_heads':6}", UNSUP,
     "field text_config.num_key_value_heads: 6 heads for 4 KV heads"},
    {"gemma3_wrapped", "{'hidden_size':0}", FORMAT, "field text_config.hidden_size is 0"},
};

static void test_odd(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof ODD / sizeof *ODD; i++) {
        struct model_config c;
        kvasir_error err;
        kvasir_status status = parse_patched(ODD[i].base, ODD[i].patch, &c, &err);
        if (status != ODD[i].status || err.code != status || !strstr(err.text, ODD[i].words))
            fail_msg("%s %s: %d: %s", ODD[i].base, ODD[i].patch, status, err.text);
    }
}

/* A quarter of a head is rotated, the default of transformers' class, if no field says so. */
static void test_quarter(void **state) {
    (void)state;
    static const uint32_t head_dims[] = {64, 28};
    for (size_t i = 0; i < 2; i++) {
        struct model_config c;
        kvasir_error err;
        json_t *document = base("qwen3_5");
        json_object_del(document, "partial_rotary_factor");
        json_object_del(document, "rope_parameters");
        json_object_set_new(document, "head_dim", json_integer(head_dims[i]));
        kvasir_status status = parse(document, &c, &err);
        json_decref(document);
        assert_int_equal(status, i ? UNSUP : KVASIR_OK);
        if (i)
            assert_non_null(strstr(err.text, "field head_dim: a quarter of 28 dims"));
        else
            assert_int_equal(c.ropes[0].dims, 16);
    }
    assert_int_equal(
        accepted("qwen3_5", "{'rope_parameters':null,'partial_rotary_factor':1.0}").ropes[0].dims,
        64);
}

/* ---- tensors that contradict the configuration ----------------------------------------------- */

#define L0(part) "model.layers.0." part

static const struct {
    const char *fixture, *tensor, *dtype; /* dtype NULL: removed */
    uint64_t dims[FORM_DIMS_MAX + 1];
    kvasir_status status;
    const char *words;
} TENSORS[] = {
    {"qwen3_moe",
     L0("mlp.experts.3.up_proj.weight"),
     "BF16",
     {95, 128},
     FORMAT,
     "experts.3.up_proj.weight has shape [95, 128], expected [96, 128]"},
    {"qwen3_moe",
     L0("mlp.experts.7.down_proj.weight"),
     NULL,
     {0},
     FORMAT,
     "experts.7.down_proj.weight is missing"},
    {"qwen3_moe",
     L0("mlp.experts.8.down_proj.weight"),
     "BF16",
     {128, 96},
     UNSUP,
     "experts.8.down_proj.weight is not part of a qwen3_moe model"},
    {"qwen3_moe",
     L0("mlp.experts.gate_up_proj"),
     "BF16",
     {8, 96, 128},
     FORMAT,
     "experts.gate_up_proj has shape [8, 96, 128], expected [8, 192, 128]"},
    {"qwen3_moe",
     L0("mlp.switch_mlp.gate_proj.weight"),
     "BF16",
     {7, 96, 128},
     FORMAT,
     "switch_mlp.gate_proj.weight has shape [7, 96, 128], expected [8, 96, 128]"},
    {"qwen3_moe", L0("mlp.gate.bias"), "BF16", {8}, UNSUP, "mlp.gate.bias is not part of"},
    {"gpt_oss", L0("self_attn.sinks"), "BF16", {8}, FORMAT, "sinks has shape [8], expected [4]"},
    {"gpt_oss", L0("mlp.experts.gate_up_proj"), "U32", {4, 128, 512}, UNSUP, "has dtype U32"},
    {"gpt_oss",
     L0("mlp.experts.down_proj_blocks"),
     "U8",
     {4, 128, 8, 16},
     FORMAT,
     "down_proj_scales must be there"},
    {"gpt_oss",
     L0("mlp.experts.down_proj_bias"),
     "BF16",
     {4, 256},
     FORMAT,
     "down_proj_bias has shape [4, 256], expected [4, 128]"},
    {"qwen3_5",
     L0("linear_attn.conv1d.weight"),
     "BF16",
     {256, 1, 3},
     FORMAT,
     "conv1d.weight has shape [256, 1, 3], expected [256, 1, 4]"},
    {"qwen3_5", L0("linear_attn.A_log"), "BF16", {2}, FORMAT, "A_log has shape [2], expected [4]"},
    {"qwen3_5", L0("self_attn.q_proj.weight"), "BF16", {512, 128}, UNSUP, "is not part of"},
    {"qwen3_next",
     L0("linear_attn.in_proj_ba.weight"),
     "BF16",
     {6, 128},
     FORMAT,
     "in_proj_ba.weight has shape [6, 128], expected [8, 128]"},
    {"lfm2",
     L0("conv.conv.weight"),
     "BF16",
     {128, 1, 4},
     FORMAT,
     "conv.conv.weight has shape [128, 1, 4], expected [128, 1, 3]"},
    {"gemma4", L0("layer_scalar"), "BF16", {2}, FORMAT, "layer_scalar has shape [2]"},
    {"gemma4",
     "model.embed_tokens_per_layer.weight",
     NULL,
     {0},
     FORMAT,
     "embed_tokens_per_layer.weight is missing"},
    {"gemma4_full",
     L0("router.per_expert_scale"),
     "BF16",
     {3},
     FORMAT,
     "per_expert_scale has shape [3], expected [4]"},
    {"olmo3", L0("self_attn.k_norm.weight"), "BF16", {32}, FORMAT, "k_norm.weight has shape [32]"},
    {"phi3_long",
     L0("self_attn.qkv_proj.weight"),
     "BF16",
     {128, 128},
     FORMAT,
     "qkv_proj.weight has shape [128, 128]"},
    {"llama", "model.x.weight", "I64", {4}, UNSUP, "dtype I64, which is not supported"},
    {"llama", "model.x.weight", "BF16", {1, 1, 1, 1, 4}, UNSUP, "model.x.weight has 5 dims"},
};

static void test_tensors(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof TENSORS / sizeof *TENSORS; i++) {
        char path[256];
        struct form f;
        struct model *m;
        kvasir_error err = {0};
        snprintf(path, sizeof path, SHARED_DIR "/fixtures/tiny/%s", TENSORS[i].fixture);
        form_read(&f, path);
        if (form_find(&f, TENSORS[i].tensor))
            form_remove(&f, TENSORS[i].tensor);
        if (TENSORS[i].dtype)
            form_add(&f, TENSORS[i].tensor, TENSORS[i].dtype, TENSORS[i].dims);
        form_write(&f, folder.path);
        form_free(&f);
        kvasir_status status = model_open(folder.path, &m, &err);
        model_close(m);
        if (status != TENSORS[i].status || !strstr(err.text, TENSORS[i].words))
            fail_msg("%s: %d: %s; wanted: %s", TENSORS[i].tensor, status, err.text,
                     TENSORS[i].words);
        assert_clear_error(&err, status, folder.path);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),  cmocka_unit_test(test_wrapped),
        cmocka_unit_test(test_layers),  cmocka_unit_test(test_odd),
        cmocka_unit_test(test_quarter),
    };
    const struct CMUnitTest fixtures[] = {cmocka_unit_test(test_tensors)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (access(SHARED_DIR "/fixtures/tiny/llama/config.json", R_OK) != 0) {
        printf("not there: " SHARED_DIR "/fixtures/tiny\n");
        return failed ? failed : 77;
    }
    temp_folder_make(&folder);
    failed += cmocka_run_group_tests(fixtures, NULL, NULL);
    temp_folder_remove(&folder);
    return failed;
}
