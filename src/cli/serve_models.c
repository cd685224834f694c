/* SPDX-License-Identifier: Apache-2.0 */
/* serve_models.c: `kvasir serve --models`, several models in one server.
 *
 *     --models --serve_folder.c--> list --> names, parts of the budget --> server_create_many
 *                                                   load, unload <------------- its thread
 *
 * The budget is that of one model's cache: --cache-memory-mb, or a percentage of the memory that
 * the weights leave free, of as many models as can be loaded at once. A model with a share has that
 * much of it. The others have equal parts of the rest, so large that --models-at-once of them fit;
 * while a model with a share is not loaded, others may be in its place. Weights are beside the
 * budget, as with one model, and a model whose weights do not fit the free memory is not loaded.
 *
 * Each model has a folder of its own in --cache-dir, and an equal part of --cache-disk-gb and
 * --cache-host-mb.
 */
#include "serve.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "util/utf8.h"

/* ---- names ----------------------------------------------------------------------------------- */

/* The k-th name of a model; NULL: it has no more. */
static const char *name_at(const struct serve_model *m, size_t k) {
    return k == 0 ? m->name : k <= m->n_aliases ? m->aliases[k - 1] : NULL;
}

/* Whether a name before the k-th of model i is the same. */
static bool is_taken(const struct serve_models *all, size_t i, size_t k) {
    const char *name = name_at(&all->items[i], k), *other;
    for (size_t j = 0; j <= i; j++)
        for (size_t l = 0; (j < i || l < k) && (other = name_at(&all->items[j], l)) != NULL; l++)
            if (strcmp(name, other) == 0)
                return true;
    return false;
}

/* For JSON, and for lines of the log. */
static bool is_clean(const char *name) {
    const char *p = name;
    while ((unsigned char)*p > 0x20)
        p++;
    return !*p && p > name && utf8_check(name, strlen(name)) == strlen(name);
}

static int check_name(const struct serve_models *all, size_t i, size_t k) {
    const char *name = name_at(&all->items[i], k);
    if (!is_clean(name))
        return usage_error(all->command,
                           "--models: %.200s: its name must be UTF-8 without blanks: give it a "
                           "\"name\" in a file",
                           all->items[i].path);
    if (is_taken(all, i, k))
        return usage_error(all->command,
                           "--models: two models have the name \"%.100s\": give one another "
                           "\"name\" in a file",
                           name);
    return EXIT_GOOD;
}

static int check_names(struct serve_models *all) {
    size_t defaults = 0;
    for (size_t i = 0; i < all->n; i++) {
        for (size_t k = 0; name_at(&all->items[i], k); k++)
            if (check_name(all, i, k))
                return EXIT_USAGE;
        if (!all->items[i].is_default)
            continue;
        all->set.first = i;
        if (defaults++)
            return usage_error(all->command, "--models: two models are the \"default\"");
    }
    return EXIT_GOOD;
}

/* ---- the budget ------------------------------------------------------------------------------ */

static bool has_share(const struct serve_model *m) {
    return m->share > 0 || m->own_bytes > 0;
}

/* How many of the models without a share fit at once. */
static size_t places_of(const struct serve_models *all, const struct serve_args *a) {
    enum { AT_ONCE = 2 };
    size_t n = 0;
    for (size_t i = 0; i < all->n; i++)
        n += !has_share(&all->items[i]);
    const size_t most = a->at_once ? a->at_once : AT_ONCE;
    return n < most ? n : most;
}

/* Of the models that can be loaded at once: those with a share, and the largest of the others. */
static uint64_t weights_at_once(const struct serve_models *all, size_t places) {
    uint64_t bytes = 0, below = UINT64_MAX;
    for (size_t i = 0; i < all->n; i++)
        bytes += has_share(&all->items[i]) ? all->items[i].file_bytes : 0;
    while (places > 0) { /* all of the next size at a time */
        uint64_t next = 0;
        size_t same = 0;
        for (size_t i = 0; i < all->n; i++) {
            const struct serve_model *m = &all->items[i];
            if (has_share(m) || m->file_bytes >= below || m->file_bytes < next)
                continue;
            same = m->file_bytes == next ? same + 1 : 1;
            next = m->file_bytes;
        }
        if (!same)
            break;
        same = same < places ? same : places;
        bytes += same * next;
        places -= same;
        below = next;
    }
    return bytes;
}

