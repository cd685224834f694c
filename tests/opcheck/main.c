/* SPDX-License-Identifier: Apache-2.0 */
/* opcheck's main: the device, what is run and with which seed. The seed is fixed, so that a run on
 * a lent machine can be repeated on the next one; --seed tries other data.
 *
 * Exit 0 when every family holds, 1 when one does not, when nothing was checked or there is no
 * device, 2 on a wrong option. --bench checks nothing and exits 0.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opcheck.h"

struct cuda_backend *device;
bool quick;

static const char USAGE[] =
    "usage: opcheck [--seed=N] [--filter=TEXT] [--quick] [--step] [--bench[=PART]]\n"
    "  --seed=N        other data than the fixed seed's; printed always\n"
    "  --filter=TEXT   only families whose line holds TEXT, as \"attention\" or \"8/4\"; of times\n"
    "                  of decode those of \"FORMATS, BATCH x CONTEXT, HEADS heads, D DIMS\"\n"
    "  --quick         fewer and smaller cases: under compute-sanitizer\n"
    "  --step          only steps as graphs\n"
    "  --bench[=PART]  times instead of checks; PART is decode, prefill, encode, product, step\n"
    "                  or all (default)\n";

static const char *const PARTS[] = {"all", "decode", "prefill", "encode", "product", "step"};

struct options {
    uint64_t seed;
    const char *bench; /* a part; NULL: checks */
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

static void read_options(int argc, char **argv) {
    const char *v;
    for (int i = 1; i < argc; i++) {
        if ((v = value_of(argv[i], "--seed=")))
            seed_option(v);
        else if ((v = value_of(argv[i], "--filter=")))
            set_filter(v);
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

static void run_benches(void) {
    bench();
    if (bench_wants("step"))
        bench_step();
}

static void run_checks(void) {
    if (!options.step) {
        check_encode();
        check_attention();
        check_product();
    }
    check_step();
}

int main(int argc, char **argv) {
    kvasir_error err = {0};
    read_options(argc, argv);
    if (cuda_create(&device, &err) != KVASIR_OK)
        give_up("%s", err.text);
    printf("opcheck: seed %llu, %s%s\n", (unsigned long long)options.seed, cuda_name(device),
           quick ? ", quick" : "");
    fflush(stdout);
    set_seed(options.seed);
    if (options.bench)
        run_benches();
    else
        run_checks();
    bool works = cuda_status(device, &err) == KVASIR_OK;
    cuda_destroy(device);
    if (!works)
        give_up("the device: %s", err.text);
    if (options.bench)
        return 0;
    if (families_checked() == 0)
        give_up("nothing was checked: no family's line holds --filter's text");
    printf("opcheck: %d of %d families failed%s\n", families_failed(), families_checked(),
           families_failed() > 0 ? "" : ", all hold");
    if (families_failed() > 0)
        printf("opcheck: repeat with --seed=%llu\n", (unsigned long long)options.seed);
    return families_failed() > 0;
}
