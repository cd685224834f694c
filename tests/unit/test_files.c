/* SPDX-License-Identifier: Apache-2.0 */
/* Files of util/: what is refused instead of opened, what counts as absent, replaced files and what
 * killed processes left of them. alarm() ends a test that waits for a FIFO. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util/util.h"

#include <cmocka.h>

static char old_folder[4096], folder[32];

static int enter_folder(void **state) {
    (void)state;
    alarm(60);
    snprintf(folder, sizeof folder, "/tmp/kvasir-files-XXXXXX");
    if (!getcwd(old_folder, sizeof old_folder) || !mkdtemp(folder))
        return -1;
    return chdir(folder);
}

static int leave_folder(void **state) {
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return chdir(old_folder) != 0 || system(command) != 0;
}

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void refuse(const char *path, const char *kind) {
    char words[200], *text;
    size_t size;
    int fd;
    struct file_map map;
    kvasir_error err;
    snprintf(words, sizeof words, "%s: is a %s, not a file", path, kind);
    assert_int_equal(file_map_open(&map, path, &err), KVASIR_ERR_IO);
    assert_string_equal(err.text, words);
    assert_int_equal(file_read_all(path, 9, &text, &size, &err), KVASIR_ERR_IO);
    assert_string_equal(err.text, words);
    assert_int_equal(file_open_input(path, &fd, &err), KVASIR_ERR_IO);
    assert_string_equal(err.text, words);
}

static void test_refused(void **state) {
    (void)state;
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "socket"};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(mkfifo("fifo", 0600), 0);
    assert_int_equal(symlink("fifo", "link"), 0);
    refuse("fifo", "pipe");
    refuse("link", "pipe");
    refuse("socket", "socket");
    refuse("/dev/zero", "device");
    refuse("/dev/null", "device");
    refuse(".", "folder");
    close(fd);
}

/* What the shell gives for <(command): an input, but not a file of a model. */
static void test_pipe(void **state) {
    (void)state;
    int ends[2];
    char path[64], *text;
    size_t size;
    kvasir_error err;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "text", 4), 4);
    close(ends[1]);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    assert_int_equal(file_read_all(path, 9, &text, &size, &err), KVASIR_ERR_IO);
    assert_int_equal(file_read_input(path, 9, &text, &size, &err), KVASIR_OK);
    assert_string_equal(text, "text");
    mem_free(text);
    close(ends[0]);
}

static void test_exists(void **state) {
    (void)state;
    bool there;
    kvasir_error err;
    write_text("here", "x");
    assert_int_equal(symlink("loop", "loop"), 0);
    assert_int_equal(file_exists("here", &there, &err), KVASIR_OK);
    assert_true(there);
    assert_int_equal(file_exists("gone", &there, &err), KVASIR_OK);
    assert_false(there);
    assert_int_equal(file_exists("here/gone", &there, &err), KVASIR_OK);
    assert_false(there);
    assert_int_equal(file_exists("loop", &there, &err), KVASIR_ERR_IO);
    assert_string_equal(err.text, "loop: Too many levels of symbolic links");
}

static void test_private(void **state) {
    (void)state;
    kvasir_error err;
    for (int private = 0; private < 2; private ++) {
        struct file_replacer r;
        struct stat st;
        const mode_t mask = umask(022);
        assert_int_equal(file_replace_begin(&r, "mode", private, &err), KVASIR_OK);
        assert_int_equal(file_replace_commit(&r, &err), KVASIR_OK);
        umask(mask);
        assert_int_equal(stat("mode", &st), 0);
        assert_int_equal(st.st_mode & 0777, private ? 0600 : 0644);
    }
}

static pid_t dead_process(void) {
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    return pid;
}

static void test_leftovers(void **state) {
    (void)state;
    const struct {
        const char *format;
        bool removed;
    } names[] = {
        {"cache.tmp-%d-0", true},   {"cache.tmp-%d-12", true}, {"cache.tmp-%d-", false},
        {"cache.tmp-%d-0x", false}, {"cache.tmp-%d", false},   {"other.tmp-%d-0", false},
        {"cache.tmp--%d-0", false}, {"cache.tmp-%d-3", false}, /* locked */
    };
    enum { N = sizeof names / sizeof *names };
    char paths[N][64], own[64];
    const int dead = (int)dead_process();
    int lock = -1;
    for (int i = 0; i < N; i++) {
        snprintf(paths[i], sizeof paths[i], names[i].format, dead);
        write_text(paths[i], "half");
        if (i == N - 1)
            lock = open(paths[i], O_RDONLY);
    }
    assert_int_equal(flock(lock, LOCK_EX | LOCK_NB), 0);
    snprintf(own, sizeof own, "cache.tmp-%d-0", (int)getpid());
    write_text(own, "half");
    struct file_replacer r;
    kvasir_error err;
    assert_int_equal(file_replace_begin(&r, "cache", true, &err), KVASIR_OK);
    for (int i = 0; i < N; i++)
        assert_int_equal(access(paths[i], F_OK) != 0, names[i].removed);
    assert_int_equal(access(own, F_OK), 0);
    file_replace_abandon(&r);
    close(lock);
    snprintf(own, sizeof own, "%s/full", folder); /* a path with a folder */
    snprintf(paths[0], sizeof paths[0], "full.tmp-%d-0", dead);
    write_text(paths[0], "half");
    assert_int_equal(file_replace_begin(&r, own, true, &err), KVASIR_OK);
    assert_int_not_equal(access(paths[0], F_OK), 0);
    file_replace_abandon(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_pipe),
        cmocka_unit_test(test_exists),    cmocka_unit_test(test_private),
        cmocka_unit_test(test_leftovers),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
