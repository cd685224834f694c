/* SPDX-License-Identifier: Apache-2.0 */
/* served.c: models with what requests need, and requests with their model.
 *
 *     worker                         the set's loader
 *       served_pick: which name?
 *         loaded: PICKED
 *         else:   PICK_WAITS   -->     loads; wake: adds the work again
 *       served_pick, again     <------'
 *         PICKED, or why not
 *
 * The name is found by a walk through the body, which builds no tree: only the model's tokenizer
 * tells what ids the rest may contain. With one model there is no such walk.
 */
#include "server/served.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/server_internal.h"

/* ---- one model ------------------------------------------------------------------------------- */

/* Reads answers as the options say; which of the two is unknown, or NULL. */
const char *served_set_parsers(const struct server_options *o, struct answer_syntax *syntax) {
    if (o->tool_call_parser && !answer_syntax_tools(syntax, o->tool_call_parser))
        return o->tool_call_parser;
    if (o->reasoning_parser && !answer_syntax_reasoning(syntax, o->reasoning_parser))
        return o->reasoning_parser;
    return NULL;
}

static void set_up(struct served *m) {
    const struct server_options *o = m->options;
    kvasir_model_info info;
    kvasir_context_info context;
    kvasir_model_get_info(m->model, &info);
    kvasir_engine_get_context(m->engine, &context);
    m->syntax = answer_syntax_of(kvasir_model_tokenizer(m->model));
    const char *unknown = served_set_parsers(o, &m->syntax);
    ASSERT(!unknown); /* server_check_parsers */
    (void)unknown;
    m->setup = (struct api_setup){.tokenizer = kvasir_model_tokenizer(m->model),
                                  .syntax = &m->syntax,
                                  .variables = o->variables,
                                  .all_control = o->all_control,
                                  .model = o->model_name,
                                  .picked = m->server->many != NULL,
                                  .vocab = info.vocab,
                                  .max_choices = o->max_choices,
                                  .max_tokens = o->max_tokens,
                                  .sampling = o->sampling,
                                  .grammars = m->grammars,
                                  .width = info.dim,
                                  .pooling = kvasir_model_pooling(m->model),
                                  .rerank = o->rerank,
                                  .ctx = context.ctx,
                                  .clamp_tokens = o->clamp_tokens,
                                  .strict_fields = o->strict_fields,
                                  .stream = true};
}

/* Longer prompts are refused before all of their tokens are known. 0: there is no limit. */
static uint32_t most_prompt_tokens(const struct served *m) {
    const uint32_t ctx = m->setup.ctx, asked = m->options->max_prompt_tokens;
    kvasir_memory_plan plan;
    kvasir_engine_get_plan(m->engine, &plan);
    uint32_t most = plan.fit_tokens;
    if (ctx && (!most || ctx < most))
        most = ctx;
    if (asked && (!most || asked < most))
        most = asked;
    return most;
}

/* NULL: out of memory. */
static struct served *make(struct server *s, size_t index, const struct server_loaded *loaded) {
    struct served *m = calloc(1, sizeof *m);
    if (!m || !(m->grammars = grammar_cache_create(0, 0))) {
        free(m);
        return NULL;
    }
    m->server = s;
    m->index = index;
    m->loaded = *loaded;
    m->options = loaded->options;
    m->model = loaded->model;
    m->engine = loaded->engine;
    set_up(m);
    m->most_prompt_tokens = most_prompt_tokens(m);
    return m;
}

static void destroy(struct served *m) {
    if (m)
        grammar_cache_destroy(m->grammars);
    free(m);
}

kvasir_status served_open_one(struct server *s, const kvasir_model *model, kvasir_engine *engine,
                              kvasir_error *err) {
    const struct server_loaded loaded = {(kvasir_model *)(uintptr_t)model, engine, &s->options};
    s->one = make(s, 0, &loaded);
    return s->one ? KVASIR_OK : fail(err, KVASIR_ERR_MEMORY, "out of memory for the model");
}

/* ---- several --------------------------------------------------------------------------------- */

