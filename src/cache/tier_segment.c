/* SPDX-License-Identifier: Apache-2.0 */
/* tier_segment.c: reads and writes the parts of one segment file (tier_segment.h). It keeps nothing
 * and may be called by any thread; who may write is the caller's business. */
#include "cache/tier_segment.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { SCAN_BYTES = 256 << 10 }; /* read at once where heads are looked for block by block */

/* ---- names and sizes ------------------------------------------------------------------------- */

void segment_name(uint64_t number, char out[SEGMENT_NAME_BYTES]) {
    ASSERT(number <= SEGMENT_LAST);
    snprintf(out, SEGMENT_NAME_BYTES, "%08" PRIu32 ".kvs", (uint32_t)number);
}

uint64_t segment_number(const char *name) {
    uint64_t number = 0;
    if (strspn(name, "0123456789") != 8 || strcmp(name + 8, ".kvs") != 0)
        return 0;
    for (int i = 0; i < 8; i++)
        number = number * 10 + (uint64_t)(name[i] - '0');
    return number;
}

uint64_t segment_footer_bytes(size_t rows) {
    return round_up(rows * sizeof(struct segment_row) + sizeof(struct segment_end), BLOCK_BYTES);
}

struct segment_row segment_row_of(const struct record_head *head, uint64_t at) {
    return (struct segment_row){.key = head->key,
                                .context = head->context.word[0],
                                .root = head->root.word[0],
                                .written = head->written,
                                .expires = head->expires,
                                .block = (uint32_t)(at / BLOCK_BYTES),
                                .units = (uint32_t)(head->bytes / BLOCK_BYTES),
                                .kind = head->kind};
}

static void set_sum(uint64_t out[2], XXH128_hash_t sum) {
    out[0] = sum.low64;
    out[1] = sum.high64;
}

static bool is_sum(const uint64_t a[2], XXH128_hash_t sum) {
    return a[0] == sum.low64 && a[1] == sum.high64;
}

/* ---- whole reads and writes ------------------------------------------------------------------ */

/* Reads or writes all parts, which change. */
static int move_all(int64_t (*move)(const struct tier_files *f, int fd, const struct iovec *parts,
                                    int n, uint64_t at),
                    const struct tier_files *f, int fd, struct iovec *parts, int n, uint64_t at) {
    for (;;) {
        for (; n > 0 && parts->iov_len == 0; n--)
            parts++;
        if (n == 0)
            return 0;
        int64_t done = move(f, fd, parts, n, at);
        if (done <= 0)
            return done ? (int)done : -ENODATA;
        at += (uint64_t)done;
        for (struct iovec *p = parts; done > 0; p++) {
            const size_t part = min_size((size_t)done, p->iov_len);
            p->iov_base = (char *)p->iov_base + part;
            p->iov_len -= part;
            done -= (int64_t)part;
        }
    }
}

int segment_read_parts(const struct tier_files *f, int fd, struct iovec *parts, int n,
                       uint64_t at) {
    return move_all(f->read, f, fd, parts, n, at);
}

int segment_read_all(const struct tier_files *f, int fd, void *data, size_t bytes, uint64_t at) {
    struct iovec part = {data, bytes};
    return segment_read_parts(f, fd, &part, 1, at);
}

int segment_write_parts(const struct tier_files *f, int fd, struct iovec *parts, int n,
                        uint64_t at) {
    return move_all(f->write, f, fd, parts, n, at);
}

int segment_write_head(const struct tier_files *f, int fd, uint64_t number, uint64_t now) {
    union {
        struct segment_head head;
        uint8_t bytes[BLOCK_BYTES];
    } block = {.bytes = {0}};
    memcpy(block.head.magic, SEGMENT_MAGIC, sizeof block.head.magic);
    block.head.number = number;
    block.head.created = now;
    set_sum(block.head.sum, XXH3_128bits(&block.head, offsetof(struct segment_head, sum)));
    struct iovec part = {&block, sizeof block};
    return segment_write_parts(f, fd, &part, 1, 0);
}

static XXH128_hash_t sum_of_footer(const struct segment_row *rows, const struct segment_end *end) {
    /* The rows' sum is summed with the end, which has no room for both. */
    const struct {
        XXH128_hash_t rows;
        struct segment_end end;
    } both = {XXH3_128bits(rows, end->rows * sizeof *rows), *end};
    return XXH3_128bits(&both, sizeof both.rows + offsetof(struct segment_end, sum));
}

