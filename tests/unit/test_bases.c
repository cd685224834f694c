/* SPDX-License-Identifier: Apache-2.0 */
/* Bases of balanced keys in a context: which options and formats load them, by layer group; what
 * fingerprint, identity and budget say of them. test_centre.c has the file. */
#include "model_files.h"

#include "answers.h"
#include "engine/centre.h"
#include "engine/engine_internal.h"

#include "centres.h"
#include "tensors.h"

#define TINY SHARED_DIR "/fixtures/tiny/"

static kvasir_error err;
static struct temp_folder folder;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

/* A model with links in a folder of its own, so that a file can be beside it. */
static kvasir_model *open_linked(const char *name) {
    static const char *const FILES[] = {"config.json", "model.safetensors"};
    char from[512], to[256];
    kvasir_model *m;
    snprintf(to, sizeof to, "%s/%s", folder.path, name);
    assert_int_equal(mkdir(to, 0700), 0);
    for (int i = 0; i < 2; i++) {
        snprintf(from, sizeof from, TINY "%s/%s", name, FILES[i]);
        snprintf(to, sizeof to, "%s/%s/%s", folder.path, name, FILES[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    snprintf(to, sizeof to, "%s/%s", folder.path, name);
    need(kvasir_model_open(to, &m, &err));
    return m;
}

static const char *write_file(const kvasir_model *m, const char *name, float size, bool based,
                              uint64_t seed) {
    struct text_buf file = random_calibration(m, size, based, seed);
    assert_non_null(file.data);
    const char *path = temp_write(&folder, name, file.data, file.len);
    text_free(&file);
    return path;
}

static kvasir_status context_of(const kvasir_model *m, const char *bits, const char *centre,
                                kvasir_context **ctx) {
    kvasir_context_options o = kvasir_context_defaults();
    o.kv_bits = bits;
    o.key_centre = centre;
    o.ctx = 256;
    o.cache_bytes = 64 << 20;
    o.threads = 1;
    return kvasir_context_create(m, &o, ctx, &err);
}

/* What a context has; false if it has no bases. */
struct had {
    uint64_t fingerprint;
    struct tier_key identity;
    bool centred;
    kvasir_fact_kind fact; /* the last one */
    uint32_t n_facts;
};

static bool has_bases(const kvasir_model *m, const char *bits, const char *centre,
                      struct had *had) {
    static const struct tier_key CHECKPOINT = {{1, 2}};
    kvasir_context *c;
    uint32_t with = 0, exact = 0;
    need(context_of(m, bits, centre, &c));
    *had = (struct had){.fingerprint = c->fingerprint, .centred = c->centres != NULL};
    for (uint32_t i = 0; i < c->options.n_facts; i++)
        if (c->options.facts[i].kind != KVASIR_FACT_OPEN_PAGE && /* of the format alone */
            c->options.facts[i].kind != KVASIR_FACT_START_EXACT) {
            had->n_facts++;
            had->fact = c->options.facts[i].kind;
        }
    need(context_identity(c, CHECKPOINT, &had->identity, &err));
    for (uint32_t g = 0; g < c->n_groups; g++) {
        const struct kv_shape *shape = &c->options.shapes[g];
        with += shape->basis != NULL;
        exact += shape->fixed_format;
        if (!shape->basis)
            continue;
        assert_int_equal(shape->basis->layers, shape->layers);
        assert_int_equal(shape->basis->kv_heads, shape->kv_heads);
        assert_int_equal(shape->basis->head_dim, shape->head_dim);
    }
    assert_true(with == 0 || with + exact == c->n_groups);
    assert_true((with > 0) == (c->bases != NULL));
    kvasir_context_destroy(c);
    return with > 0;
}

static bool same(const struct had *a, const struct had *b) {
    const bool one = a->fingerprint == b->fingerprint;
    assert_true(one == tier_key_equal(a->identity, b->identity));
    return one;
}

/* ---- a model whose keys are alike ------------------------------------------------------------ */

static void test_alike(void **state) {
    (void)state;
    kvasir_model *m = open_linked("llama");
    struct had off, beside, other, file, old, small;
    char path[192];
    assert_false(has_bases(m, "t4", "off", &off));
    assert_false(has_bases(m, "t4", "auto", &beside)); /* there is no file */
    assert_true(beside.n_facts == 1 && beside.fact == KVASIR_FACT_NOT_BALANCED);
    assert_true(same(&off, &beside));

    write_file(m, "llama/key-centre.safetensors", 20, true, 1);
    assert_true(has_bases(m, "t4", "auto", &beside));
    assert_true(beside.centred && beside.n_facts == 2 && beside.fact == KVASIR_FACT_BALANCED);
    assert_false(has_bases(m, "8", "auto", &other)); /* of tile formats only */
    assert_true(other.centred && other.n_facts == 1 && other.fact == KVASIR_FACT_CENTRED);
    assert_false(has_bases(m, "r8,4", "auto", &other));
    assert_true(other.centred);
    assert_false(same(&off, &beside));
    assert_false(has_bases(m, "t4", "off", &other));
    assert_true(same(&off, &other));
    assert_false(has_bases(m, "f16", "auto", &other));
    assert_false(other.centred);
    kvasir_context *ctx; /* the file is no bias */
    assert_int_equal(context_of(m, "t4", "bias", &ctx), KVASIR_ERR_ARGUMENT);

    snprintf(path, sizeof path, "%s", write_file(m, "same", 20, true, 1));
    assert_true(has_bases(m, "t4", path, &file));
    assert_true(same(&beside, &file));
    assert_false(has_bases(m, "f16", path, &other));
    assert_true(other.n_facts == 1 && other.fact == KVASIR_FACT_CENTRE_UNUSED);

    /* the same means without bases; bases without pairs worth a centre */
    snprintf(path, sizeof path, "%s", write_file(m, "old", 20, false, 1));
    assert_false(has_bases(m, "t4", path, &old));
    assert_true(old.centred);
    assert_false(same(&old, &file));
    snprintf(path, sizeof path, "%s", write_file(m, "small", 0.1f, true, 1));
    assert_true(has_bases(m, "t4", path, &small));
    assert_false(small.centred);
    assert_true(small.n_facts == 1 && small.fact == KVASIR_FACT_BALANCED);
    assert_false(same(&small, &off));
    snprintf(path, sizeof path, "%s", write_file(m, "small", 0.1f, true, 2));
    assert_true(has_bases(m, "t4", path, &other));
    assert_false(same(&small, &other));
    kvasir_model_close(m);
}

/* Biases come before a file beside the model, but not for tile formats; they have no bases. */
static void test_biases(void **state) {
    (void)state;
    kvasir_model *m = open_linked("qwen2");
    struct had had;
    char path[192];
    write_file(m, "qwen2/key-centre.safetensors", 20, true, 1);
    assert_true(has_bases(m, "t4", "auto", &had));
    assert_false(has_bases(m, "t4", "bias", &had));
    assert_true(had.n_facts == 2 && had.fact == KVASIR_FACT_NOT_BALANCED);
    snprintf(path, sizeof path, "%s/qwen2/key-centre.safetensors", folder.path);
    assert_true(has_bases(m, "t4", path, &had));
    kvasir_model_close(m);
}

/* ---- models whose layers differ -------------------------------------------------------------- */

static void test_unlike(void **state) {
    static const char *const MODELS[] = {"gemma3", "gemma4_full", "gemma4_shared", "qwen3_next"};
    (void)state;
    for (int i = 0; i < 4; i++) {
        kvasir_model *m = open_linked(MODELS[i]);
        kvasir_context *ctx;
        struct had off, had;
        char path[192];
        assert_false(has_bases(m, "t4", "auto", &off));
        snprintf(path, sizeof path, "%s/key-centre.safetensors", MODELS[i]);
        snprintf(path, sizeof path, "%s", write_file(m, path, 20, true, 1));
        assert_true(has_bases(m, "t4", "auto", &had));
        assert_false(had.centred || same(&off, &had));
        assert_true(has_bases(m, "t4", path, &had));
        assert_false(has_bases(m, "t4", "off", &had));
        assert_true(same(&off, &had));
        assert_false(has_bases(m, "f16", "auto", &had));
        assert_int_equal(context_of(m, "t4", "bias", &ctx), KVASIR_ERR_UNSUPPORTED);
        assert_int_equal(context_of(m, "8", path, &ctx), KVASIR_ERR_UNSUPPORTED);
        assert_false(has_bases(m, "f16", path, &had));
        assert_true(had.n_facts == 1 && had.fact == KVASIR_FACT_CENTRE_UNUSED);
        kvasir_model_close(m);
    }
}

/* ---- the budget ------------------------------------------------------------------------------ */

static void test_budget(void **state) {
    (void)state;
    kvasir_model *m = open_linked("mistral");
    uint64_t charged[2], bytes = 0;
    for (int i = 0; i < 2; i++) {
        kvasir_engine_options o = answers_options(48);
        o.context.kv_bits = "t4";
        if (i)
            o.context.key_centre = write_file(m, "mistral.bases", 20, true, 1);
        kvasir_engine *e = answers_engine(m, &o);
        charged[i] = e->fixed_bytes;
        bytes = key_bases_bytes(e->ctx->bases);
        kvasir_engine_destroy(e);
    }
    assert_true(bytes > 0);
    assert_int_equal(charged[0] + bytes, charged[1]);
    kvasir_model_close(m);
}

int main(void) {
    skip_without(TINY "llama/config.json");
    temp_folder_make(&folder);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alike),
        cmocka_unit_test(test_biases),
        cmocka_unit_test(test_unlike),
        cmocka_unit_test(test_budget),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    temp_folder_remove(&folder);
    return failed;
}
