/* SPDX-License-Identifier: Apache-2.0 */
/* files.c: text that comes in, and results that go out as files.
 *
 *     lines     | given out | not yet \n the next ... | room |
 *               0           start                     end    cap
 *
 *     PATH.tmp-N  --written--> complete --rename--> PATH      out_commit
 *                 --error, Ctrl-C-> removed                   out_abandon
 */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* ---- text in --------------------------------------------------------------------------------- */

/* Far beyond any context: a wrong path (a disk, a video) is refused instead of read to the end. */
static const size_t TEXT_BYTES_MAX = (size_t)1 << 30;

static int read_stream(const struct command *c, const char *flag, const char *name, FILE *f,
                       struct text_buf *text) {
    char chunk[1 << 16];
    for (;;) {
        size_t n = fread(chunk, 1, sizeof chunk, f);
        if (!text_append(text, chunk, n))
            return run_error(c, "%s: %s: out of memory", flag, name);
        if (ferror(f) && errno == EINTR && interrupted())
            return EXIT_INTERRUPTED;
        if (ferror(f))
            return run_error(c, "%s: %s: %s", flag, name, strerror(errno));
        if (text->len > TEXT_BYTES_MAX)
            return run_error(c, "%s: %s: longer than %zu bytes", flag, name, TEXT_BYTES_MAX);
        if (n < sizeof chunk)
            return EXIT_GOOD;
    }
}

int read_text(const struct command *c, const char *flag, const char *path, char **text,
              size_t *len) {
    bool standard = strcmp(path, "-") == 0;
    FILE *f = stdin;
    int code, fd;
    kvasir_error err;
    if (!standard) {
        if (file_open_input(path, &fd, &err))
            return run_error(c, "%s: %s", flag, err.text);
        f = fdopen(fd, "rb");
        if (!f) {
            close(fd);
            return run_error(c, "%s: %s: out of memory", flag, path);
        }
    }
    struct text_buf all = {0};
    code = read_stream(c, flag, standard ? "standard input" : path, f, &all);
    if (!standard)
        fclose(f);
    if (code) {
        text_free(&all);
        return code;
    }
    *text = all.data;
    *len = all.len;
    return EXIT_GOOD;
}

/* ---- lines in -------------------------------------------------------------------------------- */

static const char *name_of(const struct line_reader *in) {
    return in->name ? in->name : "standard input";
}

/* Reads more bytes to `end`; sets `over` at the end of the input. Refuses lines that are too
 * long. */
static int fill(const struct command *c, struct line_reader *in) {
    if (in->end == in->cap && in->start > 0) {
        memmove(in->data, in->data + in->start, in->end - in->start);
        in->base += in->start;
        in->end -= in->start;
        in->start = 0;
    } else if (in->end == in->cap) {
        size_t cap = in->cap ? 2 * in->cap : 1 << 18;
        if (cap > TEXT_BYTES_MAX)
            return run_error(c, "%s: line %zu (at byte %llu) is longer than %zu bytes", name_of(in),
                             in->number, (unsigned long long)in->byte, TEXT_BYTES_MAX);
        if (!ARRAY_GROW(in->data, in->cap, cap))
            return run_error(c, "%s: out of memory", name_of(in));
    }
    if (fflush(stdout) != 0) /* the sender of the last line may be waiting for its answer */
        return finish_output(c);
    ssize_t n;
    do
        n = read(in->fd, in->data + in->end, in->cap - in->end);
    while (n < 0 && errno == EINTR && !interrupted());
    if (n < 0 && errno == EINTR)
        return EXIT_INTERRUPTED;
    if (n < 0)
        return run_error(c, "%s: %s", name_of(in), strerror(errno));
    in->end += (size_t)n;
    in->over = n == 0;
    return EXIT_GOOD;
}

