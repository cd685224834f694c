/* SPDX-License-Identifier: Apache-2.0 */
/* Every prompt-cache file of ../shared/fixtures/mlx/prompt-cache, written by mlx-lm, loaded into
 * the model it was made with: the query and the ids after it are fed one by one, and the five
 * largest logits of each step compared with mlx-lm's (float32_first, float32_forced), within twice
 * the tolerances that the fixtures' README measured between two implementations. Then the sequence
 * is saved in both forms, loaded again, and must go on with the same bits.
 *
 * And files of ours with 500 cuts and 500 flipped bits.
 *
 *     golden_prompt_cache [DIR]     keeps saved files of the newer form in DIR, for saved_caches.py
 *
 * act_bits 16. The tiny models need nothing else; smollm2 is skipped where models/ lacks its
 * folder.
 */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <kvasir.h>

#include "forms.h"
#include "model_files.h"
#include "tensors.h"

#include <cmocka.h>

#define FIXTURES SHARED_DIR "/fixtures/mlx/prompt-cache/"
#define SMOLLM2  MODELS_DIR "/SmolLM2-135M-Instruct-mlx"

static struct temp_folder folder;
static const char *keep; /* where saved files stay, for mlx-lm (tests/interop); NULL */
static int failed;

struct one_case {
    const json_t *line;
    const char *file;
    kvasir_model *model;
    kvasir_context *ctx;
    kvasir_prompt_cache *cache;
    float *logits;
    uint32_t vocab;
};

/* ---- what may differ ------------------------------------------------------------------------- */

/* Twice the README's table: first query token alone, after the query, after 12 more. */
struct tolerance {
    double first, query, later;
};

static struct tolerance tolerance_of(const char *file) {
    const char *name = strrchr(file, '/') + 1, *q = strstr(name, "q");
    int bits = q && q[1] >= '2' && q[1] <= '8' ? q[1] - '0' : 16;
    bool smollm2 = strstr(file, "smollm2") != NULL;
    if (bits == 16)
        return (struct tolerance){2 * 0.003, 2 * 0.003, 2 * 0.018};
    if (!smollm2)
        return (struct tolerance){2 * 0.004, 2 * (bits == 8 ? 0.008 : 0.063), 2 * 0.063};
    if (bits == 8)
        return (struct tolerance){2 * 0.067, 2 * 0.067, 2 * 0.15};
    return (struct tolerance){2 * 0.72, 2 * 1.2, 2 * 2.8};
}

static double worst_of(const struct one_case *c, const json_t *top) {
    double worst = 0;
    size_t at;
    json_t *pair;
    json_array_foreach((json_t *)top, at, pair) {
        json_int_t id = json_integer_value(json_array_get(pair, 0));
        double golden = json_number_value(json_array_get(pair, 1));
        worst = fmax(worst, fabs((double)c->logits[id] - golden));
    }
    return worst;
}

/* ---- running --------------------------------------------------------------------------------- */

static void feed(struct one_case *c, kvasir_seq *seq, const int32_t *ids, size_t n) {
    kvasir_error err;
    kvasir_eval_options last = {.struct_size = sizeof(kvasir_eval_options),
                                .last_logits = c->logits};
    if (n && kvasir_seq_eval(seq, ids, n, &last, &err) != KVASIR_OK)
        fail_msg("%s: %s", c->file, err.text);
}

static size_t read_ids(const json_t *list, int32_t *ids, size_t cap) {
    size_t n = json_array_size(list);
    assert_true(n <= cap);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return n;
}

static kvasir_seq *load(struct one_case *c, kvasir_prompt_cache *cache) {
    kvasir_error err;
    kvasir_seq *seq;
    if (kvasir_seq_load(c->ctx, cache, false, &seq, &err) != KVASIR_OK)
        fail_msg("%s: %s", c->file, err.text);
    return seq;
}

static void check_logits(struct one_case *c) {
    int32_t query[64], then[64];
    size_t n = read_ids(json_object_get(c->line, "query_ids"), query, 64);
    const json_t *forced = json_object_get(c->line, "float32_forced");
    const json_t *tops = json_object_get(forced, "top5");
    size_t m = read_ids(json_object_get(forced, "then"), then, 64);
    struct tolerance t = tolerance_of(c->file);
    kvasir_seq *seq = load(c, c->cache);
    feed(c, seq, query, 1);
    double first =
        worst_of(c, json_object_get(json_object_get(c->line, "float32_first"), "top5")
                        ? json_object_get(json_object_get(c->line, "float32_first"), "top5")
                        : json_object_get(c->line, "float32_first"));
    feed(c, seq, query + 1, n - 1);
    double after = worst_of(c, json_array_get(tops, 0)), later = 0;
    for (size_t i = 0; i < m; i++) {
        feed(c, seq, then + i, 1);
        later = fmax(later, worst_of(c, json_array_get(tops, i + 1)));
    }
    kvasir_seq_destroy(seq);
    printf("%-52s first %.4f of %.4f, query %.4f of %.4f, later %.4f of %.4f\n", c->file, first,
           t.first, after, t.query, later, t.later);
    failed += !(first <= t.first && after <= t.query && later <= t.later);
}

