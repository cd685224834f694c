/* SPDX-License-Identifier: Apache-2.0 */
/* rerank_form.c: --rerank-form, of serve and batch. */
#include "cli.h"

int rerank_form_read(const struct command *c, const char *word, const char *model,
                     enum rerank_form *out) {
    if (rerank_form_of(word, model, out))
        return EXIT_GOOD;
    return usage_error(c, "--rerank-form: \"%.40s\" is none of auto, cosine and yes-no", word);
}
