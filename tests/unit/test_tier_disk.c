/* SPDX-License-Identifier: Apache-2.0 */
/* The disk tier: what was written is found again, after a restart too; damage of every kind is
 * noticed and costs no more than what it hit; errors of the system end nothing. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <fcntl.h>

#include "cache/tier_disk.h"
#include "tier_world.h"

#include <cmocka.h>

static struct tier_disk *disk(struct world *w) {
    return (struct tier_disk *)(void *)w->tier;
}

static void write_all(struct world *w, uint32_t from, uint32_t to) {
    for (uint32_t n = from; n < to; n++)
        assert_true(world_write(w, n));
}

/* How many of the records can be read; none may be wrong (world_read). */
static uint32_t count_good(struct world *w, uint32_t from, uint32_t to) {
    uint32_t good = 0;
    for (uint32_t n = from; n < to; n++)
        good += world_read(w, n) == TIER_OK;
    return good;
}

/* ---- what is written is found ---------------------------------------------------------------- */

static void test_write_read_find(void **state) {
    struct world w;
    (void)state;
    world_make(&w);
    world_open(&w);
    assert_false(world_find(&w, 1));
    assert_int_equal(world_read(&w, 1), TIER_MISSING);
    write_all(&w, 0, 100);
    for (uint32_t n = 0; n < 100; n++)
        assert_true(world_find(&w, n));
    assert_int_equal(count_good(&w, 0, 100), 100);
    assert_false(world_find(&w, 100));
    const uint64_t writes = w.files.writes;
    write_all(&w, 0, 100); /* they are there already */
    assert_int_equal(w.files.writes, writes);
    struct tier_stats s = world_stats(&w);
    assert_int_equal(s.records, 100);
    assert_int_equal(s.writes, 100);
    assert_int_equal(s.reads, 100);
    assert_int_equal(s.missing, 1);
    assert_int_equal(s.read_bytes, s.write_bytes);
    assert_true(s.read_seconds > 0 && s.bytes <= s.limit_bytes && !s.down);
    assert_int_equal(s.damaged + s.failed + s.write_failures + s.dropped, 0);
    uint8_t *payload;
    const struct record_head head = world_record(7, &payload);
    mem_free(payload);
    w.tier->ops->drop(w.tier, NULL, head.key);
    w.tier->ops->drop(w.tier, NULL, head.key);
    assert_false(world_find(&w, 7));
    assert_true(world_write(&w, 7) && world_find(&w, 7));
    assert_int_equal(w.complaints, 0);
    world_end(&w);
}

static mode_t mode_of(const char *path) {
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_mode & 0777;
}

static void test_restart(void **state) {
    struct world w;
    char path[128];
    (void)state;
    world_make(&w);
    w.options.segment_bytes = 4 << 20;
    for (uint32_t round = 0; round < 5; round++) {
        world_open(&w);
        assert_int_equal(count_good(&w, 0, 100), 20 * round);
        write_all(&w, 20 * round, 20 * round + 20);
        round % 2 ? world_kill(&w) : world_close(&w);
    }
    assert_int_equal(mode_of(w.dir), 0700);
    assert_int_equal(mode_of(world_file(&w, 1)), 0600);
    snprintf(path, sizeof path, "%s/lock", w.dir);
    assert_int_equal(mode_of(path), 0600);
    /* 5 starts have not made a file each; nothing is read but footers */
    assert_int_equal(world_file_size(&w, 2), 0);
    w.files.reads = 0;
    world_open(&w);
    assert_int_equal(world_stats(&w).records, 100);
    assert_true(w.files.reads <= 4);
    const uint64_t size = world_file_size(&w, 1);
    world_close(&w); /* nothing was written: nothing changes */
    assert_int_equal(world_file_size(&w, 1), size);
    world_end(&w);
}

static void expect_unsafe(struct world *w, const char *words, const char *path) {
    kvasir_error err = {0};
    uint64_t before, after;
    struct tier *tier;
    assert_int_equal(tier_disk_create(&w->options, &tier, &err), KVASIR_ERR_IO);
    assert_non_null(strstr(err.text, words));
    assert_memory_equal(err.text, path, strlen(path));
    assert_int_equal(tier_folder_compact(w->dir, 0, &w->files.base, &before, &after, &err),
                     KVASIR_ERR_IO);
    assert_non_null(strstr(err.text, words));
    assert_int_equal(w->files.open_files, 0);
}

