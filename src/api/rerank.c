/* SPDX-License-Identifier: Apache-2.0 */
/* rerank.c: prompts of Qwen3-Reranker, as its model card has them. Each part is tokenized by
 * itself, as there. Names of control tokens in a query or document are text, which is not so
 * there: a document must not end the question and answer it.
 */
#include "api/rerank.h"

#include <string.h>
#include <strings.h>

#include "api/api_json.h"
#include "api/api_prompts.h"

static const char PREFIX[] =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    "the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
    "<|im_start|>user\n";
static const char SUFFIX[] = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
static const char INSTRUCTION[] =
    "Given a web search query, retrieve relevant passages that answer the query";

enum { YES, NO, ANSWERS };
struct rerank_prefix {
    const struct api_setup *setup;
    struct text_buf head; /* of the client's text: all before the document */
    int32_t *prefix, *suffix;
    size_t n_prefix, n_suffix;
};

static bool holds(const char *text, const char *part) {
    const size_t n = strlen(part);
    while (*text && strncasecmp(text, part, n) != 0)
        text++;
    return *text != 0;
}

bool rerank_form_of(const char *word, const char *path, enum rerank_form *out) {
    const bool automatic = strcmp(word, "auto") == 0, cosine = strcmp(word, "cosine") == 0,
               yes_no = strcmp(word, "yes-no") == 0 ||
                        (automatic && holds(path, "qwen3") && holds(path, "reranker"));
    *out = yes_no ? RERANK_YES_NO : RERANK_COSINE;
    return automatic || cosine || yes_no;
}

static bool tokenize(const struct api_setup *setup, const char *path, const char *text, size_t len,
                     unsigned flags, int32_t **ids, size_t *n, struct api_error *err) {
    kvasir_error why;
    return kvasir_tokenize_by(setup->tokenizer, text, len, flags, NULL, setup->limits, ids, n,
                              &why) == KVASIR_OK ||
           api_library_failed(err, path, &why);
}

/* The ids of the two answers. */
static bool find_answers(const struct api_setup *setup, struct api_request *r,
                         struct api_error *err) {
    static const char *const TEXTS[] = {"yes", "no"};
    r->ids = mem_calloc(ANSWERS, sizeof *r->ids);
    if (!r->ids)
        return api_no_memory(err);
    for (int i = 0; i < ANSWERS; i++) {
        int32_t *ids;
        size_t n;
        if (!tokenize(setup, "model", TEXTS[i], strlen(TEXTS[i]), 0, &ids, &n, err))
            return false;
        r->ids[i] = n ? ids[0] : 0;
        kvasir_free(ids);
        if (n != 1)
            return api_refuse(err, "model",
                              "its vocabulary has no token \"%s\", so it cannot be asked for yes "
                              "or no: use a model such as Qwen3-Reranker",
                              TEXTS[i]);
    }
    r->engine.asked_tokens = r->ids;
    r->engine.n_asked_tokens = ANSWERS;
    return true;
}

static bool add_text(struct text_buf *to, json_t *text) {
    return text_append(to, json_string_value(text), json_string_length(text));
}

struct rerank_prefix *rerank_begin(const struct api_setup *setup, json_t *instruction,
                                   json_t *query, struct api_request *r, struct api_error *err) {
    struct rerank_prefix *p = mem_calloc(1, sizeof *p);
    if (!p) {
        (void)api_no_memory(err);
        return NULL;
    }
    p->setup = setup;
    bool good = find_answers(setup, r, err) &&
                tokenize(setup, "query", PREFIX, sizeof PREFIX - 1, KVASIR_TOKENIZE_PARSE_SPECIAL,
                         &p->prefix, &p->n_prefix, err) &&
                tokenize(setup, "query", SUFFIX, sizeof SUFFIX - 1, KVASIR_TOKENIZE_PARSE_SPECIAL,
                         &p->suffix, &p->n_suffix, err);
    if (good)
        good =
            (text_puts(&p->head, "<Instruct>: ") &&
             (instruction ? add_text(&p->head, instruction) : text_puts(&p->head, INSTRUCTION)) &&
             text_puts(&p->head, "\n<Query>: ") && add_text(&p->head, query) &&
             text_puts(&p->head, "\n<Document>: ")) ||
            api_no_memory(err);
    if (good)
        return p;
    rerank_end(p);
    return NULL;
}

void rerank_end(struct rerank_prefix *p) {
    if (!p)
        return;
    text_free(&p->head);
    kvasir_free(p->prefix);
    kvasir_free(p->suffix);
    mem_free(p);
}

bool rerank_add(const struct rerank_prefix *p, const char *path, json_t *document,
                struct api_request *r, struct api_error *err) {
    struct text_buf text = {0};
    int32_t *ids = NULL, *all = NULL;
    size_t n = 0;
    bool good = (text_append(&text, p->head.data, p->head.len) && add_text(&text, document)) ||
                api_no_memory(err);
    good = good && tokenize(p->setup, path, text.data, text.len, 0, &ids, &n, err);
    text_free(&text);
    const size_t total = p->n_prefix + n + p->n_suffix;
    if (good && !(all = mem_calloc(total, sizeof *all)))
        good = api_no_memory(err);
    if (good) {
        memcpy(all, p->prefix, p->n_prefix * sizeof *all);
        memcpy(all + p->n_prefix, ids, n * sizeof *all);
        memcpy(all + p->n_prefix + n, p->suffix, p->n_suffix * sizeof *all);
        good = api_prompts_add_ids(path, json_string_value(document), json_string_length(document),
                                   all, total, r, err);
    }
    kvasir_free(ids);
    return good;
}

double rerank_score(const float *asked) {
    return 1 / (1 + m_exp((double)asked[NO] - (double)asked[YES]));
}
