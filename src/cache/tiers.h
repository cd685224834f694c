/* SPDX-License-Identifier: Apache-2.0 */
/* tiers.h: what moves between the prefix tree and the tiers below it. Included by cache.h.
 *
 *                         offer               writer threads
 *     a page in the tree ---------> waiting ------------------> a record in each tier
 *             ^                                                        |
 *             |        collect               reader threads            |
 *             `--------------------- a load <--------------------------'
 *
 * Loading. A prompt of which the tiers have more than the tree gets a load: a sequence that begins
 * with what the tree has and with pages that reader threads fill. When all reads have ended, what
 * came well is stored in the tree, where the prompt then finds it as it finds anything else. A
 * record that is missing, damaged or late ends the hit before its page: the rest is computed.
 * Nothing else depends on tiers, so a wrong byte would have to pass record_end and record_is.
 *
 * Writing. tiers_offer gives the pages of a sequence that has ended to the writers. A page waits
 * pinned in the tree, charged as it was; a writer copies it before it writes, so that a slow tier
 * keeps at most one page of memory, its own, busy. Each tier is given what it lacks: what was
 * computed, what came from another tier, what was given up, and after a pause what it did not take.
 *
 * Invariants (tests/sim/engine.c and tests/unit/test_tiers.c try to break them)
 *   TIERS-1  The engine's thread never waits for a tier: it looks into memory, hands over and
 *            collects. (It waits while a writer copies a page, less than a millisecond.)
 *   TIERS-2  Pages that are loaded are taken from the budget before the first read, and what a load
 *            needs beside them is charged.
 *   TIERS-3  Nobody but its reader sees a page until all reads of its load have ended, and nobody
 *            ever sees one whose record was not what was wanted.
 *   TIERS-4  A page that waits to be written can be given up at any moment (tiers_relent), so it
 *            never takes a running sequence's room.
 *   TIERS-5  A load is begun only if it is expected to take less time than computing its tokens.
 *   TIERS-6  A page of the tree that a tier lacks is offered to it again as long as it is there:
 *            whenever nothing else is to be done, after a failure not sooner than a second later,
 *            and up to a minute later if that fails, too. Tiers also lose what they had: that is
 *            noticed a minute after the page was used again, after ever longer pauses up to an
 *            hour while a tier goes on losing pages; and of all pages by tiers_flush.
 *
 * All functions are for the thread that owns the cache.
 */
#ifndef KVASIR_CACHE_TIERS_H
#define KVASIR_CACHE_TIERS_H

#include "cache/tier.h"
#include "cache/tree.h"

struct tiers;
struct tier_load;

enum { TIERS_MAX = 3 };

/* Called by I/O threads: tiers_collect has something to do. */
typedef void tiers_wake_fn(void *user);

struct tiers_options {
    struct tier *tiers[TIERS_MAX]; /* [n] in the order in which they are asked; taken over */
    uint32_t n;
    struct tier_key context; /* the context's fingerprint */
    uint64_t queue_bytes;    /* of pages that wait, at most, or one page; 0: budget / 16 */
    double late_seconds;     /* a load is given up after so long, at the earliest; 0: 0.25 */
    double check_seconds;    /* between two looks for what tiers have lost, at least; 0: 60 */
    bool unchecked;          /* tests only: what tiers return is believed */
    tiers_wake_fn *wake;     /* or NULL */
    /* Asked by writers before each record; NULL: always. False: what the tree has must not be
     * written any more. */
    bool (*may_write)(void *user);
    tier_complain_fn *complain; /* of what tiers do not say themselves; or NULL */
    void *user;
    /* Simulations only (tiers_hand.c): bytes a second of each tier, all of which are instant. There
     * are no threads, pages have no bytes, and `now` is the time. */
    double speeds[TIERS_MAX];
    double (*now)(void *user); /* NULL: no simulation */
};

/* What tier_memory_create needs for the pages and states of a cache: its block_bytes; *most: the
 * largest payload. */
uint32_t tiers_block_bytes(const struct kv_cache *c, uint64_t *most);
/* For a tree that is still empty. The tiers are destroyed on failure, too. */
kvasir_status tiers_create(struct prefix_tree *t, const struct tiers_options *o, struct tiers **out,
                           kvasir_error *err) MUST_CHECK;