/* Whoever can write there can make valid sums: the start is refused. */
static void test_writers(void **state) {
    static const mode_t FOREIGN[] = {0020, 0002};
    struct world w;
    char identities[128], lock[128];
    (void)state;
    world_make(&w);
    world_open(&w);
    write_all(&w, 0, 20);
    world_close(&w);
    snprintf(identities, sizeof identities, "%s/identities", w.dir);
    close(open(identities, O_CREAT | O_WRONLY, 0600));
    const char *paths[] = {w.dir, world_file(&w, 1), identities};
    for (size_t i = 0; i < 3; i++) {
        const mode_t mode = mode_of(paths[i]);
        for (size_t m = 0; m < 2; m++) {
            assert_int_equal(chmod(paths[i], mode | FOREIGN[m]), 0);
            expect_unsafe(&w, "can be written to by other users", paths[i]);
        }
        assert_int_equal(chmod(paths[i], mode | 0055), 0); /* others may read: their business */
        world_open(&w);
        assert_int_equal(count_good(&w, 0, 20), 20);
        world_close(&w);
        assert_int_equal(chmod(paths[i], mode), 0);
        if (geteuid() != 0)
            continue;
        assert_int_equal(chown(paths[i], 12345, (gid_t)-1), 0);
        expect_unsafe(&w, "belongs to another user", paths[i]);
        assert_int_equal(chown(paths[i], 0, (gid_t)-1), 0);
    }
    w.files.owner_error = EPERM;
    expect_unsafe(&w, "belongs to another user", w.dir);
    w.files.owner_error = 0;
    snprintf(lock, sizeof lock, "%s/lock", w.dir); /* a link elsewhere */
    assert_int_equal(unlink(identities), 0);
    assert_int_equal(symlink(lock, identities), 0);
    expect_unsafe(&w, "remove it", identities);
    world_end(&w);
}

/* Short reads and writes of the system are no errors. */
static void test_short_calls(void **state) {
    struct world w;
    (void)state;
    world_make(&w);
    w.files.short_reads = 1000;
    world_open(&w);
    write_all(&w, 0, 50);
    assert_int_equal(count_good(&w, 0, 50), 50);
    world_close(&w);
    world_open(&w);
    assert_int_equal(count_good(&w, 0, 50), 50);
    world_end(&w);
}

static void test_expired(void **state) {
    struct world w;
    uint8_t *payload;
    (void)state;
    world_make(&w);
    world_open(&w);
    struct record_head head = world_record(3, &payload);
    head.expires = (uint64_t)time(NULL) + 3600;
    record_seal(&head, payload);
    assert_true(w.tier->ops->write(w.tier, &head, payload));
    assert_true(world_find(&w, 3));
    head.expires = (uint64_t)time(NULL);
    record_seal(&head, payload);
    w.tier->ops->drop(w.tier, NULL, head.key);
    assert_true(w.tier->ops->write(w.tier, &head, payload));
    assert_false(world_find(&w, 3));
    head.expires = 0; /* what has expired is not in the way */
    record_seal(&head, payload);
    assert_true(w.tier->ops->write(w.tier, &head, payload));
    assert_int_equal(world_read(&w, 3), TIER_OK);
    w.tier->ops->drop(w.tier, NULL, head.key);
    head.expires = 1;
    record_seal(&head, payload);
    assert_true(w.tier->ops->write(w.tier, &head, payload));
    assert_int_equal(world_read(&w, 3), TIER_MISSING);
    world_close(&w);
    world_open(&w);
    assert_true(world_find(&w, 3)); /* an older one, which has not expired */
    mem_free(payload);
    world_end(&w);
}

static void test_two_openers(void **state) {
    struct world w;
    struct tier *second;
    kvasir_error err;
    char pid[24];
    (void)state;
    world_make(&w);
    world_open(&w);
    assert_int_equal(tier_disk_create(&w.options, &second, &err), KVASIR_ERR_BUSY);
    snprintf(pid, sizeof pid, "process %ld", (long)getpid());
    assert_non_null(strstr(err.text, pid));
    assert_non_null(strstr(err.text, w.dir));
    world_close(&w);
    world_open(&w);
    world_end(&w);
}

