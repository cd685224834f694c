/* SPDX-License-Identifier: Apache-2.0 */
/* 128-bit identities: whatever changes a bit of a page changes them, nothing else does, and the
 * file of earlier results never tells of another content. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "centres.h"
#include "engine/engine.h"
#include "model_files.h"
#include "tensors.h"

#include <cmocka.h>

#define TINY SHARED_DIR "/fixtures/tiny/"

static struct temp_folder folder;
static kvasir_error err;

static void need(kvasir_status status) {
    if (status != KVASIR_OK)
        fail_msg("%s", err.text);
}

/* ---- models ---------------------------------------------------------------------------------- */

static kvasir_model *open_model(const char *path) {
    kvasir_model *m;
    need(kvasir_model_open(path, &m, &err));
    return m;
}

/* Files that were written before are no longer too new for a result to be kept. */
static void let_settle(void) {
    struct timespec t = {.tv_sec = 2, .tv_nsec = 200000000};
    nanosleep(&t, NULL);
}

/* Files of the folder NAME in the temporary one, with `bytes` as its tensors. */
static const char *write_model(const char *name, const char *config, const struct text_buf *bytes) {
    static char path[96];
    char file[48];
    snprintf(path, sizeof path, "%s/%.16s", folder.path, name);
    (void)mkdir(path, 0700);
    snprintf(file, sizeof file, "%.16s/config.json", name);
    temp_write(&folder, file, config, strlen(config));
    snprintf(file, sizeof file, "%.16s/model.safetensors", name);
    temp_write(&folder, file, bytes->data, bytes->len);
    return path;
}

struct calls {
    unsigned n;
    uint64_t first, last, total;
};
static void count_call(void *user, uint64_t done, uint64_t total) {
    struct calls *c = user;
    if (c->n++ == 0)
        c->first = done;
    assert_true(done >= c->last && done <= total);
    c->last = done;
    c->total = total;
}

static struct tier_key identity_of(const kvasir_model *m, const char *cache, struct calls *calls) {
    struct tier_key key;
    *calls = (struct calls){0};
    need(checkpoint_identity(m, cache, count_call, calls, &key, &err));
    if (calls->n) {
        assert_true(calls->n >= 2 && calls->first == 0);
        assert_true(calls->last == calls->total && calls->total > 0);
    }
    return key;
}

static struct tier_key identity(const kvasir_model *m) {
    struct tier_key key;
    need(checkpoint_identity(m, NULL, NULL, NULL, &key, &err));
    return key;
}

static struct tier_key identity_of_path(const char *path) {
    kvasir_model *m = open_model(path);
    struct tier_key key = identity(m);
    kvasir_model_close(m);
    return key;
}

static void need_equal(struct tier_key a, struct tier_key b, bool equal, const char *what) {
    if (tier_key_equal(a, b) != equal)
        fail_msg("%s: %s", what, equal ? "differ" : "are equal");
}

/* ---- the checkpoint -------------------------------------------------------------------------- */

/* Where the data of a safetensors file begins. */
static size_t data_of(const struct text_buf *b) {
    uint64_t header;
    memcpy(&header, b->data, sizeof header);
    return sizeof header + header;
}

/* Any single byte of the tensors, also where the 64-bit fingerprint does not look. */
static void test_every_byte_counts(void **state) {
    (void)state;
    struct text_buf b = tiny_folder_tensors(false);
    const struct tier_key first = identity_of_path(write_model("a", TINY_MLX_CONFIG, &b));
    need_equal(first, identity_of_path(write_model("b", TINY_MLX_CONFIG, &b)), true, "copies");
    const size_t begin = data_of(&b);
    for (size_t at = begin; at < b.len; at += 1 + (b.len - begin) / 61) {
        b.data[at] ^= 16;
        need_equal(first, identity_of_path(write_model("b", TINY_MLX_CONFIG, &b)), false, "bytes");
        b.data[at] ^= 16;
    }
    b.data[b.len - 1] ^= 1;
    need_equal(first, identity_of_path(write_model("b", TINY_MLX_CONFIG, &b)), false, "the last");
    b.data[b.len - 1] ^= 1;
    need_equal(first, identity_of_path(write_model("b", TINY_MLX_CONFIG, &b)), true, "as before");
    text_free(&b);
}

