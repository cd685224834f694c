/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of tiers share. Each calls only those before it:
 *
 *     tiers_parts.c   parts of a page: sizes, places, names; waking the engine's thread
 *     tiers_move.c    bytes of pages to threads and back: by pointers, or by lanes of a device
 *     tiers_forget.c  what tiers have still to forget
 *     tiers_check.c   whether tiers still have what they were given
 *     tiers_write.c   pages of the tree to records: queues, writer threads
 *     tiers_read.c    reader threads: records to the pages of loads
 *     tiers_hand.c    what the threads do, without threads: for simulations
 *     tiers_load.c    loads: what of a prompt the tiers have, and from which length on it is used
 *     tiers.c         life, collecting, figures
 *
 * The mutex guards what reader and writer threads share with the engine's thread. It is a leaf and
 * is held for list operations and copies of a few hundred bytes. Everything else is the engine's.
 */
#ifndef KVASIR_CACHE_TIERS_INTERNAL_H
#define KVASIR_CACHE_TIERS_INTERNAL_H

#include <pthread.h>

#include "cache/tiers.h"
#include "cache/tree_internal.h"

enum {
    READERS = 2, /* threads of a tier that does not say */
    READERS_MAX = 8,
    WRITE_SLOTS = 8,    /* records that a writer can have without the engine's thread */
    WAITING_MAX = 4096, /* nodes that wait to be written, of each tier */
    TRIAL_NODES = 8,    /* at a time, of those that a tier did not take before */
    READ_RECORDS = 16,  /* that a reader takes at a time, at most */
    PARTS_MAX = CACHE_GROUPS_MAX + 1, /* of a page: one for each layer group, and the state */
    CHECK_NODES = 64,                 /* of which a tier is asked at a time */
    CHECK_KEYS = 2 * PARTS_MAX        /* of each: two variants of each part */
};
#define READ_BYTES ((uint64_t)8 << 20)  /* likewise, unless one record is larger */
#define LENT_BYTES ((uint64_t)32 << 20) /* likewise, of what a device copies from where it is */
_Static_assert(TIERS_MAX <= 8, "sets of stores are 8 bits");

enum slot_state { SLOT_READY, SLOT_COPYING, SLOT_COPIED };

/* A record on its way to a writer. */
struct write_slot {
    enum slot_state state;
    uint32_t node;
    bool last;     /* of its node: it is unpinned once this one is copied */
    bool replaces; /* one that expires sooner */
    uint32_t addr; /* of the page or state */
    struct record_head head;
};

/* A node that waits to be written, and what its parts took when it was offered. */
struct waiting {
    uint32_t node;
    uint64_t bytes;
};

/* A node of which a record was not written. It was not pinned meanwhile: it is still that node only
 * if it has this chain key. */
struct unwritten {
    uint32_t node;
    struct tier_key chain;
    bool again; /* it may be tried again */
};

/* A question to a tier: has it still what it was given of these nodes, all of one root? The
 * engine's while it is none or answered, then the writer's. */
struct tier_check {
    enum { CHECK_NONE, CHECK_ASKED, CHECK_ANSWERED } state; /* under the mutex */
    struct tier_place place;
    uint32_t n, n_keys;
    struct {
        uint32_t node, first_key;
        struct tier_key chain; /* it is still that node if it has this chain key */
    } nodes[CHECK_NODES];
    struct tier_key
        keys[CHECK_NODES * CHECK_KEYS]; /* of a part its variants, one after the other */
    bool have[CHECK_NODES * CHECK_KEYS];
    bool down; /* the tier is: what it answered means nothing */
};

/* Objects that a reader takes at a time. */
struct batch_read {
    struct tier_load *load;
    uint32_t objects[READ_RECORDS], n;
    double deadline;
};

/* What a thread has to move bytes of pages (tiers_move.c). */
struct mover {
    const struct tiers *tiers;
    struct backend_lane *lane; /* NULL: the host reaches pages */
    uint8_t *memory;           /* what was asked for, which lanes reach */
};

/* A reader thread of a store. */
struct reader {
    struct store *store;
    pthread_t thread;
    struct mover mover; /* only if the host does not reach pages; memory: unless the tier lends */
    XXH3_state_t *sum;
};

