/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "restarts.h"

#include <dirent.h>
#include <time.h>

#include "cache/tier_disk.h"
#include "cache/tiers_internal.h"
#include "random_programs.h"

static int32_t texts[RESTARTS_TEXTS][RESTARTS_LENGTH];
static const uint8_t secret[] = "a secret of some thirty bytes...";

_Noreturn static void die(const char *what) {
    printf("FAILED: %s\n", what);
    exit(1);
}

static void need(kvasir_status status, const kvasir_error *err) {
    if (status != KVASIR_OK)
        die(err->text);
}

/* ---- models ---------------------------------------------------------------------------------- */

static void make_texts(void) {
    const uint64_t state = random_state;
    random_state = 20261125;
    for (int t = 0; t < RESTARTS_TEXTS; t++)
        for (int i = 0; i < RESTARTS_LENGTH; i++)
            texts[t][i] = (int32_t)random_below(SIM_VOCAB);
    random_state = state;
}

static bool keep_rows(void *user, size_t first, size_t rows, const float *logits) {
    memcpy((float *)user + first * SIM_VOCAB, logits, rows * SIM_VOCAB * sizeof *logits);
    return true;
}

void restarts_model_make(struct restarts_model *m, const kvasir_model *model,
                         const kvasir_context_options *options) {
    struct tier_key checkpoint;
    kvasir_error err;
    make_texts();
    need(kvasir_context_create(model, options, &m->ctx, &err), &err);
    need(checkpoint_identity(model, NULL, NULL, NULL, &checkpoint, &err), &err);
    need(context_identity(m->ctx, checkpoint, &m->identity, &err), &err);
    m->page_bytes = m->ctx->cache->layouts[0][LAYOUT_OWN].page_bytes;
    m->state_bytes = m->ctx->cache->state_page_bytes;
    for (int t = 0; t < RESTARTS_TEXTS; t++) {
        kvasir_seq *seq;
        m->logits[t] = malloc((size_t)RESTARTS_LENGTH * SIM_VOCAB * sizeof(float));
        const kvasir_eval_options eval = {.struct_size = sizeof(kvasir_eval_options),
                                          .on_logits = keep_rows,
                                          .user = m->logits[t]};
        need(kvasir_seq_create(m->ctx, &seq, &err), &err);
        need(kvasir_seq_eval(seq, texts[t], RESTARTS_LENGTH, &eval, &err), &err);
        kvasir_seq_destroy(seq);
    }
}

void restarts_model_end(struct restarts_model *m) {
    kvasir_context_destroy(m->ctx);
    for (int t = 0; t < RESTARTS_TEXTS; t++)
        free(m->logits[t]);
}

/* ---- the folder and the Redis ---------------------------------------------------------------- */

void restarts_make(struct restarts *w) {
    memset(w, 0, sizeof *w);
    temp_folder_make(&w->folder);
    snprintf(w->dir, sizeof w->dir, "%s/cache", w->folder.path);
    if (!lying_redis_start(&w->redis))
        die("no port for the Redis");
    atomic_store(&w->redis.only_values, true);
    restarts_empty(w);
}

void restarts_end(struct restarts *w) {
    lying_redis_stop(&w->redis);
    temp_folder_remove(&w->folder);
}

void restarts_clear(struct restarts *w) {
    w->rows = w->wrong = 0;
    memset(&w->disk_stats, 0, sizeof w->disk_stats);
    memset(&w->remote_stats, 0, sizeof w->remote_stats);
    memset(&w->loads, 0, sizeof w->loads);
}

void restarts_empty(struct restarts *w) {
    DIR *dir = opendir(w->dir);
    for (const struct dirent *e; dir && (e = readdir(dir));)
        (void)unlinkat(dirfd(dir), e->d_name, 0);
    if (dir)
        closedir(dir);
    faulty_files_init(&w->files);
    lying_redis_empty(&w->redis);
    w->faults = 0;
    w->disk = true;
    w->remote = w->remote_first = w->secret = w->unchecked = false;
    w->late_seconds = 0.25;
    w->exchange_seconds = 5;
    w->segment_bytes = 512 << 10;
    restarts_clear(w);
}

