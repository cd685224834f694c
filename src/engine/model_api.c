/* SPDX-License-Identifier: Apache-2.0 */
/* kvasir_model: a checkpoint with what turns text into its tokens and back.
 *
 * A checkpoint without a tokenizer or template that this build reads still runs on token ids: the
 * reason is kept and given when text is asked for. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/engine.h"

const char *kvasir_version(void) {
    return "0.1.0";
}
void kvasir_free(void *p) {
    mem_free(p);
}
uint64_t kvasir_memory_available(void) {
    return memory_available_bytes();
}
uint64_t kvasir_memory_peak(void) {
    return memory_resident_peak_bytes();
}
const char *kvasir_cpu_name(void) {
    return cpu_model_name();
}

/* ---- opening --------------------------------------------------------------------------------- */

static void load_tokenizer(struct kvasir_model *m) {
    const struct tokenizer_spec *spec = checkpoint_tokenizer(model_checkpoint(m->model));
    if (!spec) {
        fail(&m->tokenizer_error, KVASIR_ERR_UNSUPPORTED,
             "this checkpoint holds no tokenizer that this version reads: give token ids "
             "(--tokens)");
        return;
    }
    if (tokenizer_create(spec, &m->tokenizer, &m->tokenizer_error) == KVASIR_OK)
        snprintf(m->tokenizer_name, sizeof m->tokenizer_name, "%s (%s)", spec->model, spec->pre);
}

static void load_template(struct kvasir_model *m) {
    const char *source = checkpoint_chat_template(model_checkpoint(m->model));
    if (source)
        (void)!template_parse(source, strlen(source), &m->template, &m->template_error);
    else
        fail(&m->template_error, KVASIR_ERR_UNSUPPORTED, "the model has no chat template");
}

static void count_tensors(struct kvasir_model *m) {
    const struct checkpoint *c = model_checkpoint(m->model);
    struct {
        const char *name;
        size_t count;
    } types[32] = {{0}};
    size_t n_types = 0;
    for (size_t i = 0; i < checkpoint_tensor_count(c); i++) {
        const struct checkpoint_tensor *t = checkpoint_tensor_at(c, i);
        const char *name = weight_traits_of(t->type)->name;
        uint64_t values = 1;
        for (uint32_t d = 0; d < t->n_dims; d++)
            values *= t->dims[d];
        m->parameters += values;
        size_t k = 0;
        while (k < n_types && strcmp(types[k].name, name) != 0)
            k++;
        if (k == sizeof types / sizeof *types)
            continue;
        types[k].name = name;
        types[k].count++;
        n_types = k == n_types ? n_types + 1 : n_types;
    }
    size_t at = 0;
    for (size_t k = 0; k < n_types; k++) {
        int n = snprintf(m->weight_types + at, sizeof m->weight_types - at, "%s%s %zu",
                         k ? ", " : "", types[k].name, types[k].count);
        if (n < 0 || (size_t)n >= sizeof m->weight_types - at)
            break;
        at += (size_t)n;
    }
}

kvasir_status kvasir_model_open(const char *path, kvasir_model **out, kvasir_error *err) {
    struct kvasir_model *m = mem_calloc(1, sizeof *m);
    if (!m)
        return fail(err, KVASIR_ERR_MEMORY, "%s: out of memory", path);
    kvasir_status status = model_open(path, &m->model, err);
    if (status != KVASIR_OK) {
        mem_free(m);
        return status;
    }
    load_tokenizer(m);
    load_template(m);
    count_tensors(m);
    *out = m;
    return KVASIR_OK;
}

void kvasir_model_close(kvasir_model *m) {
    if (!m)
        return;
    template_destroy(m->template);
    tokenizer_destroy(m->tokenizer);
    model_close(m->model);
    mem_free(m);
}

void kvasir_model_get_info(const kvasir_model *m, kvasir_model_info *info) {
    const struct model_config *c = model_config(m->model);
    *info = (kvasir_model_info){
        .arch = c->arch,
        .name = c->name,
        .format = checkpoint_format(model_checkpoint(m->model)),
        .tokenizer = m->tokenizer ? m->tokenizer_name : NULL,
        .weight_types = m->weight_types,
        .layers = c->layers,
        .dim = c->dim,
        .ffn_dim = c->ffn_dim,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .vocab = c->vocab,
        .ctx_train = c->ctx_train,
        .window = c->window,
        .parameters = m->parameters,
        .weight_bytes = model_weight_bytes(m->model),
        .has_chat_template = m->template != NULL,
    };
}

/* ---- text ------------------------------------------------------------------------------------ */

static kvasir_status need_tokenizer(const kvasir_model *m, kvasir_error *err) {
    if (m->tokenizer)
        return KVASIR_OK;
    if (err)
        *err = m->tokenizer_error;
    return m->tokenizer_error.code;
}

