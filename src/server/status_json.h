/* SPDX-License-Identifier: Apache-2.0 */
/* status_json.h: the server's figures as JSON. All functions return a new value; NULL: out of
 * memory, or the model's name is not UTF-8. They change nothing and may run on any thread.
 *
 * /health follows vllm-mlx: {"status": "healthy", "model_loaded": true, ...}, whose fields
 * its clients read. mlx_lm.server sends {"status": "ok"}; its clients look at code 200 only.
 */
#ifndef SERVER_STATUS_H
#define SERVER_STATUS_H

#include <jansson.h>

#include "server/metrics.h"

json_t *status_health(const struct server_figures *f); /* GET /health */
json_t *status_version(void);                          /* GET /version, as vLLM */
/* GET /v1/models/NAME; of several models the i-th. */
json_t *status_model(const struct server_figures *f, size_t i);
json_t *status_models(const struct server_figures *f);      /* GET /v1/models */
json_t *status_now(const struct server_figures *f);         /* GET /v1/status */
json_t *status_cache_stats(const struct server_figures *f); /* GET /v1/cache/stats */

#endif
