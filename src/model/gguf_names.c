/* SPDX-License-Identifier: Apache-2.0 */
/* Translates GGUF's tensor names to Hugging Face's, so that binding knows one set of names.
 *
 *     blk.N.PART.weight    a list has PART, or PART.weight     model.layers.N.THEIRS
 *     NAME.weight          a list has NAME, or NAME.weight     THEIRS
 *
 * First the family's own lists (in its row) are searched, then the common one below. An entry
 * without a suffix (".weight") keeps the suffix of the name; an entry with one replaces both, for
 * tensors with another suffix in a folder. A name that no list has is kept, and load.c will refuse
 * it. No two names may become one: a list has each Hugging Face name once.
 */
#include <stdio.h>

#include "model/family.h"

static const struct gguf_name common[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_qkv", "self_attn.qkv_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {NULL, NULL},
};

static bool span_is(const char *data, size_t len, const char *text) {
    return len == strlen(text) && memcmp(data, text, len) == 0;
}

/* The layer number at the start of `text`, plain decimal without leading zeros, so that different
 * names stay different; *digits 0: none. */
static uint32_t layer_number(const char *text, size_t len, size_t *digits) {
    uint32_t number = 0;
    size_t n = 0;
    while (n < len && n < 9 && text[n] >= '0' && text[n] <= '9')
        number = number * 10 + (uint32_t)(text[n++] - '0');
    *digits = n > 1 && text[0] == '0' ? 0 : n;
    return number;
}

/* Translates `name` by this list and puts `prefix` before it; false: the list has no such name. */
static bool mapped(const struct gguf_name *list, const char *prefix, const char *name, size_t len,
                   char *out, size_t size) {
    size_t stem = len; /* up to the last dot */
    for (size_t i = len; i-- > 0 && stem == len;)
        if (name[i] == '.')
            stem = i;
    for (int whole = 1; whole >= 0; whole--) {
        size_t part = whole ? len : stem;
        for (const struct gguf_name *n = list; n && n->gguf; n++)
            if (span_is(name, part, n->gguf)) {
                int n_out =
                    snprintf(out, size, "%s%s%.*s", prefix, n->hf, (int)(len - part), name + part);
                ASSERT(n_out > 0 && (size_t)n_out < size);
                return true;
            }
    }
    return false;
}

char *gguf_tensor_name(const struct model_config *c, const char *name, size_t len) {
    const struct family *f = family_of_arch(c->arch);
    char out[256], prefix[32] = ""; /* at most 64 bytes from the file and a name of ours */
    const char *part = name;
    size_t digits = 0;
    if (len > 4 && memcmp(name, "blk.", 4) == 0) {
        uint32_t layer = layer_number(name + 4, len - 4, &digits);
        if (!digits || 4 + digits + 1 >= len || name[4 + digits] != '.')
            return mem_strndup(name, len);
        part = name + 4 + digits + 1;
        snprintf(prefix, sizeof prefix, "model.layers.%u.", layer);
        if (layer >= c->n_layers && layer - c->n_layers < c->mtp_layers) {
            snprintf(out, sizeof out, "mtp.%.*s", (int)len, name);
            return mem_strdup(out);
        }
    }
    const size_t part_len = len - (size_t)(part - name);
    for (size_t i = 0; f && i < GGUF_LISTS; i++)
        if (mapped(f->gguf_names[i], prefix, part, part_len, out, sizeof out))
            return mem_strdup(out);
    return mapped(common, prefix, part, part_len, out, sizeof out) ? mem_strdup(out)
                                                                   : mem_strndup(name, len);
}
