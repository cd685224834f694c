/* SPDX-License-Identifier: Apache-2.0 */
/* simulate_shape.c: model shapes, and what their steps cost. simulate.h has the cost model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lab/simulate.h"

/* ---- shapes ---------------------------------------------------------------------------------- */

/* Sizes of their config.json. */
static const struct sim_model NAMED[] = {
    {.text = "smollm2-135m", 30, 3, 64, 9, 1536, 576, 49152},
    {.text = "qwen3-0.6b", 28, 8, 128, 16, 3072, 1024, 151936},
    {.text = "qwen3-8b", 36, 8, 128, 32, 12288, 4096, 151936},
    {.text = "llama3-8b", 32, 8, 128, 32, 14336, 4096, 128256},
    {.text = "llama3-70b", 80, 8, 128, 64, 28672, 8192, 128256},
};
enum { N_NAMED = sizeof NAMED / sizeof *NAMED };

static kvasir_status fail_shape(kvasir_error *err, const char *text) {
    char names[80] = "";
    for (size_t i = 0; i < N_NAMED; i++) {
        ASSERT(strlen(names) + strlen(NAMED[i].text) + strlen(", ") < sizeof names);
        strcat(names, NAMED[i].text);
        strcat(names, i + 1 < N_NAMED ? ", " : "");
    }
    return fail_field(err, KVASIR_ERR_ARGUMENT, "simulate.model_shape",
                      "\"%.60s\" is neither one of %s nor "
                      "layers,kv_heads,head_dim[,heads,ffn,dim,vocab]",
                      text, names);
}

static kvasir_status check_sizes(const struct sim_model *m, kvasir_error *err) {
    const struct {
        const char *name;
        uint32_t value, max;
    } bounds[] = {{"layers", m->layers, 1024},    {"kv_heads", m->kv_heads, 256},
                  {"head_dim", m->head_dim, 512}, {"heads", m->heads, 1024},
                  {"ffn", m->ffn_dim, 1 << 20},   {"dim", m->dim, 1 << 20},
                  {"vocab", m->vocab, 1 << 24}};
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        if (bounds[i].value < 1 || bounds[i].value > bounds[i].max)
            return fail_field(err, KVASIR_ERR_ARGUMENT, "simulate.model_shape",
                              "%s %u is not between 1 and %u", bounds[i].name, bounds[i].value,
                              bounds[i].max);
    if (m->head_dim % 4)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "simulate.model_shape",
                          "head_dim %u is not a multiple of 4", m->head_dim);
    if (m->heads % m->kv_heads)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "simulate.model_shape",
                          "%u heads cannot share %u KV heads equally", m->heads, m->kv_heads);
    return KVASIR_OK;
}

/* "32,8,128" or "32,8,128,32,14336,4096,128256" */
static kvasir_status parse_sizes(const char *text, struct sim_model *m, kvasir_error *err) {
    enum { SIZES = 7, CACHE_SIZES = 3, DIGITS = 9 };
    uint32_t sizes[SIZES] = {0}, n = 0;
    const char *p = text;
    for (; n < SIZES; p++) {
        const size_t digits = strspn(p, "0123456789");
        if (digits < 1 || digits > DIGITS)
            return fail_shape(err, text);
        sizes[n++] = (uint32_t)strtoul(p, NULL, 10);
        p += digits;
        if (*p != ',')
            break;
    }
    if (*p || (n != CACHE_SIZES && n != SIZES))
        return fail_shape(err, text);
    *m = (struct sim_model){.layers = sizes[0], .kv_heads = sizes[1], .head_dim = sizes[2]};
    if (n == SIZES) {
        m->heads = sizes[3];
        m->ffn_dim = sizes[4];
        m->dim = sizes[5];
        m->vocab = sizes[6];
    } else { /* Llama 3's proportions; check_sizes checks the first three before the rest matters */
        m->heads = 4 * m->kv_heads;
        m->dim = m->heads * m->head_dim;
        m->ffn_dim = m->dim / 2 * 7;
        m->vocab = 128256;
    }
    snprintf(m->text, sizeof m->text, "%s", text);
    return check_sizes(m, err);
}

