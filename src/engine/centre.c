/* SPDX-License-Identifier: Apache-2.0 */
/* centre.c: chooses which keys are centred, from the option key_centre.
 *
 *     auto    the model's key biases, else the calibration file beside it, else none; for formats
 *             that want bases that file, else a calibration that the context found, else biases
 *     bias    the model's key biases
 *     FILE    that calibration file
 *     off     none: every key is stored as it is, as mlx does
 *
 * From a calibration come bases, too, for formats that want them.
 *
 * What a centre gains. The codes of a group span its range, which a large constant widens: a key's
 * error grows with the largest |c| of its group relative to the keys' own spread. So pairs are
 * taken in order of |c| / spread, over all layers and heads, until the budget is used up. This
 * lowers the largest remaining ratio as far as the budget allows, and skips heads that need
 * nothing. Below RATIO_MIN the constant is smaller than the spread, and removing it gains nothing.
 *
 * What a centre costs. A pair costs two multiplications per token and query head. An eighth of the
 * rotary pairs, averaged over all heads, gains as much as all of them (mean KL at 4 bits with 2, 4,
 * 8 and 32 of 32 pairs 0.085, 0.057, 0.058 and 0.061 on Qwen2.5-Coder-0.5B, 512 tokens).
 * docs/quality.md has the cost.
 *
 * A bias does not tell the spread, but the weights do: a key dim is W h + b, where h has about unit
 * size times the norm's gain, so its spread is about |W gain|.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/centre.h"

/* The budget: on average over all heads at most one pair in so many has a centre. */
enum { PAIRS_PER_CENTRE = 8 };
/* |c| must be more than this many times the spread of a dim. */
static const double RATIO_MIN = 1;

/* ---- statistics ------------------------------------------------------------------------------ */

static size_t heads_of(const struct key_stats *s) {
    return (size_t)s->layers * s->kv_heads;
}

kvasir_status key_stats_init(struct key_stats *s, const struct model *m, kvasir_error *err) {
    const struct model_config *c = model_config(m);
    *s = (struct key_stats){0};
    if (!model_keys_alike(m))
        return KVASIR_OK;
    *s = (struct key_stats){
        .layers = c->n_layers, .kv_heads = c->kv_heads, .n = c->ropes[0].dims / 2};
    s->mean = mem_calloc(heads_of(s) * s->n, 2 * sizeof *s->mean);
    s->rms = mem_calloc(heads_of(s) * s->n, sizeof *s->rms);
    if (s->mean && s->rms)
        return KVASIR_OK;
    key_stats_deinit(s);
    return fail(err, KVASIR_ERR_MEMORY, "key centres: out of memory");
}

void key_stats_deinit(struct key_stats *s) {
    mem_free(s->mean);
    mem_free(s->rms);
    *s = (struct key_stats){0};
}

/* *found false: the model has no key biases. */
static kvasir_status stats_of_bias(const struct model *m, struct key_stats *s, bool *found,
                                   kvasir_centre_source *source, kvasir_error *err) {
    float *row = mem_calloc(model_config(m)->dim, sizeof *row);
    if (!row)
        return fail(err, KVASIR_ERR_MEMORY, "key centres: out of memory");
    *found = false;
    *source = KVASIR_CENTRE_BIAS;
    for (uint32_t i = 0; i < heads_of(s); i++) {
        uint32_t layer = i / s->kv_heads, head = i % s->kv_heads;
        if (!model_key_bias(m, layer, head, s->mean + (size_t)i * s->n * 2))
            continue;
        float spread = (float)model_key_spread(m, layer, head, row);
        for (uint32_t j = 0; j < s->n; j++)
            s->rms[(size_t)i * s->n + j] = spread;
        *found = true;
    }
    mem_free(row);
    return KVASIR_OK;
}

/* ---- choosing -------------------------------------------------------------------------------- */

struct candidate {
    double ratio;
    uint32_t head, pair; /* head: layer * kv_heads + head */
};

static int by_ratio(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->ratio != y->ratio)
        return x->ratio > y->ratio ? -1 : 1;
    if (x->head != y->head)
        return x->head < y->head ? -1 : 1;
    return x->pair < y->pair ? -1 : x->pair > y->pair;
}

static int by_place(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->head != y->head)
        return x->head < y->head ? -1 : 1;
    return x->pair < y->pair ? -1 : x->pair > y->pair;
}

static double head_spread(const struct key_stats *s, size_t head) {
    double sum = 0;
    for (size_t j = head * s->n; j < (head + 1) * s->n; j++)
        sum += (double)s->rms[j] * (double)s->rms[j];
    return m_sqrt(sum / s->n);
}

/* What is left of a constant, which turns w radians a token, without its mean over a tile: the mean
 * of its square is 1 - sinc(64 w / 2)^2 of the whole. */
