/* SPDX-License-Identifier: Apache-2.0 */
/* How each architecture's GGUF files are read: keys (missing, wrong, not supported by the forward
 * pass), names of tensors, and properties that only the presence of tensors tells. That the numbers
 * are right is checked against goldens by tests/interop/gguf_families.sh.
 */
#include "model/family.h"
#include "model_files.h"

static struct temp_folder folder;

/* ---- files from a line of keys --------------------------------------------------------------- */

/* "NAME=VALUE NAME=VALUE ...", names without the architecture. A value begins with its type:
 * u u32, f f32, s string, i and b arrays of i32 and bool ("b1,0"); "-" alone: key left out. */
struct entry {
    char name[64], value[96];
};
enum { ENTRIES_MAX = 24 };

static const char base[] =
    "block_count=u2 embedding_length=u64 feed_forward_length=u96 context_length=u256 "
    "attention.head_count=u4 attention.head_count_kv=u2 vocab_size=u8 "
    "attention.layer_norm_rms_epsilon=f1e-5";

static size_t entries_of(const char *text, struct entry list[ENTRIES_MAX]) {
    size_t n = 0;
    int len;
    for (; sscanf(text, " %63[^= ]=%95s%n", list[n].name, list[n].value, &len) == 2; text += len)
        assert_true(++n < ENTRIES_MAX);
    return n;
}

static void put_entry(struct gguf_writer *w, const char *arch, const struct entry *e) {
    char key[96];
    const char *text = e->value + 1;
    uint64_t n = 1;
    snprintf(key, sizeof key, "%s.%s", arch, e->name);
    for (const char *c = text; *c; c++)
        n += *c == ',';
    switch (*e->value) {
    case 'u':
        gguf_u32(w, key, (uint32_t)strtoul(text, NULL, 10));
        return;
    case 'f':
        gguf_f32(w, key, strtof(text, NULL));
        return;
    case 's':
        gguf_string(w, key, text);
        return;
    case '-':
        return;
    default:
        gguf_array(w, key, *e->value == 'i' ? GGUF_I32 : GGUF_BOOL, n);
        for (; n--; text = strchr(text, ',') + 1)
            if (*e->value == 'i')
                put_u32(&w->values, (uint32_t)strtol(text, NULL, 10));
            else
                put_u8(&w->values, (uint8_t)strtoul(text, NULL, 10));
    }
}

/* The base's keys, with those of `text` replacing or added to them. */
static void put_keys(struct gguf_writer *w, const char *arch, const char *text) {
    struct entry own[ENTRIES_MAX], usual[ENTRIES_MAX];
    size_t n = entries_of(text, own), m = entries_of(base, usual);
    gguf_string(w, "general.architecture", arch);
    for (size_t i = 0; i < n; i++)
        put_entry(w, arch, &own[i]);
    for (size_t j = 0; j < m; j++) {
        size_t i = 0;
        while (i < n && strcmp(own[i].name, usual[j].name) != 0)
            i++;
        if (i == n)
            put_entry(w, arch, &usual[j]);
    }
}

static const char *keys_file(const char *arch, const char *text) {
    struct gguf_writer w = {0};
    put_keys(&w, arch, text);
    gguf_matrix(&w, "token_embd.weight", WEIGHT_F32, 8, 64);
    struct text_buf b = gguf_finish(&w, 32);
    const char *path = temp_write(&folder, "model.gguf", b.data, b.len);
    text_free(&b);
    return path;
}