int segment_write_footer(const struct tier_files *f, int fd, uint64_t number,
                         const struct segment_row *rows, size_t n, uint64_t at) {
    static const uint8_t zeros[BLOCK_BYTES];
    const size_t table = n * sizeof *rows;
    struct segment_end end = {.number = number, .rows = n, .table = at};
    memcpy(end.magic, SEGMENT_END_MAGIC, sizeof end.magic);
    set_sum(end.sum, sum_of_footer(rows, &end));
    struct iovec parts[] = {
        {(void *)(uintptr_t)rows, table},
        {(void *)(uintptr_t)zeros, segment_footer_bytes(n) - table - sizeof end},
        {&end, sizeof end}};
    return segment_write_parts(f, fd, parts, 3, at);
}

/* ---- reading a footer ------------------------------------------------------------------------ */

static bool add_row(struct segment_content *c, const struct segment_row *row) {
    if (!ARRAY_GROW(c->rows, c->cap, c->n + 1))
        return false;
    c->rows[c->n++] = *row;
    return true;
}

/* A row that can be what it says. */
static bool row_is_sane(const struct segment_row *row, uint64_t table) {
    const uint64_t end = ((uint64_t)row->block + 1 + row->units) * BLOCK_BYTES;
    return row->block >= 1 && end <= table && row->kind >= RECORD_PAGE &&
           row->kind <= RECORD_FORGET && (row->units > 0) == (row->kind != RECORD_FORGET);
}

static bool end_is_sane(const struct segment_end *e, uint64_t number, uint64_t size) {
    return memcmp(e->magic, SEGMENT_END_MAGIC, sizeof e->magic) == 0 && e->number == number &&
           e->table >= BLOCK_BYTES && e->table % BLOCK_BYTES == 0 && e->table < size &&
           e->rows <= e->table / BLOCK_BYTES && e->table + segment_footer_bytes(e->rows) == size;
}

static bool read_head(const struct tier_files *f, int fd, uint64_t number) {
    struct segment_head head;
    return segment_read_all(f, fd, &head, sizeof head, 0) == 0 &&
           memcmp(head.magic, SEGMENT_MAGIC, sizeof head.magic) == 0 && head.number == number &&
           is_sum(head.sum, XXH3_128bits(&head, offsetof(struct segment_head, sum)));
}

static bool read_end(const struct tier_files *f, int fd, uint64_t number, uint64_t size,
                     struct segment_end *end) {
    return size >= 2 * BLOCK_BYTES && size % BLOCK_BYTES == 0 &&
           segment_read_all(f, fd, end, sizeof *end, size - sizeof *end) == 0 &&
           end_is_sane(end, number, size);
}

uint64_t segment_count_rows(const struct tier_files *f, int fd, uint64_t number, uint64_t size) {
    struct segment_end end;
    return read_end(f, fd, number, size, &end) ? end.rows : 0;
}

/* 0: c->footer says whether there is one; then its rows are there. */
static int read_footer(const struct tier_files *f, int fd, uint64_t number,
                       struct segment_content *c) {
    struct segment_end end;
    if (!read_end(f, fd, number, c->size, &end))
        return 0;
    if (!ARRAY_GROW(c->rows, c->cap, max_size(end.rows, 1)))
        return -ENOMEM;
    if (segment_read_all(f, fd, c->rows, end.rows * sizeof *c->rows, end.table) != 0 ||
        !is_sum(end.sum, sum_of_footer(c->rows, &end)))
        return 0;
    for (size_t i = 0; i < end.rows; i++)
        if (row_is_sane(&c->rows[i], end.table))
            c->rows[c->n++] = c->rows[i];
    c->end = end.table;
    c->footer = true;
    return 0;
}

/* ---- looking for heads ----------------------------------------------------------------------- */

/* A part of the file that was read. */
struct window {
    uint8_t *bytes;
    uint64_t at;
    size_t len;
};

/* The block at `at`, of which at least a head can be read, or NULL: it cannot. */
static const struct record_head *block_at(const struct tier_files *f, int fd, struct window *w,
                                          uint64_t at, uint64_t size, bool seeking) {
    if (at < w->at || at + RECORD_HEAD_BYTES > w->at + w->len) {
        w->at = at;
        w->len = seeking ? min_size(SCAN_BYTES, size - at) : RECORD_HEAD_BYTES;
        if (segment_read_all(f, fd, w->bytes, w->len, at) != 0) {
            w->len = 0;
            return NULL;
        }
    }
    return (const void *)(w->bytes + (at - w->at));
}