/* Waits for reads and writes that are under way, not for those that wait. No load is open, and the
 * tree is still there. */
void tiers_destroy(struct tiers *s);

/* Begins to load what the tiers have of a prompt of n tokens beyond what the tree has, in at most
 * `most_bytes` of pages. NULL: there is nothing to load, or it would take longer than computing. */
struct tier_load *tiers_load(struct tiers *s, const void *salt, size_t salt_len,
                             const int32_t *tokens, uint32_t n, uint64_t most_bytes);
/* The most tokens that a prompt could begin with, given what the tree and the tiers that answer at
 * once have; whole pages. Changes nothing. 0 also if memory is short. */
uint32_t tiers_look(struct tiers *s, const void *salt, size_t salt_len, const int32_t *tokens,
                    uint32_t n);
bool tier_load_is_done(const struct tier_load *l);
/* What is loaded stays in the tree until it is evicted; the load no longer keeps it there. A load
 * that is not done goes on by itself and is thrown away. */
void tier_load_close(struct tiers *s, struct tier_load *l); /* or NULL */
/* Whether a load is under way that somebody waits for. */
bool tiers_are_loading(const struct tiers *s);
/* Bytes of the budget that loads keep, done or not, apart from one of them (or NULL), whose pages
 * its task takes over; unless it was late, and readers still have pages of it. */
uint64_t tiers_load_bytes(const struct tiers *s, const struct tier_load *but);

/* Gives the pages of a sequence that ends at the cursor to the tiers that lack them. */
void tiers_offer(struct tiers *s, const struct tree_cursor *at);
/* Between steps: takes what I/O threads have finished, hands over what waits. True: a load is done.
 * `now` is clock_seconds(). */
bool tiers_collect(struct tiers *s, double now);
/* Simulations only: does what threads would have done by now. Returns when it has more to do; 0: it
 * has nothing. tiers_collect comes next. */
double tiers_work(struct tiers *s);
/* When tiers_collect has to be called at the latest, if wake was not called; 0: never. */
double tiers_next_deadline(const struct tiers *s);
/* Gives up all pages that wait to be written: they can be evicted now. */
void tiers_relent(struct tiers *s);
/* While idle: offers pages that tiers still lack, looking at so many nodes for each. True: there
 * may be more. */
bool tiers_rest(struct tiers *s, uint32_t nodes);
/* At the end: writes what the tree has and the tiers have not, for at most so many seconds. */
void tiers_flush(struct tiers *s, double seconds);
/* Has the tiers forget a salt, or with salt NULL all of this context; tree_forget does the rest. A
 * tier that fails is told again; it is not asked for that salt meanwhile. tiers_destroy tries once
 * more what is due, but waits for nobody else's answer, and complains of what is left. */
void tiers_forget(struct tiers *s, const void *salt, size_t salt_len);
/* Whether a tier has not forgotten yet. From any thread. */
bool tiers_are_forgetting(struct tiers *s);

/* After a step: how fast prompts are computed, for TIERS-5. */
void tiers_note_step(struct tiers *s, uint32_t rows, double seconds);

struct tiers_stats {
    /* tokens: of hits, beyond what the tree had. pages: of layer groups, and states */
    uint64_t loads, loaded_tokens, loaded_pages, loaded_bytes;
    uint64_t loads_slow; /* not begun: computing is faster */
    uint64_t loads_late; /* given up */
    uint64_t loads_cut;  /* ended before a record that was missing, damaged or failed */
    /* Whole pages of 64 tokens, once for each tier and time: given to it; of these, given up for
     * lack of room or time, or not written because the tier failed; in its queue now. */
    uint64_t offered_pages, unwritten_pages, waiting_pages;
};
/* Of the budget, from the start to the end: each writer's page. */
uint64_t tiers_fixed_bytes(const struct tiers *s);
void tiers_get_stats(struct tiers *s, struct tiers_stats *out);
/* Of the tier i, from any thread: its name, or NULL: there are fewer. */
const char *tiers_get_tier(struct tiers *s, uint32_t i, struct tier_stats *out);

#endif