static struct model_config config_of(const char *arch, const char *text) {
    struct checkpoint *c;
    kvasir_error err = {0};
    if (checkpoint_open(keys_file(arch, text), &c, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    struct model_config config = *checkpoint_config(c);
    checkpoint_close(c);
    return config;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static bool near(double a, double b) {
    return a > b - 1e-6 && a < b + 1e-6;
}

static uint32_t windows_of(const struct model_config *c) {
    uint32_t bits = 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        bits |= (uint32_t)(c->layers[i].window != 0) << i;
    return bits;
}

static void test_llama_keys(void **state) {
    (void)state;
    struct model_config c = config_of("llama", "attention.sliding_window=u48");
    assert_string_equal(c.arch, "llama");
    assert_true(c.from_gguf && c.ropes[0].adjacent && !c.unit_offset);
    assert_int_equal(windows_of(&c), 3);
    assert_int_equal(c.window, 48);
    assert_int_equal((int)c.ropes[0].theta, 10000);
    assert_int_equal(c.ropes[0].dims, 16);

    c = config_of("olmoe", "expert_count=u8 expert_used_count=u2");
    assert_int_equal(c.moe.dim, 96);
    assert_false(c.moe.normalize);

    c = config_of("qwen3moe", "expert_count=u8 expert_used_count=u2 expert_weights_norm=u1 "
                              "attention.sliding_window=u9");
    assert_string_equal(c.arch, "qwen3_moe");
    assert_int_equal(c.moe.n, 8);
    assert_int_equal(c.moe.dim, 48); /* 96 / 2 */
    assert_true(c.moe.normalize && c.layers[1].experts);
    assert_int_equal(windows_of(&c), 0);

    c = config_of("smollm3", "block_count=u9");
    assert_true(c.ropes[0].adjacent);
    for (uint32_t i = 0; i < 9; i++)
        assert_int_equal(c.layers[i].rope, i == 3 || i == 7 ? NO_ROPE : 0);

    c = config_of("granite", "logit_scale=f8 residual_scale=f0.25 attention.scale=f0");
    assert_true(near((double)c.logit_scale, 0.125) && near((double)c.residual_scale, 0.25));
    assert_true(near((double)c.embed_scale, 1) && near((double)c.attention_scale, 0));

    c = config_of("phi3", "attention.sliding_window=u0 rope.scaling.original_context_length=u64 "
                          "rope.scaling.attn_factor=f1.25");
    assert_int_equal(windows_of(&c), 0);
    assert_int_equal(c.ropes[0].original_ctx, 64);
    assert_true(near(c.ropes[0].attention_factor, 1.25));

    c = config_of("qwen3", "block_count=u3 nextn_predict_layers=u1 feed_forward_length=i96,48,7");
    assert_int_equal(c.n_layers, 2);
    assert_int_equal(c.mtp_layers, 1);
    assert_int_equal(c.layers[1].ffn_dim, 48);
    assert_int_equal(c.ffn_dim, 96);
}

static void test_rope_keys(void **state) {
    (void)state;
    const struct {
        const char *arch, *keys;
        enum rope_kind kind;
        double factor, attention;
        bool truncate;
    } cases[] = {
        {"qwen3", "", ROPE_PLAIN, 1, 0, false},
        {"qwen3", "rope.scaling.factor=f4", ROPE_LINEAR, 4, 0, false},
        {"qwen3", "rope.scale_linear=f4", ROPE_LINEAR, 4, 0, false},
        {"qwen3", "rope.scaling.factor=f4 rope.scaling.type=slinear", ROPE_LINEAR, 4, 0, false},
        {"qwen3", "rope.scaling.factor=f4 rope.scaling.type=snone", ROPE_PLAIN, 4, 0, false},
        {"qwen3", "rope.scaling.factor=f4 rope.scaling.type=syarn", ROPE_YARN, 4, 0, true},
        {"qwen3",
         "rope.scaling.factor=f4 rope.scaling.type=syarn rope.scaling.yarn_attn_factor=f1.5",
         ROPE_YARN, 4, 1.5, true},
        {"qwen3", "rope.scaling.factor=f1 rope.scaling.type=syarn rope.scaling.attn_factor=f0.5",
         ROPE_YARN, 1, 0.5, true},
        {"gpt-oss",
         "attention.sliding_window=u8 expert_count=u4 expert_used_count=u2 "
         "rope.scaling.factor=f4 rope.scaling.type=syarn",
         ROPE_YARN, 4, 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_config c = config_of(cases[i].arch, cases[i].keys);
        const struct rope_config *r = &c.ropes[0];
        if (r->kind != cases[i].kind || !near(r->factor, cases[i].factor) ||
            !near(r->attention_factor, cases[i].attention) || r->truncate != cases[i].truncate)
            fail_msg("%s: kind %d, factor %g, attention %g", cases[i].keys, (int)r->kind, r->factor,
                     r->attention_factor);
        if (r->kind == ROPE_YARN)
            assert_true(near(r->beta_fast, 32) && near(r->beta_slow, 1) && r->original_ctx == 256);
    }
}

static void test_window_keys(void **state) {
    (void)state;
    static const struct {
        const char *arch, *keys;
        uint32_t windows, window; /* bit i of windows: layer i has a window */
    } cases[] = {
        {"gemma2", "block_count=u5", 0x15, 4096},
        {"gemma2", "block_count=u5 attention.sliding_window=u48", 0x15, 48},
        {"gemma3", "block_count=u7", 0, 0},
        {"gemma3", "block_count=u7 attention.sliding_window=u0", 0, 0},
        {"gemma3", "block_count=u7 attention.sliding_window=u48", 0x5f, 48},
        {"gemma3",
         "block_count=u4 attention.sliding_window=u9 "
         "attention.sliding_window_pattern=u3",
         0xb, 9},
        {"gemma3", "attention.sliding_window=u9 attention.sliding_window_pattern=b0,1", 2, 9},
        {"gemma3", "attention.sliding_window=u9 attention.sliding_window_pattern=i1,0", 1, 9},
        {"olmo2", "block_count=u5", 0, 0},
        {"olmo2", "block_count=u5 attention.sliding_window=u9", 0x17, 9},
        {"gpt-oss",
         "block_count=u4 attention.sliding_window=u9 expert_count=u4 "
         "expert_used_count=u2",
         5, 9},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model_config c = config_of(cases[i].arch, cases[i].keys);
        if (windows_of(&c) != cases[i].windows || c.window != cases[i].window)
            fail_msg("%s: windows of %u in layers %x", cases[i].keys, c.window, windows_of(&c));
    }
}

static void test_gemma_keys(void **state) {
    (void)state;
    struct model_config c = config_of("gemma2", "attention.key_length=u32");
    assert_false(c.unit_offset);
    assert_int_equal(c.gate, GATE_GELU_TANH);
    assert_true(near((double)c.attention_softcap, 50) && near((double)c.logit_softcap, 30));
    assert_true(near((double)c.embed_scale, 8));
    assert_true(near((double)c.attention_scale, 1 / m_sqrt(32)));
    c = config_of("gemma2", "block_count=u46 attention.key_length=u32 attn_logit_softcapping=f0");
    assert_true(near((double)c.attention_scale, 0.25)); /* 1 / sqrt(64 / 4) */
    assert_true(near((double)c.attention_softcap, 0));

    c = config_of("gemma3", "block_count=u6 attention.sliding_window=u9 rope.freq_base=f1e6 "
                            "rope.scaling.factor=f8 rope.scaling.type=slinear");
    assert_true(near((double)c.logit_softcap, 0));
    assert_int_equal(c.n_ropes, 2);
    assert_int_equal((int)c.ropes[0].theta, 1000000);
    assert_int_equal((int)c.ropes[1].theta, 10000);
    assert_int_equal(c.ropes[0].kind, ROPE_LINEAR);
    assert_int_equal(c.ropes[1].kind, ROPE_PLAIN);
    assert_int_equal(c.layers[4].rope, 1);
    assert_int_equal(c.layers[5].rope, 0);
}

#define GEMMA4                                                                                     \
    "block_count=u4 attention.key_length=u32 attention.value_length=u32 "                          \
    "attention.key_length_swa=u16 attention.value_length_swa=u16 attention.sliding_window=u9 "     \
    "attention.sliding_window_pattern=b1,0,1,0 attention.head_count_kv=i2,1,2,1 "                  \
    "rope.dimension_count=u32 rope.dimension_count_swa=u16 embedding_length_per_layer_input=u8 "

static void test_gemma4_keys(void **state) {
    (void)state;
    struct model_config c =
        config_of("gemma4", GEMMA4 "attention.shared_kv_layers=u2 rope.freq_base_swa=f5000");
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(c.layers[i].head_dim, i % 2 ? 32 : 16);
        assert_int_equal(c.layers[i].kv_heads, i % 2 ? 1 : 2);
        assert_int_equal(c.layers[i].kv_from, i % 2);
        assert_int_equal(c.layers[i].rope, !(i % 2));
    }
    assert_int_equal(c.ropes[0].dims, 32);
    assert_int_equal(c.ropes[1].dims, 16);
    assert_int_equal((int)c.ropes[1].theta, 5000);
    assert_int_equal(c.layer_input_dim, 8);
    assert_int_equal(c.layer_input_vocab, 8);
    assert_int_equal(c.moe.n, 0);
    assert_true(near((double)c.logit_softcap, 30) && near((double)c.attention_scale, 1));
    c = config_of("gemma4", GEMMA4 "final_logit_softcapping=f0");
    assert_true(near((double)c.logit_softcap, 0));
}

#define DELTA                                                                                      \
    "ssm.conv_kernel=u4 ssm.state_size=u16 ssm.group_count=u2 ssm.time_step_rank=u4 "              \
    "ssm.inner_size=u64 attention.key_length=u32 "

static void test_recurrent_keys(void **state) {
    (void)state;
    struct model_config c = config_of("qwen35", DELTA "block_count=u9 nextn_predict_layers=u1");
    assert_string_equal(c.arch, "qwen3_5");
    assert_int_equal(c.n_layers, 8);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(c.layers[i].kind, i % 4 == 3 ? LAYER_ATTENTION : LAYER_DELTA);
    assert_true(c.delta.keys_cycle && !c.unit_offset);
    assert_int_equal(c.delta.value_heads, 4);
    assert_int_equal(c.delta.value_dim, 16);
    c = config_of("qwen3next", DELTA "attention.recurrent_layers=b0,1 expert_count=u4 "
                                     "expert_used_count=u2 full_attention_interval=u1 "
                                     "expert_shared_feed_forward_length=u24 "
                                     "feed_forward_length=- expert_feed_forward_length=u16");
    assert_false(c.delta.keys_cycle);
    assert_int_equal(c.layers[0].kind, LAYER_ATTENTION);
    assert_int_equal(c.layers[1].kind, LAYER_DELTA);
    assert_int_equal(c.moe.dim, 16);
    assert_int_equal(c.moe.shared_dim, 24);
    c = config_of("lfm2", "attention.head_count_kv=i0,2 shortconv.l_cache=u3");
    assert_int_equal(c.layers[0].kind, LAYER_CONV);
    assert_int_equal(c.layers[1].kind, LAYER_ATTENTION);
    assert_int_equal(c.conv_width, 3);
    assert_int_equal(c.kv_heads, 2);
}

static void test_refused_keys(void **state) {
    (void)state;
    static const kvasir_status FORMAT = KVASIR_ERR_FORMAT, OTHER = KVASIR_ERR_UNSUPPORTED;
    const struct {
        const char *arch, *keys;
        kvasir_status status;
        const char *words;
    } cases[] = {
        {"mamba", "", OTHER, "general.architecture mamba is not supported, only llama, qwen2"},
        /* sizes, one for each layer */
        {"qwen3", "block_count=u513", FORMAT, "qwen3.block_count is 513, must be from 1 to 512"},
        {"qwen3", "nextn_predict_layers=u2", FORMAT, "nextn_predict_layers is 2, must be from 0"},
        {"qwen3", "attention.head_count=-", FORMAT, "qwen3.attention.head_count is missing"},
        {"qwen3", "attention.head_count=i4,8", OTHER, "4 heads in layer 0 and 8 in layer 1"},
        {"qwen3", "attention.head_count_kv=i2", FORMAT, "head_count_kv holds 1 values for 2 lay"},
        {"qwen3", "attention.head_count_kv=i2,-1", FORMAT, "head_count_kv[1] is -1, must be from"},
        {"qwen3", "attention.head_count_kv=i2,0", FORMAT, "layer 1 has no KV heads"},
        {"qwen3", "attention.head_count_kv=f2", FORMAT, "must be an integer, found f32"},
        {"qwen3", "feed_forward_length=-", FORMAT, "qwen3.feed_forward_length is missing"},
        {"qwen3", "feed_forward_length=i96,0", FORMAT, "feed_forward_length is missing or 0 for l"},
        {"qwen3", "attention.value_length=u24", OTHER, "value_length is 24, must be the key's"},
        {"qwen3", "vocab_size=-", FORMAT, "qwen3.vocab_size is missing"},
        /* what the forward pass does not support */
        {"qwen3", "expert_count=u8", OTHER, "qwen3.expert_count is 8, which is not supported in a"},
        {"qwen3", "attention.scale=f0.5", OTHER, "attention.scale is 0.5"},
        {"qwen3", "attention.scale=s0.5", OTHER, "attention.scale: only a number"},
        {"qwen3", "final_logit_softcapping=f30", OTHER, "final_logit_softcapping is 30"},
        {"qwen3", "attention.causal=u0", OTHER, "attention.causal is 0"},
        {"smollm3", "attention.sliding_window=u9", OTHER, "smollm3.attention.sliding_window is 9"},
        {"llama", "rope.freq_base_swa=f9", OTHER, "rope.freq_base_swa is 9"},
        {"lfm2", "attention.sliding_window=u9 shortconv.l_cache=u3", OTHER, "sliding_window is 9"},
        {"gemma3", "attn_logit_softcapping=f50", OTHER, "attn_logit_softcapping is 50"},
        {"qwen3moe", "expert_count=u8 expert_used_count=u2 expert_weights_norm=u0", OTHER,
         "expert_weights_norm is 0"},
        {"qwen3moe", "expert_count=u8 expert_used_count=u2 expert_gating_func=u2", OTHER,
         "expert_gating_func is 2"},
        {"olmoe", "expert_count=u8 expert_used_count=u2 attention.clamp_kqv=f8", OTHER,
         "attention.clamp_kqv is 8"},
        {"olmoe", "expert_count=u8 expert_used_count=u2 expert_gating_func=u3", FORMAT,
         "expert_gating_func is 3"},
        {"qwen35", DELTA "expert_count=u4", OTHER, "qwen35.expert_count is 4"},
        /* rope */
        {"qwen3", "rope.scaling.type=sdynamic", OTHER, "rope type dynamic is not supported, only"},
        {"qwen3", "rope.scaling.type=u1", FORMAT, "rope.scaling.type must be a string"},
        {"qwen3", "rope.scaling.factor=f-1", FORMAT, "rope.scaling.factor is -1"},
        {"qwen3", "rope.scaling.type=syarn context_length=-", FORMAT, "over a context of 0"},
        {"qwen3", "rope.scaling.type=syarn rope.freq_base=f1", FORMAT, "yarn of base 1"},
        {"qwen3", "rope.scaling.factor=f1e20", FORMAT, "factor is 1e+20, must be from 1e-15"},
        {"qwen3", "attention.layer_norm_rms_epsilon=f2", FORMAT, "epsilon is 2, must be at most 1"},
        {"qwen3", "attention.layer_norm_rms_epsilon=-", FORMAT, "rms_epsilon is missing"},
        {"qwen3", "rope.scaling.yarn_ext_factor=f0.5", OTHER, "yarn_ext_factor is 0.5"},
        {"qwen3", "rope.freq_base=f0", FORMAT, "rope.freq_base is 0"},
        /* windows */
        {"gpt-oss", "expert_count=u4 expert_used_count=u2", FORMAT, "sliding_window is missing"},
        {"gemma3", "attention.sliding_window_pattern=b1", FORMAT, "holds 1 values for 2 layers"},
        {"gemma3", "attention.sliding_window_pattern=b1,2", FORMAT, "_pattern[1] is 2"},
        {"gemma3", "attention.sliding_window_pattern=sx", FORMAT, "must be an integer"},
        {"gemma4", "embedding_length_per_layer_input=u8", FORMAT, "_pattern is missing"},
        /* keys of one family */
        {"granite", "", FORMAT, "granite.logit_scale is missing or 0"},
        {"qwen3moe", "", FORMAT, "qwen3moe.expert_count is missing"},
        {"qwen3moe", "expert_count=u8 expert_used_count=u9", FORMAT, "expert_used_count is 9"},
        {"qwen3moe", "expert_count=u4096 expert_used_count=u9 expert_feed_forward_length=u4194304",
         OTHER, "4096 experts of 4194304 are too many"},
        {"qwen3moe", "expert_count=u5000 expert_used_count=u9", FORMAT, "expert_count is 5000"},
        {"qwen3moe", "expert_count=u8 expert_used_count=u2 feed_forward_length=-", FORMAT,
         "expert_feed_forward_length is missing"},
        {"gemma4", GEMMA4 "attention.shared_kv_layers=u4", FORMAT,
         "metadata gemma4.attention.shared_kv_layers: no layer before 0"},
        {"gemma4", GEMMA4 "feed_forward_length=- expert_count=u2", FORMAT,
         "feed_forward_length is missing"},
        {"lfm2", "", FORMAT, "lfm2.shortconv.l_cache is missing"},
        {"lfm2", "shortconv.l_cache=u65", FORMAT, "l_cache is 65"},
        {"qwen35", "", FORMAT, "qwen35.ssm.conv_kernel is missing"},
        {"qwen35", "ssm.conv_kernel=u4 ssm.state_size=u1024", FORMAT, "state_size is 1024"},
        {"qwen35", "ssm.conv_kernel=u4 ssm.state_size=u16 ssm.group_count=u3 ssm.time_step_rank=u4",
         FORMAT, "time_step_rank: 4 is not a multiple of 3 key heads"},
        {"qwen35",
         "ssm.conv_kernel=u4 ssm.state_size=u16 ssm.group_count=u2 ssm.time_step_rank=u4 "
         "ssm.inner_size=u65",
         OTHER, "inner_size is 65, must be 4 x 16"},
        {"qwen35", DELTA "attention.recurrent_layers=b1", FORMAT, "holds 1 values for 2 layers"},
        {"qwen35", DELTA "full_attention_interval=u0", FORMAT, "full_attention_interval is 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(keys_file(cases[i].arch, cases[i].keys), cases[i].status, cases[i].words);
}

/* ---- names ----------------------------------------------------------------------------------- */

static void test_names(void **state) {
    (void)state;
#define L "model.layers.1."
    static const struct {
        const char *arch, *gguf, *hf;
    } names[] = {
        {"llama", "blk.1.attn_qkv.bias", L "self_attn.qkv_proj.bias"},
        {"llama", "blk.1.ffn_gate_exps.weight", "blk.1.ffn_gate_exps.weight"},
        {"phi3", "blk.1.ffn_up.weight", L "mlp.gate_up_proj.weight"},
        {"phi3", "blk.1.ffn_down.weight", L "mlp.down_proj.weight"},
        {"qwen3_moe", "blk.1.ffn_gate_inp.weight", L "mlp.gate.weight"},
        {"qwen3_moe", "blk.1.ffn_down_exps.weight", L "mlp.experts.down_proj.weight"},
        {"qwen3_moe", "blk.1.ffn_gate_up_exps.weight", L "mlp.experts.gate_up_proj"},
        {"olmo3", "blk.1.post_attention_norm.weight", L "post_attention_layernorm.weight"},
        {"olmo3", "blk.1.post_ffw_norm.weight", L "post_feedforward_layernorm.weight"},
        {"gemma3", "blk.1.ffn_norm.weight", L "pre_feedforward_layernorm.weight"},
        {"gemma3", "blk.1.post_attention_norm.weight", L "post_attention_layernorm.weight"},
        {"gemma4", "blk.1.ffn_norm.weight", L "pre_feedforward_layernorm.weight"},
        {"gemma4", "blk.1.ffn_gate_inp.weight", L "router.proj.weight"},
        {"gemma4", "blk.1.ffn_gate_inp.scale", L "router.scale"},
        {"gemma4", "blk.1.ffn_gate_up_exps.weight", L "experts.gate_up_proj"},
        {"gemma4", "blk.1.ffn_down_exps.scale", L "router.per_expert_scale"},
        {"gemma4", "blk.1.layer_output_scale.weight", L "layer_scalar"},
        {"gemma4", "per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
        {"gpt_oss", "blk.1.attn_sinks.weight", L "self_attn.sinks"},
        {"gpt_oss", "blk.1.ffn_gate_inp.bias", L "mlp.router.bias"},
        {"gpt_oss", "blk.1.ffn_gate_exps.bias", L "mlp.experts.gate_proj.bias"},
        {"qwen3_next", "blk.1.ssm_a", L "linear_attn.A"},
        {"qwen3_next", "blk.1.ssm_dt.bias", L "linear_attn.dt_bias"},
        {"qwen3_next", "blk.1.ssm_in.weight", L "linear_attn.in_proj_qkvz.weight"},
        {"qwen3_5", "blk.1.attn_qkv.weight", L "linear_attn.in_proj_qkv.weight"},
        {"qwen3_5_moe", "blk.1.ffn_gate_inp_shexp.weight", L "mlp.shared_expert_gate.weight"},
        {"lfm2", "token_embd_norm.weight", "model.embedding_norm.weight"},
        {"lfm2", "blk.1.shortconv.conv.weight", L "conv.conv.weight"},
        {"lfm2", "blk.1.attn_norm.weight", L "operator_norm.weight"},
        /* The layer after the last is the MTP layer (multi-token prediction). */
        {"qwen3_5", "blk.2.nextn.eh_proj.weight", "mtp.blk.2.nextn.eh_proj.weight"},
        {"qwen3_5", "blk.3.attn_q.weight", "model.layers.3.self_attn.q_proj.weight"},
    };
#undef L
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct model_config c = {.n_layers = 2, .mtp_layers = 1};
        snprintf(c.arch, sizeof c.arch, "%s", names[i].arch);
        char *name = gguf_tensor_name(&c, names[i].gguf, strlen(names[i].gguf));
        assert_string_equal(name, names[i].hf);
        mem_free(name);
    }
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* "NAME [n][k] NAME [n] ..." of float32, filled alike. */
static void put_tensors(struct gguf_writer *w, const char *text) {
    char name[64];
    unsigned n, k;
    int len;
    while (sscanf(text, " %63s [%u]%n", name, &n, &len) == 2) {
        text += len;
        if (sscanf(text, "[%u]%n", &k, &len) == 1) {
            text += len;
            gguf_matrix(w, name, WEIGHT_F32, n, k);
        } else {
            gguf_vector(w, name, n);
        }
    }
}

static kvasir_status open_model(struct gguf_writer *w, struct model **m, kvasir_error *err) {
    struct text_buf b = gguf_finish(w, 32);
    const char *path = temp_write(&folder, "model.gguf", b.data, b.len);
    text_free(&b);
    *err = (kvasir_error){0};
    return model_open(path, m, err);
}

static struct model *opened(struct gguf_writer *w) {
    struct model *m;
    kvasir_error err;
    if (open_model(w, &m, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    return m;
}

static void not_opened(struct gguf_writer *w, const char *words) {
    struct model *m;
    kvasir_error err;
    assert_int_equal(open_model(w, &m, &err), KVASIR_ERR_FORMAT);
    if (!strstr(err.text, words))
        fail_msg("%s; wanted: %s", err.text, words);
}

#define ENDS "token_embd.weight [8][64] output_norm.weight [64] "
#define MLP(n)                                                                                     \
    "blk." n ".ffn_gate.weight [96][64] blk." n ".ffn_up.weight [96][64] blk." n                   \
    ".ffn_down.weight [64][96] "
#define JOINT                                                                                      \
    ENDS MLP("0") "blk.0.attn_norm.weight [64] blk.0.ffn_norm.weight [64] "                        \
                  "blk.0.attn_qkv.weight [128][64] blk.0.attn_output.weight [64][64] "

/* q, k and v in one matrix; an MTP layer (multi-token prediction) after the last. */
static void test_joint_attention(void **state) {
    (void)state;
    struct gguf_writer w = {0};
    put_keys(&w, "qwen2", "block_count=u2 nextn_predict_layers=u1");
    put_tensors(&w, JOINT "blk.1.nextn.eh_proj.weight [64][128] blk.1.attn_norm.weight [64]");
    float bias[128];
    for (int i = 0; i < 128; i++)
        bias[i] = (float)i;
    gguf_data(&w, "blk.0.attn_qkv.bias", WEIGHT_F32, 1, (uint64_t[]){128}, bias, sizeof bias);
    struct model *m = opened(&w);
    const struct layer_weights *l = m->layers;
    assert_int_equal(m->config.n_layers, 1);
    assert_int_equal(model_matrix(m, l->q)->n, 64);
    assert_int_equal(model_matrix(m, l->k)->n, 32);
    assert_int_equal(model_matrix(m, l->v)->n, 32);
    assert_ptr_equal(model_matrix(m, l->k)->data,
                     (const uint8_t *)model_matrix(m, l->q)->data + 64 * 64 * 4);
    assert_ptr_equal(model_matrix(m, l->v)->data,
                     (const uint8_t *)model_matrix(m, l->q)->data + 96 * 64 * 4);
    assert_memory_equal(m->vectors[l->q_bias].data, bias, 64 * 4);
    assert_memory_equal(m->vectors[l->k_bias].data, bias + 64, 32 * 4);
    assert_memory_equal(m->vectors[l->v_bias].data, bias + 96, 32 * 4);
    model_close(m);
}

static void test_longrope(void **state) {
    (void)state;
    static const char both[] = JOINT "rope_factors_long.weight [8] rope_factors_short.weight [8]";
    struct gguf_writer w = {0};
    put_keys(&w, "llama", "block_count=u1 rope.scaling.original_context_length=u64");
    put_tensors(&w, both);
    struct model *m = opened(&w);
    assert_int_equal(m->config.ropes[0].kind, ROPE_LONG);
    assert_true(near(m->config.ropes[0].attention_factor, 1));
    assert_true(m->config.ropes[0].long_factors[7] > 0 && m->config.ropes[0].short_factors[7] > 0);
    model_close(m);
    w = (struct gguf_writer){0};
    put_keys(&w, "llama", "block_count=u1");
    put_tensors(&w, JOINT "rope_factors_long.weight [8]");
    not_opened(&w, "tensor rope_factors_short.weight is missing");
    w = (struct gguf_writer){0};
    put_keys(&w, "llama", "block_count=u1 rope.scaling.type=slongrope");
    put_tensors(&w, JOINT);
    not_opened(&w, "tensor rope_factors_long.weight is missing");
    w = (struct gguf_writer){0};
    put_keys(&w, "llama", "block_count=u1");
    put_tensors(&w, JOINT "rope_factors_long.weight [7] rope_factors_short.weight [8]");
    not_opened(&w, "tensor rope_factors_long.weight has shape [7], expected [8]");
    /* Even a rope that no layer uses must fit its tables. */
    w = (struct gguf_writer){0};
    put_keys(&w, "lfm2",
             "block_count=u1 shortconv.l_cache=u3 attention.head_count_kv=i0 "
             "rope.dimension_count=u4096");
    put_tensors(&w, JOINT "rope_factors_long.weight [2048] rope_factors_short.weight [2048]");
    not_opened(&w, "rope rotates 4096 dims");
}

/* Tools that write GGUF drop dims of 1. */
static void test_flat_gate(void **state) {
    (void)state;
    struct gguf_writer w = {0};
    put_keys(&w, "qwen35moe",
             DELTA "block_count=u1 attention.recurrent_layers=b0 expert_count=u2 "
                   "expert_used_count=u1 expert_feed_forward_length=u24 "
                   "expert_shared_feed_forward_length=u40");
    put_tensors(&w, ENDS "blk.0.attn_norm.weight [64] blk.0.post_attention_norm.weight [64] "
                         "blk.0.attn_q.weight [256][64] blk.0.attn_k.weight [64][64] "
                         "blk.0.attn_v.weight [64][64] blk.0.attn_output.weight [64][128] "
                         "blk.0.attn_q_norm.weight [32] blk.0.attn_k_norm.weight [32] "
                         "blk.0.ffn_gate_inp.weight [2][64] blk.0.ffn_gate_inp_shexp.weight [64] "
                         "blk.0.ffn_gate_shexp.weight [40][64] blk.0.ffn_up_shexp.weight [40][64] "
                         "blk.0.ffn_down_shexp.weight [64][40]");
    gguf_tensor(&w, "blk.0.ffn_gate_up_exps.weight", WEIGHT_F32, 3, (uint64_t[]){64, 48, 2}, 1);
    gguf_tensor(&w, "blk.0.ffn_down_exps.weight", WEIGHT_F32, 3, (uint64_t[]){24, 64, 2}, 1);
    struct model *m = opened(&w);
    const struct layer_weights *l = m->layers;
    assert_int_equal(model_matrix(m, l->shared_gate)->n, 1);
    assert_int_equal(model_matrix(m, l->shared_gate)->k, 64);
    assert_ptr_equal(model_matrix(m, l->expert_matrices[3 * 1 + 1])->data,
                     (const uint8_t *)model_matrix(m, l->expert_matrices[0])->data +
                         (48 + 24) * 64 * 4);
    assert_int_equal(model_matrix(m, l->expert_matrices[3 * 1 + 2])->k, 24);
    model_close(m);
}

/* Only the tensors tell which layers have V, and how many dims of a head are rotated. */
static void test_gemma4_tensors(void **state) {
    (void)state;
    static const char keys[] =
        "block_count=u1 attention.sliding_window=u9 attention.sliding_window_pattern=b0 "
        "embedding_length_per_layer_input=u0";
#define GEMMA4_LAYER                                                                               \
    ENDS MLP("0") "blk.0.attn_norm.weight [64] blk.0.post_attention_norm.weight [64] "             \
                  "blk.0.ffn_norm.weight [64] blk.0.post_ffw_norm.weight [64] "                    \
                  "blk.0.attn_q.weight [64][64] blk.0.attn_k.weight [32][64] "                     \
                  "blk.0.attn_output.weight [64][64] "                                             \
                  "blk.0.attn_q_norm.weight [16] blk.0.attn_k_norm.weight [16] "
    struct gguf_writer w = {0};
    put_keys(&w, "gemma4", keys);
    put_tensors(&w, GEMMA4_LAYER);
    not_opened(&w, "tensor rope_freqs.weight is missing");
    for (int own = 0; own < 2; own++) {
        w = (struct gguf_writer){0};
        put_keys(&w, "gemma4", keys);
        put_tensors(&w, GEMMA4_LAYER "rope_freqs.weight [8]");
        if (own)
            put_tensors(&w, "blk.0.attn_v.weight [32][64]");
        struct model *m = opened(&w);
        assert_int_equal(m->config.layers[0].k_is_v, !own);
        assert_int_equal(m->layers[0].v != 0, own);
        assert_true(near((double)m->layers[0].scale, 1));
        model_close(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama_keys),      cmocka_unit_test(test_rope_keys),
        cmocka_unit_test(test_window_keys),     cmocka_unit_test(test_gemma_keys),
        cmocka_unit_test(test_gemma4_keys),     cmocka_unit_test(test_recurrent_keys),
        cmocka_unit_test(test_refused_keys),    cmocka_unit_test(test_names),
        cmocka_unit_test(test_joint_attention), cmocka_unit_test(test_longrope),
        cmocka_unit_test(test_flat_gate),       cmocka_unit_test(test_gemma4_tensors),
    };
    temp_folder_make(&folder);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    temp_folder_remove(&folder);
    return failed;
}
