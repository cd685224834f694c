/* SPDX-License-Identifier: Apache-2.0 */
/* tier_segment.h: one file of the disk tier, to the byte: docs/tiers.md, "On disk, to the byte".
 *
 *   block 0            segment_head, the rest is zero
 *   block 1 ...        records: a block with the head (512 bytes, the rest is zero), then the
 *                      payload
 *   after the last     once the file is full or the tier is closed: the footer, which is a
 *                      segment_row for each record, zeros up to a block, segment_end as its last
 *                      64 bytes, which are the file's last
 *
 * A block is 4 KiB, so payloads are aligned to it. All numbers are little-endian. Nothing in a file
 * is believed before its sum was compared, and nothing that follows from a number in it is done
 * without a bound. */
#ifndef KVASIR_CACHE_TIER_SEGMENT_H
#define KVASIR_CACHE_TIER_SEGMENT_H

#include "cache/tier.h"
#include "cache/tier_files.h"

enum { BLOCK_BYTES = 4096 };

struct segment_head {
    char magic[8];              /* SEGMENT_MAGIC: the version is in it */
    uint64_t number;            /* as in the file's name */
    uint64_t created;           /* seconds since 1970 */
    uint64_t unused[3], sum[2]; /* XXH3-128 of all before */
};
#define SEGMENT_MAGIC "kvasirS1"

struct segment_row {
    struct tier_key key;
    uint64_t context, root; /* tags: their first 8 bytes. RECORD_FORGET: root 0 is any */
    uint64_t written, expires;
    uint32_t block, units; /* of the head; of the payload: in units of 4 KiB */
    uint32_t kind, unused;
};

struct segment_end {
    char magic[8]; /* SEGMENT_END_MAGIC */
    uint64_t number, rows;
    uint64_t table;             /* offset of the first row */
    uint64_t unused[2], sum[2]; /* XXH3-128 of rows, and of all before in this struct */
};
#define SEGMENT_END_MAGIC "kvasirE1"
_Static_assert(sizeof(struct segment_head) == 64 && sizeof(struct segment_row) == 64 &&
                   sizeof(struct segment_end) == 64,
               "the format of docs/tiers.md");

/* "00000001.kvs"; 0: not the name of a segment. */
enum { SEGMENT_NAME_BYTES = 16, SEGMENT_LAST = 99999999 };
void segment_name(uint64_t number, char out[SEGMENT_NAME_BYTES]);
uint64_t segment_number(const char *name);

uint64_t segment_footer_bytes(size_t rows);
struct segment_row segment_row_of(const struct record_head *head, uint64_t at);

/* What a file holds. */
struct segment_content {
    struct segment_row *rows; /* [n], in the file's order; segment_content_free */
    size_t n, cap;
    uint64_t size, end; /* of the file; of its last record */
    uint64_t damaged;   /* places in the middle where no valid head was */
    bool head, footer;  /* they are there and valid */
};
/* Reads the footer, or where there is none all heads. 0, or -errno if memory or the file could not
 * be had at all: a part that cannot be read is one that is damaged. */
int segment_load(const struct tier_files *f, int fd, uint64_t number, struct segment_content *out);
/* The same by all heads, also where the footer is valid. */
int segment_scan(const struct tier_files *f, int fd, uint64_t number, struct segment_content *out);
void segment_content_free(struct segment_content *c);
/* How many rows its footer seems to have: for planning. */
uint64_t segment_count_rows(const struct tier_files *f, int fd, uint64_t number, uint64_t size);

/* A set of what was forgotten, as hashes of context and root; open addressing. root 0: any. */
struct forgets {
    uint64_t *slots; /* [cap], cap a power of two; 0: free. mem_free */
    size_t n, cap;
};
bool forgets_have(const struct forgets *f, uint64_t context, uint64_t root);
bool forgets_add(struct forgets *f, uint64_t context, uint64_t root) MUST_CHECK;

/* Read or write all of it: 0, or -errno; -ENODATA: the file ends before. The parts change. */
int segment_read_all(const struct tier_files *f, int fd, void *data, size_t bytes, uint64_t at);
int segment_read_parts(const struct tier_files *f, int fd, struct iovec *parts, int n, uint64_t at);
int segment_write_parts(const struct tier_files *f, int fd, struct iovec *parts, int n,
                        uint64_t at);
int segment_write_head(const struct tier_files *f, int fd, uint64_t number, uint64_t now);
int segment_write_footer(const struct tier_files *f, int fd, uint64_t number,
                         const struct segment_row *rows, size_t n, uint64_t at);

#endif