/* As the engine does it for one model. */
static int settle_budget(struct serve_models *all, const kvasir_engine_options *o, size_t places) {
    const uint64_t weights = weights_at_once(all, places);
    uint64_t available;
    kvasir_error err;
    all->set.budget_bytes = o->cache_memory_bytes;
    if (all->set.budget_bytes)
        return EXIT_GOOD;
    if (!(o->cache_memory_percent > 0 && o->cache_memory_percent <= 100))
        return usage_error(all->command,
                           "--cache-memory-percent: %g is not above 0 and at most 100",
                           o->cache_memory_percent);
    if (kvasir_free_memory(o->context.device, &available, &err))
        return library_error(all->command, &err);
    const uint64_t left = available > weights ? available - weights : available / 4;
    all->set.budget_bytes = (uint64_t)((double)left * o->cache_memory_percent / 100);
    return EXIT_GOOD;
}

static uint64_t own_part(const struct serve_models *all, const struct serve_model *m) {
    return m->own_bytes ? m->own_bytes : (uint64_t)((double)all->set.budget_bytes * m->share / 100);
}

/* Whatever is loaded, each model fits beside those that are never unloaded. */
static int check_pinned(const struct serve_models *all) {
    uint64_t pinned = 0;
    for (size_t i = 0; i < all->n; i++)
        pinned += all->items[i].pinned ? all->specs[i].need_bytes : 0;
    for (size_t i = 0; i < all->n; i++) {
        const uint64_t others = pinned - (all->items[i].pinned ? all->specs[i].need_bytes : 0);
        if (others + all->specs[i].need_bytes > all->set.budget_bytes)
            return usage_error(all->command,
                               "--models: \"%.100s\" does not fit beside the pinned models: pin "
                               "fewer, give them a smaller \"share\", or raise --models-at-once",
                               all->items[i].name);
    }
    return EXIT_GOOD;
}

static int share_out(struct serve_models *all, size_t places) {
    const struct command *c = all->command;
    uint64_t given = 0;
    double percent = 0;
    for (size_t i = 0; i < all->n; i++) {
        given += own_part(all, &all->items[i]);
        percent += all->items[i].share;
    }
    if (percent > 100.0001)
        return usage_error(c, "--models: the shares add up to %g %%: at most 100 can be given",
                           percent);
    if (given > all->set.budget_bytes)
        return usage_error(c,
                           "--models: the models' shares are %llu MiB, the cache has %llu: make "
                           "them smaller, or raise --cache-memory-mb",
                           (unsigned long long)(given >> 20),
                           (unsigned long long)(all->set.budget_bytes >> 20));
    const uint64_t rest = places ? (all->set.budget_bytes - given) / places : 0;
    for (size_t i = 0; i < all->n; i++) {
        const struct serve_model *m = &all->items[i];
        all->specs[i].need_bytes = has_share(m) ? own_part(all, m) : rest;
        if (all->specs[i].need_bytes == 0)
            return usage_error(c, "--models: the shares leave nothing for \"%.100s\"", m->name);
    }
    return check_pinned(all);
}

/* ---- one model ------------------------------------------------------------------------------- */

/* The name as the name of a folder: other characters as %2F. mem_free. */
static char *folder_of(const char *dir, const char *name) {
    struct text_buf out = {0};
    bool good = text_puts(&out, dir) && text_puts(&out, "/");
    for (const char *p = name; good && *p; p++) {
        const bool plain = (*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'z') ||
                           (*p >= 'A' && *p <= 'Z') || *p == '-' || *p == '_' ||
                           (*p == '.' && p > name);
        good = plain ? text_append(&out, p, 1) : text_printf(&out, "%%%02X", (unsigned char)*p);
    }
    if (good && text_append(&out, "", 1))
        return out.data;
    text_free(&out);
    return NULL;
}

/* What needs neither the budget nor the model. */
static int settle(struct serve_models *all, struct serve_model *m) {
    const struct command *c = all->command;
    struct serve_args *a = &m->args;
    kvasir_sampling unused = a->server.sampling;
    kvasir_error err;
    a->server.max_choices = a->engine.options.max_running;
    int code = engine_args_options(c, &a->engine, &m->options);
    if (!code && !server_check_parsers(&a->server, &err))
        code = library_error(c, &err);
    if (!code)
        code = chat_read(c, &a->chat, &m->chat);
    if (!code)
        code = rerank_form_read(c, a->rerank_form, m->path, &a->server.rerank);
    if (!code) /* later there is nobody to tell of a wrong word */
        code = sampling_settle(c, a->generation_config, NULL, &unused, NULL);
    a->server.variables = m->chat.kwargs;
    a->server.all_control = m->chat.all_control;
    a->server.model_name = m->name;
    if (m->options.cache_dir && !(m->cache_dir = folder_of(m->options.cache_dir, m->name)))
        code = run_error(c, "--models: out of memory");
    m->options.cache_dir = m->cache_dir;
    m->options.cache_disk_bytes /= all->n;
    m->options.cache_host_bytes /= all->n;
    return code;
}

