/* SPDX-License-Identifier: Apache-2.0 */
/* model_set.c: a slot for each model, and one thread that loads and unloads.
 *
 *     UNLOADED --take--> WANTED --loader--> LOADING --> LOADED --loader--> UNLOADING --> UNLOADED
 *                          ^                  `--> FAILED, until a later take
 *                          `--------------------------'
 *
 * The loader takes the first model in line that fits beside what is in use. For it, idle models are
 * unloaded, the one first that was used least recently. What can fit passes what cannot: a model
 * that waits for the memory of a busy one holds nobody up.
 *
 * A load that failed is not tried for RETRY_S, then for twice as long, and so on; after TRIES_MAX
 * never again, unless memory was what lacked.
 */
#include "server/model_set.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RETRY_S = 5, TRIES_MAX = 6 };

struct slot {
    const struct model_spec *spec;
    enum model_state state;
    void *loaded;
    bool lost, used;                 /* used: since it was idle, not only looked at */
    uint32_t leases, tries;          /* tries: loads that failed since the last one that did not */
    uint64_t turn;                   /* of WANTED: lower ones came first */
    int64_t idle_us;                 /* since when there is no lease */
    int64_t retry_us;                /* of FAILED */
    struct model_wait *first, **end; /* the line */
    struct model_view view;          /* counts and error */
};

struct model_set {
    struct model_set_options options;
    struct slot *slots; /* [options.n] */
    pthread_t thread;
    bool runs;
    /* under the mutex */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t turns, used_bytes;
    bool stop;
};

/* ---- texts ----------------------------------------------------------------------------------- */

const char *model_state_text(enum model_state state) {
    static const char *const TEXTS[MODEL_STATES] = {
        [MODEL_UNLOADED] = "unloaded", [MODEL_WANTED] = "waiting",      [MODEL_LOADING] = "loading",
        [MODEL_LOADED] = "loaded",     [MODEL_UNLOADING] = "unloading", [MODEL_FAILED] = "failed",
    };
    ASSERT(state < MODEL_STATES);
    return TEXTS[state];
}

static void PRINTF_LIKE(2, 3) say(const struct model_set *s, const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (s->options.on_line)
        s->options.on_line(s->options.user, line);
}

static double seconds_since(const struct model_set *s, int64_t from_us) {
    return (double)(s->options.now_us() - from_us) * 1e-6;
}

/* ---- lines (under the mutex) ----------------------------------------------------------------- */

static void enter_line(struct slot *m, struct model_wait *w) {
    w->next = NULL;
    *m->end = w;
    m->end = &w->next;
}

/* The whole line, which is empty then. */
static struct model_wait *take_line(struct slot *m) {
    struct model_wait *all = m->first;
    m->first = NULL;
    m->end = &m->first;
    return all;
}

/* Who is in line gets a lease. */
static struct model_wait *admit(struct slot *m) {
    struct model_wait *all = take_line(m);
    for (struct model_wait *w = all; w; w = w->next) {
        w->loaded = m->loaded;
        m->leases++;
        m->used = true;
    }
    return all;
}

static struct model_wait *turn_away(struct slot *m, const struct model_refusal *why) {
    struct model_wait *all = take_line(m);
    for (struct model_wait *w = all; w; w = w->next)
        w->why = *why;
    return all;
}

/* Without the mutex. Who is woken may free the place. */
static void wake(struct model_wait *all) {
    while (all) {
        struct model_wait *next = all->next;
        all->wake(all);
        all = next;
    }
}

static const struct model_refusal STOPPING = {.text = "the server is shutting down"};

/* Why a model in state FAILED is not there. */
static struct model_refusal failed_why(const struct slot *m, int64_t now_us) {
    struct model_refusal why = {.for_ever = m->tries >= TRIES_MAX};
    if (why.for_ever) {
        snprintf(why.text, sizeof why.text,
                 "model \"%.60s\" cannot be loaded, and is not tried again: %.250s", m->spec->name,
                 m->view.error);
        return why;
    }
    const int64_t left = m->retry_us - now_us;
    why.retry_after_s = left > 0 ? (uint32_t)(left / 1000000 + 1) : 1;
    snprintf(why.text, sizeof why.text, "model \"%.60s\" cannot be loaded now: %.250s",
             m->spec->name, m->view.error);
    return why;
}

/* Why a wait took too long. */
static struct model_refusal late_why(const struct model_set *s, const struct slot *m) {
    struct model_refusal why = {.retry_after_s = 5};
    snprintf(why.text, sizeof why.text,
             "model \"%.60s\" was not there within %u seconds: %s; try again", m->spec->name,
             s->options.wait_s,
             m->state == MODEL_WANTED ? "other models in use need its memory, or are being loaded"
                                      : "it is still being loaded");
    return why;
}

