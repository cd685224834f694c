/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the disk tier: a folder, a file system that fails on demand, and records that are
 * made from a number. */
#ifndef TIER_WORLD_H
#define TIER_WORLD_H

#include "cache/tier.h"
#include "faulty_files.h"

struct world {
    char root[64], dir[80]; /* dir is in root */
    struct faulty_files files;
    struct tier_disk_options options;
    struct tier *tier;
    char told[1024]; /* all complaints, a line each */
    unsigned complaints;
    XXH3_state_t *sum;
};

/* No tier yet: world_open. limit 16 MiB, segments of 256 KiB. */
void world_make(struct world *w);
void world_open(struct world *w); /* the test fails if it cannot be opened */
void world_close(struct world *w);
void world_end(struct world *w); /* removes everything */
/* As a kill would end it: what the tier has in memory is lost, what was written is there. */
void world_kill(struct world *w);
/* Always the same record for the same n: of context n % 4, of root n % 8, with a payload of 4 to
 * 32 KiB. */
struct record_head world_record(uint32_t n, uint8_t **payload);
struct tier_key world_context(uint32_t n), world_root(uint32_t n);
bool world_write(struct world *w, uint32_t n);
bool world_find(struct world *w, uint32_t n);
/* Reads it. With TIER_OK every byte was compared. */
enum tier_result world_read(struct world *w, uint32_t n);
struct tier_stats world_stats(struct world *w);
/* Path of the file with this number. */
const char *world_file(struct world *w, uint32_t number);
uint64_t world_file_size(struct world *w, uint32_t number); /* 0: there is none */
uint64_t world_size(struct world *w);                       /* of all files */
void world_flip(struct world *w, uint32_t number, uint64_t byte);

#endif