static kvasir_status open_model(struct serve_model *m, kvasir_model **out, kvasir_error *err) {
    char need[24], there[24];
    kvasir_model_info info;
    uint64_t available;
    TRY(kvasir_free_memory(m->options.context.device, &available, err));
    TRY(kvasir_model_open_with(m->path, &m->args.load, out, err));
    kvasir_model_get_info(*out, &info);
    if (info.weight_bytes <= available)
        return KVASIR_OK;
    kvasir_model_close(*out);
    *out = NULL;
    return fail(err, KVASIR_ERR_MEMORY, "its weights need %s, and %s of memory are free",
                human_bytes((double)info.weight_bytes, need),
                human_bytes((double)available, there));
}

static bool on_calibrating(void *user, const kvasir_calibrating *now) {
    const struct serve_model *m = user;
    char line[CALIBRATING_LINE_MAX];
    if (now->ended) {
        calibrating_line(now, m->name, m->options.context.kv_bits, line);
        serve_say(&m->server, SERVER_LOG_INFO, "%s", line);
    }
    return true;
}

static kvasir_status create_engine(struct serve_model *m, const kvasir_model *model,
                                   kvasir_engine **out, kvasir_error *err) {
    kvasir_calibrate_options calibrate = kvasir_calibrate_defaults();
    kvasir_engine_options options = m->options;
    calibrate.folder = calibrations_folder();
    calibrate.on_event = on_calibrating;
    calibrate.user = m;
    options.context.calibrate = &calibrate;
    return kvasir_engine_create(model, &options, out, err);
}

static kvasir_status load(void *user, size_t i, struct server_loaded *out, kvasir_error *err) {
    const struct serve_models *all = user;
    struct serve_model *m = &all->items[i];
    kvasir_model *model = NULL;
    TRY(open_model(m, &model, err));
    m->server = m->args.server;
    (void)sampling_settle(all->command, m->args.generation_config, model, &m->server.sampling,
                          NULL);
    kvasir_status status = KVASIR_OK;
    if (m->chat.file)
        status = kvasir_tokenizer_set_chat_template(kvasir_model_tokenizer(model), m->chat.file,
                                                    m->chat.source, m->chat.source_len, err);
    if (status == KVASIR_OK)
        status = create_engine(m, model, &out->engine, err);
    if (status != KVASIR_OK) {
        kvasir_model_close(model);
        return status;
    }
    out->model = model;
    out->options = &m->server;
    return KVASIR_OK;
}

static void unload(void *user, size_t i, const struct server_loaded *loaded) {
    (void)user, (void)i;
    kvasir_engine_destroy(loaded->engine);
    kvasir_model_close(loaded->model);
}

/* ---- all ------------------------------------------------------------------------------------- */

static bool make_arrays(struct serve_models *all, const struct serve_args *a) {
    enum { WAIT_S = 300 };
    all->specs = mem_calloc(all->n, sizeof *all->specs);
    all->paths = mem_calloc(all->n, sizeof *all->paths);
    all->steps = mem_calloc(all->n, sizeof *all->steps);
    if (!all->specs || !all->paths || !all->steps)
        return false;
    for (size_t i = 0; i < all->n; i++) {
        const struct serve_model *m = &all->items[i];
        all->specs[i] = (struct server_model){.name = m->name,
                                              .aliases = m->aliases,
                                              .n_aliases = m->n_aliases,
                                              .file_bytes = m->file_bytes,
                                              .pinned = m->pinned};
        all->paths[i] = m->path;
    }
    all->set.items = all->specs;
    all->set.n = all->n;
    all->set.idle_s = a->idle_s;
    all->set.wait_s = a->wait_s ? a->wait_s : WAIT_S;
    all->set.load = load;
    all->set.unload = unload;
    all->set.user = all;
    return true;
}

