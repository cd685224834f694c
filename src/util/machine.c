/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about the machine: clock, available memory, instruction sets. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "util/cgroup.h"
#include "util/util.h"

double clock_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The number after `key` in a file of "key value" lines, or the file's first number if key is NULL.
 * False if the file or key is missing or the value is not a number ("max"). */
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

/* Bytes that a control group still allows; file pages that the kernel can drop count as free.
 * UINT64_MAX if it sets no limit. */
static uint64_t group_left(const char *folder, const char *limit_name, const char *used_name,
                           const char *file_key) {
    char path[2 * 4096 + 64];
    uint64_t limit, used, file = 0;
    snprintf(path, sizeof path, "%s/%s", folder, limit_name);
    if (!read_number(path, NULL, &limit))
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/%s", folder, used_name);
    if (!read_number(path, NULL, &used))
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    (void)read_number(path, file_key, &file);
    used = used > file ? used - file : 0;
    return limit > used ? limit - used : 0;
}

static void group_left_v2(void *ctx, const char *folder) {
    uint64_t *left = ctx, here;
    here = group_left(folder, "memory.max", "memory.current", "inactive_file ");
    *left = here < *left ? here : *left;
}

/* The tightest limit of the process's groups (v2), or the limit of v1. */
static uint64_t cgroup_left(void) {
    uint64_t left = group_left("/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                               "memory.usage_in_bytes", "total_inactive_file ");
    cgroup_each("", group_left_v2, &left);
    return left;
}

uint64_t memory_available_bytes(void) {
    uint64_t kib;
    if (!read_number("/proc/meminfo", "MemAvailable:", &kib))
        return 0;
    uint64_t machine = kib * 1024, group = cgroup_left();
    return machine < group ? machine : group;
}

uint64_t memory_machine_bytes(void) {
    uint64_t kib;
    return read_number("/proc/meminfo", "MemTotal:", &kib) ? kib * 1024 : 0;
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
#include <sys/syscall.h>
#include <unistd.h>

/* The operating system must save the registers, else they are lost in the next context switch: XCR0
 * bits 1 and 2 for AVX; 5, 6 and 7 too for AVX-512; 17 and 18 too for AMX. */
static bool os_saves(unsigned bits) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return false;
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & bits) == bits;
}

/* Linux saves the 8 KiB of AMX's tiles for processes only that have asked for it; the threads that
 * they have and will have may use tiles then. Asked once; a second time would do no harm. */
static bool tiles_permitted(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    enum { UNKNOWN, PERMITTED, REFUSED };
    static atomic_int answer;
    int a = atomic_load(&answer);
    if (a == UNKNOWN) {
        a = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 ? PERMITTED
                                                                                  : REFUSED;
        atomic_store(&answer, a);
    }
    return a == PERMITTED;
}

bool cpu_tier_have(enum cpu_tier tier) {
    const unsigned avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL | bit_AVX512CD;
    const unsigned amx = 1u << 24 | 1u << 25; /* AMX-TILE, AMX-INT8; compilers disagree on names */
    unsigned a, b, c, d, b7, c7, d7;
    if (tier == CPU_TIER_REF)
        return true;
#ifdef KVASIR_ONLY_TIER /* option KVASIR_NATIVE of CMakeLists.txt */
    if (tier != KVASIR_ONLY_TIER &&
        !(tier == CPU_TIER_AMX && KVASIR_ONLY_TIER == CPU_TIER_AVX512VNNI))
        return false;
#endif
    if (tier > CPU_TIER_AMX || !os_saves(0x06) || !__get_cpuid(1, &a, &b, &c, &d) ||
        !(c & bit_FMA) || !(c & bit_F16C) || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d7) ||
        !(b7 & bit_AVX2))
        return false;
    if (tier == CPU_TIER_AVX2)
        return true;
    if (!os_saves(0xe6) || (b7 & avx512) != avx512)
        return false;
    if (tier == CPU_TIER_AVX512)
        return true;
    if (!(c7 & bit_AVX512VNNI))
        return false;
    return tier == CPU_TIER_AVX512VNNI ||
           ((d7 & amx) == amx && os_saves(0x600e6) && tiles_permitted());
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

#include <asm/hwcap.h>

bool cpu_tier_have(enum cpu_tier tier) {
    unsigned long caps = getauxval(AT_HWCAP);
    return tier == CPU_TIER_REF || (tier == CPU_TIER_NEON && (caps & HWCAP_ASIMD)) ||
           (tier == CPU_TIER_NEONDOT && (caps & HWCAP_ASIMD) && (caps & HWCAP_ASIMDDP));
}
#else
bool cpu_tier_have(enum cpu_tier tier) {
    return tier == CPU_TIER_REF;
}
#endif

enum cpu_tier cpu_tier_detect(void) {
    int best = CPU_TIER_COUNT - 1;
    while (!cpu_tier_have((enum cpu_tier)best))
        best--;
    return (enum cpu_tier)best;
}

const char *cpu_tier_name(enum cpu_tier tier) {
    static const char *const names[CPU_TIER_COUNT] = {"ref", "avx2", "avx512", "avx512vnni",
                                                      "amx", "neon", "neondot"};
    return tier < CPU_TIER_COUNT ? names[tier] : "auto";
}

const char *cpu_tier_of_bits(const char *tier) {
    return strcmp(tier, "amx") == 0 ? cpu_tier_name(CPU_TIER_AVX512VNNI) : tier;
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
