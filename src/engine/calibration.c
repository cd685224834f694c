/* SPDX-License-Identifier: Apache-2.0 */
/* calibration.c: measures a model's keys and queries on a few hundred tokens.
 *
 *     text -> tokens -> the model over f32 pages -> keys and queries after RoPE (moments.h)
 *          -> keys turned back to before RoPE -> mean and spread per (layer, KV head, pair)
 *          -> keys less centre and tile mean  -> moments -> basis per (layer, KV head) (balance.h)
 *
 * A model whose layers differ in what they cache or how they rotate has bases, but no means. Sums
 * are in double, one head at a time. Keys of all tokens are held, as in the cache beside them.
 */
#include <math.h>
#include <string.h>

#include "engine/balance.h"
#include "engine/calibration.h"
#include "engine/moments.h"

enum {
    TOKENS_DEFAULT = 512,
    TOKENS_MAX = 8192,
    TOKENS_MIN = 2 * TILE_TOKENS, /* so that a tile is left for the moments */
    HEADS_A_ROUND = 4,            /* per worker: Ctrl-C is noticed between rounds */
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

struct measuring {
    const struct kvasir_model *m;
    const struct model_config *config;
    struct moments seen;
    kvasir_context *ctx;
    kvasir_seq *seq;
    int32_t *ids;
    size_t n; /* tokens to run */
    struct calibration *out;
    double *turns; /* [n][pairs][2] cos and sin for each position and pair */
    double *sums;  /* [pairs][3] sums of both dims, and of their squares */
};

static kvasir_status no_memory(kvasir_error *err) {
    return fail(err, KVASIR_ERR_MEMORY, "calibration: out of memory");
}

/* ---- the run --------------------------------------------------------------------------------- */

static kvasir_status take_tokens(struct measuring *c, const struct calibrate_options *o,
                                 kvasir_error *err) {
    uint32_t most = o->tokens ? o->tokens : TOKENS_DEFAULT;
    const char *text = o->text ? o->text : TEXT;
    if (most < TOKENS_MIN || most > TOKENS_MAX)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "calibrate.tokens",
                          "%u is not between %d and %d", most, TOKENS_MIN, TOKENS_MAX);
    TRY(kvasir_tokenize(kvasir_model_tokenizer(c->m), text, o->text ? o->len : strlen(TEXT),
                        KVASIR_TOKENIZE_ADD_SPECIAL, &c->ids, &c->n, err));
    c->n = c->n < most ? c->n : most;
    if (c->n < TOKENS_MIN)
        return fail(err, KVASIR_ERR_ARGUMENT,
                    "%zu tokens are too few to calibrate with: %d or more", c->n, TOKENS_MIN);
    return KVASIR_OK;
}

/* A CPU's backend, so that what is measured does not depend on who has a GPU. */
static kvasir_status make_context(struct measuring *c, const struct calibrate_options *o,
                                  kvasir_error *err) {
    kvasir_context_options options = kvasir_context_defaults();
    struct backend_cpu_options cpu;
    struct backend *backend;
    options.kv_bits = "f32";
    options.key_centre = "off";
    options.ctx = (uint32_t)c->n;
    options.prefill_chunk = TILE_TOKENS; /* Ctrl-C is noticed between steps */
    options.threads = o->threads;
    if (o->cpu_tier)
        options.cpu_tier = o->cpu_tier;
    TRY(options_backend(&options, &cpu, err));
    TRY(backend_cpu_create(&backend, &cpu, err));
    kvasir_status status = moments_begin(&c->seen, c->m->model, backend, (uint32_t)c->n, err);
    if (status != KVASIR_OK) {
        backend_destroy(backend);
        return status;
    }
    return context_create_take(c->m, &options, NULL, backend, &c->ctx, err);
}

static kvasir_status run_tokens(struct measuring *c, const struct calibrate_options *o,
                                kvasir_error *err) {
    TRY(make_context(c, o, err));
    TRY(kvasir_seq_create(c->ctx, &c->seq, err));
    kvasir_eval_options eval = {
        .struct_size = sizeof(kvasir_eval_options), .on_progress = o->on_progress, .user = o->user};
    return kvasir_seq_eval(c->seq, c->ids, c->n, &eval, err);
}

/* ---- means and spreads ----------------------------------------------------------------------- */

static kvasir_status make_turns(struct measuring *c, kvasir_error *err) {
    const uint32_t pairs = c->out->stats.n;
    double inv_freq[ROPE_PAIRS_MAX];
    c->turns = mem_calloc(c->n * pairs, 2 * sizeof *c->turns);
    c->sums = mem_calloc(pairs, 3 * sizeof *c->sums);
    if (!c->turns || !c->sums)
        return no_memory(err);
    (void)model_inv_freq(c->m->model, 0, 0, inv_freq);
    for (size_t p = 0; p < c->n; p++)
        for (uint32_t j = 0; j < pairs; j++) {
            double *turn = c->turns + (p * pairs + j) * 2;
            m_sincos((double)p * inv_freq[j], &turn[1], &turn[0]);
        }
    return KVASIR_OK;
}

