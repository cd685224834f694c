/* SPDX-License-Identifier: Apache-2.0 */
/* What calibration sees of models of every kind (moments.h), and that the bases in its file balance
 * just that. test_balance.c has the mathematics, golden.centre what centres do to quality. */
#include "model_files.h"

#include "engine/centre.h"
#include "engine/moments.h"
#include "lab/lab.h"

#include "byte_tokenizer.h"
#include "matrices.h"
#include "tensors.h"

#define TINY SHARED_DIR "/fixtures/tiny/"

enum { TOKENS = 3 * TILE_TOKENS + 20 };

static kvasir_error err;
static struct temp_folder folder;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

/* ---- a model with a tokenizer of bytes ------------------------------------------------------- */

static kvasir_model *open_model(const char *name) {
    static const char *const FILES[] = {"config.json", "model.safetensors"};
    char from[512], to[256], config[256];
    kvasir_model *m;
    snprintf(to, sizeof to, "%s/%s", folder.path, name);
    (void)mkdir(to, 0700);
    for (int i = 0; i < 2; i++) {
        snprintf(from, sizeof from, TINY "%s/%s", name, FILES[i]);
        snprintf(to, sizeof to, "%s/%s/%s", folder.path, name, FILES[i]);
        (void)!symlink(from, to);
    }
    snprintf(to, sizeof to, "%s/%s/tokenizer.json", folder.path, name);
    snprintf(config, sizeof config, "%s/%s/tokenizer_config.json", folder.path, name);
    byte_tokenizer_write(to, config, NULL);
    snprintf(to, sizeof to, "%s/%s", folder.path, name);
    need(kvasir_model_open(to, &m, &err));
    return m;
}

static const char *text_of(size_t n) {
    static char text[TOKENS + 1];
    uint32_t r = 17;
    assert_true(n < sizeof text);
    for (size_t i = 0; i < n; i++) {
        r = r * 1664525 + 1013904223;
        text[i] = "etaoinshrdlu ,.ETAOIN"[(r >> 16) % 21];
    }
    text[n] = 0;
    return text;
}

/* ---- a run with a second pair of eyes -------------------------------------------------------- */

/* Queries of one place, by an attention below that of moments.h. */
static struct {
    const struct backend_ops *cpu;
    struct backend_ops ops;
    struct kv_place place;
    uint32_t kv_heads, dim, head;
    double *sum; /* [dim][dim] */
    size_t rows;
} below;

static void attention_below(struct backend *b, const struct batch *batch,
                            const struct kv_view *views, uint32_t layer, const float *q,
                            const struct attention_args *args, float *out) {
    const uint32_t dim = below.dim, gqa = args->heads / below.kv_heads;
    for (uint32_t r = 0;
         views == batch->views + below.place.group && layer == below.place.layer && r < batch->rows;
         r++)
        for (uint32_t h = below.head * gqa; h < (below.head + 1) * gqa && batch->pos[r] >= 4; h++) {
            const float *x = q + ((size_t)r * args->heads + h) * dim;
            below.rows++;
            for (size_t i = 0; i < (size_t)dim * dim; i++)
                below.sum[i] += (double)x[i / dim] * (double)x[i % dim];
        }
    below.cpu->attention(b, batch, views, layer, q, args, out);
}

struct run {
    kvasir_model *m;
    struct moments seen;
    kvasir_context *ctx;
    kvasir_seq *seq;
};

/* The tokens that lab_calibrate runs. */
static void run_text(struct run *r, const char *text) {
    kvasir_context_options o = kvasir_context_defaults();
    struct backend *b;
    int32_t *ids;
    size_t n;
    o.kv_bits = "f32";
    o.key_centre = "off";
    o.ctx = TOKENS;
    o.prefill_chunk = 50; /* results do not depend on it */
    need(kvasir_tokenize(kvasir_model_tokenizer(r->m), text, strlen(text),
                         KVASIR_TOKENIZE_ADD_SPECIAL, &ids, &n, &err));
    assert_int_equal(n, TOKENS);
    need(backend_cpu_create(
        &b, &(struct backend_cpu_options){.threads = 2, .tier = CPU_TIER_COUNT, .act_bits = 8},
        &err));
    below.cpu = b->ops;
    below.ops = *b->ops;
    below.ops.attention = attention_below;
    b->ops = &below.ops;
    need(moments_begin(&r->seen, r->m->model, b, TOKENS, &err));
    need(context_create_take(r->m, &o, NULL, b, &r->ctx, &err));
    need(kvasir_seq_create(r->ctx, &r->seq, &err));
    need(kvasir_seq_eval(r->seq, ids, n, NULL, &err));
    kvasir_free(ids);
}