/* A byte that the samples of the 64-bit fingerprint miss: it stays, the identity does not. */
static void test_more_than_samples(void **state) {
    (void)state;
    struct text_buf b = {0};
    char *text;
    size_t size;
    if (!path_exists(TINY "llama"))
        skip();
    need(file_read_all(TINY "llama/model.safetensors", 1 << 24, &text, &size, &err));
    b = (struct text_buf){.data = text, .len = size};
    char *config;
    need(file_read_all(TINY "llama/config.json", 1 << 20, &config, &size, &err));
    kvasir_model *m = open_model(write_model("samples", config, &b));
    uint64_t id = m->id;
    struct tier_key first = identity(m);
    need_equal(first, identity_of_path(TINY "llama"), true, "copies");
    kvasir_model_close(m);
    unsigned missed = 0;
    const size_t begin = data_of(&b);
    for (int i = 1; i < 8; i++) {
        b.data[begin + (b.len - begin) / 8 * (size_t)i + 77] ^= 1;
        m = open_model(write_model("samples", config, &b));
        missed += m->id == id;
        need_equal(first, identity(m), false, "weights");
        kvasir_model_close(m);
        b.data[begin + (b.len - begin) / 8 * (size_t)i + 77] ^= 1;
    }
    assert_true(missed > 0);
    text_free(&b);
    mem_free(config);
}

/* Fields that change arithmetic count, and others do not. */
static void test_configuration(void **state) {
    (void)state;
    struct text_buf b = tiny_folder_tensors(false);
    char config[1024];
    const int len = (int)strlen(TINY_MLX_CONFIG) - 1;
    const struct tier_key first = identity_of_path(write_model("a", TINY_MLX_CONFIG, &b));
    snprintf(config, sizeof config, "%.*s,\"rope_theta\":12345.0}", len, TINY_MLX_CONFIG);
    need_equal(first, identity_of_path(write_model("a", config, &b)), false, "rope_theta");
    snprintf(config, sizeof config, "%.*s,\"transformers_version\":\"4\"}", len, TINY_MLX_CONFIG);
    need_equal(first, identity_of_path(write_model("a", config, &b)), true, "another field");
    text_free(&b);
}

/* A template changes tokens, not pages; in a GGUF file it is among the metadata. */
static void test_template_does_not_count(void **state) {
    (void)state;
    struct text_buf b = tiny_gguf("llama");
    kvasir_model *m = open_model(temp_write(&folder, "tiny.gguf", b.data, b.len));
    const struct tier_key first = identity(m);
    assert_non_null(strstr(checkpoint_chat_template(model_checkpoint(m->model)), "messages[0]"));
    kvasir_model_close(m);
    overwrite(&b, behind(&b, "{{ messages["), "1", 1);
    m = open_model(temp_write(&folder, "tiny.gguf", b.data, b.len));
    assert_non_null(strstr(checkpoint_chat_template(model_checkpoint(m->model)), "messages[1]"));
    need_equal(first, identity(m), true, "templates");
    kvasir_model_close(m);
    b.data[b.len - 40] ^= 1;
    need_equal(first, identity_of_path(temp_write(&folder, "tiny.gguf", b.data, b.len)), false,
               "tensors");
    text_free(&b);
}

/* ---- the file of earlier results ------------------------------------------------------------- */

static size_t read_cache(const char *path, char **text) {
    size_t size;
    need(file_read_all(path, 1 << 20, text, &size, &err));
    return size;
}

static void need_read(const kvasir_model *m, const char *cache, struct tier_key key, bool read,
                      const char *what) {
    struct calls calls;
    need_equal(key, identity_of(m, cache, &calls), true, what);
    if ((calls.n > 0) != read)
        fail_msg("%s: %s", what, read ? "found" : "read again");
}