static void add_key(struct measuring *c, size_t position, const float *key) {
    uint32_t pairs = c->out->stats.n;
    const double *turn = c->turns + position * pairs * 2;
    for (uint32_t j = 0; j < pairs; j++, turn += 2) {
        double a = (double)key[j], b = (double)key[j + pairs];
        double k1 = a * turn[0] + b * turn[1], k2 = b * turn[0] - a * turn[1];
        c->sums[3 * j] += k1;
        c->sums[3 * j + 1] += k2;
        c->sums[3 * j + 2] += k1 * k1 + k2 * k2;
    }
}

static void measure_head(struct measuring *c, uint32_t layer, uint32_t head) {
    uint32_t pairs = c->out->stats.n, dim = c->config->head_dim;
    _Static_assert((int)SINKS < (int)TOKENS_MIN, "tokens are left after the sinks");
    ASSERT(layer < c->out->stats.layers && head < c->out->stats.kv_heads && 2 * pairs <= dim);
    const float *keys = moments_keys(&c->seen, model_kv_place(c->m->model, layer), head);
    memset(c->sums, 0, pairs * 3 * sizeof *c->sums);
    for (size_t p = SINKS; p < c->n; p++)
        add_key(c, p, keys + p * dim);
    double n = (double)(c->n - SINKS);
    size_t at = ((size_t)layer * c->config->kv_heads + head) * pairs;
    for (uint32_t j = 0; j < pairs; j++) {
        double m1 = c->sums[3 * j] / n, m2 = c->sums[3 * j + 1] / n;
        double spread = c->sums[3 * j + 2] / n - m1 * m1 - m2 * m2;
        c->out->stats.mean[2 * (at + j)] = (float)m1;
        c->out->stats.mean[2 * (at + j) + 1] = (float)m2;
        c->out->stats.rms[at + j] = (float)m_sqrt(spread > 0 ? spread / 2 : 0);
    }
}

/* Of a model whose keys are alike. */
static kvasir_status measure_means(struct measuring *c, kvasir_error *err) {
    TRY(make_turns(c, err));
    for (uint32_t layer = 0; layer < c->out->stats.layers; layer++)
        for (uint32_t head = 0; head < c->out->stats.kv_heads; head++)
            measure_head(c, layer, head);
    return KVASIR_OK;
}

/* ---- bases ----------------------------------------------------------------------------------- */

/* A worker's memory. */
struct desk {
    double *keys, *queries; /* [dim][dim] */
    double *scratch;        /* of balance_head */
    float *tile;            /* [TILE_TOKENS][dim] */
};
struct balancing {
    const struct measuring *c;
    const struct key_centre *centre; /* or NULL */
    struct desk *desks;              /* [workers] */
    size_t first, n;                 /* heads of this round, of all groups */
    double *gain;                    /* [n]; NaN: there is no basis */
};

/* The place of a head, counted over all groups, and its number there. */
static struct kv_place place_of(const struct key_bases *b, size_t number, uint32_t *head) {
    struct kv_place place = {0};
    for (;; place.group++) {
        ASSERT(place.group < b->n_groups);
        const struct key_basis *g = &b->group[place.group];
        const size_t heads = (size_t)g->layers * g->kv_heads;
        if (number < heads) {
            place.layer = (uint32_t)(number / g->kv_heads);
            *head = (uint32_t)(number % g->kv_heads);
            return place;
        }
        number -= heads;
    }
}

/* False: a value is not finite. */
static bool round_matrix(const double *from, size_t n, float *to) {
    bool good = true;
    for (size_t i = 0; i < n; i++) {
        to[i] = (float)from[i];
        good &= isfinite(to[i]);
    }
    return good;
}

static void balance_one(void *ctx, size_t item, int worker) {
    struct balancing *w = ctx;
    const struct key_bases *b = &w->c->out->bases;
    const struct desk *desk = &w->desks[worker];
    uint32_t head;
    const struct kv_place place = place_of(b, w->first + item, &head);
    const struct layer_basis layer = key_bases_of(b, place);
    const uint32_t dim = b->group[place.group].head_dim;
    const size_t n = (size_t)dim * dim;
    double gain;
    moments_of_keys(&w->c->seen, place, head, w->centre, desk->tile, desk->keys);
    moments_of_queries(&w->c->seen, place, head, desk->queries);
    const bool good = balance_head(dim, desk->keys, desk->queries, desk->scratch, &gain) &&
                      round_matrix(desk->keys, n, layer.inverse + head * n) &&
                      round_matrix(desk->queries, n, layer.forward + head * n);
    w->gain[w->first + item] = good ? gain : (double)NAN;
}

