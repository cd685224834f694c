/* SPDX-License-Identifier: Apache-2.0 */
/* What a GGUF file's metadata means: the configuration, the vocabulary, and Hugging Face's names
 * for its tensors.
 *
 * Keys of the configuration begin with the architecture's name (llama.block_count). "llama" stands
 * for Llama and Mistral alike, and its converter reorders the rows of wq and wk so that the two
 * numbers of a rope pair lie side by side (rope.adjacent); qwen2 and qwen3 keep Hugging Face's
 * order. Keys that would change the arithmetic in a way the forward does not follow are refused by
 * name: a wrong answer is worse than none.
 *
 * Left out: per-layer arrays (head counts that differ by layer).
 */
#include <math.h>
#include <stdio.h>

#include "model/family.h"

enum { KEY_MAX = 96 };

/* ---- configuration --------------------------------------------------------------------------- */

/* The file's architecture and its keys: "<arch>.<name>". */
struct arch_keys {
    const struct gguf *g;
    const char *arch;
    char key[KEY_MAX];
    kvasir_error *err;
};

static const char *arch_key(struct arch_keys *k, const char *name) {
    snprintf(k->key, sizeof k->key, "%s.%s", k->arch, name);
    return k->key;
}

static kvasir_status get_u32(struct arch_keys *k, const char *name, bool required, uint32_t min,
                             uint32_t max, uint32_t *out) {
    return gguf_get_u32(k->g, arch_key(k, name), required, min, max, out, k->err);
}

static kvasir_status read_architecture(const struct gguf *g, struct model_config *c,
                                       kvasir_error *err) {
    static const char *const known[] = {"llama", "qwen2", "qwen3"};
    struct text_span arch, type = {"model", 5};
    TRY(gguf_get_string(g, "general.type", false, &type, err));
    if (type.len != 5 || memcmp(type.data, "model", 5) != 0)
        return fail_at(err, KVASIR_ERR_UNSUPPORTED, gguf_find(g, "general.type")->offset,
                       "metadata general.type is %.*s, not a model",
                       (int)(type.len < 60 ? type.len : 60), type.data);
    TRY(gguf_get_string(g, "general.architecture", true, &arch, err));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (arch.len == strlen(known[i]) && memcmp(arch.data, known[i], arch.len) == 0) {
            memcpy(c->arch, known[i], arch.len + 1);
            return KVASIR_OK;
        }
    return fail_at(err, KVASIR_ERR_UNSUPPORTED, gguf_find(g, "general.architecture")->offset,
                   "general.architecture %.*s is not supported, only llama, qwen2 and qwen3",
                   (int)(arch.len < 60 ? arch.len : 60), arch.data);
}

/* Keys whose presence (with another value than `neutral`) changes what the forward must compute. */
static kvasir_status refuse_variants(struct arch_keys *k) {
    static const struct {
        const char *name;
        double neutral;
    } floats[] = {
        {"attention.scale", 0},     {"attention.clamp_kqv", 0},      {"logit_scale", 1},
        {"embedding_scale", 1},     {"residual_scale", 1},           {"rope.scale_linear", 1},
        {"rope.scaling.factor", 1}, {"rope.scaling.attn_factor", 1},
    };
    uint32_t experts = 0;
    TRY(get_u32(k, "expert_count", false, 0, UINT32_MAX, &experts));
    if (experts)
        return fail(k->err, KVASIR_ERR_UNSUPPORTED, "metadata %s is %u: experts are not supported",
                    k->key, experts);
    struct text_span scaling = {"none", 4};
    TRY(gguf_get_string(k->g, arch_key(k, "rope.scaling.type"), false, &scaling, k->err));
    if (scaling.len != 4 || memcmp(scaling.data, "none", 4) != 0)
        return fail(k->err, KVASIR_ERR_UNSUPPORTED, "metadata %s: rope type %.*s is not supported",
                    k->key, (int)(scaling.len < 60 ? scaling.len : 60), scaling.data);
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        double x = floats[i].neutral;
        TRY(gguf_get_double(k->g, arch_key(k, floats[i].name), false, &x, k->err));
        if (x < floats[i].neutral || x > floats[i].neutral)
            return fail(k->err, KVASIR_ERR_UNSUPPORTED, "metadata %s %g is not supported", k->key,
                        x);
    }
    return KVASIR_OK;
}