static kvasir_status load(void *user, size_t i, void **out, kvasir_error *err) {
    struct server *s = user;
    const struct server_models *models = &s->many->models;
    struct server_loaded loaded;
    TRY(models->load(models->user, i, &loaded, err));
    struct served *m = make(s, i, &loaded);
    if (!m) {
        models->unload(models->user, i, &loaded);
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for the model");
    }
    m->metrics = s->many->metrics[i];
    *out = m;
    return KVASIR_OK;
}

static void unload(void *user, size_t i, void *gone) {
    struct server *s = user;
    const struct server_models *models = &s->many->models;
    struct served *m = gone;
    const struct server_loaded loaded = m->loaded;
    destroy(m);
    models->unload(models->user, i, &loaded);
}

static void log_line(void *user, const char *line) {
    log_note(((struct server *)user)->log, SERVER_LOG_INFO, "%s", line);
}

static void close_many(struct served_set *many) {
    if (!many)
        return;
    model_set_destroy(many->set);
    for (size_t i = 0; many->metrics && i < many->models.n; i++)
        metrics_destroy(many->metrics[i]);
    mem_free(many->metrics);
    mem_free(many->specs);
    mem_free(many);
}

kvasir_status served_open_many(struct server *s, const struct server_models *models,
                               kvasir_error *err) {
    struct served_set *many = mem_calloc(1, sizeof *many);
    if (!many)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for the models");
    s->many = many;
    many->models = *models;
    many->specs = mem_calloc(models->n, sizeof *many->specs);
    many->metrics = mem_calloc(models->n, sizeof *many->metrics);
    bool good = many->specs && many->metrics;
    for (size_t i = 0; good && i < models->n; i++) {
        const struct server_model *m = &models->items[i];
        many->specs[i] = (struct model_spec){.name = m->name,
                                             .aliases = m->aliases,
                                             .n_aliases = m->n_aliases,
                                             .need_bytes = m->need_bytes,
                                             .pinned = m->pinned};
        good = (many->metrics[i] = metrics_create(0, s->started_us)) != NULL;
    }
    if (!good)
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for the models");
    const struct model_set_options o = {.models = many->specs,
                                        .n = models->n,
                                        .budget_bytes = models->budget_bytes,
                                        .idle_s = models->idle_s,
                                        .wait_s = models->wait_s,
                                        .load = load,
                                        .unload = unload,
                                        .on_line = log_line,
                                        .now_us = metrics_now_us,
                                        .user = s};
    return model_set_create(&o, &many->set, err);
}

void served_close(struct server *s) {
    destroy(s->one);
    close_many(s->many);
    s->one = NULL;
    s->many = NULL;
}

/* ---- leases ---------------------------------------------------------------------------------- */

size_t served_count(const struct server *s) {
    return s->many ? s->many->models.n : 1;
}

struct served *served_peek(struct server *s, size_t index) {
    ASSERT(index < served_count(s));
    return s->one ? s->one : model_set_peek(s->many->set, index);
}

bool served_peek_name(struct server *s, const char *wanted, struct served **out,
                      const char **name) {
    *out = s->one;
    *name = s->options.model_name;
    if (s->one)
        return true;
    const struct server_models *models = &s->many->models;
    size_t i = wanted ? model_set_find(s->many->set, wanted) : models->first;
    if (i == MODEL_NONE)
        return false;
    *out = served_peek(s, i);
    for (size_t k = 0; !*out && !wanted && k < models->n; k++)
        if ((*out = served_peek(s, k)) != NULL)
            i = k;
    *name = models->items[i].name;
    return true;
}

void served_again(struct served *m) {
    if (m->server->many)
        model_set_again(m->server->many->set, m->index);
}

void served_give(struct served *m) {
    if (m && m->server->many)
        model_set_give(m->server->many->set, m->index);
}

/* ---- a request's model ----------------------------------------------------------------------- */

