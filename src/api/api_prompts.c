/* SPDX-License-Identifier: Apache-2.0 */
/* api_prompts.c: several prompts of one request, from the body to the engine's events. */
#include "api/api_prompts.h"

#include <stdio.h>
#include <string.h>

/* ---- reading --------------------------------------------------------------------------------- */

struct api_prompts_run {
    const struct api_request *request;
    kvasir_event_fn *on_event;
    void *user;
    uint32_t open;                                      /* prompts whose last event has not come */
    bool begun;                                         /* one has */
    uint32_t prompt_tokens, cached_tokens, prompt_done; /* of those that have */
    const kvasir_request **all;                         /* [n_prompts] */
    kvasir_request requests[];                          /* [n_prompts] */
};

bool api_prompts_begin(struct api_request *r, size_t n, struct api_error *err) {
    ASSERT(n > 0 && !r->prompts && !r->run);
    r->prompts = mem_calloc(n, sizeof *r->prompts);
    r->run = mem_calloc(1, sizeof *r->run + n * sizeof *r->run->requests);
    if (!r->prompts || !r->run)
        return api_no_memory(err);
    r->run->all = mem_calloc(n, sizeof *r->run->all);
    return r->run->all || api_no_memory(err);
}

/* Takes p->tokenized. */
static bool add(struct api_request *r, const char *path, struct api_prompt p,
                struct api_error *err) {
    snprintf(p.path, sizeof p.path, "%s", path);
    p.run = r->run;
    r->prompts[r->n_prompts++] = p;
    r->engine.tokens = r->prompts[0].tokens;
    r->engine.n_tokens = r->prompts[0].n_tokens;
    return p.n_tokens > 0 || r->session.id || api_refuse(err, path, "contains no tokens");
}

bool api_prompts_add_text(const struct api_setup *setup, const char *path, const char *text,
                          size_t len, bool bos, struct api_request *r, struct api_error *err) {
    const unsigned flags = bos ? KVASIR_TOKENIZE_ADD_SPECIAL : 0;
    struct api_prompt p = {.text = text, .len = len};
    kvasir_error why;
    if (kvasir_tokenize_by(setup->tokenizer, text, len, flags | KVASIR_TOKENIZE_PARSE_SPECIAL, NULL,
                           setup->limits, &p.tokenized, &p.n_tokens, &why))
        return api_library_failed(err, path, &why);
    p.tokens = p.tokenized;
    return add(r, path, p, err);
}

bool api_prompts_add_ids(const char *path, const char *text, size_t len, int32_t *ids, size_t n,
                         struct api_request *r, struct api_error *err) {
    const struct api_prompt p = {
        .text = text, .len = len, .tokens = ids, .n_tokens = n, .tokenized = ids};
    return add(r, path, p, err);
}

/* "prompt", or "prompt[3]" of an array. */
static void set_path(char path[API_PROMPT_PATH_MAX], const char *name, bool array, size_t i) {
    snprintf(path, API_PROMPT_PATH_MAX, array ? "%.16s[%zu]" : "%.16s", name, i);
}

static bool check_count(const char *name, size_t n, size_t most, struct api_error *err) {
    if (n <= most)
        return true;
    return most == 1 ? api_refuse(err, name, "%zu prompts, a request takes one", n)
                     : api_refuse(err, name, "%zu prompts, at most %zu are allowed", n, most);
}

/* An array of ids, or of arrays of them. */
static bool read_ids(struct api_body *body, const char *name, size_t most, struct api_request *r,
                     struct api_error *err) {
    size_t *ends, n, n_ends, from = 0;
    if (!api_take_id_lists(body, name, &r->ids, &n, &ends, &n_ends, err))
        return false;
    const size_t lists = n_ends ? n_ends : 1;
    bool good = check_count(name, lists, most, err) && api_prompts_begin(r, lists, err);
    for (size_t i = 0; good && i < lists; i++) {
        const size_t end = ends ? ends[i] : n;
        char path[API_PROMPT_PATH_MAX];
        set_path(path, name, ends != NULL, i);
        ASSERT(from <= end && end <= n);
        const int32_t *ids = r->ids ? r->ids + from : NULL;
        good = add(r, path, (struct api_prompt){.tokens = ids, .n_tokens = end - from}, err);
        from = end;
    }
    mem_free(ends);
    return good;
}

