/* SPDX-License-Identifier: Apache-2.0 */
/* files.c: text that comes in, results that go out as files, and the safetensors form of both.
 *
 *     lines     | given out | not yet \n the next ... | room |
 *               0           start                     end    cap
 *
 *     PATH.tmp  --written--> complete --rename--> PATH        out_commit
 *               --error, Ctrl-C-> removed                     out_abandon
 *
 *     safetensors:  | u64 n | JSON header, n bytes | tensor data in the header's order ...
 *                   {"logits":{"dtype":"F32","shape":[12,49152],"data_offsets":[0,2359296]}}
 *
 * Data are little-endian, as this program's machines are. Nothing in a file that is read is
 * trusted: the header's length, shapes and offsets are checked against the file's size.
 */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors data are little-endian"
#endif

/* ---- text in --------------------------------------------------------------------------------- */

/* Far beyond any context; a wrong path (a disk, a video) is refused instead of read to the end. */
static const size_t TEXT_BYTES_MAX = (size_t)1 << 30;

static int read_stream(const struct command *c, const char *flag, const char *name, FILE *f,
                       char **text, size_t *len) {
    size_t n = 0, cap = 1 << 16;
    char *data = malloc(cap + 1);
    int code = data ? EXIT_GOOD : run_error(c, "%s: %s: out of memory", flag, name);
    while (!code) {
        n += fread(data + n, 1, cap - n, f);
        if (ferror(f) && errno == EINTR && interrupted())
            code = EXIT_INTERRUPTED;
        else if (ferror(f))
            code = run_error(c, "%s: %s: %s", flag, name, strerror(errno));
        else if (n < cap)
            break;
        else if (cap >= TEXT_BYTES_MAX)
            code = run_error(c, "%s: %s: longer than %zu bytes", flag, name, TEXT_BYTES_MAX);
        else {
            char *grown = realloc(data, 2 * cap + 1);
            if (!grown)
                code = run_error(c, "%s: %s: out of memory", flag, name);
            else {
                data = grown;
                cap *= 2;
            }
        }
    }
    if (code) {
        free(data);
        return code;
    }
    data[n] = 0;
    *text = data;
    *len = n;
    return EXIT_GOOD;
}

int read_text(const struct command *c, const char *flag, const char *path, char **text,
              size_t *len) {
    if (strcmp(path, "-") == 0)
        return read_stream(c, flag, "standard input", stdin, text, len);
    FILE *f = fopen(path, "rb");
    if (!f)
        return run_error(c, "%s: %s: %s", flag, path, strerror(errno));
    int code = read_stream(c, flag, path, f, text, len);
    fclose(f);
    return code;
}

/* ---- lines in -------------------------------------------------------------------------------- */

static const char *name_of(const struct line_reader *in) {
    return in->name ? in->name : "standard input";
}

/* More bytes behind `end`; `over` at the end of the input. Refuses what is no line any more. */
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
        char *grown = realloc(in->data, cap);
        if (!grown)
            return run_error(c, "%s: out of memory", name_of(in));
        in->data = grown;
        in->cap = cap;
    }
    if (fflush(stdout) != 0) /* whoever wrote the last line may wait for its answer */
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
    size_t seen = 0; /* bytes from start on that hold no line end */
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

static int cannot_write(const struct command *c, const struct out_file *o, int error) {
    return run_error(c, "%s: cannot write %s: %s", o->flag, o->path, strerror(error));
}

int out_open(const struct command *c, struct out_file *o, const char *flag, const char *path) {
    *o = (struct out_file){.flag = flag};
    struct stat st;
    bool exists = stat(path, &st) == 0;
    /* What a link names is replaced, not the link. */
    o->path = exists ? realpath(path, NULL) : strdup(path);
    if (!o->path)
        return run_error(c, "%s: %s: %s", flag, path, strerror(errno));
    int error = 0;
    if (exists && S_ISDIR(st.st_mode))
        error = EISDIR;
    else if (exists && access(o->path, W_OK) != 0)
        error = errno;
    else if (exists && !S_ISREG(st.st_mode))
        o->f = fopen(o->path, "wb");
    else if ((o->tmp = malloc(strlen(o->path) + sizeof ".tmp")) != NULL) {
        strcat(strcpy(o->tmp, o->path), ".tmp");
        o->f = fopen(o->tmp, "wb");
    }
    if (o->f)
        return EXIT_GOOD;
    int code = cannot_write(c, o, error ? error : errno);
    out_abandon(o);
    return code;
}

int out_check_room(const struct command *c, const struct out_file *o, uint64_t bytes) {
    struct statvfs fs;
    if (!o->tmp || fstatvfs(fileno(o->f), &fs) != 0)
        return EXIT_GOOD; /* the writes will tell */
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    char need[24], left[24];
    if (bytes > room)
        return run_error(c, "%s: %s needs %s, its disk has %s left", o->flag, o->path,
                         human_bytes((double)bytes, need), human_bytes((double)room, left));
    return EXIT_GOOD;
}

int out_write(const struct command *c, struct out_file *o, const void *data, size_t bytes) {
    errno = 0;
    if (fwrite(data, 1, bytes, o->f) != bytes)
        return cannot_write(c, o, errno ? errno : EIO);
    return EXIT_GOOD;
}

