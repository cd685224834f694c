/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tier_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fcntl.h>

#include "cache/tier_disk.h"

#include <cmocka.h>

static void on_complaint(void *user, const char *line) {
    struct world *w = user;
    const size_t len = strlen(w->told);
    w->complaints++;
    snprintf(w->told + len, sizeof w->told - len, "%s\n", line);
}

void world_make(struct world *w) {
    memset(w, 0, sizeof *w);
    snprintf(w->root, sizeof w->root, "/tmp/kvasir-tier-XXXXXX");
    assert_non_null(mkdtemp(w->root));
    snprintf(w->dir, sizeof w->dir, "%s/cache", w->root);
    faulty_files_init(&w->files);
    w->options = (struct tier_disk_options){
        .dir = w->dir,
        .limit_bytes = TIER_DISK_LEAST,
        .segment_bytes = 256 << 10,
        .files = &w->files.base,
        .complain = on_complaint,
        .user = w,
    };
    w->sum = XXH3_createState();
}

void world_open(struct world *w) {
    kvasir_error err;
    assert_null(w->tier);
    if (tier_disk_create(&w->options, &w->tier, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
}

void world_close(struct world *w) {
    if (w->tier)
        w->tier->ops->destroy(w->tier);
    w->tier = NULL;
    assert_int_equal(w->files.open_files, 0);
}

void world_kill(struct world *w) {
    struct tier_disk *d = (struct tier_disk *)(void *)w->tier;
    d->current = NULL;
    disk_free(d);
    w->tier = NULL;
    assert_int_equal(w->files.open_files, 0);
}

void world_end(struct world *w) {
    char command[128];
    world_close(w);
    XXH3_freeState(w->sum);
    snprintf(command, sizeof command, "rm -rf '%s'", w->root);
    assert_int_equal(system(command), 0);
}

struct tier_key world_context(uint32_t n) {
    return (struct tier_key){{mix_bits(1000 + n % 4), 1}};
}

struct tier_key world_root(uint32_t n) {
    return chain_root(world_context(n), &(uint32_t){n % 8}, 4);
}

struct record_head world_record(uint32_t n, uint8_t **payload) {
    struct record_head head = {
        .kind = n % 5 == 4 ? RECORD_STATE : RECORD_PAGE,
        .group = n % 3,
        .chain = {{mix_bits(n), mix_bits(n + 77)}},
        .parent = {{mix_bits(n + 1), 5}},
        .root = world_root(n),
        .context = world_context(n),
        .number = n,
        .bytes = (uint64_t)BLOCK_BYTES * (1 + n % 8),
        .written = 1700000000,
    };
    *payload = mem_alloc(head.bytes);
    for (size_t i = 0; i < head.bytes; i += 8) {
        const uint64_t x = mix_bits(n * 1000003ull + i);
        memcpy(*payload + i, &x, 8);
    }
    for (int i = 0; i < TILE_TOKENS; i++)
        head.tokens[i] = (int32_t)(n + (uint32_t)i);
    record_seal(&head, *payload);
    return head;
}

bool world_write(struct world *w, uint32_t n) {
    uint8_t *payload;
    const struct record_head head = world_record(n, &payload);
    const bool done = w->tier->ops->write(w->tier, &head, payload);
    mem_free(payload);
    return done;
}

bool world_find(struct world *w, uint32_t n) {
    uint8_t *payload;
    const struct record_head head = world_record(n, &payload);
    bool have;
    mem_free(payload);
    w->tier->ops->find(w->tier, NULL, &head.key, 1, &have, 0);
    return have;
}

enum tier_result world_read(struct world *w, uint32_t n) {
    uint8_t *payload;
    const struct record_head head = world_record(n, &payload);
    struct tier_read r = {
        .key = head.key, .payload = mem_calloc(head.bytes, 1), .bytes = head.bytes, .sum = w->sum};
    w->tier->ops->read(w->tier, &r, 1, 0);
    if (r.result == TIER_OK) {
        assert_memory_equal(r.payload, payload, head.bytes);
        assert_memory_equal(&r.head, &head, sizeof head);
        assert_true(record_is(&r.head, &head, 1700000000));
    }
    mem_free(payload);
    mem_free(r.payload);
    return r.result;
}

struct tier_stats world_stats(struct world *w) {
    struct tier_stats stats;
    w->tier->ops->stats(w->tier, &stats);
    return stats;
}

const char *world_file(struct world *w, uint32_t number) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%08u.kvs", w->dir, number % 100000000);
    return path;
}

uint64_t world_file_size(struct world *w, uint32_t number) {
    struct stat st;
    return stat(world_file(w, number), &st) == 0 ? (uint64_t)st.st_size : 0;
}

static void sum_size(void *user, const char *name) {
    char path[300];
    struct stat st;
    struct world *w = ((void **)user)[0];
    snprintf(path, sizeof path, "%s/%s", w->dir, name);
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
        *(uint64_t *)((void **)user)[1] += (uint64_t)st.st_size;
}

uint64_t world_size(struct world *w) {
    uint64_t bytes = 0;
    void *user[] = {w, &bytes};
    assert_int_equal(TIER_REAL_FILES.list(NULL, w->dir, sum_size, user), 0);
    return bytes;
}

void world_flip(struct world *w, uint32_t number, uint64_t byte) {
    const int fd = open(world_file(w, number), O_RDWR);
    uint8_t x;
    assert_int_equal(pread(fd, &x, 1, (off_t)byte), 1);
    x ^= 0x10;
    assert_int_equal(pwrite(fd, &x, 1, (off_t)byte), 1);
    close(fd);
}
