/* SPDX-License-Identifier: Apache-2.0 */
/* identity.c: the strong hash of all that a page's bytes depend on beside its tokens. Stored pages
 * outlive the process and are shared, so what names them (cache/tier.h) must not be equal by
 * accident: 128 bits of BLAKE2b, over everything.
 *
 *     checkpoint = H(H(text) | H(block 0) | H(block 1) | ...)
 *         text      configuration, and for every tensor, in order of names: name, type, shape,
 *                   groups, lengths of its parts (fingerprint.c)
 *         blocks    data, scales and biases of these tensors, 8 MiB at most, by several threads
 *     context = H(all that context_fingerprint hashes, with the checkpoint's 128 bits | backend,
 *                 tier, MODEL_ARITHMETIC_VERSION | layer groups, places of layers, states)
 *
 * A checkpoint of 5 GB takes seconds, so results are kept in a text file. One line each:
 *
 *     H(text) files device inode size mtime ctime ... checkpoint XXH3
 *
 * with five numbers for each file, and a sum of what is before it. H(text) is part of what must
 * agree, because config.json says how tensors are read and is not among the files.
 *
 * Not thread-safe: one thread at a time for a model. Two processes may write the file at the same
 * time; one of them loses its line then.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <sodium.h>
#include <xxhash.h>

#include "engine/engine.h"
#include "util/topology.h"

enum { BLOCK_BYTES = 8 << 20, THREADS_MAX = 16, LINES_MAX = 64, CACHE_BYTES_MAX = 4 << 20 };
enum { KEY_DIGITS = 32, SUM_DIGITS = 16 };
#define SETTLED_NS INT64_C(2000000000) /* the coarsest times of file systems */

static struct tier_key hash_of(const void *data, size_t bytes) {
    struct tier_key key;
    int bad =
        crypto_generichash((unsigned char *)&key, sizeof key, data, bytes, NULL, 0); /* no key */
    ASSERT(bad == 0);
    return key;
}

static kvasir_status no_memory(kvasir_error *err) {
    return fail(err, KVASIR_ERR_MEMORY, "checkpoint identity: out of memory");
}

/* ---- hashing a checkpoint -------------------------------------------------------------------- */

struct block {
    const uint8_t *data;
    size_t bytes;
};
struct blocks {
    struct block *list;      /* [n] */
    struct tier_key *hashes; /* [n + 1]; the first is that of the text */
    size_t n, cap;
    size_t first; /* of those that the pool works on */
    uint64_t total;
};

static bool add_part(struct blocks *b, const struct tensor_part *part) {
    for (size_t at = 0; at < part->bytes; at += BLOCK_BYTES) {
        if (!ARRAY_GROW(b->list, b->cap, b->n + 1))
            return false;
        const size_t bytes = min_size(part->bytes - at, BLOCK_BYTES);
        b->list[b->n++] = (struct block){part->data + at, bytes};
    }
    b->total += part->bytes;
    return true;
}

/* The text, and the blocks in the order of its tensors. */
static bool list_checkpoint(const struct model *m, struct text_buf *text, struct blocks *b) {
    const struct checkpoint *c = model_checkpoint(m);
    bool good =
        text_puts(text, "kvasir checkpoint 1\n") && fingerprint_put_config(text, model_config(m));
    for (size_t i = 0; good && i < checkpoint_tensor_count(c); i++) {
        struct tensor_part parts[TENSOR_PARTS];
        good = fingerprint_put_tensor(text, checkpoint_tensor_at(c, i), parts) &&
               text_printf(text, "bytes %zu %zu %zu\n", parts[0].bytes, parts[1].bytes,
                           parts[2].bytes);
        for (int p = 0; good && p < TENSOR_PARTS; p++)
            good = add_part(b, &parts[p]);
    }
    return good;
}

static void hash_block(void *ctx, size_t item, int worker) {
    struct blocks *b = ctx;
    const size_t i = b->first + item;
    (void)worker;
    ASSERT(i < b->n);
    b->hashes[1 + i] = hash_of(b->list[i].data, b->list[i].bytes);
}

static kvasir_status hash_blocks(struct blocks *b, identity_progress_fn *progress, void *user,
                                 kvasir_error *err) {
    struct thread_pool *pool;
    struct topology machine;
    topology_read(&machine);
    const int threads = (int)min_u32((uint32_t)topology_threads(&machine), THREADS_MAX);
    const size_t at_a_time = 4 * (size_t)threads;
    TRY(thread_pool_create(&pool, threads, err));
    uint64_t done = 0;
    if (progress)
        progress(user, 0, b->total);
    for (b->first = 0; b->first < b->n; b->first += at_a_time) {
        const size_t n = min_size(b->n - b->first, at_a_time);
        thread_pool_run(pool, n, hash_block, b);
        for (size_t i = 0; i < n; i++)
            done += b->list[b->first + i].bytes;
        if (progress)
            progress(user, done, b->total);
    }
    ASSERT(done == b->total);
    thread_pool_destroy(pool);
    return KVASIR_OK;
}