/* ---- what to do next (under the mutex) ------------------------------------------------------- */

static bool is_idle(const struct slot *m) {
    return m->state == MODEL_LOADED && m->leases == 0;
}

/* Idle, and of no use any more. */
static bool is_due(const struct model_set *s, const struct slot *m) {
    return is_idle(m) && (m->lost || (s->options.idle_s && !m->spec->pinned &&
                                      seconds_since(s, m->idle_us) >= (double)s->options.idle_s));
}

/* The one to unload for another: idle for the longest time. NULL: none is. */
static struct slot *least_recent(const struct model_set *s) {
    struct slot *found = NULL;
    for (size_t i = 0; i < s->options.n; i++) {
        struct slot *m = &s->slots[i];
        if (is_idle(m) && !m->spec->pinned && (!found || m->idle_us < found->idle_us))
            found = m;
    }
    return found;
}

/* What is left of the budget, with what idle models hold. */
static uint64_t reachable_bytes(const struct model_set *s) {
    uint64_t bytes = s->options.budget_bytes - s->used_bytes;
    for (size_t i = 0; i < s->options.n; i++)
        if (is_idle(&s->slots[i]) && !s->slots[i].spec->pinned)
            bytes += s->slots[i].spec->need_bytes;
    return bytes;
}

/* The first in line that fits. */
static struct slot *next_wanted(const struct model_set *s) {
    const uint64_t reach = reachable_bytes(s);
    struct slot *found = NULL;
    for (size_t i = 0; i < s->options.n; i++) {
        struct slot *m = &s->slots[i];
        if (m->state == MODEL_WANTED && m->spec->need_bytes <= reach &&
            (!found || m->turn < found->turn))
            found = m;
    }
    return found;
}

static void want(struct model_set *s, struct slot *m) {
    m->state = MODEL_WANTED;
    m->turn = s->turns++;
    pthread_cond_signal(&s->changed);
}

/* ---- the loader ------------------------------------------------------------------------------ */

/* Under the mutex, without it while it unloads. */
static void unload(struct model_set *s, struct slot *m, const char *why) {
    ASSERT(is_idle(m));
    void *loaded = m->loaded;
    m->state = MODEL_UNLOADING;
    m->loaded = NULL;
    pthread_mutex_unlock(&s->mutex);
    say(s, "model \"%.100s\": unloading: %s", m->spec->name, why);
    s->options.unload(s->options.user, (size_t)(m - s->slots), loaded);
    pthread_mutex_lock(&s->mutex);
    ASSERT(m->leases == 0 && s->used_bytes >= m->spec->need_bytes);
    s->used_bytes -= m->spec->need_bytes;
    m->view.unloads++;
    m->lost = false;
    m->state = MODEL_UNLOADED;
    if (m->first)
        want(s, m);
}

static struct model_wait *loaded_well(struct model_set *s, struct slot *m, void *loaded,
                                      double seconds) {
    m->loaded = loaded;
    m->view.load_s = seconds;
    m->state = MODEL_LOADED;
    m->tries = 0;
    m->view.loads++;
    *m->view.error = 0;
    m->idle_us = s->options.now_us();
    return admit(m);
}

/* The next try is later the more have failed. */
static struct model_wait *load_failed(struct model_set *s, struct slot *m,
                                      const kvasir_error *err) {
    m->tries += err->code != KVASIR_ERR_MEMORY;
    const int64_t pause_s = (int64_t)RETRY_S << (m->tries ? m->tries - 1 : 0);
    m->state = MODEL_FAILED;
    m->retry_us = s->options.now_us() + pause_s * 1000000;
    m->view.failures++;
    snprintf(m->view.error, sizeof m->view.error, "%.250s", err->text);
    s->used_bytes -= m->spec->need_bytes;
    const struct model_refusal why = failed_why(m, s->options.now_us());
    return turn_away(m, &why);
}

static kvasir_status call_load(struct model_set *s, struct slot *m, void **loaded, double *seconds,
                               kvasir_error *err) {
    const int64_t from_us = s->options.now_us();
    say(s, "model \"%.100s\": loading", m->spec->name);
    const kvasir_status status =
        s->options.load(s->options.user, (size_t)(m - s->slots), loaded, err);
    *seconds = seconds_since(s, from_us);
    if (status == KVASIR_OK)
        say(s, "model \"%.100s\": loaded in %.1f s", m->spec->name, *seconds);
    else
        say(s, "model \"%.100s\": cannot be loaded: %.300s", m->spec->name, err->text);
    return status;
}