static kvasir_status read_heads(struct arch_keys *k, struct model_config *c) {
    TRY(get_u32(k, "attention.head_count", true, 1, HEADS_MAX, &c->heads));
    c->kv_heads = c->heads;
    TRY(get_u32(k, "attention.head_count_kv", false, 1, HEADS_MAX, &c->kv_heads));
    TRY(get_u32(k, "attention.key_length", false, 1, DIM_MAX, &c->head_dim));
    if (!c->head_dim) {
        if (c->dim % c->heads != 0)
            return fail(k->err, KVASIR_ERR_FORMAT, "metadata: %u heads do not divide %u dims",
                        c->heads, c->dim);
        c->head_dim = c->dim / c->heads;
    }
    uint32_t value_length = c->head_dim;
    TRY(get_u32(k, "attention.value_length", false, 1, DIM_MAX, &value_length));
    if (value_length != c->head_dim)
        return fail(k->err, KVASIR_ERR_UNSUPPORTED,
                    "metadata %s is %u, must be the key's length %u", k->key, value_length,
                    c->head_dim);
    return KVASIR_OK;
}

static kvasir_status read_vocab_size(struct arch_keys *k, struct model_config *c) {
    const struct gguf_value *tokens = gguf_find(k->g, "tokenizer.ggml.tokens");
    bool have_tokens = tokens && tokens->type == GGUF_ARRAY;
    if (have_tokens) {
        if (tokens->count > VOCAB_MAX)
            return fail_at(k->err, KVASIR_ERR_FORMAT, tokens->offset,
                           "a vocabulary of more than %d tokens", VOCAB_MAX);
        c->vocab = (uint32_t)tokens->count;
    }
    TRY(get_u32(k, "vocab_size", !have_tokens, 1, VOCAB_MAX, &c->vocab));
    if (have_tokens && tokens->count != c->vocab)
        return fail_at(k->err, KVASIR_ERR_FORMAT, gguf_find(k->g, k->key)->offset,
                       "metadata %s is %u, but tokenizer.ggml.tokens holds %u", k->key, c->vocab,
                       (uint32_t)tokens->count);
    return KVASIR_OK;
}

kvasir_status gguf_read_config(const struct gguf *g, struct model_config *c, kvasir_error *err) {
    *c = (struct model_config){0};
    TRY(read_architecture(g, c, err));
    struct arch_keys k = {.g = g, .arch = c->arch, .err = err};
    struct text_span name = {"", 0};
    TRY(gguf_get_string(g, "general.name", false, &name, err));
    snprintf(c->name, sizeof c->name, "%.*s", (int)(name.len < 95 ? name.len : 95), name.data);

    TRY(get_u32(&k, "block_count", true, 1, LAYERS_MAX, &c->n_layers));
    TRY(get_u32(&k, "embedding_length", true, 1, DIM_MAX, &c->dim));
    TRY(get_u32(&k, "feed_forward_length", true, 1, FFN_MAX, &c->ffn_dim));
    TRY(get_u32(&k, "context_length", false, 1, CTX_MAX, &c->ctx_train));
    TRY(read_heads(&k, c));
    TRY(read_vocab_size(&k, c));
    double eps;
    TRY(gguf_get_double(g, arch_key(&k, "attention.layer_norm_rms_epsilon"), true, &eps, err));
    c->norm_eps = (float)eps;

    struct rope_config *rope = &c->ropes[0];
    *rope = (struct rope_config){.kind = ROPE_PLAIN, .dims = c->head_dim, .theta = 10000};
    c->n_ropes = 1;
    rope->adjacent = strcmp(c->arch, "llama") == 0;
    TRY(get_u32(&k, "rope.dimension_count", false, 2, DIM_MAX, &rope->dims));
    TRY(gguf_get_double(g, arch_key(&k, "rope.freq_base"), false, &rope->theta, err));
    /* Mistral's window travels under arch llama. Qwen's stands in files of models that do not use
     * it. */
    if (rope->adjacent)
        TRY(get_u32(&k, "attention.sliding_window", false, 0, CTX_MAX, &c->window));
    c->gate = GATE_SILU;
    c->embed_scale = c->residual_scale = c->logit_scale = 1;
    c->attention_bias = strcmp(c->arch, "qwen2") == 0 ? BIAS_QKV : BIAS_NONE;
    config_layers_init(c);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].window = c->window;
    return refuse_variants(&k);
}

