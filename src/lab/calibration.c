/* SPDX-License-Identifier: Apache-2.0 */
/* calibration.c: lab_calibrate measures the constant part of a model's keys on a few hundred
 * tokens.
 *
 *     text -> tokens -> the model over f32 pages -> K after RoPE, read back head by head
 *          -> turned back to before RoPE -> mean and spread per (layer, KV head, pair)
 *
 * The first tokens are left out: models make attention sinks of them, whose keys are unlike all
 * others. Sums are in double, one head at a time; apart from the cache of the tokens, nothing here
 * grows with the model.
 */
#include <string.h>

#include "engine/centre.h"
#include "lab/lab.h"

enum {
    TOKENS_DEFAULT = 512,
    TOKENS_MAX = 8192,
    TOKENS_MIN = 64, /* fewer give no useful mean */
    SINKS = 4,
};

/* Our own text: prose, speech, a list, numbers and code, so that the means fit all of them. */
static const char TEXT[] =
    "The ferry to the islands leaves at a quarter past six in the morning, when the harbour is "
    "still dark and the gulls sit in rows along the wall. Most of the passengers know each other. "
    "They carry bread, tools, letters, a spare wheel for somebody's cart, and they speak little "
    "until the engine warms and the windows begin to run with water. A visitor asked the captain "
    "once how he found the channel in fog. \"You listen,\" he said. \"The bell on the north rock "
    "is "
    "lower than the one on the south. If you hear both at once you are too late.\"\n\n"
    "Three things decide how long bread keeps: how much water is left in it, how sour the dough "
    "was, and whether the crust was allowed to dry before it was wrapped. A loaf of 900 g loses "
    "about 12 % of its weight in the oven and another 2 % on the first day. In 1874 a baker in "
    "Lyon wrote down the weight of every loaf he sold for a year; the average was 1.03 kg, and "
    "only 41 of them were returned.\n\n"
    "What you need:\n"
    "- a board, 60 by 40 cm, planed on one side\n"
    "- eight screws and a drill\n"
    "- two hinges; brass is best near the sea\n"
    "- patience\n\n"
    "    def median(values):\n"
    "        ordered = sorted(values)\n"
    "        middle = len(ordered) // 2\n"
    "        if len(ordered) % 2 == 1:\n"
    "            return ordered[middle]\n"
    "        return (ordered[middle - 1] + ordered[middle]) / 2\n\n"
    "The function above sorts a copy, so the caller's list stays as it was. For an even number of "
    "values it returns the mean of the two in the middle, which need not be one of them.\n\n"
    "Why does the moon look larger near the horizon? It does not reach the eye under a wider "
    "angle; "
    "a coin held at arm's length covers it at midnight and at dusk alike. The sky is seen as a "
    "flat bowl, some say, and what lies at its rim is taken to be further away. Others think of "
    "the trees and roofs beside it. Nobody who has looked through a tube of paper doubts that the "
    "effect is real, or that it is made in the head.\n\n"
    "Dear Anna, thank you for the parcel. The coat fits, though the sleeves are long, and the "
    "children have already eaten everything else. We have had rain since Tuesday; the lower field "
    "is a lake with two ducks on it. Paul says that the bridge will hold. I hope he is right, "
    "since "
    "he built it. Write soon, and tell me whether you have sold the piano.\n\n"
    "int find(const int *list, int n, int wanted) {\n"
    "    for (int i = 0; i < n; i++)\n"
    "        if (list[i] == wanted)\n"
    "            return i;\n"
    "    return -1; /* not there */\n"
    "}\n\n"
    "The committee met on 14 March and heard four reports. The first concerned the budget, which "
    "was approved without discussion; the second, the repair of the north roof, was put off for "
    "want of a second estimate.\n";

struct calibration {
    const struct model_config *config;
    kvasir_context *ctx;
    kvasir_seq *seq;
    int32_t *ids;
    size_t n; /* tokens to run */
    struct key_stats stats;
    double *turns; /* [n][pairs][2] cos and sin for each position and pair */
    float *keys;   /* [TILE_TOKENS][head_dim] */
    double *sums;  /* [pairs][3] sums of both dims, and of their squares */
};