/* Under the mutex, without it while it loads. */
static void load(struct model_set *s, struct slot *m) {
    void *loaded = NULL;
    double seconds;
    kvasir_error err;
    m->state = MODEL_LOADING;
    s->used_bytes += m->spec->need_bytes;
    ASSERT(s->used_bytes <= s->options.budget_bytes);
    pthread_mutex_unlock(&s->mutex);
    const kvasir_status status = call_load(s, m, &loaded, &seconds, &err);
    pthread_mutex_lock(&s->mutex);
    struct slot *other = status == KVASIR_ERR_MEMORY && !s->stop ? least_recent(s) : NULL;
    struct model_wait *line = NULL;
    if (other) { /* once more, with less beside it */
        s->used_bytes -= m->spec->need_bytes;
        want(s, m);
        unload(s, other, "another needs its memory");
    } else if (status == KVASIR_OK) {
        line = loaded_well(s, m, loaded, seconds);
    } else {
        line = load_failed(s, m, &err);
    }
    pthread_mutex_unlock(&s->mutex);
    wake(line);
    pthread_mutex_lock(&s->mutex);
}

/* One step. False: there is nothing to do. */
static bool step(struct model_set *s) {
    for (size_t i = 0; i < s->options.n; i++)
        if (is_due(s, &s->slots[i])) {
            unload(s, &s->slots[i], s->slots[i].lost ? "it cannot be used any more" : "idle");
            return true;
        }
    struct slot *m = next_wanted(s);
    if (!m)
        return false;
    if (s->used_bytes + m->spec->need_bytes <= s->options.budget_bytes)
        load(s, m);
    else
        unload(s, least_recent(s), "another needs its memory");
    return true;
}