/* (Arrays here begin with a text: api_body.h.) */
bool api_prompts_read(const struct api_setup *setup, struct api_body *body, const char *name,
                      size_t most, struct api_request *r, struct api_error *err) {
    if (api_has_ids(body, name))
        return read_ids(body, name, most, r, err);
    json_t *member = api_get(body->members, name);
    const size_t in_array = json_array_size(member), n = in_array ? in_array : 1;
    if (!check_count(name, n, most, err) || !api_prompts_begin(r, n, err))
        return false;
    for (size_t i = 0; i < n; i++) {
        json_t *text = in_array ? json_array_get(member, i) : member;
        char path[API_PROMPT_PATH_MAX];
        set_path(path, name, in_array > 0, i);
        if (!json_is_string(text))
            return api_wrong_type(err, path, text, "a string or an array of token ids");
        if (json_array_append(r->kept, text) != 0)
            return api_no_memory(err);
        if (!api_prompts_add_text(setup, path, json_string_value(text), json_string_length(text),
                                  !r->prompt_cache && !r->session.id, r, err))
            return false;
    }
    return true;
}

bool api_prompts_check(const struct api_request *r, uint32_t most, const char *field,
                       struct api_error *err) {
    const uint32_t n = r->n_prompts ? r->n_prompts : 1;
    for (uint32_t i = 0; most && i < n; i++) {
        const size_t tokens = r->n_prompts ? r->prompts[i].n_tokens : r->engine.n_tokens;
        if (tokens > most)
            return api_refuse(err, r->n_prompts ? r->prompts[i].path : field,
                              "the prompt has %zu tokens, at most %u are allowed", tokens, most);
    }
    return true;
}

void api_prompts_free(struct api_request *r) {
    for (uint32_t i = 0; i < r->n_prompts; i++)
        kvasir_free(r->prompts[i].tokenized);
    if (r->run)
        mem_free(r->run->all);
    mem_free(r->prompts);
    mem_free(r->run);
    mem_free(r->ids);
}

/* ---- running --------------------------------------------------------------------------------- */

/* Sets one figure of a prompt, and its sum. */
static void note(uint32_t *sum, uint32_t *of, uint32_t now) {
    ASSERT(*sum >= *of);
    *sum += now - *of;
    *of = now;
}

static void on_prompt_event(void *user, const kvasir_event *e) {
    struct api_prompt *p = user;
    struct api_prompts_run *run = p->run;
    const uint32_t index = (uint32_t)(p - run->request->prompts);
    kvasir_event merged = *e;
    if (e->kind == KVASIR_EVENT_START || p->prompt_tokens) {
        note(&run->prompt_tokens, &p->prompt_tokens, e->prompt_tokens);
        note(&run->cached_tokens, &p->cached_tokens, e->cached_tokens);
        note(&run->prompt_done, &p->prompt_done, e->prompt_done);
    }
    if (e->kind == KVASIR_EVENT_START && run->begun)
        merged.kind = KVASIR_EVENT_PROGRESS;
    run->begun |= e->kind == KVASIR_EVENT_START;
    ASSERT(run->open > 0);
    run->open -= e->last;
    merged.choice += index * run->request->engine.n;
    merged.prompt_tokens = run->prompt_tokens;
    merged.cached_tokens = run->cached_tokens;
    merged.prompt_done = run->prompt_done;
    merged.last = run->open == 0;
    run->on_event(run->user, &merged); /* the last one may free all */
}

const kvasir_request *const *api_prompts_requests(struct api_request *r, kvasir_event_fn *on_event,
                                                  void *user) {
    struct api_prompts_run *run = r->run;
    const kvasir_request **all = run->all;
    ASSERT(r->n_prompts > 0);
    *run = (struct api_prompts_run){
        .request = r, .on_event = on_event, .user = user, .open = r->n_prompts, .all = all};
    for (uint32_t i = 0; i < r->n_prompts; i++) {
        kvasir_request *one = &run->requests[i];
        *one = r->engine;
        one->tokens = r->prompts[i].tokens;
        one->n_tokens = r->prompts[i].n_tokens;
        one->on_event = on_prompt_event;
        one->user = &r->prompts[i];
        all[i] = one;
    }
    return all;
}