static kvasir_status parse_shape(const char *text, struct sim_model *m, kvasir_error *err) {
    for (size_t i = 0; i < N_NAMED; i++)
        if (strcmp(text, NAMED[i].text) == 0) {
            *m = NAMED[i];
            return KVASIR_OK;
        }
    return parse_sizes(text, m, err);
}

kvasir_status sim_model_settle(const lab_simulate_options *o, struct sim_model *m,
                               kvasir_error *err) {
    TRY(parse_shape(o->model_shape, m, err));
    if (o->window_layers && !o->window)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "simulate.window_layers", "needs a window");
    if (o->window_layers > m->layers)
        return fail_field(err, KVASIR_ERR_ARGUMENT, "simulate.window_layers",
                          "%u is more than the model's %u layers", o->window_layers, m->layers);
    if (o->window)
        m->window_layers = o->window_layers ? o->window_layers : (m->layers + 1) / 2;
    const struct kv_shape all = {.layers = m->layers - m->window_layers,
                                 .kv_heads = m->kv_heads,
                                 .head_dim = m->head_dim},
                          windows = {.layers = m->window_layers,
                                     .kv_heads = m->kv_heads,
                                     .head_dim = m->head_dim,
                                     .window = o->window};
    if (all.layers)
        m->groups[m->n_groups++] = all;
    if (windows.layers)
        m->groups[m->n_groups++] = windows;
    ASSERT(m->n_groups > 0 && m->n_groups <= SIM_GROUPS_MAX);
    return KVASIR_OK;
}

/* ---- costs ----------------------------------------------------------------------------------- */

struct sim_cost sim_cost_make(const struct sim_model *m, const lab_simulate_options *o,
                              const double *token_bytes) {
    const double q = (double)m->heads * m->head_dim, kv = (double)m->kv_heads * m->head_dim,
                 layer = (double)m->dim * (2 * q + 2 * kv + 3 * (double)m->ffn_dim),
                 weights = m->layers * layer, head = (double)m->vocab * m->dim,
                 bytes = (weights + head) * o->weight_bits / 8;
    struct sim_cost c = {
        .weight_bytes = (uint64_t)bytes,
        .weight_seconds = bytes / o->bandwidth,
        .row_seconds = 2 * weights / o->compute,
        .logit_seconds = 2 * head / o->compute,
        .rebuild_tokens = rebuild_tokens(weights, m->layers * 2 * q),
        .n_groups = m->n_groups,
    };
    for (uint32_t g = 0; g < m->n_groups; g++) {
        const uint32_t window = m->groups[g].window;
        c.groups[g].span = window ? window : UINT32_MAX;
        c.groups[g].cached_seconds = token_bytes[g] / o->bandwidth;
        c.groups[g].pair_seconds = 4 * q * m->groups[g].layers / o->compute;
    }
    return c;
}

/* 1 + 2 + ... + n */
static double sum_to(uint32_t n) {
    return (double)n * ((double)n + 1) / 2;
}

double sim_pairs_seen(uint32_t at, uint32_t end, uint32_t span) {
    DEBUG_ASSERT(at <= end);
    const uint32_t rising = end < span ? end : at < span ? span : at; /* rows before it see p + 1 */
    return sum_to(rising) - sum_to(at) + (double)(end - rising) * span;
}

double sim_cost_step(const struct sim_cost *c, const struct step_part *parts, uint32_t n) {
    double seconds = c->weight_seconds;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = seq_length(parts[i].seq), end = at + parts[i].rows;
        seconds += parts[i].rows * c->row_seconds + parts[i].wanted * c->logit_seconds;
        for (uint32_t g = 0; g < c->n_groups; g++) {
            const uint32_t span = c->groups[g].span;
            const uint64_t seen = (uint64_t)span + parts[i].rows - 1;
            seconds += (double)(seen < end ? seen : end) * c->groups[g].cached_seconds +
                       sim_pairs_seen(at, end, span) * c->groups[g].pair_seconds;
        }
    }
    return seconds;
}
