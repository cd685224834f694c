/* SPDX-License-Identifier: Apache-2.0 */
/* A real model against ../shared/goldens/NAME (mlx-lm's own class in float32), all through the
 * cache, act_bits 16. How far two correct implementations may differ is in the goldens' READMEs:
 * exact and 16-bit caches agree token by token, quantized ones in their averages.
 *
 *   losses   the golden's windows of wikitext tokens. exact (f32 pages): per-token NLL within 1e-3
 *            for 99 % of the tokens and 1e-2 for all. Others: perplexity within 1.5 %; with
 *            check_kl mean KL from our own exact run within 10 % of the golden KL.
 *            f16: the issue wants the per-token bounds of exact here too. They cannot be met:
 *            the f16 golden is itself off the exact golden by more than 1e-3 for 19.5 % of the
 *            tokens (at most 1.2e-2, SmolLM2), and which f16 roundings flip is float noise: our ref
 *            tier, with every sum in double, and our avx2 tier differ from each other by as much as
 *            either does from the golden (docs/quality.md). Checked instead: our mean distance from
 *            the f16 golden is below the exact golden's distance from it, and the largest below 1.5
 *            times that one's.
 *   greedy   12 prompts, 96 tokens each: equal ids until a step whose golden top-2 gap is below
 *            0.02, for exact, f16 and rot256k4.
 */
#ifndef MODEL_GOLDENS_H
#define MODEL_GOLDENS_H

#include <stdbool.h>
#include <stddef.h>

struct golden_setting {
    const char *golden, *bits, *group;
    bool exact;    /* per-token bounds hold */
    bool rounded;  /* f16: per token no further from its golden than the exact golden is */
    bool check_kl; /* mean KL within 10 % */
    bool in_soak;  /* only with KVASIR_SOAK, which `make soak` sets: each takes a minute */
};
enum { GOLDEN_SETTINGS_MAX = 16 };

struct model_goldens {
    const char *model, *dir;
    const struct golden_setting *settings; /* the first is exact; ends with golden NULL */
    size_t tokens; /* > 0: only the losses of so many tokens of the first window */
};

/* What main returns: 0, the number of failed tests, or 77 where the files are missing. */
int model_goldens_check(const struct model_goldens *g);

#endif
