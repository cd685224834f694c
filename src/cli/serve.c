/* SPDX-License-Identifier: Apache-2.0 */
/* serve.c: `kvasir serve`, the HTTP server (server/) on an engine, from flags to the last request.
 *
 *     flags, settings, keys  ->  model  ->  engine  ->  server  ->  wait for a signal
 *                                             `-> --dry-run: serve_plan.c     |
 *     second SIGTERM or SIGINT: the process ends at once  <-  drain  <--------'
 *
 * The signals are blocked in all threads and taken by this one, which does nothing else. Before the
 * engine starts and after the first signal they end the program as usual. If the parent had SIGINT
 * ignored, it stays so. While it waits, this thread looks at the model's files: if they were
 * changed, requests and /ready are refused for some seconds, and then the server ends, too.
 */
#include "serve.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* clang-format off */
#define ROW(field) .offset = offsetof(struct serve_args, field)
#define SECONDS_ROW(name_, field, help_)                                                           \
    {.name = name_, .value = "S", .kind = OPTION_U32, ROW(field), .min = 1, .max = 86400,          \
     .help = help_}
static const struct option OPTIONS[] = {
    MODEL_OPTION_OR(struct serve_args, "--models"),
    {.name = "--models", .value = "DIR", .kind = OPTION_TEXT, ROW(models), .shown = "none",
     .help = "instead of --model: several models, which requests choose by their names; a folder "
             "with GGUF files and models' folders, or a JSON file (docs/models.md). Each is loaded "
             "at its first request"},
    {.name = "--models-at-once", .alias = "--models-max", .value = "N", .kind = OPTION_U32,
     ROW(at_once), .max = 1024,
     .shown = "2",
     .help = "with --models: how many of those without a share of their own fit into the cache's "
             "memory at once; each gets that part of it"},
    {.name = "--model-idle-seconds", .value = "S", .kind = OPTION_U32, ROW(idle_s),
     .max = 365 * 86400, .shown = "0, when another needs its memory",
     .help = "with --models: unload a model that nobody used for so long"},
    {.name = "--model-wait-seconds", .value = "S", .kind = OPTION_U32, ROW(wait_s), .max = 86400,
     .shown = "300",
     .help = "with --models: seconds that a request may wait until its model is loaded"},
    LOAD_OPTIONS(struct serve_args, load),
    {.name = "--host", .value = "ADDRESS", .kind = OPTION_TEXT, ROW(server.host),
     .help = "address to listen on; 0.0.0.0 or :: for all interfaces; unix:/path for a Unix "
             "socket, which its owner and group may use"},
    {.name = "--port", .value = "N", .kind = OPTION_U32, ROW(port), .max = 65535,
     .help = "port to listen on; 0 takes a free one and prints it"},
    {.name = "--admin-port", .value = "N", .kind = OPTION_I32, ROW(server.admin_port), .max = 65535,
     .shown = "none",
     .help = "one more port, for /health, /ready, /metrics and /v1/status only, which answers "
             "whatever clients do on the other; 0 takes a free one and prints it"},
    CONFIG_OPTION(struct serve_args, settings),
    {.name = "--served-model-name", .value = "NAME", .kind = OPTION_TEXT, ROW(server.model_name),
     .shown = "name of the file or folder", .help = "model name in answers and /v1/models"},
    {.name = "--api-key", .value = "KEY", .kind = OPTION_TEXTS, ROW(api_keys),
     .help = "require this key from clients; may be given several times. Other users see it in "
             "the process list: prefer --api-key-file or KVASIR_API_KEY"},
    {.name = "--api-key-file", .value = "FILE", .kind = OPTION_TEXT, ROW(api_key_file),
     .help = "file with more keys, one per line, which may have a weight and quotas; read again "
             "at SIGHUP; # starts a "
             "comment"},
    {.name = "--admin-key", .value = "KEY", .kind = OPTION_TEXT, ROW(server.admin_key),
     .help = "key for requests that empty the cache; prefer KVASIR_ADMIN_KEY"},
    {.name = "--insecure-no-key", .kind = OPTION_FLAG, ROW(insecure_no_key),
     .help = "start without a key on an address that other machines can reach: all of them can "
             "use the model"},
    {.name = "--share-prefixes", .kind = OPTION_FLAG, ROW(server.share_prefixes),
     .help = "share stored prefixes among clients with different API keys"},
    {.name = "--allowed-hosts", .value = "NAME", .kind = OPTION_TEXTS, ROW(allowed_hosts),
     .shown = "localhost and the address of --host",
     .help = "a further name that clients may use for this server (the Host header), * for any; "
             "may be given several times"},
    {.name = "--cors-origin", .alias = "--allowed-origins", .value = "ORIGIN",
     .kind = OPTION_TEXT, ROW(server.cors_origin),
     .help = "allow web pages of this site to call the API: https://example.org, or * for all"},
    {.name = "--max-tokens", .alias = "-n", .value = "N", .kind = OPTION_U32, .initial = "512",
     ROW(server.max_tokens), .max = UINT32_MAX,
     .help = "maximum tokens to generate for a request that sets no limit; 0: as many as fit"},
    {.name = "--clamp-max-tokens", .kind = OPTION_FLAG, ROW(server.clamp_tokens),
     .help = "shorten answers whose max_tokens does not fit the context, instead of refusing the "
             "request; /v1/messages always does"},
    {.name = "--strict-fields", .kind = OPTION_FLAG, ROW(server.strict_fields),
     .help = "refuse requests with unknown fields, instead of naming them in the answer's "
             "\"warnings\""},
    {.name = "--compat", .value = "SERVER", .kind = OPTION_TEXT, ROW(compat), .shown = "vllm-mlx",
     .help = "whose answer /health gives: vllm-mlx, {\"status\": \"healthy\", ...}, or mlx, "
             "mlx_lm.server's {\"status\": \"ok\"}, and 503 when requests are refused"},
    {.name = "--max-request-tokens", .value = "N", .kind = OPTION_U32, .max = UINT32_MAX,
     ROW(server.max_prompt_tokens), .shown = "0, as many as fit",
     .help = "maximum tokens in a prompt"},
    DRAWING_OPTIONS(struct serve_args, server.sampling, DEFAULT_ALIAS),
    GENERATION_OPTION(struct serve_args, generation_config),
    {.name = "--seed", .value = "N", .kind = OPTION_TEXT, ROW(seed),
     .shown = "another one for each", .help = "random seed of requests that bring none"},
    RERANK_OPTION(struct serve_args, rerank_form),
    {.name = "--tool-call-parser", .value = "NAME", .kind = OPTION_TEXT,
     ROW(server.tool_call_parser), .shown = "by the chat template",
     .help = "form of tool calls in answers, by vLLM's name: hermes, qwen3_coder, llama3_json, "
             "mistral, gemma4, functiongemma, lfm2, openai"},
    {.name = "--reasoning-parser", .value = "NAME", .kind = OPTION_TEXT,
     ROW(server.reasoning_parser), .shown = "by the chat template",
     .help = "form of reasoning in answers, by vLLM's name: qwen3, deepseek_r1, glm45, mistral, "
             "gemma4, openai_gptoss"},
    CHAT_OPTIONS(struct serve_args, chat),
    ENGINE_OPTIONS(struct serve_args, engine),
    {.name = "--kv-cache-quantization", .kind = OPTION_FLAG, ROW(quantize_stored),
     .help = "store prefixes with 8 bits where --kv-bits keeps K or V at 16 or 32"},
    {.name = "--prompt-cache-size", .value = "N", .kind = OPTION_U32, .max = UINT32_MAX,
     ROW(engine.options.stored_max_entries), .shown = "0, no limit",
     .help = "maximum number of prompts stored as prefixes"},
    {.name = "--prompt-cache-bytes", .value = "B", .kind = OPTION_BYTES,
     ROW(engine.options.stored_max_bytes), .shown = "0, limited by memory only",
     .help = "maximum bytes of stored prefixes: 4GB, 500M (powers of 1000), 1.5GiB (powers of "
             "1024)"},
    {.name = "--warm-prompts", .value = "FILE", .kind = OPTION_TEXT, ROW(warm_prompts),
     .shown = "none",
     .help = "put these prompts into the cache after the start, while there are no requests: one "
             "JSON object per line, with prompt or messages"},
    {.name = "--continuous-batching", .kind = OPTION_FLAG, ROW(batching),
     .help = "always on; accepted for compatibility with vllm-mlx"},
    {.name = "--enable-prefix-cache", .kind = OPTION_FLAG, ROW(prefix_cache),
     .help = "on unless --no-prefix-cache is given; accepted for compatibility with vllm-mlx"},
    {.name = "--max-waiting", .value = "N", .kind = OPTION_U32, .min = 1, .max = 1 << 20,
     ROW(engine.options.max_waiting),
     .help = "maximum number of waiting requests, half of them shared by the weights of the API "
             "keys; further ones are refused (429)"},
    {.name = "--max-connections", .value = "N", .kind = OPTION_U32, .min = 1, .max = 1 << 20,
     ROW(server.max_connections), .help = "maximum number of open connections, idle ones included"},
    {.name = "--max-address-connections", .value = "N", .kind = OPTION_U32, .min = 1,
     .max = 1 << 20, ROW(server.max_address_connections),
     .shown = "a quarter of --max-connections, no limit from this machine",
     .help = "maximum number of open connections from one address, or of open requests through "
             "--trusted-proxies; further ones are closed or refused (429)"},
    {.name = "--trusted-proxies", .value = "LIST", .kind = OPTION_TEXTS, ROW(trusted_proxies),
     .shown = "none",
     .help = "addresses and blocks of proxies, 10.0.0.1,fd00::/8: the address of a client behind "
             "them is the rightmost one of X-Forwarded-For that is not in the list; may be given "
             "several times"},
    {.name = "--max-body-mb", .value = "N", .kind = OPTION_U64, .min = 1, .max = 4096,
     ROW(body_mib), .help = "largest request body, in MiB"},
    {.name = "--request-memory-mb", .value = "N", .kind = OPTION_U64, .min = 16, .max = 1 << 20,
     ROW(request_mib), .shown = "an eighth of the free memory, 256 to 4096",
     .help = "memory, in MiB, for what requests own besides the cache: bodies, JSON, texts, tokens "
             "and answers; one request, and of several API keys one, may take half. Further ones "
             "are refused (413, 429)"},
    SECONDS_ROW("--idle-timeout", server.idle_timeout_s,
                "seconds that a connection may be idle or a request may take to arrive"),
    SECONDS_ROW("--head-timeout", server.head_timeout_s,
                "seconds that the headers of a request may take to arrive"),
    SECONDS_ROW("--write-timeout", server.write_timeout_s,
                "seconds that a client may read nothing of its answer before the request is "
                "cancelled"),
    SECONDS_ROW("--text-timeout", server.text_timeout_s,
                "seconds that a request may take to be parsed, rendered and tokenized, waiting "
                "included"),
    {.name = "--response-memory-mb", .value = "N", .kind = OPTION_U64, .min = 1, .max = 1 << 20,
     ROW(response_mib),
     .help = "memory, in MiB, for answers of /v1/responses that later requests continue by their "
             "id, and as much for sessions; part of --request-memory-mb. The oldest answers leave "
             "first; sessions that do not fit are refused"},
    {.name = "--response-ttl", .value = "S", .kind = OPTION_U32, .max = 365 * 86400,
     ROW(server.response_ttl_s),
     .help = "seconds that an answer of /v1/responses is kept after its last use; 0: none are "
             "kept"},
    {.name = "--session-ttl", .value = "S", .kind = OPTION_U32, .max = 365 * 86400,
     ROW(server.session_ttl_s),
     .help = "seconds that a session (/v1/sessions) lives after its last use, at most; 0: there "
             "are none"},
    SECONDS_ROW("--keepalive", server.keepalive_s,
                "seconds between keep-alive comments in a stream that has nothing else to send"),
    {.name = "--drain-timeout", .value = "S", .kind = OPTION_U32, .max = 86400, .initial = "30",
     ROW(drain_timeout_s),
     .help = "seconds that requests may take to finish after SIGTERM or Ctrl-C; a second signal "
             "stops the server at once"},
    {.name = "--sandbox", .value = "MODE", .kind = OPTION_TEXT, .initial = "auto", ROW(sandbox),
     .help = "give up access to files and system calls that the server does not need: auto, as far "
             "as the kernel can; on, or do not start; off"},
    {.name = "--log-format", .value = "FORM", .kind = OPTION_TEXT, .initial = "text",
     ROW(log_format),
     .help = "form of the log's lines: text, name=value, or json, one object each, which also "
             "leaves out the facts at the start"},
    {.name = "--log-level", .value = "LEVEL", .kind = OPTION_TEXT, .initial = "info",
     ROW(log_level),
     .help = "least important lines of the log: error; warn, also refused requests; info, also "
             "answered ones; debug, also those that ask for no answer, such as /health"},
    {.name = "--otlp-endpoint", .value = "URL", .kind = OPTION_TEXT, ROW(server.otlp_endpoint),
     .shown = "none",
     .help = "send traces to this collector of OpenTelemetry, by OTLP over HTTP as JSON: "
             "http://127.0.0.1:4318"},
    {.name = "--otlp-headers-file", .value = "FILE", .kind = OPTION_TEXT, ROW(otlp_headers_file),
     .shown = "OTEL_EXPORTER_OTLP_HEADERS",
     .help = "file with headers of requests to --otlp-endpoint, one per line, such as "
             "\"Authorization: Bearer SECRET\"; # starts a comment"},
    {.name = "--log-prompts", .kind = OPTION_FLAG, ROW(server.log_prompts),
     .help = "write request bodies to the log, including prompts"},
    {.name = "--dry-run", .kind = OPTION_FLAG, ROW(dry_run),
     .help = "print how memory will be used, and exit"},
    {.name = "--json", .kind = OPTION_FLAG, ROW(json), .help = "with --dry-run: print one JSON "
                                                               "object"},
    {.name = "--quiet", .alias = "-q", .kind = OPTION_FLAG, ROW(quiet),
     .help = "do not print the model and the cache at the start; requests are still logged"},
};
/* clang-format on */

