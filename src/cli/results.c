/* SPDX-License-Identifier: Apache-2.0 */
/* results.c: the file to which a batch writes its results, and which it continues when it runs
 * again.
 *
 *     {"id":"batch_req_...","custom_id":"a",...}\n      finished: never run again
 *     {"id":"batch_req_...","custom_id":"b",...}\n
 *     {"id":"batch_r                                    torn: cut off
 *
 * Invariants
 *   RESULTS-1  A file that holds anything but results (the requests, by mistake) is not changed.
 *   RESULTS-2  A line is written whole and flushed before the next: whatever ends the program, at
 *              most the last line is incomplete.
 *   RESULTS-3  One program writes a file at a time (flock; not over all network file systems).
 */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char BEGINNING[] = "{\"id\":\"" RESULT_ID;

static int cannot(const struct command *c, const struct results *r, int why) {
    return run_error(c, "-o: %s: %s", r->path, strerror(why));
}

static int take_result(const struct command *c, struct results *r, const struct line_reader *in) {
    json_t *line = json_loadb(in->line, in->len, JSON_ALLOW_NUL, NULL);
    const char *id = json_string_value(json_object_get(line, "custom_id"));
    int code = EXIT_GOOD;
    if (!id || !json_is_object(json_object_get(line, "response")))
        code = run_error(c, "-o: %s: line %zu is not a batch result; the file was not changed",
                         r->path, in->number);
    else if (json_object_set_new(r->finished, id, json_true()) != 0)
        code = run_error(c, "-o: %s: out of memory", r->path);
    json_decref(line);
    return code;
}

/* Reads what exists; *end is where the next result goes. */
static int read_results(const struct command *c, struct results *r, int fd, uint64_t size,
                        uint64_t *end) {
    struct line_reader in = {.fd = fd, .name = r->path};
    int code;
    while (!(code = line_next(c, &in)) && in.line) {
        *end = in.byte;
        if (in.byte + in.len == size) { /* no line end */
            size_t n = sizeof BEGINNING - 1;
            r->cut = true;
            if (memcmp(in.line, BEGINNING, in.len < n ? in.len : n) != 0)
                code =
                    run_error(c, "-o: %s: line %zu is not a batch result; the file was not changed",
                              r->path, in.number);
            break;
        }
        code = take_result(c, r, &in);
        if (code)
            break;
        *end = in.byte + in.len + 1;
    }
    line_reader_free(&in);
    return code;
}

static int go_on(const struct command *c, struct results *r, int fd, uint64_t size) {
    uint64_t end = 0;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return run_error(c, "-o: %s: another batch is writing it", r->path);
    int code = read_results(c, r, fd, size, &end);
    if (!code && r->cut && ftruncate(fd, (off_t)end) != 0)
        code = cannot(c, r, errno);
    if (!code && lseek(fd, (off_t)end, SEEK_SET) < 0)
        code = cannot(c, r, errno);
    return code;
}

int results_open(const struct command *c, struct results *r, const char *path) {
    struct stat st;
    *r = (struct results){.path = path, .finished = json_object()};
    if (!r->finished)
        return run_error(c, "-o: %s: out of memory", path);
    bool other = stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
    int fd = open(path, (other ? O_WRONLY : O_RDWR | O_CREAT) | O_CLOEXEC, 0666);
    if (fd < 0)
        return cannot(c, r, errno);
    int code = EXIT_GOOD;
    if (fstat(fd, &st) != 0)
        code = cannot(c, r, errno);
    if (!code && !other)
        code = go_on(c, r, fd, (uint64_t)st.st_size);
    if (!code && !(r->f = fdopen(fd, "w")))
        code = cannot(c, r, errno);
    if (!r->f)
        close(fd);
    return code;
}

bool results_has(const struct results *r, const char *custom_id) {
    return json_object_get(r->finished, custom_id) != NULL;
}

int results_write(const struct command *c, struct results *r, json_t *object) {
    /* 9 digits are exact for a float */
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(object);
    if (!text)
        return run_error(c, "-o: %s: out of memory", r->path);
    errno = 0;
    bool good = fputs(text, r->f) >= 0 && fputc('\n', r->f) != EOF && fflush(r->f) == 0;
    int why = errno;
    free(text);
    return good ? EXIT_GOOD : cannot(c, r, why ? why : EIO);
}

int results_close(const struct command *c, struct results *r) {
    int code = EXIT_GOOD;
    errno = 0;
    if (r->f && fclose(r->f) != 0)
        code = cannot(c, r, errno ? errno : EIO);
    json_decref(r->finished);
    *r = (struct results){0};
    return code;
}
