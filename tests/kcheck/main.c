/* SPDX-License-Identifier: Apache-2.0 */
/* kcheck's main: which tiers are run, with which seed. Exit 0 if every family of every tier holds,
 * 1 if one does not or a required tier is missing, 2 on a wrong option or if the options leave
 * nothing to check.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kcheck.h"

struct kernels ref;

static const char USAGE[] =
    "usage: kcheck [--tier=T] [--require=T] [--seed=N] [--filter=TEXT] [--hash] [--bench]\n"
    "  --tier=T       only this tier\n"
    "  --require=T    fail when this machine does not have tier T\n"
    "  --seed=N       the seed to repeat a run; printed always\n"
    "  --filter=TEXT  only families whose line holds TEXT, as \"score\" or \"4 bits\"\n"
    "  --hash         a hash of what each family's kernel wrote, to compare two builds (with "
    "--seed)\n"
    "  --bench        speeds instead of checks: GB/s and the ratio to ref\n";

static enum cpu_tier tier_of(const char *name) {
    for (int t = 0; t < CPU_TIER_COUNT; t++)
        if (strcmp(cpu_tier_name((enum cpu_tier)t), name) == 0)
            return (enum cpu_tier)t;
    fprintf(stderr, "kcheck: no tier is called \"%s\"\n%s", name, USAGE);
    exit(2);
}

struct options {
    enum cpu_tier only, required;
    uint64_t seed;
    bool bench;
};

static const char *value_of(const char *arg, const char *name) {
    size_t n = strlen(name);
    return strncmp(arg, name, n) == 0 ? arg + n : NULL;
}

static void read_options(struct options *o, int argc, char **argv) {
    const char *v;
    for (int i = 1; i < argc; i++) {
        if ((v = value_of(argv[i], "--tier=")))
            o->only = tier_of(v);
        else if ((v = value_of(argv[i], "--require=")))
            o->required = tier_of(v);
        else if ((v = value_of(argv[i], "--seed=")) && *v)
            o->seed = strtoull(v, NULL, 10);
        else if ((v = value_of(argv[i], "--filter=")))
            set_filter(v);
        else if (strcmp(argv[i], "--hash") == 0)
            set_print_hashes();
        else if (strcmp(argv[i], "--bench") == 0)
            o->bench = true;
        else {
            bool help = strcmp(argv[i], "--help") == 0;
            fputs(USAGE, help ? stdout : stderr);
            exit(help ? 0 : 2);
        }
    }
}

int main(int argc, char **argv) {
    struct options o = {CPU_TIER_COUNT, CPU_TIER_REF,
                        (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid(), false};
    read_options(&o, argc, argv);
    if (o.required != CPU_TIER_REF && o.only != CPU_TIER_COUNT && o.only != o.required) {
        fprintf(stderr, "kcheck: --tier leaves the required tier out\n");
        return 2;
    }
    enum cpu_tier best = cpu_tier_detect();
    printf("kcheck: seed %llu, %s, best tier %s\n", (unsigned long long)o.seed, cpu_model_name(),
           cpu_tier_name(best));
    if (!cpu_tier_have(o.required)) {
        printf("kcheck: this machine lacks the required tier %s\n", cpu_tier_name(o.required));
        return 1;
    }
    if (o.only != CPU_TIER_COUNT && !cpu_tier_have(o.only)) {
        printf("kcheck: this machine lacks tier %s\n", cpu_tier_name(o.only));
        return 1;
    }
    kernels_init_ref(&ref);
    set_seed(o.seed);
    for (int i = 0; i < CPU_TIER_COUNT; i++) {
        struct tier t = {.name = cpu_tier_name((enum cpu_tier)i)};
        if (o.only != CPU_TIER_COUNT && o.only != (enum cpu_tier)i)
            continue;
        if (!cpu_tier_have((enum cpu_tier)i)) {
            printf("%-10s left out: this machine lacks it\n", t.name);
            continue;
        }
        kernels_select(&t.k, (enum cpu_tier)i);
        struct kernels same;
        const char *of_bits = cpu_tier_of_bits(t.name);
        if (strcmp(of_bits, t.name) != 0) {
            kernels_select(&same, tier_of(of_bits));
            t.same = &same;
        }
        struct kernels avx2;
        t.same_channels = t.same;
        if (i == CPU_TIER_AVX512 || i == CPU_TIER_AVX512VNNI || i == CPU_TIER_AMX) {
            kernels_select(&avx2, CPU_TIER_AVX2);
            t.same_channels = &avx2;
        }
        if (o.bench) {
            bench_tier(&t);
            continue;
        }
        catch_signals();
        check_encode(&t);
        check_tiles(&t);
        check_attention(&t);
        check_scores(&t);
        check_product(&t);
        check_elementwise(&t);
        check_recurrent(&t);
    }
    if (!o.bench && families_checked() == 0) {
        fprintf(stderr, "kcheck: no family's line holds --filter's text\n");
        return 2;
    }
    if (families_failed() > 0)
        printf("kcheck: %d families failed; repeat with --seed=%llu\n", families_failed(),
               (unsigned long long)o.seed);
    return families_failed() > 0;
}
