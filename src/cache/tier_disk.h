/* SPDX-License-Identifier: Apache-2.0 */
/* tier_disk.h: inside of the disk tier: what its files share. Each calls only those before it:
 *
 *     tier_table.c    names, complaints, segments and their files, reading a record
 *     tier_append.c   writing
 *     tier_space.c    limits
 *     tier_disk.c     the operations
 *     tier_open.c     the start
 *
 * Two mutexes, taken in this order:
 *   writing   one writer at a time: the current segment, limits, removal of files. Held over reads
 *             and writes of files.
 *   lock      index, table of segments, figures. Held for a bounded short time: nobody allocates,
 *             reads or writes files under it, and walks over the index let go of it every
 *             DISK_WALK_ENTRIES entries, and let those pass who only find (disk_let_pass). The
 *             engine's thread takes no other.
 *
 * Invariants
 *   DISK-1  An entry of the index names a segment of the table, and a whole record was written
 *           there. `live` of a segment is the number of its entries.
 *   DISK-2  A segment's struct lives while it is in the table or referenced, its file is open
 *           while it is read: a file that is removed meanwhile is read to its end.
 *   DISK-3  The sum of all sizes of segments never exceeds the limit: a segment begins only once
 *           its whole size fits, and one more, into which records can be carried.
 *   DISK-4  Records are appended and files are removed in an order in which a crash at any moment
 *           leaves no record that was forgotten: a RECORD_FORGET goes only after all segments
 *           before it.
 */
#ifndef KVASIR_CACHE_TIER_DISK_H
#define KVASIR_CACHE_TIER_DISK_H

#include <pthread.h>
#include <stdatomic.h>

#include "cache/tier_index.h"
#include "cache/tier_segment.h"

enum {
    DISK_SEGMENTS = 16384,    /* at most */
    DISK_OPEN_FILES = 64,     /* of segments that are not read at present */
    DISK_WALK_ENTRIES = 2048, /* of the index, under one hold of the lock */
    DISK_PATH_BYTES = 4096,
    DISK_LOCK_BYTES = BLOCK_BYTES /* of the limit, for the file `lock` */
};
#define DISK_SYNC_SECONDS 2.0
/* Beside -errno: this record can never fit; there is no room at present. */
enum { DISK_TOO_LARGE = -10001, DISK_NO_ROOM = -10002 };

struct segment {
    uint64_t number;
    uint64_t bytes; /* of the file; of the current one while it is written: at most */
    uint64_t used;  /* disk->clock when it was last read */
    int fd;         /* -1: not open */
    uint32_t slot, refs, live;
    bool forgets; /* it has a RECORD_FORGET */
    bool stuck;   /* it could not be removed */
    bool gone;    /* it was removed; the last reference frees it */
};

/* What is told once. */
enum disk_trouble { TROUBLE_READ, TROUBLE_DAMAGE, TROUBLE_WRITE, TROUBLE_REMOVE, TROUBLES };

struct tier_disk {
    struct tier base;
    const struct tier_files *files;
    char dir[DISK_PATH_BYTES];
    uint64_t limit_bytes, floor_bytes, segment_bytes;
    tier_complain_fn *complain;
    void *user;
    int lock_fd, dir_fd;

    pthread_mutex_t writing;
    struct segment *current;  /* NULL: the next record begins one */
    struct segment *copied;   /* by disk_compact; NULL: none */
    uint64_t end;             /* of its last record */
    bool tail;                /* half a record follows there */
    bool footer;              /* its footer follows there: nothing was written since the start */
    struct segment_row *rows; /* [n_rows]: its footer */
    size_t n_rows, rows_cap;
    uint64_t next_number;
    double dirty_since;  /* clock_seconds; 0: all is on the disk */
    double sync_seconds; /* what is older is synced in rest */

    atomic_uint finding; /* threads that wait for the lock to find something */
    pthread_mutex_t lock;
    struct tier_index index;
    struct segment *segments[DISK_SEGMENTS]; /* by slot */
    uint32_t n_segments;                     /* slots that were used so far */
    uint32_t n_open;
    uint64_t clock;
    struct tier_stats stats;
    double retry_at, back_off; /* of writing */
    bool told[TROUBLES];
};

void disk_path(const struct tier_disk *d, const char *name, char out[DISK_PATH_BYTES]);
void disk_segment_path(const struct tier_disk *d, uint64_t number, char out[DISK_PATH_BYTES]);
uint64_t disk_now(void); /* seconds since 1970 */

/* tier_disk.c */
void disk_tell(struct tier_disk *d, enum disk_trouble what, const char *format, ...)
    PRINTF_LIKE(3, 4);
/* A segment in the table, which owns fd; NULL: no memory, no slot. The caller has a reference from
 * the start: else another thread that looks for a file to close could take this one. */
struct segment *disk_add_segment(struct tier_disk *d, uint64_t number, uint64_t bytes, int fd);
void disk_ref(struct tier_disk *d, struct segment *s);
void disk_unref(struct tier_disk *d, struct segment *s);
/* The file of a segment that the caller has referenced, or -errno. */
int disk_open_segment(struct tier_disk *d, struct segment *s);
/* Gives up the lock for a moment. A mutex alone would mostly come back to the same thread. */
void disk_let_pass(struct tier_disk *d);
void disk_remove_entry(struct tier_disk *d, struct index_entry *e); /* under the lock */
/* Reads the record at an entry's place. Sets the result. */
void disk_read_record(struct tier_disk *d, struct segment *s, const struct index_entry *e,
                      struct tier_read *r, double deadline);

/* tier_open.c */
extern const struct tier_ops TIER_DISK_OPS; /* tier_disk.c */
/* A tier that has nothing, without an index. The folder was made if it was missing, and is ours. */
kvasir_status disk_take_folder(const struct tier_disk_options *o, struct tier_disk **out,
                               kvasir_error *err) MUST_CHECK;
void disk_free(struct tier_disk *d);

/* tier_append.c; under `writing` */
/* Appends a record to the current segment, for which disk_make_room made room; sets the entry's
 * segment and block. 0 or -errno. */
int disk_append(struct tier_disk *d, const struct record_head *head, const void *payload,
                struct index_entry *e);
int disk_begin_segment(struct tier_disk *d);
int disk_cut_tail(struct tier_disk *d);
void disk_seal(struct tier_disk *d); /* ends the current segment */
int disk_sync(struct tier_disk *d);  /* what was appended is on the disk */

/* tier_space.c; under `writing` */
/* Room for a record with its head in the current segment. 0, -errno, DISK_TOO_LARGE or
 * DISK_NO_ROOM. */
int disk_make_room(struct tier_disk *d, uint64_t bytes);
bool disk_remove_segment(struct tier_disk *d, struct segment *s);
/* Without other threads. 0, or -errno of a write: then some are left as they were. */
int disk_compact(struct tier_disk *d);

#endif
