/* SPDX-License-Identifier: Apache-2.0 */
/* Option structs of callers that were built with other headers. An older struct works, and its
 * missing fields have defaults. A size of 0, one that no version had and a newer one are refused,
 * saying why. */
#include <stdlib.h>
#include <string.h>

#include "engine/struct_size.h"
#include "model_files.h"
#include "tensors.h"
#include <kvasir.h>

/* ---- structs of two versions ----------------------------------------------------------------- */

struct inner_old {
    size_t struct_size;
    uint64_t a;
};
struct inner_new {
    size_t struct_size;
    uint64_t a, b;
};
struct outer_old {
    size_t struct_size;
    uint64_t first;
    struct inner_old inner;
    uint64_t last;
};
struct outer_new {
    size_t struct_size;
    uint64_t first;
    struct inner_new inner;
    uint64_t last, added;
};

static const struct sized_struct INNER = {.name = "inner",
                                          .maker = "inner_defaults()",
                                          .field = "inner.struct_size",
                                          .size = sizeof(struct inner_new)},
                                 OUTER = {.name = "outer",
                                          .maker = "outer_defaults()",
                                          .field = "outer.struct_size",
                                          .size = sizeof(struct outer_new),
                                          .nested = &INNER,
                                          .nested_at = offsetof(struct outer_new, inner)};
static const struct outer_new DEFAULTS = {
    sizeof DEFAULTS, 1, {sizeof(struct inner_new), 2, 3}, 4, 5};

static void test_old_caller(void **state) {
    struct outer_old given;
    struct outer_new out = DEFAULTS;
    kvasir_error err;
    (void)state;
    memset(&given, 0xff, sizeof given);
    struct_write(&OUTER, &DEFAULTS, &given, sizeof given, sizeof given.inner);
    assert_int_equal(given.struct_size, sizeof given);
    assert_int_equal(given.inner.struct_size, sizeof given.inner);
    assert_true(given.first == 1 && given.inner.a == 2 && given.last == 4);
    given.first = 10;
    given.inner.a = 20;
    given.last = 40;
    assert_int_equal(struct_read(&OUTER, &given, &out, &err), KVASIR_OK);
    assert_int_equal(out.struct_size, sizeof out);
    assert_int_equal(out.inner.struct_size, sizeof out.inner);
    assert_true(out.first == 10 && out.inner.a == 20 && out.inner.b == 3 && out.last == 40 &&
                out.added == 5);
}

/* The inner struct is of the library's version, the outer one older, and the other way round. */
static void test_mixed_versions(void **state) {
    struct {
        size_t struct_size;
        uint64_t first;
        struct inner_new inner;
        uint64_t last;
    } given = {sizeof given, 10, {sizeof(struct inner_new), 20, 30}, 40};
    struct outer_new out = DEFAULTS;
    kvasir_error err;
    (void)state;
    assert_int_equal(struct_read(&OUTER, &given, &out, &err), KVASIR_OK);
    assert_true(out.inner.b == 30 && out.last == 40 && out.added == 5);
    struct {
        size_t struct_size;
        uint64_t first;
        struct inner_old inner;
        uint64_t last, added;
    } other = {sizeof other, 10, {sizeof(struct inner_old), 20}, 40, 50};
    out = DEFAULTS;
    assert_int_equal(struct_read(&OUTER, &other, &out, &err), KVASIR_OK);
    assert_true(out.inner.b == 3 && out.last == 40 && out.added == 50);
}

static void refused(const struct outer_new *given, const char *field, const char *text) {
    struct outer_new out = DEFAULTS;
    kvasir_error err;
    assert_int_equal(struct_read(&OUTER, given, &out, &err), KVASIR_ERR_ARGUMENT);
    assert_string_equal(err.field, field);
    if (!strstr(err.text, text))
        fail_msg("no '%s' in '%s'", text, err.text);
}

static void test_refused_sizes(void **state) {
    struct {
        struct outer_new outer;
        uint64_t beyond;
    } given = {DEFAULTS, 0};
    (void)state;
    given.outer.struct_size = 0;
    refused(&given.outer, "outer.struct_size", "of 0: initialise it with outer_defaults()");
    given.outer.struct_size = 13;
    refused(&given.outer, "outer.struct_size", "13 is not a size of outer");
    given.outer.struct_size = sizeof given;
    refused(&given.outer, "outer.struct_size", "built with newer headers");
    given.outer = DEFAULTS;
    given.outer.inner.struct_size = 0;
    refused(&given.outer, "inner.struct_size", "initialise it with inner_defaults()");
    given.outer.inner.struct_size = sizeof(struct inner_new) + 8;
    refused(&given.outer, "inner.struct_size", "built with newer headers");
    given.outer.inner.struct_size = sizeof(struct inner_new);
    given.outer.struct_size = offsetof(struct outer_new, inner) + 8;
    refused(&given.outer, "outer.struct_size", "is not a size of outer");
}