/* ---- the file of earlier results ------------------------------------------------------------- */

/* The part of a line that must agree, with the blank before the result. *kept: a result may be
 * found and kept under it. */
static bool put_files(struct text_buf *line, const struct checkpoint *c, struct tier_key text,
                      bool *kept) {
    char digits[KEY_DIGITS + 1];
    struct timespec t;
    size_t n = 0;
    clock_gettime(CLOCK_REALTIME, &t);
    const int64_t before = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec - SETTLED_NS;
    while (checkpoint_file(c, n))
        n++;
    tier_key_text(text, digits);
    bool good = text_printf(line, "%s %zu ", digits, n);
    *kept = n > 0;
    for (size_t i = 0; good && *kept && i < n; i++) {
        struct file_stamp s;
        *kept =
            file_map_stamp(checkpoint_file(c, i), &s) && s.mtime_ns < before && s.ctime_ns < before;
        good = !*kept ||
               text_printf(line, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 " %" PRId64 " ",
                           s.device, s.inode, s.size, s.mtime_ns, s.ctime_ns);
    }
    return good;
}

static void sum_text(const char *line, size_t len, char out[SUM_DIGITS + 1]) {
    fingerprint_text(XXH3_64bits(line, len), out);
}

static int digit_of(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The inverse of tier_key_text. */
static bool key_of_text(const char *text, struct tier_key *out) {
    uint8_t bytes[sizeof *out];
    for (size_t i = 0; i < sizeof bytes; i++) {
        const int high = digit_of(text[2 * i]), low = digit_of(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    memcpy(out, bytes, sizeof *out);
    return true;
}

/* Whether a line, without its end, has its sum. */
static bool line_is_good(const char *line, size_t len) {
    char sum[SUM_DIGITS + 1];
    if (len < KEY_DIGITS + 1 + SUM_DIGITS || memchr(line, 0, len))
        return false;
    sum_text(line, len - SUM_DIGITS, sum);
    return memcmp(line + len - SUM_DIGITS, sum, SUM_DIGITS) == 0;
}

/* The result of a good line that begins with `files`; false: there is none. */
static bool find_line(const char *text, size_t size, const struct text_buf *files,
                      struct tier_key *out) {
    for (size_t at = 0; at < size;) {
        const char *line = text + at, *end = memchr(line, '\n', size - at);
        const size_t len = end ? (size_t)(end - line) : size - at;
        at += len + 1;
        if (len == files->len + KEY_DIGITS + 1 + SUM_DIGITS && line_is_good(line, len) &&
            memcmp(line, files->data, files->len) == 0 && line[files->len + KEY_DIGITS] == ' ' &&
            key_of_text(line + files->len, out))
            return true;
    }
    return false;
}

/* Appends the newest good lines of an earlier file, oldest first, so that one more has room. */
static bool keep_lines(const char *text, size_t size, struct text_buf *out) {
    size_t good = 0, seen = 0;
    for (int pass = 0; pass < 2; pass++)
        for (size_t at = 0; at < size;) {
            const char *line = text + at, *end = memchr(line, '\n', size - at);
            const size_t len = end ? (size_t)(end - line) : size - at;
            at += len + 1;
            if (!line_is_good(line, len))
                continue;
            if (pass == 0)
                good++;
            else if (++seen + LINES_MAX > good + 1 &&
                     !(text_append(out, line, len) && text_puts(out, "\n")))
                return false;
        }
    return true;
}

static kvasir_status write_file(const char *path, const struct text_buf *text, kvasir_error *err) {
    struct file_replacer file;
    kvasir_status status;
    TRY(file_replace_begin(&file, path, true, err));
    TRY_GOTO(file_write(&file.out, text->data, text->len, err));
    TRY_GOTO(file_replace_commit(&file, err));
done:
    file_replace_abandon(&file);
    return status;
}

/* Failures are none of the caller's business: the next call hashes again. */
static void remember(const char *path, const char *old, size_t size, const struct text_buf *files,
                     struct tier_key key) {
    struct text_buf line = {0}, all = {0};
    char digits[KEY_DIGITS + 1], sum[SUM_DIGITS + 1];
    tier_key_text(key, digits);
    if (text_printf(&line, "%s%s ", files->data, digits)) {
        sum_text(line.data, line.len, sum);
        if (keep_lines(old, size, &all) && text_printf(&all, "%s%s\n", line.data, sum))
            (void)!write_file(path, &all, NULL);
    }
    text_free(&line);
    text_free(&all);
}

/* ---- the checkpoint -------------------------------------------------------------------------- */

/* Hashes all blocks; an error if a file changed since it was opened. */
static kvasir_status hash_all(const struct checkpoint *c, struct blocks *b, struct tier_key text,
                              identity_progress_fn *progress, void *user, struct tier_key *out,
                              kvasir_error *err) {
    b->hashes = mem_calloc(b->n + 1, sizeof *b->hashes);
    if (!b->hashes)
        return no_memory(err);
    b->hashes[0] = text;
    TRY(hash_blocks(b, progress, user, err));
    *out = hash_of(b->hashes, (b->n + 1) * sizeof *b->hashes);
    return checkpoint_verify(c, err);
}

/* The same, unless the file of earlier results has it. */
static kvasir_status find_or_hash(const char *path, const struct checkpoint *c, struct blocks *b,
                                  struct tier_key text, identity_progress_fn *progress, void *user,
                                  struct tier_key *out, kvasir_error *err) {
    struct text_buf before = {0}, after = {0};
    char *old = NULL;
    size_t size = 0;
    bool kept, still;
    kvasir_status status = KVASIR_OK;
    if (!put_files(&before, c, text, &kept)) {
        status = no_memory(err);
        goto done;
    }
    if (file_read_all(path, CACHE_BYTES_MAX, &old, &size, NULL) != KVASIR_OK)
        size = 0;
    TRY_GOTO(checkpoint_verify(c, err)); /* the stamp is that of what is mapped */
    if (kept && find_line(old, size, &before, out))
        goto done;
    TRY_GOTO(hash_all(c, b, text, progress, user, out, err));
    if (kept && put_files(&after, c, text, &still) && still && strcmp(before.data, after.data) == 0)
        remember(path, old, size, &before, *out);
done:
    mem_free(old);
    text_free(&before);
    text_free(&after);
    return status;
}

kvasir_status checkpoint_identity(const struct kvasir_model *m, const char *cache_path,
                                  identity_progress_fn *progress, void *user, struct tier_key *out,
                                  kvasir_error *err) {
    const struct checkpoint *c = model_checkpoint(m->model);
    struct text_buf text = {0};
    struct blocks b = {0};
    (void)!sodium_init(); /* it picks the fast code; what it fails with does not concern hashes */
    kvasir_status status = KVASIR_OK;
    if (!list_checkpoint(m->model, &text, &b))
        status = no_memory(err);
    else {
        const struct tier_key head = hash_of(text.data, text.len);
        status = cache_path ? find_or_hash(cache_path, c, &b, head, progress, user, out, err)
                            : hash_all(c, &b, head, progress, user, out, err);
    }
    text_free(&text);
    mem_free(b.list);
    mem_free(b.hashes);
    return status;
}

/* ---- the context ----------------------------------------------------------------------------- */

static bool put_groups(struct text_buf *b, const struct kvasir_context *c) {
    for (uint32_t g = 0; g < c->n_groups; g++) {
        const struct kv_shape *s = &c->options.shapes[g];
        struct kv_format k, v;
        struct page_layout layout;
        kv_cache_formats(c->cache, g, &k, &v);
        page_layout_init(&layout, s->layers, s->kv_heads, s->head_dim, k, v);
        if (!text_printf(b, "group %u: %u %u %u window %u centred %d bytes %zu\n", g, s->layers,
                         s->kv_heads, s->head_dim, s->window, s->centre != NULL, layout.page_bytes))
            return false;
    }
    return true;
}

static bool put_places(struct text_buf *b, const struct model *m) {
    const struct model_config *c = model_config(m);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        bool good;
        if (c->layers[i].kind == LAYER_ATTENTION) {
            const struct kv_place at = model_kv_place(m, i);
            good = text_printf(b, "layer %u: page %u %u\n", i, at.group, at.layer);
        } else {
            const struct state_layout s = model_state_layout(m, i);
            good = text_printf(b, "layer %u: state %" PRIu64 " %" PRIu64 " %" PRIu64 " %u %u\n", i,
                               s.window, s.matrix, s.end, s.width, s.channels);
        }
        if (!good)
            return false;
    }
    return true;
}

kvasir_status context_identity(const struct kvasir_context *c, struct tier_key checkpoint,
                               struct tier_key *out, kvasir_error *err) {
    const struct model *m = c->model->model;
    struct text_buf b = {0};
    char digits[KEY_DIGITS + 1];
    tier_key_text(checkpoint, digits);
    const bool good =
        fingerprint_put_context(&b, c, digits) &&
        text_printf(&b, "kvasir identity 1\nbackend %s tier %s\nmodel arithmetic %d\n",
                    c->device.kind, cpu_tier_of_bits(c->device.tier), MODEL_ARITHMETIC_VERSION) &&
        text_printf(&b, "page of %d tokens\ngroups %u state %" PRIu64 "\n", (int)TILE_TOKENS,
                    c->n_groups, model_state_bytes(m)) &&
        put_groups(&b, c) && put_places(&b, m);
    if (good)
        *out = hash_of(b.data, b.len);
    text_free(&b);
    return good ? KVASIR_OK : fail(err, KVASIR_ERR_MEMORY, "context identity: out of memory");
}