static void test_found_again(void **state) {
    (void)state;
    struct stat st;
    struct text_buf b = tiny_folder_tensors(false);
    char cache[192], model[96], other[128];
    snprintf(model, sizeof model, "%s", write_model("a", TINY_MLX_CONFIG, &b));
    snprintf(cache, sizeof cache, "%s", temp_file(&folder, "identities"));
    kvasir_model *m = open_model(model);
    const struct tier_key key = identity(m);
    need_read(m, cache, key, true, "just written");
    need_read(m, cache, key, true, "just written: not kept");
    assert_false(path_exists(cache));
    let_settle();
    need_read(m, cache, key, true, "first");
    assert_int_equal(stat(cache, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    need_read(m, cache, key, false, "second");
    kvasir_model_close(m);
    m = open_model(model);
    need_read(m, cache, key, false, "opened again");
    kvasir_model_close(m);

    /* config.json is not among the files, but what it says is */
    char config[1024];
    snprintf(config, sizeof config, "%.*s,\"rope_theta\":12345.0}",
             (int)strlen(TINY_MLX_CONFIG) - 1, TINY_MLX_CONFIG);
    temp_write(&folder, "a/config.json", config, strlen(config));
    m = open_model(model);
    struct calls calls;
    need_equal(key, identity_of(m, cache, &calls), false, "another configuration");
    assert_true(calls.n > 0);
    kvasir_model_close(m);
    temp_write(&folder, "a/config.json", TINY_MLX_CONFIG, strlen(TINY_MLX_CONFIG));

    /* the same size and time, other bytes, another inode */
    assert_int_equal(stat(temp_file(&folder, "a/model.safetensors"), &st), 0);
    b.data[data_of(&b) + 1000] ^= 1;
    write_model("other", TINY_MLX_CONFIG, &b);
    const struct timespec times[2] = {st.st_mtim, st.st_mtim};
    assert_int_equal(utimensat(0, temp_file(&folder, "other/model.safetensors"), times, 0), 0);
    snprintf(other, sizeof other, "%s/other/model.safetensors", folder.path);
    assert_int_equal(rename(other, temp_file(&folder, "a/model.safetensors")), 0);
    let_settle(); /* renaming is a change of the inode */
    m = open_model(model);
    const struct tier_key changed = identity_of(m, cache, &calls);
    assert_true(calls.n > 0);
    need_equal(key, changed, false, "another file");
    need_read(m, cache, changed, false, "another file, again");
    kvasir_model_close(m);
    text_free(&b);
}

static void write_cache(const char *text, size_t size) {
    temp_write(&folder, "identities", text, size);
}

/* Any flipped bit, any cut, and files that are no such file: hashed again, and the same result. */
static void test_damaged(void **state) {
    (void)state;
    if (!path_exists(TINY "llama"))
        skip();
    char cache[192], *good;
    struct text_buf b = tiny_folder_tensors(false);
    snprintf(cache, sizeof cache, "%s", temp_file(&folder, "identities"));
    (void)remove(cache);
    kvasir_model *m = open_model(write_model("a", TINY_MLX_CONFIG, &b));
    const struct tier_key key = identity(m);
    let_settle();
    need_read(m, cache, key, true, "first");
    const size_t size = read_cache(cache, &good);
    for (size_t i = 0; i + 1 < size; i++) { /* without its end, a line is as good */
        good[i] ^= (char)(1 << i % 7);
        write_cache(good, size);
        good[i] ^= (char)(1 << i % 7);
        need_read(m, cache, key, true, "flipped");
        need_read(m, cache, key, false, "written again");
        if (i % 5 == 0) {
            write_cache(good, i);
            need_read(m, cache, key, true, "cut");
        }
    }
    static char noise[1 << 16];
    memset(noise, 'x', sizeof noise);
    write_cache(noise, sizeof noise);
    need_read(m, cache, key, true, "noise");
    need_read(m, cache, key, false, "instead of noise");
    assert_int_equal(remove(cache), 0);
    assert_int_equal(mkdir(cache, 0700), 0);
    need_read(m, cache, key, true, "a folder");
    need_read(m, cache, key, true, "a folder, again");
    assert_int_equal(rmdir(cache), 0);
    need_read(m, "/no/such/folder/identities", key, true, "nowhere");
    kvasir_model_close(m);
    mem_free(good);
    text_free(&b);
}

/* 64 results, the oldest go. */
static void test_bounded(void **state) {
    (void)state;
    enum { MODELS = 70 };
    char cache[192], name[16], *text, paths[MODELS][96];
    struct text_buf b = tiny_folder_tensors(false);
    snprintf(cache, sizeof cache, "%s", temp_file(&folder, "bounded"));
    for (int i = 0; i < MODELS; i++) {
        b.data[b.len - 1] = (char)i;
        snprintf(name, sizeof name, "m%d", i);
        snprintf(paths[i], sizeof paths[i], "%s", write_model(name, TINY_MLX_CONFIG, &b));
    }
    let_settle();
    struct tier_key keys[MODELS];
    for (int i = 0; i < MODELS; i++) {
        struct calls calls;
        kvasir_model *m = open_model(paths[i]);
        keys[i] = identity_of(m, cache, &calls);
        assert_true(calls.n > 0);
        kvasir_model_close(m);
    }
    const size_t size = read_cache(cache, &text);
    unsigned lines = 0;
    for (size_t i = 0; i < size; i++)
        lines += text[i] == '\n';
    assert_int_equal(lines, 64);
    for (int i = MODELS - 1; i >= 0; i--) {
        kvasir_model *m = open_model(paths[i]);
        if (i >= MODELS - 64)
            need_read(m, cache, keys[i], false, "one of the last");
        else if (i == 0)
            need_read(m, cache, keys[i], true, "the first");
        kvasir_model_close(m);
    }
    mem_free(text);
    text_free(&b);
}

/* A file that changes while it is open is an error, with and without an earlier result. */
static void test_changed(void **state) {
    (void)state;
    struct tier_key key;
    char cache[192];
    struct text_buf b = tiny_folder_tensors(false);
    snprintf(cache, sizeof cache, "%s", temp_file(&folder, "changed"));
    kvasir_model *m = open_model(write_model("a", TINY_MLX_CONFIG, &b));
    let_settle();
    need_read(m, cache, identity(m), true, "first");
    need_read(m, cache, identity(m), false, "second");
    write_model("a", TINY_MLX_CONFIG, &b);
    assert_int_equal(checkpoint_identity(m, cache, NULL, NULL, &key, &err), KVASIR_ERR_IO);
    assert_non_null(strstr(err.text, "changed while it was in use"));
    assert_int_equal(checkpoint_identity(m, NULL, NULL, NULL, &key, &err), KVASIR_ERR_IO);
    kvasir_model_close(m);
    text_free(&b);
}

/* Read into memory: there is no file to compare later. The hash is the same. */
static void test_read_into_memory(void **state) {
    (void)state;
    if (!path_exists(TINY "llama"))
        skip();
    char cache[192];
    kvasir_model_options o = kvasir_model_defaults();
    kvasir_model *m;
    snprintf(cache, sizeof cache, "%s", temp_file(&folder, "memory"));
    o.no_mmap = true;
    need(kvasir_model_open_with(TINY "llama", &o, &m, &err));
    const struct tier_key key = identity_of_path(TINY "llama");
    need_read(m, cache, key, true, "in memory");
    need_read(m, cache, key, true, "in memory, again");
    kvasir_model_close(m);
}

/* ---- contexts -------------------------------------------------------------------------------- */

static const struct tier_key CHECKPOINT = {{1, 2}};

static struct tier_key of_options(const kvasir_model *m, kvasir_context_options o) {
    kvasir_context *c;
    struct tier_key key;
    o.threads = o.threads ? o.threads : 1;
    o.cache_bytes = o.cache_bytes ? o.cache_bytes : 64 << 20;
    need(kvasir_context_create(m, &o, &c, &err));
    need(context_identity(c, CHECKPOINT, &key, &err));
    kvasir_context_destroy(c);
    return key;
}

/* Each of these changes bits of some page. */
static void test_settings_count(void **state) {
    (void)state;
    enum { N_MAX = 22 };
    if (!path_exists(TINY "llama"))
        skip();
    kvasir_model *m = open_model(TINY "llama");
    struct text_buf centres = random_centres(m, 20, 1), others = random_centres(m, 20, 2);
    char one[192], two[192];
    snprintf(one, sizeof one, "%s", temp_write(&folder, "one", centres.data, centres.len));
    snprintf(two, sizeof two, "%s", temp_write(&folder, "two", others.data, others.len));
    kvasir_context_options base = kvasir_context_defaults(), o[N_MAX];
    base.cpu_tier = "ref";
    int n = 0;
    o[n++] = base;
    (o[n++] = base, o[n - 1].kv_bits = "4,8");
    (o[n++] = base, o[n - 1].kv_bits = "8");
    (o[n++] = base, o[n - 1].kv_bits = "f16");
    (o[n++] = base, o[n - 1].kv_bits = "bf16");
    (o[n++] = base, o[n - 1].kv_group_size = "32");
    (o[n++] = base, o[n - 1].quantized_kv_start = 64);
    (o[n++] = base, o[n - 1].quantized_kv_start = 65);
    (o[n++] = base, o[n - 1].kv_bits = "t4");
    (o[n++] = base, o[n - 1].kv_bits = "t4", o[n - 1].quantized_kv_start = 0);
    (o[n++] = base, o[n - 1].kv_bits = "t4", o[n - 1].quantized_kv_start = 65);
    (o[n++] = base, o[n - 1].kv_bits = "t4", o[n - 1].kv_exact_tail = 64);
    (o[n++] = base, o[n - 1].kv_bits = "t4", o[n - 1].kv_exact_tail = 65);
    (o[n++] = base, o[n - 1].max_kv_size = 128);
    (o[n++] = base, o[n - 1].max_kv_size = 129);
    (o[n++] = base, o[n - 1].max_kv_size = 128, o[n - 1].kv_keep = 5);
    (o[n++] = base, o[n - 1].act_bits = 16);
    (o[n++] = base, o[n - 1].key_centre = one);
    (o[n++] = base, o[n - 1].key_centre = two);
    if (cpu_tier_have(CPU_TIER_AVX2))
        (o[n++] = base, o[n - 1].cpu_tier = "avx2");
    struct tier_key keys[N_MAX];
    for (int i = 0; i < n; i++) {
        keys[i] = of_options(m, o[i]);
        for (int k = 0; k < i; k++)
            if (tier_key_equal(keys[i], keys[k]))
                fail_msg("settings %d and %d", i, k);
    }
    text_free(&centres);
    text_free(&others);
    kvasir_model_close(m);
}

/* And none of these. */
static void test_settings_without_effect(void **state) {
    (void)state;
    if (!path_exists(TINY "llama"))
        skip();
    kvasir_model *m = open_model(TINY "llama");
    const kvasir_context_options base = kvasir_context_defaults();
    const struct tier_key key = of_options(m, base);
    kvasir_context_options o = base;
    o.threads = 3;
    need_equal(key, of_options(m, o), true, "threads");
    o = base, o.cache_bytes = 128 << 20;
    need_equal(key, of_options(m, o), true, "budget");
    o = base, o.prefill_chunk = 17;
    need_equal(key, of_options(m, o), true, "chunk");
    o = base, o.cpu_tier = "avx512vnni";
    if (cpu_tier_have(CPU_TIER_AMX)) /* which base runs on */
        need_equal(key, of_options(m, o), true, "a tier of the same bits");
    assert_string_equal(cpu_tier_of_bits("amx"), "avx512vnni");
    assert_string_equal(cpu_tier_of_bits("avx2"), "avx2");
    o = base, o.ctx = 512;
    need_equal(key, of_options(m, o), true, "ctx");
    o = base, o.snapshot_tokens = 64;
    need_equal(key, of_options(m, o), true, "snapshots");
    o = base, o.kv_keep = 7;
    need_equal(key, of_options(m, o), true, "keep without rotation");
    o = base, o.quantized_kv_start = 0;
    need_equal(key, of_options(m, o), true, "the start of 8,4");
    o = base, o.kv_bits = "f16", o.quantized_kv_start = 64, o.kv_exact_tail = 64;
    kvasir_context_options exact = base, tiles = base;
    exact.kv_bits = "f16";
    need_equal(of_options(m, exact), of_options(m, o), true, "exact start and tail, exact pages");
    tiles.kv_bits = o.kv_bits = "t4,3", o.quantized_kv_start = 64, o.kv_exact_tail = 0;
    need_equal(of_options(m, tiles), of_options(m, o), true, "the start of tiles");
    kvasir_model_close(m);
}

/* The exact start before pages that are encoded when they are full is in their basis since its
 * version 2. Pages of version 1 had the same names but for that line, and must not be found. */
static void test_version_of_the_start(void **state) {
    (void)state;
    static const struct {
        const char *bits;
        uint32_t start;
        bool there;
    } CASES[] = {{"t4", 64, true}, {"r8,4", 64, true}, {"t4", 0, false}, {"8,4", 64, false}};
    kvasir_model *m = open_model(TINY "llama");
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        kvasir_context_options o = kvasir_context_defaults();
        kvasir_context *c;
        struct text_buf b = {0};
        o.kv_bits = CASES[i].bits;
        o.quantized_kv_start = CASES[i].start;
        need(kvasir_context_create(m, &o, &c, &err));
        assert_true(fingerprint_put_context(&b, c, "model") && text_append(&b, "", 1));
        assert_int_equal(strstr(b.data, "\nstart 2\n") != NULL, CASES[i].there);
        text_free(&b);
        kvasir_context_destroy(c);
    }
    kvasir_model_close(m);
}

/* ctx counts where it selects the RoPE. */
static void test_rope_variant(void **state) {
    (void)state;
    if (!path_exists(TINY "phi3_long"))
        skip();
    kvasir_model *m = open_model(TINY "phi3_long");
    kvasir_context_options o = kvasir_context_defaults();
    struct tier_key keys[4];
    const uint32_t lengths[4] = {64, 128, 129, 1024};
    for (int i = 0; i < 4; i++) {
        o.ctx = lengths[i];
        keys[i] = of_options(m, o);
    }
    need_equal(keys[0], keys[1], true, "short ones");
    need_equal(keys[1], keys[2], false, "short and long");
    need_equal(keys[2], keys[3], true, "long ones");
    kvasir_model_close(m);
}

static void test_checkpoint_counts(void **state) {
    (void)state;
    static const char *const models[] = {"llama", "gemma3", "qwen3_5", "lfm2"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[512];
        snprintf(path, sizeof path, TINY "%s", models[i]);
        if (!path_exists(path))
            continue;
        kvasir_model *m = open_model(path);
        kvasir_context_options o = kvasir_context_defaults();
        kvasir_context *c;
        struct tier_key a, b, again;
        o.threads = 1;
        o.cache_bytes = 64 << 20;
        need(kvasir_context_create(m, &o, &c, &err));
        for (int w = 0; w < 2; w++) {
            struct tier_key other = CHECKPOINT;
            other.word[w] ^= UINT64_C(1) << 63;
            need(context_identity(c, CHECKPOINT, &a, &err));
            need(context_identity(c, CHECKPOINT, &again, &err));
            need(context_identity(c, other, &b, &err));
            need_equal(a, again, true, "the same");
            need_equal(a, b, false, "checkpoints");
        }
        kvasir_context_destroy(c);
        kvasir_model_close(m);
    }
}

static void test_backend_counts(void **state) {
    (void)state;
    if (!path_exists(TINY "llama"))
        skip();
    kvasir_model *m = open_model(TINY "llama");
    kvasir_context_options o = kvasir_context_defaults();
    kvasir_context *c;
    struct tier_key cpu, other;
    o.threads = 1;
    o.cache_bytes = 64 << 20;
    need(kvasir_context_create(m, &o, &c, &err));
    need(context_identity(c, CHECKPOINT, &cpu, &err));
    assert_string_equal(c->device.kind, "cpu");
    c->device.kind = "another";
    need(context_identity(c, CHECKPOINT, &other, &err));
    need_equal(cpu, other, false, "backends");
    kvasir_context_destroy(c);
    kvasir_model_close(m);
}

/* In prompt-cache files, a first version of the model's arithmetic is not mentioned. */
static void test_arithmetic_text(void **state) {
    (void)state;
    char text[32], wanted[32];
    arithmetic_version(text);
    if (MODEL_ARITHMETIC_VERSION == 1)
        snprintf(wanted, sizeof wanted, "%d", KV_ARITHMETIC_VERSION);
    else
        snprintf(wanted, sizeof wanted, "%d.%d", KV_ARITHMETIC_VERSION, MODEL_ARITHMETIC_VERSION);
    assert_string_equal(text, wanted);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_byte_counts),
                                       cmocka_unit_test(test_more_than_samples),
                                       cmocka_unit_test(test_configuration),
                                       cmocka_unit_test(test_template_does_not_count),
                                       cmocka_unit_test(test_found_again),
                                       cmocka_unit_test(test_damaged),
                                       cmocka_unit_test(test_bounded),
                                       cmocka_unit_test(test_changed),
                                       cmocka_unit_test(test_read_into_memory),
                                       cmocka_unit_test(test_settings_count),
                                       cmocka_unit_test(test_settings_without_effect),
                                       cmocka_unit_test(test_version_of_the_start),
                                       cmocka_unit_test(test_rope_variant),
                                       cmocka_unit_test(test_checkpoint_counts),
                                       cmocka_unit_test(test_backend_counts),
                                       cmocka_unit_test(test_arithmetic_text)};
    temp_folder_make(&folder);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    temp_folder_remove(&folder);
    return failed;
}