static double turning_part(double w) {
    const double half = TILE_TOKENS * w / 2;
    double sin, cos, sinc = 1;
    if (half > 0) {
        m_sincos(half, &sin, &cos);
        sinc = sin / half;
    }
    return sinc < 1 ? m_sqrt(1 - sinc * sinc) : 0;
}

/* The chosen pairs, ordered by head and pair; returns how many. list: [heads * n]; part [n]: of a
 * pair's constant, what counts. */
static size_t pick(const struct key_stats *s, const double *part, struct candidate *list) {
    size_t n = 0, most = heads_of(s) * s->n / PAIRS_PER_CENTRE;
    for (uint32_t head = 0; head < heads_of(s); head++) {
        double spread = head_spread(s, head);
        for (uint32_t j = 0; j < s->n; j++) {
            const float *c = s->mean + ((size_t)head * s->n + j) * 2;
            double size =
                part[j] * m_sqrt((double)c[0] * (double)c[0] + (double)c[1] * (double)c[1]);
            if (isfinite(size) && isfinite(spread) && size > RATIO_MIN * spread)
                list[n++] = (struct candidate){size / spread, head, j};
        }
    }
    qsort(list, n, sizeof *list, by_ratio);
    n = n < most ? n : most;
    qsort(list, n, sizeof *list, by_place);
    return n;
}

static kvasir_status centres_make(const struct key_stats *s, const struct model *m,
                                  const struct candidate *list, size_t n, struct centres **out,
                                  kvasir_error *err) {
    struct centres *c = mem_calloc(1, sizeof *c);
    if (!c)
        return fail(err, KVASIR_ERR_MEMORY, "key centres: out of memory");
    c->inv_freq = mem_calloc(s->n, sizeof *c->inv_freq);
    c->first = mem_calloc(heads_of(s) + 1, sizeof *c->first);
    c->pairs = mem_calloc(n, sizeof *c->pairs);
    if (!c->inv_freq || !c->first || !c->pairs) {
        centres_destroy(c);
        return fail(err, KVASIR_ERR_MEMORY, "key centres: out of memory");
    }
    (void)model_inv_freq(m, 0, 0, c->inv_freq);
    for (size_t i = 0; i < n; i++) {
        const float *mean = s->mean + ((size_t)list[i].head * s->n + list[i].pair) * 2;
        c->pairs[i] = (struct centre_pair){list[i].pair, mean[0], mean[1]};
        c->first[list[i].head + 1]++;
    }
    c->centre = (struct key_centre){.layers = s->layers,
                                    .kv_heads = s->kv_heads,
                                    .n = s->n,
                                    .inv_freq = c->inv_freq,
                                    .first = c->first,
                                    .pairs = c->pairs};
    for (size_t head = 0; head < heads_of(s); head++) {
        uint32_t pairs = c->first[head + 1];
        c->centre.pairs_max = pairs > c->centre.pairs_max ? pairs : c->centre.pairs_max;
        c->first[head + 1] += c->first[head];
    }
    *out = c;
    return KVASIR_OK;
}

kvasir_status centres_choose(const struct key_stats *s, const struct model *m, bool turning,
                             struct centres **out, kvasir_error *err) {
    double part[ROPE_PAIRS_MAX];
    *out = NULL;
    if (!s->n)
        return KVASIR_OK;
    ASSERT(s->n <= ROPE_PAIRS_MAX);
    struct candidate *list = mem_calloc(heads_of(s) * s->n, sizeof *list);
    if (!list)
        return fail(err, KVASIR_ERR_MEMORY, "key centres: out of memory");
    (void)model_inv_freq(m, 0, 0, part);
    for (uint32_t j = 0; j < s->n; j++)
        part[j] = turning ? turning_part(part[j]) : 1;
    size_t n = pick(s, part, list);
    kvasir_status status = n ? centres_make(s, m, list, n, out, err) : KVASIR_OK;
    mem_free(list);
    return status;
}

void centres_destroy(struct centres *c) {
    if (!c)
        return;
    mem_free(c->inv_freq);
    mem_free(c->first);
    mem_free(c->pairs);
    mem_free(c);
}

/* ---- key_centre ---------------------------------------------------------------------------- */

/* What the option and the formats ask for. */
struct wish {
    const char *how;
    bool automatic, bias;
    struct calibration *known; /* NULL: none */
    bool prefer_file;          /* to the model's biases */
    struct key_bases **bases;  /* NULL: not wanted */
};

bool centres_want_bases(const struct kv_cache_options *formats) {
    bool want = formats->k.kind == KV_TILE;
    for (uint32_t i = 0; i < formats->n_rungs; i++)
        want |= formats->rungs[i].k.kind == KV_TILE;
    return want;
}

static kvasir_status read_file(const struct kvasir_model *m, const char *path, struct key_stats *s,
                               struct key_bases **bases, kvasir_error *err) {
    struct key_bases *b = NULL;
    if (bases && !(b = mem_calloc(1, sizeof *b)))
        return fail(err, KVASIR_ERR_MEMORY, "bases of keys: out of memory");
    kvasir_status status = centre_file_read(path, m->model, m->id, s, b, err);
    if (status == KVASIR_OK && b && b->n_groups)
        *bases = b;
    else
        key_bases_destroy(b);
    return fail_of_field(status, err, "context.key_centre");
}