bool served_unknown(const struct server *s, const char *name, struct api_error *err) {
    char names[320] = "";
    size_t n = 0;
    const size_t all = served_count(s);
    for (size_t i = 0; s->many && i < all && n < sizeof names - 80; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s\"%.60s\"", i ? ", " : "",
                              s->many->models.items[i].name);
    if (s->one)
        api_refuse(err, NULL, "model \"%.100s\" not found, this server runs \"%.100s\"", name,
                   s->options.model_name);
    else
        api_refuse(err, NULL, "model \"%.100s\" not found, this server has %s%s", name, names,
                   n < sizeof names - 80 ? "" : " and more: see /v1/models");
    err->status = HTTP_NOT_FOUND;
    err->code = "model_not_found";
    return false;
}

/* The model of the response that the request continues; NULL: none is named, or it is not kept. */
static char *response_model(const struct server *s, const char *key, const char *id) {
    static const char *const NAMES[] = {"model", NULL};
    struct api_error err;
    char *model = NULL;
    bool found;
    char *text = s->kept && id ? kept_text(s->kept, key, id, false, &found) : NULL;
    if (text)
        (void)!api_body_peek(text, strlen(text), NAMES, &model, &err);
    mem_free(text);
    return model;
}

/* *name: mem_free; NULL: the default's. False with *err: the body is no JSON object. */
static bool read_name(const struct server *s, const struct http_exchange *exchange, const char *key,
                      char **name, struct api_error *err) {
    /* ollama's routes know a model by either name */
    const bool ollama = strncmp(exchange->path, "/api/", strlen("/api/")) == 0;
    const char *const NAMES[] = {"model", "previous_response_id", ollama ? "name" : NULL, NULL};
    char *values[] = {NULL, NULL, NULL};
    if (exchange->body_len == 0)
        return api_refuse(err, NULL, "the request body is empty");
    const bool good = api_body_peek(exchange->body, exchange->body_len, NAMES, values, err);
    *name = good ? values[0] : NULL;
    if (good && !*name && ollama) {
        *name = values[2];
        values[2] = NULL;
    }
    if (good && !*name)
        *name = response_model(s, key, values[1]);
    if (*name != values[0])
        mem_free(values[0]);
    mem_free(values[1]);
    mem_free(values[2]);
    return good;
}

static void wake(struct model_wait *w) {
    struct model_pick *p = (struct model_pick *)w;
    work_pool_add(p->server->work, p->work);
}

static bool over(struct model_wait *w) {
    struct model_pick *p = (struct model_pick *)w;
    return p->over(p);
}

static enum pick refuse(struct model_pick *p, struct api_error *err) {
    const struct model_refusal *why = &p->wait.why;
    api_refuse(err, NULL, "%s", why->text);
    err->status = why->for_ever ? HTTP_SERVER_ERROR : HTTP_UNAVAILABLE;
    err->retry_after_s = why->retry_after_s;
    err->code = "model_unavailable";
    return PICK_REFUSED;
}

/* Finds the model and asks for it, once. */
static enum model_take ask(struct model_pick *p, size_t i) {
    p->wait.wake = wake;
    p->wait.over = over;
    p->asked = true;
    return model_set_take(p->server->many->set, i, &p->wait);
}

enum pick served_pick(struct model_pick *p, struct http_exchange *exchange, const char *key,
                      const char *name, struct served **out, struct api_error *err) {
    struct server *s = p->server;
    if (s->one) {
        *out = s->one;
        return PICKED;
    }
    if (!p->asked) {
        char *read = NULL;
        if (!name && !read_name(s, exchange, key, &read, err))
            return PICK_REFUSED;
        const char *wanted = name ? name : read;
        const size_t i = wanted ? model_set_find(s->many->set, wanted) : s->many->models.first;
        const bool known = i != MODEL_NONE || served_unknown(s, wanted, err);
        mem_free(read);
        if (!known)
            return PICK_REFUSED;
        if (ask(p, i) == MODEL_WAITS)
            return PICK_WAITS; /* p may be gone by now */
    }
    *out = p->wait.loaded;
    return *out ? PICKED : refuse(p, err);
}
