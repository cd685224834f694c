/* SPDX-License-Identifier: Apache-2.0 */
#include "sim_tiers.h"

#include <stdio.h>
#include <time.h>

#include "cache/tree_internal.h"

bool sim_tiers_unchecked;
static struct tiers_stats sum;

struct sim_tier_plan sim_tiers_draw(uint32_t (*random_below)(uint32_t), uint64_t context) {
    static const uint32_t EVERY[] = {0, 0, 3, 10, 30};
    struct sim_tier_plan p = {.context = context};
    p.n = random_below(4) ? 1 + random_below(4) / 3 : 0;
    for (int i = 0; i < 2; i++)
        p.instant[i] = random_below(2) == 0;
    p.flush = random_below(2) == 0;
    p.every = EVERY[random_below(5)];
    p.slow_ms = random_below(4);
    p.queue_bytes = random_below(4) ? 1 << 20 : 40 << 10;
    p.late_seconds = random_below(3) ? 5 : 0.001;
    p.memory = random_below(3) == 0;
    return p;
}

struct tiers *sim_tiers_create(const struct sim_tier_plan *p, struct faulty_store *stores[2],
                               struct prefix_tree *t) {
    struct tiers_options o = {.context = {{p->context, 1}},
                              .queue_bytes = p->queue_bytes,
                              .late_seconds = p->late_seconds,
                              .unchecked = sim_tiers_unchecked};
    struct tiers *s = NULL;
    kvasir_error err;
    if (!t || !p->n)
        return NULL;
    const struct tier_memory_options host = {.limit_bytes = 1 << 20, .backend = t->cache->backend};
    if (p->memory && tier_memory_create(&host, &o.tiers[0], &err) == KVASIR_OK)
        o.n++;
    for (uint32_t i = 0; i < p->n; i++)
        o.tiers[o.n++] = faulty_tier_open(stores[i], p->instant[i], p->every, p->slow_ms);
    return tiers_create(t, &o, &s, &err) == KVASIR_OK ? s : NULL;
}

bool sim_tiers_wait(const struct tiers *s) {
    if (!s || !tiers_are_loading(s))
        return false;
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    return true;
}

void sim_tiers_destroy(struct tiers *s, const struct sim_tier_plan *p) {
    struct tiers_stats stats;
    if (!s)
        return;
    if (p->flush)
        tiers_flush(s, 5);
    tiers_get_stats(s, &stats);
    sum.loads += stats.loads;
    sum.loaded_tokens += stats.loaded_tokens;
    sum.loaded_pages += stats.loaded_pages;
    sum.loads_slow += stats.loads_slow;
    sum.loads_late += stats.loads_late;
    sum.loads_cut += stats.loads_cut;
    sum.offered_pages += stats.offered_pages;
    sum.unwritten_pages += stats.unwritten_pages;
    tiers_destroy(s);
}

bool sim_tiers_report(void) {
    bool whole = true;
    printf("tiers: %llu loads (%llu cut, %llu late, %llu not worth it), %llu pages and %llu tokens "
           "loaded, %llu pages offered, %llu of them given up\n",
           (unsigned long long)sum.loads, (unsigned long long)sum.loads_cut,
           (unsigned long long)sum.loads_late, (unsigned long long)sum.loads_slow,
           (unsigned long long)sum.loaded_pages, (unsigned long long)sum.loaded_tokens,
           (unsigned long long)sum.offered_pages, (unsigned long long)sum.unwritten_pages);
    printf("faults in records that were read:");
    for (int i = 0; i < FAULTS; i++) {
        printf(" %s %llu%s", FAULT_NAMES[i], (unsigned long long)faults_returned[i],
               i + 1 < FAULTS ? "," : "\n");
        whole = whole && faults_returned[i] > 0;
    }
    return whole && sum.loads_cut && sum.loads_late;
}
