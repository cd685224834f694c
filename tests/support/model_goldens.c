/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#include <kvasir.h>

#include "lab/lab.h"
#include "model_goldens.h"
#include "tensors.h"

#include <cmocka.h>

static const struct model_goldens *goldens;
static kvasir_model *model;
static uint32_t vocab;

static bool in_soak(void) {
    return getenv("KVASIR_SOAK") != NULL;
}

static void need(kvasir_status status, const kvasir_error *err) {
    if (status != KVASIR_OK)
        fail_msg("%s", err->text);
}

/* ---- losses ---------------------------------------------------------------------------------- */

struct run {
    const struct golden_setting *s;
    kvasir_context *ctx;
    const float *golden_nll;
    double nll_sum, golden_sum, kl_sum, golden_kl, off_sum, worst;
    double spread_sum, spread_worst; /* distance of the exact golden from this one */
    size_t off_by_1e3, tokens;
};

static struct run runs[GOLDEN_SETTINGS_MAX]; /* [0]: exact */

struct step {
    struct run *run;
    const int32_t *ids; /* the window's */
    size_t length;      /* the window's */
    size_t at;          /* the step's first position */
    size_t first;       /* index of the window's first prediction */
    float *exact;       /* [STEP_TOKENS][vocab] logits of the exact run, which comes first */
};

static bool take_rows(void *user, size_t first, size_t rows, const float *logits) {
    struct step *w = user;
    struct run *s = w->run;
    for (size_t r = 0; r < rows && w->at + first + r + 1 < w->length; r++) {
        const size_t pos = w->at + first + r;
        const float *ours = logits + r * vocab;
        float *exact = w->exact + (first + r) * vocab;
        lab_divergence d = {0};
        if (s == runs) {
            memcpy(exact, ours, vocab * sizeof *exact);
            d.nll_q = lab_nll(ours, vocab, w->ids[pos + 1]);
        } else {
            d = lab_compare_logits(exact, ours, vocab, w->ids[pos + 1]);
        }
        double golden = (double)s->golden_nll[w->first + pos], off = fabs(d.nll_q - golden);
        s->nll_sum += d.nll_q;
        s->golden_sum += golden;
        s->kl_sum += d.kl;
        double spread = fabs((double)runs[0].golden_nll[w->first + pos] - golden);
        s->worst = off > s->worst ? off : s->worst;
        s->off_sum += off;
        s->spread_worst = spread > s->spread_worst ? spread : s->spread_worst;
        s->spread_sum += spread;
        s->off_by_1e3 += off > 1e-3;
        s->tokens++;
    }
    return true;
}

static kvasir_context *make_context(const char *bits, const char *group, uint32_t max_kv_size) {
    kvasir_context_options o = kvasir_context_defaults();
    kvasir_context *ctx;
    kvasir_error err;
    o.kv_bits = bits;
    o.kv_group_size = group;
    o.act_bits = 16;
    o.key_centre = "off"; /* the goldens store keys as they are */
    o.max_kv_size = max_kv_size;
    o.threads = 1; /* other tests run at the same time */
    o.cache_bytes = (uint64_t)512 << 20;
    need(kvasir_context_create(model, &o, &ctx, &err), &err);
    return ctx;
}

/* All runs evaluate a window together, step by step, so that the logits of only one step are kept:
 * a row of a large vocabulary is a megabyte. */
enum { STEP_TOKENS = 128 };
enum { FEW = 3 }; /* windows, and every third prompt, in CI */

static void run_window(const int32_t *ids, size_t length, size_t first, size_t n_runs,
                       float *exact) {
    kvasir_seq *seqs[GOLDEN_SETTINGS_MAX];
    kvasir_error err;
    for (size_t i = 0; i < n_runs; i++)
        need(kvasir_seq_create(runs[i].ctx, &seqs[i], &err), &err);
    for (size_t at = 0; at < length; at += STEP_TOKENS) {
        const size_t n = length - at < STEP_TOKENS ? length - at : STEP_TOKENS;
        for (size_t i = 0; i < n_runs; i++) {
            struct step step = {.run = &runs[i],
                                .ids = ids,
                                .length = length,
                                .at = at,
                                .first = first,
                                .exact = exact};
            kvasir_eval_options eval = {
                .struct_size = sizeof(kvasir_eval_options), .on_logits = take_rows, .user = &step};
            need(kvasir_seq_eval(seqs[i], ids + at, n, &eval, &err), &err);
        }
    }
    for (size_t i = 0; i < n_runs; i++)
        kvasir_seq_destroy(seqs[i]);
}