/* One tier, its threads and queues. */
struct store {
    struct tiers *all;
    struct tier *tier;
    uint32_t index;
    uint64_t limit_bytes; /* of the tier; 0: none is known */
    struct reader readers[READERS_MAX];
    pthread_t writer;
    uint32_t n_readers;
    bool has_writer;
    struct mover mover; /* the writer's, with memory for a page or state */
    /* the engine's: pinned nodes, a ring; the first one's next part */
    struct waiting waiting[WAITING_MAX];
    uint32_t first_waiting, n_waiting, next_part;
    uint64_t waiting_bytes;
    struct tier_key last, last_root; /* chain keys of the last node of a slot, and of its root */
    double bytes_per_second;         /* of loads; 0: none yet */
    bool left_over;                  /* some nodes were not offered to it, or were given up */
    uint32_t rest_at;                /* the next node that tiers_rest looks at */
    /* What the tier did not take. From retry_at on, which is `pause` after a failure, it is offered
     * again: left_over, and `retries` until one fails. */
    bool refused, retries;
    double pause, retry_at;
    /* A round of questions about the nodes that were given to the tier and, unless `all`, were used
     * since the clock of the tree was `since`: the last round's. */
    struct {
        bool on, all, waits; /* for an answer */
        bool shared_only;    /* about nodes that more than one request used */
        bool lost, failed;   /* some nodes were; some answers meant nothing */
        uint32_t at;         /* the next node */
        uint64_t since, begun;
        double due, pause; /* of the next round; due 0: not yet known */
    } round;
    struct tier_check check;
    struct { /* in simulations, instead of threads */
        struct batch_read read;
        bool reading;
        double read_until, write_until;
    } hand;
    /* under the mutex */
    pthread_cond_t write_more;
    struct write_slot slots[WRITE_SLOTS]; /* a ring; states only rise from the first one on */
    uint32_t first_slot, n_slots;
    bool writing;
    uint64_t hit_pages, loads, loads_late, loads_slow; /* struct tier_stats */
    double find_seconds;     /* that a question takes; 0: none was asked yet */
    uint64_t rejected;       /* intact records, but not those that were wanted */
    struct tier_key failing; /* chain key of a node whose record was not written; zeros: none */
    /* since the last collecting: what was in slots then, and the page that was being written */
    struct unwritten unwritten[WRITE_SLOTS + 1];
    uint32_t n_unwritten;
    struct tier_key *forgets; /* roots, [n_forgets], and so often all of the context */
    size_t forgets_cap;
    uint32_t n_forgets, forget_alls;
    uint32_t n_telling;             /* the tier is just being told the first of them */
    double forget_pause, forget_at; /* not before; the last pause, if the tier failed; 0 */
};

/* A record or page that a load needs. */
struct load_object {
    uint32_t page, part;
    uint32_t store;    /* NO_STORE: a page of the tree */
    uint8_t stores;    /* the set of those that have it */
    struct kv_page at; /* of a state only addr */
    uint64_t bytes;
    uint64_t expires; /* TREE_FOREVER: never; of a record: as it says */
    struct record_head wanted;
    enum tier_result result; /* under the mutex */
};
enum { NO_STORE = UINT32_MAX };

enum load_phase { LOAD_LOOKING, LOAD_READING, LOAD_DONE };

struct tier_load {
    struct tier_load *next;
    bool closed, forgotten; /* nobody waits for it; what it reads must not be stored */
    bool late;              /* it is done, but readers are not */
    void *salt;
    size_t salt_len;
    int32_t *tokens; /* [n_tokens] */
    uint32_t n_tokens, n_pages;
    uint64_t most_bytes;
    uint32_t had;             /* tokens of the prompt that the tree had */
    double started, deadline; /* of reading; before that: of the store that is asked */
    /* found: the set of stores that have variant v of part p of page i, at ((i * parts) + p) *
     * variants + v. keys: of those that the tree lacks, and where they are in found. */
    struct tier_place place;
    uint8_t *found;
    struct tier_key *keys; /* [n_keys] */
    uint32_t *key_places;  /* [n_keys] */
    bool *have;            /* [n_keys] of the store that is asked */
    uint32_t n_keys;
    struct tier_key *chains; /* [n_pages + 1] K(0) ... */
    struct kv_seq *seq;      /* with all objects; of a late load until readers are done */
    struct kv_seq *result;   /* what is kept for whoever waits */
    struct tree_cursor at;
    struct load_object *objects; /* [n_objects] by rising page */
    uint32_t n_objects;
    uint64_t read_bytes, held_bytes, charged;
    /* under the mutex */
    enum load_phase phase;
    uint32_t asked;               /* the store that is asked while looking */
    bool taken;                   /* by a reader, or not to be taken yet */
    uint32_t taken_to[TIERS_MAX]; /* the first object that no reader of the store has taken */
    uint32_t open;                /* questions or objects without a result */
    uint32_t cut;                 /* pages from this one on are not used */
};

struct tiers {
    struct prefix_tree *tree;
    struct kv_cache *cache;
    struct tiers_options options;
    uint32_t parts, variants;
    struct store stores[TIERS_MAX];
    struct tier_load *loads;  /* changes only under the mutex, by the engine's thread */
    double seconds_per_token; /* of prompts, wherever in them; 0: none was measured yet */
    uint64_t charged;
    struct tiers_stats stats;
    pthread_mutex_t mutex;
    pthread_cond_t read_more, progress;
    atomic_bool stop; /* set under the mutex */
};

static inline double tiers_now(const struct tiers *s) {
    return s->options.now ? s->options.now(s->options.user) : clock_seconds();
}

/* In a set of stores: node.offered, node.refused, load_object.stores. */
static inline uint8_t store_bit(const struct store *w) {
    return (uint8_t)(1u << w->index);
}

