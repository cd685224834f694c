/* SPDX-License-Identifier: Apache-2.0 */
/* kill -9 of a process that writes to the disk tier, at random moments, in one folder:
 *
 *     sim_tier_kill [--kills=N] [--seed=N]
 *
 * The child writes, reads and forgets as fast as it can and tells through a pipe what is done.
 * After each kill the folder opens, everything acknowledged is there and intact (as far as the
 * limit allows), nothing acknowledged as forgotten is, and a verification finds no damage. Segments
 * are small, so that kills meet every part of their life: beginning, sealing, carrying, removal.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cache/tier_disk.h"
#include "tier_world.h"

#include <cmocka.h>

enum {
    SURE = 150, /* so many of the newest are never removed to make room */
    ROOTS = 8   /* world_root */
};

static unsigned long kills = 20;
static uint64_t seed = 1;

enum said { WRITTEN, FORGETTING, FORGOTTEN };
struct message {
    uint32_t said, n;
};

/* What must be so: of records below `next`, those of a root from first[root] on. */
struct expected {
    uint32_t next;
    uint32_t first[ROOTS], maybe[ROOTS]; /* maybe: a forget was not acknowledged */
    uint64_t checked, forgets;
};

static uint64_t draw(void) {
    return mix_bits(++seed);
}

static void say(int to, enum said said, uint32_t n) {
    const struct message m = {said, n};
    if (write(to, &m, sizeof m) != sizeof m)
        _exit(3);
}

static void child(struct world *w, int to, uint32_t n) {
    world_open(w);
    for (;; n++) {
        if (draw() % 100 == 0) {
            const uint32_t what = (uint32_t)(draw() % ROOTS);
            const struct tier_key root = world_root(what);
            say(to, FORGETTING, what);
            w->tier->ops->forget(w->tier, world_context(what), &root, 1, NULL);
            say(to, FORGOTTEN, what);
        }
        if (draw() % 8 == 0 && n > 0)
            (void)world_read(w, n - (uint32_t)(draw() % (n < 300 ? n : 300)));
        if (draw() % 500 == 0) {
            world_close(w);
            world_open(w);
        }
        if (!world_write(w, n))
            _exit(4);
        say(to, WRITTEN, n);
    }
}

/* Until the pipe's other end is gone, or so many messages. */
static void listen(int from, struct expected *e) {
    struct message m;
    while (read(from, &m, sizeof m) == sizeof m) {
        if (m.said == WRITTEN)
            e->next = m.n + 1;
        else if (m.said == FORGETTING)
            e->maybe[m.n] = e->next;
        else
            e->first[m.n] = e->maybe[m.n];
        e->forgets += m.said == FORGOTTEN;
    }
}

static void on_item(void *user, const struct tier_folder_item *item) {
    if (item->state == FOLDER_DAMAGED)
        ++*(unsigned *)user;
}

static void check(struct world *w, struct expected *e) {
    unsigned damaged = 0;
    kvasir_error err;
    struct tier_folder_walk walk = {
        .dir = w->dir, .payloads = true, .item = on_item, .user = &damaged};
    /* a child killed at once has not made the folder yet */
    if (e->next > 0 || access(w->dir, F_OK) == 0)
        assert_int_equal(tier_folder_walk(&walk, &err), KVASIR_OK);
    assert_int_equal(damaged, 0);
    world_open(w);
    const uint32_t from = e->next > 4 * SURE ? e->next - 4 * SURE : 0;
    for (uint32_t n = from; n < e->next; n++) {
        const uint32_t root = n % ROOTS;
        const enum tier_result result = world_read(w, n);
        assert_true(result == TIER_OK || result == TIER_MISSING);
        if (n < e->first[root])
            assert_int_equal(result, TIER_MISSING);
        else if (n >= e->maybe[root] && n + SURE >= e->next)
            assert_int_equal(result, TIER_OK);
        e->checked += result == TIER_OK;
    }
    assert_int_equal(world_stats(w).damaged, 0);
    assert_true(world_size(w) <= w->options.limit_bytes);
    draw() % 2 ? world_kill(w) : world_close(w);
}

static void kill_once(struct world *w, struct expected *e) {
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(ends[0]);
        child(w, ends[1], e->next);
    }
    close(ends[1]);
    const struct timespec wait = {0, (long)(draw() % 60000000)};
    seed += 1000000; /* the child has drawn from here */
    nanosleep(&wait, NULL);
    kill(pid, SIGKILL);
    listen(ends[0], e);
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    check(w, e);
}

static void test_kills(void **state) {
    struct world w;
    struct expected e = {0};
    (void)state;
    world_make(&w);
    for (unsigned long i = 0; i < kills; i++)
        kill_once(&w, &e);
    print_message("          %lu kills, %u records written, %llu read back, %llu times forgotten\n",
                  kills, e.next, (unsigned long long)e.checked, (unsigned long long)e.forgets);
    assert_true(e.next > kills);
    world_end(&w);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kills)};
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "--kills=", 8) == 0)
            kills = strtoul(argv[i] + 8, NULL, 10);
        else if (strncmp(argv[i], "--seed=", 7) == 0)
            seed = strtoull(argv[i] + 7, NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