static void end_run(struct run *r) {
    kvasir_seq_destroy(r->seq);
    kvasir_context_destroy(r->ctx);
    moments_deinit(&r->seen);
    kvasir_model_close(r->m);
}

static const char *const MODELS[] = {"llama",       "qwen2",         "gemma3",
                                     "gemma4_full", "gemma4_shared", "qwen3_next",
                                     "gpt_oss",     "phi3_long",     "lfm2"};
enum { N_MODELS = sizeof MODELS / sizeof *MODELS };

/* A layer that stores keys; false: there is none from this one on. */
static bool storing_layer(const struct model_config *c, uint32_t *layer) {
    while (*layer < c->n_layers &&
           (c->layers[*layer].kind != LAYER_ATTENTION || c->layers[*layer].kv_from != *layer))
        ++*layer;
    return *layer < c->n_layers;
}

/* Keys are those of the pages, queries those that attention gets, of all layers that read a place.
 */
static void test_seen(void **state) {
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        struct run r = {.m = open_model(MODELS[i])};
        const struct model_config *c = model_config(r.m->model);
        uint32_t layer = 1; /* not the first */
        assert_true(storing_layer(c, &layer));
        const uint32_t dim = c->layers[layer].head_dim, newest = TOKENS - 40;
        below.place = model_kv_place(r.m->model, layer);
        below.kv_heads = c->layers[layer].kv_heads;
        below.head = below.kv_heads - 1;
        below.dim = dim;
        below.rows = 0;
        below.sum = new_matrix(dim);
        run_text(&r, text_of(TOKENS - 1));

        float *keys = calloc((size_t)40 * dim, sizeof *keys);
        need(kvasir_seq_read_kv(r.seq, KVASIR_PART_K, layer, below.head, newest, 40, keys, &err));
        assert_memory_equal(keys,
                            moments_keys(&r.seen, below.place, below.head) + (size_t)newest * dim,
                            (size_t)40 * dim * sizeof *keys);
        double *cq = new_matrix(dim), worst = 0;
        moments_of_queries(&r.seen, below.place, below.head, cq);
        assert_true(below.rows >= (TOKENS - 4) * (c->heads / below.kv_heads));
        for (uint32_t k = 0; k < dim; k++)
            for (uint32_t j = 0; j <= k; j++)
                worst = fmax(worst,
                             fabs(cq[k * dim + j] - below.sum[k * dim + j] / (double)below.rows));
        assert_true(worst <= 1e-12 * largest(dim, cq));
        free(keys);
        free(cq);
        free(below.sum);
        end_run(&r);
    }
}

/* Keys less their centre and their tile's mean, by the definition. */
static void test_moments_of_keys(void **state) {
    (void)state;
    struct run r = {.m = open_model("llama")};
    const struct model_config *c = model_config(r.m->model);
    const uint32_t dim = c->head_dim, head = 1;
    const struct kv_place place = {0, 1};
    struct key_stats s;
    struct centres *centres;
    below.kv_heads = c->kv_heads;
    below.place.layer = UINT32_MAX;
    run_text(&r, text_of(TOKENS - 1));
    need(key_stats_init(&s, r.m->model, &err));
    for (size_t i = 0; i < (size_t)s.layers * s.kv_heads * s.n; i++)
        s.rms[i] = s.mean[2 * i] = i % 8 ? 0.5f : 3;
    need(centres_choose(&s, r.m->model, true, &centres, &err));
    float *tile = calloc((size_t)TILE_TOKENS * dim, sizeof *tile);
    double *ck = new_matrix(dim), *want = new_matrix(dim), *rows = calloc(TOKENS * dim, 8);
    for (uint32_t p = 0; p < TOKENS; p++) {
        float key[HEAD_DIM_MAX];
        memcpy(key, moments_keys(&r.seen, place, head) + (size_t)p * dim, dim * sizeof *key);
        key_centre_add(&centres->centre, place.layer, head, p, -1, key);
        for (uint32_t i = 0; i < dim; i++)
            rows[p * dim + i] = (double)key[i];
    }
    for (uint32_t t = 1; t < 3; t++)
        for (uint32_t i = 0; i < dim; i++)
            for (uint32_t j = 0; j < dim; j++) {
                double product = 0, a = 0, b = 0;
                for (uint32_t p = t * 64; p < (t + 1) * 64; p++) {
                    product += rows[p * dim + i] * rows[p * dim + j] / 128;
                    a += rows[p * dim + i] / 64;
                    b += rows[p * dim + j] / 64;
                }
                want[i * dim + j] += product - a * b / 2;
            }
    moments_of_keys(&r.seen, place, head, &centres->centre, tile, ck);
    for (uint32_t i = 0; i < dim; i++)
        for (uint32_t j = 0; j <= i; j++)
            assert_true(fabs(ck[i * dim + j] - want[i * dim + j]) < 1e-6 * largest(dim, want));
    free(tile);
    free(ck);
    free(want);
    free(rows);
    centres_destroy(centres);
    key_stats_deinit(&s);
    end_run(&r);
}

