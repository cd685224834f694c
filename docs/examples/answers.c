/* SPDX-License-Identifier: Apache-2.0 */
/* answers.c: several questions about one text with libkvasir. The text is evaluated once; each
 * question continues a fork of it, which shares its pages.
 *
 *     cc answers.c $(pkg-config --cflags --libs kvasir) -o answers
 *     ./answers model.gguf "The lighthouse is 46 metres high and was built in 1858." \
 *         " The year it was built:" " It is"
 */
#include <kvasir.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWER_TOKENS = 16 };

struct program {
    kvasir_model *model;
    kvasir_context *context;
    kvasir_tokenizer *tokenizer;
    float *logits; /* [vocab] */
};

static void check(kvasir_status status, const kvasir_error *err) {
    if (status == KVASIR_OK)
        return;
    fprintf(stderr, "answers: %s\n", err->text);
    exit(1);
}

/* Appends a text to a sequence; the logits of its last token are in p->logits. */
static void read_text(struct program *p, kvasir_seq *seq, const char *text, unsigned flags) {
    kvasir_error err;
    int32_t *ids;
    size_t n;
    kvasir_eval_options last = kvasir_eval_defaults();
    last.last_logits = p->logits;
    check(kvasir_tokenize(p->tokenizer, text, strlen(text), flags, &ids, &n, &err), &err);
    check(kvasir_seq_eval(seq, ids, n, &last, &err), &err);
    kvasir_free(ids);
}

static void write_answer(struct program *p, kvasir_seq *seq, const kvasir_model_info *info) {
    kvasir_error err;
    kvasir_sampling greedy = kvasir_sampling_defaults();
    kvasir_sampler *sampler;
    kvasir_detok *detok;
    const char *text;
    size_t len;
    kvasir_eval_options last = kvasir_eval_defaults();
    last.last_logits = p->logits;
    check(kvasir_sampler_create(&greedy, info->vocab, &sampler, &err), &err);
    check(kvasir_detok_create(p->tokenizer, &detok, &err), &err);
    for (int i = 0; i < ANSWER_TOKENS; i++) {
        const int32_t id = kvasir_sampler_pick(sampler, p->logits);
        if (kvasir_token_is_end(p->tokenizer, id))
            break;
        check(kvasir_detok_push(detok, id, &text, &len, &err), &err);
        fwrite(text, 1, len, stdout);
        check(kvasir_seq_eval(seq, &id, 1, &last, &err), &err);
    }
    check(kvasir_detok_finish(detok, &text, &len, &err), &err);
    fwrite(text, 1, len, stdout);
    putchar('\n');
    kvasir_detok_destroy(detok);
    kvasir_sampler_destroy(sampler);
}

int main(int argc, char **argv) {
    struct program p;
    kvasir_error err;
    kvasir_model_info info;
    kvasir_seq *text, *fork;
    if (argc < 4) {
        fprintf(stderr, "usage: answers MODEL TEXT QUESTION...\n");
        return 2;
    }
    check(kvasir_model_open(argv[1], &p.model, &err), &err);
    kvasir_model_get_info(p.model, &info);
    p.tokenizer = kvasir_model_tokenizer(p.model);
    p.logits = malloc(info.vocab * sizeof *p.logits);
    if (!p.logits)
        return 1;
    kvasir_context_options options = kvasir_context_defaults(); /* keys of 8 bits, values of 4 */
    options.kv_bits = getenv("KV_BITS") ? getenv("KV_BITS") : options.kv_bits;
    check(kvasir_context_create(p.model, &options, &p.context, &err), &err);
    check(kvasir_seq_create(p.context, &text, &err), &err);
    read_text(&p, text, argv[2], KVASIR_TOKENIZE_ADD_SPECIAL);
    for (int i = 3; i < argc; i++) {
        check(kvasir_seq_fork(text, &fork, &err), &err);
        read_text(&p, fork, argv[i], 0);
        printf("%s", argv[i]);
        write_answer(&p, fork, &info);
        kvasir_seq_destroy(fork);
    }
    kvasir_seq_destroy(text);
    kvasir_context_destroy(p.context);
    kvasir_model_close(p.model);
    free(p.logits);
    return 0;
}