static void expect_refusal(struct world *w, kvasir_status status, const char *why) {
    kvasir_error err;
    assert_int_equal(tier_disk_create(&w->options, &w->tier, &err), status);
    assert_non_null(strstr(err.text, why));
    w->tier = NULL;
    assert_int_equal(w->files.open_files, 0);
}

static void test_refusals(void **state) {
    struct world w;
    char path[128];
    (void)state;
    world_make(&w);
    w.options.limit_bytes = TIER_DISK_LEAST - 1;
    expect_refusal(&w, KVASIR_ERR_ARGUMENT, "at least");
    w.options.limit_bytes = TIER_DISK_LEAST;
    snprintf(path, sizeof path, "%s/no/folder", w.root);
    w.options.dir = path;
    expect_refusal(&w, KVASIR_ERR_IO, "cannot make the folder: No such file");
    snprintf(path, sizeof path, "%s/file", w.root);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    expect_refusal(&w, KVASIR_ERR_IO, "cannot open the folder: Not a directory");
    w.options.dir = "";
    expect_refusal(&w, KVASIR_ERR_ARGUMENT, "no name");
    w.options.dir = w.dir;
    w.files.lock_error = ENOLCK;
    expect_refusal(&w, KVASIR_ERR_IO, "cannot lock");
    w.files.lock_error = 0;
    w.files.open_error = EACCES;
    expect_refusal(&w, KVASIR_ERR_IO, "Permission denied");
    w.files.open_error = 0;
    w.files.list_error = EIO;
    expect_refusal(&w, KVASIR_ERR_IO, "cannot list");
    w.files.list_error = 0;
    world_open(&w);
    world_end(&w);
}

/* ---- crashes and damage ---------------------------------------------------------------------- */

/* Killed at any byte of a write: what was written before is there, the rest is cut off, and the
 * next records follow. */
static void test_cut_anywhere(void **state) {
    struct world w;
    uint64_t ends[8];
    (void)state;
    world_make(&w);
    world_open(&w);
    for (uint32_t n = 0; n < 7; n++) {
        assert_true(world_write(&w, n));
        ends[n] = disk(&w)->end;
    }
    world_close(&w);
    const uint64_t size = world_file_size(&w, 1);
    for (uint64_t cut = size; cut-- > 0; cut = cut / 512 * 512) {
        uint32_t whole = 0;
        assert_int_equal(truncate(world_file(&w, 1), (off_t)cut), 0);
        while (whole < 7 && ends[whole] <= cut)
            whole++;
        world_open(&w);
        assert_int_equal(world_stats(&w).records, whole);
        assert_int_equal(count_good(&w, 0, 7), whole);
        if (cut >= BLOCK_BYTES)
            assert_int_equal(world_file_size(&w, 1),
                             whole ? ends[whole - 1] : (uint64_t)BLOCK_BYTES);
        world_kill(&w);
    }
    world_open(&w);
    write_all(&w, 0, 7);
    world_close(&w);
    world_open(&w);
    assert_int_equal(count_good(&w, 0, 7), 7);
    world_end(&w);
}

/* One flipped bit, in steps that meet every part of a file, with its footer and without: at most
 * the record in which it is is lost. */
static void test_flip_anywhere(void **state) {
    struct world w;
    uint32_t lost = 0, flips = 0;
    (void)state;
    for (int footer = 0; footer < 2; footer++) {
        world_make(&w);
        world_open(&w);
        write_all(&w, 0, 12);
        footer ? world_close(&w) : world_kill(&w);
        const uint64_t size = world_file_size(&w, 1);
        for (uint64_t byte = 0; byte < size; byte += byte % 4096 < 640 ? 37 : 1999) {
            world_flip(&w, 1, byte);
            world_open(&w);
            const uint32_t good = count_good(&w, 0, 12);
            assert_in_range(good, 11, 12);
            assert_int_equal(12 - good, world_stats(&w).damaged > 0 && good < 12);
            lost += 12 - good;
            flips++;
            /* the file is as it was but for the flip, unless a torn end was cut off */
            world_kill(&w);
            if (world_file_size(&w, 1) < byte || world_file_size(&w, 1) != size)
                break;
            world_flip(&w, 1, byte);
        }
        world_end(&w);
    }
    assert_true(flips > 200 && lost > 100);
}

