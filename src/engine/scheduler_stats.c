/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler_stats.c: the scheduler's figures, with the pool's and the tree's. */
#include <string.h>

#include "engine/scheduler_internal.h"

struct sched_stats sched_stats(const struct sched *s) {
    struct sched_stats stats = s->stats;
    stats.running = s->n_running;
    return stats;
}

static void put_tiers(const struct sched *s, kvasir_engine_stats *stats) {
    struct tiers_stats tiers;
    tiers_get_stats(s->tiers, &tiers);
    stats->tier_loads = tiers.loads;
    stats->tier_tokens = tiers.loaded_tokens;
    stats->tier_pages = tiers.loaded_pages;
    stats->tier_bytes = tiers.loaded_bytes;
    stats->tier_loads_slow = tiers.loads_slow;
    stats->tier_loads_late = tiers.loads_late;
    stats->tier_loads_cut = tiers.loads_cut;
    stats->tier_offered_pages = tiers.offered_pages;
    stats->tier_unwritten_pages = tiers.unwritten_pages;
}

kvasir_engine_stats sched_engine_stats(const struct sched *s) {
    const struct sched_stats of = sched_stats(s);
    const struct kv_pool_stats pool = kv_pool_stats(s->pool);
    const struct tree_stats tree = s->tree ? tree_stats(s->tree) : (struct tree_stats){0};
    kvasir_engine_stats stats = {
        .running = of.running,
        .waiting = of.waiting,
        .steps = of.steps,
        .preemptions = of.preemptions,
        .prompt_tokens = of.prompt_tokens,
        .cached_tokens = of.cached_tokens,
        .generated_tokens = of.generated_tokens,
        .rerun_tokens = of.rerun_tokens,
        .budget_bytes = pool.budget_bytes,
        .used_bytes = pool.used_bytes + pool.charged_bytes,
        .peak_bytes = pool.peak_bytes,
        .stored_bytes = s->tree ? tree_stored_bytes(s->tree) : 0,
        .stored_entries = tree.entries,
        .stored_tokens = tree.tokens,
        .tree_nodes = tree.nodes,
        .store_rejections = tree.rejections,
        .evicted_pages = tree.evicted_pages,
        .requantized_pages = tree.requantized_pages,
        .pinned_bytes = tree.pinned_bytes,
        .expired_tokens = tree.expired_tokens,
        .resident_bytes = pool.resident_bytes + pool.table_bytes + pool.charged_bytes,
    };
    memcpy(stats.hits, of.hits, sizeof stats.hits);
    memcpy(stats.misses, of.misses, sizeof stats.misses);
    for (uint32_t i = 0; i < kv_cache_rungs(s->cache); i++)
        stats.requantized_pages += kv_cache_descended(s->cache, i);
    if (s->tiers)
        put_tiers(s, &stats);
    return stats;
}