kvasir_status kvasir_tokenize(const kvasir_model *m, const char *text, size_t len, unsigned flags,
                              int32_t **ids, size_t *n, kvasir_error *err) {
    TRY(need_tokenizer(m, err));
    unsigned inner = 0;
    if (flags & KVASIR_TOKENIZE_ADD_SPECIAL)
        inner |= TOKENIZE_ADD_SPECIAL;
    if (flags & KVASIR_TOKENIZE_PARSE_SPECIAL)
        inner |= TOKENIZE_PARSE_SPECIAL;
    return tokenizer_encode(m->tokenizer, text, len, inner, ids, n, err);
}

bool kvasir_token_is_end(const kvasir_model *m, int32_t id) {
    return m->tokenizer && tokenizer_is_end(m->tokenizer, id);
}

struct kvasir_detok {
    const struct tokenizer *tokenizer;
    struct detok state;
    struct text_buf text;
};

kvasir_status kvasir_detok_create(const kvasir_model *m, kvasir_detok **out, kvasir_error *err) {
    TRY(need_tokenizer(m, err));
    struct kvasir_detok *d = mem_calloc(1, sizeof *d);
    if (!d)
        return fail(err, KVASIR_ERR_MEMORY, "detokenizer: out of memory");
    d->tokenizer = m->tokenizer;
    *out = d;
    return KVASIR_OK;
}

void kvasir_detok_destroy(kvasir_detok *d) {
    if (!d)
        return;
    text_free(&d->text);
    mem_free(d);
}

static kvasir_status detok_give(struct kvasir_detok *d, bool good, const char **text, size_t *len,
                                kvasir_error *err) {
    if (!good)
        return fail(err, KVASIR_ERR_MEMORY, "detokenizer: out of memory");
    *text = d->text.data ? d->text.data : "";
    *len = d->text.len;
    return KVASIR_OK;
}

kvasir_status kvasir_detok_push(kvasir_detok *d, int32_t id, const char **text, size_t *len,
                                kvasir_error *err) {
    d->text.len = 0;
    bool good = true;
    if (!tokenizer_is_control(d->tokenizer, id))
        good = detok_push(&d->state, tokenizer_bytes(d->tokenizer, id), &d->text);
    return detok_give(d, good, text, len, err);
}

kvasir_status kvasir_detok_finish(kvasir_detok *d, const char **text, size_t *len,
                                  kvasir_error *err) {
    d->text.len = 0;
    return detok_give(d, detok_finish(&d->state, &d->text), text, len, err);
}

/* ---- chat ------------------------------------------------------------------------------------ */

static json_t *token_text(const struct tokenizer *t, int32_t id) {
    if (!t || id < 0)
        return json_string("");
    struct text_span s = tokenizer_bytes(t, id);
    return json_stringn(s.data, s.len);
}

/* The variables that Hugging Face's apply_chat_template gives a template. NULL: out of memory, or a
 * message that is not UTF-8. */
static json_t *template_args(const struct kvasir_model *m, const kvasir_message *messages,
                             size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; list && i < n; i++) {
        json_t *one =
            json_pack("{s:s, s:s}", "role", messages[i].role, "content", messages[i].content);
        if (!one || json_array_append_new(list, one) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    if (!list)
        return NULL;
    int32_t bos = m->tokenizer ? tokenizer_bos(m->tokenizer) : -1;
    int32_t eos = m->tokenizer ? tokenizer_eos(m->tokenizer) : -1;
    return json_pack("{s:o, s:b, s:o, s:o}", "messages", list, "add_generation_prompt", 1,
                     "bos_token", token_text(m->tokenizer, bos), "eos_token",
                     token_text(m->tokenizer, eos));
}

kvasir_status kvasir_chat_render(const kvasir_model *m, const kvasir_message *messages, size_t n,
                                 char **out, size_t *len, kvasir_error *err) {
    if (!m->template) {
        if (err)
            *err = m->template_error;
        return m->template_error.code;
    }
    for (size_t i = 0; i < n; i++) {
        size_t size = strlen(messages[i].content), bad = utf8_check(messages[i].content, size);
        if (bad < size)
            return fail_at(err, KVASIR_ERR_TEXT, (int64_t)bad, "the %s message is not UTF-8",
                           messages[i].role);
    }
    json_t *args = template_args(m, messages, n);
    if (!args)
        return fail(err, KVASIR_ERR_MEMORY, "chat template: out of memory");
    struct text_buf text = {0};
    struct template_limits limits = template_limits_default();
    kvasir_status status =
        template_render(m->template, args, (int64_t)time(NULL), &limits, &text, err);
    json_decref(args);
    if (status == KVASIR_OK && !text.data && !text_append(&text, "", 0))
        status = fail(err, KVASIR_ERR_MEMORY, "chat template: out of memory");
    if (status != KVASIR_OK) {
        text_free(&text);
        return status;
    }
    *out = text.data;
    *len = text.len;
    return KVASIR_OK;
}
