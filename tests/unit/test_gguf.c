/* SPDX-License-Identifier: Apache-2.0 */
/* The GGUF reader: what it must read (every metadata type, names, shapes, vocabulary, real files)
 * and what it must refuse, each with its reason. Random damage is test_bad_models.c's.
 */
#include "model_files.h"

static struct temp_folder folder;
static bool data_missing;

static struct checkpoint *open_bytes(struct text_buf *b) {
    struct checkpoint *c;
    kvasir_error err = {0};
    const char *path = temp_write(&folder, "model.gguf", b->data, b->len);
    if (checkpoint_open(path, &c, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    text_free(b);
    return c;
}

static void refused(struct text_buf *b, kvasir_status status, const char *words) {
    assert_refused(temp_write(&folder, "bad.gguf", b->data, b->len), status, words);
    text_free(b);
}

/* ---- what it must read ----------------------------------------------------------------------- */

static void test_config(void **state) {
    (void)state;
    struct text_buf b = tiny_gguf("llama");
    struct checkpoint *c = open_bytes(&b);
    const struct model_config *m = checkpoint_config(c);
    assert_string_equal(checkpoint_format(c), "GGUF v3");
    assert_string_equal(m->arch, "llama");
    assert_string_equal(m->name, "Tiny");
    assert_int_equal(m->n_layers, 2);
    assert_int_equal(m->dim, 64);
    assert_int_equal(m->ffn_dim, 96);
    assert_int_equal(m->heads, 4);
    assert_int_equal(m->kv_heads, 2);
    assert_int_equal(m->head_dim, 16);
    assert_int_equal(m->vocab, 8);
    assert_int_equal(m->ctx_train, 256);
    assert_int_equal(m->window, 0);
    assert_true(m->norm_eps > 0.99e-5f && m->norm_eps < 1.01e-5f);
    assert_true(m->tied_embedding);
    assert_int_equal(m->ropes[0].kind, ROPE_PLAIN);
    assert_int_equal(m->ropes[0].dims, 16);
    assert_int_equal((int)m->ropes[0].theta, 50000);
    assert_true(m->ropes[0].adjacent);
    checkpoint_close(c);

    struct gguf_writer w = {0};
    tiny_values(&w, "qwen3");
    gguf_u32(&w, "qwen3.attention.key_length", 32);
    gguf_u32(&w, "qwen3.attention.sliding_window", 64); /* ignored: qwen's files do not use it */
    tiny_tensors(&w, "qwen3", true);
    b = gguf_finish(&w, 32);
    c = open_bytes(&b);
    m = checkpoint_config(c);
    assert_string_equal(m->arch, "qwen3");
    assert_int_equal(m->head_dim, 32);
    assert_int_equal(m->window, 0);
    assert_false(m->tied_embedding);
    assert_false(m->ropes[0].adjacent);
    checkpoint_close(c);
}

/* Version 2 in little-endian is the same as version 3, but for the number. */
static void test_pooling(void **state) {
    static const enum checkpoint_pooling KINDS[] = {POOLING_UNSAID, POOLING_MEAN, POOLING_OTHER,
                                                    POOLING_LAST, POOLING_OTHER};
    (void)state;
    for (uint32_t kind = 0; kind < 5; kind++) {
        struct gguf_writer w = {0};
        tiny_values(&w, "qwen3");
        gguf_u32(&w, "qwen3.pooling_type", kind);
        tiny_tensors(&w, "qwen3", true);
        struct text_buf b = gguf_finish(&w, 32);
        struct checkpoint *c = open_bytes(&b);
        assert_int_equal(checkpoint_pooling(c), KINDS[kind]);
        checkpoint_close(c);
    }
}

static void test_version_2(void **state) {
    (void)state;
    struct text_buf b = tiny_gguf("qwen2");
    overwrite(&b, 4, "\2", 1);
    struct checkpoint *c = open_bytes(&b);
    assert_string_equal(checkpoint_format(c), "GGUF v2");
    assert_int_equal(checkpoint_config(c)->dim, 64);
    assert_int_equal(checkpoint_tensor_count(c), 2 + 2 * 12);
    checkpoint_close(c);
}

static void test_tensors(void **state) {
    (void)state;
    struct text_buf b = tiny_gguf("llama");
    struct checkpoint *c = open_bytes(&b);
    assert_int_equal(checkpoint_tensor_count(c), 2 + 2 * 9);
    const struct checkpoint_tensor *t = checkpoint_find(c, "model.layers.1.mlp.down_proj.weight");
    assert_non_null(t);
    assert_int_equal(t->type, WEIGHT_Q4_1);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], 64); /* slowest first: [n][k] */
    assert_int_equal(t->dims[1], 96);
    assert_int_equal(t->bytes, 64 * 96 / 32 * 20);
    assert_int_equal(*(const uint8_t *)t->data, 1);
    t = checkpoint_find(c, "model.norm.weight");
    assert_non_null(t);
    assert_int_equal(t->n_dims, 1);
    assert_int_equal(t->dims[0], 64);
    assert_int_equal(*(const uint8_t *)t->data, 0x3f);
    assert_null(checkpoint_find(c, "output_norm.weight"));
    assert_null(checkpoint_tensor_at(c, 20));
    checkpoint_close(c);
}

