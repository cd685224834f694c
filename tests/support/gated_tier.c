/* SPDX-License-Identifier: Apache-2.0 */
#include "gated_tier.h"

#include <stdlib.h>
#include <time.h>

struct gated {
    struct tier base;
    struct tier *below;
    struct place *place;
};

static struct gated *gated(struct tier *t) {
    return (struct gated *)t;
}

static void pass(struct place *p, enum gate gate) {
    pthread_mutex_lock(&p->mutex);
    p->at[gate]++;
    pthread_cond_broadcast(&p->changed);
    while (p->closed[gate])
        pthread_cond_wait(&p->changed, &p->mutex);
    p->at[gate]--;
    pthread_mutex_unlock(&p->mutex);
}

static void gated_find(struct tier *t, const struct tier_place *place, const struct tier_key *keys,
                       uint32_t n, bool *have, double deadline) {
    struct place *p = gated(t)->place;
    pass(p, GATE_FIND);
    gated(t)->below->ops->find(gated(t)->below, place, keys, n, have, deadline);
    pthread_mutex_lock(&p->mutex);
    for (uint32_t i = 0; i < n && p->down; i++)
        have[i] = false;
    p->finds++;
    p->found_keys += n;
    pthread_mutex_unlock(&p->mutex);
}

static void gated_read(struct tier *t, struct tier_read *reads, uint32_t n, double deadline) {
    struct place *p = gated(t)->place;
    for (uint32_t i = 0; i < n; i++) {
        void (*const ended)(struct tier_read *) = reads[i].ended;
        reads[i].ended = NULL;
        gated(t)->below->ops->read(gated(t)->below, &reads[i], 1, deadline);
        reads[i].ended = ended;
        if (reads[i].result != TIER_OK || reads[i].head.number >= p->read_from)
            pass(p, GATE_READ);
        pthread_mutex_lock(&p->mutex);
        if (reads[i].result == TIER_OK && p->damages && reads[i].head.number >= p->read_from)
            reads[i].result = TIER_DAMAGED;
        p->reads++;
        if (reads[i].result == TIER_OK && reads[i].head.kind == RECORD_PAGE)
            p->read_by_bits[reads[i].head.k.bits % 9]++;
        pthread_mutex_unlock(&p->mutex);
        record_ended(&reads[i]);
    }
}

static bool gated_write(struct tier *t, const struct record_head *head, const void *payload) {
    struct place *p = gated(t)->place;
    pass(p, GATE_WRITE);
    pthread_mutex_lock(&p->mutex);
    const bool fails = p->fails > 0;
    p->fails -= fails && p->fails < UINT32_MAX;
    pthread_mutex_unlock(&p->mutex);
    const bool written = !fails && gated(t)->below->ops->write(gated(t)->below, head, payload);
    pthread_mutex_lock(&p->mutex);
    p->tries++;
    p->writes += written;
    p->expires = written ? head->expires : p->expires;
    if (written && head->kind == RECORD_PAGE)
        p->written_by_bits[head->k.bits % 9]++;
    pthread_mutex_unlock(&p->mutex);
    return written;
}

static void gated_drop(struct tier *t, const struct tier_place *place, struct tier_key key) {
    struct place *p = gated(t)->place;
    pass(p, GATE_DROP);
    gated(t)->below->ops->drop(gated(t)->below, place, key);
    pthread_mutex_lock(&p->mutex);
    p->drops++;
    pthread_mutex_unlock(&p->mutex);
}

static bool forget_fails(struct place *p, uint32_t roots) {
    pthread_mutex_lock(&p->mutex);
    p->forgets++;
    p->forgotten_roots += roots;
    p->forgotten_alls += roots == 0;
    const bool fails = p->forget_fails > 0;
    p->forget_fails -= fails;
    pthread_mutex_unlock(&p->mutex);
    return fails;
}

/* As pass. False: it was stopped at the gate. */
static bool pass_or_stop(struct place *p, const atomic_bool *stop) {
    pthread_mutex_lock(&p->mutex);
    p->at[GATE_FORGET]++;
    pthread_cond_broadcast(&p->changed);
    while (p->closed[GATE_FORGET] && !(stop && atomic_load(stop))) {
        pthread_mutex_unlock(&p->mutex);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        pthread_mutex_lock(&p->mutex);
    }
    p->at[GATE_FORGET]--;
    const bool passed = !p->closed[GATE_FORGET];
    pthread_mutex_unlock(&p->mutex);
    return passed;
}

static bool gated_forget(struct tier *t, struct tier_key context, const struct tier_key *roots,
                         uint32_t n, const atomic_bool *stop) {
    return pass_or_stop(gated(t)->place, stop) && !forget_fails(gated(t)->place, n) &&
           gated(t)->below->ops->forget(gated(t)->below, context, roots, n, stop);
}

static void gated_rest(struct tier *t) {
    (void)t;
}

static void gated_stats(struct tier *t, struct tier_stats *out) {
    struct place *p = gated(t)->place;
    gated(t)->below->ops->stats(gated(t)->below, out);
    pthread_mutex_lock(&p->mutex);
    out->down = p->down;
    out->limit_bytes = p->limit_bytes;
    pthread_mutex_unlock(&p->mutex);
}

static void gated_destroy(struct tier *t) {
    gated(t)->below->ops->destroy(gated(t)->below);
    free(t);
}

#define OPERATIONS                                                                                 \
    .find = gated_find, .read = gated_read, .write = gated_write, .drop = gated_drop,              \
    .forget = gated_forget, .rest = gated_rest, .stats = gated_stats, .destroy = gated_destroy

struct tier *place_open(struct place *p, bool instant) {
    static const struct tier_ops OPS[2] = {{.name = "slow", OPERATIONS},
                                           {.name = "quick", .instant = true, OPERATIONS}};
    struct gated *t = calloc(1, sizeof *t);
    *t = (struct gated){{&OPS[instant]}, faulty_tier_open(p->store, instant, 0, 0), p};
    return &t->base;
}

struct place *place_new(void) {
    struct place *p = calloc(1, sizeof *p);
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->changed, NULL);
    p->store = faulty_store_create(1);
    return p;
}

void place_free(struct place *p) {
    faulty_store_destroy(p->store);
    free(p);
}

void gate_set(struct place *p, enum gate gate, bool closed) {
    pthread_mutex_lock(&p->mutex);
    p->closed[gate] = closed;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->mutex);
}

void gate_wait(struct place *p, enum gate gate) {
    pthread_mutex_lock(&p->mutex);
    while (!p->at[gate])
        pthread_cond_wait(&p->changed, &p->mutex);
    pthread_mutex_unlock(&p->mutex);
}

void place_fail(struct place *p, uint32_t writes) {
    pthread_mutex_lock(&p->mutex);
    p->fails = writes;
    pthread_mutex_unlock(&p->mutex);
}

uint32_t count_of_place(struct place *p, const uint32_t *count) {
    pthread_mutex_lock(&p->mutex);
    const uint32_t n = *count;
    pthread_mutex_unlock(&p->mutex);
    return n;
}

bool place_wait(struct place *p, uint32_t writes) {
    for (int i = 0; i < 20000 && count_of_place(p, &p->writes) < writes; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return count_of_place(p, &p->writes) >= writes;
}