/* ---- vocabulary ------------------------------------------------------------------------------ */

static kvasir_status copy_string(const struct gguf *g, const char *key, const char **out,
                                 kvasir_error *err) {
    struct text_span text = {NULL, 0};
    TRY(gguf_get_string(g, key, false, &text, err));
    *out = NULL;
    if (text.data && !(*out = mem_strndup(text.data, text.len)))
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for %s", key);
    return KVASIR_OK;
}

/* Special tokens: a missing key or ~0 (what some converters write) means that there is none. */
static kvasir_status read_special(const struct gguf *g, const char *name, size_t n_tokens,
                                  int32_t *out, kvasir_error *err) {
    char key[KEY_MAX];
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", name);
    uint32_t id = UINT32_MAX;
    TRY(gguf_get_u32(g, key, false, 0, UINT32_MAX, &id, err));
    *out = -1;
    if (id == UINT32_MAX)
        return KVASIR_OK;
    if (id >= n_tokens)
        return fail_at(err, KVASIR_ERR_FORMAT, gguf_find(g, key)->offset,
                       "metadata %s is %u, but there are %zu tokens", key, id, n_tokens);
    *out = (int32_t)id;
    return KVASIR_OK;
}

static kvasir_status read_kinds(const struct gguf *g, struct tokenizer_spec *t, kvasir_error *err) {
    static const char key[] = "tokenizer.ggml.token_type";
    const struct gguf_value *v = gguf_find(g, key);
    if (!v)
        return KVASIR_OK;
    if (v->type != GGUF_ARRAY || (v->elem != GGUF_I32 && v->elem != GGUF_U32))
        return fail_at(err, KVASIR_ERR_FORMAT, v->offset,
                       "metadata %s must be an array of 32-bit integers", key);
    if (v->count != t->n_tokens)
        return fail_at(err, KVASIR_ERR_FORMAT, v->offset,
                       "metadata %s holds %llu kinds for %zu tokens", key,
                       (unsigned long long)v->count, t->n_tokens);
    uint8_t *kinds = mem_alloc(t->n_tokens);
    if (!kinds)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for %s", key);
    t->kinds = kinds;
    for (size_t i = 0; i < t->n_tokens; i++) {
        uint32_t kind;
        memcpy(&kind, v->data + i * sizeof kind, sizeof kind);
        if (kind > TOKEN_BYTE)
            return fail_at(err, KVASIR_ERR_FORMAT, v->offset + (int64_t)(i * sizeof kind),
                           "metadata %s: token %zu has kind %u", key, i, kind);
        kinds[i] = kind ? (uint8_t)kind : TOKEN_NORMAL; /* 0 is "undefined" */
    }
    return KVASIR_OK;
}

/* Scores order the merges of "llama" vocabularies; the others have merges. */
static kvasir_status read_scores(const struct gguf *g, struct tokenizer_spec *t,
                                 kvasir_error *err) {
    static const char key[] = "tokenizer.ggml.scores";
    const struct gguf_value *v = gguf_find(g, key);
    if (!v || strcmp(t->model, "llama") != 0)
        return KVASIR_OK;
    if (v->type != GGUF_ARRAY || v->elem != GGUF_F32 || v->count != t->n_tokens)
        return fail_at(err, KVASIR_ERR_FORMAT, v->offset,
                       "metadata %s must be an array of f32, one for each of %zu tokens", key,
                       t->n_tokens);
    float *scores = mem_alloc(t->n_tokens * sizeof *scores);
    if (!scores)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for %s", key);
    memcpy(scores, v->data, t->n_tokens * sizeof *scores);
    t->scores = scores;
    for (size_t i = 0; i < t->n_tokens; i++)
        if (!isfinite(scores[i]))
            return fail_at(err, KVASIR_ERR_FORMAT, v->offset + (int64_t)(i * sizeof *scores),
                           "metadata %s: token %zu has score %g", key, i, (double)scores[i]);
    return KVASIR_OK;
}

/* Whether a text begins with BOS where the file does not say: SentencePiece vocabularies and Llama
 * 3's do. */
static bool add_bos_by_default(const struct tokenizer_spec *t) {
    static const char *const with_bos[] = {"llama-bpe", "llama3", "llama-v3"};
    if (strcmp(t->model, "llama") == 0)
        return true;
    for (size_t i = 0; t->pre && i < sizeof with_bos / sizeof *with_bos; i++)
        if (strcmp(t->pre, with_bos[i]) == 0)
            return true;
    return false;
}

