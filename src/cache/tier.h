/* SPDX-License-Identifier: Apache-2.0 */
/* tier.h: stores below the prefix tree: what a record is, and the one interface that the disk
 * (tier_disk.c), a shared Redis or Valkey (tier_redis.c) and host memory (tier_memory.c) have.
 *
 * The tree holds pages that are in memory and finds them by its nodes. A tier outlives the process
 * or is shared, so it finds a page by what its bytes depend on:
 *
 *     K(0) = BLAKE2b-128("kvasir root 1" | context fingerprint | salt)
 *     K(i) = BLAKE2b-128(K(i-1) | tokens of page i - 1)            64 tokens, little-endian int32
 *     key  = BLAKE2b-128(K(i) | kind | layer group | formats)      the name of one record
 *
 * The context fingerprint (engine/fingerprint.c) covers all that changes a bit of a page. So equal
 * keys mean equal bytes, whoever computed them, and a record is never replaced by another content.
 * A record is its head, 512 bytes, then its payload: a page or a state exactly as in the arena.
 *
 * A tier promises little: what it returns may be missing, old, torn, of another record or forged.
 * Whoever reads compares head and payload with what was wanted (record_begin, record_piece,
 * record_end; record_is): the one check for all tiers. docs/tiers.md has the formats to the byte.
 */
#ifndef KVASIR_CACHE_TIER_H
#define KVASIR_CACHE_TIER_H

#include <stdatomic.h>
#include <xxhash.h>
#ifdef __x86_64__
#include <xxh_x86dispatch.h> /* the same sums by AVX2 or AVX-512, where they are */
#endif

#include "quant/quant.h"
#include "util/util.h"

/* ---- keys (record.c) ------------------------------------------------------------------------- */

/* 128 bits of BLAKE2b. */
struct tier_key {
    uint64_t word[2];
};
static inline bool tier_key_equal(struct tier_key a, struct tier_key b) {
    return a.word[0] == b.word[0] && a.word[1] == b.word[1];
}
void tier_key_text(struct tier_key key, char out[33]); /* 32 hexadecimal digits */

struct tier_key chain_root(struct tier_key context, const void *salt, size_t salt_len);
struct tier_key chain_next(struct tier_key before, const int32_t tokens[TILE_TOKENS]);

/* ---- records (record.c) ---------------------------------------------------------------------- */

enum record_kind {
    RECORD_PAGE = 1,  /* one layer group of the page that ends at K(i) */
    RECORD_STATE = 2, /* the snapshot at that page's end (seq_snapshot.c) */
    RECORD_FORGET = 3 /* of a disk: older records of this context and root are gone; no payload */
};

/* All numbers little-endian. What is not named is zero. */
struct record_head {
    char magic[8]; /* RECORD_MAGIC: the version is in it */
    uint32_t kind;
    uint32_t group;
    struct tier_key key, chain, parent; /* chain: K(i); parent: K(i-1) */
    struct tier_key root, context;      /* K(0); the context fingerprint */
    uint32_t number;                    /* of the page: i - 1 */
    struct kv_format k, v;              /* of a page */
    uint32_t padding;
    uint64_t bytes;            /* of the payload: a multiple of 4096 */
    uint64_t written, expires; /* seconds since 1970; expires 0: never */
    uint64_t payload_sum[2];   /* XXH3-128 of the payload */
    int32_t tokens[TILE_TOKENS];
    uint8_t unused[88];
    uint64_t head_sum[2]; /* XXH3-128 of all before */
};
#define RECORD_MAGIC "kvasirR1"
enum { RECORD_HEAD_BYTES = 512 };
_Static_assert(sizeof(struct record_head) == RECORD_HEAD_BYTES, "the format of docs/tiers.md");

/* The key of a record whose kind, group, chain, k and v are set. */
struct tier_key record_key(const struct record_head *head);
/* Sets magic, key and the sums: the last step before a record is written. */
void record_seal(struct record_head *head, const void *payload);
/* Whether the head is complete and unchanged, and no longer than `most` bytes follow. */
bool record_head_is_valid(const struct record_head *head, uint64_t most);
/* Whether a valid head is that of the record that was wanted, whose kind, group, chain, parent,
 * root, context, number, k, v, bytes and tokens are set; and not expired at `now`. */
bool record_is(const struct record_head *head, const struct record_head *wanted, uint64_t now);

/* ---- reading --------------------------------------------------------------------------------- */

enum tier_result {
    TIER_OK,
    TIER_MISSING, /* the tier does not have it */
    TIER_DAMAGED, /* it has something else: a sum, a length or a key disagrees */
    TIER_FAILED,  /* an error of the system or the network; it may work later */
    TIER_RESULTS
};