/* Saved, loaded, and fed the same: the same bits. */
static void check_saved(struct one_case *c, bool legacy) {
    int32_t query[64];
    kvasir_error err;
    kvasir_prompt_cache *again;
    size_t n = read_ids(json_object_get(c->line, "query_ids"), query, 64);
    char path[512];
    float *want = malloc(c->vocab * sizeof *want);
    if (keep && !legacy) {
        int at = snprintf(path, sizeof path, "%s/", keep);
        snprintf(path + at, sizeof path - (size_t)at, "%s", c->file);
        for (char *s = path + at; *s; s++)
            *s = *s == '/' ? '_' : *s;
    } else {
        snprintf(path, sizeof path, "%s/saved.safetensors", folder.path);
    }
    kvasir_seq *seq = load(c, c->cache);
    if (kvasir_seq_save(seq, path, legacy, &err) != KVASIR_OK)
        fail_msg("%s: %s", c->file, err.text);
    feed(c, seq, query, n);
    memcpy(want, c->logits, c->vocab * sizeof *want);
    kvasir_seq_destroy(seq);
    if (kvasir_prompt_cache_open(c->model, path, &again, &err) != KVASIR_OK)
        fail_msg("%s: %s", c->file, err.text);
    seq = load(c, again);
    feed(c, seq, query, n);
    assert_memory_equal(want, c->logits, c->vocab * sizeof *want);
    kvasir_seq_destroy(seq);
    kvasir_prompt_cache_close(again);
    free(want);
}

static kvasir_model *models[8];
static char model_names[8][32];

/* When mlx-lm reads tiny-qwen3_next, it adds the 1 to gains in bfloat16, which moves logits by 0.5.
 * The fixtures were made that way, and a folder that mlx-lm wrote would hold such gains. */
static void write_mlx_qwen3_next(char *path, size_t size) {
    struct form f;
    snprintf(path, size, SHARED_DIR "/fixtures/tiny/qwen3_next");
    form_read(&f, path);
    form_turn_convolutions(&f);
    form_gains_whole(&f, true);
    snprintf(path, size, "%s/qwen3_next", folder.path);
    assert_int_equal(mkdir(path, 0777), 0);
    form_write(&f, path);
    form_free(&f);
}

static kvasir_model *open_model(const char *name) {
    char path[512];
    kvasir_error err;
    int i = 0;
    for (; model_names[i][0]; i++)
        if (strcmp(model_names[i], name) == 0)
            return models[i];
    if (strcmp(name, "smollm2") == 0)
        snprintf(path, sizeof path, "%s", SMOLLM2);
    else if (strcmp(name, "tiny-qwen3_next") == 0)
        write_mlx_qwen3_next(path, sizeof path);
    else
        snprintf(path, sizeof path, SHARED_DIR "/fixtures/tiny/%s", name + strlen("tiny-"));
    if (access(path, R_OK) != 0)
        return NULL;
    if (kvasir_model_open(path, &models[i], &err) != KVASIR_OK)
        fail_msg("%s", err.text);
    snprintf(model_names[i], sizeof model_names[i], "%s", name);
    return models[i];
}

static void check_case(const json_t *line) {
    struct one_case c = {.line = line};
    kvasir_error err;
    kvasir_model_info info;
    char path[512];
    c.file = json_string_value(json_object_get(line, "file"));
    c.model = open_model(json_string_value(json_object_get(line, "model")));
    if (!c.model) {
        printf("%-52s skipped: %s is missing (make models)\n", c.file, SMOLLM2);
        return;
    }
    kvasir_model_get_info(c.model, &info);
    c.vocab = info.vocab;
    c.logits = malloc(c.vocab * sizeof *c.logits);
    snprintf(path, sizeof path, FIXTURES "%s", c.file);
    if (kvasir_prompt_cache_open(c.model, path, &c.cache, &err) != KVASIR_OK)
        fail_msg("%s: %s", c.file, err.text);
    kvasir_context_options o = kvasir_context_defaults();
    o.like = c.cache;
    o.act_bits = 16;
    o.ctx = 1024;
    o.cache_bytes = 256 << 20;
    if (kvasir_context_create(c.model, &o, &c.ctx, &err) != KVASIR_OK)
        fail_msg("%s: %s", c.file, err.text);
    check_logits(&c);
    check_saved(&c, false);
    check_saved(&c, true);
    kvasir_context_destroy(c.ctx);
    kvasir_prompt_cache_close(c.cache);
    free(c.logits);
}