static void test_names(void **state) {
    (void)state;
    static const char *const names[][2] = {
        {"token_embd.weight", "model.embed_tokens.weight"},
        {"output.weight", "lm_head.weight"},
        {"output_norm.weight", "model.norm.weight"},
        {"rope_freqs.weight", "rope_freqs.weight"},
        {"blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"},
        {"blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight"},
        {"blk.12.attn_k.bias", "model.layers.12.self_attn.k_proj.bias"},
        {"blk.1.attn_v.weight", "model.layers.1.self_attn.v_proj.weight"},
        {"blk.1.attn_output.weight", "model.layers.1.self_attn.o_proj.weight"},
        {"blk.1.attn_q_norm.weight", "model.layers.1.self_attn.q_norm.weight"},
        {"blk.1.attn_k_norm.weight", "model.layers.1.self_attn.k_norm.weight"},
        {"blk.1.ffn_norm.weight", "model.layers.1.post_attention_layernorm.weight"},
        {"blk.1.ffn_gate.weight", "model.layers.1.mlp.gate_proj.weight"},
        {"blk.1.ffn_up.weight", "model.layers.1.mlp.up_proj.weight"},
        {"blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"},
        /* A name that is unknown, or would clash with another, stays as it is. */
        {"blk.01.ffn_down.weight", "blk.01.ffn_down.weight"},
        {"blk..ffn_down.weight", "blk..ffn_down.weight"},
        {"blk.1", "blk.1"},
        {"blk.1.", "blk.1."},
        {"blk.1.ffn_gate_inp.weight", "blk.1.ffn_gate_inp.weight"},
        {"output", "lm_head"},
        {"blk.99999999999.ffn_down.weight", "blk.99999999999.ffn_down.weight"},
        {"x", "x"},
    };
    const struct model_config c = {.arch = "llama"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *name = gguf_tensor_name(&c, names[i][0], strlen(names[i][0]));
        assert_string_equal(name, names[i][1]);
        mem_free(name);
    }
}

static void test_tokenizer(void **state) {
    (void)state;
    struct text_buf b = tiny_gguf("llama");
    struct checkpoint *c = open_bytes(&b);
    const struct tokenizer_spec *t = checkpoint_tokenizer(c);
    assert_non_null(t);
    assert_string_equal(t->model, "gpt2");
    assert_string_equal(t->pre, "smollm");
    assert_int_equal(t->n_tokens, 8);
    assert_int_equal(t->pieces[4].len, 2);
    assert_memory_equal(t->pieces[4].data, "ab", 2);
    assert_int_equal(t->kinds[0], TOKEN_CONTROL);
    assert_int_equal(t->kinds[7], TOKEN_NORMAL);
    assert_int_equal(t->n_merges, 1);
    assert_memory_equal(t->merges[0].data, "a b", 3);
    assert_int_equal(t->bos, 0);
    assert_int_equal(t->eos, 1);
    assert_int_equal(t->eot, -1);
    assert_int_equal(t->unk, -1);
    assert_int_equal(t->pad, -1);
    assert_true(t->add_bos);
    assert_false(t->add_eos);
    assert_string_equal(checkpoint_chat_template(c), "{{ messages[0].content }}");
    checkpoint_close(c);
}