static const struct command COMMAND = {
    .name = "serve",
    .summary = "Answers requests over HTTP, with the APIs of OpenAI and Anthropic.",
    .usage = "(-m MODEL | --models DIR) [--port N] [flags]",
    .options = OPTIONS,
    .n_options = sizeof OPTIONS / sizeof *OPTIONS,
    .details =
        "Every flag can also be set by an environment variable (KVASIR_KV_BITS=8,4) or in the\n"
        "file of --config. The command line overrides variables, and variables override the file.\n"
        "Exit codes: 0 stopped by a signal, or --dry-run is done; 1 the start failed; 2 wrong\n"
        "usage; 3 the model's files were changed while they were in use.",
};

struct serve {
    struct serve_args *a;
    kvasir_engine_options options;
    struct sandbox sandbox;
    struct chat chat;
    char *key_text;  /* of --api-key-file */
    char *warm_text; /* of --warm-prompts */
    char *trace_headers;
    struct server_key *keys;
    size_t n_keys, cap_keys;
    char name[MODEL_NAME_BYTES]; /* server.model_name if no flag gives it */
    char stored_bits[32];
    struct serve_models models; /* of --models; then there is no model and no engine here */
    kvasir_model *model;
    kvasir_engine *engine;
    struct server *server;
    sigset_t signals; /* that end it */
};