/* The head of a record in the middle is gone: the next ones are found by looking for them. */
static void test_lost_heads(void **state) {
    struct world w;
    uint64_t ends[20];
    (void)state;
    world_make(&w);
    world_open(&w);
    for (uint32_t n = 0; n < 10; n++) {
        assert_true(world_write(&w, n));
        ends[n] = disk(&w)->end;
    }
    world_kill(&w);
    world_flip(&w, 1, 0);           /* the file's own head */
    world_flip(&w, 1, 4096 + 8);    /* 0 */
    world_flip(&w, 1, ends[4] + 8); /* 5 */
    world_open(&w);
    assert_int_equal(world_stats(&w).records, 8);
    assert_int_equal(count_good(&w, 0, 10), 8);
    assert_true(world_stats(&w).damaged >= 1);
    assert_true(world_write(&w, 11)); /* in another file */
    assert_true(world_file_size(&w, 2) > 0);
    assert_int_equal(world_file_size(&w, 1), ends[9]);
    world_end(&w);
}

static void test_damage_while_running(void **state) {
    struct world w;
    (void)state;
    world_make(&w);
    world_open(&w);
    write_all(&w, 0, 8);
    w.files.flip_bit = 8 * 100; /* in the head */
    assert_int_equal(world_read(&w, 1), TIER_DAMAGED);
    assert_int_equal(world_read(&w, 1), TIER_MISSING);
    w.files.flip_bit = 8 * (4096 + 100); /* in the payload */
    assert_int_equal(world_read(&w, 2), TIER_DAMAGED);
    assert_int_equal(world_read(&w, 2), TIER_MISSING);
    assert_int_equal(truncate(world_file(&w, 1), (off_t)disk(&w)->end - 1), 0);
    assert_int_equal(world_read(&w, 7), TIER_DAMAGED);
    assert_int_equal(world_stats(&w).damaged, 3);
    assert_int_equal(w.complaints, 1);
    assert_non_null(strstr(w.told, "00000001.kvs is damaged at "));
    /* what is in the index is not what is wanted */
    uint8_t *payload;
    const struct record_head head = world_record(3, &payload);
    struct tier_read r = {
        .key = head.key, .payload = payload, .bytes = head.bytes - 4096, .sum = w.sum};
    w.tier->ops->read(w.tier, &r, 1, 0);
    assert_int_equal(r.result, TIER_DAMAGED);
    mem_free(payload);
    /* without checks, damage gets through: the control */
    uint8_t *wrong;
    const struct record_head four = world_record(4, &payload);
    wrong = mem_alloc(four.bytes);
    r = (struct tier_read){
        .key = four.key, .payload = wrong, .bytes = four.bytes, .unchecked = true};
    w.files.flip_bit = 8 * (4096 + 100);
    w.tier->ops->read(w.tier, &r, 1, 0);
    assert_int_equal(r.result, TIER_OK);
    assert_int_equal(wrong[100] ^ payload[100], 1);
    mem_free(payload);
    mem_free(wrong);
    world_end(&w);
}

/* Writes that the system says it has done, and has not, or only in part. */
static void test_lost_and_torn_writes(void **state) {
    struct world w;
    (void)state;
    for (uint64_t tear = 0; tear < 4096 * 8; tear += 1500) {
        world_make(&w);
        world_open(&w);
        write_all(&w, 0, 6);
        w.files.tear_at = tear;
        assert_true(world_write(&w, 6));
        assert_int_not_equal(world_read(&w, 6), TIER_OK);
        write_all(&w, 7, 12);
        assert_int_equal(count_good(&w, 0, 12), 11);
        world_kill(&w);
        world_open(&w);
        assert_int_equal(count_good(&w, 0, 12), 11);
        world_close(&w);
        world_open(&w);
        assert_int_equal(count_good(&w, 0, 12), 11);
        world_end(&w);
    }
    world_make(&w);
    world_open(&w);
    w.files.lose_writes = true;
    write_all(&w, 0, 30);
    w.files.lose_writes = false;
    write_all(&w, 30, 60);
    assert_int_equal(count_good(&w, 0, 60), 30);
    world_close(&w);
    world_open(&w);
    assert_true(count_good(&w, 0, 60) >= 25);
    world_end(&w);
}