/* Values that are not used, of any type, must not disturb those that are. */
static void test_value_types(void **state) {
    (void)state;
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    struct gguf_writer w = {0};
    char key[32];
    for (uint32_t type = 0; type < GGUF_TYPES; type++) {
        if (!bytes[type])
            continue;
        snprintf(key, sizeof key, "z.%u", type);
        gguf_key(&w, key, type);
        put(&w.values, "\1\0\0\0\0\0\0\0", bytes[type]);
        snprintf(key, sizeof key, "a.array.%u", type);
        gguf_array(&w, key, type, 3);
        put(&w.values, "\1\0\1\0\1\0\1\0\1\0\1\0\1\0\1\0\1\0\1\0\1\0\1\0", 3 * bytes[type]);
    }
    gguf_array(&w, "b.empty", GGUF_STRING, 0);
    gguf_array(&w, "b.nested", GGUF_ARRAY, 2);
    put_u32(&w.values, GGUF_STRING); /* [["x"], []] */
    put_u64(&w.values, 1);
    put_text(&w.values, "x");
    put_u32(&w.values, GGUF_U8);
    put_u64(&w.values, 0);
    gguf_u32(&w, "general.alignment", 64);
    tiny_values(&w, "llama");
    gguf_matrix(&w, "token_embd.weight", WEIGHT_F32, 8, 64);
    struct text_buf b = gguf_finish(&w, 64);
    struct checkpoint *c = open_bytes(&b);
    assert_int_equal(checkpoint_config(c)->dim, 64);
    assert_int_equal(checkpoint_tensor_count(c), 1);
    checkpoint_close(c);

    /* A size may have any integer type. */
    w = (struct gguf_writer){0};
    tiny_values(&w, "llama");
    gguf_key(&w, "llama.attention.key_length", GGUF_I64);
    put_u64(&w.values, 16);
    gguf_key(&w, "llama.attention.value_length", GGUF_U8);
    put_u8(&w.values, 16);
    tiny_tensors(&w, "llama", true);
    b = gguf_finish(&w, 32);
    c = open_bytes(&b);
    assert_int_equal(checkpoint_config(c)->head_dim, 16);
    checkpoint_close(c);
}

static void test_real_files(void **state) {
    (void)state;
    static const struct {
        const char *path;
        size_t tensors, tokens, merges;
        uint32_t layers, dim, heads, kv_heads, head_dim, ffn_dim;
    } files[] = {
        {MODELS_DIR "/SmolLM2-135M-Instruct.Q4_1.gguf", 272, 49152, 48900, 30, 576, 9, 3, 64, 1536},
        {SHARED_DIR "/models/stories260K/stories260K-f32.gguf", 47, 512, 0, 5, 64, 8, 4, 8, 172},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (access(files[i].path, R_OK) != 0) {
            printf("not there: %s\n", files[i].path);
            data_missing = true;
            continue;
        }
        struct model *model;
        kvasir_error err = {0};
        if (model_open(files[i].path, &model, &err) != KVASIR_OK)
            fail_msg("%s", err.text);
        const struct checkpoint *c = model_checkpoint(model);
        const struct model_config *m = model_config(model);
        const struct tokenizer_spec *t = checkpoint_tokenizer(c);
        assert_int_equal(checkpoint_tensor_count(c), files[i].tensors);
        assert_non_null(t);
        assert_int_equal(t->n_tokens, files[i].tokens);
        assert_int_equal(t->n_merges, files[i].merges);
        assert_string_equal(t->model, files[i].merges ? "gpt2" : "llama");
        assert_int_equal(t->scores != NULL, files[i].merges == 0);
        assert_int_equal(m->vocab, files[i].tokens);
        assert_int_equal(m->n_layers, files[i].layers);
        assert_int_equal(m->dim, files[i].dim);
        assert_int_equal(m->heads, files[i].heads);
        assert_int_equal(m->kv_heads, files[i].kv_heads);
        assert_int_equal(m->head_dim, files[i].head_dim);
        assert_int_equal(m->ffn_dim, files[i].ffn_dim);
        assert_true(m->ropes[0].adjacent && m->tied_embedding);
        model_close(model);
    }
}