/* ---- the file -------------------------------------------------------------------------------- */

struct measured {
    struct key_stats s;
    struct key_bases b;
    struct centres *centres;
    lab_calibration result;
};

static void measure(const kvasir_model *m, const char *text, struct measured *out) {
    const lab_calibrate_options o = {.text = text, .len = strlen(text), .tokens = TOKENS};
    *out = (struct measured){0};
    need(lab_calibrate(m, &o, &out->result, &err));
    const char *path = temp_write(&folder, "file", out->result.file, out->result.size);
    need(key_stats_init(&out->s, m->model, &err));
    need(centre_file_read(path, m->model, m->id, &out->s, &out->b, &err));
    need(centres_choose(&out->s, m->model, true, &out->centres, &err));
}

static void measured_free(struct measured *f) {
    key_stats_deinit(&f->s);
    key_bases_deinit(&f->b);
    centres_destroy(f->centres);
    kvasir_free(f->result.file);
}

static double *doubles_of(uint32_t n, const float *a) {
    double *out = new_matrix(n);
    for (size_t i = 0; i < (size_t)n * n; i++)
        out[i] = (double)a[i];
    return out;
}

static void fill_upper(uint32_t n, double *a) {
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < i; j++)
            a[(size_t)j * n + i] = a[(size_t)i * n + j];
}

/* Adds ln of the head's gain. */
static void check_head(const struct run *r, const struct measured *f, struct kv_place place,
                       uint32_t head, double *logs) {
    const uint32_t dim = f->b.group[place.group].head_dim;
    const struct layer_basis layer = key_bases_of(&f->b, place);
    double *inverse = doubles_of(dim, layer.inverse + (size_t)head * dim * dim),
           *forward = doubles_of(dim, layer.forward + (size_t)head * dim * dim),
           *ck = new_matrix(dim), *cq = new_matrix(dim), *product = new_matrix(dim);
    float *tile = calloc((size_t)TILE_TOKENS * dim, sizeof *tile);
    moments_of_keys(&r->seen, place, head, f->centres ? &f->centres->centre : NULL, tile, ck);
    moments_of_queries(&r->seen, place, head, cq);
    fill_upper(dim, ck);
    fill_upper(dim, cq);
    regularise_moments(dim, ck);
    regularise_moments(dim, cq);
    const double traces = trace(dim, ck) * trace(dim, cq);
    multiply(dim, inverse, true, forward, product);
    add_diagonal(dim, -1, product);
    apply(dim, inverse, ck);
    apply(dim, forward, cq);
    /* matrices are rounded to float */
    assert_true(largest(dim, product) < 1e-4);
    assert_true(largest_difference(dim, ck, cq) < 1e-4 * largest(dim, ck));
    assert_true(diagonal_spread(dim, ck, dim & (0 - dim)) < 1e-4);
    *logs += log(traces / (trace(dim, ck) * trace(dim, cq)));
    free(inverse);
    free(forward);
    free(ck);
    free(cq);
    free(product);
    free(tile);
}

static void test_balanced(void **state) {
    (void)state;
    for (int i = 0; i < N_MODELS; i++) {
        struct run r = {.m = open_model(MODELS[i])};
        struct measured f;
        uint32_t heads = 0;
        double logs = 0;
        below.kv_heads = model_config(r.m->model)->kv_heads;
        below.place.layer = UINT32_MAX;
        measure(r.m, text_of(TOKENS - 1), &f);
        run_text(&r, text_of(TOKENS - 1));
        assert_int_equal(f.result.tokens, TOKENS - 4);
        assert_true((f.result.rotary_pairs > 0) == model_keys_alike(r.m->model));
        assert_true(f.b.n_groups > 0);
        for (uint32_t g = 0; g < f.b.n_groups; g++)
            for (uint32_t layer = 0; layer < f.b.group[g].layers; layer++)
                for (uint32_t head = 0; head < f.b.group[g].kv_heads; head++, heads++)
                    check_head(&r, &f, (struct kv_place){g, layer}, head, &logs);
        assert_int_equal(f.result.heads, heads);
        assert_true(fabs(f.result.gain - exp(logs / heads)) < 1e-3 * f.result.gain);
        assert_true(f.result.gain >= 1);
        printf("%s: %u heads, gain %.2f\n", MODELS[i], heads, f.result.gain);
        measured_free(&f);
        end_run(&r);
    }
}