static kvasir_status take_tokens(struct calibration *c, const kvasir_model *m,
                                 const lab_calibrate_options *o, kvasir_error *err) {
    uint32_t most = o->tokens ? o->tokens : TOKENS_DEFAULT;
    const char *text = o->text ? o->text : TEXT;
    if (most < TOKENS_MIN || most > TOKENS_MAX)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "calibrate.tokens",
                          "%u is not between %d and %d", most, TOKENS_MIN, TOKENS_MAX);
    TRY(kvasir_tokenize(kvasir_model_tokenizer(m), text, o->text ? o->len : strlen(TEXT),
                        KVASIR_TOKENIZE_ADD_SPECIAL, &c->ids, &c->n, err));
    /* a window has dropped keys further back than its length */
    if (c->config->window && c->config->window < most)
        most = c->config->window;
    c->n = c->n < most ? c->n : most;
    if (c->n < TOKENS_MIN)
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "%zu tokens are too few to calibrate with: %d or more", c->n, TOKENS_MIN);
    return KVASIR_OK;
}

static kvasir_status run_tokens(struct calibration *c, const kvasir_model *m,
                                const lab_calibrate_options *o, kvasir_error *err) {
    kvasir_context_options options = kvasir_context_defaults();
    options.kv_bits = "f32";
    options.key_centre = "off";
    options.ctx = (uint32_t)c->n;
    options.prefill_chunk = 64; /* Ctrl-C is noticed between steps */
    options.threads = o->threads;
    options.device = "cpu"; /* so that a model's centres do not depend on who has a GPU */
    if (o->cpu_tier)
        options.cpu_tier = o->cpu_tier;
    TRY(kvasir_context_create(m, &options, &c->ctx, err));
    TRY(kvasir_seq_create(c->ctx, &c->seq, err));
    kvasir_eval_options eval = {
        .struct_size = sizeof(kvasir_eval_options), .on_progress = o->on_progress, .user = o->user};
    return kvasir_seq_eval(c->seq, c->ids, c->n, &eval, err);
}

static kvasir_status make_buffers(struct calibration *c, const struct model *m, kvasir_error *err) {
    TRY(key_stats_init(&c->stats, m, err));
    uint32_t pairs = c->stats.n;
    double *inv_freq = mem_calloc(pairs, sizeof *inv_freq);
    c->turns = mem_calloc(c->n * pairs, 2 * sizeof *c->turns);
    c->keys = mem_calloc((size_t)TILE_TOKENS * c->config->head_dim, sizeof *c->keys);
    c->sums = mem_calloc(pairs, 3 * sizeof *c->sums);
    bool good = inv_freq && c->turns && c->keys && c->sums;
    if (good)
        (void)model_inv_freq(m, 0, 0, inv_freq);
    for (size_t p = 0; good && p < c->n; p++)
        for (uint32_t j = 0; j < pairs; j++) {
            double *turn = c->turns + (p * pairs + j) * 2;
            m_sincos((double)p * inv_freq[j], &turn[1], &turn[0]);
        }
    mem_free(inv_freq);
    return good ? KVASIR_OK : fail(err, KVASIR_ERR_MEMORY, "calibration: out of memory");
}

static void add_key(struct calibration *c, size_t position, const float *key) {
    uint32_t pairs = c->stats.n;
    const double *turn = c->turns + position * pairs * 2;
    for (uint32_t j = 0; j < pairs; j++, turn += 2) {
        double a = (double)key[j], b = (double)key[j + pairs];
        double k1 = a * turn[0] + b * turn[1], k2 = b * turn[0] - a * turn[1];
        c->sums[3 * j] += k1;
        c->sums[3 * j + 1] += k2;
        c->sums[3 * j + 2] += k1 * k1 + k2 * k2;
    }
}

