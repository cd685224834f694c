/* SPDX-License-Identifier: Apache-2.0 */
/* Bits of logits, against a record: every tiny model, as it is and with quantized weights, every
 * kind of cache, every tier this machine has. A change that should not change results must leave
 * every line of bits.txt as it is. One that is meant to change them raises a version and records
 * all lines again: stored pages are named by the versions, and those of the old arithmetic must not
 * be found.
 *
 *   golden_bits [--tier=T] [--models=FOLDER]... [RECORD]
 *
 * compares with RECORD (bits.txt next to this file); without the file, or with --print, it prints
 * the lines. A line is MODEL TIER CACHE ACT_BITS VERSIONS HASH. VERSIONS: KV_ORDER_VERSION,
 * KV_ARITHMETIC_VERSION and MODEL_ARITHMETIC_VERSION, with points. The hash covers the logits of a
 * prompt and of greedy decoding after it. It fails if a hash differs, if a line has other versions
 * than the code, also one that cannot be run here, and if a kind of cache has no line at all. Lines
 * of a tier or model that is missing here are counted. tools/check.sh sees to it that no commit
 * changes a line's hash and leaves its versions.
 *
 * Only the public interface is used, so that the program also builds against older commits
 * (tools/bits.sh).
 */
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <kvasir.h>
#include <xxhash.h>

#ifndef VERSIONS /* tools/bits.sh: those of the commit whose library it links */
#include "model/model.h"
#define TEXT_OF(number) #number
#define TEXT(macro)     TEXT_OF(macro)
#define VERSIONS                                                                                   \
    TEXT(KV_ORDER_VERSION)                                                                         \
    "." TEXT(KV_ARITHMETIC_VERSION) "." TEXT(MODEL_ARITHMETIC_VERSION)
#endif

enum { PROMPT = 160, DECODED = 12, LINES_MAX = 8192, FOLDERS_MAX = 8 };

/* A setting of the cache, and which models are run with it, in the ref tier and in others. Between
 * them K and V have every format. */
enum who { NOBODY, ONE_MODEL, EVERY_MODEL };
struct setting {
    const char *name, *bits, *centre;
    uint32_t exact, rotation;
    enum who ref, others; /* the ref tier is slow */
    const char *groups;   /* NULL: the default */
};
static const struct setting SETTINGS[] = {
    {"f16", "f16", "auto", 0, 0, EVERY_MODEL, EVERY_MODEL, NULL},
    {"8", "8", "auto", 0, 0, ONE_MODEL, EVERY_MODEL, NULL},
    {"8,4", "8,4", "auto", 0, 0, EVERY_MODEL, EVERY_MODEL, NULL},
    {"4", "4", "auto", 0, 0, ONE_MODEL, EVERY_MODEL, NULL},
    {"3,2", "3,2", "auto", 0, 0, ONE_MODEL, EVERY_MODEL, NULL},
    {"8,4-plain", "8,4", "off", 0, 0, ONE_MODEL, EVERY_MODEL, NULL},
    {"4-exact", "4", "auto", 70, 0, ONE_MODEL, EVERY_MODEL, NULL},
    {"6,5-rotation", "6,5", "auto", 0, 100, EVERY_MODEL, EVERY_MODEL, NULL},
    {"bf16-rotation", "bf16", "auto", 0, 100, ONE_MODEL, EVERY_MODEL, NULL},
    {"f32", "f32", "auto", 0, 0, ONE_MODEL, ONE_MODEL, NULL},
    {"2,3", "2,3", "auto", 0, 0, ONE_MODEL, ONE_MODEL, NULL},
    {"5,6-g32", "5,6", "auto", 0, 0, ONE_MODEL, ONE_MODEL, "32"},
    {"r8,4", "r8,4", "off", 0, 0, ONE_MODEL, ONE_MODEL, NULL},
    {"t4", "t4", "off", 0, 0, ONE_MODEL, ONE_MODEL, NULL},
    {"t5,3", "t5,3", "off", 0, 0, ONE_MODEL, ONE_MODEL, NULL},
    {"t3,2", "t3,2", "off", 0, 0, ONE_MODEL, ONE_MODEL, NULL},
    {"t2,5", "t2,5", "off", 0, 0, ONE_MODEL, ONE_MODEL, NULL},
};
enum { N_SETTINGS = sizeof SETTINGS / sizeof *SETTINGS, SETTING_8_4 = 2 };
static const char THE_MODEL[] = "llama"; /* of ONE_MODEL */

/* Weights: as they are, or through kvasir_convert. */
static const struct {
    const char *name;
    uint32_t bits, group;
} WEIGHTS[] = {{"", 0, 0}, {":affine4", 4, 64}, {":affine8", 8, 32}};