/* ---- a calibration that a context makes by itself -------------------------------------------- */

/* What the last context told. */
static struct {
    int events;
    bool ended, stop;
    char path[192]; /* "": it was not kept */
    char why[256];
} told;

static bool on_event(void *user, const kvasir_calibrating *now) {
    assert_ptr_equal(user, &told);
    assert_true(!told.ended && now->seconds >= 0 && now->done <= now->total);
    told.events++;
    told.ended = now->ended;
    snprintf(told.path, sizeof told.path, "%s", now->path ? now->path : "");
    snprintf(told.why, sizeof told.why, "%s", now->why ? now->why : "");
    return !told.stop;
}

enum { OWN_CTX = 200, OWN_VOCAB = 512 };

/* A context that may calibrate. kept_in NULL: for itself only. */
static kvasir_status own_context(const kvasir_model *m, const char *bits, const char *centre,
                                 const char *kept_in, kvasir_context **out) {
    kvasir_calibrate_options c = kvasir_calibrate_defaults();
    kvasir_context_options o = kvasir_context_defaults();
    o.kv_bits = bits;
    o.key_centre = centre;
    o.ctx = OWN_CTX;
    o.threads = 2;
    o.calibrate = &c;
    c.folder = kept_in;
    c.on_event = on_event;
    c.user = &told;
    told.events = 0;
    told.ended = false;
    told.path[0] = told.why[0] = 0;
    return kvasir_context_create(m, &o, out, &err);
}

struct outcome {
    uint64_t fingerprint;
    int source; /* of the bases; -1: there are none */
    float logits[OWN_VOCAB];
};

/* The last logits after three pages and a bit. */
static void own(const kvasir_model *m, const char *bits, const char *centre, const char *kept_in,
                struct outcome *out) {
    int32_t ids[OWN_CTX];
    kvasir_context *ctx;
    kvasir_seq *seq;
    kvasir_eval_options eval = kvasir_eval_defaults();
    need(own_context(m, bits, centre, kept_in, &ctx));
    *out = (struct outcome){.fingerprint = ctx->fingerprint, .source = -1};
    assert_true(model_config(m->model)->vocab <= OWN_VOCAB);
    for (int i = 0; i < OWN_CTX; i++)
        ids[i] = i * 37 % 200;
    for (uint32_t i = 0; i < ctx->options.n_facts; i++)
        if (ctx->options.facts[i].kind == KVASIR_FACT_BALANCED)
            out->source = (int)ctx->options.facts[i].n[0];
    assert_int_equal(out->source >= 0, ctx->bases != NULL);
    eval.last_logits = out->logits;
    need(kvasir_seq_create(ctx, &seq, &err));
    need(kvasir_seq_eval(seq, ids, OWN_CTX, &eval, &err));
    kvasir_seq_destroy(seq);
    kvasir_context_destroy(ctx);
}

static void same_bits(const struct outcome *a, const struct outcome *b) {
    assert_true(a->fingerprint == b->fingerprint);
    assert_memory_equal(a->logits, b->logits, sizeof a->logits);
}

/* Measured, read again, not kept, and named by the user: the same bits. */
static void test_own(void **state) {
    static const char *const KINDS[] = {"llama", "gemma3"}; /* with means and without */
    char kept_in[128], file[192];
    struct outcome first, next, without;
    (void)state;
    for (int i = 0; i < 2; i++) {
        kvasir_model *m = open_model(KINDS[i]);
        snprintf(kept_in, sizeof kept_in, "%s/caches/%s", folder.path, KINDS[i]);
        own(m, "t4", "auto", kept_in, &first);
        assert_true(told.ended && *told.path && told.events > 2);
        assert_int_equal(first.source, KVASIR_CENTRE_KEPT);
        snprintf(file, sizeof file, "%s", told.path);
        own(m, "t4", "auto", kept_in, &next);
        assert_true(told.events == 0 && next.source == KVASIR_CENTRE_KEPT);
        same_bits(&first, &next);
        own(m, "t4", "auto", NULL, &next);
        assert_true(told.ended && !*told.path);
        assert_non_null(strstr(told.why, "no folder"));
        same_bits(&first, &next);
        own(m, "t4", file, kept_in, &next);
        assert_true(told.events == 0 && next.source == KVASIR_CENTRE_FILE);
        same_bits(&first, &next);
        own(m, "t4", "off", kept_in, &without);
        assert_true(told.events == 0 && without.source == -1);
        assert_true(memcmp(first.logits, without.logits, sizeof first.logits) != 0);
        own(m, "8", "auto", kept_in, &next); /* nothing changes for other formats */
        own(m, "8", "auto", NULL, &without);
        assert_int_equal(told.events, 0);
        same_bits(&next, &without);
        kvasir_model_close(m);
    }
}

