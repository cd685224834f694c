/* SPDX-License-Identifier: Apache-2.0 */
/* Decode and prompt speed at a cache depth, for bench/pairs.py, which compares two builds of this
 * program; `kvasir bench` is what users have. 512 real tokens are evaluated, then their pages are
 * copied (lab_extend). The output has the columns of ../shared/tools/kvdepth.cpp.
 *
 *     depth MODEL KV_BITS[:CENTRE] THREADS TIER REPS NGEN NPP DEPTH...
 *
 * CENTRE is --key-centre's value, off without it. (Copied pages hold keys that were rotated for
 * other positions, so the generated tokens mean nothing; the work is the same.)
 *
 * Prints one line per depth: the median and all repetitions of decode (and prompt) tokens/s.
 *
 * With KVASIR_TURNS in the environment every measurement waits for a line of the standard input and
 * prints its result at once: bench/pairs.py has two programs take turns.
 */
#include "bench.h"

static void await_turn(void) {
    char line[16];
    if (getenv("KVASIR_TURNS") && !fgets(line, sizeof line, stdin))
        exit(1);
}

static void end_turn(const char *what, double speed) {
    if (!getenv("KVASIR_TURNS"))
        return;
    printf("turn %s %.6g\n", what, speed);
    fflush(stdout);
}

static double decode_speed(kvasir_seq *s, int tokens, uint32_t vocab, float *logits) {
    kvasir_eval_options last = {.struct_size = sizeof(kvasir_eval_options), .last_logits = logits};
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
    kvasir_eval_options last = {.struct_size = sizeof(kvasir_eval_options), .last_logits = logits};
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
            replicate(s, s, depth);
        else
            need(kvasir_seq_trim(s, depth, NULL, &err));
        double decode[VALUES_MAX], prompt[VALUES_MAX];
        for (int r = -1; r < reps; r++) { /* the first is a warm-up */
            await_turn();
            double d = decode_speed(s, n_decode, info.vocab, logits), p = 0;
            end_turn("decode", d);
            need(kvasir_seq_trim(s, depth, NULL, &err));
            if (n_prompt) {
                await_turn();
                p = prompt_speed(s, n_prompt, info.vocab, logits);
                end_turn("prompt", p);
                need(kvasir_seq_trim(s, depth, NULL, &err));
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