/* ---- keys ------------------------------------------------------------------------------------ */

/* Whether an Authorization header can contain it without quoting. */
static bool is_key(const char *key) {
    const char *p = key;
    while (*p > 0x20 && *p < 0x7f)
        p++;
    return p > key && !*p;
}

static int add_key(struct serve *s, const char *from, const struct server_key *key) {
    if (!is_key(key->key))
        return usage_error(&COMMAND, "%s: a key is one or more visible ASCII characters", from);
    if (!ARRAY_GROW(s->keys, s->cap_keys, s->n_keys + 1))
        return run_error(&COMMAND, "%s: out of memory", from);
    s->keys[s->n_keys++] = *key;
    return EXIT_GOOD;
}

/* The lines of the file, without blanks around them. */
static int add_file(struct serve *s) {
    const char *path = s->a->api_key_file;
    const size_t before = s->n_keys;
    size_t len, line = 0;
    int code = read_text(&COMMAND, "--api-key-file", path, &s->key_text, &len);
    if (!code && memchr(s->key_text, 0, len)) /* the rest of its line would be lost */
        return usage_error(&COMMAND, "--api-key-file: %.200s: contains a NUL byte", path);
    for (char *at = s->key_text, *next; !code && at; at = next) {
        char place[300];
        const char *start = at;
        next = strchr(at, '\n');
        if (next)
            *next++ = 0;
        at += strspn(at, " \t\r");
        size_t n = strlen(at);
        while (n && strchr(" \t\r", at[n - 1]))
            at[--n] = 0;
        snprintf(place, sizeof place, "--api-key-file: %.200s: line %zu", path, ++line);
        if (!*at || *at == '#')
            continue;
        struct server_key key;
        size_t column;
        const char *why = server_read_key(at, &key, &column);
        code = why ? usage_error(&COMMAND, "%s, column %zu: %s", place,
                                 column + (size_t)(at - start), why)
                   : add_key(s, place, &key);
    }
    if (!code && s->n_keys == before)
        return usage_error(&COMMAND, "--api-key-file: %.200s: contains no key", path);
    return code;
}

