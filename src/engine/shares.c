/* SPDX-License-Identifier: Apache-2.0 */
/* shares.c: virtual times and waiting lists of tenants. shares.h has the invariants.
 *
 * This is start-time fair queueing with requests as packets, whose lengths are estimated when they
 * start and settled when they end. The list of tenants is short (those with tasks) and is searched
 * from its head.
 */
#include "engine/shares.h"

#include "engine/scheduler.h"

/* Units of virtual time for a token of weight 1. Far below 2^64 after years. */
enum { TOKEN = 1 << 16, ANSWER_UNIT = 16, FIRST_ANSWER = 64, ANSWERS = 16 };

void shares_init(struct shares *all) {
    *all = (struct shares){.common = {.weight = 1}, .answer = FIRST_ANSWER * ANSWER_UNIT};
}

/* Frees shares that a new one of the same tenant would equal; all: those without tasks. */
static void sweep(struct shares *all, bool idle) {
    for (struct share **at = &all->common.next, *h; (h = *at) != NULL;) {
        if (h->tasks || (!idle && h->spent > all->now)) {
            at = &h->next;
            continue;
        }
        ASSERT(!h->first);
        *at = h->next;
        mem_free(h);
    }
}

void shares_deinit(struct shares *all) {
    sweep(all, true);
    ASSERT(!all->common.next && !all->common.tasks);
}

static struct share *find(struct shares *all, uint64_t tenant) {
    for (struct share *h = &all->common; h; h = h->next)
        if (h->tenant == tenant)
            return h;
    sweep(all, false);
    struct share *h = mem_calloc(1, sizeof *h);
    if (!h)
        return &all->common;
    h->tenant = tenant;
    h->next = all->common.next;
    all->common.next = h;
    return h;
}

void share_join(struct shares *all, struct task *t) {
    struct share *h = find(all, t->tenant);
    if (!h->first && h->spent < all->now)
        h->spent = all->now;
    if (!t->weight)
        t->weight = 1;
    h->weight = t->weight;
    h->tasks++;
    all->tasks++;
    t->share = h;
    t->prepaid = t->run_to = 0;
}

void share_leave(struct shares *all, struct task *t) {
    struct share *h = t->share;
    share_stop(t);
    ASSERT(h->tasks > 0 && all->tasks >= h->tasks);
    h->tasks--;
    if (--all->tasks == 0) /* all are equal again */
        for (h = &all->common; h; h = h->next)
            all->now = h->spent > all->now ? h->spent : all->now;
    if (t->admitted) {
        const uint64_t answer = (uint64_t)(t->n_tokens - t->n_prompt) * ANSWER_UNIT;
        all->answer = (all->answer * (ANSWERS - 1) + answer) / ANSWERS;
    }
}

/* By the task's own weight, since the share's may change before a task gives back what it paid. */
static uint64_t price(const struct task *t, uint64_t tokens) {
    return tokens * TOKEN / t->weight;
}

void share_stop(struct task *t) {
    const uint64_t back = price(t, t->prepaid);
    ASSERT(t->share->spent >= back);
    t->share->spent -= back;
    t->prepaid = 0;
}

/* tokens: of the prompt and of the answer so far */
static void prepay(const struct shares *all, struct task *t, uint32_t tokens, uint32_t held) {
    const uint32_t done = held > t->run_to ? held : t->run_to, generated = tokens - t->n_prompt,
                   room = t->cap - tokens;
    const uint64_t mean = all->answer / ANSWER_UNIT;
    uint64_t expected = mean > generated ? mean - generated : 0;
    expected = expected < room ? expected : room;
    share_stop(t);
    t->run_to = done;
    t->prepaid = expected + (tokens > done ? tokens - done : 0);
    t->share->spent += price(t, t->prepaid);
}

void share_start(struct shares *all, struct task *t, uint32_t held) {
    struct share *h = t->share;
    all->now = h->spent > all->now ? h->spent : all->now;
    prepay(all, t, t->n_tokens, held);
    for (uint32_t i = 0; i < t->n_followers; i++) /* they start where its prompt ends */
        if (t->followers[i]->state == TASK_FOLLOWING)
            prepay(all, t->followers[i], t->n_prompt, t->n_prompt);
}

void share_run(struct task *t, uint32_t held) {
    if (held <= t->run_to)
        return;
    const uint64_t more = held - t->run_to, paid = more < t->prepaid ? more : t->prepaid;
    t->run_to = held;
    t->prepaid -= paid;
    t->share->spent += price(t, more - paid);
}

/* ---- waiting --------------------------------------------------------------------------------- */

static bool is_before(const struct task *a, const struct task *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->order < b->order;
}

void share_insert(struct share *h, struct task *t) {
    struct task *after = h->last;
    while (after && is_before(t, after))
        after = after->prev;
    t->prev = after;
    t->next = after ? after->next : h->first;
    *(t->prev ? &t->prev->next : &h->first) = t;
    *(t->next ? &t->next->prev : &h->last) = t;
}

void share_remove(struct share *h, struct task *t) {
    ASSERT(t->prev ? t->prev->next == t : h->first == t);
    *(t->prev ? &t->prev->next : &h->first) = t->next;
    *(t->next ? &t->next->prev : &h->last) = t->prev;
    if (h->look == t)
        h->look = t->next;
    t->prev = t->next = NULL;
}

struct task *share_oldest(const struct share *h) {
    struct task *oldest = h->first;
    for (struct task *t = h->first; t; t = t->next)
        if (t->order < oldest->order)
            oldest = t;
    return oldest;
}

/* Of equal ones the share whose candidate arrived first. */
struct share *shares_least(struct shares *all) {
    struct share *least = NULL;
    for (struct share *h = &all->common; h; h = h->next)
        if (h->candidate &&
            (!least || h->spent < least->spent ||
             (h->spent == least->spent && h->candidate->order < least->candidate->order)))
            least = h;
    return least;
}