static bool make_desks(struct balancing *w, uint32_t workers) {
    uint32_t dim = 0;
    for (uint32_t g = 0; g < w->c->out->bases.n_groups; g++)
        dim = max_u32(dim, w->c->out->bases.group[g].head_dim);
    w->desks = mem_calloc(workers, sizeof *w->desks);
    for (uint32_t i = 0; w->desks && i < workers; i++) {
        struct desk *d = &w->desks[i];
        d->keys = mem_calloc((size_t)dim * dim, sizeof *d->keys);
        d->queries = mem_calloc((size_t)dim * dim, sizeof *d->queries);
        d->scratch = mem_calloc(balance_scratch(dim), sizeof *d->scratch);
        d->tile = mem_calloc((size_t)TILE_TOKENS * dim, sizeof *d->tile);
        if (!d->keys || !d->queries || !d->scratch || !d->tile)
            return false;
    }
    return w->desks != NULL;
}

static void free_desks(struct balancing *w, uint32_t workers) {
    for (uint32_t i = 0; w->desks && i < workers; i++) {
        mem_free(w->desks[i].keys);
        mem_free(w->desks[i].queries);
        mem_free(w->desks[i].scratch);
        mem_free(w->desks[i].tile);
    }
    mem_free(w->desks);
}

/* All heads, on the context's threads. */
static kvasir_status run_rounds(struct balancing *w, const struct calibrate_options *o,
                                uint32_t workers, kvasir_error *err) {
    struct backend *b = w->c->ctx->backend;
    const size_t most = (size_t)HEADS_A_ROUND * workers;
    for (w->first = 0; w->first < w->n; w->first += most) {
        const size_t items = min_size(w->n - w->first, most);
        b->ops->host_run(b, items, balance_one, w);
        for (size_t i = w->first; i < w->first + items; i++)
            if (!isfinite(w->gain[i]))
                return fail(err, KVASIR_ERR_FORMAT,
                            "the model's keys or queries are not finite numbers");
        if (o->on_progress && !o->on_progress(o->user, w->c->n, w->c->n))
            return fail(err, KVASIR_ERR_CANCELLED, "cancelled");
    }
    return KVASIR_OK;
}

/* Of keys as pages would hold them: less the centre that a format of tiles has. */
static kvasir_status measure_bases(struct measuring *c, const struct calibrate_options *o,
                                   kvasir_error *err) {
    const uint32_t workers = c->ctx->device.workers;
    struct centres *centres = NULL;
    struct balancing w = {.c = c};
    double logs = 0;
    kvasir_status status;
    TRY(key_bases_init(&c->out->bases, c->m->model, err));
    TRY_GOTO(centres_choose(&c->out->stats, c->m->model, true, &centres, err));
    w.centre = centres ? &centres->centre : NULL;
    for (uint32_t g = 0; g < c->out->bases.n_groups; g++)
        w.n += (size_t)c->out->bases.group[g].layers * c->out->bases.group[g].kv_heads;
    w.gain = mem_calloc(w.n, sizeof *w.gain);
    if (!w.gain || !make_desks(&w, workers)) {
        status = no_memory(err);
        goto done;
    }
    TRY_GOTO(run_rounds(&w, o, workers, err));
    for (size_t i = 0; i < w.n; i++)
        logs += m_log(w.gain[i]);
    c->out->heads = (uint32_t)w.n;
    c->out->gain = m_exp(logs / (double)w.n);
done:
    free_desks(&w, workers);
    mem_free(w.gain);
    centres_destroy(centres);
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static kvasir_status measure(struct measuring *c, const struct calibrate_options *o,
                             kvasir_error *err) {
    struct kv_shape shapes[CACHE_GROUPS_MAX];
    if (model_kv_groups(c->m->model, shapes) == 0)
        return fail(err, KVASIR_ERR_UNSUPPORTED, "the model has no keys: no layer has attention");
    TRY(take_tokens(c, o, err));
    TRY(run_tokens(c, o, err));
    c->out->tokens = (uint32_t)c->n - SINKS;
    TRY(key_stats_init(&c->out->stats, c->m->model, err));
    if (c->out->stats.n)
        TRY(measure_means(c, err));
    return measure_bases(c, o, err);
}

kvasir_status calibration_measure(const struct kvasir_model *m, const struct calibrate_options *o,
                                  struct calibration *out, kvasir_error *err) {
    struct measuring c = {.m = m, .config = model_config(m->model), .out = out};
    *out = (struct calibration){0};
    const kvasir_status status = measure(&c, o, err);
    kvasir_seq_destroy(c.seq);
    kvasir_context_destroy(c.ctx);
    moments_deinit(&c.seen);
    mem_free(c.ids);
    mem_free(c.turns);
    mem_free(c.sums);
    return status;
}

void calibration_deinit(struct calibration *c) {
    key_stats_deinit(&c->stats);
    key_bases_deinit(&c->bases);
}
