/* SPDX-License-Identifier: Apache-2.0 */
/* How an engine and a sequence use a backend's table. A device that fails for good ends requests
 * with its error. If the head multiplies fewer rows than a step has, it is called in slices. A
 * budget that is not given is of the device's own memory. The backend is the CPU's with some
 * functions of its table replaced. */
#include "model_files.h"

#include <math.h>
#include <stdatomic.h>

#include "answers.h"
#include "engine/engine_internal.h"
#include "lost_device.h"

enum { PROMPT = 60, REPLY = 12, REQUESTS = 100, VOCAB = 512 };

static kvasir_error err;
static int32_t prompt[REQUESTS][PROMPT];

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

/* ---- the CPU's table, watched ---------------------------------------------------------------- */

static struct {
    const struct backend_ops *cpu; /* which can be lost */
    struct backend_ops ops;
    atomic_uint most_seqs, most_head_rows;
    uint64_t memory_bytes; /* of its own */
} watched;

static void note_most(atomic_uint *most, uint32_t n) {
    if (n > atomic_load(most))
        atomic_store(most, n);
}
static void watched_step_begin(struct backend *b, const struct batch *batch, uint32_t groups) {
    note_most(&watched.most_seqs, batch->n_seqs);
    watched.cpu->step_begin(b, batch, groups);
}
static void watched_gather_rows(struct backend *b, const float *x, const uint32_t *index,
                                uint32_t n, uint32_t dim, float *y) {
    note_most(&watched.most_head_rows, n);
    watched.cpu->gather_rows(b, x, index, n, dim, y);
}

static void watched_info(const struct backend *b, struct backend_info *out) {
    watched.cpu->info(b, out);
    out->memory_bytes = watched.memory_bytes;
}

static struct backend *watched_backend(void) {
    struct backend *b = lost_device_create();
    watched.cpu = b->ops;
    watched.ops = *b->ops;
    watched.ops.info = watched_info;
    watched.ops.step_begin = watched_step_begin;
    watched.ops.gather_rows = watched_gather_rows;
    b->ops = &watched.ops;
    atomic_store(&watched.most_seqs, 0);
    atomic_store(&watched.most_head_rows, 0);
    return b;
}

static kvasir_model *open_model(const char *name) {
    char path[512];
    kvasir_model *model;
    snprintf(path, sizeof path, "%s/fixtures/tiny/%s", SHARED_DIR, name);
    need(kvasir_model_open(path, &model, &err));
    return model;
}

static int make_prompts(void **state) {
    uint32_t r = 7;
    (void)state;
    for (int p = 0; p < REQUESTS; p++)
        for (int i = 0; i < PROMPT; i++) {
            r = r * 1664525 + 1013904223;
            prompt[p][i] = (int32_t)(r >> 16) % VOCAB;
        }
    return 0;
}

/* ---- a device that fails --------------------------------------------------------------------- */

static void check_lost_in_engine(const kvasir_model *model, int waits) {
    enum { BESIDE = 5 };
    kvasir_engine_options o = answers_options(48);
    kvasir_engine *e;
    struct answer *a[BESIDE], *after = answer_new(prompt[0], PROMPT, REPLY);
    need(engine_create_take(model, &o, watched_backend(), NULL, &e, &err));
    need(kvasir_engine_get_error(e, &err));
    lost_device_after(waits);
    for (int i = 0; i < BESIDE; i++) {
        a[i] = answer_new(prompt[i], PROMPT - (size_t)i, REPLY);
        a[i]->request.ignore_end = true;
        need(answer_submit(e, a[i], &err));
    }
    for (int i = 0; i < BESIDE; i++) {
        answer_wait(a[i]);
        assert_int_equal(a[i]->choices[0].finish, KVASIR_FINISH_ERROR);
        assert_int_equal(a[i]->error.code, KVASIR_ERR_IO);
        assert_string_equal(a[i]->error.text, LOST_DEVICE_TEXT);
        free(a[i]);
    }
    need(answer_submit(e, after, &err)); /* later requests get the error too */
    answer_wait(after);
    assert_string_equal(after->error.text, LOST_DEVICE_TEXT);
    assert_int_equal(engine_settled(e).failed, BESIDE + 1);
    assert_int_equal(kvasir_engine_get_error(e, &err), KVASIR_ERR_IO);
    assert_string_equal(err.text, LOST_DEVICE_TEXT);
    kvasir_engine_destroy(e);
    free(after);
}