int out_commit(const struct command *c, struct out_file *o) {
    errno = 0;
    /* on the disk before its name is: a crash leaves the old file or the new one */
    int error = o->tmp && (fflush(o->f) != 0 || fsync(fileno(o->f)) != 0) ? errno : 0;
    if (fclose(o->f) != 0 && !error)
        error = errno ? errno : EIO;
    o->f = NULL;
    if (!error && o->tmp && rename(o->tmp, o->path) != 0)
        error = errno;
    int code = error ? cannot_write(c, o, error) : EXIT_GOOD;
    if (error && o->tmp)
        unlink(o->tmp);
    free(o->tmp);
    free(o->path);
    *o = (struct out_file){0};
    return code;
}

void out_abandon(struct out_file *o) {
    if (o->f) {
        fclose(o->f);
        if (o->tmp)
            unlink(o->tmp);
    }
    free(o->tmp);
    free(o->path);
    *o = (struct out_file){0};
}

/* ---- safetensors ----------------------------------------------------------------------------- */

enum { VALUE_BYTES = 4 }; /* F32, I32 */

int safetensors_begin(const struct command *c, struct out_file *o, const struct tensor_entry *t,
                      size_t n, json_t *metadata) {
    json_t *header = json_object();
    uint64_t end = 0;
    if (metadata)
        json_object_set(header, "__metadata__", metadata);
    for (size_t i = 0; i < n; i++) {
        uint64_t start = end, values = 1;
        json_t *shape = json_array();
        for (unsigned d = 0; d < t[i].rank; d++) {
            json_array_append_new(shape, json_integer((json_int_t)t[i].dims[d]));
            values *= t[i].dims[d];
        }
        end += values * VALUE_BYTES;
        json_object_set_new(header, t[i].name,
                            json_pack("{s:s, s:o, s:[I,I]}", "dtype", t[i].dtype, "shape", shape,
                                      "data_offsets", (json_int_t)start, (json_int_t)end));
    }
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    if (!text)
        return run_error(c, "%s: out of memory", o->flag);
    /* Spaces make the data start at a multiple of 8. */
    size_t len = strlen(text), padding = (8 - len % 8) % 8;
    uint64_t total = len + padding;
    int code = out_check_room(c, o, 8 + total + end);
    if (!code)
        code = out_write(c, o, &total, sizeof total);
    if (!code)
        code = out_write(c, o, text, len);
    if (!code)
        code = out_write(c, o, "        ", padding);
    free(text);
    return code;
}

int safetensors_read_header(const struct command *c, FILE *f, const char *path, json_t **header,
                            uint64_t *data_start) {
    /* Tables of a few tensors; a length past this is a damaged file, not a header. */
    static const uint64_t HEADER_BYTES_MAX = 1 << 20;
    uint64_t n;
    if (fread(&n, 1, sizeof n, f) != sizeof n)
        return run_error(c, "--base: %s: shorter than a safetensors header", path);
    if (n == 0 || n > HEADER_BYTES_MAX)
        return run_error(c, "--base: %s: a header of %llu bytes (at byte 0) is no base file", path,
                         (unsigned long long)n);
    char *text = malloc(n);
    if (!text)
        return run_error(c, "--base: %s: out of memory", path);
    json_error_t error;
    *header = fread(text, 1, n, f) == n ? json_loadb(text, n, 0, &error) : NULL;
    free(text);
    if (!json_is_object(*header)) {
        json_decref(*header);
        return run_error(c, "--base: %s: its header (at byte 8) is cut off or no JSON object",
                         path);
    }
    *data_start = 8 + n;
    return EXIT_GOOD;
}

/* The tensor's extent in the data, from its entry; false where a field is missing, negative or does
 * not fit the others. */
static bool read_entry(json_t *entry, const char *dtype, unsigned rank, uint64_t *dims,
                       uint64_t *start, uint64_t *end) {
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    json_t *shape = json_object_get(entry, "shape");
    json_t *offsets = json_object_get(entry, "data_offsets");
    if (!type || strcmp(type, dtype) != 0 || json_array_size(shape) != rank ||
        json_array_size(offsets) != 2)
        return false;
    uint64_t bytes = VALUE_BYTES;
    for (unsigned d = 0; d < rank; d++) {
        json_int_t v = json_integer_value(json_array_get(shape, d));
        if (v <= 0 || __builtin_mul_overflow(bytes, (uint64_t)v, &bytes))
            return false;
        dims[d] = (uint64_t)v;
    }
    json_int_t first = json_integer_value(json_array_get(offsets, 0));
    json_int_t behind = json_integer_value(json_array_get(offsets, 1));
    *start = (uint64_t)first;
    *end = (uint64_t)behind;
    return first >= 0 && behind >= first && *end - *start == bytes;
}

int safetensors_find(const struct command *c, const char *path, json_t *header, uint64_t data_start,
                     const char *name, const char *dtype, unsigned rank, uint64_t *dims,
                     uint64_t *offset) {
    json_t *entry = json_object_get(header, name);
    uint64_t start, end;
    if (!entry)
        return run_error(c, "--base: %s: has no tensor \"%s\": it was not written by --save-base",
                         path, name);
    if (!read_entry(entry, dtype, rank, dims, &start, &end))
        return run_error(c, "--base: %s: tensor \"%s\" is not %s of rank %u", path, name, dtype,
                         rank);
    struct stat st;
    if (stat(path, &st) != 0)
        return run_error(c, "--base: %s: %s", path, strerror(errno));
    if (end > (uint64_t)st.st_size || data_start > (uint64_t)st.st_size - end)
        return run_error(c, "--base: %s: cut off: \"%s\" ends at byte %llu, the file at %llu", path,
                         name, (unsigned long long)(data_start + end),
                         (unsigned long long)st.st_size);
    *offset = data_start + start;
    return EXIT_GOOD;
}
