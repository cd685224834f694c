/* SPDX-License-Identifier: Apache-2.0 */
/* A file system for the disk tier that fails, lies and hangs on demand: around the real one. Fields
 * are set while no call runs, except that all of them may be read by any thread. */
#ifndef FAULTY_FILES_H
#define FAULTY_FILES_H

#include <stdatomic.h>

#include "cache/tier_files.h"

struct faulty_files {
    struct tier_files base; /* first: what tier_disk_options.files gets */
    /* errno values; 0: none */
    int open_error, read_error, write_error, sync_error, truncate_error, size_error, remove_error,
        list_error, lock_error, owner_error;
    uint64_t room;       /* so many bytes may still be written, then -ENOSPC; UINT64_MAX */
    uint64_t free_bytes; /* of the file system; UINT64_MAX: the real ones */
    size_t short_reads;  /* the most bytes of one read or write; 0: all */
    double read_seconds; /* each read takes so long */
    uint64_t tear_at;    /* of the next write only the first bytes arrive; UINT64_MAX: all */
    bool lose_writes;    /* writes succeed and do nothing */
    bool lose_removes;   /* likewise */
    uint64_t flip_bit;   /* in what the next reads return, counted over all; UINT64_MAX */
    /* So many reads and writes are still right before read_error, read_seconds, hang; write_error,
     * lose_writes, tear_at apply */
    atomic_uint sound_reads, sound_writes;
    atomic_bool hang;   /* reads wait until it is false */
    atomic_uint faults; /* reads and writes that were not right */
    atomic_uint opens, reads, writes, syncs, removes;
    atomic_int open_files;
};

void faulty_files_init(struct faulty_files *f);

#endif