/* A caller of a newer version gets its own size, and zeros after what the library knows. */
static void test_new_caller(void **state) {
    struct {
        struct outer_new outer;
        uint64_t beyond;
    } given;
    (void)state;
    memset(&given, 0xff, sizeof given);
    struct_write(&OUTER, &DEFAULTS, &given, sizeof given, sizeof given.outer.inner);
    assert_int_equal(given.outer.struct_size, sizeof given);
    assert_true(given.outer.inner.b == 3 && given.outer.added == 5 && given.beyond == 0);
    refused(&given.outer, "outer.struct_size", "built with newer headers");
}

/* ---- the library's calls --------------------------------------------------------------------- */

static kvasir_model *model;

static int open_tiny(void **state) {
    kvasir_error err;
    (void)state;
    skip_without(SHARED_DIR "/fixtures/tiny/llama/config.json");
    return kvasir_model_open(SHARED_DIR "/fixtures/tiny/llama", &model, &err);
}

static int close_tiny(void **state) {
    (void)state;
    kvasir_model_close(model);
    return 0;
}

static void is_size_error(kvasir_status status, const kvasir_error *err, const char *field) {
    assert_int_equal(status, KVASIR_ERR_ARGUMENT);
    assert_non_null(err->field);
    assert_string_equal(err->field, field);
}

static void test_calls(void **state) {
    kvasir_error err;
    kvasir_context *ctx = NULL;
    kvasir_engine *engine = NULL;
    kvasir_sampler *sampler = NULL;
    kvasir_seq *seq = NULL;
    const int32_t token = 1;
    (void)state;
    kvasir_context_options c = kvasir_context_defaults();
    c.ctx = 128;
    c.act_bits = 99; /* past struct_size: the default is used */
    c.struct_size = offsetof(kvasir_context_options, act_bits);
    assert_int_equal(kvasir_context_create(model, &c, &ctx, &err), KVASIR_OK);
    c.struct_size = 0;
    is_size_error(kvasir_context_create(model, &c, &ctx, &err), &err, "context.struct_size");
    c.struct_size = sizeof c;
    c.calibrate = &(kvasir_calibrate_options){.struct_size = 0};
    is_size_error(kvasir_context_create(model, &c, &ctx, &err), &err, "calibrate.struct_size");
    assert_int_equal(kvasir_seq_create(ctx, &seq, &err), KVASIR_OK);
    kvasir_eval_options eval = kvasir_eval_defaults();
    eval.struct_size += 8;
    is_size_error(kvasir_seq_eval(seq, &token, 1, &eval, &err), &err, "eval.struct_size");
    eval.struct_size = 2 * sizeof(size_t);
    assert_int_equal(kvasir_seq_eval(seq, &token, 1, &eval, &err), KVASIR_OK);

    kvasir_engine_options e = kvasir_engine_defaults();
    e.context.ctx = 128;
    e.context.struct_size = 0;
    is_size_error(kvasir_engine_create(model, &e, &engine, &err), &err, "context.struct_size");
    e.context.struct_size = sizeof e.context;
    e.struct_size += 64;
    is_size_error(kvasir_engine_create(model, &e, &engine, &err), &err, "engine.struct_size");
    e.struct_size = sizeof e;
    assert_int_equal(kvasir_engine_create(model, &e, &engine, &err), KVASIR_OK);
    kvasir_request r = {.n = 1};
    is_size_error(kvasir_engine_submit(engine, &r, NULL, &err), &err, "request.struct_size");

    kvasir_sampling s = {.temp = 1};
    is_size_error(kvasir_sampler_create(&s, 4, &sampler, &err), &err, "sampling.struct_size");
    s.struct_size = 2 * sizeof(size_t);
    assert_int_equal(kvasir_sampler_create(&s, 4, &sampler, &err), KVASIR_OK);

    kvasir_convert_options v = {.bits = 4};
    is_size_error(kvasir_convert("/nowhere", "/nowhere/else", &v, &err), &err,
                  "convert.struct_size");
    kvasir_sampler_destroy(sampler);
    kvasir_engine_destroy(engine);
    kvasir_seq_destroy(seq);
    kvasir_context_destroy(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_old_caller),
        cmocka_unit_test(test_mixed_versions),
        cmocka_unit_test(test_refused_sizes),
        cmocka_unit_test(test_new_caller),
        cmocka_unit_test_setup_teardown(test_calls, open_tiny, close_tiny),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