/* Blocks arrive in another order, of which the last does not: zeros are in their place. */
static void test_reordered_writes(void **state) {
    struct world w;
    uint8_t zeros[4096] = {0};
    (void)state;
    world_make(&w);
    world_open(&w);
    write_all(&w, 0, 10);
    const uint64_t end = disk(&w)->end;
    world_kill(&w);
    for (uint64_t at = 4096; at < end; at += 4096) {
        uint8_t block[4096];
        const int fd = open(world_file(&w, 1), O_RDWR);
        assert_int_equal(pread(fd, block, sizeof block, (off_t)at), sizeof block);
        assert_int_equal(pwrite(fd, zeros, sizeof zeros, (off_t)at), sizeof zeros);
        world_open(&w);
        assert_int_equal(count_good(&w, 0, 10), 9);
        world_kill(&w);
        assert_int_equal(pwrite(fd, block, sizeof block, (off_t)at), sizeof block);
        if (world_file_size(&w, 1) != end) { /* the last one's head was gone */
            close(fd);
            break;
        }
        close(fd);
    }
    world_end(&w);
}

/* What becomes of files in a hard life, several at once and anywhere. */
enum harm { FLIP, ZERO_BLOCK, SWAP_BLOCKS, GARBAGE, CUT, GROW, REMOVE, SWAP_FILES, HARMS };

static void do_harm(struct world *w, uint64_t *seed) {
    const enum harm harm = (enum harm)(mix_bits(++*seed) % HARMS);
    const uint32_t file = 1 + (uint32_t)(mix_bits(++*seed) % 5);
    const uint64_t size = world_file_size(w, file);
    char path[128], other[128];
    uint8_t a[BLOCK_BYTES] = {0}, b[BLOCK_BYTES];
    snprintf(path, sizeof path, "%s", world_file(w, file));
    snprintf(other, sizeof other, "%s", world_file(w, file % 5 + 1));
    const int fd = open(path, O_RDWR);
    if (fd < 0 || size < 2 * BLOCK_BYTES) {
        close(fd);
        return;
    }
    const off_t at = (off_t)(mix_bits(++*seed) % (size / BLOCK_BYTES) * BLOCK_BYTES);
    const off_t to = (off_t)(mix_bits(++*seed) % (size / BLOCK_BYTES) * BLOCK_BYTES);
    if (harm == FLIP) {
        world_flip(w, file, mix_bits(++*seed) % size);
    } else if (harm == SWAP_BLOCKS) {
        assert_int_equal(pread(fd, a, sizeof a, at) + pread(fd, b, sizeof b, to), 2 * BLOCK_BYTES);
        assert_int_equal(pwrite(fd, a, sizeof a, to) + pwrite(fd, b, sizeof b, at),
                         2 * BLOCK_BYTES);
    } else if (harm == ZERO_BLOCK || harm == GARBAGE) {
        for (size_t i = 0; harm == GARBAGE && i < sizeof a; i++)
            a[i] = (uint8_t)mix_bits(*seed + i);
        assert_int_equal(pwrite(fd, a, sizeof a, at), sizeof a);
    } else if (harm == CUT || harm == GROW) {
        const uint64_t by = mix_bits(++*seed) % (size / 2);
        assert_int_equal(ftruncate(fd, (off_t)(harm == CUT ? size - by : size + by)), 0);
    } else if (harm == REMOVE) {
        assert_int_equal(unlink(path), 0);
    } else {
        assert_true(rename(path, other) == 0 || errno == ENOENT);
    }
    close(fd);
}

/* Never a wrong byte, never an end; and what is written afterwards is there. */
static void test_any_damage(void **state) {
    enum { ROUNDS = 150, RECORDS = 40 };
    uint64_t seed = 5;
    uint32_t good = 0, harms = 0;
    (void)state;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct world w;
        world_make(&w);
        world_open(&w);
        write_all(&w, 0, RECORDS);
        round % 3 ? world_close(&w) : world_kill(&w);
        for (uint32_t i = 0; i <= round % 8; i++, harms++)
            do_harm(&w, &seed);
        for (int again = 0; again < 2; again++) {
            world_open(&w);
            for (uint32_t n = 0; n < RECORDS; n++) {
                const enum tier_result result = world_read(&w, n);
                assert_true(result != TIER_FAILED);
                good += result == TIER_OK;
            }
            write_all(&w, 1000, 1010);
            assert_int_equal(count_good(&w, 1000, 1010), 10);
            world_close(&w);
        }
        world_end(&w);
    }
    assert_true(harms > 4 * ROUNDS && good > RECORDS * ROUNDS);
}

