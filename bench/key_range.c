/* SPDX-License-Identifier: Apache-2.0 */
/* The range of keys before and after centring, which the codes of a group have to span.
 *
 *     key_range MODEL TEXT TOKENS GROUP CENTRE > dump.tsv
 *
 * Runs TOKENS tokens of TEXT over f32 pages, act bits 16. Prints a line per layer: the width of its
 * widest KV head and the mean over its heads, before and then after centring. A head's width is the
 * largest minus the smallest value of a group of GROUP dims, averaged over groups and tokens
 * (without the first four). tools/key_range_plot.py draws it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/centre.h"

enum { SINKS = 4 };

static kvasir_error err;

static void need(kvasir_status status) {
    if (status == KVASIR_OK)
        return;
    fprintf(stderr, "key_range: %s\n", err.text);
    exit(1);
}

static double width(const float *key, uint32_t dim, uint32_t group) {
    double sum = 0;
    for (uint32_t g = 0; g < dim; g += group) {
        float low = key[g], high = key[g];
        for (uint32_t i = g + 1; i < g + group; i++) {
            low = key[i] < low ? key[i] : low;
            high = key[i] > high ? key[i] : high;
        }
        sum += (double)high - (double)low;
    }
    return sum / (dim / group);
}

static kvasir_seq *run_text(kvasir_context *ctx, const char *path, uint32_t tokens) {
    char *text;
    size_t len, n;
    int32_t *ids;
    kvasir_seq *seq;
    need(file_read_all(path, (size_t)1 << 30, &text, &len, &err));
    len = len < 16 * (size_t)tokens ? len : 16 * (size_t)tokens;
    need(kvasir_tokenize(ctx->model->text, text, len, 0, &ids, &n, &err));
    need(kvasir_seq_create(ctx, &seq, &err));
    need(kvasir_seq_eval(seq, ids, n < tokens ? n : tokens, NULL, &err));
    kvasir_free(ids);
    kvasir_free(text);
    return seq;
}

struct widths {
    double widest, sum;
};

static void take_head(struct widths *w, double mean) {
    w->widest = mean > w->widest ? mean : w->widest;
    w->sum += mean;
}

static void print_layer(const kvasir_seq *seq, uint32_t layer, uint32_t group,
                        const struct key_centre *c) {
    const struct model_config *config = model_config(seq->ctx->model->model);
    uint32_t dim = config->head_dim, n = kvasir_seq_length(seq);
    float key[HEAD_DIM_MAX], centre[HEAD_DIM_MAX];
    struct widths before = {0}, after = {0};
    for (uint32_t head = 0; head < config->kv_heads; head++) {
        double sums[2] = {0};
        for (uint32_t p = SINKS; p < n; p++) {
            need(kvasir_seq_read_kv(seq, KVASIR_PART_K, layer, head, p, 1, key, &err));
            sums[0] += width(key, dim, group);
            memset(centre, 0, sizeof centre);
            key_centre_add(c, layer, head, p, 1, centre);
            for (uint32_t i = 0; i < dim; i++)
                key[i] -= centre[i];
            sums[1] += width(key, dim, group);
        }
        take_head(&before, sums[0] / (n - SINKS));
        take_head(&after, sums[1] / (n - SINKS));
    }
    printf("%u\t%.4f\t%.4f\t%.4f\t%.4f\n", layer, before.widest, before.sum / config->kv_heads,
           after.widest, after.sum / config->kv_heads);
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: key_range MODEL TEXT TOKENS GROUP CENTRE\n");
        return 2;
    }
    kvasir_model *model;
    kvasir_context *ctx;
    struct settled settled = {.cache.k = {.bits = 8}};
    struct centres *centres;
    struct key_bases *bases;
    need(kvasir_model_open(argv[1], &model, &err));
    need(centres_settle(model, argv[5], NULL, &settled, &centres, &bases, &err));
    if (!centres) {
        fprintf(stderr, "key_range: nothing to take off\n");
        return 1;
    }
    kvasir_context_options o = kvasir_context_defaults();
    o.kv_bits = "f32";
    o.act_bits = 16;
    o.ctx = (uint32_t)atoi(argv[3]);
    need(kvasir_context_create(model, &o, &ctx, &err));
    kvasir_seq *seq = run_text(ctx, argv[2], o.ctx);
    kvasir_model_info info;
    kvasir_model_get_info(model, &info);
    const uint64_t *n = settled.facts[0].n; /* KVASIR_FACT_CENTRED */
    printf("# %s, %u tokens, group %s; %.1f of %" PRIu64 " pairs of a head are centred\n",
           info.name, kvasir_seq_length(seq), argv[4], (double)n[1] / (double)n[2], n[3]);
    printf("# layer\twidest\tmean\twidest, centred\tmean, centred\n");
    for (uint32_t layer = 0; layer < info.layers; layer++)
        print_layer(seq, layer, (uint32_t)atoi(argv[4]), &centres->centre);
    kvasir_seq_destroy(seq);
    kvasir_context_destroy(ctx);
    centres_destroy(centres);
    key_bases_destroy(bases);
    kvasir_model_close(model);
    return 0;
}
