/* SPDX-License-Identifier: Apache-2.0 */
/* The topology of machines that are not at hand, from trees of files as Linux has them: SMT, two
 * nodes, masks with holes, quotas, and files that are missing or make no sense. And that those of
 * this machine are read once: calls of cgroup_each are counted, which the linker replaces. */
#define _GNU_SOURCE
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "util/cgroup.h"
#include "util/topology.h"

#include <cmocka.h>

#include "model_files.h"

static struct temp_folder root;
static struct topology t;

static int make_root(void **state) {
    (void)state;
    temp_folder_make(&root);
    return 0;
}

static int remove_root(void **state) {
    (void)state;
    temp_folder_remove(&root);
    return 0;
}

/* A file of the machine, with the folders that it is in. */
static void has(const char *path, const char *text) {
    char folder[192];
    for (size_t i = 1; path[i]; i++)
        if (path[i] == '/') {
            snprintf(folder, sizeof folder, "%s%.*s", root.path, (int)i, path);
            mkdir(folder, 0777);
        }
    temp_write(&root, path + 1, text, strlen(text));
}

static void has_siblings(int cpu, const char *name, const char *list) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, name);
    has(path, list);
}

/* Each core has two CPUs, c and c + cores. */
static void has_smt(int cores) {
    for (int cpu = 0; cpu < 2 * cores; cpu++) {
        char list[32];
        snprintf(list, sizeof list, "%d,%d\n", cpu % cores, cpu % cores + cores);
        has_siblings(cpu, "core_cpus_list", list);
    }
}

static void has_node(int node, const char *list) {
    char path[64];
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", node);
    has(path, list);
}

static void read_with(const char *allowed) {
    struct cpu_mask mask;
    assert_true(cpu_mask_parse(allowed, &mask));
    topology_read_from(&t, root.path, &mask);
}

static void counts(int cpus, int cores, int nodes, int threads) {
    assert_int_equal(t.cpus, cpus);
    assert_int_equal(t.cores, cores);
    assert_int_equal(t.nodes, nodes);
    assert_int_equal(topology_threads(&t), threads);
}

static void core_is(int i, int cpu, int node) {
    assert_int_equal(t.core[i].cpu, cpu);
    assert_int_equal(t.core[i].node, node);
}

static void node_has(int node, const char *cpus) {
    struct cpu_mask want, got;
    assert_true(cpu_mask_parse(cpus, &want));
    topology_node_cpus(&t, node, &got);
    assert_memory_equal(&got, &want, sizeof want);
}

