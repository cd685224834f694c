/* SPDX-License-Identifier: Apache-2.0 */
/* The other files of a converted model's folder.
 *
 *     from a folder   config.json with its quantization replaced; the others are copied
 *     from GGUF       config.json out of the metadata; tokenizer.json, tokenizer_config.json and
 *                     generation_config.json out of the vocabulary
 *
 * GGUF stores Llama 3's scaled rope as one factor per pair (rope_freqs). config.json wants the four
 * numbers they came from: those of Llama 3.1 and 3.2 are tried, and a file with other factors is
 * refused.
 */
#include <stdio.h>
#include <unistd.h>

#include "model/convert.h"

enum { FILE_MAX = 1 << 28 };

/* ---- writing --------------------------------------------------------------------------------- */

static kvasir_status write_text(const char *folder, const char *name, const char *text, size_t len,
                                kvasir_error *err) {
    char path[PATH_MAX_BYTES];
    struct file_writer out;
    TRY(folder_path(path, folder, name, err));
    TRY(file_begin(&out, path, err));
    kvasir_status status;
    TRY_GOTO(file_write(&out, text, len, err));
    TRY_GOTO(file_end(&out, err));
done:
    file_abandon(&out);
    return status;
}

/* Takes the object. */
static kvasir_status write_object_take(const char *folder, const char *name, json_t *object,
                                       kvasir_error *err) {
    char *text = object ? json_dumps(object, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    kvasir_status status = text ? write_text(folder, name, text, strlen(text), err)
                                : fail(err, KVASIR_ERR_MEMORY, "%s: out of memory", name);
    mem_free(text);
    json_decref(object);
    return status;
}

/* What every config.json states about the folder's own tensors. */
static bool set_types(json_t *config, const kvasir_convert_options *o, const char *dtype) {
    const char *name = strcmp(dtype, "F32") == 0   ? "float32"
                       : strcmp(dtype, "F16") == 0 ? "float16"
                                                   : "bfloat16";
    json_object_del(config, "quantization");
    json_object_del(config, "quantization_config");
    json_object_del(config, "dtype");
    bool good = json_object_set_new(config, "torch_dtype", json_string(name)) == 0;
    if (!o->bits)
        return good;
    static const char *const keys[] = {"quantization", "quantization_config"};
    for (size_t i = 0; i < 2; i++)
        good = good &&
               json_object_set_new(config, keys[i],
                                   json_pack("{s:i, s:i, s:s}", "group_size", (int)o->group_size,
                                             "bits", (int)o->bits, "mode", "affine")) == 0;
    return good;
}

/* ---- from a folder --------------------------------------------------------------------------- */

static kvasir_status copy_file(const char *in, const char *folder, const char *name,
                               kvasir_error *err) {
    char path[PATH_MAX_BYTES], *text;
    size_t len;
    TRY(folder_path(path, in, name, err));
    bool exists;
    TRY(file_exists(path, &exists, err));
    if (!exists)
        return KVASIR_OK;
    TRY(file_read_all(path, FILE_MAX, &text, &len, err));
    kvasir_status status = write_text(folder, name, text, len, err);
    mem_free(text);
    return status;
}

static kvasir_status folder_files(const char *in, const char *folder,
                                  const kvasir_convert_options *o, const char *dtype,
                                  kvasir_error *err) {
    static const char *const copied[] = {
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "tokenizer.model",
        "generation_config.json",
        "chat_template.jinja",
        "chat_template.json",
    };
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++)
        TRY(copy_file(in, folder, copied[i], err));
    char path[PATH_MAX_BYTES], *text;
    size_t len;
    json_t *config = NULL;
    TRY(folder_path(path, in, "config.json", err));
    TRY(file_read_all(path, FILE_MAX, &text, &len, err));
    kvasir_status status = in_file(path, json_parse(text, len, 0, &config, err), err);
    mem_free(text);
    TRY(status);
    if (!set_types(config, o, dtype)) {
        json_decref(config);
        return fail(err, KVASIR_ERR_MEMORY, "config.json: out of memory");
    }
    return write_object_take(folder, "config.json", config, err);
}

/* ---- from GGUF: config.json ------------------------------------------------------------------ */

/* The rope_scaling that yields these factors; NULL: none of the known ones. */
static json_t *rope_scaling(const struct model *m) {
    static const double factors[] = {8, 32};
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        struct rope_config rope = m->config.ropes[0];
        rope.kind = ROPE_LLAMA3;
        rope.factor = factors[i];
        rope.low_freq_factor = 1;
        rope.high_freq_factor = 4;
        rope.original_ctx = 8192;
        if (rope_has_factors(&rope, m->rope_factors))
            return json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "factor",
                             rope.factor, "low_freq_factor", rope.low_freq_factor,
                             "high_freq_factor", rope.high_freq_factor,
                             "original_max_position_embeddings", (int)rope.original_ctx);
    }
    return NULL;
}

/* A float32 of the file as the shortest decimal that reads back as the same. */
static json_t *shortest(double x) {
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if ((float)strtod(text, NULL) == (float)x)
            break;
    }
    return json_real(strtod(text, NULL));
}

static bool set_id(json_t *object, const char *key, int32_t id) {
    return id < 0 || json_object_set_new(object, key, json_integer(id)) == 0;
}

static bool set_ids(json_t *object, const struct tokenizer_spec *t) {
    return !t || (set_id(object, "bos_token_id", t->bos) &&
                  set_id(object, "eos_token_id", t->eos) && set_id(object, "pad_token_id", t->pad));
}