/* ---- what it must refuse --------------------------------------------------------------------- */

static void test_header(void **state) {
    (void)state;
    static const struct {
        uint32_t version;
        const char *words;
    } versions[] = {{1, "GGUF version 1 is not supported"},
                    {0, "GGUF version 0 is not supported"},
                    {4, "GGUF version 4 is not supported"},
                    {0x02000000, "big-endian GGUF is not supported"},
                    {0x03000000, "big-endian GGUF is not supported"}};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        struct text_buf b = tiny_gguf("llama");
        overwrite(&b, 4, &versions[i].version, 4);
        refused(&b, KVASIR_ERR_UNSUPPORTED, versions[i].words);
    }
    struct text_buf b = tiny_gguf("llama");
    overwrite(&b, 0, "GGML", 4);
    refused(&b, KVASIR_ERR_FORMAT, "not a GGUF file");
    for (size_t at = 8; at <= 16; at += 8) { /* the count of tensors, then of values: too large */
        b = tiny_gguf("llama");
        overwrite(&b, at, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
        refused(&b, KVASIR_ERR_FORMAT, "");
    }
}

static void test_values(void **state) {
    (void)state;
    static const struct {
        const char *key;
        size_t at; /* from the key's end: the type, then the value */
        const char *bytes;
        size_t n;
        kvasir_status status;
        const char *words;
    } cases[] = {
        {"general.architecture", 12, "gemma", 5, KVASIR_ERR_UNSUPPORTED,
         "general.architecture gemma is not supported, only llama, qwen2, qwen3, qwen3moe"},
        {"general.architecture", 0, "\4\0\0\0", 4, KVASIR_ERR_FORMAT, ""},
        {"llama.block_count", 0, "\x0d\0\0\0", 4, KVASIR_ERR_FORMAT, "unknown metadata type 13"},
        {"llama.block_count", 0, "\6\0\0\0", 4, KVASIR_ERR_FORMAT,
         "llama.block_count must be an integer, found f32"},
        {"llama.block_count", 4, "\0\0\0\0", 4, KVASIR_ERR_FORMAT,
         "llama.block_count is 0, must be from 1"},
        {"llama.embedding_length", 4, "\xff\xff\xff\xff", 4, KVASIR_ERR_FORMAT,
         "llama.embedding_length is 4294967295"},
        {"llama.vocab_size", 4, "\7", 1, KVASIR_ERR_FORMAT,
         "llama.vocab_size is 7, but tokenizer.ggml.tokens holds 8"},
        {"llama.rope.freq_base", 4, "\0\0\xc0\x7f", 4, KVASIR_ERR_FORMAT, "freq_base is nan"},
        {"layer_norm_rms_epsilon", 4, "\0\0\0\x80", 4, KVASIR_ERR_FORMAT, "rms_epsilon is -0"},
        {"add_bos_token", 4, "\2", 1, KVASIR_ERR_FORMAT, "is a bool of value 2"},
        {"tokenizer.ggml.tokens", 4, "\4", 1, KVASIR_ERR_FORMAT, ""},
        {"tokenizer.ggml.tokens", 8, "\xff\xff\xff\xff\xff\xff\xff\x1f", 8, KVASIR_ERR_FORMAT,
         "an array of 2305843009213693951 x string does not fit"},
        {"tokenizer.ggml.token_type", 4, "\6", 1, KVASIR_ERR_FORMAT, "must be an array of 32-bit"},
        {"tokenizer.ggml.token_type", 16 + 4, "\7", 1, KVASIR_ERR_FORMAT, "token 1 has kind 7"},
        {"tokenizer.ggml.merges", 16, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, KVASIR_ERR_FORMAT,
         "the file ends inside a string"},
        {"tokenizer.ggml.bos_token_id", 4, "\x8", 1, KVASIR_ERR_FORMAT,
         "bos_token_id is 8, but there are 8 tokens"},
        {"tokenizer.chat_template", 12, "\0", 1, KVASIR_ERR_FORMAT, "holds a zero byte"},
        {"tokenizer.ggml.pre", 4, "\xff\xff\xff\xff\xff\xff\xff\x7f", 8, KVASIR_ERR_FORMAT,
         "the file ends inside a metadata value"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text_buf b = tiny_gguf("llama");
        overwrite(&b, behind(&b, cases[i].key) + cases[i].at, cases[i].bytes, cases[i].n);
        refused(&b, cases[i].status, cases[i].words);
    }
}

/* One more value after the tiny model's. */
static void test_more_values(void **state) {
    (void)state;
    static const struct {
        const char *key;
        uint32_t type; /* u32, f32 or string */
        uint32_t number;
        const char *text;
        kvasir_status status;
        const char *words;
    } cases[] = {
        {"general.name", GGUF_STRING, 0, "x", KVASIR_ERR_FORMAT,
         "duplicate metadata key general.name"},
        {"general.type", GGUF_STRING, 0, "adapter", KVASIR_ERR_UNSUPPORTED, "is adapter"},
        {"general.alignment", GGUF_U32, 48, NULL, KVASIR_ERR_FORMAT, "must be a power of two"},
        {"general.alignment", GGUF_U32, 4, NULL, KVASIR_ERR_FORMAT, "must be from 8"},
        {"split.count", GGUF_U32, 3, NULL, KVASIR_ERR_FORMAT,
         "split.count is 3: the names of such parts must end in -00001-of-00003.gguf"},
        {"llama.expert_count", GGUF_U32, 8, NULL, KVASIR_ERR_UNSUPPORTED, "expert_count is 8"},
        {"llama.attention.value_length", GGUF_U32, 8, NULL, KVASIR_ERR_UNSUPPORTED, "is 8"},
        {"llama.logit_scale", GGUF_F32, 0x40000000, NULL, KVASIR_ERR_UNSUPPORTED,
         "logit_scale is 2"},
        {"tokenizer.ggml.eot_token_id", GGUF_U32, 99, NULL, KVASIR_ERR_FORMAT, "is 99"},
        {"", GGUF_U32, 0, NULL, KVASIR_ERR_FORMAT, "a metadata key must have"},
        {"new\nline", GGUF_U32, 0, NULL, KVASIR_ERR_FORMAT, "a metadata key must have"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf_writer w = {0};
        tiny_values(&w, "llama");
        gguf_key(&w, cases[i].key, cases[i].type);
        if (cases[i].text)
            put_text(&w.values, cases[i].text);
        else
            put_u32(&w.values, cases[i].number);
        tiny_tensors(&w, "llama", false);
        struct text_buf b = gguf_finish(&w, 32);
        refused(&b, cases[i].status, cases[i].words);
    }
    /* Arrays in arrays in arrays ... */
    struct gguf_writer w = {0};
    gguf_array(&w, "deep", GGUF_ARRAY, 1);
    for (int i = 0; i < 100000; i++) {
        put_u32(&w.values, GGUF_ARRAY);
        put_u64(&w.values, 1);
    }
    struct text_buf b = gguf_finish(&w, 32);
    refused(&b, KVASIR_ERR_FORMAT, "nested deeper");
}

static void test_bad_tensors(void **state) {
    (void)state;
    static const char name[] = "blk.1.attn_k.weight"; /* u32 2, u64 64, u64 32, u32 type, u64 at */
    static const struct {
        size_t at;
        const char *bytes;
        size_t n;
        kvasir_status status;
        const char *words;
    } cases[] = {
        {0, "\0", 1, KVASIR_ERR_FORMAT, "has 0 dimensions"},
        {0, "\5", 1, KVASIR_ERR_FORMAT, "has 5 dimensions"},
        {4, "\0", 1, KVASIR_ERR_FORMAT, "has an empty dimension"},
        {4, "\x41", 1, KVASIR_ERR_FORMAT, "its rows are not a multiple of 32 (Q4_0)"},
        {4, "\0\0\0\0\0\0\0\x40\0\0\0\0\0\0\0\x40", 16, KVASIR_ERR_FORMAT, "overflows"},
        {12, "\0\0\0\0\0\0\0\x80", 8, KVASIR_ERR_FORMAT, "overflows"},
        {20, "\x10", 1, KVASIR_ERR_UNSUPPORTED, "tensor blk.1.attn_k.weight has type IQ2_XXS (16)"},
        {20, "\xec\x03", 2, KVASIR_ERR_UNSUPPORTED, "has type unknown (1004)"}, /* ours: AFFINE4 */
        {20, "\xff\xff", 2, KVASIR_ERR_UNSUPPORTED, "has type unknown (65535)"},
        {24, "\1", 1, KVASIR_ERR_FORMAT, "is not a multiple of the alignment 32"},
        {24, "\0\0\0\0\0\0\0\x80", 8, KVASIR_ERR_FORMAT, "pass the file's end"},
        {24, "\0\0", 2, KVASIR_ERR_FORMAT, "overlap"},
        {12, "\0\1", 2, KVASIR_ERR_FORMAT, "overlap"},
        {12, "\x21", 1, KVASIR_ERR_FORMAT, "overlap"}, /* by one row */
        {(size_t)-19, "blk.1.attn_v", 12, KVASIR_ERR_FORMAT, "duplicate tensor"},
        {(size_t)-19, "\n", 1, KVASIR_ERR_FORMAT, "a tensor's name must have"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text_buf b = tiny_gguf("llama");
        overwrite(&b, behind(&b, name) + cases[i].at, cases[i].bytes, cases[i].n);
        refused(&b, cases[i].status, cases[i].words);
    }
    struct gguf_writer w = {0};
    tiny_values(&w, "llama");
    struct text_buf b = gguf_finish(&w, 32);
    refused(&b, KVASIR_ERR_FORMAT, "holds no tensors");
}

/* ---- binding --------------------------------------------------------------------------------- */

static void test_load(void **state) {
    (void)state;
    static const char *const archs[] = {"llama", "qwen2", "qwen3"};
    for (size_t i = 0; i < 3; i++) {
        struct text_buf b = tiny_gguf(archs[i]);
        const char *path = temp_write(&folder, "load.gguf", b.data, b.len);
        struct model *m;
        kvasir_error err = {0};
        if (model_open(path, &m, &err) != KVASIR_OK)
            fail_msg("%s", err.text);
        const struct layer_weights *l = &m->layers[1];
        assert_int_equal(model_matrix(m, m->embed)->n, 8);
        assert_int_equal(model_matrix(m, m->embed)->k, 64);
        assert_ptr_equal(model_matrix(m, m->head)->data, model_matrix(m, m->embed)->data);
        assert_int_equal(model_matrix(m, l->mlp.down)->n, 64);
        assert_int_equal(model_matrix(m, l->mlp.down)->k, 96);
        assert_int_equal(model_matrix(m, l->v)->type, WEIGHT_BF16);
        assert_int_equal(!!l->q_bias && !!l->k_bias && !!l->v_bias, i == 1);
        assert_int_equal(!!l->q_norm && !!l->k_norm, i == 2);
        uint32_t bits;
        memcpy(&bits, &m->vectors[l->ffn_norm].data[63], sizeof bits);
        assert_int_equal(bits, 0x3f3f3f3f);
        struct kv_shape groups[CACHE_GROUPS_MAX];
        assert_int_equal(model_kv_groups(m, groups), 1);
        assert_int_equal(groups[0].layers, 2);
        assert_int_equal(groups[0].kv_heads, 2);
        assert_int_equal(groups[0].head_dim, 16);
        model_close(m);
        text_free(&b);
    }
}

static void load_refused(struct text_buf *b, kvasir_status status, const char *words) {
    const char *path = temp_write(&folder, "load.gguf", b->data, b->len);
    struct model *m;
    kvasir_error err = {0};
    kvasir_status found = model_open(path, &m, &err);
    if (found == KVASIR_OK) {
        model_close(m);
        fail_msg("loaded, should say: %s", words);
    }
    if (found != status || !strstr(err.text, words))
        fail_msg("status %d, text: %s; wanted %d: %s", found, err.text, status, words);
    assert_clear_error(&err, status, path);
    assert_null(m);
    text_free(b);
}

static void test_load_refused(void **state) {
    (void)state;
    struct text_buf b = tiny_gguf("llama"); /* a [64][64] tensor declared as [32][128] */
    overwrite(&b, behind(&b, "blk.1.attn_output.weight") + 4, "\x80\0\0\0\0\0\0\0\x20", 9);
    load_refused(&b, KVASIR_ERR_FORMAT,
                 "tensor model.layers.1.self_attn.o_proj.weight has shape [32, 128], expected [64, "
                 "64]");
    b = tiny_gguf("llama");
    overwrite(&b, behind(&b, "blk.1.attn_output") - 1, "X", 1);
    load_refused(&b, KVASIR_ERR_FORMAT, "tensor model.layers.1.self_attn.o_proj.weight is missing");
    b = tiny_gguf("llama");
    overwrite(&b, behind(&b, "llama.block_count") + 4, "\1", 1);
    load_refused(&b, KVASIR_ERR_UNSUPPORTED, "is not part of a llama model");
    b = tiny_gguf("llama");
    overwrite(&b, behind(&b, "llama.block_count") + 4, "\0\2", 2);
    load_refused(&b, KVASIR_ERR_FORMAT, "has 512 layers, the file 20 tensors");
    b = tiny_gguf("llama");
    b.data[behind(&b, "llama.attention.head_count_kv") + 4] = 3;
    load_refused(&b, KVASIR_ERR_UNSUPPORTED, "4 heads for 3 KV heads");
    b = tiny_gguf("llama");
    b.data[behind(&b, "llama.rope.dimension_count") + 4] = 18;
    load_refused(&b, KVASIR_ERR_FORMAT, "rope rotates 18 of a head's 16 dims");

    struct gguf_writer w = {0};
    tiny_values(&w, "llama");
    gguf_u32(&w, "llama.attention.key_length", 1024);
    tiny_tensors(&w, "llama", false);
    b = gguf_finish(&w, 32);
    load_refused(&b, KVASIR_ERR_UNSUPPORTED, "heads of 1024 dims");
    w = (struct gguf_writer){0};
    tiny_values(&w, "llama");
    tiny_tensors(&w, "qwen2", false); /* biases that llama would not add */
    b = gguf_finish(&w, 32);
    load_refused(&b, KVASIR_ERR_UNSUPPORTED, "k_proj.bias is not part of a llama model");
    w = (struct gguf_writer){0};
    tiny_values(&w, "llama");
    tiny_tensors(&w, "llama", false);
    gguf_tensor(&w, "rope_freqs.weight", WEIGHT_F32, 1, (uint64_t[]){8}, 0);
    b = gguf_finish(&w, 32);
    load_refused(&b, KVASIR_ERR_FORMAT, "rope_freqs.weight: factor 0 is 0");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config),      cmocka_unit_test(test_version_2),
        cmocka_unit_test(test_pooling),     cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_names),       cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_value_types), cmocka_unit_test(test_real_files),
        cmocka_unit_test(test_header),      cmocka_unit_test(test_values),
        cmocka_unit_test(test_more_values), cmocka_unit_test(test_bad_tensors),
        cmocka_unit_test(test_load),        cmocka_unit_test(test_load_refused),
    };
    temp_folder_make(&folder);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    temp_folder_remove(&folder);
    return failed ? failed : data_missing ? 77 : 0;
}
