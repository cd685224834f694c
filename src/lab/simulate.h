/* SPDX-License-Identifier: Apache-2.0 */
/* simulate.h: a model as a cache and a clock see it (simulate_shape.c).
 *
 * A step takes
 *
 *     bytes / bandwidth + operations / compute
 *
 *     bytes        all weights, once; of each sequence what its queries see in the cache, once
 *     operations   2 for each weight of the layers and row; 2 for each weight of the head and row
 *                  whose logits are wanted; 4 * heads * head_dim for each layer and cached token
 *                  that a row sees
 *
 * Not modelled: what a machine overlaps, kernels that reach less than the data sheet, the overhead
 * of small steps. Of kv_bits "auto": the time that re-encoding takes, and that pages of fewer bits
 * have fewer bytes to read.
 */
#ifndef LAB_SIMULATE_H
#define LAB_SIMULATE_H

#include "engine/engine.h"
#include "lab/lab.h"

enum { SIM_GROUPS_MAX = 2 };

struct sim_model {
    char text[96]; /* "llama3-8b", or the sizes */
    uint32_t layers, kv_heads, head_dim, heads, ffn_dim, dim, vocab;
    uint32_t window_layers; /* so many layers have the window; the others see everything */
    struct kv_shape groups[SIM_GROUPS_MAX];
    uint32_t n_groups;
};
/* Fills in the shape and window from the options. */
kvasir_status sim_model_settle(const lab_simulate_options *o, struct sim_model *out,
                               kvasir_error *err) MUST_CHECK;

struct sim_cost {
    uint64_t weight_bytes;
    double weight_seconds, row_seconds, logit_seconds;
    uint32_t rebuild_tokens; /* for tree_create */
    uint32_t n_groups;
    struct {
        uint32_t span;                       /* tokens that a query sees; UINT32_MAX: all */
        double cached_seconds, pair_seconds; /* per token that is read; per token that a row sees */
    } groups[SIM_GROUPS_MAX];
};
/* token_bytes [n_groups]: bytes of one token in the cache. */
struct sim_cost sim_cost_make(const struct sim_model *m, const lab_simulate_options *o,
                              const double *token_bytes);
/* Seconds of one step. Its rows are not in the parts' sequences yet. */
double sim_cost_step(const struct sim_cost *c, const struct step_part *parts, uint32_t n);
/* Tokens that rows at positions [at, end) see, themselves included: row p sees p + 1, at most
 * span. */
double sim_pairs_seen(uint32_t at, uint32_t end, uint32_t span);

#endif