/* Files that are none of ours stay; what has our names but not our contents is no trouble. */
static void test_foreign_files(void **state) {
    static const char *const NAMES[] = {"notes.txt", "00000003.kvs.tmp", "0000004.kvs",
                                        "00000005.KVS", "a0000006.kvs"};
    struct world w;
    char path[128];
    (void)state;
    world_make(&w);
    world_open(&w);
    write_all(&w, 0, 5);
    world_close(&w);
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        snprintf(path, sizeof path, "%s/%s", w.dir, NAMES[i]);
        close(open(path, O_CREAT | O_WRONLY, 0600));
    }
    snprintf(path, sizeof path, "%s/00000010.kvs", w.dir);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/00000011.kvs", w.dir);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    snprintf(path, sizeof path, "%s/00000012.kvs", w.dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    int fd = open(world_file(&w, 13), O_CREAT | O_WRONLY, 0600);
    for (int i = 0; i < 3000; i++) /* text, and not whole blocks */
        assert_int_equal(write(fd, "kvasirS1kvasirR1!", 17), 17);
    close(fd);
    fd = open(world_file(&w, 14), O_CREAT | O_WRONLY, 0600); /* nothing */
    close(fd);
    world_open(&w);
    assert_int_equal(count_good(&w, 0, 5), 5);
    write_all(&w, 5, 20);
    assert_true(world_file_size(&w, 15) > 0);
    world_close(&w);
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        snprintf(path, sizeof path, "%s/%s", w.dir, NAMES[i]);
        assert_int_equal(access(path, F_OK), 0);
    }
    world_end(&w);
}

/* ---- errors of the system -------------------------------------------------------------------- */

static void test_read_errors(void **state) {
    struct world w;
    (void)state;
    world_make(&w);
    world_open(&w);
    write_all(&w, 0, 20);
    w.files.read_error = EIO;
    assert_int_equal(world_read(&w, 3), TIER_FAILED);
    assert_int_equal(world_read(&w, 3), TIER_FAILED);
    assert_int_equal(w.complaints, 1);
    w.files.read_error = 0;
    assert_int_equal(world_read(&w, 3), TIER_OK); /* it was passing */
    assert_int_equal(world_stats(&w).failed, 2);
    world_close(&w);
    world_open(&w);
    w.files.open_error = EMFILE;
    assert_int_equal(world_read(&w, 0), TIER_FAILED); /* only the newest file is open */
    w.files.open_error = 0;
    assert_int_equal(count_good(&w, 0, 20), 20);
    world_close(&w);
    w.files.read_error = EIO; /* while it starts: nothing is found, nothing ends */
    world_open(&w);
    assert_int_equal(world_stats(&w).records, 0);
    w.files.read_error = 0;
    assert_true(world_write(&w, 100) && world_read(&w, 100) == TIER_OK);
    world_close(&w);
    world_open(&w);
    assert_int_equal(count_good(&w, 0, 20), 20); /* it was there all the time */
    world_end(&w);
}

static void test_slow_reads(void **state) {
    struct world w;
    uint8_t *payload;
    (void)state;
    world_make(&w);
    w.options.segment_bytes = 9 << 20;
    world_open(&w);
    struct record_head head = world_record(0, &payload);
    mem_free(payload);
    head.bytes = 8 << 20;
    payload = mem_calloc(1, head.bytes);
    record_seal(&head, payload);
    assert_true(w.tier->ops->write(w.tier, &head, payload));
    struct tier_read r = {.key = head.key, .payload = payload, .bytes = head.bytes, .sum = w.sum};
    w.files.read_seconds = 0.02;
    w.files.reads = 0;
    w.tier->ops->read(w.tier, &r, 1, clock_seconds() + 0.05);
    assert_int_equal(r.result, TIER_FAILED);
    assert_true(w.files.reads <= 4); /* of 9: it does not read on */
    w.tier->ops->read(w.tier, &r, 1, clock_seconds() - 1);
    assert_int_equal(r.result, TIER_FAILED);
    w.tier->ops->read(w.tier, &r, 1, clock_seconds() + 100);
    assert_int_equal(r.result, TIER_OK);
    mem_free(payload);
    world_end(&w);
}