/* What the context found; its bases are moved. */
static kvasir_status take_known(struct calibration *known, struct key_stats *s,
                                struct key_bases **bases, kvasir_error *err) {
    ASSERT(known->stats.n == s->n && known->stats.layers == s->layers);
    if (!(*bases = mem_calloc(1, sizeof **bases)))
        return fail(err, KVASIR_ERR_MEMORY, "bases of keys: out of memory");
    **bases = known->bases;
    known->bases = (struct key_bases){0};
    key_stats_deinit(s);
    *s = known->stats;
    known->stats = (struct key_stats){0};
    return KVASIR_OK;
}

/* The calibration file beside the model, if there is one. */
static kvasir_status read_beside(const struct kvasir_model *m, struct key_stats *s,
                                 struct key_bases **bases, bool *found,
                                 kvasir_centre_source *source, kvasir_error *err) {
    struct text_buf path = {0};
    kvasir_status status;
    *source = KVASIR_CENTRE_BESIDE;
    TRY_GOTO(centre_file_path(m, &path, err));
    TRY_GOTO(file_exists(path.data, found, err));
    if (*found)
        status = read_file(m, path.data, s, bases, err);
done:
    text_free(&path);
    return status;
}

/* Fills stats and bases if there are any. */
static kvasir_status find_stats(const struct kvasir_model *m, const struct wish *w,
                                struct key_stats *s, bool *found, kvasir_centre_source *source,
                                kvasir_error *err) {
    *found = !w->automatic && !w->bias;
    *source = KVASIR_CENTRE_FILE;
    if (*found)
        return read_file(m, w->how, s, w->bases, err);
    if (w->known) {
        *found = true;
        *source = KVASIR_CENTRE_KEPT;
        return take_known(w->known, s, w->bases, err);
    }
    if (w->automatic && w->prefer_file)
        TRY(read_beside(m, s, w->bases, found, source, err));
    if (!*found)
        TRY(stats_of_bias(m->model, s, found, source, err));
    if (!*found && w->automatic && !w->prefer_file)
        TRY(read_beside(m, s, w->bases, found, source, err));
    if (!*found && w->bias)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "context.key_centre",
                          "the model has no key biases");
    return KVASIR_OK;
}

static kvasir_status not_alike(const struct kvasir_model *m, kvasir_error *err) {
    return fail_field(err, KVASIR_ERR_UNSUPPORTED, "context.key_centre",
                      "keys of a %s model cannot be centred: its layers differ in what they cache "
                      "or how they rotate",
                      model_config(m->model)->arch);
}

kvasir_status centres_settle(const struct kvasir_model *m, const char *how,
                             struct calibration *known, struct settled *settled,
                             struct centres **out, struct key_bases **bases, kvasir_error *err) {
    *out = NULL;
    *bases = NULL;
    const bool exact = kv_format_exact(settled->cache.k),
               based = centres_want_bases(&settled->cache);
    const struct wish wish = {.how = how,
                              .automatic = strcmp(how, "auto") == 0,
                              .bias = strcmp(how, "bias") == 0,
                              .known = based && known && known->bases.n_groups ? known : NULL,
                              .prefer_file = based,
                              .bases = based ? bases : NULL};
    if (strcmp(how, "off") == 0 && based)
        settled_fact(settled, KVASIR_FACT_NOT_BALANCED, 0, 0, 0, 0);
    if (strcmp(how, "off") == 0 || (wish.automatic && exact))
        return KVASIR_OK;
    if (!model_keys_alike(m->model) && (wish.bias || (!based && !exact)))
        return wish.automatic ? KVASIR_OK : not_alike(m, err);
    struct key_stats stats;
    kvasir_centre_source source;
    bool found;
    kvasir_status status;
    TRY(key_stats_init(&stats, m->model, err));
    TRY_GOTO(find_stats(m, &wish, &stats, &found, &source, err));
    if (exact) {
        settled_fact(settled, KVASIR_FACT_CENTRE_UNUSED, 0, 0, 0, 0);
    } else if (found) {
        TRY_GOTO(centres_choose(&stats, m->model, based, out, err));
        if (*out)
            settled_fact(settled, KVASIR_FACT_CENTRED, source, (*out)->first[heads_of(&stats)],
                         heads_of(&stats), stats.n);
        else if (!wish.automatic && !*bases)
            settled_fact(settled, KVASIR_FACT_CENTRE_NOTHING, source, 0, 0, 0);
    }
    if (*bases)
        settled_fact(settled, KVASIR_FACT_BALANCED, source, 0, 0, 0);
    else if (based)
        settled_fact(settled, KVASIR_FACT_NOT_BALANCED, 0, 0, 0, 0);
done:
    key_stats_deinit(&stats);
    return status;
}