/* One record to be read. */
struct tier_read {
    struct tier_key key;           /* record_key */
    struct tier_key context, root; /* where it is (struct tier_place) */
    uint8_t *payload;              /* [bytes], written even if the result is not TIER_OK */
    uint64_t bytes;
    bool unchecked; /* tests only: sums and keys are not compared */
    /* Or NULL. By the reading thread, as soon as result, head and payload are final. A tier may
     * leave it out: what it was not called for is final when `read` returns. */
    void (*ended)(struct tier_read *r);
    void *user; /* of `ended` */
    /* set by the tier, by way of record_begin, record_piece and record_end */
    enum tier_result result;
    struct record_head head; /* valid if the result is TIER_OK */
    XXH3_state_t *sum;       /* the reading thread's, aligned to 64 bytes */
};
/* What a tier calls as bytes come in, in order, so that they are summed while they are in the
 * processor's caches: first the head, then pieces of the payload, then the end. record_begin and
 * record_end set the result; false: it is not TIER_OK. `key` alone is compared with what is wanted:
 * the rest is for record_is. */
bool record_begin(struct tier_read *r, const struct record_head *head);
void record_piece(struct tier_read *r, const void *at, size_t bytes);
bool record_end(struct tier_read *r);

static inline void record_ended(struct tier_read *r) {
    if (r->ended)
        r->ended(r);
}

/* Records of one context and root: what a store may keep together, bound and forget. */
struct tier_place {
    struct tier_key context, root;
};

/* ---- the interface --------------------------------------------------------------------------- */

struct tier_stats {
    uint64_t records, bytes; /* that it holds, as far as it knows; 0 if others write to it, too */
    uint64_t limit_bytes;    /* 0: none of ours */
    uint64_t reads, read_bytes, writes, write_bytes; /* that succeeded */
    uint64_t missing, damaged, failed;               /* reads by their result */
    uint64_t write_failures;
    uint64_t dropped;     /* records that made room for others, expired or were forgotten */
    double read_seconds;  /* spent in reads that succeeded */
    bool down;            /* it does nothing at present, after errors */
    uint64_t table_bytes; /* memory of its own, for index and buffers */
    /* Set by tiers_get_tier (tiers.h). Whole pages of hits that came from it; loads that began with
     * records of it; of these, and of questions to it, those that were given up while it was waited
     * for; and loads and questions that were not begun because computing is faster. */
    uint64_t hit_pages, loads, loads_late, loads_slow;
};

struct tier {
    const struct tier_ops *ops;
};

/* A record as a tier has it. It stays there, unchanged, until it is given back. */
struct tier_loan {
    const struct record_head *head;
    void *record; /* the tier's, as the next two are */
    uint32_t block;
    uint64_t left;
};

/* Any thread may call any of these at any time, several at once. None but `find` of an `instant`
 * tier is called by the engine's thread: all others may wait for a disk or a network, but no longer
 * than `deadline` (clock_seconds) where there is one. Errors never end anything: a tier logs the
 * first of a kind in one line (through `complain`), counts the rest, and does without. */
struct tier_ops {
    const char *name; /* "host", "disk", "remote": in metrics */
    bool instant;     /* find answers from memory */
    uint32_t readers; /* threads that read from it at a time, at most 8; 0: 2 */
    /* have[i]: whether key i is there, as far as it is known. At most one round trip. */
    void (*find)(struct tier *t, const struct tier_place *place, const struct tier_key *keys,
                 uint32_t n, bool *have, double deadline);
    /* Reads n records; each gets a result. */
    void (*read)(struct tier *t, struct tier_read *reads, uint32_t n, double deadline);
    /* Reads without a copy, from memory that a device reads at full speed (pinned_alloc of
     * backend.h). All three are NULL if the tier does not. lend: false: it is missing. lent: the
     * next piece of the payload; NULL: there are no more. give_back: once the loan's use is over,
     * with what came of it and how long it took, which count as a read's. */
    bool (*lend)(struct tier *t, struct tier_key key, struct tier_loan *out);
    const uint8_t *(*lent)(struct tier *t, struct tier_loan *l, size_t *bytes);
    void (*give_back)(struct tier *t, struct tier_loan *l, enum tier_result result, double seconds);
    /* Writes a sealed record. Does nothing if the key is there already. False: it was not written
     * (full, failed, down). */
    bool (*write)(struct tier *t, const struct record_head *head, const void *payload);
    /* The record turned out to be damaged, or one that lives longer is going to be written: others
     * must not find it again. */
    void (*drop)(struct tier *t, const struct tier_place *place, struct tier_key key);
    /* Removes all records of a context with one of n roots, or with any (n 0), for good: also after
     * a restart. False: some may be left; it has to be called again later. Once *stop is true (or
     * stop NULL: never), a tier that depends on others begins no further exchange with them. */
    bool (*forget)(struct tier *t, struct tier_key context, const struct tier_key *roots,
                   uint32_t n, const atomic_bool *stop);
    /* Work for moments in which nothing else is to be done: space, durability. */
    void (*rest)(struct tier *t);
    void (*stats)(struct tier *t, struct tier_stats *out);
    void (*destroy)(struct tier *t); /* what was written is safe; frees t */
};

/* Where a tier's one-line warnings go; may be called from any thread. */
typedef void tier_complain_fn(void *user, const char *line);

/* ---- tiers ----------------------------------------------------------------------------------- */

struct tier_files; /* the file system as a tier sees it (tier_files.h); NULL: the real one */