static void check_form(const char *form) {
    failed = 0;
    char path[512], *text = NULL;
    size_t cap = 0;
    snprintf(path, sizeof path, FIXTURES "%s/expected.jsonl", form);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (getline(&text, &cap, f) > 0) {
        json_t *line = json_loads(text, 0, NULL);
        assert_non_null(line);
        check_case(line);
        json_decref(line);
    }
    free(text);
    fclose(f);
    assert_int_equal(failed, 0);
}

static void test_newer(void **state) {
    (void)state;
    check_form("mlx-lm-0.32.2");
}

static void test_legacy(void **state) {
    (void)state;
    check_form("legacy-0.31.3");
}

/* ---- damage ---------------------------------------------------------------------------------- */

enum { DAMAGES = 500, TOKENS = 70 };

/* Opens and loads the file, if that works, and feeds it a token: the logits must be `want`. */
static bool serves(struct one_case *c, const char *path, const float *want) {
    kvasir_error err = {0};
    kvasir_prompt_cache *cache;
    kvasir_seq *seq;
    int32_t id = 7;
    if (kvasir_prompt_cache_open(c->model, path, &cache, &err) != KVASIR_OK) {
        assert_true(err.text[0] != 0);
        return false;
    }
    kvasir_status status = kvasir_seq_load(c->ctx, cache, false, &seq, &err);
    if (status == KVASIR_OK) {
        feed(c, seq, &id, 1);
        assert_memory_equal(want, c->logits, c->vocab * sizeof *want);
        kvasir_seq_destroy(seq);
    }
    kvasir_prompt_cache_close(cache);
    return status == KVASIR_OK;
}

static void damage(struct one_case *c, const char *path, const float *want) {
    char damaged[192];
    snprintf(damaged, sizeof damaged, "%s/damaged.safetensors", folder.path);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    size_t size = (size_t)ftell(f), served = 0;
    uint8_t *bytes = malloc(size);
    rewind(f);
    assert_int_equal(fread(bytes, 1, size, f), size);
    fclose(f);
    for (uint64_t i = 0; i < 2 * DAMAGES; i++) {
        size_t at = (size_t)(i * 0x9e3779b97f4a7c15u >> 20) % size;
        if (i % 4 == 1) /* half of the flips among the header's bytes */
            at %= 2048;
        bool cut = i % 2 == 0;
        uint8_t was = bytes[at];
        bytes[at] ^= cut ? 0 : (uint8_t)(1u << i / 2 % 8);
        f = fopen(damaged, "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(bytes, 1, cut ? at : size, f), cut ? at : size);
        fclose(f);
        served += serves(c, damaged, want);
        bytes[at] = was;
    }
    printf("%d cuts, %d flips: %zu served, as if nothing had been\n", DAMAGES, DAMAGES, served);
    free(bytes);
}

/* A file of ours, cut and with flipped bits: refused, or served as it was; another sequence of the
 * context keeps its bits. */
static void test_damage(void **state) {
    static const char *const formats[] = {"8", "4,8"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct one_case c = {.file = "damaged", .model = open_model("tiny-qwen3"), .vocab = 512};
        kvasir_error err;
        kvasir_seq *live, *fork;
        int32_t ids[TOKENS], id = 7;
        char path[192];
        float *want = malloc(c.vocab * sizeof *want);
        c.logits = malloc(c.vocab * sizeof *c.logits);
        kvasir_context_options o = kvasir_context_defaults();
        o.kv_bits = formats[i];
        o.key_centre = "off";
        o.ctx = 256;
        o.cache_bytes = 16 << 20;
        assert_int_equal(kvasir_context_create(c.model, &o, &c.ctx, &err), KVASIR_OK);
        assert_int_equal(kvasir_seq_create(c.ctx, &live, &err), KVASIR_OK);
        for (int t = 0; t < TOKENS; t++)
            ids[t] = t * 37 % 512;
        feed(&c, live, ids, TOKENS);
        snprintf(path, sizeof path, "%s/whole.safetensors", folder.path);
        assert_int_equal(kvasir_seq_save(live, path, false, &err), KVASIR_OK);
        assert_int_equal(kvasir_seq_fork(live, &fork, &err), KVASIR_OK);
        feed(&c, fork, &id, 1);
        memcpy(want, c.logits, c.vocab * sizeof *want);
        kvasir_seq_destroy(fork);
        assert_true(serves(&c, path, want));
        damage(&c, path, want);
        feed(&c, live, &id, 1);
        assert_memory_equal(want, c.logits, c.vocab * sizeof *want);
        kvasir_seq_destroy(live);
        kvasir_context_destroy(c.ctx);
        free(c.logits);
        free(want);
    }
}

int main(int argc, char **argv) {
    skip_without(FIXTURES "README.md");
    keep = argc == 2 ? argv[1] : NULL;
    temp_folder_make(&folder);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_newer), cmocka_unit_test(test_legacy),
                                       cmocka_unit_test(test_damage)};
    int broken = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; models[i]; i++)
        kvasir_model_close(models[i]);
    temp_folder_remove(&folder);
    return broken;
}