static void forget_keys(struct serve *s) {
    free(s->keys);
    free(s->key_text);
    s->keys = NULL;
    s->key_text = NULL;
    s->n_keys = s->cap_keys = 0;
}

/* At the start, and again at each SIGHUP. */
static int read_keys(struct serve *s) {
    int code = EXIT_GOOD;
    forget_keys(s);
    for (size_t i = 0; i < s->a->api_keys.n && !code; i++)
        code = add_key(s, "--api-key", &(struct server_key){.key = s->a->api_keys.items[i]});
    if (!code && s->a->api_key_file)
        code = add_file(s);
    if (!code && s->a->server.admin_key && !is_key(s->a->server.admin_key))
        return usage_error(&COMMAND, "--admin-key: a key is one or more visible ASCII characters");
    return code;
}

/* Whoever reaches an address may use a server without a key. */
static int check_open(const struct serve *s) {
    const struct server_options *o = &s->a->server;
    if (s->n_keys || s->a->insecure_no_key || server_is_loopback(o->host))
        return EXIT_GOOD;
    return usage_error(&COMMAND,
                       "--host: without a key, anyone who can reach %.100s could use the model: "
                       "set --api-key-file or KVASIR_API_KEY, or listen on 127.0.0.1, or give "
                       "--insecure-no-key",
                       o->host);
}

/* ---- flags ----------------------------------------------------------------------------------- */