static void test_lost_device_ends_requests(void **state) {
    (void)state;
    static const int WAITS[] = {0, 1, 4, 10};
    static const char *const MODELS[] = {"llama", "lfm2"};
    for (int m = 0; m < 2; m++) {
        kvasir_model *model = open_model(MODELS[m]);
        for (size_t i = 0; i < sizeof WAITS / sizeof *WAITS; i++)
            check_lost_in_engine(model, WAITS[i]);
        kvasir_model_close(model);
    }
}

static void test_lost_device_in_a_sequence(void **state) {
    (void)state;
    kvasir_model *model = open_model("llama");
    kvasir_context_options o = kvasir_context_defaults();
    struct temp_folder folder;
    struct stat stat_buf;
    kvasir_context *c;
    kvasir_seq *s;
    float logits[VOCAB];
    o.ctx = 256;
    o.prefill_chunk = 0; /* 0: the backend's rows_good */
    temp_folder_make(&folder);
    need(context_create_take(model, &o, NULL, watched_backend(), &c, &err));
    assert_int_equal(c->options.prefill_chunk, c->device.rows_good);
    need(kvasir_seq_create(c, &s, &err));
    need(kvasir_seq_eval(s, prompt[0], 20, NULL, &err));
    lost_device_after(0);
    const kvasir_eval_options last = {.struct_size = sizeof(kvasir_eval_options),
                                      .last_logits = logits};
    assert_int_equal(kvasir_seq_eval(s, prompt[0] + 20, 5, &last, &err), KVASIR_ERR_IO);
    assert_int_equal(kvasir_seq_eval(s, prompt[0] + 20, 5, NULL, &err), KVASIR_ERR_IO);
    assert_int_equal(kvasir_seq_length(s), 20);
    const char *path = temp_file(&folder, "saved.safetensors");
    assert_int_equal(kvasir_seq_save(s, path, false, &err), KVASIR_ERR_IO);
    assert_int_not_equal(stat(path, &stat_buf), 0);
    assert_int_equal(kvasir_seq_requantize(s, "4", NULL, &err), KVASIR_ERR_IO);
    float row[HEAD_DIM_MAX];
    assert_int_equal(kvasir_seq_read_kv(s, KVASIR_PART_K, 0, 0, 0, 1, row, &err), KVASIR_ERR_IO);
    kvasir_seq_destroy(s);
    kvasir_context_destroy(c);
    rmdir(folder.path);
    kvasir_model_close(model);
}

/* A device that is lost at any read of a save: an error and no file, never one with zeros. */
static void test_lost_device_while_saving(void **state) {
    (void)state;
    kvasir_model *model = open_model("lfm2");
    kvasir_context_options o = kvasir_context_defaults();
    struct temp_folder folder;
    struct stat stat_buf;
    kvasir_context *c;
    kvasir_seq *s;
    char *data[2];
    size_t size[2];
    o.ctx = 256;
    temp_folder_make(&folder);
    need(context_create_take(model, &o, NULL, watched_backend(), &c, &err));
    need(kvasir_seq_create(c, &s, &err));
    need(kvasir_seq_eval(s, prompt[0], 20, NULL, &err));
    const char *path = temp_file(&folder, "saved.safetensors");
    for (int waits = 0;; waits++) {
        lost_device_after(waits);
        const kvasir_status status = kvasir_seq_save(s, path, false, &err);
        if (status == KVASIR_OK)
            break;
        assert_int_equal(status, KVASIR_ERR_IO);
        assert_non_null(strstr(err.text, LOST_DEVICE_TEXT));
        assert_int_not_equal(stat(path, &stat_buf), 0);
    }
    need(file_read_all(path, 1 << 24, &data[0], &size[0], &err));
    lost_device_after(INT32_MAX);
    need(kvasir_seq_save(s, path, false, &err));
    need(file_read_all(path, 1 << 24, &data[1], &size[1], &err));
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(data[0], data[1], size[1]);
    mem_free(data[0]);
    mem_free(data[1]);
    remove(path);
    kvasir_seq_destroy(s);
    kvasir_context_destroy(c);
    rmdir(folder.path);
    kvasir_model_close(model);
}

/* ---- more sequences than the head multiplies at a time --------------------------------------- */