/* Besides the tiny models: real ones with GGUF's types, run for a few tokens. */
static const char *const LARGE[] = {"SmolLM2-135M-Instruct.Q4_1.gguf",
                                    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"};

static const char *const TIERS[] = {"ref", "avx2", "avx512", "avx512vnni", "neon", "neondot"};
enum { N_TIERS = sizeof TIERS / sizeof *TIERS };
/* Tiers that have another's bits: its lines are compared with theirs, too. */
static const struct { const char *tier, *of_bits; } SAME_BITS[] = {{"amx", "avx512vnni"}};

static const char *folders[FOLDERS_MAX], *only_tier;
static int n_folders;
static char *lines[LINES_MAX];
static int n_lines;

static void say_line(const char *model, const char *tier, const char *setting, int act,
                     uint64_t hash) {
    char line[256];
    snprintf(line, sizeof line, "%s %s %s %d " VERSIONS " %016llx", model, tier, setting, act,
             (unsigned long long)hash);
    if (n_lines == LINES_MAX) {
        fprintf(stderr, "bits: more than %d lines\n", LINES_MAX);
        exit(1);
    }
    lines[n_lines++] = strdup(line);
}

static void must(kvasir_status status, const kvasir_error *err, const char *what) {
    if (status == KVASIR_OK)
        return;
    fprintf(stderr, "bits: %s: %s\n", what, err->text);
    exit(1);
}

struct hashed {
    XXH64_state_t *state;
    size_t vocab;
};

static bool hash_rows(void *user, size_t first, size_t rows, const float *logits) {
    const struct hashed *h = user;
    (void)first;
    XXH64_update(h->state, logits, rows * h->vocab * sizeof *logits);
    return true;
}

static int32_t largest(const float *logits, size_t vocab) {
    size_t best = 0;
    for (size_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

/* Evaluates n made-up tokens and decodes `decoded` more. */
static uint64_t run(kvasir_context *ctx, size_t vocab, int n, int decoded) {
    kvasir_error err;
    kvasir_seq *seq;
    int32_t tokens[PROMPT];
    uint32_t x = 12345;
    for (int i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((x >> 8) % vocab);
    }
    float *logits = malloc(vocab * sizeof *logits);
    struct hashed h = {XXH64_createState(), vocab};
    kvasir_eval_options eval = {.last_logits = logits, .on_logits = hash_rows, .user = &h};
#ifndef BEFORE_STRUCT_SIZE
    eval.struct_size = sizeof eval;
#endif
    XXH64_reset(h.state, 0);
    must(kvasir_seq_create(ctx, &seq, &err), &err, "sequence");
    must(kvasir_seq_eval(seq, tokens, (size_t)n, &eval, &err), &err, "prompt");
    for (int i = 0; i < decoded; i++) {
        const int32_t token = largest(logits, vocab);
        must(kvasir_seq_eval(seq, &token, 1, &eval, &err), &err, "decoding");
    }
    const uint64_t hash = XXH64_digest(h.state);
    kvasir_seq_destroy(seq);
    XXH64_freeState(h.state);
    free(logits);
    return hash;
}

/* A refusal (of a format, a rotation) is part of the record: hash 0. */
static void run_setting(const kvasir_model *model, const char *name, const char *tier,
                        const char *of_bits, const struct setting *s, int act, int n, int decoded) {
    kvasir_error err;
    kvasir_context *ctx;
    kvasir_model_info info;
    kvasir_model_get_info(model, &info);
    kvasir_context_options o = kvasir_context_defaults();
    o.kv_bits = s->bits;
    o.kv_group_size = s->groups;
    o.key_centre = s->centre;
    o.quantized_kv_start = s->exact;
    o.max_kv_size = s->rotation;
    o.ctx = s->rotation ? 0 : 2048;
    o.prefill_chunk = 100; /* the prompt takes two steps */
    o.cache_bytes = 64 << 20;
    o.cpu_tier = tier;
    o.act_bits = act;
    if (kvasir_context_create(model, &o, &ctx, &err) != KVASIR_OK) {
        say_line(name, of_bits, s->name, act, 0);
        return;
    }
    say_line(name, of_bits, s->name, act, run(ctx, info.vocab, n, decoded));
    kvasir_context_destroy(ctx);
}

static bool have_tier(const kvasir_model *model, const char *tier) {
    kvasir_context *ctx;
    kvasir_context_options o = kvasir_context_defaults();
    o.cpu_tier = tier;
    o.ctx = 64;
    o.cache_bytes = 64 << 20;
    if (kvasir_context_create(model, &o, &ctx, NULL) != KVASIR_OK)
        return false;
    kvasir_context_destroy(ctx);
    return true;
}

static bool runs(const struct setting *s, const char *model, bool plain, bool ref) {
    const enum who who = ref ? s->ref : s->others;
    if (!plain) /* converted ones differ only in matmuls */
        return s == &SETTINGS[SETTING_8_4];
    return who == EVERY_MODEL || (who == ONE_MODEL && strcmp(model, THE_MODEL) == 0);
}

/* plain: weights of bf16, where act_bits changes nothing. of_bits: the tier that lines name. */
static void run_tier(const kvasir_model *model, const char *name, const char *tier,
                     const char *of_bits, bool plain, bool large) {
    if ((only_tier && strcmp(only_tier, tier) != 0) || !have_tier(model, tier))
        return;
    const bool ref = strcmp(tier, TIERS[0]) == 0;
    for (int s = 0; s < N_SETTINGS; s++)
        for (int act = plain ? 16 : 8; act <= 16 && runs(&SETTINGS[s], name, plain, ref); act += 8)
            run_setting(model, name, tier, of_bits, &SETTINGS[s], act, large ? 4 : PROMPT,
                        large ? 2 : DECODED);
}

static void run_model(const char *path, const char *name, bool plain, bool large) {
    kvasir_error err;
    kvasir_model *model;
    if (kvasir_model_open(path, &model, &err) != KVASIR_OK) {
        say_line(name, "-", "refused", 0, 0); /* kvasir_convert's result for some experts */
        return;
    }
    for (int t = 0; t < N_TIERS; t++)
        run_tier(model, name, TIERS[t], TIERS[t], plain, large);
    for (size_t t = 0; t < sizeof SAME_BITS / sizeof *SAME_BITS; t++)
        run_tier(model, name, SAME_BITS[t].tier, SAME_BITS[t].of_bits, plain, large);
    kvasir_model_close(model);
}

static void remove_folder(const char *path) {
    char file[1024];
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (e->d_name[0] != '.') {
            snprintf(file, sizeof file, "%s/%s", path, e->d_name);
            (void)unlink(file);
        }
    if (dir)
        closedir(dir);
    (void)rmdir(path);
}

static void run_tiny(const char *path, const char *name) {
    char label[128], made[64] = "/tmp/kvasir-bits-XXXXXX", converted[96];
    run_model(path, name, true, false);
    if (!mkdtemp(made)) {
        perror("bits");
        exit(1);
    }
    snprintf(converted, sizeof converted, "%s/model", made);
    for (size_t w = 1; w < sizeof WEIGHTS / sizeof *WEIGHTS; w++) {
        kvasir_error err;
        kvasir_convert_options o = kvasir_convert_defaults();
        o.bits = WEIGHTS[w].bits;
        o.group_size = WEIGHTS[w].group;
        must(kvasir_convert(path, converted, &o, &err), &err, path);
        snprintf(label, sizeof label, "%s%s", name, WEIGHTS[w].name);
        run_model(converted, label, false, false);
        remove_folder(converted);
    }
    remove_folder(made);
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void run_folder(const char *folder) {
    char path[1024];
    char *names[256];
    int n = 0;
    struct stat st;
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && n < 256 && (e = readdir(dir));)
        if (e->d_name[0] != '.')
            names[n++] = strdup(e->d_name);
    if (dir)
        closedir(dir);
    qsort(names, (size_t)n, sizeof *names, by_name);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s/model.safetensors", folder, names[i]);
        if (stat(path, &st) == 0) {
            snprintf(path, sizeof path, "%s/%s", folder, names[i]);
            run_tiny(path, names[i]);
        }
        for (size_t l = 0; l < sizeof LARGE / sizeof *LARGE; l++) {
            snprintf(path, sizeof path, "%s/%s", folder, names[i]);
            if (strcmp(names[i], LARGE[l]) == 0)
                run_model(path, LARGE[l], false, true);
        }
        free(names[i]);
    }
}

/* ---- the record ------------------------------------------------------------------------------ */

static struct {
    int same, other, stale, absent;
    bool has[N_TIERS][N_SETTINGS];
} found;

static void note_setting(const char *tier, const char *setting) {
    for (int t = 0; t < N_TIERS; t++)
        for (int s = 0; s < N_SETTINGS; s++)
            if (strcmp(tier, TIERS[t]) == 0 && strcmp(setting, SETTINGS[s].name) == 0)
                found.has[t][s] = true;
}

/* False: not a line of a record. */
static bool compare_line(const char *line) {
    char model[128], tier[32], setting[32], act[8], versions[32], hash[32], key[256];
    if (sscanf(line, "%127s %31s %31s %7s %31s %31s", model, tier, setting, act, versions, hash) !=
        6)
        return false;
    note_setting(tier, setting);
    if (strcmp(versions, VERSIONS) != 0) {
        found.stale++;
        return true;
    }
    snprintf(key, sizeof key, "%s %s %s %s ", model, tier, setting, act);
    bool here = false;
    for (int i = 0; i < n_lines; i++) { /* of tiers with the same bits there are several */
        if (strncmp(lines[i], key, strlen(key)) != 0)
            continue;
        const char *ours = strrchr(lines[i], ' ') + 1;
        here = true;
        found.same += strcmp(ours, hash) == 0;
        found.other += strcmp(ours, hash) != 0;
        if (strcmp(ours, hash) != 0)
            printf("recorded %s%s %s\nhere     %s%s %s\n", key, versions, hash, key, VERSIONS,
                   ours);
    }
    found.absent += !here;
    return true;
}

/* Prints which tiers lack which settings; returns how many settings have no line in any tier. */
static int list_holes(void) {
    int nowhere = 0;
    for (int t = 0; t < N_TIERS; t++) {
        int n = 0;
        for (int s = 0; s < N_SETTINGS; s++)
            n += found.has[t][s];
        if (n == 0 || n == N_SETTINGS) {
            if (n == 0)
                printf("bits: no line of tier %s\n", TIERS[t]);
            continue;
        }
        printf("bits: tier %s has no line with cache", TIERS[t]);
        for (int s = 0; s < N_SETTINGS; s++)
            if (!found.has[t][s])
                printf(" %s", SETTINGS[s].name);
        puts("");
    }
    for (int s = 0; s < N_SETTINGS; s++) {
        bool somewhere = false;
        for (int t = 0; t < N_TIERS; t++)
            somewhere |= found.has[t][s];
        nowhere += !somewhere;
    }
    return nowhere;
}

static int compare(FILE *record) {
    char line[256];
    while (fgets(line, sizeof line, record)) {
        line[strcspn(line, "\n")] = 0;
        if (*line && *line != '#' && !compare_line(line)) {
            printf("bits: not MODEL TIER CACHE ACT_BITS VERSIONS HASH: %s\n", line);
            return 1;
        }
    }
    const int nowhere = list_holes();
    printf("bits: %d lines as recorded, %d differ, %d of other versions, %d not run here (tier or "
           "model missing), %d not recorded\n",
           found.same, found.other, found.stale, found.absent,
           found.stale ? 0 : n_lines - found.same - found.other);
    if (found.other)
        puts("bits: results have changed and the versions (" VERSIONS ") have not: pages that an "
             "earlier build stored would be taken for this one's. Undo the change, or raise "
             "KV_ARITHMETIC_VERSION (quant/quant.h: what pages hold of the same rows) or "
             "MODEL_ARITHMETIC_VERSION (model/model.h: the rows), then record again with "
             "tools/bits.sh");
    if (found.stale)
        puts("bits: the versions are " VERSIONS ", lines have others: record them again with "
             "tools/bits.sh, those of tiers that this machine lacks on one that has them");
    if (nowhere)
        printf("bits: %d kinds of cache have no line: record some with tools/bits.sh\n", nowhere);
    return found.other > 0 || found.stale > 0 || found.same == 0 || (nowhere > 0 && !only_tier);
}

int main(int argc, char **argv) {
    const char *record = NULL;
    bool print = false;
    for (int i = 1; i < argc; i++)
        if (strncmp(argv[i], "--models=", 9) == 0 && n_folders < FOLDERS_MAX)
            folders[n_folders++] = argv[i] + 9;
        else if (strncmp(argv[i], "--tier=", 7) == 0)
            only_tier = argv[i] + 7;
        else if (strcmp(argv[i], "--print") == 0)
            print = true;
        else
            record = argv[i];
#ifdef SHARED_DIR
    if (n_folders == 0) {
        folders[n_folders++] = SHARED_DIR "/fixtures/tiny";
        folders[n_folders++] = SOURCE_DIR "/tests/golden";
        folders[n_folders++] = MODELS_DIR;
    }
    if (!record)
        record = SOURCE_DIR "/tests/golden/bits.txt";
#endif
    for (int i = 0; i < n_folders; i++)
        run_folder(folders[i]);
    if (print || !record)
        for (int i = 0; i < n_lines; i++)
            puts(lines[i]);
    FILE *file = print || !record ? NULL : fopen(record, "r");
    if (print || !record)
        return 0;
    if (!file) {
        fprintf(stderr, "bits: %s: no such record\n", record);
        return 1;
    }
    const int code = compare(file);
    fclose(file);
    return code;
}