/* The file is read before --sandbox hides it; server_create reads its lines. */
static int read_warm_prompts(struct serve *s) {
    struct serve_args *a = s->a;
    if (!a->warm_prompts || a->dry_run)
        return EXIT_GOOD;
    if (a->engine.options.no_prefix_cache)
        return usage_error(&COMMAND, "--warm-prompts: not allowed with --no-prefix-cache");
    if (s->n_keys > 1 && !a->server.share_prefixes)
        return usage_error(&COMMAND,
                           "--warm-prompts: the %zu API keys share no stored prefixes: "
                           "give --share-prefixes, too",
                           s->n_keys);
    a->server.warm_key = s->n_keys ? s->keys[0].key : NULL;
    const int code = read_text(&COMMAND, "--warm-prompts", a->warm_prompts, &s->warm_text,
                               &a->server.warm_prompts_len);
    a->server.warm_prompts = s->warm_text ? s->warm_text : "";
    return code;
}

/* --kv-cache-quantization: 8 bits for what the live cache keeps exact, the rest unchanged. Nothing
 * is left to do if all of it is quantized already. */
static void settle_stored(struct serve *s) {
    kvasir_engine_options *o = &s->a->engine.options;
    const char *live = o->context.kv_bits, *comma = strchr(live, ',');
    const char *v = comma ? comma + 1 : live;
    const int k_len = comma ? (int)(comma - live) : (int)strlen(live);
    if (!s->a->quantize_stored || o->stored_kv_bits)
        return;
    const bool k_exact = memchr(live, 'f', (size_t)k_len), v_exact = strchr(v, 'f');
    if (!k_exact && !v_exact) {
        if (!s->a->quiet)
            fprintf(stderr,
                    "note:   --kv-cache-quantization has no effect: --kv-bits %.20s is quantized, "
                    "stored prefixes stay so\n",
                    live);
        return;
    }
    snprintf(s->stored_bits, sizeof s->stored_bits, "%.*s,%.10s", k_exact ? 1 : k_len,
             k_exact ? "8" : live, v_exact ? "8" : v);
    o->stored_kv_bits = s->stored_bits;
    if (!o->stored_kv_group_size)
        o->stored_kv_group_size = o->context.kv_group_size;
}

static void settle_name(struct serve *s) {
    if (!s->a->model)
        return;
    model_base_name(s->a->model, s->name);
    s->a->server.strict_model = s->a->server.model_name != NULL;
    if (!s->a->server.model_name)
        s->a->server.model_name = s->name;
}

/* A GPU's driver loads code, opens devices and controls them all the time. */
static int settle_gpu(struct serve *s) {
    if (strcmp(s->a->engine.options.context.device, "cpu") == 0 || kvasir_gpus() == 0)
        return EXIT_GOOD;
    if (s->sandbox.required)
        return run_error(&COMMAND,
                         "--sandbox on: impossible on a GPU, whose driver needs more than "
                         "it leaves: give --device cpu or --sandbox auto");
    if (s->sandbox.wanted && !s->a->quiet)
        serve_say(&s->a->server, SERVER_LOG_INFO, "sandbox: off, because --device may use a GPU");
    s->sandbox.wanted = false;
    return EXIT_GOOD;
}

/* What the flags, and what the service manager has set, need. */
static int settle_sandbox(struct serve *s) {
    const struct serve_args *a = s->a;
    const char **uses = s->sandbox.uses, *host = a->server.host;
    const bool socket = strncmp(host, "unix:", 5) == 0;
    unsigned char address[sizeof(struct in6_addr)];
    const bool number =
        inet_pton(AF_INET, host, address) > 0 || inet_pton(AF_INET6, host, address) > 0;
    uses[SANDBOX_ALWAYS] = "";
    uses[SANDBOX_MODEL] = a->model;
    uses[SANDBOX_MODELS] = a->models;
    uses[SANDBOX_KEY_CENTRE] = a->engine.options.context.key_centre;
    if (a->models ? serve_models_may_calibrate(&s->models) : may_calibrate(&s->options.context))
        uses[SANDBOX_CALIBRATIONS] = calibrations_folder();
    uses[SANDBOX_CALIBRATING] = a->models ? uses[SANDBOX_CALIBRATIONS] : NULL;
    uses[SANDBOX_KEY_FILE] = a->api_key_file;
    uses[SANDBOX_SOCKET] = socket ? host + 5 : NULL;
    uses[SANDBOX_HOST_NAME] = socket || number ? NULL : host;
    uses[SANDBOX_MANAGER] = getenv("NOTIFY_SOCKET");
    uses[SANDBOX_CACHE_DIR] = s->options.cache_dir;
    uses[SANDBOX_CACHE_SECRET] = s->options.cache_remote_secret_file;
    uses[SANDBOX_CACHE_REMOTE] = s->options.cache_remote;
    uses[SANDBOX_TRACES] = a->server.otlp_endpoint;
    /* The sandbox is about files that are there. Whoever opens the folder explains failures. */
    if (s->options.cache_dir && !a->dry_run)
        (void)mkdir(s->options.cache_dir, 0700);
    if (uses[SANDBOX_CALIBRATIONS] && !a->dry_run)
        calibrations_make_folder();
    if (!a->dry_run)
        serve_models_make_folders(&s->models);
    const int code = sandbox_read(&COMMAND, a->sandbox, &s->sandbox);
    return code ? code : settle_gpu(s);
}