static json_t *load(const char *file) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", goldens->dir, file);
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    return root;
}

static void golden_kl(struct run *s) {
    json_t *root = load("nll.json");
    json_t *result = json_object_get(json_object_get(root, "results"), s->s->golden);
    assert_non_null(result);
    s->golden_kl = json_number_value(json_object_get(result, "kl_mean"));
    json_decref(root);
}

/* whole: the run had all windows, as the golden mean KL. */
static bool judge(const struct run *s, bool whole) {
    double n = (double)s->tokens, ppl = exp(s->nll_sum / n), golden_ppl = exp(s->golden_sum / n);
    double kl = s->kl_sum / n;
    bool good = true;
    if (s->s->exact)
        good = s->worst <= 1e-2 && (double)s->off_by_1e3 <= 0.01 * n;
    else
        good = fabs(ppl / golden_ppl - 1) <= 0.015;
    if (s->s->rounded)
        good = good && s->off_sum <= s->spread_sum && s->worst <= 1.5 * s->spread_worst;
    if (s->s->check_kl && whole)
        good = good && fabs(kl / s->golden_kl - 1) <= 0.10;
    printf("%-8s ppl %8.4f (golden %8.4f)  mean KL %.3e (golden %.3e)  per token: worst %.1e, "
           "%.2f %% above 1e-3%s\n",
           s->s->golden, ppl, golden_ppl, kl, s->golden_kl, s->worst,
           100.0 * (double)s->off_by_1e3 / n, good ? "" : "   <- OUT OF BOUNDS");
    return good;
}

static void test_losses(void **state) {
    (void)state;
    char path[512];
    struct golden_file file;
    snprintf(path, sizeof path, "%s/nll.safetensors", goldens->dir);
    assert_true(golden_open(&file, path));
    struct golden ids = golden_get(&file, "ids");
    const size_t windows = ids.shape[0], length = ids.shape[1];
    const size_t used = goldens->tokens ? 1 : in_soak() || windows <= FEW ? windows : FEW;
    size_t n = 0;
    for (const struct golden_setting *s = goldens->settings; s->golden; s++) {
        char name[32];
        if (s->in_soak && !in_soak())
            continue;
        assert_true(n < GOLDEN_SETTINGS_MAX);
        snprintf(name, sizeof name, "nll.%s", s->golden);
        runs[n] = (struct run){.s = s, .golden_nll = golden_get(&file, name).data};
        runs[n].ctx = make_context(s->bits, s->group, 0);
        if (n > 0)
            golden_kl(&runs[n]);
        n++;
    }
    float *exact = malloc(STEP_TOKENS * vocab * sizeof *exact);
    const size_t most = goldens->tokens && goldens->tokens < length ? goldens->tokens : length;
    for (size_t w = 0; w < used; w++)
        run_window((const int32_t *)ids.data + w * length, most, w * (length - 1), n, exact);
    bool good = true;
    for (size_t i = 0; i < n; i++) {
        good &= judge(&runs[i], used == windows);
        kvasir_context_destroy(runs[i].ctx);
    }
    free(exact);
    golden_close(&file);
    assert_true(good);
}

/* ---- greedy ---------------------------------------------------------------------------------- */