static void test_lists(void **state) {
    (void)state;
    struct cpu_mask m;
    assert_true(cpu_mask_parse("0-2,64,8190-8191\n", &m));
    const int in[] = {0, 1, 2, 64, 8190, 8191}, out[] = {3, 63, 65, 128, 8189};
    for (size_t i = 0; i < sizeof in / sizeof *in; i++)
        assert_true(cpu_mask_has(&m, in[i]));
    for (size_t i = 0; i < sizeof out / sizeof *out; i++)
        assert_false(cpu_mask_has(&m, out[i]));
    assert_true(cpu_mask_parse("\n", &m)); /* of a node without CPUs */
    assert_false(cpu_mask_has(&m, 0));
    static const char *const BAD[] = {"x",    "1-",    "-1",   "3-2", "1 2",
                                      "1,,2", "0-1:2", "8192", " 1",  "99999999999999999999"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        assert_false(cpu_mask_parse(BAD[i], &m));
}

static void test_smt(void **state) {
    (void)state;
    has_smt(4);
    read_with("0-7");
    counts(8, 4, 1, 4);
    core_is(3, 3, 0);
    assert_true(t.quota == 0);
    read_with("4-7"); /* the second CPUs only */
    counts(4, 4, 1, 4);
    core_is(0, 4, 0);
    read_with("1,5,6"); /* a core and half a core */
    counts(3, 2, 1, 2);
    core_is(0, 1, 0);
    core_is(1, 6, 0);
}

static void test_old_name(void **state) {
    (void)state;
    has_siblings(0, "thread_siblings_list", "0-1\n");
    has_siblings(2, "thread_siblings_list", "2-3\n");
    read_with("0-3");
    counts(4, 2, 1, 2);
}

static void test_no_files(void **state) {
    (void)state;
    read_with("0-2,9");
    counts(4, 4, 1, 4);
    core_is(3, 9, 0);
    read_with(""); /* not even the mask */
    counts(1, 1, 1, 1);
}

static void test_two_nodes(void **state) {
    (void)state;
    has_smt(4);
    has("/sys/devices/system/node/online", "0,2-3\n");
    has_node(0, "0,2,4,6\n"); /* CPUs in turn */
    has_node(2, "\n");        /* memory only */
    has_node(3, "1,3,5,7\n");
    read_with("0-7");
    counts(8, 4, 2, 4);
    core_is(0, 0, 0);
    core_is(1, 2, 0);
    core_is(2, 1, 1);
    core_is(3, 3, 1);
    assert_int_equal(t.node_number[0], 0);
    assert_int_equal(t.node_number[1], 3);
    node_has(0, "0,2,4,6");
    node_has(1, "1,3,5,7");
    read_with("1,3");
    counts(2, 2, 1, 2);
    node_has(0, "1,3");
    core_is(0, 1, 0);
    assert_int_equal(t.node_number[0], 3);
}

static void test_nodes_without_sense(void **state) {
    (void)state;
    has("/sys/devices/system/node/online", "0-1\n");
    has_node(0, "0-1\n");
    read_with("0-3"); /* CPUs 2 and 3 have no node */
    counts(4, 4, 1, 4);
    node_has(0, "0-3");
    has_node(1, "0-3\n"); /* two CPUs have two */
    read_with("0-1");
    counts(2, 2, 1, 2);
    has_node(0, "nothing");
    read_with("0-3");
    counts(4, 4, 1, 4);
    assert_int_equal(t.node_number[0], 1);
}

static void test_many(void **state) {
    (void)state;
    char list[2 * TOPOLOGY_NODES_MAX * 8] = "", node[16];
    for (int n = 0; n <= TOPOLOGY_NODES_MAX; n++) {
        snprintf(node, sizeof node, "%d", n);
        has_node(n, node);
        snprintf(list + strlen(list), 16, "%s%d", n ? "," : "", n);
    }
    has("/sys/devices/system/node/online", list);
    read_with("0-15");
    counts(16, 16, 16, 16);
    read_with("0-16");
    counts(17, 17, 1, 17);
    read_with("0-8191");
    counts(8192, TOPOLOGY_CORES_MAX, 1, TOPOLOGY_CORES_MAX);
}

static void quota_gives(double quota, int threads) {
    read_with("0-7");
    assert_true(t.quota == quota);
    assert_int_equal(topology_threads(&t), threads);
}

static void test_quota(void **state) {
    (void)state;
    has_smt(4);
    has("/proc/self/cgroup", "1:cpu:/other\n0::/pod/box\n");
    has("/sys/fs/cgroup/pod/box/cpu.max", "max 100000\n");
    quota_gives(0, 4);
    has("/sys/fs/cgroup/pod/cpu.max", "250000 100000\n"); /* the group above */
    quota_gives(2.5, 2);
    has("/sys/fs/cgroup/cpu.max", "300000 100000\n"); /* the tighter one holds */
    quota_gives(2.5, 2);
    has("/sys/fs/cgroup/pod/box/cpu.max", "20000 100000\n");
    quota_gives(0.2, 1);
    has("/sys/fs/cgroup/pod/box/cpu.max", "600000 100000\n");
    has("/sys/fs/cgroup/pod/cpu.max", "5000 0\n"); /* no period: not a limit */
    has("/sys/fs/cgroup/cpu.max", "x\n");
    quota_gives(6, 4);
}

static void test_quota_v1(void **state) {
    (void)state;
    has_smt(4);
    has("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000\n");
    has("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    quota_gives(0, 4);
    has("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n");
    quota_gives(3, 3);
}

static int readings;

void __real_cgroup_each(const char *root, cgroup_fn *fn, void *ctx);
void __wrap_cgroup_each(const char *from, cgroup_fn *fn, void *ctx);
void __wrap_cgroup_each(const char *from, cgroup_fn *fn, void *ctx) {
    readings++;
    __real_cgroup_each(from, fn, ctx);
}

static bool reads_files(void) {
    const int before = readings;
    topology_read(&t);
    return readings > before;
}

static void test_read_once(void **state) {
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    assert_true(reads_files());
    const struct topology first = t;
    assert_false(reads_files());
    assert_memory_equal(&t, &first, sizeof t);
    if (first.cpus == 1)
        return;
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_true(reads_files());
    assert_int_equal(t.cpus, 1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    topology_read(&t);
    assert_memory_equal(&t, &first, sizeof t);
}

static void test_this_machine(void **state) {
    (void)state;
    topology_read(&t);
    assert_in_range(t.cpus, 1, TOPOLOGY_CPUS_MAX);
    assert_in_range(topology_threads(&t), 1, t.cores);
    for (int i = 0; i < t.cores; i++)
        assert_in_range(t.core[i].node, 0, t.nodes - 1);
}

int main(void) {
#define WITH_ROOT(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        WITH_ROOT(test_smt),
        WITH_ROOT(test_old_name),
        WITH_ROOT(test_no_files),
        WITH_ROOT(test_two_nodes),
        WITH_ROOT(test_nodes_without_sense),
        WITH_ROOT(test_many),
        WITH_ROOT(test_quota),
        WITH_ROOT(test_quota_v1),
        cmocka_unit_test(test_read_once),
        cmocka_unit_test(test_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