static void test_write_errors(void **state) {
    static const int ERRORS[] = {EIO, ENOSPC, EROFS, EACCES};
    struct world w;
    (void)state;
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++) {
        world_make(&w);
        world_open(&w);
        write_all(&w, 0, 10);
        w.files.write_error = ERRORS[i];
        assert_false(world_write(&w, 10));
        assert_true(world_stats(&w).down);
        const uint64_t writes = w.files.writes;
        for (uint32_t n = 11; n < 30; n++)
            assert_false(world_write(&w, n)); /* is not even tried */
        assert_int_equal(w.files.writes, writes);
        assert_true(world_write(&w, 3)); /* there already */
        assert_int_equal(world_stats(&w).write_failures, 20);
        assert_int_equal(w.complaints, 1);
        assert_int_equal(count_good(&w, 0, 30), 10);
        double wait = disk(&w)->retry_at - clock_seconds();
        assert_true(wait > 5 && wait <= 10);
        for (double expected = 20; expected <= 640; expected *= 2) {
            disk(&w)->retry_at = 0;
            assert_false(world_write(&w, 10));
            wait = disk(&w)->retry_at - clock_seconds();
            const double most = expected > 600 ? 600 : expected;
            assert_true(wait > 0.8 * most && wait <= most);
        }
        assert_int_equal(w.complaints, 1);
        w.files.write_error = 0;
        disk(&w)->retry_at = 0;
        write_all(&w, 10, 30);
        assert_false(world_stats(&w).down);
        assert_int_equal(count_good(&w, 0, 30), 30);
        world_close(&w);
        world_open(&w);
        assert_int_equal(count_good(&w, 0, 30), 30);
        world_end(&w);
    }
}

/* The disk is full in the middle of a record: no half record stays, also if it cannot be cut off
 * at once. */
static void test_full_in_a_record(void **state) {
    struct world w;
    (void)state;
    for (int stuck = 0; stuck < 2; stuck++)
        for (uint64_t room = 0; room < 36000; room += 3000) {
            world_make(&w);
            world_open(&w);
            write_all(&w, 0, 7);
            const uint64_t end = disk(&w)->end;
            w.files.room = room;
            w.files.truncate_error = stuck ? EIO : 0;
            assert_false(world_write(&w, 7)); /* 36 KiB */
            if (!stuck)
                assert_int_equal(world_file_size(&w, 1), end);
            w.files.room = UINT64_MAX;
            disk(&w)->retry_at = 0;
            assert_int_equal(world_write(&w, 8), !stuck);
            w.files.truncate_error = 0;
            disk(&w)->retry_at = 0;
            write_all(&w, 7, 12);
            assert_int_equal(count_good(&w, 0, 12), 12);
            world_kill(&w);
            world_open(&w);
            assert_int_equal(count_good(&w, 0, 12), 12);
            world_end(&w);
        }
}

static void test_errors_at_the_end(void **state) {
    struct world w;
    (void)state;
    world_make(&w);
    world_open(&w);
    write_all(&w, 0, 10);
    w.files.write_error = ENOSPC; /* no footer */
    world_close(&w);
    w.files.write_error = 0;
    world_open(&w);
    assert_int_equal(count_good(&w, 0, 10), 10);
    write_all(&w, 10, 12);
    w.files.sync_error = EIO;
    disk(&w)->dirty_since = 0.001;
    w.tier->ops->rest(w.tier);
    assert_int_equal(world_stats(&w).write_failures, 1);
    assert_int_equal(w.complaints, 1);
    w.files.sync_error = 0;
    w.tier->ops->rest(w.tier);
    assert_true(disk(&w)->dirty_since == 0);
    world_end(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write_read_find),
        cmocka_unit_test(test_restart),
        cmocka_unit_test(test_writers),
        cmocka_unit_test(test_short_calls),
        cmocka_unit_test(test_expired),
        cmocka_unit_test(test_two_openers),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_cut_anywhere),
        cmocka_unit_test(test_flip_anywhere),
        cmocka_unit_test(test_lost_heads),
        cmocka_unit_test(test_damage_while_running),
        cmocka_unit_test(test_lost_and_torn_writes),
        cmocka_unit_test(test_reordered_writes),
        cmocka_unit_test(test_foreign_files),
        cmocka_unit_test(test_any_damage),
        cmocka_unit_test(test_read_errors),
        cmocka_unit_test(test_slow_reads),
        cmocka_unit_test(test_write_errors),
        cmocka_unit_test(test_full_in_a_record),
        cmocka_unit_test(test_errors_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