int serve_models_read(const struct command *c, const struct serve_args *a,
                      struct serve_models *all) {
    kvasir_engine_options base;
    all->command = c;
    all->kept.kept = json_array();
    if (!all->kept.kept)
        return run_error(c, "--models: out of memory");
    int code = serve_folder_read(all, a);
    if (!code)
        code = check_names(all);
    if (!code && !make_arrays(all, a))
        code = run_error(c, "--models: out of memory");
    for (size_t i = 0; i < all->n && !code; i++)
        code = settle(all, &all->items[i]);
    if (!code)
        code = engine_args_options(c, &a->engine, &base);
    const size_t places = places_of(all, a);
    if (!code)
        code = settle_budget(all, &base, places);
    if (!code)
        code = share_out(all, places);
    for (size_t i = 0; i < all->n && !code; i++)
        all->items[i].options.cache_memory_bytes = all->specs[i].need_bytes;
    return code;
}

bool serve_models_may_calibrate(const struct serve_models *all) {
    for (size_t i = 0; i < all->n; i++)
        if (may_calibrate(&all->items[i].options.context))
            return true;
    return false;
}

void serve_models_make_folders(const struct serve_models *all) {
    for (size_t i = 0; i < all->n; i++)
        if (all->items[i].cache_dir)
            (void)mkdir(all->items[i].cache_dir, 0700);
}

static int print_json(const struct serve_models *all, uint64_t requests) {
    json_t *o = json_object(), *list = json_array();
    for (size_t i = 0; i < all->n; i++) {
        const struct serve_model *m = &all->items[i];
        json_t *item = json_object();
        put_text(item, "name", m->name);
        put_text(item, "path", m->path);
        put_whole(item, "weight_bytes", m->file_bytes);
        put_whole(item, "cache_bytes", all->specs[i].need_bytes);
        json_object_set_new(item, "pinned", json_boolean(m->pinned));
        json_object_set_new(item, "default", json_boolean(i == all->set.first));
        json_array_append_new(list, item);
    }
    put_whole(o, "cache_budget_bytes", all->set.budget_bytes);
    put_whole(o, "request_memory_bytes", requests);
    json_object_set_new(o, "models", list);
    return json_print(all->command, o);
}

int serve_models_print(const struct serve_models *all, uint64_t requests, bool json) {
    char bytes[24], weights[24];
    if (json)
        return print_json(all, requests);
    printf("requests  up to %s, beside the budget: bodies, texts, tokens, answers; half for one\n",
           human_bytes((double)requests, bytes));
    printf("budget    %s for the caches of the models that are loaded; weights are beside it\n\n",
           human_bytes((double)all->set.budget_bytes, bytes));
    printf("%-40s %12s %12s\n", "model", "weights", "cache");
    for (size_t i = 0; i < all->n; i++)
        printf("%-40s %12s %12s%s%s\n", all->items[i].name,
               human_bytes((double)all->items[i].file_bytes, weights),
               human_bytes((double)all->specs[i].need_bytes, bytes),
               all->items[i].pinned ? "  pinned" : "", i == all->set.first ? "  default" : "");
    return finish_output(all->command);
}

struct watch {
    struct serve_models *all;
    bool works;
    kvasir_error err;
};

static const char *look_at(void *user, size_t i, const struct server_loaded *l) {
    struct watch *w = user;
    kvasir_engine_stats stats;
    kvasir_engine_get_stats(l->engine, &stats);
    w->works &= stats.steps != w->all->steps[i] || !stats.running;
    w->all->steps[i] = stats.steps;
    return kvasir_model_verify(l->model, &w->err) == KVASIR_OK &&
                   kvasir_engine_get_error(l->engine, &w->err) == KVASIR_OK
               ? NULL
               : w->err.text;
}

bool serve_models_watch(struct serve_models *all, struct server *server) {
    struct watch w = {.all = all, .works = true};
    server_each_loaded(server, look_at, &w);
    return w.works;
}

void serve_models_free(struct serve_models *all) {
    for (size_t i = 0; i < all->n; i++) {
        struct serve_model *m = &all->items[i];
        chat_free(&m->chat);
        mem_free(m->name);
        mem_free(m->path);
        mem_free(m->aliases);
        mem_free(m->cache_dir);
    }
    mem_free(all->items);
    mem_free(all->specs);
    mem_free(all->paths);
    mem_free(all->steps);
    settings_free(&all->kept);
}