int line_next(const struct command *c, struct line_reader *in) {
    size_t seen = 0; /* bytes after start that are known to contain no line end */
    in->number++;
    in->byte = in->base + in->start;
    for (;;) {
        const char *from = in->data + in->start, *end = NULL;
        size_t left = in->end - in->start;
        if (left > seen)
            end = memchr(from + seen, '\n', left - seen);
        if (end || in->over) {
            in->len = end ? (size_t)(end - from) : left;
            in->line = end || left ? from : NULL;
            in->start += in->len + (end != NULL);
            return EXIT_GOOD;
        }
        seen = left;
        int code = fill(c, in);
        if (code)
            return code;
    }
}

void line_reader_free(struct line_reader *in) {
    free(in->data);
    *in = (struct line_reader){0};
}

bool line_is_blank(const char *line, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (!strchr(" \t\r", line[i]) || line[i] == 0)
            return false;
    return true;
}

/* ---- files out ------------------------------------------------------------------------------- */

static int cannot_write(const struct command *c, const struct out_file *o, const char *why) {
    return run_error(c, "%s: cannot write %s", o->flag, why);
}

/* path: resolved, because a link's target is replaced, not the link. */
static int open_resolved(const struct command *c, struct out_file *o, const char *path,
                         const struct stat *st) {
    kvasir_error err;
    int error = st && S_ISDIR(st->st_mode) ? EISDIR : st && access(path, W_OK) != 0 ? errno : 0;
    if (error)
        return run_error(c, "%s: cannot write %s: %s", o->flag, path, strerror(error));
    o->direct = st && !S_ISREG(st->st_mode);
    if (o->direct ? file_begin(&o->to.out, path, &err)
                  : file_replace_begin(&o->to, path, false, &err))
        return cannot_write(c, o, err.text);
    o->open = true;
    return EXIT_GOOD;
}

int out_open(const struct command *c, struct out_file *o, const char *flag, const char *path) {
    *o = (struct out_file){.flag = flag};
    struct stat st;
    if (stat(path, &st) != 0)
        return open_resolved(c, o, path, NULL);
    char *resolved = realpath(path, NULL);
    if (!resolved)
        return run_error(c, "%s: %s: %s", flag, path, strerror(errno));
    int code = open_resolved(c, o, resolved, &st);
    free(resolved);
    return code;
}

static int check_room(const struct command *c, const struct out_file *o, uint64_t bytes) {
    struct statvfs fs;
    if (o->direct || fstatvfs(o->to.out.fd, &fs) != 0)
        return EXIT_GOOD; /* the writes will fail */
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    char need[24], left[24];
    if (bytes > room)
        return run_error(c, "%s: %s needs %s, its disk has %s left", o->flag, o->to.path,
                         human_bytes((double)bytes, need), human_bytes((double)room, left));
    return EXIT_GOOD;
}

int out_write(const struct command *c, struct out_file *o, const void *data, size_t bytes) {
    kvasir_error err;
    return file_write(&o->to.out, data, bytes, &err) ? cannot_write(c, o, err.text) : EXIT_GOOD;
}

int out_write_header(const struct command *c, struct out_file *o, struct st_header *h) {
    struct text_buf text = {0};
    uint64_t end = h->end;
    int code = st_finish(h, 0, &text) ? check_room(c, o, text.len + end)
                                      : run_error(c, "%s: out of memory", o->flag);
    if (!code)
        code = out_write(c, o, text.data, text.len);
    text_free(&text);
    return code;
}

int out_commit(const struct command *c, struct out_file *o) {
    kvasir_error err;
    int code = EXIT_GOOD;
    if (!o->direct && file_replace_commit(&o->to, &err))
        code = cannot_write(c, o, err.text);
    out_abandon(o);
    return code;
}

void out_abandon(struct out_file *o) {
    if (o->open && o->direct)
        file_abandon(&o->to.out);
    else if (o->open)
        file_replace_abandon(&o->to);
    *o = (struct out_file){0};
}
