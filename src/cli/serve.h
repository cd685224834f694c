/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `kvasir serve`:
 *
 *   serve.c         the command: flags, start, signals, end
 *   serve_models.c  several models: which, what each may take, how they are loaded
 *   serve_folder.c  the same from a folder or a file
 *   serve_plan.c    --dry-run
 *   serve_log.c     the log's form, and lines of the command itself
 *   serve_traces.c  where traces are sent, with which headers
 */
#ifndef KVASIR_CLI_SERVE_H
#define KVASIR_CLI_SERVE_H

#include "cli.h"
#include "server/server.h"

struct serve_args {
    kvasir_model_options load;
    struct settings settings;
    struct server_options server;
    const char *model, *models, *api_key_file, *warm_prompts, *sandbox, *generation_config, *seed,
        *compat, *rerank_form, *log_format, *log_level, *otlp_headers_file;
    struct text_list api_keys, allowed_hosts, trusted_proxies;
    struct engine_args engine;
    struct chat_args chat;
    uint64_t body_mib, request_mib, response_mib;
    uint32_t port, drain_timeout_s, at_once, idle_s, wait_s;
    bool quantize_stored, batching, prefix_cache, insecure_no_key, dry_run, json, quiet;
};

/* ---- the plan (serve_plan.c) ----------------------------------------------------------------- */

/* How a server would use memory, of which requests own so many bytes beside the cache: --dry-run.
 * Standard output. */
int serve_plan_print(const struct command *c, kvasir_engine *engine, uint64_t requests, bool json);

/* ---- the log (serve_log.c) ------------------------------------------------------------------- */

/* Reads --log-format and --log-level. */
int serve_log_read(const struct command *c, struct serve_args *a);
/* A line of its own: at the start, at a signal. */
void serve_say(const struct server_options *o, enum server_log_level level, const char *format, ...)
    PRINTF_LIKE(3, 4);
/* server_options.on_log */
void serve_log_line(void *user, const char *line);
/* kvasir_engine_options.on_note; user: a struct server_options */
void serve_note(void *user, const char *line);

/* ---- traces (serve_traces.c) ----------------------------------------------------------------- */

/* Checks --otlp-endpoint; reads --otlp-headers-file, or the environment's, before --sandbox hides
 * files. *headers, which a->server borrows: mem_free. */
int serve_traces_read(const struct command *c, struct serve_args *a, char **headers);

/* ---- several models (serve_models.c) --------------------------------------------------------- */

/* One of --models. */
struct serve_model {
    struct serve_args args; /* the command's flags, and over them the model's own */
    char *name, *path;
    const char **aliases; /* [n_aliases]; the texts are kept by serve_models.kept */
    size_t n_aliases;
    double share;       /* percent of the budget; 0: not given */
    uint64_t own_bytes; /* of the budget, instead; 0: not given */
    bool pinned, is_default;
    uint64_t file_bytes; /* of its weights, about */
    /* settled by serve_models_settle */
    kvasir_engine_options options;
    struct chat chat;
    char *cache_dir;
    struct server_options server;
};
struct serve_models {
    const struct command *command;
    struct settings kept;
    struct serve_model *items; /* [n] */
    size_t n, cap;
    struct server_model *specs; /* [n] */
    const char **paths;         /* [n], for the sandbox */
    struct server_models set;
    uint64_t *steps; /* [n], of the watchdog */
};
/* The models of --models, and what each may take of the budget. No model is opened. args must stay
 * as they are. */
int serve_models_read(const struct command *c, const struct serve_args *a,
                      struct serve_models *all);
/* Whether one of them may. */
bool serve_models_may_calibrate(const struct serve_models *all);
/* Makes the folders of --cache-dir. */
void serve_models_make_folders(const struct serve_models *all);
/* What --dry-run prints. */
int serve_models_print(const struct serve_models *all, uint64_t requests, bool json);
/* Looks at the loaded models: those whose files were changed will be loaded again. Whether every
 * engine made a step since the last call, or has nothing to do. */
bool serve_models_watch(struct serve_models *all, struct server *server);
void serve_models_free(struct serve_models *all);

/* ---- which (serve_folder.c) ------------------------------------------------------------------ */

/* Adds the models of a folder, or of a file. */
int serve_folder_read(struct serve_models *all, const struct serve_args *a);

#endif