static void is_refused(const kvasir_model *m, const char *kept_in, kvasir_status code,
                       const char *text) {
    kvasir_context *ctx;
    assert_int_equal(own_context(m, "t4", "auto", kept_in, &ctx), code);
    if (!strstr(err.text, text))
        fail_msg("no '%s' in '%s'", text, err.text);
}

/* Cancelled, a folder that cannot be made, a damaged file, a file of another model, a file beside
 * the model. */
static void test_own_refused(void **state) {
    char kept_in[128], path[256], file[192];
    struct outcome first, next;
    (void)state;
    kvasir_model *m = open_model("qwen2"), *other = open_model("llama");
    snprintf(kept_in, sizeof kept_in, "%s/caches/refused", folder.path);
    told.stop = true;
    is_refused(m, kept_in, KVASIR_ERR_CANCELLED, "cancelled");
    told.stop = false;
    own(m, "t4", "auto", kept_in, &first);
    assert_true(told.ended && *told.path);
    snprintf(file, sizeof file, "%s", told.path);
    snprintf(path, sizeof path, "%s/folder", file);
    own(m, "t4", "auto", path, &next);
    assert_true(told.ended && !*told.path);
    assert_non_null(strstr(told.why, "cannot make the folder"));
    same_bits(&first, &next);

    snprintf(path, sizeof path, "%s/%016llx.safetensors", kept_in, (unsigned long long)other->id);
    assert_int_equal(rename(file, path), 0);
    is_refused(other, kept_in, KVASIR_ERR_ARGUMENT, "was made with another model");
    assert_string_equal(err.field, "context.key_centre");
    assert_int_equal(truncate(path, 1000), 0);
    is_refused(other, kept_in, KVASIR_ERR_FORMAT, path);
    kvasir_model_close(other);

    lab_calibration made;
    need(lab_calibrate(m, &(lab_calibrate_options){.tokens = 128}, &made, &err));
    temp_write(&folder, "qwen2/key-centre.safetensors", made.file, made.size);
    kvasir_free(made.file);
    own(m, "t4", "auto", kept_in, &next);
    assert_true(told.events == 0 && next.source == KVASIR_CENTRE_BESIDE);
    assert_int_equal(remove(temp_file(&folder, "qwen2/key-centre.safetensors")), 0);
    kvasir_model_close(m);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static bool stop_at_end(void *user, size_t done, size_t total) {
    int *calls_at_end = user;
    return done < total || ++*calls_at_end < 2; /* once by the last step, then between heads */
}

static void test_refusals(void **state) {
    (void)state;
    kvasir_model *m = open_model("llama");
    lab_calibration out = {0};
    int calls = 0;
    lab_calibrate_options o = {.text = text_of(126), .len = 126};
    assert_int_equal(lab_calibrate(m, &o, &out, &err), KVASIR_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "127 tokens are too few"));
    o.tokens = 127;
    assert_int_equal(lab_calibrate(m, &o, &out, &err), KVASIR_ERR_ARGUMENT);
    assert_non_null(strstr(err.text, "127 is not between 128 and 8192"));
    o = (lab_calibrate_options){.text = text_of(127), .len = 127, .tokens = 128};
    need(lab_calibrate(m, &o, &out, &err)); /* one tile */
    kvasir_free(out.file);
    out = (lab_calibration){0};
    o.on_progress = stop_at_end;
    o.user = &calls;
    assert_int_equal(lab_calibrate(m, &o, &out, &err), KVASIR_ERR_CANCELLED);
    assert_null(out.file);
    kvasir_model_close(m);
}

int main(void) {
    skip_without(TINY "llama/config.json");
    temp_folder_make(&folder);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seen),        cmocka_unit_test(test_moments_of_keys),
        cmocka_unit_test(test_balanced),    cmocka_unit_test(test_own),
        cmocka_unit_test(test_own_refused), cmocka_unit_test(test_refusals),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    temp_folder_remove(&folder);
    return failed;
}