static int settle_compat(struct serve *s) {
    const char *as = s->a->compat;
    s->a->server.mlx_health = as && strcmp(as, "mlx") == 0;
    if (!as || s->a->server.mlx_health || strcmp(as, "vllm-mlx") == 0)
        return EXIT_GOOD;
    return usage_error(&COMMAND, "--compat: \"%.60s\" is neither mlx nor vllm-mlx", as);
}

/* What --models goes with. */
static int check_models(const struct serve_args *a) {
    const struct {
        const char *flag;
        bool given;
    } one[] = {{"--model", a->model},
               {"--served-model-name", a->server.model_name},
               {"--warm-prompts", a->warm_prompts},
               {"--kv-cache-quantization", a->quantize_stored}},
      many[] = {{"--models-at-once", a->at_once},
                {"--model-idle-seconds", a->idle_s},
                {"--model-wait-seconds", a->wait_s}};
    for (size_t i = 0; i < sizeof one / sizeof *one && a->models; i++)
        if (one[i].given)
            return usage_error(&COMMAND, "%s: not allowed with --models", one[i].flag);
    for (size_t i = 0; i < sizeof many / sizeof *many && !a->models; i++)
        if (many[i].given)
            return usage_error(&COMMAND, "%s: only allowed with --models", many[i].flag);
    return EXIT_GOOD;
}

/* The rest of the flags is settled. */
static int settle_models(struct serve *s) {
    const int code = serve_models_read(&COMMAND, s->a, &s->models);
    if (code)
        return code;
    s->a->server.model_name = s->models.items[s->models.set.first].name;
    s->sandbox.models = s->models.paths;
    s->sandbox.n_models = s->models.n;
    return EXIT_GOOD;
}

/* Everything that needs no model. */
static int settle_flags(struct serve *s) {
    struct serve_args *a = s->a;
    kvasir_error err;
    if (check_models(a))
        return EXIT_USAGE;
    if (a->json && !a->dry_run)
        return usage_error(&COMMAND, "--json: only allowed with --dry-run");
    if (a->prefix_cache && a->engine.options.no_prefix_cache)
        return usage_error(&COMMAND, "--enable-prefix-cache and --no-prefix-cache: give one");
    if (a->quantize_stored && a->engine.options.no_prefix_cache)
        return usage_error(&COMMAND, "--kv-cache-quantization: not allowed with --no-prefix-cache");
    if (a->server.model_name && !*a->server.model_name)
        return usage_error(&COMMAND, "--served-model-name: is empty");
    if (a->model && rerank_form_read(&COMMAND, a->rerank_form, a->model, &a->server.rerank))
        return EXIT_USAGE;
    for (size_t i = 0; i < a->allowed_hosts.n; i++)
        if (!*a->allowed_hosts.items[i])
            return usage_error(&COMMAND, "--allowed-hosts: is empty");
    settle_stored(s);
    settle_name(s);
    a->server.allowed_hosts = a->allowed_hosts.items;
    a->server.n_allowed_hosts = a->allowed_hosts.n;
    a->server.trusted_proxies = a->trusted_proxies.items;
    a->server.n_trusted_proxies = a->trusted_proxies.n;
    a->server.max_waiting = a->engine.options.max_waiting;
    a->server.port = (uint16_t)a->port;
    a->server.max_body_bytes = a->body_mib << 20;
    a->server.request_memory_bytes = a->request_mib << 20;
    a->server.response_bytes = a->response_mib << 20;
    a->server.max_choices = a->engine.options.max_running;
    a->server.fixed_seed = a->seed != NULL;
    int code = serve_log_read(&COMMAND, a);
    if (!code)
        code = serve_traces_read(&COMMAND, a, &s->trace_headers);
    if (!code)
        code = settle_compat(s);
    if (!code)
        code = engine_args_options(&COMMAND, &a->engine, &s->options);
    if (!code && a->seed)
        code = sampling_seed(&COMMAND, a->seed, &a->server.sampling.seed);
    if (!code && !server_check_parsers(&a->server, &err))
        code = library_error(&COMMAND, &err);
    if (!code)
        code = read_keys(s);
    if (!code)
        code = check_open(s);
    if (!code)
        code = read_warm_prompts(s);
    if (!code && !server_check_proxies(&a->server, &err))
        code = library_error(&COMMAND, &err);
    s->options.on_note = a->engine.options.on_note = serve_note;
    s->options.note_user = a->engine.options.note_user = &a->server;
    if (!code && a->models)
        code = settle_models(s);
    else if (!code)
        code = chat_read(&COMMAND, &a->chat, &s->chat);
    if (!code)
        code = settle_sandbox(s);
    a->server.variables = s->chat.kwargs;
    a->server.all_control = s->chat.all_control;
    return code;
}

