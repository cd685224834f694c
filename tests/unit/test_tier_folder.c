/* SPDX-License-Identifier: Apache-2.0 */
/* A disk tier's folder from outside: what is in it, what is damaged, compaction, clearing. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <fcntl.h>

#include "cache/tier_disk.h"
#include "lab/lab.h"
#include "tier_world.h"

#include <cmocka.h>

/* What a walk saw. */
struct seen {
    unsigned states[FOLDER_STATES];
    uint64_t bytes; /* of all items */
    uint64_t damaged_at;
    char damaged_file[32];
    uint64_t done, all;
    unsigned steps, stop_after;
};

static void on_item(void *user, const struct tier_folder_item *item) {
    struct seen *s = user;
    s->states[item->state]++;
    s->bytes += item->bytes;
    if (item->state == FOLDER_DAMAGED) {
        s->damaged_at = item->offset;
        snprintf(s->damaged_file, sizeof s->damaged_file, "%s", item->file);
    } else if (item->state != FOLDER_TORN) {
        assert_non_null(item->head);
    }
}

static bool on_progress(void *user, uint64_t done, uint64_t all) {
    struct seen *s = user;
    assert_true(done <= all);
    s->done = done;
    s->all = all;
    return ++s->steps != s->stop_after;
}

static struct seen walk(struct world *w, bool payloads) {
    struct seen s = {.stop_after = UINT32_MAX};
    kvasir_error err;
    struct tier_folder_walk walk = {
        .dir = w->dir, .payloads = payloads, .item = on_item, .progress = on_progress, .user = &s};
    if (tier_folder_walk(&walk, &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    return s;
}

static void test_walk(void **state) {
    struct world w;
    uint8_t *payload;
    (void)state;
    world_make(&w);
    world_open(&w);
    for (uint32_t n = 0; n < 40; n++)
        assert_true(world_write(&w, n));
    const struct tier_key root = world_root(3);
    w.tier->ops->forget(w.tier, world_context(3), &root, 1, NULL); /* 5 records */
    struct record_head head = world_record(3, &payload);
    assert_true(w.tier->ops->write(w.tier, &head, payload)); /* again, and valid */
    w.tier->ops->drop(w.tier, NULL, head.key);
    assert_true(w.tier->ops->write(w.tier, &head, payload)); /* and again: the first is older */
    mem_free(payload);
    head = world_record(50, &payload);
    head.expires = 5;
    record_seal(&head, payload);
    assert_true(w.tier->ops->write(w.tier, &head, payload));
    mem_free(payload);
    for (int closed = 0; closed < 2; closed++) {
        const struct seen s = walk(&w, closed); /* beside the running tier, too */
        assert_int_equal(s.states[FOLDER_RECORD], 40 - 5 + 1);
        assert_int_equal(s.states[FOLDER_FORGOTTEN], 5);
        assert_int_equal(s.states[FOLDER_OLDER], 1);
        assert_int_equal(s.states[FOLDER_EXPIRED], 1);
        assert_int_equal(s.states[FOLDER_FORGET], 1);
        assert_int_equal(s.states[FOLDER_DAMAGED] + s.states[FOLDER_TORN], 0);
        if (!closed)
            world_close(&w);
    }
    world_end(&w);
}

/* One flipped bit anywhere is seen, and where; bits between a head and its payload mean nothing. */
static void test_verify(void **state) {
    struct world w;
    uint32_t seen = 0;
    (void)state;
    world_make(&w);
    world_open(&w);
    for (uint32_t n = 0; n < 8; n++)
        assert_true(world_write(&w, n));
    world_close(&w);
    const uint64_t size = world_file_size(&w, 1);
    for (uint64_t byte = 3; byte < size; byte += byte % 4096 < 600 ? 61 : 1000) {
        world_flip(&w, 1, byte);
        const struct seen s = walk(&w, true);
        if (s.states[FOLDER_DAMAGED]) {
            assert_string_equal(s.damaged_file, "00000001.kvs");
            assert_true(s.damaged_at <= byte);
            assert_int_equal(s.states[FOLDER_TORN], 0);
            seen++;
        } else {
            assert_int_equal(s.states[FOLDER_RECORD], 8);
        }
        world_flip(&w, 1, byte);
    }
    assert_true(seen > 100);
    assert_int_equal(walk(&w, true).states[FOLDER_DAMAGED], 0);
    /* an end that a crash left is no damage */
    assert_int_equal(truncate(world_file(&w, 1), 4096 + 5000), 0);
    struct seen s = walk(&w, true);
    assert_int_equal(s.states[FOLDER_DAMAGED], 0);
    assert_int_equal(s.states[FOLDER_TORN], 1);
    assert_int_equal(truncate(world_file(&w, 1), 17), 0);
    s = walk(&w, true);
    assert_true(s.states[FOLDER_TORN] > 0 && !s.states[FOLDER_DAMAGED]);
    world_end(&w);
}

static void test_stop(void **state) {
    struct world w;
    struct seen s = {.stop_after = 5};
    kvasir_error err;
    (void)state;
    world_make(&w);
    struct tier_folder_walk walk = {
        .dir = w.dir, .item = on_item, .progress = on_progress, .user = &s};
    assert_int_equal(tier_folder_walk(&walk, &err), KVASIR_ERR_IO); /* there is none */
    world_open(&w);
    for (uint32_t n = 0; n < 40; n++)
        assert_true(world_write(&w, n));
    assert_int_equal(tier_folder_walk(&walk, &err), KVASIR_ERR_CANCELLED);
    assert_int_equal(s.steps, 5);
    world_end(&w);
}

static void test_compact(void **state) {
    struct world w;
    uint64_t before, after;
    kvasir_error err;
    (void)state;
    world_make(&w);
    assert_int_equal(tier_folder_compact(w.dir, 0, NULL, &before, &after, &err), KVASIR_ERR_IO);
    world_open(&w);
    assert_int_equal(tier_folder_compact(w.dir, 0, NULL, &before, &after, &err), KVASIR_ERR_BUSY);
    for (uint32_t n = 0; n < 300; n++)
        assert_true(world_write(&w, n));
    w.tier->ops->forget(w.tier, world_context(1), NULL, 0, NULL);
    for (uint32_t n = 300; n < 400; n++)
        assert_true(world_write(&w, n));
    world_close(&w);
    const uint64_t size = world_size(&w);
    assert_int_equal(tier_folder_compact(w.dir, 0, NULL, &before, &after, &err), KVASIR_OK);
    assert_true(before < size && size < before + 4096); /* the lock */
    assert_true(after < before / 100 * 85 && world_size(&w) < after + 4096);
    struct seen s = walk(&w, true);
    assert_int_equal(s.states[FOLDER_RECORD], 300 - 75 + 100);
    for (int i = FOLDER_OLDER; i < FOLDER_STATES; i++)
        assert_int_equal(s.states[i], 0); /* nothing is left of what was forgotten */
    const uint64_t once = after;
    assert_int_equal(tier_folder_compact(w.dir, 0, NULL, &before, &after, &err), KVASIR_OK);
    assert_true(before == once && after <= once);
    world_open(&w);
    for (uint32_t n = 0; n < 400; n++)
        assert_int_equal(world_read(&w, n), n < 300 && n % 4 == 1 ? TIER_MISSING : TIER_OK);
    /* and to a limit: the newest stay */
    for (uint32_t n = 400; n < 800; n++)
        assert_true(world_write(&w, n));
    world_close(&w);
    assert_int_equal(tier_folder_compact(w.dir, 1 << 20, NULL, &before, &after, &err),
                     KVASIR_ERR_ARGUMENT);
    assert_int_equal(tier_folder_compact(w.dir, TIER_DISK_LEAST, NULL, &before, &after, &err),
                     KVASIR_OK);
    assert_true(world_size(&w) <= TIER_DISK_LEAST);
    /* a full disk: nothing is lost */
    w.options.limit_bytes = 4 * TIER_DISK_LEAST;
    world_open(&w);
    w.tier->ops->forget(w.tier, world_context(2), NULL, 0, NULL);
    world_close(&w);
    const unsigned records = walk(&w, false).states[FOLDER_RECORD];
    w.files.room = 1 << 20;
    assert_int_equal(tier_folder_compact(w.dir, 0, &w.files.base, &before, &after, &err),
                     KVASIR_ERR_IO);
    assert_non_null(strstr(err.text, "No space left"));
    s = walk(&w, true);
    assert_int_equal(s.states[FOLDER_RECORD], records);
    assert_int_equal(s.states[FOLDER_DAMAGED], 0);
    world_end(&w);
}

/* Files that are larger than those of the limit now, and not enough room to copy one of them. */
static void test_compact_smaller_files(void **state) {
    struct world w;
    uint64_t before, after;
    kvasir_error err;
    uint32_t n = 0, found = 0, lost = 0;
    (void)state;
    world_make(&w);
    w.options.limit_bytes = 4 * TIER_DISK_LEAST;
    w.options.segment_bytes = 4 << 20;
    world_open(&w);
    while (world_size(&w) < TIER_DISK_LEAST - (5 << 19))
        assert_true(world_write(&w, n++));
    w.tier->ops->forget(w.tier, world_context(1), NULL, 0, NULL);
    world_close(&w);
    assert_true(world_size(&w) < TIER_DISK_LEAST - (2 << 20)); /* all files stay at the start */
    assert_int_equal(tier_folder_compact(w.dir, TIER_DISK_LEAST, NULL, &before, &after, &err),
                     KVASIR_OK);
    assert_true(after < before && world_size(&w) < after + 4096);
    const struct seen s = walk(&w, true);
    for (int i = FOLDER_OLDER; i < FOLDER_STATES; i++)
        assert_int_equal(s.states[i], 0);
    w.options.segment_bytes = 0;
    w.options.limit_bytes = TIER_DISK_LEAST;
    world_open(&w);
    const uint32_t first_file = n / 3; /* and more: there are more than three */
    for (uint32_t i = 0; i < n; i++) {
        const enum tier_result result = world_read(&w, i);
        assert_true(result == (i % 4 == 1 ? TIER_MISSING : TIER_OK) || result == TIER_MISSING);
        found += result == TIER_OK;
        lost += result != TIER_OK && i % 4 != 1;
        assert_true(result == TIER_OK || i % 4 == 1 || i < first_file); /* the oldest only */
    }
    assert_int_equal(found, s.states[FOLDER_RECORD]);
    assert_in_range(lost, 1, first_file / 2); /* of the first file, what did not fit */
    world_end(&w);
}

/* Nothing is free above the floor: space is freed all the same, without writing. */
static void test_compact_full(void **state) {
    struct world w;
    uint64_t before, after;
    kvasir_error err;
    (void)state;
    world_make(&w);
    world_open(&w);
    for (uint32_t n = 0; n < 200; n++)
        assert_true(world_write(&w, n));
    w.tier->ops->forget(w.tier, world_context(1), NULL, 0, NULL);
    for (uint32_t n = 200; n < 300; n++)
        assert_true(world_write(&w, n));
    world_close(&w);
    w.files.free_bytes = TIER_DISK_FLOOR;
    w.files.room = 100; /* for the lock */
    assert_int_equal(tier_folder_compact(w.dir, 0, &w.files.base, &before, &after, &err),
                     KVASIR_OK);
    assert_true(after < before / 2);
    w.files.free_bytes = w.files.room = UINT64_MAX;
    world_open(&w);
    assert_true(world_find(&w, 299)); /* in a file without anything that was forgotten */
    assert_false(world_find(&w, 1));
    world_end(&w);
}

/* A damaged record of what is forgotten: the footer says it, too; without one it is lost. */
static void test_damaged_forget(void **state) {
    (void)state;
    for (int killed = 0; killed < 2; killed++) {
        struct world w;
        world_make(&w);
        world_open(&w);
        for (uint32_t n = 0; n < 8; n++)
            assert_true(world_write(&w, n));
        const uint64_t at = ((struct tier_disk *)(void *)w.tier)->end;
        w.tier->ops->forget(w.tier, world_context(1), NULL, 0, NULL);
        killed ? world_kill(&w) : world_close(&w);
        world_flip(&w, 1, at + 70);
        world_open(&w);
        assert_int_equal(world_find(&w, 1), killed);
        assert_true(world_find(&w, 2));
        world_end(&w);
    }
}

static void test_clear(void **state) {
    struct world w;
    uint64_t removed;
    kvasir_error err;
    char path[128];
    (void)state;
    world_make(&w);
    assert_int_equal(tier_folder_clear(w.dir, NULL, &removed, &err), KVASIR_ERR_IO);
    world_open(&w);
    for (uint32_t n = 0; n < 100; n++)
        assert_true(world_write(&w, n));
    assert_int_equal(tier_folder_clear(w.dir, NULL, &removed, &err), KVASIR_ERR_BUSY);
    world_close(&w);
    snprintf(path, sizeof path, "%s/notes", w.dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    const uint64_t size = world_size(&w);
    assert_int_equal(tier_folder_clear(w.dir, NULL, &removed, &err), KVASIR_OK);
    assert_true(size - removed < 32 && world_size(&w) < 32); /* the lock */
    assert_int_equal(access(path, F_OK), 0);
    world_open(&w);
    assert_int_equal(world_stats(&w).records, 0);
    world_end(&w);
}

/* What `kvasir cache` shows. */
static void test_lab(void **state) {
    enum { MANY = 300 }; /* salts */
    struct world w;
    lab_cache_folder f;
    kvasir_error err;
    uint8_t *payload;
    char name[33];
    uint64_t pages = 0, states = 0, bytes = 0;
    (void)state;
    world_make(&w);
    assert_int_equal(lab_cache_folder_read(w.dir, true, NULL, NULL, &f, &err), KVASIR_ERR_IO);
    world_open(&w);
    for (uint32_t n = 0; n < 40; n++)
        assert_true(world_write(&w, n));
    for (uint32_t n = 0; n < MANY; n++) {
        struct record_head head = world_record(1000 + n, &payload);
        head.root = chain_root(head.context, &n, sizeof n);
        head.k = (struct kv_format){8, SCALAR_F16, 64, KV_ROWS};
        head.v = (struct kv_format){4, SCALAR_F16, 64, KV_ROWS};
        head.kind = RECORD_PAGE;
        head.group = n % 5 ? 0 : UINT32_MAX; /* a number that means nothing */
        head.written = 1800000000 + n;
        record_seal(&head, payload);
        assert_true(w.tier->ops->write(w.tier, &head, payload));
        mem_free(payload);
    }
    world_close(&w);
    assert_int_equal(lab_cache_folder_read(w.dir, true, NULL, NULL, &f, &err), KVASIR_OK);
    assert_int_equal(f.n_groups, MANY); /* 8 of them have what world_write wrote, too */
    assert_int_equal(f.damaged + f.torn + f.n_places, 0);
    tier_key_text(world_context(1000 + MANY - 1), name);
    assert_string_equal(f.groups[0].context, name);
    assert_string_equal(f.groups[0].formats, "K 8 g64, V 4 g64");
    assert_int_equal(f.groups[0].tokens, TILE_TOKENS);
    for (size_t i = 0; i < f.n_groups; i++) {
        pages += f.groups[i].pages;
        states += f.groups[i].states;
        bytes += f.groups[i].bytes;
        assert_true(i == 0 || f.groups[i].last_written <= f.groups[i - 1].last_written);
    }
    assert_int_equal(pages, 32 + MANY);
    assert_int_equal(states, 8);
    assert_true(bytes < f.bytes && bytes > f.bytes / 10 * 9);
    lab_cache_folder_free(&f);
    world_flip(&w, 1, BLOCK_BYTES + 3);
    assert_int_equal(lab_cache_folder_read(w.dir, false, NULL, NULL, &f, &err), KVASIR_OK);
    assert_int_equal(f.damaged, 1);
    assert_int_equal(f.places[0].offset, BLOCK_BYTES);
    assert_string_equal(f.places[0].file, "00000001.kvs");
    lab_cache_folder_free(&f);
    uint64_t before, after;
    assert_int_equal(lab_cache_folder_compact(w.dir, 0, &before, &after, &err), KVASIR_OK);
    assert_int_equal(lab_cache_folder_clear(w.dir, &before, &err), KVASIR_OK);
    assert_int_equal(before, after);
    world_end(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_walk),
        cmocka_unit_test(test_verify),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_compact),
        cmocka_unit_test(test_compact_smaller_files),
        cmocka_unit_test(test_compact_full),
        cmocka_unit_test(test_damaged_forget),
        cmocka_unit_test(test_clear),
        cmocka_unit_test(test_lab),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