static void test_more_sequences_than_logit_rows(void **state) {
    (void)state;
    kvasir_model *model = open_model("llama");
    kvasir_engine_options o = answers_options(200);
    struct answer *a[REQUESTS];
    kvasir_engine *e;
    int32_t tokens[ANSWER_TOKENS];
    o.max_running = REQUESTS;
    o.cache_memory_bytes = 64 << 20;
    need(engine_create_take(model, &o, watched_backend(), NULL, &e, &err));
    answers_hold();
    for (int i = 0; i < REQUESTS; i++) {
        a[i] = answer_new(prompt[i], 5, 3 * REPLY);
        a[i]->request.ignore_end = true;
        a[i]->request.sampling.temp = i % 2 ? 1 : 0;
        a[i]->request.sampling.seed = (uint64_t)i;
        a[i]->hold_at = i == 0; /* holds the engine until all are submitted */
        need(answer_submit(e, a[i], &err));
    }
    answer_wait_held();
    answers_release();
    for (int i = 0; i < REQUESTS; i++) {
        answer_wait(a[i]);
        const uint32_t n = answer_alone(model, &o.context, &a[i]->request, 0, tokens);
        assert_int_equal(a[i]->choices[0].n, n);
        assert_memory_equal(a[i]->choices[0].tokens, tokens, n * sizeof *tokens);
        free(a[i]);
    }
    struct backend_info info;
    backend_info(e->ctx->backend, &info);
    assert_int_equal(e->max_running, REQUESTS);
    assert_int_equal(watched.most_seqs, REQUESTS);
    assert_int_equal(watched.most_head_rows, info.logit_rows);
    assert_true(info.logit_rows < REQUESTS);
    kvasir_engine_destroy(e);
    kvasir_model_close(model);
}

/* ---- memory of the device's own -------------------------------------------------------------- */

static uint64_t engine_budget(const kvasir_model *model, uint64_t memory, double percent) {
    kvasir_engine_options o = answers_options(48);
    kvasir_context_info info;
    kvasir_engine *e;
    o.cache_memory_bytes = 0;
    o.cache_memory_percent = percent;
    watched.memory_bytes = memory;
    need(engine_create_take(model, &o, watched_backend(), NULL, &e, &err));
    kvasir_engine_get_context(e, &info);
    kvasir_engine_destroy(e);
    return info.cache_bytes;
}

static uint64_t context_budget(const kvasir_model *model, uint64_t memory) {
    kvasir_context_options o = kvasir_context_defaults();
    kvasir_context_info info;
    kvasir_context *c;
    o.ctx = 1 << 20; /* which would take more */
    watched.memory_bytes = memory;
    need(context_create_take(model, &o, NULL, watched_backend(), &c, &err));
    kvasir_context_get_info(c, &info);
    kvasir_context_destroy(c);
    return info.cache_bytes;
}

static void test_budget_of_the_device(void **state) {
    enum { MIB = 1 << 20 };
    (void)state;
    kvasir_model *model = open_model("llama");
    const uint64_t weights = model_weight_bytes(model->model);
    assert_int_equal(engine_budget(model, weights + 64 * MIB, 50), 32 * MIB);
    assert_int_equal(engine_budget(model, weights + 64 * MIB, 75), 48 * MIB);
    /* 256 MiB stay free for all else, and a quarter of the rest */
    assert_int_equal(context_budget(model, weights + (256 + 64) * MIB), 48 * MIB);
    watched.memory_bytes = 0;
    kvasir_model_close(model);
}

static void test_free_memory(void **state) {
    uint64_t bytes;
    (void)state;
    need(kvasir_free_memory("cpu", &bytes, &err));
    assert_true(bytes > 1 << 20 && bytes < (uint64_t)1 << 48);
    assert_int_equal(kvasir_free_memory("tpu", &bytes, &err), KVASIR_ERR_ARGUMENT);
    assert_string_equal(err.field, "context.device");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lost_device_ends_requests),
        cmocka_unit_test(test_lost_device_in_a_sequence),
        cmocka_unit_test(test_lost_device_while_saving),
        cmocka_unit_test(test_more_sequences_than_logit_rows),
        cmocka_unit_test(test_budget_of_the_device),
        cmocka_unit_test(test_free_memory),
    };
    return cmocka_run_group_tests(tests, make_prompts, NULL);
}