/* Bytes and formats of part p of a page with this layout. */
bool part_is_state(const struct tiers *s, uint32_t part);
uint64_t part_bytes(const struct tiers *s, uint32_t part, uint32_t layout);
/* A part of node x; addr NO_ADDR: the node, or NO_NODE, does not have it. */
struct kv_page part_at(const struct tiers *s, uint32_t x, uint32_t part);
/* Where a page or state is in the host's memory. */
uint8_t *part_host(const struct tiers *s, uint32_t addr, uint64_t bytes);
/* The formats of a group's page in a head. */
void part_formats(const struct tiers *s, uint32_t part, uint32_t layout, struct record_head *out);
/* A head's names: everything but sums and times. chain is K(number + 1). */
void part_head(const struct tiers *s, uint32_t part, uint32_t layout, uint32_t number,
               struct tier_key root, struct tier_key parent, struct tier_key chain,
               const int32_t tokens[TILE_TOKENS], struct record_head *out);

/* The engine's thread has something to collect. Without the mutex. */
void wake_owner(const struct tiers *s);
/* Layout of variant v of a group's page: as live sequences have it, or as the tree stores it. */
uint32_t layout_of_variant(const struct tiers *s, uint32_t group, uint32_t number,
                           uint32_t variant);
/* Part of node x, which has it, below a root. Also sets the head's names. */
struct kv_page node_part(const struct tiers *s, uint32_t x, uint32_t part, struct tier_key root,
                         struct record_head *out);
/* How long a tier that failed is left alone: 1 s at first, then twice as long up to 64 s. */
double longer_pause(double pause);

/* ---- tiers_move.c ---- */
/* Whether the host does not reach pages: lanes do. */
bool pages_are_far(const struct tiers *s);
/* With so much memory. False: there is not enough; mover_close gives back what there is. */
bool mover_open(const struct tiers *s, uint64_t bytes, struct mover *m);
void mover_close(struct mover *m);
/* A page or state to the mover's memory. False: the device has failed. */
bool mover_get(const struct mover *m, uint32_t addr, uint64_t bytes);
/* Begins to copy to byte `at` of a page or state, by the lane. mover_wait: False: the device has
 * failed. */
void mover_put(const struct mover *m, uint32_t addr, uint64_t at, const void *from, size_t bytes);
bool mover_wait(const struct mover *m);
/* The engine's: what movers do from now on comes after all that the device was told so far. */
void movers_follow(const struct tiers *s);

/* ---- tiers_forget.c ---- */
void store_forget(struct store *w, const struct tier_key *root); /* NULL: all of the context */
/* Whether the tier has still to forget what has this root: it must not be asked for it. */
bool store_is_forgetting(struct store *w, struct tier_key root);
/* With the mutex held: the same (root NULL: anything); whether it is not yet the time to try again;
 * and the writer's: tells the tier all that is listed, with the mutex released meanwhile, and
 * returns whether it was due. */
bool store_has_to_forget(const struct store *w, const struct tier_key *root);
bool store_forget_is_due(const struct store *w);
bool store_forget_next(struct store *w);
void store_drop_forgets(struct store *w); /* the writer has ended; says what is left */

/* ---- tiers_check.c ---- */
/* Between steps: takes the answer, asks the next question of a round that is due. */
void store_check(struct store *w, double now);
void store_check_all(struct store *w); /* begins a round about all nodes */
/* When store_check has to be called at the latest; 0: an answer comes first. */
double store_check_due(const struct store *w);
/* The writer's, with the mutex held, which is released meanwhile: answers. False: nothing was
 * asked. */
bool store_answer(struct store *w);

/* ---- tiers_write.c ---- */
kvasir_status store_start_writer(struct store *w, kvasir_error *err) MUST_CHECK;
void store_stop_writer(struct store *w);
struct write_slot *store_first_ready(struct store *w); /* under the mutex; NULL: none waits */
void store_collect(struct store *w); /* takes what was copied, hands over what waits */
void store_retry(struct store *w, double now);
/* Some pages have to be offered to it, which tiers_rest has to find. */
void store_leave_over(struct store *w);
bool store_is_writing(struct store *w);

/* ---- tiers_read.c ---- */
/* Asks the tier for the load's keys, and adds it to the stores that have them. */
void store_find(struct store *w, struct tier_load *l, double deadline);
kvasir_status store_start_readers(struct store *w, kvasir_error *err) MUST_CHECK;
void store_stop_readers(struct store *w);
/* With the mutex: the next objects of the load that this store has to read. Those after the cut are
 * closed. */
bool store_take(struct store *w, struct tier_load *l, struct batch_read *out);
/* Reads them, without the mutex. The load may be freed before it returns. */
void store_read(const struct reader *r, const struct batch_read *b);

/* ---- tiers_load.c ---- */
/* Between steps. True: a load is done. */
bool loads_collect(struct tiers *s, double now);
/* When it has to be called at the latest; 0: never. */
double loads_next_deadline(const struct tiers *s);
/* Readers have ended. */
void loads_free_all(struct tiers *s);
void loads_forget(struct tiers *s, const void *salt, size_t salt_len);

#endif
