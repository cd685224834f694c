/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of checkpoints: a temporary folder, small writers of GGUF and safetensors
 * files, and a tiny model in each format. The writers follow the formats' documents, not our
 * readers. Include it after the system headers; it includes cmocka. */
#ifndef KVASIR_MODEL_FILES_H
#define KVASIR_MODEL_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/model_internal.h"

#include <cmocka.h> /* after util.h: it defines a macro `fail` */

/* ---- files ----------------------------------------------------------------------------------- */

struct temp_folder {
    char path[64];
    char file[192]; /* what temp_file returned last */
};

static inline void temp_folder_make(struct temp_folder *t) {
    snprintf(t->path, sizeof t->path, "/tmp/kvasir-test-XXXXXX");
    if (!mkdtemp(t->path))
        abort();
}

static inline const char *temp_file(struct temp_folder *t, const char *name) {
    snprintf(t->file, sizeof t->file, "%s/%s", t->path, name);
    return t->file;
}

static inline const char *temp_write(struct temp_folder *t, const char *name, const void *data,
                                     size_t size) {
    FILE *f = fopen(temp_file(t, name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
    return t->file;
}

static inline void temp_folder_remove(struct temp_folder *t) {
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", t->path);
    if (system(command) != 0)
        printf("could not remove %s\n", t->path);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static inline void put(struct text_buf *b, const void *data, size_t n) {
    assert_true(text_append(b, data, n));
}

static inline void put_u8(struct text_buf *b, uint8_t x) {
    put(b, &x, sizeof x);
}

static inline void put_u32(struct text_buf *b, uint32_t x) {
    put(b, &x, sizeof x);
}

static inline void put_u64(struct text_buf *b, uint64_t x) {
    put(b, &x, sizeof x);
}

static inline void put_text(struct text_buf *b, const char *text) {
    put_u64(b, strlen(text));
    put(b, text, strlen(text));
}

/* Offset of the byte after the only occurrence of `text`. */
static inline size_t behind(const struct text_buf *b, const char *text) {
    size_t len = strlen(text), end = 0;
    for (size_t i = 0; i + len <= b->len; i++)
        if (memcmp(b->data + i, text, len) == 0) {
            if (end)
                fail_msg("occurs twice: %s", text);
            end = i + len;
        }
    if (!end)
        fail_msg("does not occur: %s", text);
    return end;
}

static inline void overwrite(struct text_buf *b, size_t at, const void *data, size_t n) {
    assert_true(at + n <= b->len);
    memcpy(b->data + at, data, n);
}

/* ---- GGUF ------------------------------------------------------------------------------------ */

struct gguf_writer {
    struct text_buf values, infos, data;
    uint64_t n_values, n_tensors;
};

static inline void gguf_key(struct gguf_writer *w, const char *key, uint32_t type) {
    put_text(&w->values, key);
    put_u32(&w->values, type);
    w->n_values++;
}

static inline void gguf_u32(struct gguf_writer *w, const char *key, uint32_t x) {
    gguf_key(w, key, GGUF_U32);
    put_u32(&w->values, x);
}

static inline void gguf_f32(struct gguf_writer *w, const char *key, float x) {
    gguf_key(w, key, GGUF_F32);
    put(&w->values, &x, sizeof x);
}

static inline void gguf_bool(struct gguf_writer *w, const char *key, uint8_t x) {
    gguf_key(w, key, GGUF_BOOL);
    put_u8(&w->values, x);
}

static inline void gguf_string(struct gguf_writer *w, const char *key, const char *text) {
    gguf_key(w, key, GGUF_STRING);
    put_text(&w->values, text);
}

static inline void gguf_array(struct gguf_writer *w, const char *key, uint32_t elem, uint64_t n) {
    gguf_key(w, key, GGUF_ARRAY);
    put_u32(&w->values, elem);
    put_u64(&w->values, n);
}

/* dims: fastest first, as the file has them. */
static inline void gguf_info(struct gguf_writer *w, const char *name, uint32_t type,
                             uint32_t n_dims, const uint64_t *dims) {
    put_text(&w->infos, name);
    put_u32(&w->infos, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        put_u64(&w->infos, dims[i]);
    put_u32(&w->infos, type);
    put_u64(&w->infos, w->data.len);
    w->n_tensors++;
}

/* The data is filled with `fill`. */
static inline void gguf_tensor(struct gguf_writer *w, const char *name, uint32_t type,
                               uint32_t n_dims, const uint64_t *dims, uint8_t fill) {
    const struct weight_traits *traits = weight_traits_of(type);
    uint64_t values = 1;
    for (uint32_t i = 0; i < n_dims; i++)
        values *= dims[i];
    uint64_t bytes = values / traits->block_values * traits->block_bytes;
    gguf_info(w, name, type, n_dims, dims);
    for (uint64_t i = 0; i < bytes || w->data.len % 32 != 0; i++)
        put_u8(&w->data, fill);
}

static inline void gguf_data(struct gguf_writer *w, const char *name, uint32_t type,
                             uint32_t n_dims, const uint64_t *dims, const void *data, size_t n) {
    gguf_info(w, name, type, n_dims, dims);
    put(&w->data, data, n);
    while (w->data.len % 32 != 0)
        put_u8(&w->data, 0);
}

static inline void gguf_matrix(struct gguf_writer *w, const char *name, uint32_t type, uint64_t n,
                               uint64_t k) {
    gguf_tensor(w, name, type, 2, (uint64_t[]){k, n}, 1);
}

static inline void gguf_vector(struct gguf_writer *w, const char *name, uint64_t n) {
    gguf_tensor(w, name, WEIGHT_F32, 1, &n, 0x3f);
}

/* The whole file; frees the writer. Data begins at a multiple of `alignment`. */
static inline struct text_buf gguf_finish(struct gguf_writer *w, uint32_t alignment) {
    struct text_buf out = {0};
    put(&out, "GGUF", 4);
    put_u32(&out, 3);
    put_u64(&out, w->n_tensors);
    put_u64(&out, w->n_values);
    put(&out, w->values.data, w->values.len);
    put(&out, w->infos.data, w->infos.len);
    while (out.len % alignment != 0)
        put_u8(&out, 0);
    if (w->data.len)
        put(&out, w->data.data, w->data.len);
    text_free(&w->values);
    text_free(&w->infos);
    text_free(&w->data);
    return out;
}

/* A tiny model: 2 layers, 64 dims, 4 heads of 16 for 2 KV heads, ffn 96, 8 tokens. */
static inline void tiny_values(struct gguf_writer *w, const char *arch) {
    static const char *const tokens[] = {"<s>", "</s>", "a", "b", "ab", "\xc4\xa0", "c", "<pad>"};
    static const struct {
        const char *name;
        uint32_t value;
    } sizes[] = {
        {"block_count", 2},           {"embedding_length", 64},    {"feed_forward_length", 96},
        {"context_length", 256},      {"attention.head_count", 4}, {"attention.head_count_kv", 2},
        {"rope.dimension_count", 16}, {"vocab_size", 8},
    };
    char key[96];
    gguf_string(w, "general.architecture", arch);
    gguf_string(w, "general.name", "Tiny");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, sizes[i].name);
        gguf_u32(w, key, sizes[i].value);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    gguf_f32(w, key, 1e-5f);
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    gguf_f32(w, key, 50000);
    gguf_string(w, "tokenizer.ggml.model", "gpt2");
    gguf_string(w, "tokenizer.ggml.pre", "smollm");
    gguf_array(w, "tokenizer.ggml.tokens", GGUF_STRING, 8);
    for (size_t i = 0; i < 8; i++)
        put_text(&w->values, tokens[i]);
    gguf_array(w, "tokenizer.ggml.token_type", GGUF_I32, 8);
    for (uint32_t i = 0; i < 8; i++)
        put_u32(&w->values, i < 2 ? TOKEN_CONTROL : TOKEN_NORMAL);
    gguf_array(w, "tokenizer.ggml.merges", GGUF_STRING, 1);
    put_text(&w->values, "a b");
    gguf_u32(w, "tokenizer.ggml.bos_token_id", 0);
    gguf_u32(w, "tokenizer.ggml.eos_token_id", 1);
    gguf_bool(w, "tokenizer.ggml.add_bos_token", 1);
    gguf_string(w, "tokenizer.chat_template", "{{ messages[0].content }}");
}

static inline void tiny_layer(struct gguf_writer *w, const char *arch, int i) {
    char name[64];
#define TINY(part) (snprintf(name, sizeof name, "blk.%d.%s", i, part), name)
    gguf_vector(w, TINY("attn_norm.weight"), 64);
    gguf_matrix(w, TINY("attn_q.weight"), WEIGHT_Q4_1, 64, 64);
    gguf_matrix(w, TINY("attn_k.weight"), WEIGHT_Q4_0, 32, 64);
    gguf_matrix(w, TINY("attn_v.weight"), WEIGHT_BF16, 32, 64);
    gguf_matrix(w, TINY("attn_output.weight"), WEIGHT_F32, 64, 64);
    if (strcmp(arch, "qwen2") == 0) {
        gguf_vector(w, TINY("attn_q.bias"), 64);
        gguf_vector(w, TINY("attn_k.bias"), 32);
        gguf_vector(w, TINY("attn_v.bias"), 32);
    }
    if (strcmp(arch, "qwen3") == 0) {
        gguf_vector(w, TINY("attn_q_norm.weight"), 16);
        gguf_vector(w, TINY("attn_k_norm.weight"), 16);
    }
    gguf_vector(w, TINY("ffn_norm.weight"), 64);
    gguf_matrix(w, TINY("ffn_gate.weight"), WEIGHT_Q4_1, 96, 64);
    gguf_matrix(w, TINY("ffn_up.weight"), WEIGHT_Q4_1, 96, 64);
    gguf_matrix(w, TINY("ffn_down.weight"), WEIGHT_Q4_1, 64, 96);
#undef TINY
}

static inline void tiny_tensors(struct gguf_writer *w, const char *arch, bool output) {
    gguf_matrix(w, "token_embd.weight", WEIGHT_Q8_0, 8, 64);
    if (output)
        gguf_matrix(w, "output.weight", WEIGHT_F16, 8, 64);
    gguf_vector(w, "output_norm.weight", 64);
    for (int i = 0; i < 2; i++)
        tiny_layer(w, arch, i);
}

static inline struct text_buf tiny_gguf(const char *arch) {
    struct gguf_writer w = {0};
    tiny_values(&w, arch);
    tiny_tensors(&w, arch, false);
    return gguf_finish(&w, 32);
}

/* ---- safetensors ----------------------------------------------------------------------------- */

/* A file with this header, padded to 8 bytes, and then `data` bytes of data. */
static inline struct text_buf safetensors_bytes(const char *header, size_t data) {
    struct text_buf out = {0};
    size_t len = strlen(header);
    put_u64(&out, round_up(len, 8));
    put(&out, header, len);
    while (out.len % 8 != 0)
        put_u8(&out, ' ');
    for (size_t i = 0; i < data; i++)
        put_u8(&out, (uint8_t)i);
    return out;
}

/* Tensors of a file one after the other. */
struct safetensors_writer {
    struct text_buf header, data;
};

static inline void safetensors_add(struct safetensors_writer *w, const char *name,
                                   const char *dtype, uint32_t n_dims, const uint64_t *dims,
                                   const void *data, size_t n) {
    assert_true(text_printf(&w->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                            w->header.len ? "," : "{", name, dtype));
    for (uint32_t i = 0; i < n_dims; i++)
        assert_true(text_printf(&w->header, "%s%llu", i ? "," : "", (unsigned long long)dims[i]));
    assert_true(
        text_printf(&w->header, "],\"data_offsets\":[%zu,%zu]}", w->data.len, w->data.len + n));
    put(&w->data, data, n);
}

/* The whole file, the header unpadded as mlx has it; frees the writer. */
static inline struct text_buf safetensors_finish(struct safetensors_writer *w) {
    struct text_buf out = {0};
    put(&w->header, "}", 1);
    put_u64(&out, w->header.len);
    put(&out, w->header.data, w->header.len);
    put(&out, w->data.data, w->data.len);
    text_free(&w->header);
    text_free(&w->data);
    return out;
}

/* A config.json for tests that are about tensors only; more: further fields, each after a comma. */
#define TINY_CONFIG TINY_CONFIG_WITH("")
#define TINY_CONFIG_WITH(more)                                                                     \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,\"intermediate_size\":96,"       \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"                 \
    "\"vocab_size\":8,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true" more "}"

/* ---- folders of quantized modules ------------------------------------------------------------ */

/* One field that nobody reads, so that not every flipped bit is an error. */
#define TINY_UNREAD ",\"_name_or_path\":\"somewhere/quite/else\""
#define TINY_MLX_CONFIG                                                                            \
    TINY_CONFIG_WITH(TINY_UNREAD ",\"quantization\":{\"group_size\":32,\"bits\":4,"                \
                                 "\"model.embed_tokens\":{\"group_size\":64,\"bits\":8},"          \
                                 "\"model.layers.1.self_attn.q_proj\":{\"mode\":\"mxfp4\"}}")
#define TINY_F8_CONFIG                                                                             \
    TINY_CONFIG_WITH(TINY_UNREAD ",\"quantization_config\":{\"quant_method\":\"fp8\","             \
                                 "\"weight_block_size\":[32,32]}")

struct tiny_folder {
    struct safetensors_writer w;
    bool f8;
    int layer; /* -1: of the whole model */
};

static inline void tiny_part(struct tiny_folder *f, const char *module, const char *part,
                             const char *dtype, uint64_t n, uint64_t cols, size_t bytes) {
    static const uint8_t zeros[1 << 14];
    char name[96];
    if (f->layer < 0)
        snprintf(name, sizeof name, "%s.%s", module, part);
    else
        snprintf(name, sizeof name, "model.layers.%d.%s.%s", f->layer, module, part);
    assert_true(bytes <= sizeof zeros);
    safetensors_add(&f->w, name, dtype, cols ? 2 : 1, (uint64_t[]){n, cols}, zeros, bytes);
}

/* A module in the form that the folder's configuration names. */
static inline void tiny_module(struct tiny_folder *f, const char *module, uint64_t n, uint64_t k) {
    bool embed = f->layer < 0, mxfp4 = f->layer == 1 && strcmp(module, "self_attn.q_proj") == 0;
    if (f->f8) {
        tiny_part(f, module, "weight", "F8_E4M3", n, k, n * k);
        tiny_part(f, module, "weight_scale_inv", "F32", (n + 31) / 32, k / 32,
                  (n + 31) / 32 * (k / 32) * 4);
        return;
    }
    uint64_t words = k * (embed ? 8 : 4) / 32, groups = k / (embed ? 64 : 32);
    tiny_part(f, module, "weight", "U32", n, words, n * words * 4);
    if (mxfp4) {
        tiny_part(f, module, "scales", "U8", n, groups, n * groups);
        return;
    }
    tiny_part(f, module, "scales", "F16", n, groups, n * groups * 2);
    tiny_part(f, module, "biases", "F16", n, groups, n * groups * 2);
}

/* The tensors of the tiny model: mlx's with TINY_MLX_CONFIG, 8-bit floats with TINY_F8_CONFIG. */
static inline struct text_buf tiny_folder_tensors(bool f8) {
    struct tiny_folder f = {.f8 = f8, .layer = -1};
    tiny_module(&f, "model.embed_tokens", 8, 64);
    tiny_part(&f, "model.norm", "weight", "BF16", 64, 0, 128);
    for (f.layer = 0; f.layer < 2; f.layer++) {
        tiny_part(&f, "input_layernorm", "weight", "BF16", 64, 0, 128);
        tiny_module(&f, "self_attn.q_proj", 64, 64);
        tiny_module(&f, "self_attn.k_proj", 32, 64);
        tiny_module(&f, "self_attn.v_proj", 32, 64);
        tiny_module(&f, "self_attn.o_proj", 64, 64);
        tiny_part(&f, "post_attention_layernorm", "weight", "BF16", 64, 0, 128);
        tiny_module(&f, "mlp.gate_proj", 96, 64);
        tiny_module(&f, "mlp.up_proj", 96, 64);
        tiny_module(&f, "mlp.down_proj", 64, 96);
    }
    return safetensors_finish(&f.w);
}

/* ---- what every error must be ---------------------------------------------------------------- */

/* One line that names the file or folder, and a place: a byte offset, or a tensor or field. */
static inline void assert_clear_error(const kvasir_error *err, kvasir_status status,
                                      const char *path) {
    static const char *const places[] = {"tensor", "field", "metadata", "head", "file", "folder"};
    assert_int_equal(err->code, status);
    if (strchr(err->text, '\n') || !strstr(err->text, path))
        fail_msg("not one line that names %s: %s", path, err->text);
    bool named = err->offset >= 0 || status == KVASIR_ERR_IO;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        named = named || strstr(err->text, places[i]);
    if (!named)
        fail_msg("names no place: %s", err->text);
}

/* checkpoint_open must fail with this status and these words. */
static inline void assert_refused(const char *path, kvasir_status status, const char *words) {
    struct checkpoint *c;
    kvasir_error err = {0};
    kvasir_status found = checkpoint_open(path, &c, &err);
    if (found == KVASIR_OK) {
        checkpoint_close(c);
        fail_msg("opened, should say: %s", words);
    }
    if (found != status || !strstr(err.text, words))
        fail_msg("status %d, text: %s; wanted %d: %s", found, err.text, status, words);
    assert_clear_error(&err, status, path);
    assert_null(c);
}

#endif
