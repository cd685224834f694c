/* SPDX-License-Identifier: Apache-2.0 */
/* Mapped files that are truncated, changed or replaced while they are in use: an error that names
 * the file and the byte, in a process that lives on. */
#include <signal.h>
#include <sys/wait.h>

#include "model_files.h"
#include "tensors.h"
#include <kvasir.h>

enum { PAGE = 65536, PAGES = 8 }; /* a multiple of every system's page size */

static struct temp_folder folder;
static kvasir_error err;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

static void need_error(kvasir_status status, const char *text) {
    assert_int_equal(status, KVASIR_ERR_IO);
    if (!strstr(err.text, text) || !strstr(err.text, folder.path))
        fail_msg("no '%s' in '%s'", text, err.text);
}

static int set_up(void **state) {
    (void)state;
    temp_folder_make(&folder);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    temp_folder_remove(&folder);
    return 0;
}

static void write_pages(void) {
    static char bytes[PAGES * PAGE];
    memset(bytes, 'x', sizeof bytes);
    temp_write(&folder, "file", bytes, sizeof bytes);
}

static void map_pages(struct file_map *m) {
    write_pages();
    need(file_map_open(m, folder.file, &err));
    need(file_map_verify(m, &err));
}

/* ---- files ----------------------------------------------------------------------------------- */

static void test_truncated(void **state) {
    (void)state;
    struct file_map m, other;
    char words[64];
    file_map_catch_faults(); /* cmocka installs handlers of its own before every test */
    map_pages(&m);
    need(file_map_open(&other, "/proc/self/exe", &err));
    assert_int_equal(truncate(folder.file, 2 * PAGE), 0);
    const volatile uint8_t *bytes = m.data;
    assert_int_equal(bytes[PAGE], 'x');
    need(file_map_check(&m, &err));
    assert_int_equal(bytes[5 * PAGE + 7], 0);
    assert_int_equal(bytes[PAGES * PAGE - 1], 0);
    snprintf(words, sizeof words, "truncated while it was in use: byte %d is missing", 5 * PAGE);
    need_error(file_map_check(&m, &err), words);
    assert_int_equal(bytes[2 * PAGE], 0); /* an earlier one, later: the first report stays */
    need_error(file_map_verify(&m, &err), words);
    need(file_map_check(&other, &err));
    assert_true(file_map_any_fault());
    file_map_close(&m);
    file_map_close(&other);
}

static void test_changed(void **state) {
    (void)state;
    struct file_map m;
    map_pages(&m);
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1}};
    assert_int_equal(utimensat(0, folder.file, times, 0), 0);
    need(file_map_check(&m, &err));
    need_error(file_map_verify(&m, &err), "changed while it was in use");
    need_error(file_map_check(&m, &err), "changed while it was in use"); /* stays */
    file_map_close(&m);
    map_pages(&m);
    assert_int_equal(truncate(folder.file, PAGE), 0);
    need_error(file_map_verify(&m, &err), "byte 65536 is missing");
    file_map_close(&m);
    map_pages(&m); /* entries are used again, without the old error */
    assert_int_equal(unlink(folder.file), 0);
    write_pages();
    need(file_map_verify(&m, &err));
    file_map_close(&m);
}

/* Read into memory, it does not matter. */
static void test_read(void **state) {
    (void)state;
    struct file_map m;
    write_pages();
    need(file_map_read(&m, folder.file, &err));
    assert_int_equal(m.size, PAGES * PAGE);
    assert_int_equal(truncate(folder.file, 0), 0);
    for (size_t i = 0; i < m.size; i++)
        assert_int_equal(m.data[i], 'x');
    need(file_map_verify(&m, &err));
    file_map_close(&m);
    assert_int_equal(file_map_read(&m, folder.file, &err), KVASIR_ERR_FORMAT);
}

/* A SIGBUS that has another cause ends the process as usual. */
static void test_others(void **state) {
    (void)state;
    int status;
    struct file_map m;
    map_pages(&m);
    const pid_t pid = fork();
    if (pid == 0) {
        signal(SIGBUS, SIG_DFL);
        file_map_catch_faults();
        raise(SIGBUS);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    file_map_close(&m);
}

/* ---- models ---------------------------------------------------------------------------------- */

static const char *const FILES[] = {"config.json", "model.safetensors"};

static void copy_model(void) {
    for (int i = 0; i < 2; i++) {
        char from[512], *text;
        size_t size;
        snprintf(from, sizeof from, "%s/fixtures/tiny/llama/%s", SHARED_DIR, FILES[i]);
        need(file_read_all(from, 1 << 24, &text, &size, &err));
        temp_write(&folder, FILES[i], text, size);
        mem_free(text);
    }
}

/* Evaluates twice, and truncates the file of the weights between. */
static void check_eval(bool copied) {
    const kvasir_model_options how = {.struct_size = sizeof how, .no_mmap = copied};
    kvasir_context_options o = kvasir_context_defaults();
    const int32_t tokens[] = {1, 2, 3, 4};
    kvasir_model *model;
    kvasir_context *c;
    kvasir_seq *s;
    copy_model();
    need(kvasir_model_open_with(folder.path, &how, &model, &err));
    o.ctx = 256;
    o.threads = 2;
    need(kvasir_context_create(model, &o, &c, &err));
    need(kvasir_seq_create(c, &s, &err));
    need(kvasir_seq_eval(s, tokens, 4, NULL, &err));
    assert_int_equal(truncate(temp_file(&folder, FILES[1]), PAGE), 0);
    if (copied) {
        need(kvasir_seq_eval(s, tokens, 4, NULL, &err));
        need(kvasir_model_verify(model, &err));
    } else {
        need_error(kvasir_seq_eval(s, tokens, 4, NULL, &err), "model.safetensors: the file was");
        need_error(kvasir_model_verify(model, &err), "is missing");
        assert_int_equal(kvasir_seq_length(s), 4);
    }
    kvasir_seq_destroy(s);
    kvasir_context_destroy(c);
    kvasir_model_close(model);
}

static void test_model(void **state) {
    (void)state;
    kvasir_catch_file_faults();
    check_eval(false);
    check_eval(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_truncated, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_changed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_others, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_model, set_up, tear_down),
    };
    skip_without(SHARED_DIR "/fixtures/tiny/llama/config.json");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
