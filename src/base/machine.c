/* SPDX-License-Identifier: Apache-2.0 */
/* What machine this is: clock, cores, memory that can still be taken, instruction sets. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "base/base.h"

double clock_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

/* The number after `key` in a file of "key value" lines, or the file's first number where key is
 * NULL. False when the file or key is missing or the value is no number ("max"). */
static bool read_number(const char *path, const char *key, uint64_t *out) {
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    char line[256];
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) {
        const char *p = line;
        if (key) {
            size_t n = strlen(key);
            if (strncmp(line, key, n) != 0)
                continue;
            p = line + n;
        }
        char *end;
        unsigned long long v = strtoull(p, &end, 10);
        if (end == p)
            break;
        *out = v;
        found = true;
    }
    fclose(f);
    return found;
}

/* Control group v2 at its mount point, which is the process's own group inside a container; v1
 * beside it. File pages that the kernel can drop count as free. */
static uint64_t cgroup_left(void) {
    uint64_t limit, used, file = 0;
    if (read_number("/sys/fs/cgroup/memory.max", NULL, &limit) &&
        read_number("/sys/fs/cgroup/memory.current", NULL, &used)) {
        (void)read_number("/sys/fs/cgroup/memory.stat", "inactive_file ", &file);
    } else if (read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", NULL, &limit) &&
               read_number("/sys/fs/cgroup/memory/memory.usage_in_bytes", NULL, &used)) {
        (void)read_number("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file ", &file);
    } else {
        return UINT64_MAX;
    }
    used = used > file ? used - file : 0;
    return limit > used ? limit - used : 0;
}

uint64_t memory_available_bytes(void) {
    uint64_t kib;
    if (!read_number("/proc/meminfo", "MemAvailable:", &kib))
        return 0;
    uint64_t machine = kib * 1024, group = cgroup_left();
    return machine < group ? machine : group;
}

uint64_t memory_resident_peak_bytes(void) {
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return 0;
    return (uint64_t)usage.ru_maxrss * 1024;
}

/* ---- instruction sets ------------------------------------------------------------------------ */

#if defined(__x86_64__)
#include <cpuid.h>

/* The operating system must save the registers (XCR0 bits 1 and 2), or AVX code dies in the first
 * context switch. */
static bool os_saves_ymm(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return false;
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & 6) == 6;
}

enum cpu_tier cpu_tier_detect(void) {
    unsigned a, b, c, d;
    if (!os_saves_ymm())
        return CPU_TIER_REF;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_FMA) || !(c & bit_F16C))
        return CPU_TIER_REF;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2))
        return CPU_TIER_REF;
    return CPU_TIER_AVX2;
}
#else
enum cpu_tier cpu_tier_detect(void) {
    return CPU_TIER_REF;
}
#endif

const char *cpu_tier_name(enum cpu_tier tier) {
    static const char *const names[CPU_TIER_COUNT] = {"ref", "avx2"};
    return tier < CPU_TIER_COUNT ? names[tier] : "auto";
}

const char *cpu_model_name(void) {
    static char name[128];
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];
    strcpy(name, "unknown CPU");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "model name", 10) != 0)
            continue;
        const char *p = strchr(line, ':');
        if (p)
            snprintf(name, sizeof name, "%.*s", (int)strcspn(p + 2, "\n"), p + 2);
        break;
    }
    if (f)
        fclose(f);
    return name;
}