/* ---- the scheduler's host -------------------------------------------------------------------- */

static kvasir_status host_run(void *user, const struct step_part *parts, uint32_t n,
                              kvasir_error *err) {
    const struct restarts *w = user;
    return step_run(w->model->ctx, parts, n, NULL, err);
}

static kvasir_status host_logits(void *user, struct task *t, uint32_t row, kvasir_error *err) {
    (void)t;
    struct restarts *w = user;
    return step_logits(w->model->ctx, row, &w->row, err);
}

static bool host_next(void *user, struct task *t, uint32_t row) {
    struct restarts *w = user;
    const uint32_t text = *(const uint32_t *)t->owner, n = t->n_tokens;
    const float *want = w->model->logits[text] + (size_t)(n - 1) * SIM_VOCAB;
    (void)row;
    w->rows++;
    w->wrong += memcmp(w->row, want, SIM_VOCAB * sizeof *want) != 0;
    t->tokens[t->n_tokens++] = texts[text][n];
    return t->n_tokens < t->cap;
}

static void host_ended(void *user, struct task *t, enum task_end end, const kvasir_error *error) {
    struct restarts *w = user;
    if (end != END_COMPLETE || t->n_tokens != t->cap)
        die(error ? error->text : "an answer was not completed");
    w->answered = true;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Pages that earlier servers gave back hold what the next one wants: a page that was never read
 * would look right. So they are filled with something else. */
static void spoil_pages(const struct kv_cache *c, uint32_t class, uint64_t bytes) {
    enum { MOST = 32 };
    uint32_t pages[MOST], n = 0;
    while (n < MOST && page_take_unset(c->pool, class, &pages[n], NULL) == KVASIR_OK)
        memset(c->backend->ops->arena_host(c->backend, pool_arena(c->pool), pages[n++], bytes),
               0x5a, bytes);
    while (n > 0)
        page_unref(c->pool, pages[--n]);
}

static void spoil_memory(const struct restarts_model *m) {
    const struct kv_cache *c = m->ctx->cache;
    spoil_pages(c, c->groups[0].page_class[LAYOUT_OWN], m->page_bytes);
    if (m->state_bytes)
        spoil_pages(c, c->state_class, m->state_bytes);
}

/* ---- life ------------------------------------------------------------------------------------ */

static struct tier *make_disk(struct restarts *w) {
    const struct tier_disk_options o = {.dir = w->dir,
                                        .limit_bytes = TIER_DISK_LEAST,
                                        .segment_bytes = w->segment_bytes,
                                        .files = &w->files.base};
    kvasir_error err;
    faulty_files_init(&w->files);
    need(tier_disk_create(&o, &w->on_disk, &err), &err);
    return w->on_disk;
}

static struct tier *make_remote(struct restarts *w) {
    const struct tier_redis_options o = {.url = w->redis.url,
                                         .secret = w->secret ? secret : NULL,
                                         .secret_bytes = sizeof secret,
                                         .ttl_seconds = 600,
                                         .connect_seconds = 2,
                                         .exchange_seconds = w->exchange_seconds,
                                         .connections = 2};
    struct tier *t;
    kvasir_error err;
    need(tier_redis_create(&o, &t, &err), &err);
    return t;
}

void restarts_start(struct restarts *w, const struct restarts_model *m, struct tier_key identity) {
    const struct sched_host host = {
        .user = w, .run = host_run, .logits = host_logits, .next = host_next, .ended = host_ended};
    struct tiers_options o = {.context = identity,
                              .queue_bytes = 16 << 20,
                              .late_seconds = w->late_seconds,
                              .unchecked = w->unchecked};
    kvasir_error err;
    spoil_memory(m);
    w->model = m;
    w->on_disk = NULL;
    if (w->remote && w->remote_first)
        o.tiers[o.n++] = make_remote(w);
    if (w->disk)
        o.tiers[o.n++] = make_disk(w);
    if (w->remote && !w->remote_first)
        o.tiers[o.n++] = make_remote(w);
    need(tree_create(m->ctx->cache, 1000, &w->tree, &err), &err);
    need(tiers_create(w->tree, &o, &w->tiers, &err), &err);
    const struct sched_options options = {
        .tiers = w->tiers, .max_running = 1, .step_rows = m->ctx->options.prefill_chunk};
    need(sched_create(m->ctx->cache, w->tree, &options, &host, &w->sched, &err), &err);
}

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

uint32_t restarts_answer(struct restarts *w, uint32_t text, uint32_t prompt, const char *salt) {
    const double until = clock_seconds() + 60;
    struct task t = {.owner = &text,
                     .salt = salt,
                     .salt_len = strlen(salt),
                     .n_prompt = prompt,
                     .cap = prompt + RESTARTS_ANSWER};
    ASSERT(t.cap < RESTARTS_LENGTH);
    t.tokens = malloc(t.cap * sizeof *t.tokens);
    memcpy(t.tokens, texts[text], prompt * sizeof *t.tokens);
    w->answered = false;
    sched_submit(w->sched, &t);
    while (!w->answered) {
        uint32_t rows;
        kvasir_error err;
        sched_collect(w->sched, clock_seconds());
        need(sched_step(w->sched, &rows, &err), &err);
        if (!rows)
            nap();
        if (clock_seconds() > until)
            die("a request waits for ever");
    }
    free(t.tokens);
    return t.hit.length;
}

void restarts_settle(struct restarts *w) {
    const double until = clock_seconds() + 10;
    for (bool busy = true; busy && clock_seconds() < until;) {
        busy = false;
        (void)tiers_collect(w->tiers, clock_seconds());
        for (uint32_t i = 0; i < w->tiers->options.n; i++)
            busy |= store_is_writing(&w->tiers->stores[i]);
        if (busy)
            nap();
    }
}

static void add_tier(struct tier_stats *to, const struct tier_stats *s) {
    to->records = s->records;
    to->reads += s->reads;
    to->writes += s->writes;
    to->missing += s->missing;
    to->damaged += s->damaged;
    to->failed += s->failed;
    to->write_failures += s->write_failures;
}

static void add_figures(struct restarts *w) {
    struct tier_stats tier;
    struct tiers_stats s;
    const char *name;
    tiers_get_stats(w->tiers, &s);
    w->loads.loads += s.loads;
    w->loads.loads_late += s.loads_late;
    w->loads.loads_cut += s.loads_cut;
    w->loads.loaded_pages += s.loaded_pages;
    for (uint32_t i = 0; (name = tiers_get_tier(w->tiers, i, &tier)) != NULL; i++)
        add_tier(strcmp(name, "disk") == 0 ? &w->disk_stats : &w->remote_stats, &tier);
}

/* So that the end seals nothing. */
static void kill_disk(struct tier_disk *d) {
    pthread_mutex_lock(&d->writing);
    d->current = NULL;
    pthread_mutex_unlock(&d->writing);
}

void restarts_stop(struct restarts *w, bool killed) {
    if (killed && w->on_disk)
        kill_disk((struct tier_disk *)(void *)w->on_disk);
    sched_destroy(w->sched);
    add_figures(w);
    tiers_destroy(w->tiers);
    w->faults += atomic_exchange(&w->files.faults, 0) + atomic_exchange(&w->redis.told, 0);
    tree_destroy(w->tree);
    const struct kv_pool_stats pool = kv_pool_stats(kv_cache_pool(w->model->ctx->cache));
    if (pool.pages_used || pool.charged_bytes || w->files.open_files)
        die("something is left of a server that has ended");
}