kvasir_status gguf_read_tokenizer(const struct gguf *g, struct checkpoint *c, kvasir_error *err) {
    struct tokenizer_spec *t = &c->tokenizer;
    struct text_span *list;
    TRY(copy_string(g, "tokenizer.chat_template", (const char **)&c->chat_template, err));
    TRY(copy_string(g, "tokenizer.ggml.model", &t->model, err));
    if (!t->model)
        return KVASIR_OK;
    TRY(copy_string(g, "tokenizer.ggml.pre", &t->pre, err));
    TRY(gguf_get_strings(g, "tokenizer.ggml.tokens", &list, &t->n_tokens, err));
    t->pieces = list;
    if (!t->n_tokens)
        return fail(err, KVASIR_ERR_FORMAT, "metadata tokenizer.ggml.tokens is missing or empty");
    TRY(gguf_get_strings(g, "tokenizer.ggml.merges", &list, &t->n_merges, err));
    t->merges = list;
    TRY(read_kinds(g, t, err));
    TRY(read_scores(g, t, err));
    TRY(read_special(g, "bos", t->n_tokens, &t->bos, err));
    TRY(read_special(g, "eos", t->n_tokens, &t->eos, err));
    TRY(read_special(g, "eot", t->n_tokens, &t->eot, err));
    int32_t eom; /* ends a message that calls a tool */
    TRY(read_special(g, "eom", t->n_tokens, &eom, err));
    if (eom >= 0)
        TRY(checkpoint_add_end(c, eom, err));
    TRY(read_special(g, "unknown", t->n_tokens, &t->unk, err));
    TRY(read_special(g, "padding", t->n_tokens, &t->pad, err));
    t->add_bos = add_bos_by_default(t);
    TRY(gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &t->add_bos, err));
    TRY(gguf_get_bool(g, "tokenizer.ggml.add_eos_token", &t->add_eos, err));
    t->add_space_prefix = strcmp(t->model, "llama") == 0;
    TRY(gguf_get_bool(g, "tokenizer.ggml.add_space_prefix", &t->add_space_prefix, err));
    c->has_tokenizer = true;
    return KVASIR_OK;
}

/* ---- tensor names ---------------------------------------------------------------------------- */

/* The parts between "blk.N." and ".weight" or ".bias". */
static const struct {
    const char *gguf, *hf;
} layer_parts[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};
static const struct {
    const char *gguf, *hf;
} model_parts[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};

static bool span_is(const char *data, size_t len, const char *text) {
    return len == strlen(text) && memcmp(data, text, len) == 0;
}

/* Length of the layer number in front of `text`: plain decimal without leading zeros, so that two
 * names never meet. */
static size_t layer_digits(const char *text, size_t len) {
    size_t n = 0;
    while (n < len && text[n] >= '0' && text[n] <= '9')
        n++;
    return n > 1 && text[0] == '0' ? 0 : n;
}

char *gguf_tensor_name(const char *name, size_t len) {
    size_t base = len; /* up to the last dot */
    for (size_t i = len; i-- > 0 && base == len;)
        if (name[i] == '.')
            base = i;
    int tail = (int)(len - base); /* ".weight" */
    char mapped[192];             /* 64 bytes of file name and a part of ours */
    for (size_t i = 0; i < sizeof model_parts / sizeof *model_parts; i++)
        if (span_is(name, base, model_parts[i].gguf)) {
            snprintf(mapped, sizeof mapped, "%s%.*s", model_parts[i].hf, tail, name + base);
            return mem_strdup(mapped);
        }
    if (base > 4 && memcmp(name, "blk.", 4) == 0) {
        size_t digits = layer_digits(name + 4, base - 4), part = 4 + digits + 1;
        for (size_t i = 0; digits && i < sizeof layer_parts / sizeof *layer_parts; i++)
            if (part < base && name[part - 1] == '.' &&
                span_is(name + part, base - part, layer_parts[i].gguf)) {
                snprintf(mapped, sizeof mapped, "model.layers.%.*s.%s%.*s", (int)digits, name + 4,
                         layer_parts[i].hf, tail, name + base);
                return mem_strdup(mapped);
            }
    }
    return mem_strndup(name, len);
}