static bool head_is_sane(const struct record_head *head) {
    return record_head_is_valid(head, (uint64_t)UINT32_MAX * BLOCK_BYTES) &&
           head->bytes % BLOCK_BYTES == 0 && head->kind >= RECORD_PAGE &&
           head->kind <= RECORD_FORGET && (head->bytes > 0) == (head->kind != RECORD_FORGET);
}

/* Record after record up to `until`. Where no head is, block after block up to the next one. A
 * record that goes beyond the end was the last one: whatever its payload looks like, it is not
 * searched. */
static int scan(const struct tier_files *f, int fd, uint64_t until, struct segment_content *c) {
    struct window w = {.bytes = mem_alloc(SCAN_BYTES)};
    bool seeking = false;
    int error = w.bytes ? 0 : -ENOMEM;
    c->end = BLOCK_BYTES;
    for (uint64_t at = BLOCK_BYTES; !error && at + BLOCK_BYTES <= until;) {
        const struct record_head *head = block_at(f, fd, &w, at, until, seeking);
        if (head && head_is_sane(head)) {
            if (head->bytes > until - at - BLOCK_BYTES)
                break;
            const struct segment_row row = segment_row_of(head, at);
            if (!add_row(c, &row))
                error = -ENOMEM;
            c->damaged += seeking;
            seeking = false;
            at += BLOCK_BYTES + head->bytes;
            c->end = at;
        } else {
            at += head || !seeking ? BLOCK_BYTES : SCAN_BYTES;
            seeking = true;
        }
    }
    mem_free(w.bytes);
    return error;
}

static int open_content(const struct tier_files *f, int fd, uint64_t number,
                        struct segment_content *c) {
    *c = (struct segment_content){.end = BLOCK_BYTES};
    const int error = f->size(f, fd, &c->size);
    if (error)
        return error;
    c->head = read_head(f, fd, number);
    return read_footer(f, fd, number, c);
}

int segment_load(const struct tier_files *f, int fd, uint64_t number, struct segment_content *c) {
    int error = open_content(f, fd, number, c);
    if (!error && !c->footer)
        error = scan(f, fd, c->size, c);
    if (error)
        segment_content_free(c);
    return error;
}

int segment_scan(const struct tier_files *f, int fd, uint64_t number, struct segment_content *c) {
    int error = open_content(f, fd, number, c);
    const uint64_t until = c->footer ? c->end : c->size;
    c->n = 0;
    if (!error)
        error = scan(f, fd, until, c);
    if (error)
        segment_content_free(c);
    return error;
}

void segment_content_free(struct segment_content *c) {
    mem_free(c->rows);
    c->rows = NULL;
    c->n = c->cap = 0;
}

/* ---- what was forgotten ---------------------------------------------------------------------- */

static uint64_t forget_hash(uint64_t context, uint64_t root) {
    return mix_bits(context ^ mix_bits(root + 1)) | 1;
}

static uint64_t *forget_slot(const struct forgets *f, uint64_t hash) {
    size_t i = hash >> 1 & (f->cap - 1);
    while (f->slots[i] != 0 && f->slots[i] != hash)
        i = (i + 1) & (f->cap - 1);
    return &f->slots[i];
}

bool forgets_have(const struct forgets *f, uint64_t context, uint64_t root) {
    return f->cap && *forget_slot(f, forget_hash(context, root)) != 0;
}

bool forgets_add(struct forgets *f, uint64_t context, uint64_t root) {
    if (forgets_have(f, context, root))
        return true;
    if (2 * (f->n + 1) > f->cap) {
        struct forgets more = {.cap = f->cap ? 2 * f->cap : 64};
        if (!(more.slots = mem_calloc(more.cap, sizeof *more.slots)))
            return false;
        for (size_t i = 0; i < f->cap; i++)
            if (f->slots[i])
                *forget_slot(&more, f->slots[i]) = f->slots[i];
        more.n = f->n;
        mem_free(f->slots);
        *f = more;
    }
    *forget_slot(f, forget_hash(context, root)) = forget_hash(context, root);
    f->n++;
    return true;
}
