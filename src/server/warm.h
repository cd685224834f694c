/* SPDX-License-Identifier: Apache-2.0 */
/* warm.h: prompts that the server puts into its cache by itself after the start (warm.c). */
#ifndef SERVER_WARM_H
#define SERVER_WARM_H

#include "server/metrics.h"

struct server;
struct warm;

/* Reads options->warm_prompts. *out: NULL if there are none. KVASIR_ERR_ARGUMENT names the line. */
kvasir_status warm_create(struct server *s, struct warm **out, kvasir_error *err) MUST_CHECK;
/* Begins, on a thread of its own. */
kvasir_status warm_start(struct warm *w, kvasir_error *err) MUST_CHECK;
/* No further prompts; one that is computed is cancelled. w may be NULL. */
void warm_stop(struct warm *w);
/* Waits for the thread. */
void warm_destroy(struct warm *w);
/* w NULL: prompts 0. */
struct warm_figures warm_figures(struct warm *w);

#endif