static kvasir_status measure_head(struct calibration *c, uint32_t layer, uint32_t head,
                                  kvasir_error *err) {
    uint32_t pairs = c->stats.n, dim = c->config->head_dim;
    _Static_assert(SINKS < TOKENS_MIN, "tokens are left after the sinks");
    ASSERT(layer < c->stats.layers && head < c->stats.kv_heads && 2 * pairs <= dim);
    memset(c->sums, 0, pairs * 3 * sizeof *c->sums);
    for (size_t first = SINKS; first < c->n;) {
        size_t n = c->n - first < TILE_TOKENS ? c->n - first : TILE_TOKENS;
        TRY(kvasir_seq_read_kv(c->seq, KVASIR_PART_K, layer, head, (uint32_t)first, (uint32_t)n,
                               c->keys, err));
        for (size_t i = 0; i < n; i++)
            add_key(c, first + i, c->keys + i * dim);
        first += n;
    }
    double n = (double)(c->n - SINKS);
    size_t at = ((size_t)layer * c->config->kv_heads + head) * pairs;
    for (uint32_t j = 0; j < pairs; j++) {
        double m1 = c->sums[3 * j] / n, m2 = c->sums[3 * j + 1] / n;
        double spread = c->sums[3 * j + 2] / n - m1 * m1 - m2 * m2;
        c->stats.mean[2 * (at + j)] = (float)m1;
        c->stats.mean[2 * (at + j) + 1] = (float)m2;
        c->stats.rms[at + j] = (float)m_sqrt(spread > 0 ? spread / 2 : 0);
    }
    return KVASIR_OK;
}

static kvasir_status calibrate(struct calibration *c, const kvasir_model *m,
                               const lab_calibrate_options *o, lab_calibration *out,
                               kvasir_error *err) {
    c->config = model_config(m->model);
    if (!model_keys_alike(m->model))
        return fail(err, KVASIR_ERR_UNSUPPORTED,
                    "keys of a %s model cannot be centred: its layers differ in cache or RoPE",
                    c->config->arch);
    TRY(take_tokens(c, m, o, err));
    TRY(run_tokens(c, m, o, err));
    TRY(make_buffers(c, m->model, err));
    for (uint32_t layer = 0; layer < c->config->n_layers; layer++) {
        for (uint32_t head = 0; head < c->config->kv_heads; head++)
            TRY(measure_head(c, layer, head, err));
        if (o->on_progress && !o->on_progress(o->user, c->n, c->n))
            return fail(err, KVASIR_ERR_CANCELLED, "cancelled");
    }
    struct centres *chosen = NULL;
    TRY(centres_choose(&c->stats, m->model, false, &chosen, err));
    double heads = (double)c->config->n_layers * c->config->kv_heads;
    *out = (lab_calibration){.tokens = (uint32_t)c->n - SINKS,
                             .rotary_pairs = c->stats.n,
                             .pairs = chosen ? chosen->first[(size_t)heads] / heads : 0};
    centres_destroy(chosen);
    struct text_buf file = {0};
    TRY(centre_file_write(m->model, m->id, &c->stats, NULL, out->tokens, &file, err));
    out->file = file.data;
    out->size = file.len;
    return KVASIR_OK;
}

kvasir_status lab_calibrate(const kvasir_model *m, const lab_calibrate_options *o,
                            lab_calibration *out, kvasir_error *err) {
    struct calibration c = {0};
    kvasir_status status = calibrate(&c, m, o, out, err);
    kvasir_seq_destroy(c.seq);
    kvasir_context_destroy(c.ctx);
    key_stats_deinit(&c.stats);
    mem_free(c.ids);
    mem_free(c.turns);
    mem_free(c.keys);
    mem_free(c.sums);
    return status;
}

kvasir_status lab_calibration_path(const kvasir_model *m, char **path, kvasir_error *err) {
    struct text_buf text = {0};
    kvasir_status status = centre_file_path(m, &text, err);
    *path = text.data;
    return status;
}