struct tier_disk_options {
    const char *dir;
    uint64_t limit_bytes;   /* of all files in dir; at least TIER_DISK_LEAST */
    uint64_t floor_bytes;   /* so much of the file system stays free; TIER_DISK_FLOOR */
    uint64_t segment_bytes; /* of one file; 0: 256 MiB, less if the limit is small */
    const struct tier_files *files;
    tier_complain_fn *complain;
    void *user;
};
#define TIER_DISK_LEAST      ((uint64_t)16 << 20)
#define TIER_DISK_FLOOR      ((uint64_t)256 << 20)
#define TIER_DISK_IDENTITIES "identities" /* a file in the folder that is the engine's */
/* Makes the folder (0700) and files (0600) if they are missing. KVASIR_ERR_BUSY names the process
 * that holds the folder; KVASIR_ERR_IO also if another user than this process's and root can write
 * to the folder or a file of it. Anything damaged in it is skipped and counted, never an error. */
kvasir_status tier_disk_create(const struct tier_disk_options *o, struct tier **out,
                               kvasir_error *err) MUST_CHECK;

struct tier_redis_options {
    const char *url;                          /* redis://[user:password@]host:port[/db] */
    const uint8_t *secret;                    /* [secret_bytes] or NULL */
    size_t secret_bytes;                      /* at least TIER_SECRET_LEAST */
    uint32_t ttl_seconds;                     /* of records without an earlier end; 0: none */
    double connect_seconds, exchange_seconds; /* time-outs */
    uint32_t connections;                     /* at most, to each node */
    uint64_t root_limit_bytes; /* a root with more than that gets no more; 0: no limit */
    tier_complain_fn *complain;
    void *user;
};
enum { TIER_SECRET_LEAST = 16 };
/* Does not connect: a store that is down is one that has nothing. KVASIR_ERR_ARGUMENT: the URL or
 * the secret cannot be used. */
kvasir_status tier_redis_create(const struct tier_redis_options *o, struct tier **out,
                                kvasir_error *err) MUST_CHECK;

struct backend;
struct tier_memory_options {
    uint64_t limit_bytes; /* of all that it takes; at least a block and its tables */
    /* A payload takes whole blocks: a multiple of 4096; 0: 4096. tier_memory_block has a good one
     * for payloads of these sizes. */
    uint32_t block_bytes;
    struct backend *backend; /* whose lanes read the records; NULL or without lanes: nobody's */
    tier_complain_fn *complain;
    void *user;
};
uint32_t tier_memory_block(const uint64_t *bytes, uint32_t n);
/* Records in host memory, the least recently used go first: for a device whose memory is smaller,
 * and for tests. Memory for a device is slow to get: a thread of the tier gets it from now on, all
 * that the limit allows. If less is left, the tier complains and does with that. */
kvasir_status tier_memory_create(const struct tier_memory_options *o, struct tier **out,
                                 kvasir_error *err) MUST_CHECK;

/* ---- a disk tier's folder from outside (tier_folder.c) --------------------------------------- */

enum tier_folder_state {
    FOLDER_RECORD,    /* it would be found */
    FOLDER_OLDER,     /* the same key is in a newer place */
    FOLDER_EXPIRED,   /* its time is over */
    FOLDER_FORGOTTEN, /* a later RECORD_FORGET means it */
    FOLDER_FORGET,    /* such a record */
    FOLDER_DAMAGED,   /* a head or a payload whose sum disagrees; what cannot be read */
    FOLDER_TORN,      /* an end that a crash left or that is being written: no harm */
    FOLDER_STATES
};
struct tier_folder_item {
    enum tier_folder_state state;
    const char *file; /* its name in the folder */
    uint64_t offset, bytes;
    const struct record_head *head; /* NULL: none that is valid */
};
struct tier_folder_walk {
    const char *dir;
    const struct tier_files *files;
    bool payloads; /* read and compare them, too */
    void (*item)(void *user, const struct tier_folder_item *item);
    bool (*progress)(void *user, uint64_t done, uint64_t all); /* bytes; false: stop; NULL */
    void *user;
    uint64_t segments, bytes; /* set: files of records, and the bytes of all of them */
};
/* Calls `item` for all that is in the folder, the newest first. Changes nothing and takes no lock:
 * a server may be using the folder. KVASIR_ERR_CANCELLED: progress said so. */
kvasir_status tier_folder_walk(struct tier_folder_walk *w, kvasir_error *err) MUST_CHECK;
/* Removes what has expired or was forgotten from the files themselves, and the oldest records until
 * all fit the limit (0: none). Records are copied for that only into what the file system has above
 * TIER_DISK_FLOOR; the oldest go if that is too little. *before, *after: bytes of all files.
 * KVASIR_ERR_BUSY as in tier_disk_create, also for tier_folder_clear, which removes all records. */
kvasir_status tier_folder_compact(const char *dir, uint64_t limit_bytes,
                                  const struct tier_files *files, uint64_t *before, uint64_t *after,
                                  kvasir_error *err) MUST_CHECK;
kvasir_status tier_folder_clear(const char *dir, const struct tier_files *files, uint64_t *removed,
                                kvasir_error *err) MUST_CHECK;

#endif
