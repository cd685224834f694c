/* SPDX-License-Identifier: Apache-2.0 */
/* Decode and prompt speed at a cache depth, without paying for the prefill: 512 real tokens are
 * evaluated, then their pages' bytes are copied into the pages of every following 512 positions.
 * The counterpart of ../shared/tools/kvdepth.cpp for this library, with the same output columns.
 *
 *     depth MODEL KV_BITS[:CENTRE] THREADS TIER REPS NGEN NPP DEPTH...
 *
 * CENTRE is --key-centre's value, off without it. (Copied pages hold keys that were turned for
 * other positions, so what is generated means nothing; the work is the same.)
 *
 * Prints one line a depth: the median and all repetitions of decode (and prompt) tokens/s.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

enum { SEED_TOKENS = 512, VALUES_MAX = 64 };

static kvasir_error err;

static void need(kvasir_status status) {
    if (status == KVASIR_OK)
        return;
    fprintf(stderr, "depth: %s\n", err.text);
    exit(1);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int n) {
    double sorted[VALUES_MAX];
    memcpy(sorted, values, (size_t)n * sizeof *values);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return sorted[n / 2];
}

static int32_t random_token(uint32_t vocab) {
    return (int32_t)((uint32_t)rand() % vocab);
}

static uint8_t *page_at(const struct kv_view *v, uint32_t number) {
    return (uint8_t *)v->arena + (size_t)v->pages[kv_view_index(v, number)].addr * PAGE_ADDR_UNIT;
}

/* Grows the sequence to depth by copies of its first pages. */
static void replicate(kvasir_seq *s, uint32_t depth) {
    const int32_t *tokens = seq_tokens(s->seq);
    int32_t copy[SEED_TOKENS];
    memcpy(copy, tokens, sizeof copy);
    need(seq_reserve(s->seq, depth + 4096, &err));
    while (seq_length(s->seq) < depth) {
        uint32_t at = seq_length(s->seq), left = depth - at;
        uint32_t n = left < SEED_TOKENS ? left : SEED_TOKENS;
        need(seq_prepare(s->seq, n, &err));
        for (uint32_t g = 0; g < s->ctx->n_groups; g++) {
            struct kv_view v;
            seq_view(s->seq, g, &v);
            for (uint32_t p = 0; p * TILE_TOKENS < n; p++)
                memcpy(page_at(&v, at / TILE_TOKENS + p), page_at(&v, p),
                       v.layouts[v.pages[0].layout].page_bytes);
        }
        seq_commit(s->seq, copy, n);
    }
}

static double decode_speed(kvasir_seq *s, int tokens, uint32_t vocab, float *logits) {
    kvasir_eval_options last = {.last_logits = logits};
    double start = clock_seconds();
    for (int i = 0; i < tokens; i++) {
        int32_t id = random_token(vocab);
        need(kvasir_seq_eval(s, &id, 1, &last, &err));
    }
    return tokens / (clock_seconds() - start);
}

static double prompt_speed(kvasir_seq *s, int tokens, uint32_t vocab, float *logits) {
    int32_t *ids = malloc((size_t)tokens * sizeof *ids);
    for (int i = 0; i < tokens; i++)
        ids[i] = random_token(vocab);
    kvasir_eval_options last = {.last_logits = logits};
    double start = clock_seconds();
    need(kvasir_seq_eval(s, ids, (size_t)tokens, &last, &err));
    double speed = tokens / (clock_seconds() - start);
    free(ids);
    return speed;
}

static void print_all(const char *what, const double *values, int n) {
    printf("%s med %.2f [", what, median(values, n));
    for (int i = 0; i < n; i++)
        printf(" %.2f", values[i]);
    printf(" ] t/s");
}

int main(int argc, char **argv) {
    if (argc < 9) {
        fprintf(stderr, "usage: depth MODEL KV_BITS[:CENTRE] THREADS TIER REPS NGEN NPP "
                        "DEPTH...\n");
        return 2;
    }
    char *centre = strchr(argv[2], ':');
    if (centre)
        *centre++ = 0;
    kvasir_model *model;
    kvasir_model_info info;
    need(kvasir_model_open(argv[1], &model, &err));
    kvasir_model_get_info(model, &info);
    int reps = atoi(argv[5]), n_decode = atoi(argv[6]), n_prompt = atoi(argv[7]);
    float *logits = malloc(info.vocab * sizeof *logits);
    reps = reps < VALUES_MAX ? reps : VALUES_MAX;
    for (int a = 8; a < argc; a++) {
        uint32_t depth = (uint32_t)atoi(argv[a]);
        kvasir_context_options o = kvasir_context_defaults();
        o.kv_bits = argv[2];
        o.key_centre = centre ? centre : "off";
        o.threads = atoi(argv[3]);
        o.cpu_tier = argv[4];
        o.ctx = depth + 4096;
        kvasir_context *ctx;
        kvasir_seq *s;
        need(kvasir_context_create(model, &o, &ctx, &err));
        need(kvasir_seq_create(ctx, &s, &err));
        prompt_speed(s, SEED_TOKENS, info.vocab, logits);
        if (depth >= SEED_TOKENS)
            replicate(s, depth);
        else
            need(kvasir_seq_trim(s, depth, &err));
        double decode[VALUES_MAX], prompt[VALUES_MAX];
        for (int r = -1; r < reps; r++) { /* the first is a warm-up */
            double d = decode_speed(s, n_decode, info.vocab, logits), p = 0;
            need(kvasir_seq_trim(s, depth, &err));
            if (n_prompt) {
                p = prompt_speed(s, n_prompt, info.vocab, logits);
                need(kvasir_seq_trim(s, depth, &err));
            }
            if (r >= 0) {
                decode[r] = d;
                prompt[r] = p;
            }
        }
        char name[48];
        snprintf(name, sizeof name, "kvasir %s%s d=%-6u tg%d", argv[2], centre ? " centred" : "",
                 depth, n_decode);
        print_all(name, decode, reps);
        printf(" = %.2f ms/tok", 1e3 / median(decode, reps));
        if (n_prompt) {
            snprintf(name, sizeof name, "   pp%d", n_prompt);
            print_all(name, prompt, reps);
        }
        printf("\n");
        fflush(stdout);
        kvasir_seq_destroy(s);
        kvasir_context_destroy(ctx);
    }
    free(logits);
    kvasir_model_close(model);
    return 0;
}