/* ---- start ----------------------------------------------------------------------------------- */

static int open_model(struct serve *s) {
    kvasir_error err;
    kvasir_model_info info;
    if (kvasir_model_open_with(s->a->model, &s->a->load, &s->model, &err))
        return library_error(&COMMAND, &err);
    kvasir_model_get_info(s->model, &info);
    bool recommended;
    kvasir_sampling *sampling = &s->a->server.sampling;
    const int code =
        sampling_settle(&COMMAND, s->a->generation_config, s->model, sampling, &recommended);
    if (code)
        return code;
    if (!s->a->quiet) {
        print_model_line(&info);
        print_sampling_line(sampling, recommended);
    }
    return chat_set_template(&COMMAND, &s->chat, kvasir_model_tokenizer(s->model));
}

/* From here on the signals that end the server wait for take_signal. */
static void block_signals(struct serve *s) {
    sigemptyset(&s->signals);
    sigaddset(&s->signals, SIGTERM);
    if (s->a->api_key_file)
        sigaddset(&s->signals, SIGHUP);
    if (!signal_is_ignored(SIGINT))
        sigaddset(&s->signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &s->signals, NULL);
}

static int start_engine(struct serve *s) {
    kvasir_error err;
    kvasir_context_info info;
    block_signals(s);
    if (s->a->dry_run) { /* the plan needs no stores */
        s->options.cache_dir = s->options.cache_remote = NULL;
        s->options.cache_host_bytes = 0;
    } else
        calibrate_unasked(&s->options.context, s->a->model, s->a->quiet);
    if (kvasir_engine_create(s->model, &s->options, &s->engine, &err)) {
        if (err.code == KVASIR_ERR_CANCELLED) /* by a signal, which ends the program now */
            pthread_sigmask(SIG_UNBLOCK, &s->signals, NULL);
        return library_error(&COMMAND, &err);
    }
    kvasir_engine_get_context(s->engine, &info);
    if (!s->a->quiet) {
        print_context_facts(&info);
        print_stores_line(s->engine, &s->options);
    }
    return EXIT_GOOD;
}

static int start_server(struct serve *s) {
    struct server_options *o = &s->a->server;
    const bool v6 = strchr(o->host, ':') != NULL;
    kvasir_error err;
    o->on_log = serve_log_line;
    o->api_keys = s->keys;
    o->n_api_keys = s->n_keys;
    if (s->a->models ? server_create_many(o, &s->models.set, &s->server, &err)
                     : server_create(o, s->model, s->engine, &s->server, &err))
        return library_error(&COMMAND, &err);
    if (!server_is_loopback(o->host) && o->n_api_keys == 0)
        serve_say(o, SERVER_LOG_WARN,
                  "warning: no --api-key: anyone who can reach %.100s can use the model", o->host);
    if (strncmp(o->host, "unix:", 5) == 0)
        serve_say(o, SERVER_LOG_INFO, "listening on %.120s", o->host);
    else
        serve_say(o, SERVER_LOG_INFO, "listening on http://%s%.100s%s:%u", v6 ? "[" : "", o->host,
                  v6 ? "]" : "", server_port(s->server));
    if (server_admin_port(s->server))
        serve_say(o, SERVER_LOG_INFO, "health and metrics are also on port %u",
                  server_admin_port(s->server));
    char restricted[SANDBOX_TEXT_MAX];
    const int code = sandbox_calls(&COMMAND, &s->sandbox, s->a->quiet, restricted);
    if (*restricted)
        serve_say(o, SERVER_LOG_INFO, "%s", restricted);
    if (!code)
        notify("READY=1");
    return code;
}

/* ---- end ------------------------------------------------------------------------------------- */

enum {
    NO_SIGNAL = 0,
    WATCH_S = 1,   /* between looks at the model's files */
    UNREADY_S = 5, /* for load balancers to see that /ready fails */
};

/* The signal that came within so many seconds. */
static int wait_signal(const struct serve *s, int seconds) {
    const double end = clock_seconds() + seconds;
    for (;;) {
        const double left = end - clock_seconds();
        if (left <= 0)
            return NO_SIGNAL;
        const struct timespec time = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
        const int came = sigtimedwait(&s->signals, NULL, &time);
        if (came > 0)
            return came;
    }
}

/* Tells the service manager's watchdog that the engine has made a step since the last call, or has
 * nothing to do. A thread that hangs with the engine's lock stops this one, too. False: the only
 * model's files were changed. */
