/* SPDX-License-Identifier: Apache-2.0 */
/* opcheck's main: which devices, what is run and with which seed. The seed is fixed, so that a run
 * on a lent machine can be repeated on the next one; --seed tries other data.
 *
 * Devices are the CPU backend in every tier that this machine has and, in builds with KVASIR_CUDA,
 * CUDA. Builds with KVASIR_REF_ONLY (tools/opcheck.sh) have the ref tier alone and check CUDA.
 *
 * Exit 0 when every family holds, 1 when one does not, when nothing was checked or a device is
 * missing, 2 on a wrong option. --bench checks nothing and exits 0.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opcheck.h"

bool quick;

static const char USAGE[] =
    "usage: opcheck [--seed=N] [--device=NAME] [--filter=TEXT] [--quick] [--step]\n"
    "               [--part=I/N] [--bench[=PART]]\n"
    "  --seed=N        other data than the fixed seed's; printed always\n"
    "  --device=NAME   only this one: a tier of the CPU, cpu for all of them, or cuda\n"
    "  --filter=TEXT   only families whose line holds TEXT, as \"attention\" or \"8/4\"; of times\n"
    "                  of decode those of \"FORMATS, BATCH x CONTEXT, HEADS heads, D DIMS\"\n"
    "  --part=I/N      of every N of these only number I, from 0 on: N processes share the work\n"
    "  --quick         fewer and smaller cases: under compute-sanitizer\n"
    "  --step          only steps as graphs (cuda)\n"
    "  --bench[=PART]  times instead of checks (cuda); PART is decode, prefill, encode, product, "
    "step\n"
    "                  or all (default)\n";

static const char *const PARTS[] = {"all", "decode", "prefill", "encode", "matmul", "step"};

struct options {
    uint64_t seed;
    const char *bench;  /* a part; NULL: checks */
    const char *device; /* a name; NULL: all */
    bool step;
};
static struct options options = {.seed = 20261121};

bool bench_wants(const char *part) {
    return options.bench && (strcmp(options.bench, "all") == 0 || strcmp(options.bench, part) == 0);
}

static void wrong_option(const char *what, const char *value) {
    fprintf(stderr, "opcheck: %s \"%s\"\n%s", what, value, USAGE);
    exit(2);
}

static const char *value_of(const char *arg, const char *name) {
    size_t n = strlen(name);
    return strncmp(arg, name, n) == 0 ? arg + n : NULL;
}

static void bench_option(const char *part) {
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++)
        if (strcmp(part, PARTS[i]) == 0) {
            options.bench = PARTS[i];
            return;
        }
    wrong_option("--bench has no part", part);
}

static void seed_option(const char *text) {
    char *end;
    options.seed = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end)
        wrong_option("not a seed:", text);
}

static void part_option(const char *text) {
    unsigned i, n;
    char more;
    if (sscanf(text, "%u/%u%c", &i, &n, &more) != 2 || i >= n)
        wrong_option("not a part:", text);
    set_part(i, n);
}

static void read_options(int argc, char **argv) {
    const char *v;
    for (int i = 1; i < argc; i++) {
        if ((v = value_of(argv[i], "--seed=")))
            seed_option(v);
        else if ((v = value_of(argv[i], "--filter=")))
            set_filter(v);
        else if ((v = value_of(argv[i], "--part=")))
            part_option(v);
        else if ((v = value_of(argv[i], "--device=")))
            options.device = v;
        else if (strcmp(argv[i], "--quick") == 0)
            quick = true;
        else if (strcmp(argv[i], "--step") == 0)
            options.step = true;
        else if (strcmp(argv[i], "--bench") == 0)
            bench_option("all");
        else if ((v = value_of(argv[i], "--bench=")))
            bench_option(v);
        else if (strcmp(argv[i], "--help") == 0) {
            fputs(USAGE, stdout);
            exit(0);
        } else
            wrong_option("no option is called", argv[i]);
    }
    if (options.step && options.bench)
        wrong_option("--step is of the checks; with --bench say", "--bench=step");
}

/* ---- devices --------------------------------------------------------------------------------- */

/* Several threads, so that they meet; the reference has one. */
enum { THREADS = 3, DEVICES_MAX = CPU_TIER_COUNT + 1 };

static struct device_choice devices[DEVICES_MAX];
static size_t device_count;

static void device_add(const struct device_choice *d) {
    const bool wanted = !options.device || strcmp(options.device, d->name) == 0 ||
                        (!d->cuda && strcmp(options.device, "cpu") == 0);
    ASSERT(device_count < DEVICES_MAX);
    if (wanted)
        devices[device_count++] = *d;
}

static void find_devices(void) {
#ifndef KVASIR_REF_ONLY
    for (int t = 0; t < CPU_TIER_COUNT; t++) {
        const enum cpu_tier tier = (enum cpu_tier)t;
        /* the ref tier on several threads must have the very bits of the reference */
        const double exact = tier == CPU_TIER_REF ? 0 : 1;
        if (cpu_tier_have(tier))
            device_add(&(struct device_choice){.name = cpu_tier_name(tier),
                                               .tier = tier,
                                               .threads = THREADS,
                                               .rows_near = exact * 2e-5,
                                               .weights_near = exact * 1e-3,
                                               .pages_near = exact * 2e-3});
    }
#endif
#ifdef KVASIR_CUDA
    device_add(&(struct device_choice){.name = "cuda",
                                       .cuda = true,
                                       .rows_near = 2e-5,
                                       .weights_near = 1e-2,
                                       .halves_near = 1e-3,
                                       .pages_near = 3e-2});
#endif
}

/* ---- what is run ----------------------------------------------------------------------------- */

static void run_checks(void) {
    if (!options.step) {
        check_rows();
        check_pick();
        check_pages();
        check_encode();
        check_whole();
    }
#ifdef KVASIR_CUDA
    if (choice->cuda && !options.step) {
        check_cuda_attention();
        check_cuda_product();
    }
    if (choice->cuda) {
        check_cuda_step();
        check_cuda_states();
    }
#endif
}

static void run_benches(void) {
#ifdef KVASIR_CUDA
    if (!choice->cuda)
        return;
    bench();
    if (bench_wants("step"))
        bench_step();
#endif
}

int main(int argc, char **argv) {
    read_options(argc, argv);
    find_devices();
    printf("opcheck: seed %llu%s\n", (unsigned long long)options.seed, quick ? ", quick" : "");
    set_seed(options.seed);
    for (size_t i = 0; i < device_count; i++) {
        device_choose(&devices[i]);
        if (options.bench)
            run_benches();
        else
            run_checks();
        device_must_work();
    }
    device_end();
    if (options.bench)
        return 0;
    if (families_kept() == 0)
        give_up("nothing was checked: no such device, or no family's line holds --filter's text");
    printf("opcheck: %d of %d families failed%s\n", families_failed(), families_checked(),
           families_failed() > 0 ? "" : ", all hold");
    if (families_failed() > 0)
        printf("opcheck: repeat with --seed=%llu\n", (unsigned long long)options.seed);
    return families_failed() > 0;
}