static void *loader(void *user) {
    struct model_set *s = user;
    pthread_mutex_lock(&s->mutex);
    while (!s->stop)
        if (!step(s))
            pthread_cond_wait(&s->changed, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

/* ---- from any thread ------------------------------------------------------------------------- */

size_t model_set_find(const struct model_set *s, const char *name) {
    static const char LATEST[] = ":latest";
    const size_t n = strlen(name), tag = sizeof LATEST - 1;
    const size_t bare = n > tag && strcmp(name + n - tag, LATEST) == 0 ? n - tag : n;
    for (size_t i = 0; i < s->options.n; i++) {
        const struct model_spec *m = &s->options.models[i];
        for (size_t k = 0; k <= m->n_aliases; k++) {
            const char *own = k ? m->aliases[k - 1] : m->name;
            if (strcmp(own, name) == 0 || (strlen(own) == bare && memcmp(own, name, bare) == 0))
                return i;
        }
    }
    return MODEL_NONE;
}

static struct slot *slot_of(struct model_set *s, size_t i) {
    ASSERT(i < s->options.n);
    return &s->slots[i];
}

enum model_take model_set_take(struct model_set *s, size_t i, struct model_wait *w) {
    struct slot *m = slot_of(s, i);
    enum model_take result = MODEL_REFUSED;
    pthread_mutex_lock(&s->mutex);
    const int64_t now = s->options.now_us();
    if (m->state == MODEL_LOADED && !m->lost) {
        m->leases++;
        m->used = true;
        w->loaded = m->loaded;
        result = MODEL_TAKEN;
    } else if (s->stop) {
        w->why = STOPPING;
    } else if (m->state == MODEL_FAILED && (m->tries >= TRIES_MAX || now < m->retry_us)) {
        w->why = failed_why(m, now);
    } else {
        w->until_us = now + (int64_t)s->options.wait_s * 1000000;
        enter_line(m, w);
        if (m->state == MODEL_UNLOADED || m->state == MODEL_FAILED)
            want(s, m);
        result = MODEL_WAITS;
    }
    pthread_mutex_unlock(&s->mutex);
    return result;
}

void *model_set_peek(struct model_set *s, size_t i) {
    struct slot *m = slot_of(s, i);
    pthread_mutex_lock(&s->mutex);
    void *loaded = m->lost ? NULL : m->loaded;
    m->leases += loaded != NULL;
    pthread_mutex_unlock(&s->mutex);
    return loaded;
}

void model_set_again(struct model_set *s, size_t i) {
    struct slot *m = slot_of(s, i);
    pthread_mutex_lock(&s->mutex);
    ASSERT(m->leases > 0);
    m->leases++;
    pthread_mutex_unlock(&s->mutex);
}

void model_set_give(struct model_set *s, size_t i) {
    struct slot *m = slot_of(s, i);
    pthread_mutex_lock(&s->mutex);
    ASSERT(m->leases > 0 && m->loaded);
    if (--m->leases == 0) {
        m->idle_us = m->used ? s->options.now_us() : m->idle_us;
        m->used = false;
        pthread_cond_signal(&s->changed);
    }
    pthread_mutex_unlock(&s->mutex);
}

void model_set_lose(struct model_set *s, size_t i, const char *why) {
    struct slot *m = slot_of(s, i);
    pthread_mutex_lock(&s->mutex);
    const bool loses = m->state == MODEL_LOADED && !m->lost;
    if (loses) {
        m->lost = true;
        snprintf(m->view.error, sizeof m->view.error, "%.250s", why);
        pthread_cond_signal(&s->changed);
    }
    pthread_mutex_unlock(&s->mutex);
    if (loses)
        say(s, "model \"%.100s\": %.300s", m->spec->name, why);
}

/* Under the mutex: those whose wait is over leave the line; they become a list before `gone`. */
static struct model_wait *end_waits(struct model_set *s, struct slot *m, struct model_wait *gone) {
    const int64_t now = s->options.now_us();
    const struct model_refusal late = late_why(s, m);
    struct model_wait **at = &m->first;
    while (*at) {
        struct model_wait *w = *at;
        if (!w->over(w) && now < w->until_us) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        w->why = late;
        w->next = gone;
        gone = w;
    }
    m->end = at;
    if (m->state == MODEL_WANTED && !m->first)
        m->state = MODEL_UNLOADED;
    return gone;
}

void model_set_tick(struct model_set *s) {
    struct model_wait *gone = NULL;
    pthread_mutex_lock(&s->mutex);
    for (size_t i = 0; i < s->options.n; i++) {
        if (s->slots[i].first)
            gone = end_waits(s, &s->slots[i], gone);
        if (is_due(s, &s->slots[i]))
            pthread_cond_signal(&s->changed);
    }
    pthread_mutex_unlock(&s->mutex);
    wake(gone);
}

void model_set_view(struct model_set *s, size_t i, struct model_view *out) {
    const struct slot *m = slot_of(s, i);
    pthread_mutex_lock(&s->mutex);
    *out = m->view;
    out->state = m->state;
    out->leases = m->leases;
    out->waiting = 0;
    for (const struct model_wait *w = m->first; w; w = w->next)
        out->waiting++;
    pthread_mutex_unlock(&s->mutex);
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Before the thread is there. */
static kvasir_status load_pinned(struct model_set *s, kvasir_error *err) {
    for (size_t i = 0; i < s->options.n; i++) {
        struct slot *m = &s->slots[i];
        void *loaded;
        double seconds;
        if (!m->spec->pinned)
            continue;
        TRY(call_load(s, m, &loaded, &seconds, err));
        s->used_bytes += m->spec->need_bytes;
        ASSERT(s->used_bytes <= s->options.budget_bytes);
        (void)loaded_well(s, m, loaded, seconds);
    }
    return KVASIR_OK;
}

kvasir_status model_set_create(const struct model_set_options *o, struct model_set **out,
                               kvasir_error *err) {
    struct model_set *s = mem_calloc(1, sizeof *s);
    struct slot *slots = mem_calloc(o->n, sizeof *slots);
    *out = NULL;
    if (!s || !slots) {
        mem_free(s);
        mem_free(slots);
        return fail(err, KVASIR_ERR_MEMORY, "out of memory for the models");
    }
    s->options = *o;
    s->slots = slots;
    for (size_t i = 0; i < o->n; i++) {
        slots[i].spec = &o->models[i];
        slots[i].end = &slots[i].first;
        ASSERT(o->models[i].need_bytes <= o->budget_bytes); /* or it could never be loaded */
    }
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->changed, NULL);
    kvasir_status status = load_pinned(s, err);
    s->runs = status == KVASIR_OK && pthread_create(&s->thread, NULL, loader, s) == 0;
    if (status == KVASIR_OK && !s->runs)
        status = fail(err, KVASIR_ERR_MEMORY, "cannot start a thread");
    if (status != KVASIR_OK)
        model_set_destroy(s);
    else
        *out = s;
    return status;
}

void model_set_stop(struct model_set *s) {
    struct model_wait *last = NULL;
    pthread_mutex_lock(&s->mutex);
    s->stop = true;
    for (size_t i = 0; i < s->options.n; i++) {
        struct model_wait *line = turn_away(&s->slots[i], &STOPPING), *next;
        for (; line; line = next) {
            next = line->next;
            line->next = last;
            last = line;
        }
    }
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    wake(last);
}

void model_set_destroy(struct model_set *s) {
    if (!s)
        return;
    model_set_stop(s);
    if (s->runs)
        pthread_join(s->thread, NULL);
    for (size_t i = 0; i < s->options.n; i++) {
        struct slot *m = &s->slots[i];
        ASSERT(m->leases == 0 && !m->first);
        if (m->loaded)
            s->options.unload(s->options.user, i, m->loaded);
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->mutex);
    mem_free(s->slots);
    mem_free(s);
}