static kvasir_status gguf_config(const struct model *m, json_t **out, kvasir_error *err) {
    const struct model_config *c = &m->config;
    static const struct {
        const char *arch, *class;
    } classes[] = {{"llama", "LlamaForCausalLM"},
                   {"mistral", "MistralForCausalLM"},
                   {"qwen2", "Qwen2ForCausalLM"},
                   {"qwen3", "Qwen3ForCausalLM"}};
    if (c->ropes[0].dims != c->head_dim)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "rope.dimension_count %u of heads of %u dims: no config.json of this "
                    "architecture could name it",
                    c->ropes[0].dims, c->head_dim);
    /* Mistral's GGUF files have architecture llama. */
    const char *arch = strcmp(c->arch, "llama") == 0 && c->window ? "mistral" : c->arch;
    const char *class = NULL;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (strcmp(classes[i].arch, arch) == 0)
            class = classes[i].class;
    if (!class)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "metadata general.architecture: only llama, qwen2 and qwen3 are converted from "
                    "GGUF; %s can be from a Hugging Face folder",
                    c->arch);
    json_t *scaling = m->rope_factors ? rope_scaling(m) : json_null();
    if (!scaling)
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "tensor rope_freqs.weight: its factors are not a rope_scaling that config.json "
                    "could name");
    json_t *o = json_pack(
        "{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:b, s:s, s:b}",
        "architectures", class, "model_type", arch, "hidden_size", (json_int_t)c->dim,
        "intermediate_size", (json_int_t)c->ffn_dim, "num_hidden_layers", (json_int_t)c->n_layers,
        "num_attention_heads", (json_int_t)c->heads, "num_key_value_heads", (json_int_t)c->kv_heads,
        "head_dim", (json_int_t)c->head_dim, "vocab_size", (json_int_t)c->vocab, "rms_norm_eps",
        shortest((double)c->norm_eps), "rope_theta", shortest(c->ropes[0].theta), "rope_scaling",
        scaling, "tie_word_embeddings", (int)c->tied_embedding, "hidden_act", "silu",
        "attention_bias", (int)(strcmp(arch, "qwen2") == 0));
    bool good = o != NULL;
    if (good && c->ctx_train)
        good = json_object_set_new(o, "max_position_embeddings", json_integer(c->ctx_train)) == 0;
    if (good && c->window)
        good = json_object_set_new(o, "sliding_window", json_integer(c->window)) == 0;
    if (!good || !set_ids(o, checkpoint_tokenizer(m->checkpoint))) {
        json_decref(o);
        return fail(err, KVASIR_ERR_MEMORY, "config.json: out of memory");
    }
    *out = o;
    return KVASIR_OK;
}

/* ---- from GGUF: the tokenizer ---------------------------------------------------------------- */

static bool set_token(json_t *object, const char *key, const struct tokenizer_spec *t, int32_t id) {
    return id < 0 || json_object_set_new(object, key,
                                         json_stringn(t->pieces[id].data, t->pieces[id].len)) == 0;
}

static json_t *tokenizer_config(const struct checkpoint *c, const struct model_config *config) {
    const struct tokenizer_spec *t = checkpoint_tokenizer(c);
    json_t *o = json_pack("{s:s, s:b, s:b, s:b}", "tokenizer_class", "PreTrainedTokenizerFast",
                          "add_bos_token", (int)t->add_bos, "add_eos_token", (int)t->add_eos,
                          "clean_up_tokenization_spaces", 0);
    bool good = o && set_token(o, "bos_token", t, t->bos) && set_token(o, "eos_token", t, t->eos) &&
                set_token(o, "unk_token", t, t->unk) && set_token(o, "pad_token", t, t->pad);
    if (good && config->ctx_train)
        good = json_object_set_new(o, "model_max_length", json_integer(config->ctx_train)) == 0;
    const char *template = checkpoint_chat_template(c);
    if (good && template)
        good = json_object_set_new(o, "chat_template", json_string(template)) == 0;
    if (good)
        return o;
    json_decref(o);
    return NULL;
}

static kvasir_status gguf_files(const char *folder, const struct model *m,
                                const kvasir_convert_options *o, const char *dtype,
                                kvasir_error *err) {
    json_t *config = NULL;
    TRY(gguf_config(m, &config, err));
    if (!set_types(config, o, dtype)) {
        json_decref(config);
        return fail(err, KVASIR_ERR_MEMORY, "config.json: out of memory");
    }
    TRY(write_object_take(folder, "config.json", config, err));
    const struct tokenizer_spec *t = checkpoint_tokenizer(m->checkpoint);
    if (!t)
        return KVASIR_OK;
    struct text_buf text = {0};
    kvasir_status status = tokenizer_write_json(t, &text, err);
    if (status == KVASIR_OK)
        status = write_text(folder, "tokenizer.json", text.data, text.len, err);
    text_free(&text);
    TRY(status);
    TRY(write_object_take(folder, "tokenizer_config.json",
                          tokenizer_config(m->checkpoint, &m->config), err));
    json_t *generation = json_object();
    if (!generation || !set_ids(generation, t)) {
        json_decref(generation);
        return fail(err, KVASIR_ERR_MEMORY, "generation_config.json: out of memory");
    }
    return write_object_take(folder, "generation_config.json", generation, err);
}

kvasir_status convert_files(const char *in, const char *folder, const struct model *m,
                            const kvasir_convert_options *o, const char *dtype, kvasir_error *err) {
    return file_is_dir(in) ? folder_files(in, folder, o, dtype, err)
                           : gguf_files(folder, m, o, dtype, err);
}