static size_t argmax(const float *logits) {
    size_t best = 0;
    for (size_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* Golden logit of the best token minus that of the second. */
static double top_gap(const json_t *top5, size_t step) {
    const json_t *top = json_array_get(top5, step);
    return json_number_value(json_array_get(json_array_get(top, 0), 1)) -
           json_number_value(json_array_get(json_array_get(top, 1), 1));
}

/* Steps that agree with the golden before the first near tie where ids may part. */
static size_t follow(kvasir_context *ctx, const json_t *prompt, const json_t *golden,
                     const char *name) {
    size_t n = json_array_size(prompt), step = 0;
    const json_t *ids = json_object_get(golden, "ids"), *top5 = json_object_get(golden, "top5");
    int32_t *tokens = malloc(n * sizeof *tokens);
    float *logits = malloc(vocab * sizeof *logits);
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)json_integer_value(json_array_get(prompt, i));
    kvasir_seq *seq;
    kvasir_error err;
    kvasir_eval_options last = {.struct_size = sizeof(kvasir_eval_options), .last_logits = logits};
    need(kvasir_seq_create(ctx, &seq, &err), &err);
    need(kvasir_seq_eval(seq, tokens, n, &last, &err), &err);
    for (; step < json_array_size(ids); step++) {
        int32_t id = (int32_t)argmax(logits);
        if (id != json_integer_value(json_array_get(ids, step))) {
            if (top_gap(top5, step) >= 0.02)
                fail_msg("%s: id %d at step %zu, golden %lld with a gap of %.4f", name, id, step,
                         (long long)json_integer_value(json_array_get(ids, step)),
                         top_gap(top5, step));
            break;
        }
        need(kvasir_seq_eval(seq, &id, 1, &last, &err), &err);
    }
    kvasir_seq_destroy(seq);
    free(tokens);
    free(logits);
    return step;
}

static void test_greedy(void **state) {
    (void)state;
    static const struct {
        const char *name, *golden, *bits;
        uint32_t max_kv_size;
    } greedy[] = {
        {"exact", "exact", "f32", 0},
        {"f16", "exact", "f16", 0}, /* there is no golden of f16, which is exact but for noise */
        {"rot256k4", "rot256k4", "f32", 256}};
    char path[512];
    snprintf(path, sizeof path, "%s/greedy.jsonl", goldens->dir);
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    json_t *line;
    kvasir_context *ctx[3];
    size_t agreed[3] = {0}, total[3] = {0};
    for (int r = 0; r < 3; r++)
        ctx[r] = make_context(greedy[r].bits, NULL, greedy[r].max_kv_size);
    for (size_t at = 0; (line = json_loadf(in, JSON_DISABLE_EOF_CHECK, NULL)); at++) {
        for (int r = 0; r < 3 && (in_soak() || at % FEW == 0); r++) {
            const json_t *golden =
                json_object_get(json_object_get(line, "continuations"), greedy[r].golden);
            if (!golden)
                continue;
            char name[128];
            snprintf(name, sizeof name, "%s, %s", json_string_value(json_object_get(line, "name")),
                     greedy[r].golden);
            agreed[r] += follow(ctx[r], json_object_get(line, "prompt_ids"), golden, name);
            total[r] += json_array_size(json_object_get(golden, "ids"));
        }
        json_decref(line);
    }
    fclose(in);
    for (int r = 0; r < 3; r++) {
        printf("%-8s %zu of %zu greedy ids equal before a near tie\n", greedy[r].name, agreed[r],
               total[r]);
        assert_true(total[r] > 0);
        kvasir_context_destroy(ctx[r]);
    }
}

int model_goldens_check(const struct model_goldens *g) {
    goldens = g;
    skip_without(g->model);
    skip_without(g->dir);
    kvasir_error err;
    if (kvasir_model_open(g->model, &model, &err) != KVASIR_OK) {
        printf("%s\n", err.text);
        return 1;
    }
    kvasir_model_info info;
    kvasir_model_get_info(model, &info);
    vocab = info.vocab;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_losses),
                                       cmocka_unit_test(test_greedy)};
    const struct CMUnitTest losses[] = {cmocka_unit_test(test_losses)};
    int failed = g->tokens ? cmocka_run_group_tests(losses, NULL, NULL)
                           : cmocka_run_group_tests(tests, NULL, NULL);
    kvasir_model_close(model);
    return failed;
}