static bool look(struct serve *s, uint64_t *steps, kvasir_error *err) {
    bool works;
    if (s->a->models) {
        works = serve_models_watch(&s->models, s->server);
    } else {
        kvasir_engine_stats stats;
        kvasir_engine_get_stats(s->engine, &stats);
        works = stats.steps != *steps || !stats.running;
        *steps = stats.steps;
    }
    if (works)
        notify("WATCHDOG=1");
    return !s->model || kvasir_model_verify(s->model, err) == KVASIR_OK;
}

/* A mistake in the file changes nothing. */
static void reread_keys(struct serve *s) {
    const struct server_options *o = &s->a->server;
    if (read_keys(s))
        serve_say(o, SERVER_LOG_ERROR, "SIGHUP: the API keys stay as they were%s",
                  sandbox_hides(&s->sandbox, s->a->api_key_file)
                      ? ": --sandbox hides the file, because it moved to another folder; restart"
                      : "");
    else if (!server_set_keys(s->server, s->keys, s->n_keys))
        serve_say(o, SERVER_LOG_ERROR, "SIGHUP: out of memory: the API keys stay as they were");
    else
        serve_say(o, SERVER_LOG_INFO, "SIGHUP: %zu API key%s", s->n_keys,
                  s->n_keys == 1 ? "" : "s");
}

/* The first signal that ends the server, or NO_SIGNAL: the model's files were changed. From then on
 * another one ends the process. */
static int take_signal(struct serve *s) {
    int came;
    uint64_t steps = 0;
    kvasir_error err;
    do {
        came = wait_signal(s, WATCH_S);
        if (came == SIGHUP) {
            reread_keys(s);
            came = NO_SIGNAL;
        }
    } while (came == NO_SIGNAL && look(s, &steps, &err));
    if (came == NO_SIGNAL) {
        run_error(&COMMAND, "%s; the server ends", err.text);
        notify("STOPPING=1");
        server_model_lost(s->server);
        wait_signal(s, UNREADY_S);
    }
    signal(SIGTERM, SIG_DFL);
    if (sigismember(&s->signals, SIGHUP))
        signal(SIGHUP, SIG_IGN); /* the keys no longer matter */
    if (sigismember(&s->signals, SIGINT))
        signal(SIGINT, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &s->signals, NULL);
    return came;
}

static int wait_and_drain(struct serve *s) {
    const struct server_options *o = &s->a->server;
    const int came = take_signal(s);
    uint32_t open;
    notify("STOPPING=1");
    server_drain(s->server);
    open = server_open_requests(s->server);
    serve_say(o, SERVER_LOG_INFO, "%s, %u request%s open%s",
              came == NO_SIGNAL ? "ending"
              : came == SIGINT  ? "SIGINT"
                                : "SIGTERM",
              open, open == 1 ? " is" : "s are", open ? "; a second signal ends at once" : "");
    open = server_wait_idle(s->server, s->a->drain_timeout_s);
    if (open)
        serve_say(o, SERVER_LOG_WARN, "%u request%s cancelled: --drain-timeout %u is over", open,
                  open == 1 ? " is" : "s are", s->a->drain_timeout_s);
    return came == NO_SIGNAL ? EXIT_CHANGED : EXIT_GOOD;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int run_serve(struct serve *s) {
    int code = settle_flags(s);
    if (!code)
        code = sandbox_files(&COMMAND, &s->sandbox);
    const bool many = s->a->models != NULL;
    if (!code && !many)
        code = open_model(s);
    if (!code && !many)
        code = start_engine(s);
    if (code)
        return code;
    const uint64_t requests = server_request_memory(&s->a->server);
    if (s->a->dry_run)
        return many ? serve_models_print(&s->models, requests, s->a->json)
                    : serve_plan_print(&COMMAND, s->engine, requests, s->a->json);
    if (many)
        block_signals(s);
    code = start_server(s);
    if (!code)
        code = wait_and_drain(s);
    return code;
}

int serve_main(int argc, char **argv) {
    struct serve_args a = {.load = kvasir_model_defaults(),
                           .engine = engine_args_defaults(),
                           .server = server_defaults()};
    struct serve s = {.a = &a};
    int code;
    a.server.sampling = sampling_unset();
    a.port = a.server.port;
    a.body_mib = a.server.max_body_bytes >> 20;
    a.response_mib = a.server.response_bytes >> 20;
    if (options_read(&COMMAND, argc, argv, &a, &code))
        code = run_serve(&s);
    server_destroy(s.server);
    kvasir_engine_destroy(s.engine);
    kvasir_model_close(s.model);
    serve_models_free(&s.models);
    chat_free(&s.chat);
    forget_keys(&s);
    free(s.warm_text);
    mem_free(s.trace_headers);
    settings_free(&a.settings);
    return code;
}
